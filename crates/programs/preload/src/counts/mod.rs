//! What a process counts, and what it says of it.

pub mod counters;
pub mod summary;
