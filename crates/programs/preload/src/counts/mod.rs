//! TODO

pub mod counters;
pub mod summary;
