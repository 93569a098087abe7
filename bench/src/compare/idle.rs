//! Processor time that an idle daemon uses.
//!
//! # Limits
//! Whoever makes or removes a namespace on this host meanwhile has the daemon look for those of its TAPs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::child::Scheduled;
use super::host::{Namespace, Scratch, describe};
use super::stop;
use super::table::verdict;
use super::windlass::Daemon;
use crate::vhost::{Buffers, Layout, Link, Port, PortOptions};

/// The most that the daemon may use in the whole time, all threads together.
const BAR: Duration = Duration::from_millis(2);

const NAMESPACE: &str = "wlc-idle";

/// Descriptors of each ring of a guest, as a power of two.
const LOG2_RING: u8 = 8;

/// What the VNICs are attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attach {
    /// TAPs in a namespace.
    Tap,
    /// Guests that are connected, with rings enabled, and silent; windlass as client.
    VhostUser,
}

/// Processor time of a daemon with many VNICs and no traffic.
#[derive(Args, Debug)]
pub struct Options {
    /// What the VNICs are attached to
    #[arg(long, value_enum, default_value = "tap")]
    attach: Attach,
    /// VNICs
    #[arg(long, default_value_t = 1000)]
    vnics: u16,
    /// Measured seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Seconds before the measurement, for what new interfaces announce by themselves
    #[arg(long, default_value_t = 15.0)]
    wait: f64,
}

/// Measures and prints.
///
/// # Errors
/// If the daemon fails or the run is interrupted.
pub fn run(options: &Options, programs: &Path) -> Result<()> {
    let scratch = Scratch::create()?;
    let mut daemon = Daemon::start(programs, &scratch, &[])?;
    daemon.command("bridge create br0")?;
    match options.attach {
        Attach::Tap => {
            let namespace = Namespace::create(NAMESPACE)?;
            // Router solicitations of the host's own IPv6 would be traffic.
            namespace.exec("sysctl -q -w net.ipv6.conf.default.disable_ipv6=1")?;
            let attach = format!("tap,netns={}", namespace.name());
            for number in 0..options.vnics {
                add(&daemon, number, &attach)?;
            }
            let measured = measure(options, &mut daemon, "TAPs");
            // Before the namespace that its TAPs are in.
            drop(daemon);
            measured
        }
        Attach::VhostUser => {
            let ports = (0..options.vnics)
                .map(|_| guest())
                .collect::<Result<Vec<_>>>()?;
            // Their receive rings are full of buffers.
            let _ends: Vec<_> = ports.iter().map(Port::split).collect();
            let mut links = Vec::new();
            for (number, port) in (0..).zip(&ports) {
                let socket = scratch.join(&format!("idle{number}.sock"));
                let mut link = Link::listen(port, &socket)?;
                let attach = format!("vhost-user,socket={},role=client", socket.display());
                add(&daemon, number, &attach)?;
                link.connect()?;
                links.push(link);
            }
            measure(options, &mut daemon, "connected guests")?;
            match links.iter().filter(|link| link.is_left()).count() {
                0 => Ok(()),
                left => bail!("{left} guests were disconnected meanwhile"),
            }
        }
    }
}

fn guest() -> Result<Port> {
    Port::create(PortOptions {
        layout: Layout::Split,
        mergeable: true,
        in_order: true,
        segments: false,
        buffers: [Buffers::of_dpdk(LOG2_RING); 2],
    })
}

fn add(daemon: &Daemon, number: u16, attach: &str) -> Result<()> {
    let made = daemon.command(&format!(
        "vnic create idle{number} --bridge br0 --attach {attach}"
    ));
    made.map(drop)
}

fn measure(options: &Options, daemon: &mut Daemon, what: &str) -> Result<()> {
    stop::pause(Duration::from_secs_f64(options.wait))?;
    let before = ran_by_thread(daemon);
    stop::pause(Duration::from_secs_f64(options.seconds))?;
    let mut threads = ran_by_thread(daemon);
    daemon.process().still_runs()?;
    for (thread, ran) in &mut threads {
        let earlier = before.get(thread).copied().unwrap_or_default();
        *ran = ran.saturating_sub(earlier);
    }
    let ran: Duration = threads.values().sum();
    println!("idle; {}", describe());
    println!(
        "{} {what}, {} s without traffic: {:.1} ms of processor time (bar: {} ms: {})",
        options.vnics,
        options.seconds,
        ran.as_secs_f64() * 1e3,
        BAR.as_millis(),
        verdict(ran < BAR)
    );
    for (thread, ran) in threads.iter().filter(|(_, ran)| !ran.is_zero()) {
        println!("  {thread} {:.2} ms", ran.as_secs_f64() * 1e3);
    }
    Ok(())
}

/// Processor time by names of threads.
fn ran_by_thread(daemon: &mut Daemon) -> BTreeMap<String, Duration> {
    let mut sums = BTreeMap::<_, Duration>::new();
    for (name, thread) in Scheduled::by_thread(daemon.process().pid()) {
        *sums.entry(name).or_default() += thread.ran;
    }
    sums
}
