//! An actor: a plain program that makes the socket calls that it is told to, and says what came back.
//!
//! It is linked dynamically and calls the C library by name, so that whatever is preloaded is in the
//! way, as with any program. Commands come as lines on a pipe, answers go as lines on another; both
//! lie on high numbers, so that the numbers of the script's descriptors are those of any program, and
//! both are used by bare system calls that no library sees.
//!
//! One thread (`x`) reads commands, hands each to the worker (`0`, `1`, `2`) that it names, and itself
//! does what must be possible while all workers sit in calls: fork, exec, exit, signals. A worker does one
//! command at a time and answers when the call returned, which may be much later.

mod calls;
mod look;
mod make;
mod raw;
mod report;
mod signals;
mod transfer;

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use calls::Fd;
use report::{Arguments, Report};

/// Workers of each process.
const WORKERS: usize = 3;

/// Control pipes lie from here on: above what a script's descriptors reach.
const CONTROL_FIRST: Fd = 800;

/// What a worker has to do.
#[derive(Default)]
struct Queue {
    lines: Mutex<VecDeque<String>>,
    filled: Condvar,
    thread: AtomicI32,
}

/// One process: names of descriptors, control pipes, workers.
pub(crate) struct Actor {
    names: Mutex<BTreeMap<String, Fd>>,
    commands: Fd,
    answers: Fd,
    queues: [Queue; WORKERS],
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Actor {
    fn new(commands: Fd, answers: Fd, names: BTreeMap<String, Fd>) -> Arc<Self> {
        let names = Mutex::new(names);
        Arc::new(Self {
            names,
            commands,
            answers,
            queues: Default::default(),
        })
    }

    /// The number that a name of the script stands for; -1 for one that was never made.
    pub(crate) fn fd(&self, name: &str) -> Fd {
        locked(&self.names).get(name).copied().unwrap_or(-1)
    }

    /// Gives a name to a number.
    pub(crate) fn set(&self, name: &str, fd: Fd) {
        locked(&self.names).insert(name.to_owned(), fd);
    }

    fn say(&self, thread: &str, text: &str) {
        let line = format!("{thread} {}\n", text.trim());
        calls::raw_write(self.answers, line.as_bytes());
    }

    /// Starts the workers, says who is there, and reads commands until the pipe ends.
    fn serve(self: &Arc<Self>) {
        signals::answer_on(self.answers);
        for index in 0..WORKERS {
            let actor = Arc::clone(self);
            std::thread::spawn(move || actor.work(index));
        }
        let workers: Vec<String> = self
            .queues
            .iter()
            .map(|queue| {
                while queue.thread.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                queue.thread.load(Ordering::Acquire).to_string()
            })
            .collect();
        let ids = workers.join(",");
        self.say(
            "x",
            &format!("hello=1 ~pid={} ~threads={ids}", std::process::id()),
        );
        let mut held = Vec::new();
        let mut block = [0u8; 4096];
        loop {
            let read = calls::raw_read(self.commands, &mut block).value;
            if read <= 0 {
                calls::exit(0);
            }
            held.extend_from_slice(&block[..read as usize]);
            while let Some(end) = held.iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(&held[..end]).into_owned();
                held.drain(..=end);
                self.dispatch(&line);
            }
        }
    }

    fn dispatch(self: &Arc<Self>, line: &str) {
        let (thread, rest) = line.split_once(' ').unwrap_or((line, ""));
        match thread
            .parse::<usize>()
            .ok()
            .and_then(|index| self.queues.get(index))
        {
            Some(queue) => {
                locked(&queue.lines).push_back(rest.to_owned());
                queue.filled.notify_one();
            }
            None => self.control(&rest.split_whitespace().collect::<Vec<_>>()),
        }
    }

    fn work(&self, index: usize) {
        let queue = &self.queues[index];
        queue.thread.store(calls::thread_id(), Ordering::Release);
        loop {
            let mut lines = locked(&queue.lines);
            let line = loop {
                match lines.pop_front() {
                    Some(line) => break line,
                    None => {
                        lines = queue
                            .filled
                            .wait(lines)
                            .unwrap_or_else(PoisonError::into_inner)
                    }
                }
            };
            drop(lines);
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut report = Report::default();
            let pipes = signals::pipes();
            self.run(&Arguments(&words), &mut report);
            if signals::pipes() != pipes {
                report.put("sigpipe", signals::pipes() - pipes);
            }
            self.say(&index.to_string(), report.text());
        }
    }

    fn run(&self, words: &Arguments, report: &mut Report) {
        let known = make::run(self, words, report)
            || transfer::run(self, words, report)
            || look::run(self, words, report)
            || signals::run(self, words, report);
        if !known {
            report.put("unknown", words.word(0));
        }
    }

    /// What thread `x` does itself.
    fn control(self: &Arc<Self>, words: &[&str]) {
        let words = Arguments(words);
        let mut report = Report::default();
        match words.word(0) {
            "fork" => self.fork(words.word(1), words.word(2), &mut report),
            "exec" => self.exec(words.word(1), &mut report),
            "tkill" => {
                let queue = self.queues.get(words.number(1) as usize);
                let thread = queue.map_or(0, |queue| queue.thread.load(Ordering::Acquire));
                report.answer(calls::signal_thread(thread, libc::SIGUSR1));
            }
            "exit" => calls::exit(0),
            other => report.put("unknown", other),
        }
        self.say("x", report.text());
    }

    /// The child opens the pipes that it is given the paths of, and serves them.
    fn fork(self: &Arc<Self>, commands: &str, answers: &str, report: &mut Report) {
        let open = |path: &str, write: bool| {
            let file = std::fs::OpenOptions::new()
                .read(!write)
                .write(write)
                .open(path);
            file.map(high).unwrap_or(-1)
        };
        let pid = calls::fork();
        if pid != 0 {
            report.put("forked", u8::from(pid > 0));
            return;
        }
        calls::close(self.commands);
        calls::close(self.answers);
        let (commands, answers) = (open(commands, false), open(answers, true));
        Self::new(commands, answers, locked(&self.names).clone()).serve();
    }

    /// Becomes a new image of this program, with or without what was preloaded.
    fn exec(&self, how: &str, report: &mut Report) {
        let c = |text: &str| CString::new(text).unwrap_or_default();
        let names = locked(&self.names)
            .iter()
            .map(|(name, fd)| format!("{name}={fd}"))
            .collect::<Vec<_>>();
        let kept = [
            self.commands.to_string(),
            self.answers.to_string(),
            names.join(","),
        ]
        .map(|text| c(&text));
        let program = std::env::current_exe().unwrap_or_default();
        let program = c(&program.to_string_lossy());
        let environment: Vec<CString> = std::env::vars()
            .filter(|(name, _)| how != "plain" || name != "LD_PRELOAD")
            .map(|(name, value)| c(&format!("{name}={value}")))
            .collect();
        let arguments: [&CStr; 4] = [c"actor", &kept[0], &kept[1], &kept[2]];
        report.answer(calls::exec(&program, &arguments, &environment));
    }
}

/// A copy of an open file above the numbers of scripts; the file itself is closed.
fn high(file: impl std::os::fd::AsRawFd) -> Fd {
    calls::fcntl(file.as_raw_fd(), libc::F_DUPFD, CONTROL_FIRST).value as Fd
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    signals::count_pipes();
    if let [_, commands, answers, names] = arguments.as_slice() {
        let number = |text: &str| text.parse().unwrap_or(-1);
        let named = names.split(',').filter_map(|one| one.split_once('='));
        let names = named
            .map(|(name, fd)| (name.to_owned(), number(fd)))
            .collect();
        Actor::new(number(commands), number(answers), names).serve();
    }
    let (commands, answers) = (high(std::io::stdin()), high(std::io::stdout()));
    if let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let null = std::os::fd::AsRawFd::as_raw_fd(&null);
        calls::dup2(null, 0);
        calls::dup2(null, 1);
    }
    Actor::new(commands, answers, BTreeMap::new()).serve();
}
