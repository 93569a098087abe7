//! What a claim comes to, row by row and for arbitrary claims and frames.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use windlass_frame::{
    BURST, Claim, Deepen, Gso, HEADROOM, Heads, Offload, RxId, SNAP, Tick, TxId, Verdict,
};
use windlass_nic::leave;
use windlass_stats::Drop;
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::{MacAddr, Tci, checksum, parse};

const V4: Ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
const V6: Ends = Ends::V6(
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
);

/// The frames of a burst, whole: what lies behind the snapshots is read from here.
struct Rest(Vec<Vec<u8>>);

impl Deepen for Rest {
    fn deepen(&mut self, heads: &mut Heads, i: usize, upto: usize) -> bool {
        let have = usize::from(heads.meta[i].have);
        if upto <= have {
            return true;
        }
        if upto > self.0[i].len() {
            return false;
        }
        let Some(room) = heads.grow(i, upto - have) else {
            return false;
        };
        room.copy_from_slice(&self.0[i][have..upto]);
        true
    }
}

fn burst(frames: &[(Vec<u8>, Claim)]) -> (Box<Heads>, Rest) {
    let mut heads = Heads::boxed();
    heads.clear(RxId(0), Tick(0));
    heads.n = frames.len();
    for (i, (frame, claim)) in frames.iter().enumerate() {
        let n = frame.len().min(SNAP);
        heads.snap[i].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
        heads.admit(i, frame.len() as u32, *claim);
    }
    (heads, Rest(frames.iter().map(|f| f.0.clone()).collect()))
}

/// What one claim comes to.
fn outcome(frame: &[u8], claim: Claim) -> Result<Offload, Drop> {
    let (mut heads, mut rest) = burst(&[(frame.to_vec(), claim)]);
    leave(&mut heads, &mut rest);
    assert!(heads.meta[0].claim.is_none());
    match heads.verdict[0].as_drop() {
        Some(reason) => {
            assert_eq!(heads.meta[0].off, Offload::NONE);
            Err(reason)
        }
        None => Ok(heads.meta[0].off),
    }
}

fn link(tag: Option<u16>) -> Link {
    Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: tag.map(Tci),
    }
}

fn tcp(ends: &Ends, tag: Option<u16>, flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
    let mut out = vec![0; payload + 200];
    let header = Tcp {
        flags,
        options,
        ..Tcp::default()
    };
    let payload = vec![0x5a; payload];
    let len = build::tcp_frame(&mut out, &link(tag), ends, &header, &payload).unwrap();
    out.truncate(len);
    out
}

fn udp(ends: &Ends, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; payload.len() + 200];
    let len = build::udp_frame(&mut out, &link(None), ends, (1, 2), payload).unwrap();
    out.truncate(len);
    out
}

fn csum(start: u16, offset: u16) -> Claim {
    Claim {
        flags: Claim::NEEDS_CSUM,
        csum_start: start,
        csum_offset: offset,
        ..Claim::NONE
    }
}

fn gso(kind: u8, size: u16, start: u16, offset: u16) -> Claim {
    Claim {
        gso_type: kind,
        gso_size: size,
        ..csum(start, offset)
    }
}

fn valid_gso(kind: u8, size: u16) -> Claim {
    Claim {
        flags: Claim::DATA_VALID,
        gso_type: kind,
        gso_size: size,
        ..Claim::NONE
    }
}

/// The frame with bytes overwritten.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// A TCP frame over IPv6 with an extension header of this type (8 bytes) before the TCP header.
fn extended(next: u8, body: [u8; 7], payload: usize) -> Vec<u8> {
    let plain = tcp(&V6, None, 0x10, &[], payload);
    let mut frame = plain[..54].to_vec();
    frame[20] = next;
    let len = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame.push(6);
    frame.extend(body);
    frame.extend(&plain[54..]);
    frame
}

type Row = (&'static str, Vec<u8>, Claim, Result<Offload, Drop>);

const BAD: Result<Offload, Drop> = Err(Drop::BadOffload);
const VALID: Offload = Offload::NONE.with_data_valid();

#[rustfmt::skip]
fn checksum_rows() -> Vec<Row> {
    let t4 = tcp(&V4, None, 0x10, &[], 500);
    let t6 = tcp(&V6, None, 0x10, &[], 500);
    let u4 = udp(&V4, &[7; 500]);
    let pass = |start, offset| Ok(Offload::needing_csum(start, offset));
    let mut arp = t4.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    vec![
        ("tcp4", t4.clone(), csum(34, 16), pass(34, 16)),
        ("tcp6", t6.clone(), csum(54, 16), pass(54, 16)),
        ("udp4", u4.clone(), csum(34, 6), pass(34, 6)),
        ("udp6", udp(&V6, b"hello"), csum(54, 6), pass(54, 6)),
        ("no payload", tcp(&V4, None, 2, &[], 0), csum(34, 16), pass(34, 16)),
        ("tagged", tcp(&V4, Some(7), 0x10, &[], 90), csum(38, 16), pass(38, 16)),
        ("tag not counted", tcp(&V4, Some(7), 0x10, &[], 90), csum(34, 16), BAD),
        ("tcp options", tcp(&V4, None, 0x10, &[1; 40], 90), csum(34, 16), pass(34, 16)),
        ("routed", extended(43, [0; 7], 90), csum(62, 16), pass(62, 16)),
        ("atomic fragment", extended(44, [0; 7], 90), csum(62, 16), pass(62, 16)),
        ("first fragment", extended(44, [0, 0, 1, 0, 0, 0, 0], 90), csum(62, 16), BAD),
        ("fragment of IPv4", with(t4.clone(), 20, &[0x20, 0]), csum(34, 16), BAD),
        ("later fragment", with(t4.clone(), 20, &[0, 9]), csum(200, 16), BAD),
        ("udp's offset in tcp", t4.clone(), csum(34, 6), BAD),
        ("tcp's offset in udp, in the payload", u4.clone(), csum(34, 16), Ok(Offload::NONE)),
        ("ip source", t4.clone(), csum(14, 12), BAD),
        ("ip source, start at 0", t4.clone(), csum(0, 26), BAD),
        ("mac source", t4.clone(), csum(0, 6), BAD),
        ("tcp port", t4.clone(), csum(34, 0), BAD),
        ("last header byte", t4.clone(), csum(34, 19), BAD),
        ("first payload bytes", t4.clone(), csum(34, 20), Ok(Offload::NONE)),
        ("last two bytes", t4.clone(), csum(540, 12), Ok(Offload::NONE)),
        ("one beyond the end", t4.clone(), csum(540, 13), BAD),
        ("far beyond", t4.clone(), csum(u16::MAX, u16::MAX), BAD),
        ("arp", arp, csum(100, 2), BAD),
        ("unknown type", with(t4.clone(), 12, &[0x88, 0xb5]), csum(100, 2), Ok(Offload::NONE)),
        ("unknown type, in the link header", with(t4.clone(), 12, &[0x88, 0xb5]), csum(2, 10), BAD),
        ("version 5", with(t4.clone(), 14, &[0x55]), csum(34, 16), BAD),
        ("runt", vec![0; 13], csum(2, 2), BAD),
        ("empty", vec![], csum(0, 0), BAD),
    ]
}

#[rustfmt::skip]
fn gso_rows() -> Vec<Row> {
    let t4 = tcp(&V4, None, 0x10, &[], 3000);
    let t6 = tcp(&V6, None, 0x10, &[], 3000);
    let u4 = udp(&V4, &[7; 3000]);
    let cwr = tcp(&V4, None, 0x90, &[], 3000);
    let (k4, k6, ku) = (Claim::GSO_TCPV4, Claim::GSO_TCPV6, Claim::GSO_UDP_L4);
    let t = |gso, start, offset| Offload::needing_csum(start, offset).with_gso(gso, 1000, false);
    let ecn = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1000, true);
    let mut padded = t4.clone();
    padded.extend([0; 6]);
    let bare = Claim {
        flags: 0,
        ..gso(k4, 1000, 34, 16)
    };
    vec![
        ("tcp4", t4.clone(), gso(k4, 1000, 34, 16), Ok(t(Gso::Tcp4, 34, 16))),
        ("tcp6", t6.clone(), gso(k6, 1000, 54, 16), Ok(t(Gso::Tcp6, 54, 16))),
        ("uso", u4.clone(), gso(ku, 1000, 34, 6), Ok(t(Gso::UdpL4, 34, 6))),
        ("ecn with cwr", cwr.clone(), gso(k4 | 0x80, 1000, 34, 16), Ok(ecn)),
        ("cwr without ecn", cwr, gso(k4, 1000, 34, 16), Ok(ecn)),
        ("ecn without cwr", t4.clone(), gso(k4 | 0x80, 1000, 34, 16), Ok(t(Gso::Tcp4, 34, 16))),
        ("ecn with udp", u4.clone(), gso(ku | 0x80, 1000, 34, 6), BAD),
        ("ecn alone", t4.clone(), gso(0x80, 1000, 34, 16), BAD),
        ("without needs_csum", t4.clone(), bare, BAD),
        ("data_valid", t4.clone(), valid_gso(k4, 1000), Ok(t(Gso::Tcp4, 34, 16))),
        ("data_valid, one segment", t4.clone(), valid_gso(k4, 3000), Ok(VALID)),
        ("start elsewhere", t4.clone(), gso(k4, 1000, 35, 16), BAD),
        ("offset elsewhere", t4.clone(), gso(k4, 1000, 34, 18), BAD),
        ("field in the payload", t4.clone(), gso(k4, 1000, 100, 16), BAD),
        ("tcp6 of tcp4", t4.clone(), gso(k6, 1000, 34, 16), BAD),
        ("tcp4 of tcp6", t6.clone(), gso(k4, 1000, 54, 16), BAD),
        ("uso of tcp", t4.clone(), gso(ku, 1000, 34, 16), BAD),
        ("tcp of udp", u4.clone(), gso(k4, 1000, 34, 6), BAD),
        ("ufo", u4.clone(), gso(Claim::GSO_UFO, 1000, 34, 6), BAD),
        ("unknown type", t4.clone(), gso(2, 1000, 34, 16), BAD),
        ("tunnel bit", t4.clone(), gso(k4 | 0x20, 1000, 34, 16), BAD),
        ("size 63", t4.clone(), gso(k4, 63, 34, 16), BAD),
        ("size 0", t4.clone(), gso(k4, 0, 34, 16), BAD),
        ("fits one", t4.clone(), gso(k4, 3000, 34, 16), Ok(Offload::needing_csum(34, 16))),
        ("does not fit one", t4.clone(), gso(k4, 2999, 34, 16), Ok(Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 2999, false))),
        ("no payload", tcp(&V4, None, 2, &[], 0), gso(k4, 100, 34, 16), Ok(Offload::needing_csum(34, 16))),
        ("fragment", with(t4.clone(), 20, &[0x20, 0]), gso(k4, 1000, 34, 16), BAD),
        ("atomic fragment", extended(44, [0; 7], 3000), gso(k6, 1000, 62, 16), BAD),
        ("routed", extended(43, [0; 7], 3000), gso(k6, 1000, 62, 16), BAD),
        ("destination options", extended(60, [0, 1, 4, 0, 0, 0, 0], 3000), gso(k6, 1000, 62, 16), Ok(t(Gso::Tcp6, 62, 16))),
        ("padding", padded, gso(k4, 1000, 34, 16), BAD),
        ("header beyond the end", with(tcp(&V4, None, 2, &[], 8), 46, &[0xf0]), gso(k4, 64, 34, 16), BAD),
    ]
}

/// Every row of the claim table, with the frames for which it holds and those next to them for
/// which it does not.
#[test]
fn rows() {
    for (name, frame, claim, want) in checksum_rows() {
        assert_eq!(outcome(&frame, claim), want, "checksum: {name}");
    }
    for (name, frame, claim, want) in gso_rows() {
        assert_eq!(outcome(&frame, claim), want, "segmentation: {name}");
    }
}

/// Flag bits that nobody was offered change nothing, alone or beside those that were, and
/// `DATA_VALID` is kept where nothing is to be done, and only there.
#[test]
fn flags() {
    let frame = tcp(&V4, None, 0x10, &[], 500);
    for unknown in [0u8, 4, 8, 0x80, 0xfc] {
        let claim = |flags| Claim {
            flags: flags | unknown,
            ..csum(34, 16)
        };
        assert_eq!(outcome(&frame, claim(0)), Ok(Offload::NONE));
        assert_eq!(outcome(&frame, claim(Claim::DATA_VALID)), Ok(VALID));
        let passed = Ok(Offload::needing_csum(34, 16));
        assert_eq!(outcome(&frame, claim(Claim::NEEDS_CSUM)), passed);
        assert_eq!(
            outcome(&frame, claim(Claim::NEEDS_CSUM | Claim::DATA_VALID)),
            passed
        );
    }
}

/// The lengths of the headers are there for whoever passes the frame on, also those behind the
/// snapshot, for as many frames as a burst has.
#[test]
fn long_headers_of_a_whole_burst() {
    // 14 + 40 + 8 x 8 + 60 bytes of headers.
    let plain = tcp(&V6, None, 0x10, &[1; 40], 2000);
    let mut frame = plain[..54].to_vec();
    frame[20] = 60;
    frame[18..20].copy_from_slice(&(2060u16 + 64).to_be_bytes());
    for k in 0..8 {
        frame.extend([if k == 7 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend(&plain[54..]);
    let claim = gso(Claim::GSO_TCPV6, 1000, 118, 16);
    let (mut heads, mut rest) = burst(&vec![(frame, claim); BURST]);
    leave(&mut heads, &mut rest);
    let want = Offload::needing_csum(118, 16).with_gso(Gso::Tcp6, 1000, false);
    for (i, m) in heads.meta.iter().enumerate() {
        assert_eq!((m.off, heads.verdict[i]), (want, Verdict::NONE), "{i}");
        assert_eq!((m.l2, m.l3, m.l4, m.proto), (14, 104, 60, 6));
        assert!(m.have >= 178);
    }
}

/// A sender's own tunnel: the inner checksum is completed in the private bytes, and equals the one
/// that the sender would have computed itself; one that does not fit the pool is dropped.
#[test]
fn inner_checksum_is_completed() {
    for inner_payload in [0usize, 1, 41, 1401, 1800] {
        let inner = udp(&V6, &vec![0x77; inner_payload]);
        let mut unfinished = inner.clone();
        let seed = V6.pseudo(17, (inner_payload + 8) as u16).partial();
        unfinished[60..62].copy_from_slice(&seed.to_be_bytes());
        let mut body = vec![8, 0, 0, 0, 0, 0, 1, 0];
        let whole = [&body[..], &inner].concat();
        body.extend(&unfinished);
        let outer = 42 + 8;
        // The outer checksum is not one in either.
        let want = with(udp(&V4, &whole), 40, &[0, 0]);
        let mut sent = with(udp(&V4, &body), 40, &[0, 0]);
        if inner_payload == 1 {
            sent.extend([0xff; 9]);
        }
        let claim = csum(outer + 54, 6);
        let (mut heads, mut rest) = burst(&[(sent, claim)]);
        leave(&mut heads, &mut rest);
        assert_eq!(heads.verdict[0], Verdict::NONE);
        assert_eq!(heads.meta[0].off, Offload::NONE);
        assert_eq!(&heads.private(0)[..want.len()], &want[..]);
    }
    let large = udp(&V4, &[1; 2000]);
    assert_eq!(outcome(&large, csum(100, 6)), BAD);
}

/// A checksum aimed at an address is dropped, and the address is as it was.
#[test]
fn addresses_are_not_rewritten() {
    let frame = tcp(&V4, None, 0x10, &[], 60);
    for at in 0..54u16 {
        for start in [0, at / 2, at] {
            let claim = csum(start, at - start);
            let (mut heads, mut rest) = burst(&[(frame.clone(), claim)]);
            leave(&mut heads, &mut rest);
            assert_eq!(heads.private(0), &frame[..], "{at} {start}");
            let own = start == 34 && at == 50;
            assert_eq!(heads.verdict[0].as_drop().is_none(), own, "{at} {start}");
        }
    }
}

/// A large segment whose checksum was found good is left with the pseudo header's sum, to which any
/// later stage adds: completed, it is the checksum that the frame came with.
#[test]
fn seed_of_a_merged_segment() {
    for (ends, kind, l4) in [(V4, Claim::GSO_TCPV4, 34), (V6, Claim::GSO_TCPV6, 54)] {
        let frame = tcp(&ends, None, 0x18, &[], 3001);
        let (mut heads, mut rest) = burst(&[(frame.clone(), valid_gso(kind, 1000))]);
        leave(&mut heads, &mut rest);
        assert!(heads.meta[0].off.needs_csum() && !heads.meta[0].off.data_valid());
        let mut again = heads.private(0).to_vec();
        let seed = again[l4 + 16..l4 + 18].to_vec();
        assert_eq!(seed, ends.pseudo(6, 3021).partial().to_be_bytes());
        again.extend(&frame[SNAP..]);
        assert!(checksum::finish_in_place(&mut again, l4, 16));
        assert_eq!(again, frame);
    }
}

/// Taking the tag out after the check leaves metadata that fit the frame without it.
#[test]
fn tag_taken_out_afterwards() {
    let frame = tcp(&V4, Some(7), 0x10, &[], 3000);
    let (mut heads, mut rest) = burst(&[(frame, gso(Claim::GSO_TCPV4, 1000, 38, 16))]);
    leave(&mut heads, &mut rest);
    heads.pop_tag(0);
    let m = heads.meta[0];
    let want = parse(heads.private(0), m.len);
    assert_eq!((m.l2, m.l3, m.l4), (want.l2, want.l3, want.l4));
    assert_eq!(usize::from(m.off.start), want.l4_at());
    assert_eq!(m.off.gso, Gso::Tcp4);
}

/// Frames that claim nothing are not touched, and verdicts that stand are kept.
#[test]
fn others_are_left_alone() {
    let frame = tcp(&V4, None, 0x10, &[], 60);
    let (mut heads, mut rest) = burst(&[
        (frame.clone(), Claim::NONE),
        (frame.clone(), csum(14, 12)),
        (frame.clone(), csum(14, 12)),
        (frame, csum(34, 16)),
    ]);
    heads.verdict[1] = Verdict::drop(Drop::Giant);
    heads.verdict[2] = Verdict::to(TxId(3), false);
    leave(&mut heads, &mut rest);
    let want = [
        Verdict::NONE,
        Verdict::drop(Drop::Giant),
        Verdict::to(TxId(3), false),
        Verdict::NONE,
    ];
    assert_eq!(heads.verdict[..4], want);
    assert!(
        heads.meta[..3]
            .iter()
            .all(|m| m.off == Offload::NONE && m.l2 == 0)
    );
    assert_eq!(heads.meta[3].off, Offload::needing_csum(34, 16));
}

/// What must hold of any frame with any claim: it is dropped, or its offload speaks of the checksum
/// field inside the transport header of our own parse, can be carried out, and no byte before the
/// end of the headers was changed but that field.
fn check_any(frame: &[u8], claim: Claim) {
    let (mut heads, mut rest) = burst(&[(frame.to_vec(), claim)]);
    leave(&mut heads, &mut rest);
    let (m, private) = (heads.meta[0], heads.private(0));
    let layers = parse(frame, frame.len() as u32);
    if let Some(reason) = heads.verdict[0].as_drop() {
        assert_eq!((reason, m.off), (Drop::BadOffload, Offload::NONE));
        assert_eq!(
            private,
            &frame[..private.len()],
            "a dropped frame is as it was"
        );
        return;
    }
    assert_eq!(heads.verdict[0], Verdict::NONE);
    if m.off.is_plain() {
        let kept = layers.headers().min(private.len());
        assert_eq!(private[..kept], frame[..kept]);
        return;
    }
    let (start, field) = (
        usize::from(m.off.start),
        usize::from(m.off.start + m.off.offset),
    );
    assert!(m.off.needs_csum() && layers.l4 != 0);
    assert_eq!(
        (start, field - start),
        (layers.l4_at(), if layers.is_tcp() { 16 } else { 6 })
    );
    assert!(field + 2 <= layers.headers() && layers.headers() <= private.len());
    assert_eq!((m.l2, m.l3, m.l4), (layers.l2, layers.l3, layers.l4));
    assert_eq!(private[..field], frame[..field]);
    assert_eq!(private[field + 2..], frame[field + 2..private.len()]);
    assert_eq!(m.off.gso != Gso::None, m.off.gso_size >= 64);
}

/// Frames of every kind that the checks tell apart.
fn specimens() -> Vec<Vec<u8>> {
    vec![
        tcp(&V4, None, 0x10, &[], 3000),
        tcp(&V6, None, 0x98, &[1; 12], 300),
        tcp(&V4, Some(7), 0x10, &[], 10),
        udp(&V4, &[1; 900]),
        udp(&V6, &[1; 3000]),
        extended(43, [0; 7], 500),
        extended(44, [0; 7], 500),
    ]
}

/// Each of the twelve bytes of the virtio header through all its values, from a claim that holds:
/// no panic, and what comes of it holds.
#[test]
fn every_header_byte() {
    let seeds = [
        gso(Claim::GSO_TCPV4, 1000, 34, 16),
        gso(Claim::GSO_TCPV6, 100, 54, 16),
        csum(34, 6),
        valid_gso(Claim::GSO_UDP_L4, 500),
    ];
    for frame in specimens() {
        for seed in seeds {
            let mut header = [0u8; Claim::BYTES];
            (header[0], header[1]) = (seed.flags, seed.gso_type);
            header[4..6].copy_from_slice(&seed.gso_size.to_le_bytes());
            header[6..8].copy_from_slice(&seed.csum_start.to_le_bytes());
            header[8..10].copy_from_slice(&seed.csum_offset.to_le_bytes());
            assert_eq!(Claim::decode(&header), seed);
            for at in 0..Claim::BYTES {
                for value in [
                    0, 1, 2, 3, 4, 5, 16, 17, 34, 54, 63, 64, 0x7f, 0x80, 0x84, 0xff,
                ] {
                    let mut header = header;
                    header[at] = value;
                    check_any(&frame, Claim::decode(&header));
                }
            }
        }
    }
}

/// Claims of a frame that ends anywhere before its headers do, or right behind them.
#[test]
fn truncated_frames() {
    for (frame, l4, offset, kind) in [
        (
            tcp(&V4, None, 0x10, &[1; 20], 300),
            34,
            16,
            Claim::GSO_TCPV4,
        ),
        (tcp(&V6, None, 0x10, &[], 300), 54, 16, Claim::GSO_TCPV6),
        (udp(&V4, &[1; 300]), 34, 6, Claim::GSO_UDP_L4),
    ] {
        for len in 0..frame.len() {
            for claim in [
                csum(l4, offset),
                gso(kind, 100, l4, offset),
                valid_gso(kind, 100),
            ] {
                assert_eq!(outcome(&frame[..len], claim), BAD, "{len}");
                check_any(&frame[..len], claim);
            }
        }
    }
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let kind = prop_oneof![
        Just(0u8),
        Just(1),
        Just(3),
        Just(4),
        Just(5),
        Just(0x81),
        any::<u8>()
    ];
    let start = prop_oneof![Just(34u16), Just(54), Just(38), 0..200u16, any::<u16>()];
    let offset = prop_oneof![Just(16u16), Just(6), 0..60u16, any::<u16>()];
    let size = prop_oneof![Just(0u16), 60..70u16, any::<u16>()];
    (any::<u8>(), kind, size, start, offset).prop_map(
        |(flags, gso_type, gso_size, csum_start, csum_offset)| Claim {
            flags,
            gso_type,
            gso_size,
            csum_start,
            csum_offset,
        },
    )
}

proptest! {
    /// The invariant for random claims of frames with a few random bytes in their headers, cut
    /// anywhere.
    #[test]
    fn any_claim_of_any_frame(
        which in 0..7usize,
        claim in any_claim(),
        edits in prop::collection::vec((0..80usize, any::<u8>()), 0..3),
        cut in prop_oneof![3 => Just(usize::MAX), 1 => 0..200usize],
    ) {
        let mut frame = specimens().swap_remove(which);
        for (at, byte) in edits {
            if let Some(b) = frame.get_mut(at) {
                *b = byte;
            }
        }
        frame.truncate(cut);
        check_any(&frame, claim);
    }
}
