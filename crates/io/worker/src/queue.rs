//! Frames that wait for their time on their way to a member, or from it: its queues.
//!
//! # Model
//! What a member's [`Shaper`] does not let go at once is copied to private memory and joins the member's [`Backlog`], which is
//! released by a task of the worker ([`crate::egress`], [`crate::ingress`]) when its next frame is due.
//!
//! A frame that its queue marks is marked when it goes: in the burst that it is restored to.
//!
//! Each worker has a backlog of its own for a member and a direction: frames of a flow come from one ring, so from one worker.
//!
//! # Limits
//! [`FRAMES`] and [`BYTES`] for each member. The worker's [`MEMORY`] for the direction, which is allocated with the first frame, is
//! shared in two steps: all members of one owner have at most as many blocks as stay free, and one of them at most half of what is left
//! to its owner by that. So an owner with many members takes half of the memory, and others find room. A member without an owner is one
//! by itself. Where there is no room, the oldest frame of the member's longest queue goes.

use std::collections::BTreeMap;

use windlass_attach::port::TxCaps;
use windlass_attach::soft;
use windlass_frame::{BURST, Claim, Gso, HEADROOM, Heads, Meta, Offload, Pick, SNAP, Tick};
use windlass_nic::FlowHash;
use windlass_shaper::{Backlog, Cause, Direction, Flow, Place, Shaper, Waiting, ecn};
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_stats::{Drop, MemberCounters};

use crate::capture::Deaths;
use crate::hold::{BLOCK, Held, Pool};

/// Frames that wait for one member at most, in one direction.
pub const FRAMES: usize = 512;
/// Bytes of them.
pub const BYTES: usize = 1 << 20;
/// Private memory of one worker for all its queues of a direction.
pub const MEMORY: usize = 4 << 20;

/// A member without a queue, among [`Queues::places`]. There are fewer queues: each has a block.
const NONE: u16 = u16::MAX;
const _: () = assert!(MEMORY / BLOCK < NONE as usize);

/// What of it waits.
struct Copied {
    held: Held,
    is_tagged: bool,
    /// Which of all frames of the worker that were ever queued.
    number: u64,
}

/// A frame that has to wait.
struct Late {
    /// None where there was no room for it.
    held: Option<Held>,
    bytes: u32,
    key: u32,
    is_tagged: bool,
    takes_mark: bool,
}

/// The frames of one member.
#[derive(Default)]
struct Queue {
    member: u16,
    owner: Option<u32>,
    frames: usize,
    bytes: usize,
    blocks: usize,
    backlog: Backlog<Copied>,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It goes at once.
    Goes,
    /// It waits, or what it was cut into, or it is dropped: the [`Tally`] has it.
    Kept,
}

/// What holds for one direction of a member, and who asks.
#[derive(Clone, Copy)]
pub(crate) struct Rule<'a> {
    pub(crate) shaper: Option<&'a Shaper>,
    pub(crate) member: u16,
    /// The user whose members share room.
    pub(crate) owner: Option<u32>,
    pub(crate) worker: u16,
    pub(crate) now: Tick,
    /// Captures that are told of frames which die while they wait.
    pub(crate) deaths: Option<Deaths<'a>>,
}

impl Rule<'_> {
    /// For what counts frames of a flow.
    fn count(&self, flow: u64, note: impl FnOnce(&windlass_shaper::FlowCounters)) {
        let counters = self
            .shaper
            .filter(|_| flow != 0)
            .and_then(|shaper| shaper.counters(flow, self.worker.into()));
        if let Some(counters) = counters {
            note(counters);
        }
    }
}

/// What has become of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// As many more wait now; modulo 2^64.
    pub(crate) held: u64,
    /// Frames dropped, by cause.
    pub(crate) drops: [u64; 2],
    /// Frames more than came: large segments were cut.
    pub(crate) cut: u64,
}

impl Tally {
    /// Whether nothing was kept back.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Tally::default()
    }

    fn hold(&mut self) {
        self.held = self.held.wrapping_add(1);
    }

    fn lose(&mut self, cause: Cause) {
        self.held = self.held.wrapping_sub(1);
        self.drops[cause as usize] += 1;
    }

    /// For a member's counters.
    pub(crate) fn count(&self, direction: Direction, counters: &MemberCounters) {
        let (held, cut) = match direction {
            Direction::Out => (&counters.rx_held, &counters.rx_cut),
            Direction::In => (&counters.held, &counters.tx_cut),
        };
        held.add(self.held);
        cut.add(self.cut);
        for (cause, n) in Cause::ALL.into_iter().zip(self.drops) {
            if n != 0 {
                counters.drop_frames(cause.reason(direction), n);
            }
        }
    }
}

/// The queues of one worker in one direction.
pub(crate) struct Queues {
    hash: FlowHash,
    pool: Option<Pool>,
    queues: Vec<Queue>,
    /// By member, up to the highest that had one: where its queue is.
    places: Vec<u16>,
    /// Blocks of all queues of an owner, if it has any.
    of_owners: BTreeMap<u32, usize>,
    frames: usize,
    pushed: u64,
    /// Where frames that die are shown to captures: made when it is first needed.
    shown: Option<(Box<Heads>, SegStore)>,
}

impl Queues {
    /// `keys` choose the queues of flows.
    pub(crate) fn new(keys: [u64; 2]) -> Queues {
        Queues {
            hash: FlowHash::new(keys),
            pool: None,
            queues: Vec::new(),
            places: Vec::new(),
            of_owners: BTreeMap::new(),
            frames: 0,
            pushed: 0,
            shown: None,
        }
    }

    /// Frames that wait.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// Frames that were ever added.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of the frame that has waited longest.
    #[cold]
    pub(crate) fn oldest(&self) -> Option<u64> {
        let waiting = self.queues.iter().flat_map(|queue| queue.backlog.iter());
        waiting.map(|frame| frame.item.number).min()
    }

    fn position(&self, member: u16) -> Option<usize> {
        let place = self.places.get(usize::from(member)).copied();
        place.filter(|place| *place != NONE).map(usize::from)
    }

    /// A new queue of a member that has none.
    #[cold]
    fn add(&mut self, member: u16, owner: Option<u32>) -> usize {
        let at = self.queues.len();
        self.queues.push(Queue {
            member,
            owner,
            ..Queue::default()
        });
        let needed = usize::from(member) + 1;
        if self.places.len() < needed {
            self.places.resize(needed, NONE);
        }
        self.places[usize::from(member)] = at as u16;
        at
    }

    /// Forgets a queue that is empty; the last one takes its place.
    fn remove(&mut self, at: usize) {
        let gone = self.queues.swap_remove(at);
        self.places[usize::from(gone.member)] = NONE;
        if let Some(moved) = self.queues.get(at) {
            self.places[usize::from(moved.member)] = at as u16;
        }
    }

    /// A queue has so many blocks more.
    fn take_blocks(&mut self, at: usize, blocks: usize) {
        let queue = &mut self.queues[at];
        queue.blocks += blocks;
        if let Some(owner) = queue.owner {
            *self.of_owners.entry(owner).or_default() += blocks;
        }
    }

    /// A queue has so many blocks fewer.
    fn give_blocks(&mut self, at: usize, blocks: usize) {
        let queue = &mut self.queues[at];
        queue.blocks -= blocks;
        if let Some(owner) = queue.owner
            && let Some(theirs) = self.of_owners.get_mut(&owner)
        {
            *theirs -= blocks;
            if *theirs == 0 {
                self.of_owners.remove(&owner);
            }
        }
    }

    /// A queue's member may belong to another owner now.
    fn set_owner(&mut self, at: usize, owner: Option<u32>) {
        if self.queues[at].owner != owner {
            let blocks = self.queues[at].blocks;
            self.give_blocks(at, blocks);
            self.queues[at].owner = owner;
            self.take_blocks(at, blocks);
        }
    }

    /// Whether a frame of so many bytes may be added to a member's.
    fn has_room(&self, rule: &Rule<'_>, at: Option<usize>, bytes: usize) -> bool {
        let queue = at.map(|at| &self.queues[at]);
        let (waiting, queued, blocks) =
            queue.map_or((0, 0, 0), |queue| (queue.frames, queue.bytes, queue.blocks));
        let of_owner = match rule.owner {
            None => blocks,
            Some(owner) => self.of_owners.get(&owner).copied().unwrap_or(0),
        };
        let free = self.pool.as_ref().map_or(MEMORY / BLOCK, Pool::free_blocks);
        let left = (free.saturating_sub(of_owner) / 2).saturating_sub(blocks);
        // A large frame takes no more than a quarter of what is left.
        let most = (left / 4).max(left.min(1)) * BLOCK;
        waiting < FRAMES && queued + bytes <= BYTES && bytes <= most
    }

    /// A frame that the member's stages let pass.
    pub(crate) fn admit(
        &mut self,
        rule: &Rule<'_>,
        heads: &Heads,
        tails: &Tails<'_>,
        pick: Pick,
        tally: &mut Tally,
    ) -> Outcome {
        let i = pick.index();
        let meta = &heads.meta[i];
        let flow = rule
            .shaper
            .and_then(|shaper| shaper.flow_of(heads.private(i), meta.len));
        let cuts = |shaper: &Shaper| shaper.cuts(flow, meta.len);
        if meta.off.gso != Gso::None && rule.shaper.is_some_and(cuts) {
            return self.cut(rule, heads, tails, (pick, flow), tally);
        }
        let counters = flow.and_then(|flow| flow.counters.get(usize::from(rule.worker)));
        if let Some(counters) = counters {
            counters.matched.add(1);
        }
        let place = match self.pass(rule, flow, meta.len) {
            Ok(()) => {
                if let Some(counters) = counters {
                    counters.pass(meta.len);
                }
                return Outcome::Goes;
            }
            Err(place) => place,
        };
        self.make_room(rule, meta.len as usize, tally);
        let at = self.position(rule.member);
        let pool = match self.has_room(rule, at, meta.len as usize) {
            true => Some(self.pool.get_or_insert_with(|| Pool::of(MEMORY / BLOCK))),
            false => None,
        };
        let late = Late {
            held: pool.and_then(|pool| pool.hold(heads, tails, i)),
            bytes: meta.len,
            key: self.hash.of(heads, i),
            is_tagged: pick.tagged(),
            takes_mark: ecn::is_capable(heads.private(i), meta.len),
        };
        if late.held.is_none()
            && let Some(deaths) = &rule.deaths
        {
            deaths.tell(heads, tails, deaths.reason(Cause::Full), pick);
        }
        self.push(rule, (flow, place), late, tally);
        Outcome::Kept
    }

    /// Whether a frame goes at once; if not, where it has to wait.
    #[inline]
    fn pass(&self, rule: &Rule<'_>, flow: Option<&Flow>, bytes: u32) -> Result<(), Place> {
        let at = if self.frames == 0 {
            None
        } else {
            self.position(rule.member)
        };
        match (at, rule.shaper) {
            (Some(at), shaper) => self.queues[at].backlog.pass(shaper, flow, rule.now, bytes),
            (None, Some(shaper)) => shaper.pass(flow, rule.now, bytes),
            (None, None) => Ok(()),
        }
    }

    /// A large segment at a low rate: it is cut, and what it was cut into takes its turns one by one.
    #[cold]
    fn cut(
        &mut self,
        rule: &Rule<'_>,
        heads: &Heads,
        tails: &Tails<'_>,
        (pick, flow): (Pick, Option<&Flow>),
        tally: &mut Tally,
    ) -> Outcome {
        let i = pick.index();
        let meta = Meta {
            off: Offload::NONE,
            ..heads.meta[i]
        };
        let key = self.hash.of(heads, i);
        let counters = flow.and_then(|flow| flow.counters.get(usize::from(rule.worker)));
        let mut made = 0;
        let plain = Pick::frame(i, false);
        let done = soft::finish(heads, tails, plain, TxCaps::default(), |frame| {
            made += 1;
            if let Some(counters) = counters {
                counters.matched.add(1);
            }
            let bytes = frame.len() as u32;
            let place = self.pass(rule, flow, bytes).err().unwrap_or(Place::Ready);
            self.make_room(rule, frame.len(), tally);
            let at = self.position(rule.member);
            let pool = match self.has_room(rule, at, frame.len()) {
                true => Some(self.pool.get_or_insert_with(|| Pool::of(MEMORY / BLOCK))),
                false => None,
            };
            let held = pool.and_then(|pool| pool.hold_bytes(frame, meta));
            if held.is_none()
                && let Some(deaths) = &rule.deaths
            {
                let shown = self.shown.get_or_insert_with(room);
                let is_tagged = pick.tagged();
                deaths.tell_restored(
                    shown,
                    deaths.reason(Cause::Full),
                    is_tagged,
                    |heads, tails| {
                        restore_bytes(frame, meta, heads, tails);
                    },
                );
            }
            let late = Late {
                held,
                bytes,
                key,
                is_tagged: pick.tagged(),
                takes_mark: ecn::is_capable(frame, bytes),
            };
            self.push(rule, (flow, place), late, tally);
            true
        });
        match done {
            Ok(_) => tally.cut = tally.cut.wrapping_add(made).wrapping_sub(1),
            // It cannot be cut, and so not be sent to anybody who does not take it whole.
            Err(_) => {
                tally.drops[Cause::Full as usize] += 1;
                if let Some(deaths) = &rule.deaths {
                    deaths.tell(heads, tails, deaths.reason(Cause::Full), pick);
                }
            }
        }
        Outcome::Kept
    }

    /// A frame that was copied waits there; one for which there was no room is dropped.
    fn push(
        &mut self,
        rule: &Rule<'_>,
        who: (Option<&Flow>, Place),
        late: Late,
        tally: &mut Tally,
    ) {
        let counters = who
            .0
            .and_then(|flow| flow.counters.get(usize::from(rule.worker)));
        let Some(held) = late.held else {
            tally.drops[Cause::Full as usize] += 1;
            if let Some(counters) = counters {
                counters.drop_frame(Cause::Full);
            }
            return;
        };
        if let Some(counters) = counters {
            counters.hold();
        }
        tally.hold();
        let at = match self.position(rule.member) {
            Some(at) => at,
            None => self.add(rule.member, rule.owner),
        };
        self.set_owner(at, rule.owner);
        self.take_blocks(at, Pool::blocks(held.meta()));
        self.pushed += 1;
        self.frames += 1;
        let queue = &mut self.queues[at];
        queue.frames += 1;
        queue.bytes += late.bytes as usize;
        let item = Copied {
            held,
            is_tagged: late.is_tagged,
            number: self.pushed - 1,
        };
        let mut gone = Vec::new();
        let mut dropped = |frame, cause| gone.push((frame, cause));
        let frame = (item, late.bytes, late.key, late.takes_mark);
        queue
            .backlog
            .push(rule.shaper, who, frame, rule.now, &mut dropped);
        for (frame, cause) in gone {
            self.lose(rule, at, frame, cause, tally);
        }
    }

    /// Others of the member make room for a frame, if they have to and can.
    fn make_room(&mut self, rule: &Rule<'_>, bytes: usize, tally: &mut Tally) {
        let Some(at) = self.position(rule.member) else {
            return;
        };
        while !self.has_room(rule, Some(at), bytes)
            && let Some(frame) = self.queues[at].backlog.drop_longest()
        {
            self.lose(rule, at, frame, Cause::Full, tally);
        }
    }

    /// A frame that has waited is dropped.
    fn lose(
        &mut self,
        rule: &Rule<'_>,
        at: usize,
        frame: Waiting<Copied>,
        cause: Cause,
        tally: &mut Tally,
    ) {
        tally.lose(cause);
        rule.count(frame.flow, |counters| {
            counters.end_hold();
            counters.drop_frame(cause);
        });
        if let Some(deaths) = &rule.deaths {
            self.tell(deaths, &frame.item, deaths.reason(cause));
        }
        self.free(at, frame);
    }

    /// Has captures know of a frame that waited.
    #[cold]
    fn tell(&mut self, deaths: &Deaths<'_>, frame: &Copied, reason: Drop) {
        if let Some(pool) = &self.pool {
            let shown = self.shown.get_or_insert_with(room);
            deaths.tell_held(shown, pool, (&frame.held, frame.is_tagged), reason);
        }
    }

    /// A frame waits no more.
    fn free(&mut self, at: usize, frame: Waiting<Copied>) {
        let queue = &mut self.queues[at];
        queue.frames -= 1;
        queue.bytes -= frame.bytes as usize;
        self.frames -= 1;
        self.give_blocks(at, Pool::blocks(frame.item.held.meta()));
        if let Some(pool) = &mut self.pool {
            pool.free(frame.item.held);
        }
    }

    /// When a member's next frame is due.
    pub(crate) fn due(&self, member: u16) -> Option<Tick> {
        self.queues[self.position(member)?].backlog.due()
    }

    /// Has frames of a member whose time has come ready for [`Queues::restore`].
    pub(crate) fn advance(&mut self, rule: &Rule<'_>) -> Tally {
        let mut tally = Tally::default();
        let Some(at) = self.position(rule.member) else {
            return tally;
        };
        let mut gone = Vec::new();
        let mut dropped = |frame, cause| gone.push((frame, cause));
        let backlog = &mut self.queues[at].backlog;
        backlog.advance(rule.shaper, rule.now, BURST, &mut dropped);
        for (frame, cause) in gone {
            self.lose(rule, at, frame, cause, &mut tally);
        }
        if self.queues[at].frames == 0 {
            self.remove(at);
        }
        tally
    }

    /// Puts a member's first frames that are ready into a burst, at most `most`; how many.
    pub(crate) fn restore<'q>(
        &'q self,
        member: u16,
        most: usize,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        picks: &mut [Pick; BURST],
    ) -> usize {
        let queue = self.position(member).map(|at| &self.queues[at]);
        let (Some(queue), Some(pool)) = (queue, &self.pool) else {
            return 0;
        };
        let mut n = 0;
        for (i, frame) in queue.backlog.ready().take(most.min(BURST)).enumerate() {
            if tails.room() < Pool::blocks(frame.item.held.meta()) {
                break;
            }
            pool.restore(&frame.item.held, heads, tails, i);
            if frame.is_marked {
                ecn::mark(heads.private_mut(i), frame.bytes);
            }
            picks[i] = Pick::frame(i, frame.item.is_tagged);
            n = i + 1;
        }
        heads.n = n;
        n
    }

    /// The first frames that were ready have gone; how many of them with a mark.
    pub(crate) fn forget(&mut self, rule: &Rule<'_>, n: usize) -> u64 {
        let mut marked = 0;
        let Some(at) = self.position(rule.member) else {
            return marked;
        };
        for _ in 0..n {
            let Some(frame) = self.queues[at].backlog.pop_ready() else {
                break;
            };
            rule.count(frame.flow, |counters| {
                counters.end_hold();
                counters.pass(frame.bytes);
                counters.marked.add(frame.is_marked.into());
            });
            marked += u64::from(frame.is_marked);
            self.free(at, frame);
        }
        if self.queues[at].frames == 0 {
            self.remove(at);
        }
        marked
    }

    /// Forgets all of a member, for a reason; how many frames there were.
    pub(crate) fn purge(&mut self, rule: &Rule<'_>, reason: Drop) -> usize {
        let Some(at) = self.position(rule.member) else {
            return 0;
        };
        let frames: Vec<_> = self.queues[at].backlog.drain().collect();
        let n = frames.len();
        for frame in frames {
            rule.count(frame.flow, |counters| {
                counters.end_hold();
                counters.lost.add(1);
            });
            if let Some(deaths) = &rule.deaths {
                self.tell(deaths, &frame.item, reason);
            }
            self.free(at, frame);
        }
        self.remove(at);
        n
    }
}

fn room() -> (Box<Heads>, SegStore) {
    (Heads::boxed(), SegStore::default())
}

/// Makes bytes of our own the first frame of a burst.
fn restore_bytes<'q>(bytes: &'q [u8], meta: Meta, heads: &mut Heads, tails: &mut Tails<'q>) {
    let (start, rest) = bytes.split_at(bytes.len().min(SNAP));
    heads.snap[0].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
    heads.admit(0, bytes.len() as u32, Claim::NONE);
    let Meta { len, have, at, .. } = heads.meta[0];
    heads.meta[0] = Meta {
        len,
        have,
        at,
        ..meta
    };
    tails.push(0, Foreign::private(rest));
}

#[cfg(test)]
mod rates;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;
    use windlass_frame::RxId;
    use windlass_shaper::Bucket;
    use windlass_sync::qsbr::{Domain, Section};
    use windlass_wire::MacAddr;
    use windlass_wire::build::{self, Ends, Link};
    use windlass_wire::checksum::checksum;

    const NOW: Tick = Tick(5_000_000_000);

    fn rule(member: u16, shaper: Option<&Shaper>) -> Rule<'_> {
        Rule {
            shaper,
            member,
            owner: None,
            worker: 0,
            now: NOW,
            deaths: None,
        }
    }

    /// A rate that lets nothing go for a long time.
    fn slow() -> Shaper {
        let limit = Arc::new(Bucket::new(1_000));
        limit.reserve(NOW, 60_000, false);
        Shaper::new(Direction::In, Vec::new(), Some(limit)).expect("a rate")
    }

    /// A frame of `len` bytes for a member; how many are dropped.
    fn admit(
        queues: &mut Queues,
        section: &Section<'_>,
        rule: &Rule<'_>,
        len: u32,
    ) -> (Outcome, u64) {
        let payload = vec![0x5a; 65_536];
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        heads.clear(RxId(0), NOW);
        let mut tails = Tails::bind(&mut store, section);
        heads.admit(0, len, Claim::NONE);
        let rest = (len as usize).saturating_sub(SNAP);
        tails.push(0, Foreign::private(&payload[..rest]));
        let (pick, mut tally) = (Pick::frame(0, true), Tally::default());
        let outcome = queues.admit(rule, &heads, &tails, pick, &mut tally);
        (outcome, tally.drops[0])
    }

    /// Queues are bounded in frames and bytes, leave room to others, and give all their memory back. Where a queue is full, its
    /// oldest frame goes.
    #[test]
    fn queues_are_bounded() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let mut queues = Queues::new([1, 2]);
        let slow = slow();
        let fill = |queues: &mut Queues, to: u16, len: u32| {
            let first = admit(queues, &section, &rule(to, Some(&slow)), len);
            assert_eq!(first, (Outcome::Kept, 0));
            // Without a rate it goes as soon as it can; behind what waits it waits too.
            (1..)
                .find(|_| admit(queues, &section, &rule(to, None), len) != (Outcome::Kept, 0))
                .expect("a bound")
        };
        assert_eq!(fill(&mut queues, 1, 60), FRAMES);
        assert!(fill(&mut queues, 2, 60_000) <= BYTES / 60_000);
        for to in 3..8 {
            let admitted = admit(&mut queues, &section, &rule(to, Some(&slow)), 60);
            assert_eq!(admitted, (Outcome::Kept, 0));
        }
        assert!(queues.advance(&rule(1, None)).is_nothing());
        assert_eq!(queues.due(1), Some(Tick(0)));
        (1..8).for_each(|to| {
            queues.purge(&rule(to, None), Drop::PeerDown);
            assert_eq!(queues.due(to), None);
        });
        let pool = queues.pool.expect("frames have waited");
        assert!(pool.is_empty() && queues.frames == 0 && queues.queues.is_empty());
    }

    /// However many members of one owner have full queues, another owner's member has room for a flow, and so has one
    /// without an owner.
    #[test]
    fn an_owner_has_its_share() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let mut queues = Queues::new([1, 2]);
        let put = |queues: &mut Queues, owner: Option<u32>, member: u16, frames: usize| {
            let slow = slow();
            let rule = Rule {
                owner,
                ..rule(member, Some(&slow))
            };
            let lost = (0..frames).map(|_| admit(queues, &section, &rule, 1514).1);
            lost.sum::<u64>()
        };
        for member in 0..200 {
            assert!(put(&mut queues, Some(1000), member, 20) > 0);
        }
        let theirs = queues
            .queues
            .iter()
            .map(|queue| queue.blocks)
            .sum::<usize>();
        assert!(theirs <= MEMORY / BLOCK / 2, "{theirs}");
        assert_eq!(put(&mut queues, Some(1001), 200, 10), 0, "another owner's");
        assert_eq!(put(&mut queues, None, 201, 10), 0, "nobody's");
    }

    /// What is kept beside the queues says of each member and owner what a walk over the queues says, whatever comes, goes or is purged, and
    /// whomever a member belongs to.
    #[test]
    fn queues_are_found_as_a_walk_finds_them() {
        const MEMBERS: usize = 12;
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut queues, slow) = (Queues::new([1, 2]), slow());
        let mut random = crate::simulation::random::Random::new(3);
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let mut most = 0;
        for _ in 0..3_000 {
            let member = random.below(MEMBERS) as u16 * 5_000;
            let waiting = Rule {
                owner: Some(random.below(4) as u32).filter(|owner| *owner != 0),
                ..rule(member, Some(&slow))
            };
            let free = Rule {
                shaper: None,
                ..waiting
            };
            match random.below(10) {
                0 => {
                    queues.purge(&free, Drop::PeerDown);
                }
                1..4 => {
                    queues.advance(&free);
                    let mut picks = [Pick::frame(0, false); BURST];
                    heads.clear(RxId(0), NOW);
                    let mut tails = Tails::bind(&mut store, &section);
                    let n = queues.restore(member, BURST, &mut heads, &mut tails, &mut picks);
                    queues.forget(&free, n);
                }
                _ => {
                    let len = 60 + random.below(9_000) as u32;
                    admit(&mut queues, &section, &waiting, len);
                }
            }
            for member in (0..MEMBERS as u16).map(|n| n * 5_000) {
                let walked = queues
                    .queues
                    .iter()
                    .position(|queue| queue.member == member);
                assert_eq!(queues.position(member), walked);
            }
            for owner in 1..4 {
                let theirs = queues
                    .queues
                    .iter()
                    .filter(|queue| queue.owner == Some(owner));
                let theirs: usize = theirs.map(|queue| queue.blocks).sum();
                assert_eq!(queues.of_owners.get(&owner).copied().unwrap_or(0), theirs);
            }
            assert!(queues.of_owners.values().all(|blocks| *blocks != 0));
            most = most.max(queues.queues.len());
        }
        assert!(most > MEMBERS / 2, "{most} queues at a time");
    }

    /// A full queue takes what comes, and its oldest frame goes.
    #[test]
    fn the_oldest_goes() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let mut queues = Queues::new([1, 2]);
        let slow = slow();
        let rule = rule(1, Some(&slow));
        let mut dropped = 0;
        for _ in 0..100 {
            let (outcome, lost) = admit(&mut queues, &section, &rule, 1000);
            assert_eq!(outcome, Outcome::Kept);
            dropped += lost;
        }
        assert_eq!((dropped, queues.len()), (84, 16));
        assert_eq!(queues.oldest(), Some(84));
    }

    /// Where the ECN field of a [`datagram`] is.
    const ECN: usize = 15;

    /// Over IPv4, with 1,042 bytes.
    fn datagram(ecn: u8) -> Vec<u8> {
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut bytes = vec![0; 1042];
        build::udp_frame(&mut bytes, &link, &ends, (1, 2), &[9; 1000]).expect("room");
        bytes[ECN] |= ecn;
        bytes[24..26].fill(0);
        let sum = checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// A flow sends 8 % more than its member's rate for a while. What it loses for its delay; what is marked, as it is told; and the
    /// frames that go with a mark.
    fn saturate(ecn: u8) -> (u64, u64, u64) {
        const GAP_NS: u64 = 770_000;
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let mut queues = Queues::new([1, 2]);
        let limit = Some(Arc::new(Bucket::new(10_000_000)));
        let shaper = Shaper::new(Direction::In, Vec::new(), limit);
        let frame = datagram(ecn);
        let (mut lost, mut told, mut marked) = (0, 0, 0);
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        for n in 0..1000 {
            let rule = Rule {
                now: NOW.plus(n * GAP_NS),
                ..rule(1, shaper.as_ref())
            };
            let mut tally = Tally::default();
            heads.clear(RxId(0), rule.now);
            heads.snap[0].0[HEADROOM..HEADROOM + SNAP].copy_from_slice(&frame[..SNAP]);
            heads.admit(0, frame.len() as u32, Claim::NONE);
            {
                let mut tails = Tails::bind(&mut store, &section);
                tails.push(0, Foreign::private(&frame[SNAP..]));
                queues.admit(&rule, &heads, &tails, Pick::frame(0, true), &mut tally);
            }
            let due = queues.advance(&rule);
            assert_eq!(tally.drops[0] + due.drops[0], 0, "there is room");
            lost += tally.drops[1] + due.drops[1];
            let mut picks = [Pick::frame(0, false); BURST];
            heads.clear(RxId(0), rule.now);
            let n = {
                let mut tails = Tails::bind(&mut store, &section);
                queues.restore(1, BURST, &mut heads, &mut tails, &mut picks)
            };
            for i in 0..n {
                let bytes = heads.private(i);
                assert_eq!(checksum(&bytes[14..34]), 0);
                marked += u64::from(bytes[ECN] & 3 == 3);
            }
            told += queues.forget(&rule, n);
        }
        (lost, told, marked)
    }

    /// A flow that saturates a rate loses nothing for its delay where it takes marks: it has them, and all are counted. One that takes
    /// none loses frames.
    #[test]
    fn marks_are_in_the_place_of_drops() {
        for ecn in [1, 2] {
            let (lost, told, marked) = saturate(ecn);
            assert_eq!((lost, told), (0, marked), "{ecn}");
            assert!(marked > 5, "{ecn}: {marked}");
        }
        let (lost, told, marked) = saturate(0);
        assert_eq!((told, marked), (0, 0));
        assert!(lost > 5, "{lost}");
    }

    /// Frames whose pieces are more than a burst has room for come in several bursts, each frame whole.
    #[test]
    fn frames_come_whole() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let mut queues = Queues::new([1, 2]);
        let slow = slow();
        let lengths = [65_549; 14].into_iter().chain([1500; 44]);
        for (n, len) in lengths.clone().enumerate() {
            let rule = rule(1, Some(&slow).filter(|_| n == 0));
            let admitted = admit(&mut queues, &section, &rule, len);
            assert_eq!(admitted, (Outcome::Kept, 0), "{n}");
        }
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let (rule, mut found) = (rule(1, None), Vec::new());
        assert!(queues.advance(&rule).is_nothing());
        while queues.len() > 0 {
            let mut picks = [Pick::frame(0, false); BURST];
            heads.clear(RxId(0), NOW);
            let mut tails = Tails::bind(&mut store, &section);
            let n = queues.restore(1, BURST, &mut heads, &mut tails, &mut picks);
            for (i, pick) in picks.iter().enumerate().take(n) {
                let behind: usize = tails.of(i).map(|piece| piece.len()).sum();
                found.push((heads.private(i).len() + behind) as u32);
                assert!(pick.tagged());
            }
            queues.forget(&rule, n);
            assert_ne!(n, 0);
        }
        found.sort_unstable();
        let mut lengths: Vec<u32> = lengths.collect();
        lengths.sort_unstable();
        assert_eq!(found, lengths);
    }
}
