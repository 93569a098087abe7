//! Which source port a frame leaves from.
//!
//! # Model
//! The underlay spreads what it carries by addresses and ports: one source port is one path. Datagrams leave in [runs](crate::runs) by
//! port, and a send costs by its runs. So a target gets as few ports as its [`Load`] allows: one, then 2, 4, 8 .. as its bit rate
//! passes 1, 2, 4 .. Gbit/s.
//!
//! [`Flowlets`] give a flow one of those ports. A flow keeps its port until it has been silent for [`SILENCE_NS`]: what it has sent
//! before has arrived by then, whatever path it took. Flows are told apart in [`BUCKETS`] buckets; those of one bucket share a port.
//!
//! While no target of a worker has more than one port, flows are not told apart.
//!
//! # Synchronization
//! A [`Load`] and the [`Flowlets`] have one writer, their worker.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Source ports that can be told apart.
pub const PORTS_MAX: u8 = 16;
/// How long a flow is silent before it may change its port, in nanoseconds.
pub const SILENCE_NS: u64 = 1_000_000;
/// Buckets that flows are told apart by.
pub const BUCKETS: usize = 256;
/// How long flows are told apart after the last frame that needed it, in nanoseconds. Not less than [`SILENCE_NS`]: a flow may be on
/// another port than the first for so long.
const SPREAD_NS: u64 = 100_000_000;
/// Time over which a bit rate is measured, in nanoseconds.
const WINDOW_NS: u64 = 10_000_000;
/// Bits of a port in a bucket.
const PORT_BITS: u32 = PORTS_MAX.trailing_zeros();
const PORT_MASK: u64 = (1 << PORT_BITS) - 1;

/// What one worker sends to a target.
#[derive(Debug, Default)]
pub struct Load {
    /// When the measurement began, in nanoseconds.
    since: AtomicU64,
    /// Bytes that had been sent then.
    bytes: AtomicU64,
    /// Ports that the last measurement is worth.
    ports: AtomicU64,
}

impl Load {
    /// How many ports the target gets, 1 to `most`: `bytes` have been sent to it so far.
    #[inline]
    pub fn ports(&self, bytes: u64, now: u64, most: u8) -> u8 {
        let elapsed = now.saturating_sub(self.since.load(Relaxed));
        if elapsed >= WINDOW_NS {
            self.measure(bytes, now, elapsed);
        }
        self.ports.load(Relaxed).min(most.into()).max(1) as u8
    }

    #[cold]
    fn measure(&self, bytes: u64, now: u64, elapsed: u64) {
        let bits = bytes
            .saturating_sub(self.bytes.load(Relaxed))
            .saturating_mul(8);
        // A bit in a nanosecond is 1 Gbit/s.
        let gigabits = bits.checked_div(elapsed).unwrap_or(0);
        let doublings = u64::BITS.saturating_sub(gigabits.leading_zeros());
        self.ports.store(1 << doublings.min(PORT_BITS), Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.since.store(now, Relaxed);
    }
}

/// The ports of one worker's flows.
#[derive(Debug)]
pub struct Flowlets {
    /// When a flow of each was last sent, in nanoseconds, above its port.
    buckets: [AtomicU64; BUCKETS],
    /// When flows had to be told apart the last time.
    spread_at: AtomicU64,
    /// When frames left from the first port without that the last time.
    plain_at: AtomicU64,
}

impl Default for Flowlets {
    fn default() -> Flowlets {
        Flowlets {
            buckets: array::from_fn(|_| AtomicU64::new(0)),
            spread_at: AtomicU64::new(0),
            plain_at: AtomicU64::new(0),
        }
    }
}

impl Flowlets {
    /// Whether the flows of a burst to a target with so many ports are to be told apart. If not, all of it leaves from port 0.
    #[inline]
    pub fn are_told_apart(&self, ports: u8, now: u64) -> bool {
        if ports > 1 {
            self.spread_at.store(now, Relaxed);
            return true;
        }
        if now.saturating_sub(self.spread_at.load(Relaxed)) < SPREAD_NS {
            return true;
        }
        self.plain_at.store(now, Relaxed);
        false
    }

    /// The port, below `ports` or the one that it had, of the flow with this hash, which sends now.
    #[inline]
    pub fn port(&self, hash: u32, ports: u8, now: u64) -> u8 {
        let Some(bucket) = self.buckets.get(hash as usize % BUCKETS) else {
            return 0;
        };
        let known = bucket.load(Relaxed);
        let (mut port, mut last) = (known & PORT_MASK, known >> PORT_BITS);
        let plain = self.plain_at.load(Relaxed);
        if plain >= last {
            (port, last) = (0, plain);
        }
        if now.saturating_sub(last) >= SILENCE_NS {
            let other = u64::from(hash >> BUCKETS.trailing_zeros()).checked_rem(ports.into());
            port = other.unwrap_or(0) & PORT_MASK;
        }
        bucket.store(now << PORT_BITS | port, Relaxed);
        if port != 0 {
            self.spread_at.store(now, Relaxed);
        }
        port as u8
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Ports double with the bit rate, each time that it has been measured, up to those that there are.
    #[test]
    fn ports_follow_load() {
        let load = Load::default();
        let (mut bytes, mut now) = (0, 0);
        assert_eq!(load.ports(0, 0, 16), 1);
        for (gigabits, most, ports) in [
            (0.9, 16, 1),
            (1.1, 16, 2),
            (1.9, 16, 2),
            (2.1, 16, 4),
            (4.1, 16, 8),
            (8.1, 16, 16),
            (400.0, 16, 16),
            (400.0, 3, 3),
            (400.0, 1, 1),
            (0.0, 16, 1),
        ] {
            bytes += (gigabits * WINDOW_NS as f64 / 8.0) as u64;
            now += WINDOW_NS;
            let got = load.ports(bytes, now, most);
            assert_eq!(got, ports, "{gigabits} Gbit/s of {most}");
            // In between nothing changes.
            assert_eq!(load.ports(bytes * 2, now + WINDOW_NS - 1, most), ports);
        }
    }

    /// Flows that begin while a target has 16 ports use them all.
    #[test]
    fn flows_are_spread() {
        let flowlets = Flowlets::default();
        let used = (0..1000_u32).fold(0_u16, |used, flow| {
            let hash = flow.wrapping_mul(0x9e37_79b9);
            assert!(flowlets.are_told_apart(16, SILENCE_NS));
            used | 1 << flowlets.port(hash, 16, SILENCE_NS)
        });
        assert_eq!(used, 0xffff);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Whatever targets send, with whatever ports: no flow has another port than the last time unless it was silent; and while no
        /// target has more than one, all flows end up on the first port.
        #[test]
        fn no_flow_changes_while_it_sends(
            bursts in vec((0..200_000_u64, 0..4_u32, any::<u16>(), 0..5_u32), 1..1000),
        ) {
            let flowlets = Flowlets::default();
            let hash = |flow: u32| flow.wrapping_mul(0x9e37_79b9) >> 7;
            let mut last = std::collections::HashMap::new();
            let mut now = 1_u64;
            for (step, (gap, kind, flows, ports)) in bursts.into_iter().enumerate() {
                now += gap * if kind == 0 { 10 } else { 1 };
                // Long times with one port, between those with several.
                let ports = if step / 200 % 2 == 0 { 1 } else { 1_u8 << ports };
                let apart = flowlets.are_told_apart(ports, now);
                for flow in (0..16).filter(|flow| flows >> flow & 1 != 0) {
                    let port = match apart {
                        true => flowlets.port(hash(flow), ports, now),
                        false => 0,
                    };
                    if let Some((before, at)) = last.insert(flow, (port, now)) {
                        prop_assert!(port == before || now - at >= SILENCE_NS);
                    }
                }
            }
            let quiet = now + 2 * SPREAD_NS;
            prop_assert!(!flowlets.are_told_apart(1, quiet));
            prop_assert_eq!(flowlets.port(hash(1), 16, quiet), 0);
        }
    }
}
