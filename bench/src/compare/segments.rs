//! 64 KiB segments between two guests' memories, beside a plain `memcpy` of the same bytes on the same core.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use super::host::{HugePages, Scratch, describe};
use super::peers::{Plug, Setup, Subject, Switch};
use super::rate::{Cores, shoot};
use super::table::{Spread, Table, verdict, write_json};
use crate::core::pin;
use crate::segments::{BYTES, SegmentReport, SegmentShape, memcpy_rate};
use crate::vhost::Layout;

/// The least share of the plain copy.
const BAR: f64 = 0.7;

/// 2 MiB pages for the memory of both guests.
const HUGE_PAGES_WANTED: u64 = 64;

/// Two guests that exchange segments.
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
    /// Bytes of the sink's buffers
    #[arg(long, value_delimiter = ',', default_value = "1536,4096")]
    rooms: Vec<u32>,
    /// Bytes of each piece of a segment
    #[arg(long, default_value_t = SegmentShape::DEFAULT.piece)]
    piece: u32,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds of each side
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    #[command(flatten)]
    cores: Cores,
}

/// One measurement of both sides.
#[derive(Debug, Serialize)]
struct Shot {
    round: usize,
    layout: Layout,
    room: u32,
    #[serde(flatten)]
    report: SegmentReport,
    memcpy_gb_per_s: f64,
    /// Busy cycles a segment.
    cycles: Option<f64>,
    disturbed: bool,
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If the switch fails, a segment arrives damaged, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let _pages = HugePages::reserve(HUGE_PAGES_WANTED)?;
    let scratch = Scratch::create()?;
    println!("segments of {BYTES} bytes, guest to guest; {}", describe());
    let mut shots = Vec::new();
    let setup = Setup {
        scratch: &scratch,
        programs,
        core: options.cores.switch_core,
        plug: Plug::Vhost,
    };
    let mut switch = Subject::Windlass.start(&setup)?;
    for round in 0..options.rounds {
        for &layout in &options.layouts {
            for &room in &options.rooms {
                shots.push(measure(
                    options,
                    (round, layout, room),
                    &setup,
                    &mut *switch,
                )?);
            }
        }
    }
    print(options, &shots);
    write_json(json, &shots)
}

fn measure(
    options: &Options,
    (round, layout, room): (usize, Layout, u32),
    setup: &Setup<'_>,
    switch: &mut dyn Switch,
) -> Result<Shot> {
    let shape = SegmentShape {
        room,
        piece: options.piece,
    };
    let memcpy_gb_per_s = plain_copy(options, shape)?;
    let mut command = setup.plug.generator(setup, switch);
    command.args(["--measure", "segments", "--layout", layout.name()]);
    command.args([
        "--room",
        &room.to_string(),
        "--piece",
        &options.piece.to_string(),
    ]);
    command.args(["--core", &options.cores.generator_core.to_string()]);
    command.args(["--seconds", &options.seconds.to_string(), "--warm", "0.5"]);
    let sent = |line: &SegmentReport| line.sent;
    let report = shoot(switch, command, options.seconds, sent)?;
    let line = report.line;
    if line.wrong > 0 {
        bail!("segments arrived damaged: {line:?}");
    }
    eprintln!(
        "  round {} {} {room}: {:.2} GB/s, memcpy {memcpy_gb_per_s:.2}, lost {} of {}, idle {:.2}",
        round + 1,
        layout.name(),
        line.gb_per_s,
        line.lost,
        line.sent,
        line.idle_share
    );
    Ok(Shot {
        round,
        layout,
        room,
        report: line,
        memcpy_gb_per_s,
        cycles: report.cycles,
        disturbed: report.disturbed,
    })
}

/// The plain copy, on the switch's core, while the switch sleeps. The guests' core is as busy as it is otherwise, so that
/// whatever else this host does costs both sides the same.
fn plain_copy(options: &Options, shape: SegmentShape) -> Result<f64> {
    let [receive, send] = shape.buffers()?;
    let (core, time) = (
        options.cores.switch_core,
        Duration::from_secs_f64(options.seconds),
    );
    let copy = move || {
        pin(core)?;
        memcpy_rate(&send, &receive, BYTES, time)
    };
    let ends = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // Without that core the copy is beside nobody, and nothing is wrong.
            let _ = pin(options.cores.generator_core);
            while !ends.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let copied = threads.spawn(copy).join();
        ends.store(true, Relaxed);
        copied.ok().context("the plain copy panicked")?
    })
}

fn print(options: &Options, shots: &[Shot]) {
    let titles = [
        "rings, sink's buffers",
        "GB/s",
        "memcpy, GB/s",
        "share",
        "cycles/segment",
        "bar",
    ];
    let mut table = Table::new(&titles);
    for layout in &options.layouts {
        for room in &options.rooms {
            let of = |value: &dyn Fn(&Shot) -> Option<f64>| {
                let of = shots
                    .iter()
                    .filter(|s| s.layout == *layout && s.room == *room);
                Spread::of(of.filter_map(value))
            };
            let show = |spread: Option<Spread>, digits: usize| {
                spread.map_or_else(|| "-".to_owned(), |spread| format!("{spread:.digits$}"))
            };
            let share = of(&|s| Some(s.report.gb_per_s / s.memcpy_gb_per_s));
            table.row(vec![
                format!("{}, {room} B", layout.name()),
                show(of(&|s| Some(s.report.gb_per_s)), 2),
                show(of(&|s| Some(s.memcpy_gb_per_s)), 2),
                show(share, 2),
                show(of(&|s| s.cycles), 0),
                verdict(share.is_some_and(|share| share.median >= BAR)).to_owned(),
            ]);
        }
    }
    println!("\n{table}");
    let sum = |value: fn(&Shot) -> u64| shots.iter().map(value).sum::<u64>();
    println!(
        "median [lowest highest] of {} rounds; bar: {BAR} of memcpy; {} of {} segments lost; {} of {} measurements \
         disturbed by other programs",
        options.rounds,
        sum(|s| s.report.lost),
        sum(|s| s.report.sent),
        sum(|s| u64::from(s.disturbed)),
        shots.len()
    );
}
