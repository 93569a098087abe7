//! Memory of the daemon: VNICs, flows and tracked connections, step by step.
//!
//! # Model
//! VNICs are TAPs. Flows are those of `windlass flow`, as many for each VNIC. Connections are UDP datagrams to as many pairs of ports, from
//! one VNIC whose firewall keeps state, twice as much room as there are connections; each datagram that its firewall let pass is counted.
//! Memory is what the kernel says in `smaps_rollup`, once the daemon rests.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use windlass_sys::netns::{NetnsRef, within};

use super::child::memory_kib;
use super::host::{Namespace, Scratch, describe};
use super::stop;
use super::table::{Table, write_json};
use super::windlass::Daemon;

const NAMESPACES: [&str; 2] = ["wlc-cap-a", "wlc-cap-b"];
const ADDRESSES: [&str; 2] = ["10.94.0.1", "10.94.0.2"];
/// The daemon rests this long before it is looked at.
const REST: Duration = Duration::from_secs(2);
/// Ports of the receiver, and the first of them.
const PORTS: u32 = 1_000;
const FIRST_PORT: u16 = 20_000;
/// Datagrams at once, and the pause after them: a TAP holds 1,000 frames.
const AT_ONCE: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Memory of a daemon with VNICs, flows and connections.
#[derive(Args, Debug)]
pub struct Options {
    /// VNICs
    #[arg(long, default_value_t = 200)]
    vnics: u32,
    /// Flows of all VNICs together
    #[arg(long, default_value_t = 10_000)]
    flows: u32,
    /// Connections
    #[arg(long, default_value_t = 100_000)]
    connections: u32,
}

/// What the daemon has, in KiB.
#[derive(Debug, Serialize)]
struct Step {
    what: String,
    rss: u64,
    pss: u64,
}

/// Measures, prints the table, and writes the steps to `json`.
///
/// # Errors
/// If the daemon fails, connections were not accepted, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let scratch = Scratch::create()?;
    let namespaces = NAMESPACES.map(Namespace::create);
    let [_a, _b] = match namespaces {
        [Ok(a), Ok(b)] => [a, b],
        [a, b] => bail!("{:?} {:?}", a.err(), b.err()),
    };
    let mut daemon = Daemon::start(programs, &scratch, &[])?;
    let mut steps = vec![look(&mut daemon, "nothing")?];
    let file = scratch.join("capacity.json");
    let mut apply = |daemon: &mut Daemon, flows: u32, what: String| -> Result<()> {
        std::fs::write(&file, document(options, flows).to_string())?;
        daemon.command(&format!("apply {}", file.display()))?;
        steps.push(look(daemon, &what)?);
        Ok(())
    };
    apply(&mut daemon, 0, format!("{} VNICs", options.vnics))?;
    apply(
        &mut daemon,
        options.flows,
        format!("{} flows", options.flows),
    )?;
    let room = 2 * options.connections;
    daemon.command(&format!(
        "vnic set cap0 firewall-connections={room} firewall=accept"
    ))?;
    let connections = connect(&daemon, options.connections)?;
    steps.push(look(&mut daemon, &format!("{connections} connections"))?);
    println!("capacity; {}", describe());
    let mut table = Table::new(&[
        "with, one after the other",
        "RSS, MiB",
        "PSS, MiB",
        "more, KiB",
    ]);
    let mut before = None;
    for step in &steps {
        let more = before.map_or(0, |before| step.pss.saturating_sub(before));
        let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
        table.row(vec![
            step.what.clone(),
            mib(step.rss),
            mib(step.pss),
            more.to_string(),
        ]);
        before = Some(step.pss);
    }
    println!("\n{table}");
    write_json(json, &steps)
}

fn document(options: &Options, flows: u32) -> Value {
    let vnic = |n: u32| {
        let mut attach = json!({
            "kind": "tap",
            "netns": NAMESPACES[usize::from(n == 1)],
            "name": format!("cap{n}"),
        });
        if let Some(address) = ADDRESSES.get(n as usize) {
            attach["address"] = json!([format!("{address}/24")]);
        }
        json!({"name": format!("cap{n}"), "bridge": "br0", "attach": attach})
    };
    let flow = |n: u32| {
        json!({
            "name": format!("flow{n}"),
            "vnic": format!("cap{}", n % options.vnics),
            "attributes": format!("transport=udp,local_port={}", 1 + n / options.vnics),
            "properties": {"maxbw": 10},
        })
    };
    json!({
        "version": 1,
        "bridges": [{"name": "br0"}],
        "vnics": (0..options.vnics).map(vnic).collect::<Vec<_>>(),
        "flows": (0..flows).map(flow).collect::<Vec<_>>(),
    })
}

/// What the kernel counts for the daemon.
fn look(daemon: &mut Daemon, what: &str) -> Result<Step> {
    stop::pause(REST)?;
    let path = format!("/proc/{}/smaps_rollup", daemon.process().pid());
    Ok(Step {
        what: what.to_owned(),
        rss: memory_kib(&path, "Rss:")?,
        pss: memory_kib(&path, "Pss:")?,
    })
}

/// Sends a datagram for each connection; how many the firewall has let pass.
fn connect(daemon: &Daemon, connections: u32) -> Result<u64> {
    let namespace = NetnsRef::open(NAMESPACES[0])?;
    let send = || -> Result<()> {
        let mut sent = 0;
        while sent < connections {
            let socket = UdpSocket::bind((ADDRESSES[0], 0))?;
            for port in 0..PORTS.min(connections - sent) {
                // An error is one of an earlier datagram, which nobody received.
                let _ = socket.send_to(&[0], (ADDRESSES[1], FIRST_PORT + port as u16));
                sent += 1;
                if sent % AT_ONCE == 0 {
                    stop::pause(PAUSE)?;
                }
            }
        }
        Ok(())
    };
    within(&namespace, send)??;
    let text = daemon.command("vnic show cap0 --json")?;
    let shown: Value = serde_json::from_str(&text)?;
    let counters = &shown[0]["counters"];
    let passed = counters["rx_unicast"].as_u64().unwrap_or(0);
    // The TAP of a busy host loses some.
    if passed < u64::from(connections) * 9 / 10 {
        bail!("{passed} of {connections} datagrams went on: {counters}");
    }
    Ok(passed.min(connections.into()))
}
