//! Addresses that VNICs were given: shown, and kept for the next daemon.
//!
//! # Model
//! A guest keeps its address when this daemon is restarted, killed or replaced, and could not even renew its lease if the next one
//! did not know of it. So what VNICs have learned stands in a file in the runtime directory ([`FILE`]), written whenever it has
//! changed, and read by the next daemon before it serves its first ring. In an upgrade the predecessor writes it when it has left the
//! rings alone, before the successor goes on. A write that fails is tried again after [`RETRY`].
//!
//! Times in the file are those of the clock that counts from the start of the system, and it names that start: a wall clock that is set
//! changes nothing, and a file of an earlier start is of guests that are gone. A VNIC gets back what it had with the same address, on the
//! same bridge and VLAN, as far as it may learn it now.
//!
//! # What can be lost and what cannot
//! What was learned within [`GAP`] of a kill. An exchange that was under way; its client asks again.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use windlass_api::{LearnedAddress, LearningMethod, MacAddr, Name};
use windlass_frame::Tick;
use windlass_worker::dataplane::now;
use windlass_worker::{Lease, Method};

use super::{MemberState, Ports};

/// Name of the file in the runtime directory.
const FILE: &str = "leases.json";
/// Time from one write to the next, at least; and so many times as long as a write takes, so that one who learns without end does not keep
/// this thread busy.
const GAP: Duration = Duration::from_millis(100);
const GAP_FACTOR: u32 = 20;
/// Time until a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The file, and what is to become of it.
pub(super) struct Leases {
    path: PathBuf,
    /// What an earlier daemon has left, and no VNIC has taken back; none before it was read.
    left: Option<BTreeMap<Name, Kept>>,
    /// What stands in the file.
    written: String,
    /// When it may be written, if something has changed.
    due: Option<Instant>,
    /// Not before then.
    not_before: Instant,
}

/// What one VNIC has.
#[derive(Serialize, Deserialize, PartialEq)]
struct Kept {
    mac: MacAddr,
    bridge: Name,
    vlan: Option<u16>,
    leases: Vec<KeptLease>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct KeptLease {
    address: IpAddr,
    bits: u8,
    method: LearningMethod,
    client: Vec<u8>,
    /// Nanoseconds since the start of the system; none: it does not end.
    until: Option<u64>,
}

#[derive(Serialize, Deserialize, Default)]
struct File {
    boot: String,
    vnics: BTreeMap<Name, Kept>,
}

impl Leases {
    pub(super) fn new(runtime_dir: &Path) -> Leases {
        Leases {
            path: runtime_dir.join(FILE),
            left: None,
            written: String::new(),
            due: None,
            not_before: Instant::now(),
        }
    }

    /// Reads what an earlier daemon has left since the system was started.
    fn read(&mut self) -> &mut BTreeMap<Name, Kept> {
        let path = &self.path;
        self.left.get_or_insert_with(|| {
            let file = match std::fs::read_to_string(path) {
                Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
                    tracing::warn!(
                        "{}: {error}: addresses of guests are forgotten",
                        path.display()
                    );
                    File::default()
                }),
                Err(_) => File::default(),
            };
            match file.boot == boot() {
                true => file.vnics,
                false => BTreeMap::new(),
            }
        })
    }

    fn changed(&mut self) {
        self.due.get_or_insert(self.not_before);
    }

    fn write(&mut self, vnics: BTreeMap<Name, Kept>) {
        self.due = None;
        if vnics.is_empty() && self.written.is_empty() && !self.path.exists() {
            return;
        }
        let began = Instant::now();
        let boot = boot();
        let written = serde_json::to_string(&File { boot, vnics }).unwrap_or_default();
        if written == self.written {
            return;
        }
        let done = self.replace(&written);
        let ended = Instant::now();
        self.not_before = ended + GAP.max((ended - began) * GAP_FACTOR);
        match done {
            Ok(()) => self.written = written,
            Err(error) => {
                let path = self.path.display();
                tracing::warn!("{path}: {error}: a restart would forget addresses of guests");
                self.not_before = ended + RETRY;
                self.due = Some(self.not_before);
            }
        }
    }

    /// Nobody else may read which guest has which address.
    fn replace(&self, written: &str) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        // One that is there has the mode that it was made with.
        let _ = std::fs::remove_file(&beside);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(written.as_bytes())?;
        std::fs::rename(&beside, &self.path)
    }
}

/// Names the start of the system.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.unwrap_or_default().trim().to_owned()
}

/// Nanoseconds since the start of the system.
fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let [seconds, ns] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

impl KeptLease {
    /// At a moment, on two clocks.
    fn new(lease: Lease, now: Tick, boot: u64) -> KeptLease {
        KeptLease {
            address: lease.address,
            bits: lease.bits,
            method: method(lease.method),
            client: lease.client.into(),
            until: lease
                .until
                .map(|until| boot.saturating_add(until.since(now))),
        }
    }

    fn lease(self, now: Tick, boot: u64) -> Lease {
        Lease {
            address: self.address,
            bits: self.bits,
            method: match self.method {
                LearningMethod::Dhcpv4 => Method::Dhcpv4,
                LearningMethod::Dhcpv6 => Method::Dhcpv6,
                LearningMethod::Slaac => Method::Slaac,
            },
            client: self.client.into(),
            until: self.until.map(|until| now.plus(until.saturating_sub(boot))),
        }
    }
}

fn method(method: Method) -> LearningMethod {
    match method {
        Method::Dhcpv4 => LearningMethod::Dhcpv4,
        Method::Dhcpv6 => LearningMethod::Dhcpv6,
        Method::Slaac => LearningMethod::Slaac,
    }
}

/// What the addresses of a VNIC hold for.
fn place(member: &MemberState) -> Option<(MacAddr, &Name, Option<u16>)> {
    Some((member.own?, &member.bridge, member.settings.vlan))
}

impl Ports {
    /// What a VNIC has learned, for people.
    pub(super) fn learned(&self, member: &MemberState) -> Vec<LearnedAddress> {
        let now = now();
        let leases = self.plane.leases(member.id, now);
        let shown = |lease: Lease| LearnedAddress {
            address: match (lease.address, lease.bits) {
                (IpAddr::V6(prefix), bits @ ..128) => format!("{prefix}/{bits}"),
                (address, _) => address.to_string(),
            },
            method: method(lease.method),
            seconds_left: lease.until.map(|until| until.since(now) / 1_000_000_000),
        };
        leases.into_iter().map(shown).collect()
    }

    /// Gives VNICs back what they had learned with an earlier daemon. Their learners are published.
    pub(super) fn restore_leases(&mut self) {
        let left = self.leases.read();
        if left.is_empty() {
            return;
        }
        let (now, boot) = (now(), since_boot());
        for (name, member) in self.members.iter() {
            let Some(kept) = left.remove(name) else {
                continue;
            };
            if place(member) != Some((kept.mac, &kept.bridge, kept.vlan)) {
                continue;
            }
            let leases = kept.leases.into_iter().map(|kept| kept.lease(now, boot));
            let done = self.plane.restore_leases(member.id, now, leases.collect());
            if let Err(error) = done {
                tracing::error!("addresses of {name}: {error}");
            }
        }
    }

    /// What an earlier daemon has left and no VNIC has taken is nobody's.
    pub(super) fn end_restoring_leases(&mut self) {
        self.leases.left = Some(BTreeMap::new());
        self.leases_changed();
    }

    /// What VNICs have learned may be other than what is kept.
    pub(super) fn leases_changed(&mut self) {
        self.leases.changed();
    }

    /// When the file is to be written.
    pub(super) fn leases_due(&self) -> Option<Instant> {
        self.leases.due
    }

    /// Writes what is due.
    pub(super) fn run_leases(&mut self) {
        if self.leases.due.is_some_and(|due| due <= Instant::now()) {
            self.write_leases();
        }
    }

    /// Keeps what VNICs have learned.
    pub(super) fn write_leases(&mut self) {
        // Before that is read, it is all that there is.
        if self.leases.left.is_none() {
            return;
        }
        self.plane.hear_learned();
        let (now, boot) = (now(), since_boot());
        let mut vnics = BTreeMap::new();
        for (name, member) in self.members.iter() {
            let Some((mac, bridge, vlan)) = place(member) else {
                continue;
            };
            let leases = self.plane.leases(member.id, now);
            if !leases.is_empty() {
                let leases = leases.into_iter();
                let leases = leases.map(|lease| KeptLease::new(lease, now, boot));
                let kept = Kept {
                    mac,
                    bridge: bridge.clone(),
                    vlan,
                    leases: leases.collect(),
                };
                vnics.insert(name.clone(), kept);
            }
        }
        self.leases.write(vnics);
    }
}
