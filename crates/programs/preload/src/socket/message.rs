//! Messages of a joined socket, in terms of [`crate::socket::send`] and [`crate::socket::recv`]: headers are taken apart.

use std::ffi::c_int;

use libc::{mmsghdr, msghdr};
use windlass_channel::{Bufs, Link};

use crate::fd::call::{Data, Own, Sock, Store};
use crate::socket::{by_kernel, recv, send, unix};
use crate::sys::memory;

/// Hands the header of a message and its pieces to `with`; of what cannot be used the program's own call says why.
fn apart(message: *const msghdr, own: Own, with: impl FnOnce(&msghdr, Bufs<'_>) -> isize) -> isize {
    let Some(head) = memory::header(message) else {
        return own.call();
    };
    let (data, mut store) = (Data::list(head.msg_iov, head.msg_iovlen), Store::default());
    let pieces = data.fetch(&mut store).and_then(Bufs::vector);
    pieces.map_or_else(|| own.call(), |pieces| with(&head, pieces))
}

/// `sendmsg`.
pub fn send(
    sock: &Sock,
    link: Link<'static>,
    message: *const msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    apart(message, own, |head, data| {
        if unix::is_more_than_bytes(head) {
            let given = (data.len(), |sent| sent);
            by_kernel::send_by_kernel((sock, 0), &link, given, flags, own)
        } else {
            send::send(*sock, link, data, flags, own)
        }
    })
}

/// `recvmsg`. What has room for neither a name nor control data gets lengths of 0.
pub fn receive(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    apart(message, own, |head, data| {
        if unix::is_more_than_bytes(head) {
            return unix::receive_message(sock, link, message, data, flags, own);
        }
        let received = recv::receive(*sock, link, data, flags, own);
        if received >= 0 {
            let mut after = memory::header(message).unwrap_or(*head);
            (after.msg_namelen, after.msg_controllen, after.msg_flags) =
                (0, 0, flags & libc::MSG_CMSG_CLOEXEC);
            memory::put(message, after);
        }
        received
    })
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
