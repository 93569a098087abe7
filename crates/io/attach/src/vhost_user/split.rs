//! The words of one split virtqueue (VIRTIO 1.2, 2.7), as a device uses them.
//!
//! # Model
//! ```text
//!  descriptors  16 bytes each: address 64 | length 32, flags 16, next 16          guest writes
//!  available    flags 16, index 16, heads [16; size], used_event 16               guest writes
//!  used         flags 16, index 16, {head 32, length 32} [size], avail_event 16   we write
//! ```
//! A `Split` holds addresses that were found once, after its three parts had been found inside the guest's memory. A
//! place is the index of the available ring, and of the used ring: chains are given back in order.
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

use core::sync::atomic::{AtomicU16, Ordering, fence};
use std::sync::Arc;

use windlass_frame::BURST;
use windlass_shm::word;
use windlass_sync::prefetch;

use super::area::{Area, Flat};
use super::features::{EVENT_IDX, INDIRECT_DESC};
use super::guest_map::{Extent, GuestMap};
use super::log::DirtyLog;
use super::queue::{Base, QueueError, QueueSetup};
use super::ring::{
    CHAIN_MAX, DESC_INDIRECT, DESC_NEXT, Desc, Fault, Head, Piece, Ring, Walk, is_kind, piece,
    table,
};

/// `VIRTQ_USED_F_NO_NOTIFY`.
pub const USED_NO_NOTIFY: u16 = 1;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Chains between two writes of a parked avail_event. Half of what an index can tell apart would do.
const PARK_STEP: u16 = 0x4000;
/// Used elements on a cache line.
const USED_PER_LINE: u16 = 8;

/// One split ring in one piece of memory.
pub(super) type Split = SplitOver<Flat>;

/// One split ring, by address.
#[derive(Debug)]
pub(super) struct SplitOver<A> {
    desc: A,
    avail: A,
    used: A,
    used_gpa: u64,
    mask: u16,
    indirect: bool,
    event_idx: bool,
    log: Option<Arc<DirtyLog>>,
}

// SAFETY: addresses inside the mappings of a map that whoever holds the ring holds too; every access is atomic.
unsafe impl<A> Send for SplitOver<A> {}
// SAFETY: as above.
unsafe impl<A> Sync for SplitOver<A> {}

impl<A: Area> SplitOver<A> {
    #[inline(always)]
    fn avail_word(&self, at: usize) -> *const u16 {
        self.avail.at(at.wrapping_mul(2)).cast_const().cast()
    }

    /// The guest's index.
    #[inline(always)]
    fn avail_index(&self) -> u16 {
        // SAFETY: aligned and inside the mapping (`Ring::new`), which outlives the ring (its holder keeps the map).
        unsafe { word::load_u16(self.avail_word(1), Ordering::Acquire) }
    }

    #[inline(always)]
    fn head_word(&self, index: u16) -> *const u16 {
        self.avail_word(usize::from(index & self.mask).wrapping_add(2))
    }

    /// The head that the guest made available at `index`; not checked.
    #[inline(always)]
    fn head(&self, index: u16) -> u16 {
        // SAFETY: one of the `size` words of the ring; otherwise as in `avail_index`.
        unsafe { word::load_u16(self.head_word(index), Ordering::Relaxed) }
    }

    #[inline(always)]
    fn desc_word(&self, id: u16) -> *const u64 {
        let at = usize::from(id & self.mask).wrapping_mul(16);
        self.desc.at(at).cast_const().cast()
    }

    /// The two halves of descriptor `id`, each read once; `None` if there is none of this number.
    #[inline(always)]
    fn words(&self, id: u16) -> Option<[u64; 2]> {
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
        self.used_half(index, 0)
    }

    /// The first or second word of an element, which can lie on different pages.
    #[inline(always)]
    fn used_half(&self, index: u16, half: usize) -> *mut u32 {
        let at = usize::from(index & self.mask).wrapping_mul(8);
        let at = at.wrapping_add(4).wrapping_add(half.wrapping_mul(4));
        self.used.at(at).cast()
    }

    /// Logs a word of the used ring, `offset` bytes behind its start.
    fn log_word(&self, offset: u64, len: u64) {
        if let Some(log) = &self.log {
            log.mark(self.used_gpa.wrapping_add(offset), len);
        }
    }

    #[inline(always)]
    fn set_used_flags(&self, flags: u16) {
        // SAFETY: as in `avail_index`.
        unsafe { word::store_u16(self.used.at(0).cast(), flags, Ordering::Relaxed) };
        self.log_word(0, 2);
    }

    #[inline(always)]
    fn set_avail_event(&self, index: u16) {
        let elements = usize::from(self.size()).wrapping_mul(8);
        let p = self.used.at(elements.wrapping_add(4));
        // SAFETY: the word behind the elements, found with them when EVENT_IDX was agreed on (`event_idx`).
        unsafe { word::store_u16(p.cast(), index, Ordering::Relaxed) };
        self.log_word(u64::from(self.size()).wrapping_mul(8).wrapping_add(4), 2);
    }

    fn walk<const WRITE: bool>(
        &self,
        (map, hit): (&GuestMap, &mut Extent),
        head: [u64; 2],
        mut each: impl FnMut(Piece),
    ) -> Result<usize, Fault> {
        let mut desc = Split::desc(head);
        // A descriptor passed before, set anew after 1, 2, 4 and so on: who passes it again is going round (Brent's method).
        let mut passed = None;
        for looked in 1..=CHAIN_MAX {
            if desc.flags & DESC_INDIRECT != 0 {
                let before = looked.wrapping_sub(1);
                return table::<Self, WRITE>(self, (map, hit), desc, before, &mut each);
            }
            if !is_kind::<WRITE>(desc) {
                return Err(Fault::Bad);
            }
            piece((map, hit), desc, &mut each)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(looked);
            }
            if looked == CHAIN_MAX || passed == Some(desc.tag) {
                break;
            }
            if looked.is_power_of_two() {
                passed = Some(desc.tag);
            }
            desc = Split::desc(self.words(desc.tag).ok_or(Fault::Bad)?);
        }
        Err(Fault::TooLong)
    }
}

impl<A: Area> Ring for SplitOver<A> {
    const WALKED: bool = false;

    const WHOLE: bool = false;

    type Held = ();

    fn new(setup: &QueueSetup) -> Result<SplitOver<A>, QueueError> {
        setup.check()?;
        let [desc, avail, used] = setup.parts();
        Ok(SplitOver {
            desc: A::find(setup, &desc)?,
            avail: A::find(setup, &avail)?,
            used: A::find(setup, &used)?,
            used_gpa: setup.used,
            mask: setup.size.wrapping_sub(1),
            indirect: setup.features & INDIRECT_DESC != 0,
            event_idx: setup.features & EVENT_IDX != 0,
            log: setup.log.clone(),
        })
    }

    fn place(&self, base: Base) -> u16 {
        base.used
    }

    fn base(&self, at: u16) -> Base {
        Base::split(at)
    }

    #[inline(always)]
    fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    fn lap(&self) -> u32 {
        1 << 16
    }

    fn unread(&self, next: u16) -> u16 {
        let free = self.avail_index().wrapping_sub(next);
        self.size().checked_sub(free).unwrap_or(self.size())
    }

    #[inline(always)]
    fn advance(&self, at: u16, n: u16) -> u16 {
        at.wrapping_add(n)
    }

    #[inline(always)]
    fn distance(&self, from: u16, to: u16) -> u16 {
        to.wrapping_sub(from)
    }

    #[inline(always)]
    fn log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref()
    }

    #[inline(always)]
    fn desc([low, high]: [u64; 2]) -> Desc {
        Desc {
            addr: low,
            len: high as u32,
            flags: (high >> 32) as u16,
            tag: (high >> 48) as u16,
        }
    }

    fn next_in_table(desc: Desc, _at: usize, _count: usize) -> Option<usize> {
        (desc.flags & DESC_NEXT != 0).then_some(usize::from(desc.tag))
    }

    fn kind_counts<const WRITE: bool>() -> bool {
        true
    }

    fn indirect(&self) -> bool {
        self.indirect
    }

    #[inline(always)]
    fn heads<const FRESH: bool>(
        &self,
        seen: &AtomicU16,
        at: u16,
        want: u16,
        mut each: impl FnMut(Head) -> bool,
    ) -> Option<()> {
        let mut known = seen.load(Ordering::Relaxed).wrapping_sub(at);
        if known < want && FRESH {
            let end = self.avail_index();
            known = end.wrapping_sub(at);
            if known > self.size() {
                return None;
            }
            seen.store(end, Ordering::Relaxed);
        }
        let n = usize::from(known.min(want));
        let mut ids = [0u16; BURST];
        for (k, id) in ids.iter_mut().enumerate().take(n) {
            *id = self.head(at.wrapping_add(k as u16));
            prefetch::read(self.desc_word(*id).cast());
        }
        for id in ids.into_iter().take(n) {
            let words = self.words(id);
            let head = Head {
                words: words.unwrap_or([0; 2]),
                id,
                exists: words.is_some(),
            };
            if !each(head) {
                break;
            }
        }
        Some(())
    }

    #[inline(always)]
    fn is_known(&self, seen: &AtomicU16, at: u16) -> bool {
        seen.load(Ordering::Relaxed) != at
    }

    #[inline]
    fn chain<const WRITE: bool>(
        &self,
        memory: (&GuestMap, &mut Extent),
        _at: u16,
        head: &Head,
        _most: u16,
        each: impl FnMut(Piece),
    ) -> Walk {
        let walked = if head.exists {
            self.walk::<WRITE>(memory, head.words, each)
        } else {
            Err(Fault::Bad)
        };
        Walk {
            result: walked.map(|_| ()),
            looked: match walked {
                Ok(looked) => looked,
                Err(Fault::TooLong) => CHAIN_MAX,
                Err(_) => 1,
            },
            places: 1,
            id: head.id,
        }
    }

    #[inline(always)]
    fn put(&self, _held: &mut (), at: u16, id: u16, len: u32) {
        // SAFETY: one of the `size` elements, aligned to 4 (`Ring::new`); otherwise as in `avail_index`.
        unsafe { word::store_u32(self.used_word(at), u32::from(id), Ordering::Relaxed) };
        // SAFETY: the second half of the same element.
        unsafe { word::store_u32(self.used_half(at, 1), len, Ordering::Relaxed) };
    }

    #[inline(always)]
    fn open(&self, _held: ()) {}

    #[inline(always)]
    fn set_index(&self, at: u16) {
        let p = self.used.at(2).cast();
        // SAFETY: as in `avail_index`.
        unsafe { word::store_u16(p, at, Ordering::Release) }
    }

    fn log_used(&self, log: &DirtyLog, from: u16, to: u16) {
        log.mark(self.used_gpa, 4);
        let (first, count) = (from & self.mask, to.wrapping_sub(from));
        let before_end = count.min(self.size().wrapping_sub(first));
        for (first, count) in [(first, before_end), (0, count.wrapping_sub(before_end))] {
            let offset = u64::from(first).wrapping_mul(8).wrapping_add(4);
            let bytes = u64::from(count).wrapping_mul(8);
            log.mark(self.used_gpa.wrapping_add(offset), bytes);
        }
    }

    #[inline(always)]
    fn wants_call(&self, old: u16, new: u16) -> bool {
        fence(Ordering::SeqCst);
        if self.event_idx {
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

    #[inline]
    fn arm(&self, next: u16) -> bool {
        if self.event_idx {
            self.set_avail_event(next);
        } else {
            self.set_used_flags(0);
        }
        fence(Ordering::SeqCst);
        self.avail_index() != next
    }

    /// By the flag, or by an event half a ring behind.
    #[inline]
    fn disarm(&self, next: u16) {
        if self.event_idx {
            self.set_avail_event(next.wrapping_sub(self.size() / 2));
        } else {
            self.set_used_flags(USED_NO_NOTIFY);
        }
    }

    /// Moves a parked event along, before the index comes round to it.
    #[inline(always)]
    fn park_again(&self, old: u16, new: u16) {
        if (old ^ new) & PARK_STEP != 0 && self.event_idx {
            self.disarm(new);
        }
    }

    #[inline(always)]
    fn fetch_heads<const WRITE: bool>(&self, seen: &AtomicU16, at: u16, most: u16) {
        let known = seen.load(Ordering::Relaxed).wrapping_sub(at).min(most);
        for k in 0..known {
            let id = self.head(at.wrapping_add(k));
            prefetch::read(self.desc_word(id).cast());
        }
        if WRITE {
            self.fetch_used(at, known);
        } else {
            prefetch::read(self.head_word(at.wrapping_add(known)).cast());
        }
    }

    #[inline(always)]
    fn fetch_used(&self, at: u16, count: u16) {
        for k in (0..count).step_by(usize::from(USED_PER_LINE)) {
            prefetch::write(self.used_word(at.wrapping_add(k)).cast_const().cast());
        }
    }
}
