//! The words of one packed virtqueue (VIRTIO 1.2, 2.8), as a device uses them.
//!
//! # Model
//! ```text
//!  descriptors   16 bytes each: address 64 | length 32, id 16, flags 16     guest and we write, in turn
//!  driver event  descriptor 15 and wrap 1, flags 16                         guest writes
//!  device event  the same                                                   we write
//! ```
//! A descriptor is available if its two flag bits say so for the present lap, and used once both are as the lap. A
//! place counts descriptors over two laps: below the size in a lap with wrap counter 1, from the size on in one with
//! wrap counter 0. A chain takes a place for each of its descriptors outside an indirect table, and its last one
//! names it; what we give back is one descriptor in the place of its first.
//!
//! # Ownership and lifetime
//! Whoever holds a ring also holds its [`GuestMap`].
//!
//! # Synchronization
//! | word | written by | order |
//! | --- | --- | --- |
//! | a descriptor's second half, available | guest, release | our acquire load, before its first half: the chain is complete |
//! | a descriptor's second half, used | us, one store; the first of a publication last, release | the guest's acquire load: what it reads in order behind it, and frames |
//! | device event | us: place, then flags | our store, SeqCst fence, our load of a descriptor (`arm`) |
//! | driver event | guest | our store of used descriptors, SeqCst fence, our load |
//!
//! A guest reads used descriptors in order: those behind one that is not there yet are not looked at. So a publication
//! is written from its end to its beginning.
//!
//! # What can be lost and what cannot
//! Used descriptors are kept in private memory until their publication: a daemon that is killed while it fills
//! buffers leaves the ring as the guest wrote it, and the next one does the burst again. Before a publication a
//! [`Mark`] outside the process is told from where to where it goes, and the next daemon finds one of three things
//! ([`Packed::resume`]):
//!
//! | first descriptor | those behind it | the ring goes on |
//! | --- | --- | --- |
//! | used, or available again | all used: the guest has them | behind the publication |
//! | available | none used: it had not begun | before it: the burst is done again |
//! | available | some used, from the end on: the guest has seen nothing | behind it, once the others are given back too |
//!
//! In the third case everything is given back empty. To a guest that transmitted that makes no difference: its frames
//! have gone out. A guest that receives drops empty buffers; the frames for them come again if they were another
//! guest's, whose ring is not released before.
//!
//! Where several workers transmit on one ring, one at a time does, from its reservation to its publication: so there is one
//! publication to be cut off.
//!
//! # Failure modes
//! A chain that goes on for the whole ring, or into descriptors that are not available, has no end: nothing behind it
//! can be found, and the queue ends. Descriptors that a guest makes available a second time before we used them are
//! not seen: never more than a ring's worth is taken.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::mem::MaybeUninit;
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
    CHAIN_MAX, DESC_BYTES, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Desc, Fault, Head, Piece, Ring,
    Walk, find_part, is_kind, piece, table,
};
use super::ring_progress::Mark;

/// `VIRTQ_DESC_F_AVAIL`.
pub const DESC_AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED`.
pub const DESC_USED: u16 = 1 << 15;
/// `RING_EVENT_FLAGS_ENABLE`.
pub const EVENT_ENABLE: u16 = 0;
/// `RING_EVENT_FLAGS_DISABLE`.
pub const EVENT_DISABLE: u16 = 1;
/// `RING_EVENT_FLAGS_DESC`.
pub const EVENT_DESC: u16 = 2;
/// The wrap counter beside a descriptor's number in an event structure.
pub const EVENT_WRAP: u16 = 1 << 15;
const EVENT_BYTES: u32 = 4;
/// Descriptors on a cache line.
const DESC_PER_LINE: u16 = 4;

/// Used descriptors of one publication, in the order of the ring: number and second half.
pub(super) struct Held {
    few: [MaybeUninit<(u16, u64)>; BURST],
    count: usize,
    /// Those behind the first [`BURST`].
    more: Vec<(u16, u64)>,
}

impl Default for Held {
    #[inline(always)]
    fn default() -> Held {
        Held {
            few: [const { MaybeUninit::uninit() }; BURST],
            count: 0,
            more: Vec::new(),
        }
    }
}

impl Held {
    /// What is written, in this order: what comes last in the ring first, so that the guest sees all of it or none, and
    /// so that whoever finds a part of it finds every chain before that as the driver wrote it.
    #[inline(always)]
    fn stores(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let few = self.few.get(..self.count.min(BURST)).unwrap_or_default();
        // SAFETY: `put` wrote the first `count` places.
        let few = few.iter().rev().map(|place| unsafe { place.assume_init() });
        self.more.iter().rev().copied().chain(few)
    }
}

/// What a descriptor's flags say of it in a given lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its driver has not come so far.
    Before,
    Available,
    Used,
    /// Available in the next lap: it was used, and the driver has seen that.
    Again,
}

/// One packed ring in one piece of memory.
pub(super) type Packed = PackedOver<Flat>;

/// One packed ring, by address.
#[derive(Debug)]
pub(super) struct PackedOver<A> {
    desc: A,
    driver_event: *const u32,
    device_event: *mut u16,
    desc_gpa: u64,
    device_gpa: u64,
    size: u16,
    indirect: bool,
    event_idx: bool,
    log: Option<Arc<DirtyLog>>,
    mark: Option<Mark>,
}

// SAFETY: addresses inside the mappings of a map that whoever holds the ring holds too; every access is atomic.
unsafe impl<A> Send for PackedOver<A> {}
// SAFETY: as above.
unsafe impl<A> Sync for PackedOver<A> {}

impl<A: Area> PackedOver<A> {
    /// Number of the descriptor at a place, and the lap's wrap counter.
    #[inline(always)]
    fn slot(&self, at: u16) -> (u16, bool) {
        match at.checked_sub(self.size) {
            None => (at, true),
            Some(slot) => (slot, false),
        }
    }

    #[inline(always)]
    fn desc_word(&self, slot: u16) -> *mut u64 {
        self.desc.at(usize::from(slot).wrapping_mul(16)).cast()
    }

    /// The second half of the descriptor at a place: length, id, flags.
    #[inline(always)]
    fn high(&self, slot: u16, order: Ordering) -> u64 {
        let p = self.desc_word(slot).wrapping_add(1);
        // SAFETY: one of the `size` descriptors, since places stay below twice the size (`place`, `advance`); aligned to
        // 16 and inside the mapping (`Ring::new`), which outlives the ring (its holder keeps the map).
        unsafe { word::load_u64(p, order) }
    }

    /// Writes a second half.
    #[inline(always)]
    fn set_high(&self, slot: u16, high: u64, order: Ordering) {
        let p = self.desc_word(slot).wrapping_add(1);
        // SAFETY: as in `high`.
        unsafe { word::store_u64(p, high, order) };
    }

    /// The first half: the address.
    #[inline(always)]
    fn low(&self, slot: u16) -> u64 {
        // SAFETY: as in `high`.
        unsafe { word::load_u64(self.desc_word(slot), Ordering::Relaxed) }
    }

    /// Whether a second half says that its descriptor is available in a lap with this wrap counter.
    #[inline(always)]
    fn is_available(high: u64, wrap: bool) -> bool {
        let flags = (high >> 48) as u16 & (DESC_AVAIL | DESC_USED);
        flags == if wrap { DESC_AVAIL } else { DESC_USED }
    }

    /// What a second half says of its descriptor in a lap with this wrap counter.
    fn state(high: u64, wrap: bool) -> State {
        let flags = (high >> 48) as u16;
        match [DESC_AVAIL, DESC_USED].map(|bit| (flags & bit != 0) == wrap) {
            [true, true] => State::Used,
            [true, false] => State::Available,
            [false, true] => State::Again,
            [false, false] => State::Before,
        }
    }

    /// The second half by which a chain is given back with `len` bytes written.
    #[inline(always)]
    fn used(wrap: bool, id: u16, len: u32) -> u64 {
        let lap = if wrap { DESC_AVAIL | DESC_USED } else { 0 };
        let flags = if len != 0 { lap | DESC_WRITE } else { lap };
        u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
    }

    /// Whether a device has used anything of this ring since its driver made it.
    pub(super) fn is_in_use(&self) -> bool {
        (0..self.size)
            .any(|slot| self.high(slot, Ordering::Relaxed) >> 48 & u64::from(DESC_USED) != 0)
    }

    /// Where the ring stands whose device was killed after it had said that it would publish what lies between two
    /// places. If only a part of that was written, the rest is.
    pub(super) fn resume(&self, from: Base, to: Base) -> Base {
        let (first, end) = (self.place(from), self.place(to));
        let (slot, wrap) = self.slot(first);
        match Self::state(self.high(slot, Ordering::Acquire), wrap) {
            _ if first == end => to,
            State::Used | State::Again => to,
            State::Available if self.complete(first, self.distance(first, end)) => to,
            State::Available | State::Before => from,
        }
    }

    /// Gives `count` places from `first` on back empty, the last one first, if a part of them was given back, of which the
    /// guest has seen nothing because the first is not among them. False if there was no such part: the ring is as it was.
    fn complete(&self, first: u16, count: u16) -> bool {
        let count = count.min(self.size);
        let Some(stores) = self.emptied(first, count) else {
            return false;
        };
        for (slot, high) in stores.iter().rev() {
            self.set_high(*slot, *high, Ordering::Release);
        }
        if let Some(log) = &self.log {
            self.log_used(log, first, self.advance(first, count));
        }
        true
    }

    /// What gives `count` places from `first` on back empty, in the order of the ring; `None` if no part of them was given
    /// back before, or if they are not as the driver and we write them.
    fn emptied(&self, first: u16, count: u16) -> Option<Vec<(u16, u64)>> {
        let (mut at, mut left, mut cut, mut stores) = (first, count, false, Vec::new());
        while left > 0 {
            let (slot, wrap) = self.slot(at);
            let high = self.high(slot, Ordering::Relaxed);
            let mut places = 1;
            if Self::state(high, wrap) == State::Used {
                stores.push((slot, Self::used(wrap, (high >> 32) as u16, 0)));
                cut = true;
            } else if !cut {
                // As the driver wrote it, since later ones are given back first.
                let (id, span) = self.span(at, left)?;
                stores.push((slot, Self::used(wrap, id, 0)));
                places = span;
            }
            // Else a descriptor of a chain whose first one was given back.
            at = self.advance(at, places);
            left = left.saturating_sub(places);
        }
        cut.then_some(stores)
    }

    /// What the chain at a place is called, and how many places it takes: `most` at most.
    fn span(&self, at: u16, most: u16) -> Option<(u16, u16)> {
        let mut at = at;
        for places in 1..=most {
            let (slot, wrap) = self.slot(at);
            let high = self.high(slot, Ordering::Relaxed);
            if !Self::is_available(high, wrap) {
                return None;
            }
            if (high >> 48) as u16 & DESC_NEXT == 0 {
                return Some(((high >> 32) as u16, places));
            }
            at = self.step(at);
        }
        None
    }

    /// One place further.
    #[inline(always)]
    fn step(&self, at: u16) -> u16 {
        self.advance(at, 1)
    }

    /// An address on each line of `count` descriptors from a place on, for prefetches.
    #[inline(always)]
    fn lines(&self, at: u16, count: u16) -> impl Iterator<Item = *const u8> {
        let first = self.slot(at).0;
        (0..count)
            .step_by(usize::from(DESC_PER_LINE))
            .map(move |k| {
                let slot = first.wrapping_add(k);
                let slot = slot.checked_sub(self.size).unwrap_or(slot);
                self.desc_word(slot).cast_const().cast()
            })
    }

    /// A place as event structures name it.
    fn event_of(&self, at: u16) -> u16 {
        let (slot, wrap) = self.slot(at);
        slot | if wrap { EVENT_WRAP } else { 0 }
    }

    fn set_device_event(&self, place: Option<u16>, flags: u16) {
        if let Some(place) = place {
            // SAFETY: aligned to 4 and inside the mapping (`Ring::new`), which outlives the ring.
            unsafe { word::store_u16(self.device_event, place, Ordering::Relaxed) };
        }
        let p = self.device_event.wrapping_add(1);
        // SAFETY: the second half of the same word.
        unsafe { word::store_u16(p, flags, Ordering::Release) };
        if let Some(log) = &self.log {
            log.mark(self.device_gpa, u64::from(EVENT_BYTES));
        }
    }
}

impl<A: Area> Ring for PackedOver<A> {
    const WALKED: bool = true;

    const WHOLE: bool = true;

    type Held = Held;

    fn new(setup: &QueueSetup) -> Result<PackedOver<A>, QueueError> {
        setup.check()?;
        let [desc, driver, device] = setup.parts();
        let desc = A::find(setup, &desc)?;
        let driver = find_part(setup, &driver)?;
        let device = find_part(setup, &device)?;
        Ok(PackedOver {
            desc,
            driver_event: driver.cast_const().cast(),
            device_event: device.cast(),
            desc_gpa: setup.desc,
            device_gpa: setup.used,
            size: setup.size,
            indirect: setup.features & INDIRECT_DESC != 0,
            event_idx: setup.features & EVENT_IDX != 0,
            log: setup.log.clone(),
            mark: None,
        })
    }

    fn place(&self, base: Base) -> u16 {
        let lap = if base.used_wrap { 0 } else { self.size };
        base.used.wrapping_add(lap)
    }

    fn base(&self, at: u16) -> Base {
        let (slot, wrap) = self.slot(at);
        Base::packed(slot, wrap)
    }

    #[inline(always)]
    fn size(&self) -> u16 {
        self.size
    }

    fn lap(&self) -> u32 {
        u32::from(self.size).wrapping_mul(2)
    }

    fn unread(&self, next: u16) -> u16 {
        let is_free = |n: u16| {
            let (slot, wrap) = self.slot(self.advance(next, n));
            Self::is_available(self.high(slot, Ordering::Acquire), wrap)
        };
        // Those that are available come first.
        let (mut free, mut end) = (0u16, self.size);
        while free < end {
            let middle = free.midpoint(end);
            match is_free(middle) {
                true => free = middle.wrapping_add(1),
                false => end = middle,
            }
        }
        self.size.wrapping_sub(free)
    }

    #[inline(always)]
    fn advance(&self, at: u16, n: u16) -> u16 {
        let laps = u32::from(self.size).wrapping_mul(2);
        let sum = u32::from(at).wrapping_add(u32::from(n));
        sum.checked_sub(laps).unwrap_or(sum) as u16
    }

    #[inline(always)]
    fn distance(&self, from: u16, to: u16) -> u16 {
        match to.checked_sub(from) {
            Some(n) => n,
            // Modulo 65,536 that is right also where two laps are exactly as many.
            None => to
                .wrapping_sub(from)
                .wrapping_add(self.size.wrapping_mul(2)),
        }
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
            flags: (high >> 48) as u16,
            tag: (high >> 32) as u16,
        }
    }

    fn next_in_table(_desc: Desc, at: usize, count: usize) -> Option<usize> {
        let next = at.wrapping_add(1);
        (next < count).then_some(next)
    }

    fn kind_counts<const WRITE: bool>() -> bool {
        WRITE
    }

    fn indirect(&self) -> bool {
        self.indirect
    }

    #[inline(always)]
    fn heads<const FRESH: bool>(
        &self,
        _seen: &AtomicU16,
        at: u16,
        want: u16,
        mut each: impl FnMut(Head) -> bool,
    ) -> Option<()> {
        if !FRESH {
            return Some(());
        }
        let (mut slot, mut wrap) = self.slot(at);
        for _ in 0..want {
            let high = self.high(slot, Ordering::Acquire);
            if !Self::is_available(high, wrap) {
                break;
            }
            let head = Head {
                words: [self.low(slot), high],
                id: (high >> 32) as u16,
                exists: true,
            };
            let goes_on = (high >> 48) as u16 & DESC_NEXT != 0;
            if !each(head) || goes_on {
                break;
            }
            slot = slot.wrapping_add(1);
            if slot >= self.size {
                (slot, wrap) = (0, !wrap);
            }
        }
        Some(())
    }

    #[inline(always)]
    fn is_known(&self, _seen: &AtomicU16, _at: u16) -> bool {
        false
    }

    #[inline]
    fn chain<const WRITE: bool>(
        &self,
        (map, hit): (&GuestMap, &mut Extent),
        at: u16,
        head: &Head,
        most: u16,
        mut each: impl FnMut(Piece),
    ) -> Walk {
        let mut walk = Walk {
            result: Ok(()),
            looked: 0,
            places: 0,
            id: head.id,
        };
        let (mut at, mut words) = (at, head.words);
        loop {
            let desc = Packed::desc(words);
            (walk.places, walk.id) = (walk.places.wrapping_add(1), desc.tag);
            walk.looked = walk.looked.wrapping_add(1);
            let goes_on = desc.flags & DESC_NEXT != 0;
            if walk.result.is_ok() {
                walk.result = if usize::from(walk.places) > CHAIN_MAX {
                    Err(Fault::TooLong)
                } else if desc.flags & DESC_INDIRECT != 0 {
                    let before = walk.looked.wrapping_sub(1);
                    let found = table::<_, WRITE>(self, (map, hit), desc, before, &mut each);
                    walk.looked = found.unwrap_or(CHAIN_MAX);
                    found.map(|_| ())
                } else if is_kind::<WRITE>(desc) {
                    piece((map, hit), desc, &mut each)
                } else {
                    Err(Fault::Bad)
                };
            }
            if !goes_on {
                return walk;
            }
            at = self.step(at);
            let (slot, wrap) = self.slot(at);
            let high = self.high(slot, Ordering::Relaxed);
            if walk.places >= most || !Self::is_available(high, wrap) {
                walk.result = Err(Fault::Endless);
                return walk;
            }
            words = [self.low(slot), high];
        }
    }

    #[inline(always)]
    fn put(&self, held: &mut Self::Held, at: u16, id: u16, len: u32) {
        let (slot, wrap) = self.slot(at);
        let high = Self::used(wrap, id, len);
        match held.few.get_mut(held.count) {
            Some(place) => {
                place.write((slot, high));
            }
            None => held.more.push((slot, high)),
        }
        held.count = held.count.wrapping_add(1);
    }

    fn keep(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    #[inline(always)]
    fn intend(&self, from: u16, to: u16) {
        if let Some(mark) = &self.mark {
            mark.intend(self.base(from), self.base(to));
        }
    }

    #[inline(always)]
    fn open(&self, held: Held) {
        held.stores()
            .for_each(|(slot, high)| self.set_high(slot, high, Ordering::Release));
    }

    #[inline(always)]
    fn set_index(&self, _at: u16) {}

    fn log_used(&self, log: &DirtyLog, from: u16, to: u16) {
        let (first, count) = (self.slot(from).0, self.distance(from, to));
        let before_end = count.min(self.size.wrapping_sub(first));
        for (first, count) in [(first, before_end), (0, count.wrapping_sub(before_end))] {
            let bytes = |n: u16| u64::from(n).wrapping_mul(u64::from(DESC_BYTES));
            log.mark(self.desc_gpa.wrapping_add(bytes(first)), bytes(count));
        }
    }

    #[inline(always)]
    fn wants_call(&self, old: u16, new: u16) -> bool {
        fence(Ordering::SeqCst);
        // SAFETY: aligned to 4 and inside the mapping (`Ring::new`), which outlives the ring.
        let event = unsafe { word::load_u32(self.driver_event, Ordering::Relaxed) };
        match (event >> 16) as u16 {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => {
                let place = event as u16;
                let lap = if place & EVENT_WRAP != 0 {
                    0
                } else {
                    self.size
                };
                let at = (place & !EVENT_WRAP).wrapping_add(lap);
                self.distance(old, at) < self.distance(old, new)
            }
            _ => true,
        }
    }

    #[inline]
    fn arm(&self, next: u16) -> bool {
        if self.event_idx {
            self.set_device_event(Some(self.event_of(next)), EVENT_DESC);
        } else {
            self.set_device_event(None, EVENT_ENABLE);
        }
        fence(Ordering::SeqCst);
        let (slot, wrap) = self.slot(next);
        Self::is_available(self.high(slot, Ordering::Acquire), wrap)
    }

    #[inline]
    fn disarm(&self, _next: u16) {
        self.set_device_event(None, EVENT_DISABLE);
    }

    #[inline(always)]
    fn park_again(&self, _old: u16, _new: u16) {}

    #[inline(always)]
    fn fetch_heads<const WRITE: bool>(&self, _seen: &AtomicU16, at: u16, most: u16) {
        for line in self.lines(at, most) {
            if WRITE {
                prefetch::write(line);
            } else {
                prefetch::read(line);
            }
        }
    }

    /// The descriptors themselves, which were read already.
    #[inline(always)]
    fn fetch_used(&self, at: u16, count: u16) {
        self.lines(at, count).for_each(prefetch::write);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::vhost_user::features::{RING_PACKED, VERSION_1};
    use crate::vhost_user::guest_map::GuestRegion;
    use std::os::fd::AsFd;
    use windlass_shm::{HugePages, Mapping};
    use windlass_sys::eventfd;

    fn ring(size: u16) -> (Packed, Arc<GuestMap>, Mapping) {
        let (memory, file) = Mapping::create("packed", 8192, HugePages::No).unwrap();
        let region = GuestRegion {
            gpa: 0,
            len: 8192,
            offset: 0,
            fd: file.as_fd(),
        };
        let map = Arc::new(GuestMap::new(&[region], eventfd::create().unwrap()).unwrap());
        let setup = setup(map.clone(), size, Base::packed(0, true));
        (Packed::new(&setup).unwrap(), map, memory)
    }

    fn setup(map: Arc<GuestMap>, size: u16, base: Base) -> QueueSetup {
        QueueSetup {
            map,
            desc: 0,
            avail: 4096,
            used: 4100,
            size,
            base,
            features: VERSION_1 | RING_PACKED,
            kick: None,
            call: None,
            log: None,
        }
    }

    /// A chain takes as many places as are left and not one more, though all that follows is available.
    #[test]
    fn chains_end_where_places_do() {
        let (ring, map, memory) = ring(8);
        for slot in 0..5usize {
            let next = if slot < 4 { DESC_NEXT } else { 0 };
            let high = 10 | u64::from(DESC_AVAIL | next) << 48;
            memory.store_u64(slot * 16 + 8, high, Ordering::Relaxed);
        }
        let walk = |most| {
            let mut found = None;
            let seen = AtomicU16::new(0);
            let read = ring.heads::<true>(&seen, 0, 1, |head| {
                let memory = (&*map, &mut map.hit());
                found = Some(ring.chain::<false>(memory, 0, &head, most, |_| {}));
                true
            });
            assert_eq!(read, Some(()));
            found.unwrap()
        };
        assert_eq!((walk(5).result, walk(5).places), (Ok(()), 5));
        assert_eq!(walk(4).result, Err(Fault::Endless));
    }

    /// Makes chains of so many descriptors available from a place on, as a driver does; tells the place behind them.
    fn drive(ring: &Packed, start: u16, spans: &[u16]) -> u16 {
        let mut at = start;
        for (number, span) in spans.iter().enumerate() {
            for k in 1..=*span {
                let (slot, wrap) = ring.slot(at);
                let next = if k < *span { DESC_NEXT } else { 0 };
                let lap = if wrap { DESC_AVAIL } else { DESC_USED };
                let high = 1000 | (20 + number as u64) << 32 | u64::from(lap | next) << 48;
                ring.set_high(slot, high, Ordering::Relaxed);
                at = ring.step(at);
            }
        }
        at
    }

    /// What a driver finds given back from a place on, of chains that it made so: ids and lengths, and the place behind.
    fn reap(ring: &Packed, start: u16, spans: &[u16]) -> (Vec<(u16, u32)>, u16) {
        let (mut at, mut found) = (start, Vec::new());
        for span in spans {
            let (slot, wrap) = ring.slot(at);
            let high = ring.high(slot, Ordering::Acquire);
            if Packed::state(high, wrap) != State::Used {
                break;
            }
            found.push(((high >> 32) as u16, high as u32));
            at = ring.advance(at, *span);
        }
        (found, at)
    }

    /// A publication that is cut off behind any of its stores, or before the first, leaves a ring that goes on: the
    /// guest has seen all of it or nothing; what it had not seen is found untouched, or given back empty once; and the
    /// place agreed on is the one at which the guest goes on.
    #[test]
    fn a_publication_is_cut_off_anywhere() {
        let shapes: [&[u16]; 5] = [&[1], &[1; 8], &[3, 1, 2], &[1, 2, 1, 3, 1], &[1; 100]];
        for (spans, start) in shapes
            .into_iter()
            .flat_map(|s| (0..16).map(move |at| (s, at)))
        {
            let size = if spans.len() > 8 { 128 } else { 8 };
            let start = start * (size / 8);
            let ids: Vec<u16> = (20..).take(spans.len()).collect();
            for stores in 0..=spans.len() {
                let (ring, _map, _memory) = ring(size);
                let end = drive(&ring, start, spans);
                let mut held = Held::default();
                let mut at = start;
                for (id, span) in ids.iter().zip(spans) {
                    ring.put(&mut held, at, *id, 77);
                    at = ring.advance(at, *span);
                }
                for (slot, high) in held.stores().take(stores) {
                    ring.set_high(slot, high, Ordering::Release);
                }
                let what = format!("{spans:?} from {start}, {stores} stores");
                let (seen, _) = reap(&ring, start, spans);
                let whole = stores == spans.len();
                assert_eq!(seen.len(), if whole { spans.len() } else { 0 }, "{what}");

                let goes_on = ring.resume(ring.base(start), ring.base(end));
                let (seen, stands) = reap(&ring, start, spans);
                let len = if whole { 77 } else { 0 };
                let all: Vec<(u16, u32)> = ids.iter().map(|id| (*id, len)).collect();
                let expected = if stores == 0 { &[][..] } else { &all };
                assert_eq!(seen, expected, "{what}");
                assert_eq!(ring.place(goes_on), stands, "{what}");
                if stores > 0 {
                    // Killed once more, before it has said anything new.
                    assert_eq!(
                        ring.resume(ring.base(start), ring.base(end)),
                        goes_on,
                        "{what}"
                    );
                    // What the guest has seen it may have made available again.
                    let room = usize::from(size - ring.distance(start, end)).min(1);
                    drive(&ring, stands, &vec![1; room]);
                    drive(&ring, ring.advance(start, size), &[1]);
                    assert_eq!(
                        ring.resume(ring.base(start), ring.base(end)),
                        goes_on,
                        "{what}"
                    );
                }
            }
        }
    }

    /// Writes anything into the descriptors of a ring of 8, and gives what more of it is wanted.
    fn scribble(memory: &Mapping, seed: u64) -> impl FnMut() -> u64 + use<> {
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word
        };
        for slot in 0..8usize {
            memory.store_u64(slot * 16 + 8, next(), Ordering::Relaxed);
        }
        next
    }

    /// Whether nothing was written behind the descriptors of a ring of 8.
    fn is_empty_behind(memory: &Mapping) -> bool {
        let mut behind = vec![0; 4096 - 128];
        memory.read(128, &mut behind) && behind.iter().all(|byte| *byte == 0)
    }

    /// A record that fits no ring, and a guest that changes its descriptors, harm nobody: the ring stands at one of the
    /// two places, and nothing outside it is written.
    #[test]
    fn a_record_is_no_more_than_a_hint() {
        for seed in 0..2000u64 {
            let (ring, _map, memory) = ring(8);
            let mut next = scribble(&memory, seed);
            let places = [next(), next()].map(|n| Base::packed((n % 8) as u16, n & 64 != 0));
            let stands = ring.resume(places[0], places[1]);
            assert!(places.contains(&stands));
            assert!(is_empty_behind(&memory));
        }
    }

    /// RingProgress go round two laps of any size, and a distance is what was advanced.
    #[test]
    fn places_go_round_twice() {
        for size in [1u16, 2, 7, 256] {
            let (ring, ..) = ring(size);
            assert_eq!(ring.lap(), u32::from(size) * 2);
            let mut at = 0;
            for k in 0..5 * u32::from(size) {
                let lap = k / u32::from(size);
                let slot = (k % u32::from(size)) as u16;
                assert_eq!(ring.slot(at), (slot, lap % 2 == 0));
                assert_eq!(ring.place(ring.base(at)), at);
                for n in 0..=size {
                    assert_eq!(ring.distance(at, ring.advance(at, n)), n);
                }
                at = ring.advance(at, 1);
            }
        }
        let (mut ring, ..) = ring(8);
        // No such ring fits here, but its arithmetic does: two laps are all that 16 bits count.
        ring.size = 32_768;
        assert_eq!(ring.advance(40_000, 32_768), 7_232);
        assert_eq!(ring.distance(40_000, 7_232), 32_768);
        assert_eq!(ring.slot(65_535), (32_767, false));
    }
}
