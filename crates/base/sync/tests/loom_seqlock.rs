//! Loom models of the sequence lock. Empty unless built with `--cfg loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use windlass_sync::seqlock::SeqLock;

/// A reader that gets a value gets all of one write's words, and never an older write than before.
#[test]
fn a_snapshot_is_of_one_write() {
    loom::model(|| {
        let lock = Arc::new(SeqLock::<[u64; 2], 2>::new([0, 100]));
        let shown = lock.clone();
        let writer = thread::spawn(move || {
            shown.write([1, 101]);
            shown.write([2, 102]);
        });
        let mut last = 0;
        for _ in 0..2 {
            if let Some([low, high]) = lock.try_read() {
                assert_eq!(high, low + 100);
                assert!(low >= last, "{low} after {last}");
                last = low;
            }
        }
        writer.join().unwrap();
        assert_eq!(lock.read(), [2, 102]);
    });
}
