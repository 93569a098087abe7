//! The rates and flows of a member: what of them outlives a change.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_rules::FlowMatch;
use windlass_shaper::{Bucket, Cause, Direction, Flow, FlowCounters, Priority, Shaper};
use windlass_stats::Padded;

use super::draft::MemberTuning;

/// A flow of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTuning {
    /// Which of all flows that ever were; not 0.
    pub id: u64,
    /// What is in it.
    pub attributes: FlowMatch,
    /// Bits a second in each direction; 0 is no limit.
    pub maxbw: u64,
    /// Its place among what waits.
    pub priority: Priority,
}

/// What a flow has counted in one direction, of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Frames that were in the flow.
    pub matched: u64,
    /// Frames that went on.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Of those frames: with an ECN mark of the queues.
    pub marked: u64,
    /// Frames dropped for want of room.
    pub full: u64,
    /// Frames dropped since frames had waited for too long.
    pub slow: u64,
    /// Frames that waited when the member was detached.
    pub lost: u64,
    /// Frames that wait.
    pub held: u64,
}

impl FlowTotals {
    /// Whether no frame is missing. True whenever no worker is in the middle of a burst.
    pub fn conserved(&self) -> bool {
        self.matched == self.frames + self.full + self.slow + self.lost + self.held
    }

    fn add(&mut self, counters: &FlowCounters) {
        let drops = |cause: Cause| counters.drops[cause as usize].get();
        self.matched += counters.matched.get();
        self.frames += counters.frames.get();
        self.bytes += counters.bytes.get();
        self.marked += counters.marked.get();
        self.full += drops(Cause::Full);
        self.slow += drops(Cause::Slow);
        self.lost += counters.lost.get();
        self.held = self.held.wrapping_add(counters.held.get());
    }
}

/// Rates from a member and towards it.
type Limits = [Option<Arc<Bucket>>; 2];

fn limits(rate: u64) -> Limits {
    let limit = || (rate != 0).then(|| Arc::new(Bucket::new(rate)));
    [limit(), limit()]
}

/// Others, if the rate is another one.
fn follow(limits_now: &mut Limits, rate: u64) {
    let before = limits_now[0].as_ref().map_or(0, |limit| limit.rate());
    if before != rate {
        *limits_now = limits(rate);
    }
}

struct FlowState {
    tuning: FlowTuning,
    limits: Limits,
    counters: [Arc<[Padded<FlowCounters>]>; 2],
}

/// What a member has.
pub(super) struct Shaping {
    workers: usize,
    rate: u64,
    limits: Limits,
    flows: BTreeMap<u64, FlowState>,
    /// For what it sends, and for what it gets.
    shapers: [Option<Arc<Shaper>>; 2],
}

impl Shaping {
    pub(super) fn new(tuning: &MemberTuning, workers: usize) -> Shaping {
        let mut shaping = Shaping {
            workers,
            rate: 0,
            limits: limits(0),
            flows: BTreeMap::new(),
            shapers: [None, None],
        };
        shaping.set(tuning);
        shaping
    }

    /// Does as `tuning` says from now on. What stays has counted what it has.
    pub(super) fn set(&mut self, tuning: &MemberTuning) {
        self.rate = tuning.maxbw;
        follow(&mut self.limits, tuning.maxbw);
        let stays = |id: &u64| tuning.flows.iter().any(|flow| flow.id == *id);
        self.flows.retain(|id, _| stays(id));
        for flow in &tuning.flows {
            let counters = || (0..self.workers).map(|_| Padded::default()).collect();
            let state = self.flows.entry(flow.id).or_insert_with(|| FlowState {
                tuning: *flow,
                limits: limits(0),
                counters: [counters(), counters()],
            });
            state.tuning = *flow;
            follow(&mut state.limits, flow.maxbw);
        }
        self.make();
    }

    /// Nothing waits any more, and nothing of the rates is used up.
    pub(super) fn renew(&mut self) {
        self.limits = limits(self.rate);
        for state in self.flows.values_mut() {
            state.limits = limits(state.tuning.maxbw);
        }
        self.make();
    }

    /// For what it sends, and for what it gets.
    pub(super) fn shapers(&self) -> [Option<Arc<Shaper>>; 2] {
        self.shapers.clone()
    }

    fn make(&mut self) {
        self.shapers = [(0, Direction::Out), (1, Direction::In)].map(|(at, direction)| {
            let flows = self.flows.values().map(|state| {
                let flow = Flow {
                    id: state.tuning.id,
                    priority: state.tuning.priority,
                    limit: state.limits[at].clone(),
                    counters: state.counters[at].clone(),
                };
                (state.tuning.attributes, flow)
            });
            Shaper::new(direction, flows.collect(), self.limits[at].clone()).map(Arc::new)
        });
    }

    /// What a flow has counted of what the member sends, and of what it gets.
    pub(super) fn totals(&self, id: u64) -> Option<[FlowTotals; 2]> {
        let state = self.flows.get(&id)?;
        Some(state.counters.each_ref().map(|counters| {
            let mut totals = FlowTotals::default();
            counters.iter().for_each(|counters| totals.add(counters));
            totals
        }))
    }
}
