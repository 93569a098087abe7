//! TAP devices: Ethernet interfaces whose other side is a descriptor.
//!
//! # Purpose
//! Makes a TAP, or attaches again to a persistent one, with a virtio-net header before each frame
//! and the offloads that the kernel grants.
//!
//! # Model
//! A [`Tap`] is one interface with one or more [`TapQueue`]s, each a non-blocking descriptor. A read
//! takes one frame that the interface's stack sent, a write gives it one; either starts with
//! [`VNET_HEADER_BYTES`] of `struct virtio_net_hdr_mrg_rxbuf` (`<linux/virtio_net.h>`), little
//! endian, whose `num_buffers` the kernel ignores.
//!
//! # Ownership and lifetime
//! A TAP is created in the network namespace of the thread that opens it; use
//! [`within`](crate::netns::within) for another one. It vanishes with its last queue unless
//! [`Tap::set_persistent`] was called; a persistent one keeps addresses, routes and MAC while no
//! queue is attached, only its carrier is off. Offloads are set anew at each [`Tap::open`].
//!
//! # What can be lost and what cannot
//! The kernel queues at most `txqueuelen` frames (1,000 by default) a queue for the reader and
//! drops the rest, counted as `tx_dropped` of the interface.
//!
//! # Failure modes
//! After the interface or its namespace is deleted, reads and writes fail with `EBADFD`; while it
//! is down, writes fail with `EIO` and reads with `EAGAIN`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};

use crate::bpf::Program;
use crate::interface::{self, BadInterfaceName};
use crate::vectored::last_errno;

/// Bytes of the header before each frame (`TUNSETVNETHDRSZ`).
pub const VNET_HEADER_BYTES: usize = 12;

/// Most queues of one TAP (`MAX_TAP_QUEUES`, drivers/net/tun.c).
pub const QUEUES_MAX: u16 = 256;

const DEVICE: &str = "/dev/net/tun";

/// How to open a TAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Fail with [`TapError::Exists`] rather than attach to an interface that is there already.
    pub must_create: bool,
    /// Make it able to have several queues even if only one is opened now. Implied by more than
    /// one. An existing TAP can only be opened in the mode in which it was made.
    pub multi_queue: bool,
    /// Deliver written frames by NAPI, so that the kernel merges TCP segments (`IFF_NAPI`).
    pub napi: bool,
    /// Ask for checksum and segmentation offload; else every frame arrives whole and checksummed.
    pub offloads: bool,
}

impl Default for TapOptions {
    /// Attach or create, one queue, no NAPI, offloads on.
    fn default() -> Self {
        Self {
            must_create: false,
            multi_queue: false,
            napi: false,
            offloads: true,
        }
    }
}

/// What the stack behind a TAP may leave to the reader, as granted by `TUNSETOFFLOAD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapOffloads {
    /// Frames may lack their TCP or UDP checksum.
    pub checksum: bool,
    /// Frames may be TCP segments of up to 64 KiB to be cut (IPv4 and IPv6).
    pub tso: bool,
    /// Such segments may carry ECN bits.
    pub ecn: bool,
    /// Frames may be UDP datagrams to be cut (`TUN_F_USO4` and `TUN_F_USO6`, Linux 6.2).
    pub uso: bool,
}

impl TapOffloads {
    fn bits(self) -> libc::c_ulong {
        let mut bits = 0;
        if self.checksum {
            bits |= libc::TUN_F_CSUM;
        }
        if self.tso {
            bits |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        }
        if self.ecn {
            bits |= libc::TUN_F_TSO_ECN;
        }
        if self.uso {
            bits |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
        }
        bits.into()
    }
}

/// What can go wrong with a TAP.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name is not one for an interface.
    #[error(transparent)]
    BadName(#[from] BadInterfaceName),
    /// Not between 1 and [`QUEUES_MAX`] queues.
    #[error("a TAP has 1 to {QUEUES_MAX} queues, not {0}")]
    BadQueues(u16),
    /// The machine offers no TAP to this process.
    #[error("open {DEVICE}: {0}")]
    Device(Errno),
    /// [`TapOptions::must_create`] was asked for, and the interface exists.
    #[error("interface `{0}` exists")]
    Exists(String),
    /// Another process holds the interface's only queue, or all of them.
    #[error("TAP `{0}` is in use by another process")]
    InUse(String),
    /// The interface exists, and is no TAP, or one made with another number of queues in mind.
    #[error("interface `{name}` exists and is not a TAP for {}", if *.multi_queue { "several queues" } else { "one queue" })]
    OtherKind {
        /// The interface.
        name: String,
        /// Whether several queues were asked for.
        multi_queue: bool,
    },
    /// The kernel refused; `EPERM` means that `CAP_NET_ADMIN` in the namespace is missing.
    #[error("{operation} of TAP `{name}`: {errno}")]
    Kernel {
        /// The ioctl.
        operation: &'static str,
        /// The interface.
        name: String,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// One queue of a TAP: a non-blocking descriptor that carries whole frames.
#[derive(Debug)]
pub struct TapQueue {
    fd: OwnedFd,
}

/// A TAP that is open.
#[derive(Debug)]
pub struct Tap {
    name: String,
    index: u32,
    created: bool,
    offloads: TapOffloads,
    queues: Vec<TapQueue>,
}

impl TapQueue {
    /// Has the interface end with the last of its queues, whatever namespace it is in by now.
    pub fn end_with_queues(&self) -> Result<(), Errno> {
        // SAFETY: this request takes its argument by value, so no memory is touched.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETPERSIST, 0) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Reads one frame with its header. Returns the bytes read, or `EAGAIN` if none waits.
    ///
    /// A frame longer than `space` is cut by the kernel without a sign: offer header, maximum
    /// frame and one byte more, and take a full read for an oversized frame.
    pub fn read_frame(&self, space: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        rustix::io::readv(&self.fd, space)
    }

    /// Writes one frame with its header, whole or not at all. Returns the bytes written.
    ///
    /// # Errors
    /// `EINVAL` for a header that contradicts the frame or a frame below 14 bytes, `EIO` while the
    /// interface is down, `EBADFD` when it is gone.
    pub fn write_frame(&self, frame: &[IoSlice<'_>]) -> Result<usize, Errno> {
        rustix::io::writev(&self.fd, frame)
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Tap {
    /// Opens the TAP `name` in the calling thread's network namespace with `queues` queues.
    ///
    /// Creates it unless it exists. Needs `CAP_NET_ADMIN` in the namespace's user namespace.
    /// A new TAP is down and has a random MAC address.
    pub fn open(name: &str, queues: u16, options: &TapOptions) -> Result<Self, TapError> {
        interface::check_name(name)?;
        if !(1..=QUEUES_MAX).contains(&queues) {
            return Err(TapError::BadQueues(queues));
        }
        let created = interface::index_of(name)
            .map_err(|errno| kernel_error("look-up", name, errno))?
            .is_none();
        let multi_queue = options.multi_queue || queues > 1;
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        if options.napi {
            flags |= libc::IFF_NAPI;
        }
        let mut opened = Vec::with_capacity(queues.into());
        for position in 0..queues {
            let first_only = if position == 0 && options.must_create {
                libc::IFF_TUN_EXCL
            } else {
                0
            };
            opened.push(open_queue(
                name,
                flags | first_only,
                multi_queue,
                options.must_create,
            )?);
        }
        let index = interface::index_of(name)
            .and_then(|index| index.ok_or(Errno::NODEV))
            .map_err(|errno| kernel_error("look-up", name, errno))?;
        let mut tap = Self {
            name: name.to_owned(),
            index,
            created,
            offloads: TapOffloads::default(),
            queues: opened,
        };
        tap.set_offloads(options.offloads)?;
        Ok(tap)
    }

    /// Takes over the queues of the TAP `name` that another process has opened: carrier and frames that wait stay. None if they are
    /// of another interface, or of none.
    pub fn take_over(
        name: &str,
        index: u32,
        queues: Vec<OwnedFd>,
        options: &TapOptions,
    ) -> Option<Self> {
        let is_of = |queue: &OwnedFd| {
            let mut request = Request::named("", 0);
            let asked = control_with(queue.as_fd(), libc::TUNGETIFF, &mut request);
            asked.is_ok() && request.name == Request::named(name, 0).name
        };
        if queues.is_empty() || !queues.iter().all(is_of) {
            return None;
        }
        let mut tap = Self {
            name: name.to_owned(),
            index,
            created: false,
            offloads: TapOffloads::default(),
            queues: queues.into_iter().map(|fd| TapQueue { fd }).collect(),
        };
        tap.set_offloads(options.offloads).ok()?;
        Some(tap)
    }

    /// Name of the interface when it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Interface index in the namespace where it was opened.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether [`Tap::open`] found no interface of that name, and made it.
    #[must_use]
    pub fn was_created(&self) -> bool {
        self.created
    }

    /// What the kernel granted.
    #[must_use]
    pub fn offloads(&self) -> TapOffloads {
        self.offloads
    }

    /// Its queues.
    #[must_use]
    pub fn queues(&self) -> &[TapQueue] {
        &self.queues
    }

    /// Gives the queues away, one for each worker that will own it.
    #[must_use]
    pub fn into_queues(self) -> Vec<TapQueue> {
        self.queues
    }

    /// Asks for the most that the kernel grants (`wanted`), or for nothing.
    pub fn set_offloads(&mut self, wanted: bool) -> Result<(), TapError> {
        let none = TapOffloads::default();
        let checksum = TapOffloads {
            checksum: true,
            ..none
        };
        let tso = TapOffloads {
            tso: true,
            ecn: true,
            ..checksum
        };
        let uso = TapOffloads { uso: true, ..tso };
        let ladder: &[TapOffloads] = if wanted {
            &[uso, tso, checksum, none]
        } else {
            &[none]
        };
        let mut last = Errno::INVAL;
        for &step in ladder {
            match self.control(libc::TUNSETOFFLOAD, step.bits()) {
                Ok(()) => {
                    self.offloads = step;
                    return Ok(());
                }
                // EINVAL: a bit that this kernel does not know.
                Err(Errno::INVAL) => last = Errno::INVAL,
                Err(errno) => {
                    last = errno;
                    break;
                }
            }
        }
        Err(kernel_error("TUNSETOFFLOAD", &self.name, last))
    }

    /// Makes the interface outlive its queues, or end with the last of them.
    pub fn set_persistent(&self, persistent: bool) -> Result<(), TapError> {
        self.control(libc::TUNSETPERSIST, persistent.into())
            .map_err(|errno| kernel_error("TUNSETPERSIST", &self.name, errno))
    }

    /// Whether the interface outlives its queues.
    pub fn is_persistent(&self) -> Result<bool, TapError> {
        let mut request = Request::named(&self.name, 0);
        self.control_with(libc::TUNGETIFF, &mut request)
            .map_err(|errno| kernel_error("TUNGETIFF", &self.name, errno))?;
        Ok(request.flags & IFF_PERSIST != 0)
    }

    /// Lets `program` choose the queue of each frame that the stack sends
    /// ([`Program::steer_to_queue`](crate::bpf::Program::steer_to_queue)), or gives the choice back
    /// to the kernel, which follows the queue on which a flow was last written.
    pub fn set_steering(&self, program: Option<&Program>) -> Result<(), TapError> {
        let mut fd: libc::c_int = program.map_or(-1, |program| program.as_fd().as_raw_fd());
        self.control_with(libc::TUNSETSTEERINGEBPF, &mut fd)
            .map_err(|errno| kernel_error("TUNSETSTEERINGEBPF", &self.name, errno))
    }

    fn control(&self, request: libc::Ioctl, value: libc::c_ulong) -> Result<(), Errno> {
        let fd = self.queues.first().ok_or(Errno::BADF)?.as_fd().as_raw_fd();
        // SAFETY: each request passed here takes its argument by value, so no memory is touched.
        let result = unsafe { libc::ioctl(fd, request, value) };
        if result < 0 {
            Err(last_errno())
        } else {
            Ok(())
        }
    }

    fn control_with<T>(&self, request: libc::Ioctl, value: &mut T) -> Result<(), Errno> {
        control_with(
            self.queues.first().ok_or(Errno::BADF)?.as_fd(),
            request,
            value,
        )
    }
}

const IFF_PERSIST: libc::c_short = 0x0800;

/// `struct ifreq` of `<linux/if.h>` as TUNSETIFF and TUNGETIFF use it: name, flags, and the rest
/// of its 40 bytes.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: libc::c_short,
    rest: [u8; 22],
}

impl Request {
    fn named(name: &str, flags: libc::c_int) -> Self {
        let mut request = Self {
            name: [0; 16],
            flags: flags as libc::c_short,
            rest: [0; 22],
        };
        for (to, from) in request
            .name
            .iter_mut()
            .take(interface::NAME_BYTES_MAX)
            .zip(name.bytes())
        {
            *to = from;
        }
        request
    }
}

fn kernel_error(operation: &'static str, name: &str, errno: Errno) -> TapError {
    TapError::Kernel {
        operation,
        name: name.to_owned(),
        errno,
    }
}

/// An ioctl of the tun driver that reads or writes one `T`.
fn control_with<T>(fd: BorrowedFd<'_>, request: libc::Ioctl, value: &mut T) -> Result<(), Errno> {
    // SAFETY: every caller in this module passes the type that tun.c copies for that request
    // (`struct ifreq` or `int`), and the reference is live and exclusive.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(value)) };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

fn open_queue(
    name: &str,
    flags: libc::c_int,
    multi_queue: bool,
    must_create: bool,
) -> Result<TapQueue, TapError> {
    let mode = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(DEVICE, mode, Mode::empty()).map_err(TapError::Device)?;
    let mut request = Request::named(name, flags);
    control_with(fd.as_fd(), libc::TUNSETIFF, &mut request).map_err(|errno| match errno {
        Errno::BUSY if must_create => TapError::Exists(name.to_owned()),
        Errno::BUSY => TapError::InUse(name.to_owned()),
        Errno::INVAL => TapError::OtherKind {
            name: name.to_owned(),
            multi_queue,
        },
        errno => kernel_error("TUNSETIFF", name, errno),
    })?;
    let mut bytes = VNET_HEADER_BYTES as libc::c_int;
    control_with(fd.as_fd(), libc::TUNSETVNETHDRSZ, &mut bytes)
        .map_err(|errno| kernel_error("TUNSETVNETHDRSZ", name, errno))?;
    Ok(TapQueue { fd })
}
