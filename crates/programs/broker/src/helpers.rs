//! The broker's side of its [helpers](crate::helper): who has one, what it was asked, and its end.
//!
//! # States
//! A helper is started at the first connection of a process with its ids, so that it is there when a request needs it; a
//! private broker starts that of its own ids before it takes a connection. It lives until another one needs its place
//! ([`Helpers::surplus`]). One that has a job for [`HANG_AFTER`] is killed; its jobs are refused. A killed one that does not end (a last
//! close that waits in the kernel) counts against its user until it does, and [`HUNG_PER_USER_MAX`] of them are all that a user
//! gets.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use rustix::io::{Errno, IoSlice};
use windlass_channel::Reason;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::identity::{Identity, Ids};
use windlass_sys::unix::{self, SocketKind};

use crate::helper::{GETTER, HELPER};
use crate::inquiry::Then;
use crate::jobs::{Job, MESSAGE_BYTES_MAX, Said};
use crate::limits::{HANG_AFTER, HELPERS_MAX, HELPERS_PER_USER_MAX, HUNG_PER_USER_MAX};
use crate::processes::Processes;
use crate::server::HELPER as TOKEN;
use windlass_listing::plain::Plain;

/// Whose programs a helper serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Device and inode of the user namespace.
    pub(crate) userns: (u64, u64),
}

impl Key {
    /// Whose helper serves a process: none's, unless its user ids are all the same and its group ids are.
    pub(crate) fn of(identity: &Identity) -> Option<Self> {
        let Ids { uids, gids } = identity.rights.ids;
        let ([uid, ..], [gid, ..], userns) = (uids, gids, identity.userns);
        let key = Self { uid, gid, userns };
        (identity.rights.ids == key.ids()).then_some(key)
    }

    /// The ids of its processes.
    pub(crate) fn ids(&self) -> Ids {
        Ids {
            uids: [self.uid; 4],
            gids: [self.gid; 4],
        }
    }
}

/// A living helper, with its getter.
struct Helper {
    child: Child,
    /// Where its getter comes from, if it can be started.
    getter: Option<Receiver<Child>>,
    socket: OwnedFd,
    /// The slot in which it takes locks.
    slot: u16,
    /// What comes after each, in the order in which it answers, and when that is late.
    jobs: VecDeque<(Then<Said>, Instant)>,
    used: Instant,
}

pub(crate) struct Helpers {
    program: PathBuf,
    all: HashMap<Key, Helper>,
    /// Those that were killed and may not have ended, with their users.
    dying: Vec<(u32, Vec<Child>)>,
    /// The thread that starts getters: nobody waits for that. They end with it.
    starter: Sender<(Command, Sender<Child>)>,
}

impl Helpers {
    pub(crate) fn new(program: &Path) -> Self {
        let (starter, commands) = mpsc::channel::<(Command, Sender<Child>)>();
        let start = move || {
            for (mut command, to) in commands {
                // Without it the helper cannot take everything, and is replaced when it must. Who wants it waits for it.
                let _ = command.spawn().map(|getter| to.send(getter));
            }
        };
        // Where there is none, nothing is started.
        let thread = std::thread::Builder::new().name("getter".into());
        let _ = thread.spawn(start);
        Self {
            program: program.to_owned(),
            all: HashMap::new(),
            dying: Vec::new(),
            starter,
        }
    }

    /// The slot of one that is there already.
    pub(crate) fn slot(&self, key: Key) -> Option<u16> {
        self.all.get(&key).map(|helper| helper.slot)
    }

    /// Starts one, with a getter if that can have its capability. Gives its slot.
    pub(crate) fn start(
        &mut self,
        key: Key,
        epoll: &Epoll,
        processes: &mut Processes,
    ) -> Result<u16, Reason> {
        self.reap();
        let hung = self.dying.iter().filter(|(uid, _)| *uid == key.uid);
        if hung.count() >= HUNG_PER_USER_MAX {
            return Err(Reason::NotRescuable);
        }
        let pair = || unix::pair(SocketKind::SeqPacket).map_err(|_| Reason::Limit);
        let (socket, theirs) = pair()?;
        let is_root = rustix::process::geteuid().is_root();
        let (near, far) = is_root.then(pair).transpose()?.unzip();
        let mut command = self.command(HELPER, key, theirs);
        command.stdout(near.map_or(Stdio::null(), Stdio::from));
        let child = command.spawn().map_err(|_| Reason::Limit)?;
        let getter = far.map(|far| {
            let (to, getter) = mpsc::channel();
            let _ = self.starter.send((self.command(GETTER, key, far), to));
            getter
        });
        let held = processes.hold_helper(epoll, child.id());
        let slot = held.unwrap_or(0);
        let watched = epoll.add(&socket, TOKEN | u64::from(slot), Interest::READABLE);
        let helper = Helper {
            child,
            getter,
            socket,
            slot,
            jobs: VecDeque::new(),
            used: Instant::now(),
        };
        self.all.insert(key, helper);
        if held.is_none() || watched.is_err() {
            self.kill(key);
            return Err(Reason::Limit);
        }
        Ok(slot)
    }

    /// The program in this role, with the broker or the helper behind its standard input.
    fn command(&self, role: &str, key: Key, stdin: OwnedFd) -> Command {
        let (device, inode) = key.userns;
        let numbers = [key.uid.into(), key.gid.into(), device, inode];
        let mut command = Command::new(&self.program);
        command.arg(role);
        command.args(numbers.map(|number| number.to_string()));
        command.env_clear().current_dir("/").stdin(stdin);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Whether there is a helper for a user and group, in whatever namespace.
    pub(crate) fn has_any(&self, uid: u32, gid: u32) -> bool {
        let mut keys = self.all.keys();
        keys.any(|key| (key.uid, key.gid) == (uid, gid))
    }

    /// The one that ends to make place for another one of a user; `None` while there is room. It is one of the same user if that
    /// has too many, else one of the user with most of them, of those outside the namespace `own` first; among these the idlest.
    pub(crate) fn surplus(&self, uid: u32, own: (u64, u64)) -> Option<Key> {
        let count = |uid| self.all.keys().filter(|key| key.uid == uid).count();
        let has_too_many = count(uid) >= HELPERS_PER_USER_MAX;
        if !has_too_many && self.all.len() < HELPERS_MAX {
            return None;
        }
        let candidates = self.all.iter();
        let candidates = candidates.filter(|(key, _)| !has_too_many || key.uid == uid);
        let first = candidates.min_by_key(|(key, helper)| {
            (
                key.userns == own,
                Reverse(count(key.uid)),
                !helper.jobs.is_empty(),
                helper.used,
            )
        });
        first.map(|(key, _)| *key)
    }

    /// Gives a job to a helper that was started, if it has fewer than `max`.
    pub(crate) fn send(
        &mut self,
        key: Key,
        max: usize,
        job: &Job,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Reason> {
        let helper = self.all.get_mut(&key);
        let helper = helper.filter(|helper| helper.jobs.len() < max);
        let helper = helper.ok_or(Reason::Limit)?;
        helper.used = Instant::now();
        let sent = unix::send_with_fds(&helper.socket, &[IoSlice::new(&job.to_bytes())], fds);
        // One whose socket is full has more to do than it can.
        sent.map(drop).map_err(|_| Reason::Limit)
    }

    /// The helper that has just got a job will answer it.
    pub(crate) fn expect(&mut self, key: Key, then: Then<Said>) {
        if let Some(helper) = self.all.get_mut(&key) {
            helper.jobs.push_back((then, helper.used + HANG_AFTER));
        }
    }

    /// The next answer of the helper in a slot; `None` if there is none, an error if it has ended.
    pub(crate) fn answer(&mut self, slot: u16) -> Result<Option<(Key, Then<Said>, Said)>, Key> {
        let mut all = self.all.iter_mut();
        let Some((key, helper)) = all.find(|(_, helper)| helper.slot == slot) else {
            return Ok(None);
        };
        let mut message = [0; MESSAGE_BYTES_MAX];
        match unix::receive_with_fds(&helper.socket, &mut message, 0) {
            Ok(received) if received.bytes > 0 => {
                let said = message.get(..received.bytes).and_then(Plain::of_bytes);
                let said = said.zip(helper.jobs.pop_front());
                let said = said.map(|(said, (then, _))| Some((*key, then, said)));
                said.ok_or(*key)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            _ => Err(*key),
        }
    }

    /// The one whose oldest job is late first, and when it is.
    pub(crate) fn next_late(&self) -> Option<(Instant, Key)> {
        let all = self.all.iter();
        let oldest = all.filter_map(|(key, helper)| Some((helper.jobs.front()?.1, *key)));
        oldest.min()
    }

    /// Kills one. Others see it dead once it has ended. Gives what its jobs went on with.
    pub(crate) fn kill(&mut self, key: Key) -> Vec<Then<Said>> {
        let Some(helper) = self.all.remove(&key) else {
            return Vec::new();
        };
        let getter = helper.getter.and_then(|getter| getter.recv().ok());
        let mut children: Vec<Child> = getter.into_iter().chain([helper.child]).collect();
        for child in &mut children {
            // It has ended, or will.
            let _ = child.kill();
        }
        self.dying.push((key.uid, children));
        helper.jobs.into_iter().map(|(then, _)| then).collect()
    }

    /// Forgets those that have ended since they were killed.
    pub(crate) fn reap(&mut self) {
        self.dying.retain_mut(|(_, children)| {
            children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            !children.is_empty()
        });
    }
}
