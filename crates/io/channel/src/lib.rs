//! Shared-memory byte streams between accelerated processes.
//!
//! # Purpose
//! Two processes on one host hold the two ends of one kernel connection. While both are busy, bytes go through a ring in shared
//! memory; whoever sleeps, sleeps in the kernel, and is woken by the data itself, sent through the kernel connection. This crate is
//! the shared memory and every operation on it. It knows no table of descriptors, no blocking, no signals and no environment: every
//! operation is one attempt that says what happened.
//!
//! # Where it sits
//! ```text
//!   programs/preload (the program's calls)        programs/broker (memory, pairs, rescue)
//!             \                                      /
//!              +----------- io/channel -------------+        Slab -> Link -> Outgoing | Incoming
//!                               |
//!                    the real socket (trait Socket)
//! ```
//!
//! # Model
//! A [`Slab`] is shared by two processes and holds [`layout::CHANS`] channels; a [`Link`] is one end of one of them, with an
//! [`Outgoing`] and an [`Incoming`] direction. In each direction every unread byte in the kernel is older than every unread byte in
//! the ring. The sender decides per call: ring if the receiver is awake, kernel if not. Counts from the start of the stream
//! (`k_sent`, `krecv`) say when the ring may be read, and the kernel keeps the same counts, so a killed process loses none.
//! `reclaim` moves unread ring bytes into the kernel at any moment.
//!
//! # Synchronization
//! Field by field in [`layout`]; sleeping against pushing in [`wait`]; locks in [`owner`]. Lock order: write lock, then read lock.
//! No lock is held over anything that waits.
//!
//! # Failure modes
//! The memory is foreign: every word is an atomic, every value is loaded once and checked, every loop is bounded. A value that
//! cannot be makes the direction [`Sent::Broken`] or [`Took::Broken`], which the caller shows as ECONNRESET.

pub mod bufs;
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
pub mod copy;
#[cfg(not(loom))]
mod diag;
#[cfg(not(loom))]
pub mod directory;
mod inc;
mod join;
pub mod layout;
#[cfg(loom)]
pub mod model;
mod news;
mod out;
pub mod owner;
mod proof;
#[cfg(not(loom))]
pub mod protocol;
mod reason;
mod ring;
mod room;
mod shim;
mod slab;
#[cfg(not(loom))]
pub mod snapshot;
mod socket;
pub mod sys;
#[cfg(not(loom))]
pub mod unix;
pub mod wait;

pub use bufs::Bufs;
pub use inc::{Asleep, End, Incoming, RecvHow, Took};
pub use join::{EndInfo, Join, Offer};
pub use layout::Side;
pub use news::Watched;
pub use out::{Fast, KERNEL_UNREAD_MAX, Moved, Outgoing, Reclaimed, STREAM_AFTER, Sent, WhenFull};
pub use owner::{Alive, Life, Owner, Who};
pub use proof::{Cut, PROOF_BITS, Split};
pub use reason::Reason;
pub use slab::{Link, Slab};
pub use socket::{Counts, Fd, Socket};
pub use wait::{SLOT_FIRST, StatusPage};
