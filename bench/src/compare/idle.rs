//! Processor time that an idle daemon uses.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::host::{Namespace, Scratch, describe};
use super::stop;
use super::windlass::Daemon;

/// The most that the daemon may use in the whole time, all threads together.
const BAR: Duration = Duration::from_millis(50);

const NAMESPACE: &str = "wlc-idle";

/// Processor time of a daemon with many VNICs and no traffic.
#[derive(Args, Debug)]
pub struct Options {
    /// VNICs on TAPs
    #[arg(long, default_value_t = 100)]
    vnics: u16,
    /// Measured seconds
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Seconds before the measurement, for what new interfaces announce by themselves
    #[arg(long, default_value_t = 15.0)]
    settle: f64,
}

/// Measures and prints.
///
/// # Errors
/// If the daemon fails or the run is interrupted.
pub fn run(options: &Options, programs: &Path) -> Result<()> {
    let scratch = Scratch::create()?;
    let namespace = Namespace::create(NAMESPACE)?;
    // Router solicitations of the host's own IPv6 would be traffic.
    namespace.exec("sysctl -q -w net.ipv6.conf.default.disable_ipv6=1")?;
    let mut daemon = Daemon::start(programs, &scratch, None)?;
    daemon.command("bridge create br0")?;
    for number in 0..options.vnics {
        let attach = format!("tap,netns={}", namespace.name());
        daemon.command(&format!(
            "vnic create idle{number} --bridge br0 --attach {attach}"
        ))?;
    }
    stop::pause(Duration::from_secs_f64(options.settle))?;
    let before = daemon.process().scheduled();
    stop::pause(Duration::from_secs_f64(options.seconds))?;
    let ran = daemon.process().scheduled().since(before).ran;
    daemon.process().still_runs()?;
    println!("idle; {}", describe());
    println!(
        "{} VNICs, {} s without traffic: {:.1} ms of processor time (bar: {} ms: {})",
        options.vnics,
        options.seconds,
        ran.as_secs_f64() * 1e3,
        BAR.as_millis(),
        if ran < BAR { "met" } else { "MISSED" }
    );
    Ok(())
}
