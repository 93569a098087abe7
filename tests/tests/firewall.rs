//! The firewall of a VNIC, with the sockets of two kernels.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use windlass_tests::{Daemon, Done, Lab, run, uninterrupted, until};

const A: &str = "10.9.0.1";
const B: &str = "10.9.0.2";
const SOON: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);

/// Guests a and b, which know each other's link-layer address.
fn guests(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, number) in [("a", 1), ("b", 2)] {
        lab.namespace(guest);
        let words = format!("--mac 02:00:00:00:00:0{number}");
        daemon.tap(
            lab,
            &format!("{guest}0"),
            guest,
            &format!(",address=10.9.0.{number}/24"),
            &words,
        );
    }
    assert!(lab.ping("a", B, 5));
    daemon
}

fn try_set(daemon: &Daemon, vnic: &str, name: &str, rules: &str) -> Done {
    let mut command = daemon.command();
    command.args(["vnic", "set", vnic, &format!("{name}={rules}")]);
    run(&mut command)
}

fn set(daemon: &Daemon, vnic: &str, name: &str, rules: &str) {
    let done = try_set(daemon, vnic, name, rules);
    assert_eq!(done.code, 0, "{rules}: {}", done.err);
}

fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), port)
}

fn listen(lab: &Lab, guest: &str, host: &str, port: u16) -> TcpListener {
    lab.within(guest, || TcpListener::bind(at(host, port)).expect("bound"))
}

fn connect(lab: &Lab, guest: &str, to: SocketAddr, patience: Duration) -> Option<TcpStream> {
    lab.within(guest, || TcpStream::connect_timeout(&to, patience))
        .ok()
}

fn bind(lab: &Lab, guest: &str, host: &str, port: u16) -> UdpSocket {
    lab.within(guest, || UdpSocket::bind(at(host, port)).expect("bound"))
}

fn hears(socket: &UdpSocket, text: &[u8]) {
    socket.set_read_timeout(Some(LONG)).expect("a time");
    let mut buffer = [0; 6_000];
    let n = uninterrupted(|| socket.recv(&mut buffer)).expect("a datagram");
    assert!(buffer[..n] == *text, "{n} bytes");
}

fn hears_nothing(socket: &UdpSocket) {
    socket.set_read_timeout(Some(SOON)).expect("a time");
    let error = uninterrupted(|| socket.recv(&mut [0; 64])).expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// A guest with a firewall is reached where a rule lets it be, hears the answers to what it began, and nothing else; each drop is counted.
#[test]
fn only_what_rules_let_through_arrives() {
    let Some(lab) = Lab::start("only_what_rules_let_through_arrives") else {
        return;
    };
    let daemon = guests(&lab);
    set(
        &daemon,
        "b0",
        "firewall",
        "accept in tcp from 10.9.0.0/24 to port 8000-8009; accept in state established,related; drop in",
    );
    let (open, closed) = (listen(&lab, "b", B, 8000), listen(&lab, "b", B, 9000));
    let mut stream = connect(&lab, "a", at(B, 8000), LONG).expect("let in");
    stream.write_all(b"hello").expect("sent");
    let mut got = [0; 5];
    let (mut other, _) = open.accept().expect("a connection");
    other.read_exact(&mut got).expect("received");
    assert_eq!(&got, b"hello");
    let before = daemon.drops("b0", "firewall-in");
    assert!(connect(&lab, "a", at(B, 9000), SOON).is_none());
    assert!(daemon.drops("b0", "firewall-in") > before);
    drop(closed);

    // What b begins is answered.
    let _a = listen(&lab, "a", A, 80);
    assert!(connect(&lab, "b", at(A, 80), LONG).is_some());
    assert!(lab.ping("b", A, 5) && !lab.ping("a", B, 1));
    let (a, b) = (bind(&lab, "a", A, 53), bind(&lab, "b", B, 5353));
    a.send_to(b"unasked", at(B, 5353)).expect("sent");
    hears_nothing(&b);
    b.send_to(b"question", at(A, 53)).expect("sent");
    hears(&a, b"question");
    a.send_to(b"answer", at(B, 5353)).expect("sent");
    hears(&b, b"answer");

    // A datagram in parts goes as its first part does.
    let long = vec![7; 5_000];
    a.send_to(&long, at(B, 5353)).expect("sent");
    let mut buffer = vec![0; 6_000];
    assert_eq!(
        uninterrupted(|| b.recv(&mut buffer)).expect("all of it"),
        5_000
    );
    a.send_to(&long, at(B, 5354)).expect("sent");
    until("parts are dropped", || {
        daemon.drops("b0", "firewall-in") >= 6
    });

    // Outwards.
    set(&daemon, "a0", "firewall", "drop out udp to port 5353");
    a.send_to(b"no more", at(B, 5353)).expect("sent");
    hears_nothing(&b);
    until("counted", || daemon.drops("a0", "firewall") == 1);
}

/// Rules that change hold for a connection that is established, at once; without them it goes on.
#[test]
fn changed_rules_hold_for_connections() {
    let Some(lab) = Lab::start("changed_rules_hold_for_connections") else {
        return;
    };
    let daemon = guests(&lab);
    let accept = "accept in tcp to port 8000; drop in";
    set(&daemon, "b0", "firewall", accept);
    let listener = listen(&lab, "b", B, 8000);
    let mut stream = connect(&lab, "a", at(B, 8000), LONG).expect("let in");
    let (mut other, _) = listener.accept().expect("a connection");
    let mut byte = [0];
    stream.write_all(b"1").expect("sent");
    other.read_exact(&mut byte).expect("received");
    set(&daemon, "b0", "firewall-base", "drop in tcp");
    other.set_read_timeout(Some(SOON)).expect("a time");
    stream.write_all(b"2").expect("sent");
    let error = other.read_exact(&mut byte).expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // The owner's rules do not widen the operator's.
    set(&daemon, "b0", "firewall", "accept");
    other.read_exact(&mut byte).expect_err("nothing comes");
    daemon.must("vnic set b0 firewall-base=none");
    other.set_read_timeout(Some(LONG)).expect("a time");
    other.read_exact(&mut byte).expect("sent again");
    assert_eq!(byte, *b"2");
}

/// A guest has room for so many connections; beyond it new ones are refused and counted, in either direction, and those that are there go on.
#[test]
fn room_for_connections_is_the_guests_own() {
    let Some(lab) = Lab::start("room_for_connections_is_the_guests_own") else {
        return;
    };
    let daemon = guests(&lab);
    let listener = listen(&lab, "b", B, 8000);
    for (vnic, reason) in [("a0", "flow-limit"), ("b0", "flow-limit-in")] {
        daemon.must(&format!("vnic set {vnic} firewall-connections=16"));
        set(
            &daemon,
            vnic,
            "firewall",
            "accept tcp state new,established; drop tcp",
        );
        let mut streams = Vec::new();
        for _ in 0..16 {
            let stream = connect(&lab, "a", at(B, 8000), LONG).expect("room");
            streams.push((stream, listener.accept().expect("a connection").0));
        }
        assert_eq!(daemon.drops(vnic, reason), 0);
        assert!(connect(&lab, "a", at(B, 8000), SOON).is_none());
        assert!(daemon.drops(vnic, reason) > 0);
        for (mut stream, mut other) in streams {
            let mut byte = [0];
            stream.write_all(b"x").expect("sent");
            other.read_exact(&mut byte).expect("received");
        }
        daemon.must(&format!("vnic set {vnic} firewall=none"));
    }
}

/// Rules are shown as they hold; what is no rule is refused with the rule and the word, and nothing changes.
#[test]
fn rules_are_shown_and_refused() {
    let Some(lab) = Lab::start("rules_are_shown_and_refused") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must("vnic create v0 --bridge br0 --set firewall=drop");
    set(
        &daemon,
        "v0",
        "firewall",
        "set x 10.0.0.0/8\n accept  tcp in from @x to port 22-22\ndrop in # rest",
    );
    let rules = "set x 10.0.0.0/8; accept in tcp from @x to port 22; drop in";
    let shown = || daemon.json("vnic show v0")[0]["properties"]["firewall"].clone();
    assert_eq!(shown(), rules);
    for (bad, word) in [
        ("drop in; drop tpc", "tpc"),
        ("drop from 10.0.0.1/8", "10.0.0.1/8"),
        ("drop to port 80", "ports are of tcp or udp"),
    ] {
        let done = try_set(&daemon, "v0", "firewall", bad);
        assert!(done.code == 2 && done.err.contains(word), "{}", done.err);
    }
    assert_eq!(shown(), rules);
}
