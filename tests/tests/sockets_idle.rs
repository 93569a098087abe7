//! What many connections cost that were used once and are idle: memory of both programs, of the slabs and of the kernel,
//! and no time.

#[path = "sockets/place.rs"]
mod place;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use place::{PATIENCE, Place, soaks};
use windlass_sys::unix::{self, SocketKind};
use windlass_tests::{program, skip};

/// How many: the number where there is time.
fn connections() -> u64 {
    if soaks() { 10_000 } else { 4_000 }
}

/// What an idle connection may take of its slab, in bytes: both its ends and directions, without a ring.
const SLAB_BYTES: u64 = 2_600;
/// What the daemon has made besides, in bytes: the directory above all.
const FIXED: u64 = 4 << 20;
/// Messages each way on each: some by the kernel, the rest by the ring.
const MESSAGES: u32 = 12;
/// The bar, in bytes for each connection.
const BAR: u64 = 20_000;

/// One of the two programs.
struct Many {
    child: Child,
    log: PathBuf,
}

impl Many {
    fn start(place: &Place, role: &str) -> Many {
        let directory = place.directory.path();
        let log = directory.join(role);
        let output = File::create(&log).expect("a log");
        let mut command = Command::new(program("windlass"));
        command.args(["run", "--spin", "50", "--"]);
        command
            .arg(directory.join("many"))
            .arg(role)
            .arg(directory.join("port"));
        command.args([connections().to_string(), MESSAGES.to_string()]);
        command.env("WINDLASS_SOCKETS", place.daemon());
        command.env(
            "WINDLASS_COUNTERS",
            directory.join(format!("{role}.counters")),
        );
        let child = command
            .stdin(Stdio::piped())
            .stdout(output)
            .spawn()
            .expect("windlass");
        Many { child, log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn until(&self, word: &str) {
        let started = Instant::now();
        while !self.said().contains(word) {
            assert!(started.elapsed() < 2 * PATIENCE, "{word}: {}", self.said());
            assert!(!self.said().contains("FAIL"), "{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Memory that is this process's alone, in bytes.
    fn own_bytes(&self) -> u64 {
        field(&format!("/proc/{}/status", self.child.id()), "RssAnon:") * 1024
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number behind a name in a file of /proc.
fn field(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0)
}

/// What the kernel has for its own objects: what it cannot give back, and sockets' inodes where root may see them.
fn kernel_bytes() -> u64 {
    let sockets = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let line = sockets
        .lines()
        .find(|line| line.starts_with("sock_inode_cache"));
    let numbers = line
        .into_iter()
        .flat_map(|line| line.split_whitespace().skip(2).take(2));
    let inodes: u64 = numbers
        .filter_map(|word| word.parse::<u64>().ok())
        .product();
    field("/proc/meminfo", "SUnreclaim:") * 1024 + if line.is_some() { inodes } else { 0 }
}

/// Bytes of all memory that the daemon has made for others.
fn shared_bytes(daemon: u32) -> u64 {
    let entries = fs::read_dir(format!("/proc/{daemon}/fd")).expect("the daemon's descriptors");
    let mut seen = std::collections::BTreeSet::new();
    let of = |path: PathBuf| {
        let name = fs::read_link(&path).ok()?;
        let meta = name
            .to_str()?
            .starts_with("/memfd:windlass")
            .then(|| fs::metadata(&path).ok())??;
        seen.insert(meta.ino()).then(|| meta.blocks() * 512)
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter_map(of)
        .sum()
}

/// The process that listens at the place's socket.
fn daemon_of(place: &Place) -> Option<u32> {
    let socket = unix::connect(&place.daemon(), SocketKind::SeqPacket).ok()?;
    unix::peer_credentials(&socket).ok()?.pid
}

/// How often a process has been woken up, and its time in hundredths of seconds.
fn activity(pid: u32) -> [u64; 2] {
    let status = format!("/proc/{pid}/status");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let time = fields
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<u64>().ok())
        .sum();
    [field(&status, "voluntary_ctxt_switches:"), time]
}

/// Compiles the program, and starts the one that accepts; `None` where it may not have that many descriptors.
fn serve(place: &Place) -> Option<Many> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/many.c");
    let mut compiler = Command::new("cc");
    let tool = place.directory.path().join("many");
    let compiled = compiler.arg("-O2").arg("-o").arg(tool).arg(source).status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "many.c does not compile"
    );
    let server = Many::start(place, "listen");
    server.until("\n");
    (!server.said().contains("limit")).then_some(server)
}

/// Whether the processes come to rest: none of them wakes up for a second.
fn come_to_rest(pids: [u32; 3]) -> bool {
    let started = Instant::now();
    let mut last = pids.map(activity);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = pids.map(activity);
        if now == last || started.elapsed() > PATIENCE {
            return now == last;
        }
        last = now;
    }
}

/// Thousands of connections, each promoted, used by the ring, and then idle: their rings are given back, all of it takes less
/// than the bar, and neither the programs nor the daemon wake up any more.
#[test]
fn idle_connections_cost_little() {
    let name = "idle_connections_cost_little";
    let Some(place) = Place::new(name) else {
        return;
    };
    let connections = connections();
    let Some(server) = serve(&place) else {
        skip(name, "too few descriptors may be had");
        return;
    };
    server.until("ready");
    let mut client = Many::start(&place, "connect");
    client.until("ready");
    let before = kernel_bytes();
    client
        .child
        .stdin
        .as_mut()
        .expect("a pipe")
        .write_all(b"g")
        .expect("told");
    let started = Instant::now();
    let (mut daemon, mut busy) = (None, 0);
    while !client.said().contains("idle") {
        assert!(started.elapsed() < 2 * PATIENCE, "{}", client.said());
        daemon = daemon.or_else(|| daemon_of(&place));
        busy = daemon.map_or(0, shared_bytes).max(busy);
        std::thread::sleep(Duration::from_millis(50));
    }
    server.until("idle");
    let kernel = kernel_bytes().saturating_sub(before);
    let daemon = daemon.expect("a daemon");
    let started = Instant::now();
    let idle = loop {
        let idle = shared_bytes(daemon);
        if idle < FIXED + connections * SLAB_BYTES || started.elapsed() > PATIENCE {
            break idle;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let is_quiet = come_to_rest([server.child.id(), client.child.id(), daemon]);
    let own = server.own_bytes() + client.own_bytes();
    let mb = |bytes: u64| bytes / 1_000_000;
    println!(
        "MB: programs {}, slabs {} (with rings {}), kernel {}",
        mb(own),
        mb(idle),
        mb(busy),
        mb(kernel)
    );
    assert!(busy > idle, "no ring was used: {busy} bytes, then {idle}");
    assert!(
        idle < FIXED + connections * SLAB_BYTES,
        "rings of idle connections are kept: {idle} bytes"
    );
    let all = own + idle + kernel;
    assert!(all < connections * BAR, "{all} bytes");
    assert!(is_quiet, "somebody wakes up all the time");
}
