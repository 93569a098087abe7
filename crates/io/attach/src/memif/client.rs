//! The client role: we connect to the peer's socket and bring the memory.
//!
//! # States
//! ```text
//! Waiting --- connected ---> Handshake --- CONNECTED ---> Up --- peer gone, broken, condemned ---> Leaving
//!    ^                           |                                                                   |
//!    +--- refused, silent -------+<------------------------- detached() -----------------------------+
//! ```
//! In *Waiting* a connection is tried after a back-off of [`BACKOFF_FIRST`], doubled up to [`BACKOFF_LONGEST`].
//!
//! # Model
//! [`super::offer`] says what is said, and makes the memory.
//!
//! # Failure modes
//! The memory is sealed, so the server cannot take it away. Whatever it writes into descriptors of ours is never
//! believed: see [`super::rx`].

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_shm::Extent;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::unix::{self, SocketKind};
use windlass_sys::{Errno, eventfd};

use super::channel::{Channel, HANDSHAKE_TIMEOUT, MESSAGES_PER_POLL, Refusal, name_of};
use super::msg::{Message, Text};
use super::offer::{ClientConfig, Dialogue};
use super::rings::assemble;
use super::view::{Role, View};
use crate::endpoint::{Endpoint, Event, Rings, Status};
use crate::peer_fds::PeerFds;

/// Wait before the first new attempt.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between attempts.
pub const BACKOFF_LONGEST: Duration = Duration::from_secs(2);

/// A client interface.
#[derive(Debug)]
pub struct MemifClient {
    config: ClientConfig,
    peer_fds: PeerFds,
    epoll: Epoll,
    wake: Arc<OwnedFd>,
    state: State,
    try_at: Option<Instant>,
    backoff: Duration,
    condemned: Option<String>,
    reason: String,
    connects: u64,
}

#[derive(Debug)]
enum State {
    Waiting,
    Handshake(Box<Handshake>),
    Up {
        channel: Channel,
        view: Arc<View>,
        details: Vec<(&'static str, String)>,
    },
    Leaving {
        _view: Arc<View>,
    },
    Deleted,
}

/// A connection on its way up.
#[derive(Debug)]
struct Handshake {
    channel: Channel,
    deadline: Option<Instant>,
    dialogue: Dialogue,
}

fn dup(fd: &OwnedFd) -> Result<OwnedFd, Refusal> {
    fd.try_clone()
        .map_err(|e| Refusal::Local("dup", Errno::from_io_error(&e).unwrap_or(Errno::MFILE)))
}

impl MemifClient {
    /// An interface that begins to connect with its first poll.
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set or eventfd.
    pub fn new(config: ClientConfig) -> Result<MemifClient, Errno> {
        let (epoll, wake) = (Epoll::create()?, Arc::new(eventfd::create()?));
        epoll.add(&wake, 0, Interest::READABLE)?;
        Ok(MemifClient {
            config,
            peer_fds: PeerFds::new(wake.clone()),
            epoll,
            wake,
            state: State::Waiting,
            try_at: None,
            backoff: BACKOFF_FIRST,
            condemned: None,
            reason: "not connected yet".into(),
            connects: 0,
        })
    }

    /// Connects; the server speaks first.
    fn connect(&self, now: Instant) -> Result<Handshake, Refusal> {
        let path = &self.config.path;
        let connected = match self.config.owner {
            None => unix::connect(path, SocketKind::SeqPacket),
            Some(_) => unix::connect_unlinked(path, SocketKind::SeqPacket),
        };
        let socket = connected.map_err(|errno| Refusal::Connect {
            path: path.clone(),
            errno,
        })?;
        let channel = Channel::new(socket, self.peer_fds.clone());
        self.epoll
            .add(&channel, 0, Interest::READABLE)
            .map_err(|errno| Refusal::Local("epoll_ctl", errno))?;
        Ok(Handshake {
            channel,
            deadline: now.checked_add(HANDSHAKE_TIMEOUT),
            dialogue: Dialogue::default(),
        })
    }

    /// Waits longer before each new attempt.
    fn back_off(&mut self, now: Instant) {
        self.try_at = now.checked_add(self.backoff);
        self.backoff = self.backoff.saturating_mul(2).min(BACKOFF_LONGEST);
    }

    fn go_on(&self, handshake: &mut Handshake, now: Instant) -> Result<Option<Text<32>>, Refusal> {
        for _ in 0..MESSAGES_PER_POLL {
            let Some((message, _)) = handshake.channel.receive()? else {
                if handshake.deadline.is_some_and(|at| now >= at) {
                    return Err(Refusal::Silent);
                }
                return Ok(None);
            };
            if let Some(name) = handshake.dialogue.take(&message, &self.config)? {
                return Ok(Some(name));
            }
            if let Some((message, fd)) = handshake.dialogue.to_say() {
                handshake.channel.send(message, fd)?;
            }
            handshake.deadline = now.checked_add(HANDSHAKE_TIMEOUT);
        }
        Ok(None)
    }

    fn rise(&mut self, handshake: Handshake, name: &Text<32>) -> Result<Rings, Refusal> {
        let (server, offer) = handshake.dialogue.finish().ok_or(Refusal::Rings)?;
        let details = vec![
            ("role", "client".into()),
            ("peer", server.to_string()),
            ("interface", name.to_string()),
            ("rings-from-peer", offer.from_server.len().to_string()),
            ("rings-to-peer", offer.from_client.len().to_string()),
            (
                "ring-size",
                offer
                    .from_client
                    .first()
                    .map_or(0, |r| r.place.size())
                    .to_string(),
            ),
            (
                "huge-pages",
                if offer.mapping.is_huge() { "yes" } else { "no" }.into(),
            ),
        ];
        let alarm = dup(&self.wake)?;
        let view = Arc::new(View::new(vec![offer.mapping], alarm).ok_or(Refusal::Rings)?);
        let rings = assemble(&view, Role::Client, offer.from_client, offer.from_server)
            .ok_or(Refusal::Rings)?;
        self.connects = self.connects.saturating_add(1);
        self.backoff = BACKOFF_FIRST;
        self.reason.clear();
        self.state = State::Up {
            channel: handshake.channel,
            view,
            details,
        };
        Ok(rings)
    }

    /// Goes on with the handshake; the rings once it is done.
    fn shake(&mut self, mut handshake: Box<Handshake>, now: Instant) -> Option<Rings> {
        let result = match self.go_on(&mut handshake, now) {
            Ok(None) => {
                self.state = State::Handshake(handshake);
                return None;
            }
            Ok(Some(name)) => self.rise(*handshake, &name),
            Err(why) => {
                handshake.channel.say_goodbye(&why);
                Err(why)
            }
        };
        result
            .map_err(|why| {
                self.reason = why.to_string();
                self.state = State::Waiting;
                self.back_off(now);
            })
            .ok()
    }

    /// Why a connection that is up has ended, if it has.
    fn look(&mut self) -> Option<Refusal> {
        let State::Up { channel, view, .. } = &self.state else {
            return None;
        };
        if let Some(reason) = self.condemned.take() {
            return Some(Refusal::Condemned(reason));
        }
        if view.is_dead() {
            return Some(Refusal::Broken);
        }
        match channel.receive() {
            Ok(None) => None,
            Ok(Some((Message::Disconnect(why), _))) => Some(Refusal::Peer(why.reason)),
            Ok(Some((other, _))) => Some(Refusal::Unexpected(name_of(&other))),
            Err(why) => Some(why),
        }
    }

    /// Begins to take the rings back.
    fn leave(&mut self, why: &Refusal, now: Instant) -> Event {
        let state = core::mem::replace(&mut self.state, State::Waiting);
        if let State::Up { channel, view, .. } = state {
            channel.say_goodbye(why);
            view.fail();
            self.state = State::Leaving { _view: view };
        }
        self.back_off(now);
        self.reason = why.to_string();
        Event::Down(self.reason.clone())
    }
}

impl Endpoint for MemifClient {
    fn poll(&mut self, now: Instant) -> Vec<Event> {
        // The counter says only that something is to be looked at, and everything is.
        let _ = eventfd::drain(&self.wake);
        if matches!(self.state, State::Waiting)
            && self.peer_fds.are_closed()
            && self.try_at.is_none_or(|at| now >= at)
        {
            self.condemned = None;
            match self.connect(now) {
                Ok(handshake) => {
                    self.reason = "handshake".into();
                    self.state = State::Handshake(Box::new(handshake));
                }
                Err(why) => {
                    self.reason = why.to_string();
                    self.back_off(now);
                }
            }
        }
        let mut events = Vec::new();
        match core::mem::replace(&mut self.state, State::Waiting) {
            State::Handshake(handshake) => events.extend(self.shake(handshake, now).map(Event::Up)),
            other => self.state = other,
        }
        if let Some(why) = self.look() {
            events.push(self.leave(&why, now));
        }
        events
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.state {
            // The last one that is closed wakes us.
            State::Waiting if !self.peer_fds.are_closed() => None,
            State::Waiting => Some(self.try_at.unwrap_or_else(Instant::now)),
            State::Handshake(handshake) => handshake.deadline,
            State::Up { .. } | State::Leaving { .. } | State::Deleted => None,
        }
    }

    fn condemn(&mut self, reason: &str) {
        self.condemned = Some(reason.to_owned());
        // Our own counter: it cannot be full.
        let _ = eventfd::signal(&self.wake);
    }

    fn detached(&mut self) {
        if matches!(self.state, State::Leaving { .. }) {
            self.state = State::Waiting;
            let _ = eventfd::signal(&self.wake);
        }
    }

    fn status(&self) -> Status {
        let (up, details) = match &self.state {
            State::Up { details, .. } => (true, details.clone()),
            _ => (false, Vec::new()),
        };
        Status {
            up,
            reason: self.reason.clone(),
            details,
            connects: self.connects,
        }
    }

    fn regions(&self) -> Vec<(&'static str, Extent)> {
        match &self.state {
            State::Up { view, .. } => view.regions(),
            _ => Vec::new(),
        }
    }

    fn delete(&mut self) {
        if let State::Up { channel, view, .. } = &self.state {
            channel.say_goodbye(&Refusal::Condemned("the interface was deleted".into()));
            view.fail();
        }
        self.state = State::Deleted;
        self.reason = "deleted".into();
    }
}
