//! Counters of members and workers, the one list of reasons for which a frame is dropped, and a histogram of times.
//!
//! # Purpose
//! Every frame that enters the daemon is accounted for: it is delivered, held, or dropped under a
//! [`Drop`] reason. The reason's name is the counter's, the metric label's, the column's and the
//! manual entry's, so that one word leads from a graph to this file.
//!
//! # Model
//! Frames are conserved at each stage. For one member, over its life:
//!
//! ```text
//! rx + cut      = unicast + flooded + local + ingress drops + held   (Ingress)
//! offered       = unicast frames sent to it + flood copies sent to it
//! offered + cut = delivered + egress drops + held                    (Egress)
//! ```
//!
//! and over a whole bridge `sum(offered) = sum(unicast) + sum(copies) + sum(span) + sum(own)`, where `copies` is
//! the fan-out of the frames that a member had flooded, `span` counts what span members were offered, and `own` what the
//! daemon itself sent. A GSO frame counts once; the frames that
//! software segmentation made of it count in `segments`.
//!
//! # Synchronization
//! Each (member, worker) pair has a [`MemberCounters`] of its own: a [`Counter`] has one writer, so
//! that counting is a load, an add and a store. Readers add the blocks up and may see a burst
//! half counted; they never see a counter go backwards.
//!
//! # Limits
//! Counters are 64 bits wide and do not wrap in practice (584 years at a billion a second).
#![forbid(unsafe_code)]

mod drops;
mod histogram;
mod member;

pub use drops::{Drop, Stage};
pub use histogram::Histogram;
pub use member::{EgressTotals, IngressTotals, MemberCounters, MemberTotals};
pub use windlass_sync::{Counter, Padded};
