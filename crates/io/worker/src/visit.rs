//! One visit: a burst from one ring through the engines to its destinations.
//!
//! # Life of a frame
//! ```text
//! rx_burst: borrowed, its first bytes private        counted: rx_frames, rx_bytes
//!   nic:    claims checked                            or dropped: bad-offload
//!           stages and rates of its member, if any    or dropped, consumed, or held (`ingress`)
//!   bridge: verdict                                   or dropped under its reason
//!           or copied for the daemon (`local`)        counted: rx_local
//!   group:  into the list of each destination         counted: rx_unicast, or rx_flooded and rx_copies
//!           (a large flood waits in `flood`)
//!   egress: offered, stages and rates, sent,          delivered, dropped, or held
//!           (small ones for a tunnel are gathered, `cork`)
//!           tried once more
//! release: the source gets its descriptors back
//! kick:    each destination that asks is notified, once; while the source has more, in its next visit
//! ```

use std::sync::Arc;

use windlass_attach::port::{Limit, Loan, More};
use windlass_bridge::fdb::Sightings;
use windlass_bridge::forward::Bridge;
use windlass_frame::{
    BURST, Claim, Deepen, HEADROOM, Heads, Pick, RxId, SNAP, Tick, TxId, Verdict,
};
use windlass_overlay::too_big;
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_stats::{Drop, MemberCounters};
use windlass_sync::spsc;

use crate::capture::{self, Begun};
use crate::command::Relayed;
use crate::context::Context;
use crate::counters::WorkerCounters;
use crate::egress::Egress;
use crate::flood::{DAEMON, Floods};
use crate::group::Groups;
use crate::ingress::Ingress;
use crate::local::{LocalFrame, LocalSender, Notice};
use crate::ring::RxRing;
use crate::topo::Member;

/// Every frame of a burst, in order: the picks of a burst with one destination.
pub(crate) static ALL: [[Pick; BURST]; 2] = {
    let mut all = [[Pick::frame(0, false); BURST]; 2];
    let mut i = 0;
    while i < BURST {
        all[0][i] = Pick::frame(i, false);
        all[1][i] = Pick::frame(i, true);
        i += 1;
    }
    all
};

/// Copies that one visit may make of flooded frames; a flood that needs more waits in [`crate::flood`].
pub const COPIES_MAX: usize = 64;
/// Bytes of those copies.
pub const COPY_BYTES_MAX: usize = 512 * 1024;

/// How long frames that are due wait once more while too many floods of their sender wait.
const FLOODS_NS: u64 = 20_000;

/// A worker's private memory for one visit.
pub(crate) struct Scratch {
    heads: Box<Heads>,
    store: SegStore,
    groups: Groups,
    local: LocalSender,
    notice: Arc<Notice>,
    /// What waits for its bridge's decision.
    pub(crate) ingress: Ingress,
    /// What the burst at hand saw.
    pub(crate) sightings: Sightings,
    /// The bridge of the burst at hand.
    pub(crate) bridge: u16,
    /// The time of the burst at hand.
    pub(crate) now: Tick,
}

impl Scratch {
    pub(crate) fn new(
        members: usize,
        flow_keys: [u64; 2],
        local: spsc::Sender<LocalFrame>,
        notice: Arc<Notice>,
    ) -> Scratch {
        Scratch {
            heads: Heads::boxed(),
            store: SegStore::default(),
            groups: Groups::new(members),
            local: LocalSender::new(local),
            notice,
            ingress: Ingress::new(flow_keys),
            sightings: Sightings::new(),
            bridge: 0,
            now: Tick(0),
        }
    }

    /// Has the pages that frames are copied to while the meter is on.
    pub(crate) fn touch(&mut self) {
        self.store.touch();
    }

    /// One burst, of the ring's member or of one of those whose ring it is together. Returns the frames taken from the ring, and what is left in it.
    #[inline]
    pub(crate) fn visit(
        &mut self,
        cx: &Context<'_>,
        ring: &mut RxRing,
        egress: &mut Egress,
        floods: &mut Floods,
        limit: Limit,
        worker: &WorkerCounters,
    ) -> (usize, More) {
        let heads = &mut *self.heads;
        heads.clear(RxId(ring.member), cx.now);
        let mut tails = Tails::bind(&mut self.store, cx.section);
        let began = egress.meter.begin_if(|| ring.port.polls_memory());
        let (loan, more) = ring.port.rx_burst(cx.section, heads, &mut tails, limit);
        if began.is_some() {
            tails.take_private();
        }
        cx.charge(&mut egress.meter, began, (ring.member, 0));
        let n = heads.n.min(BURST);
        if n == 0 {
            if more != More::Left && egress.has_corked() {
                egress.uncork(cx);
            }
            egress.kick(cx, worker);
            ring.port.release(cx.section, loan);
            worker.visits_empty.add(1);
            return (0, more);
        }
        egress.begin_visit(more == More::Left);
        let member = cx.topo.member(heads.from.0);
        let counters = member.and_then(|m| m.counters.get(cx.lane.worker as usize));
        let bridge = member.and_then(|m| Some((m.bridge, cx.topo.bridge(m.bridge)?)));
        if let (Some(member), Some(counters), Some((index, bridge))) = (member, counters, bridge) {
            (self.bridge, self.now) = (index, cx.now);
            windlass_nic::leave(heads, &mut tails);
            let way = Way {
                cx,
                counters,
                bridge,
                index,
                attachment: ring.attachment,
                sightings: &mut self.sightings,
                local: &mut self.local,
                notice: &self.notice,
                groups: &mut self.groups,
                egress,
                floods,
            };
            let received = received(cx, worker, counters, n);
            let is_staged = member.is_staged || self.ingress.has(heads.from.0);
            if is_staged && !member.watches.is_empty() {
                way.carry_watched(member, &mut self.ingress, heads, &mut tails, received);
            } else {
                if is_staged {
                    let from = (member, ring.attachment);
                    self.ingress.leave(cx, from, counters, heads, &mut tails);
                }
                way.carry(heads, &tails, received);
            }
        } else if let Some(counters) = ring.counters.get(cx.lane.worker as usize) {
            counters.rx_frames.add(n as u64);
            counters.drop_frames(Drop::NotReady, n as u64);
        }
        give_back(cx, ring, (loan, more), egress, worker);
        worker.visits_busy.add(1);
        worker.frames.add(n as u64);
        (n, more)
    }
}

/// Ends a visit: its ring has the burst back, and what was published is told of, unless another visit follows.
#[inline(always)]
fn give_back(
    cx: &Context<'_>,
    ring: &mut RxRing,
    (loan, more): (Loan, More),
    egress: &mut Egress,
    worker: &WorkerCounters,
) {
    let began = egress.meter.begin_if(|| ring.port.polls_memory());
    ring.port.release(cx.section, loan);
    cx.charge(&mut egress.meter, began, (ring.member, 0));
    egress.begin_visit(false);
    if more != More::Left {
        if egress.has_corked() {
            egress.uncork(cx);
        }
        egress.kick(cx, worker);
    }
}

impl Scratch {
    /// The bridge decides about a member's frames that have waited and are due: a burst at most. How many there were.
    #[cold]
    pub(crate) fn admit(
        &mut self,
        cx: &Context<'_>,
        egress: &mut Egress,
        floods: &mut Floods,
        from: u16,
    ) -> usize {
        let member = cx.topo.member(from);
        let counters = member.and_then(|m| m.counters.get(cx.lane.worker as usize));
        let bridge = member.and_then(|m| Some((m.bridge, cx.topo.bridge(m.bridge)?)));
        if member.is_none() {
            // No topology has it any more: it is about to be purged.
            self.ingress.put_off(from, cx.now.plus(FLOODS_NS));
            return 0;
        }
        let rule = cx.rule_out(from, member);
        let member = member.filter(|m| self.ingress.is_from(from, m.attachment));
        let (Some(member), Some(counters), Some((index, bridge))) = (member, counters, bridge)
        else {
            self.ingress.purge(&rule, counters.map(|c| &**c));
            return 0;
        };
        let Some(limit) = floods.limit(from) else {
            self.ingress.put_off(from, cx.now.plus(FLOODS_NS));
            return 0;
        };
        self.ingress.advance(&rule, counters);
        let heads = &mut *self.heads;
        heads.clear(RxId(from), cx.now);
        let mut tails = Tails::bind(&mut self.store, cx.section);
        let mut picks = [Pick::frame(0, false); BURST];
        let queues = &self.ingress.queues;
        let n = queues.restore(from, limit.frames, heads, &mut tails, &mut picks);
        if n > 0 {
            (self.bridge, self.now) = (index, cx.now);
            let way = Way {
                cx,
                counters,
                bridge,
                index,
                attachment: member.attachment,
                sightings: &mut self.sightings,
                local: &mut self.local,
                notice: &self.notice,
                groups: &mut self.groups,
                egress,
                floods,
            };
            way.carry(heads, &tails, |_, _| {});
            if !member.watches.is_empty() {
                // When they came they had no reason yet.
                let burst = cx.burst(heads, &tails);
                for pick in &picks[..n] {
                    if let Some(reason) = heads.verdict[pick.index()].as_drop() {
                        let way = (capture::Way::From, Some(reason));
                        capture::note(&member.watches, &burst, way, &[*pick]);
                    }
                }
            }
        }
        self.ingress.forget(&rule, n, counters);
        n
    }

    /// Sends a frame of the daemon out of a member.
    #[cold]
    pub(crate) fn send(
        &mut self,
        cx: &Context<'_>,
        egress: &mut Egress,
        (from, to): (RxId, TxId),
        frame: &[u8],
    ) {
        let member = cx.topo.member(to.0);
        let Some(counters) = member.and_then(|m| m.counters.get(cx.lane.worker as usize)) else {
            return;
        };
        let (start, rest) = frame.split_at(frame.len().min(SNAP));
        let heads = &mut *self.heads;
        heads.clear(from, cx.now);
        heads.snap[0].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        heads.n = 1;
        let mut tails = Tails::bind(&mut self.store, cx.section);
        tails.push(0, Foreign::private(rest));
        if from.0 == DAEMON {
            // What the daemon gives to a member is believed.
            heads.meta[0].off = heads.meta[0].off.giving();
            tails.deepen(heads, 0, frame.len());
        }
        counters.own_frames.add(1);
        let taken = egress.offer(cx, heads, &tails, to, &[Pick::frame(0, false)]);
        counters.drop_frames(Drop::RingFull, 1 - taken as u64);
        egress.retry_late(cx, heads, &tails);
    }
}

impl Scratch {
    /// Has a frame that the daemon has read or made wait for the members of a set.
    #[cold]
    pub(crate) fn relay(
        &mut self,
        cx: &Context<'_>,
        floods: &mut Floods,
        bridge: u16,
        frame: &Relayed,
    ) {
        let from = frame.from.unwrap_or(DAEMON);
        let source = cx.topo.member(from);
        if frame.from.is_some() && source.is_none_or(|m| m.bridge != bridge) {
            return;
        }
        let (start, rest) = frame.bytes.split_at(frame.bytes.len().min(SNAP));
        let heads = &mut *self.heads;
        heads.clear(RxId(from), cx.now);
        heads.snap[0].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
        heads.admit(0, frame.bytes.len() as u32, Claim::NONE);
        heads.meta[0].vid = frame.vid;
        heads.n = 1;
        let mut tails = Tails::bind(&mut self.store, cx.section);
        tails.push(0, Foreign::private(rest));
        let counters = source.and_then(|m| m.counters.get(cx.lane.worker as usize));
        if !floods.post(heads, &tails, 0, bridge, frame.set)
            && let Some(counters) = counters
        {
            counters.floods_cut.add(1);
        }
    }
}

/// What is done when a bridge has decided about a burst of so many frames.
#[inline(always)]
fn received<'a>(
    cx: &'a Context<'_>,
    worker: &'a WorkerCounters,
    counters: &'a MemberCounters,
    n: usize,
) -> impl FnOnce(&mut Egress, u64) + use<'a> {
    move |egress, bytes| {
        // For the visit before: here the fence that asking takes has nothing left to wait for.
        egress.kick(cx, worker);
        counters.rx_frames.add(n as u64);
        counters.rx_bytes.add(bytes);
    }
}

/// What a burst passes behind its member's stages.
struct Way<'a> {
    cx: &'a Context<'a>,
    counters: &'a MemberCounters,
    bridge: &'a Bridge,
    index: u16,
    attachment: u64,
    sightings: &'a mut Sightings,
    local: &'a mut LocalSender,
    notice: &'a Notice,
    groups: &'a mut Groups,
    egress: &'a mut Egress,
    floods: &'a mut Floods,
}

impl Way<'_> {
    /// The bridge decides about a burst, and it is sent. In between `decided` gets the bytes of the burst.
    #[inline(always)]
    fn carry(self, heads: &mut Heads, tails: &Tails<'_>, decided: impl FnOnce(&mut Egress, u64)) {
        let n = heads.n.min(BURST);
        let tally = self.bridge.forward(heads, self.sightings);
        let mut burst = Burst {
            cx: self.cx,
            heads,
            tails,
            counters: self.counters,
            bridge: self.bridge,
            index: self.index,
            attachment: self.attachment,
            local: self.local,
            notice: self.notice,
        };
        decided(self.egress, tally.bytes);
        if !self.bridge.spans().is_empty() {
            burst.span(self.egress);
        }
        if tally.dropped != 0 && self.bridge.has_targets() {
            burst.tell_mtu(n, self.egress);
        }
        burst.dispatch(n, tally.uniform, self.groups, self.egress, self.floods);
    }

    /// The same for a burst of a member with captures, from before its stages.
    #[inline(never)]
    fn carry_watched(
        self,
        member: &Member,
        ingress: &mut Ingress,
        heads: &mut Heads,
        tails: &mut Tails<'_>,
        decided: impl FnOnce(&mut Egress, u64),
    ) {
        let worker = self.cx.lane.worker;
        let begun = Begun::new(&member.watches, &self.cx.burst(heads, tails));
        let from = (member, self.attachment);
        ingress.leave(self.cx, from, self.counters, heads, tails);
        self.carry(heads, tails, decided);
        begun.end(worker, heads);
    }
}

/// A burst that has its verdicts.
struct Burst<'a, 'q> {
    cx: &'a Context<'a>,
    heads: &'a mut Heads,
    tails: &'a Tails<'q>,
    counters: &'a MemberCounters,
    bridge: &'a Bridge,
    index: u16,
    attachment: u64,
    local: &'a mut LocalSender,
    notice: &'a Notice,
}

impl Burst<'_, '_> {
    /// Sends the burst to where its verdicts say. Inlined: a call would cost each visit, and the cold caller does not matter.
    #[inline(always)]
    fn dispatch(
        &mut self,
        n: usize,
        uniform: bool,
        groups: &mut Groups,
        egress: &mut Egress,
        floods: &mut Floods,
    ) {
        let first = self.heads.verdict[0];
        if let (true, Some((to, tagged))) = (uniform, first.as_to()) {
            self.counters.rx_unicast.add(n as u64);
            let picks = &ALL[usize::from(tagged)][..n];
            let taken = egress.offer(self.cx, self.heads, self.tails, to, picks);
            if taken < n {
                self.try_rest(groups, egress, to, picks.get(taken..).unwrap_or(&[]));
            }
            egress.retry_late(self.cx, self.heads, self.tails);
        } else {
            self.scatter(n, groups, egress, floods);
        }
    }

    #[cold]
    fn try_rest(&self, groups: &mut Groups, egress: &mut Egress, to: TxId, rest: &[Pick]) {
        groups.clear();
        for pick in rest {
            groups.add(to, *pick);
        }
        for list in groups.lists() {
            egress.retry(self.cx, self.heads, self.tails, list);
        }
    }

    fn scatter(&mut self, n: usize, groups: &mut Groups, egress: &mut Egress, floods: &mut Floods) {
        let (mut unicast, mut flooded, mut local) = (0, 0, 0);
        let (mut copies_left, mut bytes_left) = (COPIES_MAX, COPY_BYTES_MAX);
        groups.clear();
        for i in 0..n {
            let mut verdict = self.heads.verdict[i];
            if let Some((to, tagged)) = verdict.as_to() {
                unicast += 1;
                self.add(groups, egress, to, Pick::frame(i, tagged));
                continue;
            }
            if verdict.is_local() {
                if self.local.post(self.heads, self.tails, i, self.attachment) {
                    local += 1;
                    continue;
                }
                verdict = self.bridge.without_daemon(self.heads, i);
                self.heads.verdict[i] = verdict;
            }
            if verdict.as_flood().is_some() {
                let left = (&mut copies_left, &mut bytes_left);
                match self.flood(i, groups, egress, floods, left) {
                    Ok(()) => flooded += 1,
                    Err(reason) => self.drop(i, reason),
                }
            } else if !verdict.is_held() {
                self.drop(i, verdict.as_drop().unwrap_or(Drop::NotReady));
            }
        }
        self.counters.rx_unicast.add(unicast);
        self.counters.rx_flooded.add(flooded);
        if local > 0 {
            self.counters.rx_local.add(local);
            self.notice.tell();
        }
        self.flush(groups, egress);
    }

    /// Frame `i` goes nowhere.
    fn drop(&mut self, i: usize, reason: Drop) {
        self.heads.verdict[i] = Verdict::drop(reason);
        self.counters.drop_frames(reason, 1);
    }

    fn add(&mut self, groups: &mut Groups, egress: &mut Egress, to: TxId, pick: Pick) {
        if !groups.add(to, pick) {
            self.flush(groups, egress);
            groups.add(to, pick);
        }
    }

    /// Sends all lists, then what did not fit once more.
    fn flush(&mut self, groups: &mut Groups, egress: &mut Egress) {
        let mut rest = false;
        for list in groups.lists() {
            let taken = egress.offer(self.cx, self.heads, self.tails, list.to, list.picks());
            list.keep_from(taken);
            rest |= !list.picks().is_empty();
        }
        if rest {
            for list in groups.lists() {
                if !list.picks().is_empty() {
                    egress.retry(self.cx, self.heads, self.tails, list);
                }
            }
        }
        egress.retry_late(self.cx, self.heads, self.tails);
        groups.clear();
    }

    /// Adds frame `i` to the lists of everybody who takes it, or has it wait, if that is more than the visit may copy or if
    /// others wait.
    fn flood(
        &mut self,
        i: usize,
        groups: &mut Groups,
        egress: &mut Egress,
        floods: &mut Floods,
        (copies_left, bytes_left): (&mut usize, &mut usize),
    ) -> Result<(), Drop> {
        let id = self.heads.verdict[i].as_flood().ok_or(Drop::NotReady)?;
        let set = self.bridge.flood(id).ok_or(Drop::NotReady)?;
        let from = self.bridge.flood_from(self.heads.from.0);
        let bytes = set.len() * self.heads.meta[i].len as usize;
        if set.len() > *copies_left || bytes > *bytes_left || floods.has(self.index) {
            if set.each_fitting(from, self.heads, i).next().is_none() {
                return Err(Drop::Mtu);
            }
            let is_kept = floods.post(self.heads, self.tails, i, self.index, id);
            return is_kept.then_some(()).ok_or(Drop::FloodBacklog);
        }
        let mut made = 0;
        let mut cut = false;
        for to in set.each(from) {
            if !to.fits(self.heads, i) {
                cut = true;
                continue;
            }
            made += 1;
            self.add(groups, egress, to.id, Pick::frame(i, to.tagged));
        }
        if made == 0 && cut {
            return Err(Drop::Mtu);
        }
        *copies_left -= made;
        *bytes_left -= made * self.heads.meta[i].len as usize;
        self.counters.rx_copies.add(made as u64);
        self.counters.floods_cut.add(u64::from(cut));
        Ok(())
    }

    /// Tells the member that sent frames which are too long for a tunnel how long they may be.
    #[cold]
    fn tell_mtu(&mut self, n: usize, egress: &mut Egress) {
        let from = self.heads.from;
        let mut bytes = [0; too_big::BYTES_MAX];
        for i in 0..n {
            let meta = self.heads.meta[i];
            let answer = self.bridge.tells_mtu(self.heads, i).and_then(|mtu| {
                let private = self.heads.private(i);
                let len = too_big::answer(private, meta.len, mtu, &mut bytes)?;
                bytes.get(..len)
            });
            if let Some(answer) = answer {
                let is_tagged = self.bridge.is_tagged_at(from.0, meta.vid);
                egress.answer(self.cx, TxId(from.0), (meta.vid, is_tagged), answer);
            }
        }
    }

    /// Gives span members a copy of everything that could be parsed.
    #[cold]
    fn span(&mut self, egress: &mut Egress) {
        let mut picks = [Pick::frame(0, false); BURST];
        let mut n = 0;
        for i in 0..self.heads.n.min(BURST) {
            let verdict = self.heads.verdict[i];
            let malformed = matches!(
                verdict.as_drop(),
                Some(
                    Drop::Runt
                        | Drop::Giant
                        | Drop::BadDescriptor
                        | Drop::ChainTooLong
                        | Drop::BadOffload
                )
            );
            if !malformed && !verdict.is_held() {
                picks[n] = Pick::frame(i, self.heads.meta[i].tci != 0);
                n += 1;
            }
        }
        for span in self.bridge.spans() {
            let to = *span;
            let Some(member) = self
                .cx
                .topo
                .member(to.0)
                .filter(|_| to.0 != self.heads.from.0)
            else {
                continue;
            };
            let Some(counters) = member.counters.get(self.cx.lane.worker as usize) else {
                continue;
            };
            counters.span_copies.add(n as u64);
            let taken = egress.offer(self.cx, self.heads, self.tails, to, &picks[..n]);
            counters.drop_frames(Drop::RingFull, (n - taken) as u64);
        }
        egress.retry_late(self.cx, self.heads, self.tails);
    }
}
