//! Waiting for many: epoll, poll and select, and rings of io_uring that change epoll instances.

pub mod deferred_ctl;
pub mod lacking;
pub mod poll;
pub mod select;
pub mod sets;
pub mod uring;
pub mod wait;

use crate::process::signals;
use crate::socket::errors;
use crate::sys::kernel::Done;

/// The call that sleeps; if a handler has run since it `began`, while the broker was asked, what a look finds instead, or EINTR.
fn unless_handled(began: u64, look: impl FnOnce() -> Done, sleep: impl FnOnce() -> isize) -> isize {
    if signals::handled() == began {
        return sleep();
    }
    match look() {
        Ok(0) => errors::fail(libc::EINTR),
        Ok(found) => found as isize,
        Err(error) => errors::fail(error),
    }
}
