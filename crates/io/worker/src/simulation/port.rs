//! The rings of a simulated owner: in memory, filled and emptied by a model of its peer.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick};
use windlass_shm::{Section, Tails};

use super::model::Way;
use super::world::{chance, fault, lose_core, preempt, receive};

/// Bytes of every frame.
pub(super) const FRAME: usize = 60;

/// How the peer notifies of what it has put into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// By its descriptor, whenever notifications are on.
    Kick,
    /// As well, but for a frame that it puts in while they are being turned on, which neither side may see (memif).
    Missed,
    /// Not at all: it has no descriptor.
    None,
}

/// A frame: where it goes, where it comes from, and its number in the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) kind: u16,
    pub(super) number: u64,
}

/// What both sides of a ring see.
#[derive(Debug, Default)]
struct Ring {
    frames: VecDeque<Bytes>,
    /// Frames at the front that the worker has borrowed.
    lent: usize,
    /// Notifications are on.
    armed: bool,
    /// The peer has decided to notify and has not done so yet.
    owes_kick: bool,
    /// Frames that the peer puts in unseen while notifications are turned on.
    unseen: VecDeque<Bytes>,
    dead: bool,
    given_back: bool,
}

/// What a peer sends through.
#[derive(Debug)]
pub(super) struct Pipe {
    /// Which of all pipes it is.
    pub(super) number: u64,
    ring: Mutex<Ring>,
    pub(super) notice: Notice,
    capacity: usize,
    fd: OwnedFd,
    /// How long a look into its memory takes, while its owner punches holes.
    pub(super) hole_ns: AtomicU64,
    /// How long a worker has no core in the midst of a burst.
    pub(super) away_ns: AtomicU64,
}

impl Pipe {
    pub(super) fn new(number: u64, notice: Notice, capacity: usize) -> Pipe {
        Pipe {
            number,
            ring: Mutex::default(),
            notice,
            capacity,
            fd: windlass_sys::eventfd::create().expect("an eventfd"),
            hole_ns: AtomicU64::new(0),
            away_ns: AtomicU64::new(0),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("no test has failed")
    }

    /// The ring as a worker uses it.
    fn touched(&self, how: &str) -> MutexGuard<'_, Ring> {
        let ring = self.ring();
        assert!(!ring.given_back, "{how} after the detach was answered");
        ring
    }

    /// The peer's next frames. True if they were put in.
    pub(super) fn push(&self, frames: &[Bytes]) -> bool {
        let mut ring = self.ring();
        if ring.dead || ring.frames.len() + ring.unseen.len() + frames.len() > self.capacity {
            return false;
        }
        if self.notice == Notice::Missed && !ring.armed && chance(4) {
            // Not visible until the worker has turned notifications on, if it does so next.
            ring.unseen.extend(frames);
            return true;
        }
        let unseen = std::mem::take(&mut ring.unseen);
        ring.frames.extend(unseen);
        ring.frames.extend(frames);
        ring.owes_kick |= ring.armed && self.notice != Notice::None;
        true
    }

    /// The peer notifies, if it owes that.
    pub(super) fn kick(&self) -> bool {
        let owed = std::mem::take(&mut self.ring().owes_kick);
        if owed {
            windlass_sys::eventfd::signal(&self.fd).expect("a signal");
        }
        owed
    }

    pub(super) fn owes_kick(&self) -> bool {
        self.ring().owes_kick
    }

    /// The peer takes its memory away.
    pub(super) fn kill(&self) {
        self.ring().dead = true;
        self.ring().owes_kick = true;
    }

    pub(super) fn is_dead(&self) -> bool {
        self.ring().dead
    }

    /// Frames that no worker has fetched.
    pub(super) fn left(&self) -> usize {
        let ring = self.ring();
        ring.frames.len() + ring.unseen.len()
    }

    /// No worker may touch it any more.
    pub(super) fn give_back(&self) {
        self.ring().given_back = true;
    }
}

/// The worker's half of a [`Pipe`].
pub(super) struct Receive(pub(super) Arc<Pipe>);

impl RxPort for Receive {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        preempt();
        fault(self.0.hole_ns.load(Ordering::Relaxed));
        lose_core(self.0.away_ns.load(Ordering::Relaxed));
        let mut ring = self.0.touched("a burst");
        if ring.dead {
            return (Loan::default(), More::Dead);
        }
        let unseen = std::mem::take(&mut ring.unseen);
        ring.frames.extend(unseen);
        assert_eq!(ring.lent, 0, "two workers have the ring");
        // Now and then it is slow to give them.
        let most = if chance(4) { 3 } else { BURST };
        let n = ring.frames.len().min(limit.frames).min(most);
        let frames: Vec<Bytes> = ring.frames.iter().take(n).copied().collect();
        ring.lent = n;
        let more = match ring.frames.len() > n {
            true => More::Left,
            false => More::Drained,
        };
        drop(ring);
        for (i, frame) in frames.iter().enumerate() {
            let at = &mut heads.snap[i].0[HEADROOM..HEADROOM + FRAME];
            at[..6].copy_from_slice(&frame.dst.to_le_bytes()[..6]);
            at[6..12].copy_from_slice(&frame.src.to_le_bytes()[..6]);
            at[12..14].copy_from_slice(&frame.kind.to_be_bytes());
            at[14..22].copy_from_slice(&frame.number.to_le_bytes());
            heads.admit(i, FRAME as u32, Claim::NONE);
            super::world::accept(frame.number, heads.now.0);
        }
        heads.n = n;
        let loan = Loan {
            upto: 0,
            count: n as u32,
        };
        (loan, more)
    }

    fn release(&mut self, _: &Section<'_>, loan: Loan) {
        preempt();
        let mut ring = self.0.touched("a release");
        assert_eq!(ring.lent, loan.count as usize, "what was lent is released");
        ring.frames.drain(..loan.count as usize);
        ring.lent = 0;
    }

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        preempt();
        let mut ring = self.0.touched("arming");
        if std::mem::replace(&mut ring.armed, true) {
            // The second look: what was put in unseen has arrived by now.
            let unseen = std::mem::take(&mut ring.unseen);
            ring.frames.extend(unseen);
        }
        drop(ring);
        preempt();
        let ring = self.0.touched("arming");
        if !ring.frames.is_empty() || ring.dead {
            return Armed::Work;
        }
        match self.0.notice {
            Notice::Kick => Armed::Yes,
            Notice::Missed => Armed::Unsure(20),
            Notice::None => Armed::Poll(200),
        }
    }

    fn disarm(&mut self, _: &Section<'_>) {
        self.0.touched("disarming").armed = false;
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        drop(self.0.touched("its descriptor"));
        (self.0.notice != Notice::None).then(|| self.0.fd.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// How a receiver learns of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// It sleeps when it has found nothing, and wants a notification then.
    Sleeps,
    /// The kernel wakes it.
    Kernel,
}

/// What a receiver sees of one of its rings.
#[derive(Debug, Default)]
struct Inbox {
    frames: VecDeque<u64>,
    /// A worker is putting frames in.
    held: bool,
}

/// What a peer receives from.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) owner: usize,
    mood: Mood,
    capacity: usize,
    inboxes: Vec<Mutex<Inbox>>,
    /// Small frames for it are gathered.
    pub(super) wants_runs: bool,
    state: Mutex<Receiver>,
    /// How long a look into its memory takes, while its owner punches holes.
    pub(super) hole_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Receiver {
    asleep: bool,
    given_back: bool,
    /// Frames that it was given.
    taken: u64,
}

impl Sink {
    pub(super) fn new(owner: usize, mood: Mood, capacity: usize, rings: usize) -> Sink {
        Sink {
            owner,
            mood,
            capacity,
            inboxes: (0..rings).map(|_| Mutex::default()).collect(),
            wants_runs: false,
            state: Mutex::default(),
            hole_ns: AtomicU64::new(0),
        }
    }

    fn state(&self, how: &str) -> MutexGuard<'_, Receiver> {
        let state = self.state.lock().expect("no test has failed");
        assert!(!state.given_back, "{how} after the detach was answered");
        state
    }

    fn inbox(&self, ring: usize) -> MutexGuard<'_, Inbox> {
        self.inboxes[ring % self.inboxes.len()]
            .lock()
            .expect("no test has failed")
    }

    /// The peer takes frames out, unless it sleeps. True if it did something.
    pub(super) fn drain(&self, most: usize) -> bool {
        let mut state = self.state.lock().expect("no test has failed");
        if state.asleep {
            return false;
        }
        let mut found = 0;
        for ring in 0..self.inboxes.len() {
            let mut inbox = self.inbox(ring);
            let n = inbox.frames.len().min(most);
            inbox.frames.drain(..n);
            found += n;
        }
        state.asleep = found == 0 && self.mood == Mood::Sleeps;
        found > 0 || state.asleep
    }

    /// Frames that the peer has not fetched.
    pub(super) fn left(&self) -> usize {
        (0..self.inboxes.len())
            .map(|ring| self.inbox(ring).frames.len())
            .sum()
    }

    /// Has every worker find its rings held by another one, or no more.
    pub(super) fn hold(&self, is_held: bool) {
        for ring in 0..self.inboxes.len() {
            self.inbox(ring).held = is_held;
        }
    }

    /// Frames that were put in.
    pub(super) fn taken(&self) -> u64 {
        self.state.lock().expect("no test has failed").taken
    }

    pub(super) fn give_back(&self) {
        self.state.lock().expect("no test has failed").given_back = true;
    }

    fn transmit(&self, ring: usize, heads: &Heads, picks: &[Pick]) -> Sent {
        let mut sent = Sent::default();
        drop(self.state("a transmission"));
        if std::mem::replace(&mut self.inbox(ring).held, true) {
            sent.stop = Stop::Busy;
            return sent;
        }
        preempt();
        fault(self.hole_ns.load(Ordering::Relaxed));
        for pick in picks {
            if self.inbox(ring).frames.len() >= self.capacity {
                sent.stop = Stop::Full;
                break;
            }
            let bytes = heads.private(pick.index());
            let number = bytes.get(14..).and_then(|b| b.first_chunk::<8>());
            let number = u64::from_le_bytes(*number.expect("a frame of ours"));
            let verdict = heads.verdict[pick.index()];
            let way = match (verdict.as_to(), verdict.as_flood()) {
                (Some(_), _) => Way::Direct,
                (_, Some(_)) => Way::Flooded,
                _ => Way::Held,
            };
            receive(self.owner, number, way);
            self.inbox(ring).frames.push_back(number);
            sent.taken += 1;
            sent.frames += 1;
            sent.bytes += FRAME as u64;
        }
        preempt();
        self.inbox(ring).held = false;
        let mut state = self.state("a transmission");
        state.taken += sent.frames;
        sent.kick = match self.mood {
            _ if sent.frames == 0 => Kick::No,
            Mood::Kernel => Kick::Core,
            Mood::Sleeps => Kick::Now,
        };
        sent
    }
}

impl TxPort for Sink {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn wants_runs(&self) -> bool {
        self.wants_runs
    }

    fn tx_burst(
        &self,
        _: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        _: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.transmit(usize::from(lane.worker), heads, picks)
    }

    fn has_choice(&self) -> bool {
        self.inboxes.len() > 1
    }

    fn choices(&self, lane: Lane) -> u32 {
        match self.inboxes.len() as u32 {
            rings if lane.workers == 1 => (1 << rings) - 1,
            rings => 1 << (u32::from(lane.worker) % rings),
        }
    }

    fn tx_burst_on(
        &self,
        _: &Section<'_>,
        _: Lane,
        ring: u8,
        heads: &Heads,
        _: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.transmit(usize::from(ring), heads, picks)
    }

    fn wants_kick(&self, _: Lane) -> bool {
        preempt();
        self.state("a look at its flags").asleep
    }

    fn kick(&self, _: Lane) {
        self.state("a notification").asleep = false;
    }
}
