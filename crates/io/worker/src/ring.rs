//! A receive ring and the mode that it is in.
//!
//! # States
//! | state | notifications | in the run list | leaves when |
//! | --- | --- | --- | --- |
//! | `Idle` | on | no | its descriptor becomes readable |
//! | `Active` | off | yes | a visit finds it drained |
//! | `Warm(until)` | off | yes | frames arrive (to `Active`), or `until` passes (it is armed) |
//! | `Unsure(at)` | on | no | readable, or looked at once more at `at` |
//! | `Dead` | off | no | never: the port is waiting to be detached |
//!
//! A visit that ended on its budget leaves the ring `Active`: it never goes to sleep with a
//! backlog, and no notification is asked for between two visits. `arm` looks once more after it
//! turned notifications on, so that no wake-up is lost.
//!
//! Only a ring that moved [`WARM_FRAMES`] frames within [`WARM_WINDOW_NS`] may be `Warm`: spinning is paid for by
//! traffic, and an idle ring costs nothing.

use windlass_attach::port::RxPort;
use windlass_bridge::forward::Ingress;
use windlass_frame::Tick;

/// Frames that earn a ring its spin before sleep.
pub const WARM_FRAMES: u32 = 8;
/// The time within which they must have arrived.
pub const WARM_WINDOW_NS: u64 = 1_000_000;

/// The mode of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Armed; the worker may sleep.
    Idle,
    /// Being polled.
    Active,
    /// Polled although it was empty, until this moment.
    Warm(Tick),
    /// Armed, but the peer may have missed it: looked at once more at this moment.
    Unsure(Tick),
    /// Gives nothing more.
    Dead,
}

/// A receive ring of a member, with its worker's state about it.
pub struct RxRing {
    /// The port.
    pub port: Box<dyn RxPort>,
    /// The member that it belongs to.
    pub member: u16,
    /// The mode.
    pub state: State,
    /// What the bridge remembers about this ring between bursts.
    pub ingress: Ingress,
    moved: u32,
    window: Tick,
}

impl RxRing {
    /// A ring that was just adopted: active, so that what already waits is fetched.
    pub fn adopt(port: Box<dyn RxPort>, member: u16) -> RxRing {
        RxRing {
            port,
            member,
            state: State::Active,
            ingress: Ingress::default(),
            moved: 0,
            window: Tick(0),
        }
    }

    /// Notes that `n` frames arrived.
    #[inline]
    pub fn note(&mut self, n: usize, now: Tick) {
        if now.since(self.window) > WARM_WINDOW_NS {
            self.moved = 0;
            self.window = now;
        }
        self.moved = self.moved.saturating_add(n as u32);
    }

    /// Whether recent traffic pays for a spin.
    #[inline]
    pub fn is_busy(&self, now: Tick) -> bool {
        self.moved >= WARM_FRAMES && now.since(self.window) <= 2 * WARM_WINDOW_NS
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

    /// Takes every ring of a member out.
    pub fn remove_member(&mut self, member: u16) -> Vec<RxRing> {
        let mut out = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if slot.1.as_ref().is_some_and(|r| r.member == member) {
                out.extend(slot.1.take());
                self.free.push(at as u32);
            }
        }
        out
    }
}
