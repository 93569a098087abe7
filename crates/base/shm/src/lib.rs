//! Shared memory: mappings, borrowed foreign memory, and the copies between them.
//!
//! # Purpose
//! Everything that another process may write while we read it passes through this crate. A
//! [`Mapping`] is one shared memory object, over a [`Region`]; a [`Foreign`] is a piece of it that was found to lie
//! inside; it can be copied, and nothing else. There is never a Rust reference into it.
//!
//! # Where it sits
//! ```text
//! peer's memory --- Mapping ---> Foreign<'q> --- copy ---> Heads (private)      base/frame
//!                                    |
//!                                    +--- Tails<'q>: what lies behind the snapshot of each frame
//!                                             |
//!                                             +--- copy ---> ForeignMut<'q>: the receiver's memory
//! ```
//!
//! # Ownership and lifetime
//! A [`Foreign`] borrows a quiescent [`Section`]: while it exists, its worker is online, and a
//! mapping is freed only after every worker has been quiescent (QSBR). The port that owns the
//! mapping cannot be dropped by its own worker inside the section either. Code that keeps a slice
//! over a quiescent point does not compile.
//!
//! # Failure modes
//! A peer may shrink or punch the file behind a mapping. The SIGBUS that follows is answered by
//! mapping zeros over the whole region and marking it dead ([`Mapping::is_dead`]); the copy goes
//! on with zeros and the port is closed by its worker. Files whose pages a peer can make us wait
//! for (FUSE and every other file system but tmpfs and hugetlbfs) are refused.
//!
//! # Synchronization
//! Copies out of and into foreign memory are inline assembly, hence opaque to the compiler: a
//! racing writer changes the bytes that we get, and nothing else. Words that synchronize (ring
//! indexes, flags) are read and written by the atomic accessors of [`Mapping`] and [`word`].

mod copy;
mod foreign;
mod mapping;
mod quota;
mod region;
mod sigbus;
mod smaps;
mod tails;
pub mod word;

pub use copy::{Isa, copy_in, copy_out, copy_through, snapshot};
pub use foreign::{Foreign, ForeignMut};
pub use mapping::{MAP_BYTES_MAX, MapError, Mapping};
pub use quota::{Pool, Quota};
pub use region::{Extent, HUGE_MIN, HUGE_PAGE_BYTES, HugePages, Pages, Region, Table};
pub use sigbus::{install as install_sigbus_handler, regions_in_use};
pub use smaps::{Backing, backings, reason};
pub use tails::{ARENA_BYTES, ARENA_SLOT, SegStore, Tails};
pub use windlass_sync::qsbr::Section;
