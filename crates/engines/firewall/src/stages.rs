//! The firewall of a member, and its places among the member's stages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_frame::{Tick, Verdict};
use windlass_nic::{EgressStage, Entering, IngressStage, Leaving};
use windlass_rules::{Direction, State};
use windlass_stats::Drop;

use crate::count::Marks;
use crate::packet::{self, Packet, Seen};
use crate::policy::{Answer, Policy};
use crate::track::{Found, Moment, Tracker, is_error, moment};

/// Bytes of a frame that can be made private at most.
const DEEP: usize = windlass_wire::parse::HEADERS_MAX;

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It goes on.
    Accept,
    /// Rules refuse it, or it cannot be told what it is.
    Drop,
    /// It begins a connection for which there is no room.
    Full,
    /// So many bytes have to be private first.
    Need(usize),
}

/// One direction of a member's firewall.
#[derive(Debug, Clone)]
pub struct Firewall {
    policy: Arc<Policy>,
    tracker: Arc<Mutex<Tracker>>,
    direction: Direction,
}

impl Firewall {
    /// Both directions, out and in. The tracker is the member's, and outlives its rules.
    pub fn both(policy: &Arc<Policy>, tracker: &Arc<Mutex<Tracker>>) -> [Firewall; 2] {
        [Direction::Out, Direction::In].map(|direction| Firewall {
            policy: policy.clone(),
            tracker: tracker.clone(),
            direction,
        })
    }

    /// The member's connections, for a burst.
    pub fn lock(&self) -> MutexGuard<'_, Tracker> {
        // What a panic might have left is a table of entries, each whole.
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a frame of `len` bytes, of which these are private.
    #[inline]
    pub fn judge(&self, tracker: &mut Tracker, now: Tick, bytes: &[u8], len: u32) -> Decision {
        let now = moment(now.0);
        match packet::plain(bytes, len) {
            Some(packet) => self.decide(tracker, now, packet, len),
            None => self.any(tracker, now, bytes, len),
        }
    }

    /// Decides about a frame whatever it is.
    #[inline(never)]
    fn any(&self, tracker: &mut Tracker, now: Moment, bytes: &[u8], len: u32) -> Decision {
        match packet::read(bytes, len) {
            Seen::Free => Decision::Accept,
            Seen::Unreadable => Decision::Drop,
            Seen::Need(upto) => Decision::Need(upto),
            Seen::Packet(packet) if packet.part.is_some() || packet.icmp.is_some() => {
                self.rare(tracker, now, &packet, bytes, len)
            }
            Seen::Packet(packet) => self.decide(tracker, now, packet, len),
        }
    }

    /// The packet is given by value: most times its fields never leave the registers.
    #[inline(always)]
    fn decide(&self, tracker: &mut Tracker, now: Moment, packet: Packet, len: u32) -> Decision {
        let (policy, direction) = (&*self.policy, self.direction);
        let found = tracker.look(direction, &packet, now, policy.generation);
        if let (Some(slot), Some(decided)) = (found.slot, found.decided) {
            if decided.number() != 0 {
                policy.counts.add_by_number(decided.number(), len);
            }
            if decided.accepts() {
                tracker.go_on(slot, direction, &packet, now);
                return Decision::Accept;
            }
            return Decision::Drop;
        }
        self.ask(tracker, now, packet, len, found).0
    }

    /// Asks the rules; also which of them count the packet.
    #[inline(never)]
    fn ask(
        &self,
        tracker: &mut Tracker,
        now: Moment,
        packet: Packet,
        len: u32,
        found: Found,
    ) -> (Decision, Marks) {
        let (policy, direction, packet) = (&*self.policy, self.direction, &packet);
        let Found { slot, state, .. } = found;
        let Answer { accepts, marks } = policy.ask(direction, packet, state);
        policy.counts.add(marks, len);
        let decided = policy.decided(state, accepts, marks);
        if let Some(slot) = slot {
            tracker.decide(slot, direction, decided);
            if accepts {
                tracker.go_on(slot, direction, packet, now);
            }
        } else if accepts && state == State::New {
            match tracker.begin(direction, packet, now) {
                Ok(Some(slot)) => tracker.decide(slot, direction, decided),
                Ok(None) => {}
                Err(_) if policy.has_states() => return (Decision::Full, marks),
                Err(_) => {}
            }
        }
        if accepts {
            (Decision::Accept, marks)
        } else {
            (Decision::Drop, marks)
        }
    }

    /// Messages of ICMP, and parts of packets.
    #[inline(never)]
    fn rare(
        &self,
        tracker: &mut Tracker,
        now: Moment,
        packet: &Packet,
        bytes: &[u8],
        len: u32,
    ) -> Decision {
        let (policy, direction) = (&*self.policy, self.direction);
        let generation = policy.generation;
        if packet.part.is_some_and(|part| part.offset != 0) {
            let number = tracker.number_of_part(direction, packet, now, generation);
            policy.counts.add_by_number(number.unwrap_or(0), len);
            return match number {
                Some(_) => Decision::Accept,
                None => Decision::Drop,
            };
        }
        let error = packet
            .icmp
            .filter(|(kind, ..)| is_error(packet.family, *kind));
        let found = if error.is_some() {
            let need = packet::quoted_need(packet, len);
            if bytes.len() < need && need <= DEEP {
                return Decision::Need(need);
            }
            let quoted = packet::quoted(bytes, packet);
            let is_related = quoted
                .is_some_and(|q| q.from == packet.to && tracker.is_related(direction, &q, now));
            Found::unknown(match is_related {
                true => State::Related,
                false => State::Invalid,
            })
        } else {
            tracker.look(direction, packet, now, generation)
        };
        let (decision, marks) = self.ask(tracker, now, *packet, len, found);
        if packet.part.is_some() {
            let is_accepted = decision == Decision::Accept;
            let number = policy.counts.number(marks).unwrap_or(0);
            tracker.begin_parts(direction, packet, now, (generation, is_accepted, number));
        }
        decision
    }
}

impl IngressStage for Firewall {
    fn leave(&self, frames: &mut Leaving<'_>) {
        let (mut tracker, now) = (self.lock(), frames.heads().now);
        for i in 0..frames.len() {
            while let Some(meta) = frames.passing(i) {
                let len = meta.len;
                let reason = match self.judge(&mut tracker, now, frames.heads().private(i), len) {
                    Decision::Accept => break,
                    Decision::Need(upto) if frames.deepen(i, upto) => continue,
                    // The bridge counts it.
                    Decision::Drop if len < 14 => break,
                    Decision::Full => Drop::FlowLimit,
                    Decision::Drop | Decision::Need(_) => Drop::Firewall,
                };
                frames.decide(i, Verdict::drop(reason));
            }
        }
    }
}

impl EgressStage for Firewall {
    fn enter(&self, now: Tick, frames: &mut Entering<'_>) {
        let mut tracker = self.lock();
        for k in 0..frames.len() {
            let Some((bytes, len)) = frames.private(k) else {
                continue;
            };
            match self.judge(&mut tracker, now, bytes, len) {
                Decision::Accept => {}
                Decision::Full => frames.drop_frame(k, Drop::FlowLimitIn),
                // Nobody could deepen it here.
                Decision::Drop | Decision::Need(_) => frames.drop_frame(k, Drop::FirewallIn),
            }
        }
    }
}
