//! The thread: connections, requests, deaths, and the clock of the watch.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::io::Errno;
use windlass_channel::protocol::{MESSAGE_BYTES, Request};
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::identity::user_namespace;
use windlass_sys::process;
use windlass_sys::signals::Signals;
use windlass_sys::unix::{self, BindError, Listener, SocketKind};

use crate::helpers::Helpers;
use crate::host::Host;
use crate::inquiry::Connection;
use crate::limits::{
    CONNECTIONS_MAX, HELPED_REQUESTS, LOOKS_PER_USER_PER_S, NUMBERS_MAX, REQUESTS_PER_USER_PER_S,
    REST, REST_WITHOUT_DESCRIPTORS,
};
use crate::listeners::Listeners;
use crate::policy::Policy;
use crate::private::library_is_loaded;
use crate::processes::Processes;
use crate::slabs::Slabs;
use crate::users::Users;
use crate::{Say, Settings};

/// The socket for everybody.
pub(crate) const COMMON: u64 = 0;
const SIGNALS: u64 = 1;
const CONNECTION: u64 = 1 << 32;
pub(crate) const PROCESS: u64 = 2 << 32;
pub(crate) const HELPER: u64 = 3 << 32;
/// The socket of a user, with his number.
pub(crate) const OWN_LISTENER: u64 = 4 << 32;
/// The look at a network namespace for a user, with his number.
pub(crate) const LOOK: u64 = 5 << 32;
const CLASS: u64 = 0xffff_ffff_0000_0000;
/// Connections taken at one socket before others have their turn.
const ACCEPTS_PER_TURN: usize = 4;

/// The broker, listening but not yet running.
pub struct Broker {
    listeners: Listeners,
    pub(crate) epoll: Epoll,
    pub(crate) settings: Settings,
    pub(crate) policy: Policy,
    /// Those whose request has not come yet.
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    pub(crate) helpers: Helpers,
    pub(crate) processes: Processes,
    pub(crate) slabs: Slabs,
    pub(crate) users: Users,
    /// Descriptors that were looked at, apart: who asks much would find no socket that has another number by now.
    pub(crate) looks: Users,
    /// The broker's own user namespace.
    pub(crate) userns: (u64, u64),
    /// Asked before a pair is given memory; root's only.
    pub(crate) host: Option<Host>,
    idle_since: Instant,
    pub(crate) say: Say,
}

impl Broker {
    /// Listens at a path, or takes the socket that listens there already.
    ///
    /// # Errors
    /// If the path is in use, the policy is not understood, or the system refuses.
    pub fn listen(
        path: &Path,
        given: Option<Listener>,
        settings: Settings,
        say: Say,
    ) -> Result<Self> {
        let listener = given.map_or_else(|| listen(path, &settings), Ok)?;
        let policy = settings.policy.as_deref().map(Policy::load).transpose()?;
        let epoll = Epoll::create()?;
        let listeners = Listeners::new(path, &epoll, listener)?;
        let processes = Processes::new(path, &epoll).context("the table of processes")?;
        Ok(Self {
            listeners,
            epoll,
            policy: policy.unwrap_or_default(),
            connections: BTreeMap::new(),
            next_connection: 0,
            helpers: Helpers::new(&settings.program),
            settings,
            processes,
            slabs: Slabs::new(),
            users: Users::of(REQUESTS_PER_USER_PER_S),
            looks: Users::of(LOOKS_PER_USER_PER_S),
            userns: user_namespace(std::process::id()).unwrap_or_default(),
            host: rustix::process::geteuid().is_root().then(Host::default),
            idle_since: Instant::now(),
            say,
        })
    }

    /// Serves until a signal ends it, or until a private one has had no process for its time; SIGHUP has it read its policy again.
    /// Removes its path.
    ///
    /// # Errors
    /// Only if waiting itself fails.
    pub fn run(mut self, signals: &Signals) -> Result<(), Errno> {
        self.epoll.add(signals, SIGNALS, Interest::READABLE)?;
        if self.settings.linger.is_some()
            && let Ok(own) = process::pin(std::process::id())
        {
            self.prepare(&own);
        }
        let mut events = Events::default();
        loop {
            let now = Instant::now();
            self.tend_helpers(now);
            self.watch(now);
            if self.is_superfluous(now) && self.takes_leave() {
                return Ok(());
            }
            let timeout = self.due(now).map(|at| at.saturating_duration_since(now));
            self.epoll.wait(&mut events, timeout)?;
            for ready in events.iter() {
                match ready.token & CLASS {
                    CONNECTION => self.readable(ready.token),
                    PROCESS => self.bury((ready.token & !CLASS) as u16),
                    HELPER => self.helper_speaks((ready.token & !CLASS) as u16),
                    LOOK => self.looked(ready.token as u32),
                    _ if ready.token != SIGNALS => self.accept(ready.token),
                    _ if signals.next() == Ok(libc::SIGHUP) => self.reload(),
                    _ => {
                        self.listeners.unlink();
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Somebody should hear of it.
    pub(crate) fn notice(&mut self, line: Arguments<'_>) {
        (self.say)(true, line);
    }

    /// What became of one process or request.
    pub(crate) fn detail(&mut self, line: Arguments<'_>) {
        (self.say)(false, line);
    }

    /// When something is to be done next.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        let linger = self.settings.linger;
        let linger = linger.filter(|_| !self.processes.any_lives());
        let due = [
            self.slabs.next_look,
            self.helpers.next_late().map(|(at, _)| at),
            self.listeners.wake(&self.epoll, now),
            linger.map(|linger| self.idle_since + linger),
        ];
        due.into_iter().flatten().min()
    }

    /// Whether a private broker has had nothing to do for its time, and nobody is about to need it.
    fn is_superfluous(&mut self, now: Instant) -> bool {
        if self.processes.any_lives() || !self.connections.is_empty() {
            self.idle_since = now;
        }
        let linger = self.settings.linger;
        let has_lingered = linger.is_some_and(|linger| now >= self.idle_since + linger);
        // Where the socket is not in place, whoever comes finds another broker.
        if has_lingered && self.listeners.is_in_place() && library_is_loaded() {
            self.idle_since = now;
            return false;
        }
        has_lingered
    }

    /// The private broker ends, unless somebody has found it in the meantime: who saw it listen relies on it. True if it
    /// has ended. Who finds no socket starts another broker, which waits for our lock.
    fn takes_leave(&mut self) -> bool {
        self.listeners.unlink();
        // Whoever comes begins the time anew.
        let idle_since = self.idle_since;
        self.accept(COMMON);
        if self.idle_since == idle_since {
            return true;
        }
        let path = &self.listeners.path;
        let again = listen(path, &self.settings).ok();
        let again = again.and_then(|socket| Listeners::new(path, &self.epoll, socket).ok());
        again.map(|again| self.listeners = again).is_none()
    }

    fn reload(&mut self) {
        match self.settings.policy.as_deref().map(Policy::load) {
            Some(Ok(policy)) => self.policy = policy,
            Some(Err(error)) => self.notice(format_args!("the old policy holds: {error}")),
            None => {}
        }
    }

    /// Takes connections at a socket.
    fn accept(&mut self, token: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let rest = match self.listeners.accept(token) {
                Ok(socket) => match self.welcome(socket) {
                    true => continue,
                    false => REST,
                },
                Err(Errno::MFILE | Errno::NFILE) => {
                    self.notice(format_args!("no descriptor is left"));
                    if self.make_room() {
                        continue;
                    }
                    REST_WITHOUT_DESCRIPTORS
                }
                Err(_) => return,
            };
            let until = Instant::now() + rest;
            return self.listeners.rest(&self.epoll, token, until);
        }
    }

    /// Takes a connection in, or lets it go; false: its user has asked too much.
    fn welcome(&mut self, socket: OwnedFd) -> bool {
        let Ok(who) = unix::peer_credentials(&socket) else {
            return true;
        };
        let own = rustix::process::geteuid().as_raw();
        if self.settings.others {
            self.listeners.give(&self.epoll, who.uid, who.gid);
        } else if who.uid != own && who.uid != 0 {
            return true;
        }
        // Of a user who asks too much not even the request is read.
        if !self.users.may_ask(who.uid, Instant::now()) {
            return false;
        }
        let is_new = self.settings.others && !self.helpers.has_any(who.uid, who.gid);
        if let Some(pid) = who.pid.filter(|_| is_new)
            && let Ok(pidfd) = process::peer_pidfd(&socket, pid)
        {
            self.users.asked(who.uid, HELPED_REQUESTS);
            self.prepare(&(pid, Arc::new(pidfd)));
        }
        self.idle_since = Instant::now();
        // The request is most often there already.
        self.serve(Connection { socket, who });
        true
    }

    /// Closes the oldest connection of the user with most of them, if there is any.
    fn make_room(&mut self) -> bool {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for connection in self.connections.values() {
            *counts.entry(connection.who.uid).or_default() += 1;
        }
        let all = self.connections.iter();
        let oldest = all.max_by_key(|(token, one)| (counts.get(&one.who.uid), Reverse(**token)));
        let oldest = oldest.map(|(token, _)| *token);
        oldest.is_some_and(|token| self.connections.remove(&token).is_some())
    }

    fn readable(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            // It may be kept until a helper has answered.
            let _ = self.epoll.remove(&connection.socket);
            self.serve(connection);
        }
    }

    /// Takes the request of a connection and answers it. Whatever is not exactly a request ends the connection.
    fn serve(&mut self, connection: Connection) {
        let mut message = [0; MESSAGE_BYTES + 1];
        match unix::receive_with_fds(&connection.socket, &mut message, 0) {
            Ok(received) if !received.truncated && received.surplus_fds == 0 => {
                let request = message.get(..received.bytes).and_then(Request::decode);
                if let Some(request) = request {
                    self.answer(connection, request);
                }
            }
            Err(Errno::AGAIN) => {
                if self.connections.len() >= CONNECTIONS_MAX {
                    self.make_room();
                }
                self.next_connection = (self.next_connection + 1) & !CLASS;
                let token = CONNECTION | self.next_connection;
                let added = self
                    .epoll
                    .add(&connection.socket, token, Interest::READABLE);
                if added.is_ok() {
                    self.connections.insert(token, connection);
                }
            }
            _ => {}
        }
    }

    /// The process of a slot has died or become another program.
    pub(crate) fn bury(&mut self, slot: u16) {
        self.helpers.reap();
        let Some((pid, slabs)) = self.processes.bury(&self.epoll, slot) else {
            return;
        };
        for slab in slabs {
            self.slabs.died(&mut self.processes, slab);
        }
        self.detail(format_args!("slot {slot} is process {pid} no more"));
    }

    /// Begins the rescues that nobody asked for.
    fn watch(&mut self, now: Instant) {
        for place in self.slabs.look(&mut self.processes, now) {
            // What cannot be moved now is tried at a later look.
            let _ = self.begin_rescue(&None, place, NUMBERS_MAX as u32);
        }
    }
}

fn listen(path: &Path, settings: &Settings) -> Result<Listener, BindError> {
    let mode = if settings.others { 0o666 } else { 0o600 };
    unix::bind_socket(path, SocketKind::SeqPacket, mode, None)
}
