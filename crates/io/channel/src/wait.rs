//! Sleeping: the status page, and the slot through which an epoll instance shows that it sleeps.
//!
//! # Model
//! A sleeper on one descriptor raises the channel's `attn` ([`Incoming::fall_asleep`](crate::Incoming::fall_asleep)).
//! For an epoll instance that would be a store per member, so a channel names its **slot**: the line of the receiver's
//! status page that the instance has. The instance raises its line ([`StatusPage::raise`]), issues [`heavy_barrier`] if a
//! member is in stream mode, takes its news once more, and sleeps in the kernel.
//!
//! # Synchronization
//! | sleeper | sender |
//! | --- | --- |
//! | raise `attn` or the line; *fence* | store `head` (or `k_sent`); *fence* |
//! | load `stream`: if it is set, `membarrier` | in stream mode: no fence, the `membarrier` is one here |
//! | load `head` (or the news bit, then `head`) | set the news bit, load `attn`, `slot` and the line |
//!
//! One of the two sees the other: the raised `attn` or line is loaded by the sender, or `head` by the sleeper. The news bit
//! is set between the fence and the load of the line, so a sleeper that misses the bit is seen by the sender.

#[cfg(not(loom))]
use std::ptr::NonNull;

use crate::layout::{Line, STATUS_LINES, Status};
use crate::shim::{Acquire, AtomicU32, Relaxed, add_fenced, lower};

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
    /// [`STATUS_BYTES`](crate::layout::STATUS_BYTES) bytes at `page` are mapped, page-aligned, of a file that cannot shrink, and
    /// stay mapped for as long as any copy of the value lives. [`StatusPage::raise`] and [`StatusPage::lower`] need it writable.
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
        lower(self.line(slot));
    }

    /// Line 0.
    pub fn process(&self) -> u32 {
        self.line(0).load(Acquire)
    }

    /// Whether the instance sleeps.
    #[inline(always)]
    pub fn is_asleep(&self, slot: u8) -> bool {
        self.line(slot).load(Relaxed) != 0
    }
}

/// Whether the instance with this slot sleeps. A number that is no line always does.
#[inline(always)]
pub(crate) fn sleeps(slot: u32, status: Option<&StatusPage>) -> bool {
    slot != 0
        && status.is_none_or(|status| slot as usize >= STATUS_LINES || status.is_asleep(slot as u8))
}

/// A full fence in every running thread of every process that called [`register_membarrier`](crate::sys::register_membarrier): what
/// a sleeper issues between raising its flag and its second look, if a member is in stream mode. About 16 us if a sender runs on
/// another core.
pub fn heavy_barrier() {
    crate::shim::heavy();
}
