//! Questions to helpers, and what is done with their answers.
//!
//! # States
//! An inquiry asks for one socket or two, each by a job of its own. It is *open* until each job is answered, refused or
//! late; then it goes on with what it was for: a registration, the memory of a pair, a proof, or a rescue, of which the move
//! itself is one more inquiry. A job that the helper may not do is done once more through the getter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use windlass_channel::Reason;
use windlass_sys::epoll::Interest;
use windlass_sys::unix::{self, SocketKind};

use crate::facts::Facts;
use crate::helpers::{Key, Role};
use crate::identity::Identity;
use crate::jobs::{Job, SOURCES_MAX, Said, Source, Task};
use crate::limits::{JOBS_PER_HELPER_MAX, WATCH_JOBS_PER_HELPER_MAX};
use crate::processes::Newcomer;
use crate::server::{Broker, HELPER};

/// A socket to be found.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Whose helper does it.
    pub(crate) key: Key,
    /// The processes that may have it.
    pub(crate) sources: Vec<(u32, Arc<OwnedFd>)>,
    /// The number under which they may.
    pub(crate) fd: i32,
    pub(crate) cookie: u64,
    /// Descriptors that may be looked at if it is not there.
    pub(crate) looks: u32,
}

/// What an inquiry is for.
#[derive(Debug)]
pub(crate) enum Then {
    /// A process is taken in.
    Register {
        newcomer: Box<Newcomer>,
        parent: u16,
    },
    /// Two processes get memory.
    Pair { own: u16, peer: u16, full: u16 },
    /// Two ends of a channel are one connection.
    Prove { same_user: bool },
    /// Bytes are moved into the socket that is found first.
    Rescue(Place, Target),
    /// They were.
    Reclaim(Place),
}

/// One direction of a channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slab: u32,
    pub(crate) chan: u16,
    pub(crate) side: u8,
    pub(crate) same_user: bool,
    pub(crate) connected: bool,
}

/// What is known of a socket that was asked for.
pub(crate) type Found = Result<Facts, Reason>;

/// A question that is not answered yet.
#[derive(Debug)]
pub(crate) struct Inquiry {
    /// The connection that waits for the answer; none where the broker itself asks.
    pub(crate) token: Option<u64>,
    pub(crate) then: Then,
    open: usize,
    said: [Option<Said>; 2],
}

/// A job at a helper.
#[derive(Debug)]
pub(crate) struct Asked {
    inquiry: u64,
    at: usize,
    target: Target,
    source: Source,
    task: Task,
}

fn found(said: Option<Said>) -> Found {
    match said {
        Some(Said::Facts(facts)) => Ok(facts),
        Some(Said::Refused(reason)) => Err(reason),
        // To be asked again.
        Some(Said::Late) => Err(Reason::NoDaemon),
        _ => Err(Reason::NotRescuable),
    }
}

impl Broker {
    /// Asks for these sockets, and goes on with `then`.
    pub(crate) fn inquire(&mut self, token: Option<u64>, then: Then, targets: Vec<Option<Target>>) {
        self.ask_all(token, then, targets, Task::Look);
    }

    /// Has the bytes of a place moved into a socket.
    pub(crate) fn reclaim(&mut self, token: Option<u64>, place: Place, target: Target) {
        let task = Task::Reclaim {
            slab: place.slab,
            chan: place.chan,
            side: place.side,
            connected: place.connected,
            slot: 0,
        };
        self.ask_all(token, Then::Reclaim(place), vec![Some(target)], task);
    }

    fn ask_all(
        &mut self,
        token: Option<u64>,
        then: Then,
        targets: Vec<Option<Target>>,
        task: Task,
    ) {
        self.next_id += 1;
        let id = self.next_id;
        let inquiry = Inquiry {
            token,
            then,
            open: targets.len(),
            said: [None; 2],
        };
        self.inquiries.insert(id, inquiry);
        for (at, target) in targets.into_iter().enumerate() {
            match target {
                Some(target) => self.ask(Asked {
                    inquiry: id,
                    at,
                    target,
                    source: Source::Process,
                    task,
                }),
                None => self.hear(id, at, Said::Refused(Reason::PeerPlain)),
            }
        }
    }

    fn ask(&mut self, asked: Asked) {
        self.next_id += 1;
        let id = self.next_id;
        match self.hand(id, &asked) {
            Ok(()) => drop(self.jobs.insert(id, asked)),
            Err(reason) => self.hear(asked.inquiry, asked.at, Said::Refused(reason)),
        }
    }

    /// Gives a job to the helper that it is for.
    fn hand(&mut self, id: u64, asked: &Asked) -> Result<(), Reason> {
        let target = &asked.target;
        let inquiry = self.inquiries.get(&asked.inquiry);
        let max = match inquiry.and_then(|inquiry| inquiry.token) {
            Some(_) => JOBS_PER_HELPER_MAX,
            None => WATCH_JOBS_PER_HELPER_MAX,
        };
        self.provide(target.key, Role::Helper)?;
        let task = match asked.task {
            Task::Reclaim {
                slab,
                chan,
                side,
                connected,
                ..
            } => Task::Reclaim {
                slab,
                chan,
                side,
                connected,
                slot: self.helpers.slot(target.key).ok_or(Reason::Limit)?,
            },
            task => task,
        };
        let mut job = Job {
            id,
            source: asked.source,
            fd: target.fd,
            cookie: target.cookie,
            looks: target.looks,
            pids: [0; SOURCES_MAX],
            task,
        };
        for (to, (pid, _)) in job.pids.iter_mut().zip(&target.sources) {
            *to = *pid;
        }
        let sources = || -> Vec<BorrowedFd<'_>> {
            let named = target.sources.iter().take(SOURCES_MAX);
            named.map(|(_, pidfd)| pidfd.as_fd()).collect()
        };
        let courier = match asked.source {
            Source::Process => None,
            Source::Courier => {
                self.provide(target.key, Role::Getter)?;
                let (near, far) = unix::pair(SocketKind::SeqPacket).map_err(|_| Reason::Limit)?;
                let fetch = Job {
                    task: Task::Fetch { key: target.key },
                    ..job
                };
                let fds = [&sources()[..], &[near.as_fd()]].concat();
                self.helpers
                    .ask((target.key, Role::Getter), max, &fetch, &fds)?;
                Some(far)
            }
        };
        let mut fds: Vec<BorrowedFd<'_>> = match &courier {
            Some(courier) => vec![courier.as_fd()],
            None => sources(),
        };
        if let Task::Reclaim { slab, .. } = task {
            let slab = self.slabs.get(slab).ok_or(Reason::NotEligible)?;
            fds.extend([slab.memory.as_fd(), self.processes.table()]);
        }
        self.helpers
            .ask((target.key, Role::Helper), max, &job, &fds)
    }

    /// Starts the helper of a process that has connected or is about to, if the process may have one: a failure is found
    /// again by the request that needs it.
    pub(crate) fn prepare(&mut self, pid: u32, pidfd: &OwnedFd) {
        let identity = Identity::of(pid, pidfd);
        let key = identity.as_ref().and_then(Identity::key);
        let is_served =
            |identity: &Identity, key: &Key| self.policy.admits(key.uid, &identity.program);
        if let Some((identity, key)) = identity.as_ref().zip(key)
            && is_served(identity, &key)
        {
            let _ = self.provide(key, Role::Helper);
        }
    }

    /// Sees to it that there is a helper or a getter for a key.
    fn provide(&mut self, key: Key, role: Role) -> Result<(), Reason> {
        if self.helpers.has(key, role) {
            return Ok(());
        }
        if !self.users.may_start(key.uid, Instant::now()) {
            // To be asked again.
            return Err(Reason::NoDaemon);
        }
        if let Some(surplus) = self.helpers.surplus(key.uid, self.userns) {
            self.lose(surplus);
        }
        let slot = match role {
            Role::Helper => self.processes.helper_slot().ok_or(Reason::Limit)?,
            Role::Getter => 0,
        };
        let (pid, socket, token) = self.helpers.start(key, role, slot)?;
        let watched = self.epoll.add(socket, HELPER | token, Interest::READABLE);
        if slot != 0 {
            self.processes.helper_lives(slot, pid);
        }
        watched.map_err(|_| {
            self.lose((key, role));
            Reason::Limit
        })
    }

    /// A helper has something to say, or has ended.
    pub(crate) fn helper_speaks(&mut self, token: u64) {
        loop {
            match self.helpers.answer(token) {
                Ok(Some((id, said))) => self.answered(id, said),
                Ok(None) => return,
                Err(key) => return self.lose(key),
            }
        }
    }

    /// Ends helpers that do not answer, and buries those that have ended.
    pub(crate) fn tend_helpers(&mut self, now: Instant) {
        while let Some(key) = self.helpers.late(now) {
            self.lose(key);
        }
        for slot in self.helpers.reap() {
            self.processes.helper_died(slot);
        }
    }

    fn lose(&mut self, key: (Key, Role)) {
        for id in self.helpers.kill(key) {
            self.answered(id, Said::Late);
        }
    }

    fn answered(&mut self, id: u64, said: Said) {
        let Some(asked) = self.jobs.remove(&id) else {
            return;
        };
        let is_first = asked.source == Source::Process;
        if said == Said::OutOfReach && is_first && rustix::process::geteuid().is_root() {
            return self.ask(Asked {
                source: Source::Courier,
                ..asked
            });
        }
        if said == Said::Late {
            // The getter hangs.
            self.lose((asked.target.key, Role::Getter));
        }
        self.hear(asked.inquiry, asked.at, said);
    }

    fn hear(&mut self, inquiry: u64, at: usize, said: Said) {
        let Some(open) = self.inquiries.get_mut(&inquiry) else {
            return;
        };
        if let Some(place) = open.said.get_mut(at) {
            *place = Some(said);
        }
        open.open -= 1;
        if open.open == 0
            && let Some(Inquiry {
                token, then, said, ..
            }) = self.inquiries.remove(&inquiry)
        {
            self.go_on(token, then, said);
        }
    }

    fn go_on(&mut self, token: Option<u64>, then: Then, [first, second]: [Option<Said>; 2]) {
        let done = match then {
            Then::Register { newcomer, parent } => {
                found(first).and_then(|facts| self.take_in(token, *newcomer, parent, &facts))
            }
            Then::Pair { own, peer, full } => match (found(first), found(second)) {
                (Ok(near), Ok(far)) => self.paired(token, (own, peer), full, (&near, &far)),
                (Err(reason), _) => Err(reason),
                (_, Err(_)) => Err(Reason::Mismatch),
            },
            Then::Prove { same_user } => match (found(first), found(second)) {
                (Ok(near), Ok(far)) if near.mirrors(&far, same_user) => self.done(token),
                (Err(reason), _) => Err(reason),
                _ => Err(Reason::Mismatch),
            },
            Then::Rescue(place, target) => {
                return self.judge(token, place, target, found(first), found(second));
            }
            Then::Reclaim(place) => self.moved(token, place, first),
        };
        self.finish(token, done);
    }
}
