//! What captures keep of a link at its own full rate: tcpdump at a veth pair of the kernel's bridge, `windlass snoop` at a VNIC over memif.
//!
//! The kernel's side is a sender with `sendmmsg`; both programs write to /dev/null, and their closing counts say what was captured.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::child::Child;
use super::framed;
use super::host::Scratch;
use super::peers::{Plug, READY_WITHIN, Setup, Subject};
use super::rate::{self, Turns};
use super::stop;
use super::table::{Spread, Table, verdict};

/// What `windlass snoop` is to capture a second, as a multiple of tcpdump.
const BAR: f64 = 3.0;
/// Bytes of each frame; 0: all.
const LENGTHS: [u32; 2] = [96, 0];

/// One measurement.
#[derive(Debug, Serialize)]
pub struct Shot {
    is_ours: bool,
    length: u32,
    /// Frames that the link carried.
    million_frames_s: f64,
    /// Of those that the capture was shown, what it kept.
    kept: f64,
}

impl Shot {
    fn of(is_ours: bool, length: u32, million_frames_s: f64, log: &Path) -> Result<Shot> {
        let said = std::fs::read_to_string(log)?;
        let number = |what: &str| -> Result<f64> {
            let line = said.lines().find(|line| line.contains(what));
            let number = line.and_then(|line| line.split(' ').next()?.parse().ok());
            number.with_context(|| format!("no count of what was {what}: {said}"))
        };
        let (captured, dropped) = (number("captured")?, number("dropped")?);
        Ok(Shot {
            is_ours,
            length,
            million_frames_s,
            kept: captured / (captured + dropped).max(1.0),
        })
    }
}

#[derive(Deserialize)]
struct Sent {
    sent: u64,
    mpps: f64,
}

fn ours(turns: &Turns, programs: &Path, scratch: &Scratch, length: u32) -> Result<Shot> {
    let setup = Setup {
        scratch,
        programs,
        core: turns.cores.switch_core,
        plug: Plug::Memif,
    };
    let mut switch = Subject::Windlass.start(&setup)?;
    let capture = switch.capture(&format!("-s {length}"))?;
    let mut command = setup.plug.generator(&setup, &*switch);
    for (name, value) in [
        ("--core", turns.cores.generator_core.to_string()),
        ("--seconds", turns.seconds.to_string()),
        ("--warm", turns.warm.to_string()),
        ("--size", "64".to_owned()),
    ] {
        command.arg(name).arg(value);
    }
    let sent = |line: &Sent| line.sent;
    let report = rate::shoot(&mut *switch, command, turns.seconds, sent)?;
    // It says its counts at its end.
    drop(capture);
    let log = scratch.join("windlassd.command.log");
    Shot::of(true, length, report.line.mpps, &log)
}

fn kernels(turns: &Turns, generator: &Path, scratch: &Scratch, length: u32) -> Result<Shot> {
    let kernel = framed::kernel()?;
    let log = scratch.join("tcpdump.log");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", kernel.name(), "tcpdump", "-Z", "root"]);
    command.args(["-i", "p0", "-w", "/dev/null", "-s", &length.to_string()]);
    let tcpdump = Child::start(&mut command, &log)?;
    stop::until("tcpdump", READY_WITHIN, || {
        let said = std::fs::read_to_string(&log).ok()?;
        said.contains("listening").then_some(())
    })?;
    let (core, seconds) = (turns.cores.generator_core, turns.seconds);
    let generator = generator.display();
    let said = kernel.exec(&format!(
        "taskset -c {core} {generator} packet v0 v1 32 {seconds}"
    ))?;
    drop(tcpdump);
    let rate = said.split(' ').next().context("it says nothing")?;
    let rate = rate.parse().with_context(|| format!("a rate: {said}"))?;
    Shot::of(false, length, rate, &log)
}

/// Measures both in turns, and prints.
///
/// # Errors
/// If one of them fails.
pub fn run(turns: &Turns, programs: &Path) -> Result<Vec<Shot>> {
    let scratch = Scratch::create()?;
    let generator = framed::compile(programs, &scratch)?;
    let mut shots = Vec::new();
    for _ in 0..turns.rounds {
        for length in LENGTHS {
            stop::check()?;
            shots.push(kernels(turns, &generator, &scratch, length)?);
            shots.push(ours(turns, programs, &scratch, length)?);
        }
    }
    let mut table = Table::new(&[
        "capture of 64-byte frames",
        "million/s",
        "captured, million/s",
        "lost",
    ]);
    for length in LENGTHS {
        let of = |is_ours: bool, value: fn(&Shot) -> f64| {
            let of_it = shots
                .iter()
                .filter(|s| (s.is_ours, s.length) == (is_ours, length));
            Spread::of(of_it.map(value)).context("no measurement")
        };
        let captured: fn(&Shot) -> f64 = |shot| shot.kept * shot.million_frames_s;
        for (is_ours, name) in [(false, "tcpdump"), (true, "windlass snoop")] {
            let lost = of(is_ours, |shot| 100.0 * (1.0 - shot.kept))?;
            table.row(vec![
                format!("{name} -s {length}"),
                of(is_ours, |shot| shot.million_frames_s)?.to_string(),
                of(is_ours, captured)?.to_string(),
                format!("{lost} %"),
            ]);
        }
        let ratio = of(true, captured)?.median / of(false, captured)?.median;
        println!(
            "-s {length}: {ratio:.1} times tcpdump (bar: {BAR}: {})",
            verdict(ratio >= BAR)
        );
    }
    println!("{table}");
    Ok(shots)
}
