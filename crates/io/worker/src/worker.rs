//! One worker, a round at a time.
//!
//! # Model
//! [`Worker::round`] is all that a worker does. It is given the time and the descriptors that became ready, and answers what it waits
//! for ([`Next`]); it makes no system call that waits. `run` is the loop around it.
//!
//! ```text
//! round:  awake again: online
//!         events: rings with a notification join the run list
//!         visits: round robin over the run list, one burst each; at most 64 visits or 20 us; then what they have gathered is sent
//!         mailbox, posts of other workers, second looks, sweep, spilled frames, a part of the floods, notifications,
//!         tasks that are due, rings and tables that are to be another worker's
//!         quiescent point
//!         nothing left to do: says so, looks at the posts once more, offline
//! ```
//! Beside its rings a worker has tasks ([`crate::egress`]: a notification that was put off, a queue before a member; [`crate::ingress`]: a
//! queue before its bridge): each has the time when it is due,
//! and they stand in a heap. A bounded number of them is done in a round.
//!
//! The worker sleeps only when every ring is armed, no frame is spilled and no flood is unfinished, and until the first
//! task is due: there is no tick.

mod corked;
mod handover;
mod rest;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use windlass_attach::port::{Armed, Lane, More};
use windlass_bridge::fdb::{FdbWriter, Sighting};
use windlass_frame::{RxId, Tick, TxId};
use windlass_stats::{MemberCounters, Padded};
use windlass_sync::qsbr::{self, Published};
use windlass_sync::tsc::Clock;
use windlass_sync::{mpsc, pause, spsc};
use windlass_sys::epoll::{Epoll, Interest};

use crate::bell::Bell;
use crate::capture::{Watch, Way};
use crate::command::{Command, Condemned, Relayed};
use crate::context::Context;
use crate::counters::WorkerCounters;
use crate::dataplane::overlays::PLACES;
use crate::egress::{Egress, RELEASED};
use crate::flood::{COPIES_BUSY, COPIES_IDLE, Floods};
use crate::grace::QsbrGrace;
use crate::local::{LocalFrame, Notice};
use crate::meter::{LAP_NS, STALLS, Sense};
use crate::questions::{Answer, Question};
use crate::queue::Rule;
use crate::ring::{Rings, RxRing, Spin, State};
use crate::timers::Timers;
use crate::topo::Topo;
use crate::visit::Scratch;
pub(crate) use handover::{Handover, Outcome as Handed};

/// Visits between two looks at events, mailbox and timers.
const VISITS: usize = 64;
/// Time between two such looks.
const ROUND_NS: u64 = 20_000;
/// The pause after a round in which every ring was empty: a poll takes the peer's index line away from it.
const EMPTY_PAUSES: usize = 2;
/// Sightings of each other worker that are learned in a round.
const POSTS_TAKEN: usize = 256;
/// Rings that are looked at once more in a round.
const LOOKS: usize = 256;
/// An unsure ring is looked at again after this long asleep.
const UNSURE_SLEEP_NS: u64 = 1_000_000;
/// The time between two sweeps of the tables that live here, while there are any.
const SWEEP_NS: u64 = 1_000_000_000;
/// What is wrong with a ring whose port says so.
const INVALID: &str = "the peer's memory or ring became invalid";
/// Token of the bell; rings have tokens with a generation above 0.
const BELL: u64 = 0;

/// What a worker shares with the control thread.
pub(crate) struct Shared {
    pub(crate) topo: Published<Topo>,
    pub(crate) domain: qsbr::Domain,
    pub(crate) counters: Box<[Padded<WorkerCounters>]>,
    pub(crate) condemned: std::sync::mpsc::Sender<Condemned>,
    /// Wakes whoever reads `condemned`.
    pub(crate) alarm: Arc<OwnedFd>,
    /// Wakes whoever reads frames for the daemon.
    pub(crate) local: Arc<Notice>,
    /// Tells the daemon that a member has learned of addresses.
    pub(crate) learned: Arc<Notice>,
}

/// An address seen on a bridge, for its home worker.
pub(crate) type Post = (u16, Sighting);
/// To the home workers of bridges, by worker; none for itself.
pub(crate) type Posts = Vec<Option<spsc::Sender<Post>>>;

/// A worker's end of the wiring.
pub(crate) struct WorkerInit {
    pub(crate) lane: Lane,
    pub(crate) shared: Arc<Shared>,
    pub(crate) mailbox: mpsc::Receiver<Command>,
    /// Of all workers.
    pub(crate) mailboxes: Vec<mpsc::Queue<Command>>,
    /// Of all workers.
    pub(crate) bells: Vec<Arc<Bell>>,
    pub(crate) posts: Posts,
    /// From the other workers.
    pub(crate) posted: Vec<spsc::Receiver<Post>>,
    /// Frames for the daemon.
    pub(crate) local: spsc::Sender<LocalFrame>,
    pub(crate) members_max: usize,
    /// Secret keys that spread flows over rings.
    pub(crate) flow_keys: [u64; 2],
}

/// What a worker waits for before its next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, and no descriptor can become ready that it does not poll.
    Poll,
    /// Nothing, but some descriptors may be ready.
    Look,
    /// A descriptor, at most until then.
    Sleep(Option<Tick>),
    /// It was told to stop.
    End,
}

/// One worker.
pub(crate) struct Worker {
    pub(crate) lane: Lane,
    shared: Arc<Shared>,
    qsbr: qsbr::Worker,
    clock: Clock,
    /// What it wants to hear of, by token.
    pub(crate) epoll: Epoll,
    mailbox: mpsc::Receiver<Command>,
    mailboxes: Vec<mpsc::Queue<Command>>,
    bell: Arc<Bell>,
    bells: Vec<Arc<Bell>>,
    rings: Rings,
    run: VecDeque<u64>,
    /// By ring: when it is looked at once more.
    looks: Timers,
    /// Rings and tables that are to be another worker's.
    moves: Vec<handover::Move>,
    /// Rings are left alone.
    rest: Option<rest::Rest>,
    armed: usize,
    scratch: Scratch,
    egress: Egress,
    floods: Floods,
    homes: Vec<(u16, FdbWriter<QsbrGrace>)>,
    swept: Tick,
    posts: Posts,
    posted: Vec<spsc::Receiver<Post>>,
    /// When the piece of work at hand began, in cycles.
    lap_began: u64,
    /// Cycles after which somebody's memory may have taken the time.
    lap_max: u64,
    is_asleep: bool,
    stop: bool,
}

/// What a visit says about what to do with its ring.
enum Outcome {
    Again,
    Rest,
    /// Not before that.
    Later(Tick),
    Bury,
}

impl Worker {
    /// A worker whose time is counted in the cycles of `clock`; `sense` tells what its thread has used.
    pub(crate) fn new(
        init: WorkerInit,
        clock: Clock,
        sense: Sense,
    ) -> Result<Worker, rustix::io::Errno> {
        let epoll = Epoll::create()?;
        let bell = init.bells[init.lane.worker as usize].clone();
        epoll.add(bell.as_fd(), BELL, Interest::READABLE_EDGE)?;
        let notice = init.shared.local.clone();
        Ok(Worker {
            lane: init.lane,
            qsbr: init.shared.domain.register(),
            shared: init.shared,
            clock,
            epoll,
            mailbox: init.mailbox,
            mailboxes: init.mailboxes,
            bell,
            bells: init.bells,
            rings: Rings::default(),
            run: VecDeque::new(),
            looks: Timers::default(),
            moves: Vec::new(),
            rest: None,
            armed: 0,
            scratch: Scratch::new(PLACES, init.flow_keys, init.local, notice),
            egress: Egress::new(init.members_max, init.flow_keys, sense),
            floods: Floods::new(PLACES),
            homes: Vec::new(),
            swept: Tick(0),
            posts: init.posts,
            posted: init.posted,
            lap_began: 0,
            lap_max: clock.cycles(LAP_NS),
            is_asleep: false,
            stop: false,
        })
    }

    /// One round. `time` reads the counter of cycles, which never goes back; `ready` has the tokens of descriptors that became
    /// ready since the last round.
    pub(crate) fn round(
        &mut self,
        time: &mut impl FnMut() -> u64,
        ready: impl Iterator<Item = u64>,
    ) -> Next {
        let begin = time();
        if self.is_asleep {
            self.awake();
            self.lap_began = begin;
        } else {
            self.lap(begin);
        }
        self.counters().rounds.add(1);
        for token in ready {
            // A command rings after it has said so; a post is found in its queue.
            if token != BELL {
                self.wake(token, begin);
            }
        }
        self.visits(begin, time);
        if self.egress.has_corked() {
            self.uncork(time);
        }
        self.household(time);
        if self.stop {
            self.qsbr.offline();
            Next::End
        } else if self.has_work() {
            self.poll()
        } else {
            self.sleep(time)
        }
    }

    #[inline]
    fn now(&self, time: &mut impl FnMut() -> u64) -> Tick {
        Tick(self.clock.ns(time()))
    }

    fn counters(&self) -> &WorkerCounters {
        &self.shared.counters[self.lane.worker as usize]
    }

    /// A piece of work is over: if it took long, somebody's memory may have.
    #[inline(always)]
    fn lap(&mut self, now: u64) {
        let took = now.wrapping_sub(self.lap_began);
        self.lap_began = now;
        if took > self.lap_max {
            let (took, now) = (self.clock.ns(took), Tick(self.clock.ns(now)));
            if self.egress.meter.look(took, now) {
                self.scratch.touch();
            }
        }
    }

    /// What the meter asks for while it is on: rings that have rested are visited again, connections end.
    #[cold]
    fn go_on_metered(&mut self, now: Tick) {
        while let Some(token) = self.egress.meter.rested(now) {
            if let Some(ring) = self.rings.get_mut(token)
                && ring.state == State::Suspended
            {
                ring.state = State::Active;
                self.run.push_back(token);
            }
        }
        for member in self.egress.meter.go_on(now) {
            let section = self.qsbr.section();
            let topo = self.shared.topo.load(&section);
            if let Some(attachment) = topo.member(member).map(|m| m.attachment) {
                self.condemn(member, attachment, STALLS);
            }
        }
    }

    /// Leaves a ring alone until then.
    #[cold]
    fn lay_down(&mut self, token: u64, until: Tick) {
        if let Some(ring) = self.rings.get_mut(token) {
            ring.state = State::Suspended;
            self.egress.meter.lay_down(token, until);
        }
    }

    /// Polls the rings of the run list, round robin, up to the bounds of a round. The time-stamp
    /// counter is read once a visit: the end of one is the start of the next.
    fn visits(&mut self, begin: u64, time: &mut impl FnMut() -> u64) {
        let limit = self.clock.cycles(ROUND_NS);
        let (mut start, mut empty) = (begin, 0);
        for _ in 0..VISITS {
            let Some(token) = self.run.pop_front() else {
                return;
            };
            let Some((outcome, moved)) = self.visit(token, start) else {
                continue;
            };
            match outcome {
                Outcome::Again => self.run.push_back(token),
                Outcome::Rest => self.arm(token, time),
                Outcome::Later(until) => self.lay_down(token, until),
                Outcome::Bury => self.bury(token, INVALID),
            }
            empty = if moved { 0 } else { empty + 1 };
            if empty > self.run.len() {
                (0..EMPTY_PAUSES).for_each(|_| pause());
                empty = 0;
                if self.bell.has_mail() {
                    return;
                }
            }
            let mut end = time();
            self.lap(end);
            if moved {
                self.counters().busy_cycles.add(end.wrapping_sub(start));
                end = self.give_way(end, time);
                self.lap_began = end;
            } else {
                let polled = end.wrapping_sub(start);
                self.counters().polling_cycles.add(polled);
            }
            start = end;
            if end.wrapping_sub(begin) > limit {
                return;
            }
        }
    }

    /// Yields the core, if the kernel has taken enough to make receivers ready; returns the time-stamp counter.
    #[inline]
    fn give_way(&mut self, end: u64, time: &mut impl FnMut() -> u64) -> u64 {
        let clock = self.clock;
        if !self.egress.courtesy.is_due(|| Tick(clock.ns(end))) {
            return end;
        }
        let end = match self.egress.has_corked() {
            true => self.uncork(time),
            false => end,
        };
        std::thread::yield_now();
        let back = time();
        let (from, to) = (Tick(clock.ns(end)), Tick(clock.ns(back)));
        self.egress.courtesy.took(from, to);
        self.counters().yields.add(1);
        back
    }

    /// One burst from one ring: what to do with the ring, and whether frames moved. None if it is gone.
    fn visit(&mut self, token: u64, start: u64) -> Option<(Outcome, bool)> {
        let now = Tick(self.clock.ns(start));
        if !self.scratch.ingress.is_empty() {
            let member = self.rings.get_mut(token)?.member;
            self.admit_before(member, now);
        }
        let ring = self.rings.get_mut(token)?;
        let section = self.qsbr.section();
        let cx = Context {
            section: &section,
            topo: self.shared.topo.load(&section),
            lane: self.lane,
            now,
        };
        let counters = &self.shared.counters[self.lane.worker as usize];
        if self.egress.meter.is_on()
            && let Some(until) = cx.rest(TxId(ring.member))
        {
            return Some((Outcome::Later(until), false));
        }
        let Some(limit) = self.floods.limit(ring.member) else {
            return Some((Outcome::Again, false));
        };
        let (egress, floods) = (&mut self.egress, &mut self.floods);
        let (n, more) = self
            .scratch
            .visit(&cx, ring, egress, floods, limit, counters);
        let spin = cx
            .topo
            .member(ring.member)
            .map_or(Spin::default(), |m| m.spin);
        let outcome = decide(ring, n, more, now, spin);
        if n > 0 {
            self.report();
        }
        self.qsbr.quiesce();
        Some((outcome, n > 0))
    }

    /// What a member has sent before and is due goes before what is fetched now.
    #[cold]
    fn admit_before(&mut self, member: u16, now: Tick) {
        while self.scratch.ingress.has(member) && self.admit(member, now) > 0 {}
    }

    /// Bridges decide about frames that have waited and are due, a bounded number of them.
    #[cold]
    fn admit_due(&mut self, now: Tick) {
        let section = self.qsbr.section();
        let topo = self.shared.topo.load(&section);
        let members = self.scratch.ingress.all_due(topo, now);
        let mut admitted = 0;
        for member in &members {
            if admitted >= RELEASED {
                break;
            }
            admitted += self.admit(*member, now);
        }
        self.scratch.ingress.done(members);
    }

    fn admit(&mut self, member: u16, now: Tick) -> usize {
        let section = self.qsbr.section();
        let cx = Context {
            section: &section,
            topo: self.shared.topo.load(&section),
            lane: self.lane,
            now,
        };
        let (egress, floods) = (&mut self.egress, &mut self.floods);
        let n = self.scratch.admit(&cx, egress, floods, member);
        if n > 0 {
            self.report();
        }
        n
    }

    /// Hands the sightings of a burst to the table's writer: here, or to its home worker. Inlined for visits.
    #[inline(always)]
    fn report(&mut self) {
        let mut lost = self.scratch.sightings.take_lost();
        if lost == 0 && self.scratch.sightings.posts().is_empty() {
            return;
        }
        let counters = &self.shared.counters[self.lane.worker as usize];
        let bridge = self.scratch.bridge;
        let section = self.qsbr.section();
        let topo = self.shared.topo.load(&section);
        let home = usize::from(topo.placement.home(bridge));
        let mut has_posted = false;
        for sighting in self.scratch.sightings.posts() {
            let taken = match self.posts.get_mut(home).and_then(Option::as_mut) {
                Some(post) => {
                    has_posted = true;
                    post.push((bridge, *sighting)).is_ok()
                }
                None => match self.homes.iter_mut().find(|h| h.0 == bridge) {
                    Some((_, writer)) => {
                        writer.learn(*sighting, self.scratch.now);
                        true
                    }
                    None => false,
                },
            };
            match taken {
                true => counters.sightings.add(1),
                false => lost += 1,
            }
        }
        if lost != 0 {
            counters.sightings_lost.add(lost);
            if let Some(bridge) = topo.bridge(bridge) {
                bridge.fdb().note_lost(lost);
            }
        }
        if let Some(bell) = self.bells.get(home).filter(|_| has_posted) {
            bell.wake();
        }
    }

    /// Turns notifications on and takes the ring off the run list, unless something arrived meanwhile.
    fn arm(&mut self, token: u64, time: &mut impl FnMut() -> u64) {
        let now = self.now(time);
        let Some(ring) = self.rings.get_mut(token) else {
            return;
        };
        let section = self.qsbr.section();
        let began = self.egress.meter.begin_if(|| ring.port.polls_memory());
        let armed = ring.port.arm(&section);
        let topo = self.shared.topo.load(&section);
        let worker = self.lane.worker;
        self.egress
            .meter
            .end(began, topo, worker, now, (ring.member, 0));
        match armed {
            Armed::Yes => {
                ring.state = State::Idle;
                self.armed += 1;
            }
            Armed::Work => {
                ring.port.disarm(&section);
                ring.state = State::Active;
                self.run.push_back(token);
            }
            Armed::Unsure(us) | Armed::Poll(us) => {
                ring.state = State::Unsure(now.plus(u64::from(us) * 1000));
                self.looks.set(token as u32, now.plus(u64::from(us) * 1000));
                self.armed += 1;
            }
        }
    }

    /// Back into the run list, when its descriptor became readable or its second look is due.
    fn wake(&mut self, token: u64, cycles: u64) {
        let Some(ring) = self.rings.get_mut(token) else {
            return;
        };
        if matches!(ring.state, State::Idle | State::Unsure(_)) {
            let section = self.qsbr.section();
            let began = self.egress.meter.begin_if(|| ring.port.polls_memory());
            ring.port.disarm(&section);
            let topo = self.shared.topo.load(&section);
            let (worker, now) = (self.lane.worker, Tick(self.clock.ns(cycles)));
            self.egress
                .meter
                .end(began, topo, worker, now, (ring.member, 0));
            ring.state = State::Active;
            self.looks.clear(token as u32);
            self.armed = self.armed.saturating_sub(1);
            self.run.push_back(token);
        }
    }

    /// Gives nothing of the ring any more, and has its endpoint told why.
    fn bury(&mut self, token: u64, reason: &'static str) {
        let Some(ring) = self.rings.get_mut(token) else {
            return;
        };
        ring.state = State::Dead;
        let (member, attachment) = (ring.member, ring.attachment);
        self.condemn(member, attachment, reason);
    }

    /// Has a member's endpoint told why its connection is to end.
    fn condemn(&self, member: u16, attachment: u64, reason: &'static str) {
        let condemned = Condemned {
            member,
            reason,
            attachment,
        };
        let _ = self.shared.condemned.send(condemned);
        let _ = windlass_sys::eventfd::signal(self.shared.alarm.as_fd());
    }

    /// Mailbox, timers, spilled frames, unfinished floods; ends at a quiescent point.
    fn household(&mut self, time: &mut impl FnMut() -> u64) {
        debug_assert!(
            !self.egress.has_corked(),
            "gathered frames outlive their round"
        );
        if self.bell.take_mail() {
            self.read_mail(time);
        }
        self.take_posts(POSTS_TAKEN, time);
        let cycles = time();
        self.lap(cycles);
        let now = Tick(self.clock.ns(cycles));
        self.second_looks(now, cycles);
        self.sweep(now);
        if self.egress.meter.is_on() {
            self.go_on_metered(now);
        }
        if !self.scratch.ingress.is_empty() {
            self.admit_due(now);
        }
        let section = self.qsbr.section();
        let cx = Context {
            section: &section,
            topo: self.shared.topo.load(&section),
            lane: self.lane,
            now,
        };
        let counters = &self.shared.counters[self.lane.worker as usize];
        if self.egress.has_waiting() {
            self.egress.drain(&cx);
        }
        if !self.floods.is_empty() {
            let start = time();
            let copies = match self.run.is_empty() {
                true => COPIES_IDLE,
                false => COPIES_BUSY,
            };
            self.floods.drain(&cx, &mut self.egress, copies);
            counters.busy_cycles.add(time().wrapping_sub(start));
        }
        self.egress
            .settle_unknown(self.floods.oldest(), &self.shared.local);
        self.egress.run_due(&cx, counters);
        if let Some(rest) = &mut self.rest {
            let ingress = &mut self.scratch.ingress;
            rest.go_on(&cx, ingress, &mut self.egress, &mut self.floods, counters);
        }
        let waiting = self.scratch.ingress.queues.len();
        let held = (self.egress.held_frames() + self.floods.len() + waiting) as u64;
        if held != counters.held.get() {
            counters.held.add(held.wrapping_sub(counters.held.get()));
        }
        self.egress.kick(&cx, counters);
        if !self.moves.is_empty() {
            self.hand_over(time);
        }
        self.qsbr.quiesce();
    }

    fn second_looks(&mut self, now: Tick, cycles: u64) {
        for _ in 0..LOOKS {
            let Some(slot) = self.looks.pop(now) else {
                return;
            };
            if let Some(token) = self.rings.token(slot) {
                self.look_again(token, now, cycles);
            }
        }
    }

    /// The second look: armed once more, and believed, unless the peer has no way to notify.
    fn look_again(&mut self, token: u64, now: Tick, cycles: u64) {
        let Some(ring) = self.rings.get_mut(token) else {
            return;
        };
        let section = self.qsbr.section();
        ring.state = State::Idle;
        let began = self.egress.meter.begin_if(|| ring.port.polls_memory());
        let armed = ring.port.arm(&section);
        let topo = self.shared.topo.load(&section);
        let worker = self.lane.worker;
        self.egress
            .meter
            .end(began, topo, worker, now, (ring.member, 0));
        match armed {
            Armed::Work => self.wake(token, cycles),
            Armed::Poll(us) => {
                ring.state = State::Unsure(now.plus(u64::from(us) * 1000));
                self.looks.set(token as u32, now.plus(u64::from(us) * 1000));
            }
            Armed::Yes | Armed::Unsure(_) => {}
        }
    }

    /// Learns what other workers have posted until now, at most so many sightings of each.
    fn take_posts(&mut self, most: usize, time: &mut impl FnMut() -> u64) {
        if self.posted.is_empty() {
            return;
        }
        let now = self.now(time);
        for post in &mut self.posted {
            for _ in 0..post.len().min(most) {
                let Some((bridge, sighting)) = post.pop() else {
                    break;
                };
                let Some((_, writer)) = self.homes.iter_mut().find(|h| h.0 == bridge) else {
                    // The table has just got another home, or is gone.
                    let counters = &self.shared.counters[usize::from(self.lane.worker)];
                    counters.sightings_lost.add(1);
                    let section = self.qsbr.section();
                    if let Some(bridge) = self.shared.topo.load(&section).bridge(bridge) {
                        bridge.fdb().note_lost(1);
                    }
                    continue;
                };
                writer.learn(sighting, now);
            }
        }
    }

    fn sweep(&mut self, now: Tick) {
        if self.homes.is_empty() || now.since(self.swept) < SWEEP_NS {
            return;
        }
        self.swept = now;
        for (_, writer) in &mut self.homes {
            writer.sweep_due(now);
        }
    }

    /// Whether other workers have posted what is not learned yet.
    pub(crate) fn has_posts(&self) -> bool {
        !self.posted.iter().all(spsc::Receiver::is_empty)
    }

    fn has_work(&self) -> bool {
        !self.run.is_empty()
            || self.egress.has_waiting()
            || !self.floods.is_empty()
            || !self.moves.is_empty()
            || self.rest.as_ref().is_some_and(rest::Rest::is_begun)
    }

    fn poll(&self) -> Next {
        match self.armed {
            0 => Next::Poll,
            _ => Next::Look,
        }
    }

    /// Goes to sleep, unless another worker has posted something meanwhile.
    fn sleep(&mut self, time: &mut impl FnMut() -> u64) -> Next {
        let cycles = time();
        self.lap(cycles);
        let now = Tick(self.clock.ns(cycles));
        let second_look = (!self.looks.is_empty()).then(|| now.plus(UNSURE_SLEEP_NS));
        let due = [
            self.egress.next_due(),
            self.egress.meter.next_due(),
            self.scratch.ingress.next_due(),
        ];
        let due = due.into_iter().flatten();
        self.bell.say_asleep();
        if self.has_posts() {
            self.bell.say_awake();
            return self.poll();
        }
        self.is_asleep = true;
        self.qsbr.offline();
        Next::Sleep(second_look.into_iter().chain(due).min())
    }

    fn awake(&mut self) {
        self.is_asleep = false;
        self.qsbr.online();
        self.bell.say_awake();
        self.counters().sleeps.add(1);
    }

    fn read_mail(&mut self, time: &mut impl FnMut() -> u64) {
        while let Some(command) = self.mailbox.pop() {
            match command {
                Command::Adopt(ring) => self.adopt(*ring),
                Command::MoveRing {
                    member,
                    ring,
                    to,
                    handover,
                } => self.begin_move((member, ring), to, handover),
                Command::MoveHome {
                    bridge,
                    to,
                    handover,
                } => self.begin_home(bridge, to, handover),
                Command::Ready(done) => {
                    let _ = done.send(());
                }
                Command::Detach {
                    member,
                    counters,
                    watches,
                    done,
                } => {
                    let now = self.now(time);
                    let rings = self.detach(member, (&counters, &watches), now);
                    let _ = done.send(rings);
                }
                Command::Home { bridge, writer } => self.set_home(bridge, Some(*writer), time),
                Command::Leave { bridge, done } => {
                    self.set_home(bridge, None, time);
                    let _ = done.send(());
                }
                Command::Fdb { bridge, work } => {
                    // What was seen before the command is learned before it: a flush leaves nothing behind.
                    self.take_posts(usize::MAX, time);
                    let now = self.now(time);
                    if let Some((_, writer)) = self.homes.iter_mut().find(|h| h.0 == bridge) {
                        work(writer, now);
                    }
                }
                Command::Send {
                    member,
                    from,
                    frame,
                    waiting,
                } => {
                    self.send((from, member), &frame, time);
                    waiting.fetch_sub(1, Ordering::Relaxed);
                }
                Command::Relay {
                    bridge,
                    frame,
                    waiting,
                } => {
                    self.relay(bridge, &frame, time);
                    waiting.fetch_sub(1, Ordering::Relaxed);
                }
                Command::Answer(answer) => self.take_answer(answer, time),
                Command::Rest { patience_ns, done } => {
                    let until = self.now(time).plus(patience_ns);
                    self.begin_rest(until, done);
                }
                Command::GoOn => self.end_rest(),
                Command::Stop => self.stop = true,
            }
        }
    }

    /// Takes what the search of an overlay has answered.
    fn take_answer(&mut self, answer: Answer, time: &mut impl FnMut() -> u64) {
        let floods = self.floods.posted();
        let now = self.now(time);
        match answer {
            Answer::Known(Question { overlay, key }) => {
                self.egress.end_later(floods, (overlay, key));
            }
            Answer::Gone { places, done } => {
                self.egress.leave_places(&places);
                let _ = done.send(());
            }
            Answer::Found { question, to, left } => {
                let section = self.qsbr.section();
                let cx = Context {
                    section: &section,
                    topo: self.shared.topo.load(&section),
                    lane: self.lane,
                    now,
                };
                let asked = (question.overlay, question.key);
                self.egress.answered(&cx, asked, to.map(TxId));
                self.egress.flushed_later(floods, left);
            }
        }
    }

    /// Has a table here from now on, or none; what was seen before belongs to the one before, if there is one.
    fn set_home(
        &mut self,
        bridge: u16,
        writer: Option<FdbWriter<QsbrGrace>>,
        time: &mut impl FnMut() -> u64,
    ) {
        self.take_posts(usize::MAX, time);
        self.homes.retain(|h| h.0 != bridge);
        self.homes.extend(writer.map(|writer| (bridge, writer)));
    }

    fn adopt(&mut self, mut ring: RxRing) {
        // What already waits is fetched first.
        ring.state = State::Active;
        let token = self.rings.insert(ring);
        self.counters().rings.add(1);
        if let Some(ring) = self.rings.get_mut(token) {
            let wake = ring.port.wake();
            let watched = wake.map(|fd| self.epoll.add(fd, token, Interest::READABLE_EDGE));
            if let Some(Err(_)) = watched {
                // Once asleep it would never be heard again.
                self.bury(
                    token,
                    "the kernel does not watch its descriptor (fs.epoll.max_user_watches?)",
                );
                return;
            }
            if self.rest.is_some() {
                ring.state = State::Resting;
                return;
            }
            let section = self.qsbr.section();
            ring.port.disarm(&section);
        }
        self.run.push_back(token);
    }

    /// Has a frame wait for the members of a set.
    fn relay(&mut self, bridge: u16, frame: &Relayed, time: &mut impl FnMut() -> u64) {
        if self.rest.is_some() {
            return;
        }
        let now = self.now(time);
        let section = self.qsbr.section();
        let cx = Context {
            section: &section,
            topo: self.shared.topo.load(&section),
            lane: self.lane,
            now,
        };
        self.scratch.relay(&cx, &mut self.floods, bridge, frame);
    }

    /// Sends a frame of the daemon.
    fn send(&mut self, (from, member): (RxId, u16), frame: &[u8], time: &mut impl FnMut() -> u64) {
        if self.rest.is_some() {
            return;
        }
        let now = self.now(time);
        let section = self.qsbr.section();
        let cx = Context {
            section: &section,
            topo: self.shared.topo.load(&section),
            lane: self.lane,
            now,
        };
        self.scratch
            .send(&cx, &mut self.egress, (from, TxId(member)), frame);
    }

    /// Lets go of a member, and drops what waits on its way from or to it.
    fn detach(
        &mut self,
        member: u16,
        (counters, watches): (&[Padded<MemberCounters>], &[Watch]),
        now: Tick,
    ) -> Vec<Box<dyn windlass_attach::port::RxPort>> {
        let rings = self.rings.remove_member(member);
        self.counters()
            .rings
            .add((rings.len() as u64).wrapping_neg());
        let section = self.qsbr.section();
        let topo = self.shared.topo.load(&section);
        let cx = Context {
            section: &section,
            topo,
            lane: self.lane,
            now,
        };
        let found = topo.member(member);
        let counters = counters.get(usize::from(self.lane.worker)).map(|c| &**c);
        let (to, from) = (cx.rule_in(member, found), cx.rule_out(member, found));
        let deaths = |way| cx.deaths(watches, way);
        let to = Rule {
            deaths: deaths(Way::To),
            ..to
        };
        let from = Rule {
            deaths: deaths(Way::From),
            ..from
        };
        self.egress.purge(&to, counters);
        self.floods.purge(member, counters);
        self.scratch.ingress.purge(&from, counters);
        for (slot, ring) in &rings {
            self.looks.clear(*slot);
            if matches!(ring.state, State::Idle | State::Unsure(_)) {
                self.armed = self.armed.saturating_sub(1);
            }
            if let Some(fd) = ring.port.wake() {
                let _ = self.epoll.remove(fd);
            }
        }
        rings.into_iter().map(|(_, r)| r.port).collect()
    }
}

/// The mode of a ring after a visit.
#[inline]
fn decide(ring: &mut RxRing, n: usize, more: More, now: Tick, spin: Spin) -> Outcome {
    match (more, n) {
        (More::Dead, _) => return Outcome::Bury,
        (More::Left, _) => {
            ring.note(n, now);
            ring.state = State::Active;
            return Outcome::Again;
        }
        (More::Drained, 0) => {}
        (More::Drained, _) => {
            ring.note(n, now);
            let Some(until) = ring.warm_until(spin, now) else {
                return Outcome::Rest;
            };
            ring.state = State::Warm(until);
            return Outcome::Again;
        }
    }
    match ring.state {
        State::Warm(until) if now < until => Outcome::Again,
        _ => Outcome::Rest,
    }
}
