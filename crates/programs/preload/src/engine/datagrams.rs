//! Datagrams: `AF_UNIX` `SOCK_DGRAM` and UDP, two sockets that are connected to each other, and what differs from other records.
//!
//! # Model
//! Two datagram sockets are joined while each is connected to the other: then the kernel refuses whatever others send to them,
//! and has no limit but the send buffer (`unix_dgram_sendmsg` in net/unix/af_unix.c). Nothing tells an end that its peer
//! is gone but a send that is refused, which also takes the connection and what is unread away. So a joined socket that has lost
//! its peer, or was connected to another one, has *strayed* ([`STRAYED`]): every call on it is the kernel's, for good.
//!
//! # UDP
//! Only where the user says so, since rules of a firewall judge each datagram. Two sockets with each other's names are a pair if
//! the kernel finds each as the receiver of the other ([`windlass_channel::udp`]), at the join and every millisecond of sending.
//! Where anything is tracked in the network namespace, names may be translated, and nothing tells of which connection
//! (`SO_ORIGINAL_DST` is of TCP): all UDP stays on the kernel there, and goes back to it where that begins later, for which
//! a sender looks every millisecond, too ([`leave_if_tracked`]). A ring holds what the receive buffer would, and what
//! comes beyond that is dropped and counted. Options of the levels of IP and UDP, and those of sockets that are not known to
//! matter to nobody, leave the socket on the kernel.
//!
//! # What can be lost and what cannot
//! Before a socket is connected anew, the unread datagrams of both directions go into the kernel: it keeps those of the peer,
//! drops those that came in, and tells the peer so. Those that the broker cannot move are dropped without a word.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::AcqRel;

use windlass_channel::directory::Key;
use windlass_channel::records::RecordFd;
use windlass_channel::{Link, Reason, udp, unix};

use super::names::{self, Names};
use super::{inside, kernel, life, process, promote, stream};
use crate::own::{Own, Sock};
use crate::record::{Kind, Record};
use crate::{real, signals};

/// [`Record::flags`]: the socket has joined, and is not connected to that peer any more.
pub const STRAYED: u32 = 1 << 29;

/// Whether what the socket carries are datagrams.
#[inline(always)]
pub fn is_datagram(record: &Record) -> bool {
    matches!(record.kind(), Some(Kind::UnixDatagram | Kind::Udp))
}

/// Whether it is a UDP socket.
#[inline(always)]
pub fn is_udp(record: &Record) -> bool {
    record.kind() == Some(Kind::Udp)
}

/// A UDP datagram that is longer goes by the kernel, which knows which are too long.
const UDP_BYTES_MAX: usize = 60_000;
/// Bytes of slots that a ring of UDP datagrams has at most.
const UDP_RING_MAX: usize = 256 * 1024;
/// Place in [`Record::engine`]: when a sender last asked the kernel for its receiver, in cycles. Free once the socket has joined.
pub const ASKED_AT: usize = promote::INTERVAL;
/// Of a socket: options that do not matter to the ring, or are looked after elsewhere.
const HARMLESS: [c_int; 11] = [
    libc::SO_SNDBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVBUF,
    libc::SO_RCVBUFFORCE,
    libc::SO_SNDTIMEO,
    libc::SO_RCVTIMEO,
    libc::SO_RCVLOWAT,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_BROADCAST,
    libc::SO_OOBINLINE,
];

/// Whether a datagram of so many bytes is too long for a ring.
#[inline(always)]
pub fn is_long(record: &Record, bytes: usize) -> bool {
    bytes > UDP_BYTES_MAX && is_udp(record)
}

/// Bytes of slots that may be in a ring of UDP datagrams. The kernel counts 768 bytes for a short one, of 512 here.
#[inline(always)]
pub fn ring_max(link: &Link<'static>) -> usize {
    (link.room_there() as usize / 3 * 2).min(UDP_RING_MAX)
}

/// Bytes of the receive buffer of a UDP socket; 0 for others.
pub fn room(sock: &Sock) -> u32 {
    let mut bytes = 0_i32;
    if !is_udp(sock.record) {
        return 0;
    }
    let known = kernel::option(sock.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut bytes);
    known.map_or(1, |_| u32::try_from(bytes).unwrap_or(0).max(1))
}

/// The program has set an option.
pub fn note_option(sock: &Sock, level: c_int, name: c_int) {
    if !is_udp(sock.record) {
        return;
    }
    let is_harmless = match level {
        libc::SOL_SOCKET => HARMLESS.contains(&name),
        libc::IPPROTO_IPV6 => name == libc::IPV6_V6ONLY,
        _ => false,
    };
    if !is_harmless {
        life::plain(sock, Reason::Option);
    } else if let Some(link) = promote::joined(sock) {
        link.set_room(room(sock));
    }
}

/// Which connection a UDP socket is.
///
/// # Errors
/// [`Reason::Tracked`] where connection tracking follows anything, [`Reason::SelfConnected`].
pub fn identify(names: &Names) -> Result<Key, Reason> {
    if names::may_track() {
        return Err(Reason::Tracked);
    }
    names.key(true).ok_or(Reason::SelfConnected)
}

/// Whether the kernel gives what this end of a UDP channel sends to the other end, if that one has said which socket it is.
pub fn has_receiver(link: &Link<'static>) -> bool {
    let [own, other] = [link.side(), link.side().other()].map(|side| link.info(side));
    other.join == 0 || udp::receiver(own.local, own.peer) == Some(other.cookie)
}

/// Whether a call may find a connection: a datagram socket without one is asked nothing else.
pub fn is_connected(fd: c_int) -> bool {
    kernel::name(fd, true, &mut [0; 128]).is_ok()
}

/// Whether the socket is connected to the peer that it had when it joined, and that one is open.
pub fn has_peer(sock: &Sock, link: &Link<'static>) -> bool {
    let own = link.info(link.side());
    if is_udp(sock.record) {
        let name = |name: SocketAddr| (name.ip().to_canonical(), name.port());
        let is_named = Names::of(sock.fd).is_some_and(|names| {
            (name(names.own), name(names.peer)) == (name(own.local), name(own.peer))
        });
        return is_named && has_receiver(link);
    }
    let inodes = (unix::inode_in(own.local), unix::inode_in(own.peer));
    let (Some(inode), Some(peer)) = inodes else {
        return false;
    };
    unix::peer_of(inode, sock.record.cookie_by(sock.fd)) == Some(peer)
}

/// If the peer is gone, this end sends by the kernel, and what that one has not taken is dropped, as the kernel does, which
/// says nothing of it. Whether it was so.
#[cold]
pub fn forget_if_gone(sock: &Sock, link: &Link<'static>) -> bool {
    if has_peer(sock, link) {
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

/// If connection tracking has come into the network namespace since the join, a UDP socket and its peer go back to the kernel,
/// and what is unread in both rings with them. Of a sender that is at work.
pub fn leave_if_tracked(sock: &Sock, link: &Link<'static>) {
    let is_open = is_udp(sock.record) && link.outgoing().reason() == Reason::None;
    if is_open && names::may_track() {
        promote::plain(link, Reason::Tracked);
    }
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
    if result == 0 && !has_peer(sock, link) {
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
    let word = promote::identity(sock.record);
    let as_listed = if is_udp(sock.record) {
        promote::identify(sock).is_ok_and(|key| key.hash == word)
    } else {
        unix::peer_of(word as u32, sock.record.cookie_by(sock.fd)) == Some((word >> 32) as u32)
    };
    if !as_listed {
        promote::unlist(sock.record);
    }
    as_listed
}
