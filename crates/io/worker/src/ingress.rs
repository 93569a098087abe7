//! Frames on their way from their member to its bridge: its stages, and its queue.
//!
//! # Model
//! ```text
//! rx_burst -> stages of the member -> its rates -> bridge
//!                                       \\-> its queues --task--/
//! ```
//! What has to wait for a rate is copied to private memory ([`crate::queue`]). The bridge decides when the time has come, as of a
//! burst that has just been fetched. Before a ring of the member is visited, its frames that are due go. Without a rate nothing
//! holds them: all go, and the ring's next burst passes as if there had never been any.
//!
//! A member without stages and rates is asked for nothing but whether anybody's frames wait, once for each burst.
//!
//! # What can be lost and what cannot
//! Frames that wait when their member's rings are taken away, or have another owner, are dropped as `not-ready`, and those beyond the queues' limits
//! ([`crate::queue`]) as `rx-queue-full` or `rx-queue-slow`. A ring or a table moves when what was fetched before has gone.

use windlass_frame::{Heads, Pick, Tick, Verdict};
use windlass_nic::Leaving;
use windlass_shaper::Direction;
use windlass_shm::Tails;
use windlass_stats::{Drop, MemberCounters};

use crate::context::Context;
use crate::queue::{Outcome, Queues, Rule, Tally};
use crate::timers::Timers;
use crate::topo::{Member, Topo};

/// Members whose frames are admitted in a round.
const MEMBERS: usize = 64;

/// What one worker's members have sent and their bridges do not know yet.
pub(crate) struct Ingress {
    pub(crate) queues: Queues,
    /// The attachments that its frames were fetched from, by member.
    attachments: Vec<(u16, u64)>,
    /// By member: when its first frame is due.
    due: Timers,
    /// Members whose frames are due, in one round.
    waits: Vec<u16>,
}

impl Ingress {
    /// `keys` choose the queues of flows.
    pub(crate) fn new(keys: [u64; 2]) -> Ingress {
        Ingress {
            queues: Queues::new(keys),
            attachments: Vec::new(),
            due: Timers::default(),
            waits: Vec::with_capacity(MEMBERS),
        }
    }

    /// Whether no frame waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Whether frames of a member wait.
    #[inline(always)]
    pub(crate) fn has(&self, member: u16) -> bool {
        !self.due.is_empty() && self.due.has(u32::from(member))
    }

    /// When the first frame is due.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        self.due.next()
    }

    /// Members with a frame that is due, at most [`MEMBERS`], by priority.
    pub(crate) fn all_due(&mut self, topo: &Topo, now: Tick) -> Vec<u16> {
        let mut members = std::mem::take(&mut self.waits);
        while members.len() < MEMBERS
            && let Some(member) = self.due.pop(now)
        {
            members.push(member as u16);
        }
        for member in &members {
            self.due.set(u32::from(*member), now);
        }
        let priority = |member: &u16| topo.member(*member).map(|member| member.priority);
        members.sort_by_key(|member| std::cmp::Reverse(priority(member)));
        members
    }

    /// Takes the memory of what [`Ingress::all_due`] gave.
    pub(crate) fn done(&mut self, mut members: Vec<u16>) {
        members.clear();
        self.waits = members;
    }

    /// Puts a member's queue off until then.
    pub(crate) fn put_off(&mut self, member: u16, until: Tick) {
        self.due.set(u32::from(member), until);
    }

    /// Whether a member's frames that wait were fetched from this attachment of it.
    pub(crate) fn is_from(&self, member: u16, attachment: u64) -> bool {
        self.attachments.contains(&(member, attachment))
    }

    /// A burst from this attachment of a member passes the member's stages and rates; what has to wait joins its queues.
    #[inline(never)]
    pub(crate) fn leave(
        &mut self,
        cx: &Context<'_>,
        (member, attachment): (&Member, u64),
        counters: &MemberCounters,
        heads: &mut Heads,
        tails: &mut Tails<'_>,
    ) {
        let from = heads.from.0;
        let mut leaving = Leaving::new(heads, tails);
        for stage in &member.ingress {
            stage.leave(&mut leaving);
        }
        let had_waiting = self.has(from);
        if member.shape_out.is_none() && !had_waiting {
            return;
        }
        let rule = cx.rule_out(from, Some(member));
        let mut tally = Tally::default();
        for i in 0..heads.n {
            let pick = Pick::frame(i, false);
            if heads.verdict[i] == Verdict::NONE
                && self.queues.admit(&rule, heads, tails, pick, &mut tally) == Outcome::Kept
            {
                heads.verdict[i] = Verdict::HELD;
            }
        }
        if tally.is_nothing() {
            return;
        }
        if !had_waiting {
            self.attachments.push((from, attachment));
        }
        tally.count(Direction::Out, counters);
        self.set_due(from);
    }

    /// Knows when the next frame of a member is due, or that none waits.
    fn set_due(&mut self, member: u16) {
        match self.queues.due(member) {
            Some(due) => self.due.set(u32::from(member), due),
            None => {
                self.due.clear(u32::from(member));
                self.attachments.retain(|(other, _)| *other != member);
            }
        }
    }

    /// Has frames whose time has come ready.
    pub(crate) fn advance(&mut self, rule: &Rule<'_>, counters: &MemberCounters) {
        self.queues.advance(rule).count(Direction::Out, counters);
    }

    /// The first frames that were ready have gone.
    pub(crate) fn forget(&mut self, rule: &Rule<'_>, n: usize, counters: &MemberCounters) {
        counters.rx_marked.add(self.queues.forget(rule, n));
        counters.rx_held.add((n as u64).wrapping_neg());
        self.set_due(rule.member);
    }

    /// Drops what waits of a member whose rings are taken away.
    pub(crate) fn purge(&mut self, rule: &Rule<'_>, counters: Option<&MemberCounters>) {
        let n = self.queues.purge(rule, Drop::NotReady) as u64;
        self.set_due(rule.member);
        if let Some(counters) = counters {
            counters.rx_held.add(n.wrapping_neg());
            counters.drop_frames(Drop::NotReady, n);
        }
    }

    /// Drops all that waits; how many frames.
    #[cold]
    pub(crate) fn give_up(&mut self, cx: &Context<'_>) -> u64 {
        let dropped = self.queues.len() as u64;
        let members: Vec<u16> = self.attachments.iter().map(|(member, _)| *member).collect();
        for id in members {
            let member = cx.topo.member(id);
            let rule = cx.rule_out(id, member);
            self.purge(&rule, member.and_then(|member| cx.counters(member)));
        }
        dropped
    }
}
