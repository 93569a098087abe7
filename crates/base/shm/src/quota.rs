//! What a peer may have us map. How many mappings are counted by user: the table of [`crate::sigbus`] and the kernel's own are
//! everybody's.
//!
//! # Model
//! A [`Pool`] is a user's. A [`Quota`] is one peer's account in a pool, and can be moved to another pool while its mappings live.
//!
//! # Synchronization
//! The lock of an account is held while its pool's counter changes. It is taken when memory is mapped and unmapped, never
//! by a frame.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest page of a peer that is not trusted with more: a punched 1 GiB page costs 100 ms of clearing.
const PAGE_BYTES_MAX: u64 = 2 << 20;
/// The largest page of any peer.
const GIGANTIC_PAGE_BYTES: u64 = 1 << 30;

/// A number of mappings. Clones count together.
#[derive(Clone, Debug)]
pub struct Pool {
    used: Arc<AtomicU32>,
    max: u32,
}

impl Pool {
    /// A pool of `max` mappings, none of which is used.
    pub fn new(max: u32) -> Pool {
        Pool {
            used: Arc::default(),
            max,
        }
    }

    /// Mappings that count at the moment.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether an account or a clone counts in it, too.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.used) > 1
    }
}

/// One peer's account in a pool, and the size of its pages. Clones are the same account.
#[derive(Clone, Debug)]
pub struct Quota {
    account: Arc<Mutex<Account>>,
}

#[derive(Debug)]
struct Account {
    pool: Pool,
    used: u32,
    page_bytes_max: u64,
}

fn lock(account: &Mutex<Account>) -> MutexGuard<'_, Account> {
    account.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Quota {
    /// An account in a pool of its own, of `max` mappings with pages of at most 2 MiB.
    pub fn new(max: u32) -> Quota {
        Quota::within(Pool::new(max))
    }

    /// An account in a pool, with pages of at most 2 MiB.
    pub fn within(pool: Pool) -> Quota {
        Quota {
            account: Arc::new(Mutex::new(Account {
                pool,
                used: 0,
                page_bytes_max: PAGE_BYTES_MAX,
            })),
        }
    }

    /// Whether pages of what is mapped from now on may have 1 GiB.
    pub fn allow_gigantic_pages(&self, allow: bool) {
        lock(&self.account).page_bytes_max = match allow {
            true => GIGANTIC_PAGE_BYTES,
            false => PAGE_BYTES_MAX,
        };
    }

    /// Whether pages may have 1 GiB.
    pub fn allows_gigantic_pages(&self) -> bool {
        self.page_bytes_max() == GIGANTIC_PAGE_BYTES
    }

    /// The most mappings of its pool.
    pub fn max(&self) -> u32 {
        lock(&self.account).pool.max
    }

    /// Mappings of this account.
    pub fn used(&self) -> u32 {
        lock(&self.account).used
    }

    /// Counts its mappings, and those to come, in another pool. What is beyond that pool's limit stays until it is unmapped.
    pub fn move_to(&self, pool: Pool) {
        let mut account = lock(&self.account);
        pool.used.fetch_add(account.used, Ordering::Relaxed);
        account.pool.used.fetch_sub(account.used, Ordering::Relaxed);
        account.pool = pool;
    }

    /// The largest page in bytes.
    pub(crate) fn page_bytes_max(&self) -> u64 {
        lock(&self.account).page_bytes_max
    }

    /// Counts one more, until it is dropped; `None` if its pool has no more.
    pub(crate) fn charge(&self) -> Option<Charge> {
        let mut account = lock(&self.account);
        let Pool { used, max } = &account.pool;
        let one_more = |used| (used < *max).then_some(used + 1);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        account.used += 1;
        Some(Charge(self.account.clone()))
    }
}

/// One mapping that counts.
#[derive(Debug)]
pub(crate) struct Charge(Arc<Mutex<Account>>);

impl Drop for Charge {
    fn drop(&mut self) {
        let mut account = lock(&self.0);
        account.used -= 1;
        account.pool.used.fetch_sub(1, Ordering::Relaxed);
    }
}
