//! Readiness of joined connections: when a wait ends, in which order it reports, and how long it takes. `sockets/ready.c` plays
//! both ends; the end that connects never sleeps in a call that waits for bytes, so nothing moves the bytes of a reader
//! that has lost a wake-up but the broker's watch, after 200 ms.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;

use place::{HOW, How, Place};
use windlass_tests::skip;

/// Waits of a run that may take as long as a lost wake-up, 150 ms and more, of hundreds: a very busy machine keeps a program
/// waiting, too.
const LATE_MAX: i64 = 3;
/// Spins that keep the reader awake between two messages.
const SPIN: &str = "200";

/// What both ends have measured, by its name.
fn measured(place: &Place, way: &str, spin: &str) -> BTreeMap<String, i64> {
    let mut pair = place.connect(&How { way, spin, ..HOW });
    let said = [0, 1].map(|end| pair.wait(end));
    let joined = [0, 1].map(|end| pair.counted(end).get("joined").copied().unwrap_or(0));
    assert!(joined.iter().all(|ends| *ends > 0), "{}", pair.both());
    assert!(!said.concat().contains("FAIL"), "{said:?}");
    println!("{way}: {said:?}");
    let values = said.iter().flat_map(|said| said.lines());
    let values = values.filter_map(|line| line.strip_prefix("max ")?.split_once(' '));
    values
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

fn no_wake_up_is_lost(name: &str, way: &str) {
    let Some(place) = Place::compiled(name, "ready.c", &[]) else {
        return;
    };
    for spin in [SPIN, "0"] {
        let late = measured(&place, way, spin)["late"];
        assert!(late <= LATE_MAX, "{way}, spin {spin}: {late} late");
    }
}

/// A level-triggered reader that takes exactly one message a wait finds ring bytes that came behind kernel bytes.
#[test]
fn ring_bytes_behind_kernel_bytes_are_reported() {
    no_wake_up_is_lost("ring_bytes_behind_kernel_bytes_are_reported", "exact");
}

/// A forked child with an epoll loop of its own leaves its parent's news alone.
#[test]
fn a_child_leaves_its_parents_news() {
    no_wake_up_is_lost("a_child_leaves_its_parents_news", "child");
}

/// A child that waits in its parent's instance finds what comes there.
#[test]
fn a_child_waits_in_its_parents_instance() {
    no_wake_up_is_lost("a_child_waits_in_its_parents_instance", "shared");
}

/// `poll` on an epoll instance ends when a member is readable.
#[test]
fn an_instance_can_be_polled() {
    no_wake_up_is_lost("an_instance_can_be_polled", "polled");
}

/// A wait with a time limit ends in time, and its signal mask is in force, while unread bytes lie in the ring of its own end.
#[test]
fn time_limits_and_masks_hold() {
    /// The best of several: what a busy machine adds.
    const LATE_US: i64 = 4_000;
    let Some(place) = Place::compiled("time_limits_and_masks_hold", "ready.c", &[]) else {
        return;
    };
    for (name, late) in measured(&place, "times", "50") {
        assert!((0..LATE_US).contains(&late), "{name}: {late} us late");
    }
}

/// Two connections that are written to 20 us apart are reported in this order.
#[test]
fn ring_events_come_in_order_of_arrival() {
    /// Of 4,000 rounds: 1 %.
    const INVERTED_MAX: i64 = 40;
    let Some(place) = Place::compiled("ring_events_come_in_order_of_arrival", "ready.c", &[])
    else {
        return;
    };
    let inverted = measured(&place, "order", SPIN)["inverted"];
    assert!(inverted <= INVERTED_MAX, "{inverted} of 4000 rounds");
}

/// Two connections that are written to 60 us apart, the first one on the kernel and the second one on the ring, are reported in this
/// order, also where a sleep came between them and earlier bytes of the ring.
#[test]
fn a_ring_event_overtakes_no_kernel_event() {
    /// Of 4,000 rounds: 1 %.
    const INVERTED_MAX: i64 = 40;
    let Some(place) = Place::compiled("a_ring_event_overtakes_no_kernel_event", "ready.c", &[])
    else {
        return;
    };
    let inverted = measured(&place, "mixed", SPIN)["inverted"];
    assert!(inverted <= INVERTED_MAX, "{inverted} of 4000 rounds");
}

/// A pipe is reported beside connections with unread ring bytes, and they beside it, where a wait takes one event.
#[test]
fn ring_events_leave_room_for_others() {
    let Some(place) = Place::compiled("ring_events_leave_room_for_others", "ready.c", &[]) else {
        return;
    };
    assert!(measured(&place, "crowd", SPIN)["pipe"] > 0);
}

/// `poll`, `select` and `epoll_wait` run in a handler on a signal stack of 8 KiB.
#[test]
fn waits_need_little_stack() {
    let Some(place) = Place::compiled("waits_need_little_stack", "ready.c", &[]) else {
        return;
    };
    for spin in [SPIN, "0"] {
        assert_eq!(measured(&place, "stack", spin)["handled"], 300);
    }
}

/// `select` and `pselect` answer as the kernel does: by bytes, signal masks, numbers and times that are wrong, more
/// descriptors than the library looks at, and ends.
#[test]
fn select_is_the_kernels() {
    if let Some(place) = Place::compiled("select_is_the_kernels", "select.c", &[]) {
        let ways = [
            "bytes", "masks", "wrong", "closed", "far", "many", "end", "reset",
        ];
        place.compare(&ways, Some(true));
    }
}

/// A real-time receiver that shares its only core with its sender soon leaves out its spins, which keep the sender from running.
#[test]
fn a_spin_that_keeps_its_sender_away_is_left_out() {
    /// What the receiver of 300 messages may spend beyond twice what it does on the kernel: a hundred spins.
    const MORE_US: i64 = 200_000;
    const SPIN_US: &str = "2000";
    let name = "a_spin_that_keeps_its_sender_away_is_left_out";
    let Some(place) = Place::compiled(name, "ready.c", &[]) else {
        return;
    };
    let [kernel, ours] = [true, false].map(|is_plain| {
        let mut pair = place.connect(&How {
            way: "fifo",
            spin: SPIN_US,
            is_plain,
            ..HOW
        });
        let said = [0, 1].map(|end| pair.wait(end)).concat();
        println!("plain: {is_plain}: {said}");
        let joined = pair.counted(0).contains_key("joined");
        assert!(joined || is_plain, "{}", pair.both());
        let spent = said
            .lines()
            .find_map(|line| line.strip_prefix("max spent "));
        spent.map(|spent| spent.parse::<i64>().expect("a number"))
    });
    let (Some(kernel), Some(ours)) = (kernel, ours) else {
        skip(name, "no real-time scheduling");
        return;
    };
    assert!(ours < 2 * kernel + MORE_US, "{ours} us, not {kernel} us");
}
