//! Virtual NICs: what is checked when a frame leaves one, before anything is decided about it, and [stages](IngressStage)
//! that a member's frames pass.
//!
//! # Purpose
//! A guest's driver, or the kernel behind a TAP, may leave work to the other side: a checksum to be
//! completed, a large segment to be cut. It says so in a virtio header, which is a peer's word and
//! no more. [`leave()`] holds it against our own parse of the frame and replaces it by an
//! [`Offload`](windlass_frame::Offload) that is true, or drops the frame as
//! [`Drop::BadOffload`](windlass_stats::Drop::BadOffload).
//!
//! The addresses that a guest uses are held against those that were named for it, and those that it was given while it works
//! ([`Guard`], [`Learner`]).
//!
//! # Where it sits
//! ```text
//!   rx_burst  -->  leave  -->  bridge  -->  tx_burst (passes the Offload on, or attach::soft)
//!   Claim          Offload
//! ```
//!
//! # Model
//! A checksum request is a *write primitive*: whoever completes it writes two bytes at a place that
//! the sender chose, after every check. Aimed at the source address of an IP header it would
//! rewrite an address that was found good. So a request is only passed on for the checksum field of
//! the transport header that we parsed ourselves; one for any other field is carried out here, on
//! the private bytes, before anybody decides anything, and only if the field lies behind every
//! header that was parsed.
//!
//! | claim | rule |
//! | --- | --- |
//! | none, or only unknown flag bits | nothing to do |
//! | `NEEDS_CSUM` at our TCP or UDP header, offset 16 or 6 | passed on |
//! | `NEEDS_CSUM` elsewhere (a sender's own tunnel) | field behind all headers and inside the packet, no segmentation: completed here |
//! | segmentation | with `NEEDS_CSUM` at our header, or `DATA_VALID`; type as parsed; not a fragment; no routing header; no padding; `gso_size` from 64; headers complete. What fits one segment becomes an ordinary frame |
//! | UFO, tunnel types, ECN without TCP | refused |
//! | `DATA_VALID` alone | passed on, for whoever does not change the frame |
//!
//! `hdr_len`, `num_buffers` and all that a receiver's side would fill in are never looked at. ECN is
//! computed from the CWR bit of the TCP header and not taken from the claim. A large segment with
//! `DATA_VALID` (receive offload of a device) has a whole checksum in its field, which is right for
//! none of the segments: it is replaced by the pseudo header's sum, and the frame is from then on
//! one that needs its checksum.
//!
//! # Ownership and lifetime
//! What a port must see to: a claim of a peer that did not negotiate it, and `DATA_VALID` from a
//! guest, are taken out before [`Heads::admit`](windlass_frame::Heads::admit).
//!
//! # Limits
//! A checksum that is completed here needs the whole packet in a slot of the deepening pool
//! ([`DEEP_BYTES`](windlass_frame::DEEP_BYTES) with the headroom, so packets up to 1,952 bytes); a
//! longer one is dropped as `BadOffload`. The pool has a slot for each frame of a burst, so no
//! honest frame is lost to its neighbours.
//!
//! # Failure modes
//! None but the drop. No input makes this panic or loop: the parse that asks for more bytes must
//! get further with each.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

mod flow;
mod guard;
mod learn;
mod leave;
pub mod rings;
mod stage;

pub use flow::FlowHash;
pub use guard::{DhcpNospoof, Guard, IpNospoof, Protection, is_readable};
pub use learn::{
    CLAIMS_MAX, Conf, Given, Holders, LEASES_MAX, Learner, Lease, Method, Methods, PENDING_MAX,
    Table, Trusted,
};
pub use leave::leave;
pub use stage::{
    EgressStage, Entering, Fate, IngressStage, Leaving, MacNospoof, Plain, Restricted, protect,
};
