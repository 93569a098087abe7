//! Copies that race with other processes, in assembly: the compiler neither sees nor assumes anything about the bytes.
//!
//! # Model
//! Short copies (up to [`SNAP`] bytes) are two overlapping loads and stores of the widest register
//! that fits; longer ones a loop of 256 bytes an iteration with an overlapping end; from
//! [`REP_MIN`] bytes `rep movsb`, which needs no read-for-ownership of whole destination lines.
//! AVX-512 code uses the registers 16 to 31 only, which compiled code for the baseline target
//! never touches and whose upper halves cost no transition; AVX2 code ends with `vzeroupper`.
//!
//! # Limits
//! Every function reads and writes exactly the bytes named: nothing beyond either end.

use core::arch::asm;
use std::sync::OnceLock;

use windlass_frame::SNAP;

/// Bytes from which `rep movsb` is used.
const REP_MIN: usize = 4096;

/// The instruction set that copies use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Isa {
    /// 16-byte registers: every x86-64.
    Sse2,
    /// 32-byte registers.
    Avx2,
    /// 64-byte registers (AVX-512 F, BW and VL).
    Avx512,
}

impl Isa {
    /// The best that this processor has, or less where `WINDLASS_ISA` (`sse2`, `avx2`) asks for it.
    pub fn detect() -> Isa {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let best = if is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512f")
            {
                Isa::Avx512
            } else if is_x86_feature_detected!("avx2") {
                Isa::Avx2
            } else {
                Isa::Sse2
            };
            match std::env::var("WINDLASS_ISA").as_deref() {
                Ok("sse2") => Isa::Sse2,
                Ok("avx2") => best.min(Isa::Avx2),
                _ => best,
            }
        })
    }
}

macro_rules! pair {
    ($name:ident, $width:literal, $mov:literal, $a:literal, $b:literal $(, $clobber:tt)*) => {
        /// Copies `len` bytes, at least one and at most two registers full, by the first and the last register.
        ///
        /// # Safety
        /// `len` bytes must be readable at `src` and writable at `dst`; the width of one register
        /// `<= len <=` that of two.
        #[inline(always)]
        unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
            // SAFETY: both accesses of each side lie in the first and last register's width of `len` bytes (caller).
            unsafe {
                asm!(
                    concat!($mov, " ", $a, ", [{s}]"),
                    concat!($mov, " ", $b, ", [{s} + {n} - ", $width, "]"),
                    concat!($mov, " [{d}], ", $a),
                    concat!($mov, " [{d} + {n} - ", $width, "], ", $b),
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                    $( out($clobber) _, )*
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

pair!(pair16, "16", "movdqu", "xmm0", "xmm1", "xmm0", "xmm1");
#[cfg(not(target_feature = "avx512f"))]
pair!(pair32_avx512, "32", "vmovdqu64", "ymm16", "ymm17");
#[cfg(not(target_feature = "avx512f"))]
pair!(pair64_avx512, "64", "vmovdqu64", "zmm16", "zmm17");
#[cfg(target_feature = "avx512f")]
pair!(
    pair32_avx512,
    "32",
    "vmovdqu64",
    "ymm16",
    "ymm17",
    "xmm16",
    "xmm17"
);
#[cfg(target_feature = "avx512f")]
pair!(
    pair64_avx512,
    "64",
    "vmovdqu64",
    "zmm16",
    "zmm17",
    "xmm16",
    "xmm17"
);

/// Copies exactly 64 bytes by one register.
///
/// # Safety
/// 64 bytes must be readable at `src` and writable at `dst`.
#[inline(always)]
unsafe fn one64_avx512(dst: *mut u8, src: *const u8) {
    #[cfg(not(target_feature = "avx512f"))]
    // SAFETY: one access of 64 bytes on each side (caller); compiled code for this target never uses the register.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{s}]", "vmovdqu64 [{d}], zmm16",
            s = in(reg) src, d = in(reg) dst,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(target_feature = "avx512f")]
    // SAFETY: one access of 64 bytes on each side (caller).
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{s}]", "vmovdqu64 [{d}], zmm16",
            s = in(reg) src, d = in(reg) dst, out("xmm16") _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies fewer than 16 bytes.
///
/// # Safety
/// As [`copy_through`].
#[inline(always)]
unsafe fn tiny(dst: *mut u8, src: *const u8, len: usize) {
    if len >= 8 {
        // SAFETY: two overlapping accesses of eight bytes inside `len` bytes (caller).
        unsafe {
            asm!(
                "mov {a}, [{s}]", "mov {b}, [{s} + {n} - 8]",
                "mov [{d}], {a}", "mov [{d} + {n} - 8], {b}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags)
            );
        }
    } else {
        // SAFETY: `rep movsb` touches exactly `len` bytes on each side (caller), and the direction flag is clear by the
        // calling convention.
        unsafe { rep(dst, src, len) };
    }
}

/// `rep movsb`.
///
/// # Safety
/// As [`copy_through`].
#[inline(always)]
unsafe fn rep(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: exactly `len` bytes on each side (caller).
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") dst => _, inout("rsi") src => _, inout("rcx") len => _,
            options(nostack, preserves_flags)
        );
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
        unsafe { pair16(dst, src, 32) };
        (dst, src, len) = (dst.wrapping_add(32), src.wrapping_add(32), len - 32);
    }
    if len >= 16 {
        // SAFETY: 16 to 32 bytes remain.
        unsafe { pair16(dst, src, len) };
    } else if len > 0 {
        // SAFETY: the last 16 bytes end where the copy ends and begin inside what was copied, since the whole was at
        // least 16 bytes long.
        unsafe {
            pair16(dst.wrapping_sub(16 - len), src.wrapping_sub(16 - len), 16);
        }
    }
}

macro_rules! big_loop {
    ($name:ident, $mov:literal, $w:literal, $step:literal, $a:literal, $b:literal, $c:literal, $e:literal
     $(, $clobber:tt)*) => {
        /// Copies more than four registers full: a loop of four, then the last four registers' width, overlapping.
        ///
        /// # Safety
        /// As [`copy_through`]; `len` is at least four registers full.
        #[inline(always)]
        unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
            // SAFETY: every access lies in `[0, len)` on its side: the loop runs while a whole step remains, and the
            // end is one step long and `len >= step` (caller).
            unsafe {
                asm!(
                    concat!("lea {end}, [{s} + {n} - ", $step, "]"),
                    concat!("lea {dend}, [{d} + {n} - ", $step, "]"),
                    "2:",
                    concat!($mov, " ", $a, ", [{s}]"),
                    concat!($mov, " ", $b, ", [{s} + ", $w, "]"),
                    concat!($mov, " ", $c, ", [{s} + 2*", $w, "]"),
                    concat!($mov, " ", $e, ", [{s} + 3*", $w, "]"),
                    concat!($mov, " [{d}], ", $a),
                    concat!($mov, " [{d} + ", $w, "], ", $b),
                    concat!($mov, " [{d} + 2*", $w, "], ", $c),
                    concat!($mov, " [{d} + 3*", $w, "], ", $e),
                    concat!("add {s}, ", $step),
                    concat!("add {d}, ", $step),
                    "cmp {s}, {end}",
                    "jb 2b",
                    concat!($mov, " ", $a, ", [{end}]"),
                    concat!($mov, " ", $b, ", [{end} + ", $w, "]"),
                    concat!($mov, " ", $c, ", [{end} + 2*", $w, "]"),
                    concat!($mov, " ", $e, ", [{end} + 3*", $w, "]"),
                    concat!($mov, " [{dend}], ", $a),
                    concat!($mov, " [{dend} + ", $w, "], ", $b),
                    concat!($mov, " [{dend} + 2*", $w, "], ", $c),
                    concat!($mov, " [{dend} + 3*", $w, "], ", $e),
                    s = inout(reg) src => _, d = inout(reg) dst => _, n = in(reg) len,
                    end = out(reg) _, dend = out(reg) _,
                    $( out($clobber) _, )*
                    options(nostack)
                );
            }
        }
    };
}

big_loop!(
    big_avx2, "vmovdqu", "32", "128", "ymm0", "ymm1", "ymm2", "ymm3", "xmm0", "xmm1", "xmm2",
    "xmm3"
);
#[cfg(not(target_feature = "avx512f"))]
big_loop!(
    big_avx512,
    "vmovdqu64",
    "64",
    "256",
    "zmm16",
    "zmm17",
    "zmm18",
    "zmm19"
);
#[cfg(target_feature = "avx512f")]
big_loop!(
    big_avx512,
    "vmovdqu64",
    "64",
    "256",
    "zmm16",
    "zmm17",
    "zmm18",
    "zmm19",
    "xmm16",
    "xmm17",
    "xmm18",
    "xmm19"
);

/// Copies up to [`SNAP`] bytes out of foreign memory; `ISA` is an [`Isa`] as a number, chosen once for a burst.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`, `len <= SNAP`.
#[inline(always)]
pub unsafe fn snapshot<const ISA: u8>(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(len <= SNAP);
    if len == 64 && ISA == Isa::Avx512 as u8 {
        // SAFETY: 64 bytes on each side (caller).
        unsafe { one64_avx512(dst, src) };
    } else if len > 64 && ISA == Isa::Avx512 as u8 {
        // SAFETY: 64 <= len <= 128 (caller).
        unsafe { pair64_avx512(dst, src, len) };
    } else if len >= 32 && ISA == Isa::Avx512 as u8 {
        // SAFETY: 32 <= len < 64.
        unsafe { pair32_avx512(dst, src, len) };
    } else if len >= 16 {
        // SAFETY: len >= 16.
        unsafe { chunks16(dst, src, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { tiny(dst, src, len) };
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
            _ => unsafe { snapshot::<{ Isa::Sse2 as u8 }>(dst, src, len) },
        }
        return;
    }
    if len >= REP_MIN {
        // SAFETY: the caller's promise.
        unsafe { rep(dst, src, len) };
        return;
    }
    match Isa::detect() {
        // SAFETY: the caller's promise, and at least four registers full.
        Isa::Avx512 if len >= 256 => unsafe { big_avx512(dst, src, len) },
        Isa::Avx512 => {
            // SAFETY: the first 128 of more than 128 and fewer than 256 bytes.
            unsafe { pair64_avx512(dst, src, 128) };
            // SAFETY: the last 128 of them.
            unsafe {
                pair64_avx512(
                    dst.wrapping_add(len - 128),
                    src.wrapping_add(len - 128),
                    128,
                );
            }
        }
        Isa::Avx2 => {
            // SAFETY: the caller's promise, and more than 128 bytes.
            unsafe { big_avx2(dst, src, len) };
            // SAFETY: touches only the registers' upper halves, which no compiled code holds across this call.
            unsafe { asm!("vzeroupper", options(nostack, preserves_flags, nomem)) };
        }
        // SAFETY: the caller's promise, and more than 16 bytes.
        Isa::Sse2 => unsafe { chunks16(dst, src, len) },
    }
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

    fn check(len: usize, off: usize, run: impl Fn(*mut u8, *const u8, usize)) {
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
        if is_x86_feature_detected!("avx2") {
            for len in 128..600 {
                // SAFETY: as above, and the processor has the instructions.
                check(len, 9, |d, s, n| unsafe { big_avx2(d, s, n) });
            }
        }
    }
}
