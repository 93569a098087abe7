//! Sending groups of frames to their destinations: first try, retry, spill, notifications.
//!
//! # Model
//! A group is offered once. What the receiver has no room for stays in its list while the other
//! destinations are served, is tried once more at the end of the visit (a microsecond or more
//! later, still borrowed), and is then dropped as `ring-full`. Where another worker holds the
//! ring, the rest is copied to private memory (spilled) and this worker's later frames for that
//! member go behind it, so that their order is kept. A member with several rings is so many
//! receivers: each ring's frames go, wait and are dropped by themselves ([`crate::spread`]).
//!
//! ```text
//! offer -> stages of the member -> its rates -> rings -> sent, spilled, dropped
//!      \                             \-> its queues --task--/
//!       \-> gathered for a tunnel (cork) --> its port -> sent, dropped
//! ```
//! What a stage rewrites, it rewrites in a copy of the headers: other members get the frame as it was.
//!
//! # What can be lost and what cannot
//! Every frame that is offered ends up delivered, dropped under a reason, or held; see
//! [`windlass_stats`].

mod corked;
mod unknown;

use std::collections::VecDeque;

use windlass_attach::port::{Kick, Sent, Stop};
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, RxId, SNAP, Tick, TxId};
use windlass_nic::{Entering, Fate};
use windlass_shaper::Direction;
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_stats::{Drop, MemberCounters};

use crate::capture::{self, Deaths, Watch, Way};
use crate::context::Context;
use crate::cork::{self, Cork};
use crate::counters::WorkerCounters;
use crate::courtesy::Courtesy;
use crate::group::List;
use crate::hold::{Held, Pool};
use crate::meter::{Meter, Sense};
use crate::questions::Questions;
use crate::queue::{Outcome, Queues, Rule, Tally};
use crate::spread::{Late, Spread};
use crate::timers::Timers;
use crate::topo::Member;

/// Spilled frames that are sent at once.
const SPILL_BURST: usize = BURST / 4;
/// How often so many are sent before frames that follow them.
const CATCH_UP_BURSTS: usize = 8;

/// Tasks that are done in a round.
const TASKS: usize = 64;
/// Frames that queues give in a round, give or take a burst.
pub(crate) const RELEASED: usize = 2 * BURST;

/// The ring that the port chooses.
const ANY: u8 = u8::MAX;

/// What is done at a time, beside rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// A notification that `intr-rate` has put off.
    Kick(TxId),
    /// The frames that wait before a member.
    Release(TxId),
}

impl Task {
    fn number(self) -> u32 {
        match self {
            Task::Kick(to) => u32::from(to.0) << 1,
            Task::Release(to) => u32::from(to.0) << 1 | 1,
        }
    }

    fn of(number: u32) -> Task {
        let to = TxId((number >> 1) as u16);
        match number & 1 {
            0 => Task::Kick(to),
            _ => Task::Release(to),
        }
    }
}

/// One member's frames, or those for one of its rings, that were spilled by this worker.
struct Waiting {
    to: TxId,
    ring: u8,
    frames: VecDeque<Spilled>,
}

/// A frame that was spilled.
struct Spilled {
    held: Held,
    tagged: bool,
    /// Which of all that this worker has spilled.
    number: u64,
}

/// The transmit side of one worker.
pub struct Egress {
    kicks: Vec<TxId>,
    /// By [`Task`]: when it is due.
    tasks: Timers,
    /// Members whose frames are due, in one round.
    waits: Vec<TxId>,
    /// None while it is in use.
    queues: Option<Queues>,
    /// What stages have rewritten, or a queue gives: made when it is first needed.
    own: Option<(Box<Heads>, SegStore)>,
    kicked_at: Vec<Tick>,
    pool: Pool,
    waiting: Vec<Waiting>,
    /// Small frames for tunnels: made when there is one, none while it is in use.
    cork: Option<Box<Cork>>,
    has_corked: bool,
    /// Whether small frames of the visit at hand may wait for those that follow.
    may_cork: bool,
    /// Frames to addresses that searches are asked for: made when one is first asked, none while it is in use.
    questions: Option<Box<Questions>>,
    /// Frames spilled, and held for an answer, so far.
    spilled: u64,
    spread: Box<Spread>,
    heads: Box<Heads>,
    store: SegStore,
    /// What the kernel took, and may have made others ready to run.
    pub(crate) courtesy: Courtesy,
    /// What access to members' memory takes.
    pub(crate) meter: Meter,
}

impl Egress {
    /// For destinations below `members`; `flow_keys` spread flows over rings, `sense` tells what the worker has used.
    pub(crate) fn new(members: usize, flow_keys: [u64; 2], sense: Sense) -> Egress {
        Egress {
            kicks: Vec::with_capacity(BURST),
            tasks: Timers::default(),
            waits: Vec::with_capacity(TASKS),
            queues: Some(Queues::new(flow_keys)),
            own: None,
            kicked_at: vec![Tick(0); members],
            pool: Pool::default(),
            waiting: Vec::new(),
            cork: None,
            has_corked: false,
            may_cork: false,
            questions: None,
            spilled: 0,
            spread: Box::new(Spread::new(members, flow_keys)),
            heads: Heads::boxed(),
            store: SegStore::default(),
            courtesy: Courtesy::default(),
            meter: Meter::new(sense),
        }
    }

    /// Offers frames to a member for the first time. Returns how many were consumed; the rest may
    /// be offered to [`Egress::retry`]. Behind the last offer of a visit's frames, [`Egress::retry_late`] is called.
    #[inline]
    pub fn offer(
        &mut self,
        cx: &Context<'_>,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        picks: &[Pick],
    ) -> usize {
        let Some(member) = cx.topo.member(to.0) else {
            return picks.len();
        };
        let Some(counters) = cx.counters(member) else {
            return picks.len();
        };
        counters.offered.add(picks.len() as u64);
        if member.is_special || self.is_queued(to) {
            self.offer_special(cx, member, counters, heads, tails, to, picks);
            return picks.len();
        }
        if !self.waiting.is_empty() && !self.catch_up(cx, to, ANY) {
            self.spill(counters, heads, tails, to, ANY, picks);
            return picks.len();
        }
        self.send(cx, member, counters, heads, tails, to, ANY, picks)
    }

    /// Sends a member a frame that was made here: its VLAN, and whether it has a tag there.
    #[cold]
    pub(crate) fn answer(
        &mut self,
        cx: &Context<'_>,
        to: TxId,
        (vid, is_tagged): (u16, bool),
        frame: &[u8],
    ) {
        let member = cx.topo.member(to.0);
        let Some(counters) = member.and_then(|member| cx.counters(member)) else {
            return;
        };
        let (start, rest) = frame.split_at(frame.len().min(SNAP));
        let (mut own, mut store) = self.own.take().unwrap_or_else(Egress::room);
        own.clear(RxId(to.0), cx.now);
        own.snap[0].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
        own.admit(0, frame.len() as u32, Claim::NONE);
        (own.meta[0].vid, own.n) = (vid, 1);
        let mut tails = Tails::bind(&mut store, cx.section);
        tails.push(0, Foreign::private(rest));
        counters.own_frames.add(1);
        let taken = self.offer(cx, &own, &tails, to, &[Pick::frame(0, is_tagged)]);
        counters.drop_frames(Drop::RingFull, 1 - taken as u64);
        self.retry_late(cx, &own, &tails);
        self.own = Some((own, store));
    }

    fn room() -> (Box<Heads>, SegStore) {
        (Heads::boxed(), SegStore::default())
    }

    /// Whether frames wait before a member.
    #[inline(always)]
    fn is_queued(&self, to: TxId) -> bool {
        !self.tasks.is_empty() && self.tasks.has(Task::Release(to).number())
    }

    /// Offers frames to a member with several rings, with stages, or with a queue.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn offer_special(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        picks: &[Pick],
    ) {
        if let Some(asker) = &member.asker {
            self.offer_unknown(cx, (member, asker), heads, tails, to, picks);
            return;
        }
        if member.tx.is_none() {
            cx.drop((member, counters), heads, tails, Drop::PeerDown, picks);
            return;
        }
        if self.is_queued(to) {
            self.release(cx, to);
        }
        if cork::is_corked(member) && !self.is_queued(to) {
            self.offer_corked(cx, member, counters, heads, tails, to, picks);
            return;
        }
        self.uncork_one(cx, to);
        if member.egress.is_empty() && member.shape_in.is_none() && !self.is_queued(to) {
            self.offer_spread(cx, member, counters, heads, tails, to, picks);
            return;
        }
        let Some(mut queues) = self.queues.take() else {
            cx.drop((member, counters), heads, tails, Drop::QueueFull, picks);
            return;
        };
        let (mut own, store) = self.own.take().unwrap_or_else(Egress::room);
        let mut entering = Entering::new(heads, &mut own, picks);
        for stage in &member.egress {
            stage.enter(cx.now, &mut entering);
        }
        let rule = cx.rule_in(to.0, Some(member));
        let mut tally = Tally::default();
        let (mut pass, mut n) = ([Pick::frame(0, false); BURST], 0);
        for (pick, fate) in entering.fates() {
            if let Fate::Drop(reason) = fate {
                let frame = entering.heads();
                cx.drop((member, counters), frame, tails, reason, &[pick]);
            } else if queues.admit(&rule, entering.heads(), tails, pick, &mut tally)
                == Outcome::Goes
            {
                pass[n] = pick;
                n += 1;
            }
        }
        if !tally.is_nothing() {
            tally.count(Direction::In, counters);
            self.set_due(&queues, to);
        }
        self.queues = Some(queues);
        if n > 0 {
            let (heads, picks) = (entering.heads(), &pass[..n]);
            self.send_now(cx, member, counters, heads, tails, to, picks);
        }
        self.own = Some((own, store));
    }

    /// Knows when the next frame before a member is due, or that none waits.
    fn set_due(&mut self, queues: &Queues, to: TxId) {
        let task = Task::Release(to).number();
        match queues.due(to.0) {
            Some(due) => self.tasks.set(task, due),
            None => self.tasks.clear(task),
        }
    }

    /// Sends frames that have passed the stages. What does not fit is dropped.
    #[allow(clippy::too_many_arguments)]
    fn send_now(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        picks: &[Pick],
    ) {
        if member.several {
            // What others have to try again stands in another burst.
            let late = std::mem::take(&mut self.spread.late);
            self.offer_spread(cx, member, counters, heads, tails, to, picks);
            self.retry_late(cx, heads, tails);
            self.spread.late = late;
            return;
        }
        if !self.waiting.is_empty() && !self.catch_up(cx, to, ANY) {
            self.spill_special(cx, (member, counters), heads, tails, (to, ANY), picks);
            return;
        }
        let taken = self.send_special(cx, member, counters, heads, tails, to, ANY, picks);
        let rest = picks.get(taken..).unwrap_or(&[]);
        cx.drop((member, counters), heads, tails, Drop::RingFull, rest);
    }

    /// Sends what waits before a member and is due, a burst at most; how many frames.
    fn release(&mut self, cx: &Context<'_>, to: TxId) -> usize {
        self.tasks.clear(Task::Release(to).number());
        let member = cx.topo.member(to.0);
        let found = member.and_then(|m| Some((m, cx.counters(m)?)));
        let Some(mut queues) = self.queues.take() else {
            return 0;
        };
        let rule = cx.rule_in(to.0, member);
        let mut n = 0;
        // No topology has it any more: it is about to be purged.
        if let Some((member, counters)) = found {
            queues.advance(&rule).count(Direction::In, counters);
            let (mut own, mut store) = self.own.take().unwrap_or_else(Egress::room);
            own.clear(windlass_frame::RxId(0), cx.now);
            let mut tails = Tails::bind(&mut store, cx.section);
            let mut picks = [Pick::frame(0, false); BURST];
            n = queues.restore(to.0, BURST, &mut own, &mut tails, &mut picks);
            if n > 0 {
                self.send_now(cx, member, counters, &own, &tails, to, &picks[..n]);
            }
            self.own = Some((own, store));
            counters.tx_marked.add(queues.forget(&rule, n));
            counters.held.add((n as u64).wrapping_neg());
            self.set_due(&queues, to);
        }
        self.queues = Some(queues);
        n
    }

    /// Offers frames to a member with several rings. What does not fit now is kept for [`Egress::retry_late`].
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn offer_spread(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        picks: &[Pick],
    ) {
        let choices = member.tx.as_deref().map_or(0, |tx| tx.choices(cx.lane));
        if member.several && self.spread.share(to, choices, member.weights, cx.now) {
            self.settle(cx, member, to);
        }
        if choices.count_ones() < 2 {
            let ring = choices.trailing_zeros() as u8;
            self.offer_ring(cx, member, counters, heads, tails, (to, ring), picks);
            return;
        }
        let mut used = self.spread.sort(heads, to, picks);
        while used != 0 {
            let ring = used.trailing_zeros() as u8;
            used &= used - 1;
            let (list, n) = self.spread.list(ring);
            let list = list.get(..n).unwrap_or(&[]);
            self.offer_ring(cx, member, counters, heads, tails, (to, ring), list);
        }
    }

    /// Moves flows to other rings of a member, where nothing of them waits.
    #[cold]
    fn settle(&mut self, cx: &Context<'_>, member: &Member, to: TxId) {
        let waiting = self.waiting.iter().filter(|w| w.to == to);
        let held = waiting.fold(0, |held, w| held | 1 << (w.ring % 32));
        let progress = |ring| member.tx.as_deref()?.progress(ring);
        self.spread.settle(to, held, cx.now, progress);
    }

    #[allow(clippy::too_many_arguments)]
    fn offer_ring(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        (to, ring): (TxId, u8),
        picks: &[Pick],
    ) {
        if !self.waiting.is_empty() && !self.catch_up(cx, to, ring) {
            self.spill_special(cx, (member, counters), heads, tails, (to, ring), picks);
            return;
        }
        let taken = self.send_special(cx, member, counters, heads, tails, to, ring, picks);
        let late = picks.get(taken..).unwrap_or(&[]).iter();
        self.spread
            .late
            .extend(late.map(|&pick| Late { to, ring, pick }));
    }

    /// Tries what did not fit into one of several rings once more, then drops what still does not.
    #[inline(always)]
    pub fn retry_late(&mut self, cx: &Context<'_>, heads: &Heads, tails: &Tails<'_>) {
        if !self.spread.late.is_empty() {
            self.try_late(cx, heads, tails);
        }
    }

    #[cold]
    fn try_late(&mut self, cx: &Context<'_>, heads: &Heads, tails: &Tails<'_>) {
        let mut late = std::mem::take(&mut self.spread.late);
        for run in late.chunk_by(|a, b| (a.to, a.ring) == (b.to, b.ring)) {
            let Some(&Late { to, ring, .. }) = run.first() else {
                continue;
            };
            let mut picks = [Pick::frame(0, false); BURST];
            for (place, late) in picks.iter_mut().zip(run) {
                *place = late.pick;
            }
            let picks = picks.get(..run.len()).unwrap_or(&picks);
            let member = cx.topo.member(to.0);
            if let Some((member, counters)) = member.and_then(|m| Some((m, cx.counters(m)?))) {
                let taken = self.send_special(cx, member, counters, heads, tails, to, ring, picks);
                let rest = picks.get(taken..).unwrap_or(&[]);
                cx.drop((member, counters), heads, tails, Drop::RingFull, rest);
            }
        }
        late.clear();
        self.spread.late = late;
    }

    /// Tries the rest of a list once more, then drops what still does not fit.
    #[cold]
    pub fn retry(&mut self, cx: &Context<'_>, heads: &Heads, tails: &Tails<'_>, list: &List) {
        let (to, picks) = (list.to, list.picks());
        let Some(member) = cx.topo.member(to.0) else {
            return;
        };
        let Some(counters) = cx.counters(member) else {
            return;
        };
        let taken = self.send(cx, member, counters, heads, tails, to, ANY, picks);
        counters.drop_frames(Drop::RingFull, (picks.len() - taken) as u64);
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn send(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        ring: u8,
        picks: &[Pick],
    ) -> usize {
        self.send_told(
            cx,
            member,
            counters,
            heads,
            tails,
            to,
            ring,
            picks,
            |_, _| {},
        )
    }

    /// The same to a member that may be captured.
    #[allow(clippy::too_many_arguments)]
    fn send_special(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        ring: u8,
        picks: &[Pick],
    ) -> usize {
        if member.watches.is_empty() {
            return self.send(cx, member, counters, heads, tails, to, ring, picks);
        }
        let burst = cx.burst(heads, tails);
        let tell = |sent: &Sent, lost: Option<(Drop, usize)>| {
            note_sent(&member.watches, &burst, picks, sent);
            if let Some((reason, from)) = lost {
                let lost = picks.get(from..).unwrap_or(&[]);
                capture::note(&member.watches, &burst, (Way::To, Some(reason)), lost);
            }
        };
        self.send_told(cx, member, counters, heads, tails, to, ring, picks, tell)
    }

    /// Sends to a member or one of its rings, and tells what became of the frames: what the port did, and why those from a place on were
    /// dropped, if they were.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn send_told(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        ring: u8,
        picks: &[Pick],
        tell: impl FnOnce(&Sent, Option<(Drop, usize)>),
    ) -> usize {
        let Some(tx) = member.tx.as_deref() else {
            counters.drop_frames(Drop::PeerDown, picks.len() as u64);
            tell(&Sent::default(), Some((Drop::PeerDown, 0)));
            return picks.len();
        };
        if self.meter.is_on() && cx.rest(to).is_some() {
            counters.drop_frames(Drop::PeerSlow, picks.len() as u64);
            tell(&Sent::default(), Some((Drop::PeerSlow, 0)));
            return picks.len();
        }
        let began = self.meter.begin_if(|| tx.is_foreign());
        let sent = match ring {
            ANY => tx.tx_burst(cx.section, cx.lane, heads, tails, picks),
            _ => tx.tx_burst_on(cx.section, cx.lane, ring, heads, tails, picks),
        };
        cx.charge(&mut self.meter, began, (to.0, sent.bytes));
        count(counters, &sent);
        self.owe(to, &sent);
        let rest = picks.get(sent.taken..).unwrap_or(&[]);
        match sent.stop {
            Stop::Done | Stop::Full => {
                tell(&sent, None);
                sent.taken
            }
            Stop::Busy => {
                let kept = self.spill(counters, heads, tails, to, ring, rest);
                tell(&sent, Some((Drop::SpillFull, sent.taken + kept)));
                picks.len()
            }
            Stop::Down => {
                counters.drop_frames(Drop::PeerDown, rest.len() as u64);
                tell(&sent, Some((Drop::PeerDown, sent.taken)));
                picks.len()
            }
        }
    }

    /// Remembers what a transmission asks for.
    #[inline(always)]
    fn owe(&mut self, to: TxId, sent: &Sent) {
        match sent.kick {
            Kick::No => {}
            Kick::Now if self.kicks.contains(&to) => {}
            Kick::Now => self.kicks.push(to),
            Kick::Core => self.courtesy.note(sent.frames, sent.bytes),
        }
    }

    /// Spills frames for a member that may be captured.
    #[cold]
    fn spill_special(
        &mut self,
        cx: &Context<'_>,
        (member, counters): (&Member, &MemberCounters),
        heads: &Heads,
        tails: &Tails<'_>,
        (to, ring): (TxId, u8),
        picks: &[Pick],
    ) {
        let kept = self.spill(counters, heads, tails, to, ring, picks);
        let lost = picks.get(kept..).unwrap_or(&[]);
        let burst = cx.burst(heads, tails);
        capture::note(
            &member.watches,
            &burst,
            (Way::To, Some(Drop::SpillFull)),
            lost,
        );
    }

    /// Keeps frames in private memory; how many. The rest is dropped.
    #[cold]
    fn spill(
        &mut self,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        ring: u8,
        picks: &[Pick],
    ) -> usize {
        for (done, pick) in picks.iter().enumerate() {
            let Some(held) = self.pool.hold(heads, tails, pick.index()) else {
                counters.drop_frames(Drop::SpillFull, (picks.len() - done) as u64);
                return done;
            };
            counters.held.add(1);
            counters.spilled.add(1);
            let spilled = Spilled {
                held,
                tagged: pick.tagged(),
                number: self.spilled,
            };
            self.spilled += 1;
            let waiting = self.waiting.iter_mut();
            match waiting.into_iter().find(|w| (w.to, w.ring) == (to, ring)) {
                Some(w) => w.frames.push_back(spilled),
                None => {
                    let mut frames = VecDeque::with_capacity(BURST);
                    frames.push_back(spilled);
                    self.waiting.push(Waiting { to, ring, frames });
                }
            }
        }
        picks.len()
    }

    /// Frames spilled so far: the number of the next one.
    pub(crate) fn spilled(&self) -> u64 {
        self.spilled
    }

    /// The number of the frame that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let fronts = self.waiting.iter().filter_map(|w| w.frames.front());
        let asked = self.questions.as_ref().and_then(|q| q.oldest());
        fronts.map(|spilled| spilled.number).chain(asked).min()
    }

    /// Frames queued so far: the number of the next one.
    pub(crate) fn queued(&self) -> u64 {
        self.queues.as_ref().map_or(0, Queues::pushed)
    }

    /// The number of the frame that is queued longest.
    pub(crate) fn oldest_queued(&self) -> Option<u64> {
        self.queues.as_ref()?.oldest()
    }

    /// Frames that wait.
    pub fn held_frames(&self) -> usize {
        let spilled: usize = self.waiting.iter().map(|w| w.frames.len()).sum();
        let asked = self.questions.as_ref().map_or(0, |q| q.len());
        spilled + asked + self.corked() + self.queues.as_ref().map_or(0, Queues::len)
    }

    /// Whether frames wait that [`Egress::drain`] should be called for.
    #[inline(always)]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends what waits for a member or its ring before frames that are to follow it; true if nothing waits any more. Without this a
    /// worker that spilled once would go on filling its pool faster than [`Egress::drain`] empties it.
    #[cold]
    fn catch_up(&mut self, cx: &Context<'_>, to: TxId, ring: u8) -> bool {
        let waiting = self.waiting.iter();
        let Some(at) = waiting
            .into_iter()
            .position(|w| (w.to, w.ring) == (to, ring))
        else {
            return true;
        };
        let mut w = self.waiting.swap_remove(at);
        for _ in 0..CATCH_UP_BURSTS {
            let before = w.frames.len();
            self.drain_one(cx, &mut w);
            if w.frames.is_empty() {
                return true;
            }
            if w.frames.len() == before {
                break;
            }
        }
        self.waiting.push(w);
        false
    }

    /// Sends what was spilled, one burst for each member or ring.
    #[cold]
    pub fn drain(&mut self, cx: &Context<'_>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|w| {
            self.drain_one(cx, w);
            !w.frames.is_empty()
        });
        self.waiting = waiting;
    }

    fn drain_one(&mut self, cx: &Context<'_>, w: &mut Waiting) {
        let member = cx.topo.member(w.to.0);
        let counters = member.and_then(|m| cx.counters(m));
        let tx = member.and_then(|m| m.tx.as_deref());
        let (taken, gone) = match (tx, counters) {
            (Some(_), Some(_)) if self.meter.is_on() && cx.rest(w.to).is_some() => {
                (w.frames.len(), Some((Drop::PeerSlow, w.frames.len())))
            }
            (Some(tx), Some(counters)) => {
                self.heads.clear(windlass_frame::RxId(0), cx.now);
                let mut tails = Tails::bind(&mut self.store, cx.section);
                let mut picks = [Pick::frame(0, false); BURST];
                let mut n = 0;
                for (i, spilled) in w.frames.iter().take(SPILL_BURST).enumerate() {
                    self.pool
                        .restore(&spilled.held, &mut self.heads, &mut tails, i);
                    picks[i] = Pick::frame(i, spilled.tagged);
                    n = i + 1;
                }
                self.heads.n = n;
                let (heads, picks) = (&self.heads, &picks[..n]);
                let began = self.meter.begin_if(|| tx.is_foreign());
                let sent = match w.ring {
                    ANY => tx.tx_burst(cx.section, cx.lane, heads, &tails, picks),
                    ring => tx.tx_burst_on(cx.section, cx.lane, ring, heads, &tails, picks),
                };
                cx.charge(&mut self.meter, began, (w.to.0, sent.bytes));
                count(counters, &sent);
                if let Some(member) = member.filter(|member| !member.watches.is_empty()) {
                    note_sent(&member.watches, &cx.burst(heads, &tails), picks, &sent);
                }
                self.owe(w.to, &sent);
                match sent.stop {
                    Stop::Done | Stop::Busy => (sent.taken, None),
                    Stop::Full => (n, Some((Drop::RingFull, n - sent.taken))),
                    Stop::Down => (
                        w.frames.len(),
                        Some((Drop::PeerDown, w.frames.len() - sent.taken)),
                    ),
                }
            }
            (None, Some(_)) => (w.frames.len(), Some((Drop::PeerDown, w.frames.len()))),
            // No topology has it any more: it is about to be purged.
            (_, None) => (0, None),
        };
        let deaths = member.and_then(|member| cx.deaths(&member.watches, Way::To));
        let gone = gone.map(|(reason, n)| (reason, taken - n));
        for (at, spilled) in w.frames.drain(..taken).enumerate() {
            match gone.filter(|(_, first)| at >= *first) {
                Some((reason, _)) => self.lose(spilled, deaths, counters, reason),
                None => self.free(spilled, counters),
            }
        }
    }

    /// A spilled frame dies.
    fn lose(
        &mut self,
        spilled: Spilled,
        deaths: Option<Deaths<'_>>,
        counters: Option<&MemberCounters>,
        reason: Drop,
    ) {
        if let Some(deaths) = deaths {
            let shown = self.own.get_or_insert_with(Egress::room);
            deaths.tell_held(shown, &self.pool, (&spilled.held, spilled.tagged), reason);
        }
        if let Some(c) = counters {
            c.drop_frames(reason, 1);
        }
        self.free(spilled, counters);
    }

    /// A spilled frame waits no more.
    fn free(&mut self, spilled: Spilled, counters: Option<&MemberCounters>) {
        self.pool.free(spilled.held);
        if let Some(c) = counters {
            c.held.add(u64::MAX);
        }
    }

    /// Forgets what waits for a member that is being taken away.
    pub(crate) fn purge(&mut self, rule: &Rule<'_>, counters: Option<&MemberCounters>) {
        let to = TxId(rule.member);
        self.tasks.clear(Task::Kick(to).number());
        self.tasks.clear(Task::Release(to).number());
        self.purge_unknown(rule, counters);
        let queues = self.queues.as_mut();
        let queued = queues.map_or(0, |queues| queues.purge(rule, Drop::PeerDown) as u64);
        if let Some(c) = counters {
            c.held.add(queued.wrapping_neg());
            c.drop_frames(Drop::PeerDown, queued);
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|w| {
            if w.to != to {
                return true;
            }
            for spilled in w.frames.drain(..) {
                self.lose(spilled, rule.deaths, counters, Drop::PeerDown);
            }
            false
        });
        self.waiting = waiting;
    }

    /// Gives the notifications that were put off, and drops what waits; how many frames.
    #[cold]
    pub(crate) fn give_up(&mut self, cx: &Context<'_>, worker: &WorkerCounters) -> u64 {
        let tasks = std::iter::from_fn(|| self.tasks.pop(Tick(u64::MAX)));
        let tasks: Vec<Task> = tasks.map(Task::of).collect();
        let asking = self.questions.iter().flat_map(|q| q.overlays());
        let waits = self.waiting.iter().map(|w| w.to).chain(asking);
        let mut waits: Vec<TxId> = waits.collect();
        for task in tasks {
            match task {
                Task::Kick(to) => {
                    if let Some(last) = self.kicked_at.get_mut(to.0 as usize) {
                        *last = Tick(0);
                    }
                    self.kick_one(cx, to, worker);
                }
                Task::Release(to) => waits.push(to),
            }
        }
        let dropped = self.held_frames() as u64;
        for to in waits {
            let member = cx.topo.member(to.0);
            let rule = cx.rule_in(to.0, member);
            self.purge(&rule, member.and_then(|m| cx.counters(m)));
        }
        dropped
    }

    /// Notifies whoever wants it, at most once each: called after the source was given back, or, while the source has
    /// more, in the middle of the next visit, when what was published has become visible by itself.
    #[inline]
    pub fn kick(&mut self, cx: &Context<'_>, worker: &WorkerCounters) {
        if self.kicks.is_empty() {
            return;
        }
        let mut kicks = std::mem::take(&mut self.kicks);
        for to in kicks.drain(..) {
            self.kick_one(cx, to, worker);
        }
        self.kicks = kicks;
    }

    fn kick_one(&mut self, cx: &Context<'_>, to: TxId, worker: &WorkerCounters) {
        let Some(member) = cx.topo.member(to.0) else {
            return;
        };
        let Some(tx) = member.tx.as_deref() else {
            return;
        };
        if self.meter.is_on()
            && let Some(due) = cx.rest(to)
        {
            // For what it was sent before.
            let task = Task::Kick(to).number();
            if !self.tasks.has(task) {
                self.tasks.set(task, due);
            }
            return;
        }
        let began = self.meter.begin_if(|| tx.is_foreign());
        let wants_kick = tx.wants_kick(cx.lane);
        cx.charge(&mut self.meter, began, (to.0, 0));
        if !wants_kick {
            return;
        }
        if member.kick_gap_ns != 0 {
            let Some(last) = self.kicked_at.get_mut(to.0 as usize) else {
                return;
            };
            let due = last.plus(member.kick_gap_ns);
            if last.0 != 0 && due > cx.now {
                self.tasks.set(Task::Kick(to).number(), due);
                return;
            }
            *last = cx.now;
        }
        tx.kick(cx.lane);
        worker.kicks.add(1);
        if let Some(c) = cx.counters(member) {
            c.kicks.add(1);
        }
    }

    /// Does tasks that are due, a bounded number of them.
    #[inline]
    pub fn run_due(&mut self, cx: &Context<'_>, worker: &WorkerCounters) {
        self.end_unanswered(cx);
        if self.tasks.next().is_none_or(|due| due > cx.now) {
            return;
        }
        let mut waits = std::mem::take(&mut self.waits);
        for _ in 0..TASKS {
            match self.tasks.pop(cx.now).map(Task::of) {
                None => break,
                Some(Task::Release(to)) => waits.push(to),
                Some(Task::Kick(to)) => {
                    if let Some(last) = self.kicked_at.get_mut(to.0 as usize) {
                        *last = Tick(0);
                    }
                    self.kick_one(cx, to, worker);
                }
            }
        }
        let priority = |to: &TxId| cx.topo.member(to.0).map(|member| member.priority);
        waits.sort_by_key(|to| std::cmp::Reverse(priority(to)));
        let mut released = 0;
        for to in waits.drain(..) {
            if released < RELEASED {
                released += self.release(cx, to);
            } else {
                self.tasks.set(Task::Release(to).number(), cx.now);
            }
        }
        self.waits = waits;
    }

    /// When the next task is due.
    pub fn next_due(&self) -> Option<Tick> {
        let asked = self.questions.as_ref().and_then(|q| q.next_due());
        self.tasks.next().into_iter().chain(asked).min()
    }
}

#[inline(always)]
fn count(counters: &MemberCounters, sent: &Sent) {
    counters.tx_frames.add(sent.frames);
    counters.tx_bytes.add(sent.bytes);
    if sent.segments != 0 {
        counters.tx_segments.add(sent.segments);
    }
    if sent.drops[0].1 != 0 {
        for (reason, n) in sent.dropped() {
            counters.drop_frames(reason, u64::from(n));
        }
    }
}

/// Has captures of a member know what its port did with frames.
#[inline(never)]
fn note_sent(watches: &[Watch], burst: &capture::Burst<'_, '_>, picks: &[Pick], sent: &Sent) {
    let taken = picks.get(..sent.taken).unwrap_or(picks);
    let dropped = sent.drops.iter().fold(0, |all, (_, frames)| all | frames);
    if dropped == 0 {
        capture::note(watches, burst, (Way::To, None), taken);
        return;
    }
    for (at, pick) in taken.iter().enumerate() {
        let is_this = |(_, frames): &&(Drop, u64)| frames >> (at % BURST) & 1 != 0;
        let reason = sent.drops.iter().find(is_this).map(|(reason, _)| *reason);
        capture::note(
            watches,
            burst,
            (Way::To, reason),
            std::slice::from_ref(pick),
        );
    }
}

#[cfg(test)]
mod tests;
