//! One run's processes, what they were told and what they answered.
//!
//! A [`World`] is settled when each worker either answered or sleeps in its call: its state is S and it
//! was not scheduled between two looks [`LOOK_GAP`] apart, and its process has no question to the broker open. Nobody guesses how long a
//! call may take.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::script::{Step, Who};

/// Two looks at a sleeper that are this far apart find it asleep in the same call.
const LOOK_GAP: Duration = Duration::from_micros(400);

/// The same with a preloaded library: before its sleep a thread may wait for the broker's answer, which comes by a descriptor of
/// its own.
const LOOK_GAP_PRELOADED: Duration = Duration::from_millis(3);

/// A thread that neither answers nor sleeps for this long counts as one that sleeps.
const RESTLESS: Duration = Duration::from_secs(3);

/// The same where it waits for a processor, or its process asks the broker: its call has not begun. The library of a test waits
/// longer for an answer, so one that never comes is a difference.
const NOT_BEGUN: Duration = Duration::from_secs(12);

/// A process that was told to end has ended within this time, or is killed.
const ENDING: Duration = Duration::from_secs(2);

/// What came back from one call: keys and values in the order of the actor's report.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Reply(pub Vec<(String, String)>);

impl Reply {
    fn parse(text: &str) -> Self {
        let word = |word: &str| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key.to_owned(), value.to_owned())
        };
        Self(text.split_whitespace().map(word).collect())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_str())
    }

    /// The value of a key as a number.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }
}

/// Who answered what since the last quiet point.
pub type Replies = BTreeMap<Who, Reply>;

/// How the processes of a world are started.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The actor.
    pub actor: &'a Path,
    /// LD_PRELOAD.
    pub preload: Option<&'a Path>,
    /// Further environment, for both programs.
    pub environment: &'a [(String, String)],
    /// Where the preloaded library adds up its counters when a process exits.
    pub counters: Option<&'a Path>,
    /// Tells the worlds of one machine apart: gives the address and the prefix of Unix names.
    pub number: u32,
}

struct Process {
    child: Option<Child>,
    pidfd: Option<OwnedFd>,
    pid: u32,
    threads: Vec<u32>,
    commands: PipeWriter,
    answers: PipeReader,
    held: Vec<u8>,
    pending: BTreeSet<char>,
    /// The child's ends of the pipes, until a forked child has opened them by their paths.
    lent: Option<(PipeReader, PipeWriter)>,
    stopped: bool,
}

/// The processes of one run.
pub struct World {
    processes: BTreeMap<char, Process>,
    look_gap: Duration,
    address: String,
    prefix: String,
    ports: HashMap<String, i64>,
    counts: HashMap<String, i64>,
    pub(crate) seen_ports: Vec<i64>,
    pub(crate) buffers: BTreeSet<i64>,
}

/// Whether a process has a Unix socket of the kind `SOCK_SEQPACKET`.
fn has_seqpacket(pid: u32) -> bool {
    let place = format!("/proc/{pid}");
    // Num RefCount Protocol Flags Type St Inode Path.
    let sockets = std::fs::read_to_string(format!("{place}/net/unix")).unwrap_or_default();
    let rows = sockets.lines().map(|row| row.split_whitespace());
    let seqpackets = rows.filter_map(|mut row| (row.nth(4)? == "0005").then(|| row.nth(1))?);
    let seqpackets: BTreeSet<&str> = seqpackets.collect();
    let entries = std::fs::read_dir(format!("{place}/fd"));
    let targets = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().read_link());
    targets.flatten().any(|target| {
        let inode = target
            .to_str()
            .and_then(|name| name.strip_prefix("socket:["));
        inode.is_some_and(|inode| seqpackets.contains(inode.trim_end_matches(']')))
    })
}

impl World {
    /// Starts A and B.
    ///
    /// # Errors
    /// A pipe or a process could not be made.
    pub fn start(launch: &Launch<'_>) -> std::io::Result<Self> {
        let [_, high, middle, low] = launch.number.to_be_bytes();
        let address = format!("127.{}.{middle}.{}", 16 + high % 64, low.max(1));
        let prefix = format!("differential-{}-{}-", std::process::id(), launch.number);
        let mut world = Self {
            processes: BTreeMap::new(),
            look_gap: launch.preload.map_or(LOOK_GAP, |_| LOOK_GAP_PRELOADED),
            address,
            prefix,
            ports: HashMap::new(),
            counts: HashMap::new(),
            seen_ports: vec![0],
            buffers: BTreeSet::new(),
        };
        for name in ['A', 'B'] {
            let (from_us, commands) = pipe()?;
            let (answers, to_us) = pipe()?;
            let mut command = Command::new(launch.actor);
            command
                .stdin(Stdio::from(from_us))
                .stdout(Stdio::from(to_us))
                .env_remove("LD_PRELOAD");
            command.envs(launch.environment.iter().map(|(name, value)| (name, value)));
            command.envs(launch.preload.map(|path| ("LD_PRELOAD", path)));
            command.envs(launch.counters.map(|path| ("WINDLASS_COUNTERS", path)));
            let child = command.spawn()?;
            world
                .processes
                .insert(name, Process::new(Some(child), commands, answers));
        }
        world.until_quiet(&BTreeSet::new(), ENDING);
        Ok(world)
    }

    /// Whether this step's thread is there and has nothing to do.
    pub fn is_free(&self, step: &Step) -> bool {
        let Some(process) = self.processes.get(&step.who.process) else {
            return false;
        };
        match step.verb() {
            "fork" => !self.processes.contains_key(&'C') && process.commands_can_go(),
            "stop" | "kill" => true,
            "cont" => process.stopped,
            _ => process.commands_can_go() && !process.pending.contains(&step.who.thread),
        }
    }

    /// Who has not answered.
    pub fn pending(&self) -> BTreeSet<Who> {
        let of = |(&process, one): (&char, &Process)| {
            one.pending
                .iter()
                .map(move |&thread| Who { process, thread })
                .collect::<Vec<_>>()
        };
        self.processes.iter().flat_map(of).collect()
    }

    /// Gives a step to its thread, which must be free.
    pub fn issue(&mut self, step: &Step) {
        let Who {
            process: name,
            thread,
        } = step.who;
        if step.verb() == "setopt" && step.word(2).ends_with("buf") {
            self.buffers.extend(step.word(3).parse::<i64>().ok());
        }
        let mut words: Vec<String> = step
            .words
            .iter()
            .map(|word| self.meant(step.verb(), word))
            .collect();
        if step.verb() == "fork" {
            words.extend(self.lend_pipes());
        }
        let Some(process) = self.processes.get_mut(&name) else {
            return;
        };
        process.pending.insert(thread);
        match step.verb() {
            "kill" => process.signal(Signal::KILL),
            "stop" | "cont" => {
                process.stopped = step.verb() == "stop";
                process.signal(if process.stopped {
                    Signal::STOP
                } else {
                    Signal::CONT
                });
                process.pending.remove(&thread);
            }
            verb => {
                if verb == "tkill" {
                    process.pending.insert('s');
                }
                process.tell(&format!("{thread} {}", words.join(" ")));
            }
        }
    }

    /// A word as the actor needs it: addresses, ports and counts are this world's own.
    fn meant(&self, verb: &str, word: &str) -> String {
        let port = |name: &str| self.ports.get(name).copied().unwrap_or(1);
        let (address, prefix) = (&self.address, &self.prefix);
        match (verb, word) {
            ("bind", "here") => format!("4:{address}:0"),
            ("bind", "here6") => format!("6:{address}:0"),
            ("bind" | "connect" | "sendto", word) if word.starts_with("u:") => {
                format!("u:{prefix}{}", &word[2..])
            }
            ("connect", word) if word.starts_with("6:") => {
                format!("6:{address}:{}", port(&word[2..]))
            }
            ("connect" | "sendto", word) if self.ports.contains_key(word) || word == "nobody" => {
                format!("4:{address}:{}", port(word))
            }
            (_, word) => match word.strip_prefix('$') {
                Some(name) => self.counts.get(name).copied().unwrap_or(0).to_string(),
                None => word.to_owned(),
            },
        }
    }

    /// Pipes for C, by the paths under which another process opens them.
    fn lend_pipes(&mut self) -> Vec<String> {
        let (Ok((from_us, commands)), Ok((answers, to_us))) = (pipe(), pipe()) else {
            return Vec::new();
        };
        let path = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
        let paths = vec![path(from_us.as_raw_fd()), path(to_us.as_raw_fd())];
        let mut child = Process::new(None, commands, answers);
        child.lent = Some((from_us, to_us));
        self.processes.insert('C', child);
        paths
    }

    /// Remembers what a reply tells this world alone.
    pub fn learn(&mut self, step: &Step, reply: &Reply) {
        if let (Some(port), name) = (reply.number("~port"), step.word(3)) {
            self.ports.insert(name.to_owned(), port);
        }
        if let (Some(filled), name) = (reply.number("~filled"), step.word(3)) {
            self.counts.insert(name.to_owned(), filled);
        }
    }

    /// This world's address and prefix taken out of a text.
    pub(crate) fn anonymous(&self, text: &str) -> String {
        text.replace(&self.address, "here")
            .replace(&self.prefix, "")
    }

    /// Waits until each of `wanted` answered, at most for `patience`, and all others sleep in their calls.
    pub fn until_quiet(&mut self, wanted: &BTreeSet<Who>, patience: Duration) -> Replies {
        let begun = Instant::now();
        let mut start = begun;
        let mut replies = Replies::new();
        let mut wait = Duration::from_micros(300);
        let mut before: Option<(Vec<(char, u64)>, Instant)> = None;
        loop {
            self.collect(wait, &mut replies);
            let pending = self.pending();
            let must = |who: &Who| wanted.contains(who) || who.thread == 'x' || who.thread == 's';
            let is_late = start.elapsed() > RESTLESS && begun.elapsed() < NOT_BEGUN;
            let runs = || self.looks(&pending).iter().any(|(state, _)| *state == 'R');
            if is_late && (runs() || self.asks_broker(&pending)) {
                start = Instant::now();
            }
            if pending.is_empty() || start.elapsed() > RESTLESS {
                break;
            }
            if pending.iter().any(must)
                && start.elapsed() < patience.max(Duration::from_millis(500))
            {
                wait = Duration::from_millis(2);
                continue;
            }
            let now = self.looks(&pending);
            let asleep = now.iter().all(|(state, _)| matches!(state, 'S' | 'T'));
            match &before {
                Some((looks, since)) if asleep && *looks == now => {
                    if since.elapsed() >= self.look_gap
                        && !self.asks_broker(&pending)
                        && !self.collect(Duration::ZERO, &mut replies)
                    {
                        break;
                    }
                }
                _ => before = Some((now, Instant::now())),
            }
            wait = self.look_gap / 2;
        }
        replies
    }

    /// Whether a process with a pending worker has a socket as only questions to the broker have: it is not asleep in its call yet,
    /// and has more descriptors than on the kernel.
    fn asks_broker(&self, pending: &BTreeSet<Who>) -> bool {
        let of = |who: &Who| self.processes.get(&who.process);
        let mut asked = pending.iter().filter_map(of);
        self.look_gap == LOOK_GAP_PRELOADED
            && asked.any(|one| !one.stopped && has_seqpacket(one.pid))
    }

    /// State and number of times on a processor of each pending worker, and first of the thread that
    /// hands it its work: once that one sleeps, the worker was woken.
    fn looks(&self, pending: &BTreeSet<Who>) -> Vec<(char, u64)> {
        let look = |pid: u32, thread: u32| {
            let place = format!("/proc/{pid}/task/{thread}");
            let stat = std::fs::read_to_string(format!("{place}/stat")).ok()?;
            let state = stat.rsplit(") ").next()?.chars().next()?;
            let times = std::fs::read_to_string(format!("{place}/schedstat")).ok()?;
            Some((state, times.split_whitespace().nth(2)?.parse().ok()?))
        };
        let mut looks = Vec::new();
        for who in pending {
            let Some(process) = self.processes.get(&who.process) else {
                continue;
            };
            let worker = who
                .thread
                .to_digit(10)
                .and_then(|index| process.threads.get(index as usize));
            for thread in [Some(&process.pid), worker].into_iter().flatten() {
                looks.push(look(process.pid, *thread).unwrap_or(('S', 0)));
            }
        }
        looks
    }

    /// Takes what answers there are, or the first to come within `wait`; whether there were any.
    fn collect(&mut self, wait: Duration, replies: &mut Replies) -> bool {
        let limit = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let names: Vec<char> = self.processes.keys().copied().collect();
        let mut members: Vec<PollFd<'_>> = self
            .processes
            .values()
            .map(|one| PollFd::new(&one.answers, PollFlags::IN))
            .collect();
        if !matches!(poll(&mut members, Some(&limit)), Ok(count) if count > 0) {
            return false;
        }
        let ready: Vec<bool> = members
            .iter()
            .map(|one| !one.revents().is_empty())
            .collect();
        for (name, _) in names.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            self.read(name, replies);
        }
        true
    }

    fn read(&mut self, name: char, replies: &mut Replies) {
        let Some(process) = self.processes.get_mut(&name) else {
            return;
        };
        let mut block = [0u8; 4096];
        let count = process.answers.read(&mut block).unwrap_or(0);
        if count == 0 {
            process.await_end();
            let ended = Reply::parse("ended=1");
            let left = std::mem::take(&mut process.pending);
            replies.extend(left.into_iter().map(|thread| {
                (
                    Who {
                        process: name,
                        thread,
                    },
                    ended.clone(),
                )
            }));
            self.processes.remove(&name);
            return;
        }
        process.held.extend_from_slice(&block[..count]);
        while let Some(end) = process.held.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = process.held.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).into_owned();
            let (thread, text) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            let reply = Reply::parse(text);
            process.greet(&reply);
            let thread = thread.chars().next().unwrap_or('?');
            if process.pending.remove(&thread) {
                replies.insert(
                    Who {
                        process: name,
                        thread,
                    },
                    reply,
                );
            }
        }
    }

    /// Ends all processes: by their own exit, so that they write their counters, else by SIGKILL.
    pub fn end(mut self, politely: bool) {
        for process in self.processes.values_mut() {
            match politely && process.pid != 0 && !process.stopped {
                true => process.tell("x exit"),
                false => process.signal(Signal::KILL),
            }
        }
        let children: Vec<Process> = std::mem::take(&mut self.processes).into_values().collect();
        children
            .into_iter()
            .for_each(|mut process| process.await_end());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            process.signal(Signal::KILL);
            process.await_end();
        }
    }
}

impl Process {
    /// A process that has not said hello yet.
    fn new(child: Option<Child>, commands: PipeWriter, answers: PipeReader) -> Self {
        Self {
            child,
            pidfd: None,
            pid: 0,
            threads: Vec::new(),
            commands,
            answers,
            held: Vec::new(),
            pending: BTreeSet::from(['x']),
            lent: None,
            stopped: false,
        }
    }

    fn commands_can_go(&self) -> bool {
        !self.stopped && self.pid != 0 && !self.pending.contains(&'x')
    }

    fn tell(&mut self, line: &str) {
        // A process that has just died is found by the end of its answers.
        let _ = self.commands.write_all(format!("{line}\n").as_bytes());
    }

    /// A process that starts, or started anew by exec, says who it is; its threads are new then.
    fn greet(&mut self, reply: &Reply) {
        let Some(pid) = reply.number("~pid") else {
            return;
        };
        self.pid = pid as u32;
        let threads = reply.get("~threads").unwrap_or("");
        self.threads = threads
            .split(',')
            .filter_map(|id| id.parse().ok())
            .collect();
        self.pending.retain(|&thread| thread == 'x');
        self.pidfd =
            Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.lent = None;
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            // It may have ended already.
            let _ = kill_process(pid, signal);
        } else if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }

    /// Waits until the process has ended, which is when its descriptors are closed.
    fn await_end(&mut self) {
        let limit = Timespec {
            tv_sec: ENDING.as_secs() as i64,
            tv_nsec: 0,
        };
        if let Some(pidfd) = self.pidfd.take() {
            let ended = |limit| {
                let mut members = [PollFd::new(&pidfd, PollFlags::IN)];
                matches!(poll(&mut members, Some(limit)), Ok(count) if count > 0)
            };
            if !ended(&limit) {
                self.signal(Signal::KILL);
                ended(&limit);
            }
        }
        if let Some(mut child) = self.child.take() {
            if self.pid == 0 {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        self.pid = 0;
    }
}
