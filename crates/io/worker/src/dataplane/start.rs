//! How a data plane begins: what workers share, the queues between them, their threads.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;

use windlass_attach::port::Lane;
use windlass_stats::Padded;
use windlass_sync::qsbr::{Domain, Limbo, Published};
use windlass_sync::tsc::{self, Clock};
use windlass_sync::{mpsc, spsc};

use super::handle::WorkerHandle;
use super::local::Firewalls;
use super::overlays::Overlays;
use super::questions::Asked;
use super::{DataPlane, DataPlaneError};
use crate::bell::Bell;
use crate::command::Condemned;
use crate::counters::WorkerCounters;
use crate::local::{self, Notice};
use crate::meter::{Sense, Used};
use crate::placement::Placement;
use crate::run::run;
use crate::wait::{Asleep, Wait};
use crate::worker::{Post, Posts, Shared, Worker, WorkerInit};

/// Commands in a worker's mailbox at most; what is beyond waits outside.
const MAILBOX: usize = 1024;
/// Sightings between two workers at most; a full queue loses sightings, never frames.
const POSTS: usize = 4096;

/// How to run.
#[derive(Clone, Debug)]
pub struct DataPlaneOptions {
    /// One worker each; pinned to the CPU where one is given.
    pub workers: Vec<Option<usize>>,
    /// Members in all.
    pub members_max: usize,
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

    /// A data plane whose workers are made but do not run yet. It waits for them by `wait`.
    pub(crate) fn wire(
        options: &DataPlaneOptions,
        wait: &'static dyn Wait,
        mut random: impl FnMut() -> u64,
    ) -> Result<(DataPlane, Vec<WorkerInit>), DataPlaneError> {
        let n = options.workers.len().max(1);
        let start = |worker| move |errno| DataPlaneError::Start { worker, errno };
        let (condemn, condemned) = std_mpsc::channel();
        let shared = Arc::new(share(n, condemn).map_err(start(0))?);
        let bell = |worker| Bell::new().map(Arc::new).map_err(start(worker));
        let bells = (0..n).map(bell).collect::<Result<Vec<_>, _>>()?;
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
            firewalls: Firewalls::new(&shared.local),
            questions: Asked::new(&shared.local),
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
            relays: Arc::default(),
            wait,
            attachments: 0,
            is_batch: false,
            adopts: Vec::new(),
            refilled: Vec::new(),
            overlays: Overlays::default(),
            placement: Arc::new(Placement::new(n)),
            bypasses: Default::default(),
        };
        Ok((plane, inits))
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
        learned: Arc::new(Notice::new()?),
    })
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
