//! The mark by which the death of a process is known before the kernel closes its sockets.
//!
//! # Model
//! A registered process holds a robust mutex (pthread_mutexattr_setrobust(3)) in line 0 of its status page, which its peers
//! map. However the thread that holds it ends, the kernel marks the mutex's word with `FUTEX_OWNER_DIED` when it lets go of the
//! thread's memory, which it does before it closes descriptors. So whoever has seen any effect of the death (a FIN, a wait
//! for the process) sees the mark, by one load: nothing is pushed to a ring that nobody will read.
//!
//! # Limits
//! The mark is of the thread that registered. If that one ends and the process goes on, the word is 0, and peers know of the
//! death only what the broker tells, until a thread that joins a socket takes the mutex anew.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use windlass_channel::layout::Line;

use crate::process::{identity, status};

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= size_of::<Line<AtomicU32>>());

/// What the kernel sets in the word of a robust mutex whose owner died: linux/futex.h.
const OWNER_DIED: u32 = 0x4000_0000;
/// The mutex of this process, once it has one.
static MUTEX: AtomicPtr<libc::pthread_mutex_t> = AtomicPtr::new(std::ptr::null_mut());

/// Takes the mark of a new status page: the calling thread's end is the process's from now on.
pub fn arm(page: *mut u8) {
    let mutex: *mut libc::pthread_mutex_t = page.cast();
    // SAFETY: zeros are room for attributes, which the next call makes valid.
    let mut kind: libc::pthread_mutexattr_t = unsafe { std::mem::zeroed() };
    // SAFETY: live attributes.
    unsafe { libc::pthread_mutexattr_init(&raw mut kind) };
    // SAFETY: as above.
    unsafe { libc::pthread_mutexattr_setpshared(&raw mut kind, libc::PTHREAD_PROCESS_SHARED) };
    // SAFETY: as above.
    unsafe { libc::pthread_mutexattr_setrobust(&raw mut kind, libc::PTHREAD_MUTEX_ROBUST) };
    // SAFETY: line 0 of the page is large enough, is nobody else's, and is never unmapped.
    if unsafe { libc::pthread_mutex_init(mutex, &raw const kind) } != 0 {
        return;
    }
    MUTEX.store(mutex, Release);
    arm_again();
}

/// Takes the mark if no thread has it, and those that peers from former brokers look at.
pub fn arm_again() {
    let mutex = MUTEX.load(Acquire);
    // Only who has a slot is seen to end.
    if mutex.is_null() || identity::process_slot() == 0 || identity::thread_slot().is_none() {
        return;
    }
    for mutex in status::former_pages().map(<*mut u8>::cast).chain([mutex]) {
        take(mutex);
    }
}

/// The calling thread has this mark from now on, unless another one has it.
fn take(mutex: *mut libc::pthread_mutex_t) {
    // SAFETY: a mutex that was made in this process and is never unmapped.
    if unsafe { libc::pthread_mutex_trylock(mutex) } == libc::EOWNERDEAD {
        // SAFETY: locked by this thread a moment ago.
        unsafe { libc::pthread_mutex_consistent(mutex) };
    }
}

pub fn let_go() {
    let mutex = MUTEX.load(Acquire);
    // Null in a forked child, which has no marks.
    let own = (!mutex.is_null()).then_some(mutex);
    for mutex in status::former_pages().map(<*mut u8>::cast).chain(own) {
        // SAFETY: a mutex that was made in this process and is never unmapped. A thread that has not locked it is refused.
        unsafe { libc::pthread_mutex_unlock(mutex) };
    }
}

/// In a forked child: the mark is its parent's.
pub fn forked() {
    MUTEX.store(std::ptr::null_mut(), Relaxed);
}

#[inline(always)]
pub fn is_dead(mark: u32) -> bool {
    mark & OWNER_DIED != 0
}
