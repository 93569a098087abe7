//! Datagrams: [`records`](crate::records) of sockets whose connection nothing ends.
//!
//! # Model
//! Two datagram sockets that are connected to each other keep records in the ring, as others do. What differs is the end: a
//! socket that is closed leaves its peer connected, and nothing wakes a receiver. What was sent to it and not read is gone
//! without a word, and only the next send is refused.
//! - Who closes a socket, or connects it anew, drops what is unread in the ring towards it ([`Incoming::forget`]): a reclaim
//!   would be refused in the name of a program that has not sent anything.
//! - Who finds that the peer was killed drops what it has sent ([`Outgoing::forget`]).
//! - A reclaimer that was killed has put its records into the receiver's queue before it died: the kernel's part has ended
//!   when that queue is empty ([`Incoming::drained`]).
//!
//! UDP datagrams may be lost in the kernel, and come late: so the receiver counts anew whenever the kernel has none
//! ([`Incoming::is_miscounted`]), and one that comes later still is taken for a younger one. The ring is as large at once as the
//! receive buffer asks for ([`Link::room_there`]), and what has no room there is dropped, as the kernel does.

use crate::bufs::Bufs;
use crate::inc::{End, Incoming, Look, RecvHow, Took};
use crate::layout::*;
use crate::out::Outgoing;
use crate::owner::{Locked, Who, lock, unlock};
use crate::records::{Got, measure};
use crate::shim::{AtomicU32, Ordering};
use crate::slab::Link;
use crate::socket::Socket;
use crate::sys;

/// Attempts at a lock, each of a millisecond or so, before what it guards is left alone.
const ATTEMPTS: usize = 20;
/// Looks at the write lock for the end of a send that was under way.
const LOOKS: usize = 10_000;

impl Link<'_> {
    /// Whether the two ends exchange datagrams.
    fn carries_datagrams(&self) -> bool {
        #[cfg(not(loom))]
        {
            let own = self.info(self.side());
            own.room != 0 || crate::unix::kind_in(own.local) == Some(crate::unix::Kind::Datagram)
        }
        #[cfg(loom)]
        false
    }
}

/// Takes a lock of either end; a dead owner has nothing to repair where all is dropped.
fn take(word: &AtomicU32, who: Who) -> bool {
    (0..ATTEMPTS).any(|_| matches!(lock(word, who), Locked::Yes | Locked::TakenOver(_)))
}

/// Drops what is unread in the ring. False: a lock could not be had.
fn forget(d: &Dir, who: Who) -> bool {
    let (w, wl, r, a) = (&d.w, &d.wl, &d.r, &d.a);
    if !take(&wl.lock, who) {
        return false;
    }
    let is_ours = take(&r.lock, who);
    if is_ours {
        let head = w.head.load(Ordering::Acquire);
        w.stream.store(0, Ordering::Release);
        wl.mark.store(0, Ordering::Relaxed);
        wl.owed.store(0, Ordering::Relaxed);
        a.flags.fetch_and(!DRAIN, Ordering::AcqRel);
        r.pos.store(head, Ordering::Relaxed);
        r.head_seen.store(head, Ordering::Relaxed);
        let pushed = wl.ring_bytes.load(Ordering::Relaxed);
        r.ring_bytes.store(pushed, Ordering::Relaxed);
        r.tail.store(head, Ordering::Release);
        unlock(&r.lock);
    }
    unlock(&wl.lock);
    is_ours
}

impl Outgoing<'_> {
    /// Drops what the receiver has not taken from the ring: it is gone. False: a lock could not be had.
    pub fn forget(self, who: Who) -> bool {
        forget(self.d(), who)
    }
}

impl Incoming<'_> {
    /// Whether nothing ever ends what comes here.
    #[cold]
    pub(crate) fn has_no_end(self) -> bool {
        self.link.carries_datagrams()
    }

    /// Whether what is in the ring may be taken though the counts do not say so; the sender has counted `sent`.
    #[cold]
    pub(crate) fn is_ready_endlessly(self, sent: u64) -> bool {
        let (r, flags) = (&self.d().r, self.d().a.flags.load(Ordering::Relaxed));
        let is_late = r.krecv.load(Ordering::Relaxed).wrapping_sub(sent) < u64::MAX / 2;
        (flags & DRAIN != 0 || is_late) && self.has_no_end()
    }

    /// Whether datagrams were lost in the kernel, or came after they had been counted as lost. Under the read lock.
    pub(crate) fn is_miscounted(self) -> bool {
        let (w, r) = (&self.d().w, &self.d().r);
        let is_wild = w.wild.load(Ordering::Relaxed) != 0;
        w.k_sent.load(Ordering::Acquire) != r.krecv.load(Ordering::Acquire)
            && !is_wild
            && self.has_no_end()
    }

    /// Drops what is unread in the ring, and from now on counts say nothing: anybody may send to this socket, or it is closed.
    /// False: a lock could not be had.
    pub fn forget(self, who: Who) -> bool {
        self.d().w.wild.store(1, Ordering::Release);
        forget(self.d(), who)
    }

    /// After [`Incoming::plain`]: waits until a push that was under way then has ended, for about a millisecond. Later ones
    /// have seen the flag.
    pub fn settle(self) {
        for _ in 0..LOOKS {
            if self.d().wl.lock.load(Ordering::SeqCst) == 0 {
                break;
            }
            sys::yield_now();
        }
    }

    /// Bytes of the first unread datagram, if it is in the ring.
    pub fn next_length<S: Socket>(self, who: Who, sock: &S) -> Option<usize> {
        self.lock(who, sock).ok()?;
        let found = match self.look(1) {
            Look::Ring(ring, unread) => {
                let pos = self.d().r.pos.load(Ordering::Relaxed);
                measure(&ring, pos, unread as u64).ok()
            }
            _ => None,
        };
        unlock(&self.d().r.lock);
        found.map(|(length, _)| length)
    }

    /// Whether a killed reclaimer's datagrams are being taken from the kernel.
    pub(crate) fn drains_datagrams(self) -> bool {
        self.d().a.flags.load(Ordering::Relaxed) & DRAIN != 0 && self.has_no_end()
    }

    /// The kernel has no more of them: the rest of the ring follows. Under the read lock.
    pub(crate) fn drained(self, into: &Bufs, how: RecvHow) -> Got {
        let got = self.records_ended(End::Error(libc::EAGAIN), into, how);
        let sent = self.d().w.k_sent.load(Ordering::Acquire);
        self.d().r.krecv.store(sent, Ordering::Release);
        match got {
            Got::No(Took::Error(libc::EAGAIN)) => Got::No(Took::Empty),
            got => got,
        }
    }
}
