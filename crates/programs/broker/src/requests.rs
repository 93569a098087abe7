//! What processes ask, and what they are answered.
//!
//! # States
//! A connection whose request needs a helper *waits*: nothing more is read from it until its answer is sent.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::IoSlice;
use windlass_channel::layout::{DIRECTORY_BYTES, STATUS_BYTES, Side};
use windlass_channel::protocol::{Answer, Ends, RETURNS, Request, SHARE};
use windlass_channel::{EndInfo, Reason};
use windlass_sys::epoll::Interest;
use windlass_sys::process;
use windlass_sys::unix::{self, Credentials};

use crate::Event;
use crate::facts::Facts;
use crate::helpers::Key;
use crate::identity::Identity;
use crate::inquiry::{Target, Then};
use crate::limits::HELPED_REQUESTS;
use crate::listing;
use crate::memory::Memory;
use crate::processes::{Full, Group, Newcomer};
use crate::server::{Broker, PROCESS};
use crate::slabs::Denied;

/// What comes of a request, as far as it is known at once.
enum Step {
    /// It was answered, or wants no answer.
    Answered,
    /// A helper was asked.
    Waits,
}

impl Broker {
    /// Answers a request; false if the connection is to be closed.
    pub(crate) fn answer(&mut self, token: u64, who: Credentials, request: Request) -> bool {
        let now = Instant::now();
        if !self.users.may_ask(who.uid, now) {
            return self.refuse(token, Reason::Limit);
        }
        let is_cheap = matches!(
            request,
            Request::Slab { .. } | Request::Watch { .. } | Request::List
        );
        self.users
            .asked(who.uid, if is_cheap { 1 } else { HELPED_REQUESTS });
        let done = match request {
            Request::Register {
                socket,
                cookie,
                flags,
                parent,
                report,
            } => self.register(token, who, (socket, cookie), (flags, parent), report),
            Request::Pair { peer, full, ends } => self.pair(token, who, (peer, full), ends),
            Request::Prove {
                slab,
                chan,
                socket,
                cookie,
            } => self.prove(token, who, (slab, chan), (socket, cookie)),
            Request::Slab { slab } => self.slab(token, who, slab),
            Request::Rescue { slab, chan, side } => self.rescue(token, who, (slab, chan, side)),
            Request::Watch { slab } => {
                if let Some((slot, _)) = who.pid.and_then(|pid| self.processes.by_pid(pid)) {
                    self.slabs.flag(slot, slab, now);
                }
                Ok(Step::Answered)
            }
            Request::List => self.list(token, who),
        };
        match done {
            Ok(Step::Answered) => true,
            Ok(Step::Waits) => {
                // What was refused at once is answered already.
                let is_open = self.inquiries.values().any(|one| one.token == Some(token));
                if let Some(connection) = self.connections.get_mut(&token).filter(|_| is_open) {
                    connection.is_waiting = true;
                    // Level-triggered: what it sends meanwhile must not wake us.
                    let _ = self.epoll.remove(&connection.socket);
                }
                true
            }
            Err(reason) => self.refuse(token, reason),
        }
    }

    fn refuse(&mut self, token: u64, reason: Reason) -> bool {
        let who = self
            .connections
            .get(&token)
            .map(|connection| connection.who);
        if let Some(who) = who {
            self.tell(&Event::Refused {
                pid: who.pid,
                uid: who.uid,
                reason,
            });
        }
        let answer = Answer::Refused {
            reason,
            broker: std::process::id(),
        };
        self.send(token, &answer, &[])
    }

    /// Sends an answer; false where nobody reads it, who then loses the connection.
    fn send(&self, token: u64, answer: &Answer, fds: &[BorrowedFd<'_>]) -> bool {
        let connection = self.connections.get(&token);
        connection.is_some_and(|connection| {
            let message = answer.encode();
            unix::send_with_fds(&connection.socket, &[IoSlice::new(&message)], fds).is_ok()
        })
    }

    /// Answers what was asked through a helper, and reads on.
    pub(crate) fn finish(&mut self, token: Option<u64>, done: Result<(), Reason>) {
        let Some(token) = token else { return };
        let is_answered = match done {
            Ok(()) => self.connections.contains_key(&token),
            Err(reason) => self.refuse(token, reason),
        };
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let was_waiting = std::mem::take(&mut connection.is_waiting);
        let is_watched = !was_waiting
            || self
                .epoll
                .add(&connection.socket, token, Interest::READABLE)
                .is_ok();
        if !is_answered || !is_watched {
            self.connections.remove(&token);
        }
    }

    /// Says that it was done.
    pub(crate) fn done(&mut self, token: Option<u64>) -> Result<(), Reason> {
        if let Some(token) = token
            && !self.send(token, &Answer::Done, &[])
        {
            self.connections.remove(&token);
        }
        Ok(())
    }

    fn register(
        &mut self,
        token: u64,
        who: Credentials,
        (socket, cookie): (i32, u64),
        (flags, parent): (u32, u16),
        report: u64,
    ) -> Result<Step, Reason> {
        let pid = who.pid.ok_or(Reason::NotRescuable)?;
        let connection = self.connections.get(&token).ok_or(Reason::NoDaemon)?;
        let pidfd = process::peer_pidfd(&connection.socket, pid).map_err(|_| Reason::NoDaemon)?;
        let identity = Identity::of(pid, &pidfd).ok_or(Reason::NotRescuable)?;
        let key = identity.key().ok_or(Reason::NotRescuable)?;
        let uid = key.uid;
        if uid != who.uid {
            return Err(Reason::Privileged);
        }
        if !self.policy.admits(uid, &identity.program) {
            return Err(Reason::Policy);
        }
        let group = if flags & SHARE != 0 {
            Group::Shared
        } else {
            Group::User(self.policy.group(uid))
        };
        let pidfd = Arc::new(pidfd);
        // What cannot be taken now could not be taken when it matters.
        let target = Target {
            key,
            sources: vec![(pid, Arc::clone(&pidfd))],
            fd: socket,
            cookie,
            looks: 0,
        };
        let newcomer = Newcomer {
            pid,
            key,
            identity,
            group,
            netns: 0,
            pidfd,
            report,
        };
        if flags & RETURNS != 0 && self.processes.own_slot(&newcomer) != Some(parent) {
            return Err(Reason::NoDaemon);
        }
        let newcomer = Box::new(newcomer);
        let then = Then::Register { newcomer, parent };
        self.inquire(Some(token), then, vec![Some(target)]);
        Ok(Step::Waits)
    }

    /// A process's socket was taken, so the process is taken in.
    pub(crate) fn take_in(
        &mut self,
        token: Option<u64>,
        newcomer: Newcomer,
        parent: u16,
        facts: &Facts,
    ) -> Result<(), Reason> {
        let token = token.ok_or(Reason::NoDaemon)?;
        if !newcomer.identity.holds(newcomer.pid, &newcomer.pidfd) {
            return Err(Reason::NotRescuable);
        }
        let (pid, uid) = (newcomer.pid, newcomer.key.uid);
        if let Some((old, process)) = self.processes.by_pid(pid) {
            // Its descriptor is another one from now on.
            let _ = self.epoll.remove(&process.who.pidfd);
            if !self.processes.undo(&newcomer) {
                // Another program by now, or it has forgotten its slabs.
                self.bury(old);
            }
        }
        let newcomer = Newcomer {
            netns: facts.netns,
            ..newcomer
        };
        if let Some((_, pidfd)) = self
            .processes
            .former_slot(&newcomer)
            .and_then(|slot| self.processes.formers().find(|(of, _)| *of == slot))
        {
            // It is watched by the new descriptor from now on.
            let _ = self.epoll.remove(pidfd);
        }
        let given = self.processes.admit(newcomer);
        let given = given.map_err(|(Full::Limit | Full::System(_))| Reason::Limit)?;
        let slot = given.slot;
        let answer = Answer::Registered {
            slot,
            status_bytes: u32::try_from(given.status.bytes()).unwrap_or(0),
            directory_bytes: u32::try_from(DIRECTORY_BYTES).unwrap_or(0),
        };
        let message = answer.encode();
        let fds = [given.status.as_fd(), given.directory, given.processes];
        let connection = self.connections.get(&token);
        let is_sent = connection.is_some_and(|connection| {
            unix::send_with_fds(&connection.socket, &[IoSlice::new(&message)], &fds).is_ok()
        });
        let is_watched = self.processes.get(slot).is_some_and(|process| {
            let token = PROCESS | u64::from(slot);
            self.epoll
                .add(&*process.who.pidfd, token, Interest::READABLE)
                .is_ok()
        });
        if !is_sent || !is_watched {
            self.take_back(slot);
            self.connections.remove(&token);
            return Ok(());
        }
        let inherited = self.slabs.inherit(&mut self.processes, parent, slot);
        self.tell(&Event::Registered {
            slot,
            pid,
            uid,
            inherited,
        });
        Ok(())
    }

    /// A process did not hear that it was taken in: it keeps its slot, by which others may know it, for the next time.
    fn take_back(&mut self, slot: u16) {
        if let Some(process) = self.processes.get(slot) {
            // Watched by the descriptor that stays.
            let _ = self.epoll.remove(&process.who.pidfd);
        }
        let is_kept = self.processes.retire(slot);
        let former = self.processes.formers().find(|(of, _)| *of == slot);
        let token = PROCESS | u64::from(slot);
        let is_watched = former
            .is_some_and(|(_, pidfd)| self.epoll.add(pidfd, token, Interest::READABLE).is_ok());
        if !is_kept || !is_watched {
            self.bury(slot);
        }
    }

    /// The ids of the living process in a slot, if it is what it was when it registered; else its registration ends.
    pub(crate) fn is_still(&mut self, slot: u16) -> Option<Key> {
        let process = self.processes.living(slot)?;
        let who = &process.who;
        if who.identity.holds(who.pid, &who.pidfd) {
            return Some(who.key);
        }
        self.bury(slot);
        None
    }

    /// The slot of the process that asks.
    fn asker(&mut self, who: Credentials) -> Result<(u16, Key), Reason> {
        let found = who.pid.and_then(|pid| self.processes.by_pid(pid));
        let (slot, _) = found.ok_or(Reason::NoDaemon)?;
        let key = self.is_still(slot).ok_or(Reason::NoDaemon)?;
        // The connection may have been made by who the process was before.
        if key.uid == who.uid {
            Ok((slot, key))
        } else {
            Err(Reason::Privileged)
        }
    }

    /// The socket that a registered process has under a number.
    fn of_process(&self, slot: u16, key: Key, fd: i32, cookie: u64) -> Option<Target> {
        let who = &self.processes.living(slot)?.who;
        Some(Target {
            key,
            sources: vec![(who.pid, Arc::clone(&who.pidfd))],
            fd,
            cookie,
            looks: 0,
        })
    }

    fn pair(
        &mut self,
        token: u64,
        who: Credentials,
        (peer, full): (u16, u16),
        ends: Ends,
    ) -> Result<Step, Reason> {
        let (own, own_key) = self.asker(who)?;
        let peer_key = self.is_still(peer).ok_or(Reason::PeerPlain)?;
        let (Some(a), Some(b)) = (self.processes.living(own), self.processes.living(peer)) else {
            return Err(Reason::PeerPlain);
        };
        let (a, b) = (&a.who, &b.who);
        if a.netns != b.netns || own_key.userns != peer_key.userns {
            return Err(Reason::OtherNetns);
        }
        let both_share = a.group == Group::Shared && b.group == Group::Shared;
        let (uid, peer_uid) = (own_key.uid, peer_key.uid);
        if uid != peer_uid && !both_share && !self.policy.joins(uid, peer_uid) {
            return Err(Reason::OtherUser);
        }
        let is_admitted = [a, b]
            .into_iter()
            .all(|who| self.policy.admits(who.key.uid, &who.identity.program));
        if !is_admitted {
            return Err(Reason::Policy);
        }
        let (netns, pids) = (a.netns, [a.pid, b.pid]);
        self.ask_host(netns, uid, pids)?;
        let near = self.of_process(own, own_key, ends.socket, ends.cookie);
        let far = self.of_process(peer, peer_key, ends.peer_socket, ends.peer_cookie.into());
        let then = Then::Pair { own, peer, full };
        self.inquire(Some(token), then, vec![near, far]);
        Ok(Step::Waits)
    }

    /// The sockets of both ends were taken: they are one connection, or no memory is handed out.
    pub(crate) fn paired(
        &mut self,
        token: Option<u64>,
        (own, peer): (u16, u16),
        full: u16,
        (near, far): (&Facts, &Facts),
    ) -> Result<(), Reason> {
        let keys = (self.is_still(own), self.is_still(peer));
        let (Some(own_key), Some(peer_key)) = keys else {
            return Err(Reason::PeerPlain);
        };
        if !near.mirrors(far, own_key.uid == peer_key.uid) {
            return Err(Reason::Mismatch);
        }
        let slab = self
            .slabs
            .pair(&mut self.processes, &mut self.users, (own, peer), full);
        let (slab, fresh) = slab.map_err(|(Denied::Limit | Denied::System(_))| Reason::Limit)?;
        if fresh {
            self.tell(&Event::Paired {
                slab,
                slots: (own, peer),
            });
        }
        self.hand_over(token.ok_or(Reason::NoDaemon)?, own, slab)
    }

    fn prove(
        &mut self,
        token: u64,
        who: Credentials,
        (slab, chan): (u32, u16),
        (socket, cookie): (i32, u64),
    ) -> Result<Step, Reason> {
        let (own, key) = self.asker(who)?;
        let found = self.slabs.get(slab).ok_or(Reason::NotEligible)?;
        let (side, _) = found.side_of(own).ok_or(Reason::NotEligible)?;
        let side = Side::from_u8(side);
        let same_user = found.keys[0].uid == found.keys[1].uid;
        let link = found.map.link(chan, side).ok_or(Reason::NotEligible)?;
        let other: EndInfo = link.info(side.other());
        let near = self.of_process(own, key, socket, cookie);
        let far = self.target(slab, side.other(), &other, 0);
        let then = Then::Prove { same_user };
        self.inquire(Some(token), then, vec![near, far]);
        Ok(Step::Waits)
    }

    /// Refuses where something on this host means every packet.
    fn ask_host(&mut self, netns: u64, uid: u32, pids: [u32; 2]) -> Result<(), Reason> {
        let ignores = self.policy.ignores_accounting();
        let Some(host) = self.host.as_mut().filter(|_| !ignores) else {
            return Ok(());
        };
        let found = host.finding(netns, uid, pids);
        let (finding, is_news) = found.ok_or(Reason::NoDaemon)?;
        if is_news {
            let finding = finding.as_deref();
            self.tell(&Event::Ruled { netns, finding });
        }
        finding.map_or(Ok(()), |_| Err(Reason::Policy))
    }

    fn slab(&mut self, token: u64, who: Credentials, slab: u32) -> Result<Step, Reason> {
        let (own, _) = self.asker(who)?;
        if !self.slabs.may_have(&mut self.processes, own, slab) {
            return Err(Reason::NotEligible);
        }
        self.hand_over(token, own, slab)?;
        Ok(Step::Answered)
    }

    fn hand_over(&mut self, token: u64, own: u16, id: u32) -> Result<(), Reason> {
        let slab = self.slabs.get(id).ok_or(Reason::Limit)?;
        let (side, peer) = slab.side_of(own).ok_or(Reason::NotEligible)?;
        let peer_process = self.processes.get(peer).ok_or(Reason::PeerPlain)?;
        let [low, high] = slab.keys;
        let answer = Answer::Paired {
            slab: id,
            side,
            peer,
            slab_bytes: slab.memory.bytes() as u64,
            status_bytes: u32::try_from(STATUS_BYTES).unwrap_or(0),
            proves: low != high,
        };
        let fds = [slab.memory.as_fd(), peer_process.status.as_fd()];
        if !self.send(token, &answer, &fds) {
            self.connections.remove(&token);
        }
        Ok(())
    }

    fn rescue(
        &mut self,
        token: u64,
        who: Credentials,
        place: (u32, u16, u8),
    ) -> Result<Step, Reason> {
        let (own, _) = self.asker(who)?;
        let slab = self.slabs.get(place.0);
        if slab.is_none_or(|slab| slab.side_of(own).is_none()) {
            return Err(Reason::NotEligible);
        }
        // Two sockets are looked for.
        let looks = self.users.looks(who.uid) / 2;
        self.begin_rescue(Some(token), place, looks as u32)?;
        Ok(Step::Waits)
    }

    fn list(&mut self, token: u64, who: Credentials) -> Result<Step, Reason> {
        let own = rustix::process::geteuid().as_raw();
        let everything = who.uid == 0 || who.uid == own;
        let uid = (!everything).then_some(who.uid);
        if !everything && !self.users.may_list(who.uid, Instant::now()) {
            return Err(Reason::Limit);
        }
        let rows = listing::rows(&self.processes, &self.slabs, uid);
        self.users.listed(who.uid, rows.len() / listing::ROW_BYTES);
        let memory = Memory::holding("windlass-listing", &rows).map_err(|_| Reason::Limit)?;
        let answer = Answer::Listing {
            bytes: memory.bytes() as u64,
        };
        self.send(token, &answer, &[memory.as_fd()]);
        // No more of them wait for a reader than there are connections.
        self.connections.remove(&token);
        Ok(Step::Answered)
    }
}
