//! The halves of a guest behind an IOMMU: those of any other guest, made anew whenever its translations change.
//!
//! # Model
//! A [`Binding`] is a ring's place at its gate. At the beginning of each visit it looks whether there are other translations;
//! if so, the half finds its ring anew and forgets what it has staged ([`VhostRx::rebind`], [`VhostTx::rebind`]). The parts of
//! the ring are translated like any buffer. Inside a visit nothing differs but that an address may be lacking.
//!
//! Where a ring stands whose last device was killed can only be told by its descriptors ([`crate::vhost_user::ring_progress`]), which are not
//! translated when the daemon comes back. So it is found out, and what a publication left half done is repaired, when the
//! half is made: in the first visit that has all pages of the ring, before it looks at a chain.
//!
//! # States
//! | state | what a visit does | what leaves it |
//! | --- | --- | --- |
//! | lacking | nothing: a part of the ring is not translated | another generation |
//! | bound | what it does for any guest | another generation; an address that is not translated |
//! | starved | nothing: the next chain is not translated | another generation |
//!
//! The worker of a ring that is lacking or starved may sleep: it parks at the gate, and the session wakes it.
//!
//! # What can be lost and what cannot
//! Nothing that the guest sends. Frames for a guest whose next buffer is not translated wait with the worker
//! ([`Stop::Busy`]) for [`PATIENCE`] at most, in order, while the worker does not sleep; then they find the ring full. So that this is rare, buffers are asked for
//! [`AHEAD`] chains before they are needed.
//!
//! # Limits
//! Each page of a ring must lie in one piece of our memory ([`crate::vhost_user::area`]). Of several workers one at a time transmits on a ring.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use windlass_frame::{Heads, Pick};
use windlass_shm::{Section, Tails};

use super::gate::Shared;
use crate::kick;
use crate::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort, share,
};
use crate::vhost_user::announce::Half;
use crate::vhost_user::features::{RING_PACKED, tx_caps};
use crate::vhost_user::guest_map::{Extent, Miss, READ, WRITE, each_real, first_miss};
use crate::vhost_user::log::DirtyLog;
use crate::vhost_user::memory::{FileAt, file_at};
use crate::vhost_user::queue::{Base, QueueError, QueueSetup, check, parts};
use crate::vhost_user::ring_progress::{Mark, RingKey, RingProgress};
use crate::vhost_user::rx::VhostRx;
use crate::vhost_user::tx::{VhostTx, chosen, set_bit};

/// How long frames for a guest wait for the translation of a buffer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);
/// Chains that are looked at before they are needed.
const AHEAD: u16 = 32;
/// The lock makes the worker that holds it the only one.
const ALONE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// A queue as both sides agreed on it, but for its memory.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) queue: usize,
    pub(crate) size: u16,
    /// Descriptors, what the driver writes beside them, what the device does.
    pub(crate) at: [u64; 3],
    pub(crate) base: Base,
    pub(crate) features: u64,
    pub(crate) log: Option<Arc<DirtyLog>>,
    /// Where the place of a packed ring is kept.
    pub(crate) progress: Option<ProgressOf>,
}

/// Where the places of packed rings are kept, and what the files of the guest's memory are.
#[derive(Clone, Debug)]
pub(crate) struct ProgressOf {
    pub(crate) progress: Arc<RingProgress>,
    pub(crate) files: Arc<[FileAt]>,
}

impl Plan {
    /// Refuses what does not depend on memory.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        check(self.features, self.size, self.base)
    }

    /// Every page of its parts that is not translated.
    pub(crate) fn lacking(&self, extents: &[Extent]) -> Vec<Miss> {
        let mut misses = Vec::new();
        for part in parts(self.features, self.size, self.at) {
            let mut done = 0;
            while done < u64::from(part.bytes) {
                let (at, left) = (
                    part.gpa.wrapping_add(done),
                    u64::from(part.bytes).wrapping_sub(done),
                );
                let Some(iova) = first_miss(extents, part.access, at, left) else {
                    break;
                };
                let miss = Miss::at(iova, part.access);
                misses.push(miss);
                // From the next page on.
                done = miss.next().wrapping_sub(part.gpa);
            }
        }
        misses
    }

    /// The mark of the ring, which is all translated, and where it stands. What a publication left half done that was cut
    /// off is done.
    fn begin(&self, setup: &QueueSetup, extents: &[Extent]) -> Option<(Mark, Base)> {
        let ProgressOf { progress, files } = self.progress.as_ref()?;
        let mut first = None;
        each_real(extents, setup.desc, 1, |real, _| first = Some(real));
        let key = RingKey {
            queue: self.queue,
            desc: first?,
            size: self.size,
            file: file_at(files, first?)?,
            // It is not handed over.
            goes_on: false,
        };
        progress.begin(&key, setup)
    }
}

/// What a visit can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// Everything.
    Bound,
    /// Nothing, until there is another generation.
    Lacking,
    /// Nothing at this moment.
    Busy,
}

/// A ring that is all translated.
struct Found {
    setup: QueueSetup,
    mark: Option<Mark>,
}

/// A ring's place at its gate.
#[derive(Debug)]
struct Binding {
    shared: Arc<Shared>,
    plan: Plan,
    /// What the half accesses its buffers for.
    access: u8,
    /// The generation that was looked at last.
    seen: u64,
    bound: bool,
    /// The next chain is not translated.
    starved: bool,
    /// The ring was found at least once.
    begun: bool,
    /// Where its place is kept.
    mark: Option<Mark>,
}

impl Binding {
    fn new(shared: Arc<Shared>, plan: Plan, access: u8) -> Binding {
        Binding {
            shared,
            plan,
            access,
            seen: 0,
            bound: false,
            starved: false,
            begun: false,
            mark: None,
        }
    }

    fn enter(&self) {
        self.shared.enter(self.plan.queue);
    }

    fn leave(&self) {
        self.shared.leave(self.plan.queue);
    }

    /// What the visit can do; `bind` makes the half, or makes it anew, if there are other translations.
    fn look(&mut self, bind: impl FnOnce(Found) -> Result<(), QueueError>) -> Sight {
        if self.shared.generation() != self.seen {
            return self.look_anew(bind);
        }
        match self.bound && !self.starved {
            true => Sight::Bound,
            false => Sight::Lacking,
        }
    }

    #[cold]
    fn look_anew(&mut self, bind: impl FnOnce(Found) -> Result<(), QueueError>) -> Sight {
        let Some((extents, generation)) = self.shared.load() else {
            return Sight::Busy;
        };
        (self.seen, self.bound, self.starved) = (generation, false, false);
        let lacking = self.plan.lacking(&extents);
        if !lacking.is_empty() {
            self.starve(lacking);
            return Sight::Lacking;
        }
        let map = self
            .shared
            .memory()
            .translated_by(extents.clone(), self.access);
        let [desc, avail, used] = self.plan.at;
        // As where there is no IOMMU: the used index says where a split ring stands.
        if !self.begun
            && self.plan.features & RING_PACKED == 0
            && let Some(index) = map.load_u16(used.wrapping_add(2))
        {
            self.plan.base = Base::split(index);
        }
        let log = self.plan.log.as_ref();
        let mut setup = QueueSetup {
            map: Arc::new(map),
            desc,
            avail,
            used,
            size: self.plan.size,
            base: self.plan.base,
            features: self.plan.features,
            kick: None,
            call: None,
            log: log.map(|log| Arc::new(log.translated_by(extents.clone()))),
        };
        if !self.begun
            && self.plan.features & RING_PACKED != 0
            && let Some((mark, base)) = self.plan.begin(&setup, &extents)
        {
            (self.mark, setup.base) = (Some(mark), base);
        }
        let mark = self.mark.clone();
        if bind(Found { setup, mark }).is_err() {
            // A part that lies in several pieces, or is not aligned.
            self.shared.memory().fail();
            return Sight::Lacking;
        }
        (self.bound, self.begun) = (true, true);
        Sight::Bound
    }

    /// Asks for translations that will be needed.
    fn ask(&self, misses: impl IntoIterator<Item = Miss>) {
        let Some(gate) = self.shared.gate(self.plan.queue) else {
            return;
        };
        let mut any = false;
        for miss in misses {
            any |= gate.ask(miss);
        }
        if any {
            self.shared.memory().call();
        }
    }

    /// Nothing is to be done until there is another generation, which the first of these misses brings.
    fn starve(&mut self, misses: Vec<Miss>) {
        self.starved = true;
        if let Some(gate) = self.shared.gate(self.plan.queue)
            && let Some(miss) = misses.first()
        {
            gate.need(*miss);
        }
        self.ask(misses.into_iter().skip(1));
        self.shared.memory().call();
    }

    /// Whether the worker may sleep until there is another generation than the one that was looked at; there can be one
    /// already.
    fn park(&self) -> bool {
        if let Some(gate) = self.shared.gate(self.plan.queue) {
            gate.park();
        }
        self.shared.generation() == self.seen
    }
}

/// The receive half.
#[derive(Debug)]
pub(crate) struct IommuRx {
    binding: Binding,
    half: Option<VhostRx>,
    kick: Option<OwnedFd>,
    /// Until there is a half.
    call: Option<OwnedFd>,
}

impl IommuRx {
    /// The half of a queue that is found in memory when it is first visited.
    pub(crate) fn new(
        shared: Arc<Shared>,
        plan: Plan,
        kick: Option<OwnedFd>,
        call: OwnedFd,
    ) -> IommuRx {
        IommuRx {
            binding: Binding::new(shared, plan, READ),
            half: None,
            kick,
            call: Some(call),
        }
    }

    fn look(&mut self) -> Sight {
        let (half, call) = (&mut self.half, &mut self.call);
        let mut deaf = false;
        let sight = self.binding.look(|Found { setup, mark }| {
            match half {
                Some(half) => half.rebind(&setup)?,
                None => {
                    let mut made = VhostRx::new(setup)?;
                    if let Some(call) = call.take() {
                        // For what was given back just now.
                        deaf = kick::kick(call.as_fd()).is_err();
                        made.set_call(call);
                    }
                    *half = Some(made);
                }
            }
            if let (Some(half), Some(mark)) = (half, mark) {
                half.keep(mark);
            }
            Ok(())
        });
        if deaf {
            self.binding.shared.memory().fail();
        }
        sight
    }
}

impl Half for IommuRx {
    fn base(&self) -> Option<Base> {
        self.half.as_ref().map(VhostRx::base)
    }
}

impl RxPort for IommuRx {
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        self.binding.enter();
        let more = match (self.look(), &mut self.half) {
            (Sight::Bound, Some(half)) => {
                let (loan, mut more) = half.rx_burst(section, heads, tails, limit);
                if let Some(miss) = half.map().take_miss() {
                    let mut misses = vec![miss];
                    half.look_ahead(AHEAD, |miss| misses.push(miss));
                    self.binding.starve(misses);
                    more = More::Drained;
                }
                if loan.count != 0 {
                    // The visit goes on until the release.
                    return (loan, more);
                }
                more
            }
            (Sight::Busy, _) => More::Left,
            _ if self.binding.shared.memory().is_dead() => More::Dead,
            _ => More::Drained,
        };
        heads.n = 0;
        self.binding.leave();
        (Loan::default(), more)
    }

    fn release(&mut self, section: &Section<'_>, loan: Loan) {
        if loan.count == 0 {
            return;
        }
        if let Some(half) = &mut self.half {
            half.release(section, loan);
        }
        self.binding.leave();
    }

    fn arm(&mut self, section: &Section<'_>) -> Armed {
        self.binding.enter();
        let armed = match (self.look(), &mut self.half) {
            (Sight::Bound, Some(half)) => half.arm(section),
            (Sight::Busy, _) => Armed::Work,
            // The session wakes the worker.
            _ if self.binding.park() => Armed::Yes,
            _ => Armed::Work,
        };
        self.binding.leave();
        armed
    }

    fn disarm(&mut self, section: &Section<'_>) {
        self.binding.enter();
        if let (Sight::Bound, Some(half)) = (self.look(), &mut self.half) {
            half.disarm(section);
        }
        self.binding.leave();
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct State {
    binding: Binding,
    half: Option<VhostTx>,
    /// Frames wait for a translation since the first moment, and did so at the second.
    waits: Option<(Instant, Instant)>,
    /// The guest is to be interrupted, for what was given back when the ring was found.
    owes: bool,
}

#[derive(Debug)]
struct TxQueue {
    state: Mutex<State>,
    call: OwnedFd,
    /// The guest is still to be interrupted.
    owed: AtomicBool,
}

/// The transmit half.
#[derive(Debug)]
pub(crate) struct IommuTx {
    shared: Arc<Shared>,
    caps: TxCaps,
    queues: Box<[TxQueue]>,
    /// A bit for each queue that frames may go to.
    enabled: AtomicU32,
}

impl IommuTx {
    /// The half for queues that the guest receives on, each with the descriptor that interrupts it.
    pub(crate) fn new(shared: Arc<Shared>, features: u64, plans: Vec<(Plan, OwnedFd)>) -> IommuTx {
        let queue = |(plan, call)| TxQueue {
            state: Mutex::new(State {
                binding: Binding::new(shared.clone(), plan, WRITE),
                half: None,
                waits: None,
                owes: false,
            }),
            call,
            owed: AtomicBool::new(false),
        };
        let queues: Box<[TxQueue]> = plans.into_iter().map(queue).collect();
        let enabled = queues.iter().fold(0u32, |all, _| all << 1 | 1);
        IommuTx {
            queues,
            enabled: AtomicU32::new(enabled),
            shared,
            caps: tx_caps(features),
        }
    }

    /// As [`VhostTx::set_enabled`].
    pub(crate) fn set_enabled(&self, queue: usize, on: bool) {
        set_bit(&self.enabled, self.queues.len(), queue, on);
    }

    /// The first buffer of queue `queue` that was not used; `None` if the ring was never found in memory. Called once no
    /// worker visits it any more.
    pub(crate) fn base(&self, queue: usize) -> Option<Base> {
        let state = self.queues.get(queue)?.state.lock();
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.half.is_none() {
            state.binding.enter();
            state.look();
            state.binding.leave();
        }
        state.half.as_ref()?.base(0)
    }

    fn send(
        &self,
        lane: Lane,
        wanted: Option<u8>,
        (heads, tails): (&Heads, &Tails<'_>),
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        let number = chosen(self.enabled.load(Ordering::Acquire), lane, wanted);
        let Some(queue) = number.and_then(|number| self.queues.get(number)) else {
            sent.stop = Stop::Down;
            return sent;
        };
        let Some(mut state) = queue.try_lock() else {
            sent.stop = Stop::Busy;
            return sent;
        };
        state.binding.enter();
        let mut sent = state.send((heads, tails), picks);
        state.binding.leave();
        if core::mem::take(&mut state.owes) {
            sent.kick = Kick::Now;
        }
        if sent.kick != Kick::No {
            queue.owed.store(true, Ordering::Release);
        }
        sent
    }
}

impl TxQueue {
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl State {
    fn look(&mut self) -> Sight {
        let (half, owes) = (&mut self.half, &mut self.owes);
        self.binding.look(|Found { setup, mark }| {
            match half {
                Some(half) => half.rebind(&setup)?,
                None => (*half, *owes) = (Some(VhostTx::new(setup, [])?), true),
            }
            if let (Some(half), Some(mark)) = (half, mark) {
                half.keep(0, mark);
            }
            Ok(())
        })
    }

    fn send(&mut self, (heads, tails): (&Heads, &Tails<'_>), picks: &[Pick]) -> Sent {
        let mut sent = Sent::default();
        match (self.look(), &self.half) {
            (Sight::Bound, Some(half)) => {
                sent = half.send(ALONE, None, heads, tails, picks).0;
                if sent.kick != Kick::No && !half.wants_kick(ALONE) {
                    sent.kick = Kick::No;
                }
                let miss = half.map().take_miss();
                let mut misses: Vec<Miss> = miss.into_iter().collect();
                half.look_ahead(AHEAD, |miss| misses.push(miss));
                if miss.is_none() || sent.taken > 0 {
                    self.waits = None;
                }
                if miss.is_some() {
                    self.binding.starve(misses);
                    sent.stop = self.wait();
                } else {
                    self.binding.ask(misses);
                }
            }
            (Sight::Busy, _) => sent.stop = Stop::Busy,
            _ if self.binding.shared.memory().is_dead() => sent.stop = Stop::Down,
            _ => sent.stop = self.wait(),
        }
        sent
    }

    /// Whether frames are still to wait: not if some have waited for long, and have been followed by others ever since.
    fn wait(&mut self) -> Stop {
        let now = Instant::now();
        let lately = |last: Instant| now.saturating_duration_since(last) < PATIENCE;
        let since = match self.waits {
            Some((since, last)) if lately(last) => since,
            _ => now,
        };
        self.waits = Some((since, now));
        match now.saturating_duration_since(since) < PATIENCE {
            true => Stop::Busy,
            false => Stop::Full,
        }
    }
}

impl TxPort for IommuTx {
    fn caps(&self) -> TxCaps {
        self.caps
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.send(lane, None, (heads, tails), picks)
    }

    fn has_choice(&self) -> bool {
        self.queues.len() > 1
    }

    fn choices(&self, lane: Lane) -> u32 {
        share(self.enabled.load(Ordering::Acquire), lane)
    }

    fn tx_burst_on(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        ring: u8,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.send(lane, Some(ring), (heads, tails), picks)
    }

    fn kick(&self, _lane: Lane) {
        for queue in &self.queues {
            if queue.owed.swap(false, Ordering::Acquire) && kick::kick(queue.call.as_fd()).is_err()
            {
                self.shared.memory().fail();
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::vhost_user::features::VERSION_1;
    use crate::vhost_user::guest_map::{GuestMap, GuestRegion};
    use windlass_shm::{HugePages, Mapping};
    use windlass_sync::qsbr::Domain;
    use windlass_sys::eventfd;

    /// A publication that a worker sees and goes to sleep on before the session has looked who sleeps wakes it for nothing.
    /// The next one wakes it again.
    #[test]
    fn a_wake_up_for_nothing_is_not_the_last() {
        let (_memory, file) = Mapping::create("behind", 4096, HugePages::No).unwrap();
        let region = GuestRegion {
            gpa: 0,
            len: 4096,
            offset: 0,
            fd: file.as_fd(),
        };
        let map = GuestMap::new(&[region], eventfd::create().unwrap()).unwrap();
        let shared = Arc::new(Shared::new(Arc::new(map), Arc::new([]), 2));
        let plan = Plan {
            queue: 1,
            size: 8,
            at: [0, 1024, 2048],
            base: Base::split(0),
            features: VERSION_1,
            log: None,
            progress: None,
        };
        let call = eventfd::create().unwrap();
        let mut half = IommuRx::new(shared.clone(), plan, None, call);
        let mut worker = Domain::new(1).register();
        let woken = || shared.unpark().collect::<Vec<_>>();
        assert_eq!(half.arm(&worker.section()), Armed::Yes);
        for _ in 0..3 {
            shared.publish(Arc::new([]));
            half.disarm(&worker.section());
            assert_eq!(half.arm(&worker.section()), Armed::Yes);
            assert_eq!(woken(), [1]);
            half.disarm(&worker.section());
            assert_eq!(half.arm(&worker.section()), Armed::Yes);
            shared.publish(Arc::new([]));
            assert_eq!(woken(), [1], "it sleeps for ever");
            half.disarm(&worker.section());
            assert_eq!(half.arm(&worker.section()), Armed::Yes);
        }
        assert_eq!(woken(), [1]);
        assert!(woken().is_empty(), "once");
    }
}
