//! What engines see of a burst of frames: private headers, metadata and verdicts.
//!
//! # Purpose
//! A receive port borrows up to [`BURST`] frames from its peer and copies the first bytes of each
//! into [`Heads`]. Engines decide, and rewrite headers, on those private bytes only. Nothing here
//! points into foreign memory, hence nothing here has a lifetime.
//!
//! # Model
//! [`Heads`] is one burst. What loops over whole bursts scan (addresses, verdicts) is laid out as
//! a structure of arrays; what is touched once for each frame ([`Meta`], [`Snap`]) as an array of
//! structures. A frame's private bytes stand at `meta.at` in its [`Snap`], with [`HEADROOM`] bytes
//! before them for tags and tunnels; those of the few frames that need more than the snapshot are
//! moved to a slot of [`DEEP_BYTES`], where every byte is still read from the peer once.
//!
//! # Ownership and lifetime
//! A worker owns one `Heads`. It is overwritten by each visit; a verdict never outlives its visit.
//!
//! # Limits
//! [`BURST`] frames, [`BURST_BYTES`] bytes and [`BURST_SEGMENTS`] segments end a burst, whichever
//! comes first. A frame can be deepened to [`DEEP_BYTES`] less its headroom.
#![forbid(unsafe_code)]

mod heads;
mod offload;
mod verdict;

pub use heads::{DEEP_BYTES, DEEP_SLOTS, Deepen, Heads, Meta, Snap};
pub use offload::{Claim, Gso, Offload};
pub use verdict::{FloodId, Pick, RxId, Tick, TxId, Verdict};

/// Frames in a burst at most.
pub const BURST: usize = 64;
/// Bytes in a burst: a burst ends with the frame that reaches this sum. Keeps a burst of 64 KiB
/// segments inside the second-level cache.
pub const BURST_BYTES: usize = 256 * 1024;
/// Segments of foreign memory in a burst at most.
pub const BURST_SEGMENTS: usize = 512;
/// Free bytes before a frame in its snapshot: enough for VXLAN over IPv6 with a tag (74), and a whole number of
/// cache lines, so that the first 64 bytes of a frame lie in one.
pub const HEADROOM: usize = 128;
/// Bytes of each frame that are copied to private memory before anything is decided.
pub const SNAP: usize = 128;
/// The longest frame that passes: a 64 KiB segment with Ethernet header and two tags.
pub const FRAME_MAX: usize = 65_535 + 14 + 8;
