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

const BYTES: u64 = 20_000_000;
/// How often it is tried until the ring has served both ends: whether a reader is awake is up to the machine.
const TRIES: u32 = 10;

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
        let mut told = String::new();
        let is_served = (0..TRIES).any(|_| {
            let (is_joined, is_rung, text) = run(&place, threads, spin);
            told += &text;
            // Without a spin the readers of a busy machine sleep before the ring may be used.
            is_joined && (is_rung || spin == "0")
        });
        println!("{threads} threads, spin {spin}: {told}");
        assert!(is_served, "{threads} threads, spin {spin}: {told}");
    }
}

/// One connection; whether both ends have joined, and both have received bytes by the ring.
fn run(place: &Place, threads: u64, spin: &str) -> (bool, bool, String) {
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
    let is_done = both.end();
    let said = roles.map(|role| fs::read_to_string(directory.join(role)).unwrap_or_default());
    let sums = roles.map(|role| counted(&counters(role)));
    let text = format!("{said:?} {sums:?}\n");
    assert!(is_done, "{text}");
    let right = format!("got {} eof\n", threads * BYTES);
    assert!(said.iter().all(|said| *said == right), "{text}");
    let has = |name: &str| {
        sums.iter()
            .all(|sums| sums.get(name).is_some_and(|n| *n > 0))
    };
    (has("joined"), has("ring_rx_bytes"), text)
}
