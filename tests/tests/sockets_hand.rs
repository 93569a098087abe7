//! A reader with unread bytes in its ring hands the connection to a program without the library: by exec, and by passing
//! the descriptor; or it enters a seccomp filter, under which the library may do nothing. `sockets/hand.c` plays all of them.

#[path = "sockets/place.rs"]
mod place;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use place::{One, Place};
use windlass_tests::{program, skip};

const BYTES: u64 = 1_000_000;
/// What the first reader takes, a part of it by the ring.
const TAKES: u64 = 60_000;
/// How often it is tried until a handover met unread bytes in a ring: whether the sender is fast enough is up to chance.
const TRIES: u32 = 40;

/// The sum of a counter.
fn counted(path: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let values = lines.filter(|(counter, _)| *counter == name);
    values
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum()
}

/// Runs a handover; gives how many bytes had gone into the ring and were not taken out of it by the first reader.
fn hand_over(place: &Place, how: &str) -> u64 {
    let directory = place.room();
    let own = place.directory.path();
    let start = |role: &str, words: &[&str]| {
        let log = fs::File::create(directory.join(role)).expect("a log");
        let mut command = Command::new(program("windlass"));
        command
            .args(["run", "--spin", "50", "--"])
            .arg(own.join("hand"));
        command
            .arg(role)
            .arg(directory.join("port"))
            .arg(BYTES.to_string())
            .args(words);
        command.env("WINDLASS_SOCKETS", place.daemon());
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
    let takes = TAKES.to_string();
    let mut reader = start(how, &[&takes, plain.to_str().expect("a path")]);
    let mut sender = start("send", &[]);
    let done = [sender.end(), reader.end()];
    let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
    let text = format!("{how}: {:?} {:?}", said(how), said("send"));
    assert_eq!(done, [true, true], "{text}");
    assert!(said(how).contains(&format!("got {BYTES} eof")), "{text}");
    let pushed = counted(&directory.join("send.counters"), "ring_tx_bytes");
    let taken = counted(&directory.join(format!("{how}.counters")), "ring_rx_bytes");
    pushed.saturating_sub(taken)
}

/// The program that reads on gets every byte in order: what the ring held, what the kernel had, and what was sent later;
/// and then the end of the stream.
#[test]
fn unread_bytes_go_with_the_connection() {
    let name = "unread_bytes_go_with_the_connection";
    let Some(place) = Place::new(name) else {
        return;
    };
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
        return;
    }
    for how in ["exec", "pass", "confine"] {
        let unread: Vec<u64> = (0..TRIES)
            .map(|_| hand_over(&place, how))
            .scan(0, |met, bytes| {
                let goes_on = *met < 3;
                *met += u32::from(bytes > 0);
                goes_on.then_some(bytes)
            })
            .collect();
        println!("{how}: unread in the ring: {unread:?}");
        assert!(
            unread.iter().any(|bytes| *bytes > 0),
            "{how}: no handover met unread bytes in a ring"
        );
    }
}
