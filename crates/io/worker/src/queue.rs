//! Frames that wait for their time on their way to a member, or from it: its queues.
//!
//! # Model
//! A stage ([`windlass_nic::EgressStage`], [`windlass_nic::IngressStage`]) holds a frame until a moment. The frame is copied to
//! private memory and joins the member's queue, which is released by a task of the worker ([`crate::egress`],
//! [`crate::ingress`]) when its first frame is due. A queue has one order: later frames go behind it, whatever their own moment.
//!
//! Each worker has a queue of its own for a member and a direction: frames of a flow come from one ring, so from one worker.
//!
//! # Limits
//! [`FRAMES`] and [`BYTES`] for each member, and as many blocks as stay free after that in the worker's [`MEMORY`] for the
//! direction, which is allocated with the first frame.

use std::collections::VecDeque;

use windlass_frame::{BURST, Heads, Pick, Tick};
use windlass_nic::Room;
use windlass_shm::Tails;

use crate::hold::{BLOCK, Held, Pool};

/// Frames that wait for one member at most, in one direction.
pub const FRAMES: usize = 512;
/// Bytes of them.
pub const BYTES: usize = 1 << 20;
/// Private memory of one worker for all its queues of a direction.
pub const MEMORY: usize = 4 << 20;

struct Waiting {
    due: Tick,
    held: Held,
    is_tagged: bool,
    /// Which of all frames of the worker that were ever queued.
    number: u64,
}

/// The frames of one member.
struct Queue {
    member: u16,
    bytes: usize,
    frames: VecDeque<Waiting>,
}

/// The queues of one worker in one direction.
#[derive(Default)]
pub(crate) struct Queues {
    pool: Option<Pool>,
    queues: Vec<Queue>,
    frames: usize,
    pushed: u64,
}

impl Queues {
    /// Frames that wait.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// Frames that were ever added.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of the frame that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let fronts = self.queues.iter().filter_map(|queue| queue.frames.front());
        fronts.map(|front| front.number).min()
    }

    /// What may be added to a member's queue.
    pub(crate) fn room(&self, member: u16) -> Room {
        let queue = self.queues.iter().find(|queue| queue.member == member);
        let (frames, bytes) = queue.map_or((0, 0), |queue| (queue.frames.len(), queue.bytes));
        // A frame takes a block, and one more for each block's worth of bytes. A queue has at most as many as stay free.
        let blocks = frames + bytes / BLOCK;
        let pool = self.pool.as_ref();
        let free = pool.map_or(MEMORY / BLOCK, Pool::free_blocks);
        let share = free.saturating_sub(blocks) / 2;
        Room {
            frames: FRAMES.saturating_sub(frames).min(share / 2),
            bytes: BYTES.saturating_sub(bytes).min(share / 2 * BLOCK),
        }
    }

    /// Adds a frame, due then or with the one before it. Gives back when the queue's first frame is due; none if there is no
    /// memory for it, which there is for what [`Queues::room`] has told.
    pub(crate) fn push(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        member: u16,
        pick: Pick,
        due: Tick,
    ) -> Option<Tick> {
        let len = heads.meta[pick.index()].len as usize;
        let pool = self.pool.get_or_insert_with(|| Pool::of(MEMORY / BLOCK));
        let held = pool.hold(heads, tails, pick.index())?;
        self.frames += 1;
        self.pushed += 1;
        let at = self.queues.iter().position(|queue| queue.member == member);
        let at = at.unwrap_or_else(|| {
            let (bytes, frames) = (0, VecDeque::new());
            self.queues.push(Queue {
                member,
                bytes,
                frames,
            });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        let last = queue.frames.back().map_or(due, |last| last.due);
        queue.bytes += len;
        queue.frames.push_back(Waiting {
            due: due.max(last),
            held,
            is_tagged: pick.tagged(),
            number: self.pushed - 1,
        });
        queue.frames.front().map(|first| first.due)
    }

    /// When a member's first frame is due.
    pub(crate) fn due(&self, member: u16) -> Option<Tick> {
        let queue = self.queues.iter().find(|queue| queue.member == member)?;
        queue.frames.front().map(|first| first.due)
    }

    /// Puts a member's first frames that are due into a burst, at most `most`; how many.
    pub(crate) fn restore<'q>(
        &'q self,
        member: u16,
        (now, most): (Tick, usize),
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        picks: &mut [Pick; BURST],
    ) -> usize {
        let queue = self.queues.iter().find(|queue| queue.member == member);
        let (Some(queue), Some(pool)) = (queue, &self.pool) else {
            return 0;
        };
        let due = queue.frames.iter().take_while(|frame| frame.due <= now);
        let mut n = 0;
        for (i, frame) in due.take(most.min(BURST)).enumerate() {
            if tails.room() < Pool::blocks(frame.held.meta()) {
                break;
            }
            pool.restore(&frame.held, heads, tails, i);
            picks[i] = Pick::frame(i, frame.is_tagged);
            n = i + 1;
        }
        heads.n = n;
        n
    }

    /// Forgets a member's first frames; how many there were, at most `most`.
    pub(crate) fn forget(&mut self, member: u16, most: usize) -> usize {
        let Some(at) = self.queues.iter().position(|queue| queue.member == member) else {
            return 0;
        };
        let queue = &mut self.queues[at];
        let n = queue.frames.len().min(most);
        for frame in queue.frames.drain(..n) {
            queue.bytes -= frame.held.meta().len as usize;
            if let Some(pool) = &mut self.pool {
                pool.free(frame.held);
            }
        }
        self.frames -= n;
        if queue.frames.is_empty() {
            self.queues.swap_remove(at);
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_frame::{Claim, RxId};
    use windlass_shm::SegStore;
    use windlass_sync::qsbr::Domain;

    /// A queue keeps its order, is bounded in frames and bytes, leaves room to others, and gives all its memory back.
    #[test]
    fn queues_are_bounded_and_in_order() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let mut queues = Queues::default();
        let pick = Pick::frame(0, true);
        let fill = |queues: &mut Queues, to: u16, len: u32, due: &dyn Fn(u64) -> u64| {
            let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
            let payload = vec![0; 65_536];
            let mut n = 0;
            loop {
                heads.clear(RxId(0), Tick(0));
                let mut tails = Tails::bind(&mut store, &section);
                heads.admit(0, len, Claim::NONE);
                let rest = (len as usize).saturating_sub(windlass_frame::SNAP);
                tails.push(0, windlass_shm::Foreign::private(&payload[..rest]));
                let room = queues.room(to);
                if room.frames == 0 || room.bytes < len as usize {
                    return n as usize;
                }
                let due = Tick(due(n));
                let pushed = queues.push(&heads, &tails, to, pick, due);
                assert!(
                    pushed.is_some(),
                    "there is memory for what there is room for"
                );
                n += 1;
            }
        };
        // The first is due first, though the second would be due before it.
        let falling = |n: u64| 1000 - n.min(500);
        assert_eq!(fill(&mut queues, 1, 60, &falling), FRAMES);
        assert_eq!(queues.due(1), Some(Tick(1000)));
        assert!(fill(&mut queues, 2, 60_000, &|_| 5) <= BYTES / 60_000);
        let others = (3..40).map(|to| fill(&mut queues, to, 60, &|_| 5));
        assert!(others.into_iter().take(5).all(|n| n > 0), "room for others");
        let mut tails = Tails::bind(&mut store, &section);
        let mut picks = [pick; BURST];
        let mut restore =
            |now| queues.restore(1, (Tick(now), BURST), &mut heads, &mut tails, &mut picks);
        let (none, all) = (restore(999), restore(1000));
        assert_eq!((none, all), (0, BURST));
        for to in 0..40 {
            queues.forget(to, usize::MAX);
            assert_eq!(queues.due(to), None);
        }
        let pool = queues.pool.expect("frames have waited");
        assert!(pool.is_empty() && queues.frames == 0);
    }

    /// Frames whose pieces are more than a burst has room for come in several bursts, each frame whole.
    #[test]
    fn frames_come_whole() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let mut queues = Queues::default();
        let payload = vec![0x5a; 65_536];
        let lengths = [65_549; 15].into_iter().chain([1500; 44]);
        for len in lengths.clone() {
            heads.clear(RxId(0), Tick(0));
            let mut tails = Tails::bind(&mut store, &section);
            heads.admit(0, len, Claim::NONE);
            let rest = payload.get(..len as usize - windlass_frame::SNAP);
            tails.push(0, windlass_shm::Foreign::private(rest.expect("bytes")));
            let pushed = queues.push(&heads, &tails, 1, Pick::frame(0, false), Tick(5));
            assert_eq!(pushed, Some(Tick(5)));
        }
        let mut found = Vec::new();
        while queues.len() > 0 {
            let mut picks = [Pick::frame(0, false); BURST];
            heads.clear(RxId(0), Tick(5));
            let mut tails = Tails::bind(&mut store, &section);
            let n = queues.restore(1, (Tick(5), BURST), &mut heads, &mut tails, &mut picks);
            for i in 0..n {
                let behind: usize = tails.of(i).map(|piece| piece.len()).sum();
                found.push((heads.private(i).len() + behind) as u32);
            }
            assert_eq!(queues.forget(1, n), n);
            assert_ne!(n, 0);
        }
        assert!(found.into_iter().eq(lengths));
    }
}
