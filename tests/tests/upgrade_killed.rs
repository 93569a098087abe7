//! Either side of an upgrade is killed at each step of it.
//!
//! The daemon is started from a script that has this test program become the daemon. What an upgrade starts is
//! [`between`] then, which starts the successor, and passes on what the two say. It hears each message before the receiver does,
//! so that a kill comes at a step and not at a time.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

mod client;
mod machine;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use windlass_sys::IoSlice;
use windlass_sys::unix::{FDS_MAX, SocketKind, inherited, pair, receive_with_fds, send_with_fds};
use windlass_tests::{Daemon, Frame, Lab, copy_program, frame, mac, program, until, write_program};

use client::Client;
use machine::Machine;
use vhost_drive::{HEADER, HIGH, Layout};

const NAMES: [&str; 2] = ["predecessor", "successor"];
const PREDECESSOR: usize = 0;
const SUCCESSOR: usize = 1;

/// What is said in an upgrade: by whom, and the first byte.
const STEPS: [&str; 12] = [
    "successor 1", // It is ready.
    "predecessor l",
    "predecessor t", // A TAP, and another one.
    "predecessor t",
    "predecessor t", // A guest, and another one.
    "predecessor t",
    "predecessor a",
    "successor 1", // It has taken all.
    "predecessor g",
    "successor 1", // It serves.
    "predecessor c",
    "predecessor end",
];
/// How often the successor speaks. A predecessor that has heard it so often has given its place up.
const ANSWERS: usize = 3;

/// Who is to be killed, and when: once so many messages were heard, before the last of them is passed on, or so long after.
#[derive(Clone, Copy, Debug)]
struct Plan {
    victim: usize,
    heard: usize,
    after: Option<Duration>,
}

impl Plan {
    const NOBODY: Plan = Plan {
        victim: SUCCESSOR,
        heard: usize::MAX,
        after: None,
    };

    fn write(self, lab: &Lab) {
        let after = self.after.map(|after| after.as_micros().to_string());
        let after = after.unwrap_or_default();
        let text = format!("{} {} {after}", self.victim, self.heard);
        fs::write(lab.directory().join("plan"), text).expect("a plan");
    }

    fn of_text(text: &str) -> Plan {
        let words: Vec<&str> = text.split(' ').collect();
        Plan {
            victim: words[0].parse().expect("a side"),
            heard: words[1].parse().expect("a number"),
            after: words[2].parse().ok().map(Duration::from_micros),
        }
    }
}

/// Not a test: what stands between a daemon and its successor.
#[test]
#[ignore = "run by killed_at_each_step as windlassd"]
fn between() {
    let get = |name| std::env::var(name).expect("it is run by a test");
    let (directory, words) = (PathBuf::from(get("KILLED_DIR")), get("KILLED_WORDS"));
    let mut daemon = Command::new(directory.join("real"));
    daemon.arg0(directory.join("windlassd"));
    daemon.args(words.split_whitespace());
    if !words.ends_with("--successor") {
        panic!("{}", daemon.exec());
    }
    let plan = fs::read_to_string(directory.join("plan")).expect("a plan");
    let passed = Between::start(daemon).pass_on(Plan::of_text(&plan));
    fs::write(directory.join("new"), passed.join("\n")).expect("a report");
    fs::rename(directory.join("new"), directory.join("passed")).expect("a report");
}

/// The two sides, each at its place in [`NAMES`].
struct Between {
    processes: [OwnedFd; 2],
    sockets: [OwnedFd; 2],
    /// The successor was.
    is_killed: Cell<bool>,
}

impl Between {
    fn start(mut daemon: Command) -> Between {
        let predecessor = getppid().expect("a parent");
        let upper = inherited(0).expect("a socket");
        let (lower, theirs) = pair(SocketKind::SeqPacket).expect("a pair");
        for socket in [&lower, &theirs] {
            ioctl_fionbio(socket, false).expect("a socket");
        }
        let child = daemon.stdin(Stdio::from(theirs)).spawn();
        let successor = Pid::from_child(&child.expect("a successor"));
        // What the command has of it is closed.
        drop(daemon);
        let processes = [predecessor, successor];
        Between {
            processes: processes.map(|pid| pidfd_open(pid, PidfdFlags::empty()).expect("it runs")),
            sockets: [upper, lower],
            is_killed: Cell::new(false),
        }
    }

    /// Passes messages on until one of the two has ended. Gives those that were.
    fn pass_on(self, plan: Plan) -> Vec<String> {
        let mut passed = Vec::new();
        let mut bytes = vec![0; 64 << 10];
        if plan.heard == 0 {
            std::thread::sleep(plan.after.unwrap_or_default());
            self.kill(plan.victim);
            return passed;
        }
        loop {
            let (from, said, fds) = self.hear(&mut bytes);
            let is_time = passed.len() + 1 == plan.heard;
            if is_time && plan.after.is_none() {
                self.kill(plan.victim);
                return passed;
            }
            let kind = match said {
                [] => "end".to_owned(),
                [1, ..] => "1".to_owned(),
                [kind, ..] => char::from(*kind).to_string(),
            };
            passed.push(format!("{} {kind}", NAMES[from]));
            if said.is_empty() {
                return passed;
            }
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            // To one that was killed meanwhile in vain.
            let _ = send_with_fds(&self.sockets[1 - from], &[IoSlice::new(said)], &fds);
            if is_time && let Some(after) = plan.after {
                std::thread::sleep(after);
                self.kill(plan.victim);
            }
        }
    }

    /// The next message, and from whom; empty if that one has ended.
    fn hear<'a>(&self, bytes: &'a mut [u8]) -> (usize, &'a [u8], Vec<OwnedFd>) {
        let mut both = self
            .sockets
            .each_ref()
            .map(|fd| PollFd::new(fd, PollFlags::IN));
        // A successor that was killed says nothing more, and its predecessor does not wait for it to end.
        let now = Timespec::default();
        let wait = self.is_killed.get().then_some(&now);
        if poll(&mut both, wait).expect("a message") == 0 {
            return (SUCCESSOR, &[], Vec::new());
        }
        let from = usize::from(both[0].revents().is_empty());
        match receive_with_fds(&self.sockets[from], bytes, FDS_MAX) {
            Ok(message) => (from, &bytes[..message.bytes], message.fds),
            Err(_) => (from, &[], Vec::new()),
        }
    }

    /// From then on it does nothing; returns when a predecessor has ended.
    fn kill(&self, victim: usize) {
        self.is_killed.set(victim == SUCCESSOR);
        let victim = &self.processes[victim];
        // It may have ended.
        let _ = pidfd_send_signal(victim, Signal::KILL);
        if self.is_killed.get() {
            return;
        }
        let mut ended = [PollFd::new(victim, PollFlags::IN)];
        poll(&mut ended, None).expect("it ends");
    }
}

/// How many descriptors a process has of each kind, but for the standard ones.
fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs") {
        let entry = entry.expect("an entry");
        let is_standard = ["0", "1", "2"]
            .iter()
            .any(|name| entry.file_name() == *name);
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        let has_number = !target.starts_with('/') || target.starts_with("/proc/");
        let kind = target
            .chars()
            .filter(|c| !has_number || !c.is_ascii_digit());
        if !is_standard {
            *kinds.entry(kind.collect()).or_default() += 1;
        }
    }
    kinds
}

/// Sockets and directories below a directory, by path.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        }
        if kind.is_dir() || kind.is_socket() {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Processes that run a program.
fn processes(program: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let exe = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe"));
    pids.filter(|pid| exe(pid).is_ok_and(|exe| exe == program))
        .collect()
}

/// How long after the one before it a frame may come.
const LATE: Duration = Duration::from_millis(300);

/// The numbers of frames that were sent, and that came, in this order.
struct Traffic {
    sent: Range<u64>,
    came: Vec<u64>,
}

impl std::fmt::Debug for Traffic {
    /// Those that are missing, and the first that comes out of turn with those around it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let came: BTreeSet<u64> = self.came.iter().copied().collect();
        let missing: Vec<_> = self.sent.clone().filter(|n| !came.contains(n)).collect();
        write!(f, "of {:?} {missing:?} lost", self.sent)?;
        let mut both = self.came.iter().zip(self.sent.start..);
        match both.position(|(number, expected)| *number != expected) {
            None => Ok(()),
            Some(at) => {
                let around = at.saturating_sub(3)..self.came.len().min(at + 40);
                write!(f, ", out of turn: {:?}", &self.came[around])
            }
        }
    }
}

impl Traffic {
    /// All that were sent came, in order.
    fn is_whole(&self) -> bool {
        self.came.iter().copied().eq(self.sent.clone())
    }

    /// All that were sent came, some perhaps twice.
    fn is_complete(&self) -> bool {
        let came: BTreeSet<u64> = self.came.iter().copied().collect();
        came.into_iter().eq(self.sent.clone())
    }
}

/// Numbered datagrams from one namespace to another.
struct Flow {
    from: UdpSocket,
    to: UdpSocket,
    next: u64,
}

impl Flow {
    /// Sends while something is done.
    fn run(&mut self, work: impl FnOnce()) -> Traffic {
        let (first, is_over, end) = (self.next, AtomicBool::new(false), AtomicU64::new(u64::MAX));
        let (from, to, is_over, end) = (&self.from, &self.to, &is_over, &end);
        let send = move || {
            let mut number = first;
            while !is_over.load(Ordering::Acquire) {
                // Without a daemon the kernel may refuse it.
                let _ = from.send(&number.to_le_bytes());
                number += 1;
                std::thread::sleep(Duration::from_micros(500));
            }
            number
        };
        let receive = move || {
            let (mut came, mut bytes, mut last) = (Vec::new(), [0; 8], Instant::now());
            loop {
                if to.recv(&mut bytes).is_ok() {
                    let number = u64::from_le_bytes(bytes);
                    // Before that: late in the round before.
                    came.extend(Some(number).filter(|number| *number >= first));
                    last = Instant::now();
                }
                let end = end.load(Ordering::Acquire);
                let is_last = came.last().is_some_and(|number| number + 1 == end);
                if is_last || end != u64::MAX && last.elapsed() > LATE {
                    return came;
                }
            }
        };
        std::thread::scope(|scope| {
            let (sender, receiver) = (scope.spawn(send), scope.spawn(receive));
            work();
            is_over.store(true, Ordering::Release);
            self.next = sender.join().expect("sent");
            end.store(self.next, Ordering::Release);
            let came = receiver.join().expect("received");
            let sent = first..self.next;
            Traffic { sent, came }
        })
    }
}

const ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// Numbered frames from one guest to another.
struct Guests {
    machines: [Machine; 2],
    sockets: [PathBuf; 2],
    layout: Layout,
    next: u64,
}

impl Guests {
    /// Frames that may be under way.
    const WINDOW: u64 = 32;

    fn start(daemon: &Daemon, layout: Layout) -> Guests {
        let sockets = ["v0", "v1"].map(|name| daemon.directory().join(name));
        for ((name, socket), address) in ["v0", "v1"].iter().zip(&sockets).zip(ADDRESSES) {
            let attach = format!("vhost-user,socket={},role=server", socket.display());
            daemon.must(&format!(
                "vnic create {name} --bridge br0 --mac {address} --attach {attach}"
            ));
        }
        Guests {
            machines: sockets
                .each_ref()
                .map(|socket| Guests::machine(socket, layout)),
            sockets,
            layout,
            next: 0,
        }
    }

    fn machine(socket: &Path, layout: Layout) -> Machine {
        let mut machine = Machine::start(socket, layout, 0);
        machine.takes_empty = true;
        machine
    }

    fn are_connected(&self) -> bool {
        !self
            .machines
            .iter()
            .any(|machine| machine.front.is_closed())
    }

    /// Those whose connection has ended connect again.
    fn connect_again(&mut self, daemon: &Daemon) {
        let closed = self.machines.each_ref().map(|m| m.front.is_closed());
        for (at, name) in ["v0", "v1"].into_iter().enumerate() {
            if closed[at] {
                self.machines[at] = Guests::machine(&self.sockets[at], self.layout);
                daemon.wait_for_state("vnic", name, "up");
            }
        }
    }

    fn offer(&mut self, number: u64) {
        let text = number.to_string();
        let bytes = frame(mac(ADDRESSES[1]), mac(ADDRESSES[0]), &[], &text);
        let id = (number % (2 * Self::WINDOW)) as u16;
        let at = HIGH + 0x80_0000 + u64::from(id) * 4096;
        let machine = &mut self.machines[0];
        machine.guest.write(at, &[&[0; HEADER], &*bytes].concat());
        let queue = &mut machine.queues[1];
        queue
            .ring
            .offer_one(id, at, (HEADER + bytes.len()) as u32, 0);
        windlass_sys::eventfd::signal(&queue.kick).expect("kicked");
    }

    /// Sends until `is_over`, which is told how many were sent, or a connection has ended.
    fn run(&mut self, is_over: impl Fn(u64) -> bool) -> Traffic {
        let first = self.next;
        let (mut came, mut next, mut last) = (Vec::new(), first, Instant::now());
        loop {
            let is_over = is_over(self.next - first) || !self.are_connected();
            let is_last = next == self.next;
            if is_over && (is_last || last.elapsed() > LATE) {
                let sent = first..self.next;
                return Traffic { sent, came };
            }
            if !is_over && last.elapsed() > LATE {
                // What is under way does not come any more.
                next = self.next;
            }
            while !is_over && self.next < next + Self::WINDOW {
                self.machines[0].queues[1].ring.reap();
                self.offer(self.next);
                self.next += 1;
            }
            for (_, bytes) in self.machines[1].received() {
                let text = Frame(bytes).text().unwrap_or_default();
                // Others are for everybody.
                if let Ok(number) = text.parse::<u64>()
                    && number >= first
                {
                    came.push(number);
                    (next, last) = (next.max(number + 1), Instant::now());
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// What is on the host of a daemon, and has to be the same after each round.
#[derive(Clone, Debug, PartialEq)]
struct Host {
    descriptors: BTreeMap<String, usize>,
    files: Vec<PathBuf>,
    document: Vec<u8>,
    /// Numbers and addresses.
    interfaces: [String; 2],
    /// Only the daemon itself.
    is_alone: bool,
}

struct Bench {
    lab: Lab,
    daemon: Daemon,
    /// The program of all daemons.
    real: PathBuf,
    flow: Flow,
    guests: Guests,
    memif: Client,
    host: Option<Host>,
}

impl Bench {
    fn start(name: &str, layout: Layout) -> Option<Bench> {
        let lab = Lab::start(name)?;
        let directory = lab.directory().to_owned();
        let real = directory.join("real");
        copy_program(&program("windlassd"), &real);
        let script = directory.join("windlassd");
        let text = format!(
            "#!/bin/sh\nKILLED_DIR={} KILLED_WORDS=\"$*\" exec {} --exact between --ignored --nocapture\n",
            directory.display(),
            std::env::current_exe().expect("a path").display()
        );
        write_program(&script, &text);
        let daemon = Daemon::start_program(&lab, "host", 0, script);
        daemon.must("bridge create br0");
        let [from, to] = [("a", "10.0.0.1"), ("b", "10.0.0.2")].map(|(short, address)| {
            lab.namespace(short);
            daemon.tap(&lab, short, short, &format!(",address={address}/24"), "");
            lab.within(short, || {
                UdpSocket::bind((address, 5302)).expect("an address")
            })
        });
        from.connect("10.0.0.2:5302").expect("an address");
        let wait = Duration::from_millis(5);
        to.set_read_timeout(Some(wait)).expect("a socket");
        daemon.must("vnic create m0 --bridge br0 --attach memif,socket=memif,role=server");
        let socket = daemon.runtime_dir().join("zones/global/memif");
        let guests = Guests::start(&daemon, layout);
        let mut bench = Bench {
            flow: Flow { from, to, next: 0 },
            guests,
            memif: Client::start(socket, 0),
            host: None,
            lab,
            daemon,
            real,
        };
        for name in ["v0", "v1"] {
            bench.daemon.wait_for_state("vnic", name, "up");
        }
        // The kernel asks for the neighbour first, and may let what comes meanwhile overtake what waits.
        assert!(bench.lab.ping("a", "10.0.0.2", 3));
        bench.upgrade();
        bench.host = bench.least();
        Some(bench)
    }

    fn look(&self, pid: u32) -> Host {
        let directory = self.daemon.directory();
        Host {
            descriptors: descriptors(pid),
            files: files(directory),
            document: fs::read(directory.join("state/document.json")).expect("a document"),
            interfaces: ["a", "b"].map(|short| self.lab.ip(short, "-o address show")),
            is_alone: processes(&self.real) == [pid],
        }
    }

    /// Without the connection that has asked, which is being closed.
    fn least(&self) -> Option<Host> {
        let pid = self.daemon.pid();
        let readings = (0..10).map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            self.look(pid)
        });
        readings.min_by_key(|host| host.descriptors.values().sum::<usize>())
    }

    /// Frames pass, and nothing was changed or left behind.
    fn check(&mut self) {
        let passes = self.lab.ping("a", "10.0.0.2", 3);
        assert!(passes, "{}", self.daemon.log());
        self.guests.connect_again(&self.daemon);
        self.connect_memif();
        let traffic = self.guests.run(|sent| sent >= 2 * Guests::WINDOW);
        assert!(traffic.is_whole(), "{traffic:?}, {}", self.daemon.log());
        let pid = self.daemon.pid();
        let mut host = None;
        let is_as_before = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            host = Some(self.look(pid));
            host == self.host
        });
        assert!(is_as_before, "{host:#?}\nbefore: {:#?}", self.host);
    }

    /// Sends between namespaces and between guests while something is done with the daemon.
    fn while_frames_pass(&mut self, work: impl FnOnce(&mut Daemon, &Lab)) -> [Traffic; 2] {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let guests = scope.spawn(|| self.guests.run(|_| is_over.load(Ordering::Acquire)));
            let flow = self.flow.run(|| work(&mut self.daemon, &self.lab));
            is_over.store(true, Ordering::Release);
            [flow, guests.join().expect("sent")]
        })
    }

    /// An upgrade in which nobody is killed.
    fn upgrade(&mut self) {
        Plan::NOBODY.write(&self.lab);
        let traffic = self.while_frames_pass(|daemon, _| daemon.upgrade());
        assert_eq!(passed(&self.lab), STEPS);
        assert!(traffic.iter().all(Traffic::is_whole), "{traffic:?}");
        assert!(self.guests.are_connected());
        self.connect_memif();
    }

    /// At once, where the client would wait for longer from try to try.
    fn connect_memif(&mut self) {
        if !self.memif.is_up() {
            let socket = self.daemon.runtime_dir().join("zones/global/memif");
            self.memif = Client::start(socket, 0);
            until("the memif is connected", || self.memif.is_up());
        }
    }

    fn round(&mut self, plan: Plan) {
        let (pid, connects) = (self.daemon.pid(), self.memif.connects);
        let (mut serves_on, mut has_forwarded) = (false, false);
        plan.write(&self.lab);
        let traffic = self.while_frames_pass(|daemon, lab| {
            daemon.signal_upgrade();
            let passed = passed(lab);
            println!("{plan:?}: {passed:?}");
            if plan.after.is_none() {
                assert_eq!(passed, STEPS[..plan.heard.saturating_sub(1)]);
            }
            has_forwarded = passed.iter().any(|said| said == "predecessor g");
            let answers = passed.iter().filter(|said| *said == "successor 1");
            serves_on = plan.victim == SUCCESSOR && answers.count() < ANSWERS;
            if serves_on {
                let is_it = || daemon.try_do("bridge show").code == 0 && daemon.pid() == pid;
                until("it serves on", is_it);
            } else if plan.victim == SUCCESSOR {
                daemon.wait_for_end();
                daemon.start_again();
            } else {
                daemon.follow();
            }
        });
        if serves_on {
            let [flow, guests] = &traffic;
            assert!(self.guests.are_connected());
            assert!(self.memif.is_up() && self.memif.connects == connects);
            // Of what was being forwarded, a burst of a namespace may be lost, and one of a guest may come twice.
            assert!(has_forwarded || flow.is_whole(), "{flow:?}");
            assert!(has_forwarded || guests.is_whole(), "{guests:?}");
            assert!(guests.is_complete(), "{guests:?}");
        }
        self.check();
        if serves_on {
            self.upgrade();
        }
    }
}

/// What was passed on.
fn passed(lab: &Lab) -> Vec<String> {
    let path = lab.directory().join("passed");
    until("one is killed, or both have ended", || path.exists());
    let passed = fs::read_to_string(&path).expect("a report");
    fs::remove_file(&path).expect("it was there");
    passed.lines().map(ToOwned::to_owned).collect()
}

/// Killed at whichever step, a successor leaves the place to its predecessor, which serves on without a loss, with the same guests, and
/// can be upgraded again, or, once it has said that it serves, to a fresh start; a predecessor leaves it to its successor. Namespaces
/// keep their TAPs, the document stays, and no descriptor, socket or process is left behind.
#[test]
fn killed_at_each_step() {
    let Some(mut bench) = Bench::start("killed_at_each_step", Layout::Packed) else {
        return;
    };
    bench.check();
    for victim in [SUCCESSOR, PREDECESSOR] {
        // The predecessor has ended when its end is heard.
        for heard in 0..STEPS.len() + victim {
            bench.round(Plan {
                victim,
                heard,
                after: None,
            });
        }
    }
}

/// The same at instants within the steps: a message was passed on, and its receiver is at work. `WINDLASS_SEED` has others,
/// `WINDLASS_SEEDS` sets their number.
#[test]
fn killed_within_steps() {
    let Some(mut bench) = Bench::start("killed_within_steps", Layout::Split) else {
        return;
    };
    let number = |name, otherwise| {
        let text = std::env::var(name);
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let seed: u64 = number("WINDLASS_SEED", 1);
    for seed in (seed..).take(number("WINDLASS_SEEDS", 10) as usize) {
        let word = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draw = |shift: u32, below: u64| (word >> shift) % below;
        // Both get ready for some milliseconds before the first message.
        let longest = if draw(24, 10) == 0 { 16 } else { 13 };
        bench.round(Plan {
            victim: draw(56, 2) as usize,
            heard: draw(24, STEPS.len() as u64) as usize,
            after: Some(Duration::from_micros(1 << draw(40, longest))),
        });
    }
}
