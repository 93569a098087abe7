//! Packet socket: an existing interface of the host as a member of a bridge (the uplink).
//!
//! # Model
//! A raw packet socket with a virtio header before each frame that does not see what we send. The interface receives frames for the
//! addresses behind the bridge's other members, or is promiscuous (`filters`); by AF_XDP, a VNIC can have rings of its own (`rings`). The kernel takes VLAN tags out of received frames: they are put back, since the tag
//! decides where the frame goes. Not a TPACKET_V3 ring: its blocks retire on a timer.
//!
//! Making one takes the interface: it must have no addresses and no master (`share` overrides), and the host's stack is
//! kept off it by a program at its tc ingress that drops everything; packet sockets see frames
//! before that. The host is reached through a host VNIC.
//!
//! # States
//! *Waiting* for the interface to appear, to lose its addresses or to be set up; *up*.
//!
//! # Ownership and lifetime
//! The program is removed with the uplink and when the daemon ends. After a kill it stays, and the
//! next daemon either adopts it with the uplink or removes it ([`release_stale`]). Programs carry
//! the daemon's mark in their name.

mod endpoint;
mod filters;
mod port;
mod rings;

pub use endpoint::{PacketConf, PacketEndpoint, Untakeable, release_stale};
pub use port::{PacketRx, PacketTx};
