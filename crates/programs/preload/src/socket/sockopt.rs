//! Options, requests and flags of a socket: what the program set and what we did stay apart.
//!
//! # Model
//! A socket is on a ring only with options that mean the same there, or nothing ([`is_carried`]); any other sends it to the kernel
//! for good. What is set in our sight is judged when it is set. An accepted socket has options of its listener, which another
//! program may have set: the kernel is asked for them, once, before the socket joins ([`has_inherited`]).

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::socklen_t;
use windlass_channel::Reason;
use windlass_channel::unix::SENDER_OPTIONS;

use crate::fd::{
    call::{Own, Sock},
    record::{Origin, flag},
};
use crate::socket::{demote::demote, errors, file_flags, kind, peer_death, state, unix};
use crate::sys::{kernel, memory};

/// Options of the socket level without a meaning of their own for a ring, whatever their value.
const CARRIED_SOCKET: &[c_int] = &[
    libc::SO_DEBUG,
    libc::SO_REUSEADDR,
    libc::SO_DONTROUTE,
    libc::SO_BROADCAST,
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVBUFFORCE,
    libc::SO_KEEPALIVE,
    libc::SO_PRIORITY,
    libc::SO_LINGER,
    libc::SO_REUSEPORT,
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_BINDTODEVICE,
    libc::SO_MARK,
    libc::SO_LOCK_FILTER,
    libc::SO_INCOMING_CPU,
    SO_BINDTOIFINDEX,
    SO_RCVTIMEO_NEW,
    SO_SNDTIMEO_NEW,
];
/// The same of TCP.
const CARRIED_TCP: &[c_int] = &[
    libc::TCP_NODELAY,
    libc::TCP_MAXSEG,
    libc::TCP_KEEPIDLE,
    libc::TCP_KEEPINTVL,
    libc::TCP_KEEPCNT,
    libc::TCP_SYNCNT,
    libc::TCP_LINGER2,
    libc::TCP_DEFER_ACCEPT,
    libc::TCP_WINDOW_CLAMP,
    libc::TCP_QUICKACK,
    libc::TCP_CONGESTION,
    libc::TCP_THIN_LINEAR_TIMEOUTS,
    libc::TCP_THIN_DUPACK,
    libc::TCP_USER_TIMEOUT,
    libc::TCP_FASTOPEN,
    libc::TCP_FASTOPEN_CONNECT,
    libc::TCP_FASTOPEN_KEY,
    libc::TCP_FASTOPEN_NO_COOKIE,
    libc::TCP_NOTSENT_LOWAT,
    libc::TCP_SAVE_SYN,
];
/// Options that only the kernel carries out, with the value that switches each off: those that a listener may hand on.
const KERNELS: &[(c_int, c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW, 0),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, 0),
    (libc::SOL_SOCKET, SO_MAX_PACING_RATE, -1),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
    (libc::IPPROTO_TCP, libc::TCP_INQ, 0),
];
/// asm-generic/socket.h.
const SO_MAX_PACING_RATE: c_int = 47;
const SO_BINDTOIFINDEX: c_int = 62;
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// Of `getsockopt`: takes bytes (linux/tcp.h).
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// Whether a socket with this option may be on a ring.
fn is_carried(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    let is_off = KERNELS.iter().any(|kernels| {
        let least = (libc::SOL_SOCKET, libc::SO_RCVLOWAT) == (level, name) && value == Some(0);
        (kernels.0, kernels.1) == (level, name) && (value == Some(kernels.2) || least)
    });
    let is_known = match level {
        libc::SOL_SOCKET => CARRIED_SOCKET.contains(&name) || SENDER_OPTIONS.contains(&name),
        libc::IPPROTO_TCP => CARRIED_TCP.contains(&name),
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        _ => false,
    };
    is_off || is_known
}

/// Whether a socket has an option of its listener that only the kernel carries out.
pub fn has_inherited(sock: &Sock) -> bool {
    if sock.record.origin() == Origin::Made {
        return false;
    }
    let is_set = |(level, name, off): &(c_int, c_int, c_int)| {
        let mut value = *off;
        kernel::option(sock.fd, *level, *name, &mut value).is_ok() && value != *off
    };
    KERNELS.iter().any(is_set) || kernel::has_filter(sock.fd)
}

fn number(value: *const c_void, length: socklen_t) -> Option<c_int> {
    let is_whole = length as usize >= size_of::<c_int>();
    is_whole.then(|| memory::fetch(value.cast())).flatten()
}

pub fn set(
    sock: &Sock,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
    own: Own,
) -> isize {
    // A second process that sets an option demotes the socket.
    let _ = state::joined(sock);
    let value = number(value, length);
    if level == libc::SOL_SOCKET
        && SENDER_OPTIONS.contains(&name)
        && kind::of(sock.record).has_senders
    {
        // What was sent before names no sender, so it moves before the option is set.
        if value != Some(0) {
            demote(sock, Reason::Option);
        }
        return own.call();
    }
    // The kernel doubles the value. If that makes the buffer small, the direction goes to the kernel before, which takes what is unread
    // while it has room.
    let is_little = value.is_none_or(|value| i64::from(value) * 2 < unix::SEND_BUFFER_LEAST);
    let sets_buffer = matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE);
    let is_buffer = level == libc::SOL_SOCKET && sets_buffer;
    if is_buffer && is_little && !kind::of(sock.record).is_counted {
        demote(sock, Reason::Option);
    }
    let result = own.call();
    if result != 0 {
        return result;
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            match value {
                None | Some(0) => _ = sock.record.flags.fetch_and(!flag::NODELAY, Relaxed),
                Some(_) => sock.record.set(flag::NODELAY),
            }
            if state::joined(sock).is_some() {
                state::no_delay(sock);
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) if value != Some(0) => demote(sock, Reason::Cork),
        _ if !is_carried(level, name, value) => demote(sock, Reason::Option),
        _ => {}
    }
    result
}

/// `getsockopt`: `TCP_NODELAY` as the program left it.
pub fn get(sock: &Sock, level: c_int, name: c_int, value: *mut c_void, own: Own) -> isize {
    let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
    if is_error {
        peer_death::notice();
    }
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) {
        demote(sock, Reason::Option);
    }
    let result = own.call();
    if result == 0 && is_error {
        peer_death::owes_error(sock);
        let noted = memory::fetch::<c_int>(value.cast()).unwrap_or(0);
        let error = errors::take_error(sock).unwrap_or_else(|| peer_death::named(sock, noted));
        if error != noted {
            memory::put(value.cast(), error);
        }
    }
    let is_ours = (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    if result == 0 && is_ours && state::joined(sock).is_some() {
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
    let link = state::joined(sock);
    match request {
        libc::FIONBIO => file_flags::forget(sock),
        libc::FIOASYNC => demote(sock, Reason::Option),
        libc::FIONREAD => add(argument, link.map_or(0, |link| link.incoming().queued())),
        libc::TIOCOUTQ => add(argument, link.map_or(0, |link| link.outgoing().queued())),
        _ => {}
    }
    result
}

fn add(address: usize, more: usize) {
    let at: *mut c_int = std::ptr::with_exposed_provenance_mut(address);
    if let Some(number) = memory::fetch(at).filter(|_| more != 0) {
        memory::put(at, number.saturating_add(more as c_int));
    }
}

pub fn fcntl(sock: &Sock, command: c_int, argument: usize, own: Own) -> isize {
    let result = own.call();
    if result >= 0 && command == libc::F_SETFL {
        file_flags::forget(sock);
        if argument & libc::O_ASYNC as usize != 0 {
            demote(sock, Reason::Option);
        }
    }
    result
}

/// What the program has set `TCP_NODELAY` to so far, before we set it.
pub fn note_no_delay(sock: &Sock) {
    let mut value = 0_i32;
    let asked = kernel::option(sock.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value);
    if asked.is_ok() && value != 0 {
        sock.record.set(flag::NODELAY);
    }
}
