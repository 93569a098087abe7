//! What memory costs in small pages, transparent huge pages and pages of the reserve.
//!
//! The program is `bench/c/pages.c`: each run maps 512 MiB anew. The kinds take turns.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::child;
use super::host::{HugePages, Scratch, describe, require};
use super::stop;
use super::table::{Spread, Table, write_json};

const KINDS: [&str; 3] = ["4k", "thp", "hugetlb"];
/// What the program prints, in its order.
const FIGURES: [&str; 4] = [
    "touch it all, ms",
    "page tables, KiB",
    "register with io_uring, ms",
    "dependent random load, ns",
];
/// 512 MiB.
const HUGE_PAGES_WANTED: u64 = 256;

/// 512 MiB in small pages, transparent huge pages and pages of the reserve.
#[derive(Args, Debug)]
pub struct Options {
    /// How often each kind is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// One run of the program.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    pages: &'static str,
    figures: Vec<f64>,
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If the program cannot be compiled or run, the host has too few huge pages, or the run was interrupted.
pub fn run(options: &Options, json: Option<&PathBuf>) -> Result<()> {
    require(&[("cc", "gcc")])?;
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    let program = scratch.path().join("pages");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/pages.c");
    let (program, source) = (program.display().to_string(), source.display().to_string());
    child::run("cc", ["-O2", "-o", &*program, &*source])?;
    println!(
        "512 MiB in each kind of pages, best [worst]; {}",
        describe()
    );
    let mut shots = Vec::new();
    for round in 0..options.rounds {
        for pages in KINDS {
            stop::check()?;
            let figures = measure(&program, pages)?;
            shots.push(Shot {
                round,
                pages,
                figures,
            });
        }
    }
    print(&shots);
    write_json(json, &shots)
}

fn measure(program: &str, pages: &str) -> Result<Vec<f64>> {
    let output = Command::new(program).arg(pages).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{pages}: {}", said.trim());
    let text = String::from_utf8(output.stdout)?;
    let figures: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let figures = figures.with_context(|| format!("{pages}: {text}"))?;
    ensure!(figures.len() == FIGURES.len(), "{pages}: {text}");
    Ok(figures)
}

fn print(shots: &[Shot]) {
    let mut table = Table::new(&[&[""], &KINDS[..]].concat());
    for (at, figure) in FIGURES.into_iter().enumerate() {
        let cells = KINDS.map(|pages| {
            let of_kind = shots.iter().filter(|shot| shot.pages == pages);
            let spread = Spread::of(of_kind.map(|shot| shot.figures[at]));
            spread.map_or_else(String::new, |s| format!("{:.2} [{:.2}]", s.low, s.high))
        });
        table.row([figure.to_owned()].into_iter().chain(cells).collect());
    }
    print!("{table}");
}
