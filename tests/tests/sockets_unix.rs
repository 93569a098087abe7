//! Accelerated Unix streams: real programs at both ends, whose bytes depend on their place.

#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, Pair, Place, seed, soaks};
use rustix::process::Signal;

/// The ways of waiting; `fork` has a process for each direction.
const WAYS: [&str; 7] = [
    "block", "poll", "select", "level", "edge", "oneshot", "fork",
];

/// Leaves out of a command what stands before the program.
const UNACCELERATED: &str = r#"while [ "$1" != -- ]; do shift; done; shift; exec "$@""#;

fn unix(name: &str) -> Option<Place> {
    Place::built(name, &["-DUNIX"])
}

/// Full streams both ways are right, byte for byte, by every way of waiting, asleep and spinning; the ring carries a
/// part.
#[test]
fn unix_streams_are_right_by_every_way_of_waiting() {
    let Some(place) = unix("unix_streams_are_right_by_every_way_of_waiting") else {
        return;
    };
    let rounds = if soaks() { 20 } else { 1 };
    for way in WAYS.repeat(rounds) {
        for (spin, chunk, window) in [("0", 4096, 16_384), ("50", 100_000, 0)] {
            place
                .connect(&How {
                    way,
                    spin,
                    chunk,
                    window,
                    ..HOW
                })
                .finish(HOW.bytes);
        }
    }
    place.assert_rung();
}

/// Unread bytes forced back into the kernel at random calls, and a hundredth of the reads and waits made round the
/// library: nothing is lost and nothing comes twice, although the kernel counts nothing.
#[test]
fn unix_streams_survive_reclaims_and_bypassed_calls() {
    let Some(place) = unix("unix_streams_survive_reclaims_and_bypassed_calls") else {
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
            let options = [(name, value.as_str())];
            place
                .connect(&How {
                    way,
                    spin: "50",
                    options: &options,
                    ..HOW
                })
                .finish(HOW.bytes);
        }
    }
    place.assert_rung();
}

/// A reader that makes bare system calls, which the library does not see, gets every byte in order: the broker takes a
/// Unix socket for whose peer the kernel vouches.
#[test]
fn a_unix_reader_outside_libc_is_served() {
    let Some(place) = unix("a_unix_reader_outside_libc_is_served") else {
        return;
    };
    place
        .connect(&How {
            way: "bare",
            spin: "50",
            ..HOW
        })
        .finish(HOW.bytes);
    place.assert_rung();
}

/// Descriptors sent in the middle of a stream arrive in the call that gives the first byte of their message, both ways,
/// each once, while the messages without one go by the ring.
#[test]
fn descriptors_arrive_with_their_bytes() {
    let Some(place) = unix("descriptors_arrive_with_their_bytes") else {
        return;
    };
    for _ in 0..if soaks() { 50 } else { 1 } {
        for (spin, window) in [("0", 16_384), ("50", 16_384), ("50", 0)] {
            let mut pair = place.connect(&How {
                way: "rights",
                spin,
                window,
                ..HOW
            });
            let files = [0, 1].map(|end| {
                let said = pair.wait(end);
                let of = |line: &str| line.strip_prefix("descriptors ")?.parse::<u64>().ok();
                said.lines().find_map(of).expect("a number")
            });
            // Messages have 2 KiB on average, and one in seven carries a descriptor.
            assert!(files.iter().all(|files| *files > 100), "{files:?}");
            pair.finish(HOW.bytes);
        }
    }
    place.assert_rung();
}

/// How many bytes a killed process's peer has got, and how that ended.
fn survivor_got(pair: &mut Pair, survivor: usize) -> (u64, String) {
    let said = pair.wait(survivor);
    let line = said.lines().find_map(|line| line.strip_prefix("got "));
    let (bytes, end) = line.and_then(|line| line.split_once(' ')).expect("an end");
    (bytes.parse().expect("a number"), end.to_owned())
}

/// Either end killed at a random instant: the other sees a correct prefix, then the end of the stream or a reset.
#[test]
fn a_killed_unix_peer_leaves_a_prefix_and_an_end() {
    let Some(place) = unix("a_killed_unix_peer_leaves_a_prefix_and_an_end") else {
        return;
    };
    let mut random = seed();
    for round in 0..if soaks() { 200 } else { 12 } {
        let killed = round % 2;
        let mut pair = place.connect(&How {
            way: ["block", "poll", "level", "edge"][round / 2 % 4],
            spin: ["50", "0"][round / 8 % 2],
            bytes: 0,
            ..HOW
        });
        pair.warm();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        pair.signal(killed, Signal::KILL);
        let (bytes, end) = survivor_got(&mut pair, 1 - killed);
        assert!(bytes > 0, "{}", pair.both());
        assert!(end == "eof" || end == "reset", "{}", pair.both());
    }
}

/// One end without the library: everything is right, and stays on the kernel.
#[test]
fn a_plain_unix_peer_stays_on_the_kernel() {
    let Some(place) = unix("a_plain_unix_peer_stays_on_the_kernel") else {
        return;
    };
    for way in ["block", "level"] {
        let mut pair = {
            let how = How {
                way,
                spin: "50",
                ..HOW
            };
            let plain = How {
                before: &["sh", "-c", UNACCELERATED, "plain"],
                ..how
            };
            let directory = place.room();
            let ends = [
                place.end(&how, &directory, "listen"),
                place.end(&plain, &directory, "connect"),
            ];
            place.pair(&how, directory, ends)
        };
        for end in 0..2 {
            let said = pair.wait(end);
            assert!(
                said.contains(&format!("got {} eof", HOW.bytes)),
                "{}",
                pair.both()
            );
        }
        let counted = pair.counted(0);
        let of = |name: &str| counted.get(name).copied().unwrap_or(0);
        assert_eq!(of("joined"), 0, "{}", pair.both());
        assert_eq!(
            of("ring_tx_bytes") + of("ring_rx_bytes"),
            0,
            "{}",
            pair.both()
        );
    }
}
