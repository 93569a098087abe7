//! The scheduler: who does something next, how time passes, and what must hold when all has come to rest.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_frame::Tick;
use windlass_stats::Drop;
use windlass_sync::tsc::Clock;
use windlass_sys::epoll::Events;

use super::model::{IP, Model, OTHER, Owner, RESERVED, Stage, Way};
use super::port::{Bytes, Notice};
use super::random::Random;
use crate::dataplane::{DataPlane, DataPlaneOptions};
use crate::meter::{Sense, Used};
use crate::wait::Wait;
use crate::worker::{Next, Worker};

/// How deep steps may lie in steps.
const DEPTH: usize = 3;
/// A step is cut by others' at one in so many places where that can happen.
const CUT_ONE_IN: usize = 24;
/// A world in which nothing has moved for so long, though workers look again and again, rests.
const REST_NS: u64 = 5_000_000;
/// Steps in which a world must come to rest.
const STEPS_TO_REST: usize = 200_000;

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// A worker, and what its thread would know.
struct SimWorker {
    worker: Worker,
    next: Next,
}

/// Everything that a simulation consists of.
pub(super) struct World {
    pub(super) random: RefCell<Random>,
    pub(super) now: Cell<u64>,
    /// Page faults so far.
    faults: Cell<u64>,
    /// Time in which workers had no core.
    waited: Cell<u64>,
    workers: Vec<RefCell<SimWorker>>,
    /// Until when each worker is not given a core.
    late: Vec<Cell<u64>>,
    events: RefCell<Events>,
    depth: Cell<usize>,
    /// Peers send nothing and nothing is configured.
    is_quiet: Cell<bool>,
    /// Bridges have many members.
    pub(super) is_crowded: Cell<bool>,
    /// The control thread moves rings and tables often.
    pub(super) is_restless: Cell<bool>,
    /// None while the control thread is busy.
    pub(super) plane: RefCell<Option<DataPlane>>,
    pub(super) model: RefCell<Model>,
    /// Each bridge number with which of all bridges it is.
    pub(super) bridges: RefCell<Vec<(u16, usize)>>,
    pub(super) bridges_made: Cell<usize>,
    /// The number of a bridge that is being removed.
    pub(super) leaving: Cell<Option<u16>>,
    pub(super) pipes_made: Cell<u64>,
}

fn world() -> Rc<World> {
    WORLD.with_borrow(|world| world.clone().expect("a simulation runs"))
}

/// True once in `n` times.
pub(super) fn chance(n: usize) -> bool {
    world().random.borrow_mut().once_in(n)
}

/// A place where whoever runs may be cut by others.
pub(super) fn preempt() {
    let world = world();
    if world.depth.get() < DEPTH && chance(CUT_ONE_IN) {
        world.depth.set(world.depth.get() + 1);
        world.step();
        world.depth.set(world.depth.get() - 1);
    }
}

/// A worker fetched a frame in a visit that began then.
pub(super) fn accept(number: u64, now: u64) {
    world().model.borrow_mut().fetch(number, now);
}

/// Somebody touches a page that is not there, and waits for it. No time is no hole.
pub(super) fn fault(ns: u64) {
    if ns != 0 {
        let world = world();
        world.pass(ns);
        world.faults.set(world.faults.get() + 1);
    }
}

/// A worker has no core for so long.
pub(super) fn lose_core(ns: u64) {
    let world = world();
    world.pass(ns);
    world.waited.set(world.waited.get() + ns);
}

/// What the worker has used.
fn sense() -> Sense {
    Sense {
        now_ns: Box::new(|| world().now.get()),
        used: Box::new(|| Used {
            faults: world().faults.get(),
            waited_ns: world().waited.get(),
        }),
    }
}

/// A worker gave a frame to an owner.
pub(super) fn receive(to: usize, number: u64, way: Way) {
    world().model.borrow_mut().deliver(to, number, way);
}

/// While the control thread waits, everybody else goes on.
struct Steps;

impl Wait for Steps {
    fn until(&self, patience: Duration, is_done: &mut dyn FnMut() -> bool) -> bool {
        let world = world();
        let start = world.now.get();
        let mut looks = 0;
        while !is_done() {
            let waited = Duration::from_nanos(world.now.get() - start);
            if waited >= patience {
                return false;
            }
            world.step();
            // A worker that cannot answer is not waited for step by step.
            looks += 1;
            world.pass(looks * looks * 100);
        }
        true
    }
}

impl World {
    /// A world with this many workers and member numbers. It is everybody's in this thread, until [`World::end`].
    pub(super) fn start(seed: u64, workers: usize, members_max: usize) -> Rc<World> {
        let mut random = Random::new(seed);
        let options = DataPlaneOptions {
            workers: vec![None; workers],
            members_max,
        };
        let (plane, inits) =
            DataPlane::wire(&options, &Steps, || random.next()).expect("a data plane");
        let clock = Clock::with_hz(1_000_000_000);
        let place = |init| {
            let worker = Worker::new(init, clock, sense()).expect("a worker");
            let next = Next::Look;
            RefCell::new(SimWorker { worker, next })
        };
        let world = Rc::new(World {
            workers: inits.into_iter().map(place).collect(),
            late: vec![Cell::new(0); workers],
            random: RefCell::new(random),
            now: Cell::new(REST_NS),
            faults: Cell::new(0),
            waited: Cell::new(0),
            events: RefCell::default(),
            depth: Cell::new(0),
            is_quiet: Cell::new(false),
            is_crowded: Cell::new(false),
            is_restless: Cell::new(false),
            plane: RefCell::new(Some(plane)),
            model: RefCell::default(),
            bridges: RefCell::default(),
            bridges_made: Cell::new(0),
            leaving: Cell::new(None),
            pipes_made: Cell::new(0),
        });
        WORLD.set(Some(world.clone()));
        world
    }

    /// After a failure: what is left of the world is not taken apart.
    pub(super) fn abandon() {
        std::mem::forget(WORLD.take());
    }

    /// Ends it, when all rests.
    pub(super) fn end() {
        WORLD.set(None);
    }

    pub(super) fn below(&self, n: usize) -> usize {
        self.random.borrow_mut().below(n)
    }

    /// A worker gets no core for so long.
    pub(super) fn hold_back(&self, worker: usize, ns: u64) {
        self.late[worker].set(self.now.get() + ns);
    }

    fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }

    /// The time as a worker reads it: it has passed, and others may have gone on.
    fn time(&self) -> u64 {
        self.pass(20 + self.below(400) as u64);
        preempt();
        self.now.get()
    }

    /// Somebody does something. False if there was nothing to do.
    pub(super) fn step(self: &Rc<World>) -> bool {
        self.pass(50);
        match self.below(32) {
            0..16 => self.work(self.below(self.workers.len())),
            16..22 => self.send(),
            22..25 => self.kick_one(),
            25..30 => self.fetch_one(),
            30 => self.hear(),
            _ if self.is_quiet.get() => false,
            _ if !self.is_restless.get() && self.below(2) != 0 => false,
            _ => self.configure(),
        }
    }

    /// One round of a worker, if it is not in one, is not kept from its core, and does not sleep.
    pub(super) fn work(&self, at: usize) -> bool {
        self.work_seen(at, || {})
    }

    /// The same; `see` is called whenever the worker reads the time, as it does after each visit.
    pub(super) fn work_seen(&self, at: usize, see: impl Fn()) -> bool {
        if self.late[at].get() > self.now.get() {
            return false;
        }
        let Ok(mut place) = self.workers[at].try_borrow_mut() else {
            return false;
        };
        let mut tokens = Vec::new();
        if place.next != Next::Poll {
            let mut events = self.events.borrow_mut();
            let epoll = &place.worker.epoll;
            epoll
                .wait(&mut events, Some(Duration::ZERO))
                .expect("events");
            tokens.extend(events.iter().map(|ready| ready.token));
        }
        match place.next {
            Next::End => return false,
            Next::Poll | Next::Look => {}
            Next::Sleep(until) => {
                let is_over = until.is_some_and(|until| until <= Tick(self.now.get()));
                if tokens.is_empty() && !is_over {
                    return false;
                }
            }
        }
        let mut time = || {
            see();
            self.time()
        };
        place.next = place.worker.round(&mut time, tokens.into_iter());
        assert!(!place.worker.has_corked(), "frames outlive their round");
        drop(place);
        if !self.is_quiet.get() && self.random.borrow_mut().once_in(200) {
            let exponent = self.below(24) as u32 + 10;
            self.late[at].set(self.now.get() + (1 << exponent));
        }
        true
    }

    /// A peer puts frames into a ring.
    fn send(&self) -> bool {
        let mut model = self.model.borrow_mut();
        let up = model.all(|stage| matches!(stage, Stage::Up | Stage::Leaving));
        if self.is_quiet.get() || up.is_empty() {
            return false;
        }
        let from = up[self.below(up.len())];
        let owner = &model.owners[from];
        let pipe = owner.pipes[self.below(owner.pipes.len())].clone();
        let bridge = owner.bridge;
        let src = match owner.may_use_others && self.below(2) == 0 {
            true => foreign(bridge, self.below(6)),
            false => owner.mac,
        };
        let others = model.all(|stage| stage != Stage::Gone);
        let dst = match self.below(16) {
            0..2 => (1 << 48) - 1,
            2 => RESERVED,
            3..8 => foreign(bridge, self.below(6)),
            _ => model.owners[others[self.below(others.len())]].mac,
        };
        let kind = [IP, OTHER][self.below(2)];
        let most = if self.below(8) == 0 { 64 } else { 4 };
        let frames: Vec<Bytes> = (0..=self.below(most))
            .map(|_| {
                let number = model.make(from, pipe.number, dst, src, kind);
                Bytes {
                    dst,
                    src,
                    kind,
                    number,
                }
            })
            .collect();
        drop(model);
        let put = pipe.push(&frames);
        if self.below(2) == 0 {
            pipe.kick();
        }
        if self.below(400) == 0 {
            pipe.kill();
        }
        put
    }

    /// A peer notifies late.
    fn kick_one(&self) -> bool {
        let model = self.model.borrow();
        let pipes = model.owners.iter().flat_map(|owner| &owner.pipes);
        let owing: Vec<_> = pipes.filter(|pipe| pipe.owes_kick()).collect();
        !owing.is_empty() && owing[self.below(owing.len())].kick()
    }

    /// The daemon takes what bridges have for it, if it was told. True if it was.
    fn hear(&self) -> bool {
        let Some(mut plane) = self.plane.take() else {
            return false;
        };
        let mut alarm = [PollFd::from_borrowed_fd(plane.local_alarm(), PollFlags::IN)];
        let is_told = poll(&mut alarm, Some(&Timespec::default())) == Ok(1);
        if is_told {
            for frame in plane.take_local() {
                let number = frame.bytes().get(14..).and_then(|b| b.first_chunk::<8>());
                let number = u64::from_le_bytes(*number.expect("a frame of ours"));
                self.model.borrow_mut().hear(number, frame.member);
            }
        }
        self.plane.replace(Some(plane));
        is_told
    }

    /// A peer takes frames out.
    fn fetch_one(&self) -> bool {
        let model = self.model.borrow();
        let sinks = model.owners.iter().filter_map(|owner| owner.sink.as_ref());
        let sinks: Vec<_> = sinks.collect();
        !sinks.is_empty() && sinks[self.below(sinks.len())].drain(16)
    }

    /// Lets everything come to rest: what is owed is paid, what is wanted is done, and no time is waited for in vain.
    pub(super) fn run_until_quiet(self: &Rc<World>) {
        self.is_quiet.set(true);
        self.late.iter().for_each(|late| late.set(0));
        let (mut seen, mut since) = ((0, 0), self.now.get());
        for _ in 0..STEPS_TO_REST {
            let model = self.model.borrow();
            let mut has_moved = false;
            for owner in &model.owners {
                owner.pipes.iter().for_each(|p| has_moved |= p.kick());
                has_moved |= owner.sink.as_ref().is_some_and(|s| s.drain(usize::MAX));
            }
            // A frame that has waited and goes to nobody is no event.
            let done = (model.events, self.held());
            drop(model);
            if has_moved || done != seen {
                (seen, since) = (done, self.now.get());
            }
            has_moved |= self.hear();
            let has_worked = (0..self.workers.len()).fold(false, |any, at| self.work(at) | any);
            if self.now.get() - since > REST_NS && self.is_asleep() {
                return;
            }
            if !has_worked && !has_moved {
                match self.next_due() {
                    Some(due) if due - since <= REST_NS => self.now.set(due.max(self.now.get())),
                    _ => return,
                }
            }
        }
        panic!("it does not come to rest");
    }

    /// Frames in the workers' private memory, while the control thread rests.
    pub(super) fn held(&self) -> u64 {
        let plane = self.plane.borrow();
        let workers = plane.iter().flat_map(|plane| plane.workers());
        workers.map(|worker| worker.held).sum()
    }

    /// Peers send again.
    pub(super) fn go_on(&self) {
        self.is_quiet.set(false);
    }

    fn is_asleep(&self) -> bool {
        let workers = self.workers.iter();
        workers
            .map(|place| place.borrow().next)
            .all(|next| matches!(next, Next::Sleep(_)))
    }

    /// When the first worker wakes by itself.
    fn next_due(&self) -> Option<u64> {
        let workers = self.workers.iter();
        let due = workers.filter_map(|place| match place.borrow().next {
            Next::Sleep(until) => until.map(|until| until.0),
            _ => None,
        });
        due.min()
    }

    /// What must hold when all rests.
    pub(super) fn check(&self) {
        assert!(self.is_asleep(), "a worker is awake though all rests");
        for place in &self.workers {
            let has_posts = place.borrow().worker.has_posts();
            assert!(!has_posts, "a worker sleeps before addresses to be learned");
        }
        let plane = self.plane.borrow();
        let plane = plane.as_ref().expect("the control thread rests");
        let model = self.model.borrow();
        for (at, owner) in model.owners.iter().enumerate() {
            if matches!(owner.stage, Stage::Gone) {
                continue;
            }
            for pipe in &owner.pipes {
                let (left, notice) = (pipe.left(), pipe.notice);
                let is_done = left == 0 || pipe.is_dead() || owner.stage != Stage::Up;
                assert!(is_done, "owner {at}: {left} frames wait, {notice:?}");
            }
            let sink = owner.sink.as_ref().filter(|_| owner.stage == Stage::Up);
            let left = sink.map_or(0, |sink| sink.left());
            assert_eq!(left, 0, "owner {at} sleeps before frames");
            let given = owner.given + owner.sink.as_ref().map_or(0, |sink| sink.taken());
            let totals = plane.totals(owner.number).expect("a member");
            assert!(totals.conserved(), "owner {at}: {totals:?}");
            let held = (totals.ingress.held, totals.egress.held);
            assert_eq!(
                held,
                (0, 0),
                "owner {at}: frames are held, {:?}",
                owner.stage
            );
            assert_eq!(totals.egress.frames, given, "given to owner {at}");
            // One that is being removed gets none.
            let own = totals.egress.own_frames;
            let is_told = own == owner.own || owner.stage == Stage::Going;
            assert!(is_told, "{own} of {} sent to owner {at}", owner.own);
            assert_eq!(totals.ingress.frames, owner.fetched, "fetched of {at}");
            let (flooded, copies) = (totals.ingress.flooded, totals.ingress.copies);
            assert!(flooded > 0 || copies == 0, "owner {at}: copies of nothing");
        }
        let up = model.owners.iter().filter(|o| o.stage == Stage::Up);
        let workers: Vec<u16> = up.flat_map(|o| plane.rings(o.number)).copied().collect();
        for (at, worker) in plane.workers().into_iter().enumerate() {
            assert_eq!(worker.held, 0, "frames are held");
            let rings = workers.iter().filter(|place| usize::from(**place) == at);
            assert_eq!(worker.rings, rings.count() as u64, "rings of worker {at}");
        }
        let local = |owner: &Owner| match owner.stage {
            Stage::Gone => owner.local,
            _ => plane.totals(owner.number).expect("a member").ingress.local,
        };
        let local: u64 = model.owners.iter().map(local).sum();
        assert_eq!(
            local,
            model.heard + plane.local_stale(),
            "frames that the daemon was not told of"
        );
    }

    /// What must hold of the tables when all rests. The control thread asks for them.
    pub(super) fn check_tables(&self) {
        let plane = self.plane.take().expect("the control thread rests");
        let lost: u64 = plane.workers().iter().map(|w| w.sightings_lost).sum();
        let bridges = self.bridges.borrow().clone();
        for (number, bridge) in bridges {
            let entries = plane.ask_fdb(number, |writer, now| {
                let mut entries = Vec::new();
                writer.table().for_each(now, |entry| entries.push(entry));
                (Arc::as_ptr(writer.table()).addr(), entries)
            });
            let (written, entries) = entries.expect("the home answers");
            let table = std::ptr::from_ref(plane.fdb_table(number).expect("a bridge"));
            assert_eq!(
                written,
                table.addr(),
                "the writer of a table has another one"
            );
            let lost = lost + plane.fdb_counts(number).expect("a bridge").waiting;
            // What waited and was dropped teaches nothing.
            let is_unsure = |member| {
                let drops = plane.totals(member).expect("a member").drops;
                drops[Drop::RxQueueFull as usize] + drops[Drop::NotReady as usize] > 0
            };
            let model = self.model.borrow();
            model.check_table(bridge, &entries, lost, is_unsure);
        }
        self.plane.replace(Some(plane));
    }

    /// How a peer of this world notifies.
    pub(super) fn notice(&self) -> Notice {
        match self.below(4) {
            0 => Notice::Missed,
            1 => Notice::None,
            _ => Notice::Kick,
        }
    }
}

/// An address that owners of a bridge may have behind them.
fn foreign(bridge: usize, n: usize) -> u64 {
    u64::from_le_bytes([0x06, 0, 0, bridge as u8, 0, n as u8, 0, 0])
}
