//! Rings of io_uring: those that only change epoll instances are followed, any other puts its process on the kernel.
//!
//! # Model
//! An event loop may have a ring only to make several `epoll_ctl` calls at once (libuv makes one in each loop). Such a ring needs
//! the library no less, and no more, than the calls themselves: before each `io_uring_enter` the entries that it will take are read.
//! If all of them are `IORING_OP_EPOLL_CTL`, each is made as the call that it stands for; one that succeeds becomes
//! `IORING_OP_NOP`, which answers 0 as well, and one that fails is left to the kernel, which says why.
//! Any other entry moves bytes, or may, out of the library's sight, and so may a ring whose entries the kernel takes by itself.
//!
//! # What can be lost and what cannot
//! A ring made by a system call that is not libc's (liburing makes them so) is found when the next connection joins, among the
//! known numbers and some beyond ([`look`]): from then on the process is on the kernel. Connections that had joined before go on, so a
//! registration in such a ring is one that the library does not know: its sleeper is woken by the watch over unread bytes, within
//! 300 ms.
//!
//! # Synchronization
//! Entries are the program's memory, as it is mapped here: they are read as they may change at any time.

use windlass_channel::Reason;

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::fd::{
    call::{Own, six},
    table,
};
use crate::ready::deferred_ctl::{self, flush_epoll_ctl};
use crate::socket::demote::demote_all;
use crate::sys::{
    clock,
    kernel::{self, Mapped},
    memory, real,
};

/// Places for rings that are followed, by number: of two with one place the last one is.
const RINGS: usize = 64;
/// Entries of a ring, at most, as the kernel has it (`IORING_MAX_ENTRIES`).
const ENTRIES_MAX: u32 = 32_768;
/// How often a join looks for rings that were made out of sight.
const LOOK_US: u32 = 100_000;
/// A ring has the lowest number that was free: it is looked for among the numbers up to so many beyond the highest known one.
const LOOK_BEYOND: c_int = 64;
/// `IORING_OP_NOP`, `IORING_OP_EPOLL_CTL` and the size of an entry: linux/io_uring.h.
const NOP: u8 = 0;
const EPOLL_CTL: u8 = 29;
const ENTRY_BYTES: usize = 64;
/// `IORING_OFF_SQES`.
const ENTRIES_AT: usize = 0x1000_0000;
/// `IORING_SETUP_NO_SQARRAY`: entries are taken in their own order.
const NO_ARRAY: u32 = 1 << 16;
/// `CQSIZE`, `CLAMP`, `SUBMIT_ALL`, `COOP_TASKRUN`, `TASKRUN_FLAG`, `SINGLE_ISSUER`, `DEFER_TASKRUN`: with these, too, entries are
/// taken in `io_uring_enter` only, and lie where they always do.
const HARMLESS: u32 = 1 << 3 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 12 | 1 << 13 | NO_ARRAY;
/// `IOSQE_IO_LINK`, `IOSQE_IO_HARDLINK`, `IOSQE_ASYNC`: an entry with another flag names no descriptor, or answers nothing.
const HARMLESS_ENTRY: u8 = 1 << 2 | 1 << 3 | 1 << 4;

/// Rings: descriptor + 1, the number of entries above 32 bits, and [`NO_ARRAY`] as bit 63.
static RING: [AtomicU64; RINGS] = [const { AtomicU64::new(0) }; RINGS];
/// Where `head`, `tail` and `array` are: the same for all rings of a kernel with a list of indexes.
static PLACES: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

type Params = [u32; 30];

/// `io_uring_setup` by `own`, with these parameters.
pub fn setup(params: *const c_void, own: Own) -> isize {
    let result = own.call();
    let Ok(fd) = c_int::try_from(result) else {
        return result;
    };
    if fd >= 0 && !follow(fd, params) {
        demote_all(Reason::IoUring);
    }
    result
}

/// Notes a new ring; false if it cannot be followed.
fn follow(fd: c_int, params: *const c_void) -> bool {
    let Some(params) = memory::fetch::<Params>(params.cast()) else {
        return false;
    };
    let (entries, flags) = (params[0], params[2]);
    if flags & !HARMLESS != 0 || entries > ENTRIES_MAX {
        return false;
    }
    for (place, at) in PLACES.iter().zip([10, 11, 16]) {
        if flags & NO_ARRAY == 0 || at != 16 {
            place.store(params[at], Relaxed);
        }
    }
    table::other(fd);
    let no_array = u64::from(flags & NO_ARRAY != 0) << 63;
    let word = (fd as u64 + 1) | u64::from(entries) << 32 | no_array;
    RING[fd as usize % RINGS].store(word, Release);
    true
}

struct Entries {
    ring: Mapped,
    entries: Mapped,
    count: u32,
    has_array: bool,
}

impl Entries {
    fn of(fd: c_int) -> Option<Self> {
        let word = RING[fd.unsigned_abs() as usize % RINGS].load(Acquire);
        (word as u32 == fd.unsigned_abs() + 1).then_some(())?;
        let count = (word >> 32) as u32 & !(1 << 31);
        let has_array = word >> 63 == 0;
        let array_bytes = if has_array { count as usize * 4 } else { 0 };
        let ring_bytes = PLACES[2].load(Relaxed).max(192) as usize + array_bytes;
        Some(Self {
            ring: Mapped::of(fd, ring_bytes, 0).ok()?,
            entries: Mapped::of(fd, count as usize * ENTRY_BYTES, ENTRIES_AT).ok()?,
            count,
            has_array,
        })
    }

    fn word(&self, at: usize) -> Option<u32> {
        let place = self.ring.at(at, size_of::<u32>())?;
        memory::fetch(place.cast())
    }

    /// From which entry on how many will be taken.
    fn waiting(&self, most: u32) -> Option<(u32, u32)> {
        let [head, tail] = [0, 1].map(|at| self.word(PLACES[at].load(Relaxed) as usize));
        let (head, tail) = (head?, tail?);
        Some((head, tail.wrapping_sub(head).min(most).min(self.count)))
    }

    /// Where an entry is, and its first four words: opcode, flags and descriptor; offset; address; length.
    fn entry(&self, place: u32) -> Option<(*mut [u64; 4], [u64; 4])> {
        let mask = self.count.checked_sub(1)?;
        let mut at = place & mask;
        if self.has_array {
            let array = PLACES[2].load(Relaxed) as usize;
            at = self.word(array + at as usize * 4)? & mask;
        }
        let from = self.entries.at(at as usize * ENTRY_BYTES, ENTRY_BYTES)?;
        Some((from.cast(), memory::fetch(from.cast())?))
    }

    /// Whether this one only changes an instance.
    fn is_harmless(&self, place: u32) -> bool {
        self.entry(place).is_some_and(|(_, [first, ..])| {
            let (opcode, flags) = (first as u8, (first >> 8) as u8);
            (opcode == EPOLL_CTL || opcode == NOP) && flags & !HARMLESS_ENTRY == 0
        })
    }

    fn carry_out(&self, place: u32) {
        let Some((at, [first, member, event, operation])) = self.entry(place) else {
            return;
        };
        if first as u8 != EPOLL_CTL {
            return;
        }
        let (instance, operation) = ((first >> 32) as c_int, operation as u32 as c_int);
        let arguments = [instance, operation, member as c_int].map(|word| word as usize);
        let [set, how, fd] = arguments;
        let own = Own::of::<c_int>(&real::slot::epoll_ctl, six([set, how, fd, event as usize]));
        let event = std::ptr::with_exposed_provenance_mut(event as usize);
        if deferred_ctl::control(table::epoll(instance), operation, fd as c_int, event, own) == 0 {
            memory::put(at, [first & 0xff00, 0, 0, 0]);
        }
    }
}

/// Makes the calls that wait in a ring; false if any entry is something else.
fn carry_out_all(fd: c_int, most: u32) -> bool {
    let Some(entries) = Entries::of(fd) else {
        return false;
    };
    let Some((head, count)) = entries.waiting(most) else {
        return false;
    };
    let places = || (0..count).map(|at| head.wrapping_add(at));
    let is_harmless = places().all(|at| entries.is_harmless(at));
    if is_harmless {
        let before = real::errno();
        places().for_each(|at| entries.carry_out(at));
        real::set_errno(before);
    }
    is_harmless
}

/// `io_uring_enter` by `own`, which takes at most so many entries.
pub fn enter(fd: c_int, most: u32, own: Own) -> isize {
    if table::exists() && most != 0 {
        flush_epoll_ctl();
        if !carry_out_all(fd, most) {
            demote_all(Reason::IoUring);
        }
    }
    own.call()
}

/// Looks for rings that were made out of sight, now and then; the process is on the kernel if there is one.
pub fn look() {
    let (now, last) = (clock::now(), LOOKED_AT.load(Relaxed));
    if last != 0 && now.wrapping_sub(last) < clock::cycles(LOOK_US) {
        return;
    }
    LOOKED_AT.store(now | 1, Relaxed);
    let mut numbers = 0..=table::highest() + LOOK_BEYOND;
    if numbers.any(|fd| !table::is_entered(fd) && kernel::is_ring(fd)) {
        demote_all(Reason::IoUring);
    }
}
