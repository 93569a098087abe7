//! The state machines of IEEE 802.1D-2004, clause 17.22 to 17.31, each a function of one port and a [`View`] of its bridge.
//!
//! # Model
//! A function makes at most one transition and says what it did ([`Step`]). [`crate::Bridge`] calls all of them for all ports until
//! nothing moves. Port Timers (17.22) is no function: a timer is a moment ([`crate::port::Timer`]). Port Receive (17.23) is
//! [`Bridge::receive`](crate::Bridge::receive).

pub(crate) mod information;
pub(crate) mod migration;
pub(crate) mod role;
pub(crate) mod selection;
pub(crate) mod topology;
pub(crate) mod transmit;

#[cfg(doc)]
use crate::port::View;

/// What a machine did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Still,
    /// A transition of this port alone.
    Moved,
    /// setSyncTree (17.21.15): every port has to be in sync before it forwards.
    SyncTree,
    /// setReRootTree (17.21.14): ports that were root ports have to leave forwarding.
    ReRootTree,
    /// setTcPropTree (17.21.18): every other port tells of a topology change.
    PropagateChange,
}

impl Step {
    pub(crate) fn of(moved: bool) -> Step {
        if moved { Step::Moved } else { Step::Still }
    }
}
