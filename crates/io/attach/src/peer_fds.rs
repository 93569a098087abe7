//! Descriptors of peers whose last close may wait.
//!
//! # Model
//! The last close of a file waits for whoever serves its file system (FUSE), or for as long as `SO_LINGER` says; that of a UNIX
//! socket waits for what its queue holds, and that of a listening one for what the queues of those hold that were not
//! accepted. So shared memory and eventfds are closed where they are dropped, sockets by a thread each ([`DeferredClose`]), and anything
//! else is not taken: a thread closes it, and the connection that brought it ends.
//!
//! # Synchronization
//! [`PeerFds`] counts these threads for one attachment: while there is any, its next peer is not met. So a peer that
//! never lets go costs one thread and its own attachment. The last thread signals the attachment's eventfd.
//!
//! # Limits
//! As many threads for one attachment as peers were there at once.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown};
use windlass_sys::unix::{self, ReceivedMessage};
use windlass_sys::{Errno, eventfd};

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// Something came along that could keep us waiting.
    UnexpectedFd,
    /// The kernel's answer; `EAGAIN` if nothing waits.
    Socket(Errno),
}

/// Threads that are closing descriptors of one attachment's peers.
#[derive(Clone, Debug)]
pub(crate) struct PeerFds {
    closing: Arc<AtomicUsize>,
    wake: Arc<OwnedFd>,
}

impl PeerFds {
    /// None yet; `wake` is an eventfd that is signalled when all are closed.
    pub(crate) fn new(wake: Arc<OwnedFd>) -> PeerFds {
        PeerFds {
            closing: Arc::default(),
            wake,
        }
    }

    /// Whether all are closed.
    pub(crate) fn are_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire) == 0
    }

    /// What a thread is to drop.
    pub(crate) fn keep<T: AsFd + Send + 'static>(&self, kept: T) -> DeferredClose<T> {
        DeferredClose {
            kept: ManuallyDrop::new(kept),
            is_left: false,
            peer_fds: self.clone(),
        }
    }

    /// Receives into `room` with every descriptor that a message can carry, all of them memory or eventfds; and the one UNIX
    /// stream socket that may be among them.
    pub(crate) fn receive(
        &self,
        socket: impl AsFd,
        room: &mut [u8],
    ) -> Result<(ReceivedMessage, Option<DeferredClose<OwnedFd>>), ReceiveError> {
        let mut came =
            unix::receive_with_fds(socket, room, unix::FDS_MAX).map_err(ReceiveError::Socket)?;
        let channel = came.fds.iter().position(is_channel);
        let channel = channel.map(|at| self.keep(came.fds.swap_remove(at)));
        if !came.fds.iter().all(is_ordinary) {
            self.close(came.fds);
            return Err(ReceiveError::UnexpectedFd);
        }
        Ok((came, channel))
    }

    fn close(&self, what: impl Send + 'static) {
        self.closing.fetch_add(1, Ordering::Relaxed);
        let counted = Closing(self.clone());
        // A system without room for a thread closes them here and now.
        let thread = std::thread::Builder::new().name("closer".into());
        let _ = thread.spawn(move || {
            let _counted = counted;
            drop(what);
        });
    }
}

/// One more of [`PeerFds`] is closing.
struct Closing(PeerFds);

impl Drop for Closing {
    fn drop(&mut self) {
        if self.0.closing.fetch_sub(1, Ordering::Release) == 1 {
            // A full counter is readable, too.
            let _ = eventfd::signal(&self.0.wake);
        }
    }
}

/// A socket of a peer's, or for peers, that a thread of its own closes. Whoever is at its other end, or connects to it, is
/// told at once.
#[derive(Debug)]
pub struct DeferredClose<T: AsFd + Send + 'static> {
    kept: ManuallyDrop<T>,
    /// Another process has it too, and goes on with it.
    is_left: bool,
    peer_fds: PeerFds,
}

impl<T: AsFd + Send + 'static> DeferredClose<T> {
    /// Whether a drop tells the other end nothing, because another process goes on with it.
    pub(crate) fn leave_open(&mut self, is_left: bool) {
        self.is_left = is_left;
    }
}

impl<T: AsFd + Send + 'static> Deref for DeferredClose<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.kept
    }
}

impl<T: AsFd + Send + 'static> AsFd for DeferredClose<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kept.as_fd()
    }
}

impl<T: AsFd + Send + 'static> Drop for DeferredClose<T> {
    fn drop(&mut self) {
        if !self.is_left {
            // One that is over already says so, and is as good.
            let _ = shutdown(&*self.kept, Shutdown::Both);
        }
        // SAFETY: this is the only place that takes it, and nothing of this value is used afterwards.
        let kept = unsafe { ManuallyDrop::take(&mut self.kept) };
        self.peer_fds.close(kept);
    }
}

/// Whether a descriptor is of a kind that messages have, and can be closed without waiting. Asks no file system.
fn is_ordinary(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok() || eventfd::is_eventfd(fd)
}

/// Whether a descriptor is a UNIX stream socket.
fn is_channel(fd: &OwnedFd) -> bool {
    socket_domain(fd) == Ok(AddressFamily::UNIX) && socket_type(fd) == Ok(SocketType::STREAM)
}
