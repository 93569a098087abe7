//! Tests across crates: what a person can observe of the real programs, in namespaces.
//!
//! # Purpose
//! A [`Lab`] is a place to break things in: network namespaces of its own, a directory of its own, and
//! [`Daemon`]s of the real `windlassd` in it, driven by the real `windlass`. A [`Wire`] sends and receives
//! single frames at an interface of a guest; a [`Guest`] is a whole virtual machine. The tests lie in
//! `tests/`, one file for each subject.
//!
//! # Where it sits
//! ```text
//! test -- windlass --> windlassd (in the namespace "host" of the lab)
//!   |                     | TAP           | TAP            | AF_PACKET
//!   +-- Wire, TCP --> namespace "a"    namespace "b"    veth in "host"
//! ```
//!
//! # Ownership and lifetime
//! Everything goes with the value that stands for it: daemons are ended, namespaces and the directory
//! removed when their owner is dropped, after a failed assertion too. Names carry the process id, so that
//! several test programs can run at once.
//!
//! # Failure modes
//! Where a test cannot run (no privilege, a program or a module of the kernel missing), [`Lab::start`] and
//! [`skip`] say `skipped: NAME: REASON`; the CI script counts those.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    reason = "a panic is how a test tells that its set-up failed"
)]

mod broker;
mod daemon;
mod guest;
mod lab;
mod ovs;
mod wire;

pub use broker::Broker;
pub use daemon::{Daemon, Done, program};
pub use guest::{Console, Dhcp, Guest, Image, Libvirt, check_qemu};
pub use lab::{
    Lab, Output, as_user, copy_program, run, skip, uninterrupted, until, until_some, write_program,
};
pub use ovs::Ovs;
pub use wire::{Frame, MARK, Mac, Wire, frame, mac, vlan_tag};
