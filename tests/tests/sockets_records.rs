//! Accelerated records (`AF_UNIX` `SOCK_SEQPACKET`): real programs at both ends, whose bytes and lengths depend on their place.

#[path = "sockets/every.rs"]
mod every;
#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, Place, seed, soaks};
use rustix::process::Signal;

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
    let cases = [("0", 4096, 16_384), ("50", 100_000, 0), ("50", 100, 2_000)];
    every::by_every_way(&place, &cases, &[]);
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
    every::reclaimed_and_bypassed(&place, &mut seed(), &[]);
}

/// A reader that makes bare system calls gets every record, in order and whole: the broker moves those of the ring.
#[test]
fn a_reader_of_records_outside_libc_is_served() {
    let Some(place) = records("a_reader_of_records_outside_libc_is_served") else {
        return;
    };
    every::read_outside_libc(&place, &[]);
}

/// Descriptors arrive with the record that they were sent with, both ways, while the records without one go by the ring.
#[test]
fn descriptors_arrive_with_their_records() {
    let Some(place) = records("descriptors_arrive_with_their_records") else {
        return;
    };
    every::with_descriptors(&place);
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
        let (bytes, end) = every::survivor_got(&mut pair, 1 - killed);
        assert!(bytes > 0, "{}", pair.both());
        assert!(end == "eof" || end == "reset", "{}", pair.both());
    }
}
