//! A windlassd of our own, beside any other on this host.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::child::{Child, run};
use super::host::Scratch;
use super::peers::{READY_WITHIN, check_programs};
use super::stop;

/// A daemon that was told to end has this long, a successor of its own getting ready included.
const END_WITHIN: Duration = Duration::from_secs(15);

/// So long one look lasts at whether it has ended.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A running daemon.
pub struct Daemon {
    child: Child,
    /// What an upgrade has put in the place of the child, which has ended.
    successor: Option<Successor>,
    daemon: Command,
    log: PathBuf,
    command: PathBuf,
    socket: PathBuf,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// SIGKILL, and a start as soon as it has ended.
    Kill,
    /// SIGTERM, and a start as soon as it has ended.
    Restart,
    /// SIGUSR2: it starts its successor by itself.
    Upgrade,
}

/// It ends when this is dropped.
struct Successor(OwnedFd);

impl Drop for Successor {
    fn drop(&mut self) {
        // One that has ended needs no signal.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

fn pid_of(number: u32) -> Result<Pid> {
    Pid::from_raw(number.cast_signed()).context("no process id")
}

#[derive(Deserialize)]
struct Status {
    daemon: Process,
}

#[derive(Deserialize)]
struct Process {
    pid: u32,
}

/// What `windlass worker show --json` says of one worker, as far as it matters here.
#[derive(Deserialize)]
struct Worker {
    cycles_busy: u64,
    frames: u64,
}

/// Likewise of `windlass vnic show --json`.
#[derive(Deserialize)]
struct Vnic {
    counters: Counters,
}

#[derive(Deserialize)]
struct Counters {
    #[serde(default)]
    drops: BTreeMap<String, u64>,
}

impl Daemon {
    /// Starts one with an empty configuration and a worker on each of `cores`; without any, one that is not
    /// pinned.
    ///
    /// # Errors
    /// If it was not built or does not come up.
    pub fn start(programs: &Path, scratch: &Scratch, cores: &[usize]) -> Result<Daemon> {
        Daemon::start_in(scratch.path(), programs, cores)
    }

    /// The same with its files in a directory of its own, which is made: several run beside each other.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_in(directory: &Path, programs: &Path, cores: &[usize]) -> Result<Daemon> {
        check_programs(programs, &["windlassd", "windlass"])?;
        let socket = directory.join("windlass.sock");
        let state = directory.join("windlass-state");
        for path in [&socket, &state] {
            // Whatever an earlier turn left: this one begins empty.
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_dir_all(path);
        }
        std::fs::create_dir_all(&state)?;
        let mut daemon = Command::new(programs.join("windlassd"));
        daemon.arg("--socket").arg(&socket);
        daemon.arg("--state-dir").arg(&state);
        daemon
            .arg("--runtime-dir")
            .arg(directory.join("windlass-run"));
        if !cores.is_empty() {
            let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
            daemon.arg("--workers").arg(cores.join(","));
        }
        let log = directory.join("windlassd.log");
        let child = Child::start(&mut daemon, &log)?;
        // The socket is there a moment before it is listened on.
        stop::until("the answer of windlassd", READY_WITHIN, || {
            UnixStream::connect(&socket).ok()
        })?;
        Ok(Daemon {
            child,
            successor: None,
            daemon,
            log,
            command: programs.join("windlass"),
            socket,
        })
    }

    /// Ends it and has another one in its place at once; what it had of guests that one finds again by itself.
    ///
    /// # Errors
    /// If no other one comes up.
    pub fn replace(&mut self, by: By) -> Result<()> {
        let runs = match &self.successor {
            Some(successor) => successor.0.try_clone()?,
            None => pidfd_open(pid_of(self.child.pid())?, PidfdFlags::empty())?,
        };
        let signal = match by {
            By::Kill => Signal::KILL,
            By::Restart => Signal::TERM,
            By::Upgrade => Signal::USR2,
        };
        pidfd_send_signal(&runs, signal)?;
        stop::until("the end of windlassd", END_WITHIN, || {
            let mut ended = [PollFd::new(&runs, PollFlags::IN)];
            poll(&mut ended, Some(&LOOK))
                .ok()
                .filter(|ready| *ready > 0)
        })?;
        self.successor = None;
        if by == By::Upgrade {
            let text = self.command("status --json")?;
            let [status]: [Status; 1] =
                serde_json::from_str(&text).context("windlass status --json has another form")?;
            let pidfd = pidfd_open(pid_of(status.daemon.pid)?, PidfdFlags::empty())?;
            self.successor = Some(Successor(pidfd));
        } else {
            self.child = Child::start(&mut self.daemon, &self.log)?;
        }
        Ok(())
    }

    /// What was dropped at a VNIC since the daemon has started, by reason.
    ///
    /// # Errors
    /// If the daemon does not tell.
    pub fn drops(&self, vnic: &str) -> Result<BTreeMap<String, u64>> {
        let text = self.command(&format!("vnic show {vnic} --json"))?;
        let vnics: Vec<Vnic> =
            serde_json::from_str(&text).context("windlass vnic show --json has another form")?;
        Ok(vnics
            .into_iter()
            .flat_map(|vnic| vnic.counters.drops)
            .collect())
    }

    /// Runs `windlass` with these words.
    ///
    /// # Errors
    /// If it fails.
    pub fn command(&self, line: &str) -> Result<String> {
        self.command_of(line.split_ascii_whitespace())
    }

    /// The same of words that may have spaces.
    ///
    /// # Errors
    /// If it fails.
    pub fn command_of<'a>(&'a self, words: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let own = [OsStr::new("--socket"), self.socket.as_os_str()];
        let words = words.into_iter().map(OsStr::new);
        let program = self.command.to_string_lossy();
        run(&program, own.into_iter().chain(words))
    }

    /// Starts `windlass` with these words.
    ///
    /// # Errors
    /// If it is not there.
    pub fn start_command(&self, line: &str) -> Result<Child> {
        let log = self.log.with_extension("command.log");
        Child::start(&mut self.command_for(line), &log)
    }

    /// The same with its output in a pipe, to be read by [`Child::output`].
    ///
    /// # Errors
    /// If it is not there.
    pub fn start_piped(&self, line: &str) -> Result<Child> {
        Child::start_piped(self.command_for(line))
    }

    fn command_for(&self, line: &str) -> Command {
        let mut command = Command::new(&self.command);
        command.arg("--socket").arg(&self.socket);
        command.args(line.split_ascii_whitespace());
        command
    }

    /// Busy cycles and frames of all workers so far.
    ///
    /// # Errors
    /// If the daemon does not tell.
    pub fn busy(&self) -> Result<(u64, u64)> {
        let text = self.command("worker show --json")?;
        let workers: Vec<Worker> =
            serde_json::from_str(&text).context("windlass worker show --json has another form")?;
        let cycles = workers.iter().map(|worker| worker.cycles_busy).sum();
        Ok((cycles, workers.iter().map(|worker| worker.frames).sum()))
    }

    /// The daemon's process.
    pub fn process(&mut self) -> &mut Child {
        &mut self.child
    }
}
