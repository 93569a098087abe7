//! Small frames that the visits of a round have gathered ([`crate::cork`]).

use windlass_frame::Tick;

use super::Worker;
use crate::context::Context;

impl Worker {
    /// Whether small frames are gathered.
    #[cfg(test)]
    pub(crate) fn has_corked(&self) -> bool {
        self.egress.has_corked()
    }

    /// Sends the small frames that are gathered; returns the time-stamp counter.
    #[cold]
    pub(super) fn uncork(&mut self, time: &mut impl FnMut() -> u64) -> u64 {
        let begin = time();
        let section = self.qsbr.section();
        let cx = Context {
            section: &section,
            topo: self.shared.topo.load(&section),
            lane: self.lane,
            now: Tick(self.clock.ns(begin)),
        };
        self.egress.uncork(&cx);
        let end = time();
        self.counters().busy_cycles.add(end.wrapping_sub(begin));
        end
    }
}
