//! Proof that two ends are one connection, where addresses may have been translated and names prove nothing.
//!
//! # Model
//! Both ends have offered a channel, so both count what they give to the kernel and take from it. At a quiet moment, when all that
//! was sent has been taken, a sender cuts one of the program's own messages in two at a random place, and holds the rest back until
//! the other end has taken exactly the first part. An end that is not this connection's is found at that very count by chance only:
//! one of `n` places is worth log2 `n` bits, and [`PROOF_BITS`] bits, those of both directions together, are the proof.
//!
//! # Synchronization
//! The write lock is held from the first part to the rest, so nothing comes between them: as long as the caller's patience,
//! a millisecond. `proved` is written under it.

use crate::bufs::Bufs;
use crate::join::{JOINED, OFFERED};
use crate::owner::{Who, try_lock, unlock};
use crate::reason::Reason;
use crate::shim::{Acquire, Relaxed, Release};
use crate::slab::Link;
use crate::socket::Socket;

/// Bits of proof after which two ends are taken for one connection.
pub const PROOF_BITS: u32 = 32;

/// Where a message is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the first part.
    pub at: usize,
    /// How many places it was chosen from, at random.
    pub places: usize,
}

/// What sending a message in two parts came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Bytes that the kernel has taken.
    pub sent: usize,
    /// The other end had taken exactly the first part.
    pub is_met: bool,
}

impl Link<'_> {
    /// Whether the ends are proved to be one connection, by this end or by the other one.
    pub fn is_proved(&self) -> bool {
        let other = self.side().other();
        let bits = |side| self.end(side).proved.load(Relaxed);
        match self.join(other).load(Acquire) {
            JOINED => true,
            OFFERED => bits(self.side()).saturating_add(bits(other)) >= PROOF_BITS,
            _ => false,
        }
    }

    /// Whether the other end has offered and has taken all that this one has given to the kernel.
    fn is_taken(&self) -> bool {
        let d = self.dir_from(self.side());
        let join = self.join(self.side().other()).load(Acquire);
        join == OFFERED && d.r.krecv.load(Acquire) == d.w.k_sent.load(Relaxed)
    }

    /// Sends a message of one piece by the kernel, its second part once the other end has taken the first one, or `is_patient`
    /// has said no; without blocking. `None`: nothing was sent, since the moment is not quiet or the kernel refuses.
    pub fn send_in_two<S: Socket>(
        &self,
        who: Who,
        sock: &S,
        data: &Bufs,
        cut: Cut,
        flags: i32,
        is_patient: impl FnMut() -> bool,
    ) -> Option<Split> {
        let lock = &self.dir_from(self.side()).wl.lock;
        if !try_lock(lock, who.owner) {
            return None;
        }
        let split = self
            .is_taken()
            .then(|| self.parts(sock, data, cut.at, flags, is_patient))
            .flatten();
        if split.is_some_and(|split| split.is_met) {
            let bits = cut.places.checked_ilog2().unwrap_or(0);
            self.end(self.side()).proved.fetch_add(bits, Relaxed);
        }
        unlock(lock);
        split
    }

    /// Under the write lock.
    fn parts<S: Socket>(
        &self,
        sock: &S,
        data: &Bufs,
        at: usize,
        flags: i32,
        mut is_patient: impl FnMut() -> bool,
    ) -> Option<Split> {
        let (from, len) = data.piece();
        if at == 0 || at >= len || len != data.len() {
            return None;
        }
        let k_sent = &self.dir_from(self.side()).w.k_sent;
        let send = |part: &Bufs| {
            let sent = sock.send(part, flags).ok()?;
            k_sent.fetch_add(sent as u64, Release);
            Some(sent)
        };
        let first = send(&Bufs::one(from, at))?;
        if first < at {
            return Some(Split {
                sent: first,
                is_met: false,
            });
        }
        while !self.is_taken() && is_patient() {}
        let is_met = self.is_taken();
        let mut rest = *data;
        rest.advance(at);
        Some(Split {
            sent: at + send(&rest).unwrap_or(0),
            is_met,
        })
    }

    /// The other end is not this connection's, as far as can be proved: neither its counts nor its ring are believed.
    pub fn disown(&self, reason: Reason) {
        for side in [self.side(), self.side().other()] {
            self.dir_from(side).w.uncounted.store(1, Release);
        }
        self.outgoing().stop(reason);
        self.incoming().stop(reason);
    }

    /// Has the next message of this end go by the kernel.
    pub fn send_next_by_kernel(&self) {
        self.dir_from(self.side()).wl.owed.store(1, Relaxed);
    }
}
