//! The firewall of a member: what its packets may be, in both directions.
//!
//! # Purpose
//! Rules of the operator and of a zone's owner hold for a guest, whatever the guest runs.
//!
//! # Where it sits
//! ```text
//!  guest --> protection -> Firewall (out) -> maxbw -> bridge -> Firewall (in) -> maxbw --> guest
//!                              \------ Tracker (one for both) ------/
//! ```
//!
//! # Model
//! [`Compiled`] holds lists of rules, each of which has to let a packet pass: those of the operator for a zone and for a VNIC, and the owner's, so an owner can
//! narrow what the operator lets through and not widen it. In a list, the first rule that matches decides ([`Classifier`]); what
//! no rule matches passes. Members share what was compiled; a [`Policy`] is one member's, with what the rules have counted there. ARP, neighbour discovery and all that is not IP are no rule's ([`Seen::Free`]).
//!
//! A segment of TCP whose numbers do not fit its connection is dropped before rules are asked, if some rule asks about connections ([`Decision::Outside`]).
//!
//! A packet's [state](windlass_rules::State) is what the [`Tracker`] makes of it. It keeps each connection that rules have accepted, with the
//! decision, so that a packet of an established connection is found with two cache lines and no rule is asked. A decision holds for the
//! generation of the rules, the direction and the state: rules that have changed hold for all connections at once.
//!
//! Later parts of a packet have no ports: they go as the first part did, and are dropped if that was not seen since the rules last changed.
//!
//! A firewall says more than its decisions to whoever it was given ([`Tell`]): answers to the senders of what it rejects ([`Answer`]), and what
//! rules with `log` decide ([`Event`]), each within a token bucket of the member.
//!
//! # Ownership and lifetime
//! A member's tracker and its [`Ledger`] survive its rules. A [`Policy`] is replaced as a whole with the topology.
//!
//! # Synchronization
//! A lock around the tracker, taken once for each burst. Workers that have frames of one member at the same moment wait for each other for the
//! time of a burst.
//!
//! # Limits
//! The tracker's memory is its member's alone and does not grow. A bucket of 16 that is full of open connections takes no more: with half of the
//! room in use, and hashes that fall at random, that would befall one new connection in 250 (not measured).
//!
//! # What can be lost and what cannot
//! Packets that cannot be read are dropped. Without room a new connection is refused as `flow-limit`, where rules ask about
//! connections.
//!
//! # Not done
//! Connections of SCTP; helpers that read what FTP or SIP say; headers behind AH; quoted packets with IPv6 extension headers.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

mod burst;
mod class;
mod classify;
mod count;
mod packet;
mod policy;
mod reject;
mod search;
mod stages;
mod tell;
mod track;
mod window;

pub use classify::{BYTES_MAX, Classifier, CompileError, WORDS_MAX};
pub use count::Ledger;
pub use packet::{Packet, Part, Seen, Segment, read};
pub use policy::{Compiled, Counted, List, Policy};
pub use reject::{ANSWER_MAX, Answer};
pub use stages::{ANSWERS, Decision, Firewall, Owner};
pub use tell::{ANSWERS_PER_S, EVENTS_PER_S, Event, Tell, Told, What};
pub use track::{Tracker, WAYS};
