#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects,
        clippy::panic
    )
)]
//! A network answers its hosts what a DHCP server and a router would: DHCPv4 (RFC 2131, RFC 2132), DHCPv6 (RFC 8415) and router
//! advertisements (RFC 4861), as pure functions.
//!
//! # Purpose
//! Which addresses a host has is known before it asks. There is no pool, no lease that is kept and nothing that a flood of requests could use up.
//!
//! # Where it sits
//! ```text
//!  frame for the daemon, the asker's record --> Network::receive --> Outcome::Answer:  to the asker
//!                                                                --> Outcome::Pass:    to everybody, as on a bridge that does not answer
//!                                                                --> Outcome::Done, Outcome::Drop: to nobody
//!  a timer                                  --> Network::advertisement, to each host
//! ```
//!
//! # Model
//! A [`Network`] is what all hosts are told: prefixes, routers, name servers, MTU. A [`Host`] is the record of one. Its first address of each version
//! of IP that lies in a prefix of the network is its lease, for [`Network::lease_s`].
//!
//! | message | answer |
//! | --- | --- |
//! | DISCOVER | OFFER of the lease |
//! | REQUEST for the lease, in any of its four forms | ACK |
//! | REQUEST for anything else | NAK: RFC 2131, section 4.3.2 |
//! | REQUEST that names another server | none |
//! | INFORM of a host that has the lease | ACK without an address |
//! | RELEASE, DECLINE | none: the record stays |
//! | SOLICIT, REQUEST, RENEW, REBIND | the lease in the first IA_NA, "no addresses" in others; addresses that are not the lease with lifetimes of 0 (RFC 8415, section 18.3) |
//! | CONFIRM | whether all addresses are the lease |
//! | RELEASE, DECLINE (DHCPv6) | "success": the record stays |
//! | INFORMATION-REQUEST | name servers |
//! | router solicitation | advertisement of prefixes, MTU, router and name servers |
//! | router advertisement of a host, ICMPv6 right behind the header of IPv6 | dropped |
//!
//! # The server
//! It has a link-layer address ([`MAC`]), a link-local address of each version of IP and a DUID of its own, the same on all hosts: a guest
//! that moves keeps its lease. Nothing can be sent to it by unicast; a client renews by broadcast once T2 has come, a minute after T1 at most.
//!
//! # What is dropped
//! Messages of relays (`giaddr`, RELAY-FORW), fragments, messages above [`MESSAGE_MAX`], packets that contradict themselves, a client hardware
//! address that is not the frame's source, solicitations with a wrong checksum or hop limit. The checksum of UDP is not looked at: a guest may leave it
//! to its virtual NIC.
//!
//! # Limits
//! An answer has at most [`ANSWER_MAX`] bytes. [`PREFIXES_MAX`] prefixes are advertised, and [`NAME_SERVERS_MAX`] name servers told.
//!
//! # Not done
//! Routes, boot files, search domains and any other option. Prefix delegation and temporary addresses. Reconfiguration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_wire::build::{self, Ends, Link};
use windlass_wire::host::{self, About};
use windlass_wire::{Fault, Fragment, Kind, Layers, MacAddr, parse};

mod router;
mod v4;
mod v6;

/// The server's link-layer address.
pub const MAC: MacAddr = MacAddr([2, b'w', b'l', 0, 0, 1]);
/// Its IPv4 address and identifier: link-local (RFC 3927), nobody else's.
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 67);
/// Its IPv6 address: link-local, of [`MAC`] (RFC 4291, appendix A).
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0077, 0x6cff, 0xfe00, 1);
/// Bytes of a message of DHCP at most.
pub const MESSAGE_MAX: usize = 1024;
/// Bytes of an answer at most, with all headers.
pub const ANSWER_MAX: usize = 1460;
/// Prefixes that an advertisement has room for.
pub const PREFIXES_MAX: usize = 8;
/// Name servers of each version of IP that an answer has room for.
pub const NAME_SERVERS_MAX: usize = 8;

/// A link-layer address.
pub type Mac = [u8; 6];

/// What all hosts of a network are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Which addresses are on the link: each with its number of bits that count.
    pub prefixes: Vec<(IpAddr, u8)>,
    /// The IPv4 router.
    pub router_v4: Option<Ipv4Addr>,
    /// The link-local address of the IPv6 router.
    pub router_v6: Option<Ipv6Addr>,
    /// Name servers, the preferred one first.
    pub name_servers: Vec<IpAddr>,
    /// How long a lease holds, in seconds.
    pub lease_s: u32,
    /// Largest packet, in bytes.
    pub mtu: u16,
    /// It answers DHCP.
    pub leases: bool,
    /// It advertises itself.
    pub advertises: bool,
}

/// The record of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its link-layer address.
    pub mac: Mac,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
}

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This goes to the asker, without a tag; the frame to nobody.
    Answer(Vec<u8>),
    /// The same: it does not get what it asked for.
    Refuse(Vec<u8>),
    /// It was heard, and has no answer.
    Done,
    /// The network does not know: the frame goes to everybody.
    Pass,
    /// It is not what it should be, or nothing that a host may say.
    Drop,
}

/// Reads what a frame without tags is about, whether it holds together or not; `None`: nothing that a network answers.
pub fn about(frame: &[u8]) -> Option<About> {
    let (kind, packet) = frame.get(12..)?.split_first_chunk::<2>()?;
    host::about(u16::from_be_bytes(*kind), packet)
}

/// A packet in one piece that holds together.
struct Packet<'a> {
    layers: Layers,
    frame: &'a [u8],
    from: Mac,
}

impl<'a> Packet<'a> {
    fn new(frame: &'a [u8]) -> Option<Packet<'a>> {
        let layers = parse(frame, frame.len() as u32);
        let is_whole = layers.fault == Fault::None
            && layers.fragment == Fragment::No
            && layers.need == 0
            && layers.l4 != 0;
        let from = *frame.get(6..)?.first_chunk()?;
        is_whole.then_some(Packet {
            layers,
            frame,
            from,
        })
    }

    /// The source address of a packet of IPv6.
    fn source(&self) -> Option<Ipv6Addr> {
        let source = self.frame.get(self.layers.l3_at()..)?.get(8..)?;
        Some(Ipv6Addr::from(*source.first_chunk::<16>()?))
    }

    /// The transport header and what is behind it, without padding.
    fn transport(&self) -> Option<&'a [u8]> {
        let end = usize::try_from(self.layers.end).ok()?;
        self.frame.get(self.layers.l4_at()..end)
    }

    /// What a datagram carries, if that is no more than a client says.
    fn datagram(&self) -> Option<&'a [u8]> {
        let transport = self.transport().filter(|_| self.layers.is_udp())?;
        let length = u16::from_be_bytes(*transport.get(4..)?.first_chunk()?);
        let message = transport.get(8..length.into())?;
        (message.len() <= MESSAGE_MAX).then_some(message)
    }
}

impl Network {
    /// The answer to a frame, without tags, of a host; `None`: nobody knows it.
    pub fn receive(&self, frame: &[u8], host: Option<&Host>) -> Outcome {
        let about = about(frame);
        let packet = match about {
            Some(About::Advertisement) if self.advertises => return Outcome::Drop,
            Some(About::Solicitation) if self.advertises => Packet::new(frame),
            Some(About::Leases) if self.leases => Packet::new(frame),
            _ => return Outcome::Pass,
        };
        let outcome = packet.and_then(|packet| match (about, packet.layers.kind) {
            (Some(About::Solicitation), _) => self.solicited(&packet),
            (_, Kind::Ipv4) => v4::answer(self, &packet, host),
            _ => v6::answer(self, &packet, host),
        });
        outcome.unwrap_or(Outcome::Drop)
    }

    /// The name servers that fit, as octets.
    fn name_servers<const N: usize>(&self, of: impl Fn(IpAddr) -> Option<[u8; N]>) -> Vec<u8> {
        let fitting = self.name_servers.iter().filter_map(|ip| of(*ip));
        fitting.take(NAME_SERVERS_MAX).flatten().collect()
    }

    /// Those of IPv6, as octets.
    fn name_servers_v6(&self) -> Vec<u8> {
        self.name_servers(|ip| match ip {
            IpAddr::V6(ip) => Some(ip.octets()),
            IpAddr::V4(_) => None,
        })
    }

    /// When a client asks the server for more, in seconds: at half of the lease (RFC 2131, section 4.4.5).
    fn renew_s(&self) -> u32 {
        self.lease_s / 2
    }

    /// When it asks any server, which is the request that is heard: a minute later, or an eighth of the lease. Clients that have asked the
    /// server first wait for some 15 s before they ask again.
    fn rebind_s(&self) -> u32 {
        self.renew_s().saturating_add((self.lease_s / 8).min(60))
    }

    /// The first address of a host in a prefix that fits, and that prefix's bits.
    fn lease<T>(&self, host: &Host, of: impl Fn(IpAddr) -> Option<T>) -> Option<(T, u8)> {
        let mut ips = host.ips.iter();
        ips.find_map(|ip| Some((of(*ip)?, self.bits_around(*ip)?)))
    }

    /// How many bits of an address are those of the prefix that it is in.
    fn bits_around(&self, ip: IpAddr) -> Option<u8> {
        let is_around = |&&(prefix, bits): &&(IpAddr, u8)| match (prefix, ip) {
            (IpAddr::V4(prefix), IpAddr::V4(ip)) => {
                let differs = prefix.to_bits() ^ ip.to_bits();
                differs.leading_zeros() >= bits.into()
            }
            (IpAddr::V6(prefix), IpAddr::V6(ip)) => {
                let differs = prefix.to_bits() ^ ip.to_bits();
                differs.leading_zeros() >= bits.into()
            }
            _ => false,
        };
        let around = self.prefixes.iter().filter(is_around);
        around.map(|(_, bits)| *bits).max()
    }
}

/// An answer of the server as a frame.
fn datagram(to: Mac, ends: Ends, ports: (u16, u16), message: &[u8]) -> Option<Vec<u8>> {
    let link = Link {
        dst: MacAddr(to),
        src: MAC,
        tag: None,
    };
    let mut frame = vec![0; ANSWER_MAX];
    let length = build::udp_frame(&mut frame, &link, &ends, ports, message).ok()?;
    frame.truncate(length);
    Some(frame)
}
