//! The first half of a transmission: buffers for a run of frames, found and counted before a byte is written.
//!
//! # Model
//! [`Job::reserve`] moves the ring's cursor behind what it reserved; [`Job::fill`] (in [`super::fill`]) writes there. A
//! run is as many frames as fit one whole buffer each, or one frame of any other kind.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU16, Ordering};

use windlass_frame::{BURST, Gso, Heads, Meta, Pick};
use windlass_shm::Tails;
use windlass_stats::Drop;
use windlass_sync::prefetch;

use super::guest_map::{Extent, GuestMap};
use super::ring::{Fault, HEADER_BYTES, Piece, Ring};
use crate::port::TxCaps;
use crate::soft;

/// Descriptors looked at for one pick.
const LOOKED_MAX: usize = 2048;
/// Buffers that one frame may take: num_buffers has 16 bits, and a 64 KiB frame needs 43 of the usual.
const MERGED_MAX: usize = 512;
/// Bytes of a tag.
pub(super) const TAG_BYTES: u32 = 4;

/// Where a ring stands, in its places. Written by the only worker, or under the lock of the leases.
pub(super) struct Cursor {
    pub(super) next: AtomicU16,
    pub(super) seen: AtomicU16,
    /// Written by whoever publishes, one at a time.
    pub(super) published: AtomicU16,
}

/// A whole buffer that was reserved: the place of the header.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) ptr: *mut u8,
    pub(super) id: u16,
}

/// A buffer that was reserved, of any shape.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    pub(super) id: u16,
    pub(super) places: u16,
    pub(super) room: u32,
}

/// What was reserved for the present run.
pub(super) struct Slots {
    pub(super) few: [MaybeUninit<Slot>; BURST],
    /// Guest addresses of the same, where they are logged.
    pub(super) gpas: [MaybeUninit<u64>; BURST],
    /// Those of a run that is not plain, in the order of the ring.
    pub(super) buffers: Vec<Buffer>,
    /// Their pieces.
    pub(super) pieces: Vec<Piece>,
    /// RingProgress that they take.
    places: u16,
    /// Descriptors that were looked at.
    looked: usize,
}

impl Slots {
    #[inline(always)]
    pub(super) fn new() -> Slots {
        Slots {
            few: [const { MaybeUninit::uninit() }; BURST],
            gpas: [const { MaybeUninit::uninit() }; BURST],
            buffers: Vec::new(),
            pieces: Vec::new(),
            places: 0,
            looked: 0,
        }
    }
}

/// What a run is.
#[derive(Clone, Copy)]
pub(super) enum Run {
    /// So many picks, one whole buffer each.
    Plain(usize),
    /// One pick over all of [`Slots::buffers`].
    Frame,
    /// One pick that the software stage finishes, over all of them.
    Soft,
    /// One pick is dropped, and all of them are given back empty.
    Drop(Drop),
    /// The next pick does not fit now.
    Full,
    /// The ring cannot be used.
    Dead,
}

/// One burst on its way into one ring.
pub(super) struct Job<'a, 'q, R> {
    pub(super) ring: &'a R,
    pub(super) map: &'a GuestMap,
    pub(super) cursor: &'a Cursor,
    pub(super) caps: TxCaps,
    pub(super) mergeable: bool,
    pub(super) heads: &'a Heads,
    pub(super) tails: &'a Tails<'q>,
}

/// Why buffers for one frame were not reserved.
enum Short {
    /// There are not enough now.
    Now,
    /// There can never be.
    Never,
    /// One of them is bad.
    Fault,
    /// One of them is not translated yet, which the map was told.
    Missing,
    Dead,
}

impl<R: Ring> Job<'_, '_, R> {
    /// Publishes a place; returns the one before.
    #[inline(always)]
    pub(super) fn publish(&self, at: u16) -> u16 {
        let old = self.cursor.published.load(Ordering::Relaxed);
        self.ring.set_index(at);
        self.cursor.published.store(at, Ordering::Release);
        old
    }

    /// RingProgress of the ring that are not between publication and `next`.
    #[inline(always)]
    fn room(&self, next: u16) -> u16 {
        let published = self.cursor.published.load(Ordering::Relaxed);
        let held = self.ring.distance(published, next);
        self.ring.size().saturating_sub(held)
    }

    /// Reserves the next run and moves the cursor behind it.
    #[inline(always)]
    pub(super) fn reserve<const LOG: bool>(&self, slots: &mut Slots, picks: &[Pick]) -> Run {
        let next = self.cursor.next.load(Ordering::Relaxed);
        let want = (picks.len().min(BURST) as u16).min(self.room(next));
        let mut hit = self.map.hit();
        let mut plain = 0;
        let places = slots.few.iter_mut().zip(&mut slots.gpas);
        let mut places = picks.iter().zip(places);
        let read = self
            .ring
            .heads::<true>(&self.cursor.seen, next, want, |head| {
                let Some((pick, (place, gpa))) = places.next() else {
                    return false;
                };
                let Some(meta) = self.heads.meta.get(pick.index()) else {
                    return false;
                };
                let need = HEADER_BYTES + wire_bytes(meta, *pick);
                let desc = R::desc(head.words);
                let fits = head.exists && desc.is_whole::<true>() && desc.len >= need;
                if !fits || !self.caps.takes(&meta.off) {
                    return false;
                }
                let Some(ptr) = self.map.find(&mut hit, desc.addr, desc.len) else {
                    return false;
                };
                prefetch::write(ptr);
                prefetch::write(ptr.wrapping_add(HEADER_BYTES as usize));
                if need > 128 {
                    prefetch::write(ptr.wrapping_add(128));
                }
                place.write(Slot { ptr, id: head.id });
                if LOG {
                    gpa.write(desc.addr);
                }
                plain += 1;
                true
            });
        if read.is_none() {
            self.map.fail();
            return Run::Dead;
        }
        let (run, used) = if plain > 0 {
            (Run::Plain(usize::from(plain)), plain)
        } else {
            self.reserve_odd(&mut hit, next, slots, picks)
        };
        let end = self.ring.advance(next, used);
        self.cursor.next.store(end, Ordering::Relaxed);
        run
    }

    /// Reserves for one pick that does not go into one whole buffer as it is. How many places it takes.
    #[inline(never)]
    fn reserve_odd(
        &self,
        hit: &mut Extent,
        next: u16,
        slots: &mut Slots,
        picks: &[Pick],
    ) -> (Run, u16) {
        slots.buffers.clear();
        slots.pieces.clear();
        (slots.places, slots.looked) = (0, 0);
        let Some(pick) = picks.first() else {
            return (Run::Full, 0);
        };
        let Some(meta) = self.heads.meta.get(pick.index()) else {
            return (Run::Full, 0);
        };
        let as_it_is = self.caps.takes(&meta.off);
        let frames = if as_it_is {
            1
        } else {
            soft::frames(self.heads, *pick, self.caps)
        };
        let too_many = if as_it_is {
            Drop::TooBig
        } else {
            Drop::SegmentLimit
        };
        let mut got = if frames == 0 {
            Err(Short::Never)
        } else {
            Ok(())
        };
        for frame in 0..frames as u32 {
            let need = HEADER_BYTES + frame_bytes(meta, *pick, as_it_is, frame);
            got = self.gather(hit, next, slots, need);
            if got.is_err() {
                break;
            }
        }
        let run = match got {
            Ok(()) if as_it_is => Run::Frame,
            Ok(()) => Run::Soft,
            Err(Short::Fault) => Run::Drop(Drop::PeerFault),
            Err(short) => {
                slots.buffers.clear();
                slots.places = 0;
                match short {
                    Short::Now | Short::Missing => Run::Full,
                    Short::Dead => Run::Dead,
                    _ => Run::Drop(too_many),
                }
            }
        };
        (run, slots.places)
    }

    /// Reserves buffers for one frame that takes `need` bytes with its header.
    fn gather(
        &self,
        hit: &mut Extent,
        next: u16,
        slots: &mut Slots,
        need: u32,
    ) -> Result<(), Short> {
        let mut room = 0u32;
        let first = slots.buffers.len();
        while room < need {
            let over = slots.buffers.len() - first >= MERGED_MAX || slots.looked >= LOOKED_MAX;
            if over || slots.places >= self.ring.size() {
                return Err(Short::Never);
            }
            let free = self.room(next).saturating_sub(slots.places);
            let at = self.ring.advance(next, slots.places);
            let mut head = None;
            let read = self
                .ring
                .heads::<true>(&self.cursor.seen, at, free.min(1), |found| {
                    head = Some(found);
                    false
                });
            if read.is_none() {
                self.map.fail();
                return Err(Short::Dead);
            }
            let head = head.ok_or(Short::Now)?;
            let (mut bytes, pieces) = (0u32, &mut slots.pieces);
            let memory = (self.map, &mut *hit);
            let walk = self.ring.chain::<true>(memory, at, &head, free, |piece| {
                bytes = bytes.saturating_add(piece.len);
                pieces.push(piece);
            });
            if walk.result == Err(Fault::Endless) {
                self.map.fail();
                return Err(Short::Dead);
            }
            if walk.result == Err(Fault::Missing) {
                return Err(Short::Missing);
            }
            slots.buffers.push(Buffer {
                id: walk.id,
                places: walk.places,
                room: bytes,
            });
            slots.places += walk.places;
            slots.looked += walk.looked;
            if walk.result.is_err() || bytes == 0 {
                return Err(Short::Fault);
            }
            room = room.saturating_add(bytes);
            if !self.mergeable && room < need {
                return Err(Short::Never);
            }
        }
        Ok(())
    }
}

/// Bytes of a frame as it is written, without the virtio header.
#[inline(always)]
pub(super) fn wire_bytes(meta: &Meta, pick: Pick) -> u32 {
    meta.len + if pick.tagged() { TAG_BYTES } else { 0 }
}

/// Bytes at most of the `k`-th frame that comes out of a pick.
fn frame_bytes(meta: &Meta, pick: Pick, as_it_is: bool, k: u32) -> u32 {
    let whole = wire_bytes(meta, pick);
    if as_it_is || meta.off.gso == Gso::None {
        return whole;
    }
    let headers = u32::from(meta.l2) + u32::from(meta.l3) + u32::from(meta.l4);
    let step = u32::from(meta.off.gso_size);
    let left = whole.saturating_sub(k.saturating_mul(step));
    left.min(step + headers + TAG_BYTES)
}
