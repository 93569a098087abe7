//! The few system calls that the channel makes itself, as instructions: the C library's names may be interposed by the
//! very library that uses this crate.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

/// This process may be reached by a `membarrier`.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// A system call with up to six arguments; errors are negative numbers from -4095 on.
///
/// # Safety
/// The arguments are what the call named by `number` demands.
#[inline(always)]
pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = args;
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the arguments are right (caller); the kernel changes x0 and memory that they point to.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the arguments are right (caller); the kernel changes rax, rcx, r11 and memory that they point to.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// The same, with the error as an errno.
///
/// # Safety
/// As [`call`].
pub unsafe fn checked(number: libc::c_long, args: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: passed on (caller).
    let result = unsafe { call(number, args) };
    if (-4095..0).contains(&result) {
        return Err((-result) as i32);
    }
    Ok(result as usize)
}

/// An option of a socket; `None` if it has none of this name and size.
pub(crate) fn option<const N: usize>(fd: i32, level: i32, name: i32) -> Option<[u8; N]> {
    let (mut value, mut length) = ([0; N], N as libc::socklen_t);
    let [fd, level, name] = [fd as usize, level as usize, name as usize];
    let places = [value.as_mut_ptr() as usize, &raw mut length as usize];
    let args = [fd, level, name, places[0], places[1], 0];
    // SAFETY: the value and its length live for the call.
    unsafe { checked(libc::SYS_getsockopt, args) }.ok()?;
    (length as usize == N).then_some(value)
}

/// The time-stamp counter, in cycles (a few per nanosecond; only for rough spans of time).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The generic timer, shifted until a second has 2^31 to 2^32 cycles (as `windlass_sync::tsc`).
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn cycles() -> u64 {
    let (ticks, hz): (u64, u64);
    // SAFETY: Linux lets every process read both registers; no memory is touched. The barrier keeps two readings in order.
    unsafe {
        asm!(
            "isb",
            "mrs {ticks}, cntvct_el0",
            "mrs {hz}, cntfrq_el0",
            ticks = out(reg) ticks, hz = out(reg) hz,
            options(nomem, nostack, preserves_flags),
        );
    }
    ticks << (hz as u32).leading_zeros()
}

/// The monotonic clock, by a system call; zero where that fails. Not by the page that the kernel maps for it (vDSO): under
/// valgrind that is not there, although the auxiliary vector names it.
#[cfg(not(loom))]
pub(crate) fn monotonic() -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let clock = libc::CLOCK_MONOTONIC as usize;
    // SAFETY: the time's place is live for the call.
    unsafe {
        call(
            libc::SYS_clock_gettime,
            [clock, &raw mut now as usize, 0, 0, 0, 0],
        )
    };
    now
}

/// Gives up the rest of the time slice.
pub fn yield_now() {
    // SAFETY: takes no arguments.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

const MEMBARRIER_GLOBAL_EXPEDITED: usize = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: usize = 1 << 2;

/// Registers this process as one whose threads a peer's `membarrier` reaches. To be called once at load and in every
/// forked child; without it, this process never enters stream mode as a sender.
pub fn register_membarrier() -> bool {
    // SAFETY: the call takes a command and flags.
    let registered = unsafe {
        checked(
            libc::SYS_membarrier,
            [MEMBARRIER_REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0],
        )
    }
    .is_ok();
    REGISTERED.store(registered, Ordering::Release);
    registered
}

/// Whether this process may be a sender in stream mode.
#[inline(always)]
pub fn membarrier_registered() -> bool {
    REGISTERED.load(Ordering::Relaxed)
}

/// A full fence in every running thread of every registered process.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) fn membarrier() {
    // SAFETY: the call takes a command and flags.
    unsafe {
        call(
            libc::SYS_membarrier,
            [MEMBARRIER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0],
        )
    };
}

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// Waits while `word` is `value`, at most `nanoseconds`.
#[cfg(not(loom))]
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
    };
    let (word, time) = (&raw const *word as usize, &raw const time as usize);
    // SAFETY: the word and the time are live for the call.
    unsafe {
        call(
            libc::SYS_futex,
            [word, FUTEX_WAIT, value as usize, time, 0, 0],
        )
    };
}

/// Wakes all who wait for `word`.
#[cfg(not(loom))]
pub fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    let word = &raw const *word as usize;
    // SAFETY: the word is live for the call; a wake changes no memory.
    unsafe {
        call(
            libc::SYS_futex,
            [word, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0],
        )
    };
}

/// Gives the pages behind a piece of a shared mapping back to the system.
///
/// # Safety
/// The piece is page-aligned, lies in one shared mapping, and nobody needs what is in it.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) unsafe fn remove_pages(at: *mut u8, len: usize) {
    // SAFETY: the caller's piece.
    unsafe {
        call(
            libc::SYS_madvise,
            [at as usize, len, libc::MADV_REMOVE as usize, 0, 0, 0],
        )
    };
}
