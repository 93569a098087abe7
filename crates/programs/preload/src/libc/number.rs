//! `syscall()`: the calls that concern sockets, made by number.
//!
//! What is tracked takes the way of the call by name, and is a cancellation point where that is one. Everything else goes
//! straight on.

use std::ffi::{c_int, c_long};

use crate::fd::{call::Own, table};
use crate::libc::{data, exec, files, message, names, options, process, wait};
use crate::lifecycle;
use crate::process::identity;
use crate::ready::{deferred_ctl::flush_epoll_ctl, poll, select, uring};
use crate::sys::memory;

/// The call of this number by its name; `None`: it is none of these. Each takes its arguments as the system call does, and gives an
/// `int` or a `ssize_t`.
macro_rules! by_name {
    ($number:expr, $arguments:expr; $($(#[$when:meta])? $call:ident $(if $guard:expr)? => $name:path, $gives:ident;)*) => {
        match $number {
            $($(#[$when])? libc::$call $(if $guard)? => {
                Some(Own::named($name as *const (), $arguments, by_name!($gives)).call())
            })*
            _ => None,
        }
    };
    (int) => { true };
    (long) => { false };
}

/// Calls that may concern a socket of ours. A wait whose system call differs from libc's function has to be made as it stands where no
/// socket of ours is in it.
fn by_name(number: c_long, x: [usize; 6]) -> Option<isize> {
    let fd = x[0] as c_int;
    by_name! { number, x;
        SYS_read => data::read, long;
        SYS_readv => data::readv, long;
        SYS_recvfrom => data::recvfrom, long;
        SYS_write => data::write, long;
        SYS_writev => data::writev, long;
        SYS_sendto => data::sendto, long;
        SYS_sendfile => data::sendfile, long;
        SYS_splice => data::splice, long;
        SYS_sendmsg => message::sendmsg, long;
        SYS_recvmsg => message::recvmsg, long;
        SYS_sendmmsg => message::sendmmsg, int;
        SYS_recvmmsg => message::recvmmsg, int;
        SYS_close => files::close, int;
        SYS_close_range => files::close_range, int;
        SYS_dup => files::dup, int;
        #[cfg(target_arch = "x86_64")]
        SYS_dup2 => files::dup2, int;
        SYS_dup3 => files::dup3, int;
        SYS_fcntl => files::fcntl, int;
        SYS_pidfd_getfd => files::pidfd_getfd, int;
        SYS_ioctl => options::ioctl, int;
        SYS_getsockopt => options::getsockopt, int;
        SYS_setsockopt => options::setsockopt, int;
        SYS_socket => names::socket, int;
        SYS_socketpair => names::socketpair, int;
        SYS_listen => names::listen, int;
        SYS_accept => names::accept, int;
        SYS_accept4 => names::accept4, int;
        SYS_connect => names::connect, int;
        SYS_getpeername => names::getpeername, int;
        SYS_shutdown => names::shutdown, int;
        #[cfg(target_arch = "x86_64")]
        SYS_poll => wait::poll, int;
        SYS_ppoll if poll::is_ours(x[0] as *const _, x[1] as _) => wait::ppoll, int;
        #[cfg(target_arch = "x86_64")]
        SYS_select => wait::select, int;
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_create => wait::epoll_create, int;
        SYS_epoll_create1 => wait::epoll_create1, int;
        SYS_epoll_ctl => wait::epoll_ctl, int;
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_wait => wait::epoll_wait, int;
        SYS_epoll_pwait if table::epoll(fd).is_some() => wait::epoll_pwait, int;
        SYS_epoll_pwait2 if table::epoll(fd).is_some() => wait::epoll_pwait2, int;
        SYS_execve => exec::execve, int;
        SYS_execveat => exec::execveat, int;
        SYS_unshare => process::unshare, int;
        SYS_exit_group => process::_exit, int;
    }
}

/// `pselect6`, whose mask is behind a pointer, where a socket of ours is in it.
fn pselect(x: [usize; 6]) -> Option<isize> {
    let sets = [x[1] as *mut _, x[2] as *mut _, x[3] as *mut _];
    let mut mask = [0usize; 2];
    let given = x[5] == 0 || memory::fetch_all(&mut mask, x[5] as *const _);
    if !given || !select::is_ours(x[0] as c_int, &sets) {
        return None;
    }
    let arguments = [x[0], x[1], x[2], x[3], x[4], mask[0]];
    Some(Own::named(wait::pselect as *const (), arguments, true).call())
}

/// A call by number as `syscall()` makes it.
unsafe extern "C-unwind" fn bare<const N: c_long>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the program's own arguments for this call.
    unsafe { own::syscall(N as isize, a, b, c, d, e, f) }
}

/// Calls that have no name in libc; `None`: it is made as it stands.
fn unnamed(number: c_long, x: [usize; 6]) -> Option<isize> {
    match number {
        libc::SYS_pselect6 => return pselect(x),
        libc::SYS_io_uring_setup => {
            let own = Own::named(bare::<{ libc::SYS_io_uring_setup }> as *const (), x, false);
            return Some(uring::setup(x[1] as *const _, own));
        }
        libc::SYS_io_uring_enter => {
            let own = Own::named(bare::<{ libc::SYS_io_uring_enter }> as *const (), x, false);
            return Some(uring::enter(x[0] as c_int, x[1] as u32, own));
        }
        libc::SYS_clone if x[0] & libc::CLONE_VM as usize != 0 => identity::will_be_borrowed(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => identity::will_be_borrowed(),
        libc::SYS_clone3 => identity::will_be_borrowed(),
        libc::SYS_seccomp if sets_seccomp(x) => lifecycle::before_seccomp(),
        _ => {}
    }
    None
}

/// Whether `seccomp(2)` is asked for more than what it can do (by an operation, or by a filter that is not there).
fn sets_seccomp([operation, _, filter, ..]: [usize; 6]) -> bool {
    match operation as libc::c_uint {
        libc::SECCOMP_SET_MODE_STRICT => true,
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    }
}

interpose! {
    fn syscall(number: isize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
        let x = [a, b, c, d, e, f];
        let done = by_name(number as c_long, x).or_else(|| unnamed(number as c_long, x));
        done.unwrap_or_else(|| {
            flush_epoll_ctl();
            pass!(syscall(number, a, b, c, d, e, f))
        })
    }
}
