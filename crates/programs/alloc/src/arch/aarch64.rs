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

// The loader runs resolvers of the program before it fills the static TLS block. This library's own resolver is run just before them, when the
// library is relocated, and fills in the first thread's word.
global_asm!(
    ".hidden windlass_alloc_first",
    ".globl windlass_alloc_first",
    ".type windlass_alloc_first,%gnu_indirect_function",
    ".set windlass_alloc_first, {resolver}",
    ".pushsection .data.rel.ro.windlass_alloc_first,\"awR\",%progbits",
    ".p2align 3",
    ".xword windlass_alloc_first",
    ".popsection",
    resolver = sym first_thread,
);

extern "C" fn first_thread() -> *const Cache {
    set_current(&EMPTY);
    &raw const EMPTY
}

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
