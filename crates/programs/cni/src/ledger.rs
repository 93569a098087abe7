//! The ledger of a network: who was given what.
//!
//! # Model
//! One file for each network, `NETWORK.json`, replaced as a whole, and changed by one process at a time, which holds
//! `NETWORK.lock` (flock(2)). An entry is written before anything of it is made, and struck out after all of it is gone. So
//! what a killed process leaves is in the ledger.
//!
//! Addresses are in the ledger and not in the daemon's document: that has no place for who owns an address that no VNIC has
//! yet, and a delegated plugin keeps its own.
//!
//! Entries bear the boot in which they were made: no container outlives a reboot. An address that was given back rests for
//! [`REST_S`], so that nobody gets it while others still know its former owner.
//!
//! # What can be lost and what cannot
//! The file is flushed before it is put in its place: a power cut leaves the ledger before the change or after it. What an entry says is
//! durable before anything of it is made. That an entry was struck out need not be: after a power cut there is another boot, which strikes
//! it out again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use windlass_api::Name;

use crate::failure::{Code, Failure};
use crate::ranges::{Net, Pick, RangeSet};

/// How long an address is nobody's after it was given back, in seconds.
pub const REST_S: u64 = 60;

/// What one interface was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The container.
    pub container: String,
    /// Its interface.
    pub interface: String,
    /// The path of its namespace.
    pub netns: String,
    /// The boot in which it was made.
    pub boot: String,
    /// Its addresses out of the network's ranges.
    pub addresses: Vec<IpAddr>,
    /// It is deleted, but for the VNIC.
    pub is_owed: bool,
}

/// Everything of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Entries by VNIC.
    pub entries: BTreeMap<Name, Entry>,
    /// Addresses that rest, and until when in seconds since that boot.
    resting: BTreeMap<IpAddr, u64>,
    /// The boot.
    boot: String,
    /// The address that each set of ranges has given last.
    last: BTreeMap<usize, IpAddr>,
}

fn io(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Code::Io, format!("{}: {error}", path.display()))
}

/// The kernel's name for the time since it was started.
fn boot_id() -> Result<String, Failure> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(fs::read_to_string(path).map_err(io(path))?.trim().into())
}

fn seconds() -> u64 {
    u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or(0)
}

/// Changes the ledger of a network, with nobody else at it; what `change` refuses is not written.
///
/// # Errors
/// [`Code::Io`], and what `change` returns.
pub fn change<T>(
    directory: &Path,
    network: &str,
    change: impl FnOnce(&mut Ledger) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(io(directory))?;
    let _lock = lock(&directory.join(format!("{network}.lock")))?;
    let path = directory.join(format!("{network}.json"));
    let before = Ledger::read(&path)?;
    let mut ledger = before.clone();
    ledger.forget_rested(boot_id()?);
    let result = change(&mut ledger)?;
    if ledger != before {
        let is_promise = |(vnic, entry)| before.entries.get(vnic) != Some(entry);
        let is_promise = ledger.entries.iter().any(is_promise);
        let written = ledger.write(directory, network, is_promise);
        written.map_err(io(&path))?;
    }
    Ok(result)
}

fn lock(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(path).map_err(io(path))?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io(path)(errno.into())),
        }
    }
}

impl Ledger {
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(io(path))?,
        };
        serde_json::from_slice(&text).map_err(|error| {
            let why = format!("{} is not a ledger: {error}", path.display());
            Failure::new(Code::Io, why)
        })
    }

    /// With `is_durable`, it cannot be lost from then on.
    fn write(&self, directory: &Path, network: &str, is_durable: bool) -> io::Result<()> {
        let next = directory.join(format!("{network}.next"));
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(true).write(true).mode(0o600);
        let mut file = options.open(&next)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        fs::rename(&next, directory.join(format!("{network}.json")))?;
        match is_durable {
            true => File::open(directory)?.sync_all(),
            false => Ok(()),
        }
    }

    /// The boot in which it is changed.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Addresses rest no longer than until the next boot.
    fn forget_rested(&mut self, boot: String) {
        let is_same = self.boot == boot;
        let now = seconds();
        self.resting.retain(|_, until| is_same && *until > now);
        self.boot = boot;
    }

    /// Strikes out an entry; its addresses rest.
    pub fn strike(&mut self, vnic: &Name) {
        if let Some(entry) = self.entries.remove(vnic) {
            self.rest(entry.addresses);
        }
    }

    /// Nobody gets these addresses for a while.
    pub fn rest(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let until = seconds().saturating_add(REST_S);
        let gone = addresses.into_iter().map(|ip| (ip, until));
        self.resting.extend(gone);
    }

    /// Entries that are to be struck out: those that are owed, and those of an earlier boot.
    pub fn stale(&self) -> Vec<Name> {
        let is_stale = |entry: &Entry| entry.is_owed || entry.boot != self.boot;
        let entries = self.entries.iter();
        let stale = entries.filter(|(_, entry)| is_stale(entry));
        stale.map(|(vnic, _)| vnic.clone()).collect()
    }

    /// Finds an address out of each set, or those that are wanted.
    ///
    /// # Errors
    /// [`Code::Again`]: there is none at the moment; [`Code::Config`]: what is wanted is in no set.
    pub fn pick(&mut self, sets: &[RangeSet], wanted: &[Net]) -> Result<Vec<Pick>, Failure> {
        let entries = self.entries.values();
        let mut taken: BTreeSet<IpAddr> = entries.flat_map(|e| e.addresses.clone()).collect();
        taken.extend(self.resting.keys());
        let mut picks = Vec::new();
        for net in wanted {
            let found = sets.iter().find_map(|set| set.find(net.ip));
            let unknown = || Failure::new(Code::Config, format!("{} is in no range", net.ip));
            let pick = found.ok_or_else(unknown)?;
            if taken.contains(&net.ip) {
                let why = format!("{} is taken, or was until a moment ago", net.ip);
                return Err(Failure::new(Code::Again, why));
            }
            picks.push(pick);
        }
        for (number, set) in sets.iter().enumerate() {
            if picks.iter().any(|pick| set.find(pick.net.ip).is_some()) {
                continue;
            }
            let last = self.last.get(&number).copied();
            let pick = set.next(last, taken.len(), |ip| !taken.contains(&ip));
            let none = || Failure::new(Code::Again, "all addresses are taken, or rest");
            let pick = pick.ok_or_else(none)?;
            self.last.insert(number, pick.net.ip);
            picks.push(pick);
        }
        Ok(picks)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sets(json: serde_json::Value) -> Vec<RangeSet> {
        serde_json::from_value(json).expect("sets")
    }

    /// An address that was given back is nobody's for a while, and not after the next boot.
    #[test]
    fn addresses_rest() {
        let directory = tempfile::tempdir().expect("a directory");
        let sets = sets(json!([["10.0.0.0/31"]]));
        let vnic: Name = "cabc".parse().expect("a name");
        let ip = change(directory.path(), "net", |ledger| {
            let ip = ledger.pick(&sets, &[])?[0].net.ip;
            let entry = Entry {
                addresses: vec![ip, "10.0.0.1".parse().expect("an address")],
                boot: boot_id()?,
                ..Entry::default()
            };
            ledger.entries.insert(vnic.clone(), entry);
            Ok(ip)
        });
        assert_eq!(ip.expect("picked").to_string(), "10.0.0.0");
        let pick = |change_boot: bool| {
            change(directory.path(), "net", |ledger| {
                ledger.strike(&vnic);
                if change_boot {
                    ledger.forget_rested("another".into());
                }
                ledger.pick(&sets, &[])
            })
        };
        let code = pick(false).map_err(|failure| failure.code);
        assert_eq!(code, Err(Code::Again as u64));
        assert!(pick(true).is_ok());
    }

    /// What is refused is not written, and a file that is no ledger is not taken for an empty one.
    #[test]
    fn a_ledger_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let refused = change(directory.path(), "net", |ledger| {
            let vnic = "cabc".parse().expect("a name");
            ledger.entries.insert(vnic, Entry::default());
            Err::<(), _>(Failure::new(Code::Again, "no"))
        });
        assert!(refused.is_err());
        let path = directory.path().join("net.json");
        assert!(!path.exists());
        fs::write(&path, "{").expect("written");
        let code = change(directory.path(), "net", |_| Ok(())).map_err(|failure| failure.code);
        assert_eq!(code, Err(Code::Io as u64));
    }
}
