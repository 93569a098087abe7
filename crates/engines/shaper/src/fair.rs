//! Frames that wait for one rate, in fair queues: [`Fair`].
//!
//! # Model
//! FQ-CoDel (RFC 8290): a queue for each hash of a flow's addresses and ports, served by deficit round robin. A queue that gets its first
//! frame is *new*, and served before those that have been served: so a flow that sends little does not wait for those that
//! send much. Each queue drops by [`crate::codel`], or marks ([`crate::ecn`]). Where there is no room, a long queue loses its oldest
//! frame: one that has at least half of what the longest had when all were last looked through.
//!
//! | | here | RFC 8290 |
//! | --- | --- | --- |
//! | queues | [`QUEUES`] | 1,024 |
//! | quantum | [`QUANTUM`] bytes | 1,514 |
//! | target, interval | 5 ms, 100 ms; longer at low rates ([`crate::codel`]) | 5 ms, 100 ms |
//! | drops where there is no room | one frame at a time; the longest queue is looked for once in [`DROPS`] | up to 64 of the longest queue |
//!
//! Queues lie in three bands. A higher band is served before a lower one; a band that waits for [`STARVED_NS`] gets a turn all
//! the same.

use std::collections::VecDeque;

use windlass_frame::Tick;

use crate::Priority;
use crate::codel::{Codel, Law};

/// Queues of each priority.
pub const QUEUES: usize = 1024;
/// Bytes that a queue may send before it is another's turn.
pub const QUANTUM: i64 = 1514;
/// How long a band of lower priority waits for a turn at most.
pub const STARVED_NS: u64 = 100_000_000;
/// After so many drops for want of room the longest queue is looked for anew.
const DROPS: u8 = 64;
/// No queue.
const NONE: u16 = u16::MAX;

/// What waits, and what is known of it.
#[derive(Debug)]
pub struct Waiting<T> {
    /// It.
    pub item: T,
    /// Its bytes.
    pub bytes: u32,
    /// Which flow of the member it belongs to: [`crate::Flow::id`]; 0 is none.
    pub flow: u64,
    /// It goes with a mark, which the caller writes: [`crate::ecn::mark`].
    pub is_marked: bool,
    /// It is marked where others are dropped for the delay: [`crate::ecn::is_capable`].
    pub(crate) takes_mark: bool,
    pub(crate) key: u32,
    pub(crate) priority: Priority,
    /// When it began to wait here.
    pub(crate) since: Tick,
}

impl<T> Waiting<T> {
    /// What its queue is chosen by.
    pub fn key(&self) -> u32 {
        self.key
    }
}

/// One queue.
#[derive(Debug)]
struct Queue<T> {
    slot: u16,
    bytes: u64,
    /// Bytes that it may send yet.
    credit: i64,
    codel: Codel,
    frames: VecDeque<Waiting<T>>,
}

/// The queues of one priority that have frames, and those that had some lately, in the order of their turns.
#[derive(Debug, Default)]
struct Band {
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    /// When it last had a turn, or became one that waits.
    served: Tick,
}

/// Fair queues.
#[derive(Debug)]
pub struct Fair<T> {
    law: Law,
    /// By priority and hash: which queue.
    table: Box<[u16]>,
    queues: Vec<Queue<T>>,
    free: Vec<u16>,
    bands: [Band; 3],
    frames: usize,
    bytes: u64,
    long: Long,
}

/// Where frames are dropped for want of room.
#[derive(Debug, Default)]
struct Long {
    /// The queue that lost the last one.
    at: usize,
    /// Bytes of queues that may lose some.
    least: u64,
    /// Drops until all queues are looked through.
    left: u8,
}

impl<T> Fair<T> {
    /// For a rate at which an ordinary frame takes so long.
    pub fn new(frame_ns: u64) -> Fair<T> {
        Fair {
            law: Law::new(frame_ns),
            table: vec![NONE; 3_usize.wrapping_mul(QUEUES)].into(),
            queues: Vec::new(),
            free: Vec::new(),
            bands: Default::default(),
            frames: 0,
            bytes: 0,
            long: Long::default(),
        }
    }

    /// Another rate.
    pub(crate) fn set_rate(&mut self, frame_ns: u64) {
        self.law = Law::new(frame_ns);
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.frames
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All that waits, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting<T>> {
        self.queues.iter().flat_map(|queue| &queue.frames)
    }

    /// The queue that frames of a key and a priority join.
    fn queue_of(&mut self, key: u32, priority: Priority, now: Tick) -> u16 {
        let slot = (key as usize % QUEUES).wrapping_add(QUEUES.wrapping_mul(priority as usize));
        let at = self.table.get(slot).copied().unwrap_or(NONE);
        if at != NONE {
            return at;
        }
        let queue = Queue {
            slot: slot as u16,
            bytes: 0,
            credit: QUANTUM,
            codel: Codel::default(),
            frames: VecDeque::new(),
        };
        let at = match self.free.pop() {
            Some(at) => {
                if let Some(place) = self.queues.get_mut(usize::from(at)) {
                    *place = queue;
                }
                at
            }
            None => {
                self.queues.push(queue);
                self.queues.len().wrapping_sub(1) as u16
            }
        };
        if let Some(place) = self.table.get_mut(slot) {
            *place = at;
        }
        let Some(band) = self.bands.get_mut(priority as usize) else {
            return at;
        };
        if band.new.is_empty() && band.old.is_empty() {
            band.served = now;
        }
        band.new.push_back(at);
        at
    }

    /// A frame begins to wait.
    pub fn push(&mut self, frame: Waiting<T>) {
        let at = self.queue_of(frame.key, frame.priority, frame.since);
        let bytes = u64::from(frame.bytes);
        if let Some(queue) = self.queues.get_mut(usize::from(at)) {
            queue.bytes = queue.bytes.saturating_add(bytes);
            queue.frames.push_back(frame);
            self.frames = self.frames.saturating_add(1);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    /// The first frame of a queue leaves it.
    fn take(&mut self, at: u16) -> Option<Waiting<T>> {
        let queue = self.queues.get_mut(usize::from(at))?;
        let frame = queue.frames.pop_front()?;
        let bytes = u64::from(frame.bytes);
        queue.bytes = queue.bytes.saturating_sub(bytes);
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(frame)
    }

    /// The band that has the next turn.
    fn band(&self, now: Tick) -> Option<usize> {
        let is_waiting = |band: &Band| !band.new.is_empty() || !band.old.is_empty();
        let mut waiting = (0..3)
            .rev()
            .filter(|at| self.bands.get(*at).is_some_and(is_waiting));
        let first = waiting.next()?;
        let starved = |at: &usize| {
            let band = self.bands.get(*at);
            band.is_some_and(|band| now.since(band.served) >= STARVED_NS)
        };
        Some(waiting.find(starved).unwrap_or(first))
    }

    /// Bytes of the frame whose turn is next, if nothing changes; 0: none waits.
    pub fn next_bytes(&self, now: Tick) -> u32 {
        let lists = self.band(now).and_then(|at| self.bands.get(at));
        let mut turns = lists
            .into_iter()
            .flat_map(|band| band.new.iter().chain(&band.old));
        let frame = turns.find_map(|at| self.queues.get(usize::from(*at))?.frames.front());
        frame.map_or(0, |frame| frame.bytes)
    }

    /// The frame whose turn it is leaves. Those that are dropped before it are given to `dropped`.
    pub fn pop(&mut self, now: Tick, dropped: &mut dyn FnMut(Waiting<T>)) -> Option<Waiting<T>> {
        loop {
            let band = self.band(now)?;
            let Band { new, old, .. } = self.bands.get_mut(band)?;
            let is_new = !new.is_empty();
            let at = if is_new {
                new.pop_front()
            } else {
                old.pop_front()
            }?;
            let queue = self.queues.get_mut(usize::from(at))?;
            if queue.credit <= 0 {
                queue.credit = queue.credit.saturating_add(QUANTUM);
                old.push_back(at);
                continue;
            }
            let has_old = !old.is_empty();
            match self.first(at, now, dropped) {
                Some(frame) => {
                    let band = self.bands.get_mut(band)?;
                    band.served = now;
                    let list = if is_new { &mut band.new } else { &mut band.old };
                    list.push_front(at);
                    return Some(frame);
                }
                // One that was new has a turn among the others first: it does not come back as new at once.
                None if is_new && has_old => self.bands.get_mut(band)?.old.push_back(at),
                None => self.forget(at),
            }
        }
    }

    /// The first frame of a queue that is not dropped leaves it; one that takes marks is marked instead.
    fn first(
        &mut self,
        at: u16,
        now: Tick,
        dropped: &mut dyn FnMut(Waiting<T>),
    ) -> Option<Waiting<T>> {
        loop {
            let mut frame = self.take(at)?;
            let law = self.law;
            let queue = self.queues.get_mut(usize::from(at))?;
            let waited = now.since(frame.since);
            let is_over = queue.codel.drops(law, now, waited, queue.bytes);
            if !is_over || frame.takes_mark {
                frame.is_marked |= is_over;
                queue.credit = queue.credit.saturating_sub(i64::from(frame.bytes));
                return Some(frame);
            }
            dropped(frame);
        }
    }

    /// A queue that has no frame, and no place among the turns any more.
    fn forget(&mut self, at: u16) {
        let slot = self.queues.get(usize::from(at)).map(|queue| queue.slot);
        if let Some(place) = slot.and_then(|slot| self.table.get_mut(usize::from(slot))) {
            *place = NONE;
        }
        self.free.push(at);
    }

    /// The oldest frame of a long queue leaves: there is no room.
    pub fn drop_longest(&mut self) -> Option<Waiting<T>> {
        let at = match self.next_long() {
            Some(at) => at,
            None => {
                let queues = self.queues.iter().enumerate();
                let (at, longest) = queues.max_by_key(|(_, queue)| queue.bytes)?;
                let least = (longest.bytes / 2).max(1);
                self.long = Long {
                    at,
                    least,
                    left: DROPS,
                };
                at
            }
        };
        self.long.at = at;
        self.long.left = self.long.left.saturating_sub(1);
        self.take(at as u16)
    }

    /// The queue that lost the last frame if it is long yet, or the next one that is.
    fn next_long(&self) -> Option<usize> {
        let Long { at, least, left } = self.long;
        let is_long = |at: &usize| {
            let queue = self.queues.get(*at);
            queue.is_some_and(|queue| queue.bytes >= least)
        };
        let turns = (at..self.queues.len()).chain(0..at);
        turns.take_while(|_| left > 0).find(is_long)
    }

    /// All that waits leaves, each queue in its order.
    pub fn drain(&mut self) -> impl Iterator<Item = Waiting<T>> + use<T> {
        (self.frames, self.bytes) = (0, 0);
        self.table.fill(NONE);
        self.free.clear();
        self.bands = Default::default();
        let queues = std::mem::take(&mut self.queues);
        queues.into_iter().flat_map(|queue| queue.frames)
    }
}

#[cfg(test)]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;

    fn push(fair: &mut Fair<u32>, key: u32, item: u32) {
        fair.push(Waiting {
            item,
            bytes: 100,
            flow: 0,
            is_marked: false,
            takes_mark: false,
            key,
            priority: Priority::Medium,
            since: Tick(0),
        });
    }

    /// For want of room frames leave the long queues, each its oldest first, and never one of a queue that is short beside them.
    #[test]
    fn the_long_ones_lose() {
        let mut fair = Fair::new(1_000_000);
        for n in 0..400 {
            push(&mut fair, 7, n);
        }
        for n in 0..300 {
            push(&mut fair, 8, n);
        }
        for key in 100..150 {
            push(&mut fair, key, 0);
        }
        let mut next = [0, 0];
        for _ in 0..690 {
            let frame = fair.drop_longest().expect("there are frames");
            let queue = frame.key as usize - 7;
            assert_eq!(frame.item, next[queue]);
            next[queue] += 1;
        }
        // One may have half of what the other has, and one look at all of them is for 64 drops.
        assert!(next[0].abs_diff(next[1] + 100) <= 200, "{next:?}");
        assert_eq!(fair.len(), 60);
        assert_eq!((0..61).filter_map(|_| fair.drop_longest()).count(), 60);
    }
}
