//! Object caches: `umem_cache_create(3)` and its family.
//!
//! # Model
//! A cache has a number, a class of its own and a place among each thread's magazines, as long as there are numbers; [`names::umem_cache_alloc`] is
//! malloc's fast path with a constant class. Further caches, and those of large objects, have the number [`SHARED`] and work under their lock.
//!
//! An object is constructed when it first leaves its slab, a batch at a time, and destructed when the empty slab goes back. In
//! between it stays constructed, in magazines, depot and slab.
//!
//! A sampled object lies in a slab of sampled objects, as malloc's do: of the same number, with [`SAMPLED`]. A cache without a number has its samples among the
//! others, and looks for them as long as there are some.
//!
//! With a debugging word a cache is *checked*, unless `UMC_NODEBUG` or `UMC_NOTOUCH` says otherwise: its objects are buffers of [`debug`], constructed at
//! each allocation and destructed at each free, so that nothing may be in a free one.
//!
//! # Ownership and lifetime
//! A [`Cache`] lies in a table of its own and is never unmapped; a destroyed one has place 0, with which every call takes the slow path and is named. Its
//! number may go to another cache: before, [`cache::abandon`] empties and ends that magazine in every thread.
//!
//! # Synchronization
//! [`REGISTRY`] comes before all other locks. Constructors, destructors and reclaim callbacks are called without a lock. A thread that calls one on behalf of
//! somebody else counts in `busy`, for whose end the destruction of the cache waits.
//!
//! # Failure modes
//! Without memory: reclaim callbacks, then NULL, or with `UMEM_NOFAIL` the program's callback. The wrong cache, an object that is no object, a second free,
//! and a cache that is destroyed with objects out are a sentence and an abort.

mod names;

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};

use windlass_memory as memory;
use windlass_memory::CACHE_OWNERS;
use windlass_slab::{BATCH_MAX, CLASSES, Class, Depot, Fault, Geometry, NoDepot, UNIT};

use crate::cache;
use crate::calls;
use crate::debug;
use crate::heap::{self, NUMBERS, SAMPLED, SHARED};
use crate::lock::Lock;
use crate::report;
use crate::sample::{self, Due};
use crate::stack::Caller;
use crate::status;
use crate::sys;

/// Bytes of a name, with the zero that ends it.
const NAME_LEN: usize = 32;
/// Caches that there may be at once.
const CACHES_MAX: usize = 32 << 10;
/// Larger objects are not kept in magazines.
const NUMBERED_MAX: usize = 64 << 10;

/// `UMEM_NOFAIL`.
const NOFAIL: c_int = 0x100;
/// `UMC_NOTOUCH` and `UMC_NODEBUG`: debugging words do not count.
const UNCHECKED: c_int = 0x3_0000;
/// `UMC_NOMAGAZINE`.
const NOMAGAZINE: c_int = 0x4_0000;

const DEAD: u8 = 0;
const LIVE: u8 = 1;
/// Being destroyed; or left behind, because a fork lost objects of it.
const ENDING: u8 = 2;

type Constructor = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, c_int) -> c_int;
type Destructor = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);
type Reclaim = unsafe extern "C-unwind" fn(*mut c_void);

/// `umem_cache_t`. All of it is written before the program knows it, and stays, but for the atomics and what the lock has.
#[repr(C)]
pub struct Cache {
    /// The number times 16; 0: destroyed.
    place: AtomicUsize,
    /// What was asked for. Beside the place: each allocation reads both.
    bytes: usize,
    align: usize,
    state: AtomicU8,
    /// Under [`REGISTRY`].
    busy: AtomicU32,
    /// As of [`FORKS`] when it was made.
    forks: usize,
    constructor: Option<Constructor>,
    destructor: Option<Destructor>,
    reclaim: Option<Reclaim>,
    data: *mut c_void,
    name: Name,
    /// There may be something to do when a slab is empty.
    constructs: bool,
    /// 1 + its place in the table.
    owner: u32,
    is_checked: bool,
    /// Of a cache without a number: live samples.
    samples: AtomicUsize,
    /// Of a checked one: objects that the program has. Changed under `shared`.
    out: AtomicUsize,
    /// Of a cache without a number.
    shared: Lock<Class<NoDepot>>,
}

/// A name as a person may read it, and zeros.
#[derive(Clone, Copy)]
pub struct Name([u8; NAME_LEN]);

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0.iter().position(|&byte| byte == 0);
        // `copy` left printable characters alone.
        let text = str::from_utf8(&self.0[..len.unwrap_or(0)]);
        out.write_str(text.unwrap_or(""))
    }
}

/// The table of caches.
struct Registry {
    /// Its address; 0: none yet.
    first: usize,
    /// Places that may be touched.
    usable: usize,
    /// Places that were used at some time.
    begun: usize,
    /// No place before this one is free, but those of checked caches that are gone.
    hint: usize,
}

static REGISTRY: Lock<Registry> = Lock::new(Registry {
    first: 0,
    usable: 0,
    begun: 0,
    hint: 0,
});
/// The cache of each number; null: the number is free. Changed under [`REGISTRY`].
static NUMBERED: [AtomicPtr<Cache>; NUMBERS - CLASSES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; NUMBERS - CLASSES];
/// How often this process is the child of a fork.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// Caches with a reclaim callback, at some time.
static RECLAIMS: AtomicBool = AtomicBool::new(false);
/// A thread calls them.
static RECLAIMING: AtomicBool = AtomicBool::new(false);

impl Registry {
    fn at(&self, at: usize) -> *mut Cache {
        (self.first as *mut Cache).wrapping_add(at)
    }

    fn get(&self, at: usize) -> &'static Cache {
        // SAFETY: a usable place: zeros, which are a dead cache, or what `make` wrote.
        unsafe { &*self.at(at) }
    }

    fn is_live(&self, at: usize) -> bool {
        self.get(at).state.load(Relaxed) == LIVE
    }

    /// The first place from one on that was used, and is free.
    fn free_from(&self, first: usize) -> Option<usize> {
        let is_free = |at: &usize| self.get(*at).state.load(Relaxed) == DEAD;
        (first..self.begun).find(is_free)
    }

    /// A free place.
    fn place(&mut self) -> Option<usize> {
        let mut at = self.free_from(self.hint).unwrap_or(self.begun);
        if at == self.usable && !self.grow() {
            at = self.free_from(0)?;
        }
        self.begun = self.begun.max(at + 1);
        self.hint = at + 1;
        Some(at)
    }

    fn grow(&mut self) -> bool {
        let len = (CACHES_MAX * size_of::<Cache>()).next_multiple_of(UNIT);
        if self.first == 0 {
            let Some(first) = sys::reserve(len) else {
                return false;
            };
            self.first = first;
        }
        let bytes = (self.usable * size_of::<Cache>()).next_multiple_of(UNIT);
        if bytes == len || !sys::make_usable(self.first + bytes, UNIT) {
            return false;
        }
        self.usable = ((bytes + UNIT) / size_of::<Cache>()).min(CACHES_MAX);
        true
    }

    /// A number that no cache has.
    fn number(&self) -> Option<usize> {
        let is_free = |at: &AtomicPtr<Cache>| at.load(Relaxed).is_null();
        Some(CLASSES + NUMBERED.iter().position(is_free)?)
    }

    /// Makes a cache of what was asked for.
    fn make(&mut self, geometry: Geometry, wanted: Cache, flags: c_int) -> Option<*mut Cache> {
        let at = self.place()?;
        let cache = self.at(at);
        let keeps =
            flags & NOMAGAZINE == 0 && !wanted.is_checked && geometry.size() <= NUMBERED_MAX;
        let number = keeps.then(|| self.number()).flatten();
        if let Some(number) = number {
            heap::begin_class(number, geometry);
            NUMBERED[number - CLASSES].store(cache, Relaxed);
        }
        let owner = (CACHE_OWNERS + at) as u16;
        let made = Cache {
            place: AtomicUsize::new(number.unwrap_or(SHARED) * 16),
            state: AtomicU8::new(LIVE),
            shared: Lock::new(Class::new(owner, geometry)),
            owner: at as u32 + 1,
            ..wanted
        };
        // SAFETY: a usable place that nobody knows of.
        unsafe { cache.write(made) };
        self.show(at);
        Some(cache)
    }

    /// Tells the reader about a cache: its row has the number of its place.
    fn show(&self, at: usize) {
        let Some(row) = status::row::<memory::CacheRow>(&memory::CACHE, at) else {
            return;
        };
        let cache = self.get(at);
        let class = match cache.place.load(Relaxed) / 16 {
            SHARED => 0,
            number => number,
        };
        let (words, _) = cache.name.0.as_chunks();
        let mut name = [0; NAME_LEN / 8];
        for (to, word) in name.iter_mut().zip(words) {
            *to = u64::from_le_bytes(*word);
        }
        let held = cache.shared.lock();
        row.set(&memory::Cache {
            name,
            address: ptr::from_ref(cache) as u64,
            size: held.geometry().size() as u64,
            class: class as u64,
            units: held.geometry().units() as u64,
            slabs: held.slabs() as u64,
            objects: cache.objects(&held) as u64,
            in_slabs: held.in_slabs() as u64,
            ..memory::Cache::NOTHING
        });
    }
}

impl Cache {
    /// Objects of its slabs, or of a checked one those that the program has.
    fn objects(&self, held: &Class<NoDepot>) -> usize {
        match self.is_checked {
            true => self.out.load(Relaxed),
            false => held.slabs() * held.geometry().objects(),
        }
    }

    fn call(&self, name: &'static str) -> debug::Call {
        debug::Call {
            name,
            owner: self.owner,
        }
    }

    /// Its number; `call` is named if it has none because it was destroyed.
    fn number(&self, call: &str) -> Option<usize> {
        let number = self.place.load(Relaxed) / 16;
        if number == 0 {
            let address = ptr::from_ref(self) as usize;
            report::error(format_args!("{call}({address:#x}): no such cache"));
        }
        (number != 0).then_some(number)
    }

    /// An object; `None`: no memory, or its constructor refused.
    fn take(&self, caller: &Caller, flags: c_int) -> Option<usize> {
        let number = self.number("umem_cache_alloc")?;
        if self.is_checked {
            return self.take_checked(flags);
        }
        // First: what was adopted just now may have an object.
        let own = cache::own();
        if let Some(due) = own.and_then(|own| own.due(self.bytes))
            && let Some(object) = self.take_sample(number, due, caller, flags)
        {
            return Some(object);
        }
        if number == SHARED {
            return self.take_one(&self.shared, SHARED, flags);
        }
        let mut batch = [0; BATCH_MAX];
        // It was adopted just now, and is as full as it was.
        if let Some(object) = own.and_then(|own| own.pop(number)) {
            return Some(object);
        }
        let room = own.map_or(1, |own| own.room(number));
        let taken = heap::refill_from(heap::class(number), number, &mut batch[..room]);
        let kept = self.construct(number, &mut batch[..taken.count], taken.fresh, flags);
        let (&object, rest) = batch[..kept].split_last()?;
        let filled = own.map_or(0, |own| own.fill(number, rest));
        if filled < rest.len() {
            // The constructor has filled the magazine by itself.
            heap::flush(number, &rest[filled..]);
        }
        Some(object)
    }

    /// An object past the magazines; `entry`: of the map.
    fn take_one<D: Depot>(
        &self,
        lock: &Lock<Class<D>>,
        entry: usize,
        flags: c_int,
    ) -> Option<usize> {
        let mut one = [0];
        let taken = heap::refill_from(lock, entry, &mut one);
        let kept = self.construct(entry, &mut one[..taken.count], taken.fresh, flags);
        one[..kept].first().copied()
    }

    /// An object that is a sample.
    fn take_sample(
        &self,
        number: usize,
        due: Due<'_>,
        caller: &Caller,
        flags: c_int,
    ) -> Option<usize> {
        let object = match number {
            SHARED => self.take_one(&self.shared, SHARED, flags)?,
            number => self.take_one(heap::class(SAMPLED | number), SAMPLED | number, flags)?,
        };
        if number == SHARED {
            self.samples.fetch_add(1, Relaxed);
        }
        sample::note(object, self.bytes, due, caller);
        Some(object)
    }

    /// Before an object of a cache without a number is released: it is no sample any more.
    fn forget(&self, address: usize) {
        if self.samples.load(Relaxed) > 0 && sample::forget(address).is_some() {
            let less = |samples: usize| samples.checked_sub(1);
            // Another cache's sample is an error, which is told by whoever releases it.
            let _ = self.samples.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// A buffer of [`debug`], constructed.
    fn take_checked(&self, flags: c_int) -> Option<usize> {
        let may_fail = flags & NOFAIL == 0;
        let object = debug::take_object(self.owner, self.bytes, self.align, may_fail);
        if object == 0 {
            return None;
        }
        if let Some(constructor) = self.constructor {
            // SAFETY: the program's function, and an object of its own size that nobody has.
            let answer = unsafe { constructor(object as *mut c_void, self.data, flags & NOFAIL) };
            if answer != 0 {
                debug::release_object(self.call("umem_cache_alloc"), object, || {});
                return None;
            }
        }
        self.count(|out| out + 1);
        Some(object)
    }

    /// Takes it back, destructed.
    fn put_checked(&self, address: usize) {
        let mut is_freed = false;
        let is_known = debug::release_object(self.call("umem_cache_free"), address, || {
            is_freed = true;
            self.destruct(address);
        });
        if !is_known {
            self.complain(Fault::Unknown(address));
        }
        if is_freed {
            self.count(|out| out - 1);
        }
    }

    /// Counts an object of a checked cache, and tells the reader.
    fn count(&self, count: impl FnOnce(usize) -> usize) {
        let _held = self.shared.lock();
        let out = count(self.out.load(Relaxed));
        self.out.store(out, Relaxed);
        let at = self.owner as usize - 1;
        if let Some(row) = status::row::<memory::CacheRow>(&memory::CACHE, at) {
            row.sequence
                .write(|| row.objects.store(out as u64, Relaxed));
        }
    }

    fn destruct(&self, object: usize) {
        if let Some(destructor) = self.destructor {
            // SAFETY: the program's function, and an object that was constructed and that nobody has.
            unsafe { destructor(object as *mut c_void, self.data) };
        }
    }

    /// Constructs those of the objects that `fresh` says. From the first failure on they go back. Returns how many are left.
    fn construct(&self, entry: usize, objects: &mut [usize], fresh: u64, flags: c_int) -> usize {
        let Some(constructor) = self.constructor.filter(|_| fresh != 0) else {
            return objects.len();
        };
        let mut lost = 0_u64;
        for (at, &object) in objects.iter().enumerate().rev() {
            let bit = fresh & 1 << at;
            // SAFETY: the program's function, and an object of its own size that nobody has.
            let works =
                || unsafe { constructor(object as *mut c_void, self.data, flags & NOFAIL) == 0 };
            if bit != 0 && (lost != 0 || !works()) {
                lost |= bit;
            }
        }
        let (mut kept, mut gone, mut refused) = (0, 0, [0; BATCH_MAX]);
        for at in 0..objects.len() {
            if lost >> at & 1 == 0 {
                objects[kept] = objects[at];
                kept += 1;
            } else {
                refused[gone] = objects[at];
                gone += 1;
            }
        }
        if gone > 0 {
            self.give_up(entry, &refused[..gone]);
        }
        kept
    }

    fn give_up(&self, entry: usize, objects: &[usize]) {
        let given = match entry {
            SHARED => heap::give_up(&self.shared, objects),
            entry => heap::give_up(heap::class(entry), objects),
        };
        if let Err(fault) = given {
            report::fault("umem_cache_alloc", fault);
        }
        self.tidy();
    }

    /// Takes an object back past the fast path.
    fn put(&self, address: usize) {
        let Some(number) = self.number("umem_cache_free") else {
            return;
        };
        if self.is_checked {
            return self.put_checked(address);
        }
        let entry = heap::entry_at(address);
        if heap::class_of_entry(entry) != number {
            return self.complain(Fault::Unknown(address));
        }
        if number == SHARED {
            self.forget(address);
            if let Err(fault) = heap::release_to(&self.shared, &[address]) {
                self.complain(fault);
            }
        } else if entry != number {
            sample::forget(address);
            if let Err(fault) = heap::release_to(heap::class(entry), &[address]) {
                self.complain(fault);
            }
        } else if !address.is_multiple_of(calls::ALIGN_MIN) {
            self.complain(Fault::Interior(address));
        } else {
            match cache::own() {
                Some(own) => own.put(number, address),
                None => heap::flush(number, &[address]),
            }
        }
        self.tidy();
    }

    fn complain(&self, fault: Fault) {
        let (address, what) = match fault {
            Fault::Unknown(address) => (address, "not an object of this cache"),
            Fault::Interior(address) => (address, "not the start of an object"),
            Fault::Twice(address) => (address, "already freed"),
        };
        report::error(format_args!(
            "umem_cache_free({}, {address:#x}): {what}",
            self.name
        ));
    }

    /// Destructs the objects of empty slabs, and returns these.
    fn tidy(&self) {
        if !self.constructs {
            return;
        }
        let destruct = |object: usize| self.destruct(object);
        match self.place.load(Relaxed) / 16 {
            0 => {}
            SHARED => heap::destruct(&self.shared, destruct),
            number => {
                heap::destruct(heap::class(number), destruct);
                heap::destruct(heap::class(SAMPLED | number), destruct);
            }
        }
    }

    /// Moves everything that the program does not have to the slabs. Returns what it has.
    fn empty(&self, number: usize) -> Result<usize, Fault> {
        if self.is_checked {
            return Ok(self.out.load(Relaxed));
        }
        if number == SHARED {
            heap::release_spare(&self.shared);
            return Ok(self.shared.lock().out());
        }
        let class = heap::class(number);
        let mut result = Ok(());
        cache::abandon(number, |objects| {
            if result.is_ok() {
                result = heap::release_to(class, objects);
            }
        });
        result?;
        let sampled = heap::class(SAMPLED | number);
        heap::drain_one(class)?;
        heap::drain_one(sampled)?;
        let out = class.lock().out();
        Ok(out + sampled.lock().out())
    }

    fn destroy(&self) {
        let Some(number) = self.number("umem_cache_destroy") else {
            return;
        };
        let mut registry = REGISTRY.lock();
        self.state.store(ENDING, Relaxed);
        loop {
            let busy = self.busy.load(Relaxed);
            if busy == 0 {
                break;
            }
            drop(registry);
            sys::wait(&self.busy, busy);
            registry = REGISTRY.lock();
        }
        let out = self.empty(number);
        drop(registry);
        let out = match out {
            Ok(out) => out,
            Err(fault) => return self.complain(fault),
        };
        if out > 0 {
            // What the parent's other threads had at the moment of a fork is lost, and no error of the child.
            if self.forks == FORKS.load(Relaxed) {
                self.complain_of_objects(out);
            }
            return;
        }
        self.tidy();
        let mut registry = REGISTRY.lock();
        if let Some(numbered) = number.checked_sub(CLASSES).and_then(|at| NUMBERED.get(at)) {
            heap::end_class(number);
            numbered.store(ptr::null_mut(), Relaxed);
        }
        let at = (ptr::from_ref(self) as usize - registry.first) / size_of::<Self>();
        if let Some(row) = status::row::<memory::CacheRow>(&memory::CACHE, at) {
            row.set(&memory::Cache::NOTHING);
        }
        if !self.is_checked {
            // A checked one's place waits as long as it can: errors name what was there.
            registry.hint = registry.hint.min(at);
        }
        self.place.store(0, Relaxed);
        self.state.store(DEAD, Relaxed);
    }

    fn complain_of_objects(&self, out: usize) {
        let name = self.name;
        let what = format_args!("umem_cache_destroy({name}): {out} objects are still allocated");
        report::error_with(what, || {
            if self.is_checked {
                debug::live(self.owner);
            }
        });
    }

    /// Calls `visit` while the cache is not destroyed. The lock is held, and released meanwhile.
    fn visit(&self, registry: crate::lock::Held<'_, Registry>, visit: impl Fn(&Self)) {
        self.busy.fetch_add(1, Relaxed);
        drop(registry);
        visit(self);
        let _registry = REGISTRY.lock();
        self.busy.fetch_sub(1, Relaxed);
        sys::wake(&self.busy);
    }
}

/// The name of a cache, given as [`debug::Call::owner`]; also of one that is gone. `None`: malloc's.
pub fn name_of(owner: u32) -> Option<Name> {
    let at = (owner as usize).checked_sub(1)?;
    let registry = REGISTRY.lock();
    (at < registry.begun).then(|| registry.get(at).name)
}

/// Tells the reader of a new file about all caches. No lock is held.
pub fn show_all() {
    let registry = REGISTRY.lock();
    let is_known = |at: &usize| registry.get(*at).state.load(Relaxed) != DEAD;
    (0..registry.begun)
        .filter(is_known)
        .for_each(|at| registry.show(at));
}

/// Visits each cache, without a lock.
fn each(visit: impl Fn(&Cache)) {
    let mut at = 0;
    loop {
        let registry = REGISTRY.lock();
        let Some(found) = (at..registry.begun).find(|&at| registry.is_live(at)) else {
            return;
        };
        at = found + 1;
        let cache = registry.get(found);
        cache.visit(registry, &visit);
    }
}

/// After magazines were flushed on behalf of other things than their cache: destructs what is to be.
pub fn tidy_numbered() {
    for numbered in &NUMBERED {
        if numbered.load(Relaxed).is_null() {
            continue;
        }
        let registry = REGISTRY.lock();
        // SAFETY: null or a cache, which is never unmapped.
        if let Some(cache) = unsafe { numbered.load(Relaxed).as_ref() }
            && cache.state.load(Relaxed) == LIVE
        {
            cache.visit(registry, Cache::tidy);
        }
    }
}

/// Destructs and returns all that is free, of caches without numbers and of those whose magazines and depots were flushed.
pub fn trim() {
    each(|cache| {
        if cache.place.load(Relaxed) == SHARED * 16 {
            heap::release_spare(&cache.shared);
        }
        cache.tidy();
    });
}

/// Asks the program to give objects back, if it can. Whether it was asked.
pub fn reclaim() -> bool {
    if !RECLAIMS.load(Relaxed) || RECLAIMING.swap(true, Acquire) {
        return false;
    }
    each(|cache| {
        if let Some(reclaim) = cache.reclaim {
            // SAFETY: the program's function.
            unsafe { reclaim(cache.data) };
        }
    });
    RECLAIMING.store(false, Release);
    if let Some(own) = cache::own() {
        own.flush_all();
    }
    heap::drain();
    trim();
    true
}

/// One of malloc's calls has an object of a cache without a number.
#[cold]
pub fn refuse_call(call: &str, address: usize) {
    report::error(format_args!(
        "{call}({address:#x}): an object of a cache, which umem_cache_free frees"
    ));
}

/// Bytes that caches without numbers have given out, and those of their slabs.
pub fn totals() -> (usize, usize) {
    let registry = REGISTRY.lock();
    let mut totals = (0, 0);
    for at in (0..registry.begun).filter(|&at| registry.is_live(at)) {
        let held = registry.get(at).shared.lock();
        totals.0 += held.out() * held.geometry().size();
        totals.1 += held.slabs() * held.geometry().units() * UNIT;
    }
    totals
}

/// Takes the locks, before a fork and before all others.
pub fn hold_all() {
    REGISTRY.hold();
    each_lock(|lock| {
        lock.hold();
    });
}

/// Ends [`hold_all`].
pub fn release_all(is_child: bool) {
    each_lock(Lock::release);
    REGISTRY.release();
    if is_child {
        FORKS.fetch_add(1, Relaxed);
        RECLAIMING.store(false, Relaxed);
        // Threads that are gone were in some; `each` counts itself.
        each(|cache| cache.busy.store(1, Relaxed));
    }
}

/// The locks of all caches; the registry's is held.
fn each_lock(visit: impl Fn(&Lock<Class<NoDepot>>)) {
    // SAFETY: the lock is held by this thread.
    let registry = unsafe { REGISTRY.held() };
    for at in 0..registry.begun {
        visit(&registry.get(at).shared);
    }
}

/// The first characters of a name; what would trouble a terminal becomes a question mark.
fn copy(name: &CStr) -> Name {
    let mut copy = [0; NAME_LEN];
    for (to, &from) in copy[..NAME_LEN - 1].iter_mut().zip(name.to_bytes()) {
        let is_plain = from.is_ascii_graphic() || from == b' ';
        *to = if is_plain { from } else { b'?' };
    }
    Name(copy)
}
