//! The server role: the peer connects to our socket and brings the memory.
//!
//! # States
//! ```text
//! Waiting --- a client was led to our desk ---> Handshake --- CONNECTED ---> Up --- peer gone, broken, condemned ---> Leaving
//!    ^                                             |                                                                  |
//!    +------------- refused, silent --------------+<------------------------- detached() -----------------------------+
//! ```
//!
//! # Failure modes
//! Each message is checked against the state of the connection ([`Handshake::take`]); the first that does not fit ends
//! it, the reason goes to the peer as DISCONNECT, and the desk is free again. Nothing that a peer sends makes us
//! keep more than [`REGIONS`] mappings and the offered number of rings. Behind CONNECT the peer may say nothing
//! but DISCONNECT.
//!
//! DPDK's zero-copy client shares its process's own memory, by descriptors that all its ports use. When one port hears CONNECTED,
//! DPDK closes these (`memif_connect` in drivers/net/memif, to 26.07), and ports that have not sent theirs yet cannot connect. So
//! such a client is answered [`SIBLINGS_TIME`] after its CONNECT.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_shm::{Extent, Mapping, Quota};
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::{Errno, eventfd};

use super::channel::{Channel, HANDSHAKE_TIMEOUT, MESSAGES_PER_POLL, Refusal, name_of};
use super::hub::{Access, Desk, Hub, HubError, Visitor};
use super::layout::{COOKIE, RingPlace};
use super::msg::{AddRegion, AddRing, Direction, Message, Secret, Text};
use super::rings::{RingSpec, assemble};
use super::view::{REGIONS, Role, View};
use crate::endpoint::{Endpoint, Event, Rings, Status};
use crate::port::TxCaps;

/// How long to wait before the socket is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long the other ports of a zero-copy client's process have to send the descriptors that it closes when it is answered.
pub const SIBLINGS_TIME: Duration = Duration::from_secs(1);

/// What a server interface is made of.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The socket; several interfaces may share it.
    pub path: PathBuf,
    /// The interface's number on the socket.
    pub id: u32,
    /// What a client must show; [`Secret::NONE`] for nothing.
    pub secret: Secret,
    /// The interface's name, as the client is told.
    pub name: String,
    /// Rings offered in each direction, 1 to 256.
    pub rings: u16,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Owner of the socket (user and group), if not ours.
    pub owner: Option<(u32, u32)>,
    /// Of whom the mappings of the client's memory count.
    pub quota: Quota,
}

/// A server interface.
#[derive(Debug)]
pub struct MemifServer {
    config: ServerConfig,
    epoll: Arc<Epoll>,
    wake: OwnedFd,
    hub: Option<Arc<Hub>>,
    retry_at: Option<Instant>,
    state: State,
    condemned: Option<String>,
    reason: String,
    connects: u64,
    /// It has no path any more.
    is_unlinked: bool,
    /// [`Endpoint::flow_controls`] of connections that are over.
    flow_controls: u64,
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
pub struct Handshake {
    channel: Option<Channel>,
    program: Text<32>,
    /// The interface's name from CONNECT, which is to be answered at the deadline.
    unanswered: Option<Text<32>>,
    deadline: Option<Instant>,
    rings: u16,
    regions: Vec<Mapping>,
    quota: Quota,
    from_client: Vec<Option<RingSpec>>,
    from_server: Vec<Option<RingSpec>>,
}

/// The answer to one message of the handshake.
#[derive(Debug)]
pub enum Reply {
    /// Go on.
    Ack,
    /// All is there; the client's interface has this name.
    Connected(Text<32>),
}

impl Handshake {
    /// A handshake that has seen INIT, for so many rings in each direction; mappings count in `quota`.
    pub fn new(rings: u16, quota: Quota) -> Handshake {
        Handshake {
            channel: None,
            program: Text::cut(b""),
            unanswered: None,
            deadline: None,
            rings,
            regions: Vec::new(),
            quota,
            from_client: Vec::new(),
            from_server: Vec::new(),
        }
    }

    /// Takes the next message and its descriptor.
    ///
    /// # Errors
    /// [`Refusal`]: the connection is to be ended.
    pub fn take(&mut self, message: &Message, fd: Option<OwnedFd>) -> Result<Reply, Refusal> {
        match message {
            Message::Disconnect(why) => Err(Refusal::Peer(why.reason)),
            other if self.unanswered.is_some() => Err(Refusal::Unexpected(name_of(other))),
            Message::AddRegion(region) => self.add_region(region, fd),
            Message::AddRing(ring) => self.add_ring(ring, fd),
            Message::Connect(name) => {
                self.check_complete()?;
                Ok(Reply::Connected(*name))
            }
            other => Err(Refusal::Unexpected(name_of(other))),
        }
    }

    /// Whether the client is DPDK's and shares memory of its process: it has other regions than its own.
    fn is_zero_copy(&self) -> bool {
        self.regions.len() > 1 && self.program.bytes().take(4).eq(*b"DPDK")
    }

    fn add_region(&mut self, region: &AddRegion, fd: Option<OwnedFd>) -> Result<Reply, Refusal> {
        let index = region.index;
        if usize::from(index) != self.regions.len() || self.regions.len() >= REGIONS {
            return Err(Refusal::Region(index));
        }
        let fd = fd.ok_or(Refusal::NoDescriptor)?;
        let mapping = Mapping::foreign_within(&self.quota, fd.as_fd(), region.size)
            .map_err(|source| Refusal::Memory { index, source })?;
        self.regions.push(mapping);
        Ok(Reply::Ack)
    }

    fn add_ring(&mut self, ring: &AddRing, fd: Option<OwnedFd>) -> Result<Reply, Refusal> {
        let index = ring.index;
        if index >= self.rings {
            return Err(Refusal::Ring(index));
        }
        if ring.private_bytes != 0 {
            return Err(Refusal::PrivateHeader(index));
        }
        let region = self
            .regions
            .get(usize::from(ring.region))
            .ok_or(Refusal::Region(ring.region))?;
        let place = RingPlace::checked(ring.offset, ring.log2_size, region.len() as u64)
            .ok_or(Refusal::Place(index))?;
        let event = fd.ok_or(Refusal::NoDescriptor)?;
        if !eventfd::is_eventfd(&event) {
            return Err(Refusal::Event(index));
        }
        eventfd::set_nonblocking(&event).map_err(|e| Refusal::Local("set O_NONBLOCK", e))?;
        let rings = match ring.direction {
            Direction::FromClient => &mut self.from_client,
            Direction::FromServer => &mut self.from_server,
        };
        let at = usize::from(index);
        if rings.len() <= at {
            rings.resize_with(at.saturating_add(1), || None);
        }
        let spec = RingSpec {
            region: ring.region,
            place,
            event: Some(event),
            buffers: None,
        };
        match rings.get_mut(at) {
            Some(slot @ None) => *slot = Some(spec),
            _ => return Err(Refusal::Ring(index)),
        }
        Ok(Reply::Ack)
    }

    fn check_complete(&self) -> Result<(), Refusal> {
        if self.from_client.is_empty() || self.from_server.is_empty() {
            return Err(Refusal::Rings);
        }
        for (index, spec) in self.from_client.iter().chain(&self.from_server).enumerate() {
            let spec = spec.as_ref().ok_or(Refusal::Rings)?;
            let region = self
                .regions
                .get(usize::from(spec.region))
                .ok_or(Refusal::Rings)?;
            let cookie = region.load_u32(spec.place.cookie_at() as usize, Ordering::Acquire);
            if cookie != COOKIE {
                return Err(Refusal::Cookie(u16::try_from(index).unwrap_or(u16::MAX)));
            }
        }
        Ok(())
    }

    /// The halves, once CONNECT was answered. `alarm` wakes the endpoint.
    fn finish(self, alarm: OwnedFd) -> Result<(Arc<View>, Rings), Refusal> {
        let view = View::new(self.regions, alarm).ok_or(Refusal::Rings)?;
        let view = Arc::new(view);
        let complete = |rings: Vec<Option<RingSpec>>| rings.into_iter().flatten().collect();
        let (up, down) = (complete(self.from_client), complete(self.from_server));
        let rings = assemble(&view, Role::Server, up, down).ok_or(Refusal::Rings)?;
        Ok((view, rings))
    }

    fn describe(&self, interface: &Text<32>) -> Vec<(&'static str, String)> {
        let size = self
            .from_client
            .iter()
            .flatten()
            .map(|r| r.place.size())
            .max();
        let down = self.from_server.iter().flatten();
        let down = down.map(|r| r.place.size()).max();
        vec![
            ("role", "server".into()),
            ("peer", self.program.to_string()),
            ("interface", interface.to_string()),
            ("rings-from-peer", self.from_client.len().to_string()),
            ("rings-to-peer", self.from_server.len().to_string()),
            ("ring-size", size.unwrap_or(0).to_string()),
            ("ring-size-to-peer", down.unwrap_or(0).to_string()),
            ("regions", self.regions.len().to_string()),
        ]
    }
}

impl MemifServer {
    /// An interface that begins to listen with its first poll.
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set or eventfd.
    pub fn new(config: ServerConfig) -> Result<MemifServer, Errno> {
        let (epoll, wake) = (Epoll::create()?, eventfd::create()?);
        epoll.add(&wake, 0, Interest::READABLE)?;
        Ok(MemifServer {
            config,
            epoll: Arc::new(epoll),
            wake,
            hub: None,
            retry_at: None,
            state: State::Waiting,
            condemned: None,
            reason: "not listening yet".into(),
            connects: 0,
            is_unlinked: false,
            flow_controls: 0,
        })
    }

    /// Listens, if it does not yet.
    fn open(&mut self, now: Instant) {
        if self.hub.is_some() || self.is_unlinked || self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        if let Err(error) = self.try_open() {
            self.reason = error.to_string();
            self.retry_at = now.checked_add(RETRY);
        }
    }

    fn try_open(&mut self) -> Result<(), HubError> {
        let config = &self.config;
        let wake = self.wake.try_clone().map_err(|e| {
            HubError::System("dup", Errno::from_io_error(&e).unwrap_or(Errno::MFILE))
        })?;
        let desk = Desk {
            secret: config.secret,
            rings: config.rings,
            wake,
            set: self.epoll.clone(),
        };
        let access = Access {
            mode: config.mode,
            owner: config.owner,
        };
        let busy = !matches!(self.state, State::Waiting);
        self.hub = Some(Hub::open(&config.path, access, config.id, desk, busy)?);
        if !busy {
            self.reason = "waiting for a client".into();
        }
        Ok(())
    }

    fn welcome(&mut self, visitor: Visitor, now: Instant) {
        let mut handshake = Handshake::new(self.config.rings, self.config.quota.clone());
        handshake.program = visitor.program;
        handshake.deadline = now.checked_add(HANDSHAKE_TIMEOUT);
        match self.epoll.add(&visitor.channel, 0, Interest::READABLE) {
            Ok(()) => {
                handshake.channel = Some(visitor.channel);
                self.reason = format!("handshake with {}", handshake.program);
                self.state = State::Handshake(Box::new(handshake));
            }
            Err(errno) => {
                visitor
                    .channel
                    .say_goodbye(&Refusal::Local("epoll_ctl", errno));
                self.free_desk();
            }
        }
    }

    fn free_desk(&self) {
        if let Some(hub) = &self.hub {
            hub.free(self.config.id);
        }
    }

    /// Goes on with the handshake; the rings once it is done.
    fn shake(&mut self, mut handshake: Box<Handshake>, now: Instant) -> Option<Rings> {
        let result = self.shake_on(&mut handshake, now);
        match result {
            Ok(None) => {
                self.state = State::Handshake(handshake);
                None
            }
            Ok(Some(name)) => match self.rise(*handshake, name) {
                Ok(rings) => Some(rings),
                Err(why) => {
                    self.refuse(None, &why);
                    None
                }
            },
            Err(why) => {
                self.refuse(handshake.channel.take(), &why);
                None
            }
        }
    }

    /// Takes the messages that are there: the client's interface name when CONNECT is to be answered.
    fn shake_on(
        &self,
        handshake: &mut Handshake,
        now: Instant,
    ) -> Result<Option<Text<32>>, Refusal> {
        for _ in 0..MESSAGES_PER_POLL {
            let channel = handshake.channel.as_ref().ok_or(Refusal::Closed)?;
            let Some((message, fd)) = channel.receive()? else {
                return match handshake.deadline.is_some_and(|at| now >= at) {
                    true => handshake.unanswered.ok_or(Refusal::Silent).map(Some),
                    false => Ok(None),
                };
            };
            let reply = handshake.take(&message, fd)?;
            let channel = handshake.channel.as_ref().ok_or(Refusal::Closed)?;
            match reply {
                Reply::Ack => channel.send(&Message::Ack, None)?,
                Reply::Connected(name) if handshake.is_zero_copy() => {
                    handshake.unanswered = Some(name);
                    handshake.deadline = now.checked_add(SIBLINGS_TIME);
                    continue;
                }
                Reply::Connected(name) => return Ok(Some(name)),
            }
            handshake.deadline = now.checked_add(HANDSHAKE_TIMEOUT);
        }
        Ok(None)
    }

    fn rise(&mut self, mut handshake: Handshake, name: Text<32>) -> Result<Rings, Refusal> {
        let channel = handshake.channel.take().ok_or(Refusal::Closed)?;
        let mut details = handshake.describe(&name);
        let alarm = self
            .wake
            .try_clone()
            .map_err(|e| Refusal::Local("dup", Errno::from_io_error(&e).unwrap_or(Errno::MFILE)))?;
        let (view, rings) = handshake.finish(alarm)?;
        match rings.tx.caps() {
            TxCaps { csum: false, .. } => {}
            TxCaps { tso4: false, .. } => details.push(("offloads", "csum".into())),
            _ => details.push(("offloads", "csum,gso".into())),
        }
        let ours = Text::cut(self.config.name.as_bytes());
        channel.send(&Message::Connected(ours), None)?;
        self.connects = self.connects.saturating_add(1);
        self.reason.clear();
        self.state = State::Up {
            channel,
            view,
            details,
        };
        Ok(rings)
    }

    /// Ends a handshake.
    fn refuse(&mut self, channel: Option<Channel>, why: &Refusal) {
        if let Some(channel) = channel {
            channel.say_goodbye(why);
        }
        self.reason = format!("waiting for a client; the last one: {why}");
        self.state = State::Waiting;
        self.free_desk();
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
    fn leave(&mut self, why: &Refusal) -> Event {
        let state = core::mem::replace(&mut self.state, State::Waiting);
        if let State::Up { channel, view, .. } = state {
            channel.say_goodbye(why);
            view.fail();
            self.flow_controls = self.flow_controls.saturating_add(view.flow_controls());
            self.state = State::Leaving { _view: view };
        }
        self.reason = why.to_string();
        Event::Down(self.reason.clone())
    }
}

impl Endpoint for MemifServer {
    fn poll(&mut self, now: Instant) -> Vec<Event> {
        // The counter says only that something is to be looked at, and everything is.
        let _ = eventfd::drain(&self.wake);
        if matches!(self.state, State::Deleted) {
            return Vec::new();
        }
        self.open(now);
        if let Some(hub) = &self.hub {
            hub.poll(self.config.id, now);
        }
        if matches!(self.state, State::Waiting) {
            self.condemned = None;
            if let Some(visitor) = self.hub.as_ref().and_then(|hub| hub.take(self.config.id)) {
                self.welcome(visitor, now);
            }
        }
        let mut events = Vec::new();
        match core::mem::replace(&mut self.state, State::Waiting) {
            State::Handshake(handshake) => {
                events.extend(self.shake(handshake, now).map(Event::Up));
            }
            other => self.state = other,
        }
        if let Some(why) = self.look() {
            events.push(self.leave(&why));
        }
        events
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        let handshake = match &self.state {
            State::Handshake(handshake) => handshake.deadline,
            _ => None,
        };
        let opening = match &self.hub {
            None if !self.is_unlinked && !matches!(self.state, State::Deleted) => {
                Some(self.retry_at.unwrap_or_else(Instant::now))
            }
            _ => None,
        };
        let door = self.hub.as_ref();
        let door = door.and_then(|hub| hub.deadline(self.config.id));
        [handshake, opening, door].into_iter().flatten().min()
    }

    fn condemn(&mut self, reason: &str) {
        self.condemned = Some(reason.to_owned());
        // Our own counter: it cannot be full.
        let _ = eventfd::signal(&self.wake);
    }

    fn detached(&mut self) {
        if matches!(self.state, State::Leaving { .. }) {
            self.state = State::Waiting;
            self.free_desk();
            let _ = eventfd::signal(&self.wake);
        }
    }

    fn rest(&mut self) {
        if let Some(hub) = &self.hub {
            hub.rest(self.config.id);
        }
    }

    fn status(&self) -> Status {
        let (up, mut details) = match &self.state {
            State::Up { details, .. } => (true, details.clone()),
            _ => (false, Vec::new()),
        };
        match &self.hub {
            _ if self.is_unlinked => {}
            Some(_) => details.push(("socket", self.config.path.display().to_string())),
            None if up => details.push(("socket", self.reason.clone())),
            None => {}
        }
        Status {
            up,
            reason: self.reason.clone(),
            details,
            connects: self.connects,
        }
    }

    fn set_owner(&mut self, owner: (u32, u32)) -> Result<(), String> {
        if let Some(hub) = &self.hub {
            let set = hub.set_owner(&self.config.path, owner);
            set.map_err(|error| error.to_string())?;
        }
        self.config.owner = Some(owner);
        Ok(())
    }

    fn set_path(&mut self, path: Option<PathBuf>) {
        if !self.is_unlinked && path.as_ref() == Some(&self.config.path) {
            return;
        }
        self.leave_hub(true);
        self.retry_at = None;
        match path {
            Some(path) => self.config.path = path,
            None => {
                self.is_unlinked = true;
                // Nobody has it open before CONNECTED.
                if matches!(self.state, State::Handshake(_)) {
                    self.state = State::Waiting;
                }
            }
        }
        // Our own counter: it cannot be full.
        let _ = eventfd::signal(&self.wake);
    }

    fn is_unlinked(&self) -> bool {
        self.is_unlinked
    }

    fn is_over(&self) -> bool {
        self.is_unlinked && matches!(self.state, State::Waiting)
    }

    fn flow_controls(&self) -> u64 {
        let now = match &self.state {
            State::Up { view, .. } => view.flow_controls(),
            _ => 0,
        };
        self.flow_controls.saturating_add(now)
    }

    fn quota(&self) -> Option<&Quota> {
        Some(&self.config.quota)
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
        self.leave_hub(true);
    }
}

impl MemifServer {
    fn leave_hub(&mut self, forever: bool) {
        if let Some(hub) = self.hub.take() {
            hub.close(self.config.id, forever);
        }
    }
}

impl Drop for MemifServer {
    fn drop(&mut self) {
        self.leave_hub(false);
    }
}
