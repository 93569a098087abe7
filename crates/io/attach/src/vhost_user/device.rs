//! The queues of one connection: what was said about each, and the rings that workers have.
//!
//! # Model
//! Queue `2 i` is the guest's receive queue of pair `i`, queue `2 i + 1` its transmit queue (VIRTIO 1.2, 5.1.2). A queue is
//! *started* once its size, its addresses and its kick descriptor were said, and *ready* if it is also enabled. The rings
//! are made of all queues that are started, as soon as the two of the first pair are ready; whenever the set of those that
//! are started is to change, or one of the first pair is disabled, workers give the rings back first. Any other queue is
//! enabled and disabled in its ring ([`Device::switch`]), and the others do not notice.
//!
//! # Ownership and lifetime
//! While workers have rings, a value stands for them that holds the transmit half and a link to each receive half; it is
//! made with the rings, and ends when workers have given them back and each has left its place.
//!
//! # What can be lost
//! Frames for the guest while the rings change. None of the guest's. A transmission to a queue that is being disabled may
//! end behind the answer: what it brings lies in the guest's ring.
//!
//! # Not done
//! The transmit queues of a guest are left alone while they are disabled, where the specification would have their
//! frames discarded.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use windlass_shm::Quota;
use windlass_sys::{Errno, eventfd};

use super::announce::{Link, LinkedRx};
use super::features::{ACCESS_PLATFORM, LOG_ALL, PROTOCOL_FEATURES, RING_PACKED, VERSION_1};
use super::guest_map::{Extent, GuestMap, GuestMapError};
use super::iommu::{IommuRx, IommuTx, Plan, ProgressOf};
use super::iommu::{Shared, Visits};
use super::log::DirtyLog;
use super::memory::Memory;
use super::message::RingAddress;
use super::queue::{ACCEPTED, Base, QueueError, QueueSetup};
use super::ring_progress::{Mark, RingKey, RingProgress};
use super::rx::VhostRx;
use super::tx::VhostTx;
use crate::endpoint::Rings;
use crate::kick::{self, KickError};

/// Why no rings could be made of what was said.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A queue.
    #[error("queue {queue}: {source}")]
    Queue {
        /// Its number.
        queue: usize,
        /// Why.
        source: QueueError,
    },
    /// The queues that the guest receives on.
    #[error("the receive queues: {0}")]
    Receive(#[source] QueueError),
    /// An address of the front end that is in none of its regions.
    #[error("queue {queue}: its {part} is at {user:#x}, where the front end has no memory")]
    Address {
        /// Its number.
        queue: usize,
        /// Which part of the ring.
        part: &'static str,
        /// The address.
        user: u64,
    },
    /// The memory.
    #[error(transparent)]
    Memory(#[from] GuestMapError),
    /// Our own side lacks something.
    #[error("{0}: {1}")]
    Local(&'static str, #[source] Errno),
    /// A descriptor of the guest's could keep us waiting, again and again.
    #[error(transparent)]
    Kick(#[from] KickError),
}

fn dup(fd: &OwnedFd) -> Result<OwnedFd, StartError> {
    fd.try_clone()
        .map_err(|e| StartError::Local("dup", Errno::from_io_error(&e).unwrap_or(Errno::MFILE)))
}

/// The descriptor that interrupts a queue's guest. One that the guest does without for the moment may come later, into the
/// same descriptor.
fn call_of(said: &Queue) -> Result<OwnedFd, StartError> {
    match &said.call {
        Some(call) => dup(call),
        None => eventfd::create().map_err(|e| StartError::Local("eventfd", e)),
    }
}

/// Interrupts a guest whose device before was killed, and may have owed it an interrupt for what it had given back.
fn interrupt(map: &GuestMap, call: &OwnedFd) {
    if kick::kick(call.as_fd()).is_err() {
        // As on the data path: once, and then the connection ends.
        map.fail();
    }
}

/// What was said about one queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) size: Option<u16>,
    pub(super) at: Option<RingAddress>,
    /// As SET_VRING_BASE says it.
    pub(super) base: u32,
    /// The ring was started; without a descriptor the guest is not heard and has to be polled.
    pub(super) kick: Option<Option<OwnedFd>>,
    pub(super) call: Option<OwnedFd>,
    /// Signalled once if the ring is found broken.
    pub(super) err: Option<OwnedFd>,
    pub(super) enabled: bool,
    /// The front end has stopped the ring, which was started, and has not started it again.
    pub(super) stopped: bool,
    /// Workers had the ring, and never found it in memory: what is kept of it still says where it stands.
    pub(super) unfound: bool,
}

impl Queue {
    /// Takes the ring away from the device until it is started again.
    pub(super) fn stop(&mut self) {
        self.stopped |= self.kick.take().is_some();
    }

    /// Gives it to the device, with the descriptor that says when the guest has something.
    pub(super) fn start(&mut self, kick: Option<OwnedFd>) {
        self.kick = Some(kick);
        self.stopped = false;
    }
}

/// Where a queue stands, as messages say it: 16 bits for a split ring; of a packed one the place and wrap counter of
/// the driver, and in the upper half those of the device.
pub fn base_of(word: u32, packed: bool) -> Base {
    let (low, high) = (word as u16, (word >> 16) as u16);
    if !packed {
        return Base::split(low);
    }
    // Some front ends know the lower half only.
    let high = if high == 0 { low } else { high };
    Base {
        avail: low & 0x7fff,
        avail_wrap: low & 0x8000 != 0,
        used: high & 0x7fff,
        used_wrap: high & 0x8000 != 0,
    }
}

/// The reverse of [`base_of`].
pub fn base_word(base: Base, packed: bool) -> u32 {
    if !packed {
        return u32::from(base.used);
    }
    let half = |place: u16, wrap: bool| u32::from(place & 0x7fff) | u32::from(wrap) << 15;
    half(base.avail, base.avail_wrap) | half(base.used, base.used_wrap) << 16
}

/// The transmit half that workers have.
#[derive(Debug)]
enum Transmit {
    Plain(Arc<VhostTx>),
    Iommu(Arc<IommuTx>),
}

impl Transmit {
    fn base(&self, ring: usize) -> Option<Base> {
        match self {
            Transmit::Plain(half) => half.base(ring),
            Transmit::Iommu(half) => half.base(ring),
        }
    }

    fn set_enabled(&self, ring: usize, on: bool) {
        match self {
            Transmit::Plain(half) => half.set_enabled(ring, on),
            Transmit::Iommu(half) => half.set_enabled(ring, on),
        }
    }
}

/// Rings that workers have.
#[derive(Debug)]
struct Running {
    map: Arc<GuestMap>,
    rx: Vec<(usize, Arc<Link>)>,
    tx: Transmit,
    /// What they share behind an IOMMU.
    shared: Option<Arc<Shared>>,
    /// The queue of each of the transmit half's rings.
    tx_queues: Vec<usize>,
    /// Call descriptors inside the halves, by queue.
    calls: Vec<(usize, RawFd)>,
    /// Wakes the worker of the first receive ring.
    kick: Option<OwnedFd>,
}

/// The device of one connection.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) features: u64,
    pub(super) memory: Memory,
    pub(super) queues: Vec<Queue>,
    pub(super) log: Option<Arc<DirtyLog>>,
    /// Where the progress of packed rings is kept: with the front end, else by ourselves.
    pub(super) inflight: Option<Arc<RingProgress>>,
    own: Option<Arc<RingProgress>>,
    /// The rings that are made next were in use in another daemon until now.
    pub(super) goes_on: bool,
    running: Option<Running>,
    /// Announcements for the next rings.
    announcements: Vec<[u8; 6]>,
}

impl Device {
    /// A device with so many queue pairs, of which nothing was said.
    pub(super) fn new(pairs: u16, quota: Quota, own: Option<Arc<RingProgress>>) -> Device {
        let queues = usize::from(pairs).saturating_mul(2);
        Device {
            features: 0,
            memory: Memory::new(quota),
            queues: (0..queues).map(|_| Queue::default()).collect(),
            log: None,
            inflight: None,
            own,
            goes_on: false,
            running: None,
            announcements: Vec::new(),
        }
    }

    /// Whether the front end has stopped what it had started: so it does when a guest is paused.
    pub(super) fn is_stopped(&self) -> bool {
        let queues = &self.queues;
        queues.iter().any(|queue| queue.stopped) && queues.iter().all(|queue| queue.kick.is_none())
    }

    /// Whether it is known after a kill of this process where the rings stand: split ones tell it themselves.
    pub(super) fn survives_a_kill(&self) -> bool {
        !self.is_packed() || self.inflight.is_some() || self.own.is_some()
    }

    /// Whether the guest's addresses go through an IOMMU.
    pub(super) fn has_iommu(&self) -> bool {
        self.features & ACCESS_PLATFORM != 0
    }

    pub(super) fn is_packed(&self) -> bool {
        self.features & RING_PACKED != 0
    }

    /// Whether workers have rings of this device.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether workers have this queue.
    pub(super) fn is_queue_running(&self, queue: u32) -> bool {
        let queue = queue as usize;
        self.running.as_ref().is_some_and(|running| {
            running.tx_queues.contains(&queue) || running.rx.iter().any(|(q, _)| *q == queue)
        })
    }

    /// Whether the memory of the rings that workers have is of no use any more.
    pub(super) fn is_broken(&self) -> bool {
        self.running.as_ref().is_some_and(|r| r.map.is_dead())
    }

    /// Tells the front end that the rings that workers have are broken: each one's error descriptor, once. One of them is
    /// enough for all to be taken back, and which it was is not kept.
    pub(super) fn tell_broken(&mut self) {
        let Some(running) = &self.running else {
            return;
        };
        let transmit = running.rx.iter().map(|(queue, _)| *queue);
        for queue in running.tx_queues.iter().copied().chain(transmit) {
            let err = self.queues.get_mut(queue).and_then(|q| q.err.take());
            if let Some(err) = err
                && kick::kick(err.as_fd()).is_err()
            {
                // The connection ends in any case, and one that keeps us waiting does so once.
                return;
            }
        }
    }

    fn is_started(&self, queue: usize) -> bool {
        let queue = self.queues.get(queue);
        queue.is_some_and(|q| q.size.is_some() && q.at.is_some() && q.kick.is_some())
    }

    fn is_enabled(&self, queue: usize) -> bool {
        let always = self.features & PROTOCOL_FEATURES == 0;
        self.queues.get(queue).is_some_and(|q| q.enabled || always)
    }

    fn is_ready(&self, queue: usize) -> bool {
        self.is_started(queue) && self.is_enabled(queue)
    }

    /// The queues of which something holds: those that the guest receives on, and those that it transmits on.
    fn queues_that(&self, hold: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
        let all = |first: usize| (first..self.queues.len()).step_by(2);
        let holding = |first| all(first).filter(|q| hold(*q)).collect();
        (holding(0), holding(1))
    }

    fn started(&self) -> (Vec<usize>, Vec<usize>) {
        self.queues_that(|queue| self.is_started(queue))
    }

    /// The queues that are ready: those that the guest receives on, and those that it transmits on.
    pub(super) fn ready(&self) -> (Vec<usize>, Vec<usize>) {
        self.queues_that(|queue| self.is_ready(queue))
    }

    /// Whether rings can be made.
    pub(super) fn is_complete(&self) -> bool {
        self.features & VERSION_1 != 0 && self.is_ready(0) && self.is_ready(1)
    }

    /// Enables or disables a queue; where workers have its ring, in that.
    ///
    /// # Errors
    /// [`KickError`]: the worker of the ring cannot be woken.
    pub(super) fn switch(&mut self, queue: usize, on: bool) -> Result<(), KickError> {
        if let Some(said) = self.queues.get_mut(queue) {
            said.enabled = on;
        }
        let Some(running) = &self.running else {
            return Ok(());
        };
        let on = self.is_enabled(queue);
        if let Some(ring) = running.tx_queues.iter().position(|q| *q == queue) {
            running.tx.set_enabled(ring, on);
        }
        let Some((_, link)) = running.rx.iter().find(|(q, _)| *q == queue) else {
            return Ok(());
        };
        link.set_enabled(on);
        match self.kick_of(queue).filter(|_| on) {
            // What the guest has put there meanwhile is to be found.
            Some(kick) => kick::kick(kick.as_fd()),
            None => Ok(()),
        }
    }

    /// Whether the rings that workers have are not those that are started.
    pub(super) fn is_outdated(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let transmit: Vec<usize> = running.rx.iter().map(|(queue, _)| *queue).collect();
            self.started() != (running.tx_queues.clone(), transmit)
        })
    }

    /// Makes the rings of all queues that are started. `alarm` is signalled when the data path finds them unusable.
    pub(super) fn start(&mut self, alarm: OwnedFd) -> Result<Rings, StartError> {
        let map = Arc::new(self.memory.map(alarm)?);
        let (receive, transmit) = self.started();
        let mut calls = Vec::new();
        let mut rx: Vec<Box<dyn crate::port::RxPort>> = Vec::new();
        let mut links = Vec::new();
        let mut first_kick = None;
        for queue in transmit {
            let (setup, mark) = self.setup(queue, &map, &mut calls)?;
            if first_kick.is_none() {
                first_kick = setup.kick.as_ref().map(dup).transpose()?;
            }
            let made = VhostRx::new(setup);
            let mut half = made.map_err(|source| StartError::Queue { queue, source })?;
            if let Some(mark) = mark {
                half.keep(mark);
            }
            let link = self.link(queue);
            rx.push(Box::new(LinkedRx::new(half, link.clone())));
            links.push((queue, link));
        }
        let (mut setups, mut marks) = (Vec::new(), Vec::new());
        for queue in &receive {
            let (setup, mark) = self.setup(*queue, &map, &mut calls)?;
            setups.push(setup);
            marks.push(mark);
        }
        let mut setups = setups.into_iter();
        let first = setups
            .next()
            .ok_or(StartError::Receive(QueueError::Queues(0)))?;
        let mut tx = VhostTx::new(first, setups).map_err(StartError::Receive)?;
        for (ring, mark) in marks.into_iter().enumerate() {
            if let Some(mark) = mark {
                tx.keep(ring, mark);
            }
        }
        let tx = Arc::new(tx);
        self.runs(Running {
            map,
            rx: links,
            tx: Transmit::Plain(tx.clone()),
            shared: None,
            tx_queues: receive,
            calls,
            kick: first_kick,
        });
        Ok(Rings { rx, tx })
    }

    /// The same behind an IOMMU: workers find the rings in memory as soon as these translations, or later ones, tell where
    /// they are.
    pub(super) fn start_behind_iommu(
        &mut self,
        alarm: OwnedFd,
        extents: Arc<[Extent]>,
    ) -> Result<Rings, StartError> {
        let map = Arc::new(self.memory.map(alarm)?);
        let shared = Arc::new(Shared::new(map.clone(), extents.clone(), self.queues.len()));
        let (receive, transmit) = self.started();
        let (mut calls, mut links, mut first_kick) = (Vec::new(), Vec::new(), None);
        let mut rx: Vec<Box<dyn crate::port::RxPort>> = Vec::new();
        for queue in transmit {
            let (plan, call) = self.plan(queue, &mut calls)?;
            interrupt(&map, &call);
            self.ask_for(&shared, &plan, &extents);
            let kick = self.kick_of(queue).map(dup).transpose()?;
            if first_kick.is_none() {
                first_kick = kick.as_ref().map(dup).transpose()?;
            }
            let link = self.link(queue);
            let half = IommuRx::new(shared.clone(), plan, kick, call);
            rx.push(Box::new(LinkedRx::new(half, link.clone())));
            links.push((queue, link));
        }
        let mut plans = Vec::new();
        for queue in &receive {
            let (plan, call) = self.plan(*queue, &mut calls)?;
            interrupt(&map, &call);
            self.ask_for(&shared, &plan, &extents);
            plans.push((plan, call));
        }
        let features = self.features & ACCEPTED;
        let tx = Arc::new(IommuTx::new(shared.clone(), features, plans));
        self.runs(Running {
            map,
            rx: links,
            tx: Transmit::Iommu(tx.clone()),
            shared: Some(shared),
            tx_queues: receive,
            calls,
            kick: first_kick,
        });
        Ok(Rings { rx, tx })
    }

    /// Workers are about to have these rings.
    fn runs(&mut self, running: Running) {
        for (ring, queue) in running.tx_queues.iter().enumerate() {
            running.tx.set_enabled(ring, self.is_enabled(*queue));
        }
        if let Some((_, link)) = running.rx.first() {
            let waiting = core::mem::take(&mut self.announcements);
            waiting.into_iter().for_each(|mac| link.announce(mac));
        }
        self.running = Some(running);
        self.goes_on = false;
    }

    fn link(&self, queue: usize) -> Arc<Link> {
        let link = Link::default();
        link.set_enabled(self.is_enabled(queue));
        Arc::new(link)
    }

    /// One queue behind an IOMMU, and the descriptor that interrupts its guest.
    fn plan(
        &self,
        queue: usize,
        calls: &mut Vec<(usize, RawFd)>,
    ) -> Result<(Plan, OwnedFd), StartError> {
        let missing = || StartError::Receive(QueueError::Queues(0));
        let said = self.queues.get(queue).ok_or_else(missing)?;
        let at = said.at.ok_or_else(missing)?;
        let call = call_of(said)?;
        calls.push((queue, call.as_raw_fd()));
        let plan = Plan {
            queue,
            size: said.size.ok_or_else(missing)?,
            at: [at.desc, at.avail, at.used],
            base: base_of(said.base, self.is_packed()),
            features: self.features & ACCEPTED,
            log: self.log.clone().filter(|_| self.features & LOG_ALL != 0),
            progress: self.progress(),
        };
        plan.check()
            .map_err(|source| StartError::Queue { queue, source })?;
        Ok((plan, call))
    }

    /// Where progress is kept that can only be looked at once a ring is translated.
    fn progress(&self) -> Option<ProgressOf> {
        let progress = self.inflight.as_ref().or(self.own.as_ref());
        let progress = progress.filter(|_| self.is_packed())?.clone();
        let files = self.memory.files().into();
        Some(ProgressOf { progress, files })
    }

    /// Asks for the parts of a ring before workers have it.
    fn ask_for(&self, shared: &Shared, plan: &Plan, extents: &[Extent]) {
        if let Some(gate) = shared.gate(plan.queue) {
            for miss in plan.lacking(extents) {
                gate.ask(miss);
            }
        }
    }

    fn kick_of(&self, queue: usize) -> Option<&OwnedFd> {
        self.queues.get(queue)?.kick.as_ref()?.as_ref()
    }

    /// What workers share behind an IOMMU, if they have rings.
    pub(super) fn shared(&self) -> Option<&Arc<Shared>> {
        self.running.as_ref()?.shared.as_ref()
    }

    /// Gives other translations to the workers, and wakes those that wait for them.
    pub(super) fn publish(&self, extents: Arc<[Extent]>) -> Result<(), KickError> {
        let Some(shared) = self.shared() else {
            return Ok(());
        };
        shared.publish(extents);
        // Whoever transmits looks by itself.
        for queue in shared.unpark() {
            if let Some(kick) = self.kick_of(queue) {
                kick::kick(kick.as_fd())?;
            }
        }
        Ok(())
    }

    /// Visits that may still use translations from before the last publication.
    pub(super) fn visits(&self) -> Visits {
        self.shared()
            .map(|shared| shared.visits())
            .unwrap_or_default()
    }

    /// One queue as the halves want it.
    fn setup(
        &self,
        queue: usize,
        map: &Arc<GuestMap>,
        calls: &mut Vec<(usize, RawFd)>,
    ) -> Result<(QueueSetup, Option<Mark>), StartError> {
        let missing = || StartError::Receive(QueueError::Queues(0));
        let said = self.queues.get(queue).ok_or_else(missing)?;
        let at = said.at.ok_or_else(missing)?;
        let guest = |part, user| {
            let found = self.memory.guest_address(user);
            found.ok_or(StartError::Address { queue, part, user })
        };
        let call = call_of(said)?;
        calls.push((queue, call.as_raw_fd()));
        let used = guest("used ring", at.used)?;
        let mut base = base_of(said.base, self.is_packed());
        // Chains are given back in order, so the used index says where a split ring stands, also after a device that
        // was killed; not every front end repeats it.
        if !self.is_packed()
            && let Some(index) = map.load_u16(used.wrapping_add(2))
        {
            base = Base::split(index);
        }
        let desc = guest("descriptors", at.desc)?;
        let size = said.size.ok_or_else(missing)?;
        let mut setup = QueueSetup {
            map: map.clone(),
            desc,
            avail: guest("available ring", at.avail)?,
            used,
            size,
            base,
            features: self.features & ACCEPTED,
            kick: said.kick.iter().flatten().next().map(dup).transpose()?,
            call: Some(call),
            log: self.log.clone().filter(|_| self.features & LOG_ALL != 0),
        };
        let mut mark = None;
        if self.is_packed()
            && let Some(progress) = self.inflight.as_ref().or(self.own.as_ref())
            && let Some(file) = self.memory.file_at(desc)
        {
            let key = RingKey {
                queue,
                desc,
                size,
                file,
                goes_on: self.goes_on,
            };
            if let Some((kept, base)) = progress.begin(&key, &setup) {
                (mark, setup.base) = (Some(kept), base);
            }
        }
        if let Some(call) = &setup.call {
            interrupt(map, call);
        }
        Ok((setup, mark))
    }

    /// Queues are stopped in order, or never to be gone on with: where they stand is for the front end to say.
    pub(super) fn forget(&self, queues: impl IntoIterator<Item = usize>) {
        for queue in queues {
            for progress in self.inflight.as_ref().into_iter().chain(self.own.as_ref()) {
                progress.forget(queue);
            }
        }
    }

    /// Workers have given the rings back: takes over where they stand.
    pub(super) fn stopped(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        let packed = self.is_packed();
        let mut stands = Vec::new();
        for (queue, link) in &running.rx {
            stands.push((*queue, link.base()));
        }
        for (ring, queue) in running.tx_queues.iter().enumerate() {
            stands.push((*queue, running.tx.base(ring)));
        }
        for (queue, base) in stands {
            let Some(said) = self.queues.get_mut(queue) else {
                continue;
            };
            said.unfound = base.is_none();
            if let Some(base) = base {
                said.base = base_word(base, packed);
            }
        }
    }

    /// Puts another call descriptor into a ring that workers have.
    pub(super) fn swap_call(&self, queue: u32, call: Option<&OwnedFd>) -> Result<(), StartError> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        let Some((_, place)) = running.calls.iter().find(|(q, _)| *q == queue as usize) else {
            return Ok(());
        };
        let is_gone = |(q, link): &(usize, Arc<Link>)| *q == queue as usize && link.is_over();
        if running.rx.iter().any(is_gone) {
            return Ok(());
        }
        let silent;
        let call = match call {
            Some(call) => call,
            None => {
                silent = eventfd::create().map_err(|e| StartError::Local("eventfd", e))?;
                &silent
            }
        };
        // SAFETY: `place` is the number of a descriptor inside a half that exists: `running` holds the transmit half, and
        // a receive half that is gone has left its base in the link. So nobody else can have been given the number. The
        // call exchanges the file behind it at once.
        let done = unsafe { libc::dup3(call.as_raw_fd(), *place, libc::O_CLOEXEC) };
        if done < 0 {
            return Err(StartError::Local("dup3", Errno::MFILE));
        }
        // Nobody knows which of the two an interrupt went to that was on its way.
        Ok(kick::kick(call.as_fd())?)
    }

    /// Has the guest announced, now or as soon as there are rings.
    pub(super) fn announce(&mut self, mac: [u8; 6]) -> Result<(), KickError> {
        let Some(running) = &self.running else {
            self.announcements = vec![mac];
            return Ok(());
        };
        if let Some((_, link)) = running.rx.first() {
            link.announce(mac);
        }
        match &running.kick {
            Some(wake) => kick::kick(wake.as_fd()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A base comes back as it was said, packed and split; half a packed one stands for both.
    #[test]
    fn bases_as_words() {
        assert_eq!(base_of(0x1_8005, false), Base::split(0x8005));
        assert_eq!(base_word(Base::split(0xffff), false), 0xffff);
        assert_eq!(base_of(0x8000, true), Base::packed(0, true));
        assert_eq!(base_of(7, true), Base::packed(7, false));
        for word in [0x8000_8000, 0x7fff_8003, 0x8001_0001] {
            assert_eq!(base_word(base_of(word, true), true), word);
        }
    }
}
