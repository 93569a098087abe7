//! The names of `<windlass/umem.h>`. The first halves of [`umem_cache_alloc`], [`umem_cache_free`], [`umem_alloc`] and [`umem_free`] are fast paths.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};

use windlass_slab::{Class, Geometry, UNIT, class_of};

use crate::arch::entries;
use crate::cache::{self, slot};
use crate::calls;
use crate::debug;
use crate::heap::{self, HOT};
use crate::lock::Lock;
use crate::options;
use crate::report;
use crate::stack::Caller;
use crate::sys;

use super::{
    Cache, Constructor, DEAD, Destructor, FORKS, NOFAIL, RECLAIMS, REGISTRY, Reclaim, UNCHECKED,
    copy, reclaim,
};

/// Objects are aligned to this if their size is a multiple of it and nothing else was asked for.
const ALIGN_MAX: usize = 16;
/// `UMC_NOTOUCH`, `UMC_NODEBUG`, `UMC_NOMAGAZINE`, `UMC_NOHASH`.
const KNOWN_FLAGS: c_int = 0xf_0000;
/// In `UMEM_CALLBACK_EXIT(status)`.
const CALLBACK_EXIT: c_int = 0x100;
const STATUS_MASK: c_int = 0xff;
/// Without a callback.
const EXIT_STATUS: c_int = 255;

type Callback = unsafe extern "C-unwind" fn() -> c_int;

static CALLBACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Held by the thread that ends the process.
static EXITS: Lock<()> = Lock::new(());

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
        samples: AtomicUsize::new(0),
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
    let asked = unsafe { &*cache };
    let own = cache::current();
    let magazine = own.magazine(asked.place.load(Relaxed));
    let top = magazine.top.load(Relaxed);
    let object = slot(top).load(Relaxed);
    // In this order: a thread's cache that must not be written has no objects.
    if object == 0 || own.count(asked.bytes) {
        // SAFETY: the caller's promise.
        return unsafe { allocate_slow(cache, flags) };
    }
    magazine.top.store(top.wrapping_sub(1), Relaxed);
    object as *mut c_void
}

entries! {
    /// [`umem_cache_alloc`] where its magazine is empty, or a sample is due.
    extern "C-unwind" fn allocate_slow(cache: *const Cache, flags: c_int) -> *mut c_void => allocate_from;
    /// [`umem_alloc`], likewise.
    extern "C-unwind" fn umem_alloc_slow(bytes: usize, flags: c_int) -> *mut c_void => umem_alloc_from;
    /// `umem_zalloc(3)`.
    #[unsafe(no_mangle)]
    extern "C-unwind" fn umem_zalloc(bytes: usize, flags: c_int) -> *mut c_void => umem_zalloc_from;
    /// Aligned memory; `align` is a power of two or 0. It is freed by [`umem_free_align`].
    #[unsafe(no_mangle)]
    extern "C-unwind" fn umem_alloc_align(bytes: usize, align: usize, flags: c_int) -> *mut c_void => umem_alloc_align_from;
}

extern "C-unwind" fn allocate_from(
    cache: *const Cache,
    flags: c_int,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    // SAFETY: the caller of `umem_cache_alloc` has promised it.
    let cache = unsafe { &*cache };
    let caller = Caller { sp, fp, pc };
    insist(flags, || {
        let take = || cache.take(&caller, flags);
        let again = || reclaim().then(take).flatten();
        take().or_else(again).unwrap_or(0) as *mut c_void
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
        |bytes| umem_alloc_wide(bytes, flags),
        // SAFETY: a number of bytes.
        |bytes| unsafe { umem_alloc_slow(bytes, flags) },
    )
}

#[inline(never)]
extern "C-unwind" fn umem_alloc_wide(bytes: usize, flags: c_int) -> *mut c_void {
    // SAFETY: a number of bytes.
    calls::allocate_wide(bytes, |bytes| unsafe { umem_alloc_slow(bytes, flags) })
}

extern "C-unwind" fn umem_alloc_from(
    bytes: usize,
    flags: c_int,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    insist(flags, || calls::take(bytes, &Caller { sp, fp, pc }))
}

extern "C-unwind" fn umem_zalloc_from(
    bytes: usize,
    flags: c_int,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    if bytes == 0 {
        return ptr::null_mut();
    }
    insist(flags, || calls::calloc_from(1, bytes, sp, fp, pc))
}

extern "C-unwind" fn umem_alloc_align_from(
    bytes: usize,
    align: usize,
    flags: c_int,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    if bytes == 0 || align.count_ones() > 1 {
        return ptr::null_mut();
    }
    let caller = Caller { sp, fp, pc };
    insist(flags, || calls::take_aligned(align.max(1), bytes, &caller))
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
