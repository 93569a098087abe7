//! The kernel and libc, the program's memory, and time.

pub mod clock;
pub mod kernel;
pub mod memory;
pub mod real;
pub mod reserved;
