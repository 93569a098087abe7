use super::*;
use crate::build::{self, Ends, Link, Tcp};
use crate::{MacAddr, parse};
use core::net::Ipv4Addr;
use std::vec::Vec;

const ENDS: Ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
const LINK: Link = Link {
    dst: MacAddr([2, 0, 0, 0, 0, 2]),
    src: MacAddr([2, 0, 0, 0, 0, 1]),
    tag: None,
};

fn frame(flags: u8, payload: usize) -> Vec<u8> {
    let mut out = std::vec![0; payload + 100];
    let header = Tcp {
        seq: u32::MAX - 10,
        flags,
        ..Tcp::default()
    };
    let payload = std::vec![0xa5; payload];
    let len = build::tcp_frame(&mut out, &LINK, &ENDS, &header, &payload).unwrap();
    out.truncate(len);
    // Identification at the end of its range.
    out[18] = 0xff;
    out[19] = 0xff;
    out
}

fn plan(frame: &[u8], kind: Gso, size: u16) -> Result<Plan<'_>, SegmentError> {
    Plan::new(frame, &parse(frame, frame.len() as u32), kind, size)
}

/// Flags, sequence and identification of three segments, across the wrap of both counters.
#[test]
fn three_segments() {
    let frame = frame(0x80 | 0x10 | 0x08 | 0x01, 250);
    let plan = plan(&frame, Gso::Tcp4, 100).unwrap();
    assert_eq!(
        (plan.count(), plan.payload(), plan.frame_max()),
        (3, 250, 154)
    );
    let mut got = Vec::new();
    for k in 0..3 {
        let mut out = [0; 54];
        let part = plan.header(k, &mut out).unwrap();
        let id = u16::from_be_bytes([out[18], out[19]]);
        let total = u16::from_be_bytes([out[16], out[17]]);
        let seq = u32::from_be_bytes([out[38], out[39], out[40], out[41]]);
        assert_eq!(checksum::checksum(&out[14..34]), 0);
        got.push((part.from, part.len, total, id, seq, out[47]));
    }
    let want = [
        (0, 100, 140, 0xffff, u32::MAX - 10, 0x90),
        (100, 100, 140, 0, 89, 0x10),
        (200, 50, 90, 1, 189, 0x19),
    ];
    assert_eq!(got, want);
}

/// What fits in one segment, also nothing at all, is one segment and keeps its flags.
#[test]
fn one_segment() {
    for payload in [0usize, 1, 64] {
        let frame = frame(0x99, payload);
        let plan = plan(&frame, Gso::Tcp4, 64).unwrap();
        assert_eq!(plan.count(), 1);
        let mut out = [0; 54];
        let part = plan.header(0, &mut out).unwrap();
        assert_eq!((usize::from(part.len), out[47]), (payload, 0x99));
        let mut sum = part.seed;
        sum.add_bytes(&frame[54..]);
        assert!(part.seal(&mut out, sum));
        assert_eq!(out[..], frame[..54]);
        assert_eq!(plan.header(1, &mut out), None);
    }
}

/// Each kind of unfit frame is refused by name, and a short buffer by `None`.
#[test]
fn refusals() {
    let good = frame(0x10, 200);
    let fails = |frame: &[u8], kind, size| plan(frame, kind, size).map(|p| p.count()).unwrap_err();
    assert_eq!(fails(&good, Gso::Tcp4, 63), SegmentError::SizeTooSmall(63));
    assert_eq!(
        fails(&good, Gso::Tcp6, 100),
        SegmentError::Mismatch(Gso::Tcp6)
    );
    assert_eq!(
        fails(&good, Gso::UdpL4, 100),
        SegmentError::Mismatch(Gso::UdpL4)
    );
    let layers = parse(&good, good.len() as u32);
    let short = Plan::new(&good[..53], &layers, Gso::Tcp4, 100).map(|p| p.count());
    assert_eq!(short, Err(SegmentError::Headers(54)));
    let mut fragment = good.clone();
    fragment[20] = 0x20;
    assert_eq!(fails(&fragment, Gso::Tcp4, 100), SegmentError::NotWhole);
    let mut fault = good.clone();
    fault[46] = 0x40;
    assert_eq!(fails(&fault, Gso::Tcp4, 100), SegmentError::NotWhole);
    let partial = parse(&good[..50], good.len() as u32);
    let needs = Plan::new(&good, &partial, Gso::Tcp4, 100).map(|p| p.count());
    assert_eq!(needs, Err(SegmentError::NotWhole));

    let plan = plan(&good, Gso::Tcp4, 100).unwrap();
    assert_eq!(plan.header(0, &mut [0; 53]), None);
    let part = plan.header(0, &mut [0; 54]).unwrap();
    assert!(!part.seal(&mut [0; 51], part.seed));
}
