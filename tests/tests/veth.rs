//! VNICs with a veth: the shortcut in the kernel, when it is open, and that it changes nothing but speed.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass_sys::bpf::{self, Instruction as I, Link, Program, ProgramKind, Side, put_at};
use windlass_sys::netlink::{LinkEvent, LinkMonitor, Netlink};
use windlass_tests::{Daemon, Lab, Wire, frame, mac, run, uninterrupted, until};

/// What a VNIC says of its shortcut: whether it is open, and frames that its member sent and got by it.
fn shortcut(daemon: &Daemon, name: &str) -> (String, u64, u64) {
    let shown = daemon.show("vnic", name);
    let text = |key: &str| {
        shown["details"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let frames = text("shortcut-frames");
    let mut numbers = frames.split(|c: char| !c.is_ascii_digit());
    let mut number = || {
        let found = numbers.find(|part| !part.is_empty());
        found.map_or(0, |part| part.parse().expect("a number"))
    };
    let (rx, tx) = (number(), number());
    (text("shortcut"), rx, tx)
}

fn is_open(daemon: &Daemon, name: &str) -> bool {
    shortcut(daemon, name).0 == "open"
}

/// A bridge with two containers `a` and `b`, each with a veth, ready.
fn two(lab: &Lab, words: &str) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (name, address) in [("a", "10.1.0.1/24"), ("b", "10.1.0.2/24")] {
        lab.namespace(name);
        veth(&daemon, lab, name, address, words);
    }
    daemon
}

/// A VNIC of its namespace's name.
fn veth(daemon: &Daemon, lab: &Lab, name: &str, address: &str, words: &str) {
    let netns = lab.name(name);
    daemon.must(&format!(
        "vnic create {name} --bridge br0 --attach veth,name=eth0,netns={netns},address={address} {words}"
    ));
    daemon.wait_for_state("vnic", name, "up");
}

fn number(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().expect("a number")
}

/// The equations of docs/operator-guide.md for a member without floods that wait.
fn balanced(daemon: &Daemon, name: &str) {
    let counters = daemon.counters(name);
    let of = |key: &str| number(&counters, key);
    let rx =
        of("rx_unicast") + of("rx_flooded") + of("rx_local") + of("rx_dropped") + of("rx_held");
    assert_eq!(of("rx_frames"), rx, "{name}: {counters}");
    let tx = of("tx_frames") + of("tx_dropped") + of("tx_held");
    assert_eq!(of("tx_offered"), tx, "{name}: {counters}");
}

/// Two containers reach each other; after the first frames they do so by the shortcut, and the counters of both have what went there. A third
/// member that has no veth is reached all the same.
#[test]
fn frames_go_by_the_shortcut() {
    let Some(lab) = Lab::start("frames_go_by_the_shortcut") else {
        return;
    };
    let daemon = two(&lab, "");
    lab.namespace("c");
    daemon.tap(&lab, "c0", "c", ",address=10.1.0.3/24", "");
    assert!(lab.ping("a", "10.1.0.2", 3) && lab.ping("a", "10.1.0.3", 3));
    assert!(is_open(&daemon, "a") && is_open(&daemon, "b"));
    let before = shortcut(&daemon, "a");
    let counted = daemon.counters("a");
    for _ in 0..3 {
        assert!(lab.ping("a", "10.1.0.2", 3));
    }
    let after = shortcut(&daemon, "a");
    assert!(
        after.1 >= before.1 + 3 && after.2 >= before.2 + 3,
        "{before:?}, {after:?}"
    );
    let now = daemon.counters("a");
    assert!(number(&now, "rx_unicast") >= number(&counted, "rx_unicast") + 3);
    for name in ["a", "b", "c0"] {
        balanced(&daemon, name);
    }
    daemon.must("vnic delete a");
    assert_eq!(lab.ip("a", "-o link show").lines().count(), 1, "lo alone");
    until("ours is gone, too", || {
        lab.ip("host", "-o link show type veth").lines().count() == 1
    });
    assert!(lab.ping("b", "10.1.0.3", 3));
}

/// What the kernel tells of a new veth while it is made does not set its TAP down again.
#[test]
fn a_new_one_is_set_up_once() {
    let Some(lab) = Lab::start("a_new_one_is_set_up_once") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    lab.namespace("a");
    let mut monitor = lab.within("host", || LinkMonitor::open().expect("a monitor"));
    veth(&daemon, &lab, "a", "10.1.0.1/24", "");
    let mut is_up = Vec::new();
    let mut hear = |monitor: &mut LinkMonitor| {
        while let Some(event) = monitor.next_event().expect("links") {
            match event {
                LinkEvent::Changed(link) if link.name.starts_with("wlt") => {
                    is_up.push(link.is_up());
                }
                LinkEvent::Overrun => panic!("events were lost"),
                _ => {}
            }
        }
    };
    hear(&mut monitor);
    // By now the daemon has read what it was told.
    lab.ip("a", "link set eth0 down");
    daemon.wait_for_state("vnic", "a", "waiting");
    hear(&mut monitor);
    is_up.dedup();
    assert_eq!(is_up, [false, true, false]);
}

/// What the command `words` says when it is done with `property` as one word.
fn set(daemon: &Daemon, vnic: &str, property: &str) {
    let done = run(daemon.command().args(["vnic", "set", vnic, property]));
    assert_eq!(done.code, 0, "{property}: {}", done.err);
}

/// Sends so many bytes by TCP from `a` to an address of `b`. Gives how many arrived.
fn stream(lab: &Lab, to: &str, bytes: usize) -> u64 {
    let listener = lab.within("b", || TcpListener::bind(to).expect("a port"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let to = to.parse().expect("an address");
            let timeout = Duration::from_secs(10);
            let mut stream = lab.within("a", || {
                TcpStream::connect_timeout(&to, timeout).expect("connected")
            });
            stream.write_all(&vec![7; bytes]).expect("sent");
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        std::io::copy(&mut stream, &mut std::io::sink()).expect("received")
    })
}

/// The address of a VNIC.
fn own(daemon: &Daemon, vnic: &str) -> String {
    let shown = daemon.show("vnic", vnic);
    shown["mac"].as_str().expect("an address").to_owned()
}

/// A stream of TCP goes by the shortcut in segments far larger than the MTU, which no worker sees.
#[test]
fn a_stream_goes_by_the_shortcut() {
    let Some(lab) = Lab::start("a_stream_goes_by_the_shortcut") else {
        return;
    };
    let daemon = two(&lab, "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    let before = (daemon.counters("a"), shortcut(&daemon, "a").1);
    assert_eq!(stream(&lab, "10.1.0.2:7000", 64 << 20), 64 << 20);
    let after = (daemon.counters("a"), shortcut(&daemon, "a").1);
    let since = |name: &str| number(&after.0, name) - number(&before.0, name);
    let (frames, by) = (since("rx_frames"), after.1 - before.1);
    assert!(by * 10 >= frames * 9, "{by} of {frames} by the shortcut");
    let mean = since("rx_bytes") / frames;
    assert!(mean > 3000, "frames of {mean} bytes");
    balanced(&daemon, "a");
    balanced(&daemon, "b");
}

/// A running `windlass snoop` of `a`.
struct Capture(Child);

impl Capture {
    fn start(lab: &Lab, daemon: &Daemon) -> Capture {
        let file = lab.directory().join("capture");
        let mut command = daemon.command();
        command.args(["snoop", "-d", "a", "-w"]).arg(file);
        Capture(command.spawn().expect("windlass"))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

/// Whatever only a worker can do closes the shortcut before the call returns: no frame goes by it after that, and all arrive as before.
/// Taken back, the shortcut is open again.
#[test]
fn what_only_a_worker_does_closes_it() {
    let Some(lab) = Lab::start("what_only_a_worker_does_closes_it") else {
        return;
    };
    let daemon = two(&lab, "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    let closed = |what: &str| {
        let before = [shortcut(&daemon, "a"), shortcut(&daemon, "b")];
        let open = before.iter().filter(|(state, ..)| state == "open").count();
        assert!(open < 2, "{what}: {before:?}");
        assert!(lab.ping("a", "10.1.0.2", 3), "{what}");
        let after = [shortcut(&daemon, "a"), shortcut(&daemon, "b")];
        assert_eq!(after, before, "{what}");
    };
    let open = |what: &str| {
        assert!(is_open(&daemon, "a") && is_open(&daemon, "b"), "{what}");
        let before = shortcut(&daemon, "a").1;
        until(what, || {
            assert!(lab.ping("a", "10.1.0.2", 3), "{what}");
            shortcut(&daemon, "a").1 > before
        });
    };
    open("at first");
    for (on, off) in [
        ("maxbw=100", "maxbw=0"),
        ("firewall=drop out udp", "firewall="),
        ("allowed-ips=10.1.0.0/16", "allowed-ips="),
        ("private=on", "private=off"),
        ("mac-nospoof=off", "mac-nospoof=on"),
    ] {
        for vnic in ["a", "b"] {
            set(&daemon, vnic, on);
            closed(&format!("{vnic}: {on}"));
            set(&daemon, vnic, off);
            open(&format!("{vnic}: {off}"));
        }
    }
    daemon.must("flow add web --vnic b --attr local_port=80,transport=tcp");
    closed("a flow");
    daemon.must("flow remove web");
    open("no flow");
    lab.namespace("s");
    daemon.tap(&lab, "s0", "s", "", "--set span=on");
    closed("a span");
    daemon.must("vnic delete s0");
    open("no span");
    let capture = Capture::start(&lab, &daemon);
    until("a capture", || !is_open(&daemon, "a"));
    closed("a capture");
    drop(capture);
    until("no capture", || is_open(&daemon, "a"));
    open("no capture");
    // What the shortcut keeps by itself does not close it.
    set(&daemon, "a", "restricted=on");
    open("restricted");
    set(&daemon, "a", "mtu=1400");
    open("another MTU");
    balanced(&daemon, "a");
    balanced(&daemon, "b");
}

/// Numbered datagrams from `a` to `b`, while `work` runs. The numbers that arrived, in order of arrival.
fn numbered(lab: &Lab, gap: Duration, work: impl FnOnce()) -> Vec<u64> {
    let timeout = Some(Duration::from_secs(2));
    let to = lab.within("b", || UdpSocket::bind("10.1.0.2:7000").expect("a socket"));
    to.set_read_timeout(timeout).expect("a socket");
    let from = lab.within("a", || UdpSocket::bind("10.1.0.1:0").expect("a socket"));
    from.connect("10.1.0.2:7000").expect("a route");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                // A queue that is full for a moment loses one.
                let _ = from.send(&number.to_le_bytes());
                number += 1;
                std::thread::sleep(gap);
            }
        });
        let read = scope.spawn(|| {
            let (mut got, mut space) = (Vec::new(), [0; 8]);
            while uninterrupted(|| to.recv(&mut space)).is_ok() {
                got.push(u64::from_le_bytes(space));
            }
            got
        });
        work();
        is_over.store(true, Ordering::Relaxed);
        read.join().expect("read")
    })
}

/// A stream goes from one way to the other and back, twenty times, and stays in order; it uses both ways.
#[test]
fn order_is_kept_from_one_way_to_the_other() {
    let Some(lab) = Lab::start("order_is_kept_from_one_way_to_the_other") else {
        return;
    };
    let daemon = two(&lab, "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    let before = shortcut(&daemon, "a").1;
    let got = numbered(&lab, Duration::from_micros(50), || {
        for _ in 0..20 {
            set(&daemon, "b", "private=on");
            set(&daemon, "b", "private=off");
            let by = shortcut(&daemon, "a").1;
            until("the shortcut is used again", || {
                shortcut(&daemon, "a").1 > by
            });
        }
    });
    let by = shortcut(&daemon, "a").1 - before;
    let swapped = got.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    assert_eq!(swapped, 0, "of {} datagrams", got.len());
    let all = got.len() as u64;
    assert!(by > 0 && by < all, "{by} of {all} by the shortcut");
}

/// Killing the daemon leaves what was allowed, and only that: the two go on, a third member is not reached, an address that is not
/// the member's own is not heard. The daemon that comes takes the same interface over. The namespace takes all of it along, also while no
/// daemon runs.
#[test]
fn it_goes_on_without_its_daemon() {
    let Some(lab) = Lab::start("it_goes_on_without_its_daemon") else {
        return;
    };
    let mut daemon = two(&lab, "");
    lab.namespace("c");
    daemon.tap(&lab, "c0", "c", ",address=10.1.0.3/24", "");
    assert!(lab.ping("a", "10.1.0.2", 3) && lab.ping("a", "10.1.0.3", 3));
    until("by the shortcut", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    lab.ip("a", "route add 10.9.0.0/16 via 10.1.0.2");
    let links = lab.ip("a", "-o link show eth0");
    daemon.kill();
    assert!(lab.ping("a", "10.1.0.2", 3) && lab.ping("b", "10.1.0.1", 3));
    // Neighbours that are asked again, as the kernel does after a while, answer.
    lab.ip("a", "neigh change 10.1.0.2 dev eth0 nud probe");
    std::thread::sleep(Duration::from_millis(100));
    assert!(lab.ip("a", "neigh show 10.1.0.2").contains("REACHABLE"));
    assert!(!lab.ping("a", "10.1.0.3", 1));
    lab.ip("a", "link set eth0 address 02:00:00:00:00:99");
    lab.ip(
        "b",
        "neigh replace 10.1.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud reachable",
    );
    assert!(!lab.ping("a", "10.1.0.2", 1), "not its own address");
    daemon.start_again();
    daemon.wait_for_state("vnic", "a", "up");
    assert_eq!(
        lab.ip("a", "-o link show eth0"),
        links,
        "the same, with its own address"
    );
    lab.ip("b", "neigh flush all");
    until("reached again", || lab.ping("a", "10.1.0.2", 1));
    assert!(lab.ip("a", "route show").contains("10.9.0.0/16"));
    until("by the shortcut again", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    assert!(lab.ping("a", "10.1.0.3", 3));
    daemon.kill();
    lab.remove_namespace("a");
    until("its end is gone", || {
        lab.ip("host", "-o link show type veth").lines().count() == 1
    });
    assert_eq!(lab.ip("host", "-o link show type tun").lines().count(), 0);
}

/// A container that may do anything to its own interface gets nothing that it was not given: another address, longer packets, its end
/// gone or moved, queues and programs of its own. Whatever was lost is made anew.
#[test]
fn a_container_cannot_bypass_it() {
    let Some(lab) = Lab::start("a_container_cannot_bypass_it") else {
        return;
    };
    let daemon = two(&lab, "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    // As if it were somebody else: dropped, and counted as ever.
    let spoofed = daemon.drops("a", "mac-spoof");
    lab.ip("a", "link set eth0 address 02:00:00:00:00:99");
    assert!(!lab.ping("a", "10.1.0.2", 1));
    assert!(daemon.drops("a", "mac-spoof") > spoofed);
    lab.ip("a", &format!("link set eth0 address {}", own(&daemon, "a")));
    lab.ip("b", "neigh flush all");
    until("its own again", || lab.ping("a", "10.1.0.2", 1));
    // Longer than the other takes.
    set(&daemon, "a", "mtu=9000");
    set(&daemon, "b", "mtu=1400");
    lab.ip("b", "link set eth0 mtu 9000");
    let too_long = daemon.drops("a", "mtu");
    let long = ["-c1", "-W1", "-s", "3000", "-M", "do", "10.1.0.2"];
    assert_ne!(run(lab.command("a", "ping").args(long)).code, 0);
    assert!(daemon.drops("a", "mtu") > too_long);
    // Its end, moved into a namespace of its own or deleted: a new one is made, and ours of the former is gone.
    lab.namespace("inner");
    lab.ip("a", &format!("link set eth0 netns {}", lab.name("inner")));
    until("a new one", || lab.ip("a", "-o link show").contains("eth0"));
    until("reached", || lab.ping("a", "10.1.0.2", 1));
    assert_eq!(lab.ip("inner", "-o link show").lines().count(), 1);
    lab.ip("a", "link delete eth0");
    until("a new one", || lab.ip("a", "-o link show").contains("eth0"));
    until("reached", || lab.ping("a", "10.1.0.2", 1));
    assert_eq!(lab.ip("host", "-o link show type veth").lines().count(), 2);
    // Down: not up, and the other's frames are counted as dropped.
    lab.ip("a", "link set eth0 down");
    daemon.wait_for_state("vnic", "a", "waiting");
    let sent = run(lab.command("b", "ping").args(["-c1", "-W1", "10.1.0.1"]));
    assert_ne!(sent.code, 0);
    lab.ip("a", "link set eth0 up");
    daemon.wait_for_state("vnic", "a", "up");
    until("reached", || lab.ping("a", "10.1.0.2", 1));
    balanced(&daemon, "a");
    balanced(&daemon, "b");
}

/// An upgrade hands the TAP over: a stream goes on in order and loses nothing, and the shortcut is open after it.
#[test]
fn it_outlives_an_upgrade() {
    let Some(lab) = Lab::start("it_outlives_an_upgrade") else {
        return;
    };
    let mut daemon = two(&lab, "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    let got = numbered(&lab, Duration::from_millis(1), || daemon.upgrade());
    let gaps = got.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert_eq!(
        gaps,
        0,
        "of {} datagrams: {got:?}\n{}",
        got.len(),
        daemon.log()
    );
    daemon.wait_for_state("vnic", "a", "up");
    daemon.wait_for_state("vnic", "b", "up");
    until("by the shortcut", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    balanced(&daemon, "a");
}

/// A container whose namespace has lost its name while no daemon ran gets a frame to nobody any more: what the daemon before had allowed
/// ends when the next one does not find the namespace, though processes still have it.
#[test]
fn what_is_not_taken_over_is_cut_off() {
    let Some(lab) = Lab::start("what_is_not_taken_over_is_cut_off") else {
        return;
    };
    let mut daemon = two(&lab, "");
    until("by the shortcut", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    let to = lab.within("b", || UdpSocket::bind("10.1.0.2:7000").expect("a socket"));
    to.set_read_timeout(Some(Duration::from_secs(2)))
        .expect("a socket");
    let from = lab.within("a", || UdpSocket::bind("10.1.0.1:0").expect("a socket"));
    from.connect("10.1.0.2:7000").expect("a route");
    let mut space = [0; 1];
    daemon.kill();
    from.send(b"x").expect("sent");
    uninterrupted(|| to.recv(&mut space)).expect("still allowed");
    // The socket keeps the namespace.
    lab.remove_namespace("a");
    daemon.start_again();
    daemon.wait_for_state("vnic", "a", "waiting");
    daemon.wait_for_state("vnic", "b", "up");
    set(&daemon, "b", "firewall=drop in udp");
    from.send(b"x").expect("sent");
    let got = uninterrupted(|| to.recv(&mut space));
    assert!(got.is_err(), "past the firewall of `b`");
}

/// A VNIC that no document has any more, since its daemon was killed between two steps, leaves nothing: the next one removes its veth, which
/// would pass on what the former had allowed.
#[test]
fn a_veth_of_no_vnic_is_removed() {
    let Some(lab) = Lab::start("a_veth_of_no_vnic_is_removed") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    lab.namespace("b");
    veth(&daemon, &lab, "b", "10.1.0.2/24", "");
    let document = daemon.directory().join("state/document.json");
    let without_a = std::fs::read(&document).expect("a document");
    lab.namespace("a");
    veth(&daemon, &lab, "a", "10.1.0.1/24", "");
    until("by the shortcut", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    daemon.kill();
    std::fs::write(&document, without_a).expect("written");
    daemon.start_again();
    daemon.wait_for_state("vnic", "b", "up");
    until("lo alone", || {
        lab.ip("a", "-o link show").lines().count() == 1
    });
    assert_eq!(lab.ip("host", "-o link show type veth").lines().count(), 1);
}

/// A datagram of a byte from one address to another, in a namespace.
fn datagram(lab: &Lab, short: &str, from: &str, to: &str) {
    let socket = lab.within(short, || UdpSocket::bind(from).expect("an address"));
    socket.send_to(b"x", to).expect("sent");
}

/// Guards that judge each frame by itself leave the shortcut open: datagrams from an allowed address go by it. What they refuse is refused and
/// counted, and what the shortcut cannot tell, such as ICMP, takes the other way.
#[test]
fn guards_keep_it_open() {
    let Some(lab) = Lab::start("guards_keep_it_open") else {
        return;
    };
    let daemon = two(&lab, "");
    let guards = "allowed-ips=10.1.0.1 restricted=on router-guard=on dhcp-guard=on dhcp-nospoof=on";
    daemon.must(&format!("vnic set a {guards}"));
    assert!(lab.ping("a", "10.1.0.2", 3));
    assert!(is_open(&daemon, "a") && is_open(&daemon, "b"));
    let by = |what: &str, from: &str| {
        let before = shortcut(&daemon, "a").1;
        until(what, || {
            datagram(&lab, "a", from, "10.1.0.2:7000");
            let goes_by = shortcut(&daemon, "a").1 > before;
            if !goes_by {
                // Behind one that was refused the shortcut opens after a second without another.
                std::thread::sleep(Duration::from_millis(1100));
            }
            goes_by
        });
    };
    by("its own", "10.1.0.1:0");
    lab.ip("a", "address add 10.1.0.9/24 dev eth0");
    let spoofed = daemon.drops("a", "ip-spoof");
    let before = shortcut(&daemon, "a").1;
    datagram(&lab, "a", "10.1.0.9:0", "10.1.0.2:7000");
    until("refused", || daemon.drops("a", "ip-spoof") > spoofed);
    datagram(&lab, "a", "10.1.0.1:67", "10.1.0.2:68");
    until("no server", || daemon.drops("a", "dhcp-guard") > 0);
    assert!(lab.ping("a", "10.1.0.2", 3));
    assert_eq!(shortcut(&daemon, "a").1, before, "by the worker");
    set(&daemon, "a", "allowed-ips=10.1.0.1,10.1.0.8/30");
    by("one more", "10.1.0.9:0");
    set(&daemon, "a", "allowed-ips=10.1.0.0/16");
    assert!(!is_open(&daemon, "a"), "too many to look one up");
    balanced(&daemon, "a");
    balanced(&daemon, "b");
}

/// Puts a program at the end of a container, as the container itself could.
fn program(lab: &Lab, short: &str, side: Side, code: &[I]) {
    lab.within(short, || {
        let mut netlink = Netlink::open().expect("netlink");
        let link = netlink.link_by_name("eth0").expect("netlink");
        let program = Program::load("test", ProgramKind::Classifier, code).expect("a program");
        put_at(&program, link.expect("eth0").index, side).expect("put");
    });
}

/// Another source: bpf_skb_store_bytes(skb, 6, stack, 6, 0).
fn spoof() -> [I; 12] {
    const STORE: i32 = 9;
    [
        I::move_word(2, 0x0000_0002),
        I::store_word(10, -8, 2),
        I::move_word(2, 0x0000_9900),
        I::store_word(10, -4, 2),
        I::move_immediate(2, 6),
        I::move_register(3, 10),
        I::add_immediate(3, -8),
        I::move_immediate(4, 6),
        I::move_immediate(5, 0),
        I::call(STORE),
        I::move_immediate(0, 0),
        I::exit(),
    ]
}

/// A tag: bpf_skb_vlan_push(skb, 802.1Q, 5).
fn tag() -> [I; 5] {
    const PUSH: i32 = 18;
    [
        I::move_word(2, 0x0081),
        I::move_word(3, 5),
        I::call(PUSH),
        I::move_immediate(0, 0),
        I::exit(),
    ]
}

/// What a container puts at its own end (a queue, programs at tcx) gets it nothing: frames
/// that its programs have changed are judged as any others.
#[test]
fn what_is_at_its_end_changes_nothing() {
    let Some(lab) = Lab::start("what_is_at_its_end_changes_nothing") else {
        return;
    };
    if !bpf::has_places() {
        windlass_tests::skip("what_is_at_its_end_changes_nothing", "no tcx");
        return;
    }
    let daemon = two(&lab, "");
    until("by the shortcut", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    // Neighbours that do not have to be asked.
    for (at, address, of) in [("a", "10.1.0.2", "b"), ("b", "10.1.0.1", "a")] {
        lab.ip(
            at,
            &format!(
                "neigh replace {address} lladdr {} dev eth0",
                own(&daemon, of)
            ),
        );
    }
    let tc = |words: &str| {
        let done = run(lab.command("a", "tc").args(words.split_whitespace()));
        assert_eq!(done.code, 0, "tc {words}: {}", done.err);
    };
    tc("qdisc add dev eth0 root tbf rate 100mbit burst 100kb latency 50ms");
    assert!(lab.ping("a", "10.1.0.2", 3), "behind a queue");
    tc("qdisc delete dev eth0 root");

    let (spoof, tag) = (spoof(), tag());
    let pass = [I::move_immediate(0, 0), I::exit()];
    for (what, code, reason) in [
        ("another source", &spoof[..], "mac-spoof"),
        ("a tag", &tag[..], "vlan-denied"),
    ] {
        let before = shortcut(&daemon, "a").1;
        let dropped = daemon.drops("a", reason);
        program(&lab, "a", Side::Egress, code);
        assert!(!lab.ping("a", "10.1.0.2", 1), "{what}");
        let counters = daemon.counters("a");
        assert!(daemon.drops("a", reason) > dropped, "{what}: {counters}");
        assert_eq!(shortcut(&daemon, "a").1, before, "{what}");
        program(&lab, "a", Side::Egress, &pass);
    }
    assert!(lab.ping("a", "10.1.0.2", 3), "as it was");

    balanced(&daemon, "a");
    balanced(&daemon, "b");
}

/// The same of XDP in the driver, which limits what the pair may carry: a change that the kernel refuses is undone. And of segments that are
/// larger than a packet can be.
#[test]
fn xdp_and_large_segments_change_nothing() {
    let Some(lab) = Lab::start("xdp_and_large_segments_change_nothing") else {
        return;
    };
    let daemon = two(&lab, "");
    assert!(lab.ping("a", "10.1.0.2", 3));
    let xdp = lab.within("a", || {
        let mut netlink = Netlink::open().expect("netlink");
        let link = netlink
            .link_by_name("eth0")
            .expect("netlink")
            .expect("eth0");
        let drop_all = [I::move_immediate(0, 1), I::exit()];
        let program = Program::load("test", ProgramKind::Xdp, &drop_all).expect("a program");
        Link::xdp(&program, link.index).expect("attached")
    });
    assert!(
        lab.ping("a", "10.1.0.2", 3),
        "past a program for the driver"
    );
    assert_ne!(daemon.try_do("vnic set a mtu=9000").code, 0);
    assert!(lab.ip("host", "-o link show type tun").contains("mtu 1500"));
    assert!(!daemon.must("export").contains("9000"));
    assert!(lab.ping("a", "10.1.0.2", 3));
    drop(xdp);
    set(&daemon, "a", "mtu=9000");

    // Segments that are larger than a packet can be.
    lab.ip("a", "link set eth0 gso_max_size 262144");
    for (at, address) in [("a", "fd00::1/64"), ("b", "fd00::2/64")] {
        let on = "net.ipv6.conf.eth0.disable_ipv6=0";
        let done = run(lab.command(at, "sysctl").args(["-qw", on]));
        assert_eq!(done.code, 0, "{}", done.err);
        lab.ip(at, &format!("address add {address} dev eth0 nodad"));
    }
    let before = shortcut(&daemon, "b");
    assert_eq!(stream(&lab, "[fd00::2]:7000", 32 << 20), 32 << 20);
    let after = shortcut(&daemon, "b");
    assert!(after.2 > before.2, "{before:?}, {after:?}");
    balanced(&daemon, "a");
    balanced(&daemon, "b");
}

/// A port of spanning tree that does not forward has no shortcut: one that a guard has closed, one that listens or learns. Said by the
/// state of the port, in whichever it is.
#[test]
fn a_port_that_does_not_forward_is_closed() {
    let Some(lab) = Lab::start("a_port_that_does_not_forward_is_closed") else {
        return;
    };
    let daemon = two(&lab, "");
    daemon.must("bridge set br0 stp=on forward-delay=4 max-age=6 hello=1");
    assert!(lab.ping("a", "10.1.0.2", 3));
    assert!(is_open(&daemon, "a"), "takes no part");
    daemon.must("vnic set a stp=on edge=on bpdu-guard=on");
    until("forwards at once", || is_open(&daemon, "a"));
    let wire = Wire::open(&lab, "a", "eth0");
    // A configuration BPDU of 802.1D.
    let mut bpdu = frame(mac("01:80:c2:00:00:00"), mac(&own(&daemon, "a")), &[], "");
    bpdu.truncate(12);
    bpdu.extend([0, 38, 0x42, 0x42, 3]);
    bpdu.resize(60, 0);
    // Max age, hello time, forward delay.
    for (at, seconds) in [(46, 20), (48, 2), (50, 15)] {
        bpdu[at] = seconds;
    }
    wire.send(&bpdu);
    until("the guard has closed it", || !is_open(&daemon, "a"));
    let before = shortcut(&daemon, "b");
    assert!(!lab.ping("b", "10.1.0.1", 1));
    assert_eq!(shortcut(&daemon, "b"), before);
    daemon.must("vnic set a bpdu-guard=off edge=off");
    until("forwards", || {
        let shown = daemon.show("vnic", "a");
        let [port, way] = ["stp", "shortcut"].map(|key| shown["details"][key].to_string());
        let forwards = port.contains("forwarding");
        assert_eq!(forwards, way.contains("open"), "{port}, {way}");
        forwards
    });
    until("by the shortcut again", || {
        let before = shortcut(&daemon, "b").1;
        lab.ping("b", "10.1.0.1", 1) && shortcut(&daemon, "b").1 > before
    });
}

/// A namespace by name, by the path of its mount, or as that of a process. A path to something else, or to the daemon's own, is told as
/// such, and nothing is made. The end of the process takes the veth along.
#[test]
fn each_form_of_a_namespace() {
    let Some(lab) = Lab::start("each_form_of_a_namespace") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for short in ["a", "b"] {
        lab.namespace(short);
    }
    let mut process = lab
        .command("a", "sleep")
        .arg("1000")
        .spawn()
        .expect("sleep");
    let path = format!("/proc/{}/ns/net", process.id());
    let mounted = format!("/run/netns/{}", lab.name("b"));
    let inside = std::fs::metadata(format!("/run/netns/{}", lab.name("a"))).expect("a mount");
    until("it is inside", || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(&path).is_ok_and(|link| link.ino() == inside.ino())
    });
    let create = |name: &str, netns: &str, address: &str| {
        daemon.try_do(&format!(
            "vnic create {name} --bridge br0 --attach veth,name=eth0,netns={netns},address={address}/24"
        ))
    };
    for (name, netns, address) in [("a", &path, "10.1.0.1"), ("b", &mounted, "10.1.0.2")] {
        assert_eq!(create(name, netns, address).code, 0);
        daemon.wait_for_state("vnic", name, "up");
    }
    until("by the shortcut", || {
        lab.ping("a", "10.1.0.2", 3) && shortcut(&daemon, "a").1 > 0
    });
    let own = format!("/run/netns/{}", lab.name("host"));
    let file = lab.directory().join("file");
    std::fs::write(&file, "").expect("written");
    let file = file.to_str().expect("a path").to_owned();
    let other = format!("/proc/{}/ns/mnt", process.id());
    for netns in [&own, &file, &other, &"/nonexistent/net".to_owned()] {
        assert_eq!(create("c", netns, "10.1.0.3").code, 0, "{netns}");
        let reason = daemon.wait_for_state("vnic", "c", "waiting");
        assert!(reason.contains(netns.as_str()), "{netns}: {reason}");
        daemon.must("vnic delete c");
    }
    assert_ne!(create("c", "../a", "10.1.0.3").code, 0, "no name");
    assert_eq!(lab.ip("host", "-o link show type veth").lines().count(), 2);
    process.kill().expect("killed");
    process.wait().expect("ended");
    let reason = daemon.wait_for_state("vnic", "a", "waiting");
    assert!(reason.contains(&path), "{reason}");
    until("it is gone", || {
        lab.ip("host", "-o link show type veth").lines().count() == 1
    });
}

/// Nothing passes that the host itself sends at the interfaces of `a` and `b`.
fn quiet(lab: &Lab, daemon: &Daemon) {
    let [from_a, to_b] = ["a", "b"].map(|name| mac(&own(daemon, name)));
    let ours = lab.ip("host", "-o link show");
    let names = ours
        .lines()
        .filter_map(|line| line.split([' ', '@', ':']).nth(2));
    let wires: Vec<_> = names
        .filter(|name| name.starts_with("wl"))
        .map(|name| Wire::open(lab, "host", name))
        .collect();
    assert_eq!(wires.len(), 4, "{ours}");
    let heard = Wire::open(lab, "b", "eth0");
    for wire in &wires {
        wire.try_send(&frame(to_b, mac("02:00:00:00:00:77"), &[], "from the host"))
            .expect("sent");
    }
    Wire::open(lab, "a", "eth0").send(&frame(to_b, from_a, &[], "last"));
    assert!(heard.frames_until("last").is_empty());
}

/// Where a program may be, from one life of the daemon to the next: without a place for it the container gets a TAP, and nothing of the
/// veth before stays, which would pass what the former daemon allowed. With tcx frames go by the shortcut as with `clsact`, also while no
/// daemon runs. At each of them nothing passes that the host itself sends at the interfaces.
#[test]
fn wherever_programs_are() {
    let Some(lab) = Lab::start("wherever_programs_are") else {
        return;
    };
    let file = lab.directory().join("windlass.toml");
    let option = |value: &str| {
        std::fs::write(&file, format!("shortcut = \"{value}\"\n")).expect("written");
    };
    option("auto");
    let path = file.to_str().expect("a path").to_owned();
    let mut daemon = Daemon::start_with(&lab, "host", 0, &["--config", &path]);
    daemon.must("bridge create br0");
    for (name, address) in [("a", "10.1.0.1/24"), ("b", "10.1.0.2/24")] {
        lab.namespace(name);
        veth(&daemon, &lab, name, address, "");
    }
    let clsact = || {
        run(lab.command("host", "tc").args(["qdisc", "show"]))
            .out
            .contains("clsact")
    };
    let goes_by = |daemon: &Daemon| {
        let before = shortcut(daemon, "a").1;
        until("by the shortcut", || {
            lab.ping("a", "10.1.0.2", 3) && shortcut(daemon, "a").1 > before
        });
    };
    goes_by(&daemon);
    quiet(&lab, &daemon);
    assert!(clsact(), "auto");
    let taps = |short: &str| lab.ip(short, "-o link show type tun").lines().count();
    for (value, of_container, of_host) in [("off", 1, 0), ("auto", 0, 2)] {
        daemon.kill();
        option(value);
        daemon.start_again();
        for name in ["a", "b"] {
            daemon.wait_for_state("vnic", name, "up");
            assert_eq!(taps(name), of_container, "{value}");
        }
        let veths = lab.ip("host", "-o link show type veth");
        assert_eq!(
            (veths.lines().count(), taps("host")),
            (of_host, of_host),
            "{value}"
        );
        assert!(lab.ping("a", "10.1.0.2", 3), "{value}");
        let none = shortcut(&daemon, "a").0.starts_with("none, a TAP: ");
        assert_eq!(none, value == "off");
    }
    for (value, has_clsact) in [("tcx", false), ("clsact", true)] {
        daemon.kill();
        option(value);
        assert!(lab.ping("a", "10.1.0.2", 3), "it goes on");
        daemon.start_again();
        for name in ["a", "b"] {
            daemon.wait_for_state("vnic", name, "up");
        }
        goes_by(&daemon);
        quiet(&lab, &daemon);
        assert_eq!(clsact(), has_clsact, "{value}");
    }
}
