#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects,
        clippy::panic
    )
)]
//! Rapid spanning tree (IEEE 802.1D-2004, clauses 9 and 17) as a pure engine.
//!
//! # Purpose
//! Decides which ports of a bridge forward, so that bridges in a network with loops make a tree. No clock, no I/O, no thread: time
//! and BPDUs come in, [`Action`]s come out.
//!
//! # Where it sits
//! ```text
//!  frame for the daemon --bpdu::parse--> Bridge::receive --+
//!  link up, link down  ----------------> Bridge::set_link --+--> Bridge::take_actions
//!  a timer             ----------------> Bridge::advance  --+      Set(port, state)   to the data plane
//!        ^                                                  |      Flush(port)        to the forwarding table
//!        +------------------ Bridge::due -------------------+      Send(port, BPDU)   Bpdu::frame, out of the port
//! ```
//!
//! # Model
//! [`bpdu`] is clause 9: BPDUs as bytes. [`vector`] is what bridges compare: identifiers, priority vectors, times. The machines of
//! 17.22 to 17.31 are functions of one port each (the private module `machines`), which [`Bridge`] calls until none moves. Variables
//! have the standard's meaning and, where that is a word, its name.
//!
//! Timers are moments, not counters of seconds; a timer that the standard reloads for as long as a port has a role starts when the port
//! leaves the role. [`Bridge::due`] rounds up to [`bridge::GRAIN_NS`].
//!
//! Two guards are not in 802.1D: [`PortConf::root_guard`] (restrictedRole of 802.1Q) and [`PortConf::bpdu_guard`].
//!
//! # Where it differs from 802.1D-2004
//! As written, the machines can close a loop for a while when stale information goes around a cycle (count to infinity), or when an
//! agreement to what a port said before comes while it says something else. These rules prevent that; each was found by a seed of
//! `tests/simulation.rs`, and none changes what is sent.
//!
//! - allSynced also needs updtInfo to be false (as in 802.1Q).
//! - A designated port that hears an inferior one which learns is disputed, and stops (as in 802.1Q). So is one whose neighbour has a better
//!   way to the root than the port says: the neighbour goes by something older.
//! - Without agreement, a port spends FwdDelay in each state, not HelloTime (as in 802.1D-1998).
//! - An agreement counts for the root that it names, and is over when the port says another; one of a root port counts if its message age is one
//!   hop more than what this port says.
//! - A port that says what it said within 250 ms before, or that had another's information until now, takes no agreement for 250 ms: it may be an
//!   old one. Then it asks again.
//! - A port that becomes root port agrees anew.
//! - A new root port forwards at once only if its neighbour is nearer to the root than this bridge said it was, or if all designated
//!   ports are in sync (as EIGRP's feasibility condition).
//!
//! - A port on a hub that heard a BPDU is no edge before MaxAge without another one, not MigrateTime (17.23): the other ports of a hub may all be
//!   silent, and one of them be a root port that goes by what it heard before.
//!
//! # What can be lost and what cannot
//! A BPDU may be lost: a neighbour is believed for three hello times. Actions must not be: they are to be done in their order, and a state
//! before the next action. A port that stops does so before the bridge agrees to anything.
//!
//! # Limits
//! 4,095 ports. Times of others are forced into table 17-1's limits. A BPDU costs time in proportion to the number of ports. Who owns the
//! bridge limits how many it hears.
//!
//! # Failure modes
//! A BPDU that is malformed in any way is none ([`bpdu::Malformed`]). A port that hears its own BPDUs is no edge, and learns nothing else from
//! them.
//!
//! # Not done
//! **MSTP and per-VLAN trees; restrictedTcn; TRILL.**

pub mod bpdu;
pub mod bridge;
mod machines;
mod port;
pub mod vector;

pub use bridge::{Action, Bridge, BridgeConf, PortStatus};
pub use port::{MIGRATE_NS, PortConf, Role, State};
