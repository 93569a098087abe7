//! TAPs in namespaces: real traffic through them, what survives the daemon, and what vanishes under it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use windlass_sys::tap::{Tap, TapOptions};
use windlass_tests::{Lab, uninterrupted, until};

/// Bytes of a stream, by a xorshift generator: a byte at the wrong place is noticed.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, space: &mut [u8]) {
        for word in space.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

/// Sends `bytes` (a multiple of 64 KiB) over TCP between two namespaces and compares each.
fn transfer(lab: &Lab, from: &str, to: &str, address: &str, bytes: usize) {
    let listener = lab.within(to, || TcpListener::bind((address, 0)).expect("an address"));
    let peer = listener.local_addr().expect("an address");
    let rounds = bytes / 65_536;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let timeout = Duration::from_secs(10);
            let mut stream = lab.within(from, || {
                TcpStream::connect_timeout(&peer, timeout).expect("connected")
            });
            stream.set_write_timeout(Some(timeout)).expect("a socket");
            let (mut pattern, mut space) = (Pattern(7), vec![0; 65_536]);
            for _ in 0..rounds {
                pattern.fill(&mut space);
                stream.write_all(&space).expect("sent");
            }
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a socket");
        let (mut pattern, mut space, mut wanted) = (Pattern(7), vec![0; 65_536], vec![0; 65_536]);
        for round in 0..rounds {
            stream.read_exact(&mut space).expect("received");
            pattern.fill(&mut wanted);
            assert!(space == wanted, "block {round} differs");
        }
        assert_eq!(
            uninterrupted(|| stream.read(&mut space)).expect("the end"),
            0,
            "more came than was sent"
        );
    });
}

/// Two guests reach each other; a TCP stream comes through byte for byte, in segments far larger than the
/// MTU (offloads pass through). After `kill -9` and a restart the interface is the same one: index, MAC,
/// addresses and an added route are there, and traffic goes on without anything done in the guest. Only
/// the delete removes it.
#[test]
fn a_tap_outlives_its_daemon() {
    let Some(lab) = Lab::start("a_tap_outlives_its_daemon") else {
        return;
    };
    lab.namespace("a");
    lab.namespace("b");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    daemon.tap(&lab, "b0", "b", ",address=10.1.0.2/24", "");
    assert!(lab.ping("a", "10.1.0.2", 3) && lab.ping("b", "10.1.0.1", 3));
    transfer(&lab, "a", "b", "10.1.0.2", 32 << 20);
    let sent = daemon.counters("a0");
    let of = |name: &str| sent[name].as_u64().expect("a number");
    assert!(of("rx_bytes") > 32 << 20, "{sent}");
    assert!(
        of("rx_bytes") / of("rx_frames") > 3000,
        "no large segments: {sent}"
    );

    lab.ip("a", "route add 10.9.0.0/16 via 10.1.0.2");
    let link = |name: &str| {
        let text = lab.ip(name, "-o link show eth0");
        let index = text.split(':').next().expect("an index").to_owned();
        let address = text.split("link/ether ").nth(1).expect("an address");
        (
            index,
            address.split(' ').next().expect("an address").to_owned(),
        )
    };
    let (link_before, routes_before) = (link("a"), lab.ip("a", "route show"));
    assert!(routes_before.contains("10.9.0.0/16"));
    daemon.kill();
    assert!(!lab.ping("a", "10.1.0.2", 1), "nobody forwards");
    assert_eq!(link("a"), link_before, "while no daemon runs");
    daemon.start_again();
    until("traffic goes on", || lab.ping("a", "10.1.0.2", 1));
    assert_eq!(link("a"), link_before);
    assert_eq!(daemon.show("vnic", "a0")["mac"], link_before.1.as_str());
    // The kernel marks routes of an interface without carrier only while it has none.
    until("the routes are back", || {
        lab.ip("a", "route show") == routes_before
    });
    assert!(lab.ip("a", "-o addr show eth0").contains("10.1.0.1/24"));
    transfer(&lab, "b", "a", "10.1.0.1", 8 << 20);

    assert_eq!(daemon.terminate(), 0);
    assert_eq!(link("a"), link_before, "an ordered end leaves it, too");
    daemon.start_again();
    daemon.must("vnic delete a0");
    assert!(!lab.ip("a", "-o link show").contains("eth0"));
}

/// A guest that gives its TAP another name and address does not keep it from being deleted.
#[test]
fn a_renamed_tap_is_deleted() {
    let Some(lab) = Lab::start("a_renamed_tap_is_deleted") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", "", "");
    lab.ip("a", "link set eth0 down");
    lab.ip("a", "link set eth0 address 02:00:00:00:00:99 name mine");
    daemon.must("vnic delete a0");
    let links = lab.ip("a", "-o link show");
    assert_eq!(
        links.lines().count(),
        1,
        "only the loopback interface: {links}"
    );
}

/// A VNIC whose namespace is missing waits and says for what; it comes up when the namespace appears. When
/// the namespace is deleted under it, the daemon lives, the VNIC waits again, the others' traffic goes on,
/// and a new namespace of the same name gets the VNIC back, with its address.
#[test]
fn namespaces_come_and_go() {
    let Some(lab) = Lab::start("namespaces_come_and_go") else {
        return;
    };
    for guest in ["a", "b"] {
        lab.namespace(guest);
    }
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    daemon.tap(&lab, "b0", "b", ",address=10.1.0.2/24", "");
    let late = lab.name("late");
    daemon.must(&format!(
        "vnic create late0 --bridge br0 --attach tap,name=eth0,netns={late},address=10.1.0.3/24"
    ));
    let reason = daemon.wait_for_state("vnic", "late0", "waiting");
    assert!(
        reason.contains(&late),
        "the reason names the namespace: {reason}"
    );
    lab.namespace("late");
    daemon.wait_for_state("vnic", "late0", "up");
    until("it answers", || lab.ping("a", "10.1.0.3", 1));

    lab.remove_namespace("late");
    let reason = daemon.wait_for_state("vnic", "late0", "waiting");
    assert!(!reason.is_empty());
    daemon.assert_alive();
    assert!(lab.ping("a", "10.1.0.2", 2), "the others are unharmed");
    lab.namespace("late");
    daemon.wait_for_state("vnic", "late0", "up");
    until("it answers again", || lab.ping("a", "10.1.0.3", 1));
    daemon.must("vnic delete late0");
    assert!(!lab.ip("late", "-o link show").contains("eth0"));
}

/// An interface that the guest deletes is noticed and made again; the host's own VNIC, a TAP without a
/// namespace, gives the host an address on the bridge.
#[test]
fn a_deleted_interface_comes_back() {
    let Some(lab) = Lab::start("a_deleted_interface_comes_back") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("vnic create host0 --bridge br0 --attach tap,address=10.1.0.9/24");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    assert!(lab.ping("host", "10.1.0.1", 3) && lab.ping("a", "10.1.0.9", 3));
    let old = lab.ip("a", "-o link show eth0");
    lab.ip("a", "link del eth0");
    until("a new interface answers", || {
        lab.ping("host", "10.1.0.1", 1)
    });
    assert_ne!(lab.ip("a", "-o link show eth0"), old);
}

/// An interface of the wanted name that windlass did not make keeps the VNIC waiting, with a reason that says what to
/// do, whether a process holds it or not; a delete of the VNIC leaves it alone. When it goes, the VNIC gets its own,
/// which bears the daemon's mark.
#[test]
fn a_foreign_interface_is_left_alone() {
    let Some(lab) = Lab::start("a_foreign_interface_is_left_alone") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let create = format!(
        "vnic create a0 --bridge br0 --attach tap,name=eth0,netns={}",
        lab.name("a")
    );
    lab.ip("a", "tuntap add dev eth0 mode tap");
    let foreign = lab.ip("a", "-o link show eth0");
    daemon.must(&create);
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(
        reason.contains("eth0") && reason.contains("not made for this VNIC"),
        "{reason}"
    );
    daemon.must("vnic delete a0");
    assert_eq!(lab.ip("a", "-o link show eth0"), foreign);
    lab.ip("a", "link del eth0");

    let held = open_tap(&lab, "a", "eth0", true);
    daemon.must(&create);
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(reason.contains("not made for this VNIC"), "{reason}");
    drop(held);
    daemon.wait_for_state("vnic", "a0", "up");
    let made = lab.ip("a", "-d link show eth0");
    let mark = made
        .lines()
        .find_map(|line| line.trim().strip_prefix("alias "));
    let mark = mark.expect("an alias");
    assert!(
        mark.starts_with("windlass:") && mark.ends_with("/a0"),
        "{made}"
    );
}

/// A TAP of the test's own; `fresh`: which must not have been there.
fn open_tap(lab: &Lab, netns: &str, name: &str, fresh: bool) -> Tap {
    let options = TapOptions {
        must_create: fresh,
        ..TapOptions::default()
    };
    lab.within(netns, || Tap::open(name, 1, &options).expect("a TAP"))
}

/// After a kill the daemon's own interface is taken back although its guest calls it otherwise; while another process
/// holds it, the VNIC waits and says so, and has the same interface afterwards.
#[test]
fn a_marked_tap_is_taken_back() {
    let Some(lab) = Lab::start("a_marked_tap_is_taken_back") else {
        return;
    };
    lab.namespace("a");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    let index = || {
        let links = lab.ip("a", "-o link show type tun");
        let mut lines = links.lines();
        let index = lines.next().and_then(|line| line.split(':').next());
        assert_eq!(lines.next(), None, "one interface and no other");
        index.expect("an index").to_owned()
    };
    let before = index();
    daemon.kill();
    lab.ip("a", "link set eth0 down");
    lab.ip("a", "link set eth0 name mine");
    lab.ip("a", "link set mine up");
    let held = open_tap(&lab, "a", "mine", false);
    daemon.start_again();
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(reason.contains("in use by another process"), "{reason}");
    drop(held);
    daemon.wait_for_state("vnic", "a0", "up");
    assert_eq!(index(), before);
    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("vnic", "a0", "up");
    daemon.must("vnic delete a0");
    assert_eq!(lab.ip("a", "-o link show type tun"), "");
}

/// The addresses of a TAP are changed in place: those that the configuration named go, those that it names come, and
/// what was added by hand stays, in the same network too. What the kernel refuses changes nothing. The interface, its
/// connection and its counters go on.
#[test]
fn addresses_are_changed_in_place() {
    let Some(lab) = Lab::start("addresses_are_changed_in_place") else {
        return;
    };
    for guest in ["a", "b"] {
        lab.namespace(guest);
    }
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    daemon.tap(&lab, "b0", "b", ",address=10.1.0.9/24", "");
    for by_hand in ["10.1.0.77/24", "10.7.0.1/16"] {
        lab.ip("a", &format!("addr add {by_hand} dev eth0"));
    }
    assert!(lab.ping("b", "10.1.0.1", 3));
    let addresses = || {
        let text = lab.ip("a", "-o addr show eth0");
        let mut found: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned))
            .collect();
        found.sort();
        found
    };
    let link = lab.ip("a", "-o link show eth0");
    let frames = || {
        daemon.counters("a0")["rx_frames"]
            .as_u64()
            .expect("a number")
    };
    let before = frames();
    let set = |more: &str| {
        let netns = lab.name("a");
        daemon.try_do(&format!(
            "vnic set a0 --attach tap,name=eth0,netns={netns}{more}"
        ))
    };

    // The lab's namespaces have no IPv6: the kernel refuses the second address, after it took the first.
    let refused = set(",address=10.1.0.3/24,address=fd00::3/64");
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert_eq!(addresses(), ["10.1.0.1/24", "10.1.0.77/24", "10.7.0.1/16"]);

    let done = set(",address=10.1.0.2/24,address=10.2.0.2/24");
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(
        addresses(),
        ["10.1.0.2/24", "10.1.0.77/24", "10.2.0.2/24", "10.7.0.1/16"]
    );
    assert!(lab.ping("b", "10.1.0.2", 3) && !lab.ping("b", "10.1.0.1", 1));
    assert_eq!(lab.ip("a", "-o link show eth0"), link);
    assert_eq!(daemon.show("vnic", "a0")["connects"], 1);
    assert!(frames() > before);

    assert_eq!(set("").code, 0);
    assert_eq!(addresses(), ["10.1.0.77/24", "10.7.0.1/16"]);
}

/// A change of MTU and address is made on the interface while it carries frames; counters and connection go on, and
/// the old address is no longer the VNIC's.
#[test]
fn counters_go_on_over_changes() {
    let Some(lab) = Lab::start("counters_go_on_over_changes") else {
        return;
    };
    for guest in ["a", "b"] {
        lab.namespace(guest);
    }
    let daemon = lab.daemon();
    for bridge in ["br0", "br1"] {
        daemon.must(&format!("bridge create {bridge}"));
    }
    daemon.tap(
        &lab,
        "a0",
        "a",
        ",address=10.1.0.1/24",
        "--mac 02:00:00:00:00:0a",
    );
    daemon.tap(&lab, "b0", "b", ",address=10.1.0.2/24", "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    let counted = || {
        let counters = daemon.counters("a0");
        ["rx_frames", "tx_frames", "rx_bytes"].map(|name| counters[name].as_u64().expect(name))
    };
    let goes_on = |before: [u64; 3], what: &str| {
        let now = counted();
        let fell = before.iter().zip(now).any(|(before, now)| now < *before);
        assert!(!fell, "{what}: {before:?}, then {now:?}");
        now
    };
    let mut before = counted();
    assert!(before[0] > 0);
    daemon.must("vnic set a0 mtu=1400");
    assert!(lab.ip("a", "-o link show eth0").contains("mtu 1400"));
    before = goes_on(before, "MTU");
    daemon.must("vnic set a0 --mac 02:00:00:00:00:0b");
    assert!(
        lab.ip("a", "-o link show eth0")
            .contains("02:00:00:00:00:0b")
    );
    assert!(daemon.knows("02:00:00:00:00:0b", "a0") && !daemon.knows("02:00:00:00:00:0a", "a0"));
    lab.ip("b", "neigh flush all");
    assert!(lab.ping("b", "10.1.0.1", 3));
    before = goes_on(before, "address");
    let view = daemon.show("vnic", "a0");
    assert_eq!(
        (&view["connects"], &view["mtu_now"]),
        (&1.into(), &1400.into())
    );

    daemon.must("vnic set a0 --bridge br1");
    daemon.wait_for_state("vnic", "a0", "up");
    before = goes_on(before, "bridge");
    daemon.must("vnic set a0 --bridge br0");
    daemon.wait_for_state("vnic", "a0", "up");
    assert!(lab.ping("b", "10.1.0.1", 3));
    goes_on(before, "bridge and back");
}

/// A process in a namespace, which ends with the test.
struct Inside(std::process::Child);

impl Inside {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.end();
    }
}

/// A namespace may be named by a path: of its mount, or of a process in it, as containers have them. When the process
/// ends, its VNIC lets go and says why, also after a restart.
#[test]
fn a_namespace_by_a_path() {
    let Some(lab) = Lab::start("a_namespace_by_a_path") else {
        return;
    };
    lab.namespace("a");
    lab.namespace("b");
    let mut process = Inside(
        lab.command("a", "sleep")
            .arg("1000")
            .spawn()
            .expect("sleep"),
    );
    // nsenter enters the namespace and becomes the program: the number stays.
    let path = format!("/proc/{}/ns/net", process.0.id());
    let own = std::fs::read_link("/proc/self/ns/net").expect("a link");
    until("it is inside", || {
        std::fs::read_link(&path).is_ok_and(|link| link != own)
    });
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    let mounted = format!("/run/netns/{}", lab.name("b"));
    for (name, netns, address) in [("a0", &path, "10.1.0.1"), ("b0", &mounted, "10.1.0.2")] {
        daemon.must(&format!(
            "vnic create {name} --bridge br0 --attach tap,name=eth0,netns={netns},address={address}/24"
        ));
        daemon.wait_for_state("vnic", name, "up");
    }
    assert!(lab.ping("a", "10.1.0.2", 3));
    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("vnic", "a0", "up");
    assert!(lab.ping("a", "10.1.0.2", 3));
    process.end();
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(reason.contains(&path), "{reason}");
    daemon.kill();
    daemon.start_again();
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(reason.contains(&path), "{reason}");
    daemon.must(&format!(
        "vnic set a0 --attach tap,name=eth0,netns=/run/netns/{}",
        lab.name("a")
    ));
    daemon.wait_for_state("vnic", "a0", "up");
    daemon.assert_alive();
}

/// A TAP that its guest moves to another namespace is made again where its VNIC has it, and the one that was moved ends: it
/// is nobody's. The next daemon finds the one that there is.
#[test]
fn a_tap_is_there_once() {
    let Some(lab) = Lab::start("a_tap_is_there_once") else {
        return;
    };
    lab.namespace("a");
    lab.namespace("b");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    let taps = |short: &str| lab.ip(short, "-o link show type tun").lines().count();
    lab.ip(
        "a",
        &format!("link set eth0 netns {} name moved0", lab.name("b")),
    );
    until("it is made again, and there once", || {
        taps("a") == 1 && taps("b") == 0
    });
    daemon.wait_for_state("vnic", "a0", "up");
    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("vnic", "a0", "up");
    assert_eq!((taps("a"), taps("b")), (1, 0));
    // Taken out by its guest (`ip link delete`), it comes again, too.
    lab.ip("a", "link delete eth0");
    until("it is made again", || taps("a") == 1);
    daemon.wait_for_state("vnic", "a0", "up");
}

/// One that is moved while no daemon runs is made again by the next daemon, and the one that was moved is removed; that of
/// another VNIC stays.
#[test]
fn a_tap_moved_meanwhile_is_there_once() {
    let Some(lab) = Lab::start("a_tap_moved_meanwhile_is_there_once") else {
        return;
    };
    lab.namespace("a");
    lab.namespace("b");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    daemon.tap(&lab, "b0", "b", ",address=10.1.0.2/24", "");
    daemon.kill();
    let there = lab.name("b");
    lab.ip("a", &format!("link set eth0 netns {there} name moved0"));
    daemon.start_again();
    let taps = |short: &str| lab.ip(short, "-o link show type tun");
    until("it is made again, and there once", || {
        taps("a").lines().count() == 1 && !taps("b").contains("moved0")
    });
    for vnic in ["a0", "b0"] {
        daemon.wait_for_state("vnic", vnic, "up");
    }
    assert!(lab.ping("a", "10.1.0.2", 3));
}

/// A TAP that its guest sets down is shown as waiting, with the reason, and as up when it is set up again; the monitor
/// tells both. Its rings stay: connections are not counted anew.
#[test]
fn a_tap_set_down_is_shown() {
    let Some(lab) = Lab::start("a_tap_set_down_is_shown") else {
        return;
    };
    lab.namespace("a");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", "", "");
    let mut monitor = daemon.command();
    monitor.args(["monitor", "--json", "-c", "3"]);
    let monitor = monitor.stdout(std::process::Stdio::piped()).spawn();
    let mut told = std::io::BufReader::new(monitor.expect("a monitor").stdout.expect("a pipe"));
    let mut event = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut told, &mut line).expect("a line");
        line
    };
    assert!(event().contains("start"));
    lab.ip("a", "link set eth0 down");
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(reason.contains("down"), "{reason}");
    let told = event();
    assert!(told.contains("waiting"), "{told}");
    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("vnic", "a0", "waiting");
    lab.ip("a", "link set eth0 up");
    daemon.wait_for_state("vnic", "a0", "up");
    assert_eq!(daemon.show("vnic", "a0")["connects"], 1);
}

/// An event that was lost because the daemon did not read in time does not stay unknown.
#[test]
fn lost_events_are_made_up_for() {
    let Some(lab) = Lab::start("lost_events_are_made_up_for") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", "", "");
    daemon.wait_for_state("vnic", "a0", "up");
    daemon.while_stopped(|| {
        for number in 0..500 {
            lab.ip("a", &format!("link set lo alias n{number}"));
        }
        lab.ip("a", "link set eth0 down");
    });
    let reason = daemon.wait_for_state("vnic", "a0", "waiting");
    assert!(reason.contains("down"), "{reason}");
}

/// Between two guests with an MTU of 9000, frames of that size pass whole; a third one with 1500 gets none that is larger.
#[test]
fn jumbo_frames_pass() {
    let Some(lab) = Lab::start("jumbo_frames_pass") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (name, number, mtu) in [("a", 1, 9000), ("b", 2, 9000), ("c", 3, 1500)] {
        lab.namespace(name);
        let address = format!(",address=10.1.0.{number}/24");
        let words = format!("--set mtu={mtu}");
        daemon.tap(&lab, &format!("{name}0"), name, &address, &words);
    }
    // 8,972 bytes of ICMP payload are an IPv4 packet of 9,000 bytes; nobody may fragment it.
    let whole = |to: &str, bytes: &str| {
        let words = [
            "-n", "-q", "-c", "3", "-i", "0.2", "-W", "1", "-M", "do", "-s", bytes, to,
        ];
        windlass_tests::run(lab.command("a", "ping").args(words)).code == 0
    };
    assert!(whole("10.1.0.2", "8972"));
    assert!(whole("10.1.0.3", "1472"));
    assert!(!whole("10.1.0.3", "1473"));
    assert_eq!(daemon.drops("a0", "mtu"), 3, "{}", daemon.counters("a0"));
}
