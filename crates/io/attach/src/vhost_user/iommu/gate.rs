//! What the session and the workers share of a guest behind an IOMMU: its translations, and who is using them.
//!
//! # Model
//! The session publishes translations as a whole ([`Shared::publish`]); each publication has a number, its *generation*. A
//! half looks at the number when a visit begins, and takes over what it has not seen yet, so that one visit uses
//! one set. An address that is not translated is put down in the gate of its ring, with [`MISSES`] others at most, and the
//! session is called; visits find nothing until there is another generation. A worker that goes to sleep on that says so in
//! the gate (*parked*): then the session wakes it with the next generation. It says so each time that it goes to sleep, since
//! the session takes it back with every publication, also with one that the worker had seen already.
//!
//! # Synchronization
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | `visits` odd, fence SeqCst, load of `generation` (worker) | `generation`, fence SeqCst, load of `visits` (session) | a visit that the session does not see uses the new translations |
//! | `visits` even, Release, fence SeqCst, load of `awaited` (worker) | `awaited`, fence SeqCst, load of `visits` (session) | either the session sees that the visit is over, or it is called |
//! | `parked`, fence SeqCst, load of `generation` (worker, before it sleeps) | `generation`, fence SeqCst, swap of `parked` (session) | either the worker sees the new translations, or it is woken |
//! | `needed`, `misses`, Release (worker) | swap, Acquire (session) | a miss is taken once |
//!
//! The lock over the translations is held for the copy of one pointer. A worker only tries it: if it fails, that visit finds
//! nothing and the next one tries again.
//!
//! # What can be lost and what cannot
//! Nothing of a ring: a chain with an address that is not translated stays where it is, and so does everything behind it.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use windlass_sync::Padded;

use crate::vhost_user::guest_map::{Extent, GuestMap, Miss};

/// Translations that one ring asks for at a time, besides the one that it waits for.
pub(crate) const MISSES: usize = 16;

/// What one ring tells of itself.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Odd during a visit. Written by whoever visits, one at a time.
    visits: AtomicU64,
    /// The worker sleeps until there is another generation.
    parked: AtomicBool,
    /// [`Miss::word`] of what the ring waits for, or 0.
    needed: AtomicU64,
    /// The same of what it will need.
    misses: [AtomicU64; MISSES],
}

impl Gate {
    /// Puts down what the ring waits for, in place of what it waited for before.
    pub(crate) fn need(&self, miss: Miss) {
        self.needed.store(miss.word(), Ordering::Release);
    }

    /// Puts a miss down that will be needed; false if there is no room for it, which costs only time.
    pub(crate) fn ask(&self, miss: Miss) -> bool {
        let word = miss.word();
        let known = |slot: &AtomicU64| slot.load(Ordering::Relaxed) == word;
        if self.misses.iter().any(known) {
            return true;
        }
        let free = |slot: &&AtomicU64| slot.load(Ordering::Relaxed) == 0;
        match self.misses.iter().find(free) {
            Some(slot) => {
                slot.store(word, Ordering::Release);
                true
            }
            None => false,
        }
    }

    /// Takes a miss that was put down.
    pub(crate) fn take(&self) -> Option<Miss> {
        let slots = core::iter::once(&self.needed).chain(&self.misses);
        let mut words = slots.map(|slot| slot.swap(0, Ordering::Acquire));
        words.find_map(Miss::of)
    }

    /// A visit begins.
    fn enter(&self) {
        let visits = self.visits.load(Ordering::Relaxed);
        self.visits.store(visits.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn leave(&self) {
        let visits = self.visits.load(Ordering::Relaxed);
        self.visits.store(visits.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The worker is about to sleep until there is another generation. It has to look at the generation once more.
    pub(crate) fn park(&self) {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Visits that were going on, by gate.
#[derive(Debug, Default)]
pub(crate) struct Visits(Vec<(usize, u64)>);

/// What the session and the halves of one set of rings share.
#[derive(Debug)]
pub(crate) struct Shared {
    generation: AtomicU64,
    extents: Mutex<Arc<[Extent]>>,
    gates: Box<[Padded<Gate>]>,
    /// The session waits for the end of a visit.
    awaited: AtomicBool,
    /// The guest's memory as it was announced; its alarm calls the session.
    memory: Arc<GuestMap>,
}

impl Shared {
    /// With a gate for each of `queues`.
    pub(crate) fn new(memory: Arc<GuestMap>, extents: Arc<[Extent]>, queues: usize) -> Shared {
        Shared {
            // A half has seen none yet, which is generation 0.
            generation: AtomicU64::new(1),
            extents: Mutex::new(extents),
            gates: (0..queues).map(|_| Padded::new(Gate::default())).collect(),
            awaited: AtomicBool::new(false),
            memory,
        }
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &Arc<GuestMap> {
        &self.memory
    }

    /// The gate of queue `queue`.
    pub(crate) fn gate(&self, queue: usize) -> Option<&Gate> {
        self.gates.get(queue).map(|gate| &**gate)
    }

    /// Number of the translations that hold.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The translations and their number, unless they are just being exchanged.
    pub(crate) fn load(&self) -> Option<(Arc<[Extent]>, u64)> {
        let extents = match self.extents.try_lock() {
            Ok(extents) => extents,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some((extents.clone(), self.generation()))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<[Extent]>> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the translations. Visits that are going on may still use the ones before: [`Shared::visits`].
    pub(crate) fn publish(&self, extents: Arc<[Extent]>) {
        let before = {
            let mut held = self.lock();
            let before = core::mem::replace(&mut *held, extents);
            self.generation.fetch_add(1, Ordering::SeqCst);
            before
        };
        drop(before);
        fence(Ordering::SeqCst);
    }

    /// Queues whose workers sleep until there is a publication, once.
    pub(crate) fn unpark(&self) -> impl Iterator<Item = usize> {
        let gates = self.gates.iter().enumerate();
        gates.filter_map(|(queue, gate)| gate.parked.swap(false, Ordering::SeqCst).then_some(queue))
    }

    /// The visits that may have begun before the last publication. Their ends call the session.
    pub(crate) fn visits(&self) -> Visits {
        self.awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let gates = self.gates.iter().enumerate();
        let visits = gates.map(|(queue, gate)| (queue, gate.visits.load(Ordering::Acquire)));
        Visits(visits.filter(|(_, visits)| visits & 1 != 0).collect())
    }

    /// Whether all of these visits are over.
    pub(crate) fn are_over(&self, visits: &mut Visits) -> bool {
        visits.0.retain(|(queue, then)| {
            self.gate(*queue)
                .is_some_and(|gate| gate.visits.load(Ordering::Acquire) == *then)
        });
        let over = visits.0.is_empty();
        if over {
            self.awaited.store(false, Ordering::Relaxed);
        }
        over
    }

    /// A visit to queue `queue` begins.
    #[inline]
    pub(crate) fn enter(&self, queue: usize) {
        if let Some(gate) = self.gate(queue) {
            gate.enter();
        }
    }

    /// It ends.
    #[inline]
    pub(crate) fn leave(&self, queue: usize) {
        if let Some(gate) = self.gate(queue) {
            gate.leave();
        }
        if self.awaited.load(Ordering::Relaxed) {
            self.memory.call();
        }
    }
}
