//! The short way of a call that moves few bytes: by the ring, at once, with nothing else to be done.
//!
//! # Where it sits
//! [`crate::libc`] asks here first. What is not as most calls find it (no channel, a look at the kernel is due, no room, nothing
//! to receive, another thread inside) gets no answer, nothing was done, and [`crate::dispatch::send`] and [`crate::dispatch::recv`] begin anew. So
//! nothing has to be kept for them, and all that a call needs fits into registers. A value in memory would be loaded by other pieces
//! than it was stored by, and such a load waits until all stores before it have left the processor; among them are those of the call
//! before, to lines that the other end's core holds.

use std::ffi::{c_int, c_void};
use std::hint::cold_path;

use windlass_channel::{Bufs, Fast, Link, Owner};

use crate::fd::{call::Sock, record::flag, table};
use crate::process::{pairs::Pair, registration, signals};
use crate::socket::{
    kernel_look::{count_pushed, count_taken, is_end_due},
    send, state,
};

/// Flags that a call by the ring has no use for.
pub const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// What both have to find: the socket, the memory that it shares with its peer, and the end of its channel there; the caller.
type Way = (Sock, &'static Pair, Link<'static>, Owner);

#[inline(always)]
fn way(fd: c_int, bytes: usize, flags: c_int) -> Option<Way> {
    let (sock, word) = table::joined(fd, state::is_fast)?;
    let is_piece = (1..=isize::MAX as usize).contains(&bytes);
    if !is_piece || flags & !FLAGS != 0 {
        cold_path();
        return None;
    }
    let (pair, link) = state::end_in(word);
    Some((sock, pair, link, registration::owner()?))
}

/// `write`, `send` and `sendto` without a name; `flags` as `send`'s. None: nothing was done.
#[inline(always)]
pub fn send(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> Option<isize> {
    let (sock, pair, link, owner) = way(fd, bytes, flags)?;
    if !send::is_settled(sock.record) || is_end_due(sock.record, pair) {
        cold_path();
        return None;
    }
    let data = Bufs::out(from.cast(), bytes);
    signals::enter();
    match link.outgoing().send_fast(owner, &data) {
        Fast::Sent => signals::leave(),
        Fast::Asleep => {
            let Sock { fd, word, record } = sock;
            let data = (from.cast(), bytes);
            return Some(send::end_asleep(fd, word, record, link, data, flags));
        }
        Fast::No => {
            cold_path();
            signals::leave();
            return None;
        }
    }
    count_pushed(sock.record, pair, bytes);
    Some(bytes as isize)
}

/// `read`, `recv` and `recvfrom` without a name; `flags` as `recv`'s. None: nothing was done.
#[inline(always)]
pub fn recv(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int) -> Option<isize> {
    let (sock, _, link, owner) = way(fd, bytes, flags)?;
    if sock.record.has(flag::PENDING) {
        cold_path();
        return None;
    }
    take(&sock, link, owner, &Bufs::one(into.cast(), bytes))
}

/// What the ring has for one piece of memory.
#[inline(always)]
pub fn take(sock: &Sock, link: Link<'static>, owner: Owner, into: &Bufs) -> Option<isize> {
    signals::enter();
    let got = link.incoming().recv_fast(owner, into);
    signals::leave();
    if got == 0 {
        cold_path();
        return None;
    }
    count_taken(sock.record, got);
    Some(got as isize)
}
