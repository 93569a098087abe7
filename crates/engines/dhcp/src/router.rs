//! Router solicitations and advertisements (RFC 4861, sections 4 and 6).

use std::net::{IpAddr, Ipv6Addr};

use windlass_wire::build::{self, Ends};
use windlass_wire::checksum::Sum;
use windlass_wire::ether::{self, proto};
use windlass_wire::host::ADVERTISEMENT;
use windlass_wire::{MacAddr, ether::HEADER};

use crate::{MAC, Mac, Network, Outcome, PREFIXES_MAX, Packet, SERVER_V6};

/// All nodes of a link, and their link-layer address (RFC 2464, section 7).
const ALL_NODES: (Ipv6Addr, Mac) = (
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    [0x33, 0x33, 0, 0, 0, 1],
);
/// The only hop limit of neighbour discovery: no router has forwarded it.
const HOPS: u8 = 255;
/// How long hosts use the router, in seconds.
const ROUTER_S: u16 = 1800;
/// How long hosts take a prefix to be on the link, in seconds.
const ON_LINK_S: u32 = 86_400;
/// How long hosts prefer the addresses that they made of a prefix, in seconds.
const PREFERRED_S: u32 = 3600;
/// Flags of an advertisement: addresses come by DHCP.
const MANAGED: u8 = 0x80;
/// Flags of a prefix.
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
/// Options (RFC 4861, section 4.6), with their length in units of 8 bytes.
const LINK_ADDRESS: u8 = 1;
const PREFIX: [u8; 2] = [3, 4];
const MTU: [u8; 2] = [5, 1];
/// Name servers (RFC 8106, section 5.1): one unit, and two for each of them.
const NAME_SERVERS: u8 = 25;

impl Network {
    /// The answer to a solicitation; `None` if it is none (RFC 4861, section 6.1.1).
    pub(crate) fn solicited(&self, packet: &Packet<'_>) -> Option<Outcome> {
        let header = packet.frame.get(packet.layers.l3_at()..)?;
        let (hops, source) = (*header.get(7)?, packet.source()?);
        let to = Ipv6Addr::from(*header.get(24..)?.first_chunk::<16>()?);
        let body = packet.transport()?;
        let mut sum = Ends::V6(source, to).pseudo(proto::ICMPV6, body.len() as u16);
        sum.add_bytes(body);
        let (&[_, code, ..], mut options) = body.split_first_chunk::<8>()?;
        let is_new = source.is_unspecified();
        while let &[kind, units, ..] = options {
            let size = usize::from(units).checked_mul(8).filter(|size| *size > 0)?;
            options = options.get(size..)?;
            if kind == LINK_ADDRESS && is_new {
                return None;
            }
        }
        let is_sound = (hops, code, sum.finish()) == (HOPS, 0, 0);
        if !is_sound || !options.is_empty() || source.is_multicast() {
            return None;
        }
        let to = if is_new {
            ALL_NODES
        } else {
            (source, packet.from)
        };
        Some(Outcome::Answer(self.advertise(to)?))
    }

    /// What is told to a host from time to time, before what it was told last ends.
    pub fn advertisement(&self) -> Option<Vec<u8>> {
        self.advertise(ALL_NODES).filter(|_| self.advertises)
    }

    fn advertise(&self, (to, mac): (Ipv6Addr, Mac)) -> Option<Vec<u8>> {
        let flags = if self.leases { MANAGED } else { 0 };
        let lifetime = self.router_v6.map_or(0, |_| ROUTER_S).to_be_bytes();
        let mut body = vec![ADVERTISEMENT, 0, 0, 0, 64, flags];
        body.extend(lifetime);
        // Reachable time and retransmission timer: the host's own.
        body.extend([0; 8]);
        body.extend(MTU);
        body.extend([0; 2]);
        body.extend(u32::from(self.mtu).to_be_bytes());
        let v6 = self
            .prefixes
            .iter()
            .filter_map(|(prefix, bits)| match prefix {
                IpAddr::V6(prefix) => Some((*prefix, *bits)),
                IpAddr::V4(_) => None,
            });
        for (prefix, bits) in v6.take(PREFIXES_MAX) {
            let makes_addresses = bits == 64 && !self.leases;
            let flags = if makes_addresses { AUTONOMOUS } else { 0 };
            body.extend(PREFIX);
            body.extend([bits, ON_LINK | flags]);
            body.extend(ON_LINK_S.to_be_bytes());
            body.extend(PREFERRED_S.to_be_bytes());
            body.extend([0; 4]);
            body.extend(prefix.octets());
        }
        let name_servers = self.name_servers_v6();
        if !name_servers.is_empty() {
            let units = (name_servers.len() / 8) as u8;
            body.extend([NAME_SERVERS, units.saturating_add(1), 0, 0]);
            body.extend(u32::from(ROUTER_S).to_be_bytes());
            body.extend(name_servers);
        }
        let from = self.router_v6.unwrap_or(SERVER_V6);
        let ends = Ends::V6(from, to);
        let mut sum: Sum = ends.pseudo(proto::ICMPV6, body.len() as u16);
        sum.add_bytes(&body);
        *body.get_mut(2..)?.first_chunk_mut()? = sum.finish().to_be_bytes();
        let mut frame = vec![0; HEADER + 40];
        build::ethernet(&mut frame, MacAddr(mac), MAC, None, ether::IPV6).ok()?;
        let ip = build::Ipv6 {
            src: from,
            dst: to,
            next: proto::ICMPV6,
            hops: HOPS,
        };
        build::ipv6(frame.get_mut(HEADER..)?, &ip, body.len()).ok()?;
        frame.extend(body);
        Some(frame)
    }
}
