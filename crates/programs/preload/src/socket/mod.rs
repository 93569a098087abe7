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
pub mod lock_backoff;
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

use crate::fd::call::Sock;
use crate::sys::upcalls::Upcalls;

/// What the rooms above do.
pub struct Events {
    /// A call that may not wait has said `EAGAIN` because another thread held a lock, whatever was there.
    pub busy: fn(&Sock),
}

/// Set by the constructor.
pub static UPCALLS: Upcalls<Events> = Upcalls::new(&Events { busy: |_| {} });
