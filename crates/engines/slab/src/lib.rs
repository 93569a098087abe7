#![no_std]
#![forbid(unsafe_code)]
//! A slab allocator that never touches the memory it hands out.
//!
//! # Purpose
//! The slow paths of an allocator, without its system calls: which addresses are free, in which order they are reused, and what goes
//! back to the kernel. Addresses are numbers; the caller has the memory, the locks and the records.
//!
//! # Where it sits
//! ```text
//!   a thread's magazines      arrays of addresses; how long each may be: Limits
//!        | batches
//!   Class: depot              up to 8 batches; takes whole ones
//!        | objects
//!   Class: slabs              64 to 256 KiB each; a bitmap outside the slab
//!        | units of 64 KiB
//!   Spans                     2 MiB each; the fullest one with room serves; also runs of units for large requests
//!        | ranges
//!   the caller's arena        made usable as it grows, given back to the kernel as Spans::excess says
//!
//!   Cache, Handle             the same for values of a Rust type with a place in a region
//!   Mappings                  requests above a span: an open hash of starts and lengths
//! ```
//!
//! # Model
//! - **M1** An address is in exactly one place: the program, a magazine, the depot, or a slab's bitmap.
//! - **M2** A unit belongs to a slab from [`Class::add`] until the slab is in a chain of [`Emptied`].
//! - **M3** A slab whose objects are all free is on no list. [`Class::flush`] returns it at once; [`Class::take_waiting`] does if its class has a
//!   constructor. A class without a depot keeps one of them: [`Class::take_spare`].
//! - **M4** The sum of limit times size over a thread's magazines is at most its cap: [`Limits`].
//! - **M5** Backed units that hold nothing are at most the bound of [`Spans::bound`] after [`Spans::excess`] returned `None`. Those do not count that
//!   lie in a page of the reserve ([`Pages::Reserved`]) of which another unit is in use.
//!
//! # Ownership and lifetime
//! Records ([`Slab`], [`Span`], [`Mapping`]) are the caller's memory, outside the arena. All of them start as zeros.
//!
//! # Synchronization
//! None here. A [`Class`] and the records of its slabs belong to one lock; [`Spans`] belongs to another, which is taken
//! inside it; [`Mappings`] to a third.
//!
//! # Failure modes
//! A wrong address is a [`Fault`] and changes nothing.
//!
//! # Not done
//! Runs of several whole spans.

mod class;
mod geometry;
mod limits;
mod mappings;
mod objects;
mod sizes;
mod span;

pub use class::{Class, DEPOT_MAX, Depot, Emptied, Fault, NoDepot, Records, Slab, Taken};
pub use geometry::Geometry;
pub use limits::Limits;
pub use mappings::{Mapping, Mappings};
pub use objects::{Cache, Handle, Object};
pub use sizes::{
    BATCH_MAX, CLASSES, MAGAZINE_MAX, PLACES, SMALL_MAX, TABLE_FINE, TABLE_WIDE, aligned_class,
    batch, batch_of, class_of, limit_first, limit_max, size, units,
};
pub use span::{Huge, Pages, Range, Span, Spans};

/// Bytes of a unit: slabs and runs are whole units.
pub const UNIT: usize = 64 << 10;
/// Units of a span.
pub const SPAN_UNITS: usize = 32;
/// Bytes of a span.
pub const SPAN: usize = UNIT * SPAN_UNITS;
