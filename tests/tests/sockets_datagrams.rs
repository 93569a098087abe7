//! Accelerated `AF_UNIX` datagrams: two sockets that are connected to each other, in real programs, whose bytes and lengths
//! depend on their place.

#[path = "sockets/every.rs"]
mod every;
#[path = "sockets/place.rs"]
mod place;

use std::time::Duration;

use place::{HOW, How, Place, seed, soaks};
use rustix::process::Signal;

fn datagrams(name: &str) -> Option<Place> {
    Place::built(name, &["-DUNIX", "-DRECORDS", "-DDATAGRAMS"])
}

/// Datagrams both ways arrive whole, each once, in order, with their lengths, those without bytes included, by every way of
/// waiting, asleep and spinning; the ring carries a part.
#[test]
fn datagrams_are_right_by_every_way_of_waiting() {
    let Some(place) = datagrams("datagrams_are_right_by_every_way_of_waiting") else {
        return;
    };
    let cases = [("0", 4096, 16_384), ("50", 100_000, 0), ("50", 100, 2_000)];
    every::by_every_way(&place, &cases, &[]);
}

/// Unread datagrams forced back into the kernel at random calls, and a hundredth of the reads and waits made round the
/// library: nothing is lost, nothing comes twice, and none is cut.
#[test]
fn datagrams_survive_reclaims_and_bypassed_calls() {
    let Some(place) = datagrams("datagrams_survive_reclaims_and_bypassed_calls") else {
        return;
    };
    every::reclaimed_and_bypassed(&place, &mut seed(), &[]);
}

/// A reader that makes bare system calls gets every datagram, in order and whole: the broker moves those of the ring.
#[test]
fn a_reader_of_datagrams_outside_libc_is_served() {
    let Some(place) = datagrams("a_reader_of_datagrams_outside_libc_is_served") else {
        return;
    };
    every::read_outside_libc(&place, &[]);
}

/// Descriptors arrive with the datagram that they were sent with, both ways, while those without one go by the ring.
#[test]
fn descriptors_arrive_with_their_datagrams() {
    let Some(place) = datagrams("descriptors_arrive_with_their_datagrams") else {
        return;
    };
    every::with_descriptors(&place);
}

/// An end that stands still for a while stops its sender, and loses nothing.
#[test]
fn a_stopped_reader_loses_no_datagram() {
    let Some(place) = datagrams("a_stopped_reader_loses_no_datagram") else {
        return;
    };
    let mut random = seed();
    for round in 0..if soaks() { 100 } else { 4 } {
        let mut pair = place.connect(&How {
            way: ["block", "level"][round % 2],
            spin: "50",
            window: 0,
            bytes: 20_000_000,
            ..HOW
        });
        pair.warm();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        pair.signal(round / 2 % 2, Signal::STOP);
        // Long enough for the broker's watch.
        std::thread::sleep(Duration::from_millis(random.below(500)));
        pair.signal(round / 2 % 2, Signal::CONT);
        pair.finish(20_000_000);
    }
    place.assert_rung();
}

/// Either end killed at a random instant, in half of the rounds after it was stopped for a while: the other sees a prefix of
/// whole datagrams, and is refused when it sends.
#[test]
fn a_killed_peer_leaves_whole_datagrams_and_refuses() {
    let Some(place) = datagrams("a_killed_peer_leaves_whole_datagrams_and_refuses") else {
        return;
    };
    let mut random = seed();
    let rounds = if soaks() { 200 } else { 12 };
    let mut by_ring = 0;
    for round in 0..rounds {
        let killed = round % 2;
        let mut pair = place.connect(&How {
            way: ["block", "poll", "level", "edge"][round / 2 % 4],
            spin: ["50", "0"][round / 8 % 2],
            window: 0,
            bytes: 0,
            ..HOW
        });
        pair.warm();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        if round % 4 < 2 {
            pair.signal(killed, Signal::STOP);
            std::thread::sleep(Duration::from_millis(random.below(500)));
        }
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
