//! Two ends of one connection under `windlass run`: `peer.c`, compiled by each test, at both of them.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use windlass_sys::unix::{self, SocketKind};
use windlass_tests::{copy_program, program, skip, until};

/// Longest time that anything may take; nothing needs two seconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Longest time that two programs may go on without what they go on for, beside whatever else the machine does.
const EVENT_PATIENCE: Duration = Duration::from_secs(120);
/// Where the library lies, beside `windlass`.
pub const LIBRARY: &str = "libwindlass_sockets.so";

pub fn soaks() -> bool {
    std::env::var_os("WINDLASS_SOAK").is_some()
}

/// One program, killed when dropped.
pub struct One(pub Child);

impl One {
    /// Waits for its end; whether it succeeded. False, too, if its time is over.
    pub fn end(&mut self) -> bool {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status.success();
            }
            if started.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory for one test, the compiled program, and a daemon that is found by nobody else.
pub struct Place {
    pub directory: tempfile::TempDir,
    pub number: AtomicU32,
    /// Ends that the ring has served.
    pub rung: Arc<AtomicU32>,
    tally: Arc<Tally>,
    windlass: PathBuf,
    /// Whose processes the programs are, if not this one's.
    pub user: Option<u32>,
}

impl Place {
    pub fn new(name: &str) -> Option<Place> {
        Place::built(name, &[])
    }

    /// With further options for the compiler.
    pub fn built(name: &str, options: &[&str]) -> Option<Place> {
        Place::compiled(name, "peer.c", options)
    }

    /// With another program than `peer.c`, which takes the same words.
    pub fn compiled(name: &str, source: &str, options: &[&str]) -> Option<Place> {
        let windlass = program("windlass");
        if !windlass.with_file_name(LIBRARY).exists() {
            skip(name, "libwindlass_sockets.so was not built beside windlass");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(directory.path(), closed).expect("closed to others");
        fs::create_dir(directory.path().join("windlass.d")).expect("a directory");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O2", "-pthread"])
            .args(options)
            .arg("-o")
            .arg(directory.path().join("peer"))
            .arg(sources.join(source));
        match compiler.status() {
            Ok(status) => assert!(status.success(), "{source} does not compile"),
            Err(error) => {
                skip(name, &format!("cc: {error}"));
                return None;
            }
        }
        Some(Place {
            directory,
            number: AtomicU32::new(0),
            rung: Arc::default(),
            tally: Arc::default(),
            windlass,
            user: None,
        })
    }

    /// The same for a user of its own, if this process may act for others: no other process of this user has the library.
    pub fn of_user(name: &str, source: &str) -> Option<Place> {
        let mut place = Place::compiled(name, source, &[])?;
        if !rustix::process::geteuid().is_root() {
            return Some(place);
        }
        // Nobody's numbers, apart from those of other tests.
        let user = 61_200 + std::process::id() % 300;
        let own = place.directory.path().to_owned();
        for file in ["windlass", "windlass-broker", LIBRARY] {
            let from = place.windlass.with_file_name(file);
            copy_program(&from, &own.join(file));
        }
        place.windlass = own.join("windlass");
        for path in [own.clone(), own.join("windlass.d")] {
            chown(&path, Some(user), Some(user)).expect("given");
        }
        place.user = Some(user);
        Some(place)
    }

    /// Where the daemon of this place listens.
    pub fn daemon(&self) -> PathBuf {
        self.directory.path().join("windlass.d/sockets.sock")
    }

    /// The process that listens there.
    pub fn daemon_process(&self) -> Option<Pid> {
        let socket = unix::connect(&self.daemon(), SocketKind::SeqPacket).ok()?;
        Pid::from_raw(unix::peer_credentials(&socket).ok()?.pid?.cast_signed())
    }

    /// The processes, by id, that it has started in these roles, if there are any.
    pub fn helpers(&self, roles: &[&str]) -> Option<Vec<String>> {
        let daemon = self.daemon_process()?.as_raw_pid();
        let tasks = fs::read_dir(format!("/proc/{daemon}/task")).ok()?.flatten();
        let children = tasks.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
        let all = Vec::from_iter(children).concat();
        let has_role = |pid: &&str| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words
                .split('\0')
                .nth(1)
                .is_some_and(|role| roles.contains(&role))
        };
        let pids: Vec<_> = all
            .split_whitespace()
            .filter(has_role)
            .map(str::to_owned)
            .collect();
        (!pids.is_empty()).then_some(pids)
    }

    /// Kills the process that listens there and waits for its end: until then it takes connections. Gives the one killed.
    pub fn kill_daemon(&self) -> Pid {
        let daemon = self.daemon_process().expect("a daemon");
        kill_process(daemon, Signal::KILL).expect("killed");
        until("its end", || self.daemon_process() != Some(daemon));
        daemon
    }

    /// The rows of one process in `windlass sockets`.
    pub fn rows(&self, pid: u32) -> Vec<Value> {
        rows(&self.daemon(), pid)
    }

    /// Makes the directory of one more pair.
    pub fn room(&self) -> PathBuf {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory.path().join(number.to_string());
        fs::create_dir(&directory).expect("a directory");
        if let Some(user) = self.user {
            chown(&directory, Some(user), Some(user)).expect("given");
        }
        directory
    }

    /// Starts one end, `listen` or `connect`.
    pub fn end(&self, how: &How<'_>, directory: &Path, role: &str) -> Child {
        self.end_as(self.user, how, directory, role)
    }

    /// The same of another user, or of this process's.
    pub fn end_as(&self, user: Option<u32>, how: &How<'_>, directory: &Path, role: &str) -> Child {
        let log = File::create(directory.join(role)).expect("a log");
        let peer = self.directory.path().join("peer");
        let run = ["run", "--spin", how.spin, "--"].map(OsStr::new);
        let windlass = [self.windlass.as_os_str()].into_iter().chain(run);
        let mut words = how
            .before
            .iter()
            .map(OsStr::new)
            .chain(windlass.filter(|_| !how.is_plain))
            .chain([peer.as_os_str()]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        command.arg(role).arg(directory.join("port")).arg(how.way);
        command.args([how.bytes, how.chunk, how.window].map(|number| number.to_string()));
        command.env("WINDLASS_SOCKETS", self.daemon());
        command.env("PEER_STATE", directory.join(format!("{role}.state")));
        command.env(
            "WINDLASS_COUNTERS",
            directory.join(format!("{role}.counters")),
        );
        command.envs(how.options.iter().copied());
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command.process_group(0);
        command.spawn().expect("windlass")
    }

    /// Starts both ends.
    pub fn connect(&self, how: &How<'_>) -> Pair {
        let directory = self.room();
        let ends = ["listen", "connect"].map(|role| self.end(how, &directory, role));
        self.pair(how, directory, ends)
    }

    /// The same once the ring has served both ends: until then they exchange small messages.
    pub fn connect_rung(&self, how: &How<'_>) -> Pair {
        let options = [how.options, &[("PEER_HOLD", "1")]].concat();
        let mut pair = self.connect(&How {
            options: &options,
            ..*how
        });
        until_rows(
            &self.daemon(),
            pair.ends.each_ref(),
            "bytes by the ring, both ways",
            |rows| has_rung(rows, [64; 2]),
            || pair.both(),
        );
        pair.is_rung = true;
        fs::write(pair.directory.join("port.go"), "").expect("a file");
        pair
    }

    /// Both ends, that were started one by one.
    pub fn pair(&self, how: &How<'_>, directory: PathBuf, ends: [Child; 2]) -> Pair {
        Pair {
            directory,
            ends,
            told: format!("{how:?}"),
            is_rung: false,
            rung: self.rung.clone(),
            tally: self.tally.clone(),
        }
    }
}

impl Place {
    /// Has a broker listen: a program may be over before the one that `windlass run` starts for it does.
    pub fn have_daemon(&self) {
        let mut run = Command::new(&self.windlass);
        run.env("WINDLASS_SOCKETS", self.daemon());
        let status = run.args(["run", "true"]).status().expect("windlass");
        assert!(status.success(), "windlass run true: {status}");
        until("a broker", || self.daemon_process().is_some());
    }

    /// Lines of both ends, and what each has counted.
    fn lines(&self, way: &str, is_plain: bool) -> ([String; 2], [BTreeMap<String, u64>; 2]) {
        let mut pair = self.connect(&How {
            way,
            spin: "50",
            options: &[PATIENT],
            is_plain,
            ..HOW
        });
        let said = [0, 1].map(|end| pair.wait(end));
        (said, [0, 1].map(|end| pair.counted(end)))
    }

    /// Both ends say the same on the kernel and under `windlass run`, where the connection joins at both ends, or does not, if that
    /// is said.
    pub fn compare(&self, ways: &[&str], joins: Option<bool>) {
        let mut differing = Vec::new();
        self.have_daemon();
        for way in ways {
            let (kernel, _) = self.lines(way, true);
            let (ours, counted) = self.lines(way, false);
            let has_joined =
                |end: &BTreeMap<_, _>| end.get("joined").is_some_and(|count| *count > 0);
            let is_right = joins.is_none_or(|joins| counted.iter().all(has_joined) == joins);
            if ours != kernel || !is_right {
                differing.push(format!("{way}, {counted:?}: {ours:?}, not {kernel:?}"));
            }
        }
        assert!(differing.is_empty(), "{}", differing.join("\n"));
    }
}

/// How both ends behave.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    pub way: &'a str,
    pub spin: &'a str,
    pub bytes: u64,
    pub chunk: u64,
    pub window: u64,
    pub options: &'a [(&'a str, &'a str)],
    /// Words before the command.
    pub before: &'a [&'a str],
    /// Without windlass.
    pub is_plain: bool,
}

/// The broker is waited for, where a test wants connections to join: a busy machine keeps none of them on the kernel.
pub const PATIENT: (&str, &str) = ("WINDLASS_PATIENCE", "20000");

pub const HOW: How<'static> = How {
    way: "block",
    spin: "0",
    bytes: 2_000_000,
    chunk: 4096,
    window: 16_384,
    options: &[],
    before: &[],
    is_plain: false,
};

/// Both ends of one connection.
pub struct Pair {
    pub directory: PathBuf,
    pub ends: [Child; 2],
    told: String,
    /// The ring has served both ends.
    is_rung: bool,
    /// Ends that the ring has served, of the whole place.
    pub rung: Arc<AtomicU32>,
    tally: Arc<Tally>,
}

/// Ends of a place that have come to their ends, and those of them that had joined.
#[derive(Default)]
struct Tally {
    ends: AtomicU32,
    joined: AtomicU32,
}

impl Pair {
    pub fn said(&self, end: usize) -> String {
        fs::read_to_string(self.directory.join(["listen", "connect"][end])).unwrap_or_default()
    }

    /// What both processes have counted, in sums.
    pub fn counted(&self, end: usize) -> BTreeMap<String, u64> {
        let role = ["listen", "connect"][end];
        let text =
            fs::read_to_string(self.directory.join(format!("{role}.counters"))).unwrap_or_default();
        let mut sums = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().expect("a number");
        }
        sums
    }

    /// How many bytes a program has received and sent so far, as it has noted itself.
    pub fn noted(&self, end: usize) -> [u64; 2] {
        let role = ["listen", "connect"][end];
        let bytes = fs::read(self.directory.join(format!("{role}.state"))).unwrap_or_default();
        let word = |at: usize| {
            let word = bytes
                .get(at * 8..at * 8 + 8)
                .and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_ne_bytes)
        };
        [word(0), word(2)]
    }

    /// What happened, for a failure.
    pub fn both(&self) -> String {
        let of = |end| format!("{:?} {:?}", self.said(end), self.counted(end));
        format!("{}: {}; {}", self.told, of(0), of(1))
    }

    pub fn signal(&self, end: usize, signal: Signal) {
        kill_process_group(Pid::from_child(&self.ends[end]), signal).expect("an own child");
    }

    /// Waits until both ends have exchanged some messages.
    pub fn warm(&mut self) {
        self.until("the first messages", |pair| {
            (0..2).all(|end| pair.said(end).lines().any(|line| line == "warm"))
        });
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            let said = [self.said(0), self.said(1)];
            assert!(
                begin.elapsed() < PATIENCE,
                "{what} did not come: {} {said:?}",
                self.told
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end of one program, however it ends; gives what it said. It must not have found a wrong byte.
    pub fn end_of(&mut self, end: usize) -> String {
        self.until("the end of a program", |pair| {
            pair.ends[end].try_wait().expect("a child").is_some()
        });
        let said = self.said(end);
        assert!(
            !said.contains("WRONG") && !said.contains("STUCK"),
            "{}",
            self.both()
        );
        said
    }

    /// Waits for the end of one program, which must have succeeded; gives what it said.
    pub fn wait(&mut self, end: usize) -> String {
        self.until("the end of a program", |pair| {
            pair.ends[end].try_wait().expect("a child").is_some()
        });
        let status = self.ends[end].wait().expect("a child");
        let said = self.said(end);
        assert!(
            status.success(),
            "{}: {status}: {said} (the other: {})",
            self.told,
            self.said(1 - end)
        );
        said
    }

    /// Both got everything, and the ring carried a part of it if it had served them before.
    pub fn finish(mut self, bytes: u64) {
        for end in 0..2 {
            let said = self.wait(end);
            let right = said.contains(&format!("sent {bytes}\n"))
                && said.contains(&format!("got {bytes} eof\n"));
            assert!(right, "{}", self.both());
        }
        for end in 0..2 {
            let counted = self.counted(end);
            let of = |name: &str| counted.get(name).copied().unwrap_or(0);
            let has_joined = of("joined") > 0;
            let is_served = of("ring_tx_bytes") + of("ring_rx_bytes") > 0;
            let is_rung = has_joined && is_served;
            assert!(is_rung || !self.is_rung, "{}", self.both());
            let add = |to: &AtomicU32, more: bool| to.fetch_add(u32::from(more), Ordering::Relaxed);
            add(&self.tally.ends, true);
            add(&self.tally.joined, has_joined);
            add(&self.rung, is_rung);
        }
    }
}

impl Place {
    /// Fails unless the ring has served half of the ends. All of them, unless the machine is very busy: a join needs an answer
    /// of the daemon within 20 ms, which may come too late until a short stream is over; and there a reader mostly sleeps,
    /// whom the kernel serves.
    pub fn assert_rung(&self) {
        let [ends, joined] =
            [&self.tally.ends, &self.tally.joined].map(|count| count.load(Ordering::Relaxed));
        let rung = self.rung.load(Ordering::Relaxed);
        let told = format!("{ends} ends: {joined} had joined, the ring served {rung}");
        assert!(rung * 2 >= ends, "{told}");
        println!("{told}");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for end in &mut self.ends {
            let _ = kill_process_group(Pid::from_child(end), Signal::KILL);
            let _ = end.wait();
        }
    }
}

/// The rows of one process in `windlass sockets`, as the daemon that listens there tells them.
pub fn rows(daemon: &Path, pid: u32) -> Vec<Value> {
    let mut command = Command::new(program("windlass"));
    command
        .args(["sockets", "--json"])
        .env("WINDLASS_SOCKETS", daemon);
    let listed = command.output().expect("windlass").stdout;
    let rows: Vec<Value> = serde_json::from_slice(&listed).unwrap_or_default();
    rows.into_iter().filter(|row| row["pid"] == pid).collect()
}

/// Waits until the rows of each process are so; `said` tells of a failure.
pub fn until_rows<const N: usize>(
    daemon: &Path,
    processes: [&Child; N],
    what: &str,
    is_so: impl Fn(&[Value]) -> bool,
    said: impl Fn() -> String,
) {
    let begun = Instant::now();
    loop {
        let rows = processes.map(|process| rows(daemon, process.id()));
        if rows.iter().all(|rows| is_so(rows)) {
            return;
        }
        let time = begun.elapsed();
        assert!(
            time < EVENT_PATIENCE,
            "{what}: not in {time:?}: {rows:?} {}",
            said()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether one of the rows is of a connection on the ring, by which so many bytes of this end and of the other one were taken.
/// More than can be unread at once: what is being moved to the kernel may be counted for a moment.
pub fn has_rung(rows: &[Value], bytes: [u64; 2]) -> bool {
    rows.iter().any(|row| {
        let of = |name: &str| row[name].as_u64().unwrap_or(0);
        let taken = |ring: &str, unread: &str| of(ring).saturating_sub(of(unread));
        row["state"] == "ring"
            && taken("ring_tx_bytes", "tx_queue_bytes") >= bytes[0]
            && taken("ring_rx_bytes", "rx_queue_bytes") >= bytes[1]
    })
}

/// Random numbers from a seed (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % limit
    }
}

pub fn seed() -> Random {
    let seed = std::process::id().into();
    println!("seed {seed}");
    Random(seed)
}
