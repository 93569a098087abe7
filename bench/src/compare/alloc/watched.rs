//! What being watched costs a program that allocates at full speed: samples, and a reader beside it.
//!
//! Short runs with and without, in pairs: the machine's own changes are slower than a pair. What a reader at `-i 1` costs is less than the spread of
//! any run, so that it reads up to a hundred times as often here, and its readings are counted: one a second loses what one reading does.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::LIBRARY;
use crate::compare::child::Child;
use crate::compare::host::Scratch;
use crate::compare::stop;
use crate::compare::table::{Table, verdict};

/// Pairs of runs in a round.
const PAIRS: usize = 8;
/// Seconds between two readings.
const OFTEN: &str = "0.01";
/// What is measured, and which share of its speed the program may lose.
const CASES: [(&str, f64); 2] = [("a reader at -i 1", 0.01), ("samples", 0.03)];
/// A run takes less than this.
const RUN_WITHIN: Duration = Duration::from_secs(20);

/// A run with, and the one without beside it, in seconds.
#[derive(Debug, Serialize)]
pub struct Pair {
    case: &'static str,
    with: f64,
    without: f64,
    /// Readings, of a reader's case.
    readings: Option<usize>,
}

impl Pair {
    /// The share that is lost: each second, if one reading is made in it.
    fn lost(&self) -> f64 {
        let lost = self.with - self.without;
        match self.readings {
            Some(readings) => lost / readings as f64,
            None => lost / self.without,
        }
    }
}

/// The median of shares, and where the true one is in 95 % of all cases, whatever their distribution.
#[derive(Debug, PartialEq)]
struct Median {
    value: f64,
    low: f64,
    high: f64,
}

impl Median {
    /// Of at least one value.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        // Ranks of the sign test's interval: 1.96 standard deviations of a fair coin's heads from the middle.
        let reach = (0.98 * (count as f64).sqrt()).ceil() as usize;
        let rank = |at: usize| values.get(at).copied();
        let (middle, last) = (count / 2, count.checked_sub(1)?);
        Some(Self {
            value: f64::midpoint(rank(middle)?, rank(last - middle)?),
            low: rank((count / 2).saturating_sub(reach))?,
            high: rank((count.div_ceil(2) + reach).min(last))?,
        })
    }
}

impl fmt::Display for Median {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| share * 100.0;
        let Self { value, low, high } = self;
        write!(
            f,
            "{:.2} % [{:.2} {:.2}]",
            percent(*value),
            percent(*low),
            percent(*high)
        )
    }
}

/// A run: its seconds, and how often it was read if a reader is beside it.
fn run(scratch: &Scratch, programs: &Path, words: &str, is_read: bool) -> Result<(f64, usize)> {
    let mut command = Command::new(scratch.join("alloc-loops"));
    command.arg("steady").env("WINDLASS_MEMORY", words);
    command.env("LD_PRELOAD", programs.join(LIBRARY));
    let program = Child::start_piped(command)?;
    let log = scratch.join("reader.log");
    let mut reader = None;
    if is_read {
        let mut command = Command::new(programs.join("windlass"));
        command.args(["memory", &program.pid().to_string(), "-i", OFTEN]);
        reader = Some(Child::start(&mut command, &log)?);
    }
    let seconds = program.output(RUN_WITHIN)?.trim().parse()?;
    let Some(reader) = reader else {
        return Ok((seconds, 0));
    };
    drop(reader);
    let readings = fs::read_to_string(&log)?.lines().count();
    ensure!(readings > 2, "the reader has read nothing");
    Ok((seconds, readings))
}

/// Measures and prints.
///
/// # Errors
/// If a program cannot be run, or the run was interrupted.
pub fn measure(scratch: &Scratch, programs: &Path, rounds: usize) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for _ in 0..rounds * PAIRS {
        stop::check()?;
        let (without, _) = run(scratch, programs, "sample=0", false)?;
        let (sampled, _) = run(scratch, programs, "", false)?;
        let (read, readings) = run(scratch, programs, "", true)?;
        let pair = |at: usize, with, without, readings| Pair {
            case: CASES[at].0,
            with,
            without,
            readings,
        };
        pairs.push(pair(0, read, sampled, Some(readings)));
        pairs.push(pair(1, sampled, without, None));
    }
    println!(
        "what a program that allocates at full speed loses: the median of {} pairs of runs, and its interval of 95 %",
        rounds * PAIRS
    );
    let mut table = Table::new(&["beside", "lost", "bar", ""]);
    for (case, bar) in CASES {
        let of = pairs.iter().filter(|pair| pair.case == case);
        let lost = Median::of(of.map(Pair::lost).collect()).context("no rounds")?;
        let is_met = verdict(lost.high <= bar).to_owned();
        let bar = format!("{:.0} %", bar * 100.0);
        table.row(vec![case.to_owned(), lost.to_string(), bar, is_met]);
    }
    print!("{table}");
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interval has the ranks of the sign test: of 100 values the 41st and the 61st.
    #[test]
    fn median_and_interval() {
        let values = (1..=100).rev().map(f64::from).collect();
        let median = Median::of(values).expect("values");
        assert_eq!((median.low, median.value, median.high), (41.0, 50.5, 61.0));
        assert_eq!(
            Median::of(vec![2.0]).map(|one| (one.low, one.high)),
            Some((2.0, 2.0))
        );
        assert_eq!(Median::of(Vec::new()), None);
    }

    /// A reading's cost is counted once a second.
    #[test]
    fn shares_that_are_lost() {
        let lost = |readings| {
            Pair {
                case: "",
                with: 0.75,
                without: 0.5,
                readings,
            }
            .lost()
        };
        assert_eq!((lost(None), lost(Some(25))), (0.5, 0.01));
    }
}
