//! The firewall of a VNIC, with the sockets of two kernels.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use windlass_tests::{Daemon, Done, Lab, Wire, run, uninterrupted, until};
use windlass_wire::build::{self, Ends, Link};
use windlass_wire::{MacAddr, Tci};

const A: &str = "10.9.0.1";
const B: &str = "10.9.0.2";
const SOON: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);
/// Rules that ask about connections, and let all begin.
const STATES: &str = "accept state new,established,related; drop";

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

/// Frames and bytes of the rules of a VNIC that count, with the list of each.
fn counted(daemon: &Daemon, vnic: &str) -> Vec<(String, u64, u64)> {
    let rules = daemon.json(&format!("vnic rules {vnic}"));
    let counted = rules.as_array().expect("rules").iter();
    let counted = counted.filter(|rule| rule["frames"].is_u64());
    let number = |n: &serde_json::Value| n.as_u64().expect("a number");
    let list = |rule: &serde_json::Value| rule["list"].as_str().expect("text").to_owned();
    counted
        .map(|rule| (list(rule), number(&rule["frames"]), number(&rule["bytes"])))
        .collect()
}

/// Rules with `count` show frames and bytes, which go on when other rules change and when other properties do.
#[test]
fn rules_show_what_they_count() {
    let Some(lab) = Lab::start("rules_show_what_they_count") else {
        return;
    };
    let daemon = guests(&lab);
    set(
        &daemon,
        "b0",
        "firewall",
        "accept count in udp to port 53; drop count in udp; accept",
    );
    let (a, b) = (bind(&lab, "a", A, 1_000), bind(&lab, "b", B, 53));
    for _ in 0..5 {
        a.send_to(b"counted", at(B, 53)).expect("sent");
        hears(&b, b"counted");
    }
    a.send_to(b"dropped", at(B, 54)).expect("sent");
    let frame = 14 + 20 + 8 + 7;
    let own = |frames, bytes| ("firewall".to_owned(), frames, bytes);
    until("all are counted", || {
        counted(&daemon, "b0") == [own(5, 5 * frame), own(1, frame)]
    });
    set(
        &daemon,
        "b0",
        "firewall",
        "drop count in tcp; accept count in udp to port 53; accept",
    );
    daemon.must("vnic set b0 discover=off");
    a.send_to(b"counted", at(B, 53)).expect("sent");
    hears(&b, b"counted");
    until("the sixth is counted", || {
        counted(&daemon, "b0") == [own(0, 0), own(6, 6 * frame)]
    });
    let text = daemon.must("vnic rules b0");
    assert!(text.contains("accept count in udp to port 53"), "{text}");
}

/// What a zone's rules say holds for all VNICs of the zone, for those that come later too, at once for what is established; no rules of a VNIC widen it, and a
/// change that cannot be made leaves all as it was.
#[test]
fn zones_have_rules() {
    let Some(lab) = Lab::start("zones_have_rules") else {
        return;
    };
    let daemon = guests(&lab);
    daemon.must("zone create z --owner 61001 --group 61001 --bridge br0");
    let set_zone = |rules: &str| {
        let mut command = daemon.command();
        command.args(["zone", "set", "z", &format!("firewall-base={rules}")]);
        run(&mut command)
    };
    let tap = |guest: &str, number: u8| {
        lab.namespace(guest);
        daemon.tap(
            &lab,
            &format!("{guest}0"),
            guest,
            &format!(",address=10.9.0.{number}/24"),
            &format!("--mac 02:00:00:00:00:0{number} --zone z"),
        );
        assert!(lab.ping("a", &format!("10.9.0.{number}"), 5));
        bind(&lab, guest, &format!("10.9.0.{number}"), 53)
    };
    let a = bind(&lab, "a", A, 1_000);
    let tells = |number: u8| {
        let to = at(&format!("10.9.0.{number}"), 53);
        a.send_to(b"question", to).expect("sent");
    };
    let c = tap("c", 3);
    tells(3);
    hears(&c, b"question");
    let done = set_zone("drop count in udp to port 53");
    assert_eq!(done.code, 0, "{}", done.err);
    tells(3);
    hears_nothing(&c);
    // Neither an owner's rules nor the operator's of the VNIC widen it.
    for name in ["firewall", "firewall-base"] {
        set(&daemon, "c0", name, "accept");
        tells(3);
        hears_nothing(&c);
    }
    let d = tap("d", 4);
    tells(4);
    hears_nothing(&d);
    let zone = |frames: u64| vec![("zone".to_owned(), frames, frames * 50)];
    until("each VNIC counts its own", || {
        counted(&daemon, "c0") == zone(3) && counted(&daemon, "d0") == zone(1)
    });
    // VNICs of other zones have nothing of it, and what is no rule changes nothing.
    let (b, bad) = (bind(&lab, "b", B, 53), set_zone("drop tpc"));
    tells(2);
    hears(&b, b"question");
    assert!(bad.code == 2 && bad.err.contains("tpc"), "{}", bad.err);
    assert_eq!(
        daemon.json("zone show z")[0]["properties"]["firewall-base"],
        "drop count in udp to port 53"
    );
    assert_eq!(set_zone("none").code, 0);
    for (socket, number) in [(&c, 3), (&d, 4)] {
        tells(number);
        hears(socket, b"question");
    }
}

/// What is rejected fails at its sender at once, whichever side it is on and whatever rules let in; each drop is counted as others are.
#[test]
fn senders_are_told_what_is_rejected() {
    let Some(lab) = Lab::start("senders_are_told_what_is_rejected") else {
        return;
    };
    let daemon = guests(&lab);
    set(
        &daemon,
        "b0",
        "firewall",
        "reject in tcp to port 9000; reject in udp to port 54; accept",
    );
    let refused = |guest: &str, to: SocketAddr| {
        let error = lab.within(guest, || TcpStream::connect_timeout(&to, LONG));
        error.expect_err("no rule lets it in").kind()
    };
    let _open = listen(&lab, "b", B, 9000);
    assert_eq!(refused("a", at(B, 9000)), ErrorKind::ConnectionRefused);
    let a = bind(&lab, "a", A, 1_000);
    a.connect(at(B, 54)).expect("a name only");
    a.send(b"question").expect("sent");
    a.set_read_timeout(Some(LONG)).expect("a time");
    let error = uninterrupted(|| a.recv(&mut [0; 64])).expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    assert!(daemon.drops("b0", "firewall-in") >= 2);

    // The guest's own rules keep nothing from it of what answers it.
    set(
        &daemon,
        "a0",
        "firewall-base",
        "reject out tcp to port 9001; drop in",
    );
    assert_eq!(refused("a", at(B, 9001)), ErrorKind::ConnectionRefused);
    assert!(daemon.drops("a0", "firewall") >= 1);

    // In a VLAN that the sender has with a tag.
    daemon.must("vnic set a0 firewall-base=none vlan=7");
    daemon.must("vnic set b0 vlan=0 tagged=7");
    set(&daemon, "a0", "firewall", "reject in udp; accept");
    let wire = Wire::open(&lab, "b", "eth0");
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 1]),
        src: MacAddr([2, 0, 0, 0, 0, 2]),
        tag: Some(Tci(7)),
    };
    let ends = Ends::V4(
        B.parse().expect("an address"),
        A.parse().expect("an address"),
    );
    let mut frame = [0; 100];
    let n = build::udp_frame(&mut frame, &link, &ends, (1, 2), &[7; 40]).expect("room");
    wire.send(&frame[..n]);
    let mut found = None;
    until("an answer", || {
        found = wire
            .receive()
            .filter(|frame| frame.0.get(38..40) == Some(&[3, 13]));
        found.is_some()
    });
    let answer = found.expect("it was received");
    assert_eq!((answer.vids(), &answer.0[46..]), (vec![7], &frame[18..46]));
}

/// A rule with `log` writes a line with fields, as many as its zone's limit lets through.
#[test]
fn rules_write_lines() {
    let Some(lab) = Lab::start("rules_write_lines") else {
        return;
    };
    let daemon = guests(&lab);
    set(
        &daemon,
        "b0",
        "firewall",
        "drop log in udp to port 53; accept",
    );
    let (a, b) = (bind(&lab, "a", A, 1_000), bind(&lab, "b", B, 53));
    for _ in 0..1_000 {
        a.send_to(b"question", at(B, 53)).expect("sent");
    }
    hears_nothing(&b);
    let lines = || {
        let log = daemon.log();
        let lines = log.lines().filter(|line| line.contains("event=firewall"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    until("a line is written", || !lines().is_empty());
    let line = lines().swap_remove(0);
    for field in [
        "vnic=b0",
        "direction=in",
        "action=drop",
        "list=firewall",
        "from=10.9.0.1",
        "from_port=1000",
        "to=10.9.0.2",
        "to_port=53",
        "protocol=17",
        "state=new",
        "b0: drop in from 10.9.0.1 to 10.9.0.2",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
    until("the flood is dropped", || {
        daemon.drops("b0", "firewall-in") >= 100
    });
    assert!(lines().len() < 200, "{} lines", lines().len());
}

/// Sends and receives so many bytes over each of two ends at once.
fn exchange(ends: [&TcpStream; 2], bytes: usize) {
    std::thread::scope(|scope| {
        for end in ends {
            let (mut reads, mut writes) = (end, end);
            scope.spawn(move || {
                let chunk = vec![7; 1 << 20];
                (0..bytes >> 20).for_each(|_| writes.write_all(&chunk).expect("sent"));
            });
            scope.spawn(move || {
                let mut chunk = vec![0; 1 << 20];
                (0..bytes >> 20).for_each(|_| reads.read_exact(&mut chunk).expect("received"));
            });
        }
    });
}

/// Drops of a0 and of b0 for numbers that do not fit: of what leaves it and of what comes.
fn outside(daemon: &Daemon) -> [u64; 4] {
    let of = |vnic| ["tcp-window", "tcp-window-in"].map(|reason| daemon.drops(vnic, reason));
    let ([a, b], [c, d]) = (of("a0"), of("b0"));
    [a, b, c, d]
}

/// A connection of a's with b.
fn stream(lab: &Lab, listener: &TcpListener) -> [TcpStream; 2] {
    let stream = connect(lab, "a", at(B, 8000), LONG).expect("let in");
    let (other, _) = listener.accept().expect("a connection");
    for end in [&stream, &other] {
        end.set_read_timeout(Some(LONG)).expect("a time");
    }
    [stream, other]
}

/// Sets the rules of a0 and b0.
fn set_both(daemon: &Daemon, a: &str, b: &str) {
    set(daemon, "a0", "firewall", a);
    set(daemon, "b0", "firewall", b);
}

/// Streams of two kernels both ways, with large segments and BBR where there is that, whose begin the firewalls saw or did not: no segment is taken for a stranger's,
/// and a reset of either side arrives.
#[test]
fn streams_fit_their_windows() {
    let Some(lab) = Lab::start("streams_fit_their_windows") else {
        return;
    };
    let daemon = guests(&lab);
    for guest in ["a", "b"] {
        let file = "/proc/sys/net/ipv4/tcp_congestion_control";
        let set = lab.within(guest, || std::fs::write(file, "bbr"));
        set.unwrap_or_else(|error| eprintln!("without BBR: {error}"));
    }
    let listener = listen(&lab, "b", B, 8000);
    for (before, resets) in [(STATES, 0), ("none", 1)] {
        set_both(&daemon, before, before);
        let ends = stream(&lab, &listener);
        std::thread::scope(|scope| {
            scope.spawn(|| exchange([&ends[0], &ends[1]], 64 << 20));
            set_both(&daemon, STATES, STATES);
        });
        exchange([&ends[0], &ends[1]], 1 << 20);
        assert_eq!(outside(&daemon), [0; 4]);
        // A socket that is closed before it has read everything resets.
        let [first, second] = ends;
        let (closes, mut hears) = match resets {
            0 => (first, second),
            _ => (second, first),
        };
        hears.write_all(b"unread").expect("sent");
        until("it is there", || {
            closes.peek(&mut [0; 6]).is_ok_and(|n| n == 6)
        });
        drop(closes);
        let error = uninterrupted(|| hears.read(&mut [0])).expect_err("reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// Resets that are forged without the numbers are dropped by the firewall of either side, counted, and end nothing.
#[test]
fn forged_resets_end_nothing() {
    let Some(lab) = Lab::start("forged_resets_end_nothing") else {
        return;
    };
    let daemon = guests(&lab);
    set_both(&daemon, STATES, STATES);
    let listener = listen(&lab, "b", B, 8000);
    let ends = stream(&lab, &listener);
    let wire = Wire::open(&lab, "a", "eth0");
    let forge = || {
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let [from, to] = [A, B].map(|address| address.parse().expect("an address"));
        let src = ends[0].local_addr().expect("its own").port();
        for n in 0..100u32 {
            let reset = build::Tcp {
                src,
                dst: 8000,
                seq: n.wrapping_mul(0x9e37_79b9),
                flags: 4,
                ..Default::default()
            };
            let mut frame = [0; 60];
            build::tcp_frame(&mut frame, &link, &Ends::V4(from, to), &reset, &[]).expect("room");
            wire.send(&frame);
        }
    };
    exchange([&ends[0], &ends[1]], 1 << 20);
    forge();
    until("its own firewall drops them", || outside(&daemon)[0] >= 90);
    exchange([&ends[0], &ends[1]], 1 << 20);
    set_both(&daemon, "none", STATES);
    forge();
    until("its peer's firewall drops them", || {
        outside(&daemon)[3] >= 90
    });
    exchange([&ends[0], &ends[1]], 1 << 20);
}
