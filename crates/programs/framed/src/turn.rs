//! A lock that a signal handler interrupts: whose turn it is to sleep for room.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;
use windlass_sys::Errno;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody sleeps.
const WANTED: u32 = 2;

/// The lock.
#[derive(Debug, Default)]
pub(crate) struct Turns(AtomicU32);

/// It is ours.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Turns);

impl Turns {
    /// Takes it, if nobody has it.
    pub(crate) fn try_take(&self) -> Option<Held<'_>> {
        let taken = self
            .0
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(Held(self))
    }

    /// Takes it, as soon as nobody has it.
    ///
    /// # Errors
    /// `EINTR` behind a signal handler.
    pub(crate) fn take(&self) -> Result<Held<'_>, Errno> {
        if let Some(held) = self.try_take() {
            return Ok(held);
        }
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            match futex::wait(&self.0, futex::Flags::PRIVATE, WANTED, None) {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == WANTED {
            // The word is ours: the call does not fail.
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        }
    }
}
