//! The few system calls that the channel makes itself, as instructions: the C library's names may be interposed by the
//! very library that uses this crate.

use core::arch::asm;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, Release};

use rustix::thread::{MembarrierCommand, membarrier};

pub use rustix::thread::sched_yield as yield_now;

/// This process may be reached by a `membarrier`.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// A system call with up to six arguments; errors are negative numbers from -4095 on.
///
/// # Safety
/// The arguments are what the call named by `number` demands.
#[inline(always)]
pub unsafe fn call<const N: usize>(number: libc::c_long, args: [usize; N]) -> isize {
    const { assert!(N <= 6) };
    let result: isize;
    let mut all = [0; 6];
    all.iter_mut().zip(args).for_each(|(to, arg)| *to = arg);
    let [a, b, c, d, e, f] = all;
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
pub unsafe fn checked<const N: usize>(
    number: libc::c_long,
    args: [usize; N],
) -> Result<usize, i32> {
    // SAFETY: passed on (caller).
    let result = unsafe { call(number, args) };
    usize::try_from(result).map_err(|_| -result as i32)
}

/// An option of a socket; `None` if it has none of this name and size.
pub(crate) fn option<const N: usize>(fd: i32, level: i32, name: i32) -> Option<[u8; N]> {
    let (mut value, mut length) = ([0; N], N as libc::socklen_t);
    let [fd, level, name] = [fd as usize, level as usize, name as usize];
    let (at, length_at) = (value.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: the value and its length live for the call.
    unsafe { checked(libc::SYS_getsockopt, [fd, level, name, at, length_at]) }.ok()?;
    (length as usize == N).then_some(value)
}

/// The time-stamp counter, in cycles (a few per nanosecond; only for rough spans of time). It stands still in a model.
#[inline(always)]
pub fn cycles() -> u64 {
    if cfg!(loom) {
        0
    } else {
        windlass_sync::tsc::now()
    }
}

/// The monotonic clock, by a system call; zero where that fails. Not by the page that the kernel maps for it (vDSO): under
/// valgrind that is not there, although the auxiliary vector names it.
#[cfg(not(loom))]
pub(crate) fn monotonic() -> libc::timespec {
    let (tv_sec, tv_nsec) = (0, 0);
    let mut now = libc::timespec { tv_sec, tv_nsec };
    let (clock, at) = (libc::CLOCK_MONOTONIC as usize, &raw mut now as usize);
    // SAFETY: the time's place is live for the call.
    unsafe { call(libc::SYS_clock_gettime, [clock, at]) };
    now
}

/// Registers this process, and those that it forks, as one whose threads a peer's `membarrier` reaches; without it, it never enters
/// stream mode as a sender. The kernel waits for every processor unless there is one thread: 16 ms on a busy machine, once 436 ms.
pub fn register_membarrier() -> bool {
    let registered = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
    REGISTERED.store(registered, Release);
    registered
}

/// Whether this process may be a sender in stream mode.
#[inline(always)]
pub fn membarrier_registered() -> bool {
    REGISTERED.load(Relaxed)
}
