//! Receives on a joined socket: ring or kernel, and how a call waits.
//!
//! # Model
//! As [`send`](crate::socket::send): attempts, and waits between them.

use windlass_channel::{Bufs, End, Link, Moved, Reason, RecvHow, Took, Who};

use crate::fd::{
    call::{Own, Sock},
    record::flag,
};
use crate::process::{registration, signals};
use crate::socket::{
    errors::{fail, fail_later, take_error},
    fast_path::count_received,
    file_flags::is_nonblocking,
    kernel_look::{is_ending, is_look_due},
    lock_backoff::LockBackoff,
    peer_death,
    reclaim::{caller, drain},
    sleep, state, unix,
    waiter::{self, Waiter},
};
use crate::sys::real;

pub const RECEIVE_FLAGS: i32 = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_WAITALL
    | libc::MSG_CMSG_CLOEXEC;

/// Receives on a joined socket; flags as `recv`'s.
#[inline(always)]
pub fn receive(sock: Sock, link: Link<'static>, into: Bufs<'_>, flags: i32, own: Own) -> isize {
    let is_odd = into.is_empty() || flags & !RECEIVE_FLAGS != 0;
    match registration::who() {
        Some(who) if !is_odd && !sock.record.has(flag::PENDING) => {
            first_receive(sock, link, who, into, flags, own)
        }
        _ => receive_carefully(sock, link, into, flags, own),
    }
}

/// The same, with what has to be done before some receives.
#[cold]
#[inline(never)]
fn receive_carefully(
    sock: Sock,
    link: Link<'static>,
    into: Bufs<'_>,
    flags: i32,
    own: Own,
) -> isize {
    let Some(who) = caller(&sock, &link) else {
        return own.call();
    };
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
    first_receive(sock, link, who, into, flags, own)
}

/// The first attempt, which most often is the only one.
#[inline(always)]
fn first_receive(
    sock: Sock,
    link: Link<'static>,
    who: Who<'static>,
    into: Bufs<'_>,
    flags: i32,
    own: Own,
) -> isize {
    let how = RecvHow {
        peek: flags & libc::MSG_PEEK != 0,
        discard: flags & libc::MSG_TRUNC != 0,
        look: false,
    };
    signals::enter();
    let fd = state::descriptor(&sock);
    let took = link.incoming().recv(who, &fd, &into, 0, how);
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
            };
            receive_more(call, into, took)
        }
    }
}

/// One call that receives.
struct Receiving {
    waiter: Waiter,
    link: Link<'static>,
    who: Who<'static>,
    how: RecvHow,
    waits: bool,
    /// `MSG_WAITALL`.
    all: bool,
    own: Own,
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
    backoff: LockBackoff,
}

/// Goes on after a first attempt that did not end the call.
#[cold]
#[inline(never)]
fn receive_more(mut call: Receiving, rest: Bufs<'_>, took: Took) -> isize {
    let result = receive_on(&mut call, rest, took);
    call.waiter.end();
    result
}

fn receive_on(call: &mut Receiving, rest: Bufs<'_>, mut took: Took) -> isize {
    let mut so_far = Received {
        rest,
        done: 0,
        has_looked: false,
        backoff: LockBackoff::new(),
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
        let fd = state::descriptor(call.waiter.sock());
        signals::enter();
        took = call
            .link
            .incoming()
            .recv(call.who, &fd, &so_far.rest, 0, how);
        signals::leave();
    }
}

/// What follows one attempt.
fn judge(call: &mut Receiving, so_far: &mut Received<'_>, took: Took) -> Next {
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
            if so_far.rest.is_empty() || !all || how.peek {
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
        Took::Empty | Took::Pending if sock.record.has(flag::FAILED) => {
            take_error(sock).map_or(Next::Again, |error| failed(done, error))
        }
        Took::Empty | Took::Pending if !waits => find_nothing(call, so_far),
        Took::Empty => Next::Sleep,
        Took::Pending => match sleep::wait_for_pending(&mut call.waiter, &link) {
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
                link.outgoing().stop(Reason::Closing);
            }
            failed(done, peer_death::named(sock, error))
        }
        Took::Broken => failed(done, libc::ECONNRESET),
        Took::Busy => {
            let backoff = &mut so_far.backoff;
            match call.waiter.wait_for_lock(backoff, waits, libc::SO_RCVTIMEO) {
                0 => Next::Again,
                error => stopped(call, done, error),
            }
        }
    }
}

/// A call that does not wait finds nothing: it looks at the kernel once, if that is due, and at its number.
fn find_nothing(call: &Receiving, so_far: &mut Received<'_>) -> Next {
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
fn gone(call: &Receiving, done: usize) -> isize {
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
fn stopped(call: &Receiving, done: usize, error: i32) -> Next {
    if error == libc::EBADF {
        Next::Return(gone(call, done))
    } else {
        failed(done, error)
    }
}

/// Waits for bytes: spins, then sleeps in the kernel. The call's result if that ends it.
fn wait_for_bytes(call: &mut Receiving, so_far: &mut Received<'_>) -> Option<isize> {
    let link = call.link;
    match sleep::fall_asleep(&mut call.waiter, &link, true) {
        sleep::Wait::Ready => return None,
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
    link.outgoing().stop(Reason::Closing);
    if done > 0 {
        return Next::Return(done as isize);
    }
    if peer_death::is_peers(sock) {
        peer_death::on_peer_death(sock, link);
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
fn sleep(call: &Receiving, so_far: &Received<'_>) -> isize {
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
fn awoke(call: &mut Receiving, so_far: &mut Received<'_>, result: isize) -> Option<isize> {
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
    let fd = state::descriptor(sock);
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
