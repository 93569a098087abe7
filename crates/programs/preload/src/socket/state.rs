//! What a socket is to the ring.
//!
//! # States
//! | state | meaning | leaves by |
//! | --- | --- | --- |
//! | *young* | every call is the kernel's; calls and bytes are counted | [`begin_join`]; [`demoted`] |
//! | *joining* | a thread offers a channel; who begins a call waits for it | [`end_join`]; [`joined_as`]; [`demoted`] |
//! | *pending* | it has a channel and counts, and the other end has not been seen to mirror it | [`confirmed`]; [`demoted`] |
//! | *joined* | every byte is counted; the ring is used as soon as both ends look at it | [`demoted`]; the last close |
//! | *demoted* | the kernel's for good, for the reason in the record; what it had in a ring is there until it is read or moved | the last close |
//!
//! # Model
//! A state is a few bits of [`Record::flags`], changed by one operation each, so that a call finds it by the load that it makes
//! anyway. A socket belongs to the process that first sends, receives or waits on it: a use by another one demotes it ([`joined`]).
//! Where its channel is, each process remembers beside the number ([`table::ring_word`]).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use windlass_channel::{Fd, Link, Reason, Side};

use crate::counts::counters;
use crate::fd::{
    self,
    call::Sock,
    record::{Record, flag},
    table,
};
use crate::options;
use crate::process::{
    pairs::{self, Pair},
    registration,
};
use crate::socket::kind;
use crate::sys::kernel::{self, Backoff};

/// [`windlass_channel::EndInfo::join`] of an end that was closed.
pub const LEFT: u32 = 3;
/// How often a caller gives way to a thread that joins (100 to 200 ms: it may be off its core for some turns of others).
pub const JOIN_WAITS: u32 = 1_500;

/// See the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Young,
    Joining,
    Pending,
    Joined,
    Demoted,
}

impl State {
    fn of_flags(flags: u32) -> Self {
        let has = |bits: u32| flags & bits != 0;
        match (
            has(flag::DEMOTED | flag::UNCOUNTED_WRITER),
            has(flag::JOINED),
        ) {
            (true, _) => State::Demoted,
            (_, true) if has(flag::PENDING) => State::Pending,
            (_, true) => State::Joined,
            _ if has(flag::JOINING) => State::Joining,
            _ => State::Young,
        }
    }

    /// The state of a socket, in one order with what changes it.
    #[inline]
    pub fn of(record: &Record) -> Self {
        Self::of_flags(record.flags.load(SeqCst))
    }
}

/// A thread begins to join it. False: another one is at it, or was.
pub fn begin_look(record: &Record) -> bool {
    record.flags.fetch_or(flag::LOOKING, SeqCst) & (flag::LOOKING | flag::JOINED) == 0
}

/// Nobody begins a call from now on.
pub fn begin_join(record: &Record) {
    record.flags.fetch_or(flag::JOINING, SeqCst);
}

/// The thread has ended to join it, or has given up.
pub fn end_join(record: &Record) {
    let bits = flag::LOOKING | flag::JOINING;
    record.flags.fetch_and(!bits, SeqCst);
}

/// It has a channel, which is in the record. `is_pending`: the other end has not been seen to mirror it. False: it was demoted
/// meanwhile.
pub fn joined_as(record: &Record, is_pending: bool) -> bool {
    let pending = if is_pending { flag::PENDING } else { 0 };
    let before = record.flags.fetch_or(flag::JOINED | pending, AcqRel);
    State::of_flags(before) != State::Demoted
}

/// The other end mirrors it, or never will.
pub fn confirmed(record: &Record) {
    record.flags.fetch_and(!flag::PENDING, Relaxed);
}

/// It is the kernel's from now on; what is in a ring is [`crate::socket::demote`]'s. By its cookie `windlass sockets` lists it.
pub fn demoted(sock: &Sock, reason: Reason) {
    let cookie = sock.record.cookie_by(sock.fd);
    let before = sock.record.flags.fetch_or(flag::DEMOTED, SeqCst);
    if before & flag::DEMOTED == 0 && note(sock.record, reason) {
        counters::say(format_args!(
            "socket {cookie:x} stays on the kernel: {}",
            reason.text()
        ));
    }
}

/// Calls may go by [`crate::socket::fast_path`].
const IS_FAST: u64 = 1 << 63;
const PLACE_AT: u32 = 32;

/// What a word of [`table::ring_word`] says: the end of the channel, place + 1, and [`IS_FAST`].
fn remember(place: u8, link: Link<'static>) -> u64 {
    let word = (u64::from(place) + 1) << PLACE_AT | u64::from(link.word());
    if options::is_disturbed() {
        word
    } else {
        word | IS_FAST
    }
}

/// One end of a channel by its numbers, where what it is a part of has to be small or outlives the slab.
#[derive(Clone, Copy)]
pub struct At {
    pub place: u8,
    pub side: Side,
    pub chan: u16,
}

impl At {
    pub fn word(self) -> u64 {
        (u64::from(self.place) + 1) | (self.side as u64) << 8 | u64::from(self.chan) << 16
    }

    #[inline(always)]
    pub fn of(word: u64) -> Option<At> {
        Some(At {
            place: (word as u8).checked_sub(1)?,
            side: Side::from_u8((word >> 8) as u8),
            chan: (word >> 16) as u16,
        })
    }

    #[inline(always)]
    pub fn link(self) -> Option<Link<'static>> {
        pairs::link(self.place, self.chan, self.side)
    }
}

/// Whether calls on a socket with this word may go by [`crate::socket::fast_path`].
#[inline(always)]
pub fn is_fast(word: u64) -> bool {
    word & IS_FAST != 0
}

/// The pair and the end of the channel that a word names.
#[inline(always)]
pub fn end_in(word: u64) -> (&'static Pair, Link<'static>) {
    let pair = pairs::at(((word >> PLACE_AT) as u8).wrapping_sub(1));
    (pair, Link::of_word(pair.slab(), word as u32))
}

/// The end of the channel that a socket has, if it has joined and belongs to this process; if it belongs to another one, this call
/// demotes it.
#[inline(always)]
pub fn joined(sock: &Sock) -> Option<Link<'static>> {
    word_or(sock, find)
}

/// The end of the channel that the number's word names, or the word that is found.
#[inline(always)]
fn word_or(sock: &Sock, find: fn(Sock) -> Option<u64>) -> Option<Link<'static>> {
    let word = match table::ring_word(sock.fd)?.load(Relaxed) {
        0 if !sock.record.has(flag::JOINED) => return None,
        0 => find(*sock)?,
        word => word,
    };
    Some(end_in(word).1)
}

/// The end of the channel of a socket, once a thread that is joining it just now has ended.
pub fn after_join(sock: &Sock) -> Option<Link<'static>> {
    let mut backoff = Backoff::default();
    for _ in 0..JOIN_WAITS {
        if State::of(sock.record) != State::Joining {
            break;
        }
        backoff.wait();
    }
    joined(sock)
}

/// The place of the slab of a joined socket, for a number whose channel was just looked up.
#[inline(always)]
pub fn place(sock: &Sock) -> Option<u8> {
    let word = table::ring_word(sock.fd)?.load(Relaxed);
    ((word >> PLACE_AT) as u8).checked_sub(1)
}

/// Whether the process at the other end has died.
#[inline]
pub fn is_peer_dead(sock: &Sock) -> bool {
    place(sock).is_some_and(|place| !pairs::at(place).is_peer_alive())
}

/// The end of the channel of a socket that has joined, whichever process it belongs to: for what is no use of the socket.
pub fn link_of(sock: &Sock) -> Option<Link<'static>> {
    word_or(sock, look_up)
}

/// The word that [`joined`] needs, for a number that has not been used since the socket joined.
#[cold]
fn find(sock: Sock) -> Option<u64> {
    if sock.record.is_foreign() && sock.record.has(flag::UNCOUNTED_WRITER) {
        return None;
    }
    let word = look_up(sock)?;
    if sock.record.claim() || !end_in(word).0.is_peer_alive() {
        // What a dead peer has left in a ring can be read there alone.
        return Some(word);
    }
    fd::tell(|up| (up.demote)(&sock, Reason::Shared));
    table::ring_word(sock.fd)?.store(0, Relaxed);
    None
}

#[cold]
fn look_up(sock: Sock) -> Option<u64> {
    let record = sock.record;
    let _seeker = pairs::Seeker::enter();
    let place = match pairs::place_of(record.slab.load(Acquire)) {
        Some(place) => place,
        // A process that was forked before the join: the slab is another one's so far.
        None => registration::register(sock.fd)
            .and_then(|()| pairs::slab(record.slab.load(Acquire), record.side.load(Relaxed)))
            .ok()?,
    };
    let (chan, side) = (
        record.channel.load(Relaxed),
        Side::from_u8(record.side.load(Relaxed)),
    );
    let link = pairs::link(place, chan, side)?;
    if link.info(side).cookie != record.cookie_by(sock.fd) {
        // The number of the slab is another broker's, and of another slab.
        return None;
    }
    if pairs::at(place).record(chan, side) != sock.index() {
        pairs::at(place).enter(chan, side, sock.index());
    }
    let word = remember(place, link);
    table::ring_word(sock.fd)?.store(word, Relaxed);
    Some(word)
}

/// Whether the socket may join for this process, which uses it; else it stays on the kernel.
#[inline(always)]
pub fn is_own(sock: &Sock) -> bool {
    let is_own = sock.record.claim();
    if !is_own {
        demoted(sock, Reason::Shared);
    }
    is_own
}

/// Whether a socket might still be joined: then its calls are counted.
#[inline(always)]
pub fn is_young(record: &Record) -> bool {
    !record.has(flag::DEMOTED | flag::UNCOUNTED_WRITER) && kind::is_served(record)
}

/// Notes why the socket is on the kernel, unless a lasting reason stands there already. Whether that is news.
pub fn note(record: &Record, reason: Reason) -> bool {
    let before = Reason::from_u8(record.reason.load(Relaxed));
    let is_tentative = matches!(before, Reason::None | Reason::NoDaemon | Reason::PeerPlain);
    if is_tentative {
        record.reason.store(reason as u8, Relaxed);
    }
    is_tentative && before != reason
}

/// The socket itself, as the channel uses it.
#[inline(always)]
pub fn descriptor(sock: &Sock) -> Fd {
    Fd {
        fd: sock.fd,
        connected: sock.record.has(flag::CONNECTED_BY_US),
    }
}

/// When replies go by the ring no acknowledgement rides on them, and Nagle's algorithm (RFC 896) would hold each small
/// message back until the delayed one, 40 ms later.
pub fn no_delay(sock: &Sock) {
    // A socket that is closed meanwhile needs it no more.
    let _ = kernel::set_option(sock.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32);
}

/// Whether the program has left Nagle's algorithm on.
pub fn is_delayed(sock: &Sock) -> bool {
    !sock.record.has(flag::NODELAY) && kind::of(sock.record).is_delayed
}

/// It is on again if so, where the connection is the kernel's.
pub fn give_back_delay(sock: &Sock) {
    if is_delayed(sock) {
        let _ = kernel::set_option(sock.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0_i32);
    }
}
