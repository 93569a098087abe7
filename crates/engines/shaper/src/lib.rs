//! The bandwidth of a member and of its flows: who goes now, who waits, who is dropped.
//!
//! # Where it sits
//! ```text
//! guest --> stages -> Shaper (out) -> bridge -> stages -> Shaper (in) --> guest
//!                       \-> Backlog -/                      \-> Backlog -/
//! ```
//! Behind the stages of `windlass-nic`: what those drop takes no bandwidth.
//!
//! # Model
//! A [`Shaper`] is one direction of a member: at most one rate of its own ([`Bucket`]), and flows ([`Flow`]), each with counters,
//! a priority and perhaps a rate. A frame goes at once if both rates let it and none waits before it. Otherwise it waits in the
//! [`Backlog`] of its worker: for its flow's rate apart from all that is not in the flow, then for the member's. What waits for one rate
//! lies in fair queues ([`fair`]), which mark what they would drop for its delay, where the sender answers to marks ([`ecn`]).
//!
//! All but the two words of a bucket is one worker's: the state of queues is never shared. Several workers take turns at a rate.
//!
//! # What can be lost and what cannot
//! `matched = frames + drops + lost + held` of each flow ([`FlowCounters`]). Frames of one queue keep their order.
//!
//! The caller cuts large segments that would take long ([`Shaper::cuts`]): what is in one frame goes at once.
//!
//! # Limits
//! A rate has as much waiting as it takes in [`bucket::DELAY_NS`], of all workers together; the caller limits frames and bytes of
//! all of a member's queues.
//!
//! # Not done
//! **ECN fields of tunnelled packets** (RFC 6040): the outer header alone is marked.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

mod backlog;
pub mod bucket;
mod classify;
pub mod codel;
pub mod ecn;
pub mod fair;
mod shaper;

pub use backlog::{Backlog, Dropped};
pub use bucket::Bucket;
pub use classify::{Classifier, Direction};
pub use fair::Waiting;
pub use shaper::{Cause, Flow, FlowCounters, Place, Priority, Shaper};
