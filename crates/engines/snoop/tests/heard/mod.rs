//! What holds whatever a bridge that snoops hears: used by the fuzz target `snoop` and by the tests that replay its corpus.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use windlass_frame::Tick;
use windlass_snoop::{Conf, Family, Message, PortConf, Routers, Snooper, message};
use windlass_wire::checksum::{checksum, pseudo_v6};

const PORTS: u16 = 4;
const PORT_MAX: u32 = 6;
const CONF: Conf = Conf {
    querier: true,
    interval_s: 20,
    address: Ipv4Addr::new(192, 0, 2, 9),
    mac: [2, 0, 0, 0, 0, 1],
    groups_max: 12,
};

/// A message in a frame whose lengths and checksums are right.
fn framed(is_v6: bool, from: u8, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    if let Some(field) = body.get_mut(2..4) {
        field.fill(0);
    }
    let (head, sum) = if is_v6 {
        let mut source = [0; 16];
        (source[0], source[1], source[15]) = (0xfe, 0x80, from);
        let mut target = [0; 16];
        (target[0], target[1], target[15]) = (0xff, 2, 22);
        let mut sum = pseudo_v6(&source, &target, 58, body.len() as u32);
        sum.add_bytes(&body);
        let mut head = vec![0x86, 0xdd, 0x60, 0, 0, 0];
        head.extend((8 + body.len() as u16).to_be_bytes());
        head.extend([0, 1]);
        head.extend([source, target].concat());
        head.extend([58, 0, 5, 2, 0, 0, 1, 0]);
        (head, sum.finish())
    } else {
        let mut head = vec![0x45, 0xc0];
        head.extend((20 + body.len() as u16).to_be_bytes());
        head.extend([0, 0, 0x40, 0, 1, 2, 0, 0, 192, 0, 2, from, 224, 0, 0, 22]);
        let sum = checksum(&head);
        head[10..12].copy_from_slice(&sum.to_be_bytes());
        ([&[8, 0], &head[..]].concat(), checksum(&body))
    };
    if let Some(field) = body.get_mut(2..4) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    [&[1, 0, 0x5e, 0, 0, 22, 2, 0, 0, 0, 0, 9], &head[..], &body].concat()
}

/// Takes `data` as a run of records, each what happens, where, after which pause, and bytes, and lets a bridge of a few ports hear them.
pub fn check(data: &[u8]) {
    let mut now = Tick(1_000_000_000);
    let mut engine = Snooper::new(CONF);
    let mut ports = BTreeSet::new();
    engine.configure(CONF, &BTreeSet::from([1, 2]), now);
    let mut rest = data;
    while let Some(([what, place, pause, length], tail)) = rest.split_first_chunk() {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        now = now.plus(u64::from(*pause) * 100_000_000);
        engine.advance(now);
        let (port, vid) = (u16::from(place % 5), u16::from(place >> 4) % 4);
        match what % 8 {
            0 => {
                let _ = engine.receive(port, vid, bytes, now);
            }
            1 => engine.link_down(port),
            2 => {
                engine.remove_port(port);
                ports.remove(&port);
            }
            3 if port < PORTS => {
                let routers = [Routers::Never, Routers::Learned, Routers::Always];
                let conf = PortConf {
                    routers: routers[usize::from(what >> 3) % 3],
                    fast_leave: what & 0x20 != 0,
                    groups_max: PORT_MAX,
                };
                engine.set_port(port, conf);
                ports.insert(port);
            }
            4 if what & 8 != 0 => {
                let group = |n: u8| std::net::Ipv4Addr::new(239, 1, 2, n % 8).into();
                let statics = bytes.iter().map(|n| (u16::from(n >> 4) % 4, group(*n)));
                engine.set_static(port, &statics.take(2).collect());
            }
            4 => engine.reopen(now),
            5 => {
                let conf = Conf {
                    querier: what & 8 != 0,
                    groups_max: u32::from(vid) * 4 + 1,
                    ..CONF
                };
                let vids = (0..4).filter(|vid| place >> vid & 1 != 0);
                engine.configure(conf, &vids.collect(), now);
            }
            six => {
                let frame = framed(six == 7, place >> 4, bytes);
                let _ = engine.receive(port, vid, &frame, now);
            }
        }
        engine.advance(now);
        holds(&mut engine, &ports, now);
    }
}

fn holds(engine: &mut Snooper, ports: &BTreeSet<u16>, now: Tick) {
    assert!(
        engine.due().is_none_or(|due| due > now),
        "what is due is done"
    );
    let vids: BTreeSet<u16> = engine.vlans().map(|(vid, _)| vid).collect();
    let (mut numbers, mut memberships, mut statics) = (BTreeSet::new(), 0, 0);
    for group in engine.groups() {
        assert!(numbers.insert(group.number), "two groups of one number");
        assert!(vids.contains(&group.vid));
        assert!(group.ports().count() > 0, "a group of nobody");
        for (port, until) in group.ports() {
            assert!(ports.contains(&port) && until.is_none_or(|until| until > now));
            match until {
                Some(_) => memberships += 1,
                None => statics += 1,
            }
        }
    }
    let of_ports = ports.iter().map(|port| engine.memberships(*port));
    assert_eq!(of_ports.sum::<usize>(), memberships);
    let most = engine.conf().groups_max as usize;
    assert!(memberships == 0 || memberships + statics <= most);
    let most = ports.iter().map(|port| engine.memberships(*port)).max();
    assert!(most.unwrap_or(0) <= PORT_MAX as usize);
    for (vid, family) in engine.vlans() {
        let routers = engine.routers(vid, family);
        assert!(routers.iter().all(|port| ports.contains(port)));
    }
    for query in engine.take_queries() {
        assert!(query.port.is_none_or(|port| ports.contains(&port)));
        let said = message::parse(&query.frame);
        assert!(matches!(
            said,
            Ok((Family::V4 | Family::V6, Message::Query { .. }))
        ));
    }
}
