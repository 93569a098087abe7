//! Floods that one visit could not finish.
//!
//! # Model
//! A visit makes [`crate::visit::COPIES_MAX`] copies at most. The rest of a flood is a job: the
//! frame in private memory, and the position in the set to go on with. The set is asked for anew
//! each time, so that a job survives a change of the topology (one that happens in between may let a member
//! be passed over or served twice). Jobs are done in order, as many
//! copies a round as a visit may make.
//!
//! # Limits
//! [`JOBS_MAX`] jobs a worker, and its [`Pool`]; beyond either the frame (or the rest of it) is lost
//! and counted as `flood-backlog`.

use std::collections::VecDeque;

use windlass_frame::{Heads, Pick, RxId, Verdict};
use windlass_shm::{SegStore, Tails};
use windlass_stats::{Drop, MemberCounters};

use crate::egress::{Context, Egress};
use crate::hold::{Held, Pool};
use crate::visit::COPIES_MAX;

/// Unfinished floods of one worker.
pub const JOBS_MAX: usize = 64;

/// What is left of a flood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// The bridge.
    pub(crate) bridge: u16,
    /// The member whose frame it is.
    pub(crate) from: u16,
    /// The position in the set to go on with.
    pub(crate) position: usize,
}

struct Job {
    held: Held,
    verdict: Verdict,
    rest: Rest,
}

/// The unfinished floods of one worker.
pub(crate) struct Floods {
    pool: Pool,
    jobs: VecDeque<Job>,
    heads: Box<Heads>,
    store: SegStore,
}

impl Default for Floods {
    fn default() -> Self {
        Floods {
            pool: Pool::default(),
            jobs: VecDeque::with_capacity(JOBS_MAX),
            heads: Heads::boxed(),
            store: SegStore::default(),
        }
    }
}

impl Floods {
    /// Whether nothing is left to do.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Floods that are not finished.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Keeps frame `i` for the rest of its receivers. False if there is no room.
    #[cold]
    pub(crate) fn post(&mut self, heads: &Heads, tails: &Tails<'_>, i: usize, rest: Rest) -> bool {
        if self.jobs.len() >= JOBS_MAX {
            return false;
        }
        let Some(held) = self.pool.hold(heads, tails, i) else {
            return false;
        };
        self.jobs.push_back(Job {
            held,
            verdict: heads.verdict[i],
            rest,
        });
        true
    }

    /// Ends the floods of a member that goes: its number, and its bridge's, may be another's soon.
    pub(crate) fn purge(&mut self, member: u16, counters: Option<&MemberCounters>) {
        let (mine, others) = std::mem::take(&mut self.jobs)
            .into_iter()
            .partition(|job| job.rest.from == member);
        self.jobs = others;
        let mine: VecDeque<Job> = mine;
        if let Some(counters) = counters {
            counters.floods_cut.add(mine.len() as u64);
        }
        mine.into_iter().for_each(|job| self.pool.free(job.held));
    }

    /// Makes as many copies as a visit may.
    #[cold]
    pub(crate) fn drain(&mut self, cx: &Context<'_>, egress: &mut Egress) {
        let mut left = COPIES_MAX;
        while left > 0 {
            let Some(mut job) = self.jobs.pop_front() else {
                return;
            };
            if self.go_on(cx, egress, &mut job, &mut left) {
                self.pool.free(job.held);
            } else {
                self.jobs.push_front(job);
            }
        }
    }

    /// Sends one job's frame to its next receivers. True when it is done.
    fn go_on(
        &mut self,
        cx: &Context<'_>,
        egress: &mut Egress,
        job: &mut Job,
        left: &mut usize,
    ) -> bool {
        let lane = cx.lane.worker as usize;
        let source = cx
            .topo
            .member(job.rest.from)
            .and_then(|m| m.counters.get(lane));
        let bridge = cx.topo.bridge(job.rest.bridge);
        let set = bridge
            .zip(job.verdict.as_flood())
            .and_then(|(b, id)| b.flood(id));
        let (Some(source), Some(bridge), Some(set)) = (source, bridge, set) else {
            return true;
        };
        let from = bridge.flood_from(job.rest.from);
        self.heads.clear(RxId(job.rest.from), cx.now);
        let mut tails = Tails::bind(&mut self.store, cx.section);
        self.pool.restore(&job.held, &mut self.heads, &mut tails, 0);
        self.heads.n = 1;
        while job.rest.position < set.len() {
            let to = set
                .at(job.rest.position, from)
                .filter(|to| to.fits(&self.heads, 0));
            if let Some(to) = to {
                if *left == 0 {
                    return false;
                }
                *left -= 1;
                source.rx_copies.add(1);
                let pick = [Pick::frame(0, to.tagged)];
                if egress.offer(cx, &self.heads, &tails, to.id, &pick) == 0
                    && let Some(c) = cx.topo.member(to.id.0).and_then(|m| m.counters.get(lane))
                {
                    c.drop_frames(Drop::RingFull, 1);
                }
                egress.settle(cx, &self.heads, &tails);
            }
            job.rest.position += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_frame::{Claim, Tick};
    use windlass_sync::qsbr::Domain;

    /// The floods of a member that goes end with it, and are counted; those of others, in order, and the room stay.
    #[test]
    fn floods_end_with_their_member() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let (mut floods, counters) = (Floods::default(), MemberCounters::zero());
        heads.clear(RxId(0), Tick(0));
        heads.admit(0, 60, Claim::NONE);
        let tails = Tails::bind(&mut store, &section);
        for round in 0..1000 {
            for from in [1, 2, 1, 3] {
                let rest = Rest {
                    bridge: 0,
                    from,
                    position: 0,
                };
                assert!(floods.post(&heads, &tails, 0, rest), "round {round}");
            }
            floods.purge(1, Some(&counters));
            let left: Vec<_> = floods.jobs.iter().map(|job| job.rest.from).collect();
            assert_eq!(left, [2, 3]);
            for member in [2, 3] {
                floods.purge(member, None);
            }
            assert!(floods.is_empty());
        }
        assert_eq!(counters.floods_cut.get(), 2000);
    }
}
