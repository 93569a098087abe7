//! Leaving the rings alone: another daemon is to go on with them, or this one ends.
//!
//! # Model
//! A worker that is to rest fetches nothing more and sends what lies in its private memory. It answers when nothing does any
//! more, or at the end of its time: what is left then is dropped, as `not-ready` before its bridge and as `peer-down` behind it,
//! and floods are cut. Notifications that were put off are given. After the answer no ring is read or written, and rings that are attached wait, until the worker is told to go on.

use std::sync::mpsc::SyncSender;

use windlass_frame::Tick;

use super::{RxRing, State, Worker};
use crate::context::Context;
use crate::counters::WorkerCounters;
use crate::egress::Egress;
use crate::flood::Floods;
use crate::ingress::Ingress;

/// What a worker that rests has to do.
pub(super) struct Rest {
    until: Tick,
    /// Where the number of frames goes that were dropped; none once it has.
    done: Option<SyncSender<u64>>,
}

impl Rest {
    /// Whether frames may still be in private memory.
    pub(super) fn is_begun(&self) -> bool {
        self.done.is_some()
    }

    /// Answers once nothing is in private memory.
    #[cold]
    pub(super) fn go_on(
        &mut self,
        cx: &Context<'_>,
        ingress: &mut Ingress,
        egress: &mut Egress,
        floods: &mut Floods,
        counters: &WorkerCounters,
    ) {
        let waits = !ingress.is_empty() || egress.held_frames() > 0 || !floods.is_empty();
        if waits && cx.now < self.until {
            return;
        }
        if let Some(done) = self.done.take() {
            let dropped = ingress.give_up(cx) + egress.give_up(cx, counters) + floods.give_up(cx);
            // One that has stopped waiting goes on, or ends.
            let _ = done.send(dropped);
        }
    }
}

impl Worker {
    /// Lets all rings rest.
    pub(super) fn begin_rest(&mut self, until: Tick, done: SyncSender<u64>) {
        // Whoever asked has withdrawn it, or is told.
        for one in std::mem::take(&mut self.moves) {
            one.refuse();
        }
        let section = self.qsbr.section();
        for (slot, ring) in self.rings.all_mut() {
            match ring.state {
                State::Dead => continue,
                State::Idle | State::Unsure(_) => {
                    ring.port.disarm(&section);
                    self.looks.clear(slot);
                    self.armed = self.armed.saturating_sub(1);
                }
                State::Active | State::Warm(_) | State::Resting | State::Suspended => {}
            }
            ring.state = State::Resting;
        }
        self.run.clear();
        self.rest = Some(Rest {
            until,
            done: Some(done),
        });
    }

    /// Goes on with the rings.
    pub(super) fn end_rest(&mut self) {
        if self.rest.take().is_none() {
            return;
        }
        let is_resting = |ring: &RxRing| ring.state == State::Resting;
        for token in self.rings.tokens(is_resting) {
            self.serve_again(token);
        }
    }
}
