//! What the kernel says of a socket, as the process that holds a copy of it tells the broker.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, ipproto};
use windlass_channel::unix;
use windlass_sys::process;

use windlass_listing::plain;
use windlass_listing::plain::address_bits;

/// A stream socket, TCP or Unix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cookie: u64,
    pub(crate) netns: u64,
    is_unix: bool,
    own: Name,
    /// `None` without a peer, and where the kernel does not tell: of a Unix socket in another network namespace.
    peer: Option<Name>,
    /// A Unix socket whose receiver is told who sent each piece.
    pub(crate) names_senders: bool,
    /// The connection has ended in both directions, or an error is noted that the next send would take.
    pub(crate) is_over: bool,
    /// It has a peer still: one that a reset has ended has none.
    is_connected: bool,
    /// Unread bytes of a ring that the helper has moved into it.
    pub(crate) moved: u64,
    /// Descriptors that were looked at until it was found.
    pub(crate) looked: u32,
}

/// The kernel's name of an end: address and port, or the inode of a Unix socket.
type Name = (u128, u16);

plain!(Facts: cookie, netns, is_unix, own, peer, names_senders, is_over, is_connected, moved, looked);

impl Facts {
    /// What is known of a Unix stream by its number alone, of which nobody has a copy meanwhile: it may be closed just now, and its peer
    /// must hear of that. `None` for any other descriptor, and for a socket without a peer or in a network namespace that is not the
    /// caller's.
    pub(crate) fn unheld(pid: u32, fd: i32) -> Option<Self> {
        let target = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?;
        let inode = inode.strip_suffix(']')?.parse().ok()?;
        let (cookie, peer) = unix::stream(inode)?;
        Some(Self {
            cookie,
            netns: process::netns_cookie(std::io::stdin()).ok()?,
            is_unix: true,
            own: (inode.into(), 0),
            peer: Some((peer.into(), 0)),
            is_connected: true,
            ..Self::default()
        })
    }

    /// `None` for anything but a stream socket. Where it is a Unix one, its peer is still to be found: see
    /// [`with_peer`](Self::with_peer).
    pub(crate) fn of(socket: &OwnedFd) -> Option<Self> {
        if sockopt::socket_type(socket).ok()? != SocketType::STREAM {
            return None;
        }
        let cookie = sockopt::socket_cookie(socket).ok()?;
        let number = process::number(socket.as_fd());
        let is_unix = sockopt::socket_domain(socket).ok()? == AddressFamily::UNIX;
        let peer = rustix::net::getpeername(socket).ok().flatten();
        let is_connected = peer.is_some();
        let (own, peer) = if is_unix {
            let inode = unix::inode(number)?;
            ((inode.into(), 0), None)
        } else {
            let is_tcp = sockopt::socket_protocol(socket).ok()? == Some(ipproto::TCP);
            let own = name(rustix::net::getsockname(socket).ok().filter(|_| is_tcp)?)?;
            (own, peer.and_then(name))
        };
        // Errors and the end of both directions are reported unasked.
        let mut events = [PollFd::new(socket, PollFlags::empty())];
        Some(Self {
            cookie,
            netns: process::netns_cookie(socket).ok()?,
            is_unix,
            own,
            peer,
            names_senders: is_unix && unix::wants_sender(number),
            is_over: poll(&mut events, Some(&Timespec::default())).is_ok_and(|found| found > 0),
            is_connected,
            ..Self::default()
        })
    }

    /// The same with the peer of a Unix socket, which takes its time: no copy is held meanwhile.
    pub(crate) fn with_peer(mut self) -> Self {
        if let Ok(inode) = u32::try_from(self.own.0)
            && self.is_unix
        {
            self.peer = unix::peer_of(inode, self.cookie).map(|peer| (peer.into(), 0));
        }
        self
    }

    /// Whether the two are the ends of one connection. Of Unix sockets in a network namespace that is not the broker's
    /// the kernel names no peers: there, `same_user` decides.
    pub(crate) fn mirrors(&self, other: &Self, same_user: bool) -> bool {
        let is_one = match (self.peer, other.peer) {
            (None, None) => self.is_unix && same_user,
            (peer, near) => peer == Some(other.own) && near == Some(self.own),
        };
        is_one
            && self.is_unix == other.is_unix
            && self.is_connected
            && other.is_connected
            && self.netns == other.netns
            && self.cookie != other.cookie
    }
}

fn name(address: SocketAddrAny) -> Option<Name> {
    let address = SocketAddr::try_from(address).ok()?;
    Some((address_bits(address.ip()), address.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;
    use windlass_listing::plain::Plain;

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
            assert_eq!(Facts::of_bytes(&one.to_bytes()), Some(one));
        }
        let (e, f) = UnixStream::pair().expect("a pair");
        let [e, f] = [facts(e), facts(f)].map(|facts| facts.expect("facts"));
        assert!(!e.mirrors(&a, true));
        assert_eq!(Facts::of_bytes(&e.to_bytes()), Some(e));
        assert_eq!(Facts::of_bytes(&f.to_bytes()), Some(f));
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
