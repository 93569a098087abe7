//! Waits in an epoll instance: ring bytes and the kernel's events together.
//!
//! # Model
//! A wait takes the news of all pairs, which puts members on the ready lists of their sets ([`super::sets`]), and reports
//! from its own list, with what the kernel has beside it. If there is nothing it spins as the user allows, raises the
//! set's line of the status page, looks once more, and sleeps in the program's own call.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use libc::{epoll_event, sigset_t};
use windlass_channel::layout::CHANS;
use windlass_channel::wait::heavy_barrier;
use windlass_channel::{Link, Side};

use super::process::{Pair, Raised};
use super::sets::{
    CLOCK_WAITS, DISARMED, FRESH, INHERITED, LISTED, Local, MUTED, Member, ONE_SHOT, POKED,
    READABLE, READY_MAX, SET, Set, estrange, is_spent, list, local, show_again, unmute, wake,
};
use super::straight::PUSHED;
use super::stream::{KERNEL_NEWS, REST_MS};
use super::{armed, clock, death, interest, kernel, memory, process, promote, stream};
use crate::own::{Own, Sock, Wait};
use crate::record::{self, Record};
use crate::{counters, options, table};

/// Rests before a sleep, at most; the later ones for a reader who does not let go of what it reads.
const RESTS: usize = 10;
/// Ring events that one wait reports, at most.
const EVENTS: usize = 64;
/// A wait that reports ring events asks the kernel, too, if it has not for so long.
const KERNEL_US: u32 = 20;
/// A wait that spins asks the kernel every so often, and looks at the clock for that after so many looks at the rings.
const SPIN_LOOK_US: u32 = 4;
const SPIN_LOOKS: u32 = 64;

/// `epoll_wait` and its kin.
pub fn wait(
    instance: Sock,
    events: *mut epoll_event,
    room: c_int,
    wait: Wait,
    mask: *const sigset_t,
    own: Own,
) -> isize {
    // Who sleeps counts from the first time on: a member may be added meanwhile.
    let known = Set::of(&instance).or_else(|| {
        (!wait.is_now())
            .then(|| Set::of_or_new(&instance))
            .flatten()
    });
    let Some((index, set)) = known else {
        interest::settle_all();
        return own.call();
    };
    if INHERITED.load(Relaxed) && instance.record.holders.load(Relaxed) > 1 {
        estrange(&instance);
    }
    let is_empty = set.members.load(Relaxed) == 0;
    if set.is_foreign.load(Relaxed) || room <= 0 || wait.is_now() && is_empty {
        interest::settle_all();
        return own.call();
    }
    if is_empty || !process::has_pairs() {
        return sleep(index, set, events, own);
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
fn sleep(index: usize, set: &'static Set, events: *mut epoll_event, own: Own) -> isize {
    interest::settle_all();
    set.asleep.fetch_add(1, SeqCst);
    let raised = process::raise(Set::line(index));
    if raised.is_none() {
        set.unshown.fetch_add(1, SeqCst);
    }
    let result = own.call();
    wake_up(index, set, raised);
    if result > 0 {
        if process::has_pairs() {
            KERNEL_NEWS.fetch_add(1, Relaxed);
        }
        note_fired(set, events, result as usize);
    }
    result
}

/// Keeps what the kernel reported, where that may have spent a one-shot member.
fn note_fired(set: &Set, events: *mut epoll_event, count: usize) {
    if set.has_one_shots.load(Relaxed) {
        set.locked(|| (0..count).for_each(|at| set.fired.note(event_at(events, at).u64)));
    }
}

fn wake_up(index: usize, set: &'static Set, raised: Option<Raised>) {
    if let Some(raised) = raised {
        process::lower(raised);
    } else if set.unshown.fetch_sub(1, SeqCst) == 1 && process::has_pairs() {
        // What joined meanwhile counts every wait here as asleep. A join that saw this one had its slab before.
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

/// The member of a set whose ring was last reported, if a look at its ring says all that a report needs to know: it is the only
/// one of its socket here, level-triggered and wants to be read.
struct Hot {
    sock: Sock,
    link: Link<'static>,
    member: &'static Member,
    pair: &'static Pair,
}

impl Hot {
    fn of(waiting: &Waiting) -> Option<Hot> {
        let record = waiting.set.hot.load(Relaxed);
        if record == 0 {
            return None;
        }
        let local = local(record)?;
        let mut members = local.of_set(waiting.index);
        let (member, other) = (members.next()?, members.next());
        let odd = libc::EPOLLET as u32 | ONE_SHOT;
        if other.is_some() || member.events.load(Relaxed) & odd != 0 {
            return None;
        }
        let sock = table::known(member.fd.load(Relaxed)).filter(|sock| sock.index() == record)?;
        let link = promote::joined(&sock)?;
        Some(Hot {
            pair: process::at(promote::place(&sock)?),
            sock,
            link,
            member,
        })
    }

    /// The event to be reported, if there are bytes.
    #[inline(always)]
    fn event(&self) -> Option<epoll_event> {
        if !self.link.incoming().ready() || !self.link.incoming().ring_ready() {
            return None;
        }
        let events = self.member.events.load(Relaxed) & READABLE;
        let is_valid = self.sock.still() && self.member.set.load(Acquire) != 0 && events != 0;
        is_valid.then(|| epoll_event {
            events,
            u64: self.member.data.load(Relaxed),
        })
    }

    /// Whether the news of one side of a pair are at most this member's own.
    #[inline(always)]
    fn is_all_of(&self, pair: &'static Pair, side: Side) -> bool {
        std::ptr::eq(pair, self.pair)
            && side == self.link.side()
            && pair.slab().has_only_news(side, self.link.index())
    }
}

impl Waiting {
    fn run(&self, is_now: bool) -> isize {
        death::notice();
        let hot = Hot::of(self);
        let found = self.look(hot.as_ref());
        if found != 0 {
            return self.with_kernel(found);
        }
        if is_now {
            return self.kernel_only();
        }
        match self.spin(hot.as_ref()) {
            0 => self.sleep(),
            found => found,
        }
    }

    /// Reports what the rings have now. The news of the hot member are left where they are, as long as there are no others:
    /// its sender then need not set them again, and no line but the ring's own travels.
    #[inline(always)]
    fn look(&self, hot: Option<&Hot>) -> isize {
        let set = self.set;
        if set.length.load(Relaxed) != 0 || set.scan.load(Relaxed) || has_news_beyond(hot) {
            take_news(self.index);
            return self.gather(0);
        }
        match hot.and_then(Hot::event) {
            None => 0,
            Some(event) if memory::put(self.events, event) => 1,
            Some(_) => stream::fail(libc::EFAULT),
        }
    }

    /// Adds what the kernel has to `found` ring events, if it was not asked lately.
    fn with_kernel(&self, found: isize) -> isize {
        let unasked = self.set.unasked.load(Relaxed) + 1;
        if found == 1 && unasked < CLOCK_WAITS {
            self.set.unasked.store(unasked, Relaxed);
            return found;
        }
        self.set.unasked.store(0, Relaxed);
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
        match self.ask(behind, room) {
            Ok(more) if more > 0 => {
                KERNEL_NEWS.fetch_add(1, Relaxed);
                let more = self.restore(behind, self.with_deaths(behind, more, room));
                self.merge(found as usize, more) as isize
            }
            _ => found,
        }
    }

    /// What the kernel has of what the program has asked for.
    fn ask(&self, into: *mut epoll_event, room: usize) -> kernel::Done {
        let instance = self.instance.fd;
        interest::before_look(instance, self.index);
        let found = kernel::epoll_now(instance, into, room)?;
        if found == 0 || self.set.lagging.load(Relaxed) == 0 {
            return Ok(found);
        }
        let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
        let events = &mut events[..found.min(EVENTS)];
        memory::fetch_all(events, into);
        let kept = interest::filter(self.index, events);
        if kept < found && found == room {
            // What nobody asked for has taken the room of something else, maybe.
            interest::settle(instance, self.index);
            return kernel::epoll_now(instance, into, room);
        }
        memory::put_all(into, &events[..kept]);
        Ok(kept)
    }

    /// What the kernel has now.
    fn kernel_only(&self) -> isize {
        self.set.asked_at.store(clock::now(), Relaxed);
        match self.ask(self.events, self.room) {
            Ok(found) => {
                if found > 0 {
                    KERNEL_NEWS.fetch_add(1, Relaxed);
                    self.set.kernel_first.store(true, Relaxed);
                }
                let found = self.with_deaths(self.events, found, self.room);
                self.restore(self.events, found) as isize
            }
            Err(error) => stream::fail(error),
        }
    }

    /// Brings `found` kernel events up to date with what the death of a peer has changed since: resets that the kernel had to be
    /// told of. What the kernel reports once more takes the place of what it had reported.
    fn with_deaths(&self, events: *mut epoll_event, found: usize, room: usize) -> usize {
        if found == 0 || found >= room || !death::notice() {
            return found;
        }
        let behind = events.wrapping_add(found);
        let more = self.ask(behind, room - found).unwrap_or(0);
        let mut kept = 0;
        for at in 0..found + more {
            let event = event_at(events, at);
            let is_old = at < found
                && (found..found + more).any(|at| event_at(events, at).u64 == { event.u64 });
            if !is_old {
                memory::put(events.wrapping_add(kept), event);
                kept += 1;
            }
        }
        kept
    }

    /// Spins for as long as the user allows, with looks at the kernel in it; the first one before it if the last wait was ended by
    /// the kernel, and else after the first looks at the rings.
    fn spin(&self, hot: Option<&Hot>) -> isize {
        if options::spin_us() == 0 {
            return 0;
        }
        let mut looked_at = 0;
        if self.set.kernel_first.load(Relaxed) {
            let found = self.kernel_only();
            if found != 0 {
                return found;
            }
            looked_at = clock::now();
        }
        let (mut looks, mut result) = (0, 0);
        let has_ended = stream::spin(|| {
            result = self.look(hot);
            looks += 1;
            if result == 0 && looks % SPIN_LOOKS == 0 {
                let now = clock::now();
                if now.wrapping_sub(looked_at) > clock::cycles(SPIN_LOOK_US) {
                    looked_at = now;
                    result = self.kernel_only();
                    return result != 0 || !self.instance.still();
                }
            }
            if result == 0 {
                // Looks in close order keep the line from the sender who wants to write it.
                std::hint::spin_loop();
            } else if self.set.kernel_first.load(Relaxed) {
                self.set.kernel_first.store(false, Relaxed);
            }
            result != 0 || !self.instance.still()
        });
        if has_ended { result } else { 0 }
    }

    /// Sleeps in the program's own call, after a last look with the line up.
    fn sleep(&self) -> isize {
        let Self { index, set, .. } = *self;
        interest::settle(self.instance.fd, index);
        loop {
            if !process::is_shown() {
                return sleep(index, set, self.events, self.own);
            }
            set.asleep.fetch_add(1, SeqCst);
            let raised = process::raise(Set::line(index));
            if has_streams() {
                heavy_barrier();
            }
            take_news(index);
            let found = self.gather(0);
            if found != 0 {
                wake_up(index, set, raised);
                return self.with_kernel(found);
            }
            counters::add(counters::Counter::Sleeps, 1);
            let result = match self.rest() {
                0 => self.own.call(),
                found => found,
            };
            wake_up(index, set, raised);
            if result < 0 {
                return result;
            }
            if result > 0 {
                KERNEL_NEWS.fetch_add(1, Relaxed);
            }
            let woken = self.with_deaths(self.events, result as usize, self.room);
            let mut total = self.restore(self.events, woken);
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
        if !self.is_long || !PUSHED.swap(false, Relaxed) {
            return 0;
        }
        for _ in 0..RESTS {
            match kernel::epoll_rest(self.instance.fd, self.events, self.room) {
                Ok(0) if !self.reclaim() => {}
                Ok(found) => return found as isize,
                Err(error) => return stream::fail(error),
            }
        }
        0
    }

    /// Moves what members have left in rings into the kernel. False: a reader who died inside, as is not known yet, or who is
    /// stopped there, keeps something from it.
    fn reclaim(&self) -> bool {
        let mut is_done = true;
        for (record, local) in members_of(self.index) {
            let sock = sock_of(record, local);
            if let Some((sock, link)) = sock.filter(|(_, link)| link.outgoing().unread()) {
                is_done &= stream::reclaim(&sock, &link).is_some();
            }
        }
        is_done
    }

    /// Reports members of the ready list, behind `at` events; how many, or -1 and `errno`.
    fn gather(&self, at: usize) -> isize {
        let set = self.set;
        if set.scan.load(Relaxed) && set.scan.swap(false, Relaxed) {
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
        let joined = joined_of(record, local);
        let incoming = joined.as_ref().map(|(_, link)| link.incoming());
        let is_ready = incoming.is_some_and(|incoming| incoming.ring_ready());
        let has_bytes = is_ready || incoming.is_some_and(|incoming| incoming.queued() != 0);
        let mut stays = false;
        for member in local.of_set(self.index) {
            let events = member.events.load(Relaxed);
            let state = member.state.load(Acquire);
            let out = joined
                .as_ref()
                .map_or(0, |(sock, link)| interest::writable(sock, link, member));
            let reports = (has_bytes && events & READABLE != 0 || out != 0)
                && state & DISARMED == 0
                && !is_spent(self.instance.fd, self.set, member);
            let is_edge = events & libc::EPOLLET as u32 != 0;
            if !reports || (is_edge && state & FRESH == 0) {
                member.state.fetch_and(!LISTED, AcqRel);
                continue;
            }
            // Behind kernel bytes a push is an edge as any; the level is the kernel's to report, and ours after it.
            if !is_ready && !is_edge && out == 0 {
                stays = true;
                continue;
            }
            let Some(place) = found.get_mut(*count) else {
                stays = true;
                continue;
            };
            let bytes = if is_ready || is_edge { READABLE } else { 0 };
            *place = epoll_event {
                events: events & bytes | out,
                u64: member.data.load(Relaxed),
            };
            *count += 1;
            if events & ONE_SHOT != 0 {
                place.events |= kernel::poll_one(member.fd.load(Relaxed), events);
                unmute(self.set, member);
                member.state.store(DISARMED | MUTED, Relaxed);
                self.set.muted.fetch_add(1, Relaxed);
                self.disarm(member);
            } else if is_edge {
                member.state.fetch_and(!(LISTED | FRESH), AcqRel);
            } else {
                if state & FRESH != 0 {
                    member.state.fetch_and(!FRESH, Relaxed);
                }
                stays = true;
                if is_ready {
                    self.set.hot.store(record, Relaxed);
                }
            }
        }
        stays
    }

    /// A one-shot member was reported: the kernel must not report it again. It still does for errors and the end, once.
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

    /// Takes what is not for the program out of `count` kernel events; how many remain.
    fn restore(&self, events: *mut epoll_event, count: usize) -> usize {
        let heard = self.swallow(events, count);
        let kept = self.undo_doorbells(events, heard);
        note_fired(self.set, events, kept);
        kept
    }

    /// Takes out what the kernel says of members that are spent.
    fn swallow(&self, events: *mut epoll_event, count: usize) -> usize {
        if self.set.muted.load(Relaxed) == 0 {
            return count;
        }
        let only = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let mut kept = 0;
        for at in 0..count {
            let event = event_at(events, at);
            if event.events & !only != 0 || !self.was_muted(event.u64) {
                memory::put(events.wrapping_add(kept), event);
                kept += 1;
            }
        }
        kept
    }

    /// Whether a muted member with this data has just been disarmed by the kernel; it is muted no more.
    fn was_muted(&self, data: u64) -> bool {
        for (_, local) in members_of(self.index) {
            for member in local.of_set(self.index) {
                let is_muted = member.state.load(Acquire) & MUTED != 0;
                let fd = member.fd.load(Relaxed);
                if is_muted
                    && member.data.load(Relaxed) == data
                    && armed::mask(self.instance.fd, fd, data).is_none_or(|mask| mask == 0)
                {
                    unmute(self.set, member);
                    return true;
                }
            }
        }
        false
    }

    /// Undoes doorbells among `count` kernel events; how many events remain.
    fn undo_doorbells(&self, events: *mut epoll_event, count: usize) -> usize {
        if self.set.poked.load(Acquire) == 0 || self.set.poked.swap(0, AcqRel) == 0 {
            return count;
        }
        let mut kept = 0;
        // Whoever rang has put the member on the list before.
        for (_, local) in members_of(self.index) {
            for member in local
                .of_set(self.index)
                .filter(|m| m.state.load(Relaxed) & POKED != 0)
            {
                member.state.fetch_and(!POKED, AcqRel);
                let mut event = epoll_event {
                    events: member.events.load(Relaxed),
                    u64: member.data.load(Relaxed),
                };
                let is_written = event.events & libc::EPOLLOUT as u32 != 0;
                let told = if is_written {
                    mask_of(events, count, event.u64)
                } else {
                    strip(events, count, member.fd.load(Relaxed), event)
                };
                if event.events & ONE_SHOT != 0 && told != 0 {
                    // The program is told something: it is spent, as the kernel thinks.
                    member.state.fetch_or(DISARMED, AcqRel);
                    continue;
                }
                // A member that is gone by now has nothing to restore.
                let _ = kernel::epoll_ctl(
                    self.instance.fd,
                    libc::EPOLL_CTL_MOD,
                    member.fd.load(Relaxed),
                    &mut event,
                );
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
        self.merge_either(found, more, false)
    }

    /// The same for ring events behind kernel events.
    fn merge_back(&self, kernel: usize, more: usize) -> usize {
        self.merge_either(kernel, more, true)
    }

    fn merge_either(&self, found: usize, more: usize, is_back: bool) -> usize {
        let mut total = found;
        for at in found..found + more {
            let event = event_at(self.events, at);
            if !self.fold(found, event, is_back) {
                memory::put(self.events.wrapping_add(total), event);
                total += 1;
            }
        }
        total
    }

    /// Whether one of the first `count` events is of the same member: then it takes the mask over. The first ones are the
    /// kernel's if this is a ring's (`is_back`), else the other way round.
    fn fold(&self, count: usize, event: epoll_event, is_back: bool) -> bool {
        for at in 0..count {
            let mut other = event_at(self.events, at);
            let of_kernel = if is_back { other } else { event };
            if { other.u64 } == { event.u64 } && self.set.seen.is_same(self.instance.fd, of_kernel)
            {
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

/// What the events say of a member.
fn mask_of(events: *mut epoll_event, count: usize, data: u64) -> u32 {
    (0..count)
        .map(|at| event_at(events, at))
        .filter(|event| { event.u64 } == data)
        .fold(0, |mask, event| mask | event.events)
}

/// Takes a doorbell's EPOLLOUT out of the event of a member; what its data still says. Of several members with this data it is
/// the one of which the kernel says the rest.
fn strip(events: *mut epoll_event, count: usize, fd: c_int, asked: epoll_event) -> u32 {
    let out = libc::EPOLLOUT as u32;
    let is_rung = |at: &usize| {
        let event = event_at(events, *at);
        (event.u64, event.events & out) == (asked.u64, out)
    };
    let rung = || (0..count).filter(is_rung);
    let Some(first) = rung().next() else {
        return mask_of(events, count, asked.u64);
    };
    let is_its = |at: &usize| {
        let rest = event_at(events, *at).events & !out;
        rest == kernel::poll_one(fd, asked.events) & !out
    };
    let place = if rung().count() < 2 {
        first
    } else {
        rung().find(is_its).unwrap_or(first)
    };
    let mut event = event_at(events, place);
    event.events &= !out;
    memory::put(events.wrapping_add(place), event);
    mask_of(events, count, asked.u64)
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

/// The same without a look at the numbers of one that has not.
fn joined_of(index: u32, local: &Local) -> Option<(Sock, Link<'static>)> {
    let record: &Record = record::at(index);
    record
        .has(promote::JOINED)
        .then(|| sock_of(index, local))
        .flatten()
}

/// Whether any pair has news for this process, but for those of one member.
#[inline(always)]
fn has_news_beyond(hot: Option<&Hot>) -> bool {
    process::pairs().any(|(_, pair)| {
        pair.sides().any(|side| {
            pair.slab().has_news(side) && !hot.is_some_and(|hot| hot.is_all_of(pair, side))
        })
    })
}

fn has_streams() -> bool {
    process::pairs().any(|(_, pair)| pair.sides().any(|side| pair.slab().has_streams(side)))
}

/// Takes the news of all pairs, and lists the members that they concern.
pub fn take_news(current: usize) {
    for (_, pair) in process::pairs() {
        for side in pair.sides() {
            if pair.slab().has_news(side) {
                // News are hints; bytes that have been taken meanwhile are none.
                let is_ready = |link: Link<'_>| link.incoming().ring_ready();
                pair.slab().take_news(side, |chan| {
                    if pair.slab().link(chan, side).is_some_and(is_ready) {
                        mark(pair.record(chan, side), Some(current));
                    }
                });
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
