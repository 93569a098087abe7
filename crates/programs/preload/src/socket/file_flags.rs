//! Whether a descriptor is non-blocking, as a call needs to know it.

use std::sync::atomic::Ordering::Relaxed;

use crate::fd::{call::Sock, record::flag};
use crate::sys::kernel;

/// Whether a call with these flags waits. What an unaccelerated sharer sets is not seen: then a call spins that should not, and the
/// kernel answers.
#[inline(always)]
pub fn waits(sock: &Sock, flags: i32) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 {
        return false;
    }
    if !sock.record.has(flag::FLAGS_KNOWN) {
        learn_flags(&{ *sock });
    }
    !sock.record.has(flag::NONBLOCK)
}

/// The program has changed the descriptor's status flags: the next call that wants them asks the kernel. A socket that never joins
/// never does.
#[inline]
pub fn forget(sock: &Sock) {
    if sock.record.has(flag::FLAGS_KNOWN) {
        sock.record.flags.fetch_and(!flag::FLAGS_KNOWN, Relaxed);
    }
}

#[cold]
fn learn_flags(sock: &Sock) {
    let Ok(flags) = kernel::fcntl(sock.fd, libc::F_GETFL, 0) else {
        return;
    };
    sock.record.flags.fetch_and(!flag::NONBLOCK, Relaxed);
    let is_nonblocking = flags & libc::O_NONBLOCK as usize != 0;
    sock.record
        .set(flag::FLAGS_KNOWN | if is_nonblocking { flag::NONBLOCK } else { 0 });
}
