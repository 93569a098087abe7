//! x86-64. The routine changes rax, rcx, r8 to r10, xmm0 to xmm3 and the flags.

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
    // rdi destination, rsi source, rdx bytes; rax: bytes certainly copied.
    "windlass_channel_copy:",
    "xor eax, eax",
    "cmp rdx, 16",
    "jb 20f",
    "cmp rdx, 32",
    "ja 3f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "mov rax, rdx",
    "ret",
    "3:",
    "cmp rdx, 64",
    "ja 4f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "mov rax, rdx",
    "ret",
    "4:",
    // rax: copied so far; r8: where the last, overlapping 64 bytes begin.
    "lea r8, [rdx - 64]",
    "cmp rdx, 1024",
    "jae 6f",
    "5:",
    "movups xmm0, [rsi + rax]",
    "movups xmm1, [rsi + rax + 16]",
    "movups xmm2, [rsi + rax + 32]",
    "movups xmm3, [rsi + rax + 48]",
    "movups [rdi + rax], xmm0",
    "movups [rdi + rax + 16], xmm1",
    "movups [rdi + rax + 32], xmm2",
    "movups [rdi + rax + 48], xmm3",
    "add rax, 64",
    "cmp rax, r8",
    "jb 5b",
    "7:",
    "movups xmm0, [rsi + r8]",
    "movups xmm1, [rsi + r8 + 16]",
    "movups xmm2, [rsi + r8 + 32]",
    "movups xmm3, [rsi + r8 + 48]",
    "movups [rdi + r8], xmm0",
    "movups [rdi + r8 + 16], xmm1",
    "movups [rdi + r8 + 32], xmm2",
    "movups [rdi + r8 + 48], xmm3",
    "mov rax, rdx",
    "ret",
    ".p2align 5",
    "6:",
    "prefetchw [rdi + rax + 1024]",
    "prefetcht0 [rsi + rax + 1024]",
    "movups xmm0, [rsi + rax]",
    "movups xmm1, [rsi + rax + 16]",
    "movups xmm2, [rsi + rax + 32]",
    "movups xmm3, [rsi + rax + 48]",
    "movups [rdi + rax], xmm0",
    "movups [rdi + rax + 16], xmm1",
    "movups [rdi + rax + 32], xmm2",
    "movups [rdi + rax + 48], xmm3",
    "add rax, 64",
    "cmp rax, r8",
    "jb 6b",
    "jmp 7b",
    // Fewer than 16 bytes.
    "20:",
    "cmp edx, 8",
    "jb 21f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "mov rax, rdx",
    "ret",
    "21:",
    "cmp edx, 4",
    "jb 22f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "mov rax, rdx",
    "ret",
    "22:",
    "test edx, edx",
    "jz 23f",
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "mov r9d, edx",
    "shr r9d, 1",
    "movzx r10d, byte ptr [rsi + r9]",
    "mov [rdi + r9], r10b",
    "mov [rdi], cl",
    "mov [rdi + rdx - 1], r8b",
    "23:",
    "mov rax, rdx",
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
            "call {routine}",
            routine = sym super::windlass_channel_copy,
            in("rdi") dst,
            in("rsi") src,
            in("rdx") len,
            lateout("rax") copied,
            out("rcx") _,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
        );
    }
    copied
}

/// Asks for the line at `at` as one that this core will write: its other copies are given up meanwhile.
#[inline(always)]
pub fn expect_write(at: *const u8) {
    // SAFETY: a prefetch changes no memory and no register, and never faults; every x86-64 takes it at least as a nop.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the line at `at` as one that this core will read.
#[inline(always)]
pub fn expect_read(at: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch changes no memory, and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}
