//! How a call waits for another thread: for a lock of a channel ([`Patience`]), or for the end of a join ([`pause`]).

use std::time::Duration;

use super::sets;
use crate::own::Sock;
use crate::real;

/// Rounds of [`pause`] of which one sleeps, and for how long.
const PAUSES: u32 = 1_024;
const SLEEP: Duration = Duration::from_micros(50);

/// One round of a short wait for another thread. Now and then it sleeps: the other thread may have a lower priority
/// (`SCHED_FIFO`) and need this core.
#[inline]
pub fn pause(round: u32) {
    if round % PAUSES == PAUSES - 1 {
        std::thread::sleep(SLEEP);
    } else {
        std::hint::spin_loop();
    }
}

/// How often in a row a lock was not to be had. Its holder is stopped, or lies: each time it was waited for, for a millisecond.
pub struct Patience(u32);

impl Patience {
    /// Attempts of a call that may not wait, and of one that may before it sleeps between them.
    const SHORT: u32 = 3;
    const LONG: u32 = 20;
    /// Attempts before the connection is given up.
    const END: u32 = 5_000;

    /// Nobody has waited so far.
    pub fn new() -> Self {
        Self(0)
    }

    /// Waits a little; the error that ends the call, or 0.
    pub fn wait(&mut self, sock: &Sock, may_wait: bool) -> i32 {
        self.0 += 1;
        if !may_wait && self.0 >= Self::SHORT {
            sets::again(sock);
            return libc::EAGAIN;
        }
        if self.0 < Self::LONG {
            std::thread::yield_now();
            return 0;
        }
        if self.0 > Self::END {
            return libc::ECONNRESET;
        }
        // SAFETY: no entries; a cancellation point and interrupted by signals, as the kernel's own wait.
        match unsafe { real::poll(std::ptr::null_mut(), 0, 1) } {
            -1 => real::errno(),
            _ => 0,
        }
    }
}
