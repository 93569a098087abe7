//! Options, `ioctl` and the part of `fcntl` that makes no descriptors ([`crate::libc::files`] has the rest).

use std::ffi::{c_int, c_void};

use libc::socklen_t;

use crate::ready::deferred_ctl;
use crate::socket::sockopt;

interpose! {
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t)
        -> c_int => |sock, own| sockopt::get(&sock, level, name, value, own);

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int => |sock, own| {
            let result = sockopt::set(&sock, level, name, value, length, own);
            deferred_ctl::doubt_room(&sock);
            result
        };

    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int
        => |sock, own| sockopt::ioctl(&sock, request as libc::c_ulong, argument, own);
}
