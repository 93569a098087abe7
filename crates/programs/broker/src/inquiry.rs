//! Questions to helpers, and what is done with their answers.
//!
//! # Model
//! A question is about one socket, and carries what comes next ([`Broker::look`]): it goes on with what the helper said, or with why
//! nobody knows. An error there is the answer to who asked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use windlass_channel::Reason;
use windlass_sys::epoll::Interest;
use windlass_sys::unix::Credentials;

use crate::facts::Facts;
use crate::helpers::Key;
use crate::identity::Identity;
use crate::jobs::{Job, LATE, Reclaim, SOURCES_MAX, Said};
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

/// What comes next.
pub(crate) type Then = Box<dyn FnOnce(&mut Broker, Said) + Send>;

impl Broker {
    /// Asks for two sockets. What is known of the second one goes on only with the first one.
    pub(crate) fn look_at_both(
        &mut self,
        asker: &Asker,
        [near, far]: [Option<Target>; 2],
        then: impl FnOnce(&mut Self, &Asker, Result<(Facts, Said), Reason>) -> Result<(), Reason>
        + Send
        + 'static,
    ) {
        self.look(asker, near, None, |broker, asker, near| match near {
            Ok(near) => {
                broker.look(asker, far, None, move |broker, asker, far| {
                    then(broker, asker, Ok((near, far)))
                });
                Ok(())
            }
            Err(reason) => then(broker, asker, Err(reason)),
        });
    }

    /// Asks for a socket, and goes on with `then`; one of nobody is a plain peer's. With `reclaim`, bytes are moved into it.
    pub(crate) fn look(
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
        let target = target.ok_or(Reason::PeerPlain);
        match target.and_then(|target| self.hand(&target, reclaim, jobs_max)) {
            Ok((key, id)) => self.helpers.expect(key, id, then),
            Err(reason) => then(self, Err(reason)),
        }
    }

    /// Gives a job to the helper that it is for, which may have so many with this one.
    fn hand(
        &mut self,
        target: &Target,
        reclaim: Option<Reclaim>,
        jobs_max: usize,
    ) -> Result<(Key, u64), Reason> {
        let sources = target.sources.iter().take(SOURCES_MAX);
        let slot = self.provide(target.key)?;
        let mut job = Job {
            id: self.helpers.next_id(),
            fd: target.fd,
            cookie: target.cookie,
            looks: target.looks,
            pids: [0; SOURCES_MAX],
            reclaim: reclaim.map(|reclaim| Reclaim { slot, ..reclaim }),
        };
        for (to, (pid, _)) in job.pids.iter_mut().zip(sources.clone()) {
            *to = *pid;
        }
        let mut fds: Vec<BorrowedFd<'_>> = sources.map(|(_, pidfd)| pidfd.as_fd()).collect();
        if let Some(reclaim) = reclaim {
            let slab = self.slabs.get(reclaim.slab).ok_or(Reason::NotEligible)?;
            fds.extend([slab.memory.as_fd(), self.processes.table()]);
        }
        self.helpers.send(target.key, jobs_max, &job, &fds)?;
        Ok((target.key, job.id))
    }

    /// Starts the helper of a process that has connected or is about to, if the process may have one: a failure is found
    /// again by the request that needs it.
    pub(crate) fn prepare(&mut self, pid: u32, pidfd: &OwnedFd) {
        let identity = Identity::of(pid, pidfd);
        let key = identity.as_ref().and_then(Identity::key);
        if let Some((identity, key)) = identity.zip(key)
            && self.policy.admits(key.uid, &identity.program)
        {
            let _ = self.provide(key);
        }
    }

    /// Sees to it that there is a helper for a key. Gives its slot.
    fn provide(&mut self, key: Key) -> Result<u16, Reason> {
        if let Some(slot) = self.helpers.slot(key) {
            return Ok(slot);
        }
        if !self.users.may_ask(key.uid, Instant::now()) {
            return Err(LATE);
        }
        if let Some(surplus) = self.helpers.surplus(key.uid, self.userns) {
            self.lose(surplus);
            // What its jobs went on with may have started this very one.
            return self.provide(key);
        }
        self.users.asked(key.uid, START_REQUESTS);
        let slot = self.processes.helper_slot().ok_or(Reason::Limit)?;
        let started = self.helpers.start(key, slot);
        let (pid, socket, token) = started.inspect_err(|_| self.processes.helper_died(slot))?;
        let watched = self.epoll.add(socket, HELPER | token, Interest::READABLE);
        self.processes.helper_lives(slot, pid);
        if watched.is_err() {
            self.lose(key);
            return Err(Reason::Limit);
        }
        Ok(slot)
    }

    /// A helper has something to say, or has ended.
    pub(crate) fn helper_speaks(&mut self, token: u64) {
        loop {
            match self.helpers.answer(token) {
                Ok(Some((key, then, said))) => {
                    if said == Err(LATE) {
                        // Its getter hangs.
                        self.lose(key);
                    }
                    then(self, said);
                }
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

    fn lose(&mut self, key: Key) {
        for then in self.helpers.kill(key) {
            then(self, Err(LATE));
        }
    }
}
