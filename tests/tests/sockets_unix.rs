//! Accelerated Unix streams: real programs at both ends, whose bytes depend on their place.

#[path = "sockets/every.rs"]
mod every;
#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, PATIENT, Place, seed, soaks};
use rustix::process::Signal;
use windlass_tests::skip;

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
    let cases = [("0", 4096, 16_384), ("50", 100_000, 0)];
    every::by_every_way(&place, &cases, &[]);
}

/// Unread bytes forced back into the kernel at random calls, and a hundredth of the reads and waits made round the
/// library: nothing is lost and nothing comes twice, although the kernel counts nothing.
#[test]
fn unix_streams_survive_reclaims_and_bypassed_calls() {
    let Some(place) = unix("unix_streams_survive_reclaims_and_bypassed_calls") else {
        return;
    };
    every::reclaimed_and_bypassed(&place, &mut seed(), &[]);
}

/// A reader that makes bare system calls, which the library does not see, gets every byte in order: the broker takes a
/// Unix socket for whose peer the kernel vouches.
#[test]
fn a_unix_reader_outside_libc_is_served() {
    let Some(place) = unix("a_unix_reader_outside_libc_is_served") else {
        return;
    };
    every::read_outside_libc(&place, &[]);
}

/// Descriptors sent in the middle of a stream arrive in the call that gives the first byte of their message, both ways,
/// each once, while the messages without one go by the ring.
#[test]
fn descriptors_arrive_with_their_bytes() {
    let Some(place) = unix("descriptors_arrive_with_their_bytes") else {
        return;
    };
    every::with_descriptors(&place);
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
        let (bytes, end) = every::survivor_got(&mut pair, 1 - killed);
        assert!(bytes > 0, "{}", pair.both());
        assert!(end == "eof" || end == "reset", "{}", pair.both());
    }
}

/// Both ends exchange everything by the kernel.
fn stay_on_the_kernel(place: &Place, ends: [&How<'_>; 2]) {
    let directory = place.room();
    let ends = [
        place.end(ends[0], &directory, "listen"),
        place.end(ends[1], &directory, "connect"),
    ];
    let mut pair = place.pair(&HOW, directory, ends);
    for end in 0..2 {
        let said = pair.wait(end);
        assert!(said.contains(&format!("got {} eof", HOW.bytes)), "{said}");
        assert_eq!(pair.counted(end).get("joined"), None, "{}", pair.both());
    }
}

/// `WINDLASS_UNIX=0`, which `--no-unix` sets, leaves Unix sockets on the kernel.
#[test]
fn unix_sockets_can_be_left_out() {
    if let Some(place) = unix("unix_sockets_can_be_left_out") {
        let options = [("WINDLASS_UNIX", "0"), PATIENT];
        let how = How {
            options: &options,
            ..HOW
        };
        stay_on_the_kernel(&place, [&how, &how]);
    }
}

/// Two programs in different network namespaces are not joined.
#[test]
fn namespaces_are_kept_apart() {
    let name = "namespaces_are_kept_apart";
    let Some(place) = unix(name) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip(name, "only root makes network namespaces");
    }
    let how = How {
        options: &[PATIENT],
        ..HOW
    };
    let other = How {
        before: &["unshare", "--net"],
        ..how
    };
    stay_on_the_kernel(&place, [&how, &other]);
}

/// Two programs in PID namespaces of their own, below that of the broker, are joined.
#[test]
fn processes_of_a_pid_namespace_join() {
    let name = "processes_of_a_pid_namespace_join";
    let Some(place) = unix(name) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip(name, "only root makes PID namespaces");
    }
    place.have_daemon();
    let mut pair = place.connect(&How {
        options: &[PATIENT],
        before: &["unshare", "--pid", "--fork", "--kill-child"],
        ..HOW
    });
    for end in 0..2 {
        pair.wait(end);
        assert_eq!(pair.counted(end).get("joined"), Some(&1), "{}", pair.both());
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
