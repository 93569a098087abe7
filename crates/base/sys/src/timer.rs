//! Time of the monotonic clock, and timers on it that can be polled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
};

/// `CLOCK_MONOTONIC`: time since some point before the process started.
#[must_use]
pub fn monotonic_now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// A timer on the monotonic clock that is readable when due.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl Timer {
    /// A timer that is not set.
    pub fn create() -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            fd: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    /// Sets it to `deadline`, in [`monotonic_now`] terms; one that is past is due at once. Takes the
    /// place of what was set before.
    pub fn set_at(&self, deadline: Duration) -> Result<(), Errno> {
        // Zero would disarm it.
        let at = timespec(deadline.max(Duration::from_nanos(1)));
        self.set(
            TimerfdTimerFlags::ABSTIME,
            Itimerspec {
                it_interval: ZERO,
                it_value: at,
            },
        )
    }

    /// Sets it to be due every `period`, first after one.
    pub fn set_every(&self, period: Duration) -> Result<(), Errno> {
        let period = timespec(period.max(Duration::from_nanos(1)));
        let times = Itimerspec {
            it_interval: period,
            it_value: period,
        };
        self.set(TimerfdTimerFlags::empty(), times)
    }

    /// Unsets it.
    pub fn clear(&self) -> Result<(), Errno> {
        let times = Itimerspec {
            it_interval: ZERO,
            it_value: ZERO,
        };
        self.set(TimerfdTimerFlags::empty(), times)
    }

    fn set(&self, flags: TimerfdTimerFlags, times: Itimerspec) -> Result<(), Errno> {
        rustix::time::timerfd_settime(&self.fd, flags, &times).map(drop)
    }

    /// How often it was due since the last call; zero if not.
    pub fn take_expirations(&self) -> Result<u64, Errno> {
        crate::eventfd::drain(&self.fd)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A past deadline, zero among them, is due at once and only once; an unset timer never is.
    #[test]
    fn past_deadline_is_due() -> Result<(), Errno> {
        let timer = Timer::create()?;
        assert_eq!(timer.take_expirations()?, 0);
        for deadline in [Duration::ZERO, monotonic_now()] {
            timer.set_at(deadline)?;
            assert_eq!(timer.take_expirations()?, 1);
            assert_eq!(timer.take_expirations()?, 0);
        }
        timer.set_at(monotonic_now() + Duration::from_secs(3600))?;
        timer.clear()?;
        assert_eq!(timer.take_expirations()?, 0);
        Ok(())
    }
}
