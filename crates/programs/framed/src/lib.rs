//! libwindlass: framed I/O for programs that read and write packets.
//!
//! # Purpose
//! A switch, a firewall or a hypervisor moves whole frames, many a call. [`Device`] is a handle to a device of windlassd; [`capi`] is the
//! same for C, and [`devices`] makes, removes and lists them. The framed call is that of illumos' libvnd, errno for errno; the transport is memif.
//!
//! # Where it sits
//! ```text
//!  threads of the program
//!    | write, reserve/commit          | read, peek/release        | poll(2)
//!    v                                v                           v
//!  tx: Leases, one ring            rx: one reader               ready: two epoll sets
//!    \                                /                           |
//!     +----------- conn: sealed memory, two rings, eventfds ------+
//!                          |
//!                        link: control socket, timer; connects again
//!                          |
//!                      windlassd (memif server)
//! ```
//!
//! # Ownership and lifetime
//! The memory is ours, and made anew for each connection. A connection that has ended is kept until its received frames are read and
//! its written frames were moved to the next one. A handle belongs to the process that opened it (`fork`): a child's calls fail,
//! and its close frees the child's copy without a word to the daemon. The parent's
//! close ends the connection for both. All descriptors are close-on-exec.
//!
//! # Synchronization
//! There is no thread of ours: a call that finds something to do for the connection does it (`link`). Writers share the lock of
//! `tx` for a reservation, never for a copy. The reader's lock is never waited for.
//!
//! *Where something sleeps.* A thread sleeps in poll(2) on one of two sets, a program on the same sets; what wakes them is an eventfd that the
//! daemon signals (`ready`). Nothing else bounds a sleep. It is not lost, since each sleep is preceded, in this order, by
//! 1. *take*: what is in the set is taken out of it;
//! 2. *arm*: reading unmasks the notifications of the ring; writing puts a new wish for room there;
//! 3. a SeqCst fence;
//! 4. *look*: at the daemon's index, at the connections that came, at the end of the device. What is found is used instead.
//!
//! The daemon moves its index, then a SeqCst fence, then looks at our flags or at our wish. Of the two orders of fences, one has us see
//! the index, the other has the daemon see what we armed, and signal: after the take, so that the signal stays in the set. A wish that is
//! seen is answered at once if anything was released, and by a daemon that falls asleep. News from our own threads (a connection, the end of
//! the device, a lease that is free) follow the same pattern with a bell in each set, stored before it is rung. Of the set for
//! writing, one thread at a time takes (`turn`), and rings it for the others when it leaves. The set for reading is the reader's.
//!
//! A program that polls has got the set itself. So when a call returns without sleeping, the set is readable, or the ring is armed and was
//! found empty behind that: `Device::leave`.
//!
//! Other servers of memif know no wishes, and may look at flags without a fence: with them a sleep lasts 1 ms at most.
//!
//! # What can be lost and what cannot
//! A frame that was written is the daemon's: it is in the ring until the daemon has taken it, over any number of daemons. What the program
//! has not drained when it ends without a close is lost. Received frames are read from a dead connection to its end; of five connections
//! in a row without a read, the frames of one are lost.
//!
//! # Limits
//! 32 vectors a call, frames of 14 to 65,557 bytes, rings of 32 to 16,384 slots of 2,048 bytes, 16 reservations at a time.
//!
//! # Failure modes
//! What the daemon writes into the memory is never believed: an index that cannot be ends the connection, a descriptor that cannot be
//! is skipped. Frames are copied, never borrowed as slices. A NULL pointer is `EFAULT` where illumos' kernel would say so; another wild
//! pointer faults in the caller, as with memcpy.

pub mod capi;
mod conn;
mod device;
pub mod devices;
pub mod error;
mod fork;
pub mod frameio;
mod lend;
mod link;
pub mod offload;
mod ready;
mod rx;
mod turn;
mod tx;

pub use device::{Device, LINGER, LOG2_RING, LOG2_RING_GSO, Options, PATIENCE, Readiness};
pub use error::{Code, Error};
pub use frameio::{
    FRAME_MIN, FRAMEIO_NVECS_MAX, FRAMEIO_VERSION, FrameIo, FrameVec, ReadVec, WriteVec,
};
pub use lend::{Lent, Peeked, Reserved};
pub use offload::Offload;
pub use windlass_attach::memif::Offloads;
