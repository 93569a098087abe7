#![no_std]
//! `libwindlass_alloc.so`: malloc's family for unmodified programs.
//!
//! # Purpose
//! Loaded by `LD_PRELOAD` (`windlass run --alloc`), it replaces the C library's malloc, C++'s new and delete, and everything beside them.
//!
//! # Where it sits
//! ```text
//!   program -> calls, operators    the names of C and C++; the fast paths
//!              cache               a thread's magazines: refill, flush, adoption
//!              heap                arena, classes, runs, mappings, each under its lock -> windlass-slab
//!              options             words of the environment -> windlass-memory
//!              debug               records, red zones and patterns of buffers; what an error says
//!              process             start, thread exit, fork
//!              pages               which pages a span gets
//!              umem                object caches
//!              report              a sentence and an abort
//!              sample, stack       which allocations are samples, and who made them
//!              status              the status file -> windlass-memory
//!              lock, sys, arch     futex locks, system calls, the thread's pointer
//! ```
//!
//! # Model
//! A thread's cache has a magazine for each class: an array of addresses outside the objects. `malloc` pops, `free` pushes, and neither
//! touches the object. `free` finds the class in one byte of a map with an entry for each 64 KiB of the arena. Every other case (an empty
//! magazine, a full one, no cache yet, a large object, a strange address) fails one of the tests that are there anyway, and takes a
//! slow path: [`cache::EMPTY`] is a cache whose magazines are empty and full.
//!
//! On average one allocation in 512 KiB is a sample: a cache counts bytes down, and the allocation that ends the countdown lies
//! in a slab of samples. Its release takes the slow path by itself, and the others know nothing of it.
//!
//! # Ownership and lifetime
//! A cache is its thread's. The destructor of a pthread key flushes it and puts it on a list, from which the next thread takes it; the thread
//! has [`cache::DEAD`] from then on and works without a cache. After fork the child adopts what the other threads' caches hold, one for each new thread.
//!
//! # Synchronization
//! Locks, in their order: the table of object caches and theirs, the list of caches, one of each class (one at a time; all, ascending, in fork), returns to the kernel, spans, mappings, debugging records,
//! samples, pages of the status file. The path of the status file comes before all.
//! Nothing is called under a lock but the kernel. `top` of a magazine is lowered before its objects are flushed and raised after they
//! were filled in: a fork in between loses objects and never doubles them.
//!
//! # Failure modes
//! Without memory the calls return NULL and ENOMEM, and nothing has changed. A wrong address is a sentence on stderr and an abort. An arena
//! that is refused is halved down to 64 MiB; without one, every object is a mapping.
//!
//! A process that can have no status file runs without one.
//!
//! # What it shows
//! The slow paths tell the status file what they changed; the fast paths know nothing of it.
//!
//! # Not done
//! Samples of objects that come from object caches. malloc inside a signal handler is undefined, as everywhere; `nosignal` names it.

extern crate std;

#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod arch;
mod cache;
mod calls;
mod debug;
mod figures;
mod heap;
mod lock;
mod operators;
mod options;
mod pages;
mod process;
mod report;
mod sample;
mod stack;
mod status;
mod sys;
mod umem;

/// What locks are made of: the core library's here, loom's where `tests/loom_locks.rs` compiles `lock.rs` for its models.
mod shim {
    pub use core::{cell::UnsafeCell, hint::spin_loop, sync::atomic::AtomicU32};
}
