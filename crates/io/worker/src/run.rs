//! The thread of a worker: the clock, the kernel, and round after round.

use std::time::Duration;

use windlass_frame::Tick;
use windlass_sync::tsc::{self, Clock};
use windlass_sys::epoll::Events;

use crate::worker::{Next, Worker};

/// Runs a worker until it is told to stop.
pub(crate) fn run(mut worker: Worker, clock: Clock) {
    let mut events = Events::default();
    let mut next = Next::Look;
    loop {
        let ready = match next {
            Next::End => return,
            Next::Poll => 0,
            Next::Look => wait(&worker, &mut events, Some(Duration::ZERO)),
            Next::Sleep(until) => wait(&worker, &mut events, until.map(|until| left(until, clock))),
        };
        let ready = events.iter().take(ready).map(|ready| ready.token);
        next = worker.round(&mut tsc::now, ready);
    }
}

/// Waits for descriptors; how many are ready.
fn wait(worker: &Worker, events: &mut Events, timeout: Option<Duration>) -> usize {
    worker.epoll.wait(events, timeout).unwrap_or(0)
}

/// How long it is until then.
fn left(until: Tick, clock: Clock) -> Duration {
    Duration::from_nanos(until.since(Tick(clock.ns(tsc::now()))))
}
