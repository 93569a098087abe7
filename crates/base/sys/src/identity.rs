//! Who another process is, as `/proc` says at this moment.
//!
//! # Model
//! A number means a process only as long as that is there: who asks holds a pidfd, and asks [`has_ended`] afterwards.
//! `None` is what may not be known, or of a process that is not there.
//!
//! Who remembers an [`Identity`] does so to find out that the process is another one: an exec (another program or another place of
//! its stack), other ids, another user namespace, or another process under the same number. `no_new_privs` outlives an exec and nothing
//! takes it back: a process that had it and has it no more is another one. One that sets it later is the same, which can only get
//! less.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::process::{Pinned, has_ended};

/// Fields of `/proc/PID/stat` that stay as they are from one exec to the next, counted from 3 (the first one behind the
/// name): when the process was started, and where its code, stack and data begin.
const LASTING: [usize; 4] = [19, 23, 25, 42];

/// Real, effective, saved and file-system ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// Of the user.
    pub uids: [u32; 4],
    /// Of the group.
    pub gids: [u32; 4],
}

/// What a process may do (`/proc/PID/status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Its ids.
    pub ids: Ids,
    /// Its effective capabilities, a bit each (`capabilities(7)`).
    pub effective: u64,
    /// What it executes gives it no more than it has.
    pub no_new_privs: bool,
}

impl Rights {
    /// Those of a process.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let row = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids = |name| -> Option<[u32; 4]> {
            let ids = row(name)?.split_whitespace().map(|id| id.parse().ok());
            ids.collect::<Option<Vec<u32>>>()?.try_into().ok()
        };
        Some(Self {
            ids: Ids {
                uids: ids("Uid:")?,
                gids: ids("Gid:")?,
            },
            effective: u64::from_str_radix(row("CapEff:")?.trim(), 16).ok()?,
            no_new_privs: row("NoNewPrivs:")?.trim() == "1",
        })
    }
}

/// What a process has from one exec to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image([u64; LASTING.len()]);

impl Image {
    /// That of a process.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name may hold anything, a closing parenthesis, too: the last one ends it.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let mut words = [0; LASTING.len()];
        for (word, at) in words.iter_mut().zip(LASTING) {
            *word = fields.get(at)?.parse().ok()?;
        }
        Some(Self(words))
    }

    /// When the process was started, in ticks since the boot.
    pub fn started(&self) -> u64 {
        let [started, ..] = self.0;
        started
    }
}

/// Device and inode of the user namespace of a process.
pub fn user_namespace(pid: u32) -> Option<(u64, u64)> {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/user")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

/// What a process is called; it chooses that itself.
pub fn comm(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().into())
}

/// The ids of all processes that may be seen.
pub fn processes() -> impl Iterator<Item = u32> {
    numbers_in("/proc".to_owned())
}

/// The numbers of a process's open descriptors, as far as they may be seen.
pub fn descriptors(pid: u32) -> impl Iterator<Item = i32> {
    numbers_in(format!("/proc/{pid}/fd"))
}

fn numbers_in<T: FromStr>(directory: String) -> impl Iterator<Item = T> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process has a socket under a number.
pub fn is_socket(pid: u32, fd: i32) -> bool {
    let target = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    target.is_ok_and(|target| {
        target
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"socket:")
    })
}

/// Who a process is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What it may do.
    pub rights: Rights,
    /// The program that it runs.
    pub program: PathBuf,
    /// Device and inode of its user namespace.
    pub userns: (u64, u64),
    /// What it has from one exec to the next.
    pub image: Image,
}

impl Identity {
    /// The identity of a process whose descriptor says that the number is still its own; `None` if it has ended, or if we
    /// may not know it.
    pub fn of((pid, pidfd): &Pinned) -> Option<Self> {
        let pid = *pid;
        let identity = Self {
            image: Image::of(pid)?,
            rights: Rights::of(pid)?,
            program: fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            userns: user_namespace(pid)?,
        };
        (!has_ended(pidfd)).then_some(identity)
    }

    /// Whether the process is still what it was.
    pub fn holds(&self, process: &Pinned) -> bool {
        Self::of(process).is_some_and(|now| self.is_still(&now))
    }

    /// Whether a process that was this can be that now.
    pub fn is_still(&self, now: &Self) -> bool {
        let fixed = |one: &Self| (one.rights.ids, one.program.clone(), one.userns, one.image);
        fixed(self) == fixed(now) && (now.rights.no_new_privs || !self.rights.no_new_privs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::pin;

    /// Fields are found behind names that look like fields.
    #[test]
    fn odd_names_are_read() {
        let numbers: Vec<String> = (3..60).map(|field: u32| field.to_string()).collect();
        let stat = format!("7 (a) b) 1 2) {}", numbers.join(" "));
        assert_eq!(Image::parse(&stat), Some(Image([22, 26, 28, 45])));
        assert_eq!(Image::parse("7 (a) S"), None);
        let own = Image::of(std::process::id()).expect("our own");
        assert!(own.started() > 0);
    }

    /// Ids that differ are not one, and what is not there is not made up.
    #[test]
    fn rights_are_read() {
        let text = "Name:\ta\nUid:\t1\t2\t1\t1\nGid:\t5\t5\t5\t5\nCapEff:\t00000000a80425fb\nNoNewPrivs:\t1\n";
        let rights = Rights::parse(text).expect("rights");
        assert_eq!((rights.ids.uids, rights.ids.gids), ([1, 2, 1, 1], [5; 4]));
        assert_eq!((rights.effective, rights.no_new_privs), (0xa804_25fb, true));
        let without = Rights::parse(&text.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0"));
        assert!(without.is_some_and(|rights| !rights.no_new_privs));
        assert_eq!(Rights::parse("Uid:\t1\t2\n"), None);
        assert_eq!(Rights::parse(&text.replace("Uid:\t1", "Uid:\tx")), None);
    }

    /// `no_new_privs` comes, and never goes.
    #[test]
    fn privileges_are_given_up_for_good() {
        let own = pin(std::process::id()).expect("a pidfd");
        let [mut with, mut without] = [(); 2].map(|()| Identity::of(&own).expect("an identity"));
        with.rights.no_new_privs = true;
        without.rights.no_new_privs = false;
        assert!(without.is_still(&with) && without.is_still(&without) && with.is_still(&with));
        assert!(!with.is_still(&without));
    }
}
