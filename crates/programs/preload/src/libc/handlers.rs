//! The ways to install a signal handler; all of them end in [`crate::process::signals::change`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::sigaction as Action;
use libc::sighandler_t;

use crate::process::signals;
use crate::sys::real;

/// Linux ignores it.
const SA_INTERRUPT: c_int = 0x2000_0000;
/// Signals that `siginterrupt` made interrupt; bit `signal - 1`. libc keeps such a set of its own.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    if (1..=64).contains(&signal) {
        1 << (signal - 1)
    } else {
        0
    }
}

/// Installs a handler with these flags and this mask; gives the old one or `SIG_ERR`.
fn install(signal: c_int, handler: sighandler_t, flags: c_int, mask: u64) -> sighandler_t {
    if handler == libc::SIG_ERR || bit(signal) == 0 {
        real::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: zeroes are a valid `sigaction`.
    let mut action: Action = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the mask has at least 64 bits, and zeroes beyond.
    unsafe { *(&raw mut action.sa_mask).cast::<u64>() = mask };
    let mut old = action;
    // SAFETY: both are live variables.
    if unsafe { signals::change(signal, &action, &mut old) } != 0 {
        return libc::SIG_ERR;
    }
    old.sa_sigaction
}

interpose! {
    fn sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { signals::change(signal, action, old) }
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        let interrupts = INTERRUPTS.load(Ordering::Relaxed) & bit(signal) != 0;
        let flags = if interrupts { 0 } else { libc::SA_RESTART };
        install(signal, handler, flags, bit(signal))
    }

    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT, 0)
    }

    fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
        // SAFETY: zeroes are a valid `sigaction`.
        let mut action: Action = unsafe { std::mem::zeroed() };
        // SAFETY: a live variable.
        if unsafe { signals::change(signal, std::ptr::null(), &mut action) } != 0 {
            return -1;
        }
        if interrupt != 0 {
            INTERRUPTS.fetch_or(bit(signal), Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTS.fetch_and(!bit(signal), Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        // SAFETY: a live variable.
        unsafe { signals::change(signal, &action, std::ptr::null_mut()) }
    }
}

alias! {
    __sigaction = sigaction;
    bsd_signal = signal;
    ssignal = signal;
    __sysv_signal = sysv_signal;
}
