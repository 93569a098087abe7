//! Port to port through one forwarding core, over memif or vhost-user: frames a second, frames lost, busy cycles a frame,
//! and the time of a single frame.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::capture::Captured;
use super::child::Child;
use super::host::{HugePages, Scratch, describe};
use super::peers::{Plug, Setup, Subject, Switch};
use super::table::{Spread, Table, write_json};
use crate::generator::Sink;
use crate::vhost::Layout;

/// Room for testpmd or OVS (256 MiB and what DPDK adds), and for the generator's two regions.
pub(super) const HUGE_PAGES_WANTED: u64 = 700;

/// A generator has this long beyond its measured time: connecting, announcing, draining.
const SLACK: Duration = Duration::from_secs(15);

/// If the switch waited for its core for more than this share of the time, something else ran beside it.
const DISTURBED_SHARE: f64 = 0.01;

/// What both comparisons are told.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "null,windlass,testpmd,ovs"
    )]
    subjects: Vec<Subject>,
    /// Bytes of a frame
    #[arg(long, value_delimiter = ',', default_value = "64,256,1518")]
    sizes: Vec<usize>,
    /// Destination addresses
    #[arg(long, value_delimiter = ',', default_value = "1,1000")]
    addresses: Vec<u16>,
    /// What the sink does
    #[arg(long, value_enum, value_delimiter = ',', default_value = "count,check")]
    sinks: Vec<Sink>,
    /// Leave out the single frames
    #[arg(long)]
    no_latency: bool,
    #[command(flatten)]
    turns: Turns,
}

/// Where the two sides run.
#[derive(Args, Debug)]
pub struct Cores {
    /// Core of the switch
    #[arg(long, default_value_t = 0)]
    pub(super) switch_core: usize,
    /// Core of the generator
    #[arg(long, default_value_t = 1)]
    pub(super) generator_core: usize,
}

/// How subjects take turns.
#[derive(Args, Debug)]
pub struct Turns {
    /// Turns of each subject
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,
    /// Measured seconds of each case
    #[arg(long, default_value_t = 2.0)]
    pub(super) seconds: f64,
    /// Seconds before the measurement of each case
    #[arg(long, default_value_t = 1.0)]
    pub(super) warm: f64,
    #[command(flatten)]
    pub(super) cores: Cores,
}

/// What is measured with each subject.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Case {
    /// Full rate.
    Rate {
        guest: Option<Guest>,
        size: usize,
        addresses: u16,
        sink: Sink,
    },
    /// Full rate of the smallest frames, in so many flows, through a firewall of so many rules.
    Filtered { rules: u16, flows: u16 },
    /// Full rate of the smallest frames, beside a capture.
    Captured(Captured),
    /// One frame at a time.
    Single { guest: Option<Guest>, size: usize },
    /// One frame there and one back, and a pause of so many microseconds.
    Trip { guest: Guest, pause_us: u64 },
}

impl Case {
    fn name(self) -> String {
        let of = |guest: Option<Guest>| guest.map_or_else(String::new, |guest| guest.name() + ", ");
        match self {
            Case::Rate {
                guest,
                size,
                addresses,
                sink,
            } => {
                let sink = sink
                    .to_possible_value()
                    .map_or(String::new(), |v| v.get_name().to_owned());
                format!("{}{size} B, {addresses} addr., {sink}", of(guest))
            }
            Case::Filtered { rules, flows } => format!("{rules} rules, {flows} flows"),
            Case::Captured(how) => how
                .words()
                .map_or_else(|| "no capture".into(), |words| format!("snoop {words}")),
            Case::Single { guest, size } => format!("{}{size} B, one at a time", of(guest)),
            Case::Trip { guest, pause_us } => {
                format!("{}, there and back, pause {pause_us} us", guest.name())
            }
        }
    }
}

/// How a guest's rings are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Guest {
    /// Their layout.
    pub layout: Layout,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// In order.
    pub in_order: bool,
    /// Descriptors, as a power of two.
    pub log2_ring: u8,
}

impl Guest {
    fn name(self) -> String {
        let layout = self.layout.name();
        let order = if self.in_order { "" } else { " any order" };
        let merge = if self.mergeable { " mrg" } else { "" };
        format!("{layout}{merge}{order}")
    }

    fn tell(self, command: &mut Command) {
        let layout = self.layout.name();
        command.args(["--layout", layout]);
        command.args(["--log2-ring", &self.log2_ring.to_string()]);
        if self.mergeable {
            command.arg("--mergeable");
        }
        if !self.in_order {
            command.arg("--no-in-order");
        }
    }
}

/// The generator's line, whichever report it is.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Line {
    sent: u64,
    mpps: f64,
    lost: u64,
    lost_share: f64,
    wrong_length: u64,
    wrong_bytes: u64,
    reordered: u64,
    idle_share: f64,
    huge_pages: bool,
    p50_ns: u64,
    p99_ns: u64,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    subject: Subject,
    case: Case,
    #[serde(flatten)]
    line: Line,
    /// Busy time-stamp cycles a frame, if the subject tells.
    cycles: Option<f64>,
    /// The switch had to wait for its core: something else ran there.
    disturbed: bool,
}

/// Everything, as it is written to the file of results.
#[derive(Serialize)]
struct Results<'a> {
    machine: String,
    shots: &'a [Shot],
}

/// Measures, prints the tables, and writes the single measurements to `json`.
///
/// # Errors
/// If a subject is missing or fails, or the run is interrupted.
pub fn run(
    options: &Options,
    plug: Plug,
    guests: &[Guest],
    programs: &Path,
    json: Option<&PathBuf>,
) -> Result<()> {
    let run = Run {
        turns: &options.turns,
        subjects: &options.subjects,
        cases: cases(options, guests),
        plug,
    };
    take_turns(&run, programs, json)
}

/// Measures every case with every subject in turns, prints the tables, and writes the single measurements to `json`.
///
/// # Errors
/// If a subject is missing or fails, or the run is interrupted.
pub(super) fn take_turns(run: &Run<'_>, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    for subject in run.subjects {
        subject.prepare()?;
    }
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    let machine = describe();
    println!("{} to {}; {machine}", run.plug.name(), run.plug.name());
    let mut shots = Vec::new();
    for round in 0..run.turns.rounds {
        for subject in run.subjects {
            let setup = Setup {
                scratch: &scratch,
                programs,
                core: run.turns.cores.switch_core,
                plug: run.plug,
            };
            let turn = take_turn(run, *subject, round, &setup, &mut shots);
            turn.with_context(|| format!("{} in round {}", subject.name(), round + 1))?;
        }
    }
    print(run, &shots);
    write_json(
        json,
        &Results {
            machine,
            shots: &shots,
        },
    )
}

/// Full rate of frames of 64 bytes to one address through a subject that is started for it, in millions a second.
pub(super) fn smallest(turns: &Turns, subject: Subject, setup: &Setup<'_>) -> Result<f64> {
    let case = Case::Rate {
        guest: None,
        size: 64,
        addresses: 1,
        sink: Sink::Count,
    };
    let run = Run {
        turns,
        subjects: &[subject],
        cases: vec![case],
        plug: setup.plug,
    };
    let mut switch = subject.start(setup)?;
    let shot = measure(&run, subject, case, 0, setup, &mut *switch)?;
    Ok(shot.line.mpps)
}

/// One comparison.
pub(super) struct Run<'a> {
    pub turns: &'a Turns,
    pub subjects: &'a [Subject],
    pub cases: Vec<Case>,
    pub plug: Plug,
}

/// Every combination, with guests one after the other; there are none over memif.
fn cases(options: &Options, guests: &[Guest]) -> Vec<Case> {
    let guests: Vec<Option<Guest>> = match guests {
        [] => vec![None],
        guests => guests.iter().copied().map(Some).collect(),
    };
    let mut cases = Vec::new();
    for guest in guests {
        for &size in &options.sizes {
            for &addresses in &options.addresses {
                for &sink in &options.sinks {
                    cases.push(Case::Rate {
                        guest,
                        size,
                        addresses,
                        sink,
                    });
                }
            }
        }
        if !options.no_latency {
            cases.push(Case::Single { guest, size: 64 });
        }
    }
    cases
}

fn take_turn(
    run: &Run<'_>,
    subject: Subject,
    round: usize,
    setup: &Setup<'_>,
    shots: &mut Vec<Shot>,
) -> Result<()> {
    let mut switch = subject.start(setup)?;
    let mut rules_before = 0;
    for &case in &run.cases {
        if let Case::Filtered { rules, .. } = case
            && rules != rules_before
        {
            switch.filter(rules)?;
            rules_before = rules;
        }
        let capture = match case {
            Case::Captured(how) => {
                let words = how.words();
                words.map(|words| switch.capture(words)).transpose()?
            }
            _ => None,
        };
        let shot =
            measure(run, subject, case, round, setup, &mut *switch).with_context(|| case.name())?;
        drop(capture);
        eprintln!(
            "  round {} {:12} {:44} {:6.2} M/s lost {:.4} % cycles {:.0} p50 {} ns{}",
            round + 1,
            subject.name(),
            case.name(),
            shot.line.mpps,
            shot.line.lost_share * 100.0,
            shot.cycles.unwrap_or(f64::NAN),
            shot.line.p50_ns,
            if shot.disturbed { " disturbed" } else { "" }
        );
        shots.push(shot);
    }
    Ok(())
}

fn measure(
    run: &Run<'_>,
    subject: Subject,
    case: Case,
    round: usize,
    setup: &Setup<'_>,
    switch: &mut dyn Switch,
) -> Result<Shot> {
    let command = generator(run, case, setup, switch);
    let report = shoot(switch, command, run.turns.seconds, |line: &Line| line.sent)?;
    let line = report.line;
    // The null switch copies nothing, so sequence numbers do not arrive.
    if subject != Subject::Null && line.wrong_length + line.wrong_bytes > 0 {
        bail!("frames arrived damaged: {line:?}");
    }
    Ok(Shot {
        round,
        subject,
        case,
        line,
        cycles: report.cycles,
        disturbed: report.disturbed,
    })
}

/// What a generator reports, and what was seen of the switch meanwhile.
pub(super) struct Report<L> {
    pub line: L,
    /// Busy time-stamp cycles a frame, if the switch tells.
    pub cycles: Option<f64>,
    /// The switch had to wait for its core: something else ran there.
    pub disturbed: bool,
}

/// Runs a generator of `seconds` measured seconds to its end; `sent` is how many frames its line says it has sent.
pub(super) fn shoot<L: DeserializeOwned>(
    switch: &mut dyn Switch,
    mut command: Command,
    seconds: f64,
    sent: impl FnOnce(&L) -> u64,
) -> Result<Report<L>> {
    command.arg("--hold");
    switch.begin()?;
    let before = switch.process().map(|child| child.scheduled());
    let mut generator = Child::start_held(command)?;
    let text = generator.first_line(Duration::from_secs_f64(seconds) + SLACK)?;
    let after = switch.process().map(|child| child.scheduled());
    let waited = before
        .zip(after)
        .map_or(Duration::ZERO, |(before, after)| after.since(before).waited);
    let line: L = serde_json::from_str(&text).context("the generator's line")?;
    let cycles = switch.end(sent(&line))?;
    generator.release(SLACK)?;
    Ok(Report {
        line,
        cycles,
        disturbed: waited.as_secs_f64() > seconds * DISTURBED_SHARE,
    })
}

/// The generator's command line.
fn generator(run: &Run<'_>, case: Case, setup: &Setup<'_>, switch: &dyn Switch) -> Command {
    let options = run.turns;
    let mut command = run.plug.generator(setup, switch);
    let mut add = |words: &[&str]| {
        command.args(words);
    };
    add(&["--core", &options.cores.generator_core.to_string()]);
    add(&["--seconds", &options.seconds.to_string()]);
    add(&["--warm", &options.warm.to_string()]);
    let (guest, size) = match case {
        Case::Rate {
            guest,
            size,
            addresses,
            sink,
        } => {
            add(&["--addresses", &addresses.to_string()]);
            if sink == Sink::Check {
                add(&["--sink", "check"]);
            }
            (guest, size)
        }
        Case::Filtered { flows, .. } => {
            // As many slots as flows, at least.
            let log2_ring = flows.next_power_of_two().ilog2().max(10);
            add(&["--flows", &flows.to_string()]);
            add(&["--log2-ring", &log2_ring.to_string()]);
            (None, 64)
        }
        Case::Captured(_) => (None, 64),
        Case::Single { guest, size } => {
            add(&["--measure", "latency"]);
            (guest, size)
        }
        Case::Trip { guest, pause_us } => {
            add(&["--measure", "trip", "--pause-us", &pause_us.to_string()]);
            (Some(guest), 64)
        }
    };
    add(&["--size", &size.to_string()]);
    if let Some(guest) = guest {
        guest.tell(&mut command);
    }
    command
}

fn print(run: &Run<'_>, shots: &[Shot]) {
    let mut titles = vec!["millions of frames/s"];
    titles.extend(run.subjects.iter().map(|subject| subject.name()));
    let rates = |shot: &Shot| Some(shot.line.mpps);
    let lost = |shot: &Shot| Some(shot.line.lost_share * 1e6);
    let single = |shot: &Shot| Some(shot.line.p50_ns as f64);
    let tail = |shot: &Shot| Some(shot.line.p99_ns as f64);
    let (rate, one): (Vec<Case>, Vec<Case>) = run
        .cases
        .iter()
        .partition(|case| !matches!(case, Case::Single { .. } | Case::Trip { .. }));
    let mut show = |title, cases: &[Case], digits, value: &dyn Fn(&Shot) -> Option<f64>| {
        titles[0] = title;
        println!("\n{}", tabulate(run, &titles, cases, shots, digits, value));
    };
    if !rate.is_empty() {
        show("millions of frames/s", &rate, 2, &rates);
        show("busy cycles/frame", &rate, 0, &|shot| shot.cycles);
        show("lost, parts in a million", &rate, 1, &lost);
    }
    if !one.is_empty() {
        show("p50, ns", &one, 0, &single);
        show("p99, ns", &one, 0, &tail);
    }
    let disturbed = shots.iter().filter(|shot| shot.disturbed).count();
    let small = shots
        .iter()
        .filter(|shot| !shot.line.huge_pages && shot.line.mpps > 0.0)
        .count();
    let counted = |case: &Case| {
        matches!(
            case,
            Case::Rate {
                sink: Sink::Count,
                ..
            } | Case::Filtered { .. }
                | Case::Captured(_)
        )
    };
    let note = match run.cases.iter().any(counted) {
        true => "; the sink that only counts flatters every switch",
        false => "",
    };
    println!(
        "median [lowest highest] of {} rounds{note}",
        run.turns.rounds
    );
    println!(
        "{disturbed} of {} measurements disturbed by other programs, {small} without huge pages",
        shots.len()
    );
}

fn tabulate(
    run: &Run<'_>,
    titles: &[&str],
    cases: &[Case],
    shots: &[Shot],
    digits: usize,
    value: &dyn Fn(&Shot) -> Option<f64>,
) -> Table {
    let mut table = Table::new(titles);
    for case in cases {
        let mut row = vec![case.name()];
        for subject in run.subjects {
            let of_case = shots
                .iter()
                .filter(|s| s.case == *case && s.subject == *subject);
            let spread = Spread::of(of_case.filter_map(value));
            row.push(spread.map_or_else(|| "-".to_owned(), |spread| format!("{spread:.digits$}")));
        }
        table.row(row);
    }
    table
}
