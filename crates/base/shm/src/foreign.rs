//! Pieces of memory that somebody else may be writing.

use core::marker::PhantomData;

use windlass_sync::qsbr::Section;

use crate::copy;

/// A readable piece of foreign memory, valid for one quiescent section.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'q> {
    ptr: *const u8,
    len: u32,
    section: PhantomData<&'q ()>,
}

impl<'q> Foreign<'q> {
    /// A piece of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay mapped and readable until the section ends.
    #[inline(always)]
    pub unsafe fn at(_section: &'q Section<'_>, ptr: *const u8, len: u32) -> Foreign<'q> {
        Foreign {
            ptr,
            len,
            section: PhantomData,
        }
    }

    /// Private memory in the place of foreign memory: frames that waited in a buffer of ours.
    #[inline]
    pub fn private(bytes: &'q [u8]) -> Foreign<'q> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Foreign {
            ptr: bytes.as_ptr(),
            len,
            section: PhantomData,
        }
    }

    /// An empty piece.
    #[inline(always)]
    pub const fn empty() -> Foreign<'q> {
        Foreign {
            ptr: core::ptr::NonNull::dangling().as_ptr(),
            len: 0,
            section: PhantomData,
        }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for system calls that take the bytes as they are. Not to be dereferenced.
    #[inline(always)]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The first `n` bytes and the rest; all and nothing when `n` is beyond the end.
    #[inline]
    pub fn split_at(self, n: usize) -> (Foreign<'q>, Foreign<'q>) {
        let n = n.min(self.len as usize);
        let rest = Foreign {
            ptr: self.ptr.wrapping_add(n),
            len: self.len - n as u32,
            section: PhantomData,
        };
        (
            Foreign {
                ptr: self.ptr,
                len: n as u32,
                section: PhantomData,
            },
            rest,
        )
    }

    /// Copies from the start into `to`; returns how many bytes that were.
    #[inline]
    pub fn read(&self, to: &mut [u8]) -> usize {
        let n = self.len().min(to.len());
        // SAFETY: `n` bytes are readable at `ptr` (kept by whoever made the slice, for `'q`), and
        // `to` is ours and at least that long.
        unsafe { copy::copy_in(to.as_mut_ptr(), self.ptr, n) };
        n
    }
}

/// A writable piece of foreign memory, valid for one quiescent section.
#[derive(Debug)]
pub struct ForeignMut<'q> {
    ptr: *mut u8,
    len: u32,
    section: PhantomData<&'q ()>,
}

impl<'q> ForeignMut<'q> {
    /// A piece of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay mapped and writable until the section ends, and must not be memory to
    /// which this process holds a Rust reference.
    #[inline(always)]
    pub unsafe fn at(_section: &'q Section<'_>, ptr: *mut u8, len: u32) -> ForeignMut<'q> {
        ForeignMut {
            ptr,
            len,
            section: PhantomData,
        }
    }

    /// Bytes that are still to be written.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no room.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the next byte.
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// Writes private bytes and moves on; returns how many fitted.
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> usize {
        let n = self.len().min(from.len());
        // SAFETY: `n` bytes are writable at `ptr` (kept by whoever made the slice, for `'q`), and
        // `from` is ours and at least that long.
        unsafe { copy::copy_out(self.ptr, from.as_ptr(), n) };
        self.advance(n);
        n
    }

    /// Copies foreign bytes and moves on; returns how many fitted.
    #[inline]
    pub fn copy(&mut self, from: Foreign<'q>) -> usize {
        let n = self.len().min(from.len());
        // SAFETY: both pieces are at least `n` bytes long and stay mapped for `'q`.
        unsafe { copy::copy_through(self.ptr, from.as_ptr(), n) };
        self.advance(n);
        n
    }

    #[inline(always)]
    fn advance(&mut self, n: usize) {
        self.ptr = self.ptr.wrapping_add(n);
        self.len -= n as u32;
    }
}
