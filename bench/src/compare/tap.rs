//! TAP to TAP and veth to veth between two namespaces, beside the kernel's bridge with veth pairs and OVS in user space with TAPs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::child::{Child, run_line};
use super::host::{Namespace, Scratch, busy_seconds, describe, require};
use super::peers::{ovs_vsctl, start_ovs};
use super::stop;
use super::table::{Spread, Table};
use super::windlass::Daemon;

/// The OVS build without DPDK.
const OVS: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";

const CLIENT: (&str, &str) = ("wlc-client", "10.91.0.1");
const SERVER: (&str, &str) = ("wlc-server", "10.91.0.2");
const KERNEL_BRIDGE: &str = "wlc-bridge";

/// The first port that iperf3 servers listen at; each has its own.
const PORT: u16 = 5301;

/// Bytes of a UDP datagram in the test of small frames.
const SMALL: &str = "64";

/// iperf3 has this long beyond its measured time.
const SLACK: Duration = Duration::from_secs(10);

/// iperf3's servers have this long to listen, and a subject to forward its first ping.
const SETTLE: Duration = Duration::from_millis(300);
const REACH_WITHIN: Duration = Duration::from_secs(10);

/// TAP to TAP between namespaces, with iperf3.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kernel,windlass,ovs"
    )]
    subjects: Vec<Subject>,
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

/// What can stand between the two namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// The kernel's bridge with two veth pairs.
    Kernel,
    /// windlassd with two TAPs.
    Windlass,
    /// windlassd with two veths: frames pass in the kernel.
    Veth,
    /// OVS in user space with two TAPs (its internal ports).
    Ovs,
}

/// How the test is laid out. A core of `None` is any core.
#[derive(Clone, Copy, Debug, Serialize)]
struct Variant {
    name: &'static str,
    client: Option<u8>,
    server: Option<u8>,
    daemon: Option<u8>,
    processes: u16,
    streams: u16,
    small_udp: bool,
    congestion: &'static str,
    /// Least rate and most processor time a gigabyte with TAPs, as multiples of the kernel bridge's.
    bar: Option<(f64, Option<f64>)>,
    /// The same with veths.
    veth_bar: Option<(f64, Option<f64>)>,
}

const PINNED: Variant = Variant {
    name: "1 stream",
    client: Some(1),
    server: Some(0),
    daemon: Some(0),
    processes: 1,
    streams: 1,
    small_udp: false,
    congestion: "cubic",
    bar: Some((1.0, Some(1.25))),
    veth_bar: Some((1.0, Some(1.0))),
};

const ANYWHERE: Variant = Variant {
    client: None,
    server: None,
    daemon: None,
    ..PINNED
};

const VARIANTS: [Variant; 9] = [
    PINNED,
    Variant {
        name: "4 processes",
        processes: 4,
        bar: Some((0.85, Some(1.4))),
        ..PINNED
    },
    Variant {
        name: "1 process, -P 4",
        streams: 4,
        bar: Some((0.5, None)),
        ..PINNED
    },
    Variant {
        name: "1 stream, unpinned",
        bar: Some((0.9, Some(1.35))),
        ..ANYWHERE
    },
    Variant {
        name: "UDP of 64 bytes",
        small_udp: true,
        bar: Some((0.85, None)),
        veth_bar: Some((1.25, None)),
        ..PINNED
    },
    Variant {
        name: "4 processes, unpinned",
        processes: 4,
        bar: None,
        veth_bar: None,
        ..ANYWHERE
    },
    Variant {
        name: "1 stream, all on one core",
        client: Some(0),
        bar: None,
        veth_bar: None,
        ..PINNED
    },
    Variant {
        name: "1 stream, daemon with sender",
        daemon: Some(1),
        bar: None,
        veth_bar: None,
        ..PINNED
    },
    Variant {
        name: "1 stream, bbr",
        congestion: "bbr",
        bar: None,
        veth_bar: None,
        ..PINNED
    },
];

/// One measurement.
#[derive(Clone, Debug, Serialize)]
struct Shot {
    round: usize,
    subject: Subject,
    variant: &'static str,
    congestion: String,
    /// Gigabits a second received; millions of datagrams a second for UDP.
    rate: f64,
    /// Processor seconds of the whole host, softirq included, for each gigabyte received.
    cpu_per_gb: f64,
}

/// Everything, as it is written to the file of results.
#[derive(Serialize)]
struct Results<'a> {
    machine: String,
    shots: &'a [Shot],
}

/// Measures, prints the table, and writes the single measurements to `json`.
///
/// # Errors
/// If a subject is missing or fails, or the run is interrupted.
pub fn run_all(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[
        ("iperf3", "iperf3"),
        ("ip", "iproute2"),
        ("ping", "iputils-ping"),
    ])?;
    if options.subjects.contains(&Subject::Ovs) {
        require(&[
            (OVS, "openvswitch-switch"),
            ("ovsdb-server", "openvswitch-switch"),
        ])?;
    }
    let variants = chosen(options)?;
    let scratch = Scratch::create()?;
    let machine = describe();
    println!("TAP to TAP, iperf3; {machine}");
    let mut shots = Vec::new();
    for round in 0..options.rounds {
        for subject in &options.subjects {
            let turn = take_turn(
                options, &variants, *subject, round, programs, &scratch, &mut shots,
            );
            turn.with_context(|| format!("{subject:?} in round {}", round + 1))?;
        }
    }
    print(options, &variants, &shots);
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&Results {
            machine,
            shots: &shots,
        })?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn chosen(options: &Options) -> Result<Vec<Variant>> {
    if options.variants.is_empty() {
        return Ok(VARIANTS.to_vec());
    }
    let pick = |number: &usize| {
        let index = number
            .checked_sub(1)
            .context("variants are numbered from 1")?;
        VARIANTS
            .get(index)
            .copied()
            .with_context(|| format!("there are {} variants", VARIANTS.len()))
    };
    options.variants.iter().map(pick).collect()
}

/// A subject between its two namespaces. Fields are dropped in this order.
struct World {
    daemon: Option<Daemon>,
    ovs: Option<(Child, Child)>,
    _bridge: Option<Namespace>,
    client: Namespace,
    server: Namespace,
}

impl World {
    fn build(subject: Subject, programs: &Path, scratch: &Scratch) -> Result<World> {
        let mut world = World {
            daemon: None,
            ovs: None,
            _bridge: None,
            client: Namespace::create(CLIENT.0)?,
            server: Namespace::create(SERVER.0)?,
        };
        match subject {
            Subject::Kernel => world._bridge = Some(kernel_bridge()?),
            Subject::Windlass | Subject::Veth => {
                let kind = if subject == Subject::Veth {
                    "veth"
                } else {
                    "tap"
                };
                let daemon = Daemon::start(programs, scratch, &[])?;
                daemon.command("bridge create br0")?;
                for (name, address) in [CLIENT, SERVER] {
                    daemon.command(&format!(
                        "vnic create {name} --bridge br0 --attach {kind},netns={name},address={address}/24"
                    ))?;
                }
                world.daemon = Some(daemon);
            }
            Subject::Ovs => world.ovs = Some(ovs(scratch, [&world.client, &world.server])?),
        }
        let ping = format!("ping -c 1 -W 1 {}", SERVER.1);
        stop::until("the first ping", REACH_WITHIN, || {
            world.client.exec(&ping).ok()
        })?;
        Ok(world)
    }

    /// The process that forwards, unless it is the kernel.
    fn forwarder(&mut self) -> Option<u32> {
        let daemon = self.daemon.as_mut().map(|daemon| daemon.process().pid());
        daemon.or(self.ovs.as_ref().map(|(switch, _)| switch.pid()))
    }

    fn arrange(&mut self, variant: &Variant) -> Result<()> {
        if let Some(pid) = self.forwarder() {
            let cores = cores(variant.daemon);
            run_line(&format!("taskset -a -c -p {cores} {pid}"))?;
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

fn kernel_bridge() -> Result<Namespace> {
    let bridge = Namespace::create(KERNEL_BRIDGE)?;
    bridge.ip("link add br0 type bridge")?;
    bridge.ip("link set br0 up")?;
    for (name, address) in [CLIENT, SERVER] {
        let short = name.trim_start_matches("wlc-");
        bridge.ip(&format!(
            "link add {short} type veth peer name eth0 netns {name}"
        ))?;
        bridge.ip(&format!("link set {short} master br0 up"))?;
        run_line(&format!("ip -n {name} address add {address}/24 dev eth0"))?;
        run_line(&format!("ip -n {name} link set eth0 up"))?;
    }
    Ok(bridge)
}

fn ovs(scratch: &Scratch, namespaces: [&Namespace; 2]) -> Result<(Child, Child)> {
    let directory = scratch.join("ovs-tap");
    let (switch, database) = start_ovs(&directory, Path::new(OVS), &[])?;
    let configure = |line: &str| ovs_vsctl(&directory, line.split_ascii_whitespace());
    configure("add-br br0 -- set bridge br0 datapath_type=netdev")?;
    for (namespace, (_, address)) in namespaces.iter().zip([CLIENT, SERVER]) {
        let name = namespace.name();
        configure(&format!(
            "add-port br0 {name} -- set Interface {name} type=internal"
        ))?;
        let pid = switch.pid();
        run_line(&format!(
            "nsenter -t {pid} -n ip link set {name} netns {name}"
        ))?;
        namespace.ip(&format!("address add {address}/24 dev {name}"))?;
        namespace.ip(&format!("link set {name} up"))?;
    }
    Ok((switch, database))
}

fn cores(core: Option<u8>) -> String {
    let last = std::thread::available_parallelism().map_or(0, |n| n.get() - 1);
    core.map_or_else(|| format!("0-{last}"), |core| core.to_string())
}

fn take_turn(
    options: &Options,
    variants: &[Variant],
    subject: Subject,
    round: usize,
    programs: &Path,
    scratch: &Scratch,
    shots: &mut Vec<Shot>,
) -> Result<()> {
    let mut world = World::build(subject, programs, scratch)?;
    for variant in variants {
        world.arrange(variant)?;
        let (rate, cpu_per_gb) =
            measure(&world, variant, options.seconds).with_context(|| variant.name)?;
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

/// Rate and processor seconds a gigabyte.
fn measure(world: &World, variant: &Variant, seconds: u32) -> Result<(f64, f64)> {
    let ports: Vec<String> = (0..variant.processes)
        .map(|i| (PORT + i).to_string())
        .collect();
    let on = |namespace: &Namespace, core: Option<u8>, words: &[&str]| {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            namespace.name(),
            "taskset",
            "-c",
            &cores(core),
            "iperf3",
        ]);
        command.args(words);
        Child::start_piped(command)
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
    let (time, streams) = (seconds.to_string(), variant.streams.to_string());
    let busy = busy_seconds()?;
    let mut clients = Vec::new();
    for port in &ports {
        let mut words = vec![
            "-c", SERVER.1, "-p", port, "-t", &time, "-P", &streams, "-J",
        ];
        if variant.small_udp {
            words.extend(["-u", "-b", "0", "-l", SMALL]);
        }
        clients.push(on(&world.client, variant.client, &words)?);
    }
    let (mut rate, mut bytes) = (0.0, 0.0);
    for client in clients {
        let text = client.output(Duration::from_secs(u64::from(seconds)) + SLACK)?;
        let report: Value = serde_json::from_str(&text).context("iperf3's report")?;
        let (add_rate, add_bytes) = read_report(&report, variant.small_udp)?;
        rate += add_rate;
        bytes += add_bytes;
    }
    let busy = busy_seconds()? - busy;
    if bytes == 0.0 {
        bail!("nothing was received");
    }
    Ok((rate, busy / (bytes / 1e9)))
}

/// Rate received, in Gbit/s or millions of datagrams a second, and bytes received.
fn read_report(report: &Value, udp: bool) -> Result<(f64, f64)> {
    let end = &report["end"];
    let number = |value: &Value| value.as_f64().context("iperf3's report lacks a number");
    if udp {
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

fn print(options: &Options, variants: &[Variant], shots: &[Shot]) {
    let mut table = Table::new(&[
        "Gbit/s; UDP: millions/s",
        "subject",
        "rate",
        "CPU s/GB",
        "rate/kernel",
        "CPU/kernel",
        "bar",
    ]);
    for variant in variants {
        let name = format!("{} ({})", variant.name, variant.congestion);
        for subject in &options.subjects {
            table.row(row(&name, variant, *subject, shots));
        }
    }
    println!(
        "\n{table}\nmedian [lowest highest] of {} rounds; ratios within a round",
        options.rounds
    );
}

fn row(name: &str, variant: &Variant, subject: Subject, shots: &[Shot]) -> Vec<String> {
    let find = |subject, round| {
        let mut of = shots
            .iter()
            .filter(move |s| s.variant == variant.name && s.subject == subject);
        of.find(move |s| s.round == round)
    };
    let own: Vec<&Shot> = shots
        .iter()
        .filter(|s| s.variant == variant.name && s.subject == subject)
        .collect();
    let against = |value: fn(&Shot) -> f64| {
        let ratio = |s: &&Shot| Some(value(s) / value(find(Subject::Kernel, s.round)?));
        Spread::of(own.iter().filter_map(ratio))
    };
    let (rate, cpu) = (against(|s| s.rate), against(|s| s.cpu_per_gb));
    let show =
        |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |s| format!("{s:.2}"));
    let bar = match subject {
        Subject::Windlass => variant.bar,
        Subject::Veth => variant.veth_bar,
        Subject::Kernel | Subject::Ovs => None,
    };
    let bar = match (bar, rate, cpu) {
        (Some((least, most)), Some(rate), Some(cpu)) => {
            let met = rate.median >= least && most.is_none_or(|most| cpu.median <= most);
            let most = most.map_or_else(String::new, |most| format!(" at {most}"));
            format!("{least}{most}: {}", if met { "met" } else { "MISSED" })
        }
        _ => String::new(),
    };
    vec![
        name.to_owned(),
        format!("{subject:?}").to_lowercase(),
        show(Spread::of(own.iter().map(|s| s.rate))),
        show(Spread::of(own.iter().map(|s| s.cpu_per_gb))),
        show(rate),
        show(cpu),
        bar,
    ]
}
