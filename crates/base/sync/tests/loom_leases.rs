//! Loom models of leases on a shared transmit ring. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use windlass_sync::leases::Leases;

/// A ring of slots that are written outside the lock, and the index that its publisher moves.
struct Ring {
    leases: Leases,
    slots: [UnsafeCell<u32>; 4],
    published: UnsafeCell<u32>,
}

// SAFETY: loom's cells check every access for races themselves; sharing them is the point of the
// model.
unsafe impl Sync for Ring {}
// SAFETY: as above.
unsafe impl Send for Ring {}

impl Ring {
    fn new() -> Self {
        Self {
            leases: Leases::new(),
            slots: std::array::from_fn(|_| UnsafeCell::new(0)),
            published: UnsafeCell::new(0),
        }
    }

    /// One visit: reserve one slot, fill it, finish. False if the lock was not had, or no lease was
    /// left.
    fn transmit(&self) -> bool {
        let Some(mut guard) = self.leases.try_lock(1) else {
            return false;
        };
        let start = guard.cursor();
        let Some(lease) = guard.lease(start as u32 + 1) else {
            return false;
        };
        guard.set_cursor(start + 1);
        drop(guard);
        self.slots[start as usize].with_mut(|p| {
            // SAFETY: loom's cell has checked that nobody else accesses.
            unsafe { *p = start as u32 + 1 }
        });
        self.leases.finish(lease, |end| self.publish(end));
        true
    }

    /// Publication: loom reports two at a time and a slot whose copy is not ordered before; the end
    /// must rise.
    fn publish(&self, end: u32) {
        self.published.with_mut(|p| {
            // SAFETY: loom's cell has checked that nobody else accesses.
            let before = unsafe { *p };
            assert!(end > before, "published {end} after {before}");
            for slot in before..end {
                let value = self.slots[slot as usize].with(|p| {
                    // SAFETY: loom's cell has checked that nobody writes.
                    unsafe { *p }
                });
                assert_eq!(value, slot + 1);
            }
            // SAFETY: as above.
            unsafe { *p = end }
        });
    }

    fn check_all_published(&self) {
        assert_eq!(self.leases.outstanding(), 0);
        let cursor = self
            .leases
            .try_lock(0)
            .expect("nobody holds the lock")
            .cursor();
        let published = self.published.with(|p| {
            // SAFETY: loom's cell has checked that nobody writes.
            unsafe { *p }
        });
        assert_eq!(u64::from(published), cursor);
    }
}

/// Two workers with two leases each: every finished lease is published, once, in order, by one at a
/// time.
#[test]
fn finished_leases_are_published_in_order() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(|| {
        let ring = Arc::new(Ring::new());
        let workers = [ring.clone(), ring.clone()].map(|ring| {
            thread::spawn(move || {
                let first = ring.transmit();
                u64::from(ring.transmit()) + u64::from(first)
            })
        });
        let sent: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
        assert!(sent >= 2, "{sent}");
        ring.check_all_published();
    });
}

/// Two leases taken beforehand and finished at once, in either order, under every interleaving.
#[test]
fn two_finish_at_once() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let mut guard = ring.leases.try_lock(0).unwrap();
        let taken = [guard.lease(1).unwrap(), guard.lease(2).unwrap()];
        guard.set_cursor(2);
        drop(guard);
        let workers = taken.map(|lease| {
            let ring = ring.clone();
            thread::spawn(move || {
                let slot = lease.end() - 1;
                ring.slots[slot as usize].with_mut(|p| {
                    // SAFETY: loom's cell has checked that nobody else accesses.
                    unsafe { *p = slot + 1 }
                });
                ring.leases.finish(lease, |end| ring.publish(end));
            })
        });
        for worker in workers {
            worker.join().unwrap();
        }
        ring.check_all_published();
    });
}
