//! The serialization queue: many threads hand owned work to one place in order, and none of them
//! waits.
//!
//! # Purpose
//!
//! Transmits that could not be placed at once (a ring's lock not had in time, no lease left) are
//! copied to private memory and left here; whoever is inside places them, in order. Solaris calls
//! it squeue.
//!
//! # Model
//!
//! [`enter`](SerialQueue::enter): nobody inside and nothing queued, run the work; else queue it.
//! The one inside drains up to a bound before it leaves, so that no thread is captured for ever;
//! what is left is reported, and the ring's home worker [drains](SerialQueue::drain) it.
//!
//! # States
//!
//! One word: whether somebody is *inside*, and how many works are *counted* (queued completely).
//!
//! | inside | counted | meaning | leaves by |
//! | --- | --- | --- | --- |
//! | no | 0 | idle | `enter` |
//! | yes | any | the one inside runs works | it leaves: counted falls by what it ran |
//! | no | > 0 | left over after the bound | `enter` or `drain` by anybody |
//!
//! # Synchronization
//!
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | entering: inside set, AcqRel | leaving: inside cleared, AcqRel | the works run one after the other, each seeing what the one before did; also the queue's single consumer |
//! | `enter`: count, AcqRel, after the push | leaving: subtract and clear in one operation, AcqRel | a work that was counted while somebody was inside is seen by that one when it leaves; counted later, its producer finds nobody inside and goes in itself |
//!
//! A producer's earlier work is counted when it queues the next one, and works are taken in the
//! order of their positions: first in, first out for each producer. The direct run is taken only
//! with nothing counted, so it overtakes nothing of the same producer's.
//!
//! # What can be lost and what cannot
//!
//! Nothing: a work is run once, left over (reported by `left`), or handed back because the queue is
//! full. It never holds a borrow.
//!
//! # Failure modes
//!
//! A `run` that panics leaves, its work being lost and the rest left over.

use crate::Padded;
use crate::mpsc::Array;
use crate::shim::{AtomicU32, Ordering};
use std::fmt;

/// Bit of the state: somebody is inside. The others count works.
const INSIDE: u32 = 1 << 31;

/// What became of a work.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "works may be left over, or handed back"]
pub enum Entered<W> {
    /// The caller was inside, and ran works: its own, unless others before it used the bound up.
    Ran {
        /// Works were left: somebody, best the home worker, has to drain.
        left: bool,
    },
    /// Somebody else is inside and has it.
    Queued,
    /// The queue is full; the work comes back.
    Full(W),
}

/// What a drain did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Works that this call ran.
    pub ran: u32,
    /// Works were left when it left, and nobody else was inside.
    pub left: bool,
}

/// Serializes works of type `W`.
pub struct SerialQueue<W> {
    array: Array<W>,
    state: Padded<AtomicU32>,
    bound: u32,
}

impl<W> SerialQueue<W> {
    /// A queue with room for `capacity` works (rounded up to a power of two of at least 2) whose
    /// inmate runs at most `bound` works before it leaves.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0 or above 2^30, or `bound` is 0.
    pub fn new(capacity: usize, bound: u32) -> Self {
        assert!(bound > 0, "a serialization queue that runs nothing");
        assert!(
            capacity <= 1 << 30,
            "capacity {capacity} of a serialization queue"
        );
        Self {
            array: Array::new(capacity),
            state: Padded::new(AtomicU32::new(0)),
            bound,
        }
    }

    /// Runs `work`, in its turn, here or wherever somebody is inside.
    ///
    /// `run` is called for this and possibly for other producers' works. It must not enter the same
    /// queue and expect to be run before it returns: its work would be queued.
    pub fn enter(&self, work: W, mut run: impl FnMut(W)) -> Entered<W> {
        let idle = self
            .state
            .compare_exchange(0, INSIDE, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if idle {
            let inside = Inside {
                queue: self,
                taken: 0,
            };
            run(work);
            let left = inside.stay(&mut run, self.bound - 1).left;
            return Entered::Ran { left };
        }
        if let Err(work) = self.array.push(work) {
            return Entered::Full(work);
        }
        if self.state.fetch_add(1, Ordering::AcqRel) & INSIDE != 0 {
            return Entered::Queued;
        }
        match self.go_inside() {
            Some(inside) => {
                let left = inside.stay(&mut run, self.bound).left;
                Entered::Ran { left }
            }
            None => Entered::Queued,
        }
    }

    /// Runs works that were left, up to the bound. Does nothing if somebody is inside.
    pub fn drain(&self, mut run: impl FnMut(W)) -> Drained {
        if self.state.load(Ordering::Relaxed) == 0 {
            return Drained {
                ran: 0,
                left: false,
            };
        }
        match self.go_inside() {
            Some(inside) => inside.stay(&mut run, self.bound),
            None => Drained {
                ran: 0,
                left: false,
            },
        }
    }

    /// How many works are queued, about.
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn go_inside(&self) -> Option<Inside<'_, W>> {
        let was = self.state.fetch_or(INSIDE, Ordering::AcqRel);
        // Made lazily: an `Inside` that is dropped leaves.
        (was & INSIDE == 0).then(|| Inside {
            queue: self,
            taken: 0,
        })
    }
}

/// Being inside. Dropping it leaves, also when a work panics.
struct Inside<'q, W> {
    queue: &'q SerialQueue<W>,
    /// Works taken from the array since entering, not yet subtracted from the count.
    taken: u32,
}

impl<W> Inside<'_, W> {
    /// Runs queued works until none is counted or `budget` are run, and leaves.
    fn stay(mut self, run: &mut impl FnMut(W), budget: u32) -> Drained {
        let mut ran = 0;
        loop {
            let state = self.queue.state.load(Ordering::Acquire);
            if state == INSIDE | self.taken {
                // Nothing more is counted: leave, unless something is counted at this very moment.
                if self
                    .queue
                    .state
                    .compare_exchange(state, 0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    std::mem::forget(self);
                    return Drained { ran, left: false };
                }
                continue;
            }
            if ran == budget {
                return Drained { ran, left: true };
            }
            // SAFETY: being inside is exclusive, and entering acquires what the last one inside
            // did.
            let Some(work) = (unsafe { self.queue.array.pop() }) else {
                // The producer of the oldest one has not counted it yet. It goes in itself if it
                // finds us gone; if it counts before we leave, the work is left over like the ones
                // behind it.
                return Drained { ran, left: true };
            };
            self.taken += 1;
            ran += 1;
            run(work);
        }
    }
}

impl<W> Drop for Inside<'_, W> {
    fn drop(&mut self) {
        self.queue
            .state
            .fetch_sub(INSIDE | self.taken, Ordering::AcqRel);
    }
}

impl<W> fmt::Debug for SerialQueue<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SerialQueue")
            .field("len", &self.len())
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    /// A work that enters again is queued and then run by the one inside, up to the bound; the rest
    /// is reported and drained by whoever comes.
    #[test]
    fn works_are_run_up_to_the_bound() {
        let queue = SerialQueue::new(8, 3);
        let ran = Mutex::new(Vec::new());
        let entered = queue.enter(0, |work| {
            ran.lock().unwrap().push(work);
            if work == 0 {
                for later in 1..=4 {
                    assert_eq!(
                        queue.enter(later, |_| panic!("inside already")),
                        Entered::Queued
                    );
                }
            }
        });
        assert_eq!(entered, Entered::Ran { left: true });
        assert_eq!(*ran.lock().unwrap(), [0, 1, 2]);
        let mut run = |work| ran.lock().unwrap().push(work);
        assert_eq!(
            queue.drain(&mut run),
            Drained {
                ran: 2,
                left: false
            }
        );
        assert_eq!(
            queue.drain(&mut run),
            Drained {
                ran: 0,
                left: false
            }
        );
        assert_eq!(*ran.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert!(queue.is_empty());
    }

    /// A newcomer does not overtake what was left over, and gets its own work run in its turn.
    #[test]
    fn a_newcomer_goes_behind_what_was_left() {
        let queue = SerialQueue::new(4, 1);
        let mut ran = Vec::new();
        let first = queue.enter(1, |_| {
            let _ = queue.enter(2, |_| ());
        });
        assert_eq!(first, Entered::Ran { left: true });
        assert_eq!(queue.enter(3, |w| ran.push(w)), Entered::Ran { left: true });
        assert_eq!(
            queue.drain(|w| ran.push(w)),
            Drained {
                ran: 1,
                left: false
            }
        );
        assert_eq!(ran, [2, 3]);
    }

    /// A full queue hands the work back, and a panic inside leaves the queue usable with the rest
    /// in it.
    #[test]
    fn full_queues_and_panics() {
        let queue = SerialQueue::new(2, 8);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            queue.enter(0, |_| {
                assert_eq!(queue.enter(1, |_| ()), Entered::Queued);
                assert_eq!(queue.enter(2, |_| ()), Entered::Queued);
                assert_eq!(queue.enter(3, |_| ()), Entered::Full(3));
                panic!("a work that fails");
            })
        }));
        assert!(panicked.is_err());
        let mut ran = Vec::new();
        assert_eq!(
            queue.drain(|w| ran.push(w)),
            Drained {
                ran: 2,
                left: false
            }
        );
        assert_eq!(ran, [1, 2]);
        assert_eq!(
            queue.enter(4, |w| ran.push(w)),
            Entered::Ran { left: false }
        );
    }

    /// Real threads: never two inside, each work once, each producer's in order.
    #[test]
    fn producers_at_full_speed() {
        const WORKS: usize = 5_000;
        let queue = SerialQueue::new(64, 4);
        let inside = AtomicBool::new(false);
        let log = Mutex::new(Vec::new());
        let run = |work: (usize, usize)| {
            assert!(!inside.swap(true, Ordering::Relaxed), "two inside");
            log.lock().unwrap().push(work);
            inside.store(false, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            let producers = [0, 1, 2].map(|producer| {
                let (queue, run) = (&queue, &run);
                scope.spawn(move || {
                    for n in 0..WORKS {
                        let mut work = (producer, n);
                        while let Entered::Full(back) = queue.enter(work, run) {
                            work = back;
                            queue.drain(run);
                            std::thread::yield_now();
                        }
                    }
                })
            });
            producers.into_iter().for_each(|p| p.join().unwrap());
        });
        while queue.drain(run).left {}
        let log = log.into_inner().unwrap();
        assert_eq!(log.len(), 3 * WORKS);
        for producer in 0..3 {
            let of_one = log.iter().filter(|w| w.0 == producer).map(|w| w.1);
            assert!(of_one.eq(0..WORKS), "producer {producer} out of order");
        }
    }
}
