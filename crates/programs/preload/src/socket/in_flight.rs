//! Calls on sockets that have not joined, counted so that a join knows who is in the middle of one.
//!
//! # Model
//! [`Record::in_flight`] counts the calls, and in its upper half those of them that only take bytes or wait: a join may come while
//! they sleep in the kernel. It counts them as asleep in the channel ([`Offer::asleep`](windlass_channel::Offer::asleep)), so
//! the peer goes on sending through the kernel, and each of them lowers that count when it returns. What they took meanwhile is
//! counted by the kernel. A call that sends is waited for.
//!
//! # Synchronization
//! A call counts itself, *then* looks at the flags. Who joins sets [`flag::JOINING`], *then* looks who is inside: so either the
//! caller waits for the end of the join (a few microseconds), or the join knows of it. Both orders are by sequentially
//! consistent operations. [`CONVERTED`] is set in the same word as the count, by one operation that gives the sleepers: a
//! sleeper that finds it on leaving is one of them.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use windlass_channel::Reason;

use crate::fd::{
    call::Sock,
    record::{Record, flag},
};
use crate::process::{identity, registration, signals};
use crate::socket::state::{self, descriptor};
use crate::sys::{clock, kernel::Backoff};

/// One call, in [`Record::in_flight`].
const CALL: u32 = 1;
/// One call that takes bytes or waits.
const SLEEPER: u32 = 1 << 16 | CALL;
/// The sleepers inside are counted in the channel.
const CONVERTED: u32 = 1 << 31;
/// How long a join waits for calls that send.
const SENDERS_US: u32 = 100;

const fn weight(is_send: bool) -> u32 {
    if is_send { CALL } else { SLEEPER }
}

/// Adds to the count, and gives what it was. The only thread of the process that the socket belongs to needs no locked operation: a
/// handler that comes between leaves the count as it was.
#[inline(always)]
fn add(record: &Record, weight: u32) -> u32 {
    let count = &record.in_flight;
    if identity::has_threads() {
        return count.fetch_add(weight, SeqCst);
    }
    let before = count.load(Relaxed);
    count.store(before.wrapping_add(weight), Relaxed);
    before
}

/// A call on a young socket begins. False: it has joined meanwhile, or does not join any more.
#[inline(always)]
pub fn enter(sock: &Sock, is_send: bool) -> bool {
    add(sock.record, weight(is_send));
    let flags = sock.record.flags.load(SeqCst);
    flags & (flag::JOINED | flag::JOINING) == 0 || enter_slow(sock, is_send)
}

/// The call is not inside after all: once the join is over the caller looks again.
#[cold]
fn enter_slow(sock: &Sock, is_send: bool) -> bool {
    let before = add(sock.record, weight(is_send).wrapping_neg());
    last_out(sock.record, before - weight(is_send));
    let mut backoff = Backoff::default();
    for _ in 0..state::JOIN_WAITS {
        let flags = sock.record.flags.load(SeqCst);
        if flags & flag::JOINED != 0 {
            return false;
        }
        if flags & flag::JOINING == 0 {
            return enter(sock, is_send);
        }
        backoff.wait();
    }
    // Whoever was joining is gone or stopped. It finds the flag, and does not finish.
    state::demoted(sock, Reason::Killed);
    false
}

/// The last one out forgets the sleepers: the record is free for another socket only then.
fn last_out(record: &Record, left: u32) {
    if left == CONVERTED {
        let count = &record.in_flight;
        let _ = count.compare_exchange(CONVERTED, 0, SeqCst, SeqCst);
    }
}

/// It has ended. `has_joined`: this call itself has joined the socket.
#[inline(always)]
pub fn leave(sock: &Sock, is_send: bool, has_joined: bool) {
    let before = add(sock.record, weight(is_send).wrapping_neg());
    if before & CONVERTED != 0 {
        leave_joined(sock, before - weight(is_send), !is_send && !has_joined);
    }
}

#[cold]
fn leave_joined(sock: &Sock, left: u32, is_counted: bool) {
    if is_counted
        && sock.still()
        && let Some(link) = state::after_join(sock)
    {
        signals::enter();
        link.incoming().woke(0);
        if let Some(who) = registration::who() {
            link.incoming().count_owed(who, &descriptor(sock));
        }
        signals::leave();
    }
    last_out(sock.record, left);
}

/// Waits until nobody else is in the middle of a send, for the caller that joins; whether others may be taking bytes.
///
/// # Errors
/// [`Reason::Young`] if a sender stays.
pub fn wait_for_senders(record: &Record, is_send: bool) -> Result<bool, Reason> {
    let begun = clock::now();
    loop {
        let others = (record.in_flight.load(SeqCst) & !CONVERTED).saturating_sub(weight(is_send));
        let sleepers = others >> 16;
        if others & 0xffff == sleepers {
            return Ok(sleepers != 0);
        }
        if clock::now().wrapping_sub(begun) > clock::cycles(SENDERS_US) {
            return Err(Reason::Young);
        }
        std::hint::spin_loop();
    }
}

/// From now on the sleepers inside but for the caller are the channel's; how many there are.
pub fn convert(record: &Record, is_send: bool) -> u32 {
    let before = record.in_flight.fetch_or(CONVERTED, SeqCst) & !CONVERTED;
    before.saturating_sub(weight(is_send)) >> 16
}

/// Members of a set that are looked at, at most: a further one stays on the kernel.
const MEMBERS_MAX: usize = 1_024;

/// Young members of a `poll` or `select`, in which the calling thread is about to sleep, by their places in the set.
pub struct Sleeper([u64; MEMBERS_MAX / 64]);

impl Sleeper {
    /// Counts the thread at each of the young sockets among `socks`. `None`: one of them has joined meanwhile; look again.
    pub fn enter(socks: impl Fn(usize) -> Option<Sock>, count: usize) -> Option<Self> {
        let mut sleeper = Self([0; MEMBERS_MAX / 64]);
        for (at, sock) in (0..count).filter_map(|at| Some((at, socks(at)?))) {
            let Some(word) = sleeper.0.get_mut(at / 64) else {
                state::demoted(&sock, Reason::Limit);
                continue;
            };
            if !enter(&sock, false) {
                if sock.record.has(flag::JOINED) {
                    sleeper.leave(socks);
                    return None;
                }
                continue;
            }
            *word |= 1 << (at % 64);
        }
        Some(sleeper)
    }

    pub fn leave(&self, socks: impl Fn(usize) -> Option<Sock>) {
        for (row, word) in self.0.iter().enumerate().filter(|(_, word)| **word != 0) {
            let places = (0..64).filter(|bit| word >> bit & 1 == 1);
            places
                .filter_map(|bit| socks(row * 64 + bit))
                .for_each(|sock| leave(&sock, false, false));
        }
    }
}
