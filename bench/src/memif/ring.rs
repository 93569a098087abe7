//! One ring's header and descriptors in shared memory.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use windlass_attach::memif::layout::{COOKIE, Desc, RING_FLAG_MASK_INT, RingPlace};

use crate::memory::Memory;

/// A ring at a checked place in a region. Which side may move which index is the owner's business.
#[derive(Clone, Copy)]
pub struct Ring<'m> {
    memory: &'m Memory,
    place: RingPlace,
}

impl<'m> Ring<'m> {
    /// The ring at `place`, which must have been checked against this region.
    #[must_use]
    pub fn new(memory: &'m Memory, place: RingPlace) -> Ring<'m> {
        Ring { memory, place }
    }

    /// Writes an empty ring: cookie, flags, both indexes.
    pub fn clear(&self) {
        self.memory.store_u16(self.place.flags_at(), 0, Relaxed);
        self.memory.store_u16(self.place.head_at(), 0, Relaxed);
        self.memory.store_u16(self.place.tail_at(), 0, Relaxed);
        self.memory
            .store_u32(self.place.cookie_at(), COOKIE, Release);
    }

    /// Whether the cookie is there.
    #[must_use]
    pub fn has_cookie(&self) -> bool {
        self.memory.load_u32(self.place.cookie_at(), Acquire) == COOKIE
    }

    /// Number of descriptors.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u16 {
        self.place.size()
    }

    /// The client's index.
    #[must_use]
    #[inline]
    pub fn head(&self) -> u16 {
        self.memory.load_u16(self.place.head_at(), Acquire)
    }

    /// Publishes everything written before at the client's index.
    #[inline]
    pub fn set_head(&self, head: u16) {
        self.memory.store_u16(self.place.head_at(), head, Release);
    }

    /// The server's index.
    #[must_use]
    #[inline]
    pub fn tail(&self) -> u16 {
        self.memory.load_u16(self.place.tail_at(), Acquire)
    }

    /// Publishes everything written before at the server's index.
    #[inline]
    pub fn set_tail(&self, tail: u16) {
        self.memory.store_u16(self.place.tail_at(), tail, Release);
    }

    /// Whether the consumer asked for an interrupt.
    #[must_use]
    #[inline]
    pub fn wants_interrupt(&self) -> bool {
        self.memory.load_u16(self.place.flags_at(), Relaxed) & RING_FLAG_MASK_INT == 0
    }

    /// As consumer: no interrupts, this ring is polled.
    pub fn mask_interrupt(&self) {
        self.memory
            .store_u16(self.place.flags_at(), RING_FLAG_MASK_INT, Release);
    }

    /// The whole descriptor at a free-running index.
    #[must_use]
    #[inline]
    pub fn desc(&self, index: u16) -> Desc {
        let at = self.place.desc_at(index);
        let low = self.memory.load_u64(at, Relaxed);
        let high = self.memory.load_u64(at + 8, Relaxed);
        Desc::from_words([low, high])
    }

    /// Writes the whole descriptor at a free-running index.
    #[inline]
    pub fn set_desc(&self, index: u16, desc: Desc) {
        let [low, high] = desc.to_words();
        let at = self.place.desc_at(index);
        self.memory.store_u64(at, low, Relaxed);
        self.memory.store_u64(at + 8, high, Relaxed);
    }

    /// Length, region and flags of the descriptor at a free-running index; its offset and metadata stay unread.
    #[must_use]
    #[inline]
    pub fn desc_start(&self, index: u16) -> Desc {
        let low = self.memory.load_u64(self.place.desc_at(index), Relaxed);
        Desc::from_words([low, 0])
    }

    /// Writes length, region and flags at a free-running index; the offset and metadata that are there stay.
    #[inline]
    pub fn set_desc_start(&self, index: u16, desc: Desc) {
        let [low, _] = desc.to_words();
        self.memory
            .store_u64(self.place.desc_at(index), low, Relaxed);
    }
}
