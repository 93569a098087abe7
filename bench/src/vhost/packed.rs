//! The driver's side of packed virtqueues (virtio 1.2, section 2.8).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::Written;
use super::place::{PACKED_FLAGS, Place};
use crate::generator::{Inlet, Outlet};
use crate::memory::Memory;

const AVAIL: u64 = 1 << (PACKED_FLAGS + 7);
const USED: u64 = 1 << (PACKED_FLAGS + 15);
const ID_SHIFT: u32 = 32;
const EVENT_DISABLE: u16 = 1;

/// What both directions share. Indexes run freely over two laps: bit `log2(size)` of one is the lap, so no index is ever
/// compared with one more than a lap away.
#[derive(Clone, Copy)]
struct Packed<'p> {
    place: Place<'p>,
    /// The next descriptor to be made available.
    head: u16,
    /// The next descriptor that comes back.
    seen: u16,
}

impl<'p> Packed<'p> {
    fn new(place: Place<'p>) -> Packed<'p> {
        for slot in 0..place.size {
            place.write_address(slot);
            place.memory.store_u64(place.desc_at(slot) + 8, 0, Relaxed);
        }
        place.write_tables(PACKED_FLAGS);
        place
            .memory
            .store_u16(place.avail() + 2, EVENT_DISABLE, Release);
        Packed {
            place,
            head: 0,
            seen: 0,
        }
    }

    /// The driver's flags of an index: its lap's wrap counter is 1 in the first.
    #[inline(always)]
    fn available(&self, index: u16) -> u64 {
        if index & self.place.size == 0 {
            AVAIL
        } else {
            USED
        }
    }

    #[inline(always)]
    fn word_at(&self, slot: u16) -> u32 {
        self.place.desc_at(slot) + 8
    }

    /// Makes `count` descriptors available: the flags of the first are written last.
    #[inline(always)]
    fn offer(&mut self, count: u16, word: u64, mut prepare: impl FnMut(&Memory, u16, u32)) {
        let memory = self.place.memory;
        let mut first = 0;
        for i in 0..count {
            let index = self.head.wrapping_add(i);
            let slot = self.place.slot(index);
            prepare(memory, i, self.place.frame(slot));
            self.place.write_address(slot);
            let word = word | u64::from(slot) << ID_SHIFT | self.available(index);
            if i == 0 {
                first = word;
            } else {
                memory.store_u64(self.word_at(slot), word, Relaxed);
            }
        }
        let slot = self.place.slot(self.head);
        memory.store_u64(self.word_at(slot), first, Release);
        self.head = self.head.wrapping_add(count);
        // Descriptors before flags: without it both sides can miss each other.
        fence(SeqCst);
        if memory.load_u16(self.place.used() + 2, Relaxed) != EVENT_DISABLE {
            self.place.wake();
        }
    }

    /// The second word of the next descriptor that comes back, once it has.
    #[inline(always)]
    fn used(&self, index: u16) -> Option<u64> {
        let slot = self.place.slot(index);
        let word = self.place.memory.load_u64(self.word_at(slot), Acquire);
        let wanted = match index & self.place.size == 0 {
            true => AVAIL | USED,
            false => 0,
        };
        (word & (AVAIL | USED) == wanted && index != self.head).then_some(word)
    }
}

/// Sends.
pub struct PackedOut<'p> {
    ring: Packed<'p>,
}

impl<'p> PackedOut<'p> {
    /// On an empty ring.
    #[must_use]
    pub(super) fn new(place: Place<'p>) -> PackedOut<'p> {
        PackedOut {
            ring: Packed::new(place),
        }
    }

    /// One used descriptor stands for all up to the one that it names.
    fn reclaim(&mut self) {
        let ring = &mut self.ring;
        while let Some(word) = ring.used(ring.seen) {
            let id = (word >> ID_SHIFT) as u16;
            let batch = ring.place.slot(id.wrapping_sub(ring.seen)) + 1;
            assert!(
                batch <= ring.head.wrapping_sub(ring.seen),
                "the switch returns buffers out of order"
            );
            ring.seen = ring.seen.wrapping_add(batch);
        }
    }
}

impl Outlet for PackedOut<'_> {
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
    fn send(&mut self, count: u16, size: u32, prepare: impl FnMut(&Memory, u16, u32)) -> bool {
        let free = |ring: &Packed<'_>| ring.place.size - ring.head.wrapping_sub(ring.seen);
        if free(&self.ring) < count {
            self.reclaim();
            if free(&self.ring) < count {
                return false;
            }
        }
        let word = self.ring.place.send_word(size, PACKED_FLAGS);
        self.ring.offer(count, word, prepare);
        true
    }

    fn is_drained(&mut self) -> bool {
        self.reclaim();
        self.ring.seen == self.ring.head
    }
}

/// Receives.
pub struct PackedIn<'p> {
    ring: Packed<'p>,
    mergeable: bool,
}

impl<'p> PackedIn<'p> {
    /// On an empty ring; offers every buffer.
    #[must_use]
    pub(super) fn new(place: Place<'p>, mergeable: bool) -> PackedIn<'p> {
        let mut ring = Packed::new(place);
        ring.offer(place.size, place.room_word(PACKED_FLAGS), |_, _, _| ());
        PackedIn { ring, mergeable }
    }
}

impl Inlet for PackedIn<'_> {
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

impl Written for PackedIn<'_> {
    #[inline(always)]
    fn take_written(&mut self, most: u16, mut look: impl FnMut(&Memory, u32, Option<u32>)) -> u16 {
        let ring = &mut self.ring;
        let mut count = 0;
        while count < most {
            let Some(word) = ring.used(ring.seen) else {
                break;
            };
            let slot = ring.place.slot(ring.seen);
            let written = ((word >> ID_SHIFT) as u16 == slot).then_some(word as u32);
            look(ring.place.memory, ring.place.frame(slot), written);
            ring.seen = ring.seen.wrapping_add(1);
            count += 1;
        }
        if count > 0 {
            let word = ring.place.room_word(PACKED_FLAGS);
            ring.offer(count, word, |_, _, _| ());
        }
        count
    }
}
