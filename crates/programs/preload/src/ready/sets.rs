//! epoll: instances that report ring bytes beside what the kernel reports.
//!
//! # Model
//! The ring serves a socket that is in at most one epoll instance, level- or edge-triggered, of one process. Anything else is
//! [demoted](give_up): a second instance, a second number of the same socket, `EPOLLONESHOT`, `EPOLLEXCLUSIVE`, an instance beyond
//! [`SETS`]. The members of an instance are demoted when a second process waits in it or changes it ([`claim`]), and for
//! good when it is nested, polled or passed ([`estrange`]).
//!
//! Whenever a thread sleeps in it, the kernel's instance holds every member exactly as the program registered it. Beside it
//! stands a [`Set`] with the members that have joined, by channels ([`Watched`]). A wait takes the news of its own members
//! ([`crate::ready::wait`]).
//!
//! # States of a member
//! *Registered* (`set` is not 0) · *watched* (`at` is not 0: it has joined, and its channel is in the set's [`Watched`]) ·
//! *fresh* ([`FRESH`]: bytes came since it was last reported, which is what an edge is) · *lagging* (the kernel has
//! it otherwise, see [`crate::ready::deferred_ctl`]).
//!
//! # Synchronization
//! | thread that registers | thread that joins |
//! | --- | --- |
//! | `epoll_ctl`; stores `Member::set`; *fence* | sets `JOINING`; *fence* |
//! | loads `JOINING` and `JOINED` | loads `Member::set` |
//!
//! One of the two finds the other, and [watches](watch) the channel; doing it twice changes nothing. A sender sees whether
//! an instance sleeps by its line of the status page, which a sleep raises before its last look at the news
//! ([`windlass_channel::wait`]). Bytes that are in a ring when a thread registers the socket in an instance where another
//! thread sleeps are moved into the kernel, which wakes it.
//!
//! # Limits
//! [`SETS`] instances a process. Members with equal data that are ready at once are reported as one event. What a process
//! adds to an instance after another process has inherited it, that one does not see in the rings until the first one waits
//! or changes the instance again, or the broker's watch moves it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, fence};

use libc::epoll_event;
use windlass_channel::{Link, Reason, Side, Watched};

use crate::fd::{
    call::Sock,
    record::{Kind, RECORDS_MAX, word},
    table,
};
use crate::process::{identity, pairs};
use crate::socket::{
    demote::demote,
    reclaim,
    state::{self, At},
};
use crate::sys::{clock, kernel, reserved::Reserved};

/// Instances with a line in the status page: lines 1 to 63.
const SETS: usize = 63;

pub(super) const FRESH: u32 = 1;
/// The program has removed it, and the kernel has it still.
pub(super) const ABSENT: u32 = 4;
/// It stands on the list of lagging ones.
pub(super) const QUEUED: u32 = 8;
/// Whether it can be written is answered here.
pub(super) const HERE: u32 = 16;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
/// Ways of reporting that only the kernel has.
const ODD: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;
/// What ring bytes can be reported as.
pub(super) const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// In [`word::WAITED_BY`]: no process may.
const NOBODY: u64 = u64::MAX;
/// [`Member::set`] while it is being filled in.
const FILLING: u32 = u32::MAX;

/// A socket in an instance, by the index of its record.
#[derive(Default)]
pub(super) struct Member {
    /// The set's index + 1; 0: none.
    pub(super) set: AtomicU32,
    pub(super) fd: AtomicI32,
    pub(super) events: AtomicU32,
    pub(super) state: AtomicU32,
    pub(super) data: AtomicU64,
    /// Its channel once it is watched, as a word: see [`At`].
    at: AtomicU64,
    /// The events that the kernel was told.
    pub(super) told: AtomicU32,
    /// When its bytes came, or when it was last reported, in cycles: members are reported in this order.
    pub(super) order: AtomicU64,
    /// When the kernel said that the socket is writable, in cycles, 0 if it did not; and what it had been given by then.
    pub(super) room_at: AtomicU64,
    pub(super) sent: AtomicU64,
}

pub(super) struct Set {
    /// The record of the instance; 0: free.
    pub(super) record: AtomicU32,
    /// Members that are sockets of ours.
    pub(super) members: AtomicU32,
    pub(super) asleep: AtomicU32,
    /// When the kernel was last asked, and waits since then that ended without a look at the clock.
    pub(super) asked_at: AtomicU64,
    /// The last wait that found nothing at first was ended by a ring: the next one spins before it asks the kernel.
    pub(super) is_ring_first: AtomicBool,
    /// Where a wait has room for one event and both have some, the kernel's is next.
    pub(super) is_kernels_turn: AtomicBool,
    /// The record of the member whose ring was last reported, 0: none; and whether it was since its news were taken.
    pub(super) hot: AtomicU32,
    pub(super) is_hot_stale: AtomicBool,
    /// Places of pairs that have, or had, members; and these.
    places: AtomicU64,
    watched: [[Watched; 2]; pairs::PAIRS_MAX],
    /// The instance's number, which [`crate::ready::deferred_ctl`] needs.
    pub(super) fd: AtomicI32,
}

pub(super) static SET: [Set; SETS] = [const {
    Set {
        record: AtomicU32::new(0),
        members: AtomicU32::new(0),
        asleep: AtomicU32::new(0),
        asked_at: AtomicU64::new(0),
        is_ring_first: AtomicBool::new(false),
        is_kernels_turn: AtomicBool::new(false),
        hot: AtomicU32::new(0),
        is_hot_stale: AtomicBool::new(false),
        places: AtomicU64::new(0),
        watched: [const { [const { Watched::new() }; 2] }; pairs::PAIRS_MAX],
        fd: AtomicI32::new(0),
    }
}; SETS];

static MEMBERS: Reserved<Member> = Reserved::new();

/// What this process keeps of a socket's membership, if any socket has been in an instance.
pub(super) fn known_member(sock: &Sock) -> Option<&'static Member> {
    MEMBERS.exists().then(|| member(sock.index())).flatten()
}

/// What this process keeps of a record's membership; none where there is no memory.
pub(super) fn member(record: u32) -> Option<&'static Member> {
    let count = RECORDS_MAX as usize;
    let make = || MEMBERS.make(count, libc::MAP_PRIVATE, libc::MADV_DONTDUMP, |_| {});
    if !MEMBERS.exists() && !make() {
        return None;
    }
    // SAFETY: the mapping has RECORDS_MAX entries.
    (record < RECORDS_MAX).then(|| unsafe { MEMBERS.at(record as usize) })
}

impl Member {
    #[inline]
    pub(super) fn set(&self) -> Option<(usize, &'static Set)> {
        let index = (self.set.load(Acquire) as usize).wrapping_sub(1);
        Some((index, SET.get(index)?))
    }

    #[inline(always)]
    pub(super) fn is_in(&self, set: usize) -> bool {
        self.set.load(Acquire) == set as u32 + 1
    }

    pub(super) fn event(&self) -> epoll_event {
        epoll_event {
            events: self.events.load(Relaxed),
            u64: self.data.load(Relaxed),
        }
    }

    /// The program asks for this, and the kernel has been told.
    fn register(&self, asked: epoll_event) {
        self.events.store(asked.events, Relaxed);
        self.data.store(asked.u64, Relaxed);
        self.told.store(asked.events, Relaxed);
    }

    #[inline(always)]
    pub(super) fn at(&self) -> Option<At> {
        At::of(self.at.load(Acquire))
    }

    /// Bytes have come: an edge, and in the order of `at` unless it has some already that were not reported.
    pub(super) fn freshen(&self, at: u64) {
        if self.state.fetch_or(FRESH, AcqRel) & FRESH == 0 {
            self.order.store(at, Relaxed);
        }
    }
}

impl Set {
    pub(super) fn of(instance: &Sock) -> Option<(usize, &'static Set)> {
        let index = instance.index();
        SET.iter()
            .enumerate()
            .find(|(_, set)| set.record.load(Relaxed) == index)
    }

    pub(super) fn of_or_new(instance: &Sock) -> Option<(usize, &'static Set)> {
        Self::of(instance).or_else(|| {
            let take = |set: &Set| {
                set.record
                    .compare_exchange(0, instance.index(), AcqRel, Relaxed)
                    .is_ok()
            };
            SET.iter().enumerate().find(|(_, set)| take(set))
        })
    }

    pub(super) fn line(index: usize) -> u8 {
        index as u8 + 1
    }

    /// Has the next wait ask the kernel: it may know more of an edge-triggered member that was added or changed, and an edge
    /// carries the whole mask.
    fn ask_for(&self, events: u32) {
        if events & EDGE != 0 {
            self.asked_at.store(0, Relaxed);
        }
    }

    /// The places and sides in which it may have members.
    #[inline(always)]
    pub(super) fn watched(&self) -> impl Iterator<Item = (u8, Side, &Watched)> {
        let (mut places, mut side) = (self.places.load(Relaxed), Side::High);
        std::iter::from_fn(move || {
            let place = (places != 0).then(|| places.trailing_zeros() as u8)?;
            side = side.other();
            if side == Side::High {
                places &= places - 1;
            }
            Some((place, side, self.watched_at(place, side)))
        })
    }

    #[inline(always)]
    pub(super) fn watched_at(&self, place: u8, side: Side) -> &Watched {
        &self.watched[usize::from(place) % pairs::PAIRS_MAX][side as usize]
    }

    /// Puts a member on the list of those that the next wait looks at.
    pub(super) fn list(&self, member: &Member) {
        if let Some(At { place, side, chan }) = member.at() {
            member.freshen(clock::now());
            self.watched_at(place, side).list(chan);
        }
    }
}

/// A socket that is about to join is watched by the instance that it is in.
pub fn show(sock: &Sock, place: u8, link: &Link<'static>) {
    if let Some(member) = known_member(sock) {
        watch(member, place, link);
    }
}

/// The set of a member watches its channel from now on. The slot is a line of the page of the process that joined.
fn watch(member: &Member, place: u8, link: &Link<'static>) {
    let Some((index, set)) = member.set() else {
        return;
    };
    let (side, chan) = (link.side(), link.index());
    member.at.store(At { place, side, chan }.word(), Release);
    set.watched_at(place, side).add(chan);
    set.places.fetch_or(1 << (place % 64), SeqCst);
    link.incoming().set_slot(Set::line(index));
}

/// Whether this process is the one that joined.
fn is_ours(link: &Link<'static>) -> bool {
    link.info(link.side()).slot == identity::process_slot()
}

/// The calling process waits in the instance or changes it: if another one did before, the members that are known here go to the
/// kernel. False: the rings do not serve this instance.
#[inline]
pub(super) fn claim(instance: &Sock) -> bool {
    let word = &instance.record.words[word::WAITED_BY];
    let (me, before) = (u64::from(identity::process_id()), word.load(Relaxed));
    before == me || claim_anew(instance, before, me)
}

#[cold]
fn claim_anew(instance: &Sock, before: u64, me: u64) -> bool {
    if before == NOBODY {
        return false;
    }
    instance.record.words[word::WAITED_BY].store(me, Relaxed);
    if before != 0 {
        demote_members(instance);
    }
    true
}

/// The instance is waited for by other means than `epoll_wait` in this process: its members are the kernel's, now and later, and the
/// kernel knows of each.
pub fn estrange(instance: &Sock) {
    let owner = &instance.record.words[word::WAITED_BY];
    if owner.load(Relaxed) != NOBODY {
        owner.store(NOBODY, Release);
        demote_members(instance);
    }
}

#[cold]
fn demote_members(instance: &Sock) {
    let Some((index, set)) = Set::of(instance) else {
        return;
    };
    if set.members.load(Relaxed) != 0 {
        each_in(index).for_each(|(sock, _)| give_up(&sock));
    }
}

/// The socket is registered in a way that only the kernel reports by.
fn give_up(sock: &Sock) {
    demote(sock, Reason::Asleep);
    forget(sock);
}

pub(super) fn each_in(set: usize) -> impl Iterator<Item = (Sock, &'static Member)> {
    table::sockets().filter_map(move |sock| {
        let member = member(sock.index())?;
        member.is_in(set).then_some((sock, member))
    })
}

pub(super) fn added(instance: &Sock, sock: &Sock, asked: epoll_event, is_served: bool) {
    if !state::is_young(sock.record) {
        return;
    }
    let is_plain = is_served && asked.events & ODD == 0;
    let set = is_plain.then(|| Set::of_or_new(instance)).flatten();
    let fill = |member: &&Member| {
        let swap = member.set.compare_exchange(0, FILLING, AcqRel, Relaxed);
        swap.is_ok()
    };
    let filled = set.and_then(|set| Some((set, member(sock.index()).filter(fill)?)));
    let Some(((index, set), member)) = filled else {
        return give_up(sock);
    };
    member.fd.store(sock.fd, Relaxed);
    member.register(asked);
    member.state.store(0, Relaxed);
    member.room_at.store(0, Relaxed);
    member.set.store(index as u32 + 1, Release);
    set.members.fetch_add(1, Relaxed);
    set.ask_for(asked.events);
    fence(SeqCst);
    if let Some(link) = state::after_join(sock) {
        match state::place(sock).filter(|_| is_ours(&link)) {
            Some(place) => watch(member, place, &link),
            None => return give_up(sock),
        }
        renew(sock, set, member, &link);
    }
}

pub(super) fn changed(instance: &Sock, sock: &Sock, asked: epoll_event) {
    let Some((set, member)) = membership(instance, sock) else {
        return;
    };
    if asked.events & ODD != 0 {
        return give_up(sock);
    }
    set.ask_for(asked.events);
    member.register(asked);
    if member.state.load(Relaxed) & HERE != 0 {
        member.state.fetch_and(!HERE, Relaxed);
    }
    if let Some(link) = state::joined(sock) {
        renew(sock, set, member, &link);
    }
}

pub(super) fn removed(instance: &Sock, sock: &Sock) {
    if let Some((set, member)) = membership(instance, sock) {
        drop_member(set, member);
    }
}

/// The membership of a socket in an instance, by the number that was registered.
fn membership(instance: &Sock, sock: &Sock) -> Option<(&'static Set, &'static Member)> {
    let (index, set) = Set::of(instance)?;
    let member = member(sock.index())?;
    let is_it = member.is_in(index) && member.fd.load(Relaxed) == sock.fd;
    is_it.then_some((set, member))
}

/// Ring bytes that are there already are an edge, and have to wake a sleeper.
fn renew(sock: &Sock, set: &Set, member: &Member, link: &Link<'static>) {
    if link.incoming().queued() == 0 {
        return;
    }
    set.list(member);
    fence(SeqCst);
    if set.asleep.load(SeqCst) != 0 {
        reclaim::drain(sock, link, Reason::Asleep);
    }
}

/// A call that may not wait said `EAGAIN` because another thread held a lock, whatever was there: what edges were for it are
/// edges once more, those of the ring and those of the kernel.
#[cold]
pub fn again(sock: &Sock) {
    let Some(member) = known_member(sock) else {
        return;
    };
    let Some((_, set)) = member.set() else { return };
    if member.events.load(Relaxed) & EDGE == 0 {
        return;
    }
    if let Some(link) = state::joined(sock) {
        renew(sock, set, member, &link);
    }
    if let Some(instance) = table::numbers_of(set.record.load(Relaxed)).next() {
        let (fd, mut event) = (member.fd.load(Relaxed), member.event());
        // A member that is gone by now has nothing to report.
        let _ = kernel::epoll_ctl(instance.fd, libc::EPOLL_CTL_MOD, fd, &mut event);
    }
}

pub(super) fn drop_member(set: &Set, member: &Member) {
    if let Some(at) = At::of(member.at.swap(0, AcqRel)) {
        set.watched_at(at.place, at.side).remove(at.chan);
        if let Some(link) = at.link().filter(is_ours) {
            link.incoming().set_slot(0);
        }
    }
    member.state.store(0, Relaxed);
    if member.set.swap(0, AcqRel) != 0 {
        set.members.fetch_sub(1, Relaxed);
    }
}

/// A number is about to be closed: the last one of a socket in this process is in no set, and an instance has no members.
pub fn before_close(sock: &Sock) {
    let is_only = || table::numbers_of(sock.index()).nth(1).is_none();
    if sock.record.kind() == Some(Kind::Epoll) {
        if is_only() {
            clear(sock);
        }
    } else if sock.record.holders.load(Relaxed) == 1 || is_only() {
        forget(sock);
    }
}

/// A number was closed out of our sight.
pub fn vanished(sock: &Sock) {
    if sock.record.kind() == Some(Kind::Epoll) {
        before_close(sock);
    } else {
        forget(sock);
    }
}

fn forget(sock: &Sock) {
    if let Some(member) = known_member(sock)
        && let Some((_, set)) = member.set()
    {
        drop_member(set, member);
    }
}

fn clear(instance: &Sock) {
    let Some((index, set)) = Set::of(instance) else {
        return;
    };
    each_in(index).for_each(|(_, member)| drop_member(set, member));
    let words = [&set.members, &set.asleep, &set.hot];
    words.into_iter().for_each(|word| word.store(0, Relaxed));
    set.places.store(0, Relaxed);
    set.record.store(0, Release);
}

/// In a forked child: nobody sleeps.
pub fn forked() {
    SET.iter().for_each(|set| set.asleep.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member keeps the order of the first bytes that were not reported; a report lets the next ones count.
    #[test]
    fn a_member_keeps_the_order_of_its_first_unreported_bytes() {
        let member = Member::default();
        for (at, order) in [(5, 5), (9, 5)] {
            member.freshen(at);
            assert_eq!(member.order.load(Relaxed), order);
        }
        member.state.fetch_and(!FRESH, Relaxed);
        member.freshen(11);
        assert_eq!(member.order.load(Relaxed), 11);
    }

    /// A set goes through the sides of the places in which it has members, and of no others; what is listed is found there.
    #[test]
    fn a_set_looks_where_it_has_members() {
        let set = &SET[SETS - 1];
        assert_eq!(set.watched().count(), 0);
        for place in [3, 1] {
            set.places.fetch_or(1 << place, Relaxed);
        }
        let places: Vec<_> = set.watched().map(|(place, ..)| place).collect();
        assert_eq!(places, [1, 1, 3, 3]);
        let (member, chan) = (Member::default(), 7);
        let at = At {
            place: 3,
            side: Side::High,
            chan,
        };
        member.at.store(at.word(), Relaxed);
        set.watched_at(at.place, at.side).add(chan);
        set.list(&member);
        assert!(member.state.load(Relaxed) & FRESH != 0);
        let listed = set.watched().filter(|(.., watched)| watched.has_listed());
        let listed: Vec<_> = listed.map(|(place, side, _)| (place, side)).collect();
        assert_eq!(listed, [(3, Side::High)]);
        set.watched_at(at.place, at.side).remove(chan);
        set.places.store(0, Relaxed);
    }
}
