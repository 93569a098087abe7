//! From the ring to the kernel, for good.
//!
//! # Model
//! Whatever the ring does not serve ends here: the socket is marked, what this end has left in its ring goes into the kernel, what
//! the peer has left is asked for, and from then on every call is the kernel's. Nothing is lost and nothing overtakes.

use windlass_channel::{Link, Reason};

use crate::fd::{call::Sock, record::flag, table};
use crate::process::registration;
use crate::socket::{peer_death, reclaim, state};

/// Whether a socket that is demoted for this reason may be written to by somebody who does not count: another program, stdio, a ring
/// of io_uring, a number that is not in the table.
fn may_have_uncounted_writer(reason: Reason) -> bool {
    let elsewhere = matches!(reason, Reason::Exec | Reason::Passed | Reason::Shared);
    let unseen = matches!(reason, Reason::Stdio | Reason::IoUring | Reason::Cloned);
    elsewhere || unseen || matches!(reason, Reason::Seccomp | Reason::Limit)
}

#[cold]
pub fn demote(sock: &Sock, reason: Reason) {
    peer_death::notice();
    if let Some(link) = mark(sock, reason) {
        reclaim::reclaim_all(sock, &link);
        reclaim::drain(sock, &link, reason);
    }
}

/// The words of it, without a system call if it has joined; the end of the channel if there is one.
pub fn mark(sock: &Sock, reason: Reason) -> Option<Link<'static>> {
    let is_uncounted = may_have_uncounted_writer(reason);
    if is_uncounted {
        sock.record.set(flag::UNCOUNTED_WRITER);
    }
    state::demoted(sock, reason);
    let link = state::link_of(sock)?;
    if is_uncounted {
        link.outgoing().set_uncounted_writer(reason);
    }
    link.outgoing().stop(reason);
    link.incoming().stop(reason);
    Some(link)
}

/// Every socket of the process is, and no further one joins.
pub fn demote_all(reason: Reason) {
    registration::forbid(reason);
    table::sockets().for_each(|sock| demote(&sock, reason));
}
