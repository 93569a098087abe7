//! Messages: `sendmsg`, `recvmsg`, their many-message forms, and the descriptors that travel in them.

use std::ffi::{c_int, c_uint};

use libc::{cmsghdr, mmsghdr, msghdr, timespec};

use crate::dispatch;
use crate::fd::table;
use crate::sys::{memory, real};

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
            each_received(message);
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
            each_received(messages.wrapping_add(index).cast());
        }
        result
    }
}

/// Tells the dispatch of every known socket in the control data of a message about to be sent.
#[inline]
fn each_sent(message: *const msghdr) {
    if message.is_null() {
        return;
    }
    let Some(header) = memory::header(message) else {
        return;
    };
    if header.msg_control.is_null() || header.msg_controllen < size_of::<cmsghdr>() {
        return;
    }
    each_right(&header, |fd| {
        if let Some(sock) = table::any(fd) {
            let before = real::errno();
            sock.record.cookie_by(fd);
            dispatch::passed(sock);
            real::set_errno(before);
        }
    });
}

/// Enters every descriptor that arrived into the table.
#[inline]
fn each_received(message: *const msghdr) {
    // SAFETY: the kernel has just written this header, so it is there.
    let header = unsafe { &*message };
    if header.msg_control.is_null() || header.msg_controllen < size_of::<cmsghdr>() {
        return;
    }
    let before = real::errno();
    each_right(header, table::taken);
    real::set_errno(before);
}

/// Calls `with` for every descriptor in `SCM_RIGHTS` of this control data, which may not be readable.
fn each_right(header: &msghdr, mut with: impl FnMut(c_int)) {
    let head = size_of::<cmsghdr>();
    let end = header.msg_controllen;
    let mut at = 0usize;
    while at.checked_add(head).is_some_and(|stop| stop <= end) {
        let mut items = [cmsghdr {
            cmsg_len: 0,
            cmsg_level: 0,
            cmsg_type: 0,
        }];
        let from = header.msg_control.cast::<u8>().wrapping_add(at);
        if !memory::fetch_all(&mut items, from.cast()) || items[0].cmsg_len < head {
            return;
        }
        let item = items[0];
        let length = item.cmsg_len.min(end - at);
        if item.cmsg_level == libc::SOL_SOCKET && item.cmsg_type == libc::SCM_RIGHTS {
            for offset in (head..length.saturating_sub(3)).step_by(size_of::<c_int>()) {
                let mut fd = [-1];
                if memory::fetch_all(&mut fd, from.wrapping_add(offset).cast()) {
                    with(fd[0]);
                }
            }
        }
        at = at.saturating_add(length.next_multiple_of(size_of::<usize>()));
    }
}
