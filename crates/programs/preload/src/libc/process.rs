//! Processes: `fork`, `clone`, the end, and what changes the rules for the whole process.

use windlass_channel::Reason;

use std::ffi::{c_char, c_int, c_void};

use libc::pid_t;

use crate::fd::table;
use crate::lifecycle;
use crate::process::identity;
use crate::ready::deferred_ctl::flush_epoll_ctl;
use crate::socket::demote::demote_all;
use crate::sys::real;

type CloneFn = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;
type ThreadFn = Option<unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void>;

interpose! {
    // The work is done by the handlers that `start` gave to `pthread_atfork`: libc forks by itself too.
    fn fork() -> pid_t {
        let pid = pass!(fork());
        if pid < 0 {
            lifecycle::fork_failed();
        }
        pid
    }

    fn _Fork() -> pid_t {
        lifecycle::before_fork();
        let pid = pass!(_Fork());
        if pid == 0 {
            lifecycle::after_fork_child();
        } else {
            lifecycle::after_fork_parent();
            if pid < 0 {
                lifecycle::fork_failed();
            }
        }
        pid
    }

    fn clone(run: CloneFn, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int {
        flush_epoll_ctl();
        if flags & libc::CLONE_VM != 0 {
            identity::will_be_borrowed();
        }
        let shared = flags & libc::CLONE_VM != 0 && flags & libc::CLONE_VFORK == 0;
        if shared && flags & libc::CLONE_FILES == 0 {
            demote_all(Reason::Cloned);
        }
        pass!(clone(run, stack, flags, argument, parent, tls, child))
    }

    fn pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        begin: ThreadFn, argument: *mut c_void) -> c_int {
        flush_epoll_ctl();
        pass!(pthread_create(thread, attributes, begin, argument))
    }

    fn thrd_create(thread: *mut libc::pthread_t, begin: ThreadFn, argument: *mut c_void) -> c_int {
        flush_epoll_ctl();
        pass!(thrd_create(thread, begin, argument))
    }

    fn unshare(flags: c_int) -> c_int {
        if flags & libc::CLONE_FILES != 0 && identity::has_threads() {
            demote_all(Reason::Cloned);
        }
        pass!(unshare(flags))
    }

    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        let filters = a == libc::SECCOMP_MODE_FILTER as usize && b != 0;
        if option == libc::PR_SET_SECCOMP && (filters || a == libc::SECCOMP_MODE_STRICT as usize) {
            lifecycle::before_seccomp();
        }
        pass!(prctl(option, a, b, c, d))
    }

    fn daemon(keep_directory: c_int, keep_stdio: c_int) -> c_int {
        let result = pass!(daemon(keep_directory, keep_stdio));
        if result == 0 && keep_stdio == 0 {
            (0..=2).for_each(table::other);
        }
        result
    }

    fn login_tty(fd: c_int) -> c_int {
        let result = pass!(login_tty(fd));
        if result == 0 {
            (0..=2).chain([fd]).for_each(table::other);
        }
        result
    }

    fn system(command: *const c_char) -> c_int {
        if !command.is_null() {
            lifecycle::before_spawn();
        }
        pass!(system(command))
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        lifecycle::before_spawn();
        pass!(popen(command, mode))
    }

    fn _exit(status: c_int) -> ! {
        lifecycle::ends();
        pass!(_exit(status))
    }

    fn _Exit(status: c_int) -> ! {
        lifecycle::ends();
        pass!(_Exit(status))
    }
}

/// `vfork`, with the thread marked until the child is gone.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn vfork() -> libc::pid_t {
    marked_vfork!(before_vfork, vfork_failed, identity::VFORKED)
}

extern "C-unwind" fn before_vfork() {
    flush_epoll_ctl();
}

extern "C-unwind" fn vfork_failed(error: i32) {
    real::set_errno(error);
}

alias! {
    __fork = fork;
    __vfork = vfork;
}
