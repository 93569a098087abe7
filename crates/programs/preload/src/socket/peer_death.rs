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

use std::sync::atomic::Ordering::{Acquire, Release};

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

/// The peer of this socket has died: all its sockets here are seen to, and this one surely.
#[cold]
pub fn on_peer_death(sock: &Sock, link: &Link<'static>) {
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
    // After a FIN that the peer itself had sent, the kernel calls the reset by that name, too.
    let was_shut = link.incoming().reason() == Reason::Closing;
    out.stop(Reason::Killed);
    if !out.unread() || sock.record.has(flag::RESET) {
        return true;
    }
    if !kind::of(sock.record).is_reset_late {
        unix::note_reset(sock, link);
        return true;
    }
    let moved = reclaim::reclaim(sock, link);
    if moved == Some(Reclaimed::Error(libc::EPIPE)) {
        // The send has taken the reset.
        let error = if was_shut {
            libc::EPIPE
        } else {
            libc::ECONNRESET
        };
        errors::fail_later(sock, error);
    } else if moved.is_some() && errors::events(sock) & libc::EPOLLERR != 0 && !was_shut {
        sock.record.set(flag::RESET);
    }
    moved.is_some()
}

/// An error that was taken from the socket, by its right name.
pub fn named(sock: &Sock, error: i32) -> i32 {
    let is_late = kind::of(sock.record).is_reset_late;
    if !is_late && error == libc::ECONNRESET {
        // The kernel's own: ring bytes that were left beside it are no second one.
        sock.record.set(flag::RESET);
    }
    if error == libc::EPIPE && sock.record.has(flag::RESET) && is_late {
        libc::ECONNRESET
    } else {
        error
    }
}

/// Takes the reset that the kernel was made to note, by its right name, before a call that would tell it by its other one. None:
/// another call was told.
pub fn take_reset(sock: &Sock) -> Option<i32> {
    let is_noted = sock.record.has(flag::RESET) && kind::of(sock.record).is_reset_late;
    let mut error = 0_i32;
    let mut asked = || kernel::option(sock.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    let is_taken = is_noted && asked().is_ok() && error != 0;
    is_taken.then(|| named(sock, error))
}

/// An error that a reclaim met is the call's.
#[cold]
pub fn before_call(sock: &Sock) -> Option<i32> {
    if !kind::of(sock.record).is_reset_late {
        // The kernel's send says that nobody reads any more, and leaves the reset to a receive.
        return None;
    }
    errors::take_error(sock).or_else(|| take_reset(sock))
}

/// Whether an error waits here that the kernel would still have at the socket itself: a reclaim has met it, and so taken it, or a
/// Unix socket's peer has left bytes in its ring.
pub fn owes_error(sock: &Sock) -> bool {
    if !kind::of(sock.record).is_reset_late
        && let Some(link) = state::joined(sock)
    {
        unix::note_reset(sock, &link);
    }
    sock.record.has(flag::FAILED)
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
    if state::is_peer_dead(sock) {
        on_peer_death(sock, link);
    }
    if !kind::of(sock.record).is_reset_late {
        return received_nothing(sock, own.call());
    }
    if kernel::unread(sock.fd) != 0 {
        return 0;
    }
    before_call(sock).map_or_else(|| own.call(), errors::fail)
}
