//! aarch64.
//!
//! Registers of 16 bytes; from 128 bytes on a loop of four with an overlapping end.

use core::arch::asm;

use super::Isa;

/// There is one.
pub fn best() -> Isa {
    Isa::Base
}

/// No registers wider than 16 bytes.
///
/// # Safety
/// As [`super::snapshot`].
#[inline(always)]
pub unsafe fn wide<const ISA: u8>(_: *mut u8, _: *const u8, _: usize) -> bool {
    false
}

macro_rules! pair {
    ($name:ident, $width:literal, $class:ident, $modifier:literal, $load:literal, $store:literal) => {
        /// Copies `len` bytes, at least one and at most two registers full, by the first and the last register.
        ///
        /// # Safety
        /// `len` bytes must be readable at `src` and writable at `dst`; the width of one register
        /// `<= len <=` that of two.
        #[inline(always)]
        pub unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
            let last = len.wrapping_sub($width);
            // SAFETY: both accesses of each side lie in the first and last register's width of `len` bytes (caller).
            unsafe {
                asm!(
                    concat!($load, " {a", $modifier, "}, [{s}]"),
                    concat!($load, " {b", $modifier, "}, [{s}, {n}]"),
                    concat!($store, " {a", $modifier, "}, [{d}]"),
                    concat!($store, " {b", $modifier, "}, [{d}, {n}]"),
                    s = in(reg) src, d = in(reg) dst, n = in(reg) last,
                    a = out($class) _, b = out($class) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

pair!(pair16, 16, vreg, ":q", "ldr", "str");
pair!(pair8, 8, reg, ":x", "ldr", "str");
pair!(pair4, 4, reg, ":w", "ldr", "str");
pair!(pair2, 2, reg, ":w", "ldrh", "strh");
pair!(pair1, 1, reg, ":w", "ldrb", "strb");

/// Copies fewer than 16 bytes.
///
/// # Safety
/// As [`super::copy_through`].
#[inline(always)]
pub unsafe fn tiny(dst: *mut u8, src: *const u8, len: usize) {
    match len {
        0 => {}
        // SAFETY: one or two registers full (caller).
        1 => unsafe { pair1(dst, src, len) },
        // SAFETY: the same.
        2..4 => unsafe { pair2(dst, src, len) },
        // SAFETY: the same.
        4..8 => unsafe { pair4(dst, src, len) },
        // SAFETY: the same.
        _ => unsafe { pair8(dst, src, len) },
    }
}

/// Copies more than [`SNAP`](super::SNAP) bytes: a loop of 64, then the last 64, overlapping.
///
/// # Safety
/// As [`super::copy_through`].
#[inline(always)]
pub unsafe fn long(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every access lies in `[0, len)` on its side: the loop runs while a whole step remains, and the end is one step long
    // and `len >= 64` (caller).
    unsafe {
        asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{s}]",
            "ldp {c:q}, {e:q}, [{s}, #32]",
            "stp {a:q}, {b:q}, [{d}]",
            "stp {c:q}, {e:q}, [{d}, #32]",
            "add {s}, {s}, #64",
            "add {d}, {d}, #64",
            "cmp {s}, {end}",
            "b.lo 2b",
            "ldp {a:q}, {b:q}, [{end}]",
            "ldp {c:q}, {e:q}, [{end}, #32]",
            "stp {a:q}, {b:q}, [{dend}]",
            "stp {c:q}, {e:q}, [{dend}, #32]",
            s = inout(reg) src => _, d = inout(reg) dst => _,
            end = in(reg) src.wrapping_add(len - 64), dend = in(reg) dst.wrapping_add(len - 64),
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, e = out(vreg) _,
            options(nostack)
        );
    }
}
