//! What a capture is made of, apart from where frames come from and where records go.
//!
//! # Purpose
//! A worker that carries frames of a captured link runs the reader's filter on them and copies the start of those that match into
//! memory that the reader shares. The reader writes them to a file, or as text.
//!
//! # Where it sits
//! ```text
//! windlass snoop --filter text--> libpcap --> Program --daemon checks it--> worker: Program::run
//!                                                                             |
//!       pcapng, text <-- ring::Reader <====== shared memory ====== ring::Writer <--'
//! ```
//!
//! # Model
//! [`Program`] is classic BPF: instructions that were checked, and their interpreter, which runs them over a burst in one pass. [`ring`] is
//! the memory between one capture's workers and its reader. [`pcapng`] writes the file format; [`packets`] reads it, and pcap.
#![forbid(unsafe_code)]

pub mod packets;
pub mod pcapng;
mod program;
pub mod ring;

pub use program::{Frames, INSTRUCTIONS_MAX, Instruction, Invalid, LANES, Program, Runs, number};
