//! The processes that the broker knows, and the slots that stand for them in shared memory.
//!
//! # Model
//! A slot belongs to a process from its registration to its death or exec, and then until the last slab that names it is gone.
//! Slots are given round robin, so that a number comes back as late as possible. The [table](crate::table) of processes, which
//! every process maps for reading, has the process id of each slot, and 0 from the moment of its death on: that is how a waiter
//! learns that the owner of a lock died.
//!
//! A process that a former broker has left keeps its slot until it ends. It gets the same one when it registers here, since its
//! peers of before know it by that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use windlass_channel::Reason;
use windlass_channel::layout::{DIRECTORY_BYTES, STATUS_BYTES};
use windlass_channel::protocol::BROKER_SLOT;
use windlass_channel::snapshot::MappedTable;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::identity::{self, Identity, Image};
use windlass_sys::process::{self, Pinned};
use windlass_sys::sealed;

use crate::helpers::Key;
use crate::inquiry::Target;
use crate::jobs::Job;
use crate::limits::{PROCESSES_MAX, PROCESSES_PER_USER_MAX};
use crate::server::PROCESS;
use crate::table::Table;

/// What is known of a process when it registers.
pub(crate) struct Newcomer {
    pub(crate) process: Pinned,
    /// Its ids and user namespace.
    pub(crate) key: Key,
    /// What it was: see [`Identity`].
    pub(crate) identity: Identity,
    /// Whose connections its directory lists: its user's, or those of the users that rules join with him, by the lowest of them;
    /// `None`: those of all who were started with `--share`.
    pub(crate) group: Option<u32>,
    pub(crate) netns: u64,
    /// Address in it of what may be read about its sockets.
    pub(crate) report: u64,
}

impl Newcomer {
    pub(crate) fn pid(&self) -> u32 {
        self.process.0
    }

    /// The socket that it has under a number.
    pub(crate) fn target(&self, fd: i32, cookie: u64) -> Target {
        Target {
            key: self.key,
            sources: vec![self.process.clone()],
            job: Job {
                fd,
                cookie,
                ..Job::default()
            },
        }
    }
}

/// A process that registered.
pub(crate) struct Process {
    pub(crate) who: Newcomer,
    pub(crate) comm: String,
    /// Its status page, for reading.
    pub(crate) status: OwnedFd,
    /// Where it and those of its group and network namespace write their connections.
    pub(crate) directory: Arc<OwnedFd>,
    /// Slabs that it uses.
    pub(crate) slabs: BTreeSet<u32>,
    /// It died, or is another program now.
    pub(crate) dead: bool,
}

pub(crate) struct Processes {
    slots: BTreeMap<u16, Process>,
    /// Those that hold a slot without having registered here, and when they were started: what a former broker has left, and
    /// helpers, which take locks, too.
    held: BTreeMap<u16, (Pinned, u64)>,
    /// Where the living ones are, but for helpers.
    by_pid: HashMap<u32, u16>,
    last: u16,
    pub(crate) table: Table,
    /// What the table says of the owners of locks.
    pub(crate) lives: MappedTable,
}

impl Processes {
    /// Those that a former broker at this socket has left, and no others.
    pub(crate) fn new(socket: &Path, epoll: &Epoll) -> Result<Self, Errno> {
        let table = Table::beside(socket)?;
        let (left, last) = table.left();
        let lives = MappedTable::open(table.reader()).ok_or(Errno::NOMEM)?;
        let mut processes = Self {
            slots: BTreeMap::new(),
            held: BTreeMap::new(),
            by_pid: HashMap::new(),
            last,
            table,
            lives,
        };
        for (slot, pid, started) in left {
            match processes.hold(epoll, slot, pid, started) {
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC)) => {
                    return Err(errno);
                }
                Err(_) => processes.table.clear(slot),
                Ok(()) => drop(processes.by_pid.insert(pid, slot)),
            }
        }
        Ok(processes)
    }

    /// Has a process hold a slot until it ends; an error if it has.
    fn hold(&mut self, epoll: &Epoll, slot: u16, pid: u32, started: u64) -> Result<(), Errno> {
        let process = process::pin(pid)?;
        // One that we may not know of is believed to live.
        if Image::of(pid).is_some_and(|image| image.started() != started) {
            return Err(Errno::SRCH);
        }
        watch(epoll, slot, &process.1)?;
        self.held.insert(slot, (process, started));
        Ok(())
    }

    /// A slot for a helper that was started, until it ends.
    pub(crate) fn hold_helper(&mut self, epoll: &Epoll, pid: u32) -> Option<u16> {
        let slot = self.free_slot()?;
        let started = Image::of(pid)?.started();
        self.hold(epoll, slot, pid, started).ok()?;
        self.last = slot;
        self.table.put(slot, pid, started, slot);
        Some(slot)
    }

    /// The slot that a process needs to go on with what it has: the one that it had with a former broker, or the one that it was
    /// given here by an answer that came too late. Such a process uses no slab.
    pub(crate) fn own_slot(&self, who: &Newcomer) -> Option<u16> {
        let slot = *self.by_pid.get(&who.pid())?;
        let is_same = |process: &Process| process.who.identity.is_still(&who.identity);
        let is_its = match self.held.get(&slot) {
            Some((_, started)) => *started == who.identity.image.started(),
            None => (self.living(slot)).is_some_and(|it| is_same(it) && it.slabs.is_empty()),
        };
        is_its.then_some(slot)
    }

    /// The slot of the living process of this id.
    pub(crate) fn by_pid(&self, pid: u32) -> Option<u16> {
        let slot = self.by_pid.get(&pid).copied();
        slot.filter(|slot| self.living(*slot).is_some())
    }

    /// The process in a slot if it lives.
    pub(crate) fn living(&self, slot: u16) -> Option<&Process> {
        let process = self.slots.get(&slot)?;
        // A process id means that process only as long as the process is there.
        (!process.dead && !process::has_ended(&process.who.process.1)).then_some(process)
    }

    /// The process in a slot, dead or alive.
    pub(crate) fn get(&self, slot: u16) -> Option<&Process> {
        self.slots.get(&slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Process)> {
        self.slots.iter().map(|(slot, process)| (*slot, process))
    }

    /// Whether any lives that is no helper.
    pub(crate) fn any_lives(&self) -> bool {
        !self.by_pid.is_empty()
    }

    /// Takes a process in, in its [own slot](Self::own_slot) if it has one. Gives the slot, and its status page, to be written.
    pub(crate) fn admit(&mut self, epoll: &Epoll, who: Newcomer) -> Result<(u16, OwnedFd), Reason> {
        let of_user = |process: &&Process| process.who.key.uid == who.key.uid;
        let is_full = self.slots.len() >= PROCESSES_MAX
            || self.slots.values().filter(of_user).count() >= PROCESSES_PER_USER_MAX;
        let own = self.own_slot(&who);
        let slot = own.or_else(|| self.free_slot()).filter(|_| !is_full);
        let slot = slot.ok_or(Reason::Limit)?;
        let limit = |_| Reason::Limit;
        let status = sealed::create("windlass-status", STATUS_BYTES).map_err(limit)?;
        let reader = sealed::reader_of(&status).map_err(limit)?;
        let mut all = self.slots.values().filter(|process| !process.dead);
        let with = all.find(|with| (with.who.group, with.who.netns) == (who.group, who.netns));
        let directory = match with {
            Some(process) => Arc::clone(&process.directory),
            None => {
                let memory = sealed::create("windlass-directory", DIRECTORY_BYTES);
                Arc::new(memory.map_err(limit)?)
            }
        };
        watch(epoll, slot, &who.process.1).map_err(limit)?;
        let held = self.held.remove(&slot).map(|(process, _)| process);
        let former = held.or_else(|| Some(self.slots.remove(&slot)?.who.process));
        if let Some((_, pidfd)) = former {
            // It is watched by the new descriptor from now on.
            let _ = epoll.remove(pidfd);
        }
        if own.is_none() {
            self.last = slot;
        }
        let (pid, started) = (who.pid(), who.identity.image.started());
        self.table.put(slot, pid, started, self.last);
        self.by_pid.insert(pid, slot);
        let process = Process {
            comm: identity::comm(pid).unwrap_or_default(),
            who,
            status: reader,
            directory,
            slabs: BTreeSet::new(),
            dead: false,
        };
        self.slots.insert(slot, process);
        Ok((slot, status))
    }

    fn free_slot(&self) -> Option<u16> {
        let after = self.last.saturating_add(1)..BROKER_SLOT;
        let mut slots = after.chain(1..BROKER_SLOT);
        slots.find(|slot| !self.slots.contains_key(slot) && !self.held.contains_key(slot))
    }

    /// The process uses this slab from now on.
    pub(crate) fn uses(&mut self, slot: u16, slab: u32) {
        if let Some(process) = self.slots.get_mut(&slot) {
            process.slabs.insert(slab);
        }
    }

    /// The process has died, or become another program. Its slot stays taken as long as slabs name it. Gives its id and its
    /// slabs; `None` if there is nobody to be buried.
    pub(crate) fn bury(&mut self, epoll: &Epoll, slot: u16) -> Option<(u32, Vec<u32>)> {
        let held = self.held.remove(&slot).map(|(process, _)| process);
        let registered = || self.get(slot).filter(|process| !process.dead);
        let process = held.or_else(|| Some(registered()?.who.process.clone()));
        let (pid, pidfd) = process?;
        // Another slot may watch the same process; only this descriptor is taken out.
        let _ = epoll.remove(pidfd);
        self.table.clear(slot);
        if self.by_pid.get(&pid) == Some(&slot) {
            self.by_pid.remove(&pid);
        }
        let process = self.slots.get_mut(&slot)?;
        process.dead = true;
        let slabs = process.slabs.iter().copied().collect();
        self.release(slot);
        Some((pid, slabs))
    }

    /// The slab is gone.
    pub(crate) fn forget(&mut self, slot: u16, slab: u32) {
        if let Some(process) = self.slots.get_mut(&slot) {
            process.slabs.remove(&slab);
        }
        self.release(slot);
    }

    /// Gives a slot back whose process died, once no slab names it.
    fn release(&mut self, slot: u16) {
        let process = self.get(slot);
        if process.is_some_and(|process| process.dead && process.slabs.is_empty()) {
            self.slots.remove(&slot);
        }
    }
}

fn watch(epoll: &Epoll, slot: u16, pidfd: &OwnedFd) -> Result<(), Errno> {
    epoll.add(pidfd, PROCESS | u64::from(slot), Interest::READABLE)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn newcomer(uid: u32) -> Newcomer {
        let process = process::pin(std::process::id()).expect("a pidfd");
        let (gid, userns) = (uid, (0, 0));
        Newcomer {
            key: Key { uid, gid, userns },
            identity: Identity::of(&process).expect("an identity"),
            process,
            group: Some(uid),
            netns: 1,
            report: 0,
        }
    }

    pub(crate) fn nobody() -> (Epoll, Processes) {
        let directory = tempfile::tempdir().expect("a directory");
        let epoll = Epoll::create().expect("epoll");
        let processes = Processes::new(&directory.path().join("a"), &epoll).expect("memory");
        (epoll, processes)
    }

    /// Takes this process in, as another program each time.
    pub(crate) fn admit(epoll: &Epoll, processes: &mut Processes, uid: u32) -> Result<u16, Reason> {
        processes.by_pid.clear();
        Ok(processes.admit(epoll, newcomer(uid))?.0)
    }

    /// Whether a test may have so many descriptors.
    pub(crate) fn has_descriptors(test: &str, count: usize) -> bool {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let has = files.is_none_or(|files| files >= count as u64);
        if !has {
            println!("skipped: {test}: too few descriptors");
        }
        has
    }

    /// A slot outlives its process as long as a slab names it, and is given again last of all.
    #[test]
    fn slots_are_given_round_robin() {
        let (epoll, mut processes) = nobody();
        assert_eq!(admit(&epoll, &mut processes, 7), Ok(1));
        assert_eq!(admit(&epoll, &mut processes, 7), Ok(2));
        processes.uses(1, 9);
        let pid = std::process::id();
        assert_eq!(processes.bury(&epoll, 1), Some((pid, vec![9])));
        assert_eq!(processes.bury(&epoll, 1), None, "dies once");
        assert!(processes.get(1).is_some() && processes.living(1).is_none());
        processes.forget(1, 9);
        assert!(processes.get(1).is_none());
        assert_eq!(admit(&epoll, &mut processes, 7), Ok(3));
        processes.last = BROKER_SLOT - 1;
        assert_eq!(admit(&epoll, &mut processes, 7), Ok(1));
        let after = admit(&epoll, &mut processes, 7);
        assert_eq!(after, Ok(4), "after the ones in use");
    }

    /// One user has so many and no more; another still gets in.
    #[test]
    fn processes_of_a_user_are_limited() {
        if !has_descriptors(
            "processes_of_a_user_are_limited",
            3 * PROCESSES_PER_USER_MAX,
        ) {
            return;
        }
        let (epoll, mut processes) = nobody();
        for _ in 0..PROCESSES_PER_USER_MAX {
            assert!(admit(&epoll, &mut processes, 7).is_ok());
        }
        assert_eq!(admit(&epoll, &mut processes, 7), Err(Reason::Limit));
        assert!(admit(&epoll, &mut processes, 8).is_ok());
    }
}
