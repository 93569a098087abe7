//! What a tracked socket does.
//!
//! # Where it sits
//! ```text
//! calls (libc's names) -> engine -> straight          few bytes by the ring
//!                                -> stream, message   bytes: ring or kernel
//!                                -> poll, looks, sets, waiting   waiting for many
//!                                -> promote, inside   from the kernel to a ring
//!                                -> proof, unix        tracked TCP, Unix sockets
//!                                -> interest          epoll_ctl that the kernel need not know
//!                                -> rest, waiter, death   before a sleep; during it; after a peer's end
//!                                -> sockopt, life     options; close, fork, exec, exit
//!                                -> process           registration, slabs of pairs -> windlass-channel
//! ```
//!
//! # Model
//! Every function here is called by [`crate::calls`] with the program's own call in [`Own`]: to leave the answer to the
//! kernel, call that. -1 and `errno`, or the result. Nothing with a destructor may be alive across [`Own::call`].
//!
//! A TCP socket is *young* until it has carried enough to be worth a ring ([`promote`]); then it is *joined*, and
//! every byte of it is counted; a reason against it makes it *plain*.

mod by_kernel;
mod clock;
mod death;
mod inside;
mod interest;
mod kernel;
mod life;
mod looks;
pub mod memory;
mod message;
mod names;
mod patience;
mod poll;
mod process;
mod promote;
mod proof;
mod rest;
mod sets;
mod sockopt;
mod spin;
pub mod straight;
mod stream;
mod unix;
pub mod uring;
mod waiter;
mod waiting;

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::{epoll_event, fd_set, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, socklen_t};
use windlass_channel::{Bufs, Link, Reason, copy};

pub use kernel::Backoff;

use crate::own::{Data, Own, Sock, Store, Wait};
use crate::record::Kind;
use crate::{options, owner, signals, table};

/// Why a socket (or the whole process) stays on the kernel, as the calls tell the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// stdio works on it, or it has number 0, 1 or 2.
    Stdio,
    /// A number beyond the table names it.
    Beyond,
    /// `io_uring_setup` was called.
    IoUring,
    /// A thread has descriptors of its own (`unshare`, `clone` without `CLONE_FILES`).
    OwnDescriptors,
    /// A call that takes bytes in a way that is not followed (`preadv2` flags).
    Odd,
}

/// What the engine keeps of each record of this process. False: there is no memory for it.
pub fn make() -> bool {
    waiter::make()
}

/// The calling thread ends, and may have been cancelled in a wait.
pub fn abandon_wait() {
    waiter::abandon();
}

/// Called by the constructor.
pub fn start() {
    clock::start();
    signals::add_fixup(copy::start(), copy::end(), copy::fixup());
    process::locate();
}

/// A call that moves bytes on a socket that has not joined: counted, and made; it may join behind it.
#[inline(always)]
fn young(sock: &Sock, is_send: bool, own: Own) -> Result<isize, Link<'static>> {
    young_by(sock, is_send, own, |result| result)
}

/// The same of a call whose result is told in bytes by `bytes`.
#[inline(always)]
fn young_by(
    sock: &Sock,
    is_send: bool,
    own: Own,
    bytes: impl Fn(usize) -> usize,
) -> Result<isize, Link<'static>> {
    if !promote::is_young(sock.record) || !promote::is_own(sock.record) {
        return Ok(own.call());
    }
    if !inside::enter(sock.record, is_send) {
        return match promote::joined(sock) {
            Some(link) => Err(link),
            None => Ok(own.call()),
        };
    }
    let result = own.call();
    let has_joined = result > 0 && promote::moved(sock, is_send, bytes(result as usize));
    inside::leave(sock, is_send, has_joined);
    Ok(result)
}

/// For tests: whether this call goes straight to the kernel, as one that the library did not see.
#[inline(always)]
fn is_bypassed() -> bool {
    let (share, seed) = options::bypass();
    share != 0 && chance(share, seed)
}

/// For tests: whether unread bytes are moved into the kernel before this call.
#[inline(always)]
fn is_reclaimed() -> bool {
    let (share, seed) = options::reclaim();
    share != 0 && chance(share, seed)
}

/// True in `share` of 1,000 calls, by a generator (xorshift64*) of each thread that begins with `seed`.
#[cold]
fn chance(share: u64, seed: u64) -> bool {
    let state = &owner::thread().engine[0];
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
    let Some((list, _)) = data.fetch(&mut store) else {
        return own.call();
    };
    Bufs::vector(list).map_or_else(|| own.call(), with)
}

/// `write`, `writev`, `send`, `sendto`; `flags` as `send`'s, 0 for the first two.
#[inline(never)]
pub fn send(sock: Sock, data: Data, flags: c_int, own: Own) -> isize {
    match (promote::joined(&sock), data.single()) {
        (Some(link), Some(bytes)) if !data.named && !is_reclaimed() => {
            stream::send(sock, link, bytes, flags, own)
        }
        _ => send_otherwise(sock, data, flags, own),
    }
}

/// A send on a socket that has not joined, of several pieces, to a name, or with a reclaim before it.
#[inline(never)]
fn send_otherwise(sock: Sock, data: Data, flags: c_int, own: Own) -> isize {
    let link = match promote::joined(&sock) {
        Some(link) => link,
        None if stream::is_held_back(sock.record, flags) => {
            life::plain(&sock, Reason::Cork);
            return own.call();
        }
        None => match young(&sock, true, own) {
            Ok(result) => return result,
            Err(link) => link,
        },
    };
    if is_reclaimed() {
        stream::reclaim(&sock, &link);
    }
    if data.named && unix::is_stream(sock.record) {
        return own.call();
    }
    let by_list = data.is_list();
    pieces(&data, own, |data| {
        if by_list && data.is_empty() {
            // The kernel does not ask a socket, whatever it has.
            own.call()
        } else {
            stream::send(sock, link, data, flags, own)
        }
    })
}

/// `sendmsg`. Descriptors in its control data were reported by [`passed`] before.
pub fn send_message(sock: Sock, message: *const msghdr, flags: c_int, own: Own) -> isize {
    match promote::joined(&sock).map_or_else(|| young(&sock, true, own), Err) {
        Ok(result) => result,
        Err(link) => message::send(&sock, link, message, flags, own),
    }
}

/// `sendmmsg`.
pub fn send_many(sock: Sock, messages: *mut mmsghdr, flags: c_int, own: Own) -> isize {
    let bytes = |count| message::bytes_of(messages, count);
    match promote::joined(&sock).map_or_else(|| young_by(&sock, true, own, bytes), Err) {
        Ok(result) => result,
        Err(link) => by_kernel::send_by_kernel((&sock, 0), &link, flags, own, bytes),
    }
}

/// `read`, `readv`, `recv`, `recvfrom`.
#[inline(never)]
pub fn recv(sock: Sock, into: Data, flags: c_int, own: Own) -> isize {
    match (promote::joined(&sock), into.single()) {
        (Some(link), Some(bytes)) if into.name_length.is_null() && !is_bypassed() => {
            stream::receive(sock, link, bytes, flags, own)
        }
        _ => recv_otherwise(sock, into, flags, own),
    }
}

/// A receive on a socket that has not joined, into several pieces, with the name of the sender, or past the
/// library.
#[inline(never)]
fn recv_otherwise(sock: Sock, into: Data, flags: c_int, own: Own) -> isize {
    if is_bypassed() {
        return own.call();
    }
    let link = match promote::joined(&sock) {
        Some(link) => link,
        None => match young(&sock, false, own) {
            Ok(result) => return result,
            Err(link) => link,
        },
    };
    if !into.name_length.is_null() && unix::is_stream(sock.record) {
        return unix::receive_named(&sock, &link, own);
    }
    let result = pieces(&into, own, |into| {
        stream::receive(sock, link, into, flags, own)
    });
    if result >= 0 && !into.name_length.is_null() {
        memory::put(into.name_length, 0);
    }
    result
}

/// `recvmsg`. Descriptors that arrive are reported by [`taken`] afterwards.
pub fn recv_message(sock: Sock, message: *mut msghdr, flags: c_int, own: Own) -> isize {
    match promote::joined(&sock).map_or_else(|| young(&sock, false, own), Err) {
        Ok(result) => result,
        Err(link) => message::receive(&sock, link, message, flags, own),
    }
}

/// `recvmmsg`: the kernel alone knows when its time is over, so what the socket receives stays there.
pub fn recv_many(sock: Sock, messages: *mut mmsghdr, own: Own) -> isize {
    let bytes = |count| message::bytes_of(messages, count);
    match promote::joined(&sock).map_or_else(|| young_by(&sock, false, own, bytes), Err) {
        Ok(result) => result,
        Err(link) => stream::receive_oddly(&sock, &link, own),
    }
}

/// `sendfile` or `splice` to the socket, which is the call's argument `at`.
pub fn send_file(sock: Sock, at: usize, own: Own) -> isize {
    match promote::joined(&sock).map_or_else(|| young(&sock, true, own), Err) {
        Ok(result) => result,
        Err(link) => by_kernel::send_by_kernel((&sock, at), &link, 0, own, |bytes| bytes),
    }
}

/// Where `splice` has the descriptor that it writes to, among its arguments.
const SPLICE_TO: usize = 2;

/// `splice` out of a socket, into one, or both.
pub fn splice(from: Option<Sock>, to: Option<Sock>, own: Own) -> isize {
    if let Some(from) = from {
        life::spliced(&from);
    }
    to.map_or_else(|| own.call(), |to| send_file(to, SPLICE_TO, own))
}

/// `poll` and `ppoll` on a set with at least one tracked socket.
pub fn poll(set: *mut pollfd, count: nfds_t, wait: Wait, mask: *const sigset_t, own: Own) -> isize {
    if is_bypassed() {
        own.call()
    } else {
        unix::told(poll::poll(set, count, wait, mask, own), set)
    }
}

/// `select` and `pselect` on sets with at least one tracked socket. The sets are `count` bits long.
pub fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    wait: Wait,
    _mask: *const c_void,
    own: Own,
) -> isize {
    if is_bypassed() {
        own.call()
    } else {
        poll::select(count, sets, wait, own)
    }
}

/// `epoll_ctl` on an instance made in our sight; `fd` may be anything.
pub fn epoll_ctl(
    set: Sock,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
    own: Own,
) -> isize {
    sets::control(set, operation, fd, event, own)
}

/// `epoll_ctl` has added this number to an instance that is not known: nobody sees who sleeps there.
#[cold]
pub fn waited_for_unseen(fd: c_int) {
    if let Some(sock) = table::known(fd) {
        life::plain(&sock, Reason::Asleep);
    }
}

/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2` on an instance made in our sight.
pub fn epoll_wait(
    set: Sock,
    events: *mut epoll_event,
    room: c_int,
    wait: Wait,
    mask: *const sigset_t,
    own: Own,
) -> isize {
    if is_bypassed() {
        // A bare call is caught before.
        interest::settle_all();
        own.call()
    } else {
        unix::told_waiting(waiting::wait(set, events, room, wait, mask, own), events)
    }
}

/// `connect`.
pub fn connect(own: Own) -> isize {
    looks::doubt();
    own.call()
}

/// `shutdown`.
pub fn shutdown(sock: Sock, how: c_int, own: Own) -> isize {
    looks::doubt();
    life::shutdown(&sock, how, own)
}

/// Before `getpeername`: a connection that its peer's death has reset has no peer any more.
pub fn notice_deaths() {
    death::notice();
}

/// `getsockopt`.
pub fn getsockopt(sock: Sock, level: c_int, name: c_int, value: *mut c_void, own: Own) -> isize {
    sockopt::get(&sock, level, name, value, own)
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
    looks::doubt();
    sockopt::set(&sock, level, name, value, length, own)
}

/// `ioctl`.
pub fn ioctl(sock: Sock, request: c_ulong, argument: usize, own: Own) -> isize {
    sockopt::ioctl(&sock, request, argument, own)
}

/// `fcntl`, but for the commands that make a descriptor.
pub fn fcntl(sock: Sock, command: c_int, argument: usize, own: Own) -> isize {
    sockopt::fcntl(&sock, command, argument, own)
}

/// The number is about to be closed, or replaced by `dup2`: the record is still held.
/// [`crate::record::Record::holders`] of 1 says that it is the last number.
pub fn before_close(sock: Sock) {
    looks::doubt();
    if waiter::keep(&sock) {
        settle();
    } else {
        life::before_close(&sock);
    }
}

/// The number has left the table.
pub fn closed(sock: Sock) {
    waiter::closed(sock.index());
}

/// A private number has left the table.
pub fn private_released() {
    waiter::released();
}

/// The number was closed out of our sight; it names something else by now.
pub fn vanished(sock: Sock) {
    life::vanished(&sock);
}

/// The socket came in by `SCM_RIGHTS` and is new to this family of processes.
pub fn taken(sock: Sock) {
    // Whoever sent it may go on writing to it, uncounted.
    life::leaked(&sock, Reason::Passed);
}

/// The socket is being sent by `SCM_RIGHTS` through `by` (`None`: through a socket that we do not know).
pub fn passed(sock: Sock, _by: Option<Sock>) {
    if sock.record.kind() == Some(Kind::Epoll) {
        sets::estrange(&sock);
    } else {
        life::leaked(&sock, Reason::Passed);
    }
}

/// The socket must stay on the kernel from now on.
pub fn plain(sock: Sock, why: Why) {
    life::plain(&sock, life::reason(why));
}

/// Whatever follows may show the kernel's view of an epoll instance to somebody: it is brought up to date.
#[inline(always)]
pub fn settle() {
    interest::settle_all();
}

/// The whole process must.
pub fn plain_process(why: Why) {
    process::forbid(life::reason(why));
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        life::plain(&sock, life::reason(why));
    }
}

/// The process is about to enter a seccomp filter, which may forbid every call but those of the program: no call on any
/// socket comes here again.
pub fn before_seccomp() {
    process::forbid(Reason::Seccomp);
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        life::leaked(&sock, Reason::Seccomp);
    }
}

/// The process is about to execute a file, or a child with its descriptors is (`is_spawned`). Called in the child of a `vfork`
/// too: memory is the parent's then.
pub fn before_exec(is_spawned: bool) {
    life::before_exec(is_spawned);
}

/// After a fork, in the child; this process is not registered.
pub fn after_fork_child() {
    life::forked(owner::parent_slot());
}

/// The process ends by `exit`, `_exit` or `quick_exit`. Other threads may still run.
pub fn before_exit() {
    life::before_exit();
}
