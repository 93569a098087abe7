//! Records: what is known of each socket (and epoll instance) made in our sight.
//!
//! *Where it sits.* A record stands for an *open file description*, not for a number: every number of
//! every process of one family (forks of the process that made the first socket) that shares the
//! description finds the same record through its own [`crate::fd::table`].
//!
//! *Ownership.* The arena is one shared anonymous mapping, made before the first socket and inherited by `fork`; it holds no
//! descriptor. [`Record::holders`] counts the numbers (of all processes) that name the record. At zero it is free; it is used again
//! only once no call is inside it any more. A killed process never counts down: its shared records stay taken until the family
//! ends. The broker reads records by `process_vm_readv`, which asks for the same permission as the rescue.
//!
//! *Allocation.* A cursor runs round over `span` records and takes the first free one by a
//! compare-and-swap; when half of the span is taken it doubles. So a record rests long before it is
//! used again, nothing is linked, and a process killed inside loses at most one record.
//!
//! *Synchronization.* Every field is an atomic. `state` goes from 0 (free) to a kind by a
//! compare-and-swap and back by a store (release); everything else belongs to whoever holds the record.
//!
//! *Limits.* [`RECORDS_MAX`] records a family; further sockets are the kernel's.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::process::{identity, registration};
use crate::sys::{kernel, reserved::Reserved};

/// Records of one arena (32 MiB of address space, touched as used). Record 0 is its head.
pub const RECORDS_MAX: u32 = 262_144;
const SPAN_FIRST: u32 = 256;
/// First word of the arena, for its readers in other processes.
pub const ARENA_MAGIC: u64 = u64::from_le_bytes(*b"wlsockr1");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Tcp = 1,
    UnixStream = 2,
    Epoll = 3,
}

impl Kind {
    fn of(code: u8) -> Option<Kind> {
        [Kind::Tcp, Kind::UnixStream, Kind::Epoll]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }

    /// Which kind of record a socket of this domain and type gets, if any.
    pub fn of_socket(domain: c_int, kind: c_int, protocol: c_int) -> Option<Kind> {
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        match (domain, kind) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM)
                if protocol == 0 || protocol == libc::IPPROTO_TCP =>
            {
                Some(Kind::Tcp)
            }
            (libc::AF_UNIX, libc::SOCK_STREAM) => Some(Kind::UnixStream),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// `socket`, `socketpair` or `epoll_create`.
    Made = 1,
    /// `accept`.
    Accepted = 2,
    /// Found under an unknown number: inherited through exec, or made or passed out of our sight. An uncounted writer may exist.
    Found = 3,
    /// Received by `SCM_RIGHTS`.
    Passed = 4,
}

/// Bits of [`Record::flags`].
pub mod flag {
    /// `connect` was called here.
    pub const CONNECTED_BY_US: u32 = 1 << 0;
    /// A program without the library may hold it: it may write without counting.
    pub const UNCOUNTED_WRITER: u32 = 1 << 1;
    /// It is the kernel's for good; the reason is in the record.
    pub const DEMOTED: u32 = 1 << 2;
    /// `TCP_NODELAY` as the program set it.
    pub const NODELAY: u32 = 1 << 3;
    /// It listens.
    pub const LISTENS: u32 = 1 << 5;
    /// A number that is not in the table may name it in the next program: it was doubled in the child
    /// of a `vfork` or for `posix_spawn`.
    pub const INHERITED: u32 = 1 << 6;
    /// A process outside of the family has it through exec; it counts as one holder that never goes.
    pub const HEIRS: u32 = 1 << 7;
    /// It has a channel: slab, channel and side are in the record ([`crate::socket::state`]).
    pub const JOINED: u32 = 1 << 8;
    /// A thread is joining it just now: nobody begins a call.
    pub const JOINING: u32 = 1 << 9;
    /// This end has offered, and the other end has not been seen to mirror it.
    pub const PENDING: u32 = 1 << 10;
    /// This end's name is the higher one.
    pub const IS_HIGH: u32 = 1 << 11;
    /// The descriptor is non-blocking, as far as we have seen.
    pub const NONBLOCK: u32 = 1 << 12;
    /// [`NONBLOCK`] is known.
    pub const FLAGS_KNOWN: u32 = 1 << 13;
    /// A reclaim met an error, which the next call has to report.
    pub const FAILED: u32 = 1 << 14;
    /// The kernel was made to note the reset of a TCP connection, and calls it `EPIPE`.
    pub const RESET: u32 = 1 << 15;
    /// The reset was noted, here or by the kernel: it is told once.
    pub const NOTED: u32 = 1 << 4;
    /// Connection tracking knows the connection.
    pub const TRACKED: u32 = 1 << 30;
    /// A thread looks for the other end just now.
    pub const LOOKING: u32 = 1 << 31;
}

/// Places in [`Record::words`].
pub mod word {
    /// What the socket is called in the directory; 0: it is not listed.
    pub const KEY: usize = 0;
    /// Of an epoll instance: the process that waits in it and changes it.
    pub const WAITED_BY: usize = 0;
    /// Calls until the directory is looked at again.
    pub const LEFT: usize = 1;
    /// How many calls that are each time.
    pub const INTERVAL: usize = 2;
    /// Once it has offered: cuts of messages in vain << 32, messages to leave uncut.
    pub const TRIES: usize = 1;
    /// Once it has offered: when a message was last made to go by the kernel, in cycles.
    pub const REFRESHED_AT: usize = 2;
    /// What was last seen of the kernel's news, and how many receives found nothing since the last look.
    pub const SEEN: usize = 3;
    /// When that look was, in cycles.
    pub const LOOKED_AT: usize = 4;
    pub const ERROR: usize = 5;
}

#[repr(C, align(128))]
pub struct Record {
    /// 0 free; else kind, origin << 8, generation << 16.
    pub state: AtomicU32,
    pub flags: AtomicU32,
    /// Numbers that name it, in all processes of the family; one more with [`flag::HEIRS`].
    pub holders: AtomicU32,
    /// Calls in flight; it is not used again before 0.
    pub in_flight: AtomicU32,
    /// `SO_COOKIE`, 0 if not asked yet.
    pub cookie: AtomicU64,
    pub slab: AtomicU32,
    pub channel: AtomicU16,
    pub side: AtomicU8,
    /// Why it is on the kernel, as the channel numbers the reasons.
    pub reason: AtomicU8,
    /// Sending calls that succeeded, until it is joined; then [`crate::socket::fast_path`]'s.
    pub sends: AtomicU32,
    /// Receiving calls that succeeded, until it is joined; then [`crate::socket::by_kernel`]'s.
    pub receives: AtomicU32,
    pub ring_sent: AtomicU64,
    pub ring_received: AtomicU64,
    pub kernel_sent: AtomicU64,
    pub kernel_received: AtomicU64,
    pub words: [AtomicU64; 6],
    /// The process that the socket belongs to, by [`identity::id`]: the first that sends, receives or waits on it. 0: none so far.
    pub owner: AtomicU32,
}

const _: () = assert!(size_of::<Record>() == 128);

impl Record {
    pub fn kind(&self) -> Option<Kind> {
        Kind::of(self.state.load(Ordering::Relaxed) as u8)
    }

    pub fn origin(&self) -> Origin {
        match (self.state.load(Ordering::Relaxed) >> 8) as u8 {
            1 => Origin::Made,
            2 => Origin::Accepted,
            4 => Origin::Passed,
            _ => Origin::Found,
        }
    }

    /// Whether the socket belongs to this process; it does from now on if it has belonged to none.
    #[inline]
    pub fn claim(&self) -> bool {
        let me = identity::id();
        let before = self.owner.load(Ordering::Relaxed);
        if before != 0 {
            return before == me;
        }
        let swap = self
            .owner
            .compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
        swap.map_or_else(|found| found == me, |_| true)
    }

    pub fn is_foreign(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && owner != identity::id()
    }

    #[inline(always)]
    pub fn has(&self, flags: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flags != 0
    }

    pub fn set(&self, flags: u32) {
        self.flags.fetch_or(flags, Ordering::Relaxed);
    }

    /// `SO_COOKIE` of its socket, asked once through `fd`; 0 if it has none.
    pub fn cookie_by(&self, fd: c_int) -> u64 {
        let known = self.cookie.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let found = kernel::cookie(fd).unwrap_or(0);
        self.cookie.store(found, Ordering::Relaxed);
        found
    }
}

/// The head of the arena, in the place of record 0.
#[repr(C, align(128))]
struct Head {
    magic: AtomicU64,
    records: AtomicU32,
    span: AtomicU32,
    cursor: AtomicU32,
    used: AtomicU32,
    /// A fork happened since it was made: other processes may hold records.
    shared: AtomicU32,
}

const _: () = assert!(size_of::<Head>() == 128);

static ARENA: Reserved<Record> = Reserved::new();

/// Makes the arena unless it is there. False: there is no memory for it.
pub fn make_arena() -> bool {
    let count = RECORDS_MAX as usize;
    let begin = |first: *mut Record| {
        // SAFETY: zeroes are a valid head, which is in the place of record 0.
        let head = unsafe { &*first.cast::<Head>() };
        head.records.store(RECORDS_MAX, Ordering::Relaxed);
        head.span.store(SPAN_FIRST, Ordering::Relaxed);
        head.cursor.store(1, Ordering::Relaxed);
        head.magic.store(ARENA_MAGIC, Ordering::Release);
    };
    let is_made = ARENA.make(count, libc::MAP_SHARED, libc::MADV_DONTDUMP, begin);
    registration::set_report(ARENA.base().addr() as u64);
    is_made
}

fn head() -> Option<&'static Head> {
    // SAFETY: the arena is never unmapped, and record 0 is the head.
    ARENA
        .exists()
        .then(|| unsafe { &*ARENA.base().cast::<Head>() })
}

/// The record of this index, which must come from the table or from [`take`].
#[inline(always)]
pub fn at(index: u32) -> &'static Record {
    debug_assert!(ARENA.exists() && index < RECORDS_MAX);
    // SAFETY: an index exists only after the arena; `take` bounds it.
    unsafe { ARENA.at(index as usize) }
}

/// A fresh record with one holder.
pub fn take(kind: Kind, origin: Origin) -> Option<u32> {
    let head = head()?;
    let mut span = head.span.load(Ordering::Relaxed);
    while head.used.load(Ordering::Relaxed) >= span / 2 && span < RECORDS_MAX {
        let _ = head
            .span
            .compare_exchange(span, span * 2, Ordering::Relaxed, Ordering::Relaxed);
        span = head.span.load(Ordering::Relaxed);
    }
    for _ in 0..span {
        let index = head.cursor.fetch_add(1, Ordering::Relaxed) % span;
        if index == 0 {
            continue;
        }
        let record = at(index);
        let old = record.state.load(Ordering::Relaxed);
        if old as u16 != 0 || record.in_flight.load(Ordering::Relaxed) != 0 {
            continue;
        }
        let generation = (old >> 16).wrapping_add(1) & 0xffff;
        let state = kind as u32 | (origin as u32) << 8 | generation << 16;
        let swap = record
            .state
            .compare_exchange(old, state, Ordering::Acquire, Ordering::Relaxed);
        if swap.is_ok() {
            clear(record);
            head.used.fetch_add(1, Ordering::Relaxed);
            return Some(index);
        }
    }
    None
}

/// A record that was just taken: all words but `state` and `in_flight` are 0, and it has one holder.
fn clear(record: &Record) {
    const KEPT: [usize; 2] = [offset_of!(Record, state), offset_of!(Record, in_flight)];
    // SAFETY: a record consists of atomic integers, and nobody but the caller uses it.
    let words: &[AtomicU32; size_of::<Record>() / 4] = unsafe { &*ptr::from_ref(record).cast() };
    for (_, word) in (0..).zip(words).filter(|(at, _)| !KEPT.contains(&(at * 4))) {
        word.store(0, Ordering::Relaxed);
    }
    record.holders.store(1, Ordering::Relaxed);
}

pub fn hold(index: u32) {
    at(index).holders.fetch_add(1, Ordering::Relaxed);
}

/// A process outside of the family will have it through exec. Nobody tells when that closes it, so it
/// counts as one holder for good, and nobody is the last any more.
pub fn inherit(index: u32) {
    if at(index).flags.fetch_or(flag::HEIRS, Ordering::Relaxed) & flag::HEIRS == 0 {
        hold(index);
    }
}

/// One number fewer. True: that was the last of the family, and the record is free.
pub fn release(index: u32) -> bool {
    let record = at(index);
    let heirs = u32::from(record.has(flag::HEIRS));
    if record.holders.fetch_sub(1, Ordering::AcqRel) != 1 + heirs {
        return false;
    }
    record.state.fetch_and(0xffff_0000, Ordering::Release);
    if let Some(head) = head() {
        head.used.fetch_sub(1, Ordering::Relaxed);
    }
    true
}

/// A fork is about to share the arena.
pub fn will_be_shared() {
    if let Some(head) = head() {
        head.shared.store(1, Ordering::Relaxed);
    }
}

pub fn is_shared() -> bool {
    head().is_some_and(|head| head.shared.load(Ordering::Relaxed) != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// There is one arena: its tests run one after the other.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A record is free once nobody holds it, rests before it is used again, and is a new one then.
    #[test]
    fn records_are_used_again_late() {
        let _alone = ALONE.lock();
        assert!(make_arena());
        let first = take(Kind::Tcp, Origin::Made).expect("the arena is empty");
        let generation = at(first).state.load(Ordering::Relaxed) >> 16;
        hold(first);
        assert!(!release(first));
        assert_eq!(at(first).kind(), Some(Kind::Tcp));
        assert!(release(first));
        assert_eq!(at(first).kind(), None);
        let mut others = 0;
        loop {
            let next = take(Kind::UnixStream, Origin::Accepted).expect("one is free");
            assert_eq!(at(next).origin(), Origin::Accepted);
            assert!(release(next));
            if next == first {
                break;
            }
            others += 1;
        }
        assert!(others > 100, "{others}");
        assert_eq!(
            at(first).state.load(Ordering::Relaxed) >> 16,
            generation + 1
        );
    }

    /// A record that another program inherited has no last holder, and is given back all the same.
    #[test]
    fn heirs_do_not_keep_records() {
        let _alone = ALONE.lock();
        assert!(make_arena());
        let index = take(Kind::Tcp, Origin::Made).expect("one is free");
        inherit(index);
        inherit(index);
        hold(index);
        assert_eq!(at(index).holders.load(Ordering::Relaxed), 3);
        assert!(!release(index));
        assert!(release(index));
        assert_eq!(at(index).kind(), None);
    }

    /// A record that a call is still inside of is not given away.
    #[test]
    fn records_in_use_are_left_alone() {
        let _alone = ALONE.lock();
        assert!(make_arena());
        let index = take(Kind::Tcp, Origin::Made).expect("one is free");
        at(index).in_flight.store(1, Ordering::Relaxed);
        release(index);
        for _ in 0..5_000 {
            let next = take(Kind::Tcp, Origin::Made).expect("one is free");
            assert_ne!(next, index);
            release(next);
        }
        at(index).in_flight.store(0, Ordering::Relaxed);
    }
}
