//! Ends: close, shutdown, fork, exec, exit, and descriptors that go elsewhere.
//!
//! # What can be lost and what cannot
//! Before anything that another reader might see (a FIN, another program, the end of this one) the unread bytes of this
//! end's ring go into the kernel; then the real call follows, and what the peer sees is the kernel's own. Bytes
//! that a peer has in a ring for a reader that cannot look there are asked for, at once through the broker.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Link, Reason, Reclaimed};

use super::{Why, death, interest, kernel, process, promote, rest, sets, stream, unix, waiter};
use crate::counters::{self, Counter};
use crate::own::{Own, Sock};
use crate::record::{Record, flag};
use crate::{owner, summary, table};

/// How long a close waits for room in a full kernel, in steps of [`STEP_MS`].
const STEPS: usize = 20;
const STEP_MS: i64 = 50;

/// Bytes that a connection takes at once whatever is unread: half of TCP's first window on loopback.
const ROOM: usize = 32 * 1024;

/// Moves all unread bytes into the kernel, and waits a while if that is full.
pub fn reclaim_all(sock: &Sock, link: &Link<'static>) {
    for _ in 0..STEPS {
        match stream::reclaim(sock, link) {
            Some(Reclaimed::Part(_)) => {}
            _ => return,
        }
        kernel::wait_for(sock.fd, libc::POLLOUT, STEP_MS);
    }
}

/// `shutdown`.
pub fn shutdown(sock: &Sock, how: c_int, own: Own) -> isize {
    // A connection that its peer's death has reset is none any more.
    death::notice();
    if let Some(link) = promote::joined(sock) {
        if how != libc::SHUT_RD {
            link.outgoing().plain(Reason::Closing);
            reclaim_all(sock, &link);
        }
        if how != libc::SHUT_WR {
            // What arrives from now on is answered by the kernel, with a reset. Closing would say that the peer has ended its stream.
            stream::drain(sock, &link, Reason::Flag);
        }
    }
    own.call()
}

/// Adds what a record has counted to the process's own counts, and its reason if it carried anything since the last time.
fn fold(record: &Record) {
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
        Reason::None if !record.has(promote::JOINED) => Reason::Young,
        reason => reason,
    };
    if carried > 0 && reason != Reason::None {
        summary::count(reason);
    }
}

/// The number is about to be closed.
pub fn before_close(sock: &Sock) {
    interest::settle_all();
    let record = sock.record;
    if table::kind_of(sock.word) == table::EPOLL {
        sets::closed(sock);
        return;
    }
    let is_last = record.holders.load(Relaxed) == 1;
    let is_last_here = is_last
        || table::each()
            .filter(|other| other.index() == sock.index())
            .count()
            <= 1;
    if is_last_here {
        sets::forget(sock);
    }
    // A close by a process that the socket does not belong to is no use of it, unless nobody is left.
    let is_ours = is_last || !record.is_foreign();
    if is_ours && let Some(link) = promote::link_of(sock) {
        rest::let_end(sock);
        death::notice();
        // A close with unread bytes resets the connection, and a reset overtakes what waits in the kernel for room: more than
        // surely has room stays in the ring, where the peer finds it.
        let resets = is_last && link.incoming().queued() != 0 && !promote::is_uncounted(record);
        if !resets || link.outgoing().queued() <= ROOM {
            reclaim_all(sock, &link);
        }
        if is_last {
            leave(sock, &link);
        }
    }
    if is_last {
        promote::unlist(record);
        fold(record);
    }
}

/// The last number of a joined socket goes.
fn leave(sock: &Sock, link: &Link<'static>) {
    if promote::is_uncounted(sock.record) {
        unix::leave_unread(sock, link);
    } else if link.incoming().queued() != 0 {
        // A reset comes of unread bytes in the kernel, unless somebody whom we have not seen has the socket, and reads them.
        stream::drain(sock, link, Reason::Closing);
        if link.incoming().queued() != 0 {
            let linger = [1_i32, 0_i32];
            let _ = kernel::set_option(sock.fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        }
    }
    let (chan, side) = (link.index(), link.side());
    let Some(place) = process::place_of(sock.record.slab.load(Relaxed)) else {
        return;
    };
    if link.leave(Reason::Closing) {
        link.slab().free(chan);
    }
    process::at(place).leave(chan, side);
}

/// The number was closed out of our sight: the kernel has ended what it knew; the ring's bytes are lost with it only if
/// this was the last number of all.
pub fn vanished(sock: &Sock) {
    if table::kind_of(sock.word) == table::EPOLL {
        sets::closed(sock);
        return;
    }
    sets::forget(sock);
    let record = sock.record;
    if record.holders.load(Relaxed) == 1 {
        if let Some(link) = promote::link_of(sock) {
            let (chan, side) = (link.index(), link.side());
            if link.leave(Reason::Closing) {
                link.slab().free(chan);
            }
            if let Some(place) = process::place_of(record.slab.load(Relaxed)) {
                process::at(place).leave(chan, side);
            }
        }
        promote::unlist(record);
        fold(record);
    }
}

/// A program without the library may get hold of the socket.
pub fn leaked(sock: &Sock, reason: Reason) {
    sock.record.set(flag::LEAKED);
    promote::refuse(sock.record, reason);
    death::notice();
    if let Some(link) = promote::link_of(sock) {
        link.outgoing().set_wild();
        reclaim_all(sock, &link);
        stream::drain(sock, &link, reason);
    }
}

/// The socket stays on the kernel; calls on it still go through the library.
pub fn plain(sock: &Sock, reason: Reason) {
    counters::add(Counter::Plain, 1);
    promote::refuse(sock.record, reason);
    death::notice();
    if let Some(link) = promote::link_of(sock) {
        promote::plain(&link, reason);
        reclaim_all(sock, &link);
        stream::drain(sock, &link, reason);
    }
}

/// What this end sends stays on the kernel.
pub fn plain_sending(sock: &Sock, reason: Reason) {
    if let Some(link) = promote::link_of(sock) {
        link.outgoing().plain(reason);
        reclaim_all(sock, &link);
    }
}

/// The reason that a call's [`Why`] is.
pub fn reason(why: Why) -> Reason {
    match why {
        Why::Stdio => Reason::Stdio,
        Why::Beyond => Reason::Limit,
        Why::IoUring => Reason::IoUring,
        Why::OwnDescriptors => Reason::Cloned,
        Why::Odd => Reason::Flag,
    }
}

/// The process, or a child with its descriptors, is about to become another program, which would not look at a ring: joined
/// sockets that it inherits go back to the kernel.
pub fn before_exec(is_spawned: bool) {
    interest::settle_all();
    let is_ours = owner::is_ours();
    if is_ours {
        death::notice();
    }
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        if is_ours && !is_spawned {
            fold(sock.record);
        }
        if !sock.record.has(promote::JOINED) || !table::survives(&sock) {
            continue;
        }
        if is_ours {
            leaked(&sock, Reason::Exec);
            promote::give_back_delay(&sock);
        } else {
            // The child of a vfork: memory is the parent's, descriptors are not. Only words may be changed here.
            sock.record.set(flag::LEAKED);
            promote::refuse(sock.record, Reason::Exec);
            if let Some(link) = promote::link_of(&sock) {
                link.outgoing().set_wild();
                link.incoming().plain(Reason::Exec);
            }
        }
    }
}

/// The process ends: nothing of it stays in a ring.
pub fn before_exit() {
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        if !sock.record.is_foreign()
            && let Some(link) = promote::link_of(&sock)
        {
            let _ = stream::reclaim(&sock, &link);
        }
        fold(sock.record);
    }
}

/// In a forked child.
pub fn forked(parent: u16) {
    process::forked(parent);
    waiter::forked();
    sets::forked();
}

/// `splice` out of the socket: what it receives goes by the kernel for good, uncounted.
pub fn spliced(sock: &Sock) {
    promote::refuse(sock.record, Reason::Flag);
    if let Some(link) = promote::link_of(sock) {
        stream::drain(sock, &link, Reason::Flag);
    }
}
