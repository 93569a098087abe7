//! The end of a socket: shutdown and close, seen and unseen.
//!
//! # What can be lost and what cannot
//! Before anything that another reader might see (a FIN, the end of the program) the unread bytes of this
//! end's ring go into the kernel; then the real call follows, and what the peer sees is the kernel's own. Bytes
//! that a peer has in a ring for a reader that cannot look there are asked for, at once through the broker.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Link, Reason};

use crate::counts::{
    counters::{self, Counter},
    summary,
};
use crate::fd::{
    call::{Own, Sock},
    record::{Record, flag},
};
use crate::process::pairs;
use crate::socket::{
    kind, peer_death,
    reclaim::{self, reclaim_all},
    state,
};
use crate::sys::kernel;

/// Bytes that a connection takes at once whatever is unread: half of TCP's first window on loopback.
const ROOM: usize = 32 * 1024;

pub fn shutdown(sock: &Sock, how: c_int, own: Own) -> isize {
    // A connection that its peer's death has reset is none any more.
    peer_death::notice();
    if let Some(link) = state::after_join(sock) {
        if how != libc::SHUT_RD {
            link.outgoing().stop(Reason::Closing);
            reclaim_all(sock, &link);
        }
        if how != libc::SHUT_WR {
            // What arrives from now on is answered by the kernel, with a reset. Closing would say that the peer has ended its stream.
            reclaim::drain(sock, &link, Reason::Flag);
        }
    } else {
        // A join would ask nobody which half is shut. Why it is on the kernel stays as it is.
        let reason = Reason::from_u8(sock.record.reason.load(Relaxed));
        state::demoted(sock, reason);
    }
    own.call()
}

/// Adds what a record has counted to the process's own counts, and its reason if it carried anything since the last time.
pub fn fold(record: &Record) {
    let pairs = [
        (&record.ring_sent, Counter::RingBytesSent),
        (&record.ring_received, Counter::RingBytesReceived),
        (&record.kernel_sent, Counter::KernelBytesSent),
        (&record.kernel_received, Counter::KernelBytesReceived),
    ];
    let mut carried = 0;
    for (count, counter) in pairs {
        let bytes = count.swap(0, Relaxed);
        counters::add(counter, bytes);
        carried += bytes;
    }
    let reason = match Reason::from_u8(record.reason.load(Relaxed)) {
        Reason::None if !record.has(flag::JOINED) => Reason::Young,
        reason => reason,
    };
    if carried > 0 && reason != Reason::None {
        summary::count(reason);
    }
}

pub fn before_close(sock: &Sock) {
    let record = sock.record;
    let is_last = record.holders.load(Relaxed) == 1;
    // A close by a process that the socket does not belong to is no use of it, unless nobody is left.
    let is_ours = is_last || !record.is_foreign();
    if is_ours && let Some(link) = state::link_of(sock) {
        peer_death::notice();
        // A close with unread bytes resets the connection, and a reset overtakes what waits in the kernel for room: more than
        // surely has room stays in the ring, where the peer finds it.
        let resets = is_last && link.incoming().queued() != 0 && kind::of(record).is_counted;
        if !resets || link.outgoing().queued() <= ROOM {
            reclaim_all(sock, &link);
        }
        if is_last {
            leave(sock, &link);
        }
    }
    if is_last {
        fold(record);
    }
}

fn leave(sock: &Sock, link: &Link<'static>) {
    if link.incoming().queued() != 0 {
        // A reset comes of unread bytes in the kernel, unless somebody whom we have not seen has the socket, and reads them.
        reclaim::drain(sock, link, Reason::Closing);
        if kind::of(sock.record).is_counted && link.incoming().queued() != 0 {
            let linger = [1_i32, 0_i32];
            let _ = kernel::set_option(sock.fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        }
    }
    leave_channel(sock.record, link);
}

/// The channel is given up, and free once the other end has left it, too.
fn leave_channel(record: &Record, link: &Link<'static>) {
    let (chan, side) = (link.index(), link.side());
    if link.leave(Reason::Closing) {
        link.slab().free(chan);
    }
    if let Some(place) = pairs::place_of(record.slab.load(Relaxed)) {
        pairs::at(place).leave(chan, side);
    }
}

/// The number was closed out of our sight: the kernel has ended what it knew; the ring's bytes are lost with it only if
/// this was the last number of all.
pub fn vanished(sock: &Sock) {
    let record = sock.record;
    if record.holders.load(Relaxed) == 1 {
        if let Some(link) = state::link_of(sock) {
            leave_channel(record, &link);
        }
        fold(record);
    }
}
