//! AF_XDP: frames of an interface in rings that we share with the kernel.
//!
//! # Purpose
//! Takes and sends the frames of one queue of an interface without a system call for each, from memory of ours.
//!
//! # Model
//! ```text
//!   fill ring        we --- free frames ---> kernel          completion ring  kernel --- sent frames ---> us
//!   receive ring     kernel --- frames ---> us               transmit ring    we --- frames ---> kernel
//! ```
//! An [`XdpSocket`] is bound to one queue. All sockets of an interface share one piece of memory ([`XdpSocket::set_memory`]),
//! each with four rings of its own. A [`Ring`] is a power of two of entries between two indexes, of which each side writes
//! one. [`Divert`] is the program that leads frames to the sockets.
//!
//! # Synchronization
//! An index is stored with Release behind the entries, and loaded with Acquire before them. Entries are loaded and stored
//! one word at a time; an index is masked before use, so that whatever the other side writes, nothing outside of the ring is
//! touched.
//!
//! # Ownership and lifetime
//! A ring is mapped until it is dropped, also after its socket. The kernel holds the memory's pages until the last socket
//! is closed.
//!
//! # What can be lost
//! What the kernel does not find room for; [`XdpSocket::statistics`] counts it.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::expect_used))]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::sockopt::{get_bytes, set_bytes, set_int};
use crate::vectored::last_errno;

mod divert;
mod ring;

pub use divert::{Divert, DivertError};
pub use ring::{Descriptor, Ring};

// <linux/if_xdp.h>
const SOL_XDP: i32 = 283;
const XDP_MMAP_OFFSETS: i32 = 1;
const XDP_UMEM_REG: i32 = 4;
const XDP_STATISTICS: i32 = 7;
const XDP_OPTIONS: i32 = 8;
/// Linux 6.18: how many frames one call sends in copy mode.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
const BIND_SHARED_MEMORY: u16 = 1;
const BIND_COPY: u16 = 1 << 1;
const BIND_NEED_WAKEUP: u16 = 1 << 3;
const OPTION_ZERO_COPY: u32 = 1;
// <asm-generic/socket.h>
const SO_BUSY_POLL: i32 = 46;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;

/// Bytes of each frame of the memory that the kernel keeps for a program's headers (`XDP_PACKET_HEADROOM`).
pub const HEADROOM_BYTES: u32 = 256;
/// Frames that a call polls the interface for, with busy polling.
const POLL_BUDGET: i32 = 64;

/// Which ring of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Frames received.
    Receive,
    /// Frames to be sent.
    Transmit,
    /// Free frames, to be received into.
    Fill,
    /// Frames that were sent.
    Completion,
}

impl RingKind {
    /// The option that makes it, where it is mapped, and its place among the offsets.
    fn numbers(self) -> (i32, i64, usize) {
        match self {
            RingKind::Receive => (2, 0, 0),
            RingKind::Transmit => (3, 0x8000_0000, 1),
            RingKind::Fill => (5, 0x1_0000_0000, 2),
            RingKind::Completion => (6, 0x1_8000_0000, 3),
        }
    }
}

/// The kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of an AF_XDP socket: {errno}")]
pub struct XdpError {
    /// The call or option.
    pub operation: &'static str,
    /// The kernel's answer.
    pub errno: Errno,
}

fn refused(operation: &'static str) -> impl Fn(Errno) -> XdpError {
    move |errno| XdpError { operation, errno }
}

/// What the kernel counted for a socket since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Frames dropped: too long, or without a free frame of ours in copy mode.
    pub rx_dropped: u64,
    /// Entries of the fill ring that named no frame.
    pub rx_invalid: u64,
    /// Entries of the transmit ring that named no frame.
    pub tx_invalid: u64,
    /// Frames dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// How often no free frame was found.
    pub fill_ring_empty: u64,
    /// How often a wake-up found nothing to send.
    pub tx_ring_empty: u64,
}

/// An AF_XDP socket.
#[derive(Debug)]
pub struct XdpSocket {
    fd: OwnedFd,
}

impl XdpSocket {
    /// A socket that is not bound. Needs `CAP_NET_RAW` in the calling thread's namespace.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` from a kernel without AF_XDP.
    pub fn open() -> Result<XdpSocket, XdpError> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
        if fd < 0 {
            return Err(refused("socket")(last_errno()));
        }
        // SAFETY: socket(2) just returned this descriptor, which nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(XdpSocket { fd })
    }

    /// The memory of this socket and of those that are bound beside it: `len` bytes at `base`, in frames of `frame_bytes`.
    ///
    /// # Safety
    /// The memory is mapped, and no Rust reference exists to any of it while the kernel may write it: until the last of
    /// these sockets is closed.
    ///
    /// # Errors
    /// `ENOBUFS` and `ENOMEM` above `RLIMIT_MEMLOCK` without `CAP_IPC_LOCK`; `EINVAL` for a frame size that is no power of
    /// two, below 2,048 or above a page.
    pub unsafe fn set_memory(
        &self,
        base: *mut u8,
        len: usize,
        frame_bytes: u32,
    ) -> Result<(), XdpError> {
        // struct xdp_umem_reg: address, length, frame size and headroom, flags and length of metadata.
        let words: [u64; 4] = [
            base.expose_provenance() as u64,
            len as u64,
            frame_bytes.into(),
            0,
        ];
        let bytes = words.map(u64::to_ne_bytes);
        set_bytes(&self.fd, SOL_XDP, XDP_UMEM_REG, bytes.as_flattened())
            .map_err(refused("XDP_UMEM_REG"))
    }

    /// Makes a ring of `size` entries, a power of two, of `WORDS` words each: 1 for those of free and sent frames, 2 for the others.
    ///
    /// # Errors
    /// The kernel's answer; `EINVAL` for a ring that is not as asked for.
    pub fn ring<const WORDS: usize>(
        &self,
        kind: RingKind,
        size: u32,
    ) -> Result<Ring<WORDS>, XdpError> {
        let (option, place, number) = kind.numbers();
        let is_fit = matches!(
            (kind, WORDS),
            (RingKind::Receive | RingKind::Transmit, 2)
                | (RingKind::Fill | RingKind::Completion, 1)
        );
        if !is_fit || !size.is_power_of_two() {
            return Err(refused("a ring")(Errno::INVAL));
        }
        set_bytes(&self.fd, SOL_XDP, option, &size.to_ne_bytes()).map_err(refused("a ring"))?;
        // struct xdp_mmap_offsets: for each ring, where its producer, consumer, entries and flags lie.
        let mut offsets = [[0u8; 8]; 16];
        let space = offsets.as_flattened_mut();
        let len = get_bytes(&self.fd, SOL_XDP, XDP_MMAP_OFFSETS, space)
            .map_err(refused("XDP_MMAP_OFFSETS"))?;
        // Linux before 5.4 has no flags.
        let offsets = offsets.map(u64::from_ne_bytes);
        let at = offsets.chunks_exact(4).nth(number).filter(|_| len >= 128);
        let &[producer, consumer, entries, flags] = at.unwrap_or_default() else {
            return Err(refused("XDP_MMAP_OFFSETS")(Errno::INVAL));
        };
        let at = [producer, consumer, flags, entries].map(|at| at as usize);
        Ring::map(self.fd.as_fd(), place, at, size).map_err(refused("mmap"))
    }

    /// Binds it to a queue of the interface `index`. `beside`: the socket whose memory it shares, and whose mode it has. With
    /// `zero_copy` the driver uses our memory itself where it can, otherwise frames are copied; [`XdpSocket::is_zero_copy`] tells.
    ///
    /// # Errors
    /// `EINVAL` beyond the interface's queues, `EBUSY` if the queue has a socket with other memory.
    pub fn bind(
        &self,
        index: u32,
        queue: u32,
        zero_copy: bool,
        beside: Option<&XdpSocket>,
    ) -> Result<(), XdpError> {
        let (flags, shared) = match (beside, zero_copy) {
            (Some(other), _) => (BIND_SHARED_MEMORY, other.fd.as_raw_fd().cast_unsigned()),
            (None, true) => (BIND_NEED_WAKEUP, 0),
            (None, false) => (BIND_NEED_WAKEUP | BIND_COPY, 0),
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared,
        };
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        // SAFETY: bind only reads, and only the structure whose size it is told.
        let done = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        match done {
            0 => Ok(()),
            _ => Err(refused("bind")(last_errno())),
        }
    }

    /// Room in the send buffer for a whole ring, and one call for so many frames (Linux 6.18): both as far as the kernel
    /// grants it.
    pub fn widen(&self, send_bytes: usize, frames: u32) {
        let bytes = i32::try_from(send_bytes).unwrap_or(i32::MAX);
        let _ = set_int(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes);
        let frames = frames.to_ne_bytes();
        let _ = set_bytes(&self.fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &frames);
    }

    /// Has the interface be polled by our calls, up to `us` microseconds each, with its interrupts put off meanwhile.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `ENOPROTOOPT` before Linux 5.11.
    pub fn set_busy_poll(&self, us: u32) -> Result<(), XdpError> {
        let us = i32::try_from(us).unwrap_or(i32::MAX);
        for (option, name, value) in [
            (SO_PREFER_BUSY_POLL, "SO_PREFER_BUSY_POLL", 1),
            (SO_BUSY_POLL, "SO_BUSY_POLL", us),
            (SO_BUSY_POLL_BUDGET, "SO_BUSY_POLL_BUDGET", POLL_BUDGET),
        ] {
            set_int(&self.fd, libc::SOL_SOCKET, option, value).map_err(refused(name))?;
        }
        Ok(())
    }

    /// Whether the driver uses our memory itself.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        let mut flags = [0; 4];
        let got = get_bytes(&self.fd, SOL_XDP, XDP_OPTIONS, &mut flags);
        got.is_ok() && u32::from_ne_bytes(flags) & OPTION_ZERO_COPY != 0
    }

    /// Has the kernel send what the transmit ring holds.
    ///
    /// # Errors
    /// `EAGAIN` if something is left, `EBUSY` if the interface dropped a frame, `ENETDOWN` and `ENXIO` without the interface.
    pub fn send(&self) -> Result<(), Errno> {
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: sendto reads nothing: there are no bytes and there is no address.
        let done = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Has the kernel look for free frames, and with busy polling for frames of the interface.
    pub fn poll(&self) {
        let (fd, flags, null) = (
            self.fd.as_raw_fd(),
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        );
        // SAFETY: recvfrom writes nothing: there is no room and there is no address. What it found is in the ring.
        unsafe { libc::recvfrom(fd, null, 0, flags, null.cast(), null.cast()) };
    }

    /// What the kernel counted.
    ///
    /// # Errors
    /// Its answer.
    pub fn statistics(&self) -> Result<XdpStatistics, Errno> {
        let mut words = [[0; 8]; 6];
        get_bytes(&self.fd, SOL_XDP, XDP_STATISTICS, words.as_flattened_mut())?;
        let [
            rx_dropped,
            rx_invalid,
            tx_invalid,
            rx_ring_full,
            fill_ring_empty,
            tx_ring_empty,
        ] = words.map(u64::from_ne_bytes);
        Ok(XdpStatistics {
            rx_dropped,
            rx_invalid,
            tx_invalid,
            rx_ring_full,
            fill_ring_empty,
            tx_ring_empty,
        })
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
