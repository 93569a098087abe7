//! Accelerated UDP: two sockets that are connected to each other, in real programs that keep within the receive buffer, whose
//! bytes and lengths depend on their place.

#[path = "sockets/every.rs"]
mod every;
#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, Place, seed, soaks};
use rustix::process::Signal;
use windlass_tests::skip;

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
