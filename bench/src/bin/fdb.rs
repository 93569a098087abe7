//! Figure 1: the forwarding table alone, beside the same table behind a mutex and behind a reader-writer lock.
//!
//! # Model
//! Each thread, kept on a core of its own, runs one forwarding loop: bursts of 64 frames whose sources and destinations
//! are drawn from the table's addresses; for each frame the source is looked up and, if its age is old,
//! touched, then the destination is looked up. Subjects differ in nothing but the lock: taken for each frame, taken for
//! each burst, or none. The churn is 10,000 moves of addresses a second, made by the first thread between two
//! bursts, as the home worker of a bridge does it; so its cost is part of that thread's rate.
//!
//! Subjects take turns in every run. Rates are millions of frames a second over all threads.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use windlass_bench::core::pin;
use windlass_bridge::fdb::{
    Fdb, FdbWriter, Hit, Key, Limits, NoReaders, Now, Place, Sighting, Sightings,
};
use windlass_bridge::forward::{Bridge, BridgeConf};
use windlass_bridge::member::MemberConf;
use windlass_frame::{Claim, HEADROOM, Heads, RxId, Tick, TxId};
use windlass_sync::tsc;

const BURST: usize = 64;
const MOVES_PER_S: u64 = 10_000;
/// Frames drawn in advance; a thread goes round in them.
const FRAMES: usize = 1 << 16;
const NOW: Tick = Tick(1_000_000_000_000);

/// Measures the forwarding table.
#[derive(Parser)]
struct Args {
    /// Runs of every case.
    #[arg(long, default_value_t = 25)]
    runs: usize,
    /// Milliseconds of each case in each run.
    #[arg(long, default_value_t = 10)]
    ms: u64,
    /// Make this many frames' lookups in `counted` and exit: for `valgrind --tool=callgrind --toggle-collect=...`.
    #[arg(long)]
    count: Option<u64>,
    /// Addresses for `--count`.
    #[arg(long, default_value_t = 1000)]
    addresses: u64,
}

/// What protects the table from its writer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Ours,
    MutexFrame,
    RwLockFrame,
    MutexBurst,
    RwLockBurst,
}

const SUBJECTS: [(Subject, &str); 5] = [
    (Subject::Ours, "ours"),
    (Subject::MutexFrame, "mutex, each frame"),
    (Subject::RwLockFrame, "rwlock, each frame"),
    (Subject::MutexBurst, "mutex, each burst"),
    (Subject::RwLockBurst, "rwlock, each burst"),
];

/// One table with its writer and what the subjects lock.
struct Bench {
    fdb: Arc<Fdb>,
    writer: Mutex<FdbWriter<NoReaders>>,
    mutex: Mutex<()>,
    rwlock: RwLock<()>,
    addresses: u64,
}

type Frame = (Key, Key);

fn address(i: u64) -> Key {
    Key::new(1, 0x02 | i << 16)
}

impl Bench {
    fn new(addresses: u64) -> Result<Bench> {
        let mut limits = Limits::new(addresses as u32 + 16, [0x5bd1_e995, 0x1b87_3593]);
        limits.moves = 0;
        let (fdb, mut writer) = Fdb::new(limits, NoReaders);
        for i in 0..addresses {
            let s = Sighting {
                key: address(i),
                member: (i % 8) as u16,
                sticky: false,
            };
            writer.learn(s, NOW);
        }
        if u64::from(writer.len()) != addresses {
            bail!("the table took {} of {addresses} addresses", writer.len());
        }
        let writer = Mutex::new(writer);
        Ok(Bench {
            fdb,
            writer,
            mutex: Mutex::new(()),
            rwlock: RwLock::new(()),
            addresses,
        })
    }

    fn frames(&self, seed: u64) -> Vec<Frame> {
        let mut state = seed;
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            address((state >> 33) % self.addresses)
        };
        (0..FRAMES).map(|_| (draw(), draw())).collect()
    }

    fn found(&self, hit: Option<Hit>) -> u64 {
        hit.map_or(0, |h| u64::from(h.member) + 1)
    }

    /// One burst: buckets are hashed and prefetched, then looked at. `lock` is taken for each frame.
    #[inline(never)]
    fn burst<L>(&self, frames: &[Frame], now: Now, lock: impl Fn() -> L) -> u64 {
        let reader = self.fdb.reader(now);
        let mut places = [(Place::default(), Place::default()); BURST];
        for (place, (src, dst)) in places.iter_mut().zip(frames) {
            *place = (reader.place(*src), reader.place(*dst));
            reader.prefetch(place.0);
            reader.prefetch(place.1);
        }
        let mut sum = 0;
        for ((src_place, dst_place), (src, dst)) in places.iter().zip(frames) {
            let _held = lock();
            if let Some(hit) = reader.lookup(*src_place, *src).filter(|h| h.stale_age) {
                reader.touch(hit.slot);
            }
            sum += self.found(reader.lookup(*dst_place, *dst));
        }
        sum
    }

    fn any_burst(&self, subject: Subject, frames: &[Frame], now: Now) -> u64 {
        match subject {
            Subject::Ours => self.burst(frames, now, || ()),
            Subject::MutexFrame => self.burst(frames, now, || self.mutex.lock()),
            Subject::RwLockFrame => self.burst(frames, now, || self.rwlock.read()),
            Subject::MutexBurst => {
                let _held = self.mutex.lock();
                self.burst(frames, now, || ())
            }
            Subject::RwLockBurst => {
                let _held = self.rwlock.read();
                self.burst(frames, now, || ())
            }
        }
    }

    /// Moves one address to another member, under the subject's lock.
    fn move_one(&self, subject: Subject, writer: &mut FdbWriter<NoReaders>, n: u64) {
        let key = address(n.wrapping_mul(7919) % self.addresses);
        let s = Sighting {
            key,
            member: 8 + (n / self.addresses.max(2) + n) as u16 % 8,
            sticky: false,
        };
        match subject {
            Subject::Ours => writer.learn(s, NOW),
            Subject::MutexFrame | Subject::MutexBurst => {
                let _held = self.mutex.lock();
                writer.learn(s, NOW)
            }
            Subject::RwLockFrame | Subject::RwLockBurst => {
                let _held = self.rwlock.write();
                writer.learn(s, NOW)
            }
        };
    }

    /// Frames a second of one thread until `stop`.
    fn forward(
        &self,
        subject: Subject,
        core: usize,
        churn: bool,
        stop: &AtomicBool,
        start: &Barrier,
    ) -> Result<f64> {
        pin(core)?;
        let frames = self.frames(core as u64 + 1);
        let now = self.fdb.at(NOW);
        let mut writer = churn.then(|| self.writer.lock().expect("one writer"));
        let mut moves = 0;
        let mut bursts = 0_u64;
        start.wait();
        let began = Instant::now();
        'run: loop {
            for chunk in frames.chunks_exact(BURST) {
                black_box(self.any_burst(subject, chunk, now));
                bursts += 1;
                if bursts.is_multiple_of(16) {
                    if stop.load(Ordering::Relaxed) {
                        break 'run;
                    }
                    let Some(writer) = &mut writer else { continue };
                    let due = began.elapsed().as_nanos() as u64 * MOVES_PER_S / 1_000_000_000;
                    while moves < due {
                        self.move_one(subject, writer, moves);
                        moves += 1;
                    }
                }
            }
        }
        Ok((bursts * BURST as u64) as f64 / began.elapsed().as_secs_f64())
    }

    /// Millions of frames a second over `threads` threads. One thread runs on each of the two cores in turn, and the
    /// mean counts: cores of a shared machine are not equally fast.
    fn measure(
        &self,
        subject: Subject,
        threads: usize,
        churn: bool,
        time: Duration,
    ) -> Result<f64> {
        if threads == 1 {
            let alone = |core| self.run_on(&[core], subject, churn, time / 2);
            return Ok((alone(0)? + alone(1)?) / 2.0);
        }
        self.run_on(&[0, 1], subject, churn, time)
    }

    /// The same with one thread on each of `cores`; the first makes the moves.
    fn run_on(
        &self,
        cores: &[usize],
        subject: Subject,
        churn: bool,
        time: Duration,
    ) -> Result<f64> {
        let stop = AtomicBool::new(false);
        let start = Barrier::new(cores.len() + 1);
        std::thread::scope(|scope| {
            let (stop, start) = (&stop, &start);
            let run = |(n, &core): (usize, &usize)| {
                scope.spawn(move || self.forward(subject, core, churn && n == 0, stop, start))
            };
            let running: Vec<_> = cores.iter().enumerate().map(run).collect();
            start.wait();
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            let rates = running
                .into_iter()
                .map(|t| t.join().expect("a thread of the benchmark"));
            Ok(rates.sum::<Result<f64>>()? / 1e6)
        })
    }
}

/// The lookups that are counted: `n` frames, two lookups each, and the loop around them.
#[inline(never)]
fn counted(bench: &Bench, frames: &[Frame], n: u64) -> u64 {
    let now = bench.fdb.at(NOW);
    let bursts = n.div_ceil(BURST as u64) as usize;
    let burst = |chunk| bench.any_burst(Subject::Ours, chunk, now);
    frames
        .chunks_exact(BURST)
        .cycle()
        .take(bursts)
        .map(burst)
        .sum()
}

/// Instructions a lookup, counted by valgrind. None if there is no valgrind.
fn instructions(addresses: u64) -> Option<f64> {
    const COUNT: u64 = 64_000;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*counted*",
        ])
        .arg(std::env::current_exe().ok()?)
        .args([
            "--count",
            &COUNT.to_string(),
            "--addresses",
            &addresses.to_string(),
        ])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|l| l.split("Collected : ").nth(1))?;
    Some(line.trim().parse::<f64>().ok()? / (2 * COUNT) as f64)
}

/// Lowest, middle and highest of some figures.
fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    let at = |i: usize| figures.get(i).copied().unwrap_or(f64::NAN);
    (at(0), at(last / 2), at(last))
}

/// The cases: threads, and whether addresses move.
const CASES: [(usize, bool); 4] = [(1, false), (1, true), (2, false), (2, true)];

/// All cases with this many addresses; prints their rows and what the bars ask of ours.
fn compare(addresses: u64, args: &Args) -> Result<()> {
    let bench = Bench::new(addresses)?;
    let mut rates = vec![[const { Vec::new() }; CASES.len()]; SUBJECTS.len()];
    let time = Duration::from_millis(args.ms);
    for _ in 0..args.runs {
        for (rates, (subject, _)) in rates.iter_mut().zip(SUBJECTS) {
            for (rates, (threads, churn)) in rates.iter_mut().zip(CASES) {
                rates.push(bench.measure(subject, threads, churn, time)?);
            }
        }
    }
    println!(
        "\n{addresses} addresses: Mframes/s, median (lowest to highest) of {} runs",
        args.runs
    );
    print!("{:20}", "");
    for (threads, churn) in CASES {
        let churn = if churn { ", 10k moves/s" } else { "" };
        print!("{:>24}", format!("{threads} thread(s){churn}"));
    }
    println!();
    for (rates, (_, name)) in rates.iter().zip(SUBJECTS) {
        print!("{name:20}");
        for rates in rates {
            let (low, middle, high) = spread(rates.clone());
            print!("{:>24}", format!("{middle:.1} ({low:.1} to {high:.1})"));
        }
        println!();
    }
    bars(&rates[0]);
    Ok(())
}

/// The ratios asked of ours, run by run: the four cases of a subject follow each other within each run, so that a machine
/// whose speed changes from second to second changes little between them.
fn bars(ours: &[Vec<f64>; CASES.len()]) {
    let ratio =
        |a: usize, b: usize| spread(ours[a].iter().zip(&ours[b]).map(|(a, b)| a / b).collect());
    let rows = [
        ("2 threads / 1 thread", ratio(2, 0), 1.9),
        ("2 threads / 1 thread, both with moves", ratio(3, 1), 1.9),
        ("1 thread, with moves / without", ratio(1, 0), 0.9),
        ("2 threads, with moves / without", ratio(3, 2), 0.9),
    ];
    for (name, (low, middle, high), bar) in rows {
        let verdict = if middle >= bar { "met" } else { "NOT MET" };
        println!("  ours, {name}: {middle:.3} ({low:.3} to {high:.3}), bar {bar}: {verdict}");
    }
}

/// Time-stamp cycles a frame of the whole decision ([`Bridge::forward`]) on bursts of `burst` frames of 64 bytes from a
/// member with one permitted source, on a bridge that filters VLANs: lowest, middle, highest.
fn decision(addresses: u64, burst: usize, learning: bool, args: &Args) -> Result<(f64, f64, f64)> {
    const ROUNDS: usize = 20_000;
    /// 02:0a:00:00:00:00 as the low 48 bits of a little-endian load.
    const OWN: u64 = 0x0a02;
    let bench = Bench::new(addresses)?;
    let from = 9;
    let member = |id: u16| MemberConf {
        nospoof: !learning,
        ..MemberConf::new(
            TxId(id),
            if id == from {
                OWN
            } else {
                u64::from(id) << 8 | 0x06
            },
        )
    };
    let members = (0..=from).map(member).collect();
    let fdb = Arc::clone(&bench.fdb);
    let bridge = Bridge::new(BridgeConf {
        fdb,
        filtering: true,
        mac: 0,
        members,
        groups: None,
    });
    let frames = bench.frames(7);
    let mut heads = Heads::boxed();
    let mut sightings = Sightings::new();
    bench.writer.lock().expect("one writer").learn(
        Sighting {
            key: Key::new(1, OWN),
            member: from,
            sticky: false,
        },
        NOW,
    );
    let mut results = Vec::new();
    for _ in 0..args.runs {
        let mut cycles = 0;
        for chunk in frames.chunks_exact(burst).cycle().take(ROUNDS) {
            heads.clear(RxId(from), NOW);
            for (i, (_, dst)) in chunk.iter().enumerate() {
                let mut bytes = [0; 64];
                bytes[..6].copy_from_slice(&dst.octets());
                bytes[6..14].copy_from_slice(&[0x02, 0x0a, 0, 0, 0, 0, 0x88, 0xb5]);
                heads.snap[i].0[HEADROOM..HEADROOM + 64].copy_from_slice(&bytes);
                heads.admit(i, 64, Claim::NONE);
            }
            heads.n = chunk.len();
            let began = tsc::now();
            let tally = bridge.forward(&mut heads, &mut sightings);
            cycles += tsc::now() - began;
            if tally.unicast as usize != chunk.len() {
                bail!("{tally:?} of {} frames to known addresses", chunk.len());
            }
        }
        results.push(cycles as f64 / (ROUNDS * burst) as f64);
    }
    Ok(spread(results))
}

/// Has the allocator ask for huge pages, which it reads from its environment at the start only.
fn on_huge_pages() -> Result<()> {
    const NAME: &str = "GLIBC_TUNABLES";
    const VALUE: &str = "glibc.malloc.hugetlb=1";
    if std::env::var_os(NAME).is_some() {
        return Ok(());
    }
    let exe = std::env::current_exe().context("cannot find the program itself")?;
    let failed = Command::new(exe)
        .args(std::env::args_os().skip(1))
        .env(NAME, VALUE)
        .exec();
    Err(failed).context("cannot start the program again with huge pages")
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(n) = args.count {
        let bench = Bench::new(args.addresses)?;
        let frames = bench.frames(1);
        println!(
            "{} lookups, checksum {}",
            2 * n,
            counted(&bench, &frames, n)
        );
        return Ok(());
    }
    on_huge_pages()?;
    println!(
        "Forwarding table: source check and destination lookup of each frame, bursts of {BURST}."
    );
    println!("Moves are made by the first thread, between two bursts.");
    println!("One thread: the mean of both cores. Two threads: one on each core.");
    for addresses in [1, 1000, 1_000_000] {
        compare(addresses, &args)?;
    }
    println!(
        "\nThe whole decision on a frame of 64 bytes, time-stamp cycles, median (lowest to highest):"
    );
    for (addresses, learning) in [(1, false), (1000, false), (1000, true), (1_000_000, false)] {
        for burst in [32, 64] {
            let (low, middle, high) = decision(addresses, burst, learning, &args)?;
            let source = if learning {
                "source looked up"
            } else {
                "one permitted source"
            };
            println!(
                "  {addresses} addresses, bursts of {burst}, {source}: {middle:.1} ({low:.1} to {high:.1})"
            );
        }
    }
    println!();
    for addresses in [1, 1000, 1_000_000] {
        match instructions(addresses) {
            Some(n) => println!(
                "instructions a lookup, {addresses} addresses: {n:.1} (hash, prefetch and loop included)"
            ),
            None => println!(
                "skipped: instructions a lookup, {addresses} addresses: valgrind did not run"
            ),
        }
    }
    Ok(())
}
