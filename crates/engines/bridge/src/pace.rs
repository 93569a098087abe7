//! Limits on what one ring can make the bridge do: frames flooded, addresses learned.
//!
//! # Model
//! The generic cell rate algorithm (ITU-T I.371): one moment, until which the rate is used up. One more
//! passes if that moment is at most [`TOLERANCE_NS`] ahead, and pushes it on by the time that one is worth.

use windlass_frame::Tick;

/// What may come at once, as the time in which it would come evenly.
pub const TOLERANCE_NS: u64 = 50_000_000;

/// The state of one ring's limit. It belongs to the worker that polls the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    used_until: Tick,
}

impl Pace {
    /// Whether the rate is used up for now.
    #[inline]
    pub fn is_used_up(&self, now: Tick) -> bool {
        self.used_until.since(now) > TOLERANCE_NS
    }

    /// Whether one more passes at `rate` a second; 0 is no limit.
    #[inline]
    pub fn admit(&mut self, rate: u32, now: Tick) -> bool {
        let Some(interval) = 1_000_000_000_u64.checked_div(u64::from(rate)) else {
            return true;
        };
        if self.is_used_up(now) {
            return false;
        }
        self.used_until = self.used_until.max(now).plus(interval);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 50 ms' worth pass at once, then the rate; without a limit everything passes.
    #[test]
    fn rate_and_burst() {
        let mut s = Pace::default();
        let start = Tick(1_000_000_000);
        let at_once = (0..100_000).filter(|_| s.admit(10_000, start)).count();
        assert_eq!(at_once, 501);
        let mut in_a_second = 0;
        for us in 1..=1_000_000 {
            in_a_second += u32::from(s.admit(10_000, start.plus(us * 1000)));
        }
        assert_eq!(in_a_second, 10_000);
        assert!((0..100_000).all(|_| s.admit(0, start)));
    }
}
