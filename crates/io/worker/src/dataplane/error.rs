//! What the control side cannot do: [`DataPlaneError`].

use thiserror::Error;

use windlass_overlay::Vni;

use super::overlays::TARGETS_MAX;
use super::{GRACE_MAX, SENDS};
use crate::capture::WATCHES;
use crate::local;

/// What cannot be done.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    /// The kernel refused something at the start.
    #[error("start of worker {worker}: {errno}")]
    Start {
        /// Which worker.
        worker: usize,
        /// Why.
        errno: rustix::io::Errno,
    },
    /// It is captured as often as may be.
    #[error("it has {0} captures already", WATCHES / 2)]
    Captures,
    /// All numbers are taken.
    #[error("no more than {0} members on this daemon")]
    TooManyMembers(usize),
    /// There is no such bridge.
    #[error("no bridge with number {0}")]
    NoBridge(u16),
    /// There is no such member.
    #[error("no member with number {0}")]
    NoMember(u16),
    /// There is no such target.
    #[error("no target with place {0}")]
    NoTarget(u16),
    /// An overlay has no such network.
    #[error("the overlay has no network {0}")]
    NoVni(Vni),
    /// Another overlay has the network on the same tunnel endpoint.
    #[error("network {0} belongs to another overlay at the same address and port")]
    VniTaken(Vni),
    /// All places of targets are taken.
    #[error("no more than {TARGETS_MAX} targets on this daemon")]
    TooManyTargets,
    /// More frames of the daemon wait than may.
    #[error("{SENDS} frames wait to be sent")]
    Busy,
    /// No bridge sends such a frame.
    #[error("a frame has 14 to {max} bytes, not {0}", max = local::BYTES_MAX)]
    FrameSize(usize),
    /// There is no such worker.
    #[error("there is no worker {worker}: they are 0 to {last}")]
    NoWorker {
        /// The number.
        worker: u16,
        /// The last one there is.
        last: u16,
    },
    /// There is no such ring.
    #[error("there is no ring {ring}: there are {rings}")]
    NoRing {
        /// The number.
        ring: u16,
        /// Rings in use.
        rings: u16,
    },
    /// A worker has not given up what was to be moved.
    #[error("worker {0} could not give it up: try again")]
    NotMoved(u16),
    /// A worker does not answer.
    #[error("a worker did not reach a quiescent point within {} s", GRACE_MAX.as_secs())]
    Stuck,
}
