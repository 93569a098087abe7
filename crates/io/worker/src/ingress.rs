//! Frames on their way from their member to its bridge: its stages, and its queue.
//!
//! # Model
//! ```text
//! rx_burst -> stages of the member -> bridge
//!                  \\-> its queue --task--/
//! ```
//! What a stage holds is copied to private memory, and so is what comes while something waits: a member's frames keep their
//! order. The bridge decides when the time has come, as of a burst that has just been fetched. Before a ring of the member is
//! visited, its frames that are due go. Without the stages that held them nothing holds them: all go, and the ring's next burst
//! passes as if there had never been any.
//!
//! A member without stages is asked for nothing but whether anybody's frames wait, once for each burst.
//!
//! # What can be lost and what cannot
//! Frames that wait when their member's rings are taken away, or have another owner, are dropped as `not-ready`, and those beyond the queue's limits
//! ([`crate::queue`]) as `rx-queue-full`. A ring or a table moves when what was fetched before has gone.

use windlass_frame::{BURST, Heads, Pick, Tick, Verdict};
use windlass_nic::Leaving;
use windlass_shm::Tails;
use windlass_stats::{Drop, MemberCounters};

use crate::egress::Context;
use crate::queue::Queues;
use crate::timers::Timers;
use crate::topo::Member;

/// What one worker's members have sent and their bridges do not know yet.
#[derive(Default)]
pub(crate) struct Ingress {
    pub(crate) queues: Queues,
    /// The attachments that its frames were fetched from, by member.
    attachments: Vec<(u16, u64)>,
    /// By member: when its first frame is due.
    due: Timers,
}

impl Ingress {
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

    /// A member whose first frame is due.
    pub(crate) fn first_due(&self, now: Tick) -> Option<u16> {
        self.due.first(now).map(|member| member as u16)
    }

    /// Puts a member's queue off until then.
    pub(crate) fn put_off(&mut self, member: u16, until: Tick) {
        self.due.set(u32::from(member), until);
    }

    /// Whether a member's frames that wait were fetched from this attachment of it.
    pub(crate) fn is_from(&self, member: u16, attachment: u64) -> bool {
        self.attachments.contains(&(member, attachment))
    }

    /// A burst from this attachment of a member passes the member's stages; what is held joins the queue.
    #[inline(never)]
    pub(crate) fn leave(
        &mut self,
        (member, attachment): (&Member, u64),
        counters: &MemberCounters,
        heads: &mut Heads,
        tails: &mut Tails<'_>,
    ) {
        let (from, now) = (heads.from.0, heads.now);
        let mut leaving = Leaving::new(heads, tails, self.queues.room(from));
        for stage in &member.ingress {
            stage.leave(&mut leaving);
        }
        let held = leaving.held();
        let mut has_waiting = self.has(from);
        if held.is_none() && !has_waiting {
            return;
        }
        let held = held.unwrap_or([now; BURST]);
        for (i, due) in held.into_iter().enumerate().take(heads.n) {
            let due = match heads.verdict[i] {
                Verdict::HELD => due,
                // Behind what waits.
                Verdict::NONE if has_waiting => now,
                _ => continue,
            };
            if !self.hold(heads, tails, i, due) {
                heads.verdict[i] = Verdict::drop(Drop::RxQueueFull);
                continue;
            }
            if !has_waiting {
                self.attachments.push((from, attachment));
            }
            has_waiting = true;
            counters.rx_held.add(1);
            heads.verdict[i] = Verdict::HELD;
        }
    }

    /// Has a frame wait; false if there is no room.
    fn hold(&mut self, heads: &Heads, tails: &Tails<'_>, i: usize, due: Tick) -> bool {
        let from = heads.from.0;
        let len = heads.meta[i].len as usize;
        let room = self.queues.room(from);
        if room.frames == 0 || room.bytes < len {
            return false;
        }
        let pick = Pick::frame(i, false);
        let first = self.queues.push(heads, tails, from, pick, due);
        if let Some(first) = first {
            self.due.set(u32::from(from), first);
        }
        first.is_some()
    }

    /// Forgets a member's first frames; how many there were, at most `most`.
    pub(crate) fn forget(
        &mut self,
        member: u16,
        most: usize,
        counters: Option<&MemberCounters>,
    ) -> usize {
        let n = self.queues.forget(member, most);
        match self.queues.due(member) {
            Some(due) => self.due.set(u32::from(member), due),
            None => {
                self.due.clear(u32::from(member));
                self.attachments.retain(|(other, _)| *other != member);
            }
        }
        if let Some(counters) = counters {
            counters.rx_held.add((n as u64).wrapping_neg());
        }
        n
    }

    /// Drops what waits of a member whose rings are taken away.
    pub(crate) fn purge(&mut self, member: u16, counters: Option<&MemberCounters>) {
        let n = self.forget(member, usize::MAX, counters);
        if let Some(counters) = counters {
            counters.drop_frames(Drop::NotReady, n as u64);
        }
    }

    /// Drops all that waits; how many frames.
    #[cold]
    pub(crate) fn give_up(&mut self, cx: &Context<'_>) -> u64 {
        let dropped = self.queues.len() as u64;
        let members: Vec<u16> = self.attachments.iter().map(|(member, _)| *member).collect();
        for id in members {
            let member = cx.topo.member(id);
            self.purge(id, member.and_then(|member| cx.counters(member)));
        }
        dropped
    }
}
