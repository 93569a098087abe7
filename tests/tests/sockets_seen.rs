//! What a person sees of accelerated sockets: `windlass sockets`, and the summary of `windlass run -v`.

#[path = "sockets/place.rs"]
mod place;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use place::{HOW, How, One, PATIENCE, Pair, Place};
use rustix::process::Signal;
use serde_json::Value;
use windlass_tests::{program, skip};

/// The rows of one process.
fn rows_of(place: &Place, pid: u32) -> Vec<Value> {
    let mut command = Command::new(program("windlass"));
    command
        .args(["sockets", "--json"])
        .env("WINDLASS_SOCKETS", place.daemon());
    let listed = command.output().expect("windlass").stdout;
    let rows: Vec<Value> = serde_json::from_slice(&listed).unwrap_or_default();
    rows.into_iter().filter(|row| row["pid"] == pid).collect()
}

/// Waits until one end of a pair has just one socket, in this state for this reason.
fn until_seen(place: &Place, pair: &mut Pair, end: usize, state: &str, reason: &str) {
    let what = format!("{state} for {reason}");
    pair.until(&what, |pair| {
        let rows = rows_of(place, pair.ends[end].id());
        rows.len() == 1 && rows[0]["state"] == state && rows[0]["reason"] == reason
    });
}

/// An accelerated program whose peer is plain is told so, at either end, whether it sends small messages or large ones; and
/// two accelerated programs see the ring.
#[test]
fn a_plain_peer_is_called_so() {
    let Some(place) = Place::new("a_plain_peer_is_called_so") else {
        return;
    };
    for chunk in [64, 65_536] {
        for plain in 0..2 {
            let how = How {
                way: "level",
                bytes: 0,
                chunk,
                ..HOW
            };
            let directory = place.room();
            let mut end = 0;
            let ends = ["listen", "connect"].map(|role| {
                let is_plain = end == plain;
                end += 1;
                place.end(&How { is_plain, ..how }, &directory, role)
            });
            let mut pair = place.pair(&how, directory, ends);
            until_seen(&place, &mut pair, 1 - plain, "kernel", "peer-plain");
        }
    }
    let mut pair = place.connect(&How {
        way: "level",
        bytes: 0,
        ..HOW
    });
    for end in 0..2 {
        until_seen(&place, &mut pair, end, "ring", "none");
    }
}

/// Each process says at its end how many connections it had, what the ring carried, and why others stayed on the kernel; one that
/// is not asked says nothing.
#[test]
fn a_summary_says_what_the_connections_did() {
    let Some(place) = Place::new("a_summary_says_what_the_connections_did") else {
        return;
    };
    let asked = [("WINDLASS_SUMMARY", "1")];
    let summaries = |pair: &Pair, end: usize| {
        let said = pair.said(end);
        let lines = said.lines().filter(|line| line.contains("connected,"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for (options, count) in [(&asked[..], 1), (&[], 0)] {
        let mut pair = place.connect(&How { options, ..HOW });
        for end in 0..2 {
            pair.wait(end);
            let lines = summaries(&pair, end);
            assert_eq!(lines.len(), count, "{}", pair.both());
            let begin = format!("windlass: peer[{}]: 1 connected, ", pair.ends[end].id());
            for line in lines {
                assert!(line.starts_with(&begin), "{line}");
                let sum: u64 = line
                    .split([' ', ';'])
                    .filter_map(|word| word.parse::<u64>().ok())
                    .filter(|number| *number > 1)
                    .sum();
                assert_eq!(sum, 2 * HOW.bytes, "sent and received: {line}");
            }
        }
    }
    let directory = place.room();
    let listen = How {
        options: &asked,
        ..HOW
    };
    let connect = How {
        is_plain: true,
        ..HOW
    };
    let ends = [
        place.end(&listen, &directory, "listen"),
        place.end(&connect, &directory, "connect"),
    ];
    let mut pair = place.pair(&listen, directory, ends);
    pair.wait(0);
    let line = summaries(&pair, 0).join("\n");
    assert!(line.contains(" 1 connected, 0 joined; "), "{line}");
    assert!(line.ends_with("; on the kernel: 1 peer-plain"), "{line}");
    pair.signal(1, Signal::KILL);
}

/// What docs/sockets.md begins with is typed, with another port, and answers as it says there.
#[test]
fn the_page_begins_with_what_works() {
    let name = "the_page_begins_with_what_works";
    let Some(place) = Place::new(name) else {
        return;
    };
    if Command::new("redis-server").arg("-v").output().is_err() {
        return skip(name, "redis is missing");
    }
    let page = include_str!("../../docs/sockets.md");
    let block = page.split("```").nth(1).expect("a block");
    let [check, server, client, list] =
        ["--check", "-- redis-server", "redis-benchmark", "sockets"].map(|word| {
            let mut lines = block.lines().filter_map(|line| line.strip_prefix("$ "));
            lines.find(|line| line.contains(word)).expect(word)
        });
    let own = program("windlass");
    let paths = [own.parent().expect("a directory"), Path::new("/usr/bin")];
    let port = 20_000 + std::process::id() % 10_000;
    let typed = |line: &str, more: String| {
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                &format!("exec {} {more}", line.trim_end_matches(" &")),
            ])
            .env("PATH", std::env::join_paths(&paths).expect("paths"))
            .env("WINDLASS_SOCKETS", place.daemon())
            .current_dir(place.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    };
    let answer = |line: &str| {
        let output = typed(line, String::new()).stdout(Stdio::piped()).output();
        String::from_utf8(output.expect("sh").stdout).expect("text")
    };
    let said = answer(check);
    assert!(
        said.ends_with("/redis-server can be accelerated\n"),
        "{said}"
    );
    let start = |line, more| One(typed(line, more).spawn().expect("sh"));
    let server = start(server, format!("--port {port} --save ''"));
    let started = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port as u16)).is_err() {
        assert!(started.elapsed() < PATIENCE, "no server");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let client = start(client, format!("-p {port}"));
    let titles: Vec<&str> = block
        .lines()
        .find(|line| line.starts_with("LOCAL"))
        .expect("titles")
        .split_whitespace()
        .collect();
    let at = |title| {
        titles
            .iter()
            .position(|other| *other == title)
            .expect(title)
    };
    loop {
        let said = answer(list);
        let mut rows = said
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(rows.next().as_ref(), Some(&titles));
        let rows: Vec<_> = rows.collect();
        let are_joined = [&server, &client].iter().all(|one| {
            let pid = one.0.id().to_string();
            let mut own = rows
                .iter()
                .filter(|row| row.get(at("PID")) == Some(&pid.as_str()));
            own.any(|row| row.get(at("STATE")) == Some(&"ring"))
        });
        if are_joined {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{said}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
