//! Members of etcd on loopback addresses of their own, and hosts: a plugin each, with this process as its daemon.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use windlass_lookup::line::{Lines, decode, encode};
use windlass_lookup::protocol::{
    Claim, Endpoint, EndpointState, Entry, FromPlugin, HostState, Overlay, ToPlugin,
};
use windlass_wire::MacAddr;

/// How long anything may take before a test gives up; no test waits so long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The overlay of every host.
pub const OVERLAY: &str = "ov0";

/// Whether Debian's etcd is here; otherwise says that the test is skipped.
pub fn is_here(test: &str) -> bool {
    let is_here = ["etcdctl", "etcd"].iter().all(|name| {
        let mut found = Command::new(name);
        found.arg("--help").env("ETCDCTL_API", "3");
        found
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    });
    if !is_here {
        println!("skipped: {test}: etcd-server or etcd-client is missing");
    }
    is_here
}

/// A loopback address that no other test process uses.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high | 0x40, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Calls until it says true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One member of etcd.
pub struct Member {
    /// Where it listens.
    pub address: Ipv4Addr,
    pub data: PathBuf,
    /// More arguments.
    pub arguments: Vec<String>,
    /// Scheme for clients.
    pub scheme: &'static str,
    child: Option<Child>,
    directory: TempDir,
}

impl Member {
    /// One that is not started.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self {
            address: address(),
            data: directory.path().join("data"),
            arguments: Vec::new(),
            scheme: "http",
            child: None,
            directory,
        }
    }

    /// One that answers.
    pub fn started() -> Self {
        let mut member = Self::new();
        member.start();
        member.wait();
        member
    }

    pub fn url(&self) -> String {
        format!("{}://{}:2379", self.scheme, self.address)
    }

    pub fn peer_url(&self) -> String {
        format!("http://{}:2380", self.address)
    }

    pub fn start(&mut self) {
        let log = std::fs::File::create(self.directory.path().join("log")).expect("a log");
        let name = self.address.to_string();
        let mut command = Command::new("etcd");
        command
            .args(["--name", &name, "--data-dir"])
            .arg(&self.data);
        command.args([
            "--listen-client-urls",
            &self.url(),
            "--advertise-client-urls",
            &self.url(),
        ]);
        command.args([
            "--listen-peer-urls",
            &self.peer_url(),
            "--initial-advertise-peer-urls",
            &self.peer_url(),
        ]);
        if !self.arguments.iter().any(|one| one == "--initial-cluster") {
            command.args(["--initial-cluster", &format!("{name}={}", self.peer_url())]);
        }
        command
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().expect("etcd starts"));
    }

    /// Until it answers.
    pub fn wait(&self) {
        until("etcd answers", || self.ctl(&["get", "x"]).status.success());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// Stops it: it neither answers nor closes a connection.
    pub fn stop(&self) {
        let child = self.child.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_child(child);
        let stop = rustix::process::Signal::STOP;
        rustix::process::kill_process(pid, stop).expect("it is stopped");
    }

    /// Makes the data directory of a snapshot.
    pub fn restore(&self, snapshot: &str) {
        let name = self.address.to_string();
        let cluster = format!("{name}={}", self.peer_url());
        let data = self.data.to_string_lossy();
        let of = [
            "snapshot",
            "restore",
            snapshot,
            "--data-dir",
            &data,
            "--name",
            &name,
        ];
        let peers = [
            "--initial-cluster",
            &cluster,
            "--initial-advertise-peer-urls",
            &self.peer_url(),
        ];
        self.done(&[&of[..], &peers[..]].concat());
    }

    pub fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args([
            "--endpoints",
            &self.url(),
            "--command-timeout",
            "10s",
        ]);
        command.args(arguments).output().expect("etcdctl")
    }

    /// As `ctl`; it has to succeed. Returns what it wrote.
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command of `etcdctl` on an input; it has to succeed.
    fn fed(&self, arguments: &[&str], input: &[u8]) {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url()]);
        command.args(arguments).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().expect("etcdctl");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input).expect("it reads");
        drop(stdin);
        assert!(child.wait().expect("it ends").success());
    }

    /// Writes a key under the cluster.
    pub fn put(&self, key: &str, value: &[u8]) {
        self.fed(&["put", &format!("/windlass/v1/test/{key}")], value);
    }

    /// Writes and deletes keys under the cluster, as many as etcd takes at a time: `put KEY VALUE` and `del KEY`.
    pub fn write(&self, lines: &[String]) {
        for some in lines.chunks(120) {
            let lines = some.iter().map(|line| {
                let (verb, rest) = line.split_once(' ').expect("two words");
                format!("{verb} /windlass/v1/test/{rest}\n")
            });
            let input = format!("\n{}\n\n", lines.collect::<String>());
            self.fed(&["txn"], input.as_bytes());
        }
    }

    /// Keys under the cluster, with what follows its prefix.
    pub fn keys(&self, under: &str) -> Vec<String> {
        let prefix = format!("/windlass/v1/test/{under}");
        let text = self.done(&["get", "--prefix", "--keys-only", &prefix]);
        let keys = text
            .lines()
            .filter_map(|line| line.strip_prefix("/windlass/v1/test/"));
        keys.map(str::to_owned).collect()
    }

    /// Forgets the past.
    pub fn compact(&self) {
        let status = self.done(&["endpoint", "status", "-w", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let revision = status[0]["Status"]["header"]["revision"].to_string();
        self.done(&["compact", "--physical", &revision]);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A host: the plugin, and what it has told.
pub struct Host {
    pub name: String,
    pub properties: BTreeMap<String, serde_json::Value>,
    child: Option<Child>,
    stream: Option<UnixStream>,
    lines: Lines,
    /// What it pushed, as the daemon would keep it.
    pub table: BTreeMap<(u32, MacAddr), Entry>,
    swept: Option<Vec<(u32, MacAddr)>>,
    /// Owned, with the generation, or refused by.
    pub own: BTreeMap<(u32, MacAddr), Result<u64, String>>,
    pub hosts: BTreeMap<String, HostState>,
    pub flood: BTreeMap<u32, usize>,
    pub degraded: Option<String>,
    pub started: Option<Result<(), String>>,
    pub syncs: usize,
    /// Answers to claims: addresses, or why there are none.
    pub claimed: BTreeMap<u64, Claimed>,
    pub cache: TempDir,
}

pub type Claimed = Result<(MacAddr, Vec<IpAddr>), String>;

pub fn mac(last: u16) -> MacAddr {
    let [high, low] = last.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

impl Host {
    /// One that is not started.
    pub fn new(name: &str, endpoints: &str) -> Self {
        let cache = tempfile::tempdir().expect("a directory");
        let last = name.bytes().last().unwrap_or(1);
        let properties = json!({
            "etcd/endpoints": endpoints, "etcd/cluster": "test", "etcd/host": name,
            "etcd/cache": cache.path(), "vxlan/listen-ip": format!("192.0.2.{last}"),
        });
        Self {
            name: name.to_owned(),
            properties: serde_json::from_value(properties).expect("an object"),
            child: None,
            stream: None,
            lines: Lines::default(),
            table: BTreeMap::new(),
            swept: None,
            own: BTreeMap::new(),
            hosts: BTreeMap::new(),
            flood: BTreeMap::new(),
            degraded: None,
            started: None,
            syncs: 0,
            claimed: BTreeMap::new(),
            cache,
        }
    }

    /// One whose overlay has VNI 23.
    pub fn started(name: &str, endpoints: &str) -> Self {
        let mut host = Self::new(name, endpoints);
        host.start(&[23]);
        host
    }

    /// Starts the plugin, and an overlay with these VNIs. What was told by an earlier one stays, as in the daemon.
    pub fn start(&mut self, vnis: &[u32]) {
        let (ours, its) = UnixStream::pair().expect("a pair");
        let script = "exec \"$0\" 3<&0 </dev/null";
        let child = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_windlass-lookup-etcd")])
            .stdin(OwnedFd::from(its))
            .spawn();
        self.child = Some(child.expect("the plugin starts"));
        ours.set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a timeout");
        self.stream = Some(ours);
        self.lines = Lines::default();
        self.swept = None;
        self.own.clear();
        self.started = None;
        self.say(&ToPlugin::Hello { v: 1 });
        self.say(&ToPlugin::Start(Overlay {
            overlay: OVERLAY.to_owned(),
            vnis: vnis.to_vec(),
            properties: self.properties.clone(),
        }));
        self.until("start is answered", |host| host.started.is_some());
    }

    /// Kills the plugin.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
        self.stream = None;
    }

    /// Ends the session; the plugin ends by itself.
    pub fn close(&mut self) {
        self.stream = None;
        let ended = self.child.take().expect("it runs").wait();
        assert!(ended.expect("it ends").success());
    }

    pub fn say(&mut self, message: &ToPlugin) {
        let line = encode(message).expect("a line");
        let mut stream = self.stream.as_ref().expect("a session");
        stream.write_all(&line).expect("the plugin reads");
    }

    pub fn announce_as(&mut self, vni: u32, mac: MacAddr, ips: &[&str], state: EndpointState) {
        let ips = ips.iter().map(|ip| ip.parse().expect("an address"));
        self.own.remove(&(vni, mac));
        self.say(&ToPlugin::Announce(Endpoint {
            overlay: OVERLAY.to_owned(),
            vni,
            mac,
            ips: ips.collect(),
            state,
        }));
    }

    pub fn announce(&mut self, mac: MacAddr, ips: &[&str]) {
        self.announce_as(23, mac, ips, EndpointState::Active);
    }

    pub fn retire(&mut self, mac: MacAddr) {
        self.own.remove(&(23, mac));
        self.say(&ToPlugin::Retire {
            overlay: OVERLAY.to_owned(),
            vni: 23,
            mac,
        });
    }

    /// Announces, and waits until that is answered.
    pub fn owns(&mut self, mac: MacAddr, ips: &[&str]) -> u64 {
        self.announce(mac, ips);
        self.until("it is owned", |host| {
            matches!(host.own.get(&(23, mac)), Some(Ok(_)))
        });
        self.own[&(23, mac)].clone().expect("owned")
    }

    /// Claims one address of a range for an owner, or these addresses.
    pub fn claim(&mut self, id: u64, owner: &str, range: [&str; 2], ips: &[&str]) {
        self.ask_for(id, owner, range, ips, false);
    }

    /// The same; `dry_run`: asks whether there is one.
    pub fn ask_for(&mut self, id: u64, owner: &str, range: [&str; 2], ips: &[&str], dry_run: bool) {
        let [first, last] = range.map(|ip| ip.parse().expect("an address"));
        let ips = ips.iter().map(|ip| ip.parse().expect("an address"));
        self.claimed.remove(&id);
        self.say(&ToPlugin::Claim(Claim {
            id,
            overlay: OVERLAY.to_owned(),
            vni: 23,
            owner: owner.to_owned(),
            mac: None,
            pool: "p0".to_owned(),
            sets: vec![vec![(first, last)]],
            ips: ips.collect(),
            dry_run,
        }));
    }

    /// The answer to a claim.
    pub fn claimed(&mut self, id: u64) -> Claimed {
        self.until("a claim is answered", |host| host.claimed.contains_key(&id));
        self.claimed[&id].clone()
    }

    /// Which host has an endpoint, as far as this one knows.
    pub fn places(&self, mac: MacAddr) -> Option<&str> {
        self.table.get(&(23, mac))?.host.as_deref()
    }

    pub fn sees(&mut self, mac: MacAddr, at: Option<&str>) {
        let what = format!("{} sees {mac} at {at:?}", self.name);
        self.until(&what, |host| host.places(mac) == at);
    }

    pub fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            let told = &self.degraded;
            assert!(
                start.elapsed() < PATIENCE,
                "not in time: {what} ({}; {told:?}; {:?})",
                self.name,
                self.own
            );
            self.read();
        }
    }

    /// Reads for a while.
    pub fn listen(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.read();
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; 65_536];
        let mut stream = self.stream.as_ref().expect("a session");
        match stream.read(&mut bytes) {
            Ok(0) => panic!("{}: the plugin ended", self.name),
            Ok(count) => self.lines.feed(&bytes[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => panic!("{}: {error}", self.name),
        }
        while let Some(line) = self.lines.next_line().expect("lines") {
            let message = decode(line).expect("a message");
            self.heard(message);
        }
    }

    fn heard(&mut self, message: FromPlugin) {
        match message {
            FromPlugin::Ok { .. } => self.started = Some(Ok(())),
            FromPlugin::Error { text, .. } => self.started = Some(Err(text)),
            FromPlugin::Push { entries, .. } => {
                for entry in entries {
                    let key = (entry.vni, entry.mac);
                    let is_swept = self
                        .swept
                        .as_mut()
                        .map(|swept| swept.retain(|of| *of != key))
                        .is_some();
                    let is_older = |had: &Entry| !is_swept && entry.generation < had.generation;
                    if !self.table.get(&key).is_some_and(is_older) {
                        self.table.insert(key, entry);
                    }
                }
            }
            FromPlugin::Withdraw { entries, .. } => {
                for gone in entries {
                    let key = (gone.vni, gone.mac);
                    let is_it =
                        |had: &Entry| had.host == gone.host && had.generation == gone.generation;
                    if self.table.get(&key).is_some_and(is_it) {
                        self.table.remove(&key);
                    }
                }
            }
            FromPlugin::SyncBegin { vni, .. } => {
                let of_it = self
                    .table
                    .keys()
                    .filter(|key| vni.is_none_or(|vni| key.0 == vni));
                self.swept = Some(of_it.copied().collect());
            }
            FromPlugin::SyncEnd { .. } => {
                for key in self.swept.take().expect("a sync began") {
                    self.table.remove(&key);
                }
                self.syncs += 1;
            }
            FromPlugin::Owned {
                vni,
                mac,
                generation,
                ..
            } => {
                self.own.insert((vni, mac), Ok(generation));
            }
            FromPlugin::Refused { vni, mac, by, .. } => {
                self.own.insert((vni, mac), Err(by));
            }
            FromPlugin::Host { host, state, .. } => {
                self.hosts.insert(host, state);
            }
            FromPlugin::Flood { vni, targets, .. } => {
                self.flood.insert(vni, targets.len());
            }
            FromPlugin::Claimed { id, mac, ips, text } => {
                let claimed = mac.map(|mac| (mac, ips));
                self.claimed
                    .insert(id, claimed.ok_or(text.unwrap_or_default()));
            }
            FromPlugin::Degraded { text, .. } => self.degraded = Some(text),
            FromPlugin::Restored { .. } => self.degraded = None,
            FromPlugin::Hello { .. } | FromPlugin::Pong { .. } => {}
            other => panic!("{}: {other:?}", self.name),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}
