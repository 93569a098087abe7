//! A small blocking rtnetlink client.
//!
//! # Purpose
//! Reads and changes links, addresses, routes, and the one traffic-control program that windlass
//! installs; reads what others have put on a link (queues) and the rules of nftables; tells when links change.
//!
//! # Model
//! One [`Netlink`] is one socket in one network namespace. Each method sends one request and waits
//! for its answer. A listing that the kernel says was interrupted by a change is asked for again.
//! [`LinkMonitor`] is a second kind of socket that only listens.
//!
//! # Failure modes
//! The kernel's refusals are [`NetlinkError::Kernel`] with its errno and, where it gave one, its
//! own sentence (extended acknowledgement). An answer that cannot be parsed, comes from
//! another sender or does not come within [`TIMEOUT`] is an error as well. Nothing in an answer
//! can make the parser read out of bounds.
//!
//! # Not done
//! Generic netlink, neighbours, rules, and notifications other than links.

mod address;
mod link;
mod message;
mod monitor;
mod neighbour;
mod netfilter;
mod route;
mod traffic;
mod unlist;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt,
};

pub use address::Address;
pub use link::{ALIAS_BYTES_MAX, Link, LinkStats, Mac};
pub use monitor::{LinkEvent, LinkMonitor};
pub use netfilter::{
    Chain, Expression, FAMILY_INET, FAMILY_IPV4, FAMILY_IPV6, FAMILY_NETDEV, Hook, Rule, Ruleset,
    Set, Verdict,
};
pub use route::Route;
pub use traffic::Filter;

use crate::netns::{NetnsError, NetnsRef, within};
use crate::sockopt::set_int;
use message::{Answer, Request};

/// Longest wait for an answer of the kernel.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest datagram taken from the kernel, which sends at most 32 KiB in a listing.
const RECEIVE_BYTES: usize = 64 * 1024;

/// How often an interrupted listing is asked for again.
const DUMP_TRIES: usize = 8;

/// What can go wrong in a request.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed. `EAGAIN`: no answer within [`TIMEOUT`].
    #[error("netlink socket: {0}")]
    Socket(Errno),
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The kernel refused the request.
    #[error("{operation}: {errno}{}", message.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Kernel {
        /// What was asked for.
        operation: &'static str,
        /// Its errno.
        errno: Errno,
        /// Its sentence, if it gave one.
        message: Option<String>,
    },
    /// The kernel's answer cannot be understood.
    #[error("{operation}: malformed answer from the kernel")]
    Malformed {
        /// What was asked for.
        operation: &'static str,
    },
    /// The listing changed under every try.
    #[error("{operation}: interrupted by changes each time")]
    Interrupted {
        /// What was asked for.
        operation: &'static str,
    },
}

impl NetlinkError {
    /// The kernel's errno, if that is what it is.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. }
            | Self::Socket(errno)
            | Self::Namespace(NetnsError::Kernel { errno, .. }) => Some(*errno),
            _ => None,
        }
    }
}

/// A request socket in one network namespace. May be used from a thread in any namespace.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    space: Vec<u8>,
}

/// `protocol`: `None` is NETLINK_ROUTE.
fn open_socket(
    groups: u32,
    flags: SocketFlags,
    protocol: Option<Protocol>,
) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags | SocketFlags::CLOEXEC,
        protocol,
    )?;
    rustix::net::bind(&fd, &netlink::SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Receives one datagram if it comes from the kernel; `None` for one from another process.
fn receive<'a>(fd: &OwnedFd, space: &'a mut [u8]) -> Result<Option<&'a [u8]>, Errno> {
    let (_, len, from) = rustix::net::recvfrom(fd, &mut *space, RecvFlags::TRUNC)?;
    let from_kernel = from
        .and_then(|from| netlink::SocketAddrNetlink::try_from(from).ok())
        .is_some_and(|from| from.pid() == 0);
    if !from_kernel {
        return Ok(None);
    }
    space.get(..len).map(Some).ok_or(Errno::MSGSIZE)
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Self::open_for(None)
    }

    fn open_for(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let opened = || {
            let fd = open_socket(0, SocketFlags::empty(), protocol)?;
            sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(TIMEOUT))?;
            // Refusals come with a sentence, and without a copy of the request.
            set_int(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
            set_int(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
            Ok(fd)
        };
        let fd = opened().map_err(NetlinkError::Socket)?;
        Ok(Self {
            fd,
            sequence: 0,
            space: vec![0; RECEIVE_BYTES],
        })
    }

    /// Opens a socket in `namespace`.
    pub fn open_in(namespace: &NetnsRef) -> Result<Self, NetlinkError> {
        within(namespace, Self::open)?
    }

    /// Sends `request` and waits until the kernel acknowledges it; gives each message that comes
    /// before that to `each`.
    fn exchange(
        &mut self,
        request: Request,
        operation: &'static str,
        mut each: impl FnMut(&message::Received<'_>) -> Result<(), message::Malformed>,
    ) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        rustix::net::send(&self.fd, &bytes, SendFlags::empty()).map_err(NetlinkError::Socket)?;
        let malformed = |_| NetlinkError::Malformed { operation };
        let mut interrupted = false;
        loop {
            let datagram = match receive(&self.fd, &mut self.space) {
                Ok(Some(datagram)) => datagram,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(errno) => return Err(NetlinkError::Socket(errno)),
            };
            for received in message::split(datagram) {
                let received = received.map_err(malformed)?;
                if received.sequence != self.sequence {
                    // The rest of an exchange that was given up.
                    continue;
                }
                interrupted |= received.is_interrupted();
                match received.answer().map_err(malformed)? {
                    Answer::Data => each(&received).map_err(malformed)?,
                    Answer::Done if interrupted => {
                        return Err(NetlinkError::Interrupted { operation });
                    }
                    Answer::Done => return Ok(()),
                    Answer::Refused { errno, message } => {
                        return Err(NetlinkError::Kernel {
                            operation,
                            errno,
                            message,
                        });
                    }
                }
            }
        }
    }

    /// A change: nothing comes back but the acknowledgement.
    fn change(&mut self, request: Request, operation: &'static str) -> Result<(), NetlinkError> {
        self.exchange(request, operation, |_| Ok(()))
    }

    /// A listing, collected by `parse`, which may skip messages.
    fn dump<T>(
        &mut self,
        request: impl Fn() -> Request,
        operation: &'static str,
        parse: impl Fn(&message::Received<'_>) -> Result<Option<T>, message::Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_TRIES {
            let mut list = Vec::new();
            let outcome = self.exchange(request(), operation, |received| {
                list.extend(parse(received)?);
                Ok(())
            });
            match outcome {
                Ok(()) => return Ok(list),
                Err(NetlinkError::Interrupted { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError::Interrupted { operation })
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
