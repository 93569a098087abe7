//! Waiting: `poll`, `select`, `epoll`.
//!
//! A set without a tracked socket costs one look-up a member and goes on to the kernel.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::dispatch;
use crate::fd::{
    record::{Kind, Origin},
    table,
};
use crate::ready::deferred_ctl;
use crate::sys::clock::Wait;

fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        table::made(fd, Kind::Epoll, Origin::Made);
    }
    fd
}

interpose! {
    fn poll(set: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let own = own_int!(poll(set, count, timeout));
        dispatch::poll(set, count, Some(Wait::millis(timeout)), null(), own) as c_int
    }

    fn __poll_chk(set: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
        let fits = room / size_of::<pollfd>();
        checked!(count as usize, fits, __poll_chk(set, count, timeout, room) => poll(set, count, timeout))
    }

    fn ppoll(set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int {
        let own = own_int!(ppoll(set, count, timeout, mask));
        dispatch::poll(set, count, Wait::spec(timeout), mask, own) as c_int
    }

    fn __ppoll_chk(set: *mut pollfd, count: nfds_t, timeout: *const timespec,
        mask: *const sigset_t, room: usize) -> c_int {
        let fits = room / size_of::<pollfd>();
        checked!(count as usize, fits, __ppoll_chk(set, count, timeout, mask, room) => ppoll(set, count, timeout, mask))
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int {
        let own = own_int!(select(count, read, write, except, timeout));
        let time = (Wait::val(timeout), timeout);
        dispatch::select(count, [read, write, except], time, null(), own) as c_int
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let own = own_int!(pselect(count, read, write, except, timeout, mask));
        let time = (Wait::spec(timeout), null_mut());
        dispatch::select(count, [read, write, except], time, mask, own) as c_int
    }

    fn epoll_create(size: c_int) -> c_int { made(pass!(epoll_create(size))) }

    fn epoll_create1(flags: c_int) -> c_int { made(pass!(epoll_create1(flags))) }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let own = own_int!(epoll_ctl(set, operation, fd, event));
        deferred_ctl::control(table::epoll(set), operation, fd, event, own) as c_int
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
        let own = own_int!(epoll_wait(set, events, room, timeout));
        dispatch::epoll_wait(set, events, room, Some(Wait::millis(timeout)), own) as c_int
    }

    fn epoll_pwait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int {
        let own = own_int!(epoll_pwait(set, events, room, timeout, mask));
        dispatch::epoll_wait(set, events, room, Some(Wait::millis(timeout)), own) as c_int
    }

    fn epoll_pwait2(set: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int {
        let own = own_int!(epoll_pwait2(set, events, room, timeout, mask));
        dispatch::epoll_wait(set, events, room, Wait::spec(timeout), own) as c_int
    }
}

alias! {
    __poll = poll;
    __select = select;
}
