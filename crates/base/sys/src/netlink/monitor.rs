//! Notice of links that appear, change and vanish.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::link::{self, Link, RTM_DELLINK};
use super::{Netlink, NetlinkError, RECEIVE_BYTES, message, open_socket, receive};
use crate::netns::{NetnsRef, within};
use crate::sockopt::{instruction, set_filter};

/// `RTMGRP_LINK` of `<linux/rtnetlink.h>`.
const RTMGRP_LINK: u32 = 1;

/// Where a message about a link has its index: behind the message's header, family and type (`struct ifinfomsg`).
const INDEX: u32 = 20;

/// Something that happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It appeared, or something about it changed; counters alone do not count.
    Changed(Link),
    /// It was deleted or moved to another namespace.
    Removed(Link),
    /// Events were lost because nobody read them in time: list the links anew.
    Overrun,
}

/// A non-blocking socket that is readable when links of its namespace change.
#[derive(Debug)]
pub struct LinkMonitor {
    fd: OwnedFd,
    space: Vec<u8>,
    pending: VecDeque<LinkEvent>,
}

impl LinkMonitor {
    /// Listens in the calling thread's namespace. List the links after this, not before: then
    /// nothing is missed.
    pub fn open() -> Result<Self, NetlinkError> {
        let fd =
            open_socket(RTMGRP_LINK, SocketFlags::NONBLOCK, None).map_err(NetlinkError::Socket)?;
        Ok(Self {
            fd,
            space: vec![0; RECEIVE_BYTES],
            pending: VecDeque::new(),
        })
    }

    /// Listens in `namespace`.
    pub fn open_in(namespace: &NetnsRef) -> Result<Self, NetlinkError> {
        within(namespace, Self::open)?
    }

    /// From now on hears of one link alone. The kernel keeps back what happens to others, for which this process is then not woken.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn keep_to(&self, index: u32) -> Result<(), NetlinkError> {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
        // A load takes the bytes in network order.
        let index = u32::from_be_bytes(index.to_ne_bytes());
        let mut program = [
            instruction(BPF_LD | BPF_W | BPF_ABS, INDEX, [0, 0]),
            instruction(BPF_JMP | BPF_JEQ | BPF_K, index, [0, 1]),
            instruction(BPF_RET | BPF_K, u32::MAX, [0, 0]),
            instruction(BPF_RET | BPF_K, 0, [0, 0]),
        ];
        set_filter(&self.fd, &mut program).map_err(NetlinkError::Socket)
    }

    /// The next event; `None` if there is none yet. Read until `None` before polling.
    pub fn next_event(&mut self) -> Result<Option<LinkEvent>, NetlinkError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            let datagram = match receive(&self.fd, &mut self.space) {
                Ok(Some(datagram)) => datagram,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::NOBUFS) => return Ok(Some(LinkEvent::Overrun)),
                Err(errno) => return Err(NetlinkError::Socket(errno)),
            };
            let malformed = |_| NetlinkError::Malformed {
                operation: "monitor links",
            };
            for received in message::split(datagram) {
                let received = received.map_err(malformed)?;
                let Some(link) = link::parse(&received).map_err(malformed)? else {
                    continue;
                };
                self.pending.push_back(if received.kind == RTM_DELLINK {
                    LinkEvent::Removed(link)
                } else {
                    LinkEvent::Changed(link)
                });
            }
        }
    }

    /// The next news of one link: as it is now, or that it is gone (`Some(None)`); those of other links are left out. Where news were
    /// lost, `netlink` is asked. Never blocks.
    pub fn next_of(&mut self, index: u32, netlink: &mut Netlink) -> Option<Option<Link>> {
        while let Ok(Some(event)) = self.next_event() {
            match event {
                LinkEvent::Removed(link) if link.index == index => return Some(None),
                LinkEvent::Changed(link) if link.index == index => return Some(Some(link)),
                LinkEvent::Overrun => {
                    if let Ok(link) = netlink.link_by_index(index) {
                        return Some(link);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
