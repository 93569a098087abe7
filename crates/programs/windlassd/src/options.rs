//! Options of the daemon: the command line over the TOML file over the table's defaults.
//!
//! # Model
//! [`windlass_api::DAEMON_OPTIONS`] declares them. The file is `/etc/windlass/windlass.toml`, or what
//! `--config` names; a missing default file is as an empty one. A key that the table does not have is
//! refused.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use windlass_api::{AUTO, DAEMON_OPTIONS, OptionSpec, Value};
use windlass_sys::shortcut::Hook;

use crate::log::{Format, LogRate};
use crate::paths;
use crate::shares::{PerUser, Share};

/// Where the TOML file is looked for.
pub const CONFIG_PATH: &str = "/etc/windlass/windlass.toml";
/// Workers at most.
pub const WORKERS_MAX: usize = 64;

/// The user-space network of a Linux host: the daemon.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "windlassd", version)]
pub struct Args {
    /// TOML file with the daemon's options [default: /etc/windlass/windlass.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Control socket [default: control.sock in the runtime directory]
    #[arg(long, value_name = "PATH", env = "WINDLASS_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Directory of the stored configuration
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Directory of sockets
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Cores for data workers, one worker each, for example 0,2-3 [default: one worker, not pinned]
    #[arg(long, value_name = "CORES")]
    pub workers: Option<String>,
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Read the configuration and the stored document, say whether they are good, and end
    #[arg(long)]
    pub check_config: bool,
    /// Print a TOML file with every option, its default and its meaning, and end
    #[arg(long)]
    pub print_default_config: bool,
    /// Started by the daemon that serves, to take its place
    #[arg(long, hide = true)]
    pub successor: bool,
}

/// What is allowed at most. A reload can change it, but for mappings, while connections last: they keep the time
/// that they were accepted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections_max: usize,
    /// Connections at once from one user.
    pub connections_per_uid_max: usize,
    /// Largest body, in bytes.
    pub body_bytes_max: usize,
    /// Time for the next request to arrive with its head, and then for its body.
    pub read_timeout: Duration,
    /// What each user may have.
    pub per_user: PerUser,
    /// Lines of the log that a user or a zone may cause.
    pub log_rate: LogRate,
}

/// Every option of the daemon, with the value that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Control socket.
    pub socket: PathBuf,
    /// Directory of the stored document.
    pub state_dir: PathBuf,
    /// Directory of sockets.
    pub runtime_dir: PathBuf,
    /// Cores of the workers, in order; empty: one worker that is not pinned.
    pub workers: Vec<u32>,
    /// Where the programs of veths may be, the best first; empty: there are no veths.
    pub shortcut: Vec<Hook>,
    /// What is allowed.
    pub limits: Limits,
    /// Events that a monitor may lag behind.
    pub monitor_events_max: usize,
    /// What is logged.
    pub log_level: tracing::Level,
    /// In which form.
    pub log_format: Format,
}

struct Given(BTreeMap<&'static str, Value>);

impl Given {
    fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Value::Text(text)) if text != AUTO => Some(text),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> u64 {
        let spec = DAEMON_OPTIONS.iter().find(|spec| spec.name == name);
        let default = || spec.and_then(OptionSpec::default_value);
        match self.0.get(name).cloned().or_else(default) {
            Some(Value::Number(number)) => number,
            _ => 0,
        }
    }

    fn take(&mut self, name: &'static str, value: Option<String>) {
        if let Some(text) = value {
            self.0.insert(name, Value::Text(text));
        }
    }
}

fn read_toml(text: &str) -> Result<Given> {
    let table: toml::Table = text.parse()?;
    let mut given = Given(BTreeMap::new());
    for (key, value) in table {
        if key == "sockets" {
            bail!(
                "there is no option \"sockets\": accelerated sockets are a program of their own, windlass-broker \
                 (systemctl enable windlass-broker)"
            );
        }
        let Some(spec) = DAEMON_OPTIONS.iter().find(|spec| spec.name == key) else {
            let known: Vec<_> = DAEMON_OPTIONS.iter().map(|spec| spec.name).collect();
            bail!(
                "there is no option \"{key}\" (there are: {})",
                known.join(", ")
            );
        };
        given
            .0
            .insert(spec.name, spec.check(&serde_json::to_value(value)?)?);
    }
    Ok(given)
}

fn utf8(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

impl Options {
    /// The options that hold for this command line and the file that it names.
    ///
    /// # Errors
    /// If the file cannot be read, has an unknown key, or a value is outside its limits.
    pub fn load(args: &Args) -> Result<Self> {
        let path = args.config.clone().unwrap_or_else(|| CONFIG_PATH.into());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if args.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(error) => bail!("cannot read {}: {error}", path.display()),
        };
        let mut given = read_toml(&text).with_context(|| path.display().to_string())?;
        given.take("socket", args.socket.as_deref().map(utf8).transpose()?);
        given.take(
            "state-dir",
            args.state_dir.as_deref().map(utf8).transpose()?,
        );
        given.take(
            "runtime-dir",
            args.runtime_dir.as_deref().map(utf8).transpose()?,
        );
        given.take("workers", args.workers.clone());
        given.take("log-level", args.log_level.clone());
        Self::of(&given)
    }

    /// The options that only a restart changes and that are otherwise in `new`, and why it takes a restart.
    pub fn fixed(&self, new: &Options) -> Vec<(&'static str, &'static str)> {
        let differs = |share| self.limits.per_user.max(share) != new.limits.per_user.max(share);
        let listening = "the daemon listens there, and has locked it";
        let rows = [
            ("socket", self.socket != new.socket, listening),
            (
                "state-dir",
                self.state_dir != new.state_dir,
                "the stored configuration lies there, and what was made on the host bears its mark",
            ),
            (
                "runtime-dir",
                self.runtime_dir != new.runtime_dir,
                "the sockets of running guests lie there",
            ),
            (
                "workers",
                self.workers != new.workers,
                "rings belong to the workers that were started",
            ),
            (
                "shortcut",
                self.shortcut != new.shortcut,
                "the programs of veths are there",
            ),
            (
                "mappings-per-uid-max",
                differs(Share::Mappings),
                "owners' mappings are counted against it",
            ),
            (
                "addresses-per-uid-max",
                differs(Share::Addresses),
                "owners' addresses are counted against it",
            ),
            (
                "monitor-events-max",
                self.monitor_events_max != new.monitor_events_max,
                "the queue of events was made with it",
            ),
            (
                "log-format",
                self.log_format != new.log_format,
                "the log was opened with it",
            ),
        ];
        rows.into_iter()
            .filter(|(_, differs, _)| *differs)
            .map(|(name, _, why)| (name, why))
            .collect()
    }

    fn of(given: &Given) -> Result<Self> {
        let runtime_dir = match given.text("runtime-dir") {
            Some(path) => path.into(),
            None => paths::runtime_dir(),
        };
        let state_dir = match given.text("state-dir") {
            Some(path) => path.into(),
            None => paths::state_dir()?,
        };
        let socket = match given.text("socket") {
            Some(path) => PathBuf::from(path),
            None => runtime_dir.join(paths::SOCKET_NAME),
        };
        let level = given.text("log-level").unwrap_or("info");
        let count = |name| usize::try_from(given.number(name)).unwrap_or(usize::MAX);
        let word = |name| u32::try_from(given.number(name)).unwrap_or(u32::MAX);
        Ok(Self {
            socket,
            state_dir,
            runtime_dir,
            workers: given
                .text("workers")
                .map(parse_cores)
                .transpose()?
                .unwrap_or_default(),
            shortcut: match given.text("shortcut") {
                None => vec![Hook::Clsact, Hook::Tcx],
                Some("tcx") => vec![Hook::Tcx],
                Some("clsact") => vec![Hook::Clsact],
                Some(_) => Vec::new(),
            },
            limits: Limits {
                connections_max: count("connections-max"),
                connections_per_uid_max: count("connections-per-uid-max"),
                body_bytes_max: count("body-bytes-max"),
                read_timeout: Duration::from_millis(given.number("read-timeout-ms")),
                per_user: PerUser::of(|name| given.number(name)),
                log_rate: LogRate {
                    burst: word("log-lines-burst"),
                    per_s: word("log-lines-per-s"),
                },
            },
            monitor_events_max: count("monitor-events-max"),
            log_level: level.parse().with_context(|| {
                format!("log-level is error, warn, info, debug or trace, not \"{level}\"")
            })?,
            log_format: match given.text("log-format") {
                None => Format::Auto,
                Some("text") => Format::Text,
                Some("json") => Format::Json,
                Some(other) => bail!("log-format is auto, text or json, not \"{other}\""),
            },
        })
    }
}

/// Reads a list of cores, "0,2-3": in the order given, none twice.
///
/// # Errors
/// If it is not such a list, names a core twice, or has more than [`WORKERS_MAX`].
pub fn parse_cores(text: &str) -> Result<Vec<u32>> {
    let wrong = || format!("workers is a list of cores such as 0,2-3, not \"{text}\"");
    let core = |part: &str| part.parse::<u16>().map(u32::from).with_context(wrong);
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (core(low)?, core(high)?);
        if low > high {
            bail!(wrong());
        }
        for core in low..=high {
            if cores.contains(&core) {
                bail!("workers names core {core} twice");
            }
            if cores.len() == WORKERS_MAX {
                bail!("workers names more than {WORKERS_MAX} cores");
            }
            cores.push(core);
        }
    }
    Ok(cores)
}

/// A TOML file in which every option stands as a comment, with its default and its meaning.
pub fn default_config() -> String {
    let mut text = String::from("# Options of windlassd. What is commented out has this value.\n");
    for spec in DAEMON_OPTIONS {
        let unit = if spec.unit.is_empty() { "" } else { " Unit: " };
        let _ = write!(text, "\n# {}{unit}{}", spec.sentence, spec.unit);
        let _ = match spec.default_value() {
            Some(Value::Number(number)) => {
                write!(
                    text,
                    " ({}).\n# {} = {number}\n",
                    spec.possible(),
                    spec.name
                )
            }
            Some(Value::Flag(flag)) => write!(text, "\n# {} = {flag}\n", spec.name),
            _ => write!(text, "\n# {} = \"{}\"\n", spec.name, spec.default),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The printed defaults, with the comment signs before the keys taken away, are read as the
    /// defaults.
    #[test]
    fn printed_defaults_are_the_defaults() {
        let is_key = |line: &&str| {
            DAEMON_OPTIONS
                .iter()
                .any(|s| line.starts_with(&format!("# {} = ", s.name)))
        };
        let printed = default_config();
        let keys: Vec<_> = printed
            .lines()
            .filter(is_key)
            .map(|line| &line[2..])
            .collect();
        assert_eq!(keys.len(), DAEMON_OPTIONS.len());
        let given = read_toml(&keys.join("\n")).expect("own text");
        let options = Options::of(&given).expect("defaults");
        assert_eq!(
            options,
            Options::of(&read_toml("").expect("empty")).expect("defaults")
        );
        assert_eq!(options.limits.connections_max, 256);
    }

    /// What a reload does not change is what the table says: where everything differs, these are named and no others.
    #[test]
    fn the_table_tells_what_needs_a_restart() {
        let of = |text: &str| Options::of(&read_toml(text).expect("own text")).expect("options");
        let old = of("");
        let new = of(
            "socket = \"/x/s\"\nstate-dir = \"/x/d\"\nruntime-dir = \"/x/r\"\n\
             workers = \"7\"\nshortcut = \"off\"\nconnections-max = 7\nconnections-per-uid-max = 7\nbody-bytes-max = 7000\n\
             read-timeout-ms = 77\nvnics-per-uid-max = 77\ndescriptors-per-uid-max = 777\nflows-per-uid-max = 7\nmappings-per-uid-max = 77\naddresses-per-uid-max = 77\n\
             monitors-per-uid-max = 7\ncaptures-per-uid-max = 7\nanswers-per-uid-max = 7\nlog-lines-burst = 7\nlog-lines-per-s = 7\nmonitor-events-max = 77\nlog-level = \"warn\"\n\
             log-format = \"json\"",
        );
        let fixed: Vec<_> = old.fixed(&new).into_iter().map(|(name, _)| name).collect();
        let told: Vec<_> = DAEMON_OPTIONS
            .iter()
            .filter(|spec| spec.sentence.ends_with("Needs a restart."))
            .map(|spec| spec.name)
            .collect();
        assert_eq!(fixed, told);
        assert!(old.fixed(&old.clone()).is_empty());
    }

    /// Unknown keys, wrong types, numbers outside the limits and bad lists are refused by name.
    #[test]
    fn bad_files_are_refused() {
        for (text, part) in [
            ("sockte = \"x\"", "sockte"),
            ("sockets = false", "windlass-broker"),
            ("connections-max = 0", "connections-max"),
            ("connections-max = \"5\"", "connections-max"),
            ("[workers]\na = 1", "workers"),
            ("shortcut = \"on\"", "shortcut"),
        ] {
            let error = read_toml(text).err().expect(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        for bad in ["", "a", "1-", "3-2", "0,0", "0-1,1", "0-99", "65536"] {
            assert!(parse_cores(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_cores("2,0-1").expect("cores"), [2, 0, 1]);
    }
}
