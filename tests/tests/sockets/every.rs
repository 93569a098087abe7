//! What sockets of every kind have to stand, whatever they carry.
#![allow(dead_code)] // Each user needs a part of it.

use crate::place::{HOW, How, Pair, Place, Random, soaks};

/// The ways of waiting; `fork` has a process for each direction.
const WAYS: [&str; 7] = [
    "block", "poll", "select", "level", "edge", "oneshot", "fork",
];

/// A spin, the largest piece, and how many bytes may be under way.
pub type Case = (&'static str, u64, u64);

/// Everything arrives by every way of waiting, in each case; the ring carries a part.
pub fn by_every_way(place: &Place, cases: &[Case], options: &[(&str, &str)]) {
    let rounds = if soaks() { 20 } else { 1 };
    for way in WAYS.repeat(rounds) {
        for &(spin, chunk, window) in cases {
            let bytes = if chunk == 100 { 200_000 } else { HOW.bytes };
            let how = How {
                way,
                spin,
                chunk,
                window,
                bytes,
                options,
                ..HOW
            };
            place.connect_rung(&how).finish(bytes);
        }
    }
}

/// Everything arrives where what is unread is forced back into the kernel at random calls, and where a hundredth of the
/// reads and waits is made round the library.
pub fn reclaimed_and_bypassed(place: &Place, random: &mut Random, options: &[(&str, &str)]) {
    for _ in 0..if soaks() { 50 } else { 1 } {
        for (way, name, share) in [
            ("block", "WINDLASS_RECLAIM", 100),
            ("level", "WINDLASS_RECLAIM", 100),
            ("edge", "WINDLASS_BYPASS", 10),
            ("block", "WINDLASS_BYPASS", 10),
        ] {
            let value = format!("{share},{}", random.below(1 << 30));
            let options = [options, &[(name, value.as_str())]].concat();
            let how = How {
                way,
                spin: "50",
                options: &options,
                ..HOW
            };
            place.connect_rung(&how).finish(HOW.bytes);
        }
    }
}

/// Everything arrives at a reader that makes bare system calls.
pub fn read_outside_libc(place: &Place, options: &[(&str, &str)]) {
    let how = How {
        way: "bare",
        spin: "50",
        options,
        ..HOW
    };
    place.connect_rung(&how).finish(HOW.bytes);
}

/// Descriptors arrive with what they were sent with, both ways, each once, while the rest goes by the ring.
pub fn with_descriptors(place: &Place) {
    for _ in 0..if soaks() { 50 } else { 1 } {
        for (spin, window) in [("0", 16_384), ("50", 16_384), ("50", 0)] {
            let mut pair = place.connect_rung(&How {
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
            // A piece has 2 KiB on average, and one in seven carries a descriptor.
            assert!(files.iter().all(|files| *files > 100), "{files:?}");
            pair.finish(HOW.bytes);
        }
    }
}

/// How many bytes a killed process's peer has got, and how that ended.
pub fn survivor_got(pair: &mut Pair, survivor: usize) -> (u64, String) {
    let said = pair.wait(survivor);
    let line = said.lines().find_map(|line| line.strip_prefix("got "));
    let (bytes, end) = line.and_then(|line| line.split_once(' ')).expect("an end");
    (bytes.parse().expect("a number"), end.to_owned())
}

/// Whether the ring has served an end.
pub fn is_rung(pair: &Pair, end: usize) -> bool {
    let counted = pair.counted(end);
    let of = |name: &str| counted.get(name).copied().unwrap_or(0);
    of("ring_rx_bytes") + of("ring_tx_bytes") > 0
}
