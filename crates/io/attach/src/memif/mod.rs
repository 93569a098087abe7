//! # Purpose
//! memif, protocol version 2: shared-memory rings between two processes, one of which (the client) brings the memory.
//!
//! # Where it sits
//! ```text
//!  msg, layout, offload pure: the words of the protocol, the places in the memory, what descriptors say of frames
//!      |
//!  channel, hub         one control socket; the listening socket that several interfaces share
//!      |
//!  offer, places        what a client says, and the memory that it brings, cut by the slab engine
//!      |
//!  server, client       the two control endpoints; they end in a view and a set of rings
//!      |
//!  view, rings          the regions of one connection, and addresses checked to lie inside
//!      |
//!  rx, tx               the halves that workers use
//! ```
//! [`msg`] and [`layout`] touch no socket and no memory, so that a generator and a test speak the protocol with the
//! same words.
//!
//! # Ownership and lifetime
//! A connection's memory is a [`view::View`], shared by the endpoint and both halves; it never changes, and is unmapped
//! when the last of them is gone. An endpoint keeps it until [`crate::endpoint::Endpoint::detached`].
//!
//! # Limits
//! [`view::REGIONS`] regions, rings of at most `1 <<` [`layout::LOG2_RING_MAX`] descriptors, [`rx::CHAIN_MAX`] descriptors in a
//! frame.

mod channel;
pub mod client;
mod hub;
pub mod layout;
pub mod msg;
pub mod offer;
pub mod offload;
mod places;
pub mod rings;
pub mod rx;
pub mod server;
pub mod tx;
pub mod view;

pub use channel::{HANDSHAKE_TIMEOUT, Refusal};
pub use client::MemifClient;
pub use offer::ClientConfig;
pub use offload::Offloads;
pub use server::{MemifServer, ServerConfig};
