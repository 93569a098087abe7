//! The words of one split virtqueue (VIRTIO 1.2, 2.7), as a device uses them.
//!
//! # Model
//! ```text
//!  descriptors  16 bytes each: address 64 | length 32, flags 16, next 16          guest writes
//!  available    flags 16, index 16, heads [16; size], used_event 16               guest writes
//!  used         flags 16, index 16, {head 32, length 32} [size], avail_event 16   we write
//! ```
//! A `Ring` holds addresses that were found once, after its three parts had been found inside the guest's memory. A
//! chain is walked by `Ring::chain` from a head that its caller has read: each descriptor is read once, an indirect
//! table is copied as a whole and walked in private memory.
//!
//! # Ownership and lifetime
//! Whoever holds a ring also holds its [`GuestMap`].
//!
//! # Synchronization
//! | word | written by | order |
//! | --- | --- | --- |
//! | available index | guest, release | our acquire load: heads and descriptors behind it are complete |
//! | used index | us, release | the guest's acquire load: used elements and frames |
//! | used flags, avail_event | us | our store, SeqCst fence, our load of the available index (`arm`) |
//! | available flags, used_event | guest | our store of the used index, SeqCst fence, our load |

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{Ordering, fence};

use windlass_shm::{copy_in, word};

use super::features::{EVENT_IDX, INDIRECT_DESC};
use super::guest_map::{Extent, GuestMap};
use super::queue::{QueueError, QueueSetup};

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
/// `VIRTQ_USED_F_NO_NOTIFY`.
pub const USED_NO_NOTIFY: u16 = 1;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
const DESC_BYTES: u32 = 16;
/// Chains between two writes of a parked avail_event. Half of what an index can tell apart would do.
const PARK_STEP: u16 = 0x4000;

/// A descriptor as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

impl Desc {
    #[inline(always)]
    pub(super) const fn from_words([low, high]: [u64; 2]) -> Desc {
        Desc {
            addr: low,
            len: high as u32,
            flags: (high >> 32) as u16,
            next: (high >> 48) as u16,
        }
    }

    /// Whether this descriptor is its whole chain, readable or writable as `WRITE` says.
    #[inline(always)]
    pub(super) const fn is_whole<const WRITE: bool>(&self) -> bool {
        let wanted = if WRITE { DESC_WRITE } else { 0 };
        self.flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == wanted
    }
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Outside the memory, of the wrong kind, or no descriptor at all.
    Bad,
    /// More than [`CHAIN_MAX`] descriptors, or a loop.
    TooLong,
}

/// One checked piece of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) ptr: *mut u8,
    pub(super) len: u32,
}

/// One ring, by address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    desc: *const u64,
    avail: *const u16,
    used: *mut u32,
    mask: u16,
    indirect: bool,
    event_idx: bool,
}

// SAFETY: addresses inside the mappings of a map that whoever holds the ring holds too; every access is atomic.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// The ring of `setup`, found in its memory.
    pub(super) fn new(setup: &QueueSetup) -> Result<Ring, QueueError> {
        setup.check()?;
        let size = u32::from(setup.size);
        let event_idx = setup.features & EVENT_IDX != 0;
        let event = if event_idx { 2 } else { 0 };
        let find = |part, gpa, each: u32, fixed: u32, align: usize| {
            let bytes = size.wrapping_mul(each).wrapping_add(fixed);
            let found = setup.map.find(&mut setup.map.hit(), gpa, bytes);
            found
                .filter(|p| p.addr() & align.wrapping_sub(1) == 0)
                .ok_or(QueueError::Place { part, gpa })
        };
        let desc = find("descriptor table", setup.desc, DESC_BYTES, 0, 16)?;
        let fixed = 4u32.wrapping_add(event);
        let avail = find("available ring", setup.avail, 2, fixed, 2)?;
        let used = find("used ring", setup.used, 8, fixed, 4)?;
        Ok(Ring {
            desc: desc.cast_const().cast(),
            avail: avail.cast_const().cast(),
            used: used.cast(),
            mask: setup.size.wrapping_sub(1),
            indirect: setup.features & INDIRECT_DESC != 0,
            event_idx,
        })
    }

    /// Number of descriptors.
    #[inline(always)]
    pub(super) fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// Whether notifications go by index.
    #[inline(always)]
    pub(super) fn event_idx(&self) -> bool {
        self.event_idx
    }

    #[inline(always)]
    fn avail_word(&self, at: usize) -> *const u16 {
        self.avail.wrapping_add(at)
    }

    /// The guest's index.
    #[inline(always)]
    pub(super) fn avail_index(&self) -> u16 {
        // SAFETY: aligned and inside the mapping (`Ring::new`), which outlives the ring (its holder keeps the map).
        unsafe { word::load_u16(self.avail_word(1), Ordering::Acquire) }
    }

    #[inline(always)]
    fn head_word(&self, index: u16) -> *const u16 {
        self.avail_word(usize::from(index & self.mask).wrapping_add(2))
    }

    /// The head that the guest made available at `index`; not checked.
    #[inline(always)]
    pub(super) fn head(&self, index: u16) -> u16 {
        // SAFETY: one of the `size` words of the ring; otherwise as in `avail_index`.
        unsafe { word::load_u16(self.head_word(index), Ordering::Relaxed) }
    }

    /// The line of the heads at `index`, for a prefetch.
    #[inline(always)]
    pub(super) fn head_line(&self, index: u16) -> *const u8 {
        self.head_word(index).cast()
    }

    #[inline(always)]
    fn desc_word(&self, id: u16) -> *const u64 {
        let at = usize::from(id & self.mask).wrapping_mul(2);
        self.desc.wrapping_add(at)
    }

    /// The line of a descriptor, for a prefetch: of some descriptor, if there is none of this number.
    #[inline(always)]
    pub(super) fn desc_line(&self, id: u16) -> *const u8 {
        self.desc_word(id).cast()
    }

    /// The two halves of descriptor `id`, each read once; `None` if there is none of this number.
    #[inline(always)]
    pub(super) fn words(&self, id: u16) -> Option<[u64; 2]> {
        if id > self.mask {
            return None;
        }
        let p = self.desc_word(id);
        // SAFETY: one of the `size` descriptors, aligned to 16 (`Ring::new`); otherwise as in `avail_index`.
        let low = unsafe { word::load_u64(p, Ordering::Relaxed) };
        // SAFETY: the second half of the same descriptor.
        let high = unsafe { word::load_u64(p.wrapping_add(1), Ordering::Relaxed) };
        Some([low, high])
    }

    #[inline(always)]
    fn used_word(&self, index: u16) -> *mut u32 {
        let at = usize::from(index & self.mask).wrapping_mul(2);
        self.used.wrapping_add(at).wrapping_add(1)
    }

    /// Gives a chain back with `len` bytes written, at `index` of the used ring.
    #[inline(always)]
    pub(super) fn put_used(&self, index: u16, head: u16, len: u32) {
        let p = self.used_word(index);
        // SAFETY: one of the `size` elements, aligned to 4 (`Ring::new`); otherwise as in `avail_index`.
        unsafe { word::store_u32(p, u32::from(head), Ordering::Relaxed) };
        // SAFETY: the second half of the same element.
        unsafe { word::store_u32(p.wrapping_add(1), len, Ordering::Relaxed) };
    }

    /// The line of the used element at `index`, for a prefetch.
    #[inline(always)]
    pub(super) fn used_line(&self, index: u16) -> *const u8 {
        self.used_word(index).cast_const().cast()
    }

    /// Publishes our index.
    #[inline(always)]
    pub(super) fn publish(&self, index: u16) {
        let p = self.used.cast::<u16>().wrapping_add(1);
        // SAFETY: as in `avail_index`.
        unsafe { word::store_u16(p, index, Ordering::Release) }
    }

    /// Whether the guest wants to be interrupted after our index went from `old` to `new`: to be asked behind the
    /// publication.
    #[inline(always)]
    pub(super) fn wants_call<const EVENT: bool>(&self, old: u16, new: u16) -> bool {
        fence(Ordering::SeqCst);
        if EVENT {
            let at = usize::from(self.size()).wrapping_add(2);
            // SAFETY: the word behind the heads, found with them when EVENT_IDX was agreed on.
            let event = unsafe { word::load_u16(self.avail_word(at), Ordering::Relaxed) };
            // As vring_need_event: the event lies in [old, new).
            return new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old);
        }
        // SAFETY: as in `avail_index`.
        let flags = unsafe { word::load_u16(self.avail_word(0), Ordering::Relaxed) };
        flags & AVAIL_NO_INTERRUPT == 0
    }

    /// Asks for a notification when the guest's index passes `next`, and looks whether it has; true if so.
    #[inline]
    pub(super) fn arm(&self, next: u16) -> bool {
        if self.event_idx {
            self.set_avail_event(next);
        } else {
            self.set_used_flags(0);
        }
        fence(Ordering::SeqCst);
        self.avail_index() != next
    }

    /// Asks for no notifications: by the flag, or by an event half a ring behind.
    #[inline]
    pub(super) fn disarm(&self, next: u16) {
        if self.event_idx {
            self.set_avail_event(next.wrapping_sub(self.size() / 2));
        } else {
            self.set_used_flags(USED_NO_NOTIFY);
        }
    }

    /// Moves a parked event along, before the index comes round to it.
    #[inline(always)]
    pub(super) fn park_again(&self, old: u16, new: u16) {
        if (old ^ new) & PARK_STEP != 0 && self.event_idx {
            self.disarm(new);
        }
    }

    #[inline(always)]
    fn set_used_flags(&self, flags: u16) {
        // SAFETY: as in `avail_index`.
        unsafe { word::store_u16(self.used.cast(), flags, Ordering::Relaxed) }
    }

    #[inline(always)]
    fn set_avail_event(&self, index: u16) {
        let elements = usize::from(self.size()).wrapping_mul(2);
        let p = self.used.wrapping_add(elements).wrapping_add(1);
        // SAFETY: the word behind the elements, found with them when EVENT_IDX was agreed on (`event_idx`).
        unsafe { word::store_u16(p.cast(), index, Ordering::Relaxed) }
    }

    /// Calls `each` for the pieces of the chain whose head was read as `head`, in order; `WRITE`: all must be for us
    /// to write, else none may be. Returns how many descriptors were looked at. On a fault the pieces so far do not
    /// count.
    #[inline]
    pub(super) fn chain<const WRITE: bool>(
        &self,
        map: &GuestMap,
        hit: &mut Extent,
        head: [u64; 2],
        mut each: impl FnMut(Piece),
    ) -> Result<usize, Fault> {
        let mut desc = Desc::from_words(head);
        for looked in 1..=CHAIN_MAX {
            if desc.flags & DESC_INDIRECT != 0 {
                return self.table::<WRITE>(map, hit, desc, looked, each);
            }
            piece::<WRITE>(map, hit, desc, &mut each)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(looked);
            }
            if looked == CHAIN_MAX {
                break;
            }
            desc = Desc::from_words(self.words(desc.next).ok_or(Fault::Bad)?);
        }
        Err(Fault::TooLong)
    }

    /// The same for the indirect table that `table` names, which ends its chain (VIRTIO 1.2, 2.7.5.3).
    #[inline(never)]
    fn table<const WRITE: bool>(
        &self,
        map: &GuestMap,
        hit: &mut Extent,
        table: Desc,
        before: usize,
        mut each: impl FnMut(Piece),
    ) -> Result<usize, Fault> {
        let odd = table.len & DESC_BYTES.wrapping_sub(1) != 0 || table.len == 0;
        if !self.indirect || odd || table.flags & DESC_NEXT != 0 {
            return Err(Fault::Bad);
        }
        let mut copy = [[0u64; 2]; CHAIN_MAX];
        let count = (table.len / DESC_BYTES) as usize;
        let private = copy.get_mut(..count).ok_or(Fault::TooLong)?;
        let from = map.find(hit, table.addr, table.len).ok_or(Fault::Bad)?;
        let to = private.as_mut_ptr().cast();
        // SAFETY: `table.len` bytes that were found in the guest's memory, into as many of our own.
        unsafe { copy_in(to, from, table.len as usize) };
        let private = copy.get(..count).ok_or(Fault::Bad)?;
        let mut at = 0;
        for looked in before..=CHAIN_MAX {
            let desc = Desc::from_words(*private.get(usize::from(at)).ok_or(Fault::Bad)?);
            if desc.flags & DESC_INDIRECT != 0 {
                return Err(Fault::Bad);
            }
            piece::<WRITE>(map, hit, desc, &mut each)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(looked);
            }
            at = desc.next;
        }
        Err(Fault::TooLong)
    }
}

/// Checks what one descriptor names. One without bytes names nothing.
#[inline(always)]
fn piece<const WRITE: bool>(
    map: &GuestMap,
    hit: &mut Extent,
    desc: Desc,
    each: &mut impl FnMut(Piece),
) -> Result<(), Fault> {
    if (desc.flags & DESC_WRITE != 0) != WRITE {
        return Err(Fault::Bad);
    }
    if desc.len != 0 {
        let ptr = map.find(hit, desc.addr, desc.len).ok_or(Fault::Bad)?;
        let len = desc.len;
        each(Piece { ptr, len });
    }
    Ok(())
}
