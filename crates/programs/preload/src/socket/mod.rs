//! One socket: its state, its bytes by ring or kernel, how a call on it waits, and its end.

pub mod by_kernel;
pub mod close;
pub mod demote;
pub mod errors;
pub mod fast_path;
pub mod file_flags;
pub mod in_flight;
pub mod kernel_look;
pub mod kind;
pub mod message;
pub mod peer_death;
pub mod proof;
pub mod reclaim;
pub mod recv;
pub mod send;
pub mod sleep;
pub mod sockopt;
pub mod spin;
pub mod state;
pub mod unix;
pub mod waiter;

use std::sync::OnceLock;

use crate::fd::call::Sock;

/// What [`crate::ready`] does, set by the constructor: a call that may not wait has said `EAGAIN` because another thread held a
/// lock, whatever was there.
pub static BUSY: OnceLock<fn(&Sock)> = OnceLock::new();
