//! What a device does with a virtqueue, whichever of the two layouts it has: the words between which
//! [`super::split`] and [`super::packed`] differ, and the checks in which they do not.
//!
//! # Model
//! A *place* is where a chain stands in the order of the ring, as one number: a split ring's free-running index, or
//! twice round a packed one, the second time with the other wrap counter. A *head* is the first descriptor of a chain
//! as it was read, once. The halves read heads (`Ring::heads`), walk a chain that is more than one whole buffer
//! (`Ring::chain`), and give chains back in order (`Ring::put`, then `Ring::open` and `Ring::set_index`).
//!
//! # Synchronization
//! Each layout lists its words in its own module. What both promise: a head is read behind the word that makes its
//! chain available, and used elements become visible behind everything that was written before `Ring::open`.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::AtomicU16;
use std::sync::Arc;

use windlass_frame::BURST;
use windlass_shm::copy_in;

use super::guest_map::{Extent, GuestMap, Miss, READ, first_miss};
use super::log::DirtyLog;
use super::queue::{Base, Part, QueueError, QueueSetup};
use super::ring_progress::Mark;

/// Descriptors that one chain may have, those of its indirect table included.
pub const CHAIN_MAX: usize = 64;
/// Bytes of the header before each frame (`struct virtio_net_hdr_v1`).
pub const HEADER_BYTES: u32 = windlass_frame::Claim::BYTES as u32;
/// The chain goes on.
pub const DESC_NEXT: u16 = 1;
/// For us to write.
pub const DESC_WRITE: u16 = 2;
/// A table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub(super) const DESC_BYTES: u32 = 16;

/// A descriptor as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// Split: the next one's number. Packed: the chain's.
    pub(super) tag: u16,
}

impl Desc {
    /// Whether this descriptor is its whole chain, readable or writable as `WRITE` says.
    #[inline(always)]
    pub(super) const fn is_whole<const WRITE: bool>(&self) -> bool {
        let wanted = if WRITE { DESC_WRITE } else { 0 };
        self.flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == wanted
    }
}

/// The first descriptor of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// The descriptor's two halves.
    pub(super) words: [u64; 2],
    /// What the guest calls the chain. Of a packed chain that goes on only its last descriptor says that.
    pub(super) id: u16,
    /// False if there is no descriptor of the number that the guest gave.
    pub(super) exists: bool,
}

impl Head {
    pub(super) const NONE: Head = Head {
        words: [0; 2],
        id: 0,
        exists: false,
    };

    /// Bytes that the first descriptor names.
    #[inline(always)]
    pub(super) const fn len(&self) -> u32 {
        self.words[1] as u32
    }
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Outside the memory, of the wrong kind, or no descriptor at all.
    Bad,
    /// More than [`CHAIN_MAX`] descriptors, or a loop.
    TooLong,
    /// The ring cannot be followed behind it.
    Endless,
    /// An address of it is not translated yet, which was noted in the map. Only behind an IOMMU.
    Missing,
}

/// What the walk over one chain found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// Whether the pieces are a chain. If not, those that were found do not count.
    pub(super) result: Result<(), Fault>,
    /// Descriptors that were looked at.
    pub(super) looked: usize,
    /// RingProgress of the ring that the chain takes.
    pub(super) places: u16,
    /// What the guest calls it.
    pub(super) id: u16,
}

/// One checked piece of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) ptr: *mut u8,
    pub(super) len: u32,
    /// Its guest address.
    pub(super) gpa: u64,
}

/// One ring, by address.
pub(super) trait Ring: Sized + Send + Sync {
    /// Whether a chain takes a place for each of its descriptors in the ring, so that only a walk tells where the
    /// next chain begins.
    const WALKED: bool;

    /// Whether one worker at a time transmits on it, up to its publication.
    const WHOLE: bool;

    /// What [`Ring::put`] leaves for [`Ring::open`].
    type Held: Default;

    /// The ring of `setup`, found in its memory.
    fn new(setup: &QueueSetup) -> Result<Self, QueueError>;

    /// The place that `base` names.
    fn place(&self, base: Base) -> u16;

    /// The reverse.
    fn base(&self, at: u16) -> Base;

    /// Number of descriptors.
    fn size(&self) -> u16;

    /// Number of places until they are named anew.
    fn lap(&self) -> u32;

    /// At most so many places before `next` are used and not yet taken by the guest: it makes a descriptor available again when it has.
    fn unread(&self, next: u16) -> u16;

    /// The place `n` behind `at`; `n` is at most the size.
    fn advance(&self, at: u16, n: u16) -> u16;

    /// How far `to` is behind `from`.
    fn distance(&self, from: u16, to: u16) -> u16;

    /// Where written pages are logged.
    fn log(&self) -> Option<&Arc<DirtyLog>>;

    /// A descriptor by its two halves.
    fn desc(words: [u64; 2]) -> Desc;

    /// The descriptor behind number `at` in an indirect table of `count`.
    fn next_in_table(desc: Desc, at: usize, count: usize) -> Option<usize>;

    /// Whether the kind of a piece in an indirect table matters. In a packed one nobody clears it: DPDK's driver
    /// leaves the header that it transmits marked as ours to write.
    fn kind_counts<const WRITE: bool>() -> bool;

    /// Whether indirect tables were agreed on.
    fn indirect(&self) -> bool;

    /// Reads the heads of up to `want` chains from `at` on and hands each to `each`, which says whether to go on.
    /// Where `FRESH` is false, only what `seen` already tells is handed out. A chain that takes more than one place is
    /// the last. None for an index that cannot be.
    fn heads<const FRESH: bool>(
        &self,
        seen: &AtomicU16,
        at: u16,
        want: u16,
        each: impl FnMut(Head) -> bool,
    ) -> Option<()>;

    /// Whether `seen` tells of a chain at `at`.
    fn is_known(&self, seen: &AtomicU16, at: u16) -> bool;

    /// Calls `each` for the pieces of the chain that begins at `at` with `head`, in order; `WRITE`: all must be for
    /// us to write, else none may be. The chain may take `most` places.
    fn chain<const WRITE: bool>(
        &self,
        memory: (&GuestMap, &mut Extent),
        at: u16,
        head: &Head,
        most: u16,
        each: impl FnMut(Piece),
    ) -> Walk;

    /// Gives the chain at `at` back with `len` bytes written. The guest sees it once [`Ring::open`] and
    /// [`Ring::set_index`] were called.
    fn put(&self, held: &mut Self::Held, at: u16, id: u16, len: u32);

    /// Keeps in `mark` what is about to be published, for whoever finds the ring after a kill.
    fn keep(&mut self, _mark: Mark) {}

    /// What was put between two places is about to be opened: everything up to `from` is.
    #[inline(always)]
    fn intend(&self, _from: u16, _to: u16) {}

    /// Opens the way to what was put since `held` was made.
    fn open(&self, held: Self::Held);

    /// Publishes the place up to which everything was opened.
    fn set_index(&self, at: u16);

    /// Logs the words that giving back from `from` to `to` wrote.
    fn log_used(&self, log: &DirtyLog, from: u16, to: u16);

    /// Whether the guest wants to be interrupted after our place went from `old` to `new`: to be asked behind the
    /// publication.
    fn wants_call(&self, old: u16, new: u16) -> bool;

    /// Asks for a notification of a chain at `next`, and looks whether there is one; true if so.
    fn arm(&self, next: u16) -> bool;

    /// Asks for no notifications.
    fn disarm(&self, next: u16);

    /// Keeps it so while the place goes from `old` to `new`.
    fn park_again(&self, old: u16, new: u16);

    /// Starts to fetch the heads of up to `most` chains from `at` on, as far as `seen` tells of them; with `WRITE`
    /// also the words that giving them back will write.
    fn fetch_heads<const WRITE: bool>(&self, seen: &AtomicU16, at: u16, most: u16);

    /// Starts to fetch the words that giving back `count` chains from `at` on will write.
    fn fetch_used(&self, at: u16, count: u16);
}

/// Checks what one descriptor names. One without bytes names nothing.
#[inline(always)]
pub(super) fn piece(
    (map, hit): (&GuestMap, &mut Extent),
    desc: Desc,
    each: &mut impl FnMut(Piece),
) -> Result<(), Fault> {
    if desc.len != 0 {
        let gpa = desc.addr;
        let Some(ptr) = map.find(hit, gpa, desc.len) else {
            return pieces(map, map.access(), desc, each);
        };
        let len = desc.len;
        each(Piece { ptr, len, gpa });
    }
    Ok(())
}

/// The same for one that lies in several pieces, as it may behind an IOMMU: [`CHAIN_MAX`] of them at most.
#[cold]
#[inline(never)]
fn pieces(
    map: &GuestMap,
    access: u8,
    desc: Desc,
    each: &mut impl FnMut(Piece),
) -> Result<(), Fault> {
    if !map.is_translated() || desc.addr.checked_add(u64::from(desc.len)).is_none() {
        return Err(Fault::Bad);
    }
    let (mut gpa, mut left) = (desc.addr, desc.len);
    for _ in 0..CHAIN_MAX {
        let Some((ptr, len)) = map.run_at(access, gpa, left) else {
            map.note_miss(gpa, access);
            return Err(Fault::Missing);
        };
        each(Piece { ptr, len, gpa });
        left = left.wrapping_sub(len);
        if left == 0 {
            return Ok(());
        }
        gpa = gpa.wrapping_add(u64::from(len));
    }
    Err(Fault::TooLong)
}

/// Copies an indirect table out, piece by piece where it lies in several.
#[inline(always)]
fn copy_table(map: &GuestMap, hit: &mut Extent, table: Desc, to: *mut u8) -> Result<(), Fault> {
    if !map.is_translated() {
        let from = map.find(hit, table.addr, table.len).ok_or(Fault::Bad)?;
        // SAFETY: `table.len` bytes that were found in the guest's memory, into as many of our own (caller).
        unsafe { copy_in(to, from, table.len as usize) };
        return Ok(());
    }
    let mut at = 0;
    pieces(map, READ, table, &mut |piece: Piece| {
        // SAFETY: a checked piece; all of them together are as long as the table (`pieces`).
        unsafe { copy_in(to.wrapping_add(at), piece.ptr, piece.len as usize) };
        at = at.wrapping_add(piece.len as usize);
    })
}

/// Whether a descriptor is for us to write exactly if `WRITE` says so.
#[inline(always)]
pub(super) const fn is_kind<const WRITE: bool>(desc: Desc) -> bool {
    (desc.flags & DESC_WRITE != 0) == WRITE
}

/// Calls `each` for the pieces of the indirect table that `table` names, behind `before` descriptors of its chain,
/// which it ends (VIRTIO 1.2, 2.7.5.3 and 2.8.7). The table is copied as a whole and walked in private memory. How
/// many descriptors the chain has.
#[inline(never)]
pub(super) fn table<R: Ring, const WRITE: bool>(
    ring: &R,
    (map, hit): (&GuestMap, &mut Extent),
    table: Desc,
    before: usize,
    each: &mut impl FnMut(Piece),
) -> Result<usize, Fault> {
    let odd = table.len & DESC_BYTES.wrapping_sub(1) != 0 || table.len == 0;
    if !ring.indirect() || odd || table.flags & DESC_NEXT != 0 {
        return Err(Fault::Bad);
    }
    let mut copy = [[0u64; 2]; CHAIN_MAX];
    let count = (table.len / DESC_BYTES) as usize;
    let private = copy.get_mut(..count).ok_or(Fault::TooLong)?;
    copy_table(map, hit, table, private.as_mut_ptr().cast())?;
    let private = copy.get(..count).ok_or(Fault::Bad)?;
    let mut at = 0;
    for looked in before.wrapping_add(1)..=CHAIN_MAX {
        let desc = R::desc(*private.get(at).ok_or(Fault::Bad)?);
        if looked.wrapping_sub(before) > count {
            // More than there are: a loop.
            break;
        }
        let wrong_kind = R::kind_counts::<WRITE>() && !is_kind::<WRITE>(desc);
        if desc.flags & DESC_INDIRECT != 0 || wrong_kind {
            return Err(Fault::Bad);
        }
        piece((map, hit), desc, each)?;
        match R::next_in_table(desc, at, count) {
            Some(next) => at = next,
            None => return Ok(looked),
        }
    }
    Err(Fault::TooLong)
}

/// Calls `each` for what is not translated of the first `most` chains from `at` on, as far as their heads tell: an
/// indirect table is read, so what it is for decides.
pub(super) fn look_ahead<R: Ring>(
    ring: &R,
    map: &GuestMap,
    at: u16,
    most: u16,
    mut each: impl FnMut(Miss),
) {
    let seen = AtomicU16::new(at);
    let most = most.min(BURST as u16);
    // An index that cannot be is found again by whoever takes the chains.
    let _ = ring.heads::<true>(&seen, at, most, |head| {
        let desc = R::desc(head.words);
        let access = match desc.flags & DESC_INDIRECT {
            0 => map.access(),
            _ => READ,
        };
        let lacking = first_miss(map.extents(), access, desc.addr, u64::from(desc.len));
        if let Some(iova) = lacking.filter(|_| head.exists) {
            each(Miss::at(iova, access));
        }
        true
    });
}

/// Finds one part of a ring, aligned, for the access that its device has to it.
pub(super) fn find_part(setup: &QueueSetup, part: &Part) -> Result<*mut u8, QueueError> {
    let found = setup.map.find_for(part.access, part.gpa, part.bytes);
    found
        .filter(|p| p.addr() & part.align.wrapping_sub(1) == 0)
        .ok_or(QueueError::Place {
            part: part.name,
            gpa: part.gpa,
        })
}
