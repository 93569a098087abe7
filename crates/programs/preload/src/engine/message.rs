//! Messages and files of a joined socket, in terms of [`super::stream`]: headers are taken apart, files are read.

use std::ffi::c_int;

use libc::{mmsghdr, msghdr, off_t};
use windlass_channel::{Bufs, Link};

use super::waiter::Waiter;
use super::{memory, stream, unix};
use crate::calls::message::header;
use crate::own::{Data, Own, PIECES_MAX, Sock, Store};
use crate::real;

/// Bytes of a file that are read at a time.
const FILE_BYTES: usize = 16 * 1024;

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
    let Some(head) = header(message) else {
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
    if unix::is_stream(sock.record) && unix::is_more_than_bytes(&head) {
        return unix::send_message(sock, link, &head, data, flags, own);
    }
    stream::send(*sock, link, data, flags, own)
}

/// `recvmsg`. A stream over IP has neither names nor control data: their lengths come out as 0.
pub fn receive(
    sock: &Sock,
    link: Link<'static>,
    message: *mut msghdr,
    flags: c_int,
    own: Own,
) -> isize {
    let Some(head) = header(message) else {
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
    if unix::is_stream(sock.record) && unix::is_more_than_bytes(&head) {
        return unix::receive_message(sock, link, message, data, flags, own);
    }
    let received = stream::receive(*sock, link, data, flags, own);
    if received >= 0 {
        let mut after = header(message).unwrap_or(
            // SAFETY: all zeros is a header.
            unsafe { std::mem::zeroed() },
        );
        (after.msg_namelen, after.msg_controllen, after.msg_flags) =
            (0, 0, flags & libc::MSG_CMSG_CLOEXEC);
        memory::put(message, after);
    }
    received
}

/// `sendmmsg`: one after another, until one is not whole.
pub fn send_many(
    sock: &Sock,
    link: Link<'static>,
    list: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> isize {
    let single = |fd: c_int, message: *mut msghdr| {
        let arguments = [fd as usize, message.addr(), flags as usize, 0, 0, 0];
        Own::long(&real::slot::sendmsg, arguments)
    };
    each(sock, list, count, |sock, message| {
        send(sock, link, message, flags, single(sock.fd, message))
    })
}

/// `recvmmsg`: one after another, until there is nothing. Only the first one waits if `MSG_WAITFORONE` says so.
pub fn receive_many(
    sock: &Sock,
    link: Link<'static>,
    list: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> isize {
    let mut first = true;
    each(sock, list, count, |sock, message| {
        let only_first = flags & libc::MSG_WAITFORONE != 0 && !first;
        let now = if only_first { libc::MSG_DONTWAIT } else { 0 };
        first = false;
        let flags = flags & !libc::MSG_WAITFORONE | now;
        let arguments = [sock.fd as usize, message.addr(), flags as usize, 0, 0, 0];
        let single = Own::long(&real::slot::recvmsg, arguments);
        receive(sock, link, message, flags, single)
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

/// Makes one call for each message and notes its length; how many succeeded, or the error of the first.
fn each(
    sock: &Sock,
    list: *mut mmsghdr,
    count: u32,
    one: impl FnMut(&Sock, *mut msghdr) -> isize,
) -> isize {
    let mut waiter = Waiter::new(*sock);
    let result = if waiter.enter() {
        each_of(&mut waiter, list, count, one)
    } else {
        stream::fail(libc::EBADF)
    };
    waiter.end();
    result
}

fn each_of(
    waiter: &mut Waiter,
    list: *mut mmsghdr,
    count: u32,
    mut one: impl FnMut(&Sock, *mut msghdr) -> isize,
) -> isize {
    let mut done = 0;
    for index in 0..count.min(PIECES_MAX as u32) as usize {
        let entry = list.wrapping_add(index);
        let moved = if waiter.follow() {
            one(waiter.sock(), entry.cast())
        } else {
            stream::fail(libc::EBADF)
        };
        if moved < 0 {
            return if done > 0 { done } else { moved };
        }
        let at = entry
            .cast::<u8>()
            .wrapping_add(std::mem::offset_of!(mmsghdr, msg_len));
        memory::put(at.cast(), moved as u32);
        done += 1;
        if moved == 0 {
            break;
        }
    }
    done
}

/// `sendfile`: the file is read in pieces; its position moves by what was sent.
pub fn send_file(
    sock: &Sock,
    link: Link<'static>,
    file: c_int,
    at: *mut off_t,
    bytes: usize,
    own: Own,
) -> isize {
    let is_given = !at.is_null();
    let mut position = if is_given {
        memory::fetch(at).unwrap_or(-1)
    } else {
        // SAFETY: no pointers.
        unsafe { libc::lseek(file, 0, libc::SEEK_CUR) }
    };
    if position < 0 {
        return own.call();
    }
    let mut waiter = Waiter::new(*sock);
    if !waiter.enter() {
        return own.call();
    }
    let start = position;
    let mut piece = [0_u8; FILE_BYTES];
    let mut sent = 0;
    while (position - start) < bytes as off_t {
        let want = (bytes - (position - start) as usize).min(FILE_BYTES);
        // SAFETY: the buffer has FILE_BYTES.
        let got = unsafe { libc::pread(file, piece.as_mut_ptr().cast(), want, position) };
        if got <= 0 {
            sent = got;
            break;
        }
        let piece = Bufs::out(piece.as_ptr(), got as usize);
        sent = if waiter.follow() {
            stream::send(*waiter.sock(), link, piece, 0, own)
        } else {
            stream::fail(libc::EBADF)
        };
        if sent <= 0 {
            break;
        }
        position += sent as off_t;
        if sent < got {
            break;
        }
    }
    waiter.end();
    let total = position - start;
    if total == 0 && sent < 0 {
        return sent;
    }
    if is_given {
        memory::put(at, position);
    } else {
        // SAFETY: no pointers.
        unsafe { libc::lseek(file, position, libc::SEEK_SET) };
    }
    total as isize
}
