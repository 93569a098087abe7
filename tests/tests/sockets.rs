//! Accelerated sockets, end to end: ordinary programs under `windlass run`, whose bytes depend on their place.
//!
//! Each test compiles `sockets/peer.c` and runs it at both ends; each asserts from the counters that the ring was used.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::time::Duration;

use place::{HOW, How, Place, seed, soaks};
use rustix::process::Signal;

/// The ways of waiting; `fork` has a process for each direction.
const WAYS: [&str; 7] = [
    "block", "poll", "select", "level", "edge", "oneshot", "fork",
];

/// Full streams both ways are right, byte for byte, by every way of waiting, asleep and spinning, with small and large
/// amounts on the way.
#[test]
fn streams_are_right_by_every_way_of_waiting() {
    let Some(place) = Place::new("streams_are_right_by_every_way_of_waiting") else {
        return;
    };
    let bytes = if soaks() { 100_000_000 } else { HOW.bytes };
    for way in WAYS {
        for (spin, chunk, window) in [
            ("0", 4096, 16_384),
            ("50", 4096, 16_384),
            ("50", 100_000, 0),
        ] {
            place
                .connect_rung(&How {
                    way,
                    spin,
                    bytes,
                    chunk,
                    window,
                    ..HOW
                })
                .finish(bytes);
        }
    }
}

/// Unread bytes forced back into the kernel at random calls of both ends: none is lost, none comes twice.
#[test]
fn forced_reclaims_lose_nothing() {
    let Some(place) = Place::new("forced_reclaims_lose_nothing") else {
        return;
    };
    let mut random = seed();
    for _ in 0..if soaks() { 50 } else { 1 } {
        for way in WAYS {
            let value = format!("100,{}", random.below(1 << 30));
            let options = [("WINDLASS_RECLAIM", value.as_str())];
            place
                .connect_rung(&How {
                    way,
                    spin: "50",
                    options: &options,
                    ..HOW
                })
                .finish(HOW.bytes);
        }
    }
}

/// A hundredth of the calls goes straight to the kernel: what comes is right, and both ends get to their end.
#[test]
fn bypassed_calls_are_slow_at_most() {
    let Some(place) = Place::new("bypassed_calls_are_slow_at_most") else {
        return;
    };
    let mut random = seed();
    for _ in 0..if soaks() { 50 } else { 1 } {
        for way in WAYS {
            let value = format!("10,{}", random.below(1 << 30));
            let options = [("WINDLASS_BYPASS", value.as_str())];
            place
                .connect_rung(&How {
                    way,
                    options: &options,
                    ..HOW
                })
                .finish(HOW.bytes);
        }
    }
}

/// A reader that makes bare system calls, which the library does not see, gets every byte in order.
#[test]
fn a_reader_outside_libc_is_served() {
    let Some(place) = Place::new("a_reader_outside_libc_is_served") else {
        return;
    };
    for spin in ["0", "50"] {
        place
            .connect_rung(&How {
                way: "bare",
                spin,
                ..HOW
            })
            .finish(HOW.bytes);
    }
}

/// Either end stopped and continued at random instants: the streams go on, and are right.
#[test]
fn stopped_processes_go_on() {
    let Some(place) = Place::new("stopped_processes_go_on") else {
        return;
    };
    let mut random = seed();
    for round in 0..if soaks() { 100 } else { 7 } {
        let mut pair = place.connect_rung(&How {
            way: WAYS[round % WAYS.len()],
            spin: "50",
            ..HOW
        });
        pair.warm();
        for _ in 0..6 {
            let end = random.below(2) as usize;
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
            pair.signal(end, Signal::STOP);
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            pair.signal(end, Signal::CONT);
        }
        pair.finish(HOW.bytes);
    }
}

/// Either end killed at a random instant: the other sees a correct prefix, then the end of the stream or a reset.
#[test]
fn a_killed_process_leaves_a_prefix_and_an_end() {
    let Some(place) = Place::new("a_killed_process_leaves_a_prefix_and_an_end") else {
        return;
    };
    let mut random = seed();
    let mut ends = BTreeMap::new();
    for round in 0..if soaks() { 1_000 } else { 42 } {
        let (way, spin) = (
            WAYS[round % WAYS.len()],
            ["0", "50"][round / WAYS.len() % 2],
        );
        let mut pair = place.connect(&How {
            way,
            spin,
            bytes: 0,
            ..HOW
        });
        pair.warm();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let victim = random.below(2) as usize;
        pair.signal(victim, Signal::KILL);
        let said = pair.wait(1 - victim);
        let got = said
            .lines()
            .find_map(|line| line.strip_prefix("got "))
            .expect("an end");
        let (_, end) = got.split_once(' ').expect("an end");
        assert!(matches!(end, "eof" | "reset"), "{way}, spin {spin}: {said}");
        *ends.entry(end.to_owned()).or_insert(0) += 1;
    }
    println!("{ends:?}");
}
