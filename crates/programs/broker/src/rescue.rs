//! Taking a sender's unread bytes out of the ring, with a copy of its own socket.
//!
//! # Model
//! The slab names a process, a descriptor and a cookie. All three are what somebody wrote into shared memory, so they
//! are hints: the process must be one that has this slab, its descriptor must be a socket with that cookie, and its two
//! names must be those that the other end has the other way round. Where that process has ended, or has the socket under
//! another number by now, it is looked for among all of that side that have this slab, by its cookie. So bytes that a hostile peer put into a ring can
//! reach
//! only the connection that the peer itself is the other end of. Where the two processes belong to one user and the
//! other end is gone, the cookie alone counts.
//!
//! Of two Unix sockets the kernel says whether they are each other's peers, to one who asks in their network namespace;
//! elsewhere only those of one user count as such. A receiver that is told who sent each piece (`SO_PASSCRED` and its
//! kin) would be told of the broker: what is meant for it stays where it is, and so does what is meant for an end that
//! cannot be seen, unless the broker is of the sender's user.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketAddrAny;
use rustix::net::sockopt::socket_cookie;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use windlass_channel::layout::Side;
use windlass_channel::records::RecordFd;
use windlass_channel::{Alive, EndInfo, Fd, Life, Owner, Reason, Reclaimed, Who, unix};
use windlass_sys::process;

use crate::processes::{Process, Processes};
use crate::server::Broker;
use crate::slabs::Slab;
use crate::{Event, Outcome};

/// Who the broker is where it takes a lock.
pub(crate) const THREAD: u16 = 1;

/// What the broker knows of the owners of locks.
pub(crate) struct Known<'a>(pub(crate) &'a Processes);

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

/// The socket that an end of a channel means, taken from a process that may have it: under the number that the end names, or
/// under another one, if that number was closed.
fn socket_of(process: &Process, end: &EndInfo, left: &mut usize) -> Result<OwnedFd, Reason> {
    let take = |fd| take_socket(&process.who.pidfd, fd, end.cookie);
    take(end.fd).or_else(|reason| {
        numbers_of(process.who.pid, left)
            .find_map(|fd| take(fd).ok())
            .ok_or(reason)
    })
}

/// The numbers under which a process has sockets, as far as they may be seen, among at most `left` descriptors; those looked
/// at are taken off it.
fn numbers_of(pid: u32, left: &mut usize) -> impl Iterator<Item = i32> {
    let is_socket = |entry: &std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path());
        target.is_ok_and(|target| {
            target
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"socket:")
        })
    };
    // Not even the list is read for one who has none left.
    let listed = (*left > 0).then(|| std::fs::read_dir(format!("/proc/{pid}/fd")));
    listed
        .into_iter()
        .flatten()
        .flatten()
        .map_while(move |entry| {
            *left = left.checked_sub(1)?;
            Some(entry)
        })
        .filter_map(Result::ok)
        .filter(is_socket)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether the kernel calls two Unix sockets each other's peers.
fn are_peers(a: &OwnedFd, b: &OwnedFd) -> bool {
    let inode = |socket: &OwnedFd| unix::inode(process::number(socket.as_fd()));
    let (Some(own), Ok(cookie)) = (inode(a), socket_cookie(a)) else {
        return false;
    };
    let peer = unix::peer_of(own, cookie);
    peer.is_some() && peer == inode(b)
}

/// Whether the connection has ended in both directions, or an error is noted that the next send would take.
fn is_over(socket: &OwnedFd) -> bool {
    let mut entries = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut entries, Some(&now)).is_ok_and(|found| found > 0)
}

/// Whether bytes may be sent over the sender's Unix socket in its name. A datagram goes to whomever the socket is connected to
/// now, and one that is refused takes away what the sender has not read: the receiver has to be there, and the right one.
fn may_send(sender: &Process, socket: &OwnedFd, far: Option<&OwnedFd>, same_user: bool) -> bool {
    let is_datagram = unix::is_datagram(process::number(socket.as_fd()));
    match far {
        far if is_datagram => far.is_some_and(|far| {
            let names_senders = unix::wants_sender(process::number(far.as_fd()));
            !names_senders && are_peers(socket, far) && are_peers(far, socket)
        }),
        Some(far) => {
            let names_senders = unix::wants_sender(process::number(far.as_fd()));
            !names_senders && (same_user || are_peers(socket, far))
        }
        None => same_user && rustix::process::geteuid().as_raw() == sender.who.uid,
    }
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
    /// Moves the unread bytes that `side` of a channel has pushed into the kernel. `left`: descriptors that may be looked at
    /// for sockets that are not where their ends said.
    pub(crate) fn rescue_one(
        &mut self,
        id: u32,
        chan: u16,
        side: u8,
        left: &mut usize,
    ) -> Result<(), Reason> {
        let outcome = self
            .try_move(id, chan, side, left)
            .unwrap_or_else(Outcome::Refused);
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

    fn try_move(&self, id: u32, chan: u16, side: u8, left: &mut usize) -> Result<Outcome, Reason> {
        let slab = self.slabs.get(id).ok_or(Reason::NotEligible)?;
        let link = slab
            .map
            .link(chan, Side::from_u8(side))
            .ok_or(Reason::NotEligible)?;
        let (own, other) = (link.info(link.side()), link.info(link.side().other()));
        let (sender, socket) = self.end_of(slab, &own, left)?;
        if self.holders(slab, other.slot).next().is_none() || is_over(&socket) {
            // The sender has the kernel answer for a dead reader, and an error that is noted is for the sender's own call.
            return Ok(Outcome::Nothing);
        }
        let far = self
            .end_of(slab, &other, left)
            .ok()
            .map(|(_, socket)| socket);
        let same_user = slab.users.iter().all(|uid| *uid == sender.who.uid);
        let proven = match &far {
            _ if unix::is_unix(process::number(socket.as_fd())) => {
                may_send(sender, &socket, far.as_ref(), same_user)
            }
            Some(far) => mirror(&socket, far),
            None => same_user && !unix::is_datagram(process::number(socket.as_fd())),
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
        let fd = process::number(socket.as_fd());
        let reclaimed = if unix::keeps_records(fd) {
            link.outgoing().reclaim(who, &RecordFd(fd))
        } else {
            let connected = own.connected;
            link.outgoing().reclaim(who, &Fd { fd, connected })
        };
        Ok(match reclaimed {
            Reclaimed::Empty => Outcome::Nothing,
            Reclaimed::All(bytes) => Outcome::Moved(bytes),
            Reclaimed::Part(_) | Reclaimed::Owed | Reclaimed::Busy => Outcome::Partly,
            Reclaimed::Error(_) => Outcome::Refused(Reason::NotEstablished),
            Reclaimed::Broken => Outcome::Refused(Reason::Broken),
        })
    }

    /// The living processes on the side of a slot that has the slab: the one in it first, then those that were forked from it
    /// or had it from there.
    fn holders(&self, slab: &Slab, slot: u16) -> impl Iterator<Item = &Process> {
        let side = slab.side_of(slot).map(|(side, _)| side);
        let others = slab.holders(side).filter(move |other| *other != slot);
        side.map(|_| slot)
            .into_iter()
            .chain(others)
            .filter_map(|slot| self.processes.living(slot))
    }

    /// A process that has the socket of an end, and a copy of it. Whoever joined may have ended, or closed it, while a process
    /// that was forked from it goes on.
    fn end_of(
        &self,
        slab: &Slab,
        end: &EndInfo,
        left: &mut usize,
    ) -> Result<(&Process, OwnedFd), Reason> {
        let mut reason = Reason::NotEligible;
        for process in self.holders(slab, end.slot) {
            match socket_of(process, end, left) {
                Ok(socket) => return Ok((process, socket)),
                Err(refused) => reason = refused,
            }
            // The next process is one look more.
            let Some(fewer) = left.checked_sub(1) else {
                break;
            };
            *left = fewer;
        }
        Err(reason)
    }
}
