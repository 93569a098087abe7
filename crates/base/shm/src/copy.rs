//! Copies that race with other processes, in assembly: the compiler neither sees nor assumes anything about the bytes.
//!
//! # Model
//! Short copies (up to [`SNAP`] bytes) are two overlapping loads and stores of the widest register that fits; longer ones a loop
//! with an overlapping end. The instructions are those of one architecture, in a module of its own.
//!
//! # Synchronization
//! Ordinary stores, none of them non-temporal: a store with Release that follows a copy orders its bytes, as does a load with
//! Acquire before it.
//!
//! # Limits
//! Every function reads and writes exactly the bytes named: nothing beyond either end.

use std::sync::OnceLock;

use windlass_frame::SNAP;

#[cfg_attr(target_arch = "aarch64", path = "copy/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "copy/x86_64.rs")]
mod arch;

/// The instruction set that copies use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Isa {
    /// 16-byte registers: every x86-64 and aarch64.
    Base,
    /// 32-byte registers.
    Avx2,
    /// 64-byte registers (AVX-512 F, BW and VL).
    Avx512,
}

impl Isa {
    /// The best that this processor has, or less where `WINDLASS_ISA` (`base`, `avx2`) asks for it.
    pub fn detect() -> Isa {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(|| match std::env::var("WINDLASS_ISA").as_deref() {
            Ok("base") => Isa::Base,
            Ok("avx2") => arch::best().min(Isa::Avx2),
            _ => arch::best(),
        })
    }
}

/// 16-byte registers, any length from 16 on.
///
/// # Safety
/// As [`copy_through`], `len >= 16`.
#[inline(always)]
unsafe fn chunks16(mut dst: *mut u8, mut src: *const u8, mut len: usize) {
    while len > 32 {
        // SAFETY: at least 32 bytes remain on both sides.
        unsafe { arch::pair16(dst, src, 32) };
        (dst, src, len) = (dst.wrapping_add(32), src.wrapping_add(32), len - 32);
    }
    if len >= 16 {
        // SAFETY: 16 to 32 bytes remain.
        unsafe { arch::pair16(dst, src, len) };
    } else if len > 0 {
        // SAFETY: the last 16 bytes end where the copy ends and begin inside what was copied, since the whole was at
        // least 16 bytes long.
        unsafe {
            arch::pair16(dst.wrapping_sub(16 - len), src.wrapping_sub(16 - len), 16);
        }
    }
}

/// Copies up to [`SNAP`] bytes out of foreign memory; `ISA` is an [`Isa`] as a number, chosen once for a burst.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`, `len <= SNAP`.
#[inline(always)]
pub unsafe fn snapshot<const ISA: u8>(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(len <= SNAP);
    // SAFETY: the caller's promise.
    if unsafe { arch::wide::<ISA>(dst, src, len) } {
        return;
    }
    if len >= 16 {
        // SAFETY: len >= 16.
        unsafe { chunks16(dst, src, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { arch::tiny(dst, src, len) };
    }
}

/// Copies `len` bytes between memory that others may be writing.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`, the two must not overlap, and no Rust reference may exist
/// to bytes that another process writes.
#[inline]
pub unsafe fn copy_through(dst: *mut u8, src: *const u8, len: usize) {
    if len <= SNAP {
        match Isa::detect() {
            // SAFETY: the caller's promise, `len <= SNAP`.
            Isa::Avx512 => unsafe { snapshot::<{ Isa::Avx512 as u8 }>(dst, src, len) },
            // SAFETY: the same.
            _ => unsafe { snapshot::<{ Isa::Base as u8 }>(dst, src, len) },
        }
        return;
    }
    // SAFETY: the caller's promise, and more than SNAP bytes.
    unsafe { arch::long(dst, src, len) }
}

/// Copies foreign bytes into private memory.
///
/// # Safety
/// As [`copy_through`], `dst` private.
#[inline]
pub unsafe fn copy_in(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_through(dst, src, len) }
}

/// Copies private bytes into foreign memory.
///
/// # Safety
/// As [`copy_through`], `src` private.
#[inline]
pub unsafe fn copy_out(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_through(dst, src, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn check(len: usize, off: usize, run: impl Fn(*mut u8, *const u8, usize)) {
        let src: Vec<u8> = (0..len + off + 64).map(|i| (i * 7 + 3) as u8).collect();
        let mut dst = vec![0xa5u8; len + off + 64];
        run(dst[off..].as_mut_ptr(), src[off..].as_ptr(), len);
        assert_eq!(&dst[off..off + len], &src[off..off + len], "len {len}");
        assert!(dst[..off].iter().all(|b| *b == 0xa5), "before, len {len}");
        assert!(
            dst[off + len..].iter().all(|b| *b == 0xa5),
            "behind, len {len}"
        );
    }

    /// Every length copies exactly its bytes and touches none before or behind them.
    #[test]
    fn every_length_is_exact() {
        for len in (0..700).chain([1517, 1518, 4095, 4096, 4097, 65_549]) {
            // SAFETY: `check` gives buffers longer than `len`.
            check(len, 3, |d, s, n| unsafe { copy_through(d, s, n) });
        }
        for len in 0..=SNAP {
            // SAFETY: as above, len <= SNAP.
            check(len, 1, |d, s, n| unsafe { snapshot::<0>(d, s, n) });
            if Isa::detect() == Isa::Avx512 {
                // SAFETY: as above, and the processor has the instructions.
                check(len, 1, |d, s, n| unsafe { snapshot::<2>(d, s, n) });
            }
        }
        for len in 16..300 {
            // SAFETY: as above.
            check(len, 5, |d, s, n| unsafe { chunks16(d, s, n) });
        }
    }
}
