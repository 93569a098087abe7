//! Test suites that come with the sources of redis, memcached, libevent, libzmq and libuv: what passes on the kernel passes
//! under `windlass run`, with both ends of each connection accelerated.
//!
//! `scripts/suites` fetches and builds them. Each part of a suite runs once accelerated. A part that fails is run on the
//! kernel: it counts unless it fails there as well.

mod running;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use running::{House, Pairing, Side, find, must, suite};
use windlass_tests::skip;

/// Seconds that a part may take.
const PART_SECONDS: &str = "400";
const SPIN_US: u32 = 20;

/// Groups of libevent's suite that carry bytes or wait for descriptors.
const LIBEVENT: &[&str] = &[
    "main/..",
    "thread/..",
    "et/..",
    "bufferevent/..",
    "bufferevent_iocp/..",
    "http/..",
    "listener/..",
    "evbuffer/..",
    "finalize/..",
    "rpc/..",
    "util/..",
];

/// The same user's place without and with acceleration, each with a copy of the suite as `suite`.
fn houses(test: &str, place: &std::path::Path) -> Option<[House; 2]> {
    let build = |server| {
        let pairing = Pairing {
            server,
            client: false,
            spin: SPIN_US,
        };
        let house = House::build(test, pairing)?;
        let mut copy = house.plain("cp");
        copy.arg("-rL").arg(place).arg(house.file("suite"));
        must(copy, b"");
        Some(house)
    };
    Some([build(false)?, build(true)?])
}

/// Runs a shell line in the suite's directory; whether it succeeded, and what it wrote.
fn passes(house: &House, line: &str) -> (bool, String) {
    let mut command: Command = house.command(Side::Server, "timeout");
    let script = format!("cd {} && {line}", house.file("suite").display());
    command
        .args([PART_SECONDS, "bash", "-c", &script])
        .env("WINDLASS_PROMOTE", "1,1")
        .stdin(Stdio::null());
    let done = command.output().expect("bash runs");
    let told = [done.stdout, done.stderr].concat();
    (
        done.status.success(),
        String::from_utf8_lossy(&told).into_owned(),
    )
}

/// Runs each part; `line` makes its shell line. At least `joined_min` connections must have joined.
fn compare(
    test: &str,
    place: PathBuf,
    parts: &[String],
    joined_min: u64,
    line: fn(&str) -> String,
) {
    if let Some(houses) = houses(test, &place) {
        running::compare(test, &houses, parts, joined_min, |house, part| {
            passes(house, &line(part))
        });
    }
}

/// Names as owned text.
fn named(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

/// Names of files of a directory of a suite, sorted, that `keep` keeps.
fn files(place: &std::path::Path, directory: &str, keep: fn(&str) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(place.join(directory)).expect("the suite is there");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| keep(name)).collect();
    names.sort();
    names
}

/// redis' own tests, with server and client accelerated.
#[test]
fn rediss_own_tests_pass() {
    let test = "rediss_own_tests_pass";
    let Some(place) = suite(test, "redis") else {
        return;
    };
    if find("tclsh").is_none() {
        return skip(test, "tclsh is missing");
    }
    compare(test, place, &named(running::REDIS), 100, |part| {
        format!(
            "tclsh tests/test_helper.tcl --clients 1 --tags '-slow -needs:debug' --single {part}"
        )
    });
}

/// memcached's own tests, with server and client accelerated.
#[test]
fn memcacheds_own_tests_pass() {
    let test = "memcacheds_own_tests_pass";
    let Some(place) = suite(test, "memcached") else {
        return;
    };
    let parts = files(&place, "t", |name| name.ends_with(".t"));
    compare(test, place, &parts, 10, |part| {
        format!("prove -I t/lib t/{part}")
    });
}

/// libevent's own tests.
#[test]
fn libevents_own_tests_pass() {
    let test = "libevents_own_tests_pass";
    let Some(place) = suite(test, "libevent") else {
        return;
    };
    compare(test, place, &named(LIBEVENT), 0, |part| {
        format!("test/regress --quiet {part}")
    });
}

/// libzmq's own tests.
#[test]
fn libzmqs_own_tests_pass() {
    let test = "libzmqs_own_tests_pass";
    let Some(place) = suite(test, "libzmq") else {
        return;
    };
    // TIPC is no socket of ours, and a fuzzer waits for its input.
    let parts = files(&place, "build/bin", |name| {
        name.starts_with("test_") && !name.contains("tipc") && !name.contains("fuzzer")
    });
    compare(test, place, &parts, 10, |part| format!("build/bin/{part}"));
}

/// libuv's own tests of connections, between processes and in one; each loop has a ring of io_uring for its `epoll_ctl`.
#[test]
fn libuvs_own_tests_pass() {
    let test = "libuvs_own_tests_pass";
    let Some(place) = suite(test, "libuv") else {
        return;
    };
    let listed = std::process::Command::new(place.join("build/uv_run_tests_a"))
        .arg("--list")
        .env("UV_RUN_AS_ROOT", "1")
        .output()
        .expect("libuv's tests run");
    let names = String::from_utf8_lossy(&listed.stdout);
    let names = names
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let parts: Vec<_> = names
        .filter(|name| is_of_connections(name))
        .map(str::to_owned)
        .collect();
    assert!(parts.len() > 100, "{parts:?}");
    compare(test, place, &parts, 10, |part| {
        format!("cd build && ./uv_run_tests_a {part}")
    });
}

/// Whether a test of libuv is about connections, and about none that leaves this host.
fn is_of_connections(name: &str) -> bool {
    let kinds = [
        "tcp",
        "pipe_",
        "shutdown_",
        "ipc_",
        "poll_",
        "not_",
        "readable_",
        "multiple_",
        "delayed_",
        "callback_",
    ];
    let leaves = ["tcp_close_while_connecting", "tcp_connect_timeout"];
    kinds.iter().any(|kind| name.starts_with(kind)) && !leaves.contains(&name)
}
