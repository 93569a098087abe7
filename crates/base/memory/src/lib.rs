#![no_std]
#![forbid(unsafe_code)]
//! What the allocator `libwindlass_alloc.so` and the programs around it share: the layout of the status file that a process publishes, and the table of options.
//!
//! # Purpose
//! The library cannot be linked into another program: its malloc would replace that program's. It writes the file, `windlass memory` reads it, and
//! both take every offset from here. [`options`] are the words of the environment, from which the library's parser and the manual page are made.
//!
//! # Where it sits
//! ```text
//!   programs/alloc (status)  -- stores to XxxRow, a shared mapping -->  PID.START
//!   windlass memory          <-- reads Xxx from bytes, by pread(2) --
//! ```
//!
//! # Model
//! The file is `$XDG_RUNTIME_DIR/windlass/memory/PID.START`, or below the first of [`BASES`] that the process can use: `START` is field 22 of
//! `/proc/PID/stat`. The file is a row for the header, a few for the process, and tables ([`Table`]). A row is a sequence number and
//! fields of 64-bit words, little endian. One list of fields makes the reader's struct ([`Thread`]) and the writer's ([`ThreadRow`]).
//!
//! `in use` = what slabs gave out (`objects - in_slabs - in_depot`, times `size`) - what magazines hold (`cached` of all threads)
//! \+ object caches without a class (`objects - in_slabs`, times `size`) + large runs (`used_units - slab_units`) + mappings.
//!
//! # Ownership and lifetime
//! The process makes the file and unlinks it when it exits. A file stays after kill -9, `_exit`, or exec of a program that does not use the library. It is dead
//! if no process `PID` started at `START`, or if that process does not map it: its inode is not in `/proc/PID/maps`. The library and the reader remove it then. The
//! process locks it (flock(2)) as long as it is mapped, because to another PID namespace every process seems to be gone: a locked file is never removed.
//!
//! # Synchronization
//! A row has one writer at a time. It makes the number odd, stores, and makes the number even: [`Sequence::write`]. The first store is ordered before the others by a
//! release fence, and the last one is a release store. A reader copies the row twice; if both copies are equal and the number is even, the row is whole.
//! Rows are consistent each by itself, not with one another.
//!
//! # What can be lost and what cannot
//! The slow path alone writes: figures lag by at most a magazine for each thread and class. Object caches beyond the table's rows are not told. Rows that the file system has no room for are not there (zeros).
//!
//! # Failure modes
//! The reader takes all of it for foreign: any word may be anything.

pub mod debug;
mod layout;
pub mod options;
mod rows;

/// What rows are made of: the core library's words here, loom's where `tests/loom_rows.rs` compiles `rows.rs` for its models.
mod shim {
    pub use core::sync::atomic::{AtomicU64, fence};
}

pub use layout::*;
pub use rows::{Field, Sequence};
