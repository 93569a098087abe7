//! Descriptors that a peer sent and that no protocol of ours has any use for.
//!
//! # Failure modes
//! A descriptor that is neither shared memory nor an eventfd nor a UNIX stream socket may be one whose `close` waits for whoever serves its file
//! system (FUSE), for as long as that likes. Such a one is closed by a thread of its own, and the connection that brought
//! it ends. [`Strangers`] counts these threads for one attachment: while there is any, its next peer is not met, so a peer
//! that never lets go costs one thread and its own attachment.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use windlass_sys::unix::{self, ReceivedMessage};
use windlass_sys::{Errno, eventfd};

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// Something came along that could keep us waiting.
    Strange,
    /// The kernel's answer; `EAGAIN` if nothing waits.
    Socket(Errno),
}

/// Threads that are closing strange descriptors of one attachment's peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers(Arc<AtomicUsize>);

impl Strangers {
    /// Whether all are closed.
    pub(crate) fn are_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Receives into `room` with every descriptor that a message can carry, all of them memory, eventfds or UNIX stream
    /// sockets.
    pub(crate) fn receive(
        &self,
        socket: impl AsFd,
        room: &mut [u8],
    ) -> Result<ReceivedMessage, ReceiveError> {
        let came =
            unix::receive_with_fds(socket, room, unix::FDS_MAX).map_err(ReceiveError::Socket)?;
        if !came.fds.iter().all(is_ordinary) {
            self.expel(came.fds);
            return Err(ReceiveError::Strange);
        }
        Ok(came)
    }

    fn expel(&self, fds: Vec<OwnedFd>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let count = self.clone();
        let close = move || {
            drop(fds);
            count.0.fetch_sub(1, Ordering::Release);
        };
        // A system without room for a thread closes them here and now.
        let thread = std::thread::Builder::new().name("closer".into());
        if thread.spawn(close).is_err() {
            self.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Whether a descriptor is of a kind that messages have, and can be closed without waiting. Asks no file system.
fn is_ordinary(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok() || eventfd::is_eventfd(fd) || is_channel(fd)
}

/// Whether a descriptor is a UNIX stream socket.
pub(crate) fn is_channel(fd: &OwnedFd) -> bool {
    socket_domain(fd) == Ok(AddressFamily::UNIX) && socket_type(fd) == Ok(SocketType::STREAM)
}
