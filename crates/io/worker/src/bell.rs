//! [`Bell`]: wakes a worker for what was put into one of its queues.
//!
//! # Model
//! The control thread always rings: its commands are few. Another worker posts sightings by the burst, and rings
//! only if the worker sleeps, once for each sleep.
//!
//! # Synchronization
//! | who puts | the worker |
//! | --- | --- |
//! | puts into the queue; *fence* | says that it sleeps; *fence* |
//! | loads whether it sleeps | looks into its queues |
//!
//! One finds the other: what was put is seen before the sleep, or ends it. The descriptor is watched for edges and never read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::io::Errno;

/// One worker's bell.
pub(crate) struct Bell {
    fd: OwnedFd,
    /// There are commands.
    mail: AtomicBool,
    /// The worker sleeps, or is about to, and nobody has rung since.
    asleep: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Result<Bell, Errno> {
        Ok(Bell {
            fd: windlass_sys::eventfd::create()?,
            mail: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        })
    }

    /// A command was put into the mailbox.
    pub(crate) fn mail(&self) {
        self.mail.store(true, Ordering::Release);
        let _ = windlass_sys::eventfd::signal(self.fd.as_fd());
    }

    /// Whether there may be commands.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed)
    }

    /// The same; the worker reads them now.
    pub(crate) fn take_mail(&self) -> bool {
        self.mail.swap(false, Ordering::AcqRel)
    }

    /// Something was put into another queue of the worker.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            let _ = windlass_sys::eventfd::signal(self.fd.as_fd());
        }
    }

    /// The worker sleeps unless it finds something in its queues, into which it looks after this.
    pub(crate) fn say_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The worker does not sleep any more.
    pub(crate) fn say_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
