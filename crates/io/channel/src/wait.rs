//! Sleeping: the status page, and the slots through which epoll instances show that they sleep.
//!
//! # Model
//! A sleeper on one descriptor raises the channel's `attn` ([`Incoming::fall_asleep`](crate::Incoming::fall_asleep)).
//! For an epoll instance that would be a store per member, so a channel names up to four **slots**: lines of the
//! receiver's status page, one per instance that holds the socket. The instance raises its line
//! ([`StatusPage::raise`]),
//! issues [`heavy_barrier`] if a member is in stream mode, takes its news once more, and sleeps in the kernel.
//!
//! # Synchronization
//! | sleeper | sender |
//! | --- | --- |
//! | raise `attn` or the line; *fence* | `head` (or `k_sent`); *fence* |
//! | look at `stream`: `membarrier` | in stream mode: no fence, the `membarrier` is one here |
//! | look at the ring (or the news) | set the news, look at `attn`, slots, lines |
//!
//! One of the two sees the other. The news is set between the fence and the look at the slots.

#[cfg(not(loom))]
use std::ptr::NonNull;

use crate::layout::{Line, STATUS_LINES, Status};
use crate::shim::{AtomicU32, Ordering, add_fenced};

/// The slot that always counts as asleep: waiters in several processes, or more than four instances.
pub const SLOT_ALWAYS: u8 = 255;
/// The first line that an epoll instance may have; line 0 is the process.
pub const SLOT_FIRST: u8 = 1;

/// A mapped status page: read-write in its own process, read-only in the peers.
#[derive(Clone, Debug)]
pub struct StatusPage {
    #[cfg(not(loom))]
    page: NonNull<Status>,
    #[cfg(loom)]
    page: loom::sync::Arc<Status>,
}

// SAFETY: the page consists of atomics.
#[cfg(not(loom))]
unsafe impl Send for StatusPage {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for StatusPage {}

impl StatusPage {
    /// Takes a mapping of a status page.
    ///
    /// # Safety
    /// [`STATUS_BYTES`](crate::layout::STATUS_BYTES) bytes at `page` are mapped, page-aligned, of a file
    /// that cannot shrink, and
    /// stay mapped for as long as any copy of the value lives. [`StatusPage::raise`] and [`StatusPage::lower`] need it
    /// writable.
    #[cfg(not(loom))]
    pub const unsafe fn new(page: NonNull<u8>) -> StatusPage {
        let page = page.cast();
        StatusPage { page }
    }

    #[cfg(loom)]
    pub(crate) fn model() -> StatusPage {
        let lines = std::array::from_fn(|_| Line::default());
        let page = loom::sync::Arc::new(Status { lines });
        StatusPage { page }
    }

    #[inline(always)]
    fn line(&self, slot: u8) -> &AtomicU32 {
        #[cfg(not(loom))]
        // SAFETY: mapped and aligned (`new`); all atomics.
        let lines = &unsafe { self.page.as_ref() }.lines;
        #[cfg(loom)]
        let lines = &self.page.lines;
        #[allow(clippy::indexing_slicing)] // Masked by the length, a power of two.
        let line: &Line<AtomicU32> = &lines[slot as usize & (STATUS_LINES - 1)];
        line
    }

    /// Shows that an epoll instance is about to sleep. A full fence: what is looked at afterwards is seen as it is.
    pub fn raise(&self, slot: u8) {
        add_fenced(self.line(slot), 1);
    }

    /// Shows that it is awake again. A page that its owner has scribbled over stays at 0.
    pub fn lower(&self, slot: u8) {
        let down = |n: u32| n.checked_sub(1);
        let _ = self
            .line(slot)
            .fetch_update(Ordering::Release, Ordering::Relaxed, down);
    }

    /// Line 0.
    pub fn process(&self) -> u32 {
        self.line(0).load(Ordering::Acquire)
    }

    /// Whether the instance sleeps.
    #[inline(always)]
    pub fn is_asleep(&self, slot: u8) -> bool {
        slot as usize >= STATUS_LINES || self.line(slot).load(Ordering::Relaxed) != 0
    }
}

/// Whether any of the four packed slots sleeps.
#[inline(always)]
pub(crate) fn any_asleep(slots: u32, status: Option<&StatusPage>) -> bool {
    if slots == 0 {
        return false;
    }
    let Some(status) = status else {
        return true;
    };
    slots
        .to_le_bytes()
        .into_iter()
        .any(|slot| slot != 0 && status.is_asleep(slot))
}

/// A full fence in every running thread of every process that called
/// [`register_membarrier`](crate::sys::register_membarrier): what a sleeper issues between raising its flag
/// and its second
/// look, if a member is in stream mode. About 16 us if a sender runs on another core.
pub fn heavy_barrier() {
    crate::shim::heavy();
}
