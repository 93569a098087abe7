//! Accelerated records (`AF_UNIX` `SOCK_SEQPACKET`): real programs at both ends, whose bytes and lengths depend on their place.

#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, Pair, Place, seed, soaks};
use rustix::process::Signal;

/// The ways of waiting; `fork` has a process for each direction.
const WAYS: [&str; 7] = [
    "block", "poll", "select", "level", "edge", "oneshot", "fork",
];

fn records(name: &str) -> Option<Place> {
    Place::built(name, &["-DUNIX", "-DRECORDS"])
}

/// Records both ways arrive whole, each once, with their lengths, those without bytes included, by every way of waiting,
/// asleep and spinning; the ring carries a part.
#[test]
fn records_are_right_by_every_way_of_waiting() {
    let Some(place) = records("records_are_right_by_every_way_of_waiting") else {
        return;
    };
    let rounds = if soaks() { 20 } else { 1 };
    for way in WAYS.repeat(rounds) {
        for (spin, chunk, window) in [("0", 4096, 16_384), ("50", 100_000, 0), ("50", 100, 2_000)] {
            let bytes = if chunk == 100 { 200_000 } else { HOW.bytes };
            let how = How {
                way,
                spin,
                chunk,
                window,
                bytes,
                ..HOW
            };
            place.connect(&how).finish(bytes);
        }
    }
    place.assert_rung();
}

/// Both ends of a socketpair, in two processes, are joined, and right.
#[test]
fn a_socketpair_across_a_fork_is_joined() {
    let Some(place) = records("a_socketpair_across_a_fork_is_joined") else {
        return;
    };
    let mut by_ring = 0;
    for way in ["block", "level"] {
        let how = How {
            way,
            spin: "50",
            ..HOW
        };
        let directory = place.room();
        // The log and the counters of the process that stands for both are those of the first end.
        let mut process = place.end(&how, &directory, "pair");
        let status = process.wait().expect("a child");
        let said = std::fs::read_to_string(directory.join("pair")).expect("a log");
        let whole = said.matches(&format!("got {} eof\n", how.bytes)).count();
        assert!(status.success() && whole == 2, "{way}: {said}");
        let counted =
            std::fs::read_to_string(directory.join("pair.counters")).expect("the counters");
        let sums = counted.lines().filter_map(|line| line.split_once(' '));
        by_ring += sums
            .filter(|(name, _)| *name == "ring_tx_bytes")
            .map(|(_, value)| value.parse::<u64>().expect("a number"))
            .sum::<u64>();
    }
    assert!(by_ring > 0, "nothing went by the ring");
}

/// Unread records forced back into the kernel at random calls, and a hundredth of the reads and waits made round the
/// library: nothing is lost, nothing comes twice, and no record is cut.
#[test]
fn records_survive_reclaims_and_bypassed_calls() {
    let Some(place) = records("records_survive_reclaims_and_bypassed_calls") else {
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

/// A reader that makes bare system calls gets every record, in order and whole: the broker moves those of the ring.
#[test]
fn a_reader_of_records_outside_libc_is_served() {
    let Some(place) = records("a_reader_of_records_outside_libc_is_served") else {
        return;
    };
    let how = How {
        way: "bare",
        spin: "50",
        ..HOW
    };
    place.connect(&how).finish(HOW.bytes);
    place.assert_rung();
}

/// Descriptors arrive with the record that they were sent with, both ways, while the records without one go by the ring.
#[test]
fn descriptors_arrive_with_their_records() {
    let Some(place) = records("descriptors_arrive_with_their_records") else {
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
            // Records have 2 KiB on average, and one in seven carries a descriptor.
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

/// Either end killed at a random instant, in half of the rounds after it was stopped for a while: the other sees a prefix of
/// whole records, then the end of the connection or a reset.
#[test]
fn a_killed_peer_leaves_whole_records_and_an_end() {
    let Some(place) = records("a_killed_peer_leaves_whole_records_and_an_end") else {
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
        if round % 4 < 2 {
            pair.signal(killed, Signal::STOP);
            // Long enough for the broker's watch.
            std::thread::sleep(Duration::from_millis(random.below(500)));
        }
        pair.signal(killed, Signal::KILL);
        let (bytes, end) = survivor_got(&mut pair, 1 - killed);
        assert!(bytes > 0, "{}", pair.both());
        assert!(end == "eof" || end == "reset", "{}", pair.both());
    }
}
