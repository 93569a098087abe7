//! Where the pairs run: a namespace, a user and a directory of their own; and how: plain or accelerated.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::compare::host::{Namespace, Scratch};
use crate::compare::peers::wait_for_socket;

/// Users without a name are taken from here: Debian gives these numbers to nobody by itself.
const UIDS: std::ops::Range<u32> = 60_400..60_900;

/// The first port that a server listens at; each has its own.
const PORT: u16 = 7000;

/// What ours needs beside the measuring programs.
pub const OURS: [&str; 3] = ["windlass", "windlass-broker", "libwindlass_sockets.so"];

/// The measuring programs.
pub const PROGRAMS: [&str; 3] = ["sock-ping", "sock-stream", "sock-memcached"];

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// As it is.
    Bare,
    /// By `windlass run`, which spins as it does by itself.
    Run,
    /// By `windlass run --spin`, in microseconds.
    Spin(u32),
}

/// A place for pairs; what still runs in it is ended when it is dropped.
pub struct Place {
    namespace: Option<Namespace>,
    uid: Option<u32>,
    home: PathBuf,
    memory: PathBuf,
    programs: PathBuf,
    /// The cores of server and client.
    pub cores: [usize; 2],
    next_port: AtomicU16,
    _scratch: Scratch,
}

/// Whether a process belongs to a user.
fn processes_of(uid: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == uid))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .collect()
}

/// A user whom nobody knows and who runs nothing.
fn free_uid() -> Result<u32> {
    let known = std::fs::read_to_string("/etc/passwd")?;
    let is_known = |uid: u32| {
        let uid = uid.to_string();
        known
            .lines()
            .any(|line| line.split(':').nth(2) == Some(&uid))
    };
    let middle = UIDS.start + std::process::id() % UIDS.len() as u32;
    (middle..UIDS.end)
        .chain(UIDS.start..middle)
        .find(|&uid| !is_known(uid) && processes_of(uid).is_empty())
        .context("no user is free")
}

impl Place {
    /// The name of the user for programs that ask for one.
    pub const USER: &str = "measured";

    /// As root with a namespace and a user of its own; else in ours, as ourselves. `ours`: whether the accelerated side
    /// will run.
    ///
    /// # Errors
    /// If something cannot be made, or a program was not built.
    pub fn create(built: &Path, ours: bool, cores: [usize; 2]) -> Result<Place> {
        let scratch = Scratch::create()?;
        // A user of our own passes through, and cannot list.
        std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o711))?;
        let (home, programs) = (scratch.join("home"), scratch.join("bin"));
        std::fs::create_dir(&home)?;
        std::fs::create_dir(&programs)?;
        // It holds the sockets of a private daemon, which wants it so.
        std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700))?;
        let needed = PROGRAMS
            .iter()
            .chain(if ours { OURS.iter() } else { [].iter() });
        for name in needed {
            // The place of the build may be closed to the user.
            std::fs::copy(built.join(name), programs.join(name))
                .with_context(|| format!("{} was not built", built.join(name).display()))?;
        }
        // A disk takes bytes at a pace of its own.
        let memory = PathBuf::from(format!("/dev/shm/windlass-compare-{}", std::process::id()));
        std::fs::create_dir(&memory)?;
        let (mut namespace, mut uid) = (None, None);
        if geteuid().is_root() {
            let made = Namespace::create(&format!("wlc-sock-{}", std::process::id()))?;
            // Connections that are made for one request each need ports.
            made.exec("sysctl -q -w net.ipv4.ip_local_port_range=10000 65000")
                .or_else(|_| made.exec("true"))?;
            namespace = Some(made);
            let free = free_uid()?;
            chown(&home, Some(free), Some(free))?;
            chown(&memory, Some(free), Some(free))?;
            uid = Some(free);
        }
        Ok(Place {
            namespace,
            uid,
            home,
            memory,
            programs,
            cores,
            next_port: AtomicU16::new(PORT),
            _scratch: scratch,
        })
    }

    /// A directory that belongs to the user.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A directory in memory that belongs to the user, for what is written and read no more.
    #[must_use]
    pub fn memory(&self) -> &Path {
        &self.memory
    }

    /// A file of the user's.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Where the processes write their counters.
    fn counters(&self) -> PathBuf {
        self.file("counters")
    }

    /// A port that no server of this run has had.
    pub fn port(&self) -> u16 {
        self.next_port.fetch_add(1, Ordering::Relaxed)
    }

    /// A measuring program inside the namespace, which stays root: the kernel lets nobody else redirect sockets.
    #[must_use]
    pub fn command_as_root(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", namespace.name()));
                command.arg("--").arg(program);
                command
            }
            None => Command::new(program),
        }
    }

    /// A program inside the namespace as the user; each word before the program's own becomes the next by exec, so that
    /// the process keeps its id.
    #[must_use]
    pub fn command(&self, runner: Runner, core: Option<usize>, program: &str) -> Command {
        let mut words: Vec<String> = Vec::new();
        let mut add = |line: String| words.extend(line.split(' ').map(str::to_owned));
        if let Some(namespace) = &self.namespace {
            add(format!("nsenter --net=/run/netns/{} --", namespace.name()));
        }
        if let Some(uid) = self.uid {
            add(format!(
                "setpriv --reuid {uid} --regid {uid} --clear-groups --"
            ));
        }
        if let Some(core) = core {
            add(format!("taskset -c {core}"));
        }
        let own = self.programs.join(program);
        let program = if own.exists() {
            own.to_string_lossy().into_owned()
        } else {
            program.to_owned()
        };
        let windlass = self.programs.join("windlass");
        match runner {
            Runner::Bare => {}
            Runner::Run => add(format!("{} run --", windlass.display())),
            Runner::Spin(spin) => add(format!("{} run --spin {spin} --", windlass.display())),
        }
        add(program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.home);
        command
            .env("HOME", &self.home)
            .env("XDG_RUNTIME_DIR", &self.home);
        command.env_remove("WINDLASS_SOCKETS");
        if runner != Runner::Bare {
            command.env("WINDLASS_COUNTERS", self.counters());
        }
        command
    }

    /// The same command with `/etc/passwd` of its own, where the user is [`Place::USER`]: some programs ask for it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn named(&self, inside: Command) -> Result<Command> {
        let Some(uid) = self.uid else {
            return Ok(inside);
        };
        let names = self.file("passwd");
        let (user, home) = (Place::USER, self.home.display());
        let line = format!("{user}:x:{uid}:{uid}::{home}:/bin/sh\n");
        std::fs::write(
            &names,
            std::fs::read_to_string("/etc/passwd").unwrap_or_default() + &line,
        )?;
        let script = "mount --bind \"$0\" /etc/passwd && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(names);
        command.arg(inside.get_program()).args(inside.get_args());
        command.current_dir(&self.home);
        for (name, value) in inside.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(command)
    }

    /// The kernel's tables of TCP sockets, as in `/proc/net`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn tcp_table(&self) -> Result<String> {
        let mut command = self.command(Runner::Bare, None, "cat");
        // The second is missing where IPv6 is.
        let done = command.args(["/proc/net/tcp", "/proc/net/tcp6"]).output()?;
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Waits until a server has made its socket or another file.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn wait_for(&self, name: &str) -> Result<()> {
        wait_for_socket(&self.file(name))
    }

    /// The share of bytes that went by a ring, of all that accelerated processes have sent and received since the last
    /// question; `None` if there were none.
    #[must_use]
    pub fn take_ring_share(&self) -> Option<f64> {
        // A process writes at its exit, and was waited for.
        let text = std::fs::read_to_string(self.counters()).ok()?;
        let _ = std::fs::remove_file(self.counters());
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for line in text.lines() {
            let (name, value) = line.split_once(' ')?;
            *sums.entry(name).or_default() += value.trim().parse::<f64>().ok()?;
        }
        let of = |name: &str| sums.get(name).copied().unwrap_or(0.0);
        let ring = of("ring_tx_bytes") + of("ring_rx_bytes");
        let all = ring + of("kernel_tx_bytes") + of("kernel_rx_bytes");
        (all > 0.0).then(|| ring / all)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.memory);
        let Some(uid) = self.uid else {
            return;
        };
        // Nobody else runs anything as this user: what is left was started here.
        for _ in 0..50 {
            let left = processes_of(uid);
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Makes sure that there are two cores, and gives them.
///
/// # Errors
/// If there is one only.
pub fn two_cores() -> Result<[usize; 2]> {
    match windlass_sys::affinity::allowed_cpus()?[..] {
        [server, client, ..] => Ok([server, client]),
        _ => bail!("two cores are needed"),
    }
}
