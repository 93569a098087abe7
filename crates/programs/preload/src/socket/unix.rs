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
use std::sync::atomic::Ordering::AcqRel;

use windlass_channel::directory::Key;
pub use windlass_channel::unix::{START, UNKNOWN};
use windlass_channel::{KERNEL_UNREAD_MAX, Link, Reason, unix};

use crate::fd::{call::Sock, record::flag};
use crate::process::{registration, signals};
use crate::socket::{errors, kind, state};
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

/// Notes the reset that the kernel notes where a Unix socket is closed with unread bytes, at its peer (`unix_release_sock` in
/// net/unix/af_unix.c), if those were in the ring: a killed process leaves them there, and one that closes, if the broker
/// cannot have them moved in time, or if it counted a killed child as one that still has the socket. Where another process still
/// has the peer's socket, nothing is closed.
pub fn note_reset(sock: &Sock, link: &Link<'static>) {
    if kind::of(sock.record).is_reset_late
        || sock.record.has(flag::RESET)
        || !link.outgoing().unread()
    {
        return;
    }
    let is_left = link.info(link.side().other()).join == state::LEFT;
    let events = errors::events(sock);
    let is_gone = || is_left || state::is_peer_dead(sock) || !has_peer(sock, link);
    if events & libc::EPOLLHUP == 0 || !is_gone() {
        return;
    }
    let before = sock.record.flags.fetch_or(flag::RESET, AcqRel);
    if before & flag::RESET == 0 && events & libc::EPOLLERR == 0 {
        errors::fail_later(sock, libc::ECONNRESET);
    }
}

/// Whether the kernel still names the peer that the socket had when it joined.
fn has_peer(sock: &Sock, link: &Link<'static>) -> bool {
    let own = link.info(link.side());
    let (Some(inode), Some(peer)) = (unix::inode_in(own.local), unix::inode_in(own.peer)) else {
        return false;
    };
    unix::peer_of(inode, sock.record.cookie_by(sock.fd)) == Some(peer)
}
