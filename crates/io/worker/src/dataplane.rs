//! The control thread's side: makes topologies, moves ports between itself and the workers.
//!
//! # Model
//! A [`DataPlane`] is owned by one thread. It keeps a draft of every bridge and member; each call
//! changes the draft and publishes a new [topology](crate::topo::Topo). Workers pick it up at their next visit.
//!
//! | call | what happens before it returns |
//! | --- | --- |
//! | [`DataPlane::attach`] | the topology with the transmit half is published, then receive halves are mailed; at the end of the batch if one is open |
//! | [`DataPlane::detach`] | no worker has the rings or can send to them any more (a grace period), or a worker is late |
//! | [`DataPlane::end_batch`] | no frame is judged by what was before the batch, or a worker is late |
//! | [`DataPlane::remove_members`], [`DataPlane::remove_bridge`] | the same, and the numbers can be used again |
//!
//! # Synchronization
//! Published pointers and mailboxes only: a worker never waits for this thread. This thread waits for workers at most
//! [`GRACE_MAX`] at a time; a worker that does not answer within it is reported by [`DataPlane::stuck`].
//!
//! # Failure modes
//! A late worker keeps what it has: rings that were taken from it are nobody's until it has let them go, which
//! [`DataPlane::take_detached`] tells. Commands that do not fit into its mailbox wait outside.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self as std_mpsc, TryRecvError};
use std::time::Duration;

mod bypass;
mod captures;
mod draft;
mod drain;
mod error;
mod handle;
mod learning;
mod local;
mod moves;
pub mod overlays;
mod publish;
mod questions;
mod rest;
mod shaping;
mod start;
mod states;
mod tables;
#[cfg(test)]
mod tests;

use bypass::Bypasses;
pub use draft::{BridgeTuning, FirewallTuning, MemberTuning};
use draft::{DraftBridge, DraftMember, Guarding};
use drain::Drain;
pub use error::DataPlaneError;
use handle::WorkerHandle;
use local::Firewalls;
pub use local::{ANSWERS, RELAYS, SENDS};
use overlays::Overlays;
use questions::Asked;
use shaping::Shaping;
pub use shaping::{FlowTotals, FlowTuning};
pub use start::DataPlaneOptions;
use windlass_attach::endpoint::Rings;
use windlass_attach::port::TxPort;
use windlass_bridge::fdb::{FdbWriter, Limits};
use windlass_bridge::forward::Bridge;
use windlass_bridge::member::MemberConf;
use windlass_firewall::Counted;
use windlass_frame::Tick;
use windlass_stats::{MemberCounters, MemberTotals, Padded};
use windlass_sync::qsbr::Limbo;
use windlass_sync::spsc;
use windlass_sync::tsc::{self, Clock};

use crate::command::{Command, Condemned};
use crate::counters::WorkerTotals;
use crate::grace::QsbrGrace;
use crate::local::LocalFrame;
use crate::meter::Account;
use crate::placement::Placement;
use crate::ring::RxRing;
use crate::topo::Member;
use crate::wait::Wait;
use crate::worker::Shared;

/// How long this thread waits for the workers at a time.
pub const GRACE_MAX: Duration = Duration::from_secs(5);

/// The workers and what they forward.
pub struct DataPlane {
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    members: Vec<Option<DraftMember>>,
    bridges: Vec<Option<DraftBridge>>,
    built: Vec<Option<Arc<Bridge>>>,
    published: Vec<Option<Arc<Member>>>,
    limbo: Limbo,
    /// What workers may still have, in the order in which it was taken from them.
    drains: Vec<Drain>,
    /// A worker has let somebody wait for [`GRACE_MAX`] and has not let go since: nobody waits for it again.
    is_late: bool,
    /// Members whose rings have come back since the last [`DataPlane::take_detached`].
    detached: Vec<u16>,
    members_max: usize,
    condemned: std_mpsc::Receiver<Condemned>,
    /// By worker: frames for the daemon.
    local: Vec<spsc::Receiver<LocalFrame>>,
    /// Frames for the daemon of the former workers of rings that moved: older than what the next ones have.
    local_moved: Vec<LocalFrame>,
    /// Frames of the daemon that wait for workers.
    sends: Arc<AtomicUsize>,
    firewalls: Firewalls,
    questions: Asked,
    /// The same of frames for sets.
    relays: Arc<AtomicUsize>,
    /// Frames whose attachment had ended when they were taken.
    local_stale: u64,
    wait: &'static dyn Wait,
    /// Attachments so far.
    attachments: u64,
    /// Topologies are not published one by one.
    is_batch: bool,
    /// Rings, by the worker that gets them, once their members are published: a frame that is read before the members of its
    /// batch can be sent to would be lost.
    adopts: Vec<(usize, Command)>,
    /// Bridges whose new tables are to forget what is learned before they are published.
    refilled: Vec<u16>,
    overlays: Overlays,
    placement: Arc<Placement>,
    /// Ways past the workers that are open.
    bypasses: Bypasses,
}

impl DataPlane {
    /// Becomes readable when [`DataPlane::take_condemned`] has something to say.
    pub fn alarm(&self) -> BorrowedFd<'_> {
        self.shared.alarm.as_fd()
    }

    /// Ports that workers found dead since the last call, and that are still attached.
    pub fn take_condemned(&mut self) -> Vec<Condemned> {
        let _ = windlass_sys::eventfd::drain(self.shared.alarm.as_fd());
        let mut condemned: Vec<_> = self.condemned.try_iter().collect();
        condemned.retain(|dead| self.attachment(dead.member) == Some(dead.attachment));
        condemned
    }

    /// The attachment that a member has.
    fn attachment(&self, member: u16) -> Option<u64> {
        let member = self.members.get(member as usize)?.as_ref();
        member.map(|member| member.attachment)
    }

    /// Makes a bridge and returns its number.
    pub fn add_bridge(&mut self, tuning: BridgeTuning, limits: Limits) -> u16 {
        let writer = self.new_table(limits);
        let fdb = writer.table().clone();
        let index = vacant(&mut self.bridges);
        self.give_home(index, writer);
        self.bridges[index as usize] = Some(DraftBridge {
            tuning,
            fdb,
            groups: None,
            holders: BTreeMap::new(),
        });
        self.publish_batch();
        index
    }

    fn home(&self, bridge: u16) -> &WorkerHandle {
        &self.workers[usize::from(self.placement.home(bridge))]
    }

    /// Changes a bridge, and gives it a table that was filled before, if there is one: both at once, with the batch if one
    /// is open.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`]: nothing has changed.
    pub fn set_bridge(
        &mut self,
        bridge: u16,
        tuning: BridgeTuning,
        table: Option<FdbWriter<QsbrGrace>>,
    ) -> Result<(), DataPlaneError> {
        let draft = self.draft_bridge(bridge)?;
        draft.tuning = tuning;
        if let Some(writer) = table {
            draft.fdb = writer.table().clone();
            self.give_home(bridge, writer);
            self.refilled.push(bridge);
        }
        if !self.is_batch {
            self.put_in_force();
        }
        Ok(())
    }

    /// Removes a bridge that has no members.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`]; [`DataPlaneError::Stuck`]: it is still there, to be removed again.
    pub fn remove_bridge(&mut self, bridge: u16) -> Result<(), DataPlaneError> {
        self.draft_bridge(bridge)?;
        let (done, left) = std_mpsc::sync_channel(1);
        let home = self.home(bridge);
        home.send(Command::Leave { bridge, done });
        self.answer(home, &left)?;
        self.bridges[bridge as usize] = None;
        self.overlays.forget_bridge(bridge);
        Arc::make_mut(&mut self.placement).forget_bridge(bridge);
        self.publish();
        Ok(())
    }

    /// Adds a member, with nobody connected yet, and returns its number (`conf.id` is ignored).
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`], [`DataPlaneError::TooManyMembers`].
    pub fn add_member(
        &mut self,
        bridge: u16,
        conf: MemberConf,
        tuning: MemberTuning,
    ) -> Result<u16, DataPlaneError> {
        self.draft_bridge(bridge)?;
        let id = self.insert_member(bridge, conf, tuning)?;
        self.publish_batch();
        Ok(id)
    }

    /// Gives a new member a number; to be published.
    fn insert_member(
        &mut self,
        bridge: u16,
        conf: MemberConf,
        tuning: MemberTuning,
    ) -> Result<u16, DataPlaneError> {
        let id = vacant(&mut self.members);
        if id as usize >= self.members_max {
            return Err(DataPlaneError::TooManyMembers(self.members_max));
        }
        let counters = (0..self.workers.len())
            .map(|_| Padded::new(MemberCounters::zero()))
            .collect();
        self.members[id as usize] = Some(DraftMember {
            bridge,
            conf,
            owner: None,
            shaping: Shaping::new(&tuning, self.workers.len()),
            guarding: Guarding::new(tuning.firewall.as_ref()),
            learner: None,
            is_heard: false,
            tuning,
            tx: None,
            attachment: 0,
            rings: 0,
            is_leaving: false,
            watches: Vec::new(),
            counters,
            accounts: self.workers.iter().map(|_| Account::default()).collect(),
        });
        Ok(id)
    }

    /// Changes a member's place on its bridge, but for its [`MemberConf::state`]. Learned addresses are kept; the caller flushes them
    /// where the change makes them wrong.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn set_member(
        &mut self,
        id: u16,
        conf: MemberConf,
        tuning: MemberTuning,
    ) -> Result<(), DataPlaneError> {
        let member = self.draft_member(id)?;
        member.shaping.set(&tuning);
        member.guarding.set(tuning.firewall.as_ref());
        (member.conf, member.tuning) = (states::kept(&member.conf, conf), tuning);
        self.publish_batch();
        Ok(())
    }

    /// The same for what it is on its bridge alone.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn set_conf(&mut self, id: u16, conf: MemberConf) -> Result<(), DataPlaneError> {
        let member = self.draft_member(id)?;
        member.conf = states::kept(&member.conf, conf);
        self.publish_batch();
        Ok(())
    }

    /// Gives a member to a user, or to nobody: frames of one user's members that wait share room.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn set_owner(&mut self, id: u16, owner: Option<u32>) -> Result<(), DataPlaneError> {
        self.draft_member(id)?.owner = owner;
        self.publish_batch();
        Ok(())
    }

    /// Gives a member other flows. Those that stay have counted what they have.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn set_flows(&mut self, id: u16, flows: Vec<FlowTuning>) -> Result<(), DataPlaneError> {
        let member = self.draft_member(id)?;
        member.tuning.flows = flows;
        member.shaping.set(&member.tuning);
        self.publish_batch();
        Ok(())
    }

    /// What a flow of a member has counted of what the member sends, and of what it gets.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn flow_totals(&self, id: u16, flow: u64) -> Result<[FlowTotals; 2], DataPlaneError> {
        let member = self.members.get(usize::from(id)).and_then(Option::as_ref);
        let member = member.ok_or(DataPlaneError::NoMember(id))?;
        Ok(member.shaping.totals(flow).unwrap_or_default())
    }

    /// What the rules of a member that count have counted, list by list and in their order.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn counted(&self, id: u16) -> Result<Vec<Counted>, DataPlaneError> {
        let member = self.members.get(usize::from(id)).and_then(Option::as_ref);
        let member = member.ok_or(DataPlaneError::NoMember(id))?;
        let policy = member.guarding.policy.as_ref();
        Ok(policy.map_or_else(Vec::new, |policy| policy.counted().collect()))
    }

    /// Removes members with their rings, their learned addresses and their fixed entries, in one publication, which also
    /// ends what [`DataPlane::begin_batch`] held back. Gives what each has counted, in their order. No number is another
    /// member's before the table has forgotten it.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`]: nothing has changed. [`DataPlaneError::Stuck`]: they are out of the topology, and are to be
    /// removed again.
    pub fn remove_members(&mut self, ids: &[u16]) -> Result<Vec<MemberTotals>, DataPlaneError> {
        let mut on: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for id in ids {
            let bridge = self.draft_member(*id)?.bridge;
            on.entry(bridge).or_default().push(*id);
        }
        let places = self.overlays.leave(ids);
        for (bridge, place) in &places {
            on.entry(*bridge).or_default().push(*place);
        }
        let mut senders = Vec::new();
        for id in ids {
            let member = self.draft_member(*id)?;
            (member.is_leaving, member.attachment, member.rings) = (true, 0, 0);
            senders.push((*id, member.tx.take()));
        }
        self.is_batch = false;
        self.take_back(senders)?;
        self.forget_told();
        self.questions.forget(ids);
        for (bridge, ids) in on {
            self.ask_fdb(bridge, move |writer, _| {
                ids.iter().for_each(|id| writer.flush_member(*id, true));
            })?;
        }
        let totals = ids.iter().map(|id| self.totals(*id)).collect();
        for id in ids {
            self.members[*id as usize] = None;
            Arc::make_mut(&mut self.placement).forget(*id);
        }
        self.overlays
            .forget(ids, places.iter().map(|(_, place)| *place));
        self.settle_vteps()?;
        totals
    }

    /// Gives a member's rings to the workers, as [`Placement`] says.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn attach(&mut self, id: u16, rings: Rings) -> Result<(), DataPlaneError> {
        self.attachments += 1;
        let attachment = self.attachments;
        let member = self.draft_member(id)?;
        member.tx = Some(rings.tx);
        member.attachment = attachment;
        member.rings = rings.rx.len() as u16;
        // What waited for the former one is gone, and has used up nothing.
        member.shaping.renew();
        let counters = member.counters.clone();
        Arc::make_mut(&mut self.placement).place(id, rings.rx.len());
        let ports = (0..).zip(rings.rx).zip(self.placement.rings(id));
        for ((number, port), worker) in ports {
            let ring = RxRing::new(port, (id, number), attachment, counters.clone());
            let adopt = Command::Adopt(Box::new(ring));
            self.adopts.push((usize::from(*worker), adopt));
        }
        self.publish_batch();
        Ok(())
    }

    /// Takes a member's rings from the workers. When it returns without an error, nobody uses them.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`]. [`DataPlaneError::Stuck`]: a worker is late and may use the rings, until
    /// [`DataPlane::take_detached`] names the member.
    pub fn detach(&mut self, id: u16) -> Result<(), DataPlaneError> {
        let member = self.draft_member(id)?;
        let sender = member.tx.take();
        (member.attachment, member.rings) = (0, 0);
        self.take_back(vec![(id, sender)])
    }

    /// Publishes the draft, in which these members have no rings, and takes the rings from the workers.
    fn take_back(
        &mut self,
        members: Vec<(u16, Option<Arc<dyn TxPort>>)>,
    ) -> Result<(), DataPlaneError> {
        self.publish();
        let ids: Vec<u16> = members.iter().map(|(id, _)| *id).collect();
        let mut drain = Drain::new(self.shared.domain.start_grace());
        for (id, sender) in members {
            if let Some(Some(member)) = self.members.get(usize::from(id)) {
                let its = (&member.counters, member.watches.as_slice());
                drain.take(id, its, sender, &self.workers);
            }
        }
        self.drains.push(drain);
        if !self.drain() {
            return Err(DataPlaneError::Stuck);
        }
        self.detached.retain(|detached| !ids.contains(detached));
        Ok(())
    }

    /// Whether workers may still have something that was taken from them. While they may, [`DataPlane::take_detached`] is to be
    /// called now and then.
    pub fn is_draining(&self) -> bool {
        !self.drains.is_empty()
    }

    /// Members whose rings a late worker has let go since the last call.
    pub fn take_detached(&mut self) -> Vec<u16> {
        self.advance();
        std::mem::take(&mut self.detached)
    }

    /// Waits until workers have nothing any more that was taken from them; whether it is so. Once a worker was late, nobody
    /// waits for it before it has let go.
    fn drain(&mut self) -> bool {
        let wait = self.wait;
        let is_over = match self.is_late {
            true => self.advance(),
            false => wait.until(GRACE_MAX, &mut || self.advance()),
        };
        self.is_late = !is_over;
        is_over
    }

    /// Lets drains and mailboxes go on as far as is possible without waiting; whether all drains are over.
    fn advance(&mut self) -> bool {
        for worker in &self.workers {
            worker.flush();
        }
        let domain = &self.shared.domain;
        let detached = &mut self.detached;
        self.drains.retain_mut(|drain| {
            let is_over = drain.advance(domain);
            if is_over {
                detached.append(&mut drain.detached);
            }
            !is_over
        });
        self.limbo.reclaim(domain);
        let is_over = self.drains.is_empty();
        self.is_late &= !is_over;
        is_over
    }

    /// A worker's answer.
    fn answer<T>(
        &self,
        worker: &WorkerHandle,
        from: &std_mpsc::Receiver<T>,
    ) -> Result<T, DataPlaneError> {
        let mut answer = Err(TryRecvError::Empty);
        self.wait.until(GRACE_MAX, &mut || {
            worker.flush();
            answer = from.try_recv();
            !matches!(answer, Err(TryRecvError::Empty))
        });
        answer.map_err(|_| DataPlaneError::Stuck)
    }

    /// A member's counters, added up.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn totals(&self, id: u16) -> Result<MemberTotals, DataPlaneError> {
        let member = self.members.get(id as usize).and_then(Option::as_ref);
        let mut totals = MemberTotals::default();
        for block in member.ok_or(DataPlaneError::NoMember(id))?.counters.iter() {
            totals.add(block);
        }
        Ok(totals)
    }

    /// What was dropped of a member, by reason.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn drops(&self, id: u16) -> Result<[u64; windlass_stats::Drop::COUNT], DataPlaneError> {
        let member = self.members.get(id as usize).and_then(Option::as_ref);
        let mut drops = [0; windlass_stats::Drop::COUNT];
        for block in member.ok_or(DataPlaneError::NoMember(id))?.counters.iter() {
            for (sum, n) in drops.iter_mut().zip(&block.drops) {
                *sum += n.get();
            }
        }
        Ok(drops)
    }

    /// For how long from `now` on a member rests, because access to its memory took too much time; none if it does not.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn rests(&self, id: u16, now: Tick) -> Result<Option<Duration>, DataPlaneError> {
        let member = self.members.get(id as usize).and_then(Option::as_ref);
        let accounts = member.ok_or(DataPlaneError::NoMember(id))?.accounts.iter();
        let until = accounts.map(Account::rests_until).max();
        let left = until.map_or(0, |until| until.since(now));
        Ok((left > 0).then(|| Duration::from_nanos(left)))
    }

    /// Each worker's counters.
    pub fn workers(&self) -> Vec<WorkerTotals> {
        self.shared.counters.iter().map(|c| c.totals()).collect()
    }

    /// The worker that holds a grace period open for longer than `patience`, if one does.
    pub fn stuck(&self, patience: Duration) -> Option<usize> {
        let domain = &self.shared.domain;
        let grace = domain.start_grace();
        let mut laggard = None;
        self.wait.until(patience, &mut || {
            laggard = domain.laggard(&grace);
            laggard.is_none()
        });
        laggard
    }

    /// Whether every worker reaches a quiescent point within [`GRACE_MAX`]. If not, nobody waits for the late one again before it
    /// has let go.
    pub fn is_prompt(&mut self) -> bool {
        let is_prompt = self.stuck(GRACE_MAX).is_none();
        self.is_late |= !is_prompt;
        is_prompt
    }

    fn draft_bridge(&mut self, bridge: u16) -> Result<&mut DraftBridge, DataPlaneError> {
        let found = self
            .bridges
            .get_mut(bridge as usize)
            .and_then(Option::as_mut);
        found.ok_or(DataPlaneError::NoBridge(bridge))
    }

    fn bridge_of(&self, bridge: u16) -> Result<&DraftBridge, DataPlaneError> {
        let found = self.bridges.get(bridge as usize).and_then(Option::as_ref);
        found.ok_or(DataPlaneError::NoBridge(bridge))
    }

    fn draft_member(&mut self, id: u16) -> Result<&mut DraftMember, DataPlaneError> {
        let found = self.members.get_mut(id as usize).and_then(Option::as_mut);
        found.ok_or(DataPlaneError::NoMember(id))
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.send(Command::Stop);
        }
        // A late worker has a full mailbox: the rest follows as it reads.
        let is_told = |worker: &WorkerHandle| worker.flush() || worker.has_ended();
        let mut are_told = || self.workers.iter().all(is_told);
        while !self.wait.until(GRACE_MAX, &mut are_told) {}
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
        self.limbo.reclaim(&self.shared.domain);
    }
}

/// The present on the workers' clock.
pub fn now() -> Tick {
    Tick(Clock::get().ns(tsc::now()))
}

/// The first free number, made room for.
fn vacant<T>(slots: &mut Vec<Option<T>>) -> u16 {
    let free = slots.iter().position(Option::is_none);
    free.unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    }) as u16
}
