//! Loom models of `lock.rs`, which is compiled here over loom's words and a futex of loom's; and of a class's depot, the engine's own, under
//! that lock. Bounded to three or four pre-emptions. Empty unless built with `--cfg loom`.
#![cfg(loom)]

#[allow(dead_code, reason = "the models do not use all of it")]
#[path = "../src/lock.rs"]
mod lock;

/// What a static may be made of; loom's part is made at the first use, by the thread that makes the lock.
mod shim {
    pub use loom::hint::spin_loop;
    use std::cell;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    use loom::sync::atomic;

    pub struct AtomicU32(u32, OnceLock<atomic::AtomicU32>);

    impl AtomicU32 {
        pub const fn new(value: u32) -> Self {
            Self(value, OnceLock::new())
        }

        fn word(&self) -> &atomic::AtomicU32 {
            self.1.get_or_init(|| atomic::AtomicU32::new(self.0))
        }

        pub fn load(&self, order: Ordering) -> u32 {
            self.word().load(order)
        }

        pub fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.word().swap(value, order)
        }

        pub fn compare_exchange(
            &self,
            old: u32,
            new: u32,
            good: Ordering,
            bad: Ordering,
        ) -> Result<u32, u32> {
            self.word().compare_exchange(old, new, good, bad)
        }
    }

    /// Two uses of the value that are not ordered are a race, which loom reports.
    pub struct UnsafeCell<T>(cell::UnsafeCell<T>, OnceLock<loom::cell::UnsafeCell<()>>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            Self(cell::UnsafeCell::new(value), OnceLock::new())
        }

        pub fn get(&self) -> *mut T {
            let seen = self.1.get_or_init(|| loom::cell::UnsafeCell::new(()));
            seen.with_mut(|_| self.0.get())
        }
    }
}

/// The kernel's futex: whether the word is still the same is asked under the lock of the queue in which the thread then waits.
mod sys {
    use loom::sync::{Condvar, Mutex};
    use std::sync::atomic::Ordering::Relaxed;

    use crate::shim::AtomicU32;

    loom::lazy_static! {
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub fn wait(word: &AtomicU32, value: u32) {
        let queue = QUEUE.0.lock().expect("no panic");
        if word.load(Relaxed) == value {
            drop(QUEUE.1.wait(queue).expect("no panic"));
        }
    }

    pub fn wake(_: &AtomicU32) {
        let _queue = QUEUE.0.lock().expect("no panic");
        QUEUE.1.notify_one();
    }
}

use lock::Lock;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use windlass_slab::{CLASSES, Class, Geometry, Slab, UNIT};

/// A lock that this thread has made and used.
fn made<T: 'static>(value: T) -> Arc<Lock<T>> {
    let lock = Arc::new(Lock::new(value));
    drop(lock.lock());
    lock
}

fn bounded(pre_emptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(pre_emptions);
    builder.check(model);
}

/// Three threads that each take the lock once: each has it alone, and none sleeps for ever.
#[test]
fn one_thread_has_the_lock() {
    bounded(3, || {
        let lock = made(0);
        let add = |lock: Arc<Lock<i32>>| move || *lock.lock() += 1;
        let others = [(); 2].map(|()| thread::spawn(add(lock.clone())));
        add(lock.clone())();
        for other in others {
            other.join().expect("a thread");
        }
        assert_eq!(*lock.lock(), 3);
    });
}

/// Two threads that take it twice each: who released it may be the next who waits.
#[test]
fn no_wake_up_is_lost() {
    bounded(4, || {
        let lock = made(0);
        let add = |lock: Arc<Lock<i32>>| {
            move || {
                for _ in 0..2 {
                    let (mut held, _) = lock.lock_contended();
                    *held += 1;
                }
            }
        };
        let other = thread::spawn(add(lock.clone()));
        add(lock.clone())();
        other.join().expect("a thread");
        assert_eq!(*lock.lock(), 4);
    });
}

/// As a fork does: it holds an outer lock and then an inner one, past which nobody is between the two changes that belong together. Whoever
/// waited goes on.
#[test]
fn a_fork_falls_between_changes() {
    bounded(3, || {
        let (outer, inner) = (made(0), made(0));
        let change = |outer: Arc<Lock<i32>>, inner: Arc<Lock<i32>>| {
            move || {
                let mut first = outer.lock();
                *first += 1;
                *inner.lock() += 1;
            }
        };
        let other = thread::spawn(change(outer.clone(), inner.clone()));
        outer.hold();
        inner.hold();
        // SAFETY: held, and not used elsewhere in this thread.
        let first = *unsafe { outer.held() };
        // SAFETY: as above.
        let second = *unsafe { inner.held() };
        assert_eq!(first, second);
        inner.release();
        outer.release();
        other.join().expect("a thread");
        assert_eq!((*outer.lock(), *inner.lock()), (1, 1));
    });
}

/// A class of few large objects, its slab, and who touched each object.
struct World {
    class: Lock<(Class, Vec<Slab>)>,
    objects: Vec<UnsafeCell<()>>,
}

impl World {
    fn new() -> Self {
        let number = CLASSES - 1;
        let geometry = Geometry::of_class(number);
        let mut class = Class::new(number as u16, geometry);
        let mut slabs = vec![Slab::default(); geometry.units()];
        class.add(&mut slabs[..], 0);
        let class = Lock::new((class, slabs));
        drop(class.lock());
        let objects = (0..geometry.objects())
            .map(|_| UnsafeCell::new(()))
            .collect();
        Self { class, objects }
    }

    /// A batch in use: loom reports who else uses an object of it, before or after, without an order.
    fn take(&self) -> Vec<usize> {
        let mut held = self.class.lock();
        let (class, slabs) = &mut *held;
        let mut batch = vec![0; class.geometry().batch()];
        let taken = class.refill(&mut slabs[..], UNIT, &mut batch).count;
        drop(held);
        batch.truncate(taken);
        self.touch(&batch);
        batch
    }

    fn touch(&self, batch: &[usize]) {
        let len = windlass_slab::size(CLASSES - 1);
        for address in batch {
            self.objects[(address - UNIT) / len].with_mut(|_| ());
        }
    }

    fn put(&self, batch: &[usize]) {
        self.touch(batch);
        let mut held = self.class.lock();
        let (class, slabs) = &mut *held;
        class
            .flush(&mut slabs[..], UNIT, batch)
            .expect("right addresses");
    }
}

/// Two threads take batches and put them back, into the depot and out of it: an object is one thread's at a time, whose stores the next one sees.
#[test]
fn a_depot_hands_batches_over() {
    bounded(3, || {
        let world = Arc::new(World::new());
        let exchange = |world: Arc<World>| {
            move || {
                let first = world.take();
                let second = world.take();
                world.put(&first);
                world.put(&second);
            }
        };
        let other = thread::spawn(exchange(world.clone()));
        exchange(world.clone())();
        other.join().expect("a thread");
        let mut held = world.class.lock();
        let (class, slabs) = &mut *held;
        assert_eq!(class.out(), 0);
        while let Some(drained) = class.drain(&mut slabs[..], UNIT) {
            drained.expect("right addresses");
        }
        assert_eq!(class.slabs(), 0);
    });
}
