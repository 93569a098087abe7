//! Numbers of flows: which frames have one, which have different ones.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use windlass_frame::{Claim, HEADROOM, Heads, RxId, SNAP, Tick};
use windlass_nic::FlowHash;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link};

const FLOWS: usize = 64;

fn number(frame: &[u8]) -> u32 {
    let mut heads = Heads::boxed();
    heads.clear(RxId(0), Tick(0));
    heads.n = 1;
    let n = frame.len().min(SNAP);
    heads.snap[0].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
    heads.admit(0, frame.len() as u32, Claim::NONE);
    FlowHash::new([0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9]).of(&heads, 0)
}

fn v4(last: u8) -> Ends {
    Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, last))
}

fn v6(last: u16) -> Ends {
    let ip = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    Ends::V6(ip(1), ip(last))
}

/// A frame with one datagram, from a port.
fn datagram(ends: &Ends, ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let mut frame = vec![0; 600];
    let [from, to] = ports;
    let len = build::udp_frame(&mut frame, &link, ends, (from, to), payload).expect("room");
    frame.truncate(len);
    frame
}

/// A packet of another protocol between the outer addresses.
fn packet(ends: &Ends, proto: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = datagram(ends, [1, 2], payload);
    frame.truncate(14);
    let mut ip = vec![0; 40];
    let n = ends.write(&mut ip, proto, payload.len()).expect("room");
    frame.extend(&ip[..n]);
    frame.extend(payload);
    frame
}

/// What is in a tunnel of each kind, in each family: an inner frame, or its packet.
fn tunnels(inner: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let (ip, kind) = (&inner[14..], [inner[12], inner[13]]);
    let proto = if kind == [8, 0] { 4 } else { 41 };
    let mut all = Vec::new();
    for ends in [v4(9), v6(9)] {
        let udp =
            |port, head: &[u8], inner: &[u8]| datagram(&ends, [777, port], &[head, inner].concat());
        let gre = |head: &[u8], inner: &[u8]| packet(&ends, 47, &[head, inner].concat());
        all.extend([
            ("vxlan", udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], inner)),
            ("geneve", udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0], inner)),
            (
                "geneve with an option",
                udp(6081, &[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4], inner),
            ),
            (
                "geneve of ip",
                udp(6081, &[0, 0, kind[0], kind[1], 0, 0, 7, 0], ip),
            ),
            ("gre", gre(&[0, 0, kind[0], kind[1]], ip)),
            (
                "gre with a key",
                gre(&[0x20, 0, kind[0], kind[1], 0, 0, 0, 7], ip),
            ),
            ("gre of frames", gre(&[0, 0, 0x65, 0x58], inner)),
            ("ip in ip", packet(&ends, proto, ip)),
        ]);
    }
    all
}

/// Flows in a tunnel have numbers of their own, over either family in either; all frames of one have one number, whatever else changes.
#[test]
fn flows_in_tunnels_are_told_apart() {
    let kinds = tunnels(&datagram(&v4(2), [1, 53], &[])).len();
    for ends in [v4(2), v6(2)] {
        for kind in 0..kinds {
            let of = |port: usize, payload: &[u8]| {
                let (name, frame) =
                    tunnels(&datagram(&ends, [port as u16, 53], payload)).swap_remove(kind);
                (name, number(&frame))
            };
            let numbers: BTreeSet<u32> = (0..FLOWS).map(|port| of(port, b"one").1).collect();
            // In Geneve with an option, IPv6 in IPv6 has its ports beyond the private bytes.
            let (name, first) = of(7, b"one");
            let wanted = if name == "geneve with an option"
                && matches!(ends, Ends::V6(..))
                && kind >= kinds / 2
            {
                1
            } else {
                FLOWS
            };
            assert_eq!(numbers.len(), wanted, "{name} {kind}");
            assert_eq!(first, of(7, b"another").1, "{name}");
        }
    }
}

/// Parts of an inner packet are together; what is not the tunnel that its port or protocol says goes by the outer header alone.
#[test]
fn what_is_no_tunnel_goes_by_the_outer_header() {
    let inner = |port: u16, offset: u8| {
        let mut frame = datagram(&v4(2), [port, 53], &[1; 16]);
        frame[14 + 6] = offset;
        frame
    };
    let first = tunnels(&inner(1, 0x20));
    let later = tunnels(&inner(0x1234, 0x05));
    for ((name, first), (_, later)) in first.iter().zip(&later) {
        assert_eq!(number(first), number(later), "{name}");
    }
    let vxlan = |head: u8, inner: u8| {
        datagram(
            &v4(9),
            [777, 4789],
            &[&[head, 0, 0, 0, 0, 0, 7, 0][..], &[inner; 60]].concat(),
        )
    };
    assert_eq!(number(&vxlan(0, 1)), number(&vxlan(0, 2)), "no VXLAN");
    assert_ne!(number(&vxlan(8, 1)), number(&vxlan(8, 2)));
    let pptp = |inner: u8| {
        packet(
            &v4(9),
            47,
            &[&[0x20, 1, 0x88, 0x0b][..], &[inner; 60]].concat(),
        )
    };
    assert_eq!(number(&pptp(1)), number(&pptp(2)), "another version");
}

proptest! {
    /// Whatever a frame is, it has one number, also cut short.
    #[test]
    fn any_frame_has_a_number(
        kind in 0usize..16,
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        at in 14usize..120,
        cut in 1usize..200,
    ) {
        let mut frame = tunnels(&datagram(&v4(2), [1, 53], &[0; 40])).swap_remove(kind).1;
        for (to, from) in frame.iter_mut().skip(at).zip(&bytes) {
            *to = *from;
        }
        frame.truncate(cut.max(14));
        prop_assert_eq!(number(&frame), number(&frame.clone()));
    }
}
