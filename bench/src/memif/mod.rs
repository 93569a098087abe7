//! # Purpose
//! Just enough of memif version 2 for a generator and a null switch: one region, polled rings.
//!
//! # Where it sits
//! The messages and offsets are the product's own ([`windlass_attach::memif`]); everything that moves frames is
//! written apart from it, so that the generator cannot share a fault with what it measures.

mod channel;
mod client;
mod ends;
mod ring;
mod server;

pub use channel::Channel;
pub use client::{BUFFER_ROOM, Port, PortOptions};
pub use ends::{MemifIn, MemifOut};
pub use ring::Ring;
pub use server::{Listener, Peer};
