//! The firewall of a member, and its places among the member's stages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_frame::{RxId, Tick, Verdict};
use windlass_nic::{EgressStage, Entering, IngressStage, Leaving};
use windlass_rules::{Action, Direction, State};
use windlass_stats::Drop;

use crate::burst::Burst;
use crate::count::Marks;
use crate::packet::{self, Packet, Seen};
use crate::policy::{Policy, Said};
use crate::reject::Answer;
use crate::tell::{ANSWERS_PER_S, EVENTS_PER_S, Event, Tell, Told, What};
use crate::track::{Found, Tracker, is_error, moment};

/// Bytes of a frame that can be made private at most.
const DEEP: usize = windlass_wire::parse::HEADERS_MAX;

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It goes on.
    Accept,
    /// Rules refuse it, or it cannot be told what it is.
    Drop,
    /// Rules refuse it, and its sender is to be told.
    Reject,
    /// It begins a connection for which there is no room.
    Full,
    /// Its sequence numbers are not of the connection whose ports it has, and some rule asks about connections.
    Outside,
    /// So many bytes have to be private first.
    Need(usize),
}

impl From<Action> for Decision {
    #[inline(always)]
    fn from(action: Action) -> Decision {
        match action {
            Action::Accept => Decision::Accept,
            Action::Drop => Decision::Drop,
            Action::Reject => Decision::Reject,
        }
    }
}

/// Frames that come from here answer what was rejected: no firewall of their receiver is asked.
pub const ANSWERS: RxId = RxId(u16::MAX - 1);

/// The member whose firewall it is, and where that tells what it has to tell.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Its number.
    pub member: RxId,
    /// Its own address as [`Heads::dst`](windlass_frame::Heads::dst) has it: what goes to others it does not answer for.
    pub mac: u64,
    /// Who is told.
    pub tell: Arc<dyn Tell>,
}

/// One direction of a member's firewall.
#[derive(Debug, Clone)]
pub struct Firewall {
    policy: Arc<Policy>,
    tracker: Arc<Mutex<Tracker>>,
    owner: Owner,
    direction: Direction,
}

impl Firewall {
    /// Both directions, out and in. The tracker is the member's, and outlives its rules.
    pub fn both(
        policy: &Arc<Policy>,
        tracker: &Arc<Mutex<Tracker>>,
        owner: &Owner,
    ) -> [Firewall; 2] {
        [Direction::Out, Direction::In].map(|direction| Firewall {
            policy: policy.clone(),
            tracker: tracker.clone(),
            owner: owner.clone(),
            direction,
        })
    }

    /// The member's connections, for a burst.
    pub fn lock(&self) -> MutexGuard<'_, Tracker> {
        // What a panic might have left is a table of entries, each whole.
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a frame of `len` bytes, of which these are private.
    pub fn judge(&self, tracker: &mut Tracker, now: Tick, bytes: &[u8], len: u32) -> Decision {
        // Where it was put together: a copy would wait for its parts to be stored.
        if let Some(packet) = packet::plain(bytes, len) {
            return self.decide(tracker, now, &packet, len);
        }
        match packet::read(bytes, len) {
            Seen::Free => Decision::Accept,
            Seen::Unreadable => Decision::Drop,
            Seen::Need(upto) => Decision::Need(upto),
            Seen::Packet(packet) if packet.part.is_some() || packet.icmp.is_some() => {
                self.rare(tracker, now, &packet, bytes, len)
            }
            Seen::Packet(packet) => self.decide(tracker, now, &packet, len),
        }
    }

    fn decide(&self, tracker: &mut Tracker, now: Tick, packet: &Packet, len: u32) -> Decision {
        let (policy, direction) = (&*self.policy, self.direction);
        let moment = moment(now.0);
        let found = tracker.look(direction, packet, moment, policy.generation);
        if let (Some(slot), Some(decided)) = (found.slot, found.decided) {
            if decided.accepts()
                && !tracker.go_on(slot, direction, packet, moment)
                && policy.has_states()
            {
                return Decision::Outside;
            }
            if decided.number() != 0 {
                policy.counts.add_by_number(decided.number(), len);
            }
            return match decided.accepts() {
                true => Decision::Accept,
                false => Decision::Drop,
            };
        }
        self.ask(tracker, now, packet, len, found).0
    }

    /// Decides about a plain frame that was of no connection, and still is if that `is_certain` or can be seen. None says nothing.
    #[inline(never)]
    fn begin(
        &self,
        tracker: &mut Tracker,
        now: Tick,
        (bytes, len): (&[u8], u32),
        is_certain: bool,
    ) -> Option<Decision> {
        let packet = packet::of_plain(bytes.first_chunk()?, bytes);
        let place = tracker.place_of(self.direction, &packet)?;
        if !is_certain && tracker.may_know(place) {
            return None;
        }
        let found = Found {
            place: Some(place),
            ..Found::unknown(Tracker::state_of_unknown(&packet))
        };
        Some(self.ask_new(tracker, now, &packet, len, found).0)
    }

    /// Asks the rules; also which of them count the packet.
    #[inline(never)]
    fn ask(
        &self,
        tracker: &mut Tracker,
        tick: Tick,
        packet: &Packet,
        len: u32,
        found: Found,
    ) -> (Decision, Marks) {
        let Some(slot) = found.slot else {
            return self.ask_new(tracker, tick, packet, len, found);
        };
        let (policy, direction) = (&*self.policy, self.direction);
        if policy.has_states() && tracker.is_outside(slot, direction, packet) {
            return (Decision::Outside, Marks::default());
        }
        let said = self.said(tracker, tick, packet, len, found.state);
        tracker.decide(slot, direction, policy.decided(found.state, &said));
        if said.action == Action::Accept {
            tracker.go_on(slot, direction, packet, moment(tick.0));
        }
        (said.action.into(), said.marks)
    }

    /// The same about a packet of no connection.
    #[inline(always)]
    fn ask_new(
        &self,
        tracker: &mut Tracker,
        tick: Tick,
        packet: &Packet,
        len: u32,
        found: Found,
    ) -> (Decision, Marks) {
        let (policy, direction) = (&*self.policy, self.direction);
        let said = self.said(tracker, tick, packet, len, found.state);
        if said.action == Action::Accept
            && found.state == State::New
            && let Some(place) = found.place
        {
            let decided = policy.decided(found.state, &said);
            let begun = tracker.begin(place, direction, packet, moment(tick.0), decided);
            if begun.is_err() && policy.has_states() {
                return (Decision::Full, said.marks);
            }
        }
        (said.action.into(), said.marks)
    }

    /// What the rules say, counted and logged.
    #[inline(always)]
    fn said(
        &self,
        tracker: &mut Tracker,
        tick: Tick,
        packet: &Packet,
        len: u32,
        state: State,
    ) -> Said<'_> {
        let said = self.policy.ask(self.direction, packet, state);
        self.policy.counts.add(said.marks, len);
        if said.log.is_some() {
            self.log(tracker, tick, &said, packet, state);
        }
        said
    }

    /// Tells what a rule with `log` has decided.
    #[cold]
    fn log(
        &self,
        tracker: &mut Tracker,
        now: Tick,
        said: &Said<'_>,
        packet: &Packet,
        state: State,
    ) {
        let (Some((list, rule, action)), bucket) = (said.log, &mut tracker.events) else {
            return;
        };
        if !bucket.take(now, EVENTS_PER_S) {
            return;
        }
        let event = Event {
            rule: rule.clone(),
            list,
            action,
            packet: *packet,
            state,
            left_out: bucket.left_out,
        };
        match self.tell(What::Event(event)) {
            true => bucket.left_out = 0,
            false => bucket.left_out = bucket.left_out.saturating_add(1),
        }
    }

    fn tell(&self, what: What) -> bool {
        self.owner.tell.tell(Told {
            member: self.owner.member,
            direction: self.direction,
            what,
        })
    }

    /// Tells the sender of a frame that it was rejected.
    #[cold]
    fn answer(
        &self,
        tracker: &mut Tracker,
        now: Tick,
        (bytes, len): (&[u8], u32),
        (to, vid): (RxId, u16),
    ) {
        if let Seen::Packet(packet) = packet::read(bytes, len)
            && let Some(answer) = Answer::to(bytes, len, &packet)
            && tracker.answers.take(now, ANSWERS_PER_S)
        {
            // Without room its sender is not told.
            self.tell(What::Answer { to, vid, answer });
        }
    }

    /// Messages of ICMP, and parts of packets.
    #[inline(never)]
    fn rare(
        &self,
        tracker: &mut Tracker,
        tick: Tick,
        packet: &Packet,
        bytes: &[u8],
        len: u32,
    ) -> Decision {
        let now = moment(tick.0);
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
        let (decision, marks) = self.ask(tracker, tick, packet, len, found);
        if packet.part.is_some() {
            let is_accepted = decision == Decision::Accept;
            let number = policy.counts.number(marks).unwrap_or(0);
            tracker.begin_parts(direction, packet, now, (generation, is_accepted, number));
        }
        decision
    }
}

impl Firewall {
    /// Who has sent a frame, and in which VLAN, if it was sent to this member and nobody else.
    #[cold]
    fn sender(&self, frames: &Entering<'_>, k: usize) -> Option<(RxId, u16)> {
        let (heads, pick) = (frames.heads(), frames.pick(k)?);
        let is_own = heads.dst.get(pick.index()) == Some(&self.owner.mac);
        let vid = heads.meta.get(pick.index())?.vid;
        is_own.then_some((heads.from, vid))
    }
}

impl IngressStage for Firewall {
    fn leave(&self, frames: &mut Leaving<'_>) {
        let (mut tracker, now) = (self.lock(), frames.heads().now);
        let mut burst = Burst::<true>::new(&self.policy, now);
        burst.seek(&tracker, frames.len(), |i| frames.private(i));
        while let Some((i, mut decided)) = burst.follow(
            &mut tracker,
            |i| frames.private(i),
            |tracker, frame, is_certain| self.begin(tracker, now, frame, is_certain),
        ) {
            while let Some((bytes, len)) = frames.private(i) {
                let decided = decided.take();
                let decided = decided.unwrap_or_else(|| self.judge(&mut tracker, now, bytes, len));
                let reason = match decided {
                    Decision::Accept => break,
                    Decision::Reject => {
                        let to = (self.owner.member, 0);
                        self.answer(&mut tracker, now, (bytes, len), to);
                        Drop::Firewall
                    }
                    Decision::Need(upto) if frames.deepen(i, upto) => continue,
                    // The bridge counts it.
                    Decision::Drop if len < 14 => break,
                    Decision::Full => Drop::FlowLimit,
                    Decision::Outside => Drop::TcpWindow,
                    Decision::Drop | Decision::Need(_) => Drop::Firewall,
                };
                frames.decide(i, Verdict::drop(reason));
            }
        }
    }
}

impl EgressStage for Firewall {
    fn enter(&self, now: Tick, frames: &mut Entering<'_>) {
        if frames.heads().from == ANSWERS {
            return;
        }
        let mut tracker = self.lock();
        let mut burst = Burst::<false>::new(&self.policy, now);
        burst.seek(&tracker, frames.len(), |k| frames.private(k));
        while let Some((k, decided)) = burst.follow(
            &mut tracker,
            |k| frames.private(k),
            |tracker, frame, is_certain| self.begin(tracker, now, frame, is_certain),
        ) {
            let Some((bytes, len)) = frames.private(k) else {
                continue;
            };
            match decided.unwrap_or_else(|| self.judge(&mut tracker, now, bytes, len)) {
                Decision::Accept => {}
                Decision::Reject => {
                    if let Some(sender) = self.sender(frames, k) {
                        self.answer(&mut tracker, now, (bytes, len), sender);
                    }
                    frames.drop_frame(k, Drop::FirewallIn);
                }
                Decision::Full => frames.drop_frame(k, Drop::FlowLimitIn),
                Decision::Outside => frames.drop_frame(k, Drop::TcpWindowIn),
                // Nobody could deepen it here.
                Decision::Drop | Decision::Need(_) => frames.drop_frame(k, Drop::FirewallIn),
            }
        }
    }
}
