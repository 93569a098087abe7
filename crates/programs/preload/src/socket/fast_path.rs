//! The short way of a call that moves few bytes: by the ring, at once, with nothing else to be done.
//!
//! # Where it sits
//! [`crate::libc`] asks here first. What is not as most calls find it (no channel, a look at the kernel is due, no room, nothing
//! to receive, another thread inside) gets no answer, nothing was done, and [`crate::dispatch::send`] and [`crate::dispatch::recv`] begin anew. So
//! nothing has to be kept for them, and all that a call needs fits into registers. A value in memory would be loaded by other pieces
//! than it was stored by, and such a load waits until all stores before it have left the processor; among them are those of the call
//! before, to lines that the other end's core holds.
//!
//! What a call by the ring adds to the counts of its socket stands here, too, for every way.

use std::ffi::{c_int, c_void};
use std::hint::cold_path;
use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Bufs, Fast, Link, Moved, Owner, RecvHow};

use crate::fd::{
    call::Sock,
    record::{Record, flag},
    table,
};
use crate::process::{
    pairs::{self, Pair},
    registration, signals,
};
use crate::socket::{send, state};

/// Of the sends in a row that go by the ring, the first ones but for the very first, which answers the peer, and then one in so
/// many look at the clock.
const CLOCK_FIRST: u32 = 16;
const CLOCK_CALLS: u32 = 64;
/// [`Record::sends`]: how many sends may go before one looks at the clock, and in the upper bits how many in the row have.
const CREDIT: u32 = 0xff;
const ROW: u32 = CREDIT + 1;
/// What a receive leaves there: one send answers.
const ANSWER: u32 = 1;
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

/// Whether a send has to [look for the end](crate::socket::kernel_look::look_for_end): the process of the peer has ended (one load), or it is time
/// to look at the clock.
#[inline(always)]
pub fn is_end_due(record: &Record, pair: &Pair) -> bool {
    record.sends.load(Relaxed) & CREDIT == 0 || !pair.is_peer_alive()
}

/// The counts are hints for people: two threads that send at once may lose one.
#[inline(always)]
pub fn count_sent(sock: &Sock, moved: Moved) {
    let record = sock.record;
    if moved.ring != 0
        && let Some(place) = state::place(sock)
    {
        count_pushed(record, pairs::at(place), moved.ring);
    }
    if moved.kernel != 0 {
        let sum = record.kernel_sent.load(Relaxed) + moved.kernel as u64;
        record.kernel_sent.store(sum, Relaxed);
    }
}

#[inline(always)]
fn count_pushed(record: &Record, pair: &'static Pair, bytes: usize) {
    let sum = record.ring_sent.load(Relaxed) + bytes as u64;
    record.ring_sent.store(sum, Relaxed);
    let sends = record.sends.load(Relaxed);
    let is_due = sends & CREDIT == 0;
    if is_due {
        cold_path();
        let row = (sends / ROW + 1).min(CLOCK_FIRST);
        let credit = if row < CLOCK_FIRST {
            0
        } else {
            CLOCK_CALLS - 1
        };
        record.sends.store((row * ROW) | credit, Relaxed);
    } else {
        record.sends.store(sends - 1, Relaxed);
    }
    pairs::watch(pair, is_due);
}

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

#[inline(always)]
pub fn count_taken(record: &Record, bytes: usize) {
    let sum = record.ring_received.load(Relaxed) + bytes as u64;
    record.ring_received.store(sum, Relaxed);
    record.sends.store(ANSWER, Relaxed);
}
