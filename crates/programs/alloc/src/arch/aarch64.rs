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

/// The thread's own block.
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {0}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

/// Makes entry points: functions that hand the program's stack pointer, frame pointer and return address on, behind their own arguments.
macro_rules! entries {
    ($(
        $(#[$about:meta])*
        extern $abi:literal fn $name:ident($($argument:ident: $kind:ty),+) -> $result:ty => $body:path;
    )*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// What the call of this name asks for.
        #[unsafe(naked)]
        pub unsafe extern $abi fn $name($($argument: $kind),+) -> $result {
            $crate::arch::entries!(@ $body, $($argument),+)
        }
    )*};
    (@ $body:path, $a:ident) => {
        core::arch::naked_asm!("mov x1, sp", "mov x2, x29", "mov x3, x30", "b {}", sym $body)
    };
    (@ $body:path, $a:ident, $b:ident) => {
        core::arch::naked_asm!("mov x2, sp", "mov x3, x29", "mov x4, x30", "b {}", sym $body)
    };
    (@ $body:path, $a:ident, $b:ident, $c:ident) => {
        core::arch::naked_asm!("mov x3, sp", "mov x4, x29", "mov x5, x30", "b {}", sym $body)
    };
}
pub(crate) use entries;
