//! Time in cycles: the processor's time-stamp counter, and what a cycle is in nanoseconds.
//!
//! # Purpose
//!
//! The worker loop reads the clock once a burst. `clock_gettime` enters the vDSO, reads a sequence
//! lock and converts; a counter is one instruction of 20 to 40 cycles, and a difference is converted
//! only when somebody looks at it.
//!
//! # Model
//!
//! [`now`] is the counter. [`Clock`] holds its frequency, measured once a process against
//! `CLOCK_MONOTONIC` over 10 ms, and converts differences. The counter is taken to be invariant and
//! synchronized between cores, as on every x86-64 server since 2008 and as Linux requires before it
//! uses it as a clock source.
//!
//! aarch64 has the generic timer, which the architecture demands to be invariant and synchronized. It
//! ticks 24 million to 1,000 million times a second, so [`now`] shifts it left until a second has 2^31
//! to 2^32 "cycles": budgets that are written in cycles mean about the same on both.
//!
//! # Limits
//!
//! The measurement is good to about 20 parts in a million: right for budgets, timers and rates,
//! wrong for timestamps that are compared with another machine's. RDTSC is not a fence: a few
//! instructions around it may run on its other side. A cycle of aarch64 is as coarse as its timer: 1 to
//! 42 ns.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the frequency is measured.
const CALIBRATION: Duration = Duration::from_millis(10);

/// Attempts to read both clocks without an interruption in between; the tightest one counts.
const READ_ATTEMPTS: usize = 8;

/// Fraction bits of the conversion factors: enough for 2^-32 relative error at any real frequency.
const FACTOR_BITS: u32 = 40;

const NS_PER_S: u128 = 1_000_000_000;

/// The counter, in cycles since some moment before this process began.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor and touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The counter, in cycles since some moment before this process began. The barrier keeps two readings
/// of one thread in order, which the architecture does not.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn now() -> u64 {
    let (ticks, hz): (u64, u64);
    // SAFETY: Linux lets every process read both registers; no memory is touched.
    unsafe {
        std::arch::asm!(
            "isb",
            "mrs {ticks}, cntvct_el0",
            "mrs {hz}, cntfrq_el0",
            ticks = out(reg) ticks, hz = out(reg) hz,
            options(nomem, nostack, preserves_flags),
        );
    }
    ticks << (hz as u32).leading_zeros()
}

/// Converts cycles of [`now`] to nanoseconds and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    hz: u64,
    /// Nanoseconds a cycle, times 2^FACTOR_BITS.
    ns_factor: u64,
    /// Cycles a nanosecond, times 2^FACTOR_BITS.
    cycle_factor: u64,
}

impl Clock {
    /// The process's clock. The first call measures for 10 ms; later ones are a load.
    pub fn get() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(Self::calibrate)
    }

    /// A clock of a known frequency in cycles a second, which must not be 0: for tests and
    /// simulation.
    pub const fn with_hz(hz: u64) -> Self {
        assert!(hz > 0, "a clock needs a frequency");
        Self {
            hz,
            ns_factor: ((NS_PER_S << FACTOR_BITS) / hz as u128) as u64,
            cycle_factor: (((hz as u128) << FACTOR_BITS) / NS_PER_S) as u64,
        }
    }

    fn calibrate() -> Self {
        let (start_time, start_cycles) = read_both();
        std::thread::sleep(CALIBRATION);
        let (end_time, end_cycles) = read_both();
        let ns = end_time.duration_since(start_time).as_nanos().max(1);
        let cycles = u128::from(end_cycles.saturating_sub(start_cycles).max(1));
        let hz = u64::try_from(cycles * NS_PER_S / ns).unwrap_or(u64::MAX);
        Self::with_hz(hz.max(1))
    }

    /// Cycles a second.
    #[inline]
    pub const fn hz(&self) -> u64 {
        self.hz
    }

    /// `cycles` in nanoseconds, rounded down; wraps after 584 years.
    #[inline]
    pub const fn ns(&self, cycles: u64) -> u64 {
        ((cycles as u128 * self.ns_factor as u128) >> FACTOR_BITS) as u64
    }

    /// `ns` nanoseconds in cycles, rounded down; wraps like the counter itself.
    #[inline]
    pub const fn cycles(&self, ns: u64) -> u64 {
        ((ns as u128 * self.cycle_factor as u128) >> FACTOR_BITS) as u64
    }
}

/// Both clocks at one moment, as nearly as several attempts allow.
fn read_both() -> (Instant, u64) {
    let attempt = || {
        let before = now();
        let time = Instant::now();
        let width = now().saturating_sub(before);
        (width, time, before + width / 2)
    };
    let mut best = attempt();
    for _ in 1..READ_ATTEMPTS {
        let next = attempt();
        if next.0 < best.0 {
            best = next;
        }
    }
    (best.1, best.2)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The measured frequency agrees with the monotonic clock over another, longer interval.
    #[test]
    fn frequency_agrees_with_the_monotonic_clock() {
        let clock = Clock::get();
        let (start, begin) = read_both();
        std::thread::sleep(Duration::from_millis(60));
        let (stop, end) = read_both();
        let by_tsc = clock.ns(end - begin) as f64;
        let by_os = stop.duration_since(start).as_nanos() as f64;
        let ratio = by_tsc / by_os;
        assert!(
            (0.98..1.02).contains(&ratio),
            "ratio {ratio} at {} Hz",
            clock.hz()
        );
        assert_eq!(clock, Clock::get());
    }

    /// Conversions are exact to a part in a million at ordinary frequencies, and inverse to each
    /// other.
    #[test]
    fn conversions_invert() {
        for hz in [1_000_000_000, 2_600_000_000, 3_333_333_333u64] {
            let clock = Clock::with_hz(hz);
            assert_eq!(clock.hz(), hz);
            for ns in [0u64, 1_000, 1_000_000, 1_000_000_000, 3_600_000_000_000] {
                let cycles = clock.cycles(ns);
                let exact = u128::from(ns) * u128::from(hz) / NS_PER_S;
                assert!(u128::from(cycles).abs_diff(exact) <= 1 + exact / 1_000_000);
                assert!(clock.ns(cycles).abs_diff(ns) <= 2 + ns / 1_000_000);
            }
        }
    }

    /// The counter does not run backwards on one thread.
    #[test]
    fn now_rises() {
        let mut last = now();
        for _ in 0..1_000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}
