//! Frames to addresses that the search of an overlay is asked for ([`crate::questions`]): held, sent, dropped.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use windlass_bridge::fdb::Key;
use windlass_frame::{Heads, Pick, TxId};
use windlass_shm::Tails;
use windlass_stats::{Drop, MemberCounters};

use super::{ANY, Egress, SPILL_BURST};
use crate::capture::{Deaths, Way};
use crate::context::Context;
use crate::local::Notice;
use crate::questions::{self, Asker, Questions, Waiting};
use crate::queue::Rule;
use crate::topo::Member;

/// An overlay, and an address that it was asked for.
type Asked = (u16, Key);

impl Egress {
    /// Offers frames to an overlay's own place.
    #[cold]
    pub(super) fn offer_unknown(
        &mut self,
        cx: &Context<'_>,
        (member, asker): (&Member, &Asker),
        heads: &Heads,
        tails: &Tails<'_>,
        to: TxId,
        picks: &[Pick],
    ) {
        let Some(counters) = cx.counters(member) else {
            return;
        };
        let mut questions = self.questions.take().unwrap_or_default();
        for pick in picks {
            let (overlay, frame) = ((to.0, member, asker), (heads, tails, pick.index()));
            match questions.admit(cx, overlay, frame, self.spilled) {
                questions::Way::To(place, is_tagged) => {
                    let pick = Pick::frame(pick.index(), is_tagged);
                    self.send_known(cx, heads, tails, place, &[pick]);
                }
                questions::Way::Held => {
                    self.spilled += 1;
                    counters.held.add(1);
                }
                questions::Way::Drop(reason) => {
                    cx.drop((member, counters), heads, tails, reason, &[*pick]);
                }
            }
        }
        self.questions = Some(questions);
    }

    /// Sends frames that were offered to an overlay to one of its targets, which counts as the overlay does.
    fn send_known(
        &mut self,
        cx: &Context<'_>,
        heads: &Heads,
        tails: &Tails<'_>,
        place: TxId,
        picks: &[Pick],
    ) {
        let member = cx.topo.member(place.0);
        let Some((member, counters)) = member.and_then(|m| Some((m, cx.counters(m)?))) else {
            return;
        };
        self.uncork_one(cx, place);
        let taken = self.send_special(cx, member, counters, heads, tails, place, ANY, picks);
        let rest = picks.get(taken..).unwrap_or(&[]);
        cx.drop((member, counters), heads, tails, Drop::RingFull, rest);
    }

    /// The search has answered: what was held goes to this place, if there is one, and so does what follows.
    #[cold]
    pub(crate) fn answered(
        &mut self,
        cx: &Context<'_>,
        (overlay, key): Asked,
        place: Option<TxId>,
    ) {
        let member = cx.topo.member(overlay);
        let Some((member, counters)) = member.and_then(|m| Some((m, cx.counters(m)?))) else {
            // No topology has it any more: it is about to be purged.
            return;
        };
        let mut questions = self.questions.take().unwrap_or_default();
        let held = questions.answer((overlay, key), place, cx.now);
        let bridge = cx.topo.bridge(member.bridge);
        let tagged = |place: TxId| bridge?.leads(overlay, place.0, key.vid());
        let place = place.and_then(|place| Some((place, tagged(place)?)));
        let (mut own, mut store) = self.own.take().unwrap_or_else(Egress::room);
        for some in held.chunks(SPILL_BURST).filter(|_| place.is_some()) {
            let Some((place, is_tagged)) = place else {
                break;
            };
            own.clear(windlass_frame::RxId(overlay), cx.now);
            let mut tails = Tails::bind(&mut store, cx.section);
            let mut picks = [Pick::frame(0, false); SPILL_BURST];
            for (i, (waiting, pick)) in some.iter().zip(&mut picks).enumerate() {
                let pool = &questions.pool;
                pool.restore(&waiting.held, &mut own, &mut tails, i);
                *pick = Pick::frame(i, is_tagged);
            }
            own.n = some.len();
            let picks = picks.get(..some.len()).unwrap_or(&[]);
            self.send_known(cx, &own, &tails, place, picks);
        }
        self.own = Some((own, store));
        match place {
            Some(_) => free(&mut questions, held, Some(counters)),
            None => {
                let deaths = cx.deaths(&member.watches, Way::To);
                let why = (Drop::LookupRefused, deaths);
                self.lose_held(&mut questions, held, Some(counters), why);
            }
        }
        self.questions = Some(questions);
    }

    /// Frames that were held die.
    fn lose_held(
        &mut self,
        questions: &mut Questions,
        held: Vec<Waiting>,
        counters: Option<&MemberCounters>,
        (reason, deaths): (Drop, Option<Deaths<'_>>),
    ) {
        if let Some(deaths) = deaths {
            let shown = self.own.get_or_insert_with(Egress::room);
            for waiting in &held {
                deaths.tell_held(shown, &questions.pool, (&waiting.held, false), reason);
            }
        }
        if let Some(counters) = counters {
            counters.drop_frames(reason, held.len() as u64);
        }
        free(questions, held, counters);
    }

    /// Drops what has waited for an answer too long.
    #[inline]
    pub(super) fn end_unanswered(&mut self, cx: &Context<'_>) {
        let questions = self.questions.as_ref();
        if questions.is_some_and(|q| q.next_due().is_some_and(|due| due <= cx.now)) {
            self.drop_unanswered(cx);
        }
    }

    #[cold]
    fn drop_unanswered(&mut self, cx: &Context<'_>) {
        let Some(mut questions) = self.questions.take() else {
            return;
        };
        while let Some(((overlay, _), held)) = questions.take_due(cx.now) {
            let member = cx.topo.member(overlay);
            let deaths = member.and_then(|member| cx.deaths(&member.watches, Way::To));
            let counters = member.and_then(|member| cx.counters(member));
            self.lose_held(
                &mut questions,
                held,
                counters,
                (Drop::LookupTimeout, deaths),
            );
        }
        self.questions = Some(questions);
    }

    /// Drops what is held for an overlay that is being taken away.
    pub(super) fn purge_unknown(&mut self, rule: &Rule<'_>, counters: Option<&MemberCounters>) {
        let Some(mut questions) = self.questions.take() else {
            return;
        };
        let held = questions.purge(rule.member);
        self.lose_held(
            &mut questions,
            held,
            counters,
            (Drop::PeerDown, rule.deaths),
        );
        self.questions = Some(questions);
    }

    /// Lowers the count when this worker has sent what it held, and floods before this one are made.
    pub(crate) fn flushed_later(&mut self, flood: u64, left: Arc<AtomicUsize>) {
        let questions = self.questions.get_or_insert_default();
        questions.flushed_later(flood, left);
    }

    /// The table has an address: what follows needs no answer, once floods before this one are made.
    pub(crate) fn end_later(&mut self, flood: u64, asked: Asked) {
        let questions = self.questions.get_or_insert_default();
        questions.end_later(flood, asked);
    }

    /// Nothing goes to these places any more.
    #[cold]
    pub(crate) fn leave_places(&mut self, places: &[u16]) {
        if let Some(questions) = &mut self.questions {
            questions.leave(places);
        }
    }

    /// Does what waits for floods: the oldest of them has this number.
    #[inline]
    pub(crate) fn settle_unknown(&mut self, oldest: Option<u64>, notice: &Notice) {
        if let Some(questions) = &mut self.questions {
            questions.settle(oldest, notice);
        }
    }
}

/// Gives the memory of frames back.
fn free(questions: &mut Questions, held: Vec<Waiting>, counters: Option<&MemberCounters>) {
    if let Some(counters) = counters {
        counters.held.add((held.len() as u64).wrapping_neg());
    }
    for waiting in held {
        questions.pool.free(waiting.held);
    }
}
