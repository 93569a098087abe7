//! Who a process is, asked of the kernel each time that it matters.
//!
//! # Model
//! The broker remembers what a process was when it registered only to find out that it is no more: an exec (another
//! program or another place of its stack), other ids, another user namespace, or another process under the same number end
//! the registration. `no_new_privs` outlives an exec and nothing takes it back: a process that had it and has it no more is
//! another one. One that sets it later is the same, which can only get less.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use windlass_sys::process;

use crate::helpers::Key;

/// Fields of `/proc/PID/stat` that stay as they are from one exec to the next, counted from 3 (the first one behind the
/// name): when the process was started, and where its code, stack and data begin.
const LASTING: [usize; 4] = [19, 23, 25, 42];

/// Real, effective, saved and file-system ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uids: [u32; 4],
    pub(crate) gids: [u32; 4],
}

/// What the kernel says of a process.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) ids: Ids,
    /// The program that it runs.
    pub(crate) program: PathBuf,
    /// Device and inode of its user namespace.
    pub(crate) userns: (u64, u64),
    /// The fields of [`LASTING`].
    start: [u64; LASTING.len()],
    /// What it executes gives it no more than it has.
    no_new_privs: bool,
}

impl Identity {
    /// The identity of a process whose descriptor says that the number is still its own; `None` if it has ended, or if we
    /// may not know it.
    pub(crate) fn of(pid: u32, pidfd: &OwnedFd) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let identity = Self {
            ids: ids_in(&status)?,
            no_new_privs: has_no_new_privs(&status),
            program: fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            userns: userns_of(pid)?,
            start: start_in(&stat)?,
        };
        (!process::has_ended(pidfd)).then_some(identity)
    }

    /// Whether the process is still what it was.
    pub(crate) fn holds(&self, pid: u32, pidfd: &OwnedFd) -> bool {
        Self::of(pid, pidfd).is_some_and(|now| self.is_still(&now))
    }

    pub(crate) fn is_still(&self, now: &Self) -> bool {
        let fixed = |one: &Self| (one.ids.clone(), one.program.clone(), one.userns, one.start);
        fixed(self) == fixed(now) && (now.no_new_privs || !self.no_new_privs)
    }

    /// When the process was started, in ticks since the boot.
    pub(crate) fn started(&self) -> u64 {
        let [started, ..] = self.start;
        started
    }

    /// Whose helper serves it: none's, unless its user ids are all the same and its group ids are.
    pub(crate) fn key(&self) -> Option<Key> {
        let ([uid, uids @ ..], [gid, gids @ ..]) = (self.ids.uids, self.ids.gids);
        let is_sole =
            uids.iter().all(|other| *other == uid) && gids.iter().all(|other| *other == gid);
        is_sole.then_some(Key {
            uid,
            gid,
            userns: self.userns,
        })
    }
}

/// When a process was started, in ticks since the boot; `None` if we may not know it, or if there is none.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let [started, ..] = start_in(&stat)?;
    Some(started)
}

/// Device and inode of the user namespace of a process.
pub(crate) fn userns_of(pid: u32) -> Option<(u64, u64)> {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/user")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

/// The ids of a process (`/proc/PID/status`).
pub(crate) fn ids_of(pid: u32) -> Option<Ids> {
    ids_in(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn has_no_new_privs(status: &str) -> bool {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("NoNewPrivs:"));
    value.is_some_and(|value| value.trim() == "1")
}

fn ids_in(status: &str) -> Option<Ids> {
    let row = |name: &str| -> Option<[u32; 4]> {
        let row = status.lines().find_map(|line| line.strip_prefix(name))?;
        let ids: Vec<u32> = row
            .split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect();
        ids.try_into().ok()
    };
    Some(Ids {
        uids: row("Uid:")?,
        gids: row("Gid:")?,
    })
}

fn start_in(stat: &str) -> Option<[u64; LASTING.len()]> {
    // The name may hold anything, a closing parenthesis, too: the last one ends it.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let mut words = [0; LASTING.len()];
    for (word, at) in words.iter_mut().zip(LASTING) {
        *word = fields.get(at)?.parse().ok()?;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    /// `no_new_privs` comes, and never goes.
    #[test]
    fn privileges_are_given_up_for_good() {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).expect("a pidfd");
        let before = Identity::of(std::process::id(), &own).expect("an identity");
        let without = Identity {
            no_new_privs: false,
            ..before
        };
        let with = Identity {
            no_new_privs: true,
            ..without.clone()
        };
        assert!(without.is_still(&with) && without.is_still(&without) && with.is_still(&with));
        assert!(!with.is_still(&without));
        assert!(has_no_new_privs("Name:\ta\nNoNewPrivs:\t1\n"));
        assert!(!has_no_new_privs("Name:\ta\nNoNewPrivs:\t0\n") && !has_no_new_privs(""));
    }

    /// Fields are found behind names that look like fields, and ids that differ are not one.
    #[test]
    fn odd_lines_are_read() {
        let numbers: Vec<String> = (3..60).map(|field: u32| field.to_string()).collect();
        let stat = format!("7 (a) b) 1 2) {}", numbers.join(" "));
        assert_eq!(start_in(&stat), Some([22, 26, 28, 45]));
        assert_eq!(start_in("7 (a) S"), None);
        let ids = ids_in("Uid:\t1\t2\t1\t1\nGid:\t5\t5\t5\t5\n").expect("ids");
        assert_eq!((ids.uids, ids.gids), ([1, 2, 1, 1], [5; 4]));
        assert_eq!(ids_in("Uid:\t1\t2\n"), None);
    }
}
