//! TODO

pub mod names;
pub mod promote;
