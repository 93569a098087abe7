//! What processes ask, and what they are answered.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::IoSlice;
use windlass_channel::Reason;
use windlass_channel::layout::Side;
use windlass_channel::protocol::{Answer, Ends, RETURNS, Request, SHARE};
use windlass_listing::ROW_BYTES;
use windlass_sys::hooks;
use windlass_sys::identity::Identity;
use windlass_sys::process::{self, Pinned};
use windlass_sys::sealed;
use windlass_sys::unix::{self, Credentials};

use crate::helpers::Key;
use crate::host::look;
use crate::inquiry::{Asker, Connection, Then};
use crate::limits::{HELPED_REQUESTS, ROWS_PER_REQUEST};
use crate::listing;
use crate::processes::Newcomer;
use crate::server::Broker;

impl Broker {
    /// Answers a request, at once or when a helper has.
    pub(crate) fn answer(&mut self, connection: Connection, request: Request) {
        let who = connection.who;
        let asker = Some(Arc::new(connection));
        if let Err(reason) = self.start(&asker, who, request) {
            self.refuse(&asker, reason);
        }
    }

    fn start(&mut self, asker: &Asker, who: Credentials, request: Request) -> Result<(), Reason> {
        if !self.users.may_ask(who.uid, Instant::now()) {
            return Err(Reason::Limit);
        }
        let cost = match request {
            Request::Slab { .. } | Request::Watch { .. } | Request::List => 1,
            _ => HELPED_REQUESTS,
        };
        self.users.asked(who.uid, cost);
        match request {
            Request::Register {
                socket,
                cookie,
                flags,
                parent,
                report,
            } => self.register(asker, (socket, cookie), (flags, parent), report),
            Request::Pair { peer, full, ends } => self.pair(asker, (peer, full), ends),
            Request::Prove {
                slab,
                chan,
                socket,
                cookie,
            } => self.prove(asker, (slab, chan), (socket, cookie)),
            Request::Slab { slab, side } => {
                let own = self.asker(asker)?;
                let side = Side::from_u8(side);
                let may = self.slabs.may_have(&mut self.processes, own, slab, side);
                may.then_some(()).ok_or(Reason::NotEligible)?;
                self.hand_over(asker, slab, side)
            }
            Request::Rescue { slab, chan, side } => {
                let own = self.asker(asker)?;
                let found = self.slabs.asked(own, slab, (chan, side), Instant::now());
                found.ok_or(Reason::NotEligible)?;
                // Two sockets are looked for.
                let looks = self.looks.left(who.uid, Instant::now()) / 2;
                self.begin_rescue(asker, (slab, chan, side), looks)
            }
            Request::Watch { slab } => {
                if let Some(slot) = who.pid.and_then(|pid| self.processes.by_pid(pid)) {
                    self.slabs.flag(slot, slab, Instant::now());
                }
                Ok(())
            }
            Request::List => self.list(asker, who),
        }
    }

    pub(crate) fn refuse(&mut self, asker: &Asker, reason: Reason) {
        let Some(connection) = asker else { return };
        let Credentials { pid, uid, .. } = connection.who;
        let (pid, text) = (pid.unwrap_or(0), reason.text());
        let is_notice = matches!(reason, Reason::Policy | Reason::Limit);
        let line = format_args!("process {pid} of user {uid} is refused: {text}");
        (self.say)(is_notice, line);
        let broker = std::process::id();
        // Who does not read loses the connection.
        let _ = send(asker, &Answer::Refused { reason, broker }, &[]);
    }

    fn register(
        &mut self,
        asker: &Asker,
        (socket, cookie): (i32, u64),
        (flags, parent): (u32, u16),
        report: u64,
    ) -> Result<(), Reason> {
        let connection = asker.as_ref().ok_or(Reason::NoDaemon)?;
        let pid = connection.who.pid.ok_or(Reason::NotRescuable)?;
        let pidfd = process::peer_pidfd(&connection.socket, pid).map_err(|_| Reason::NoDaemon)?;
        let process = (pid, Arc::new(pidfd));
        let identity = Identity::of(&process).ok_or(Reason::NotRescuable)?;
        let key = Key::of(&identity).ok_or(Reason::NotRescuable)?;
        if key.uid != connection.who.uid {
            return Err(Reason::Privileged);
        }
        if !self.policy.admits(key.uid, &identity.program) {
            return Err(Reason::Policy);
        }
        let group = (flags & SHARE == 0).then(|| self.policy.group(key.uid));
        let newcomer = Newcomer {
            process,
            key,
            identity,
            group,
            netns: 0,
            report,
        };
        if flags & RETURNS != 0 && self.processes.own_slot(&newcomer) != Some(parent) {
            return Err(Reason::NoDaemon);
        }
        // What cannot be taken now could not be taken when it matters.
        let target = newcomer.target(socket, cookie);
        self.look(asker, target, move |broker, asker, facts| {
            let netns = facts?.netns;
            broker.take_in(asker, Newcomer { netns, ..newcomer }, parent)
        });
        Ok(())
    }

    /// A process's socket was taken, so the process is taken in. One that does not hear of it keeps its slot for the next time.
    fn take_in(&mut self, asker: &Asker, newcomer: Newcomer, parent: u16) -> Result<(), Reason> {
        if !newcomer.identity.holds(&newcomer.process) {
            return Err(Reason::NotRescuable);
        }
        let (pid, uid) = (newcomer.pid(), newcomer.key.uid);
        if let Some(old) = self.processes.by_pid(pid)
            && self.processes.own_slot(&newcomer) != Some(old)
        {
            // Another program by now, or it has forgotten its slabs.
            self.bury(old);
        }
        let (slot, status) = self.processes.admit(&self.epoll, newcomer)?;
        let process = self.processes.get(slot).ok_or(Reason::Limit)?;
        let (directory, table) = (process.directory.as_fd(), self.processes.table.reader());
        let fds = [status.as_fd(), directory, table];
        send(asker, &Answer::Registered { slot }, &fds)?;
        self.slabs.inherit(&mut self.processes, parent, slot);
        self.detail(format_args!("slot {slot} is process {pid} of user {uid}"));
        Ok(())
    }

    /// The living process in a slot, if it is what it was when it registered; else its registration ends.
    pub(crate) fn is_still(&mut self, slot: u16) -> Option<&Newcomer> {
        let who = &self.processes.living(slot)?.who;
        if !who.identity.holds(&who.process) {
            self.bury(slot);
            return None;
        }
        Some(&self.processes.get(slot)?.who)
    }

    /// The slot of the process that asks.
    fn asker(&mut self, asker: &Asker) -> Result<u16, Reason> {
        let who = asker.as_ref().ok_or(Reason::NoDaemon)?.who;
        let slot = who.pid.and_then(|pid| self.processes.by_pid(pid));
        let slot = slot.ok_or(Reason::NoDaemon)?;
        let own = self.is_still(slot).ok_or(Reason::NoDaemon)?;
        // The connection may have been made by who the process was before.
        if own.key.uid == who.uid {
            Ok(slot)
        } else {
            Err(Reason::Privileged)
        }
    }

    fn pair(&mut self, asker: &Asker, (peer, full): (u16, u16), ends: Ends) -> Result<(), Reason> {
        let own = self.asker(asker)?;
        self.is_still(peer).ok_or(Reason::PeerPlain)?;
        let who = |slot| Some(&self.processes.get(slot)?.who);
        let (a, b) = who(own).zip(who(peer)).ok_or(Reason::PeerPlain)?;
        if (a.netns, a.key.userns) != (b.netns, b.key.userns) {
            return Err(Reason::OtherNetns);
        }
        let both_share = a.group.is_none() && b.group.is_none();
        let (uid, peer_uid) = (a.key.uid, b.key.uid);
        if uid != peer_uid && !both_share && !self.policy.joins(uid, peer_uid) {
            return Err(Reason::OtherUser);
        }
        let is_admitted = |who: &Newcomer| self.policy.admits(who.key.uid, &who.identity.program);
        if !is_admitted(a) || !is_admitted(b) {
            return Err(Reason::Policy);
        }
        let near = a.target(ends.socket, ends.cookie);
        let far = b.target(ends.peer_socket, ends.peer_cookie.into());
        let (netns, processes) = (a.netns, [&*near.sources, &far.sources].concat());
        self.ask_host(asker, (netns, uid), processes, move |broker, asker| {
            broker.compare(asker, [near, far], uid == peer_uid, move |broker, asker| {
                broker.paired(asker, (own, peer), full)
            });
        })
    }

    /// The sockets of both ends were taken and are one connection: memory is handed out.
    fn paired(&mut self, asker: &Asker, (own, peer): (u16, u16), full: u16) -> Result<(), Reason> {
        for slot in [own, peer] {
            self.is_still(slot).ok_or(Reason::PeerPlain)?;
        }
        let (processes, users) = (&mut self.processes, &mut self.users);
        let slab = self.slabs.pair(processes, users, (own, peer), full)?;
        let side = self.slabs.get(slab).and_then(|slab| slab.side_of(own));
        self.hand_over(asker, slab, side.ok_or(Reason::NotEligible)?)
    }

    fn prove(
        &mut self,
        asker: &Asker,
        (slab, chan): (u32, u16),
        (socket, cookie): (i32, u64),
    ) -> Result<(), Reason> {
        let own = self.asker(asker)?;
        let found = self.slabs.get(slab).ok_or(Reason::NotEligible)?;
        let side = found.side_of(own).ok_or(Reason::NotEligible)?;
        let same_user = found.same_user();
        let link = found.map.link(chan, side).ok_or(Reason::NotEligible)?;
        let other = link.info(side.other());
        let process = self.processes.get(own).ok_or(Reason::PeerPlain)?;
        let near = process.who.target(socket, cookie);
        let far = self.target(slab, side.other(), &other, 0);
        let both = [near, far.ok_or(Reason::Mismatch)?];
        self.compare(asker, both, same_user, |_, asker| {
            send(asker, &Answer::Done, &[])
        });
        Ok(())
    }

    /// Goes on with `then`, unless something on this host means every packet.
    fn ask_host(
        &mut self,
        asker: &Asker,
        (netns, uid): (u64, u32),
        both: Vec<Pinned>,
        then: impl FnOnce(&mut Self, &Asker) + Send + 'static,
    ) -> Result<(), Reason> {
        let ignores = self.policy.ignores_accounting();
        let Some(host) = self.host.as_mut().filter(|_| !ignores) else {
            then(self, asker);
            return Ok(());
        };
        let of_cgroup = both.iter().find_map(hooks::of_cgroup);
        let (known, asker) = (host.known(netns), asker.clone());
        let then: Then<Option<String>> = Box::new(move |broker, finding| {
            let Some(finding) = finding.or(of_cgroup.map(|hook| hook.to_string())) else {
                return then(broker, &asker);
            };
            broker.notice(format_args!(
                "connections in network namespace {netns} stay on the kernel: {finding}"
            ));
            broker.refuse(&asker, Reason::Policy);
        });
        match known {
            None => host.find_out(&self.epoll, (netns, uid), move || look(netns, &both), then),
            Some(finding) => {
                then(self, finding);
                Ok(())
            }
        }
    }

    /// The look at a namespace for a user is at its end.
    pub(crate) fn looked(&mut self, uid: u32) {
        let found = self.host.as_mut().and_then(|host| host.found(uid));
        let (finding, waiting) = found.unwrap_or_default();
        for then in waiting {
            then(self, finding.clone());
        }
    }

    /// Gives a process that has this side of a slab its memory.
    fn hand_over(&mut self, asker: &Asker, id: u32, side: Side) -> Result<(), Reason> {
        let slab = self.slabs.get(id).ok_or(Reason::Limit)?;
        let peer = slab.slots[side.other() as usize];
        let process = self.processes.get(peer).ok_or(Reason::PeerPlain)?;
        let [low, high] = slab.keys;
        let answer = Answer::Paired {
            slab: id,
            side: side as u8,
            peer,
            proves: low != high,
        };
        let fds = [slab.memory.as_fd(), process.status.as_fd()];
        send(asker, &answer, &fds)
    }

    fn list(&mut self, asker: &Asker, who: Credentials) -> Result<(), Reason> {
        let own = rustix::process::geteuid().as_raw();
        let uid = Some(who.uid).filter(|uid| ![0, own].contains(uid));
        let rows = listing::rows(&self.processes, &self.slabs, uid);
        if uid.is_some() {
            let count = rows.len() / ROW_BYTES;
            self.users.asked(who.uid, count / ROWS_PER_REQUEST);
        }
        let bytes = rows.len() as u64;
        let memory = sealed::holding("windlass-listing", &rows).map_err(|_| Reason::Limit)?;
        send(asker, &Answer::Listing { bytes }, &[memory.as_fd()])
    }
}

/// Sends an answer. Where nobody reads it, there is nobody to be told.
pub(crate) fn send(asker: &Asker, answer: &Answer, fds: &[BorrowedFd<'_>]) -> Result<(), Reason> {
    if let Some(connection) = asker {
        let message = answer.encode();
        let _ = unix::send_with_fds(&connection.socket, &[IoSlice::new(&message)], fds);
    }
    Ok(())
}
