//! The room of an outgoing direction: how large its ring is, and how a sender waits for it.
//!
//! # Model
//! The first ring is as large as the write that needs it, at most 256 KiB; an empty ring grows at once for a larger write,
//! and doubles when it was full twice in a millisecond. A sender that may wait is told to do so where the ring is full, and
//! where too much is unread in the kernel of a receiver that is awake: so it comes back to the ring. An awake receiver need
//! not be one that reads: it may wait for room itself, in the other direction or on another connection, as a proxy does, and
//! a program that reads and writes by turns would then wait for as long as its peer waits for it. So where both directions
//! are waited for, both waits are short, and after a wait in which the receiver took nothing there is none for ever longer:
//! meanwhile the kernel's buffers take the bytes.

#[cfg(not(loom))]
use std::time::Duration;

#[cfg(not(loom))]
use rustix::thread::futex;

use crate::layout::*;
use crate::out::{Outgoing, WhenFull};
use crate::owner::{Who, try_lock, unlock};
#[cfg(loom)]
use crate::ring::ORDER_MAX;
use crate::ring::{Place, Ring};
use crate::shim::{AcqRel, Acquire, Relaxed, Release, faulty, heavy, store_fenced};
use crate::socket::Socket;
use crate::sys::cycles;

/// Pauses between two looks at a full ring (about 1 us).
const FULL_PAUSES: u32 = 16;
/// Two full rings within this many cycles (about 1 ms) double the ring.
const FULL_TWICE: u64 = 2_500_000;
/// Cycles in a nanosecond, rounded: for rough spans of time.
#[cfg(not(loom))]
const CYCLES_PER_NS: u64 = 2;
/// Nanoseconds that a sender waits whose peer waits for room, too.
#[cfg(not(loom))]
const MUTUAL_NS: u64 = 200_000;
/// Cycles for which nobody waits after a first wait in vain, and after many (10 ms and 640 ms).
#[cfg(not(loom))]
const VAIN: (u64, u64) = (10_000_000 * CYCLES_PER_NS, 640_000_000 * CYCLES_PER_NS);
/// How long without a push counts as idle, for the daemon's watch (about 1 s) and for giving the ring back.
const IDLE: u64 = 2_500_000_000;

impl<'s> Outgoing<'s> {
    /// Notes a full ring; two within a millisecond ask for a larger one.
    #[cold]
    pub(crate) fn was_full(self) {
        let now = cycles();
        let before = self.wl.full_at.swap(now, Relaxed);
        let place = Place::decode(self.a.ring.load(Relaxed));
        let is_largest = place.is_some_and(|place| place.order >= self.order_max());
        if !is_largest && before != 0 && now.wrapping_sub(before) < FULL_TWICE {
            self.wl.grow.store(1, Relaxed);
        }
    }

    /// Takes the first ring, large enough for a write of `asked` bytes if that can be had.
    #[cold]
    pub(crate) fn first_ring(self, asked: usize) -> Option<Ring<'s>> {
        let (slab, side) = (self.link.slab(), self.link.side());
        let order = Place::order_for(asked).min(self.order_max());
        let place = slab.take_pages(side, order);
        let place = place.or_else(|| slab.take_pages(side, 0))?;
        self.a.ring.store(place.encode(), Release);
        self.ring()
    }

    /// A write of `asked` bytes is larger than the ring: an empty ring grows at once.
    #[cold]
    pub(crate) fn enlarge(self, head: u64, asked: usize, ring: Ring<'s>) -> Ring<'s> {
        let order = Place::order_for(asked).min(self.order_max());
        if ring.cap() < PAGE << order && self.grow(head, order) {
            return self.ring().unwrap_or(ring);
        }
        ring
    }

    /// Makes the ring at least twice as large, and of at least this order, if it is empty. False: it is not empty yet.
    #[cold]
    pub(crate) fn grow(self, head: u64, order: u32) -> bool {
        let (wl, r, slab) = (&self.wl, &self.r, self.link.slab());
        if r.tail.load(Acquire) != head {
            return false;
        }
        wl.tail_seen.store(head, Relaxed);
        let owner = wl.lock.load(Relaxed);
        if (r.lock.compare_exchange(0, owner, Acquire, Relaxed)).is_err() {
            return true;
        }
        wl.grow.store(0, Relaxed);
        let word = self.a.ring.load(Relaxed);
        if let Some(old) = Place::decode(word).filter(|old| old.order < self.order_max()) {
            let order = order.max(old.order + 1).min(self.order_max());
            if let Some(place) = slab.take_pages(self.link.side(), order) {
                self.a.ring.store(place.encode(), Release);
                slab.give_pages(self.link.side(), old);
            }
        }
        unlock(&r.lock);
        true
    }

    /// The largest order of a ring of this direction.
    fn order_max(self) -> u32 {
        #[cfg(not(loom))]
        return crate::unix::order_max(&self.link);
        #[cfg(loom)]
        ORDER_MAX
    }

    /// Gives an empty ring back whose direction has pushed nothing for about a second (the caller's idle tick). True if there is no
    /// ring any more.
    pub fn idle_tick<S: Socket>(self, who: Who, sock: &S) -> bool {
        let (wl, r, a) = (&self.wl, &self.r, &self.a);
        if a.ring.load(Relaxed) == 0 {
            return true;
        }
        let head = self.w.head.load(Relaxed);
        let now = cycles();
        if wl.idle_head.swap(head, Relaxed) != head {
            wl.pushed_at.store(now, Relaxed);
            return false;
        }
        let idle = now.wrapping_sub(wl.pushed_at.load(Relaxed));
        if idle < IDLE || self.lock(who, sock).is_err() {
            return false;
        }
        let mut gone = false;
        if self.w.head.load(Relaxed) == r.tail.load(Acquire) && try_lock(&r.lock, who.owner) {
            if let Some(place) = Place::decode(a.ring.swap(0, AcqRel)) {
                self.link.slab().give_pages(self.link.side(), place);
            }
            gone = true;
            unlock(&r.lock);
        }
        unlock(&wl.lock);
        gone
    }

    /// Shows the receiver that a sender is about to sleep. False: there is room meanwhile. The receiver stores its room and
    /// looks for a sleeper with no fence between the two, so the `membarrier` is its fence.
    fn asks_for_space(self) -> bool {
        store_fenced(&self.link.end(self.link.side()).space, 1);
        if !faulty!(NoRoomBarrier) {
            heavy();
        }
        self.is_full()
    }

    /// In a model, where a barrier that ends the execution ends the wait.
    #[cfg(loom)]
    pub fn wait_for_space(self) {
        while self.asks_for_space() && !crate::model::pruned() {
            while self.link.end(self.link.side()).space.load(Relaxed) != 0 {
                loom::thread::yield_now();
            }
        }
    }

    /// Waits until the receiver has made room, for at most `nanoseconds` (10 ms: then the kernel has to take the rest). Returns at
    /// once if there is room. No lock is held.
    #[cfg(not(loom))]
    pub fn wait_for_space(self, nanoseconds: u64) {
        let wl = &self.wl;
        let ends = [self.link.side(), self.receiver()];
        let [space, peers] = ends.map(|side| &self.link.end(side).space);
        let taken = || (self.r.tail.load(Acquire), self.r.krecv.load(Acquire));
        let (start, before) = (cycles(), taken());
        let is_vain = loop {
            if !self.asks_for_space() {
                break false;
            }
            let is_mutual = peers.load(Relaxed) != 0;
            let limit = if is_mutual { MUTUAL_NS } else { u64::MAX };
            let cycles_max = limit.min(nanoseconds).saturating_mul(CYCLES_PER_NS);
            let left = cycles_max.saturating_sub(cycles().wrapping_sub(start));
            if left == 0 {
                break taken() == before;
            }
            let time = Duration::from_nanos(left / CYCLES_PER_NS).try_into().ok();
            // The receiver wakes us at every receive, also where that was not enough.
            let _ = futex::wait(space, futex::Flags::empty(), 1, time.as_ref());
        };
        space.store(0, Relaxed);
        let longer = wl.pause.load(Relaxed).saturating_mul(2);
        let longer = longer.clamp(VAIN.0, VAIN.1);
        let pause = if is_vain { longer } else { 0 };
        wl.pause.store(pause, Relaxed);
        wl.paused_until.store(cycles().wrapping_add(pause), Relaxed);
    }

    /// Whether a send waits for room: one that may, unless the last waits were in vain.
    #[cold]
    pub(crate) fn waits(self, full: WhenFull) -> bool {
        full == WhenFull::Say && cycles() >= self.wl.paused_until.load(Relaxed)
    }

    /// A pause between two looks at [`Outgoing::is_full`]. The receiver publishes its room rarely, and every look takes the line
    /// away that it works on.
    #[inline]
    pub fn pause(self) {
        (0..FULL_PAUSES).for_each(|_| std::hint::spin_loop());
    }

    /// Whether the ring has no room, or too much is unread in the kernel, without a lock: what a blocking sender looks at while it
    /// spins. Never where the next send goes by the kernel anyway.
    pub fn is_full(self) -> bool {
        self.is_open() && (self.is_behind() || self.ring().is_some_and(|ring| self.fills(ring)))
    }

    fn fills(self, ring: Ring) -> bool {
        let head = self.w.head.load(Relaxed);
        let used = head.wrapping_sub(self.r.tail.load(Acquire));
        let growing = self.wl.grow.load(Relaxed) != 0;
        used >= ring.cap() as u64 || (growing && used != 0)
    }
}
