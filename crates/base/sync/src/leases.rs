//! Slot leases: several workers transmit to one ring, reserve under a short lock, copy outside it
//! and publish in order.
//!
//! # Purpose
//!
//! A transmit ring has one index that says how far its descriptors are filled. Where workers share
//! such a ring, a lock around the whole transmit would put every copy under it. A lock around the
//! reservation only is held for a walk over descriptors; the copies run side by side.
//!
//! # Model
//!
//! ```text
//!             published        cursor
//!                 |              |
//!   ring  ........[ L7 ][ L8 ][ L9 ]......   L7: filling   L8: finished   L9: filling
//!                 when L7 finishes, its worker publishes the ends of L7 and L8 at once
//! ```
//!
//! A worker [locks](Leases::try_lock), walks the ring from the [cursor](Guard::cursor), takes a
//! [`Lease`] over what it reserved, moves the cursor, and unlocks. It fills the slots and calls
//! [`Leases::finish`]. Leases are numbered in the order of their reservations. Whoever finishes
//! marks its lease; whoever finds nobody publishing publishes the end of the furthest run of
//! finished leases, oldest first.
//!
//! A worker that is descheduled between lease and finish delays the publication of this ring and
//! no other worker. A ring with one worker needs none of this.
//!
//! # Life of a lease
//!
//! `lease` -> copy -> `finish` -> (perhaps by another worker) published -> its place is free for a
//! lease 16 later.
//!
//! # Synchronization
//!
//! `L` = only the lock's holder writes; `P` = only the one who publishes writes.
//!
//! | field | who | store | pairs with | so that |
//! | --- | --- | --- | --- | --- |
//! | `locked` | all | unlock: Release | lock: compare-exchange, Acquire | the next holder sees cursor, `issued` and the ring's descriptors as left |
//! | `cursor`, `issued` | L | Relaxed | the lock | |
//! | `marks[n % 16]` | lease `n`'s owner | `finish`: Release | publisher: Acquire | the copied bytes come before their publication |
//! | `callers` | all | `finish`: add AcqRel, publisher: sub AcqRel | each other | see below |
//! | `published` | P | Release | `lease`: Acquire | a mark is reused only after the publisher has read it |
//!
//! *Two finish at once.* `callers` counts the calls of `finish` that nobody has answered. The one
//! that raises it from 0 publishes; the others leave. The publisher scans the marks, then subtracts
//! the callers it knew of; if the count was larger, somebody marked meanwhile, and it scans again.
//! Both are read-modify-writes of one word, so a late caller either comes before the subtraction,
//! which then reads its count and thereby (AcqRel) its mark, or after, and then finds 0 and
//! publishes itself. A flag that is released and re-checked with plain loads would lose that
//! publication.
//!
//! # What can be lost and what cannot
//!
//! No publication is lost, none goes backwards, and no two run at once. A lease that is dropped
//! without `finish` stops the ring for ever: it is `must_use`, and not `Clone`.
//!
//! # Limits
//!
//! [`LEASES_MAX`] leases a ring; the caller spills when there is none, or when the lock was not had
//! in time.

use crate::Padded;
use crate::shim::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::fmt;

/// Leases outstanding on one ring: twice the workers of a large machine's socket that would share
/// one. A model has 2, so that it reaches the reuse of a mark.
pub const LEASES_MAX: u32 = if cfg!(loom) { 2 } else { 16 };

/// What workers that share a transmit ring agree by.
pub struct Leases {
    locked: Padded<AtomicBool>,
    reserve: Padded<Reserve>,
    marks: Padded<[AtomicU64; LEASES_MAX as usize]>,
    publish: Padded<Publish>,
}

/// Written by the lock's holder only.
struct Reserve {
    cursor: AtomicU64,
    issued: AtomicU32,
}

struct Publish {
    callers: AtomicU32,
    published: AtomicU32,
}

/// The reservation lock, held. Dropping it unlocks.
#[must_use = "the lock is released at once if the guard is dropped"]
pub struct Guard<'l> {
    leases: &'l Leases,
}

/// A run of reserved slots that its holder fills and then finishes.
#[must_use = "a lease that is not finished stops its ring"]
#[derive(Debug)]
pub struct Lease {
    number: u32,
    end: u32,
}

impl Lease {
    /// The end that was given to [`Guard::lease`].
    pub fn end(&self) -> u32 {
        self.end
    }
}

/// Mark of a finished lease: its number plus one (so that 0 is none), then its end.
fn mark(number: u32, end: u32) -> u64 {
    u64::from(number.wrapping_add(1)) << 32 | u64::from(end)
}

impl Default for Leases {
    fn default() -> Self {
        Self::new()
    }
}

impl Leases {
    /// No lease, and the cursor at 0.
    pub fn new() -> Self {
        Self {
            locked: Padded::new(AtomicBool::new(false)),
            reserve: Padded::new(Reserve {
                cursor: AtomicU64::new(0),
                issued: AtomicU32::new(0),
            }),
            marks: Padded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            publish: Padded::new(Publish {
                callers: AtomicU32::new(0),
                published: AtomicU32::new(0),
            }),
        }
    }

    /// Takes the reservation lock, trying for about `spin_cycles` cycles of the time-stamp counter.
    /// 0 tries once.
    #[inline]
    pub fn try_lock(&self, spin_cycles: u64) -> Option<Guard<'_>> {
        self.lock_now().or_else(|| self.spin_lock(spin_cycles))
    }

    #[inline]
    fn lock_now(&self) -> Option<Guard<'_>> {
        let lock = &self.locked;
        let taken = lock.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { leases: self })
    }

    #[cold]
    fn spin_lock(&self, spin_cycles: u64) -> Option<Guard<'_>> {
        let start = spin_clock();
        let mut rounds = 0;
        while elapsed(start, rounds) < spin_cycles {
            rounds += 1;
            // Look before trying: a waiting worker must not take the line from the holder.
            if !self.locked.load(Ordering::Relaxed)
                && let Some(guard) = self.lock_now()
            {
                return Some(guard);
            }
            crate::pause();
        }
        None
    }

    /// Marks a lease finished, its slots being filled, and publishes if nobody else is about to.
    ///
    /// `publish` is given the end of the last lease of the longest finished run, and stores it
    /// where the ring's peer looks (Release, or as the ring demands). Calls of it, by whichever
    /// worker, never overlap, and their ends rise in the order of the leases. It may run several
    /// times, or not at all. It must not panic: the ring would stop.
    ///
    /// True if this call published something, so that the caller owes the peer a notification
    /// check.
    #[inline]
    pub fn finish(&self, lease: Lease, mut publish: impl FnMut(u32)) -> bool {
        debug_assert!(
            lease
                .number
                .wrapping_sub(self.publish.published.load(Ordering::Relaxed))
                < LEASES_MAX,
            "a lease of another ring, or finished twice"
        );
        self.mark_of(lease.number)
            .store(mark(lease.number, lease.end), Ordering::Release);
        if self.publish.callers.fetch_add(1, Ordering::AcqRel) != 0 {
            return false;
        }
        let mut published = false;
        let mut answered = 1;
        loop {
            published |= self.publish_run(&mut publish);
            let callers = self.publish.callers.fetch_sub(answered, Ordering::AcqRel);
            if callers == answered {
                return published;
            }
            answered = callers - answered;
        }
    }

    /// Publishes the run of finished leases that begins with the oldest. Called by one thread at a
    /// time.
    fn publish_run(&self, publish: &mut impl FnMut(u32)) -> bool {
        let first = self.publish.published.load(Ordering::Relaxed);
        let (mut number, mut end) = (first, None);
        loop {
            let seen = self.mark_of(number).load(Ordering::Acquire);
            let candidate = seen as u32;
            if seen != mark(number, candidate) {
                break;
            }
            end = Some(candidate);
            number = number.wrapping_add(1);
        }
        let Some(end) = end else { return false };
        publish(end);
        self.publish.published.store(number, Ordering::Release);
        true
    }

    /// Leases taken and not yet published. 0 under [`try_lock`](Self::try_lock) means that the ring
    /// is still: nobody is copying into it.
    pub fn outstanding(&self) -> u32 {
        let published = self.publish.published.load(Ordering::Acquire);
        self.reserve
            .issued
            .load(Ordering::Relaxed)
            .wrapping_sub(published)
    }

    #[inline]
    fn mark_of(&self, number: u32) -> &AtomicU64 {
        &self.marks[(number % LEASES_MAX) as usize]
    }
}

impl Guard<'_> {
    /// The ring's reservation cursor: whatever 64 bits the holders keep there (an index, a wrap
    /// flag).
    #[inline]
    pub fn cursor(&self) -> u64 {
        self.leases.reserve.cursor.load(Ordering::Relaxed)
    }

    /// Moves the cursor. Take the lease first: without one the slots are not yours.
    #[inline]
    pub fn set_cursor(&mut self, cursor: u64) {
        self.leases.reserve.cursor.store(cursor, Ordering::Relaxed);
    }

    /// Whether all leases are out, so that [`lease`](Self::lease) would give none: ask before
    /// walking the ring.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.leases.outstanding() >= LEASES_MAX
    }

    /// Leases the slots from the last lease's end up to `end`, or nothing when [`LEASES_MAX`] are
    /// outstanding.
    #[inline]
    pub fn lease(&mut self, end: u32) -> Option<Lease> {
        if self.is_full() {
            return None;
        }
        let issued = &self.leases.reserve.issued;
        let number = issued.load(Ordering::Relaxed);
        issued.store(number.wrapping_add(1), Ordering::Relaxed);
        Some(Lease { number, end })
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.leases.locked.store(false, Ordering::Release);
    }
}

/// Where a spin began. A model has no clock and counts rounds.
#[inline]
fn spin_clock() -> u64 {
    if cfg!(loom) { 0 } else { crate::tsc::now() }
}

#[inline]
fn elapsed(start: u64, rounds: u64) -> u64 {
    if cfg!(loom) {
        rounds
    } else {
        crate::tsc::now().saturating_sub(start)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("cursor", &self.cursor())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take(leases: &Leases, count: u32) -> Vec<Lease> {
        let mut guard = leases.try_lock(0).unwrap();
        let lease = |_| {
            let end = guard.cursor() + 1;
            let lease = guard.lease(end as u32).unwrap();
            guard.set_cursor(end);
            lease
        };
        (0..count).map(lease).collect()
    }

    /// The seventeenth lease is refused until the oldest is published, and the lock keeps others
    /// out.
    #[test]
    fn leases_and_the_lock_are_bounded() {
        let leases = Leases::new();
        let mut taken = take(&leases, LEASES_MAX);
        let mut guard = leases.try_lock(0).unwrap();
        assert!(guard.is_full() && guard.lease(99).is_none());
        assert!(leases.try_lock(2_000).is_none());
        drop(guard);
        assert_eq!(leases.outstanding(), LEASES_MAX);
        assert!(!leases.finish(taken.pop().unwrap(), |_| panic!("not the oldest")));
        assert!(leases.try_lock(0).unwrap().is_full());
        let mut ends = Vec::new();
        assert!(leases.finish(taken.remove(0), |end| ends.push(end)));
        assert_eq!(ends, [1]);
        assert!(leases.try_lock(0).unwrap().lease(17).is_some());
    }

    proptest! {
        /// Whatever the order of finishing, what is published is the longest finished run, also
        /// when the lease numbers wrap.
        #[test]
        fn the_longest_finished_run_is_published(
            near_wrap in any::<bool>(),
            rounds in prop::collection::vec(Just((0..LEASES_MAX as usize).collect::<Vec<_>>()).prop_shuffle(), 1..6),
        ) {
            let leases = Leases::new();
            if near_wrap {
                let start = u32::MAX - 40;
                leases.reserve.issued.store(start, Ordering::Relaxed);
                leases.publish.published.store(start, Ordering::Relaxed);
                leases.marks.iter().for_each(|m| m.store(u64::MAX, Ordering::Relaxed));
            }
            let mut shown = 0;
            for (round, order) in rounds.into_iter().enumerate() {
                let base = round as u32 * LEASES_MAX;
                let mut taken: Vec<Option<Lease>> = take(&leases, LEASES_MAX).into_iter().map(Some).collect();
                for index in order {
                    let before = shown;
                    let published = leases.finish(taken[index].take().unwrap(), |end| shown = end);
                    let run = taken.iter().take_while(|l| l.is_none()).count() as u32;
                    prop_assert_eq!(shown, if run == 0 { before } else { base + run });
                    prop_assert_eq!(published, shown != before);
                }
                prop_assert_eq!(leases.outstanding(), 0);
            }
        }
    }

    /// Real threads share a ring: every slot that is reserved is filled when it is published, ends
    /// only rise, and at the end all is published.
    #[test]
    fn workers_share_a_ring() {
        const VISITS: u64 = 5_000;
        const WORKERS: u64 = 3;
        let leases = Leases::new();
        let slots: Vec<AtomicU64> = (0..VISITS * WORKERS * 4)
            .map(|_| AtomicU64::new(0))
            .collect();
        let published = AtomicU64::new(0);
        let publish = |end: u32| {
            let before = published.load(Ordering::Relaxed);
            assert!(u64::from(end) > before, "published {end} after {before}");
            for slot in before..u64::from(end) {
                assert_eq!(slots[slot as usize].load(Ordering::Relaxed), slot + 1);
            }
            published.store(end.into(), Ordering::Relaxed);
        };
        let visit = |frames: u64| {
            loop {
                let Some(mut guard) = leases.try_lock(2_000) else {
                    std::thread::yield_now();
                    continue;
                };
                let start = guard.cursor();
                let Some(lease) = guard.lease((start + frames) as u32) else {
                    drop(guard);
                    std::thread::yield_now();
                    continue;
                };
                guard.set_cursor(start + frames);
                drop(guard);
                for slot in start..start + frames {
                    slots[slot as usize].store(slot + 1, Ordering::Relaxed);
                }
                leases.finish(lease, publish);
                return;
            }
        };
        std::thread::scope(|scope| {
            let worker = || (0..VISITS).for_each(|n| visit(n % 4 + 1));
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().for_each(|w| w.join().unwrap());
        });
        let cursor = leases.try_lock(0).unwrap().cursor();
        assert_eq!(
            (published.load(Ordering::Relaxed), leases.outstanding()),
            (cursor, 0)
        );
    }
}
