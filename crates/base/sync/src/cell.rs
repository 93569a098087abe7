//! A slot of a ring: storage for one value that is written by one thread and taken by another.
//!
//! # Synchronization
//!
//! A [`Slot`] has none of its own: the ring around it hands the slot from producer to consumer and
//! back with a Release store and an Acquire load. Under loom every access is tracked, so a missing
//! pair is reported as a race.

use std::mem::MaybeUninit;

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

/// Storage for one value, full or empty; the ring that owns it knows which.
pub(crate) struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> {
    /// An empty slot.
    pub(crate) fn empty() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Puts a value into an empty slot.
    ///
    /// # Safety
    ///
    /// The slot is empty, and no other thread accesses it until the caller hands it over with a
    /// Release operation.
    #[inline]
    pub(crate) unsafe fn put(&self, value: T) {
        #[cfg(not(loom))]
        let cell = self.0.get();
        #[cfg(loom)]
        let guard = self.0.get_mut();
        #[cfg(loom)]
        let cell = guard.with(|p| p);
        // SAFETY: the caller has the slot to itself (contract above), and the pointer is the cell's
        // own.
        unsafe { cell.write(MaybeUninit::new(value)) }
    }

    /// Takes the value out of a full slot, which is empty afterwards.
    ///
    /// # Safety
    ///
    /// The slot is full, the caller saw that by an Acquire operation, and no other thread accesses
    /// it until the caller hands it back with a Release operation.
    #[inline]
    pub(crate) unsafe fn take(&self) -> T {
        #[cfg(not(loom))]
        let cell = self.0.get();
        #[cfg(loom)]
        let guard = self.0.get_mut();
        #[cfg(loom)]
        let cell = guard.with(|p| p);
        // SAFETY: the caller has the slot to itself (contract above), and the pointer is the cell's
        // own.
        let value = unsafe { cell.read() };
        // SAFETY: the slot is full (contract above), so the value is initialized; it is read once,
        // since the slot counts as empty from now on.
        unsafe { value.assume_init() }
    }
}
