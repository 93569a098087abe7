//! Changes by `epoll_ctl` that the library keeps to itself: whoever else can see the instance finds what the kernel would have
//! shown. `sockets/interest.c` makes the same random calls on the kernel's sockets and under `windlass run`, and its
//! lines are compared.

#[path = "sockets/place.rs"]
mod place;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use place::{One, PATIENCE, Place, soaks};
use windlass_tests::program;

/// How a run ends: who looks at the instance after random changes that the kernel may not know of.
const LAST: [&str; 8] = [
    "none", "fork", "thread", "poll", "nest", "exec", "signal", "vfork",
];
/// Seeds of each ending.
const SEEDS: u64 = 2;
const SEEDS_SOAK: u64 = 100;

/// The lines of a run, and how many changes the library kept in it.
fn run(place: &Place, is_accelerated: bool, seed: u64, last: &str) -> (String, u64) {
    let directory = place.room();
    let binary = place.directory.path().join("interest");
    let start = |role: &str, words: &[&str]| {
        let said = File::create(directory.join(role)).expect("a log");
        let mut command = if is_accelerated {
            let mut command = Command::new(program("windlass"));
            command
                .args(["run", "--spin", "50", "--"])
                .arg(&binary)
                .env("WINDLASS_SOCKETS", place.daemon())
                .env("WINDLASS_COUNTERS", directory.join("counters"));
            command
        } else {
            Command::new(&binary)
        };
        command.arg(role).args(words).stdin(Stdio::null());
        command
            .stderr(said.try_clone().expect("a log"))
            .stdout(said);
        One(command.spawn().expect("the program"))
    };
    let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
    let server = start("serve", &["0"]);
    let started = Instant::now();
    while !said("serve").ends_with('\n') {
        assert!(started.elapsed() < PATIENCE, "the server does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
    let port = said("serve").trim_start_matches("ready ").trim().to_owned();
    let ended = start("act", &[&port, &seed.to_string(), last]).end();
    assert!(ended, "{last} {seed}: {}", said("act"));
    drop(server);
    (said("act"), kept(&directory.join("counters")))
}

fn kept(counters: &Path) -> u64 {
    let text = fs::read_to_string(counters).unwrap_or_default();
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix("epoll_changes_kept "));
    values.filter_map(|value| value.parse::<u64>().ok()).sum()
}

/// Random changes of interest give the same results and the same readiness as on the kernel, whoever looks at the end: a child, a
/// thread, `poll`, an outer instance, another program, a handler.
#[test]
fn kept_changes_are_seen_by_nobody() {
    let Some(place) = Place::new("kept_changes_are_seen_by_nobody") else {
        return;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/interest.c");
    let mut compiler = Command::new("cc");
    let compiler = compiler
        .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(place.directory.path().join("interest"))
        .arg(source);
    let compiled = compiler.status().is_ok_and(|status| status.success());
    assert!(compiled, "interest.c does not compile");
    let mut total = 0;
    for last in LAST {
        for seed in 1..=if soaks() { SEEDS_SOAK } else { SEEDS } {
            let (bare, none) = run(&place, false, seed, last);
            let (ours, kept) = run(&place, true, seed, last);
            assert_eq!(none, 0, "the kernel's own");
            total += kept;
            assert_eq!(ours, bare, "ending {last}, seed {seed}");
        }
    }
    assert!(total > 0, "no change was kept");
}
