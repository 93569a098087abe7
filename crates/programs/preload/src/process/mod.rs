//! This process: its identity and signals, and what it shares with the broker and its peers.

pub mod identity;
pub mod mark;
pub mod pairs;
pub mod registration;
pub mod signals;
pub mod status;

use crate::sys::upcalls::Upcalls;

/// What the rooms above do.
pub struct Events {
    /// A thread ends.
    pub thread_ends: fn(),
    /// This process is a copy that was made out of our sight.
    pub unseen_fork: fn(),
    /// A handler of the program is about to run.
    pub before_handler: fn(),
    /// The process has registered with another broker, whose directory is empty.
    pub new_directory: fn(),
}

/// Set by the constructor.
pub static UPCALLS: Upcalls<Events> = Upcalls::new(&Events {
    thread_ends: || {},
    unseen_fork: || {},
    before_handler: || {},
    new_directory: || {},
});
