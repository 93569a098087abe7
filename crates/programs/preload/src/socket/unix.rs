//! Unix sockets: what differs from TCP.
//!
//! # Model
//! Two streams are one connection if the kernel names each as the peer of the other, by inode; no firewall and no
//! address can come between. The kernel counts no bytes of theirs, so a sender counts from its offer on, and the
//! receiver finds its own count from what is unread ([`windlass_channel::unix`]). What travels beside the bytes,
//! descriptors and credentials, goes by the kernel: a message with control data empties the ring first and is sent by a
//! real call, so it keeps its place among the bytes; what a receiver that asks for control data receives
//! goes by the kernel from then on ([`crate::socket::message`]).
//!
//! # Not done
//! A pair whose two ends are in one process stays on the kernel until two processes use it. Receivers that want to know
//! who sent each piece (`SO_PASSCRED`, `SO_PASSSEC`, `SO_PASSPIDFD`) stay there for good.

use std::ffi::c_int;
use std::net::SocketAddr;

use windlass_channel::directory::Key;
pub use windlass_channel::unix::{START, UNKNOWN};
use windlass_channel::{KERNEL_UNREAD_MAX, Link, Reason, unix};

use crate::fd::call::Sock;
use crate::process::{registration, signals};
use crate::socket::state;
use crate::sys::kernel;

/// Which connection the socket is, as a word for its record.
///
/// # Errors
/// Why it cannot be joined; [`Reason::Young`] while nobody has accepted it.
pub fn identify(sock: &Sock, cookie: u64) -> Result<u64, Reason> {
    if unix::wants_sender(sock.fd) {
        return Err(Reason::Option);
    }
    let own = unix::inode(sock.fd).ok_or(Reason::NotEstablished)?;
    let peer = unix::peer_of(own, cookie).ok_or(Reason::Young)?;
    Ok(u64::from(own) | u64::from(peer) << 32)
}

pub fn key(word: u64) -> Option<Key> {
    let (own, peer) = names(word);
    Key::new(0, 0, own, peer)
}

/// The names of both ends, own one first.
pub fn names(word: u64) -> (SocketAddr, SocketAddr) {
    (unix::name(word as u32), unix::name((word >> 32) as u32))
}

/// Finds out how many bytes this end has taken, in the counts of the other end, which has offered. False: come back.
pub fn count(sock: &Sock, link: &Link<'static>) -> bool {
    let Some(who) = registration::who() else {
        return false;
    };
    signals::enter();
    let done = link
        .incoming()
        .count_by_queue(who, &state::descriptor(sock));
    signals::leave();
    done
}

/// The size of a send buffer, as the kernel counts it, that takes as much as ring and kernel hold of one direction: the
/// largest ring and [`KERNEL_UNREAD_MAX`] before it. A smaller one would be felt.
pub const SEND_BUFFER_LEAST: i64 = (unix::RING_BYTES_MAX + KERNEL_UNREAD_MAX as usize) as i64;

/// Whether the kernel takes less of this socket than a ring would.
pub fn has_little_room(fd: c_int) -> bool {
    let mut bytes = 0_i32;
    let asked = kernel::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut bytes);
    asked.is_ok() && i64::from(bytes) < SEND_BUFFER_LEAST
}

/// Whether the peer's socket is closed: where another process still has it, the kernel still names it.
pub fn is_closed(sock: &Sock, link: &Link<'static>) -> bool {
    let own = link.info(link.side());
    let names = unix::inode_in(own.local).zip(unix::inode_in(own.peer));
    let peer = |inode| unix::peer_of(inode, sock.record.cookie_by(sock.fd));
    link.info(link.side().other()).join == state::LEFT
        || state::is_peer_dead(sock)
        || names.is_none_or(|(inode, named)| peer(inode) != Some(named))
}
