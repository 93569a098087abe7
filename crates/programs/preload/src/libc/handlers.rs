//! The ways to install a signal handler; all of them end in [`crate::process::signals::change`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::sigaction as Action;
use libc::sighandler_t;

use crate::process::signals;
use crate::sys::real;

/// Signals that `siginterrupt` made interrupt; bit `signal - 1`. libc keeps such a set of its own.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

const SIG_HOLD: sighandler_t = 2;

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

fn bsd(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let interrupts = INTERRUPTS.load(Ordering::Relaxed) & bit(signal) != 0;
    let flags = if interrupts { 0 } else { libc::SA_RESTART };
    install(signal, handler, flags, bit(signal))
}

fn system_five(signal: c_int, handler: sighandler_t) -> sighandler_t {
    /// `SA_INTERRUPT`, which Linux ignores.
    const INTERRUPT: c_int = 0x2000_0000;
    install(
        signal,
        handler,
        libc::SA_RESETHAND | libc::SA_NODEFER | INTERRUPT,
        0,
    )
}

/// Whether the signal was blocked before it was blocked or unblocked now; `None` with `errno`.
fn block(signal: c_int, how: c_int) -> Option<bool> {
    // SAFETY: zeroes are a valid, empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut old = set;
    // SAFETY: a live set.
    if unsafe { libc::sigaddset(&mut set, signal) } != 0 {
        return None;
    }
    // SAFETY: live sets.
    if unsafe { libc::sigprocmask(how, &set, &mut old) } != 0 {
        return None;
    }
    // SAFETY: a live set.
    Some(unsafe { libc::sigismember(&old, signal) } == 1)
}

interpose! {
    fn sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { signals::change(signal, action, old) }
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        bsd(signal, handler)
    }

    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        system_five(signal, handler)
    }

    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if handler == SIG_HOLD {
            return match block(signal, libc::SIG_BLOCK) {
                None => libc::SIG_ERR,
                Some(true) => SIG_HOLD,
                Some(false) => {
                    // SAFETY: zeroes are a valid `sigaction`.
                    let mut old: Action = unsafe { std::mem::zeroed() };
                    // SAFETY: a live variable.
                    let result = unsafe { signals::change(signal, std::ptr::null(), &mut old) };
                    if result == 0 { old.sa_sigaction } else { libc::SIG_ERR }
                }
            };
        }
        let old = install(signal, handler, 0, 0);
        if old == libc::SIG_ERR {
            return old;
        }
        match block(signal, libc::SIG_UNBLOCK) {
            None => libc::SIG_ERR,
            Some(true) => SIG_HOLD,
            Some(false) => old,
        }
    }

    fn sigignore(signal: c_int) -> c_int {
        if install(signal, libc::SIG_IGN, 0, 0) == libc::SIG_ERR { -1 } else { 0 }
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
