//! [`Slab`]: a mapped slab, its channels and its ring memory; [`Link`]: one end of one channel in it.
//!
//! # Ownership and lifetime
//! Whoever maps the memory keeps it mapped for as long as the [`Slab`] lives; links borrow it. A channel is allocated by
//! [`Side::Low`] and freed by whichever side leaves last, or by the survivor of a killed process. Pages of rings belong to the
//! sending side: each side has a half of its own, with a bitmap that only that side changes.

#[cfg(not(loom))]
use std::ptr::NonNull;

use crate::inc::Incoming;
use crate::layout::*;
use crate::out::Outgoing;
#[cfg(not(loom))]
use crate::reason::Reason;
use crate::ring::{Place, Ring};
use crate::shim::{AcqRel, Acquire, AtomicU64, Relaxed, Release};
use crate::wait::StatusPage;

/// A slab mapped into this process: the channels between two processes.
#[derive(Debug)]
pub struct Slab {
    #[cfg(not(loom))]
    base: NonNull<u8>,
    #[cfg(loom)]
    parts: crate::model::Parts,
    /// The status pages of the processes on both sides, as far as this process needs them.
    status: [Option<StatusPage>; 2],
    /// Sends that still go by the kernel after a fall, for each receiving process. Not shared.
    cool: [Line<std::sync::atomic::AtomicU32>; 2],
    /// Set by the first push that found the daemon's watch asleep. Not shared.
    alarm: std::sync::atomic::AtomicBool,
}

// SAFETY: the memory behind `base` is shared anyway, and is only accessed through atomics and the copy routine.
#[cfg(not(loom))]
unsafe impl Send for Slab {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Slab {}

impl Slab {
    /// Makes zeroed memory of [`SLAB_BYTES`] bytes a slab with a number. The daemon does this once, before it shares it.
    ///
    /// # Safety
    /// The memory is mapped read-write, page-aligned, zeroed and not yet shared.
    #[cfg(not(loom))]
    pub unsafe fn format(base: NonNull<u8>, id: u32) {
        let header = base.cast::<Header>();
        // SAFETY: mapped and page-aligned (caller); all fields are atomics, for which zeros are valid.
        let header = unsafe { header.as_ref() };
        header.id.store(id, Relaxed);
        header.magic.store(MAGIC, Release);
    }

    /// Takes a mapping of a slab. `status` are the status pages of the processes on both sides: the peer's is needed to see whether
    /// its epoll instances sleep (without it every slot counts as asleep); the own one is not used.
    ///
    /// # Safety
    /// `len` bytes at `base` are mapped read-write and shared, page-aligned, of a file that cannot shrink, and stay
    /// mapped for as long as the value lives.
    ///
    /// # Errors
    /// The memory is no slab of this version.
    #[cfg(not(loom))]
    pub unsafe fn attach(
        base: NonNull<u8>,
        len: usize,
        status: [Option<StatusPage>; 2],
    ) -> Result<Slab, Reason> {
        let slab = Slab {
            base,
            status,
            cool: Default::default(),
            alarm: Default::default(),
        };
        let is_slab = len == SLAB_BYTES && slab.header().magic.load(Acquire) == MAGIC;
        is_slab.then_some(slab).ok_or(Reason::Broken)
    }

    #[cfg(loom)]
    pub(crate) fn model(parts: crate::model::Parts, status: [Option<StatusPage>; 2]) -> Slab {
        Slab {
            parts,
            status,
            cool: Default::default(),
            alarm: Default::default(),
        }
    }

    /// The slab's number, as the daemon knows it. A hostile peer may have changed it.
    #[cfg(not(loom))]
    pub fn id(&self) -> u32 {
        self.header().id.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn cool(&self, receiver: Side) -> &std::sync::atomic::AtomicU32 {
        &receiver.of(&self.cool).0
    }

    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: mapped and page-aligned (`attach`), and the slab is longer than its header.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    #[cfg(loom)]
    pub(crate) fn header(&self) -> &Header {
        &self.parts.header
    }

    /// The channel at this distance from the slab's beginning.
    #[cfg(not(loom))]
    #[inline(always)]
    fn chan_at(&self, at: u32) -> &Chan {
        // SAFETY: the masked distance keeps the channel inside the slab.
        let chan = unsafe { self.base.byte_add((at & PLACE_MASK) as usize) }.cast::<Chan>();
        // SAFETY: mapped (`attach`), and a multiple of 128 from a page boundary; all fields are atomics.
        unsafe { chan.as_ref() }
    }

    #[cfg(loom)]
    fn chan_at(&self, _: u32) -> &Chan {
        &self.parts.chan
    }

    /// The channel with this number.
    pub(crate) fn chan(&self, index: u16) -> &Chan {
        self.chan_at(chan_place(index))
    }

    #[inline(always)]
    pub(crate) fn news(&self, receiver: Side) -> &News {
        receiver.of(&self.header().news)
    }

    #[inline(always)]
    pub(crate) fn status(&self, receiver: Side) -> Option<&StatusPage> {
        receiver.of(&self.status).as_ref()
    }

    /// The ring that `sender` has at the stored place; `None`: it has none.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn ring(&self, sender: Side, word: u64) -> Option<Ring<'_>> {
        let pages = self.base.as_ptr().wrapping_add(PAGES_AT);
        // SAFETY: mapped (`attach`): these pages are what a slab has behind `PAGES_AT`.
        (word != 0).then(|| unsafe { Ring::new(pages, sender, word) })
    }

    #[cfg(loom)]
    pub(crate) fn ring(&self, sender: Side, word: u64) -> Option<Ring<'_>> {
        let place = Place::decode(word)?;
        let at = place.offset(sender);
        Some(Ring::over(&self.parts.bytes[at..at + place.bytes()]))
    }

    /// Takes `1 << order` pages of a side; `None` where nothing is free.
    pub(crate) fn take_pages(&self, side: Side, order: u32) -> Option<Place> {
        let pages = side.of(&self.header().pages);
        let page = take_run(pages, order)? as u32;
        Some(Place { page, order })
    }

    /// Gives the pages of a ring back, to the side and to the system.
    pub(crate) fn give_pages(&self, side: Side, place: Place) {
        #[cfg(not(loom))]
        {
            let at = PAGES_AT + place.offset(side);
            let at = self.base.as_ptr().wrapping_add(at);
            let advice = rustix::mm::Advice::LinuxRemove;
            // SAFETY: a ring that is given back is empty, and lies in the side's pages (`decode`).
            let _ = unsafe { rustix::mm::madvise(at.cast(), place.bytes(), advice) };
        }
        let pages = side.of(&self.header().pages);
        if let Some(word) = pages.get(place.page as usize / 64) {
            word.fetch_and(!(run_of(place.order) << (place.page % 64)), Release);
        }
    }

    /// Allocates a channel ([`Side::Low`] only). Its words are zeroed; both directions are on the kernel. `None` at the limit of
    /// [`CHANS`].
    #[cfg(not(loom))]
    pub fn allocate(&self) -> Option<u16> {
        let chan = take_run(&self.header().used.0, 0)? as u16;
        self.chan(chan).clear();
        Some(chan)
    }

    /// Frees a channel that neither end uses any more: both have left, or the other process has ended. The rings' pages go back
    /// too.
    pub fn free(&self, chan: u16) {
        for side in [Side::Low, Side::High] {
            let a = &side.of(&self.chan(chan).d).a;
            if let Some(place) = Place::decode(a.ring.swap(0, AcqRel)) {
                self.give_pages(side, place);
            }
        }
        let bit = 1 << (chan % 64);
        if let Some(word) = self.header().used.get(chan as usize / 64) {
            word.fetch_and(!bit, Release);
        }
    }

    /// The channels in use, for listings. A hostile peer may lie; the number is bounded by [`CHANS`].
    pub fn channels(&self) -> impl Iterator<Item = u16> + '_ {
        (0..CHANS as u16).filter(|chan| {
            let word = self.header().used.get(*chan as usize / 64);
            word.is_some_and(|w| w.load(Relaxed) >> (chan % 64) & 1 == 1)
        })
    }

    /// One end of a channel; `None` if the index is out of range.
    pub fn link(&self, chan: u16, side: Side) -> Option<Link<'_>> {
        let end = chan_place(chan) | side as u32;
        ((chan as usize) < CHANS).then_some(Link::of_word(self, end))
    }

    /// Whether a ring of the slab was pushed to since the last call: the daemon's watch asks, every 100 ms while any slab says yes.
    pub fn take_watch(&self) -> bool {
        self.header().watch.swap(0, AcqRel) != 0
    }

    /// Flags the slab for the watch. The daemon may be asleep then: the process wakes it ([`Slab::take_alarm`]).
    #[inline(always)]
    pub(crate) fn flag(&self) {
        let watch = &self.header().watch;
        if watch.load(Relaxed) == 0 {
            watch.store(1, Relaxed);
            self.alarm.store(true, Relaxed);
        }
    }

    /// Whether this process has flagged the slab since the last call, and so has to wake the daemon's watch (at most once a
    /// second). A look without a store if not.
    #[inline(always)]
    pub fn take_alarm(&self) -> bool {
        self.alarm.load(Relaxed) && self.alarm.swap(false, Relaxed)
    }
}

/// A run of `1 << order` bits, `order <= 6`.
const fn run_of(order: u32) -> u64 {
    u64::MAX >> (64 - (1u32 << order))
}

/// Takes `1 << order` bits of a bitmap that are free, and gives the first one.
fn take_run(words: &[AtomicU64], order: u32) -> Option<usize> {
    for (index, word) in words.iter().enumerate() {
        let mut used = word.load(Relaxed);
        while let Some(bit) = free_run(used, order) {
            match word.compare_exchange(used, used | run_of(order) << bit, Acquire, Relaxed) {
                Ok(_) => return Some(index * 64 + bit as usize),
                Err(now) => used = now,
            }
        }
    }
    None
}

/// Where an aligned run of free bits begins.
fn free_run(used: u64, order: u32) -> Option<u32> {
    let step = 1u32 << order;
    (0..64)
        .step_by(step as usize)
        .find(|bit| used & run_of(order) << bit == 0)
}

/// How far a channel is from the slab's beginning, in bytes.
const fn chan_place(index: u16) -> u32 {
    (HEADER_BYTES + (index as usize & (CHANS - 1)) * CHAN_BYTES) as u32
}

/// The bits of such a distance: whatever they are, they name memory of the slab.
const PLACE_MASK: u32 = if cfg!(loom) { u32::MAX - 1 } else { 0x1f_ff80 };

#[cfg(not(loom))]
const _: () = assert!(
    chan_place(CHANS as u16 - 1) & !PLACE_MASK == 0
        && PLACE_MASK as usize + CHAN_BYTES <= SLAB_BYTES
        && CHAN_BYTES.is_multiple_of(128)
);

/// One end of one channel. Copying it costs nothing; it is valid while the slab is mapped and the channel allocated.
///
/// Two words, so that it and what is made of it are handed over in registers. In memory a larger one would be stored by
/// fields and loaded as a whole: such a load waits until every store before it has reached the cache, also those of the
/// call before to lines that the other end's core holds.
#[derive(Clone, Copy, Debug)]
pub struct Link<'s> {
    slab: &'s Slab,
    /// Where the channel is | side.
    end: u32,
}

impl<'s> Link<'s> {
    /// The end that [`Link::word`] told of.
    #[inline(always)]
    pub fn of_word(slab: &'s Slab, end: u32) -> Link<'s> {
        Link { slab, end }
    }

    /// Which end it is, in a slab, in one word.
    pub fn word(self) -> u32 {
        self.end
    }

    /// The slab.
    #[inline(always)]
    pub fn slab(self) -> &'s Slab {
        self.slab
    }

    /// The channel's index in the slab.
    #[inline(always)]
    pub fn index(self) -> u16 {
        ((self.end & PLACE_MASK) as usize)
            .wrapping_sub(HEADER_BYTES)
            .wrapping_div(CHAN_BYTES) as u16
    }

    /// Which end this is.
    #[inline(always)]
    pub fn side(self) -> Side {
        Side::from_u8(self.end as u8)
    }

    /// The other end of the same channel.
    #[inline(always)]
    pub fn other(self) -> Link<'s> {
        Link::of_word(self.slab, self.end ^ 1)
    }

    /// The direction in which this end sends.
    #[inline(always)]
    pub fn outgoing(self) -> Outgoing<'s> {
        Outgoing::new(self)
    }

    /// The direction in which this end receives.
    #[inline(always)]
    pub fn incoming(self) -> Incoming<'s> {
        Incoming::new(self)
    }

    #[inline(always)]
    pub(crate) fn shared(self) -> &'s Chan {
        self.slab.chan_at(self.end)
    }

    /// The direction that `side` sends in.
    #[inline(always)]
    pub(crate) fn dir_from(self, side: Side) -> &'s Dir {
        side.of(&self.shared().d)
    }
}

#[cfg(not(loom))]
impl Chan {
    /// Zeroes every word that a former connection may have left, `join` once more after all others: neither end is here so far.
    fn clear(&self) {
        let first = std::ptr::from_ref(self).cast::<AtomicU64>();
        for index in 0..CHAN_BYTES / size_of::<AtomicU64>() {
            // SAFETY: a channel is aligned, and as many words as that: all of it is atomics, for which zeros are valid.
            unsafe { &*first.wrapping_add(index) }.store(0, Relaxed);
        }
        self.join.iter().for_each(|w| w.store(0, Release));
    }
}
