//! The broker of accelerated sockets: `windlass-broker`.
//!
//! # Purpose
//! Two processes whose connection is to bypass the kernel need memory that both have, a way to find each other, and somebody who
//! moves the bytes of one that is stopped. That is the broker. No byte of a connection passes through it.
//!
//! # Where it sits
//! ```text
//!   process A --- slab (sealed memory) --- process B          bytes
//!        \                                   /
//!         \--- broker: one thread, epoll ---/                 register, pair, prove, rescue, watch, list
//!              pidfd of each process, a mapping of each slab
//!                     |           |
//!                  helpers     getters                        take sockets, look, write
//! ```
//! Root's serves every user of the host (`windlass-broker.service`); where it does not answer, `windlass run` starts one
//! for its user.
//!
//! # Model
//! A connection carries a request and its answer ([`windlass_channel::protocol`]). The kernel says who asks, at each request. The
//! broker holds no descriptor of a process: [helpers](helper) with the ids of its user do. A process is taken in only if a helper
//! can take a socket of it, there and then. Two processes in one network and user namespace get memory together once both sockets
//! of a connection were compared, if one user has them, the [policy] names their users, or both asked to share.
//!
//! # Ownership and lifetime
//! The broker makes all memory and keeps a mapping of each slab and a descriptor of it. A slot is a process's until the last slab
//! that names it is gone. When the broker ends, live channels go on; joins, watch and rescue wait for its return.
//!
//! # Synchronization
//! One thread owns everything. Shared memory is touched through [`windlass_channel`] only, which trusts nothing in it.
//!
//! # Limits
//! All in [`limits`]. The thread wakes by the clock only for a slab to be looked at, a helper with a job, a socket that rests, or
//! the end of a private broker.
//!
//! # Failure modes
//! Whatever a process sends, writes or does not read costs its own user a connection, a refusal or its own bytes. The
//! broker answers with a [`Reason`](windlass_channel::Reason) and tells its program ([`Say`]).
//!
//! # Not done
//! A user's broker cannot see limits, quotas and accounting on `lo`; root's looks only when a pair is to get memory (`host`).

#![forbid(unsafe_code)]

mod facts;
mod getter;
pub mod helper;
mod helpers;
mod host;
mod inquiry;
mod jobs;
pub mod limits;
mod listeners;
mod listing;
pub mod log;
pub mod options;
pub mod policy;
mod private;
mod processes;
mod requests;
mod rescue;
mod server;
mod slabs;
mod table;
mod users;

use std::path::PathBuf;
use std::time::Duration;

pub use private::lock;
pub use server::Broker;

/// How a broker is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Processes of other users are served, too: root's broker.
    pub others: bool,
    /// The program that is executed as a helper ([`helper::serve_if_asked`]).
    pub program: PathBuf,
    /// The file with the policy.
    pub policy: Option<PathBuf>,
    /// It ends after so long without a process, unless one of this user has the library.
    pub linger: Option<Duration>,
}

/// Writes a line for people: one that somebody should hear of, or (`false`) what became of one process or request.
pub type Say = Box<dyn FnMut(bool, std::fmt::Arguments<'_>) + Send>;
