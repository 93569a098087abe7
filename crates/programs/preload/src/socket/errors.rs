//! Errors of calls: `errno`, the signal of a broken pipe, and what a reclaim met, which the next call reports.

use std::sync::atomic::Ordering::Relaxed;

use crate::fd::{
    call::Sock,
    record::{flag, word},
};
use crate::socket::{kind, peer_death};
use crate::sys::{kernel, real};

/// -1 and `errno`.
#[cold]
pub fn fail(error: i32) -> isize {
    real::set_errno(error);
    -1
}

/// The error of a send, with the signal that goes with `EPIPE`.
#[cold]
pub fn broken_pipe(error: i32, flags: i32) -> isize {
    if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        kernel::raise(libc::SIGPIPE);
    }
    fail(error)
}

/// An error that a reclaim met is the call's.
#[cold]
pub fn before_call(sock: &Sock) -> Option<i32> {
    if !kind::of(sock.record).is_reset_late {
        // The kernel's send says that nobody reads any more, and leaves the reset to a receive.
        return None;
    }
    take_error(sock).or_else(|| peer_death::take_reset(sock))
}

/// Whether an error waits for a call that reports it.
pub fn has_error(sock: &Sock) -> bool {
    sock.record.has(flag::FAILED)
}

/// An error that the next call has to report.
pub fn fail_later(sock: &Sock, error: i32) {
    sock.record.words[word::ERROR].store(error as u64, Relaxed);
    sock.record.set(flag::FAILED);
}

/// The error that a reclaim met, once.
pub fn take_error(sock: &Sock) -> Option<i32> {
    if !sock.record.has(flag::FAILED) {
        return None;
    }
    sock.record.flags.fetch_and(!flag::FAILED, Relaxed);
    match sock.record.words[word::ERROR].swap(0, Relaxed) {
        0 => None,
        error => Some(error as i32),
    }
}
