//! Taking a sender's unread bytes out of the ring, with a copy of its own socket.
//!
//! # Model
//! The slab names a process, a descriptor and a cookie. All three are what somebody wrote into shared memory, so they
//! are hints: the process must be one that has this slab, its descriptor must be a socket with that cookie, and its two
//! names must be those that the other end has the other way round. So bytes that a hostile peer put into a ring can
//! reach
//! only the connection that the peer itself is the other end of. Where the two processes belong to one user and the
//! other end is gone, the cookie alone counts.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::SocketAddrAny;
use rustix::net::sockopt::socket_cookie;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use windlass_channel::layout::Side;
use windlass_channel::{Alive, EndInfo, Fd, Life, Owner, Reason, Reclaimed, Who};
use windlass_sys::process;

use crate::processes::{Process, Processes};
use crate::server::Broker;
use crate::{Event, Outcome};

/// Who the broker is where it takes a lock.
const THREAD: u16 = 1;

/// What the broker knows of the owners of locks.
struct Known<'a>(&'a Processes);

impl Alive for Known<'_> {
    fn life(&self, owner: Owner) -> Life {
        match self.0.get(owner.process()) {
            Some(process) if process.dead || process::has_ended(&process.who.pidfd) => Life::Dead,
            Some(_) => Life::Lives,
            None => Life::Stranger,
        }
    }
}

/// A copy of the socket with this cookie that a process has under a number. Both numbers are only what somebody said.
pub(crate) fn take_socket(pidfd: &OwnedFd, fd: i32, cookie: u64) -> Result<OwnedFd, Reason> {
    if fd < 0 {
        return Err(Reason::NotRescuable);
    }
    let taken = pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty());
    let taken = taken.map_err(|_| Reason::NotRescuable)?;
    if socket_cookie(&taken) == Ok(cookie) {
        Ok(taken)
    } else {
        Err(Reason::NotRescuable)
    }
}

/// The socket that an end of a channel means, taken from its process.
fn socket_of(process: &Process, end: &EndInfo) -> Result<OwnedFd, Reason> {
    take_socket(&process.who.pidfd, end.fd, end.cookie)
}

/// Whether two sockets name each other, in one network namespace.
fn mirror(a: &OwnedFd, b: &OwnedFd) -> bool {
    let name = |address: SocketAddrAny| {
        let address = std::net::SocketAddr::try_from(address).ok()?;
        Some((address.ip().to_canonical(), address.port()))
    };
    let own = |fd: &OwnedFd| rustix::net::getsockname(fd).ok().and_then(name);
    let other = |fd: &OwnedFd| rustix::net::getpeername(fd).ok().flatten().and_then(name);
    let names = own(a).is_some() && own(a) == other(b) && own(b).is_some() && own(b) == other(a);
    names && process::netns_cookie(a).ok() == process::netns_cookie(b).ok()
}

impl Broker {
    /// Moves the unread bytes that `side` of a channel has pushed into the kernel.
    pub(crate) fn rescue_one(&mut self, id: u32, chan: u16, side: u8) -> Result<(), Reason> {
        let outcome = self.move_bytes(id, chan, side);
        self.tell(&Event::Rescue {
            slab: id,
            chan,
            side,
            outcome,
        });
        match outcome {
            Outcome::Moved(_) | Outcome::Nothing => Ok(()),
            Outcome::Partly => Err(Reason::Limit),
            Outcome::Refused(reason) => Err(reason),
        }
    }

    fn move_bytes(&self, id: u32, chan: u16, side: u8) -> Outcome {
        self.try_move(id, chan, side)
            .unwrap_or_else(Outcome::Refused)
    }

    fn try_move(&self, id: u32, chan: u16, side: u8) -> Result<Outcome, Reason> {
        let slab = self.slabs.get(id).ok_or(Reason::NotEligible)?;
        let link = slab
            .map
            .link(chan, Side::from_u8(side))
            .ok_or(Reason::NotEligible)?;
        let (own, other) = (link.info(link.side()), link.info(link.side().other()));
        let sender = self.holder(slab, own.slot).ok_or(Reason::NotEligible)?;
        let socket = socket_of(sender, &own)?;
        let receiver = self.holder(slab, other.slot);
        let far = receiver.and_then(|process| socket_of(process, &other).ok());
        let same_user = slab.users.iter().all(|uid| *uid == sender.who.uid);
        let proven = match &far {
            Some(far) => mirror(&socket, far),
            None => same_user,
        };
        if !proven {
            return Err(Reason::Mismatch);
        }
        let owner = Owner::new(Owner::DAEMON, THREAD).ok_or(Reason::Broken)?;
        let alive = Known(&self.processes);
        let who = Who {
            owner,
            alive: &alive,
        };
        let socket = Fd {
            fd: process::number(socket.as_fd()),
            connected: own.connected,
        };
        Ok(match link.outgoing().reclaim(who, &socket) {
            Reclaimed::Empty => Outcome::Nothing,
            Reclaimed::All(bytes) => Outcome::Moved(bytes),
            Reclaimed::Part(_) | Reclaimed::Owed | Reclaimed::Busy => Outcome::Partly,
            Reclaimed::Error(_) => Outcome::Refused(Reason::NotEstablished),
            Reclaimed::Broken => Outcome::Refused(Reason::Broken),
        })
    }

    /// The living process in a slot, if it has the slab.
    fn holder(&self, slab: &crate::slabs::Slab, slot: u16) -> Option<&Process> {
        slab.side_of(slot)?;
        self.processes.living(slot)
    }
}
