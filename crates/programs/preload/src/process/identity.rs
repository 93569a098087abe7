//! Who we are: process, thread, and what each thread keeps.
//!
//! *Threads.* [`Thread`] is 128 bytes of thread-local memory of the initial-exec model, so that reaching it is one load, never
//! allocates, and is safe in signal handlers. A thread gets its slot at its first lock and gives it back when it ends.
//!
//! *Processes.* The child of a `vfork` runs in our memory, on its parent's thread: our own `vfork` (in `libc`) marks the thread
//! meanwhile, and [`is_ours`] is false. Where `clone` made such a child, process ids are compared from then on. A page that the
//! kernel wipes at fork tells a copy that `clone` or a bare system call made behind our back ([`adopt`]).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use windlass_channel::{protocol, sys};

use crate::arch;
use crate::process::tell;
use crate::sys::reserved::Reserved;

#[repr(C, align(64))]
pub struct Thread {
    /// Locked sections that this thread is in; a signal is deferred while it is not 0.
    pub locked: AtomicU32,
    /// A signal was deferred, and all are blocked until [`crate::process::signals::leave`].
    pub deferred: AtomicU32,
    /// Thread slot, 0 before the first lock.
    slot: AtomicU32,
    /// The word of its locks, as last made: process slot << 16 | thread slot.
    pub owner: AtomicU32,
    /// The thread's child by `vfork` runs now, with this very memory.
    vforked: AtomicU32,
    /// The record on which the thread waits, + 1: [`crate::socket::waiter`].
    pub waits: AtomicU32,
    /// The mask to restore when `deferred` is set.
    pub mask: AtomicU64,
    /// Of [`crate::dispatch`] (the first) and [`crate::socket::spin`].
    pub words: [AtomicU64; 4],
    /// Handlers that have run, in the upper half; those without `SA_RESTART`, in the lower one.
    pub handled: AtomicU64,
}

const _: () = assert!(size_of::<Thread>() == 128);

std::arch::global_asm!(
    ".section .tbss.windlass_sockets_thread,\"awT\",@nobits",
    ".p2align 6",
    ".hidden windlass_sockets_thread",
    ".globl windlass_sockets_thread",
    ".type windlass_sockets_thread,@object",
    ".size windlass_sockets_thread,128",
    "windlass_sockets_thread:",
    ".zero 128",
    ".previous",
);

#[inline(always)]
pub fn thread() -> &'static Thread {
    // SAFETY: thread-local memory of this size and alignment, zeroed, alive while the thread runs.
    unsafe { &*arch::thread_place().cast::<Thread>() }
}

/// Bit per thread slot; slot 0 is nobody.
static SLOTS: [AtomicU64; 1_024] = [const { AtomicU64::new(0) }; 1_024];
static PROCESS_SLOT: AtomicU32 = AtomicU32::new(0);
/// Process id of each slot, from the registration on.
pub(super) static PROCESSES: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Of the process that this one was forked from, if it had one.
static PARENT_SLOT: AtomicU32 = AtomicU32::new(0);
static BORROWED: AtomicBool = AtomicBool::new(false);
static PID: AtomicI32 = AtomicI32::new(0);
/// Tells this process from all others of its family, also from one that has had its process id before.
static ID: AtomicU32 = AtomicU32::new(0);
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static LIVE_PAGE: Reserved<AtomicU32> = Reserved::new();

/// Slot of a thread that found no free one: it takes no locks.
pub const NO_SLOT: u32 = 0xffff;

/// Slot of the calling thread, for locks. `None`: the process has more than 65,534 threads; then the kernel path is taken.
pub fn thread_slot() -> Option<u16> {
    let slot = match thread().slot.load(Ordering::Relaxed) {
        0 => take_slot(),
        slot => slot,
    };
    (slot != NO_SLOT).then_some(slot as u16)
}

/// The slot that the broker gave this process; 0 none.
#[inline(always)]
pub fn process_slot() -> u16 {
    PROCESS_SLOT.load(Ordering::Relaxed) as u16
}

/// The slot of the nearest registered process that this one was forked from; 0 none.
pub fn parent_slot() -> u16 {
    PARENT_SLOT.load(Ordering::Relaxed) as u16
}

/// The word of [`PROCESSES`] that belongs to a slot; `None` before the first registration.
pub(super) fn process_word(slot: u16) -> Option<&'static AtomicU32> {
    let table = PROCESSES.load(Ordering::Acquire);
    if table.is_null() {
        return None;
    }
    let word = table.wrapping_add(usize::from(slot) % protocol::SLOTS);
    // SAFETY: the table has a word for each slot, and is never unmapped.
    Some(unsafe { &*word })
}

/// The broker gave this process a slot (or took it: 0).
pub fn set_process_slot(slot: u16) {
    PROCESS_SLOT.store(u32::from(slot), Ordering::Relaxed);
}

#[cold]
fn take_slot() -> u32 {
    let taken = SLOTS.iter().zip(0u32..).find_map(|(word, row)| {
        let mut bits = word.load(Ordering::Relaxed) | u64::from(row == 0);
        while bits != u64::MAX {
            let bit = (!bits).trailing_zeros();
            let old = word.fetch_or(1 << bit, Ordering::Relaxed);
            if old & 1 << bit == 0 {
                return Some(row * 64 + bit);
            }
            bits |= old | 1 << bit;
        }
        None
    });
    let slot = taken.unwrap_or(NO_SLOT);
    thread().slot.store(slot, Ordering::Relaxed);
    let key = KEY.load(Ordering::Relaxed);
    if slot != NO_SLOT && key != u32::MAX {
        // SAFETY: the key was made by `start`; the value is a number, not an address.
        unsafe {
            libc::pthread_setspecific(key, std::ptr::without_provenance(slot as usize));
        }
    }
    slot
}

unsafe extern "C" fn thread_ends(value: *mut c_void) {
    tell(|up| (up.thread_ends)());
    thread().slot.store(NO_SLOT, Ordering::Relaxed);
    thread().owner.store(0, Ordering::Relaxed);
    let slot = value.addr();
    if let Some(word) = SLOTS.get(slot / 64) {
        word.fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
    }
}

pub fn start() {
    let mut key = 0;
    // SAFETY: the key is a live variable; the destructor stays mapped, since we are never unloaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
    let words = 4_096 / size_of::<AtomicU32>();
    if LIVE_PAGE.make(words, libc::MAP_PRIVATE, libc::MADV_WIPEONFORK, |_| {}) {
        claim();
    }
}

/// The calling process owns table and threads.
fn claim() {
    // SAFETY: takes nothing.
    PID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    let mixed = sys::cycles() ^ (PID.load(Ordering::Relaxed) as u64) << 40;
    let id = (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    ID.store(id.max(1), Ordering::Relaxed);
    if let Some(word) = live_word() {
        word.store(1, Ordering::Relaxed);
    }
}

/// A number of this process, which no other one of its family has; never 0 once the library has begun.
#[inline]
pub fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

#[inline(always)]
pub fn process_id() -> u32 {
    PID.load(Ordering::Relaxed).cast_unsigned()
}

/// Whether the constructor ran and found what it needs.
pub fn is_started() -> bool {
    LIVE_PAGE.exists()
}

/// Whether this process was copied by a fork that we did not see: one load.
#[inline(always)]
pub fn is_copy() -> bool {
    live_word().is_some_and(|word| word.load(Ordering::Relaxed) == 0)
}

#[inline(always)]
fn live_word() -> Option<&'static AtomicU32> {
    // SAFETY: the page has more than one word.
    (!LIVE_PAGE.base().is_null()).then(|| unsafe { LIVE_PAGE.at(0) })
}

/// Whether the table is this process's own: false in a child that borrows this memory.
pub fn is_ours() -> bool {
    if is_copy() {
        tell(|up| (up.unseen_fork)());
    }
    if !BORROWED.load(Ordering::Relaxed) {
        return thread().vforked.load(Ordering::Relaxed) == 0;
    }
    // SAFETY: takes nothing.
    unsafe { libc::getpid() == PID.load(Ordering::Relaxed) }
}

/// A thread or a child with this memory is being made by something else than libc's threads and `vfork`.
pub fn will_be_borrowed() {
    BORROWED.store(true, Ordering::Relaxed);
}

unsafe extern "C" {
    static __libc_single_threaded: u8;
}

/// Where the mark of a `vfork` is in a [`Thread`].
pub const VFORKED: usize = std::mem::offset_of!(Thread, vforked);

pub fn has_threads() -> bool {
    if BORROWED.load(Ordering::Relaxed) {
        return true;
    }
    // SAFETY: libc's own variable, written before a second thread exists.
    unsafe { (&raw const __libc_single_threaded).read_volatile() == 0 }
}

/// In a forked child: this process is another one, with this thread only.
pub fn adopt() {
    let slot = thread().slot.load(Ordering::Relaxed);
    for word in &SLOTS {
        word.store(0, Ordering::Relaxed);
    }
    // The bits of 0 and NO_SLOT, which nobody gets, mean nothing.
    if let Some(word) = SLOTS.get(slot as usize / 64) {
        word.store(1 << (slot % 64), Ordering::Relaxed);
    }
    if process_slot() != 0 {
        PARENT_SLOT.store(u32::from(process_slot()), Ordering::Relaxed);
    }
    set_process_slot(0);
    thread().vforked.store(0, Ordering::Relaxed);
    claim();
}
