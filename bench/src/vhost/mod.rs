//! # Purpose
//! A guest in miniature: memory with one receive and one transmit virtqueue, and the front end of vhost-user that hands
//! them to a switch.
//!
//! # Model
//! A descriptor is one buffer, and descriptor `i` always stands for buffer `i`; rings are used in order. As DPDK's
//! driver it writes each descriptor anew, has the header right before the frame, polls, and asks for no interrupts.
//!
//! # Where it sits
//! The messages are the product's own ([`windlass_attach::vhost_user::message`]); everything that moves frames is
//! written apart from it, so that the generator cannot share a fault with what it measures.
//!
//! # Limits
//! One queue pair, one region, no indirect descriptors, no event index, no offloads. A back end that returns buffers in
//! another order than it was given them is an error, whether or not `VIRTIO_F_IN_ORDER` was agreed on.

mod front;
mod null;
mod packed;
mod place;
mod split;

use clap::ValueEnum;
use serde::Serialize;

pub use front::{Link, Port, PortOptions};
pub use null::forward;
pub use packed::{PackedIn, PackedOut};
pub use split::{SplitIn, SplitOut};

/// How virtqueues are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Three rings.
    Split,
    /// One ring.
    Packed,
}

/// Bytes of the header before each frame (`virtio_net_hdr_v1`, virtio 1.2, section 5.1.6).
pub const HEADER_BYTES: u32 = 12;
