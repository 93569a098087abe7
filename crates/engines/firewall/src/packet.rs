//! What a firewall sees of a frame.
//!
//! # Model
//! | frame | seen as |
//! | --- | --- |
//! | neither IP nor anything behind which a receiver might find IP | [`Seen::Free`] |
//! | neighbour discovery of the link: types 133 to 136 of ICMPv6 with hop limit 255, not a fragment | [`Seen::Free`], as ARP is |
//! | an IP packet whose headers hold together | [`Seen::Packet`] |
//! | anything else: truncated, contradicting itself, too many headers or tags | [`Seen::Unreadable`] |
//!
//! Of a packet's parts, the first has all headers up to the transport's; a part that begins within them would overwrite what was
//! judged ([`Part::headers`]).

use std::net::{Ipv4Addr, Ipv6Addr};

use windlass_nic::is_readable;
use windlass_rules::Family;
use windlass_wire::ether::proto;
use windlass_wire::{Fragment, Kind, Layers, parse};

/// The hop limit of what never passed a router.
const HOPS_LINK: u8 = 255;
/// Types of ICMPv6 that find routers and neighbours.
const DISCOVERY: std::ops::RangeInclusive<u8> = 133..=136;

/// Bits of the flags of TCP.
pub(crate) mod flag {
    pub(crate) const FIN: u8 = 1;
    pub(crate) const SYN: u8 = 2;
    pub(crate) const RST: u8 = 4;
    pub(crate) const ACK: u8 = 16;
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing that rules speak of.
    Free,
    /// An IP packet.
    Packet(Packet),
    /// What cannot be told.
    Unreadable,
    /// As many bytes have to be private before anything can be said.
    Need(usize),
}

/// An IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Its version.
    pub family: Family,
    /// The transport protocol.
    pub protocol: u8,
    /// Where it comes from; IPv4 in the low 32 bits.
    pub from: u128,
    /// Where it goes.
    pub to: u128,
    /// Ports of TCP and UDP, both; 0 of others.
    pub ports: (u16, u16),
    /// Type and code of an ICMP message, and its identifier.
    pub icmp: Option<(u8, u8, u16)>,
    /// Flags of TCP.
    pub flags: u8,
    /// What else a whole header of TCP says.
    pub segment: Segment,
    /// Which part of a packet it is, if it is one.
    pub part: Option<Part>,
    /// Where what follows an ICMP header begins in the frame.
    pub quoted: u16,
}

/// What a TCP segment says of its place in the connection. All zero where it is not TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segment {
    /// The number of its first byte.
    pub seq: u32,
    /// What it acknowledges, if it does.
    pub ack: u32,
    /// The window that it offers, without scale.
    pub window: u16,
    /// Bytes that it carries, of all segments of a super-segment. Of a part of a packet: those of the part.
    pub payload: u32,
    /// Of a SYN: the scale of its sender's windows, if it offers one.
    pub scale: Option<u8>,
}

/// A part of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The packet's number.
    pub number: u32,
    /// Where the part begins in it, in bytes.
    pub offset: u16,
    /// Of the first: where the headers end that were read.
    pub headers: u16,
}

impl Segment {
    /// Of a header without its options.
    #[inline(always)]
    fn of(header: &[u8; 20], payload: u32) -> Segment {
        let [_, _, _, _, s0, s1, s2, s3, a0, a1, a2, a3, _, _, w0, w1, ..] = *header;
        Segment {
            seq: u32::from_be_bytes([s0, s1, s2, s3]),
            ack: u32::from_be_bytes([a0, a1, a2, a3]),
            window: u16::from_be_bytes([w0, w1]),
            payload,
            scale: None,
        }
    }
}

/// The scale of windows among the options of a TCP header of this size.
#[cold]
fn scale(bytes: &[u8], at: usize, size: usize) -> Option<u8> {
    let mut options = bytes.get(at..at.checked_add(size)?)?.get(20..)?;
    loop {
        options = match *options {
            [] | [0, ..] => return None,
            [1, ref rest @ ..] => rest,
            [3, 3, scale, ..] => return Some(scale),
            [_, size, ..] if size >= 2 => options.get(usize::from(size)..)?,
            _ => return None,
        };
    }
}

impl Packet {
    /// A whole packet without ports.
    pub fn new(family: Family, protocol: u8, from: u128, to: u128) -> Packet {
        Packet {
            family,
            protocol,
            from,
            to,
            ports: (0, 0),
            icmp: None,
            flags: 0,
            segment: Segment::default(),
            part: None,
            quoted: 0,
        }
    }

    /// What rules compare as ports: those of TCP and UDP, or as the second type and code of ICMP.
    #[inline(always)]
    pub(crate) fn ports_of_rules(&self) -> (u16, u16) {
        match self.icmp {
            Some((kind, code, _)) => (0, u16::from(kind) << 8 | u16::from(code)),
            None => self.ports,
        }
    }
}

/// The first bytes of what most frames are: whole TCP segments and UDP datagrams over IPv4 without options.
pub(crate) type Plain = [u8; 54];

/// The transport protocol.
#[inline(always)]
pub(crate) const fn protocol(head: &Plain) -> u8 {
    head[23]
}

/// Both addresses, the source's first, and both ports.
#[inline(always)]
pub(crate) fn ends(head: &Plain) -> (u64, u32) {
    let [
        ..,
        a0,
        a1,
        a2,
        a3,
        a4,
        a5,
        a6,
        a7,
        p0,
        p1,
        p2,
        p3,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
    ] = *head;
    let addresses = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
    (addresses, u32::from_be_bytes([p0, p1, p2, p3]))
}

/// The flags of a TCP segment, and what it says without options.
#[inline(always)]
pub(crate) fn segment(head: &Plain) -> (u8, Segment) {
    let total = u16::from_be_bytes([head[16], head[17]]);
    let size = (head[46] >> 4) << 2;
    let payload = u32::from(total).wrapping_sub(u32::from(size).wrapping_add(20));
    let header = head.last_chunk().unwrap_or(&[0; 20]);
    (head[47], Segment::of(header, payload))
}

/// Such a frame. None says nothing.
#[inline(always)]
pub(crate) fn plain(bytes: &[u8], len: u32) -> Option<Packet> {
    Some(of_plain(parse::plain(bytes, len)?, bytes))
}

/// The packet of such a frame, of which these bytes are private.
#[inline(always)]
pub(crate) fn of_plain(head: &Plain, bytes: &[u8]) -> Packet {
    let protocol = protocol(head);
    let (mut flags, mut segment) = (0, Segment::default());
    if protocol == proto::TCP {
        (flags, segment) = self::segment(head);
        if flags & flag::SYN != 0 {
            segment.scale = scale(bytes, 34, usize::from(head[46] >> 4) << 2);
        }
    }
    let (addresses, ports) = ends(head);
    Packet {
        ports: ((ports >> 16) as u16, ports as u16),
        flags,
        segment,
        ..Packet::new(
            Family::V4,
            protocol,
            (addresses >> 32).into(),
            (addresses as u32).into(),
        )
    }
}

/// Reads a frame of `len` bytes, of which these are private.
pub fn read(bytes: &[u8], len: u32) -> Seen {
    if let Some(packet) = plain(bytes, len) {
        return Seen::Packet(packet);
    }
    let layers = &parse(bytes, len);
    if layers.need != 0 {
        return Seen::Need(layers.need.into());
    }
    if !is_readable(bytes, layers) {
        return Seen::Unreadable;
    }
    if !matches!(layers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return Seen::Free;
    }
    let hops = bytes.get(layers.l3_at().wrapping_add(7)).copied();
    match packet(bytes, layers) {
        None => Seen::Unreadable,
        Some(packet) => match packet.icmp {
            Some((kind, ..))
                if packet.family == Family::V6
                    && DISCOVERY.contains(&kind)
                    && hops == Some(HOPS_LINK)
                    && packet.part.is_none() =>
            {
                Seen::Free
            }
            _ => Seen::Packet(packet),
        },
    }
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn packet(bytes: &[u8], layers: &Layers) -> Option<Packet> {
    let (at, l4) = (layers.l3_at(), layers.l4_at());
    let (family, from, to) = addresses(bytes, at, layers.kind)?;
    let mut packet = Packet::new(family, layers.proto, from, to);
    if matches!(layers.fragment, Fragment::First | Fragment::Later) {
        packet.part = Some(part(bytes, layers)?);
        if layers.fragment == Fragment::Later {
            return Some(packet);
        }
    }
    let is_icmp = match family {
        Family::V4 => layers.proto == proto::ICMP,
        Family::V6 => layers.proto == proto::ICMPV6,
    };
    match layers.proto {
        proto::TCP | proto::UDP => {
            let [a, b, c, d] = chunk(bytes, l4)?;
            packet.ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            if layers.proto == proto::TCP {
                let payload = layers.end.saturating_sub(layers.headers() as u32);
                let header: [u8; 20] = chunk(bytes, l4)?;
                (packet.flags, packet.segment) = (header[13], Segment::of(&header, payload));
                if packet.flags & flag::SYN != 0 {
                    packet.segment.scale = scale(bytes, l4, layers.l4.into());
                }
            }
        }
        _ if is_icmp => {
            let [kind, code, _, _, a, b] = chunk(bytes, l4)?;
            packet.icmp = Some((kind, code, u16::from_be_bytes([a, b])));
            packet.quoted = u16::try_from(l4.checked_add(8)?).ok()?;
        }
        _ => {}
    }
    Some(packet)
}

fn addresses(bytes: &[u8], at: usize, kind: Kind) -> Option<(Family, u128, u128)> {
    if kind == Kind::Ipv4 {
        let of = |at| Some(Ipv4Addr::from(chunk::<4>(bytes, at)?).to_bits().into());
        return Some((
            Family::V4,
            of(at.checked_add(12)?)?,
            of(at.checked_add(16)?)?,
        ));
    }
    let of = |at| Some(Ipv6Addr::from(chunk::<16>(bytes, at)?).to_bits());
    Some((
        Family::V6,
        of(at.checked_add(8)?)?,
        of(at.checked_add(24)?)?,
    ))
}

fn part(bytes: &[u8], layers: &Layers) -> Option<Part> {
    let at = layers.l3_at();
    let headers = |begin: usize| u16::try_from(layers.headers().checked_sub(begin)?).ok();
    if layers.kind == Kind::Ipv4 {
        let [a, b, c, d] = chunk(bytes, at.checked_add(4)?)?;
        return Some(Part {
            number: u16::from_be_bytes([a, b]).into(),
            offset: (u16::from_be_bytes([c, d]) & 0x1fff) << 3,
            headers: headers(layers.l4_at())?,
        });
    }
    let [mut next] = chunk(bytes, at.checked_add(6)?)?;
    let mut at = at.checked_add(40)?;
    while at < layers.l4_at() {
        let head: [u8; 8] = chunk(bytes, at)?;
        if next == proto::FRAGMENT {
            let [_, _, a, b, number @ ..] = head;
            return Some(Part {
                number: u32::from_be_bytes(number),
                offset: u16::from_be_bytes([a, b]) & 0xfff8,
                headers: headers(at.checked_add(8)?)?,
            });
        }
        next = head[0];
        at = at.checked_add(usize::from(head[1]).checked_add(1)? << 3)?;
    }
    None
}

/// The packet that an ICMP error quotes: whole headers up to its ports or identifier. It went the other way.
pub(crate) fn quoted(bytes: &[u8], error: &Packet) -> Option<Packet> {
    let at = usize::from(error.quoted);
    let (kind, size, protocol) = match error.family {
        Family::V4 => {
            let head: [u8; 20] = chunk(bytes, at)?;
            let size = usize::from(head[0] & 15) << 2;
            let is_later = u16::from_be_bytes([head[6], head[7]]) & 0x1fff != 0;
            if head[0] >> 4 != 4 || size < 20 || is_later {
                return None;
            }
            (Kind::Ipv4, size, head[9])
        }
        Family::V6 => {
            let head: [u8; 40] = chunk(bytes, at)?;
            (head[0] >> 4 == 6).then_some((Kind::Ipv6, 40, head[6]))?
        }
    };
    let (family, from, to) = addresses(bytes, at, kind)?;
    let l4 = at.checked_add(size)?;
    let [a, b, c, d, e, f] = chunk(bytes, l4)?;
    let (ports, icmp) = match (protocol, family) {
        (proto::TCP | proto::UDP, _) => (
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
            None,
        ),
        (proto::ICMP, Family::V4) | (proto::ICMPV6, Family::V6) => {
            ((0, 0), Some((a, b, u16::from_be_bytes([e, f]))))
        }
        _ => return None,
    };
    let mut packet = Packet {
        ports,
        icmp,
        ..Packet::new(family, protocol, from, to)
    };
    if protocol == proto::TCP {
        packet.segment.seq = u32::from_be_bytes(chunk(bytes, l4.checked_add(4)?)?);
    }
    Some(packet)
}

/// Bytes of a frame with an ICMP error that have to be private for [`quoted`]: all of the headers that it may quote.
pub(crate) fn quoted_need(error: &Packet, len: u32) -> usize {
    let headers = match error.family {
        Family::V4 => 68,
        Family::V6 => 48,
    };
    usize::from(error.quoted)
        .saturating_add(headers)
        .min(len as usize)
}
