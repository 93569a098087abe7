//! Ring bytes moved into the kernel: those of this end ([`reclaim`]), and those of the peer, by asking for it ([`drain`]).

use std::sync::atomic::Ordering::Relaxed;

use windlass_channel::protocol::Request;
use windlass_channel::{Link, Owner, Reason, Reclaimed, Who};

use crate::fd::call::Sock;
use crate::process::{pairs::CLIENT, registration, signals};
use crate::socket::{
    errors::{self, fail_later},
    state,
};
use crate::sys::{
    clock::Limit,
    kernel::{self, Backoff},
};

/// How often a rescue is asked for at least, and after how long again: a process that has just been forked may be registered before.
const RESCUES: u32 = 5;
const RESCUE_PAUSE_MS: u64 = 10;
/// For how long it is asked for while the broker is late, but answers now and then: until then the call does not find the bytes.
const RESCUE_PATIENCE_NS: u64 = 2_000_000_000;
/// Tries before a reader that never lets go is left alone.
const RECLAIM_ATTEMPTS: usize = 200;

/// The calling thread, for the locks of a joined socket; none: the call is the kernel's.
#[inline(always)]
pub fn caller(sock: &Sock, link: &Link<'static>) -> Option<Who<'static>> {
    let owner = registration::owner().or_else(|| orphan(*sock, *link))?;
    Some(registration::who_of(owner))
}

/// Has the peer's unread bytes moved into the kernel, for good: a reader that does not look at the ring comes.
#[cold]
pub fn drain(sock: &Sock, link: &Link<'static>, reason: Reason) {
    let inc = link.incoming();
    inc.stop(reason);
    let patience = Limit::from_ns(Some(RESCUE_PATIENCE_NS));
    for tries in 0.. {
        let is_over = || CLIENT.is_silent() || patience.is_over();
        if inc.queued() == 0 || tries >= RESCUES && is_over() {
            return;
        }
        // Where the broker may not help, the peer does it at its next call. It hears those that it knows.
        let _ = registration::owner_or_register(sock.fd);
        let slab = sock.record.slab.load(Relaxed);
        let (chan, side) = (link.index(), link.side().other() as u8);
        let rescued = CLIENT.ask(&Request::Rescue { slab, chan, side });
        if !matches!(
            rescued,
            Err(Reason::NoDaemon | Reason::Young | Reason::Limit)
        ) {
            return;
        }
        kernel::wait_for(sock.fd, 0, RESCUE_PAUSE_MS);
    }
}

/// Moves this end's unread bytes into the kernel, waiting for a busy reader; what is left when the kernel is full.
#[cold]
pub fn reclaim(sock: &Sock, link: &Link<'static>) -> Option<Reclaimed> {
    let has_left = link.info(link.side().other()).join == state::LEFT;
    if has_left || errors::events(sock) & (libc::EPOLLERR | libc::EPOLLHUP) != 0 {
        // Nobody will read them. Where the connection is over, a send would take the error that another call has to tell.
        return Some(Reclaimed::All(0));
    }
    reclaim_as(caller(sock, link)?, sock, link)
}

fn reclaim_as(who: Who<'static>, sock: &Sock, link: &Link<'static>) -> Option<Reclaimed> {
    let mut backoff = Backoff::default();
    for _ in 0..RECLAIM_ATTEMPTS {
        signals::enter();
        let reclaimed = link.outgoing().reclaim(who, &state::descriptor(sock));
        signals::leave();
        match reclaimed {
            Reclaimed::Busy => backoff.wait(),
            other => {
                if let Reclaimed::Error(error) = other
                    && error != libc::EPIPE
                {
                    fail_later(sock, error);
                }
                return Some(other);
            }
        }
    }
    None
}

/// A process that was forked from one that had joined: it asks for a slot of its own, for the locks. If it gets none, the
/// socket goes to the kernel, with what lies in its ring. Its lock word.
#[cold]
fn orphan(sock: Sock, link: Link<'static>) -> Option<Owner> {
    let owner = registration::owner_or_register(sock.fd);
    if owner.is_none() {
        link.outgoing().set_uncounted_writer(Reason::NoDaemon);
        if let Some(heir) = registration::heir() {
            // What is in the ring is older than what this process sends from now on.
            let _ = reclaim_as(heir, &sock, &link);
        }
        drain(&sock, &link, Reason::NoDaemon);
    }
    owner
}

/// How long a close waits for room in a full kernel, in steps of [`STEP_MS`].
const STEPS: usize = 20;
const STEP_MS: u64 = 50;
/// Moves all unread bytes into the kernel, and waits a while if that is full.
pub fn reclaim_all(sock: &Sock, link: &Link<'static>) {
    for _ in 0..STEPS {
        match reclaim(sock, link) {
            Some(Reclaimed::Part(_)) => {}
            _ => return,
        }
        kernel::wait_for(sock.fd, libc::POLLOUT, STEP_MS);
    }
}
