//! # Purpose
//! Compares uplinks by AF_XDP with those by packet sockets and with the Linux bridge, on the same two veth pairs.
//!
//! # Model
//! ```text
//!   sender --> eth0 = up-a --> [ windlassd, or the kernel's bridge ] --> up-b = eth0, which drops and counts
//! ```
//! Frames of 64 bytes (60 without the checksum) go from a namespace to another as fast as one core can send them. What
//! arrived is counted by the interface behind the second pair; processor seconds are those of all cores, sender and softirq
//! included, which are the same for all.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use windlass_sys::IoSlice;
use windlass_sys::netlink::Netlink;
use windlass_sys::packet::{PacketOptions, PacketSocket};

use super::child::{Child, run_line};
use super::host::{Namespace, Scratch, busy_seconds, describe, require};
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::Daemon;
use crate::core::pin;

/// Namespace, address in it, and the uplink's interface on the host.
const SENDER: (&str, &str, &str) = ("wlc-up-src", "10.93.0.1", "wlcupa");
const SINK: (&str, &str, &str) = ("wlc-up-dst", "10.93.0.2", "wlcupb");
const BRIDGE: &str = "wlcupbr";
/// Bytes of a frame without its checksum.
const FRAME: usize = 60;
/// An EtherType for experiments (IEEE 802): no kernel takes it.
const TYPE: [u8; 2] = [0x88, 0xb5];
/// The sender runs so long before and behind what is measured.
const MARGIN: Duration = Duration::from_millis(300);

/// Uplinks of 64-byte frames beside the Linux bridge.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "xdp,packet,bridge"
    )]
    subjects: Vec<Subject>,
    /// Measured seconds of each turn
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Turns of each subject
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Core of the worker
    #[arg(long, default_value_t = 0)]
    worker_core: usize,
    /// Core of the sender
    #[arg(long, default_value_t = 1)]
    sender_core: usize,
    /// Microseconds for which AF_XDP may poll the interface
    #[arg(long, default_value_t = 0)]
    busy_poll_us: u32,
}

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// Two uplinks by AF_XDP.
    Xdp,
    /// Two uplinks by packet sockets.
    Packet,
    /// The Linux bridge.
    Bridge,
}

/// The sender.
#[derive(Args, Debug)]
pub struct End {
    /// Source address
    #[arg(long)]
    from: String,
    /// Destination address
    #[arg(long)]
    to: String,
    /// For how long
    #[arg(long)]
    seconds: f64,
    /// Core to run on
    #[arg(long)]
    core: usize,
}

/// One turn.
#[derive(Debug, Serialize)]
struct Shot {
    subject: Subject,
    round: usize,
    sent: f64,
    arrived: f64,
    /// Frames that arrived for each second of all cores.
    by_cpu: f64,
}

/// Sends as fast as it can.
///
/// # Errors
/// If the interface cannot be had.
pub fn be(end: &End) -> Result<()> {
    pin(end.core)?;
    let link = Netlink::open()?.link_by_name("eth0")?.context("no eth0")?;
    let options = PacketOptions {
        vnet_header: false,
        qdisc_bypass: true,
        ..PacketOptions::default()
    };
    let socket = PacketSocket::open(link.index, &options)?;
    let mut frame = Vec::new();
    for address in [&end.to, &end.from] {
        for byte in address.split(':') {
            frame.push(u8::from_str_radix(byte, 16)?);
        }
    }
    frame.extend(TYPE);
    frame.resize(FRAME, 0);
    let (begun, mut sent) = (Instant::now(), 0u64);
    while begun.elapsed().as_secs_f64() < end.seconds {
        for _ in 0..64 {
            sent += u64::from(socket.write_frame(&[IoSlice::new(&frame)]).is_ok());
        }
    }
    println!("{}", sent as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

/// What is between the two pairs. Fields are dropped in this order.
struct World {
    daemon: Option<Daemon>,
    has_bridge: bool,
    sender: Namespace,
    sink: Namespace,
}

impl Drop for World {
    fn drop(&mut self) {
        self.daemon = None;
        // With its namespace a pair would go some time later.
        let mut links = vec![SENDER.2, SINK.2];
        links.extend(self.has_bridge.then_some(BRIDGE));
        for link in links {
            if let Err(error) = run_line(&format!("ip link delete {link}")) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// A namespace with one end of a pair, whose other end is on the host. Tags would stay in frames at both ends.
fn pair((name, address, up): (&str, &str, &str)) -> Result<Namespace> {
    let namespace = Namespace::create(name)?;
    run_line(&format!(
        "ip link add {up} type veth peer name eth0 netns {name}"
    ))?;
    run_line(&format!("ip link set {up} up"))?;
    run_line(&format!("ethtool -K {up} rxvlan off"))?;
    namespace.exec("ethtool -K eth0 txvlan off")?;
    namespace.ip(&format!("address add {address}/24 dev eth0"))?;
    namespace.ip("link set eth0 up")?;
    Ok(namespace)
}

impl World {
    fn build(
        subject: Subject,
        options: &Options,
        programs: &Path,
        scratch: &Scratch,
    ) -> Result<World> {
        let (sender, sink) = (pair(SENDER)?, pair(SINK)?);
        let mut world = World {
            daemon: None,
            has_bridge: false,
            sender,
            sink,
        };
        let ups = [SENDER.2, SINK.2];
        if subject == Subject::Bridge {
            run_line(&format!("ip link add {BRIDGE} type bridge"))?;
            world.has_bridge = true;
            run_line(&format!("ip link set {BRIDGE} up"))?;
            for up in ups {
                run_line(&format!("ip link set {up} master {BRIDGE}"))?;
            }
        } else {
            let daemon = Daemon::start(programs, scratch, &[options.worker_core])?;
            daemon.command("bridge create br0")?;
            let attach = match subject {
                Subject::Xdp => format!("xdp,busy-poll-us={}", options.busy_poll_us),
                _ => "packet".to_owned(),
            };
            for up in ups {
                daemon.command(&format!(
                    "uplink create {up} --device {up} --bridge br0 --attach {attach}"
                ))?;
            }
            let shown = daemon.command("uplink show --json")?;
            if subject == Subject::Xdp && shown.contains("not used") {
                anyhow::bail!("AF_XDP is not used: {shown}");
            }
            world.daemon = Some(daemon);
        }
        let ping = format!("ping -c 1 -W 1 {}", SINK.1);
        let most = Duration::from_secs(10);
        stop::until("the first ping", most, || world.sender.exec(&ping).ok())?;
        Ok(world)
    }

    fn address(namespace: &Namespace) -> Result<String> {
        let text = namespace.exec("cat /sys/class/net/eth0/address")?;
        Ok(text.trim().to_owned())
    }

    /// Frames that the sink's interface has received.
    fn arrived(&self) -> Result<f64> {
        let text = self.sink.ip("-json -stats link show eth0")?;
        let links: serde_json::Value = serde_json::from_str(&text)?;
        let count = links[0]["stats64"]["rx"]["packets"].as_f64();
        count.context("ip has another form")
    }

    fn measure(&self, subject: Subject, round: usize, options: &Options) -> Result<Shot> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.sender.name()]);
        command.arg(std::env::current_exe()?).arg("uplink-end");
        let seconds = options.seconds + 2.0 * MARGIN.as_secs_f64();
        command.args(["--seconds", &seconds.to_string()]);
        command.args(["--core", &options.sender_core.to_string()]);
        command.args(["--from", &Self::address(&self.sender)?]);
        command.args(["--to", &Self::address(&self.sink)?]);
        let child = Child::start_piped(command)?;
        stop::pause(MARGIN)?;
        let (begun, busy, before) = (Instant::now(), busy_seconds()?, self.arrived()?);
        stop::pause(Duration::from_secs_f64(options.seconds))?;
        let (busy, arrived) = (busy_seconds()? - busy, self.arrived()? - before);
        let took = begun.elapsed().as_secs_f64();
        let sent = child.output(Duration::from_secs(10))?.trim().parse()?;
        Ok(Shot {
            subject,
            round,
            sent,
            arrived: arrived / took,
            by_cpu: arrived / busy,
        })
    }
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If a subject fails, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[
        ("ip", "iproute2"),
        ("ping", "iputils-ping"),
        ("ethtool", "ethtool"),
    ])?;
    println!("uplinks, frames of 64 bytes; {}", describe());
    let mut shots = Vec::new();
    for round in 0..options.rounds {
        for subject in &options.subjects {
            let scratch = Scratch::create()?;
            let world = World::build(*subject, options, programs, &scratch)?;
            shots.push(world.measure(*subject, round, options)?);
        }
    }
    print(options, &shots);
    write_json(json, &shots)
}

fn print(options: &Options, shots: &[Shot]) {
    let titles = ["million frames/s", "arrived", "for a CPU second", "sent"];
    let mut table = Table::new(&titles);
    let spread = |subject: Subject, value: fn(&Shot) -> f64| {
        let of = shots.iter().filter(|shot| shot.subject == subject);
        Spread::of(of.map(|shot| value(shot) / 1e6))
    };
    for subject in &options.subjects {
        let mut row = vec![format!("{subject:?}")];
        for value in [|s: &Shot| s.arrived, |s: &Shot| s.by_cpu, |s: &Shot| s.sent] {
            row.push(spread(*subject, value).map_or_else(|| "-".to_owned(), |s| format!("{s:.3}")));
        }
        table.row(row);
    }
    println!("\n{table}");
    for (what, value) in [
        ("rate", (|s| s.arrived) as fn(&Shot) -> f64),
        ("rate for a CPU second", |s| s.by_cpu),
    ] {
        let of = |subject| spread(subject, value).map(|s| s.median);
        let others = [of(Subject::Packet), of(Subject::Bridge)];
        if let (Some(xdp), [Some(packet), Some(bridge)]) = (of(Subject::Xdp), others) {
            let (over_packet, over_bridge) = (xdp / packet, xdp / bridge);
            let verdict = verdict(over_packet > 1.0 && over_bridge > 1.0);
            println!(
                "{what}: AF_XDP {over_packet:.2} times a packet socket, {over_bridge:.2} times the bridge (bar 1: {verdict})"
            );
        }
    }
}
