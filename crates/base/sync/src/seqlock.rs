//! A sequence lock: one writer shows a small snapshot, readers copy it whole and never hold the
//! writer up.
//!
//! # Purpose
//!
//! Statistics and states of several words that must be of one moment (a rate and its time, a ring's
//! indexes).
//!
//! # Model
//!
//! The value is `N` words. The writer makes the sequence odd, stores the words, and makes it even.
//! A reader copies the words between two looks at the sequence and keeps the copy if both looks saw
//! the same even number. The words are relaxed atomics and the value converts from and to them, so
//! there is no data race by the language's memory model and no `unsafe` at all.
//!
//! # Synchronization
//!
//! | store | pairs with | so that |
//! | --- | --- | --- |
//! | `write`: fence Release before the words | `read`: fence Acquire after the words | a reader that saw a new word sees the odd sequence, and tries again |
//! | `write`: even sequence, Release | `read`: first look, Acquire | a reader that saw the even sequence sees all words of that write |
//!
//! # Limits
//!
//! One writer at a time. A read costs `N` loads; keep it to a few lines. The sequence wraps after
//! 2^63 writes.

use crate::Padded;
use crate::shim::{AtomicU64, Ordering, fence};
use std::fmt;
use std::marker::PhantomData;

/// Attempts of [`SeqLock::read`] before it lets another thread run, since the writer may be waiting
/// for this core.
const SPINS: u32 = 64;

/// A snapshot of type `T`, which converts to and from `N` words.
pub struct SeqLock<T, const N: usize> {
    inner: Padded<Inner<N>>,
    _value: PhantomData<fn(T) -> T>,
}

struct Inner<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<T, const N: usize> SeqLock<T, N>
where
    T: Copy + From<[u64; N]> + Into<[u64; N]>,
{
    /// A snapshot that shows `value`.
    pub fn new(value: T) -> Self {
        let words: [u64; N] = value.into();
        let inner = Inner {
            sequence: AtomicU64::new(0),
            words: words.map(AtomicU64::new),
        };
        Self {
            inner: Padded::new(inner),
            _value: PhantomData,
        }
    }

    /// Shows another value. To be called by the one writer only: two at a time would show a
    /// mixture.
    pub fn write(&self, value: T) {
        let sequence = self.inner.sequence.load(Ordering::Relaxed);
        debug_assert!(
            sequence.is_multiple_of(2),
            "two writers of one sequence lock"
        );
        self.inner
            .sequence
            .store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let words: [u64; N] = value.into();
        for (word, new) in self.inner.words.iter().zip(words) {
            word.store(new, Ordering::Relaxed);
        }
        self.inner
            .sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The value, unless a write was going on.
    pub fn try_read(&self) -> Option<T> {
        let before = self.inner.sequence.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let words = std::array::from_fn(|i| self.inner.words[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = self.inner.sequence.load(Ordering::Relaxed);
        (before == after).then(|| T::from(words))
    }

    /// The value, after as many attempts as it takes.
    pub fn read(&self) -> T {
        let mut attempts = 0u32;
        loop {
            if let Some(value) = self.try_read() {
                return value;
            }
            attempts = attempts.wrapping_add(1);
            if attempts.is_multiple_of(SPINS) {
                std::thread::yield_now();
            } else {
                crate::pause();
            }
        }
    }
}

impl<T, const N: usize> fmt::Debug for SeqLock<T, N>
where
    T: Copy + From<[u64; N]> + Into<[u64; N]> + fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeqLock")
            .field("value", &self.try_read())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Rate {
        frames: u64,
        bytes: u64,
        check: u64,
    }

    impl From<[u64; 3]> for Rate {
        fn from([frames, bytes, check]: [u64; 3]) -> Self {
            Self {
                frames,
                bytes,
                check,
            }
        }
    }

    impl From<Rate> for [u64; 3] {
        fn from(rate: Rate) -> Self {
            [rate.frames, rate.bytes, rate.check]
        }
    }

    fn rate(frames: u64) -> Rate {
        Rate {
            frames,
            bytes: frames * 64,
            check: !frames,
        }
    }

    /// A read that falls into a write gives nothing, and the value after it is the new one.
    #[test]
    fn a_write_hides_the_value_while_it_goes_on() {
        let lock = SeqLock::new(rate(1));
        assert_eq!(lock.read(), rate(1));
        lock.inner.sequence.store(1, Ordering::Relaxed);
        assert_eq!(lock.try_read(), None);
        lock.inner.sequence.store(2, Ordering::Relaxed);
        lock.write(rate(2));
        assert_eq!(lock.try_read(), Some(rate(2)));
    }

    /// Real threads: every value that is read is one that was written, and they rise.
    #[test]
    fn a_reader_beside_a_writer() {
        const WRITES: u64 = 50_000;
        let lock = SeqLock::new(rate(0));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..=WRITES).for_each(|n| lock.write(rate(n))));
            let mut last = 0;
            while last < WRITES {
                let seen = lock.read();
                assert_eq!(seen, rate(seen.frames));
                assert!(seen.frames >= last);
                last = seen.frames;
            }
            writer.join().unwrap();
        });
    }
}
