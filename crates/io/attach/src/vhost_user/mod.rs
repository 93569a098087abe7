//! # Purpose
//! vhost-user: a virtual machine, or a process with virtio-user, whose network device is split virtqueues in memory
//! that it shares (VIRTIO 1.2, 2.7 and 5.1).
//!
//! # Where it sits
//! ```text
//!  guest_map            the guest's memory: ranges of guest addresses, mapped and checked
//!      |
//!  queue, features      what both sides agreed on, refused where we do not do it
//!      |
//!  split                the words of one ring, and the walk over a chain of descriptors
//!      |
//!  rx, tx               the halves that workers use
//! ```
//!
//! # Model
//! The guest's transmit queue is our receive ring, and the other way round. Chains are given back in the order in
//! which they were made available, so one index says both how far the available ring was read and how far the used
//! ring was written. A descriptor is read once; what was read is checked, and only that is used.
//!
//! # Ownership and lifetime
//! A [`guest_map::GuestMap`] never changes. Each half holds one by `Arc`; another memory table means other halves.
//!
//! # Limits
//! [`split::CHAIN_MAX`] descriptors in a chain, one level of indirect tables, [`guest_map::REGIONS_MAX`] regions. A
//! piece of a chain lies in one region.
//!
//! # Failure modes
//! A bad chain costs its own frame. An index that cannot be, or memory that was taken away, ends the queue:
//! [`guest_map::GuestMap::fail`].
//!
//! # Not done
//! The socket and its messages, packed rings, dirty logging, an IOMMU, legacy devices, control and several queue
//! pairs that the guest switches on and off.

pub mod features;
pub mod guest_map;
pub mod queue;
pub mod rx;
pub mod split;
pub mod tx;

pub use guest_map::{GuestMap, GuestMapError, GuestRegion};
pub use queue::{QueueError, QueueSetup};
pub use rx::VhostRx;
pub use tx::VhostTx;
