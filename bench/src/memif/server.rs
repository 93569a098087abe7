//! The server's side, as far as a null switch needs it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use windlass_attach::memif::layout::{LOG2_RING_MAX, RingPlace};
use windlass_attach::memif::msg::{Direction, Hello, Message, Text, VERSION};

use super::channel::seqpacket;
use super::{Channel, Ring};
use crate::memory::Memory;

/// A bound socket; its file is removed when this is dropped.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`.
    ///
    /// # Errors
    /// If the path is taken.
    pub fn bind(path: &Path) -> Result<Listener> {
        let socket = seqpacket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        listen(&socket, 4)?;
        Ok(Listener {
            socket,
            path: path.to_path_buf(),
        })
    }

    /// Waits for a client and takes its memory and rings.
    ///
    /// # Errors
    /// If the client breaks the protocol.
    pub fn accept(&self) -> Result<Peer> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        Peer::greet(Channel::from_socket(socket)?)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Whoever removed it before us has done our work.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A connected client.
pub struct Peer {
    /// The interface that it asked for.
    pub id: u32,
    memory: Memory,
    tx: RingPlace,
    rx: RingPlace,
    channel: Channel,
}

impl Peer {
    /// The ring that the client sends on.
    #[must_use]
    pub fn from_client(&self) -> Ring<'_> {
        Ring::new(&self.memory, self.rx)
    }

    /// The ring that the client receives on.
    #[must_use]
    pub fn from_server(&self) -> Ring<'_> {
        Ring::new(&self.memory, self.tx)
    }

    /// Whether the client has gone away.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A client has nothing more to say: whatever arrives is its end.
        !matches!(poll(&mut fds, Some(&now)), Ok(0))
    }

    fn greet(channel: Channel) -> Result<Peer> {
        let name = Text::cut(b"null-switch");
        let hello = Hello {
            name,
            version_min: VERSION,
            version_max: VERSION,
            region_max: 0,
            from_server_max: 0,
            from_client_max: 0,
            log2_ring_max: LOG2_RING_MAX,
        };
        channel.send(&Message::Hello(hello), None)?;
        let (mut id, mut memory) = (None, None);
        let (mut tx, mut rx) = (None, None);
        loop {
            let (message, descriptor) = channel.receive()?;
            match (message, descriptor) {
                (Message::Init(init), _) => id = Some(init.id),
                (Message::AddRegion(region), Some(file)) if memory.is_none() => {
                    memory = Some(Memory::map(file, region.size)?);
                }
                (Message::AddRing(ring), Some(_)) => {
                    let region = memory.as_ref().context("a ring came before its region")?;
                    let place = RingPlace::checked(ring.offset, ring.log2_size, region.bytes())
                        .with_context(|| format!("{ring:?} does not fit its region"))?;
                    match ring.direction {
                        Direction::FromClient => rx = Some(place),
                        Direction::FromServer => tx = Some(place),
                    }
                }
                (Message::Connect(_), _) => break,
                (other, _) => bail!("{other:?} is not expected here"),
            }
            channel.send(&Message::Ack, None)?;
        }
        let peer = Peer {
            id: id.context("no INIT came")?,
            memory: memory.context("no region came")?,
            tx: tx.context("no ring from the server came")?,
            rx: rx.context("no ring from the client came")?,
            channel,
        };
        if !peer.from_client().has_cookie() || !peer.from_server().has_cookie() {
            bail!("a ring of interface {} has no cookie", peer.id);
        }
        peer.from_client().mask_interrupt();
        peer.channel.send(&Message::Connected(name), None)?;
        Ok(peer)
    }
}
