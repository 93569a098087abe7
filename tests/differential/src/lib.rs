#![forbid(unsafe_code)]
//! # The differential runner: the same calls on bare kernel sockets and on the subject
//!
//! ## Purpose
//! A program under a preloaded socket library must see what it would have seen without. So random scripts
//! of socket calls are run twice at once, step by step: by processes that use the kernel alone, and by
//! processes with the library. Every value, errno, byte, event and signal is compared. What differs is
//! shrunk to a short script that a person can read and replay.
//!
//! ## Where it sits
//! ```text
//!            script (scripts/*.txt, or generate(seed))
//!                 |  one step at a time
//!        +--------+---------+
//!        v                  v
//!   World "kernel"     World "subject" (LD_PRELOAD)
//!    A   B   (C)         A   B   (C)        differential-actor: 3 workers and one that takes commands
//!        |                  |
//!        +----> normal <----+  --differ--> look again --differ--> shrink --> text
//! ```
//!
//! ## Model
//! A [`Step`] names a process, a thread and a call. Both worlds get it at the same time; then both are
//! brought to a **quiet point**: each thread answered or sleeps in its call ([`World::until_quiet`]), and the loopback interface has
//! delivered what was sent (module `loopback`). The kernel's world is asked first; the other then has [`PATIENCE`] to complete what the kernel completed, and
//! must sleep where the kernel sleeps. A step for a thread that is still in a call is left out in both, so
//! every subset of a script is a script, and shrinking needs no knowledge.
//!
//! ## What may differ, and why
//! * **Ports, addresses, process ids, abstract names**: the kernel chooses, or they are made different so that
//!   the worlds do not meet. Ports are compared by the order in which they appear.
//! * **How much a filled socket takes** (`fill`): buffers tune themselves. What was taken must come out
//!   again whole and right (`drain`). Generated scripts keep less than 30 KB unread otherwise, so that
//!   TCP's first window (64 KB) holds all of it and the kernel itself is exact.
//! * **SIOCOUTQ**: counts unacknowledged bytes, and acknowledgements are delayed. Only success is compared.
//! * **FIONREAD** from 32 KB on: bytes may still be on the sending side.
//! * **SO_SNDBUF, SO_RCVBUF** until set by the program: they tune themselves. After that they are compared.
//! * **What the library may answer otherwise**: rules, each with its check and its reason, in the module `rules`. Events that are
//!   there too early and bytes that differ are no rule's.
//! * **Order of epoll's events**: sorted by label; scripts always ask for more than there are.
//! * **TCP without NODELAY**: a second small message may wait 40 ms for an acknowledgement. Generated
//!   scripts set NODELAY first; corked and MSG_MORE bytes are read only after they were let go.
//!
//! ## Ownership and lifetime
//! Each script has fresh processes; they end with their [`World`], by `exit` where counters are wanted, else
//! by SIGKILL. Each world has its own address in 127/8.
//!
//! ## What it shows
//! Seeds, the shrunk script, both answers, a [`Tally`]; for a library that writes `name value` lines to
//! `$WINDLASS_COUNTERS` at exit, the share of TCP connections that were accelerated
//! ([`Summary::accelerated_permille`]), so that a run in which nothing was accelerated fails.
//!
//! ## Limits
//! Three processes, three workers each. Steps of a generated script whose result is nobody's promise are left out: two threads
//! that take or give at once on one file (module `files`), and what interrupts a call that alone keeps its file open.

mod compare;
mod files;
mod generate;
mod loopback;
mod model;
mod rules;
mod script;
mod shrink;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use compare::{Broken, Difference, PATIENCE, Tally};
pub use generate::generate;
pub use model::Kind;
pub use script::{NotAStep, PROCESS_VERBS, Step, VERBS, Who, parse, print};
pub use shrink::shrink;
pub use world::{Launch, Replies, Reply, World};

/// Counter of a preloaded library: sockets whose connection was joined to a channel.
pub const COUNTER_JOINED: &str = "joined";

/// Counters of a preloaded library: bytes that were sent past the kernel, and through it.
const COUNTER_RING: &str = "ring_tx_bytes";
const COUNTER_KERNEL: &str = "kernel_tx_bytes";

/// Counter of a preloaded library: connected sockets that it saw.
pub const COUNTER_CONNECTED: &str = "connected";

/// While a script is run again or shrunk, a call that does not complete is given up after this long.
const PATIENCE_SHRINKING: Duration = Duration::from_millis(600);

/// What the subject has that the kernel's world has not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preload {
    /// Nothing: kernel against kernel, which proves the runner.
    None,
    /// A library, by LD_PRELOAD.
    Library(PathBuf),
}

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program `differential-actor`.
    pub actor: PathBuf,
    /// Scripts at a time.
    pub jobs: usize,
    /// Further environment of all processes.
    pub environment: Vec<(String, String)>,
    /// Share of calls that the library lets go straight to the kernel, in thousandths (WINDLASS_BYPASS).
    pub bypass_permille: u32,
    /// Share of calls that the actors make by bare system calls, those that write excepted, and share of sockets on which they
    /// make all so, in thousandths.
    pub raw_permille: [u32; 2],
    /// Exchange three messages on each connection before the script goes on, so that it is promoted.
    pub warm_up: bool,
    /// What every connection of the scripts is; mixed if none is said.
    pub kind: Option<Kind>,
    /// A whole run fails in which a smaller share of connected sockets was accelerated, in thousandths.
    pub accelerated_permille_min: u64,
    /// Shrink what differs.
    pub shrink: bool,
    /// Print every answer.
    pub trace: bool,
}

impl Options {
    /// Two scripts at a time, warmed up, everything seen by the library.
    pub fn new(actor: impl Into<PathBuf>) -> Self {
        Self {
            actor: actor.into(),
            jobs: 2,
            environment: Vec::new(),
            bypass_permille: 0,
            raw_permille: [0; 2],
            warm_up: true,
            kind: None,
            accelerated_permille_min: 0,
            shrink: true,
            trace: false,
        }
    }
}

/// What a run over many seeds came to.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// Scripts without a difference.
    pub seeds: u64,
    /// All their steps.
    pub tally: Tally,
    /// Wall time.
    pub took: Duration,
}

impl Summary {
    /// Of the connected sockets that the library saw, how many of a thousand it accelerated.
    pub fn accelerated_permille(&self) -> u64 {
        let of = |name: &str| self.tally.counters.get(name).copied().unwrap_or(0);
        (of(COUNTER_JOINED) * 1000)
            .checked_div(of(COUNTER_CONNECTED))
            .unwrap_or(0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64().max(1e-9);
        let tally = &self.tally;
        write!(
            f,
            "{} seeds in {seconds:.1} s ({:.0}/s); ",
            self.seeds,
            self.seeds as f64 / seconds
        )?;
        write!(
            f,
            "{} steps, {} asleep at a quiet point, {} left out; ",
            tally.steps, tally.blocked, tally.skipped
        )?;
        write!(
            f,
            "{} short reads; {} lags, longest {} us; {} more edges; {} short peeks",
            tally.short_reads, tally.lags, tally.lag_us_max, tally.edges, tally.short_peeks
        )?;
        if !tally.counters.is_empty() {
            write!(
                f,
                "; {} of 1000 connected sockets accelerated",
                self.accelerated_permille()
            )?;
            let bytes = |name: &str| tally.counters.get(name).copied().unwrap_or(0);
            let (ring, kernel) = (bytes(COUNTER_RING), bytes(COUNTER_KERNEL));
            write!(f, "; {ring} bytes by the ring, {kernel} by the kernel")?;
        }
        Ok(())
    }
}

/// Why a run failed.
#[derive(Debug)]
pub enum Failure {
    /// One seed's runs differ; the script is shrunk if that was asked for.
    Differs {
        /// The seed.
        seed: u64,
        /// What was left after shrinking.
        difference: Box<Difference>,
        /// How often of three times the whole script differed when it was run again.
        again: u32,
    },
    /// Too little was accelerated for the run to prove anything.
    NotAccelerated(Box<Summary>),
    /// Processes could not be started.
    Io(std::io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs {
                seed,
                difference,
                again,
            } => {
                writeln!(f, "# seed {seed} differs ({again} of 3 times again):")?;
                write!(f, "{difference}")
            }
            Self::NotAccelerated(summary) => write!(f, "too little was accelerated: {summary}"),
            Self::Io(error) => write!(f, "the actors could not be started: {error}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Runs the script of each seed on the kernel and on the subject.
///
/// # Errors
/// The lowest seed that differs, shrunk, where each below it was tried; or a run that proves nothing.
pub fn compare(
    preload: &Preload,
    seeds: Range<u64>,
    options: &Options,
) -> Result<Summary, Failure> {
    let start = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let total = Mutex::new((Summary::default(), None::<Failure>));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = one_seed(preload, seed, options, &stop);
                    let mut total = total
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    match result {
                        Ok(tally) => {
                            total.0.seeds += 1;
                            total.0.tally.add(&tally);
                        }
                        Err(failure) => total.1 = first_of(total.1.take(), failure),
                    }
                }
            });
        }
    });
    let (mut summary, failure) = total
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    summary.took = start.elapsed();
    match failure {
        Some(failure) => Err(failure),
        None if *preload != Preload::None
            && summary.accelerated_permille() < options.accelerated_permille_min =>
        {
            Err(Failure::NotAccelerated(Box::new(summary)))
        }
        None => Ok(summary),
    }
}

/// The failure of the lower seed: those above it may not have been tried.
fn first_of(one: Option<Failure>, other: Failure) -> Option<Failure> {
    let seed = |failure: &Failure| match failure {
        Failure::Differs { seed, .. } => *seed,
        _ => 0,
    };
    match one {
        Some(one) if seed(&one) <= seed(&other) => Some(one),
        _ => Some(other),
    }
}

fn one_seed(
    preload: &Preload,
    seed: u64,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Tally, Failure> {
    let script = generate(seed, options.warm_up, options.kind);
    let difference = match attempt(preload, &script, Some(seed), options, PATIENCE) {
        Ok(tally) => return Ok(tally),
        Err(Broken::Io(error)) => return Err(Failure::Io(error)),
        Err(Broken::Differs(difference)) => difference,
    };
    stop.store(true, Ordering::Relaxed);
    let differs =
        |script: &[Step], patience| match attempt(preload, script, Some(seed), options, patience) {
            Err(Broken::Differs(difference)) => Some(difference),
            _ => None,
        };
    // At once: a call that never ends takes its whole patience each time.
    let again = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let differs = differs(&script, PATIENCE).is_some();
                again.fetch_add(u32::from(differs), Ordering::Relaxed)
            });
        }
    });
    let again = again.into_inner();
    let mut shortest = difference;
    if options.shrink && again > 0 {
        let head = script[..=shortest.at.min(script.len() - 1)].to_vec();
        shrink(head, |rest| match differs(rest, PATIENCE_SHRINKING) {
            Some(found) => {
                shortest = found;
                true
            }
            None => false,
        });
    }
    Err(Failure::Differs {
        seed,
        difference: shortest,
        again,
    })
}

/// Runs one script.
///
/// # Errors
/// The difference, not shrunk.
pub fn replay(preload: &Preload, script: &[Step], options: &Options) -> Result<Tally, Broken> {
    attempt(preload, script, None, options, PATIENCE)
}

/// Numbers of worlds, by which their addresses differ.
static WORLDS: AtomicU32 = AtomicU32::new(1);

fn attempt(
    preload: &Preload,
    script: &[Step],
    seed: Option<u64>,
    options: &Options,
    patience: Duration,
) -> Result<Tally, Broken> {
    let number = WORLDS.fetch_add(2, Ordering::Relaxed);
    let (is_generated, seed) = (seed.is_some(), seed.unwrap_or(0));
    let kernel = Launch {
        actor: &options.actor,
        preload: None,
        environment: &[],
        counters: None,
        number,
    };
    let Preload::Library(library) = preload else {
        let subject = Launch {
            number: number + 1,
            ..kernel.clone()
        };
        return compare::run(script, &kernel, &subject, patience, options, is_generated);
    };
    let mut environment = options.environment.clone();
    environment.push(("WINDLASS_PROMOTE".to_owned(), "0".to_owned()));
    if options.bypass_permille > 0 {
        environment.push((
            "WINDLASS_BYPASS".to_owned(),
            format!("{},{seed}", options.bypass_permille),
        ));
    }
    let [calls, sockets] = options.raw_permille;
    let seen = Temporary::new(number, "sockets");
    if calls + sockets > 0 {
        std::fs::write(&seen.0, [0; SOCKETS_BYTES])?;
        let text = format!("{calls},{sockets},{seed},{}", seen.0.display());
        environment.push(("DIFFERENTIAL_RAW".to_owned(), text));
    }
    let counters = Temporary::new(number, "counters");
    let subject = Launch {
        actor: &options.actor,
        preload: Some(library),
        environment: &environment,
        counters: Some(&counters.0),
        number: number + 1,
    };
    compare::run(script, &kernel, &subject, patience, options, is_generated)
}

/// Bytes of the file in which actors number the sockets of a script.
const SOCKETS_BYTES: usize = 8192;

/// The path of a file that is removed with this.
struct Temporary(PathBuf);

impl Temporary {
    fn new(number: u32, what: &str) -> Self {
        let name = format!("differential-{}-{number}.{what}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is not there when nobody wrote it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads the scripts of a directory, by name.
///
/// # Errors
/// A file cannot be read, or is no script.
pub fn scripts(directory: &Path) -> std::io::Result<BTreeMap<String, Vec<Step>>> {
    let mut scripts = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "txt") {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let text = std::fs::read_to_string(&path)?;
            let wrong =
                |error: NotAStep| std::io::Error::other(format!("{}: {error}", path.display()));
            scripts.insert(name, parse(&text).map_err(wrong)?);
        }
    }
    Ok(scripts)
}
