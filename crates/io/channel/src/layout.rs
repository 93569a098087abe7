//! The shared memory, field by field: [`Header`], [`News`], [`Chan`], [`Dir`], [`End`], [`Status`], `Directory`.
//!
//! # Model
//! ```text
//! slab: Header | chans: [Chan; 1024] | pages of side 0 | pages of side 1
//! Chan: join | End of side 0 | End of side 1 | Dir from side 0 | Dir from side 1
//! Dir:  w (sender writes, receiver polls) | wl (sender's own) | r (receiver's own) | a (asleep, rarely written)
//! ```
//! Every field is an atomic, also those that one side alone should write: the other process maps the same memory and
//! may store anything anywhere. No value is trusted because we wrote it.
//!
//! # Synchronization
//! | field | written by | under | pairs with |
//! | --- | --- | --- | --- |
//! | `w.head` | sender, Release | `wlock` | reader's Acquire: the bytes below it |
//! | `w.k_sent` | sender, Release, after the real send | `wlock` | reader's Acquire, loaded *after* `head` |
//! | `w.stream` | sender, fenced when set | `wlock` | sleeper, after raising `attn` or its line |
//! | `w.last_at` | sender, before `head` | `wlock` | reader, after `head` |
//! | `w.first_at` | sender, before the news bit | | taker of the bit |
//! | `r.tail` | reader, Release | `rlock` | sender's Acquire: the room below it |
//! | `r.krecv` | reader, added to, also by sleepers without a lock | | both sides |
//! | `a.attn`, `a.slot`, status | sleeper, fenced | | sender, after its fence (or `membarrier`) |
//! | `mark`, `mark_pos`, `mark_k` | reclaimer | both locks | whoever takes the locks from a dead reclaimer |

use std::ops::Deref;

use crate::shim::{AtomicU32, AtomicU64};

/// "WLCHAN03" of a slab that this version understands.
pub const MAGIC: u64 = u64::from_le_bytes(*b"WLCHAN03");
/// Channels in a slab.
pub const CHANS: usize = if cfg!(loom) { 64 } else { 1024 };
/// Bytes of a page, the unit of ring memory.
pub const PAGE: usize = if cfg!(loom) { 4 } else { 4096 };
/// Pages that one side may use for its rings (128 MiB, sparse).
pub const PAGES_PER_SIDE: usize = if cfg!(loom) { 64 } else { 32 * 1024 };
/// Words of a side's bitmap of pages in use.
pub const PAGE_WORDS: usize = PAGES_PER_SIDE / 64;
/// Words of a bitmap of channels.
pub const CHAN_WORDS: usize = CHANS / 64;
/// Lines of a status page.
pub const STATUS_LINES: usize = if cfg!(loom) { 2 } else { 64 };
/// Entries of the directory of connections.
pub const DIRECTORY_ENTRIES: usize = 65_536;

/// Which process of a slab's pair: the daemon tells each one when it hands the slab out, and a channel's end is on the
/// side of its process. In a slab that pairs a process with itself the end with the lower name is [`Side::Low`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Side {
    /// The first process of the pair; it allocates the channels.
    Low = 0,
    /// The second one.
    High = 1,
}

impl Side {
    /// The side with this number; every odd number is [`Side::High`].
    #[inline(always)]
    pub const fn from_u8(value: u8) -> Side {
        if value & 1 == 0 {
            Side::Low
        } else {
            Side::High
        }
    }

    /// The other end.
    #[inline(always)]
    pub const fn other(self) -> Side {
        match self {
            Side::Low => Side::High,
            Side::High => Side::Low,
        }
    }

    #[inline(always)]
    pub(crate) const fn of<T>(self, pair: &[T; 2]) -> &T {
        #[allow(clippy::indexing_slicing)] // There are two sides.
        &pair[self as usize & 1]
    }
}

/// A value on a pair of cache lines of its own: the prefetcher pulls lines in pairs.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct Line<T>(pub T);

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// What the sender writes and the receiver polls.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Wire {
    /// Bytes pushed to the ring since the channel was allocated.
    pub(crate) head: AtomicU64,
    /// Bytes given to the kernel since the start of the stream.
    pub(crate) k_sent: AtomicU64,
    /// 1: the sender pushes without a fence; a sleeper has to issue a `membarrier`.
    pub(crate) stream: AtomicU32,
    /// 1: a writer that does not count may hold the socket.
    pub(crate) uncounted: AtomicU32,
    /// Time stamps, in cycles, where the receiver waits with epoll: of the push that set the news bit, and of the last push.
    pub(crate) first_at: AtomicU64,
    pub(crate) last_at: AtomicU64,
}

/// What only the sending side uses.
#[derive(Debug, Default)]
#[repr(C)]
pub struct WriteOwn {
    /// [`Owner`](crate::Owner) of the write lock.
    pub(crate) lock: AtomicU32,
    /// Pushes in a row without another call.
    pub(crate) burst: AtomicU32,
    /// `tail` as last read.
    pub(crate) tail_seen: AtomicU64,
    /// `krecv` as last read.
    pub(crate) krecv_seen: AtomicU64,
    /// 1: a reclaim is owed, since the reader held its lock.
    pub(crate) owed: AtomicU32,
    /// 1: a reclaim is under way; `mark_pos` and `mark_k` are where it began.
    pub(crate) mark: AtomicU32,
    /// `pos` when the reclaim began.
    pub(crate) mark_pos: AtomicU64,
    /// `k_sent` when the reclaim began.
    pub(crate) mark_k: AtomicU64,
    /// 1: the ring is to be doubled as soon as it is empty.
    pub(crate) grow: AtomicU32,
    /// Time stamp of the last full ring, in cycles.
    pub(crate) full_at: AtomicU64,
    /// `head` at the last idle tick that saw it move.
    pub(crate) idle_head: AtomicU64,
    /// Time stamp of that tick, in cycles.
    pub(crate) pushed_at: AtomicU64,
    /// Bytes that were pushed and then moved to the kernel by a reclaim.
    pub(crate) reclaimed: AtomicU64,
    /// Cycles for which no sender waits for room after the last wait, which was in vain; 0: it was not.
    pub(crate) pause: AtomicU64,
    /// Time stamp of the pause's end, in cycles.
    pub(crate) paused_until: AtomicU64,
}

/// What only the receiving side uses, and the sender while it reclaims.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ReadOwn {
    /// Bytes taken from the ring, as published.
    pub(crate) tail: AtomicU64,
    /// Bytes taken from the kernel since the start of the stream.
    pub(crate) krecv: AtomicU64,
    /// [`Owner`](crate::Owner) of the read lock.
    pub(crate) lock: AtomicU32,
    /// Cycles that the reader waits before its next look at `head`.
    pub(crate) behind: AtomicU32,
    /// Bytes taken from the ring.
    pub(crate) pos: AtomicU64,
    /// `head` as last read while `krecv == k_sent`: no kernel byte is older than the bytes below it.
    pub(crate) head_seen: AtomicU64,
}

/// Who sleeps, and what both sides have agreed on: rarely written, so Shared at the sender.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Asleep {
    /// Sleepers on the very descriptor (recv, poll, select).
    pub(crate) attn: AtomicU32,
    /// `READY`, `NORING`, ... ; the second byte is a [`Reason`](crate::Reason).
    pub(crate) flags: AtomicU32,
    /// The line of the receiver's status page that its epoll instance has; 0: it is in none.
    pub(crate) slot: AtomicU32,
    /// Where the ring is: its bytes - 1, and the pages before it in the upper half; 0 = none.
    pub(crate) ring: AtomicU64,
}

/// The receiver looks at the ring at every receive (its `join` is 2).
pub(crate) const READY: u32 = 1;
/// The direction stays on the kernel for good.
pub(crate) const NORING: u32 = 2;
/// The reader asks for a reclaim: its bytes have to be in the kernel.
pub(crate) const WANT: u32 = 4;
/// A reclaimer died: kernel bytes until the end of the stream, then the rest of the ring.
pub(crate) const DRAIN: u32 = 8;
/// A helper's send has taken the error of the sender's socket.
pub(crate) const TAKEN: u32 = 16;
/// The memory held values that cannot be.
pub(crate) const BROKEN: u32 = 32;
/// A reader died: `krecv` may be short.
pub(crate) const RECOUNT: u32 = 64;
/// Where the reason stands in `flags`.
pub(crate) const REASON_SHIFT: u32 = 8;

/// One direction of a channel.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Dir {
    /// Sender writes, receiver polls.
    pub(crate) w: Line<Wire>,
    /// Sender's own.
    pub(crate) wl: Line<WriteOwn>,
    /// Receiver's own.
    pub(crate) r: Line<ReadOwn>,
    /// Rarely written.
    pub(crate) a: Line<Asleep>,
}

/// What one end says of itself while it joins, and its words off the hot lines.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub struct End {
    pub(crate) cookie: AtomicU64,
    pub(crate) netns: AtomicU64,
    /// Address (v4-mapped) and port of the own end: three words.
    pub(crate) local: [AtomicU64; 3],
    /// The same of the peer.
    pub(crate) peer: [AtomicU64; 3],
    /// Process slot << 48 | fd << 16 (32 bits) | 1 if this end connected.
    pub(crate) place: AtomicU64,
    pub(crate) pid: AtomicU32,
    /// Futex: 1 while this end, as a sender, waits for room in its ring.
    pub(crate) space: AtomicU32,
    /// Bits of proof that this end's bytes come to the other end.
    pub(crate) proved: AtomicU32,
    /// 1: connection tracking knows this end's connection.
    pub(crate) tracked: AtomicU32,
}

/// One connection.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Chan {
    /// 0 free, 1 offered, 2 looks at the ring, 3 left.
    pub(crate) join: Line<[AtomicU32; 2]>,
    pub(crate) end: [End; 2],
    pub(crate) d: [Dir; 2],
}

/// Which channels have bytes for one side.
#[derive(Debug, Default)]
#[repr(C)]
pub struct News {
    /// A bit for each channel that was pushed to.
    pub(crate) bits: Line<[AtomicU64; CHAN_WORDS]>,
    /// A bit for each channel in stream mode whose receiver waits with epoll: look at it always.
    pub(crate) streams: Line<[AtomicU64; CHAN_WORDS]>,
}

/// The first page of a slab, and the bitmaps.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct Header {
    pub(crate) magic: AtomicU64,
    /// Number of the slab, unique for its daemon.
    pub(crate) id: AtomicU32,
    /// Raised by the first push after idleness, taken by the daemon's watch.
    pub(crate) watch: AtomicU32,
    /// Channels in use.
    pub(crate) used: Line<[AtomicU64; CHAN_WORDS]>,
    /// News for each side.
    pub(crate) news: [News; 2],
    /// Pages in use by each side's rings.
    pub(crate) pages: [[AtomicU64; PAGE_WORDS]; 2],
}

/// A process's status page; its peers map it read-only. Line 0 is the process, 1.. its epoll instances: not 0 = asleep.
#[derive(Debug)]
#[repr(C)]
pub struct Status {
    pub(crate) lines: [Line<AtomicU32>; STATUS_LINES],
}

/// Bytes before the first channel.
pub const HEADER_BYTES: usize = 4 * PAGE;
/// Bytes before the first page of ring memory.
pub const PAGES_AT: usize = (HEADER_BYTES + CHANS * CHAN_BYTES).next_multiple_of(PAGE);
/// Bytes of a channel.
pub const CHAN_BYTES: usize = 1408;
/// Bytes of the largest ring: one non-blocking send moves it into the kernel.
pub const RING_BYTES_MAX: usize = PAGE << if cfg!(loom) { 1 } else { 6 };
/// Bytes of a slab (sparse): what the daemon makes, seals (shrink, grow, seal) and shares. A ring of any size that begins in
/// any page ends inside.
pub const SLAB_BYTES: usize = PAGES_AT + 2 * PAGES_PER_SIDE * PAGE + RING_BYTES_MAX;
/// Bytes of a status page.
pub const STATUS_BYTES: usize = STATUS_LINES * 128;
/// Bytes of a directory.
pub const DIRECTORY_BYTES: usize = DIRECTORY_ENTRIES * 32;

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Dir>() == 512);
    assert!(size_of::<End>() == 128);
    assert!(size_of::<Chan>() == CHAN_BYTES);
    assert!(size_of::<Header>() <= HEADER_BYTES);
    assert!(size_of::<Status>() == STATUS_BYTES);
};
