//! Where real programs run in pairs: as a user of their own in a namespace of their own, each end plain or accelerated.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use windlass_tests::{Lab, Output, copy_program, program, skip, until, until_some};

/// For how long the broker is waited for, in milliseconds. By itself a program gives up after 20 ms and is on the kernel for up to a
/// second, which may be its whole run where a busy machine does not let the broker answer.
const PATIENCE_MS: &str = "20000";

/// How long an accelerated end that spins looks at its ring, in microseconds: it is awake when the other end sends, unless that one
/// has had no core for so long in each of its messages.
const SPIN_US: u32 = 20_000;

/// Users without a name: Debian gives these numbers to nobody by itself.
const UIDS: std::ops::Range<u32> = 61_000..61_180;

/// Says whether a test that takes long is wanted, and skips it aloud if not.
pub fn soaks(name: &str) -> bool {
    let wanted = std::env::var_os("WINDLASS_SOAK").is_some();
    if !wanted {
        skip(name, "takes long: in make soak (WINDLASS_SOAK=1)");
    }
    wanted
}

/// Parts of redis' suite; without those of modules, which need redis' own build.
pub const REDIS: &[&str] = &[
    "unit/protocol",
    "unit/keyspace",
    "unit/scan",
    "unit/info",
    "unit/auth",
    "unit/acl",
    "unit/quit",
    "unit/expire",
    "unit/other",
    "unit/multi",
    "unit/latency-monitor",
    "unit/type/string",
    "unit/type/list",
    "unit/type/hash",
    "unit/type/stream-cgroups",
    "unit/sort",
    "unit/slowlog",
    "unit/introspection",
    "unit/introspection-2",
    "unit/limits",
    "unit/obuf-limits",
    "unit/pubsub",
    "unit/pubsubshard",
    "unit/wait",
    "unit/pause",
    "unit/querybuf",
    "unit/pendingquerybuf",
    "unit/tls",
    "unit/tracking",
    "unit/client-eviction",
    "unit/networking",
    "unit/replybufsize",
    "unit/shutdown",
    "integration/block-repl",
    "integration/replication",
    "integration/replication-2",
    "integration/replication-psync",
    "integration/psync2-reg",
    "integration/rdb",
    "integration/aof",
    "integration/redis-cli",
    "integration/redis-benchmark",
];

/// Where `scripts/suites` has put a suite; `None`, said aloud, where it has not.
pub fn suite(test: &str, name: &str) -> Option<PathBuf> {
    if !soaks(test) {
        return None;
    }
    let target = std::env::var_os("WINDLASS_BIN_DIR").map(PathBuf::from)?;
    let place = target.parent()?.join("suites").join(name);
    if !place.join(".ready").exists() {
        skip(test, "its sources are not there (scripts/need soak)");
        return None;
    }
    Some(place)
}

/// Which end a process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

/// Which ends are accelerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    pub server: bool,
    pub client: bool,
    /// How long accelerated ends spin, in microseconds.
    pub spin: u32,
}

/// What must be seen of two accelerated ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Connections were joined. Whether bytes went by the ring depends on whether the receiver happened to be awake.
    Joined,
    /// Bytes went by the ring as well, at both ends, where they spin.
    Ring,
}

impl Pairing {
    pub fn both(self) -> bool {
        self.server && self.client
    }

    fn has(self, side: Side) -> bool {
        match side {
            Side::Server => self.server,
            Side::Client => self.client,
        }
    }
}

impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = match (self.server, self.client) {
            (true, true) => "both accelerated",
            (true, false) => "server only",
            (false, true) => "client only",
            (false, false) => return f.write_str("neither accelerated"),
        };
        write!(f, "{ends}, spin {}", self.spin)
    }
}

/// A place for one pairing.
pub struct House {
    lab: Lab,
    uid: u32,
    pub pairing: Pairing,
    /// No other test has the user meanwhile.
    _mine: UnixListener,
}

/// Runs a test in each pairing, in a place of its own; skips aloud what cannot be. `needs`: programs.
pub fn in_all_pairings(name: &str, needs: &[&str], test: impl Fn(&House)) {
    let absent = needs.iter().find(|tool| find(tool).is_none());
    if let Some(absent) = absent {
        return skip(name, &format!("{absent} is missing"));
    }
    for (server, client, spin) in [
        (true, true, SPIN_US),
        (true, true, 0),
        (true, false, 50),
        (false, true, 50),
        (false, false, 0),
    ] {
        let pairing = Pairing {
            server,
            client,
            spin,
        };
        let Some(house) = House::build(name, pairing) else {
            return;
        };
        println!("{name}: {pairing}");
        test(&house);
    }
}

/// Where a program is, also where only root looks.
pub fn find(name: &str) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"]
        .map(PathBuf::from)
        .into();
    places.push("/usr/local/go/bin".into());
    places.extend(postgres());
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

/// Debian keeps PostgreSQL's programs out of PATH.
fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions
        .flatten()
        .map(|one| one.path().join("bin"))
        .collect();
    found.sort();
    found.pop()
}

fn processes_of(uid: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == uid))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .collect()
}

/// A user whom nobody knows, who runs nothing, and whom no other test has for as long as the listener lives.
fn free_uid() -> (u32, UnixListener) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    until_some("a free user", || {
        let shift = std::process::id() + NEXT.fetch_add(1, Ordering::Relaxed);
        let uid = UIDS.start + shift % UIDS.len() as u32;
        let text = uid.to_string();
        let mut names = known.lines().filter_map(|line| line.split(':').nth(2));
        let name = SocketAddr::from_abstract_name(format!("windlass-tests-{uid}")).expect("a name");
        let mine = UnixListener::bind_addr(&name).ok()?;
        (names.all(|one| one != text) && processes_of(uid).is_empty()).then_some((uid, mine))
    })
}

impl House {
    /// A place with its user, network and broker; `None` where it cannot be, said aloud.
    pub fn build(name: &str, pairing: Pairing) -> Option<House> {
        let lab = Lab::start(name)?;
        let (uid, mine) = free_uid();
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("opened");
        };
        open(lab.directory(), 0o711);
        // A private daemon wants the user's directory closed to others.
        for (directory, owner, mode) in [("home", uid, 0o700), ("bin", 0, 0o755)] {
            let path = lab.directory().join(directory);
            std::fs::create_dir(&path).expect("a directory");
            open(&path, mode);
            chown(&path, Some(owner), Some(owner)).expect("given");
        }
        if pairing.server || pairing.client {
            // Where they were built may be closed to the user.
            for name in ["windlass", "windlass-broker", "libwindlass_sockets.so"] {
                let copy = lab.directory().join("bin").join(name);
                copy_program(&program(name), &copy);
            }
        }
        let house = House {
            lab,
            uid,
            pairing,
            _mine: mine,
        };
        if pairing.server || pairing.client {
            house.wait_for_broker();
        }
        Some(house)
    }

    /// The first program forks the user's broker off and does not wait for it; here the programs begin with it there.
    fn wait_for_broker(&self) {
        let windlass = self.lab.directory().join("bin/windlass");
        must(
            self.enter(&[&windlass.to_string_lossy(), "run", "--", "true"]),
            b"",
        );
        until("the broker is there", || {
            self.file("windlass/sockets.sock").exists()
        });
    }

    /// A file in the user's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.lab.directory().join("home").join(name)
    }

    /// Writes a file that the user may read.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    /// Bytes that depend on their place, in a file; so that a loss or a swap shows.
    pub fn pattern(&self, name: &str, bytes: usize) -> PathBuf {
        let words = (0..bytes as u64 / 8).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pattern: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.write(name, pattern)
    }

    fn counters(&self, side: Side) -> PathBuf {
        self.file(&format!("counters.{side:?}"))
    }

    fn enter(&self, words: &[&str]) -> Command {
        let uid = self.uid.to_string();
        let mut command = self.lab.command("host", "setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]);
        command.args(words).current_dir(self.file("."));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command
            .env("HOME", self.file("."))
            .env("XDG_RUNTIME_DIR", self.file("."))
            .env("LC_ALL", "C");
        command
    }

    /// A program for one end, accelerated where the pairing says so.
    pub fn command(&self, side: Side, name: &str) -> Command {
        let path =
            find(name).map_or_else(|| name.into(), |path| path.to_string_lossy().into_owned());
        if !self.pairing.has(side) {
            return self.enter(&[&path]);
        }
        let windlass = self.lab.directory().join("bin/windlass");
        let spin = self.pairing.spin.to_string();
        let run = [&windlass.to_string_lossy(), "run", "--spin", &spin, "--"];
        let mut command = self.enter(&[&run[..], &[&path]].concat());
        command.env("WINDLASS_COUNTERS", self.counters(side));
        command.env("WINDLASS_PATIENCE", PATIENCE_MS);
        command
    }

    /// A program that is part of neither end.
    pub fn plain(&self, name: &str) -> Command {
        let path =
            find(name).map_or_else(|| name.into(), |path| path.to_string_lossy().into_owned());
        self.enter(&[&path])
    }

    /// As [`House::plain`], where `/etc/passwd` knows the user as `tester`.
    pub fn named(&self, name: &str) -> Command {
        self.with_name(&self.plain(name))
    }

    /// As [`House::command`], where `/etc/passwd` knows the user as `tester`.
    pub fn named_for(&self, side: Side, name: &str) -> Command {
        self.with_name(&self.command(side, name))
    }

    fn with_name(&self, inside: &Command) -> Command {
        let known = std::fs::read_to_string("/etc/passwd").expect("users");
        let (uid, home) = (self.uid, self.file("."));
        let line = format!("tester:x:{uid}:{uid}::{}:/bin/sh\n", home.display());
        let names = self.write("passwd", known + &line);
        let script = "mount --bind \"$0\" /etc/passwd && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(names);
        command.arg(inside.get_program()).args(inside.get_args());
        command.current_dir(self.file(".")).env_clear();
        for (name, value) in inside.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
    }

    /// Starts what is ended by [`Running::end`] or by itself.
    pub fn start(&self, mut command: Command, name: &str) -> Running {
        let log = File::create(self.file(&format!("{name}.log"))).expect("a log");
        command.stdin(Stdio::piped());
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running {
            child,
            log: self.file(&format!("{name}.log")),
        }
    }

    /// Whether somebody listens at a TCP port of the namespace.
    pub fn listens(&self, port: u16) -> bool {
        let mark = format!(":{port:04X} ");
        self.lab.within("host", || {
            // The thread's own: /proc/net is the process's.
            ["tcp", "tcp6"].iter().any(|table| {
                let path = format!("/proc/thread-self/net/{table}");
                let text = std::fs::read_to_string(path).unwrap_or_default();
                text.lines().any(|line| {
                    let mut words = line.split_ascii_whitespace().skip(1);
                    let local = words
                        .next()
                        .is_some_and(|own| format!("{own} ").ends_with(&mark));
                    local && words.nth(1) == Some("0A")
                })
            })
        })
    }

    /// Starts a server, and waits until it listens.
    pub fn serve(&self, command: Command, name: &str, port: u16) -> Running {
        let mut running = self.start(command, name);
        until(&format!("{name} listens"), || {
            running.assert_alive();
            self.listens(port)
        });
        running
    }

    /// What the processes of one end have counted, as they wrote it at their exits; sums over all of them.
    pub fn counted(&self, side: Side) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.counters(side)).unwrap_or_default();
        let mut sums = BTreeMap::new();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').expect("a name and a value");
            let value: u64 = value.trim().parse().expect("a number");
            *sums.entry(name.to_owned()).or_default() += value;
        }
        sums
    }

    /// Takes away what was counted so far, when all processes have ended.
    pub fn forget(&self) {
        for side in [Side::Server, Side::Client] {
            // There is none of an end that was plain.
            let _ = std::fs::remove_file(self.counters(side));
        }
    }

    /// Judges the run by its counters, when all processes have ended. An end that cannot be accelerated must not have
    /// been, and two that can be must.
    pub fn assert_accelerated(&self, expected: Expected) {
        for side in [Side::Server, Side::Client] {
            let counted = self.counted(side);
            let of = |name: &str| counted.get(name).copied().unwrap_or(0);
            let ring = of("ring_tx_bytes") + of("ring_rx_bytes");
            // Who does not spin sleeps whenever he waits, and a sleeper is sent to through the kernel.
            let awake = expected == Expected::Ring && self.pairing.spin > 0;
            let told = format!("{}: {side:?}: {counted:?}", self.pairing);
            if !self.pairing.has(side) {
                assert!(counted.is_empty(), "{told}");
                continue;
            }
            assert!(!counted.is_empty(), "{told}");
            if !self.pairing.both() {
                assert_eq!(ring + of("joined"), 0, "{told}");
            } else {
                assert!(of("joined") > 0 && (!awake || ring > 0), "{told}");
            }
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // Nobody else runs anything as this user.
        for _ in 0..100 {
            let left = processes_of(self.uid);
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// A process of a house.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// What it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().expect("a child") {
            panic!("ended early: {status}: {}", self.log());
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child");
    }

    /// Writes to its standard input.
    pub fn say(&mut self, text: &[u8]) {
        let input = self.child.stdin.as_mut().expect("its input");
        input.write_all(text).expect("written");
    }

    /// Asks it to end, and waits.
    pub fn end(self) {
        self.signal(Signal::TERM);
        self.wait();
    }

    /// Closes its standard input, and waits until it has ended; gives its exit code and what it wrote.
    pub fn wait(mut self) -> (i32, String) {
        drop(self.child.stdin.take());
        let what = format!("the end of {}", self.log.display());
        let status = until_some(&what, || self.child.try_wait().expect("a child"));
        (status.code().unwrap_or(-1), self.log())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often the kernel has to pass a part that failed accelerated.
const KERNEL_RUNS: usize = 3;

/// Runs each part of a suite accelerated. One that fails is run on the kernel, and may fail only if it does so there, too. At least `joined_min`
/// connections must have joined.
pub fn compare(
    test: &str,
    [plain, ours]: &[House; 2],
    parts: &[String],
    joined_min: u64,
    passes: impl Fn(&House, &str) -> (bool, String),
) {
    let mut wrong = Vec::new();
    let mut unusable = Vec::new();
    for part in parts {
        let (is_good, told) = passes(ours, part);
        if is_good {
            continue;
        }
        if (0..KERNEL_RUNS).all(|_| passes(plain, part).0) {
            let tail: Vec<_> = told.lines().rev().take(30).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            wrong.push(format!("{part}:\n{}", tail.join("\n")));
        } else {
            unusable.push(part.as_str());
        }
    }
    let counted = ours.counted(Side::Server);
    let of = |name: &str| counted.get(name).copied().unwrap_or(0);
    println!(
        "{test}: {} parts, fail on the kernel too: {unusable:?}, joined: {}, bytes by ring: {}, by kernel: {}",
        parts.len(),
        of("joined"),
        of("ring_tx_bytes"),
        of("kernel_tx_bytes"),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(
        unusable.len() * 4 < parts.len(),
        "too many parts fail on the kernel: {unusable:?}"
    );
    assert!(of("joined") >= joined_min, "nothing was accelerated");
}

/// Runs a client to its end, feeding it; it must succeed. Gives what it printed.
pub fn must(mut command: Command, input: &[u8]) -> String {
    let shown = format!("{:?}", command.get_args().collect::<Vec<_>>());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    let mut pipe = child.stdin.take().expect("its input");
    let done = std::thread::scope(|scope| {
        scope.spawn(move || {
            // It may end without reading all.
            let _ = pipe.write_all(input);
        });
        child.wait_with_output().expect("an end")
    });
    let status = done.status;
    let done = Output {
        code: status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    };
    assert!(
        status.success(),
        "{shown}: {status}: {}{}",
        done.out,
        done.err
    );
    done.out
}
