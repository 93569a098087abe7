//! One measurement of one pair.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::place::{Place, Runner};
use super::programs::{PYTHON, Web};
use crate::compare::child::Child;
use crate::compare::host::find_program;
use crate::compare::stop;

/// A client has this long.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(40);

/// How often a short program is started for one figure.
const STARTS: usize = 25;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A message there and back: how both ends wait, members of the set, and whether the socket is a Unix one.
    Ping(&'static str, usize, bool),
    /// Bytes one way, of writes of this size.
    Stream(usize, Via),
    /// redis-benchmark: clients, requests on the way for each, and whether through the Unix socket.
    Redis(u32, u32, bool),
    /// wrk asks a server for small pages: connections, and whether each carries many requests.
    Pages(Web, u32, bool),
    /// A script that sends a large file by sendfile, to one that receives.
    SendFile,
    /// curl gets a large file, again and again; whether on one connection.
    File(Web, bool),
    /// Bytes through ssh.
    Ssh,
    /// A file from rsync's own server.
    Rsync,
    /// iperf3 from client to server.
    Iperf3,
    /// memcached with two threads, and so many clients.
    Memcached(usize),
    /// pgbench: clients, and whether through the Unix socket.
    Pgbench(u32, bool),
    /// The start and the end of `true`.
    Start,
}

/// What carries a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// TCP.
    Tcp {
        /// Both ends try again without a pause, instead of waiting.
        spin: bool,
        /// As sockets are made; else with `TCP_NODELAY`.
        gather: bool,
    },
    /// A Unix stream socket.
    Unix,
    /// The kernel's redirection between sockets.
    Sockmap,
    /// A bare ring.
    Memory,
}

/// A pair: how each end is started, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// How the server is started.
    pub server: Runner,
    /// How the client is started.
    pub client: Runner,
    /// What is measured.
    pub what: What,
    /// Server and client have a core each; else they run where the kernel puts them.
    pub pinned: bool,
}

impl What {
    /// A program that it needs and that is not here.
    #[must_use]
    pub fn missing(self) -> Option<&'static str> {
        let needed: &[&str] = match self {
            What::Redis(..) => &["redis-server", "redis-benchmark"],
            What::Pages(web, ..) => &[web.program(), "wrk"],
            What::File(web, ..) => &[web.program(), "curl"],
            What::Ssh => &["/usr/sbin/sshd", "ssh", "ssh-keygen"],
            What::Rsync => &["rsync"],
            What::Iperf3 => &["iperf3"],
            What::Memcached(_) => &["memcached"],
            What::Pgbench(..) => {
                return postgres_programs().is_none().then_some("PostgreSQL");
            }
            What::SendFile => &[PYTHON],
            What::Ping(..) | What::Stream(..) | What::Start => &[],
        };
        needed
            .iter()
            .find(|name| find_program(name).is_none())
            .copied()
    }
}

/// Figures by name.
pub type Figures = Vec<(&'static str, f64)>;

impl Pair {
    /// Measures once, for about `seconds`.
    ///
    /// # Errors
    /// If a program fails, or says something that is not understood.
    pub fn measure(&self, place: &Place, seconds: f64) -> Result<Figures> {
        match self.what {
            What::Ping(wait, members, unix) => self.ping(place, seconds, wait, members, unix),
            What::Stream(size, via) => self.stream(place, seconds, size, via),
            What::Redis(clients, pipeline, unix) => self.redis(place, clients, pipeline, unix),
            What::Pages(web, connections, keep) => {
                self.pages(place, seconds, web, connections, keep)
            }
            What::File(web, keep) => self.file(place, web, keep),
            What::SendFile => self.send_file(place, seconds),
            What::Ssh => self.ssh(place),
            What::Rsync => self.rsync(place),
            What::Iperf3 => self.iperf3(place, seconds),
            What::Memcached(clients) => self.memcached(place, seconds, clients),
            What::Pgbench(clients, unix) => self.pgbench(place, seconds, clients, unix),
            What::Start => self.start(place),
        }
    }

    /// Whether its bytes should go by a ring.
    #[must_use]
    pub fn wants_ring(&self) -> bool {
        let is_accelerated = |runner| runner != Runner::Bare;
        is_accelerated(self.server) && is_accelerated(self.client) && self.what != What::Start
    }

    /// The server's program.
    pub(super) fn serve(&self, place: &Place, program: &str) -> Command {
        let [core, _] = place.cores;
        place.command(self.server, self.pinned.then_some(core), program)
    }

    /// The client's program.
    pub(super) fn ask(&self, place: &Place, program: &str) -> Command {
        let [_, core] = place.cores;
        place.command(self.client, self.pinned.then_some(core), program)
    }

    fn ping(
        &self,
        place: &Place,
        seconds: f64,
        wait: &str,
        members: usize,
        unix: bool,
    ) -> Result<Figures> {
        let at = address(place, unix);
        let [server, client] = place.cores;
        let common = |mut command: Command, end: &str, core: usize| {
            command.args([
                end,
                "--at",
                &at,
                "--core",
                &core.to_string(),
                "--wait",
                wait,
            ]);
            command.args(["--members", &members.to_string()]);
            command.args(["--seconds", &seconds.to_string()]);
            command
        };
        let mut serve = common(self.serve(place, "sock-ping"), "serve", server);
        let _server = Child::start(&mut serve, &place.file("log"))?;
        let ask = common(self.ask(place, "sock-ping"), "ask", client);
        let text = Child::start_piped(ask)?.output(ENDS_WITHIN)?;
        let report: Value = serde_json::from_str(&text)?;
        Ok(vec![
            ("p50", number(&report, "p50_ns")? / 1e3),
            ("p99", number(&report, "p99_ns")? / 1e3),
            ("p99.9", number(&report, "p999_ns")? / 1e3),
        ])
    }

    fn stream(&self, place: &Place, seconds: f64, size: usize, via: Via) -> Result<Figures> {
        let [taker, giver] = place.cores;
        let (spin, gather, unix) = match via {
            Via::Tcp { spin, gather } => (spin, gather, false),
            Via::Unix => (false, false, true),
            Via::Sockmap => return both_ends(place, seconds, size, "sockmap"),
            Via::Memory => return both_ends(place, seconds, size, "memory"),
        };
        let at = address(place, unix);
        let common = |mut command: Command, end: &str, core: usize| {
            command.args([end, "--at", &at, "--core", &core.to_string()]);
            command.args(["--size", &size.to_string()]);
            command.args(["--seconds", &seconds.to_string()]);
            command.args(spin.then_some("--spin"));
            command.args(gather.then_some("--gather"));
            command
        };
        let take = common(self.serve(place, "sock-stream"), "take", taker);
        let give = common(self.ask(place, "sock-stream"), "give", giver);
        let take = Child::start_piped(take)?;
        let given = Child::start_piped(give)?.output(ENDS_WITHIN)?;
        let taken = take.output(ENDS_WITHIN)?;
        stream_figures(&taken, &given, size)
    }

    fn redis(&self, place: &Place, clients: u32, pipeline: u32, unix: bool) -> Result<Figures> {
        let (port, socket) = (place.port().to_string(), place.file("redis.sock"));
        let _ = std::fs::remove_file(&socket);
        let mut serve = self.serve(place, "redis-server");
        serve.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
        serve.args(["--appendonly", "no", "--unixsocket"]);
        serve.arg(&socket).arg("--dir").arg(place.home());
        let _server = Child::start(&mut serve, &place.file("redis.log"))?;
        place.wait_for("redis.sock")?;
        let requests = match (clients, pipeline, self.client) {
            (1, _, Runner::Bare) if !unix => 30_000,
            (1, ..) => 200_000,
            (_, 1, _) => 150_000,
            _ => 1_500_000,
        };
        let mut ask = self.ask(place, "redis-benchmark");
        if unix {
            ask.arg("-s").arg(&socket);
        } else {
            ask.args(["-h", "127.0.0.1", "-p", &port]);
        }
        ask.args(["-t", "set,get", "--csv", "-c", &clients.to_string()]);
        ask.args(["-P", &pipeline.to_string(), "-n", &requests.to_string()]);
        let text = Child::start_piped(ask)?.output(ENDS_WITHIN)?;
        let rate = |test: &str| -> Result<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(test));
            let rate = line.and_then(|line| line.trim_start_matches([',', '"']).split('"').next());
            rate.and_then(|rate| rate.parse().ok())
                .with_context(|| format!("redis-benchmark says: {text}"))
        };
        Ok(vec![("GET", rate("\"GET\"")?), ("SET", rate("\"SET\"")?)])
    }

    fn memcached(&self, place: &Place, seconds: f64, clients: usize) -> Result<Figures> {
        let port = place.port().to_string();
        let mut serve = self.serve(place, "memcached");
        serve.args(["-t", "2", "-l", "127.0.0.1", "-p", &port, "-U", "0"]);
        let _server = Child::start(&mut serve, &place.file("memcached.log"))?;
        let mut ask = self.ask(place, "sock-memcached");
        ask.args(["--at", &format!("127.0.0.1:{port}")]);
        ask.args(["--clients", &clients.to_string()]);
        ask.args(["--seconds", &seconds.to_string()]);
        let text = Child::start_piped(ask)?.output(ENDS_WITHIN)?;
        let report: Value = serde_json::from_str(&text)?;
        Ok(vec![(
            "requests/s",
            number(&report, "requests_per_second")?,
        )])
    }

    fn pgbench(&self, place: &Place, seconds: f64, clients: u32, unix: bool) -> Result<Figures> {
        let directory = postgres_programs().context("PostgreSQL is missing")?;
        if !place.file("pg").exists() {
            make_database(place, &directory)?;
        }
        let (port, _server) = start_postgres(place, self.server, &directory)?;
        let mut ask = self.ask(place, &format!("{directory}/pgbench"));
        ask.args(["-n", "-S", "-M", "prepared", "-j", "1"]);
        ask.args(["-c", &clients.to_string()]);
        ask.args(["-T", &seconds.ceil().max(2.0).to_string()]);
        let host = if unix {
            place.home().to_string_lossy().into_owned()
        } else {
            "127.0.0.1".into()
        };
        ask.args(["-h", &host, "-p", &port.to_string()]);
        ask.args(["-U", Place::USER, "postgres"]);
        let text = Child::start_piped(ask)?.output(ENDS_WITHIN)?;
        Ok(vec![("transactions/s", after(&text, "tps = ")?)])
    }

    fn start(&self, place: &Place) -> Result<Figures> {
        let mut times = Vec::new();
        for _ in 0..STARTS {
            stop::check()?;
            let begun = Instant::now();
            let status = self.ask(place, "true").status()?;
            if !status.success() {
                bail!("true failed: {status}");
            }
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(vec![("ms", times[STARTS / 2])])
    }
}

fn address(place: &Place, unix: bool) -> String {
    let port = place.port();
    if unix {
        place
            .file(&format!("s{port}"))
            .to_string_lossy()
            .into_owned()
    } else {
        format!("127.0.0.1:{port}")
    }
}

pub(super) fn number(report: &Value, name: &str) -> Result<f64> {
    report[name]
        .as_f64()
        .with_context(|| format!("{name} is missing"))
}

/// The number that follows `mark`.
pub(super) fn after(text: &str, mark: &str) -> Result<f64> {
    let rest = text.split_once(mark).map(|(_, rest)| rest.trim_start());
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("no {mark:?} in: {text}"))
}

/// Both ends in one process, which is never accelerated.
fn both_ends(place: &Place, seconds: f64, size: usize, via: &str) -> Result<Figures> {
    let [taker, giver] = place.cores;
    let mut command = place.command_as_root("sock-stream");
    command.args(["both", "--via", via, "--cores", &format!("{taker},{giver}")]);
    command.args(["--size", &size.to_string()]);
    command.args(["--seconds", &seconds.to_string()]);
    let text = Child::start_piped(command)?.output(ENDS_WITHIN)?;
    let (taken, given) = text
        .trim()
        .split_once('\n')
        .context("two reports are expected")?;
    stream_figures(taken, given, size)
}

/// Rate as received, and processor time a send and a receive of `size` bytes, both sides together.
fn stream_figures(taken: &str, given: &str, size: usize) -> Result<Figures> {
    let (taken, given): (Value, Value) =
        (serde_json::from_str(taken)?, serde_json::from_str(given)?);
    let bytes = number(&taken, "bytes")?;
    let ns = number(&taken, "ns")?;
    let messages = |report: &Value| Ok::<_, anyhow::Error>(number(report, "bytes")? / size as f64);
    let cpu = number(&taken, "cpu_ns")? / messages(&taken)?
        + number(&given, "cpu_ns")? / messages(&given)?;
    if !(ns > 0.0 && cpu.is_finite()) {
        bail!("nothing was measured");
    }
    Ok(vec![("Gbit/s", bytes * 8.0 / ns), ("CPU ns", cpu)])
}

/// Debian keeps PostgreSQL's programs out of PATH, a directory for each version.
#[must_use]
pub fn postgres_programs() -> Option<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|path| path.join("initdb").exists() && path.join("pgbench").exists())
        .collect();
    found.sort();
    Some(found.pop()?.to_string_lossy().into_owned())
}

fn finish(mut command: Command) -> Result<()> {
    let what = format!("{:?}", command.get_program());
    let done = command.output()?;
    if !done.status.success() {
        bail!("{what} failed: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

fn make_database(place: &Place, directory: &str) -> Result<()> {
    let initdb = place.command(Runner::Bare, None, &format!("{directory}/initdb"));
    let mut make = place.named(initdb)?;
    make.arg("-D").arg(place.file("pg"));
    make.args(["-U", Place::USER, "-A", "trust", "--no-sync"]);
    finish(make)?;
    let (port, _server) = start_postgres(place, Runner::Bare, directory)?;
    let mut fill = place.command(Runner::Bare, None, &format!("{directory}/pgbench"));
    fill.args([
        "-q",
        "-i",
        "-s",
        "2",
        "-h",
        "127.0.0.1",
        "-p",
        &port.to_string(),
    ]);
    fill.args(["-U", Place::USER, "postgres"]);
    finish(fill)
}

fn start_postgres(place: &Place, runner: Runner, directory: &str) -> Result<(u16, Child)> {
    let port = place.port();
    let mut serve = place.command(runner, None, &format!("{directory}/postgres"));
    serve.arg("-D").arg(place.file("pg"));
    serve
        .args(["-p", &port.to_string(), "-k"])
        .arg(place.home());
    serve.args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]);
    serve.args(["-c", "autovacuum=off"]);
    let mut server = Child::start(&mut serve, &place.file("pg.log"))?;
    stop::until("PostgreSQL's answer", Duration::from_secs(20), || {
        let log = std::fs::read_to_string(place.file("pg.log")).unwrap_or_default();
        (log.contains("ready to accept connections") || server.still_runs().is_err()).then_some(())
    })?;
    server.still_runs()?;
    Ok((port, server))
}
