//! Errors of sockets that the kernel does not know, beside what it reports.
//!
//! # Model
//! Where a peer closed or died with unread bytes in its ring, the library may have the error that the kernel would have
//! ([`owes_error`]). The kernel reports the end of such a connection without it. Which socket
//! an event of an instance is of, the kernel's own list says: it may have been registered when or by whom this process does not know.

use libc::{c_int, epoll_event, pollfd};

use crate::fd::table;
use crate::socket::peer_death::owes_error;
use crate::sys::{kernel, memory};

/// Whether the kernel would show `POLLERR` beside these events: the end of both directions always comes with an error.
#[inline(always)]
fn may_lack_error(events: u32) -> bool {
    let (end, error) = (libc::EPOLLHUP as u32, libc::EPOLLERR as u32);
    events & (end | error) == end
}

/// What `poll` has found, with the errors that the kernel does not know.
#[inline]
pub fn told(found: isize, set: *mut pollfd) -> isize {
    let (mut rest, mut place) = (found, set);
    while rest > 0
        && let Some(mut entry) = memory::fetch(place)
    {
        rest -= isize::from(entry.revents != 0);
        if may_lack_error(u32::from(entry.revents as u16))
            && table::known(entry.fd).is_some_and(|sock| owes_error(&sock))
        {
            entry.revents |= libc::POLLERR;
            memory::put(place, entry);
        }
        place = place.wrapping_add(1);
    }
    found
}

/// The same of `epoll_wait`.
#[inline]
pub fn told_waiting(set: c_int, found: isize, events: *mut epoll_event) -> isize {
    for at in 0..usize::try_from(found).unwrap_or(0) {
        let place = events.wrapping_add(at);
        if let Some(mut event) = memory::fetch(place).filter(|event| may_lack_error(event.events))
            && member_owes_error(set, event.u64)
        {
            event.events |= libc::EPOLLERR as u32;
            memory::put(place, event);
        }
    }
    found
}

/// Whether a socket does that the kernel's instance has with this data, in whatever way it was registered.
#[cold]
fn member_owes_error(set: c_int, data: u64) -> bool {
    table::each().any(|sock| owes_error(&sock) && kernel::is_registered(set, sock.fd, data))
}
