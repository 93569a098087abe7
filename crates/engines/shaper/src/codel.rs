//! When a queue drops or marks: controlled delay (RFC 8289).

use windlass_frame::Tick;

/// How long frames may wait in a queue that does not drain; more at rates at which a frame takes longer (RFC 8289, section 4.4).
pub const TARGET_NS: u64 = 5_000_000;
/// How long a queue may be that slow before its first drop.
pub const INTERVAL_NS: u64 = 100_000_000;
/// The largest ordinary frame: a queue with less is not slow.
pub const MTU: u32 = 1514;

/// What holds for all queues of one rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    target_ns: u64,
    interval_ns: u64,
}

impl Law {
    /// For a rate at which an ordinary frame takes so long: the target is at least one and a half of it.
    pub(crate) fn new(frame_ns: u64) -> Law {
        let target_ns = TARGET_NS.max(frame_ns.saturating_add(frame_ns / 2));
        Law {
            target_ns,
            interval_ns: INTERVAL_NS.saturating_add(target_ns.saturating_sub(TARGET_NS)),
        }
    }

    /// The time of the drop after this many.
    fn after(self, count: u32, at: Tick) -> Tick {
        // With 16 bits behind the point.
        let root = (u64::from(count.max(1)) << 32).isqrt();
        let gap = self.interval_ns << 16;
        at.plus(gap.checked_div(root).unwrap_or(self.interval_ns))
    }
}

/// One queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Codel {
    /// Slow from then on; none while it is not.
    slow_at: Option<Tick>,
    is_dropping: bool,
    /// The time of the next drop, or of the one that did not come.
    drop_at: Tick,
    /// Drops since it began to drop, and what that was when it began.
    count: u32,
    count_then: u32,
}

impl Codel {
    /// Whether a frame that has waited for `waited` ns, with `left` bytes behind it, is one too many.
    fn is_slow(&mut self, law: Law, now: Tick, waited: u64, left: u64) -> bool {
        if waited < law.target_ns || left <= u64::from(MTU) {
            self.slow_at = None;
            return false;
        }
        match self.slow_at {
            Some(at) => now >= at,
            None => {
                self.slow_at = Some(now.plus(law.interval_ns));
                false
            }
        }
    }

    /// Whether the frame at the head is dropped, after which the next one is asked about.
    pub(crate) fn drops(&mut self, law: Law, now: Tick, waited: u64, left: u64) -> bool {
        let is_slow = self.is_slow(law, now, waited, left);
        if !is_slow || (self.is_dropping && now < self.drop_at) {
            self.is_dropping &= is_slow;
            return false;
        }
        if self.is_dropping {
            self.count = self.count.saturating_add(1);
            self.drop_at = law.after(self.count, self.drop_at);
            return true;
        }
        self.is_dropping = true;
        // Soon after it has ended it goes on with the rate of drops that was right.
        let is_soon = now.since(self.drop_at) < law.interval_ns.saturating_mul(16);
        let more = self.count.saturating_sub(self.count_then);
        self.count = if is_soon && more > 1 { more } else { 1 };
        self.count_then = self.count;
        self.drop_at = law.after(self.count, now);
        true
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A queue that is always slow drops after an interval, then ever more often; one that drains in between does not.
    #[test]
    fn drops_come_faster() {
        let law = Law::new(1_200_000);
        let (mut codel, mut drops) = (Codel::default(), Vec::new());
        for ms in 0..1000 {
            if codel.drops(law, Tick(ms * MS), 20 * MS, 50_000) {
                drops.push(ms);
            }
        }
        assert_eq!(drops.first(), Some(&100));
        let gaps: Vec<u64> = drops.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(
            gaps.len() > 15 && gaps.windows(2).all(|two| two[0] + 1 >= two[1]),
            "{gaps:?}"
        );
        let mut drains = Codel::default();
        let dropped = (0..1000).filter(|ms| {
            let waited = if ms % 90 == 0 { MS } else { 20 * MS };
            drains.drops(law, Tick(ms * MS), waited, 50_000)
        });
        assert_eq!(dropped.count(), 0);
    }

    /// A rate at which a frame takes longer than the target has a longer target.
    #[test]
    fn slow_rates_are_not_slow_queues() {
        let law = Law::new(12 * MS);
        assert_eq!((law.target_ns, law.interval_ns), (18 * MS, 113 * MS));
        let mut codel = Codel::default();
        assert!((0..1000).all(|ms| !codel.drops(law, Tick(ms * MS), 17 * MS, 50_000)));
    }
}
