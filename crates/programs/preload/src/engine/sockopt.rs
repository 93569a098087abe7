//! Options, requests and flags of a socket: what the program set and what we did stay apart.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;
use windlass_channel::Reason;
use windlass_channel::unix::SENDER_OPTIONS;

use super::{death, interest, kernel, life, memory, promote, stream, unix};
use crate::own::{Own, Sock};
use crate::record::flag;

/// `SO_TIMESTAMP` and its kin, `SO_ZEROCOPY`, `SO_PEEK_OFF`: asm-generic/socket.h.
const ODD_SOCKET: &[c_int] = &[
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMPNS,
    libc::SO_TIMESTAMPING,
    libc::SO_ZEROCOPY,
    libc::SO_ATTACH_FILTER,
    50, // SO_ATTACH_BPF
    63, // SO_TIMESTAMP_NEW
    64, // SO_TIMESTAMPNS_NEW
    65, // SO_TIMESTAMPING_NEW
    libc::SO_OOBINLINE,
];
/// `TCP_REPAIR`, `TCP_ULP`, `TCP_INQ`: linux/tcp.h.
const ODD_TCP: &[c_int] = &[libc::TCP_REPAIR, libc::TCP_ULP, libc::TCP_INQ];

/// The options that set the size of the send buffer.
const BUFFERS: [c_int; 2] = [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE];

/// The whole number that an option is set to.
fn number(value: *const c_void, length: socklen_t) -> Option<c_int> {
    if (length as usize) < size_of::<c_int>() {
        None
    } else {
        memory::fetch(value.cast())
    }
}

/// `setsockopt`.
pub fn set(
    sock: &Sock,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
    own: Own,
) -> isize {
    let value = number(value, length);
    if level == libc::SOL_SOCKET && SENDER_OPTIONS.contains(&name) && unix::is_stream(sock.record) {
        // What was sent before names no sender, so it moves before the option is set.
        if value != Some(0) {
            life::plain(sock, Reason::Option);
        }
        return own.call();
    }
    if level == libc::SOL_SOCKET && BUFFERS.contains(&name) {
        unix::before_send_buffer(sock, value);
    }
    let result = own.call();
    if result != 0 {
        return result;
    }
    interest::doubt_room(sock);
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            if value.is_some_and(|value| value != 0) {
                sock.record.set(flag::NODELAY);
            } else {
                sock.record
                    .flags
                    .fetch_and(!flag::NODELAY, std::sync::atomic::Ordering::Relaxed);
            }
            if promote::joined(sock).is_some() {
                promote::no_delay(sock);
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) if value != Some(0) => life::plain(sock, Reason::Cork),
        (libc::IPPROTO_TCP, name) if ODD_TCP.contains(&name) => life::plain(sock, Reason::Option),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if value.is_none_or(|value| value > 1) => {
            life::plain(sock, Reason::Option);
        }
        // 0 is a place to peek from, too; only a negative one is none.
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) if value.is_none_or(|value| value >= 0) => {
            life::plain(sock, Reason::Option);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sock.record.set(flag::SNDBUF_SET),
        (libc::SOL_SOCKET, name) if ODD_SOCKET.contains(&name) && value != Some(0) => {
            life::plain(sock, Reason::Option);
        }
        _ => {}
    }
    result
}

/// `getsockopt`: `TCP_NODELAY` as the program left it.
pub fn get(sock: &Sock, level: c_int, name: c_int, value: *mut c_void, own: Own) -> isize {
    let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
    if is_error {
        death::notice();
    }
    let result = own.call();
    if result == 0 && is_error {
        unix::owes_error(sock);
        let noted = memory::fetch::<c_int>(value.cast()).unwrap_or(0);
        let error = stream::take_error(sock).unwrap_or_else(|| death::named(sock, noted));
        if error != noted {
            memory::put(value.cast(), error);
        }
    }
    let is_ours = (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    if result == 0 && is_ours && promote::joined(sock).is_some() {
        memory::put(value.cast(), u8::from(sock.record.has(flag::NODELAY)));
    }
    result
}

/// `ioctl`: queues are those of kernel and ring together.
pub fn ioctl(sock: &Sock, request: c_ulong, argument: usize, own: Own) -> isize {
    let result = own.call();
    if result < 0 {
        return result;
    }
    let link = promote::joined(sock);
    match request {
        libc::FIONBIO => stream::forget_flags(sock),
        libc::FIOASYNC => life::plain(sock, Reason::Option),
        libc::FIONREAD => add(argument, link.map_or(0, |link| link.incoming().queued())),
        libc::TIOCOUTQ => add(argument, link.map_or(0, |link| link.outgoing().queued())),
        _ => {}
    }
    result
}

/// Adds to the number at an address of the program's.
fn add(address: usize, more: usize) {
    let at: *mut c_int = std::ptr::with_exposed_provenance_mut(address);
    if let Some(number) = memory::fetch(at).filter(|_| more != 0) {
        memory::put(at, number.saturating_add(more as c_int));
    }
}

/// `fcntl`.
pub fn fcntl(sock: &Sock, command: c_int, argument: usize, own: Own) -> isize {
    let result = own.call();
    if result >= 0 && command == libc::F_SETFL {
        stream::forget_flags(sock);
        if argument & libc::O_ASYNC as usize != 0 {
            life::plain(sock, Reason::Option);
        }
    }
    result
}

/// What the program has set `TCP_NODELAY` to so far, before we set it.
pub fn note_no_delay(sock: &Sock) {
    let mut value = 0_i32;
    if kernel::option(sock.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value).is_ok()
        && value != 0
    {
        sock.record.set(flag::NODELAY);
    }
}
