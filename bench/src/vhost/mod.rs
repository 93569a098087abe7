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
//! One queue pair, one region, no event index; indirect tables and offloads only where segments are sent. A back end that
//! returns buffers in another order than it was given them is an error, whether or not `VIRTIO_F_IN_ORDER` was agreed on.

mod front;
mod null;
mod packed;
pub(crate) mod place;
mod split;

use clap::ValueEnum;
use serde::Serialize;

use crate::frames::{SEGMENT_HEADERS, SEGMENT_MSS};
use crate::generator::Inlet;
use crate::memory::Memory;

pub use front::{Link, Port, PortOptions};
pub use null::forward;
pub use packed::{PackedIn, PackedOut};
pub use place::{Buffers, Pieces};
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

impl Layout {
    /// As it is called, in tables and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Layout::Split => "split",
            Layout::Packed => "packed",
        }
    }
}

/// Bytes of the header before each frame (`virtio_net_hdr_v1`, virtio 1.2, section 5.1.6).
pub const HEADER_BYTES: u32 = 12;

/// The header of a segment that is sent: partial checksum of TCP, to be cut as TCP over IPv4.
const SEGMENT_HEADER: [u8; HEADER_BYTES as usize] = {
    let [mss_low, mss_high] = SEGMENT_MSS.to_le_bytes();
    let headers = SEGMENT_HEADERS as u8;
    [1, 1, headers, 0, mss_low, mss_high, 34, 0, 16, 0, 0, 0]
};

/// A receive queue whose buffers are looked at one by one, whatever part of a frame is in them.
pub trait Written: Inlet {
    /// As [`Inlet::take`], with the bytes that were written into each buffer, virtio header included where it has one;
    /// none if the back end named another buffer.
    fn take_written(&mut self, most: u16, look: impl FnMut(&Memory, u32, Option<u32>)) -> u16;
}
