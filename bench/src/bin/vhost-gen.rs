//! Is two guests: sends frames from one, counts them in the other, and prints what it saw as one line of JSON.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use windlass_bench::core::pin;
use windlass_bench::generator::{
    Ends, Inlet, Outlet, Plan, Sink, announce, run_gap, run_latency, run_rate,
};
use windlass_bench::vhost::{Layout, Link, Port, PortOptions, forward};

/// What is measured.
#[derive(Clone, Copy, ValueEnum)]
enum Measure {
    /// Frames per second.
    Rate,
    /// The time of one frame at a time.
    Latency,
    /// The time without a frame while the switch is started again, and what was lost or repeated.
    Gap,
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
    /// Stay connected after the report until standard input ends
    #[arg(long)]
    hold: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    pin(options.core)?;
    let port = PortOptions {
        layout: options.layout,
        mergeable: options.mergeable,
        in_order: !options.no_in_order,
        log2_ring: options.log2_ring,
    };
    let ports = [Port::create(port)?, Port::create(port)?];
    let [a, b] = &ports;
    match options.layout {
        Layout::Split => serve(&options, &ports, a.split(), b.split()),
        Layout::Packed => serve(&options, &ports, a.packed(), b.packed()),
    }
}

/// Measures with ends that were made before a switch is let in.
fn serve<O: Outlet, I: Inlet>(
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

fn measure<O: Outlet, I: Inlet>(
    options: &Options,
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    mend: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut plan = Plan {
        size: options.size,
        addresses: options.addresses,
        sink: options.sink,
        warm: Duration::from_secs_f64(options.warm),
        time: Duration::from_secs_f64(options.seconds),
    };
    announce(sender, sink, options.addresses)?;
    let line = match options.measure {
        Measure::Rate => serde_json::to_string(&run_rate(sender, sink, &plan)?)?,
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
