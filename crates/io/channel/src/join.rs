//! Joining: each end writes who it is, checks that the other end mirrors it, and from then on looks at the ring.
//!
//! # States
//! | `join` of an end | meaning | leaves by |
//! | --- | --- | --- |
//! | 0 | not here | [`Link::offer`] |
//! | 1 | its names and counts are written; all its bytes are counted | [`Link::check`] finds the mirror image |
//! | 2 | it looks at the ring at every receive, poll and epoll look: its peer may push | [`Link::leave`] |
//! | 3 | it has left: reset, closed or refused | the channel is freed |
//!
//! A direction may push only when its receiver is at 2. A stale or re-used half never gets there, since cookies differ. Where
//! addresses may be translated, both ends stay at 1 until they are proved to be one connection ([`Link::is_proved`]).

use std::net::{IpAddr, SocketAddr};

use crate::layout::{End, READY, RECOUNT, Side};
use crate::reason::Reason;
use crate::shim::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release, SeqCst};
use crate::slab::Link;

/// What one end says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `SO_COOKIE` of the socket.
    pub cookie: u64,
    /// `SO_COOKIE` of the peer's socket as the directory names it: its low 32 bits.
    pub peer_cookie: u32,
    /// `SO_NETNS_COOKIE` of the socket.
    pub netns: u64,
    /// Own name.
    pub local: SocketAddr,
    /// The peer's name.
    pub peer: SocketAddr,
    /// Slot of the process.
    pub slot: u16,
    /// Process id, for people and for the daemon's rescue.
    pub pid: u32,
    /// Number of the descriptor in that process: a hint for the daemon.
    pub fd: i32,
    /// Whether this end connected (J2 needs it).
    pub connected: bool,
    /// Bytes given to the kernel since the start of the stream (J2).
    pub written: u64,
    /// Bytes taken from the kernel since the start of the stream (J2).
    pub received: u64,
    /// Threads that are inside a real receive or poll on the socket now, uncounted so far: they count as raised `attn`, and
    /// each has to call [`Incoming::woke`](crate::Incoming::woke) with 0 bytes.
    pub asleep: u32,
    /// Such threads may have taken bytes since [`Offer::received`] was asked for: it is a lower bound, and what they take is
    /// counted by the kernel once nobody is asleep ([`Incoming::count_owed`](crate::Incoming::count_owed)).
    pub is_recounted: bool,
    /// Connection tracking knows the connection: names are no proof, and bytes have to be ([`Link::is_proved`]).
    pub is_tracked: bool,
}

/// How far a join is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The other end has not offered yet.
    Wait,
    /// Both mirror each other: this end now looks at the ring at every receive.
    Ready,
    /// It will not become a channel: [`Link::leave`] it.
    Refused(Reason),
}

/// What an end has written of itself, for listings and rescue. A hostile peer may have written anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndInfo {
    /// 0 not here, 1 offered, 2 joined, 3 left.
    pub join: u32,
    /// `SO_COOKIE`.
    pub cookie: u64,
    /// `SO_NETNS_COOKIE`.
    pub netns: u64,
    /// Own name.
    pub local: SocketAddr,
    /// The peer's name.
    pub peer: SocketAddr,
    /// Process slot.
    pub slot: u16,
    /// Process id.
    pub pid: u32,
    /// Descriptor.
    pub fd: i32,
    /// Whether this end connected.
    pub connected: bool,
}

pub(crate) const OFFERED: u32 = 1;
pub(crate) const JOINED: u32 = 2;
const LEFT: u32 = 3;

/// A name as three words: the v4-mapped address, and the port.
pub(crate) fn name_words(name: SocketAddr) -> [u64; 3] {
    let address = match name.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let bits = u128::from(address);
    [(bits >> 64) as u64, bits as u64, name.port().into()]
}

fn name_of([high, low, port]: [u64; 3]) -> SocketAddr {
    let address = std::net::Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    SocketAddr::new(IpAddr::V6(address).to_canonical(), port as u16)
}

fn store(words: &[AtomicU64; 3], values: [u64; 3]) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

fn load(words: &[AtomicU64; 3]) -> [u64; 3] {
    let [a, b, c] = words;
    [a, b, c].map(|w| w.load(Relaxed))
}

impl<'s> Link<'s> {
    #[inline(always)]
    pub(crate) fn end(self, side: Side) -> &'s End {
        side.of(&self.shared().end)
    }

    pub(crate) fn join(self, side: Side) -> &'s AtomicU32 {
        side.of(&self.shared().join)
    }

    /// Writes who this end is, and its counts; from now on every byte of this end goes through [`Link::outgoing`] and
    /// [`Link::incoming`], or is counted by the kernel. To be called when no thread is inside a real send, and those inside
    /// a real receive or poll are counted in `asleep`.
    pub fn offer(&self, offer: &Offer) {
        let end = self.end(self.side());
        end.cookie.store(offer.cookie, Relaxed);
        end.netns.store(offer.netns, Relaxed);
        store(&end.local, name_words(offer.local));
        store(&end.peer, name_words(offer.peer));
        end.pid.store(offer.pid, Relaxed);
        end.proved.store(0, Relaxed);
        end.tracked.store(offer.is_tracked.into(), Relaxed);
        let place = u64::from(offer.slot) << 48
            | u64::from(offer.fd as u32) << 16
            | u64::from(offer.connected);
        end.place.store(place, Relaxed);
        let out = self.dir_from(self.side());
        out.w.k_sent.store(offer.written, Relaxed);
        let inc = self.dir_from(self.side().other());
        inc.r.krecv.store(offer.received, Relaxed);
        out.wl.krecv_seen.store(0, Relaxed);
        inc.a.attn.fetch_add(offer.asleep, Relaxed);
        if offer.is_recounted {
            inc.a.flags.fetch_or(RECOUNT, Relaxed);
        }
        self.join(self.side()).store(OFFERED, Release);
    }

    /// Looks whether the other end mirrors `offer`, and if so joins.
    pub fn check(&self, offer: &Offer) -> Join {
        match self.join(self.side().other()).load(Acquire) {
            OFFERED | JOINED => {}
            LEFT => return Join::Refused(Reason::PeerPlain),
            _ => return Join::Wait,
        }
        let end = self.end(self.side().other());
        if end.netns.load(Relaxed) != offer.netns {
            return Join::Refused(Reason::OtherNetns);
        }
        let cookie = end.cookie.load(Relaxed);
        let mirrored = load(&end.local) == name_words(offer.peer)
            && load(&end.peer) == name_words(offer.local)
            && cookie as u32 == offer.peer_cookie
            && cookie != offer.cookie;
        if !mirrored {
            return Join::Refused(Reason::Mismatch);
        }
        if (end.tracked.load(Relaxed) != 0) != offer.is_tracked {
            return Join::Refused(Reason::Tracked);
        }
        if offer.is_tracked && !self.is_proved() {
            return Join::Wait;
        }
        let inc = self.dir_from(self.side().other());
        inc.a.flags.fetch_or(READY, AcqRel);
        self.join(self.side()).store(JOINED, Release);
        Join::Ready
    }

    /// Whether both ends have joined.
    pub fn is_joined(&self) -> bool {
        self.shared().join.iter().all(|j| j.load(Acquire) == JOINED)
    }

    /// This end uses the channel no more: everything of it is on the kernel. True if the other end had left before: the caller then
    /// [frees](crate::Slab::free) the channel.
    pub fn leave(&self, reason: Reason) -> bool {
        self.incoming().stop(reason);
        self.outgoing().stop(reason);
        let [mine, theirs] = [self.side(), self.side().other()].map(|side| self.join(side));
        let before = mine.swap(LEFT, SeqCst);
        crate::shim::fence_full();
        before != LEFT && theirs.load(SeqCst) == LEFT
    }

    /// What the end at `side` has written of itself.
    pub fn info(&self, side: Side) -> EndInfo {
        let end = self.end(side);
        let place = end.place.load(Relaxed);
        EndInfo {
            join: self.join(side).load(Acquire),
            cookie: end.cookie.load(Relaxed),
            netns: end.netns.load(Relaxed),
            local: name_of(load(&end.local)),
            peer: name_of(load(&end.peer)),
            slot: (place >> 48) as u16,
            pid: end.pid.load(Relaxed),
            fd: (place >> 16) as u32 as i32,
            connected: place & 1 == 1,
        }
    }
}
