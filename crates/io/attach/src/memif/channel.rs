//! The control socket of one connection: whole messages, each with at most one descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use windlass_shm::MapError;
use windlass_sys::{Errno, IoSlice, unix};

use crate::peer_fds::{DeferredClose, PeerFds, ReceiveError};

use super::msg::{DecodeError, Disconnect, MSG_BYTES, Message, Text};

/// How long a peer may keep us waiting for its next word of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that one poll takes from one connection.
pub const MESSAGES_PER_POLL: usize = 32;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The peer closed its socket.
    #[error("the peer closed the connection")]
    Closed,
    /// The socket failed.
    #[error("memif socket: {0}")]
    Socket(#[source] Errno),
    /// A message that version 2 does not have.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A message that is longer than any.
    #[error("a message of more than {MSG_BYTES} bytes")]
    Oversize,
    /// Something came along that could keep us waiting.
    #[error("a descriptor came along that is neither shared memory nor an eventfd")]
    UnexpectedFd,
    /// ADD_REGION or ADD_RING without its descriptor.
    #[error("a descriptor is missing")]
    NoDescriptor,
    /// A message out of turn.
    #[error("unexpected {0} message")]
    Unexpected(&'static str),
    /// No interface with this number.
    #[error("interface {0} is not on this socket")]
    UnknownId(u32),
    /// The interface has a peer; which, as far as it may be told.
    #[error("interface {id} is in use by {by}")]
    Busy {
        /// The interface.
        id: u32,
        /// For people.
        by: String,
    },
    /// No secret, or another one.
    #[error("the secret is wrong")]
    Secret,
    /// It came to the former owner's socket.
    #[error("the socket has another owner now: connect again")]
    Owner,
    /// Not Ethernet.
    #[error("only Ethernet interfaces are offered")]
    Mode,
    /// A region out of order, or too many.
    #[error("region {0} is out of order or beyond the limit")]
    Region(u16),
    /// The memory of a region was refused.
    #[error("region {index}: {source}")]
    Memory {
        /// The region.
        index: u16,
        /// Why.
        source: MapError,
    },
    /// A ring beyond the number offered, or sent twice.
    #[error("ring {0} is beyond the number offered, or was added before")]
    Ring(u16),
    /// A ring that does not lie in a region, or asks for what is not offered.
    #[error("ring {0} does not lie inside its region")]
    Place(u16),
    /// Space for a private header before each frame.
    #[error("ring {0} wants a private header, which is not offered")]
    PrivateHeader(u16),
    /// Not an eventfd.
    #[error("ring {0} came with a descriptor that is no eventfd")]
    Event(u16),
    /// A direction without any ring, or with a gap.
    #[error("the rings are not complete")]
    Rings,
    /// Something else is where a ring's header should be.
    #[error("ring {0} has no memif cookie")]
    Cookie(u16),
    /// The peer said goodbye.
    #[error("the peer disconnected: {0}")]
    Peer(Text<96>),
    /// It took too long.
    #[error("the peer was silent for {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Silent,
    /// The ring or its memory was found broken by the data path.
    #[error("the peer broke its rings or took its memory away")]
    Broken,
    /// A worker or the daemon ended it.
    #[error("{0}")]
    Condemned(String),
    /// Nobody listens, or may be asked.
    #[error("connect to {path}: {errno}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Our own side lacks something.
    #[error("{0}: {1}")]
    Local(&'static str, #[source] Errno),
    /// The rings asked for do not fit into one region.
    #[error("{rings} rings of 2^{log2_size} descriptors do not fit into one region")]
    TooLarge {
        /// Rings in each direction.
        rings: u16,
        /// Size of each.
        log2_size: u8,
    },
}

impl Refusal {
    /// What DISCONNECT carries for programs: an errno, or 0.
    fn code(&self) -> u32 {
        let errno = match self {
            Refusal::Busy { .. } => Errno::BUSY,
            Refusal::UnknownId(_) => Errno::NXIO,
            Refusal::Secret => Errno::ACCESS,
            _ => return 0,
        };
        errno.raw_os_error().unsigned_abs()
    }

    /// Whether the peer is still there to be told.
    fn is_mutual(&self) -> bool {
        matches!(
            self,
            Refusal::Closed | Refusal::Socket(_) | Refusal::Peer(_)
        )
    }
}

/// A connected control socket, non-blocking.
#[derive(Debug)]
pub(super) struct Channel {
    socket: DeferredClose<OwnedFd>,
    peer_fds: PeerFds,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd, peer_fds: PeerFds) -> Channel {
        Channel {
            socket: peer_fds.keep(socket),
            peer_fds,
        }
    }

    /// Sends one message. A peer that does not read is as good as gone: a full socket is an error.
    pub(super) fn send(
        &self,
        message: &Message,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Refusal> {
        let record = message.encode();
        let parts = [IoSlice::new(&record)];
        unix::send_with_fds(&self.socket, &parts, fd.as_slice()).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => Refusal::Closed,
            errno => Refusal::Socket(errno),
        })?;
        Ok(())
    }

    /// The next message, or `None` if none waits. Descriptors beyond the one that a message has are closed.
    pub(super) fn receive(&self) -> Result<Option<(Message, Option<OwnedFd>)>, Refusal> {
        let mut record = [0; MSG_BYTES];
        let received = match self.peer_fds.receive(&self.socket, &mut record) {
            Ok((received, None)) => received,
            Ok((_, Some(_))) => return Err(Refusal::UnexpectedFd),
            Err(ReceiveError::UnexpectedFd) => return Err(Refusal::UnexpectedFd),
            Err(ReceiveError::Socket(Errno::AGAIN | Errno::INTR)) => return Ok(None),
            Err(ReceiveError::Socket(Errno::CONNRESET)) => return Err(Refusal::Closed),
            Err(ReceiveError::Socket(errno)) => return Err(Refusal::Socket(errno)),
        };
        if received.bytes == 0 {
            return Err(Refusal::Closed);
        }
        if received.truncated {
            return Err(Refusal::Oversize);
        }
        let bytes = record.get(..received.bytes).unwrap_or(&[]);
        let message = Message::decode(bytes)?;
        let fd = received
            .fds
            .into_iter()
            .next()
            .filter(|_| message.has_descriptor());
        Ok(Some((message, fd)))
    }

    /// Says why, if the peer can still be told. What it makes of that is its own affair.
    pub(super) fn say_goodbye(&self, why: &Refusal) {
        if !why.is_mutual() {
            let reason = Text::cut(why.to_string().as_bytes());
            let code = why.code();
            let _ = self.send(&Message::Disconnect(Disconnect { code, reason }), None);
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The name of a message, for errors.
pub(super) fn name_of(message: &Message) -> &'static str {
    match message {
        Message::Ack => "ACK",
        Message::Hello(_) => "HELLO",
        Message::Init(_) => "INIT",
        Message::AddRegion(_) => "ADD_REGION",
        Message::AddRing(_) => "ADD_RING",
        Message::Connect(_) => "CONNECT",
        Message::Connected(_) => "CONNECTED",
        Message::Disconnect(_) => "DISCONNECT",
    }
}
