//! TAP: a network interface of the host or of a namespace, with the kernel's stack behind it.
//!
//! # Model
//! The interface carries the VNIC's own address: its stack is the guest. Offloads are on, so that 64 KiB segments and
//! unfinished checksums pass as they are. One queue for each worker; with several, each is pinned by a steering program
//! that sends a flow where the kernel's hash says, since tun's own automatic steering follows the queue of the last write
//! and reorders.
//!
//! # States
//! *Waiting* for a namespace that does not exist, or for an interface of the name to go away; *up*; and back to waiting
//! when the interface or its namespace is deleted.
//!
//! # Ownership and lifetime
//! The interface is persistent: without the daemon it keeps address, routes and MAC, and has no carrier. Only
//! [`TapEndpoint::delete`](crate::endpoint::Endpoint::delete) removes it, or [`remove_strays`] where it was moved away. What it has is left alone when a daemon comes
//! back; a new interface gets MAC, MTU and addresses and is set up. It bears a mark ([`TapConf::mark`]), and an
//! interface of the wanted name without it is nobody's business here: it is neither taken nor deleted.

pub(crate) mod address;
mod calls;
mod endpoint;
mod port;
mod strays;

pub use endpoint::{TapConf, TapEndpoint};
pub use port::{TapRx, TapTx};
pub use strays::remove_strays;
