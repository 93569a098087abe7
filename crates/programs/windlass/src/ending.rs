//! What ends a command that runs until it is told to.
//!
//! # Model
//! A signal makes a descriptor readable, and the command ends by itself: it tells what it has counted. A command that waits for
//! somebody else, such as a pipe that nobody reads, does not look. So it ends without a word if it has not looked for [`PATIENCE`], and at
//! a second signal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use windlass_sys::signals::Signals;

use crate::failure::Failure;

/// SIGHUP, SIGINT and SIGTERM (signal(7)).
const SIGNALS: [i32; 3] = [1, 2, 15];

/// How long a command may leave a signal unseen.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often that is looked at.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Readable once a signal has come.
#[derive(Debug)]
pub(crate) struct Ending {
    come: OwnedFd,
    is_seen: Arc<AtomicBool>,
}

impl Ending {
    /// From here on, a signal ends the run and not the process.
    pub(crate) fn watch() -> Result<Ending, Failure> {
        let failure = |errno| Failure::from(io::Error::from(errno));
        let signals = Signals::take_over(&SIGNALS).map_err(failure)?;
        let come = eventfd(0, EventfdFlags::CLOEXEC).map_err(failure)?;
        let is_seen = Arc::new(AtomicBool::new(false));
        let (told, seen) = (come.try_clone()?, is_seen.clone());
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || wait(&signals, &told, &seen))?;
        Ok(Ending { come, is_seen })
    }

    /// Whether a signal has come.
    pub(crate) fn has_come(&self) -> bool {
        let has_come = is_readable(self, Timespec::default());
        if has_come {
            self.is_seen.store(true, Ordering::Relaxed);
        }
        has_come
    }
}

impl AsFd for Ending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.come.as_fd()
    }
}

fn is_readable(fd: &impl AsFd, within: Timespec) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&within)).is_ok_and(|ready| ready > 0)
}

/// Passes the first signal on, and ends the process where that is not enough.
fn wait(signals: &Signals, told: &OwnedFd, is_seen: &AtomicBool) {
    let Ok(number) = signals.next() else {
        return;
    };
    let begin = Instant::now();
    // The counter cannot be full.
    let _ = rustix::io::write(told, &1u64.to_ne_bytes());
    while !is_readable(signals, LOOK) {
        if !is_seen.load(Ordering::Relaxed) && begin.elapsed() > PATIENCE {
            break;
        }
    }
    // As a shell says of whom a signal has ended.
    std::process::exit(128 + number);
}
