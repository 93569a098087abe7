//! # Purpose
//! What windlass is measured with: a generator for memif and vhost-user, a switch that does nothing, and a runner that puts windlass and
//! named peers in turn into the same place.
//!
//! # Where it sits
//! ```text
//!  memif-gen ──sends──▶ [ null-switch | windlassd | dpdk-testpmd | ovs-vswitchd ] ──▶ memif-gen counts
//!  vhost-gen                          ▲                                               vhost-gen
//!      ▲                              │
//!      └────── windlass-compare ──────┘   starts both, takes turns, prints the table
//! ```
//!
//! # What it shows
//! Every figure is taken with every subject in one run, in turns, and is shown as a median with its lowest and
//! highest value.
#![forbid(unsafe_code)]

pub mod compare;
pub mod core;
pub mod frames;
pub mod generator;
pub mod memif;
pub mod memory;
pub mod null_switch;
pub mod segments;
pub mod sock;
pub mod third;
pub mod vhost;
