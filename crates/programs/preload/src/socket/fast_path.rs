//! The short way of a call that moves few bytes: by the ring, at once, with nothing else to be done.
//!
//! # Where it sits
//! [`crate::libc`] asks here first. What is not as most calls find it (no channel, a look at the kernel is due, no room, nothing
//! to receive, another thread inside) gets no answer, nothing was done, and [`crate::dispatch::send`] and [`crate::dispatch::recv`] begin anew. So
//! nothing has to be kept for them, and all that a call needs fits into registers.
//!
//! What a call by the ring adds to the counts of its socket stands here, too, for every way.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Bufs, Fast, Link, Moved, RecvHow, Who};

use crate::fd::{
    call::Sock,
    record::{Record, flag},
    table,
};
use crate::process::{pairs, registration, signals};
use crate::socket::{send, state};

/// Of the sends in a row that go by the ring, the first ones but for the very first, which answers the peer, and then one in so
/// many look at the clock.
const CLOCK_FIRST: u32 = 16;
const CLOCK_CALLS: u32 = 64;
/// Flags that a send by the ring has no use for.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// The same for a receive.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// What both have to find: the socket, its place, the end of its channel, and the caller.
struct Way {
    sock: Sock,
    place: u8,
    link: Link<'static>,
    who: Who<'static>,
}

#[inline(always)]
fn way(fd: c_int, bytes: usize) -> Option<Way> {
    let (sock, word) = table::joined(fd)?;
    let is_piece = bytes != 0 && bytes <= isize::MAX as usize;
    if !state::is_fast(word) || !is_piece {
        return None;
    }
    Some(Way {
        sock,
        place: state::place_in(word)?,
        link: state::link_in(word)?,
        who: registration::who()?,
    })
}

/// `write`, `send` and `sendto` without a name; `flags` as `send`'s. None: nothing was done.
#[inline(always)]
pub fn send(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> Option<isize> {
    let Way {
        sock,
        place,
        link,
        who,
    } = way(fd, bytes)?;
    let is_settled = send::is_settled(sock.record) && !is_end_due(sock.record, place);
    if flags & !SEND_FLAGS != 0 || !is_settled {
        return None;
    }
    let data = Bufs::out(from.cast(), bytes);
    signals::enter();
    match link.outgoing().send_fast(who.owner, &data) {
        Fast::Sent => signals::leave(),
        Fast::Asleep => {
            let Sock { fd, word, record } = sock;
            let data = (from.cast(), bytes);
            return Some(send::end_asleep(fd, word, record, link, data, flags));
        }
        Fast::No => {
            signals::leave();
            return None;
        }
    }
    count_pushed(sock.record, place, bytes);
    Some(bytes as isize)
}

/// `read`, `recv` and `recvfrom` without a name; `flags` as `recv`'s. None: nothing was done.
#[inline(always)]
pub fn recv(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int) -> Option<isize> {
    let Way {
        sock, link, who, ..
    } = way(fd, bytes)?;
    if flags & !RECEIVE_FLAGS != 0 || sock.record.has(flag::PENDING) {
        return None;
    }
    let into = Bufs::one(into.cast(), bytes);
    signals::enter();
    let got = link.incoming().recv_fast(who.owner, &into);
    signals::leave();
    if got == 0 {
        return None;
    }
    count_taken(sock.record, got);
    Some(got as isize)
}

/// Whether a send has to [look for the end](crate::socket::kernel_look::look_for_end): the process of the peer has ended (one load), or it is time
/// to look at the clock.
#[inline(always)]
pub fn is_end_due(record: &Record, place: u8) -> bool {
    let row = record.sends.load(Relaxed);
    let is_clock_due = row != 0 && (row < CLOCK_FIRST || row.is_multiple_of(CLOCK_CALLS));
    is_clock_due || !pairs::at(place).is_peer_alive()
}

/// The counts are hints for people: two threads that send at once may lose one.
#[inline(always)]
pub fn count_sent(sock: &Sock, moved: Moved) {
    let record = sock.record;
    if moved.ring != 0
        && let Some(place) = state::place(sock)
    {
        count_pushed(record, place, moved.ring);
    }
    if moved.kernel != 0 {
        let sum = record.kernel_sent.load(Relaxed) + moved.kernel as u64;
        record.kernel_sent.store(sum, Relaxed);
    }
}

#[inline(always)]
fn count_pushed(record: &Record, place: u8, bytes: usize) {
    let sum = record.ring_sent.load(Relaxed) + bytes as u64;
    record.ring_sent.store(sum, Relaxed);
    let row = record.sends.load(Relaxed).wrapping_add(1);
    record.sends.store(row, Relaxed);
    pairs::watch(place, row.is_multiple_of(CLOCK_CALLS));
}

/// As [`count_sent`].
#[inline(always)]
pub fn count_received(sock: &Sock, moved: Moved, how: RecvHow) {
    if how.peek {
        return;
    }
    let record = sock.record;
    if moved.ring != 0 {
        count_taken(record, moved.ring);
    }
    if moved.kernel != 0 {
        let sum = record.kernel_received.load(Relaxed) + moved.kernel as u64;
        record.kernel_received.store(sum, Relaxed);
    }
}

/// Bytes were taken out of the ring.
#[inline(always)]
pub fn count_taken(record: &Record, bytes: usize) {
    let sum = record.ring_received.load(Relaxed) + bytes as u64;
    record.ring_received.store(sum, Relaxed);
    record.sends.store(0, Relaxed);
}
