//! Messages of a joined socket, in terms of [`crate::socket::send`] and [`crate::socket::recv`]: headers are taken apart.

use std::ffi::c_int;

use libc::{mmsghdr, msghdr};
use windlass_channel::{Bufs, Link};

use crate::fd::{
    call::{Data, Own, Sock},
    record::flag,
};
use crate::process::registration;
use crate::socket::{by_kernel, errors, fast_path, kind, recv, send};
use crate::sys::memory;

/// Hands the header of a message and its pieces to `with`; of what cannot be used the program's own call says why.
fn apart(message: *const msghdr, own: Own, with: impl FnOnce(&msghdr, Bufs<'_>) -> isize) -> isize {
    let is_named = |head: &msghdr| head.msg_name.is_null() || head.msg_namelen as i32 >= 0;
    let Some(head) = memory::fetch(message).filter(is_named) else {
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
        // The kernel reads names and control data, also where they are not there.
        let has_name = !head.msg_name.is_null() && head.msg_namelen != 0;
        if has_name || head.msg_controllen != 0 {
            let given = (data.len(), |sent| sent);
            by_kernel::send_by_kernel((sock, 0), &link, given, flags, own)
        } else {
            send::send(*sock, link, data, flags, own)
        }
    })
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
        if flags & !recv::FLAGS != 0 {
            return recv::receive_oddly(sock, &link, own);
        }
        let has_senders = kind::of(sock.record).has_senders;
        // Only the program's own call knows where to put the name of a sender and control data. Of TCP that comes with options only
        // which demote.
        if has_senders && !head.msg_name.is_null() {
            return recv::receive_named(sock, own);
        }
        let may_come = has_senders || sock.record.has(flag::DEMOTED);
        let has_room = !head.msg_control.is_null() && head.msg_controllen != 0;
        if may_come && has_room && !data.is_empty() {
            // What lies in the ring has none, and nobody moves it once its sender has died.
            let (at, bytes) = data.piece();
            let who = registration::owner().filter(|_| flags & !fast_path::FLAGS == 0);
            let taken = who.and_then(|who| fast_path::take(sock, link, who, &Bufs::one(at, bytes)));
            return match taken {
                Some(taken) => bytes_alone((message, head), taken, flags),
                None => recv::receive_oddly(sock, &link, own),
            };
        }
        let received = recv::receive(*sock, link, data, flags, own);
        bytes_alone((message, head), received, flags)
    })
}

/// Where the header of a message is, and was before: now it is one of bytes alone. What was received.
fn bytes_alone((at, head): (*mut msghdr, &msghdr), received: isize, flags: c_int) -> isize {
    let mut after = *head;
    (after.msg_controllen, after.msg_flags) = (0, flags & libc::MSG_CMSG_CLOEXEC);
    if !after.msg_name.is_null() {
        after.msg_namelen = 0;
    }
    if received < 0 || memory::put(at, after) {
        received
    } else {
        errors::fail(libc::EFAULT)
    }
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
