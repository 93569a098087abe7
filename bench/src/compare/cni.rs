//! Containers that come and go: `windlass-cni` beside the reference plugins `bridge` and `host-local`.
//!
//! # Model
//! A namespace stands for the host, and an empty one for each container. A *turn* of a subject has ADD and DEL of each container one by one,
//! then all ADDs at once, then all DELs at once. Each call gives or takes an interface with an address; what is timed is the plugin's
//! process, from its start to its end. A call that is refused ends the run. The subject `pool` has its network on an overlay, and its
//! addresses from that overlay's registry: an etcd that runs for it alone.
//!
//! The daemon and `windlass-cni` flush what they write, the reference does not. So what the host has written before is flushed before each
//! turn.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};
use windlass_sys::netns::{NetnsRef, within};

use super::host::{Namespace, Scratch, describe, require};
use super::registry::daemon;
use super::registry::etcd::Etcd;
use super::stop;
use super::table::{Spread, Table, verdict, write_json};
use super::windlass::Daemon;

const HOST: &str = "wlc-host";
/// Where Debian has the reference plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The most of the reference's time that windlass may take.
const BAR: f64 = 0.6;
/// The same with addresses of a registry.
const POOL_BAR: f64 = 1.0;
/// How long the plugin may take until it is connected.
const REGISTERED_WITHIN: Duration = Duration::from_secs(20);
/// The tunnel address of the overlay.
const UNDERLAY: &str = "192.0.2.1";

/// ADD and DEL of containers with an address, beside the reference plugins.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "veth,tap,pool,reference"
    )]
    subjects: Vec<Subject>,
    /// Turns of each subject
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Containers
    #[arg(long, default_value_t = 100)]
    containers: usize,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
enum Subject {
    /// `windlass-cni` with attachment veth.
    Veth,
    /// `windlass-cni` with attachment tap.
    Tap,
    /// The same with addresses of a registry.
    Pool,
    /// `bridge` with `host-local`.
    Reference,
}

impl Subject {
    /// The most of the reference's time that it may take.
    fn bar(self) -> f64 {
        match self {
            Self::Pool => POOL_BAR,
            Self::Veth | Self::Tap | Self::Reference => BAR,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Veth => "windlass, veth",
            Self::Tap => "windlass, tap",
            Self::Pool => "windlass, tap, pool in etcd",
            Self::Reference => "bridge, host-local",
        }
    }
}

/// One turn, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Shot {
    round: usize,
    subject: Subject,
    /// The medians of single calls.
    add: f64,
    del: f64,
    /// From the start of the first to the end of the last.
    add_all: f64,
    del_all: f64,
}

/// What a shot is compared by.
type Figure = (&'static str, fn(&Shot) -> f64);

/// Measures, prints the table, and writes the turns to `json`.
///
/// # Errors
/// If a call is refused, something is missing, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let plugin = format!("{PLUGINS}/host-local");
    require(&[("ip", "iproute2"), (&plugin, "containernetworking-plugins")])?;
    println!("{} containers; {}", options.containers, describe());
    let scratch = Scratch::create()?;
    let namespace = Namespace::create(HOST)?;
    namespace.ip(&format!("address add {UNDERLAY}/24 dev lo"))?;
    let host = NetnsRef::open(HOST)?;
    let names = (0..options.containers).map(|n| Namespace::create(&format!("wlc-{n}")));
    let containers: Vec<Namespace> = names.collect::<Result<_>>()?;
    let has_pool = options.subjects.contains(&Subject::Pool);
    let prepared = daemon::prepare(programs, &scratch)?;
    let daemon = within(&host, || Daemon::start(&prepared, &scratch, &[]))??;
    daemon.command("bridge create br0")?;
    let etcd = has_pool.then(|| within(&host, || registry(&daemon, &scratch)));
    let _etcd = etcd.transpose()?.transpose()?;
    let mut shots = Vec::new();
    for round in 0..options.rounds {
        for &subject in &options.subjects {
            let plugin = Plugin::of(subject, programs, &scratch);
            rustix::fs::sync();
            let taken = within(&host, || plugin.turn(&containers))?;
            let [add, del, add_all, del_all] = taken.context(subject.title())?;
            shots.push(Shot {
                round,
                subject,
                add,
                del,
                add_all,
                del_all,
            });
        }
    }
    print(options, &shots);
    write_json(json, &shots)
}

/// An etcd, with the overlay of which it is the registry.
fn registry(daemon: &Daemon, scratch: &Scratch) -> Result<Etcd> {
    require(&[("etcd", "etcd-server")])?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let etcd = runtime.block_on(Etcd::start(scratch))?;
    let cache = daemon::cache(scratch)?;
    daemon.command(&daemon::create(1, UNDERLAY, &etcd, &cache))?;
    // A registry that is not there yet gives no addresses.
    let is_online = || {
        let shown = daemon.command("overlay show ov1 --json").ok()?;
        let rows: Value = serde_json::from_str(&shown).ok()?;
        (rows[0]["state"] == "up").then_some(())
    };
    stop::until("the registry's answer", REGISTERED_WITHIN, is_online)?;
    Ok(etcd)
}

fn print(options: &Options, shots: &[Shot]) {
    let all = options.containers;
    let (adds, dels) = (format!("{all} ADDs, ms"), format!("{all} DELs, ms"));
    let titles = ["", "ADD p50, ms", "DEL p50, ms", &adds, &dels];
    let figures: [Figure; 4] = [
        ("ADD", |shot| shot.add),
        ("DEL", |shot| shot.del),
        ("ADDs at once", |shot| shot.add_all),
        ("DELs at once", |shot| shot.del_all),
    ];
    let of = |subject, figure: fn(&Shot) -> f64| -> Vec<f64> {
        let here = shots.iter().filter(|shot| shot.subject == subject);
        here.map(figure).collect()
    };
    let mut table = Table::new(&titles);
    let mut bars = Vec::new();
    for &subject in &options.subjects {
        let shown = |(_, figure): Figure| {
            Spread::of(of(subject, figure)).map_or(String::new(), |s| format!("{s:.1}"))
        };
        let cells = std::iter::once(subject.title().to_owned());
        table.row(cells.chain(figures.map(shown)).collect());
        if subject == Subject::Reference {
            continue;
        }
        for (name, figure) in figures {
            let theirs = of(Subject::Reference, figure);
            let ours = of(subject, figure).into_iter().zip(theirs);
            if let Some(ratio) = Spread::of(ours.map(|(ours, theirs)| ours / theirs)) {
                let (title, bar) = (subject.title(), subject.bar());
                let met = verdict(ratio.median <= bar);
                bars.push(format!(
                    "{title}: {name} {ratio} of the reference's time (at most {bar}): {met}"
                ));
            }
        }
    }
    println!("{table}");
    println!("{}", bars.join("\n"));
}

/// A plugin with its network.
struct Plugin {
    program: PathBuf,
    config: Value,
}

impl Plugin {
    fn of(subject: Subject, programs: &Path, scratch: &Scratch) -> Plugin {
        let attach = match subject {
            Subject::Veth => "veth",
            Subject::Tap | Subject::Pool => "tap",
            Subject::Reference => {
                return Plugin {
                    program: format!("{PLUGINS}/bridge").into(),
                    config: json!({
                        "cniVersion": "1.0.0",
                        "name": "reference",
                        "type": "bridge",
                        "bridge": "reference0",
                        "ipam": {
                            "type": "host-local",
                            "dataDir": scratch.join("host-local"),
                            "ranges": [[{"subnet": "10.1.0.0/16"}]],
                        },
                    }),
                };
            }
        };
        let mut ipam = json!({"type": "windlass", "ranges": [["10.0.0.0/16"]]});
        let (name, key, network) = match subject {
            Subject::Pool => ("pool", "overlay", "ov1"),
            _ => (attach, "bridge", "br0"),
        };
        if subject == Subject::Pool {
            ipam["pool"] = json!("p0");
        }
        Plugin {
            program: programs.join("windlass-cni"),
            config: json!({
                "cniVersion": "1.0.0",
                "name": name,
                "type": "windlass-cni",
                key: network,
                "attach": attach,
                "socket": scratch.join("windlass.sock"),
                "dataDir": scratch.join("cni"),
                "ipam": ipam,
            }),
        }
    }

    /// Medians of ADD and DEL, and what all of them take at once, in milliseconds.
    fn turn(&self, containers: &[Namespace]) -> Result<[f64; 4]> {
        let one_by_one = |verb| -> Result<f64> {
            let times = containers.iter().map(|one| self.call(verb, one));
            let times: Vec<f64> = times.collect::<Result<_>>()?;
            Ok(Spread::of(times).context("there is no container")?.median)
        };
        let at_once = |verb| -> Result<f64> {
            let started = Instant::now();
            std::thread::scope(|scope| {
                let calls = containers
                    .iter()
                    .map(|one| scope.spawn(move || self.call(verb, one)));
                let calls: Vec<_> = calls.collect();
                calls.into_iter().try_for_each(|call| match call.join() {
                    Ok(done) => done.map(drop),
                    Err(panic) => std::panic::resume_unwind(panic),
                })
            })?;
            Ok(millis(started.elapsed()))
        };
        let singles = [one_by_one("ADD")?, one_by_one("DEL")?];
        Ok([singles[0], singles[1], at_once("ADD")?, at_once("DEL")?])
    }

    /// Calls the plugin in the thread's namespace; milliseconds.
    fn call(&self, verb: &str, container: &Namespace) -> Result<f64> {
        stop::check()?;
        let name = container.name();
        let started = Instant::now();
        let mut child = Command::new(&self.program)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", name)
            .env("CNI_NETNS", format!("/run/netns/{name}"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", PLUGINS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(self.config.to_string().as_bytes())?;
        }
        let output = child.wait_with_output()?;
        let taken = millis(started.elapsed());
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout);
            bail!("{verb} of {name}: {}", said.trim());
        }
        Ok(taken)
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
