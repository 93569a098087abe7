//! Messages of a joined socket, in terms of [`crate::socket::send`] and [`crate::socket::recv`]: headers are taken apart.

use std::ffi::c_int;

use libc::{mmsghdr, msghdr};
use windlass_channel::{Bufs, Link};

use crate::fd::call::{Data, Own, PIECES_MAX, Sock, Store};
use crate::socket::{by_kernel, recv, send, unix};
use crate::sys::memory;

/// The pieces of a header's message; none if they cannot be used: the program's own call says why.
fn pieces(header: &msghdr) -> Option<Data> {
    (header.msg_iovlen <= PIECES_MAX).then(|| Data::list(header.msg_iov, header.msg_iovlen))
}

/// `sendmsg`.
pub fn send(
    sock: &Sock,
    link: Link<'static>,
    message: *const msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    let Some(head) = memory::header(message) else {
        return own.call();
    };
    let Some(data) = pieces(&head) else {
        return own.call();
    };
    let mut store = Store::default();
    let Some((list, _)) = data.fetch(&mut store) else {
        return own.call();
    };
    let Some(data) = Bufs::vector(list) else {
        return own.call();
    };
    if unix::is_more_than_bytes(&head) {
        return by_kernel::send_by_kernel((sock, 0), &link, (data.len(), |sent| sent), flags, own);
    }
    send::send(*sock, link, data, flags, own)
}

/// `recvmsg`. What has room for neither a name nor control data gets lengths of 0.
pub fn receive(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    let Some(head) = memory::header(message) else {
        return own.call();
    };
    let Some(data) = pieces(&head) else {
        return own.call();
    };
    let mut store = Store::default();
    let Some((list, _)) = data.fetch(&mut store) else {
        return own.call();
    };
    let Some(data) = Bufs::vector(list) else {
        return own.call();
    };
    if unix::is_more_than_bytes(&head) {
        return unix::receive_message(sock, link, message, data, flags, own);
    }
    let received = recv::receive(*sock, link, data, flags, own);
    if received >= 0 {
        let mut after = memory::header(message).unwrap_or(
            // SAFETY: all zeros is a header.
            unsafe { std::mem::zeroed() },
        );
        (after.msg_namelen, after.msg_controllen, after.msg_flags) =
            (0, 0, flags & libc::MSG_CMSG_CLOEXEC);
        memory::put(message, after);
    }
    received
}

/// How many bytes the first `count` messages moved, as the kernel has noted.
pub fn bytes_of(list: *const mmsghdr, count: usize) -> usize {
    let at = std::mem::offset_of!(mmsghdr, msg_len);
    let lengths = (0..count).map(|index| {
        let place = list.wrapping_add(index).wrapping_byte_add(at);
        memory::fetch::<u32>(place.cast()).unwrap_or(0) as usize
    });
    lengths.sum()
}
