//! Time for spinning: the time-stamp counter, and what a microsecond is in it.
//!
//! # Model
//! The counter is noted beside `CLOCK_MONOTONIC` when the library starts, and its rate is taken from both when a
//! time is first needed: nobody waits for a calibration. Good to a per cent after 10 ms, which is all that a spin
//! wants; before that a rate of 2.5 GHz is taken.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static START_CYCLES: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);
/// Cycles in 1,024 microseconds; 0 while it is not known.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Cycles in 1,024 microseconds at 2.5 GHz.
const RATE_BEFORE: u64 = 2_560_000;
/// The rate is taken only over at least this long.
const BASE_NS: u64 = 10_000_000;

pub use windlass_channel::sys::cycles as now;

/// Notes the first pair of times.
pub fn start() {
    START_CYCLES.store(now(), Relaxed);
    START_NS.store(nanoseconds(), Relaxed);
}

/// So many microseconds, in cycles of [`now`].
#[inline]
pub fn cycles(microseconds: u32) -> u64 {
    u64::from(microseconds) * rate() / 1024
}

/// `CLOCK_MONOTONIC`.
pub fn nanoseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is ours; the call is the vDSO's.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[inline]
fn rate() -> u64 {
    match RATE.load(Relaxed) {
        0 => measure(),
        rate => rate,
    }
}

#[cold]
fn measure() -> u64 {
    let cycles = now().wrapping_sub(START_CYCLES.load(Relaxed));
    let passed = nanoseconds().saturating_sub(START_NS.load(Relaxed));
    if passed < BASE_NS {
        return RATE_BEFORE;
    }
    let rate = (u128::from(cycles) * 1_024_000 / u128::from(passed)) as u64;
    RATE.store(rate.max(1), Relaxed);
    rate.max(1)
}
