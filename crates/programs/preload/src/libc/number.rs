//! `syscall()`: the calls that concern sockets, made by number.
//!
//! What is tracked takes the same way as the call by name, but its own call stays the system call: it is
//! no cancellation point. Everything else goes straight on.

use windlass_channel::Reason;

use std::ffi::{c_int, c_long};

use crate::dispatch;
use crate::fd::{
    call::{Data, Own},
    table,
};
use crate::libc::{data, exec, files, message, names, options, process, wait};
use crate::lifecycle;
use crate::process::identity;
use crate::ready::{deferred_ctl::flush_epoll_ctl, uring};
use crate::socket::demote::demote_all;
use crate::sys::{memory, real};

/// One system call by number, as `syscall()` makes it.
unsafe extern "C-unwind" fn bare<const N: c_long>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the program's own arguments for this call.
    unsafe { real::syscall(N as isize, a, b, c, d, e, f) }
}

/// Bytes in or out of a tracked socket; `None`: not one of these calls, or not tracked.
fn data_call(number: c_long, x: [usize; 6]) -> Option<isize> {
    let moves_bytes = matches!(
        number,
        libc::SYS_read
            | libc::SYS_recvfrom
            | libc::SYS_write
            | libc::SYS_sendto
            | libc::SYS_readv
            | libc::SYS_writev
    ) && (number != libc::SYS_read || x[2] != 0);
    let sock = table::tracked(x[0] as c_int).filter(|_| moves_bytes)?;
    let (at, bytes, flags) = (x[1] as *mut _, x[2], x[3] as c_int);
    let result = match number {
        libc::SYS_read => data::recv_one(
            sock,
            at,
            bytes,
            0,
            data::NO_NAME,
            Own::raw(bare::<{ libc::SYS_read }>, x),
        ),
        libc::SYS_recvfrom => {
            let name = if x[4] == 0 {
                data::NO_NAME
            } else {
                (x[4] as *mut _, x[5] as *mut _)
            };
            let own = Own::raw(bare::<{ libc::SYS_recvfrom }>, x);
            data::recv_one(sock, at, bytes, flags, name, own)
        }
        libc::SYS_write => data::send_one(
            sock,
            at,
            bytes,
            0,
            false,
            Own::raw(bare::<{ libc::SYS_write }>, x),
        ),
        libc::SYS_sendto => {
            let own = Own::raw(bare::<{ libc::SYS_sendto }>, x);
            data::send_one(sock, at, bytes, flags, x[4] != 0, own)
        }
        libc::SYS_readv => {
            let own = Own::raw(bare::<{ libc::SYS_readv }>, x);
            dispatch::recv(sock, Data::list(x[1] as *const _, x[2]), 0, own)
        }
        libc::SYS_writev => {
            let own = Own::raw(bare::<{ libc::SYS_writev }>, x);
            dispatch::send(sock, Data::list(x[1] as *const _, x[2]), 0, own)
        }
        _ => return None,
    };
    Some(result)
}

/// Calls that take or give numbers, or wait.
fn other_call(number: c_long, x: [usize; 6]) -> Option<isize> {
    let fd = x[0] as c_int;
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one a call")]
    // SAFETY: in each arm, the program's own arguments for the call of this name.
    let result = unsafe {
        match number {
            libc::SYS_close => files::close(fd),
            libc::SYS_close_range => files::close_range(x[0] as u32, x[1] as u32, x[2] as c_int),
            libc::SYS_dup => files::dup(fd),
            libc::SYS_dup2 => files::dup2(fd, x[1] as c_int),
            libc::SYS_dup3 => files::dup3(fd, x[1] as c_int, x[2] as c_int),
            libc::SYS_fcntl => files::fcntl(fd, x[1] as c_int, x[2]),
            libc::SYS_ioctl => options::ioctl(fd, x[1], x[2]),
            libc::SYS_socket => names::socket(fd, x[1] as c_int, x[2] as c_int),
            libc::SYS_socketpair => {
                names::socketpair(fd, x[1] as c_int, x[2] as c_int, x[3] as *mut _)
            }
            libc::SYS_listen => names::listen(fd, x[1] as c_int),
            libc::SYS_accept => names::accept(fd, x[1] as *mut _, x[2] as *mut _),
            libc::SYS_accept4 => names::accept4(fd, x[1] as *mut _, x[2] as *mut _, x[3] as c_int),
            libc::SYS_connect => names::connect(fd, x[1] as *const _, x[2] as u32),
            libc::SYS_getpeername => names::getpeername(fd, x[1] as *mut _, x[2] as *mut _),
            libc::SYS_shutdown => names::shutdown(fd, x[1] as c_int),
            libc::SYS_poll => wait::poll(x[0] as *mut _, x[1] as _, x[2] as c_int),
            libc::SYS_select => wait::select(
                fd,
                x[1] as *mut _,
                x[2] as *mut _,
                x[3] as *mut _,
                x[4] as *mut _,
            ),
            libc::SYS_epoll_create1 => wait::epoll_create1(fd),
            libc::SYS_epoll_ctl => {
                wait::epoll_ctl(fd, x[1] as c_int, x[2] as c_int, x[3] as *mut _)
            }
            libc::SYS_epoll_wait => {
                wait::epoll_wait(fd, x[1] as *mut _, x[2] as c_int, x[3] as c_int)
            }
            libc::SYS_execve => exec::execve(x[0] as *const _, x[1] as *const _, x[2] as *const _),
            libc::SYS_unshare => process::unshare(fd),
            _ => return wait_call(number, x).or_else(|| long_call(number, x)),
        }
    };
    Some(result as isize)
}

/// Waiting calls whose system call differs from libc's function: those without a socket of ours must be made as they
/// stand.
fn wait_call(number: c_long, x: [usize; 6]) -> Option<isize> {
    let fd = x[0] as c_int;
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one a call")]
    // SAFETY: in each arm, the program's own arguments for the call of this name.
    let result = unsafe {
        match number {
            libc::SYS_ppoll if wait::any_polled(x[0] as *const _, x[1] as _) => wait::ppoll(
                x[0] as *mut _,
                x[1] as _,
                x[2] as *const _,
                x[3] as *const _,
            ),
            libc::SYS_pselect6 => {
                let sets = [x[1] as *mut _, x[2] as *mut _, x[3] as *mut _];
                let mut mask = [0usize; 2];
                let given = x[5] == 0 || memory::fetch_all(&mut mask, x[5] as *const _);
                if !given || !wait::any_selected(fd, sets) {
                    return None;
                }
                let [read, write, except] = sets;
                wait::pselect(
                    fd,
                    read,
                    write,
                    except,
                    x[4] as *const _,
                    mask[0] as *const _,
                )
            }
            libc::SYS_epoll_create => wait::epoll_create(fd),
            libc::SYS_epoll_pwait if table::epoll(fd).is_some() => {
                let mask = x[4] as *const _;
                wait::epoll_pwait(fd, x[1] as *mut _, x[2] as c_int, x[3] as c_int, mask)
            }
            libc::SYS_epoll_pwait2 if table::epoll(fd).is_some() => {
                let mask = x[4] as *const _;
                wait::epoll_pwait2(fd, x[1] as *mut _, x[2] as c_int, x[3] as *const _, mask)
            }
            _ => return None,
        }
    };
    Some(result as isize)
}

/// Whether `seccomp(2)` is asked for more than what it can do (by an operation, or by a filter that is not there).
fn sets_seccomp([operation, _, filter, ..]: [usize; 6]) -> bool {
    match operation as libc::c_uint {
        libc::SECCOMP_SET_MODE_STRICT => true,
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    }
}

/// What has to be known of calls that are made as they stand.
fn note_number(number: c_long, x: [usize; 6]) {
    if matches!(
        number,
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork | libc::SYS_fork
    ) {
        flush_epoll_ctl();
    }
    match number {
        libc::SYS_io_uring_setup => demote_all(Reason::IoUring),
        libc::SYS_clone if x[0] & libc::CLONE_VM as usize != 0 => identity::will_be_borrowed(),
        libc::SYS_vfork | libc::SYS_clone3 => identity::will_be_borrowed(),
        libc::SYS_seccomp if sets_seccomp(x) => lifecycle::before_seccomp(),
        _ => {}
    }
}

/// Those that give a long, and those that only have to be known.
fn long_call(number: c_long, x: [usize; 6]) -> Option<isize> {
    let fd = x[0] as c_int;
    match number {
        libc::SYS_io_uring_setup => {
            let own = Own::raw(bare::<{ libc::SYS_io_uring_setup }>, x);
            return Some(uring::setup(x[1] as *const _, own));
        }
        libc::SYS_io_uring_enter => {
            let own = Own::raw(bare::<{ libc::SYS_io_uring_enter }>, x);
            return Some(uring::enter(fd, x[1] as u32, own));
        }
        _ => {}
    }
    note_number(number, x);
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one a call")]
    // SAFETY: in each arm, the program's own arguments for the call of this name.
    let result = unsafe {
        match number {
            libc::SYS_sendmsg => message::sendmsg(fd, x[1] as *const _, x[2] as c_int),
            libc::SYS_recvmsg => message::recvmsg(fd, x[1] as *mut _, x[2] as c_int),
            libc::SYS_sendfile => data::sendfile(fd, x[1] as c_int, x[2] as *mut _, x[3]),
            libc::SYS_splice => data::splice(
                fd,
                x[1] as *mut _,
                x[2] as c_int,
                x[3] as *mut _,
                x[4],
                x[5] as u32,
            ),
            libc::SYS_exit_group => process::_exit(fd),
            libc::SYS_sendmmsg => {
                message::sendmmsg(fd, x[1] as *mut _, x[2] as u32, x[3] as c_int) as isize
            }
            libc::SYS_recvmmsg if table::tracked(fd).is_some() => {
                let time = x[4] as *mut _;
                message::recvmmsg(fd, x[1] as *mut _, x[2] as u32, x[3] as c_int, time) as isize
            }
            libc::SYS_getsockopt => {
                let length = x[4] as *mut _;
                options::getsockopt(fd, x[1] as c_int, x[2] as c_int, x[3] as *mut _, length)
                    as isize
            }
            libc::SYS_setsockopt => {
                let length = x[4] as u32;
                options::setsockopt(fd, x[1] as c_int, x[2] as c_int, x[3] as *const _, length)
                    as isize
            }
            libc::SYS_execveat => {
                let (arguments, environment) = (x[2] as *const _, x[3] as *const _);
                exec::execveat(fd, x[1] as *const _, arguments, environment, x[4] as c_int) as isize
            }
            libc::SYS_pidfd_getfd => files::pidfd_getfd(fd, x[1] as c_int, x[2] as u32) as isize,
            _ => return None,
        }
    };
    Some(result)
}

interpose! {
    fn syscall(number: isize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
        if !table::exists() && !concerns_first(number as c_long) {
            return pass!(syscall(number, a, b, c, d, e, f));
        }
        let x = [a, b, c, d, e, f];
        let number = number as c_long;
        match data_call(number, x).or_else(|| other_call(number, x)) {
            Some(result) => result,
            None => {
                flush_epoll_ctl();
                pass!(syscall(number as isize, a, b, c, d, e, f))
            }
        }
    }
}

/// Calls that matter before there is a table.
fn concerns_first(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_socket
            | libc::SYS_socketpair
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_epoll_create
            | libc::SYS_epoll_create1
            | libc::SYS_recvmsg
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_pidfd_getfd
            | libc::SYS_exit_group
            | libc::SYS_io_uring_setup
            | libc::SYS_seccomp
            | libc::SYS_unshare
            | libc::SYS_clone
            | libc::SYS_clone3
            | libc::SYS_vfork
    )
}
