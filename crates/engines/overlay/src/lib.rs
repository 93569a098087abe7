//! VXLAN (RFC 7348) as a pure engine: what a tunnel endpoint decides about bytes.
//!
//! # Purpose
//! Everything about a tunnel that needs no socket and no clock: the header, what ECN becomes, which datagrams one call may
//! send and from which port.
//!
//! # Model
//! | module | decides |
//! | --- | --- |
//! | [`header`] | whether a datagram is VXLAN, and of which network |
//! | [`ecn`] | what congestion notification becomes, both ways |
//! | [`runs`] | which datagrams leave in one message |
//! | [`ports`] | which source port they leave from |
//! | [`merge`] | which inner segments become one, and what a peer has left to be done |
//! | [`too_big`] | who is told that a packet is too long |
//!
//! # Limits
//! VXLAN only: no Geneve, no GPE and no group policy. Reserved bits are sent as zero and ignored (RFC 7348, section 5).
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

pub mod ecn;
pub mod header;
pub mod merge;
pub mod ports;
pub mod runs;
pub mod too_big;

pub use header::Vni;
