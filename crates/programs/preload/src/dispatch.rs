//! The one dispatch: which room carries out a call on a tracked number.
//!
//! # Model
//! Every function here is called by [`crate::libc`] with the program's own call in [`Own`]: to leave the answer to the
//! kernel, call that. -1 and `errno`, or the result. Nothing with a destructor may be alive across [`Own::call`].
//!
//! A young socket's call is the kernel's, and counted; it may join behind it. A joined one's is [`crate::socket`]'s, and a wait for
//! many is [`crate::ready`]'s.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use libc::{epoll_event, fd_set, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, timeval};
use windlass_channel::{Link, Reason};

use crate::fd::{
    call::{Data, Own, Sock},
    record::{Kind, flag},
    table,
};
use crate::join::promote;
use crate::options;
use crate::process::{identity, signals};
use crate::ready::{deferred_ctl::flush_epoll_ctl, lacking, poll, select, sets, wait};
use crate::socket::{
    by_kernel, close, demote::demote, errors, file_flags, in_flight, kind, message, reclaim, recv,
    send, state, waiter,
};
use crate::sys::{clock::Wait, kernel, memory};

/// The end of the channel of a socket that has joined; what is left of the join comes before its use.
#[inline(always)]
fn joined(sock: &Sock) -> Option<Link<'static>> {
    let link = state::joined(sock)?;
    if sock.record.has(flag::PENDING) {
        promote::look_again(sock, &link);
    }
    Some(link)
}

/// Whether a call sends, and its flags.
type How = (bool, c_int);

/// A call that moves bytes: on a socket that has joined, the end of its channel. On any other it is counted, and made; the socket may
/// join behind it.
#[inline(always)]
fn joined_or_call(sock: &Sock, how: How, own: Own) -> Result<Link<'static>, isize> {
    let (is_send, began) = (how.0, signals::handled());
    if is_send && kind::is_held_back(sock.record, how.1) {
        demote(sock, Reason::Cork);
    }
    // Who calls asks the broker here, if at all.
    let link = joined(sock);
    let _ = link.is_some_and(|link| reclaim::caller(sock, &link).is_some());
    if signals::was_interrupted(began) && is_asleep(sock, link, how) {
        return Err(errors::fail(libc::EINTR));
    }
    if let Some(link) = link {
        return Ok(link);
    }
    let is_young = state::is_young(sock.record) && state::is_own(sock);
    if is_young && in_flight::enter(sock, is_send) {
        let result = own.call();
        let has_joined = promote::moved(sock, how, result);
        in_flight::leave(sock, is_send, has_joined);
        return Err(result);
    }
    if is_young && let Some(link) = joined(sock) {
        return Ok(link);
    }
    let result = own.call();
    if sock.still() {
        promote::count(sock.record, how, result);
    }
    Err(result)
}

/// Whether a call would fall asleep at once. Urgent data and the queue of errors are not waited for.
#[cold]
fn is_asleep(sock: &Sock, link: Option<Link<'_>>, (is_send, flags): How) -> bool {
    let events = if is_send { libc::POLLOUT } else { libc::POLLIN };
    flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0
        && file_flags::waits(sock, flags)
        && link.is_none_or(|link| !is_send && !link.incoming().ring_ready())
        && kernel::poll_one(sock.fd, events as u32) == 0
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

/// `write`, `writev`, `send`, `sendto`; `flags` as `send`'s, 0 for the first two.
#[inline(never)]
pub fn send(sock: Sock, data: Data, flags: c_int, own: Own) -> isize {
    let link = match joined_or_call(&sock, (true, flags), own) {
        Ok(link) => link,
        Err(result) => return result,
    };
    if is_reclaimed() {
        reclaim::reclaim(&sock, &link);
    }
    if !data.name.is_null() {
        // The kernel reads it.
        return by_kernel::send_by_kernel((&sock, 0), &link, (0, |sent| sent), flags, own);
    }
    data.pieces(own, |pieces| {
        if data.is_list() && pieces.is_empty() {
            // The kernel does not ask a socket, whatever it has.
            own.call()
        } else {
            send::send(sock, link, pieces, flags, own)
        }
    })
}

/// `sendmsg`. Descriptors in its control data were reported by [`passed`] before.
pub fn send_message(sock: Sock, message: *const msghdr, flags: c_int, own: Own) -> isize {
    match joined_or_call(&sock, (true, flags), own) {
        Ok(link) => message::send(&sock, link, message, flags, own),
        Err(result) => result,
    }
}

/// `sendmmsg`: its messages are the kernel's.
pub fn send_many(sock: Sock, messages: *mut mmsghdr, flags: c_int, own: Own) -> isize {
    if kind::is_held_back(sock.record, flags) {
        demote(&sock, Reason::Cork);
    }
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
    if is_bypassed() {
        return own.call();
    }
    let link = match joined_or_call(&sock, (false, flags), own) {
        Ok(link) => link,
        Err(result) => return result,
    };
    if !into.name.is_null() && kind::of(sock.record).has_senders {
        return recv::receive_named(&sock, own);
    }
    let result = into.pieces(own, |pieces| recv::receive(sock, link, pieces, flags, own));
    let length: *mut c_int = into.name.cast_mut().cast();
    if result < 0 || length.is_null() {
        return result;
    }
    // A stream's socket reports no name.
    match memory::fetch(length) {
        Some(..0) => errors::fail(libc::EINVAL),
        Some(_) if memory::put(length, 0) => result,
        _ => errors::fail(libc::EFAULT),
    }
}

/// `recvmsg`. Descriptors that arrive are reported by [`crate::fd::table::taken`] afterwards.
pub fn recv_message(sock: Sock, message: *mut msghdr, flags: c_int, own: Own) -> isize {
    match joined_or_call(&sock, (false, flags), own) {
        Ok(link) => message::receive(&sock, link, message, flags, own),
        Err(result) => result,
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

/// `sendfile` or `splice` to the socket, which is the call's argument `at`, of at most so many bytes; `flags` as `send`'s.
pub fn send_file(sock: Sock, at: usize, (bytes, flags): (usize, c_int), own: Own) -> isize {
    match joined_or_call(&sock, (true, flags), own) {
        Ok(link) => by_kernel::send_by_kernel((&sock, at), &link, (bytes, |sent| sent), flags, own),
        Err(result) => result,
    }
}

/// Where `splice` has the descriptor that it writes to, among its arguments.
const SPLICE_TO: usize = 2;

/// `splice` out of a socket, into one, or both.
pub fn splice(from: Option<Sock>, to: Option<Sock>, given: (usize, c_int), own: Own) -> isize {
    if let Some(from) = from {
        demote(&from, Reason::Flag);
    }
    to.map_or_else(|| own.call(), |to| send_file(to, SPLICE_TO, given, own))
}

/// `poll` and `ppoll`: the program's own call where no socket of ours is in the set, or the kernel refuses the time (`None`).
pub fn poll(
    set: *mut pollfd,
    count: nfds_t,
    wait: Option<Wait>,
    mask: *const sigset_t,
    own: Own,
) -> isize {
    flush_epoll_ctl();
    match wait.filter(|_| poll::is_ours(set, count) && !is_bypassed()) {
        Some(wait) => lacking::told(poll::poll(set, count, wait, mask, own), set),
        None => own.call(),
    }
}

/// The same of `select` and `pselect`. The sets are `count` bits long; `left_at`: where the program wants to know what is left of the
/// time.
pub fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    (wait, left_at): (Option<Wait>, *mut timeval),
    mask: *const sigset_t,
    own: Own,
) -> isize {
    flush_epoll_ctl();
    match wait.filter(|_| select::is_ours(count, &sets) && !is_bypassed()) {
        Some(wait) => select::select(count, sets, (wait, left_at), mask, own),
        None => own.call(),
    }
}

/// The same of `epoll_wait`, `epoll_pwait` and `epoll_pwait2`, where the instance was not made in our sight.
pub fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    room: c_int,
    wait: Option<Wait>,
    own: Own,
) -> isize {
    match table::epoll(set).zip(wait).filter(|_| !is_bypassed()) {
        Some((instance, wait)) => {
            lacking::told_waiting(set, wait::wait(instance, events, room, wait, own), events)
        }
        None => {
            flush_epoll_ctl();
            own.call()
        }
    }
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
        flush_epoll_ctl();
        sets::estrange(&sock);
    } else {
        demote(&sock, Reason::Passed);
    }
}
