//! Life of the library in a process: it is loaded, the process forks, executes, ends.
//!
//! The constructor looks up libc's functions, reads the options and makes one page of memory. It talks
//! to nobody; that begins with the first join. Under a seccomp filter it does nothing at all: which calls such a filter
//! allows is known to the program alone. Forks are followed by handlers of `pthread_atfork`, since
//! libc forks by itself too; a fork that passes those by is noticed at the next call that matters.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::counts::{
    counters::{self, Counter},
    summary,
};
use crate::dispatch;
use crate::fd::{record, table};
use crate::options;
use crate::process::identity;
use crate::sys::real;

static ENDED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn constructor() {
    real::resolve_all();
    options::read();
    summary::start();
    if is_confined() {
        return;
    }
    identity::start();
    dispatch::start();
    // SAFETY: the handlers stay mapped, since we are never unloaded.
    unsafe { libc::pthread_atfork(Some(fork_prepare), Some(fork_parent), Some(fork_child)) };
    // SAFETY: as above.
    unsafe { at_quick_exit(quick_exit) };
}

unsafe extern "C" fn destructor() {
    ends();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = constructor;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: unsafe extern "C" fn() = destructor;

unsafe extern "C" {
    fn at_quick_exit(function: unsafe extern "C" fn()) -> i32;
}

unsafe extern "C" fn quick_exit() {
    ends();
}

/// The process ends by its own will: once.
pub fn ends() {
    if !identity::is_started() || !identity::is_ours() || ENDED.swap(true, Ordering::AcqRel) {
        return;
    }
    let before = real::errno();
    if table::exists() {
        dispatch::before_exit();
        if record::is_shared() {
            table::let_go();
        }
    }
    summary::write();
    counters::write();
    real::set_errno(before);
}

/// The process is about to enter a seccomp filter: whatever it holds becomes plain, what it counted is written, and from
/// then on the library makes no system call of its own. Not in the child of a `vfork`.
pub fn before_seccomp() {
    if !identity::is_started() || !identity::is_ours() {
        return;
    }
    let before = real::errno();
    if table::exists() {
        dispatch::before_seccomp();
    }
    table::retire();
    if !ENDED.swap(true, Ordering::AcqRel) {
        summary::write();
        counters::write();
    }
    real::set_errno(before);
}

/// Whether the process was started under a seccomp filter: it stays as it is.
fn is_confined() -> bool {
    let (option, none) = (libc::PR_GET_SECCOMP, 0_usize);
    // SAFETY: takes numbers only.
    unsafe { real::prctl(option, none, none, none, none) > 0 }
}

/// The process, or the child of a `vfork` with its memory, may be replaced now. What it counted is written.
pub fn before_exec() {
    let before = real::errno();
    if table::exists() {
        dispatch::before_exec(false);
        table::before_exec(false);
    }
    if !table::is_retired() && identity::is_ours() {
        counters::write();
    }
    real::set_errno(before);
}

/// It was not.
pub fn exec_failed() {
    if table::exists() {
        table::exec_failed();
    }
}

/// libc is about to make a child by itself that executes a file.
pub fn before_spawn() {
    let before = real::errno();
    if table::exists() {
        dispatch::before_exec(true);
        table::before_exec(true);
    }
    real::set_errno(before);
}

/// Before a fork, in the parent.
pub fn before_fork() {
    if table::exists() {
        dispatch::settle();
        table::fork_prepare();
    }
}

/// After it, in the parent.
pub fn after_fork_parent() {
    table::fork_done(false);
}

/// After it, in the child.
pub fn after_fork_child() {
    if table::is_retired() {
        return;
    }
    identity::adopt();
    table::fork_done(true);
    counters::clear();
    summary::clear();
    ENDED.store(false, Ordering::Relaxed);
    if table::exists() {
        dispatch::after_fork_child();
    }
}

/// The fork did not happen.
pub fn fork_failed() {
    if table::exists() {
        let before = real::errno();
        table::let_go();
        real::set_errno(before);
    }
}

/// This process is a copy that was made out of our sight.
#[cold]
pub fn unseen_fork() {
    if table::exists() {
        table::fork_unseen();
    }
    after_fork_child();
    counters::add(Counter::ForksUnseen, 1);
}

unsafe extern "C" fn fork_prepare() {
    before_fork();
}

unsafe extern "C" fn fork_parent() {
    after_fork_parent();
}

unsafe extern "C" fn fork_child() {
    after_fork_child();
}
