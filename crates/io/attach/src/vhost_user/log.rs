//! Which pages of a guest were written: the bitmap that a front end reads while it moves the guest to another host.
//!
//! # Model
//! One bit for each 4 KiB of guest addresses, from address 0, in the order of bytes and of bits in them: what
//! `VHOST_USER_SET_LOG_BASE` shares and QEMU clears word by word. A bit is set behind the bytes that it stands for and
//! before the guest is told of them, by an atomic OR, which is also the fence that keeps the bytes in front: who
//! clears the bit afterwards copies the new bytes.
//!
//! # Failure modes
//! A page behind the end of the bitmap has no bit and is passed over: what the front end gets wrong by announcing
//! too small a bitmap is its own guest.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use windlass_shm::{MapError, Mapping};

use super::guest_map::{Extent, each_real};

/// Bytes of guest memory that one bit stands for (`VHOST_LOG_PAGE`).
pub const LOG_PAGE: u64 = 4096;
const SHIFT: u32 = LOG_PAGE.trailing_zeros();

/// The bitmap of one guest.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Arc<Mapping>,
    first: u64,
    bytes: u64,
    /// What is marked is an address behind an IOMMU, which these translate.
    behind: Option<Arc<[Extent]>>,
}

impl DirtyLog {
    /// Maps `len` bytes of bitmap at `offset` of the file.
    ///
    /// # Errors
    /// As [`Mapping::foreign`]; [`MapError::Length`] also where `offset + len` cannot be formed or `len` is 0.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<DirtyLog, MapError> {
        let end = offset.checked_add(len).filter(|_| len != 0);
        let mapping = Mapping::foreign(fd, end.ok_or(MapError::Length(len))?)?;
        Ok(DirtyLog {
            mapping: Arc::new(mapping),
            first: offset,
            bytes: len,
            behind: None,
        })
    }

    /// The same bitmap for addresses behind an IOMMU.
    pub(super) fn translated_by(&self, extents: Arc<[Extent]>) -> DirtyLog {
        DirtyLog {
            mapping: self.mapping.clone(),
            first: self.first,
            bytes: self.bytes,
            behind: Some(extents),
        }
    }

    /// Sets the bits of the pages that `len` bytes at guest address `gpa` touch.
    #[inline]
    pub fn mark(&self, gpa: u64, len: u64) {
        match &self.behind {
            None => self.mark_real(gpa, len),
            Some(extents) => each_real(extents, gpa, len, |gpa, len| self.mark_real(gpa, len)),
        }
    }

    fn mark_real(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len.wrapping_sub(1)) >> SHIFT;
        for page in gpa >> SHIFT..=last {
            let byte = page / 8;
            if byte >= self.bytes {
                return;
            }
            let Some(p) = self.mapping.find(self.first.wrapping_add(byte), 1) else {
                return;
            };
            // SAFETY: a byte inside the mapping, which `self` keeps; an atomic may be shared with any other process.
            let word = unsafe { AtomicU8::from_ptr(p) };
            word.fetch_or(1 << (page % 8), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use windlass_shm::HugePages;

    /// Exactly the pages that a range touches are set, at an odd place of the file too; nothing outside the bitmap
    /// is written, however far the range goes.
    #[test]
    fn bits_of_pages() {
        let (memory, file) = Mapping::create("dirty-log", 4096, HugePages::No).unwrap();
        let log = DirtyLog::new(file.as_fd(), 3, 2).unwrap();
        let bytes = || {
            let mut all = [0; 8];
            assert!(memory.read(0, &mut all));
            all
        };
        log.mark(5 * LOG_PAGE, 0);
        assert_eq!(bytes(), [0; 8]);
        log.mark(LOG_PAGE - 1, 1);
        log.mark(2 * LOG_PAGE - 1, 2);
        assert_eq!(bytes(), [0, 0, 0, 0b111, 0, 0, 0, 0]);
        log.mark(7 * LOG_PAGE, 3 * LOG_PAGE);
        assert_eq!(bytes(), [0, 0, 0, 0b1000_0111, 0b11, 0, 0, 0]);
        log.mark(15 * LOG_PAGE, u64::MAX);
        log.mark(u64::MAX, u64::MAX);
        log.mark(16 * LOG_PAGE, 1);
        assert_eq!(bytes(), [0, 0, 0, 0b1000_0111, 0b1000_0011, 0, 0, 0]);
    }

    /// A bitmap that the file does not have is refused.
    #[test]
    fn bad_places_are_refused() {
        let (_, file) = Mapping::create("dirty-log", 4096, HugePages::No).unwrap();
        for (offset, len) in [(0, 0), (4096, 1), (u64::MAX, 2), (1, 4096)] {
            assert!(DirtyLog::new(file.as_fd(), offset, len).is_err());
        }
    }
}
