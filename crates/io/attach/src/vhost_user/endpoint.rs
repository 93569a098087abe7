//! The control half of a vhost-user attachment: the socket in both roles, and the way of rings to and from workers.
//!
//! # States
//! ```text
//!           connected                     RingChange::Start               a message that disturbs, RingChange::Restart
//! Waiting -----------> Talking (no rings) -----------> Talking (rings) -----------> Quieting (message held)
//!    ^                    |   ^                            |                            |
//!    |     closed, broken |   +----------------------------|------- detached() ---------+
//!    +--------------------+                                | closed, broken             |
//!    ^                                                     v                            |
//!    +------------------ detached() ----------------- Quieting (to end) <---------------+
//! ```
//! In *Waiting* a client connects after a back-off of [`BACKOFF_FIRST`], doubled up to [`BACKOFF_LONGEST`], for ever; a
//! server listens, and takes one front end at a time: others wait to be accepted.
//!
//! # Model
//! A message that changes what workers use is held back while they give the rings back; it is taken, and answered,
//! when nobody uses them. Rings are made when no message has come for [`CHANGE_DELAY`], so that a front end that sets up
//! sixteen queue pairs does not make sixteen sets of rings.
//!
//! # Limits
//! [`MESSAGES_PER_POLL`] messages in one poll. Messages that cost more than a few stores (memory, rings taken and given)
//! come out of a budget of [`COSTLY_BURST`], refilled at [`COSTLY_PER_SECOND`]: a front end that repeats them waits
//! for itself.
//!
//! # Failure modes
//! Whatever a front end does wrong ends its own connection, with the reason in the status; a client tries again. A
//! worker that finds the memory gone or a ring impossible does the same.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use windlass_shm::{Extent, Quota};
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::unix::{self, BindError, Listener, SocketKind};
use windlass_sys::{Errno, eventfd};

use super::device::StartError;
use super::message::Request;
use super::ring_progress::RingProgress;
use super::session::{Refusal, Reply, RingChange, Session, SessionConf, Taken};
use super::since::utc;
use super::wire::{Incoming, Wire, WireError};
use crate::endpoint::{Endpoint, Event, Handed, InterfaceConf, Status};
use crate::peer_fds::{DeferredClose, PeerFds};

/// Wait before the first new attempt of a client.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest wait between attempts.
pub const BACKOFF_LONGEST: Duration = Duration::from_secs(2);
/// How long a server waits before it tries to make its socket again.
pub const RETRY: Duration = Duration::from_secs(1);
/// Silence of the front end after which rings are made.
pub const CHANGE_DELAY: Duration = Duration::from_millis(2);
/// How often to look whether workers have left translations that are gone, if they should fail to say so.
const LATE: Duration = Duration::from_millis(1);
/// Messages that one poll takes.
pub const MESSAGES_PER_POLL: usize = 32;
/// Costly messages at once.
pub const COSTLY_BURST: u32 = 1024;
/// Costly messages a second beyond that.
pub const COSTLY_PER_SECOND: u32 = 100;

/// Who makes the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhostRole {
    /// The front end listens; we connect.
    Client {
        /// In whose directory the socket lies, if not in ours: symbolic links on the way are not followed there.
        owner: Option<(u32, u32)>,
    },
    /// We listen.
    Server {
        /// Permission bits of the socket.
        mode: u32,
        /// User and group of the socket, if not ours.
        owner: Option<(u32, u32)>,
    },
}

/// What an endpoint is made of.
#[derive(Clone, Debug)]
pub struct VhostConf {
    /// The socket.
    pub path: PathBuf,
    /// Who makes it.
    pub role: VhostRole,
    /// What is spoken on it.
    pub session: SessionConf,
    /// Of whom the mappings of the guest's memory count.
    pub quota: Quota,
    /// A file on tmpfs that says where packed rings stand, for the next daemon. It is made for the first front end, in a directory for
    /// such files alone, which is removed with the last of them.
    pub ring_progress: Option<PathBuf>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the guest broke its rings or took its memory away")]
    Broken,
    #[error("{0}")]
    Condemned(String),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum NoSocket {
    #[error("connect to {path}: {errno}")]
    Connect { path: PathBuf, errno: Errno },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("{0}: {1}")]
    Local(&'static str, #[source] Errno),
}

/// A budget of costly messages.
#[derive(Debug)]
struct Allowance {
    left: u32,
    filled: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance {
            left: COSTLY_BURST,
            filled: now,
        }
    }

    /// Takes one; false if none is left, until [`Allowance::next`].
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled);
        let more = passed
            .as_millis()
            .saturating_mul(u128::from(COSTLY_PER_SECOND))
            .checked_div(1000)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(u32::MAX);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(COSTLY_BURST);
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// When there is one again.
    fn next(&self) -> Option<Instant> {
        let step = Duration::from_secs(1).checked_div(COSTLY_PER_SECOND)?;
        self.filled.checked_add(step)
    }
}

/// One front end.
#[derive(Debug)]
struct Connection {
    wire: Wire,
    session: Session,
    allowance: Allowance,
    /// A message that was read and is not taken yet.
    held: Option<Incoming>,
    /// An answer that waits for workers.
    late: Option<Reply>,
    /// When to look again whether it may be given.
    late_at: Option<Instant>,
    /// When the rings are made if the front end says nothing more.
    change_at: Option<Instant>,
    /// When a held message may be taken.
    resume_at: Option<Instant>,
    /// The socket does not wake us meanwhile, but for its end.
    muted: bool,
    /// Workers were asked for the rings; answered by `detached`.
    quieting: bool,
    /// The connection ends when they have given them back.
    ending: bool,
    since: SystemTime,
    /// The last message that was refused.
    refused: Option<String>,
}

/// The control half of a vhost-user attachment.
#[derive(Debug)]
pub struct VhostEndpoint {
    conf: VhostConf,
    epoll: Epoll,
    wake: Arc<OwnedFd>,
    listener: Option<DeferredClose<Listener>>,
    /// The listener is in the set.
    listens: bool,
    progress: Option<Arc<RingProgress>>,
    peer_fds: PeerFds,
    connection: Option<Box<Connection>>,
    try_at: Option<Instant>,
    backoff: Duration,
    condemned: Option<String>,
    reason: String,
    last_error: Option<String>,
    /// Connections that were made, whether or not rings came up on them.
    connections: u64,
    /// Connections on which rings came up.
    connects: u64,
    /// Another daemon is to go on with the connection.
    is_handed_over: bool,
    /// The socket is to be made though there is a front end: that came from another daemon.
    listens_late: bool,
    deleted: bool,
}

/// Whether a message costs more than a few stores.
fn is_costly(request: &Request) -> bool {
    matches!(
        request,
        Request::SetMemTable(_)
            | Request::AddMemReg(_)
            | Request::RemMemReg(_)
            | Request::SetLogBase { .. }
            | Request::SetInflightFd(_)
            | Request::GetInflightFd(_)
    )
}

impl VhostEndpoint {
    /// An attachment that connects or listens with its first poll.
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set or eventfd.
    pub fn new(conf: VhostConf) -> Result<VhostEndpoint, Errno> {
        let (epoll, wake) = (Epoll::create()?, Arc::new(eventfd::create()?));
        epoll.add(&wake, 0, Interest::READABLE)?;
        let peer_fds = PeerFds::new(wake.clone());
        Ok(VhostEndpoint {
            conf,
            epoll,
            wake,
            listener: None,
            listens: false,
            progress: None,
            peer_fds,
            connection: None,
            try_at: None,
            backoff: BACKOFF_FIRST,
            condemned: None,
            reason: "not connected yet".into(),
            last_error: None,
            connections: 0,
            connects: 0,
            is_handed_over: false,
            listens_late: false,
            deleted: false,
        })
    }

    /// Has this poll or the next one soon.
    fn wake(&self) {
        // Our own counter: it cannot be full.
        let _ = eventfd::signal(&self.wake);
    }

    /// Looks for a front end.
    fn meet(&mut self, now: Instant) {
        if !self.peer_fds.are_closed() || self.try_at.is_some_and(|at| now < at) {
            return;
        }
        self.try_at = None;
        let met = match self.conf.role {
            VhostRole::Client { owner } => self.connect(owner).map(Some),
            VhostRole::Server { mode, owner } => self.accept(mode, owner),
        };
        match met {
            Ok(Some(socket)) => self.welcome(socket, now),
            Ok(None) => {}
            Err(why) => {
                self.reason = why.to_string();
                let wait = match self.conf.role {
                    VhostRole::Client { .. } => self.next_backoff(),
                    VhostRole::Server { .. } => RETRY,
                };
                self.try_at = now.checked_add(wait);
            }
        }
    }

    fn next_backoff(&mut self) -> Duration {
        let wait = self.backoff;
        self.backoff = wait.saturating_mul(2).min(BACKOFF_LONGEST);
        wait
    }

    fn connect(&self, owner: Option<(u32, u32)>) -> Result<OwnedFd, NoSocket> {
        let path = &self.conf.path;
        let connected = match owner {
            None => unix::connect(path, SocketKind::Stream),
            Some(_) => unix::connect_unlinked(path, SocketKind::Stream),
        };
        let socket = connected.map_err(|errno| NoSocket::Connect {
            path: path.clone(),
            errno,
        })?;
        self.watch(&socket)?;
        Ok(socket)
    }

    fn listen(&mut self, mode: u32, owner: Option<(u32, u32)>) -> Result<(), NoSocket> {
        let listener = unix::bind_socket(&self.conf.path, SocketKind::Stream, mode, owner)?;
        self.listener = Some(self.peer_fds.keep(listener));
        self.listens = false;
        Ok(())
    }

    fn accept(
        &mut self,
        mode: u32,
        owner: Option<(u32, u32)>,
    ) -> Result<Option<OwnedFd>, NoSocket> {
        if self.listener.is_none() {
            self.listen(mode, owner)?;
            self.reason = "waiting for a front end".into();
        }
        let Some(listener) = &self.listener else {
            return Ok(None);
        };
        if !self.listens {
            self.watch(listener)?;
            self.listens = true;
        }
        let Ok(socket) = listener.accept() else {
            return Ok(None);
        };
        // Whoever else connects waits; the set must not be readable for that.
        let _ = self.epoll.remove(listener);
        self.listens = false;
        self.watch(&socket)?;
        Ok(Some(socket))
    }

    fn watch(&self, fd: impl AsFd) -> Result<(), NoSocket> {
        self.epoll
            .add(fd, 0, Interest::READABLE)
            .map_err(|errno| NoSocket::Local("epoll_ctl", errno))
    }

    fn welcome(&mut self, socket: OwnedFd, now: Instant) {
        self.condemned = None;
        self.connections = self.connections.saturating_add(1);
        self.connection = Some(self.connection_on(socket, now));
    }

    fn connection_on(&mut self, socket: OwnedFd, now: Instant) -> Box<Connection> {
        if self.progress.is_none() {
            let path = self.conf.ring_progress.as_deref();
            self.progress = path.and_then(RingProgress::own).map(Arc::new);
        }
        Box::new(Connection {
            wire: Wire::new(socket, self.peer_fds.clone()),
            session: Session::over(
                self.conf.session,
                self.conf.quota.clone(),
                self.progress.clone(),
            ),
            allowance: Allowance::new(now),
            held: None,
            late: None,
            late_at: None,
            change_at: None,
            resume_at: None,
            muted: false,
            quieting: false,
            ending: false,
            since: SystemTime::now(),
            refused: None,
        })
    }

    /// Goes on with the connection, as far as its budget and the workers allow.
    fn go_on(&mut self, connection: &mut Connection, now: Instant) -> Result<Option<Event>, End> {
        if let Some(reason) = self.condemned.take() {
            return Err(End::Condemned(reason));
        }
        if connection.session.is_broken() {
            connection.session.forget_progress();
            connection.session.tell_broken();
            return Err(End::Broken);
        }
        connection.session.ask_again(now)?;
        connection.session.ask()?;
        let mut event = None;
        for _ in 0..MESSAGES_PER_POLL {
            if !connection.answer(now)? {
                break;
            }
            if !connection.read(now)? {
                event = self.change_rings(connection, now);
                break;
            }
            event = connection.take(now)?;
            if event.is_some() || connection.held.is_some() {
                break;
            }
            connection.change_at = now.checked_add(CHANGE_DELAY);
        }
        connection.session.ask()?;
        self.mute(connection);
        Ok(event)
    }

    /// What waits in the socket of a front end that is over its budget is no reason to look; that it is gone is.
    fn mute(&self, connection: &mut Connection) {
        let muted = connection.resume_at.is_some() || connection.late.is_some();
        if muted != connection.muted {
            let interest = if muted {
                Interest::default()
            } else {
                Interest::READABLE
            };
            // Without it we would look too often, which is no reason to end anything.
            let _ = self.epoll.modify(&connection.wire, 0, interest);
            connection.muted = muted;
        }
    }

    /// The front end has said all for the moment: makes the rings, or asks for them to be made again.
    fn change_rings(&mut self, connection: &mut Connection, now: Instant) -> Option<Event> {
        let ring_change = connection.session.ring_change();
        if ring_change == RingChange::None {
            connection.change_at = None;
            return None;
        }
        if *connection.change_at.get_or_insert(now) > now {
            return None;
        }
        connection.change_at = None;
        if ring_change == RingChange::Restart {
            connection.quieting = true;
            return Some(Event::Down("the guest changed its queues".into()));
        }
        let made = match self.wake.try_clone() {
            Ok(alarm) => connection.session.start(alarm),
            Err(_) => Err(StartError::Local("dup", Errno::MFILE)),
        };
        match made {
            Ok(rings) => {
                self.connects = self.connects.saturating_add(1);
                self.backoff = BACKOFF_FIRST;
                Some(Event::Up(rings))
            }
            Err(error) => {
                self.last_error = Some(error.to_string());
                None
            }
        }
    }

    /// Makes the socket of a server that came to a front end without it.
    fn listen_late(&mut self) {
        if let VhostRole::Server { mode, owner } = self.conf.role
            && core::mem::take(&mut self.listens_late)
            && self.listener.is_none()
            && let Err(why) = self.listen(mode, owner)
        {
            // Tried again when the front end has gone.
            self.last_error = Some(why.to_string());
        }
    }

    /// The socket that this has, if any, is for another user and group.
    fn give_socket(&mut self, owner: (u32, u32)) -> Result<(), Errno> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        if listener.set_owner(owner)? {
            for socket in listener.waiting() {
                drop(self.peer_fds.keep(socket));
            }
            return Ok(());
        }
        // The former owner may have it elsewhere: it is made anew.
        self.listener = None;
        self.listens = false;
        self.listens_late = self.connection.is_some();
        self.wake();
        Ok(())
    }

    /// The connection is over, and workers have nothing of it.
    fn part(&mut self, why: String, now: Instant) {
        self.last_error = Some(why.clone());
        self.reason = why;
        let wait = match self.conf.role {
            VhostRole::Client { .. } => self.next_backoff(),
            VhostRole::Server { .. } => Duration::ZERO,
        };
        self.try_at = now.checked_add(wait);
    }
}

impl Connection {
    /// Whether nothing is under way on it but frames.
    fn is_settled(&self) -> bool {
        !self.quieting
            && !self.ending
            && self.held.is_none()
            && self.late.is_none()
            && self.wire.is_between_messages()
            && self.session.ring_change() == RingChange::None
    }

    /// Gives the answer that waits, if it may be given; false if it has to wait.
    fn answer(&mut self, now: Instant) -> Result<bool, End> {
        let Some(reply) = self.late.take() else {
            return Ok(true);
        };
        if !self.session.is_clear() {
            self.late = Some(reply);
            self.late_at = now.checked_add(LATE);
            return match self.wire.is_hung_up() {
                true => Err(WireError::Closed.into()),
                false => Ok(false),
            };
        }
        self.late_at = None;
        self.send(&reply)?;
        Ok(true)
    }

    fn send(&self, reply: &Reply) -> Result<(), WireError> {
        let file = reply.fd.as_ref().map(AsFd::as_fd);
        self.wire.send(&reply.bytes, file)
    }

    /// Makes sure that a message is in hand; false if none is there.
    fn read(&mut self, now: Instant) -> Result<bool, WireError> {
        if self.resume_at.is_some_and(|at| now < at) {
            // What it said last need not be waited for.
            return match self.wire.is_hung_up() {
                true => Err(WireError::Closed),
                false => Ok(false),
            };
        }
        self.resume_at = None;
        if self.held.is_none() {
            self.held = self.wire.receive()?;
        }
        Ok(self.held.is_some())
    }

    /// Takes the message in hand, or asks for the rings first, or waits for the budget: then it stays in hand.
    fn take(&mut self, now: Instant) -> Result<Option<Event>, End> {
        let Some(message) = self.held.take() else {
            return Ok(None);
        };
        let disturbs = self.session.disturbs(&message.request);
        if (disturbs || is_costly(&message.request)) && !self.allowance.take(now) {
            self.resume_at = self.allowance.next();
            self.held = Some(message);
            return Ok(None);
        }
        if disturbs {
            let why = format!("the front end says {}", message.code);
            self.held = Some(message);
            self.quieting = true;
            return Ok(Some(Event::Down(why)));
        }
        let Taken {
            reply,
            refused,
            waits,
        } = self.session.take(message)?;
        if let Some(refused) = refused {
            self.refused = Some(refused.to_string());
        }
        match reply {
            Some(reply) if waits => self.late = Some(reply),
            Some(reply) => self.send(&reply)?,
            None => {}
        }
        Ok(None)
    }
}

impl Endpoint for VhostEndpoint {
    fn set_owner(&mut self, owner: (u32, u32)) -> Result<(), String> {
        let VhostRole::Server { mode, owner: had } = self.conf.role else {
            return Ok(());
        };
        if had != Some(owner) {
            let given = self.give_socket(owner);
            given.map_err(|errno| format!("chown {}: {errno}", self.conf.path.display()))?;
            let owner = Some(owner);
            self.conf.role = VhostRole::Server { mode, owner };
        }
        Ok(())
    }

    fn quota(&self) -> Option<&Quota> {
        Some(&self.conf.quota)
    }

    fn poll(&mut self, now: Instant) -> Vec<Event> {
        // The counter says only that something is to be looked at, and everything is.
        let _ = eventfd::drain(&self.wake);
        if self.deleted || self.is_handed_over {
            return Vec::new();
        }
        if self.connection.is_none() {
            self.meet(now);
        }
        let Some(mut connection) = self.connection.take() else {
            return Vec::new();
        };
        if connection.quieting {
            self.connection = Some(connection);
            return Vec::new();
        }
        match self.go_on(&mut connection, now) {
            Ok(event) => {
                self.connection = Some(connection);
                if event.is_none() {
                    self.listen_late();
                }
                event.into_iter().collect()
            }
            Err(end) => {
                let why = end.to_string();
                if !connection.session.is_running() {
                    drop(connection);
                    self.part(why, now);
                    return Vec::new();
                }
                (connection.quieting, connection.ending, connection.held) = (true, true, None);
                self.reason = why.clone();
                self.connection = Some(connection);
                vec![Event::Down(why)]
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        if self.deleted || self.is_handed_over {
            return None;
        }
        match &self.connection {
            Some(connection) if self.listens_late && !connection.quieting => Some(Instant::now()),
            Some(connection) if connection.quieting => None,
            Some(connection) => {
                let again_at = connection.session.asks_again_at();
                let times = [
                    connection.change_at,
                    connection.resume_at,
                    connection.late_at,
                    again_at,
                ];
                times.into_iter().flatten().min()
            }
            // The last one that is closed wakes us.
            None if !self.peer_fds.are_closed() => None,
            None if self.listener.is_some() => self.try_at,
            None => Some(self.try_at.unwrap_or_else(Instant::now)),
        }
    }

    fn condemn(&mut self, reason: &str) {
        self.condemned = Some(reason.to_owned());
        self.wake();
    }

    fn detached(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if connection.quieting {
            connection.quieting = false;
            connection.session.stopped();
        }
        if connection.ending {
            drop(connection);
            let why = core::mem::take(&mut self.reason);
            self.part(why, Instant::now());
        } else {
            self.connection = Some(connection);
        }
        self.wake();
    }

    fn status(&self) -> Status {
        let mut details = vec![(
            "role",
            match self.conf.role {
                VhostRole::Client { .. } => "client".into(),
                VhostRole::Server { .. } => "server".into(),
            },
        )];
        details.push(("socket", self.conf.path.display().to_string()));
        let reconnects = self.connections.saturating_sub(1);
        details.push(("reconnects", reconnects.to_string()));
        let connection = self
            .connection
            .as_ref()
            .filter(|connection| !connection.ending);
        if let Some(connection) = connection {
            details.push(("connected-since", utc(connection.since)));
            if let Ok(peer) = unix::peer_credentials(&connection.wire)
                && let Some(pid) = peer.pid
            {
                details.push(("peer-pid", pid.to_string()));
            }
            details.extend(connection.session.describe());
            if let Some(refused) = &connection.refused {
                details.push(("last-refusal", refused.clone()));
            }
        }
        if let Some(error) = &self.last_error {
            details.push(("last-error", error.clone()));
        }
        let up = connection
            .is_some_and(|connection| connection.session.is_running() && !connection.quieting);
        let reason = match connection {
            Some(connection) if !up && connection.quieting => {
                "connected; the guest changes its queues"
            }
            Some(connection) if !up => connection.session.missing(),
            Some(_) => "",
            None if !self.peer_fds.are_closed() => "the last front end's descriptors do not close",
            None => &self.reason,
        };
        Status {
            up,
            reason: reason.to_owned(),
            details,
            connects: self.connects,
        }
    }

    fn configure(&mut self, interface: &InterfaceConf) -> Result<(), String> {
        self.conf.session.mtu = interface.mtu;
        if let Some(connection) = &mut self.connection {
            connection.session.set_mtu(interface.mtu);
        }
        Ok(())
    }

    fn regions(&self) -> Vec<(&'static str, Extent)> {
        let connection = self.connection.iter();
        let extents = connection.flat_map(|connection| connection.session.extents());
        extents.map(|extent| ("guest", extent)).collect()
    }

    fn mark(&self) -> Option<String> {
        Some(format!("vhost-user {}", self.conf.path.display()))
    }

    fn hand_over(&mut self) -> Option<Handed> {
        let mark = self.mark()?;
        let connection = self.connection.as_mut()?;
        if !connection.is_settled() || self.condemned.is_some() {
            return None;
        }
        let (words, rest) = connection.session.hand_over()?;
        let mut fds = vec![connection.wire.as_fd().try_clone_to_owned().ok()?];
        fds.extend(rest);
        if fds.len() > unix::FDS_MAX {
            return None;
        }
        connection.wire.leave_open(true);
        self.is_handed_over = true;
        Some(Handed {
            mark,
            state: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            fds,
        })
    }

    fn keep(&mut self, is_used: bool) -> bool {
        let was_handed_over = core::mem::take(&mut self.is_handed_over);
        self.wake();
        let Some(connection) = self.connection.as_mut().filter(|_| was_handed_over) else {
            return false;
        };
        connection.wire.leave_open(false);
        // Where they stand is read anew.
        if is_used && connection.session.is_running() {
            connection.session.was_elsewhere();
            connection.quieting = true;
        }
        connection.quieting
    }

    fn take_over(&mut self, handed: Handed) {
        let mut fds = handed.fds.into_iter();
        let Some(socket) = fds.next() else { return };
        let words = handed.state.as_chunks::<8>().0.iter();
        let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
        let watched = self.watch(&socket);
        let mut connection = self.connection_on(socket, Instant::now());
        if watched.is_err() || !connection.session.resume(&words, fds.collect()) {
            // The front end connects again.
            return;
        }
        self.connections = self.connections.saturating_add(1);
        self.listens_late = matches!(self.conf.role, VhostRole::Server { .. });
        self.connection = Some(connection);
    }

    fn delete(&mut self) {
        self.deleted = true;
        self.connection = None;
        self.reason = "deleted".into();
        if let Some(listener) = self.listener.take() {
            // The path may be gone already, or somebody else's by now: nothing is left to do in either case.
            let _ = listener.unlink();
        }
        if let Some(progress) = &self.conf.ring_progress {
            // Of no use to anybody, if it is there; and the directory goes with the last one.
            let _ = std::fs::remove_file(progress);
            let _ = progress.parent().map(std::fs::remove_dir);
        }
    }
}
