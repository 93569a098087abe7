//! A lock that sleeps in a futex, needs no memory and can be held across fork.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::*;

use crate::shim::{AtomicU32, UnsafeCell, spin_loop};
use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep.
const CONTENDED: u32 = 2;
/// Looks before the first sleep: sections take some hundred nanoseconds. A model has one.
const SPINS: u32 = if cfg!(loom) { 1 } else { 100 };

/// A value under a lock, whose word is in the value's first cache line.
#[repr(C, align(64))]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the holder of the lock alone.
unsafe impl<T> Sync for Lock<T> {}

/// The lock is held as long as this lives.
pub struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Held<'_, T> {
        self.hold();
        Held(self)
    }

    /// Waits for the lock; and whether another thread had it.
    pub fn lock_contended(&self) -> (Held<'_, T>, bool) {
        let contended = self.hold();
        (Held(self), contended)
    }

    /// Waits for the lock, which [`Lock::release`] ends. Whether another thread had it.
    pub fn hold(&self) -> bool {
        let free = |to| self.word.compare_exchange(FREE, to, Acquire, Relaxed);
        for spin in 0..SPINS {
            if self.word.load(Relaxed) == FREE && free(HELD).is_ok() {
                return spin > 0;
            }
            spin_loop();
        }
        while self.word.swap(CONTENDED, Acquire) != FREE {
            sys::wait(&self.word, CONTENDED);
        }
        true
    }

    /// Where the value is, for a reader of this process's memory.
    pub fn place(&self) -> *const T {
        self.value.get()
    }

    /// The value, between [`Lock::hold`] and [`Lock::release`].
    ///
    /// # Safety
    /// This thread holds the lock, and nothing else of it uses the value.
    pub unsafe fn held(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { &*self.value.get() }
    }

    /// Ends what [`Lock::hold`] began; in the child of a fork, too.
    pub fn release(&self) {
        if self.word.swap(FREE, Release) == CONTENDED {
            sys::wake(&self.word);
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, by this alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
