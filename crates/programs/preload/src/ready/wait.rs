//! Waits in an epoll instance: ring bytes and the kernel's events together.
//!
//! # Model
//! A wait takes the news of its set's members, looks at these, and reports those that have bytes, with what the kernel has. If there
//! is nothing it spins as the user allows, raises the set's line of the status page, looks once more, and sleeps in the
//! program's own call.
//!
//! # Order
//! Ring events come in the order in which the bytes came: their senders stamp them. The kernel's events of a look stand behind
//! ring events that came before the look at the kernel before it, and in front of all others. No order is promised between two
//! looks. Where both have more than there is room for, they share it; with room for one event they take turns.
//!
//! # What can be lost and what cannot
//! A level that was reported stays listed until a look finds nothing. Ring bytes behind kernel bytes stay listed, too, and no
//! thread sleeps over them: the kernel reports their socket, or its bytes have just been taken and the ring's turn has come.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

use libc::epoll_event;
use windlass_channel::Link;
use windlass_channel::wait::heavy_barrier;

use crate::fd::{
    call::{Own, Sock},
    table,
};
use crate::options;
use crate::process::{
    identity, pairs, signals,
    status::{self, Raised},
};
use crate::ready::{
    deferred_ctl::{self, flush_epoll_ctl},
    sets::{EDGE, FRESH, HERE, Member, READABLE, Set, claim, member},
    unless_handled,
};
use crate::socket::{errors, kernel_look::KERNEL_NEWS, peer_death, spin, state::At};
use crate::sys::{
    clock::{self, Wait},
    kernel, memory,
};

/// Events that one look reports, at most.
const EVENTS: usize = 64;
/// A wait that reports ring events asks the kernel, too, if it has not for so long.
const KERNEL_US: u32 = 20;
/// A wait that spins asks the kernel every so often, and looks at the clock for that after so many looks at the rings.
const SPIN_LOOK_US: u32 = 4;
const SPIN_LOOKS: u32 = 64;
/// Looks of a wait that finds ring bytes behind kernel bytes that the kernel does not report, before it sleeps all the same: they
/// were taken uncounted.
const BEHIND_LOOKS: usize = 1_000;

pub fn wait(instance: Sock, events: *mut epoll_event, room: c_int, wait: Wait, own: Own) -> isize {
    let (is_now, began) = (wait.is_now(), signals::handled());
    let by_kernel = || {
        flush_epoll_ctl();
        if is_now {
            return own.call();
        }
        let look = || kernel::epoll_now(instance.fd, events, room as usize);
        unless_handled(began, look, || own.call())
    };
    // A thread that sleeps counts from the first time on: a member may be added meanwhile.
    let known = Set::of(&instance).or_else(|| {
        (!is_now && room > 0)
            .then(|| Set::of_or_new(&instance))
            .flatten()
    });
    let Some((index, set)) = known.filter(|_| claim(&instance) && room > 0) else {
        return by_kernel();
    };
    let waiting = Waiting {
        instance,
        index,
        set,
        events,
        room: (room as usize).min(EVENTS),
        own,
        began,
    };
    let is_empty = set.members.load(Relaxed) == 0 || !pairs::has_pairs();
    // A member of a thread that is alone cannot join while it sleeps.
    match (is_empty, is_now || !identity::has_threads()) {
        (true, true) => by_kernel(),
        (true, false) => waiting.sleep(&mut Batch::new()),
        (false, _) => waiting.run(is_now, &mut Batch::new()),
    }
}

struct Waiting {
    instance: Sock,
    index: usize,
    set: &'static Set,
    events: *mut epoll_event,
    room: usize,
    own: Own,
    began: u64,
}

#[derive(Clone, Copy, Default)]
struct Found {
    order: u64,
    record: u32,
    mask: u32,
}

/// The oldest ring events, in their order. One for each wait, which may be made on a small signal stack.
struct Batch {
    count: usize,
    list: [MaybeUninit<Found>; EVENTS],
}

impl Batch {
    #[inline(always)]
    fn new() -> Self {
        Self {
            count: 0,
            list: [const { MaybeUninit::uninit() }; EVENTS],
        }
    }

    fn found(&self) -> &[Found] {
        let used = &self.list[..self.count];
        // SAFETY: `add` has written the first `count` ones.
        unsafe { used.assume_init_ref() }
    }

    /// One more, in its place among at most `limit`.
    fn add(&mut self, found: Found, limit: usize) {
        let list = self.found();
        let later = list.iter().rev().take_while(|f| f.order > found.order);
        let at = list.len() - later.count();
        if at >= limit {
            return;
        }
        let kept = self.count.min(limit - 1);
        self.list.copy_within(at..kept, at + 1);
        self.list[at].write(found);
        self.count = kept + 1;
    }
}

/// The member of a set whose ring was last reported, if a look at its ring says all that a report needs to know: it is
/// level-triggered and wants to be read.
struct Hot {
    sock: Sock,
    link: Link<'static>,
    member: &'static Member,
    at: At,
}

impl Hot {
    fn of(waiting: &Waiting) -> Option<Hot> {
        let record = waiting.set.hot.load(Relaxed);
        if record == 0 {
            return None;
        }
        let member = member(record).filter(|member| member.is_in(waiting.index))?;
        if member.events.load(Relaxed) & EDGE != 0 || member.state.load(Relaxed) & HERE != 0 {
            return None;
        }
        let at = member.at()?;
        let sock = table::known(member.fd.load(Relaxed)).filter(|sock| sock.index() == record)?;
        Some(Hot {
            link: at.link()?,
            sock,
            member,
            at,
        })
    }

    #[inline(always)]
    fn event(&self, set: usize) -> Option<epoll_event> {
        if !self.link.incoming().ready() || !self.link.incoming().ring_ready() {
            return None;
        }
        let events = self.member.events.load(Relaxed) & READABLE;
        let is_valid = self.sock.still() && self.member.is_in(set) && events != 0;
        is_valid.then(|| epoll_event {
            events,
            u64: self.member.data.load(Relaxed),
        })
    }
}

impl Waiting {
    fn run(&self, is_now: bool, batch: &mut Batch) -> isize {
        peer_death::notice();
        let hot = Hot::of(self);
        let found = self.look(hot.as_ref(), batch);
        if found != 0 {
            return found;
        }
        if is_now {
            return self.kernel_only();
        }
        match self.spin(hot.as_ref(), batch) {
            0 => self.sleep(batch),
            found => found,
        }
    }

    /// Reports what the rings have now, with what the kernel has if it was not asked lately. The news of the hot member are left
    /// where they are, as long as there are no others: its sender then need not set them again, and no line but the
    /// ring's own travels.
    #[inline(always)]
    fn look(&self, hot: Option<&Hot>, batch: &mut Batch) -> isize {
        if self.has_news_beyond(hot) {
            return self.deliver(self.collect(batch, self.room));
        }
        let Some((hot, event)) = hot.and_then(|hot| Some((hot, hot.event(self.index)?))) else {
            return 0;
        };
        let found = if self.is_unasked() {
            let found = Found {
                order: hot.link.incoming().came_at(false),
                record: hot.sock.index(),
                mask: event.events,
            };
            batch.count = 0;
            batch.add(found, self.room);
            self.deliver(batch)
        } else if memory::put(self.events, event) {
            1
        } else {
            errors::fail(libc::EFAULT)
        };
        self.set.is_hot_stale.store(true, Relaxed);
        found
    }

    /// Whether any member but the hot one may have something.
    #[inline(always)]
    fn has_news_beyond(&self, hot: Option<&Hot>) -> bool {
        self.set.watched().any(|(place, side, watched)| {
            let is_here = |hot: &&Hot| (hot.at.place, hot.at.side) == (place, side);
            let but = hot.filter(is_here).map(|hot| hot.at.chan);
            watched.has_news(pairs::at(place).slab(), side, but)
        })
    }

    /// Whether it is time to ask the kernel: it may have an event that is older than what the rings have.
    #[inline(always)]
    fn is_unasked(&self) -> bool {
        let asked_at = self.set.asked_at.load(Relaxed);
        clock::now().wrapping_sub(asked_at) >= clock::cycles(KERNEL_US)
    }

    /// Takes the members' news, and gives the first `limit` events of the rings.
    fn collect<'a>(&self, batch: &'a mut Batch, limit: usize) -> &'a Batch {
        batch.count = 0;
        for (place, side, watched) in self.set.watched() {
            let pair = pairs::at(place);
            let slab = pair.slab();
            watched.take(slab, side, |chan, has_bit| {
                self.take(pair.record(chan, side), has_bit);
            });
            watched.each_listed(|chan| {
                let record = pair.record(chan, side);
                let look = watched.look(chan, || self.consider(record, chan));
                if let Some(Look::Found(found)) = look {
                    batch.add(found, limit);
                }
            });
        }
        batch
    }

    /// The news of a record were taken, or it sends in stream mode, in which it stamps its last bytes only.
    fn take(&self, record: u32, has_bit: bool) {
        let Some((member, link)) = self.member(record) else {
            return;
        };
        let is_hot = self.set.hot.load(Relaxed) == record;
        let is_stale = is_hot && self.set.is_hot_stale.swap(false, Relaxed);
        // News of bytes that were taken since are none, and would give those that follow their place in the order.
        if link.incoming().queued() != 0 {
            member.freshen(link.incoming().came_at(has_bit && !is_stale));
        }
    }

    fn member(&self, record: u32) -> Option<(&'static Member, Link<'static>)> {
        let member = member(record).filter(|member| record != 0 && member.is_in(self.index))?;
        Some((member, member.at()?.link()?))
    }

    /// What there is to report of a listed member.
    fn consider(&self, record: u32, chan: u16) -> Option<Look> {
        let known = self.member(record);
        let (member, link) = known.filter(|(_, link)| link.index() == chan)?;
        let (events, state) = (member.events.load(Relaxed), member.state.load(SeqCst));
        let out = if state & HERE != 0 {
            self.writable(record, &link, member)
        } else {
            0
        };
        let has_bytes = events & READABLE != 0 && link.incoming().queued() != 0;
        let is_edge = events & EDGE != 0;
        // Behind kernel bytes a push is an edge as any; the level is the kernel's to report, and ours after it.
        let is_readable = has_bytes
            && if is_edge {
                state & FRESH != 0
            } else {
                link.incoming().ring_ready()
            };
        let mask = out | if is_readable { events & READABLE } else { 0 };
        if mask == 0 {
            return (has_bytes && !is_edge).then_some(Look::Behind);
        }
        Some(Look::Found(Found {
            order: member.order.load(Relaxed),
            record,
            mask,
        }))
    }

    fn writable(&self, record: u32, link: &Link<'static>, member: &Member) -> u32 {
        let sock = table::known(member.fd.load(Relaxed)).filter(|sock| sock.index() == record);
        sock.map_or(0, |sock| deferred_ctl::writable(&sock, link, member))
    }

    /// Reports a batch, and what the kernel has if it is time to ask it; how many events, or -1 and `errno`.
    fn deliver(&self, batch: &Batch) -> isize {
        let set = self.set;
        if batch.count == 0 || !self.is_unasked() {
            return self.append(batch.found(), 0..0, 0);
        }
        let before = set.asked_at.swap(clock::now(), Relaxed);
        let share = self.kernels_share(batch.count);
        let older = batch.found().iter().take_while(|f| f.order <= before);
        let first = older.count().min(self.room - share);
        let behind = self.events.wrapping_add(first);
        let found = match self.ask(behind, share) {
            Ok(found) if share > 0 && found > 0 => {
                KERNEL_NEWS.fetch_add(1, Relaxed);
                self.with_deaths(behind, found, share)
            }
            _ => 0,
        };
        self.merge(batch, first, found)
    }

    /// How many events the kernel may report beside so many of rings.
    fn kernels_share(&self, count: usize) -> usize {
        match self.room {
            1 => usize::from(self.set.is_kernels_turn.fetch_xor(true, Relaxed)),
            room => (room - count.min(room)).max(room / 2),
        }
    }

    /// Puts a batch round `found` kernel events, which stand behind `first` places. Two events of one member become one.
    fn merge(&self, batch: &Batch, first: usize, found: usize) -> isize {
        let (before, after) = batch.found().split_at(first);
        let Ok(rings) = usize::try_from(self.append(before, 0..0, 0)) else {
            return errors::fail(libc::EFAULT);
        };
        let total = join(self.events, rings, first..first + found);
        self.append(after, rings..total, total)
    }

    /// Reports ring events behind `end` others, or as one with those `among` these that are of the same member; how many events
    /// there are then, or -1 and `errno`.
    fn append(&self, found: &[Found], among: Range<usize>, mut end: usize) -> isize {
        for one in found {
            let Some(member) = member(one.record) else {
                continue;
            };
            let data = member.data.load(Relaxed);
            let same = find(self.events, among.clone(), data);
            if same.is_none() && end == self.room {
                break;
            }
            let events = self.commit(*one, member);
            let event = epoll_event { events, u64: data };
            if events == 0 {
                continue;
            }
            match report(self.events, same, end, event) {
                Some(now) => end = now,
                None => return errors::fail(libc::EFAULT),
            }
        }
        end as isize
    }

    /// A member is reported: an edge once, by one thread. What is left of its mask.
    fn commit(&self, found: Found, member: &Member) -> u32 {
        let is_edge = member.events.load(Relaxed) & EDGE != 0;
        let was_fresh = member.state.load(Relaxed) & FRESH != 0
            && member.state.fetch_and(!FRESH, AcqRel) & FRESH != 0;
        if is_edge && !was_fresh {
            return 0;
        }
        if !is_edge {
            // It stays listed, behind those that have not been reported.
            member.order.store(clock::now(), Relaxed);
            if found.mask & READABLE != 0 {
                self.set.hot.store(found.record, Relaxed);
                self.set.is_hot_stale.store(false, Relaxed);
            }
        }
        found.mask
    }

    /// What the kernel has of what the program has asked for.
    fn ask(&self, into: *mut epoll_event, room: usize) -> kernel::Done {
        let instance = self.instance.fd;
        if room == 0 {
            return Ok(0);
        }
        deferred_ctl::before_look();
        let found = kernel::epoll_now(instance, into, room)?;
        let kept = deferred_ctl::filter(self.index, into, found);
        if kept == found {
            return Ok(found);
        }
        // What nobody asked for may stand for another member, or have taken its room.
        flush_epoll_ctl();
        let behind = into.wrapping_add(kept);
        let more = kernel::epoll_now(instance, behind, room - kept).unwrap_or(0);
        Ok(join(into, kept, kept..kept + more))
    }

    /// What the kernel has now.
    fn kernel_only(&self) -> isize {
        self.set.asked_at.store(clock::now(), Relaxed);
        match self.ask(self.events, self.room) {
            Ok(found) => {
                if found > 0 {
                    KERNEL_NEWS.fetch_add(1, Relaxed);
                    self.set.is_ring_first.store(false, Relaxed);
                }
                self.with_deaths(self.events, found, self.room) as isize
            }
            Err(error) => errors::fail(error),
        }
    }

    /// Brings `found` kernel events up to date with what the death of a peer has changed since: resets that the kernel had to be
    /// told of.
    fn with_deaths(&self, events: *mut epoll_event, found: usize, room: usize) -> usize {
        if found == 0 || found >= room || !peer_death::notice() {
            return found;
        }
        let behind = events.wrapping_add(found);
        let more = self.ask(behind, room - found).unwrap_or(0);
        join(events, found, found..found + more)
    }

    /// Spins for as long as the user allows, with looks at the kernel in it; the first one before it if the last wait was ended by
    /// the kernel, and else after the first looks at the rings.
    fn spin(&self, hot: Option<&Hot>, batch: &mut Batch) -> isize {
        if options::spin_us() == 0 {
            return 0;
        }
        let mut looked_at = 0;
        if !self.set.is_ring_first.load(Relaxed) {
            let found = self.kernel_only();
            if found != 0 {
                return found;
            }
            looked_at = clock::now();
        }
        let (mut looks, mut result) = (0, 0);
        let has_ended = spin::spin(|| {
            result = self.look(hot, batch);
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
            } else if !self.set.is_ring_first.load(Relaxed) {
                self.set.is_ring_first.store(true, Relaxed);
            }
            result != 0 || !self.instance.still()
        });
        if has_ended { result } else { 0 }
    }

    /// Sleeps in the program's own call, after a last look with the line up.
    fn sleep(&self, batch: &mut Batch) -> isize {
        let Self { index, set, .. } = *self;
        flush_epoll_ctl();
        for looks in 0.. {
            set.asleep.fetch_add(1, SeqCst);
            let raised = status::raise(Set::line(index));
            if self.has_streams() {
                heavy_barrier();
            }
            if self.collect(batch, self.room).count != 0 {
                self.wake_up(raised);
                return self.deliver(batch);
            }
            if looks < BEHIND_LOOKS && set.watched().any(|(.., watched)| watched.has_listed()) {
                self.wake_up(raised);
                match self.kernel_only() {
                    0 => std::thread::yield_now(),
                    found => return found,
                }
                continue;
            }
            let look = || kernel::epoll_now(self.instance.fd, self.events, self.room);
            let result = unless_handled(self.began, look, || self.own.call());
            self.wake_up(raised);
            return self.awoke(result, batch);
        }
        0
    }

    fn wake_up(&self, raised: Raised) {
        status::lower(raised);
        self.set.asleep.fetch_sub(1, SeqCst);
    }

    fn awoke(&self, result: isize, batch: &mut Batch) -> isize {
        let Ok(found) = usize::try_from(result) else {
            return result;
        };
        if !pairs::has_pairs() {
            return result;
        }
        if found > 0 {
            KERNEL_NEWS.fetch_add(1, Relaxed);
        }
        let total = self.with_deaths(self.events, found, self.room);
        if total >= self.room {
            return total as isize;
        }
        self.merge(self.collect(batch, self.room - total), 0, total)
    }

    fn has_streams(&self) -> bool {
        let mut watched = self.set.watched();
        watched.any(|(place, side, watched)| watched.has_streams(pairs::at(place).slab(), side))
    }
}

enum Look {
    /// Ring bytes behind kernel bytes.
    Behind,
    Found(Found),
}

fn event_at(events: *mut epoll_event, at: usize) -> epoll_event {
    memory::fetch(events.wrapping_add(at)).unwrap_or(epoll_event { events: 0, u64: 0 })
}

/// Which of the events in these places has this data.
fn find(events: *mut epoll_event, mut among: Range<usize>, data: u64) -> Option<usize> {
    among.find(|at| { event_at(events, *at).u64 } == data)
}

/// Adds an event to the one in place `same`, or puts it behind `end` others; how many there are then. None: there is no memory.
fn report(
    events: *mut epoll_event,
    same: Option<usize>,
    end: usize,
    mut event: epoll_event,
) -> Option<usize> {
    if let Some(same) = same {
        event.events |= event_at(events, same).events;
    }
    let is_put = memory::put(events.wrapping_add(same.unwrap_or(end)), event);
    is_put.then_some(end + usize::from(same.is_none()))
}

/// Moves the events in the places `more` to behind the first `kept` ones, or into those of the same member; how many there are then.
fn join(events: *mut epoll_event, kept: usize, more: Range<usize>) -> usize {
    more.fold(kept, |end, at| {
        let event = event_at(events, at);
        report(events, find(events, 0..kept, event.u64), end, event).unwrap_or(end)
    })
}
