//! What is learned, what is answered and what is not; limits; any bytes.

use std::net::IpAddr;

use proptest::prelude::*;
use windlass_frame::Tick;
use windlass_neigh::packet::parse;
use windlass_neigh::{BRIDGE_MAX, DISPUTED_NS, LIFE_NS, Neighbours, Outcome, PORT_MAX, PortConf};
use windlass_wire::checksum::pseudo_v6;

const NOW: Tick = Tick(1_000_000_000_000);
const ALL: [u8; 6] = [0xff; 6];

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

fn ip(n: u8) -> [u8; 4] {
    [10, 0, 0, n]
}

fn ip6(n: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]
}

fn arp(op: u8, from: [u8; 6], claimed: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&ALL[..], &from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, op]].concat();
    frame.extend(claimed);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame.resize(60, 0);
    frame
}

fn asks(n: u8, target: u8) -> Vec<u8> {
    arp(1, mac(n), mac(n), ip(n), ip(target))
}

fn discovery(
    kind: u8,
    from: [u8; 6],
    source: [u8; 16],
    target: [u8; 16],
    option: Option<[u8; 6]>,
) -> Vec<u8> {
    let mut to = [0; 16];
    (to[0], to[1], to[15]) = (0xff, 2, 1);
    let mut body = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    body.extend(target);
    if let Some(mac) = option {
        body.extend([if kind == 135 { 1 } else { 2 }, 1]);
        body.extend(mac);
    }
    let mut sum = pseudo_v6(&source, &to, 58, body.len() as u32);
    sum.add_bytes(&body);
    body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let mut frame = [
        &[0x33, 0x33, 0, 0, 0, 1][..],
        &from,
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, 58, 255],
    ]
    .concat();
    frame.extend(source);
    frame.extend(to);
    frame.extend(body);
    frame
}

fn conf(suppress: bool) -> PortConf {
    PortConf {
        suppress,
        is_host: true,
        is_private: false,
        mac: mac(100),
        fixed: Vec::new(),
    }
}

/// Ports 1 to 3, all of which are answered for.
fn world() -> Neighbours {
    let mut world = Neighbours::default();
    (1..=3).for_each(|id| world.set_port(id, conf(true)));
    world
}

fn answered(outcome: Outcome) -> Option<Vec<u8>> {
    match outcome {
        Outcome::Answer(frame) => Some(frame),
        Outcome::Pass => None,
    }
}

/// Who has asked is known to others of the VLAN for its life; the answer is one of ARP, from the one who was asked for.
#[test]
fn who_asks_is_known() {
    let mut world = world();
    assert_eq!(world.receive(1, 1, &asks(1, 2), NOW), Outcome::Pass);
    let answer = answered(world.receive(2, 1, &asks(2, 1), NOW)).expect("known");
    assert_eq!(answer[..14], [&mac(2)[..], &mac(1), &[8, 6]].concat());
    assert_eq!(answer[14..22], [0, 1, 8, 0, 6, 4, 0, 2]);
    assert_eq!(
        answer[22..42],
        [&mac(1)[..], &ip(1), &mac(2), &ip(2)].concat()
    );
    // Another VLAN, its own port, a port without.
    assert_eq!(world.receive(2, 2, &asks(2, 1), NOW), Outcome::Pass);
    assert_eq!(world.receive(1, 1, &asks(9, 1), NOW), Outcome::Pass);
    world.set_port(1, conf(false));
    assert_eq!(world.receive(2, 1, &asks(2, 1), NOW), Outcome::Pass);
    world.set_port(1, conf(true));
    let renewed = NOW.plus(LIFE_NS - 1);
    world.receive(1, 1, &asks(1, 77), renewed);
    world.advance(renewed.plus(2));
    assert!(answered(world.receive(2, 1, &asks(2, 1), NOW.plus(LIFE_NS + 5))).is_some());
    let end = renewed.plus(LIFE_NS);
    world.advance(end);
    assert_eq!(world.receive(2, 1, &asks(2, 1), end), Outcome::Pass);
    world.receive(1, 1, &asks(1, 77), end);
    world.link_down(1);
    assert_eq!(world.receive(2, 1, &asks(2, 1), end), Outcome::Pass);
}

/// A probe is answered though its sender has no address, teaches nothing, and announcements go to everybody (RFC 5227, RFC 9161).
#[test]
fn probes_and_announcements() {
    let mut world = world();
    let announces = arp(1, mac(1), mac(1), ip(1), ip(1));
    assert_eq!(world.receive(1, 1, &announces, NOW), Outcome::Pass);
    let probe = arp(1, mac(2), mac(2), [0; 4], ip(1));
    let answer = answered(world.receive(2, 1, &probe, NOW)).expect("taken");
    assert_eq!(answer[38..42], [0; 4]);
    assert_eq!(world.counts().0, 1);
    let free = arp(1, mac(2), mac(2), [0; 4], ip(7));
    assert_eq!(world.receive(2, 1, &free, NOW), Outcome::Pass);

    // Another one speaks for the address: nobody is answered for a while, then the new one is.
    let takes = arp(1, mac(3), mac(3), ip(1), ip(1));
    assert_eq!(world.receive(3, 1, &takes, NOW), Outcome::Pass);
    assert_eq!(
        world.receive(2, 1, &asks(2, 1), NOW.plus(DISPUTED_NS - 1)),
        Outcome::Pass
    );
    let answer = answered(world.receive(2, 1, &asks(2, 1), NOW.plus(DISPUTED_NS)));
    assert_eq!(answer.expect("known")[22..28], mac(3));
    // A sender whose two addresses differ, and ARP replies, are not believed.
    for lie in [
        arp(1, mac(2), mac(9), ip(8), ip(9)),
        arp(2, mac(2), mac(2), ip(8), ip(9)),
    ] {
        assert_eq!(world.receive(2, 1, &lie, NOW), Outcome::Pass);
    }
    let (known, counts) = world.counts();
    assert_eq!((known, counts.answered), (2, 2));
}

/// One that is private is not told of another that is, by an answer as by a frame; others are.
#[test]
fn private_ports_are_kept_apart() {
    let mut world = world();
    let private = PortConf {
        is_private: true,
        ..conf(true)
    };
    (1..=2).for_each(|id| world.set_port(id, private.clone()));
    world.receive(1, 1, &asks(1, 77), NOW);
    assert_eq!(world.receive(2, 1, &asks(2, 1), NOW), Outcome::Pass);
    assert!(answered(world.receive(3, 1, &asks(3, 1), NOW)).is_some());
    assert!(answered(world.receive(1, 1, &asks(1, 3), NOW)).is_some());
}

/// Whoever takes an address over is not answered for sooner by going to another port.
#[test]
fn a_dispute_goes_with_its_address() {
    let mut world = world();
    world.receive(1, 1, &asks(1, 77), NOW);
    let takes = arp(1, mac(3), mac(3), ip(1), ip(1));
    world.receive(3, 1, &takes, NOW);
    world.receive(2, 1, &takes, NOW);
    let before = NOW.plus(DISPUTED_NS - 1);
    assert_eq!(world.receive(1, 1, &asks(9, 1), before), Outcome::Pass);
    let answer = world.receive(1, 1, &asks(9, 1), NOW.plus(DISPUTED_NS));
    assert!(answered(answer).is_some());
}

/// Neighbour discovery: solicited answers, those of duplicate detection to all, and none for ports where a router may be.
#[test]
fn discovery_is_answered() {
    let mut world = world();
    let asks = |n: u8, target: u8| discovery(135, mac(n), ip6(n), ip6(target), Some(mac(n)));
    assert_eq!(world.receive(1, 1, &asks(1, 2), NOW), Outcome::Pass);
    let answer = answered(world.receive(2, 1, &asks(2, 1), NOW)).expect("known");
    assert_eq!(answer[..14], [&mac(2)[..], &mac(1), &[0x86, 0xdd]].concat());
    assert_eq!(
        (&answer[22..38], &answer[38..54]),
        (&ip6(1)[..], &ip6(2)[..])
    );
    assert_eq!(
        (answer[54], answer[58], &answer[62..78]),
        (136, 0x60, &ip6(1)[..])
    );
    assert_eq!(answer[78..], [&[2, 1][..], &mac(1)].concat());
    let said = parse(&answer).expect("its checksum holds");
    assert_eq!(said.sender, Some((IpAddr::from(ip6(1)), mac(1))));

    let probe = discovery(135, mac(3), [0; 16], ip6(1), None);
    let answer = answered(world.receive(3, 1, &probe, NOW)).expect("taken");
    assert_eq!(
        (&answer[..6], answer[58]),
        (&[0x33, 0x33, 0, 0, 0, 1][..], 0x20)
    );
    assert_eq!(
        parse(&discovery(135, mac(3), [0; 16], ip6(1), Some(mac(3)))),
        None
    );
    let announces = discovery(136, mac(3), ip6(3), ip6(3), Some(mac(3)));
    assert_eq!(world.receive(3, 1, &announces, NOW), Outcome::Pass);
    assert!(answered(world.receive(2, 1, &asks(2, 3), NOW)).is_some());
    let router = PortConf {
        is_host: false,
        ..conf(true)
    };
    world.set_port(3, router);
    assert_eq!(world.receive(2, 1, &asks(2, 3), NOW), Outcome::Pass);
    let mut bad = asks(2, 1);
    for (at, bit) in [(21, 1), (54, 4), (56, 1), (80, 1)] {
        bad[at] ^= bit;
        assert_eq!(parse(&bad), None, "byte {at}");
        bad[at] ^= bit;
    }
}

/// Addresses that are configured are known from the beginning, and nobody takes them over.
#[test]
fn configured_addresses_stay() {
    let mut world = world();
    let fixed = PortConf {
        fixed: vec![(1, ip(1).into())],
        mac: mac(1),
        ..conf(true)
    };
    world.receive(3, 1, &arp(1, mac(3), mac(3), ip(1), ip(1)), NOW);
    world.set_port(1, fixed.clone());
    world.set_port(2, fixed);
    world.receive(3, 1, &arp(1, mac(3), mac(3), ip(1), ip(1)), NOW);
    let answer = answered(world.receive(3, 1, &asks(3, 1), NOW));
    assert_eq!(answer.expect("known")[22..28], mac(1));
    world.link_down(1);
    assert!(answered(world.receive(3, 1, &asks(3, 1), NOW)).is_some());
    world.remove_port(1);
    assert_eq!(world.receive(3, 1, &asks(3, 1), NOW), Outcome::Pass);
    assert_eq!(world.counts().0, 1);
}

/// A port that claims addresses without end has its limit; where the bridge is full others still have room.
#[test]
fn one_port_takes_its_share_only() {
    let mut world = Neighbours::default();
    let ports = (BRIDGE_MAX / PORT_MAX) as u16 + 4;
    let claim = |id: u16, n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        arp(
            1,
            mac(id as u8),
            mac(id as u8),
            [10 + id as u8, a, b, c],
            [10, 9, 9, 9],
        )
    };
    for id in 0..ports {
        world.set_port(id, conf(true));
        for n in 1..2 * PORT_MAX as u32 {
            world.receive(id, 1, &claim(id, n), NOW);
        }
    }
    assert_eq!(world.counts().0, BRIDGE_MAX);
    world.set_port(ports, conf(true));
    for n in 1..10 {
        world.receive(ports, 1, &claim(ports, n), NOW);
    }
    let mut asked = claim(0, 1);
    for n in 1..10 {
        let target = claim(ports, n);
        asked[38..42].copy_from_slice(&target[28..32]);
        assert!(answered(world.receive(0, 1, &asked, NOW)).is_some());
    }
    (0..=ports).for_each(|id| world.remove_port(id));
    assert_eq!((world.counts().0, world.due()), (0, None));
}

proptest! {
    /// Any bytes, and any question cut or changed anywhere: nothing panics, what is known is bounded by what was said, and is forgotten in time.
    #[test]
    fn anything_can_come(
        frames in prop::collection::vec((0..5_u16, 0..6_u8, 0..90_usize, any::<u8>(), any::<[u8; 4]>()), 0..100)
    ) {
        let mut world = world();
        let mut now = NOW;
        for (port, kind, at, byte, noise) in frames {
            let [a, b, ..] = noise.map(|n| n % 8);
            let mut frame = match kind {
                0 | 1 => asks(a, b),
                2 => discovery(135, mac(a), ip6(a), ip6(b), Some(mac(a))),
                3 => discovery(136, mac(a), ip6(a), ip6(a), Some(mac(a))),
                4 => discovery(135, mac(a), [0; 16], ip6(b), None),
                _ => noise.repeat(20),
            };
            if byte & 1 == 0 && at < frame.len() {
                frame[at] = byte;
            } else if byte & 3 == 1 {
                frame.truncate(at);
            }
            world.receive(port, 1, &frame, now);
            now = now.plus(u64::from(byte) * 1_000_000_000);
            world.advance(now);
            prop_assert!(world.counts().0 <= 100);
        }
        world.advance(now.plus(LIFE_NS));
        prop_assert_eq!((world.counts().0, world.due()), (0, None));
    }
}

/// What somebody else tells of a port is answered from then on; what is configured of another port holds before it, and with the port
/// it goes.
#[test]
fn what_is_entered_is_answered() {
    let mut all = Neighbours::default();
    all.set_port(1, conf(false));
    all.set_port(2, conf(true));
    let mut fixed = conf(true);
    (fixed.mac, fixed.fixed) = (mac(3), vec![(0, IpAddr::from(ip(7)))]);
    all.set_port(3, fixed);
    let key = |n| (0, IpAddr::from(ip(n)));
    let answers = |all: &mut Neighbours, target: u8| match all.receive(1, 0, &asks(1, target), NOW)
    {
        Outcome::Answer(frame) => Some(<[u8; 6]>::try_from(&frame[22..28]).expect("six bytes")),
        Outcome::Pass => None,
    };
    assert_eq!(answers(&mut all, 9), None);
    all.enter(2, key(9), Some(mac(9)));
    all.enter(2, key(7), Some(mac(9)));
    assert_eq!(answers(&mut all, 9), Some(mac(9)));
    assert_eq!(answers(&mut all, 7), Some(mac(3)), "it is configured");
    all.enter(2, key(9), Some(mac(8)));
    assert_eq!(answers(&mut all, 9), Some(mac(8)));
    all.set_port(3, conf(true));
    assert_eq!(
        answers(&mut all, 7),
        Some(mac(9)),
        "nobody is configured to have it"
    );
    let mut later = conf(true);
    (later.mac, later.fixed) = (mac(4), vec![key(9)]);
    all.set_port(4, later);
    assert_eq!(answers(&mut all, 9), Some(mac(4)), "it is configured later");
    assert_eq!(all.counts().0, 3, "both, and the asker");
    all.remove_port(4);
    all.enter(2, key(9), None);
    all.enter(2, key(7), None);
    assert_eq!((answers(&mut all, 9), answers(&mut all, 7)), (None, None));
    all.enter(2, key(9), Some(mac(9)));
    all.enter(4, key(8), Some(mac(9)));
    all.remove_port(2);
    assert_eq!((answers(&mut all, 9), answers(&mut all, 8)), (None, None));
}
