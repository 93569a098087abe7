//! C's names. The first half of [`malloc`] and [`free`] is the fast path.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use windlass_slab::{Fault, SMALL_MAX, TABLE_FINE, TABLE_WIDE, UNIT, aligned_class, class_of};

use crate::arch::entries;
use crate::cache::{self, PAIRED_MAX, slot, source};
use crate::debug;
use crate::heap::{self, HOT, SHARED};
use crate::options;
use crate::report;
use crate::sample;
use crate::stack::Caller;
use crate::sys;
use crate::umem;

/// Sizes up to here are looked up in `FINE`, and have two magazines.
const FINE_MAX: usize = PAIRED_MAX;
/// Every object starts at a multiple of this.
pub const ALIGN_MIN: usize = 8;

// Copies of this library's own: another's would be found through one load more.
static FINE: [u16; 129] = {
    let mut table = TABLE_FINE;
    let mut at = 0;
    while at < table.len() {
        table[at] = source(table[at] as usize / 16) as u16 * 16;
        at += 1;
    }
    table
};
static WIDE: [u16; 257] = TABLE_WIDE;

/// Pops an object from a magazine, given as its number times 16; `slow(bytes)` if there is none, or if a sample is due.
#[inline(always)]
fn pop(offset: usize, bytes: usize, slow: impl FnOnce(usize) -> *mut c_void) -> *mut c_void {
    let cache = cache::current();
    let magazine = cache.magazine(offset);
    let top = magazine.top.load(Relaxed);
    let object = slot(top).load(Relaxed);
    // In this order: a cache that must not be written has no objects.
    if object == 0 || cache.count(bytes) {
        return slow(bytes);
    }
    magazine.top.store(top.wrapping_sub(1), Relaxed);
    object as *mut c_void
}

/// Takes an object of at most 1 KiB, else calls `wide`, and `slow` where the magazine is empty.
#[inline(always)]
#[expect(clippy::manual_div_ceil, reason = "that is a test more")]
pub fn allocate(
    bytes: usize,
    wide: impl FnOnce(usize) -> *mut c_void,
    slow: impl FnOnce(usize) -> *mut c_void,
) -> *mut c_void {
    if bytes > FINE_MAX {
        return wide(bytes);
    }
    // SAFETY: the table has an entry for each eighth up to `FINE_MAX`.
    let offset = unsafe { FINE.get_unchecked((bytes + 7) / 8) };
    pop(usize::from(*offset), bytes, slow)
}

/// Takes an object of more than 1 KiB.
#[inline(always)]
#[expect(clippy::manual_div_ceil, reason = "that is a test more")]
pub fn allocate_wide(bytes: usize, slow: impl FnOnce(usize) -> *mut c_void) -> *mut c_void {
    if bytes > SMALL_MAX {
        return slow(bytes);
    }
    // SAFETY: the table has an entry for each 128 bytes up to `SMALL_MAX`.
    let offset = unsafe { WIDE.get_unchecked((bytes + 127) / 128) };
    pop(usize::from(*offset), bytes, slow)
}

// Each of the two begins a cache line: a processor that decodes whole ones takes less of them.
core::arch::global_asm!(
    ".pushsection .text.windlass_malloc,\"ax\",%progbits",
    ".p2align 6",
    ".popsection",
    ".pushsection .text.windlass_free,\"ax\",%progbits",
    ".p2align 6",
    ".popsection",
);

/// `malloc(3)`.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.windlass_malloc")]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    // SAFETY: it takes any number.
    allocate(bytes, malloc_wide, |bytes| malloc_again(bytes))
}

/// `malloc` of at most [`FINE_MAX`] bytes where its magazine is empty: takes from what was freed.
#[inline(never)]
#[expect(clippy::manual_div_ceil, reason = "that is a test more")]
extern "C" fn malloc_again(bytes: usize) -> *mut c_void {
    // SAFETY: it takes any number.
    let slow = |bytes| unsafe { malloc_slow(bytes) };
    let cache = cache::current();
    // SAFETY: `malloc` has looked there.
    let offset = usize::from(unsafe { *FINE.get_unchecked((bytes + 7) / 8) });
    if cache.is_over() || !cache.replenish(cache::class_of(offset / 16)) {
        return slow(bytes);
    }
    pop(offset, bytes, slow)
}

#[inline(never)]
extern "C" fn malloc_wide_c(bytes: usize) -> *mut c_void {
    // SAFETY: it takes any number.
    allocate_wide(bytes, |bytes| unsafe { malloc_slow(bytes) })
}

#[inline(always)]
fn malloc_wide(bytes: usize) -> *mut c_void {
    malloc_wide_c(bytes)
}

entries! {
    /// `malloc` where its magazine is empty, or a sample is due.
    extern "C" fn malloc_slow(bytes: usize) -> *mut c_void => malloc_from;
    /// `calloc(3)`.
    #[unsafe(no_mangle)]
    extern "C" fn calloc(count: usize, each: usize) -> *mut c_void => calloc_from;
    /// `realloc(3)`; as glibc's it frees where `bytes` is 0.
    #[unsafe(no_mangle)]
    extern "C" fn realloc(object: *mut c_void, bytes: usize) -> *mut c_void => realloc_from;
    /// `reallocarray(3)`.
    #[unsafe(no_mangle)]
    extern "C" fn reallocarray(object: *mut c_void, count: usize, each: usize) -> *mut c_void => reallocarray_from;
    /// `memalign(3)`: an alignment that is no power of two is raised to one.
    #[unsafe(no_mangle)]
    extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void => memalign_from;
    /// `aligned_alloc(3)`.
    #[unsafe(no_mangle)]
    extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void => aligned_alloc_from;
    /// `posix_memalign(3)`.
    #[unsafe(no_mangle)]
    extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, bytes: usize) -> c_int => posix_memalign_from;
    /// `valloc(3)`.
    #[unsafe(no_mangle)]
    extern "C" fn valloc(bytes: usize) -> *mut c_void => valloc_from;
    /// `pvalloc(3)`.
    #[unsafe(no_mangle)]
    extern "C" fn pvalloc(bytes: usize) -> *mut c_void => pvalloc_from;
}

extern "C" fn malloc_from(bytes: usize, sp: usize, fp: usize, pc: usize) -> *mut c_void {
    or_enomem(take(bytes, &Caller { sp, fp, pc }))
}

/// What C's calls return without memory.
fn or_enomem(object: *mut c_void) -> *mut c_void {
    if object.is_null() {
        sys::set_errno(libc::ENOMEM);
    }
    object
}

/// Memory of any size, or null. Leaves `errno`.
#[inline(never)]
pub fn take(bytes: usize, caller: &Caller) -> *mut c_void {
    take_from(class_of(bytes), bytes, 1, caller).0
}

/// An object of a class, or one without; and whether it reads as zeros.
fn take_from(
    class: Option<usize>,
    bytes: usize,
    align: usize,
    caller: &Caller,
) -> (*mut c_void, bool) {
    if options::is_debugging() {
        return (debug::take(bytes, align), false);
    }
    // First: a cache that was adopted just now may have what is asked for.
    let cache = cache::own();
    if let Some(due) = cache.and_then(|cache| cache.due(bytes))
        && let Some((object, is_zero)) = sample::take(class, bytes, align, due, caller)
    {
        return (object as *mut c_void, is_zero);
    }
    let object = match (class, cache) {
        (None, _) => 0,
        (Some(class), Some(cache)) => cache.take(class),
        (Some(class), None) => {
            let mut one = [0];
            heap::refill(class, &mut one);
            one[0]
        }
    };
    if object != 0 {
        return (object as *mut c_void, false);
    }
    let large = take_large(bytes, align);
    if large.0.is_null() && umem::reclaim() {
        return take_large(bytes, align);
    }
    large
}

/// A run or a mapping, and whether it reads as zeros.
fn take_large(bytes: usize, align: usize) -> (*mut c_void, bool) {
    match heap::take_large(bytes, align) {
        Some((address, is_zero)) => (address as *mut c_void, is_zero),
        None => (ptr::null_mut(), false),
    }
}

/// Aligned memory, or null; `align` is a power of two. Leaves `errno`.
pub fn take_aligned(align: usize, bytes: usize, caller: &Caller) -> *mut c_void {
    take_from(aligned_class(bytes, align), bytes, align, caller).0
}

/// Pushes an object to its magazine.
#[inline(always)]
pub fn release(object: *mut c_void) {
    let address = object as usize;
    let unit = address.wrapping_sub(HOT.base.load(Relaxed)) / UNIT;
    if unit >= HOT.units.load(Relaxed) || !address.is_multiple_of(ALIGN_MIN) {
        return release_slow(object);
    }
    let entry = HOT.map.load(Relaxed).wrapping_add(unit).cast::<u8>();
    // SAFETY: the entry of a usable unit, which nobody writes while an object of the unit is out.
    let class = unsafe { entry.read() };
    let magazine = cache::current().magazine(usize::from(class) * 16);
    let (top, limit) = magazine.ends();
    if top == limit || cache::held_by(top) == address {
        return release_slow(object);
    }
    let top = top.wrapping_add(1);
    slot(top).store(address, Relaxed);
    magazine.top.store(top, Relaxed);
}

/// `free(3)`.
///
/// # Safety
/// What was allocated here, and nobody uses any more, or null.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.windlass_free")]
pub unsafe extern "C" fn free(object: *mut c_void) {
    release(object);
}

#[cold]
#[inline(never)]
extern "C" fn release_slow(object: *mut c_void) {
    let address = object as usize;
    if address == 0 || options::is_debugging() && debug::release(address) {
        return;
    }
    let class = heap::entry_at(address);
    match class {
        0 => {
            sample::forget(address);
            return heap::release_large(address);
        }
        SHARED => return umem::refuse_call("free", address),
        _ => {}
    }
    if !address.is_multiple_of(ALIGN_MIN) {
        return report::fault("free", Fault::Interior(address));
    }
    if class >= heap::SAMPLED {
        sample::forget(address);
        return heap::flush(class, &[address]);
    }
    match cache::own() {
        Some(cache) => cache.put(class, address),
        None => heap::flush(class, &[address]),
    }
}

/// Bytes of the object that starts there.
fn len(call: &'static str, object: *mut c_void) -> usize {
    if options::is_debugging()
        && let Some(bytes) = debug::usable(call, object as usize)
    {
        return bytes;
    }
    match heap::entry_at(object as usize) {
        0 => heap::large_len(call, object as usize),
        SHARED => {
            umem::refuse_call(call, object as usize);
            0
        }
        entry => heap::object_size(heap::class_of_entry(entry)),
    }
}

/// `calloc`, with what the program has in its registers.
pub extern "C" fn calloc_from(
    count: usize,
    each: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    let Some(bytes) = count.checked_mul(each) else {
        return or_enomem(ptr::null_mut());
    };
    let caller = Caller { sp, fp, pc };
    let (object, is_zero) = match bytes {
        0..=SMALL_MAX => {
            let slow = |bytes| take_from(class_of(bytes), bytes, 1, &caller).0;
            let wide = |bytes| allocate_wide(bytes, slow);
            (allocate(bytes, wide, slow), false)
        }
        _ => take_from(None, bytes, 1, &caller),
    };
    if !object.is_null() && !is_zero {
        // SAFETY: an object of ours of that many bytes, which nobody else has.
        unsafe { ptr::write_bytes(object.cast::<u8>(), 0, bytes) };
    }
    or_enomem(object)
}

/// Makes a large object, which stays one, longer or shorter without a copy: its address. It is as likely a sample as a new one.
fn resize(object: *mut c_void, bytes: usize, caller: &Caller) -> Option<*mut c_void> {
    // First: as soon as a mapping has moved, another thread may have the old address.
    let sample = sample::forget(object as usize);
    let Some(address) = heap::resize_large(object as usize, bytes) else {
        if let Some(sample) = sample {
            sample::remember(sample);
        }
        return None;
    };
    if let Some(due) = cache::own().and_then(|cache| cache.due(bytes)) {
        sample::note(address, bytes, due, caller);
    }
    Some(address as *mut c_void)
}

unsafe extern "C" fn realloc_from(
    object: *mut c_void,
    bytes: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    let caller = Caller { sp, fp, pc };
    if object.is_null() {
        let slow = |bytes| or_enomem(take(bytes, &caller));
        return allocate(bytes, |bytes| allocate_wide(bytes, slow), slow);
    }
    if bytes == 0 {
        release(object);
        return ptr::null_mut();
    }
    if options::is_debugging()
        && let Some(new) = debug::resize(object as usize, bytes)
    {
        return or_enomem(new);
    }
    let old = len("realloc", object);
    let stays = bytes <= old && bytes >= old / 2;
    if stays && old <= SMALL_MAX {
        return object;
    }
    if old > SMALL_MAX
        && bytes > SMALL_MAX
        && let Some(object) = resize(object, bytes, &caller)
    {
        return object;
    }
    let new = take(bytes, &caller);
    if new.is_null() {
        // A shorter one is still there.
        return if bytes <= old { object } else { or_enomem(new) };
    }
    let kept = old.min(bytes);
    // SAFETY: two objects of at least that many bytes.
    unsafe { ptr::copy_nonoverlapping(object.cast::<u8>(), new.cast::<u8>(), kept) };
    release(object);
    new
}

unsafe extern "C" fn reallocarray_from(
    object: *mut c_void,
    count: usize,
    each: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    match count.checked_mul(each) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc_from(object, bytes, sp, fp, pc) },
        None => or_enomem(ptr::null_mut()),
    }
}

extern "C" fn memalign_from(
    align: usize,
    bytes: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => or_enomem(take_aligned(align, bytes, &Caller { sp, fp, pc })),
        None => or_enomem(ptr::null_mut()),
    }
}

extern "C" fn aligned_alloc_from(
    align: usize,
    bytes: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> *mut c_void {
    if !align.is_power_of_two() {
        sys::set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    or_enomem(take_aligned(align, bytes, &Caller { sp, fp, pc }))
}

unsafe extern "C" fn posix_memalign_from(
    out: *mut *mut c_void,
    align: usize,
    bytes: usize,
    sp: usize,
    fp: usize,
    pc: usize,
) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let object = take_aligned(align, bytes, &Caller { sp, fp, pc });
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *out = object };
    0
}

fn page() -> usize {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.unsigned_abs() as usize
}

extern "C" fn valloc_from(bytes: usize, sp: usize, fp: usize, pc: usize) -> *mut c_void {
    or_enomem(take_aligned(page(), bytes, &Caller { sp, fp, pc }))
}

extern "C" fn pvalloc_from(bytes: usize, sp: usize, fp: usize, pc: usize) -> *mut c_void {
    match bytes.checked_next_multiple_of(page()) {
        Some(bytes) => or_enomem(take_aligned(page(), bytes, &Caller { sp, fp, pc })),
        None => or_enomem(ptr::null_mut()),
    }
}

/// `malloc_usable_size(3)`: all of these bytes may be used.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    if object.is_null() {
        return 0;
    }
    len("malloc_usable_size", object)
}

/// C23's `free_sized`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(object: *mut c_void, _: usize) {
    release(object);
}

/// C23's `free_aligned_sized`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(object: *mut c_void, _: usize, _: usize) {
    release(object);
}
