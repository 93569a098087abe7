//! Uplinks: an interface of the host that a bridge takes, and gives back.

use std::time::{Duration, Instant};

use windlass_tests::{Daemon, Lab, Wire, frame, mac, run, until, vlan_tag};

const GUEST: &str = "02:00:00:00:00:0a";
const OUTSIDE: &str = "02:00:00:00:00:ee";

/// A host with the interface `up0`, whose other end is `eth0` in "wire" with 10.1.0.8; a guest with
/// 10.1.0.1.
fn host_with_a_wire(lab: &Lab) -> Daemon {
    lab.namespace("wire");
    lab.namespace("a");
    let wire = lab.name("wire");
    lab.ip(
        "host",
        &format!("link add up0 type veth peer name eth0 netns {wire}"),
    );
    lab.ip("host", "link set up0 up");
    lab.ip("wire", &format!("link set eth0 address {OUTSIDE} up"));
    lab.ip("wire", "addr add 10.1.0.8/24 dev eth0");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(
        lab,
        "a0",
        "a",
        ",address=10.1.0.1/24",
        &format!("--mac {GUEST}"),
    );
    daemon
}

/// Whether the host's own stack answers on the wire: the host has 10.1.0.7 on a dummy of its own, for
/// which Linux answers ARP on any interface that hears the question.
fn host_answers(lab: &Lab) -> bool {
    lab.ip("wire", "neigh flush all");
    lab.ping("wire", "10.1.0.7", 1)
}

/// An interface with an address is refused, with exit code 1 and a text that says what to do, unless
/// `--share` is given; so is one that another bridge has.
#[test]
fn an_interface_in_use_is_refused() {
    let Some(lab) = Lab::start("an_interface_in_use_is_refused") else {
        return;
    };
    let daemon = host_with_a_wire(&lab);
    lab.ip("host", "addr add 10.1.0.7/24 dev up0");
    let words = "uplink create up0 --device up0 --bridge br0 --attach packet";
    let said = daemon.refuses(1, words);
    assert!(
        said.contains("10.1.0.7") && said.contains("--share"),
        "{said}"
    );
    assert_eq!(
        daemon.json("uplink show"),
        serde_json::json!([]),
        "nothing is left of it"
    );
    daemon.must(&format!("{words} --share"));
    daemon.wait_for_state("uplink", "up0", "up");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    assert!(
        lab.ping("wire", "10.1.0.7", 2),
        "the host keeps its address"
    );
    daemon.must("uplink delete up0");
    let missing = daemon.try_do("uplink create up1 --device none0 --bridge br0");
    assert!(
        missing.code == 0 || missing.err.contains("none0"),
        "{}",
        missing.err
    );
}

/// The loopback interface and one that carries no Ethernet frames are refused in a sentence, shared or not, and nothing
/// is left of them.
#[test]
fn only_ethernet_is_taken() {
    let Some(lab) = Lab::start("only_ethernet_is_taken") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    lab.ip("host", "tuntap add dev tun7 mode tun");
    for (device, sentence) in [
        ("lo", "is the loopback interface"),
        ("tun7", "carries no Ethernet frames"),
    ] {
        for share in ["", "--share"] {
            let words = format!("uplink create up0 --device {device} --bridge br0 {share}");
            let said = daemon.refuses(1, &words);
            assert!(said.contains(device) && said.contains(sentence), "{said}");
        }
    }
    assert_eq!(daemon.json("uplink show"), serde_json::json!([]));
}

/// A guest reaches the wire both ways. Meanwhile the host's stack hears nothing of the interface; a delete
/// and an ordered end give it back, and what a killed daemon has left is given back by the next one, when
/// the uplink is deleted.
#[test]
fn the_stack_is_kept_off_and_let_on_again() {
    let Some(lab) = Lab::start("the_stack_is_kept_off_and_let_on_again") else {
        return;
    };
    let mut daemon = host_with_a_wire(&lab);
    // A veth pair to nowhere carries the host's address, since a kernel may lack dummies.
    lab.ip("host", "link add own0 type veth peer name own1");
    lab.ip("host", "addr add 10.1.0.7/32 dev own0");
    lab.ip("host", "link set own0 up");
    lab.ip("host", "route add 10.1.0.8/32 dev up0");
    assert!(host_answers(&lab), "before");
    let create = "uplink create up0 --device up0 --bridge br0";
    daemon.must(create);
    daemon.wait_for_state("uplink", "up0", "up");
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    assert!(lab.ping("wire", "10.1.0.1", 2));
    assert!(!host_answers(&lab), "while windlass has the interface");
    daemon.must("uplink delete up0");
    assert!(host_answers(&lab), "after the delete");

    daemon.must(create);
    daemon.wait_for_state("uplink", "up0", "up");
    assert!(!host_answers(&lab));
    assert_eq!(daemon.terminate(), 0);
    assert!(host_answers(&lab), "after SIGTERM");

    daemon.start_again();
    daemon.wait_for_state("uplink", "up0", "up");
    assert!(!host_answers(&lab), "taken again");
    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("uplink", "up0", "up");
    until("the guest reaches the wire again", || {
        lab.ping("a", "10.1.0.8", 1)
    });
    assert!(!host_answers(&lab), "after the kill the next daemon has it");
    daemon.must("uplink delete up0");
    assert!(host_answers(&lab), "and gives it back");

    daemon.must(create);
    daemon.wait_for_state("uplink", "up0", "up");
    daemon.kill();
    std::fs::remove_dir_all(daemon.directory().join("state")).expect("removed");
    assert!(!host_answers(&lab), "what the killed daemon has left");
    daemon.start_again();
    until("a daemon that knows nothing of it undoes it", || {
        host_answers(&lab)
    });
}

/// The interface's filters have the addresses of the guests, and it is promiscuous only where these do not do, which the uplink tells; an end
/// gives the filters back.
#[test]
fn promiscuous_only_where_filters_do_not_do() {
    let Some(lab) = Lab::start("promiscuous_only_where_filters_do_not_do") else {
        return;
    };
    let daemon = host_with_a_wire(&lab);
    // A veth has no filters; an interface with some above it.
    lab.ip(
        "host",
        "link add mv0 link up0 type macvlan mode passthru nopromisc",
    );
    lab.ip("host", "link set mv0 up");
    daemon.must("uplink create up0 --device mv0 --bridge br0 --attach packet");
    daemon.wait_for_state("uplink", "up0", "up");
    let is = |filters: &str, has_guest: bool, promiscuity: u64| {
        until(filters, || {
            let shown = daemon.show("uplink", "up0");
            let shown = shown["details"]["filters"].as_str() == Some(filters);
            let links = lab.ip("host", "-d -j link show mv0");
            let links: serde_json::Value = serde_json::from_str(&links).expect("JSON");
            let fdb = run(lab
                .command("host", "bridge")
                .args(["fdb", "show", "dev", "mv0"]));
            shown && links[0]["promiscuity"] == promiscuity && fdb.out.contains(GUEST) == has_guest
        });
        until("the guest reaches the wire", || {
            lab.ping("a", "10.1.0.8", 1)
        });
    };
    is("1", true, 0);
    daemon.must("vnic set a0 mac-nospoof=off");
    is("none, promiscuous: any address may be behind a0", false, 1);
    daemon.must("vnic set a0 mac-nospoof=on");
    daemon.must("fdb add br0 02:00:00:00:00:0b a0");
    is("2", true, 0);
    daemon.must("uplink set up0 filters-max=1");
    is("none, promiscuous: 2 addresses, above 1", false, 1);
    daemon.must("fdb delete br0 02:00:00:00:00:0b");
    is("1", true, 0);
    daemon.must("uplink set up0 tagged=7");
    is("none, promiscuous: frames with tags are taken", false, 1);
    daemon.must("uplink set up0 tagged=none");
    is("1", true, 0);
    daemon.must("uplink set up0 filters-max=0");
    is("none, promiscuous: filters-max is 0", false, 1);
    daemon.must("uplink set up0 filters-max=128");
    is("1", true, 0);
    daemon.must("uplink delete up0");
    let fdb = run(lab
        .command("host", "bridge")
        .args(["fdb", "show", "dev", "mv0"]));
    assert!(!fdb.out.contains(GUEST), "{}", fdb.out);
}

/// An interface that vanishes under an uplink leaves it waiting, and the daemon and the others alive; when
/// one of that name comes, the uplink takes it. Without carrier it waits.
#[test]
fn an_interface_vanishes() {
    let Some(lab) = Lab::start("an_interface_vanishes") else {
        return;
    };
    let mut daemon = host_with_a_wire(&lab);
    daemon.must("uplink create up0 --device up0 --bridge br0");
    daemon.wait_for_state("uplink", "up0", "up");
    for (at, device, why) in [("wire", "eth0", "no carrier"), ("host", "up0", "set down")] {
        lab.ip(at, &format!("link set {device} down"));
        let reason = daemon.wait_for_state("uplink", "up0", "waiting");
        assert!(reason.contains(why), "{reason}");
        lab.ip(at, &format!("link set {device} up"));
        daemon.wait_for_state("uplink", "up0", "up");
    }
    lab.ip("host", "link del up0");
    let reason = daemon.wait_for_state("uplink", "up0", "waiting");
    assert!(reason.contains("up0"), "{reason}");
    daemon.assert_alive();
    let wire = lab.name("wire");
    lab.ip(
        "host",
        &format!("link add up0 mtu 4000 type veth peer name eth0 netns {wire}"),
    );
    lab.ip("host", "link set up0 up");
    lab.ip("wire", "link set eth0 up");
    lab.ip("wire", "addr add 10.1.0.8/24 dev eth0");
    daemon.wait_for_state("uplink", "up0", "up");
    assert_eq!(daemon.show("uplink", "up0")["mtu_now"], 4000);
    until("the guest reaches the wire", || {
        lab.ping("a", "10.1.0.8", 1)
    });
}

/// A tag that the kernel takes out of a received frame is put back: a trunk uplink carries VLAN 10 with
/// its tag both ways, and leaves untagged frames to another VLAN.
#[test]
fn tags_are_restored() {
    let Some(lab) = Lab::start("tags_are_restored") else {
        return;
    };
    let daemon = host_with_a_wire(&lab);
    daemon.must("uplink create up0 --device up0 --bridge br0 --vlan 5 --tagged 10");
    daemon.wait_for_state("uplink", "up0", "up");
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

/// Two bridges, joined by two veth pairs with uplinks at their ends, are a loop: one broadcast would go
/// round for ever. The rate stays at the storm limit, the drops are named `storm`, and the daemon answers.
#[test]
fn a_loop_is_bounded() {
    let Some(lab) = Lab::start("a_loop_is_bounded") else {
        return;
    };
    lab.namespace("a");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("bridge create br1");
    let limit = 2000_u64;
    for pair in ["x", "y"] {
        lab.ip(
            "host",
            &format!("link add {pair}0 type veth peer name {pair}1"),
        );
        for end in ["0", "1"] {
            lab.ip("host", &format!("link set {pair}{end} up"));
        }
        for end in ["0", "1"] {
            let device = format!("{pair}{end}");
            daemon.must(&format!(
                "uplink create {device} --device {device} --bridge br{end} --set storm-limit={limit}"
            ));
            daemon.wait_for_state("uplink", &device, "up");
        }
    }
    daemon.tap(&lab, "a0", "a", "", "--set mac-nospoof=off");
    let a = Wire::open(&lab, "a", "eth0");
    let passed = || -> u64 {
        let of = |member: &str| {
            let counters = daemon.counters(member);
            let of = |name: &str| counters[name].as_u64().unwrap_or(0);
            of("rx_frames") - of("rx_dropped")
        };
        ["x0", "x1", "y0", "y1"].map(of).iter().sum()
    };
    // A frame that a limit drops goes round no more, so new ones are needed to keep the storm up.
    let (mut begun, mut before, mut sent) = (Instant::now(), passed(), 0);
    let begin = begun;
    while begun.elapsed() < Duration::from_secs(2) {
        // Not a VNIC's own address: that could not come back through an uplink (sticky-source).
        a.send(&frame([0xff; 6], mac(OUTSIDE), &[], "round and round"));
        std::thread::sleep(Duration::from_millis(1));
        sent += 1;
        if sent == 300 {
            (begun, before) = (Instant::now(), passed());
        }
    }
    let asked = Instant::now();
    let rate = (passed() - before) as f64 / begun.elapsed().as_secs_f64();
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "the daemon answers"
    );
    let storm: u64 = ["x0", "x1", "y0", "y1"]
        .map(|m| daemon.drops(m, "storm"))
        .iter()
        .sum();
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{sent} frames sent in {seconds} s: {rate} frames/s went round, {storm} dropped as storm"
    );
    assert!(storm > 100, "{storm} frames are named");
    assert!(
        rate > 500.0,
        "the loop is one: {rate} frames/s through four uplinks"
    );
    assert!(
        rate < 1.3 * 4.0 * limit as f64,
        "{rate} frames/s through four uplinks"
    );
    daemon.must("uplink delete y0");
    daemon.assert_alive();
    std::thread::sleep(Duration::from_millis(300));
    let before = round(&daemon);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        round(&daemon),
        before,
        "the loop is open, nothing goes round"
    );
}

/// Frames taken from the uplinks of the pair x.
fn round(daemon: &Daemon) -> u64 {
    let of = |member| daemon.counters(member)["rx_frames"].as_u64().unwrap_or(0);
    of("x0") + of("x1")
}
