//! Waits in an epoll instance: ring bytes and the kernel's events together.
//!
//! # Model
//! A wait takes the news of all pairs, which puts members on the ready lists of their sets ([`super::sets`]), and reports
//! from its own list, with what the kernel has beside it. If there is nothing it spins as the user allows, raises the
//! set's line of the status page, looks once more, and sleeps in the program's own call.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use libc::{epoll_event, sigset_t};
use windlass_channel::Link;
use windlass_channel::layout::CHANS;
use windlass_channel::wait::heavy_barrier;

use super::sets::{
    DISARMED, FRESH, INHERITED, LISTED, Local, Member, POKED, READABLE, READY_MAX, SET, Set,
    estrange, list, local, show_again, wake,
};
use super::stream::{KERNEL_NEWS, REST_MS};
use super::{clock, kernel, memory, process, promote, stream};
use crate::own::{Own, Sock, Wait};
use crate::record::{self, Record};
use crate::{counters, options, table};

/// Ring events that one wait reports, at most.
const EVENTS: usize = 64;
/// A wait that reports ring events asks the kernel, too, if it has not for so long.
const KERNEL_US: u32 = 20;
/// A wait that spins asks the kernel every so often.
const SPIN_LOOK_US: u32 = 4;

/// `epoll_wait` and its kin.
pub fn wait(
    instance: Sock,
    events: *mut epoll_event,
    room: c_int,
    wait: Wait,
    mask: *const sigset_t,
    own: Own,
) -> isize {
    let Some((index, set)) = Set::of(&instance) else {
        return own.call();
    };
    if INHERITED.load(Relaxed) && instance.record.holders.load(Relaxed) > 1 {
        estrange(&instance);
    }
    if set.members.load(Relaxed) == 0 || set.is_foreign.load(Relaxed) || room <= 0 {
        return own.call();
    }
    if !process::has_pairs() {
        return sleep(index, set, own);
    }
    Waiting {
        instance,
        index,
        set,
        events,
        room: (room as usize).min(EVENTS),
        own,
        is_long: mask.is_null()
            && matches!(wait, Wait::Millis(millis) if !(0..=REST_MS).contains(&millis)),
    }
    .run(wait.is_now())
}

/// The real call, with the set's line up so that senders see it.
fn sleep(index: usize, set: &'static Set, own: Own) -> isize {
    let page = process::status();
    set.asleep.fetch_add(1, SeqCst);
    match &page {
        Some(page) => page.raise(Set::line(index)),
        None => {
            set.unshown.fetch_add(1, SeqCst);
        }
    }
    let result = own.call();
    wake_up(index, set, page.is_some());
    if result > 0 {
        KERNEL_NEWS.fetch_add(1, Relaxed);
    }
    result
}

fn wake_up(index: usize, set: &'static Set, was_shown: bool) {
    if was_shown {
        if let Some(page) = process::status() {
            page.lower(Set::line(index));
        }
    } else if set.unshown.fetch_sub(1, SeqCst) == 1 {
        // What joined meanwhile counts every wait here as asleep.
        for (record, local) in members_of(index) {
            if let Some((_, link)) = sock_of(record, local) {
                show_again(&link, local);
            }
        }
    }
    set.asleep.fetch_sub(1, SeqCst);
}

/// One wait in a set whose members may have joined.
struct Waiting {
    instance: Sock,
    index: usize,
    set: &'static Set,
    events: *mut epoll_event,
    room: usize,
    own: Own,
    /// It may sleep for longer than unread bytes may stay in a ring, and changes no mask.
    is_long: bool,
}

impl Waiting {
    fn run(&self, is_now: bool) -> isize {
        take_news(self.index);
        let found = self.gather(0);
        if found != 0 {
            return self.with_kernel(found);
        }
        if is_now {
            return self.kernel_only();
        }
        match self.spin() {
            0 => self.sleep(),
            found => found,
        }
    }

    /// Adds what the kernel has to `found` ring events, if it was not asked lately.
    fn with_kernel(&self, found: isize) -> isize {
        let now = clock::now();
        let asked = self.set.asked_at.load(Relaxed);
        if found < 0 || now.wrapping_sub(asked) < clock::cycles(KERNEL_US) {
            return found;
        }
        self.set.asked_at.store(now, Relaxed);
        let room = self.room - found as usize;
        if room == 0 {
            return found;
        }
        let behind = self.events.wrapping_add(found as usize);
        match kernel::epoll_now(self.instance.fd, behind, room) {
            Ok(more) if more > 0 => {
                KERNEL_NEWS.fetch_add(1, Relaxed);
                let more = self.restore(behind, more);
                self.merge(found as usize, more) as isize
            }
            _ => found,
        }
    }

    /// What the kernel has now.
    fn kernel_only(&self) -> isize {
        self.set.asked_at.store(clock::now(), Relaxed);
        match kernel::epoll_now(self.instance.fd, self.events, self.room) {
            Ok(found) => {
                if found > 0 {
                    KERNEL_NEWS.fetch_add(1, Relaxed);
                }
                self.restore(self.events, found) as isize
            }
            Err(error) => stream::fail(error),
        }
    }

    /// Spins for as long as the user allows, with looks at the kernel before and in it.
    fn spin(&self) -> isize {
        if options::spin_us() == 0 {
            return 0;
        }
        let found = self.kernel_only();
        if found != 0 {
            return found;
        }
        let mut looked_at = clock::now();
        let mut result = 0;
        let has_ended = stream::spin(|| {
            if has_news() || self.set.length.load(Relaxed) != 0 {
                take_news(self.index);
                result = self.gather(0);
            }
            let now = clock::now();
            if result == 0 && now.wrapping_sub(looked_at) > clock::cycles(SPIN_LOOK_US) {
                looked_at = now;
                result = self.kernel_only();
            }
            result != 0 || !self.instance.still()
        });
        if has_ended { result } else { 0 }
    }

    /// Sleeps in the program's own call, after a last look with the line up.
    fn sleep(&self) -> isize {
        let Self { index, set, .. } = *self;
        loop {
            let Some(page) = process::status() else {
                return sleep(index, set, self.own);
            };
            set.asleep.fetch_add(1, SeqCst);
            page.raise(Set::line(index));
            if has_streams() {
                heavy_barrier();
            }
            take_news(index);
            let found = self.gather(0);
            if found != 0 {
                wake_up(index, set, true);
                return self.with_kernel(found);
            }
            counters::add(counters::Counter::Sleeps, 1);
            let result = match self.rest() {
                0 => self.own.call(),
                found => found,
            };
            wake_up(index, set, true);
            if result < 0 {
                return result;
            }
            if result > 0 {
                KERNEL_NEWS.fetch_add(1, Relaxed);
            }
            let mut total = self.restore(self.events, result as usize);
            if total < self.room {
                take_news(self.index);
                let more = self.gather(total);
                if more < 0 {
                    return more;
                }
                total = self.merge_back(total, more as usize);
            }
            if total > 0 || result == 0 {
                return total as isize;
            }
            // Only a doorbell of our own rang, for a member that another thread has taken since.
        }
    }

    /// A sleeper leaves nothing in a ring that it writes: readers get a few milliseconds to take it, then it goes into the
    /// kernel. How many events came meanwhile.
    fn rest(&self) -> isize {
        if !self.is_long || !stream::PUSHED.swap(false, Relaxed) {
            return 0;
        }
        let found = match kernel::epoll_rest(self.instance.fd, self.events, self.room) {
            Ok(found) => found,
            Err(error) => return stream::fail(error),
        };
        if found == 0 {
            for (record, local) in members_of(self.index) {
                let sock = sock_of(record, local);
                if let Some((sock, link)) = sock.filter(|(_, link)| link.outgoing().unread()) {
                    let _ = stream::reclaim(&sock, &link);
                }
            }
        }
        found as isize
    }

    /// Reports members of the ready list, behind `at` events; how many, or -1 and `errno`.
    fn gather(&self, at: usize) -> isize {
        let set = self.set;
        if set.scan.swap(false, Relaxed) {
            self.list_all();
        }
        if set.length.load(Relaxed) == 0 {
            return 0;
        }
        let mut found = [epoll_event { events: 0, u64: 0 }; EVENTS];
        let limit = self.room.saturating_sub(at).min(EVENTS);
        let count = set.locked(|| self.report(&mut found[..limit]));
        let into = self.events.wrapping_add(at);
        if !memory::put_all(into, &found[..count]) {
            return stream::fail(libc::EFAULT);
        }
        count as isize
    }

    /// Goes over the ready list once. Under the lock.
    fn report(&self, found: &mut [epoll_event]) -> usize {
        let set = self.set;
        let length = set.length.load(Relaxed) as usize;
        let (mut kept, mut count) = (0, 0);
        for at in 0..length {
            let record = set.ready[at].load(Relaxed);
            let stays = count == found.len() || self.report_one(record, found, &mut count);
            if stays {
                set.ready[kept].store(record, Relaxed);
                kept += 1;
            }
        }
        set.length.store(kept as u32, Relaxed);
        // Fairness: what was reported goes behind what was not.
        if kept > 1 && count == found.len() {
            let turn = count.min(kept);
            let mut list = [0; READY_MAX];
            for (to, from) in list.iter_mut().zip(&set.ready[..kept]) {
                *to = from.load(Relaxed);
            }
            list[..kept].rotate_left(turn % kept);
            for (to, from) in set.ready[..kept].iter().zip(&list) {
                to.store(*from, Relaxed);
            }
        }
        count
    }

    /// Reports one record; whether it stays on the list.
    fn report_one(&self, record: u32, found: &mut [epoll_event], count: &mut usize) -> bool {
        let Some(local) = local(record) else {
            return false;
        };
        let incoming = link_of(record, local).map(|link| link.incoming());
        let is_ready = incoming.is_some_and(|incoming| incoming.ring_ready());
        let has_bytes = is_ready || incoming.is_some_and(|incoming| incoming.queued() != 0);
        let mut stays = false;
        for member in local.of_set(self.index) {
            let events = member.events.load(Relaxed);
            let state = member.state.load(Acquire);
            let reports = has_bytes && events & READABLE != 0 && state & DISARMED == 0;
            let is_edge = events & libc::EPOLLET as u32 != 0;
            if !reports || (is_edge && state & FRESH == 0) {
                member.state.fetch_and(!LISTED, AcqRel);
                continue;
            }
            // Behind kernel bytes a push is an edge as any; the level is the kernel's to report, and ours after it.
            if !is_ready && !is_edge {
                stays = true;
                continue;
            }
            let Some(place) = found.get_mut(*count) else {
                stays = true;
                continue;
            };
            *place = epoll_event {
                events: events & READABLE,
                u64: member.data.load(Relaxed),
            };
            *count += 1;
            if events & libc::EPOLLONESHOT as u32 != 0 {
                member.state.store(DISARMED, Relaxed);
                self.disarm(member);
            } else if is_edge {
                member.state.fetch_and(!(LISTED | FRESH), AcqRel);
            } else {
                member.state.fetch_and(!FRESH, Relaxed);
                stays = true;
            }
        }
        stays
    }

    /// A one-shot member was reported: the kernel must not report it again.
    fn disarm(&self, member: &Member) {
        let mut nothing = epoll_event {
            events: libc::EPOLLONESHOT as u32,
            u64: member.data.load(Relaxed),
        };
        // A member that is gone by now is not reported either.
        let _ = kernel::epoll_ctl(
            self.instance.fd,
            libc::EPOLL_CTL_MOD,
            member.fd.load(Relaxed),
            &mut nothing,
        );
    }

    /// Puts every joined member with ring bytes on the list.
    fn list_all(&self) {
        for (_, pair) in process::pairs() {
            for side in pair.sides() {
                for chan in 0..CHANS as u16 {
                    mark(pair.record(chan, side), Some(self.index));
                }
            }
        }
    }

    /// Undoes doorbells among `count` kernel events; how many events remain.
    fn restore(&self, events: *mut epoll_event, count: usize) -> usize {
        if self.set.poked.swap(0, AcqRel) == 0 {
            return count;
        }
        let mut kept = 0;
        for (record, local) in members_of(self.index) {
            for member in local
                .of_set(self.index)
                .filter(|m| m.state.load(Relaxed) & POKED != 0)
            {
                member.state.fetch_and(!POKED, AcqRel);
                let mut event = epoll_event {
                    events: member.events.load(Relaxed),
                    u64: member.data.load(Relaxed),
                };
                // A member that is gone by now has nothing to restore.
                let _ = kernel::epoll_ctl(
                    self.instance.fd,
                    libc::EPOLL_CTL_MOD,
                    member.fd.load(Relaxed),
                    &mut event,
                );
                mark(record, Some(self.index));
                if event.events & libc::EPOLLOUT as u32 == 0 {
                    strip(events, count, event.u64);
                }
            }
        }
        for at in 0..count {
            let event = event_at(events, at);
            if event.events != 0 {
                memory::put(events.wrapping_add(kept), event);
                kept += 1;
            }
        }
        kept
    }

    /// Folds `more` kernel events behind `found` ring events into them where they are of one member.
    fn merge(&self, found: usize, more: usize) -> usize {
        let mut total = found;
        for at in found..found + more {
            let event = event_at(self.events, at);
            if !self.fold(found, event) {
                memory::put(self.events.wrapping_add(total), event);
                total += 1;
            }
        }
        total
    }

    /// The same for ring events behind kernel events.
    fn merge_back(&self, kernel: usize, more: usize) -> usize {
        self.merge(kernel, more)
    }

    /// Whether one of the first `count` events has the same data: then it takes the mask over.
    fn fold(&self, count: usize, event: epoll_event) -> bool {
        for at in 0..count {
            let mut other = event_at(self.events, at);
            if { other.u64 } == { event.u64 } {
                other.events |= event.events;
                memory::put(self.events.wrapping_add(at), other);
                return true;
            }
        }
        false
    }
}

/// One of the events that were just written.
fn event_at(events: *mut epoll_event, at: usize) -> epoll_event {
    memory::fetch(events.wrapping_add(at)).unwrap_or(epoll_event { events: 0, u64: 0 })
}

/// Takes a doorbell's EPOLLOUT out of the events of a member.
fn strip(events: *mut epoll_event, count: usize, data: u64) {
    for at in 0..count {
        let mut event = event_at(events, at);
        if { event.u64 } == data {
            event.events &= !(libc::EPOLLOUT as u32);
            memory::put(events.wrapping_add(at), event);
        }
    }
}

/// The records that have a member in a set.
fn members_of(set: usize) -> impl Iterator<Item = (u32, &'static Local)> {
    table::each()
        .filter(|sock| table::kind_of(sock.word) == table::TRACKED)
        .filter_map(move |sock| Some((sock.index(), local(sock.index())?)))
        .filter(move |(_, local)| local.of_set(set).next().is_some())
}

/// The socket and the channel of a record that has joined.
fn sock_of(index: u32, local: &Local) -> Option<(Sock, Link<'static>)> {
    let member = local
        .members
        .iter()
        .find(|member| member.set.load(Relaxed) != 0)?;
    let sock = table::known(member.fd.load(Relaxed)).filter(|sock| sock.index() == index)?;
    promote::joined(&sock).map(|link| (sock, link))
}

/// The channel of a record that has joined.
fn link_of(index: u32, local: &Local) -> Option<Link<'static>> {
    let record: &Record = record::at(index);
    record
        .has(promote::JOINED)
        .then(|| sock_of(index, local))
        .flatten()
        .map(|(_, link)| link)
}

/// Whether any pair has news for this process.
#[inline(always)]
pub fn has_news() -> bool {
    process::pairs().any(|(_, pair)| pair.sides().any(|side| pair.slab().has_news(side)))
}

fn has_streams() -> bool {
    process::pairs().any(|(_, pair)| pair.sides().any(|side| pair.slab().has_streams(side)))
}

/// Takes the news of all pairs, and lists the members that they concern.
pub fn take_news(current: usize) {
    for (_, pair) in process::pairs() {
        for side in pair.sides() {
            if pair.slab().has_news(side) {
                pair.slab()
                    .take_news(side, |chan| mark(pair.record(chan, side), Some(current)));
            }
        }
    }
}

/// Lists a record in all its sets, and wakes those in which threads sleep.
fn mark(record: u32, current: Option<usize>) {
    if record == 0 {
        return;
    }
    let Some(local) = local(record) else { return };
    for member in &local.members {
        if let Some(set) = SET.get((member.set.load(Acquire) as usize).wrapping_sub(1)) {
            list(set, record, member);
            // The caller is awake in its own, and looks.
            if current.is_none_or(|current| member.set.load(Relaxed) != current as u32 + 1) {
                wake(set, member);
            }
        }
    }
}
