//! What a program that never reads costs two others: the times of their frames, beside one that reads what it is sent, by turns.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::child::Child;
use super::host::Scratch;
use super::stop;
use super::table::{Spread, Table, verdict};
use super::windlass::Daemon;

/// The most that the p99 may grow.
const BAR: f64 = 1.1;
/// A device is opened, and read, within this time.
const OPENED: Duration = Duration::from_millis(300);
/// A program that runs for a time ends within this time after it.
const ENDED: Duration = Duration::from_secs(10);

/// A device that is sent frames and may not read them.
#[derive(Args, Debug)]
pub struct DeafOptions {
    /// Seconds of each turn beside a program that reads, or does not; 0: left out
    #[arg(long, default_value_t = 2)]
    deaf_seconds: u64,
    /// Frames a second of the two whose frames are timed
    #[arg(long, default_value_t = 20_000)]
    deaf_rate: u64,
    /// Frames a second for the third
    #[arg(long, default_value_t = 200_000)]
    deaf_offered: u64,
}

/// One turn.
#[derive(Debug, Serialize)]
pub struct Shot {
    is_deaf: bool,
    #[serde(flatten)]
    row: Row,
}

/// What `windlass sink` says of it, as far as it matters here.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    frames: u64,
    lost: u64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures and prints the table.
///
/// # Errors
/// If the daemon fails, or no frame came.
pub fn run(
    options: &DeafOptions,
    rounds: usize,
    programs: &Path,
    core: usize,
) -> Result<Vec<Shot>> {
    if options.deaf_seconds == 0 {
        return Ok(Vec::new());
    }
    let scratch = Scratch::create()?;
    let daemon = Daemon::start(programs, &scratch, &[core])?;
    daemon.command("bridge create br0")?;
    for device in ["p0", "p1", "p2", "p3"] {
        daemon.command(&format!("vnic create {device} --bridge br0"))?;
        daemon.command(&format!("vnd create {device}"))?;
    }
    let mut shots = Vec::new();
    for round in 0..rounds {
        for is_deaf in [false, true] {
            let row = measure(options, &daemon, is_deaf)?;
            let shot = Shot { is_deaf, row };
            eprintln!("  round {} {shot:?}", round + 1);
            shots.push(shot);
        }
    }
    let dropped = daemon.drops("p3")?;
    if dropped.is_empty() {
        bail!("the program that does not read was sent nothing");
    }
    print(options, rounds, &shots);
    println!("dropped at the third, whose ring is full: {dropped:?}");
    Ok(shots)
}

/// One turn: frames from p0 to p1 are timed, while others go from p2 to p3.
fn measure(options: &DeafOptions, daemon: &Daemon, is_deaf: bool) -> Result<Row> {
    let seconds = options.deaf_seconds;
    let longer = seconds + 1;
    let third = daemon.start_command("sink p3")?;
    stop::pause(OPENED)?;
    if is_deaf {
        kill_process(pid(&third)?, Signal::STOP)?;
    }
    let offered = options.deaf_offered;
    let _load = daemon.start_command(&format!(
        "gen p2 --dst-mac p3 --rate {offered} --time {}",
        longer + 1
    ))?;
    let sink = daemon.start_piped(&format!("sink p1 --json --time {longer}"))?;
    stop::pause(OPENED)?;
    let rate = options.deaf_rate;
    daemon.command(&format!(
        "gen p0 --dst-mac p1 --rate {rate} --time {seconds}"
    ))?;
    let text = sink.output(ENDED)?;
    if is_deaf {
        kill_process(pid(&third)?, Signal::CONT)?;
    }
    let last = text.lines().last().context("no row")?;
    let [row]: [Row; 1] = serde_json::from_str(last).context("windlass sink has another form")?;
    if row.frames + row.lost < rate * seconds / 2 {
        bail!("half of the frames were not sent: {row:?}");
    }
    Ok(row)
}

fn pid(child: &Child) -> Result<Pid> {
    Pid::from_raw(child.pid().cast_signed()).context("no process id")
}

fn print(options: &DeafOptions, rounds: usize, shots: &[Shot]) {
    let of = |is_deaf: bool, value: fn(&Row) -> f64| {
        let turns = shots.iter().filter(|shot| shot.is_deaf == is_deaf);
        Spread::of(turns.map(|shot| value(&shot.row)))
    };
    let p99 = |is_deaf| of(is_deaf, |row| row.p99_us);
    let is_met = match (p99(false), p99(true)) {
        (Some(without), Some(with)) => {
            with.median <= BAR * without.median
                && shots.iter().all(|shot| !shot.is_deaf || shot.row.lost == 0)
        }
        _ => false,
    };
    let titles = ["frames beside a program, us", "p50", "p99", "lost", "bar"];
    let mut table = Table::new(&titles);
    for (name, is_deaf, last) in [
        ("that reads", false, ""),
        ("that never reads", true, verdict(is_met)),
    ] {
        let values: [fn(&Row) -> f64; 3] =
            [|row| row.p50_us, |row| row.p99_us, |row| row.lost as f64];
        let cells = values.map(|value| {
            of(is_deaf, value).map_or_else(|| "-".to_owned(), |spread| format!("{spread:.0}"))
        });
        let cells = [name.to_owned()].into_iter().chain(cells);
        table.row(cells.chain([last.to_owned()]).collect());
    }
    println!("\n{table}");
    println!(
        "median [lowest highest] of {rounds} turns of {} s; {} frames/s are timed, {} go to the third; bar: {BAR} times the p99 beside \
         one that reads, and nothing lost",
        options.deaf_seconds, options.deaf_rate, options.deaf_offered
    );
}
