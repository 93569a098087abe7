//! What docs/sockets.md says of single calls and options: which of them keep a joined connection on the ring, and which return it to
//! the kernel, for which reason. `sockets/limits.c` plays both ends.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use place::{HOW, How, One, PATIENT, Pair, Place};
use rustix::process::Signal;
use serde_json::Value;
use windlass_tests::{program, until};

/// Bytes of the messages that both ends exchange on each connection after all acts.
const AFTER: u64 = 200 * 32;
/// Bytes that an act moves.
const PART: u64 = 5_000;

/// A connection after its act: at the end that acts, and at the other one.
#[derive(Debug)]
struct Seen {
    rows: [Value; 2],
    before: [Value; 2],
}

impl Seen {
    /// State and reason of an end.
    fn at(&self, end: usize) -> (&str, &str) {
        let text = |name: &str| self.rows[end][name].as_str().unwrap_or_default();
        (text("state"), text("reason"))
    }

    /// By how much a count of the acting end has grown.
    fn more(&self, name: &str) -> u64 {
        let of = |row: &Value| row[name].as_u64().expect("a number");
        of(&self.rows[0]) - of(&self.before[0])
    }
}

/// What a run has shown.
struct Played {
    seen: BTreeMap<String, Seen>,
    said: String,
}

impl Played {
    /// The number behind some words of the acting end.
    fn number(&self, words: &str) -> u64 {
        let mut lines = self.said.lines();
        let number = lines.find_map(|line| line.strip_prefix(words)?.trim().parse().ok());
        number.unwrap_or_else(|| panic!("{words}: {}", self.said))
    }
}

fn started(place: &Place, acts: &str, is_plain: bool) -> Pair {
    let mut pair = place.connect(&How {
        way: acts,
        options: &[PATIENT],
        is_plain,
        ..HOW
    });
    pair.until("the connections", |pair| {
        let count = acts.split(',').count();
        (0..2).all(|end| pair.said(end).matches("socket ").count() == count)
    });
    pair
}

fn mark(pair: &Pair, what: &str) {
    fs::write(pair.directory.join(format!("port.{what}")), "").expect("a file");
}

fn until_said(pair: &mut Pair, word: &str) {
    pair.until(word, |pair| {
        (0..2).all(|end| pair.said(end).lines().any(|line| line == word))
    });
}

/// The rows of an end, by cookie.
fn rows(place: &Place, pair: &Pair, end: usize) -> BTreeMap<u64, Value> {
    let rows = place.rows(pair.ends[end].id());
    let cookie = |row: &Value| row["cookie"].as_u64().expect("a cookie");
    rows.into_iter().map(|row| (cookie(&row), row)).collect()
}

/// The acts and the cookies of their connections at an end.
fn sockets(pair: &Pair, end: usize) -> Vec<(String, u64)> {
    let said = pair.said(end);
    let lines = said.lines().filter_map(|line| line.strip_prefix("socket "));
    let both = lines.filter_map(|line| line.split_once(' '));
    both.map(|(act, cookie)| (act.to_owned(), cookie.parse().expect("a cookie")))
        .collect()
}

/// Has each act made on a connection that is on the ring.
fn play(place: &Place, acts: &str) -> Played {
    play_once(place, acts, |_, row| row["state"] == "ring")
}

/// The same once the row of each act is so.
fn play_once(place: &Place, acts: &str, is_so: impl Fn(&str, &Value) -> bool) -> Played {
    place.have_daemon();
    let mut pair = started(place, acts, false);
    let ends = [0, 1].map(|end| sockets(&pair, end));
    pair.until("the joins", |pair| {
        (0..2).all(|end| {
            let rows = rows(place, pair, end);
            let row = |cookie| rows.get(cookie).cloned().unwrap_or_default();
            let mut own = ends[end].iter().map(|(act, cookie)| (act, row(cookie)));
            own.all(|(act, row)| is_so(act, &row))
        })
    });
    mark(&pair, "go");
    until_said(&mut pair, "held");
    let before = [0, 1].map(|end| rows(place, &pair, end));
    mark(&pair, "act");
    until_said(&mut pair, "acted");
    let after = [0, 1].map(|end| rows(place, &pair, end));
    let said = pair.said(0);
    let seen = ends[0].iter().zip(&ends[1]).map(|(own, other)| {
        let of = |all: &[BTreeMap<u64, Value>; 2]| {
            let cookies = [own.1, other.1];
            [0, 1].map(|end| all[end].get(&cookies[end]).cloned().unwrap_or_default())
        };
        let (rows, before) = (of(&after), of(&before));
        (own.0.clone(), Seen { rows, before })
    });
    let seen = seen.collect();
    mark(&pair, "end");
    for end in 0..2 {
        pair.wait(end);
    }
    Played { seen, said }
}

/// What the acting end says of itself without windlass.
fn play_plain(place: &Place, acts: &str) -> Played {
    let mut pair = started(place, acts, true);
    for what in ["go", "act", "end"] {
        mark(&pair, what);
    }
    let said = [0, 1].map(|end| pair.wait(end));
    Played {
        seen: BTreeMap::new(),
        said: said[0].clone(),
    }
}

fn place(name: &str) -> Option<Place> {
    Place::compiled(name, "limits.c", &[])
}

/// Each act leaves its connection in this state for this reason at the end that acts.
fn assert_states(played: &Played, expected: &[(&str, &str, &str)]) {
    let wrong = expected.iter().filter(|(act, state, reason)| {
        let seen = &played.seen[*act];
        seen.at(0) != (state, reason)
    });
    let wrong = wrong.map(|(act, ..)| (act, played.seen[*act].at(0)));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(played.seen.len(), expected.len());
}

fn joined<'a>(acts: impl IntoIterator<Item = &'a str>) -> String {
    Vec::from_iter(acts).join(",")
}

/// What does not join, beside a connection that has carried as many messages by the ring; and what does: after two sends and two
/// receives, or 64 KiB one way. A connection is listed from its third call on.
#[test]
fn others_stay_on_the_kernel() {
    let Some(place) = place("others_stay_on_the_kernel") else {
        return;
    };
    let listed = [
        ("u-little-before", "kernel", "option"),
        ("u-passcred-before", "kernel", "option"),
        ("recvmmsg-before", "kernel", "flag"),
        ("sendmmsg-before", "kernel", "flag"),
        ("three-calls", "kernel", "young"),
        ("twice", "kernel", "young"),
        ("little", "kernel", "young"),
        ("one-process", "kernel", "young"),
        ("self-connected", "kernel", "self-connected"),
        ("much", "ring", "none"),
        ("other", "ring", "none"),
    ];
    let unlisted = ["udp", "datagrams", "seqpacket"];
    let acts = unlisted
        .into_iter()
        .chain(["once"])
        .chain(listed.map(|(act, ..)| act));
    let played = play_once(&place, &joined(acts), |act, row| match act {
        "other" => row["ring_tx_bytes"].as_u64() > Some(1 << 17),
        "much" => row["state"] == "ring",
        _ => true,
    });
    for (act, state, reason) in listed {
        let rows = &played.seen[act].rows;
        assert_eq!(played.seen[act].at(0), (state, reason), "{act}: {rows:?}");
    }
    for act in unlisted {
        let rows = &played.seen[act].rows;
        assert!(rows.iter().all(Value::is_null), "{act}: {rows:?}");
    }
    // It may be listed, and is not joined.
    let once = &played.seen["once"].rows;
    assert!(once.iter().all(|row| row["slab"].is_null()), "{once:?}");
}

/// Options that only the kernel carries out, and one that the library does not know, return a connection to the kernel; others do not.
#[test]
fn options_of_the_kernel_demote() {
    let Some(place) = place("options_of_the_kernel_demote") else {
        return;
    };
    let options = [
        "lowat-2",
        "timestamp",
        "timestampns",
        "timestamping",
        "oobinline",
        "busy-poll",
        "zerocopy",
        "unknown",
        "inq",
        "filter",
        "u-peek-off",
        "u-passcred",
        "u-passsec",
        "u-passpidfd",
        "u-little-room",
    ];
    let mut expected: Vec<_> = options.map(|act| (act, "kernel", "option")).into();
    expected.push(("cork", "kernel", "cork"));
    expected.extend(["keepalive", "lowat-1", "u-room"].map(|act| (act, "ring", "none")));
    let played = play(&place, &joined(expected.iter().map(|(act, ..)| *act)));
    assert_states(&played, &expected);
}

/// `sendfile`, `splice`, `sendmmsg`, names and control data: the kernel moves the bytes, and the ring those after them.
#[test]
fn calls_of_the_kernel_keep_the_ring() {
    let Some(place) = place("calls_of_the_kernel_keep_the_ring") else {
        return;
    };
    let acts = [
        "sendfile",
        "splice",
        "sendmmsg",
        "sendto",
        "sendmsg-name",
        "sendmsg-control",
        "u-sendmsg-control",
    ];
    let played = play(&place, &acts.join(","));
    assert_states(&played, &acts.map(|act| (act, "ring", "none")));
    for (act, seen) in &played.seen {
        assert!(seen.more("kernel_tx_bytes") >= PART, "{act}: {seen:?}");
        assert!(seen.more("ring_tx_bytes") >= AFTER, "{act}: {seen:?}");
    }
}

/// Flags and calls that a ring has nothing like return a connection to the kernel, or what it receives.
#[test]
fn calls_that_a_ring_has_not_demote() {
    let Some(place) = place("calls_that_a_ring_has_not_demote") else {
        return;
    };
    let whole = [
        ("more", "kernel", "cork"),
        ("splice-more", "kernel", "cork"),
        ("u-recvfrom", "kernel", "flag"),
        ("recvfrom", "ring", "none"),
        ("u-control-ring", "ring", "none"),
    ];
    let received = ["recvmmsg", "u-control"];
    let acts = whole.iter().map(|(act, ..)| *act).chain(received);
    let played = play(&place, &joined(acts));
    for (act, state, reason) in whole {
        assert_eq!(played.seen[act].at(0), (state, reason), "{act}");
    }
    for act in received {
        let seen = &played.seen[act];
        assert_eq!(seen.at(0).0, "ring", "{seen:?}");
        assert_eq!(seen.more("ring_rx_bytes"), 0, "{act}: {seen:?}");
        assert!(seen.more("ring_tx_bytes") >= AFTER, "{act}: {seen:?}");
    }
    for (act, by_ring) in [("recvfrom", AFTER), ("u-control-ring", AFTER + 32)] {
        let seen = &played.seen[act];
        assert!(seen.more("ring_rx_bytes") >= by_ring, "{act}: {seen:?}");
    }
}

/// A `poll` of 128 entries merges them all; one more is the kernel's.
#[test]
fn poll_merges_128_entries() {
    let Some(place) = place("poll_merges_128_entries") else {
        return;
    };
    let expected = [
        ("poll-128", "ring", "none"),
        ("poll-129", "kernel", "limit"),
    ];
    let played = play(&place, "poll-128,poll-129");
    assert_states(&played, &expected);
}

/// An epoll instance is followed where it is the only one and belongs to one process, its members level- or edge-triggered.
#[test]
fn sockets_are_followed_in_one_instance() {
    let Some(place) = place("sockets_are_followed_in_one_instance") else {
        return;
    };
    let expected = [
        ("level-edge", "ring", "none"),
        ("two-sets", "kernel", "asleep"),
        ("one-shot", "kernel", "asleep"),
        ("exclusive", "kernel", "asleep"),
        ("others-set", "kernel", "asleep"),
    ];
    let played = play(&place, &joined(expected.map(|(act, ..)| act)));
    assert_states(&played, &expected);
}

/// Whoever else may write to a connection returns it to the kernel.
#[test]
fn other_writers_demote() {
    let Some(place) = place("other_writers_demote") else {
        return;
    };
    let expected = [
        ("stdio", "kernel", "stdio"),
        ("low-number", "kernel", "stdio"),
        ("passed", "kernel", "passed"),
    ];
    let played = play(&place, &joined(expected.map(|(act, ..)| act)));
    assert_states(&played, &expected);
}

/// What follows a write that the library did not see comes, right and late: the broker moves each message of the ring, which the reader
/// does not look at any more.
#[test]
fn what_follows_a_bare_write_comes() {
    if let Some(place) = place("what_follows_a_bare_write_comes") {
        let played = play(&place, "bare");
        let seen = &played.seen["bare"];
        assert_eq!(seen.at(1).0, "ring", "{seen:?}");
        assert!(seen.more("kernel_tx_bytes") > 0, "{seen:?}");
    }
}

/// A `select` with a number that is not open, with one beyond FD_SETSIZE, or with memory that is not there returns what is joined below
/// its count to the kernel; any other does not.
#[test]
fn odd_selects_demote() {
    let Some(place) = place("odd_selects_demote") else {
        return;
    };
    let played = play(&place, "other,select");
    assert_states(
        &played,
        &[("select", "ring", "none"), ("other", "ring", "none")],
    );
    for odd in ["select-closed", "select-far", "select-nowhere"] {
        let played = play(&place, &format!("other,{odd}"));
        let expected = [(odd, "kernel", "limit"), ("other", "kernel", "limit")];
        assert_states(&played, &expected);
    }
}

/// A seccomp filter and an io_uring return all connections to the kernel, and an exec those that it leaves open, in a child, too.
#[test]
fn processes_give_up_the_ring() {
    let Some(place) = place("processes_give_up_the_ring") else {
        return;
    };
    for act in ["seccomp", "exec", "io-uring"] {
        let played = play(&place, act);
        assert_states(&played, &[(act, "kernel", act)]);
    }
}

/// A connection that is shut down, whose shared memory holds what cannot be, or of which one end was shut before it joined is the
/// kernel's.
#[test]
fn ends_and_lies_are_the_kernels() {
    let Some(place) = place("ends_and_lies_are_the_kernels") else {
        return;
    };
    let played = play(&place, "closing,broken");
    assert_eq!(played.seen["closing"].at(0), ("kernel", "closing"));
    assert_eq!(played.seen["broken"].at(0).1, "broken");
    // One end finds out, the one that makes room for both. What the other one carries is counted on.
    let played = play_once(&place, "not-established,other", |act, row| {
        let counts = ["kernel_tx_bytes", "kernel_rx_bytes"].map(|name| row[name].as_u64());
        act == "other"
            || row["reason"] == act
            || counts.into_iter().any(|count| count > Some(1 << 20))
    });
    let seen = &played.seen["not-established"];
    assert!(
        [0, 1]
            .map(|end| seen.at(end))
            .contains(&("kernel", "not-established")),
        "{seen:?}"
    );
}

/// Nothing goes by the ring to an end that was killed.
#[test]
fn a_killed_peer_demotes() {
    let Some(place) = place("a_killed_peer_demotes") else {
        return;
    };
    place.have_daemon();
    let mut pair = started(&place, "killed", false);
    let row = |pair: &Pair| rows(&place, pair, 0).into_values().next();
    pair.until("the join", |pair| {
        row(pair).is_some_and(|row| row["state"] == "ring")
    });
    mark(&pair, "go");
    until_said(&mut pair, "held");
    pair.signal(1, Signal::KILL);
    mark(&pair, "act");
    pair.until("the end of the stream", |pair| {
        pair.said(0).contains("alone")
    });
    let row = row(&pair).expect("a row");
    assert_eq!(row["reason"], "killed");
    mark(&pair, "end");
    pair.wait(0);
}

/// Where the broker may not have copies of descriptors, connections stay on the kernel.
#[test]
fn a_broker_without_copies_joins_nobody() {
    let Some(place) = place("a_broker_without_copies_joins_nobody") else {
        return;
    };
    let mut broker = Command::new(place.directory.path().join("peer"));
    broker.arg("forbid").arg(program("windlass-broker"));
    broker.args(["--private", "--socket"]).arg(place.daemon());
    let _broker = One(broker.spawn().expect("a broker"));
    until("the broker", || place.daemon_process().is_some());
    let played = play_once(&place, "other", |_, row| row["reason"] == "not-rescuable");
    assert_states(&played, &[("other", "kernel", "not-rescuable")]);
}

/// A write of 64 KiB goes by the kernel while its receiver stands still.
#[test]
fn a_large_write_goes_by_the_kernel() {
    let Some(place) = place("a_large_write_goes_by_the_kernel") else {
        return;
    };
    let played = play(&place, "large");
    let seen = &played.seen["large"];
    assert!(seen.more("kernel_tx_bytes") >= 64 << 10, "{seen:?}");
    assert_eq!(seen.at(0), ("ring", "none"));
}

/// Threads with descriptor tables of their own return all connections to the kernel.
#[test]
fn separate_descriptor_tables_demote() {
    if let Some(place) = place("separate_descriptor_tables_demote") {
        let played = play(&place, "cloned,other");
        let expected = ["cloned", "other"].map(|act| (act, "kernel", "cloned"));
        assert_states(&played, &expected);
    }
}

/// Where a program can see a difference from the kernel: control data that is cut off, interest in `/proc/PID/fdinfo`, room.
#[test]
fn differences_are_as_documented() {
    let Some(place) = place("differences_are_as_documented") else {
        return;
    };
    let acts = "u-cut-off,late-interest,nodelay,handlers,sndbuf,sndbuf-raised,u-fill,u-fill-small";
    let (ours, kernels) = (play(&place, acts), play_plain(&place, acts));
    for (words, ours_is, kernels_is) in [
        ("cut off", 0, 1),
        ("changed in the kernel", 0, 1),
        ("underneath", 1, 0),
        ("put off by sigaction", 1, 0),
        ("put off by sigset", 0, 0),
        ("put off by a bare call", 0, 0),
        ("program's", 0, 0),
        ("send buffer", 100_000, 100_000),
        ("raised", (2 * 208) << 10, 4608),
    ] {
        let both = (ours.number(words), kernels.number(words));
        assert_eq!(both, (ours_is, kernels_is), "{words}");
    }
    let room = ours.number("room 4096");
    assert!((128 << 10..=214 << 10).contains(&room), "{room}");
    assert!(ours.number("room 100") > kernels.number("room 100"));
    assert!(ours.seen.values().all(|seen| seen.at(0).0 == "ring"));
}
