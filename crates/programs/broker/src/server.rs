//! The thread: connections, requests, deaths, and the clock of the watch.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use windlass_channel::protocol::{MESSAGE_BYTES, Request};
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::unix::{self, BindError, Credentials, Listener, SocketKind};
use windlass_sys::{eventfd, process};

use crate::helpers::Helpers;
use crate::host::Host;
use crate::identity::userns_of;
use crate::inquiry::Connection;
use crate::limits::{
    CONNECTIONS_MAX, CONNECTIONS_PER_USER_MAX, HELPED_REQUESTS, NUMBERS_MAX, WITNESSES_MAX,
};
use crate::listeners::Listeners;
use crate::policy::Policy;
use crate::processes::Processes;
use crate::slabs::Slabs;
use crate::users::Users;
use crate::{Event, Settings, StartError};

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const CONNECTION: u64 = 1 << 32;
pub(crate) const PROCESS: u64 = 2 << 32;
pub(crate) const HELPER: u64 = 3 << 32;
/// The socket of a user, with his number.
const OWN_LISTENER: u64 = 4 << 32;
const CLASS: u64 = 0xffff_ffff_0000_0000;
/// Connections taken at one socket before others have their turn.
const ACCEPTS_PER_TURN: usize = 4;

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
    listeners: Listeners,
    pub(crate) epoll: Epoll,
    handle: Handle,
    pub(crate) settings: Settings,
    pub(crate) policy: Policy,
    /// Those whose request has not come yet.
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    pub(crate) helpers: Helpers,
    pub(crate) processes: Processes,
    pub(crate) slabs: Slabs,
    pub(crate) users: Users,
    /// The broker's own user namespace.
    pub(crate) userns: (u64, u64),
    /// Asked before a pair is given memory; root's only.
    pub(crate) host: Option<Host>,
    /// Given up for a moment where no descriptor is left, so that a connection can be taken and refused.
    spare: Option<OwnedFd>,
    idle_since: Instant,
    /// Processes that saw a private broker listen, and rely on it: `windlass run` becomes the program in the same process.
    witnesses: Vec<OwnedFd>,
    events: Box<dyn FnMut(&Event<'_>) + Send>,
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
        let processes = Processes::new(path, &epoll)?;
        Ok(Self {
            path: path.to_owned(),
            listeners: Listeners::new(path, listener),
            epoll,
            handle: Handle {
                waker,
                stop: Arc::default(),
                reload: Arc::default(),
            },
            policy,
            connections: BTreeMap::new(),
            next_connection: 0,
            helpers: Helpers::new(&settings.program),
            settings,
            processes,
            slabs: Slabs::new(),
            users: Users::default(),
            userns: userns_of(std::process::id()).unwrap_or_default(),
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
        if self.settings.linger.is_some()
            && let Ok(own) = pidfd_open(getpid(), PidfdFlags::empty())
        {
            self.prepare(std::process::id(), &own);
        }
        let mut events = Events::default();
        while !self.handle.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if self.handle.reload.swap(false, Ordering::AcqRel) {
                self.reload();
            }
            self.tend_helpers(now);
            self.wake_listeners(now);
            self.watch(now);
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
                    CONNECTION => self.readable(ready.token),
                    PROCESS => self.bury((ready.token & !CLASS) as u16),
                    HELPER => self.helper_speaks(ready.token & !CLASS),
                    OWN_LISTENER => self.accept(Some((ready.token & !CLASS) as u32)),
                    _ if ready.token == LISTENER => self.accept(None),
                    _ => drop(eventfd::drain(&*self.handle.waker)),
                }
            }
        }
        self.listeners.unlink();
        Ok(())
    }

    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        (self.events)(event);
    }

    /// How long to wait; `None` if the private broker is not needed any more.
    fn timeout(&mut self, now: Instant) -> Option<Option<Duration>> {
        let due = [
            self.slabs.next_look(),
            self.helpers.next_late(),
            self.listeners.next_rested(),
        ];
        let mut until = due.into_iter().flatten().min();
        match self.settings.linger {
            Some(linger) if self.processes.alive() == 0 => {
                let end = self.idle_since + linger;
                if now >= end && self.connections.is_empty() {
                    self.witnesses.retain(|one| !process::has_ended(one));
                    // Whoever comes later finds another one.
                    let is_found = self.listeners.common.is_in_place();
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
        // Whoever comes begins the time anew.
        let idle_since = self.idle_since;
        self.accept(None);
        if self.idle_since != idle_since {
            return false;
        }
        self.listeners.unlink();
        self.accept(None);
        if self.idle_since == idle_since {
            return true;
        }
        let Ok(listener) = listen(&self.path, &self.settings) else {
            return true;
        };
        let _ = self.epoll.remove(&self.listeners.common);
        self.listeners.common = listener;
        self.epoll
            .add(&self.listeners.common, LISTENER, Interest::READABLE)
            .is_err()
    }

    fn reload(&mut self) {
        let Some(path) = self.settings.policy.clone() else {
            return;
        };
        match Policy::load(&path) {
            Ok(policy) => self.policy = policy,
            Err(error) => self.tell(&Event::Notice(format_args!(
                "the old policy holds: {error}"
            ))),
        }
    }

    /// Takes connections at the socket of a user, or at the common one.
    fn accept(&mut self, uid: Option<u32>) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get(uid) else {
                return;
            };
            match listener.accept() {
                Ok(socket) => {
                    if !self.welcome(socket) {
                        return self.rest(uid);
                    }
                }
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Taken with the spare descriptor and closed, so that it does not wait for ever.
                    self.spare = None;
                    drop(listener.accept());
                    self.spare = spare();
                    self.tell(&Event::Notice(format_args!("no descriptor is left")));
                }
                Err(_) => return,
            }
        }
    }

    /// Takes nothing from a socket for a while.
    fn rest(&mut self, uid: Option<u32>) {
        if let Some(listener) = self.listeners.get(uid)
            && self.epoll.remove(listener).is_ok()
        {
            self.listeners.rest(uid, Instant::now());
        }
    }

    /// Takes connections again where none were taken for long enough.
    fn wake_listeners(&mut self, now: Instant) {
        while let Some(uid) = self.listeners.rested(now) {
            let token = uid.map_or(LISTENER, |uid| OWN_LISTENER | u64::from(uid));
            let is_watched = self
                .listeners
                .get(uid)
                .is_none_or(|listener| self.epoll.add(listener, token, Interest::READABLE).is_ok());
            if !is_watched {
                self.listeners.rest(uid, now);
            }
        }
    }

    /// Takes a connection in, or lets it go; false: its user has asked too much.
    fn welcome(&mut self, socket: OwnedFd) -> bool {
        let Ok(who) = unix::peer_credentials(&socket) else {
            return true;
        };
        let own = rustix::process::geteuid().as_raw();
        if !self.settings.others && who.uid != own && who.uid != 0 {
            return true;
        }
        if self.settings.others
            && let Ok(Some(listener)) = self.listeners.give(who.uid, who.gid)
        {
            // Without it the user goes on at the common socket, as one who cannot have one does.
            let token = OWN_LISTENER | u64::from(who.uid);
            let _ = self.epoll.add(listener, token, Interest::READABLE);
        }
        // Of a user who asks too much not even the request is read.
        if !self.users.may_ask(who.uid, Instant::now()) {
            return false;
        }
        if self.settings.linger.is_some() && who.uid == own {
            self.remember(&socket, who);
        }
        let is_new = self.settings.others && !self.helpers.has_any(who.uid, who.gid);
        if let Some(pid) = who.pid.filter(|_| is_new)
            && let Ok(pidfd) = process::peer_pidfd(&socket, pid)
        {
            self.users.asked(who.uid, HELPED_REQUESTS);
            self.prepare(pid, &pidfd);
        }
        self.idle_since = Instant::now();
        // The request is most often there already.
        self.serve(Connection { socket, who });
        true
    }

    /// Closes the oldest connection of a user who has too many, or of the one with most of them.
    fn make_room(&mut self, uid: u32) {
        let uids = || {
            self.connections
                .values()
                .map(|connection| connection.who.uid)
        };
        let count = |uid| uids().filter(|one| *one == uid).count();
        let loser = if count(uid) >= CONNECTIONS_PER_USER_MAX {
            Some(uid)
        } else if self.connections.len() >= CONNECTIONS_MAX {
            uids().max_by_key(|uid| count(*uid))
        } else {
            None
        };
        let mut all = self.connections.iter();
        let oldest = all.find(|(_, connection)| Some(connection.who.uid) == loser);
        if let Some(oldest) = oldest.map(|(token, _)| *token) {
            self.connections.remove(&oldest);
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
                self.make_room(connection.who.uid);
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
        let Some((pid, slabs)) = self.processes.bury(&self.epoll, slot) else {
            return;
        };
        for slab in slabs {
            self.slabs.died(&mut self.processes, slab);
        }
        self.tell(&Event::Detail(format_args!(
            "slot {slot} is process {pid} no more"
        )));
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

fn spare() -> Option<OwnedFd> {
    eventfd::create().ok()
}
