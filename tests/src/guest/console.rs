//! The serial console of a virtual machine, at which `/init` of [`Image`](super::Image) runs what it reads.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::COMMAND;
use crate::lab::{Output, uninterrupted};

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(180);
/// How long a command in it may fail before it succeeds.
const PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "@ready";
const DONE: &str = "@done ";

/// The console of a machine.
#[derive(Debug)]
pub struct Console {
    name: String,
    stream: UnixStream,
    /// What it said and nobody has read yet.
    heard: String,
    /// What its QEMU wrote.
    log: PathBuf,
}

impl Console {
    /// The console of the machine `name` at the other end of `stream`; `log` is told where the machine ends.
    pub fn new(name: &str, stream: UnixStream, log: &Path) -> Console {
        Console {
            name: name.into(),
            stream,
            heard: String::new(),
            log: log.into(),
        }
    }

    /// Name of the machine: its VNIC, where it has one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it has booted.
    pub fn ready(&mut self) {
        self.await_line(READY, BOOT);
    }

    /// Boots it again, from inside.
    pub fn reboot(&mut self) {
        self.send("reboot -f");
        self.ready();
    }

    /// Runs a line in the guest's shell.
    pub fn run(&mut self, line: &str) -> Output {
        self.send(line);
        let (out, end) = self.await_line(DONE, COMMAND);
        let code = end.trim().parse().expect("an exit code");
        Output {
            code,
            out,
            err: String::new(),
        }
    }

    /// Runs a line in the guest's shell; it must succeed. Gives what it printed.
    pub fn must(&mut self, line: &str) -> String {
        let done = self.run(line);
        assert_eq!(done.code, 0, "{}: {line}: {}", self.name, done.out);
        done.out
    }

    /// Runs a line in the guest's shell again and again until it succeeds; panics if that takes too long.
    pub fn until(&mut self, line: &str) {
        let begun = Instant::now();
        loop {
            let done = self.run(line);
            if done.code == 0 {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{}: not in {PATIENCE:?}: {line}: {}",
                self.name,
                done.out
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn send(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .expect("the console");
    }

    /// What the console says before a line that begins with `mark`, and the rest of that line.
    fn await_line(&mut self, mark: &str, patience: Duration) -> (String, String) {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(at) = self.heard.find(mark)
                && let Some(length) = self.heard[at..].find('\n')
            {
                let before = self.heard[..at].replace('\r', "");
                let rest = self.heard[at + mark.len()..at + length].to_owned();
                self.heard.drain(..=at + length);
                return (before, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let (name, heard) = (&self.name, &self.heard);
            assert!(
                !left.is_zero(),
                "{name}: no {mark} in {patience:?}: {heard}"
            );
            self.stream.set_read_timeout(Some(left)).expect("a timeout");
            let mut piece = [0; 4096];
            match uninterrupted(|| self.stream.read(&mut piece)) {
                Ok(0) => {
                    let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                    panic!("{}: its QEMU ended: {} {log}", self.name, self.heard);
                }
                Ok(length) => self.heard += &String::from_utf8_lossy(&piece[..length]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{}: console: {error}", self.name),
            }
        }
    }
}
