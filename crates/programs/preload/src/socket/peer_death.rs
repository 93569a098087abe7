//! The death of the process at the other end, known before the kernel closes its sockets.
//!
//! # Model
//! Each look at a peer is one load of its [mark](crate::process::mark).
//!
//! A kernel socket that is closed with unread bytes resets its connection. Where those bytes are in a ring the kernel
//! does not know of them, and says FIN. [`notice`] therefore has them sent after all: the closed socket answers with the reset.
//! The kernel notes it here as `EPIPE`, since the FIN came first (`tcp_reset` in net/ipv4/tcp_input.c); whoever takes that error
//! from it says `ECONNRESET` ([`flag::RESET`], [`named`]). Who is told, and that it is told once, stays the kernel's.
//!
//! # Synchronization
//! Several threads may see to the sockets of a pair at once: the locks of the channels have each step done by one of them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use windlass_channel::{Link, Reason, Reclaimed};

use crate::fd::{
    call::{Own, Sock},
    record::flag,
    table,
};
use crate::process::pairs;
use crate::socket::{errors, kind, reclaim, state, unix};
use crate::sys::kernel;

/// How often it is tried, for some 10 ms each time: a process that is marked is still there while its memory is taken apart.
const TRIES: usize = 20;

/// Sees to the sockets of each pair whose peer has died since the last look; whether there were any.
#[inline]
pub fn notice() -> bool {
    pairs::has_pairs() && notice_pairs()
}

fn notice_pairs() -> bool {
    let mut any = false;
    for (place, pair) in pairs::pairs() {
        if !pair.is_seen_to.load(Acquire) && !pair.is_peer_alive() {
            any = true;
            pair.is_seen_to.store(see_to_pair(place), Release);
        }
    }
    any
}

/// Whether nothing is left to be done.
#[cold]
fn see_to_pair(place: u8) -> bool {
    let see_to_all = || {
        // What no call of this process has used is not looked up.
        let its = table::sockets().filter(|sock| state::place(sock) == Some(place));
        its.filter_map(|sock| Some((sock, state::link_of(&sock)?)))
            .fold(true, |is_over, (sock, link)| see_to(&sock, &link) & is_over)
    };
    (0..TRIES).any(|_| see_to_all())
}

/// If the peer of this socket has died, all its sockets here are seen to, and this one surely.
#[cold]
pub fn notice_of(sock: &Sock, link: &Link<'static>) {
    if !state::is_peer_dead(sock) {
        return;
    }
    notice();
    if link.outgoing().reason() == Reason::None || link.outgoing().unread() {
        see_to(sock, link);
    }
}

/// The peer of this socket has died: nothing goes to its ring any more, and what lies there unread is answered by the kernel,
/// if nobody else has the peer's socket. False: it still lies there, since somebody is inside of whom it is not known that he
/// has died, too.
#[cold]
pub fn see_to(sock: &Sock, link: &Link<'static>) -> bool {
    let out = link.outgoing();
    out.stop(Reason::Killed);
    if !out.unread() || sock.record.has(flag::RESET) {
        return true;
    }
    let is_late = kind::of(sock.record).is_reset_late;
    let moved = is_late.then(|| reclaim::reclaim(sock, link)).flatten();
    let error = name_of_reset(sock, link);
    match moved {
        // The send has taken the reset.
        Some(Reclaimed::Error(libc::EPIPE)) => errors::fail_later(sock, error),
        Some(_) if error != libc::EPIPE && errors::events(sock) & libc::EPOLLERR != 0 => {
            sock.record.set(flag::RESET);
        }
        _ => note_reset(sock, link),
    }
    moved.is_some() || !is_late
}

/// What the kernel calls a reset: of TCP, after a FIN that the peer itself had sent, `EPIPE`.
fn name_of_reset(sock: &Sock, link: &Link<'static>) -> i32 {
    let was_shut = link.incoming().reason() == Reason::Closing;
    if was_shut && kind::of(sock.record).is_reset_late {
        libc::EPIPE
    } else {
        libc::ECONNRESET
    }
}

/// An error that was taken from the socket, by its right name.
pub fn named(sock: &Sock, error: i32) -> i32 {
    if matches!(error, libc::ECONNRESET | libc::EPIPE) {
        // The kernel's own: what was left in the ring beside it, or is said of a helper's send, is no second one.
        sock.record.set(flag::NOTED);
    }
    if error == libc::EPIPE && sock.record.has(flag::RESET) {
        libc::ECONNRESET
    } else {
        error
    }
}

/// Takes the reset that the kernel was made to note, by its right name, before a call that would tell it by its other one. None:
/// another call was told.
fn take_reset(sock: &Sock) -> Option<i32> {
    let is_noted = sock.record.has(flag::RESET);
    let mut error = 0_i32;
    let mut asked = || kernel::option(sock.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    let is_taken = is_noted && asked().is_ok() && error != 0;
    is_taken.then(|| named(sock, error))
}

/// An error that a reclaim met is the call's. Of a Unix socket the kernel's send says that nobody reads any more, and leaves the
/// reset to a receive.
#[cold]
pub fn before_call(sock: &Sock) -> Option<i32> {
    let is_late = kind::of(sock.record).is_reset_late;
    is_late.then(|| take_owed(sock)).flatten()
}

/// The error that waits here, or the reset by its right name.
pub fn take_owed(sock: &Sock) -> Option<i32> {
    owes_error(sock);
    errors::take_error(sock).or_else(|| take_reset(sock))
}

/// Whether an error waits here that the kernel would still have at the socket itself: a reclaim has met it, and so taken it, or a
/// Unix socket's peer has left bytes in its ring. Nothing that no call of this process has used.
pub fn owes_error(sock: &Sock) -> bool {
    let link = state::place(sock).and_then(|_| state::link_of(sock));
    link.iter().for_each(|link| note_reset(sock, link));
    sock.record.has(flag::FAILED)
}

/// Notes a reset that the kernel does not tell at the end of the connection.
///
/// Of TCP: a helper of the broker says that its send has taken the error. A peer that writes so has it told once, and only
/// where the kernel has ended the connection: it could have had a reset sent.
/// Of a Unix socket: the kernel notes a reset at the peer of a socket that is closed with unread bytes (`unix_release_sock` in
/// net/unix/af_unix.c). Where those were in the ring it does not: a killed process leaves them there, and one that closes, if the
/// broker cannot have them moved in time, or if it counted a killed child as one that still has the socket.
fn note_reset(sock: &Sock, link: &Link<'static>) {
    let (is_tcp, out) = (kind::of(sock.record).is_reset_late, link.outgoing());
    let is_said = is_tcp && out.is_error_taken() || !is_tcp && out.unread();
    if !is_said || sock.record.has(flag::NOTED) {
        return;
    }
    let events = errors::events(sock);
    if events & libc::EPOLLHUP == 0 || !(is_tcp || unix::is_closed(sock, link)) {
        return;
    }
    let before = sock.record.flags.fetch_or(flag::NOTED, AcqRel);
    if before & flag::NOTED == 0 && events & libc::EPOLLERR == 0 {
        errors::fail_later(sock, name_of_reset(sock, link));
    }
}

/// What a receive of no bytes says, which found nothing in the ring and that the kernel answered so: bytes that are there come
/// before an error that waits.
#[cold]
pub fn received_nothing(sock: &Sock, result: isize) -> isize {
    if result != 0 || !owes_error(sock) || kernel::unread(sock.fd) != 0 {
        return result;
    }
    errors::take_error(sock).map_or(0, errors::fail)
}

/// A receive that asks for nothing while the ring has nothing: the kernel knows errors, but for the name of a reset that it was
/// made to note. Bytes that are there come before any error.
#[cold]
pub fn receive_nothing(sock: &Sock, link: &Link<'static>, own: Own) -> isize {
    notice_of(sock, link);
    if !kind::of(sock.record).is_reset_late {
        return received_nothing(sock, own.call());
    }
    if kernel::unread(sock.fd) != 0 {
        return 0;
    }
    before_call(sock).map_or_else(|| own.call(), errors::fail)
}
