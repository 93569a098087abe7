//! The framed call's arguments: vectors, how many of them make a frame, and what is wrong with them.
//!
//! Source: illumos `uts/common/sys/frameio.h` and `uts/common/io/vnd/frameio.c`, version 1, with the same checks.

use core::ffi::c_void;
use core::marker::PhantomData;

use windlass_frame::FRAME_MAX;
use windlass_sys::Errno;

/// The version of [`FrameIo`].
pub const FRAMEIO_VERSION: u32 = 1;
/// Most vectors in one call.
pub const FRAMEIO_NVECS_MAX: usize = 32;
/// Shortest frame that is written: an Ethernet header.
pub const FRAME_MIN: usize = 14;

/// One vector: a buffer, its size, and on return how much of it was used.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FrameVec {
    /// The buffer.
    pub buf: *mut c_void,
    /// Bytes of it: room for a read, data for a write.
    pub buflen: usize,
    /// Bytes read into it or written from it. Undefined after an error.
    pub actlen: usize,
}

/// The head of a C program's call. `nvecs` vectors follow it in memory.
#[derive(Debug)]
#[repr(C)]
pub struct FrameIo {
    /// [`FRAMEIO_VERSION`].
    pub version: u32,
    /// Vectors that make one frame.
    pub nvpf: u32,
    /// Vectors in all: a multiple of `nvpf`, at most [`FRAMEIO_NVECS_MAX`]. On return, those that were used.
    pub nvecs: u32,
    /// The first of them.
    pub vecs: [FrameVec; 0],
}

/// A vector to write from.
#[derive(Debug)]
#[repr(transparent)]
pub struct WriteVec<'a>(FrameVec, PhantomData<&'a [u8]>);

/// A vector to read into.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadVec<'a>(FrameVec, PhantomData<&'a mut [u8]>);

impl<'a> WriteVec<'a> {
    /// The whole of `data`.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        let buf = data.as_ptr().cast_mut().cast();
        WriteVec(
            FrameVec {
                buf,
                buflen: data.len(),
                actlen: 0,
            },
            PhantomData,
        )
    }

    /// Bytes that were written of it.
    #[must_use]
    pub fn written(&self) -> usize {
        self.0.actlen
    }

    pub(crate) fn raw<'v>(vecs: &'v mut [WriteVec<'_>]) -> &'v mut [FrameVec] {
        // SAFETY: the same vectors, whose type is a transparent one around this.
        unsafe { core::slice::from_raw_parts_mut(vecs.as_mut_ptr().cast(), vecs.len()) }
    }
}

impl<'a> ReadVec<'a> {
    /// The whole of `room`.
    #[must_use]
    pub fn new(room: &'a mut [u8]) -> Self {
        let buf = room.as_mut_ptr().cast();
        ReadVec(
            FrameVec {
                buf,
                buflen: room.len(),
                actlen: 0,
            },
            PhantomData,
        )
    }

    /// What was read into it.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let len = self.0.actlen.min(self.0.buflen);
        // SAFETY: the first bytes of the slice that this was made of, which nobody else has while this borrows it.
        unsafe { core::slice::from_raw_parts(self.0.buf.cast(), len) }
    }

    pub(crate) fn raw<'v>(vecs: &'v mut [ReadVec<'_>]) -> &'v mut [FrameVec] {
        // SAFETY: the same vectors, whose type is a transparent one around this.
        unsafe { core::slice::from_raw_parts_mut(vecs.as_mut_ptr().cast(), vecs.len()) }
    }
}

/// The vectors of one call, checked.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) nvpf: usize,
    pub(crate) vecs: &'a mut [FrameVec],
}

impl<'a> Call<'a> {
    /// Checks what `frameio_hdr_copyin` checks, in its order.
    ///
    /// # Errors
    /// `EINVAL`: no vector or more than [`FRAMEIO_NVECS_MAX`], `nvpf` of 0, a count that is no multiple of it, a vector that is
    /// NULL or empty.
    pub(crate) fn check(nvpf: usize, vecs: &'a mut [FrameVec]) -> Result<Call<'a>, Errno> {
        let count = vecs.len();
        let is_good =
            (1..=FRAMEIO_NVECS_MAX).contains(&count) && nvpf != 0 && count.is_multiple_of(nvpf);
        if !is_good || vecs.iter().any(|vec| vec.buf.is_null() || vec.buflen == 0) {
            return Err(Errno::INVAL);
        }
        Ok(Call { nvpf, vecs })
    }

    /// The vectors of each frame.
    #[inline(always)]
    pub(crate) fn frames(&mut self) -> core::slice::ChunksExactMut<'_, FrameVec> {
        self.vecs.chunks_exact_mut(self.nvpf)
    }
}

/// Bytes of all vectors of a frame.
#[inline(always)]
pub(crate) fn length(group: &[FrameVec]) -> usize {
    group
        .iter()
        .fold(0, |sum: usize, vec| sum.saturating_add(vec.buflen))
}

/// Whether a frame of so many bytes can be written.
///
/// # Errors
/// `EINVAL` for less than an Ethernet header, `EOVERFLOW` for more than the bridge takes.
#[inline(always)]
pub(crate) fn check_length(bytes: usize) -> Result<(), Errno> {
    match bytes {
        0..FRAME_MIN => Err(Errno::INVAL),
        FRAME_MIN..=FRAME_MAX => Ok(()),
        _ => Err(Errno::OVERFLOW),
    }
}
