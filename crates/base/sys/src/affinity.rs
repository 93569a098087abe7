//! Which CPUs a thread runs on.

use rustix::io::Errno;
use rustix::thread::CpuSet;

/// CPU numbers at and above this cannot be named (`CPU_SETSIZE`).
pub const CPUS_MAX: usize = CpuSet::MAX_CPU;

/// Keeps the calling thread on `cpu`, for good.
///
/// # Errors
/// `EINVAL` if the machine has no such CPU, it is offline, or the process's cgroup forbids it.
pub fn pin_thread(cpu: usize) -> Result<(), Errno> {
    if cpu >= CPUS_MAX {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

/// The CPUs that the calling thread may run on, in ascending order.
pub fn allowed_cpus() -> Result<Vec<usize>, Errno> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CPUS_MAX).filter(|&cpu| set.is_set(cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pinned thread may run on that CPU alone; a CPU that cannot be is an error.
    #[test]
    fn pins() -> Result<(), Errno> {
        let last = allowed_cpus()?.pop().ok_or(Errno::INVAL)?;
        let (pinned, refused) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                pin_thread(last)?;
                Ok::<_, Errno>((allowed_cpus()?, pin_thread(CPUS_MAX)))
            });
            thread.join().unwrap_or(Err(Errno::INVAL))
        })?;
        assert_eq!(pinned, [last]);
        assert_eq!(refused, Err(Errno::INVAL));
        Ok(())
    }
}
