//! Time that access to a peer's memory takes, charged to the member whose memory it is.
//!
//! # Purpose
//! A guest can take pages of its memory away while it lends them, again and again: an access then waits until the kernel has
//! cleared another page, or has finished a hole of gigabytes. All other members of the worker wait with it.
//!
//! # Model
//! ```text
//! a piece of work took more than LAP_NS, and there were page faults: the meter is on for SHARE times as long
//! while it is on, each access to a member's memory is measured by itself:
//!   rx_burst, and a copy of its frames to private memory: what faults from now on is not the sender's
//!   tx_burst, notification, release, arming
//! page faults, and longer than its allowance: the member owes the excess, SHARE times
//!   ALLOWANCE_NS, and what clearing the pages takes that a transmission fills: PAGE_NS for each
//!   owes more than CREDIT_NS: it rests until it does not; frames for it are dropped as `peer-slow`
//!   has to rest STRIKES times, or owes more than CONDEMNED_NS: its connection ends
//! ```
//! So a member takes one part in [`SHARE`] of its worker's time, and so do all such members together: the price rises with their number.
//! Without page faults nothing is charged: a worker that had no core, or a member with many frames, is nobody's fault.
//!
//! # Ownership and lifetime
//! An [`Account`] belongs to a member, for each worker one: a connection made anew goes on with what the one before owes.
//!
//! # Synchronization
//! Accounts are written by their worker alone, with relaxed stores.
//!
//! # Limits
//! The piece of work that turns the meter on is nobody's. While the meter is on, an access within its allowance costs two looks at
//! the clock; the system is asked only after a longer one, so up to [`LAP_NS`] and a round of waiting for a core before it may
//! excuse it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use windlass_frame::Tick;

use crate::topo::Topo;

/// A piece of work that takes longer may have waited for somebody's memory.
pub(crate) const LAP_NS: u64 = 100_000;
/// What an access with page faults may take: a burst of small frames into fresh pages.
pub(crate) const ALLOWANCE_NS: u64 = 50_000;
/// What the kernel may take for each fresh page that a transmission fills, and how many bytes that is. A burst of large segments fills a
/// thousand of them, in memory that an honest guest has never touched.
const PAGE_NS: u64 = 2_000;
const PAGE_BYTES: u64 = 4_096;
/// What a nanosecond of excess costs, and how long the meter is on for one.
pub(crate) const SHARE: u64 = 256;
/// What a member may owe without consequences.
pub(crate) const CREDIT_NS: u64 = 5_000_000 * SHARE;
/// What a member may owe without losing its connection.
pub(crate) const CONDEMNED_NS: u64 = 500_000_000 * SHARE;
/// How often a member may have to rest.
pub(crate) const STRIKES: u32 = 4;
/// A member that has owed nothing for so long begins anew.
pub(crate) const FORGIVEN_NS: u64 = 60_000_000_000;
/// Why a connection ends.
pub(crate) const STALLS: &str =
    "access to the peer's memory kept the switch waiting, again and again";

/// What a thread has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Page faults.
    pub(crate) faults: u64,
    /// Time in which it could have run, and had no core.
    pub(crate) waited_ns: u64,
}

/// What a meter asks.
pub(crate) struct Sense {
    /// The time in nanoseconds. It costs a few cycles.
    pub(crate) now_ns: Box<dyn Fn() -> u64>,
    /// What the thread has used. It costs system calls.
    pub(crate) used: Box<dyn FnMut() -> Used>,
}

/// What a member owes one worker.
#[derive(Debug, Default)]
pub struct Account {
    /// The moment at which it owes nothing any more.
    owes_until: AtomicU64,
    strikes: AtomicU32,
}

impl Account {
    /// Until when it rests; a moment that has passed if it does not.
    pub(crate) fn rests_until(&self) -> Tick {
        Tick(
            self.owes_until
                .load(Ordering::Relaxed)
                .saturating_sub(CREDIT_NS),
        )
    }

    /// Adds to what is owed: until when something is, and whether the connection is to end.
    fn owe(&self, ns: u64, now: Tick) -> (Tick, bool) {
        let owed_until = Tick(self.owes_until.load(Ordering::Relaxed));
        let until = owed_until.max(now).plus(ns);
        self.owes_until.store(until.0, Ordering::Relaxed);
        let mut strikes = self.strikes.load(Ordering::Relaxed);
        if now.since(owed_until) > FORGIVEN_NS {
            strikes = 0;
        }
        let (owed_before, owed) = (owed_until.since(now), until.since(now));
        let has_to_rest = owed > CREDIT_NS && owed_before <= CREDIT_NS;
        strikes = strikes.saturating_add(u32::from(has_to_rest));
        self.strikes.store(strikes, Ordering::Relaxed);
        let is_condemned = strikes >= STRIKES || owed > CONDEMNED_NS;
        (until, has_to_rest && is_condemned)
    }
}

/// The meter of one worker.
pub(crate) struct Meter {
    sense: Sense,
    is_on: bool,
    on_until: Tick,
    /// What was used when it was last asked, and when that was.
    used: Used,
    asked: Tick,
    /// Members that owe, and until when.
    debtors: Vec<(u16, Tick)>,
    /// Members whose connection is to end.
    condemned: Vec<u16>,
    /// Rings that rest, by token.
    resting: Vec<(Tick, u64)>,
}

impl Meter {
    pub(crate) fn new(sense: Sense) -> Meter {
        Meter {
            sense,
            is_on: false,
            on_until: Tick(0),
            used: Used::default(),
            asked: Tick(0),
            debtors: Vec::new(),
            condemned: Vec::new(),
            resting: Vec::new(),
        }
    }

    /// Whether accesses are measured.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A piece of work took more than [`LAP_NS`]. Whether the meter was turned on.
    #[cold]
    pub(crate) fn look(&mut self, ns: u64, now: Tick) -> bool {
        let spent = self.spent(now);
        let ns = ns.saturating_sub(spent.waited_ns);
        if spent.faults != 0 && ns > LAP_NS {
            self.turn_on(now.plus(ns.saturating_mul(SHARE)));
            return true;
        }
        false
    }

    /// What was used since it was last asked.
    fn spent(&mut self, now: Tick) -> Used {
        let (before, used) = (self.used, (self.sense.used)());
        (self.used, self.asked) = (used, now);
        Used {
            faults: used.faults.wrapping_sub(before.faults),
            waited_ns: used.waited_ns.wrapping_sub(before.waited_ns),
        }
    }

    fn turn_on(&mut self, until: Tick) {
        self.is_on = true;
        self.on_until = self.on_until.max(until);
    }

    /// Before an access to a member's ring, which may lie in its memory: the time.
    #[inline(always)]
    pub(crate) fn begin_if(&self, is_foreign: impl FnOnce() -> bool) -> Option<u64> {
        match self.is_on {
            false => None,
            true => is_foreign().then(|| (self.sense.now_ns)()),
        }
    }

    /// After it; it has written `written` bytes.
    #[inline(always)]
    pub(crate) fn end(
        &mut self,
        began: Option<u64>,
        topo: &Topo,
        worker: u16,
        now: Tick,
        (member, written): (u16, u64),
    ) {
        if let Some(began) = began {
            let took = (self.sense.now_ns)().saturating_sub(began);
            if took > ALLOWANCE_NS {
                let excess = took - ALLOWANCE_NS;
                let excess = excess.saturating_sub(written.saturating_mul(PAGE_NS) / PAGE_BYTES);
                self.charge(excess, topo, worker, now, member);
            }
        }
    }

    #[cold]
    fn charge(&mut self, excess: u64, topo: &Topo, worker: u16, now: Tick, member: u16) {
        let spent = self.spent(now);
        if spent.faults == 0 {
            return;
        }
        let excess = excess.saturating_sub(spent.waited_ns);
        let owner = topo.member(member);
        let Some(owner) = owner.filter(|_| excess != 0) else {
            return;
        };
        if let Some(counters) = owner.counters.get(usize::from(worker)) {
            counters.stalled_ns.add(excess);
        }
        let Some(account) = owner.accounts.get(usize::from(worker)) else {
            return;
        };
        self.debtors
            .retain(|(debtor, until)| *debtor != member && *until > now);
        let price = SHARE.saturating_mul(self.debtors.len() as u64 + 1);
        let (until, is_condemned) = account.owe(excess.saturating_mul(price), now);
        self.debtors.push((member, until));
        self.turn_on(until);
        if is_condemned && !self.condemned.contains(&member) {
            self.condemned.push(member);
        }
    }

    /// Until when a member rests, if it does.
    #[cold]
    pub(crate) fn rest(topo: &Topo, worker: u16, now: Tick, member: u16) -> Option<Tick> {
        let account = topo.member(member)?.accounts.get(usize::from(worker))?;
        let until = account.rests_until();
        (until > now).then_some(until)
    }

    /// A ring will not be visited until then.
    pub(crate) fn lay_down(&mut self, token: u64, until: Tick) {
        self.resting.push((until, token));
    }

    /// A ring that has rested, if there is one.
    pub(crate) fn rested(&mut self, now: Tick) -> Option<u64> {
        let at = self.resting.iter().position(|(until, _)| *until <= now)?;
        Some(self.resting.swap_remove(at).1)
    }

    /// When the first of them will have.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        self.resting.iter().map(|(until, _)| *until).min()
    }

    /// Members whose connection is to end, since the last call. Turns the meter off, if it is time.
    pub(crate) fn go_on(&mut self, now: Tick) -> Vec<u16> {
        self.is_on = self.on_until > now || !self.resting.is_empty();
        if now.since(self.asked) > LAP_NS {
            // So that an access is not excused by what was waited long before it.
            self.spent(now);
        }
        std::mem::take(&mut self.condemned)
    }
}
