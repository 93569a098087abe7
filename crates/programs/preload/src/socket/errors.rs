//! Errors of calls: `errno`, the signal of a broken pipe, and what a reclaim met, which the next call reports.

use std::sync::atomic::Ordering::Relaxed;

use crate::fd::{
    call::Sock,
    record::{flag, word},
};
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
        // SAFETY: takes a number; to the calling thread.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    fail(error)
}

/// What the kernel says of a socket without being asked: errors and the end.
pub fn events(sock: &Sock) -> i32 {
    kernel::poll_one(sock.fd, 0) as i32
}

pub fn fail_later(sock: &Sock, error: i32) {
    sock.record.words[word::ERROR].store(error as u64, Relaxed);
    sock.record.set(flag::FAILED);
}

pub fn take_error(sock: &Sock) -> Option<i32> {
    if !sock.record.has(flag::FAILED) {
        return None;
    }
    sock.record.flags.fetch_and(!flag::FAILED, Relaxed);
    let error = sock.record.words[word::ERROR].swap(0, Relaxed);
    (error != 0).then_some(error as i32)
}
