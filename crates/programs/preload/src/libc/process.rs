//! Processes: `fork`, `clone`, the end, and what changes the rules for the whole process.

use std::ffi::{c_char, c_int, c_void};

use libc::pid_t;

use crate::dispatch;
use crate::fd::table;
use crate::process::identity;
use crate::start;
use crate::sys::real::{CloneFn, ThreadFn};

interpose! {
    // The work is done by the handlers that `start` gave to `pthread_atfork`: libc forks by itself too.
    fn fork() -> pid_t {
        let pid = pass!(fork());
        if pid < 0 {
            start::fork_failed();
        }
        pid
    }

    fn __fork() -> pid_t {
        // SAFETY: the same function under its other name.
        unsafe { fork() }
    }

    fn _Fork() -> pid_t {
        start::before_fork();
        let pid = pass!(_Fork());
        if pid == 0 {
            start::after_fork_child();
        } else {
            start::after_fork_parent();
            if pid < 0 {
                start::fork_failed();
            }
        }
        pid
    }

    fn clone(run: CloneFn, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int {
        dispatch::settle();
        if flags & libc::CLONE_VM != 0 {
            identity::will_be_borrowed();
        }
        let shared = flags & libc::CLONE_VM != 0 && flags & libc::CLONE_VFORK == 0;
        if shared && flags & libc::CLONE_FILES == 0 {
            dispatch::plain_process(dispatch::Why::OwnDescriptors);
        }
        pass!(clone(run, stack, flags, argument, parent, tls, child))
    }

    fn pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        begin: ThreadFn, argument: *mut c_void) -> c_int {
        dispatch::settle();
        pass!(pthread_create(thread, attributes, begin, argument))
    }

    fn thrd_create(thread: *mut libc::pthread_t, begin: ThreadFn, argument: *mut c_void) -> c_int {
        dispatch::settle();
        pass!(thrd_create(thread, begin, argument))
    }

    fn unshare(flags: c_int) -> c_int {
        if flags & libc::CLONE_FILES != 0 && identity::has_threads() {
            dispatch::plain_process(dispatch::Why::OwnDescriptors);
        }
        pass!(unshare(flags))
    }

    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        let filters = a == libc::SECCOMP_MODE_FILTER as usize && b != 0;
        if option == libc::PR_SET_SECCOMP && (filters || a == libc::SECCOMP_MODE_STRICT as usize) {
            start::before_seccomp();
        }
        pass!(prctl(option, a, b, c, d))
    }

    fn daemon(keep_directory: c_int, keep_stdio: c_int) -> c_int {
        let result = pass!(daemon(keep_directory, keep_stdio));
        if result == 0 && keep_stdio == 0 {
            (0..=2).for_each(table::plain);
        }
        result
    }

    fn login_tty(fd: c_int) -> c_int {
        let result = pass!(login_tty(fd));
        if result == 0 {
            (0..=2).chain([fd]).for_each(table::plain);
        }
        result
    }

    fn system(command: *const c_char) -> c_int {
        if !command.is_null() {
            start::before_spawn();
        }
        pass!(system(command))
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        start::before_spawn();
        pass!(popen(command, mode))
    }

    fn _exit(status: c_int) -> ! {
        start::ends();
        pass!(_exit(status))
    }

    fn _Exit(status: c_int) -> ! {
        start::ends();
        pass!(_Exit(status))
    }
}
