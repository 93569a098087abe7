//! The counters of one bridge member, written by one worker.

use crate::{Counter, Drop, Stage};

/// Counters of one member as one worker sees it: written by that worker only.
#[derive(Debug)]
pub struct MemberCounters {
    /// Frames taken from the member.
    pub rx_frames: Counter,
    /// Bytes of those frames, without any virtio header.
    pub rx_bytes: Counter,
    /// Frames from it that went to exactly one known destination.
    pub rx_unicast: Counter,
    /// Frames from it that were flooded.
    pub rx_flooded: Counter,
    /// Copies that flooding made of those, over all destinations.
    pub rx_copies: Counter,
    /// Frames from it that ended at the bridge: for the daemon.
    pub rx_local: Counter,
    /// Frames from it that now wait for their bridge's decision (a level, not a total).
    pub rx_held: Counter,
    /// Frames from it more than came: large segments were cut for a rate.
    pub rx_cut: Counter,
    /// Frames that the bridge decided to send to the member.
    pub offered: Counter,
    /// Frames to it more than were offered: large segments were cut for a rate.
    pub tx_cut: Counter,
    /// Frames that the member took.
    pub tx_frames: Counter,
    /// Bytes of those frames.
    pub tx_bytes: Counter,
    /// Frames that software segmentation wrote in the place of GSO frames.
    pub tx_segments: Counter,
    /// Frames copied to private memory because another worker held the ring.
    pub spilled: Counter,
    /// Copies for the member that now wait in private memory (a level, not a total).
    pub held: Counter,
    /// Copies of others' frames offered to this member because it is a span member; part of `offered`.
    pub span_copies: Counter,
    /// Frames that the daemon itself sent out of this member; part of `offered`.
    pub own_frames: Counter,
    /// Frames from it whose flood ended before every receiver had its copy.
    pub floods_cut: Counter,
    /// Notifications sent to the peer.
    pub kicks: Counter,
    /// Nanoseconds that access to its memory took beyond what it may.
    pub stalled_ns: Counter,
    /// Frames from it that left its queues with an ECN mark.
    pub rx_marked: Counter,
    /// Frames to it that left its queues with an ECN mark.
    pub tx_marked: Counter,
    /// Frames dropped, by reason.
    pub drops: [Counter; Drop::COUNT],
}

impl Default for MemberCounters {
    fn default() -> Self {
        Self::zero()
    }
}

impl MemberCounters {
    /// All counters at zero.
    pub const fn zero() -> Self {
        MemberCounters {
            rx_frames: Counter::new(),
            rx_bytes: Counter::new(),
            rx_unicast: Counter::new(),
            rx_flooded: Counter::new(),
            rx_copies: Counter::new(),
            rx_local: Counter::new(),
            rx_held: Counter::new(),
            rx_cut: Counter::new(),
            offered: Counter::new(),
            tx_cut: Counter::new(),
            tx_frames: Counter::new(),
            tx_bytes: Counter::new(),
            tx_segments: Counter::new(),
            spilled: Counter::new(),
            held: Counter::new(),
            span_copies: Counter::new(),
            own_frames: Counter::new(),
            floods_cut: Counter::new(),
            kicks: Counter::new(),
            stalled_ns: Counter::new(),
            rx_marked: Counter::new(),
            tx_marked: Counter::new(),
            drops: [const { Counter::new() }; Drop::COUNT],
        }
    }

    /// Counts `n` frames dropped for `reason`. Called by the owning worker.
    #[inline]
    pub fn drop_frames(&self, reason: Drop, n: u64) {
        if let Some(c) = self.drops.get(reason as usize) {
            c.add(n);
        }
    }
}

/// What a member sent, added up over workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressTotals {
    /// Frames taken from the member.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames to one destination.
    pub unicast: u64,
    /// Frames flooded.
    pub flooded: u64,
    /// Copies made by flooding.
    pub copies: u64,
    /// Frames that ended at the bridge: for the daemon.
    pub local: u64,
    /// Frames that now wait for their bridge's decision.
    pub held: u64,
    /// Frames more than came, since large segments were cut.
    pub cut: u64,
    /// Frames that left its queues with an ECN mark.
    pub marked: u64,
    /// Floods that ended before every receiver had its copy.
    pub floods_cut: u64,
    /// Frames dropped before a destination was decided.
    pub dropped: u64,
}

/// What was sent to a member, added up over workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressTotals {
    /// Frames that the bridge decided to send to the member.
    pub offered: u64,
    /// Frames more than those, since large segments were cut.
    pub cut: u64,
    /// Frames that left its queues with an ECN mark.
    pub marked: u64,
    /// Frames delivered.
    pub frames: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Frames written by software segmentation.
    pub segments: u64,
    /// Frames dropped on the way.
    pub dropped: u64,
    /// Frames now waiting in private memory.
    pub held: u64,
    /// Frames that waited in private memory at some time.
    pub spilled: u64,
    /// Copies offered to it as a span member.
    pub span_copies: u64,
    /// Frames of the daemon itself.
    pub own_frames: u64,
    /// Notifications sent.
    pub kicks: u64,
}

/// A member's counters, added up over workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberTotals {
    /// What the member sent.
    pub ingress: IngressTotals,
    /// What was sent to it.
    pub egress: EgressTotals,
    /// Nanoseconds that access to its memory took beyond what it may.
    pub stalled_ns: u64,
    /// Frames dropped, by reason.
    pub drops: [u64; Drop::COUNT],
}

impl Default for MemberTotals {
    fn default() -> Self {
        MemberTotals {
            ingress: IngressTotals::default(),
            egress: EgressTotals::default(),
            stalled_ns: 0,
            drops: [0; Drop::COUNT],
        }
    }
}

impl MemberTotals {
    /// Adds one worker's block. What is held is a level that may be raised by one worker and lowered by
    /// another, so it is added modulo 2^64.
    pub fn add(&mut self, c: &MemberCounters) {
        let (i, e) = (&mut self.ingress, &mut self.egress);
        i.frames += c.rx_frames.get();
        i.bytes += c.rx_bytes.get();
        i.unicast += c.rx_unicast.get();
        i.flooded += c.rx_flooded.get();
        i.copies += c.rx_copies.get();
        i.local += c.rx_local.get();
        i.held = i.held.wrapping_add(c.rx_held.get());
        i.floods_cut += c.floods_cut.get();
        i.cut += c.rx_cut.get();
        e.cut += c.tx_cut.get();
        i.marked += c.rx_marked.get();
        e.marked += c.tx_marked.get();
        e.offered += c.offered.get();
        e.frames += c.tx_frames.get();
        e.bytes += c.tx_bytes.get();
        e.segments += c.tx_segments.get();
        e.spilled += c.spilled.get();
        e.held = e.held.wrapping_add(c.held.get());
        e.span_copies += c.span_copies.get();
        e.own_frames += c.own_frames.get();
        e.kicks += c.kicks.get();
        self.stalled_ns += c.stalled_ns.get();
        for (reason, (sum, n)) in Drop::ALL.iter().zip(self.drops.iter_mut().zip(&c.drops)) {
            let n = n.get();
            *sum += n;
            match reason.stage() {
                Stage::Ingress => i.dropped += n,
                Stage::Egress => e.dropped += n,
            }
        }
    }

    /// Whether the member's own two conservation equations hold. True whenever no worker is in
    /// the middle of a burst.
    pub fn conserved(&self) -> bool {
        let (i, e) = (&self.ingress, &self.egress);
        i.frames + i.cut == i.unicast + i.flooded + i.local + i.dropped + i.held
            && e.offered + e.cut == e.frames + e.dropped + e.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block adds up to totals that conserve frames, and stops doing so when one is lost.
    #[test]
    fn totals_conserve() {
        let c = MemberCounters::zero();
        c.rx_frames.add(12);
        c.rx_held.add(2);
        c.rx_unicast.add(6);
        c.rx_flooded.add(3);
        c.drop_frames(Drop::MacSpoof, 1);
        c.offered.add(5);
        c.tx_frames.add(4);
        c.drop_frames(Drop::RingFull, 1);
        let mut t = MemberTotals::default();
        t.add(&c);
        assert!(t.conserved());
        assert_eq!((t.ingress.dropped, t.egress.dropped), (1, 1));
        c.rx_frames.add(1);
        let mut t = MemberTotals::default();
        t.add(&c);
        assert!(!t.conserved());
    }
}
