//! The transmit half: a guest's receive queues.
//!
//! # Model
//! As [`crate::memif::tx`]: a transmission is cut into runs, each reserved, then filled: as many frames as fit one
//! whole buffer each, or one frame that needs more than that: a chain of descriptors, several buffers (mergeable),
//! or the software stage. Buffers are counted before the first byte is written; if there are not enough, the ring
//! stands where it stood. A guest never sees a part of a frame.
//!
//! Each frame is written behind a 12-byte header, which holds what the guest negotiated and how many buffers
//! there are: 1 also without mergeable buffers (VIRTIO 1.2, 5.1.6.4).
//!
//! With one worker on a ring there is no atomic read-modify-write and one publication at the end. Where workers
//! outnumber rings, a run is reserved under the lock of [`Leases`] and published in the order of the leases.
//!
//! # Failure modes
//! A bad buffer is given back empty and the frame dropped as [`Drop::PeerFault`]. A frame that does not fit one
//! buffer, or all buffers of a ring where they are mergeable, is [`Drop::TooBig`] and takes none. An index that
//! jumps by more than the ring ends the queue.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU16, Ordering};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use windlass_frame::{BURST, Claim, Gso, Heads, Meta, Pick, SNAP};
use windlass_shm::{Isa, Section, Tails, copy_out, copy_through, snapshot, word};
use windlass_stats::{Drop, Padded};
use windlass_sync::leases::Leases;
use windlass_sync::prefetch;

use super::features::{MRG_RXBUF, tx_caps};
use super::guest_map::{Extent, GuestMap};
use super::queue::{QueueError, QueueSetup};
use super::split::{Desc, HEADER_BYTES, Piece, Ring};
use crate::kick;
use crate::port::{Kick, Lane, Sent, Stop, TxCaps, TxPort};
use crate::soft;

/// How long a worker waits for another's reservation, in cycles of the time-stamp counter.
const SPIN_CYCLES: u64 = 2000;
/// Heads whose descriptors are fetched when a destination becomes known.
const FETCH_EARLY: u16 = 16;
/// Descriptors looked at for one pick.
const LOOKED_MAX: usize = 2048;
/// Buffers that one frame may take: num_buffers has 16 bits, and a 64 KiB frame needs 43 of the usual.
const MERGED_MAX: usize = 512;
/// Used elements on a cache line.
const USED_PER_LINE: usize = 8;
const TAG_BYTES: u32 = 4;
/// Bytes before the place of a tag: the two addresses.
const ADDRESSES: usize = 12;
/// The tag's bits that a frame brings along: priority and drop eligibility (IEEE 802.1Q 9.6).
const TCI_PRIORITY: u16 = 0xf000;

/// Where a ring stands. Written by the one worker of the ring, or under the lock of `leases`.
struct Cursor {
    next: AtomicU16,
    seen: AtomicU16,
    /// The used index: written by whoever publishes, one at a time.
    published: AtomicU16,
}

struct Shared {
    ring: Ring,
    call: Option<OwnedFd>,
    cursor: Padded<Cursor>,
    leases: Leases,
}

/// The transmit half of a guest's device.
pub struct VhostTx {
    map: Arc<GuestMap>,
    rings: Box<[Shared]>,
    caps: TxCaps,
    mergeable: bool,
    isa: Isa,
}

/// A whole buffer that was reserved: the place of the header.
#[derive(Clone, Copy)]
struct Slot {
    ptr: *mut u8,
    head: u16,
}

/// A buffer that was reserved, of any shape.
#[derive(Clone, Copy)]
struct Buffer {
    head: u16,
    room: u32,
}

/// What was reserved for the present run.
struct Slots {
    few: [MaybeUninit<Slot>; BURST],
    /// Those of a run that is not plain, in the order of the ring.
    buffers: Vec<Buffer>,
    /// Their pieces.
    pieces: Vec<Piece>,
    /// Descriptors that were looked at.
    looked: usize,
}

impl Slots {
    #[inline(always)]
    fn new() -> Slots {
        Slots {
            few: [const { MaybeUninit::uninit() }; BURST],
            buffers: Vec::new(),
            pieces: Vec::new(),
            looked: 0,
        }
    }
}

/// What a run is.
#[derive(Clone, Copy)]
enum Run {
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
struct Job<'a, 'q> {
    ring: &'a Ring,
    map: &'a GuestMap,
    cursor: &'a Cursor,
    caps: TxCaps,
    heads: &'a Heads,
    tails: &'a Tails<'q>,
}

impl core::fmt::Debug for VhostTx {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("VhostTx")
            .field("rings", &self.rings.len())
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

impl VhostTx {
    /// The half for the queues that a guest receives on: at least one, all with the map and features of the first.
    /// Notifications from the guest are turned off: a transmission looks for itself.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn new(
        first: QueueSetup,
        more: impl IntoIterator<Item = QueueSetup>,
    ) -> Result<VhostTx, QueueError> {
        let (map, features) = (first.map.clone(), first.features);
        let mut rings = Vec::new();
        for setup in core::iter::once(first).chain(more) {
            let setup = QueueSetup {
                map: map.clone(),
                features,
                ..setup
            };
            let ring = Ring::new(&setup)?;
            ring.disarm(setup.base);
            rings.push(Shared {
                ring,
                call: setup.call,
                cursor: Padded::new(Cursor {
                    next: AtomicU16::new(setup.base),
                    seen: AtomicU16::new(setup.base),
                    published: AtomicU16::new(setup.base),
                }),
                leases: Leases::new(),
            });
        }
        Ok(VhostTx {
            map,
            rings: rings.into(),
            caps: tx_caps(features),
            mergeable: features & MRG_RXBUF != 0,
            isa: Isa::detect(),
        })
    }

    /// Index of the first buffer of queue `queue` that was not used: what `VHOST_USER_GET_VRING_BASE` answers once
    /// the queue is stopped.
    pub fn base(&self, queue: usize) -> Option<u16> {
        let shared = self.rings.get(queue)?;
        Some(shared.cursor.published.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn ring_of(&self, lane: Lane) -> Option<&Shared> {
        match self.rings.len() {
            1 => self.rings.first(),
            n => self.rings.get(usize::from(lane.worker).checked_rem(n)?),
        }
    }

    /// The whole transmission of the one worker of a ring. Returns the used index before and behind it.
    #[inline(always)]
    fn alone<const ISA: u8, const MRG: bool>(
        job: &Job<'_, '_>,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> (u16, u16) {
        let mut slots = Slots::new();
        let before = job.cursor.next.load(Ordering::Relaxed);
        while let Some(rest) = picks.get(sent.taken..)
            && !rest.is_empty()
        {
            let first = job.cursor.next.load(Ordering::Relaxed);
            let run = job.reserve::<MRG>(&mut slots, rest);
            if !job.fill::<ISA>(run, &slots, first, rest, sent) {
                break;
            }
        }
        let next = job.cursor.next.load(Ordering::Relaxed);
        if next != before {
            job.publish(next);
            let known = job.cursor.seen.load(Ordering::Relaxed).wrapping_sub(next);
            job.ring.fetch_ahead(next, known);
        }
        (before, next)
    }

    /// The same where several workers share the ring.
    #[cold]
    #[inline(never)]
    fn together<const ISA: u8, const MRG: bool>(
        leases: &Leases,
        job: &Job<'_, '_>,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> (u16, u16) {
        let mut slots = Slots::new();
        let mut published: Option<(u16, u16)> = None;
        while let Some(rest) = picks.get(sent.taken..)
            && !rest.is_empty()
        {
            let guard = leases.try_lock(SPIN_CYCLES);
            let Some(mut guard) = guard.filter(|guard| !guard.is_full()) else {
                sent.stop = Stop::Busy;
                break;
            };
            let first = job.cursor.next.load(Ordering::Relaxed);
            let run = job.reserve::<MRG>(&mut slots, rest);
            let end = job.cursor.next.load(Ordering::Relaxed);
            let lease = if end == first {
                None
            } else {
                guard.lease(u32::from(end))
            };
            drop(guard);
            let goes_on = job.fill::<ISA>(run, &slots, first, rest, sent);
            if let Some(lease) = lease {
                leases.finish(lease, |end| {
                    let old = job.publish(end as u16);
                    let from = published.map_or(old, |(from, _)| from);
                    published = Some((from, end as u16));
                });
            }
            if !goes_on {
                break;
            }
        }
        published.unwrap_or((0, 0))
    }

    #[inline(never)]
    fn send<const ISA: u8, const MRG: bool>(
        &self,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        let Some(shared) = self.ring_of(lane).filter(|_| !self.map.is_dead()) else {
            sent.stop = Stop::Down;
            return sent;
        };
        let job = Job {
            ring: &shared.ring,
            map: &self.map,
            cursor: &shared.cursor,
            caps: self.caps,
            heads,
            tails,
        };
        let (old, new) = if usize::from(lane.workers) > self.rings.len() {
            Self::together::<ISA, MRG>(&shared.leases, &job, picks, &mut sent)
        } else {
            Self::alone::<ISA, MRG>(&job, picks, &mut sent)
        };
        if old != new {
            shared.ring.park_again(old, new);
            let wants = if shared.ring.event_idx() {
                shared.ring.wants_call::<true>(old, new)
            } else {
                shared.ring.wants_call::<false>(old, new)
            };
            if wants {
                sent.kick = Kick::Now;
            }
        }
        sent
    }
}

impl Ring {
    /// Starts to fetch the descriptors of up to a burst of `count` buffers, and the used elements to be written.
    #[inline(always)]
    fn fetch_ahead(&self, next: u16, count: u16) {
        let count = usize::from(count).min(BURST);
        for k in 0..count {
            let head = self.head(next.wrapping_add(k as u16));
            prefetch::read(self.desc_line(head));
        }
        for k in (0..count).step_by(USED_PER_LINE) {
            prefetch::write(self.used_line(next.wrapping_add(k as u16)));
        }
    }
}

/// Why buffers for one frame were not reserved.
enum Short {
    /// There are not enough now.
    Now,
    /// There can never be.
    Never,
    /// One of them is bad.
    Fault,
    Dead,
}

impl Job<'_, '_> {
    /// Publishes the used index; returns the one before.
    #[inline(always)]
    fn publish(&self, index: u16) -> u16 {
        let old = self.cursor.published.load(Ordering::Relaxed);
        self.ring.publish(index);
        self.cursor.published.store(index, Ordering::Release);
        old
    }

    /// Buffers that can be filled from `next` on. Looks at the guest's index only when fewer than `want` are known.
    #[inline(always)]
    fn known(&self, next: u16, want: usize) -> Option<u16> {
        let known = self.cursor.seen.load(Ordering::Relaxed).wrapping_sub(next);
        if usize::from(known) >= want && known <= self.ring.size() {
            return Some(known);
        }
        let end = self.ring.avail_index();
        let known = end.wrapping_sub(next);
        if known > self.ring.size() {
            return None;
        }
        self.cursor.seen.store(end, Ordering::Relaxed);
        Some(known)
    }

    /// The place of the header in the buffer of `head`, if that is whole and has room for `need` bytes.
    #[inline(always)]
    fn slot(&self, hit: &mut Extent, head: u16, need: u32) -> Option<*mut u8> {
        let desc = Desc::from_words(self.ring.words(head)?);
        if !desc.is_whole::<true>() || desc.len < need {
            return None;
        }
        self.map.find(hit, desc.addr, desc.len)
    }

    /// Reserves the next run and moves the cursor behind it.
    #[inline(always)]
    fn reserve<const MRG: bool>(&self, slots: &mut Slots, picks: &[Pick]) -> Run {
        let next = self.cursor.next.load(Ordering::Relaxed);
        let want = picks.len().min(BURST);
        let Some(known) = self.known(next, want) else {
            self.map.fail();
            return Run::Dead;
        };
        let n = want.min(usize::from(known));
        let mut heads = [0u16; BURST];
        for (k, place) in heads.iter_mut().enumerate().take(n) {
            *place = self.ring.head(next.wrapping_add(k as u16));
            prefetch::read(self.ring.desc_line(*place));
        }
        let mut hit = self.map.hit();
        let mut plain = 0;
        for ((pick, place), head) in picks.iter().zip(&mut slots.few).zip(heads).take(n) {
            let Some(meta) = self.heads.meta.get(pick.index()) else {
                break;
            };
            let need = HEADER_BYTES + wire_bytes(meta, *pick);
            if !self.caps.takes(&meta.off) {
                break;
            }
            let Some(ptr) = self.slot(&mut hit, head, need) else {
                break;
            };
            prefetch::write(ptr);
            prefetch::write(ptr.wrapping_add(HEADER_BYTES as usize));
            if need > 128 {
                prefetch::write(ptr.wrapping_add(128));
            }
            place.write(Slot { ptr, head });
            plain += 1;
        }
        let (run, used) = if plain > 0 {
            (Run::Plain(plain), plain)
        } else {
            self.reserve_odd::<MRG>(&mut hit, next, slots, picks)
        };
        let end = next.wrapping_add(used as u16);
        self.cursor.next.store(end, Ordering::Relaxed);
        run
    }

    /// Reserves for one pick that does not go into one whole buffer as it is.
    #[inline(never)]
    fn reserve_odd<const MRG: bool>(
        &self,
        hit: &mut Extent,
        next: u16,
        slots: &mut Slots,
        picks: &[Pick],
    ) -> (Run, usize) {
        slots.buffers.clear();
        slots.pieces.clear();
        slots.looked = 0;
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
            got = self.gather::<MRG>(hit, next, slots, need);
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
                match short {
                    Short::Now => Run::Full,
                    Short::Dead => Run::Dead,
                    _ => Run::Drop(too_many),
                }
            }
        };
        (run, slots.buffers.len())
    }

    /// Reserves buffers for one frame that takes `need` bytes with its header.
    fn gather<const MRG: bool>(
        &self,
        hit: &mut Extent,
        next: u16,
        slots: &mut Slots,
        need: u32,
    ) -> Result<(), Short> {
        let mut room = 0u32;
        let first = slots.buffers.len();
        while room < need {
            let k = slots.buffers.len();
            let Some(known) = self.known(next, k + 1) else {
                self.map.fail();
                return Err(Short::Dead);
            };
            let over = k - first >= MERGED_MAX || slots.looked >= LOOKED_MAX;
            if over || k >= usize::from(self.ring.size()) {
                return Err(Short::Never);
            }
            if k >= usize::from(known) {
                return Err(Short::Now);
            }
            let head = self.ring.head(next.wrapping_add(k as u16));
            let mut buffer = Buffer { head, room: 0 };
            let pieces = &mut slots.pieces;
            let walked = self.ring.words(head).and_then(|words| {
                let walk = self.ring.chain::<true>(self.map, hit, words, |piece| {
                    buffer.room = buffer.room.saturating_add(piece.len);
                    pieces.push(piece);
                });
                walk.ok()
            });
            slots.buffers.push(buffer);
            slots.looked += walked.filter(|_| buffer.room > 0).ok_or(Short::Fault)?;
            room = room.saturating_add(buffer.room);
            if !MRG && room < need {
                return Err(Short::Never);
            }
        }
        Ok(())
    }

    /// Fills a run whose first buffer is at `first` of the ring. False if the transmission ends here.
    #[inline(always)]
    fn fill<const ISA: u8>(
        &self,
        run: Run,
        slots: &Slots,
        first: u16,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        let Run::Plain(count) = run else {
            return self.fill_odd(run, slots, first, picks, sent);
        };
        let mut bytes = 0;
        for (k, (pick, slot)) in picks.iter().zip(&slots.few).enumerate().take(count) {
            // SAFETY: the reservation wrote the first `count` slots.
            let slot = unsafe { slot.assume_init() };
            let len = self.copy_whole::<ISA>(*pick, slot.ptr);
            let index = first.wrapping_add(k as u16);
            self.ring.put_used(index, slot.head, HEADER_BYTES + len);
            bytes += u64::from(len);
        }
        sent.taken += count;
        sent.frames += count as u64;
        sent.bytes += bytes;
        true
    }

    #[inline(never)]
    fn fill_odd(
        &self,
        run: Run,
        slots: &Slots,
        first: u16,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        let (Some(pick), true) = (
            picks.first(),
            matches!(run, Run::Frame | Run::Soft | Run::Drop(_)),
        ) else {
            let full = matches!(run, Run::Full);
            sent.stop = if full { Stop::Full } else { Stop::Down };
            return false;
        };
        let mut out = Out {
            ring: self.ring,
            buffers: &slots.buffers,
            index: first,
            pieces: Scatter::over(&slots.pieces),
        };
        match run {
            Run::Frame => self.fill_frame(&mut out, *pick, sent),
            Run::Soft => self.fill_soft(&mut out, *pick, sent),
            Run::Drop(reason) => sent.drop_frame(reason),
            _ => {}
        }
        out.give_back_rest();
        sent.taken += 1;
        true
    }

    fn fill_frame(&self, out: &mut Out<'_>, pick: Pick, sent: &mut Sent) {
        let Some(meta) = self.heads.meta.get(pick.index()) else {
            return;
        };
        let len = wire_bytes(meta, pick);
        let Some(count) = out.begin(len, self.header(meta, pick)) else {
            return;
        };
        self.pieces(pick, |ptr, len| out.pieces.put(ptr, len));
        out.end(count, len);
        sent.frames += 1;
        sent.bytes += u64::from(len);
    }

    /// Writes what the software stage makes of a frame. Buffers that were reserved for more than came out are given
    /// back empty.
    fn fill_soft(&self, out: &mut Out<'_>, pick: Pick, sent: &mut Sent) {
        let made = soft::finish(self.heads, self.tails, pick, self.caps, |frame| {
            let len = frame.len() as u32;
            let Some(count) = out.begin(len, [0; Claim::BYTES]) else {
                return false;
            };
            out.pieces.put(frame.as_ptr(), frame.len());
            out.end(count, len);
            sent.bytes += u64::from(len);
            true
        });
        match made {
            Ok(count) => {
                sent.frames += 1;
                if count > 1 {
                    sent.segments += count;
                }
            }
            Err(reason) => sent.drop_frame(reason),
        }
    }

    /// The header of a frame that the guest takes as it is, but for the number of buffers.
    #[inline(always)]
    fn header(&self, meta: &Meta, pick: Pick) -> [u8; Claim::BYTES] {
        if !self.caps.csum || (meta.off.is_plain() && !meta.off.data_valid()) {
            return [0; Claim::BYTES];
        }
        let shift = if pick.tagged() { TAG_BYTES as u16 } else { 0 };
        let headers = u16::from(meta.l2) + meta.l3 + u16::from(meta.l4);
        meta.off.encode(shift, headers)
    }

    /// Writes header and frame into one buffer that has room for both; returns the bytes of the frame.
    #[inline(always)]
    fn copy_whole<const ISA: u8>(&self, pick: Pick, to: *mut u8) -> u32 {
        let i = pick.index();
        let Some(meta) = self.heads.meta.get(i) else {
            return 0;
        };
        let header = with_buffers(self.header(meta, pick), 1);
        // SAFETY: the buffer was found inside the guest's memory with room for header and frame.
        unsafe { write_header(to, header) };
        let to = to.wrapping_add(header.len());
        let private = self.heads.private(i);
        if pick.tagged() || private.len() > SNAP {
            return self.copy_tagged(pick, to);
        }
        // SAFETY: the private bytes are ours; the buffer has room for the whole frame, of which they are the first.
        unsafe { snapshot::<ISA>(to, private.as_ptr(), private.len()) };
        let (mut done, whole) = (private.len(), meta.len as usize);
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
        let len = wire_bytes(meta, pick);
        let whole = [Piece { ptr: to, len }];
        let mut room = Scatter::over(&whole);
        self.pieces(pick, |ptr, len| room.put(ptr, len));
        len - room.left as u32
    }

    /// The bytes of a frame in order: private bytes with the tag inside, then what lies behind them.
    #[inline(always)]
    fn pieces(&self, pick: Pick, mut each: impl FnMut(*const u8, usize)) {
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
            _ => each(private.as_ptr(), private.len()),
        }
        for piece in self.tails.of(i) {
            each(piece.as_ptr(), piece.len());
        }
    }
}

/// Bytes of a frame as it is written, without the virtio header.
#[inline(always)]
fn wire_bytes(meta: &Meta, pick: Pick) -> u32 {
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

/// The 802.1Q tag of a frame: its VLAN on the bridge with the priority that it came with.
#[inline(always)]
fn tag_bytes(meta: &Meta) -> [u8; TAG_BYTES as usize] {
    let [high, low] = (meta.tci & TCI_PRIORITY | meta.vid & 0x0fff).to_be_bytes();
    [0x81, 0x00, high, low]
}

/// A header with num_buffers.
#[inline(always)]
fn with_buffers(mut header: [u8; Claim::BYTES], count: u16) -> [u8; Claim::BYTES] {
    let [low, high] = count.to_le_bytes();
    (header[10], header[11]) = (low, high);
    header
}

/// Writes a header, where its place is aligned straight from registers: a load of what was just built in memory
/// would wait for the stores before it, which go to lines of another core.
///
/// # Safety
/// The header's bytes must be mapped and writable at `to`.
#[inline(always)]
unsafe fn write_header(to: *mut u8, header: [u8; Claim::BYTES]) {
    let words: *mut u32 = to.cast();
    if !words.is_aligned() {
        // SAFETY: the caller's promise.
        unsafe { copy_out(to, header.as_ptr(), header.len()) };
        return;
    }
    let (chunks, _) = header.as_chunks::<4>();
    for (k, chunk) in chunks.iter().enumerate() {
        // SAFETY: one of three aligned words of the header (caller).
        unsafe {
            word::store_u32(
                words.wrapping_add(k),
                u32::from_le_bytes(*chunk),
                Ordering::Relaxed,
            )
        };
    }
}

/// Reserved buffers that are being filled, one frame after the other.
struct Out<'a> {
    ring: &'a Ring,
    /// Those that were not given back yet.
    buffers: &'a [Buffer],
    /// Where the first of them goes in the used ring.
    index: u16,
    pieces: Scatter<'a>,
}

impl Out<'_> {
    /// Writes the header of a frame of `len` bytes; returns how many buffers it takes, or `None` if they do not
    /// suffice.
    fn begin(&mut self, len: u32, header: [u8; Claim::BYTES]) -> Option<usize> {
        let (need, mut room, mut count) = (HEADER_BYTES + len, 0u32, 0);
        while room < need {
            room = room.saturating_add(self.buffers.get(count)?.room);
            count += 1;
        }
        let header = with_buffers(header, count as u16);
        self.pieces.put(header.as_ptr(), header.len());
        Some(count)
    }

    /// Gives back the buffers of the frame that was written behind its header. The room behind its end is passed
    /// over.
    fn end(&mut self, count: usize, len: u32) {
        let Some((mine, rest)) = self.buffers.split_at_checked(count) else {
            return;
        };
        let mut left = HEADER_BYTES + len;
        for buffer in mine {
            let n = buffer.room.min(left);
            self.ring.put_used(self.index, buffer.head, n);
            self.index = self.index.wrapping_add(1);
            self.pieces.pass((buffer.room - n) as usize);
            left -= n;
        }
        self.buffers = rest;
    }

    /// Gives back what is left, empty.
    fn give_back_rest(&mut self) {
        for buffer in self.buffers {
            self.ring.put_used(self.index, buffer.head, 0);
            self.index = self.index.wrapping_add(1);
        }
        self.buffers = &[];
    }
}

/// Pieces of memory that are written from front to back.
struct Scatter<'a> {
    at: *mut u8,
    left: usize,
    next: &'a [Piece],
}

impl<'a> Scatter<'a> {
    fn over(pieces: &'a [Piece]) -> Scatter<'a> {
        Scatter {
            at: core::ptr::null_mut(),
            left: 0,
            next: pieces,
        }
    }

    /// How many of `want` bytes can be written at `at`, which then is not null unless that is 0.
    #[inline(always)]
    fn room(&mut self, want: usize) -> usize {
        while self.left == 0
            && want != 0
            && let Some((first, rest)) = self.next.split_first()
        {
            (self.at, self.left, self.next) = (first.ptr, first.len as usize, rest);
        }
        want.min(self.left)
    }

    #[inline(always)]
    fn advance(&mut self, n: usize) {
        self.at = self.at.wrapping_add(n);
        self.left -= n;
    }

    /// Writes `len` bytes, or as many as there is room for.
    #[inline(always)]
    fn put(&mut self, mut from: *const u8, mut len: usize) {
        loop {
            let n = self.room(len);
            if n == 0 {
                return;
            }
            // SAFETY: `n` bytes that the caller may read (private, or borrowed for the section), into a checked piece
            // with as much room.
            unsafe { copy_through(self.at, from, n) };
            self.advance(n);
            (from, len) = (from.wrapping_add(n), len - n);
        }
    }

    /// Leaves `len` bytes as they are.
    fn pass(&mut self, mut len: usize) {
        loop {
            let n = self.room(len);
            if n == 0 {
                return;
            }
            self.advance(n);
            len -= n;
        }
    }
}

impl TxPort for VhostTx {
    fn caps(&self) -> TxCaps {
        self.caps
    }

    fn prefetch(&self, lane: Lane) {
        if let Some(shared) = self.ring_of(lane) {
            let next = shared.cursor.next.load(Ordering::Relaxed);
            let known = shared
                .cursor
                .seen
                .load(Ordering::Relaxed)
                .wrapping_sub(next);
            shared.ring.fetch_ahead(next, known.min(FETCH_EARLY));
        }
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        const WIDE: u8 = Isa::Avx512 as u8;
        const NARROW: u8 = Isa::Sse2 as u8;
        match (self.isa == Isa::Avx512, self.mergeable) {
            (true, false) => self.send::<WIDE, false>(lane, heads, tails, picks),
            (true, true) => self.send::<WIDE, true>(lane, heads, tails, picks),
            (false, false) => self.send::<NARROW, false>(lane, heads, tails, picks),
            (false, true) => self.send::<NARROW, true>(lane, heads, tails, picks),
        }
    }

    fn kick(&self, lane: Lane) {
        let Some(shared) = self.ring_of(lane) else {
            return;
        };
        if let Some(call) = &shared.call
            && kick::kick(call.as_fd()).is_err()
        {
            self.map.fail();
        }
    }
}
