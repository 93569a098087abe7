//! A reader with unread bytes in its ring hands the connection to a program without the library: by exec, and by passing
//! the descriptor; or it enters a seccomp filter, under which the library may do nothing. `sockets/hand.c` plays all of them.

#[path = "sockets/place.rs"]
mod place;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use place::{One, Place};
use serde_json::Value;
use windlass_tests::{program, skip};

/// What is sent at least once the connection is another program's.
const BYTES: u64 = 1_000_000;
/// What the ends exchange by the ring before, each way at least. More than can be unread at once.
const BY_RING: [u64; 2] = [10_000, 10];
/// What the first reader leaves unread: less than the smallest ring has room for.
const LEFT: u64 = 3_000;

/// The sum of a counter.
fn counted(path: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let values = lines.filter(|(counter, _)| *counter == name);
    values
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum()
}

/// Unread bytes in the rings of a process.
fn unread_in_rings(place: &Place, one: &One) -> u64 {
    let mut command = Command::new(program("windlass"));
    command
        .args(["stackdump", "--json", &one.0.id().to_string()])
        .env("WINDLASS_SOCKETS", place.daemon());
    let dumped = command.output().expect("windlass").stdout;
    let dumped: Value = serde_json::from_slice(&dumped).unwrap_or_default();
    let channels = dumped.as_array().into_iter().flatten();
    let directions = channels.filter_map(|channel| channel["directions"].as_array());
    let unread = directions.flatten().map(|direction| {
        let of = |name: &str| direction[name].as_u64().unwrap_or(0);
        of("head").saturating_sub(of("pos"))
    });
    unread.sum()
}

/// Runs a handover with unread bytes in the ring; the sender rests meanwhile, or goes on.
fn hand_over(place: &Place, how: &str, rests: bool) {
    hand_over_from(place, how, rests, false);
}

/// The same where the sender may be killed before.
fn hand_over_from(place: &Place, how: &str, rests: bool, is_killed: bool) {
    let directory = place.room();
    let own = place.directory.path();
    let start = |role: &str, words: &[&str]| {
        let log = fs::File::create(directory.join(role)).expect("a log");
        let mut command = Command::new(program("windlass"));
        command
            .args(["run", "--spin", "50", "--"])
            .arg(own.join("hand"));
        command.arg(role).arg(directory.join("port")).args(words);
        command.env("WINDLASS_SOCKETS", place.daemon());
        // The broker leaves unread bytes where they are.
        command.env("WINDLASS_NETS", "0");
        command.env(
            "WINDLASS_COUNTERS",
            directory.join(format!("{role}.counters")),
        );
        let child = command
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log);
        One(child.spawn().expect("windlass"))
    };
    let plain = own.join("plain");
    let mut reader = start(how, &[&LEFT.to_string(), plain.to_str().expect("a path")]);
    let mut sender = start("send", &[&BYTES.to_string()]);
    let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
    let told = || format!("{how}, rests: {rests}: {:?} {:?}", said(how), said("send"));
    let mark = |what: &str| fs::write(directory.join(what), "").expect("a file");
    let until = |one: &One, what: &str, is_so: &dyn Fn(&[Value]) -> bool| {
        place::until_rows(&place.daemon(), [&one.0], what, is_so, told);
    };
    until(&sender, "bytes by the ring, both ways", &|rows| {
        place::has_rung(rows, BY_RING)
    });
    mark("port.joined");
    until(&sender, "unread bytes", &|rows| {
        rows.iter().any(|row| row["tx_queue_bytes"] == LEFT)
    });
    let unread = unread_in_rings(place, &sender);
    assert!(unread > 0, "{}", told());
    assert!(unread <= LEFT, "{unread}: {}", told());
    if is_killed {
        let rows = place.rows(sender.0.id());
        drop(sender);
        mark("port.left");
        mark("port.rest");
        reader.end();
        assert_lost(&said(how), &rows, unread);
        return;
    }
    mark("port.left");
    if rests {
        until(&sender, "an empty ring", &|rows| {
            unread_in_rings(place, &sender) == 0 && rows.iter().all(|row| row["state"] == "kernel")
        });
    }
    mark("port.rest");
    let done = [sender.end(), reader.end()];
    assert_eq!(done, [true, true], "{}", told());
    let sent = said("send");
    let sent = sent.trim_end().strip_prefix("sent ").expect("a number");
    assert!(said(how).contains(&format!("got {sent} eof")), "{}", told());
    let pushed = counted(&directory.join("send.counters"), "ring_tx_bytes");
    let taken = counted(&directory.join(format!("{how}.counters")), "ring_rx_bytes");
    assert!(pushed >= taken + unread, "{}: {pushed} {taken}", told());
}

/// The reader has got what was sent, by the rows of its killed peer, but for what was unread in the ring; or was told of the reset.
fn assert_lost(said: &str, rows: &[Value], unread: u64) {
    let of = |name: &str| rows[0][name].as_u64().expect("a number");
    let sent = of("ring_tx_bytes") + of("kernel_tx_bytes");
    let got = format!("got {} eof\n", sent - unread);
    let is_reset = said.contains("FAIL read: Connection reset");
    assert!(said.ends_with(&got) || is_reset, "not {got}: {said}");
}

/// The two programs, if a static one can be made here.
fn place(name: &str) -> Option<Place> {
    let place = Place::new(name)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/hand.c");
    let compile = |target: &str, option: &str| {
        let mut compiler = Command::new("cc");
        let compiler = compiler
            .args(["-O2", option, "-o"])
            .arg(place.directory.path().join(target));
        compiler
            .arg(&source)
            .status()
            .is_ok_and(|status| status.success())
    };
    assert!(compile("hand", "-pthread"), "hand.c does not compile");
    if !compile("plain", "-static") {
        skip(name, "no static programs can be made here");
        return None;
    }
    Some(place)
}

/// The peer was killed with unread bytes in the ring: the program that reads on finds the end or the reset instead of those.
#[test]
fn killed_bytes_are_lost_at_an_exec() {
    if let Some(place) = place("killed_bytes_are_lost_at_an_exec") {
        for how in ["exec", "pass"] {
            hand_over_from(&place, how, false, true);
        }
    }
}

/// The program that reads on gets every byte in order: what the ring held, what the kernel had, and what was sent later;
/// and then the end of the stream.
#[test]
fn unread_bytes_go_with_the_connection() {
    let Some(place) = place("unread_bytes_go_with_the_connection") else {
        return;
    };
    for how in ["exec", "pass", "confine"] {
        for rests in [true, false] {
            hand_over(&place, how, rests);
        }
    }
}
