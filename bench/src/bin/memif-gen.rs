//! Sends frames on one memif interface, counts them on another, and prints what it saw as one line of JSON.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use windlass_bench::core::pin;
use windlass_bench::generator::{Plan, Sink, announce, run_gap, run_latency, run_rate};
use windlass_bench::memif::{Port, PortOptions};

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

/// Sends on one memif interface and counts on another.
#[derive(Parser)]
struct Options {
    /// Socket of the switch
    #[arg(long)]
    socket: PathBuf,
    /// Socket of the sink's interface, if it is another
    #[arg(long)]
    sink_socket: Option<PathBuf>,
    /// Number of the interface to send on
    #[arg(long, default_value_t = 0)]
    send_id: u32,
    /// Number of the interface to count on
    #[arg(long, default_value_t = 1)]
    sink_id: u32,
    /// Bytes of each frame in memory
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Destination addresses
    #[arg(long, default_value_t = 1)]
    addresses: u16,
    /// Source ports, each of them a flow; no more than a ring has descriptors
    #[arg(long, default_value_t = 1)]
    flows: u16,
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
    /// The server's sending ring that frames come on
    #[arg(long, default_value_t = 0)]
    sink_ring: u16,
    /// Stay connected after the report until standard input ends
    #[arg(long)]
    hold: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    pin(options.core)?;
    let port = |path: &PathBuf, id| {
        let options = PortOptions {
            id,
            log2_ring: options.log2_ring,
            from_server: options.sink_ring,
        };
        Port::connect(path, &options)
    };
    let sink_socket = options.sink_socket.as_ref().unwrap_or(&options.socket);
    let sender_port = port(&options.socket, options.send_id).context("the sending port")?;
    let sink_port = port(sink_socket, options.sink_id).context("the sink's port")?;
    let mut plan = Plan {
        size: options.size,
        addresses: options.addresses,
        flows: options.flows,
        sink: options.sink,
        warm: Duration::from_secs_f64(options.warm),
        time: Duration::from_secs_f64(options.seconds),
    };
    let (mut sender, mut sink) = (sender_port.ends(), sink_port.ends());
    announce(&mut sender, &mut sink, options.addresses)?;
    let line = match options.measure {
        Measure::Rate => serde_json::to_string(&run_rate(&mut sender, &mut sink, &plan)?)?,
        Measure::Latency => serde_json::to_string(&run_latency(&mut sender, &mut sink, &plan)?)?,
        Measure::Gap => {
            plan.sink = Sink::Check;
            // The sink first: what is sent before it is there is lost.
            let mend = || {
                let mut mended = false;
                for (port, path) in [(&sink_port, sink_socket), (&sender_port, &options.socket)] {
                    mended |= port.is_left() && port.reconnect(path);
                }
                anyhow::Ok(mended)
            };
            serde_json::to_string(&run_gap(&mut sender, &mut sink, &plan, mend)?)?
        }
    };
    println!("{line}");
    if options.hold {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    Ok(())
}
