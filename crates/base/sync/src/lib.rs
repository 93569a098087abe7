//! Lock-free mechanisms: rings, quiescent states, leases, a serialization queue, clocks and
//! prefetch.
//!
//! # Purpose
//!
//! Everything in windlass that two threads touch at once is built from the pieces in this crate, so
//! that memory orderings are argued about in one place, modelled with loom, and nowhere else. The
//! engines forbid `unsafe`; what they need of it (the time-stamp counter, prefetch) is here behind
//! safe calls.
//!
//! # Where it sits
//!
//! ```text
//!   io/worker  io/attach   engines   programs/windlassd
//!        \         |          |         /
//!         +--------+----------+--------+
//!                       |
//!                   base/sync          depends on nothing
//! ```
//!
//! # Model
//!
//! | need | piece |
//! | --- | --- |
//! | one thread hands values to one other | [`spsc`] |
//! | many threads post to a mailbox | [`mpsc`] |
//! | readers follow a pointer without any shared write | [`qsbr`] |
//! | several workers transmit to one ring, copies outside the lock | [`leases`] |
//! | many threads leave work for whoever is inside | [`squeue`] |
//! | one writer shows a small consistent snapshot | [`seqlock`] |
//! | one thread counts, others read | [`Counter`], each on a line of its own by [`Padded`] |
//! | what time is it, in cycles | [`tsc`] |
//! | start a cache miss before it hurts | [`prefetch`] |
//!
//! # Synchronization
//!
//! Every lock-free module carries an ordering table: which store pairs with which load, and what
//! breaks without the pair. The models are `tests/loom_*.rs` and run with
//! `RUSTFLAGS="--cfg loom" cargo test -p windlass-sync --release --test 'loom_*'`.
//! Loom explores the C11 memory model for small numbers of threads and operations; the same
//! structures run with real threads in the unit tests and under the thread sanitizer.
//!
//! # Limits
//!
//! Capacities are fixed at construction, and no push, pop, lease or read allocates. x86-64 and aarch64 only.
//!
//! # Failure modes
//!
//! All threads belong to one process, so a thread that dies inside a structure is a crash of the
//! process and not a case that the structures repair. A full queue hands the value back.

mod cell;
mod counter;
pub mod leases;
pub mod mpsc;
mod padded;
pub mod prefetch;
pub mod qsbr;
pub mod seqlock;
mod shim;
pub mod spsc;
pub mod squeue;
pub mod tsc;

pub use counter::Counter;
pub use padded::Padded;
pub use prefetch::pause;
