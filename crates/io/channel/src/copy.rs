//! The one copy routine between a program's buffer and a ring.
//!
//! # Model
//! The program's buffer may be invalid memory, so the copy may fault. All of it lies between [`start`] and [`end`]; a handler of
//! SIGSEGV or SIGBUS that finds the interrupted instruction there sets the instruction pointer to [`fixup`] and returns: the copy
//! then ends with the number of bytes that are certainly copied. No other register may be changed. There is no stack frame and no
//! call inside the range. Each architecture has its routine.
//!
//! On x86-64 up to 128 bytes go by overlapping 16-byte registers, more by a loop of 64 bytes; from [`LARGE`] bytes the destination
//! is prefetched for writing 16 lines ahead: the reader on another core has those lines, and taking one over is the cost of a
//! large copy. aarch64 has a loop of 64 bytes, one of 16 and one of single bytes.
//!
//! # Limits
//! Reads and writes exactly the bytes named. The short count after a fault may be lower than what was written.

/// Bytes from which the destination is prefetched.
pub const LARGE: usize = 1024;

/// The routine: an architecture's instructions between the symbols.
#[cfg(not(loom))]
macro_rules! routine {
    ($($line:literal),* $(,)?) => {
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
            "windlass_channel_copy:",
            $($line,)*
            "windlass_channel_copy_fixup:",
            "ret",
            "windlass_channel_copy_end:",
            ".size windlass_channel_copy, . - windlass_channel_copy",
            ".popsection",
        );
    };
}

#[cfg_attr(target_arch = "aarch64", path = "copy/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "copy/x86_64.rs")]
#[cfg(not(loom))]
mod arch;

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
    // SAFETY: the ranges are as the routine wants them (caller).
    unsafe { arch::call(dst, src, len) }
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
        let registers = unsafe { &mut (*context).uc_mcontext };
        #[cfg(target_arch = "x86_64")]
        let at = &mut registers.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let at = &mut registers.pc;
        if (start()..end()).contains(&(*at as usize)) {
            FAULTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            *at = fixup() as _;
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
