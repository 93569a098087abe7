//! What a worker counts about itself.

use windlass_stats::Counter;

/// One worker's counters: written by it alone.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Visits that moved at least one frame.
    pub visits_busy: Counter,
    /// Visits that found nothing.
    pub visits_empty: Counter,
    /// Frames moved.
    pub frames: Counter,
    /// Time-stamp counter cycles of the visits that moved frames, and of floods.
    pub busy_cycles: Counter,
    /// Time-stamp counter cycles of the visits that found nothing.
    pub polling_cycles: Counter,
    /// Times that it slept.
    pub sleeps: Counter,
    /// Times that it gave its core to receivers that the kernel schedules.
    pub yields: Counter,
    /// Notifications sent.
    pub kicks: Counter,
    /// Sightings applied or posted.
    pub sightings: Counter,
    /// Sightings lost: beyond a burst's budget, the home worker's queue was full, or the table was on its way to another home.
    pub sightings_lost: Counter,
    /// Rings that it serves (a level).
    pub rings: Counter,
    /// Frames in its private memory: spilled, queued, or to be flooded yet (a level).
    pub held: Counter,
    /// Rounds of the loop: stands still while the worker sleeps, and if it hangs.
    pub rounds: Counter,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTotals {
    /// See [`WorkerCounters::visits_busy`].
    pub visits_busy: u64,
    /// See [`WorkerCounters::visits_empty`].
    pub visits_empty: u64,
    /// See [`WorkerCounters::frames`].
    pub frames: u64,
    /// See [`WorkerCounters::busy_cycles`].
    pub busy_cycles: u64,
    /// See [`WorkerCounters::polling_cycles`].
    pub polling_cycles: u64,
    /// See [`WorkerCounters::sleeps`].
    pub sleeps: u64,
    /// See [`WorkerCounters::yields`].
    pub yields: u64,
    /// See [`WorkerCounters::kicks`].
    pub kicks: u64,
    /// See [`WorkerCounters::sightings`].
    pub sightings: u64,
    /// See [`WorkerCounters::sightings_lost`].
    pub sightings_lost: u64,
    /// See [`WorkerCounters::rings`].
    pub rings: u64,
    /// See [`WorkerCounters::held`].
    pub held: u64,
    /// See [`WorkerCounters::rounds`].
    pub rounds: u64,
}

impl WorkerCounters {
    /// Reads them.
    pub fn totals(&self) -> WorkerTotals {
        WorkerTotals {
            visits_busy: self.visits_busy.get(),
            visits_empty: self.visits_empty.get(),
            frames: self.frames.get(),
            busy_cycles: self.busy_cycles.get(),
            polling_cycles: self.polling_cycles.get(),
            sleeps: self.sleeps.get(),
            yields: self.yields.get(),
            kicks: self.kicks.get(),
            sightings: self.sightings.get(),
            sightings_lost: self.sightings_lost.get(),
            rings: self.rings.get(),
            held: self.held.get(),
            rounds: self.rounds.get(),
        }
    }
}
