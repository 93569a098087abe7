//! The type graph: types, functions and the places of their arguments, from the debug data of a program.
//!
//! # Purpose
//! One description of C, C++ and Rust types for everything that shows or follows data: the language of `windlass trace`, the commands of
//! `windlass inspect`, and the printing of values.
//!
//! # Where it sits
//! ```text
//!   windlass trace, windlass inspect     the language, probes, commands
//!        |
//!   Types                                nodes by TypeId, functions by address and by name, lines, printing
//!        |
//!   gimli, BTF, CTF, C                   DWARF 2 to 5; tables of types; declarations that a person writes
//!        |
//!   bytes of sections                    given by the caller (windlass-target reads files)
//! ```
//!
//! # Model
//! - **Lazy.** A [`TypeId`] is a promise: its [`Node`] is read when somebody asks for it. Going through a pointer reads one more node.
//! - **By address first.** [`Types::at`] reads one compilation unit. **By name second.** [`Types::named`] and [`Types::functions`] pass once
//!   over all units, and keep an index of names in memory; the caller can keep it for the next time ([`Types::keeping`]).
//! - **Tables of types** (BTF, CTF, type files) number their types; such a number and a place in DWARF are both what a promise is of. A type
//!   file stands beside DWARF, which may have lines and functions only.
//! - Addresses are those in the file. The caller subtracts and adds how far the file was moved.
//! - [`Place`] says where a value is at one instruction. What is not there is [`Place::Absent`] with the reason; nothing is guessed.
//!
//! # Ownership and lifetime
//! [`Types`] borrows the sections and owns everything that it read from them. It is used by one thread.
//!
//! # Limits
//! [`DEPTH_MAX`], [`STEPS_MAX`] and [`MEMBERS_MAX`] and [`print::Limits`] bound recursion, location programs, children of an entry, and text.
//!
//! # Failure modes
//! Every byte of the sections is hostile. A unit that cannot be read is skipped and counted ([`Types::skipped`]); a type that makes no sense
//! is [`Node::Unknown`]. Nothing panics.
//!
//! # Not done
//! CTF of illumos (another format of that name), types and static variables local to functions by name, virtual bases.

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

mod btf;
mod bytes;
mod compact;
mod ctf;
mod declare;
mod dwarf;
mod flat;
mod functions;
mod graph;
mod index;
mod kept;
mod lines;
mod node;
mod outline;
mod place;
pub mod print;
mod pull;
mod spelled;
mod split;
mod write;

pub use compact::build_id;
pub use ctf::{Inflate, plain_ctf};
pub use declare::DeclareError;
pub use flat::Signature;
pub use functions::{Function, FunctionRef, Inlined, Parameter};
pub use graph::{Path, Step, TYPE_FILE, Types};
pub use index::{Found, Kind, LookupError, fits};
pub use kept::Keep;
pub use lines::Line;
pub use node::{Arm, Encoding, Member, Node, PointerKind, RecordKind, TypeId, Variants};
pub use place::{Piece, Place};
pub use split::{Load, Part, Skeleton, skeletons};

/// How deep types, scopes and references may nest.
pub const DEPTH_MAX: usize = 64;
/// Steps of a location's program.
pub const STEPS_MAX: usize = 1000;
/// Children of an entry that are looked at: members, values of an enum, parameters.
pub const MEMBERS_MAX: usize = 65_536;

/// A section of a file: where it is loaded, and its bytes (not compressed).
#[derive(Debug, Clone, Copy, Default)]
pub struct Section<'a> {
    /// Its address in the file; 0 for debug data.
    pub address: u64,
    /// Its content; empty if the file has no such section.
    pub bytes: &'a [u8],
}
