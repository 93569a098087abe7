//! Where multicast goes on a bridge that snoops.

use std::net::IpAddr;

use windlass_bridge::fdb::{Fdb, Key, Limits, NoReaders, Sightings};
use windlass_bridge::flood::FloodKind;
use windlass_bridge::forward::{Bridge, BridgeConf};
use windlass_bridge::groups::{GROUPS_MAX, GroupConf, GroupVlan, GroupsConf, routers};
use windlass_bridge::member::{MemberConf, PortState};
use windlass_bridge::vlan::VlanMap;
use windlass_frame::{Claim, HEADROOM, Heads, RxId, Tick, TxId, Verdict};
use windlass_stats::Drop;

const NOW: Tick = Tick(7_000_000_000);

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Members 1 to 6 in VLAN 1; 7 in VLAN 2 and, tagged, in 1. Routers of VLAN 1 and IPv4 are behind 6, which is no VNIC; 2 and 7 are in 239.1.2.3, 3 in ff05::5; 2 is private, as 4 is.
fn bridge(flood_unknown: bool, is_snooped: bool) -> Bridge {
    let members = (1..=7_u16).map(|id| {
        let mac = Key::from_octets(0, [2, 0, 0, 0, 0, id as u8]).mac();
        MemberConf {
            nospoof: false,
            storm_limit: 0,
            private: matches!(id, 2 | 4),
            host: id != 6,
            pvid: Some(if id == 7 { 2 } else { 1 }),
            tagged: VlanMap::of((id == 7).then_some(1)),
            ..MemberConf::new(TxId(id), mac)
        }
    });
    let (fdb, _) = Fdb::new(Limits::new(256, [1, 2]), NoReaders);
    let bridge = Bridge::new(BridgeConf {
        fdb,
        filtering: true,
        mac: 0,
        members: members.collect(),
        groups: None,
    });
    bridge.with_groups(&GroupsConf {
        vlans: [false, true]
            .map(|is_v6| GroupVlan {
                vid: 1,
                is_v6,
                is_snooped,
                routers: if is_v6 { vec![] } else { vec![6] },
            })
            .to_vec(),
        groups: [
            ("239.1.2.3", 5, vec![7, 2]),
            ("ff05::5", GROUPS_MAX - 1, vec![3]),
        ]
        .map(|(group, number, members)| GroupConf {
            vid: 1,
            address: address(group),
            number,
            members,
        })
        .to_vec(),
        flood_unknown,
        ..GroupsConf::default()
    })
}

fn ipv4(to: [u8; 4], proto: u8) -> Vec<u8> {
    let mut frame = vec![
        1,
        0,
        0x5e,
        to[1] & 0x7f,
        to[2],
        to[3],
        2,
        0,
        0,
        0,
        9,
        9,
        8,
        0,
    ];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, proto, 0, 0, 10, 0, 0, 1]);
    frame.extend(to);
    frame.resize(60, 0);
    frame
}

fn ipv6(to: &str, headers: &[u8]) -> Vec<u8> {
    let IpAddr::V6(to) = address(to) else {
        panic!("{to}")
    };
    let to = to.octets();
    let mut frame = vec![0x33, 0x33, to[12], to[13], to[14], to[15], 2, 0, 0, 0, 9, 9];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, headers[0], 1]);
    frame.extend([0; 16]);
    frame.extend(to);
    frame.extend(&headers[1..]);
    frame.resize(frame.len() + 30, 0);
    frame
}

/// What becomes of one frame, and who gets it.
fn send(bridge: &Bridge, from: u16, frame: &[u8]) -> (Verdict, Vec<(u16, bool)>) {
    let (mut heads, mut sightings) = (Heads::boxed(), Sightings::new());
    heads.clear(RxId(from), NOW);
    let have = frame.len().min(128);
    heads.snap[0].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
    heads.admit(0, frame.len() as u32, Claim::NONE);
    heads.n = 1;
    let tally = bridge.forward(&mut heads, &mut sightings);
    assert_eq!(tally.flooded + tally.dropped + tally.local, 1, "{tally:?}");
    let verdict = heads.verdict[0];
    let set = verdict.as_flood().and_then(|id| bridge.flood(id));
    let from = bridge.flood_from(from);
    let to = set.into_iter().flat_map(|set| set.each(from));
    (verdict, to.map(|to| (to.id.0, to.tagged)).collect())
}

fn receivers(bridge: &Bridge, from: u16, frame: &[u8]) -> Vec<u16> {
    let (_, to) = send(bridge, from, frame);
    to.into_iter().map(|(id, _)| id).collect()
}

/// Groups go to their members and routers, others to routers or everybody; what is everybody's, and what is no IP, to everybody.
#[test]
fn groups_have_receivers() {
    let (narrow, wide) = (bridge(false, true), bridge(true, true));
    let group = ipv4([239, 1, 2, 3], 17);
    assert_eq!(
        send(&narrow, 1, &group).1,
        [(2, false), (6, false), (7, true)]
    );
    assert_eq!(receivers(&narrow, 4, &group), [6, 7]);
    assert_eq!(
        receivers(
            &narrow,
            7,
            &[&group[..12], &[0x81, 0, 0, 1], &group[12..]].concat()
        ),
        [2, 6]
    );
    let other = ipv4([239, 9, 9, 9], 17);
    assert_eq!(receivers(&narrow, 1, &other), [6]);
    assert_eq!(receivers(&wide, 1, &other), [2, 3, 4, 5, 6, 7]);
    assert_eq!(
        send(&narrow, 6, &other).0.as_drop(),
        Some(Drop::NoDestination)
    );
    assert_eq!(receivers(&narrow, 1, &ipv6("ff05::5", &[17])), [3]);
    let nobody = send(&narrow, 1, &ipv6("ff05::6", &[17]));
    assert_eq!(nobody.0.as_drop(), Some(Drop::NoDestination));
    let mut arp = group.clone();
    (arp[12], arp[13]) = (8, 6);
    let all = [
        ipv4([224, 0, 0, 251], 17),
        ipv4([10, 0, 0, 7], 17),
        ipv6("ff02::1", &[17]),
        ipv6("ff01::5", &[17]),
        arp,
        [&group[..14]].concat(),
        group[..30].to_vec(),
    ];
    for frame in all {
        assert_eq!(receivers(&narrow, 1, &frame), [2, 3, 4, 5, 6, 7]);
    }
    // Another VLAN is not snooped; nor is one that was not asked yet.
    assert_eq!(
        send(&narrow, 7, &group).0.as_drop(),
        Some(Drop::NoDestination)
    );
    assert_eq!(
        receivers(&bridge(false, false), 1, &group),
        [2, 3, 4, 5, 6, 7]
    );
}

/// What receivers and routers say is the daemon's, at a rate for each member; fragments and headers that are far behind do not hide it.
#[test]
fn reports_are_the_daemons() {
    let bridge = bridge(false, false);
    let mut far = ipv6("ff02::16", &[0, 58, 30]);
    far.resize(400, 0);
    let frames = [
        ipv4([239, 1, 2, 3], 2),
        ipv4([224, 0, 0, 22], 2),
        ipv4([224, 0, 0, 13], 103),
        ipv6("ff02::16", &[0, 58, 0, 5, 2, 0, 0, 1, 0, 143]),
        ipv6("ff02::1", &[58, 130]),
        ipv6("ff02::d", &[103]),
        far,
    ];
    for frame in frames {
        let verdict = send(&bridge, 1, &frame).0;
        assert_eq!(verdict, Verdict::SNOOPED, "{frame:?}");
    }
    for frame in [
        ipv4([224, 0, 0, 14], 103),
        ipv6("ff02::16", &[0, 58, 0, 5, 2, 0, 0, 1, 0, 136]),
        ipv6("ff02::1:ff00:1", &[58, 135]),
    ] {
        assert!(send(&bridge, 1, &frame).0.as_flood().is_some(), "{frame:?}");
    }
    let report = ipv4([239, 1, 2, 3], 2);
    let passed = (0..100).filter(|_| send(&bridge, 2, &report).0 == Verdict::SNOOPED);
    assert_eq!(passed.count(), 26);
    assert_eq!(send(&bridge, 2, &report).0.as_drop(), Some(Drop::LocalFull));
    assert_eq!(send(&bridge, 3, &report).0, Verdict::SNOOPED);
}

/// Sets are found by their numbers while a topology has them, and by no other number; without snooping nothing is different.
#[test]
fn sets_have_numbers() {
    let snooping = bridge(false, true);
    let set = snooping.flood(routers(1, false)).expect("a set");
    assert_eq!(set.each(snooping.flood_from(1)).count(), 1);
    assert!(snooping.flood(routers(1, true)).expect("a set").is_empty());
    assert!(snooping.flood(routers(2, false)).is_none());
    let conf = GroupsConf::default();
    let none = snooping.with_groups(&conf);
    let (verdict, to) = send(&snooping, 1, &ipv4([239, 1, 2, 3], 17));
    assert_eq!(to.len(), 3);
    assert!(none.flood(verdict.as_flood().expect("a flood")).is_none());
    assert!(none.flood(FloodKind::Group.id(1)).is_some());
}

/// A member that spanning tree has stopped is in no group's set.
#[test]
fn stopped_members_get_nothing() {
    let members = (1..=3_u16).map(|id| MemberConf {
        nospoof: false,
        state: if id == 2 {
            PortState::Discarding
        } else {
            PortState::Forwarding
        },
        ..MemberConf::new(TxId(id), 0)
    });
    let (fdb, _) = Fdb::new(Limits::new(256, [1, 2]), NoReaders);
    let groups = GroupsConf {
        vlans: vec![GroupVlan {
            vid: 0,
            is_v6: false,
            is_snooped: true,
            routers: vec![],
        }],
        groups: vec![GroupConf {
            vid: 0,
            address: address("239.1.2.3"),
            number: 0,
            members: vec![2, 3, 9],
        }],
        flood_unknown: false,
        ..GroupsConf::default()
    };
    let bridge = Bridge::new(BridgeConf {
        fdb,
        filtering: false,
        mac: 0,
        members: members.collect(),
        groups: Some(groups.into()),
    });
    assert_eq!(receivers(&bridge, 1, &ipv4([239, 1, 2, 3], 17)), [3]);
}

/// A bridge that does not filter VLANs snoops, too: all frames are in VLAN 0, whatever tags they have.
#[test]
fn a_bridge_without_vlans_snoops() {
    let members = (1..=4_u16).map(|id| MemberConf {
        nospoof: false,
        horizon: u16::from(id == 4),
        ..MemberConf::new(TxId(id), 0)
    });
    let (fdb, _) = Fdb::new(Limits::new(256, [1, 2]), NoReaders);
    let [known, other] = [[239, 1, 2, 3], [239, 9, 9, 9]];
    let groups = GroupsConf {
        vlans: vec![GroupVlan {
            vid: 0,
            is_v6: false,
            is_snooped: true,
            routers: vec![],
        }],
        groups: vec![GroupConf {
            vid: 0,
            address: IpAddr::from(known),
            number: 0,
            members: vec![2],
        }],
        ..GroupsConf::default()
    };
    let bridge = Bridge::new(BridgeConf {
        fdb,
        filtering: false,
        mac: 0,
        members: members.collect(),
        groups: Some(groups.into()),
    });
    let group = ipv4(known, 17);
    assert_eq!(receivers(&bridge, 1, &group), [2, 4]);
    assert_eq!(receivers(&bridge, 1, &ipv4(other, 17)), [4]);
    assert_eq!(receivers(&bridge, 4, &group), [2]);
    // What has a tag is not IPv4 here.
    let tag = [0x81, 0, 0, 5];
    let tagged = [&group[..12], &tag[..], &group[12..]].concat();
    assert_eq!(receivers(&bridge, 1, &tagged), [2, 3, 4]);
}

/// Where the bridge answers, questions for neighbours are the daemon's at a rate, and everybody's above it; nothing else is.
#[test]
fn questions_are_the_daemons() {
    let plain = bridge(false, false);
    let answers = plain.with_groups(&GroupsConf {
        answers: true,
        ..GroupsConf::default()
    });
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 9, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.resize(60, 0);
    let mut reply = arp.clone();
    reply[21] = 2;
    let mut headers = [58, 135];
    for kind in [135, 136] {
        headers[1] = kind;
        let question = ipv6("ff02::1:ff00:1", &headers);
        assert_eq!(send(&answers, 1, &question).0, Verdict::SNOOPED);
        assert!(send(&plain, 1, &question).0.as_flood().is_some());
    }
    for frame in [
        reply,
        arp[..20].to_vec(),
        ipv4([239, 1, 2, 3], 2),
        ipv6("ff02::1", &[58, 134]),
    ] {
        assert_eq!(receivers(&answers, 1, &frame), [2, 3, 4, 5, 6, 7]);
    }
    let way = |_| send(&answers, 2, &arp).0;
    let ways: Vec<_> = (0..100).map(way).collect();
    let (asked, flooded) = ways.split_at(26);
    assert!(asked.iter().all(|way| *way == Verdict::SNOOPED));
    assert!(flooded.iter().all(|way| way.as_flood().is_some()));
}

/// Where the bridge serves its hosts, what they ask DHCP servers and routers is the daemon's at a rate, above which it is dropped.
#[test]
fn requests_of_hosts_are_the_daemons() {
    let plain = bridge(false, false);
    let serves = plain.with_groups(&GroupsConf {
        serves: vec![1],
        ..GroupsConf::default()
    });
    let discover = |port: u8, part: u8, options: usize| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 9, 9, 8, 0, 0x45 + options as u8, 0, 0, 0]);
        frame.extend([0, 0, part, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        frame.resize(34 + 4 * options, 0);
        frame.extend([0, 68, 0, port]);
        frame.resize(80, 0);
        frame
    };
    let v6 = |next: &[u8], port: u16| {
        let mut frame = ipv6("ff02::1:2", next);
        frame.truncate(14 + 40);
        frame.extend([2, 34]);
        frame.extend(port.to_be_bytes());
        frame.resize(80, 0);
        frame
    };
    let mine = [
        discover(67, 0, 0),
        discover(67, 0x20, 10),
        v6(&[17], 547),
        ipv6("ff02::2", &[58, 133]),
        ipv6("ff02::1", &[58, 134]),
    ];
    for frame in &mine {
        assert_eq!(send(&serves, 1, frame).0, Verdict::SNOOPED);
        assert!(send(&plain, 1, frame).0.as_flood().is_some());
    }
    let others = [
        discover(68, 0, 0),
        discover(67, 0x21, 0),
        discover(67, 0, 0)[..30].to_vec(),
        v6(&[17], 546),
        v6(&[17], 547)[..40].to_vec(),
        ipv6("ff02::1", &[58, 135]),
    ];
    for frame in others {
        assert_eq!(receivers(&serves, 1, &frame), [2, 3, 4, 5, 6, 7]);
    }
    let ways: Vec<_> = (0..50).map(|_| send(&serves, 2, &mine[0]).0).collect();
    let (asked, dropped) = ways.split_at(6);
    assert!(asked.iter().all(|way| *way == Verdict::SNOOPED));
    let full = Verdict::drop(Drop::LocalFull);
    assert!(dropped.iter().all(|way| *way == full));
}

/// What is no VNIC asks everybody at any rate, and so does all in a VLAN in which the bridge serves nobody.
#[test]
fn others_ask_everybody() {
    let mut advertisement = ipv6("ff02::1", &[58, 134]);
    let serving = |vlans: &[u16]| {
        bridge(false, false).with_groups(&GroupsConf {
            serves: vlans.to_vec(),
            ..GroupsConf::default()
        })
    };
    let bridge = serving(&[1]);
    for _ in 0..50 {
        assert_eq!(receivers(&bridge, 6, &advertisement), [1, 2, 3, 4, 5, 7]);
    }
    assert_eq!(send(&bridge, 1, &advertisement).0, Verdict::SNOOPED);
    let elsewhere = serving(&[2]);
    for _ in 0..50 {
        assert_eq!(receivers(&elsewhere, 1, &advertisement), [2, 3, 4, 5, 6, 7]);
    }
    advertisement.splice(12..12, [0x81, 0, 0, 1]);
    assert_eq!(receivers(&elsewhere, 7, &advertisement), [1, 2, 3, 4, 5, 6]);
    assert_eq!(send(&bridge, 7, &advertisement).0, Verdict::SNOOPED);
}

/// What comes out of a tunnel is read by nobody here: it goes on to members. Who is behind a tunnel is not known either, so every group goes there.
#[test]
fn tunnels_carry_every_group() {
    let members = (1..=4_u16).map(|id| MemberConf {
        nospoof: false,
        horizon: u16::from(id > 2),
        host: id <= 2,
        pvid: Some(1),
        ..MemberConf::new(TxId(id), 0)
    });
    let (fdb, _) = Fdb::new(Limits::new(256, [1, 2]), NoReaders);
    let [known, unknown] = [[239, 1, 2, 3], [239, 9, 9, 9]];
    let groups = GroupsConf {
        vlans: vec![GroupVlan {
            vid: 1,
            is_v6: false,
            is_snooped: true,
            routers: vec![],
        }],
        groups: vec![GroupConf {
            vid: 1,
            address: IpAddr::from(known),
            number: 0,
            members: vec![2],
        }],
        flood_unknown: false,
        answers: true,
        serves: vec![1],
    };
    let bridge = Bridge::new(BridgeConf {
        fdb,
        filtering: true,
        mac: 0,
        members: members.collect(),
        groups: Some(groups.into()),
    });
    assert_eq!(receivers(&bridge, 1, &ipv4(known, 17)), [2, 3, 4]);
    assert_eq!(receivers(&bridge, 1, &ipv4(unknown, 17)), [3, 4]);
    assert_eq!(receivers(&bridge, 3, &ipv4(known, 17)), [2]);
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 9, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.resize(60, 0);
    for frame in [
        arp,
        ipv4(known, 2),
        ipv6("ff02::1:ff00:1", &[58, 135]),
        ipv6("ff02::2", &[58, 133]),
    ] {
        assert_eq!(send(&bridge, 1, &frame).0, Verdict::SNOOPED);
        assert_eq!(receivers(&bridge, 3, &frame), [1, 2]);
    }
}
