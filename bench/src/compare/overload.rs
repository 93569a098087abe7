//! # Purpose
//! Offers more than the bridge can carry from sources that do not slow down by themselves, and shows that what is
//! delivered does not fall (no livelock).
//!
//! # Model
//! Datagrams of one size go from a namespace through the daemon to another. The daemon's share of a core is capped by a
//! control group, so that one sending core can offer three times its capacity. Capacity is the most that was delivered
//! while the offered load was doubled step by step; then each load is offered as a share of it. What a source could not
//! offer is shown as what it did offer.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::child::{Child, run_line};
use super::host::{Namespace, Scratch, describe};
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::Daemon;
use crate::core::pin;

const CLIENTS: [(&str, &str); 2] = [("wlc-client", "10.91.0.1"), ("wlc-clientb", "10.91.0.3")];
const SERVER: (&str, &str) = ("wlc-server", "10.91.0.2");
const PORT: u16 = 5301;
const UPLINK: &str = "wlcup0";
const GROUP: &str = "windlass-compare";

/// Bytes of a datagram: a frame of 64 bytes with its headers.
const DATAGRAM: usize = 22;

/// Offered loads, in parts of the capacity.
const LOADS: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0];

/// The search for the capacity: datagrams a second at first, and how often that is doubled.
const SEARCH_FROM: f64 = 25_000.0;
const SEARCH_STEPS: u32 = 7;

/// At three times the capacity at least this share of the peak must be delivered.
const BAR: f64 = 0.95;

/// The receiver listens for this long before and after the senders send.
const MARGIN: Duration = Duration::from_millis(300);

/// Offered loads from a tenth to three times of what the bridge can carry.
#[derive(Args, Debug)]
pub struct Options {
    /// Where the load comes from
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "tap,two-taps,packet"
    )]
    sources: Vec<Source>,
    /// The daemon's share of one core, in percent
    #[arg(long, default_value_t = 20)]
    duty: u32,
    /// Measured seconds of each load
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds of all loads
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Where the load comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Source {
    /// One TAP.
    Tap,
    /// Two TAPs, both to the same receiver.
    TwoTaps,
    /// An uplink on a packet socket.
    Packet,
}

/// One end of the test.
#[derive(Args, Debug)]
pub struct End {
    /// Send to this address; without it, receive on any
    #[arg(long)]
    to: Option<SocketAddr>,
    /// Datagrams a second
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// For how long
    #[arg(long)]
    seconds: f64,
    /// Core to run on
    #[arg(long)]
    core: usize,
}

/// What an end has seen.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Seen {
    datagrams: u64,
    seconds: f64,
}

/// One measurement, in datagrams a second.
#[derive(Debug, Serialize)]
struct Shot {
    source: Source,
    round: usize,
    load: f64,
    offered: f64,
    delivered: f64,
}

/// Sends or receives, and prints what was seen as a line of JSON.
///
/// # Errors
/// If the socket cannot be had.
pub fn be(end: &End) -> Result<()> {
    pin(end.core)?;
    let seen = match end.to {
        Some(to) => send(to, end)?,
        None => receive(end)?,
    };
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn send(to: SocketAddr, end: &End) -> Result<Seen> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    let datagram = [0; DATAGRAM];
    let (begun, mut sent) = (Instant::now(), 0);
    loop {
        let elapsed = begun.elapsed().as_secs_f64();
        if elapsed >= end.seconds {
            return Ok(Seen {
                datagrams: sent,
                seconds: elapsed,
            });
        }
        let due = (elapsed * end.rate) as u64;
        let burst = due.saturating_sub(sent).min(64);
        for _ in 0..burst {
            // A datagram that the kernel has no room for was offered and lost: this source does not wait.
            let _ = socket.send(&datagram);
        }
        sent += burst;
    }
}

fn receive(end: &End) -> Result<Seen> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let (begun, mut received) = (Instant::now(), 0);
    let mut buffer = [0; 2048];
    while begun.elapsed().as_secs_f64() < end.seconds {
        received += u64::from(socket.recv(&mut buffer).is_ok());
    }
    Ok(Seen {
        datagrams: received,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// A control group that caps one process's share of a core; removed when dropped.
struct Cap {
    directory: PathBuf,
}

impl Cap {
    /// `percent` of one core for the process.
    fn on(pid: u32, percent: u32) -> Result<Cap> {
        let (first, second) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let is_first = first.is_dir();
        let directory = if is_first { first } else { second }.join(GROUP);
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot make the control group {}", directory.display()))?;
        let cap = Cap { directory };
        let quota = percent * 100;
        if is_first {
            cap.set("cpu.cfs_period_us", "10000")?;
            cap.set("cpu.cfs_quota_us", &quota.to_string())?;
        } else {
            cap.set("cpu.max", &format!("{quota} 10000"))?;
        }
        cap.set("cgroup.procs", &pid.to_string())?;
        Ok(cap)
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = self.directory.join(name);
        std::fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        // It can be removed once its process has ended, which the order of fields in World sees to.
        if let Err(error) = std::fs::remove_dir(&self.directory) {
            eprintln!("cannot remove {}: {error}", self.directory.display());
        }
    }
}

/// The daemon between its namespaces. Fields are dropped in this order.
struct World {
    daemon: Daemon,
    clients: Vec<Namespace>,
    server: Namespace,
    _cap: Cap,
}

impl World {
    fn build(
        source: Source,
        options: &Options,
        programs: &Path,
        scratch: &Scratch,
    ) -> Result<World> {
        let server = Namespace::create(SERVER.0)?;
        let count = if source == Source::TwoTaps { 2 } else { 1 };
        let clients: Vec<Namespace> = CLIENTS[..count]
            .iter()
            .map(|(name, _)| Namespace::create(name))
            .collect::<Result<_>>()?;
        let mut daemon = Daemon::start(programs, scratch, &[0])?;
        daemon.command("bridge create br0")?;
        let tap = |(name, address): (&str, &str)| {
            daemon.command(&format!(
                "vnic create {name} --bridge br0 --attach tap,netns={name},address={address}/24"
            ))
        };
        tap(SERVER)?;
        if source == Source::Packet {
            let (name, address) = CLIENTS[0];
            run_line(&format!(
                "ip link add {UPLINK} type veth peer name eth0 netns {name}"
            ))?;
            run_line(&format!("ip link set {UPLINK} up"))?;
            run_line(&format!("ip -n {name} address add {address}/24 dev eth0"))?;
            run_line(&format!("ip -n {name} link set eth0 up"))?;
            let uplink = "uplink create up0 --bridge br0 --attach packet --device";
            daemon.command(&format!("{uplink} {UPLINK}"))?;
        } else {
            for client in &CLIENTS[..count] {
                tap(*client)?;
            }
        }
        let ping = format!("ping -c 1 -W 1 {}", SERVER.1);
        for client in &clients {
            let most = Duration::from_secs(10);
            stop::until("the first ping", most, || client.exec(&ping).ok())?;
        }
        let cap = Cap::on(daemon.process().pid(), options.duty)?;
        Ok(World {
            daemon,
            clients,
            server,
            _cap: cap,
        })
    }

    /// Offers `rate` datagrams a second in all; gives what was offered and delivered a second.
    fn offer(&mut self, rate: f64, seconds: f64) -> Result<(f64, f64)> {
        let program = std::env::current_exe()?;
        let end = |namespace: &Namespace, core: &str, seconds: f64| {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", namespace.name()])
                .arg(&program);
            command.args([
                "overload-end",
                "--core",
                core,
                "--seconds",
                &seconds.to_string(),
            ]);
            command
        };
        let margins = 2.0 * MARGIN.as_secs_f64();
        let receiver = Child::start_piped(end(&self.server, "0", seconds + margins))?;
        stop::pause(MARGIN)?;
        let each = (rate / self.clients.len() as f64).to_string();
        let mut senders = Vec::new();
        for client in &self.clients {
            let mut command = end(client, "1", seconds);
            command.args(["--rate", &each, "--to", &format!("{}:{PORT}", SERVER.1)]);
            senders.push(Child::start_piped(command)?);
        }
        let most = Duration::from_secs_f64(seconds) + Duration::from_secs(5);
        let seen =
            |child: Child| -> Result<Seen> { Ok(serde_json::from_str(&child.output(most)?)?) };
        let mut offered = 0.0;
        for sender in senders {
            let sent = seen(sender)?;
            offered += sent.datagrams as f64 / sent.seconds;
        }
        let delivered = seen(receiver)?.datagrams as f64 / seconds;
        self.daemon.process().still_runs()?;
        Ok((offered, delivered))
    }

    fn capacity(&mut self, seconds: f64) -> Result<f64> {
        let mut peak = 0.0f64;
        for step in 0..SEARCH_STEPS {
            let rate = SEARCH_FROM * f64::from(1 << step);
            let (offered, delivered) = self.offer(rate, seconds)?;
            peak = peak.max(delivered.min(offered));
            if delivered < offered / 4.0 {
                break;
            }
        }
        Ok(peak)
    }
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If the daemon fails, the host has no control groups, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    if options.duty == 0 || options.duty > 100 {
        bail!("a duty is 1 to 100 percent");
    }
    println!(
        "overload, worker capped at {} % of a core; {}",
        options.duty,
        describe()
    );
    let mut shots = Vec::new();
    for source in &options.sources {
        let scratch = Scratch::create()?;
        let mut world = World::build(*source, options, programs, &scratch)?;
        let capacity = world.capacity(options.seconds)?;
        println!(
            "{source:?}: capacity {:.0} thousand datagrams/s",
            capacity / 1e3
        );
        for round in 0..options.rounds {
            for load in LOADS {
                let (offered, delivered) = world.offer(capacity * load, options.seconds)?;
                shots.push(Shot {
                    source: *source,
                    round,
                    load,
                    offered,
                    delivered,
                });
            }
        }
    }
    for source in &options.sources {
        print(*source, &shots);
    }
    write_json(json, &shots)
}

fn print(source: Source, shots: &[Shot]) {
    let title = format!("{source:?}");
    let mut table = Table::new(&[&title, "offered, thousands/s", "delivered, thousands/s"]);
    let spread = |load: f64, value: fn(&Shot) -> f64| {
        let of = shots
            .iter()
            .filter(|s| s.source == source && s.load == load);
        Spread::of(of.map(|s| value(s) / 1e3))
    };
    let delivered: Vec<_> = LOADS
        .iter()
        .map(|load| spread(*load, |s| s.delivered))
        .collect();
    for (load, delivered) in LOADS.iter().zip(&delivered) {
        let show = |s: Option<Spread>| s.map_or_else(|| "-".to_owned(), |s| format!("{s:.0}"));
        let offered = show(spread(*load, |s| s.offered));
        table.row(vec![
            format!("{:.0} %", load * 100.0),
            offered,
            show(*delivered),
        ]);
    }
    println!("\n{table}");
    let peak = delivered
        .iter()
        .flatten()
        .map(|s| s.median)
        .fold(0.0, f64::max);
    if let Some(Some(last)) = delivered.last() {
        let share = last.median / peak;
        let verdict = verdict(share >= BAR);
        println!("at 300 % delivered {share:.2} of the peak (bar {BAR}: {verdict})");
    }
}
