//! Learned entries of several members, in any number of tables, that count together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many there are, and how many there may be. Clones count together. Writers that learn at the same time may go beyond it
/// by one entry each.
#[derive(Clone, Debug)]
pub struct Tally {
    used: Arc<AtomicU32>,
    max: u32,
}

impl Tally {
    /// One of `max` entries, none of which is there.
    pub fn new(max: u32) -> Tally {
        Tally {
            used: Arc::default(),
            max,
        }
    }

    /// Entries that count at the moment.
    pub fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Whether others count in it, too.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.used) > 1
    }

    pub(super) fn is_full(&self) -> bool {
        self.used() >= self.max
    }

    pub(super) fn add(&self, entries: u32) {
        self.used.fetch_add(entries, Relaxed);
    }

    pub(super) fn sub(&self, entries: u32) {
        self.used.fetch_sub(entries, Relaxed);
    }
}
