//! Time for spinning: the time-stamp counter, and what a microsecond is in it.
//!
//! # Model
//! The counter is noted beside `CLOCK_MONOTONIC` when the library starts, and its rate is taken from both when a
//! time is first needed: nobody waits for a calibration. Good to a per cent after 10 ms, which is all that a spin
//! wants; before that a rate of 2.5 GHz is taken.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys::{kernel, memory, real};

static START_CYCLES: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);
/// Cycles in 1,024 microseconds; 0 while it is not known.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Cycles in 1,024 microseconds at 2.5 GHz.
const RATE_BEFORE: u64 = 2_560_000;
/// The rate is taken only over at least this long.
const BASE_NS: u64 = 10_000_000;

pub use windlass_channel::sys::cycles as now;

pub fn start() {
    START_CYCLES.store(now(), Relaxed);
    START_NS.store(nanoseconds(), Relaxed);
}

/// So many microseconds, in cycles of [`now`].
#[inline]
pub fn cycles(microseconds: u32) -> u64 {
    u64::from(microseconds) * rate() / 1024
}

pub fn nanoseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is ours; the call is the vDSO's.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How long a call may wait, in nanoseconds; none: for ever.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Wait(pub Option<u64>);

impl Wait {
    /// Of a call that takes milliseconds; negative: for ever.
    pub fn millis(millis: i32) -> Self {
        Self(u64::try_from(millis).ok().map(|millis| millis * 1_000_000))
    }

    /// What a `timespec` of the program says; null: for ever. None: it cannot be read, or is no time; the kernel says so.
    pub fn spec(spec: *const libc::timespec) -> Option<Self> {
        if spec.is_null() {
            return Some(Self(None));
        }
        let time = memory::fetch(spec)?;
        let is_time = (0..1_000_000_000).contains(&time.tv_nsec);
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| is_time)?;
        let ns = seconds.saturating_mul(1_000_000_000);
        Some(Self(Some(ns.saturating_add(time.tv_nsec as u64))))
    }

    /// The same of a `timeval`, whose microseconds may be more than a second.
    pub fn val(val: *const libc::timeval) -> Option<Self> {
        if val.is_null() {
            return Some(Self(None));
        }
        let time = memory::fetch(val)?;
        let parts = [(time.tv_sec, 1_000_000_000), (time.tv_usec, 1_000)];
        parts
            .into_iter()
            .try_fold(Self(Some(0)), |sum, (part, ns)| {
                let more = u64::try_from(part).ok()?.saturating_mul(ns);
                Some(Self(sum.0.map(|sum| sum.saturating_add(more))))
            })
    }

    pub fn is_now(self) -> bool {
        self.0 == Some(0)
    }
}

/// How long a call that falls asleep may wait, from now on.
#[derive(Clone, Copy)]
pub struct Limit {
    /// In nanoseconds of `CLOCK_MONOTONIC`; none: for ever.
    end: Option<u64>,
}

impl Limit {
    /// So many nanoseconds from now on; none: for ever.
    pub fn from_ns(time: Option<u64>) -> Limit {
        Limit {
            end: time.map(|time| nanoseconds().saturating_add(time)),
        }
    }

    /// What is left of it, in nanoseconds; none: there is no limit.
    pub fn left_ns(&self) -> Option<u64> {
        self.end.map(|end| end.saturating_sub(nanoseconds()))
    }

    /// `ppoll` for what is left. A cancellation point.
    ///
    /// # Safety
    /// As libc's.
    pub unsafe fn poll(
        &self,
        entries: *mut libc::pollfd,
        count: libc::nfds_t,
        mask: *const libc::sigset_t,
    ) -> isize {
        let left = self.left_ns().map(kernel::timespec);
        let left: *const libc::timespec = left.as_ref().map_or(std::ptr::null(), |left| left);
        // SAFETY: the caller's promise; the time is ours.
        unsafe { real::ppoll(entries, count, left, mask) as isize }
    }

    pub fn is_over(&self) -> bool {
        self.left_ns() == Some(0)
    }
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
