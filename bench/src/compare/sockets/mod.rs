//! # Purpose
//! The same programs through the kernel and accelerated, on the sockets of one host: every figure of both sides in one
//! run, with what else carries bytes between two processes, and where the bars are.
//!
//! # Model
//! A [`figures::Group`] is a set of cases that take turns, a [`measure::Pair`] one case: server and client, each
//! started as a [`place::Runner`] says. The programs know nothing of windlass. In every second round the order is turned round.
//!
//! # What it shows
//! One-way time of a cache line between the two cores first: bars for latency are multiples of it. The share of bytes
//! that went by a ring stands behind each accelerated figure, from the counters of the processes themselves.
//!
//! # Failure modes
//! A program that is missing leaves its rows out, by name. Everything runs as a user made for the run, in a namespace
//! and a directory of its own, and what is left of it is ended and removed with them ([`place::Place`]).

pub mod figures;
pub mod measure;
pub mod place;
pub mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::figures::{Bar, Group, Line, Ours, Row};
use self::place::{Place, two_cores};
use super::host::describe;
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use crate::sock::line;

/// Less than this share of bytes by a ring is pointed out where both ends were accelerated.
const RING_SHARE_MIN: f64 = 0.5;

/// A turn is not made shorter than so many seconds.
const SECONDS_MIN: f64 = 0.2;

/// The same programs through the kernel and accelerated.
#[derive(Args, Debug)]
pub struct Options {
    /// Rows of the table; without them, all
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
    /// Measure only what has this in its title
    #[arg(long, default_value = "")]
    only: String,
    /// Turns of each case
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured seconds of each turn, where a program can be told
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Microseconds that the accelerated side spins, where a row says nothing else
    #[arg(long, default_value_t = 50)]
    spin: u32,
    /// The kernel on both sides: shows what a ratio of 1 looks like on this machine
    #[arg(long)]
    bare: bool,
}

/// One figure of one turn.
#[derive(Clone, Debug, Serialize)]
struct Shot {
    row: Row,
    title: String,
    case: &'static str,
    figure: &'static str,
    value: f64,
}

/// What is written to the file.
#[derive(Serialize)]
struct Record {
    host: String,
    line_ns: f64,
    shots: Vec<Shot>,
}

/// Measures, and prints the table.
///
/// # Errors
/// If something cannot be started, fails, or is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let cores = two_cores()?;
    let line_us = line::one_way(cores)? / 1e3;
    let host = describe();
    println!("{host}");
    println!(
        "L, one way of a cache line between cores {} and {}: {:.0} ns",
        cores[0],
        cores[1],
        line_us * 1e3
    );
    let ours = if options.bare {
        println!("the kernel on both sides: what is called windlass here is the kernel again");
        Ours::bare()
    } else {
        Ours::windlass(options.spin)
    };
    let place = Place::create(programs, !options.bare, cores)?;
    let rows = match &options.rows[..] {
        [] => Row::value_variants(),
        rows => rows,
    };
    let mut shots = Vec::new();
    let stolen = stolen_ticks();
    for &row in rows {
        let mut groups = ours.groups(row);
        groups.retain(|group| group.title.contains(&options.only));
        for group in groups {
            let missing = group.cases.iter().find_map(|(_, pair)| pair.what.missing());
            if let Some(missing) = missing {
                println!("\nleft out: {}: {missing} is missing", group.title);
                continue;
            }
            let from = shots.len();
            measure_group(&group, options, &place, &mut shots)?;
            print!("\n{}", table(&group, &shots[from..], line_us));
        }
    }
    let stolen = stolen_ticks() - stolen;
    if stolen > 0 {
        println!("\nthe host took {stolen} ticks of 10 ms away from this machine meanwhile");
    }
    let line_ns = line_us * 1e3;
    write_json(
        json,
        &Record {
            host,
            line_ns,
            shots,
        },
    )
}

/// Ticks in which this machine wanted to run and another ran (the eighth number of the first line of `/proc/stat`).
fn stolen_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let word = text.split_ascii_whitespace().nth(8);
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn measure_group(
    group: &Group,
    options: &Options,
    place: &Place,
    shots: &mut Vec<Shot>,
) -> Result<()> {
    let seconds = (options.seconds / group.more_turns as f64).max(SECONDS_MIN.min(options.seconds));
    for round in 0..options.rounds * group.more_turns {
        let mut cases: Vec<_> = group.cases.iter().collect();
        if round % 2 == 1 {
            cases.reverse();
        }
        for (case, pair) in cases {
            stop::check()?;
            let figures = pair
                .measure(place, seconds)
                .with_context(|| format!("{}, {case}", group.title))?;
            let share = place.take_ring_share().unwrap_or(0.0);
            let share = pair.wants_ring().then_some((RING_SHARE, share));
            shots.extend(
                figures
                    .into_iter()
                    .chain(share)
                    .map(|(figure, value)| Shot {
                        row: group.row,
                        title: group.title.clone(),
                        case,
                        figure,
                        value,
                    }),
            );
        }
    }
    Ok(())
}

/// The name of the share of bytes that went by a ring among the figures.
const RING_SHARE: &str = "ring share";

/// Medians of a group by case and figure.
struct Medians(BTreeMap<(&'static str, &'static str), Spread>);

impl Medians {
    fn of(shots: &[Shot]) -> Medians {
        let mut values: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for shot in shots {
            values
                .entry((shot.case, shot.figure))
                .or_default()
                .push(shot.value);
        }
        let spread = |(key, values)| Some((key, Spread::of(values)?));
        Medians(values.into_iter().filter_map(spread).collect())
    }

    fn get(&self, case: &'static str, figure: &'static str) -> Option<Spread> {
        self.0.get(&(case, figure)).copied()
    }

    /// How many times better one case is than another.
    fn times(&self, line: &Line, case: &'static str, other: &'static str) -> f64 {
        let of = |case| {
            self.get(case, line.figure)
                .map_or(f64::NAN, |spread| spread.median)
        };
        if line.is_rate {
            of(case) / of(other)
        } else {
            of(other) / of(case)
        }
    }

    /// What the bar is in words, and whether it is met; `None` without one.
    fn judge(&self, line: &Line, line_us: f64) -> Option<(String, bool)> {
        let ours = self.get(line.of, line.figure)?.median;
        Some(match line.bar {
            Bar::Shown => return None,
            Bar::Lines(most) => (
                format!(
                    "{:.2} L, at most {most} L = {:.3}",
                    ours / line_us,
                    most * line_us
                ),
                ours <= most * line_us,
            ),
            Bar::AtMostOrTimes(most, times, other) => {
                let most = most.max(times * self.get(other, line.figure)?.median);
                (
                    format!("at most {most:.1}: the fixed figure or {times} times {other}"),
                    ours <= most,
                )
            }
            Bar::Times(least, others) => {
                let than = |other: &&'static str| (self.times(line, line.of, other), *other);
                let pairs = others.iter().map(than);
                let (times, best) = pairs.min_by(|one, other| one.0.total_cmp(&other.0))?;
                (
                    format!("{times:.2} times {best}, at least {least}"),
                    times >= least,
                )
            }
            Bar::More(most, other) => {
                let more = ours - self.get(other, line.figure)?.median;
                (format!("{more:+.2}, at most {most:+}"), more <= most)
            }
        })
    }
}

fn table(group: &Group, shots: &[Shot], line_us: f64) -> String {
    let medians = Medians::of(shots);
    let figures = distinct(group.lines.iter().map(|line| (line.figure, line.unit)));
    let names = figures.iter().map(|(figure, _)| *figure);
    let titles: Vec<&str> = std::iter::once(group.title.as_str()).chain(names).collect();
    let mut table = Table::new(&titles);
    for (case, _) in &group.cases {
        let mut cells = vec![format!("  {case}")];
        cells.extend(figures.iter().map(|(figure, unit)| {
            let spread = medians.get(case, figure);
            spread.map_or_else(|| "-".into(), |spread| show(spread, figure, unit))
        }));
        if let Some(share) = medians.get(case, RING_SHARE) {
            let percent = share.median * 100.0;
            let note = if share.median < RING_SHARE_MIN && group.row.goes_by_ring() {
                "NOT ACCELERATED: "
            } else {
                ""
            };
            cells.push(format!("{note}{percent:.1} % by the ring"));
        }
        table.row(cells);
    }
    let bars = group.lines.iter().filter_map(|line| {
        let (text, met) = medians.judge(line, line_us)?;
        let (of, figure) = (line.of, line.figure);
        Some(format!("  {of}, {figure}: {text}: {}\n", verdict(met)))
    });
    bars.fold(table.to_string(), |text, bar| text + &bar)
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut kept, one| {
        if !kept.contains(&one) {
            kept.push(one);
        }
        kept
    })
}

/// Rates of requests are large, times are small.
fn show(spread: Spread, figure: &str, unit: &str) -> String {
    let digits = if spread.median >= 1000.0 {
        0
    } else if spread.median >= 10.0 {
        1
    } else {
        3
    };
    let unit = if unit == figure {
        String::new()
    } else {
        format!(" {unit}")
    };
    format!("{spread:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shot(case: &'static str, figure: &'static str, value: f64) -> Shot {
        Shot {
            row: Row::Ping,
            title: String::new(),
            case,
            figure,
            value,
        }
    }

    /// A ratio is better where a rate is higher and where a time is lower; each bar is met at its edge, and missed
    /// beyond it.
    #[test]
    fn bars_are_judged() {
        let medians = Medians::of(&[
            shot("windlass", "p50", 0.28),
            shot("kernel", "p50", 2.8),
            shot("windlass", "GET", 200.0),
            shot("kernel", "GET", 100.0),
            shot("other", "GET", 250.0),
        ]);
        let line = |figure, is_rate, bar| Line {
            figure,
            unit: figure,
            is_rate,
            of: "windlass",
            bar,
        };
        let is_met = |figure, is_rate, bar| {
            let judged = medians.judge(&line(figure, is_rate, bar), 0.14);
            judged.map(|(_, met)| met)
        };
        assert_eq!(is_met("p50", false, Bar::Lines(2.0)), Some(true));
        assert_eq!(is_met("p50", false, Bar::Lines(1.9)), Some(false));
        assert_eq!(
            is_met("p50", false, Bar::Times(9.9, &["kernel"])),
            Some(true)
        );
        assert_eq!(
            is_met("p50", false, Bar::Times(10.1, &["kernel"])),
            Some(false)
        );
        assert_eq!(
            is_met("GET", true, Bar::Times(2.0, &["kernel"])),
            Some(true)
        );
        let all = Bar::Times(1.0, &["kernel", "other"]);
        assert_eq!(is_met("GET", true, all), Some(false));
        assert_eq!(is_met("GET", true, Bar::More(99.0, "kernel")), Some(false));
        assert_eq!(is_met("GET", true, Bar::Shown), None);
        let either = |most, times| Bar::AtMostOrTimes(most, times, "kernel");
        assert_eq!(is_met("p50", false, either(0.28, 0.01)), Some(true));
        assert_eq!(is_met("p50", false, either(0.01, 0.11)), Some(true));
        assert_eq!(is_met("p50", false, either(0.27, 0.09)), Some(false));
        assert_eq!(is_met("SET", true, either(1.0, 1.0)), None);
    }

    /// Every bar names cases of its own group, so that none is judged against nothing.
    #[test]
    fn bars_name_cases_that_are_there() {
        for row in Row::value_variants() {
            for group in Ours::windlass(50).groups(*row) {
                let has = |name: &str| group.cases.iter().any(|(case, _)| *case == name);
                for line in &group.lines {
                    assert!(has(line.of), "{}: {}", group.title, line.of);
                    match line.bar {
                        Bar::More(_, other) | Bar::AtMostOrTimes(_, _, other) => {
                            assert!(has(other));
                        }
                        Bar::Times(_, others) => assert!(others.iter().all(|other| has(other))),
                        Bar::Shown | Bar::Lines(_) => {}
                    }
                }
            }
        }
    }
}
