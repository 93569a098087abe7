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
//! Answers for neighbours, as a pure engine: who has which IP address, so that a question for it need not be flooded (RFC 9161 without EVPN).
//!
//! # Purpose
//! ARP requests and neighbour solicitations go to everybody. Where the answer is known the asker gets it from here. No clock, no I/O, no thread.
//!
//! # Where it sits
//! ```text
//!  frame for the daemon --> Neighbours::receive --> Outcome::Answer: to the asker, nobody else hears of the question
//!                                               --> Outcome::Pass:   to everybody
//!  members, links       --> Neighbours::set_port, link_down, remove_port
//!  a timer              --> Neighbours::advance
//! ```
//!
//! # Model
//! [`packet`] is ARP and neighbour discovery as bytes. [`Neighbours`] is a table: VLAN and IP address to MAC address and port. What is configured
//! ([`PortConf::fixed`]) or told ([`Neighbours::enter`]) is not learned over; of both, the former holds. Else senders of requests, solicitations and announcements are learned for [`LIFE_NS`]. Answers to others
//! are unicast and never come here.
//!
//! | what comes | learned | answered |
//! | --- | --- | --- |
//! | ARP request, neighbour solicitation | its sender | if the target is known, behind another port with [`PortConf::suppress`], and not both are [private](PortConf::is_private) |
//! | ARP probe (RFC 5227), solicitation for duplicate detection | no | the same: the asker has to hear that the address is taken; over IPv6 to all nodes |
//! | gratuitous ARP, unsolicited advertisement | its sender | no: others' caches have to hear of it |
//! | what cannot be read, ARP replies | no | no |
//!
//! An answer over IPv6 says whether the target is a router. A wrong one takes a router off its hosts' lists (RFC 4861, 7.2.5), so only ports behind which
//! no router can be ([`PortConf::is_host`]) are answered for.
//!
//! An address for which another MAC address speaks is the new one's, and not answered for [`DISPUTED_NS`]: the owner answers himself.
//!
//! # Limits
//! [`PORT_MAX`] learned addresses of a port, [`BRIDGE_MAX`] of a bridge. A bridge that is full takes one from the port that has most, if the new one has fewer.

mod neighbours;
pub mod packet;

pub use neighbours::{
    BRIDGE_MAX, Counts, DISPUTED_NS, LIFE_NS, Neighbours, Outcome, PORT_MAX, PortConf,
};
