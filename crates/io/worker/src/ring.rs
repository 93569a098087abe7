//! A receive ring and the mode that it is in.
//!
//! # States
//! | state | notifications | in the run list | leaves when |
//! | --- | --- | --- | --- |
//! | `Idle` | on | no | its descriptor becomes readable |
//! | `Active` | off | yes | a visit finds it drained |
//! | `Warm(until)` | off | yes | frames arrive (to `Active`), or `until` passes (it is armed) |
//! | `Unsure(at)` | on | no | readable, or looked at once more at `at`, again and again if the peer cannot notify |
//! | `Resting` | off | no | another worker has it, the move was withdrawn, or its worker's rest ends (to `Active`) |
//! | `Suspended` | off | no | the time comes that its worker has noted ([`crate::meter`]) |
//! | `Dead` | off | no | never: the port is waiting to be detached |
//!
//! A visit that ended on its budget leaves the ring `Active`: it never goes to sleep with a
//! backlog, and no notification is asked for between two visits. `arm` looks once more after it
//! turned notifications on, so that no wake-up is lost.
//!
//! Unless somebody said how long ([`Spin::Always`]), only a ring that moved [`WARM_FRAMES`] frames within
//! [`WARM_WINDOW_NS`] may be `Warm`: spinning is paid for by traffic. An idle ring costs nothing in any case.

use std::sync::Arc;

use windlass_attach::port::RxPort;
use windlass_frame::Tick;
use windlass_stats::{MemberCounters, Padded};

/// Frames that earn a ring its spin before sleep.
pub const WARM_FRAMES: u32 = 8;
/// The time within which they must have arrived.
pub const WARM_WINDOW_NS: u64 = 1_000_000;

/// How long a ring is polled after it was found empty, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// While it is busy.
    Adaptive {
        /// A ring in memory.
        memory: u64,
        /// Any other.
        other: u64,
    },
    /// After every frame, whatever it costs.
    Always(u64),
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::Adaptive {
            memory: 0,
            other: 0,
        }
    }
}

/// The mode of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Armed; the worker may sleep.
    Idle,
    /// Being polled.
    Active,
    /// Polled although it was empty, until this moment.
    Warm(Tick),
    /// Armed, but the peer may have missed it, or cannot notify: looked at once more at this moment.
    Unsure(Tick),
    /// Not asked for anything until another worker has it, or its own goes on.
    Resting,
    /// Not visited, since access to its memory took too long.
    Suspended,
    /// Gives nothing more.
    Dead,
}

/// A receive ring of a member, with its worker's state about it.
pub struct RxRing {
    /// The port.
    pub port: Box<dyn RxPort>,
    /// The member that it belongs to.
    pub member: u16,
    /// Which of the member's rings it is.
    pub number: u16,
    /// The attachment of that member: a number never used again.
    pub attachment: u64,
    /// The member's, for each worker: it may have left the topology while its rings are still here.
    pub counters: Arc<[Padded<MemberCounters>]>,
    /// The mode.
    pub state: State,
    moved: u32,
    /// Frames of the window before, if that has just ended.
    before: u32,
    window: Tick,
}

impl RxRing {
    /// A new ring of a member, the `number`th: active, so that what already waits is fetched.
    pub fn new(
        port: Box<dyn RxPort>,
        (member, number): (u16, u16),
        attachment: u64,
        counters: Arc<[Padded<MemberCounters>]>,
    ) -> RxRing {
        RxRing {
            port,
            member,
            number,
            attachment,
            counters,
            state: State::Active,
            moved: 0,
            before: 0,
            window: Tick(0),
        }
    }

    /// Notes that `n` frames arrived.
    #[inline]
    pub fn note(&mut self, n: usize, now: Tick) {
        let age = now.since(self.window);
        if age > WARM_WINDOW_NS {
            let has_just_ended = age <= 2 * WARM_WINDOW_NS;
            self.before = if has_just_ended { self.moved } else { 0 };
            self.moved = 0;
            self.window = now;
        }
        self.moved = self.moved.saturating_add(n as u32);
    }

    /// Until when it is to be polled, frames having just come; none if not at all.
    #[inline]
    pub fn warm_until(&self, spin: Spin, now: Tick) -> Option<Tick> {
        let ns = match spin {
            Spin::Always(ns) => ns,
            Spin::Adaptive { .. } if !self.is_busy(now) => 0,
            Spin::Adaptive { memory, .. } if self.port.polls_memory() => memory,
            Spin::Adaptive { other, .. } => other,
        };
        (ns != 0).then(|| now.plus(ns))
    }

    /// Whether recent traffic pays for a spin.
    fn is_busy(&self, now: Tick) -> bool {
        self.moved.max(self.before) >= WARM_FRAMES && now.since(self.window) <= 2 * WARM_WINDOW_NS
    }
}

/// Receive rings of one worker by number. A number is used again; the generation in the token
/// tells an old event from a new one.
#[derive(Default)]
pub struct Rings {
    slots: Vec<(u32, Option<RxRing>)>,
    free: Vec<u32>,
}

impl Rings {
    /// Adds a ring; returns its token.
    pub fn insert(&mut self, ring: RxRing) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[at as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(ring);
        u64::from(slot.0) << 32 | u64::from(at)
    }

    /// The ring of a token, unless it was removed since.
    #[inline]
    pub fn get_mut(&mut self, token: u64) -> Option<&mut RxRing> {
        let slot = self.slots.get_mut(token as u32 as usize)?;
        if slot.0 == (token >> 32) as u32 {
            slot.1.as_mut()
        } else {
            None
        }
    }

    /// The token of a member's ring.
    pub fn find(&self, member: u16, number: u16) -> Option<u64> {
        let is_it = |ring: &RxRing| (ring.member, ring.number) == (member, number);
        let mut slots = self.slots.iter().enumerate();
        slots.find_map(|(at, (generation, ring))| {
            let is_it = ring.as_ref().is_some_and(is_it);
            is_it.then_some(u64::from(*generation) << 32 | at as u64)
        })
    }

    /// Takes the ring of a token out.
    pub fn remove(&mut self, token: u64) -> Option<RxRing> {
        self.get_mut(token)?;
        let at = token as u32;
        let ring = self.slots.get_mut(at as usize)?.1.take();
        self.free.push(at);
        ring
    }

    /// The token of the ring in a slot: the low half of every token that it has had.
    pub fn token(&self, slot: u32) -> Option<u64> {
        let (generation, ring) = self.slots.get(slot as usize)?;
        let token = u64::from(*generation) << 32 | u64::from(slot);
        ring.as_ref().map(|_| token)
    }

    /// Every ring, and its slot.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (u32, &mut RxRing)> {
        let slots = (0..).zip(&mut self.slots);
        slots.filter_map(|(at, slot)| Some((at, slot.1.as_mut()?)))
    }

    /// The tokens of rings of which something holds.
    pub fn tokens(&self, holds: impl Fn(&RxRing) -> bool) -> Vec<u64> {
        let slots = (0..).zip(&self.slots);
        let tokens = slots.filter_map(|(at, (generation, ring))| {
            let is_one = ring.as_ref().is_some_and(&holds);
            is_one.then_some(u64::from(*generation) << 32 | at)
        });
        tokens.collect()
    }

    /// Takes every ring of a member out, with the slots that they had.
    pub fn remove_member(&mut self, member: u16) -> Vec<(u32, RxRing)> {
        let mut out = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if slot.1.as_ref().is_some_and(|r| r.member == member) {
                out.extend(slot.1.take().map(|ring| (at as u32, ring)));
                self.free.push(at as u32);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;
    use windlass_attach::port::{Armed, Limit, Loan, More};
    use windlass_frame::Heads;
    use windlass_shm::{Section, Tails};

    struct Empty {
        in_memory: bool,
    }

    impl RxPort for Empty {
        fn rx_burst<'q>(
            &mut self,
            _: &'q Section<'q>,
            _: &mut Heads,
            _: &mut Tails<'q>,
            _: Limit,
        ) -> (Loan, More) {
            (Loan::default(), More::Drained)
        }

        fn release(&mut self, _: &Section<'_>, _: Loan) {}

        fn arm(&mut self, _: &Section<'_>) -> Armed {
            Armed::Yes
        }

        fn disarm(&mut self, _: &Section<'_>) {}

        fn wake(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn polls_memory(&self) -> bool {
            self.in_memory
        }
    }

    /// By itself a ring is polled behind frames that come close upon each other, for as long as its kind; by command behind
    /// every frame.
    #[test]
    fn spinning_is_paid_for_or_commanded() {
        let start = Tick(5_000_000);
        let adaptive = Spin::Adaptive {
            memory: 50_000,
            other: 20_000,
        };
        for (in_memory, ns) in [(true, 50_000), (false, 20_000)] {
            let mut ring = RxRing::new(Box::new(Empty { in_memory }), (1, 0), 1, Arc::default());
            ring.note(1, start);
            assert_eq!(ring.warm_until(adaptive, start), None);
            assert_eq!(ring.warm_until(Spin::Always(7), start), Some(start.plus(7)));
            assert_eq!(ring.warm_until(Spin::Always(0), start), None);
            ring.note(WARM_FRAMES as usize, start);
            assert_eq!(ring.warm_until(adaptive, start), Some(start.plus(ns)));
            // A ring that was busy does not have to earn it again when the next window begins.
            let next = start.plus(WARM_WINDOW_NS + 1);
            ring.note(1, next);
            assert_eq!(ring.warm_until(adaptive, next), Some(next.plus(ns)));
            let later = next.plus(WARM_WINDOW_NS + 1);
            ring.note(1, later);
            assert_eq!(ring.warm_until(adaptive, later), None);
            let after = later.plus(3 * WARM_WINDOW_NS);
            assert_eq!(ring.warm_until(adaptive, after), None);
        }
    }
}
