//! Other processes and core files: their memory, mappings, threads, symbols, debug data, machine code and stacks.
//!
//! # Purpose
//! What a command needs to look at a program that was not prepared for it. Nothing is written into the program.
//!
//! # Where it sits
//! ```text
//!   windlass memory, inspect, trace
//!        |
//!   Memory                    Process (/proc/PID/mem), Core (ELF), Snapshot (tests)
//!   maps, Modules             which file is mapped where -> Elf -> symbols, unwinding tables
//!   Debug                     the sections that types and functions are read from, in the file or apart
//!   instructions              where a probe costs least, where a function returns
//!   Stopped                   all threads held by ptrace, their registers
//!        |
//!   windlass-sys, gimli, files
//! ```
//!
//! # Model
//! A reader copies bytes first and looks at the copy. Addresses are the program's, as `u64`. Little endian and 64 bits only.
//!
//! # What can be lost and what cannot
//! The memory of a running program changes while it is read. A caller that needs one moment stops the program with [`Stopped`], or
//! reads twice and compares.
//!
//! # Limits
//! [`maps::MAPPINGS_MAX`], [`elf::SECTION_MAX`], [`elf::SYMBOLS_MAX`], [`unwind::FRAMES_MAX`] and [`threads::THREADS_MAX`] bound what is read.
//!
//! # Failure modes
//! Every byte is hostile: of the program, of its files, of a core. Offsets are checked, loops and allocations are bounded, and what makes no
//! sense is absent. Nothing panics.
//!
//! # Not done
//! 32-bit and big-endian programs, compressed symbol tables (`.gnu_debugdata`).

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

pub mod corefile;
pub mod debug;
pub mod demangle;
pub mod elf;
pub mod instructions;
pub mod maps;
mod memory;
pub mod modules;
pub mod threads;
pub mod unwind;

pub use corefile::Core;
pub use debug::Debug;
pub use elf::Elf;
pub use memory::{Memory, Process, Snapshot};
pub use modules::{Module, Modules, Symbol};
pub use threads::Stopped;
