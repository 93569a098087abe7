//! Answers for neighbours, with the kernels of guests that ask.

use std::time::Duration;

use windlass_tests::{Daemon, Frame, Lab, Wire, until};

const SOON: Duration = Duration::from_millis(300);

/// A guest with 10.9.0.n and fd00::n.
fn guest(lab: &Lab, daemon: &Daemon, name: &str, number: u8) -> Wire {
    lab.namespace(name);
    lab.within(name, || {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            std::fs::write(path, "0").expect("written");
        }
    });
    let words = format!("--mac 02:00:00:00:00:0{number}");
    let address = format!(",address=10.9.0.{number}/24,address=fd00::{number}/64");
    daemon.tap(lab, &format!("{name}0"), name, &address, &words);
    until("addresses are nobody else's", || {
        !lab.ip(name, "-6 address show dev eth0")
            .contains("tentative")
    });
    Wire::open(lab, name, "eth0")
}

/// How many questions for 10.9.0.n and fd00::n came.
fn questions(wire: &Wire, number: u8) -> usize {
    std::thread::sleep(SOON);
    let mut came = 0;
    while let Some(Frame(frame)) = wire.receive() {
        let is_arp = frame[12..14] == [8, 6]
            && frame[20..22] == [0, 1]
            && frame[38..42] == [10, 9, 0, number];
        let is_solicitation = frame[12..14] == [0x86, 0xdd]
            && frame[54] == 135
            && frame[62..64] == [0xfd, 0]
            && frame[77] == number;
        came += usize::from(is_arp || is_solicitation);
    }
    came
}

fn counts(daemon: &Daemon, key: &str) -> u64 {
    let shown = daemon.show("bridge", "br0")["neighbours"].take();
    shown[key].as_u64().unwrap_or_else(|| panic!("{shown}"))
}

/// Questions for guests with neigh-suppress are answered: by the configuration, and by what they said before. Nobody else hears them; an address that
/// is taken is not taken again. Others are asked as before.
#[test]
fn known_neighbours_are_answered() {
    let Some(lab) = Lab::start("known_neighbours_are_answered") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let a = guest(&lab, &daemon, "a", 1);
    let b = guest(&lab, &daemon, "b", 2);
    let c = guest(&lab, &daemon, "c", 3);
    daemon.must("vnic set b0 neigh-suppress=on router-guard=on allowed-ips=10.9.0.2,fd00::2");
    questions(&b, 2);
    questions(&c, 2);
    for address in ["10.9.0.2", "fd00::2"] {
        assert!(lab.ping("a", address, 5), "{address}");
    }
    assert_eq!((questions(&b, 2), questions(&c, 2)), (0, 0));
    let neighbours = lab.ip("a", "neigh show");
    for address in ["10.9.0.2", "fd00::2"] {
        let line = neighbours.lines().find(|line| line.starts_with(address));
        assert!(
            line.is_some_and(|l| l.contains("02:00:00:00:00:02")),
            "{neighbours}"
        );
    }
    assert!(counts(&daemon, "answered") >= 2);

    // c is asked as before, and known once it has asked.
    lab.ip("a", "neigh flush dev eth0");
    assert!(lab.ping("a", "10.9.0.3", 5) && lab.ping("a", "fd00::3", 5));
    assert!(questions(&b, 3) >= 2);
    daemon.must("vnic set c0 neigh-suppress=on");
    lab.ip("c", "neigh flush dev eth0");
    assert!(lab.ping("c", "10.9.0.1", 5));
    lab.ip("a", "neigh flush dev eth0");
    questions(&b, 3);
    assert!(lab.ping("a", "10.9.0.3", 5));
    assert_eq!(questions(&b, 3), 0);
    // It may be a router.
    assert!(lab.ping("a", "fd00::3", 5));
    assert!(questions(&b, 3) >= 1);

    // Duplicate detection hears of the one that has the address.
    lab.ip("c", "-6 address add fd00::2/64 dev eth0");
    until("the address is taken", || {
        lab.ip("c", "-6 address show dev eth0")
            .contains("dadfailed")
    });
    let text = daemon.must("bridge show br0");
    assert!(text.contains("neighbours  "), "{text}");

    daemon.must("vnic set b0 neigh-suppress=off");
    daemon.must("vnic set c0 neigh-suppress=off");
    lab.ip("a", "neigh flush dev eth0");
    questions(&b, 2);
    assert!(lab.ping("a", "10.9.0.2", 5));
    assert!(questions(&b, 2) >= 1);
    assert!(daemon.show("bridge", "br0")["neighbours"].is_null());
    drop(a);
}
