//! Descriptors: closing, doubling and everything else that gives or takes a number.

use windlass_channel::Reason;

use std::ffi::{c_int, c_uint};

use crate::fd::table;
use crate::process::identity;
use crate::socket::{demote::demote_all, sockopt};
use crate::sys::kernel;

#[inline]
fn other_pair(result: c_int, pair: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: the kernel has just written both.
        let fds = unsafe { *pair.cast::<[c_int; 2]>() };
        fds.into_iter().for_each(table::other);
    }
    result
}

/// `got` is a second number of `old`.
#[inline]
fn doubled(old: c_int, got: c_int) -> c_int {
    if got >= 0 && got != old && table::exists() {
        match table::tracked(old).or_else(|| table::any(old)) {
            Some(sock) => table::duplicated(sock, got),
            None => table::other(got),
        }
    }
    got
}

/// `dup2` is about to close `number`, if `old` is open.
fn before_replacing(old: c_int, number: c_int) {
    let Some(sock) = table::any(number).filter(|_| old != number) else {
        return;
    };
    if kernel::fcntl(old, libc::F_GETFD, 0).is_ok() && identity::is_ours() {
        table::closing(sock);
    }
}

#[cold]
#[inline(never)]
fn before_closing(fd: c_int) {
    match table::any(fd) {
        Some(sock) if identity::is_ours() => table::closing(sock),
        Some(_) => {}
        None => table::forget_other(fd),
    }
}

/// The number is about to be closed, by the program or by libc itself.
#[inline(always)]
pub(super) fn closes(fd: c_int) {
    if table::is_entered(fd) {
        before_closing(fd);
    }
}

/// Lets go of every known number in the range that is about to be closed.
fn before_closing_range(first: u32, last: u32) {
    if table::exists() && identity::is_ours() {
        table::range(first, last).for_each(table::closing);
        table::forget_other_range(first, last);
    }
}

interpose! {
    fn close(fd: c_int) -> c_int {
        closes(fd);
        pass!(close(fd))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let known = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
        if flags as c_uint & !known != 0 || first > last {
            return pass!(close_range(first, last, flags));
        }
        if flags as c_uint & libc::CLOSE_RANGE_UNSHARE != 0 && identity::has_threads() {
            demote_all(Reason::Cloned);
        } else if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
            before_closing_range(first, last);
        }
        pass!(close_range(first, last, flags))
    }

    fn closefrom(first: c_int) {
        before_closing_range(first.max(0) as u32, u32::MAX);
        pass!(closefrom(first))
    }

    fn dup(fd: c_int) -> c_int {
        doubled(fd, pass!(dup(fd)))
    }

    fn dup2(old: c_int, number: c_int) -> c_int {
        before_replacing(old, number);
        doubled(old, pass!(dup2(old, number)))
    }

    fn dup3(old: c_int, number: c_int, flags: c_int) -> c_int {
        if flags & !libc::O_CLOEXEC == 0 {
            before_replacing(old, number);
        }
        doubled(old, pass!(dup3(old, number, flags)))
    }

    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
            return doubled(fd, pass!(fcntl(fd, command, argument)));
        }
        match table::tracked(fd) {
            None => pass!(fcntl(fd, command, argument)),
            Some(sock) => {
                let own = own_int!(fcntl(fd, command, argument));
                sockopt::fcntl(&sock, command, argument, own) as c_int
            }
        }
    }

    fn pipe(pair: *mut c_int) -> c_int {
        other_pair(pass!(pipe(pair)), pair)
    }

    fn pipe2(pair: *mut c_int, flags: c_int) -> c_int {
        other_pair(pass!(pipe2(pair, flags)), pair)
    }

    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int {
        let got = pass!(pidfd_getfd(pidfd, fd, flags));
        if got >= 0 {
            table::taken(got);
        }
        got
    }
}

alias! {
    __close = close;
    __dup2 = dup2;
    __fcntl = fcntl;
    fcntl64 = fcntl;
}
