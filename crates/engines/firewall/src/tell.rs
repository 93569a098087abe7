//! What a firewall tells beside its decisions: answers to what it rejects, and what rules with `log` have decided.
//!
//! # Model
//! Whoever runs the firewall gives it a [`Tell`]; what that has no room for is lost and counted. Each member has a token bucket for
//! answers and one for events, in its tracker, so that no guest and no peer of it makes more than its share.
//!
//! # Clocks that jump
//! After a jump forwards a bucket is full. After one backwards it is as it would be if no time had passed.

use std::fmt::Debug;
use std::sync::Arc;

use windlass_frame::{RxId, Tick};
use windlass_rules::{Action, Direction, State};

use crate::packet::Packet;
use crate::reject::Answer;

/// Answers of a member at once, and in a second.
pub const ANSWERS_PER_S: u64 = 100;
/// Events of a member at once, and in a second.
pub const EVENTS_PER_S: u64 = 20;
const SECOND: u64 = 1_000_000_000;

/// Where a firewall tells it. It is called by workers, and does not wait.
pub trait Tell: Send + Sync + Debug {
    /// Takes what is told; false if there is no room.
    fn tell(&self, told: Told) -> bool;
}

/// Something that is told.
#[derive(Debug, Clone)]
pub struct Told {
    /// The member whose firewall it is.
    pub member: RxId,
    /// Which way the packet went.
    pub direction: Direction,
    /// What.
    pub what: What,
}

/// What is told.
#[derive(Debug, Clone)]
pub enum What {
    /// A frame goes back to the sender of one that was rejected.
    Answer {
        /// The member that sent it.
        to: RxId,
        /// Its VLAN, if its bridge has taken its tag.
        vid: u16,
        /// The frame.
        answer: Answer,
    },
    /// A rule with `log` has decided.
    Event(Event),
}

/// What a rule with `log` has decided.
#[derive(Debug, Clone)]
pub struct Event {
    /// The rule.
    pub rule: Arc<str>,
    /// The place of its list.
    pub list: usize,
    /// What it does.
    pub action: Action,
    /// The packet.
    pub packet: Packet,
    /// What it is to the connections that are known.
    pub state: State,
    /// Events before it that were left out.
    pub left_out: u64,
}

/// So many at once, and as many a second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    /// When it will be full, in nanoseconds.
    full_at: u64,
    pub(crate) left_out: u64,
}

impl Bucket {
    /// Takes one, if there is one.
    pub(crate) fn take(&mut self, now: Tick, per_s: u64) -> bool {
        let gap = SECOND.checked_div(per_s).unwrap_or(SECOND);
        let ahead = self.full_at.saturating_sub(now.0);
        // More than it ever holds: the clock has jumped back.
        let ahead = if ahead > SECOND { SECOND } else { ahead };
        let next = ahead.saturating_add(gap);
        self.full_at = now.0.saturating_add(ahead);
        if next > SECOND {
            self.left_out = self.left_out.saturating_add(1);
            return false;
        }
        self.full_at = now.0.saturating_add(next);
        true
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    /// A full bucket gives a second's worth at once, then so many a second, whatever the clock does.
    #[test]
    fn a_bucket_is_bounded() {
        let mut bucket = Bucket::default();
        let mut taken = |now: u64, times: u64| {
            let taken = (0..times).filter(|_| bucket.take(Tick(now), 20)).count();
            (taken, bucket.left_out)
        };
        assert_eq!(taken(SECOND, 100), (20, 80));
        assert_eq!(taken(SECOND + SECOND / 10, 100).0, 2);
        assert_eq!(taken(100 * SECOND, 100).0, 20);
        // Backwards: empty still, and full a second later.
        assert_eq!(taken(5 * SECOND, 100).0, 0);
        assert_eq!(taken(6 * SECOND, 100).0, 20);
    }
}
