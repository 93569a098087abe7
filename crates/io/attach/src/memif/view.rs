//! The shared memory of one connection, and the rings in it, as the data path uses them.
//!
//! # Model
//! A [`View`] owns every region of a connection. It never changes: a new connection has a new view. A `Ring` holds
//! addresses that were derived from its view once, after [`RingPlace`] had found the whole ring inside its region.
//!
//! # Ownership and lifetime
//! Every ring half holds its view by `Arc`; the memory is unmapped when the last of them and the endpoint are gone.
//! Halves are dropped by their workers outside any section, the transmit half after a grace period.
//!
//! # Synchronization
//! | word | written by | order |
//! | --- | --- | --- |
//! | the peer's index | peer, release | our acquire load: what lies behind it is complete |
//! | our index | us, release | the peer's acquire load |
//! | wish | the client | our store, SeqCst fence, our load of the server's index; the server's index store, SeqCst fence (`arm`) or a later visit, its load of the wish |
//! | flags | the consumer of the ring | our store, SeqCst fence, our load of the peer's index (`arm`); our index store, SeqCst fence, our load of the flags (`tx`) |
//!
//! # Failure modes
//! [`View::is_dead`]: the peer took a region away, or one half found an index that no peer that keeps to the protocol
//! could have written ([`View::fail`]). Both wake the endpoint through the alarm, an eventfd that no peer holds.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::OwnedFd;

use windlass_shm::{Mapping, word};
use windlass_sys::eventfd;

use super::layout::{DESC_BYTES, RING_FLAG_MASK_INT, RING_FLAG_ROOM, RingPlace};
use super::offload::Offloads;

/// Regions that one connection may have.
pub const REGIONS: usize = 16;

/// Which side of the protocol we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer connects to us and brings the memory.
    Server,
    /// We connect and bring the memory.
    Client,
}

/// The bytes of one region.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Extent {
    pub(super) base: *mut u8,
    pub(super) len: u64,
}

impl Extent {
    const NONE: Extent = Extent {
        base: core::ptr::null_mut(),
        len: 0,
    };
}

/// The regions of one connection.
#[derive(Debug)]
pub struct View {
    extents: [Extent; REGIONS],
    mappings: Vec<Mapping>,
    failed: AtomicBool,
    alarm: OwnedFd,
    flow_controls: AtomicU64,
}

// SAFETY: the extents are the addresses of `mappings`, which are themselves shared between threads; every access to
// them is atomic or assembly.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// The view of these regions, numbered from 0; `None` for more than [`REGIONS`]. `alarm` is signalled once when the
    /// data path finds the connection unusable.
    pub fn new(mappings: Vec<Mapping>, alarm: OwnedFd) -> Option<View> {
        let mut extents = [Extent::NONE; REGIONS];
        if mappings.len() > REGIONS {
            return None;
        }
        for (extent, mapping) in extents.iter_mut().zip(&mappings) {
            *extent = Extent {
                base: mapping.base(),
                len: mapping.len() as u64,
            };
        }
        Some(View {
            extents,
            mappings,
            failed: AtomicBool::new(false),
            alarm,
            flow_controls: AtomicU64::new(0),
        })
    }

    /// The regions.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// As [`Endpoint::regions`](crate::endpoint::Endpoint::regions).
    pub fn regions(&self) -> Vec<(&'static str, windlass_shm::Extent)> {
        let mappings = self.mappings.iter();
        mappings
            .map(|mapping| ("memif", mapping.extent()))
            .collect()
    }

    /// Whether the connection is of no use any more.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.mappings.iter().any(Mapping::is_dead)
    }

    /// The peer broke the protocol or took its memory away: nothing more is taken from it or given to it.
    #[cold]
    pub fn fail(&self) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            // Nobody else can fill this counter, and a lost wake-up would only delay what the worker also reports.
            let _ = eventfd::signal(&self.alarm);
        }
    }

    /// A ring that was found full was released.
    #[cold]
    pub(super) fn note_flow_control(&self) {
        self.flow_controls.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a ring that was found full was released.
    pub fn flow_controls(&self) -> u64 {
        self.flow_controls.load(Ordering::Relaxed)
    }

    /// Whether some half called [`View::fail`], or memory is gone.
    pub fn alarm(&self) -> &OwnedFd {
        &self.alarm
    }

    /// The address of `len` bytes at `offset` of `region`, if they lie inside. One compare of each kind, no overflow:
    /// offsets and lengths have 32 bits, extents 64.
    #[inline(always)]
    pub fn find(&self, region: u16, offset: u32, len: u32) -> Option<*mut u8> {
        let extent = self.extents.get(usize::from(region))?;
        let end = u64::from(offset).wrapping_add(u64::from(len));
        if end > extent.len {
            return None;
        }
        Some(extent.base.wrapping_add(offset as usize))
    }
}

/// The words of one ring, by address.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    descriptors: *mut u64,
    flags: *mut u16,
    wish: *mut u16,
    theirs: *const u16,
    ours: *mut u16,
    mask: u16,
}

// SAFETY: addresses inside the mappings of a view that whoever holds the ring holds too; every access is atomic.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// The ring at `place` of `region`, as `role` uses it. `None` if the view has no such region or `place` was
    /// checked against another size.
    pub fn new(view: &View, role: Role, region: u16, place: RingPlace) -> Option<Ring> {
        let bytes = u32::from(place.size()).checked_mul(DESC_BYTES)?;
        let descriptors = view.find(region, place.desc_at(0), bytes)?;
        let flags = view.find(region, place.flags_at(), 2)?;
        let wish = view.find(region, place.wish_at(), 2)?;
        let head = view.find(region, place.head_at(), 2)?;
        let tail = view.find(region, place.tail_at(), 2)?;
        let (theirs, ours) = match role {
            Role::Server => (head, tail),
            Role::Client => (tail, head),
        };
        Some(Ring {
            descriptors: descriptors.cast(),
            flags: flags.cast(),
            wish: wish.cast(),
            theirs: theirs.cast(),
            ours: ours.cast(),
            mask: place.size().wrapping_sub(1),
        })
    }

    /// Number of descriptors.
    #[inline(always)]
    pub fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// The index that the peer writes.
    #[inline(always)]
    pub fn theirs(&self) -> u16 {
        // SAFETY: aligned and inside the mapping (`Ring::new`), which outlives the ring (its holder keeps the view).
        unsafe { word::load_u16(self.theirs, Ordering::Acquire) }
    }

    /// Publishes our index.
    #[inline(always)]
    pub fn publish(&self, index: u16) {
        // SAFETY: as in `theirs`.
        unsafe { word::store_u16(self.ours, index, Ordering::Release) }
    }

    /// Whether the consumer wants a notification: to be asked after a SeqCst fence behind the publication.
    #[inline(always)]
    pub fn wants_kick(&self) -> bool {
        // SAFETY: as in `theirs`.
        let flags = unsafe { word::load_u16(self.flags, Ordering::Relaxed) };
        flags & RING_FLAG_MASK_INT == 0
    }

    /// Says as the consumer whether notifications are unwanted, and what else its flags say.
    #[inline(always)]
    pub fn mask(&self, masked: bool, others: u16) {
        let flags = (u16::from(masked) * RING_FLAG_MASK_INT) | others;
        // SAFETY: as in `theirs`.
        unsafe { word::store_u16(self.flags, flags, Ordering::Relaxed) }
    }

    /// Whether the server answers wishes for room.
    #[inline]
    pub fn answers_wishes(&self) -> bool {
        // SAFETY: as in `theirs`.
        let flags = unsafe { word::load_u16(self.flags, Ordering::Relaxed) };
        flags & RING_FLAG_ROOM != 0
    }

    /// What the consumer takes unfinished, as it says now.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        // SAFETY: as in `theirs`.
        Offloads::of_flags(unsafe { word::load_u16(self.flags, Ordering::Relaxed) })
    }

    /// The client's wish for room; 0 for none.
    #[inline(always)]
    pub fn wish(&self) -> u16 {
        // SAFETY: as in `theirs`.
        unsafe { word::load_u16(self.wish, Ordering::Relaxed) }
    }

    /// Wishes for room as the client. A SeqCst fence and a look at the server's index follow.
    #[inline]
    pub fn set_wish(&self, wish: u16) {
        // SAFETY: as in `theirs`.
        unsafe { word::store_u16(self.wish, wish, Ordering::Relaxed) }
    }

    /// The address of the line that the peer's index and the flags lie on, for a prefetch.
    #[inline(always)]
    pub fn flags_line(&self) -> *const u8 {
        self.flags.cast()
    }

    /// The address of a descriptor, for a prefetch.
    #[inline(always)]
    pub fn line(&self, index: u16) -> *const u8 {
        self.slot(index).cast()
    }

    #[inline(always)]
    fn slot(&self, index: u16) -> *mut u64 {
        self.descriptors
            .wrapping_add(usize::from(index & self.mask).wrapping_mul(2))
    }

    /// The two halves of a descriptor, each read once.
    #[inline(always)]
    pub fn words(&self, index: u16) -> [u64; 2] {
        let p = self.slot(index);
        // SAFETY: `index & mask` names a descriptor of the ring, which lies in the mapping and is aligned to 16.
        let low = unsafe { word::load_u64(p, Ordering::Relaxed) };
        // SAFETY: the second half of the same descriptor.
        let high = unsafe { word::load_u64(p.wrapping_add(1), Ordering::Relaxed) };
        [low, high]
    }

    /// Writes the first half of a descriptor: flags, region, length.
    #[inline(always)]
    pub fn set_low(&self, index: u16, low: u64) {
        // SAFETY: as in `words`.
        unsafe { word::store_u64(self.slot(index), low, Ordering::Relaxed) }
    }

    /// Writes the second half of a descriptor: offset, metadata.
    #[inline(always)]
    pub fn set_high(&self, index: u16, high: u64) {
        // SAFETY: as in `words`.
        unsafe { word::store_u64(self.slot(index).wrapping_add(1), high, Ordering::Relaxed) }
    }

    /// Writes the metadata of a descriptor alone.
    #[inline(always)]
    pub fn set_metadata(&self, index: u16, metadata: u32) {
        let at = self.slot(index).cast::<u32>().wrapping_add(3);
        // SAFETY: the last four bytes of the descriptor that `words` reads.
        unsafe { word::store_u32(at, metadata, Ordering::Relaxed) }
    }
}

/// Where the buffers of a ring lie, when the memory is ours: a place for each slot. Known by us, never read back from descriptors that the
/// peer can write.
#[derive(Debug)]
pub struct Buffers {
    /// The region of all of them.
    pub region: u16,
    /// Bytes of room in each.
    pub room: u32,
    offsets: Box<[u32]>,
}

impl Buffers {
    /// Buffers at these offsets, one for each slot.
    pub(super) fn new(region: u16, room: u32, offsets: Vec<u32>) -> Buffers {
        Buffers {
            region,
            room,
            offsets: offsets.into(),
        }
    }

    /// Offset of the buffer of `slot` (already masked).
    #[inline(always)]
    pub fn offset(&self, slot: u16) -> u32 {
        self.offsets.get(usize::from(slot)).copied().unwrap_or(0)
    }
}
