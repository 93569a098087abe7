//! Object caches: `umem_cache_create(3)` and its family.
//!
//! # Model
//! A cache has a number, a class of its own and a place among each thread's magazines, as long as there are numbers; [`umem_cache_alloc`] is
//! malloc's fast path with a constant class. Further caches, and those of large objects, have the number [`SHARED`] and work under their lock.
//!
//! An object is constructed when it first leaves its slab, a batch at a time, and destructed when the empty slab goes back. In
//! between it stays constructed, in magazines, depot and slab.
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

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};

use windlass_memory as memory;
use windlass_memory::CACHE_OWNERS;
use windlass_slab::{BATCH_MAX, CLASSES, Class, Fault, Geometry, UNIT, class_of};

use crate::cache::{self, slot};
use crate::calls;
use crate::debug;
use crate::heap::{self, HOT, NUMBERS, SHARED};
use crate::lock::Lock;
use crate::options;
use crate::report;
use crate::status;
use crate::sys;

/// Bytes of a name, with the zero that ends it.
const NAME_LEN: usize = 32;
/// Caches that there may be at once.
const CACHES_MAX: usize = 32 << 10;
/// Larger objects are not kept in magazines.
const NUMBERED_MAX: usize = 64 << 10;
/// Objects are aligned to this if their size is a multiple of it and nothing else was asked for.
const ALIGN_MAX: usize = 16;

/// `UMEM_NOFAIL`.
const NOFAIL: c_int = 0x100;
/// `UMC_NOTOUCH` and `UMC_NODEBUG`: debugging words do not count.
const UNCHECKED: c_int = 0x3_0000;
/// `UMC_NOMAGAZINE`.
const NOMAGAZINE: c_int = 0x4_0000;
/// `UMC_NOTOUCH`, `UMC_NODEBUG`, `UMC_NOMAGAZINE`, `UMC_NOHASH`.
const KNOWN_FLAGS: c_int = 0xf_0000;
/// In `UMEM_CALLBACK_EXIT(status)`.
const CALLBACK_EXIT: c_int = 0x100;
const STATUS_MASK: c_int = 0xff;
/// Without a callback.
const EXIT_STATUS: c_int = 255;

const DEAD: u8 = 0;
const LIVE: u8 = 1;
/// Being destroyed; or left behind, because a fork lost objects of it.
const ENDING: u8 = 2;

type Constructor = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, c_int) -> c_int;
type Destructor = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);
type Reclaim = unsafe extern "C-unwind" fn(*mut c_void);
type Callback = unsafe extern "C-unwind" fn() -> c_int;

/// `umem_cache_t`. All of it is written before the program knows it, and stays, but for the atomics and what the lock has.
#[repr(C)]
pub struct Cache {
    /// The number times 16; 0: destroyed.
    place: AtomicUsize,
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
    /// What was asked for.
    bytes: usize,
    align: usize,
    is_checked: bool,
    /// Of a checked one: objects that the program has. Changed under `shared`.
    out: AtomicUsize,
    /// Of a cache without a number.
    shared: Lock<Class<0>>,
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
static CALLBACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Held by the thread that ends the process.
static EXITS: Lock<()> = Lock::new(());

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
    fn objects(&self, held: &Class<0>) -> usize {
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
    fn take(&self, flags: c_int) -> Option<usize> {
        let number = self.number("umem_cache_alloc")?;
        if self.is_checked {
            return self.take_checked(flags);
        }
        let mut batch = [0; BATCH_MAX];
        if number == SHARED {
            let taken = heap::refill_from(&self.shared, SHARED, &mut batch[..1]);
            let kept = self.construct(&mut batch[..taken.count], taken.fresh, flags);
            return batch[..kept].first().copied();
        }
        let own = cache::own();
        // It was adopted just now, and is as full as it was.
        if let Some(object) = own.and_then(|own| own.pop(number)) {
            return Some(object);
        }
        let room = own.map_or(1, |own| own.room(number));
        let taken = heap::refill_from(heap::class(number), number, &mut batch[..room]);
        let kept = self.construct(&mut batch[..taken.count], taken.fresh, flags);
        let (&object, rest) = batch[..kept].split_last()?;
        let filled = own.map_or(0, |own| own.fill(number, rest));
        if filled < rest.len() {
            // The constructor has filled the magazine by itself.
            heap::flush(number, &rest[filled..]);
        }
        Some(object)
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
    fn construct(&self, objects: &mut [usize], fresh: u64, flags: c_int) -> usize {
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
            self.give_up(&refused[..gone]);
        }
        kept
    }

    fn give_up(&self, objects: &[usize]) {
        let given = match self.place.load(Relaxed) / 16 {
            SHARED => heap::give_up(&self.shared, objects),
            number => heap::give_up(heap::class(number), objects),
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
        if heap::entry_at(address) != number {
            return self.complain(Fault::Unknown(address));
        }
        if number == SHARED {
            if let Err(fault) = heap::release_to(&self.shared, &[address]) {
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
            number => heap::destruct(heap::class(number), destruct),
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
        heap::drain_one(class)?;
        Ok(class.lock().out())
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
fn each_lock(visit: impl Fn(&Lock<Class<0>>)) {
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

fn refuse(errno: c_int) -> *mut Cache {
    sys::set_errno(errno);
    ptr::null_mut()
}

/// `umem_cache_create(3)`.
///
/// # Safety
/// `name` is a string or null; the callbacks do what they must.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umem_cache_create(
    name: *const c_char,
    bytes: usize,
    align: usize,
    constructor: Option<Constructor>,
    destructor: Option<Destructor>,
    reclaim: Option<Reclaim>,
    data: *mut c_void,
    source: *mut c_void,
    flags: c_int,
) -> *mut Cache {
    let is_power = align == 0 || align.is_power_of_two();
    let is_known = flags & !KNOWN_FLAGS == 0 && source.is_null();
    if name.is_null() || bytes == 0 || !is_power || align > UNIT || !is_known {
        return refuse(libc::EINVAL);
    }
    // What a type of this size needs at most.
    let natural = (bytes & bytes.wrapping_neg()).clamp(calls::ALIGN_MIN, ALIGN_MAX);
    let align = if align == 0 { natural } else { align };
    // The program may be earlier than the library's constructor.
    options::read();
    let is_checked = options::is_debugging() && flags & UNCHECKED == 0;
    let constructs = !is_checked && (constructor.is_some() || destructor.is_some());
    let Some(geometry) = Geometry::of_cache(bytes, align, constructs) else {
        return refuse(libc::ENOMEM);
    };
    if reclaim.is_some() {
        RECLAIMS.store(true, Relaxed);
    }
    let wanted = Cache {
        place: AtomicUsize::new(0),
        state: AtomicU8::new(DEAD),
        busy: AtomicU32::new(0),
        forks: FORKS.load(Relaxed),
        constructor,
        destructor,
        reclaim,
        data,
        // SAFETY: the caller's promise.
        name: copy(unsafe { CStr::from_ptr(name) }),
        constructs,
        owner: 0,
        bytes,
        align,
        is_checked,
        out: AtomicUsize::new(0),
        shared: Lock::new(Class::new(1, geometry)),
    };
    let made = REGISTRY.lock().make(geometry, wanted, flags);
    made.unwrap_or_else(|| refuse(libc::EAGAIN))
}

/// `umem_cache_destroy(3)`.
///
/// # Safety
/// A cache that nobody uses any more, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umem_cache_destroy(cache: *const Cache) {
    // SAFETY: the caller's promise; a destroyed one is still there.
    if let Some(cache) = unsafe { cache.as_ref() } {
        cache.destroy();
    }
}

/// `umem_cache_alloc(3)`: an object in its constructed state.
///
/// # Safety
/// A cache.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umem_cache_alloc(cache: *const Cache, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    let place = unsafe { &(*cache).place };
    let magazine = cache::current().magazine(place.load(Relaxed));
    let top = magazine.top.load(Relaxed);
    let object = slot(top).load(Relaxed);
    if object == 0 {
        return allocate_slow(cache, flags);
    }
    magazine.top.store(top.wrapping_sub(1), Relaxed);
    object as *mut c_void
}

#[cold]
#[inline(never)]
extern "C-unwind" fn allocate_slow(cache: *const Cache, flags: c_int) -> *mut c_void {
    // SAFETY: the caller of `umem_cache_alloc` has promised it.
    let cache = unsafe { &*cache };
    insist(flags, || {
        let again = || reclaim().then(|| cache.take(flags)).flatten();
        cache.take(flags).or_else(again).unwrap_or(0) as *mut c_void
    })
}

/// Takes memory; without it asks the program's callback if `flags` say so, as often as that wants. Null with `ENOMEM` otherwise.
fn insist(flags: c_int, take: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        let object = take();
        if !object.is_null() {
            return object;
        }
        if flags & NOFAIL == 0 {
            sys::set_errno(libc::ENOMEM);
            return object;
        }
        let callback = CALLBACK.load(Relaxed);
        let answer = if callback.is_null() {
            CALLBACK_EXIT | EXIT_STATUS
        } else {
            // SAFETY: what `umem_nofail_callback` got.
            let callback: Callback = unsafe { core::mem::transmute(callback) };
            // SAFETY: the program's function.
            unsafe { callback() }
        };
        if answer & !STATUS_MASK == CALLBACK_EXIT {
            // Others wait here for the end.
            EXITS.hold();
            // SAFETY: ends the process.
            unsafe { libc::exit(answer & STATUS_MASK) };
        }
        if answer != 0 {
            report::die(format_args!("the nofail callback returned {answer}"));
        }
    }
}

/// `umem_cache_free(3)`.
///
/// # Safety
/// A cache, and an object of it that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umem_cache_free(cache: *const Cache, object: *mut c_void) {
    // SAFETY: the caller's promise.
    let place = unsafe { (*cache).place.load(Relaxed) };
    if !push(object, place) {
        free_slow(cache, object);
    }
}

/// Pushes an object to the magazine of its class, which must be this one. `false`: that is for the slow path.
#[inline(always)]
fn push(object: *mut c_void, place: usize) -> bool {
    let address = object as usize;
    let unit = address.wrapping_sub(HOT.base.load(Relaxed)) / UNIT;
    if unit >= HOT.units.load(Relaxed) || !address.is_multiple_of(calls::ALIGN_MIN) {
        return false;
    }
    // SAFETY: the entry of a usable unit.
    let class = unsafe { &*HOT.map.load(Relaxed).wrapping_add(unit) };
    let magazine = cache::current().magazine(place);
    let top = magazine.top.load(Relaxed);
    if usize::from(class.load(Relaxed)) * 16 != place
        || top == magazine.limit.load(Relaxed)
        || slot(top).load(Relaxed) == address
    {
        return false;
    }
    let top = top.wrapping_add(1);
    slot(top).store(address, Relaxed);
    magazine.top.store(top, Relaxed);
    true
}

#[cold]
#[inline(never)]
extern "C-unwind" fn free_slow(cache: *const Cache, object: *mut c_void) {
    // SAFETY: the caller of `umem_cache_free` has promised it.
    unsafe { &*cache }.put(object as usize);
}

/// `umem_alloc(3)`: NULL for 0 bytes.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn umem_alloc(bytes: usize, flags: c_int) -> *mut c_void {
    if bytes == 0 {
        return ptr::null_mut();
    }
    calls::allocate(
        bytes,
        |bytes| umem_alloc_slow(bytes, flags),
        |bytes| umem_alloc_slow(bytes, flags),
    )
}

#[inline(never)]
extern "C-unwind" fn umem_alloc_slow(bytes: usize, flags: c_int) -> *mut c_void {
    insist(flags, || calls::malloc(bytes))
}

/// `umem_zalloc(3)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn umem_zalloc(bytes: usize, flags: c_int) -> *mut c_void {
    if bytes == 0 {
        return ptr::null_mut();
    }
    // SAFETY: a number of bytes.
    insist(flags, || unsafe { calls::calloc(1, bytes) })
}

/// Aligned memory; `align` is a power of two or 0. It is freed by [`umem_free_align`].
#[unsafe(no_mangle)]
pub extern "C-unwind" fn umem_alloc_align(bytes: usize, align: usize, flags: c_int) -> *mut c_void {
    if bytes == 0 || align.count_ones() > 1 {
        return ptr::null_mut();
    }
    // SAFETY: a power of two, and a number of bytes.
    insist(flags, || unsafe { calls::memalign(align.max(1), bytes) })
}

/// `umem_free(3)`: with the size that was asked for.
///
/// # Safety
/// As `free(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umem_free(object: *mut c_void, bytes: usize) {
    let class = class_of(bytes).unwrap_or(0);
    if !push(object, class * 16) {
        umem_free_slow(object, bytes, class);
    }
}

#[cold]
#[inline(never)]
fn umem_free_slow(object: *mut c_void, bytes: usize, class: usize) {
    let address = object as usize;
    if options::is_debugging() && debug::release_sized(address, bytes) {
        return;
    }
    // Objects without a class are runs or mappings, whatever their size.
    let found = heap::class_of_entry(heap::entry_at(address));
    if found != 0 && found != class {
        report::error(format_args!(
            "umem_free({address:#x}, {bytes}): allocated with another size"
        ));
    }
    calls::release(object);
}

/// Frees what [`umem_alloc_align`] returned.
///
/// # Safety
/// As `free(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umem_free_align(object: *mut c_void, _: usize) {
    calls::release(object);
}

/// Sets what `UMEM_NOFAIL` calls without memory; null: the process exits with status 255.
#[unsafe(no_mangle)]
pub extern "C" fn umem_nofail_callback(callback: Option<Callback>) {
    let callback = callback.map_or(ptr::null_mut(), |callback| callback as *mut c_void);
    CALLBACK.store(callback, Relaxed);
}

/// Calls every reclaim callback, and gives what nobody has back to the kernel.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn umem_reap() {
    reclaim();
    crate::figures::malloc_trim(0);
}
