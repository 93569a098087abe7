//! How a lower room tells a higher one.

use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Functions of higher rooms that a lower one calls: `T` is a struct of them. The constructor sets them once; before it, and in
/// unit tests, those of `none` are called.
pub struct Upcalls<T: 'static> {
    set: AtomicPtr<T>,
    none: &'static T,
}

impl<T: Sync> Upcalls<T> {
    /// None so far.
    pub const fn new(none: &'static T) -> Self {
        Self {
            set: AtomicPtr::new(null_mut()),
            none,
        }
    }

    /// These, from now on.
    pub fn set(&self, functions: &'static T) {
        self.set
            .store(std::ptr::from_ref(functions).cast_mut(), Release);
    }

    /// The functions.
    pub fn get(&self) -> &'static T {
        let set = self.set.load(Acquire);
        // SAFETY: null, or made of a reference without an end by `set`.
        unsafe { set.as_ref() }.unwrap_or(self.none)
    }
}
