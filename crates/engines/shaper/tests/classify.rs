//! Which flow a frame belongs to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use windlass_rules::FlowMatch;
use windlass_shaper::{Classifier, Direction};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link};

/// A frame from one address and port to another.
fn frame(from: (&str, u16), to: (&str, u16)) -> Vec<u8> {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let [a, b]: [IpAddr; 2] = [from.0, to.0].map(|text| text.parse().expect("an address"));
    let ends = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Ends::V4(a, b),
        (IpAddr::V6(a), IpAddr::V6(b)) => Ends::V6(a, b),
        _ => panic!("two families"),
    };
    let mut out = vec![0; 256];
    let len = build::udp_frame(&mut out, &link, &ends, (from.1, to.1), &[1; 18]).expect("room");
    out.truncate(len.max(60));
    out
}

fn find(flows: &[&str], direction: Direction, frame: &[u8]) -> Option<usize> {
    let flows: Vec<FlowMatch> = flows.iter().map(|text| text.parse().expect(text)).collect();
    let classifier = Classifier::new(direction, &flows).expect("flows");
    let found = classifier.find(frame, frame.len() as u32);
    // The same behind a tag, and behind two.
    for tags in [&[0x81, 0, 0, 7][..], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]] {
        let mut tagged = frame.to_vec();
        tagged.splice(12..12, tags.iter().copied());
        let again = classifier.find(&tagged, tagged.len() as u32);
        assert_eq!(again, found, "behind {} bytes of tags", tags.len());
    }
    found
}

/// Each combination, from both sides: local is the source of what goes out, and the destination of what comes in.
#[test]
fn sides_follow_the_direction() {
    use Direction::{In, Out};
    for (from, to) in [("10.0.0.1", "192.0.2.9"), ("fd00::1", "2001:db8::9")] {
        let frame = frame((from, 1000), (to, 53));
        let [near, far] = [format!("local_ip={from}"), format!("remote_ip={from}")];
        assert_eq!(find(&[&near], Out, &frame), Some(0));
        assert_eq!(find(&[&near], In, &frame), None);
        assert_eq!(find(&[&far], In, &frame), Some(0));
        assert_eq!(find(&[&far], Out, &frame), None);
        let ports = [
            "transport=udp,local_port=53",
            "transport=udp,local_port=1000",
        ];
        assert_eq!(find(&ports, Out, &frame), Some(1));
        assert_eq!(find(&ports, In, &frame), Some(0));
        let ports = [
            "transport=tcp,remote_port=53",
            "transport=udp,remote_port=53",
        ];
        assert_eq!(find(&ports, Out, &frame), Some(1));
        assert_eq!(find(&ports, In, &frame), None);
        let kinds = ["transport=tcp", "transport=udp", "transport=icmp"];
        assert_eq!(find(&kinds, Out, &frame), Some(1));
        assert_eq!(find(&kinds, In, &frame), Some(1));
    }
}

/// The most specific prefix wins, whatever the order; families are apart.
#[test]
fn the_most_specific_prefix_wins() {
    let flows = [
        "local_ip=0.0.0.0/0",
        "local_ip=10.1.0.0/16",
        "local_ip=10.0.0.0/8",
        "local_ip=10.1.2.3",
        "local_ip=fd00::/8",
    ];
    for (from, at) in [
        ("10.1.2.3", Some(3)),
        ("10.1.2.4", Some(1)),
        ("10.2.2.3", Some(2)),
        ("11.1.2.3", Some(0)),
    ] {
        let frame = frame((from, 1), ("192.0.2.1", 2));
        assert_eq!(find(&flows, Direction::Out, &frame), at, "{from}");
    }
    let six = frame(("fd12::1", 1), ("fe80::1", 2));
    assert_eq!(find(&flows, Direction::Out, &six), Some(4));
    let other = frame(("fe80::1", 1), ("fd12::1", 2));
    assert_eq!(find(&flows, Direction::Out, &other), None);
}

/// Bits of the DS field count where the mask has them; of two that match, the one with more bits wins.
#[test]
fn ds_fields_have_masks() {
    let flows = ["dsfield=0x80:0xc0", "dsfield=0xb8:0xfc", "dsfield=0x01"];
    for (field, at) in [
        (0xb9, Some(1)),
        (0x9c, Some(0)),
        (0x01, Some(2)),
        (0x02, None),
    ] {
        let mut four = frame(("10.0.0.1", 1), ("10.0.0.2", 2));
        four[15] = field;
        // The checksum counts only for the parser.
        assert_eq!(
            find(&flows[..], Direction::In, &rechecked(four)),
            at,
            "{field:#x}"
        );
        let mut six = frame(("fd00::1", 1), ("fd00::2", 2));
        six[14] |= field >> 4;
        six[15] |= field << 4;
        assert_eq!(find(&flows, Direction::Out, &six), at, "{field:#x}");
    }
}

/// With a good IPv4 header checksum.
fn rechecked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let words = frame[14..34]
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame
}

/// A part of a packet has no ports, the first neither; it has a protocol and addresses. What is not IP is in no flow.
#[test]
fn parts_stay_together() {
    let whole = frame(("10.0.0.1", 1000), ("10.0.0.2", 53));
    for flags in [0x2000_u16, 0x0010] {
        let mut part = whole.clone();
        part[20..22].copy_from_slice(&flags.to_be_bytes());
        let part = rechecked(part);
        let ports = ["transport=udp,remote_port=53"];
        assert_eq!(find(&ports, Direction::Out, &part), None);
        assert_eq!(find(&["transport=udp"], Direction::Out, &part), Some(0));
        assert_eq!(find(&["local_ip=10.0.0.1"], Direction::Out, &part), Some(0));
    }
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(find(&["local_ip=0.0.0.0/0"], Direction::Out, &arp), None);
}

/// What the short way says of whole packets is what the parser says.
fn reference(flow: &FlowMatch, out: bool, from: (IpAddr, u16), to: (IpAddr, u16)) -> bool {
    let (local, remote) = if out { (from, to) } else { (to, from) };
    let within = |prefix: &windlass_rules::Prefix, address: IpAddr| {
        let number = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let (first, last) = prefix.range();
        prefix.address.is_ipv4() == address.is_ipv4() && (first..=last).contains(&number)
    };
    match flow {
        FlowMatch::LocalIp(prefix) => within(prefix, local.0),
        FlowMatch::RemoteIp(prefix) => within(prefix, remote.0),
        FlowMatch::Transport(protocol) => *protocol == 17,
        FlowMatch::LocalPort(protocol, port) => *protocol == 17 && local.1 == *port,
        FlowMatch::RemotePort(protocol, port) => *protocol == 17 && remote.1 == *port,
        FlowMatch::DsField { value, .. } => *value == 0,
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0_u32..4).prop_map(|n| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | n << 14))),
        (0_u128..4).prop_map(|n| IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | n << 62))),
    ]
}

fn flows() -> impl Strategy<Value = Vec<String>> {
    let prefixes = |side: &'static str| {
        let prefix = (address(), 0_u8..=128).prop_map(move |(address, bits)| {
            let (whole, number) = match address {
                IpAddr::V4(v4) => (32, u128::from(v4.to_bits()) << 96),
                IpAddr::V6(v6) => (128, v6.to_bits()),
            };
            let bits = bits.min(whole);
            let network = number & !u128::MAX.checked_shr(bits.into()).unwrap_or(0);
            match address {
                IpAddr::V4(_) => {
                    format!(
                        "{side}={}/{bits}",
                        Ipv4Addr::from_bits((network >> 96) as u32)
                    )
                }
                IpAddr::V6(_) => format!("{side}={}/{bits}", Ipv6Addr::from_bits(network)),
            }
        });
        prop::collection::vec(prefix, 1..8)
    };
    let ports = |side: &'static str| {
        let port = (0_usize..3, 1_u16..6).prop_map(move |(kind, port)| {
            format!("transport={},{side}={port}", ["tcp", "udp", "sctp"][kind])
        });
        prop::collection::vec(port, 1..8)
    };
    prop_oneof![
        prefixes("local_ip"),
        prefixes("remote_ip"),
        ports("local_port"),
        ports("remote_port"),
    ]
}

proptest! {
    /// A walk through all flows finds what the classifier finds: one that matches, and of prefixes none that is longer.
    #[test]
    fn as_a_walk(flows in flows(), from in (address(), 1_u16..6), to in (address(), 1_u16..6), out: bool) {
        prop_assume!(from.0.is_ipv4() == to.0.is_ipv4());
        let (a, b) = (from.0.to_string(), to.0.to_string());
        let frame = frame((&a, from.1), (&b, to.1));
        let parsed: Vec<FlowMatch> = flows.iter().map(|text| text.parse().expect(text)).collect();
        let direction = if out { Direction::Out } else { Direction::In };
        let texts: Vec<&str> = flows.iter().map(String::as_str).collect();
        let found = find(&texts, direction, &frame).map(|at| &parsed[at]);
        let bits = |flow: &FlowMatch| match flow {
            FlowMatch::LocalIp(prefix) | FlowMatch::RemoteIp(prefix) => prefix.bits,
            _ => 0,
        };
        let matching = parsed.iter().filter(|flow| reference(flow, out, from, to));
        let best = matching.map(bits).max();
        prop_assert_eq!(found.map(bits), best);
        prop_assert!(found.is_none_or(|flow| reference(flow, out, from, to)));
    }

    /// No bytes make it panic.
    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..160), kind in 0_usize..4, more: u16) {
        let kinds = [[8, 0], [0x86, 0xdd], [0x81, 0], [1, 2]];
        if let Some(place) = bytes.get_mut(12..14) {
            place.copy_from_slice(&kinds[kind]);
        }
        let flows = ["transport=udp,local_port=53", "local_ip=10.0.0.0/8", "dsfield=0x10:0x10", "transport=tcp"];
        for flow in flows {
            let flows = [flow.parse().expect(flow)];
            for direction in [Direction::Out, Direction::In] {
                let classifier = Classifier::new(direction, &flows).expect("a flow");
                let len = bytes.len() as u32 + u32::from(more);
                let _ = classifier.find(&bytes, len);
            }
        }
    }
}
