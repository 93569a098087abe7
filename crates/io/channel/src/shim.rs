//! The atomics and fences that the protocol uses: the standard library's, or loom's when a model is built.
//!
//! Only names are chosen here, except for the three functions below, where x86 is cheaper than the
//! C11 model: a locked instruction is a full fence.

pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::{compiler_fence, fence};

/// Whether a model has this fault in the protocol. Never outside a model.
macro_rules! faulty {
    ($fault:ident) => {{
        #[cfg(loom)]
        let faulty = $crate::model::fault($crate::model::Fault::$fault);
        #[cfg(not(loom))]
        let faulty = $crate::shim::NEVER;
        faulty
    }};
}

/// What [`faulty`] says outside a model.
#[cfg(not(loom))]
pub(crate) const NEVER: bool = false;

pub(crate) use faulty;

/// Adds to `word`, and lets no later load pass it: `lock xadd`.
#[inline(always)]
pub(crate) fn add_fenced(word: &AtomicU32, n: u32) {
    word.fetch_add(n, SeqCst);
    after_locked();
}

/// One fewer, unless there is none: a peer may have scribbled over the word.
pub(crate) fn lower(word: &AtomicU32) {
    let down = |n: u32| n.checked_sub(1);
    let _ = word.fetch_update(Release, Relaxed, down);
}

/// Stores into `word` with Release, and lets no later load pass it: `xchg`.
#[inline(always)]
pub(crate) fn store_fenced(word: &AtomicU32, value: u32) {
    word.swap(value, SeqCst);
    after_locked();
}

/// Lets no later load pass an earlier locked instruction. On x86 the instruction itself saw to that, and only the
/// compiler has to be told; elsewhere, as in the model, it takes a fence.
#[inline(always)]
pub(crate) fn after_locked() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    fence(SeqCst);
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    compiler_fence(SeqCst);
}

/// Where a `membarrier` of another process may put a fence: the compiler keeps the order, the processor need not.
#[inline(always)]
pub(crate) fn light() {
    #[cfg(loom)]
    crate::model::light();
    #[cfg(not(loom))]
    compiler_fence(SeqCst);
}

/// Makes every thread that runs library code pass a full fence.
pub(crate) fn heavy() {
    #[cfg(loom)]
    crate::model::heavy();
    #[cfg(not(loom))]
    let _ = rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited);
}

/// A full fence.
#[inline(always)]
pub(crate) fn fence_full() {
    fence(SeqCst);
}
