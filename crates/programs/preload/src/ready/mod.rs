//! TODO

pub mod deferred_ctl;
pub mod looks;
pub mod poll;
pub mod sets;
pub mod uring;
pub mod wait;
