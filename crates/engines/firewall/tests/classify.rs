//! The classifier against a walk from rule to rule that shares no code with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use windlass_firewall::{BYTES_MAX, Classifier, CompileError, Packet};
use windlass_rules::{
    Action, Addresses, Direction, Family, Prefix, Rule, Rules, Set, Side, State, States,
};

const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

fn is_in(prefix: &Prefix, family: Family, address: u128) -> bool {
    let same = |bits: u8, width: u8, a: u128, b: u128| {
        (0..u32::from(bits)).all(|bit| (a ^ b) >> (u32::from(width) - 1 - bit) & 1 == 0)
    };
    match (prefix.address, family) {
        (IpAddr::V4(v4), Family::V4) => same(prefix.bits, 32, v4.to_bits().into(), address),
        (IpAddr::V6(v6), Family::V6) => same(prefix.bits, 128, v6.to_bits(), address),
        _ => false,
    }
}

fn matches(list: &Rules, rule: &Rule, way: Direction, packet: &Packet, state: State) -> bool {
    let is_of = |side: &Side, address: u128| {
        let prefixes = list.prefixes(side);
        prefixes.is_none_or(|all| all.iter().any(|p| is_in(p, packet.family, address)))
    };
    let has_port = |side: &Side, port: u16| {
        side.ports.is_empty() || side.ports.iter().any(|(a, b)| (*a..=*b).contains(&port))
    };
    let icmp = rule.icmp.is_none_or(|(kind, code)| {
        packet
            .icmp
            .is_some_and(|(k, c, _)| k == kind && code.is_none_or(|code| code == c))
    });
    rule.direction.is_none_or(|d| d == way)
        && rule.family.is_none_or(|f| f == packet.family)
        && rule.protocol.is_none_or(|p| p == packet.protocol)
        && rule.states.matches(state)
        && icmp
        && is_of(&rule.from, packet.from)
        && is_of(&rule.to, packet.to)
        && has_port(&rule.from, packet.ports.0)
        && has_port(&rule.to, packet.ports.1)
}

fn walk(list: &Rules, way: Direction, packet: &Packet, state: State) -> Option<u16> {
    let first = list
        .rules
        .iter()
        .position(|rule| matches(list, rule, way, packet, state));
    first.map(|first| first as u16)
}

/// Few addresses, so that rules and packets meet, with the ends of both families among them.
fn v4() -> impl Strategy<Value = u32> {
    prop_oneof![
        0u32..4,
        Just(u32::MAX),
        (0u32..8).prop_map(|n| 0x0a00_0000 | n << 8),
        any::<u32>()
    ]
}

fn v6() -> impl Strategy<Value = u128> {
    let near = (0u128..8).prop_map(|n| 0xfd00 << 112 | n << 64);
    prop_oneof![0u128..4, Just(u128::MAX), near, any::<u128>()]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let narrow = |width: u8| prop_oneof![Just(width), 0..=width];
    let four = (v4(), narrow(32)).prop_map(|(address, bits)| {
        let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
        let address = Ipv4Addr::from_bits(address & mask).into();
        Prefix { address, bits }
    });
    let six = (v6(), narrow(128)).prop_map(|(address, bits)| {
        let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        let address = Ipv6Addr::from_bits(address & mask).into();
        Prefix { address, bits }
    });
    prop_oneof![four, six]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![0u16..4, Just(u16::MAX), Just(80), any::<u16>()]
}

fn side(has_ports: bool) -> impl Strategy<Value = Side> {
    let addresses = prop_oneof![
        2 => Just(Addresses::Any),
        3 => proptest::collection::vec(prefix(), 1..4).prop_map(Addresses::These),
        1 => (0usize..2).prop_map(Addresses::Set),
    ];
    let range = (port(), port()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let ports = proptest::collection::vec(range, 0..if has_ports { 4 } else { 1 });
    (addresses, ports).prop_map(|(addresses, ports)| Side { addresses, ports })
}

fn states() -> impl Strategy<Value = States> {
    proptest::collection::vec(0usize..4, 0..3).prop_map(|named| {
        let mut states = States::default();
        named
            .into_iter()
            .for_each(|index| states.insert(State::ALL[index]));
        states
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let way = proptest::option::of((0usize..2).prop_map(|way| DIRECTIONS[way]));
    let family = proptest::option::weighted(0.2, prop_oneof![Just(Family::V4), Just(Family::V6)]);
    let icmp = proptest::option::of((0u8..4, proptest::option::of(0u8..3)));
    (
        0usize..6,
        way,
        family,
        icmp,
        side(true),
        side(true),
        states(),
    )
        .prop_map(
            |(kind, direction, family, icmp, mut from, mut to, states)| {
                let protocol = [None, Some(6), Some(17), Some(1), Some(58), Some(47)][kind];
                if !matches!(protocol, Some(6 | 17)) {
                    from.ports.clear();
                    to.ports.clear();
                }
                Rule {
                    direction,
                    family,
                    protocol,
                    icmp: icmp.filter(|_| matches!(protocol, Some(1 | 58))),
                    from,
                    to,
                    states,
                    ..Rule::all(Action::Drop)
                }
            },
        )
}

fn list(most: usize) -> impl Strategy<Value = Rules> {
    let set = |name: &'static str| {
        proptest::collection::vec(prefix(), 0..6).prop_map(move |prefixes| Set {
            name: name.into(),
            prefixes,
        })
    };
    let rules = proptest::collection::vec(rule(), 0..most);
    (set("a"), set("b"), rules).prop_map(|(a, b, rules)| Rules {
        sets: vec![a, b],
        rules,
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let kind = prop_oneof![
        Just(6u8),
        Just(17),
        Just(1),
        Just(58),
        Just(47),
        any::<u8>()
    ];
    (
        any::<bool>(),
        kind,
        (v4(), v4()),
        (v6(), v6()),
        (port(), port()),
        (0u8..4, 0u8..3),
    )
        .prop_map(|(is_v4, protocol, four, six, ports, (kind, code))| {
            let (family, from, to) = match is_v4 {
                true => (Family::V4, four.0.into(), four.1.into()),
                false => (Family::V6, six.0, six.1),
            };
            let is_icmp = matches!((protocol, is_v4), (1, true) | (58, false));
            Packet {
                ports: if matches!(protocol, 6 | 17) {
                    ports
                } else {
                    (0, 0)
                },
                icmp: is_icmp.then_some((kind, code, 7)),
                ..Packet::new(family, protocol, from, to)
            }
        })
}

fn check(list: &Rules, packets: &[Packet]) {
    let classifier = Classifier::new(list).expect("few rules");
    for packet in packets {
        for way in DIRECTIONS {
            for state in State::ALL {
                let expected = walk(list, way, packet, state);
                let found = classifier.first(way, packet, state);
                assert_eq!(found, expected, "{packet:?} {way:?} {state:?}\n{list}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// For any rules and packets both find the same rule.
    #[test]
    fn as_a_walk_would(list in list(40), packets in proptest::collection::vec(packet(), 40)) {
        check(&list, &packets);
    }

    /// So they do with several words of bits.
    #[test]
    fn as_a_walk_would_with_many(list in list(300), packets in proptest::collection::vec(packet(), 10)) {
        check(&list, &packets);
    }
}

fn of_text(text: &str) -> Rules {
    text.parse().expect("rules")
}

/// 10,000 rules, most of which match most of a packet: the answer is the walk's.
#[test]
fn many_rules() {
    let rule = |n: u32| {
        let [_, _, c, d] = n.to_be_bytes();
        match n % 4 {
            0 => format!("drop in tcp from 10.0.{c}.{d} to 10.1.0.0/16 port 80"),
            1 => format!("accept in udp to 10.1.{c}.{d} port {}-65535", n % 65_535),
            2 => format!("drop in from fd00::{n:x} to fd00::/16 state new"),
            _ => format!("accept out tcp from 10.1.0.0/16 port {n} to 10.0.{c}.0/24"),
        }
    };
    let text: Vec<String> = (0..10_000).map(rule).collect();
    let list = of_text(&text.join("\n"));
    let mut packets = Vec::new();
    for n in (0..10_000u16).step_by(397) {
        let near = 0x0a00_0000 | u128::from(n);
        let there = 0x0a01_0000 | u128::from(n);
        for protocol in [6, 17] {
            for ports in [(n, 80), (9, n), (9, 65_535)] {
                let v4 = Packet::new(Family::V4, protocol, near, there);
                packets.push(Packet { ports, ..v4 });
                let back = Packet::new(Family::V4, protocol, there, near);
                packets.push(Packet { ports, ..back });
            }
        }
        let six = 0xfd00 << 112;
        packets.push(Packet::new(Family::V6, 6, six | u128::from(n), six));
    }
    check(&list, &packets);
}

/// Sets of 10,000 prefixes in rules that share them cost no more than their intervals.
#[test]
fn large_sets() {
    let prefixes = |low: u32| {
        let prefix = |n: u32| format!("{}/28", Ipv4Addr::from_bits(low | n << 5));
        (0..10_000).map(prefix).collect::<Vec<_>>().join(",")
    };
    let text = format!(
        "set a {}; set b {}; drop in from @a to @b; accept in from @b; drop in tcp from @a to port 22; drop out to @a",
        prefixes(0x0a00_0000),
        prefixes(0x0b00_0000),
    );
    let list = of_text(&text);
    let mut packets = Vec::new();
    for n in (0..640_000u128).step_by(40_009) {
        for (from, to) in [(0x0a00_0000 | n, 0x0b00_0000 | n), (0x0b00_0000 | n, 5)] {
            let ports = (9, 22);
            packets.push(Packet {
                ports,
                ..Packet::new(Family::V4, 6, from, to)
            });
        }
    }
    check(&list, &packets);
    let bytes = Classifier::new(&list).expect("room").bytes();
    assert!(bytes < 1 << 20, "{bytes} bytes");
}

/// Rules made to be expensive: nested ranges of ports, all prefixes of one address again and again, a field each that is open. Either they
/// are refused for their memory, or the answer is the walk's.
#[test]
fn adversarial_rules() {
    let nested = |n: u32| format!("drop in tcp from port {n}-{}", 65_535 - n);
    let both = |n: u32| format!("drop in tcp from port {n}-{0} to port {n}-{0}", 40_000 - n);
    let prefixes = |n: u32| {
        let bits = 1 + n % 31;
        let of = |address: u32| Ipv4Addr::from_bits(address & u32::MAX << (32 - bits));
        format!(
            "drop in tcp from {}/{bits} to {}/{bits} port {n}",
            of(0x5555_5555),
            of(0xaaaa_aaaa)
        )
    };
    let holes = |n: u32| match n % 2 {
        0 => format!("drop in tcp from 10.0.0.0/8 to port {}", 1 + n % 7),
        _ => "drop in tcp from 11.0.0.0/8 to port 80".to_owned(),
    };
    // Other rules at each port.
    let many = |n: u32| {
        let range = |k: u32| (n * 7_919 + k * 1_021) % 60_000;
        let ranges = (0..64).map(|k| format!("{}-{}", range(k), range(k) + 1 + n % 97));
        let ports = ranges.collect::<Vec<_>>().join(",");
        format!("drop tcp to port {ports}")
    };
    let text: Vec<String> = (0..1_024).map(many).collect();
    let refused = Classifier::new(&of_text(&text.join(";")));
    assert_eq!(refused.err(), Some(CompileError::TooLarge));
    let texts: [&dyn Fn(u32) -> String; 4] = [&nested, &both, &prefixes, &holes];
    for (which, text) in texts.into_iter().enumerate() {
        for count in [300, 5_000] {
            let text: Vec<String> = (0..count).map(text).collect();
            let list = of_text(&text.join(";"));
            let classifier = match Classifier::new(&list) {
                Ok(classifier) => classifier,
                Err(error) => {
                    assert_eq!(error, CompileError::TooLarge);
                    assert!(
                        which < 2 && count == 5_000,
                        "{which}: {count} rules are refused"
                    );
                    continue;
                }
            };
            assert!(classifier.bytes() <= 2 * BYTES_MAX);
            let port = |n: u32| (n * 13 % 65_536) as u16;
            let packets = (0..60u32).map(|n| Packet {
                ports: (port(n), if n % 2 == 0 { 80 } else { port(n * 7) }),
                ..Packet::new(
                    Family::V4,
                    6,
                    if n % 3 == 0 { 0x0a00_0000 } else { 0x5555_5555 },
                    0xaaaa_aaaa,
                )
            });
            check(&list, &packets.collect::<Vec<_>>());
        }
    }
}
