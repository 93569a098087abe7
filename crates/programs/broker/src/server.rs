//! The thread: connections, requests, deaths, and the clock of the watch.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::{Errno, IoSlice};
use windlass_channel::Reason;
use windlass_channel::protocol::{Answer, MESSAGE_BYTES, Request, SHARE};
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::unix::{self, BindError, Credentials, Listener, SocketKind};
use windlass_sys::{eventfd, process};

use crate::host::Host;
use crate::limits::{
    CONNECTIONS_MAX, CONNECTIONS_PER_USER_MAX, MESSAGES_PER_TURN, NUMBERS_MAX, WITNESSES_MAX,
};
use crate::listing;
use crate::memory::Memory;
use crate::policy::Policy;
use crate::processes::{Full, Group, Newcomer, Processes, program, user_namespace};
use crate::rescue::take_socket;
use crate::slabs::{Denied, Slabs};
use crate::users::Users;
use crate::{Event, Settings, StartError};

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const CONNECTION: u64 = 1 << 32;
const PROCESS: u64 = 2 << 32;
const CLASS: u64 = 0xffff_ffff_0000_0000;
/// Connections taken before others have their turn.
const ACCEPTS_PER_TURN: usize = 32;

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    who: Credentials,
}

/// What others may ask of the thread.
#[derive(Debug, Clone)]
pub struct Handle {
    waker: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Handle {
    /// Ends [`Broker::run`]. Live channels go on without it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Reads the policy again.
    pub fn reload(&self) {
        self.reload.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // The counter of an eventfd that nobody reads is high enough.
        let _ = eventfd::signal(&*self.waker);
    }
}

/// The broker, listening but not yet running.
pub struct Broker {
    path: PathBuf,
    listener: Listener,
    epoll: Epoll,
    handle: Handle,
    settings: Settings,
    pub(crate) policy: Policy,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    pub(crate) processes: Processes,
    pub(crate) slabs: Slabs,
    users: Users,
    /// Asked before a pair is given memory; root's only.
    host: Option<Host>,
    /// Given up for a moment where no descriptor is left, so that a connection can be taken and refused.
    spare: Option<OwnedFd>,
    idle_since: Instant,
    /// Processes that saw a private broker listen, and rely on it: `windlass run` becomes the program in the same process.
    witnesses: Vec<OwnedFd>,
    events: Box<dyn FnMut(&Event<'_>) + Send>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Broker {
    /// Listens at a path. `events` hears what happens; it is called from the thread that runs the broker.
    ///
    /// # Errors
    /// If the path is in use, the policy is not understood, or the system refuses.
    pub fn listen(
        path: &Path,
        settings: Settings,
        events: impl FnMut(&Event<'_>) + Send + 'static,
    ) -> Result<Self, StartError> {
        let listener = listen(path, &settings)?;
        Self::serving(listener, path, settings, events)
    }

    /// The same with a socket that listens already.
    ///
    /// # Errors
    /// If the policy is not understood, or the system refuses.
    pub fn serving(
        listener: Listener,
        path: &Path,
        settings: Settings,
        events: impl FnMut(&Event<'_>) + Send + 'static,
    ) -> Result<Self, StartError> {
        let policy = match &settings.policy {
            Some(path) => Policy::load(path)?,
            None => Policy::default(),
        };
        let epoll = Epoll::create()?;
        let waker = Arc::new(eventfd::create()?);
        epoll.add(&listener, LISTENER, Interest::READABLE)?;
        epoll.add(&*waker, WAKER, Interest::READABLE)?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            epoll,
            handle: Handle {
                waker,
                stop: Arc::default(),
                reload: Arc::default(),
            },
            settings,
            policy,
            connections: BTreeMap::new(),
            next_connection: 0,
            processes: Processes::new()?,
            slabs: Slabs::new(),
            users: Users::default(),
            host: rustix::process::geteuid().is_root().then(Host::default),
            spare: spare(),
            idle_since: Instant::now(),
            witnesses: Vec::new(),
            events: Box::new(events),
        })
    }

    /// The way to stop it from elsewhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until it is stopped, or until a private one has had no process for its time. Removes its path.
    ///
    /// # Errors
    /// Only if waiting itself fails.
    pub fn run(mut self) -> Result<(), Errno> {
        let mut events = Events::default();
        while !self.handle.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if self.handle.reload.swap(false, Ordering::AcqRel) {
                self.reload();
            }
            self.look(now);
            let Some(timeout) = self.timeout(now) else {
                if self.takes_leave() {
                    return Ok(());
                }
                continue;
            };
            self.epoll.wait(&mut events, timeout)?;
            let due: VecDeque<_> = events.iter().collect();
            for ready in due {
                match ready.token & CLASS {
                    CONNECTION => self.serve(ready.token),
                    PROCESS => self.buried(ready.token),
                    _ if ready.token == LISTENER => self.accept(),
                    _ => drop(eventfd::drain(&*self.handle.waker)),
                }
            }
        }
        // Somebody else's by now, or gone: it is not there any more in either case.
        let _ = self.listener.unlink();
        Ok(())
    }

    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        (self.events)(event);
    }

    /// How long to wait; `None` if the private broker is not needed any more.
    fn timeout(&mut self, now: Instant) -> Option<Option<Duration>> {
        let mut until = self.slabs.next_look();
        match self.settings.linger {
            Some(linger) if self.processes.alive() == 0 => {
                let end = self.idle_since + linger;
                if now >= end && self.connections.is_empty() {
                    self.witnesses.retain(|one| !process::has_ended(one));
                    // Whoever comes later finds another one.
                    let is_found = self.listener.is_in_place();
                    if !is_found || self.witnesses.is_empty() && !(self.settings.needed)() {
                        return None;
                    }
                    self.idle_since = now;
                }
                let end = self.idle_since + linger;
                until = Some(until.map_or(end, |until| until.min(end)));
            }
            _ => self.idle_since = now,
        }
        Some(until.map(|until| until.saturating_duration_since(now)))
    }

    /// The private broker ends, unless somebody has found it in the meantime: who saw it listen relies on it. True if it
    /// has ended. Who finds no socket starts another broker, which waits for our lock.
    fn takes_leave(&mut self) -> bool {
        self.accept();
        if !self.connections.is_empty() {
            return false;
        }
        // Somebody else's by now, or gone: it is not there any more in either case.
        let _ = self.listener.unlink();
        self.accept();
        if self.connections.is_empty() {
            return true;
        }
        let Ok(listener) = listen(&self.path, &self.settings) else {
            return true;
        };
        let _ = self.epoll.remove(&self.listener);
        self.listener = listener;
        self.epoll
            .add(&self.listener, LISTENER, Interest::READABLE)
            .is_err()
    }

    fn reload(&mut self) {
        let Some(path) = self.settings.policy.clone() else {
            return;
        };
        match Policy::load(&path) {
            Ok(policy) => self.policy = policy,
            Err(error) => self.tell(&Event::BadPolicy { error: &error }),
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok(socket) => self.welcome(socket),
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Taken with the spare descriptor and closed, so that it does not wait for ever.
                    self.spare = None;
                    drop(self.listener.accept());
                    self.spare = spare();
                    self.tell(&Event::Trouble {
                        what: "take a connection",
                        errno: Errno::MFILE,
                    });
                }
                Err(_) => return,
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let Ok(who) = unix::peer_credentials(&socket) else {
            return;
        };
        let own = rustix::process::geteuid().as_raw();
        if !self.settings.others && who.uid != own && who.uid != 0 {
            return;
        }
        if self.settings.linger.is_some() && who.uid == own {
            self.remember(&socket, who);
        }
        let mut of_user = self
            .connections
            .iter()
            .filter(|(_, other)| other.who.uid == who.uid);
        let oldest = of_user.next().map(|(token, _)| *token);
        let count = 1 + of_user.count();
        match oldest {
            Some(oldest) if count >= CONNECTIONS_PER_USER_MAX => {
                drop(self.connections.remove(&oldest))
            }
            _ if self.connections.len() >= CONNECTIONS_MAX => return,
            _ => {}
        }
        self.next_connection = (self.next_connection + 1) & !CLASS;
        let token = CONNECTION | self.next_connection;
        if self.epoll.add(&socket, token, Interest::READABLE).is_ok() {
            self.connections.insert(token, Connection { socket, who });
            self.idle_since = Instant::now();
        }
    }

    fn remember(&mut self, socket: &OwnedFd, who: Credentials) {
        self.witnesses.retain(|one| !process::has_ended(one));
        let pidfd = who
            .pid
            .and_then(|pid| process::peer_pidfd(socket, pid).ok());
        if self.witnesses.len() < WITNESSES_MAX {
            self.witnesses.extend(pidfd);
        }
    }

    fn serve(&mut self, token: u64) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.take(token) {
                Turn::More => {}
                Turn::Wait => return,
                Turn::Close => {
                    self.connections.remove(&token);
                    return;
                }
            }
        }
    }

    /// Takes one message of a connection and answers it. Whatever is not exactly a request ends the connection.
    fn take(&mut self, token: u64) -> Turn {
        let Some(connection) = self.connections.get(&token) else {
            return Turn::Close;
        };
        let who = connection.who;
        let mut message = [0; MESSAGE_BYTES + 1];
        let received = match unix::receive_with_fds(&connection.socket, &mut message, 0) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Turn::Wait,
            Err(_) => return Turn::Close,
        };
        let bare = !received.truncated && received.surplus_fds == 0;
        match message.get(..received.bytes).and_then(Request::decode) {
            Some(request) if bare && self.answer(token, who, request) => Turn::More,
            _ => Turn::Close,
        }
    }

    /// Answers a request; false if the connection is to be closed.
    fn answer(&mut self, token: u64, who: Credentials, request: Request) -> bool {
        let now = Instant::now();
        if !self.users.may_ask(who.uid, now) {
            return self.refuse(token, who, Reason::Limit);
        }
        let done = match request {
            Request::Register {
                socket,
                cookie,
                flags,
                parent,
                report,
            } => self.register(token, who, (socket, cookie), (flags, parent), report),
            Request::Pair { peer, full } => self.pair(token, who, peer, full),
            Request::Slab { slab } => self.slab(token, who, slab),
            Request::Rescue { slab, chan, side } => self.rescue(token, who, (slab, chan, side)),
            Request::Watch { slab } => {
                if let Some((slot, _)) = who.pid.and_then(|pid| self.processes.by_pid(pid)) {
                    self.slabs.flag(slot, slab, now);
                }
                Ok(())
            }
            Request::List => self.list(token, who),
        };
        match done {
            Ok(()) => true,
            Err(Stop::Refuse(reason)) => self.refuse(token, who, reason),
            Err(Stop::Close) => false,
        }
    }

    fn refuse(&mut self, token: u64, who: Credentials, reason: Reason) -> bool {
        self.tell(&Event::Refused {
            pid: who.pid,
            uid: who.uid,
            reason,
        });
        let answer = Answer::Refused {
            reason,
            broker: std::process::id(),
        };
        self.send(token, &answer, &[]).is_ok()
    }

    /// Sends an answer. Who does not read his answers loses the connection.
    fn send(&self, token: u64, answer: &Answer, fds: &[BorrowedFd<'_>]) -> Result<(), Stop> {
        let connection = self.connections.get(&token).ok_or(Stop::Close)?;
        let message = answer.encode();
        let sent = unix::send_with_fds(&connection.socket, &[IoSlice::new(&message)], fds);
        sent.map(drop).map_err(|_| Stop::Close)
    }

    fn register(
        &mut self,
        token: u64,
        who: Credentials,
        (socket, cookie): (i32, u64),
        (flags, parent): (u32, u16),
        report: u64,
    ) -> Result<(), Stop> {
        let newcomer = self.examine(token, who, (socket, cookie), (flags, report))?;
        let pid = newcomer.pid;
        if let Some((old, _)) = self.processes.by_pid(pid) {
            // The same process, so another program by now.
            self.bury(old);
        }
        let given = self.processes.admit(newcomer).map_err(|full| match full {
            Full::Limit | Full::System(_) => Stop::Refuse(Reason::Limit),
        })?;
        let answer = Answer::Registered {
            slot: given.slot,
            status_bytes: u32::try_from(given.status.bytes()).unwrap_or(0),
            directory_bytes: u32::try_from(windlass_channel::layout::DIRECTORY_BYTES).unwrap_or(0),
        };
        let slot = given.slot;
        let connection = self.connections.get(&token).ok_or(Stop::Close)?;
        let message = answer.encode();
        let fds = [given.status.as_fd(), given.directory, given.processes];
        let sent = unix::send_with_fds(&connection.socket, &[IoSlice::new(&message)], &fds);
        let watched = self.processes.get(slot).is_some_and(|process| {
            let token = PROCESS | u64::from(slot);
            self.epoll
                .add(&process.who.pidfd, token, Interest::READABLE)
                .is_ok()
        });
        if sent.is_err() || !watched {
            self.bury(slot);
            return Err(Stop::Close);
        }
        let inherited = self.slabs.inherit(&mut self.processes, parent, slot);
        self.tell(&Event::Registered {
            slot,
            pid,
            uid: who.uid,
            inherited,
        });
        Ok(())
    }

    /// What is to be known of a process before it is taken in, or why it is not.
    fn examine(
        &self,
        token: u64,
        who: Credentials,
        (socket, cookie): (i32, u64),
        (flags, report): (u32, u64),
    ) -> Result<Newcomer, Stop> {
        let not_rescuable = Stop::Refuse(Reason::NotRescuable);
        let pid = who.pid.ok_or(not_rescuable)?;
        if !self.policy.admits(who.uid, &program(pid)) {
            return Err(Stop::Refuse(Reason::Policy));
        }
        let connection = self.connections.get(&token).ok_or(Stop::Close)?;
        let pidfd = process::peer_pidfd(&connection.socket, pid).map_err(|_| Stop::Close)?;
        // What cannot be taken now could not be taken when it matters.
        let taken = take_socket(&pidfd, socket, cookie).map_err(Stop::Refuse)?;
        let netns = process::netns_cookie(&taken).map_err(|_| Stop::Refuse(Reason::OtherNetns))?;
        let userns = user_namespace(pid).ok_or(not_rescuable)?;
        let group = if flags & SHARE != 0 {
            Group::Shared
        } else {
            Group::User(self.policy.group(who.uid))
        };
        Ok(Newcomer {
            pid,
            uid: who.uid,
            group,
            netns,
            userns,
            pidfd,
            report,
        })
    }

    /// The slot of the process that asks.
    fn asker(&self, who: Credentials) -> Result<u16, Stop> {
        let found = who.pid.and_then(|pid| self.processes.by_pid(pid));
        let (slot, process) = found.ok_or(Stop::Refuse(Reason::NoDaemon))?;
        // It may have changed its user since; then it registers again.
        if process.who.uid == who.uid {
            Ok(slot)
        } else {
            Err(Stop::Refuse(Reason::Privileged))
        }
    }

    fn pair(&mut self, token: u64, who: Credentials, peer: u16, full: u16) -> Result<(), Stop> {
        let own = self.asker(who)?;
        let (a, b) = match (self.processes.living(own), self.processes.living(peer)) {
            (Some(a), Some(b)) => (&a.who, &b.who),
            _ => return Err(Stop::Refuse(Reason::PeerPlain)),
        };
        if a.netns != b.netns || a.userns != b.userns {
            return Err(Stop::Refuse(Reason::OtherNetns));
        }
        let both_share = a.group == Group::Shared && b.group == Group::Shared;
        if a.uid != b.uid && !both_share && !self.policy.joins(a.uid, b.uid) {
            return Err(Stop::Refuse(Reason::OtherUser));
        }
        let (netns, pids) = (a.netns, [a.pid, b.pid]);
        self.ask_host(netns, pids)?;
        let slab = self
            .slabs
            .pair(&mut self.processes, &mut self.users, (own, peer), full);
        let (slab, fresh) = slab.map_err(|denied| match denied {
            Denied::Limit | Denied::System(_) => Stop::Refuse(Reason::Limit),
        })?;
        if fresh {
            self.tell(&Event::Paired {
                slab,
                slots: (own, peer),
            });
        }
        self.hand_over(token, own, slab)
    }

    /// Refuses where something on this host means every packet.
    fn ask_host(&mut self, netns: u64, pids: [u32; 2]) -> Result<(), Stop> {
        let host = self
            .host
            .as_mut()
            .filter(|_| !self.policy.ignores_accounting());
        let Some(host) = host else { return Ok(()) };
        let (finding, is_news) = host.finding(netns, pids);
        if is_news {
            let finding = finding.as_deref();
            self.tell(&Event::Ruled { netns, finding });
        }
        finding.map_or(Ok(()), |_| Err(Stop::Refuse(Reason::Policy)))
    }

    fn slab(&mut self, token: u64, who: Credentials, slab: u32) -> Result<(), Stop> {
        let own = self.asker(who)?;
        if !self.slabs.may_have(&mut self.processes, own, slab) {
            return Err(Stop::Refuse(Reason::NotEligible));
        }
        self.hand_over(token, own, slab)
    }

    fn hand_over(&mut self, token: u64, own: u16, id: u32) -> Result<(), Stop> {
        let slab = self.slabs.get(id).ok_or(Stop::Refuse(Reason::Limit))?;
        let (side, peer) = slab.side_of(own).ok_or(Stop::Refuse(Reason::NotEligible))?;
        let peer_process = self
            .processes
            .get(peer)
            .ok_or(Stop::Refuse(Reason::PeerPlain))?;
        let answer = Answer::Paired {
            slab: id,
            side,
            peer,
            slab_bytes: slab.memory.bytes() as u64,
            status_bytes: u32::try_from(windlass_channel::layout::STATUS_BYTES).unwrap_or(0),
        };
        self.send(
            token,
            &answer,
            &[slab.memory.as_fd(), peer_process.status.as_fd()],
        )
    }

    fn rescue(&mut self, token: u64, who: Credentials, place: (u32, u16, u8)) -> Result<(), Stop> {
        let own = self.asker(who)?;
        let (id, chan, side) = place;
        let held = self
            .slabs
            .get(id)
            .is_some_and(|slab| slab.side_of(own).is_some());
        if !held {
            return Err(Stop::Refuse(Reason::NotEligible));
        }
        let may = self.users.looks(who.uid);
        let mut left = may;
        let rescued = self.rescue_one(id, chan, side, &mut left);
        self.users.looked(who.uid, may - left);
        match rescued {
            Ok(()) => self.send(token, &Answer::Done, &[]),
            Err(reason) => Err(Stop::Refuse(reason)),
        }
    }

    fn list(&mut self, token: u64, who: Credentials) -> Result<(), Stop> {
        let own = rustix::process::geteuid().as_raw();
        let everything = who.uid == 0 || who.uid == own;
        let rows = listing::rows(
            &self.processes,
            &self.slabs,
            (!everything).then_some(who.uid),
        );
        let memory = Memory::holding("windlass-listing", &rows);
        let memory = memory.map_err(|_| Stop::Refuse(Reason::Limit))?;
        let answer = Answer::Listing {
            bytes: memory.bytes() as u64,
        };
        self.send(token, &answer, &[memory.as_fd()])
    }

    fn buried(&mut self, token: u64) {
        let Ok(slot) = u16::try_from(token & !CLASS) else {
            return;
        };
        self.bury(slot);
    }

    /// The process of a slot has died or become another program.
    fn bury(&mut self, slot: u16) {
        let Some(process) = self.processes.get(slot).filter(|process| !process.dead) else {
            return;
        };
        // Another slot may watch the same process; only this descriptor is taken out.
        let _ = self.epoll.remove(&process.who.pidfd);
        let pid = process.who.pid;
        let slabs = self.processes.bury(slot);
        for slab in slabs {
            self.slabs.died(&mut self.processes, &mut self.users, slab);
        }
        self.tell(&Event::Gone { slot, pid });
    }

    fn look(&mut self, now: Instant) {
        if self.slabs.next_look().is_none_or(|at| at > now) {
            return;
        }
        let stuck = self.slabs.look(&mut self.processes, &mut self.users, now);
        let mut left = NUMBERS_MAX;
        for (slab, chan, side) in stuck {
            // What could not be moved now is tried at a later look.
            let _ = self.rescue_one(slab, chan, side, &mut left);
        }
    }
}

/// What comes after a message.
#[derive(Debug, Clone, Copy)]
enum Turn {
    More,
    Wait,
    Close,
}

/// Why a request was not answered as it wished.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    Refuse(Reason),
    Close,
}

fn listen(path: &Path, settings: &Settings) -> Result<Listener, BindError> {
    let mode = if settings.others { 0o666 } else { 0o600 };
    unix::bind_socket(path, SocketKind::SeqPacket, mode, None)
}

fn spare() -> Option<OwnedFd> {
    eventfd::create().ok()
}
