//! What a bad guest costs two others, beside what an honest one does that offers the same descriptors and kicks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::host::{HugePages, Scratch, describe};
use super::peers::{Plug, Setup, Switch, Windlass, add_vnic, guest_socket};
use super::rate::{Turns, shoot};
use super::table::{Spread, Table, verdict, write_json};
use super::{deaf, holes};
use crate::third::{Conduct, THIRD, ThirdReport};

/// The least share of the others' rate beside an honest guest.
const BAR: f64 = 0.95;

const HUGE_PAGES_WANTED: u64 = 32;

/// Two guests that exchange frames of 64 bytes, and a third one.
#[derive(Args, Debug)]
pub struct Options {
    /// What a bad guest does
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "broken,loop,out-of-range,spread,oversized,spoofed,kicks-only"
    )]
    conducts: Vec<Conduct>,
    /// Descriptors that the third guest offers a second
    #[arg(long, default_value_t = 1e6)]
    descriptors: f64,
    /// Kicks that it sends a second
    #[arg(long, default_value_t = 20e3)]
    kicks: f64,
    #[command(flatten)]
    holes: holes::HoleOptions,
    #[command(flatten)]
    deaf: deaf::DeafOptions,
    #[command(flatten)]
    turns: Turns,
}

/// All that was measured.
#[derive(Debug, Serialize)]
struct Report {
    rates: Vec<Shot>,
    holes: Vec<holes::Shot>,
    deaf: Vec<deaf::Shot>,
}

/// The generator's line.
#[derive(Debug, Deserialize, Serialize)]
struct Line {
    sent: u64,
    received: u64,
    mpps: f64,
    lost: u64,
    wrong_length: u64,
    third: ThirdReport,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    conduct: Conduct,
    #[serde(flatten)]
    line: Line,
    disturbed: bool,
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If the daemon fails, nothing flowed, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let turns = &options.turns;
    let rates = run_rates(options, programs)?;
    let core = turns.cores.switch_core;
    let holes = holes::run(&options.holes, turns.rounds, programs, core)?;
    let deaf = deaf::run(&options.deaf, turns.rounds, programs, core)?;
    write_json(json, &Report { rates, holes, deaf })
}

fn run_rates(options: &Options, programs: &Path) -> Result<Vec<Shot>> {
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    println!(
        "two guests beside a third that offers {:.0} descriptors and {:.0} kicks a second; {}",
        options.descriptors,
        options.kicks,
        describe()
    );
    let setup = Setup {
        scratch: &scratch,
        programs,
        core: options.turns.cores.switch_core,
        plug: Plug::Vhost,
    };
    let mut switch = Windlass::start(&setup, scratch.join("port.sock"), "auto")?;
    let third = setup.plug.attachment(2, switch.socket());
    add_vnic(&switch.daemon, ("v2", "br0"), THIRD, "", &third)?;
    let mut shots = Vec::new();
    for round in 0..options.turns.rounds {
        // Before each bad one an honest one: their neighbour in time is what it is measured against.
        for &bad in &options.conducts {
            for conduct in [Conduct::Honest, bad] {
                shots.push(measure(options, round, conduct, &setup, &mut switch)?);
            }
        }
    }
    let drops = switch.daemon.drops("v2")?;
    print(options, &shots, &drops);
    Ok(shots)
}

fn measure(
    options: &Options,
    round: usize,
    conduct: Conduct,
    setup: &Setup<'_>,
    switch: &mut Windlass,
) -> Result<Shot> {
    let turns = &options.turns;
    let mut command = setup.plug.generator(setup, switch);
    command
        .arg("--third-socket")
        .arg(guest_socket(switch.socket(), 2));
    command.args(["--conduct", &conduct.name()]);
    command.args(["--third-descriptors", &options.descriptors.to_string()]);
    command.args(["--third-kicks", &options.kicks.to_string()]);
    command.args(["--core", &turns.cores.generator_core.to_string()]);
    command.args(["--seconds", &turns.seconds.to_string()]);
    command.args(["--warm", &turns.warm.to_string()]);
    let report = shoot(switch, command, turns.seconds, |line: &Line| line.sent)?;
    let line = report.line;
    let third = &line.third;
    if line.received == 0 || line.wrong_length > 0 {
        bail!("the two guests' frames did not arrive as they were sent: {line:?}");
    }
    let acted = match conduct {
        Conduct::KicksOnly => third.kicks > 0,
        Conduct::Honest => third.taken > 0 && !third.left,
        _ => third.taken > 0 || third.left,
    };
    if !acted {
        bail!("the third guest ({}) did nothing: {line:?}", conduct.name());
    }
    eprintln!(
        "  round {} {:12} {:.2} M/s lost {} third: {} descriptors taken, {} kicks{}{}",
        round + 1,
        conduct.name(),
        line.mpps,
        line.lost,
        third.taken,
        third.kicks,
        if third.left { ", disconnected" } else { "" },
        if report.disturbed { " disturbed" } else { "" }
    );
    Ok(Shot {
        round,
        conduct,
        line,
        disturbed: report.disturbed,
    })
}

fn print(options: &Options, shots: &[Shot], drops: &BTreeMap<String, u64>) {
    let titles = [
        "third guest",
        "M/s beside it",
        "of honest",
        "its descriptors, k",
        "bar",
    ];
    let mut table = Table::new(&titles);
    let pairs: Vec<(&Shot, &Shot)> = shots
        .chunks_exact(2)
        .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
        .collect();
    let show = |values: Vec<f64>, digits: usize| {
        Spread::of(values).map_or_else(|| "-".to_owned(), |spread| format!("{spread:.digits$}"))
    };
    let of = |conduct: Conduct| shots.iter().filter(move |s| s.conduct == conduct);
    let rates = |conduct| show(of(conduct).map(|s| s.line.mpps).collect(), 2);
    let taken = |conduct| {
        show(
            of(conduct)
                .map(|s| s.line.third.taken as f64 / 1e3)
                .collect(),
            0,
        )
    };
    let honest = Conduct::Honest;
    table.row(vec![
        honest.name(),
        rates(honest),
        "1".to_owned(),
        taken(honest),
        String::new(),
    ]);
    for &conduct in &options.conducts {
        let shares: Vec<f64> = pairs
            .iter()
            .filter(|(_, bad)| bad.conduct == conduct)
            .map(|(honest, bad)| bad.line.mpps / honest.line.mpps)
            .collect();
        let is_met = Spread::of(shares.iter().copied()).is_some_and(|share| share.median >= BAR);
        table.row(vec![
            conduct.name(),
            rates(conduct),
            show(shares, 3),
            taken(conduct),
            verdict(is_met).to_owned(),
        ]);
    }
    println!("\n{table}");
    let left = shots.iter().filter(|s| s.line.third.left).count();
    let disturbed = shots.iter().filter(|s| s.disturbed).count();
    println!(
        "median [lowest highest] of {} rounds; bar: {BAR} of what it is beside an honest guest; {left} times the third \
         was disconnected; {disturbed} of {} measurements disturbed by other programs",
        options.turns.rounds,
        shots.len()
    );
    let reasons: Vec<String> = drops
        .iter()
        .map(|(reason, frames)| format!("{reason} {frames}"))
        .collect();
    println!("dropped at the third guest: {}", reasons.join(", "));
}
