//! What the kernel says of a socket, as the process that holds a copy of it tells the broker.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, ipproto};
use windlass_channel::unix;
use windlass_sys::process;

/// Words of [`Facts`] in a message.
pub(crate) const WORDS: usize = 12;

/// What the peer of an internet socket without one is called.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// A stream socket, TCP or Unix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cookie: u64,
    pub(crate) netns: u64,
    /// The kernel's names of the two ends: addresses, or the inodes of Unix sockets.
    names: Names,
    /// A Unix socket whose receiver is told who sent each piece.
    pub(crate) names_senders: bool,
    /// The connection has ended in both directions, or an error is noted that the next send would take.
    pub(crate) is_over: bool,
    /// It has a peer still: one that a reset has ended has none.
    is_connected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Internet {
        local: SocketAddr,
        peer: SocketAddr,
    },
    /// The peer is `None` where the kernel does not tell: another network namespace.
    Unix {
        inode: u32,
        peer: Option<u32>,
    },
}

impl Facts {
    /// `None` for anything but a stream socket.
    pub(crate) fn of(socket: &OwnedFd) -> Option<Self> {
        if sockopt::socket_type(socket).ok()? != SocketType::STREAM {
            return None;
        }
        let cookie = sockopt::socket_cookie(socket).ok()?;
        let number = process::number(socket.as_fd());
        let is_unix = sockopt::socket_domain(socket).ok()? == AddressFamily::UNIX;
        let peer = rustix::net::getpeername(socket).ok().flatten();
        let is_connected = peer.is_some();
        let names = if is_unix {
            let inode = unix::inode(number)?;
            let peer = unix::peer_of(inode, cookie);
            Names::Unix { inode, peer }
        } else {
            let is_tcp = sockopt::socket_protocol(socket).ok()? == Some(ipproto::TCP);
            let local = name(rustix::net::getsockname(socket).ok()?)?;
            let peer = peer.map_or(Some(NOBODY), name)?;
            is_tcp.then_some(Names::Internet { local, peer })?
        };
        Some(Self {
            cookie,
            netns: process::netns_cookie(socket).ok()?,
            names,
            names_senders: is_unix && unix::wants_sender(number),
            is_over: is_over(socket),
            is_connected,
        })
    }

    /// Whether the two are the ends of one connection. Of Unix sockets in a network namespace that is not the broker's
    /// the kernel names no peers: there, `same_user` decides.
    pub(crate) fn mirrors(&self, other: &Self, same_user: bool) -> bool {
        let is_one = match (self.names, other.names) {
            (
                Names::Internet { local, peer },
                Names::Internet {
                    local: far,
                    peer: near,
                },
            ) => local == near && peer == far,
            (
                Names::Unix { inode, peer },
                Names::Unix {
                    inode: far,
                    peer: near,
                },
            ) => match (peer, near) {
                (None, None) => same_user,
                (peer, near) => peer == Some(far) && near == Some(inode),
            },
            _ => false,
        };
        is_one
            && self.is_connected
            && other.is_connected
            && self.netns == other.netns
            && self.cookie != other.cookie
    }

    pub(crate) fn encode(&self) -> [u64; WORDS] {
        let flags = [self.names_senders, self.is_over, self.is_connected];
        let flags = (0..)
            .zip(flags)
            .fold(0, |all, (at, is_set)| all | u64::from(is_set) << at);
        let mut words = [0; WORDS];
        let head = [self.cookie, self.netns, flags];
        let names = match self.names {
            Names::Unix { inode, peer } => {
                let peer = peer.map_or(0, |peer| 1 << 32 | u64::from(peer));
                [1, inode.into(), peer, 0, 0, 0, 0]
            }
            Names::Internet { local, peer } => {
                let ([a, b, c], [d, e, f]) = (words_of(local), words_of(peer));
                [0, a, b, c, d, e, f]
            }
        };
        for (to, from) in words.iter_mut().zip(head.into_iter().chain(names)) {
            *to = from;
        }
        words
    }

    pub(crate) fn decode(words: &[u64; WORDS]) -> Self {
        let [cookie, netns, flags, kind, a, b, c, d, e, f, ..] = *words;
        let names = if kind == 1 {
            Names::Unix {
                inode: a as u32,
                peer: (b >> 32 != 0).then_some(b as u32),
            }
        } else {
            Names::Internet {
                local: name_in([a, b, c]),
                peer: name_in([d, e, f]),
            }
        };
        Self {
            cookie,
            netns,
            names,
            names_senders: flags & 1 != 0,
            is_over: flags & 2 != 0,
            is_connected: flags & 4 != 0,
        }
    }
}

fn name(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

fn words_of(name: SocketAddr) -> [u64; 3] {
    let address = match name.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let bits = address.to_bits();
    [(bits >> 64) as u64, bits as u64, name.port().into()]
}

fn name_in([high, low, port]: [u64; 3]) -> SocketAddr {
    let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    SocketAddr::new(IpAddr::V6(address).to_canonical(), port as u16)
}

/// Whether the socket reports an error or the end of both directions.
fn is_over(socket: &OwnedFd) -> bool {
    let mut entries = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut entries, Some(&now)).is_ok_and(|found| found > 0)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn facts(socket: impl Into<OwnedFd>) -> Option<Facts> {
        Facts::of(&socket.into())
    }

    /// Two ends of a connection mirror each other, two of different ones do not, and facts come back from a message.
    #[test]
    fn ends_mirror_each_other() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let name = listener.local_addr().expect("a name");
        let pair = || {
            let near = TcpStream::connect(name).expect("connected");
            let far = listener.accept().expect("accepted").0;
            [near, far].map(|end| facts(end).expect("facts"))
        };
        let ([a, b], [c, d]) = (pair(), pair());
        assert!(a.mirrors(&b, false) && b.mirrors(&a, false));
        assert!(!a.mirrors(&c, true) && !a.mirrors(&d, true) && !a.mirrors(&a, true));
        for one in [a, b, c, d] {
            assert_eq!(Facts::decode(&one.encode()), one);
        }
        let (e, f) = UnixStream::pair().expect("a pair");
        let [e, f] = [facts(e), facts(f)].map(|facts| facts.expect("facts"));
        assert!(!e.mirrors(&a, true));
        assert_eq!(Facts::decode(&e.encode()), e);
        assert_eq!(Facts::decode(&f.encode()), f);
    }

    /// What is no stream has no facts: datagrams, netlink, pipes and files; a stream without a peer mirrors nothing.
    #[test]
    fn other_descriptors_have_none() {
        assert_eq!(facts(UdpSocket::bind("127.0.0.1:0").expect("udp")), None);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let nobodys = facts(listener).expect("facts");
        assert!(!nobodys.is_connected && !nobodys.mirrors(&nobodys, true));
        assert_eq!(facts(UnixDatagram::pair().expect("a pair").0), None);
        assert_eq!(facts(std::io::pipe().expect("a pipe").0), None);
        assert_eq!(
            facts(std::fs::File::open("/dev/null").expect("a file")),
            None
        );
        let route = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None);
        assert_eq!(facts(route.expect("netlink")), None);
    }
}
