//! Who a process is, asked of the kernel each time that it matters.
//!
//! # Model
//! The broker remembers what a process was when it registered only to find out that it is no more: an exec (another
//! program or another place of its stack), other ids, another user namespace, or another process under the same number end
//! the registration. `no_new_privs` outlives an exec and nothing takes it back: a process that had it and has it no more is
//! another one. One that sets it later is the same, which can only get less.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use windlass_sys::identity::{Image, Rights, user_namespace};
use windlass_sys::process;

use crate::helpers::Key;

/// What the kernel says of a process.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    rights: Rights,
    /// The program that it runs.
    pub(crate) program: PathBuf,
    /// Device and inode of its user namespace.
    userns: (u64, u64),
    pub(crate) image: Image,
}

impl Identity {
    /// The identity of a process whose descriptor says that the number is still its own; `None` if it has ended, or if we
    /// may not know it.
    pub(crate) fn of(pid: u32, pidfd: &OwnedFd) -> Option<Self> {
        let identity = Self {
            image: Image::of(pid)?,
            rights: Rights::of(pid)?,
            program: fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            userns: user_namespace(pid)?,
        };
        (!process::has_ended(pidfd)).then_some(identity)
    }

    /// Whether the process is still what it was.
    pub(crate) fn holds(&self, pid: u32, pidfd: &OwnedFd) -> bool {
        Self::of(pid, pidfd).is_some_and(|now| self.is_still(&now))
    }

    pub(crate) fn is_still(&self, now: &Self) -> bool {
        let fixed = |one: &Self| (one.rights.ids, one.program.clone(), one.userns, one.image);
        fixed(self) == fixed(now) && (now.rights.no_new_privs || !self.rights.no_new_privs)
    }

    /// Whose helper serves it: none's, unless its user ids are all the same and its group ids are.
    pub(crate) fn key(&self) -> Option<Key> {
        let ([uid, ..], [gid, ..]) = (self.rights.ids.uids, self.rights.ids.gids);
        let key = Key {
            uid,
            gid,
            userns: self.userns,
        };
        (self.rights.ids == key.ids()).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    /// `no_new_privs` comes, and never goes.
    #[test]
    fn privileges_are_given_up_for_good() {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).expect("a pidfd");
        let [mut with, mut without] =
            [(); 2].map(|()| Identity::of(std::process::id(), &own).expect("an identity"));
        with.rights.no_new_privs = true;
        without.rights.no_new_privs = false;
        assert!(without.is_still(&with) && without.is_still(&without) && with.is_still(&with));
        assert!(!with.is_still(&without));
    }
}
