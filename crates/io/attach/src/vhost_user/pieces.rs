//! Checked pieces of a guest's memory, one after the other: read from the front, or written.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use windlass_shm::{copy_in, copy_through};

use super::ring::{CHAIN_MAX, Piece};

/// The pieces of one chain, read from the front.
pub(super) struct Gather {
    list: [Piece; CHAIN_MAX],
    count: usize,
    total: u64,
    first: usize,
    /// There were more than [`CHAIN_MAX`].
    over: bool,
}

impl Gather {
    #[inline(always)]
    pub(super) fn new() -> Gather {
        let none = Piece {
            ptr: core::ptr::null_mut(),
            len: 0,
            gpa: 0,
        };
        Gather {
            list: [none; CHAIN_MAX],
            count: 0,
            total: 0,
            first: 0,
            over: false,
        }
    }

    /// Adds a piece behind the others, unless there are [`CHAIN_MAX`]: pieces of descriptors behind an IOMMU are more
    /// than descriptors.
    #[inline(always)]
    pub(super) fn push(&mut self, piece: Piece) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = piece;
            self.count += 1;
            self.total += u64::from(piece.len);
        } else {
            self.over = true;
        }
    }

    /// Whether there was no room for a piece.
    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Pieces, and bytes in all of them.
    #[inline(always)]
    pub(super) fn size(&self) -> (usize, u64) {
        (self.count, self.total)
    }

    /// Takes as many bytes as `to` has from the front; without `read` they are passed over.
    pub(super) fn take(&mut self, mut to: &mut [u8], read: bool) {
        while !to.is_empty() {
            let Some(piece) = self
                .list
                .get_mut(self.first)
                .filter(|_| self.first < self.count)
            else {
                return;
            };
            let n = to.len().min(piece.len as usize);
            let (now, later) = to.split_at_mut(n);
            if read {
                // SAFETY: `n` bytes of a checked piece, into as many of our own.
                unsafe { copy_in(now.as_mut_ptr(), piece.ptr, n) };
            }
            to = later;
            piece.ptr = piece.ptr.wrapping_add(n);
            piece.len -= n as u32;
            if piece.len == 0 {
                self.first += 1;
            }
        }
    }

    /// What was not taken.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Piece> {
        self.list.iter().take(self.count).skip(self.first)
    }
}

/// Pieces that are written from front to back.
pub(super) struct Scatter<'a> {
    at: *mut u8,
    left: usize,
    next: &'a [Piece],
}

impl<'a> Scatter<'a> {
    pub(super) fn over(pieces: &'a [Piece]) -> Scatter<'a> {
        Scatter {
            at: core::ptr::null_mut(),
            left: 0,
            next: pieces,
        }
    }

    /// Bytes that are left of the piece at hand.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// How many of `want` bytes can be written at `at`, which then is not null unless that is 0.
    #[inline(always)]
    fn room(&mut self, want: usize) -> usize {
        while self.left == 0
            && want != 0
            && let Some((first, rest)) = self.next.split_first()
        {
            (self.at, self.left, self.next) = (first.ptr, first.len as usize, rest);
        }
        want.min(self.left)
    }

    #[inline(always)]
    fn advance(&mut self, n: usize) {
        self.at = self.at.wrapping_add(n);
        self.left -= n;
    }

    /// Writes `len` bytes that may be read at `from`, or as many as there is room for.
    ///
    /// # Safety
    /// `len` bytes must be readable at `from`: private, or borrowed for the section.
    #[inline(always)]
    pub(super) unsafe fn put(&mut self, mut from: *const u8, mut len: usize) {
        loop {
            let n = self.room(len);
            if n == 0 {
                return;
            }
            // SAFETY: `n` bytes that the caller may read, into a checked piece with as much room.
            unsafe { copy_through(self.at, from, n) };
            self.advance(n);
            (from, len) = (from.wrapping_add(n), len - n);
        }
    }

    /// Leaves `len` bytes as they are.
    pub(super) fn pass(&mut self, mut len: usize) {
        loop {
            let n = self.room(len);
            if n == 0 {
                return;
            }
            self.advance(n);
            len -= n;
        }
    }
}
