//! This process: its identity and signals, and what it shares with the broker and its peers.

pub mod identity;
pub mod mark;
pub mod pairs;
pub mod registration;
pub mod signals;
pub mod status;

use std::sync::OnceLock;

/// What the rooms above do.
pub struct Events {
    pub thread_ends: fn(),
    /// This process is a copy that was made out of our sight.
    pub unseen_fork: fn(),
    pub before_handler: fn(),
    /// The process has registered with another broker, whose directory is empty.
    pub new_directory: fn(),
}

/// Set by the constructor.
pub static UPCALLS: OnceLock<Events> = OnceLock::new();

fn tell(event: impl FnOnce(&Events)) {
    UPCALLS.get().map(event);
}
