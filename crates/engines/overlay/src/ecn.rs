//! Congestion notification through a tunnel: RFC 6040.
//!
//! # Model
//! On the way in (section 4.1, normal mode) the outer field is the inner one, but for CE: a new journey begins, as Linux has
//! it. On the way out (section 4.2) the inner field learns what the outer one met:
//!
//! | inner \ outer | Not-ECT | ECT(0) | ECT(1) | CE |
//! | --- | --- | --- | --- | --- |
//! | Not-ECT | Not-ECT | Not-ECT | Not-ECT | drop |
//! | ECT(0) | ECT(0) | ECT(0) | ECT(1) | CE |
//! | ECT(1) | ECT(1) | ECT(1) | ECT(1) | CE |
//! | CE | CE | CE | CE | CE |
//!
//! A frame that is not IP has no field: it passes whatever the outer one says.

use windlass_wire::{checksum, ether};

/// The bits of a TOS byte.
pub const MASK: u8 = 3;
const NOT_ECT: u8 = 0;
const ECT1: u8 = 1;
const ECT0: u8 = 2;
const CE: u8 = 3;

/// The outer field of a packet with this inner one.
#[inline]
pub const fn enter(inner: u8) -> u8 {
    match inner & MASK {
        CE => ECT0,
        other => other,
    }
}

/// The inner field behind the tunnel; `None`: the packet is dropped.
#[inline]
pub const fn leave(outer: u8, inner: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) => Some(CE),
        (ECT0, ECT1) => Some(ECT1),
        (inner, _) => Some(inner),
    }
}

/// The TOS (traffic class) of the packet in an untagged frame; `None` if it is not IP.
#[inline]
pub fn tos(frame: &[u8]) -> Option<u8> {
    let [.., kind_high, kind_low, first, second] = *frame.first_chunk::<16>()?;
    match u16::from_be_bytes([kind_high, kind_low]) {
        ether::IPV4 => Some(second),
        ether::IPV6 => Some((first & 0x0f) << 4 | second >> 4),
        _ => None,
    }
}

/// What the outer field, of a TOS byte, does to an untagged frame. False if the frame is to be dropped.
#[inline]
pub fn apply(outer: u8, frame: &mut [u8]) -> bool {
    // These two change nothing.
    if outer & MASK == NOT_ECT || outer & MASK == ECT0 {
        return true;
    }
    let Some(tos) = tos(frame) else {
        return true;
    };
    match leave(outer, tos) {
        None => false,
        Some(ecn) if ecn == tos & MASK => true,
        Some(ecn) => {
            rewrite(frame, tos & !MASK | ecn);
            true
        }
    }
}

/// Gives the packet in an untagged frame another TOS; the checksum of an IPv4 header follows (RFC 1624).
fn rewrite(frame: &mut [u8], tos: u8) {
    let is_v4 = frame.get(12..14) == Some(&ether::IPV4.to_be_bytes());
    let Some([first, second]) = frame.get_mut(14..).and_then(|ip| ip.first_chunk_mut()) else {
        return;
    };
    let old = u16::from_be_bytes([*first, *second]);
    if !is_v4 {
        *first = *first & 0xf0 | tos >> 4;
        *second = *second & 0x0f | tos << 4;
        return;
    }
    *second = tos;
    let new = u16::from_be_bytes([*first, tos]);
    if let Some(check) = frame.get_mut(24..).and_then(|rest| rest.first_chunk_mut()) {
        *check = checksum::update_u16(u16::from_be_bytes(*check), old, new).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use windlass_wire::build::{self, Ends, Link};
    use windlass_wire::{Fault, MacAddr, parse};

    fn frame(is_v4: bool, tos: u8) -> Vec<u8> {
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let ends = match is_v4 {
            true => Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
            false => Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
        };
        let mut bytes = vec![0; 256];
        let len = build::udp_frame(&mut bytes, &link, &ends, (1, 2), &[9; 90]).expect("room");
        bytes.truncate(len);
        rewrite(&mut bytes, tos);
        bytes
    }

    /// All sixteen pairs on the way out, for both versions of IP: the field is the table's, the rest of the TOS and the packet
    /// stay, and the checksum is right.
    #[test]
    fn all_sixteen_pairs() {
        let table = [
            [Some(0), Some(0), Some(0), None],
            [Some(1), Some(1), Some(1), Some(3)],
            [Some(2), Some(1), Some(2), Some(3)],
            [Some(3), Some(3), Some(3), Some(3)],
        ];
        for (inner, row) in (0..).zip(table) {
            for (outer, expected) in (0..).zip(row) {
                assert_eq!(leave(outer, inner), expected, "{inner} {outer}");
                for is_v4 in [true, false] {
                    let mut bytes = frame(is_v4, 0xb8 | inner);
                    assert_eq!(apply(0x40 | outer, &mut bytes), expected.is_some());
                    let after = expected.unwrap_or(inner);
                    assert_eq!(bytes, frame(is_v4, 0xb8 | after));
                    assert_eq!(tos(&bytes), Some(0xb8 | after));
                    assert_eq!(parse(&bytes, bytes.len() as u32).fault, Fault::None);
                    assert!(!is_v4 || checksum::checksum(&bytes[14..34]) == 0);
                }
            }
        }
        assert_eq!([0, 1, 2, 3].map(enter), [0, 1, 2, 2]);
    }

    /// What is not IP, or too short for it, passes as it is.
    #[test]
    fn other_frames_pass() {
        for bytes in [vec![], vec![0xff; 15], vec![0xff; 60]] {
            let mut after = bytes.clone();
            assert!(apply(CE, &mut after));
            assert_eq!(after, bytes);
        }
        let mut short = frame(true, 0);
        short.truncate(20);
        assert!(!apply(CE, &mut short));
    }
}
