//! What the broker does with a slab besides moving bytes: make it, and copy out what it says.
//!
//! # Model
//! A [`MappedSlab`] is the broker's own mapping. Everything that is read from it was written by processes that may be
//! hostile: each word is loaded once, into plain data, and means no more than that somebody wrote it.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::client::Region;
use crate::join::EndInfo;
use crate::layout::{BROKEN, DRAIN, Dir, NORING, READY, REASON_SHIFT, SLAB_BYTES, Side, WANT};
use crate::owner::{Alive, Life, Owner};
use crate::protocol::PROCESSES_BYTES;
use crate::reason::Reason;
use crate::ring::Place;
use crate::shim::{Acquire, AtomicU32, Relaxed};
use crate::slab::Slab;

/// A slab that this process made and mapped. Unmapped when dropped.
#[derive(Debug)]
pub struct MappedSlab {
    slab: Slab,
    region: Region,
}

impl MappedSlab {
    /// Makes a slab of zeroed shared memory of [`SLAB_BYTES`] that nobody else has yet. `None` if it cannot be mapped.
    pub fn create(memory: BorrowedFd<'_>, id: u32) -> Option<Self> {
        let region = Region::of(memory, SLAB_BYTES, true)?;
        let base = NonNull::new(region.base)?;
        // SAFETY: mapped read-write a moment ago, page-aligned; the caller says that it is zeroed and not shared.
        unsafe { Slab::format(base, id) };
        Self::attach(region)
    }

    /// Maps a slab that the broker made, or a copy of one. `None` if it is none.
    pub fn open(memory: BorrowedFd<'_>) -> Option<Self> {
        Self::attach(Region::of(memory, SLAB_BYTES, true)?)
    }

    fn attach(region: Region) -> Option<Self> {
        let base = NonNull::new(region.base)?;
        // SAFETY: mapped as long as the value lives: `drop` alone takes it away, and links borrow the value.
        let slab = unsafe { Slab::attach(base, region.len, [None, None]) }.ok()?;
        Some(Self { slab, region })
    }

    /// Bytes pushed by a side to a channel, and of these the bytes that were taken: `head` and `pos`. `None` where no
    /// channel has that number.
    pub fn unread(&self, chan: u16, side: u8) -> Option<(u64, u64)> {
        let link = self.slab.link(chan, Side::from_u8(side))?;
        let dir = link.dir_from(link.side());
        let pos = dir.r.pos.load(Acquire);
        Some((dir.w.head.load(Acquire), pos))
    }

    /// The owners of the write locks of a channel's directions, by the side that sends; 0 where nobody holds it.
    pub fn locks(&self, chan: u16) -> [u32; 2] {
        [Side::Low, Side::High].map(|side| {
            let link = self.slab.link(chan, side);
            link.map_or(0, |link| link.dir_from(side).wl.lock.load(Relaxed))
        })
    }

    /// What a channel says, word by word.
    pub fn chan(&self, chan: u16) -> Option<ChanWords> {
        let link = self.slab.link(chan, Side::Low)?;
        Some(ChanWords {
            news: [Side::Low, Side::High].map(|side| self.slab.news(side).has(chan)),
            ends: [Side::Low, Side::High].map(|side| link.info(side)),
            dirs: [Side::Low, Side::High].map(|side| DirWords::of(link.dir_from(side))),
        })
    }
}

impl Deref for MappedSlab {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        &self.slab
    }
}

impl Drop for MappedSlab {
    fn drop(&mut self) {
        // SAFETY: links borrow this value, so none is left.
        unsafe { self.region.unmap() };
    }
}

/// The table of processes in a process that works for the broker, for reading. Unmapped when dropped.
#[derive(Debug)]
pub struct MappedTable(Region);

impl MappedTable {
    /// `None` if it cannot be mapped.
    pub fn open(memory: BorrowedFd<'_>) -> Option<Self> {
        Region::of(memory, PROCESSES_BYTES, false).map(Self)
    }
}

impl Alive for MappedTable {
    fn life(&self, owner: Owner) -> Life {
        let Some(table) = NonNull::new(self.0.base) else {
            return Life::Stranger;
        };
        let word = table.cast::<AtomicU32>().as_ptr();
        let word = word.wrapping_add(owner.process().into());
        // SAFETY: the table has a word for every slot, stays mapped as long as the value lives, and is of the broker's
        // sealed memory.
        match unsafe { &*word }.load(Relaxed) {
            0 => Life::Dead,
            _ => Life::Lives,
        }
    }
}

impl Drop for MappedTable {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the table between two calls of `life`.
        unsafe { self.0.unmap() };
    }
}

/// What a channel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChanWords {
    /// Whether a side has been told that there are bytes for it, and has not looked yet.
    pub news: [bool; 2],
    /// Its ends.
    pub ends: [EndInfo; 2],
    /// Its directions, by the side that sends.
    pub dirs: [DirWords; 2],
}

/// Declares what is told of a direction, and where it stands.
macro_rules! dir_words {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $line:ident.$word:ident,)*) => {
        /// What a direction says: words of the shared memory.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct DirWords {
            $($(#[$doc])* pub $name: $type,)*
            /// Bytes of the ring, 0 without one.
            pub ring_bytes: u32,
        }

        impl DirWords {
            fn of(dir: &Dir) -> Self {
                let place = Place::decode(dir.a.ring.load(Acquire));
                let ring_bytes = place.map_or(0, |place| place.bytes() as u32);
                Self { $($name: dir.$line.$word.load(Acquire),)* ring_bytes }
            }
        }
    };
}

// What was taken before what was given, so that the differences do not run below 0.
dir_words! {
    /// Bytes taken from the ring.
    pos: u64 = r.pos,
    /// The same as published to the sender.
    tail: u64 = r.tail,
    /// Bytes taken from the kernel since the start of the stream.
    krecv: u64 = r.krecv,
    /// Bytes pushed to the ring.
    head: u64 = w.head,
    /// Bytes given to the kernel since the start of the stream.
    k_sent: u64 = w.k_sent,
    /// Bytes that were pushed and moved to the kernel after all.
    reclaimed: u64 = wl.reclaimed,
    /// Time-stamp counter at the last push, 0 if nobody noted it.
    pushed_at: u64 = wl.pushed_at,
    /// Owner of the write lock: process slot << 16 | thread.
    write_lock: u32 = wl.lock,
    /// Owner of the read lock.
    read_lock: u32 = r.lock,
    /// 1: pushes without a fence.
    stream: u32 = w.stream,
    /// 1: an uncounted writer may exist.
    uncounted: u32 = w.uncounted,
    /// 1: a reclaim is owed.
    owed: u32 = wl.owed,
    /// 1: a reclaim is under way.
    mark: u32 = wl.mark,
    /// Sleepers on the descriptor.
    attn: u32 = a.attn,
    /// Flags and reason.
    flags: u32 = a.flags,
    /// Lines of the receiver's status page.
    slot: u32 = a.slot,
}

impl DirWords {
    /// The flags in words; the receiver's own first.
    pub fn flag_words(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags;
        let all = [
            (READY, "ready"),
            (NORING, "kernel-for-good"),
            (WANT, "reclaim-wanted"),
            (DRAIN, "draining"),
            (BROKEN, "broken"),
        ];
        let set = all.into_iter().filter(move |(bit, _)| flags & bit != 0);
        set.map(|(_, word)| word)
    }

    /// Whether the receiver looks at the ring, and nothing keeps the direction on the kernel.
    pub fn may_ring(&self) -> bool {
        self.flags & (READY | NORING) == READY
    }

    /// Why it is on the kernel.
    pub fn reason(&self) -> Reason {
        Reason::from_u8((self.flags >> REASON_SHIFT) as u8)
    }

    /// Bytes in the ring that nobody has taken; 0 where the words make no sense.
    pub fn ring_queue(&self) -> u64 {
        let unread = Some(self.head.wrapping_sub(self.pos));
        let unread = unread.filter(|unread| *unread <= self.ring_bytes.into());
        unread.unwrap_or(0)
    }

    /// Bytes in the kernel that nobody has taken; 0 where the words make no sense.
    pub fn kernel_queue(&self) -> u64 {
        self.k_sent.saturating_sub(self.krecv)
    }

    /// Bytes that went from sender to receiver by the ring.
    pub fn ring_total(&self) -> u64 {
        self.head.saturating_sub(self.reclaimed)
    }
}
