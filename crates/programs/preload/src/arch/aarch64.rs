//! aarch64.

/// A function without a frame that goes on to another by a jump.
macro_rules! jump {
    ($target:path) => {
        std::arch::naked_asm!("b {target}", target = sym $target)
    };
}

/// Goes on to a function that takes a first argument and a list: the words in registers are stored right below those on the
/// stack.
macro_rules! list_and_call {
    ($target:path) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-80]!",
            "str x1, [sp, #24]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "add x1, sp, #24",
            "bl {target}",
            "ldp x29, x30, [sp], #80",
            "ret",
            target = sym $target,
        )
    };
}

/// Calls a function with the first argument and goes on, with all of them, to the one whose address that gives.
macro_rules! look_and_jump {
    ($target:path) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-224]!",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "bl {target}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x16",
            target = sym $target,
        )
    };
}

/// `vfork`, with a word of the thread raised until the child is gone. It returns twice on one stack, so nothing of it may be
/// there: the return address stays in its register. The call is `clone` with `CLONE_VM`, `CLONE_VFORK` and `SIGCHLD`.
macro_rules! marked_vfork {
    ($before:path, $failed:path, $word:expr) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-16]!",
            "bl {before}",
            "ldp x29, x30, [sp], #16",
            "mrs x9, tpidr_el0",
            "adrp x10, :gottprel:windlass_sockets_thread",
            "ldr x10, [x10, :gottprel_lo12:windlass_sockets_thread]",
            "add x9, x9, x10",
            "ldr w10, [x9, {word}]",
            "add w10, w10, #1",
            "str w10, [x9, {word}]",
            "mov x0, #0x4111",
            "mov x1, #0",
            "mov x8, #220",
            "svc #0",
            "cbz x0, 2f",
            "ldr w10, [x9, {word}]",
            "sub w10, w10, #1",
            "str w10, [x9, {word}]",
            "cmn x0, #4095",
            "b.hs 3f",
            "2:",
            "ret",
            "3:",
            "neg w0, w0",
            "stp x29, x30, [sp, #-16]!",
            "bl {failed}",
            "ldp x29, x30, [sp], #16",
            "mov w0, #-1",
            "ret",
            word = const $word,
            before = sym $before,
            failed = sym $failed,
        )
    };
}

/// Where the calling thread's `windlass_sockets_thread` is.
#[inline(always)]
pub fn thread_place() -> *const () {
    let place;
    // SAFETY: reads the thread pointer and the symbol's offset from it, which never change; changes nothing.
    unsafe {
        std::arch::asm!(
            "mrs {place}, tpidr_el0",
            "adrp {offset}, :gottprel:windlass_sockets_thread",
            "ldr {offset}, [{offset}, :gottprel_lo12:windlass_sockets_thread]",
            "add {place}, {place}, {offset}",
            place = out(reg) place,
            offset = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    place
}

/// The instruction at which a signal found the thread, and with which it goes on behind the handler.
pub fn instruction(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}
