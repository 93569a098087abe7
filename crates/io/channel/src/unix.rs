//! Unix sockets: which two are one connection, and what they are called in a channel.
//!
//! # Model
//! The kernel knows the peer of every connected Unix socket by its inode, a number of its own that no program chooses
//! (`UNIX_DIAG_PEER` of sock_diag(7)). So two inodes name a connection exactly, and no translation can come between. A channel
//! keeps names as addresses: an inode is the address `100::INODE`, of the prefix that nobody can have (RFC 6666), with port 0.
//!
//! # Positions
//! The kernel does not count the bytes of a Unix socket. A sender begins to count at [`START`] when it offers, and the receiver's
//! count is the sender's less what is unread in the kernel: see [`Incoming::count_by_queue`](crate::Incoming::count_by_queue).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

use crate::diag::{self, BY_FAMILY, HEADER_BYTES};
use crate::ring::{ORDER_MAX, Place};
use crate::slab::Link;
use crate::sys;

/// Where a Unix socket's sender begins to count: more than can ever be unread in the kernel.
pub const START: u64 = 1 << 40;
/// What a receiver has counted before it can know better: neither what a sender counts, nor what a channel without one says.
pub const UNKNOWN: u64 = 1;

/// The largest ring of a Unix socket: with what may be unread in the kernel before it, it holds less than a Unix socket's send
/// buffer takes in one piece, so a writer that nobody reads stops where it would without the ring.
pub const RING_BYTES_MAX: usize = 128 * 1024;

/// The upper half of the address of an inode.
const PREFIX: u64 = 0x0100 << 48;

/// `UDIAG_SHOW_PEER`, `UNIX_DIAG_PEER`: linux/unix_diag.h.
const SHOW_PEER: u32 = 4;
const DIAG_PEER: u16 = 2;
/// Bytes of a question with `unix_diag_req`, and of `unix_diag_msg`.
const REQUEST_BYTES: usize = HEADER_BYTES + 24;
const MESSAGE_BYTES: usize = 16;
/// Room for an answer: a message and one attribute.
const ANSWER_BYTES: usize = 256;

/// What an inode is called in a channel.
pub fn name(inode: u32) -> SocketAddr {
    let bits = u128::from(PREFIX) << 64 | u128::from(inode);
    SocketAddr::new(IpAddr::V6(Ipv6Addr::from_bits(bits)), 0)
}

/// The inode that a name in a channel is; none if it is an internet address.
pub fn inode_in(name: SocketAddr) -> Option<u32> {
    let IpAddr::V6(address) = name.ip() else {
        return None;
    };
    let bits = address.to_bits();
    let is_ours = (bits >> 64) as u64 == PREFIX && name.port() == 0;
    u32::try_from(bits as u64).ok().filter(|_| is_ours)
}

/// The order of the largest ring of a connection.
#[cold]
pub(crate) fn order_max(link: &Link<'_>) -> u32 {
    match inode_in(link.info(link.side()).local) {
        Some(_) => Place::order_for(RING_BYTES_MAX),
        None => ORDER_MAX,
    }
}

/// The inode of a descriptor.
pub fn inode(fd: RawFd) -> Option<u32> {
    // SAFETY: all zeros is a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let at = &raw mut stat as usize;
    // SAFETY: the buffer lives for the call.
    unsafe { sys::checked(libc::SYS_fstat, [fd as usize, at]) }.ok()?;
    u32::try_from(stat.st_ino).ok()
}

/// Whether a descriptor is a Unix socket.
pub fn is_unix(fd: RawFd) -> bool {
    option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
}

/// Whether a receiver wants to know who sent each piece, which only a real send can say (`SO_PASSCRED` and its kin).
pub fn wants_sender(fd: RawFd) -> bool {
    SENDER_OPTIONS
        .iter()
        .any(|&name| option(fd, name).is_some_and(|value| value != 0))
}

/// `SO_PASSCRED`, `SO_PASSSEC`, `SO_PASSPIDFD`: asm-generic/socket.h.
pub const SENDER_OPTIONS: [i32; 3] = [libc::SO_PASSCRED, libc::SO_PASSSEC, 76];

fn option(fd: RawFd, name: i32) -> Option<i32> {
    sys::option(fd, libc::SOL_SOCKET, name).map(i32::from_ne_bytes)
}

/// The inode of the peer of the connected socket with this inode and `SO_COOKIE`. None where it has none that a program
/// holds (it was not accepted so far, it was closed), or where the kernel does not tell: another network namespace.
pub fn peer_of(inode: u32, cookie: u64) -> Option<u32> {
    stream(inode).filter(|its| its.0 == cookie).map(|its| its.1)
}

/// Cookie and peer of the stream socket with an inode, where it has a peer.
pub fn stream(inode: u32) -> Option<(u64, u32)> {
    let mut bytes: [u8; REQUEST_BYTES] = diag::question(libc::AF_UNIX, 0);
    diag::put(&mut bytes, HEADER_BYTES + 8, &inode.to_ne_bytes());
    diag::put(&mut bytes, HEADER_BYTES + 12, &SHOW_PEER.to_ne_bytes());
    // Whatever its cookie is.
    diag::put(&mut bytes, HEADER_BYTES + 16, &[u8::MAX; 8]);
    let mut answer = [0_u8; ANSWER_BYTES];
    stream_in(diag::ask(&bytes, &mut answer)?).filter(|(_, peer)| *peer != 0)
}

/// Cookie and peer in an answer about a stream.
fn stream_in(answer: &[u8]) -> Option<(u64, u32)> {
    let half = |at: usize| {
        let bytes = answer.get(at..at + 2)?;
        Some(u16::from_ne_bytes(*bytes.first_chunk()?))
    };
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    if half(4)? != BY_FAMILY || answer.get(HEADER_BYTES + 1) != Some(&(libc::SOCK_STREAM as u8)) {
        return None;
    }
    // Two halves, the lower one first, also where numbers are stored the other way round.
    let [low, high] = [HEADER_BYTES + 8, HEADER_BYTES + 12].map(word);
    let cookie = u64::from(low?) | u64::from(high?) << 32;
    let mut at = HEADER_BYTES + MESSAGE_BYTES;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == DIAG_PEER {
            return Some((cookie, word(at + 4)?));
        }
        at += length.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::diag::cookie;

    /// A name gives its inode back, and an internet address is none.
    #[test]
    fn names_are_inodes_again() {
        for inode in [1, 7_654_321, u32::MAX] {
            assert_eq!(inode_in(name(inode)), Some(inode));
        }
        for other in ["127.0.0.1:80", "[::1]:80", "[100::7]:80", "[::7]:0"] {
            assert_eq!(inode_in(other.parse().unwrap()), None);
        }
    }

    /// The kernel names each end of a pair as the peer of the other; a wrong cookie gets no answer.
    #[test]
    fn the_kernel_names_the_peer() {
        let (a, b) = UnixStream::pair().unwrap();
        let [first, second] = [&a, &b].map(|socket| inode(socket.as_raw_fd()).unwrap());
        assert!(is_unix(a.as_raw_fd()) && !wants_sender(a.as_raw_fd()));
        if peer_of(first, cookie(&a)).is_none() {
            println!("skipped: the_kernel_names_the_peer: no sock_diag of Unix sockets here");
            return;
        }
        assert_eq!(peer_of(first, cookie(&a)), Some(second));
        assert_eq!(peer_of(second, cookie(&b)), Some(first));
        assert_eq!(peer_of(second, cookie(&a)), None);
        drop(b);
        assert_eq!(peer_of(first, cookie(&a)), None);
    }

    /// Answers of every length and content end the search, without a peer that is not there.
    #[test]
    fn odd_answers_name_nobody() {
        let mut answer = vec![0_u8; 64];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        for length in 0..answer.len() {
            assert_eq!(stream_in(&answer[..length]), None);
        }
        answer[4] = 2;
        assert_eq!(stream_in(&answer), None);
    }
}
