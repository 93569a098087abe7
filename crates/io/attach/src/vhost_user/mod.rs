//! # Purpose
//! vhost-user: a virtual machine, or a process with virtio-user, whose network device is virtqueues in memory that it
//! shares (VIRTIO 1.2, 2.7, 2.8 and 5.1; QEMU, docs/interop/vhost-user.rst).
//!
//! # Where it sits
//! ```text
//!  message, wire        the words of the protocol, pure; whole messages and their descriptors out of a socket
//!      |
//!  session, device      what a front end may say and is answered; its queues, and the rings that workers have
//!      |
//!  endpoint             the socket in both roles; holds a message back until workers have given the rings back
//!
//!  memory, guest_map    the regions that were announced; ranges of guest addresses, mapped and checked
//!      |
//!  queue, features      what both sides agreed on, refused where we do not do it
//!      |
//!  ring                 what the halves ask of a ring of either layout
//!      |
//!  split, packed        the words of one ring, and the walk over a chain of descriptors
//!      |
//!  rx, tx               the halves that workers use; announce joins a receive half to its session
//!
//!  iommu                the same for a guest behind an IOMMU; area: rings that lie page by page
//!  ring_progress        where packed rings stand, kept for the next daemon
//! ```
//!
//! # Model
//! The guest's transmit queue is our receive ring, and the other way round. Chains are given back in the order in
//! which they were made available, so one place says both how far the ring was read and how far it was given
//! back. A descriptor is read once; what was read is checked, and only that is used.
//!
//! A front end changes its memory, its rings or its log only by messages. One that concerns what workers use is taken, and
//! answered, after they have given the rings back and their grace period is over; then the rings are made anew. Only a
//! queue behind the first pair is enabled and disabled while they have it.
//!
//! Of a guest behind an IOMMU (`VIRTIO_F_ACCESS_PLATFORM`) every address has to be asked for. Its rings are with the workers
//! all the time; what the front end tells and takes back reaches them between two visits. No other guest pays for that.
//!
//! # Ownership and lifetime
//! A [`guest_map::GuestMap`] never changes. Each half holds one by `Arc`; another memory table means other halves. The
//! session keeps the mappings that the next table has too.
//!
//! # Limits
//! [`ring::CHAIN_MAX`] descriptors in a chain, one level of indirect tables, [`guest_map::REGIONS_MAX`] regions,
//! [`PAIRS_MAX`] queue pairs. A piece of a chain lies in one region.
//!
//! # Failure modes
//! A bad chain costs its own frame. An index that cannot be, or memory that was taken away, ends the connection
//! ([`guest_map::GuestMap::fail`]), and so does a message that is none.
//!
//! # Not done
//! Legacy devices, the control queue (which front ends serve), postcopy migration, host notifiers.

mod announce;
mod area;
pub mod device;
pub mod endpoint;
pub mod features;
mod fill;
pub mod guest_map;
mod iommu;
pub mod log;
pub mod memory;
pub mod message;
pub mod packed;
mod pieces;
pub mod queue;
mod reserve;
pub mod ring;
mod ring_progress;
pub mod rx;
pub mod session;
mod since;
pub mod split;
pub mod tx;
pub mod wire;

pub use endpoint::{VhostConf, VhostEndpoint, VhostRole};
pub use guest_map::{GuestMap, GuestMapError, GuestRegion};
pub use iommu::IotlbError;
pub use log::DirtyLog;
pub use queue::{Base, QueueError, QueueSetup};
pub use rx::VhostRx;
pub use session::{PAIRS_MAX, SessionConf};
pub use tx::VhostTx;
