//! epoll: instances that report ring bytes beside what the kernel reports.
//!
//! # Model
//! Whenever somebody sleeps there, the kernel's instance holds every member exactly as the program registered it, so that he
//! sleeps as without this library. Beside it stands a [`Set`] with the members that are TCP sockets of ours, and a list
//! of those that may have ring bytes (*ready list*). A wait takes the news of all pairs, puts the members
//! concerned on their sets' lists, and reports from its own list.
//!
//! # States of a member
//! *Registered* (`set` is not 0) · *listed* ([`LISTED`]: it is on the ready list, and will be looked at) · *fresh*
//! ([`FRESH`]: bytes came since it was last reported, which is what an edge is) · *disarmed* ([`DISARMED`]: one-shot,
//! reported, and not renewed) · *muted* ([`MUTED`]: spent by bytes of the ring; the kernel can be told to report nothing
//! of it but errors and the end, and the first such report is swallowed, which disarms it there, too) · *poked* ([`POKED`]) ·
//! *lagging* ([`LAGS`]: the kernel has it otherwise, see [`super::interest`]; [`ABSENT`]: the program has removed it).
//!
//! # Synchronization
//! Lists are changed under the set's lock, a word that is held for a few hundred nanoseconds with signals put off. A sender
//! sees whether an instance sleeps by its line of the status page, which every sleep raises before its last look at
//! the news. A thread that takes news for another set whose line is up wakes that set by its kernel
//! registration ([`poke`]).
//!
//! # Limits
//! [`SETS`] instances a process, four instances a socket; a socket beyond goes by the kernel whenever its receiver could
//! be asleep: always.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, fence};

use libc::epoll_event;
use windlass_channel::{Link, Reason, SLOT_ALWAYS};

use super::armed::{self, Fired};
use super::interest::{self, LAGGING_MAX};
use super::twins::Seen;
use super::{kernel, memory, promote, stream};
use crate::own::{Own, Sock};
use crate::record::RECORDS_MAX;
use crate::{owner, signals, table};

/// Instances with a line in the status page: lines 1 to 63.
const SETS: usize = 63;
/// Instances that a socket can be in.
const PLACES: usize = 4;
/// Members on a ready list, at most; one more makes the next wait look at all of them.
pub(super) const READY_MAX: usize = 2_048;

pub(super) const LISTED: u32 = 1;
pub(super) const FRESH: u32 = 2;
pub(super) const DISARMED: u32 = 4;
pub(super) const POKED: u32 = 8;
pub(super) const MUTED: u32 = 16;
/// The kernel has other events of it than the program wants, or has it although the program has removed it ([`ABSENT`]).
pub(super) const LAGS: u32 = 32;
pub(super) const ABSENT: u32 = 64;
/// It stands on the list of lagging ones.
pub(super) const QUEUED: u32 = 128;
/// Whether it can be written is answered here.
pub(super) const HERE: u32 = 256;
pub(super) const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Of the waits in a row that report one ring event, one in so many looks at the clock for asking the kernel, too.
pub(super) const CLOCK_WAITS: u32 = 4;
/// What ring bytes can be reported as.
pub(super) const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// A socket in an instance.
#[derive(Default)]
pub(super) struct Member {
    /// The set's index + 1; 0: none.
    pub(super) set: AtomicU32,
    pub(super) fd: AtomicI32,
    pub(super) events: AtomicU32,
    pub(super) state: AtomicU32,
    pub(super) data: AtomicU64,
    /// One-shot: what the kernel had reported of the set when it was armed.
    pub(super) armed_at: AtomicU64,
    /// The events that the kernel was told.
    pub(super) told: AtomicU32,
    /// When the kernel said that the socket is writable, in cycles, 0 if it did not; and what it had been given by then.
    pub(super) room_at: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// What this process knows of a record beside what its family shares.
pub(super) struct Local {
    pub(super) members: [Member; PLACES],
    /// More memberships than places, ever: it stays on the kernel while it might be waited for.
    pub(super) crowded: AtomicU32,
}

/// One epoll instance.
pub(super) struct Set {
    /// The record of the instance; 0: free.
    pub(super) record: AtomicU32,
    pub(super) lock: AtomicBool,
    /// Members that are ours.
    pub(super) members: AtomicU32,
    /// Threads asleep in it while this process had no status page: its line does not show them.
    pub(super) unshown: AtomicU32,
    /// Threads asleep in it.
    pub(super) asleep: AtomicU32,
    /// Members whose kernel registration was changed to wake a sleeper.
    pub(super) poked: AtomicU32,
    /// The list was full: every joined member has to be looked at.
    pub(super) scan: AtomicBool,
    /// It is itself waited for, or belongs to another process too: its members stay on the kernel.
    pub(super) is_foreign: AtomicBool,
    /// It has, or had, one-shot members.
    pub(super) has_one_shots: AtomicBool,
    /// What the kernel reported lately, of such a set.
    pub(super) fired: Fired,
    /// Its members by their data.
    pub(super) seen: Seen,
    /// One-shot members that the ring spent and that the kernel would still report as broken.
    pub(super) muted: AtomicU32,
    /// When the kernel was last asked, and waits since then that ended without a look at the clock.
    pub(super) asked_at: AtomicU64,
    pub(super) unasked: AtomicU32,
    /// The last wait that found nothing at first was ended by the kernel: the next one asks it before it spins.
    pub(super) kernel_first: AtomicBool,
    /// The record of the member whose ring was last reported; 0: none. Looked at first.
    pub(super) hot: AtomicU32,
    pub(super) length: AtomicU32,
    pub(super) ready: [AtomicU32; READY_MAX],
    /// See [`super::interest`]: the records of lagging members; changes that were seen; whether the kernel has what we think.
    pub(super) lagging: AtomicU32,
    pub(super) laggards: [AtomicU32; LAGGING_MAX],
    pub(super) changes: AtomicU32,
    pub(super) is_trusted: AtomicU32,
}

pub(super) static SET: [Set; SETS] = [const {
    Set {
        record: AtomicU32::new(0),
        lock: AtomicBool::new(false),
        members: AtomicU32::new(0),
        unshown: AtomicU32::new(0),
        asleep: AtomicU32::new(0),
        poked: AtomicU32::new(0),
        scan: AtomicBool::new(false),
        is_foreign: AtomicBool::new(false),
        has_one_shots: AtomicBool::new(false),
        fired: Fired::new(),
        seen: Seen::new(),
        muted: AtomicU32::new(0),
        asked_at: AtomicU64::new(0),
        unasked: AtomicU32::new(0),
        kernel_first: AtomicBool::new(true),
        hot: AtomicU32::new(0),
        length: AtomicU32::new(0),
        ready: [const { AtomicU32::new(0) }; READY_MAX],
        lagging: AtomicU32::new(0),
        laggards: [const { AtomicU32::new(0) }; LAGGING_MAX],
        changes: AtomicU32::new(0),
        is_trusted: AtomicU32::new(0),
    }
}; SETS];

static LOCALS: AtomicPtr<Local> = AtomicPtr::new(null_mut());

/// Whether any socket has been in an instance.
pub(super) fn has_locals() -> bool {
    !LOCALS.load(Relaxed).is_null()
}

/// What this process keeps of a record; none where there is no memory.
pub(super) fn local(record: u32) -> Option<&'static Local> {
    let base = match LOCALS.load(Acquire) {
        base if base.is_null() => make_locals()?,
        base => base,
    };
    let place = base.wrapping_add(record as usize);
    // SAFETY: the mapping has RECORDS_MAX entries, zeros are valid ones, and it is never unmapped.
    (record < RECORDS_MAX).then(|| unsafe { &*place })
}

#[cold]
fn make_locals() -> Option<*mut Local> {
    let bytes = RECORDS_MAX as usize * size_of::<Local>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at any address.
    let place = unsafe {
        libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return None;
    }
    let mine = place.cast::<Local>();
    match LOCALS.compare_exchange(null_mut(), mine, AcqRel, Acquire) {
        Ok(_) => Some(mine),
        Err(other) => {
            // SAFETY: another thread was first; nobody has seen this mapping.
            unsafe { libc::munmap(place, bytes) };
            Some(other)
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

    /// The set of an instance, made if there is room.
    pub(super) fn of_or_new(instance: &Sock) -> Option<(usize, &'static Set)> {
        Self::of(instance).or_else(|| {
            let index = instance.index();
            let mut all = SET.iter().enumerate();
            let made = all.find(|(_, set)| {
                set.record
                    .compare_exchange(0, index, AcqRel, Relaxed)
                    .is_ok()
            });
            if let Some((_, set)) = made {
                set.seen.learn(instance.fd);
            }
            made
        })
    }

    pub(super) fn line(index: usize) -> u8 {
        index as u8 + 1
    }

    pub(super) fn locked<T>(&self, inside: impl FnOnce() -> T) -> T {
        signals::enter();
        while self
            .lock
            .compare_exchange_weak(false, true, Acquire, Relaxed)
            .is_err()
        {
            std::hint::spin_loop();
        }
        let result = inside();
        self.lock.store(false, Release);
        signals::leave();
        result
    }

    /// Has the next wait ask the kernel: it may know more of an edge-triggered member that was added or changed, and an edge
    /// carries the whole mask.
    fn ask_for(&self, events: u32) {
        if events & libc::EPOLLET as u32 != 0 {
            self.asked_at.store(0, Relaxed);
            self.unasked.store(CLOCK_WAITS, Relaxed);
        }
    }

    /// Puts a record on the ready list, unless it is there: for another of its members, or for one that was removed. Under the
    /// lock.
    fn push(&self, record: u32) {
        let length = self.length.load(Relaxed) as usize;
        let listed = self.ready.iter().take(length);
        if listed
            .into_iter()
            .any(|place| place.load(Relaxed) == record)
        {
            return;
        }
        match self.ready.get(length) {
            Some(place) => {
                place.store(record, Relaxed);
                self.length.store(length as u32 + 1, Relaxed);
            }
            None => self.scan.store(true, Relaxed),
        }
    }
}

impl Local {
    pub(super) fn of_set(&self, set: usize) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |member| member.set.load(Relaxed) == set as u32 + 1)
    }

    /// The slots that a sender has to look at.
    fn slots(&self) -> [u8; PLACES] {
        if self.crowded.load(Relaxed) != 0 {
            return [SLOT_ALWAYS, 0, 0, 0];
        }
        let mut slots = [0; PLACES];
        for (slot, member) in slots.iter_mut().zip(&self.members) {
            let Some(set) = SET.get((member.set.load(Relaxed) as usize).wrapping_sub(1)) else {
                continue;
            };
            let is_shown = set.unshown.load(SeqCst) == 0 && !set.is_foreign.load(Relaxed);
            *slot = if is_shown {
                member.set.load(Relaxed) as u8
            } else {
                SLOT_ALWAYS
            };
        }
        slots
    }
}

/// A socket that is about to join shows in which instances it is.
pub fn show(sock: &Sock, link: &Link<'static>) {
    if let Some(local) = local(sock.index()) {
        link.incoming().set_slots(local.slots());
    }
}

/// Shows it anew after a change. Slots are lines of the page of the process that joined: one that was forked from it has
/// other lines, which the sender does not see, and changes nothing.
pub(super) fn show_again(link: &Link<'static>, local: &Local) {
    if is_ours(link) {
        link.incoming().set_slots(local.slots());
    }
}

/// Whether this process is the one that joined.
fn is_ours(link: &Link<'static>) -> bool {
    link.info(link.side()).slot == owner::process_slot()
}

/// `epoll_ctl`.
pub fn control(
    instance: Sock,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
    own: Own,
) -> isize {
    if let Some(inner) = table::epoll(fd) {
        interest::settle_all();
        if operation == libc::EPOLL_CTL_ADD {
            estrange(&inner);
        }
        return own.call();
    }
    let Some(sock) = table::known(fd).filter(|sock| promote::is_stream(sock.record)) else {
        if operation != libc::EPOLL_CTL_DEL
            && let Some(((_, set), asked)) = Set::of(&instance).zip(memory::fetch(event))
        {
            set.seen.add(asked.u64);
        }
        interest::settle_all();
        return own.call();
    };
    let none = epoll_event { events: 0, u64: 0 };
    let asked = if operation == libc::EPOLL_CTL_DEL {
        Some(none)
    } else {
        memory::fetch(event)
    };
    let Some(asked) = asked else {
        return own.call();
    };
    if interest::defer(&instance, &sock, operation, asked) {
        return 0;
    }
    interest::settle_all();
    let result = match operation {
        libc::EPOLL_CTL_ADD => return add(&instance, &sock, asked, own),
        libc::EPOLL_CTL_MOD => modify(&instance, &sock, asked, own),
        libc::EPOLL_CTL_DEL => {
            let result = own.call();
            if result == 0 {
                remove(&instance, &sock);
            }
            result
        }
        _ => own.call(),
    };
    // The process that joined cannot see it, and would go on as before: the kernel alone tells it from now on.
    if result == 0
        && let Some(link) = promote::joined(&sock).filter(|link| !is_ours(link))
    {
        stream::drain(&sock, &link, Reason::Asleep);
    }
    result
}

fn add(instance: &Sock, sock: &Sock, asked: epoll_event, own: Own) -> isize {
    let set = Set::of_or_new(instance);
    let before = note_one_shot(set, asked.events);
    let result = own.call();
    if result != 0 {
        return result;
    }
    let Some(local) = local(sock.index()) else {
        super::life::plain(sock, Reason::Asleep);
        return result;
    };
    let free = local
        .members
        .iter()
        .find(|member| member.set.load(Relaxed) == 0);
    match (set, free) {
        (Some((index, set)), Some(member)) => {
            member.fd.store(sock.fd, Relaxed);
            member.events.store(asked.events, Relaxed);
            member.data.store(asked.u64, Relaxed);
            member.state.store(0, Relaxed);
            member.armed_at.store(before, Relaxed);
            member.told.store(asked.events, Relaxed);
            member.room_at.store(0, Relaxed);
            member.set.store(index as u32 + 1, Release);
            set.members.fetch_add(1, Relaxed);
            set.seen.add(asked.u64);
            set.ask_for(asked.events);
        }
        _ => local.crowded.store(1, Relaxed),
    }
    fence(SeqCst);
    // Who joins looks at the members after it has said so; here the member comes first. One of the two sees the other.
    if let Some(link) = promote::settled(sock) {
        if !is_ours(&link) {
            stream::drain(sock, &link, Reason::Asleep);
            return result;
        }
        link.incoming().set_slots(local.slots());
        if let Some((index, _)) = set {
            renew(sock, local, index, &link);
        }
    }
    result
}

/// An instance was changed, or was not, by other means than a call of `epoll_ctl`; `again` is a change of the member to the same
/// events. False: whether the socket is a member is not known.
pub fn changed_by_ring(
    instance: &Sock,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
    again: Own,
) -> bool {
    if table::epoll(fd).is_some_and(|inner| {
        estrange(&inner);
        true
    }) {
        return true;
    }
    let asked = memory::fetch(event);
    let Some(sock) = table::known(fd).filter(|sock| promote::is_stream(sock.record)) else {
        if let Some(((_, set), asked)) = Set::of(instance).zip(asked) {
            set.seen.add(asked.u64);
        }
        return true;
    };
    let is_member =
        Set::of(instance)
            .zip(local(sock.index()))
            .is_some_and(|((index, _), local)| {
                local
                    .of_set(index)
                    .any(|member| member.fd.load(Relaxed) == fd)
            });
    match (operation, asked) {
        (libc::EPOLL_CTL_DEL, _) => {
            if is_member {
                remove(instance, &sock);
            }
            true
        }
        // Refused: there is one already.
        (libc::EPOLL_CTL_ADD, _) if is_member => true,
        (_, Some(asked)) if is_member => modify(instance, &sock, asked, again) == 0,
        (_, Some(asked)) => add(instance, &sock, asked, again) == 0,
        (_, None) => true,
    }
}

/// What the kernel has reported of the instance so far, if a one-shot member is about to be armed in it.
fn note_one_shot(set: Option<(usize, &'static Set)>, events: u32) -> u64 {
    set.filter(|_| events & ONE_SHOT != 0)
        .map_or(0, |(_, set)| {
            set.has_one_shots.store(true, SeqCst);
            set.fired.count()
        })
}

fn modify(instance: &Sock, sock: &Sock, asked: epoll_event, own: Own) -> isize {
    let set = Set::of(instance);
    let before = note_one_shot(set, asked.events);
    let result = own.call();
    let found = set.filter(|_| result == 0).zip(local(sock.index()));
    if let Some(((index, set), local)) = found {
        set.ask_for(asked.events);
        for member in local
            .of_set(index)
            .filter(|member| member.fd.load(Relaxed) == sock.fd)
        {
            member.events.store(asked.events, Relaxed);
            let is_other = member.data.load(Relaxed) != asked.u64;
            let data = if is_other {
                member.data.swap(asked.u64, Relaxed)
            } else {
                asked.u64
            };
            if data != asked.u64 {
                set.seen.remove(data);
                set.seen.add(asked.u64);
            }
            member.armed_at.store(before, Relaxed);
            unmute(set, member);
            member.told.store(asked.events, Relaxed);
            let over = DISARMED | POKED | HERE;
            if member.state.load(Relaxed) & over != 0 {
                member.state.fetch_and(!over, Relaxed);
            }
        }
        if let Some(link) = promote::joined(sock) {
            renew(sock, local, index, &link);
        }
    }
    result
}

/// A registration was made or changed: ring bytes that are there already are an edge, and wake a sleeper.
fn renew(sock: &Sock, local: &'static Local, index: usize, link: &Link<'static>) {
    if link.incoming().queued() == 0 {
        return;
    }
    let Some(set) = SET.get(index) else { return };
    for member in local.of_set(index) {
        list(set, sock.index(), member);
        wake(set, member);
    }
}

/// A muted member is one no more.
pub(super) fn unmute(set: &Set, member: &Member) {
    let is_muted = member.state.load(Acquire) & MUTED != 0;
    if is_muted && member.state.fetch_and(!MUTED, AcqRel) & MUTED != 0 {
        set.muted.fetch_sub(1, Relaxed);
    }
}

/// Whether a one-shot member was reported since it was armed, by the kernel as far as that is known or can be seen.
pub(super) fn is_spent(instance: c_int, set: &Set, member: &Member) -> bool {
    if member.events.load(Relaxed) & ONE_SHOT == 0 {
        return false;
    }
    if member.state.load(Acquire) & DISARMED != 0 {
        return true;
    }
    let (data, now) = (member.data.load(Relaxed), set.fired.count());
    if !set.fired.may_have(data, member.armed_at.load(Relaxed)) {
        return false;
    }
    if armed::mask(instance, member.fd.load(Relaxed), data) == Some(0) {
        member.state.fetch_or(DISARMED, AcqRel);
        return true;
    }
    member.armed_at.store(now, Relaxed);
    false
}

/// Puts a member on its set's ready list.
pub(super) fn list(set: &Set, record: u32, member: &Member) {
    let before = member.state.fetch_or(LISTED | FRESH, AcqRel);
    if before & LISTED == 0 {
        set.locked(|| set.push(record));
    }
}

/// Wakes the sleepers of a set, if there are any, for a member that was just listed.
pub(super) fn wake(set: &Set, member: &Member) {
    fence(SeqCst);
    if set.asleep.load(SeqCst) != 0 {
        poke(set, member);
    }
}

/// A call that may not wait said `EAGAIN` because somebody else held a lock, whatever was there: what edges were for it are
/// edges once more.
#[cold]
pub fn again(sock: &Sock) {
    let Some(local) = local(sock.index()) else {
        return;
    };
    for member in &local.members {
        let events = member.events.load(Relaxed);
        let Some(set) = SET.get((member.set.load(Acquire) as usize).wrapping_sub(1)) else {
            continue;
        };
        // A level is looked at anyway, and who holds a one-shot member renews it.
        if events & libc::EPOLLET as u32 == 0 || events & libc::EPOLLONESHOT as u32 != 0 {
            continue;
        }
        if !set.is_foreign.load(Relaxed) {
            list(set, sock.index(), member);
            poke(set, member);
        } else if let Some(instance) = instance_of(set) {
            let data = member.data.load(Relaxed);
            let mut event = epoll_event { events, u64: data };
            // A member that is gone by now has nothing to report.
            let _ = kernel::epoll_ctl(
                instance,
                libc::EPOLL_CTL_MOD,
                member.fd.load(Relaxed),
                &mut event,
            );
        }
    }
}

/// The doorbell: the socket is writable, so asking the kernel for that, too, wakes a sleeper, who undoes it.
#[cold]
fn poke(set: &Set, member: &Member) {
    let Some(instance) = instance_of(set) else {
        return;
    };
    if is_spent(instance, set, member) {
        return;
    }
    let mut event = epoll_event {
        events: member.events.load(Relaxed) | libc::EPOLLOUT as u32,
        u64: member.data.load(Relaxed),
    };
    member.state.fetch_or(POKED, AcqRel);
    set.poked.fetch_add(1, AcqRel);
    let fd = member.fd.load(Relaxed);
    // A member that is gone by now needs no waking. An exclusive one cannot be changed: its bytes have to wake.
    let changed = kernel::epoll_ctl(instance, libc::EPOLL_CTL_MOD, fd, &mut event);
    if changed == Err(libc::EINVAL)
        && let Some(sock) = table::known(fd)
        && let Some(link) = promote::joined(&sock)
    {
        stream::drain(&sock, &link, Reason::Asleep);
    }
}

/// A descriptor of the instance.
pub(super) fn instance_of(set: &Set) -> Option<c_int> {
    let record = set.record.load(Relaxed);
    table::each()
        .find(|sock| sock.index() == record)
        .map(|sock| sock.fd)
}

/// The member of an instance with this data that has joined.
#[cold]
pub fn member_with(instance: &Sock, data: u64) -> Option<Sock> {
    let (index, _) = Set::of(instance)?;
    table::each()
        .filter(|sock| table::kind_of(sock.word) == table::TRACKED)
        .filter(|sock| sock.record.has(promote::JOINED))
        .find(|sock| {
            let mut members = local(sock.index())
                .into_iter()
                .flat_map(|local| local.of_set(index));
            members.any(|member| member.data.load(Relaxed) == data)
        })
}

fn remove(instance: &Sock, sock: &Sock) {
    let Some(((index, set), local)) = Set::of(instance).zip(local(sock.index())) else {
        return;
    };
    let link = promote::joined(sock);
    for member in local
        .of_set(index)
        .filter(|member| member.fd.load(Relaxed) == sock.fd)
    {
        drop_member(set, member);
    }
    if let Some(link) = link {
        show_again(&link, local);
    }
}

/// Another socket has taken the numbers of this one: the kernel forgot their registrations, and is told of them again.
#[cold]
pub fn add_again(sock: &Sock) {
    for member in local(sock.index()).iter().flat_map(|local| &local.members) {
        let set = SET.get((member.set.load(Acquire) as usize).wrapping_sub(1));
        if let Some(instance) = set.and_then(instance_of)
            && member.state.load(Acquire) & DISARMED == 0
        {
            let mut event = epoll_event {
                events: member.events.load(Relaxed),
                u64: member.data.load(Relaxed),
            };
            let fd = member.fd.load(Relaxed);
            // A member that is gone by now has nothing to report.
            let _ = kernel::epoll_ctl(instance, libc::EPOLL_CTL_ADD, fd, &mut event);
        }
    }
}

/// Whether the socket is in an instance that the next program will have.
pub fn outlive(sock: &Sock) -> bool {
    if !has_locals() {
        return false;
    }
    let Some(local) = local(sock.index()) else {
        return true;
    };
    let survives = |member: &Member| {
        let set = SET.get((member.set.load(Acquire) as usize).wrapping_sub(1))?;
        let record = set.record.load(Relaxed);
        let mut numbers = table::each().filter(|instance| instance.index() == record);
        Some(numbers.any(|instance| table::survives(&instance)))
    };
    local.crowded.load(Relaxed) != 0 || local.members.iter().filter_map(survives).any(|does| does)
}

/// Whether the kernel has every membership of the socket as the program wants it.
pub fn is_as_told(sock: &Sock) -> bool {
    if !has_locals() {
        return true;
    }
    let differs = DISARMED | POKED | MUTED | LAGS | ABSENT;
    let mut members = local(sock.index())
        .into_iter()
        .flat_map(|local| &local.members)
        .filter(|member| member.set.load(Acquire) != 0);
    members.all(|member| member.state.load(Acquire) & differs == 0)
}

pub(super) fn drop_member(set: &Set, member: &Member) {
    unmute(set, member);
    interest::dropped(member);
    set.seen.remove(member.data.load(Relaxed));
    member.set.store(0, Release);
    member.state.store(0, Relaxed);
    set.members.fetch_sub(1, Relaxed);
}

/// The last number of a socket in this process goes: the kernel forgets its registrations, and so do we.
pub fn forget(sock: &Sock) {
    if LOCALS.load(Relaxed).is_null() {
        return;
    }
    let Some(local) = local(sock.index()) else {
        return;
    };
    for member in &local.members {
        if let Some(set) = SET.get((member.set.load(Relaxed) as usize).wrapping_sub(1)) {
            drop_member(set, member);
        }
    }
    local.crowded.store(0, Relaxed);
}

/// An instance is closed: its members are in one set fewer.
pub fn closed(instance: &Sock) {
    let last = table::each()
        .filter(|other| other.index() == instance.index())
        .count()
        <= 1;
    let Some((index, set)) = Set::of(instance).filter(|_| last) else {
        return;
    };
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        let Some(local) = local(sock.index()) else {
            continue;
        };
        let mut was_in = false;
        for member in local.of_set(index) {
            interest::dropped(member);
            member.set.store(0, Release);
            was_in = true;
        }
        if let Some(link) = promote::joined(&sock).filter(|_| was_in) {
            show_again(&link, local);
        }
    }
    for word in [
        &set.members,
        &set.unshown,
        &set.asleep,
        &set.poked,
        &set.muted,
        &set.length,
        &set.hot,
        &set.lagging,
        &set.changes,
        &set.is_trusted,
    ] {
        word.store(0, Relaxed);
    }
    set.scan.store(false, Relaxed);
    set.is_foreign.store(false, Relaxed);
    set.has_one_shots.store(false, Relaxed);
    set.seen.clear();
    set.record.store(0, Release);
}

/// The instance is waited for by other means than `epoll_wait` here: its members' bytes have to be in the kernel.
pub fn estrange(instance: &Sock) {
    let Some((index, set)) = Set::of_or_new(instance) else {
        return;
    };
    interest::settle_all();
    if set.is_foreign.swap(true, AcqRel) {
        return;
    }
    for sock in table::each().filter(|sock| table::kind_of(sock.word) == table::TRACKED) {
        let Some(local) = local(sock.index()) else {
            continue;
        };
        if let Some(link) = promote::joined(&sock).filter(|_| local.of_set(index).next().is_some())
        {
            link.incoming().set_slots(local.slots());
            stream::drain(&sock, &link, Reason::Asleep);
        }
    }
}

/// In a forked child: instances are shared with the parent, whose senders do not see this process sleep.
pub fn forked() {
    for set in &SET {
        set.lock.store(false, Relaxed);
        set.asleep.store(0, Relaxed);
        set.unshown.store(0, Relaxed);
        // Judged at the first wait in it.
        set.is_foreign.store(false, Relaxed);
        if set.record.load(Relaxed) != 0 {
            set.scan.store(true, Relaxed);
        }
    }
    interest::forked();
    INHERITED.store(true, Relaxed);
}

/// This process was forked from one that had instances.
pub(super) static INHERITED: AtomicBool = AtomicBool::new(false);
