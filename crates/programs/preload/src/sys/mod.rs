//! TODO

pub mod clock;
pub mod kernel;
pub mod memory;
pub mod real;
