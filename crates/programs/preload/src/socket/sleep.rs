//! How a receive falls asleep: it spins for as long as the user allows, counts itself as a sleeper, and makes the real call.

use windlass_channel::{Asleep, Link};

use crate::process::signals;
use crate::socket::{spin::spin, waiter::Waiter};

/// What came of a receive's wait outside the kernel.
pub enum Wait {
    Ready,
    /// The calling thread counts as asleep: the real call is to follow, and then `woke`.
    Asleep,
    Gone,
}

/// Spins for bytes in the ring, then falls asleep.
#[inline]
pub fn fall_asleep(waiter: &mut Waiter, link: &Link<'static>) -> Wait {
    let inc = link.incoming();
    let sock = *waiter.sock();
    // Kernel bytes that were announced wake the real call at once; only ring bytes make it needless.
    let has_come = || {
        let is_over = inc.ready() || !inc.may_come() || !sock.still();
        if !is_over {
            inc.pause();
        }
        is_over
    };
    if spin(has_come) && inc.ring_ready() {
        return Wait::Ready;
    }
    if !waiter.begin() {
        return Wait::Gone;
    }
    signals::enter();
    let asleep = inc.fall_asleep();
    signals::leave();
    if asleep == Asleep::Ready {
        return Wait::Ready;
    }
    Wait::Asleep
}

/// Sleeps until announced kernel bytes are there. The sender sees a sleeper meanwhile: should somebody else have taken
/// those bytes uncounted, the next ones come through the kernel, too.
pub fn wait_for_pending(waiter: &mut Waiter, link: &Link<'static>) -> i32 {
    let inc = link.incoming();
    if !waiter.begin() {
        return libc::EBADF;
    }
    signals::enter();
    let asleep = inc.fall_asleep();
    signals::leave();
    if asleep == Asleep::Ready {
        return 0;
    }
    let error = waiter.wait_for(libc::POLLIN, libc::SO_RCVTIMEO);
    if error == libc::EBADF {
        return error;
    }
    signals::enter();
    inc.woke(0);
    signals::leave();
    error
}
