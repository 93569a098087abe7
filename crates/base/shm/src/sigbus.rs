//! SIGBUS on foreign memory: zeros take the place of what a peer took away.
//!
//! # Model
//! A fixed table names every foreign mapping. The handler looks the faulting address up, maps
//! anonymous zeros over the whole region and marks the entry dead; the faulting instruction then
//! runs again and reads zeros. A SIGBUS anywhere else is not ours: the default action is restored
//! and the instruction faults again.
//!
//! # Synchronization
//! An entry is claimed by a compare-and-swap of `taken`, and filled while its `version` is odd: a handler that finds it odd, or
//! another one behind its two loads than before them, does not take them for a region. So it never pairs the length of a region
//! that is gone with the start of the next one. Entries are freed before their region is unmapped, so that the handler
//! never maps over an address that was given back.
//!
//! # Limits
//! [`ENTRIES`] foreign mappings at a time; one more is refused.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::Once;

/// Foreign mappings at a time.
pub(crate) const ENTRIES: usize = 32_768;

struct Entry {
    taken: AtomicBool,
    /// Odd while the region changes.
    version: AtomicUsize,
    base: AtomicUsize,
    len: AtomicUsize,
    dead: AtomicBool,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        taken: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        dead: AtomicBool::new(false),
    }
}; ENTRIES];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

impl Entry {
    /// Only for whoever has claimed it.
    fn fill(&self, base: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.dead.store(false, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Start and length of its region, if that has `at` in it.
    fn region_with(&self, at: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let base = self.base.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        (is_whole && at.wrapping_sub(base) < len).then_some((base, len))
    }
}

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
        entry.fill(base, len);
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
        if let Some((base, len)) = entry.region_with(at) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry that is used again and again never shows the start of one region with the length of another.
    #[test]
    fn regions_do_not_mix() {
        const PAGE: usize = 4096;
        let table: [Entry; 1] = [const {
            Entry {
                taken: AtomicBool::new(true),
                version: AtomicUsize::new(0),
                base: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                dead: AtomicBool::new(false),
            }
        }];
        let is_over = AtomicBool::new(false);
        let looks = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let found = table[0].region_with(40 * PAGE);
                    assert_eq!(
                        found, None,
                        "the start of the short one, the length of the long one"
                    );
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            // A busy machine may run all rounds before the reader's first look: until both have done enough.
            let mut rounds = 0;
            while (rounds < 10_000_000 || looks.load(Ordering::Relaxed) < 10_000)
                && !reader.is_finished()
            {
                rounds += 1;
                table[0].fill(PAGE, 16 * PAGE);
                table[0].len.store(0, Ordering::Release);
                table[0].fill(32 * PAGE, PAGE);
                table[0].len.store(0, Ordering::Release);
            }
            is_over.store(true, Ordering::Relaxed);
            reader.join().expect("no mix");
        });
        table[0].fill(PAGE, 16 * PAGE);
        assert_eq!(table[0].region_with(16 * PAGE), Some((PAGE, 16 * PAGE)));
        assert_eq!(table[0].region_with(17 * PAGE), None);
    }
}
