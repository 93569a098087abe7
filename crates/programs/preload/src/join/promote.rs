//! From the kernel to a ring: which connections are worth it, and how both ends come to agree.
//!
//! # States
//! | state of a record | meaning | leaves by |
//! | --- | --- | --- |
//! | young | every call is the kernel's; calls and bytes are counted | the threshold; or a reason against it |
//! | listed | this end stands in the directory, and looks for the other end now and then | the other end is found |
//! | joined | every byte is counted; the ring is used as soon as both ends look at it | the last close |
//! | plain | the kernel's for good, for the reason in the record | the last close |
//!
//! # Synchronization
//! [`LOOKING`] is held by the thread that looks for the other end, which may ask the broker; [`JOINING`] while positions are
//! read and the channel is offered. Who is in the middle of a call then, [`crate::socket::in_flight`] knows.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use windlass_channel::directory::{Hint, Key};
use windlass_channel::protocol::Ends;
use windlass_channel::{Fd, Join, Link, Offer, Reason, Side};

use crate::counts::counters;
use crate::fd::{
    call::Sock,
    record::{Kind, Origin, Record, flag},
    table,
};
use crate::join::names::{self, Names, Tracking};
use crate::options;
use crate::process::{identity, registration, signals};
use crate::ready::{sets, uring};
use crate::socket::{
    by_kernel, close,
    in_flight::{self, JOIN_WAITS},
    peer_death, proof, sockopt, unix,
};
use crate::sys::kernel::{self, Backoff};

/// The record has a channel: slab, channel and side are in it.
pub const JOINED: u32 = flag::ENGINE;
/// A thread is joining it just now: nobody begins a call.
pub const JOINING: u32 = flag::ENGINE << 1;
/// This end has offered, and the other end has not been seen to mirror it.
pub const PENDING: u32 = flag::ENGINE << 2;
/// This end's name is the higher one.
const IS_HIGH: u32 = flag::ENGINE << 3;
/// Higher bits are [`crate::socket::stream`]'s.
pub const NEXT: u32 = flag::ENGINE << 4;
/// Connection tracking knows the connection.
pub const TRACKED: u32 = 1 << 30;
/// A thread looks for the other end just now.
const LOOKING: u32 = 1 << 31;

/// Places in [`Record::engine`].
const KEY: usize = 0;
/// Calls until the directory is looked at again, and how many that are each time.
pub const LEFT: usize = 1;
pub const INTERVAL: usize = 2;
/// Longest interval between two looks, in calls, while something may change.
const INTERVAL_MAX: u64 = 64;
/// The same while the other end has not come forward.
const INTERVAL_ALONE_MAX: u64 = 256;
/// The interval from which on an absent end counts as plain: the third look in vain, 4 calls or 256 KiB after the first.
const INTERVAL_PLAIN: u64 = 4;
/// What a word of [`table::engine_word`] says: place + 1, side, channel, and [`IS_STRAIGHT`].
fn remember(place: u8, side: Side, chan: u16) -> u64 {
    let word = (u64::from(place) + 1) | (side as u64) << 8 | u64::from(chan) << 16;
    if options::is_disturbed() {
        word
    } else {
        word | IS_STRAIGHT
    }
}

/// Calls may go by [`crate::socket::fast_path`].
const IS_STRAIGHT: u64 = 1 << 63;

/// Whether calls on a socket with this word may go by [`crate::socket::fast_path`].
#[inline(always)]
pub fn is_straight(word: u64) -> bool {
    word & IS_STRAIGHT != 0
}

/// The place of the slab that a word names.
#[inline(always)]
pub fn place_in(word: u64) -> Option<u8> {
    (word as u8).checked_sub(1)
}

/// The end of the channel that a word names.
#[inline(always)]
pub fn link_in(word: u64) -> Option<Link<'static>> {
    registration::link(
        (word as u8).wrapping_sub(1),
        (word >> 16) as u16,
        Side::from_u8((word >> 8) as u8),
    )
}

/// The end of the channel that a socket has, if it has joined and belongs to this process; if it belongs to another one, this call
/// demotes it.
#[inline(always)]
pub fn joined(sock: &Sock) -> Option<Link<'static>> {
    let word = match table::engine_word(sock.fd)?.load(Relaxed) {
        0 if !sock.record.has(JOINED) => return None,
        0 => find(*sock)?,
        word => word,
    };
    link_in(word)
}

/// The end of the channel of a socket, once a thread that is joining it just now has ended.
pub fn settled(sock: &Sock) -> Option<Link<'static>> {
    let mut backoff = Backoff::default();
    for _ in 0..JOIN_WAITS {
        if sock.record.flags.load(SeqCst) & (JOINING | JOINED) != JOINING {
            break;
        }
        backoff.wait();
    }
    joined(sock)
}

/// The place of the slab of a joined socket, for a number whose channel was just looked up.
#[inline(always)]
pub fn place(sock: &Sock) -> Option<u8> {
    place_in(table::engine_word(sock.fd)?.load(Relaxed))
}

/// The end of the channel of a socket that has joined, whichever process it belongs to: for what is no use of the socket.
pub fn link_of(sock: &Sock) -> Option<Link<'static>> {
    let word = match table::engine_word(sock.fd)?.load(Relaxed) {
        0 if !sock.record.has(JOINED) => return None,
        0 => look_up(*sock)?,
        word => word,
    };
    link_in(word)
}

/// The word that [`joined`] needs, for a number that has not been used since the socket joined.
#[cold]
fn find(sock: Sock) -> Option<u64> {
    if sock.record.is_foreign() && sock.record.has(flag::LEAKED) {
        return None;
    }
    let word = look_up(sock)?;
    if sock.record.claim() || !registration::at(place_in(word)?).is_peer_alive() {
        // What a dead peer has left in a ring can be read there alone.
        return Some(word);
    }
    close::leaked(&sock, Reason::Shared);
    table::engine_word(sock.fd)?.store(0, Relaxed);
    None
}

#[cold]
fn look_up(sock: Sock) -> Option<u64> {
    let record = sock.record;
    let _seeker = registration::Seeker::enter();
    let place = match registration::place_of(record.slab.load(Acquire)) {
        Some(place) => place,
        // A process that was forked before the join: the slab is another one's so far.
        None => registration::register(sock.fd)
            .and_then(|()| registration::slab(record.slab.load(Acquire)))
            .ok()?,
    };
    let (chan, side) = (
        record.channel.load(Relaxed),
        Side::from_u8(record.side.load(Relaxed)),
    );
    let link = registration::link(place, chan, side)?;
    if link.info(side).cookie != record.cookie_by(sock.fd) {
        // The number of the slab is another broker's, and of another slab.
        return None;
    }
    if registration::at(place).record(chan, side) != sock.index() {
        registration::at(place).enter(chan, side, sock.index());
    }
    let word = remember(place, side, chan);
    table::engine_word(sock.fd)?.store(word, Relaxed);
    Some(word)
}

/// Whether the socket may join for this process, which uses it; else it stays on the kernel.
#[inline(always)]
pub fn is_own(record: &Record) -> bool {
    let is_own = record.claim();
    if !is_own {
        refuse(record, Reason::Shared);
    }
    is_own
}

/// Whether a socket might still be joined: then its calls are counted.
#[inline(always)]
pub fn is_young(record: &Record) -> bool {
    !record.has(flag::PLAIN | flag::LEAKED) && is_stream(record)
}

/// Whether sockets of this kind are joined at all.
#[inline(always)]
pub fn is_stream(record: &Record) -> bool {
    match record.kind() {
        Some(Kind::Tcp) => true,
        Some(Kind::UnixStream) => options::unix(),
        _ => false,
    }
}

/// The socket stays on the kernel.
pub fn refuse(record: &Record, reason: Reason) {
    let before = record.flags.fetch_or(flag::PLAIN, SeqCst);
    if before & flag::PLAIN == 0 && note(record, reason) {
        counters::say(format_args!(
            "socket {:x} stays on the kernel: {}",
            record.cookie.load(Relaxed),
            reason.text()
        ));
    }
}

/// Notes why the socket is on the kernel, unless a lasting reason stands there already. Whether that is news.
fn note(record: &Record, reason: Reason) -> bool {
    let before = Reason::from_u8(record.reason.load(Relaxed));
    let is_tentative = matches!(before, Reason::None | Reason::NoDaemon | Reason::PeerPlain);
    if is_tentative {
        record.reason.store(reason as u8, Relaxed);
    }
    is_tentative && before != reason
}

/// A call has moved bytes through the kernel; joins if it is worth it, and says whether it did. Still inside.
#[inline(always)]
pub fn moved(sock: &Sock, is_send: bool, bytes: usize) -> bool {
    let record = sock.record;
    let (calls, sum) = if is_send {
        (&record.sends, &record.kernel_sent)
    } else {
        (&record.receives, &record.kernel_received)
    };
    let before = calls.load(Relaxed);
    let is_first = before == 0 && record.sends.load(Relaxed) + record.receives.load(Relaxed) == 0;
    if is_first {
        counters::add(counters::Counter::Connected, 1);
        // By its cookie `windlass sockets` finds its names.
        record.cookie_by(sock.fd);
    }
    calls.store(before.saturating_add(1), Relaxed);
    sum.store(sum.load(Relaxed) + bytes as u64, Relaxed);
    let (least_calls, least_bytes) = options::promote();
    let both = record
        .sends
        .load(Relaxed)
        .min(record.receives.load(Relaxed));
    (u64::from(both) >= least_calls || sum.load(Relaxed) >= least_bytes) && consider(sock, is_send)
}

/// Looks now and then whether the other end is there; whether the socket has joined.
fn consider(sock: &Sock, is_send: bool) -> bool {
    let [left, interval] = [LEFT, INTERVAL].map(|at| &sock.record.engine[at]);
    let rest = left.load(Relaxed);
    if rest > 0 {
        left.store(rest - 1, Relaxed);
        return false;
    }
    let Err(reason) = attempt(sock, is_send) else {
        return true;
    };
    let most = if reason == Reason::PeerPlain {
        INTERVAL_ALONE_MAX
    } else {
        INTERVAL_MAX
    };
    let next = (interval.load(Relaxed) * 2).clamp(1, most);
    interval.store(next, Relaxed);
    left.store(next - 1, Relaxed);
    match reason {
        // The other end lists itself after as many calls as this one, or is asking the broker just now.
        Reason::PeerPlain if next < INTERVAL_PLAIN => {}
        Reason::PeerPlain => {
            note(sock.record, reason);
        }
        // The hint of a process that is gone, or has another slot by now.
        Reason::Young => {
            note(sock.record, Reason::None);
        }
        Reason::NoDaemon => {
            counters::add(counters::Counter::Unanswered, 1);
            if note(sock.record, reason) {
                counters::say(format_args!("no daemon answers; asked again later"));
            }
        }
        _ => {
            counters::add(counters::Counter::Refused, 1);
            refuse(sock.record, reason);
        }
    }
    false
}

/// One step towards a channel, [`Reason::Young`] where the next one is the other end's.
fn attempt(sock: &Sock, is_send: bool) -> Result<(), Reason> {
    let record = sock.record;
    if record.flags.fetch_or(LOOKING, SeqCst) & (LOOKING | JOINED) != 0 {
        return Err(Reason::Young);
    }
    signals::enter();
    let done = steps(sock, is_send);
    signals::leave();
    record.flags.fetch_and(!(LOOKING | JOINING), SeqCst);
    done
}

fn steps(sock: &Sock, is_send: bool) -> Result<(), Reason> {
    let record = sock.record;
    let _seeker = registration::Seeker::enter();
    if record.has(flag::HEIRS | flag::INHERITED) {
        // Another program has it, too, and may write to it.
        return Err(Reason::Young);
    }
    uring::look();
    let (key, cookie) = list(sock)?;
    let directory = registration::directory().ok_or(Reason::NoDaemon)?;
    let hint = directory.peer(key).ok_or(Reason::PeerPlain)?;
    if registration::places_with(hint.slot).any(|place| !registration::at(place).is_peer_alive()) {
        // Of a program that the process at the other end was before.
        return Err(Reason::Young);
    }
    if is_uncounted(record) && hint.slot == identity::process_slot() {
        return Err(Reason::Young);
    }
    let ends = Ends {
        socket: sock.fd,
        cookie,
        peer_socket: hint.fd,
        peer_cookie: hint.cookie,
    };
    let (place, link) = match registration::side_towards(hint.slot, key.end, ends)? {
        Side::Low => allocate(sock, key, ends, hint.slot)?,
        Side::High => find_offered(sock, hint, ends)?,
    };
    let done = join(sock, place, &link, hint.cookie, is_send);
    if done.is_err() && link.side() == Side::Low {
        registration::at(place).slab().free(link.index());
    }
    done
}

/// Offers, with nobody in the middle of a send, and joins if the other end has offered.
fn join(
    sock: &Sock,
    place: u8,
    link: &Link<'static>,
    peer_cookie: u32,
    is_send: bool,
) -> Result<(), Reason> {
    let record = sock.record;
    let (pair, side, chan) = (registration::at(place), link.side(), link.index());
    let is_uncounted = is_uncounted(record);
    record.flags.fetch_or(JOINING, SeqCst);
    let is_taking = in_flight::wait_for_senders(record, is_send)?;
    if is_taking && is_uncounted {
        // The kernel keeps no count of what they take.
        return Err(Reason::Young);
    }
    if sockopt::has_inherited(sock) {
        return Err(Reason::Option);
    }
    let mut offer = offer(sock, peer_cookie).ok_or(Reason::NotEstablished)?;
    if !is_uncounted {
        sockopt::note_no_delay(sock);
        no_delay(sock);
        proof::begin(record);
    }
    by_kernel::begin(record);
    sets::show(sock, place, link);
    offer.is_recounted = is_taking;
    offer.asleep = if is_taking {
        in_flight::convert(record, is_send)
    } else {
        0
    };
    link.offer(&offer);
    if unix::is_stream(record) && unix::has_little_room(sock.fd) {
        link.outgoing().plain(Reason::Option);
    }
    record.channel.store(chan, Relaxed);
    record.side.store(side as u8, Relaxed);
    record.slab.store(pair.slab().id(), Release);
    pair.enter(chan, side, sock.index());
    let pending = match check(sock, link, &offer) {
        Join::Ready => 0,
        Join::Wait => PENDING,
        Join::Refused(reason) => {
            plain(link, reason);
            0
        }
    };
    let before = record.flags.fetch_or(JOINED | pending, AcqRel);
    if before & flag::PLAIN != 0 {
        plain(link, Reason::Killed);
    }
    counters::add(counters::Counter::Joins, 1);
    note(record, Reason::None);
    peer_death::arm_again();
    Ok(())
}

/// Whether the other end mirrors this one, whose counts are known then.
fn check(sock: &Sock, link: &Link<'static>, offer: &Offer) -> Join {
    let theirs = link.info(link.side().other()).join;
    let is_open = is_uncounted(sock.record) && theirs != CLOSED;
    if is_open && (theirs < OFFERED || !unix::count(sock, link)) {
        return Join::Wait;
    }
    if theirs == OFFERED || theirs == JOINED_END {
        match registration::prove(sock.record.slab.load(Relaxed), link.index(), sock.fd) {
            Ok(()) => {}
            Err(Reason::NoDaemon | Reason::Limit) => return Join::Wait,
            Err(reason) => return Join::Refused(reason),
        }
    }
    link.check(offer)
}

/// The low side's part: a channel, and word of it in the directory.
fn allocate(sock: &Sock, key: Key, ends: Ends, peer: u16) -> Result<(u8, Link<'static>), Reason> {
    let record = sock.record;
    let place = registration::pair_with(peer, ends)?;
    let slab = registration::at(place).slab();
    let chan = slab.allocate().ok_or(Reason::Limit)?;
    record.slab.store(slab.id(), Relaxed);
    let hint = Hint {
        slot: identity::process_slot(),
        chan: Some(chan),
        cookie: ends.cookie as u32,
        fd: sock.fd,
    };
    registration::directory()
        .ok_or(Reason::NoDaemon)?
        .publish(key, hint);
    Ok((
        place,
        registration::link(place, chan, Side::Low).ok_or(Reason::Broken)?,
    ))
}

/// The high side's part: the channel of the hint, in the slab where the other end has offered exactly this connection and nobody
/// has answered. A hint may be old, and of another connection.
fn find_offered(sock: &Sock, hint: Hint, ends: Ends) -> Result<(u8, Link<'static>), Reason> {
    let chan = hint.chan.ok_or(Reason::Young)?;
    let (own_name, peer_name, _) = names(sock).ok_or(Reason::NotEstablished)?;
    let is_ours = |place: u8| {
        let link = registration::link(place, chan, Side::High)?;
        let (own, low) = (link.info(Side::High), link.info(Side::Low));
        let is_mirrored = (low.local, low.peer) == (canonical(peer_name), canonical(own_name));
        (own.join == 0 && low.join == OFFERED && is_mirrored && low.cookie as u32 == hint.cookie)
            .then_some((place, link))
    };
    let found = registration::places_with(hint.slot).find_map(is_ours);
    match found {
        Some(found) => Ok(found),
        None => is_ours(registration::further_with(hint.slot, ends)?).ok_or(Reason::Young),
    }
}

/// [`windlass_channel::EndInfo::join`] of an end that waits for the other.
const OFFERED: u32 = 1;
/// The same of an end that looks at the ring.
const JOINED_END: u32 = 2;
/// The same of an end that was closed.
const CLOSED: u32 = 3;

/// A name as the channel gives it back: IPv4 as such, without scope.
fn canonical(name: SocketAddr) -> SocketAddr {
    SocketAddr::new(name.ip().to_canonical(), name.port())
}

/// Both directions of a channel stay on the kernel.
pub fn plain(link: &Link<'_>, reason: Reason) {
    link.outgoing().plain(reason);
    link.incoming().plain(reason);
}

/// The other end could not be proved to be this connection's.
pub fn disown(sock: &Sock, link: &Link<'static>) {
    let record = sock.record;
    record.flags.fetch_and(!PENDING, Relaxed);
    let reason = Reason::Tracked;
    let _ = record
        .reason
        .compare_exchange(0, reason as u8, Relaxed, Relaxed);
    link.disown(reason);
}

/// Looks again whether the other end mirrors ours. For a joined socket that is [`PENDING`].
#[cold]
pub fn look_again(sock: &Sock, link: &Link<'static>) {
    let record = sock.record;
    if record.has(TRACKED) && !link.is_proved() {
        return;
    }
    let done = (|| {
        let key = key_of(record, record.engine[KEY].load(Relaxed))?;
        let hint = registration::directory()?.peer(key)?;
        let offer = offer(sock, hint.cookie)?;
        Some(check(sock, link, &offer))
    })();
    match done {
        Some(Join::Wait) => {}
        Some(Join::Ready) => {
            record.flags.fetch_and(!PENDING, Relaxed);
        }
        Some(Join::Refused(reason)) => {
            record.flags.fetch_and(!PENDING, Relaxed);
            let _ = record
                .reason
                .compare_exchange(0, reason as u8, Relaxed, Relaxed);
            plain(link, reason);
        }
        None => {
            record.flags.fetch_and(!PENDING, Relaxed);
            plain(link, Reason::NotEstablished);
        }
    }
}

/// Sees to it that this end stands in the directory.
fn list(sock: &Sock) -> Result<(Key, u64), Reason> {
    let record = sock.record;
    let cookie = record.cookie_by(sock.fd);
    let listed = || key_of(record, record.engine[KEY].load(Relaxed));
    if listed().is_some() {
        registration::register(sock.fd)?;
    }
    if let Some(key) = listed() {
        return Ok((key, cookie));
    }
    if record.origin() == Origin::Found {
        return Err(Reason::NotEligible);
    }
    let (key, word) = if unix::is_stream(record) {
        let word = unix::identify(sock, cookie)?;
        (unix::key(word).ok_or(Reason::SelfConnected)?, word)
    } else {
        let key = identify(sock)?;
        (key, key.hash)
    };
    registration::register(sock.fd)?;
    let directory = registration::directory().ok_or(Reason::NoDaemon)?;
    directory.publish(
        key,
        Hint {
            slot: identity::process_slot(),
            chan: None,
            cookie: cookie as u32,
            fd: sock.fd,
        },
    );
    if key.end != 0 {
        record.set(IS_HIGH);
    } else {
        record.flags.fetch_and(!IS_HIGH, Relaxed);
    }
    record.engine[KEY].store(word, Relaxed);
    Ok((key, cookie))
}

/// This process has another directory: each socket has to be listed there, too.
pub fn list_anew() {
    for sock in table::each().filter(|sock| !sock.record.has(JOINED)) {
        sock.record.engine[KEY].store(0, Relaxed);
    }
}

/// The key that a record's word stands for.
fn key_of(record: &Record, word: u64) -> Option<Key> {
    if word == 0 {
        None
    } else if unix::is_stream(record) {
        unix::key(word)
    } else {
        Some(Key {
            hash: word,
            end: usize::from(record.has(IS_HIGH)),
        })
    }
}

/// Whether the kernel keeps no count of what the socket carries.
pub fn is_uncounted(record: &Record) -> bool {
    unix::is_stream(record)
}

/// Which connection over IP the socket is.
pub fn identify(sock: &Sock) -> Result<Key, Reason> {
    let names = Names::of(sock.fd).ok_or(Reason::NotEstablished)?;
    if !names.is_local() {
        return Err(Reason::Remote);
    }
    match names.tracking(sock.fd) {
        Tracking::None => {}
        Tracking::Known => sock.record.set(TRACKED),
        Tracking::Translated => return Err(Reason::Tracked),
    }
    names.key().ok_or(Reason::SelfConnected)
}

/// Own name, the peer's, and the cookie of the network namespace.
fn names(sock: &Sock) -> Option<(SocketAddr, SocketAddr, u64)> {
    if unix::is_stream(sock.record) {
        let (own, peer) = unix::names(sock.record.engine[KEY].load(Relaxed));
        return Some((own, peer, names::netns(sock.fd)?));
    }
    let names = Names::of(sock.fd)?;
    Some((names.own, names.peer, names.netns))
}

/// Bytes given to the kernel and taken from it since the start of the stream, as far as they are known.
fn counts(sock: &Sock) -> Option<(u64, u64)> {
    if is_uncounted(sock.record) {
        return Some((unix::START, unix::UNKNOWN));
    }
    let counts = descriptor(sock).counts()?;
    let is_connector = sock.record.has(flag::CONNECTED_BY_US);
    Some((counts.written(is_connector)?, counts.read()?))
}

/// What this end says of itself now.
fn offer(sock: &Sock, peer_cookie: u32) -> Option<Offer> {
    let (local, peer, netns) = names(sock)?;
    let (written, received) = counts(sock)?;
    Some(Offer {
        cookie: sock.record.cookie_by(sock.fd),
        peer_cookie,
        netns,
        local,
        peer,
        slot: identity::process_slot(),
        pid: std::process::id(),
        fd: sock.fd,
        written,
        received,
        connected: sock.record.has(flag::CONNECTED_BY_US),
        asleep: 0,
        is_recounted: false,
        is_tracked: sock.record.has(TRACKED),
    })
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

/// What the program left off is off again, where the connection is the kernel's.
pub fn give_back_delay(sock: &Sock) {
    if !sock.record.has(flag::NODELAY) && sock.record.kind() == Some(Kind::Tcp) {
        let _ = kernel::set_option(sock.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0_i32);
    }
}

/// The socket leaves the directory, when it is closed.
pub fn unlist(record: &Record) {
    let key = key_of(record, record.engine[KEY].swap(0, Relaxed));
    if let (Some(directory), Some(key)) = (registration::directory(), key) {
        directory.withdraw(key);
    }
}
