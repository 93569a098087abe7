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
//! IGMP and MLD snooping (RFC 4541) as a pure engine: who receives which group, and where routers are.
//!
//! # Purpose
//! Keeps multicast away from members of a bridge that did not ask for it. No clock, no I/O, no thread: time and frames come in; a
//! [`Relay`] for each frame, [`Query`]s and a new [`Snooper::version`] come out.
//!
//! # Where it sits
//! ```text
//!  frame for the daemon --> Snooper::receive --> Relay: to routers, to all, to nobody
//!  members, their links --> Snooper::set_port, remove_port
//!  a timer              --> Snooper::advance --> Snooper::take_queries
//!        ^                                       Snooper::version, to be compared: groups for the data plane
//!        +------------------ Snooper::due
//! ```
//!
//! # Model
//! [`message`] is the protocols as bytes. [`Snooper`] has, for each VLAN and family, the querier and the ports where routers are; for each VLAN and group
//! its ports. A *membership* is one port in one group of one VLAN.
//!
//! | what comes | what it does | where it goes |
//! | --- | --- | --- |
//! | report | the port's membership lasts for the membership interval | routers |
//! | leave, done, and a record that blocks sources | with [`PortConf::fast_leave`] the membership ends; else the querier asks the port twice, and the membership ends 2 s later | routers |
//! | query | a router is behind the port; its source may become the querier; about one group: the group's memberships end soon unless they are renewed | all |
//! | query whose source is unspecified | nothing | all |
//! | PIM hello, advertisement of a router (RFC 4286) | a router is behind the port | all |
//! | query, PIM, advertisement from a port with [`Routers::Never`] | [`Refused::Router`] | nobody |
//! | another type | nothing | all |
//!
//! A port can also be in a group at all times ([`Snooper::set_static`]): such a membership neither ages, nor is left, nor goes with the link.
//!
//! Groups are held without sources: who asks for some sources of a group gets all (RFC 4541, 2.1.2 allows it). 224.0.0.0/24, ff02::1 and
//! what is narrower have no memberships: everybody gets them.
//!
//! # States of a VLAN and family
//! | state | its groups | leaves it by |
//! | --- | --- | --- |
//! | open | go to everybody: nobody renews memberships | a general query of the elected querier, ours or another's |
//! | asked | the same, until receivers have answered | the response time of that query |
//! | snooped | go to members and routers only | the querier is silent for 255 s and this one is none; [`Snooper::reopen`] |
//!
//! The querier is the one with the lowest source; ours yields to any while its own source is unspecified (RFC 3376, 6.6.2).
//!
//! # Limits
//! [`PortConf::groups_max`] memberships of a port, [`Conf::groups_max`] of a bridge. A bridge that is full takes one from the port that has most, if
//! the new one has fewer; none that is there at all times is taken. Timers are one for each membership, router and querier: what is renewed is not entered anew.
//!
//! # Not done
//! Sources in forwarding; hosts told apart behind one port (fast leave ends a group for all of them); suppression of reports.

pub mod message;
mod snooper;
mod timers;

pub use message::{Asker, Family, Message, ParseError};
pub use snooper::{Conf, Group, PortConf, PortCounts, Query, Refused, Relay, Routers, Snooper};
