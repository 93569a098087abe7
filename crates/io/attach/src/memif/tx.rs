//! The transmit half of a memif connection: all its rings.
//!
//! # Model
//! ```text
//!            next               known end              theirs + size (client), theirs (server)
//!             |    room that we know of   |    unread     |
//!  ring  .....[###########################][##############]...
//! ```
//! A transmission is cut into runs: as many frames as fit one descriptor each, or one frame that needs a chain. A run
//! is *reserved* (each descriptor read once and checked, its buffer prefetched for writing), then *filled*. With one
//! worker on a ring there is no atomic read-modify-write, and one publication at the end. Where workers outnumber
//! rings, a run is reserved under the lock of [`Leases`], filled outside it, and published in the order of the leases.
//!
//! As a server we fill the peer's buffers and keep region and offset of each descriptor, and its metadata unless the peer has asked for
//! ours ([`super::offload`]): then it takes frames that others get from the software stage. As a client the
//! buffers are ours, and nothing is read from the ring but the peer's index.
//!
//! # Failure modes
//! A descriptor outside the peer's memory is given back empty and the frame dropped as [`Drop::PeerFault`]. A frame that no
//! chain of [`CHAIN_MAX`] of the peer's buffers could hold is [`Drop::TooBig`]. An index that jumps by more than the ring
//! ends the connection.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use windlass_frame::{BURST, Claim, Gso, Heads, Meta, Offload, Pick, SNAP};
use windlass_shm::{Isa, Section, Tails, copy_through, snapshot};
use windlass_stats::{Drop, Padded};
use windlass_sync::leases::Leases;
use windlass_sync::prefetch;

use super::layout::DESC_FLAG_NEXT;
use super::offload::{self, Offloads};
use super::rx::{CHAIN_MAX, PER_LINE};
use super::view::{Buffers, Ring, View};
use crate::kick;
use crate::port::{Kick, Lane, Progress, Sent, Stop, TxCaps, TxPort, share};
use crate::soft;

/// How long a worker waits for another's reservation, in cycles of the time-stamp counter: longer than a walk over a
/// burst of descriptors, shorter than a copy of one.
const SPIN_CYCLES: u64 = 2000;
/// Bytes of an 802.1Q tag.
const TAG_BYTES: u32 = 4;
/// Bytes before the place of a tag: the two addresses.
const ADDRESSES: usize = 12;
/// The tag's bits that a frame brings along: priority and drop eligibility (IEEE 802.1Q 9.6).
const TCI_PRIORITY: u16 = 0xf000;

/// One ring towards the peer.
#[derive(Debug)]
pub(super) struct TxRing {
    pub(super) ring: Ring,
    pub(super) buffers: Option<Buffers>,
    /// Notifies the peer; none where the peer gave none.
    pub(super) kick: Option<Arc<OwnedFd>>,
}

/// Where a ring stands. Written by the one worker of the ring, or under the lock of `leases`.
struct Cursor {
    next: AtomicU16,
    seen: AtomicU16,
}

struct Shared {
    ring: TxRing,
    cursor: Padded<Cursor>,
    leases: Leases,
}

/// The transmit half.
pub struct MemifTx {
    view: Arc<View>,
    rings: Box<[Shared]>,
    /// Where a worker has several rings: a bit for each whose receiver is still to be notified. No two workers have one in
    /// common, so that a bit and the index that it stands for are of one thread.
    owed: AtomicU32,
    isa: Isa,
    /// What the peer has asked for.
    caps: TxCaps,
}

/// A reserved descriptor: its buffer, and its first half as it was read.
#[derive(Clone, Copy)]
struct Slot {
    ptr: *mut u8,
    low: u64,
}

impl Slot {
    fn room(&self) -> u32 {
        (self.low >> 32) as u32
    }
}

/// The slots of the present run.
struct Slots {
    few: [MaybeUninit<Slot>; BURST],
    /// Those of a frame that the software stage cuts.
    many: Vec<Slot>,
}

impl Slots {
    #[inline(always)]
    fn new() -> Slots {
        Slots {
            few: [const { MaybeUninit::uninit() }; BURST],
            many: Vec::new(),
        }
    }
}

/// What was reserved.
#[derive(Clone, Copy)]
enum Run {
    /// So many picks, one descriptor each.
    Plain(usize),
    /// One pick over so many descriptors.
    Chain(usize),
    /// One pick that the software stage finishes, over all of [`Slots::many`].
    Soft,
    /// One pick is dropped, and so many descriptors are given back empty.
    Drop(Drop, usize),
    /// The next pick does not fit now.
    Full,
    /// The ring cannot be used.
    Dead,
}

/// One burst on its way into one ring.
struct Job<'a, 'q> {
    ring: &'a TxRing,
    view: &'a View,
    heads: &'a Heads,
    tails: &'a Tails<'q>,
    caps: TxCaps,
}

impl core::fmt::Debug for MemifTx {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MemifTx")
            .field("rings", &self.rings.len())
            .finish_non_exhaustive()
    }
}

impl MemifTx {
    /// The half of a new connection, all indexes 0.
    pub(super) fn new(view: Arc<View>, rings: Vec<TxRing>, offloads: Offloads) -> MemifTx {
        let shared = |ring| Shared {
            ring,
            cursor: Padded::new(Cursor {
                next: AtomicU16::new(0),
                seen: AtomicU16::new(0),
            }),
            leases: Leases::new(),
        };
        MemifTx {
            view,
            rings: rings.into_iter().map(shared).collect(),
            owed: AtomicU32::new(0),
            isa: Isa::detect(),
            caps: offloads.caps(),
        }
    }

    /// The ring that a worker asks for, or else its own; and its number.
    #[inline(always)]
    fn ring_of(&self, lane: Lane, wanted: Option<u8>) -> Option<(usize, &Shared)> {
        let number = match (self.rings.len(), wanted) {
            (1, _) => 0,
            (_, Some(wanted)) => wanted.into(),
            (n, None) => usize::from(lane.worker).checked_rem(n)?,
        };
        Some((number, self.rings.get(number)?))
    }

    /// The lane's share of the rings.
    #[inline]
    fn share(&self, lane: Lane) -> u32 {
        share(!(u32::MAX << self.rings.len().min(31)), lane)
    }

    /// Several rings: those that are numbered by the bits of `owed`.
    fn owing(&self, owed: u32) -> impl Iterator<Item = (u32, &Shared)> {
        let bits = self
            .rings
            .iter()
            .zip(0u32..)
            .map(|(ring, k)| (1 << (k & 31), ring));
        bits.filter(move |(bit, _)| owed & bit != 0)
    }

    /// The whole transmission of the one worker of a ring.
    #[inline(always)]
    fn alone<const ISA: u8, const CLIENT: bool>(
        shared: &Shared,
        job: &Job<'_, '_>,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        let mut slots = Slots::new();
        let before = shared.cursor.next.load(Ordering::Relaxed);
        while let Some(rest) = picks.get(sent.taken..)
            && !rest.is_empty()
        {
            let first = shared.cursor.next.load(Ordering::Relaxed);
            let run = job.reserve::<CLIENT>(&shared.cursor, &mut slots, rest);
            if !job.fill::<ISA, CLIENT>(run, &slots, first, rest, sent) {
                break;
            }
        }
        let next = shared.cursor.next.load(Ordering::Relaxed);
        if next != before {
            job.ring.ring.publish(next);
            let known = shared
                .cursor
                .seen
                .load(Ordering::Relaxed)
                .wrapping_sub(next);
            job.ring.ring.fetch_ahead(next, known);
        }
        next != before
    }

    /// The same where several workers share the ring.
    #[cold]
    #[inline(never)]
    fn together<const ISA: u8, const CLIENT: bool>(
        shared: &Shared,
        job: &Job<'_, '_>,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        let mut slots = Slots::new();
        let mut published = false;
        while let Some(rest) = picks.get(sent.taken..)
            && !rest.is_empty()
        {
            let guard = shared.leases.try_lock(SPIN_CYCLES);
            let Some(mut guard) = guard.filter(|guard| !guard.is_full()) else {
                sent.stop = Stop::Busy;
                break;
            };
            let first = shared.cursor.next.load(Ordering::Relaxed);
            let run = job.reserve::<CLIENT>(&shared.cursor, &mut slots, rest);
            let end = shared.cursor.next.load(Ordering::Relaxed);
            let lease = if end == first {
                None
            } else {
                guard.lease(u32::from(end))
            };
            drop(guard);
            let goes_on = job.fill::<ISA, CLIENT>(run, &slots, first, rest, sent);
            if let Some(lease) = lease {
                published |= shared
                    .leases
                    .finish(lease, |end| job.ring.ring.publish(end as u16));
            }
            if !goes_on {
                break;
            }
        }
        published
    }

    #[inline(never)]
    fn send<const ISA: u8, const CLIENT: bool>(
        &self,
        lane: Lane,
        wanted: Option<u8>,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        let ring = self.ring_of(lane, wanted);
        let Some((number, shared)) = ring.filter(|_| !self.view.is_dead()) else {
            sent.stop = Stop::Down;
            return sent;
        };
        prefetch::read(shared.ring.ring.flags_line());
        let job = Job {
            ring: &shared.ring,
            view: &self.view,
            heads,
            tails,
            caps: self.caps,
        };
        let published = if usize::from(lane.workers) > self.rings.len() {
            Self::together::<ISA, CLIENT>(shared, &job, picks, &mut sent)
        } else {
            Self::alone::<ISA, CLIENT>(shared, &job, picks, &mut sent)
        };
        if published {
            sent.kick = Kick::Now;
            if self.rings.len() > usize::from(lane.workers) {
                self.owed.fetch_or(1 << (number & 31), Ordering::Relaxed);
            }
        }
        sent
    }

    #[inline]
    fn transmit(
        &self,
        lane: Lane,
        wanted: Option<u8>,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        const WIDE: u8 = Isa::Avx512 as u8;
        const NARROW: u8 = Isa::Base as u8;
        let client = self.rings.first().is_some_and(|r| r.ring.buffers.is_some());
        match (self.isa == Isa::Avx512, client) {
            (true, false) => self.send::<WIDE, false>(lane, wanted, heads, tails, picks),
            (true, true) => self.send::<WIDE, true>(lane, wanted, heads, tails, picks),
            (false, false) => self.send::<NARROW, false>(lane, wanted, heads, tails, picks),
            (false, true) => self.send::<NARROW, true>(lane, wanted, heads, tails, picks),
        }
    }
}

impl Ring {
    /// Starts to fetch the lines of up to a burst of descriptors, to be written: a read followed by a write would take two
    /// transactions between cores.
    #[inline(always)]
    fn fetch_ahead(&self, next: u16, count: u16) {
        for k in (0..usize::from(count).min(BURST)).step_by(PER_LINE) {
            prefetch::write(self.line(next.wrapping_add(k as u16)));
        }
    }
}

impl Job<'_, '_> {
    /// Whether the peer takes a frame as it is.
    #[inline(always)]
    fn takes(&self, meta: &Meta) -> bool {
        meta.off.is_plain() || self.caps.takes(&meta.off)
    }

    /// Writes what holds of a frame into its first descriptor, where the peer has asked for that.
    #[inline(always)]
    fn tell(&self, index: u16, pick: Option<&Pick>) {
        if self.caps.csum {
            self.ring.ring.set_metadata(index, self.word(pick));
        }
    }

    /// The metadata word of a frame; 0 for one that the software stage has finished.
    fn word(&self, pick: Option<&Pick>) -> u32 {
        let meta = pick.and_then(|pick| self.heads.meta.get(pick.index()));
        match (pick, meta) {
            (Some(pick), Some(meta)) if meta.off != Offload::NONE => {
                let shift = if pick.tagged() { TAG_BYTES as u16 } else { 0 };
                let claim = Claim::decode(&meta.off.encode(shift, 0));
                offload::to_word(&claim).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Descriptors that can be filled from `next` on. Looks at the peer's index only when fewer than `want` are known.
    #[inline(always)]
    fn known<const CLIENT: bool>(&self, cursor: &Cursor, next: u16, want: usize) -> Option<u16> {
        let known = cursor.seen.load(Ordering::Relaxed).wrapping_sub(next);
        if usize::from(known) >= want && known <= self.ring.ring.size() {
            return Some(known);
        }
        let bias = if CLIENT { self.ring.ring.size() } else { 0 };
        let end = self.ring.ring.theirs().wrapping_add(bias);
        let known = end.wrapping_sub(next);
        if known > self.ring.ring.size() {
            return None;
        }
        cursor.seen.store(end, Ordering::Relaxed);
        Some(known)
    }

    /// The descriptor `index`, read once and checked.
    #[inline(always)]
    fn slot<const CLIENT: bool>(&self, index: u16) -> Option<Slot> {
        match &self.ring.buffers {
            Some(buffers) if CLIENT => {
                let masked = index & self.ring.ring.size().wrapping_sub(1);
                let ptr = self
                    .view
                    .find(buffers.region, buffers.offset(masked), buffers.room)?;
                let low = u64::from(buffers.region) << 16 | u64::from(buffers.room) << 32;
                Some(Slot { ptr, low })
            }
            _ => {
                let [low, high] = self.ring.ring.words(index);
                let (room, region) = ((low >> 32) as u32, (low >> 16) as u16);
                let ptr = self.view.find(region, high as u32, room)?;
                if room == 0 {
                    None
                } else {
                    Some(Slot { ptr, low })
                }
            }
        }
    }

    /// Reserves the next run and moves the cursor behind it.
    #[inline(always)]
    fn reserve<const CLIENT: bool>(
        &self,
        cursor: &Cursor,
        slots: &mut Slots,
        picks: &[Pick],
    ) -> Run {
        let next = cursor.next.load(Ordering::Relaxed);
        let want = picks.len().min(BURST);
        let Some(known) = self.known::<CLIENT>(cursor, next, want) else {
            self.view.fail();
            return Run::Dead;
        };
        let n = want.min(usize::from(known));
        let mut plain = 0;
        for (k, (pick, place)) in picks.iter().zip(&mut slots.few).enumerate().take(n) {
            let Some(meta) = self.heads.meta.get(pick.index()) else {
                break;
            };
            let index = next.wrapping_add(k as u16);
            let Some(slot) = self.slot::<CLIENT>(index) else {
                break;
            };
            let need = wire_bytes(meta, *pick);
            if need > slot.room() || !self.takes(meta) {
                break;
            }
            prefetch::write(slot.ptr);
            if need > 64 {
                prefetch::write(slot.ptr.wrapping_add(64));
            }
            place.write(slot);
            plain = k + 1;
        }
        let (run, used) = if plain > 0 {
            (Run::Plain(plain), plain)
        } else {
            // It may need more than one descriptor: all that there are is what counts.
            let all = usize::from(self.ring.ring.size());
            let Some(known) = self.known::<CLIENT>(cursor, next, all) else {
                self.view.fail();
                return Run::Dead;
            };
            self.reserve_odd::<CLIENT>(next, known, slots, picks)
        };
        cursor
            .next
            .store(next.wrapping_add(used as u16), Ordering::Relaxed);
        run
    }

    /// Reserves for one pick that is not one plain frame in one descriptor.
    #[cold]
    #[inline(never)]
    fn reserve_odd<const CLIENT: bool>(
        &self,
        next: u16,
        known: u16,
        slots: &mut Slots,
        picks: &[Pick],
    ) -> (Run, usize) {
        let Some(pick) = picks.first() else {
            return (Run::Full, 0);
        };
        let Some(meta) = self.heads.meta.get(pick.index()) else {
            return (Run::Full, 0);
        };
        if !self.takes(meta) {
            return self.reserve_soft::<CLIENT>(next, known, &mut slots.many, *pick, meta);
        }
        let need = u64::from(wire_bytes(meta, *pick));
        let mut room = 0;
        for (k, place) in slots
            .few
            .iter_mut()
            .enumerate()
            .take(CHAIN_MAX.min(usize::from(known)))
        {
            let Some(slot) = self.slot::<CLIENT>(next.wrapping_add(k as u16)) else {
                return (Run::Drop(Drop::PeerFault, k + 1), k + 1);
            };
            room += u64::from(slot.room());
            place.write(slot);
            if room >= need {
                return (Run::Chain(k + 1), k + 1);
            }
        }
        // All that the peer can ever offer at once was looked at, or all that one frame may take.
        if usize::from(known) >= CHAIN_MAX || known == self.ring.ring.size() {
            return (Run::Drop(Drop::TooBig, 0), 0);
        }
        (Run::Full, 0)
    }

    /// Reserves for one pick that the software stage finishes: for each frame that comes out of it as many descriptors as
    /// it needs.
    fn reserve_soft<const CLIENT: bool>(
        &self,
        next: u16,
        known: u16,
        many: &mut Vec<Slot>,
        pick: Pick,
        meta: &Meta,
    ) -> (Run, usize) {
        many.clear();
        let frames = soft::frames(self.heads, pick, self.caps);
        if frames == 0 {
            return (Run::Drop(Drop::SegmentLimit, 0), 0);
        }
        let headers = u32::from(meta.l2) + u32::from(meta.l3) + u32::from(meta.l4);
        let (whole, step) = (wire_bytes(meta, pick), u32::from(meta.off.gso_size));
        for frame in 0..frames as u32 {
            let need = match meta.off.gso {
                Gso::None => whole,
                _ => whole
                    .saturating_sub(frame.saturating_mul(step))
                    .min(step + headers + TAG_BYTES),
            };
            let mut room = 0;
            while room < need {
                if many.len() >= usize::from(known) {
                    let never = known == self.ring.ring.size();
                    return (
                        if never {
                            Run::Drop(Drop::SegmentLimit, 0)
                        } else {
                            Run::Full
                        },
                        0,
                    );
                }
                let Some(slot) = self.slot::<CLIENT>(next.wrapping_add(many.len() as u16)) else {
                    let used = many.len() + 1;
                    return (Run::Drop(Drop::PeerFault, used), used);
                };
                room = room.saturating_add(slot.room());
                many.push(slot);
            }
        }
        (Run::Soft, many.len())
    }

    /// Writes what the software stage makes of a frame into the slots that were reserved for it.
    fn fill_soft<const CLIENT: bool>(
        &self,
        many: &[Slot],
        first: u16,
        pick: Pick,
        sent: &mut Sent,
    ) {
        let mut k = 0;
        let mut last = (0, 0);
        let at = |k: usize| first.wrapping_add(k as u16);
        let made = soft::finish(self.heads, self.tails, pick, self.caps, |frame| {
            let mut rest = frame;
            while let Some(slot) = many.get(k) {
                let (now, later) = rest.split_at(rest.len().min(slot.room() as usize));
                let mut room = Scatter {
                    at: slot.ptr,
                    left: now.len(),
                    done: 0,
                };
                room.put(now.as_ptr(), now.len());
                self.finish::<CLIENT>(at(k), slot.low, now.len() as u32, !later.is_empty());
                self.tell(at(k), None);
                last = (slot.low, now.len() as u32);
                k += 1;
                rest = later;
                if rest.is_empty() {
                    sent.bytes += frame.len() as u64;
                    return true;
                }
            }
            false
        });
        // Slots that were reserved for more than came out belong to the last frame, without bytes: a ring has no holes.
        if let Some(used) = k.checked_sub(1)
            && k < many.len()
        {
            self.finish::<CLIENT>(at(used), last.0, last.1, true);
        }
        for (i, slot) in many.iter().enumerate().skip(k) {
            self.finish::<CLIENT>(at(i), slot.low, 0, i + 1 < many.len());
        }
        match made {
            Ok(count) => {
                sent.frames += 1;
                if count > 1 {
                    sent.segments += count;
                }
            }
            Err(reason) => sent.drop_frame(reason),
        }
        sent.taken += 1;
    }

    /// Fills a run whose first descriptor is `first`. False if the transmission ends here.
    #[inline(always)]
    fn fill<const ISA: u8, const CLIENT: bool>(
        &self,
        run: Run,
        slots: &Slots,
        first: u16,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        match run {
            Run::Plain(count) => {
                let mut bytes = 0;
                for (k, (pick, slot)) in picks.iter().zip(&slots.few).enumerate().take(count) {
                    // SAFETY: the reservation wrote the first `count` slots.
                    let slot = unsafe { slot.assume_init() };
                    let len = self.copy_whole::<ISA>(*pick, slot.ptr);
                    let index = first.wrapping_add(k as u16);
                    self.finish::<CLIENT>(index, slot.low, len, false);
                    self.tell(index, Some(pick));
                    bytes += u64::from(len);
                }
                sent.taken += count;
                sent.frames += count as u64;
                sent.bytes += bytes;
                true
            }
            _ => self.fill_odd::<CLIENT>(run, slots, first, picks, sent),
        }
    }

    #[cold]
    #[inline(never)]
    fn fill_odd<const CLIENT: bool>(
        &self,
        run: Run,
        slots: &Slots,
        first: u16,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        match run {
            Run::Chain(count) => {
                let Some(pick) = picks.first() else {
                    return false;
                };
                sent.bytes += self.copy_chain::<CLIENT>(*pick, slots, count, first);
                self.tell(first, Some(pick));
                sent.frames += 1;
                sent.taken += 1;
                true
            }
            Run::Soft => {
                let Some(pick) = picks.first() else {
                    return false;
                };
                self.fill_soft::<CLIENT>(&slots.many, first, *pick, sent);
                true
            }
            Run::Drop(reason, count) => {
                for k in 0..count {
                    self.finish::<CLIENT>(first.wrapping_add(k as u16), 0, 0, false);
                }
                sent.drop_frame(reason);
                sent.taken += 1;
                true
            }
            Run::Full => {
                sent.stop = Stop::Full;
                false
            }
            Run::Dead | Run::Plain(_) => {
                sent.stop = Stop::Down;
                false
            }
        }
    }

    /// Writes what a descriptor says about the bytes now in its buffer.
    #[inline(always)]
    fn finish<const CLIENT: bool>(&self, index: u16, low: u64, len: u32, goes_on: bool) {
        let flags = if goes_on {
            u64::from(DESC_FLAG_NEXT)
        } else {
            0
        };
        self.ring
            .ring
            .set_low(index, u64::from(len) << 32 | low & 0xffff_0000 | flags);
        if let Some(buffers) = &self.ring.buffers
            && CLIENT
        {
            let masked = index & self.ring.ring.size().wrapping_sub(1);
            self.ring
                .ring
                .set_high(index, u64::from(buffers.offset(masked)));
        }
    }

    /// Copies a frame into one buffer that has room for [`wire_bytes`]; returns the bytes written.
    #[inline(always)]
    fn copy_whole<const ISA: u8>(&self, pick: Pick, to: *mut u8) -> u32 {
        let i = pick.index();
        let private = self.heads.private(i);
        if pick.tagged() || private.len() > SNAP {
            return self.copy_tagged(pick, to);
        }
        // SAFETY: the private bytes are ours; the buffer was found inside the peer's memory with room for the whole
        // frame, of which these are the first bytes.
        unsafe { snapshot::<ISA>(to, private.as_ptr(), private.len()) };
        let mut done = private.len();
        let whole = self.heads.meta.get(i).map_or(0, |m| m.len as usize);
        if whole > done {
            for piece in self.tails.of(i) {
                let n = piece.len().min(whole - done);
                // SAFETY: `n` bytes of a borrowed piece; `done + n <= whole`, which the buffer has room for.
                unsafe { copy_through(to.wrapping_add(done), piece.as_ptr(), n) };
                done += n;
            }
        }
        done as u32
    }

    /// The same for a frame that gets a tag, or whose private bytes were deepened.
    #[inline(never)]
    fn copy_tagged(&self, pick: Pick, to: *mut u8) -> u32 {
        let Some(meta) = self.heads.meta.get(pick.index()) else {
            return 0;
        };
        let mut room = Scatter {
            at: to,
            left: wire_bytes(meta, pick) as usize,
            done: 0,
        };
        self.pieces(pick, |ptr, len| room.put(ptr, len));
        room.done as u32
    }

    /// Copies a frame over `count` buffers, whose descriptors it finishes; returns its bytes.
    fn copy_chain<const CLIENT: bool>(
        &self,
        pick: Pick,
        slots: &Slots,
        count: usize,
        first: u16,
    ) -> u64 {
        let mut left = match self.heads.meta.get(pick.index()) {
            Some(meta) => wire_bytes(meta, pick) as usize,
            None => 0,
        };
        let total = left as u64;
        let mut k = 0;
        let mut room = Scatter {
            at: core::ptr::null_mut(),
            left: 0,
            done: 0,
        };
        let mut low = 0;
        let mut open = |k: usize, room: &mut Scatter| {
            let Some(slot) = slots.few.get(k).filter(|_| k < count) else {
                return 0;
            };
            // SAFETY: the reservation wrote the first `count` slots.
            let slot = unsafe { slot.assume_init() };
            *room = Scatter {
                at: slot.ptr,
                left: (slot.room() as usize).min(left),
                done: 0,
            };
            left -= room.left;
            slot.low
        };
        low = low.max(open(0, &mut room));
        self.pieces(pick, |mut ptr, mut len| {
            loop {
                let n = room.put(ptr, len);
                (ptr, len) = (ptr.wrapping_add(n), len - n);
                if len == 0 || k + 1 >= count {
                    break;
                }
                self.finish::<CLIENT>(first.wrapping_add(k as u16), low, room.done as u32, true);
                k += 1;
                low = open(k, &mut room);
            }
            len
        });
        self.finish::<CLIENT>(first.wrapping_add(k as u16), low, room.done as u32, false);
        total
    }

    /// The bytes of a frame in order: private bytes with the tag inside, then what lies behind them.
    #[inline(always)]
    fn pieces(&self, pick: Pick, mut each: impl FnMut(*const u8, usize) -> usize) {
        let i = pick.index();
        let private = self.heads.private(i);
        let tag = if pick.tagged() {
            self.heads.meta.get(i).map(tag_bytes)
        } else {
            None
        };
        match (tag, private.split_at_checked(ADDRESSES)) {
            (Some(tag), Some((addresses, rest))) => {
                each(addresses.as_ptr(), addresses.len());
                each(tag.as_ptr(), tag.len());
                each(rest.as_ptr(), rest.len());
            }
            _ => {
                each(private.as_ptr(), private.len());
            }
        }
        for piece in self.tails.of(i) {
            each(piece.as_ptr(), piece.len());
        }
    }
}

/// Bytes of a frame as it is written.
#[inline(always)]
fn wire_bytes(meta: &Meta, pick: Pick) -> u32 {
    meta.len + if pick.tagged() { TAG_BYTES } else { 0 }
}

/// The 802.1Q tag of a frame: its VLAN on the bridge with the priority that it came with.
#[inline(always)]
fn tag_bytes(meta: &Meta) -> [u8; TAG_BYTES as usize] {
    let [high, low] = (meta.tci & TCI_PRIORITY | meta.vid & 0x0fff).to_be_bytes();
    [0x81, 0x00, high, low]
}

/// A buffer that is being written.
struct Scatter {
    at: *mut u8,
    left: usize,
    done: usize,
}

impl Scatter {
    /// Copies as much of `len` bytes as there is room for; returns how much that was.
    #[inline(always)]
    fn put(&mut self, from: *const u8, len: usize) -> usize {
        let n = len.min(self.left);
        // SAFETY: `n` bytes that the caller may read (private, or borrowed for the section), into a checked buffer
        // with `left` bytes of room.
        unsafe { copy_through(self.at.wrapping_add(self.done), from, n) };
        self.done += n;
        self.left -= n;
        n
    }
}

impl TxPort for MemifTx {
    fn caps(&self) -> TxCaps {
        self.caps
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.transmit(lane, None, heads, tails, picks)
    }

    fn has_choice(&self) -> bool {
        self.rings.len() > 1
    }

    fn choices(&self, lane: Lane) -> u32 {
        self.share(lane)
    }

    fn progress(&self, ring: u8) -> Option<Progress> {
        let Shared { ring, cursor, .. } = self.rings.get(usize::from(ring))?;
        let put = cursor.next.load(Ordering::Relaxed);
        let behind = put.wrapping_sub(ring.ring.theirs());
        let unread = match &ring.buffers {
            Some(_) => behind,
            // It gives a descriptor a second time when it has taken the first.
            None => behind.wrapping_add(ring.ring.size()),
        };
        let lap = 1 << 16;
        Some(Progress { put, unread, lap })
    }

    fn tx_burst_on(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        ring: u8,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.transmit(lane, Some(ring), heads, tails, picks)
    }

    /// Looks at the receiver's flags behind a fence, which waits until the index that was published has reached the line
    /// that the receiver polls: 200 cycles if it is done at once.
    fn wants_kick(&self, lane: Lane) -> bool {
        fence(Ordering::SeqCst);
        if self.rings.len() <= usize::from(lane.workers) {
            let ring = self.ring_of(lane, None);
            return ring.is_some_and(|(_, shared)| shared.ring.ring.wants_kick());
        }
        let mut wants = false;
        let owed = self.owed.load(Ordering::Relaxed) & self.share(lane);
        for (bit, shared) in self.owing(owed) {
            if shared.ring.ring.wants_kick() {
                wants = true;
            } else {
                self.owed.fetch_and(!bit, Ordering::Relaxed);
            }
        }
        wants
    }

    fn kick(&self, lane: Lane) {
        let share = self.share(lane);
        let owed = if self.rings.len() <= usize::from(lane.workers) {
            share
        } else {
            self.owed.fetch_and(!share, Ordering::Relaxed) & share
        };
        for (_, shared) in self.owing(owed) {
            if let Some(fd) = &shared.ring.kick
                && kick::kick(fd.as_fd()).is_err()
            {
                self.view.fail();
            }
        }
    }
}
