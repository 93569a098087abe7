//! How many shared mappings one user's peers may have: the table of [`crate::sigbus`] and the kernel's own are everybody's.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// A number of mappings that are held together. Shared by those who count as one.
#[derive(Debug)]
pub struct Quota {
    used: AtomicU32,
    max: u32,
}

impl Quota {
    /// A quota of `max` mappings, none of which is used.
    pub fn new(max: u32) -> Arc<Quota> {
        Arc::new(Quota {
            used: AtomicU32::new(0),
            max,
        })
    }

    /// The most mappings.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Counts one more, until it is dropped; `None` if there are `max`.
    pub(crate) fn charge(self: &Arc<Quota>) -> Option<Charge> {
        let one_more = |used| (used < self.max).then_some(used + 1);
        let counted = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.ok().map(|_| Charge(self.clone()))
    }
}

/// One mapping that counts.
#[derive(Debug)]
pub(crate) struct Charge(Arc<Quota>);

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}
