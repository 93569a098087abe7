//! Which pages a span gets: `pages=`.
//!
//! # Model
//! A span is asked for once, before its first touch, and asked for anew after it went back to the kernel as a whole. `auto` asks for a transparent
//! huge page if [`AUTO_FROM`] bytes are in use and no child shares the heap: below that they cost more than they give, and with copy on write
//! one byte copies 2 MiB. Memory that is not asked for is advised against, so that the kernel's own `always` changes nothing.
//!
//! # Forked children
//! A child holds a robust mutex in a shared page until the kernel releases it: at exec or at its end. So the parent learns of both by reading a
//! word. A child that holds it [`YOUNG_NS`] after its fork has `auto` stay with small pages for good.
//!
//! # Limits
//! The kernel moves pages of the reserve since Linux 5.16; before, `hugetlb` is `thp`.
//!
//! A page of the reserve is private memory: a child that goes on after fork and writes when the reserve is empty gets SIGBUS.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::*};

use windlass_memory::options::Key;
use windlass_slab::{Pages, Range, SPAN};

use crate::lock::Lock;
use crate::options;
use crate::sys;

/// Bytes in use from which `auto` asks.
const AUTO_FROM: usize = 64 << 20;
/// A child of this age is asked whether it is still the same program.
const YOUNG_NS: u64 = 100_000_000;
/// Children that are remembered; with more of them at a time `auto` stays with small pages.
const CHILDREN: usize = 32;

/// The places of the words in the option's row.
const AUTO: usize = 0;
const TRANSPARENT: usize = 2;
const RESERVED: usize = 3;

/// Asks for the pages of a span of which nothing is backed, while so many bytes are in use. Returns what it has.
pub fn ask(span: usize, in_use: usize) -> Pages {
    let is_wanted = match options::get(Key::Pages) {
        AUTO => in_use >= AUTO_FROM && !CHILD.lock().share(),
        TRANSPARENT => true,
        RESERVED if sys::map_reserved(span, SPAN) => return Pages::Reserved,
        RESERVED => true,
        _ => false,
    };
    match is_wanted && !sys::has_no_thp() && sys::advise_huge(span, SPAN, true) {
        true => Pages::Transparent,
        false => Pages::Small,
    }
}

/// Whether a mapping of so many bytes is to have transparent huge pages, and lie accordingly.
pub fn is_for_mapping(len: usize) -> bool {
    let is_forced = matches!(options::get(Key::Pages), TRANSPARENT | RESERVED);
    is_forced && len >= SPAN && !sys::has_no_thp()
}

/// Gives a range back to the kernel; it reads as zeros.
pub fn give_back(range: Range) {
    match range.pages {
        Pages::Small => sys::give_back(range.start, range.len),
        Pages::Transparent => {
            sys::give_back(range.start, range.len);
            // Nobody makes it whole again behind our back.
            sys::advise_huge(range.start / SPAN * SPAN, SPAN, false);
        }
        Pages::Reserved => sys::unmap_reserved(range.start, range.len),
    }
}

static CHILD: Lock<Children> = Lock::new(Children {
    mutexes: ptr::null_mut(),
    begun: [0; CHILDREN],
    next: None,
    stay_small: false,
});

/// Children that have the heap. Its lock is taken under that of the spans.
struct Children {
    /// In memory that children share; null before the first fork.
    mutexes: *mut libc::pthread_mutex_t,
    /// When each was forked; 0: a free place.
    begun: [u64; CHILDREN],
    /// The place of the child that is being made.
    next: Option<usize>,
    stay_small: bool,
}

// SAFETY: the mutexes are reached by the holder of the lock, and by children that hold one.
unsafe impl Send for Children {}

impl Children {
    /// Whether a child shares the heap, or did for long.
    fn share(&mut self) -> bool {
        let now = sys::now_ns();
        let is_shared = (0..CHILDREN).fold(false, |any, at| self.lives(at, now) | any);
        is_shared || self.stay_small
    }

    /// Whether the child of this place lives and has not executed another program. Frees the place if not.
    fn lives(&mut self, at: usize, now: u64) -> bool {
        if self.begun[at] == 0 {
            return false;
        }
        let is_young = now.saturating_sub(self.begun[at]) < YOUNG_NS;
        // SAFETY: a mutex begins with its futex; the page was mapped when the place was taken, and stays.
        let word = unsafe { &*self.mutexes.wrapping_add(at).cast::<AtomicU32>() };
        let lives = match word.load(Acquire) {
            // It has not come that far, or it never did.
            0 => is_young,
            word => word & libc::FUTEX_OWNER_DIED == 0,
        };
        self.stay_small |= lives && !is_young;
        if !lives {
            self.begun[at] = 0;
        }
        lives
    }

    fn prepare(&mut self) {
        self.next = None;
        if options::get(Key::Pages) != AUTO || self.stay_small {
            return;
        }
        if self.mutexes.is_null() {
            const { assert!(CHILDREN * size_of::<libc::pthread_mutex_t>() <= 4096) };
            let Some(page) = sys::map_shared(4096) else {
                self.stay_small = true;
                return;
            };
            self.mutexes = page as *mut libc::pthread_mutex_t;
        }
        let now = sys::now_ns();
        self.next = (0..CHILDREN).find(|&at| !self.lives(at, now));
        match self.next {
            Some(at) => {
                self.begun[at] = now;
                make(self.mutexes.wrapping_add(at));
            }
            None => self.stay_small = true,
        }
    }
}

/// Makes a free robust mutex that processes share.
fn make(mutex: *mut libc::pthread_mutex_t) {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: memory for attributes.
    unsafe { libc::pthread_mutexattr_init(attributes) };
    // SAFETY: initialised above, as for the next two calls.
    unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) };
    // SAFETY: as above.
    unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) };
    // SAFETY: a place whose former child does not live.
    unsafe { libc::pthread_mutex_init(mutex, attributes) };
}

/// Before a fork, with the spans' lock held.
pub fn before_fork() {
    CHILD.lock().prepare();
}

/// In the child, with the spans' lock held.
pub fn after_fork_child() {
    let mut children = CHILD.lock();
    if let Some(at) = children.next {
        let mutex = children.mutexes.wrapping_add(at);
        // SAFETY: made by `prepare`, and this process' own.
        unsafe { libc::pthread_mutex_lock(mutex) };
    }
    // Its own children are in a page of their own.
    (children.mutexes, children.begun) = (ptr::null_mut(), [0; CHILDREN]);
    children.stay_small = false;
}
