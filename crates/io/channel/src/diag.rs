//! Questions to sock_diag(7) about one socket: linux/sock_diag.h.

use crate::sys;

/// Bytes of `nlmsghdr`, which begins every message.
pub(crate) const HEADER_BYTES: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`: the type of a question and of its answer.
pub(crate) const BY_FAMILY: u16 = 20;

/// A question of `N` bytes: its header, the family and protocol that the request begins with, and all states.
pub(crate) fn question<const N: usize>(family: i32, protocol: i32) -> [u8; N] {
    let mut bytes = [0; N];
    put(&mut bytes, 0, &(N as u32).to_ne_bytes());
    put(&mut bytes, 4, &BY_FAMILY.to_ne_bytes());
    put(&mut bytes, 6, &(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    put(&mut bytes, HEADER_BYTES, &[family as u8, protocol as u8]);
    put(&mut bytes, HEADER_BYTES + 4, &u32::MAX.to_ne_bytes());
    bytes
}

/// Writes a value into a question; nothing where it does not fit.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Asks the kernel, in the network namespace of the calling thread. The answer, or an error message; none if it does not speak
/// this protocol.
pub(crate) fn ask<'a>(question: &[u8], answer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = (libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
    let family = libc::AF_NETLINK as usize;
    let args = [family, flags, libc::NETLINK_SOCK_DIAG as usize];
    // SAFETY: no pointers.
    let asking = unsafe { sys::checked(libc::SYS_socket, args) }.ok()?;
    let length = exchange(asking, question, answer);
    // SAFETY: the descriptor was made above, and nobody else has it.
    let _ = unsafe { sys::checked(libc::SYS_close, [asking]) };
    answer.get(..length?)
}

fn exchange(asking: usize, question: &[u8], answer: &mut [u8]) -> Option<usize> {
    let args = [asking, question.as_ptr() as usize, question.len(), 0];
    // SAFETY: the question lives for the call.
    unsafe { sys::checked(libc::SYS_sendto, args) }.ok()?;
    let args = [asking, answer.as_mut_ptr() as usize, answer.len(), 0];
    // SAFETY: the answer's place lives for the call, and its length is said.
    unsafe { sys::checked(libc::SYS_recvfrom, args) }.ok()
}

/// `SO_COOKIE` of a socket, for tests.
#[cfg(test)]
pub(crate) fn cookie(socket: &impl std::os::fd::AsRawFd) -> u64 {
    let cookie = sys::option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE);
    u64::from_ne_bytes(cookie.unwrap())
}
