//! aarch64: the thread's pointer, and system calls.

use core::arch::{asm, global_asm};

use crate::cache::{Cache, EMPTY};

// Eight bytes of the static TLS block: `thread_local!` would call a function in a shared library.
global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".p2align 3",
    ".hidden windlass_alloc_current",
    ".globl windlass_alloc_current",
    ".type windlass_alloc_current,@object",
    ".size windlass_alloc_current,8",
    "windlass_alloc_current:",
    ".xword {empty}",
    ".popsection",
    empty = sym EMPTY,
);

/// The thread's cache.
#[inline(always)]
pub fn current() -> *const Cache {
    let cache;
    // SAFETY: reads the thread's own word.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:windlass_alloc_current",
            "ldr {0}, [{0}, #:gottprel_lo12:windlass_alloc_current]",
            "mrs {1}, tpidr_el0",
            "ldr {0}, [{1}, {0}]",
            out(reg) cache,
            out(reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    cache
}

/// Sets what [`current`] returns on this thread.
pub fn set_current(cache: *const Cache) {
    // SAFETY: writes the thread's own word.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:windlass_alloc_current",
            "ldr {0}, [{0}, #:gottprel_lo12:windlass_alloc_current]",
            "mrs {1}, tpidr_el0",
            "str {2}, [{1}, {0}]",
            out(reg) _,
            out(reg) _,
            in(reg) cache,
            options(nostack, preserves_flags),
        );
    }
}

/// A system call: its result, or minus an errno. It leaves `errno` as it is.
///
/// # Safety
/// As the call says.
pub unsafe fn call(number: i64, arguments: [usize; 6]) -> isize {
    let result;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    result
}
