//! Frames that are gathered before they are sent ([`crate::cork`]).

use windlass_frame::{Heads, Pick, TxId};
use windlass_shm::Tails;
use windlass_stats::MemberCounters;

use super::Egress;
use crate::context::Context;
use crate::cork;
use crate::topo::Member;

impl Egress {
    /// Begins a visit: whether its source has more frames, so that small ones may wait for those.
    #[inline(always)]
    pub(crate) fn begin_visit(&mut self, has_more: bool) {
        self.may_cork = has_more;
    }

    /// Whether frames are gathered, for which [`Egress::uncork`] is to be called.
    #[inline(always)]
    pub(crate) fn has_corked(&self) -> bool {
        self.has_corked
    }

    /// Frames that are gathered.
    pub(super) fn corked(&self) -> usize {
        self.cork.as_ref().map_or(0, |cork| cork.len())
    }

    /// Offers frames to a member that wants them gathered.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn offer_corked(
        &mut self,
        cx: &Context<'_>,
        member: &Member,
        counters: &MemberCounters,
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        picks: &[Pick],
    ) {
        let mut small = picks.iter().map(|pick| &heads.meta[pick.index()]);
        if !self.may_cork || !self.waiting.is_empty() || !small.all(cork::is_small) {
            self.uncork_one(cx, to);
            self.send_now(cx, member, counters, heads, tails, to, picks);
            return;
        }
        let mut rest = picks;
        while !rest.is_empty() {
            let cork = self.cork.get_or_insert_default();
            let known = cork.find(to);
            let at = match known {
                Some(at) if !cork.is_of(at, member) => {
                    self.uncork_at(cx, at);
                    continue;
                }
                None if rest.len() >= cork::ENOUGH => {
                    self.send_now(cx, member, counters, heads, tails, to, rest);
                    return;
                }
                Some(at) => Some(at),
                None => {
                    let shared = cx.topo.members.get(usize::from(to.0));
                    shared.and_then(|member| cork.begin(to, member.as_ref()?))
                }
            };
            let taken = at.map_or(0, |at| cork.add(at, heads, tails, rest));
            self.has_corked = true;
            counters.held.add(taken as u64);
            match at.filter(|at| cork.is_full(*at)) {
                Some(at) => self.uncork_at(cx, at),
                None if taken < rest.len() => self.uncork(cx),
                None => {}
            }
            rest = rest.get(taken..).unwrap_or(&[]);
        }
    }

    /// Sends what is gathered.
    #[cold]
    pub(crate) fn uncork(&mut self, cx: &Context<'_>) {
        while self.has_corked {
            self.uncork_at(cx, 0);
        }
    }

    /// Sends what is gathered for a member, before frames that are to follow it.
    #[inline]
    pub(super) fn uncork_one(&mut self, cx: &Context<'_>, to: TxId) {
        let cork = self.cork.as_ref().filter(|_| self.has_corked);
        if let Some(at) = cork.and_then(|cork| cork.find(to)) {
            self.uncork_at(cx, at);
        }
    }

    fn uncork_at(&mut self, cx: &Context<'_>, at: usize) {
        let Some(mut cork) = self.cork.take() else {
            return;
        };
        if !cork.is_empty() {
            let when = (cx.section, cx.now);
            cork.take(at, when, |to, member, heads, tails, picks| {
                if let Some(counters) = cx.counters(member) {
                    self.send_now(cx, member, counters, heads, tails, to, picks);
                    counters.held.add((picks.len() as u64).wrapping_neg());
                }
            });
        }
        self.has_corked = !cork.is_empty();
        self.cork = Some(cork);
    }
}
