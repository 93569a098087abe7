//! Memory that is mapped once, as large as it may ever have to be, and touched as it is used.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Zeroed values of a type of which zeros are a value. It is never unmapped.
pub struct Reserved<T>(AtomicPtr<T>);

impl<T: Sync> Reserved<T> {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// The first value; null before [`Reserved::make`].
    #[inline(always)]
    pub fn base(&self) -> *mut T {
        self.0.load(Relaxed)
    }

    /// One of the values.
    ///
    /// # Safety
    /// It is mapped, with more values than `index`.
    #[inline(always)]
    pub unsafe fn at(&self, index: usize) -> &'static T {
        let first = self.base();
        // SAFETY: the caller's promise.
        unsafe { std::hint::assert_unchecked(!first.is_null()) };
        // SAFETY: as above.
        let place = unsafe { first.add(index) };
        // SAFETY: as above; zeros are a value, and the mapping is never undone.
        unsafe { &*place }
    }

    pub fn exists(&self) -> bool {
        !self.0.load(Acquire).is_null()
    }

    /// Maps `count` values unless they are there, `MAP_SHARED` or `MAP_PRIVATE`, with one `madvise`; `begin` sees them before anyone
    /// else. False: the system refuses.
    pub fn make(
        &self,
        count: usize,
        share: c_int,
        advice: c_int,
        begin: impl FnOnce(*mut T),
    ) -> bool {
        if self.exists() {
            return true;
        }
        let bytes = count * size_of::<T>();
        let flags = share | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: an anonymous mapping at any address.
        let place = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        if place == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: the range was mapped just now.
        let is_advised = unsafe { libc::madvise(place, bytes, advice) } == 0;
        if is_advised {
            begin(place.cast());
        }
        let publish = || {
            self.0
                .compare_exchange(null_mut(), place.cast(), AcqRel, Acquire)
        };
        if !is_advised || publish().is_err() {
            // SAFETY: nobody else has seen this mapping: another thread was first, or it is of no use.
            unsafe { libc::munmap(place, bytes) };
        }
        is_advised
    }
}
