//! How a call waits for a lock of a channel.

use crate::fd::call::Sock;
use crate::socket::UPCALLS;
use crate::sys::real;

/// How often in a row a lock was not to be had. Each time it was waited for, for a millisecond. Its holder lives, and may be stopped
/// for as long as somebody wants: that is a wait, as for a peer that does not read.
pub struct LockBackoff(u32);

impl LockBackoff {
    /// Attempts of a call that may not wait, and of one that may before it sleeps between them.
    const SHORT: u32 = 3;
    const LONG: u32 = 20;

    /// Nobody has waited so far.
    pub fn new() -> Self {
        Self(0)
    }

    /// Waits a little; the error that ends the call, or 0.
    pub fn wait(&mut self, sock: &Sock, may_wait: bool) -> i32 {
        self.0 = self.0.saturating_add(1);
        if !may_wait && self.0 >= Self::SHORT {
            (UPCALLS.get().busy)(sock);
            return libc::EAGAIN;
        }
        if self.0 < Self::LONG {
            std::thread::yield_now();
            return 0;
        }
        // SAFETY: no entries; a cancellation point and interrupted by signals, as the kernel's own wait.
        match unsafe { real::poll(std::ptr::null_mut(), 0, 1) } {
            -1 => real::errno(),
            _ => 0,
        }
    }
}
