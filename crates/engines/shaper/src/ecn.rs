//! Marks in the place of drops: explicit congestion notification (RFC 3168).
//!
//! # Model
//! | field | sender | where [`crate::codel`] would drop a frame |
//! | --- | --- | --- |
//! | Not-ECT | does not know marks | it is dropped |
//! | ECT(0), ECT(1) | answers to marks | it is marked CE, and passes |
//! | CE | marked before | it passes |
//!
//! # Limits
//! IPv4 and IPv6, untagged or behind one tag, with all headers in the frame's first [`SNAP`] bytes. Other frames, and those whose headers
//! are too short or contradict the frame, count as Not-ECT. Inner headers of tunnels are not looked at.

use windlass_frame::SNAP;
use windlass_wire::{Fault, Kind, checksum, parse};

/// Two adjacent bytes of a network header, in which the ECN field is.
struct Field {
    l3: usize,
    word: u16,
    /// The field's bits.
    mask: u16,
    is_v4: bool,
}

impl Field {
    fn of(bytes: &[u8], len: u32) -> Option<Field> {
        let layers = parse(bytes.get(..SNAP).unwrap_or(bytes), len);
        if layers.l3 == 0 || layers.tags > 1 || layers.need != 0 || layers.fault != Fault::None {
            return None;
        }
        let l3 = layers.l3_at();
        let is_v4 = layers.kind == Kind::Ipv4;
        Some(Field {
            l3,
            word: u16::from_be_bytes(*bytes.get(l3..)?.first_chunk()?),
            mask: if is_v4 { 0x0003 } else { 0x0030 },
            is_v4,
        })
    }
}

/// Whether the sender of a frame of `len` bytes, of which these are the first, answers to marks.
pub fn is_capable(bytes: &[u8], len: u32) -> bool {
    Field::of(bytes, len).is_some_and(|field| field.word & field.mask != 0)
}

/// Marks such a frame: congestion experienced. The checksum of an IPv4 header follows (RFC 1624).
pub fn mark(bytes: &mut [u8], len: u32) {
    let Some(field) = Field::of(bytes, len) else {
        return;
    };
    let Some(header) = bytes.get_mut(field.l3..) else {
        return;
    };
    let marked = field.word | field.mask;
    if let Some(word) = header.first_chunk_mut() {
        *word = marked.to_be_bytes();
    }
    if field.is_v4
        && let Some(check) = header.get_mut(10..).and_then(|rest| rest.first_chunk_mut())
    {
        let old = u16::from_be_bytes(*check);
        *check = checksum::update_u16(old, field.word, marked).to_be_bytes();
    }
}

#[cfg(test)]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing
)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use windlass_wire::build::{self, Ends, Link};
    use windlass_wire::ether::{Tci, VlanId};
    use windlass_wire::{MacAddr, checksum};

    use super::*;

    const CE: u8 = 3;

    /// A datagram with an ECN field.
    fn frame(is_v4: bool, is_tagged: bool, ecn: u8) -> Vec<u8> {
        let vid = VlanId::new(7).expect("a VLAN");
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: is_tagged.then(|| Tci::new(5, false, vid)),
        };
        let ends = match is_v4 {
            true => Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
            false => Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
        };
        let mut bytes = vec![0; 256];
        let len = build::udp_frame(&mut bytes, &link, &ends, (1, 2), &[9; 90]).expect("room");
        bytes.truncate(len);
        let l3 = l3(is_tagged);
        if is_v4 {
            bytes[l3 + 1] = 0xb8 | ecn;
            bytes[l3 + 10..l3 + 12].fill(0);
            let sum = checksum::checksum(&bytes[l3..l3 + 20]);
            bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            bytes[l3..l3 + 2].copy_from_slice(&(0x6b8a | u16::from(ecn) << 4).to_be_bytes());
        }
        bytes
    }

    fn l3(is_tagged: bool) -> usize {
        if is_tagged { 18 } else { 14 }
    }

    fn is_markable(bytes: &[u8]) -> bool {
        is_capable(bytes, bytes.len() as u32)
    }

    /// A mark makes a frame what it would be if its sender had sent CE, and its checksum right; what knows no marks takes none.
    #[test]
    fn frames_are_marked() {
        for (is_v4, is_tagged) in [(true, false), (true, true), (false, false), (false, true)] {
            assert!(!is_markable(&frame(is_v4, is_tagged, 0)));
            for ecn in 1..=CE {
                let mut bytes = frame(is_v4, is_tagged, ecn);
                let len = bytes.len() as u32;
                assert!(is_markable(&bytes), "{is_v4}, {is_tagged}, {ecn}");
                // As much as a worker has at hand.
                mark(&mut bytes[..100], len);
                assert_eq!(bytes, frame(is_v4, is_tagged, CE));
            }
        }
    }

    /// The checksum is right whatever it was, also where it comes to all zeros or ones.
    #[test]
    fn checksums_are_right() {
        for id in 0..=u16::MAX {
            let mut bytes = frame(true, false, 2);
            bytes[18..20].copy_from_slice(&id.to_be_bytes());
            bytes[24..26].fill(0);
            let sum = checksum::checksum(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            let len = bytes.len() as u32;
            mark(&mut bytes, len);
            assert_eq!(checksum::checksum(&bytes[14..34]), 0, "{id}");
        }
    }

    /// What is no IP packet, or has two tags, or is too short, or contradicts itself, takes no mark and stays as it is.
    #[test]
    fn odd_frames_are_not_marked() {
        let mut odd = Vec::new();
        for is_v4 in [true, false] {
            let whole = frame(is_v4, true, 1);
            odd.extend((0..whole.len()).map(|n| whole[..n].to_vec()));
            let mut two = whole.clone();
            two.splice(12..12, [0x81, 0, 0, 9]);
            odd.push(two);
            // The type, the version, the length of the header, the packet's length, the datagram's length.
            let l4 = if is_v4 { 38 } else { 58 };
            let places = [
                (16, 0x99),
                (18, 0x05),
                (18, 0x41),
                (22, 0xff),
                (l4 + 4, 0xff),
            ];
            for (at, value) in places {
                let mut bytes = whole.clone();
                let at = if is_v4 && at == 22 { 20 } else { at };
                bytes[at] = value;
                odd.push(bytes);
            }
        }
        for bytes in odd {
            assert!(!is_markable(&bytes), "{bytes:02x?}");
            let mut after = bytes.clone();
            mark(&mut after, bytes.len() as u32);
            assert_eq!(after, bytes);
        }
    }
}
