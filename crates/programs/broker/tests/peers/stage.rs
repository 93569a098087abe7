//! A broker in a thread, and pairs of actors that are connected, registered and joined.

use std::cell::Cell;
use std::fmt::Arguments;
use std::fs::Permissions;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tempfile::TempDir;
use windlass_broker::{Broker, Settings};
use windlass_sys::signals::Signals;

use crate::actor::{self, Actor};

/// Tests that measure what others cost run alone: the others hold this for reading.
static MACHINE: RwLock<()> = RwLock::new(());

/// Ends with the last broker of a test.
enum Turn {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
    /// Another broker of the test has it.
    Within,
}

/// A broker that runs.
pub struct Running {
    pub path: PathBuf,
    /// Slots of the last joined pair.
    pub slots: Cell<[u64; 2]>,
    /// The side of the second of a joined pair: the first registers first.
    pub side_of_second: u8,
    moved: Arc<Mutex<Vec<usize>>>,
    /// Closing it ends the broker.
    signals: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    /// The thread's schedstat (proc(5)).
    pub schedstat: String,
    dir: TempDir,
    _turn: Turn,
}

pub fn settings() -> Settings {
    Settings {
        others: true,
        program: actor::program().to_owned(),
        policy: None,
        linger: None,
    }
}

impl Running {
    pub fn start() -> Self {
        Self::with(None)
    }

    /// One with a policy, which other users reach.
    pub fn with(policy: Option<&str>) -> Self {
        let turn = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        Self::in_turn(policy, Turn::Shared(turn))
    }

    /// One while no other test has any.
    pub fn alone() -> Self {
        let turn = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        Self::in_turn(None, Turn::Alone(turn))
    }

    /// Another one of the same test.
    pub fn beside(_: &Self) -> Self {
        Self::in_turn(None, Turn::Within)
    }

    fn in_turn(policy: Option<&str>, turn: Turn) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("mode");
        let mut settings = settings();
        if let Some(text) = policy {
            let file = dir.path().join("sockets.conf");
            std::fs::write(&file, text).expect("policy");
            settings.policy = Some(file);
        }
        let path = dir.path().join("sockets.sock");
        let moved = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&moved);
        let say = Box::new(move |_, line: Arguments<'_>| {
            let line = line.to_string();
            let rescued = line.strip_prefix("rescued ");
            let bytes = rescued.and_then(|line| line.split(' ').next()?.parse::<usize>().ok());
            all.lock().expect("no panic").extend(bytes);
        });
        let broker = Broker::listen(&path, None, settings, say).expect("broker");
        let (signals, writer) = std::io::pipe().expect("a pipe");
        let signals = Signals::from(OwnedFd::from(signals));
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).expect("heard");
            broker.run(&signals).expect("runs");
        });
        let id = told.recv().expect("a thread").as_raw_nonzero();
        Self {
            path,
            slots: Cell::default(),
            side_of_second: 1,
            moved,
            signals: Some(writer),
            thread: Some(thread),
            schedstat: format!("/proc/{}/task/{id}/schedstat", std::process::id()),
            dir,
            _turn: turn,
        }
    }

    /// The directory of its socket, which every user reaches.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Bytes that rescues have moved since the last call.
    pub fn moved(&self) -> usize {
        self.moved.lock().expect("no panic").drain(..).sum()
    }

    /// How many rescues there were since then.
    pub fn rescues(&self) -> usize {
        self.moved.lock().expect("no panic").len()
    }

    /// A SIGHUP, as signalfd(2) tells of it.
    pub fn hang_up(&self) {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        info[..4].copy_from_slice(&libc::SIGHUP.to_ne_bytes());
        let mut signals = self.signals.as_ref().expect("it runs");
        signals.write_all(&info).expect("told");
    }

    /// Whether it takes in a process.
    pub fn serves(&self) -> bool {
        let mut actor = Actor::start(&self.path);
        let mut other = Actor::start(&self.path);
        connect(&mut actor, &mut other);
        actor.ask("patient");
        let registered = actor.ask("register");
        println!("registered: {registered}");
        registered.parse::<u16>().is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signals.take();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(ended, Some(Ok(()))),
            "the broker failed"
        );
    }
}

/// Whether this process can act for other users; said aloud where not.
pub fn can_act(name: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name}: only root can act as other users");
        return false;
    }
    if !others_reach_us() {
        println!("skipped: {name}: others than root cannot reach this program");
        return false;
    }
    true
}

/// Whether other users can execute this program.
pub fn others_reach_us() -> bool {
    let own = std::env::current_exe().expect("own path");
    own.ancestors()
        .skip(1)
        .all(|dir| std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 1 != 0))
}

/// Connects the second to the first over loopback.
pub fn connect(a: &mut Actor, b: &mut Actor) {
    let port = a.ask("listen");
    assert_eq!(b.ask(&format!("connect {port}")), "done");
    assert_eq!(a.ask("accept"), "done");
}

/// Two actors with one joined connection.
pub fn joined(running: &Running) -> (Actor, Actor) {
    let (mut a, mut b) = (Actor::start(&running.path), Actor::start(&running.path));
    connect(&mut a, &mut b);
    let slots = [a.number("register"), b.number("register")];
    assert!(slots[0] < slots[1], "{slots:?}");
    running.slots.set(slots);
    let mine = pair(&mut a, &mut b, slots[1]);
    let theirs = pair(&mut b, &mut a, slots[0]);
    assert_eq!(
        mine.split(' ').next(),
        theirs.split(' ').next(),
        "one slab for both"
    );
    assert_ne!(mine, theirs, "two sides");
    join(&mut a, &mut b);
    (a, b)
}

/// The first asks for memory with the second, which is in this slot, for the connection of both.
pub fn pair(a: &mut Actor, b: &mut Actor, slot: u64) -> String {
    let (socket, cookie) = (b.ask("socket"), b.ask("cookie"));
    a.ask(&format!("pair {slot} {socket} {cookie}"))
}

/// Joins the connection of two actors that have a slab.
pub fn join(a: &mut Actor, b: &mut Actor) {
    let (cookie_a, cookie_b) = (a.ask("cookie"), b.ask("cookie"));
    let chan = a.ask("allocate");
    assert_eq!(a.ask(&format!("offer {chan} {cookie_b}")), "done");
    assert_eq!(b.ask(&format!("offer {chan} {cookie_a}")), "done");
    assert_eq!(a.ask("check"), "Ready");
    assert_eq!(b.ask("check"), "Ready");
}

/// Waits until something holds, which must: at most a minute, on a busy machine.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A private broker in an actor.
pub fn private(path: &Path) -> (Pid, Actor) {
    let mut host = Actor::start(path);
    assert_eq!(host.ask(&format!("broker {}", path.display())), "serving");
    wait_for("the broker", || path.exists());
    (host.pid(), host)
}

/// The helper of a user that a broker has started.
pub fn helper_of(broker: u32, uid: u32) -> Option<Pid> {
    let helpers = children_of(broker, &format!("helper\0{uid}\0"));
    helpers.first().copied()
}

/// The processes that a broker has started with these words.
pub fn children_of(broker: u32, words: &str) -> Vec<Pid> {
    let broker = broker.to_string();
    let children = std::fs::read_dir("/proc").expect("processes").flatten();
    let found = children.filter_map(|entry| {
        let text =
            |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let status = text("status");
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        let is_it = !has_ended(&status) && parent.trim() == broker;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (is_it && text("cmdline").contains(words)).then_some(Pid::from_raw(pid)?)
    });
    found.collect()
}

/// Whether a process has ended, by its `/proc/PID/status`; nobody may have waited for it yet.
pub fn has_ended(status: &str) -> bool {
    status.is_empty() || status.contains("State:\tZ")
}

/// Whether a helper or a getter waits for its first job: it has given up what it may not have, and ends with its broker from there on.
pub fn is_confined(child: Pid) -> bool {
    let status = format!("/proc/{}/status", child.as_raw_nonzero());
    let status = std::fs::read_to_string(status).unwrap_or_default();
    // Nothing that it does between the first and its job sleeps.
    status.contains("NoNewPrivs:\t1") && status.contains("State:\tS")
}

/// How often the threads of a process have gone to sleep or were sent there.
pub fn switches(pid: Pid) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).expect("tasks");
    let status = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("status")).unwrap_or_default()
    };
    let texts: Vec<String> = tasks.flatten().map(status).collect();
    let lines = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| line.contains("ctxt_switches"));
    lines
        .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
        .sum()
}
