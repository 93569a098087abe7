//! The arena, its classes and runs, and mappings, each under its lock.

use core::cell::UnsafeCell;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::*,
};

use windlass_memory as memory;
use windlass_memory::options::{ALL, Key};
use windlass_memory::{CACHE_OWNERS, What};
use windlass_slab::{
    CLASSES, Class, DEPOT_MAX, Depot, Emptied, Fault, Geometry, Mapping, Mappings, NoDepot, PLACES,
    Records, SPAN, SPAN_UNITS, Slab, Span, Spans, Taken, UNIT,
};

use crate::cache;
use crate::debug;
use crate::lock::Lock;
use crate::options;
use crate::pages;
use crate::report;
use crate::status;
use crate::sys;

/// The largest arena, and the smallest that is tried.
const ARENA_MAX: usize = 1 << 40;
const ARENA_MIN: usize = 64 << 20;
/// Spans that become usable at once.
const STEP: usize = 4;
/// A larger alignment than this one is no mapping's by itself.
const PAGE_MIN: usize = 4096;
/// Larger requests are refused before anything is added to them.
const REQUEST_MAX: usize = isize::MAX as usize - 2 * SPAN;

/// What `free` reads each time: in one cache line, written when the arena grows.
#[repr(align(64))]
pub struct Hot {
    /// First address of the arena.
    pub base: AtomicUsize,
    /// Usable units.
    pub units: AtomicUsize,
    /// Class of each of them; 0: no slab.
    pub map: AtomicPtr<AtomicU8>,
    slabs: AtomicPtr<Slab>,
    /// Of the first unit of each run: the pages that were asked for.
    asked: AtomicPtr<AtomicU16>,
}

/// See [`Hot`].
pub static HOT: Hot = Hot {
    base: AtomicUsize::new(0),
    units: AtomicUsize::new(0),
    map: AtomicPtr::new(core::ptr::null_mut()),
    slabs: AtomicPtr::new(core::ptr::null_mut()),
    asked: AtomicPtr::new(core::ptr::null_mut()),
};

/// Numbers of classes: malloc's, then object caches' of their own.
pub const NUMBERS: usize = PLACES - 1;
/// In the map: an object cache without a number. Its magazine is empty and full.
pub const SHARED: usize = NUMBERS;
/// Of the map: the slab's objects are samples, which no magazine holds.
pub const SAMPLED: usize = memory::SAMPLED;

/// Owner of a number that no class and no object cache has. No row is its own.
const NOBODY: u16 = u16::MAX;

/// A class of malloc's, or an object cache with a number.
pub type Numbered = Class<&'static Place>;

/// The depot of a class. Apart from the classes, which lie close together: most depots are never used, and have no memory then.
#[repr(align(64))]
pub struct Place(UnsafeCell<[usize; DEPOT_MAX]>);

// SAFETY: it is reached through its class, by the holder of the class's lock.
unsafe impl Sync for Place {}

impl Depot for &'static Place {
    fn places(&mut self) -> &mut [usize] {
        // SAFETY: each class has its own, and lends it as long as the class itself is lent.
        unsafe { &mut *self.0.get() }
    }
}

static DEPOTS: [Place; NUMBERS] = places();
static LOCKS: [Lock<Numbered>; NUMBERS] = classes(0, &DEPOTS);
/// The same, of sampled objects.
static SAMPLED_DEPOTS: [Place; NUMBERS] = places();
static SAMPLED_LOCKS: [Lock<Numbered>; NUMBERS] = classes(SAMPLED, &SAMPLED_DEPOTS);

const fn nobody(depot: &'static Place) -> Numbered {
    Class::with_depot(NOBODY, Geometry::of_class(1), depot)
}

const fn places<const N: usize>() -> [Place; N] {
    [const { Place(UnsafeCell::new([0; DEPOT_MAX])) }; N]
}

/// malloc's classes; the owner of a class's slabs is its number and `first`.
const fn classes<const N: usize>(first: usize, depots: &'static [Place; N]) -> [Lock<Numbered>; N] {
    let mut locks = [const { Lock::new(nobody(&DEPOTS[0])) }; N];
    let mut class = 0;
    while class < N {
        locks[class] = Lock::new(match class {
            1..CLASSES => {
                let owner = (first + class) as u16;
                Class::with_depot(owner, Geometry::of_class(class), &depots[class])
            }
            _ => nobody(&depots[class]),
        });
        class += 1;
    }
    locks
}
/// Bytes of an object of each number; 1: there is no such cache.
static SIZES: [AtomicU32; NUMBERS] = {
    let mut sizes = [const { AtomicU32::new(1) }; NUMBERS];
    let mut class = 1;
    while class < CLASSES {
        sizes[class] = AtomicU32::new(windlass_slab::size(class) as u32);
        class += 1;
    }
    sizes
};

/// The class of a map entry.
pub fn class_of_entry(entry: usize) -> usize {
    entry % SAMPLED
}

/// The class of a map entry.
pub fn class(entry: usize) -> &'static Lock<Numbered> {
    match entry {
        0..SAMPLED => &LOCKS[entry],
        _ => &SAMPLED_LOCKS[entry - SAMPLED],
    }
}

/// What a class's lock was taken for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Refill,
    Flush,
    Other,
}

/// Tells the reader about a class, whose lock is held.
fn show_class<D: Depot>(held: &Class<D>, moved: Moved, contended: bool) {
    if let Some(cache) = held.owner().checked_sub(CACHE_OWNERS) {
        return show_shared(held, cache, moved, contended);
    }
    let Some(row) = status::row::<memory::ClassRow>(&memory::CLASS, held.owner()) else {
        return;
    };
    let count = |word: &AtomicU64, more: bool| word.load(Relaxed) + u64::from(more);
    row.set(&memory::Class {
        size: held.geometry().size() as u64,
        units: held.geometry().units() as u64,
        slabs: held.slabs() as u64,
        objects: (held.slabs() * held.geometry().objects()) as u64,
        in_slabs: held.in_slabs() as u64,
        in_depot: held.in_depot() as u64,
        refills: count(&row.refills, moved == Moved::Refill),
        flushes: count(&row.flushes, moved == Moved::Flush),
        contended: count(&row.contended, contended),
    });
}

/// The same of an object cache without a number; `cache` is its row's.
fn show_shared<D: Depot>(held: &Class<D>, cache: usize, moved: Moved, contended: bool) {
    let Some(row) = status::row::<memory::CacheRow>(&memory::CACHE, cache) else {
        return;
    };
    let add = |word: &AtomicU64, more: bool| {
        word.store(word.load(Relaxed) + u64::from(more), Relaxed);
    };
    row.sequence.write(|| {
        let objects = held.slabs() * held.geometry().objects();
        row.slabs.store(held.slabs() as u64, Relaxed);
        row.objects.store(objects as u64, Relaxed);
        row.in_slabs.store(held.in_slabs() as u64, Relaxed);
        add(&row.refills, moved == Moved::Refill);
        add(&row.flushes, moved == Moved::Flush);
        add(&row.contended, contended);
    });
}

fn show_mappings(mappings: &Mappings<'static>) {
    if let Some(row) = status::row::<memory::MappedRow>(&memory::MAPPED, 0) {
        let (count, bytes) = mappings.totals();
        row.set(&memory::Mapped {
            count: count as u64,
            bytes: bytes as u64,
        });
    }
}

/// Tells a reader everything, in a file that is new. No lock is held.
pub fn show_all() {
    {
        let arena = ARENA.lock();
        arena.show_anchor();
        arena.show();
    }
    show_mappings(&MAPPINGS.lock());
    for entry in (1..NUMBERS).chain(SAMPLED + 1..SAMPLED + NUMBERS) {
        let held = class(entry).lock();
        // A sampled class that never had an object is not worth its page.
        let is_begun = entry < NUMBERS && held.owner() == entry;
        if is_begun || held.slabs() > 0 {
            show_class(&held, Moved::Other, false);
        }
    }
}
/// Held from [`Spans::excess`] to [`Spans::returned`], so that a fork falls into neither.
static RETURNS: Lock<()> = Lock::new(());
static ARENA: Lock<Arena> = Lock::new(Arena {
    spans: Spans::new(),
    records: 0,
    reserved: 0,
    usable: 0,
    slab_units: 0,
    returns: 0,
    returned: 0,
    is_refused: false,
});
static MAPPINGS: Lock<Mappings<'static>> = Lock::new(Mappings::new());

/// See [`memory::ANCHOR_SYMBOL`].
#[unsafe(no_mangle)]
pub static windlass_alloc_anchor: [AtomicU64; memory::Anchor::LEN / 8] =
    [const { AtomicU64::new(0) }; memory::Anchor::LEN / 8];

/// Records of units. Whoever uses it holds the lock of their class.
struct Table;

impl Records for Table {
    fn slab(&mut self, unit: u32) -> &mut Slab {
        let record = HOT.slabs.load(Relaxed).wrapping_add(unit as usize);
        // SAFETY: the engine asks for units of the arena, whose records became usable with them, under their class's lock.
        unsafe { &mut *record }
    }
}

struct Arena {
    spans: Spans<'static>,
    /// Address of the spans' records.
    records: usize,
    /// Spans.
    reserved: usize,
    usable: usize,
    /// Units of slabs.
    slab_units: usize,
    /// Ranges that went back to the kernel, and their bytes.
    returns: usize,
    returned: usize,
    is_refused: bool,
}

impl Arena {
    /// Makes more of it usable.
    fn grow(&mut self) -> bool {
        if self.reserved == 0 && !self.is_refused {
            self.is_refused = !self.reserve();
        }
        [STEP, 1].into_iter().any(|spans| self.extend(spans))
    }

    /// Finds addresses for the arena and its tables, as many as there are.
    fn reserve(&mut self) -> bool {
        // Of a limited address space half is left for large objects, stacks and whatever else is mapped.
        let half = sys::address_space().unwrap_or(usize::MAX) / 2;
        let mut len = ARENA_MAX.min(half / SPAN * SPAN);
        while len >= ARENA_MIN {
            if let Some(arena) = sys::reserve(len + SPAN) {
                if let Some(tables) = sys::reserve(Tables::of(len / SPAN).end()) {
                    let base = arena.next_multiple_of(SPAN);
                    let of = Tables::of(len / SPAN);
                    HOT.base.store(base, Relaxed);
                    HOT.map.store((tables + of.map) as *mut AtomicU8, Relaxed);
                    HOT.slabs.store((tables + of.slabs) as *mut Slab, Relaxed);
                    HOT.asked
                        .store((tables + of.asked) as *mut AtomicU16, Relaxed);
                    self.records = tables + of.spans;
                    self.reserved = len / SPAN;
                    self.show_anchor();
                    return true;
                }
                sys::unmap(arena, len + SPAN);
            }
            len = len / 2 / SPAN * SPAN;
        }
        false
    }

    fn extend(&mut self, more: usize) -> bool {
        let (old, new) = (self.usable, self.usable + more);
        if new > self.reserved {
            return false;
        }
        let base = HOT.base.load(Relaxed);
        let tables = [
            (self.records, size_of::<Span>()),
            (HOT.map.load(Relaxed) as usize, SPAN_UNITS),
            (
                HOT.slabs.load(Relaxed) as usize,
                SPAN_UNITS * size_of::<Slab>(),
            ),
            (
                HOT.asked.load(Relaxed) as usize,
                SPAN_UNITS * size_of::<AtomicU16>(),
            ),
        ];
        let is_usable = tables.into_iter().all(|(table, each)| {
            let from = (old * each).next_multiple_of(UNIT);
            let to = (new * each).next_multiple_of(UNIT);
            from == to || sys::make_usable(table + from, to - from)
        });
        if !is_usable || !sys::make_usable(base + old * SPAN, more * SPAN) {
            return false;
        }
        let records = self.records as *mut Span;
        // SAFETY: usable now, and reached through this slice alone, which replaces the one before.
        let records = unsafe { slice::from_raw_parts_mut(records, new) };
        self.spans.extend(base, records);
        // A span that is to have them is advised by itself. A wish.
        sys::advise_huge(base + old * SPAN, more * SPAN, false);
        self.usable = new;
        HOT.units.store(new * SPAN_UNITS, Release);
        status::event(What::Grown, new, 0);
        true
    }

    /// Tells the reader.
    fn show(&self) {
        let Some(row) = status::row::<memory::ArenaRow>(&memory::ARENA, 0) else {
            return;
        };
        let (used, kept, broken) = self.spans.totals();
        let huge = self.spans.huge();
        row.set(&memory::Arena {
            reserved_spans: self.reserved as u64,
            usable_spans: self.usable as u64,
            used_units: used as u64,
            kept_units: kept as u64,
            broken_spans: broken as u64,
            huge_spans: (huge.transparent + huge.reserved) as u64,
            returns: self.returns as u64,
            returned: self.returned as u64,
            process_cap: cache::process_cap() as u64,
            slab_units: self.slab_units as u64,
        });
    }

    /// Tells where everything is.
    fn show_anchor(&self) {
        let own: *const _ = &raw const windlass_alloc_anchor;
        // SAFETY: so many words, which are atomic there, too.
        let own = unsafe { &*own.cast::<memory::AnchorRow>() };
        [status::row(&memory::ANCHOR, 0), Some(own)]
            .into_iter()
            .flatten()
            .for_each(|row| row.set(&anchor(self.records)));
    }
}

/// Where tables lie in their reservation: apart, with addresses between them that nobody may touch.
struct Tables {
    spans: usize,
    map: usize,
    slabs: usize,
    asked: usize,
    last: usize,
}

impl Tables {
    fn of(spans: usize) -> Self {
        let after = |start: usize, bytes: usize| (start + bytes).next_multiple_of(UNIT) + UNIT;
        let map = after(0, spans * size_of::<Span>());
        let slabs = after(map, spans * SPAN_UNITS);
        let asked = after(slabs, spans * SPAN_UNITS * size_of::<Slab>());
        let last = after(asked, spans * SPAN_UNITS * size_of::<AtomicU16>());
        Self {
            spans: 0,
            map,
            slabs,
            asked,
            last,
        }
    }

    fn end(&self) -> usize {
        self.last
    }
}

/// Where everything is; `spans`: the spans' records.
fn anchor(spans: usize) -> memory::Anchor {
    let place = |at: usize| at as u64;
    memory::Anchor {
        arena: place(HOT.base.load(Relaxed)),
        units: place(HOT.units.as_ptr() as usize),
        map: place(HOT.map.load(Relaxed) as usize),
        slabs: place(HOT.slabs.load(Relaxed) as usize),
        slab_stride: place(size_of::<Slab>()),
        slab_class: place(Slab::OWNER_AT),
        slab_back: place(Slab::BACK_AT),
        slab_free: place(Slab::FREE_AT),
        slab_bits: place(Slab::BITS_AT),
        spans: place(spans),
        span_stride: place(size_of::<Span>()),
        span_used: place(Span::USED_AT),
        span_starts: place(Span::STARTS_AT),
        span_backed: place(Span::BACKED_AT),
        span_broken: place(Span::BROKEN_AT),
        classes: place(LOCKS[0].place() as usize),
        sampled_classes: place(SAMPLED_LOCKS[0].place() as usize),
        class_stride: place(size_of::<Lock<Numbered>>()),
        depot_len: place(Numbered::DEPOT_LEN_AT),
        depot: place(Numbered::DEPOT_AT),
        caches: place(cache::first_at()),
        cache_next: place(cache::NEXT_AT),
        cache_magazines: 0,
        magazine_stride: place(size_of::<cache::Magazine>()),
        magazines: place(cache::MAGAZINES),
        mappings: place(MAPPINGS.place() as usize + Mappings::PLACES_AT),
        mapping_stride: place(size_of::<Mapping>()),
        debug: place(debug::description()),
    }
}

/// The unit of an address; `None` outside the usable arena.
fn unit_of(address: usize) -> Option<usize> {
    let units = HOT.units.load(Acquire);
    let unit = address.wrapping_sub(HOT.base.load(Relaxed)) / UNIT;
    (unit < units).then_some(unit)
}

fn map_entry(unit: usize) -> &'static AtomicU8 {
    // SAFETY: the caller's unit is usable, and so is its entry.
    unsafe { &*HOT.map.load(Relaxed).wrapping_add(unit) }
}

/// The map's entry for an address of the arena: the class whose slab covers it, with [`SAMPLED`] if its objects are samples; 0: none.
pub fn entry_at(address: usize) -> usize {
    unit_of(address).map_or(0, |unit| usize::from(map_entry(unit).load(Relaxed)))
}

/// How many units before this one its slab starts. An object of the slab is out.
pub fn units_before(unit: usize) -> usize {
    let record = HOT.slabs.load(Relaxed).wrapping_add(unit);
    // SAFETY: a usable unit, which is part of a slab as long as the caller has an object of it: nobody writes where the slab starts.
    unsafe { (*record).units_before() }
}

/// Takes a run of units, for a slab or a large object: its first unit, and whether it reads as zeros.
fn take_units(units: usize, align: usize, is_slab: bool) -> Option<(u32, bool)> {
    let mut arena = ARENA.lock();
    loop {
        if let Some((unit, is_zero)) = arena.spans.take(units, align) {
            if arena.spans.is_new(unit) {
                let span = HOT.base.load(Relaxed) + unit as usize / SPAN_UNITS * SPAN;
                let in_use = arena.spans.totals().0 * UNIT;
                arena.spans.set_pages(unit, pages::ask(span, in_use));
            }
            arena.slab_units += if is_slab { units } else { 0 };
            arena.show();
            return Some((unit, is_zero));
        }
        if !arena.grow() {
            return None;
        }
    }
}

/// Bytes of an object of a class, or of a cache with a number.
pub fn object_size(number: usize) -> usize {
    SIZES[number].load(Relaxed) as usize
}

/// Gives a number to an object cache.
pub fn begin_class(number: usize, geometry: Geometry) {
    let sampled = SAMPLED + number;
    class(sampled).lock().renew(sampled as u16, geometry);
    let mut held = class(number).lock();
    held.renew(number as u16, geometry);
    SIZES[number].store(geometry.size() as u32, Relaxed);
    show_class(&held, Moved::Other, false);
}

/// Takes the number back from one that is gone.
pub fn end_class(number: usize) {
    for entry in [number, SAMPLED + number] {
        let mut held = class(entry).lock();
        held.renew(NOBODY, Geometry::of_class(1));
        if let Some(row) = status::row::<memory::ClassRow>(&memory::CLASS, entry) {
            row.set(&memory::Class::NOTHING);
        }
    }
}

/// Takes objects of a map entry's class, at least one unless there is no memory. Returns how many.
pub fn refill(entry: usize, out: &mut [usize]) -> usize {
    refill_from(class(entry), entry, out).count
}

/// The same of any lock; `entry` is what the map says of its slabs.
pub fn refill_from<D: Depot>(lock: &Lock<Class<D>>, entry: usize, out: &mut [usize]) -> Taken {
    let (mut held, contended) = lock.lock_contended();
    let taken = loop {
        let taken = held.refill(&mut Table, HOT.base.load(Relaxed), out);
        let units = held.geometry().units();
        if taken.count > 0 {
            break taken;
        }
        let Some((first, _)) = take_units(units, 1, true) else {
            break taken;
        };
        held.add(&mut Table, first);
        for unit in first as usize..first as usize + units {
            map_entry(unit).store(entry as u8, Relaxed);
        }
    };
    show_class(&held, Moved::Refill, contended);
    taken
}

/// Takes back objects of a map entry's class.
pub fn flush(entry: usize, objects: &[usize]) {
    let flush = |held: &mut Numbered| held.flush(&mut Table, HOT.base.load(Relaxed), objects);
    if let Err(fault) = put_back(class(entry), Moved::Flush, flush) {
        report::fault("free", fault);
    }
}

/// Takes back objects of any lock, past its depot.
pub fn release_to<D: Depot>(lock: &Lock<Class<D>>, objects: &[usize]) -> Result<(), Fault> {
    put_back(lock, Moved::Flush, |held| {
        held.release(&mut Table, HOT.base.load(Relaxed), objects)
    })
}

/// Takes back objects that could not be constructed.
pub fn give_up<D: Depot>(lock: &Lock<Class<D>>, objects: &[usize]) -> Result<(), Fault> {
    put_back(lock, Moved::Other, |held| {
        held.give_up(&mut Table, HOT.base.load(Relaxed), objects)
    })
}

/// Moves what the depots hold to the slabs.
pub fn drain() {
    for lock in &LOCKS[1..] {
        if let Err(fault) = drain_one(lock) {
            report::fault("free", fault);
        }
    }
}

/// The same of one class.
pub fn drain_one(lock: &Lock<Numbered>) -> Result<(), Fault> {
    let mut is_left = true;
    while is_left {
        put_back(lock, Moved::Other, |held| {
            let drained = held.drain(&mut Table, HOT.base.load(Relaxed));
            is_left = drained.is_some();
            drained.unwrap_or(Ok(Emptied::default()))
        })?;
    }
    Ok(())
}

/// Returns the slab that a class without a depot has kept though it is empty.
pub fn release_spare(lock: &Lock<Class<NoDepot>>) {
    // Nothing is freed, so nothing is wrong.
    let _ = put_back(lock, Moved::Other, |held| Ok(held.take_spare(&mut Table)));
}

/// Returns the units of slabs that became empty.
fn put_back<D: Depot>(
    lock: &Lock<Class<D>>,
    moved: Moved,
    put: impl FnOnce(&mut Class<D>) -> Result<Emptied, Fault>,
) -> Result<(), Fault> {
    let (mut held, contended) = lock.lock_contended();
    let emptied = put(&mut held)?;
    let is_over = settle(held.geometry().units(), emptied);
    show_class(&held, moved, contended);
    drop(held);
    if is_over {
        give_back(bound);
    }
    Ok(())
}

/// Calls `destruct` for each constructed object of the slabs that wait for it, without a lock, and returns their units.
pub fn destruct<D: Depot>(lock: &Lock<Class<D>>, destruct: impl Fn(usize)) {
    let mut held = lock.lock();
    let waiting = held.take_waiting();
    let geometry = *held.geometry();
    drop(held);
    if waiting == Emptied::default() {
        return;
    }
    // These slabs are nobody else's: they are on no list, and no object of theirs is out.
    let mut rest = waiting;
    while let Some(unit) = rest.take(&mut Table) {
        while let Some(index) = Table.slab(unit).take_constructed() {
            destruct(HOT.base.load(Relaxed) + unit as usize * UNIT + index * geometry.size());
        }
    }
    let held = lock.lock();
    let is_over = settle(geometry.units(), waiting);
    drop(held);
    if is_over {
        give_back(bound);
    }
}

/// Returns the units of empty slabs, whose class's lock is held. Whether too much is kept now.
fn settle(units: usize, mut emptied: Emptied) -> bool {
    let mut is_over = false;
    while let Some(unit) = emptied.take(&mut Table) {
        let unit = unit as usize;
        (unit..unit + units).for_each(|unit| map_entry(unit).store(0, Relaxed));
        let mut arena = ARENA.lock();
        // It was taken by `refill`, so there is a run.
        let _ = arena.spans.release(HOT.base.load(Relaxed) + unit * UNIT);
        arena.slab_units -= units;
        arena.show();
        is_over = is_too_much(&arena.spans);
    }
    is_over
}

/// How many units may be kept: `keep=`.
fn bound(spans: &Spans<'_>) -> usize {
    match options::get(Key::Keep) {
        ALL => usize::MAX,
        percent => spans.bound(percent),
    }
}

fn is_too_much(spans: &Spans<'_>) -> bool {
    spans.totals().1 > bound(spans)
}

/// Gives memory back to the kernel until no more than `bound` says is kept. Whether it gave any.
pub fn give_back(bound: impl Fn(&Spans<'static>) -> usize) {
    let _returning = RETURNS.lock();
    loop {
        let mut arena = ARENA.lock();
        let bound = bound(&arena.spans);
        let Some(range) = arena.spans.excess(bound) else {
            return;
        };
        drop(arena);
        let (start, len) = (range.start, range.len);
        pages::give_back(range);
        let mut arena = ARENA.lock();
        arena.spans.returned(range);
        arena.returns += 1;
        arena.returned += len;
        arena.show();
        drop(arena);
        status::event(What::Returned, start, len);
    }
}

/// Memory for a large object, or a small one for which there is no class: its address, and whether it reads as zeros.
pub fn take_large(bytes: usize, align: usize) -> Option<(usize, bool)> {
    if bytes > REQUEST_MAX || align > REQUEST_MAX {
        return None;
    }
    let units = bytes.div_ceil(UNIT).max(1);
    if units <= SPAN_UNITS
        && align <= SPAN
        && let Some((unit, is_zero)) = take_units(units, (align / UNIT).max(1), false)
    {
        note_asked(unit as usize, bytes);
        return Some((HOT.base.load(Relaxed) + unit as usize * UNIT, is_zero));
    }
    Some((take_mapping(units * UNIT, align)?, true))
}

fn take_mapping(len: usize, align: usize) -> Option<usize> {
    let is_huge = pages::is_for_mapping(len);
    let align = if is_huge { align.max(SPAN) } else { align };
    let start = if align <= PAGE_MIN {
        sys::map_memory(len)?
    } else {
        let all = len.checked_add(align)?;
        let first = sys::map_memory(all)?;
        let start = first.next_multiple_of(align);
        if start > first {
            sys::unmap(first, start - first);
        }
        if first + all > start + len {
            sys::unmap(start + len, first + all - start - len);
        }
        start
    };
    if is_huge {
        sys::advise_huge(start, len, true);
    }
    let mut mappings = MAPPINGS.lock();
    if !make_room(&mut mappings) {
        drop(mappings);
        sys::unmap(start, len);
        return None;
    }
    mappings.insert(Mapping { start, len });
    show_mappings(&mappings);
    Some(start)
}

/// Makes the table larger if it is too full for one more.
pub fn make_room(mappings: &mut Mappings<'static>) -> bool {
    let Some(places) = mappings.needs() else {
        return true;
    };
    let Some(start) = sys::map_memory(places * size_of::<Mapping>()) else {
        return false;
    };
    // SAFETY: new memory, zeros, for this alone.
    let table = unsafe { slice::from_raw_parts_mut(start as *mut Mapping, places) };
    let old = mappings.move_to(table);
    if !old.is_empty() {
        sys::unmap(old.as_ptr() as usize, size_of_val(old));
    }
    true
}

/// Takes back a large object.
pub fn release_large(address: usize) {
    let result = if unit_of(address).is_some() {
        let mut arena = ARENA.lock();
        let released = arena.spans.release(address);
        let is_over = is_too_much(&arena.spans);
        arena.show();
        drop(arena);
        if is_over {
            give_back(bound);
        }
        released.map(drop)
    } else {
        let mut mappings = MAPPINGS.lock();
        let removed = mappings.remove(address);
        show_mappings(&mappings);
        drop(mappings);
        removed
            .map(|len| sys::unmap(address, len))
            .ok_or(Fault::Unknown(address))
    };
    if matches!(result, Err(Fault::Unknown(_))) && options::get(Key::UnknownFree) == 1 {
        return;
    }
    if let Err(fault) = result {
        report::fault("free", fault);
    }
}

/// The pages of a run that were asked for: malloc_usable_size(3) of 33 KiB is not 64 KiB, of which half was never touched.
fn asked(unit: usize) -> &'static AtomicU16 {
    // SAFETY: the caller's unit is usable, and so is its entry.
    unsafe { &*HOT.asked.load(Relaxed).wrapping_add(unit) }
}

/// Notes how much of a run was asked for: at most a span.
fn note_asked(unit: usize, bytes: usize) {
    asked(unit).store(bytes.div_ceil(PAGE_MIN).max(1) as u16, Relaxed);
}

/// Bytes of a large object, in whole pages.
pub fn large_len(call: &str, address: usize) -> usize {
    let result = match unit_of(address) {
        Some(unit) => {
            let is_run = ARENA.lock().spans.len(address);
            is_run.map(|_| usize::from(asked(unit).load(Relaxed)) * PAGE_MIN)
        }
        None => MAPPINGS.lock().find(address).ok_or(Fault::Unknown(address)),
    };
    result.unwrap_or_else(|fault| {
        report::fault(call, fault);
        0
    })
}

/// Makes a large object, which stays one, longer or shorter without a copy: its address. `None`: it has to be copied.
pub fn resize_large(address: usize, bytes: usize) -> Option<usize> {
    let wanted = bytes.div_ceil(UNIT);
    if let Some(unit) = unit_of(address) {
        if wanted > SPAN_UNITS {
            return None;
        }
        let mut arena = ARENA.lock();
        let resized = arena.spans.resize(address, wanted);
        if matches!(resized, Ok(true)) {
            note_asked(unit, bytes);
        }
        let is_over = is_too_much(&arena.spans);
        arena.show();
        drop(arena);
        if is_over {
            give_back(bound);
        }
        return matches!(resized, Ok(true)).then_some(address);
    }
    // A smaller one has room in the arena.
    if wanted <= SPAN_UNITS || bytes > REQUEST_MAX {
        return None;
    }
    // The lock is held: another thread may get the old address as soon as the mapping has left it.
    let mut mappings = MAPPINGS.lock();
    let old = mappings.find(address)?;
    let start = sys::remap(address, old, wanted * UNIT)?;
    mappings.remove(address);
    let len = wanted * UNIT;
    mappings.insert(Mapping { start, len });
    show_mappings(&mappings);
    Some(start)
}

/// What is where, in bytes.
#[derive(Default)]
pub struct Totals {
    /// Of slabs: what they gave out, to programs, magazines and depots.
    pub small: usize,
    /// Of slabs: all.
    pub slabs: usize,
    /// In units that are in use.
    pub used: usize,
    /// In units that are kept.
    pub kept: usize,
    /// Number of mappings.
    pub mappings: usize,
    /// In mappings.
    pub mapped: usize,
}

/// See [`Totals`].
pub fn totals() -> Totals {
    let mut totals = Totals::default();
    for lock in LOCKS[1..].iter().chain(&SAMPLED_LOCKS[1..]) {
        let held = lock.lock();
        totals.small += held.out() * held.geometry().size();
        totals.slabs += held.slabs() * held.geometry().units() * UNIT;
    }
    let (used, kept, _) = ARENA.lock().spans.totals();
    (totals.used, totals.kept) = (used * UNIT, kept * UNIT);
    (totals.mappings, totals.mapped) = MAPPINGS.lock().totals();
    totals
}

/// Takes every lock, before a fork.
pub fn hold_all() {
    for lock in LOCKS.iter().chain(&SAMPLED_LOCKS) {
        lock.hold();
    }
    RETURNS.hold();
    ARENA.hold();
    MAPPINGS.hold();
}

/// Ends [`hold_all`], in parent and child.
pub fn release_all() {
    MAPPINGS.release();
    ARENA.release();
    RETURNS.release();
    LOCKS.iter().chain(&SAMPLED_LOCKS).for_each(Lock::release);
}
