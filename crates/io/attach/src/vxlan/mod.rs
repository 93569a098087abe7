//! VXLAN tunnels (RFC 7348) over the host's own UDP.
//!
//! # Purpose
//! A [`Vtep`] is a tunnel endpoint: an address and port of the host. Frames leave through a [`Target`], one remote endpoint of
//! one network, and come in by the [`VtepRx`] of each worker.
//!
//! # Where it sits
//! ```text
//!   bridge -> Target::tx_burst -> Outbox: datagrams, runs -> sendmmsg, UDP_SEGMENT
//!   bridge <- VtepRx::rx_burst <- inner segments merged   <- recvmmsg, UDP_GRO
//!                 |
//!             Tables: which network is which overlay's, which source is which target
//! ```
//!
//! # Model
//! Outer headers, routes, neighbours, path MTU and firewalls are the kernel's. What a call costs is the cost of its messages,
//! so datagrams leave in runs ([`windlass_overlay::runs`]), from one source port while the load allows it
//! ([`windlass_overlay::ports`]). Checksums are complete in the tunnel, whatever the sender left to be
//! done, and large segments are cut as they are copied.
//!
//! Where a multicast group stands in the place of remote endpoints, the datagrams of a network that come from no target are the
//! group's target's: a [`Group`] receives what is sent to it.
//!
//! What comes for an endpoint that has moved to another host is sent on there, for a while: [`Vtep::set_relays`].
//!
//! A burst is of one source in one network: [`VtepRx`] sets [`Heads::from`](windlass_frame::Heads::from) to the place of the
//! target that sent it, or of the overlay if no target did.
//!
//! # Synchronization
//! A lane is one worker's. [`Tables`] and [`Relays`] are replaced as a whole; a lane takes the new ones at its next burst.
//!
//! # What can be lost
//! Datagrams, as UDP loses them; and what was received and not yet forwarded, when the daemon is killed.
//!
//! # Not done
//! Geneve, AF_XDP underneath, offload of the inner segmentation to a device.

mod group;
mod outbox;
mod relay;
mod rx;
mod tables;
mod target;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use windlass_frame::{BURST, Heads, Pick, Tick};
use windlass_nic::FlowHash;
pub use windlass_overlay::ports::PORTS_MAX;
use windlass_overlay::ports::{Flowlets, Load};
use windlass_shm::{Section, Tails};
use windlass_stats::Padded;
use windlass_sys::netns::NetnsRef;
use windlass_sys::{Errno, udp};

use crate::endpoint::Rings;
use crate::port::{self, RxPort, Sent, Stop, TxCaps, TxPort};
pub use group::Group;
pub use relay::{Relay, Relays};
pub use rx::VtepRx;
pub use tables::{Network, Tables};
pub use target::{Target, TargetConf};

/// Bytes of the socket buffers that are asked for, each way.
const SOCKET_BYTES: i32 = 8 * 1024 * 1024;
/// The first source port of the first worker.
const PORTS_FROM: u16 = 49_152;
/// How long datagrams are sent one by one after a device refused to cut them.
const UNCUT_NS: u64 = 10_000_000_000;
/// Addresses for which reports are kept.
const REPORTS_MAX: usize = 64;

/// The TOS (traffic class) byte of outer headers, but for its ECN bits, which follow the inner packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tos {
    /// That of the inner packet; 0 where it is not IP.
    #[default]
    Inherit,
    /// Always this.
    Fixed(u8),
}

/// How a tunnel endpoint is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VtepConf {
    /// The address and port that it receives on; its datagrams come from this address.
    pub local: SocketAddr,
    /// TTL (hop limit) of outer headers.
    pub ttl: u8,
    /// Their TOS.
    pub tos: Tos,
    /// Source ports that one worker may use, 1 to [`PORTS_MAX`].
    pub ports: u8,
}

/// What the kernel has said of datagrams to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Where they went.
    pub to: IpAddr,
    /// What became of them.
    pub errno: Errno,
    /// With `EMSGSIZE`, the MTU of the path in bytes.
    pub mtu: u32,
}

impl Trouble {
    /// Whether it says the same of the same address, but for the MTU.
    pub fn is_like(&self, other: &Trouble) -> bool {
        (self.to, self.errno) == (other.to, other.errno)
    }
}

/// One worker's sockets.
#[derive(Debug)]
struct Lane {
    rx: Arc<OwnedFd>,
    /// By source port.
    tx: Vec<OwnedFd>,
    /// Which of them a flow has.
    flowlets: Flowlets,
    /// Until when datagrams are sent one by one: the device cannot cut them.
    uncut: AtomicU64,
}

/// A tunnel endpoint (VTEP): an address and port that overlays share.
#[derive(Debug)]
pub struct Vtep {
    conf: VtepConf,
    lanes: Box<[Padded<Lane>]>,
    flows: FlowHash,
    /// The namespace of its sockets.
    namespace: NetnsRef,
    /// What paths are asked with.
    probe: OwnedFd,
    /// Datagrams that are not VXLAN.
    headers: AtomicU64,
    /// Datagrams of networks that no overlay has.
    unknown: AtomicU64,
    /// Datagrams that were sent on to where their destination has moved.
    relayed: AtomicU64,
    tables: Mutex<Arc<Tables>>,
    relays: Mutex<Arc<Relays>>,
    /// Raised with each change of `tables` and `relays`, behind it.
    version: AtomicU64,
    troubles: Mutex<Vec<Trouble>>,
}

impl Vtep {
    /// Opens the sockets of `lanes` workers in the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel says: `EADDRNOTAVAIL` while the address is not there, `EADDRINUSE` while another socket has the port.
    pub fn open(conf: &VtepConf, lanes: u16) -> io::Result<Arc<Vtep>> {
        let lanes = (0..lanes.max(1)).map(|lane| Lane::open(conf, lane).map(Padded::new));
        Ok(Arc::new(Vtep {
            conf: *conf,
            lanes: lanes.collect::<Result<_, Errno>>()?,
            flows: FlowHash::new([random(), random()]),
            namespace: NetnsRef::current().map_err(io::Error::other)?,
            probe: Lane::sender(conf, 0)?,
            headers: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            relayed: AtomicU64::new(0),
            tables: Mutex::default(),
            relays: Mutex::default(),
            version: AtomicU64::new(1),
            troubles: Mutex::default(),
        }))
    }

    /// How it was opened.
    pub fn conf(&self) -> &VtepConf {
        &self.conf
    }

    /// The rings: a receive half for each lane. What is sent is sent to targets.
    pub fn rings(self: &Arc<Vtep>) -> Rings {
        self.receiving(self.lanes.iter().map(|lane| lane.rx.clone()))
    }

    fn receiving(self: &Arc<Vtep>, sockets: impl Iterator<Item = Arc<OwnedFd>>) -> Rings {
        let one = |socket| Box::new(VtepRx::new(self.clone(), socket)) as Box<dyn RxPort>;
        Rings {
            rx: sockets.map(one).collect(),
            tx: Arc::new(Nowhere),
        }
    }

    /// Whose datagrams are whose, from the next burst of each lane on.
    pub fn set_tables(&self, tables: Tables) {
        *self.tables.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(tables);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Datagrams that belong to no overlay: not VXLAN, and of networks that none has.
    pub fn refused(&self) -> [u64; 2] {
        [&self.headers, &self.unknown].map(|count| count.load(Ordering::Relaxed))
    }

    /// The MTU of the path to an address in bytes, as the kernel knows it now.
    ///
    /// # Errors
    /// As [`udp::path_mtu`].
    pub fn path_mtu(&self, to: IpAddr) -> Result<u32, Errno> {
        udp::path_mtu(&self.probe, SocketAddr::new(to, self.conf.local.port()))
    }

    /// Whether datagrams are sent one by one at the moment, because a device cannot cut them.
    pub fn is_uncut(&self, now: Tick) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.is_uncut(now))
    }

    /// What was said of datagrams since the last call, the last word about each address.
    pub fn take_troubles(&self) -> Vec<Trouble> {
        for socket in self.lanes.iter().flat_map(|lane| &lane.tx) {
            self.read_reports(socket);
        }
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *troubles)
    }

    /// The port that each of a burst's picks leaves from, and a bit for each port that is used, for a target with this load.
    fn ports(
        &self,
        lane: &Lane,
        (load, bytes): (&Load, u64),
        heads: &Heads,
        picks: &[Pick],
    ) -> ([u8; BURST], u16) {
        let now = heads.now.0;
        let most = load.ports(bytes, now, lane.tx.len() as u8);
        let mut ports = [0; BURST];
        if lane.tx.len() < 2 || !lane.flowlets.are_told_apart(most, now) {
            return (ports, 1);
        }
        let mut used = 0;
        for (port, pick) in ports.iter_mut().zip(picks) {
            let flow = self.flows.of(heads, pick.index());
            *port = lane.flowlets.port(flow, most, now);
            used |= 1 << *port;
        }
        (ports, used)
    }

    /// Takes what the kernel reports of a socket's datagrams.
    #[cold]
    fn read_reports(&self, socket: &OwnedFd) {
        for _ in 0..REPORTS_MAX {
            let Ok(Some(report)) = udp::error::take(socket) else {
                return;
            };
            self.note(Trouble {
                to: report.to.ip(),
                errno: report.errno,
                mtu: report.mtu,
            });
        }
    }

    #[cold]
    fn note(&self, trouble: Trouble) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.retain(|known| !known.is_like(&trouble));
        if troubles.len() < REPORTS_MAX {
            troubles.push(trouble);
        }
    }
}

/// What nobody can guess.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The transmit half of an endpoint by itself: there is nobody to send to.
struct Nowhere;

impl TxPort for Nowhere {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        _lane: port::Lane,
        _heads: &Heads,
        _tails: &Tails<'_>,
        _picks: &[Pick],
    ) -> Sent {
        Sent {
            stop: Stop::Down,
            ..Sent::default()
        }
    }

    fn kick(&self, _lane: port::Lane) {}
}

impl Lane {
    fn open(conf: &VtepConf, lane: u16) -> Result<Lane, Errno> {
        let tx = (0..u16::from(conf.ports.clamp(1, PORTS_MAX))).map(|k| {
            let first = PORTS_FROM.saturating_add(lane.saturating_mul(PORTS_MAX.into()));
            let port = first.saturating_add(k);
            // Somebody may have it: any other does as well.
            Lane::sender(conf, port).or_else(|_| Lane::sender(conf, 0))
        });
        Ok(Lane {
            rx: Lane::receiver(conf.local)?,
            tx: tx.collect::<Result<_, Errno>>()?,
            flowlets: Flowlets::default(),
            uncut: AtomicU64::new(0),
        })
    }

    fn receiver(local: SocketAddr) -> Result<Arc<OwnedFd>, Errno> {
        let socket = udp::open(local, true)?;
        udp::set_merged(&socket, true)?;
        udp::set_tos_told(&socket, local.is_ipv6())?;
        udp::set_buffers(&socket, SOCKET_BYTES)?;
        Ok(Arc::new(socket))
    }

    fn sender(conf: &VtepConf, port: u16) -> Result<OwnedFd, Errno> {
        let is_v6 = conf.local.is_ipv6();
        let socket = udp::open(SocketAddr::new(conf.local.ip(), port), false)?;
        udp::refuse_all(&socket)?;
        udp::set_hops(&socket, is_v6, conf.ttl)?;
        udp::forbid_echo(&socket, is_v6)?;
        udp::forbid_fragments(&socket, is_v6)?;
        udp::error::keep(&socket, is_v6)?;
        udp::set_buffers(&socket, SOCKET_BYTES)?;
        Ok(socket)
    }

    fn is_uncut(&self, now: Tick) -> bool {
        self.uncut.load(Ordering::Relaxed) > now.0
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// Whoever sends to a source port fills nothing: what the kernel reports of datagrams from there still comes.
    #[test]
    fn a_flooded_source_port_hears_reports() {
        let local = UdpSocket::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let conf = VtepConf {
            local: local.expect("a port"),
            ttl: 64,
            tos: Tos::Inherit,
            ports: 1,
        };
        let vtep = Vtep::open(&conf, 1).expect("an endpoint");
        let source = vtep.lanes[0].tx[0].try_clone().expect("a descriptor");
        let source = UdpSocket::from(source);
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = source.local_addr().expect("an address");
        // Large ones, then small ones where no large one fits.
        for _ in 0..3 * SOCKET_BYTES / 60_000 {
            stranger.send_to(&[0; 60_000], to).expect("sent");
        }
        for _ in 0..200 {
            stranger.send_to(&[0], to).expect("sent");
        }
        let nobody = UdpSocket::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        source.send_to(&[0], nobody.expect("a port")).expect("sent");
        let troubles = vtep.take_troubles();
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert_eq!(troubles[0].errno, Errno::CONNREFUSED);
    }
}
