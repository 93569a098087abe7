//! What the calling thread has used: page faults, and how long it has waited for a core.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// Counts of one thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Page faults, with or without I/O; one that waited in the kernel counts once it is over.
    pub faults: u64,
    /// Nanoseconds in which it could have run, and had no core.
    pub waited_ns: u64,
}

/// Reads the counts of the thread that opened it.
#[derive(Debug)]
pub struct UsageReader {
    /// None where the kernel keeps no such counts (`CONFIG_SCHED_INFO`): nobody has waited then.
    schedstat: Option<OwnedFd>,
}

impl UsageReader {
    /// For the calling thread.
    #[must_use]
    pub fn open() -> UsageReader {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let schedstat = rustix::fs::open("/proc/thread-self/schedstat", flags, Mode::empty());
        UsageReader {
            schedstat: schedstat.ok(),
        }
    }

    /// The counts now: two system calls, a microsecond. To be called by the thread that opened it.
    #[must_use]
    pub fn read(&self) -> Usage {
        Usage {
            faults: faults(),
            waited_ns: self.waited_ns().unwrap_or(0),
        }
    }

    /// The second of three numbers.
    fn waited_ns(&self) -> Option<u64> {
        let mut bytes = [0; 64];
        let n = rustix::io::pread(self.schedstat.as_ref()?, &mut bytes[..], 0).ok()?;
        let text = std::str::from_utf8(bytes.get(..n)?).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// Page faults of the calling thread.
fn faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes a structure of this type to memory that is one.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeroed memory is a valid value of this plain structure, whether or not the call filled it.
    let usage = unsafe { usage.assume_init() };
    usage
        .ru_minflt
        .wrapping_add(usage.ru_majflt)
        .cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every page that is touched for the first time is a fault; memory that is there costs none.
    #[test]
    fn first_touches_are_counted() {
        let reader = UsageReader::open();
        let pages = 64;
        // So much that the allocator takes it from the kernel: what is free in its heap may have been touched before.
        let mut memory = Vec::<u8>::with_capacity(64 << 20);
        let _ = reader.read();
        let before = reader.read();
        memory.resize(pages << 12, 1);
        let touched = reader.read();
        memory.fill(2);
        let again = reader.read();
        assert!(std::hint::black_box(&memory).iter().all(|b| *b == 2));
        // Huge pages are a fault for many.
        assert!(touched.faults > before.faults, "{before:?} {touched:?}");
        assert_eq!(again.faults, touched.faults);
        assert!(again.waited_ns >= before.waited_ns);
    }
}
