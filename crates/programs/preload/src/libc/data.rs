//! Bytes: `read`, `write`, `send`, `recv` and what is like them.

use windlass_channel::Reason;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use libc::{iovec, off_t, sockaddr, socklen_t};

use crate::dispatch;
use crate::fd::{
    call::{Data, Own, Sock},
    table,
};
use crate::socket::{demote::demote, fast_path};

#[inline(always)]
fn piece(start: *const c_void, bytes: usize) -> iovec {
    iovec {
        iov_base: start.cast_mut(),
        iov_len: bytes,
    }
}

#[inline(always)]
fn list(iov: *const iovec, count: c_int) -> Option<Data> {
    usize::try_from(count)
        .ok()
        .map(|count| Data::list(iov, count))
}

#[inline(always)]
fn send_one(
    sock: Sock,
    from: *const c_void,
    bytes: usize,
    flags: c_int,
    named: bool,
    own: Own,
) -> isize {
    let piece = piece(from, bytes);
    let mut data = Data::one(&piece);
    data.named = named;
    dispatch::send(sock, data, flags, own)
}

/// `name_length`: as [`Data::name_length`].
#[inline(always)]
fn recv_one(
    sock: Sock,
    into: *mut c_void,
    bytes: usize,
    flags: c_int,
    name_length: *mut socklen_t,
    own: Own,
) -> isize {
    let piece = piece(into, bytes);
    let mut data = Data::one(&piece);
    data.named = !name_length.is_null();
    data.name_length = name_length;
    dispatch::recv(sock, data, flags, own)
}

interpose! {
    fn read(fd: c_int, into: *mut c_void, bytes: usize) -> isize {
        if let Some(got) = fast_path::recv(fd, into, bytes, 0) {
            return got;
        }
        match table::tracked(fd) {
            // The kernel does not ask a socket for no byte, whatever it has.
            Some(sock) if bytes != 0 => {
                recv_one(sock, into, bytes, 0, null_mut(), own!(read(fd, into, bytes)))
            }
            _ => pass!(read(fd, into, bytes)),
        }
    }

    fn __read_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize) -> isize {
        if bytes > room {
            return pass!(__read_chk(fd, into, bytes, room));
        }
        // SAFETY: the same function once the check was made.
        unsafe { read(fd, into, bytes) }
    }

    fn recv(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int) -> isize
        => first fast_path::recv(fd, into, bytes, flags),
        |sock, own| recv_one(sock, into, bytes, flags, null_mut(), own);

    fn __recv_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize, flags: c_int) -> isize {
        if bytes > room {
            return pass!(__recv_chk(fd, into, bytes, room, flags));
        }
        // SAFETY: the same function once the check was made.
        unsafe { recv(fd, into, bytes, flags) }
    }

    fn recvfrom(fd: c_int, into: *mut c_void, bytes: usize, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t) -> isize
        => first from.is_null().then(|| fast_path::recv(fd, into, bytes, flags)).flatten(),
        |sock, own| {
            let length = if from.is_null() { null_mut() } else { length };
            recv_one(sock, into, bytes, flags, length, own)
        };

    fn __recvfrom_chk(fd: c_int, into: *mut c_void, bytes: usize, room: usize, flags: c_int,
        from: *mut sockaddr, length: *mut socklen_t) -> isize {
        if bytes > room {
            return pass!(__recvfrom_chk(fd, into, bytes, room, flags, from, length));
        }
        // SAFETY: the same function once the check was made.
        unsafe { recvfrom(fd, into, bytes, flags, from, length) }
    }

    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> isize
        => |sock, own| match list(iov, count) {
            Some(data) => dispatch::recv(sock, data, 0, own),
            None => own.call(),
        };

    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> isize
        => |sock, own| match list(iov, count).filter(|_| at == -1) {
            Some(data) => dispatch::recv(sock, data, as_recv(sock, flags), own),
            None => own.call(),
        };

    fn write(fd: c_int, from: *const c_void, bytes: usize) -> isize
        => first fast_path::send(fd, from, bytes, 0),
        |sock, own| send_one(sock, from, bytes, 0, false, own);

    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> isize
        => |sock, own| match list(iov, count) {
            Some(data) => dispatch::send(sock, data, 0, own),
            None => own.call(),
        };

    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> isize
        => |sock, own| match list(iov, count).filter(|_| at == -1) {
            Some(data) => dispatch::send(sock, data, as_recv(sock, flags), own),
            None => own.call(),
        };

    fn send(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize
        => first fast_path::send(fd, from, bytes, flags),
        |sock, own| send_one(sock, from, bytes, flags, false, own);

    fn sendto(fd: c_int, from: *const c_void, bytes: usize, flags: c_int, to: *const sockaddr,
        length: socklen_t) -> isize
        => first to.is_null().then(|| fast_path::send(fd, from, bytes, flags)).flatten(),
        |sock, own| send_one(sock, from, bytes, flags, !to.is_null(), own);

    fn sendfile(out: c_int, file: c_int, at: *mut off_t, bytes: usize) -> isize
        => |sock, own| dispatch::send_file(sock, 0, bytes, own);

    fn splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, bytes: usize,
        flags: c_uint) -> isize {
        match (table::tracked(from), table::tracked(to)) {
            (None, None) => pass!(splice(from, from_at, to, to_at, bytes, flags)),
            (source, target) => {
                let own = own!(splice(from, from_at, to, to_at, bytes, flags));
                dispatch::splice(source, target, bytes, own)
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
