//! Accelerated sockets, end to end: ordinary programs under `windlass run`, whose bytes depend on their place.
//!
//! Each test compiles `sockets/peer.c` and runs it at both ends; each asserts from the counters that the ring was used.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use windlass_tests::{program, skip};

/// Longest time that anything may take; nothing needs two seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Where the library lies, beside `windlass`.
const LIBRARY: &str = "libwindlass_sockets.so";

fn soaks() -> bool {
    std::env::var_os("WINDLASS_SOAK").is_some()
}

/// A directory for one test, the compiled program, and a daemon that is found by nobody else.
struct Place {
    directory: tempfile::TempDir,
    number: AtomicU32,
    /// Ends that the ring has served.
    rung: Arc<AtomicU32>,
}

impl Place {
    fn new(name: &str) -> Option<Place> {
        let windlass = program("windlass");
        if !windlass.with_file_name(LIBRARY).exists() {
            skip(name, "libwindlass_sockets.so was not built beside windlass");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(directory.path(), closed).expect("closed to others");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/peer.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O2", "-pthread", "-o"])
            .arg(directory.path().join("peer"))
            .arg(source);
        match compiler.status() {
            Ok(status) => assert!(status.success(), "peer.c does not compile"),
            Err(error) => {
                skip(name, &format!("cc: {error}"));
                return None;
            }
        }
        Some(Place {
            directory,
            number: AtomicU32::new(0),
            rung: Arc::default(),
        })
    }

    /// Starts both ends.
    fn connect(&self, how: &How<'_>) -> Pair {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory.path().join(number.to_string());
        fs::create_dir(&directory).expect("a directory");
        let ends = ["listen", "connect"].map(|role| {
            let log = File::create(directory.join(role)).expect("a log");
            let mut command = Command::new(program("windlass"));
            command
                .args(["run", "--spin", how.spin, "--"])
                .arg(self.directory.path().join("peer"));
            command.arg(role).arg(directory.join("port")).arg(how.way);
            command.args([how.bytes, how.chunk, how.window].map(|number| number.to_string()));
            command.env("XDG_RUNTIME_DIR", self.directory.path());
            command.env(
                "WINDLASS_COUNTERS",
                directory.join(format!("{role}.counters")),
            );
            command.envs(how.options.iter().copied());
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a log"))
                .stderr(log);
            command.process_group(0);
            command.spawn().expect("windlass")
        });
        Pair {
            directory,
            ends,
            told: format!("{how:?}"),
            rung: self.rung.clone(),
        }
    }
}

/// How both ends behave.
#[derive(Clone, Copy, Debug)]
struct How<'a> {
    way: &'a str,
    spin: &'a str,
    bytes: u64,
    chunk: u64,
    window: u64,
    options: &'a [(&'a str, &'a str)],
}

/// The ways of waiting; `fork` has a process for each direction.
const WAYS: [&str; 7] = [
    "block", "poll", "select", "level", "edge", "oneshot", "fork",
];
/// Without poll and select, which may sleep beside a full ring.
const SURE: [&str; 5] = ["block", "level", "edge", "oneshot", "fork"];
const HOW: How<'static> = How {
    way: "block",
    spin: "0",
    bytes: 2_000_000,
    chunk: 4096,
    window: 16_384,
    options: &[],
};

/// Both ends of one connection.
struct Pair {
    directory: PathBuf,
    ends: [Child; 2],
    told: String,
    /// Ends that the ring has served, of the whole place.
    rung: Arc<AtomicU32>,
}

impl Pair {
    fn said(&self, end: usize) -> String {
        fs::read_to_string(self.directory.join(["listen", "connect"][end])).unwrap_or_default()
    }

    /// What both processes have counted, in sums.
    fn counted(&self, end: usize) -> BTreeMap<String, u64> {
        let role = ["listen", "connect"][end];
        let text =
            fs::read_to_string(self.directory.join(format!("{role}.counters"))).unwrap_or_default();
        let mut sums = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().expect("a number");
        }
        sums
    }

    /// What happened, for a failure.
    fn both(&self) -> String {
        let of = |end| format!("{:?} {:?}", self.said(end), self.counted(end));
        format!("{}: {}; {}", self.told, of(0), of(1))
    }

    fn signal(&self, end: usize, signal: Signal) {
        kill_process_group(Pid::from_child(&self.ends[end]), signal).expect("an own child");
    }

    /// Waits until both ends have exchanged some messages.
    fn warm(&mut self) {
        self.until("the first messages", |pair| {
            (0..2).all(|end| pair.said(end).lines().any(|line| line == "warm"))
        });
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            let said = [self.said(0), self.said(1)];
            assert!(
                begin.elapsed() < PATIENCE,
                "{what} did not come: {} {said:?}",
                self.told
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end of one program, which must have succeeded; gives what it said.
    fn wait(&mut self, end: usize) -> String {
        self.until("the end of a program", |pair| {
            pair.ends[end].try_wait().expect("a child").is_some()
        });
        let status = self.ends[end].wait().expect("a child");
        let said = self.said(end);
        assert!(
            status.success(),
            "{}: {status}: {said} (the other: {})",
            self.told,
            self.said(1 - end)
        );
        said
    }

    /// Both got everything, and the ring carried a part of it.
    fn finish(mut self, bytes: u64) {
        for end in 0..2 {
            let said = self.wait(end);
            let right = said.contains(&format!("sent {bytes}\n"))
                && said.contains(&format!("got {bytes} eof\n"));
            assert!(right, "{}", self.both());
        }
        for end in 0..2 {
            let counted = self.counted(end);
            let of = |name: &str| counted.get(name).copied().unwrap_or(0);
            self.rung.fetch_add(
                u32::from(of("joined") > 0 && of("ring_tx_bytes") + of("ring_rx_bytes") > 0),
                Ordering::Relaxed,
            );
        }
    }
}

impl Place {
    /// Fails unless the ring has served at least half of the ends: a join needs the daemon's answer, which a busy
    /// machine may delay beyond the end of a short stream.
    fn assert_rung(&self) {
        let pairs = self.number.load(Ordering::Relaxed);
        let rung = self.rung.load(Ordering::Relaxed);
        assert!(
            rung >= pairs,
            "the ring served {rung} of {} ends",
            2 * pairs
        );
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for end in &mut self.ends {
            let _ = kill_process_group(Pid::from_child(end), Signal::KILL);
            let _ = end.wait();
        }
    }
}

/// Random numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % limit
    }
}

fn seed() -> Random {
    let seed = std::process::id().into();
    println!("seed {seed}");
    Random(seed)
}

/// Full streams both ways are right, byte for byte, by every way of waiting, asleep and spinning, with small and large
/// amounts on the way.
#[test]
fn streams_are_right_by_every_way_of_waiting() {
    let Some(place) = Place::new("streams_are_right_by_every_way_of_waiting") else {
        return;
    };
    let bytes = if soaks() { 100_000_000 } else { HOW.bytes };
    for way in SURE {
        for (spin, chunk, window) in [
            ("0", 4096, 16_384),
            ("50", 4096, 16_384),
            ("50", 100_000, 0),
        ] {
            place
                .connect(&How {
                    way,
                    spin,
                    bytes,
                    chunk,
                    window,
                    ..HOW
                })
                .finish(bytes);
        }
    }
    place.assert_rung();
}

/// Unread bytes forced back into the kernel at random calls of both ends: none is lost, none comes twice.
#[test]
fn forced_reclaims_lose_nothing() {
    let Some(place) = Place::new("forced_reclaims_lose_nothing") else {
        return;
    };
    let mut random = seed();
    for _ in 0..if soaks() { 50 } else { 1 } {
        for way in SURE {
            let value = format!("100,{}", random.below(1 << 30));
            let options = [("WINDLASS_RECLAIM", value.as_str())];
            place
                .connect(&How {
                    way,
                    spin: "50",
                    options: &options,
                    ..HOW
                })
                .finish(HOW.bytes);
        }
    }
    place.assert_rung();
}

/// A hundredth of the calls goes straight to the kernel: what comes is right, and both ends get to their end.
#[test]
fn bypassed_calls_are_slow_at_most() {
    let Some(place) = Place::new("bypassed_calls_are_slow_at_most") else {
        return;
    };
    let mut random = seed();
    for _ in 0..if soaks() { 50 } else { 1 } {
        for way in WAYS {
            let value = format!("10,{}", random.below(1 << 30));
            let options = [("WINDLASS_BYPASS", value.as_str())];
            place
                .connect(&How {
                    way,
                    options: &options,
                    ..HOW
                })
                .finish(HOW.bytes);
        }
    }
    place.assert_rung();
}

/// A reader that makes bare system calls, which the library does not see, gets every byte in order.
#[test]
fn a_reader_outside_libc_is_served() {
    let Some(place) = Place::new("a_reader_outside_libc_is_served") else {
        return;
    };
    for spin in ["0", "50"] {
        place
            .connect(&How {
                way: "bare",
                spin,
                ..HOW
            })
            .finish(HOW.bytes);
    }
    place.assert_rung();
}

/// Either end stopped and continued at random instants: the streams go on, and are right.
#[test]
fn stopped_processes_go_on() {
    let Some(place) = Place::new("stopped_processes_go_on") else {
        return;
    };
    let mut random = seed();
    for round in 0..if soaks() { 100 } else { 7 } {
        let mut pair = place.connect(&How {
            way: WAYS[round % WAYS.len()],
            spin: "50",
            ..HOW
        });
        pair.warm();
        for _ in 0..6 {
            let end = random.below(2) as usize;
            std::thread::sleep(Duration::from_micros(random.below(10_000)));
            pair.signal(end, Signal::STOP);
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            pair.signal(end, Signal::CONT);
        }
        pair.finish(HOW.bytes);
    }
    place.assert_rung();
}

/// Either end killed at a random instant: the other sees a correct prefix, then the end of the stream or a reset.
#[test]
fn a_killed_process_leaves_a_prefix_and_an_end() {
    let Some(place) = Place::new("a_killed_process_leaves_a_prefix_and_an_end") else {
        return;
    };
    let mut random = seed();
    let mut ends = BTreeMap::new();
    for round in 0..if soaks() { 1_000 } else { 42 } {
        let (way, spin) = (
            WAYS[round % WAYS.len()],
            ["0", "50"][round / WAYS.len() % 2],
        );
        let mut pair = place.connect(&How {
            way,
            spin,
            bytes: 0,
            ..HOW
        });
        pair.warm();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let victim = random.below(2) as usize;
        pair.signal(victim, Signal::KILL);
        let said = pair.wait(1 - victim);
        let got = said
            .lines()
            .find_map(|line| line.strip_prefix("got "))
            .expect("an end");
        let (_, end) = got.split_once(' ').expect("an end");
        assert!(matches!(end, "eof" | "reset"), "{way}, spin {spin}: {said}");
        *ends.entry(end.to_owned()).or_insert(0) += 1;
    }
    println!("{ends:?}");
}
