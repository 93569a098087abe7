//! What `gen` and `sink` are made of: frames that carry a number and a time, and what is counted of them.
//!
//! # Where it sits
//! ```text
//! gen:  template or replay -> schedule -> reserve, commit -- libwindlass --> bridge
//! sink: peek, release -> mark -> tally (loss, order), meter (rates, times) -> rows
//! ```
//! Each is one thread: it does what it can, then sleeps in poll(2) until the device, a signal, a report or the next frame is due ([`Watch`]).
//!
//! # Model
//! A generated frame carries a [`Mark`]: who sent it, its number, its flow and the time at which it was due. Times are of
//! `CLOCK_MONOTONIC`, which all processes of a host share. With a rate, the time is that of the schedule, not that of the send: what waits because the
//! generator or the bridge is late counts into its latency (no coordinated omission).
//!
//! # Limits
//! Numbers and times have 40 bits: the order of 2^39 frames is told apart, and a latency of up to 18 minutes. Latencies between hosts mean nothing.

mod burst;
mod device;
mod mark;
mod meter;
mod replay;
mod schedule;
mod tally;
mod template;
mod watch;

pub(crate) use burst::Burst;
pub(crate) use device::open;
pub(crate) use mark::{HEAD_BYTES, Mark};
pub(crate) use meter::Meter;
pub(crate) use replay::Replay;
pub(crate) use schedule::{Rate, Schedule};
pub(crate) use tally::{Tally, Told};
pub(crate) use template::{Sizes, Station, Template};
pub(crate) use watch::{Turn, Watch, now_ns};

use windlass_api::ErrorCode;
use windlass_sys::Errno;

use crate::failure::Failure;

/// Frames of one call.
pub(crate) const BATCH: usize = 32;

/// The frame that comes next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    pub(crate) bytes: usize,
    /// When a file says that it passed, in nanoseconds.
    pub(crate) time_ns: Option<u64>,
}

/// Why a call of an open device failed for good.
pub(crate) fn gone(what: &str, errno: Errno) -> Failure {
    match errno {
        Errno::NXIO => Failure::new(
            ErrorCode::NotFound,
            what,
            "the device is gone",
            "see \"windlass vnd list\"",
        ),
        errno => Failure::new(
            ErrorCode::Host,
            what,
            errno.to_string(),
            "see the daemon's log",
        ),
    }
}

/// Where frames come from.
pub(crate) trait Frames {
    /// The next frame; none if there is none any more. The same until it is taken.
    fn next(&mut self) -> Result<Option<Next>, Failure>;

    /// Appends the next frame, which is due at this time.
    fn take(&mut self, due_ns: u64, to: &mut Vec<u8>);
}
