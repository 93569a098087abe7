//! What is sent back to the sender of a packet that a rule rejects.
//!
//! # Model
//! | packet | answer |
//! | --- | --- |
//! | TCP | a reset, as of a port on which nobody listens (RFC 9293, section 3.5.2) |
//! | anything else over IPv4 | destination unreachable, communication administratively prohibited: type 3, code 13 (RFC 1812, section 5.2.7.1) |
//! | anything else over IPv6 | the same: type 1, code 1 (RFC 4443, section 3.1) |
//!
//! The answer comes from the address that the packet went to, so that no address of the switch is shown, and goes to where the packet came from, with
//! its tags. It quotes the network header and 8 bytes more.
//!
//! # What is never answered
//! Resets; all ICMP but echo requests (RFC 1122, section 3.2.2: errors cause no errors); what has a group, broadcast, loopback or unspecified address
//! on either layer, or the same address twice; packets with an IPv6 routing header; parts of packets but the first, and of TCP these too.
//!
//! # Limits
//! One answer for one packet, of at most [`ANSWER_MAX`] bytes, and what the caller's token bucket lets through.

use std::net::{Ipv4Addr, Ipv6Addr};

use windlass_rules::Family;
use windlass_wire::build::{self, Ends, Tcp};
use windlass_wire::ether::proto;
use windlass_wire::{Layers, checksum, parse};

use crate::packet::{Packet, flag};

/// Bytes of an answer at most: Ethernet and four tags, IPv6, ICMP, and what is quoted.
pub const ANSWER_MAX: usize = 14 + 16 + 40 + 8 + QUOTED_MAX;
/// A network header with options, and 8 bytes.
const QUOTED_MAX: usize = 60 + 8;

/// Destination unreachable, by version of IP: type and code.
const PROHIBITED: [(u8, u8); 2] = [(3, 13), (1, 1)];

/// A frame that is sent back.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    len: usize,
    bytes: [u8; ANSWER_MAX],
}

impl Answer {
    /// The frame.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// What answers a frame, of which these bytes are private; none if it is to have no answer.
    pub(crate) fn to(frame: &[u8], len: u32, packet: &Packet) -> Option<Answer> {
        let layers = parse(frame, len);
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *frame.first_chunk()?;
        let is_group = |first: u8| first & 1 != 0;
        if is_group(d0)
            || is_group(s0)
            || layers.routed
            || packet.part.is_some_and(|part| part.offset != 0)
        {
            return None;
        }
        let ends = ends(packet)?;
        let mut answer = Answer {
            len: 0,
            bytes: [0; ANSWER_MAX],
        };
        let at = layers.l3_at();
        let (link, rest) = answer.bytes.split_at_mut_checked(at)?;
        link.copy_from_slice(frame.get(..at)?);
        let macs = [s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5];
        *link.first_chunk_mut()? = macs;
        let network = ends.header();
        let (header, behind) = rest.split_at_mut_checked(network)?;
        let (protocol, payload) = match packet.protocol {
            proto::TCP => (proto::TCP, reset(behind, &ends, packet, frame, &layers)?),
            _ => {
                let l4 = layers.l4_at();
                let quoted = frame.get(at..len as usize).or_else(|| frame.get(at..))?;
                let most = l4.checked_sub(at)?.saturating_add(8).min(QUOTED_MAX);
                let quoted = quoted.get(..most.min(quoted.len()))?;
                prohibited(behind, &ends, packet, quoted)?
            }
        };
        ends.write(header, protocol, payload).ok()?;
        answer.len = at.checked_add(network)?.checked_add(payload)?;
        Some(answer)
    }
}

/// The addresses of the answer: those of the packet, the other way.
fn ends(packet: &Packet) -> Option<Ends> {
    if packet.from == packet.to {
        return None;
    }
    match packet.family {
        Family::V4 => {
            let host = |address: u128| {
                let ip = Ipv4Addr::from_bits(address as u32);
                let [first, ..] = ip.octets();
                (first != 0 && first < 224 && !ip.is_loopback()).then_some(ip)
            };
            Some(Ends::V4(host(packet.to)?, host(packet.from)?))
        }
        Family::V6 => {
            let host = |address: u128| {
                let ip = Ipv6Addr::from_bits(address);
                let is_none = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
                (!is_none && ip.to_ipv4_mapped().is_none()).then_some(ip)
            };
            Some(Ends::V6(host(packet.to)?, host(packet.from)?))
        }
    }
}

/// A reset; its length.
fn reset(
    out: &mut [u8],
    ends: &Ends,
    packet: &Packet,
    frame: &[u8],
    layers: &Layers,
) -> Option<usize> {
    if packet.flags & flag::RST != 0 || packet.part.is_some() {
        return None;
    }
    let l4 = layers.l4_at();
    let word = |at: usize| -> Option<u32> {
        let bytes = frame.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let (seq, ack) = (word(l4.checked_add(4)?)?, word(l4.checked_add(8)?)?);
    let mut tcp = Tcp {
        src: packet.ports.1,
        dst: packet.ports.0,
        flags: flag::RST,
        ..Tcp::default()
    };
    if packet.flags & flag::ACK != 0 {
        tcp.seq = ack;
    } else {
        // Without what pads the frame.
        let payload = layers.end.saturating_sub(layers.headers() as u32);
        let one = |bit: u8| u32::from(packet.flags & bit != 0);
        let len = payload
            .wrapping_add(one(flag::SYN))
            .wrapping_add(one(flag::FIN));
        tcp.ack = seq.wrapping_add(len);
        tcp.flags |= flag::ACK;
    }
    build::tcp(out, ends, &tcp, &[]).ok()
}

/// An ICMP error; its protocol and its length.
fn prohibited(out: &mut [u8], ends: &Ends, packet: &Packet, quoted: &[u8]) -> Option<(u8, usize)> {
    let (own, echo) = match packet.family {
        Family::V4 => (proto::ICMP, 8),
        Family::V6 => (proto::ICMPV6, 128),
    };
    if matches!(packet.protocol, proto::ICMP | proto::ICMPV6)
        && packet.icmp.is_none_or(|(kind, ..)| kind != echo)
    {
        return None;
    }
    let [v4, v6] = PROHIBITED;
    let (kind, code) = if packet.family == Family::V4 { v4 } else { v6 };
    let size = quoted.len().checked_add(8)?;
    let out = out.get_mut(..size)?;
    out.get_mut(..8)?
        .copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    out.get_mut(8..)?.copy_from_slice(quoted);
    let sum = match packet.family {
        Family::V4 => checksum::checksum(out),
        Family::V6 => {
            let mut sum = ends.pseudo(proto::ICMPV6, u16::try_from(size).ok()?);
            sum.add_bytes(out);
            sum.finish()
        }
    };
    out.get_mut(2..4)?.copy_from_slice(&sum.to_be_bytes());
    Some((own, size))
}
