//! What a run looks at besides frames: signals, the time of its end, and that of the next report.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::ending::Ending;
use crate::failure::Failure;
use crate::options::At;

/// Between two looks for a signal while there is always a frame.
const LOOK_NS: u64 = 10_000_000;
/// What is due earlier than that is not slept for: waking up takes up to as long.
const SPIN_NS: u64 = 50_000;

/// `CLOCK_MONOTONIC`.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// When a run reports and ends.
#[derive(Debug)]
pub(crate) struct Watch {
    ending: Ending,
    begin_ns: u64,
    interval_ns: u64,
    report_ns: u64,
    end_ns: u64,
    look_ns: u64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    GoOn,
    Report,
    End,
}

impl Watch {
    /// Begins now. From here on, a signal ends the run and not the process.
    pub(crate) fn start(at: &At) -> Result<Watch, Failure> {
        let ending = Ending::watch()?;
        // Sleeps end when they are to, and not up to 50 us later. It is no more than a wish.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let begin_ns = now_ns();
        Ok(Watch {
            ending,
            begin_ns,
            interval_ns: ns(at.interval),
            report_ns: begin_ns.saturating_add(ns(at.interval)),
            end_ns: at
                .time
                .map_or(u64::MAX, |time| begin_ns.saturating_add(ns(time))),
            look_ns: begin_ns,
        })
    }

    /// When the run has begun.
    pub(crate) fn begin_ns(&self) -> u64 {
        self.begin_ns
    }

    /// What is to be done at this time. Reports whose time has passed meanwhile are left out.
    #[inline]
    pub(crate) fn turn(&mut self, now_ns: u64) -> Turn {
        if now_ns >= self.end_ns {
            return Turn::End;
        }
        if now_ns >= self.look_ns {
            self.look_ns = now_ns + LOOK_NS;
            if self.ending.has_come() {
                return Turn::End;
            }
        }
        if now_ns < self.report_ns {
            return Turn::GoOn;
        }
        let intervals = (now_ns - self.report_ns) / self.interval_ns + 1;
        self.report_ns = self
            .report_ns
            .saturating_add(intervals.saturating_mul(self.interval_ns));
        Turn::Report
    }

    /// Sleeps until the device is ready, a signal has come, or something is due: a report, the end, or what the caller waits for.
    pub(crate) fn sleep(
        &mut self,
        device: Option<BorrowedFd<'_>>,
        until_ns: Option<u64>,
    ) -> Result<(), Failure> {
        let until_ns = until_ns
            .unwrap_or(u64::MAX)
            .min(self.report_ns)
            .min(self.end_ns);
        let rest_ns = until_ns.saturating_sub(now_ns());
        if rest_ns < SPIN_NS && device.is_none() {
            return Ok(());
        }
        let rest = Timespec {
            tv_sec: (rest_ns / 1_000_000_000) as i64,
            tv_nsec: (rest_ns % 1_000_000_000) as i64,
        };
        let fds = [Some(self.ending.as_fd()), device].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Whatever woke it: the next turn looks.
        self.look_ns = 0;
        match poll(&mut fds, Some(&rest)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}
