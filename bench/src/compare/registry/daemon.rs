//! A real daemon and its plugin that are told of every endpoint, and then of nothing.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use windlass_lookup::protocol::EndpointState;
use windlass_lookup_etcd::schema::{self, AddressRecord, EndpointRecord, HostRecord, Keys};

use super::super::child::{Scheduled, memory_kib};
use super::super::host::Scratch;
use super::super::peers::check_programs;
use super::super::stop;
use super::super::windlass::Daemon;
use super::etcd::Etcd;
use super::hosts::{CLUSTER, ip, mac};
use super::{Figure, Options, UNDERLAY};

const OVERLAYS: usize = 20;
/// What the plugin runs as.
const USER: u32 = 64_097;
/// Before memory is looked at.
const REST: Duration = Duration::from_secs(5);
/// Before processor time is: what is compared with the registry begins a minute after a start.
const SETTLED: Duration = Duration::from_secs(65);
/// How long the daemon may take for every endpoint.
const TOLD_WITHIN: Duration = Duration::from_secs(120);
/// The most that it may take more with all endpoints, and that its plugin may have, in MiB.
const MORE_MIB: f64 = 64.0;
/// The most processor time of both in a minute without changes, in milliseconds.
const DAEMON_MS: f64 = 50.0;
const PLUGIN_MS: f64 = 100.0;

/// Measures.
///
/// # Errors
/// If the daemon is not told of everything, or the run is interrupted.
pub(super) async fn measure(
    options: &Options,
    programs: &Path,
    scratch: &Scratch,
    etcd: &Etcd,
) -> Result<Vec<Figure>> {
    check_programs(programs, &["windlassd", "windlass", "windlass-lookup-etcd"])?;
    let mut daemon = Daemon::start(&prepare(programs, scratch)?, scratch, &[])?;
    let cache = cache(scratch)?;
    for number in 1..=OVERLAYS {
        daemon.command(&create(number, UNDERLAY, etcd, &cache))?;
    }
    let (pid, plugin) = (daemon.process().pid(), plugin_of(daemon.process().pid())?);
    stop::pause(REST)?;
    let before = memory_mib(pid)?;
    etcd.write(records(options)).await?;
    wait_for(&daemon, options.endpoints / OVERLAYS)?;
    stop::pause(REST)?;
    let (more, of_plugin) = (memory_mib(pid)? - before, memory_mib(plugin)?);
    stop::pause(SETTLED)?;
    let started = [pid, plugin].map(Scheduled::of);
    stop::pause(Duration::from_secs_f64(options.seconds))?;
    let minute = |pid: u32, started: Scheduled| {
        let ran = Scheduled::of(pid).since(started).ran;
        ran.as_secs_f64() * 1e3 / options.seconds * 60.0
    };
    let of = |what: &str| {
        format!(
            "{OVERLAYS} overlays, {} endpoints: {what}",
            options.endpoints
        )
    };
    let [daemon_ms, plugin_ms] =
        [(pid, started[0]), (plugin, started[1])].map(|(pid, started)| minute(pid, started));
    Ok(vec![
        Figure::new(of("daemon, before"), before, "MiB", None),
        Figure::new(of("daemon, more"), more, "MiB", Some(MORE_MIB)),
        Figure::new(of("plugin"), of_plugin, "MiB", Some(MORE_MIB)),
        Figure::new(of("daemon at rest"), daemon_ms, "ms/min", Some(DAEMON_MS)),
        Figure::new(of("plugin at rest"), plugin_ms, "ms/min", Some(PLUGIN_MS)),
    ])
}

/// A directory for the copies that the plugin keeps on disk.
///
/// # Errors
/// The file system's.
pub fn cache(scratch: &Scratch) -> Result<PathBuf> {
    let cache = scratch.join("cache");
    std::fs::create_dir(&cache)?;
    chown(&cache, Some(USER), Some(USER))?;
    Ok(cache)
}

/// The command that creates the overlay of a number.
#[must_use]
pub fn create(number: usize, underlay: &str, etcd: &Etcd, cache: &Path) -> String {
    format!(
        "overlay create ov{number} --vni {number} --search etcd --set vxlan/listen-ip={underlay},\
         etcd/endpoints={},etcd/cluster={CLUSTER},etcd/host=one,etcd/cache={}",
        etcd.url(),
        cache.display()
    )
}

fn memory_mib(pid: u32) -> Result<f64> {
    let rss = memory_kib(&format!("/proc/{pid}/smaps_rollup"), "Rss:")?;
    Ok(rss as f64 / 1024.0)
}

/// A directory with the programs, whose daemon finds the user of plugins whether or not this machine has it.
///
/// # Errors
/// The file system's.
pub fn prepare(programs: &Path, scratch: &Scratch) -> Result<PathBuf> {
    let programs = programs.canonicalize()?;
    let directory = scratch.join("programs");
    std::fs::create_dir(&directory)?;
    symlink(programs.join("windlass"), directory.join("windlass"))?;
    let known = std::fs::read_to_string("/etc/passwd")?;
    let is_other = |line: &&str| !line.starts_with("windlass-lookup:");
    let own = format!("windlass-lookup:x:{USER}:{USER}::/:/bin/false");
    let mut accounts: Vec<&str> = known.lines().filter(is_other).collect();
    accounts.extend([own.as_str(), ""]);
    let passwd = scratch.join("passwd");
    std::fs::write(&passwd, accounts.join("\n"))?;
    let daemon = directory.join("windlassd");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /etc/passwd && exec {} \"$@\"' sh \"$@\"\n",
        passwd.display(),
        programs.join("windlassd").display()
    );
    std::fs::write(&daemon, script)?;
    std::fs::set_permissions(&daemon, PermissionsExt::from_mode(0o755))?;
    Ok(directory)
}

/// The process of a daemon's plugin.
fn plugin_of(daemon: u32) -> Result<u32> {
    for task in std::fs::read_dir(format!("/proc/{daemon}/task"))? {
        let children = std::fs::read_to_string(task?.path().join("children"))?;
        if let Some(first) = children.split_ascii_whitespace().next() {
            return Ok(first.parse()?);
        }
    }
    bail!("the daemon has no plugin")
}

/// Every endpoint, each on one of the hosts, which are in one network each.
fn records(options: &Options) -> Vec<(String, Vec<u8>)> {
    let keys = Keys::new(CLUSTER);
    let name = |host: usize| format!("host{host}");
    let mut pairs = Vec::new();
    for host in 0..options.hosts {
        let [.., high, low] = host.to_be_bytes();
        let record = HostRecord {
            vtep: vec![IpAddr::V4(Ipv4Addr::new(198, 18, high, low))],
            port: 4789,
        };
        let vni = (host % OVERLAYS + 1) as u32;
        pairs.push((keys.host(&name(host)), schema::value(&record)));
        pairs.push((keys.flood(vni, &name(host)), b"{}".to_vec()));
    }
    for endpoint in 0..options.endpoints {
        let host = endpoint % options.hosts;
        let (vni, mac, ip) = ((host % OVERLAYS + 1) as u32, mac(endpoint), ip(endpoint));
        let record = EndpointRecord {
            host: name(host),
            generation: 1,
            ips: vec![ip],
            state: EndpointState::Active,
        };
        let address = AddressRecord {
            mac: schema::digits(mac),
            host: name(host),
            owner: None,
            is_resting: false,
        };
        pairs.push((keys.endpoint(vni, mac), schema::value(&record)));
        pairs.push((keys.address(vni, ip), schema::value(&address)));
    }
    pairs
}

/// Until every overlay has so many endpoints.
fn wait_for(daemon: &Daemon, endpoints: usize) -> Result<()> {
    let end = Instant::now() + TOLD_WITHIN;
    for number in 1..=OVERLAYS {
        loop {
            let shown = daemon.command(&format!("overlay target show ov{number} --json"))?;
            let rows: Value = serde_json::from_str(&shown)?;
            let rows = rows.as_array().context("no list")?.iter();
            // Hosts that are flooded to are targets, too.
            let known = rows.filter(|row| row["kind"] == "pushed").count();
            if known == endpoints {
                break;
            }
            if Instant::now() > end {
                bail!("ov{number} has {known} of {endpoints} endpoints");
            }
            stop::pause(Duration::from_millis(500))?;
        }
    }
    Ok(())
}
