//! Memberships, routers, queriers, limits: the engine on a clock of its own.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proptest::prelude::*;
use windlass_frame::Tick;
use windlass_snoop::{
    Asker, Conf, Family, Message, ParseError, PortConf, Refused, Relay, Routers, Snooper, message,
};
use windlass_wire::checksum::{checksum, pseudo_v6};

const S: u64 = 1_000_000_000;
const GROUP: [u8; 4] = [239, 1, 2, 3];

fn conf() -> Conf {
    Conf {
        querier: true,
        interval_s: 125,
        address: Ipv4Addr::new(192, 0, 2, 9),
        mac: [2, 0, 0, 0, 0, 1],
        groups_max: 64,
    }
}

fn group(last: u8) -> [u8; 4] {
    [239, 1, 2, last]
}

/// IGMP in a frame: checksums are right.
fn igmp(source: [u8; 4], target: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body[2..4].fill(0);
    let sum = checksum(&body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let total = (20 + body.len()) as u16;
    let mut head = vec![0x45, 0xc0];
    head.extend(total.to_be_bytes());
    head.extend([0, 0, 0x40, 0, 1, 2, 0, 0]);
    head.extend([source, target].concat());
    let sum = checksum(&head);
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    let mac = [1, 0, 0x5e, target[1] & 0x7f, target[2], target[3]];
    [&mac[..], &[2, 0, 0, 0, 0, 9, 8, 0], &head, &body].concat()
}

/// MLD from fe80::N: a message of 24 bytes and more.
fn mld(last: u8, hops: u8, body: &[u8]) -> Vec<u8> {
    let mut source = [0; 16];
    (source[0], source[1], source[15]) = (0xfe, 0x80, last);
    let mut target = [0; 16];
    (target[0], target[1], target[15]) = (0xff, 2, 22);
    let mut body = body.to_vec();
    body[2..4].fill(0);
    let mut sum = pseudo_v6(&source, &target, 58, body.len() as u32);
    sum.add_bytes(&body);
    body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 22, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((8 + body.len() as u16).to_be_bytes());
    frame.extend([0, hops]);
    frame.extend([source, target].concat());
    frame.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    [frame, body].concat()
}

fn v1(kind: u8, group: [u8; 4]) -> Vec<u8> {
    igmp(
        [10, 0, 0, 1],
        group,
        &[&[kind, 0, 0, 0][..], &group].concat(),
    )
}

fn join(last: u8) -> Vec<u8> {
    v1(0x16, group(last))
}

fn leave(last: u8) -> Vec<u8> {
    v1(0x17, group(last))
}

/// Of IGMPv3, with one record.
fn record(kind: u8, group: [u8; 4], sources: &[[u8; 4]]) -> Vec<u8> {
    let mut body = vec![0x22, 0, 0, 0, 0, 0, 0, 1, kind, 0];
    body.extend((sources.len() as u16).to_be_bytes());
    body.extend(group);
    body.extend(sources.concat());
    igmp([10, 0, 0, 1], [224, 0, 0, 22], &body)
}

fn query(source: [u8; 4], group: [u8; 4]) -> Vec<u8> {
    let body = [&[0x11, 20, 0, 0][..], &group].concat();
    igmp(source, [224, 0, 0, 1], &body)
}

struct World {
    snooper: Snooper,
    now: Tick,
}

impl World {
    /// Ports 1 to 3 without routers, 9 where one may be; VLAN 1.
    fn new(conf: Conf) -> World {
        let (mut snooper, now) = (Snooper::new(conf), Tick(1000 * S));
        for port in [1, 2, 3] {
            snooper.set_port(port, PortConf::default());
        }
        let routers = PortConf {
            routers: Routers::Learned,
            ..PortConf::default()
        };
        snooper.set_port(9, routers);
        snooper.configure(conf, &BTreeSet::from([1]), now);
        World { snooper, now }
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Relay, Refused> {
        self.snooper.receive(port, 1, frame, self.now)
    }

    /// Lets time pass, and takes every due moment in turn; the queries that were asked.
    fn wait(&mut self, seconds: u64) -> Vec<(Option<u16>, Option<IpAddr>)> {
        let until = self.now.plus(seconds * S);
        let mut asked = Vec::new();
        while let Some(due) = self.snooper.due().filter(|due| *due <= until) {
            assert!(due >= self.now || due.0 < self.now.0);
            self.now = self.now.max(due);
            self.snooper.advance(self.now);
            for query in self.snooper.take_queries() {
                assert_eq!(query.vid, 1);
                let (_, message) = message::parse(&query.frame).expect("ours");
                match message {
                    Message::Query { group, .. } => asked.push((query.port, group)),
                    other => panic!("{other:?}"),
                }
            }
        }
        self.now = until;
        asked
    }

    fn members(&self, address: [u8; 4]) -> Vec<u16> {
        let mut groups = self.snooper.groups();
        let group = groups.find(|group| group.address == IpAddr::from(address));
        group.map_or_else(Vec::new, |g| g.ports().map(|(port, _)| port).collect())
    }

    fn is_snooped(&self) -> bool {
        self.snooper.is_snooped(1, Family::V4)
    }
}

/// The querier asks at once, again after a quarter of the interval, then once an interval; the VLAN is snooped once the first answers are in.
#[test]
fn the_querier_asks() {
    let mut world = World::new(conf());
    // Both families.
    assert_eq!(world.wait(9), [(None, None); 2]);
    assert!(!world.is_snooped());
    assert_eq!(world.wait(2), []);
    assert!(world.is_snooped() && world.snooper.is_snooped(1, Family::V6));
    assert_eq!(world.wait(21).len(), 2);
    assert_eq!(world.wait(125).len(), 2);
    assert_eq!(world.wait(125 * 8).len(), 16);
}

/// A membership lasts for two intervals and a response; a report renews it; reports go to routers.
#[test]
fn memberships_expire() {
    let mut world = World::new(conf());
    assert_eq!(world.send(1, &join(3)), Ok(Relay::Routers(Family::V4)));
    let version = world.snooper.version();
    world.wait(259);
    assert_eq!(world.members(GROUP), [1]);
    assert_eq!(
        world.send(1, &record(2, GROUP, &[])),
        Ok(Relay::Routers(Family::V4))
    );
    assert_eq!(
        world.send(2, &record(4, GROUP, &[])),
        Ok(Relay::Routers(Family::V4))
    );
    world.wait(259);
    assert_eq!(world.members(GROUP), [1, 2]);
    world.wait(2);
    assert_eq!(world.members(GROUP), [] as [u16; 0]);
    assert!(world.snooper.version() != version);
}

/// Who leaves is asked twice within 2 s, at its port alone; who answers stays. A fast leave ends at once.
#[test]
fn leaves_are_asked_about() {
    let mut world = World::new(conf());
    world.wait(11);
    let about = (Some(1), Some(IpAddr::from(GROUP)));
    for (leaves, answers) in [
        (leave(3), false),
        (record(3, GROUP, &[]), true),
        (record(6, GROUP, &[[9; 4]]), false),
    ] {
        for port in [1, 2] {
            world.send(port, &join(3)).expect("relayed");
        }
        world.send(1, &leaves).expect("relayed");
        // Asked for already.
        world.send(1, &leaves).expect("relayed");
        let mut asked = world.snooper.take_queries().len();
        if answers {
            world.send(1, &join(3)).expect("relayed");
        }
        asked += world.wait(3).iter().filter(|a| **a == about).count();
        assert_eq!(asked, if answers { 1 } else { 2 });
        let left: &[u16] = if answers { &[1, 2] } else { &[2] };
        assert_eq!(world.members(GROUP), left);
    }
    let fast = PortConf {
        fast_leave: true,
        ..PortConf::default()
    };
    world.snooper.set_port(2, fast);
    world.send(2, &leave(3)).expect("relayed");
    assert_eq!(world.members(GROUP), [] as [u16; 0]);
    assert_eq!(world.snooper.take_queries(), []);
}

/// Where somebody speaks IGMPv1, leaves do not count.
#[test]
fn version_one_stays() {
    let mut world = World::new(conf());
    world.wait(11);
    world.send(1, &v1(0x12, GROUP)).expect("relayed");
    world.send(1, &leave(3)).expect("relayed");
    assert_eq!(world.snooper.take_queries(), []);
    world.wait(100);
    assert_eq!(world.members(GROUP), [1]);
}

/// A lower source takes over, a higher one does not; after its silence ours asks again. Queries of nobody elect nobody.
#[test]
fn queriers_are_elected() {
    let mut world = World::new(conf());
    world.wait(11);
    let ours = Some((IpAddr::from([192, 0, 2, 9]), None));
    for source in [[0, 0, 0, 0], [192, 0, 2, 10]] {
        assert_eq!(world.send(9, &query(source, [0; 4])), Ok(Relay::All));
        assert_eq!(world.snooper.querier(1, Family::V4), ours);
    }
    assert_eq!(world.snooper.routers(1, Family::V4), [9]);
    assert_eq!(
        world.send(9, &query([192, 0, 2, 8], [0; 4])),
        Ok(Relay::All)
    );
    let theirs = Some((IpAddr::from([192, 0, 2, 8]), Some(9)));
    assert_eq!(world.snooper.querier(1, Family::V4), theirs);
    // Ours over IPv6 goes on.
    assert_eq!(world.wait(254).len(), 2);
    assert_eq!(world.snooper.querier(1, Family::V4), theirs);
    assert_eq!(world.snooper.routers(1, Family::V4), [9]);
    world.wait(10);
    assert_eq!(world.snooper.querier(1, Family::V4), ours);
    assert_eq!(world.snooper.routers(1, Family::V4), [] as [u16; 0]);
    assert!(world.is_snooped());

    // Without one of our own everybody gets everything again.
    let mut world = World::new(Conf {
        querier: false,
        ..conf()
    });
    world.wait(300);
    assert!(!world.is_snooped());
    world
        .send(9, &query([192, 0, 2, 8], [0; 4]))
        .expect("relayed");
    world.wait(3);
    assert!(world.is_snooped());
    world.wait(260);
    assert!(!world.is_snooped());
}

/// Another querier's question about a group ends memberships that nobody renews; ours does not, and one that others are not to heed does not.
#[test]
fn questions_of_the_querier_count() {
    let mut world = World::new(Conf {
        address: Ipv4Addr::UNSPECIFIED,
        ..conf()
    });
    world.send(1, &join(3)).expect("relayed");
    world.send(1, &join(4)).expect("relayed");
    world
        .send(9, &query([192, 0, 2, 8], [0; 4]))
        .expect("relayed");
    let asker = Asker {
        mac: [2; 6],
        address: [192, 0, 2, 8].into(),
        robustness: 2,
        interval_s: 125,
    };
    let mut suppressed = asker.query(
        Family::V4,
        Some(IpAddr::from(GROUP)),
        Duration::from_secs(1),
    );
    let at = suppressed.len() - 4;
    suppressed[at] |= 8;
    let body = suppressed.split_off(suppressed.len() - 12);
    world
        .send(9, &igmp([192, 0, 2, 8], GROUP, &body))
        .expect("relayed");
    world.wait(10);
    assert_eq!(world.members(GROUP), [1]);
    world
        .send(9, &query([192, 0, 2, 8], GROUP))
        .expect("relayed");
    world.wait(5);
    assert_eq!(
        (world.members(GROUP), world.members(group(4))),
        (vec![], vec![1])
    );
}

/// What only routers say is refused where none may be, and makes the others' port one of a router.
#[test]
fn routers_are_where_they_may_be() {
    let mut world = World::new(conf());
    let advertisement = igmp(
        [10, 0, 0, 1],
        [224, 0, 0, 106],
        &[0x30, 20, 0, 0, 0, 0, 0, 0],
    );
    let mut hello = vec![0x20, 0, 0, 0, 0, 1, 0, 2, 0, 105];
    let sum = checksum(&hello);
    hello[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut pim = igmp([10, 0, 0, 1], [224, 0, 0, 13], &[0; 8]);
    pim.truncate(34);
    (pim[17], pim[23]) = (30, 103);
    pim[24..26].fill(0);
    let sum = checksum(&pim[14..34]);
    pim[24..26].copy_from_slice(&sum.to_be_bytes());
    pim.extend(hello);
    for frame in [advertisement, pim, query([10, 0, 0, 1], [0; 4])] {
        assert_eq!(world.send(1, &frame), Err(Refused::Router));
        assert_eq!(world.snooper.routers(1, Family::V4), [] as [u16; 0]);
        assert_eq!(world.send(9, &frame), Ok(Relay::All));
        assert_eq!(world.snooper.routers(1, Family::V4), [9]);
        world.snooper.link_down(9);
    }
    assert_eq!(world.snooper.counts(1).refused, 3);
    let always = PortConf {
        routers: Routers::Always,
        ..PortConf::default()
    };
    world.snooper.set_port(2, always);
    assert_eq!(world.snooper.routers(1, Family::V6), [2]);
}

/// A port that joins without end has its limit, and where the bridge is full takes from nobody who has less; each of them keeps room.
#[test]
fn one_port_takes_its_share_only() {
    let mut world = World::new(conf());
    let two = PortConf {
        groups_max: 40,
        ..PortConf::default()
    };
    world.snooper.set_port(2, two);
    for last in 0..=255 {
        world.send(1, &join(last)).expect("relayed");
        world.send(2, &join(last)).expect("relayed");
    }
    let has = |world: &World| [1, 2, 3].map(|port| world.snooper.memberships(port));
    assert_eq!(has(&world), [32, 32, 0]);
    // Nor does one that has as much as another take from it.
    for last in 0..=255 {
        world.send(1, &join(last)).expect("relayed");
    }
    assert_eq!(has(&world), [32, 32, 0]);
    assert!(world.snooper.counts(1).over_limit > 200);
    for last in 0..10 {
        world.send(3, &join(100 + last)).expect("relayed");
    }
    let [one, two, three] = has(&world);
    assert_eq!((one + two, three), (54, 10));
    // Numbers are those of groups, one each.
    let numbers: BTreeSet<_> = world.snooper.groups().map(|g| g.number).collect();
    assert_eq!(numbers.len(), world.snooper.groups().count());
    world.snooper.remove_port(1);
    world.snooper.remove_port(2);
    assert_eq!(
        (world.snooper.groups().count(), has(&world)),
        (10, [0, 0, 10])
    );
    world
        .snooper
        .configure(conf(), &BTreeSet::from([7]), world.now);
    assert_eq!(
        (world.snooper.groups().count(), has(&world)),
        (0, [0, 0, 0])
    );
}

/// A port that is in a group at all times stays there through leaves, questions, silence and a link that goes down; no other port takes
/// its place, and its own limit does not count it.
#[test]
fn static_memberships_stay() {
    let mut world = World::new(conf());
    let fast = PortConf {
        fast_leave: true,
        groups_max: 1,
        ..PortConf::default()
    };
    world.snooper.set_port(1, fast);
    world.send(1, &join(3)).expect("relayed");
    let statics = [3, 4].map(|last| (1, IpAddr::from(group(last))));
    let statics = BTreeSet::from(statics);
    world.snooper.set_static(1, &statics);
    let stays = |world: &World| [3, 4].map(|last| world.members(group(last)).contains(&1));
    for frame in [join(3), leave(3), v1(0x12, GROUP), leave(3)] {
        world.send(1, &frame).expect("relayed");
    }
    world
        .send(9, &query([192, 0, 2, 8], GROUP))
        .expect("relayed");
    world.wait(600);
    world.snooper.link_down(1);
    assert_eq!(
        (stays(&world), world.snooper.memberships(1)),
        ([true; 2], 0)
    );
    world.send(1, &join(5)).expect("relayed");
    assert_eq!(world.members(group(5)), [1]);
    for last in 0..=255 {
        world.send(2, &join(last)).expect("relayed");
    }
    assert_eq!(
        world
            .snooper
            .groups()
            .map(|g| g.ports().count())
            .sum::<usize>(),
        64
    );
    // A full bridge has room for one more of these.
    world
        .snooper
        .set_static(3, &BTreeSet::from([(1, IpAddr::from(group(9)))]));
    assert_eq!(world.members(group(9)).last(), Some(&3));
    assert_eq!(
        world
            .snooper
            .groups()
            .map(|g| g.ports().count())
            .sum::<usize>(),
        64
    );
    let small = Conf {
        groups_max: 1,
        ..conf()
    };
    world
        .snooper
        .configure(small, &BTreeSet::from([1]), world.now);
    assert_eq!(
        (stays(&world), world.snooper.groups().count()),
        ([true; 2], 3)
    );
}

/// One goes when it is told to, with the port, and with the VLAN; it is told anew when the VLAN is back.
#[test]
fn static_memberships_end() {
    let mut world = World::new(conf());
    let here = (1, IpAddr::from(GROUP));
    let all = BTreeSet::from([here, (7, IpAddr::from(GROUP))]);
    world.snooper.set_static(1, &all);
    assert_eq!(
        world.snooper.groups().map(|g| g.vid).collect::<Vec<_>>(),
        [1]
    );
    world
        .snooper
        .configure(conf(), &BTreeSet::from([7]), world.now);
    assert_eq!(world.snooper.groups().count(), 0);
    world.snooper.set_static(1, &all);
    assert_eq!(world.members(GROUP), [1]);
    world.snooper.set_static(1, &BTreeSet::from([here]));
    assert_eq!(world.snooper.groups().count(), 0);
    world.snooper.set_static(1, &all);
    world.snooper.remove_port(1);
    assert_eq!(world.snooper.groups().count(), 0);
}

/// A number is another group's only after very many others, though one port joins and leaves without end.
#[test]
fn numbers_rest() {
    let mut world = World::new(conf());
    let fast = PortConf {
        fast_leave: true,
        ..PortConf::default()
    };
    world.snooper.set_port(1, fast);
    let mut last = std::collections::BTreeMap::new();
    for n in 0..100_000_u32 {
        world.send(1, &join((n % 200) as u8)).expect("relayed");
        let number = world.snooper.groups().next().expect("a group").number;
        if let Some(before) = last.insert(number, n) {
            assert!(n - before > 40_000, "{number}: {before} and {n}");
        }
        world.send(1, &leave((n % 200) as u8)).expect("relayed");
    }
    // No timer is left but those of the VLAN.
    world.snooper.configure(conf(), &BTreeSet::new(), world.now);
    assert_eq!(world.snooper.due(), None);
}

/// After a change of the topology everybody gets everything until receivers have answered.
#[test]
fn a_change_of_topology_opens() {
    let mut world = World::new(conf());
    world.wait(50);
    assert!(world.is_snooped());
    world.snooper.reopen(world.now);
    assert!(!world.is_snooped());
    assert_eq!(world.wait(1).len(), 2);
    world.wait(11);
    assert!(world.is_snooped());
}

/// MLD, both versions; what comes from beyond the link or has no router alert is refused.
#[test]
fn mld_is_read() {
    let mut world = World::new(conf());
    let address: std::net::Ipv6Addr = "ff05::1:3".parse().expect("an address");
    let mut report = vec![131, 0, 0, 0, 0, 0, 0, 0];
    report.extend(address.octets());
    assert_eq!(
        world.send(1, &mld(5, 1, &report)),
        Ok(Relay::Routers(Family::V6))
    );
    let mut second = vec![143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0];
    second.extend(address.octets());
    assert_eq!(
        world.send(2, &mld(6, 1, &second)),
        Ok(Relay::Routers(Family::V6))
    );
    let members: Vec<_> = world
        .snooper
        .groups()
        .next()
        .expect("a group")
        .ports()
        .map(|p| p.0)
        .collect();
    assert_eq!(members, [1, 2]);
    assert_eq!(
        world.send(1, &mld(5, 64, &report)),
        Err(Refused::Malformed(ParseError::Hops(64)))
    );
    let mut bare = mld(5, 1, &report);
    bare.drain(54..62);
    bare[20] = 58;
    bare[19] -= 8;
    assert_eq!(
        world.send(1, &bare),
        Err(Refused::Malformed(ParseError::NoAlert))
    );
    let mut done = vec![132, 0, 0, 0, 0, 0, 0, 0];
    done.extend(address.octets());
    world.wait(11);
    world.send(2, &mld(6, 1, &done)).expect("relayed");
    assert_eq!(world.snooper.take_queries().len(), 1);
}

proptest! {
    /// Whatever comes, the engine keeps its limits, and what is due is never lost; no frame makes it panic.
    #[test]
    fn anything_can_come(
        frames in prop::collection::vec((1..11_u16, 0..12_usize, any::<[u8; 24]>(), 0..30_u64), 0..200)
    ) {
        let mut world = World::new(Conf { groups_max: 20, ..conf() });
        for (port, kind, noise, seconds) in frames {
            let last = noise[0] % 40;
            let frame = match kind {
                0..=3 => join(last),
                4 => leave(last),
                5 => record(noise[1], group(last), &[[1; 4]]),
                6 => query([10, 0, 0, noise[1] % 4], [0; 4]),
                7 => query([10, 0, 0, 1], group(last)),
                8 => mld(noise[2], 1, &noise),
                9 => igmp([10, 0, 0, 1], GROUP, &noise),
                10 => {
                    let mut cut = join(last);
                    cut.truncate(usize::from(noise[1]) % cut.len());
                    cut
                }
                _ => noise.to_vec(),
            };
            let _ = world.send(port, &frame);
            world.wait(seconds);
            let memberships: usize = world.snooper.groups().map(|g| g.ports().count()).sum();
            let of_ports: usize = (1..11).map(|port| world.snooper.memberships(port)).sum();
            prop_assert!(memberships <= 20 && memberships == of_ports);
        }
        for port in [1, 2, 3, 9] {
            world.snooper.remove_port(port);
        }
        world.snooper.configure(conf(), &BTreeSet::new(), world.now);
        prop_assert_eq!(world.snooper.due(), None);
    }
}
