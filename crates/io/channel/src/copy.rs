//! The one copy routine between a program's buffer and a ring.
//!
//! # Model
//! The program's buffer may be invalid memory, so the copy may fault. All of it lies between [`start`] and [`end`]; a handler of
//! SIGSEGV or SIGBUS that finds the interrupted instruction there sets the instruction pointer to [`fixup`] and returns: the copy
//! then ends with the number of bytes that are certainly copied. No other register may be changed. There is no stack frame and no
//! call inside the range. The routine changes rax, rcx, r8 to r10, xmm0 to xmm3 and the flags, and no other register.
//!
//! Up to 128 bytes go by overlapping 16-byte registers, more by a loop of 64 bytes; from [`LARGE`] bytes the destination is
//! prefetched for writing 16 lines ahead: the reader on another core has those lines, and taking one over is the cost of a large
//! copy.
//!
//! # Limits
//! Reads and writes exactly the bytes named. The short count after a fault may be lower than what was written.

/// Bytes from which the destination is prefetched.
pub const LARGE: usize = 1024;

#[cfg(not(loom))]
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

#[cfg(not(loom))]
unsafe extern "C" {
    fn windlass_channel_copy(dst: *mut u8, src: *const u8, len: usize) -> usize;
    fn windlass_channel_copy_fixup();
    fn windlass_channel_copy_end();
}

/// Copies `len` bytes; returns how many were certainly copied, fewer only after a fault that a handler ended.
///
/// # Safety
/// Whatever of both ranges is mapped may be read and written, and does not overlap. What is not mapped faults; without a handler as
/// the module says, that ends the process.
#[cfg(not(loom))]
#[inline(always)]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let copied;
    // SAFETY: the ranges are as the routine wants them (caller). It changes these registers and the memory at `dst` alone, fewer
    // than a call of C's may: the others keep what the caller has in them.
    unsafe {
        core::arch::asm!(
            "call {routine}",
            routine = sym windlass_channel_copy,
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
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn expect_write(at: *const u8) {
    // SAFETY: a prefetch changes no memory and no register, and never faults; every x86-64 takes it at least as a nop.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the line at `at` as one that this core will read.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn expect_read(at: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch changes no memory, and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// The first address of the copy routine.
#[cfg(not(loom))]
pub fn start() -> usize {
    windlass_channel_copy as *const () as usize
}

/// The address behind the copy routine.
#[cfg(not(loom))]
pub fn end() -> usize {
    windlass_channel_copy_end as *const () as usize
}

/// Where a faulted copy goes on: it returns its short count.
#[cfg(not(loom))]
pub fn fixup() -> usize {
    windlass_channel_copy_fixup as *const () as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Every length from 0 to beyond two prefetched stretches, at odd places on both sides, copies exactly its bytes: what lies
    /// around the destination stays as it was.
    #[test]
    fn exactly_the_bytes_named_are_copied() {
        const ROOM: usize = 4096;
        let source: Vec<u8> = (0..ROOM as u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..300).chain([1000, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 3000]) {
            for shift in [0, 1, 13] {
                let mut to = vec![0xa5u8; ROOM];
                let at = 64 + shift;
                // SAFETY: both ranges lie in the vectors.
                let n = unsafe {
                    copy(
                        to.as_mut_ptr().wrapping_add(at),
                        source.as_ptr().wrapping_add(shift),
                        len,
                    )
                };
                assert_eq!(n, len);
                assert_eq!(to[at..at + len], source[shift..shift + len], "{len} bytes");
                let around = to[..at].iter().chain(&to[at + len..]);
                assert!(around.copied().all(|b| b == 0xa5), "{len} bytes at {shift}");
            }
        }
    }

    static FAULTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

    extern "C" fn on_fault(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel hands over the interrupted context.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let rip = &mut registers[libc::REG_RIP as usize];
        if (start()..end()).contains(&(*rip as usize)) {
            FAULTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            *rip = fixup() as i64;
        } else {
            std::process::abort();
        }
    }

    /// A copy that runs into unmapped memory, in either direction, ends with a count of bytes that were really copied.
    #[test]
    fn a_fault_ends_the_copy_with_a_short_count() {
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the handler only touches the context.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
        let len = 8192;
        // SAFETY: a fresh private mapping.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(pages, libc::MAP_FAILED);
        let pages = pages.cast::<u8>();
        // SAFETY: the upper half of the mapping.
        unsafe { libc::munmap(pages.wrapping_add(len).cast(), len) };
        let mut here = vec![3u8; 4096];
        for (valid, asked) in [(0, 1), (0, 64), (100, 200), (1000, 4096), (3000, 3500)] {
            let edge = pages.wrapping_add(len - valid);
            // SAFETY: what is not mapped faults, and the handler ends the copy.
            let n = unsafe { copy(here.as_mut_ptr(), edge, asked) };
            assert!(n <= valid, "{n} of {valid} valid bytes, {asked} asked");
            assert!(valid < 512 || n + 128 > valid, "{n} of {valid}");
            // SAFETY: as above.
            let n = unsafe { copy(edge, here.as_ptr(), asked) };
            assert!(n <= valid, "{n} of {valid} valid bytes, {asked} asked");
        }
        assert_eq!(FAULTED.load(std::sync::atomic::Ordering::Relaxed), 10);
    }
}
