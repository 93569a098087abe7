//! From the kernel to a ring: which connections are worth it, and how both ends come to agree.
//!
//! # Model
//! A young socket whose calls and bytes make it worth a ring *lists* itself in the directory, and looks there for the other end now
//! and then. The low end allocates a channel and offers; the high one finds the offer and answers it. The states are those of
//! [`crate::socket::state`].
//!
//! # Synchronization
//! [`flag::LOOKING`] is held by the thread that looks for the other end, which may ask the broker; [`flag::JOINING`] while positions are
//! read and the channel is offered. Who is in the middle of a call then, [`crate::socket::in_flight`] knows.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};

use windlass_channel::directory::{Hint, Key};
use windlass_channel::protocol::Ends;
use windlass_channel::{Join, Link, Offer, Reason, Side};

use crate::counts::counters;
use crate::fd::{
    call::Sock,
    record::{Origin, Record, flag, word},
    table,
};
use crate::join::names::{self, Names, Tracking};
use crate::options;
use crate::process::{identity, mark, pairs, registration, signals};
use crate::ready::{sets, uring};
use crate::socket::{by_kernel, demote::demote, in_flight, kind, proof, sockopt, state, unix};

/// Longest interval between two looks, in calls, while something may change.
const INTERVAL_MAX: u64 = 64;
/// The same while the other end has not come forward.
const INTERVAL_ALONE_MAX: u64 = 256;
/// The interval from which on an absent end counts as not accelerated: the third look in vain, 4 calls or 256 KiB after the first.
const INTERVAL_PLAIN: u64 = 4;

/// A call on a socket that has not joined, which sends or not and has these flags, has had this result: counts what it has moved.
/// Gives how much was moved in this direction.
#[inline(always)]
pub fn count(record: &Record, (is_send, flags): (bool, i32), result: isize) -> Option<u64> {
    let sum = [&record.kernel_received, &record.kernel_sent][usize::from(is_send)];
    let has_moved = result > 0 && (is_send || flags & libc::MSG_PEEK == 0);
    let is_counted = has_moved && kind::is_served(record);
    is_counted.then(|| sum.fetch_add(result as u64, Relaxed) + result as u64)
}

/// The same of a young socket, which joins if it is worth it; says whether it did. Still inside.
#[inline(always)]
pub fn moved(sock: &Sock, how: (bool, i32), result: isize) -> bool {
    let record = sock.record;
    let Some(sum) = count(record, how, result) else {
        return false;
    };
    let calls = [&record.receives, &record.sends];
    match calls.map(|count| count.load(Relaxed)).iter().sum() {
        0_u32 => counters::add(counters::Counter::Connected, 1),
        // By its cookie `windlass sockets` finds its names. A question and an answer may be all that it carries.
        2 => {
            record.cookie_by(sock.fd);
        }
        _ => {}
    }
    let own = calls[usize::from(how.0)];
    own.store(own.load(Relaxed).saturating_add(1), Relaxed);
    let [received, sent] = calls.map(|count| u64::from(count.load(Relaxed)));
    let is_worth =
        received.min(sent) >= options::promote_calls() || sum >= options::promote_bytes();
    is_worth && consider(sock, how.0)
}

/// Looks now and then whether the other end is there; whether the socket has joined.
fn consider(sock: &Sock, is_send: bool) -> bool {
    let [left, interval] = [word::LEFT, word::INTERVAL].map(|at| &sock.record.words[at]);
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
            state::note(sock.record, reason);
        }
        // The hint of a process that is gone, or has another slot by now.
        Reason::Young => {
            state::note(sock.record, Reason::None);
        }
        Reason::NoDaemon => {
            if state::note(sock.record, reason) {
                counters::say(format_args!("no broker answers; asked again later"));
            }
        }
        _ => {
            counters::add(counters::Counter::Refused, 1);
            state::demoted(sock, reason);
        }
    }
    false
}

/// One step towards a channel, [`Reason::Young`] where the next one is the other end's.
fn attempt(sock: &Sock, is_send: bool) -> Result<(), Reason> {
    let record = sock.record;
    if !state::begin_look(record) {
        return Err(Reason::Young);
    }
    signals::enter();
    let done = steps(sock, is_send);
    signals::leave();
    state::end_join(record);
    done
}

fn steps(sock: &Sock, is_send: bool) -> Result<(), Reason> {
    let record = sock.record;
    let _seeker = pairs::Seeker::enter();
    if record.has(flag::HEIRS | flag::INHERITED) {
        // Another program has it, too, and may write to it.
        return Err(Reason::Young);
    }
    uring::look();
    let (key, cookie) = list(sock)?;
    let directory = registration::directory().ok_or(Reason::NoDaemon)?;
    let hint = directory.peer(key).ok_or(Reason::PeerPlain)?;
    if pairs::places_with(hint.slot).any(|place| !pairs::at(place).is_peer_alive()) {
        // Of a program that the process at the other end was before.
        return Err(Reason::Young);
    }
    if !kind::of(record).is_counted && hint.slot == identity::process_slot() {
        return Err(Reason::Young);
    }
    let ends = Ends {
        socket: sock.fd,
        cookie,
        peer_socket: hint.fd,
        peer_cookie: hint.cookie,
    };
    let (place, link) = match pairs::side_towards(hint.slot, key.end, ends)? {
        Side::Low => allocate(sock, key, ends, hint.slot)?,
        Side::High => find_offered(sock, hint, ends)?,
    };
    let done = join(sock, place, &link, hint.cookie, is_send);
    if done.is_err() && link.side() == Side::Low {
        pairs::at(place).slab().free(link.index());
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
    let (pair, side, chan) = (pairs::at(place), link.side(), link.index());
    let is_counted = kind::of(record).is_counted;
    state::begin_join(record);
    let is_taking = in_flight::wait_for_senders(record, is_send)?;
    if is_taking && !is_counted {
        // The kernel keeps no count of what they take.
        return Err(Reason::Young);
    }
    if sockopt::has_inherited(sock) || !is_counted && unix::has_little_room(sock.fd) {
        return Err(Reason::Option);
    }
    let mut offer = offer(sock, peer_cookie).ok_or(Reason::NotEstablished)?;
    if is_counted {
        sockopt::note_no_delay(sock);
        state::no_delay(sock);
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
    record.channel.store(chan, Relaxed);
    record.side.store(side as u8, Relaxed);
    record.slab.store(pair.slab().id(), Release);
    pair.enter(chan, side, sock.index());
    let verdict = check(sock, link, &offer);
    let is_young = state::joined_as(record, matches!(verdict, Join::Wait));
    counters::add(counters::Counter::Joins, 1);
    state::note(record, Reason::None);
    mark::arm_again();
    match verdict {
        Join::Refused(reason) => demote(sock, reason),
        _ if !is_young => demote(sock, Reason::Killed),
        _ => {}
    }
    Ok(())
}

/// Whether the other end mirrors this one, whose counts are known then.
fn check(sock: &Sock, link: &Link<'static>, offer: &Offer) -> Join {
    let theirs = link.info(link.side().other()).join;
    let is_open = !kind::of(sock.record).is_counted && theirs != state::LEFT;
    if is_open && (theirs < OFFERED || !unix::count(sock, link)) {
        return Join::Wait;
    }
    if theirs == OFFERED || theirs == JOINED_END {
        match pairs::prove(sock.record.slab.load(Relaxed), link.index(), sock.fd) {
            Ok(()) => {}
            Err(Reason::NoDaemon | Reason::Limit | Reason::Young) => return Join::Wait,
            Err(reason) => return Join::Refused(reason),
        }
    }
    link.check(offer)
}

/// The low side's part: a channel, and word of it in the directory.
fn allocate(sock: &Sock, key: Key, ends: Ends, peer: u16) -> Result<(u8, Link<'static>), Reason> {
    let record = sock.record;
    let place = pairs::pair_with(peer, ends)?;
    let slab = pairs::at(place).slab();
    let chan = slab.allocate().ok_or(Reason::Limit)?;
    record.slab.store(slab.id(), Relaxed);
    publish(sock, key, Some(chan), ends.cookie)?;
    let link = pairs::link(place, chan, Side::Low).ok_or(Reason::Broken)?;
    Ok((place, link))
}

/// Says in the directory what this end is, and where it has offered.
fn publish(sock: &Sock, key: Key, chan: Option<u16>, cookie: u64) -> Result<(), Reason> {
    let (slot, cookie, fd) = (identity::process_slot(), cookie as u32, sock.fd);
    let hint = Hint {
        slot,
        chan,
        cookie,
        fd,
    };
    let directory = registration::directory().ok_or(Reason::NoDaemon)?;
    directory.publish(key, hint);
    Ok(())
}

/// The high side's part: the channel of the hint, in the slab where the other end has offered exactly this connection and nobody
/// has answered. A hint may be old, and of another connection.
fn find_offered(sock: &Sock, hint: Hint, ends: Ends) -> Result<(u8, Link<'static>), Reason> {
    let chan = hint.chan.ok_or(Reason::Young)?;
    let (own_name, peer_name, _) = names(sock).ok_or(Reason::NotEstablished)?;
    let is_ours = |place: u8| {
        let link = pairs::link(place, chan, Side::High)?;
        let (own, low) = (link.info(Side::High), link.info(Side::Low));
        let is_mirrored = (low.local, low.peer) == (names::fold(peer_name), names::fold(own_name));
        (own.join == 0 && low.join == OFFERED && is_mirrored && low.cookie as u32 == hint.cookie)
            .then_some((place, link))
    };
    let found = pairs::places_with(hint.slot).find_map(is_ours);
    match found {
        Some(found) => Ok(found),
        // The other end may have got one more slab already.
        None => is_ours(pairs::pair_with(hint.slot, ends)?).ok_or(Reason::Young),
    }
}

/// [`windlass_channel::EndInfo::join`] of an end that waits for the other.
const OFFERED: u32 = 1;
/// The same of an end that looks at the ring.
const JOINED_END: u32 = 2;

/// Looks again whether the other end mirrors ours. For a joined socket that is [`flag::PENDING`].
#[cold]
pub fn look_again(sock: &Sock, link: &Link<'static>) {
    let record = sock.record;
    if record.has(flag::TRACKED) && !link.is_proved() {
        return;
    }
    let done = (|| {
        let key = key_of(record, record.words[word::KEY].load(Relaxed))?;
        let hint = registration::directory()?.peer(key)?;
        let offer = offer(sock, hint.cookie)?;
        Some(check(sock, link, &offer))
    })();
    match done.unwrap_or(Join::Refused(Reason::NotEstablished)) {
        Join::Wait => {}
        Join::Ready => state::confirmed(record),
        Join::Refused(reason) => {
            state::confirmed(record);
            demote(sock, reason);
        }
    }
}

/// Sees to it that this end stands in the directory.
fn list(sock: &Sock) -> Result<(Key, u64), Reason> {
    let record = sock.record;
    let cookie = record.cookie_by(sock.fd);
    let listed = || key_of(record, record.words[word::KEY].load(Relaxed));
    if listed().is_some() {
        registration::register(sock.fd)?;
    }
    if let Some(key) = listed() {
        return Ok((key, cookie));
    }
    if record.origin() == Origin::Found {
        return Err(Reason::NotEligible);
    }
    let (key, word) = if !kind::of(record).is_counted {
        let word = unix::identify(sock, cookie)?;
        (unix::key(word).ok_or(Reason::SelfConnected)?, word)
    } else {
        let key = identify(sock)?;
        (key, key.hash)
    };
    registration::register(sock.fd)?;
    publish(sock, key, None, cookie)?;
    if key.end != 0 {
        record.set(flag::IS_HIGH);
    } else {
        record.flags.fetch_and(!flag::IS_HIGH, Relaxed);
    }
    record.words[word::KEY].store(word, Relaxed);
    Ok((key, cookie))
}

/// This process has another directory: each socket has to be listed there, too.
pub fn list_anew() {
    for sock in table::each().filter(|sock| !sock.record.has(flag::JOINED)) {
        sock.record.words[word::KEY].store(0, Relaxed);
    }
}

fn key_of(record: &Record, word: u64) -> Option<Key> {
    if word == 0 {
        None
    } else if !kind::of(record).is_counted {
        unix::key(word)
    } else {
        Some(Key {
            hash: word,
            end: usize::from(record.has(flag::IS_HIGH)),
        })
    }
}

pub fn identify(sock: &Sock) -> Result<Key, Reason> {
    let names = Names::of(sock.fd).ok_or(Reason::NotEstablished)?;
    if !names.is_local() {
        return Err(Reason::Remote);
    }
    match names.tracking(sock.fd) {
        Tracking::None => {}
        Tracking::Known => sock.record.set(flag::TRACKED),
        Tracking::Translated => return Err(Reason::Tracked),
    }
    names.key().ok_or(Reason::SelfConnected)
}

/// Own name, the peer's, and the cookie of the network namespace.
fn names(sock: &Sock) -> Option<(SocketAddr, SocketAddr, u64)> {
    if !kind::of(sock.record).is_counted {
        let (own, peer) = unix::names(sock.record.words[word::KEY].load(Relaxed));
        return Some((own, peer, names::netns(sock.fd)?));
    }
    let names = Names::of(sock.fd)?;
    Some((names.own, names.peer, names.netns))
}

/// Bytes given to the kernel and taken from it since the start of the stream, as far as they are known.
fn counts(sock: &Sock) -> Option<(u64, u64)> {
    if !kind::of(sock.record).is_counted {
        return Some((unix::START, unix::UNKNOWN));
    }
    let counts = state::descriptor(sock).counts()?;
    let is_connector = sock.record.has(flag::CONNECTED_BY_US);
    Some((counts.written(is_connector)?, counts.read()?))
}

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
        is_tracked: sock.record.has(flag::TRACKED),
    })
}

/// The socket leaves the directory, when it is closed.
pub fn unlist(record: &Record) {
    let key = key_of(record, record.words[word::KEY].swap(0, Relaxed));
    if let (Some(directory), Some(key)) = (registration::directory(), key) {
        directory.withdraw(key);
    }
}
