//! What a hit of a probe costs the program that is traced: windlass trace, bpftrace.
//!
//! The program is `bench/c/traced.c`. Both tracers start it, and it says itself what its calls cost; what they cost without a probe is taken off.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::child;
use super::host::{Scratch, describe, require};
use super::stop;
use super::table::{Spread, Table, verdict, write_json};

/// What is measured: the compiler's word, the two clauses, and how much of bpftrace's cost ours may be.
struct Figure {
    name: &'static str,
    flag: &'static str,
    calls: u32,
    ours: &'static str,
    theirs: &'static str,
    bar: f64,
}

const FIGURES: [Figure; 3] = [
    Figure {
        name: "count, push",
        flag: "-fcf-protection=none",
        calls: 200_000,
        ours: "@ = count()",
        theirs: "@ = count();",
        bar: 1.1,
    },
    Figure {
        name: "count, endbr64 and push",
        flag: "-fcf-protection=full",
        calls: 50_000,
        ours: "@ = count()",
        theirs: "@ = count();",
        bar: 0.2,
    },
    Figure {
        name: "three pointers, text and time",
        flag: "-fcf-protection=none",
        calls: 5_000,
        ours: "print(r->conn->addr->name)",
        theirs: "printf(\"%llu %s\\n\", nsecs, ((struct req *)arg0)->conn->addr->name);",
        bar: 1.1,
    },
];

/// What our hit with three pointers, a text and the time may cost, as a multiple of our count.
const TYPED_BAR: f64 = 2.5;
/// The types of the program, which bpftrace is told.
const TYPES: &str = "struct addr { unsigned ip; char name[16]; }; struct conn { int id; struct addr *addr; }; \
     struct req { long bytes; struct conn *conn; };";

/// What a hit of a probe costs the traced program.
#[derive(Args, Debug)]
pub struct Options {
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Shot {
    figure: &'static str,
    who: &'static str,
    call_ns: f64,
}

const WHO: [&str; 3] = ["no probe", "windlass", "bpftrace"];

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If a program is missing or fails, or the run was interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[("cc", "gcc"), ("bpftrace", "bpftrace")])?;
    let scratch = Scratch::create()?;
    println!("nanoseconds of a hit, median [least, most]; {}", describe());
    let mut shots = Vec::new();
    for _ in 0..options.rounds {
        for figure in &FIGURES {
            let program = build(&scratch, figure.flag)?;
            for who in WHO {
                stop::check()?;
                let call_ns = measure(&scratch, programs, figure, who, &program)?;
                shots.push(Shot {
                    figure: figure.name,
                    who,
                    call_ns,
                });
            }
        }
    }
    print(&shots);
    write_json(json, &shots)
}

fn build(scratch: &Scratch, flag: &str) -> Result<String> {
    // bpftrace takes no "=" in a path.
    let name = format!("traced{}", flag.replace('=', "-"));
    let program = scratch.join(&name).display().to_string();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/traced.c");
    let source = source.display().to_string();
    if !Path::new(&program).exists() {
        child::run("cc", ["-g", "-O2", flag, "-o", &*program, &*source])?;
    }
    Ok(program)
}

fn measure(
    scratch: &Scratch,
    programs: &Path,
    figure: &Figure,
    who: &str,
    program: &str,
) -> Result<f64> {
    let said = scratch.join("said");
    let traced = format!("{program} {} {}", figure.calls, said.display());
    let mut command = match who {
        "windlass" => {
            let mut command = Command::new(programs.join("windlass"));
            command.args(["trace", "-c", &traced, "handle", figure.ours]);
            command
        }
        "bpftrace" => {
            let mut command = Command::new("bpftrace");
            let script = format!("{TYPES} uprobe:{program}:handle {{ {} }}", figure.theirs);
            command.args(["-c", &traced, "-e", &script]);
            command
        }
        _ => {
            let mut words = traced.split(' ');
            let mut command = Command::new(words.next().unwrap_or_default());
            command.args(words);
            command
        }
    };
    let output = command.output().with_context(|| format!("start {who}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{who}: {}", errors.trim());
    let text = std::fs::read_to_string(&said).with_context(|| format!("{who}: {errors}"))?;
    std::fs::remove_file(&said)?;
    text.trim()
        .parse()
        .with_context(|| format!("{who}: {text}"))
}

fn print(shots: &[Shot]) {
    let mut table = Table::new(&["", "windlass", "bpftrace", "ratio", "bar", ""]);
    let mut ours = Vec::new();
    for figure in &FIGURES {
        let of = |who: &str| {
            let own = shots
                .iter()
                .filter(|shot| shot.figure == figure.name && shot.who == who);
            Spread::of(own.map(|shot| shot.call_ns))
        };
        let (Some(none), Some(own), Some(peer)) = (of(WHO[0]), of(WHO[1]), of(WHO[2])) else {
            continue;
        };
        let cost = |spread: &Spread| {
            let of = |value: f64| value - none.median;
            format!(
                "{:.0} [{:.0}, {:.0}]",
                of(spread.median),
                of(spread.low),
                of(spread.high)
            )
        };
        let ratio = (own.median - none.median) / (peer.median - none.median).max(1.0);
        ours.push(own.median - none.median);
        table.row(vec![
            figure.name.to_owned(),
            cost(&own),
            cost(&peer),
            format!("{ratio:.2}"),
            format!("{:.1}", figure.bar),
            verdict(ratio <= figure.bar).to_owned(),
        ]);
    }
    if let [count, _, typed] = ours[..] {
        let ratio = typed / count.max(1.0);
        table.row(vec![
            "the last, beside our count".to_owned(),
            format!("{typed:.0}"),
            format!("{count:.0}"),
            format!("{ratio:.2}"),
            format!("{TYPED_BAR:.1}"),
            verdict(ratio <= TYPED_BAR).to_owned(),
        ]);
    }
    print!("{table}");
}
