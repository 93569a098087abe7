//! Headers as bytes: addresses, one-pass parsing, checksums, builders, tags, RSS hash, segmentation.
//!
//! # Purpose
//!
//! Everything that windlass knows about the layout of a frame, as pure functions on private byte
//! slices. No input makes them panic, loop without bound or read beyond the slice: they are the
//! first code that a guest's bytes meet.
//!
//! # Where it sits
//!
//! ```text
//!   engines (bridge, nic)     io/attach `fill`        tests, generator
//!        │ parse, tag              │ segment, checksum      │ build
//!        └───────────── windlass-wire (this crate) ─────────┘
//! ```
//!
//! # Model
//!
//! - [`mac`] and [`ether`] hold the names: [`MacAddr`], [`VlanId`], [`Tci`], ether types.
//! - [`parse`](mod@parse) turns the first private bytes of a frame into [`Layers`], a small `Copy`
//!   value of lengths and verdicts. It is given the frame's true length beside the bytes, so "those
//!   bytes were not given" ([`Layers::need`]) and "the frame is wrong" ([`Fault`]) stay apart.
//! - [`checksum`] is the Internet checksum over any number of pieces of any length.
//! - [`dhcp`] is what DHCPv4 and DHCPv6 say: ports, numbers, options.
//! - [`segment`] rewrites headers for software segmentation; the payload never passes through it.
//! - [`build`] writes headers; [`tag`] adds and removes 802.1Q tags in a buffer with headroom;
//!   [`toeplitz`] is the RSS hash.
//!
//! # Limits
//!
//! [`parse::TAGS_MAX`] stacked tags, [`parse::EXTENSIONS_MAX`] IPv6 extension headers,
//! [`parse::HEADERS_MAX`] bytes of headers. What lies beyond is reported as a [`Fault`], and the
//! frame remains forwardable by its addresses.
//!
//! # Not done
//!
//! Jumbograms (RFC 2675), tunnels, SCTP and IPsec beyond their protocol number, ARP and NDP views.
#![no_std]
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects,
        clippy::panic
    )
)]

#[cfg(test)]
extern crate std;

pub mod build;
pub mod checksum;
pub mod dhcp;
pub mod ether;
pub mod group;
pub mod host;
pub mod mac;
pub mod number;
pub mod parse;
pub mod segment;
pub mod tag;
pub mod toeplitz;

pub use checksum::Sum;
pub use ether::{Tci, VlanId};
pub use mac::MacAddr;
pub use parse::{Fault, Fragment, Kind, Layers, parse};
