//! malloc and free beside glibc's and, where they are installed, jemalloc and tcmalloc.
//!
//! The program is `bench/c/alloc-loops.c`; each allocator is preloaded into it. A pair of empty functions shows what the loop itself costs.
//! Interference only ever adds time, so a figure is the best of its rounds, shown with the worst.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::child;
use super::host::{Scratch, describe, require};
use super::stop;
use super::table::{Spread, Table, verdict, write_json};

/// File name of the library that is measured.
const LIBRARY: &str = "libwindlass_alloc.so";
/// Where Debian puts libraries of its packages.
const PLACES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
];
/// Peers that are measured where they are installed: name, file.
const PEERS: [(&str, &str); 2] = [
    ("jemalloc", "libjemalloc.so.2"),
    ("tcmalloc", "libtcmalloc_minimal.so.4"),
];
const EMPTY: &str = "empty";
const OURS: &str = "windlass";
const MIB: f64 = 1_048_576.0;

/// What is measured: words for the program, and the bar.
const CASES: [(&str, Bar); 13] = [
    ("pairs 4", Bar::Small),
    ("pairs 64", Bar::Small),
    ("pairs 1024", Bar::Small),
    ("pairs 32768", Bar::Peer(1.0)),
    ("pairs", Bar::Peer(1.03)),
    ("replaced 1", Bar::Peer(1.03)),
    ("replaced 2", Bar::Peer(1.15)),
    ("handed 16", Bar::Peer(1.0)),
    ("handed 64", Bar::Peer(1.0)),
    ("read 64", Bar::Peer(1.1)),
    ("handed 1024", Bar::Peer(1.15)),
    ("read 1024", Bar::Shown),
    ("kept", Bar::Kept),
];

/// Where a figure must be.
#[derive(Clone, Copy)]
enum Bar {
    /// At most 1.15 times a pair of empty functions, and at most 1.03 times the best peer.
    Small,
    /// At most so many times the best peer.
    Peer(f64),
    /// Bytes: 8 MiB and a sixteenth of the gigabyte that was freed, for magazines and tables.
    Kept,
    /// None.
    Shown,
}

impl Bar {
    fn is_met(self, ours: f64, empty: f64, peer: f64) -> Option<bool> {
        match self {
            Bar::Small => Some(ours <= 1.15 * empty && ours <= 1.03 * peer),
            Bar::Peer(times) => Some(ours <= times * peer),
            Bar::Kept => Some(ours <= (8 + 64) as f64),
            Bar::Shown => None,
        }
    }
}

/// Loops over malloc and free, handing over between threads, and what is kept of a freed gigabyte.
#[derive(Args, Debug)]
pub struct Options {
    /// How often each case is run with each allocator
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only cases that begin so
    #[arg(long, default_value = "")]
    only: String,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Shot {
    case: &'static str,
    subject: &'static str,
    /// Nanoseconds a pair; of `kept` MiB.
    figure: f64,
}

/// An allocator, and what is preloaded for it.
struct Subject {
    name: &'static str,
    library: Option<PathBuf>,
}

fn subjects(programs: &Path) -> Result<Vec<Subject>> {
    let ours = programs.join(LIBRARY);
    ensure!(ours.exists(), "{} is not built: make build", ours.display());
    let plain = |name| Subject {
        name,
        library: None,
    };
    let mut all = vec![plain(EMPTY), plain("glibc")];
    for (name, file) in PEERS {
        let places = PLACES.iter().map(|place| Path::new(place).join(file));
        match places.into_iter().find(|path| path.exists()) {
            Some(path) => all.push(Subject {
                name,
                library: Some(path),
            }),
            None => println!("skipped: {name}: there is no {file}"),
        }
    }
    all.push(Subject {
        name: OURS,
        library: Some(ours),
    });
    Ok(all)
}

fn shoot(program: &Path, case: &str, subject: &Subject) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(case.split(' '));
    if let Some(library) = &subject.library {
        command.env("LD_PRELOAD", library);
    }
    if subject.name == EMPTY {
        command.env("EMPTY", "1");
    }
    let output = command.output().context("cannot run the loops")?;
    ensure!(
        output.status.success(),
        "{case} failed with {}",
        subject.name
    );
    let figure: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok(if case == "kept" { figure / MIB } else { figure })
}

/// Measures in turns and prints.
///
/// # Errors
/// If the program cannot be compiled or run, the library is missing, or the run was interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[("cc", "gcc")])?;
    let scratch = Scratch::create()?;
    let program = scratch.join("alloc-loops");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/alloc-loops.c");
    let words = [
        Path::new("-O2"),
        Path::new("-pthread"),
        Path::new("-o"),
        &program,
        &source,
    ];
    child::run("cc", words)?;
    let subjects = subjects(programs)?;
    let cases = || {
        CASES
            .iter()
            .filter(|(case, _)| case.starts_with(&options.only))
    };
    let mut shots = Vec::new();
    for &(case, _) in cases() {
        for _ in 0..options.rounds {
            for subject in &subjects {
                // Empty functions hand nothing over, and keep nothing.
                if subject.name == EMPTY
                    && ["handed", "read", "kept"]
                        .iter()
                        .any(|word| case.starts_with(word))
                {
                    continue;
                }
                stop::check()?;
                shots.push(Shot {
                    case,
                    subject: subject.name,
                    figure: shoot(&program, case, subject)?,
                });
            }
        }
    }
    println!("{}", describe());
    println!(
        "ns for a pair (kept: MiB), lowest to highest of {} rounds; ratios of the lowest",
        options.rounds
    );
    print(&shots, &subjects, cases());
    write_json(json, &shots)
}

fn print<'a>(
    shots: &[Shot],
    subjects: &[Subject],
    cases: impl Iterator<Item = &'a (&'static str, Bar)>,
) {
    let names = subjects.iter().map(|subject| subject.name);
    let titles: Vec<_> = ["case"]
        .into_iter()
        .chain(names)
        .chain(["to empty", "to best peer", "bar"])
        .collect();
    let mut table = Table::new(&titles);
    for &(case, bar) in cases {
        let spread = |name: &str| {
            let of = shots
                .iter()
                .filter(|shot| shot.case == case && shot.subject == name);
            Spread::of(of.map(|shot| shot.figure))
        };
        let lowest = |name: &str| spread(name).map_or(f64::INFINITY, |spread| spread.low);
        let mut row = vec![case.to_owned()];
        row.extend(subjects.iter().map(|subject| match spread(subject.name) {
            Some(spread) => format!("{:.1} to {:.1}", spread.low, spread.high),
            None => "-".to_owned(),
        }));
        let peers = subjects
            .iter()
            .map(|subject| subject.name)
            .filter(|name| ![EMPTY, OURS].contains(name));
        let peer = peers.map(lowest).fold(f64::INFINITY, f64::min);
        let (ours, empty) = (lowest(OURS), lowest(EMPTY));
        let ratio = |other: f64| {
            if other.is_finite() {
                format!("{:.2}", ours / other)
            } else {
                "-".to_owned()
            }
        };
        row.extend([ratio(empty), ratio(peer)]);
        row.push(
            bar.is_met(ours, empty, peer)
                .map_or("-", verdict)
                .to_owned(),
        );
        table.row(row);
    }
    print!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small pair has two bars, and both must be met.
    #[test]
    fn bars() {
        assert_eq!(Bar::Small.is_met(6.0, 5.6, 5.9), Some(true));
        assert_eq!(Bar::Small.is_met(6.5, 5.6, 6.5), Some(false));
        assert_eq!(Bar::Small.is_met(6.0, 5.6, 5.5), Some(false));
        assert_eq!(Bar::Peer(1.0).is_met(4.8, f64::INFINITY, 6.9), Some(true));
        assert_eq!(Bar::Kept.is_met(100.0, f64::INFINITY, 900.0), Some(false));
        assert_eq!(Bar::Shown.is_met(1.0, 1.0, 1.0), None);
    }
}
