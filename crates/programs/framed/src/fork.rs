//! Whether this process is the one that opened a handle, by one load.
//!
//! # Model
//! One page of the process holds the number of its generation. The kernel gives a child of fork(2) a page of zeros
//! (`MADV_WIPEONFORK`); the child's first open puts a new number there. A handle remembers the number that it was opened with.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Mutex;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use windlass_sys::Errno;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// The last number given in this process or, as they were at the fork, in its parents.
static LAST: Mutex<u32> = Mutex::new(0);

/// The generation of this process; never 0.
pub(crate) fn generation() -> Result<u32, Errno> {
    let mut last = LAST
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if PAGE.load(Ordering::Relaxed).is_null() {
        let (bytes, rights) = (1, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page =
            unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE) }?;
        // SAFETY: the page that was just mapped, which nobody else knows.
        unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) }?;
        PAGE.store(page.cast(), Ordering::Release);
    }
    let word = PAGE.load(Ordering::Relaxed);
    // SAFETY: a page that is never unmapped, and zeros are a number.
    let word = unsafe { &*word };
    if word.load(Ordering::Relaxed) == 0 {
        *last = last.wrapping_add(1).max(1);
        word.store(*last, Ordering::Relaxed);
    }
    Ok(word.load(Ordering::Relaxed))
}

/// Whether this process has this generation.
#[inline(always)]
pub(crate) fn is(generation: u32) -> bool {
    let word = PAGE.load(Ordering::Relaxed);
    // SAFETY: whoever has a generation has made the page, which is never unmapped.
    unsafe { &*word }.load(Ordering::Relaxed) == generation
}
