//! What DHCP and router advertisements say, as far as it gives or takes addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_wire::ether::proto;
use windlass_wire::{Fault, Fragment, Kind, Layers, parse};

use super::Method;
use crate::guard::{is_untagged, nd, word};
use windlass_wire::dhcp::{
    CLIENT, CLIENT6, ETHERNET, Malformed, Message4, Options6, REPLY, REQUEST, SERVER, SERVER6,
    code6, type4, type6,
};

/// A prefix in a router advertisement (RFC 4861, section 4.6.2): its option, units of 8 bytes, and the flag of autonomous configuration.
const PREFIX: u8 = 3;
const PREFIX_UNITS: u8 = 4;
const AUTONOMOUS: u8 = 0x40;

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It wants addresses.
    Asks {
        method: Method,
        xid: u32,
        client: Box<[u8]>,
    },
    /// It has them no more.
    Returns {
        method: Method,
        addresses: Vec<(IpAddr, u8)>,
    },
    /// Neighbour discovery comes from one that it has.
    Uses(IpAddr),
}

/// What it gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Dhcp {
        method: Method,
        xid: u32,
        client: Box<[u8]>,
        /// None in a refusal.
        offers: Vec<Offer>,
    },
    /// Upper halves of prefixes of 64 bits to make addresses of, and for how many seconds they hold.
    Prefixes(Vec<(u64, u32)>),
}

/// An address or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: IpAddr,
    pub(super) bits: u8,
    /// For how long; 0: no more.
    pub(super) seconds: u32,
}

impl Offer {
    /// Whether a host can have it.
    pub(super) fn can_be_given(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => {
                let [first, ..] = address.octets();
                self.bits == 32 && !matches!(first, 0 | 127 | 224..)
            }
            IpAddr::V6(address) => {
                let (address, bits) = (address.to_bits(), self.bits);
                let is_global = address >> 125 == 1 && bits >= 3;
                let is_local = address >> 121 == 0xfc >> 1 && bits >= 7;
                let rest = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
                (is_global || is_local) && bits <= 128 && address & rest == 0
            }
        }
    }
}

/// A packet in one piece in an untagged frame.
struct Packet<'a> {
    layers: Layers,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    fn new(bytes: &'a [u8], len: u32) -> Option<Packet<'a>> {
        let layers = parse(bytes, len);
        let is_whole = layers.need == 0
            && layers.fault == Fault::None
            && layers.fragment == Fragment::No
            && layers.l4 != 0;
        (is_whole && is_untagged(&layers)).then_some(Packet { layers, bytes })
    }

    /// The payload of a UDP datagram to this port over IPv4 or IPv6.
    fn datagram(&self, kind: Kind, port: u16) -> Option<&'a [u8]> {
        let transport = self.bytes.get(self.layers.l4_at()..)?;
        let &[_, _, p0, p1, l0, l1, ..] = transport.first_chunk::<8>()?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let is_it = self.layers.kind == kind
            && self.layers.is_udp()
            && u16::from_be_bytes([p0, p1]) == port;
        transport.get(8..length).filter(|_| is_it)
    }

    /// The type, the source and the target of a question for a neighbour, or of an answer.
    fn neighbour(&self) -> Option<(u8, Ipv6Addr, Ipv6Addr)> {
        let source: &[u8; 16] = self
            .bytes
            .get(self.layers.l3_at()..)?
            .get(8..)?
            .first_chunk()?;
        let message: &[u8; 24] = self.bytes.get(self.layers.l4_at()..)?.first_chunk()?;
        let is_one = self.layers.kind == Kind::Ipv6
            && self.layers.proto == proto::ICMPV6
            && matches!(
                message[0],
                nd::NEIGHBOUR_SOLICITATION | nd::NEIGHBOUR_ADVERTISEMENT
            );
        let target: [u8; 16] = *message.last_chunk()?;
        is_one.then(|| (message[0], (*source).into(), target.into()))
    }
}

/// The address that a member asks others for before it uses it.
pub(super) fn asked(bytes: &[u8], len: u32) -> Option<Ipv6Addr> {
    let (number, source, target) = Packet::new(bytes, len)?.neighbour()?;
    (number == nd::NEIGHBOUR_SOLICITATION && source.is_unspecified()).then_some(target)
}

/// What a member of these link-layer addresses says to a DHCP server, or of its neighbours.
pub(super) fn said(bytes: &[u8], len: u32, macs: &[u64]) -> Option<Said> {
    let packet = Packet::new(bytes, len)?;
    if let Some((number, source, target)) = packet.neighbour() {
        let used = match number {
            nd::NEIGHBOUR_ADVERTISEMENT => target,
            _ if source.is_unspecified() => target,
            _ => source,
        };
        return Some(Said::Uses(used.into()));
    }
    if let Some(message) = packet.datagram(Kind::Ipv4, SERVER) {
        return said4(message, macs);
    }
    said6(packet.datagram(Kind::Ipv6, SERVER6)?)
}

/// What a frame to a member of these link-layer addresses gives it.
pub(super) fn answer(bytes: &[u8], len: u32, macs: &[u64]) -> Option<Answer> {
    let to = word(*bytes.first_chunk()?);
    if to & 1 == 0 && !macs.contains(&to) {
        return None;
    }
    let packet = Packet::new(bytes, len)?;
    if let Some(message) = packet.datagram(Kind::Ipv4, CLIENT) {
        return answer4(message, macs);
    }
    if let Some(message) = packet.datagram(Kind::Ipv6, CLIENT6) {
        return answer6(message);
    }
    prefixes(&packet)
}

/// A message of DHCPv4 of a client with one of these hardware addresses, and its identifier: the hardware address is as good as one.
fn message4<'a>(
    message: &'a [u8],
    operation: u8,
    macs: &[u64],
) -> Option<(Message4<'a>, Box<[u8]>)> {
    let message = Message4::new(message)?;
    let is_it = message.operation == operation && macs.contains(&word(message.chaddr));
    let own = || [&[ETHERNET][..], &message.chaddr].concat();
    let client = message
        .client
        .map_or_else(|| own().into(), |client| client.into());
    is_it.then_some((message, client))
}

fn said4(message: &[u8], macs: &[u64]) -> Option<Said> {
    let (message, client) = message4(message, REQUEST, macs)?;
    let method = Method::Dhcpv4;
    let returns = |address: Ipv4Addr| {
        let addresses = vec![(address.into(), 32)];
        Some(Said::Returns { method, addresses })
    };
    match message.kind {
        type4::DISCOVER if !message.is_rapid => None,
        type4::DISCOVER | type4::REQUEST => Some(Said::Asks {
            method,
            xid: message.xid,
            client,
        }),
        type4::DECLINE => returns(Ipv4Addr::from(
            <[u8; 4]>::try_from(message.requested?).ok()?,
        )),
        type4::RELEASE => returns(message.has),
        _ => None,
    }
}

fn answer4(message: &[u8], macs: &[u64]) -> Option<Answer> {
    let (message, client) = message4(message, REPLY, macs)?;
    let offers = match message.kind {
        type4::ACK => vec![Offer {
            address: message.gets.into(),
            bits: 32,
            // An answer to INFORM has no lease.
            seconds: u32::from_be_bytes(message.lease?.try_into().ok()?),
        }],
        type4::NAK => Vec::new(),
        _ => return None,
    };
    Some(Answer::Dhcp {
        method: Method::Dhcpv4,
        xid: message.xid,
        client,
        offers,
    })
}

/// A message of DHCPv6 with one client.
struct Message6 {
    kind: u8,
    xid: u32,
    client: Box<[u8]>,
    offers: Vec<Offer>,
    is_rapid: bool,
}

impl Message6 {
    fn new(message: &[u8]) -> Option<Message6> {
        let (&[kind, x0, x1, x2], options) = message.split_first_chunk()?;
        let (mut client, mut offers, mut is_rapid) = (None, Vec::new(), false);
        for option in Options6(options) {
            let (code, value) = option.ok()?;
            match code {
                code6::CLIENT_ID if client.replace(value).is_some() => return None,
                code6::RAPID_COMMIT => is_rapid = true,
                code6::IA_NA | code6::IA_PD => add_offers(value.get(12..)?, &mut offers).ok()?,
                code6::IA_TA => add_offers(value.get(4..)?, &mut offers).ok()?,
                _ => {}
            }
        }
        Some(Message6 {
            kind,
            xid: u32::from_be_bytes([0, x0, x1, x2]),
            client: client?.into(),
            offers,
            is_rapid,
        })
    }
}

/// Addresses and prefixes of an identity association.
fn add_offers(options: &[u8], offers: &mut Vec<Offer>) -> Result<(), Malformed> {
    for option in Options6(options) {
        let (code, value) = option?;
        let (address, bits, seconds) = match code {
            code6::IA_ADDRESS => {
                let (address, rest) = value.split_first_chunk::<16>().ok_or(Malformed)?;
                (address, 128, rest.get(4..))
            }
            code6::IA_PREFIX => {
                let (lifetimes, rest) = value.split_first_chunk::<8>().ok_or(Malformed)?;
                let (bits, rest) = rest.split_first().ok_or(Malformed)?;
                let address = rest.first_chunk::<16>().ok_or(Malformed)?;
                (address, *bits, lifetimes.get(4..))
            }
            _ => continue,
        };
        let seconds = seconds.and_then(|s| s.first_chunk()).ok_or(Malformed)?;
        offers.push(Offer {
            address: Ipv6Addr::from(*address).into(),
            bits,
            seconds: u32::from_be_bytes(*seconds),
        });
    }
    Ok(())
}

fn said6(message: &[u8]) -> Option<Said> {
    let message = Message6::new(message)?;
    let method = Method::Dhcpv6;
    match message.kind {
        type6::SOLICIT if !message.is_rapid => None,
        type6::SOLICIT | type6::REQUEST | type6::RENEW | type6::REBIND => Some(Said::Asks {
            method,
            xid: message.xid,
            client: message.client,
        }),
        type6::RELEASE | type6::DECLINE => {
            let offers = message.offers.iter();
            let addresses = offers.map(|offer| (offer.address, offer.bits)).collect();
            Some(Said::Returns { method, addresses })
        }
        _ => None,
    }
}

fn answer6(message: &[u8]) -> Option<Answer> {
    let message = Message6::new(message)?;
    (message.kind == type6::REPLY).then_some(Answer::Dhcp {
        method: Method::Dhcpv6,
        xid: message.xid,
        client: message.client,
        offers: message.offers,
    })
}

/// The prefixes of a router advertisement that hosts make addresses of (RFC 4861, sections 4.2 and 6.1.2; RFC 4862, section 5.5.3).
fn prefixes(packet: &Packet<'_>) -> Option<Answer> {
    let layers = &packet.layers;
    let ip: &[u8; 40] = packet.bytes.get(layers.l3_at()..)?.first_chunk()?;
    let &[_, _, _, _, _, _, _, hops, s0, s1, ..] = ip;
    let message = packet.bytes.get(layers.l4_at()..layers.end as usize)?;
    let (&[number, code, ..], mut options) = message.split_first_chunk::<16>()?;
    let is_one = layers.kind == Kind::Ipv6
        && layers.proto == proto::ICMPV6
        && [number, code, hops] == [nd::ROUTER_ADVERTISEMENT, 0, 255]
        && [s0, s1 & 0xc0] == [0xfe, 0x80];
    if !is_one {
        return None;
    }
    let mut prefixes = Vec::new();
    while let &[kind, units, ..] = options {
        let size = usize::from(units).wrapping_mul(8);
        let (option, rest) = options.split_at_checked(size).filter(|_| size > 0)?;
        if [kind, units] == [PREFIX, PREFIX_UNITS]
            && let &[_, _, 64, flags, v0, v1, v2, v3, ..] = option
            && flags & AUTONOMOUS != 0
            && let Some(prefix) = option.get(16..).and_then(|prefix| prefix.first_chunk())
        {
            let seconds = u32::from_be_bytes([v0, v1, v2, v3]);
            prefixes.push((u64::from_be_bytes(*prefix), seconds));
        }
        options = rest;
    }
    options.is_empty().then_some(Answer::Prefixes(prefixes))
}
