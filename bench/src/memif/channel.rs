//! The control socket: whole messages with at most one file descriptor each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};
use windlass_attach::memif::msg::{MSG_BYTES, Message};

/// How long the peer may take to answer a control message.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// One end of a connected control socket. The peer sees the end of the connection when it is dropped.
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Connects to the server that listens at `path`.
    ///
    /// # Errors
    /// If nothing listens there.
    pub fn connect(path: &Path) -> Result<Channel> {
        let socket = seqpacket()?;
        let address = SocketAddrUnix::new(path)?;
        connect(&socket, &address)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        Channel::from_socket(socket)
    }

    /// A channel over a socket that is connected already.
    ///
    /// # Errors
    /// If the socket takes no timeout.
    pub fn from_socket(socket: OwnedFd) -> Result<Channel> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN))?;
        Ok(Channel { socket })
    }

    /// Sends one message, with the file descriptor that belongs to it.
    ///
    /// # Errors
    /// If the peer is gone.
    pub fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        let record = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let sent = sendmsg(
            &self.socket,
            &[IoSlice::new(&record)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .with_context(|| format!("cannot send {message:?}"))?;
        if sent != MSG_BYTES {
            bail!("only {sent} bytes of {message:?} were sent");
        }
        Ok(())
    }

    /// Waits for the next message and the file descriptor that came with it.
    ///
    /// # Errors
    /// If none comes in time, it is not valid, or the peer disconnects.
    pub fn receive(&self) -> Result<(Message, Option<OwnedFd>)> {
        let mut record = [0; MSG_BYTES];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut record)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .context("no answer on the memif control socket")?;
        if received.bytes == 0 {
            bail!("the memif peer closed the connection");
        }
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.next().and_then(|mut fds| fds.next());
        let message = Message::decode(&record[..received.bytes])?;
        if let Message::Disconnect(disconnect) = message {
            bail!("the memif peer refused: {}", disconnect.reason);
        }
        if message.has_descriptor() != descriptor.is_some() {
            bail!("{message:?} came with a wrong number of file descriptors");
        }
        Ok((message, descriptor))
    }

    /// Waits for ACK.
    ///
    /// # Errors
    /// As [`Channel::receive`], and if another message comes.
    pub fn acknowledged(&self) -> Result<()> {
        match self.receive()?.0 {
            Message::Ack => Ok(()),
            other => bail!("{other:?} came where ACK was expected"),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An unconnected socket of memif's kind.
pub(super) fn seqpacket() -> Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}
