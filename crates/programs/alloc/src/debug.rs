//! Debugging by the environment: every buffer has a record, red zones and patterns.
//!
//! # Model
//! With a debugging word no thread has a cache, so that every call takes its slow path, and that leads here. A buffer is an object of a class,
//! or a run, with a zone before and behind what the program asked for. [`record`] finds the [`Record`] of an address, whatever part of the buffer it points to.
//!
//! # States
//! A record is *live* from the allocation to `free`; *leaving* while that fills the buffer or hides it; then *waiting*, while its memory is kept from being used again; then *gone*, until
//! another buffer has the place. A second free finds all of these.
//!
//! # Synchronization
//! [`STATE`] is the last lock of all. No memory of a program is read or written under it but at exit, and nothing is called.
//!
//! # Limits
//! Freed buffers wait up to [`WAITING_MAX`] of them and [`WAITING_BYTES`]. Up to [`WALLS_MAX`] buffers have walls. Red zones are verified for [`guards::ZONE_MAX`] bytes.

mod guards;
mod log;
mod record;
mod stack;
mod tell;

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use windlass_memory::options::Key;
use windlass_slab::{UNIT, aligned_class, size};

use crate::arch;
use crate::cache::{DEAD, EMPTY};
use crate::heap;
use crate::lock::{Held, Lock};
use crate::options;
use crate::sys;

use log::Logs;
use record::{Record, Records};
use stack::Transaction;
pub use tell::Call;
use tell::Wrong;

/// Freed buffers whose memory is kept.
const WAITING_MAX: usize = 4096;
/// Their bytes.
const WAITING_BYTES: usize = 16 << 20;
/// Buffers with walls: each may be two areas of the kernel's, which allows a process 65,530.
const WALLS_MAX: usize = 24_000;
/// Bytes before a buffer, unless its alignment takes more.
const FRONT: usize = 16;
/// Bytes behind it, at least.
const REAR: usize = 8;
/// The largest page; the smallest that can be protected.
const PAGE: usize = if cfg!(target_arch = "aarch64") {
    UNIT
} else {
    4096
};

/// What the lock of all records protects.
struct State {
    records: Records,
    waiting: Waiting,
    logs: Logs,
}

static STATE: Lock<State> = Lock::new(State {
    records: Records::new(),
    waiting: Waiting {
        ring: [0; WAITING_MAX],
        first: 0,
        count: 0,
        bytes: 0,
    },
    logs: Logs::new(),
});

/// Freed buffers, the oldest first: indices of their records.
struct Waiting {
    ring: [u32; WAITING_MAX],
    first: usize,
    count: usize,
    bytes: usize,
}

impl Waiting {
    fn push(&mut self, record: u32, bytes: usize) {
        self.ring[(self.first + self.count) % WAITING_MAX] = record;
        self.count += 1;
        self.bytes += bytes;
    }

    /// The oldest, if there are too many for one more, or `all` go.
    fn pop(&mut self, records: &mut Records, all: bool) -> Option<Record> {
        let is_over = self.count == WAITING_MAX || self.bytes > WAITING_BYTES;
        if self.count == 0 || !(is_over || all) {
            return None;
        }
        let record = records.at(self.ring[self.first]);
        self.first = (self.first + 1) % WAITING_MAX;
        self.count -= 1;
        self.bytes -= record.len;
        record.state = record::GONE;
        Some(record.clone())
    }
}

/// Where a buffer lies.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    /// What the program gets.
    object: usize,
    /// What it asked for.
    size: usize,
    /// The object of the heap.
    base: usize,
    len: usize,
    /// Its class; 0: a run or a mapping.
    class: usize,
    /// Its last page is untouchable.
    is_walled: bool,
}

/// A call is being served on this thread. With `nosignal` the thread's pointer says so.
struct Inside(bool);

impl Inside {
    fn begin(call: &str) -> Self {
        if options::get(Key::Nosignal) == 0 {
            return Self(false);
        }
        let is_nested = ptr::eq(arch::current(), &DEAD);
        if is_nested || stack::is_in_handler() {
            tell::signal(call, is_nested);
        }
        arch::set_current(&DEAD);
        Self(true)
    }

    /// Calls the program, whose own calls are not nested in this one.
    fn without(&self, call: impl FnOnce()) {
        if self.0 {
            arch::set_current(&EMPTY);
        }
        call();
        if self.0 {
            arch::set_current(&DEAD);
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.0 {
            arch::set_current(&EMPTY);
        }
    }
}

/// Memory for a program, or null; `align` is a power of two.
pub fn take(bytes: usize, align: usize) -> *mut c_void {
    let _inside = Inside::begin("malloc");
    begin(bytes, align, 0, true) as *mut c_void
}

/// An object of the cache `owner`; 0: no memory. `may_fail`: `mtbf=` counts.
pub fn take_object(owner: u32, bytes: usize, align: usize, may_fail: bool) -> usize {
    let _inside = Inside::begin("umem_cache_alloc");
    begin(bytes, align, owner, may_fail)
}

fn begin(bytes: usize, align: usize, owner: u32, may_fail: bool) -> usize {
    let now = Transaction::now(stack::ALLOCATED);
    let placed = if may_fail && fails() {
        None
    } else {
        place_or_drain(bytes, align)
    };
    let Some(buffer) = placed else {
        STATE.lock().logs.failed(bytes, &now);
        return 0;
    };
    guards::allocated(&buffer);
    let mut state = STATE.lock();
    let Some(record) = state.records.of(&buffer) else {
        state.logs.failed(bytes, &now);
        drop(state);
        give_back(buffer.base, buffer.len, buffer.class, buffer.is_walled);
        return 0;
    };
    record.begin(&buffer, owner, &now);
    state.logs.happened(buffer.object, bytes, &now);
    buffer.object
}

/// Whether `mtbf=` lets this one fail.
fn fails() -> bool {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mean = options::get(Key::Mtbf);
    if mean == 0 {
        return false;
    }
    let mut mixed = (CALLS.fetch_add(1, Relaxed) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed ^ mixed >> 32).is_multiple_of(mean as u64)
}

fn place_or_drain(bytes: usize, align: usize) -> Option<Buffer> {
    place(bytes, align).or_else(|| {
        settle(true);
        place(bytes, align)
    })
}

fn place(bytes: usize, align: usize) -> Option<Buffer> {
    let align = align.max(if bytes <= 8 { 8 } else { 16 });
    let wall = options::get(Key::Firewall);
    if wall > 0 && bytes >= wall && align <= PAGE && wall_counts() {
        let placed = place_walled(bytes, align);
        if !placed.is_some_and(|buffer| buffer.is_walled) {
            WALLS.fetch_sub(1, Relaxed);
        }
        return placed;
    }
    let front = align.max(FRONT);
    let total = bytes.checked_add(front)?.checked_add(REAR)?;
    let of = |base: usize, class: usize, len: usize| Buffer {
        object: base + front,
        size: bytes,
        base,
        len,
        class,
        is_walled: false,
    };
    if let Some(class) = aligned_class(total, align) {
        let mut one = [0];
        if heap::refill(class, &mut one) == 1 {
            return Some(of(one[0], class, size(class)));
        }
    }
    let (base, _) = heap::take_large(total, align)?;
    Some(of(base, 0, total.next_multiple_of(UNIT)))
}

/// Walls that there are.
static WALLS: AtomicUsize = AtomicUsize::new(0);

/// Whether there may be one wall more, which is counted then.
fn wall_counts() -> bool {
    let may = WALLS.fetch_add(1, Relaxed) < WALLS_MAX;
    if !may {
        WALLS.fetch_sub(1, Relaxed);
    }
    may
}

/// A buffer whose end is the end of a page, before one that nobody may touch.
fn place_walled(bytes: usize, align: usize) -> Option<Buffer> {
    let body = bytes.checked_next_multiple_of(align)?;
    let total = body.checked_add(FRONT + PAGE)?;
    let (base, _) = heap::take_large(total, 1)?;
    let len = total.next_multiple_of(UNIT);
    let wall = base + len - PAGE;
    Some(Buffer {
        object: wall - body,
        size: bytes,
        base,
        len,
        class: 0,
        is_walled: sys::forbid(wall, PAGE),
    })
}

/// Memory goes back to the heap.
fn give_back(base: usize, len: usize, class: usize, is_walled: bool) {
    if is_walled {
        if !sys::make_usable(base, len) {
            // The kernel has no room for one area more: it stays.
            return;
        }
        WALLS.fetch_sub(1, Relaxed);
    }
    match class {
        0 => heap::release_large(base),
        class => heap::flush(class, &[base]),
    }
}

/// Takes a buffer back. `false`: no record knows the address.
pub fn release(address: usize) -> bool {
    let _inside = Inside::begin("free");
    end(Call::of_malloc("free"), address, None, || {})
}

/// The same, of a buffer of so many bytes.
pub fn release_sized(address: usize, bytes: usize) -> bool {
    let _inside = Inside::begin("umem_free");
    end(Call::of_malloc("umem_free"), address, Some(bytes), || {})
}

/// The same, of an object of a cache; the program's `destruct` is called while nobody has it, and without a lock.
pub fn release_object(call: Call, address: usize, destruct: impl FnOnce()) -> bool {
    let inside = Inside::begin(call.name);
    end(call, address, None, || inside.without(destruct))
}

fn end(call: Call, address: usize, bytes: Option<usize>, destruct: impl FnOnce()) -> bool {
    let now = Transaction::now(stack::FREED);
    let mut state = STATE.lock();
    let Some(index) = state.records.find(address) else {
        return false;
    };
    let record = state.records.at(index);
    let before = record.clone();
    let other = bytes.filter(|&bytes| bytes != before.size);
    if let Some(wrong) = before.is_wrong(call, address).or(other.map(Wrong::Size)) {
        drop(state);
        tell::error(call, address, wrong, &before);
        return true;
    }
    // Another thread that frees it from now on is told.
    record.end(&now);
    state.logs.happened(before.object, before.size, &now);
    state.logs.wants_contents(before.size).inspect(|&len| {
        state.logs.contents(before.object, len);
    });
    drop(state);
    verify(call, &before);
    destruct();
    let is_hidden = guards::freed(&before);
    // There is room for one more as long as the lock is held.
    let mut state = settle(false);
    state.records.at(index).wait(is_hidden);
    state.waiting.push(index, before.len);
    drop(state);
    settle(false);
    true
}

/// Says what is wrong with the zones of a live buffer, or the contents of a freed one.
fn verify(call: Call, record: &Record) {
    if let Some((place, at)) = guards::damage(record) {
        tell::error(call, at, Wrong::Written(place), record);
    }
}

/// Buffers that have waited long enough become memory again. The lock, under which none is left.
fn settle(all: bool) -> Held<'static, State> {
    loop {
        let mut state = STATE.lock();
        let State {
            records, waiting, ..
        } = &mut *state;
        let Some(gone) = waiting.pop(records, all) else {
            return state;
        };
        drop(state);
        if !gone.is_walled {
            verify(Call::of_malloc("free"), &gone);
        }
        give_back(gone.base, gone.len, usize::from(gone.class), gone.is_walled);
    }
}

/// What the program asked for; `None`: no record knows the address.
pub fn usable(call: &'static str, address: usize) -> Option<usize> {
    let mut state = STATE.lock();
    let index = state.records.find(address)?;
    let record = state.records.at(index).clone();
    drop(state);
    // Of whatever cache it is an object.
    let call = Call {
        name: call,
        owner: record.link,
    };
    match record.is_wrong(call, address) {
        None => Some(record.size),
        Some(wrong) => {
            tell::error(Call::of_malloc(call.name), address, wrong, &record);
            Some(0)
        }
    }
}

/// `realloc`: always elsewhere. `None`: no record knows the address.
pub fn resize(address: usize, bytes: usize) -> Option<*mut c_void> {
    let _inside = Inside::begin("realloc");
    let mut state = STATE.lock();
    let index = state.records.find(address)?;
    let record = state.records.at(index).clone();
    drop(state);
    let call = Call::of_malloc("realloc");
    if let Some(wrong) = record.is_wrong(call, address) {
        tell::error(call, address, wrong, &record);
        return Some(ptr::null_mut());
    }
    let new = begin(bytes, 1, 0, true);
    if new != 0 {
        let kept = record.size.min(bytes);
        // SAFETY: two buffers of at least that many bytes.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, new as *mut u8, kept) };
        end(call, address, None, || {});
    }
    Some(new as *mut c_void)
}

/// Prints some of the objects of a cache that the program has.
pub fn live(owner: u32) {
    tell::live(owner);
}

/// Prints where the call came from.
pub fn stack() {
    tell::now();
}

/// Address of what describes the records to readers from outside.
pub fn description() -> usize {
    record::DESCRIPTION.as_ptr() as usize
}

/// Takes the lock, before a fork.
pub fn hold_all() {
    STATE.hold();
}

/// Ends [`hold_all`], in parent and child.
pub fn release_all() {
    STATE.release();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// Verifies every buffer that is live or waits.
extern "C" fn at_exit() {
    if !options::is_debugging() || options::get(Key::Guards) == 0 {
        return;
    }
    let mut from = 0;
    loop {
        // Under the lock: nobody else may free it, or use its memory again.
        let mut state = STATE.lock();
        let Some((index, damaged)) = state.records.next_damaged(from) else {
            return;
        };
        drop(state);
        from = index + 1;
        verify(Call::of_malloc("exit"), &damaged);
    }
}
