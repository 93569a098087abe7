//! TODO

pub mod by_kernel;
pub mod close;
pub mod fast_path;
pub mod in_flight;
pub mod lock_backoff;
pub mod message;
pub mod peer_death;
pub mod proof;
pub mod sleep;
pub mod sockopt;
pub mod spin;
pub mod stream;
pub mod unix;
pub mod waiter;
