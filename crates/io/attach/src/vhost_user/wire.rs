//! The socket of a connection: whole messages out of a stream, with the descriptors that came along.
//!
//! # Model
//! A read never goes beyond the message in hand, so descriptors are always those of this message. A message that has
//! come in part stays until the rest is there.
//!
//! # Failure modes
//! A peer that does not read its answers is as good as gone: a full socket ends the connection. More descriptors than a
//! message has are closed, and the message refused.
//!
//! A descriptor that is neither memory nor an eventfd ends the connection: see [`crate::peer_fds`].

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_sys::{Errno, IoSlice, unix};

use crate::peer_fds::{DeferredClose, PeerFds, ReceiveError};

use super::message::{Code, FDS_MAX, HEADER_BYTES, Header, Malformed, PAYLOAD_MAX, Request};

/// Why nothing more comes from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer does not read what it is told.
    #[error("the peer does not read its answers")]
    Full,
    /// The peer does not read what it is asked.
    #[error("the peer does not read what it is asked on its own socket")]
    Deaf,
    /// Something came along that could keep us waiting.
    #[error("a descriptor came along that is neither shared memory nor an eventfd")]
    UnexpectedFd,
    /// What it sent is no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A call failed.
    #[error("vhost-user socket: {0}")]
    Socket(#[source] Errno),
}

impl WireError {
    fn of(errno: Errno) -> WireError {
        match errno {
            Errno::PIPE | Errno::CONNRESET => WireError::Closed,
            Errno::AGAIN => WireError::Full,
            errno => WireError::Socket(errno),
        }
    }
}

/// A message as it came.
#[derive(Debug)]
pub struct Incoming {
    /// Which.
    pub code: Code,
    /// What it says.
    pub request: Request,
    /// An answer is wanted.
    pub need_reply: bool,
    /// As many as the message has, without the channel.
    pub fds: Vec<OwnedFd>,
    /// The UNIX stream socket that came along.
    pub channel: Option<DeferredClose<OwnedFd>>,
    /// Bytes of the payload.
    pub bytes: usize,
}

/// A connected stream, non-blocking.
#[derive(Debug)]
pub struct Wire {
    socket: DeferredClose<OwnedFd>,
    peer_fds: PeerFds,
    bytes: [u8; HEADER_BYTES + PAYLOAD_MAX],
    have: usize,
    fds: Vec<OwnedFd>,
    channel: Option<DeferredClose<OwnedFd>>,
}

impl Wire {
    /// On a connected, non-blocking socket.
    pub(crate) fn new(socket: OwnedFd, peer_fds: PeerFds) -> Wire {
        Wire {
            socket: peer_fds.keep(socket),
            peer_fds,
            bytes: [0; HEADER_BYTES + PAYLOAD_MAX],
            have: 0,
            fds: Vec::new(),
            channel: None,
        }
    }

    /// The next whole message, or `None` if it is not there yet.
    ///
    /// # Errors
    /// [`WireError`]: the connection is over.
    pub fn receive(&mut self) -> Result<Option<Incoming>, WireError> {
        let Some(header) = self.fill_to(HEADER_BYTES)?.then(|| self.header()) else {
            return Ok(None);
        };
        let header = header?;
        if !self.fill_to(HEADER_BYTES.saturating_add(header.payload))? {
            return Ok(None);
        }
        let end = self.have;
        self.have = 0;
        let fds = core::mem::take(&mut self.fds);
        let channel = self.channel.take();
        if channel.is_some() && header.code != Code::SET_BACKEND_REQ_FD {
            return Err(WireError::UnexpectedFd);
        }
        let count = fds.len().saturating_add(channel.iter().count());
        let payload = self.bytes.get(HEADER_BYTES..end).unwrap_or(&[]);
        Ok(Some(Incoming {
            code: header.code,
            request: Request::decode(header.code, payload, count)?,
            need_reply: header.need_reply,
            fds,
            channel,
            bytes: payload.len(),
        }))
    }

    fn header(&self) -> Result<Header, Malformed> {
        let bytes = self.bytes.first_chunk().unwrap_or(&[0; HEADER_BYTES]);
        Header::decode(bytes)
    }

    /// Reads until `upto` bytes of the message are there; false if they are not yet.
    fn fill_to(&mut self, upto: usize) -> Result<bool, WireError> {
        while self.have < upto {
            let Some(room) = self.bytes.get_mut(self.have..upto) else {
                return Err(WireError::Closed);
            };
            let (came, channel) = match self.peer_fds.receive(&self.socket, room) {
                Ok(came) => came,
                Err(ReceiveError::UnexpectedFd) => return Err(WireError::UnexpectedFd),
                Err(ReceiveError::Socket(Errno::AGAIN | Errno::INTR)) => return Ok(false),
                Err(ReceiveError::Socket(errno)) => return Err(WireError::of(errno)),
            };
            self.fds.extend(came.fds);
            let channels = self.channel.iter().chain(&channel).count();
            self.channel = channel.or(self.channel.take());
            let count = self
                .fds
                .len()
                .saturating_add(channels)
                .saturating_add(came.surplus_fds);
            if count > FDS_MAX || came.truncated {
                let code = self.header().map_or(Code(0), |h| h.code);
                return Err(Malformed::Descriptors { code, count }.into());
            }
            if came.bytes == 0 {
                return Err(WireError::Closed);
            }
            self.have = self.have.saturating_add(came.bytes);
        }
        Ok(true)
    }

    /// Whether no part of a message was read.
    pub(super) fn is_between_messages(&self) -> bool {
        self.have == 0
    }

    /// The socket is, or is not, to be left open for another daemon.
    pub(super) fn leave_open(&mut self, is_left: bool) {
        self.socket.leave_open(is_left);
    }

    /// Whether the peer has closed its end, whatever may still be read.
    pub fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&*self.socket, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let found = poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0);
        let [fd] = fds;
        found && fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`WireError`]: the connection is over.
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), WireError> {
        let sent = unix::send_with_fds(&self.socket, &[IoSlice::new(bytes)], fd.as_slice());
        match sent.map_err(WireError::of)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(WireError::Full),
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::super::message::{queue_state, request};
    use super::*;
    use windlass_sys::eventfd;
    use windlass_sys::unix::SocketKind;

    fn pair() -> (Wire, OwnedFd) {
        let (ours, theirs) = unix::pair(SocketKind::Stream).expect("a pair");
        let wake = eventfd::create().expect("an eventfd");
        (Wire::new(ours, PeerFds::new(wake.into())), theirs)
    }

    fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let n = unix::send_with_fds(socket, &[IoSlice::new(bytes)], fds).expect("sent");
        assert_eq!(n, bytes.len());
    }

    /// A message that comes byte by byte is the same message, and its neighbours are not touched.
    #[test]
    fn half_messages_wait() {
        let (mut wire, peer) = pair();
        let first = request(Code::SET_VRING_NUM, true, &queue_state(1, 256));
        let second = request(Code::GET_FEATURES, false, &[]);
        for byte in [first, second].concat().chunks(1) {
            assert!(wire.have < 20);
            send(&peer, byte, &[]);
            if let Some(message) = wire.receive().expect("whole") {
                let expected = match message.code {
                    Code::SET_VRING_NUM => Request::SetVringNum {
                        queue: 1,
                        size: 256,
                    },
                    _ => Request::GetFeatures,
                };
                assert_eq!(message.request, expected);
            }
        }
        assert_eq!(wire.have, 0);
        drop(peer);
        assert_eq!(wire.receive().unwrap_err(), WireError::Closed);
    }

    /// Descriptors belong to the message that they came with; surplus ones are closed and refused.
    #[test]
    fn descriptors_stay_with_their_message() {
        let (mut wire, peer) = pair();
        let event = eventfd::create().expect("an eventfd");
        let kick = request(Code::SET_VRING_KICK, false, &1u64.to_ne_bytes());
        let plain = request(Code::GET_FEATURES, false, &[]);
        send(&peer, &plain, &[]);
        send(&peer, &kick, &[event.as_fd()]);
        assert_eq!(wire.receive().expect("one").expect("one").fds.len(), 0);
        assert_eq!(wire.receive().expect("one").expect("one").fds.len(), 1);
        for count in [2, 9, 28] {
            let (mut wire, peer) = pair();
            send(&peer, &kick, &vec![event.as_fd(); count]);
            let error = wire.receive().expect_err("refused");
            assert!(
                matches!(error, WireError::Malformed(Malformed::Descriptors { .. })),
                "{error}"
            );
        }
    }
}
