//! UDP sockets that send and receive several datagrams in one piece.
//!
//! # Model
//! With [`set_segment_bytes`] what is sent in one call leaves as datagrams of that many bytes, the last with what is left
//! (`UDP_SEGMENT`, Linux 4.18). With [`set_merged`] a read may return several datagrams of one size behind each other
//! (`UDP_GRO`, Linux 5.0). [`messages`] sends and receives many such pieces in one call, each with its address, the size of
//! its datagrams, its TOS and its TTL; [`error`] tells what became of what was sent.

pub mod error;
pub mod messages;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::sockopt;

/// A socket that never waits, at a local address. With `shared`, others of the same user may have the address, too, if they
/// say the same: the kernel spreads senders over them. An IPv6 socket gets no IPv4.
///
/// # Errors
/// As socket(2) and bind(2): `EADDRNOTAVAIL`, `EADDRINUSE`.
pub fn open(local: SocketAddr, shared: bool) -> Result<OwnedFd, Errno> {
    let family = match local {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    if local.is_ipv6() {
        sockopt::set_int(&socket, libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    if shared {
        sockopt::set_int(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    bind(&socket, &local)?;
    Ok(socket)
}

/// Asks for buffers of so many bytes each way, beyond the system's limit where the caller may do that.
///
/// # Errors
/// As setsockopt(2).
pub fn set_buffers(socket: impl AsFd, bytes: i32) -> Result<(), Errno> {
    for (force, usual) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        match sockopt::set_int(&socket, libc::SOL_SOCKET, force, bytes) {
            Err(Errno::PERM) => sockopt::set_int(&socket, libc::SOL_SOCKET, usual, bytes)?,
            result => result?,
        }
    }
    Ok(())
}

/// Has what comes to a socket dropped before it takes memory. Reports ([`error`]) still come: they have no room once the receive buffer
/// is full of what nobody reads.
///
/// # Errors
/// As setsockopt(2).
pub fn refuse_all(socket: impl AsFd) -> Result<(), Errno> {
    let keep_nothing = sockopt::instruction(libc::BPF_RET | libc::BPF_K, 0, [0, 0]);
    sockopt::set_filter(socket, &mut [keep_nothing])
}

/// Sets the TTL (hop limit) of what is sent, to groups also.
///
/// # Errors
/// As setsockopt(2).
pub fn set_hops(socket: impl AsFd, is_v6: bool, hops: u8) -> Result<(), Errno> {
    let (level, options) = match is_v6 {
        false => (libc::SOL_IP, [libc::IP_TTL, libc::IP_MULTICAST_TTL]),
        true => (
            libc::SOL_IPV6,
            [libc::IPV6_UNICAST_HOPS, libc::IPV6_MULTICAST_HOPS],
        ),
    };
    let mut options = options.iter();
    options.try_for_each(|option| sockopt::set_int(&socket, level, *option, hops.into()))
}

/// Has a socket get what is sent to a group on a link.
///
/// # Errors
/// `EADDRINUSE` if it does already, `ENODEV` if there is no such link, and what else setsockopt(2) says.
pub fn join(socket: impl AsFd, group: IpAddr, link: u32) -> Result<(), Errno> {
    let options = [libc::IP_ADD_MEMBERSHIP, libc::IPV6_ADD_MEMBERSHIP];
    set_membership(socket, options, group, link)
}

/// Ends [`join`]; also where the link is gone.
///
/// # Errors
/// `EADDRNOTAVAIL` if it had not joined, and what else setsockopt(2) says.
pub fn leave(socket: impl AsFd, group: IpAddr, link: u32) -> Result<(), Errno> {
    let options = [libc::IP_DROP_MEMBERSHIP, libc::IPV6_DROP_MEMBERSHIP];
    set_membership(socket, options, group, link)
}

fn set_membership(
    socket: impl AsFd,
    [v4, v6]: [i32; 2],
    group: IpAddr,
    link: u32,
) -> Result<(), Errno> {
    match group {
        // struct ip_mreqn: the group, no local address, the link.
        IpAddr::V4(group) => {
            let mut request = [0; 12];
            request[..4].copy_from_slice(&group.octets());
            request[8..].copy_from_slice(&link.to_ne_bytes());
            sockopt::set_bytes(socket, libc::SOL_IP, v4, &request)
        }
        // struct ipv6_mreq: the group, the link.
        IpAddr::V6(group) => {
            let mut request = [0; 20];
            request[..16].copy_from_slice(&group.octets());
            request[16..].copy_from_slice(&link.to_ne_bytes());
            sockopt::set_bytes(socket, libc::SOL_IPV6, v6, &request)
        }
    }
}

/// Sets the link on which an IPv6 socket sends to groups. An IPv4 socket sends on the link of the address that it is bound to.
///
/// # Errors
/// `ENODEV` if there is no such link, and what else setsockopt(2) says.
pub fn set_group_link(socket: impl AsFd, link: u32) -> Result<(), Errno> {
    let link = link as i32;
    sockopt::set_int(socket, libc::SOL_IPV6, libc::IPV6_MULTICAST_IF, link)
}

/// What is sent to groups does not come back to this host.
///
/// # Errors
/// As setsockopt(2).
pub fn forbid_echo(socket: impl AsFd, is_v6: bool) -> Result<(), Errno> {
    let (level, option) = match is_v6 {
        false => (libc::SOL_IP, libc::IP_MULTICAST_LOOP),
        true => (libc::SOL_IPV6, libc::IPV6_MULTICAST_LOOP),
    };
    sockopt::set_int(socket, level, option, 0)
}

/// The MTU of the path to an address in bytes, as the kernel knows it now. The socket is connected to the address by this.
///
/// # Errors
/// As connect(2): `ENETUNREACH` without a route, and where the host does not have the IPv4 address that the socket is bound to.
pub fn path_mtu(socket: impl AsFd, to: SocketAddr) -> Result<u32, Errno> {
    connect(&socket, &to)?;
    let (level, option) = match to {
        SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_MTU),
    };
    let mut bytes = [0; 4];
    sockopt::get_bytes(socket, level, option, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Never fragments what is sent: what is too long for the path is `EMSGSIZE`.
///
/// # Errors
/// As setsockopt(2).
pub fn forbid_fragments(socket: impl AsFd, is_v6: bool) -> Result<(), Errno> {
    let (level, option, value) = match is_v6 {
        false => (libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        true => (
            libc::SOL_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        ),
    };
    sockopt::set_int(socket, level, option, value)
}

/// Has the TOS (traffic class) of what is received told with it.
///
/// # Errors
/// As setsockopt(2).
pub fn set_tos_told(socket: impl AsFd, is_v6: bool) -> Result<(), Errno> {
    let (level, option) = match is_v6 {
        false => (libc::SOL_IP, libc::IP_RECVTOS),
        true => (libc::SOL_IPV6, libc::IPV6_RECVTCLASS),
    };
    sockopt::set_int(socket, level, option, 1)
}

/// Sets whether the TTL (hop limit) of what is received is told with it, also of what has come already.
///
/// # Errors
/// As setsockopt(2).
pub fn set_hops_told(socket: impl AsFd, is_v6: bool, told: bool) -> Result<(), Errno> {
    let (level, option) = match is_v6 {
        false => (libc::SOL_IP, libc::IP_RECVTTL),
        true => (libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT),
    };
    sockopt::set_int(socket, level, option, told.into())
}

/// Sets how many bytes of what is sent make one datagram; 0: all.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 4.18, and what setsockopt(2) says of a descriptor that is no UDP socket.
pub fn set_segment_bytes(socket: impl AsFd, bytes: u16) -> Result<(), Errno> {
    let bytes = i32::from(bytes);
    sockopt::set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
}

/// Sets whether a read may return several datagrams.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.0, and what setsockopt(2) says of a descriptor that is no UDP socket.
pub fn set_merged(socket: impl AsFd, merged: bool) -> Result<(), Errno> {
    let merged = i32::from(merged);
    sockopt::set_int(socket, libc::SOL_UDP, libc::UDP_GRO, merged)
}
