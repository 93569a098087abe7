//! One direction of a member: its rate and its flows, shared by all workers.

use std::sync::Arc;

use windlass_frame::Tick;
use windlass_rules::FlowMatch;
use windlass_stats::{Counter, Drop, Padded};

use crate::bucket::{Bucket, CUT_NS};
use crate::classify::{Classifier, Direction};

/// The order of service among what waits at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// After all others.
    Low = 0,
    /// What has none.
    #[default]
    Medium = 1,
    /// Before all others.
    High = 2,
}

/// Why a frame is dropped that should have waited, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There was no room for it, or for a later one.
    Full,
    /// Frames have waited for too long: [`crate::codel`].
    Slow,
}

impl Cause {
    /// Both, in the order of [`FlowCounters::drops`].
    pub const ALL: [Cause; 2] = [Cause::Full, Cause::Slow];

    /// The reason under which the member counts it.
    pub fn reason(self, direction: Direction) -> Drop {
        match (direction, self) {
            (Direction::Out, Cause::Full) => Drop::RxQueueFull,
            (Direction::Out, Cause::Slow) => Drop::RxQueueSlow,
            (Direction::In, Cause::Full) => Drop::QueueFull,
            (Direction::In, Cause::Slow) => Drop::QueueSlow,
        }
    }
}

/// What one worker counts of one flow in one direction. `matched = frames + drops + lost + held`.
#[derive(Debug, Default)]
pub struct FlowCounters {
    /// Frames that were in the flow.
    pub matched: Counter,
    /// Frames that went on.
    pub frames: Counter,
    /// Bytes of them.
    pub bytes: Counter,
    /// Of those frames: with a mark of the queues ([`crate::ecn`]).
    pub marked: Counter,
    /// Frames dropped, by [`Cause`].
    pub drops: [Counter; 2],
    /// Frames that waited when the member was detached or the flow was changed.
    pub lost: Counter,
    /// Frames that wait (a level, not a total).
    pub held: Counter,
}

impl FlowCounters {
    /// A frame goes on.
    #[inline]
    pub fn pass(&self, bytes: u32) {
        self.frames.add(1);
        self.bytes.add(bytes.into());
    }

    /// A frame is dropped.
    pub fn drop_frame(&self, cause: Cause) {
        if let Some(drops) = self.drops.get(cause as usize) {
            drops.add(1);
        }
    }

    /// A frame begins to wait.
    pub fn hold(&self) {
        self.held.add(1);
    }

    /// A frame waits no more.
    pub fn end_hold(&self) {
        self.held.add(u64::MAX);
    }
}

/// A flow of a member in one direction.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Which of all flows that ever were; not 0.
    pub id: u64,
    /// Its place among what waits.
    pub priority: Priority,
    /// Its own rate, if it has one.
    pub limit: Option<Arc<Bucket>>,
    /// By worker.
    pub counters: Arc<[Padded<FlowCounters>]>,
}

/// What is done with the frames of one direction of a member.
#[derive(Debug)]
pub struct Shaper {
    pub(crate) direction: Direction,
    classifier: Option<Classifier>,
    flows: Vec<Flow>,
    pub(crate) limit: Option<Arc<Bucket>>,
}

/// Where a frame has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// For its flow's rate.
    Flow,
    /// For the member's.
    Member,
    /// For nothing: it goes as soon as it can.
    Ready,
}

impl Shaper {
    /// With these flows and this rate; none if there is neither.
    pub fn new(
        direction: Direction,
        flows: Vec<(FlowMatch, Flow)>,
        limit: Option<Arc<Bucket>>,
    ) -> Option<Shaper> {
        let (attributes, flows): (Vec<FlowMatch>, Vec<Flow>) = flows.into_iter().unzip();
        let classifier = Classifier::new(direction, &attributes);
        let shaper = Shaper {
            direction,
            classifier,
            flows,
            limit,
        };
        (shaper.classifier.is_some() || shaper.limit.is_some()).then_some(shaper)
    }

    /// The flow of a frame of `len` bytes, of which these are private.
    #[inline]
    pub fn flow_of(&self, bytes: &[u8], len: u32) -> Option<&Flow> {
        let at = self.classifier.as_ref()?.find(bytes, len)?;
        self.flows.get(at)
    }

    /// The flow of a number.
    pub(crate) fn flow(&self, id: u64) -> Option<&Flow> {
        self.flows.iter().find(|flow| flow.id == id)
    }

    /// What a worker counts of a flow.
    pub fn counters(&self, flow: u64, worker: usize) -> Option<&FlowCounters> {
        let counters = self.flow(flow)?.counters.get(worker)?;
        Some(counters)
    }

    /// Which way.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether a large segment is cut before it takes its part of a rate: it would keep others waiting for too long.
    pub fn cuts(&self, flow: Option<&Flow>, bytes: u32) -> bool {
        let own = flow.and_then(|flow| flow.limit.as_deref());
        let limits = [own, self.limit.as_deref()].into_iter().flatten();
        limits
            .map(|limit| limit.takes_ns(bytes))
            .any(|ns| ns > CUT_NS)
    }

    /// Whether a frame goes at once where none waits; if not, where it has to wait.
    #[inline]
    pub fn pass(&self, flow: Option<&Flow>, now: Tick, bytes: u32) -> Result<(), Place> {
        let limit = flow.and_then(|flow| flow.limit.as_deref());
        if limit.is_some_and(|limit| !limit.pass(now, bytes)) {
            return Err(Place::Flow);
        }
        let limit = self.limit.as_deref();
        match limit.is_some_and(|limit| !limit.pass(now, bytes)) {
            true => Err(Place::Member),
            false => Ok(()),
        }
    }
}
