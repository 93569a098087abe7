//! SIGBUS on foreign memory: zeros take the place of what a peer took away.
//!
//! # Model
//! A fixed table names every foreign mapping. The handler looks the faulting address up, maps
//! anonymous zeros over the whole region and marks the entry dead; the faulting instruction then
//! runs again and reads zeros. A SIGBUS anywhere else is not ours: the default action is restored
//! and the instruction faults again.
//!
//! # Synchronization
//! An entry is claimed by a compare-and-swap of `state` (free to claimed), filled, and made live
//! by a release store of `len`; the handler reads `len` with acquire. Entries are freed before
//! their region is unmapped, so that the handler never maps over an address that was given back.
//!
//! # Limits
//! [`ENTRIES`] foreign mappings at a time; one more is refused.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Once;

/// Foreign mappings at a time.
pub(crate) const ENTRIES: usize = 32_768;

struct Entry {
    taken: AtomicBool,
    base: AtomicUsize,
    len: AtomicUsize,
    dead: AtomicBool,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        dead: AtomicBool::new(false),
    }
}; ENTRIES];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// An entry of the table; freed when dropped.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Enters a region, or `None` when the table is full.
    pub(crate) fn new(base: usize, len: usize) -> Option<Watch> {
        install();
        let i = TABLE.iter().position(|e| {
            e.taken
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        let entry = TABLE.get(i)?;
        entry.dead.store(false, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.len.store(len, Ordering::Release);
        HIGHEST.fetch_max(i + 1, Ordering::AcqRel);
        Some(Watch(i))
    }

    /// Whether the region was replaced by zeros.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        TABLE
            .get(self.0)
            .is_none_or(|e| e.dead.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(entry) = TABLE.get(self.0) {
            entry.len.store(0, Ordering::Release);
            entry.taken.store(false, Ordering::Release);
        }
    }
}

/// How many regions are watched: for tests of leaks and for the resource report.
pub fn regions_in_use() -> usize {
    TABLE
        .iter()
        .filter(|e| e.taken.load(Ordering::Relaxed))
        .count()
}

/// Installs the handler, once for the process. [`crate::Mapping::foreign`] does it by itself.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid one (default action, empty mask).
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: `action` is a valid sigaction whose handler is async-signal-safe (see `on_sigbus`).
        unsafe { libc::sigaction(libc::SIGBUS, &action, core::ptr::null_mut()) };
    });
}

/// Async-signal-safe: atomics, one mmap and one sigaction.
extern "C" fn on_sigbus(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, or none.
    let info = unsafe { info.as_ref() };
    // SAFETY: a SIGBUS carries an address.
    let at = info.map_or(0, |info| unsafe { info.si_addr() } as usize);
    for entry in TABLE.iter().take(HIGHEST.load(Ordering::Acquire)) {
        let len = entry.len.load(Ordering::Acquire);
        let base = entry.base.load(Ordering::Relaxed);
        if len != 0 && at >= base && at < base + len {
            // SAFETY: the range is one live mapping of ours (the entry is freed before it is unmapped), so that nothing
            // else lies there; mmap is a bare system call.
            let got = unsafe {
                libc::mmap(
                    base as *mut libc::c_void,
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if got != libc::MAP_FAILED {
                entry.dead.store(true, Ordering::Release);
                return;
            }
        }
    }
    // SAFETY: restoring the default action of a signal has no preconditions.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
