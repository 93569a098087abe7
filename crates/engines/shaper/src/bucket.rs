//! A rate: [`Bucket`].
//!
//! # Model
//! The generic cell rate algorithm (ITU-T I.371): one moment, until which the rate is used up. What goes pushes it on by the time
//! that it takes at the rate. After a pause, [`BURST_NS`] of the rate may go at once.
//!
//! What waits does not compete for the rate when it wakes: a queue [reserves](Bucket::reserve) the moment of its next frame. So
//! the queues of several workers take turns, and each knows when to wake. A worker that wakes late makes up for at most
//! [`LATE_NS`].
//!
//! # Synchronization
//! Two words, changed by atomic read-modify-writes; they order nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use windlass_frame::Tick;

/// What may go at once after a pause, as the time that it takes at the rate.
pub const BURST_NS: u64 = 1_000_000;
/// What queues that were served late may catch up on, likewise: a worker without a core for so long loses nothing of the rate.
pub const LATE_NS: u64 = 100_000_000;
/// What may wait for a rate, likewise; but at least [`WAITING_MIN`].
pub const DELAY_NS: u64 = 100_000_000;
/// A large segment that takes longer is cut first.
pub const CUT_NS: u64 = 1_000_000;
/// Bytes that may always wait: some frames of 1,514 bytes.
pub const WAITING_MIN: u64 = 16 * 1024;
/// Parts of a nanosecond in which time is counted.
const PARTS: u64 = 16;
/// Bits behind the point of the time that a byte takes.
const POINT: u32 = 20;

/// A limit in bits a second of frames.
#[derive(Debug)]
pub struct Bucket {
    rate: u64,
    /// Parts of a nanosecond for a byte, with [`POINT`] bits behind the point.
    byte_takes: u64,
    used_until: AtomicU64,
    /// Bytes that wait for it, of all workers.
    waiting: AtomicU64,
    waiting_max: u64,
}

impl Bucket {
    /// `rate` bits a second, at least 1,000.
    pub fn new(rate: u64) -> Bucket {
        let rate = rate.max(1_000);
        let second = u128::from(PARTS).wrapping_mul(8_000_000_000) << POINT;
        let byte_takes = second.checked_div(rate.into()).unwrap_or(0);
        let most = u128::from(rate / 8).saturating_mul(DELAY_NS.into()) / 1_000_000_000;
        Bucket {
            rate,
            byte_takes: u64::try_from(byte_takes).unwrap_or(u64::MAX),
            used_until: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            waiting_max: u64::try_from(most).unwrap_or(u64::MAX).max(WAITING_MIN),
        }
    }

    /// Bits a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// The time that bytes take, in parts of a nanosecond.
    #[inline]
    fn cost(&self, bytes: u32) -> u64 {
        let cost = u128::from(bytes).wrapping_mul(self.byte_takes.into()) >> POINT;
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// The time that bytes take, in nanoseconds.
    pub fn takes_ns(&self, bytes: u32) -> u64 {
        self.cost(bytes) / PARTS
    }

    /// Whether `bytes` may go now; then they take their part of the rate.
    #[inline]
    pub fn pass(&self, now: Tick, bytes: u32) -> bool {
        let earliest = now.0.saturating_sub(BURST_NS).saturating_mul(PARTS);
        let latest = now.0.saturating_mul(PARTS);
        let cost = self.cost(bytes);
        let mut used_until = self.used_until.load(Ordering::Relaxed);
        loop {
            if used_until > latest {
                return false;
            }
            let end = used_until.max(earliest).saturating_add(cost);
            match self.exchange(used_until, end) {
                Ok(()) => return true,
                Err(seen) => used_until = seen,
            }
        }
    }

    /// When `bytes` may go, which take their part of the rate. A queue that was never empty since its last turn catches up.
    pub fn reserve(&self, now: Tick, bytes: u32, catches_up: bool) -> Tick {
        let before = if catches_up { LATE_NS } else { BURST_NS };
        let earliest = now.0.saturating_sub(before).saturating_mul(PARTS);
        let cost = self.cost(bytes);
        let mut used_until = self.used_until.load(Ordering::Relaxed);
        loop {
            let start = used_until.max(earliest);
            match self.exchange(used_until, start.saturating_add(cost)) {
                Ok(()) => return Tick(start.div_ceil(PARTS)),
                Err(seen) => used_until = seen,
            }
        }
    }

    /// What was reserved as `reserved` bytes has become `used`.
    pub fn correct(&self, reserved: u32, used: u32) {
        if reserved != used {
            let more = self.cost(used).wrapping_sub(self.cost(reserved));
            self.used_until.fetch_add(more, Ordering::Relaxed);
        }
    }

    #[inline]
    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        let (relaxed, word) = (Ordering::Relaxed, &self.used_until);
        word.compare_exchange_weak(from, to, relaxed, relaxed)
            .map(|_| ())
    }

    /// Whether so many bytes more may wait.
    pub(crate) fn has_room(&self, bytes: u32) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        waiting.saturating_add(bytes.into()) <= self.waiting_max
    }

    /// Bytes begin to wait.
    pub(crate) fn wait(&self, bytes: u64) {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes wait no more.
    pub(crate) fn end_wait(&self, bytes: u64) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    /// What may not go takes nothing; a pause gives a burst and no more.
    #[test]
    fn a_burst_after_a_pause() {
        let bucket = Bucket::new(8_000_000);
        let now = Tick(1_000_000_000);
        let burst = |now| (0..100).filter(|_| bucket.pass(now, 100)).count();
        assert_eq!(burst(now), 11);
        let used = bucket.used_until.load(Ordering::Relaxed);
        assert!(!bucket.pass(now, 100));
        assert_eq!(bucket.used_until.load(Ordering::Relaxed), used);
        assert_eq!(bucket.reserve(now, 100, false), now.plus(100_000));
        bucket.correct(100, 0);
        assert_eq!(bucket.used_until.load(Ordering::Relaxed), used);
        assert_eq!(burst(now.plus(5_000_000_000)), 11);
    }

    /// Only a queue that has waited all the time catches up on more than a burst.
    #[test]
    fn who_is_late_catches_up() {
        let now = Tick(1_000_000_000);
        for (catches_up, at) in [(true, 100_000_000), (false, 1_000_000)] {
            let bucket = Bucket::new(1_000_000);
            assert!(bucket.pass(Tick(500_000_000), 125));
            let first = bucket.reserve(now, 125, catches_up);
            assert_eq!(first, Tick(now.0 - at));
            assert_eq!(bucket.reserve(now, 125, catches_up), first.plus(1_000_000));
        }
    }
}
