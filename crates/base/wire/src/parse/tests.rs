use super::*;
use crate::build::{self, Ends, Link, Tcp};
use crate::{MacAddr, Tci, VlanId};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const V4: Ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
const V6: Ends = Ends::V6(
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
);

fn link(tag: Option<Tci>) -> Link {
    Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag,
    }
}

fn tcp(ends: &Ends, tag: Option<Tci>, options: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 200];
    let header = Tcp {
        src: 1,
        dst: 2,
        flags: 0x10,
        options,
        ..Tcp::default()
    };
    let len = build::tcp_frame(&mut out, &link(tag), ends, &header, b"payload").unwrap();
    out.truncate(len);
    out
}

fn udp(ends: &Ends) -> Vec<u8> {
    let mut out = vec![0; 200];
    let len = build::udp_frame(&mut out, &link(None), ends, (7, 8), b"payload").unwrap();
    out.truncate(len);
    out
}

fn whole(frame: &[u8]) -> Layers {
    parse(frame, frame.len() as u32)
}

/// An IPv6 UDP frame with these extension headers, each `(type, its bytes after the next header)`.
fn chained(chain: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let plain = udp(&V6);
    let mut frame = plain[..54].to_vec();
    let mut next_at = 20;
    for (kind, body) in chain {
        frame[next_at] = *kind;
        next_at = frame.len();
        frame.push(0);
        frame.extend(body);
    }
    frame[next_at] = proto::UDP;
    frame.extend(&plain[54..]);
    let payload = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&payload.to_be_bytes());
    frame
}

/// Body of an option or routing header of `8 * (units + 1)` bytes.
fn options(units: u8) -> Vec<u8> {
    let mut body = vec![0; 7 + 8 * usize::from(units)];
    body[0] = units;
    body
}

fn fragment(offset_and_more: u16) -> Vec<u8> {
    let [a, b] = offset_and_more.to_be_bytes();
    vec![0, a, b, 0, 0, 0, 1]
}

/// Lengths of plain, optioned and tagged frames of both families.
#[test]
fn lengths() {
    let tag = Some(Tci::new(5, false, VlanId::new(100).unwrap()));
    for (frame, l2, l3, l4, kind) in [
        (tcp(&V4, None, &[]), 14, 20, 20, Kind::Ipv4),
        (tcp(&V4, tag, &[1; 40]), 18, 20, 60, Kind::Ipv4),
        (tcp(&V6, None, &[1; 12]), 14, 40, 32, Kind::Ipv6),
        (udp(&V4), 14, 20, 8, Kind::Ipv4),
        (udp(&V6), 14, 40, 8, Kind::Ipv6),
    ] {
        let got = whole(&frame);
        assert_eq!((got.l2, got.l3, got.l4, got.kind), (l2, l3, l4, kind));
        assert_eq!((got.fault, got.need), (Fault::None, 0));
        assert_eq!(got.end as usize, frame.len());
        assert_eq!(&frame[got.headers()..], b"payload");
        assert!(got.is_tcp() ^ got.is_udp());
    }
    let got = whole(&tcp(&V4, tag, &[]));
    assert_eq!(
        (got.tags, got.tpid, got.tci, got.ethertype),
        (1, 0x8100, 0xa064, 0x0800)
    );
    assert_eq!(core::mem::size_of::<Layers>(), 24);
}

/// Padding after the packet is not part of it.
#[test]
fn padding_is_outside() {
    let mut frame = udp(&V4);
    let end = frame.len();
    frame.resize(64, 0);
    let got = whole(&frame);
    assert_eq!((got.end as usize, got.fault), (end, Fault::None));
}

/// What is not IP is named, and its type reported.
#[test]
fn other_link_payloads() {
    let mut frame = [0u8; 60];
    for (ethertype, kind) in [
        (0x0806, Kind::Arp),
        (0x88cc, Kind::Other),
        (0x0600, Kind::Other),
        (0x05ff, Kind::Llc),
        (0x0026, Kind::Llc),
    ] {
        frame[12..14].copy_from_slice(&u16::to_be_bytes(ethertype));
        let got = whole(&frame);
        assert_eq!(
            (got.kind, got.ethertype, got.l2, got.l3),
            (kind, ethertype, 14, 0)
        );
        assert_eq!((got.fault, got.need), (Fault::None, 0));
    }
}

/// Tags are walked up to the bound; the outer one is reported; the stack beyond is a fault.
#[test]
fn tag_stacks() {
    for count in 1..=6usize {
        let mut frame = udp(&V4);
        for n in 0..count {
            let outer = n == count - 1;
            let [hi, lo] = if outer { [0x88, 0xa8] } else { [0x81, 0x00] };
            frame.splice(12..12, [hi, lo, 0, n as u8]);
        }
        let got = whole(&frame);
        assert_eq!((got.tpid, got.tci), (0x88a8, count as u16 - 1));
        if count <= usize::from(TAGS_MAX) {
            assert_eq!((usize::from(got.tags), got.kind), (count, Kind::Ipv4));
            assert_eq!(
                (usize::from(got.l2), got.fault),
                (14 + 4 * count, Fault::None)
            );
        } else {
            assert_eq!((got.tags, got.fault), (TAGS_MAX, Fault::TagStack));
        }
    }
}

/// Each contradiction in an IPv4 frame has its fault, and what was found before it stands.
#[test]
fn ipv4_faults() {
    let base = tcp(&V4, None, &[]);
    let with = |edits: &[(usize, u8)]| {
        let mut frame = base.clone();
        for (at, value) in edits {
            frame[*at] = *value;
        }
        whole(&frame)
    };
    assert_eq!(with(&[(14, 0x65)]).fault, Fault::Version);
    assert_eq!(with(&[(14, 0x44)]).fault, Fault::NetworkHeader);
    assert_eq!(with(&[(17, 19)]).fault, Fault::NetworkLength);
    assert_eq!(with(&[(17, 48)]).fault, Fault::NetworkLength);
    assert_eq!(with(&[(14, 0x4f)]).fault, Fault::NetworkLength);
    let cut = with(&[(17, 39)]);
    assert_eq!((cut.fault, cut.l3, cut.l4), (Fault::TransportHeader, 20, 0));
    assert_eq!(with(&[(46, 0x40)]).fault, Fault::TransportHeader);
    assert_eq!(with(&[(46, 0xf0)]).fault, Fault::TransportHeader);
    let mut frame = udp(&V4);
    for (length, fault) in [
        (7, Fault::TransportLength),
        (16, Fault::TransportLength),
        (15, Fault::None),
        (8, Fault::None),
    ] {
        frame[39] = length;
        assert_eq!(whole(&frame).fault, fault, "{length}");
    }
    assert_eq!(parse(&base, 13).fault, Fault::Runt);
    assert_eq!(parse(&base, 33).fault, Fault::NetworkHeader);
}

/// Fragments: the first has a transport header, later ones have none.
#[test]
fn ipv4_fragments() {
    let mut frame = udp(&V4);
    // The whole datagram is longer than this part of it.
    frame[38] = 0x10;
    for (hi, lo, want, l4) in [
        (0x20, 0, Fragment::First, 8),
        (0x20, 1, Fragment::Later, 0),
        (0x1f, 0xff, Fragment::Later, 0),
    ] {
        frame[20] = hi;
        frame[21] = lo;
        let got = whole(&frame);
        assert_eq!((got.fragment, got.l4, got.fault), (want, l4, Fault::None));
        assert!(!got.is_udp());
    }
    frame[20] = 0x40;
    frame[21] = 0;
    assert_eq!(whole(&frame).fragment, Fragment::No);
}

/// Extension chains: their length, fragments, and the two bounds.
#[test]
fn ipv6_chains() {
    let frame = chained(&[(0, options(0)), (43, options(2)), (60, options(1))]);
    let got = whole(&frame);
    assert_eq!(
        (got.l3, got.l4, got.proto),
        (40 + 8 + 24 + 16, 8, proto::UDP)
    );
    assert!(got.routed && got.is_udp());

    for (bits, want, l4) in [
        (0, Fragment::Atomic, 8),
        (1, Fragment::First, 8),
        (8, Fragment::Later, 0),
        (9, Fragment::Later, 0),
    ] {
        let got = whole(&chained(&[(44, fragment(bits))]));
        assert_eq!((got.fragment, got.l4, got.l3), (want, l4, 48), "{bits}");
    }
    // An atomic fragment header does not hide an earlier real one.
    let got = whole(&chained(&[(44, fragment(1)), (44, fragment(0))]));
    assert_eq!(got.fragment, Fragment::First);

    let many = |n: u8| {
        whole(&chained(
            &(0..n).map(|_| (60, options(0))).collect::<Vec<_>>(),
        ))
    };
    assert_eq!(many(EXTENSIONS_MAX).fault, Fault::None);
    let got = many(EXTENSIONS_MAX + 1);
    assert_eq!((got.fault, got.l3, got.l4), (Fault::Chain, 0, 0));
    assert_eq!(whole(&chained(&[(60, options(255))])).fault, Fault::Chain);
}

/// The last header that fits [`HEADERS_MAX`] is parsed, one that passes it is a fault, and neither
/// depends on how much of the frame was given.
#[test]
fn depth_is_bounded() {
    // Link and IPv6 headers, the first extension's own 8 bytes, a second one, UDP.
    let fits = ((HEADERS_MAX - (54 + 8 + 8 + 8)) / 8) as u8;
    for (units, fault) in [
        (fits, Fault::None),
        (fits + 1, Fault::Chain),
        (fits + 2, Fault::Chain),
        (fits + 3, Fault::Chain),
    ] {
        let frame = chained(&[(60, options(units)), (60, options(0))]);
        assert_eq!(whole(&frame).fault, fault, "{units}");
        assert_eq!(deepened(&frame), whole(&frame));
    }
}

/// IPv6 contradictions.
#[test]
fn ipv6_faults() {
    let base = udp(&V6);
    let mut frame = base.clone();
    frame[14] = 0x40;
    assert_eq!(whole(&frame).fault, Fault::Version);
    frame = base.clone();
    frame[19] += 1;
    assert_eq!(whole(&frame).fault, Fault::NetworkLength);
    frame = chained(&[(60, options(0))]);
    frame[55] = 200;
    assert_eq!(whole(&frame).fault, Fault::NetworkHeader);
}

/// Parses as a caller does who has one byte, and fetches what is asked for.
fn deepened(frame: &[u8]) -> Layers {
    let mut have = 1.min(frame.len());
    loop {
        let got = parse(&frame[..have], frame.len() as u32);
        if got.need == 0 {
            return got;
        }
        assert!(usize::from(got.need) > have, "no progress");
        have = usize::from(got.need);
    }
}

/// Asking for more until nothing is needed gives what the whole frame gives at once; and every
/// prefix either needs more or decides the same.
#[test]
fn deepening_equals_whole() {
    let frames = [
        tcp(&V4, None, &[1; 40]),
        tcp(&V6, Some(Tci(5)), &[1; 12]),
        udp(&V4),
        chained(&[(0, options(3)), (44, fragment(0)), (60, options(20))]),
        chained(&[(44, fragment(9))]),
        vec![0; 60],
        vec![0; 9],
    ];
    for frame in frames {
        let want = whole(&frame);
        assert_eq!(deepened(&frame), want);
        for have in 0..frame.len() {
            let got = parse(&frame[..have], frame.len() as u32);
            assert!(got.headers() <= have);
            assert!(got.need != 0 || got == want, "{have}: {got:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The short way for plain frames finds what the long way finds: on good frames, with bytes
    /// changed in the headers, with lengths that are wrong and with few bytes given.
    #[test]
    fn plain_equals_walked(is_tcp: bool, words in 0usize..=10, given in 30usize..120,
                           longer in -60i32..20,
                           edits in prop::collection::vec((12usize..60, any::<u8>()), 0..3)) {
        let mut frame = if is_tcp { tcp(&V4, None, &vec![1; words * 4]) } else { udp(&V4) };
        let len = (frame.len() as i32 + longer) as u32;
        frame.resize(120, 0xee);
        for (at, value) in edits {
            frame[at] = value;
        }
        let given = &frame[..given];
        prop_assert_eq!(parse(given, len), walked(given, len));
        if let Some(found) = plain(given, len) {
            prop_assert_eq!(plain_layers(found), walked(given, len));
        }
    }
}
