//! The test suites of CPython and redis under the allocator: what passes without `libwindlass_alloc.so` passes with it.
//!
//! Each part of a suite runs once with the library. A part that fails is run without: it counts unless it fails there as well.

mod running;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use running::{find, soaks, suite};
use windlass_tests::{program, skip};

/// Seconds that a part may take.
const PART_SECONDS: &str = "600";
/// How often a part that failed has to pass without the library.
const PLAIN_RUNS: usize = 3;

/// What is preloaded; `None`, said aloud, where it was not built.
fn library(test: &str) -> Option<PathBuf> {
    let library = program("windlass").with_file_name("libwindlass_alloc.so");
    if library.exists() {
        return Some(library);
    }
    skip(test, "libwindlass_alloc.so was not built beside windlass");
    None
}

/// Runs each part of a suite; `start` makes its command, which ends with success if the part passes.
fn compare(test: &str, parts: &[String], start: impl Fn(&str) -> Command) {
    let Some(library) = library(test) else {
        return;
    };
    let passes = |part: &str, is_ours: bool| {
        let mut command = start(part);
        if is_ours {
            command.env("LD_PRELOAD", &library);
        }
        let done = command.stdin(Stdio::null()).output().expect("it starts");
        let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.success(), told)
    };
    let (mut wrong, mut unusable) = (Vec::new(), Vec::new());
    for part in parts {
        let (is_good, told) = passes(part, true);
        if is_good {
            continue;
        }
        if (0..PLAIN_RUNS).all(|_| passes(part, false).0) {
            let lines: Vec<_> = told.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            wrong.push(format!("{part}:\n{}", tail.join("\n")));
        } else {
            unusable.push(part.as_str());
        }
    }
    println!(
        "{test}: {} parts, fail without it too: {unusable:?}",
        parts.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(unusable.len() * 10 < parts.len(), "{unusable:?}");
}

/// A directory of the test's own, empty.
fn scratch(test: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).expect("a directory");
    place
}

/// The whole suite of CPython, each object from malloc.
#[test]
fn pythons_whole_suite_passes() {
    let test = "pythons_whole_suite_passes";
    if !soaks(test) {
        return;
    }
    let Some(python) = find("python3") else {
        return skip(test, "python3 is missing");
    };
    let listed = Command::new(&python)
        .args(["-m", "test", "--list-tests"])
        .output()
        .expect("python3 starts");
    let text = String::from_utf8_lossy(&listed.stdout);
    let parts: Vec<_> = text.lines().map(str::to_owned).collect();
    if parts.len() < 300 {
        return skip(test, "python3 has no test-suite (libpython3-testsuite)");
    }
    let place = scratch(test);
    compare(test, &parts, |part| {
        let mut command = Command::new("timeout");
        command.arg(PART_SECONDS).arg(&python);
        command.args(["-m", "test", "-q", part]);
        // Its environment preloads the library into programs that the tests start, too.
        command.env("PYTHONMALLOC", "malloc").current_dir(&place);
        command
    });
}

/// redis' own tests, with every program of them under the library.
#[test]
fn rediss_own_tests_pass_under_it() {
    let test = "rediss_own_tests_pass_under_it";
    let Some(sources) = suite(test, "redis") else {
        return;
    };
    if find("tclsh").is_none() {
        return skip(test, "tclsh is missing");
    }
    let place = scratch(test).join("redis");
    let mut copy = Command::new("cp");
    copy.arg("-rL").arg(sources).arg(&place);
    assert!(copy.status().expect("cp starts").success());
    let parts: Vec<_> = running::REDIS
        .iter()
        .map(|part| (*part).to_owned())
        .collect();
    compare(test, &parts, |part| {
        let mut command = Command::new("timeout");
        command.args([PART_SECONDS, "tclsh", "tests/test_helper.tcl"]);
        command.args([
            "--clients",
            "1",
            "--tags",
            "-slow -needs:debug",
            "--single",
            part,
        ]);
        command.current_dir(&place);
        command
    });
}
