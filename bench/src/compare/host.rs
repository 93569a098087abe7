//! Settings of the host, put back when dropped; programs that must be there; time on its cores.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::child::{run, run_line};

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
const GIVE_UP_AND_JOIN: [(&str, &str); 2] = [
    ("/proc/sys/vm/drop_caches", "1"),
    ("/proc/sys/vm/compact_memory", "1"),
];

/// Clock ticks a second in `/proc/stat` (`USER_HZ`, fixed on x86-64).
const TICKS_PER_SECOND: f64 = 100.0;

/// Reserved 2 MiB pages; the number that was there before is put back.
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// Reserves at least `pages`.
    ///
    /// # Errors
    /// If the host has not that much memory, or we may not ask for it.
    pub fn reserve(pages: u64) -> Result<HugePages> {
        let read = || -> Result<u64> { Ok(std::fs::read_to_string(HUGE_PAGES)?.trim().parse()?) };
        let before = read()?;
        let guard = HugePages { before };
        let ask = || {
            std::fs::write(HUGE_PAGES, pages.to_string())
                .with_context(|| format!("cannot reserve {pages} huge pages in {HUGE_PAGES}"))
        };
        if before < pages {
            ask()?;
        }
        if read()? < pages {
            // Behind a build most of the memory caches files, in pieces: the cache is given up, and the pieces are joined.
            for (file, what) in GIVE_UP_AND_JOIN {
                std::fs::write(file, what).with_context(|| format!("cannot write to {file}"))?;
            }
            ask()?;
        }
        let has = read()?;
        if has < pages {
            bail!(
                "{pages} huge pages of 2 MiB are needed, and the host gives {has}: end what uses memory"
            );
        }
        Ok(guard)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(HUGE_PAGES, self.before.to_string()) {
            eprintln!("cannot put {} back into {HUGE_PAGES}: {error}", self.before);
        }
    }
}

/// A network namespace, deleted when dropped.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes it, with loopback up.
    ///
    /// # Errors
    /// If the name is taken or we may not.
    pub fn create(name: &str) -> Result<Namespace> {
        run_line(&format!("ip netns add {name}"))?;
        let namespace = Namespace {
            name: name.to_owned(),
        };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` inside.
    ///
    /// # Errors
    /// If the command fails.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        run_line(&format!("ip -n {} {arguments}", self.name))
    }

    /// Runs a command inside.
    ///
    /// # Errors
    /// If the command fails.
    pub fn exec(&self, line: &str) -> Result<String> {
        run_line(&format!("ip netns exec {} {line}", self.name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = run_line(&format!("ip netns delete {}", self.name)) {
            eprintln!("{error:#}");
        }
    }
}

/// Where a program lies, searched in `PATH` and the directories of system programs.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Makes sure that programs are there: as root their packages are installed, otherwise what is missing is named.
///
/// # Errors
/// If a program is missing and stays so.
pub fn require(programs: &[(&str, &str)]) -> Result<()> {
    let missing = |programs: &[(&str, &str)]| -> Vec<String> {
        programs
            .iter()
            .filter(|(program, _)| find_program(program).is_none())
            .map(|(_, package)| (*package).to_owned())
            .collect()
    };
    let mut packages = missing(programs);
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let line = format!(
        "apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    if !rustix::process::geteuid().is_root() {
        bail!("missing; as root: {line}");
    }
    eprintln!("{line}");
    run_line(&line)?;
    match missing(programs) {
        still if still.is_empty() => Ok(()),
        still => bail!("still missing after installation: {}", still.join(" ")),
    }
}

/// Processor seconds that all cores have spent on anything but idling, softirq included.
///
/// # Errors
/// If `/proc/stat` has another form.
pub fn busy_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<f64> = line
        .split_ascii_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0.0))
        .collect();
    // user nice system IDLE IOWAIT irq softirq
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else {
        bail!("/proc/stat has another form");
    };
    Ok((user + nice + system + irq + softirq) / TICKS_PER_SECOND)
}

/// One line about the machine.
#[must_use]
pub fn describe() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = run("uname", ["-r"]).unwrap_or_default();
    let mhz = windlass_sync::tsc::Clock::get().hz() as f64 / 1e6;
    format!(
        "{model}, {cores} cores, time-stamp counter {mhz:.0} MHz, Linux {}",
        kernel.trim()
    )
}

/// A directory for sockets and logs, removed when dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// If the temporary directory takes none.
    pub fn create() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("windlass-compare-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch { path })
    }

    /// A path inside.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is small and in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
