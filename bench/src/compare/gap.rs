//! How long frames stay away between two guests, memif clients or TAPs when the daemon is killed under load and started
//! again, restarted in order, or upgraded, and what was repeated, damaged or left out.

mod tap;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::child::Child;
use super::host::{HugePages, Scratch, describe};
use super::peers::{Plug, Setup, Windlass};
use super::rate::Cores;
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::By;
use crate::generator::{GapReport, SILENCE_MIN, monotonic_ns};
use tap::Pair;

/// The longest gap of a kill or a restart, and of an upgrade, in milliseconds.
const BAR_MS: f64 = 200.0;
const UPGRADE_BAR_MS: f64 = 5.0;

/// Most frames that may come twice: a burst.
const REPEATED_MAX: u64 = 64;

const HUGE_PAGES_WANTED: u64 = 32;

/// Seconds before the measurement, and how long after its begin the daemon is replaced.
const WARM: f64 = 0.3;
const REPLACE_AFTER: Duration = Duration::from_millis(800);

/// The generator has this long to end.
const SLACK: Duration = Duration::from_secs(15);

/// The daemon replaced under load.
#[derive(Args, Debug)]
pub struct Options {
    /// What carries the frames
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "split,packed,memif,tap"
    )]
    over: Vec<Over>,
    /// How the daemon ends
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kill,restart,upgrade"
    )]
    by: Vec<By>,
    /// Times of each
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds of traffic around each
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    cores: Cores,
}

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Over {
    /// Guests with split rings.
    Split,
    /// Guests with packed rings.
    Packed,
    /// memif clients that connect again.
    Memif,
    /// TAPs, with a datagram every 100 us.
    Tap,
}

impl Over {
    fn name(self) -> &'static str {
        match self {
            Over::Split => "vhost-user, split",
            Over::Packed => "vhost-user, packed",
            Over::Memif => "memif",
            Over::Tap => "TAP",
        }
    }

    /// As the generator calls the layout.
    fn layout(self) -> Option<&'static str> {
        match self {
            Over::Split => Some("split"),
            Over::Packed => Some("packed"),
            Over::Memif | Over::Tap => None,
        }
    }
}

/// Drops of the sender and of the sink, by reason.
type Drops = [BTreeMap<String, u64>; 2];

/// One time.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    over: Over,
    by: By,
    #[serde(flatten)]
    report: GapReport,
    /// What was dropped at the sender's side and at the sink's, by reason: by the new daemon, and, where it goes on counting, by the
    /// one before since the traffic began.
    drops: Drops,
}

impl Shot {
    fn dropped(&self) -> u64 {
        self.drops.iter().flat_map(BTreeMap::values).sum()
    }
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If the daemon does not come again, nothing flowed, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    println!("the daemon replaced under load; {}", describe());
    let mut shots = Vec::new();
    for &over in &options.over {
        let scratch = Scratch::create()?;
        let setup = Setup {
            scratch: &scratch,
            programs,
            core: options.cores.switch_core,
            plug: if over == Over::Memif {
                Plug::Memif
            } else {
                Plug::Vhost
            },
        };
        let mut switch = Windlass::start(&setup, scratch.join("port.sock"), "auto")?;
        let taps = match over {
            Over::Tap => Some(Pair::create(&switch.daemon)?),
            _ => None,
        };
        for round in 0..options.rounds {
            for &by in &options.by {
                let before = match by {
                    By::Upgrade => drops(over, &switch)?,
                    By::Kill | By::Restart => Drops::default(),
                };
                let report = match &taps {
                    Some(taps) => over_taps(options, taps, by, &mut switch)?,
                    None => over_rings(options, over, by, &setup, &mut switch)?,
                };
                let mut since = drops(over, &switch)?;
                for (since, before) in since.iter_mut().zip(before) {
                    for (reason, frames) in before {
                        let total = since.entry(reason).or_default();
                        *total = total.saturating_sub(frames);
                    }
                    since.retain(|_, frames| *frames > 0);
                }
                shots.push(shot(round, over, by, report, since)?);
            }
        }
    }
    print(options, &shots);
    write_json(json, &shots)
}

fn over_taps(options: &Options, taps: &Pair, by: By, switch: &mut Windlass) -> Result<GapReport> {
    let time = Duration::from_secs_f64(options.seconds);
    taps.measure(time, REPLACE_AFTER, || switch.daemon.replace(by))
}

fn over_rings(
    options: &Options,
    over: Over,
    by: By,
    setup: &Setup<'_>,
    switch: &mut Windlass,
) -> Result<GapReport> {
    let mut command = setup.plug.generator(setup, switch);
    command.args(["--hold", "--measure", "gap"]);
    if let Some(layout) = over.layout() {
        command.args(["--layout", layout]);
    }
    command.args(["--seconds", &options.seconds.to_string()]);
    command.args(["--warm", &WARM.to_string()]);
    command.args(["--core", &options.cores.generator_core.to_string()]);
    let mut generator = Child::start_held(command)?;
    stop::pause(REPLACE_AFTER)?;
    let begun = monotonic_ns();
    switch.daemon.replace(by)?;
    let ended = monotonic_ns();
    let text = generator.first_line(Duration::from_secs_f64(options.seconds) + SLACK)?;
    let mut report: GapReport = serde_json::from_str(&text).context("the generator's line")?;
    generator.release(SLACK)?;
    if by == By::Upgrade && report.restarts == 0 {
        // The connections went on: what falls into the time of the upgrade is its.
        let is_during = |silence: &&(u64, u64)| silence.0 <= ended && silence.1 >= begun;
        let longest = |of: Vec<&(u64, u64)>| {
            let lengths = of.into_iter().map(|silence| silence.1 - silence.0);
            let shortest = SILENCE_MIN.as_nanos() as u64;
            lengths.max().unwrap_or(shortest) as f64 / 1e6
        };
        let (during, others) = report.silences.iter().partition(is_during);
        report.gap_ms = longest(during);
        report.longest_other_ms = longest(others);
        report.missing = std::mem::take(&mut report.missing_other);
        report.restarts = 1;
    }
    Ok(report)
}

/// What members have dropped, as far as the daemon knows.
fn drops(over: Over, switch: &Windlass) -> Result<Drops> {
    let [sender, sink] = match over {
        Over::Tap => tap::NAMES,
        Over::Split | Over::Packed | Over::Memif => ["v0", "v1"],
    };
    Ok([switch.daemon.drops(sender)?, switch.daemon.drops(sink)?])
}

fn shot(round: usize, over: Over, by: By, report: GapReport, drops: Drops) -> Result<Shot> {
    if report.restarts == 0 || report.received == 0 || report.gap_ms == 0.0 {
        bail!("no frame came after the daemon was replaced, or nothing was noticed: {report:?}");
    }
    let shot = Shot {
        round,
        over,
        by,
        report,
        drops,
    };
    let GapReport {
        gap_ms,
        repeated,
        missing,
        missing_other,
        wrong,
        ..
    } = shot.report;
    eprintln!(
        "  {}, {by:?} {}: {gap_ms:.1} ms, {repeated} repeated, {wrong} damaged, {missing} missing, {missing_other} at other \
         times; dropped since: {:?}",
        over.name(),
        round + 1,
        shot.drops
    );
    Ok(shot)
}

fn print(options: &Options, shots: &[Shot]) {
    let titles = [
        "over",
        "by",
        "gap, ms",
        "other gap, ms",
        "repeated",
        "damaged",
        "missing",
        "at other times",
        "dropped since",
        "bar",
    ];
    let mut table = Table::new(&titles);
    for (over, by) in
        (options.over.iter()).flat_map(|over| options.by.iter().map(move |by| (over, by)))
    {
        let of = || shots.iter().filter(|s| s.over == *over && s.by == *by);
        let show = |value: fn(&Shot) -> f64, digits: usize| {
            Spread::of(of().map(value))
                .map_or_else(|| "-".to_owned(), |spread| format!("{spread:.digits$}"))
        };
        let bar = if *by == By::Upgrade {
            UPGRADE_BAR_MS
        } else {
            BAR_MS
        };
        let is_met = of().all(|s| {
            s.report.gap_ms < bar && s.report.wrong == 0 && s.report.repeated <= REPEATED_MAX
        });
        table.row(vec![
            over.name().to_owned(),
            format!("{by:?}").to_lowercase(),
            show(|s| s.report.gap_ms, 1),
            show(|s| s.report.longest_other_ms, 1),
            show(|s| s.report.repeated as f64, 0),
            show(|s| s.report.wrong as f64, 0),
            show(|s| s.report.missing as f64, 0),
            show(|s| s.report.missing_other as f64, 0),
            show(|s| s.dropped() as f64, 0),
            verdict(is_met).to_owned(),
        ]);
    }
    println!("\n{table}");
    println!(
        "median [lowest highest] of {} times; bar: each under {BAR_MS} ms, an upgrade under {UPGRADE_BAR_MS} ms, none damaged, at \
         most {REPEATED_MAX} repeated",
        options.rounds
    );
    println!(
        "A frame to a guest that is not connected again, or whose ring is full, is dropped and counted; what a killed daemon \
         held in its own memory for a full ring is lost with it. What a namespace sends while no daemon has its TAP is lost."
    );
}
