//! x86-64: the thread's pointer, and system calls.

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
    ".quad {empty}",
    ".popsection",
    empty = sym EMPTY,
);

// The loader runs resolvers of the program before it fills the static TLS block. This library's own resolver is run just before them, when the
// library is relocated, and fills in the first thread's word.
global_asm!(
    ".hidden windlass_alloc_first",
    ".globl windlass_alloc_first",
    ".type windlass_alloc_first,@gnu_indirect_function",
    ".set windlass_alloc_first, {resolver}",
    ".pushsection .data.rel.ro.windlass_alloc_first,\"awR\",@progbits",
    ".p2align 3",
    ".quad windlass_alloc_first",
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
            "mov {0}, qword ptr [rip + windlass_alloc_current@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) cache,
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
            "mov {0}, qword ptr [rip + windlass_alloc_current@GOTTPOFF]",
            "mov qword ptr fs:[{0}], {1}",
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
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
