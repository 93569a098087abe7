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
//! Where the endpoints of an overlay are: what is known, and how it is told.
//!
//! # Purpose
//! An overlay sends a frame to the host that has its destination. This crate has the table of those destinations and the two
//! formats that fill it: a JSON file, and the lines that a plugin and the daemon exchange. No clock, no I/O, no thread.
//!
//! # Where it sits
//! ```text
//!  plugin (a process) --lines--> line, protocol --entries--+
//!                                                          +--> table --differences--> the daemon --> forwarding table
//!  file ------------------------> files ---------records---+
//! ```
//!
//! # Model
//! - [`protocol`]: the messages of a plugin and to it, checked when they are decoded.
//! - [`mod@line`]: messages as lines, and lines out of a stream.
//! - [`files`]: illumos' JSON files.
//! - [`table`]: what is known of one overlay, and what of it has changed.
//!
//! # Limits
//! Each type names its own. What is beyond one is refused with a sentence, never cut off.

pub mod files;
pub mod line;
pub mod protocol;
pub mod table;
