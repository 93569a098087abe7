//! Waiting: `poll`, `select`, `epoll`.
//!
//! A set without a tracked socket costs one look-up a member and goes on to the kernel.

use std::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::dispatch;
use crate::fd::{
    record::{Kind, Origin},
    table,
};
use crate::ready::{deferred_ctl::flush_epoll_ctl, sets};
use crate::sys::{clock::Wait, memory};

/// Whether a tracked socket or an epoll instance is in the set. A set that cannot be read has none: the kernel says EFAULT.
#[inline]
pub(super) fn any_polled(set: *const pollfd, count: nfds_t) -> bool {
    if !table::exists() {
        return false;
    }
    let count = count as usize;
    if count
        .checked_mul(size_of::<pollfd>())
        .is_none_or(|bytes| bytes > isize::MAX as usize)
    {
        return false;
    }
    if count == 0 || !memory::readable(set.cast(), count * size_of::<pollfd>()) {
        return false;
    }
    // SAFETY: every page was read a moment ago; the program keeps the set for the call.
    let set = unsafe { std::slice::from_raw_parts(set, count) };
    set.iter().any(|member| table::any(member.fd).is_some())
}

/// Whether a tracked socket or an epoll instance is in one of the sets.
#[inline]
pub(super) fn any_selected(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let Some(count) = usize::try_from(count).ok().filter(|_| table::exists()) else {
        return false;
    };
    let words = count.div_ceil(64);
    if words == 0 {
        return false;
    }
    sets.into_iter().filter(|set| !set.is_null()).any(|set| {
        memory::readable(set.cast(), words * 8)
            && (0..words).any(|index| {
                let place = set.cast::<u64>().wrapping_add(index);
                // SAFETY: every page was read a moment ago; the program keeps the set for the call.
                let mut word = unsafe { place.read_unaligned() };
                while word != 0 {
                    let fd = index * 64 + word.trailing_zeros() as usize;
                    if fd < count && table::any(fd as c_int).is_some() {
                        return true;
                    }
                    word &= word - 1;
                }
                false
            })
    })
}

interpose! {
    fn poll(set: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        flush_epoll_ctl();
        if !any_polled(set, count) {
            return pass!(poll(set, count, timeout));
        }
        let own = own_int!(poll(set, count, timeout));
        dispatch::poll(set, count, Wait::millis(timeout), std::ptr::null(), own) as c_int
    }

    fn __poll_chk(set: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            return pass!(__poll_chk(set, count, timeout, room));
        }
        // SAFETY: the same function once the check was made.
        unsafe { poll(set, count, timeout) }
    }

    fn ppoll(set: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int {
        flush_epoll_ctl();
        match Wait::spec(timeout).filter(|_| any_polled(set, count)) {
            None => pass!(ppoll(set, count, timeout, mask)),
            Some(wait) => {
                let own = own_int!(ppoll(set, count, timeout, mask));
                dispatch::poll(set, count, wait, mask, own) as c_int
            }
        }
    }

    fn __ppoll_chk(set: *mut pollfd, count: nfds_t, timeout: *const timespec,
        mask: *const sigset_t, room: usize) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            return pass!(__ppoll_chk(set, count, timeout, mask, room));
        }
        // SAFETY: the same function once the check was made.
        unsafe { ppoll(set, count, timeout, mask) }
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int {
        let sets = [read, write, except];
        flush_epoll_ctl();
        match Wait::val(timeout).filter(|_| any_selected(count, sets)) {
            None => pass!(select(count, read, write, except, timeout)),
            Some(wait) => {
                let own = own_int!(select(count, read, write, except, timeout));
                dispatch::select(count, sets, (wait, timeout), std::ptr::null(), own) as c_int
            }
        }
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let sets = [read, write, except];
        flush_epoll_ctl();
        match Wait::spec(timeout).filter(|_| any_selected(count, sets)) {
            None => pass!(pselect(count, read, write, except, timeout, mask)),
            Some(wait) => {
                let own = own_int!(pselect(count, read, write, except, timeout, mask));
                dispatch::select(count, sets, (wait, std::ptr::null_mut()), mask, own) as c_int
            }
        }
    }

    fn epoll_create(size: c_int) -> c_int {
        let fd = pass!(epoll_create(size));
        if fd >= 0 {
            table::made(fd, Kind::Epoll, Origin::Made);
        }
        fd
    }

    fn epoll_create1(flags: c_int) -> c_int {
        let fd = pass!(epoll_create1(flags));
        if fd >= 0 {
            table::made(fd, Kind::Epoll, Origin::Made);
        }
        fd
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        match table::epoll(set) {
            None => {
                flush_epoll_ctl();
                let result = pass!(epoll_ctl(set, operation, fd, event));
                if result == 0 && operation == libc::EPOLL_CTL_ADD && table::is_entered(fd) {
                    sets::registered_unseen(fd);
                }
                result
            }
            Some(instance) => {
                let own = own_int!(epoll_ctl(set, operation, fd, event));
                sets::control(instance, operation, fd, event, own) as c_int
            }
        }
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
        match table::epoll(set) {
            None => {
                flush_epoll_ctl();
                pass!(epoll_wait(set, events, room, timeout))
            }
            Some(instance) => {
                let own = own_int!(epoll_wait(set, events, room, timeout));
                let wait = Wait::millis(timeout);
                dispatch::epoll_wait(instance, events, room, wait, std::ptr::null(), own) as c_int
            }
        }
    }

    fn epoll_pwait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int {
        match table::epoll(set) {
            None => {
                flush_epoll_ctl();
                pass!(epoll_pwait(set, events, room, timeout, mask))
            }
            Some(instance) => {
                let own = own_int!(epoll_pwait(set, events, room, timeout, mask));
                dispatch::epoll_wait(instance, events, room, Wait::millis(timeout), mask, own) as c_int
            }
        }
    }

    fn epoll_pwait2(set: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int {
        match table::epoll(set).zip(Wait::spec(timeout)) {
            None => {
                flush_epoll_ctl();
                pass!(epoll_pwait2(set, events, room, timeout, mask))
            }
            Some((instance, wait)) => {
                let own = own_int!(epoll_pwait2(set, events, room, timeout, mask));
                dispatch::epoll_wait(instance, events, room, wait, mask, own) as c_int
            }
        }
    }
}

alias! {
    __poll = poll;
    __select = select;
}
