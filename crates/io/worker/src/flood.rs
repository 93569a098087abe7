//! Floods that a visit does not make itself.
//!
//! # Model
//! ```text
//! visit --post--> Queue of the bridge --drain, a few copies a round--> egress
//!                   Job: frames with one set, and how far they have come in it
//! ```
//! A visit makes the copies of a small flood ([`crate::visit::COPIES_MAX`], [`crate::visit::COPY_BYTES_MAX`]). A larger flood, and
//! every flood of a bridge that has one waiting, is copied to private memory and made later, so that floods keep their
//! order. Between two rounds of visits [`Floods::drain`] makes a bounded number of copies: [`COPIES_IDLE`] while no ring is to be
//! visited, [`COPIES_BUSY`] while some are, and no more than [`BYTES`]. Unicast so waits for that much at most. Bridges take turns.
//!
//! Frames that join a job before it has begun go with it: the longer the queue, the more frames each receiver gets at a time.
//!
//! The set is asked for anew each time, so that a job survives a change of the topology: it goes on with the number that is
//! next, and serves nobody twice.
//!
//! # Limits
//! A worker's [`Pool`]. A member may have as many blocks of it as are free after that, so that one that floods leaves room to
//! all others; a flood beyond is dropped as `flood-backlog`. A member that has [`PATIENCE`] blocks is not asked for frames:
//! they wait in its own ring.

use std::collections::VecDeque;

use windlass_attach::port::Limit;
use windlass_frame::{BURST, FloodId, Heads, Pick, RxId, TxId, Verdict};
use windlass_shm::{SegStore, Tails};
use windlass_stats::{Drop, MemberCounters};

use crate::context::Context;
use crate::egress::Egress;
use crate::hold::{Held, Pool};

/// Copies between two rounds of visits, while no ring is to be visited.
pub const COPIES_IDLE: usize = 64;
/// Copies between two rounds of visits, while rings are to be visited: about as long as those visits last.
pub const COPIES_BUSY: usize = 16;
/// Bytes of copies between two rounds of visits.
pub const BYTES: usize = 256 * 1024;
/// Blocks of a member's waiting floods with which no more of its frames are fetched.
pub const PATIENCE: usize = BURST / 2;

/// The daemon as a sender.
pub(crate) const DAEMON: u16 = u16::MAX;
/// Before every member.
const FIRST: TxId = TxId(0);

/// A frame that is flooded.
struct Flooded {
    held: Held,
    from: u16,
    /// Which of all that this worker has kept.
    number: u64,
    /// It is too long for somebody.
    is_cut: bool,
}

/// Frames with one set, that have come as far in it.
struct Job {
    set: FloodId,
    /// The member to go on with; the first while it has not begun.
    next: TxId,
    frames: Vec<Flooded>,
}

/// The floods of one bridge, in order.
struct Queue {
    bridge: u16,
    jobs: VecDeque<Job>,
}

/// What is left of a round's copies.
struct Budget {
    copies: usize,
    bytes: usize,
}

/// The waiting floods of one worker.
pub(crate) struct Floods {
    pool: Pool,
    queues: VecDeque<Queue>,
    /// By member: the blocks that its frames have. The last are the daemon's.
    blocks: Vec<u16>,
    frames: usize,
    /// Frames kept so far.
    posted: u64,
    heads: Box<Heads>,
    store: SegStore,
}

impl Floods {
    /// For members below `members`.
    pub(crate) fn new(members: usize) -> Floods {
        Floods {
            pool: Pool::default(),
            queues: VecDeque::new(),
            blocks: vec![0; members + 1],
            frames: 0,
            posted: 0,
            heads: Heads::boxed(),
            store: SegStore::default(),
        }
    }

    /// Whether nothing is left to do.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Frames that wait.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// Frames kept so far: the number of the next one.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// The number of the frame that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let jobs = self.queues.iter().filter_map(|queue| queue.jobs.front());
        let frames = jobs.filter_map(|job| job.frames.first());
        frames.map(|frame| frame.number).min()
    }

    /// Whether floods of a bridge wait: another one has to wait behind them.
    #[inline(always)]
    pub(crate) fn has(&self, bridge: u16) -> bool {
        !self.queues.is_empty() && self.queues.iter().any(|queue| queue.bridge == bridge)
    }

    /// What may be fetched from a member. None while too much of what it floods waits.
    #[inline(always)]
    pub(crate) fn limit(&self, member: u16) -> Option<Limit> {
        if self.queues.is_empty() {
            return Some(Limit::FULL);
        }
        let blocks = usize::from(*self.blocks.get(usize::from(member))?);
        (blocks < PATIENCE).then_some(Limit {
            frames: BURST - blocks,
            ..Limit::FULL
        })
    }

    /// Keeps frame `i`, to be flooded to a set. False if there is no room for it.
    #[cold]
    pub(crate) fn post(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        i: usize,
        bridge: u16,
        set: FloodId,
    ) -> bool {
        let from = heads.from.0;
        let Some(blocks) = share(&mut self.blocks, from) else {
            return false;
        };
        let wanted = usize::from(*blocks) + Pool::blocks(&heads.meta[i % BURST]);
        if wanted > self.pool.free_blocks() {
            return false;
        }
        let Some(held) = self.pool.hold(heads, tails, i) else {
            return false;
        };
        *blocks = wanted as u16;
        self.frames += 1;
        let frame = Flooded {
            held,
            from,
            number: self.posted,
            is_cut: false,
        };
        self.posted += 1;
        let queue = match self.queues.iter_mut().position(|q| q.bridge == bridge) {
            Some(at) => self.queues.get_mut(at),
            None => {
                let jobs = VecDeque::new();
                self.queues.push_back(Queue { bridge, jobs });
                self.queues.back_mut()
            }
        };
        let Some(queue) = queue else { return false };
        match queue.jobs.back_mut() {
            Some(job) if job.set == set && job.next == FIRST && job.frames.len() < BURST => {
                job.frames.push(frame);
            }
            _ => queue.jobs.push_back(Job {
                set,
                next: FIRST,
                frames: vec![frame],
            }),
        }
        true
    }

    /// Ends the floods of a member that goes: its number may be another's soon.
    pub(crate) fn purge(&mut self, member: u16, counters: Option<&MemberCounters>) {
        let mut queues = std::mem::take(&mut self.queues);
        for job in queues.iter_mut().flat_map(|queue| &mut queue.jobs) {
            let frames = std::mem::take(&mut job.frames).into_iter();
            let (mine, others): (Vec<_>, _) = frames.partition(|frame| frame.from == member);
            job.frames = others;
            if let Some(counters) = counters {
                counters.floods_cut.add(mine.len() as u64);
            }
            mine.into_iter().for_each(|frame| self.forget(frame));
        }
        for queue in &mut queues {
            queue.jobs.retain(|job| !job.frames.is_empty());
        }
        queues.retain(|queue| !queue.jobs.is_empty());
        self.queues = queues;
    }

    /// Ends all floods; how many frames had copies left.
    #[cold]
    pub(crate) fn give_up(&mut self, cx: &Context<'_>) -> u64 {
        let frames = self.frames as u64;
        while let Some(from) = self.first_sender() {
            let member = cx.topo.member(from);
            let counters = member.and_then(|m| m.counters.get(usize::from(cx.lane.worker)));
            self.purge(from, counters.map(|c| &**c));
        }
        frames
    }

    fn first_sender(&self) -> Option<u16> {
        let jobs = self.queues.iter().flat_map(|queue| &queue.jobs);
        let mut frames = jobs.flat_map(|job| &job.frames);
        frames.next().map(|frame| frame.from)
    }

    fn forget(&mut self, frame: Flooded) {
        if let Some(blocks) = share(&mut self.blocks, frame.from) {
            *blocks -= Pool::blocks(frame.held.meta()) as u16;
        }
        self.frames -= 1;
        self.pool.free(frame.held);
    }

    /// Makes about so many copies (a receiver gets all that a job has for it), within [`BYTES`].
    #[cold]
    pub(crate) fn drain(&mut self, cx: &Context<'_>, egress: &mut Egress, copies: usize) {
        let mut left = Budget {
            copies,
            bytes: BYTES,
        };
        while left.copies > 0 && left.bytes > 0 {
            let Some(mut queue) = self.queues.pop_front() else {
                return;
            };
            // Each bridge in turn gets a part of what is left, so that none waits for another's storm.
            let mut share = Budget {
                copies: left.copies.div_ceil(self.queues.len() + 1),
                bytes: left.bytes.div_ceil(self.queues.len() + 1),
            };
            let given = (share.copies, share.bytes);
            while share.copies > 0 && share.bytes > 0 {
                let Some(job) = queue.jobs.front_mut() else {
                    break;
                };
                if self.go_on(cx, egress, queue.bridge, job, &mut share) {
                    let done = queue.jobs.pop_front();
                    done.into_iter().for_each(|job| self.end(cx, job));
                }
            }
            left.copies = left.copies.saturating_sub(given.0 - share.copies);
            left.bytes = left.bytes.saturating_sub(given.1 - share.bytes);
            if !queue.jobs.is_empty() {
                self.queues.push_back(queue);
            }
        }
    }

    /// Sends a job's frames to their next receivers. True when it is done.
    fn go_on(
        &mut self,
        cx: &Context<'_>,
        egress: &mut Egress,
        bridge: u16,
        job: &mut Job,
        left: &mut Budget,
    ) -> bool {
        let lane = cx.lane.worker as usize;
        let bridge = cx.topo.bridge(bridge);
        let Some((bridge, set)) = bridge.and_then(|b| Some((b, b.flood(job.set)?))) else {
            job.frames.iter_mut().for_each(|frame| frame.is_cut = true);
            return true;
        };
        self.heads.clear(RxId(0), cx.now);
        let mut tails = Tails::bind(&mut self.store, cx.section);
        for (i, frame) in job.frames.iter().enumerate() {
            self.pool
                .restore(&frame.held, &mut self.heads, &mut tails, i);
            self.heads.verdict[i] = Verdict::flood(job.set);
        }
        self.heads.n = job.frames.len().min(BURST);
        let begin = set.position(job.next);
        for to in (begin..set.len()).filter_map(|at| set.get(at)) {
            if left.copies == 0 || left.bytes == 0 {
                job.next = to.id;
                return false;
            }
            let (mut picks, mut n) = ([Pick::frame(0, false); BURST], 0);
            for (i, frame) in job.frames.iter_mut().enumerate() {
                let source = cx.topo.member(frame.from);
                let source = source.and_then(|m| m.counters.get(lane));
                let Some(source) = source.filter(|_| to.takes(bridge.flood_from(frame.from)))
                else {
                    if frame.from == DAEMON && count_own(cx, to.id) {
                        picks[n] = Pick::frame(i, to.tagged);
                        n += 1;
                    }
                    continue;
                };
                if !to.fits(&self.heads, i) {
                    frame.is_cut = true;
                    continue;
                }
                source.rx_copies.add(1);
                let bytes = self.heads.meta[i].len as usize;
                left.bytes = left.bytes.saturating_sub(bytes);
                picks[n] = Pick::frame(i, to.tagged);
                n += 1;
            }
            if n > 0 {
                left.copies = left.copies.saturating_sub(n);
                let receiver = cx.topo.member(to.id.0);
                let asks = receiver.is_some_and(|m| m.asker.is_some());
                let from = |pick: &Pick| job.frames.get(pick.index()).map_or(0, |f| f.from);
                let mut taken = 0;
                for some in picks[..n].chunk_by(|a, b| !asks || from(a) == from(b)) {
                    // Who asks pays for it.
                    self.heads.from = RxId(some.first().map_or(0, from));
                    taken += egress.offer(cx, &self.heads, &tails, to.id, some);
                }
                if let Some(c) = receiver.and_then(|m| m.counters.get(lane)) {
                    c.drop_frames(Drop::RingFull, (n - taken) as u64);
                }
                egress.retry_late(cx, &self.heads, &tails);
            }
        }
        true
    }

    fn end(&mut self, cx: &Context<'_>, job: Job) {
        let lane = cx.lane.worker as usize;
        for frame in job.frames {
            let source = cx.topo.member(frame.from);
            if let (true, Some(c)) = (frame.is_cut, source.and_then(|m| m.counters.get(lane))) {
                c.floods_cut.add(1);
            }
            self.forget(frame);
        }
    }
}

/// Counts a copy of the daemon's at its receiver, if there is one.
#[cold]
#[inline(never)]
fn count_own(cx: &Context<'_>, to: TxId) -> bool {
    let receiver = cx.topo.member(to.0);
    let counters = receiver.and_then(|m| m.counters.get(cx.lane.worker as usize));
    counters.is_some_and(|counters| {
        counters.own_frames.add(1);
        true
    })
}

/// The blocks of a sender: the last are the daemon's.
#[inline(always)]
fn share(blocks: &mut [u16], from: u16) -> Option<&mut u16> {
    if usize::from(from) < blocks.len() {
        blocks.get_mut(usize::from(from))
    } else {
        blocks.last_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_frame::{Claim, Tick};
    use windlass_sync::qsbr::Domain;

    /// The floods of a member that goes end with it, and are counted; those of others, in order, and the room stay.
    #[test]
    fn floods_end_with_their_member() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let (mut floods, counters) = (Floods::new(4), MemberCounters::zero());
        let tails = Tails::bind(&mut store, &section);
        for round in 0..1000 {
            for from in [1, 2, 1, 3] {
                heads.clear(RxId(from), Tick(0));
                heads.admit(0, 60, Claim::NONE);
                let set = FloodId(from / 2);
                assert!(floods.post(&heads, &tails, 0, 0, set), "round {round}");
            }
            floods.purge(1, Some(&counters));
            let jobs = floods.queues.iter().flat_map(|queue| &queue.jobs);
            let frames = jobs.flat_map(|job| &job.frames);
            let left: Vec<_> = frames.map(|frame| frame.from).collect();
            assert_eq!((left, floods.len()), (vec![2, 3], 2));
            for member in [2, 3] {
                floods.purge(member, None);
            }
            assert!(floods.is_empty() && floods.pool.is_empty());
        }
        assert_eq!(counters.floods_cut.get(), 2000);
        assert_eq!(floods.blocks, [0; 5]);
    }

    /// A member that floods leaves room to others: of what is free, half to the first, a third to each of two, and so on. It
    /// is not asked for more meanwhile; others are.
    #[test]
    fn nobody_takes_all_the_room() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let mut floods = Floods::new(8);
        let tails = Tails::bind(&mut store, &section);
        let all = floods.pool.free_blocks();
        for member in 0..8 {
            heads.clear(RxId(member), Tick(0));
            heads.admit(0, 60, Claim::NONE);
            assert_eq!(floods.limit(member).map(|l| l.frames), Some(BURST));
            while floods.post(&heads, &tails, 0, 0, FloodId(0)) {}
            let has = usize::from(floods.blocks[usize::from(member)]);
            let free = floods.pool.free_blocks();
            assert!(has >= 1 && has.abs_diff(free) <= 1, "{has} of {all}");
            assert_eq!(floods.limit(member).is_none(), has >= PATIENCE);
        }
        assert_eq!(floods.limit(7).map(|l| l.frames), Some(BURST - 1));
    }
}
