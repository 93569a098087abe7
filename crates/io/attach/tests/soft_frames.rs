//! The software stage against smoltcp's reading of what it makes.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use windlass_attach::port::TxCaps;
use windlass_attach::soft::{self, SEGMENTS_MAX};
use windlass_frame::{
    Claim, Deepen, FRAME_MAX, Gso, HEADROOM, Heads, Offload, Pick, RxId, SNAP, Tick,
};
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_stats::Drop;
use windlass_sync::qsbr::Domain;
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::{MacAddr, parse};

const V4: Ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
const V6: Ends = Ends::V6(
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
);
const LINK: Link = Link {
    dst: MacAddr([2, 0, 0, 0, 0, 2]),
    src: MacAddr([2, 0, 0, 0, 0, 1]),
    tag: None,
};
/// Priority 3, as the sender's tag had it, and the VLAN on the bridge.
const TCI: [u8; 2] = [0x60, 0x2a];
const SEQ: u32 = u32::MAX - 5000;

/// Bytes that repeat nowhere near.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .collect()
}

fn tcp(ends: &Ends, flags: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; payload.len() + 200];
    let header = Tcp {
        src: 1,
        dst: 2,
        seq: SEQ,
        flags,
        options,
        ..Tcp::default()
    };
    let len = build::tcp_frame(&mut out, &LINK, ends, &header, payload).unwrap();
    out.truncate(len);
    out
}

fn udp(ends: &Ends, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; payload.len() + 200];
    let len = build::udp_frame(&mut out, &LINK, ends, (1, 2), payload).unwrap();
    out.truncate(len);
    out
}

/// Runs `with` on a burst of this frame, cut behind the snapshot into pieces of these sizes, over and
/// over. All headers are private, as they are behind `windlass_nic::leave`.
fn burst<T>(
    frame: &[u8],
    pieces: &[usize],
    off: Offload,
    with: impl FnOnce(&Heads, &Tails<'_>) -> T,
) -> T {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    heads.clear(RxId(0), Tick(0));
    let mut tails = Tails::bind(&mut store, &section);
    let n = frame.len().min(SNAP);
    heads.snap[0].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
    heads.admit(0, frame.len() as u32, Claim::NONE);
    heads.n = 1;
    let mut rest = &frame[n..];
    for piece in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let n = if tails.room() == 1 {
            rest.len()
        } else {
            rest.len().min(*piece)
        };
        assert!(tails.push(0, Foreign::private(&rest[..n])));
        rest = &rest[n..];
    }
    loop {
        let need = usize::from(parse(heads.private(0), frame.len() as u32).need);
        if need == 0 {
            break;
        }
        assert!(tails.deepen(&mut heads, 0, need));
    }
    heads.meta[0].off = off;
    heads.meta[0].vid = 0x2a;
    heads.meta[0].tci = 0x6001;
    with(&heads, &tails)
}

/// What comes out for a receiver that takes nothing; as many as were announced.
fn finished(frame: &[u8], pieces: &[usize], off: Offload, tagged: bool) -> Vec<Vec<u8>> {
    burst(frame, pieces, off, |heads, tails| {
        let pick = Pick::frame(0, tagged);
        let mut out = Vec::new();
        let made = soft::finish(heads, tails, pick, TxCaps::default(), |f| {
            out.push(f.to_vec());
            true
        });
        assert_eq!(made, Ok(out.len() as u64));
        assert_eq!(soft::frames(heads, pick, TxCaps::default()), out.len());
        out
    })
}

/// Takes the tag out, if one is expected, and checks what it says.
fn untagged(mut frame: Vec<u8>, tagged: bool) -> Vec<u8> {
    if tagged {
        assert_eq!(frame[12..14], [0x81, 0x00]);
        assert_eq!(frame[14..16], TCI);
        frame.drain(12..16);
    }
    assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame
}

/// The transport part of a frame, its lengths and the network header's checksum found good by
/// smoltcp; with the IPv4 identification.
fn transport(frame: &[u8]) -> (IpAddress, IpAddress, Vec<u8>, u16) {
    let packet = &frame[14..];
    if frame[12..14] == [8, 0] {
        let ip = Ipv4Packet::new_checked(packet).unwrap();
        assert!(ip.verify_checksum());
        assert_eq!(usize::from(ip.total_len()), packet.len());
        let id = ip.ident();
        (
            ip.src_addr().into(),
            ip.dst_addr().into(),
            ip.payload().to_vec(),
            id,
        )
    } else {
        let ip = Ipv6Packet::new_checked(packet).unwrap();
        assert_eq!(ip.total_len(), packet.len());
        (
            ip.src_addr().into(),
            ip.dst_addr().into(),
            ip.payload().to_vec(),
            0,
        )
    }
}

/// The segments of a TCP frame, checked one by one, put together again.
fn reassembled_tcp(out: &[Vec<u8>], original: &[u8], tagged: bool, size: usize) -> Vec<u8> {
    let (.., whole, first_id) = transport(original);
    let whole = TcpPacket::new_checked(&whole[..]).unwrap();
    let mut payload = Vec::new();
    for (k, frame) in out.iter().enumerate() {
        let (src, dst, segment, id) = transport(&untagged(frame.clone(), tagged));
        let tcp = TcpPacket::new_checked(&segment[..]).unwrap();
        assert!(tcp.verify_checksum(&src, &dst), "segment {k}");
        let (first, last) = (k == 0, k + 1 == out.len());
        let seq = SEQ.wrapping_add(payload.len() as u32);
        assert_eq!(tcp.seq_number().0 as u32, seq);
        assert_eq!(tcp.fin(), whole.fin() && last);
        assert_eq!(tcp.psh(), whole.psh() && last);
        assert_eq!(tcp.cwr(), whole.cwr() && first);
        assert_eq!(tcp.ack(), whole.ack());
        assert_eq!(tcp.options(), whole.options());
        if first_id != 0 {
            assert_eq!(id, first_id.wrapping_add(k as u16));
        }
        assert!(if last {
            tcp.payload().len() <= size
        } else {
            tcp.payload().len() == size
        });
        payload.extend(tcp.payload());
    }
    payload
}

fn reassembled_udp(out: &[Vec<u8>], tagged: bool, size: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    for (k, frame) in out.iter().enumerate() {
        let (src, dst, datagram, _) = transport(&untagged(frame.clone(), tagged));
        let udp = UdpPacket::new_checked(&datagram[..]).unwrap();
        assert!(
            udp.checksum() != 0 && udp.verify_checksum(&src, &dst),
            "datagram {k}"
        );
        assert_eq!(usize::from(udp.len()), datagram.len());
        let last = k + 1 == out.len();
        assert!(if last {
            udp.payload().len() <= size
        } else {
            udp.payload().len() == size
        });
        payload.extend(udp.payload());
    }
    payload
}

/// One frame of each kind, cut and put together again.
fn cut_and_compare(
    kind: Gso,
    payload: &[u8],
    options: &[u8],
    size: u16,
    pieces: &[usize],
    tagged: bool,
) {
    let flags = 0x99;
    let (frame, start, offset) = match kind {
        Gso::Tcp4 => (tcp(&V4, flags, options, payload), 34, 16),
        Gso::Tcp6 => (tcp(&V6, flags, options, payload), 54, 16),
        _ if options.is_empty() => (udp(&V4, payload), 34, 6),
        _ => (udp(&V6, payload), 54, 6),
    };
    let off = Offload::needing_csum(start, offset).with_gso(kind, size, true);
    let out = finished(&frame, pieces, off, tagged);
    assert_eq!(out.len(), payload.len().div_ceil(size.into()).max(1));
    let again = match kind {
        Gso::UdpL4 => reassembled_udp(&out, tagged, size.into()),
        _ => reassembled_tcp(&out, &frame, tagged, size.into()),
    };
    assert!(again == payload, "payload differs");
}

/// The largest frames of each kind, with the segment sizes that matter, split evenly and oddly.
#[test]
fn largest_frames() {
    for kind in [Gso::Tcp4, Gso::Tcp6, Gso::UdpL4] {
        let payload = noise(65_535 - 60, 7);
        for (size, pieces) in [
            (1448, &[65_536][..]),
            (1448, &[1, 2047, 333]),
            (64, &[4096]),
            (8961, &[127, 4097]),
            (65_535, &[4096]),
        ] {
            for tagged in [false, true] {
                cut_and_compare(kind, &payload, &[], size, pieces, tagged);
            }
        }
    }
}

/// 64 KiB in the smallest segments are as many as are allowed, and not one more.
#[test]
fn most_segments() {
    let frame = tcp(&V4, 0x10, &[], &noise(65_495, 3));
    let off = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 64, false);
    assert_eq!(
        finished(&frame, &[4096], off, false).len(),
        SEGMENTS_MAX as usize
    );
}

/// Headers that do not fit the snapshot: options of both layers.
#[test]
fn long_headers() {
    let plain = tcp(&V6, 0x10, &[1; 40], &noise(3001, 5));
    let mut frame = plain[..54].to_vec();
    frame[20] = 60;
    frame[18..20].copy_from_slice(&(3061u16 + 64).to_be_bytes());
    for k in 0..8 {
        frame.extend([if k == 7 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend(&plain[54..]);
    let off = Offload::needing_csum(118, 16).with_gso(Gso::Tcp6, 1000, false);
    let out = finished(&frame, &[50], off, true);
    let mut payload: Vec<u8> = Vec::new();
    for part in &out {
        let mut part = untagged(part.clone(), true);
        assert_eq!(part[54..118], frame[54..118]);
        part.drain(54..118);
        let len = u16::from_be_bytes([part[18], part[19]]) - 64;
        part[18..20].copy_from_slice(&len.to_be_bytes());
        part[20] = 6;
        let (src, dst, segment, _) = transport(&part);
        let tcp = TcpPacket::new_checked(&segment[..]).unwrap();
        assert!(tcp.verify_checksum(&src, &dst));
        payload.extend(tcp.payload());
    }
    assert_eq!(out.len(), 4);
    assert!(payload == plain[114..]);
}

/// A checksum alone: the frame comes out as its sender would have made it, byte for byte, its
/// padding not summed and its length unchanged, however short.
#[test]
fn checksum_alone() {
    for len in [0usize, 1, 2, 5, 60, 127, 1401, 8960, 65_000] {
        let payload = noise(len, 11);
        for (mut want, ends, start, offset) in [
            (tcp(&V4, 0x18, &[], &payload), V4, 34usize, 16usize),
            (tcp(&V6, 0x18, &[1; 12], &payload), V6, 54, 16),
            (udp(&V4, &payload), V4, 34, 6),
            (udp(&V6, &payload), V6, 54, 6),
        ] {
            let proto = if offset == 16 { 6 } else { 17 };
            let mut sent = want.clone();
            let seed = ends.pseudo(proto, (want.len() - start) as u16).partial();
            sent[start + offset..start + offset + 2].copy_from_slice(&seed.to_be_bytes());
            if len < 6 {
                want.extend([0xff; 3]);
                sent.extend([0xff; 3]);
            }
            let off = Offload::needing_csum(start as u16, offset as u16);
            for tagged in [false, true] {
                let out = finished(&sent, &[97, 1], off, tagged);
                assert_eq!(out.len(), 1);
                assert!(
                    untagged(out[0].clone(), tagged) == want,
                    "{len} {start} {offset}"
                );
            }
        }
    }
}

/// A frame with nothing to be done, and one that the receiver takes as it is, come out unchanged but
/// for the tag; a receiver that takes only the checksum gets segments that need none.
#[test]
fn what_the_receiver_takes() {
    let frame = tcp(&V4, 0x10, &[], &noise(4000, 1));
    for tagged in [false, true] {
        let out = finished(&frame, &[999], Offload::NONE, tagged);
        assert_eq!(untagged(out[0].clone(), tagged), frame);
    }
    let off = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1000, false);
    let all = TxCaps {
        csum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
    };
    for (caps, want) in [(all, 1), (TxCaps { tso4: false, ..all }, 4)] {
        burst(&frame, &[999], off, |heads, tails| {
            let pick = Pick::frame(0, false);
            let mut out = Vec::new();
            let emit = |f: &[u8]| {
                out.push(f.to_vec());
                true
            };
            assert_eq!(soft::finish(heads, tails, pick, caps, emit), Ok(want));
            assert_eq!(soft::frames(heads, pick, caps), want as usize);
            match want {
                1 => assert_eq!(out[0], frame),
                _ => assert_eq!(reassembled_tcp(&out, &frame, false, 1000), frame[54..]),
            }
        });
    }
}

/// `emit` stops it, and the frame that it was stopped at is not counted; a call from within `emit`
/// has a buffer of its own.
#[test]
fn stopped_and_nested() {
    let frame = tcp(&V4, 0x10, &[], &noise(4000, 1));
    let off = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1000, false);
    burst(&frame, &[999], off, |heads, tails| {
        let pick = Pick::frame(0, false);
        for stop in 0..4 {
            let mut left = stop;
            let made = soft::finish(heads, tails, pick, TxCaps::default(), |outer| {
                let before = outer.to_vec();
                let inner = soft::finish(heads, tails, pick, TxCaps::default(), |_| true);
                assert_eq!(inner, Ok(4));
                assert_eq!(outer, before);
                left -= 1;
                left >= 0
            });
            assert_eq!(made, Ok(stop as u64));
        }
    });
}

/// Offloads that do not fit their frame, and frames beyond the limit, are refused before anything is
/// emitted, and announced as none.
#[test]
fn refusals() {
    let frame = tcp(&V4, 0x10, &[], &noise(4000, 1));
    let mut giant = frame.clone();
    giant.resize(FRAME_MAX + 1, 0);
    let small = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 63, false);
    let other = Offload::needing_csum(34, 16).with_gso(Gso::Tcp6, 1000, false);
    for (frame, off, why) in [
        (&frame, small, Drop::SegmentLimit),
        (&frame, other, Drop::SegmentLimit),
        (&giant, Offload::NONE, Drop::TooBig),
    ] {
        burst(frame, &[65_536], off, |heads, tails| {
            let pick = Pick::frame(0, true);
            let emit = |_: &[u8]| -> bool { panic!("emitted") };
            assert_eq!(
                soft::finish(heads, tails, pick, TxCaps::default(), emit),
                Err(why)
            );
            assert_eq!(soft::frames(heads, pick, TxCaps::default()), 0);
        });
    }
}

/// Bytes that the sender's memory turns out not to have are sent as zeros, never as what the buffer
/// held before.
#[test]
fn missing_bytes_are_zeros() {
    let full = tcp(&V4, 0x10, &[], &noise(4000, 1));
    let off = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1000, false);
    finished(&full, &[999], off, false);
    burst(&full[..1000], &[999], off, |heads, tails| {
        let mut short = Heads::boxed();
        short.snap[0] = heads.snap[0];
        short.admit(0, full.len() as u32, Claim::NONE);
        short.meta[0].off = off;
        let mut out = Vec::new();
        let made = soft::finish(
            &short,
            tails,
            Pick::frame(0, false),
            TxCaps::default(),
            |f| {
                out.push(f.to_vec());
                true
            },
        );
        assert_eq!(made, Ok(4));
        let got = reassembled_tcp(&out, &full, false, 1000);
        assert_eq!(got[..946], full[54..1000]);
        assert!(got[946..].iter().all(|b| *b == 0));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Any payload in any segments over any pieces is cut into frames that smoltcp finds good and
    /// that make the payload again.
    #[test]
    fn any_segment(
        kind in prop_oneof![Just(Gso::Tcp4), Just(Gso::Tcp6), Just(Gso::UdpL4)],
        len in prop_oneof![0..300usize, 0..65_475usize],
        seed in any::<u64>(),
        options in 0..=10usize,
        size in prop_oneof![64..200u16, 64..9000u16, 64..=u16::MAX],
        pieces in prop::collection::vec(1..5000usize, 1..6),
        tagged in any::<bool>(),
    ) {
        let len = len.min(65_475 - 4 * options);
        cut_and_compare(kind, &noise(len, seed), &vec![1; 4 * options], size, &pieces, tagged);
    }
}
