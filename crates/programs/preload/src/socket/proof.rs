//! Tracked connections: the proof that both ends are one connection, and the way back that must not rot.
//!
//! # Model
//! Where connection tracking knows a connection, both ends offer a channel and stay on the kernel in it, counting. Now and then
//! a message is cut in two ([`Link::send_in_two`]); after some such messages the ends join. Too many in vain, and the
//! connection stays on the kernel for good.
//!
//! Connection tracking forgets a connection of which it sees nothing, and then a firewall may drop what goes back to the
//! kernel. So one message in each [`options::refresh_ms`] of activity goes by the kernel.

use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::{Bufs, Cut, Link, Moved, Reason, Sent, Who};

use crate::counts::counters::{self, Counter};
use crate::fd::{
    call::Sock,
    record::{Record, flag, word},
};
use crate::options;
use crate::process::signals;
use crate::socket::state;
use crate::sys::clock;

/// How long the rest of a message is held back, at most.
const PATIENCE_US: u32 = 1_000;
/// How long the sender waits before it lets others run.
const YIELD_US: u32 = 5;
/// Places at which a message is cut, at most: it is read in pieces of some size.
const PLACES: usize = 4_096;
/// Cuts in vain until the connection stays on the kernel. After each one twice as many messages go uncut, up to an order.
const FAILURES_MAX: u64 = 16;
const PAUSE_ORDER_MAX: u64 = 6;
pub fn begin(record: &Record) {
    record.words[word::TRIES].store(0, Relaxed);
    record.words[word::REFRESHED_AT].store(clock::now(), Relaxed);
}

/// Sends a message in two parts, if there is still something to be proved and the moment is right; how much went out.
#[cold]
pub fn send(
    sock: &Sock,
    link: &Link<'static>,
    who: Who,
    data: &Bufs<'_>,
    flags: i32,
) -> Option<Sent> {
    let record = sock.record;
    if !record.has(flag::TRACKED) || !record.has(flag::PENDING) || link.is_proved() {
        return None;
    }
    let places = data.len().saturating_sub(1).min(PLACES);
    let word = record.words[word::TRIES].load(Relaxed);
    let (failures, uncut) = (word >> 32, word & 0xffff_ffff);
    if uncut > 0 {
        record.words[word::TRIES].store(word - 1, Relaxed);
        return None;
    }
    // Of three bytes on a message can be cut at more than one place. An urgent byte is none of the stream.
    if places < 2 || flags & libc::MSG_OOB != 0 {
        return None;
    }
    let begun = clock::now();
    let mut chance = begun ^ record.cookie.load(Relaxed) << 32;
    chance = (chance ^ chance >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    chance = (chance ^ chance >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let at = 1 + (chance >> 16) as usize % places;
    let is_patient = || {
        let waited = clock::now().wrapping_sub(begun);
        if waited > clock::cycles(YIELD_US) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
        waited < clock::cycles(PATIENCE_US)
    };
    signals::enter();
    let split = link.send_in_two(
        who,
        &state::descriptor(sock),
        data,
        Cut { at, places },
        flags,
        is_patient,
    );
    signals::leave();
    let split = split?;
    if !split.is_met {
        let failures = failures + 1;
        let pause = 1 << failures.min(PAUSE_ORDER_MAX);
        record.words[word::TRIES].store(failures << 32 | pause, Relaxed);
        if failures >= FAILURES_MAX {
            counters::add(Counter::Unproved, 1);
            state::confirmed(record);
            link.disown(Reason::Tracked);
            state::demoted(sock, Reason::Tracked);
        }
    }
    Some(Sent::Bytes(Moved {
        ring: 0,
        kernel: split.sent,
    }))
}

/// Has a message go by the kernel if none was made to for long enough. Of a sender that is at work.
pub fn refresh(sock: &Sock, link: &Link<'static>) {
    let (now, last) = (clock::now(), &sock.record.words[word::REFRESHED_AT]);
    let interval = || clock::cycles(1_000).saturating_mul(options::refresh_ms());
    if sock.record.has(flag::TRACKED) && now.wrapping_sub(last.load(Relaxed)) > interval() {
        last.store(now, Relaxed);
        counters::add(Counter::Refreshes, 1);
        link.send_next_by_kernel();
    }
}
