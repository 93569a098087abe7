//! Deleting a link without waiting for its memory.
//!
//! # Model
//! The kernel takes a deleted link out of its lists and says so, and then waits for an RCU barrier, 10 to 20 ms, before it frees the
//! memory; the deleting system call returns after that. [`Netlink::unlist_link`] makes the call on a thread of its own and waits for
//! the notice. A caller that ends or is killed meanwhile changes nothing: the call goes on in the kernel.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::SendFlags;

use super::link::{self, RTM_DELLINK};
use super::message::{self, Answer, Request};
use super::{Netlink, NetlinkError, receive};
use crate::sockopt::set_int;

/// `RTNLGRP_LINK` of `<linux/rtnetlink.h>`.
const RTNLGRP_LINK: i32 = 1;

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
    pub fn unlist_link(mut self, index: u32) -> Result<(), NetlinkError> {
        let Some(late) = Late::begin() else {
            return self.delete_link(index);
        };
        let group = libc::NETLINK_ADD_MEMBERSHIP;
        let joined = set_int(&self.fd, libc::SOL_NETLINK, group, RTNLGRP_LINK);
        let copied = joined.and_then(|()| fcntl_dupfd_cloexec(&self.fd, 0));
        let fd = copied.map_err(NetlinkError::Socket)?;
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = Request::start(RTM_DELLINK, 0, &link::body(index, 0, 0)).finish(self.sequence);
        let send = move || {
            // One that cannot be sent has no answer.
            let _ = rustix::net::send(&fd, &bytes, SendFlags::empty());
            drop(late);
        };
        let thread = std::thread::Builder::new().name("deleter".to_owned());
        let Ok(thread) = thread.spawn(send) else {
            return self.delete_link(index);
        };
        let outcome = self.wait_until_unlisted(index);
        if let Err(NetlinkError::Socket(_)) = outcome {
            // Whatever becomes of it, it has then.
            let _ = thread.join();
        }
        outcome
    }

    /// Waits for the notice that a link is gone, or for the answer to the last request.
    fn wait_until_unlisted(&mut self, index: u32) -> Result<(), NetlinkError> {
        let operation = "delete link";
        let malformed = |_| NetlinkError::Malformed { operation };
        loop {
            let datagram = match receive(&self.fd, &mut self.space) {
                Ok(Some(datagram)) => datagram,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(errno) => return Err(NetlinkError::Socket(errno)),
            };
            for received in message::split(datagram) {
                let received = received.map_err(malformed)?;
                if let Some(link) = link::parse(&received).map_err(malformed)? {
                    if received.kind == RTM_DELLINK && link.index == index {
                        return Ok(());
                    }
                } else if received.sequence == self.sequence {
                    return match received.answer().map_err(malformed)? {
                        Answer::Data | Answer::Done => Ok(()),
                        Answer::Refused { errno, message } => Err(NetlinkError::Kernel {
                            operation,
                            errno,
                            message,
                        }),
                    };
                }
            }
        }
    }
}
