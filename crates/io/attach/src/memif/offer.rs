//! What a client says to a server, and the memory that it offers.
//!
//! # Model
//! One region holds the rings and the buffers, where [`super::places`] puts them. The client speaks in turn: each message after INIT waits for
//! the ACK of the one before it. [`Dialogue`] touches no socket: the caller carries its messages.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use windlass_shm::{HugePages, Mapping};
use windlass_sys::{Errno, eventfd};

use super::channel::{Refusal, name_of};
use super::hub::program_name;
use super::layout::{COOKIE, Desc, LOG2_RING_MAX, RingPlace};
use super::msg::{AddRegion, AddRing, Direction, Hello, Init, Message, Mode, Secret, Text};
use super::offload::Offloads;
use super::places::plan;
use super::rings::RingSpec;
use super::view::Buffers;

pub use super::places::BUFFER_BYTES;

/// What a client interface is made of.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The server's socket.
    pub path: PathBuf,
    /// In whose directory the socket lies, if not in ours: symbolic links on the way are not followed there.
    pub owner: Option<(u32, u32)>,
    /// The interface's number there.
    pub id: u32,
    /// What the server wants to see.
    pub secret: Secret,
    /// The interface's name, as the server is told.
    pub name: String,
    /// Rings wanted in each direction, 1 to 256; the server may allow fewer.
    pub rings: u16,
    /// Size of each ring on which we send, and of each on which the server does, as powers of two: at most [`LOG2_RING_MAX`].
    pub log2_sizes: [u8; 2],
    /// What is asked for. Whoever uses the rings looks whether the server offers it, and says the same in what it writes into flags.
    pub offloads: Offloads,
    /// Whether 2 MiB pages are tried.
    pub huge: HugePages,
}

/// The memory that we bring.
#[derive(Debug)]
pub struct Offer {
    /// Region 0, the only one.
    pub mapping: Mapping,
    /// The rings on which we send.
    pub from_client: Vec<RingSpec>,
    /// The rings on which the server sends.
    pub from_server: Vec<RingSpec>,
}

fn dup(fd: &OwnedFd) -> Result<OwnedFd, Refusal> {
    fd.try_clone()
        .map_err(|e| Refusal::Local("dup", Errno::from_io_error(&e).unwrap_or(Errno::MFILE)))
}

/// Offers every buffer of a ring from the server: before CONNECT, since the server may fill them as soon as it has answered that.
fn offer_buffers(mapping: &Mapping, place: RingPlace, buffers: &Buffers) {
    for slot in 0..place.size() {
        let desc = Desc {
            region: buffers.region,
            length: buffers.room,
            offset: buffers.offset(slot),
            ..Desc::default()
        };
        let [low, high] = desc.to_words();
        let at = place.desc_at(slot) as usize;
        mapping.store_u64(at, low, Ordering::Relaxed);
        mapping.store_u64(at.saturating_add(8), high, Ordering::Relaxed);
    }
    offer_all(mapping, place);
}

fn offer_all(mapping: &Mapping, place: RingPlace) {
    mapping.store_u16(place.head_at() as usize, place.size(), Ordering::Release);
}

/// The client's half of the handshake.
#[derive(Debug, Default)]
pub struct Dialogue {
    server: Option<Text<32>>,
    offer: Option<Offer>,
    /// What is still to be said, and the descriptor that goes with it. The front waits for an ACK.
    script: VecDeque<(Message, Option<OwnedFd>)>,
}

impl Dialogue {
    /// Takes the next message. The server's interface name, if it was CONNECTED; else the caller sends
    /// [`Dialogue::to_say`].
    ///
    /// # Errors
    /// [`Refusal`]: the connection is to be ended.
    pub fn take(
        &mut self,
        message: &Message,
        config: &ClientConfig,
    ) -> Result<Option<Text<32>>, Refusal> {
        match message {
            Message::Hello(hello) if self.offer.is_none() => {
                self.server = Some(hello.name);
                self.prepare(hello, config)?;
                let init = Init {
                    id: config.id,
                    mode: Mode::Ethernet,
                    secret: config.secret,
                    name: program_name(),
                };
                self.script.push_front((Message::Init(init), None));
                Ok(None)
            }
            Message::Ack if self.script.len() > 1 => {
                self.script.pop_front();
                Ok(None)
            }
            Message::Connected(name) if self.script.len() == 1 => {
                self.script.pop_front();
                if let Some(offer) = &self.offer {
                    // Some servers set all indices to 0 when they connect (DPDK).
                    let rings = offer.from_server.iter();
                    rings.for_each(|ring| offer_all(&offer.mapping, ring.place));
                }
                Ok(Some(*name))
            }
            Message::Disconnect(why) => Err(Refusal::Peer(why.reason)),
            other => Err(Refusal::Unexpected(name_of(other))),
        }
    }

    /// What is to be sent now, once.
    pub fn to_say(&self) -> Option<(&Message, Option<BorrowedFd<'_>>)> {
        let (message, fd) = self.script.front()?;
        Some((message, fd.as_ref().map(AsFd::as_fd)))
    }

    /// The memory that is offered, once HELLO has come.
    pub fn memory(&self) -> Option<&Mapping> {
        self.offer.as_ref().map(|offer| &offer.mapping)
    }

    /// The server's name and what it accepted, behind CONNECTED.
    pub fn finish(self) -> Option<(Text<32>, Offer)> {
        Some((self.server?, self.offer?))
    }

    /// Makes the memory and writes the script after INIT.
    fn prepare(&mut self, hello: &Hello, config: &ClientConfig) -> Result<(), Refusal> {
        let most = hello.log2_ring_max.min(LOG2_RING_MAX);
        let [size_up, size_down] = config.log2_sizes.map(|log2_size| log2_size.min(most));
        let [up, down] = [hello.from_client_max, hello.from_server_max]
            .map(|last| config.rings.min(last.saturating_add(1)).max(1));
        let mut log2_sizes = vec![size_up; up.into()];
        log2_sizes.resize(usize::from(up).saturating_add(down.into()), size_down);
        let too_large = || Refusal::TooLarge {
            rings: config.rings,
            log2_size: size_up.max(size_down),
        };
        let (plans, size) = plan(&log2_sizes).ok_or_else(too_large)?;
        let (mapping, file) = Mapping::create("windlass-memif", size, config.huge)
            .map_err(|source| Refusal::Memory { index: 0, source })?;
        let region = AddRegion {
            index: 0,
            size: mapping.len() as u64,
        };
        self.script
            .push_back((Message::AddRegion(region), Some(file)));
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        for (i, (plan, log2_size)) in (0u16..).zip(plans.into_iter().zip(log2_sizes)) {
            let cookie_at = plan.place.cookie_at() as usize;
            mapping.store_u32(cookie_at, COOKIE, Ordering::Release);
            let event = eventfd::create().map_err(|e| Refusal::Local("eventfd", e))?;
            let (direction, index) = match i.checked_sub(up) {
                None => (Direction::FromClient, i),
                Some(index) => (Direction::FromServer, index),
            };
            let ring = AddRing {
                direction,
                index,
                region: 0,
                offset: plan.place.cookie_at(),
                log2_size,
                private_bytes: 0,
            };
            self.script
                .push_back((Message::AddRing(ring), Some(dup(&event)?)));
            if direction == Direction::FromServer {
                let flags_at = plan.place.flags_at() as usize;
                mapping.store_u16(flags_at, config.offloads.flags(), Ordering::Release);
                offer_buffers(&mapping, plan.place, &plan.buffers);
            }
            let specs = match direction {
                Direction::FromClient => &mut from_client,
                Direction::FromServer => &mut from_server,
            };
            specs.push(RingSpec {
                region: 0,
                place: plan.place,
                event: Some(event),
                buffers: Some(plan.buffers),
            });
        }
        let name = Text::cut(config.name.as_bytes());
        self.script.push_back((Message::Connect(name), None));
        self.offer = Some(Offer {
            mapping,
            from_client,
            from_server,
        });
        Ok(())
    }
}
