//! Makes sockets, memory and program for an interface, or says why not.

use std::sync::Arc;

use thiserror::Error;
use windlass_shm::{Extent, MapError};
use windlass_sys::Errno;
use windlass_sys::ethtool;
use windlass_sys::netlink::Link;
use windlass_sys::xdp::{Divert, DivertError, RingKind, XdpError, XdpSocket};

use super::memory::{FRAMES, MTU_MAX, Memory};
use super::port::{Queue, Rings, XdpRx, XdpTx};
use crate::port::RxPort;

/// Queues of an interface that are taken at most.
const QUEUES_MAX: u32 = 64;

/// How to take the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpConf {
    /// The driver may use our memory itself, where it can.
    pub zero_copy: bool,
    /// Microseconds for which a call may poll the interface; 0: its interrupts come as they do.
    pub busy_poll_us: u32,
}

/// Why an interface's frames cannot be taken by AF_XDP.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// Frames could be longer than a place in the memory.
    #[error("the MTU of `{0}` is {1}, above {MTU_MAX}: ip link set {0} mtu {MTU_MAX}")]
    Mtu(String, u32),
    /// Tags are taken out where no program sees them.
    #[error(
        "`{0}` takes VLAN tags out of frames before XDP sees them: ethtool -K {0} rxvlan off{1}"
    )]
    StripsVlan(String, &'static str),
    /// Frames are merged.
    #[error("`{0}` merges frames that it receives: ethtool -K {0} lro off")]
    Merges(String),
    /// More queues than are taken.
    #[error("`{0}` has {1} queues, above {QUEUES_MAX}: ethtool -L {0} combined {QUEUES_MAX}")]
    Queues(String, u32),
    /// The driver has no XDP.
    #[error("the driver of `{0}` has no XDP")]
    Driver(String),
    /// Somebody's program is there.
    #[error("another XDP program is at `{0}` (ip link show {0})")]
    Taken(String),
    /// Somebody's sockets are there.
    #[error("another program has AF_XDP sockets at `{0}`")]
    InUse(String),
    /// The interface is down.
    #[error("`{0}` is down")]
    Down(String),
    /// Only of a veth: the other end's frames would not fit.
    #[error(
        "the MTU at the other end of `{0}` is too large for the driver's XDP: set it to 3,506 or less"
    )]
    PeerMtu(String),
    /// Only of a veth: the other end has more queues.
    #[error(
        "the other end of `{0}` transmits on more queues than `{0}` receives on: ethtool -L {0} rx N"
    )]
    PeerQueues(String),
    /// A missing privilege.
    #[error("AF_XDP needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW: {0}")]
    Privilege(String),
    /// Too much memory to be locked.
    #[error(
        "AF_XDP memory of {0} MiB is above RLIMIT_MEMLOCK: give windlassd CAP_IPC_LOCK or LimitMEMLOCK=infinity"
    )]
    Locked(usize),
    /// The kernel has no AF_XDP.
    #[error("the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")]
    Kernel,
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// Something else about a socket.
    #[error(transparent)]
    Socket(XdpError),
    /// Something else about the program.
    #[error(transparent)]
    Program(DivertError),
    /// What the driver has been told could not be asked for.
    #[error("ask the driver of `{0}`: {1}")]
    Ask(String, Errno),
}

impl Unavailable {
    /// Whether it may pass without anybody's configuring something.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Unavailable::Taken(_) | Unavailable::InUse(_) | Unavailable::Down(_)
        )
    }
}

/// An interface whose frames come to our sockets, as long as this lives.
pub struct Attached {
    /// First, so that nothing is led to a socket that is gone.
    divert: Divert,
    sockets: Vec<Arc<XdpSocket>>,
    queues: Vec<Arc<Queue>>,
    memory: Arc<Memory>,
    conf: XdpConf,
    transmits: usize,
    is_virtual: bool,
}

impl Attached {
    /// Takes all frames of an interface, or with `by_address` those for addresses that are named ([`Attached::divert`]).
    ///
    /// # Errors
    /// Why it cannot be had; the interface is as before.
    pub fn open(
        conf: XdpConf,
        link: &Link,
        by_address: bool,
        addresses: impl Iterator<Item = u64>,
    ) -> Result<Attached, Unavailable> {
        let queues = fit(link)?;
        let (receive, transmit) = (queues.receive, queues.transmit.min(queues.receive));
        let mut divert = Divert::new(receive, by_address).map_err(|e| program(link, e))?;
        let Bound {
            sockets,
            queues,
            memory,
        } = bind(conf, link, receive)?;
        for (number, socket) in (0..).zip(&sockets) {
            let named = divert.set_socket(number, socket);
            named.map_err(|e| program(link, e))?;
        }
        for address in addresses {
            let _ = divert.insert(address);
        }
        divert.attach(link.index).map_err(|e| program(link, e))?;
        Ok(Attached {
            divert,
            sockets,
            queues,
            memory,
            conf,
            transmits: transmit as usize,
            is_virtual: is_veth(link),
        })
    }

    /// Whether what a refusal that [may pass](Unavailable::may_pass) was about can be had now. No frame goes another way meanwhile: the
    /// program that is tried leads to no socket.
    pub fn is_free(conf: XdpConf, link: &Link) -> bool {
        let (Ok(queues), Ok(mut divert)) = (fit(link), Divert::new(1, false)) else {
            return false;
        };
        divert.attach(link.index).is_ok() && bind(conf, link, queues.receive).is_ok()
    }

    /// The largest MTU whose frames fit into the places that there are.
    pub fn mtu_max(&self) -> u32 {
        self.memory.mtu_max()
    }

    /// A receive half for each queue.
    pub fn rx(&self) -> impl Iterator<Item = Box<dyn RxPort>> + '_ {
        let busy_poll = self.conf.busy_poll_us != 0;
        self.queues.iter().map(move |queue| {
            Box::new(XdpRx::new(queue.clone(), busy_poll, self.is_virtual)) as Box<dyn RxPort>
        })
    }

    /// The transmit half.
    pub fn tx(&self) -> XdpTx {
        let queues = self.queues.iter().take(self.transmits);
        XdpTx::new(queues.cloned().collect())
    }

    /// Which addresses' frames are taken, if not all are.
    pub fn divert(&self) -> &Divert {
        &self.divert
    }

    /// Takes the program away, for another daemon's: frames come by the packet socket from then on.
    pub fn let_go(&mut self) {
        self.divert.detach();
    }

    /// Frames that the kernel or the interface dropped.
    pub fn drops(&self) -> u64 {
        let counted = self.sockets.iter().filter_map(|s| s.statistics().ok());
        let kernels = counted.map(|s| s.rx_dropped + s.rx_ring_full + s.tx_invalid);
        kernels.sum::<u64>() + self.queues.iter().map(|q| q.refused()).sum::<u64>()
    }

    /// Where the memory of frames lies.
    pub fn extent(&self) -> Extent {
        self.memory.mapping().extent()
    }

    /// What there is to tell, by name.
    pub fn details(&self) -> Vec<(&'static str, String)> {
        let is_zero_copy = self.sockets.first().is_some_and(|s| s.is_zero_copy());
        let mode = if is_zero_copy { "zero-copy" } else { "copy" };
        let mapping = self.memory.mapping();
        let pages = if mapping.is_huge() {
            "huge"
        } else {
            "ordinary"
        };
        let mib = mapping.len() >> 20;
        let mut details = vec![
            ("xdp", mode.to_owned()),
            ("queues", self.queues.len().to_string()),
            ("memory", format!("{mib} MiB in {pages} pages")),
        ];
        if self.conf.busy_poll_us != 0 {
            details.push(("busy poll", format!("{} us", self.conf.busy_poll_us)));
        }
        details
    }
}

fn is_veth(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth")
}

/// The queues of an interface that fits.
fn fit(link: &Link) -> Result<ethtool::Queues, Unavailable> {
    let name = || link.name.clone();
    if link.mtu > MTU_MAX {
        return Err(Unavailable::Mtu(name(), link.mtu));
    }
    let offloads = ethtool::offloads(&link.name).map_err(|e| Unavailable::Ask(name(), e))?;
    if offloads.strips_vlan {
        let other = if is_veth(link) {
            ", and txvlan off at its other end"
        } else {
            ""
        };
        return Err(Unavailable::StripsVlan(name(), other));
    }
    if offloads.merges {
        return Err(Unavailable::Merges(name()));
    }
    let queues = ethtool::queues(&link.name).map_err(|e| Unavailable::Ask(name(), e))?;
    if queues.receive > QUEUES_MAX {
        return Err(Unavailable::Queues(name(), queues.receive));
    }
    Ok(queues)
}

/// The sockets of an interface's queues, without a program.
struct Bound {
    sockets: Vec<Arc<XdpSocket>>,
    queues: Vec<Arc<Queue>>,
    memory: Arc<Memory>,
}

fn bind(conf: XdpConf, link: &Link, queues: u32) -> Result<Bound, Unavailable> {
    let memory = Arc::new(Memory::new(queues, link.mtu)?);
    let mut bound = Bound {
        sockets: Vec::new(),
        queues: Vec::new(),
        memory,
    };
    for number in 0..queues {
        let (first, memory) = (bound.sockets.first(), &bound.memory);
        let made = socket(conf, link.index, number, memory, first.map(Arc::as_ref));
        let (socket, rings) = made.map_err(|e| refused(link, memory, e))?;
        let socket = Arc::new(socket);
        let queue = Queue::new(number, rings, Box::new(socket.clone()), memory.clone());
        bound.queues.push(Arc::new(queue));
        bound.sockets.push(socket);
    }
    Ok(bound)
}

/// A socket of one queue, bound, with its rings.
fn socket(
    conf: XdpConf,
    index: u32,
    queue: u32,
    memory: &Memory,
    first: Option<&XdpSocket>,
) -> Result<(XdpSocket, Rings), XdpError> {
    let socket = XdpSocket::open()?;
    if first.is_none() {
        let mapping = memory.mapping();
        // SAFETY: the mapping is kept by every queue, and foreign memory is never a Rust reference.
        unsafe { socket.set_memory(mapping.base(), mapping.len(), memory.place_bytes()) }?;
    }
    let rings = Rings {
        receive: socket.ring(RingKind::Receive, FRAMES)?,
        transmit: socket.ring(RingKind::Transmit, FRAMES)?,
        fill: socket.ring(RingKind::Fill, FRAMES)?,
        completion: socket.ring(RingKind::Completion, FRAMES)?,
    };
    socket.widen(FRAMES as usize * 4096, FRAMES);
    if conf.busy_poll_us != 0 {
        socket.set_busy_poll(conf.busy_poll_us)?;
    }
    socket.bind(index, queue, conf.zero_copy, first)?;
    Ok((socket, rings))
}

fn refused(link: &Link, memory: &Memory, error: XdpError) -> Unavailable {
    match (error.operation, error.errno) {
        (_, Errno::PERM | Errno::ACCESS) => Unavailable::Privilege(error.to_string()),
        (_, Errno::AFNOSUPPORT) => Unavailable::Kernel,
        ("XDP_UMEM_REG", Errno::NOBUFS | Errno::NOMEM) => {
            Unavailable::Locked(memory.mapping().len() >> 20)
        }
        ("bind", Errno::BUSY) => Unavailable::InUse(link.name.clone()),
        ("bind", Errno::NETDOWN) => Unavailable::Down(link.name.clone()),
        _ => Unavailable::Socket(error),
    }
}

fn program(link: &Link, error: DivertError) -> Unavailable {
    let name = link.name.clone();
    match &error {
        DivertError::Attach(Errno::OPNOTSUPP) => Unavailable::Driver(name),
        DivertError::Attach(Errno::BUSY | Errno::EXIST) => Unavailable::Taken(name),
        DivertError::Attach(Errno::RANGE) if is_veth(link) => Unavailable::PeerMtu(name),
        DivertError::Attach(Errno::NOSPC) if is_veth(link) => Unavailable::PeerQueues(name),
        DivertError::Map { errno, .. } | DivertError::Attach(errno)
            if matches!(*errno, Errno::PERM | Errno::ACCESS) =>
        {
            Unavailable::Privilege(error.to_string())
        }
        _ => Unavailable::Program(error),
    }
}
