//! Which allocations are samples, and what is known of them.
//!
//! # Model
//! A thread counts bytes down; the allocation that ends the countdown is a sample. Intervals are exponential, so that each byte is as likely as any other, and
//! an object of `n` bytes stands for `n / (1 - exp(-n / mean))`: sums of these weights are unbiased. The mean is `sample=`. Where that is left at its default, a
//! thread whose samples come faster than [`GAP_MIN`] doubles its own, which keeps the sums unbiased, because it depends on earlier samples alone.
//!
//! A small sample lies in a slab of its class's sampled twin, which no magazine holds: its release takes the slow path by itself.
//!
//! # Synchronization
//! The tables belong to one lock, which is taken last. Rows of the status file are copies: a fork's child has the tables and tells them anew.
//!
//! # What can be lost and what cannot
//! Sample 16,385 that lives, and the stack of a sample whose bucket is full of stacks with live samples, are counted as lost.

use core::cell::Cell;
use core::f64::consts::LN_2;
use core::slice;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use windlass_memory::options::{Key, OPTIONS};
use windlass_memory::{
    FRAMES, RAW, RawRow, SAMPLE, SAMPLING, STACK, Sample, SampleRow, Sampling, SamplingRow, Stack,
    StackRow, What,
};
use windlass_slab::{Mapping, Mappings};

use crate::heap;
use crate::lock::Lock;
use crate::options;
use crate::stack::{Bounds, Caller, Seen};
use crate::status;
use crate::sys;

/// Nanoseconds between two samples of a thread, on average, at least. A sample and its release take about one microsecond.
const GAP_MIN: u64 = 64_000;
/// Samples after which a thread looks how fast they come.
const PACE: u32 = 32;
/// Times that a mean is doubled at most: a thread that allocates 8 TB/s.
const DOUBLINGS_MAX: u32 = 20;
/// Stacks whose hashes lead to the same place.
const BUCKET: usize = 8;
/// Frames below which a stack is copied for the reader.
const FEW: usize = 4;

static STATE: AtomicU64 = AtomicU64::new(0);

/// Random bits: SplitMix64.
fn random() -> u64 {
    let add = 0x9e37_79b9_7f4a_7c15;
    mix(STATE.fetch_add(add, Relaxed).wrapping_add(add))
}

fn mix(bits: u64) -> u64 {
    let mixed = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Minus the natural logarithm of a number above 0 and at most 1, given in parts of 2^53.
fn minus_ln(parts: u64) -> f64 {
    let parts = parts as f64;
    // A floating-point number says its own logarithm: the exponent, and 1 to 2 by the series of ln((1 + y) / (1 - y)).
    let bits = parts.to_bits();
    let exponent = (bits >> 52) as f64 - 1023.0;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let y = (mantissa - 1.0) / (mantissa + 1.0);
    let square = y * y;
    let ln = 2.0 * y * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)));
    (53.0 - exponent) * LN_2 - ln
}

/// `1 - exp(-x)`, for `x` above 0.
fn one_minus_exp(x: f64) -> f64 {
    let (mut x, mut doublings) = (x.min(64.0), 0);
    while x > 0.5 {
        x /= 2.0;
        doublings += 1;
    }
    // x - x^2/2 + x^3/6 ...
    let series = (2..14)
        .rev()
        .fold(1.0, |sum, n| 1.0 - sum * x / f64::from(n));
    // 1 - exp(-2x) = y (2 - y) where y = 1 - exp(-x).
    (0..doublings).fold(x * series, |y, _| y * (2.0 - y))
}

/// What an object of `bytes` stands for.
fn weight(bytes: usize, mean: u64) -> u64 {
    let bytes = bytes as f64;
    (bytes / one_minus_exp(bytes / mean as f64)) as u64
}

/// A thread's means.
pub struct Pace {
    doublings: Cell<u32>,
    samples: Cell<u32>,
    /// When the last of each [`PACE`] samples was.
    since: Cell<u64>,
    /// The thread; 0: nobody has asked yet.
    tid: Cell<u64>,
    /// What is known of its stack.
    stack: Bounds,
}

impl Pace {
    /// Of a thread without samples.
    pub const fn new() -> Self {
        Self {
            doublings: Cell::new(0),
            samples: Cell::new(0),
            since: Cell::new(0),
            tid: Cell::new(0),
            stack: Bounds::new(),
        }
    }

    /// The thread is another one.
    pub fn forget_thread(&self) {
        self.tid.set(0);
        self.stack.forget();
    }

    /// The thread. A system call for each sample cost 3 ns in every pair of calls.
    fn thread(&self) -> u64 {
        if self.tid.get() == 0 {
            self.tid.set(sys::thread_id());
        }
        self.tid.get()
    }

    /// Bytes between two samples now, on average. 0: none are taken.
    fn mean(&self) -> u64 {
        (options::get(Key::Sample) as u64) << self.doublings.get()
    }

    /// Bytes until the next sample.
    pub fn interval(&self) -> isize {
        match self.mean() {
            0 => isize::MAX,
            mean => (minus_ln((random() >> 11) + 1) * mean as f64) as isize,
        }
    }

    /// At a sample: what led to it. The next one's mean may differ.
    pub fn step(&self) -> Due<'_> {
        let due = Due {
            mean: self.mean(),
            pace: self,
        };
        self.samples.set(self.samples.get() + 1);
        if self.samples.get() < PACE {
            return due;
        }
        let now = sys::precise_time();
        let gap = (now - self.since.replace(now)) / u64::from(PACE);
        self.samples.set(0);
        let doublings = self.doublings.get();
        if options::get(Key::Sample) != OPTIONS[Key::Sample as usize].initial {
            // The user's own choice.
        } else if gap < GAP_MIN && doublings < DOUBLINGS_MAX {
            self.doublings.set(doublings + 1);
        } else if gap > 4 * GAP_MIN {
            self.doublings.set(doublings.saturating_sub(1));
        }
        due
    }
}

/// What leads to a sample.
#[derive(Clone, Copy)]
pub struct Due<'a> {
    mean: u64,
    pace: &'a Pace,
}

/// Live samples, and where they were allocated.
struct Tables {
    /// Rows by address, which is rotated: the index does not look at the lowest 12 bits of a key.
    index: Mappings<'static>,
    /// Addresses are rotated, too: whoever looks for references to a sample finds none here.
    samples: &'static mut [Sample],
    stacks: &'static mut [Stack],
    /// 1 + the first free row of those used before, chained by `bytes`.
    free: u64,
    /// Rows that were ever used.
    begun: usize,
    /// Copies of stacks so far.
    raws: u64,
    totals: Sampling,
}

static TABLES: Lock<Tables> = Lock::new(Tables {
    index: Mappings::new(),
    samples: &mut [],
    stacks: &mut [],
    free: 0,
    begun: 0,
    raws: 0,
    totals: Sampling::NOTHING,
});
/// Samples that live outside of sampled slabs. Others need not look.
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// A table of rows that are zeros.
fn table<T>(rows: usize) -> Option<&'static mut [T]> {
    let start = sys::map_memory(rows * size_of::<T>())? as *mut T;
    // SAFETY: new memory; rows are words.
    Some(unsafe { slice::from_raw_parts_mut(start, rows) })
}

fn key(address: usize) -> usize {
    address.rotate_left(12)
}

impl Tables {
    /// Sees to room for one more. `false`: there is none.
    fn prepare(&mut self) -> bool {
        // One after the other: where the second is refused, the next sample does not map the first again.
        if self.samples.is_empty() {
            self.samples = table(SAMPLE.rows).unwrap_or_default();
        }
        if self.stacks.is_empty() {
            self.stacks = table(STACK.rows).unwrap_or_default();
        }
        if self.samples.is_empty() || self.stacks.is_empty() {
            return false;
        }
        if self.free == 0 && self.begun == self.samples.len() {
            return false;
        }
        heap::make_room(&mut self.index)
    }

    fn insert(&mut self, sample: Sample) {
        let row = match self.free.checked_sub(1) {
            Some(row) => {
                let row = row as usize;
                self.free = self.samples[row].bytes;
                row
            }
            None => {
                self.begun += 1;
                self.begun - 1
            }
        };
        self.samples[row] = Sample {
            address: key(sample.address as usize) as u64,
            ..sample
        };
        self.index.insert(Mapping {
            start: key(sample.address as usize),
            len: row,
        });
        self.totals.live += 1;
        self.count_stack(sample.stack, 1);
        self.show(row);
        self.show_totals();
    }

    fn remove(&mut self, address: usize) -> Option<Forgotten> {
        let row = self.index.remove(key(address))?;
        let sample = Sample {
            address: address as u64,
            ..self.samples[row]
        };
        self.samples[row] = Sample {
            bytes: self.free,
            ..Sample::NOTHING
        };
        self.free = row as u64 + 1;
        self.totals.live -= 1;
        self.count_stack(sample.stack, -1);
        self.show(row);
        self.show_totals();
        let hash = self.hash(sample.stack);
        Some(Forgotten { sample, hash })
    }

    /// What a stack's row is of now; 0: of none.
    fn hash(&self, number: u64) -> u64 {
        let at = (number as usize).checked_sub(1);
        at.map_or(0, |at| self.stacks[at].hash)
    }

    fn count_stack(&mut self, number: u64, more: i64) {
        let Some(at) = (number as usize).checked_sub(1) else {
            return;
        };
        let stack = &mut self.stacks[at];
        stack.live = stack.live.wrapping_add_signed(more);
        if let Some(row) = status::row::<StackRow>(&STACK, at) {
            row.sequence.write(|| row.live.store(stack.live, Relaxed));
        }
    }

    /// 1 + the row of a stack; 0: there is no room for it.
    fn stack(&mut self, seen: &Seen) -> u64 {
        let mut hash = seen.frames().iter().fold(0, |hash, pc| mix(hash ^ pc));
        if seen.frames().len() < FEW {
            // What is below the frames that are known is not the same at another depth.
            hash = mix(hash ^ seen.sp() as u64);
        }
        let hash = hash.max(1);
        let first = hash as usize % (self.stacks.len() / BUCKET) * BUCKET;
        let bucket = &self.stacks[first..first + BUCKET];
        let known = bucket.iter().position(|stack| stack.hash == hash);
        let place = known.or_else(|| bucket.iter().position(|stack| stack.live == 0));
        let Some(at) = place.map(|place| first + place) else {
            self.totals.stackless += 1;
            return 0;
        };
        if known.is_none() {
            let mut frames = [0; FRAMES];
            let depth = seen.frames().len();
            frames[..depth].copy_from_slice(seen.frames());
            self.stacks[at] = Stack {
                hash,
                live: 0,
                depth: depth as u64,
                raw: 0,
                frames,
            };
        }
        let raw = self.stacks[at].raw;
        let is_gone = raw == 0 || self.raws - (raw - 1) > RAW.rows as u64;
        if seen.frames().len() < FEW && is_gone {
            self.copy(seen, at);
        }
        if known.is_none() || self.stacks[at].raw != raw {
            self.show_stack(at);
        }
        at as u64 + 1
    }

    /// Copies a stack for the reader to unwind.
    fn copy(&mut self, seen: &Seen, stack: usize) {
        let number = self.raws;
        let Some(row) = status::row::<RawRow>(&RAW, number as usize % RAW.rows) else {
            return;
        };
        self.raws += 1;
        self.stacks[stack].raw = number + 1;
        row.sequence.write(|| {
            row.number.store(number, Relaxed);
            row.stack.store(stack as u64, Relaxed);
            seen.copy(row);
        });
    }

    fn show(&self, row: usize) {
        if let Some(shown) = status::row::<SampleRow>(&SAMPLE, row) {
            let sample = self.samples[row];
            match sample.address {
                0 => shown.sequence.write(|| shown.address.store(0, Relaxed)),
                rotated => shown.set(&Sample {
                    address: rotated.rotate_right(12),
                    ..sample
                }),
            }
        }
    }

    fn show_stack(&self, at: usize) {
        if let Some(shown) = status::row::<StackRow>(&STACK, at) {
            shown.set(&self.stacks[at]);
        }
    }

    fn show_totals(&self) {
        if let Some(shown) = status::row::<SamplingRow>(&SAMPLING, 0) {
            shown.set(&self.totals);
        }
    }
}

/// Takes a sample: memory for it, and whether it reads as zeros. `None`: no memory.
pub fn take(
    class: Option<usize>,
    bytes: usize,
    align: usize,
    due: Due<'_>,
    caller: &Caller,
) -> Option<(usize, bool)> {
    let mut one = [0];
    let small = class.is_some_and(|class| heap::refill(heap::SAMPLED | class, &mut one) > 0);
    let (address, is_zero) = if small {
        (one[0], false)
    } else {
        heap::take_large(bytes, align)?
    };
    note(address, bytes, due, caller);
    Some((address, is_zero))
}

/// Notes that an object is a sample.
pub fn note(address: usize, bytes: usize, due: Due<'_>, caller: &Caller) {
    let seen = Seen::from(caller, &due.pace.stack);
    let born = sys::coarse_time();
    let weight = weight(bytes, due.mean);
    let mut tables = TABLES.lock();
    tables.totals.taken += 1;
    if !tables.prepare() {
        tables.totals.lost += 1;
        tables.totals.lost_weight += weight;
        tables.show_totals();
        drop(tables);
        return status::event(What::SamplesFull, address, weight as usize);
    }
    let stack = tables.stack(&seen);
    tables.insert(Sample {
        address: address as u64,
        bytes: bytes as u64,
        weight,
        stack,
        born,
        tid: due.pace.thread(),
    });
    if is_large(address) {
        LARGE.fetch_add(1, Release);
    }
}

fn is_large(address: usize) -> bool {
    heap::entry_at(address) == 0
}

/// A sample that is none any more, and what the row of its stack was of: another stack may get it.
pub struct Forgotten {
    sample: Sample,
    hash: u64,
}

/// Before an object is released or moved: it is no sample any more. What it was, if it was one.
pub fn forget(address: usize) -> Option<Forgotten> {
    let is_large = is_large(address);
    if is_large && LARGE.load(Acquire) == 0 {
        return None;
    }
    let forgotten = TABLES.lock().remove(address)?;
    if is_large {
        LARGE.fetch_sub(1, Relaxed);
    }
    Some(forgotten)
}

/// Takes [`forget`] back.
pub fn remember(Forgotten { mut sample, hash }: Forgotten) {
    let mut tables = TABLES.lock();
    if tables.prepare() {
        if tables.hash(sample.stack) != hash {
            sample.stack = 0;
        }
        tables.insert(sample);
        if is_large(sample.address as usize) {
            LARGE.fetch_add(1, Release);
        }
    }
}

/// Tells the reader of a new file everything.
pub fn show_all() {
    let mut tables = TABLES.lock();
    // The copies of stacks are in the parent's file.
    for at in 0..tables.stacks.len() {
        if tables.stacks[at].live > 0 {
            tables.stacks[at].raw = 0;
            tables.show_stack(at);
        }
    }
    (0..tables.begun).for_each(|row| tables.show(row));
    tables.show_totals();
}

/// Takes the lock, before a fork.
pub fn hold() {
    TABLES.hold();
}

/// Ends [`hold`].
pub fn release() {
    TABLES.release();
}
