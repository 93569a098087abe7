//! Processes: `fork`, `clone`, the end, and what changes the rules for the whole process.

use std::ffi::{c_char, c_int, c_void};

use libc::pid_t;

use crate::real::CloneFn;
use crate::target;
use crate::{engine, owner, start, strict, table, watch};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The environment as it stands.
pub(super) fn environment() -> *const *const c_char {
    // SAFETY: libc's own variable.
    unsafe { environ }
}

/// A shell is about to be started with our environment, in a child that libc makes by itself.
fn before_shell() {
    // SAFETY: both are as for execve.
    let target = unsafe { target::judge(libc::AT_FDCWD, c"/bin/sh".as_ptr(), environment()) };
    super::exec::before_spawn(target);
}

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
        watch::retire();
        if flags & libc::CLONE_VM != 0 && flags & libc::CLONE_THREAD == 0 {
            owner::will_be_borrowed();
        }
        let shared = flags & libc::CLONE_VM != 0 && flags & libc::CLONE_VFORK == 0;
        if shared && flags & libc::CLONE_FILES == 0 {
            engine::plain_process(engine::Why::OwnDescriptors);
        }
        pass!(clone(run, stack, flags, argument, parent, tls, child))
    }

    fn pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        begin: strict::Start, argument: *mut c_void) -> c_int {
        watch::retire();
        if !strict::is_on() {
            return pass!(pthread_create(thread, attributes, begin, argument));
        }
        let packed = strict::pack(begin, argument);
        if packed.is_null() {
            return libc::EAGAIN;
        }
        let result = pass!(pthread_create(thread, attributes, strict::begin, packed));
        if result != 0 {
            // SAFETY: no thread was made.
            unsafe { strict::unpack(packed) };
        }
        result
    }

    fn thrd_create(thread: *mut libc::pthread_t, begin: strict::Start, argument: *mut c_void)
        -> c_int {
        watch::retire();
        if !strict::is_on() {
            return pass!(thrd_create(thread, begin, argument));
        }
        /// `thrd_nomem`.
        const NO_MEMORY: c_int = 3;
        let packed = strict::pack(begin, argument);
        if packed.is_null() {
            return NO_MEMORY;
        }
        let result = pass!(thrd_create(thread, strict::begin, packed));
        if result != 0 {
            // SAFETY: no thread was made.
            unsafe { strict::unpack(packed) };
        }
        result
    }

    fn unshare(flags: c_int) -> c_int {
        if flags & libc::CLONE_FILES != 0 && owner::has_threads() {
            engine::plain_process(engine::Why::OwnDescriptors);
        }
        pass!(unshare(flags))
    }

    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        let filters = a == libc::SECCOMP_MODE_FILTER as usize && b != 0;
        if option == libc::PR_SET_SECCOMP && (filters || a == libc::SECCOMP_MODE_STRICT as usize) {
            start::before_seccomp();
        } else if option == strict::PR_SET_SYSCALL_USER_DISPATCH {
            watch::retire();
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
            before_shell();
        }
        pass!(system(command))
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        before_shell();
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
