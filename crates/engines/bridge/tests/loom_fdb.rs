//! Models of the table's protocol, explored by loom: `RUSTFLAGS="--cfg loom" cargo test -p windlass-bridge --release
//! --test loom_fdb`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

const KEY: u64 = 7;
const OTHER: u64 = 9;

/// Two buckets of one slot each, and the operations of `fdb::table` and `fdb::writer` on them, in their order and with
/// their orderings: small enough for loom to see every interleaving.
struct Model {
    keys: [AtomicU64; 2],
    vals: [AtomicU32; 2],
    /// Of the first bucket: keys that stand in the second.
    away: AtomicU16,
}

impl Model {
    fn new() -> Model {
        Model {
            keys: [AtomicU64::new(0), AtomicU64::new(0)],
            vals: [AtomicU32::new(0), AtomicU32::new(0)],
            away: AtomicU16::new(0),
        }
    }

    fn fill(&self, slot: usize, key: u64, value: u32) {
        self.vals[slot].store(value, Ordering::Release);
        self.keys[slot].store(key, Ordering::Release);
    }

    fn clear(&self, slot: usize) {
        self.keys[slot].store(0, Ordering::Release);
    }

    /// `Fdb::note_away`, for a key that goes to or leaves the second bucket.
    fn note_away(&self, change: i16) {
        let away = self.away.load(Ordering::Relaxed);
        self.away
            .store(away.saturating_add_signed(change), Ordering::Relaxed);
    }

    /// `Reader::find`, with one slot in each bucket.
    fn lookup(&self, key: u64) -> Option<u32> {
        let is = |slot: usize| self.keys[slot].load(Ordering::Acquire) == key;
        let slot = if is(0) {
            0
        } else if self.away.load(Ordering::Relaxed) != 0 && is(1) {
            1
        } else {
            return None;
        };
        Some(self.vals[slot].load(Ordering::Relaxed))
    }

    /// `Bucket::find`, with both slots in one bucket.
    fn lookup_in_bucket(&self, key: u64) -> Option<u32> {
        let slot = usize::from(self.keys[1].load(Ordering::Acquire) == key);
        let found = self.keys[slot].load(Ordering::Acquire) == key;
        found.then(|| self.vals[slot].load(Ordering::Relaxed))
    }
}

/// A key that is moved from its first to its second bucket is found by every reader at every moment.
#[test]
fn a_moved_key_is_never_missed() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        m.fill(0, KEY, 70);
        let reader = {
            let m = Arc::clone(&m);
            loom::thread::spawn(move || assert_eq!(m.lookup(KEY), Some(70)))
        };
        m.note_away(1);
        m.fill(1, KEY, 70);
        m.clear(0);
        reader.join().unwrap();
    });
}

/// The model can fail: counted only after the move, a key can be missed.
#[test]
#[should_panic(expected = "missed")]
fn counted_too_late_it_fails() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        m.fill(0, KEY, 70);
        let reader = {
            let m = Arc::clone(&m);
            loom::thread::spawn(move || assert!(m.lookup(KEY).is_some(), "missed"))
        };
        m.fill(1, KEY, 70);
        m.clear(0);
        m.note_away(1);
        reader.join().unwrap();
    });
}

/// A key that is deleted from its second bucket and learned again in its first is found with a value of its own, or not
/// at all; and the count is then none again.
#[test]
fn a_key_comes_back_to_its_first_bucket() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        m.note_away(1);
        m.fill(1, KEY, 70);
        let reader = {
            let m = Arc::clone(&m);
            loom::thread::spawn(move || {
                let seen = m.lookup(KEY);
                assert!(seen.is_none_or(|v| v == 70 || v == 71), "{seen:?}");
            })
        };
        m.clear(1);
        m.note_away(-1);
        m.fill(0, KEY, 71);
        reader.join().unwrap();
        assert_eq!(m.away.load(Ordering::Relaxed), 0);
    });
}

/// A slot that rests until the reader's visit has ended never shows a reader another key's value; a key
/// that is seen has its own value.
#[test]
fn a_rested_slot_never_mixes_entries() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        let over = Arc::new(AtomicU32::new(0));
        m.fill(0, KEY, 70);
        let reader = {
            let (m, over) = (Arc::clone(&m), Arc::clone(&over));
            loom::thread::spawn(move || {
                let seen = m.lookup(KEY);
                over.store(1, Ordering::Release);
                assert!(matches!(seen, None | Some(70)), "{seen:?}");
                let other = m.lookup(OTHER);
                assert!(matches!(other, None | Some(90)), "{other:?}");
            })
        };
        m.clear(0);
        if over.load(Ordering::Acquire) == 1 {
            m.fill(0, OTHER, 90);
        }
        reader.join().unwrap();
    });
}

/// The model can fail: without rest, a reader can take another key's value.
#[test]
#[should_panic(expected = "stranger")]
fn without_rest_it_fails() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        m.fill(0, KEY, 70);
        let reader = {
            let m = Arc::clone(&m);
            loom::thread::spawn(move || {
                let seen = m.lookup(KEY);
                assert!(matches!(seen, None | Some(70)), "a stranger's value");
            })
        };
        m.clear(0);
        m.fill(0, OTHER, 90);
        reader.join().unwrap();
    });
}

/// The two slots as those of one bucket: the slot that the first look chose is believed by the second look only. So a
/// key that is deleted and learned again elsewhere in the bucket is found with a value of its own, or not at all.
#[test]
fn a_chosen_slot_is_looked_at_again() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        m.fill(1, KEY, 70);
        let reader = {
            let m = Arc::clone(&m);
            loom::thread::spawn(move || {
                let seen = m.lookup_in_bucket(KEY);
                assert!(seen.is_none_or(|v| v == 70 || v == 71), "{seen:?}");
            })
        };
        m.clear(1);
        m.fill(0, KEY, 71);
        reader.join().unwrap();
    });
}

/// The model can fail: moved from the second bucket to the first, a key can be missed.
#[test]
#[should_panic(expected = "missed")]
fn in_the_other_direction_it_fails() {
    loom::model(|| {
        let m = Arc::new(Model::new());
        m.note_away(1);
        m.fill(1, KEY, 70);
        let reader = {
            let m = Arc::clone(&m);
            loom::thread::spawn(move || assert!(m.lookup(KEY).is_some(), "missed"))
        };
        m.fill(0, KEY, 70);
        m.clear(1);
        m.note_away(-1);
        reader.join().unwrap();
    });
}
