//! Keeping a thread on one core.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Keeps the calling thread on `core`.
///
/// # Errors
/// If there is no such core.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}
