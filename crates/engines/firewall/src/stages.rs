//! The firewall of a member, and its places among the member's stages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_frame::{Tick, Verdict};
use windlass_nic::{EgressStage, Entering, IngressStage, Leaving};
use windlass_rules::{Action, Direction, Rules, State};
use windlass_stats::Drop;

use crate::classify::{Classifier, CompileError};
use crate::packet::{self, Packet, Seen};
use crate::track::{Moment, Tracker, is_error, moment};

/// Bytes of a frame that can be made private at most.
const DEEP: usize = windlass_wire::parse::HEADERS_MAX;

/// Numbers of what was compiled.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// A list that decides: the first rule that matches, and what none matches passes.
#[derive(Debug)]
struct Decider {
    classifier: Classifier,
    /// By rule: whether it accepts.
    accepts: Vec<bool>,
}

/// The lists of rules that a member's packets have to pass, all of them.
#[derive(Debug)]
pub struct Compiled {
    deciders: Vec<Decider>,
    generation: u64,
    /// Some rule asks about connections.
    has_states: bool,
}

impl Compiled {
    /// Prepares lists: a packet passes if each of them lets it.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn new<'a>(lists: impl IntoIterator<Item = &'a Rules>) -> Result<Compiled, CompileError> {
        let mut deciders = Vec::new();
        let mut has_states = false;
        for list in lists {
            deciders.push(Decider {
                classifier: Classifier::new(list)?,
                accepts: list
                    .rules
                    .iter()
                    .map(|rule| rule.action == Action::Accept)
                    .collect(),
            });
            has_states |= list.rules.iter().any(|rule| !rule.states.is_any());
        }
        Ok(Compiled {
            deciders,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            has_states,
        })
    }

    /// Whether all lists let a packet pass.
    fn accepts(&self, direction: Direction, packet: &Packet, state: State) -> bool {
        self.deciders.iter().all(|decider| {
            let rule = decider.classifier.first(direction, packet, state);
            rule.is_none_or(|rule| decider.accepts.get(usize::from(rule)) == Some(&true))
        })
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.deciders
            .iter()
            .map(|decider| decider.classifier.bytes())
            .sum()
    }
}

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
    rules: Arc<Compiled>,
    tracker: Arc<Mutex<Tracker>>,
    direction: Direction,
}

impl Firewall {
    /// Both directions, out and in. The tracker is the member's, and outlives its rules.
    pub fn both(rules: &Arc<Compiled>, tracker: &Arc<Mutex<Tracker>>) -> [Firewall; 2] {
        [Direction::Out, Direction::In].map(|direction| Firewall {
            rules: rules.clone(),
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
            Some(packet) => self.decide(tracker, now, packet),
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
            Seen::Packet(packet) => self.decide(tracker, now, packet),
        }
    }

    /// The packet is given by value: most times its fields never leave the registers.
    #[inline(always)]
    fn decide(&self, tracker: &mut Tracker, now: Moment, packet: Packet) -> Decision {
        let (rules, direction) = (&*self.rules, self.direction);
        let found = tracker.look(direction, &packet, now, rules.generation);
        if let (Some(slot), Some(accepts)) = (found.slot, found.decided) {
            if accepts {
                tracker.go_on(slot, direction, &packet, now);
                return Decision::Accept;
            }
            return Decision::Drop;
        }
        self.ask(tracker, now, packet, found.slot, found.state)
    }

    /// Asks the rules.
    #[inline(never)]
    fn ask(
        &self,
        tracker: &mut Tracker,
        now: Moment,
        packet: Packet,
        slot: Option<u32>,
        state: State,
    ) -> Decision {
        let (rules, direction, packet) = (&*self.rules, self.direction, &packet);
        let accepts = rules.accepts(direction, packet, state);
        if let Some(slot) = slot {
            tracker.decide(slot, direction, state, rules.generation, accepts);
            if accepts {
                tracker.go_on(slot, direction, packet, now);
            }
        } else if accepts && state == State::New {
            match tracker.begin(direction, packet, now) {
                Ok(Some(slot)) => {
                    tracker.decide(slot, direction, state, rules.generation, true);
                }
                Ok(None) => {}
                Err(_) if rules.has_states => return Decision::Full,
                Err(_) => {}
            }
        }
        if accepts {
            Decision::Accept
        } else {
            Decision::Drop
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
        let direction = self.direction;
        if packet.part.is_some_and(|part| part.offset != 0) {
            return match tracker.has_part(direction, packet, now, self.rules.generation) {
                true => Decision::Accept,
                false => Decision::Drop,
            };
        }
        let error = packet
            .icmp
            .filter(|(kind, ..)| is_error(packet.family, *kind));
        let decision = if error.is_some() {
            let need = packet::quoted_need(packet, len);
            if bytes.len() < need && need <= DEEP {
                return Decision::Need(need);
            }
            let quoted = packet::quoted(bytes, packet);
            let is_related = quoted
                .is_some_and(|q| q.from == packet.to && tracker.is_related(direction, &q, now));
            let state = if is_related {
                State::Related
            } else {
                State::Invalid
            };
            match self.rules.accepts(direction, packet, state) {
                true => Decision::Accept,
                false => Decision::Drop,
            }
        } else {
            self.decide(tracker, now, *packet)
        };
        let is_accepted = decision == Decision::Accept;
        tracker.begin_parts(direction, packet, now, (self.rules.generation, is_accepted));
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
