//! Which flow of a member a frame belongs to: [`Classifier`].
//!
//! # Model
//! | flows by | looked up in |
//! | --- | --- |
//! | prefixes | a hash table for each length, the longest first: the most specific one wins |
//! | protocol, or bits of the DS field | a table of 256; of two that match, the one with more bits wins, then the first |
//! | protocol and port | a hash table |
//!
//! A hash table is never more than a quarter full, and has no keys but those of its member's flows: nobody else can make it slow.
//!
//! Frames are looked at behind one tag or none at once, behind more by the parser. A part of a packet has no ports, also the
//! first, so that the parts of a packet stay together; nothing but IP is in a flow.

use std::collections::BTreeMap;
use std::net::IpAddr;

use windlass_rules::FlowMatch;
use windlass_wire::{Kind, ether, parse};

/// No flow.
const NONE: u16 = u16::MAX;

/// Which way frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the member: its side is the source.
    Out,
    /// Towards it.
    In,
}

/// Places of flows by key.
#[derive(Debug)]
struct Table {
    shift: u32,
    slots: Vec<(u128, u16)>,
}

impl Table {
    fn new(flows: &[(u128, u16)]) -> Table {
        let size = flows.len().saturating_mul(4).next_power_of_two().max(4);
        let mut table = Table {
            shift: 64_u32.saturating_sub(size.trailing_zeros()),
            slots: vec![(0, NONE); size],
        };
        for (key, place) in flows {
            let at = table.start(*key);
            let free = (at..size).chain(0..at);
            let mut free =
                free.filter(|at| table.slots.get(*at).is_some_and(|slot| slot.1 == NONE));
            if let Some(slot) = free.next().and_then(|at| table.slots.get_mut(at)) {
                *slot = (*key, *place);
            }
        }
        table
    }

    #[inline(always)]
    fn start(&self, key: u128) -> usize {
        let word = key as u64 ^ (key >> 64) as u64;
        (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline(always)]
    fn find(&self, key: u128) -> Option<u16> {
        let (before, from) = self.slots.split_at_checked(self.start(key))?;
        for (other, place) in from.iter().chain(before) {
            if *place == NONE {
                return None;
            }
            if *other == key {
                return Some(*place);
            }
        }
        None
    }
}

/// Prefixes of one length: by the network's bits.
#[derive(Debug)]
struct Length {
    free_bits: u32,
    networks: Table,
}

#[derive(Debug)]
enum By {
    /// Address at the source's place, or at the destination's. IPv4 first, then IPv6.
    Address(bool, [Vec<Length>; 2]),
    Protocol(Box<[u16; 256]>),
    Port(bool, Table),
    DsField(Box<[u16; 256]>),
}

/// Finds flows.
#[derive(Debug)]
pub struct Classifier(By);

/// What is known of an IP packet.
struct Packet {
    is_v4: bool,
    l3: usize,
    /// Where the ports are, if it has some.
    l4: Option<usize>,
    protocol: u8,
}

impl Classifier {
    /// For these flows, which are of one combination; none if there is none. Those of another combination than the first match nothing.
    pub fn new(direction: Direction, flows: &[FlowMatch]) -> Option<Classifier> {
        let is_out = direction == Direction::Out;
        let places = flows.iter().zip(0_u16..);
        let by = match flows.first()? {
            FlowMatch::LocalIp(_) | FlowMatch::RemoteIp(_) => {
                let is_local = matches!(flows.first(), Some(FlowMatch::LocalIp(_)));
                By::Address(is_local == is_out, addresses(flows))
            }
            FlowMatch::LocalPort(..) | FlowMatch::RemotePort(..) => {
                let is_local = matches!(flows.first(), Some(FlowMatch::LocalPort(..)));
                let ports: Vec<(u128, u16)> = places.filter_map(port).collect();
                By::Port(is_local == is_out, Table::new(&ports))
            }
            FlowMatch::Transport(_) => {
                let mut table = Box::new([NONE; 256]);
                for (flow, at) in places {
                    if let FlowMatch::Transport(protocol) = flow
                        && let Some(place) = table.get_mut(usize::from(*protocol))
                    {
                        *place = (*place).min(at);
                    }
                }
                By::Protocol(table)
            }
            FlowMatch::DsField { .. } => By::DsField(fields(flows)),
        };
        Some(Classifier(by))
    }

    /// The place of the flow that a frame of `len` bytes belongs to, of which these are private.
    #[inline]
    pub fn find(&self, bytes: &[u8], len: u32) -> Option<usize> {
        let packet = read(bytes, len)?;
        let found = match &self.0 {
            By::Protocol(table) => table.get(usize::from(packet.protocol)).copied(),
            By::DsField(table) => {
                let word = u16::from_be_bytes(chunk(bytes, packet.l3)?);
                let field = if packet.is_v4 { word } else { word >> 4 } & 0xff;
                table.get(usize::from(field)).copied()
            }
            By::Port(is_source, ports) => {
                let at = packet.l4?.wrapping_add(if *is_source { 0 } else { 2 });
                let port = u16::from_be_bytes(chunk(bytes, at)?);
                ports.find(port_key(packet.protocol, port))
            }
            By::Address(is_source, [v4, v6]) => {
                let lengths = if packet.is_v4 { v4 } else { v6 };
                let address = address(bytes, &packet, *is_source)?;
                lengths.iter().find_map(|length| {
                    let network = address.checked_shr(length.free_bits).unwrap_or(0);
                    length.networks.find(network)
                })
            }
        };
        found.filter(|at| *at != NONE).map(usize::from)
    }
}

#[inline(always)]
fn port_key(protocol: u8, port: u16) -> u128 {
    u128::from(u32::from(protocol) << 16 | u32::from(port))
}

fn port((flow, at): (&FlowMatch, u16)) -> Option<(u128, u16)> {
    match flow {
        FlowMatch::LocalPort(protocol, port) | FlowMatch::RemotePort(protocol, port) => {
            Some((port_key(*protocol, *port), at))
        }
        _ => None,
    }
}

fn addresses(flows: &[FlowMatch]) -> [Vec<Length>; 2] {
    let mut families = [BTreeMap::new(), BTreeMap::new()];
    for (flow, at) in flows.iter().zip(0_u16..) {
        let (FlowMatch::LocalIp(prefix) | FlowMatch::RemoteIp(prefix)) = flow else {
            continue;
        };
        let (whole, bits, family) = match prefix.address {
            IpAddr::V4(v4) => (32_u32, u128::from(v4.to_bits()), 0),
            IpAddr::V6(v6) => (128, v6.to_bits(), 1),
        };
        let free_bits = whole.saturating_sub(prefix.bits.into());
        let network = bits.checked_shr(free_bits).unwrap_or(0);
        if let Some(lengths) = families.get_mut(family) {
            let networks: &mut Vec<(u128, u16)> = lengths.entry(free_bits).or_default();
            networks.push((network, at));
        }
    }
    families.map(|lengths| {
        let length = |(free_bits, networks): (u32, Vec<(u128, u16)>)| Length {
            free_bits,
            networks: Table::new(&networks),
        };
        lengths.into_iter().map(length).collect()
    })
}

fn fields(flows: &[FlowMatch]) -> Box<[u16; 256]> {
    let mut best = [0_u32; 256];
    let mut table = Box::new([NONE; 256]);
    for (flow, at) in flows.iter().zip(0..) {
        let FlowMatch::DsField { value, mask } = flow else {
            continue;
        };
        for ((place, bits), field) in table.iter_mut().zip(&mut best).zip(0..=u8::MAX) {
            if field & mask == *value && mask.count_ones() > *bits {
                (*place, *bits) = (at, mask.count_ones());
            }
        }
    }
    table
}

#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn has_ports(protocol: u8) -> bool {
    matches!(
        protocol,
        ether::proto::TCP | ether::proto::UDP | ether::proto::SCTP
    )
}

/// What most frames are, at once.
#[inline(always)]
fn read(bytes: &[u8], len: u32) -> Option<Packet> {
    let mut kind = u16::from_be_bytes(chunk(bytes, 12)?);
    let mut l3 = 14;
    if kind == ether::VLAN {
        (kind, l3) = (u16::from_be_bytes(chunk(bytes, 16)?), 18);
    }
    let head: Option<[u8; 20]> = chunk(bytes, l3);
    match (kind, head) {
        (ether::IPV4, Some(head)) if head[0] == 0x45 => {
            let is_part = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
            let protocol = head[9];
            Some(Packet {
                is_v4: true,
                l3,
                l4: (has_ports(protocol) && !is_part).then_some(l3.wrapping_add(20)),
                protocol,
            })
        }
        (ether::IPV6, Some(head)) if head[0] >> 4 == 6 && has_ports(head[6]) => Some(Packet {
            is_v4: false,
            l3,
            l4: Some(l3.wrapping_add(40)),
            protocol: head[6],
        }),
        (ether::ARP, _) => None,
        _ => any(bytes, len),
    }
}

#[inline(never)]
fn any(bytes: &[u8], len: u32) -> Option<Packet> {
    let layers = parse(bytes, len);
    if layers.l3 == 0 || !matches!(layers.kind, Kind::Ipv4 | Kind::Ipv6) {
        return None;
    }
    let is_ported = layers.is_whole() && has_ports(layers.proto);
    Some(Packet {
        is_v4: layers.kind == Kind::Ipv4,
        l3: layers.l3_at(),
        l4: is_ported.then_some(layers.l4_at()),
        protocol: layers.proto,
    })
}

#[inline(always)]
fn address(bytes: &[u8], packet: &Packet, is_source: bool) -> Option<u128> {
    let at = match (packet.is_v4, is_source) {
        (true, true) => 12_usize,
        (true, false) => 16,
        (false, true) => 8,
        (false, false) => 24,
    };
    let at = at.wrapping_add(packet.l3);
    Some(match packet.is_v4 {
        true => u32::from_be_bytes(chunk(bytes, at)?).into(),
        false => u128::from_be_bytes(chunk(bytes, at)?),
    })
}
