//! The time that a cache line takes from one core to another.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use windlass_stats::Histogram;
use windlass_sync::{Padded, tsc};
use windlass_sys::affinity::allowed_cpus;

use crate::core::pin;

const TRIPS: u64 = 300_000;

/// One way between two cores in nanoseconds, half of the median round trip of one line.
///
/// # Errors
/// If a core is not ours.
pub fn one_way(cores: [usize; 2]) -> Result<f64> {
    let ours = allowed_cpus()?;
    if let Some(missing) = cores.iter().find(|core| !ours.contains(core)) {
        bail!("core {missing} is not ours");
    }
    let word = Padded::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| answer(cores[1], &word));
        let times = scope.spawn(|| ask(cores[0], &word));
        answer.join().ok().context("the answering core")??;
        let times = times.join().ok().context("the asking core")??;
        Ok(times.percentile(0.5) / 2.0 * 1e9 / tsc::Clock::get().hz() as f64)
    })
}

fn wait(word: &AtomicU64, value: u64) {
    while word.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

fn answer(core: usize, word: &AtomicU64) -> Result<()> {
    pin(core)?;
    for turn in 0..TRIPS {
        wait(word, turn * 2 + 1);
        word.store(turn * 2 + 2, Ordering::Release);
    }
    Ok(())
}

fn ask(core: usize, word: &AtomicU64) -> Result<Histogram> {
    pin(core)?;
    let mut times = Histogram::default();
    for turn in 0..TRIPS {
        let begun = tsc::now();
        word.store(turn * 2 + 1, Ordering::Release);
        wait(word, turn * 2 + 2);
        times.add(tsc::now() - begun);
    }
    Ok(times)
}
