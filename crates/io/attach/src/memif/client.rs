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
//! One region holds the rings and behind them the buffers, [`BUFFER_STRIDE`] bytes apart: not a power of two, so
//! that the first lines of many buffers do not fall on the same few sets of a cache. The client speaks in
//! turn: each message after INIT waits for the ACK of the one before it.
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

use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_shm::{HugePages, Mapping};
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::unix::{self, SocketKind};
use windlass_sys::{Errno, eventfd};

use super::channel::{Channel, HANDSHAKE_TIMEOUT, MESSAGES_PER_POLL, Refusal, name_of};
use super::hub::program_name;
use super::layout::{COOKIE, LOG2_RING_MAX, RingPlace, ring_bytes};
use super::msg::{AddRegion, AddRing, Direction, Hello, Init, Message, Mode, Secret, Text};
use super::rings::{RingSpec, assemble};
use super::view::{Buffers, Role, View};
use crate::endpoint::{Endpoint, Event, Rings, Status};
use crate::peer_fds::PeerFds;

/// Wait before the first new attempt.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between attempts.
pub const BACKOFF_LONGEST: Duration = Duration::from_secs(2);
/// Room in each buffer: an ordinary frame with tags, and what DPDK and VPP use.
pub const BUFFER_BYTES: u32 = 2048;
/// Bytes from one buffer to the next: an odd number of cache lines.
pub const BUFFER_STRIDE: u32 = BUFFER_BYTES + 64;
/// Rings start at multiples of this.
const RING_SPACING: u32 = 4096;

/// What a client interface is made of.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The server's socket.
    pub path: PathBuf,
    /// In whose directory the socket lies, if not in ours: symbolic links on the way are not followed there.
    pub owner: Option<(u32, u32)>,
    /// The interface's number there.
    pub id: u32,
    /// What the server wants to see.
    pub secret: Secret,
    /// The interface's name, as the server is told.
    pub name: String,
    /// Rings wanted in each direction, 1 to 256; the server may allow fewer.
    pub rings: u16,
    /// Size of each ring as a power of two, at most [`LOG2_RING_MAX`].
    pub log2_size: u8,
    /// Whether 2 MiB pages are tried.
    pub huge: HugePages,
}

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
    server: Text<32>,
    offer: Option<Offer>,
    /// What is still to be said, and the descriptor that goes with it. The front waits for an ACK.
    script: VecDeque<(Message, Option<OwnedFd>)>,
}

/// The memory that we bring.
#[derive(Debug)]
struct Offer {
    mapping: Mapping,
    from_client: Vec<RingSpec>,
    from_server: Vec<RingSpec>,
}

/// Where one ring and its buffers go.
struct Plan {
    place: RingPlace,
    buffers: Buffers,
}

/// RingProgress `count` rings of `1 << log2_size`, then their buffers; and the bytes of it all.
fn plan(count: u32, log2_size: u8) -> Option<(Vec<Plan>, u64)> {
    let slots = 1u32.checked_shl(u32::from(log2_size))?;
    let spacing = ring_bytes(log2_size)?.checked_next_multiple_of(RING_SPACING)?;
    let buffers_at = spacing.checked_mul(count)?;
    let per_ring = slots.checked_mul(BUFFER_STRIDE)?;
    let bytes = per_ring.checked_mul(count)?.checked_add(buffers_at)?;
    let plan = |i: u32| {
        let start = spacing.checked_mul(i)?;
        let first = per_ring.checked_mul(i)?.checked_add(buffers_at)?;
        let place = RingPlace::checked(start, log2_size, u64::from(bytes))?;
        let buffers = Buffers {
            region: 0,
            first,
            stride: BUFFER_STRIDE,
            room: BUFFER_BYTES,
        };
        Some(Plan { place, buffers })
    };
    let plans = (0..count).map(plan).collect::<Option<Vec<_>>>()?;
    Some((plans, u64::from(bytes)))
}

fn dup(fd: &OwnedFd) -> Result<OwnedFd, Refusal> {
    fd.try_clone()
        .map_err(|e| Refusal::Local("dup", Errno::from_io_error(&e).unwrap_or(Errno::MFILE)))
}

impl Handshake {
    /// Takes the next message. The server's interface name, if it was CONNECTED.
    fn take(
        &mut self,
        message: &Message,
        config: &ClientConfig,
    ) -> Result<Option<Text<32>>, Refusal> {
        match message {
            Message::Hello(hello) if self.offer.is_none() => {
                self.server = hello.name;
                self.prepare(hello, config)?;
                let init = Init {
                    id: config.id,
                    mode: Mode::Ethernet,
                    secret: config.secret,
                    name: program_name(),
                };
                self.script.push_front((Message::Init(init), None));
                self.speak()?;
                Ok(None)
            }
            Message::Ack if self.script.len() > 1 => {
                self.script.pop_front();
                self.speak()?;
                Ok(None)
            }
            Message::Connected(name) if self.script.len() == 1 => {
                self.script.pop_front();
                Ok(Some(*name))
            }
            Message::Disconnect(why) => Err(Refusal::Peer(why.reason)),
            other => Err(Refusal::Unexpected(name_of(other))),
        }
    }

    fn speak(&self) -> Result<(), Refusal> {
        match self.script.front() {
            Some((message, fd)) => self.channel.send(message, fd.as_ref().map(AsFd::as_fd)),
            None => Ok(()),
        }
    }

    /// Makes the memory and writes the script after INIT.
    fn prepare(&mut self, hello: &Hello, config: &ClientConfig) -> Result<(), Refusal> {
        let log2_size = config.log2_size.min(hello.log2_ring_max).min(LOG2_RING_MAX);
        let up = config
            .rings
            .min(hello.from_client_max.saturating_add(1))
            .max(1);
        let down = config
            .rings
            .min(hello.from_server_max.saturating_add(1))
            .max(1);
        let count = u32::from(up).saturating_add(u32::from(down));
        let too_large = || Refusal::TooLarge {
            rings: config.rings,
            log2_size,
        };
        let (plans, bytes) = plan(count, log2_size).ok_or_else(too_large)?;
        let size = usize::try_from(bytes).map_err(|_| too_large())?;
        let (mapping, file) = Mapping::create("windlass-memif", size, config.huge)
            .map_err(|source| Refusal::Memory { index: 0, source })?;
        let region = AddRegion {
            index: 0,
            size: mapping.len() as u64,
        };
        self.script
            .push_back((Message::AddRegion(region), Some(file)));
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        for (i, plan) in (0u16..).zip(plans) {
            let cookie_at = plan.place.cookie_at() as usize;
            mapping.store_u32(cookie_at, COOKIE, Ordering::Release);
            let event = eventfd::create().map_err(|e| Refusal::Local("eventfd", e))?;
            let (direction, index) = match i.checked_sub(up) {
                None => (Direction::FromClient, i),
                Some(index) => (Direction::FromServer, index),
            };
            let ring = AddRing {
                direction,
                index,
                region: 0,
                offset: plan.place.cookie_at(),
                log2_size,
                private_bytes: 0,
            };
            self.script
                .push_back((Message::AddRing(ring), Some(dup(&event)?)));
            let spec = RingSpec {
                region: 0,
                place: plan.place,
                event: Some(event),
                buffers: Some(plan.buffers),
            };
            match direction {
                Direction::FromClient => from_client.push(spec),
                Direction::FromServer => from_server.push(spec),
            }
        }
        let name = Text::cut(config.name.as_bytes());
        self.script.push_back((Message::Connect(name), None));
        self.offer = Some(Offer {
            mapping,
            from_client,
            from_server,
        });
        Ok(())
    }
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
            server: Text::cut(b""),
            offer: None,
            script: VecDeque::new(),
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
            if let Some(name) = handshake.take(&message, &self.config)? {
                return Ok(Some(name));
            }
            handshake.deadline = now.checked_add(HANDSHAKE_TIMEOUT);
        }
        Ok(None)
    }

    fn rise(&mut self, handshake: Handshake, name: &Text<32>) -> Result<Rings, Refusal> {
        let offer = handshake.offer.ok_or(Refusal::Rings)?;
        let details = vec![
            ("role", "client".into()),
            ("peer", handshake.server.to_string()),
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

    fn delete(&mut self) {
        if let State::Up { channel, view, .. } = &self.state {
            channel.say_goodbye(&Refusal::Condemned("the interface was deleted".into()));
            view.fail();
        }
        self.state = State::Deleted;
        self.reason = "deleted".into();
    }
}
