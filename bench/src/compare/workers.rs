//! Two pairs of memif ports whose generators run on both of two cores, served by one worker or by two: frames a second, busy
//! cycles a frame, and whether frames stay in order.
//!
//! # Model
//! One worker shares its core with one generator; the second one shares the other core with the other. Each pair has a bridge
//! of its own. A pair's rings are served on the core where its generator is not, so that both cores have something to do
//! while two of the four threads wait for a core.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::child::Child;
use super::host::{HugePages, Scratch, describe};
use super::peers::{Plug, add_vnic, wait_for_socket};
use super::rate::Turns;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::Daemon;
use crate::frames::{SENDER, sink_address};

/// Two workers carry at least so many times what one does.
const RATE_BAR: f64 = 1.5;

/// Busy cycles a frame of two workers are at most so many times those of one.
const CYCLES_BAR: f64 = 1.15;

const PAIRS: u32 = 2;

const HUGE_PAGES_WANTED: u64 = 64;

/// A generator has this long beyond its measured time.
const SLACK: Duration = Duration::from_secs(15);

/// Seconds in which a generator only connects, so that its rings can be moved.
const CONNECTING: f64 = 0.1;

/// Two pairs of memif ports, served by one worker and by two.
#[derive(Args, Debug)]
pub struct Options {
    /// Bytes of a frame
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Property spin-us of all VNICs
    #[arg(long, default_value = "auto")]
    spin: String,
    #[command(flatten)]
    turns: Turns,
}

/// A generator's line.
#[derive(Debug, Deserialize)]
struct Line {
    sent: u64,
    mpps: f64,
    lost: u64,
    wrong_length: u64,
    wrong_bytes: u64,
    reordered: u64,
}

/// One measurement: both pairs together.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    workers: usize,
    mpps: f64,
    cycles: f64,
    lost_share: f64,
    reordered: u64,
}

/// Measures one worker and two in turns, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If a program fails, frames arrive damaged, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    println!("two pairs of memif ports; {}", describe());
    let mut shots = Vec::new();
    for round in 0..options.turns.rounds {
        for workers in [1, 2] {
            let shot = measure(options, programs, &scratch, (round, workers))?;
            eprintln!(
                "  round {} {workers} workers {:.2} M/s, {:.0} busy cycles, {:.4} % lost, {} out of order",
                round + 1,
                shot.mpps,
                shot.cycles,
                shot.lost_share * 100.0,
                shot.reordered
            );
            shots.push(shot);
        }
    }
    let of = |workers, value: &dyn Fn(&Shot) -> f64| {
        let shots = shots.iter().filter(|shot| shot.workers == workers);
        Spread::of(shots.map(value)).context("nothing was measured")
    };
    let mut table = Table::new(&["", "1 worker", "2 workers", "quotient", "bar"]);
    let mut row =
        |title: &str, digits, value: &dyn Fn(&Shot) -> f64, bar: &dyn Fn(f64) -> String| {
            let (one, two) = (of(1, value)?, of(2, value)?);
            let quotient = two.median / one.median;
            let cells = [format!("{one:.digits$}"), format!("{two:.digits$}")];
            let mut cells = Vec::from(cells);
            cells.insert(0, title.to_owned());
            cells.extend([format!("{quotient:.2}"), bar(quotient)]);
            table.row(cells);
            anyhow::Ok(())
        };
    row("millions of frames/s", 2, &|shot| shot.mpps, &|quotient| {
        format!("at least {RATE_BAR}: {}", verdict(quotient >= RATE_BAR))
    })?;
    row("busy cycles/frame", 0, &|shot| shot.cycles, &|quotient| {
        format!("at most {CYCLES_BAR}: {}", verdict(quotient <= CYCLES_BAR))
    })?;
    let late: u64 = shots.iter().map(|shot| shot.reordered).sum();
    let lost = shots.iter().map(|shot| shot.lost_share);
    println!("\n{table}");
    println!("median [lowest highest] of {} rounds", options.turns.rounds);
    println!(
        "{late} frames out of order (bar: none: {}); at most {:.4} % lost",
        verdict(late == 0),
        lost.fold(0.0, f64::max) * 100.0
    );
    write_json(json, &shots)
}

/// A daemon with a bridge for each pair, and its VNICs.
fn start(
    options: &Options,
    programs: &Path,
    scratch: &Scratch,
    cores: &[usize],
    socket: &Path,
) -> Result<Daemon> {
    let daemon = Daemon::start(programs, scratch, cores)?;
    for pair in 0..PAIRS {
        let bridge = format!("br{pair}");
        daemon.command(&format!("bridge create {bridge}"))?;
        let vnics = [
            (pair, SENDER, ""),
            (PAIRS + pair, sink_address(0), "--set mac-nospoof=off"),
        ];
        for (id, mac, more) in vnics {
            let attach = Plug::Memif.attachment(id, socket);
            let more = format!("--set spin-us={} {more}", options.spin);
            add_vnic(&daemon, (&format!("v{id}"), &bridge), mac, &more, &attach)?;
        }
    }
    wait_for_socket(socket)?;
    Ok(daemon)
}

fn measure(
    options: &Options,
    programs: &Path,
    scratch: &Scratch,
    (round, workers): (usize, usize),
) -> Result<Shot> {
    let turns = &options.turns;
    let cores = [turns.cores.switch_core, turns.cores.generator_core];
    let used = cores.get(..workers).context("two cores")?;
    let socket = scratch.join("port.sock");
    let daemon = start(options, programs, scratch, used, &socket)?;
    let generators = |warm: f64, seconds: f64| -> Result<Vec<Child>> {
        let of = |(pair, core): (u32, &usize)| {
            let mut command = Command::new(programs.join("memif-gen"));
            command.arg("--socket").arg(&socket);
            command.args(["--send-id", &pair.to_string()]);
            command.args(["--sink-id", &(PAIRS + pair).to_string()]);
            command.args(["--core", &core.to_string(), "--sink", "check"]);
            command.args(["--size", &options.size.to_string(), "--hold"]);
            command.args(["--warm", &warm.to_string()]);
            command.args(["--seconds", &seconds.to_string()]);
            Child::start_held(command)
        };
        (0..PAIRS).zip(cores.iter().rev()).map(of).collect()
    };
    // A ring can be moved while its peer is there, and stays there when that connects again.
    let mut first = generators(CONNECTING, CONNECTING)?;
    for child in &mut first {
        child.first_line(SLACK)?;
    }
    for pair in (0..PAIRS).filter(|_| workers > 1) {
        for id in [pair, PAIRS + pair] {
            daemon.command(&format!("worker move v{id} {pair}"))?;
        }
        daemon.command(&format!("worker move br{pair} {pair} --table"))?;
    }
    for child in first {
        child.release(SLACK)?;
    }
    let before = daemon.busy()?;
    let mut children = generators(turns.warm, turns.seconds)?;
    let patience = Duration::from_secs_f64(turns.warm + turns.seconds) + SLACK;
    let mut lines = Vec::new();
    for child in &mut children {
        let line: Line = serde_json::from_str(&child.first_line(patience)?)?;
        if line.wrong_length + line.wrong_bytes > 0 {
            bail!("frames arrived damaged: {line:?}");
        }
        lines.push(line);
    }
    let busy = daemon.busy()?;
    for child in children {
        child.release(SLACK)?;
    }
    let sum = |value: fn(&Line) -> u64| lines.iter().map(value).sum::<u64>();
    Ok(Shot {
        round,
        workers,
        mpps: lines.iter().map(|line| line.mpps).sum(),
        cycles: (busy.0 - before.0) as f64 / (busy.1 - before.1).max(1) as f64,
        lost_share: sum(|line| line.lost) as f64 / sum(|line| line.sent).max(1) as f64,
        reordered: sum(|line| line.reordered),
    })
}
