//! What a connection is called, and whether both of its ends can be on this host.
//!
//! # Model
//! Both names, the network namespace's cookie and the bound device say which connection it is, equally at both
//! ends, unless somebody translates addresses. Translation is asked for ([`Names::tracking`]): where
//! connection tracking knows the connection, four names prove nothing ([`crate::socket::proof`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use windlass_channel::directory::Key;

use crate::sys::kernel;

/// `SO_ORIGINAL_DST` of linux/netfilter_ipv4.h; `IP6T_SO_ORIGINAL_DST` has the same number.
const ORIGINAL_DST: i32 = 80;
/// `SO_NETNS_COOKIE`, Linux 5.14.
const NETNS_COOKIE: i32 = 71;
/// `SO_BINDTOIFINDEX`, Linux 5.0.
const BIND_TO_IFINDEX: i32 = 62;

/// What connection tracking has to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    None,
    /// It follows the connection, and may have translated the name of the end that connected.
    Known,
    /// It has translated the name of the other end, or cannot be asked.
    Translated,
}

/// The names of a connected socket.
pub struct Names {
    pub own: SocketAddr,
    pub peer: SocketAddr,
    pub netns: u64,
    device: i32,
    is_v6: bool,
}

impl Names {
    /// Asks the kernel; none if the socket is not connected, or not over IP.
    pub fn of(fd: i32) -> Option<Self> {
        let name = |of_peer| {
            let mut raw = [0_u8; 128];
            let length = kernel::name(fd, of_peer, &mut raw).ok()?;
            Some((read(raw.get(..length)?)?, family(&raw)))
        };
        let (own, family) = name(false)?;
        let (peer, _) = name(true)?;
        let (netns, mut device) = (netns(fd)?, 0_i32);
        kernel::option(fd, libc::SOL_SOCKET, BIND_TO_IFINDEX, &mut device).ok()?;
        Some(Self {
            own,
            peer,
            netns,
            device,
            is_v6: family == libc::AF_INET6,
        })
    }

    /// Whether the names say that both ends are on this host. Two of its addresses that differ, neither of them loopback, do not.
    pub fn is_local(&self) -> bool {
        let [own, peer] = [self.own, self.peer].map(|name| name.ip().to_canonical());
        own == peer || own.is_loopback() || peer.is_loopback()
    }

    /// What connection tracking knows of the connection, or might.
    pub fn tracking(&self, fd: i32) -> Tracking {
        // A dual-stack socket that carries IPv4 is tracked as IPv4.
        let levels: &[i32] = if self.is_v6 {
            &[libc::IPPROTO_IP, libc::IPPROTO_IPV6]
        } else {
            &[libc::IPPROTO_IP]
        };
        let mut tracking = Tracking::None;
        for &level in levels {
            let mut original = [0_u8; 128];
            match kernel::option(fd, level, ORIGINAL_DST, &mut original) {
                Err(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP) => {}
                Err(_) => return Tracking::Translated,
                Ok(length) => {
                    // What the connecting end called the other one: its own name here, or the peer's there.
                    let name = original.get(..length).and_then(read).map(fold);
                    if name != Some(fold(self.own)) && name != Some(fold(self.peer)) {
                        return Tracking::Translated;
                    }
                    tracking = Tracking::Known;
                }
            }
        }
        tracking
    }

    /// The key under which both ends look each other up; none for a socket that is connected to itself.
    pub fn key(&self) -> Option<Key> {
        Key::new(self.netns, self.device as u32, self.own, self.peer)
    }
}

/// A name as the channel gives it back: with its address as IPv4 where it is one, and without scope.
pub fn fold(name: SocketAddr) -> SocketAddr {
    SocketAddr::new(name.ip().to_canonical(), name.port())
}

fn family(raw: &[u8]) -> i32 {
    raw.first_chunk()
        .map_or(0, |family| i32::from(u16::from_ne_bytes(*family)))
}

/// The name in a `sockaddr_in` or `sockaddr_in6`; none for other families.
fn read(raw: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*raw.get(2..)?.first_chunk()?);
    let address: IpAddr = match family(raw) {
        libc::AF_INET => Ipv4Addr::from(*raw.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*raw.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

pub fn netns(fd: i32) -> Option<u64> {
    let mut netns = 0_u64;
    kernel::option(fd, libc::SOL_SOCKET, NETNS_COOKIE, &mut netns).ok()?;
    Some(netns)
}
