//! How a receive falls asleep, and what it leaves behind in the ring that its end writes: nothing.
//!
//! # Model
//! A thread that is to sleep in the kernel first gives its peer a grace of [`GRACE_MS`] to take its bytes. Then it
//! makes the real call, or waits for the rest of a time limit. To the program both are one call that waits, so what another
//! thread does to the descriptor in between must not reach the second one: a descriptor that is made non-blocking is waited for
//! by `poll`, the open file is kept ([`crate::socket::waiter`]), and where several are waited for, a close waits until no grace runs on
//! the socket ([`let_end`]).
//!
//! # Synchronization
//! [`GRACES`] is this process's: how many threads give a grace, by record, where several records share a place. A thread that is
//! cancelled in it leaves its place raised; closes of those sockets then take [`GRACE_MS`] longer.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use windlass_channel::{Asleep, Link};

use crate::counts::counters::{self, Counter};
use crate::fd::call::Sock;
use crate::options;
use crate::process::{identity, signals};
use crate::socket::{reclaim, spin::spin, waiter::Waiter};
use crate::sys::{
    clock::{GRACE_MS, Limit},
    kernel,
};

/// Looks of a close for the end of a grace: for a little longer than it takes.
const LOOKS: i32 = GRACE_MS + 2;
const LOOK_EVERY: Duration = Duration::from_millis(1);
const PLACES: usize = 64;
static GRACES: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

fn place(record: u32) -> &'static AtomicU32 {
    &GRACES[record as usize % PLACES]
}

/// The calling thread gives the peer of a socket a grace.
pub fn begin(record: u32) {
    place(record).fetch_add(1, SeqCst);
}

/// It makes its real call next.
pub fn end(record: u32) {
    place(record).fetch_sub(1, SeqCst);
}

/// In a forked child: nobody does.
pub fn forked() {
    GRACES.iter().for_each(|place| place.store(0, Relaxed));
}

/// Before a number is closed: who gives a grace on its socket gets into the kernel, where a close does not reach him.
pub fn let_end(sock: &Sock) {
    if place(sock.index()).load(SeqCst) != 0 {
        wait_for_end(sock);
    }
}

#[cold]
fn wait_for_end(sock: &Sock) {
    for _ in 0..LOOKS {
        if place(sock.index()).load(SeqCst) == 0 {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What came of a receive's wait outside the kernel.
pub enum Wait {
    /// There may be something in the ring.
    Ready,
    /// The wait was in the kernel: it is to be asked. 0, or the error that ends the call.
    Waited(i32),
    /// The calling thread counts as asleep: the real call is to follow, and then `woke`.
    Asleep,
    /// The number is not the socket's any more.
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
    counters::add(Counter::Sleeps, 1);
    let waited = (options::has_nets() && link.outgoing().unread())
        .then(|| leave_nothing(waiter, link))
        .flatten();
    let Some(error) = waited else {
        return Wait::Asleep;
    };
    if !waiter.is_here() {
        return Wait::Gone;
    }
    signals::enter();
    inc.woke(0);
    signals::leave();
    Wait::Waited(error)
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

/// Before a receive sleeps: the reader of this end's ring gets [`GRACE_MS`] to take what is in it, then it goes into the kernel.
/// `None`: now the real call may sleep. Otherwise there is no need to, or this function has slept: 0, or the error that ends
/// the call.
#[cold]
fn leave_nothing(waiter: &mut Waiter, link: &Link<'static>) -> Option<i32> {
    let limit = waiter.limit(libc::SO_RCVTIMEO);
    let is_limited = limit.left_ns().is_some();
    let interrupted = || identity::thread().interrupted.load(Relaxed);
    let before = interrupted();
    let grace = Limit::from_ns(Some(limit.grace_ns()));
    let waited = waiter.wait_within(libc::POLLIN, &grace);
    if !waiter.is_here() {
        return Some(libc::EBADF);
    }
    let sock = waiter.sock();
    // A receive with a time limit does not go on after a handler, whatever that one asks for (signal(7)).
    let is_over = waited == libc::EINTR && (is_limited || interrupted() != before);
    if waited != 0 && !is_over && link.outgoing().unread() {
        let _ = reclaim::reclaim(sock, link);
    }
    // A call that has begun to wait goes on, though another thread has made the descriptor non-blocking meanwhile; the real one
    // would not.
    let flags = kernel::file_flags(sock.fd).unwrap_or(0);
    if is_over {
        return Some(libc::EINTR);
    }
    let is_ours = is_limited || flags & libc::O_NONBLOCK as usize != 0;
    is_ours.then(|| waiter.wait_within(libc::POLLIN, &limit))
}
