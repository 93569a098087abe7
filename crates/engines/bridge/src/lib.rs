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
//! A learning bridge: forwarding table, VLANs, flooding, and the decision about each frame.
//!
//! # Purpose
//! Pure and deterministic: time comes in with each burst, randomness as seeds, and nothing here knows of ports, threads
//! or the kernel.
//!
//! # Where it sits
//! ```text
//!   io/worker:  rx_burst -> [nic] -> Bridge::forward -> [nic] -> group, copy
//!                                       |   ^
//!                             Sightings |   | lookups
//!                                       v   |
//!                                   FdbWriter -> Fdb
//! ```
//!
//! # Model
//! [`forward::Bridge`] is the immutable part: members, VLANs and flood sets of one topology. [`fdb::Fdb`] is the part
//! that changes by itself: addresses. It outlives topologies and is written by one [`fdb::FdbWriter`].
//!
//! # What can be lost and what cannot
//! Every frame gets exactly one verdict. A sighting may be lost, a frame without a verdict does not exist.
//!
//! # Not done
//! Spanning tree itself (its frames reach the daemon, see [`forward`]; [`member::PortState`] is what it decides) and multicast snooping itself ([`groups`] is what it found); stacked tags on a filtering bridge.

pub mod fdb;
pub mod flood;
pub mod forward;
pub mod groups;
pub mod member;
pub mod pace;
pub mod vlan;
