//! A process that takes what a [helper](crate::helper) may not: `CAP_SYS_PTRACE` and nothing else.
//!
//! # Purpose
//! `pidfd_getfd(2)` refuses a program that is not dumpable (it changed its ids without an exec, as nginx's workers do) or
//! has capabilities. Such a program is accelerated all the same where it is plainly its user's.
//!
//! # Model
//! At that moment all ids of the program and its user namespace must be those of the helper, its file must not be set-id or have
//! capabilities, and the descriptor must be a stream socket with the cookie that was named. Then the copy goes to the helper
//! at once, by `SCM_RIGHTS`; the getter does nothing with it. Each helper of root's broker has a getter for its own ids and
//! namespace, from its start on, and nobody else talks with it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use windlass_channel::Reason;
use windlass_sys::identity::{Rights, user_namespace};
use windlass_sys::process;

use crate::helper::{Answer, from_processes};
use crate::helpers::Key;
use crate::jobs::Job;

/// `S_ISUID` and `S_ISGID`.
const SET_ID: u32 = 0o6000;

/// Takes a socket from the first process that has it.
pub(crate) fn fetch(job: &Job, pidfds: &[OwnedFd], key: Key) -> Answer {
    let is_theirs = |pidfd: &OwnedFd, pid| is_plain(pid, key) && !process::has_ended(pidfd);
    match from_processes(job, pidfds, is_theirs) {
        Ok((facts, socket)) => (Ok(facts), socket),
        Err(Reason::Limit) => (Err(Reason::Limit), None),
        Err(_) => (Err(Reason::NotRescuable), None),
    }
}

/// Whether the process has these ids alone, in this user namespace, and did not get them by its file.
fn is_plain(pid: u32, key: Key) -> bool {
    let program = format!("/proc/{pid}/exe");
    let set_id = std::fs::metadata(&program).map(|meta| meta.mode() & SET_ID != 0);
    let raised = rustix::fs::getxattr(&program, "security.capability", &mut [0_u8; 64]);
    let is_raised = !matches!(raised, Err(Errno::NODATA | Errno::NOTSUP));
    Rights::of(pid).is_some_and(|rights| rights.ids == key.ids())
        && user_namespace(pid) == Some(key.userns)
        && set_id.is_ok_and(|set_id| !set_id)
        && !is_raised
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program is taken from only if ids and user namespace are just those that were named.
    #[test]
    fn ids_and_namespace_are_compared() {
        let pid = std::process::id();
        let key = |uid, gid, userns| Key { uid, gid, userns };
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let userns = user_namespace(pid).expect("a namespace");
        assert!(is_plain(pid, key(uid, gid, userns)));
        assert!(!is_plain(pid, key(uid ^ 1, gid, userns)));
        assert!(!is_plain(pid, key(uid, gid ^ 1, userns)));
        assert!(!is_plain(pid, key(uid, gid, (userns.0, userns.1 ^ 1))));
    }
}
