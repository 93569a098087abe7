//! The answer to a packet that is too long for a tunnel: "fragmentation needed" (RFC 792, RFC 1191) or "packet too big" (RFC 4443).
//!
//! # Model
//! A bridge has no address. The answer comes from the packet's own destination, and quotes as much of the packet as is at hand.
//!
//! # What is never answered
//! Packets from or to groups, and from nobody; IPv4 packets that may be fragmented; parts of packets but the first; ICMP but echoes
//! (RFC 1122, section 3.2.2: errors cause no errors); packets that contradict themselves; tags.

use std::net::{Ipv4Addr, Ipv6Addr};

use windlass_wire::build::{self, Ends};
use windlass_wire::checksum::Sum;
use windlass_wire::ether::proto;
use windlass_wire::{Fault, Fragment, Kind, Layers, MacAddr, parse};

/// Bytes of the packet that are quoted at most: what a frame's snapshot has of it.
const QUOTED_MAX: usize = 114;
/// Bytes of an answer at most.
pub const BYTES_MAX: usize = 14 + 40 + ICMP + QUOTED_MAX;
/// Bytes of an ICMP header.
const ICMP: usize = 8;

/// Writes the answer to a frame of `len` bytes, of which these are the first, where packets of `mtu` bytes pass. Its length; `None`
/// if it is to have no answer.
pub fn answer(frame: &[u8], len: u32, mtu: u16, out: &mut [u8; BYTES_MAX]) -> Option<usize> {
    let layers = parse(frame, len);
    let is_sound = layers.fault == Fault::None && layers.tags == 0 && !layers.routed;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *frame.first_chunk()?;
    if !is_sound || layers.fragment == Fragment::Later || (d0 | s0) & 1 != 0 {
        return None;
    }
    let ip = frame.get(layers.l3_at()..)?;
    let behind = ip.get(usize::from(layers.l3)).copied();
    let (ends, icmp) = ends(ip, &layers, behind)?;
    let quoted = ip.get(..ip.len().min(QUOTED_MAX))?;
    let (link, network) = (14, ends.header());
    let (dst, src) = (
        MacAddr([s0, s1, s2, s3, s4, s5]),
        MacAddr([d0, d1, d2, d3, d4, d5]),
    );
    build::ethernet(out, dst, src, None, layers.ethertype).ok()?;
    let (header, message) = out.get_mut(link..)?.split_at_mut_checked(network)?;
    let size = ICMP.checked_add(quoted.len())?;
    ends.write(header, icmp, size).ok()?;
    let message = message.get_mut(..size)?;
    let [high, low] = mtu.to_be_bytes();
    let is_v6 = icmp == proto::ICMPV6;
    let kind = if is_v6 { [2, 0] } else { [3, 4] };
    let [kind, code] = kind;
    *message.first_chunk_mut()? = [kind, code, 0, 0, 0, 0, high, low];
    message.get_mut(ICMP..)?.copy_from_slice(quoted);
    let mut sum = match is_v6 {
        true => ends.pseudo(icmp, size as u16),
        false => Sum::new(),
    };
    sum.add_bytes(message);
    *message.get_mut(2..)?.first_chunk_mut()? = sum.finish().to_be_bytes();
    link.checked_add(network)?.checked_add(size)
}

/// The addresses of the answer, the packet's the other way, and its protocol.
fn ends(ip: &[u8], layers: &Layers, behind: Option<u8>) -> Option<(Ends, u8)> {
    match layers.kind {
        Kind::Ipv4 => {
            let keeps_whole = *ip.get(6)? & 0x40 != 0;
            let is_error = layers.proto == proto::ICMP && !matches!(behind, Some(0 | 8));
            let host = |at: usize| {
                let ip = Ipv4Addr::from(*ip.get(at..)?.first_chunk::<4>()?);
                let [first, ..] = ip.octets();
                (first != 0 && first < 224 && !ip.is_loopback()).then_some(ip)
            };
            let ends = Ends::V4(host(16)?, host(12)?);
            (keeps_whole && !is_error).then_some((ends, proto::ICMP))
        }
        Kind::Ipv6 => {
            let is_error = layers.proto == proto::ICMPV6 && !matches!(behind, Some(128 | 129));
            let host = |at: usize| {
                let ip = Ipv6Addr::from(*ip.get(at..)?.first_chunk::<16>()?);
                let is_none = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
                (!is_none).then_some(ip)
            };
            let ends = Ends::V6(host(24)?, host(8)?);
            (!is_error).then_some((ends, proto::ICMPV6))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_wire::build::Link;
    use windlass_wire::checksum::checksum;

    fn packet(is_v4: bool) -> Vec<u8> {
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let v6 = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        let ends = match is_v4 {
            true => Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
            false => Ends::V6(v6(1), v6(2)),
        };
        let mut bytes = vec![0; 2000];
        let len = build::udp_frame(&mut bytes, &link, &ends, (1, 2), &[9; 1400]).expect("room");
        bytes.truncate(len);
        bytes
    }

    /// The answer goes back to where the packet came from, tells the MTU, quotes the packet and is right; from as many bytes as a worker
    /// has at hand.
    #[test]
    fn answers_are_right() {
        for is_v4 in [true, false] {
            let bytes = packet(is_v4);
            let mut out = [0; BYTES_MAX];
            let head = &bytes[..128];
            let len = answer(head, bytes.len() as u32, 1300, &mut out).expect("an answer");
            let out = &out[..len];
            assert_eq!(out[..12], [&bytes[6..12], &bytes[..6]].concat());
            let layers = parse(out, len as u32);
            assert_eq!((layers.fault, layers.end as usize), (Fault::None, len));
            let l3 = &out[14..];
            let (network, kind) = if is_v4 { (20, [3, 4]) } else { (40, [2, 0]) };
            let message = &l3[network..];
            assert_eq!(message[..2], kind);
            assert_eq!(message[4..8], [0, 0, 5, 20]);
            assert_eq!(message[8..], head[14..]);
            if is_v4 {
                assert_eq!((checksum(&l3[..20]), checksum(message)), (0, 0));
                assert_eq!(l3[12..20], [10, 0, 0, 2, 10, 0, 0, 1]);
            } else {
                let (src, dst) = (l3[8..24].try_into(), l3[24..40].try_into());
                let (src, dst) = (src.expect("16"), dst.expect("16"));
                let mut sum =
                    windlass_wire::checksum::pseudo_v6(src, dst, 58, message.len() as u32);
                sum.add_bytes(message);
                assert_eq!(sum.finish(), 0);
            }
        }
    }

    /// Who is not to be answered is not.
    #[test]
    fn errors_cause_no_errors() {
        let change = |is_v4: bool, at: usize, value: u8| {
            let mut bytes = packet(is_v4);
            // Where the packet is one of ICMP, it is an error.
            bytes[if is_v4 { 34 } else { 54 }] = 3;
            bytes[at] = value;
            answer(&bytes[..128], bytes.len() as u32, 1300, &mut [0; BYTES_MAX])
        };
        // A group on either layer, a packet that may be fragmented, a later part, an error, nobody, a wrong version.
        for (at, value) in [
            (0, 1),
            (6, 3),
            (20, 0),
            (21, 9),
            (23, 1),
            (26, 0),
            (30, 224),
            (14, 0x55),
        ] {
            assert_eq!(change(true, at, value), None, "{at}");
        }
        for (at, value) in [(0, 1), (20, 58), (38, 0xff), (22, 0xff), (14, 0x40)] {
            assert_eq!(change(false, at, value), None, "{at}");
        }
        assert!(change(true, 100, 1).is_some());
        for len in 0..54 {
            let bytes = &packet(true)[..len];
            assert_eq!(answer(bytes, len as u32, 1300, &mut [0; BYTES_MAX]), None);
        }
    }
}
