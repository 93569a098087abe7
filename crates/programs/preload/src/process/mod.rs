//! TODO

pub mod identity;
pub mod registration;
pub mod signals;
