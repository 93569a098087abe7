//! What a peer may have us map. How many mappings are counted by user: the table of [`crate::sigbus`] and the kernel's own are
//! everybody's.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The largest page of a peer that is not trusted with more: a punched 1 GiB page costs 100 ms of clearing.
const PAGE_BYTES_MAX: u64 = 2 << 20;
/// The largest page of any peer.
const GIGANTIC_PAGE_BYTES: u64 = 1 << 30;

/// A number of mappings, and the size of their pages. Clones count together.
#[derive(Clone, Debug)]
pub struct Quota {
    used: Arc<AtomicU32>,
    max: u32,
    page_bytes_max: u64,
}

impl Quota {
    /// A quota of `max` mappings with pages of at most 2 MiB, none of which is used.
    pub fn new(max: u32) -> Quota {
        Quota {
            used: Arc::default(),
            max,
            page_bytes_max: PAGE_BYTES_MAX,
        }
    }

    /// The same for a peer whose pages may have 1 GiB.
    pub fn with_gigantic_pages(self) -> Quota {
        Quota {
            page_bytes_max: GIGANTIC_PAGE_BYTES,
            ..self
        }
    }

    /// The most mappings.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Mappings that count at the moment.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether others count in it, too.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.used) > 1
    }

    /// The largest page in bytes.
    pub(crate) fn page_bytes_max(&self) -> u64 {
        self.page_bytes_max
    }

    /// Counts one more, until it is dropped; `None` if there are `max`.
    pub(crate) fn charge(&self) -> Option<Charge> {
        let one_more = |used| (used < self.max).then_some(used + 1);
        let counted = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.ok().map(|_| Charge(self.used.clone()))
    }
}

/// One mapping that counts.
#[derive(Debug)]
pub(crate) struct Charge(Arc<AtomicU32>);

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
