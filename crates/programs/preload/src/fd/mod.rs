//! Descriptors: the table of numbers, the records of what they name, and the program's calls on them.

pub mod call;
pub mod record;
pub mod table;

use std::sync::OnceLock;

use windlass_channel::Reason;

use crate::fd::call::Sock;

/// What the rooms above do with numbers.
pub struct Events {
    /// Makes what they keep of each record. False: there is no memory.
    pub make: fn() -> bool,
    /// The number is about to be closed, or replaced by `dup2`: the record is still held.
    pub before_close: fn(Sock),
    /// The number has left the table.
    pub closed: fn(u32),
    /// The number was closed out of our sight; it names something else by now.
    pub vanished: fn(Sock),
    /// The socket must stay on the kernel from now on.
    pub demote: fn(&Sock, Reason),
}

/// Set by the constructor, before there is any number.
pub static UPCALLS: OnceLock<Events> = OnceLock::new();

pub fn tell(event: impl FnOnce(&Events)) {
    UPCALLS.get().map(event);
}
