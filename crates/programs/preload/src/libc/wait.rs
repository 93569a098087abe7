//! Waiting: `poll`, `select`, `epoll`.
//!
//! A set without a tracked socket costs one look-up a member and goes on to the kernel.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::dispatch;
use crate::fd::{
    call::Own,
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

/// `poll` and its kin, by the program's own call where no socket of ours is in the set, or the kernel refuses the time (`None`).
fn polled(
    set: *mut pollfd,
    count: nfds_t,
    wait: Option<Wait>,
    mask: *const sigset_t,
    own: Own,
) -> c_int {
    flush_epoll_ctl();
    let result = match wait.filter(|_| any_polled(set, count)) {
        None => own.call(),
        Some(wait) => dispatch::poll(set, count, wait, mask, own),
    };
    result as c_int
}

/// The same of `select`; `left_at`: where the program wants to know what is left of the time.
fn selected(
    count: c_int,
    sets: [*mut fd_set; 3],
    (wait, left_at): (Option<Wait>, *mut timeval),
    mask: *const sigset_t,
    own: Own,
) -> c_int {
    flush_epoll_ctl();
    let result = match wait.filter(|_| any_selected(count, sets)) {
        None => own.call(),
        Some(wait) => dispatch::select(count, sets, (wait, left_at), mask, own),
    };
    result as c_int
}

/// The same of `epoll_wait`, where the instance is not known.
fn waited(
    set: c_int,
    (events, room): (*mut epoll_event, c_int),
    wait: Option<Wait>,
    own: Own,
) -> c_int {
    let result = match table::epoll(set).zip(wait) {
        None => {
            flush_epoll_ctl();
            own.call()
        }
        Some((instance, wait)) => dispatch::epoll_wait(instance, events, room, wait, own),
    };
    result as c_int
}

/// A new instance has this number.
fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        table::made(fd, Kind::Epoll, Origin::Made);
    }
    fd
}

interpose! {
    fn poll(set: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let own = own_int!(poll(set, count, timeout));
        polled(set, count, Some(Wait::millis(timeout)), null(), own)
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
        let own = own_int!(ppoll(set, count, timeout, mask));
        polled(set, count, Wait::spec(timeout), mask, own)
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
        let own = own_int!(select(count, read, write, except, timeout));
        selected(count, [read, write, except], (Wait::val(timeout), timeout), null(), own)
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let own = own_int!(pselect(count, read, write, except, timeout, mask));
        selected(count, [read, write, except], (Wait::spec(timeout), null_mut()), mask, own)
    }

    fn epoll_create(size: c_int) -> c_int { made(pass!(epoll_create(size))) }

    fn epoll_create1(flags: c_int) -> c_int { made(pass!(epoll_create1(flags))) }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let own = own_int!(epoll_ctl(set, operation, fd, event));
        sets::control(table::epoll(set), operation, fd, event, own) as c_int
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
        let own = own_int!(epoll_wait(set, events, room, timeout));
        waited(set, (events, room), Some(Wait::millis(timeout)), own)
    }

    fn epoll_pwait(set: c_int, events: *mut epoll_event, room: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int {
        let own = own_int!(epoll_pwait(set, events, room, timeout, mask));
        waited(set, (events, room), Some(Wait::millis(timeout)), own)
    }

    fn epoll_pwait2(set: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int {
        let own = own_int!(epoll_pwait2(set, events, room, timeout, mask));
        waited(set, (events, room), Wait::spec(timeout), own)
    }
}

alias! {
    __poll = poll;
    __select = select;
}
