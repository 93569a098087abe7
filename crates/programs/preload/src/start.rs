//! The library is loaded, and told of forks and the end.
//!
//! The constructor looks up libc's functions, reads the options and makes one page of memory. It talks to nobody; that begins with
//! the first join. Under a seccomp filter it does nothing at all: which calls such a filter allows is known to the program alone.

use windlass_channel::copy;

use crate::counts::summary;
use crate::dispatch;
use crate::fd;
use crate::join::promote;
use crate::lifecycle::{
    after_fork_child, after_fork_parent, before_fork, ends, thread_ends, unseen_fork,
};
use crate::options;
use crate::process::{self, identity, registration, signals};
use crate::ready::{deferred_ctl::flush_epoll_ctl, sets};
use crate::socket::{self, demote::demote, waiter};
use crate::sys::{clock, real};

unsafe extern "C" fn constructor() {
    real::resolve();
    crate::libc::resolve();
    options::read();
    summary::start();
    if is_confined() {
        return;
    }
    tell_each_other();
    identity::start();
    clock::start();
    signals::set_fixup(copy::start(), copy::end(), copy::fixup());
    registration::locate();
    // SAFETY: the handlers stay mapped, since we are never unloaded.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_parent),
            Some(after_fork_child),
        )
    };
    // SAFETY: as above.
    unsafe { at_quick_exit(destructor) };
}

/// Lower rooms call higher ones by these functions. Each is set once.
fn tell_each_other() {
    let _ = process::UPCALLS.set(process::Events {
        thread_ends,
        unseen_fork,
        before_handler: flush_epoll_ctl,
        new_directory: promote::list_anew,
    });
    let _ = fd::UPCALLS.set(fd::Events {
        make: waiter::make,
        before_close: dispatch::before_close,
        closed: waiter::closed,
        vanished: dispatch::vanished,
        demote,
    });
    let _ = socket::BUSY.set(sets::again);
}

extern "C" fn destructor() {
    ends();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = constructor;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

unsafe extern "C" {
    fn at_quick_exit(function: extern "C" fn()) -> i32;
}

/// Whether the process was started under a seccomp filter: it stays as it is.
fn is_confined() -> bool {
    let (option, none) = (libc::PR_GET_SECCOMP, 0_usize);
    // SAFETY: takes numbers only.
    unsafe { real::prctl(option, none, none, none, none) > 0 }
}
