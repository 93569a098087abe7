//! Bytes of a joined socket: ring or kernel, and how a call waits.
//!
//! # Life of a byte
//! [`send`] and [`receive`] make one attempt after another on the channel, each under its lock and with signals put off.
//! Between attempts, unlocked, a blocking call waits: it spins for as long as the user allows, then sleeps in the
//! kernel, in the program's own call, on the real descriptor.
//!
//! # Synchronization
//! What the first attempt needs is kept in registers: cold functions take and give values, no addresses. A value in
//! memory is loaded by other pieces than it was stored by, and such a load waits until all stores before it have left
//! the processor; among them are those of the call before, to lines that the other end's core holds.
//!
//! Nothing with a destructor lives across a real call that may block: libc ends a cancelled thread by unwinding through
//! it. A thread that is cancelled asleep leaves the channel's count of sleepers raised: the direction then stays on
//! the kernel, which is slow and right.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use windlass_channel::{
    Bufs, End, Fd, Link, Moved, Reason, Reclaimed, RecvHow, Sent, Socket, Took, WhenFull, Who,
};

use crate::counts::counters::{self, Counter};
use crate::fd::{
    call::{Own, Sock},
    record::{Kind, Record},
};
use crate::join::promote;
use crate::process::{identity, registration, signals};
use crate::socket::{
    by_kernel::{self, LARGE, send_by_kernel},
    close,
    fast_path::{count_received, count_sent, is_end_due},
    lock_backoff::Patience,
    peer_death::{self, RESET},
    proof, sleep, unix,
    waiter::{self, Waiter},
};
use crate::sys::{
    clock,
    kernel::{self, Backoff},
    real,
};

pub use crate::socket::spin::spin;

/// The descriptor is non-blocking, as far as we have seen.
pub const NONBLOCK: u32 = promote::NEXT;
/// `NONBLOCK` is known.
pub const FLAGS_KNOWN: u32 = promote::NEXT << 1;

/// A reclaim met an error, which the next call has to report: it is in `ERROR`.
const FAILED: u32 = promote::NEXT << 2;
/// Place in [`crate::fd::record::Record::engine`] of that error.
const ERROR: usize = 5;
/// Places in [`crate::fd::record::Record::engine`]: what was last seen of [`KERNEL_NEWS`] and how many receives found nothing
/// since the last look; when that was.
const SEEN: usize = 3;
const LOOKED_AT: usize = 4;
/// Receives without a look at the kernel, at most.
const LOOK_CALLS: u64 = 32;
/// Time without a look at the kernel while receives find nothing, at most.
const LOOK_US: u32 = 50;
/// How often a sender asks the kernel whether the peer is still there.
const END_US: u32 = 1_000;
/// How long unread bytes may stay in the ring of a process that sleeps, in milliseconds.
pub const REST_MS: i32 = 10;
/// How long a blocking sender waits for room in the ring before the kernel has to take the rest.
const SPACE_NS: u64 = 10_000_000;
/// Flags of a send and a receive that we do ourselves.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR | libc::MSG_CONFIRM;
pub const RECEIVE_FLAGS: i32 = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_WAITALL
    | libc::MSG_CMSG_CLOEXEC;

/// Grows whenever a wait of this process saw the kernel report something: then a socket that finds nothing asks it.
pub static KERNEL_NEWS: AtomicU32 = AtomicU32::new(1);

/// Whether a call without `MSG_DONTWAIT` waits. What an unaccelerated sharer sets is not seen: then a call spins that
/// should not, and the kernel answers.
#[inline(always)]
pub fn is_nonblocking(sock: &Sock) -> bool {
    if !sock.record.has(FLAGS_KNOWN) {
        learn_flags(&{ *sock });
    }
    sock.record.has(NONBLOCK)
}

/// The program has changed the descriptor's status flags: the next call that wants them asks the kernel. A socket that never joins
/// never does.
#[inline]
pub fn forget_flags(sock: &Sock) {
    if sock.record.has(FLAGS_KNOWN) {
        sock.record.flags.fetch_and(!FLAGS_KNOWN, Relaxed);
    }
}

/// Asks the kernel for the descriptor's status flags.
#[cold]
fn learn_flags(sock: &Sock) {
    let Ok(flags) = kernel::file_flags(sock.fd) else {
        return;
    };
    if flags & libc::O_NONBLOCK as usize != 0 {
        sock.record.set(NONBLOCK | FLAGS_KNOWN);
    } else {
        sock.record.flags.fetch_and(!NONBLOCK, Relaxed);
        sock.record.set(FLAGS_KNOWN);
    }
}

/// -1 and `errno`.
#[cold]
pub fn fail(error: i32) -> isize {
    real::set_errno(error);
    -1
}

/// Sends on a joined socket; flags as `send`'s.
#[inline(always)]
pub fn send(sock: Sock, link: Link<'static>, data: Bufs<'_>, flags: i32, own: Own) -> isize {
    let is_odd = data.is_empty() || data.len() >= LARGE || flags & !SEND_FLAGS != 0;
    let is_due = promote::place(&sock).is_none_or(|place| is_end_due(sock.record, place));
    match registration::who() {
        Some(who) if is_settled(sock.record) && !is_odd && !is_due => {
            first_send(sock, link, who, data, flags)
        }
        _ => send_carefully(sock, link, data, flags, own),
    }
}

/// Whether nothing has to be done before a send but for what [`is_end_due`] says. Each one on a tracked connection looks at the
/// clock ([`proof::refresh`]), also one that answers the peer.
#[inline(always)]
pub fn is_settled(record: &Record) -> bool {
    let bits = record.flags.load(Relaxed);
    let odd = promote::PENDING | promote::TRACKED | FAILED | RESET;
    bits & (odd | FLAGS_KNOWN) == FLAGS_KNOWN
}

/// Ends a send by the ring whose receiver fell asleep; inside a locked section, which it leaves. Takes no addresses: what is in
/// registers stays there for all other calls.
#[cold]
#[inline(never)]
pub fn end_asleep(
    fd: i32,
    word: u64,
    record: &'static Record,
    link: Link<'static>,
    (from, bytes): (*const u8, usize),
    flags: i32,
) -> isize {
    let sock = Sock { fd, word, record };
    let Some(who) = registration::who() else {
        // The caller had a slot for the push.
        signals::leave();
        return bytes as isize;
    };
    let fd = promote::descriptor(&sock);
    let sent = link.outgoing().look_after_sleeper(who, &fd, bytes);
    signals::leave();
    let waits = waits(&sock, flags);
    let call = Sending {
        sock,
        link,
        who,
        flags,
        waits,
    };
    end_send(call, Bufs::out(from, bytes), sent)
}

/// What has to be done before some sends.
#[cold]
#[inline(never)]
fn send_carefully(sock: Sock, link: Link<'static>, data: Bufs<'_>, flags: i32, own: Own) -> isize {
    let Some(who) = caller(&sock, &link) else {
        return own.call();
    };
    if !look_for_end(&sock, &link) {
        return own.call();
    }
    let is_odd = sock.record.has(promote::PENDING | FAILED | RESET);
    if is_odd && let Some(error) = before_call(&sock, &link) {
        return broken_pipe(error, flags);
    }
    if data.is_empty() {
        return own.call();
    }
    if is_held_back(sock.record, flags) {
        close::plain(&sock, Reason::Cork);
        return send_by_kernel((&sock, 0), &link, flags, own, |bytes| bytes);
    }
    if flags & !SEND_FLAGS != 0 {
        // An urgent byte is sent, and may never be read as one of the stream: counts say nothing from here on.
        link.outgoing().set_wild();
    }
    if data.len() >= LARGE && by_kernel::is_for_kernel(sock.record, &link) {
        return send_by_kernel((&sock, 0), &link, flags, own, |bytes| bytes);
    }
    if is_odd && let Some(sent) = proof::send(&sock, &link, who, &data, way(flags)) {
        let call = Sending {
            sock,
            link,
            who,
            flags,
            waits: waits(&sock, flags),
        };
        return end_send(call, data, sent);
    }
    first_send(sock, link, who, data, flags)
}

/// Whether a send asks the kernel to keep its bytes until more come: then nothing after them may overtake them by the ring.
/// Unix sockets do not.
#[inline(always)]
pub fn is_held_back(record: &Record, flags: i32) -> bool {
    flags & libc::MSG_MORE != 0 && record.kind() == Some(Kind::Tcp)
}

/// Whether a send may wait.
#[inline(always)]
pub fn waits(sock: &Sock, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(sock)
}

/// The flags of a real send: the ring keeps no segments apart, so nothing is gained by holding bytes back for more; and no
/// signal while locked.
#[inline(always)]
fn way(flags: i32) -> i32 {
    flags & !libc::MSG_MORE | libc::MSG_NOSIGNAL
}

/// The first attempt, which most often is the only one.
#[inline(always)]
fn first_send(
    sock: Sock,
    link: Link<'static>,
    who: Who<'static>,
    data: Bufs<'_>,
    flags: i32,
) -> isize {
    let waits = waits(&sock, flags);
    let full = when_full(waits);
    signals::enter();
    let fd = promote::descriptor(&sock);
    let sent = link.outgoing().send(who, &fd, &data, way(flags), full);
    signals::leave();
    let call = Sending {
        sock,
        link,
        who,
        flags,
        waits,
    };
    end_send(call, data, sent)
}

/// What follows the first attempt.
#[inline(always)]
fn end_send(call: Sending, data: Bufs<'_>, sent: Sent) -> isize {
    match sent {
        Sent::Bytes(moved) if moved.total() == data.len() => {
            count_sent(&call.sock, moved);
            if data.len() >= LARGE {
                by_kernel::kept_up(call.sock.record);
            }
            moved.total() as isize
        }
        sent => send_more(call, data, sent),
    }
}

/// The error of a send, with the signal that goes with `EPIPE`.
#[cold]
pub fn broken_pipe(error: i32, flags: i32) -> isize {
    if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        kernel::raise(libc::SIGPIPE);
    }
    fail(error)
}

/// What has to be done before a call: the rest of the join; and an error that a reclaim met is the call's.
#[cold]
pub fn before_call(sock: &Sock, link: &Link<'static>) -> Option<i32> {
    if sock.record.has(promote::PENDING) {
        promote::look_again(sock, link);
    }
    if unix::is_stream(sock.record) {
        // The kernel's send says that nobody reads any more, and leaves the reset to a receive.
        return None;
    }
    take_error(sock).or_else(|| peer_death::take_reset(sock))
}

/// What has to be done before a call, where anything has.
pub fn due(sock: &Sock, link: &Link<'static>) -> Option<i32> {
    let is_odd = sock.record.has(promote::PENDING | FAILED | RESET);
    is_odd.then(|| before_call(sock, link)).flatten()
}

/// Whether an error waits for a call that reports it.
pub fn has_error(sock: &Sock) -> bool {
    sock.record.has(FAILED)
}

/// An error that the next call has to report.
pub fn fail_later(sock: &Sock, error: i32) {
    sock.record.engine[ERROR].store(error as u64, Relaxed);
    sock.record.set(FAILED);
}

/// The error that a reclaim met, once.
pub fn take_error(sock: &Sock) -> Option<i32> {
    if !sock.record.has(FAILED) {
        return None;
    }
    sock.record.flags.fetch_and(!FAILED, Relaxed);
    match sock.record.engine[ERROR].swap(0, Relaxed) {
        0 => None,
        error => Some(error as i32),
    }
}

/// Whether the peer has gone: its process has ended, or, asked now and then, the kernel says so. Then what is sent is the
/// kernel's matter. False: the number is another file's, as was asked then, too.
pub fn look_for_end(sock: &Sock, link: &Link<'static>) -> bool {
    let Some(place) = promote::place(sock) else {
        return true;
    };
    if !registration::at(place).is_peer_alive() {
        peer_death::bury_all(sock, link);
        return true;
    }
    let (now, asked_at) = (clock::now(), &sock.record.engine[LOOKED_AT]);
    if now.wrapping_sub(asked_at.load(Relaxed)) > clock::cycles(END_US) {
        asked_at.store(now, Relaxed);
        if !waiter::verify(sock) {
            return false;
        }
        ask_for_end(sock, link);
    }
    true
}

fn ask_for_end(sock: &Sock, link: &Link<'static>) {
    if kernel::poll_one(sock.fd, libc::POLLRDHUP as u32) != 0 {
        link.outgoing().plain(Reason::Closing);
    }
    proof::refresh(sock, link);
}

/// One call that sends.
struct Sending {
    sock: Sock,
    link: Link<'static>,
    who: Who<'static>,
    flags: i32,
    waits: bool,
}

/// What a send does first where the ring is full.
#[inline(always)]
const fn when_full(waits: bool) -> WhenFull {
    if waits {
        WhenFull::Say
    } else {
        WhenFull::Kernel
    }
}

/// Goes on after a first attempt that did not end the call.
#[cold]
#[inline(never)]
fn send_more(call: Sending, data: Bufs<'_>, sent: Sent) -> isize {
    let mut waiter = Waiter::new(call.sock);
    let result = send_on(&mut waiter, &call, data, sent);
    waiter.end();
    result
}

fn send_on(waiter: &mut Waiter, call: &Sending, mut rest: Bufs<'_>, mut sent: Sent) -> isize {
    let Sending {
        link,
        who,
        flags,
        waits,
        ..
    } = *call;
    let is_large = rest.len() >= LARGE;
    let mut done = 0_usize;
    let mut patience = Patience::new();
    let mut full = when_full(waits);
    loop {
        let error = match sent {
            Sent::Bytes(moved) => {
                count_sent(waiter.sock(), moved);
                done += moved.total();
                rest.advance(moved.total());
                full = when_full(waits);
                if rest.is_empty() {
                    return done as isize;
                }
                if is_large && !waits {
                    by_kernel::lagged(waiter.sock().record);
                }
                0
            }
            Sent::RingFull => {
                if !wait_for_space(waiter, &link, is_large) {
                    full = WhenFull::Kernel;
                }
                if waiter.follow() { 0 } else { libc::EBADF }
            }
            Sent::KernelFull if !waits => libc::EAGAIN,
            Sent::KernelFull => waiter.wait_for(libc::POLLOUT, libc::SO_SNDTIMEO),
            Sent::Busy => waiter.wait_for_lock(&mut patience, waits, libc::SO_SNDTIMEO),
            Sent::Error(error) => error,
            Sent::Broken => libc::ECONNRESET,
        };
        if error != 0 && done > 0 {
            return done as isize;
        }
        if error == libc::EBADF && waiter.is_replaced() {
            let (from, bytes) = rest.piece();
            // SAFETY: the program's own memory, which the kernel checks, to what its number names.
            return unsafe { real::send(call.sock.fd, from.cast(), bytes, flags) };
        }
        if error != 0 {
            return broken_pipe(error, flags);
        }
        let sock = waiter.sock();
        if peer_death::is_peers(sock) {
            peer_death::bury_all(sock, &link);
            if sock.record.has(FAILED | RESET) && done > 0 {
                return done as isize;
            }
            if let Some(error) = before_call(sock, &link) {
                return broken_pipe(error, flags);
            }
        }
        let fd = promote::descriptor(sock);
        signals::enter();
        sent = link.outgoing().send(who, &fd, &rest, way(flags), full);
        signals::leave();
    }
}

/// Waits for room in the ring: spins, then sleeps for a while, which is a lag of a large write. False: there is none.
fn wait_for_space(waiter: &mut Waiter, link: &Link<'static>, is_large: bool) -> bool {
    let out = link.outgoing();
    let is_over = || {
        let is_over = !out.is_full() || !waiter.sock().still();
        if !is_over {
            out.pause();
        }
        is_over
    };
    if spin(is_over) {
        return true;
    }
    if is_large {
        by_kernel::lagged(waiter.sock().record);
    }
    if waiter.begin() {
        out.wait_for_space(SPACE_NS);
    }
    !out.is_full()
}

/// The calling thread, for the locks of a joined socket; none: the call is the kernel's.
#[inline(always)]
pub fn caller(sock: &Sock, link: &Link<'static>) -> Option<Who<'static>> {
    registration::who_of(identity::owner().or_else(|| orphan(*sock, *link))?)
}

/// Receives on a joined socket; flags as `recv`'s.
#[inline(always)]
pub fn receive(sock: Sock, link: Link<'static>, into: Bufs<'_>, flags: i32, own: Own) -> isize {
    let mut through = promote::descriptor(&sock);
    let is_odd = into.is_empty() || flags & !RECEIVE_FLAGS != 0;
    match registration::who() {
        Some(who) if !is_odd && !sock.record.has(promote::PENDING) => {
            first_receive(sock, link, who, into, flags, own, &mut through)
        }
        _ => receive_through(sock, link, into, flags, own, &mut through),
    }
}

/// The same, with the socket that takes what is in the kernel, and with what has to be done before some receives.
#[cold]
#[inline(never)]
pub fn receive_through<S: Numbered>(
    sock: Sock,
    link: Link<'static>,
    into: Bufs<'_>,
    flags: i32,
    own: Own,
    through: &mut S,
) -> isize {
    let Some(who) = caller(&sock, &link) else {
        return own.call();
    };
    if sock.record.has(promote::PENDING) {
        promote::look_again(&sock, &link);
    }
    if into.is_empty() {
        // The kernel says EAGAIN to one who asks for nothing while it has nothing.
        return if link.incoming().ring_ready() {
            0
        } else {
            peer_death::receive_nothing(&sock, &link, own)
        };
    }
    if flags & !RECEIVE_FLAGS != 0 {
        return receive_oddly(&sock, &link, own);
    }
    first_receive(sock, link, who, into, flags, own, through)
}

/// The first attempt, which most often is the only one.
#[inline(always)]
fn first_receive<S: Numbered>(
    sock: Sock,
    link: Link<'static>,
    who: Who<'static>,
    into: Bufs<'_>,
    flags: i32,
    own: Own,
    through: &mut S,
) -> isize {
    let how = RecvHow {
        peek: flags & libc::MSG_PEEK != 0,
        discard: flags & libc::MSG_TRUNC != 0,
        look: false,
    };
    signals::enter();
    let took = link.incoming().recv(who, &*through, &into, 0, how);
    signals::leave();
    match took {
        Took::Bytes(moved) if moved.total() == into.len() || flags & libc::MSG_WAITALL == 0 => {
            count_received(&sock, moved, how);
            moved.total() as isize
        }
        took => {
            let waits = flags & libc::MSG_DONTWAIT == 0 && !is_nonblocking(&sock);
            let call = Receiving {
                waiter: Waiter::new(sock),
                link,
                who,
                how,
                waits,
                all: flags & libc::MSG_WAITALL != 0,
                own,
                through,
            };
            receive_more(call, into, took)
        }
    }
}

/// The socket through which a call takes the kernel's bytes, by its number.
pub trait Numbered: Socket {
    /// It has another number.
    fn renumber(&mut self, sock: &Sock);
}

impl Numbered for Fd {
    fn renumber(&mut self, sock: &Sock) {
        *self = promote::descriptor(sock);
    }
}

/// One call that receives.
struct Receiving<'a, S> {
    waiter: Waiter,
    link: Link<'static>,
    who: Who<'static>,
    how: RecvHow,
    waits: bool,
    /// `MSG_WAITALL`.
    all: bool,
    own: Own,
    /// What takes the kernel's bytes.
    through: &'a mut S,
}

/// What follows one attempt.
pub enum Next {
    Return(isize),
    Again,
    Sleep,
}

/// How far a call that receives is.
struct Received<'a> {
    rest: Bufs<'a>,
    done: usize,
    has_looked: bool,
    patience: Patience,
}

/// Goes on after a first attempt that did not end the call.
#[cold]
#[inline(never)]
fn receive_more<S: Numbered>(mut call: Receiving<'_, S>, rest: Bufs<'_>, took: Took) -> isize {
    let result = receive_on(&mut call, rest, took);
    call.waiter.end();
    result
}

fn receive_on<S: Numbered>(call: &mut Receiving<'_, S>, rest: Bufs<'_>, mut took: Took) -> isize {
    let mut so_far = Received {
        rest,
        done: 0,
        has_looked: false,
        patience: Patience::new(),
    };
    loop {
        match judge(call, &mut so_far, took) {
            Next::Return(result) => return result,
            Next::Sleep => {
                if let Some(ended) = wait_for_bytes(call, &mut so_far) {
                    return ended;
                }
            }
            Next::Again => {}
        }
        let how = RecvHow {
            look: so_far.has_looked,
            ..call.how
        };
        call.through.renumber(call.waiter.sock());
        signals::enter();
        took = call
            .link
            .incoming()
            .recv(call.who, &*call.through, &so_far.rest, 0, how);
        signals::leave();
    }
}

/// What follows one attempt.
fn judge<S: Numbered>(call: &mut Receiving<'_, S>, so_far: &mut Received<'_>, took: Took) -> Next {
    let Receiving {
        link,
        how,
        waits,
        all,
        ..
    } = *call;
    let sock = &{ *call.waiter.sock() };
    let done = so_far.done;
    match took {
        Took::Bytes(moved) => {
            count_received(sock, moved, how);
            so_far.done += moved.total();
            so_far.rest.advance(moved.total());
            if so_far.rest.is_empty() || !all || how.peek || call.through.ends_call() {
                Next::Return(so_far.done as isize)
            } else {
                Next::Again
            }
        }
        Took::Failing(moved, error) => {
            fail_later(sock, peer_death::named(sock, error));
            count_received(sock, moved, how);
            Next::Return((done + moved.total()) as isize)
        }
        Took::Empty | Took::Pending if sock.record.has(FAILED) => {
            take_error(sock).map_or(Next::Again, |error| failed(done, error))
        }
        Took::Empty | Took::Pending if !waits => find_nothing(call, so_far),
        // Only the first sleep is in the program's own call, which control data may come with.
        Took::Empty if done == 0 || !call.through.carries_more() => Next::Sleep,
        Took::Empty | Took::Pending => match sleep::wait_for_pending(&mut call.waiter, &link) {
            0 => {
                // What has woken it may be the end, which only the kernel tells.
                so_far.has_looked = true;
                Next::Again
            }
            error => stopped(call, done, error),
        },
        Took::Eof => ended(sock, &link, done),
        Took::Error(error) => {
            if error != libc::EFAULT {
                link.outgoing().plain(Reason::Closing);
            }
            failed(done, peer_death::named(sock, error))
        }
        Took::Broken => failed(done, libc::ECONNRESET),
        Took::Busy => {
            let patience = &mut so_far.patience;
            match call
                .waiter
                .wait_for_lock(patience, waits, libc::SO_RCVTIMEO)
            {
                0 => Next::Again,
                error => stopped(call, done, error),
            }
        }
    }
}

/// A call that does not wait finds nothing: it looks at the kernel once, if that is due, and at its number.
fn find_nothing<S>(call: &Receiving<'_, S>, so_far: &mut Received<'_>) -> Next {
    let sock = call.waiter.sock();
    if so_far.has_looked || !(is_look_due(sock) || is_ending(sock, &call.link)) {
        return failed(so_far.done, libc::EAGAIN);
    }
    so_far.has_looked = true;
    if waiter::verify(sock) {
        Next::Again
    } else {
        Next::Return(call.own.call())
    }
}

/// The number is not the socket's any more: the call has what it has, or is another file's.
#[cold]
fn gone<S>(call: &Receiving<'_, S>, done: usize) -> isize {
    if done > 0 {
        done as isize
    } else if call.waiter.is_replaced() {
        call.own.call()
    } else {
        fail(libc::EBADF)
    }
}

/// A wait has ended with an error.
#[cold]
fn stopped<S>(call: &Receiving<'_, S>, done: usize, error: i32) -> Next {
    if error == libc::EBADF {
        Next::Return(gone(call, done))
    } else {
        failed(done, error)
    }
}

/// Waits for bytes: spins, then sleeps in the kernel. The call's result if that ends it.
fn wait_for_bytes<S: Numbered>(
    call: &mut Receiving<'_, S>,
    so_far: &mut Received<'_>,
) -> Option<isize> {
    let link = call.link;
    match sleep::fall_asleep(&mut call.waiter, &link) {
        sleep::Wait::Ready => return None,
        sleep::Wait::Waited(error) => {
            so_far.has_looked = true;
            return match (error, so_far.done) {
                (0, _) => None,
                (error, 0) => Some(fail(error)),
                (_, done) => Some(done as isize),
            };
        }
        sleep::Wait::Gone => return Some(gone(call, so_far.done)),
        sleep::Wait::Asleep => {}
    }
    let result = sleep(call, so_far);
    if !call.waiter.follow() {
        // The channel is nobody's, or another socket's: what came is the call's.
        return Some(match (result, so_far.done) {
            (_, 0) => result,
            (result, done) => result.max(0) + done as isize,
        });
    }
    signals::enter();
    link.incoming().woke(if call.how.peek {
        0
    } else {
        usize::try_from(result).unwrap_or(0)
    });
    signals::leave();
    awoke(call, so_far, result)
}

/// The end of the stream; an error that a reclaim met comes first, and a peer that was killed with unread bytes in its ring is
/// a reset, as it would have been with unread bytes in the kernel.
#[cold]
pub fn ended(sock: &Sock, link: &Link<'static>, done: usize) -> Next {
    // What is sent from now on is the kernel's matter.
    link.outgoing().plain(Reason::Closing);
    if done > 0 {
        return Next::Return(done as isize);
    }
    if peer_death::is_peers(sock) {
        peer_death::bury_all(sock, link);
    }
    unix::note_reset(sock, link);
    let error = take_error(sock).or_else(|| peer_death::take_reset(sock));
    error.map_or(Next::Return(0), |error| failed(0, error))
}

#[cold]
fn failed(done: usize, error: i32) -> Next {
    Next::Return(if done > 0 { done as isize } else { fail(error) })
}

/// The real call, in which the thread sleeps: the program's own while nothing has been received yet.
fn sleep<S>(call: &Receiving<'_, S>, so_far: &Received<'_>) -> isize {
    let fd = call.waiter.sock().fd;
    if so_far.done == 0 {
        return call.own.with(0, fd as usize).call();
    }
    let (at, length) = so_far.rest.piece();
    let flags = libc::MSG_WAITALL | if call.how.discard { libc::MSG_TRUNC } else { 0 };
    // SAFETY: the program's own buffer, which the kernel checks.
    unsafe { real::recv(fd, at.cast(), length, flags) }
}

/// What a real call's result means: the end of the call, or that it goes on.
fn awoke<S: Numbered>(
    call: &mut Receiving<'_, S>,
    so_far: &mut Received<'_>,
    result: isize,
) -> Option<isize> {
    let Receiving {
        link,
        who,
        how,
        all,
        ..
    } = *call;
    let sock = &{ *call.waiter.sock() };
    let done = so_far.done;
    if result > 0 {
        count_received(
            sock,
            Moved {
                ring: 0,
                kernel: result as usize,
            },
            how,
        );
        // A real call that is to wait for all comes back with less only after a signal, or at the end. Only the first of
        // several pieces was asked for where something had been received before.
        let (_, piece) = so_far.rest.piece();
        let goes_on = all && done > 0 && result as usize == piece && piece < so_far.rest.len();
        so_far.done += result as usize;
        so_far.rest.advance(result as usize);
        return (!goes_on).then_some(so_far.done as isize);
    }
    let error = real::errno();
    let end = match (result, error) {
        (0, _) => End::Eof,
        (_, libc::EAGAIN | libc::EINTR | libc::EFAULT | libc::EBADF) => {
            return Some(if done > 0 { done as isize } else { fail(error) });
        }
        _ => End::Error(error),
    };
    signals::enter();
    let fd = promote::descriptor(sock);
    let last = link.incoming().recv_last(who, &fd, &so_far.rest, how, end);
    signals::leave();
    if let (Took::Busy, End::Error(error)) = (last, end) {
        // Another thread is inside. The kernel will only tell the end again.
        fail_later(sock, peer_death::named(sock, error));
    }
    so_far.has_looked = true;
    match judge(call, so_far, last) {
        Next::Return(result) => Some(result),
        Next::Again | Next::Sleep => None,
    }
}

/// Whether a receive that found nothing has to ask the kernel: for the end of the stream, errors, and writers that do not
/// count.
pub fn is_look_due(sock: &Sock) -> bool {
    let [seen, at] =
        [SEEN, LOOKED_AT].map(|place: usize| -> &AtomicU64 { &sock.record.engine[place] });
    let news = u64::from(KERNEL_NEWS.load(Acquire)) << 32;
    let word = seen.load(Relaxed);
    let now = clock::now();
    let is_due = word >> 32 != news >> 32
        || word & 0xffff_ffff >= LOOK_CALLS
        || now.wrapping_sub(at.load(Relaxed)) > clock::cycles(LOOK_US);
    if is_due {
        seen.store(news, Relaxed);
        at.store(now, Relaxed);
        counters::add(Counter::KernelLooks, 1);
    } else {
        seen.store(word + 1, Relaxed);
    }
    is_due
}

/// Whether the other end has said that nothing more comes, or has died: then the kernel is asked at each receive.
pub fn is_ending(sock: &Sock, link: &Link<'static>) -> bool {
    link.incoming().reason() != Reason::None
        || link.info(link.side().other()).join == LEFT
        || sock.record.has(RESET)
        || peer_death::is_peers(sock)
}

/// A receive with flags that only the kernel understands: urgent data, the queue of errors.
#[cold]
pub fn receive_oddly(sock: &Sock, link: &Link<'static>, own: Own) -> isize {
    drain(sock, link, Reason::Flag);
    let result = own.call();
    if result < 0 {
        real::set_errno(peer_death::named(sock, real::errno()));
    }
    result
}

/// Has the peer's unread bytes moved into the kernel, for good: a reader that does not look at the ring comes.
#[cold]
pub fn drain(sock: &Sock, link: &Link<'static>, reason: Reason) {
    let inc = link.incoming();
    inc.plain(reason);
    if inc.queued() != 0 {
        // Where the broker may not help, the peer does it at its next call. It hears those that it knows.
        let _ = registration::word_or_register(sock.fd);
        let _ = registration::CLIENT.rescue(
            sock.record.slab.load(Relaxed),
            link.index(),
            link.side().other() as u8,
        );
    }
}

/// Moves this end's unread bytes into the kernel, waiting for a busy reader; what is left when the kernel is full.
#[cold]
pub fn reclaim(sock: &Sock, link: &Link<'static>) -> Option<Reclaimed> {
    if link.info(link.side().other()).join == LEFT {
        // Nobody will read them; the kernel has said so to this end when the peer closed.
        return Some(Reclaimed::Empty);
    }
    if peer_death::events(sock) & (libc::EPOLLERR | libc::EPOLLHUP) != 0 {
        // The connection is over: a send would take the error that another call has to tell.
        return Some(Reclaimed::Empty);
    }
    reclaim_as(caller(sock, link)?, sock, link)
}

fn reclaim_as(who: Who<'static>, sock: &Sock, link: &Link<'static>) -> Option<Reclaimed> {
    let mut backoff = Backoff::default();
    for _ in 0..RECLAIM_ATTEMPTS {
        signals::enter();
        let reclaimed = link.outgoing().reclaim(who, &promote::descriptor(sock));
        signals::leave();
        match reclaimed {
            Reclaimed::Owed | Reclaimed::Busy => backoff.wait(),
            other => {
                if let Reclaimed::Error(error) = other
                    && error != libc::EPIPE
                {
                    fail_later(sock, error);
                }
                if let Reclaimed::All(bytes) | Reclaimed::Part(bytes) = other {
                    counters::add(Counter::Reclaims, 1);
                    counters::add(Counter::ReclaimedBytes, bytes as u64);
                }
                return Some(other);
            }
        }
    }
    None
}

/// [`windlass_channel::EndInfo::join`] of an end that was closed.
pub const LEFT: u32 = 3;
/// Tries before a reader that never lets go is left alone.
const RECLAIM_ATTEMPTS: usize = 200;

/// A process that was forked from one that had joined: it asks for a slot of its own, for the locks. If it gets none, the
/// socket goes to the kernel, with what lies in its ring. Its lock word.
#[cold]
fn orphan(sock: Sock, link: Link<'static>) -> Option<u32> {
    let word = registration::word_or_register(sock.fd);
    if word.is_none() {
        link.outgoing().set_wild();
        if let Some(heir) = registration::heir() {
            // What is in the ring is older than what this process sends from now on.
            let _ = reclaim_as(heir, &sock, &link);
        }
        drain(&sock, &link, Reason::NoDaemon);
    }
    word
}
