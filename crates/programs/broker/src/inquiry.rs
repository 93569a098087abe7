//! Questions to helpers, and what is done with their answers.
//!
//! # Model
//! A question is about one socket, and carries what comes next ([`Broker::look`]): it goes on with what the helper said, or with why
//! nobody knows. An error there is the answer to who asked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use windlass_channel::Reason;
use windlass_sys::identity::Identity;
use windlass_sys::process::Pinned;
use windlass_sys::unix::Credentials;

use crate::helpers::Key;
use crate::jobs::{Job, LATE, Said};
use crate::limits::{JOBS_PER_HELPER_MAX, START_REQUESTS, WATCH_JOBS_PER_HELPER_MAX};
use crate::server::Broker;

/// A connection, which carries one request. It is closed once nobody holds it.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) who: Credentials,
}

/// Who waits for an answer: nobody where the broker itself asks.
pub(crate) type Asker = Option<Arc<Connection>>;

/// A socket to be found.
pub(crate) struct Target {
    /// Whose helper does it.
    pub(crate) key: Key,
    /// The processes that may have it.
    pub(crate) sources: Vec<Pinned>,
    /// What is to be done, but for what depends on processes and helper.
    pub(crate) job: Job,
}

/// What comes next, once that is known.
pub(crate) type Then<T> = Box<dyn FnOnce(&mut Broker, T) + Send>;

impl Broker {
    /// Asks for two sockets, and goes on if they are the ends of one connection.
    pub(crate) fn compare(
        &mut self,
        asker: &Asker,
        [near, far]: [Target; 2],
        same_user: bool,
        then: impl FnOnce(&mut Self, &Asker) -> Result<(), Reason> + Send + 'static,
    ) {
        self.look(asker, near, move |broker, asker, near| {
            let near = near?;
            broker.look(asker, far, move |broker, asker, far| {
                let is_one = far.is_ok_and(|far| near.mirrors(&far, same_user));
                is_one.then_some(()).ok_or(Reason::Mismatch)?;
                then(broker, asker)
            });
            Ok(())
        });
    }

    /// Asks for a socket, and goes on with `then`.
    pub(crate) fn look(
        &mut self,
        asker: &Asker,
        target: Target,
        then: impl FnOnce(&mut Self, &Asker, Said) -> Result<(), Reason> + Send + 'static,
    ) {
        let jobs_max = match asker {
            Some(_) => JOBS_PER_HELPER_MAX,
            None => WATCH_JOBS_PER_HELPER_MAX,
        };
        let asker = asker.clone();
        let then: Then<Said> = Box::new(move |broker, said| {
            if let Err(reason) = then(broker, &asker, said) {
                broker.refuse(&asker, reason);
            }
        });
        match self.dispatch(target, jobs_max) {
            Ok(key) => self.helpers.expect(key, then),
            Err(reason) => then(self, Err(reason)),
        }
    }

    /// Gives a job to the helper that it is for, which may have so many with this one.
    fn dispatch(&mut self, mut target: Target, jobs_max: usize) -> Result<Key, Reason> {
        let (key, job) = (target.key, &mut target.job);
        let slot = self.provide(key)?;
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        for (to, (pid, pidfd)) in job.pids.iter_mut().zip(&target.sources) {
            *to = *pid;
            fds.push(pidfd.as_fd());
        }
        if let Some(reclaim) = &mut job.reclaim {
            reclaim.slot = slot;
            let slab = self.slabs.get(reclaim.slab).ok_or(Reason::NotEligible)?;
            fds.extend([slab.memory.as_fd(), self.processes.table.reader()]);
        }
        self.helpers.send(key, jobs_max, job, &fds)?;
        Ok(key)
    }

    /// Starts the helper of a process that has connected or is about to, if the process may have one: a failure is found
    /// again by the request that needs it.
    pub(crate) fn prepare(&mut self, process: &Pinned) {
        if let Some(identity) = Identity::of(process)
            && let Some(key) = Key::of(&identity)
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
        let processes = &mut self.processes;
        self.helpers.start(key, &self.epoll, processes)
    }

    /// A helper has something to say, or has ended.
    pub(crate) fn helper_speaks(&mut self, slot: u16) {
        loop {
            match self.helpers.answer(slot) {
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

    /// Ends helpers that do not answer.
    pub(crate) fn tend_helpers(&mut self, now: Instant) {
        while let Some((_, key)) = self.helpers.next_late().filter(|(at, _)| *at <= now) {
            self.lose(key);
        }
    }

    fn lose(&mut self, key: Key) {
        for then in self.helpers.kill(key) {
            then(self, Err(LATE));
        }
    }
}
