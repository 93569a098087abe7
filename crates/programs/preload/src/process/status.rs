//! The status page of this process: who sleeps in which epoll instance, for senders to see.
//!
//! # Synchronization
//! A thread asleep in an epoll instance has raised a line of the page ([`raise`]), and of those before, which older peers look at.
//! Where the page is changed meanwhile, the same line of the new one is up as well ([`CARRIED`]) until nobody sleeps by the old
//! one:
//!
//! | sleeper | who registers anew |
//! | --- | --- |
//! | raises the line of the page; *fence* | stores the new page; *fence* |
//! | looks whether it is still the page; else once more | looks at the lines of the old page, carries those that are up |

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};

use windlass_channel::layout::{STATUS_BYTES, STATUS_LINES};
use windlass_channel::{SLOT_FIRST, StatusPage};

static STATUS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// Stands for the status page while the process has none.
static UNSHOWN: Unshown = Unshown([const { AtomicU32::new(0) }; STATUS_BYTES / 4]);
/// Lines of the status page, a bit each, that are up once more for sleepers who have raised those of the page before.
static CARRIED: AtomicU64 = AtomicU64::new(0);
/// Former brokers over which a process can hold joined connections.
const FORMERS_MAX: usize = 8;
/// Pages that this process had from former brokers while connections of it were joined, and how many.
static FORMER_PAGES: [AtomicPtr<u8>; FORMERS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; FORMERS_MAX];
static FORMERS: AtomicU32 = AtomicU32::new(0);

#[repr(align(128))]
struct Unshown([AtomicU32; STATUS_BYTES / 4]);

/// A line of the status page, and of so many before, that the calling thread has raised.
#[derive(Clone, Copy)]
pub struct Raised {
    page: *mut u8,
    formers: usize,
    line: u8,
}

/// Pages of former brokers that older peers look at.
pub fn former_pages() -> impl Iterator<Item = *mut u8> {
    let count = FORMERS.load(SeqCst) as usize;
    let pages = FORMER_PAGES.iter().take(count);
    pages.map(|page| page.load(Acquire))
}

pub(super) fn is_full() -> bool {
    FORMERS.load(Relaxed) as usize == FORMERS_MAX
}

/// The status page at an address that was [`STATUS`] once.
fn page_at(base: *mut u8) -> StatusPage {
    let base = NonNull::new(base).unwrap_or(NonNull::from(&UNSHOWN.0).cast());
    // SAFETY: the broker gave this memory for a status page, and it is mapped for good; or it is [`UNSHOWN`].
    unsafe { StatusPage::new(base) }
}

/// Shows that an epoll instance is about to sleep, by its line. A full fence.
pub fn raise(line: u8) -> Raised {
    loop {
        let page = STATUS.load(SeqCst);
        let raise = |page: &*mut u8| page_at(*page).raise(line);
        let formers = former_pages().inspect(raise).count();
        raise(&page);
        let raised = Raised {
            page,
            formers,
            line,
        };
        if STATUS.load(SeqCst) == page {
            return raised;
        }
        lower(raised);
    }
}

pub fn lower(raised: Raised) {
    let (page, line) = (page_at(raised.page), raised.line);
    page.lower(line);
    let formers = former_pages().take(raised.formers);
    formers.for_each(|former| page_at(former).lower(line));
    if STATUS.load(SeqCst) != raised.page {
        carry_no_more(&page, line);
    }
}

/// Lowers the line for sleepers by an older page, if there are none any more.
#[cold]
fn carry_no_more(before: &StatusPage, line: u8) {
    let bit = 1_u64 << (line % 64);
    fence(SeqCst);
    if !before.is_asleep(line) && CARRIED.fetch_and(!bit, SeqCst) & bit != 0 {
        page_at(STATUS.load(SeqCst)).lower(line);
    }
}

/// Another page is this process's status page from now on; older peers look at the one before, if `is_kept`. Under the gate.
pub(super) fn change(base: *mut u8, is_kept: bool) {
    let before = STATUS.load(SeqCst);
    let formers = FORMERS.load(Relaxed);
    if let Some(place) = FORMER_PAGES.get(formers as usize).filter(|_| is_kept) {
        place.store(before, Release);
        FORMERS.store(formers + 1, SeqCst);
    }
    let before = page_at(STATUS.swap(base, SeqCst));
    fence(SeqCst);
    let page = page_at(base);
    for line in (SLOT_FIRST..STATUS_LINES as u8).filter(|line| before.is_asleep(*line)) {
        page.raise(line);
        CARRIED.fetch_or(1 << (line % 64), SeqCst);
        carry_no_more(&before, line);
    }
}

/// The page of this process; one that nobody sees while it has none.
pub(super) fn page() -> StatusPage {
    page_at(STATUS.load(Acquire))
}

/// Whether a thread sleeps by a page before this one.
pub(super) fn is_carried() -> bool {
    CARRIED.load(Acquire) != 0
}

/// In a forked child: it has no page, and nobody sleeps.
pub(super) fn forked() {
    STATUS.store(std::ptr::null_mut(), Relaxed);
    UNSHOWN.0.iter().for_each(|word| word.store(0, Relaxed));
    CARRIED.store(0, Relaxed);
    FORMERS.store(0, Relaxed);
}
