//! AF_XDP: an interface of the host as a member of a bridge, through rings in memory that the kernel fills.
//!
//! # Purpose
//! What the [`packet`](crate::packet) uplink does, without a system call for each frame. It is a mode of that uplink, which
//! takes the interface, keeps the host's stack off and notices its end; here are memory, rings and program.
//!
//! # Where it sits
//! ```text
//!    driver --> our XDP program --> receive ring of the frame's queue --> worker --> transmit ring --> driver
//!                     |
//!                     +--> kernel's stack --> packet socket --> worker
//! ```
//!
//! # Model
//! A socket for each queue of the interface; all share one piece of memory, half of each queue's frames to receive into and half
//! to send from. The program gives every frame to the sockets; on an interface that is shared with the host, those for
//! addresses of VNICs only. The others go on to the kernel, and by way of the packet socket to the bridge as well, as they
//! do without XDP.
//!
//! # Ownership and lifetime
//! A received frame is borrowed from its place in the memory until the visit's release, which puts the place into the fill
//! ring. The program is attached by a link: with the descriptor, at the latest with the process, it is gone.
//!
//! # What can be lost
//! What finds no room in a receive ring, or no free place: the kernel counts it, and the member shows it as `kernel_drops`, with the
//! frames that the interface refused.
//!
//! # Failure modes
//! A descriptor outside of its queue's frames, or an index that jumps, ends the connection; it is made anew.
//! Where the kernel or the driver refuses, [`Unavailable`] says why and what to do, and the packet socket carries everything.
//!
//! # Limits
//! Frames have one place each: an MTU up to [`MTU_MAX`]. Frames come and go without offloads: checksums are completed and segments
//! cut by us. On a veth, whose frames come with checksums left open, those are recognized and completed.

mod memory;
mod port;
mod setup;
#[cfg(test)]
mod tests;

pub use memory::MTU_MAX;
pub use port::{XdpRx, XdpTx};
pub use setup::{Attached, Unavailable, XdpConf};
