//! What the broker has done by its [helpers](crate::helper), and what they answer.
//!
//! # Model
//! Messages over a `SOCK_SEQPACKET` pair: [`Job`]s, and a [`Said`] for each in the same order. A helper is of the asking user, so its
//! answers are believed for that user's sockets.
//!
//! With a job come descriptors: a pidfd of each process that may have the socket, and for a [`Reclaim`] the slab and the table of
//! processes. A helper passes what it may not take itself on to its [getter](crate::getter), which answers alike, with the socket.

use windlass_channel::Reason;

use crate::facts::Facts;
use windlass_listing::plain;

/// Processes that one job names, at most.
pub(crate) const SOURCES_MAX: usize = 8;
/// Longest job or answer, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256;

/// A socket to be looked at: what somebody says of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Job {
    /// Number under which the processes may have the socket.
    pub(crate) fd: i32,
    pub(crate) cookie: u64,
    /// Descriptors that may be looked at if it is not there.
    pub(crate) looks: u32,
    /// Ids of the processes, 0 where there is none.
    pub(crate) pids: [u32; SOURCES_MAX],
    pub(crate) reclaim: Option<Reclaim>,
    /// It is an end of a connection whose bytes are moved: more is asked than [`Facts::unheld`] knows.
    pub(crate) is_for_rescue: bool,
}

/// The unread bytes of one direction of a channel, to be moved into the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reclaim {
    pub(crate) slab: u32,
    pub(crate) chan: u16,
    pub(crate) side: u8,
    /// The slot that takes the lock.
    pub(crate) slot: u16,
    /// One user has both ends.
    pub(crate) same_user: bool,
    /// The socket at the other end, if it was found.
    pub(crate) far: Option<Facts>,
}

plain!(Job: fd, cookie, looks, pids, reclaim, is_for_rescue);
plain!(Reclaim: slab, chan, side, slot, same_user, far);

/// What the kernel says of the socket, or why nobody knows.
pub(crate) type Said = Result<Facts, Reason>;

/// It was not found out in time: to be asked again.
pub(crate) const LATE: Reason = Reason::NoDaemon;
