//! The client's side of one interface: it brings the memory and sends on the ring from the client.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use windlass_attach::memif::layout::{Desc, LOG2_RING_MAX, RingPlace, ring_bytes};
use windlass_attach::memif::msg::{
    AddRegion, AddRing, Direction, Hello, Init, Message, Mode, Secret, Text,
};

use super::{Channel, Ring};
use crate::memory::Memory;

/// Room for a frame in each buffer, in bytes.
pub const BUFFER_ROOM: u32 = 2048;

/// Distance between two buffers, in bytes: what a DPDK client's `zero-copy=yes` has (64 object header, 128 mbuf, 128
/// headroom, 2,048 data). An odd number of cache lines, so that first lines of frames spread over all cache sets.
const BUFFER_STRIDE: u32 = 2368;

/// Where the sending ring lies in the region.
const TX_AT: u32 = 0;

/// Buffers begin at a page, so that each begins at a cache line.
const BUFFER_ALIGN: u32 = 4096;

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Number of the interface on the server's socket.
    pub id: u32,
    /// Descriptors in each ring, as a power of two.
    pub log2_ring: u8,
    /// Which ring from the server the frames will come on: the rings before it are announced too, and stay unused.
    /// OVS-DPDK sends on the second one, the first belongs to its main thread.
    pub from_server: u16,
}

/// A connected interface.
pub struct Port {
    memory: Memory,
    kick: OwnedFd,
    tx: RingPlace,
    rx: RingPlace,
    buffers: u32,
    /// Kept open: closing it disconnects.
    channel: RefCell<Channel>,
    interrupts: Vec<OwnedFd>,
    options: PortOptions,
    rx_offsets: Vec<u32>,
    stand: Stand,
}

/// How far the generator is in the rings; a connection begins at 0.
#[derive(Default)]
pub(super) struct Stand {
    /// The next descriptor to send with, and the first that the switch had not given back.
    pub(super) head: Cell<u16>,
    pub(super) tail_seen: Cell<u16>,
    /// The next descriptor to receive.
    pub(super) next: Cell<u16>,
}

impl Port {
    /// Connects to the server at `path`, shares memory with it, and offers every receive buffer.
    ///
    /// # Errors
    /// If nobody listens, the server refuses, or its limits are too small.
    pub fn connect(path: &Path, options: &PortOptions) -> Result<Port> {
        let channel = Channel::connect(path)?;
        let Message::Hello(hello) = channel.receive()?.0 else {
            bail!("the memif server did not greet with HELLO");
        };
        check_limits(&hello, options)?;
        let plan = Plan::new(options)?;
        let memory = Memory::create(plan.bytes as usize)?;
        let port = plan.lay_out(memory, channel, options)?;
        port.introduce()
            .with_context(|| format!("interface {} at {}", options.id, path.display()))?;
        port.offer_receive_buffers();
        Ok(port)
    }

    /// Whether the server has gone.
    #[must_use]
    pub fn is_left(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&*self.channel.borrow(), &mut [0u8; 1], flags) {
            Ok((bytes, _)) => bytes == 0,
            Err(error) => error != Errno::AGAIN,
        }
    }

    /// Connects to the next server at `path`, with the same memory; whether it is there and takes this interface already. What lies in
    /// the rings is lost.
    #[must_use]
    pub fn reconnect(&self, path: &Path) -> bool {
        let channel = Channel::connect(path);
        channel.and_then(|channel| self.meet(channel)).is_ok()
    }

    fn meet(&self, channel: Channel) -> Result<()> {
        let Message::Hello(hello) = channel.receive()?.0 else {
            bail!("the memif server did not greet with HELLO");
        };
        check_limits(&hello, &self.options)?;
        self.channel.replace(channel);
        let Stand {
            head,
            tail_seen,
            next,
        } = &self.stand;
        for index in [head, tail_seen, next] {
            index.set(0);
        }
        self.tx().clear();
        self.rx().clear();
        self.introduce()?;
        self.offer_receive_buffers();
        Ok(())
    }

    /// How far both directions are.
    pub(super) fn stand(&self) -> &Stand {
        &self.stand
    }

    /// The ring that this client sends on.
    #[must_use]
    pub fn tx(&self) -> Ring<'_> {
        Ring::new(&self.memory, self.tx)
    }

    /// The ring that this client receives on.
    #[must_use]
    pub fn rx(&self) -> Ring<'_> {
        Ring::new(&self.memory, self.rx)
    }

    /// The region with rings and buffers.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Offset of the send buffer of a slot (an index below the ring's size).
    #[must_use]
    #[inline]
    pub fn tx_buffer(&self, slot: u16) -> u32 {
        self.buffers + u32::from(slot) * BUFFER_STRIDE
    }

    /// Offset of the receive buffer of a slot (an index below the ring's size).
    #[must_use]
    #[inline]
    pub fn rx_buffer(&self, slot: u16) -> u32 {
        self.buffers + (u32::from(self.tx.size()) + u32::from(slot)) * BUFFER_STRIDE
    }

    /// Wakes the server.
    pub fn kick(&self) {
        // A full counter means that a wake-up is pending already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    fn introduce(&self) -> Result<()> {
        let (options, channel) = (&self.options, self.channel.borrow());
        let name = Text::cut(b"memif-gen");
        let init = Init {
            id: options.id,
            mode: Mode::Ethernet,
            secret: Secret::NONE,
            name,
        };
        channel.send(&Message::Init(init), None)?;
        channel.acknowledged()?;
        let region = AddRegion {
            index: 0,
            size: self.memory.bytes(),
        };
        channel.send(&Message::AddRegion(region), Some(self.memory.file()))?;
        channel.acknowledged()?;
        let ring = |direction, index, offset| AddRing {
            direction,
            index,
            region: 0,
            offset,
            log2_size: options.log2_ring,
            private_bytes: 0,
        };
        let tx = ring(Direction::FromClient, 0, TX_AT);
        channel.send(&Message::AddRing(tx), Some(self.kick.as_fd()))?;
        channel.acknowledged()?;
        for ((index, offset), interrupt) in (0u16..).zip(&self.rx_offsets).zip(&self.interrupts) {
            let rx = ring(Direction::FromServer, index, *offset);
            channel.send(&Message::AddRing(rx), Some(interrupt.as_fd()))?;
            channel.acknowledged()?;
        }
        channel.send(&Message::Connect(name), None)?;
        match channel.receive()?.0 {
            Message::Connected(_) => Ok(()),
            other => bail!("{other:?} came where CONNECTED was expected"),
        }
    }

    fn offer_receive_buffers(&self) {
        let ring = self.rx();
        for slot in 0..ring.size() {
            ring.set_desc(slot, self.empty(slot));
        }
        ring.mask_interrupt();
        ring.set_head(ring.size());
    }

    /// The descriptor of an empty receive buffer.
    #[must_use]
    #[inline]
    pub fn empty(&self, slot: u16) -> Desc {
        Desc {
            length: BUFFER_ROOM,
            offset: self.rx_buffer(slot),
            ..Desc::default()
        }
    }
}

/// Where everything lies in the region.
struct Plan {
    log2_ring: u8,
    rx: Vec<u32>,
    buffers: u32,
    bytes: u32,
}

impl Plan {
    fn new(options: &PortOptions) -> Result<Plan> {
        let Some(ring) = ring_bytes(options.log2_ring) else {
            bail!("a ring has at most 2^{LOG2_RING_MAX} descriptors");
        };
        let ring = ring.next_multiple_of(BUFFER_ALIGN);
        let rx: Vec<u32> = (0..=options.from_server)
            .map(|index| ring * (1 + u32::from(index)))
            .collect();
        let buffers = ring * (1 + rx.len() as u32);
        let frames = 2 * (1u32 << options.log2_ring);
        Ok(Plan {
            log2_ring: options.log2_ring,
            rx,
            buffers,
            bytes: buffers + frames * BUFFER_STRIDE,
        })
    }

    fn lay_out(self, memory: Memory, channel: Channel, options: &PortOptions) -> Result<Port> {
        let place = |offset: u32| {
            RingPlace::checked(offset, self.log2_ring, memory.bytes())
                .context("a ring does not fit its region")
        };
        let tx = place(TX_AT)?;
        let mut rx = tx;
        for offset in &self.rx {
            rx = place(*offset)?;
            Ring::new(&memory, rx).clear();
        }
        Ring::new(&memory, tx).clear();
        let interrupts = self.rx.iter().map(|_| event()).collect::<Result<_>>()?;
        Ok(Port {
            kick: event()?,
            tx,
            rx,
            buffers: self.buffers,
            channel: RefCell::new(channel),
            interrupts,
            options: options.clone(),
            rx_offsets: self.rx,
            stand: Stand::default(),
            memory,
        })
    }
}

fn check_limits(hello: &Hello, options: &PortOptions) -> Result<()> {
    if hello.log2_ring_max < options.log2_ring {
        bail!(
            "the server takes rings of 2^{} descriptors, not 2^{}",
            hello.log2_ring_max,
            options.log2_ring
        );
    }
    if hello.from_server_max < options.from_server {
        bail!(
            "the server sends on rings 0 to {}, not on {}",
            hello.from_server_max,
            options.from_server
        );
    }
    Ok(())
}

fn event() -> Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
