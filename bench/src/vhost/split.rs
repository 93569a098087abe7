//! The driver's side of split virtqueues (virtio 1.2, section 2.7).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::Written;
use super::place::{Place, SPLIT_FLAGS};
use crate::generator::{Inlet, Outlet};
use crate::memory::Memory;

const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// What both directions share: the available ring, whose entry `i` always names descriptor `i`.
#[derive(Clone, Copy)]
struct Split<'p> {
    place: Place<'p>,
    avail: u32,
    used: u32,
    /// The driver's index.
    head: u16,
    /// How far buffers have come back.
    seen: u16,
}

impl<'p> Split<'p> {
    fn new(place: Place<'p>) -> Split<'p> {
        let (avail, used) = (place.avail(), place.used());
        let memory = place.memory;
        for slot in 0..place.size {
            memory.store_u16(avail + 4 + 2 * u32::from(slot), slot, Relaxed);
            place.write_address(slot);
        }
        place.write_tables(SPLIT_FLAGS);
        memory.store_u16(avail, NO_INTERRUPT, Relaxed);
        Split {
            place,
            avail,
            used,
            head: 0,
            seen: 0,
        }
    }

    #[inline(always)]
    fn describe(&self, slot: u16, word: u64) {
        self.place.write_address(slot);
        let at = self.place.desc_at(slot) + 8;
        self.place.memory.store_u64(at, word, Relaxed);
    }

    #[inline(always)]
    fn publish(&mut self, count: u16) {
        self.head = self.head.wrapping_add(count);
        let memory = self.place.memory;
        memory.store_u16(self.avail + 2, self.head, Release);
        // Index before flags: without it both sides can miss each other.
        fence(SeqCst);
        if memory.load_u16(self.used, Relaxed) & NO_NOTIFY == 0 {
            self.place.wake();
        }
    }

    #[inline(always)]
    fn used_index(&self) -> u16 {
        self.place.memory.load_u16(self.used + 2, Acquire)
    }

    /// Number and length of what came back at a free-running index.
    #[inline(always)]
    fn used_entry(&self, index: u16) -> (u32, u32) {
        let at = self.used + 4 + 8 * u32::from(self.place.slot(index));
        let memory = self.place.memory;
        (
            memory.load_u32(at, Relaxed),
            memory.load_u32(at + 4, Relaxed),
        )
    }
}

/// Sends.
pub struct SplitOut<'p> {
    ring: Split<'p>,
    in_order: bool,
}

impl<'p> SplitOut<'p> {
    /// On an empty ring. Without `in_order` it looks at what the back end says it returns.
    #[must_use]
    pub(super) fn new(place: Place<'p>, in_order: bool) -> SplitOut<'p> {
        SplitOut {
            ring: Split::new(place),
            in_order,
        }
    }

    fn reclaim(&mut self) {
        let ring = &mut self.ring;
        let used = ring.used_index();
        while !self.in_order && ring.seen != used {
            let (id, _) = ring.used_entry(ring.seen);
            let slot = ring.place.slot(ring.seen);
            assert_eq!(
                id,
                u32::from(slot),
                "the switch returns buffers out of order"
            );
            ring.seen = ring.seen.wrapping_add(1);
        }
        ring.seen = used;
    }
}

impl Outlet for SplitOut<'_> {
    fn memory(&self) -> &Memory {
        self.ring.place.memory
    }

    fn slots(&self) -> u16 {
        self.ring.place.size
    }

    fn next_slot(&self) -> u16 {
        self.ring.place.slot(self.ring.head)
    }

    fn buffer(&self, slot: u16) -> u32 {
        self.ring.place.frame(slot)
    }

    #[inline]
    fn send(&mut self, count: u16, size: u32, mut prepare: impl FnMut(&Memory, u16, u32)) -> bool {
        let free = |ring: &Split<'_>| ring.place.size - ring.head.wrapping_sub(ring.seen);
        if free(&self.ring) < count {
            self.reclaim();
            if free(&self.ring) < count {
                return false;
            }
        }
        let ring = &mut self.ring;
        for i in 0..count {
            let slot = ring.place.slot(ring.head.wrapping_add(i));
            prepare(ring.place.memory, i, ring.place.frame(slot));
            ring.describe(slot, ring.place.send_word(size, SPLIT_FLAGS));
        }
        ring.publish(count);
        true
    }

    fn is_drained(&mut self) -> bool {
        self.reclaim();
        self.ring.seen == self.ring.head
    }
}

/// Receives.
pub struct SplitIn<'p> {
    ring: Split<'p>,
    mergeable: bool,
}

impl<'p> SplitIn<'p> {
    /// On an empty ring; offers every buffer.
    #[must_use]
    pub(super) fn new(place: Place<'p>, mergeable: bool) -> SplitIn<'p> {
        let mut ring = Split::new(place);
        for slot in 0..place.size {
            let word = ring.place.room_word(SPLIT_FLAGS);
            ring.describe(slot, word);
        }
        ring.publish(place.size);
        SplitIn { ring, mergeable }
    }
}

impl Inlet for SplitIn<'_> {
    fn memory(&self) -> &Memory {
        self.ring.place.memory
    }

    fn slots(&self) -> u16 {
        self.ring.place.size
    }

    fn buffer(&self, slot: u16) -> u32 {
        self.ring.place.frame(slot)
    }

    #[inline]
    fn take(&mut self, most: u16, mut look: impl FnMut(&Memory, u32, Option<u32>)) -> u16 {
        let (place, mergeable) = (self.ring.place, self.mergeable);
        self.take_written(most, |memory, at, written| {
            let length = written.and_then(|used| place.length(at, used, mergeable));
            look(memory, at, length);
        })
    }
}

impl Written for SplitIn<'_> {
    #[inline(always)]
    fn take_written(&mut self, most: u16, mut look: impl FnMut(&Memory, u32, Option<u32>)) -> u16 {
        let ring = &mut self.ring;
        let count = ring.used_index().wrapping_sub(ring.seen).min(most);
        if count == 0 {
            return 0;
        }
        for i in 0..count {
            let index = ring.seen.wrapping_add(i);
            let slot = ring.place.slot(index);
            let (id, used) = ring.used_entry(index);
            let written = (id == u32::from(slot)).then_some(used);
            look(ring.place.memory, ring.place.frame(slot), written);
            let word = ring.place.room_word(SPLIT_FLAGS);
            ring.describe(slot, word);
        }
        ring.seen = ring.seen.wrapping_add(count);
        ring.publish(count);
        count
    }
}
