//! A thread's magazines.
//!
//! A class of small objects has two: `malloc` takes from one, `free` puts into the other, and they are exchanged when the first is empty or the second is full.
//! With one, each call waits for the store of the call before it: 10 ns instead of 6 for a pair of sizes in turn. Larger objects have one magazine, which
//! returns what was freed last, and so has the caches of the processor on its side.

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
/// Objects up to this size have two magazines.
pub const PAIRED_MAX: usize = 1024;
/// Classes from here on have one.
const PAIRED: usize = {
    let mut class = 1;
    while windlass_slab::size(class) <= PAIRED_MAX {
        class += 1;
    }
    class
};
/// Magazines by entry of the map: those of classes, and some that never hold anything for [`heap::SAMPLED`] ones.
const MAPPED: usize = 2 * heap::SAMPLED;
/// Magazines of a cache; the last are those that only `malloc` uses.
pub const MAGAZINES: usize = MAPPED + PAIRED;
/// Bytes before the next cache's address, for a reader of foreign memory.
pub const NEXT_AT: usize = offset_of!(Cache, next);

/// Batches that two magazines exchange with their class at once, at most: each exchange moves the class's cache lines between processors.
const BATCHES: usize = 4;

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

    /// `top` and `limit`, for the owner. Not atomic: an instruction compares one of them from memory then.
    #[inline(always)]
    pub fn ends(&self) -> (*mut AtomicUsize, *mut AtomicUsize) {
        // SAFETY: the owner alone writes them; and [`abandon`] those of a cache that nobody uses any more.
        (unsafe { *self.top.as_ptr() }, unsafe {
            *self.limit.as_ptr()
        })
    }
}

/// What a slot holds, for its owner, as [`Magazine::ends`].
#[inline(always)]
pub fn held_by(at: *mut AtomicUsize) -> usize {
    // SAFETY: as of [`slot`]; the owner alone writes it.
    unsafe { *slot(at).as_ptr() }
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
        let magazines = if class < PAIRED { 2 } else { 1 };
        offsets[class + 1] = offsets[class] + magazines * (1 + capacity(class));
        class += 1;
    }
    offsets
};

/// What an exchange of two magazines needs to know of their class.
struct Pair {
    /// The places of the two zeros, in bytes behind the cache's address, added up: less the one it is the other.
    zeros: usize,
    /// Bytes of a batch's slots.
    batch: usize,
}

static PAIRS: [Pair; PAIRED] = {
    let mut pairs = [const { Pair { zeros: 0, batch: 0 } }; PAIRED];
    let mut class = 1;
    while class < PAIRED {
        let slots = 2 * OFFSETS[class] + capacity(class) + 1;
        pairs[class] = Pair {
            zeros: 2 * size_of::<Cache>() + slots * size_of::<usize>(),
            batch: windlass_slab::batch(class) * size_of::<usize>(),
        };
        class += 1;
    }
    pairs
};

/// Objects that one magazine may hold at most.
const fn capacity(class: usize) -> usize {
    match class {
        0..PAIRED => limit_max(class) / 2,
        PAIRED..CLASSES => limit_max(class),
        _ => MAGAZINE_MAX,
    }
}

/// The number of the magazine that `malloc` takes from.
pub const fn source(class: usize) -> usize {
    if class < PAIRED {
        MAPPED + class
    } else {
        class
    }
}

/// The class of a magazine.
pub const fn class_of(magazine: usize) -> usize {
    if magazine < MAPPED {
        magazine
    } else {
        magazine - MAPPED
    }
}

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
    /// A magazine; `offset` is its number times 16.
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

    /// The zero before the first slots of a class.
    fn first(&self, class: usize) -> *mut AtomicUsize {
        let slots = ptr::from_ref(self).wrapping_add(1).cast::<AtomicUsize>();
        slots.wrapping_add(OFFSETS[class]).cast_mut()
    }

    /// The zero before the second slots of a class that has two magazines.
    fn second(&self, class: usize) -> *mut AtomicUsize {
        self.first(class).wrapping_add(capacity(class) + 1)
    }

    /// The zero before the slots that have the one at `at`.
    fn below(&self, class: usize, at: *mut AtomicUsize) -> *mut AtomicUsize {
        if class < PAIRED && at >= self.second(class) {
            self.second(class)
        } else {
            self.first(class)
        }
    }

    /// The zero before the slots that a magazine has now.
    fn bottom(&self, magazine: usize) -> *mut AtomicUsize {
        let top = self.magazines[magazine].top.load(Relaxed);
        self.below(class_of(magazine), top)
    }

    /// Exchanges the magazines of a class: `malloc` takes what `free` has put.
    fn exchange(&self, class: usize) {
        let (put, taken) = (&self.magazines[class], &self.magazines[source(class)]);
        let (full, other) = (put.top.load(Relaxed), taken.top.load(Relaxed));
        let end = put.limit.load(Relaxed);
        let room = end as usize - self.below(class, end) as usize;
        let end = self.below(class, other).wrapping_byte_add(room);
        // In this order: a fork in between must not find objects twice, see `mend`.
        put.top.store(other, Relaxed);
        put.limit.store(end, Relaxed);
        taken.top.store(full, Relaxed);
    }

    /// In the child of a fork: completes an exchange that another thread was in. What it was to take is lost.
    fn mend(&self, class: usize) {
        let (put, taken) = (self.bottom(class), self.bottom(source(class)));
        if class < PAIRED && put == taken {
            let other = if put == self.first(class) {
                self.second(class)
            } else {
                self.first(class)
            };
            self.magazines[source(class)].top.store(other, Relaxed);
        }
    }

    /// Exchanges the magazines of a class, of which that is empty that `malloc` takes from, if the other has a batch.
    #[inline(always)]
    pub fn replenish(&self, class: usize) -> bool {
        // Only one magazine.
        let Some(pair) = PAIRS.get(class) else {
            return false;
        };
        let (put, taken) = (
            self.magazine(class * 16),
            self.magazine((MAPPED + class) * 16),
        );
        let (full, empty) = (put.top.load(Relaxed), taken.top.load(Relaxed));
        let bottom = 2 * ptr::from_ref(self) as usize + pair.zeros - empty as usize;
        // No cache, or too few.
        if full == empty || full as usize - bottom < pair.batch {
            return false;
        }
        let room = put.limit.load(Relaxed) as usize - bottom;
        // In the order of `exchange`.
        put.top.store(empty, Relaxed);
        put.limit.store(empty.wrapping_byte_add(room), Relaxed);
        taken.top.store(full, Relaxed);
        true
    }

    /// Whether the countdown to the next sample is over.
    pub fn is_over(&self) -> bool {
        self.left.get() < 0
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
    fn held(&self, magazine: usize) -> usize {
        let top = self.magazines[magazine].top.load(Relaxed) as usize;
        (top - self.bottom(magazine) as usize) / size_of::<usize>()
    }

    /// How many objects the magazines of a class hold.
    fn held_of(&self, class: usize) -> usize {
        magazines_of(class)
            .map(|magazine| self.held(magazine))
            .sum()
    }

    /// How many objects each magazine of a class may hold.
    fn most(&self, class: usize) -> usize {
        let magazines = if class < PAIRED { 2 } else { 1 };
        self.limits().get(class) / magazines
    }

    /// Bytes that the magazines hold.
    fn bytes(&self) -> usize {
        (1..NUMBERS)
            .map(|class| self.bytes_of(class) as usize)
            .sum()
    }

    /// Bytes that the magazines of a class hold: at most a few MiB.
    fn bytes_of(&self, class: usize) -> u32 {
        (self.held_of(class) * object_size(class)) as u32
    }

    /// The slots from `first` (1 is the lowest) on.
    #[expect(
        clippy::mut_from_ref,
        reason = "the owner's, for the length of one call"
    )]
    fn slots(&self, magazine: usize, first: usize, count: usize) -> &mut [usize] {
        let start = self.bottom(magazine).wrapping_add(first).cast::<usize>();
        // SAFETY: slots of this cache; the caller is its owner, and counts at most `limit_max`.
        unsafe { slice::from_raw_parts_mut(start, count) }
    }

    /// Takes an object of a class; 0: no memory.
    pub fn take(&self, class: usize) -> usize {
        let source = source(class);
        self.pop(source)
            .or_else(|| self.replenish(class).then(|| self.pop(source))?)
            .unwrap_or_else(|| self.refill(class))
    }

    /// Fills an empty magazine and takes one object of it; 0: no memory.
    fn refill(&self, class: usize) -> usize {
        self.grow(class);
        let source = source(class);
        if source != class {
            self.exchange(class);
        }
        let (held, most) = (self.held(source), self.most(class).max(1));
        // `free` has seen two in a row.
        let apart = self.slots(source, 1, held).windows(3);
        if let Some(three) = apart.into_iter().find(|three| three[0] == three[2]) {
            report::fault("free", Fault::Twice(three[0]));
        }
        let batches = if source == class { 1 } else { BATCHES };
        let wanted = (batches * batch(class)).min(most.saturating_sub(held));
        if wanted > 0 {
            let more = heap::refill(class, self.slots(source, held + 1, wanted));
            let top = self.bottom(source).wrapping_add(held + more);
            self.magazines[source].top.store(top, Relaxed);
        }
        let object = self.pop(source);
        self.show(class);
        object.unwrap_or(0)
    }

    /// Takes an object back when the magazine looks full.
    pub fn put(&self, class: usize, object: usize) {
        let magazine = &self.magazines[class];
        let top = magazine.top.load(Relaxed);
        if slot(top).load(Relaxed) == object {
            return report::fault("free", Fault::Twice(object));
        }
        self.grow(class);
        let most = self.most(class);
        if most == 0 {
            return heap::flush(class, &[object]);
        }
        let held = self.held(class);
        if held >= most {
            if class < PAIRED && self.held(source(class)) <= most / 2 {
                self.exchange(class);
            } else if class < PAIRED {
                let batches = (held / batch(class)).min(BATCHES);
                self.flush(class, (batches * batch(class)).max(held.div_ceil(2)));
            } else {
                self.flush(class, batch(class).min(held.div_ceil(2)));
            }
        }
        let top = magazine.top.load(Relaxed).wrapping_add(1);
        slot(top).store(object, Relaxed);
        magazine.top.store(top, Relaxed);
        self.show(class);
    }

    /// Gives the topmost objects of a magazine back to their class.
    fn flush(&self, magazine: usize, count: usize) {
        let held = self.held(magazine);
        let top = self.bottom(magazine).wrapping_add(held - count);
        // Lowered first: a fork in between must not find them twice.
        self.magazines[magazine].top.store(top, Relaxed);
        let objects = self.slots(magazine, held - count + 1, count);
        heap::flush(class_of(magazine), objects);
    }

    /// Flushes until no magazine of a class holds more than it may, or nothing, and ends them there.
    fn flush_to(&self, class: usize, kept: usize) {
        // The end of an object cache empties the magazines of all threads.
        let _held = (class >= CLASSES).then(|| ALL.lock());
        self.renew(class);
        for magazine in magazines_of(class) {
            while let Some(more) = self.held(magazine).checked_sub(kept + 1) {
                self.flush(magazine, batch(class).min(more + 1));
            }
        }
        self.publish(class);
        self.show(class);
    }

    /// Flushes everything. The reader may still have been told of what a magazine that is empty has lost since.
    pub fn flush_all(&self) {
        let before = self.limits().bytes();
        (1..NUMBERS)
            .filter(|&class| {
                self.held_of(class) > 0 || self.shown.by_class[class].load(Relaxed) > 0
            })
            .for_each(|class| self.flush_to(class, 0));
        CACHED.fetch_add(self.limits().bytes().wrapping_sub(before), Relaxed);
    }

    /// Forgets the limit of an object cache that is gone: [`abandon`] ended its magazine.
    fn renew(&self, number: usize) {
        if number >= CLASSES && self.limit(number) == 0 {
            self.limits().forget(number);
        }
    }

    /// An object of a magazine.
    pub fn pop(&self, magazine: usize) -> Option<usize> {
        let magazine = &self.magazines[magazine];
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
            self.flush_to(other, self.most(other));
            limits.grow(class, size, spare + before - limits.bytes());
        }
        CACHED.fetch_add(limits.bytes().wrapping_sub(before), Relaxed);
        self.publish(class);
    }

    /// How many objects the magazines of a class may hold before their thread looks again.
    fn limit(&self, class: usize) -> usize {
        let end = self.magazines[class].limit.load(Relaxed);
        let room = end as usize - self.below(class, end) as usize;
        room / size_of::<usize>() * if class < PAIRED { 2 } else { 1 }
    }

    /// Sets where the magazine ends that `free` puts into.
    fn publish(&self, class: usize) {
        let end = self.bottom(class).wrapping_add(self.most(class));
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

/// The numbers of a class's magazines.
fn magazines_of(class: usize) -> impl Iterator<Item = usize> {
    let source = (class < PAIRED).then(|| source(class));
    [class].into_iter().chain(source)
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
        for (magazine, bottom) in magazines_of(class).zip([cache.first(class), cache.second(class)])
        {
            cache.magazines[magazine].top.store(bottom, Relaxed);
            cache.magazines[magazine].limit.store(bottom, Relaxed);
        }
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
                for class in 1..PAIRED {
                    cache.mend(class);
                    cache.publish(class);
                }
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
