//! Loom models of quiescent-state-based reclamation. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use windlass_sync::qsbr::{Domain, Limbo, Published, Worker};

/// A value whose drop is a write: loom reports a reader that is not ordered before it.
struct Tracked(UnsafeCell<u32>);

// SAFETY: loom's cell checks every access for races itself; sharing it is the point of the model.
unsafe impl Sync for Tracked {}

impl Tracked {
    fn boxed(value: u32) -> Box<Self> {
        Box::new(Self(UnsafeCell::new(value)))
    }

    fn read(&self) -> u32 {
        self.0.with(|p| {
            // SAFETY: loom's cell has checked that nobody writes.
            unsafe { *p }
        })
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.with_mut(|p| {
            // SAFETY: loom's cell has checked that nobody else accesses.
            unsafe { *p = u32::MAX }
        });
    }
}

/// A worker that loads twice, with `between` in between, and goes offline never sees a freed value,
/// nor an older one than before.
fn load_twice(between: fn(&mut Worker)) {
    loom::model(move || {
        let domain = Domain::new(1);
        let published = Arc::new(Published::new(&domain, Tracked::boxed(1)));
        let mut worker = domain.register();
        worker.online();
        let reader = {
            let published = published.clone();
            thread::spawn(move || {
                let mut last = 0;
                for _ in 0..2 {
                    let section = worker.section();
                    let seen = published.load(&section).read();
                    assert!(seen == 1 || seen == 2, "{seen}");
                    assert!(seen >= last, "{seen} after {last}");
                    last = seen;
                    drop(section);
                    between(&mut worker);
                }
                worker.offline();
            })
        };
        let mut limbo = Limbo::new();
        limbo.add(published.publish(Tracked::boxed(2)));
        while limbo.reclaim(&domain) == 0 {
            thread::yield_now();
        }
        reader.join().unwrap();
    });
}

/// The worker passes a quiescent point between its loads.
#[test]
fn a_value_is_freed_only_after_its_readers() {
    load_twice(Worker::quiesce);
}

/// The worker sleeps between its loads: its last reads come before the free also when the writer
/// sees only that it is back, and not that it was away.
#[test]
fn a_short_sleep_counts_as_quiescent() {
    load_twice(Worker::offline);
}

/// Two workers, one of which sleeps through it: the grace waits for both and for neither too long.
#[test]
fn a_grace_waits_for_every_worker() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(|| {
        let domain = Domain::new(2);
        let published = Arc::new(Published::new(&domain, Tracked::boxed(1)));
        let workers = [domain.register(), domain.register()];
        let readers = workers.map(|mut worker| {
            let published = published.clone();
            thread::spawn(move || {
                let section = worker.section();
                assert!((1..=2).contains(&published.load(&section).read()));
            })
        });
        let mut limbo = Limbo::new();
        limbo.add(published.publish(Tracked::boxed(2)));
        while limbo.reclaim(&domain) == 0 {
            thread::yield_now();
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// A worker comes online while a writer retires the value in cell 0 in favour of cell 1.
fn wake_against_retire(wake: fn(&mut Worker)) {
    loom::model(move || {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let cells = Arc::new([UnsafeCell::new(1), UnsafeCell::new(2)]);
        let current = Arc::new(AtomicUsize::new(0));
        let reader = {
            let (cells, current) = (cells.clone(), current.clone());
            thread::spawn(move || {
                wake(&mut worker);
                let now = current.load(Ordering::Acquire);
                let seen = cells[now].with(|p| {
                    // SAFETY: loom's cell has checked that nobody writes.
                    unsafe { *p }
                });
                assert_eq!(seen, now + 1);
                worker.offline();
            })
        };
        current.store(1, Ordering::Release);
        let grace = domain.start_grace();
        if grace.is_over(&domain) {
            cells[0].with_mut(|p| {
                // SAFETY: loom's cell has checked that nobody else accesses.
                unsafe { *p = usize::MAX }
            });
        }
        reader.join().unwrap();
    });
}

/// With the fence of `online`, a worker that wakes up is seen, or sees what is new.
#[test]
fn waking_up_races_with_a_grace() {
    wake_against_retire(Worker::online);
}

/// Without that fence the writer misses the worker and the worker misses the new value: loom finds
/// it.
#[test]
#[should_panic(expected = "Causality violation")]
fn waking_up_without_the_fence_is_caught() {
    wake_against_retire(Worker::online_without_fence);
}
