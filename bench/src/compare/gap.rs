//! How long frames stay away between two guests when the daemon is killed under load and started again, and what was
//! repeated, damaged or left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use super::child::Child;
use super::host::{HugePages, Scratch, describe};
use super::peers::{Plug, Setup, Windlass};
use super::rate::Cores;
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use crate::generator::GapReport;
use crate::vhost::Layout;

/// The longest gap.
const BAR_MS: f64 = 200.0;

/// Most frames that may come twice: a burst.
const REPEATED_MAX: u64 = 64;

const HUGE_PAGES_WANTED: u64 = 32;

/// Seconds before the measurement, and how long after its begin the daemon is killed.
const WARM: f64 = 0.3;
const KILL_AFTER: Duration = Duration::from_millis(800);

/// The generator has this long to end.
const SLACK: Duration = Duration::from_secs(15);

/// Kills under load.
#[derive(Args, Debug)]
pub struct Options {
    /// Layouts of the guests' rings
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "split,packed"
    )]
    layouts: Vec<Layout>,
    /// Kills of each
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds of traffic around each kill
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    #[command(flatten)]
    cores: Cores,
}

/// One kill.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    layout: Layout,
    #[serde(flatten)]
    report: GapReport,
    /// What the new daemon has dropped, at the sender's side and at the sink's, by reason.
    drops: [BTreeMap<String, u64>; 2],
}

impl Shot {
    fn is_dropped(&self) -> u64 {
        self.drops.iter().flat_map(BTreeMap::values).sum()
    }
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If the daemon does not come again, nothing flowed, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    println!(
        "kill -9 of the daemon under load, windlass as client; {}",
        describe()
    );
    let setup = Setup {
        scratch: &scratch,
        programs,
        core: options.cores.switch_core,
        plug: Plug::Vhost,
    };
    let mut switch = Windlass::start(&setup, scratch.join("port.sock"), "auto")?;
    let mut shots = Vec::new();
    for round in 0..options.rounds {
        for &layout in &options.layouts {
            shots.push(measure(options, round, layout, &setup, &mut switch)?);
        }
    }
    print(options, &shots);
    write_json(json, &shots)
}

fn measure(
    options: &Options,
    round: usize,
    layout: Layout,
    setup: &Setup<'_>,
    switch: &mut Windlass,
) -> Result<Shot> {
    let mut command = setup.plug.generator(setup, switch);
    command.args(["--hold", "--measure", "gap", "--layout", layout.name()]);
    command.args(["--seconds", &options.seconds.to_string()]);
    command.args(["--warm", &WARM.to_string()]);
    command.args(["--core", &options.cores.generator_core.to_string()]);
    let mut generator = Child::start_held(command)?;
    stop::pause(KILL_AFTER)?;
    switch.daemon.kill_and_start()?;
    let text = generator.first_line(Duration::from_secs_f64(options.seconds) + SLACK)?;
    let report: GapReport = serde_json::from_str(&text).context("the generator's line")?;
    if report.restarts == 0 || report.received == 0 || report.gap_ms == 0.0 {
        bail!("no frame came after a kill, or none was noticed: {report:?}");
    }
    let drops = [switch.daemon.drops("v0")?, switch.daemon.drops("v1")?];
    generator.release(SLACK)?;
    let shot = Shot {
        round,
        layout,
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
        "  kill {} {}: {gap_ms:.1} ms, {repeated} repeated, {wrong} damaged, {missing} missing, \
         {missing_other} at other times; \
         dropped since: {:?}",
        round + 1,
        layout.name(),
        shot.drops
    );
    Ok(shot)
}

fn print(options: &Options, shots: &[Shot]) {
    let titles = [
        "rings",
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
    for &layout in &options.layouts {
        let of = || shots.iter().filter(move |s| s.layout == layout);
        let show = |value: fn(&Shot) -> f64, digits: usize| {
            Spread::of(of().map(value))
                .map_or_else(|| "-".to_owned(), |spread| format!("{spread:.digits$}"))
        };
        let is_met = of().all(|s| {
            s.report.gap_ms < BAR_MS && s.report.wrong == 0 && s.report.repeated <= REPEATED_MAX
        });
        table.row(vec![
            layout.name().to_owned(),
            show(|s| s.report.gap_ms, 1),
            show(|s| s.report.longest_other_ms, 1),
            show(|s| s.report.repeated as f64, 0),
            show(|s| s.report.wrong as f64, 0),
            show(|s| s.report.missing as f64, 0),
            show(|s| s.report.missing_other as f64, 0),
            show(|s| s.is_dropped() as f64, 0),
            verdict(is_met).to_owned(),
        ]);
    }
    println!("\n{table}");
    let without = shots.iter().filter(|s| s.report.missing == 0).count();
    println!(
        "median [lowest highest] of {} kills; bar: each under {BAR_MS} ms, none damaged, at most \
         {REPEATED_MAX} repeated",
        options.rounds
    );
    println!(
        "{without} of {} kills without a missing frame. A frame to a guest that is not connected again, or whose ring \
         is full, is dropped and counted; what the killed daemon held in its own memory for a full ring is lost with it",
        shots.len()
    );
}
