//! A call keeps the open file that it began with: descriptors that change their meaning under a call that waits, each as the
//! kernel does it.

#[path = "sockets/place.rs"]
mod place;

use std::fs::File;
use std::process::Command;

use place::{HOW, How, One, PATIENT, Pair, Place};
use rustix::process::{Pid, Signal, kill_process};
use windlass_tests::skip;

/// Runs a way at both ends, on the kernel and accelerated; both must find everything right, and have joined where they
/// may. False: the kernel has not what one of them needs.
fn as_on_the_kernel(place: &Place, how: &How<'_>) -> bool {
    as_on_the_kernel_with(place, how, |_, _| ())
}

/// Lets a pair go on once so many connections of each end have joined; on the kernel, at once.
fn go_on_joined(place: &Place, pair: &mut Pair, is_plain: bool, connections: usize) {
    pair.until("the joins", |pair| {
        is_plain
            || pair.ends.iter().all(|end| {
                let rows = place.rows(end.id());
                rows.iter().filter(|row| row["state"] == "ring").count() == connections
            })
    });
    std::fs::write(pair.directory.join("port.joined"), "").expect("a file");
}

/// The same of `close.c`: both connections have joined before it goes on.
fn closes_as_on_the_kernel(place: &Place, how: &How<'_>) {
    let has_all = as_on_the_kernel_with(place, how, |pair, is_plain| {
        go_on_joined(place, pair, is_plain, 2);
    });
    assert!(has_all, "close.c skips nothing");
}

/// Both worlds run at once: their ends sleep most of the time.
fn as_on_the_kernel_with(place: &Place, how: &How<'_>, before: impl Fn(&mut Pair, bool)) -> bool {
    let worlds = [true, false];
    let options = [how.options, &[PATIENT]].concat();
    let how = How {
        options: &options,
        ..*how
    };
    let mut pairs = worlds.map(|is_plain| place.connect(&How { is_plain, ..how }));
    for (pair, is_plain) in pairs.iter_mut().zip(worlds) {
        before(pair, is_plain);
    }
    for (pair, is_plain) in pairs.iter_mut().zip(worlds) {
        for end in 0..2 {
            if pair.end_of(end).contains("SKIP") {
                return false;
            }
        }
        for end in 0..2 {
            let said = pair.said(end);
            println!("plain: {is_plain}, {}: {said}", how.way);
            assert!(
                said.contains("right\n"),
                "plain: {is_plain}, {}",
                pair.both()
            );
            let joined = pair.counted(end).get("joined").copied().unwrap_or(0);
            assert_eq!(joined != 0, !is_plain, "{}", pair.both());
        }
    }
    true
}

/// A thread is blocked in a send, another one closes the descriptor, and the number becomes another connection's: every byte
/// goes to the connection that the call began with, which ends after them, and none to the other one.
#[test]
fn a_blocked_send_keeps_its_connection() {
    let Some(place) = Place::compiled("a_blocked_send_keeps_its_connection", "close.c", &[]) else {
        return;
    };
    for way in ["send", "sendfile", "sendmmsg"] {
        for spin in ["0", "50"] {
            let bytes = 16 << 20;
            let how = How {
                way,
                spin,
                bytes,
                ..HOW
            };
            closes_as_on_the_kernel(&place, &how);
        }
    }
}

/// The same of a receive: asleep, with a message of its own that is still unread, and with a part of what it waits for.
#[test]
fn a_sleeping_receive_keeps_its_connection() {
    let Some(place) = Place::compiled("a_sleeping_receive_keeps_its_connection", "close.c", &[])
    else {
        return;
    };
    for way in ["recv", "rest", "all"] {
        for spin in ["0", "50"] {
            closes_as_on_the_kernel(&place, &How { way, spin, ..HOW });
        }
    }
}

/// A handler that jumps out of a receive, and the cancellation of its thread, leave nothing behind: the close that follows ends
/// the connection.
#[test]
fn a_receive_that_was_left_keeps_nothing() {
    let Some(place) = Place::compiled("a_receive_that_was_left_keeps_nothing", "close.c", &[])
    else {
        return;
    };
    for way in ["jump", "cancel"] {
        for spin in ["0", "50"] {
            closes_as_on_the_kernel(&place, &How { way, spin, ..HOW });
        }
    }
}

/// A reader stops inside a receive, with the lock of its direction, for 9 s: its sender waits, and everything comes. A living
/// process that stands still is no dead one.
#[test]
fn a_reader_that_stands_still_is_waited_for() {
    let name = "a_reader_that_stands_still_is_waited_for";
    let Some(place) = Place::compiled(name, "stopped.c", &[]) else {
        return;
    };
    let seconds = 9;
    let how = How {
        way: "wait",
        spin: "50",
        bytes: 16 << 20,
        chunk: seconds,
        ..HOW
    };
    if !as_on_the_kernel(&place, &how) {
        skip(name, "userfaultfd is not allowed here");
    }
}

/// `SO_SNDTIMEO` is a limit of the whole call, however often it waits: for a reader that stands still, and for one that takes a
/// little now and then.
#[test]
fn the_limit_of_a_send_is_one_for_all_its_waits() {
    let name = "the_limit_of_a_send_is_one_for_all_its_waits";
    let Some(place) = Place::compiled(name, "stopped.c", &[]) else {
        return;
    };
    for way in ["limit", "slow"] {
        for spin in ["0", "50"] {
            let how = How {
                way,
                spin,
                bytes: 16 << 20,
                chunk: 3,
                ..HOW
            };
            if !as_on_the_kernel(&place, &how) {
                return skip(name, "userfaultfd is not allowed here");
            }
        }
    }
}

/// Calls on the number of a joined socket that the kernel refuses change nothing: it is the same socket afterwards, and not one that
/// was found anew.
#[test]
fn a_refused_call_leaves_the_channel() {
    let Some(place) = Place::compiled("a_refused_call_leaves_the_channel", "number.c", &[]) else {
        return;
    };
    let how = How {
        way: "refused",
        spin: "50",
        ..HOW
    };
    let mut pair = place.connect(&how);
    go_on_joined(&place, &mut pair, false, 1);
    for end in 0..2 {
        assert!(pair.wait(end).contains("right\n"), "{}", pair.both());
        let counted = pair.counted(end);
        assert_eq!(counted.get("joined"), Some(&1), "{}", pair.both());
        assert_eq!(counted.get("sockets_found"), None, "{}", pair.both());
    }
}

/// A bare system call makes the number of a joined socket another connection's. The library learns it at its next look at the
/// kernel: what is pushed to the ring after that is not this connection's.
#[test]
fn a_number_that_changed_unseen_is_noticed() {
    let name = "a_number_that_changed_unseen_is_noticed";
    let Some(place) = Place::compiled(name, "number.c", &[]) else {
        return;
    };
    for spin in ["0", "50"] {
        let way = "unseen";
        let how = How { way, spin, ..HOW };
        let has_all = as_on_the_kernel_with(&place, &how, |pair, is_plain| {
            go_on_joined(&place, pair, is_plain, 1);
        });
        assert!(has_all, "number.c skips nothing");
    }
}

/// The number that an end has said behind a word.
fn said_number(pair: &mut Pair, end: usize, word: &str) -> String {
    let of = |pair: &Pair| {
        let said = pair.said(end);
        let number = said.lines().find_map(|line| line.strip_prefix(word));
        number.map(|number| number.trim().to_owned())
    };
    pair.until(word, |pair| of(pair).is_some());
    of(pair).expect("a number")
}

/// The connection of a killed peer is reset just when its unread ring bytes are moved into the kernel, by this end or by a helper of
/// the broker: that send takes the error from the socket. Each way of waiting reports it all the same, and the next receive tells it,
/// as on the kernel.
#[test]
fn a_reset_that_a_reclaim_meets_is_told() {
    let name = "a_reset_that_a_reclaim_meets_is_told";
    let Some(place) = Place::compiled(name, "reset.c", &[]) else {
        return;
    };
    place.have_daemon();
    for way in ["poll", "level", "edge"] {
        for between in ["", "reset", "late", "helper reset", "helper late"] {
            let is_plain = between.is_empty();
            let late = between.strip_prefix("helper ");
            let mut pair = place.connect(&How {
                way,
                spin: "50",
                is_plain,
                options: &[PATIENT],
                ..HOW
            });
            let far = said_number(&mut pair, 0, "has ");
            pair.until("the join", |pair| {
                let rows = place.rows(pair.ends[1].id());
                is_plain || rows.iter().any(|row| row["state"] == "ring")
            });
            std::fs::write(pair.directory.join("port.joined"), "").expect("a file");
            let near = said_number(&mut pair, 1, "sent ");
            let log = pair.directory.join("between");
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            let mut tool = if is_plain {
                pair.signal(0, Signal::KILL);
                None
            } else {
                let [killed, survivor] = pair.ends.each_ref().map(|end| end.id().to_string());
                let helpers = place.helpers(&["helper"]).filter(|_| late.is_some());
                let sender = helpers.as_ref().map_or(&survivor, |all| &all[0]);
                let way = late.unwrap_or(between);
                let mut tool = Command::new(place.directory.path().join("peer"));
                tool.args(["between", sender, &survivor, &near, &killed, &far, way]);
                tool.stdout(File::create(&log).expect("a log"));
                Some(One(tool.spawn().expect("a tracer")))
            };
            let word = if late.is_some() { "cut" } else { "ready" };
            pair.until("the tracer", |_| {
                is_plain || said().contains(word) || said().contains("FAIL")
            });
            if said().contains("FAIL attach") {
                return skip(name, "processes may not be traced here");
            }
            std::fs::write(pair.directory.join("port.go"), "").expect("a file");
            let right = pair.wait(1).contains("right\n");
            assert!(right, "{way} {between}: {}{}", pair.both(), said());
            assert!(tool.as_mut().is_none_or(One::end), "{}", said());
        }
    }
}

/// A peer that writes a helper's note of a reset into its channels, at any time: nothing is told before the connection ends, and then
/// one error at most, as of a reset of the peer's own.
#[test]
fn a_forged_note_of_a_reset_is_no_more_than_a_reset() {
    let name = "a_forged_note_of_a_reset_is_no_more_than_a_reset";
    let Some(place) = Place::compiled(name, "noted.c", &[]) else {
        return;
    };
    place.have_daemon();
    for way in ["fin", "reset", "sent"] {
        let mut pair = place.connect(&How {
            way,
            spin: "50",
            options: &[PATIENT],
            ..HOW
        });
        pair.until("the join", |pair| {
            let rows = place.rows(pair.ends[1].id());
            rows.iter().any(|row| row["state"] == "ring")
        });
        std::fs::write(pair.directory.join("port.joined"), "").expect("a file");
        let right = pair.wait(1).contains("right\n");
        assert!(right, "{way}: {}", pair.both());
        assert!(pair.said(0).contains("wrote"), "{}", pair.both());
    }
}

/// A broker that is stopped for as long as this lives.
struct Stopped(Pid);

impl Stopped {
    fn new(broker: Pid) -> Self {
        kill_process(broker, Signal::STOP).expect("stopped");
        Self(broker)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A thread asleep in a receive whose descriptor was closed counts what it receives on its own connection, or on none: also if the broker was
/// replaced meanwhile, and another connection has come to stand where the first one stood.
#[test]
fn a_sleeper_counts_on_no_other_connection() {
    let name = "a_sleeper_counts_on_no_other_connection";
    let Some(place) = Place::compiled(name, "asleep.c", &[]) else {
        return;
    };
    let mut pair = place.connect(&How {
        way: "block",
        spin: "50",
        chunk: 1_000,
        ..HOW
    });
    pair.until("the close", |pair| pair.said(1).contains("closed\n"));
    place.kill_daemon();
    // The next one comes with the next program.
    let _other = place.connect(&HOW);
    pair.until("the next daemon", |_| place.daemon_process().is_some());
    std::fs::write(pair.directory.join("port.go"), "").expect("a file");
    pair.until("the sleeper", |pair| pair.said(1).contains("late\n"));
    // Nobody looks after what is unread.
    let _stopped = Stopped::new(place.daemon_process().expect("a daemon"));
    std::fs::write(pair.directory.join("port.stopped"), "").expect("a file");
    for end in 0..2 {
        assert!(pair.end_of(end).contains("right\n"), "{}", pair.both());
    }
    assert!(pair.counted(1).contains_key("joined"), "{}", pair.both());
}
