//! Accelerated UDP: two sockets that are connected to each other, in real programs whose bytes and lengths depend on their place,
//! and that keep within the receive buffer (`sockets/peer.c`) or do not (`sockets/flood.c`).

#[path = "sockets/every.rs"]
mod every;
#[path = "sockets/place.rs"]
mod place;

use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use place::{HOW, How, Place, seed, soaks};
use rustix::process::Signal;
use serde_json::Value;
use windlass_tests::{Lab, program, run, skip};

/// What is asked for.
const ON: (&str, &str) = ("WINDLASS_UDP", "1");

/// How `peer.c` is compiled.
const PEER: [&str; 2] = ["-DRECORDS", "-DDATAGRAMS"];

/// None where nothing can be joined: connection tracking follows something here.
fn udp(name: &str) -> Option<Place> {
    let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
    if count.is_ok_and(|count| count.trim() != "0") {
        skip(
            name,
            "connection tracking follows something in this namespace",
        );
        return None;
    }
    Place::built(name, &PEER)
}

/// Datagrams both ways arrive whole, each once, in order, with their lengths, those without bytes included, by every way of
/// waiting, asleep and spinning; the ring carries a part.
#[test]
fn udp_is_right_by_every_way_of_waiting() {
    let Some(place) = udp("udp_is_right_by_every_way_of_waiting") else {
        return;
    };
    let cases = [
        ("0", 4096, 16_384),
        ("50", 30_000, 32_768),
        ("50", 100, 2_000),
    ];
    every::by_every_way(&place, &cases, &[ON]);
}

/// Unread datagrams forced back into the kernel at random calls, and a hundredth of the reads and waits made round the
/// library: nothing is lost, nothing comes twice, and none is cut.
#[test]
fn udp_survives_reclaims_and_bypassed_calls() {
    let Some(place) = udp("udp_survives_reclaims_and_bypassed_calls") else {
        return;
    };
    every::reclaimed_and_bypassed(&place, &mut seed(), &[ON]);
}

/// A reader that makes bare system calls gets every datagram: the broker moves those of the ring.
#[test]
fn a_reader_of_udp_outside_libc_is_served() {
    let Some(place) = udp("a_reader_of_udp_outside_libc_is_served") else {
        return;
    };
    every::read_outside_libc(&place, &[ON]);
}

/// Datagrams over IPv6 arrive as those over IPv4 do, and so do those between an IPv6 socket with IPv4 addresses in IPv6's form and
/// an IPv4 socket; the ring carries a part.
#[test]
fn udp_is_right_over_ipv6_and_between_both() {
    let name = "udp_is_right_over_ipv6_and_between_both";
    let Some(place) = udp(name) else {
        return;
    };
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        skip(name, "there is no ::1 here");
        return;
    }
    for names in ["6", "both"] {
        let before = place.rung.load(Relaxed);
        for (way, spin) in [("block", "50"), ("edge", "50"), ("level", "0")] {
            let how = How {
                way,
                spin,
                options: &[ON, ("PEER_NAMES", names)],
                ..HOW
            };
            place.connect(&how).finish(HOW.bytes);
        }
        let rung = place.rung.load(Relaxed) - before;
        assert!(rung > 0, "{names}: the ring has served nobody");
    }
    place.assert_rung();
    let Some(place) = Place::compiled(name, "flood.c", &[]) else {
        return;
    };
    for names in ["6", "both"] {
        let how = How {
            options: &[ON, ("PEER_NAMES", names)],
            ..FLOOD
        };
        assert!(Flood::by_ring(&place, &how).dropped > 0, "{names}");
    }
}

/// Nothing is joined that nobody asked for, nor where only one end did.
#[test]
fn udp_stays_on_the_kernel_unless_both_ask() {
    let Some(place) = udp("udp_stays_on_the_kernel_unless_both_ask") else {
        return;
    };
    let how = How { spin: "50", ..HOW };
    let asking = How {
        options: &[ON],
        ..how
    };
    for (one, other) in [(how, how), (asking, how)] {
        let directory = place.room();
        let ends = [
            place.end(&one, &directory, "listen"),
            place.end(&other, &directory, "connect"),
        ];
        let mut pair = place.pair(&one, directory, ends);
        for end in 0..2 {
            pair.wait(end);
            assert!(!pair.counted(end).contains_key("joined"), "{}", pair.both());
        }
    }
}

/// Either end killed at a random instant: the other sees a prefix of whole datagrams, and is refused.
#[test]
fn a_killed_udp_peer_leaves_whole_datagrams_and_refuses() {
    let Some(place) = udp("a_killed_udp_peer_leaves_whole_datagrams_and_refuses") else {
        return;
    };
    let mut random = seed();
    let rounds = if soaks() { 200 } else { 12 };
    let mut by_ring = 0;
    for round in 0..rounds {
        let killed = round % 2;
        let mut pair = place.connect(&How {
            spin: ["50", "0"][round / 8 % 2],
            bytes: 0,
            options: &[ON],
            ..HOW
        });
        pair.warm();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        pair.signal(killed, Signal::KILL);
        let (bytes, end) = every::survivor_got(&mut pair, 1 - killed);
        assert!(bytes > 0 && end == "refused", "{}", pair.both());
        by_ring += usize::from(every::is_rung(&pair, 1 - killed));
    }
    // Where a program sleeps at each wait, the kernel serves it.
    assert!(
        by_ring * 4 >= rounds,
        "the ring served {by_ring} of {rounds}"
    );
}

/// How often it is tried until the ring has served.
const TRIES: u32 = 10;
/// The receive buffer has room for about 40 such datagrams.
const FLOOD: How<'static> = How {
    way: "late",
    bytes: 400,
    chunk: 100,
    window: 16_384,
    spin: "50",
    options: &[ON],
    ..HOW
};

/// What both ends of `flood.c` have said and counted in one run.
#[derive(Debug)]
struct Flood {
    sent: u64,
    /// Datagrams that came.
    got: u64,
    /// The most of them in one round.
    most: u64,
    /// Datagrams that the kernel dropped, and that the sender's library did.
    lost: u64,
    dropped: u64,
    /// Bytes that each end has sent by the ring, and once it had joined by the kernel.
    by_ring: [u64; 2],
    by_kernel: [u64; 2],
}

impl Flood {
    fn run(place: &Place, how: &How<'_>) -> Flood {
        let mut pair = place.connect(how);
        let said = [0, 1].map(|end| pair.wait(end));
        let word = |end: usize, name: &str| -> u64 {
            let of = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
            said[end].lines().find_map(of).expect("a number")
        };
        let counted = |end: usize, name: &str| pair.counted(end).get(name).copied().unwrap_or(0);
        Flood {
            sent: word(1, "sent"),
            got: word(0, "got"),
            most: word(0, "most"),
            lost: word(0, "lost"),
            dropped: counted(1, "dropped"),
            by_ring: [0, 1].map(|end| counted(end, "ring_tx_bytes")),
            by_kernel: [0, 1].map(|end| counted(end, "kernel_tx_bytes")),
        }
    }

    /// A run in which more of what each end has sent went by the ring than by the kernel: both are always awake, but how
    /// soon they join is up to the machine.
    fn by_ring(place: &Place, how: &How<'_>) -> Flood {
        for _ in 0..TRIES {
            let flood = Flood::run(place, how);
            let accounted = flood.got + flood.lost + flood.dropped;
            assert_eq!(accounted, flood.sent, "{flood:?}");
            if (0..2).all(|end| flood.by_ring[end] > flood.by_kernel[end]) {
                return flood;
            }
            println!("mostly by the kernel: {flood:?}");
        }
        panic!("the ring has served little of {how:?}");
    }
}

/// What the receive buffer has no room for is dropped by the ring as by the kernel: the sends succeed, each drop is counted, what
/// comes is whole, in order and each once, and who reads late gets what was first, as much as from the kernel.
#[test]
fn datagrams_without_room_are_dropped_and_counted() {
    let name = "datagrams_without_room_are_dropped_and_counted";
    if udp(name).is_none() {
        return;
    }
    let Some(place) = Place::compiled(name, "flood.c", &[]) else {
        return;
    };
    for (way, bytes, chunk) in [
        ("late", 400, 100),
        ("late", 400, 1400),
        ("slow", 2_000, 3_000),
    ] {
        let how = How {
            way,
            bytes,
            chunk,
            ..FLOOD
        };
        let kernels = Flood::run(
            &place,
            &How {
                is_plain: true,
                ..how
            },
        );
        assert_eq!(kernels.got + kernels.lost, kernels.sent, "{kernels:?}");
        assert!(kernels.lost > 0, "{kernels:?}");
        let flood = Flood::by_ring(&place, &how);
        println!("{way} {chunk}: {flood:?}, by the kernel {kernels:?}");
        assert!(flood.dropped > 0, "{flood:?}");
        if way == "late" {
            let is_alike = flood.most * 2 >= kernels.most && flood.most <= kernels.most * 2;
            assert!(is_alike, "{flood:?}, by the kernel {kernels:?}");
        }
    }
}

/// A namespace without rules, and the words that run a command there.
fn namespace(name: &str) -> Option<(Lab, [String; 3])> {
    if Command::new("nft").arg("-v").output().is_err() {
        skip(name, "nft is missing");
        return None;
    }
    let lab = Lab::start(name)?;
    let path = format!("--net=/run/netns/{}", lab.namespace("a"));
    Some((lab, ["nsenter".to_owned(), path, "--".to_owned()]))
}

/// From now on connection tracking follows what the kernel carries in the namespace.
fn track(lab: &Lab) {
    let rules = "add table inet t; add chain inet t c { type filter hook input priority 0; }; \
                 add rule inet t c ct state established,related accept";
    let done = run(lab.command("a", "nft").arg(rules));
    assert_eq!(done.code, 0, "{}", done.err);
}

/// Where connection tracking follows the datagrams, both sockets stay on the kernel, and say why.
#[test]
fn tracked_udp_stays_on_the_kernel() {
    let name = "tracked_udp_stays_on_the_kernel";
    let Some((lab, before)) = namespace(name) else {
        return;
    };
    let Some(place) = Place::built(name, &PEER) else {
        return;
    };
    let before = before.each_ref().map(String::as_str);
    let log = place.directory.path().join("log");
    let options = [ON, ("WINDLASS_LOG", log.to_str().expect("text"))];
    let how = How {
        spin: "50",
        options: &options,
        before: &before,
        ..HOW
    };
    // Nothing else is against the ring there.
    place.connect(&how).finish(HOW.bytes);
    place.assert_rung();
    track(&lab);
    let mut pair = place.connect(&how);
    for end in 0..2 {
        let said = pair.wait(end);
        assert!(said.contains(&format!("got {} eof\n", HOW.bytes)), "{said}");
        let counted = pair.counted(end);
        let of = |name: &str| counted.get(name).copied().unwrap_or(0);
        assert_eq!((of("joined"), of("joins_refused")), (0, 1), "{counted:?}");
    }
    let log = std::fs::read_to_string(&log).expect("a log");
    let told = "stays on the kernel: conntrack follows the connection";
    assert_eq!(log.matches(told).count(), 2, "{log}");
}

/// The rows of a place's sockets, as `windlass sockets` gives them.
fn rows(place: &Place) -> Vec<Value> {
    let mut command = Command::new(program("windlass"));
    command.args(["sockets", "--json"]);
    let done = run(command.env("WINDLASS_SOCKETS", place.daemon()));
    assert_eq!(done.code, 0, "{}", done.err);
    serde_json::from_str(&done.out).expect("a list")
}

/// Connection tracking that comes while two UDP sockets use the ring sends both back to the kernel within the interval of
/// `WINDLASS_REFRESH`; they say why, and nothing goes by the ring any more.
#[test]
fn udp_that_is_tracked_later_goes_back_to_the_kernel() {
    let name = "udp_that_is_tracked_later_goes_back_to_the_kernel";
    let Some((lab, before)) = namespace(name) else {
        return;
    };
    let Some(place) = Place::built(name, &PEER) else {
        return;
    };
    let before = before.each_ref().map(String::as_str);
    // Who waits so long without sleeping is served by the ring alone.
    let mut pair = place.connect(&How {
        way: "level",
        spin: "100000",
        bytes: 0,
        options: &[ON, ("WINDLASS_REFRESH", "200")],
        before: &before,
        ..HOW
    });
    pair.warm();
    let all = |is: &dyn Fn(&Value) -> bool| {
        let rows = rows(&place);
        rows.len() == 2 && rows.iter().all(is)
    };
    let is_rung = |row: &Value| row["reason"] == "none" && row["ring_tx_bytes"].as_u64() > Some(0);
    pair.until("the ring", |_| all(&is_rung));
    track(&lab);
    let begun = Instant::now();
    let is_back = |row: &Value| row["reason"] == "tracked" && row["state"] == "kernel";
    pair.until("the way back", |_| all(&is_back));
    assert!(begun.elapsed() < Duration::from_secs(3), "{begun:?}");
    let bytes = |rows: &[Value], name: &str| -> u64 {
        let of = |row: &Value| row[name].as_u64().expect("a number");
        rows.iter().map(of).sum()
    };
    let first = rows(&place);
    let noted = [0, 1].map(|end| pair.noted(end)[0]);
    pair.until("more", |pair| {
        (0..2).all(|end| pair.noted(end)[0] > noted[end] + 200_000)
    });
    let last = rows(&place);
    assert!(bytes(&last, "kernel_tx_bytes") > bytes(&first, "kernel_tx_bytes"));
    assert_eq!(
        bytes(&last, "ring_tx_bytes"),
        bytes(&first, "ring_tx_bytes")
    );
    assert!(
        (0..2).all(|end| !pair.said(end).contains("WRONG")),
        "{}",
        pair.both()
    );
}
