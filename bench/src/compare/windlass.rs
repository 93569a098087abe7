//! A windlassd of our own, beside any other on this host.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::child::{Child, run};
use super::host::Scratch;
use super::peers::{check_programs, wait_for_socket};

/// A running daemon.
pub struct Daemon {
    child: Child,
    command: PathBuf,
    socket: PathBuf,
}

/// What `windlass worker show --json` says of one worker, as far as it matters here.
#[derive(Deserialize)]
struct Worker {
    cycles_busy: u64,
    frames: u64,
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
        let mut command = Command::new(programs.join("windlassd"));
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(&state);
        if let Some(core) = core {
            command.arg("--workers").arg(core.to_string());
        }
        let child = Child::start(command, &scratch.join("windlassd.log"))?;
        wait_for_socket(&socket)?;
        Ok(Daemon {
            child,
            command: programs.join("windlass"),
            socket,
        })
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
