//! The one dispatch: which room carries out a call on a tracked number.
//!
//! # Model
//! Every function here is called by [`crate::libc`] with the program's own call in [`Own`]: to leave the answer to the
//! kernel, call that. -1 and `errno`, or the result. Nothing with a destructor may be alive across [`Own::call`].
//!
//! A young socket's call is the kernel's, and counted; it may join behind it. A joined one's is [`crate::socket`]'s, and a wait for
//! many is [`crate::ready`]'s.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::{epoll_event, fd_set, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, socklen_t, timeval};
use windlass_channel::{Bufs, Link, Reason};

use crate::fd::{
    call::{Data, Own, Sock, Store},
    record::{Kind, flag},
};
use crate::join::promote;
use crate::options;
use crate::process::identity;
use crate::ready::{
    deferred_ctl::{self, flush_epoll_ctl},
    lacking, poll, select, sets, wait,
};
use crate::socket::{
    by_kernel, close, demote::demote, in_flight, kind, message, reclaim, recv, send, sockopt,
    state, unix, waiter,
};
use crate::sys::{clock::Wait, memory};

/// The end of the channel of a socket that has joined; what is left of the join comes before its use.
#[inline(always)]
fn joined(sock: &Sock) -> Option<Link<'static>> {
    let link = state::joined(sock)?;
    if sock.record.has(flag::PENDING) {
        promote::look_again(sock, &link);
    }
    Some(link)
}

/// A call that moves bytes on a socket that has not joined: counted, and made; it may join behind it.
#[inline(always)]
fn young(sock: &Sock, is_send: bool, own: Own) -> Result<isize, Link<'static>> {
    if !state::is_young(sock.record) || !state::is_own(sock.record) {
        return Ok(own.call());
    }
    if !in_flight::enter(sock.record, is_send) {
        return match joined(sock) {
            Some(link) => Err(link),
            None => Ok(own.call()),
        };
    }
    let result = own.call();
    let has_joined = result > 0 && promote::moved(sock, is_send, result as usize);
    in_flight::leave(sock, is_send, has_joined);
    Ok(result)
}

/// For tests: whether this call goes straight to the kernel, as one that the library did not see.
#[inline(always)]
fn is_bypassed() -> bool {
    let share = options::bypass();
    share != 0 && chance(share, options::bypass_seed())
}

/// For tests: whether unread bytes are moved into the kernel before this call.
#[inline(always)]
fn is_reclaimed() -> bool {
    let share = options::reclaim();
    share != 0 && chance(share, options::reclaim_seed())
}

/// True in `share` of 1,000 calls, by a generator (xorshift64*) of each thread that begins with `seed`.
#[cold]
fn chance(share: u64, seed: u64) -> bool {
    let state = &identity::thread().words[0];
    let mut word = state.load(Relaxed);
    if word == 0 {
        word = seed ^ u64::from(std::process::id()) << 32 | 1;
    }
    word ^= word >> 12;
    word ^= word << 25;
    word ^= word >> 27;
    state.store(word, Relaxed);
    (word.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % 1_000 < share
}

/// The pieces of a call as the channel takes them, handed to `with`; the program's own call if they cannot be read.
fn pieces(data: &Data, own: Own, with: impl FnOnce(Bufs<'_>) -> isize) -> isize {
    let mut store = Store::default();
    let list = data.fetch(&mut store).and_then(Bufs::vector);
    list.map_or_else(|| own.call(), with)
}

/// `write`, `writev`, `send`, `sendto`; `flags` as `send`'s, 0 for the first two.
#[inline(never)]
pub fn send(sock: Sock, data: Data, flags: c_int, own: Own) -> isize {
    match (joined(&sock), data.single()) {
        (Some(link), Some(bytes)) if !data.named && !is_reclaimed() => {
            send::send(sock, link, bytes, flags, own)
        }
        _ => send_otherwise(sock, data, flags, own),
    }
}

/// A send on a socket that has not joined, of several pieces, to a name, or with a reclaim before it.
#[inline(never)]
fn send_otherwise(sock: Sock, data: Data, flags: c_int, own: Own) -> isize {
    let link = match joined(&sock) {
        Some(link) => link,
        None if kind::is_held_back(sock.record, flags) => {
            demote(&sock, Reason::Cork);
            return own.call();
        }
        None => match young(&sock, true, own) {
            Ok(result) => return result,
            Err(link) => link,
        },
    };
    if is_reclaimed() {
        reclaim::reclaim(&sock, &link);
    }
    if data.named && kind::of(sock.record).has_senders {
        return own.call();
    }
    let by_list = data.is_list();
    pieces(&data, own, |data| {
        if by_list && data.is_empty() {
            // The kernel does not ask a socket, whatever it has.
            own.call()
        } else {
            send::send(sock, link, data, flags, own)
        }
    })
}

/// `sendmsg`. Descriptors in its control data were reported by [`passed`] before.
pub fn send_message(sock: Sock, message: *const msghdr, flags: c_int, own: Own) -> isize {
    match joined(&sock).map_or_else(|| young(&sock, true, own), Err) {
        Ok(result) => result,
        Err(link) => message::send(&sock, link, message, flags, own),
    }
}

/// `sendmmsg`: its messages are the kernel's.
pub fn send_many(sock: Sock, messages: *mut mmsghdr, flags: c_int, own: Own) -> isize {
    match joined(&sock) {
        Some(link) => {
            let told = |count| message::bytes_of(messages, count);
            by_kernel::send_by_kernel((&sock, 0), &link, (0, told), flags, own)
        }
        None => by_flag(&sock, own),
    }
}

/// `read`, `readv`, `recv`, `recvfrom`.
#[inline(never)]
pub fn recv(sock: Sock, into: Data, flags: c_int, own: Own) -> isize {
    match (joined(&sock), into.single()) {
        (Some(link), Some(bytes)) if into.name_length.is_null() && !is_bypassed() => {
            recv::receive(sock, link, bytes, flags, own)
        }
        _ => recv_otherwise(sock, into, flags, own),
    }
}

/// A receive on a socket that has not joined, into several pieces, with the name of the sender, or past the library.
#[inline(never)]
fn recv_otherwise(sock: Sock, into: Data, flags: c_int, own: Own) -> isize {
    if is_bypassed() {
        return own.call();
    }
    let link = match joined(&sock) {
        Some(link) => link,
        None => match young(&sock, false, own) {
            Ok(result) => return result,
            Err(link) => link,
        },
    };
    if !into.name_length.is_null() && kind::of(sock.record).has_senders {
        return unix::receive_named(&sock, own);
    }
    let result = pieces(&into, own, |into| {
        recv::receive(sock, link, into, flags, own)
    });
    if result >= 0 && !into.name_length.is_null() {
        memory::put(into.name_length, 0);
    }
    result
}

/// `recvmsg`. Descriptors that arrive are reported by [`crate::fd::table::taken`] afterwards.
pub fn recv_message(sock: Sock, message: *mut msghdr, flags: c_int, own: Own) -> isize {
    match joined(&sock).map_or_else(|| young(&sock, false, own), Err) {
        Ok(result) => result,
        Err(link) => message::receive(&sock, link, message, flags, own),
    }
}

/// `recvmmsg`: the kernel alone knows when its time is over, so what the socket receives stays there.
pub fn recv_many(sock: Sock, own: Own) -> isize {
    match joined(&sock) {
        Some(link) => recv::receive_oddly(&sock, &link, own),
        None => by_flag(&sock, own),
    }
}

/// A call on a socket that has not joined, and does not: a ring has nothing like it.
fn by_flag(sock: &Sock, own: Own) -> isize {
    demote(sock, Reason::Flag);
    own.call()
}

/// `sendfile` or `splice` to the socket, which is the call's argument `at`, of at most so many bytes.
pub fn send_file(sock: Sock, at: usize, bytes: usize, own: Own) -> isize {
    match joined(&sock).map_or_else(|| young(&sock, true, own), Err) {
        Ok(result) => result,
        Err(link) => by_kernel::send_by_kernel((&sock, at), &link, (bytes, |sent| sent), 0, own),
    }
}

/// Where `splice` has the descriptor that it writes to, among its arguments.
const SPLICE_TO: usize = 2;

/// `splice` out of a socket, into one, or both.
pub fn splice(from: Option<Sock>, to: Option<Sock>, bytes: usize, own: Own) -> isize {
    if let Some(from) = from {
        demote(&from, Reason::Flag);
    }
    to.map_or_else(|| own.call(), |to| send_file(to, SPLICE_TO, bytes, own))
}

/// `poll` and `ppoll` on a set with at least one tracked socket.
pub fn poll(set: *mut pollfd, count: nfds_t, wait: Wait, mask: *const sigset_t, own: Own) -> isize {
    if is_bypassed() {
        own.call()
    } else {
        lacking::told(poll::poll(set, count, wait, mask, own), set)
    }
}

/// `select` and `pselect` on sets with at least one tracked socket. The sets are `count` bits long; `time`: how long it waits, and where
/// the program wants to know what is left of it.
pub fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    time: (Wait, *mut timeval),
    mask: *const sigset_t,
    own: Own,
) -> isize {
    if is_bypassed() {
        own.call()
    } else {
        select::select(count, sets, time, mask, own)
    }
}

/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2` on an instance made in our sight.
pub fn epoll_wait(set: Sock, events: *mut epoll_event, room: c_int, wait: Wait, own: Own) -> isize {
    if is_bypassed() {
        // A bare call is caught before.
        flush_epoll_ctl();
        own.call()
    } else {
        lacking::told_waiting(wait::wait(set, events, room, wait, own), events)
    }
}

/// `connect`.
pub fn connect(sock: &Sock, own: Own) -> isize {
    sock.record.set(flag::CONNECTED_BY_US);
    own.call()
}

/// `shutdown`.
pub fn shutdown(sock: &Sock, how: c_int, own: Own) -> isize {
    close::shutdown(sock, how, own)
}

/// `setsockopt`.
pub fn setsockopt(
    sock: Sock,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
    own: Own,
) -> isize {
    let result = sockopt::set(&sock, level, name, value, length, own);
    deferred_ctl::doubt_room(&sock);
    result
}

/// The number is about to be closed, or replaced by `dup2`: the record is still held.
/// [`crate::fd::record::Record::holders`] of 1 says that it is the last number.
pub fn before_close(sock: Sock) {
    flush_epoll_ctl();
    if waiter::keep(&sock) {
        return;
    }
    sets::before_close(&sock);
    leave(&sock, close::before_close);
}

/// The number was closed out of our sight; it names something else by now.
pub fn vanished(sock: Sock) {
    sets::vanished(&sock);
    leave(&sock, close::vanished);
}

/// A socket's number goes, by `closes`; the last one takes it out of the directory.
fn leave(sock: &Sock, closes: impl Fn(&Sock)) {
    if sock.record.kind() != Some(Kind::Epoll) {
        let is_last = sock.record.holders.load(Relaxed) == 1;
        closes(sock);
        if is_last {
            promote::unlist(sock.record);
        }
    }
}

/// The socket is being sent by `SCM_RIGHTS`.
pub fn passed(sock: Sock) {
    if sock.record.kind() == Some(Kind::Epoll) {
        sets::estrange(&sock);
    } else {
        demote(&sock, Reason::Passed);
    }
}
