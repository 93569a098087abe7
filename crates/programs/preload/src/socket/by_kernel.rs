//! What the program's own call sends: files, pipes, control data, and large writes to a receiver that lags.
//!
//! # Model
//! The ring is emptied before such a call, nothing is pushed during it, and what it gave to the kernel is counted after it: the
//! connection stays joined ([`send_by_kernel`]).
//!
//! A ring is faster while the receiver takes bytes as they come. The kernel is faster for one that lags: it holds megabytes of
//! a connection, where a ring holds its own size, and each side of a full ring waits for the other. So each connection decides by
//! what it sees. A large write that has to sleep for room, or finds too little of it and may not wait, *lags*: the next ones are the
//! kernel's, twice as many after each such write, half as many after one that the ring took at once. The ring is not tried while
//! the receiver has left so much in the kernel that nothing may be pushed.
//!
//! # Synchronization
//! [`Record::receives`] holds the state, which a socket has no other use for once it has joined. It is a hint: two threads that send
//! at once may lose a step.

use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Link, Moved, Reclaimed};

use crate::fd::{
    call::{Own, Sock},
    record::{Record, flag},
};
use crate::socket::{
    errors, file_flags, kernel_look::count_sent, peer_death, reclaim, state, waiter::Waiter,
};

/// Bytes from which on a write is large.
pub const LARGE: usize = 64 * 1024;
/// Writes by the kernel after the first one that lagged, and the most, as powers of two.
const WRITES_ORDER: (u32, u32) = (3, 10);
/// Place of the order in the state; the writes that are left lie below it.
const ORDER_AT: u32 = 16;

pub fn begin(record: &Record) {
    record.receives.store(0, Relaxed);
}

pub fn is_for_kernel(record: &Record, link: &Link<'static>) -> bool {
    let state = record.receives.load(Relaxed);
    let is_left = state & 0xffff != 0;
    if is_left {
        record.receives.store(state - 1, Relaxed);
    }
    is_left || link.outgoing().is_behind()
}

/// A large write by the ring has found the receiver behind.
pub fn lagged(record: &Record) {
    let (first, last) = WRITES_ORDER;
    let order = record.receives.load(Relaxed) >> ORDER_AT;
    let next = (order + 1).clamp(first, last);
    record.receives.store(next << ORDER_AT | 1 << next, Relaxed);
}

/// A large write went by the ring at once.
pub fn kept_up(record: &Record) {
    let order = record.receives.load(Relaxed) >> ORDER_AT;
    record
        .receives
        .store(order.saturating_sub(1) << ORDER_AT, Relaxed);
}

/// Has the program's own call, whose argument `at` is the socket, give the kernel its bytes: at most `most`, and as many as `told`
/// says of the result. The ring is emptied before, nothing is pushed meanwhile, and what went out is counted after it.
#[cold]
#[inline(never)]
pub fn send_by_kernel(
    (sock, at): (&Sock, usize),
    link: &Link<'static>,
    (most, told): (usize, impl Fn(usize) -> usize),
    flags: i32,
    own: Own,
) -> isize {
    if reclaim::caller(sock, link).is_none() {
        return own.call();
    }
    if let Some(error) = peer_death::before_call(sock) {
        return errors::broken_pipe(error, flags);
    }
    let mut waiter = Waiter::new(*sock);
    if !waiter.enter() {
        return own.call();
    }
    let out = link.outgoing();
    out.begin_own_call();
    let result = match empty_ring(&mut waiter, link, file_flags::waits(sock, flags)) {
        0 => {
            let own = own.with(at, waiter.sock().fd as usize);
            gathered(&mut waiter, most, own)
        }
        error => errors::broken_pipe(error, flags),
    };
    let kernel = usize::try_from(result).map_or(0, told);
    out.end_own_call(kernel);
    count_sent(waiter.sock(), Moved { ring: 0, kernel });
    waiter.end();
    result
}

/// The call of many bytes has Nagle's algorithm (RFC 896) if the program has left it on: without, a file leaves in smaller segments,
/// each of which wakes the receiver. What is left of the last segment leaves as soon as it is off again.
fn gathered(waiter: &mut Waiter, most: usize, own: Own) -> isize {
    if most < LARGE || !state::is_delayed(waiter.sock()) {
        return own.call();
    }
    state::give_back_delay(waiter.sock());
    let result = own.call();
    // Another thread may have put it on the kernel for good.
    if waiter.follow() && !waiter.sock().record.has(flag::DEMOTED) {
        state::no_delay(waiter.sock());
    }
    result
}

/// Moves this end's unread bytes into the kernel, and waits for room there; the error that ends the call, or 0.
fn empty_ring(waiter: &mut Waiter, link: &Link<'static>, waits: bool) -> i32 {
    loop {
        let error = match reclaim::reclaim(waiter.sock(), link) {
            Some(Reclaimed::Part(_)) if waits => waiter.wait_for(libc::POLLOUT, libc::SO_SNDTIMEO),
            // The reader is inside, and was stopped there.
            None if waits => 0,
            Some(Reclaimed::Part(_)) | None => libc::EAGAIN,
            Some(Reclaimed::Broken) => libc::ECONNRESET,
            Some(_) => return errors::take_error(waiter.sock()).unwrap_or(0),
        };
        if error != 0 {
            return error;
        }
    }
}
