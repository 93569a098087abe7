//! One ring: entries between an index of the kernel's and one of ours.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::vectored::last_errno;

/// `XDP_RING_NEED_WAKEUP`: the kernel wants to be called.
const NEED_WAKEUP: u32 = 1;

/// An entry of a receive or transmit ring (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Where the frame begins, from the memory's first byte.
    pub address: u64,
    /// Its bytes.
    pub len: u32,
    /// `XDP_PKT_CONTD` and others; 0 for a whole frame.
    pub options: u32,
}

/// One of a socket's rings, of entries of `WORDS` words: 1 (a frame's address) or 2 (a [`Descriptor`]).
#[derive(Debug)]
pub struct Ring<const WORDS: usize> {
    base: *mut libc::c_void,
    bytes: usize,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *const AtomicU64,
    size: u32,
}

// SAFETY: the memory belongs to no thread, and is accessed by atomics only.
unsafe impl<const WORDS: usize> Send for Ring<WORDS> {}
// SAFETY: as above.
unsafe impl<const WORDS: usize> Sync for Ring<WORDS> {}

impl<const WORDS: usize> Ring<WORDS> {
    /// Maps a ring of `size` entries of a socket: `at` says where its producer, consumer, flags and entries lie.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        place: i64,
        at: [usize; 4],
        size: u32,
    ) -> Result<Self, Errno> {
        Self::at(Some((socket, place)), at, size)
    }

    /// A ring in private memory, in the place of a socket's: for whoever plays the kernel.
    ///
    /// # Errors
    /// `EINVAL` for a size that is no power of two; `ENOMEM`.
    pub fn private(size: u32) -> Result<Self, Errno> {
        Self::at(None, [0, 64, 128, 192], size)
    }

    fn at(socket: Option<(BorrowedFd<'_>, i64)>, at: [usize; 4], size: u32) -> Result<Self, Errno> {
        let [producer, consumer, flags, entries] = at;
        let is_aligned = [producer, consumer, flags].iter().all(|at| at % 4 == 0);
        let need = WORDS.checked_mul(8 * size as usize);
        let need = need.and_then(|need| need.checked_add(entries));
        let bytes = need.ok_or(Errno::INVAL)?;
        let fits = [producer, consumer, flags].iter().all(|at| at + 4 <= bytes);
        if !size.is_power_of_two() || !is_aligned || !fits || !entries.is_multiple_of(8) {
            return Err(Errno::INVAL);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, place, flags_of_map) = match socket {
            Some((fd, place)) => (fd.as_raw_fd(), place, libc::MAP_SHARED | libc::MAP_POPULATE),
            None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory.
        let base = unsafe { libc::mmap(null, bytes, protection, flags_of_map, fd, place) };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let word = |at: usize| base.cast::<AtomicU32>().wrapping_byte_add(at);
        Ok(Ring {
            base,
            bytes,
            // The mapping begins on a page, and the offsets were checked to be multiples of each word's size.
            producer: word(producer),
            consumer: word(consumer),
            flags: word(flags),
            entries: base.cast::<AtomicU64>().wrapping_byte_add(entries),
            size,
        })
    }

    /// Entries.
    #[inline(always)]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How far the side that puts entries in has come.
    #[inline(always)]
    #[must_use]
    pub fn producer(&self) -> u32 {
        // SAFETY: inside the mapping, which lives as long as this, and aligned.
        let word = unsafe { &*self.producer };
        word.load(Ordering::Acquire)
    }

    /// How far the side that takes entries out has come.
    #[inline(always)]
    #[must_use]
    pub fn consumer(&self) -> u32 {
        // SAFETY: as in `producer`.
        let word = unsafe { &*self.consumer };
        word.load(Ordering::Acquire)
    }

    /// Publishes the entries before `index`.
    #[inline(always)]
    pub fn set_producer(&self, index: u32) {
        // SAFETY: as in `producer`.
        let word = unsafe { &*self.producer };
        word.store(index, Ordering::Release);
    }

    /// Gives back the entries before `index`.
    #[inline(always)]
    pub fn set_consumer(&self, index: u32) {
        // SAFETY: as in `producer`.
        let word = unsafe { &*self.consumer };
        word.store(index, Ordering::Release);
    }

    /// Whether the kernel wants to be called when there are new entries.
    #[inline(always)]
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let word = unsafe { &*self.flags };
        word.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// What the kernel does: says whether it wants to be called.
    pub fn set_needs_wakeup(&self, needs: bool) {
        // SAFETY: as in `producer`.
        let word = unsafe { &*self.flags };
        word.store(if needs { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    }

    /// The entry of an index.
    #[inline(always)]
    fn entry(&self, index: u32) -> &[AtomicU64; WORDS] {
        let slot = (index & (self.size - 1)) as usize;
        let at = self.entries.wrapping_add(slot * WORDS);
        // SAFETY: the slot is below the size, for which the mapping has room; it lives as long as this, and is aligned.
        unsafe { &*at.cast::<[AtomicU64; WORDS]>() }
    }
}

impl Ring<1> {
    /// The address at an index.
    #[inline(always)]
    #[must_use]
    pub fn address(&self, index: u32) -> u64 {
        let [address] = self.entry(index);
        address.load(Ordering::Relaxed)
    }

    /// Writes it.
    #[inline(always)]
    pub fn set_address(&self, index: u32, to: u64) {
        let [address] = self.entry(index);
        address.store(to, Ordering::Relaxed);
    }
}

impl Ring<2> {
    /// The descriptor at an index.
    #[inline(always)]
    #[must_use]
    pub fn descriptor(&self, index: u32) -> Descriptor {
        let [address, rest] = self.entry(index);
        let rest = rest.load(Ordering::Relaxed);
        Descriptor {
            address: address.load(Ordering::Relaxed),
            len: rest as u32,
            options: (rest >> 32) as u32,
        }
    }

    /// Writes it.
    #[inline(always)]
    pub fn set_descriptor(&self, index: u32, to: Descriptor) {
        let [address, rest] = self.entry(index);
        address.store(to.address, Ordering::Relaxed);
        let word = u64::from(to.len) | u64::from(to.options) << 32;
        rest.store(word, Ordering::Relaxed);
    }
}

impl<const WORDS: usize> Drop for Ring<WORDS> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this ring's own, and no reference to it is left.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever an index is, an entry comes back from where it was put, and the last word of the ring is its own.
    #[test]
    fn entries_lie_in_the_ring() {
        let (free, frames) = (Ring::<1>::private(8), Ring::<2>::private(512));
        let (free, frames) = (free.expect("memory"), frames.expect("memory"));
        for index in [0, 7, 8, 511, u32::MAX - 1, u32::MAX] {
            free.set_address(index, u64::from(index) << 11);
            assert_eq!(free.address(index), u64::from(index) << 11);
            assert_eq!(free.address(index.wrapping_add(8)), u64::from(index) << 11);
            let descriptor = Descriptor {
                address: u64::MAX - u64::from(index),
                len: index,
                options: 1,
            };
            frames.set_descriptor(index, descriptor);
            assert_eq!(frames.descriptor(index), descriptor);
        }
        free.set_producer(u32::MAX);
        frames.set_consumer(3);
        assert_eq!(
            (free.producer(), free.consumer(), frames.consumer()),
            (u32::MAX, 0, 3)
        );
        frames.set_needs_wakeup(true);
        assert!(frames.needs_wakeup() && !free.needs_wakeup());
        assert!(Ring::<1>::private(6).is_err() && Ring::<1>::private(0).is_err());
    }
}
