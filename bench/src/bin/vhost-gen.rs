//! Is two guests: sends frames from one, counts them in the other, and prints what it saw as one line of JSON.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use windlass_bench::core::pin;
use windlass_bench::generator::{
    Ends, Outlet, Plan, Sink, announce, run_gap, run_latency, run_rate, run_rate_beside, run_trip,
};
use windlass_bench::segments::{self, SegmentShape};
use windlass_bench::third::{Beside, Conduct, Third};
use windlass_bench::vhost::{Buffers, Layout, Link, Port, PortOptions, Written, forward};

/// What is measured.
#[derive(Clone, Copy, ValueEnum)]
enum Measure {
    /// Frames per second.
    Rate,
    /// The time of one frame at a time.
    Latency,
    /// The time of one frame there and one back.
    Trip,
    /// The time without a frame while the switch is started again, and what was lost or repeated.
    Gap,
    /// Gigabytes per second in TCP segments of 64 KiB, which pass uncut.
    Segments,
}

/// Sends frames from one guest of a switch and counts them in another.
#[derive(Parser)]
struct Options {
    /// Where the sending guest listens for the switch
    #[arg(long, required_unless_present = "null_core")]
    socket: Option<PathBuf>,
    /// Where the sink's guest listens
    #[arg(long, required_unless_present = "null_core")]
    sink_socket: Option<PathBuf>,
    /// Measure the generator's own limit: a thread on this core moves descriptors and no frame
    #[arg(long, conflicts_with_all = ["socket", "sink_socket"])]
    null_core: Option<usize>,
    /// Layout of the rings
    #[arg(long, value_enum, default_value = "split")]
    layout: Layout,
    /// Mergeable receive buffers
    #[arg(long)]
    mergeable: bool,
    /// Do without `VIRTIO_F_IN_ORDER`
    #[arg(long)]
    no_in_order: bool,
    /// Bytes of each frame in memory
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Destination addresses
    #[arg(long, default_value_t = 1)]
    addresses: u16,
    /// What the sink does
    #[arg(long, value_enum, default_value = "count")]
    sink: Sink,
    /// What is measured
    #[arg(long, value_enum, default_value = "rate")]
    measure: Measure,
    /// Measured seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 1.0)]
    warm: f64,
    /// Core to run on
    #[arg(long, default_value_t = 1)]
    core: usize,
    /// Descriptors in each ring, as a power of two
    #[arg(long, default_value_t = 10)]
    log2_ring: u8,
    /// Pause between two frames there and back
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
    /// Where a third guest listens, which sends beside the two that are measured
    #[arg(long)]
    third_socket: Option<PathBuf>,
    /// What the third guest does
    #[arg(long, value_enum, default_value = "honest")]
    conduct: Conduct,
    /// Descriptors that it offers a second
    #[arg(long, default_value_t = 0.0)]
    third_descriptors: f64,
    /// Kicks that it sends a second
    #[arg(long, default_value_t = 0.0)]
    third_kicks: f64,
    /// Bytes of a receive buffer, of the segments' sink
    #[arg(long, default_value_t = SegmentShape::DEFAULT.room)]
    room: u32,
    /// Bytes of each piece that a segment lies in
    #[arg(long, default_value_t = SegmentShape::DEFAULT.piece)]
    piece: u32,
    /// Stay connected after the report until standard input ends
    #[arg(long)]
    hold: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    pin(options.core)?;
    let segments = matches!(options.measure, Measure::Segments);
    let shape = SegmentShape {
        room: options.room,
        piece: options.piece,
    };
    let port = PortOptions {
        layout: options.layout,
        mergeable: options.mergeable || segments,
        in_order: !options.no_in_order,
        segments,
        buffers: match segments {
            true => shape.buffers()?,
            false => [Buffers::of_dpdk(options.log2_ring); 2],
        },
    };
    let ports = [Port::create(port)?, Port::create(port)?];
    let [a, b] = &ports;
    match options.layout {
        Layout::Split => serve(&options, &ports, a.split(), b.split()),
        Layout::Packed => serve(&options, &ports, a.packed(), b.packed()),
    }
}

/// Measures with ends that were made before a switch is let in.
fn serve<O: Outlet, I: Written>(
    options: &Options,
    [sender, sink]: &[Port; 2],
    mut sending: Ends<O, I>,
    mut sinking: Ends<O, I>,
) -> Result<()> {
    if let Some(core) = options.null_core {
        let ends = AtomicBool::new(false);
        return std::thread::scope(|threads| {
            threads.spawn(|| {
                // Without that core the figure is poor, and nothing is wrong.
                let _ = pin(core);
                forward([sender, sink], options.layout, &ends);
            });
            let result = measure(options, &mut sending, &mut sinking, || Ok(false));
            ends.store(true, Ordering::Relaxed);
            result
        });
    }
    let (Some(first), Some(second)) = (&options.socket, &options.sink_socket) else {
        bail!("both sockets are needed");
    };
    // The sink first: what is sent before it is there is lost.
    let mut links = [Link::listen(sink, second)?, Link::listen(sender, first)?];
    let mut mend = || {
        let mut mended = false;
        for link in &mut links {
            if link.is_left() {
                link.connect()?;
                mended = true;
            }
        }
        anyhow::Ok(mended)
    };
    mend().context("the first connection")?;
    measure(options, &mut sending, &mut sinking, &mut mend)
}

fn measure<O: Outlet, I: Written>(
    options: &Options,
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    mend: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut plan = Plan {
        size: options.size,
        addresses: options.addresses,
        flows: 1,
        sink: options.sink,
        warm: Duration::from_secs_f64(options.warm),
        time: Duration::from_secs_f64(options.seconds),
    };
    if !matches!(options.measure, Measure::Segments) {
        announce(sender, sink, options.addresses)?;
    }
    let line = match options.measure {
        Measure::Segments => {
            let report = segments::run(sender, sink, segments::BYTES, (plan.warm, plan.time))?;
            serde_json::to_string(&report)?
        }
        Measure::Rate => rate(options, sender, sink, &plan)?,
        Measure::Trip => {
            let pause = Duration::from_micros(options.pause_us);
            serde_json::to_string(&run_trip(sender, sink, (plan.warm, plan.time, pause))?)?
        }
        Measure::Latency => serde_json::to_string(&run_latency(sender, sink, &plan)?)?,
        Measure::Gap => {
            plan.sink = Sink::Check;
            serde_json::to_string(&run_gap(sender, sink, &plan, mend)?)?
        }
    };
    println!("{line}");
    if options.hold {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    Ok(())
}

/// Frames per second, beside a third guest if there is one.
fn rate<O: Outlet, I: Written>(
    options: &Options,
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    plan: &Plan,
) -> Result<String> {
    let Some(socket) = &options.third_socket else {
        return Ok(serde_json::to_string(&run_rate(sender, sink, plan)?)?);
    };
    let port = Third::port()?;
    let (descriptors, kicks) = (options.third_descriptors, options.third_kicks);
    let mut third = Third::new(&port, options.conduct, descriptors, kicks);
    let mut link = Link::listen(&port, socket)?;
    link.connect().context("the third guest's connection")?;
    let rate = run_rate_beside(sender, sink, plan, || third.act())?;
    let third = third.report(link.is_left());
    Ok(serde_json::to_string(&Beside { rate, third })?)
}
