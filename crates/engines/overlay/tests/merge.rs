//! What is merged is what was cut, to the byte.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use windlass_overlay::merge::{Train, half_done};
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::checksum::checksum;
use windlass_wire::segment::{Gso, Plan};
use windlass_wire::{MacAddr, parse};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// A large segment.
fn large(is_v4: bool, payload: &[u8], options: &[u8], flags: u8) -> Vec<u8> {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let ends = match is_v4 {
        true => Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
        false => Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
    };
    let tcp = Tcp {
        src: 1,
        dst: 2,
        seq: u32::MAX - 2000,
        ack: 5,
        flags,
        window: 9,
        options,
    };
    let mut bytes = vec![0; payload.len() + 200];
    let len = build::tcp_frame(&mut bytes, &link, &ends, &tcp, payload).expect("room");
    bytes.truncate(len);
    bytes
}

/// Its segments, as software cuts it.
fn cut(frame: &[u8], is_v4: bool, size: u16) -> Vec<Vec<u8>> {
    let kind = if is_v4 { Gso::Tcp4 } else { Gso::Tcp6 };
    let layers = parse(frame, frame.len() as u32);
    let plan = Plan::new(frame, &layers, kind, size).expect("a plan");
    let payload = &frame[plan.headers()..];
    let segment = |k| {
        let mut out = vec![0; 256];
        let part = plan.header(k, &mut out).expect("headers");
        let from = part.from as usize;
        let bytes = &payload[from..from + usize::from(part.len)];
        let mut sum = part.seed;
        sum.add_bytes(bytes);
        assert!(part.seal(&mut out, sum));
        out.truncate(part.headers);
        out.extend_from_slice(bytes);
        out
    };
    (0..plan.count()).map(segment).collect()
}

/// The frames that become of segments, each with the size of its segments if it is a large one, and how many it was made of.
fn merge(segments: &[Vec<u8>]) -> Vec<(Vec<u8>, Option<u16>, usize)> {
    let mut merged = Vec::new();
    let mut train: Option<(Train<'_>, Vec<u8>)> = None;
    let end = |train: Option<(Train<'_>, Vec<u8>)>, merged: &mut Vec<_>| {
        if let Some((train, mut frame)) = train {
            let size = train.seal(&mut frame).map(|large| {
                assert_eq!(large.len as usize, frame.len());
                large.size
            });
            merged.push((frame, size, train.count()));
        }
    };
    for segment in segments {
        let layers = parse(segment, segment.len() as u32);
        let is_half = half_done(segment, &layers).is_some();
        if let Some((train, frame)) = &mut train
            && let Some(at) = train.join(segment, &layers, is_half)
        {
            frame.extend_from_slice(&segment[at..]);
            continue;
        }
        end(train.take(), &mut merged);
        match Train::begin(segment, &layers, is_half) {
            Some(begun) => train = Some((begun, segment.clone())),
            None => merged.push((segment.clone(), None, 1)),
        }
    }
    end(train.take(), &mut merged);
    merged
}

proptest! {
    /// The segments of a stream become one frame, and its segments are those, whatever is changed in one of them: what was
    /// changed is not merged, or comes out as it was.
    #[test]
    fn merging_and_cutting_is_identity(
        is_v4: bool,
        payload in vec(any::<u8>(), 1..9000),
        size in 64..1500u16,
        options in prop_oneof![Just(vec![]), Just(vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])],
        pushes: bool,
        change in proptest::option::of((any::<usize>(), any::<usize>(), 1..=255u8)),
        swap in proptest::option::of(any::<usize>()),
    ) {
        let flags = ACK | if pushes { PSH } else { 0 };
        let frame = large(is_v4, &payload, &options, flags);
        let mut segments = cut(&frame, is_v4, size);
        let whole = segments.len();
        let is_changed = change.is_some() || swap.is_some();
        if let Some((which, at, by)) = change {
            let segment = &mut segments[which % whole];
            let at = at % segment.len();
            segment[at] ^= by;
        }
        if let Some(at) = swap {
            segments.swap(at % whole, (at + 1) % whole);
        }
        let merged = merge(&segments);
        if !is_changed {
            prop_assert_eq!(merged.len(), 1);
        }
        let mut again = Vec::new();
        for (frame, size, count) in merged {
            let Some(size) = size else {
                again.push(frame);
                continue;
            };
            prop_assert!(!is_v4 || checksum(&frame[14..34]) == 0);
            let segments = cut(&frame, is_v4, size);
            prop_assert_eq!(segments.len(), count);
            again.extend(segments);
        }
        prop_assert_eq!(again, segments);
    }
}

/// A packet is at most 65,535 bytes long, and a stream longer than that becomes several frames.
#[test]
fn packets_are_not_too_long() {
    let payload = vec![7; 50_000];
    let first = large(true, &payload, &[], ACK);
    let mut segments = cut(&first, true, 1400);
    let last = segments.last().expect("a segment").clone();
    // The rest of the stream: made longer by hand.
    let mut seq = u32::MAX - 2000;
    let full = segments[0].clone();
    segments.clear();
    for id in 0..60u16 {
        let mut next = full.clone();
        next[18..20].copy_from_slice(&id.to_be_bytes());
        next[24..26].fill(0);
        let sum = checksum(&next[14..34]);
        next[24..26].copy_from_slice(&sum.to_be_bytes());
        next[38..42].copy_from_slice(&seq.to_be_bytes());
        next[50..52].fill(0);
        let mut sum = windlass_wire::checksum::pseudo_v4(&[10, 0, 0, 1], &[10, 0, 0, 2], 6, 1420);
        sum.add_bytes(&next[34..]);
        next[50..52].copy_from_slice(&sum.finish().to_be_bytes());
        seq = seq.wrapping_add(1400);
        segments.push(next);
    }
    assert!(last.len() < full.len());
    let counts: Vec<_> = merge(&segments).iter().map(|(.., count)| *count).collect();
    assert_eq!(counts, [46, 14]);
}

/// A segment whose sum is wrong begins nothing and joins nothing; one that is half done does both.
#[test]
fn checksums_are_verified() {
    let frame = large(true, &[3; 3000], &[], ACK);
    let good = cut(&frame, true, 1000);
    let mut bad = good.clone();
    bad[1][50] ^= 1;
    let counts = |segments: &[Vec<u8>]| -> Vec<usize> {
        merge(segments).iter().map(|(.., count)| *count).collect()
    };
    assert_eq!(counts(&bad), [1, 1, 1]);
    let mut half = good.clone();
    let pseudo = windlass_wire::checksum::pseudo_v4(&[10, 0, 0, 1], &[10, 0, 0, 2], 6, 1020);
    half[1][50..52].copy_from_slice(&pseudo.partial().to_be_bytes());
    let layers = parse(&half[1], half[1].len() as u32);
    assert_eq!(half_done(&half[1], &layers), Some((34, 16)));
    assert_eq!(counts(&half), [3]);
    let (merged, size, _) = merge(&half).remove(0);
    assert_eq!(cut(&merged, true, size.expect("large")), good);
}
