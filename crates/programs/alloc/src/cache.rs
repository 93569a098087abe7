//! A thread's magazines.

use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use core::slice;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use windlass_memory::options::Key;
use windlass_memory::{THREAD, Thread, ThreadRow, ThreadState};
use windlass_slab::{CLASSES, Fault, Limits, MAGAZINE_MAX, UNIT, batch_of, limit_max};

use crate::arch;
use crate::heap::{self, HOT, NUMBERS, object_size};
use crate::lock::Lock;
use crate::options;
use crate::process;
use crate::report;
use crate::sample::{Due, Pace};
use crate::status::{self, File};
use crate::sys;

/// Bytes that one thread's magazines may hold.
pub const THREAD_CAP: usize = 1 << 20;
/// Bytes that all of them may hold, whatever the heap.
const PROCESS_CAP_MIN: usize = 32 << 20;
/// One part of so many of the heap that they may hold.
const PROCESS_SHARE: usize = 8;
/// Magazines of a cache, by entry of the map: those of classes, and some that never hold anything for [`heap::SAMPLED`] ones.
pub const MAGAZINES: usize = 2 * heap::SAMPLED;
/// Bytes before the next cache's address, for a reader of foreign memory.
pub const NEXT_AT: usize = offset_of!(Cache, next);

const LIVE: u8 = 0;
/// Its thread ended; it is empty.
const FREE: u8 = 1;
/// Its thread was not taken along by a fork; it is as full as it was.
const ORPHAN: u8 = 2;

/// Addresses of free objects, in slots behind a zero that nobody overwrites. Owned by the thread; others may read `top`.
#[repr(C)]
pub struct Magazine {
    /// The slot that was filled last; the zero if none is.
    pub top: AtomicPtr<AtomicUsize>,
    /// The last slot that may be filled.
    pub limit: AtomicPtr<AtomicUsize>,
}

impl Magazine {
    const fn nothing() -> Self {
        let zero = ZERO.as_ptr().cast();
        Self {
            top: AtomicPtr::new(zero),
            limit: AtomicPtr::new(zero),
        }
    }
}

static ZERO: AtomicUsize = AtomicUsize::new(0);

/// A thread's cache. Its slots lie behind it.
#[repr(C)]
pub struct Cache {
    magazines: [Magazine; MAGAZINES],
    /// Bytes until the next sample; the owner's. Never negative between two calls.
    left: Cell<isize>,
    /// The owner's.
    pace: Pace,
    /// The owner's.
    limits: UnsafeCell<Limits>,
    shown: Shown,
    /// Another cache; under the lock of [`ALL`].
    next: AtomicPtr<Cache>,
    /// Under that lock.
    state: AtomicU8,
}

/// What the status file says of a cache. The owner's; [`abandon`] reads it, and changes the bytes of the number that nobody uses any more.
struct Shown {
    /// The file's; 0: nothing is said.
    epoch: AtomicU64,
    row: AtomicUsize,
    limit: AtomicU64,
    /// Bytes.
    by_class: [AtomicU32; NUMBERS],
}

impl Shown {
    const fn nothing() -> Self {
        Self {
            epoch: AtomicU64::new(0),
            row: AtomicUsize::new(0),
            limit: AtomicU64::new(0),
            by_class: [const { AtomicU32::new(0) }; NUMBERS],
        }
    }

    /// Nothing is said yet in this file.
    fn begin(&self, file: &File) {
        self.by_class
            .iter()
            .for_each(|bytes| bytes.store(0, Relaxed));
        self.limit.store(0, Relaxed);
        self.row.store(file.take_thread(), Relaxed);
        self.epoch.store(file.epoch(), Relaxed);
    }

    /// The row in a file, if this is said there.
    fn row(&self, file: &File) -> Option<(usize, &'static ThreadRow)> {
        if self.epoch.load(Relaxed) != file.epoch() {
            return None;
        }
        let number = self.row.load(Relaxed);
        Some((number, file.row(&THREAD, number)?))
    }
}

// SAFETY: `left`, `pace` and `limits` are touched by the owning thread alone; the rest is atomic.
unsafe impl Sync for Cache {}

impl Cache {
    const fn nothing() -> Self {
        Self {
            magazines: [const { Magazine::nothing() }; MAGAZINES],
            left: Cell::new(0),
            pace: Pace::new(),
            limits: UnsafeCell::new(Limits::new(THREAD_CAP)),
            shown: Shown::nothing(),
            next: AtomicPtr::new(ptr::null_mut()),
            state: AtomicU8::new(LIVE),
        }
    }
}

/// What a thread has before its first call: magazines that are empty and full. It is never written.
pub static EMPTY: Cache = Cache::nothing();
/// The same, of a thread whose cache is gone.
pub static DEAD: Cache = Cache::nothing();

/// Every cache that was ever made.
struct All {
    first: AtomicPtr<Cache>,
    /// How many have no thread.
    spare: usize,
}

static ALL: Lock<All> = Lock::new(All {
    first: AtomicPtr::new(ptr::null_mut()),
    spare: 0,
});
/// The sum of all limits times sizes.
static CACHED: AtomicUsize = AtomicUsize::new(0);

/// Slots before those of each class, and of each object cache with a number.
const OFFSETS: [usize; NUMBERS + 1] = {
    let mut offsets = [0; NUMBERS + 1];
    let mut class = 1;
    while class < NUMBERS {
        let slots = if class < CLASSES {
            limit_max(class)
        } else {
            MAGAZINE_MAX
        };
        offsets[class + 1] = offsets[class] + 1 + slots;
        class += 1;
    }
    offsets
};

/// Bytes of a cache with its slots.
const CACHE_LEN: usize =
    (size_of::<Cache>() + OFFSETS[NUMBERS] * size_of::<usize>()).next_multiple_of(UNIT);

/// The slot that a magazine's pointer points to.
#[inline(always)]
pub fn slot(at: *mut AtomicUsize) -> &'static AtomicUsize {
    // SAFETY: `top` and `limit` point into the slots of a cache, or at `ZERO`; neither is ever unmapped.
    unsafe { &*at }
}

/// The thread's cache, whatever it is.
#[inline(always)]
pub fn current() -> &'static Cache {
    // SAFETY: `EMPTY`, `DEAD`, or a cache, which is never unmapped.
    unsafe { &*arch::current() }
}

impl Cache {
    /// A magazine; `offset` is its class times 16.
    #[inline(always)]
    pub fn magazine(&self, offset: usize) -> &Magazine {
        let first: *const Magazine = self.magazines.as_ptr();
        // SAFETY: there are more magazines than classes.
        unsafe { &*first.wrapping_byte_add(offset) }
    }

    /// Counts an allocation down. Whether the countdown is over: the slow path takes that allocation, and sees it by the sign.
    #[inline(always)]
    pub fn count(&self, bytes: usize) -> bool {
        let left = self.left.get().wrapping_sub(bytes as isize);
        self.left.set(left);
        left < 0
    }

    /// Whether an allocation is a sample, and what led to it. It is counted here unless [`Cache::count`] ended with it.
    pub fn due(&self, bytes: usize) -> Option<Due<'_>> {
        let left = self.left.get();
        let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
        if left >= bytes {
            self.left.set(left - bytes);
            return None;
        }
        let due = self.pace.step();
        self.left.set(self.pace.interval());
        Some(due)
    }

    /// The zero before the slots of a class.
    fn bottom(&self, class: usize) -> *mut AtomicUsize {
        let slots = ptr::from_ref(self).wrapping_add(1).cast::<AtomicUsize>();
        slots.wrapping_add(OFFSETS[class]).cast_mut()
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "the owner's, for the length of one statement"
    )]
    fn limits(&self) -> &mut Limits {
        // SAFETY: called by the thread whose cache it is, or in the child of a fork while there is no other thread; not kept.
        unsafe { &mut *self.limits.get() }
    }

    /// Tells the reader about a class's magazine.
    fn show(&self, class: usize) {
        let Some(file) = status::file() else {
            return;
        };
        let Some((number, row)) = self.shown.row(&file) else {
            return self.show_whole(ThreadState::Live);
        };
        let (bytes, limit) = (self.bytes_of(class), self.limits().bytes() as u64);
        let old = self.shown.by_class[class].load(Relaxed);
        self.shown.by_class[class].store(bytes, Relaxed);
        let old_limit = self.shown.limit.load(Relaxed);
        self.shown.limit.store(limit, Relaxed);
        let now = sys::coarse_time();
        if File::is_own(number) {
            row.sequence.write(|| {
                row.by_class[class].store(bytes.into(), Relaxed);
                // `abandon` may change it, too.
                add(&row.cached, bytes.into(), old.into());
                row.limit.store(limit, Relaxed);
                row.slow_calls
                    .store(row.slow_calls.load(Relaxed) + 1, Relaxed);
                row.last_slow.store(now, Relaxed);
            });
            return;
        }
        // The row of all others has many writers: each word is right by itself.
        add(&row.by_class[class], bytes.into(), old.into());
        add(&row.cached, bytes.into(), old.into());
        add(&row.limit, limit, old_limit);
        add(&row.slow_calls, 1, 0);
        row.last_slow.store(now, Relaxed);
    }

    /// Tells the reader about a cache that a thread has got, or that is an orphan.
    fn show_whole(&self, state: ThreadState) {
        let Some(file) = status::file() else {
            return;
        };
        if self.shown.epoch.load(Relaxed) != file.epoch() {
            self.shown.begin(&file);
            if let Some((number, row)) = self.shown.row(&file)
                && !File::is_own(number)
            {
                row.state.store(state as u64, Relaxed);
                row.tid.fetch_add(1, Relaxed);
            }
        }
        if let Some((number, row)) = self.shown.row(&file)
            && File::is_own(number)
        {
            let tid = match state {
                ThreadState::Live => sys::thread_id(),
                _ => 0,
            };
            row.sequence.write(|| {
                row.state.store(state as u64, Relaxed);
                row.tid.store(tid, Relaxed);
                row.cache.store(ptr::from_ref(self) as u64, Relaxed);
            });
        }
        let shown = |class: usize| self.shown.by_class[class].load(Relaxed);
        let differs = |class: &usize| self.bytes_of(*class) != shown(*class);
        // The first class says when that was, and the limits.
        let classes = (2..NUMBERS).filter(differs);
        [1].into_iter()
            .chain(classes)
            .for_each(|class| self.show(class));
    }

    /// The reader forgets what an idle thread's magazine of an object cache held that is gone.
    fn hide_magazine(&self, number: usize) {
        let old = self.shown.by_class[number].swap(0, Relaxed);
        if old != 0
            && let Some(file) = status::file()
            && let Some((_, row)) = self.shown.row(&file)
        {
            add(&row.by_class[number], 0, old.into());
            add(&row.cached, 0, old.into());
        }
    }

    /// The reader forgets the cache, which is empty.
    fn hide(&self) {
        if let Some(file) = status::file()
            && let Some((number, row)) = self.shown.row(&file)
        {
            if File::is_own(number) {
                row.set(&Thread::NOTHING);
                file.release_thread(number);
            } else {
                row.tid.fetch_sub(1, Relaxed);
            }
        }
        self.shown.epoch.store(0, Relaxed);
    }

    /// How many objects a magazine holds.
    fn held(&self, class: usize) -> usize {
        let top = self.magazines[class].top.load(Relaxed) as usize;
        (top - self.bottom(class) as usize) / size_of::<usize>()
    }

    /// Bytes that the magazines hold.
    fn bytes(&self) -> usize {
        (1..NUMBERS)
            .map(|class| self.bytes_of(class) as usize)
            .sum()
    }

    /// Bytes that a magazine holds: at most a few MiB.
    fn bytes_of(&self, class: usize) -> u32 {
        (self.held(class) * object_size(class)) as u32
    }

    /// The slots from `first` (1 is the lowest) on.
    #[expect(
        clippy::mut_from_ref,
        reason = "the owner's, for the length of one call"
    )]
    fn slots(&self, class: usize, first: usize, count: usize) -> &mut [usize] {
        let start = self.bottom(class).wrapping_add(first).cast::<usize>();
        // SAFETY: slots of this cache; the caller is its owner, and counts at most `limit_max`.
        unsafe { slice::from_raw_parts_mut(start, count) }
    }

    /// Fills an empty magazine and takes one object of it; 0: no memory.
    pub fn refill(&self, class: usize) -> usize {
        self.grow(class);
        let wanted = self.limits().get(class).clamp(1, batch(class));
        let slots = self.slots(class, 1, wanted);
        let Some(left) = heap::refill(class, slots).checked_sub(1) else {
            return 0;
        };
        let object = slots[left];
        let top = self.bottom(class).wrapping_add(left);
        self.magazines[class].top.store(top, Relaxed);
        self.show(class);
        object
    }

    /// Takes an object back when the magazine looks full.
    pub fn put(&self, class: usize, object: usize) {
        let magazine = &self.magazines[class];
        let top = magazine.top.load(Relaxed);
        if slot(top).load(Relaxed) == object {
            return report::fault("free", Fault::Twice(object));
        }
        self.grow(class);
        if self.limits().get(class) == 0 {
            return heap::flush(class, &[object]);
        }
        let held = self.held(class);
        if held >= self.limits().get(class) {
            self.flush(class, batch(class).min(held.div_ceil(2).max(1)));
        }
        let top = magazine.top.load(Relaxed).wrapping_add(1);
        slot(top).store(object, Relaxed);
        magazine.top.store(top, Relaxed);
        self.show(class);
    }

    /// Gives the topmost objects back to their class.
    fn flush(&self, class: usize, count: usize) {
        let held = self.held(class);
        let top = self.bottom(class).wrapping_add(held - count);
        // Lowered first: a fork in between must not find them twice.
        self.magazines[class].top.store(top, Relaxed);
        heap::flush(class, self.slots(class, held - count + 1, count));
    }

    /// Flushes until no more than `kept` are left, and ends the magazine at its limit.
    fn flush_to(&self, class: usize, kept: usize) {
        // The end of an object cache empties the magazines of all threads.
        let _held = (class >= CLASSES).then(|| ALL.lock());
        self.renew(class);
        while self.held(class) > kept {
            self.flush(class, batch(class).min(self.held(class) - kept));
        }
        self.publish(class);
        self.show(class);
    }

    /// Flushes everything. The reader may still have been told of what a magazine that is empty has lost since.
    pub fn flush_all(&self) {
        let before = self.limits().bytes();
        (1..NUMBERS)
            .filter(|&class| self.held(class) > 0 || self.shown.by_class[class].load(Relaxed) > 0)
            .for_each(|class| self.flush_to(class, 0));
        CACHED.fetch_add(self.limits().bytes().wrapping_sub(before), Relaxed);
    }

    /// Forgets the limit of an object cache that is gone: [`abandon`] ended its magazine.
    fn renew(&self, number: usize) {
        if number >= CLASSES && self.limit(number) == 0 {
            self.limits().forget(number);
        }
    }

    /// An object of an object cache.
    pub fn pop(&self, number: usize) -> Option<usize> {
        let magazine = &self.magazines[number];
        let top = magazine.top.load(Relaxed);
        let object = slot(top).load(Relaxed);
        if object == 0 {
            return None;
        }
        magazine.top.store(top.wrapping_sub(1), Relaxed);
        Some(object)
    }

    /// How many objects to take for an object cache's empty magazine: at least 1.
    pub fn room(&self, number: usize) -> usize {
        self.grow(number);
        self.limits().get(number).clamp(1, batch(number))
    }

    /// Puts objects into an object cache's magazine, as many as it may hold. Returns how many.
    pub fn fill(&self, number: usize, objects: &[usize]) -> usize {
        let held = self.held(number);
        let count = self.limits().get(number).saturating_sub(held);
        let count = count.min(objects.len());
        self.slots(number, held + 1, count)
            .copy_from_slice(&objects[..count]);
        let top = self.bottom(number).wrapping_add(held + count);
        self.magazines[number].top.store(top, Relaxed);
        self.show(number);
        count
    }

    /// Raises a magazine's limit, if the caps allow it. One that may not even hold a batch takes from another.
    fn grow(&self, class: usize) {
        let limits = self.limits();
        let (before, size) = (limits.bytes(), object_size(class));
        self.renew(class);
        if !limits.wants(class, size) {
            return;
        }
        let spare = process_cap().saturating_sub(CACHED.load(Relaxed));
        if limits.grow(class, size, spare) == 0
            && limits.get(class) < batch(class)
            && let Some(other) = limits.give_way(class)
        {
            self.flush_to(other, limits.get(other));
            limits.grow(class, size, spare + before - limits.bytes());
        }
        CACHED.fetch_add(limits.bytes().wrapping_sub(before), Relaxed);
        self.publish(class);
    }

    /// How many objects a magazine may hold before its thread looks again.
    fn limit(&self, class: usize) -> usize {
        let end = self.magazines[class].limit.load(Relaxed) as usize;
        (end - self.bottom(class) as usize) / size_of::<usize>()
    }

    /// Sets where a magazine ends.
    fn publish(&self, class: usize) {
        let end = self.bottom(class).wrapping_add(self.limits().get(class));
        self.magazines[class].limit.store(end, Relaxed);
    }

    /// The thread ends: nothing stays in its cache, and the next thread gets it.
    pub fn retire(&self) {
        arch::set_current(&DEAD);
        self.flush_all();
        CACHED.fetch_sub(self.limits().bytes(), Relaxed);
        self.limits().reset();
        (1..NUMBERS).for_each(|class| self.publish(class));
        // It is empty, and its limits are 0.
        self.show(1);
        self.hide();
        let mut all = ALL.lock();
        all.spare += 1;
        self.state.store(FREE, Relaxed);
    }
}

/// Changes a word that others may change, too.
fn add(word: &AtomicU64, new: u64, old: u64) {
    word.fetch_add(new.wrapping_sub(old), Relaxed);
}

fn batch(class: usize) -> usize {
    batch_of(object_size(class))
}

/// Bytes that all magazines may hold together.
pub fn process_cap() -> usize {
    PROCESS_CAP_MIN.max(HOT.units.load(Relaxed) * UNIT / PROCESS_SHARE)
}

/// Where the first cache's address is, for a reader of foreign memory.
pub fn first_at() -> usize {
    ALL.place() as usize + offset_of!(All, first)
}

/// Tells the reader of a new file about this thread's cache and about orphans; other threads tell of theirs themselves. No lock is held.
pub fn show_all() {
    let own = current();
    if !ptr::eq(own, &EMPTY) && !ptr::eq(own, &DEAD) {
        own.show_whole(ThreadState::Live);
    }
    let all = ALL.lock();
    each(&all.first, |cache| {
        if cache.state.load(Relaxed) == ORPHAN {
            cache.show_whole(ThreadState::Orphan);
        }
    });
}

/// The thread's cache; it gets one if it has none yet. `None`: it works without.
pub fn own() -> Option<&'static Cache> {
    status::renew();
    let cache = current();
    if ptr::eq(cache, &DEAD) {
        return None;
    }
    if !ptr::eq(cache, &EMPTY) {
        return Some(cache);
    }
    if !options::allow_caches() {
        return None;
    }
    let cache = adopt().or_else(make)?;
    // Before anything that allocates.
    arch::set_current(cache);
    cache.pace.forget_thread();
    cache.show_whole(ThreadState::Live);
    process::thread_begins(cache);
    Some(cache)
}

fn each(first: &AtomicPtr<Cache>, mut look: impl FnMut(&'static Cache)) {
    let mut next = first.load(Relaxed);
    // SAFETY: a cache, which is never unmapped, or null.
    while let Some(cache) = unsafe { next.as_ref() } {
        look(cache);
        next = cache.next.load(Relaxed);
    }
}

/// A cache that has no thread: one with contents first.
fn adopt() -> Option<&'static Cache> {
    let mut all = ALL.lock();
    // A program of many threads does not look through all of their caches for each.
    all.spare = all.spare.checked_sub(1)?;
    let mut best: Option<&Cache> = None;
    each(&all.first, |cache| {
        let better = best.map_or(LIVE, |best| best.state.load(Relaxed));
        if cache.state.load(Relaxed) > better {
            best = Some(cache);
        }
    });
    best?.state.store(LIVE, Relaxed);
    best
}

fn make() -> Option<&'static Cache> {
    let cache = sys::map_memory(CACHE_LEN)? as *mut Cache;
    // SAFETY: new memory, large enough and aligned to a page.
    unsafe { cache.write(Cache::nothing()) };
    // SAFETY: as above; it is never unmapped.
    let cache = unsafe { &*cache };
    cache.left.set(cache.pace.interval());
    *cache.limits() = Limits::new(options::get(Key::PerthreadCache));
    for class in 1..NUMBERS {
        let bottom = cache.bottom(class);
        cache.magazines[class].top.store(bottom, Relaxed);
        cache.magazines[class].limit.store(bottom, Relaxed);
    }
    let all = ALL.lock();
    cache.next.store(all.first.load(Relaxed), Relaxed);
    all.first.store(ptr::from_ref(cache).cast_mut(), Relaxed);
    Some(cache)
}

/// Empties and ends the magazines of an object cache that nobody uses any more, in all threads.
pub fn abandon(number: usize, mut take: impl FnMut(&[usize])) {
    let all = ALL.lock();
    each(&all.first, |cache| {
        let (held, bottom) = (cache.held(number), cache.bottom(number));
        cache.magazines[number].limit.store(bottom, Relaxed);
        cache.magazines[number].top.store(bottom, Relaxed);
        cache.hide_magazine(number);
        take(cache.slots(number, 1, held));
    });
}

/// Bytes that all magazines hold.
pub fn bytes() -> usize {
    let all = ALL.lock();
    let mut bytes = 0;
    each(&all.first, |cache| bytes += cache.bytes());
    bytes
}

/// Takes the lock, before a fork.
pub fn hold_all() {
    ALL.hold();
}

/// Ends [`hold_all`]. In the child, the caches of all threads but this one become orphans first.
pub fn release_all(is_child: bool) {
    if is_child {
        // The lock is this thread's since `hold_all`.
        ALL.release();
        let mut all = ALL.lock();
        let own = current();
        if !ptr::eq(own, &EMPTY) && !ptr::eq(own, &DEAD) {
            own.pace.forget_thread();
        }
        let (mut orphans, mut cached) = (0, 0);
        each(&all.first, |cache| {
            if cache.state.load(Relaxed) == LIVE && !ptr::eq(cache, own) {
                // Its thread may have lowered a limit below what the magazine still holds.
                cache.limits().take_over(|place| match place {
                    ..NUMBERS => cache.limit(place),
                    _ => 0,
                });
                cache.state.store(ORPHAN, Relaxed);
                orphans += 1;
            }
            cached += cache.limits().bytes();
        });
        all.spare += orphans;
        CACHED.store(cached, Relaxed);
        return;
    }
    ALL.release();
}
