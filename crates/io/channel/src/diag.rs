//! Questions to sock_diag(7) about one socket: linux/sock_diag.h.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let asking = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    send(&asking, question, SendFlags::empty()).ok()?;
    let (length, _) = recv(&asking, &mut *answer, RecvFlags::empty()).ok()?;
    answer.get(..length)
}

/// `SO_COOKIE` of a socket, for tests.
#[cfg(test)]
pub(crate) fn cookie(socket: &impl std::os::fd::AsRawFd) -> u64 {
    let cookie = crate::sys::option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE);
    u64::from_ne_bytes(cookie.unwrap())
}
