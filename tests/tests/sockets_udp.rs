//! Accelerated UDP: two sockets that are connected to each other, in real programs that keep within the receive buffer, whose
//! bytes and lengths depend on their place.

#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, Place, seed, soaks};
use rustix::process::Signal;
use windlass_tests::skip;

/// The ways of waiting; `fork` has a process for each direction.
const WAYS: [&str; 7] = [
    "block", "poll", "select", "level", "edge", "oneshot", "fork",
];
/// What is asked for.
const ON: (&str, &str) = ("WINDLASS_UDP", "1");

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
    Place::built(name, &["-DRECORDS", "-DDATAGRAMS"])
}

/// Datagrams both ways arrive whole, each once, in order, with their lengths, those without bytes included, by every way of
/// waiting, asleep and spinning; the ring carries a part.
#[test]
fn udp_is_right_by_every_way_of_waiting() {
    let Some(place) = udp("udp_is_right_by_every_way_of_waiting") else {
        return;
    };
    let rounds = if soaks() { 20 } else { 1 };
    for way in WAYS.repeat(rounds) {
        for (spin, chunk, window) in [
            ("0", 4096, 16_384),
            ("50", 30_000, 32_768),
            ("50", 100, 2_000),
        ] {
            let bytes = if chunk == 100 { 200_000 } else { HOW.bytes };
            let how = How {
                way,
                spin,
                chunk,
                window,
                bytes,
                options: &[ON],
                ..HOW
            };
            place.connect(&how).finish(bytes);
        }
    }
    place.assert_rung();
}

/// Unread datagrams forced back into the kernel at random calls, and a hundredth of the reads and waits made round the
/// library: nothing is lost, nothing comes twice, and none is cut.
#[test]
fn udp_survives_reclaims_and_bypassed_calls() {
    let Some(place) = udp("udp_survives_reclaims_and_bypassed_calls") else {
        return;
    };
    let mut random = seed();
    for _ in 0..if soaks() { 50 } else { 1 } {
        for (way, name, share) in [
            ("block", "WINDLASS_RECLAIM", 100),
            ("level", "WINDLASS_RECLAIM", 100),
            ("edge", "WINDLASS_BYPASS", 10),
            ("block", "WINDLASS_BYPASS", 10),
        ] {
            let value = format!("{share},{}", random.below(1 << 30));
            let options = [ON, (name, value.as_str())];
            let how = How {
                way,
                spin: "50",
                options: &options,
                ..HOW
            };
            place.connect(&how).finish(HOW.bytes);
        }
    }
    place.assert_rung();
}

/// A reader that makes bare system calls gets every datagram: the broker moves those of the ring.
#[test]
fn a_reader_of_udp_outside_libc_is_served() {
    let Some(place) = udp("a_reader_of_udp_outside_libc_is_served") else {
        return;
    };
    let how = How {
        way: "bare",
        spin: "50",
        options: &[ON],
        ..HOW
    };
    place.connect(&how).finish(HOW.bytes);
    place.assert_rung();
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
        let said = pair.wait(1 - killed);
        let line = said.lines().find_map(|line| line.strip_prefix("got "));
        let (bytes, end) = line.and_then(|line| line.split_once(' ')).expect("an end");
        let bytes: u64 = bytes.parse().expect("a number");
        assert!(bytes > 0 && end == "refused", "{}", pair.both());
        let counted = pair.counted(1 - killed);
        let of = |name: &str| counted.get(name).copied().unwrap_or(0);
        by_ring += usize::from(of("ring_rx_bytes") + of("ring_tx_bytes") > 0);
    }
    // Where a program sleeps at each wait, the kernel serves it.
    assert!(
        by_ring * 4 >= rounds,
        "the ring served {by_ring} of {rounds}"
    );
}
