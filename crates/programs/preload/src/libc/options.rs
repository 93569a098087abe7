//! Options, `ioctl` and the part of `fcntl` that makes no descriptors ([`crate::libc::files`] has the rest).

use std::ffi::{c_int, c_void};

use libc::socklen_t;

use crate::dispatch;
use crate::fd::table;
use crate::socket::sockopt;

interpose! {
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t)
        -> c_int {
        match table::tracked(fd) {
            None => pass!(getsockopt(fd, level, name, value, length)),
            Some(sock) => {
                let own = own_int!(getsockopt(fd, level, name, value, length));
                sockopt::get(&sock, level, name, value, own) as c_int
            }
        }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int {
        match table::tracked(fd) {
            None => pass!(setsockopt(fd, level, name, value, length)),
            Some(sock) => {
                let own = own_int!(setsockopt(fd, level, name, value, length));
                dispatch::setsockopt(sock, level, name, value, length, own) as c_int
            }
        }
    }

    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
        match table::tracked(fd) {
            None => pass!(ioctl(fd, request, argument)),
            Some(sock) => {
                let own = own_int!(ioctl(fd, request, argument));
                sockopt::ioctl(&sock, request as libc::c_ulong, argument, own) as c_int
            }
        }
    }
}
