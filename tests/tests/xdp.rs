//! Uplinks by AF_XDP: a veth pair, one end of which is the uplink's.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use windlass_attach::xdp::{Attached, XdpConf};
use windlass_sys::netlink::Netlink;
use windlass_sys::xdp::Divert;
use windlass_tests::{
    Daemon, Lab, Wire, frame, mac, run, uninterrupted, until, until_some, vlan_tag,
};

const GUEST: &str = "02:00:00:00:00:0a";
const OUTSIDE: &str = "02:00:00:00:00:ee";

/// A host with the interface `up0` of two queues, whose other end is `eth0` in "wire" with 10.1.0.8; a guest "a" with
/// 10.1.0.1. None where a tool is missing.
fn host_with_a_wire(name: &str) -> Option<(Lab, Daemon)> {
    let lab = Lab::start(name)?;
    if Command::new("ethtool").arg("--version").output().is_err() {
        windlass_tests::skip(name, "ethtool is missing");
        return None;
    }
    lab.namespace("wire");
    lab.namespace("a");
    let wire = lab.name("wire");
    let queues = "numrxqueues 2 numtxqueues 2";
    lab.ip(
        "host",
        &format!("link add up0 {queues} type veth peer name eth0 {queues} netns {wire}"),
    );
    lab.ip("host", "link set up0 up");
    lab.ip("wire", &format!("link set eth0 address {OUTSIDE} up"));
    lab.ip("wire", "addr add 10.1.0.8/24 dev eth0");
    keep_tags(&lab);
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let attach = ",address=10.1.0.1/24";
    daemon.tap(&lab, "a0", "a", attach, &format!("--mac {GUEST}"));
    Some((lab, daemon))
}

fn ethtool(lab: &Lab, short: &str, words: &str) -> String {
    let done = run(lab.command(short, "ethtool").args(words.split_whitespace()));
    assert_eq!(done.code, 0, "ethtool {words}: {}", done.err);
    done.out
}

/// Tags stay in the frames of both ends, as an uplink by AF_XDP wants it.
fn keep_tags(lab: &Lab) {
    ethtool(lab, "host", "-K up0 rxvlan off");
    ethtool(lab, "wire", "-K eth0 txvlan off");
}

/// What an uplink says about itself.
fn detail(daemon: &Daemon, name: &str) -> String {
    let shown = daemon.show("uplink", "up0");
    let text = shown["details"][name].as_str();
    text.unwrap_or_default().to_owned()
}

/// Makes the uplink of an interface.
fn create(daemon: &Daemon, device: &str) {
    daemon.must(&format!(
        "uplink create up0 --device {device} --bridge br0 --attach xdp"
    ));
    daemon.wait_for_state("uplink", "up0", "up");
}

/// The uplink goes by a packet socket, and it and the log say why.
fn refused(daemon: &Daemon, why: &str) {
    let said = detail(daemon, "xdp");
    let reason = said.strip_prefix("not used: ");
    let reason = reason.unwrap_or_else(|| panic!("{said}"));
    assert!(reason.contains(why), "{reason}");
    assert!(daemon.log().contains(reason), "{}", daemon.log());
}

/// Whether there is an XDP program at an interface of the host.
fn has_program(lab: &Lab, device: &str) -> bool {
    let shown = lab.ip("host", &format!("-json link show {device}"));
    let links: Value = serde_json::from_str(&shown).expect("JSON");
    !links[0]["xdp"].is_null()
}

/// Frames of queue `number` of `up0` that the program gave to a socket.
fn redirected(lab: &Lab, number: u32) -> u64 {
    let shown = ethtool(lab, "host", "-S up0");
    let name = format!("rx_queue_{number}_xdp_redirect:");
    let line = shown
        .lines()
        .find_map(|line| line.trim().strip_prefix(&name));
    line.expect("a counter").trim().parse().expect("a number")
}

/// A connection from one namespace to another, over which a megabyte goes and comes back whole: what is longer than a frame is cut,
/// and checksums that a veth leaves open are completed.
fn a_megabyte(lab: &Lab, from: &str, to: &str, address: &str) {
    let listener = lab.within(to, || TcpListener::bind((address, 0)).expect("an address"));
    let to = listener.local_addr().expect("an address");
    let bytes: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut end, _) = listener.accept().expect("a connection");
            let mut got = vec![0; 1 << 20];
            end.read_exact(&mut got).expect("all of it");
            end.write_all(&got).expect("an answer");
        });
        let mut end = lab.within(from, || TcpStream::connect(to).expect("a connection"));
        end.set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a socket");
        end.write_all(&bytes).expect("a send");
        let mut got = vec![0; 1 << 20];
        end.read_exact(&mut got).expect("an answer");
        assert!(got == bytes);
    });
}

/// Frames pass both ways through the rings of both queues, offloads of either side are finished, and the host's stack hears
/// nothing. A delete, an ordered end and a kill take the program away; a daemon that starts again has it there again.
#[test]
fn frames_pass_and_nothing_stays() {
    let Some((lab, mut daemon)) = host_with_a_wire("frames_pass_and_nothing_stays") else {
        return;
    };
    lab.ip("host", "link add own0 type veth peer name own1");
    lab.ip("host", "addr add 10.1.0.7/32 dev own0");
    lab.ip("host", "link set own0 up");
    lab.ip("host", "route add 10.1.0.8/32 dev up0");
    let create = "uplink create up0 --device up0 --bridge br0 --attach xdp";
    daemon.must(create);
    daemon.wait_for_state("uplink", "up0", "up");
    assert_eq!(detail(&daemon, "xdp"), "copy");
    assert_eq!(detail(&daemon, "queues"), "2");
    assert!(has_program(&lab, "up0"));
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    a_megabyte(&lab, "a", "wire", "10.1.0.8");
    a_megabyte(&lab, "wire", "a", "10.1.0.1");
    assert!(!lab.ping("wire", "10.1.0.7", 1), "the host is kept off");

    let sink = lab.within("a", || {
        UdpSocket::bind("10.1.0.1:5301").expect("an address")
    });
    sink.set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a socket");
    let before = [0, 1].map(|number| redirected(&lab, number));
    for flow in 0..64 {
        let sender = lab.within("wire", || {
            UdpSocket::bind("10.1.0.8:0").expect("an address")
        });
        sender.send_to(&[flow; 300], "10.1.0.1:5301").expect("sent");
        let mut got = [0; 301];
        let n = uninterrupted(|| sink.recv(&mut got)).expect("it arrives");
        assert_eq!(got[..n], [flow; 300]);
    }
    let after = [0, 1].map(|number| redirected(&lab, number));
    assert!(
        before[0] < after[0] && before[1] < after[1],
        "{before:?} {after:?}"
    );
    let shown = daemon.counters("up0");
    assert_eq!(shown["kernel_drops"], 0, "{shown}");

    daemon.must("uplink delete up0");
    assert!(!has_program(&lab, "up0") && lab.ping("wire", "10.1.0.7", 2));
    daemon.must(create);
    daemon.wait_for_state("uplink", "up0", "up");
    assert!(has_program(&lab, "up0"));
    assert_eq!(daemon.terminate(), 0);
    assert!(!has_program(&lab, "up0") && lab.ping("wire", "10.1.0.7", 2));
    daemon.start_again();
    daemon.wait_for_state("uplink", "up0", "up");
    until("the guest reaches the wire again", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    until("the program", || has_program(&lab, "up0"));
    daemon.kill();
    until("the kernel takes the program away", || {
        !has_program(&lab, "up0")
    });
    daemon.start_again();
    daemon.wait_for_state("uplink", "up0", "up");
    until("the guest reaches the wire at last", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    // The killed one's program may go a moment later; until then a packet socket does.
    until("the rings", || detail(&daemon, "xdp") == "copy");
}

/// A veth has no rules by address: a VNIC that asks for rings shares those of all, and the uplink says why; by a packet socket, too.
#[test]
fn without_rules_rings_are_shared() {
    let Some((lab, daemon)) = host_with_a_wire("without_rules_rings_are_shared") else {
        return;
    };
    create(&daemon, "up0");
    assert_eq!(detail(&daemon, "rings"), "");
    daemon.must("vnic set a0 rxrings=2");
    let said = detail(&daemon, "rings");
    let why = "a0 default group (the driver has no rules by address, or they are off";
    assert!(said.starts_with(why), "{said}");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    daemon.must("vnic set a0 rxrings=0");
    assert_eq!(detail(&daemon, "rings"), "");
    daemon.refuses(2, "vnic set a0 rxrings=17");
    daemon.must("uplink delete up0");
    daemon.must("vnic set a0 rxrings=1");
    daemon.must("uplink create up0 --device up0 --bridge br0 --attach packet");
    daemon.wait_for_state("uplink", "up0", "up");
    let why = "a0 default group (the uplink is not by AF_XDP)";
    assert_eq!(detail(&daemon, "rings"), why);
}

/// A VNIC asks for rings, for more, for fewer and for none while frames pass; what it asks for outlives an upgrade, an ordered end and a
/// kill. What a killed daemon has written down and the driver does not give back is told.
#[test]
fn rings_are_asked_for_by_each_daemon() {
    let Some((lab, mut daemon)) = host_with_a_wire("rings_are_asked_for_by_each_daemon") else {
        return;
    };
    create(&daemon, "up0");
    let passes = |daemon: &Daemon| {
        until("the rings", || detail(daemon, "xdp") == "copy");
        until("the guest reaches the wire", || {
            lab.ping("a", "10.1.0.8", 1)
        });
        detail(daemon, "rings")
    };
    let why = "a0 default group (the driver has no rules by address, or they are off";
    let lost = lab.lost_while("wire", "a", "10.1.0.1", || {
        for rings in [2, 16, 1, 0, 2] {
            daemon.must(&format!("vnic set a0 rxrings={rings}"));
            let said = detail(&daemon, "rings");
            assert_eq!(said.starts_with(why), rings > 0, "{said}");
        }
    });
    assert_eq!(lost, 0);
    let ends: [fn(&mut Daemon); 3] = [
        Daemon::upgrade,
        |daemon| {
            assert_eq!(daemon.terminate(), 0);
            daemon.start_again();
        },
        |daemon| {
            daemon.kill();
            daemon.start_again();
        },
    ];
    for end in ends {
        end(&mut daemon);
        let said = passes(&daemon);
        assert!(said.starts_with(why), "{said}");
    }
    daemon.kill();
    let record = daemon.runtime_dir().join("uplinks/up0");
    assert!(!record.exists(), "nothing was laid into a veth");
    let index = lab.ip("host", "-o link show up0");
    let index = index.split(':').next().expect("a number");
    let group = r#"{"vnic":"a0","addresses":[1],"rings":[1]}"#;
    let groups = format!(r#"[{{"group":{group},"context":null,"rules":{{"0":1}}}}]"#);
    let text = format!(r#"{{"interface":{index},"table":null,"groups":{groups}}}"#);
    std::fs::create_dir_all(record.parent().expect("a directory")).expect("a directory");
    std::fs::write(&record, text).expect("a record");
    daemon.start_again();
    let said = passes(&daemon);
    assert!(
        said.contains(why) && said.contains("some are left"),
        "{said}"
    );
}

/// On an interface that is shared, frames for VNICs come by the rings, among them those of a VNIC that came later; all others go on
/// to the host's stack, and by way of it to the bridge.
#[test]
fn the_kernels_frames_go_on() {
    let Some((lab, daemon)) = host_with_a_wire("the_kernels_frames_go_on") else {
        return;
    };
    lab.ip("host", "addr add 10.1.0.7/24 dev up0");
    daemon.must("uplink create up0 --device up0 --bridge br0 --attach xdp --share");
    daemon.wait_for_state("uplink", "up0", "up");
    assert_eq!(detail(&daemon, "xdp"), "copy");
    let sum = || redirected(&lab, 0) + redirected(&lab, 1);
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    assert!(lab.ping("wire", "10.1.0.7", 2), "the host has its address");
    let before = sum();
    for _ in 0..3 {
        assert!(lab.ping("wire", "10.1.0.7", 2));
    }
    let host_only = sum() - before;
    for _ in 0..3 {
        assert!(lab.ping("wire", "10.1.0.1", 2));
    }
    assert!(host_only == 0 && sum() >= before + 3, "{host_only}");
    a_megabyte(&lab, "wire", "a", "10.1.0.1");
    a_megabyte(&lab, "wire", "host", "10.1.0.7");

    lab.namespace("b");
    daemon.tap(
        &lab,
        "b0",
        "b",
        ",address=10.1.0.2/24",
        "--mac 02:00:00:00:00:0b",
    );
    until("a broadcast comes to both", || {
        lab.ping("wire", "10.1.0.2", 1)
    });
    let before = sum();
    assert!(lab.ping("wire", "10.1.0.2", 2));
    assert!(
        sum() > before,
        "a VNIC that came later has its frames from the rings"
    );
    daemon.must("vnic delete b0");
    let before = sum();
    let wire = Wire::open(&lab, "wire", "eth0");
    wire.send(&frame(
        mac("02:00:00:00:00:0b"),
        mac(OUTSIDE),
        &[],
        "to nobody",
    ));
    until("it reaches the bridge by the stack", || {
        daemon.counters("up0")["rx_flooded"].as_u64() > Some(0)
    });
    assert_eq!(sum(), before, "and not by the rings");
}

/// What AF_XDP cannot carry goes by a packet socket, with the reason in `uplink show` and in the log.
#[test]
fn without_xdp_there_is_a_reason() {
    let Some((lab, mut daemon)) = host_with_a_wire("without_xdp_there_is_a_reason") else {
        return;
    };
    let reaches = || {
        until("the guest reaches the wire", || {
            lab.ping("a", "10.1.0.8", 1)
        })
    };
    ethtool(&lab, "host", "-K up0 rxvlan on");
    create(&daemon, "up0");
    refused(
        &daemon,
        "ethtool -K up0 rxvlan off, and txvlan off at its other end",
    );
    reaches();
    daemon.must("uplink delete up0");
    keep_tags(&lab);

    for (at, device) in [("host", "up0"), ("wire", "eth0")] {
        lab.ip(at, &format!("link set {device} mtu 9000"));
    }
    create(&daemon, "up0");
    refused(&daemon, "the MTU of `up0` is 9000, above 3818");
    reaches();
    daemon.must("uplink delete up0");
    lab.ip("host", "link set up0 mtu 1500");
    create(&daemon, "up0");
    refused(&daemon, "the MTU at the other end of `up0` is too large");
    reaches();
    daemon.must("uplink delete up0");
    lab.ip("wire", "link set eth0 mtu 1500");

    ethtool(&lab, "host", "-L up0 rx 1");
    create(&daemon, "up0");
    refused(&daemon, "transmits on more queues than `up0` receives on");
    daemon.must("uplink delete up0");
    ethtool(&lab, "host", "-L up0 rx 2");

    daemon.assert_alive();
}

/// An interface whose driver has no XDP; one where somebody's program is, until that is gone.
#[test]
fn a_program_makes_way() {
    let Some((lab, daemon)) = host_with_a_wire("a_program_makes_way") else {
        return;
    };
    lab.ip("host", "link add bridge7 type bridge");
    lab.ip("host", "link set bridge7 up");
    lab.ip("host", "link add port7 type veth peer name port8");
    lab.ip("host", "link set port7 master bridge7 up");
    lab.ip("host", "link set port8 up");
    create(&daemon, "bridge7");
    refused(&daemon, "the driver of `bridge7` has no XDP");
    daemon.must("uplink delete up0");

    let others = lab.within("host", || {
        let link = Netlink::open().expect("netlink").link_by_name("up0");
        let index = link.expect("netlink").expect("up0").index;
        let mut others = Divert::new(1, false).expect("a program");
        others.attach(index).expect("attached");
        others
    });
    create(&daemon, "up0");
    refused(&daemon, "another XDP program is at `up0`");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    drop(others);
    let what = "the uplink goes over to AF_XDP";
    until(what, || detail(&daemon, "xdp") == "copy");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    daemon.must("uplink delete up0");
}

/// While somebody's sockets have the queues, though no program is there, the uplink stays as it is: it is not taken anew time after time.
#[test]
fn sockets_make_way() {
    let Some((lab, daemon)) = host_with_a_wire("sockets_make_way") else {
        return;
    };
    let others = lab.within("host", || {
        let link = Netlink::open().expect("netlink").link_by_name("up0");
        let link = link.expect("netlink").expect("up0");
        let nobody = std::iter::empty();
        let mut others = Attached::open(XdpConf::default(), &link, false, nobody).expect("sockets");
        others.let_go();
        others
    });
    create(&daemon, "up0");
    // It looks after 50, 100, 200 and 400 ms.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(daemon.show("uplink", "up0")["connects"], 1);
    refused(&daemon, "another program has AF_XDP sockets at `up0`");
    drop(others);
    let what = "the uplink goes over to AF_XDP";
    until(what, || detail(&daemon, "xdp") == "copy");
    daemon.must("uplink delete up0");
}

/// Frames of a VLAN keep their tags either way.
#[test]
fn tags_stay() {
    let Some((lab, daemon)) = host_with_a_wire("tags_stay") else {
        return;
    };
    // Frames of no known protocol have no queue of their own.
    ethtool(&lab, "wire", "-L eth0 tx 1");
    daemon.must("uplink create up0 --device up0 --bridge br0 --attach xdp --vlan 5 --tagged 10");
    daemon.wait_for_state("uplink", "up0", "up");
    assert_eq!(detail(&daemon, "xdp"), "copy");
    daemon.must("vnic set a0 vlan=10");
    let (a, wire) = (
        Wire::open(&lab, "a", "eth0"),
        Wire::open(&lab, "wire", "eth0"),
    );
    wire.send(&frame(
        mac(GUEST),
        mac(OUTSIDE),
        &[],
        "untagged is VLAN 5: never",
    ));
    wire.send(&frame(mac(GUEST), mac(OUTSIDE), &[vlan_tag(10)], "tagged"));
    wire.send(&frame(mac(GUEST), mac(OUTSIDE), &[vlan_tag(10)], "end"));
    let seen = a.frames_until("end");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].vids().is_empty() && seen[0].text().as_deref() == Some("tagged"));
    a.send(&frame(mac(OUTSIDE), mac(GUEST), &[], "back"));
    a.send(&frame(mac(OUTSIDE), mac(GUEST), &[], "end"));
    let seen = wire.frames_until("end");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].vids(), [10]);
}

/// Places follow the MTU, and the uplink the interface: one that goes and comes again, is set down, or gets an MTU that does not
/// fit is taken anew, by a packet socket where need be.
#[test]
fn an_interface_changes() {
    let Some((lab, mut daemon)) = host_with_a_wire("an_interface_changes") else {
        return;
    };
    daemon.must("uplink create up0 --device up0 --bridge br0 --attach xdp");
    daemon.wait_for_state("uplink", "up0", "up");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    for (at, device, why) in [("wire", "eth0", "no carrier"), ("host", "up0", "set down")] {
        lab.ip(at, &format!("link set {device} down"));
        let reason = daemon.wait_for_state("uplink", "up0", "waiting");
        assert!(reason.contains(why), "{reason}");
        lab.ip(at, &format!("link set {device} up"));
        daemon.wait_for_state("uplink", "up0", "up");
        until("the guest reaches the wire", || {
            lab.ping("a", "10.1.0.8", 1)
        });
    }
    // Frames that find no room in places for shorter ones.
    daemon.must("vnic set a0 mtu=3400");
    for (at, device) in [("a", "eth0"), ("wire", "eth0"), ("host", "up0")] {
        lab.ip(at, &format!("link set {device} mtu 3400"));
    }
    until("a long packet reaches the wire", || {
        let ping = "ping -M do -s 3372 -c 1 -W 1 10.1.0.8";
        run(lab.command("a", "sh").args(["-c", ping])).code == 0
    });
    assert_eq!(detail(&daemon, "xdp"), "copy");
    lab.ip("host", "link set up0 mtu 9000");
    let said = until_some("a packet socket", || {
        Some(detail(&daemon, "xdp")).filter(|said| said.starts_with("not used"))
    });
    assert!(said.contains("MTU of `up0` is 9000"), "{said}");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    lab.ip("host", "link del up0");
    daemon.wait_for_state("uplink", "up0", "waiting");
    let wire = lab.name("wire");
    lab.ip(
        "host",
        &format!("link add up0 mtu 3400 type veth peer name eth0 mtu 3400 netns {wire}"),
    );
    keep_tags(&lab);
    lab.ip("host", "link set up0 up");
    lab.ip("wire", "link set eth0 up");
    lab.ip("wire", "addr add 10.1.0.8/24 dev eth0");
    daemon.must("uplink delete up0");
    daemon.must("uplink create up0 --device up0 --bridge br0 --attach xdp");
    daemon.wait_for_state("uplink", "up0", "up");
    assert_eq!(detail(&daemon, "xdp"), "copy");
    let (a, wire) = (
        Wire::open(&lab, "a", "eth0"),
        Wire::open(&lab, "wire", "eth0"),
    );
    lab.ip("a", "link set eth0 mtu 3400");
    daemon.must("vnic set a0 mtu=3400");
    let long = "x".repeat(3380);
    wire.send(&frame(mac(GUEST), mac(OUTSIDE), &[], &long));
    a.send(&frame(mac(OUTSIDE), mac(GUEST), &[], &long));
    for end in [&a, &wire] {
        until("a long frame arrives", || {
            end.receive()
                .is_some_and(|f| f.text().as_deref() == Some(&long))
        });
    }
    daemon.assert_alive();
}

/// A daemon that takes another one's place has the interface soon, by AF_XDP as by a packet socket, and the host is kept off
/// afterwards, too.
#[test]
fn an_upgrade_takes_over() {
    let Some((lab, mut daemon)) = host_with_a_wire("an_upgrade_takes_over") else {
        return;
    };
    lab.ip("host", "link add own0 type veth peer name own1");
    lab.ip("host", "addr add 10.1.0.7/32 dev own0");
    lab.ip("host", "link set own0 up");
    lab.ip("host", "route add 10.1.0.8/32 dev up0");
    for kind in ["packet", "xdp"] {
        daemon.must(&format!(
            "uplink create up0 --device up0 --bridge br0 --attach {kind}"
        ));
        daemon.wait_for_state("uplink", "up0", "up");
        for (from, to, address) in [("wire", "a", "10.1.0.1"), ("a", "wire", "10.1.0.8")] {
            let lost = lab.lost_while(from, to, address, || {
                daemon.upgrade();
                until("AF_XDP again", || {
                    kind == "packet" || detail(&daemon, "xdp") == "copy"
                });
            });
            println!("{kind}, {from} to {to}: of datagrams each millisecond {lost} were lost");
            assert!(lost < 1000, "{lost}: {}", daemon.log());
        }
        assert_eq!(has_program(&lab, "up0"), kind == "xdp");
        assert!(!lab.ping("wire", "10.1.0.7", 1), "the host is kept off");
        daemon.must("uplink delete up0");
        assert!(lab.ping("wire", "10.1.0.7", 2));
    }
}

/// With busy polling, frames pass, and the uplink says so.
#[test]
fn busy_polling_passes_frames() {
    let Some((lab, daemon)) = host_with_a_wire("busy_polling_passes_frames") else {
        return;
    };
    daemon.must(
        "uplink create up0 --device up0 --bridge br0 --attach xdp,busy-poll-us=20,zero-copy=on",
    );
    daemon.wait_for_state("uplink", "up0", "up");
    assert_eq!(detail(&daemon, "busy poll"), "20 us");
    assert_eq!(detail(&daemon, "xdp"), "copy", "a veth has no zero-copy");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    a_megabyte(&lab, "a", "wire", "10.1.0.8");
    a_megabyte(&lab, "wire", "a", "10.1.0.1");
}
