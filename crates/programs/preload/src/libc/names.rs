//! Making, naming and connecting sockets.

use std::ffi::c_int;

use libc::{sockaddr, socklen_t};

use crate::fd::{
    record::{Kind, Origin, flag},
    table,
};
use crate::socket::{close, peer_death};

interpose! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = pass!(socket(domain, kind, protocol));
        if fd >= 0 {
            made(fd, domain, kind, protocol);
        }
        fd
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
        let result = pass!(socketpair(domain, kind, protocol, pair));
        if result == 0 {
            // SAFETY: the kernel has just written both.
            let fds = unsafe { *pair.cast::<[c_int; 2]>() };
            fds.into_iter().for_each(|fd| made(fd, domain, kind, protocol));
        }
        result
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let sock = table::tracked(fd);
        let result = pass!(listen(fd, backlog));
        if let Some(sock) = sock.filter(|_| result == 0) {
            table::listens(sock);
        }
        result
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        let got = pass!(accept(fd, address, length));
        accepted(fd, got)
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        let got = pass!(accept4(fd, address, length, flags));
        accepted(fd, got)
    }

    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int
        => |sock, own| {
            sock.record.set(flag::CONNECTED_BY_US);
            own.call()
        };

    fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int
        => |_sock, own| {
            // A connection that its peer's death has reset has no peer any more.
            peer_death::notice();
            own.call()
        };

    fn shutdown(fd: c_int, how: c_int) -> c_int => |sock, own| close::shutdown(&sock, how, own);
}

alias! {
    __connect = connect;
}

#[inline]
fn made(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    enter(fd, Kind::of_socket(domain, kind, protocol), Origin::Made);
}

#[inline]
fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd >= 0 {
        table::tracked(listener);
        let kind = match table::any(listener) {
            Some(sock) => sock.record.kind(),
            None => table::kind_of_socket(fd),
        };
        enter(fd, kind, Origin::Accepted);
    }
    fd
}

#[inline]
fn enter(fd: c_int, kind: Option<Kind>, origin: Origin) {
    match kind {
        Some(kind) => _ = table::made(fd, kind, origin),
        None => table::other(fd),
    }
}
