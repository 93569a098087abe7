//! Overlays with a kernel's VXLAN as the peer.

mod tunnel;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use windlass_bridge::fdb::Key;
use windlass_bridge::member::MemberConf;
use windlass_frame::TxId;
use windlass_stats::Drop;
use windlass_tests::{Frame, Lab, Wire, frame, mac, run, uninterrupted, until};
use windlass_worker::DataPlaneError;
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::dataplane::overlays::{TARGETS, TargetTuning};

use tunnel::{Host, MTU, join, target, vni, word};

/// Bytes of a stream.
const BYTES: usize = 16 << 20;
/// How long a stream may stand still.
const PATIENCE: Duration = Duration::from_secs(20);
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
        stream(&lab, ("guest", "10.0.0.1"), "far");
        stream(&lab, ("far", "10.0.0.2"), "guest");
    }
    let totals = host.plane.totals(overlay).expect("an overlay");
    assert!(
        totals.ingress.frames > 0 && totals.egress.segments > 0,
        "{totals:?}"
    );
}

/// Three remote endpoints, of which one is not there: a broadcast reaches each of the others once, and comes back to none of them; what
/// is known goes to one alone. An endpoint that is removed gets nothing more, and its place can be another's.
#[test]
fn floods_reach_each_target_once() {
    let Some(lab) = Lab::start("floods_reach_each_target_once") else {
        return;
    };
    for short in ["near", "far", "third", "guest"] {
        lab.namespace(short);
    }
    let mut host = Host::start();
    let guest = host.tap(&lab, "guest", mac(A), "10.0.0.1/24", MTU);
    let mut wires = Vec::new();
    for (short, n) in [("far", 2), ("third", 3)] {
        let net = format!("192.0.{n}");
        join(
            &lab,
            ("near", &format!("{net}.1/24")),
            (short, &format!("{net}.2/24")),
        );
        if n == 3 {
            lab.ip("third", "route add default via 192.0.3.1");
        }
        let device = format!(
            "link add vx0 mtu 1450 type vxlan id 23 dstport 4789 local {net}.2 remote 192.0.2.1"
        );
        lab.ip(short, &device);
        lab.ip(short, "link set vx0 up");
        wires.push(Wire::open(&lab, short, "vx0"));
    }
    let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
    let places = ["192.0.2.2:4789", "192.0.3.2:4789", "192.0.2.9:4789"];
    let places = places.map(|to| host.target(overlay, to));
    assert_eq!(places, [TARGETS, TARGETS + 1, TARGETS + 2]);
    let wire = Wire::open(&lab, "guest", "t0");
    let (all, far, third) = (
        [0xff; 6],
        mac("06:00:00:00:00:02"),
        mac("06:00:00:00:00:03"),
    );
    let texts = |frames: &[Frame]| -> Vec<_> { frames.iter().filter_map(Frame::text).collect() };
    // A broadcast of the guest.
    wire.send(&frame(all, mac(A), &[], "everybody"));
    for remote in &wires {
        assert!(remote.frames_until("everybody").is_empty());
    }
    // Broadcasts of remote guests reach this one and no other remote one; they are learned.
    wires[0].send(&frame(all, far, &[], "of far"));
    wires[1].send(&frame(all, third, &[], "of third"));
    let came = [wire.frames_until("of far"), wire.frames_until("of third")];
    assert!(
        texts(&came.concat())
            .iter()
            .all(|text| text == "everybody" || text.starts_with("of "))
    );
    let behind = |host: &Host, mac| {
        let entries = host.plane.fdb_entries(host.bridge).expect("a bridge");
        let key = Key::new(0, word(mac));
        entries
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| entry.member)
    };
    until("both are learned", || {
        behind(&host, far) == Some(places[0]) && behind(&host, third) == Some(places[1])
    });
    wire.send(&frame(far, mac(A), &[], "to far"));
    wire.send(&frame(third, mac(A), &[], "to third"));
    wire.send(&frame(all, mac(A), &[], "end"));
    assert_eq!(texts(&wires[0].frames_until("end")), ["to far"]);
    assert_eq!(texts(&wires[1].frames_until("end")), ["to third"]);
    // From one remote guest to another: not by way of this host.
    wires[0].send(&frame(third, far, &[], "across"));
    wires[0].send(&frame(mac(A), far, &[], "home"));
    assert!(wire.frames_until("home").is_empty());
    let crossed = host.plane.drops(overlay).expect("an overlay")[Drop::SameMember as usize];
    assert_eq!(crossed, 1);
    // It moves behind the other, by one frame.
    wires[1].send(&frame(all, far, &[], "moved"));
    wire.frames_until("moved");
    until("it is there", || behind(&host, far) == Some(places[1]));
    // The second endpoint goes with what is known behind it; its place is the next one's.
    host.plane.remove_targets(&[places[1]]).expect("a target");
    assert_eq!(behind(&host, far), None);
    wire.send(&frame(far, mac(A), &[], "unknown"));
    wires[0].frames_until("unknown");
    assert_eq!(host.target(overlay, "192.0.3.2:4789"), places[1]);
    wire.send(&frame(all, mac(A), &[], "again"));
    assert!(texts(&wires[1].frames_until("again")).is_empty());
    // The overlay goes with its targets, the endpoint's port is free, and the guest stays.
    let totals = host.plane.remove_members(&[overlay]).expect("an overlay");
    assert!(totals[0].egress.frames >= 10, "{totals:?}");
    assert!(host.plane.vtep_states().is_empty());
    let again = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
    assert_eq!(host.target(again, "192.0.2.2:4789"), TARGETS);
    wire.send(&frame(all, mac(A), &[], "once more"));
    wires[0].frames_until("once more");
    assert!(host.plane.totals(guest).is_ok());
}

/// On a bridge with VLANs each has its network: a frame gets to the one of its VLAN and to no other, without its tag or, if it is kept,
/// with it.
#[test]
fn vlans_have_networks() {
    let Some(lab) = Lab::start("vlans_have_networks") else {
        return;
    };
    for short in ["near", "far"] {
        lab.namespace(short);
    }
    join(&lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
    for vid in [10, 20, 30] {
        let device = format!(
            "link add vx{vid} type vxlan id {vid}00 dstport 4789 local 192.0.2.2 remote 192.0.2.1"
        );
        lab.ip("far", &device);
        lab.ip("far", &format!("link set vx{vid} up"));
    }
    let mut host = Host::start_with(BridgeTuning {
        filtering: true,
        mac: 0,
    });
    for vid in [10, 20, 30] {
        lab.namespace(&format!("g{vid}"));
    }
    let mut guests = Vec::new();
    for vid in [10, 20, 30] {
        let (short, own) = (format!("g{vid}"), [2, 0, 0, 0, 0, vid as u8]);
        let member = host.tap(&lab, &short, own, "10.0.0.1/24", MTU);
        let mut conf = MemberConf::new(TxId(0), word(own));
        (conf.pvid, conf.nospoof) = (Some(vid), false);
        host.plane.set_conf(member, conf).expect("a member");
        guests.push(Wire::open(&lab, &short, "t0"));
    }
    let vnis = |vids: &[u16]| {
        vids.iter()
            .map(|vid| (*vid, vni(u32::from(*vid) * 100)))
            .collect()
    };
    let shared = host.overlay(&lab, "near", "192.0.2.1:4789", |tuning| {
        tuning.vnis = vnis(&[10, 20]);
    });
    let vtep = tunnel::vtep(&lab, "near", "192.0.2.1:4790");
    let mut add = |overlay, vid: u32, to: &str| {
        let target = TargetTuning {
            vni: vni(vid * 100),
            ..target(to)
        };
        host.plane.add_target(overlay, target)
    };
    add(shared, 10, "192.0.2.2:4789").expect("a target");
    add(shared, 20, "192.0.2.2:4789").expect("a target");
    assert!(matches!(
        add(shared, 30, "192.0.2.2:4789"),
        Err(DataPlaneError::NoVni(_))
    ));
    let kept = host.overlay(&lab, "near", "192.0.2.1:4791", |tuning| {
        tuning.vnis = vnis(&[30]);
        tuning.vtep = vtep;
        tuning.keep_inner_tag = true;
    });
    let target = TargetTuning {
        vni: vni(3000),
        ..target("192.0.2.2:4789")
    };
    host.plane.add_target(kept, target).expect("a target");
    let remote = [10, 20, 30].map(|vid| Wire::open(&lab, "far", &format!("vx{vid}")));
    let all = [0xff; 6];
    for (vid, guest) in [10, 20, 30].iter().zip(&guests) {
        let text = format!("of {vid}");
        guest.send(&frame(all, [2, 0, 0, 0, 0, *vid], &[], &text));
    }
    for (i, remote) in remote.iter().enumerate() {
        let frames = remote.frames_during(Duration::from_millis(500));
        let texts: Vec<_> = frames.iter().filter_map(Frame::text).collect();
        assert_eq!(texts, [format!("of {}0", i + 1)]);
        let vids = if i == 2 { vec![30] } else { vec![] };
        assert_eq!(frames[0].vids(), vids);
    }
    for (vid, remote) in [10, 20].iter().zip(&remote) {
        remote.send(&frame(
            all,
            [6, 0, 0, 0, 0, *vid],
            &[],
            &format!("to {vid}"),
        ));
    }
    for (vid, guest) in [10, 20].iter().zip(&guests) {
        let frames = guest.frames_during(Duration::from_millis(300));
        let texts: Vec<_> = frames.iter().filter_map(Frame::text).collect();
        assert_eq!(texts, [format!("to {vid}")]);
    }
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
    for short in ["near", "far"] {
        lab.within(short, || {
            for which in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
                std::fs::write(path, "0").expect("IPv6");
            }
        });
    }
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
    stream(&lab, ("guest", "10.0.0.1"), "far");
    stream(&lab, ("far", "10.0.0.2"), "guest");
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
    let forged = frame([0xff; 6], [6, 1, 0, 0, 0, 0], &[], "forged");
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

/// A listener in one namespace gets a stream from another, whole.
fn stream(lab: &Lab, (receiver, address): (&str, &str), sender: &str) {
    let listener = lab
        .within(receiver, || TcpListener::bind((address, 0)))
        .expect("a port");
    let to = listener.local_addr().expect("an address");
    let sent: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = lab
                .within(sender, || TcpStream::connect(to))
                .expect("a connection");
            stream.write_all(&sent).expect("sent");
        });
        let (mut stream, _) = uninterrupted(|| listener.accept()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut got = Vec::new();
        while uninterrupted(|| (&mut stream).take(1 << 20).read_to_end(&mut got)).expect("bytes")
            > 0
        {}
        assert!(got == sent, "{} of {}", got.len(), sent.len());
    });
}
