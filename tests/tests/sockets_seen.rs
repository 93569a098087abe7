//! What a person sees of accelerated sockets: `windlass sockets`, and the summary of `windlass run -v`.

#[path = "sockets/place.rs"]
mod place;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use place::{HOW, How, One, PATIENCE, PATIENT, Pair, Place};
use rustix::process::Signal;
use serde_json::Value;
use windlass_tests::{Lab, program, skip, until};

/// Waits until one end of a pair has just one socket, in this state for this reason.
fn until_seen(place: &Place, pair: &mut Pair, end: usize, state: &str, reason: &str) {
    let what = format!("{state} for {reason}");
    pair.until(&what, |pair| {
        let rows = place.rows(pair.ends[end].id());
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

/// ss(8) shows a connection that is on the ring, with its process and with the cookie of its row.
#[test]
fn ss_shows_the_connection() {
    let name = "ss_shows_the_connection";
    let Some(place) = Place::new(name) else {
        return;
    };
    if Command::new("ss").arg("-V").output().is_err() {
        return skip(name, "ss is missing");
    }
    let mut pair = place.connect(&How {
        way: "level",
        bytes: 0,
        ..HOW
    });
    for end in 0..2 {
        until_seen(&place, &mut pair, end, "ring", "none");
        let pid = pair.ends[end].id();
        let row = place.rows(pid).remove(0);
        let shown = Command::new("ss").args(["-tnpe"]).output().expect("ss");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let cookie = format!("sk:{:x} ", row["cookie"].as_u64().expect("a cookie"));
        let mut lines = shown.lines().filter(|line| line.contains(&cookie));
        let line = lines.next().unwrap_or_else(|| panic!("{cookie}: {shown}"));
        assert!(line.starts_with("ESTAB"), "{line}");
        for word in ["local", "peer"] {
            let word = row[word].as_str().expect("a name");
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(line.contains(&format!("pid={pid},")), "{line}");
    }
}

/// A connection between two addresses of the host, of which neither is loopback, is called remote.
#[test]
fn addresses_of_the_host_are_remote() {
    let name = "addresses_of_the_host_are_remote";
    let (Some(place), Some(lab)) = (Place::new(name), Lab::start(name)) else {
        return;
    };
    let namespace = lab.namespace("a");
    for address in ["10.77.0.1", "10.77.0.2"] {
        lab.ip("a", &format!("address add {address}/32 dev lo"));
    }
    let before = ["nsenter", &format!("--net=/run/netns/{namespace}"), "--"];
    let other = [("MEET_AT", "10.77.0.1"), ("MEET_FROM", "10.77.0.2")];
    let same = [("MEET_AT", "10.77.0.1"), ("MEET_FROM", "10.77.0.1")];
    for (options, state, reason) in [(other, "kernel", "remote"), (same, "ring", "none")] {
        let mut pair = place.connect(&How {
            way: "level",
            bytes: 0,
            options: &options,
            before: &before,
            ..HOW
        });
        for end in 0..2 {
            until_seen(&place, &mut pair, end, state, reason);
        }
    }
}

/// Rows are there before a process has asked a broker for anything, when its broker was killed, and at once when there is another one:
/// joined connections with their channels, others with their reasons.
#[test]
fn rows_outlive_the_broker() {
    let Some(place) = Place::new("rows_outlive_the_broker") else {
        return;
    };
    let never = [("WINDLASS_PROMOTE", "4000000000,1000000000000")];
    let how = How {
        way: "level",
        bytes: 0,
        ..HOW
    };
    let mut young = place.connect(&How {
        options: &never,
        ..how
    });
    let mut joined = place.connect(&how);
    for end in 0..2 {
        until_seen(&place, &mut young, end, "kernel", "young");
        until_seen(&place, &mut joined, end, "ring", "none");
    }
    // The first joined bytes may go by the kernel, to a reader that sleeps.
    joined.until("bytes by the ring, both ways", |joined| {
        let rows = joined.ends.each_ref().map(|end| place.rows(end.id()));
        let sent = |rows: &Vec<Value>| rows[0]["ring_tx_bytes"].as_u64() > Some(0);
        rows.iter().all(sent)
    });
    let listed = place.rows(joined.ends[0].id());
    let killed = place.kill_daemon();
    for broker in ["none", "another one"] {
        for end in 0..2 {
            until_seen(&place, &mut young, end, "kernel", "young");
            let rows = place.rows(joined.ends[end].id());
            assert_eq!(rows.len(), 1, "{broker}: {rows:?}");
            let row = &rows[0];
            assert_eq!(row["state"], "ring", "{broker}: {row}");
            assert_eq!(row["peer_pid"], joined.ends[1 - end].id(), "{row}");
            assert_eq!(row["comm"], "peer", "{row}");
            assert_eq!(row["peer_comm"], "peer", "{row}");
            assert!(row["ring_tx_bytes"].as_u64() > Some(0), "{row}");
        }
        let now = place.rows(joined.ends[0].id());
        for name in ["local", "peer", "cookie", "slab", "channel", "side"] {
            assert_eq!(listed[0][name], now[0][name], "{broker}: {name}");
        }
        place.have_daemon();
        assert_ne!(place.daemon_process(), Some(killed), "it was killed");
    }
}

/// Each process says at its end how many connections it had, what ring and kernel carried, to the byte, and why others stayed on the
/// kernel; one that is not asked says nothing. What comes after a shutdown counts, too, where nothing has joined.
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
    let alone = [asked[0], ("WINDLASS_PROMOTE", "4000000000,1000000000000")];
    for (options, count) in [(&asked[..], 1), (&alone, 1), (&[], 0)] {
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
        options: &[asked[0], PATIENT],
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

/// The lines that docs/sockets.md begins with, as they are typed in a place of their own.
struct Typed<'a> {
    place: &'a Place,
    block: &'static str,
}

impl Typed<'_> {
    /// The first line that has a word.
    fn line(&self, word: &str) -> &'static str {
        let mut lines = self.block.lines().filter(|line| line.contains(word));
        lines.next().expect(word)
    }

    /// The command with a word, and more arguments.
    fn command(&self, word: &str, more: &str) -> Command {
        let own = program("windlass");
        let paths = [own.parent().expect("a directory"), Path::new("/usr/bin")];
        let line = self.line(word).trim_start_matches("$ ");
        let line = format!("exec {} {more}", line.trim_end_matches(" &"));
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .env("PATH", std::env::join_paths(paths).expect("paths"))
            .env("WINDLASS_SOCKETS", self.place.daemon())
            .current_dir(self.place.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    fn start(&self, word: &str, more: &str) -> One {
        One(self.command(word, more).spawn().expect("sh"))
    }

    fn answer(&self, word: &str) -> String {
        let output = self.command(word, "").stdout(Stdio::piped()).output();
        String::from_utf8(output.expect("sh").stdout).expect("text")
    }

    /// Whether all of these are listed as on the ring, under the titles of the page.
    fn are_on_ring(&self, all: [&One; 2]) -> bool {
        let titles: Vec<_> = self.line("LOCAL").split_whitespace().collect();
        let at = |title| titles.iter().position(|other| *other == title);
        let (pid_at, state_at) = (at("PID").expect("pid"), at("STATE").expect("state"));
        let said = self.answer("$ windlass sockets");
        let mut lines = said.lines().map(|line| line.split_whitespace().collect());
        assert_eq!(lines.next().as_ref(), Some(&titles));
        let rows: Vec<Vec<_>> = lines.collect();
        all.iter().all(|one| {
            let pid = one.0.id().to_string();
            let mut own = rows.iter().filter(|row| row.get(pid_at) == Some(&&*pid));
            own.any(|row| row.get(state_at) == Some(&"ring"))
        })
    }
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
    let typed = Typed {
        place: &place,
        block: page.split("```").nth(1).expect("a block"),
    };
    let port = 20_000 + std::process::id() % 10_000;
    let said = typed.answer("--check");
    assert!(
        said.ends_with("/redis-server can be accelerated\n"),
        "{said}"
    );
    let server = typed.start("-- redis-server", &format!("--port {port} --save ''"));
    let started = Instant::now();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(started.elapsed() < PATIENCE, "{what} did not come");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until("the server", &|| {
        TcpStream::connect(("127.0.0.1", port as u16)).is_ok()
    });
    let client = typed.start("redis-benchmark", &format!("-p {port}"));
    until("the ring", &|| typed.are_on_ring([&server, &client]));
}

/// `windlass metrics --listen` has what accelerated sockets have sent, by ring and by kernel; it stays when they are closed.
#[test]
fn what_was_sent_is_a_metric() {
    const NAME: &str = "what_was_sent_is_a_metric";
    let (Some(place), Some(lab)) = (Place::new(NAME), Lab::start(NAME)) else {
        return;
    };
    let daemon = lab.daemon();
    let mut server = Command::new(program("windlass"));
    server
        .arg("--socket")
        .arg(daemon.socket())
        .args(["metrics", "--listen", "127.0.0.1:0"])
        .env("WINDLASS_SOCKETS", place.daemon());
    let mut server = One(server.stdout(Stdio::piped()).spawn().expect("windlass"));
    let mut line = String::new();
    let said = server.0.stdout.as_mut().expect("a pipe");
    BufReader::new(said).read_line(&mut line).expect("a line");
    let address = line.trim().trim_start_matches("http://");
    let address = address.trim_end_matches("/metrics").to_owned();
    let sent = |path: &str| -> u64 {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.contains("windlass_uptime_seconds"), "{text}");
        let title = format!("windlass_channel_bytes_total{{path=\"{path}\"}} ");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(&title));
        lines
            .next()
            .map_or(0, |total| total.parse().expect("a number"))
    };
    let mut pair = place.connect(&How {
        way: "level",
        bytes: 0,
        ..HOW
    });
    for end in 0..2 {
        until_seen(&place, &mut pair, end, "ring", "none");
    }
    until("the ring carries bytes", || sent("ring") > 100_000);
    drop(pair);
    let before = sent("ring");
    assert!(before > 100_000);
    assert!(sent("ring") >= before, "the sum stays");
}
