//! The daemon is replaced under traffic.

use std::process::Command;

use windlass_tests::{Lab, run};

/// What the kernel says of the interface in a namespace: its number, its address, its network addresses, and how often its
/// carrier has changed.
fn interface(lab: &Lab, short: &str) -> (String, String) {
    let name = lab.name(short);
    let ip = |words: &str| {
        let words = format!("netns exec {name} {words}");
        let done = run(Command::new("ip").args(words.split_whitespace()));
        assert_eq!(done.code, 0, "{}", done.err);
        done.out
    };
    let addresses = ip("ip -o address show dev eth0");
    (addresses, ip("cat /sys/class/net/eth0/carrier_changes"))
}

/// An upgrade loses no frame between TAPs: they wait in the interfaces' queues, whose descriptors the successor has. The
/// interfaces notice nothing. It can be done again, and a plain restart takes the TAPs back after it.
#[test]
fn an_upgrade_loses_nothing() {
    let Some(lab) = Lab::start("an_upgrade_loses_nothing") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (short, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24")] {
        lab.namespace(short);
        daemon.tap(&lab, short, short, &format!(",address={address}"), "");
    }
    let before = interface(&lab, "b");
    let lost = lab.lost_while("a", "b", "10.0.0.2", || daemon.upgrade());
    assert_eq!(lost, 0, "{}", daemon.log());
    assert_eq!(interface(&lab, "b"), before);
    assert_eq!(daemon.show("vnic", "b")["state"], "up");
    assert_eq!(daemon.terminate(), 0);
    daemon.start_again();
    let after = interface(&lab, "b");
    assert_eq!(after.0, before.0);
    assert!(lab.ping("a", "10.0.0.2", 3), "after a restart");
}

/// A daemon that starts forwards nothing before it can forward to all: what namespaces ask first (ARP) is not lost, which
/// they would ask again after a second only.
#[test]
fn a_start_loses_nothing_that_it_reads() {
    let Some(lab) = Lab::start("a_start_loses_nothing_that_it_reads") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for number in 1..=8 {
        let short = format!("n{number}");
        lab.namespace(&short);
        daemon.tap(
            &lab,
            &short,
            &short,
            &format!(",address=10.0.0.{number}/24"),
            "",
        );
    }
    let words = ["-n", "-q", "-b", "-f", "-w", "60", "10.0.0.255"];
    let mut ping = lab.command("n1", "ping").args(words).spawn().expect("ping");
    for _ in 0..5 {
        daemon.kill();
        daemon.start_again();
        for number in 1..=8 {
            daemon.wait_for_state("vnic", &format!("n{number}"), "up");
        }
        let counters = daemon.counters("n8");
        assert_eq!(
            counters["drops"]["peer-down"].as_u64().unwrap_or(0),
            0,
            "{counters}"
        );
    }
    ping.kill().expect("ping runs");
    ping.wait().expect("ping");
}
