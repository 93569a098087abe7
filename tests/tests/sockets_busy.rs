//! Sockets that are never quiet: several threads of both programs send and receive from the first moment on.
//! `sockets/busy.c` plays both ends.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use place::{PATIENCE, Place};
use windlass_tests::program;

/// What each thread sends at least.
const BYTES: u64 = 20_000_000;
/// What the ring carries each way at least; the programs go on until it has. More than a ring has room for.
const BY_RING: u64 = 270_000;

/// Both ends, killed when dropped.
struct Both([Child; 2]);

impl Both {
    fn end(&mut self) -> bool {
        let started = Instant::now();
        loop {
            let ended = self
                .0
                .each_mut()
                .map(|end| end.try_wait().expect("a child"));
            if let [Some(a), Some(b)] = ended {
                return a.success() && b.success();
            }
            if started.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        for end in &mut self.0 {
            let _ = end.kill();
            let _ = end.wait();
        }
    }
}

/// The sums of what a program has counted.
fn counted(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut sums = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().expect("a number");
    }
    sums
}

/// Every byte comes, and the connection is joined in the middle of it all.
#[test]
fn busy_threads_are_joined() {
    let Some(place) = Place::new("busy_threads_are_joined") else {
        return;
    };
    let own = place.directory.path();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/busy.c");
    let mut compiler = Command::new("cc");
    let compiled = compiler
        .args(["-O2", "-pthread", "-o"])
        .arg(own.join("busy"))
        .arg(source)
        .status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "busy.c does not compile"
    );
    for (threads, spin) in [(1, "50"), (2, "50"), (1, "0"), (2, "0")] {
        is_joined(&place, threads, spin);
    }
}

/// One connection, whose ends go on until each has received bytes by the ring.
fn is_joined(place: &Place, threads: u64, spin: &str) {
    let own = place.directory.path();
    let directory = place.room();
    let roles = ["listen", "connect"];
    let counters = |role: &str| directory.join(format!("{role}.counters"));
    let mut both = Both(roles.map(|role| {
        let log = fs::File::create(directory.join(role)).expect("a log");
        let mut command = Command::new(program("windlass"));
        command
            .args(["run", "--spin", spin, "--"])
            .arg(own.join("busy"))
            .args([role, directory.join("port").to_str().expect("text")])
            .args([threads, BYTES].map(|number| number.to_string()));
        command.env("WINDLASS_SOCKETS", place.daemon());
        command.env("WINDLASS_COUNTERS", counters(role));
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log);
        command.spawn().expect("windlass")
    }));
    let said = || roles.map(|role| fs::read_to_string(directory.join(role)).unwrap_or_default());
    let told = || format!("{threads} threads, spin {spin}: {:?}", said());
    place::until_rows(
        &place.daemon(),
        both.0.each_ref(),
        "bytes by the ring, both ways",
        |rows| place::has_rung(rows, [BY_RING; 2]),
        told,
    );
    fs::write(directory.join("port.end"), "").expect("a file");
    let is_done = both.end();
    let sums = roles.map(|role| counted(&counters(role)));
    let text = format!("{} {sums:?}", told());
    println!("{text}");
    assert!(is_done, "{text}");
    let said = said();
    for end in 0..2 {
        let sent = said[end]
            .lines()
            .find_map(|line| line.strip_prefix("sent "));
        let sent = sent.expect(&text);
        let bytes = sent.split(' ').next().and_then(|word| word.parse().ok());
        assert!(bytes >= Some(threads * BYTES), "{text}");
        let right = format!("got {sent} eof\n");
        assert!(said[1 - end].ends_with(&right), "{text}");
        let of = |name: &str| sums[end].get(name).copied().unwrap_or(0);
        assert!(of("joined") == 1 && of("ring_rx_bytes") > 0, "{text}");
    }
}
