//! Loom models of the serialization queue. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use windlass_sync::squeue::{Entered, SerialQueue};

struct Place {
    queue: SerialQueue<u32>,
    /// What has been run. Loom reports two inside at a time, or one not ordered after the one
    /// before.
    log: UnsafeCell<Vec<u32>>,
}

// SAFETY: loom's cell checks every access for races itself; sharing it is the point of the model.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

impl Place {
    fn new(bound: u32) -> Arc<Self> {
        Arc::new(Self {
            queue: SerialQueue::new(4, bound),
            log: UnsafeCell::new(Vec::new()),
        })
    }

    fn run(&self, work: u32) {
        self.log.with_mut(|log| {
            // SAFETY: loom's cell has checked that nobody else accesses.
            let log = unsafe { &mut *log };
            log.push(work);
        });
    }

    /// Enters with a work; whether something was left.
    fn enter(&self, work: u32) -> bool {
        match self.queue.enter(work, |w| self.run(w)) {
            Entered::Ran { left } => left,
            Entered::Queued => false,
            Entered::Full(_) => panic!("there is room for all"),
        }
    }

    /// What ran, after everybody is gone; drained first if somebody reported works left.
    fn finish(&self, left: bool) -> Vec<u32> {
        if left {
            while self.queue.drain(|w| self.run(w)).left {}
        }
        assert!(self.queue.is_empty(), "a work was left and nobody said so");
        self.log.with(|log| {
            // SAFETY: loom's cell has checked that nobody writes.
            let log = unsafe { &*log };
            log.clone()
        })
    }
}

/// Two producers, two works each: nothing lost, nothing run twice, never two inside, first in,
/// first out.
fn two_producers(bound: u32) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(move || {
        let place = Place::new(bound);
        let other = place.clone();
        let second = thread::spawn(move || {
            let first = other.enter(20);
            other.enter(21) || first
        });
        let left = place.enter(10);
        let left = place.enter(11) || left;
        let left = second.join().unwrap() || left;
        let ran = place.finish(left);
        for producer in [10, 20] {
            let of_one: Vec<u32> = ran
                .iter()
                .copied()
                .filter(|w| w / 10 * 10 == producer)
                .collect();
            assert_eq!(of_one, [producer, producer + 1], "ran {ran:?}");
        }
        assert_eq!(ran.len(), 4);
    });
}

/// The one inside drains everything that it finds.
#[test]
fn works_run_once_and_in_order() {
    two_producers(8);
}

/// The one inside leaves after each work, so that works are left over all the time.
#[test]
fn works_left_over_are_reported() {
    two_producers(1);
}

/// Three producers and a bound of two: entering, leaving and being queued behind an unfinished
/// push.
#[test]
fn three_producers_lose_nothing() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(|| {
        let place = Place::new(2);
        let others = [20, 30].map(|work| {
            let place = place.clone();
            thread::spawn(move || place.enter(work))
        });
        let mut left = place.enter(10);
        for other in others {
            left |= other.join().unwrap();
        }
        let mut ran = place.finish(left);
        ran.sort_unstable();
        assert_eq!(ran, [10, 20, 30]);
    });
}
