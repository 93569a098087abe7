//! System calls that are made round libc, caught once: where nobody asked for `--strict`.
//!
//! # Purpose
//! What the library keeps to itself of an epoll instance ([`crate::engine`]'s interest) is the kernel's view as long as nobody
//! looks at it in any other way. A call through libc is seen; a bare one is caught here, and ends it.
//!
//! # Model
//! *Syscall User Dispatch* as in [`strict`], switched on by [`start`] when the first instance is found to be worth it, in a
//! process of one thread. The first call that comes from elsewhere than libc ends the watch for good ([`retire`]): what was
//! kept is told to the kernel, dispatch is switched off, and the instruction is made again, as if it had not been caught.
//!
//! # States
//! *Not begun* · *on* · *over*: a call was caught; a second thread, a `vfork`, seccomp or io_uring came; the program wants
//! `SIGSYS` for itself or blocks it; or it cannot be had. In strict mode every call is seen anyway.
//!
//! # Failure modes
//! A bare call with `SIGSYS` blocked is the end of the process. So a process that blocks it, also in a handler, is not watched. Not
//! seen: masks of `sigsuspend(2)` and of waits, for as long as they last, and handlers installed by bare calls before.

use std::ffi::c_int;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use libc::ucontext_t;
use windlass_channel::sys;

use crate::{engine, owner, real, signals, strict};

const NOT_BEGUN: u8 = 0;
const ON: u8 = 1;
const OVER: u8 = 2;
/// Bytes of `syscall`, `sysenter` and `int 0x80` alike.
const INSTRUCTION: i64 = 2;
const BIT: u64 = 1 << (libc::SIGSYS - 1);

static STATE: AtomicU8 = AtomicU8::new(NOT_BEGUN);

/// Whether bare calls are not seen, and will not be.
#[inline(always)]
pub fn is_over() -> bool {
    STATE.load(Relaxed) == OVER
}

/// Whether bare calls are caught here, and not by strict mode.
pub fn is_on() -> bool {
    STATE.load(Relaxed) == ON
}

/// Begins, unless it is over; whether bare calls are seen from now on.
#[cold]
pub fn start() -> bool {
    if strict::is_on() || is_on() {
        return true;
    }
    if is_over() {
        return false;
    }
    let can_be = !owner::has_threads() && signals::has_free_traps() && strict::prepare().is_ok();
    if can_be && strict::catch() {
        STATE.store(ON, Relaxed);
        return true;
    }
    STATE.store(OVER, Relaxed);
    false
}

/// Ends it for good: from now on the kernel is told everything at once.
#[inline]
pub fn retire() {
    if STATE.load(Relaxed) != OVER {
        end();
    }
}

#[cold]
fn end() {
    engine::settle();
    if STATE.swap(OVER, AcqRel) == ON {
        strict::release();
    }
}

/// The program blocks signals, or a handler of it does.
#[inline]
pub fn blocks(mask: u64) {
    if mask & BIT != 0 && is_on() {
        retire();
    }
}

/// In a forked child: dispatch is not inherited.
pub fn forked() {
    if is_on() {
        STATE.store(NOT_BEGUN, Relaxed);
    }
}

/// A call was caught: it is made again, unseen.
///
/// # Safety
/// As a handler of `SIGSYS` with `si_code` [`strict::USER_DISPATCH`]; `number` is the call's.
pub unsafe fn trapped(number: c_int, context: *mut ucontext_t) {
    // SAFETY: the kernel gives a valid context, ours until we return.
    let registers = unsafe { &mut *context };
    if let Some(arguments) = strict::own_call(registers) {
        // SAFETY: the arguments of the trapped call, which libraries that we are built of make by themselves.
        let result = unsafe { sys::call(number.into(), arguments) };
        registers.uc_mcontext.gregs[libc::REG_RAX as usize] = result as i64;
        return;
    }
    let before = real::errno();
    retire();
    real::set_errno(before);
    registers.uc_mcontext.gregs[libc::REG_RIP as usize] -= INSTRUCTION;
    registers.uc_mcontext.gregs[libc::REG_RAX as usize] = number.into();
}
