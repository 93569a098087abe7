//! Overlays whose registry is etcd: how soon many hosts see a move, what a restart and a compaction of etcd cost them, and what one host
//! needs that is told of everything.
//!
//! # Model
//! Simulated hosts are what `windlass-lookup-etcd` is made of, without the daemon and the copy on disk: an engine and a connection each,
//! all in one thread ([`hosts`]). Each network has [`A_NETWORK`] endpoints, and each of its hosts has as many of them. The parts, each
//! with an etcd that starts empty:
//!
//! - `moves`: endpoints become standby on another host, then active. A move's delay runs from the announcement there to the moment when one
//!   of the other hosts in the network would tell its daemon; each of them counts.
//! - `restart`: etcd is killed and started. Then some moves.
//! - `compaction`: etcd is killed, started where no host looks for it, written to and compacted, and started again at its place. Then some
//!   moves.
//! - `host` ([`daemon`]): a real daemon and its plugin with 20 overlays that have all endpoints: memory, and processor time without changes.
//!
//! # Limits
//! etcd, all hosts and what counts share the processors of one machine. There is one member of etcd.

pub mod daemon;
pub mod etcd;
mod hosts;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use windlass_sys::netns::{NetnsRef, within};

use super::child::Scheduled;
use super::host::{Namespace, Scratch, describe, require};
use super::table::{Table, verdict, write_json};
use etcd::Etcd;
use hosts::Cluster;

const HOST: &str = "wlc-registry";
/// Where hosts look for etcd, and where they do not.
const PLACE: &str = "127.0.0.1";
const ELSEWHERE: &str = "127.0.0.2";
/// The tunnel address of the real daemon.
const UNDERLAY: &str = "192.0.2.1";
/// Endpoints of a network.
const A_NETWORK: usize = 200;
/// How long moves go on after a restart and a compaction.
const AFTER: Duration = Duration::from_secs(10);
/// The most that etcd may have had in memory, in MiB.
const ETCD_MIB: f64 = 768.0;

/// Many hosts with one registry in etcd.
#[derive(Args, Debug)]
pub struct Options {
    /// What is measured
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "moves,restart,compaction,host"
    )]
    parts: Vec<Part>,
    /// Simulated hosts
    #[arg(long, default_value_t = 1_000)]
    hosts: usize,
    /// Networks of each simulated host
    #[arg(long, default_value_t = 20)]
    networks: usize,
    /// Endpoints of all hosts together
    #[arg(long, default_value_t = 100_000)]
    endpoints: usize,
    /// Moves a second
    #[arg(long, default_value_t = 40.0)]
    rate: f64,
    /// Seconds of moves, and of rest of the daemon
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Endpoints move.
    Moves,
    /// etcd is killed and comes back.
    Restart,
    /// Every host has missed what was compacted.
    Compaction,
    /// A daemon is told of every endpoint.
    Host,
}

/// What was seen.
#[derive(Debug, Serialize)]
struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// The most that it may be.
    most: Option<f64>,
}

impl Figure {
    fn new(what: impl Into<String>, value: f64, unit: &'static str, most: Option<f64>) -> Self {
        Self {
            what: what.into(),
            value,
            unit,
            most,
        }
    }
}

/// Measures, prints the table, and writes the figures to `json`.
///
/// # Errors
/// If something is missing, a move is not seen, hosts do not come back, or the run is interrupted.
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    require(&[
        ("ip", "iproute2"),
        ("etcd", "etcd-server"),
        ("etcdctl", "etcd-client"),
    ])?;
    let networks = options.endpoints / A_NETWORK;
    if options.networks > networks || options.hosts * options.networks < 2 * networks {
        bail!(
            "{networks} networks of {A_NETWORK} endpoints need 2 hosts each, and a host is once in each"
        );
    }
    // A connection for each host, here and in etcd.
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit })?;
    println!(
        "{} hosts, {} networks each, {} endpoints; {}",
        options.hosts,
        options.networks,
        options.endpoints,
        describe()
    );
    let scratch = Scratch::create()?;
    let namespace = Namespace::create(HOST)?;
    namespace.ip(&format!("address add {UNDERLAY}/24 dev lo"))?;
    let host = NetnsRef::open(HOST)?;
    let mut figures = Vec::new();
    for part in &options.parts {
        let measured = within(&host, || measure(options, *part, programs, &scratch))?;
        figures.extend(measured.with_context(|| format!("{part:?}"))?);
    }
    print(&figures);
    write_json(json, &figures)
}

fn print(figures: &[Figure]) {
    let mut table = Table::new(&["", "seen", "at most", ""]);
    for of in figures {
        let cells = [
            of.what.clone(),
            format!("{:.1} {}", of.value, of.unit),
            of.most.map_or(String::new(), |most| most.to_string()),
            of.most
                .map_or(String::new(), |most| verdict(of.value <= most).to_owned()),
        ];
        table.row(cells.to_vec());
    }
    println!("\n{table}");
}

fn measure(
    options: &Options,
    part: Part,
    programs: &Path,
    scratch: &Scratch,
) -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut etcd = Etcd::start(scratch).await?;
        if part == Part::Host {
            return daemon::measure(options, programs, scratch, &etcd).await;
        }
        let begun = Instant::now();
        let mut cluster = Cluster::start(options, &etcd.url(), scratch).await?;
        println!("all announced in {:.1} s", begun.elapsed().as_secs_f64());
        match part {
            Part::Moves => move_all(options, &mut etcd, &mut cluster).await,
            Part::Restart => restart(options, &mut etcd, &mut cluster).await,
            _ => compact(options, &mut etcd, &mut cluster).await,
        }
    })
}

/// The value that so many hundredths are not above.
fn percentile(sorted: &[Duration], hundredths: usize) -> f64 {
    let at = (sorted.len() * hundredths / 100).min(sorted.len().saturating_sub(1));
    sorted
        .get(at)
        .map_or(0.0, |delay| delay.as_secs_f64() * 1e3)
}

/// Delays of moves, in order.
async fn delays(options: &Options, cluster: &mut Cluster, time: Duration) -> Result<Vec<Duration>> {
    let count = (options.rate * time.as_secs_f64()) as usize;
    let mut delays = cluster.move_some(options.rate, count).await?;
    delays.sort_unstable();
    Ok(delays)
}

fn etcd_memory(etcd: &Etcd, when: &str) -> Result<Figure> {
    let what = format!("{when}: etcd's memory, highest");
    Ok(Figure::new(what, etcd.memory_mib()?, "MiB", Some(ETCD_MIB)))
}

async fn move_all(
    options: &Options,
    etcd: &mut Etcd,
    cluster: &mut Cluster,
) -> Result<Vec<Figure>> {
    let before = Scheduled::of(etcd.pid());
    let begun = Instant::now();
    let time = Duration::from_secs_f64(options.seconds);
    let delays = delays(options, cluster, time).await?;
    let ran = Scheduled::of(etcd.pid()).since(before).ran;
    let cores = ran.as_secs_f64() / begun.elapsed().as_secs_f64();
    let rate = options.rate;
    let of = |what: &str| format!("a move seen, {rate} moves/s, {what}");
    Ok(vec![
        Figure::new(of("p50"), percentile(&delays, 50), "ms", Some(10.0)),
        Figure::new(of("p99"), percentile(&delays, 99), "ms", Some(50.0)),
        Figure::new(of("last"), percentile(&delays, 100), "ms", None),
        Figure::new("times that one was seen", delays.len() as f64, "", None),
        Figure::new("etcd's processors meanwhile", cores, "", None),
        etcd_memory(etcd, "moves")?,
    ])
}

async fn restart(options: &Options, etcd: &mut Etcd, cluster: &mut Cluster) -> Result<Vec<Figure>> {
    let before = cluster.lists.load(Ordering::Relaxed);
    etcd.kill()?;
    cluster.until_all_are(false).await?;
    etcd.start_at(PLACE).await?;
    let begun = Instant::now();
    cluster.until_all_are(true).await?;
    let whole = begun.elapsed().as_secs_f64();
    let lists = cluster.lists.load(Ordering::Relaxed) - before;
    let delays = delays(options, cluster, AFTER).await?;
    let last = percentile(&delays, 100);
    Ok(vec![
        Figure::new("restart: until all are whole", whole, "s", None),
        Figure::new("restart: lists", lists as f64, "", Some(0.0)),
        Figure::new("restart: a move seen then, last", last, "ms", Some(1e3)),
        etcd_memory(etcd, "restart")?,
    ])
}

async fn compact(options: &Options, etcd: &mut Etcd, cluster: &mut Cluster) -> Result<Vec<Figure>> {
    etcd.kill()?;
    cluster.until_all_are(false).await?;
    etcd.start_at(ELSEWHERE).await?;
    etcd.write_stranger().await?;
    etcd.compact()?;
    etcd.kill()?;
    let before = cluster.lists.load(Ordering::Relaxed);
    etcd.start_at(PLACE).await?;
    let begun = Instant::now();
    cluster.until_all_have_listed().await?;
    let whole = begun.elapsed().as_secs_f64();
    let lists = cluster.lists.load(Ordering::Relaxed) - before;
    let delays = delays(options, cluster, AFTER).await?;
    let last = percentile(&delays, 100);
    Ok(vec![
        Figure::new("compaction: until all are whole", whole, "s", Some(120.0)),
        Figure::new("compaction: lists", lists as f64, "", None),
        Figure::new("compaction: a move seen then, last", last, "ms", Some(1e3)),
        etcd_memory(etcd, "compaction")?,
    ])
}
