//! Messages: `sendmsg`, `recvmsg`, their many-message forms, and the descriptors that travel in them.

use std::ffi::{c_int, c_uint};

use libc::{cmsghdr, mmsghdr, msghdr, timespec};

use crate::dispatch;
use crate::fd::table;
use crate::sys::memory;

interpose! {
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
        let sock = table::tracked(fd);
        if table::exists() {
            each_sent(message);
        }
        match sock {
            None => pass!(sendmsg(fd, message, flags)),
            Some(sock) => {
                dispatch::send_message(sock, message, flags, own!(sendmsg(fd, message, flags)))
            }
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let sock = table::tracked(fd);
        if table::exists() {
            for index in 0..count.min(1_024) as usize {
                each_sent(messages.wrapping_add(index).cast());
            }
        }
        match sock {
            None => pass!(sendmmsg(fd, messages, count, flags)),
            Some(sock) => {
                let own = own_int!(sendmmsg(fd, messages, count, flags));
                dispatch::send_many(sock, messages, flags, own) as c_int
            }
        }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
        let result = match table::tracked(fd) {
            None => pass!(recvmsg(fd, message, flags)),
            Some(sock) => {
                dispatch::recv_message(sock, message, flags, own!(recvmsg(fd, message, flags)))
            }
        };
        if result >= 0 {
            each_right(message, table::taken);
        }
        result
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec) -> c_int {
        let result = match table::tracked(fd) {
            None => pass!(recvmmsg(fd, messages, count, flags, timeout)),
            Some(sock) => {
                let own = own_int!(recvmmsg(fd, messages, count, flags, timeout));
                dispatch::recv_many(sock, own) as c_int
            }
        };
        for index in 0..usize::try_from(result).unwrap_or(0) {
            each_right(messages.wrapping_add(index).cast(), table::taken);
        }
        result
    }
}

/// Tells the dispatch of every known socket in the control data of a message about to be sent.
#[inline]
fn each_sent(message: *const msghdr) {
    each_right(message, |fd| {
        if let Some(sock) = table::any(fd) {
            sock.record.cookie_by(fd);
            dispatch::passed(sock);
        }
    });
}

/// Calls `with` for every descriptor in `SCM_RIGHTS` of this message's control data, which may not be readable.
#[inline]
fn each_right(message: *const msghdr, with: impl FnMut(c_int)) {
    if let Some(header) = memory::fetch(message)
        && !header.msg_control.is_null()
    {
        each_right_in(header.msg_control.cast(), header.msg_controllen, with);
    }
}

fn each_right_in(start: *const u8, end: usize, mut with: impl FnMut(c_int)) {
    let head = size_of::<cmsghdr>();
    let mut at = 0usize;
    while at.checked_add(head).is_some_and(|stop| stop <= end) {
        let from = start.wrapping_add(at);
        let Some(item) = memory::fetch::<cmsghdr>(from.cast()) else {
            return;
        };
        if item.cmsg_len < head {
            return;
        }
        let length = item.cmsg_len.min(end - at);
        if item.cmsg_level == libc::SOL_SOCKET && item.cmsg_type == libc::SCM_RIGHTS {
            let places = (head..length.saturating_sub(3)).step_by(size_of::<c_int>());
            let fds = places.filter_map(|at| memory::fetch(from.wrapping_add(at).cast()));
            fds.for_each(&mut with);
        }
        at = at.saturating_add(length.next_multiple_of(size_of::<usize>()));
    }
}
