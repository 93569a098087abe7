//! The front end: it listens, hands memory and rings to the back end that connects, and to each that comes after it.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass_attach::vhost_user::features::{
    CSUM, GUEST_CSUM, GUEST_TSO4, HOST_TSO4, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, PROTOCOL_FEATURES,
    RING_PACKED, VERSION_1,
};
use windlass_attach::vhost_user::message::{
    Code, HEADER_BYTES, Region, protocol, queue_state, request,
};
use windlass_sys::{IoSlice, eventfd, unix};

use super::place::{Buffers, GUEST, LOG2_RING_MAX, Place, first_buffer, memory_bytes};
use super::{Layout, PackedIn, PackedOut, SEGMENT_HEADER, SplitIn, SplitOut};
use crate::generator::Ends;
use crate::memory::Memory;

/// A back end has this long to connect: DPDK tries once a second.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// And this long to answer a message.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Where the front end has the guest's memory, as it tells the back end.
const USER: u64 = 0x7f00_0000_0000;
/// A packed ring begins at descriptor 0 with both wrap counters 1.
const PACKED_BASE: u32 = 0x8000_8000;
const QUEUES: [u32; 2] = [0, 1];
/// What segments pass uncut with.
const SEGMENTS: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | HOST_TSO4 | INDIRECT_DESC;

/// What a guest agrees to, if the back end offers it.
#[derive(Clone, Copy, Debug)]
pub struct PortOptions {
    /// How its rings are laid out: a back end without it is refused.
    pub layout: Layout,
    /// Mergeable receive buffers: a back end without them is refused.
    pub mergeable: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
    /// Checksum offload and TSO over IPv4 both ways, and indirect tables: a back end without them is refused.
    pub segments: bool,
    /// How the buffers of the receive and of the transmit queue lie.
    pub buffers: [Buffers; 2],
}

/// A guest: its memory and its eventfds.
pub struct Port {
    memory: Memory,
    options: PortOptions,
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
}

impl Port {
    /// A guest that no back end knows yet. Make its ends before a back end is let in.
    ///
    /// # Errors
    /// If the host has no memory.
    pub fn create(options: PortOptions) -> Result<Port> {
        if options
            .buffers
            .iter()
            .any(|queue| queue.log2_ring > LOG2_RING_MAX)
        {
            bail!("a ring has at most 2^{LOG2_RING_MAX} descriptors");
        }
        let memory = Memory::create(memory_bytes(&options.buffers))?;
        Port::over(memory, options)
    }

    /// A guest over memory of its own, of small pages, at least so much.
    ///
    /// # Errors
    /// If the host has no memory.
    pub fn create_small(options: PortOptions, bytes: usize) -> Result<Port> {
        let bytes = memory_bytes(&options.buffers).max(bytes);
        Port::over(Memory::create_small(bytes)?, options)
    }

    fn over(memory: Memory, options: PortOptions) -> Result<Port> {
        let port = Port {
            memory,
            options,
            kicks: [eventfd::create()?, eventfd::create()?],
            calls: [eventfd::create()?, eventfd::create()?],
        };
        for queue in QUEUES {
            port.place(queue).clear_headers();
        }
        if options.segments {
            port.place(1).write_headers(&SEGMENT_HEADER);
        }
        Ok(port)
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// One of its queues: 0 receives, 1 transmits.
    pub(crate) fn place(&self, queue: u32) -> Place<'_> {
        Place {
            memory: &self.memory,
            kick: self.kicks[queue as usize].as_fd(),
            queue,
            size: self.options.buffers[queue as usize].count(),
            first: first_buffer(&self.options.buffers, queue),
            buffers: self.options.buffers[queue as usize],
        }
    }

    /// Both ends of split rings, empty.
    #[must_use]
    pub fn split(&self) -> Ends<SplitOut<'_>, SplitIn<'_>> {
        Ends {
            outlet: SplitOut::new(self.place(1), self.options.in_order),
            inlet: SplitIn::new(self.place(0), self.options.mergeable),
        }
    }

    /// Both ends of packed rings, empty.
    #[must_use]
    pub fn packed(&self) -> Ends<PackedOut<'_>, PackedIn<'_>> {
        Ends {
            outlet: PackedOut::new(self.place(1)),
            inlet: PackedIn::new(self.place(0), self.options.mergeable),
        }
    }

    fn negotiate(&self, stream: &mut UnixStream) -> Result<()> {
        let offered = ask(stream, Code::GET_FEATURES)?;
        let when = |wanted: bool, feature: u64| if wanted { feature } else { 0 };
        let wanted = VERSION_1
            | PROTOCOL_FEATURES
            | when(self.options.mergeable, MRG_RXBUF)
            | when(self.options.in_order, IN_ORDER)
            | when(self.options.segments, SEGMENTS)
            | when(self.options.layout == Layout::Packed, RING_PACKED);
        if wanted & !offered != 0 {
            bail!(
                "the back end offers {offered:#x}, which lacks {:#x}",
                wanted & !offered
            );
        }
        let offered = ask(stream, Code::GET_PROTOCOL_FEATURES)?;
        if offered & protocol::REPLY_ACK == 0 {
            bail!("the back end does not acknowledge");
        }
        let word = |value: u64| value.to_ne_bytes();
        say(
            stream,
            Code::SET_PROTOCOL_FEATURES,
            &word(protocol::REPLY_ACK),
            &[],
        )?;
        say(stream, Code::SET_OWNER, &[], &[])?;
        say(stream, Code::SET_FEATURES, &word(wanted), &[])
    }

    fn hand_over_memory(&self, stream: &mut UnixStream) -> Result<()> {
        let region = Region {
            gpa: GUEST,
            len: self.memory.bytes(),
            user: USER,
            offset: 0,
        };
        let mut table = 1u64.to_ne_bytes().to_vec();
        table.extend(region.encode());
        tell(stream, Code::SET_MEM_TABLE, &table, &[self.memory.file()])
    }

    /// As QEMU says it: a split ring goes on where the guest has seen it, of a packed one it says where it began.
    fn start_queue(&self, stream: &mut UnixStream, queue: u32) -> Result<()> {
        let place = self.place(queue);
        let base = match self.options.layout {
            Layout::Split => u32::from(self.memory.load_u16(place.used() + 2, Acquire)),
            Layout::Packed => PACKED_BASE,
        };
        let state = |number: u32| queue_state(queue, number);
        let mut addresses = state(0).to_vec();
        for at in [place.desc(), place.used(), place.avail()] {
            addresses.extend((USER + u64::from(at)).to_ne_bytes());
        }
        addresses.extend(0u64.to_ne_bytes());
        let number = u64::from(queue).to_ne_bytes();
        let (kick, call) = (&self.kicks[queue as usize], &self.calls[queue as usize]);
        say(
            stream,
            Code::SET_VRING_NUM,
            &state(u32::from(place.size)),
            &[],
        )?;
        say(stream, Code::SET_VRING_BASE, &state(base), &[])?;
        say(stream, Code::SET_VRING_ADDR, &addresses, &[])?;
        say(stream, Code::SET_VRING_KICK, &number, &[kick.as_fd()])?;
        say(stream, Code::SET_VRING_CALL, &number, &[call.as_fd()])
    }
}

/// A listening socket of a guest, and the back end that is there.
pub struct Link<'p> {
    port: &'p Port,
    listener: UnixListener,
    stream: Option<UnixStream>,
}

impl<'p> Link<'p> {
    /// Listens at `path`, in the place of a socket that is there.
    ///
    /// # Errors
    /// If the directory takes none.
    pub fn listen(port: &'p Port, path: &Path) -> Result<Link<'p>> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Link {
            port,
            listener,
            stream: None,
        })
    }

    /// Lets a back end in, in the place of one that was there, and tells it everything.
    ///
    /// # Errors
    /// If none comes, or it lacks what is wanted.
    pub fn connect(&mut self) -> Result<()> {
        self.stream = None;
        let mut stream = self.accept()?;
        self.port.negotiate(&mut stream)?;
        self.port.hand_over_memory(&mut stream)?;
        for queue in QUEUES {
            self.port.start_queue(&mut stream, queue)?;
        }
        for queue in QUEUES {
            let state = queue_state(queue, 1);
            tell(&mut stream, Code::SET_VRING_ENABLE, &state, &[])?;
        }
        self.stream = Some(stream);
        Ok(())
    }

    /// Whether no back end is there, or it has gone.
    #[must_use]
    pub fn is_left(&self) -> bool {
        let Some(stream) = &self.stream else {
            return true;
        };
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(stream, &mut [0u8; 1], flags) {
            Ok((bytes, _)) => bytes == 0,
            Err(error) => error != rustix::io::Errno::AGAIN,
        }
    }

    fn accept(&self) -> Result<UnixStream> {
        let end = Instant::now() + CONNECT_WITHIN;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
                    return Ok(stream);
                }
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => bail!(error),
                Err(_) if Instant::now() > end => bail!("no back end has connected"),
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }
}

fn say(stream: &UnixStream, code: Code, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    send(stream, &request(code, false, payload), fds).with_context(|| format!("{code}"))
}

fn send(stream: &UnixStream, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let sent = unix::send_with_fds(stream, &[IoSlice::new(message)], fds)?;
    if sent != message.len() {
        bail!("only {sent} bytes were sent");
    }
    Ok(())
}

/// Says it and waits until it has been done.
fn tell(stream: &mut UnixStream, code: Code, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    send(stream, &request(code, true, payload), fds).with_context(|| format!("{code}"))?;
    match answer(stream, code)? {
        0 => Ok(()),
        status => bail!("the back end refused {code}: {status}"),
    }
}

fn ask(stream: &mut UnixStream, code: Code) -> Result<u64> {
    say(stream, code, &[], &[])?;
    answer(stream, code)
}

fn answer(stream: &mut UnixStream, code: Code) -> Result<u64> {
    let mut bytes = [0; HEADER_BYTES + 8];
    stream
        .read_exact(&mut bytes)
        .with_context(|| format!("no answer to {code}"))?;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if (word(0), word(8)) != (code.0, 8) {
        bail!(
            "request {} came where an answer to {code} was expected",
            word(0)
        );
    }
    Ok(u64::from(word(12)) | u64::from(word(16)) << 32)
}
