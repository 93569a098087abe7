//! Messages of a joined socket, in terms of [`crate::socket::send`] and [`crate::socket::recv`]: headers are taken apart.

use std::ffi::c_int;

use libc::{mmsghdr, msghdr};
use windlass_channel::{Bufs, Link};

use crate::fd::{
    call::{Data, Own, Sock},
    record::flag,
};
use crate::socket::{by_kernel, kind, recv, send, unix};
use crate::sys::memory;

/// Hands the header of a message and its pieces to `with`; of what cannot be used the program's own call says why.
fn apart(message: *const msghdr, own: Own, with: impl FnOnce(&msghdr, Bufs<'_>) -> isize) -> isize {
    let Some(head) = memory::header(message) else {
        return own.call();
    };
    let data = Data::list(head.msg_iov, head.msg_iovlen);
    data.pieces(own, |pieces| with(&head, pieces))
}

pub fn send(
    sock: &Sock,
    link: Link<'static>,
    message: *const msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    apart(message, own, |head, data| {
        if has_control(head) || has_name(head) {
            let given = (data.len(), |sent| sent);
            by_kernel::send_by_kernel((sock, 0), &link, given, flags, own)
        } else {
            send::send(*sock, link, data, flags, own)
        }
    })
}

/// Whether a header has a name, or room for one.
fn has_name(header: &msghdr) -> bool {
    !header.msg_name.is_null() && header.msg_namelen != 0
}

/// The same of control data.
fn has_control(header: &msghdr) -> bool {
    !header.msg_control.is_null() && header.msg_controllen != 0
}

/// `recvmsg`. What comes by the ring has neither a name nor control data.
pub fn receive(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    apart(message, own, |head, data| {
        let has_senders = kind::of(sock.record).has_senders;
        // Only the program's own call knows where to put the name of a sender and control data. Of TCP that comes with options only
        // which demote.
        if has_name(head) && has_senders {
            return unix::receive_named(sock, own);
        }
        let may_come = has_senders || sock.record.has(flag::DEMOTED);
        if has_control(head) && may_come && !data.is_empty() {
            return recv::receive_oddly(sock, &link, own);
        }
        let received = recv::receive(*sock, link, data, flags, own);
        bytes_alone(message, received, flags)
    })
}

/// The header of a message of bytes alone; what was received.
fn bytes_alone(message: *mut msghdr, received: isize, flags: c_int) -> isize {
    if received >= 0
        && let Some(mut after) = memory::header(message)
    {
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
