#![forbid(unsafe_code)]
//! The library compared with the kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use windlass_differential::{
    Broken, COUNTER_JOINED, Failure, Options, Preload, compare, replay, scripts,
};

/// Seeds whose scripts still differ, and how: a defect each, found by this very runner. None of them is a byte lost or out of
/// order between two processes that live.
const OPEN: &[(u64, &str)] = &[
    (
        561,
        "bytes of a killed peer that are unread in the ring are lost at an exec",
    ),
    (
        1569,
        "a receive that sleeps within 10 ms of a send says EAGAIN if another thread makes the socket non-blocking meanwhile",
    ),
];

/// Seeds that are tried; ten times as many with WINDLASS_SOAK=1.
const SEEDS: u64 = 2_000;

/// Scripts at a time: they sleep most of the time.
const JOBS: usize = 6;

/// Seeds between two calls that keep a daemon there, which ends a minute after its last process.
const AT_ONCE: u64 = 200;

/// Where the programs are that were built, and how scripts are compared with the library that is there.
fn subject(name: &str) -> Option<(PathBuf, Preload, Options)> {
    let Some(directory) = std::env::var_os("WINDLASS_BIN_DIR").map(PathBuf::from) else {
        println!("skipped: {name}: WINDLASS_BIN_DIR names no built programs");
        return None;
    };
    let preload = Preload::Library(directory.join("libwindlass_sockets.so"));
    let options = Options {
        jobs: JOBS,
        shrink: false,
        accelerated_permille_min: 500,
        ..Options::new(env!("CARGO_BIN_EXE_differential-actor"))
    };
    Some((directory.join("windlass"), preload, options))
}

/// Proves that programs see from sockets that bypass the kernel what they see from the kernel's own, in random sequences of
/// calls, and that most of the connections did bypass it. A script counts as different if it differs each time that it is
/// repeated: two threads that read at once may each get what the other got before, on the kernel too.
#[test]
fn accelerated_sockets_are_like_the_kernels() {
    let Some((windlass, preload, options)) = subject("accelerated_sockets_are_like_the_kernels")
    else {
        return;
    };
    let is_long = std::env::var_os("WINDLASS_SOAK").is_some_and(|value| value == "1");
    let end = if is_long { 10 * SEEDS } else { SEEDS } + 1;
    let mut from = 1;
    while from < end {
        keep_daemon(&windlass);
        let known = OPEN
            .iter()
            .map(|(seed, _)| *seed)
            .find(|seed| *seed >= from);
        let until = (from + AT_ONCE).min(end).min(known.unwrap_or(end));
        if from == until {
            from += 1;
            continue;
        }
        match compare(&preload, from..until, &options) {
            Ok(summary) => {
                println!("{summary}");
                from = until;
            }
            Err(Failure::Differs {
                seed,
                again,
                difference,
            }) if again < 3 => {
                println!("seed {seed} differed, and {again} of 3 times again: {difference}");
                from = seed + 1;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    for (seed, what) in OPEN {
        println!("open: seed {seed}: {what}");
    }
}

/// Proves the same of every hand-written script, each a case in which something was wrong once or easily is.
#[test]
fn scripts_are_the_same_accelerated() {
    let Some((windlass, preload, options)) = subject("scripts_are_the_same_accelerated") else {
        return;
    };
    keep_daemon(&windlass);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let scripts = scripts(&directory).expect("scripts");
    let (mut joined, mut differ) = (0, Vec::new());
    for (name, script) in &scripts {
        let mut run = replay(&preload, script, &options);
        for _ in 0..3 {
            if run.is_err() {
                run = replay(&preload, script, &options);
            }
        }
        match run {
            Ok(tally) => joined += tally.counters.get(COUNTER_JOINED).copied().unwrap_or(0),
            Err(Broken::Differs(difference)) => differ.push(format!("{name}:\n{difference}")),
            Err(other) => panic!("{name}: {other:?}"),
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(
        joined > scripts.len() as u64,
        "{joined} sockets joined in {} scripts",
        scripts.len()
    );
}

/// Has `windlass run` see to it that a daemon is there.
fn keep_daemon(windlass: &PathBuf) {
    let ran = Command::new(windlass)
        .args(["run", "--", "true"])
        .stdin(Stdio::null())
        .status();
    assert!(ran.expect("windlass starts").success());
}
