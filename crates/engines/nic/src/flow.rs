//! Which flow a frame belongs to, as a number: what frames are spread by.
//!
//! # Model
//! Frames of one flow have one number. What is hashed:
//!
//! | frame | hashed |
//! | --- | --- |
//! | a whole TCP segment or UDP datagram over IP | both addresses, both ports, the protocol |
//! | a whole packet of a tunnel | both addresses, and what is hashed of the inner packet |
//! | any other IP packet, fragments among them | both addresses |
//! | anything else, and what contradicts itself | both link-layer addresses |
//!
//! Tunnels are VXLAN (RFC 7348), Geneve (RFC 8926), GRE (RFC 2784, RFC 2890), and IP in IP (RFC 2003, RFC 2473, RFC 4213): many flows between
//! two addresses, which without this would have one number. Behind the first inner header nothing more is looked for.
//!
//! A tag does not count. A fragment has the number of its addresses also where it has the ports, so that the parts of
//! a datagram stay together.
//!
//! The hash is keyed, so that no sender can aim its flows at one of a receiver's rings, and made of multiplications:
//! Toeplitz, which hardware computes, takes 90 cycles for what is hashed of an IPv4 packet.
//!
//! # Limits
//! Only the frame's private bytes are looked at. Inner IPv6 extension headers are not walked: such a packet counts as one without ports. A
//! packet whose IPv6 extension headers go beyond them counts as one
//! without ports.

use windlass_frame::{BURST, Heads};
use windlass_wire::ether::{self, IPV4, IPV6, proto};
use windlass_wire::{Kind, parse};

/// UDP ports of tunnels.
const VXLAN_PORT: u16 = 4789;
const GENEVE_PORT: u16 = 6081;
/// Of a VXLAN header's first byte: it names a network.
const VXLAN_NUMBER: u8 = 0x08;
/// Of a Geneve header's first byte: not the version that is known.
const GENEVE_VERSION: u8 = 0xc0;
/// Of a GRE header's first byte: a form that is out of use (RFC 1701).
const GRE_ROUTES: u8 = 0x40;
// Bits of it that say which fields there are.
const GRE_SUM: u8 = 0x80;
const GRE_KEY: u8 = 0x20;
const GRE_NUMBER: u8 = 0x10;

/// Numbers flows.
#[derive(Clone, Debug)]
pub struct FlowHash {
    keys: [u64; 2],
}

impl FlowHash {
    /// With keys that senders do not know.
    pub const fn new(keys: [u64; 2]) -> FlowHash {
        FlowHash { keys }
    }

    /// The number of the flow of frame `i`.
    #[inline]
    pub fn of(&self, heads: &Heads, i: usize) -> u32 {
        let i = i % BURST;
        let state = self.of_packet(heads, i);
        let state = state.unwrap_or_else(|| self.of_addresses(heads, i));
        fold(state ^ self.keys[1], self.keys[0] | 1) as u32
    }

    /// The number by the IP header; none without a good one.
    #[inline]
    fn of_packet(&self, heads: &Heads, i: usize) -> Option<u64> {
        let bytes = heads.private(i);
        let layers = parse(bytes, heads.meta.get(i)?.len);
        if layers.l3 == 0 {
            return None;
        }
        let transport = if layers.is_tcp() || layers.is_udp() {
            let l4 = bytes.get(layers.l4_at()..)?;
            let ports: [u8; 4] = *l4.first_chunk()?;
            match ports {
                [.., high, low] if layers.is_udp() => match u16::from_be_bytes([high, low]) {
                    VXLAN_PORT => self.of_vxlan(l4),
                    GENEVE_PORT => self.of_geneve(l4),
                    _ => None,
                },
                _ => None,
            }
            .unwrap_or(u64::from(u32::from_ne_bytes(ports)) << 8 | u64::from(layers.proto))
        } else if layers.is_whole() {
            let payload = bytes.get(layers.l4_at()..);
            match layers.proto {
                proto::IPV4 => self.of_ip(IPV4, payload),
                proto::IPV6 => self.of_ip(IPV6, payload),
                proto::GRE => self.of_gre(payload),
                _ => None,
            }
            .unwrap_or(0)
        } else {
            0
        };
        let ip = bytes.get(layers.l3_at()..)?;
        let word = |at: usize| Some(u64::from_ne_bytes(*ip.get(at..)?.first_chunk()?));
        match layers.kind {
            Kind::Ipv4 => Some(self.mix(word(12)?, transport)),
            Kind::Ipv6 => {
                let from = self.mix(word(8)?, word(16)?);
                let to = self.mix(word(24)? ^ from, word(32)?);
                Some(self.mix(to, transport))
            }
            _ => None,
        }
    }

    /// Behind a GRE header, with as many of its fields as its flags say.
    #[cold]
    fn of_gre(&self, gre: Option<&[u8]>) -> Option<u64> {
        let [flags, version, kind @ ..]: [u8; 4] = *gre?.first_chunk()?;
        if flags & GRE_ROUTES != 0 || version & 7 != 0 {
            return None;
        }
        let fields = (flags & (GRE_SUM | GRE_KEY | GRE_NUMBER)).count_ones() as usize;
        let inner = gre?.get(fields.wrapping_mul(4).wrapping_add(4)..);
        match u16::from_be_bytes(kind) {
            ether::TEB => self.of_ethernet(inner),
            kind => self.of_ip(kind, inner),
        }
    }

    /// Behind a UDP and a VXLAN header.
    #[cold]
    fn of_vxlan(&self, udp: &[u8]) -> Option<u64> {
        let has_number = udp.get(8)? & VXLAN_NUMBER != 0;
        has_number.then(|| self.of_ethernet(udp.get(16..)))?
    }

    /// Behind a UDP and a Geneve header.
    #[cold]
    fn of_geneve(&self, udp: &[u8]) -> Option<u64> {
        let [options, _, kind @ ..]: [u8; 4] = *udp.get(8..)?.first_chunk()?;
        if options & GENEVE_VERSION != 0 {
            return None;
        }
        let inner = udp.get(usize::from(options).wrapping_mul(4).wrapping_add(16)..);
        match u16::from_be_bytes(kind) {
            ether::TEB => self.of_ethernet(inner),
            kind => self.of_ip(kind, inner),
        }
    }

    /// A frame in a tunnel: its packet, or its addresses.
    fn of_ethernet(&self, frame: Option<&[u8]>) -> Option<u64> {
        let head: &[u8; 14] = frame?.first_chunk()?;
        let [_, _, _, _, _, _, _, _, _, _, _, _, kind @ ..] = *head;
        let (kind, packet) = match u16::from_be_bytes(kind) {
            ether::VLAN => {
                let [_, _, kind @ ..]: [u8; 4] = *frame?.get(14..)?.first_chunk()?;
                (u16::from_be_bytes(kind), frame?.get(18..))
            }
            kind => (kind, frame?.get(14..)),
        };
        self.of_ip(kind, packet).or_else(|| {
            let [low, high] = [head.first_chunk()?, head.get(4..12)?.first_chunk()?];
            Some(self.mix(u64::from_ne_bytes(*low), u64::from_ne_bytes(*high)))
        })
    }

    /// A packet in a tunnel: its addresses, and its ports where it has any.
    fn of_ip(&self, kind: u16, packet: Option<&[u8]>) -> Option<u64> {
        let ip = packet?;
        let word = |at: usize| Some(u64::from_ne_bytes(*ip.get(at..)?.first_chunk()?));
        let (addresses, length, proto) = match kind {
            IPV4 => {
                let head: &[u8; 20] = ip.first_chunk()?;
                let [first, _, _, _, _, _, flags, offset, _, proto, ..] = *head;
                let length = usize::from(first & 15).wrapping_mul(4);
                let has_ports = flags & 0x3f == 0 && offset == 0 && length >= 20;
                (self.mix(word(12)?, 0), length, has_ports.then_some(proto))
            }
            IPV6 => {
                let from = self.mix(word(8)?, word(16)?);
                let to = self.mix(word(24)? ^ from, word(32)?);
                (to, 40, ip.get(6).copied())
            }
            _ => return None,
        };
        let ports = match proto {
            Some(proto @ (proto::TCP | proto::UDP)) => ip.get(length..).and_then(|l4| {
                let ports = u32::from_ne_bytes(*l4.first_chunk()?);
                Some(u64::from(ports) << 8 | u64::from(proto))
            }),
            _ => None,
        };
        Some(self.mix(addresses, ports.unwrap_or(0)))
    }

    #[cold]
    fn of_addresses(&self, heads: &Heads, i: usize) -> u64 {
        let word = |of: &[u64; BURST]| of.get(i).copied().unwrap_or(0);
        self.mix(word(&heads.dst), word(&heads.src))
    }

    #[inline(always)]
    const fn mix(&self, a: u64, b: u64) -> u64 {
        fold(a ^ self.keys[0], b ^ self.keys[1])
    }
}

/// Both halves of the product, one upon the other.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    product as u64 ^ (product >> 64) as u64
}
