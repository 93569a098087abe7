//! A windlassd of our own, beside any other on this host.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::child::{Child, run};
use super::host::Scratch;
use super::peers::{READY_WITHIN, check_programs};
use super::stop;

/// A running daemon.
pub struct Daemon {
    child: Child,
    daemon: Command,
    log: PathBuf,
    command: PathBuf,
    socket: PathBuf,
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
    /// Starts one with an empty configuration and one worker, on `core` or on any.
    ///
    /// # Errors
    /// If it was not built or does not come up.
    pub fn start(programs: &Path, scratch: &Scratch, core: Option<usize>) -> Result<Daemon> {
        check_programs(programs, &["windlassd", "windlass"])?;
        let socket = scratch.join("windlass.sock");
        let state = scratch.join("windlass-state");
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
            .arg(scratch.join("windlass-run"));
        if let Some(core) = core {
            daemon.arg("--workers").arg(core.to_string());
        }
        let log = scratch.join("windlassd.log");
        let child = Child::start(&mut daemon, &log)?;
        // The socket is there a moment before it is listened on.
        stop::until("the answer of windlassd", READY_WITHIN, || {
            UnixStream::connect(&socket).ok()
        })?;
        Ok(Daemon {
            child,
            daemon,
            log,
            command: programs.join("windlass"),
            socket,
        })
    }

    /// Kills it and starts it again at once, as a supervisor does; what it had of guests it finds again by itself.
    ///
    /// # Errors
    /// If it cannot be started again.
    pub fn kill_and_start(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child = Child::start(&mut self.daemon, &self.log)?;
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
        let socket = self.socket.to_string_lossy();
        let own = ["--socket", &*socket];
        let program = self.command.to_string_lossy();
        run(
            &program,
            own.into_iter().chain(line.split_ascii_whitespace()),
        )
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
