//! Overlays with a kernel's VXLAN as the peer.

mod tunnel;

use std::net::Ipv4Addr;

use windlass_attach::vxlan::Group;
use windlass_bridge::fdb::Key;
use windlass_bridge::member::MemberConf;
use windlass_bridge::vlan::VlanMap;
use windlass_frame::TxId;
use windlass_overlay::Vni;
use windlass_stats::Drop;
use windlass_tests::{Frame, Lab, Mac, Wire, frame, mac, run, until};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link};
use windlass_worker::DataPlaneError;
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::dataplane::overlays::{SourceCheck, TARGETS, TargetTuning};

use tunnel::{Host, MTU, join, target, vni, word};

/// Bytes of a stream.
const BYTES: usize = 16 << 20;
const A: &str = "02:00:00:00:00:0a";

/// A guest behind a TAP and the address of a kernel's VXLAN device, with two namespaces for the underlay.
fn pair(name: &str) -> Option<(Lab, Host, u16)> {
    let lab = Lab::start(name)?;
    for short in ["near", "far", "guest"] {
        lab.namespace(short);
    }
    join(&lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
    let device =
        "link add vx0 mtu 1450 type vxlan id 23 dstport 4789 local 192.0.2.2 remote 192.0.2.1";
    lab.ip("far", device);
    lab.ip("far", "addr add 10.0.0.2/24 dev vx0");
    lab.ip("far", "link set vx0 up");
    let mut host = Host::start();
    host.tap(&lab, "guest", mac(A), "10.0.0.1/24", 1450);
    let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
    host.target(overlay, "192.0.2.2:4789");
    Some((lab, host, overlay))
}

/// A guest and a kernel reach each other.
#[test]
fn a_kernel_answers() {
    let Some((lab, _host, _)) = pair("a_kernel_answers") else {
        return;
    };
    assert!(lab.ping("guest", "10.0.0.2", 5));
    assert!(lab.ping("far", "10.0.0.1", 5));
}

/// TCP passes both ways, whatever is left to be done inside by the kernel's veth: with its offloads and without.
#[test]
fn tcp_passes_both_ways() {
    let Some((lab, host, overlay)) = pair("tcp_passes_both_ways") else {
        return;
    };
    for offloads in ["on", "off"] {
        let mut ethtool = lab.command("far", "ethtool");
        ethtool.args([
            "-K", "to-near", "tx", offloads, "tso", offloads, "gso", offloads,
        ]);
        assert_eq!(run(&mut ethtool).code, 0);
        lab.stream("far", ("guest", "10.0.0.1"), BYTES);
        lab.stream("guest", ("far", "10.0.0.2"), BYTES);
    }
    let totals = host.plane.totals(overlay).expect("an overlay");
    assert!(
        totals.ingress.frames > 0 && totals.egress.segments > 0,
        "{totals:?}"
    );
}

const ALL: Mac = [0xff; 6];
/// Guests of the two remote hosts that are there.
const REMOTE: [Mac; 2] = [[6, 0, 0, 0, 0, 2], [6, 0, 0, 0, 0, 3]];

/// A guest, and three remote endpoints of which one is not there.
struct Hosts {
    lab: Lab,
    host: Host,
    guest: u16,
    overlay: u16,
    places: [u16; 3],
    wire: Wire,
    remote: Vec<Wire>,
}

impl Hosts {
    fn start(name: &str) -> Option<Hosts> {
        let lab = Lab::start(name)?;
        for short in ["near", "far", "third", "guest"] {
            lab.namespace(short);
        }
        let mut host = Host::start();
        let guest = host.tap(&lab, "guest", mac(A), "10.0.0.1/24", MTU);
        let remote = [("far", 2), ("third", 3)].map(|(short, n)| {
            let net = format!("192.0.{n}");
            let ends = (format!("{net}.1/24"), format!("{net}.2/24"));
            join(&lab, ("near", &ends.0), (short, &ends.1));
            let device = format!(
                "link add vx0 mtu 1450 type vxlan id 23 dstport 4789 local {net}.2 remote 192.0.2.1"
            );
            lab.ip(short, &device);
            lab.ip(short, "link set vx0 up");
            Wire::open(&lab, short, "vx0")
        });
        lab.ip("third", "route add default via 192.0.3.1");
        let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
        let places = ["192.0.2.2:4789", "192.0.3.2:4789", "192.0.2.9:4789"];
        Some(Hosts {
            places: places.map(|to| host.target(overlay, to)),
            wire: Wire::open(&lab, "guest", "t0"),
            remote: remote.into(),
            lab,
            host,
            guest,
            overlay,
        })
    }

    /// Sends a frame of the guest's.
    fn say(&self, to: Mac, text: &str) {
        self.wire.send(&frame(to, mac(A), &[], text));
    }

    /// Has both remote guests learned.
    fn learn(&self) {
        for (remote, from) in self.remote.iter().zip(REMOTE) {
            remote.send(&frame(ALL, from, &[], "here"));
            assert!(self.wire.frames_until("here").is_empty());
        }
        until("both are learned", || {
            [0, 1].map(|i| self.behind(REMOTE[i])) == [Some(self.places[0]), Some(self.places[1])]
        });
    }

    fn behind(&self, mac: Mac) -> Option<u16> {
        let entries = self
            .host
            .plane
            .fdb_entries(self.host.bridge)
            .expect("a bridge");
        let mut entries = entries.iter();
        let entry = entries.find(|entry| entry.key == Key::new(0, word(mac)));
        entry.map(|entry| entry.member)
    }
}

fn texts(frames: &[Frame]) -> Vec<String> {
    frames.iter().filter_map(Frame::text).collect()
}

/// A broadcast reaches each endpoint once, beside one that is not there, and comes back to none of them; what is known goes to one
/// alone; remote guests do not reach each other by way of this host.
#[test]
fn floods_reach_each_target_once() {
    let Some(hosts) = Hosts::start("floods_reach_each_target_once") else {
        return;
    };
    assert_eq!(hosts.places, [TARGETS, TARGETS + 1, TARGETS + 2]);
    hosts.say(ALL, "everybody");
    for remote in &hosts.remote {
        assert!(remote.frames_until("everybody").is_empty());
    }
    hosts.learn();
    hosts.say(REMOTE[0], "to far");
    hosts.say(REMOTE[1], "to third");
    hosts.say(ALL, "end");
    assert_eq!(texts(&hosts.remote[0].frames_until("end")), ["to far"]);
    assert_eq!(texts(&hosts.remote[1].frames_until("end")), ["to third"]);
    hosts.remote[0].send(&frame(REMOTE[1], REMOTE[0], &[], "across"));
    hosts.remote[0].send(&frame(mac(A), REMOTE[0], &[], "home"));
    assert!(hosts.wire.frames_until("home").is_empty());
    let drops = hosts.host.plane.drops(hosts.overlay).expect("an overlay");
    assert_eq!(drops[Drop::SameMember as usize], 1);
    // It moves behind the other endpoint by one frame.
    hosts.remote[1].send(&frame(ALL, REMOTE[0], &[], "moved"));
    hosts.wire.frames_until("moved");
    until("it is there", || {
        hosts.behind(REMOTE[0]) == Some(hosts.places[1])
    });
}

/// An endpoint that is removed takes what is known behind it along, and its place is the next one's. An overlay takes its targets
/// and the port of its endpoint along.
#[test]
fn targets_come_and_go() {
    let Some(mut hosts) = Hosts::start("targets_come_and_go") else {
        return;
    };
    hosts.learn();
    let second = hosts.places[1];
    hosts
        .host
        .plane
        .remove_targets(&[second])
        .expect("a target");
    assert_eq!(hosts.behind(REMOTE[1]), None);
    hosts.say(REMOTE[1], "unknown");
    assert!(hosts.remote[0].frames_until("unknown").is_empty());
    assert_eq!(hosts.host.target(hosts.overlay, "192.0.3.2:4789"), second);
    hosts.say(ALL, "again");
    assert!(hosts.remote[1].frames_until("again").is_empty());
    let plane = &mut hosts.host.plane;
    let totals = plane.remove_members(&[hosts.overlay]).expect("an overlay");
    assert!(totals[0].egress.frames >= 4, "{totals:?}");
    assert!(plane.vtep_states().is_empty() && plane.totals(hosts.guest).is_ok());
    let again = hosts
        .host
        .overlay(&hosts.lab, "near", "192.0.2.1:4789", |_| {});
    assert_eq!(hosts.host.target(again, "192.0.2.2:4789"), TARGETS);
    hosts.say(ALL, "once more");
    assert_eq!(texts(&hosts.remote[0].frames_until("once more")), ["again"]);
}

/// VLANs of guests, each of which has its network; the last one keeps its tag in the tunnel.
const VIDS: [u8; 3] = [10, 20, 30];

fn vnis(vids: &[u8]) -> Vec<(u16, Vni)> {
    let network = |vid: &u8| (u16::from(*vid), vni(u32::from(*vid) * 100));
    vids.iter().map(network).collect()
}

/// Guests in those VLANs, and devices of their networks.
fn vlans(lab: &Lab) -> (Host, [Wire; 3], [Wire; 3]) {
    for short in ["near", "far"] {
        lab.namespace(short);
    }
    join(lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
    let tuning = BridgeTuning {
        filtering: true,
        mac: 0,
    };
    let mut host = Host::start_with(tuning, 1);
    let guests = VIDS.map(|vid| {
        let (short, own) = (format!("g{vid}"), [2, 0, 0, 0, 0, vid]);
        lab.namespace(&short);
        let member = host.tap(lab, &short, own, "10.0.0.1/24", MTU);
        let mut conf = MemberConf::new(TxId(0), word(own));
        (conf.pvid, conf.nospoof) = (Some(vid.into()), false);
        host.plane.set_conf(member, conf).expect("a member");
        Wire::open(lab, &short, "t0")
    });
    let remote = VIDS.map(|vid| {
        let device = format!(
            "link add vx{vid} type vxlan id {vid}00 dstport 4789 local 192.0.2.2 remote 192.0.2.1"
        );
        lab.ip("far", &device);
        lab.ip("far", &format!("link set vx{vid} up"));
        Wire::open(lab, "far", &format!("vx{vid}"))
    });
    (host, guests, remote)
}

/// On a bridge with VLANs each has its network: a frame gets to the one of its VLAN and to no other, without its tag or, if it is kept,
/// with it.
#[test]
fn vlans_have_networks() {
    let Some(lab) = Lab::start("vlans_have_networks") else {
        return;
    };
    let (mut host, guests, remote) = vlans(&lab);
    let shared = host.overlay(&lab, "near", "192.0.2.1:4789", |tuning| {
        tuning.vnis = vnis(&VIDS[..2]);
    });
    let kept = host.overlay(&lab, "near", "192.0.2.1:4790", |tuning| {
        (tuning.vnis, tuning.keep_inner_tag) = (vnis(&VIDS[2..]), true);
    });
    let target = |number| TargetTuning {
        vni: vni(number),
        ..target("192.0.2.2:4789")
    };
    for (overlay, number) in [(shared, 1000), (shared, 2000), (kept, 3000)] {
        let place = host.plane.add_target(overlay, target(number));
        assert!(place.is_ok(), "{place:?}");
    }
    let refused = host.plane.add_target(shared, target(3000));
    assert!(matches!(refused, Err(DataPlaneError::NoVni(_))));
    for (vid, guest) in VIDS.iter().zip(&guests) {
        for text in [format!("of {vid}"), "end".into()] {
            guest.send(&frame(ALL, [2, 0, 0, 0, 0, *vid], &[], &text));
        }
    }
    for ((vid, remote), tags) in VIDS.iter().zip(&remote).zip([&[][..], &[], &[30]]) {
        let frames = remote.frames_until("end");
        assert_eq!(texts(&frames), [format!("of {vid}")]);
        assert_eq!(frames[0].vids(), tags);
    }
    for (vid, remote) in VIDS[..2].iter().zip(&remote) {
        for text in [format!("to {vid}"), "end".into()] {
            remote.send(&frame(ALL, [6, 0, 0, 0, 0, *vid], &[], &text));
        }
    }
    for (vid, guest) in VIDS[..2].iter().zip(&guests) {
        assert_eq!(texts(&guest.frames_until("end")), [format!("to {vid}")]);
    }
}

/// What is no target's is in no VLAN where an overlay has several: not in the one that its own tag says, which is another network's.
#[test]
fn a_stranger_chooses_no_vlan() {
    let Some(lab) = Lab::start("a_stranger_chooses_no_vlan") else {
        return;
    };
    let (mut host, _guests, remote) = vlans(&lab);
    let mut open = None;
    let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |tuning| {
        (tuning.vnis, tuning.source_check) = (vnis(&VIDS[..2]), SourceCheck::Open);
        open = Some(tuning.clone());
    });
    let conf = MemberConf {
        pvid: None,
        tagged: VlanMap::of([10, 20]),
        ..MemberConf::new(TxId(0), 0)
    };
    let set = host.plane.set_overlay(overlay, conf, open.expect("it"));
    set.expect("an overlay");
    let tagged = [windlass_tests::vlan_tag(20)];
    remote[0].send(&frame(ALL, [6; 6], &tagged, "of 10"));
    until("it is dropped", || {
        let drops = host.plane.drops(overlay).expect("an overlay");
        drops[Drop::VxlanSource as usize] == 1
    });
}

/// The same over IPv6, at a port of its own.
#[test]
fn tunnels_pass_ipv6() {
    let Some(lab) = Lab::start("tunnels_pass_ipv6") else {
        return;
    };
    for short in ["near", "far", "guest"] {
        lab.namespace(short);
    }
    enable_ipv6(&lab);
    join(&lab, ("near", "2001:db8::1/64"), ("far", "2001:db8::2/64"));
    let device =
        "link add vx0 mtu 1430 type vxlan id 23 dstport 8472 local 2001:db8::2 remote 2001:db8::1";
    lab.ip("far", device);
    lab.ip("far", "addr add 10.0.0.2/24 dev vx0");
    lab.ip("far", "link set vx0 up");
    let mut host = Host::start();
    host.tap(&lab, "guest", mac(A), "10.0.0.1/24", 1430);
    let overlay = host.overlay(&lab, "near", "[2001:db8::1]:8472", |tuning| {
        tuning.mtu = 1430
    });
    host.target(overlay, "[2001:db8::2]:8472");
    assert!(lab.ping("guest", "10.0.0.2", 5));
    lab.stream("far", ("guest", "10.0.0.1"), BYTES);
    lab.stream("guest", ("far", "10.0.0.2"), BYTES);
}

fn enable_ipv6(lab: &Lab) {
    for short in ["near", "far"] {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            lab.within(short, || std::fs::write(path, "0"))
                .expect("IPv6");
        }
    }
}

/// The group is joined again when its link is another one: a new one of the same name, one that the address has moved to, and one of the
/// same number.
fn group_follows_its_link(
    lab: &Lab,
    host: &mut Host,
    (group, near, prefix): (&str, &str, &str),
    build: &dyn Fn(),
) {
    lab.ip("near", "link del to-far");
    host.plane.follow_paths().expect("no worker is late");
    let troubles = host.plane.vtep_states().remove(0).troubles;
    let missing = format!("the group {group} is not joined");
    assert!(troubles.contains(&missing), "{troubles:?}");
    build();
    until("the group is joined again", || {
        host.plane.follow_paths().expect("no worker is late");
        lab.ping("far", "10.0.0.1", 1)
    });
    // The address moves to another link, and the one before stays.
    lab.ip("near", "link add moved type bridge mcast_snooping 0");
    lab.ip("near", "link set to-far master moved");
    lab.ip("near", "link set moved up");
    lab.ip("near", &format!("addr del {near}/{prefix} dev to-far"));
    lab.ip("near", &format!("addr add {near}/{prefix} dev moved nodad"));
    let memberships = || {
        let shown = lab.ip("near", "maddress show dev moved");
        shown.contains(group)
    };
    until("the group is joined on the other link", || {
        host.plane.follow_paths().expect("no worker is late");
        memberships() && lab.ping("far", "10.0.0.1", 1)
    });
    assert!(!lab.ip("near", "maddress show dev to-far").contains(group));
    // A link of the same number, with the same address: the socket's membership went with the one before.
    let index = lab.ip("near", "-o link show dev moved");
    let index = index.split(':').next().expect("a number").to_owned();
    lab.ip("near", "link del moved");
    lab.ip(
        "near",
        &format!("link add moved index {index} type bridge mcast_snooping 0"),
    );
    lab.ip("near", "link set to-far master moved");
    lab.ip("near", "link set moved up");
    lab.ip("near", &format!("addr add {near}/{prefix} dev moved nodad"));
    until("the group is joined on the new link", || {
        host.plane.follow_paths().expect("no worker is late");
        memberships() && lab.ping("far", "10.0.0.1", 1)
    });
}

/// A multicast group stands in the place of remote endpoints; and again when the link to it is another one, whether the one before is gone,
/// stays without the address, or had the same number.
#[test]
fn a_group_stands_for_all_endpoints() {
    let cases = [
        ("a_group_over_ipv4", "192.0.2", "24", "239.1.2.3", MTU),
        ("a_group_over_ipv6", "2001:db8:", "64", "ff05::23", 1430),
    ];
    for (name, net, prefix, group, mtu) in cases {
        let Some(lab) = Lab::start(name) else {
            return;
        };
        for short in ["near", "far", "guest"] {
            lab.namespace(short);
        }
        enable_ipv6(&lab);
        let (colon, open, close) = match group.contains(':') {
            true => (":", "[", "]"),
            false => (".", "", ""),
        };
        let [near, far] = ["1", "2"].map(|n| format!("{net}{colon}{n}"));
        let build = || {
            let ends = [&near, &far].map(|end| format!("{end}/{prefix}"));
            join(&lab, ("near", &ends[0]), ("far", &ends[1]));
            let device = format!(
                "link add vx0 mtu {mtu} type vxlan id 23 dstport 4789 local {far} group {group} dev to-near"
            );
            lab.ip("far", &device);
            lab.ip("far", "addr add 10.0.0.2/24 dev vx0");
            lab.ip("far", "link set vx0 up");
        };
        build();
        let mut host = Host::start();
        host.tap(&lab, "guest", mac(A), "10.0.0.1/24", mtu);
        let local = format!("{open}{near}{close}:4789");
        let overlay = host.overlay(&lab, "near", &local, |tuning| tuning.mtu = mtu);
        let place = host.target(overlay, &format!("{open}{group}{close}:4789"));
        assert!(lab.ping("far", "10.0.0.1", 5));
        assert!(lab.ping("guest", "10.0.0.2", 5));
        let learned = Key::new(0, word(far_mac(&lab)));
        let entries = host.plane.fdb_entries(host.bridge).expect("a bridge");
        assert!(
            entries
                .iter()
                .any(|e| (e.key, e.member) == (learned, place))
        );
        group_follows_its_link(&lab, &mut host, (group, &near, prefix), &build);
        let drops = host.plane.drops(overlay).expect("an overlay");
        assert_eq!(drops[Drop::VxlanSource as usize], 0, "nothing comes back");
        host.plane.remove_targets(&[place]).expect("a target");
        assert_eq!(host.plane.vtep_states().len(), 1);
    }
}

/// What is left of a group on a link that is gone, because a worker is late, takes nothing from the group on a link that got its number.
#[test]
fn a_late_worker_ends_no_membership() {
    let Some(lab) = Lab::start("a_late_worker_ends_no_membership") else {
        return;
    };
    lab.namespace("near");
    lab.within("near", || {
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "0")
    })
    .expect("IPv6");
    for (local, address, group) in [
        ("192.0.2.1:4789", "192.0.2.1/24", "239.1.2.3"),
        ("[2001:db8::1]:4789", "2001:db8::1/64", "ff05::23"),
    ] {
        let build = || {
            lab.ip("near", "link add to-far index 77 type bridge");
            lab.ip("near", "link set to-far up");
            let nodad = if group.contains(':') { "nodad" } else { "" };
            lab.ip("near", &format!("addr add {address} dev to-far {nodad}"));
        };
        build();
        let vtep = tunnel::vtep(&lab, "near", local, 1);
        let join = || Group::join(vtep.clone(), group.parse().expect("a group"));
        let first = join().expect("joined");
        let late = first.rings();
        lab.ip("near", "link del to-far");
        build();
        drop(first);
        let _second = join().expect("joined");
        drop(late);
        let shown = lab.ip("near", "maddress show dev to-far");
        assert!(shown.contains(group), "{shown}");
        lab.ip("near", "link del to-far");
    }
}

/// An endpoint whose address is taken away says so, and goes on with it when it is back, on the same link or another one.
#[test]
fn an_address_comes_back() {
    let Some((lab, mut host, overlay)) = pair("an_address_comes_back") else {
        return;
    };
    assert!(lab.ping("guest", "10.0.0.2", 5));
    lab.ip("near", "addr del 192.0.2.1/24 dev to-far");
    until("frames are dropped for it", || {
        assert!(!lab.ping("guest", "10.0.0.2", 1));
        let drops = host.plane.drops(overlay).expect("an overlay");
        drops[Drop::UnderlayUnreachable as usize] > 0
    });
    let troubles = host.plane.vtep_states().remove(0).troubles;
    assert_eq!(troubles[0], "this host does not have 192.0.2.1 now");
    lab.ip("near", "addr add 192.0.2.1/24 dev to-far");
    until("it goes on", || lab.ping("guest", "10.0.0.2", 1));
    let troubles = host.plane.vtep_states().remove(0).troubles;
    assert_eq!(troubles, <[String; 0]>::default());
    lab.ip("near", "link del to-far");
    assert!(!lab.ping("guest", "10.0.0.2", 1));
    join(&lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
    until("it goes on", || lab.ping("guest", "10.0.0.2", 1));
}

/// When a router has a narrow link, guests are told what the path takes; when the link is wide again, the path is used in full.
#[test]
fn a_path_falls_and_rises() {
    let Some(lab) = Lab::start("a_path_falls_and_rises") else {
        return;
    };
    for short in ["near", "mid", "far", "guest"] {
        lab.namespace(short);
    }
    join(&lab, ("near", "192.0.2.1/24"), ("mid", "192.0.2.254/24"));
    join(
        &lab,
        ("mid", "198.51.100.254/24"),
        ("far", "198.51.100.2/24"),
    );
    lab.ip("near", "route add default via 192.0.2.254");
    lab.ip("far", "route add default via 198.51.100.254");
    lab.within("mid", || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
    })
    .expect("a setting");
    let device =
        "link add vx0 mtu 1450 type vxlan id 23 dstport 4789 local 198.51.100.2 remote 192.0.2.1";
    lab.ip("far", device);
    lab.ip("far", "addr add 10.0.0.2/24 dev vx0");
    lab.ip("far", "link set vx0 up");
    let mut host = Host::start();
    host.tap(&lab, "guest", mac(A), "10.0.0.1/24", MTU);
    let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
    host.target(overlay, "198.51.100.2:4789");
    let long = |lab: &Lab| {
        lab.ip("guest", "route flush cache");
        let mut ping = lab.command("guest", "ping");
        ping.args([
            "-n", "-c", "1", "-W", "1", "-M", "do", "-s", "1400", "10.0.0.2",
        ]);
        run(&mut ping)
    };
    until("long packets pass", || long(&lab).code == 0);
    lab.ip("mid", "link set to-far mtu 1400");
    until("the guest is told", || {
        host.plane.follow_paths().expect("no worker is late");
        long(&lab).out.contains("mtu = 1350")
    });
    assert!(lab.ping("guest", "10.0.0.2", 2), "shorter ones pass");
    let troubles = host.plane.vtep_states().remove(0).troubles;
    assert_eq!(
        troubles,
        ["198.51.100.2: the path takes packets of 1400 bytes"]
    );
    lab.ip("mid", "link set to-far mtu 1500");
    // As after ten minutes: what the router said is forgotten.
    lab.ip("near", "route flush cache");
    until("long packets pass again", || {
        host.plane.follow_paths().expect("no worker is late");
        long(&lab).code == 0
    });
    let troubles = host.plane.vtep_states().remove(0).troubles;
    assert_eq!(troubles, <[String; 0]>::default());
}

/// A guest whose MTU is longer than the tunnel's is told so, by the address that it sends to, and its streams pass.
#[test]
fn a_guest_with_the_wrong_mtu_works() {
    let Some((lab, mut host, _)) = pair("a_guest_with_the_wrong_mtu_works") else {
        return;
    };
    assert!(lab.ping("guest", "10.0.0.2", 5));
    let narrow = TargetTuning {
        mtu: 1300,
        ..target("192.0.2.2:4789")
    };
    host.plane.set_target(TARGETS, narrow).expect("a target");
    let mut ping = lab.command("guest", "ping");
    ping.args([
        "-n", "-c", "1", "-W", "2", "-M", "do", "-s", "1400", "10.0.0.2",
    ]);
    let told = run(&mut ping).out;
    assert!(
        told.contains("From 10.0.0.2") && told.contains("mtu = 1300"),
        "{told}"
    );
    lab.ip("guest", "route flush cache");
    lab.stream("guest", ("far", "10.0.0.2"), BYTES);
    // Not more often than is allowed, however many are too long.
    let drops = |host: &Host| host.plane.drops(0).expect("a guest")[Drop::Mtu as usize];
    let own = |host: &Host| host.plane.totals(0).expect("a guest").egress.own_frames;
    let (before, told) = (drops(&host), own(&host));
    let wire = Wire::open(&lab, "guest", "t0");
    let mut long = packet(mac(A), &[7; 1400]);
    long[..6].copy_from_slice(&far_mac(&lab));
    (0..500).for_each(|_| wire.send(&long));
    until("they are dropped", || drops(&host) == before + 500);
    assert!(
        (1..100).contains(&(own(&host) - told)),
        "{}",
        own(&host) - told
    );
}

/// A datagram of the guest's to its peer.
fn packet(from: Mac, payload: &[u8]) -> Vec<u8> {
    let link = Link {
        dst: MacAddr([0; 6]),
        src: MacAddr(from),
        tag: None,
    };
    let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut bytes = vec![0; payload.len() + 100];
    let len = build::udp_frame(&mut bytes, &link, &ends, (7, 7), payload).expect("room");
    bytes.truncate(len);
    bytes
}

/// The address of the far kernel's device.
fn far_mac(lab: &Lab) -> [u8; 6] {
    let text = lab.ip("far", "-o link show vx0");
    let (_, rest) = text.split_once("link/ether ").expect("an address");
    mac(&rest[..17])
}

/// A hundred thousand entries are pushed in one call while a guest is answered; they are there, no frame moves them, and they go as they
/// came. A network that another overlay has is refused, and a place of no target.
#[test]
fn many_entries_are_pushed() {
    const ENTRIES: u64 = 100_000;
    let Some((lab, mut host, overlay)) = pair("many_entries_are_pushed") else {
        return;
    };
    let entries = |place: Option<u16>| -> Vec<_> {
        (0..ENTRIES).map(|n| (0, 0x06 | n << 8, place)).collect()
    };
    assert!(lab.ping("guest", "10.0.0.2", 5));
    let before = host.plane.fdb_counts(host.bridge);
    host.plane
        .push_entries(host.bridge, entries(Some(TARGETS)))
        .expect("room");
    let held = host.plane.fdb_entries(host.bridge).expect("a bridge");
    let pushed = held
        .iter()
        .filter(|e| e.member == TARGETS && e.flags.is_static());
    assert_eq!(pushed.count() as u64, ENTRIES);
    assert!(lab.ping("guest", "10.0.0.2", 5));
    let forged = frame(ALL, [6, 1, 0, 0, 0, 0], &[], "forged");
    Wire::open(&lab, "guest", "t0").send(&forged);
    until("it is refused", || {
        let drops = host.plane.drops(0).expect("a guest");
        drops[Drop::StickySource as usize] == 1
    });
    host.plane
        .push_entries(host.bridge, entries(None))
        .expect("they go");
    let held = host.plane.fdb_entries(host.bridge).expect("a bridge");
    assert!(
        !held
            .iter()
            .any(|e| e.member == TARGETS && e.flags.is_static())
    );
    assert!(before.is_ok() && lab.ping("guest", "10.0.0.2", 5));
    let refused = host.plane.set_target(TARGETS + 9, target("192.0.2.2:4789"));
    assert!(matches!(refused, Err(DataPlaneError::NoTarget(_))));
    assert!(matches!(
        host.plane.remove_targets(&[TARGETS + 9]),
        Err(DataPlaneError::NoTarget(_))
    ));
    let _ = overlay;
}
