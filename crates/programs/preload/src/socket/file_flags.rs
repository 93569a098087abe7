//! Whether a descriptor is non-blocking, as a call needs to know it.

use std::sync::atomic::Ordering::Relaxed;

use crate::fd::{call::Sock, record::flag};
use crate::sys::kernel;

/// Whether a call without `MSG_DONTWAIT` waits. What an unaccelerated sharer sets is not seen: then a call spins that
/// should not, and the kernel answers.
#[inline(always)]
pub fn is_nonblocking(sock: &Sock) -> bool {
    if !sock.record.has(flag::FLAGS_KNOWN) {
        learn_flags(&{ *sock });
    }
    sock.record.has(flag::NONBLOCK)
}

/// The program has changed the descriptor's status flags: the next call that wants them asks the kernel. A socket that never joins
/// never does.
#[inline]
pub fn forget(sock: &Sock) {
    if sock.record.has(flag::FLAGS_KNOWN) {
        sock.record.flags.fetch_and(!flag::FLAGS_KNOWN, Relaxed);
    }
}

/// Asks the kernel for the descriptor's status flags.
#[cold]
fn learn_flags(sock: &Sock) {
    let Ok(flags) = kernel::file_flags(sock.fd) else {
        return;
    };
    if flags & libc::O_NONBLOCK as usize != 0 {
        sock.record.set(flag::NONBLOCK | flag::FLAGS_KNOWN);
    } else {
        sock.record.flags.fetch_and(!flag::NONBLOCK, Relaxed);
        sock.record.set(flag::FLAGS_KNOWN);
    }
}

/// Whether a send may wait.
#[inline(always)]
pub fn waits(sock: &Sock, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(sock)
}
