//! Limits on what one member can make the bridge do, over all its rings and workers: frames flooded, addresses learned.
//!
//! # Model
//! The generic cell rate algorithm (ITU-T I.371): one moment, until which the rate is used up. One more
//! passes if that moment is at most [`TOLERANCE_NS`] ahead, and pushes it on by the time that one is worth.
//!
//! # Synchronization
//! The moment is one word, moved on by compare-and-swap: workers that serve rings of the same member share the rate. Nothing
//! else depends on it, so all accesses are relaxed.

use std::sync::atomic::{AtomicU64, Ordering};

use windlass_frame::Tick;

/// What may come at once, as the time in which it would come evenly.
pub const TOLERANCE_NS: u64 = 50_000_000;

/// The state of one limit of a member.
#[derive(Debug, Default)]
pub struct Pace {
    used_until: AtomicU64,
}

/// The limits of one member. They outlive the topologies that it is in.
#[derive(Debug, Default)]
pub struct Paces {
    /// Flooded frames.
    pub storm: Pace,
    /// New addresses.
    pub learning: Pace,
    /// Frames for the daemon.
    pub local: Pace,
    /// BPDUs, of a member that takes part in spanning tree.
    pub bpdus: Pace,
    /// IGMP, MLD and PIM, on a bridge that snoops.
    pub snooped: Pace,
    /// Questions for neighbours, on a bridge that answers them.
    pub asked: Pace,
    /// Unknown addresses that a search is asked for.
    pub lookups: Pace,
    /// Requests for addresses and routers, on a bridge that serves its hosts.
    pub served: Pace,
    /// Answers to packets that are too long for a tunnel.
    pub too_long: Pace,
}

impl Pace {
    /// Whether the rate is used up for now.
    #[inline]
    pub fn is_used_up(&self, now: Tick) -> bool {
        Tick(self.used_until.load(Ordering::Relaxed)).since(now) > TOLERANCE_NS
    }

    /// Whether one more passes at `rate` a second; 0 is no limit.
    #[inline]
    pub fn admit(&self, rate: u32, now: Tick) -> bool {
        let Some(interval) = 1_000_000_000_u64.checked_div(u64::from(rate)) else {
            return true;
        };
        let one_more = |until| {
            let until = Tick(until);
            (until.since(now) <= TOLERANCE_NS).then(|| until.max(now).plus(interval).0)
        };
        self.used_until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 50 ms' worth pass at once, then the rate; without a limit everything passes.
    #[test]
    fn rate_and_burst() {
        let s = Pace::default();
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

    /// Workers that share a limit get no more together.
    #[test]
    fn workers_share_a_rate() {
        let (pace, start) = (Pace::default(), Tick(1_000_000_000));
        let admitted = || (0..100_000).filter(|_| pace.admit(10_000, start)).count();
        let together: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2).map(|_| scope.spawn(admitted)).collect();
            let admitted = workers.into_iter().map(|worker| worker.join());
            admitted.map(|n| n.expect("a worker")).sum()
        });
        assert_eq!(together, 501);
    }
}
