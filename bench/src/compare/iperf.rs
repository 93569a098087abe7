//! # Purpose
//! iperf3 from one namespace to another, or round trips of sock-ping, over subjects that take turns.
//!
//! # Model
//! ```text
//!   iperf3 -c in CLIENT --> what the subject puts between --> iperf3 -s in SERVER
//!   sock-ping ask       <->                               <-> sock-ping serve
//! ```
//! A [`Comparison`] names the subjects, what each puts between the two namespaces, and the [`Variant`]s that are measured.
//! Processor time is that of the whole host, softirq included: the programs' own and that of whatever forwards. Ratios are
//! of the base subject's figures of the same round.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::child::{Child, run_line};
use super::host::{Namespace, Scratch, busy_seconds, describe, require};
use super::spray::Sprayer;
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::Daemon;

/// The namespace that sends, and the address in it.
pub const CLIENT: (&str, &str) = ("wlc-client", "10.91.0.1");
/// The one that receives.
pub const SERVER: (&str, &str) = ("wlc-server", "10.91.0.2");

/// The first port that servers listen at; each has its own.
const PORT: u16 = 5301;

/// Bytes of a small datagram or message.
const SMALL: &str = "64";

/// A client has this long beyond its measured time.
const SLACK: Duration = Duration::from_secs(10);

/// Servers have this long to listen, and a subject to forward its first ping.
const SETTLE: Duration = Duration::from_millis(300);
const REACH_WITHIN: Duration = Duration::from_secs(10);

/// How often, how long and what.
#[derive(Args, Debug)]
pub struct Turns {
    /// Variants by their numbers; without them, all
    #[arg(long, value_delimiter = ',')]
    variants: Vec<usize>,
    /// Turns of each subject
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured seconds of each case
    #[arg(long, default_value_t = 3)]
    seconds: u32,
}

/// Least rate and most processor time a gigabyte, as multiples of the base subject's.
pub type Bar = (f64, Option<f64>);

/// What the two exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Streams of TCP, counted in Gbit/s.
    Streams,
    /// UDP datagrams of [`SMALL`] bytes as fast as they go, in millions a second.
    Datagrams,
    /// One TCP message of [`SMALL`] bytes there and back, over and over: what the median trip one way would give, in thousands a second.
    Trips,
}

/// How the test is laid out. A core of `None` is any core.
pub struct Variant<S: 'static> {
    /// What it is called.
    pub name: &'static str,
    /// Core of the clients.
    pub client: Option<u8>,
    /// Core of the servers.
    pub server: Option<u8>,
    /// Cores of the processes that forward, as [`World::forwarders`] has them.
    pub forwarders: [Option<u8>; 2],
    /// Clients, each with a server.
    pub processes: u16,
    /// Streams of each.
    pub streams: u16,
    /// What they send.
    pub traffic: Traffic,
    /// The congestion control of both namespaces.
    pub congestion: &'static str,
    /// The bars of subjects that have one.
    pub bars: &'static [(S, Bar)],
}

/// What is compared.
pub struct Comparison<'a, S: 'static> {
    /// What the first line says.
    pub title: &'static str,
    /// Subjects, in the order of their turns.
    pub subjects: &'a [S],
    /// The subject that ratios are of.
    pub base: S,
    /// All variants.
    pub variants: &'static [Variant<S>],
    /// Where sock-ping is.
    pub programs: &'a Path,
    /// Puts a subject between two namespaces.
    pub build: &'a dyn Fn(S, &mut World, &Scratch) -> Result<()>,
}

/// One measurement.
#[derive(Serialize)]
struct Shot<S> {
    round: usize,
    subject: S,
    variant: &'static str,
    congestion: String,
    /// See [`Traffic`].
    rate: f64,
    /// Processor seconds of the whole host, softirq included, for each gigabyte received.
    cpu_per_gb: f64,
}

/// Everything, as it is written to the file of results.
#[derive(Serialize)]
struct Results<'a, S> {
    machine: String,
    shots: &'a [Shot<S>],
}

impl<S: Copy + PartialEq + Serialize + ValueEnum + 'static> Comparison<'_, S> {
    /// Measures, prints the table, and writes the single measurements to `json`.
    ///
    /// # Errors
    /// If a program is missing, a subject fails, or the run is interrupted.
    pub fn run(&self, turns: &Turns, json: Option<&PathBuf>) -> Result<()> {
        require(&[
            ("iperf3", "iperf3"),
            ("ip", "iproute2"),
            ("ping", "iputils-ping"),
        ])?;
        let variants = self.chosen(&turns.variants)?;
        let scratch = Scratch::create()?;
        let machine = describe();
        println!("{}, iperf3 and sock-ping; {machine}", self.title);
        let mut shots = Vec::new();
        for round in 0..turns.rounds {
            for subject in self.subjects {
                let turn = self.take_turn(
                    (*subject, round),
                    &variants,
                    turns.seconds,
                    &scratch,
                    &mut shots,
                );
                turn.with_context(|| format!("{} in round {}", name(subject), round + 1))?;
            }
        }
        let [rates, cpus] = ["rate", "CPU"].map(|what| format!("{what}/{}", name(&self.base)));
        let mut table = Table::new(&[
            "Gbit/s; UDP: millions/s; trips: thousands/s",
            "subject",
            "rate",
            "CPU s/GB",
            &rates,
            &cpus,
            "bar",
        ]);
        for variant in variants {
            for subject in self.subjects {
                table.row(self.row(variant, *subject, &shots));
            }
        }
        println!(
            "\n{table}\nmedian [lowest highest] of {} rounds; ratios within a round",
            turns.rounds
        );
        let results = Results {
            machine,
            shots: &shots,
        };
        write_json(json, &results)
    }

    fn chosen(&self, numbers: &[usize]) -> Result<Vec<&'static Variant<S>>> {
        if numbers.is_empty() {
            return Ok(self.variants.iter().collect());
        }
        let pick = |number: &usize| {
            let index = number
                .checked_sub(1)
                .context("variants are numbered from 1")?;
            self.variants
                .get(index)
                .with_context(|| format!("there are {} variants", self.variants.len()))
        };
        numbers.iter().map(pick).collect()
    }

    fn take_turn(
        &self,
        (subject, round): (S, usize),
        variants: &[&Variant<S>],
        seconds: u32,
        scratch: &Scratch,
        shots: &mut Vec<Shot<S>>,
    ) -> Result<()> {
        let mut world = World::create()?;
        (self.build)(subject, &mut world, scratch)?;
        world.reach()?;
        for variant in variants {
            world.arrange(variant)?;
            let (rate, cpu_per_gb) =
                measure(&world, variant, seconds, self.programs).with_context(|| variant.name)?;
            let congestion = world
                .client
                .exec("sysctl -n net.ipv4.tcp_congestion_control")?;
            let shot = Shot {
                round,
                subject,
                variant: variant.name,
                congestion: congestion.trim().to_owned(),
                rate,
                cpu_per_gb,
            };
            eprintln!("  {}", serde_json::to_string(&shot)?);
            shots.push(shot);
        }
        Ok(())
    }

    fn row(&self, variant: &Variant<S>, subject: S, shots: &[Shot<S>]) -> Vec<String> {
        let of = |subject: S| {
            shots
                .iter()
                .filter(move |s| s.variant == variant.name && s.subject == subject)
        };
        let against = |value: fn(&Shot<S>) -> f64| {
            let ratio = |s: &Shot<S>| {
                let base = of(self.base).find(|base| base.round == s.round)?;
                Some(value(s) / value(base))
            };
            Spread::of(of(subject).filter_map(ratio))
        };
        let (rate, cpu) = (against(|s| s.rate), against(|s| s.cpu_per_gb));
        let show =
            |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |s| format!("{s:.2}"));
        let bar = variant.bars.iter().find(|(whose, _)| *whose == subject);
        let bar = match (bar, rate, cpu) {
            (Some((_, (least, most))), Some(rate), Some(cpu)) => {
                let is_met = rate.median >= *least && most.is_none_or(|most| cpu.median <= most);
                let most = most.map_or_else(String::new, |most| format!(" at {most}"));
                format!("{least}{most}: {}", verdict(is_met))
            }
            _ => String::new(),
        };
        vec![
            format!("{} ({})", variant.name, variant.congestion),
            name(&subject),
            show(Spread::of(of(subject).map(|s| s.rate))),
            show(Spread::of(of(subject).map(|s| s.cpu_per_gb))),
            show(rate),
            show(cpu),
            bar,
        ]
    }
}

/// A subject as the command line names it.
fn name<S: ValueEnum>(subject: &S) -> String {
    let value = subject.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A subject between its two namespaces. Fields are dropped in this order.
pub struct World {
    /// A guest beside the two.
    pub third: Option<Sprayer>,
    /// The daemons, first the client's.
    pub daemons: Vec<Daemon>,
    /// OVS and its database.
    pub ovs: Option<(Child, Child)>,
    /// Namespaces in between.
    pub between: Vec<Namespace>,
    /// The sender's namespace.
    pub client: Namespace,
    /// The receiver's.
    pub server: Namespace,
}

impl World {
    fn create() -> Result<World> {
        Ok(World {
            third: None,
            daemons: Vec::new(),
            ovs: None,
            between: Vec::new(),
            client: Namespace::create(CLIENT.0)?,
            server: Namespace::create(SERVER.0)?,
        })
    }

    fn reach(&self) -> Result<()> {
        let ping = format!("ping -c 1 -W 1 {}", SERVER.1);
        stop::until("the first ping", REACH_WITHIN, || {
            self.client.exec(&ping).ok()
        })?;
        Ok(())
    }

    /// The processes that forward; none where the kernel does.
    fn forwarders(&mut self) -> Vec<u32> {
        let daemons = self.daemons.iter_mut().map(|d| d.process().pid());
        let ovs = self.ovs.as_ref().map(|(switch, _)| switch.pid());
        daemons.chain(ovs).collect()
    }

    fn arrange<S: 'static>(&mut self, variant: &Variant<S>) -> Result<()> {
        for (pid, core) in self.forwarders().into_iter().zip(variant.forwarders) {
            run_line(&format!("taskset -a -c -p {} {pid}", cores(core)))?;
        }
        let set = format!(
            "sysctl -q -w net.ipv4.tcp_congestion_control={}",
            variant.congestion
        );
        self.client.exec(&set)?;
        self.server.exec(&set)?;
        Ok(())
    }
}

/// Gives a namespace with an address a veth, whose other end is a port of the kernel's bridge `br0` in `bridge`.
///
/// # Errors
/// If a command fails.
pub fn plug(bridge: &Namespace, (name, address): (&str, &str), mtu: u16) -> Result<()> {
    let port = name.trim_start_matches("wlc-");
    bridge.ip(&format!(
        "link add {port} type veth peer name eth0 netns {name}"
    ))?;
    bridge.ip(&format!("link set {port} mtu {mtu} master br0 up"))?;
    run_line(&format!("ip -n {name} address add {address}/24 dev eth0"))?;
    run_line(&format!("ip -n {name} link set eth0 mtu {mtu} up"))?;
    Ok(())
}

fn cores(core: Option<u8>) -> String {
    let last = std::thread::available_parallelism().map_or(0, |n| n.get() - 1);
    core.map_or_else(|| format!("0-{last}"), |core| core.to_string())
}

/// What went from one to the other.
struct Passed {
    rate: f64,
    bytes: f64,
    /// Processor seconds of the whole host.
    busy: f64,
}

/// Rate and processor seconds a gigabyte.
fn measure<S: 'static>(
    world: &World,
    variant: &Variant<S>,
    seconds: u32,
    programs: &Path,
) -> Result<(f64, f64)> {
    let passed = match variant.traffic {
        Traffic::Trips => trips(world, variant, seconds, programs)?,
        Traffic::Streams | Traffic::Datagrams => iperf(world, variant, seconds)?,
    };
    if passed.bytes == 0.0 {
        bail!("nothing was received");
    }
    Ok((passed.rate, passed.busy / (passed.bytes / 1e9)))
}

/// Starts a program in a namespace, on a core.
fn start(namespace: &Namespace, core: Option<u8>, program: &Path, words: &[&str]) -> Result<Child> {
    let mut command = Command::new("ip");
    let cores = cores(core);
    command.args(["netns", "exec", namespace.name(), "taskset", "-c", &cores]);
    command.arg(program).args(words);
    Child::start_piped(command)
}

fn trips<S: 'static>(
    world: &World,
    variant: &Variant<S>,
    seconds: u32,
    programs: &Path,
) -> Result<Passed> {
    let program = programs.join("sock-ping");
    let (at, time) = (format!("{}:{PORT}", SERVER.1), seconds.to_string());
    let end = |namespace: &Namespace, core: Option<u8>, which: &str| {
        let words = [which, "--at", &at, "--size", SMALL, "--seconds", &time];
        start(namespace, core, &program, &words)
    };
    let _server = end(&world.server, variant.server, "serve")?;
    stop::pause(SETTLE)?;
    let busy = busy_seconds()?;
    let client = end(&world.client, variant.client, "ask")?;
    let report = report(client, seconds)?;
    let busy = busy_seconds()? - busy;
    Ok(Passed {
        rate: 1e6 / number(&report["p50_ns"])?,
        bytes: number(&report["trips"])? * 2.0 * SMALL.parse::<f64>()?,
        busy,
    })
}

fn iperf<S: 'static>(world: &World, variant: &Variant<S>, seconds: u32) -> Result<Passed> {
    let ports: Vec<String> = (0..variant.processes)
        .map(|i| (PORT + i).to_string())
        .collect();
    let on = |namespace: &Namespace, core: Option<u8>, words: &[&str]| {
        start(namespace, core, Path::new("iperf3"), words)
    };
    let mut servers = Vec::new();
    for port in &ports {
        servers.push(on(
            &world.server,
            variant.server,
            &["-s", "-1", "-p", port],
        )?);
    }
    stop::pause(SETTLE)?;
    let is_udp = variant.traffic == Traffic::Datagrams;
    let (time, streams) = (seconds.to_string(), variant.streams.to_string());
    let busy = busy_seconds()?;
    let mut clients = Vec::new();
    for port in &ports {
        let mut words = vec![
            "-c", SERVER.1, "-p", port, "-t", &time, "-P", &streams, "-J",
        ];
        if is_udp {
            words.extend(["-u", "-b", "0", "-l", SMALL]);
        }
        clients.push(on(&world.client, variant.client, &words)?);
    }
    let (mut rate, mut bytes) = (0.0, 0.0);
    for client in clients {
        let (add_rate, add_bytes) = read_report(&report(client, seconds)?, is_udp)?;
        rate += add_rate;
        bytes += add_bytes;
    }
    let busy = busy_seconds()? - busy;
    Ok(Passed { rate, bytes, busy })
}

fn report(client: Child, seconds: u32) -> Result<Value> {
    let text = client.output(Duration::from_secs(u64::from(seconds)) + SLACK)?;
    serde_json::from_str(&text).context("a client's report")
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().context("a report lacks a number")
}

/// Rate received, in Gbit/s or millions of datagrams a second, and bytes received.
fn read_report(report: &Value, is_udp: bool) -> Result<(f64, f64)> {
    let end = &report["end"];
    if is_udp {
        let sum = &end["sum"];
        let packets = number(&sum["packets"])? - number(&sum["lost_packets"])?;
        let bytes = packets * SMALL.parse::<f64>()?;
        return Ok((packets / number(&sum["seconds"])? / 1e6, bytes));
    }
    let sum = &end["sum_received"];
    Ok((
        number(&sum["bits_per_second"])? / 1e9,
        number(&sum["bytes"])?,
    ))
}
