//! What a guest that punches holes into its own memory costs two neighbours: their pings, beside as many holes in memory of
//! nobody's, by turns.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;

use super::host::{Namespace, Scratch, require};
use super::stop;
use super::table::{Spread, Table, verdict};
use super::windlass::Daemon;
use crate::memory::Memory;
use crate::third::{Conduct, Third};
use crate::vhost::{Link, Port};

/// The most that the neighbours' p99 may grow.
const BAR: f64 = 2.0;
/// The neighbours' namespaces and addresses.
const ENDS: [(&str, &str); 2] = [("wlc-holes-a", "10.93.0.1"), ("wlc-holes-b", "10.93.0.2")];
/// Frames that the guest offers a second.
const DESCRIPTORS: f64 = 200e3;
const KICKS: f64 = 2e3;
const PAGE: u64 = 4096;
const TURN: Duration = Duration::from_micros(500);

/// A guest that punches holes.
#[derive(Args, Debug)]
pub struct HoleOptions {
    /// Seconds beside holes in the third guest's memory, and half as many beside holes in nobody's; 0: left out
    #[arg(long, default_value_t = 10)]
    hole_seconds: u64,
    /// Length of a hole
    #[arg(long, default_value_t = 32)]
    hole_mib: usize,
}

/// One window.
#[derive(Debug, Serialize)]
pub struct Shot {
    is_own: bool,
    pings: usize,
    p50_us: f64,
    p99_us: f64,
    longest_us: f64,
}

/// Measures and prints the table.
///
/// # Errors
/// If the daemon fails or no ping came back.
pub fn run(
    options: &HoleOptions,
    rounds: usize,
    programs: &Path,
    core: usize,
) -> Result<Vec<Shot>> {
    if options.hole_seconds == 0 {
        return Ok(Vec::new());
    }
    require(&[("ping", "iputils-ping")])?;
    let scratch = Scratch::create()?;
    let daemon = Daemon::start(programs, &scratch, &[core])?;
    daemon.command("bridge create br0")?;
    let mut namespaces = Vec::new();
    for (number, (name, address)) in ENDS.iter().enumerate() {
        namespaces.push(Namespace::create(name)?);
        let at = format!("tap,netns={name},name=eth0,address={address}/24");
        daemon.command(&format!("vnic create p{number} --bridge br0 --attach {at}"))?;
    }
    let from = namespaces.first().context("a namespace")?;
    let first = format!("ping -c 1 -W 1 {}", ENDS[1].1);
    let most = Duration::from_secs(10);
    stop::until("the first ping", most, || from.exec(&first).ok())?;
    let mut shots = Vec::new();
    for round in 0..rounds {
        for is_own in [false, true] {
            // A guest of its own for each window: it owes nothing yet.
            let name = format!("g{round}{}", u8::from(is_own));
            let socket = scratch.join(&format!("{name}.sock"));
            let shot = measure(options, &daemon, from, (&name, &socket), is_own)?;
            eprintln!("  round {} {shot:?}", round + 1);
            shots.push(shot);
            daemon.command(&format!("vnic delete {name}"))?;
        }
    }
    print(options, rounds, &shots);
    Ok(shots)
}

fn measure(
    options: &HoleOptions,
    daemon: &Daemon,
    from: &Namespace,
    (name, socket): (&str, &Path),
    is_own: bool,
) -> Result<Shot> {
    let hole = options.hole_mib << 20;
    let port = Third::port_with(hole)?;
    let elsewhere = Memory::create_small(hole)?;
    let mut link = Link::listen(&port, socket)?;
    let at = format!("vhost-user,socket={},role=client", socket.display());
    let seconds = match is_own {
        true => options.hole_seconds,
        false => options.hole_seconds.div_ceil(2),
    };
    let words = format!("ping -n -i 0.001 -w {seconds} -W 1 {}", ENDS[1].1);
    let over = AtomicBool::new(false);
    let out = std::thread::scope(|scope| {
        // The pings begin before the guest is there.
        let pings = scope.spawn(|| from.exec(&words));
        let begun = (|| {
            daemon.command(&format!("vnic create {name} --bridge br0 --attach {at}"))?;
            link.connect().context("the third guest's connection")
        })();
        if begun.is_ok() {
            let memory = if is_own { port.memory() } else { &elsewhere };
            let from = u64::from(port.place(0).first).next_multiple_of(PAGE);
            let over = &over;
            scope.spawn(move || punch(memory, from, over));
            scope.spawn(|| send(&port, over));
        }
        let out = pings.join().map_err(|_| anyhow::anyhow!("the pings"));
        over.store(true, Ordering::Relaxed);
        begun.and(out?)
    })?;
    report(&out, is_own)
}

/// Fills memory from an offset on and punches a hole of it until it is told to stop: buffers, and no rings, since a ring of zeros
/// ends the connection.
fn punch(memory: &Memory, from: u64, over: &AtomicBool) {
    let whole = memory.bytes().saturating_sub(from);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let steps = [FallocateFlags::empty(), hole];
    while !over.load(Ordering::Relaxed) {
        for step in steps {
            if fallocate(memory.file(), step, from, whole).is_err() {
                // Without room there is nothing to punch.
                return;
            }
        }
    }
}

/// Offers frames.
fn send(port: &Port, over: &AtomicBool) {
    let mut third = Third::new(port, Conduct::Honest, DESCRIPTORS, KICKS);
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(TURN);
        third.act();
    }
}

fn report(out: &str, is_own: bool) -> Result<Shot> {
    let mut times: Vec<f64> = out
        .lines()
        .filter_map(|line| {
            let (_, time) = line.split_once("time=")?;
            time.split_once(' ')?.0.parse().ok()
        })
        .map(|ms: f64| ms * 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).copied();
    let (Some(p50_us), Some(p99_us), Some(&longest_us)) = (at(50), at(99), times.last()) else {
        bail!("no ping came back: {out}");
    };
    Ok(Shot {
        is_own,
        pings: times.len(),
        p50_us,
        p99_us,
        longest_us,
    })
}

fn print(options: &HoleOptions, rounds: usize, shots: &[Shot]) {
    let titles = ["ping beside, us", "p50", "p99", "longest", "bar"];
    let mut table = Table::new(&titles);
    let show = |is_own: bool, value: fn(&Shot) -> f64| {
        let of = shots.iter().filter(|shot| shot.is_own == is_own);
        Spread::of(of.map(value))
    };
    let p99 = |is_own| show(is_own, |shot| shot.p99_us);
    let is_met = match (p99(false), p99(true)) {
        (Some(without), Some(with)) => with.median <= BAR * without.median,
        _ => false,
    };
    let last = [String::new(), verdict(is_met).to_owned()];
    for ((name, is_own), last) in [("holes elsewhere", false), ("holes", true)]
        .into_iter()
        .zip(last)
    {
        let values: [fn(&Shot) -> f64; 3] = [
            |shot| shot.p50_us,
            |shot| shot.p99_us,
            |shot| shot.longest_us,
        ];
        let mut row = vec![name.to_owned()];
        row.extend(values.map(|value| {
            show(is_own, value).map_or_else(|| "-".to_owned(), |spread| format!("{spread:.0}"))
        }));
        row.push(last);
        table.row(row);
    }
    println!("\n{table}");
    println!(
        "median [lowest highest] of {rounds} windows of {} s, from the first hole of {} MiB on; bar: {BAR} times the p99 beside holes \
         in memory of nobody's",
        options.hole_seconds, options.hole_mib
    );
}
