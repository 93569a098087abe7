//! Deleting a link without waiting for its memory.
//!
//! # Model
//! The kernel takes a deleted link out of its lists and says so, and then waits for an RCU barrier, 10 to 20 ms, before it frees the
//! memory; the deleting system call returns after that. [`Netlink::unlist_link`] makes the call on a thread of its own and waits for
//! the notice. A caller that ends or is killed meanwhile changes nothing: the call goes on in the kernel. Links that are deleted together
//! share the kernel's waits ([`Netlink::unlist_links`]).

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::SendFlags;

use super::link::{self, IFLA_GROUP, RTM_DELLINK};
use super::message::{self, Answer, Request};
use super::{Netlink, NetlinkError, receive};
use crate::sockopt::set_int;

/// `RTNLGRP_LINK` of `<linux/rtnetlink.h>`.
const RTNLGRP_LINK: i32 = 1;

const DELETE: &str = "delete link";

/// Room for what the kernel tells of links that are deleted together, in bytes.
const NOTICES_BYTES: i32 = 4 << 20;

/// Threads that wait for the kernel at once, at most; beyond, the callers wait.
const LATE_MAX: usize = 64;
static LATE: AtomicUsize = AtomicUsize::new(0);

/// One of them.
struct Late;

impl Late {
    fn begin() -> Option<Self> {
        let one = Late;
        (LATE.fetch_add(1, Ordering::Relaxed) < LATE_MAX).then_some(one)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        LATE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Netlink {
    /// Deletes a link as [`Netlink::delete_link`] does, and returns once nobody finds it and its name is free.
    ///
    /// # Errors
    /// The kernel's refusal. [`NetlinkError::Socket`]: its answer was lost, and the link may be there.
    pub fn unlist_link(self, index: u32) -> Result<(), NetlinkError> {
        let request = Request::start(RTM_DELLINK, 0, &link::body(index, 0, 0));
        self.unlist(request, BTreeSet::from([index]))
    }

    /// Deletes links as [`Netlink::unlist_link`] deletes one, all in one step, which costs little more than one of them would. Those
    /// that are not there are deleted. They are made a group of links (`ip link set group`) for that.
    ///
    /// # Errors
    /// As of [`Netlink::unlist_link`].
    pub fn unlist_links(mut self, indices: &[u32]) -> Result<(), NetlinkError> {
        // Nobody else's: out of half of all numbers, of which people take small ones.
        let group = (RandomState::new().hash_one(indices) as u32) | 1 << 31;
        let mut there = BTreeSet::new();
        for &index in indices {
            match self.set_link_group(index, group) {
                Ok(()) => drop(there.insert(index)),
                Err(error) if error.errno() == Some(Errno::NODEV) => {}
                Err(error) => return Err(error),
            }
        }
        if there.is_empty() {
            return Ok(());
        }
        let mut request = Request::start(RTM_DELLINK, 0, &link::body(0, 0, 0));
        request.u32(IFLA_GROUP, group);
        self.unlist(request, there)
    }

    /// Has the kernel delete these links.
    fn unlist(mut self, request: Request, there: BTreeSet<u32>) -> Result<(), NetlinkError> {
        let Some(late) = Late::begin() else {
            return self.change(request, DELETE);
        };
        // Too little room costs time, and no more.
        let _ = set_int(
            &self.fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            NOTICES_BYTES,
        );
        let group = libc::NETLINK_ADD_MEMBERSHIP;
        let joined = set_int(&self.fd, libc::SOL_NETLINK, group, RTNLGRP_LINK);
        let copied = joined.and_then(|()| fcntl_dupfd_cloexec(&self.fd, 0));
        let fd = copied.map_err(NetlinkError::Socket)?;
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        let again = bytes.clone();
        let send = move || {
            // One that cannot be sent has no answer.
            let _ = rustix::net::send(&fd, &bytes, SendFlags::empty());
            drop(late);
        };
        let thread = std::thread::Builder::new().name("deleter".to_owned());
        let thread = thread.spawn(send).ok();
        if thread.is_none() {
            let _ = rustix::net::send(&self.fd, &again, SendFlags::empty());
        }
        let outcome = self.wait_until_unlisted(there);
        if let (Err(NetlinkError::Socket(_)), Some(thread)) = (&outcome, thread) {
            // Whatever becomes of it, it has then.
            let _ = thread.join();
        }
        outcome
    }

    /// Waits for the notice that links are gone, or for the answer to the last request.
    fn wait_until_unlisted(&mut self, mut there: BTreeSet<u32>) -> Result<(), NetlinkError> {
        let malformed = |_| NetlinkError::Malformed { operation: DELETE };
        loop {
            let datagram = match receive(&self.fd, &mut self.space) {
                Ok(Some(datagram)) => datagram,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(errno) => return Err(NetlinkError::Socket(errno)),
            };
            for received in message::split(datagram) {
                let received = received.map_err(malformed)?;
                if let Some(link) = link::parse(&received).map_err(malformed)? {
                    if received.kind == RTM_DELLINK && there.remove(&link.index) && there.is_empty()
                    {
                        return Ok(());
                    }
                } else if received.sequence == self.sequence {
                    return match received.answer().map_err(malformed)? {
                        Answer::Data | Answer::Done => Ok(()),
                        Answer::Refused { errno, message } => Err(NetlinkError::Kernel {
                            operation: DELETE,
                            errno,
                            message,
                        }),
                    };
                }
            }
        }
    }
}
