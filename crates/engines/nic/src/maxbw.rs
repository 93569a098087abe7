//! The bandwidth of a member in one direction: [`MaxBw`].
//!
//! # Model
//! The generic cell rate algorithm (ITU-T I.371): one moment, until which the rate is used up. A frame goes at that moment,
//! or at once if it is past, and pushes it on by the time that the frame takes at the rate. So frames of several workers get
//! their times in the order in which they come, and none starves the others; whoever holds a frame knows when it goes.
//!
//! A frame that would have to wait for longer than [`DELAY_NS`], or for which there is no room, is dropped as `queue-full` on its way to the member, as `rx-queue-full`
//! on its way from it, and takes nothing of the rate.
//!
//! # Synchronization
//! One word, changed by compare-and-swap; it orders nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use windlass_frame::{Tick, Verdict};
use windlass_stats::Drop;

use crate::stage::{EgressStage, Entering, IngressStage, Leaving};

/// What may go at once after a pause, as the time that it takes at the rate.
pub const BURST_NS: u64 = 1_000_000;
/// The longest that a frame waits.
pub const DELAY_NS: u64 = 100_000_000;
/// Parts of a nanosecond in which time is counted.
const PARTS: u64 = 16;

/// A limit on the bandwidth of a member in one direction: bits a second of frames, without the tag of a trunk on the way to it.
#[derive(Debug)]
pub struct MaxBw {
    rate: u64,
    used_until: AtomicU64,
}

impl MaxBw {
    /// `rate` bits a second, at least 1.
    pub fn new(rate: u64) -> MaxBw {
        MaxBw {
            rate: rate.max(1),
            used_until: AtomicU64::new(0),
        }
    }

    /// When `bytes` may go; they take their part of the rate. None if they have to wait and may not, or for too long.
    fn take(&self, now: Tick, bytes: u32, may_wait: bool) -> Option<Tick> {
        let bits = u128::from(bytes).saturating_mul(8);
        let second = u128::from(PARTS).saturating_mul(1_000_000_000);
        let cost = bits.saturating_mul(second).checked_div(self.rate.into())?;
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let earliest = now.0.saturating_sub(BURST_NS).saturating_mul(PARTS);
        let mut used_until = self.used_until.load(Ordering::Relaxed);
        loop {
            let start = used_until.max(earliest);
            let at = Tick(start.div_ceil(PARTS));
            if at > now && (!may_wait || at.since(now) > DELAY_NS) {
                return None;
            }
            let end = start.saturating_add(cost);
            let (relaxed, word) = (Ordering::Relaxed, &self.used_until);
            match word.compare_exchange_weak(used_until, end, relaxed, relaxed) {
                Ok(_) => return Some(at),
                Err(seen) => used_until = seen,
            }
        }
    }
}

impl EgressStage for MaxBw {
    fn enter(&self, now: Tick, frames: &mut Entering<'_>) {
        for k in 0..frames.len() {
            let Some(bytes) = frames.passing(k).map(|meta| meta.len) else {
                continue;
            };
            match self.take(now, bytes, frames.has_room(k)) {
                Some(at) if at <= now => {}
                Some(at) => frames.hold(k, at),
                None => frames.drop_frame(k, Drop::QueueFull),
            }
        }
    }
}

impl IngressStage for MaxBw {
    fn leave(&self, frames: &mut Leaving<'_>) {
        let now = frames.heads().now;
        for i in 0..frames.len() {
            let Some(bytes) = frames.passing(i).map(|meta| meta.len) else {
                continue;
            };
            match self.take(now, bytes, frames.has_room(i)) {
                Some(at) if at <= now => {}
                Some(at) => frames.hold(i, at),
                None => frames.decide(i, Verdict::drop(Drop::RxQueueFull)),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// From 1 Mbit/s to 10 Gbit/s, with frames of every size: within one second what goes is within 2 % and one frame of the
    /// rate, though twice as much is offered; and nothing waits too long.
    #[test]
    fn a_second_at_the_rate() {
        for mbit in [1, 7, 100, 1_000, 10_000_u64] {
            for bytes in [60, 590, 1514] {
                let limit = MaxBw::new(mbit * 1_000_000);
                let start = Tick(5 * SECOND);
                let frames = mbit * 1_000_000 / 8 / u64::from(bytes);
                if frames > 1_000_000 {
                    continue;
                }
                let gap = SECOND / (2 * frames.max(1)).min(SECOND);
                let (mut went, mut now) = (0, start);
                while now.since(start) < SECOND {
                    if let Some(at) = limit.take(now, bytes, true) {
                        assert!(at.since(now) <= DELAY_NS);
                        went += u64::from(at.since(start) < SECOND);
                    }
                    now = now.plus(gap.max(1));
                }
                let sum = went * u64::from(bytes) * 8;
                let off = sum.abs_diff(mbit * 1_000_000);
                assert!(
                    off <= mbit * 20_000 + u64::from(bytes) * 8,
                    "{mbit} Mbit/s, {bytes} bytes: {sum}"
                );
            }
        }
    }

    /// What may not wait and has to, takes nothing.
    #[test]
    fn refused_frames_are_free() {
        let limit = MaxBw::new(8_000_000);
        let now = Tick(SECOND);
        let at_once = (0..100).filter(|_| limit.take(now, 100, false).is_some());
        assert_eq!(at_once.count(), 11);
        let after = limit.used_until.load(Ordering::Relaxed);
        assert_eq!(limit.take(now, 100, false), None);
        assert_eq!(limit.used_until.load(Ordering::Relaxed), after);
        assert_eq!(limit.take(now, 100, true), Some(now.plus(100_000)));
    }
}
