//! Readiness of joined connections: when a wait ends, in which order it reports, and how long it takes. `sockets/ready.c` plays
//! both ends; the end that connects never sleeps in a call that waits for bytes, so nothing moves the bytes of a reader
//! that has lost a wake-up but the broker's watch, after 200 ms.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;

use place::{HOW, How, PATIENT, Place};
use serde_json::Value;
use windlass_tests::skip;

/// Spins that keep the reader awake between two messages.
const SPIN: &str = "200";

/// What both ends have measured, by its name.
fn measured(place: &Place, way: &str, spin: &str) -> BTreeMap<String, i64> {
    measured_with(place, way, spin, &[])
}

fn measured_with(
    place: &Place,
    way: &str,
    spin: &str,
    options: &[(&str, &str)],
) -> BTreeMap<String, i64> {
    let options = [options, &[("PEER_HOLD", "1")]].concat();
    let mut pair = place.connect(&How {
        way,
        spin,
        options: &options,
        ..HOW
    });
    let are_joined = |rows: &[Value]| {
        let count = pair.said(0);
        let count = count
            .lines()
            .find_map(|line| line.strip_prefix("connections "));
        let on_ring = rows.iter().filter(|row| row["state"] == "ring");
        count == Some(on_ring.count().to_string().as_str())
    };
    place::until_rows(
        &place.daemon(),
        pair.ends.each_ref(),
        "the joins",
        are_joined,
        || pair.both(),
    );
    std::fs::write(pair.directory.join("port.go"), "").expect("a file");
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

/// Where the broker does not move unread bytes, a lost wake-up is a hang.
fn no_wake_up_is_lost(name: &str, way: &str) {
    let Some(place) = Place::compiled(name, "ready.c", &[]) else {
        return;
    };
    for spin in [SPIN, "0"] {
        measured_with(&place, way, spin, &[("WINDLASS_NETS", "0")]);
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

/// Each wait with a time limit ends in time, and its signal mask is in force, while unread bytes lie in the ring of its own end.
/// What it waits for a core is not counted.
#[test]
fn time_limits_and_masks_hold() {
    /// What the kernel may add to any wait.
    const LATE_US: i64 = 2_000;
    /// The kernel's own receive takes up to two ticks more, of 4 ms at 250 Hz.
    const RECEIVE_LATE_US: i64 = 10_000;
    let Some(place) = Place::compiled("time_limits_and_masks_hold", "ready.c", &[]) else {
        return;
    };
    for (name, late) in measured(&place, "times", "50") {
        let late_max = if name == "recv_3" {
            RECEIVE_LATE_US
        } else {
            LATE_US
        };
        assert!((0..late_max).contains(&late), "{name}: {late} us late");
    }
}

/// Two connections that are written to 20 us apart are reported in this order.
#[test]
fn ring_events_come_in_order_of_arrival() {
    let Some(place) = Place::compiled("ring_events_come_in_order_of_arrival", "ready.c", &[])
    else {
        return;
    };
    let inverted = measured(&place, "order", SPIN)["inverted"];
    assert_eq!(inverted, 0);
}

/// Two connections that are written to 60 us apart, the first one on the kernel and the second one on the ring, are reported in this
/// order, also where a sleep came between them and earlier bytes of the ring.
#[test]
fn a_ring_event_overtakes_no_kernel_event() {
    let Some(place) = Place::compiled("a_ring_event_overtakes_no_kernel_event", "ready.c", &[])
    else {
        return;
    };
    let inverted = measured(&place, "mixed", SPIN)["inverted"];
    assert_eq!(inverted, 0);
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

/// A real-time receiver that shares its only core with its sender soon leaves out its spins, which keep the sender from running. It
/// spends 950 ms if it leaves none out. The measure is its own time on the core, to which other programs add nothing.
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
            options: &[PATIENT],
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
