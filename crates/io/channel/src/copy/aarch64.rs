//! aarch64. The routine changes x3 to x9, v0 to v3 and the flags.

core::arch::global_asm!(
    ".pushsection .text.windlass_channel_copy, \"ax\", @progbits",
    ".p2align 6",
    ".globl windlass_channel_copy",
    ".hidden windlass_channel_copy",
    ".globl windlass_channel_copy_fixup",
    ".hidden windlass_channel_copy_fixup",
    ".globl windlass_channel_copy_end",
    ".hidden windlass_channel_copy_end",
    ".type windlass_channel_copy, @function",
    // x0 destination, x1 source, x2 bytes; x3: bytes certainly copied.
    "windlass_channel_copy:",
    "mov x3, #0",
    // x4, x5: where source and destination end.
    "add x4, x1, x2",
    "add x5, x0, x2",
    "cmp x2, #16",
    "b.lo 20f",
    "cmp x2, #32",
    "b.hi 3f",
    "ldr q0, [x1]",
    "ldur q1, [x4, #-16]",
    "str q0, [x0]",
    "stur q1, [x5, #-16]",
    "mov x3, x2",
    "ret",
    "3:",
    "cmp x2, #64",
    "b.hi 4f",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x4, #-32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x5, #-32]",
    "mov x3, x2",
    "ret",
    "4:",
    // x6, x7: where the last, overlapping 64 bytes begin; x8, x9: the next ones.
    "sub x6, x4, #64",
    "sub x7, x5, #64",
    "mov x8, x1",
    "mov x9, x0",
    "cmp x2, #1024",
    "b.hs 6f",
    "5:",
    "ldp q0, q1, [x8]",
    "ldp q2, q3, [x8, #32]",
    "stp q0, q1, [x9]",
    "stp q2, q3, [x9, #32]",
    "add x3, x3, #64",
    "add x8, x8, #64",
    "add x9, x9, #64",
    "cmp x8, x6",
    "b.lo 5b",
    "7:",
    "ldp q0, q1, [x6]",
    "ldp q2, q3, [x6, #32]",
    "stp q0, q1, [x7]",
    "stp q2, q3, [x7, #32]",
    "mov x3, x2",
    "ret",
    ".p2align 5",
    "6:",
    "prfm pstl1keep, [x9, #1024]",
    "prfm pldl1keep, [x8, #1024]",
    "ldp q0, q1, [x8]",
    "ldp q2, q3, [x8, #32]",
    "stp q0, q1, [x9]",
    "stp q2, q3, [x9, #32]",
    "add x3, x3, #64",
    "add x8, x8, #64",
    "add x9, x9, #64",
    "cmp x8, x6",
    "b.lo 6b",
    "b 7b",
    // Fewer than 16 bytes.
    "20:",
    "tbz x2, #3, 21f",
    "ldr x6, [x1]",
    "ldur x7, [x4, #-8]",
    "str x6, [x0]",
    "stur x7, [x5, #-8]",
    "mov x3, x2",
    "ret",
    "21:",
    "tbz x2, #2, 22f",
    "ldr w6, [x1]",
    "ldur w7, [x4, #-4]",
    "str w6, [x0]",
    "stur w7, [x5, #-4]",
    "mov x3, x2",
    "ret",
    "22:",
    "cbz x2, 23f",
    "lsr x8, x2, #1",
    "ldrb w6, [x1]",
    "ldurb w7, [x4, #-1]",
    "ldrb w9, [x1, x8]",
    "strb w9, [x0, x8]",
    "strb w6, [x0]",
    "sturb w7, [x5, #-1]",
    "23:",
    "mov x3, x2",
    "ret",
    "windlass_channel_copy_fixup:",
    "ret",
    "windlass_channel_copy_end:",
    ".size windlass_channel_copy, . - windlass_channel_copy",
    ".popsection",
);

/// Copies `len` bytes; returns how many were certainly copied, fewer only after a fault that a handler ended.
///
/// # Safety
/// Whatever of both ranges is mapped may be read and written, and does not overlap. What is not mapped faults; without a handler as
/// the module says, that ends the process.
#[inline(always)]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let copied;
    // SAFETY: the ranges are as the routine wants them (caller). It changes these registers and the memory at `dst` alone, fewer
    // than a call of C's may: the others keep what the caller has in them.
    unsafe {
        core::arch::asm!(
            "bl {routine}",
            routine = sym super::windlass_channel_copy,
            in("x0") dst,
            in("x1") src,
            in("x2") len,
            lateout("x3") copied,
            out("x4") _,
            out("x5") _,
            out("x6") _,
            out("x7") _,
            out("x8") _,
            out("x9") _,
            out("x30") _,
            out("v0") _,
            out("v1") _,
            out("v2") _,
            out("v3") _,
            options(nostack),
        );
    }
    copied
}

/// Asks for the line at `at` as one that this core will write: its other copies are given up meanwhile.
#[inline(always)]
pub fn expect_write(at: *const u8) {
    // SAFETY: a prefetch changes no memory and no register, and never faults.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the line at `at` as one that this core will read.
#[inline(always)]
pub fn expect_read(at: *const u8) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
