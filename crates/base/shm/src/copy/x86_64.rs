//! x86-64.
//!
//! Up to 128 bytes by two overlapping registers; from 128 on a loop of four registers; from [`REP_MIN`] bytes `rep movsb`, which
//! needs no read-for-ownership of whole destination lines. AVX-512 code uses the registers 16 to 31 only, which compiled code for
//! the baseline target never touches and whose upper halves cost no transition; AVX2 code ends with `vzeroupper`.

use core::arch::asm;

use super::Isa;

/// Bytes from which `rep movsb` is used.
const REP_MIN: usize = 4096;

/// The best instruction set that this processor has.
pub fn best() -> Isa {
    if is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512f")
    {
        Isa::Avx512
    } else if is_x86_feature_detected!("avx2") {
        Isa::Avx2
    } else {
        Isa::Base
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
        pub unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
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
/// As [`super::copy_through`].
#[inline(always)]
pub unsafe fn tiny(dst: *mut u8, src: *const u8, len: usize) {
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
/// As [`super::copy_through`].
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

macro_rules! big_loop {
    ($name:ident, $mov:literal, $w:literal, $step:literal, $a:literal, $b:literal, $c:literal, $e:literal
     $(, $clobber:tt)*) => {
        /// Copies more than four registers full: a loop of four, then the last four registers' width, overlapping.
        ///
        /// # Safety
        /// As [`super::copy_through`]; `len` is at least four registers full.
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

/// Copies up to [`SNAP`](super::SNAP) bytes by registers wider than 16 bytes; false where the instruction set or the length has none.
///
/// # Safety
/// As [`super::snapshot`].
#[inline(always)]
pub unsafe fn wide<const ISA: u8>(dst: *mut u8, src: *const u8, len: usize) -> bool {
    if ISA != Isa::Avx512 as u8 {
        return false;
    }
    if len == 64 {
        // SAFETY: 64 bytes on each side (caller).
        unsafe { one64_avx512(dst, src) };
    } else if len > 64 {
        // SAFETY: 64 <= len <= 128 (caller).
        unsafe { pair64_avx512(dst, src, len) };
    } else if len >= 32 {
        // SAFETY: 32 <= len < 64.
        unsafe { pair32_avx512(dst, src, len) };
    } else {
        return false;
    }
    true
}

/// Copies more than [`SNAP`](super::SNAP) bytes.
///
/// # Safety
/// As [`super::copy_through`].
#[inline(always)]
pub unsafe fn long(dst: *mut u8, src: *const u8, len: usize) {
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
        Isa::Base => unsafe { super::chunks16(dst, src, len) },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::*;

    /// The loop of AVX2 copies exactly its bytes also where wider registers exist.
    #[test]
    fn avx2_is_exact() {
        if is_x86_feature_detected!("avx2") {
            for len in 128..600 {
                // SAFETY: `check` gives buffers longer than `len`, and the processor has the instructions.
                check(len, 9, |d, s, n| unsafe { big_avx2(d, s, n) });
            }
        }
    }
}
