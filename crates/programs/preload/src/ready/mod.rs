//! Waiting for many: epoll, poll and select, and rings of io_uring that change epoll instances.

pub mod deferred_ctl;
pub mod lacking;
pub mod poll;
pub mod select;
pub mod sets;
pub mod uring;
pub mod wait;
