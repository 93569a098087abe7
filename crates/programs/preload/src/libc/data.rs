//! Bytes: `read`, `write`, `send`, `recv` and what is like them.

use windlass_channel::Reason;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, without_provenance_mut};

use libc::{iovec, off_t, sockaddr, socklen_t};

use crate::dispatch;
use crate::fd::{
    call::{Data, Sock},
    table,
};
use crate::socket::{demote::demote, fast_path};

interpose! {
    fn read(fd: c_int, into: *mut c_void, bytes: usize) -> isize {
        if let Some(got) = fast_path::recv(fd, into, bytes, 0) {
            return got;
        }
        match table::tracked(fd) {
            // The kernel does not ask a socket for no byte, whatever it has.
            Some(sock) if bytes != 0 => {
                dispatch::recv(sock, Data::one(into, bytes, null()), 0, own!(read(fd, into, bytes)))
            }
            _ => pass!(read(fd, into, bytes)),
        }
    }

    fn __read_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize) -> isize {
        checked!(bytes, room, __read_chk(fd, into, bytes, room) => read(fd, into, bytes))
    }

    fn recv(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int) -> isize
        => first fast_path::recv(fd, into, bytes, flags),
        |sock, own| dispatch::recv(sock, Data::one(into, bytes, null()), flags, own);

    fn __recv_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize, flags: c_int) -> isize {
        checked!(bytes, room, __recv_chk(fd, into, bytes, room, flags) => recv(fd, into, bytes, flags))
    }

    fn recvfrom(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t) -> isize
        => first from.is_null().then(|| fast_path::recv(fd, into, bytes, flags)).flatten(),
        |sock, own| {
            // A length that is null is memory that is not there, as its next byte is.
            let length = if from.is_null() { null() } else { length.max(without_provenance_mut(1)).cast_const().cast() };
            dispatch::recv(sock, Data::one(into, bytes, length), flags, own)
        };

    fn __recvfrom_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize, flags: c_int,
        from: *mut sockaddr, length: *mut socklen_t) -> isize {
        checked!(bytes, room, __recvfrom_chk(fd, into, bytes, room, flags, from, length) => recvfrom(fd, into, bytes, flags, from, length))
    }

    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> isize
        => |sock, own| dispatch::recv(sock, Data::list(iov, count as usize), 0, own);

    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> isize
        => |sock, own| match at {
            -1 => dispatch::recv(sock, Data::list(iov, count as usize), as_recv(sock, flags), own),
            _ => own.call(),
        };

    fn write(fd: c_int, from: *const c_void, bytes: usize) -> isize
        => first fast_path::send(fd, from, bytes, 0),
        |sock, own| dispatch::send(sock, Data::one(from, bytes, null()), 0, own);

    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> isize
        => |sock, own| dispatch::send(sock, Data::list(iov, count as usize), 0, own);

    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> isize
        => |sock, own| match at {
            -1 => dispatch::send(sock, Data::list(iov, count as usize), as_recv(sock, flags), own),
            _ => own.call(),
        };

    fn send(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize
        => first fast_path::send(fd, from, bytes, flags),
        |sock, own| dispatch::send(sock, Data::one(from, bytes, null()), flags, own);

    fn sendto(fd: c_int, from: *const c_void, bytes: usize, flags: c_int, to: *const sockaddr,
        length: socklen_t) -> isize
        => first to.is_null().then(|| fast_path::send(fd, from, bytes, flags)).flatten(),
        |sock, own| dispatch::send(sock, Data::one(from, bytes, to.cast()), flags, own);

    fn sendfile(out: c_int, file: c_int, at: *mut off_t, bytes: usize) -> isize
        => |sock, own| dispatch::send_file(sock, 0, (bytes, 0), own);

    fn splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, bytes: usize,
        flags: c_uint) -> isize {
        match (table::tracked(from), table::tracked(to)) {
            (None, None) => pass!(splice(from, from_at, to, to_at, bytes, flags)),
            (source, target) => {
                let own = own!(splice(from, from_at, to, to_at, bytes, flags));
                let more = if flags & libc::SPLICE_F_MORE == 0 { 0 } else { libc::MSG_MORE };
                dispatch::splice(source, target, (bytes, more), own)
            }
        }
    }
}

alias! {
    __read = read;
    __write = write;
    preadv64v2 = preadv2;
    pwritev64v2 = pwritev2;
    sendfile64 = sendfile;
}

/// The flags of `preadv2` and `pwritev2` in the words of `recv` and `send`.
fn as_recv(sock: Sock, flags: c_int) -> c_int {
    match flags {
        0 => 0,
        libc::RWF_NOWAIT => libc::MSG_DONTWAIT,
        _ => {
            demote(&sock, Reason::Flag);
            0
        }
    }
}
