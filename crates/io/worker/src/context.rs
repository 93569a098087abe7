//! Who transmits, when, and what holds for its members: what goes with frames through a visit.

use windlass_attach::port::Lane;
use windlass_frame::{Heads, Pick, Tick, TxId};
use windlass_shm::{Section, Tails};
use windlass_stats::{Drop, MemberCounters};

use crate::capture::{self, Deaths, Watch, Way};
use crate::meter::Meter;
use crate::queue::Rule;
use crate::topo::{Member, Topo};

/// What a transmission needs to know besides the frames.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Proof that the worker is online.
    pub section: &'a Section<'a>,
    /// The topology of this visit.
    pub topo: &'a Topo,
    /// Who transmits.
    pub lane: Lane,
    /// When.
    pub now: Tick,
}

impl Context<'_> {
    /// After an access to a member's memory that has written so many bytes.
    #[inline(always)]
    pub(crate) fn charge(&self, meter: &mut Meter, began: Option<u64>, access: (u16, u64)) {
        meter.end(began, self.topo, self.lane.worker, self.now, access);
    }

    /// Until when a member rests, if it does: [`crate::meter`].
    #[cold]
    pub(crate) fn rest(&self, member: TxId) -> Option<Tick> {
        Meter::rest(self.topo, self.lane.worker, self.now, member.0)
    }

    /// What holds for frames from a member.
    pub(crate) fn rule_out<'m>(&'m self, id: u16, member: Option<&'m Member>) -> Rule<'m> {
        Rule {
            shaper: member.and_then(|member| member.shape_out.as_deref()),
            member: id,
            owner: member.and_then(|member| member.owner),
            worker: self.lane.worker,
            now: self.now,
            deaths: member.and_then(|member| self.deaths(&member.watches, Way::From)),
        }
    }

    /// What holds for frames to a member.
    pub(crate) fn rule_in<'m>(&'m self, id: u16, member: Option<&'m Member>) -> Rule<'m> {
        Rule {
            shaper: member.and_then(|member| member.shape_in.as_deref()),
            deaths: member.and_then(|member| self.deaths(&member.watches, Way::To)),
            ..self.rule_out(id, member)
        }
    }

    /// What tells captures, if there are any, of frames that die while they wait.
    pub(crate) fn deaths<'m>(&'m self, watches: &'m [Watch], way: Way) -> Option<Deaths<'m>> {
        let deaths = Deaths {
            watches,
            way,
            section: self.section,
            worker: self.lane.worker,
            now: self.now,
        };
        (!watches.is_empty()).then_some(deaths)
    }

    pub(crate) fn counters<'m>(&self, member: &'m Member) -> Option<&'m MemberCounters> {
        member.counters.get(self.lane.worker as usize).map(|c| &**c)
    }

    /// A burst for captures.
    pub(crate) fn burst<'b, 'q>(
        &'b self,
        heads: &'b Heads,
        tails: &'b Tails<'q>,
    ) -> capture::Burst<'b, 'q> {
        capture::Burst {
            section: self.section,
            worker: self.lane.worker,
            now: self.now,
            heads,
            tails,
        }
    }

    /// Counts frames that died on their way to a member, and has its captures know of them.
    pub(crate) fn drop(
        &self,
        (member, counters): (&Member, &MemberCounters),
        heads: &Heads,
        tails: &Tails<'_>,
        reason: Drop,
        picks: &[Pick],
    ) {
        counters.drop_frames(reason, picks.len() as u64);
        if !member.watches.is_empty() {
            let burst = self.burst(heads, tails);
            capture::note(&member.watches, &burst, (Way::To, Some(reason)), picks);
        }
    }
}
