//! Loom models of `rows.rs`, which is compiled here over loom's words: rows as a reader in another process copies them. Empty unless built
//! with `--cfg loom`.
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the models do not use all of it")]
#[path = "../src/rows.rs"]
mod rows;

/// Loom's part of a word is made at its first use, by the thread that makes the row.
mod shim {
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    use loom::sync::atomic;
    pub use loom::sync::atomic::fence;

    #[derive(Debug, Default)]
    pub struct AtomicU64(u64, OnceLock<atomic::AtomicU64>);

    impl AtomicU64 {
        pub const fn new(value: u64) -> Self {
            Self(value, OnceLock::new())
        }

        fn word(&self) -> &atomic::AtomicU64 {
            self.1.get_or_init(|| atomic::AtomicU64::new(self.0))
        }

        pub fn load(&self, order: Ordering) -> u64 {
            self.word().load(order)
        }

        pub fn store(&self, value: u64, order: Ordering) {
            self.word().store(value, order);
        }
    }
}

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use loom::sync::Arc;
use loom::sync::atomic::fence;
use loom::thread;

rows::rows! {
    /// Two words that belong together.
    Pair, PairRow {
        /// A number.
        low: u64,
        /// The same, and 100.
        high: u64,
    }
}

/// A row that is in its place, with zeros.
fn made() -> Arc<PairRow> {
    let row = PairRow::nothing();
    copy(&row);
    Arc::new(row)
}

/// A copy of the row's bytes. The kernel copies words in any order: here the last one first.
fn copy(row: &PairRow) -> Vec<u8> {
    // SAFETY: a sequence is its word (`repr(transparent)`).
    let number = unsafe { &*(&raw const row.sequence).cast::<shim::AtomicU64>() };
    let mut words = [&row.high, &row.low, number].map(|word| word.load(Relaxed));
    words.reverse();
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// As the reader does it: two copies, each by a system call.
fn read(row: &PairRow) -> Option<Pair> {
    let first = copy(row);
    fence(Acquire);
    let second = copy(row);
    (first == second).then(|| Pair::from_bytes(&first))?
}

/// A row whose copies are equal is of one write. Bounded to three pre-emptions.
#[test]
fn a_row_is_read_whole() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(|| {
        let row = made();
        let shown = row.clone();
        let writer = thread::spawn(move || {
            for low in 1..=2 {
                let high = low + 100;
                shown.set(&Pair { low, high });
            }
        });
        if let Some(Pair { low, high }) = read(&row).filter(|pair| *pair != Pair::NOTHING) {
            assert_eq!(high, low + 100);
        }
        writer.join().expect("the writer");
        assert_eq!(read(&row), Some(Pair { low: 2, high: 102 }));
    });
}
