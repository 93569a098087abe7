//! The control thread's side: makes topologies, moves ports between itself and the workers.
//!
//! # Model
//! A [`DataPlane`] is owned by one thread. It keeps a draft of every bridge and member; each call
//! changes the draft and publishes a new [`Topo`]. Workers pick it up at their next visit.
//!
//! | call | what happens before it returns |
//! | --- | --- |
//! | [`DataPlane::attach`] | the topology with the transmit half is published, then receive halves are mailed; at the end of the batch if one is open |
//! | [`DataPlane::detach`] | no worker has the rings or can send to them any more (a grace period), or a worker is late |
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
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self as std_mpsc, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

mod drain;
mod handle;
mod moves;
mod rest;
mod states;
#[cfg(test)]
mod tests;

use thiserror::Error;
use windlass_attach::endpoint::Rings;
use windlass_attach::port::{Lane, TxPort};
use windlass_bridge::fdb::{Entry, Fdb, FdbCounts, FdbWriter, Limits};
use windlass_bridge::forward::{Bridge, BridgeConf};
use windlass_bridge::member::MemberConf;
use windlass_frame::{Tick, TxId};
use windlass_nic::{EgressStage, IngressStage, MaxBw, Restricted};
use windlass_stats::{MemberCounters, MemberTotals, Padded};
use windlass_sync::qsbr::{Domain, Limbo, Published};
use windlass_sync::tsc::{self, Clock};
use windlass_sync::{mpsc, spsc};

use crate::bell::Bell;
use crate::command::{Command, Condemned};
use crate::counters::{WorkerCounters, WorkerTotals};
use crate::grace::QsbrGrace;
use crate::local::{self, LocalFrame, Notice};
use crate::meter::{Account, Sense, Used};
use crate::placement::Placement;
use crate::ring::{RxRing, Spin};
use crate::run::run;
use crate::topo::{Member, Topo};
use crate::wait::{Asleep, Wait};
use crate::worker::{Post, Posts, Shared, Worker, WorkerInit};
use drain::Drain;
use handle::WorkerHandle;

/// How long this thread waits for the workers at a time.
pub const GRACE_MAX: Duration = Duration::from_secs(5);
/// Commands in a worker's mailbox at most; what is beyond waits outside.
const MAILBOX: usize = 1024;
/// Frames of the daemon that wait for workers at most.
pub const SENDS: usize = 64;
/// Sightings between two workers at most; a full queue loses sightings, never frames.
const POSTS: usize = 4096;

/// What cannot be done.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    /// The kernel refused something at the start.
    #[error("start of worker {worker}: {errno}")]
    Start {
        /// Which worker.
        worker: usize,
        /// Why.
        errno: rustix::io::Errno,
    },
    /// All numbers are taken.
    #[error("no more than {0} members on this daemon")]
    TooManyMembers(usize),
    /// There is no such bridge.
    #[error("no bridge with number {0}")]
    NoBridge(u16),
    /// There is no such member.
    #[error("no member with number {0}")]
    NoMember(u16),
    /// More frames of the daemon wait than may.
    #[error("{SENDS} frames wait to be sent")]
    Busy,
    /// No bridge sends such a frame.
    #[error("a frame has 14 to {max} bytes, not {0}", max = local::BYTES_MAX)]
    FrameSize(usize),
    /// There is no such worker.
    #[error("there is no worker {worker}: they are 0 to {last}")]
    NoWorker {
        /// The number.
        worker: u16,
        /// The last one there is.
        last: u16,
    },
    /// There is no such ring.
    #[error("there is no ring {ring}: there are {rings}")]
    NoRing {
        /// The number.
        ring: u16,
        /// Rings in use.
        rings: u16,
    },
    /// A worker has not given up what was to be moved.
    #[error("worker {0} could not give it up: try again")]
    NotMoved(u16),
    /// A worker does not answer.
    #[error("a worker did not reach a quiescent point within {} s", GRACE_MAX.as_secs())]
    Stuck,
}

/// How to run.
#[derive(Clone, Debug)]
pub struct DataPlaneOptions {
    /// One worker each; pinned to the CPU where one is given.
    pub workers: Vec<Option<usize>>,
    /// Members in all.
    pub members_max: usize,
}

/// What a member is besides its place on the bridge.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberTuning {
    /// It sends IPv4, IPv6 and ARP only.
    pub restricted: bool,
    /// Bits a second from it, and as many towards it; 0 is no limit.
    pub maxbw: u64,
    /// The least time between two notifications of the member, in nanoseconds; 0 is no limit.
    pub kick_gap_ns: u64,
    /// Polling before sleep.
    pub spin: Spin,
}

struct DraftMember {
    bridge: u16,
    conf: MemberConf,
    tuning: MemberTuning,
    /// The limits of `tuning.maxbw` from it and towards it: what they have counted survives other changes.
    maxbw: Option<[Arc<MaxBw>; 2]>,
    tx: Option<Arc<dyn TxPort>>,
    /// Which of all attachments it has; 0: none.
    attachment: u64,
    /// Its receive rings; 0: nobody is attached.
    rings: u16,
    /// It is being removed: no topology has it any more.
    is_leaving: bool,
    counters: Arc<[Padded<MemberCounters>]>,
    accounts: Arc<[Account]>,
}

impl DraftMember {
    /// What its frames pass before the bridge.
    fn ingress(&self) -> Box<[Arc<dyn IngressStage>]> {
        let restricted = self.tuning.restricted.then(|| Arc::new(Restricted) as _);
        let maxbw = self.maxbw.clone().map(|[from, _]| from as _);
        restricted.into_iter().chain(maxbw).collect()
    }

    /// What frames pass on their way to it.
    fn egress(&self) -> Box<[Arc<dyn EgressStage>]> {
        let maxbw = self.maxbw.clone().map(|[_, towards]| towards as _);
        maxbw.into_iter().collect()
    }
}

fn max_bandwidth(tuning: MemberTuning) -> Option<[Arc<MaxBw>; 2]> {
    let limit = || Arc::new(MaxBw::new(tuning.maxbw));
    (tuning.maxbw != 0).then(|| [limit(), limit()])
}

/// What a bridge is besides its table and its members.
#[derive(Clone, Copy, Debug, Default)]
pub struct BridgeTuning {
    /// Members are confined to their VLANs.
    pub filtering: bool,
    /// The bridge's own address as the low 48 bits of a little-endian load; 0: none.
    pub mac: u64,
}

struct DraftBridge {
    tuning: BridgeTuning,
    fdb: Arc<Fdb>,
}

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
    placement: Arc<Placement>,
}

impl DataPlane {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`DataPlaneError::Start`] when the kernel refuses what a worker needs.
    pub fn start(options: &DataPlaneOptions) -> Result<DataPlane, DataPlaneError> {
        let (mut plane, inits) = DataPlane::wire(options, &Asleep, random)?;
        for (worker, init) in inits.into_iter().enumerate() {
            let cpu = options.workers.get(worker).copied().flatten();
            let thread =
                spawn(init, cpu).map_err(|errno| DataPlaneError::Start { worker, errno })?;
            plane.workers[worker].thread = Some(thread);
        }
        Ok(plane)
    }

    /// A plane whose workers are made but do not run yet. It waits for them by `wait`.
    pub(crate) fn wire(
        options: &DataPlaneOptions,
        wait: &'static dyn Wait,
        mut random: impl FnMut() -> u64,
    ) -> Result<(DataPlane, Vec<WorkerInit>), DataPlaneError> {
        let n = options.workers.len().max(1);
        let start = |worker| move |errno| DataPlaneError::Start { worker, errno };
        let (condemn, condemned) = std_mpsc::channel();
        let shared = Arc::new(share(n, condemn).map_err(start(0))?);
        let mut bells = Vec::new();
        for worker in 0..n {
            bells.push(Arc::new(Bell::new().map_err(start(worker))?));
        }
        let (mailboxes, receivers): (Vec<_>, Vec<_>) =
            (0..n).map(|_| mpsc::channel(MAILBOX)).unzip();
        let (mut workers, mut inits, mut locals) = (Vec::new(), Vec::new(), Vec::new());
        let ends = post_queues(n).into_iter().zip(receivers);
        for (worker, ((posts, posted), mailbox)) in ends.enumerate() {
            let (local, for_us) = spsc::channel(local::FRAMES);
            locals.push(for_us);
            inits.push(WorkerInit {
                lane: Lane {
                    worker: worker as u16,
                    workers: n as u16,
                },
                shared: shared.clone(),
                mailbox,
                mailboxes: mailboxes.clone(),
                bells: bells.clone(),
                posts,
                posted,
                local,
                members_max: options.members_max,
                flow_keys: [random(), random()],
            });
            workers.push(WorkerHandle::new(
                mailboxes[worker].clone(),
                bells[worker].clone(),
            ));
        }
        let plane = DataPlane {
            shared,
            workers,
            members: Vec::new(),
            bridges: Vec::new(),
            built: Vec::new(),
            published: Vec::new(),
            limbo: Limbo::default(),
            drains: Vec::new(),
            is_late: false,
            detached: Vec::new(),
            members_max: options.members_max,
            condemned,
            local: locals,
            local_moved: Vec::new(),
            local_stale: 0,
            sends: Arc::default(),
            wait,
            attachments: 0,
            is_batch: false,
            adopts: Vec::new(),
            refilled: Vec::new(),
            placement: Arc::new(Placement::new(n)),
        };
        Ok((plane, inits))
    }

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

    /// Becomes readable when [`DataPlane::take_local`] has frames.
    pub fn local_alarm(&self) -> BorrowedFd<'_> {
        self.shared.local.as_fd()
    }

    /// Frames that bridges have for the daemon, of attachments that have not ended; those of one ring in order.
    pub fn take_local(&mut self) -> Vec<LocalFrame> {
        self.shared.local.hear();
        let mut frames = std::mem::take(&mut self.local_moved);
        self.local
            .iter_mut()
            .for_each(|queue| drain(queue, &mut frames));
        let taken = frames.len();
        frames.retain(|frame| self.attachment(frame.member) == Some(frame.attachment));
        self.local_stale += (taken - frames.len()) as u64;
        frames
    }

    /// Has a worker send a frame out of one member, as it is, tags included. It is counted at the member (`own_frames`), which
    /// gets or drops it as any other; of two, the first goes first.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`], [`DataPlaneError::FrameSize`]. [`DataPlaneError::Busy`]: [`SENDS`] wait already.
    pub fn send(&mut self, member: u16, frame: &[u8]) -> Result<(), DataPlaneError> {
        let bridge = self.draft_member(member)?.bridge;
        if !(14..=local::BYTES_MAX).contains(&frame.len()) {
            return Err(DataPlaneError::FrameSize(frame.len()));
        }
        if self.sends.load(Ordering::Relaxed) >= SENDS {
            return Err(DataPlaneError::Busy);
        }
        self.sends.fetch_add(1, Ordering::Relaxed);
        self.home(bridge).send(Command::Send {
            member,
            frame: frame.into(),
            waiting: self.sends.clone(),
        });
        Ok(())
    }

    /// Frames for the daemon that nobody got because their attachment had ended.
    pub fn local_stale(&self) -> u64 {
        self.local_stale
    }

    /// Takes what a worker has for the daemon, before anything is taken from the next worker of its ring.
    fn take_local_of(&mut self, worker: u16) {
        if let Some(queue) = self.local.get_mut(usize::from(worker)) {
            drain(queue, &mut self.local_moved);
        }
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
        self.bridges[index as usize] = Some(DraftBridge { tuning, fdb });
        self.publish_batch();
        index
    }

    /// A new, empty table, of no bridge yet: for [`DataPlane::set_bridge`].
    pub fn new_table(&self, limits: Limits) -> FdbWriter<QsbrGrace> {
        let limits = Limits {
            members: self.members_max as u32,
            ..limits
        };
        let (fdb, writer) = Fdb::new(limits, QsbrGrace::new(self.shared.domain.clone()));
        windlass_shm::advise_huge(fdb.memory());
        writer
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
            self.publish();
            self.forget_former();
        }
        Ok(())
    }

    /// What was still seen by the former rules is not to stay in new tables. A late worker's ages out.
    fn forget_former(&mut self) {
        let bridges = std::mem::take(&mut self.refilled);
        if bridges.is_empty() || self.is_draining() {
            return;
        }
        for bridge in bridges {
            // One that has been removed has nothing to forget.
            let _ = self.ask_fdb(bridge, |writer, _| writer.flush_all());
        }
    }

    /// Makes a worker the home of a bridge's table, in the place of a former one.
    fn give_home(&self, bridge: u16, writer: FdbWriter<QsbrGrace>) {
        self.home(bridge).send(Command::Home {
            bridge,
            writer: Box::new(writer),
        });
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
            tuning,
            maxbw: max_bandwidth(tuning),
            tx: None,
            attachment: 0,
            rings: 0,
            is_leaving: false,
            counters,
            accounts: self.workers.iter().map(|_| Account::default()).collect(),
        });
        self.publish_batch();
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
        if member.tuning.maxbw != tuning.maxbw {
            member.maxbw = max_bandwidth(tuning);
        }
        (member.conf, member.tuning) = (states::kept(&member.conf, conf), tuning);
        self.publish_batch();
        Ok(())
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
        let mut senders = Vec::new();
        for id in ids {
            let member = self.draft_member(*id)?;
            (member.is_leaving, member.attachment, member.rings) = (true, 0, 0);
            senders.push((*id, member.tx.take()));
        }
        self.is_batch = false;
        self.take_back(senders)?;
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
        member.maxbw = max_bandwidth(member.tuning);
        Arc::make_mut(&mut self.placement).place(id, rings.rx.len());
        let ports = (0..).zip(rings.rx).zip(self.placement.rings(id));
        for ((number, port), worker) in ports {
            let ring = RxRing::new(port, id, number, attachment);
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
            drain.take(id, sender, &self.workers);
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

    /// Has the table's writer do something, some time soon.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb(
        &self,
        bridge: u16,
        work: impl FnOnce(&mut FdbWriter<QsbrGrace>, Tick) + Send + 'static,
    ) -> Result<(), DataPlaneError> {
        self.bridge_of(bridge)?;
        self.home(bridge).send(Command::Fdb {
            bridge,
            work: Box::new(work),
        });
        Ok(())
    }

    /// Has the table's writer do something, and waits for the answer.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`], [`DataPlaneError::Stuck`].
    pub fn ask_fdb<T: Send + 'static>(
        &self,
        bridge: u16,
        work: impl FnOnce(&mut FdbWriter<QsbrGrace>, Tick) -> T + Send + 'static,
    ) -> Result<T, DataPlaneError> {
        let (done, answer) = std_mpsc::sync_channel(1);
        self.fdb(bridge, move |writer, now| {
            let _ = done.send(work(writer, now));
        })?;
        self.answer(self.home(bridge), &answer)
    }

    /// The entries of a bridge's table, read beside the workers.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb_entries(&self, bridge: u16) -> Result<Vec<Entry>, DataPlaneError> {
        let mut entries = Vec::new();
        self.bridge_of(bridge)?
            .fdb
            .for_each(now(), |entry| entries.push(entry));
        Ok(entries)
    }

    /// A bridge's table.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb_table(&self, bridge: u16) -> Result<&Fdb, DataPlaneError> {
        Ok(&self.bridge_of(bridge)?.fdb)
    }

    /// The table's own counters.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn fdb_counts(&self, bridge: u16) -> Result<FdbCounts, DataPlaneError> {
        Ok(self.bridge_of(bridge)?.fdb.counts())
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

    /// From now on, what is added, set or attached is published with the first change that takes something away, or by
    /// [`DataPlane::end_batch`].
    pub fn begin_batch(&mut self) {
        self.is_batch = true;
    }

    /// Publishes what has changed since [`DataPlane::begin_batch`]: once. When it returns, no frame is judged by what was before, or a
    /// worker is late ([`DataPlane::is_draining`]).
    pub fn end_batch(&mut self) {
        if std::mem::take(&mut self.is_batch) {
            let _ = self.take_back(Vec::new());
        }
        self.forget_former();
    }

    /// Publishes the draft, unless more is to come with it.
    fn publish_batch(&mut self) {
        if !self.is_batch {
            self.publish();
        }
    }

    /// Publishes the draft.
    fn publish(&mut self) {
        self.built = self
            .bridges
            .iter()
            .enumerate()
            .map(|(index, draft)| {
                let draft = draft.as_ref()?;
                let members = self.members.iter().enumerate().filter_map(|(id, m)| {
                    let here = |m: &&DraftMember| m.bridge as usize == index && !m.is_leaving;
                    let m = m.as_ref().filter(here)?;
                    Some(MemberConf {
                        id: TxId(id as u16),
                        ..m.conf.clone()
                    })
                });
                Some(Arc::new(Bridge::new(BridgeConf {
                    fdb: draft.fdb.clone(),
                    filtering: draft.tuning.filtering,
                    mac: draft.tuning.mac,
                    members: members.collect(),
                })))
            })
            .collect();
        self.published = self
            .members
            .iter()
            .map(|draft| {
                let m = draft.as_ref().filter(|m| !m.is_leaving)?;
                let several = m.tx.as_ref().is_some_and(|tx| tx.has_choice());
                let egress = m.egress();
                Some(Arc::new(Member {
                    bridge: m.bridge,
                    tx: m.tx.clone(),
                    several,
                    is_special: several || !egress.is_empty(),
                    ingress: m.ingress(),
                    egress,
                    kick_gap_ns: m.tuning.kick_gap_ns,
                    spin: m.tuning.spin,
                    attachment: m.attachment,
                    counters: m.counters.clone(),
                    accounts: m.accounts.clone(),
                }))
            })
            .collect();
        self.publish_built();
    }

    /// Publishes what was built last, and the placement.
    fn publish_built(&mut self) {
        let topo = Topo {
            members: self.published.clone(),
            bridges: self.built.clone(),
            placement: self.placement.clone(),
        };
        self.limbo.add(self.shared.topo.publish(Box::new(topo)));
        for (worker, adopt) in self.adopts.drain(..) {
            self.workers[worker].send(adopt);
        }
        self.limbo.reclaim(&self.shared.domain);
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

/// What `n` workers share with the control thread.
fn share(n: usize, condemned: std_mpsc::Sender<Condemned>) -> Result<Shared, rustix::io::Errno> {
    let domain = Domain::new(n);
    let counters = (0..n).map(|_| Padded::new(WorkerCounters::default()));
    Ok(Shared {
        topo: Published::new(&domain, Box::default()),
        domain,
        counters: counters.collect(),
        condemned,
        alarm: Arc::new(windlass_sys::eventfd::create()?),
        local: Arc::new(Notice::new()?),
    })
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

/// What a queue has, without what comes meanwhile: the notice tells of that.
fn drain(queue: &mut spsc::Receiver<LocalFrame>, frames: &mut Vec<LocalFrame>) {
    for _ in 0..queue.len() {
        frames.extend(queue.pop());
    }
}

/// A number that nobody knows.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Both ends of the queues in which workers post to each other, by worker.
fn post_queues(workers: usize) -> Vec<(Posts, Vec<spsc::Receiver<Post>>)> {
    let mut queues: Vec<_> = (0..workers).map(|_| (Vec::new(), Vec::new())).collect();
    for from in 0..workers {
        for to in 0..workers {
            if from == to {
                queues[from].0.push(None);
                continue;
            }
            let (send, receive) = spsc::channel(POSTS);
            queues[from].0.push(Some(send));
            queues[to].1.push(receive);
        }
    }
    queues
}

/// What the calling thread has used.
fn sense(clock: Clock) -> Sense {
    let reader = windlass_sys::usage::UsageReader::open();
    Sense {
        now_ns: Box::new(move || clock.ns(tsc::now())),
        used: Box::new(move || {
            let usage = reader.read();
            Used {
                faults: usage.faults,
                waited_ns: usage.waited_ns,
            }
        }),
    }
}

/// Starts a worker's thread and waits until the worker has what it needs.
fn spawn(init: WorkerInit, cpu: Option<usize>) -> Result<JoinHandle<()>, rustix::io::Errno> {
    let name = format!("worker-{}", init.lane.worker);
    let (ready, started) = std_mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let pinned = cpu.map_or(Ok(()), windlass_sys::affinity::pin_thread);
        let clock = Clock::get();
        match pinned.and_then(|()| Worker::new(init, clock, sense(clock))) {
            Ok(worker) => {
                let _ = ready.send(Ok(()));
                run(worker, clock);
            }
            Err(errno) => {
                let _ = ready.send(Err(errno));
            }
        }
    });
    let again = rustix::io::Errno::AGAIN;
    let thread = thread.map_err(|e| rustix::io::Errno::from_io_error(&e).unwrap_or(again))?;
    started.recv().unwrap_or(Err(again)).map(|()| thread)
}
