//! One listening socket for all server interfaces of this process that share its path.
//!
//! # Model
//! Each interface has a *desk* at the hub, under its number. Whoever connects is greeted, and waits at the door until
//! its INIT names a desk; if number, mode and secret are right and the desk is free, the connection is handed over and
//! the desk's endpoint woken by its own eventfd. One endpoint, the *porter*, has the hub in its set, waits for all, and drives
//! the hub when it is polled. When it leaves, another one takes its place, and is woken.
//!
//! A socket that changes its owner stays the same one, if it is still at its path. Whoever waits, in the kernel or at the door,
//! came while it was the former owner's, and is turned away.
//!
//! # Ownership and lifetime
//! Endpoints hold the hub by `Arc`; the process-wide list holds it weakly. The last endpoint that is *deleted* removes
//! the path; one that is merely dropped leaves it, stale, for the next daemon.
//!
//! # Limits
//! [`DOOR_MAX`] connections wait at the door, each for [`HANDSHAKE_TIMEOUT`]; [`ACCEPTS_PER_POLL`] are taken in one poll.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::unix::{self, BindError, Listener, SocketKind};
use windlass_sys::{Errno, eventfd, process};

use crate::peer_fds::{DeferredClose, PeerFds};

use super::channel::{Channel, HANDSHAKE_TIMEOUT, Refusal, name_of};
use super::layout::LOG2_RING_MAX;
use super::msg::{Hello, Init, Message, Mode, Secret, Text, VERSION};
use super::view::REGIONS;

/// Connections without a desk at a time; a further one is turned away at once.
pub const DOOR_MAX: usize = 32;
/// Connections accepted in one poll.
pub const ACCEPTS_PER_POLL: usize = 8;
/// Time between two tries to put the hub into some set.
const PORTER_RETRY: Duration = Duration::from_secs(1);

static HUBS: Mutex<BTreeMap<PathBuf, Weak<Hub>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why an interface could not be put on a socket.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The socket could not be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The number is taken.
    #[error("another interface has the number {0} on this socket")]
    Taken(u32),
    /// The socket is another's already, or open to others.
    #[error(
        "the first interface on this socket made it {made}, this one wants it {wanted}: let them agree, or use another socket"
    )]
    Differs {
        /// What the socket is like.
        made: Access,
        /// What it should be like.
        wanted: Access,
    },
    /// A call failed.
    #[error("{0}: {1}")]
    System(&'static str, #[source] Errno),
}

/// Who may connect to a socket: its permission bits and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permission bits.
    pub mode: u32,
    /// User and group, if not this process's own.
    pub owner: Option<(u32, u32)>,
}

impl core::fmt::Display for Access {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "with mode {:04o}", self.mode)?;
        match self.owner {
            Some((user, group)) => write!(f, " for user {user} and group {group}"),
            None => write!(f, " for windlassd's own user"),
        }
    }
}

/// Somebody whose INIT was accepted.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) channel: Channel,
    pub(super) program: Text<32>,
}

/// What the hub knows of one interface.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) secret: Secret,
    pub(super) rings: u16,
    pub(super) wake: OwnedFd,
    /// What the interface waits for.
    pub(super) set: Arc<Epoll>,
}

#[derive(Debug)]
struct Open {
    desk: Desk,
    /// Nobody polls the interface.
    rests: bool,
    busy: bool,
    /// Who was led to it last.
    holder: Option<Holder>,
    visitor: Option<Visitor>,
}

/// A process that has connected.
#[derive(Debug)]
struct Holder {
    uid: u32,
    /// Its process and the program that this ran then.
    name: String,
}

impl Holder {
    fn of(channel: &Channel) -> Option<Holder> {
        let credentials = unix::peer_credentials(channel).ok()?;
        let pid = credentials.pid?;
        let pidfd = process::peer_pidfd(channel, pid).ok()?;
        let program = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
        if process::has_ended(pidfd) {
            // Its number may be another's.
            return None;
        }
        // The process has chosen it: what a terminal could take for more than letters is escaped.
        let program: Text<16> = Text::cut(program.trim_ascii_end());
        Some(Holder {
            uid: credentials.uid,
            name: format!("{program} (pid {pid})"),
        })
    }

    /// What another who asks for the desk may hear of it: root and its own user hear all.
    fn told_to(holder: Option<&Holder>, asker: &Channel) -> String {
        let asker = unix::peer_credentials(asker).map(|asker| asker.uid);
        let may = |holder: &&Holder| asker.is_ok_and(|uid| uid == 0 || uid == holder.uid);
        holder
            .filter(may)
            .map_or_else(|| "another program".into(), |holder| holder.name.clone())
    }
}

#[derive(Debug)]
struct Hall {
    access: Access,
    listener: DeferredClose<Listener>,
    door: Vec<(Channel, Instant)>,
    desks: BTreeMap<u32, Open>,
    /// The listener is in the set.
    listens: bool,
    /// The one desk in whose set the hub is.
    porter: Option<u32>,
}

/// A listening socket and those that wait there.
#[derive(Debug)]
pub(super) struct Hub {
    epoll: Epoll,
    /// Signalled when all descriptors of peers are closed.
    closed: Arc<OwnedFd>,
    peer_fds: PeerFds,
    hall: Mutex<Hall>,
}

impl Hub {
    /// Puts an interface on the socket at `path`, which is made if this process has none there. One socket has one mode
    /// and one owner: an interface that wants others is refused. One that is `busy` has a client already.
    pub(super) fn open(
        path: &Path,
        access: Access,
        id: u32,
        desk: Desk,
        busy: bool,
    ) -> Result<Arc<Hub>, HubError> {
        let mut hubs = lock(&HUBS);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let hub = match hubs.get(path).and_then(Weak::upgrade) {
            Some(hub) => {
                let made = lock(&hub.hall).access;
                if made != access {
                    let wanted = access;
                    return Err(HubError::Differs { made, wanted });
                }
                hub
            }
            None => {
                let Access { mode, owner } = access;
                let listener = unix::bind_socket(path, SocketKind::SeqPacket, mode, owner)?;
                let epoll = Epoll::create().map_err(|e| HubError::System("epoll_create", e))?;
                let closed = eventfd::create().map_err(|e| HubError::System("eventfd", e))?;
                epoll
                    .add(&closed, 0, Interest::READABLE)
                    .map_err(|e| HubError::System("epoll_ctl", e))?;
                let closed = Arc::new(closed);
                let peer_fds = PeerFds::new(closed.clone());
                let hall = Hall {
                    access,
                    listener: peer_fds.keep(listener),
                    door: Vec::new(),
                    desks: BTreeMap::new(),
                    listens: false,
                    porter: None,
                };
                let hub = Arc::new(Hub {
                    peer_fds,
                    epoll,
                    closed,
                    hall: Mutex::new(hall),
                });
                hubs.insert(path.to_owned(), Arc::downgrade(&hub));
                hub
            }
        };
        let mut hall = lock(&hub.hall);
        if hall.desks.contains_key(&id) {
            return Err(HubError::Taken(id));
        }
        hall.desks.insert(
            id,
            Open {
                desk,
                rests: false,
                busy,
                holder: None,
                visitor: None,
            },
        );
        if let Err(errno) = hub.find_porter(&mut hall) {
            hall.desks.remove(&id);
            return Err(HubError::System("epoll_ctl", errno));
        }
        drop(hall);
        Ok(hub)
    }

    /// The socket, which lies at `path`, is another owner's from now on.
    pub(super) fn set_owner(&self, path: &Path, owner: (u32, u32)) -> Result<(), HubError> {
        let mut hall = lock(&self.hall);
        if hall.access.owner == Some(owner) {
            return Ok(());
        }
        let given = hall.listener.set_owner(owner);
        let is_in_place = given.map_err(|e| HubError::System("chown", e))?;
        if is_in_place {
            for socket in hall.listener.waiting() {
                drop(self.peer_fds.keep(socket));
            }
        } else {
            // The former owner may have it elsewhere.
            let mode = hall.access.mode;
            let listener = unix::bind_socket(path, SocketKind::SeqPacket, mode, Some(owner))?;
            let _ = self.epoll.remove(&*hall.listener);
            hall.listener = self.peer_fds.keep(listener);
            hall.listens = false;
        }
        hall.access.owner = Some(owner);
        for (channel, _) in hall.door.drain(..) {
            channel.say_goodbye(&Refusal::Owner);
        }
        self.listen(&mut hall);
        Ok(())
    }

    /// Has one of the desks wait for all, if none does.
    fn find_porter(&self, hall: &mut Hall) -> Result<(), Errno> {
        let mut found = Ok(());
        if hall.porter.is_none() {
            for (id, open) in hall.desks.iter().filter(|(_, open)| !open.rests) {
                found = open.desk.set.add(self, 0, Interest::READABLE);
                if found.is_ok() {
                    hall.porter = Some(*id);
                    // Somebody may be at the door, and has a deadline.
                    let _ = eventfd::signal(&open.desk.wake);
                    break;
                }
            }
        }
        found
    }

    /// Another desk is to wait for all, if this one did.
    fn relieve(&self, hall: &mut Hall, id: u32, set: &Epoll) {
        if hall.porter == Some(id) {
            let _ = set.remove(self);
            hall.porter = None;
            // Where no set takes it, each desk's deadline is to try again.
            let _ = self.find_porter(hall);
        }
    }

    /// Nobody polls the interface of this desk any more.
    pub(super) fn rest(&self, id: u32) {
        let mut hall = lock(&self.hall);
        if let Some(open) = hall.desks.get_mut(&id) {
            open.rests = true;
            let set = open.desk.set.clone();
            self.relieve(&mut hall, id, &set);
        }
    }

    /// Closes a desk. With `forever`, the last one removes the path.
    pub(super) fn close(&self, id: u32, forever: bool) {
        let mut hall = lock(&self.hall);
        if let Some(open) = hall.desks.remove(&id) {
            self.relieve(&mut hall, id, &open.desk.set);
        }
        if forever && hall.desks.is_empty() {
            // The path may be gone already, or somebody else's by now: nothing is left to do in either case.
            let _ = hall.listener.unlink();
        }
    }

    /// The visitor of a desk, which is busy from then on.
    pub(super) fn take(&self, id: u32) -> Option<Visitor> {
        lock(&self.hall).desks.get_mut(&id)?.visitor.take()
    }

    /// The desk can have another visitor.
    pub(super) fn free(&self, id: u32) {
        if let Some(open) = lock(&self.hall).desks.get_mut(&id) {
            open.busy = false;
        }
    }

    /// When the interface of this desk is to drive the hub: somebody at the door will have waited for too long.
    pub(super) fn deadline(&self, id: u32) -> Option<Instant> {
        let hall = lock(&self.hall);
        match hall.porter {
            Some(porter) if porter == id => hall.door.iter().map(|(_, deadline)| *deadline).min(),
            Some(_) => None,
            None => Some(Instant::now() + PORTER_RETRY),
        }
    }

    /// Accepts, greets, and leads to the desks, if the interface of this desk is the porter.
    pub(super) fn poll(&self, id: u32, now: Instant) {
        let mut hall = lock(&self.hall);
        let _ = self.find_porter(&mut hall);
        if hall.porter != Some(id) {
            return;
        }
        // The counter says only that something is to be looked at, and everything is.
        let _ = eventfd::drain(&self.closed);
        self.listen(&mut hall);
        for _ in 0..ACCEPTS_PER_POLL {
            if !hall.listens {
                break;
            }
            let Ok(socket) = hall.listener.accept() else {
                break;
            };
            let channel = Channel::new(socket, self.peer_fds.clone());
            self.greet(&mut hall, channel, now);
        }
        let waiting = core::mem::take(&mut hall.door);
        for (channel, deadline) in waiting {
            match channel.receive() {
                Ok(None) if now < deadline => hall.door.push((channel, deadline)),
                Ok(None) => channel.say_goodbye(&Refusal::Silent),
                Ok(Some((Message::Init(init), _))) => {
                    // Closing the socket would take it out too, but it lives on at the desk.
                    let _ = self.epoll.remove(&channel);
                    hall.lead(channel, &init);
                }
                Ok(Some((other, _))) => channel.say_goodbye(&Refusal::Unexpected(name_of(&other))),
                Err(why) => channel.say_goodbye(&why),
            }
        }
    }

    /// Listens unless descriptors of an earlier peer do not close: then those who connect wait.
    fn listen(&self, hall: &mut Hall) {
        let may = self.peer_fds.are_closed();
        if may == hall.listens {
            return;
        }
        let done = match may {
            true => self.epoll.add(&*hall.listener, 0, Interest::READABLE),
            false => self.epoll.remove(&*hall.listener),
        };
        if done.is_ok() {
            hall.listens = may;
        }
    }

    fn greet(&self, hall: &mut Hall, channel: Channel, now: Instant) {
        let rings = hall
            .desks
            .values()
            .map(|open| open.desk.rings)
            .max()
            .unwrap_or(1);
        let hello = Hello {
            name: program_name(),
            version_min: VERSION,
            version_max: VERSION,
            region_max: REGIONS as u16 - 1,
            from_server_max: rings.saturating_sub(1),
            from_client_max: rings.saturating_sub(1),
            log2_ring_max: LOG2_RING_MAX,
        };
        let room = hall.door.len() < DOOR_MAX;
        if room
            && channel.send(&Message::Hello(hello), None).is_ok()
            && self.epoll.add(&channel, 0, Interest::READABLE).is_ok()
        {
            hall.door.push((channel, now + HANDSHAKE_TIMEOUT));
        }
    }
}

impl Hall {
    /// Hands a connection over to its desk, or says why not.
    fn lead(&mut self, channel: Channel, init: &Init) {
        let refusal = match self.desks.get_mut(&init.id) {
            None => Refusal::UnknownId(init.id),
            Some(_) if init.mode != Mode::Ethernet => Refusal::Mode,
            Some(open)
                if !open.desk.secret.is_none() && !open.desk.secret.matches(&init.secret) =>
            {
                Refusal::Secret
            }
            Some(open) if open.busy || open.visitor.is_some() => Refusal::Busy {
                id: init.id,
                by: Holder::told_to(open.holder.as_ref(), &channel),
            },
            Some(open) => match channel.send(&Message::Ack, None) {
                Ok(()) => {
                    open.busy = true;
                    open.holder = Holder::of(&channel);
                    open.visitor = Some(Visitor {
                        channel,
                        program: init.name,
                    });
                    // The counter is ours alone and cannot be full.
                    let _ = eventfd::signal(&open.desk.wake);
                    return;
                }
                Err(why) => why,
            },
        };
        channel.say_goodbye(&refusal);
    }
}

impl AsFd for Hub {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// What we call ourselves in HELLO and INIT.
pub(super) fn program_name() -> Text<32> {
    Text::cut(concat!("windlass ", env!("CARGO_PKG_VERSION")).as_bytes())
}
