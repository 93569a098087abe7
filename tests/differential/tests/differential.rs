#![forbid(unsafe_code)]
//! The runner proved against the kernel itself and against libraries that are wrong, and the hand-written
//! scripts replayed.

use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_differential::{Failure, Options, Preload, compare, replay, scripts};

/// Every way in which `shim/broken.c` can be wrong.
const FAULTS: &[&str] = &[
    "swap", "double", "nosignal", "oob", "epipe", "lost", "peek", "waitall", "eof", "asleep",
    "eintr", "hup", "out", "edge", "dup", "linger", "setfl", "fionread", "number", "sndbuf",
    "error",
];

/// Most seeds that a fault may stay unseen.
const FAULT_SEEDS: u64 = 1000;

fn options() -> Options {
    Options::new(env!("CARGO_BIN_EXE_differential-actor"))
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Proves that the runner finds no difference between the kernel and the kernel: whatever it finds in
/// another subject is the subject's. Nothing had to be looked at twice more than once in a hundred scripts.
#[test]
fn the_kernel_is_like_itself() {
    const SEEDS: u64 = 200;
    let summary = compare(&Preload::None, 1..SEEDS + 1, &options())
        .unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary}");
    let tally = &summary.tally;
    assert_eq!((summary.seeds, tally.short_reads), (SEEDS, 0), "{summary}");
    assert!(tally.steps >= 25 * SEEDS, "{summary}");
    assert!(
        4 * tally.blocked + 4 >= SEEDS && tally.lags <= 2,
        "{summary}"
    );
}

/// Proves the same without messages that precede each script.
#[test]
fn the_kernel_is_like_itself_from_the_first_byte() {
    let options = Options {
        warm_up: false,
        ..options()
    };
    let summary =
        compare(&Preload::None, 1..51, &options).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.seeds, 50);
}

/// Proves that the runner sees what a wrong library does, in each of many ways to be wrong, and that one that
/// does nothing wrong is not blamed.
#[test]
fn broken_libraries_are_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = directory.path().join("broken.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &here("shim/broken.c")])
        .arg("-ldl")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: broken_libraries_are_found: no C compiler");
        return;
    }
    let preload = Preload::Library(library);
    let with = |fault: &str| {
        let environment = vec![("BROKEN".to_owned(), fault.to_owned())];
        let shrink = fault == "swap" || fault == "hup";
        compare(
            &preload,
            1..FAULT_SEEDS,
            &Options {
                environment,
                shrink,
                ..options()
            },
        )
    };
    for fault in FAULTS {
        match with(fault) {
            Err(Failure::Differs {
                seed,
                difference,
                again,
            }) => {
                println!(
                    "{fault}: seed {seed}, {again} of 3 times again, {} steps",
                    difference.at + 1
                );
                let short = difference.at < 24;
                assert!(
                    short || !["swap", "hup"].contains(fault),
                    "{fault} was not shrunk:\n{difference}"
                );
            }
            Err(failure) => panic!("{fault}: {failure}"),
            Ok(summary) => panic!("{fault} was not found: {summary}"),
        }
    }
    let harmless = Options {
        environment: vec![("BROKEN".to_owned(), "no".to_owned())],
        ..options()
    };
    let summary = compare(&preload, 1..31, &harmless).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.seeds, 30);
}

/// Proves that a run in which the library accelerated nothing fails, however well it compares.
#[test]
fn a_run_that_accelerates_nothing_fails() {
    let options = Options {
        accelerated_permille_min: 500,
        ..options()
    };
    let library = Preload::Library(PathBuf::from("/usr/lib/none-such.so"));
    let failure = compare(&library, 1..3, &options).err();
    assert!(
        matches!(failure, Some(Failure::NotAccelerated(_))),
        "{failure:?}"
    );
}

/// Proves that every hand-written script is one, and that the kernel is like itself in it.
#[test]
fn scripts_are_replayed() {
    let scripts = scripts(&here("scripts")).expect("scripts");
    assert!(scripts.len() >= 20, "{} scripts", scripts.len());
    for (name, script) in scripts {
        match replay(&Preload::None, &script, &options()) {
            Ok(tally) => assert_eq!(tally.skipped, 0, "{name}: steps were left out"),
            Err(broken) => panic!("{name}: {broken:?}"),
        }
    }
}
