//! [`Counter`]: a count that one thread adds to and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit count with a *single* writer: adding is a relaxed load and a relaxed store, with no
/// locked instruction, so it costs what a plain integer costs.
///
/// Two writers at once lose counts (never memory safety); give each worker a counter of its own and
/// add them up when they are shown. Readers see some value that the writer has stored, never a torn
/// one. It wraps at 2^64.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. To be called by the one writer only.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// The count so far, as any thread may read it.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One writer's additions all arrive, and a reader never sees the count go down.
    #[test]
    fn a_reader_sees_a_rising_count_and_then_the_sum() {
        const ADDS: u64 = 100_000;
        static COUNT: Counter = Counter::new();
        let writer = std::thread::spawn(|| (0..ADDS).for_each(|_| COUNT.add(3)));
        let mut last = 0;
        while last < ADDS * 3 {
            let seen = COUNT.get();
            assert!(
                seen >= last && seen.is_multiple_of(3),
                "{seen} after {last}"
            );
            last = seen;
        }
        writer.join().unwrap();
        assert_eq!(COUNT.get(), ADDS * 3);
    }
}
