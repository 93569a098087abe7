//! malloc and free beside glibc's and, where they are there, seven others.
//!
//! Each allocator is preloaded into the same programs: loops (`bench/c/alloc-loops.c`), three programs of the literature
//! (`bench/c/alloc-threads.c`), and real ones ([`programs`]). A pair of empty functions shows what a loop itself costs.
//! Interference only ever adds time, so a figure is the best of its rounds, shown with the worst.

mod atomics;
pub mod programs;
pub mod watched;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
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
/// Peers that are measured where they are installed, or built by `scripts/peers`: name, file.
const PEERS: [(&str, &str); 7] = [
    ("glibc", "libc.so.6"),
    ("jemalloc", "libjemalloc.so.2"),
    ("tcmalloc", "libtcmalloc_minimal.so.4"),
    ("mimalloc2", "libmimalloc2.so"),
    ("mimalloc3", "libmimalloc3.so"),
    ("snmalloc", "libsnmalloc.so"),
    ("rpmalloc", "librpmalloc.so"),
];
const EMPTY: &str = "empty";
const GLIBC: &str = "glibc";
const OURS: &str = "windlass";
const MIB: f64 = 1_048_576.0;
const KIB: f64 = 1024.0;
/// Programs that are compiled, each of one source.
const SOURCES: [&str; 3] = ["alloc-loops", "alloc-threads", "alloc-run"];

/// A group of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Loops over malloc and free, and handing over between two threads
    Loops,
    /// larson, alloc-test and xmalloc-test, written anew
    Threads,
    /// User time and peak memory of redis, gcc, python, perl and node
    Programs,
    /// What is kept of a freed gigabyte
    Kept,
    /// Atomic read-modify-writes of a forwarded frame and of a message through a channel
    Atomics,
    /// What samples and a reader beside it cost a program
    Watched,
}

/// What is run: its words, its bar, and the bar of its peak memory.
struct Case {
    part: Part,
    words: &'static str,
    bar: Bar,
    peak: Option<Bar>,
}

const fn case(part: Part, words: &'static str, bar: Bar, peak: Option<Bar>) -> Case {
    Case {
        part,
        words,
        bar,
        peak,
    }
}

const PEAK: Option<Bar> = Some(Bar::Glibc(1.15));
const CASES: [Case; 24] = [
    case(Part::Loops, "pairs 4", Bar::Small, None),
    case(Part::Loops, "pairs 64", Bar::Small, None),
    case(Part::Loops, "pairs 1024", Bar::Small, None),
    case(Part::Loops, "pairs 32768", Bar::Peer(1.0), None),
    case(Part::Loops, "pairs", Bar::Peer(1.03), None),
    case(Part::Loops, "replaced 1", Bar::Peer(1.03), None),
    case(Part::Loops, "replaced 2", Bar::Peer(1.15), None),
    case(Part::Loops, "handed 16", Bar::Peer(1.0), None),
    case(Part::Loops, "handed 64", Bar::Peer(1.0), None),
    case(Part::Loops, "read 64", Bar::Peer(1.1), None),
    case(Part::Loops, "handed 1024", Bar::Peer(1.15), None),
    case(Part::Loops, "read 1024", Bar::Shown, None),
    case(
        Part::Threads,
        "larson 1",
        Bar::Peer(1.05),
        Some(Bar::Peer(1.0)),
    ),
    case(
        Part::Threads,
        "larson 2",
        Bar::Peer(1.05),
        Some(Bar::Peer(1.0)),
    ),
    case(Part::Threads, "random 1", Bar::Peer(1.05), None),
    case(Part::Threads, "random 2", Bar::Peer(1.05), None),
    case(Part::Threads, "pool 1", Bar::Peer(1.25), None),
    case(Part::Threads, "pool 2", Bar::Peer(1.25), None),
    case(Part::Programs, "redis", Bar::Peer(1.03), PEAK),
    case(Part::Programs, "gcc", Bar::Peer(1.03), PEAK),
    case(Part::Programs, "python", Bar::Peer(1.03), PEAK),
    case(Part::Programs, "perl", Bar::Peer(1.07), PEAK),
    case(Part::Programs, "node", Bar::Peer(1.03), PEAK),
    case(Part::Kept, "kept", Bar::Kept, None),
];

/// Where a figure must be.
#[derive(Clone, Copy)]
enum Bar {
    /// At most 1.15 times a pair of empty functions, and at most 1.03 times the best peer.
    Small,
    /// At most so many times the best peer.
    Peer(f64),
    /// At most so many times glibc's.
    Glibc(f64),
    /// Bytes: 8 MiB and a sixteenth of the gigabyte that was freed, for magazines and tables.
    Kept,
    /// None.
    Shown,
}

/// The lowest figures of a row.
struct Lowest {
    ours: f64,
    empty: f64,
    glibc: f64,
    peer: f64,
}

impl Bar {
    fn is_met(self, lowest: &Lowest) -> Option<bool> {
        let Lowest {
            ours,
            empty,
            glibc,
            peer,
        } = *lowest;
        match self {
            Bar::Small => Some(ours <= 1.15 * empty && ours <= 1.03 * peer),
            Bar::Peer(times) => Some(ours <= times * peer),
            Bar::Glibc(times) => Some(ours <= times * glibc),
            Bar::Kept => Some(ours <= (8 + 64) as f64),
            Bar::Shown => None,
        }
    }
}

/// malloc and free in loops, between threads and in real programs, and what is kept of a freed gigabyte.
#[derive(Args, Debug)]
pub struct Options {
    /// How often each case is run with each allocator
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Which groups of cases; all if none is given
    #[arg(long, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Only cases that begin so
    #[arg(long, default_value = "")]
    only: String,
    /// Only these allocators beside ours, by name
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// One more library, such as another build of ours; it counts for no bar
    #[arg(long)]
    beside: Option<PathBuf>,
}

impl Options {
    fn is_chosen(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    fn cases(&self) -> impl Iterator<Item = &'static Case> {
        let is_chosen = |case: &&Case| self.is_chosen(case.part);
        CASES
            .iter()
            .filter(is_chosen)
            .filter(|case| case.words.starts_with(&self.only))
    }

    fn counts_atomics(&self) -> bool {
        self.is_chosen(Part::Atomics) && "atomics".starts_with(&self.only)
    }
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Shot {
    case: &'static str,
    subject: &'static str,
    /// Nanoseconds a pair; of programs seconds of user time; of `kept` MiB; of `atomics` how many for each piece of work.
    figure: f64,
    /// Resident memory at its peak, in MiB.
    peak: f64,
}

/// All of them.
#[derive(Debug, Serialize)]
struct Shots {
    shots: Vec<Shot>,
    watched: Vec<watched::Pair>,
}

/// An allocator, and what is preloaded for it.
struct Subject {
    name: &'static str,
    library: Option<PathBuf>,
}

const BESIDE: &str = "beside";

fn subjects(options: &Options, programs: &Path) -> Result<Vec<Subject>> {
    let ours = programs.join(LIBRARY);
    ensure!(ours.exists(), "{} is not built: make build", ours.display());
    let mut all = vec![Subject {
        name: EMPTY,
        library: None,
    }];
    let built = programs.join("../peers");
    for (name, file) in PEERS {
        if !options.peers.is_empty() && !options.peers.iter().any(|peer| peer == name) {
            continue;
        }
        let places = PLACES.iter().map(Path::new).chain([built.as_path()]);
        match places.map(|place| place.join(file)).find(|at| at.exists()) {
            Some(path) => all.push(Subject {
                name,
                library: Some(path),
            }),
            None => println!("skipped: {name}: there is no {file} (scripts/need bench)"),
        }
    }
    if let Some(library) = &options.beside {
        all.push(Subject {
            name: BESIDE,
            library: Some(library.clone()),
        });
    }
    all.push(Subject {
        name: OURS,
        library: Some(ours),
    });
    Ok(all)
}

/// A command that runs with what is preloaded for a subject.
fn runner(scratch: &Scratch, subject: &Subject) -> Command {
    let mut command = Command::new(scratch.join("alloc-run"));
    match &subject.library {
        Some(library) => command.arg(library),
        None => command.arg("-"),
    };
    command
}

/// What the runner says at last: seconds of user time, and MiB.
fn used(errors: &str) -> Result<(f64, f64)> {
    let line = errors.lines().last().unwrap_or_default();
    let (user, peak) = line.split_once(' ').context("no figures of the runner")?;
    Ok((user.parse()?, peak.parse::<f64>()? / KIB))
}

fn shoot(scratch: &Scratch, case: &Case, subject: &Subject) -> Result<(f64, f64)> {
    let mut command = runner(scratch, subject);
    let program = match case.part {
        Part::Programs if case.words == "redis" => return programs::redis(scratch, command),
        Part::Programs => {
            programs::command(scratch, case.words, &mut command)?;
            None
        }
        Part::Threads => Some("alloc-threads"),
        Part::Loops | Part::Kept | Part::Atomics | Part::Watched => Some("alloc-loops"),
    };
    if let Some(program) = program {
        command
            .arg(scratch.join(program))
            .args(case.words.split(' '));
    }
    if subject.name == EMPTY {
        command.env("EMPTY", "1");
    }
    let output = command.output().context("cannot run the runner")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} failed with {}: {errors}",
        case.words,
        subject.name
    );
    let (user, peak) = used(&errors)?;
    if program.is_none() {
        return Ok((user, peak));
    }
    let figure: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    let unit = if case.part == Part::Kept { MIB } else { 1.0 };
    Ok((figure / unit, peak))
}

/// Empty functions hand nothing over, and keep nothing.
fn is_possible(case: &Case, subject: &Subject) -> bool {
    let loops = ["pairs", "replaced"];
    subject.name != EMPTY || loops.iter().any(|word| case.words.starts_with(word))
}

/// Measures in turns, counts, and prints.
///
/// # Errors
/// If a program cannot be compiled or run, the library is missing, or the run was interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let (mut shots, mut watched) = (Vec::new(), Vec::new());
    if options.cases().next().is_some() || options.is_chosen(Part::Watched) {
        watched = measure(options, programs, &mut shots)?;
    }
    if options.counts_atomics() {
        atomics::run(programs, &mut shots)?;
    }
    write_json(json, &Shots { shots, watched })
}

fn measure(
    options: &Options,
    programs: &Path,
    shots: &mut Vec<Shot>,
) -> Result<Vec<watched::Pair>> {
    require(&[("cc", "gcc")])?;
    let scratch = Scratch::create()?;
    for name in SOURCES {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
        let program = scratch.join(name);
        let words = ["-O2", "-pthread", "-o"].map(Path::new);
        child::run("cc", words.into_iter().chain([&*program, &*source]))?;
    }
    let subjects = subjects(options, programs)?;
    for case in options.cases() {
        for _ in 0..options.rounds {
            for subject in subjects.iter().filter(|one| is_possible(case, one)) {
                stop::check()?;
                let (figure, peak) = shoot(&scratch, case, subject)?;
                shots.push(Shot {
                    case: case.words,
                    subject: subject.name,
                    figure,
                    peak,
                });
            }
        }
    }
    println!("{}", describe());
    println!(
        "ns for a pair (programs: seconds of user time; kept and peaks: MiB), lowest to highest of {} rounds; ratios of the lowest",
        options.rounds
    );
    if !shots.is_empty() {
        print(shots, &subjects, options.cases());
    }
    match options.is_chosen(Part::Watched) {
        true => watched::measure(&scratch, programs, options.rounds),
        false => Ok(Vec::new()),
    }
}

fn print<'a>(shots: &[Shot], subjects: &[Subject], cases: impl Iterator<Item = &'a Case>) {
    let names = subjects.iter().map(|subject| subject.name);
    let titles: Vec<_> = ["case"]
        .into_iter()
        .chain(names)
        .chain(["to empty", "to best peer", "bar"])
        .collect();
    let mut table = Table::new(&titles);
    for case in cases {
        let spread = |name: &str, figure: fn(&Shot) -> f64| {
            let of = shots.iter().filter(|shot| is_of(shot, case, name));
            Spread::of(of.map(figure))
        };
        let figures = |name: &str| spread(name, |shot| shot.figure);
        let peaks = |name: &str| spread(name, |shot| shot.peak);
        table.row(row(case.words.to_owned(), case.bar, subjects, figures));
        if let Some(bar) = case.peak {
            table.row(row(format!("{}, peak", case.words), bar, subjects, peaks));
        }
    }
    print!("{table}");
}

fn is_of(shot: &Shot, case: &Case, subject: &str) -> bool {
    shot.case == case.words && shot.subject == subject
}

fn row(
    title: String,
    bar: Bar,
    subjects: &[Subject],
    spread: impl Fn(&str) -> Option<Spread>,
) -> Vec<String> {
    let lowest = |name: &str| spread(name).map_or(f64::INFINITY, |spread| spread.low);
    let peers = subjects
        .iter()
        .map(|subject| subject.name)
        .filter(|name| ![EMPTY, OURS, BESIDE].contains(name));
    let lowest = Lowest {
        ours: lowest(OURS),
        empty: lowest(EMPTY),
        glibc: lowest(GLIBC),
        peer: peers.map(lowest).fold(f64::INFINITY, f64::min),
    };
    let digits = if lowest.ours < 1.0 { 3 } else { 1 };
    let mut row = vec![title];
    row.extend(subjects.iter().map(|subject| match spread(subject.name) {
        Some(Spread { low, high, .. }) => format!("{low:.digits$} to {high:.digits$}"),
        None => "-".to_owned(),
    }));
    let ratio = |other: f64| {
        if other.is_finite() {
            format!("{:.2}", lowest.ours / other)
        } else {
            "-".to_owned()
        }
    };
    row.extend([ratio(lowest.empty), ratio(lowest.peer)]);
    row.push(bar.is_met(&lowest).map_or("-", verdict).to_owned());
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small pair has two bars, and both must be met.
    #[test]
    fn bars() {
        let met = |bar: Bar, ours, empty, peer| {
            let glibc = 40.0;
            bar.is_met(&Lowest {
                ours,
                empty,
                glibc,
                peer,
            })
        };
        assert_eq!(met(Bar::Small, 6.0, 5.6, 5.9), Some(true));
        assert_eq!(met(Bar::Small, 6.5, 5.6, 6.5), Some(false));
        assert_eq!(met(Bar::Small, 6.0, 5.6, 5.5), Some(false));
        assert_eq!(met(Bar::Peer(1.0), 4.8, f64::INFINITY, 6.9), Some(true));
        assert_eq!(met(Bar::Glibc(1.15), 46.0, f64::INFINITY, 1.0), Some(true));
        assert_eq!(met(Bar::Glibc(1.15), 47.0, f64::INFINITY, 1.0), Some(false));
        assert_eq!(met(Bar::Kept, 100.0, f64::INFINITY, 900.0), Some(false));
        assert_eq!(met(Bar::Shown, 1.0, 1.0, 1.0), None);
    }

    /// What the runner writes last is read, whatever the program wrote before.
    #[test]
    fn figures_of_the_runner() {
        assert_eq!(used("a warning\n0.250000 2048\n").unwrap(), (0.25, 2.0));
        assert!(used("").is_err());
    }
}
