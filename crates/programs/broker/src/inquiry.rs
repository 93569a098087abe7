//! Questions to helpers, and what is done with their answers.
//!
//! # Model
//! A question is about one socket, and carries what comes next ([`Broker::look`]): it goes on with what the helper said, or with why
//! nobody knows. An error there is the answer to who asked. What a helper may not reach is asked once more through the getter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use windlass_channel::Reason;
use windlass_sys::epoll::Interest;
use windlass_sys::unix::{self, Credentials, SocketKind};

use crate::facts::Facts;
use crate::helpers::{Key, Pending, Role};
use crate::identity::Identity;
use crate::jobs::{Job, LATE, OUT_OF_REACH, Reclaim, SOURCES_MAX, Said};
use crate::limits::{JOBS_PER_HELPER_MAX, START_REQUESTS, WATCH_JOBS_PER_HELPER_MAX};
use crate::server::{Broker, HELPER};

/// A connection, which carries one request. It is closed once nobody holds it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) who: Credentials,
}

/// Who waits for an answer: nobody where the broker itself asks.
pub(crate) type Asker = Option<Arc<Connection>>;

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

/// What a helper is asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) target: Target,
    by_courier: bool,
    reclaim: Option<Reclaim>,
    /// Jobs that the helper may have with this one.
    jobs_max: usize,
}

/// What comes next.
pub(crate) type Then = Box<dyn FnOnce(&mut Broker, Said) + Send>;

impl Broker {
    /// Asks for a socket, and goes on with `then`; one of nobody is a plain peer's.
    pub(crate) fn look(
        &mut self,
        asker: &Asker,
        target: Option<Target>,
        then: impl FnOnce(&mut Self, &Asker, Said) -> Result<(), Reason> + Send + 'static,
    ) {
        self.inquire(asker, target, None, then);
    }

    /// Asks for two sockets. What is known of the second one goes on only with the first one.
    pub(crate) fn look_at_both(
        &mut self,
        asker: &Asker,
        [near, far]: [Option<Target>; 2],
        then: impl FnOnce(&mut Self, &Asker, Result<(Facts, Said), Reason>) -> Result<(), Reason>
        + Send
        + 'static,
    ) {
        self.look(asker, near, |broker, asker, near| match near {
            Ok(near) => {
                broker.look(asker, far, move |broker, asker, far| {
                    then(broker, asker, Ok((near, far)))
                });
                Ok(())
            }
            Err(reason) => then(broker, asker, Err(reason)),
        });
    }

    /// The same as a look; with `reclaim`, bytes are moved into the socket.
    pub(crate) fn inquire(
        &mut self,
        asker: &Asker,
        target: Option<Target>,
        reclaim: Option<Reclaim>,
        then: impl FnOnce(&mut Self, &Asker, Said) -> Result<(), Reason> + Send + 'static,
    ) {
        let jobs_max = match asker {
            Some(_) => JOBS_PER_HELPER_MAX,
            None => WATCH_JOBS_PER_HELPER_MAX,
        };
        let asker = asker.clone();
        let then: Then = Box::new(move |broker, said| {
            if let Err(reason) = then(broker, &asker, said) {
                broker.refuse(&asker, reason);
            }
        });
        match target {
            Some(target) => self.ask(
                Asked {
                    target,
                    by_courier: false,
                    reclaim,
                    jobs_max,
                },
                then,
            ),
            None => then(self, Err(Reason::PeerPlain)),
        }
    }

    fn ask(&mut self, asked: Asked, then: Then) {
        match self.hand(&asked) {
            Ok(id) => self.helpers.expect(id, asked, then),
            Err(reason) => then(self, Err(reason)),
        }
    }

    /// Gives a job to the helper that it is for.
    fn hand(&mut self, asked: &Asked) -> Result<u64, Reason> {
        let target = &asked.target;
        let sources = target.sources.iter().take(SOURCES_MAX);
        let slot = self.provide(target.key, Role::Helper)?;
        let mut job = Job {
            id: self.helpers.next_id(),
            fd: target.fd,
            cookie: target.cookie,
            looks: target.looks,
            pids: [0; SOURCES_MAX],
            by_courier: asked.by_courier,
            key: None,
            reclaim: asked.reclaim.map(|reclaim| Reclaim { slot, ..reclaim }),
        };
        for (to, (pid, _)) in job.pids.iter_mut().zip(sources.clone()) {
            *to = *pid;
        }
        let mut fds: Vec<BorrowedFd<'_>> = sources.map(|(_, pidfd)| pidfd.as_fd()).collect();
        let far;
        if asked.by_courier {
            self.provide(target.key, Role::Getter)?;
            let near;
            (near, far) = unix::pair(SocketKind::SeqPacket).map_err(|_| Reason::Limit)?;
            let all = [&fds[..], &[near.as_fd()]].concat();
            let fetch = Job {
                key: Some(target.key),
                reclaim: None,
                ..job
            };
            let getter = (target.key, Role::Getter);
            self.helpers.send(getter, asked.jobs_max, &fetch, &all)?;
            fds = vec![far.as_fd()];
        }
        if let Some(reclaim) = asked.reclaim {
            let slab = self.slabs.get(reclaim.slab).ok_or(Reason::NotEligible)?;
            fds.extend([slab.memory.as_fd(), self.processes.table()]);
        }
        let helper = (target.key, Role::Helper);
        self.helpers.send(helper, asked.jobs_max, &job, &fds)?;
        Ok(job.id)
    }

    /// Starts the helper of a process that has connected or is about to, if the process may have one: a failure is found
    /// again by the request that needs it.
    pub(crate) fn prepare(&mut self, pid: u32, pidfd: &OwnedFd) {
        let identity = Identity::of(pid, pidfd);
        let key = identity.as_ref().and_then(Identity::key);
        if let Some((identity, key)) = identity.zip(key)
            && self.policy.admits(key.uid, &identity.program)
        {
            let _ = self.provide(key, Role::Helper);
        }
    }

    /// Sees to it that there is a helper or a getter for a key. Gives its slot.
    fn provide(&mut self, key: Key, role: Role) -> Result<u16, Reason> {
        if let Some(slot) = self.helpers.slot(key, role) {
            return Ok(slot);
        }
        if !self.users.may_ask(key.uid, Instant::now()) {
            return Err(LATE);
        }
        if let Some(surplus) = self.helpers.surplus(key.uid, self.userns) {
            self.lose(surplus);
            // What its jobs went on with may have started this very one.
            return self.provide(key, role);
        }
        self.users.asked(key.uid, START_REQUESTS);
        let slot = match role {
            Role::Helper => self.processes.helper_slot().ok_or(Reason::Limit)?,
            Role::Getter => 0,
        };
        let started = self.helpers.start(key, role, slot);
        let (pid, socket, token) = started.inspect_err(|_| self.processes.helper_died(slot))?;
        let watched = self.epoll.add(socket, HELPER | token, Interest::READABLE);
        if slot != 0 {
            self.processes.helper_lives(slot, pid);
        }
        if watched.is_err() {
            self.lose((key, role));
            return Err(Reason::Limit);
        }
        Ok(slot)
    }

    /// A helper has something to say, or has ended.
    pub(crate) fn helper_speaks(&mut self, token: u64) {
        loop {
            match self.helpers.answer(token) {
                Ok(Some((pending, said))) => self.answered(pending, said),
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
        for pending in self.helpers.kill(key) {
            self.answered(pending, Err(LATE));
        }
    }

    fn answered(&mut self, Pending { asked, then, .. }: Pending, said: Said) {
        match said {
            Err(OUT_OF_REACH) if !asked.by_courier && rustix::process::geteuid().is_root() => {
                let by_courier = true;
                return self.ask(
                    Asked {
                        by_courier,
                        ..asked
                    },
                    then,
                );
            }
            // The getter may hang.
            Err(LATE) => self.lose((asked.target.key, Role::Getter)),
            _ => {}
        }
        let plain = |reason| match reason {
            OUT_OF_REACH => Reason::NotRescuable,
            reason => reason,
        };
        then(self, said.map_err(plain));
    }
}
