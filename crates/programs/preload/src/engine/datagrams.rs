//! Datagrams: `AF_UNIX` `SOCK_DGRAM`, two sockets that are connected to each other, and what differs from other records.
//!
//! # Model
//! Two datagram sockets are joined while each is connected to the other: then the kernel refuses whatever others send to them,
//! and has no limit but the send buffer (`unix_dgram_sendmsg` in net/unix/af_unix.c). Nothing tells an end that its peer
//! is gone but a send that is refused, which also takes the connection and what is unread away. So a joined socket that has lost
//! its peer, or was connected to another one, has *strayed* ([`STRAYED`]): every call on it is the kernel's, for good.
//!
//! # What can be lost and what cannot
//! Before a socket is connected anew, the unread datagrams of both directions go into the kernel: it keeps those of the peer,
//! drops those that came in, and tells the peer so. Those that the broker cannot move are dropped without a word.

use std::ffi::c_int;
use std::sync::atomic::Ordering::AcqRel;

use windlass_channel::records::RecordFd;
use windlass_channel::{Link, Reason, unix};

use super::{inside, kernel, life, process, promote, stream};
use crate::own::{Own, Sock};
use crate::record::{Kind, Record};
use crate::{real, signals};

/// [`Record::flags`]: the socket has joined, and is not connected to that peer any more.
pub const STRAYED: u32 = 1 << 29;

/// Whether what the socket carries are datagrams.
#[inline(always)]
pub fn is_datagram(record: &Record) -> bool {
    record.kind() == Some(Kind::UnixDatagram)
}

/// Whether a call may find a connection: a datagram socket without one is asked nothing else.
pub fn is_connected(fd: c_int) -> bool {
    kernel::name(fd, true, &mut [0; 128]).is_ok()
}

/// Whether the socket is connected to the peer that it had when it was listed or joined, and that one is open.
pub fn has_peer(sock: &Sock) -> bool {
    let inodes = promote::identity(sock.record);
    let (own, peer) = (inodes as u32, (inodes >> 32) as u32);
    unix::peer_of(own, sock.record.cookie_by(sock.fd)) == Some(peer)
}

/// If the peer is gone, this end sends by the kernel, and what that one has not taken is dropped, as the kernel does, which
/// says nothing of it. Whether it was so.
#[cold]
pub fn forget_if_gone(sock: &Sock, link: &Link<'static>) -> bool {
    if has_peer(sock) {
        return false;
    }
    link.outgoing().plain(Reason::Closing);
    let Some(who) = process::who() else {
        return true;
    };
    signals::enter();
    link.outgoing().forget(who);
    signals::leave();
    true
}

/// The last number of a joined socket is about to be closed: what it has not taken is gone.
pub fn leave(link: &Link<'static>) {
    link.incoming().plain(Reason::Closing);
    let Some(who) = process::who() else {
        return;
    };
    signals::enter();
    link.incoming().forget(who);
    signals::leave();
}

/// From now on every call on the socket is the kernel's.
fn stray(sock: &Sock, link: &Link<'static>) {
    if sock.record.flags.fetch_or(STRAYED, AcqRel) & STRAYED != 0 {
        return;
    }
    link.outgoing().set_wild();
    link.incoming().plain(Reason::Mismatch);
    let Some(who) = process::who() else {
        return;
    };
    signals::enter();
    link.outgoing().forget(who);
    link.incoming().forget(who);
    signals::leave();
}

/// A send was refused: the kernel has dropped what is unread here, if that was for want of the peer. `errno` is kept.
#[cold]
pub fn note_refusal(sock: &Sock, link: &Link<'static>) {
    let error = real::errno();
    if is_datagram(sock.record) && !is_connected(sock.fd) {
        stray(sock, link);
    }
    real::set_errno(error);
}

/// `connect`.
pub fn connect(sock: &Sock, own: Own) -> isize {
    let is_young = promote::joined(sock).is_none() && promote::is_young(sock.record);
    // False: it has joined meanwhile, or stays on the kernel.
    if is_young && inside::enter(sock.record, true) {
        let result = own.call();
        let error = real::errno();
        promote::unlist(sock.record);
        inside::leave(sock, true, false);
        real::set_errno(error);
        return result;
    }
    match promote::joined(sock) {
        Some(link) if !sock.record.has(STRAYED) => connect_anew(sock, &link, own),
        _ => own.call(),
    }
}

/// The same of a joined socket.
#[cold]
fn connect_anew(sock: &Sock, link: &Link<'static>, own: Own) -> isize {
    promote::plain(link, Reason::Mismatch);
    life::reclaim_all(sock, link);
    link.incoming().settle();
    stream::drain(sock, link, Reason::Mismatch);
    let result = own.call();
    if result == 0 && !has_peer(sock) {
        stray(sock, link);
    }
    result
}

/// Bytes that `FIONREAD` tells where the kernel has no datagram: those of the ring's first.
pub fn next_length(sock: &Sock, link: &Link<'static>) -> usize {
    let Some(who) = process::who() else {
        return 0;
    };
    signals::enter();
    let length = link.incoming().next_length(who, &RecordFd(sock.fd));
    signals::leave();
    length.unwrap_or(0)
}

/// Whether the socket is connected as it was when it was listed; else it is listed no more. For a join, with nobody in the
/// middle of a `connect`.
pub fn is_as_listed(sock: &Sock) -> bool {
    let as_listed = has_peer(sock);
    if !as_listed {
        promote::unlist(sock.record);
    }
    as_listed
}
