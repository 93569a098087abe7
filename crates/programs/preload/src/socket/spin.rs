//! Spinning: how long a call waits for its peer before it sleeps in the kernel.

use std::sync::atomic::Ordering::Relaxed;

use crate::options;
use crate::process::identity;
use crate::sys::clock;

/// Fruitless spins in a row before some are left out, and the order of the most that are left out in a row.
const FRUITLESS: u64 = 3;
const SKIPS_ORDER_MAX: u64 = 5;
/// Places in [`identity::Thread::words`]: fruitless spins in a row, and spins still to be left out.
const SPIN_MISSES: usize = 1;
const SPIN_SKIPS: usize = 2;
/// When this thread last came to spin, in cycles.
const SPIN_AT: usize = 3;
/// Where the user has not said how long to spin, only a thread that waits at least so often does. A round trip through two
/// sleeps takes about 100 us where an idle core halts: less than that, and two programs that ask and answer would never start.
const BUSY_US: u32 = 300;
/// A spin lets others run after so long, and again at every look at the clock.
const YIELD_US: u32 = 5;
/// Looks of a spin between two at the clock, which costs as much as some of them.
const SPIN_LOOKS: u32 = 4;

/// Spins for as long as the user allows; whether `done` became true. A thread whose spins were fruitless [`FRUITLESS`] times in a
/// row leaves out ever more of the next ones, until one bears fruit: where cores are short, spinning keeps from running
/// whom it waits for.
#[inline]
pub fn spin(mut done: impl FnMut() -> bool) -> bool {
    let limit = options::spin_us() as u32;
    if limit == 0 {
        return done();
    }
    let words = &identity::thread().words;
    let [misses, skips] = [SPIN_MISSES, SPIN_SKIPS].map(|at: usize| &words[at]);
    let skip = skips.load(Relaxed);
    if skip > 0 {
        skips.store(skip - 1, Relaxed);
        return done();
    }
    let limit = clock::cycles(limit);
    let mut start = 0;
    if !options::is_spin_given() {
        start = clock::now();
        let before = words[SPIN_AT].load(Relaxed);
        words[SPIN_AT].store(start, Relaxed);
        if start.wrapping_sub(before) > clock::cycles(BUSY_US) {
            return done();
        }
    }
    loop {
        if (0..SPIN_LOOKS).any(|_| done()) {
            misses.store(0, Relaxed);
            return true;
        }
        let now = clock::now();
        start = if start == 0 { now } else { start };
        let spun = now.wrapping_sub(start);
        if spun > clock::cycles(YIELD_US) {
            // Whoever is waited for may be waiting for this core.
            std::thread::yield_now();
        }
        if spun > limit {
            let missed = misses.load(Relaxed) + 1;
            misses.store(missed, Relaxed);
            if missed >= FRUITLESS {
                skips.store(1 << (missed - FRUITLESS).min(SKIPS_ORDER_MAX), Relaxed);
            }
            return false;
        }
    }
}
