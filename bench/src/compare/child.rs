//! Child processes that never outlive their owner.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::stop;

/// A child has this long to end by itself after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(3);

/// A running child, ended and waited for when dropped.
pub struct Child {
    process: std::process::Child,
    name: String,
}

impl Child {
    /// Starts `command` with its output in the file `log`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Result<Child> {
        let output = File::create(log)?;
        command.stdout(output.try_clone()?).stderr(output);
        Child::spawn(command)
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.still_runs()?;
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Starts `command` with its standard output in a pipe, to be read by [`Child::output`].
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start_piped(mut command: Command) -> Result<Child> {
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null());
        Child::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Result<Child> {
        let name = command.get_program().to_string_lossy().into_owned();
        let process = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Child { process, name })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The standard input, if it was piped.
    pub fn input(&mut self) -> Result<&mut std::process::ChildStdin> {
        self.process.stdin.as_mut().context("no standard input")
    }

    /// # Errors
    /// If the child has ended, which it should not have.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended early: {status}", self.name),
        }
    }

    /// Starts `command` with standard input and output in pipes, for [`Child::first_line`]; errors go to ours.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start_held(mut command: Command) -> Result<Child> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Child::spawn(&mut command)
    }

    /// Waits for the first line of standard output; the child stays until its standard input is closed.
    ///
    /// # Errors
    /// If none comes within `most`, or the run is interrupted.
    pub fn first_line(&mut self, most: Duration) -> Result<String> {
        let output = self.process.stdout.take().context("no standard output")?;
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        let what = format!("the report of {}", self.name);
        stop::until(&what, most, || reader.is_finished().then_some(()))?;
        let line = reader.join().ok().context("no line")??;
        if line.is_empty() {
            bail!("{} ended without a report", self.name);
        }
        Ok(line)
    }

    /// Closes the standard input and waits for the end.
    ///
    /// # Errors
    /// If it fails, is interrupted, or takes longer than `most`.
    pub fn release(mut self, most: Duration) -> Result<()> {
        drop(self.process.stdin.take());
        let what = format!("the end of {}", self.name);
        let status = stop::until(&what, most, || self.process.try_wait().ok().flatten())?;
        if !status.success() {
            bail!("{} failed: {status}", self.name);
        }
        Ok(())
    }

    /// Waits for the end and gives what was written to standard output.
    ///
    /// # Errors
    /// If it fails, is interrupted, or takes longer than `most`.
    pub fn output(mut self, most: Duration) -> Result<String> {
        let reader = |stream: Option<Box<dyn std::io::Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = String::new();
                if let Some(mut stream) = stream {
                    // What is not text is of no use: the caller sees that nothing came.
                    let _ = stream.read_to_string(&mut text);
                }
                text
            })
        };
        let out = reader(self.process.stdout.take().map(|s| Box::new(s) as _));
        let err = reader(self.process.stderr.take().map(|s| Box::new(s) as _));
        let what = format!("the end of {}", self.name);
        let status: ExitStatus =
            stop::until(&what, most, || self.process.try_wait().ok().flatten())?;
        let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
        let (out, err) = (text(out), text(err));
        if !status.success() {
            bail!(
                "{} failed ({status}): {}{}",
                self.name,
                out.trim(),
                err.trim()
            );
        }
        Ok(out)
    }

    /// Time that all threads of the child have run, and have waited for a core, so far.
    #[must_use]
    pub fn scheduled(&self) -> Scheduled {
        Scheduled::of(self.pid())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let end = Instant::now() + END_WITHIN;
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < end {
                // The child was not waited for yet, so its id cannot be another process's.
                let _ = kill_process(pid, Signal::TERM);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Time on cores, from `/proc/PID/task/*/schedstat`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scheduled {
    /// Ran.
    pub ran: Duration,
    /// Was ready to run while something else ran on its core.
    pub waited: Duration,
}

impl Scheduled {
    /// Sum over the threads that the process has now.
    #[must_use]
    pub fn of(pid: u32) -> Scheduled {
        let mut sum = Scheduled::default();
        for (_, thread) in Scheduled::by_thread(pid) {
            sum.ran += thread.ran;
            sum.waited += thread.waited;
        }
        sum
    }

    /// Of each thread that the process has now, with its name.
    pub fn by_thread(pid: u32) -> Vec<(String, Scheduled)> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let of = |thread: std::fs::DirEntry| {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let numbers = read("schedstat");
            let numbers = numbers.split_ascii_whitespace();
            let mut times = numbers.map(|n| Duration::from_nanos(n.parse().unwrap_or(0)));
            let mut time = || times.next().unwrap_or_default();
            let (ran, waited) = (time(), time());
            (read("comm").trim().to_owned(), Scheduled { ran, waited })
        };
        threads.into_iter().flatten().flatten().map(of).collect()
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Scheduled) -> Scheduled {
        Scheduled {
            ran: self.ran.saturating_sub(earlier.ran),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}

/// A number of KiB that a file of `/proc` has behind `name`.
///
/// # Errors
/// If the file or the line is not there.
pub fn memory_kib(path: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number = number.with_context(|| format!("{path} has no {name}"))?;
    Ok(number.parse()?)
}

/// Runs a short command to its end and gives what it wrote.
///
/// # Errors
/// If it fails; the text names the whole command.
pub fn run<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let what = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {what}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{what} failed: {}", said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As [`run`], from one line of words without quoting.
///
/// # Errors
/// As [`run`].
pub fn run_line(line: &str) -> Result<String> {
    let mut words = line.split_ascii_whitespace();
    run(words.next().context("no command")?, words)
}
