use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// Word by word as RFC 1071 section 4.1 writes it.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The worked example of RFC 1071, section 3.
#[test]
fn rfc1071_example() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    let mut sum = Sum::new();
    sum.add_bytes(&bytes);
    assert_eq!(sum.partial(), 0xddf2);
    assert_eq!(checksum(&bytes), 0x220d);
}

/// The worked example of RFC 1624, section 4: equation 3 gives 0x0000, where RFC 1141 gives 0xffff.
#[test]
fn rfc1624_example() {
    assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    assert_eq!(update_u32(0xdd2f, 0x5555, 0x3285), 0x0000);
}

/// UDP never sends 0, and all-ones data do not break the folding.
#[test]
fn extremes() {
    let ones = [0xff; 65536];
    assert_eq!(checksum(&ones), 0);
    let mut sum = Sum::new();
    sum.add_bytes(&ones);
    assert_eq!((sum.finish(), sum.finish_udp()), (0, 0xffff));
    assert_eq!(checksum(&[]), 0xffff);
    assert_eq!(checksum(&[0xab]), !0xab00);
}

/// A field outside the packet is refused and nothing is written.
#[test]
fn finish_in_place_stays_inside() {
    for (start, offset) in [
        (20, 15),
        (35, 0),
        (36, 0),
        (usize::MAX, 1),
        (0, usize::MAX),
        (34, 1),
    ] {
        let mut packet = [7u8; 36];
        assert!(
            !finish_in_place(&mut packet, start, offset),
            "{start} {offset}"
        );
        assert_eq!(packet, [7u8; 36]);
    }
}

proptest! {
    /// The fast sum is RFC 1071's, at any length and alignment of the length.
    #[test]
    fn equals_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(checksum(&bytes), naive(&bytes));
    }

    /// Cutting the data into pieces, odd ones too, does not change the sum.
    #[test]
    fn pieces_are_one_string(pieces in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..70), 0..8)) {
        let whole: Vec<u8> = pieces.concat();
        let mut sum = Sum::new();
        let mut nested = Sum::new();
        for piece in &pieces {
            sum.add_bytes(piece);
            let mut one = Sum::new();
            one.add_bytes(piece);
            nested.add_sum(one);
        }
        prop_assert_eq!(sum.finish(), naive(&whole));
        prop_assert_eq!(nested.finish(), naive(&whole));
    }

    /// Fields added as numbers equal their bytes.
    #[test]
    fn fields_are_bytes(a: u16, b: u32, odd: bool) {
        let mut bytes = if odd { std::vec![9u8] } else { Vec::new() };
        let mut sum = Sum::new();
        sum.add_bytes(&bytes);
        sum.add_u16_be(a);
        sum.add_u32_be(b);
        bytes.extend(a.to_be_bytes());
        bytes.extend(b.to_be_bytes());
        prop_assert_eq!(sum.finish(), naive(&bytes));
    }

    /// Updating a checksum equals computing it anew, unless all data are zero.
    #[test]
    fn update_equals_recompute(mut bytes in prop::collection::vec(any::<u8>(), 8..40),
                               at in 0usize..2, word: u16, long: u32) {
        bytes[7] |= 1;
        let at = at * 2;
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let check = naive(&bytes);
        bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
        prop_assert_eq!(update_u16(check, old, word), naive(&bytes));

        let old = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let check = naive(&bytes);
        bytes[..4].copy_from_slice(&long.to_be_bytes());
        prop_assert_eq!(update_u32(check, old, long), naive(&bytes));
    }

    /// A checksum left half done by the sender verifies after it is finished.
    #[test]
    fn finished_in_place_verifies(mut packet in prop::collection::vec(any::<u8>(), 48..200),
                                  src: [u8; 4], dst: [u8; 4]) {
        let start = 20;
        let len = (packet.len() - start) as u16;
        let pseudo = pseudo_v4(&src, &dst, 6, len);
        packet[start + 16..start + 18].copy_from_slice(&pseudo.partial().to_be_bytes());
        prop_assert!(finish_in_place(&mut packet, start, 16));
        let mut sum = pseudo;
        sum.add_bytes(&packet[start..]);
        prop_assert_eq!(sum.finish(), 0);
    }
}
