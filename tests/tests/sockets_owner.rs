//! A connection belongs to the process that first sends, receives or waits on it. `sockets/owner.c` plays who else has it,
//! `sockets/child.c` and `sockets/late.c` children that touch it at a bad moment.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use place::{HOW, How, One, PATIENCE, PATIENT, Place};
use serde_json::Value;
use windlass_tests::program;

/// What a second process may have and do while the connection stays on the ring.
const KEPT: [&str; 4] = ["child", "save", "forks", "names"];
/// What a second process does that demotes it.
const DEMOTED: [&str; 6] = ["send", "recv", "poll", "select", "epoll", "option"];

/// Connections of `child.c` that have to join, of ten or more: a broker on a busy machine may answer too late.
const JOINED_MIN: u64 = 5;

/// The process of a listed socket, its state and its reason.
type Row = (u64, String, String);

fn rows(place: &Place) -> Vec<Row> {
    let mut command = Command::new(program("windlass"));
    command
        .args(["sockets", "--json"])
        .env("WINDLASS_SOCKETS", place.daemon());
    let listed = command.output().expect("windlass").stdout;
    let rows: Vec<Value> = serde_json::from_slice(&listed).unwrap_or_default();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    rows.iter()
        .map(|row| {
            let pid = row["pid"].as_u64().unwrap_or_default();
            (pid, text(row, "state"), text(row, "reason"))
        })
        .collect()
}

/// Whether both ends are on the ring, one of them that of the client.
fn is_on_ring(client: u64, rows: &[Row]) -> bool {
    let is_one = |row: &&Row| row.1 == "ring" && row.2 == "none";
    let on_ring: Vec<_> = rows.iter().filter(is_one).collect();
    on_ring.len() == 2 && on_ring.iter().any(|row| row.0 == client)
}

/// Bytes sent and received, as all summaries together say.
fn bytes_of(summaries: &str) -> [u64; 2] {
    let lines = summaries.lines();
    let lines =
        lines.filter_map(|line| line.split_once("bytes sent: ")?.1.split_once("received: "));
    let sum = |text: &str| {
        let by_kernel = text.split(';').next().unwrap_or_default();
        let numbers = by_kernel
            .split([' ', ','])
            .filter_map(|word| word.parse::<u64>().ok());
        numbers.sum::<u64>()
    };
    lines.fold([0, 0], |[sent, received], (out, back)| {
        [sent + sum(out), received + sum(back)]
    })
}

/// Runs a server and a client, which exchange messages all the time, and lets the server act once both ends are on the ring;
/// `is_right` says of the rows after that whether they are as they have to be.
fn play(place: &Place, way: &str, is_right: impl Fn(u64, &[Row]) -> bool) {
    let directory = place.room();
    let port = directory.join("port");
    let start = |role: &str, way: &[&str]| {
        let log = |name: &str| fs::File::create(directory.join(name)).expect("a log");
        let mut command = Command::new(program("windlass"));
        command
            .args(["run", "-v", "--spin", "20", "--"])
            .arg(place.directory.path().join("owner"))
            .arg(role)
            .arg(&port)
            .args(way)
            .env("WINDLASS_SOCKETS", place.daemon())
            .envs([PATIENT])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log(role))
            .stderr(log(&format!("{role}.summary")));
        One(command.spawn().expect("windlass"))
    };
    let mut server = start("serve", &[way]);
    let mut client = start("ask", &[]);
    let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
    let pid = u64::from(client.0.id());
    let until = |what: &str, is_so: &dyn Fn(&[Row]) -> bool| {
        let begun = Instant::now();
        loop {
            let found = rows(place);
            if is_so(&found) {
                break;
            }
            let told = format!("{way}: {:?} {:?} {found:?}", said("serve"), said("ask"));
            assert!(begun.elapsed() < PATIENCE, "{what}: {told}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("the ring", &|rows| is_on_ring(pid, rows));
    fs::write(directory.join("port.act"), "").expect("a file");
    until("what comes of it", &|rows| {
        said("serve") == "acted\n" && is_right(pid, rows)
    });
    fs::write(directory.join("port.end"), "").expect("a file");
    assert!(client.end(), "{way}: the client failed");
    assert!(
        server.end(),
        "{way}: the server failed: {:?}",
        said("serve")
    );
    assert_eq!(said("serve"), "acted\ndone\n", "{way}");
    assert_eq!(said("ask"), "done\n", "{way}");
    // What one end has sent the other one has received; no process takes from another one's count.
    let summaries = ["serve", "ask"].map(|role| said(&format!("{role}.summary")));
    let [serve, ask] = summaries.each_ref().map(|lines| bytes_of(lines));
    assert_eq!(serve, [ask[1], ask[0]], "{way}: {summaries:?}");
}

fn compile(place: &Place, name: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets");
    let source = sources.join(name).with_extension("c");
    let target = place.directory.path().join(name);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-pthread", "-o"])
        .arg(target)
        .arg(source);
    assert!(compiler.status().is_ok_and(|status| status.success()));
}

/// A server that forks and lets its child serve, one that forks to save its data or from several threads at once, and a child
/// that asks for names and flags and closes its copies: the connection is on the ring afterwards.
#[test]
fn who_only_holds_a_connection_changes_nothing() {
    let Some(place) = Place::new("who_only_holds_a_connection_changes_nothing") else {
        return;
    };
    compile(&place, "owner");
    for way in KEPT {
        play(&place, way, is_on_ring);
    }
}

/// A second process that sends, receives, waits or sets an option demotes the connection, whose every message still comes.
#[test]
fn who_uses_a_connection_of_another_demotes_it() {
    let Some(place) = Place::new("who_uses_a_connection_of_another_demotes_it") else {
        return;
    };
    compile(&place, "owner");
    for way in DEMOTED {
        play(&place, way, |_, rows| {
            rows.iter().any(|row| row.2 == "shared") && rows.iter().all(|row| row.1 != "ring")
        });
    }
}

/// A signal without SA_RESTART comes while a call that would sleep asks a broker that is stopped: the call ends with EINTR, as it
/// would in its sleep. One that does not sleep says what it says.
#[test]
fn a_signal_while_the_broker_is_asked_ends_the_call() {
    let Some(place) = Place::new("a_signal_while_the_broker_is_asked_ends_the_call") else {
        return;
    };
    let sleep = [
        "recv", "empty", "read", "recvmsg", "poll", "ppoll", "select", "epoll",
    ];
    let sleep = sleep.map(|call| (call, "EINTR\n"));
    let others = [("urgent", "EINVAL\n"), ("nonblocking", "EAGAIN\n")];
    ask_late(&place, sleep.into_iter().chain(others));
}

/// A thread asks a broker that is stopped: a file that another one opens meanwhile gets the lowest free number.
#[test]
fn low_numbers_are_free_while_the_broker_is_asked() {
    let Some(place) = Place::new("low_numbers_are_free_while_the_broker_is_asked") else {
        return;
    };
    ask_late(&place, [("number", "lowest\n")]);
}

/// Some calls go on instead: `recvmmsg`, and a receive with a time limit whose handler has SA_RESTART. They are in their sleep when
/// `late.c` gives up.
#[test]
fn a_signal_while_the_broker_is_asked_is_missed_by_some() {
    let Some(place) = Place::new("a_signal_while_the_broker_is_asked_is_missed_by_some") else {
        return;
    };
    ask_late(&place, [("recvmmsg", ""), ("limit", "")]);
}

/// A child that is forked while another thread asks the broker has none of the descriptors of that question.
#[test]
fn a_child_has_nothing_of_a_question() {
    let Some(place) = Place::new("a_child_has_nothing_of_a_question") else {
        return;
    };
    ask_late(&place, [("heir", "none\nnone\n")]);
}

/// Has `late.c` make each of these calls, and compares what it says.
fn ask_late<'a>(place: &Place, calls: impl IntoIterator<Item = (&'a str, &'a str)>) {
    compile(place, "late");
    // `late.c` stops the broker, which has to be there.
    place.have_daemon();
    let mut wrong = Vec::new();
    for (call, expected) in calls {
        let directory = place.room();
        let start = |role: &str, call: &[&str]| {
            let log = fs::File::create(directory.join(role)).expect("a log");
            let mut command = Command::new(program("windlass"));
            command
                .args(["run", "--"])
                .arg(place.directory.path().join("late"));
            command.arg(role).arg(directory.join("port")).args(call);
            command.env("WINDLASS_SOCKETS", place.daemon());
            command.env("WINDLASS_PATIENCE", "20000");
            command.env(
                "WINDLASS_COUNTERS",
                directory.join(format!("{role}.counters")),
            );
            command.stdin(Stdio::null()).stdout(log);
            One(command.spawn().expect("windlass"))
        };
        let mut server = start("serve", &[call]);
        let _client = start("ask", &[]);
        let has_ended = server.end();
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let (said, counters) = (read("serve"), read("serve.counters"));
        assert!(has_ended, "{call}: the server failed: {said}");
        assert!(counters.contains("joined 1\n"), "{call}: {said}{counters}");
        if said != expected {
            wrong.push((call, said));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What `child.c` has measured, by its name; the end with the children has joined.
fn measured(place: &Place, way: &str, is_plain: bool) -> BTreeMap<String, i64> {
    let mut pair = place.connect(&How {
        way,
        spin: "200",
        is_plain,
        options: &[("WINDLASS_NETS", "0")],
        ..HOW
    });
    let said = [0, 1].map(|end| pair.wait(end)).concat();
    println!("{way}, plain: {is_plain}: {said}");
    let joined = pair.counted(0).get("joined").copied().unwrap_or(0);
    assert!(is_plain || joined >= JOINED_MIN, "{}", pair.both());
    said.lines()
        .filter_map(|line| line.strip_prefix("max ")?.split_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

/// Bytes that lie in the ring when a child demotes their connection are there for the child's first look, although the broker, which
/// moves them, stands still for 60 or 300 ms, or has just left requests of the parent unanswered. Nothing but the child has them moved.
#[test]
fn a_late_broker_hides_no_bytes() {
    /// Of twelve rounds, those whose bytes have to be in the ring and whose broker was found: a busy machine lets a reader sleep.
    const ROUNDS_MIN: i64 = 5;
    // Each has a broker of its own, which it stops, and sleeps most of the time.
    let measured = |is_plain| {
        let place = Place::compiled("a_late_broker_hides_no_bytes", "child.c", &[])?;
        Some(measured(&place, "late", is_plain))
    };
    let (plain, ours) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| measured(true));
        let ours = measured(false);
        (plain.join().expect("the kernel's"), ours)
    });
    let Some((plain, ours)) = plain.zip(ours) else {
        return;
    };
    assert_eq!([&plain, &ours].map(|one| one["missed"]), [0, 0], "{ours:?}");
    let are_played = |what: &str| ours[what] >= ROUNDS_MIN;
    assert!(
        are_played("by_ring") && are_played("stood_still"),
        "{ours:?}"
    );
}

/// Children that are forked while other threads meet the death of a peer come back from their calls, and burn no time in them.
#[test]
fn a_fork_amid_a_death_is_no_burden() {
    /// What a busy machine and a broker that is asked take. Who waits for a thread that is not there needs 400 and more.
    const TOOK_MS: i64 = 300;
    const CPU_MS: i64 = 40;
    let Some(place) = Place::compiled("a_fork_amid_a_death_is_no_burden", "child.c", &[]) else {
        return;
    };
    let ours = measured(&place, "dead", false);
    assert!(ours["child_cpu_ms"] < CPU_MS, "{ours:?}");
    assert!(ours["child_ms"] < TOOK_MS, "{ours:?}");
}
