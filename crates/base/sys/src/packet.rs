//! Packet sockets: every frame of an existing interface.
//!
//! # Purpose
//! Joins an interface that windlass does not own, such as the uplink, by an `AF_PACKET` socket with
//! a virtio-net header before each frame, as on a [TAP](crate::tap).
//!
//! # Model
//! A [`PacketSocket`] is bound to one interface index. A read takes one frame that the interface
//! received; the driver may have taken a VLAN tag out of it, which comes beside it in
//! [`Received::vlan`]. A write sends one frame from the interface.
//!
//! # What can be lost and what cannot
//! The kernel queues frames up to the receive buffer's size, counted with its own overhead, and
//! drops the rest; [`PacketSocket::take_statistics`] counts them. Putting the tag back is the
//! caller's work: dst, src, then tpid and tci, then the rest, and the header's `csum_start` moves
//! by four bytes.
//!
//! # Failure modes
//! `ENETDOWN` once when the interface goes down, `ENODEV` or `ENXIO` after it was deleted. `EINVAL`
//! from a read is one lost frame whose offloads have no virtio-net form.
//!
//! # Not done
//! Rings (`TPACKET_V3`): their blocks retire on a timer.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]
#![cfg_attr(test, allow(clippy::indexing_slicing))]

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt;

use crate::sockopt::{get_bytes, set_bytes, set_int};
use crate::vectored::{iovec, last_errno};

// <linux/if_packet.h>
const PACKET_ADD_MEMBERSHIP: i32 = 1;
const PACKET_DROP_MEMBERSHIP: i32 = 2;
const PACKET_STATISTICS: i32 = 6;
const PACKET_AUXDATA: i32 = 8;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_FANOUT: i32 = 18;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_VNET_HDR_SZ: i32 = 24;
const PACKET_MR_PROMISC: u16 = 1;
const PACKET_MR_ALLMULTI: u16 = 2;
const PACKET_MR_UNICAST: u16 = 3;
const PACKET_FANOUT_HASH: u16 = 0;
const PACKET_FANOUT_QM: u16 = 5;
const PACKET_FANOUT_FLAG_ROLLOVER: u16 = 0x1000;
const PACKET_FANOUT_FLAG_IGNORE_OUTGOING: u16 = 0x4000;
const TP_STATUS_CSUMNOTREADY: u32 = 1 << 3;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const TP_STATUS_CSUM_VALID: u32 = 1 << 7;

const ETH_P_ALL: u16 = 3;
const ETH_P_8021Q: u16 = 0x8100;

/// Bytes for control messages: one header of 16 and `struct tpacket_auxdata` of 20, aligned, with
/// room to spare.
const CONTROL_BYTES: usize = 64;

/// How several sockets on one interface share its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanoutMode {
    /// By a hash of the flow.
    Flow,
    /// By the receive queue of the device.
    DeviceQueue,
}

/// A group of sockets that share the frames of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// The group, any number that no other program in the namespace uses.
    pub group: u16,
    /// Who gets which frame.
    pub mode: FanoutMode,
    /// Give a frame to another socket of the group when the chosen one is full. Reorders.
    pub rollover: bool,
}

/// How to open a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// A virtio-net header before each frame, both ways.
    pub vnet_header: bool,
    /// Do not receive what this host sends on the interface, ourselves among it. All sockets of a
    /// [`Fanout`] group must agree; needs Linux 6.2 there.
    pub ignore_outgoing: bool,
    /// Hand frames to the driver without a queueing discipline: faster, lost when it is busy.
    pub qdisc_bypass: bool,
    /// Size of the receive buffer in bytes; beyond `net.core.rmem_max` only with `CAP_NET_ADMIN`.
    pub receive_bytes: Option<usize>,
    /// Share the interface's frames with other sockets.
    pub fanout: Option<Fanout>,
}

impl Default for PacketOptions {
    /// As an uplink wants it: header, outgoing ignored, through the qdisc. What is received is for
    /// the interface's own address, until [`PacketSocket::join`] asks for more.
    fn default() -> Self {
        Self {
            vnet_header: true,
            ignore_outgoing: true,
            qdisc_bypass: false,
            receive_bytes: None,
            fanout: None,
        }
    }
}

/// Frames that the interface is to receive beside those for its own address (packet(7)), as long as a socket that joined is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// All.
    Promiscuous,
    /// Those for groups.
    AllMulticast,
    /// Those for one more address. A driver whose filters run out receives all.
    Unicast([u8; 6]),
}

impl Membership {
    /// `struct packet_mreq`: index, type, length of the address, address.
    fn request(self, index: u32) -> [u8; 16] {
        let (kind, length, address) = match self {
            Membership::Promiscuous => (PACKET_MR_PROMISC, 0_u16, [0; 6]),
            Membership::AllMulticast => (PACKET_MR_ALLMULTI, 0, [0; 6]),
            Membership::Unicast(address) => (PACKET_MR_UNICAST, 6, address),
        };
        let [i0, i1, i2, i3] = index.to_ne_bytes();
        let ([k0, k1], [l0, l1]) = (kind.to_ne_bytes(), length.to_ne_bytes());
        let [a, b, c, d, e, f] = address;
        [i0, i1, i2, i3, k0, k1, l0, l1, a, b, c, d, e, f, 0, 0]
    }
}

/// The kernel refused; `EPERM` means that `CAP_NET_RAW` in the namespace is missing.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of a packet socket on interface {index}: {errno}")]
pub struct PacketError {
    /// The call or option.
    pub operation: &'static str,
    /// The interface's index.
    pub index: u32,
    /// The kernel's answer.
    pub errno: Errno,
}

/// A VLAN tag that the kernel or the device took out of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Protocol of the tag in host order: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority (3 bits), DEI (1) and VLAN id (12) in host order.
    pub tci: u16,
}

/// One frame that was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes written, the virtio-net header among them.
    pub bytes: usize,
    /// The frame did not fit and was cut.
    pub truncated: bool,
    /// The tag that was taken out of it.
    pub vlan: Option<VlanTag>,
    /// The kernel or the device found its checksum right.
    pub checksum_valid: bool,
    /// Its checksum has not been filled in yet.
    pub checksum_missing: bool,
}

/// What the kernel counted for a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketStatistics {
    /// Frames that matched, the dropped ones among them.
    pub frames: u32,
    /// Frames dropped because the receive buffer was full.
    pub drops: u32,
}

/// A non-blocking packet socket bound to one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: u32,
    header_bytes: usize,
}

/// Control messages are aligned to eight bytes by `cmsg(3)`.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

impl PacketSocket {
    /// Opens a socket on the interface `index` of the calling thread's namespace. Needs
    /// `CAP_NET_RAW` there.
    pub fn open(index: u32, options: &PacketOptions) -> Result<Self, PacketError> {
        let refused = |operation| {
            move |errno| PacketError {
                operation,
                index,
                errno,
            }
        };
        // Protocol 0 receives nothing until the bind, so no frame of another interface gets in.
        let fd = raw_socket().map_err(refused("open"))?;
        let header_bytes = if options.vnet_header {
            enable_header(&fd).map_err(refused("PACKET_VNET_HDR"))?
        } else {
            0
        };
        let set = |option, name, value| {
            set_int(&fd, libc::SOL_PACKET, option, value).map_err(refused(name))
        };
        set(PACKET_AUXDATA, "PACKET_AUXDATA", 1)?;
        set(
            PACKET_IGNORE_OUTGOING,
            "PACKET_IGNORE_OUTGOING",
            options.ignore_outgoing.into(),
        )?;
        set(
            PACKET_QDISC_BYPASS,
            "PACKET_QDISC_BYPASS",
            options.qdisc_bypass.into(),
        )?;
        if let Some(bytes) = options.receive_bytes {
            sockopt::set_socket_recv_buffer_size_force(&fd, bytes)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(&fd, bytes))
                .map_err(refused("SO_RCVBUF"))?;
        }
        bind(&fd, index).map_err(refused("bind"))?;
        if let Some(fanout) = options.fanout {
            set_fanout(&fd, fanout, options.ignore_outgoing).map_err(refused("PACKET_FANOUT"))?;
        }
        Ok(Self {
            fd,
            index,
            header_bytes,
        })
    }

    /// Has the interface receive more. One that was joined twice is to be left twice.
    ///
    /// # Errors
    /// The kernel's: `ENOBUFS` or `ENOMEM` where there is no memory, `EINVAL` for an interface without Ethernet addresses.
    pub fn join(&self, what: Membership) -> Result<(), Errno> {
        let request = what.request(self.index);
        set_bytes(&self.fd, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Takes a [`PacketSocket::join`] back.
    ///
    /// # Errors
    /// The kernel's: `EADDRNOTAVAIL` if the socket has not joined.
    pub fn leave(&self, what: Membership) -> Result<(), Errno> {
        let request = what.request(self.index);
        set_bytes(&self.fd, libc::SOL_PACKET, PACKET_DROP_MEMBERSHIP, &request)
    }

    /// Index of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes of virtio-net header before each frame: 12, or 10 before Linux 6.6, or 0 if none was
    /// asked for.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Reads one frame. `EAGAIN` if none waits.
    pub fn read_frame(&self, space: &mut [IoSliceMut<'_>]) -> Result<Received, Errno> {
        // SAFETY: IoSliceMut is an exclusive slice in iovec's layout (its documented guarantee).
        unsafe { receive(self.fd.as_fd(), space.as_mut_ptr().cast(), space.len()) }
    }

    /// Sends one frame, whole or not at all. Returns the bytes sent.
    ///
    /// # Errors
    /// `EAGAIN` or `ENOBUFS` if the device's queue is full, `EMSGSIZE` above its MTU, `EINVAL` for a
    /// header that contradicts the frame, `ENETDOWN` while the interface is down.
    pub fn write_frame(&self, frame: &[IoSlice<'_>]) -> Result<usize, Errno> {
        // SAFETY: IoSlice is a shared slice in iovec's layout (its documented guarantee).
        unsafe { send(self.fd.as_fd(), frame.as_ptr().cast(), frame.len()) }
    }

    /// As [`PacketSocket::read_frame`], into memory that other processes may share. `EFAULT` if a
    /// range is not mapped; the frame is lost then.
    ///
    /// # Safety
    /// For each entry, nothing in this process may hold a reference to memory in the range, and
    /// writing any bytes to it must break no invariant of its owner. A range need not be mapped.
    pub unsafe fn receive_raw(&self, ranges: &[iovec]) -> Result<Received, Errno> {
        // SAFETY: the list is a live slice, which recvmsg does not write; the caller vouches for
        // what it points to.
        unsafe { receive(self.fd.as_fd(), ranges.as_ptr(), ranges.len()) }
    }

    /// As [`PacketSocket::write_frame`], from memory that other processes may share. `EFAULT` if a
    /// range is not mapped.
    ///
    /// # Safety
    /// For each entry, the bytes in the range may be disclosed to the network. A range need not
    /// be mapped and may change meanwhile.
    pub unsafe fn send_raw(&self, ranges: &[iovec]) -> Result<usize, Errno> {
        // SAFETY: the list is a live slice; the caller vouches for what it points to.
        unsafe { send(self.fd.as_fd(), ranges.as_ptr(), ranges.len()) }
    }

    /// What the kernel counted since the last call.
    pub fn take_statistics(&self) -> Result<PacketStatistics, Errno> {
        let mut words = [[0; 4]; 2];
        let space = words.as_flattened_mut();
        let len = get_bytes(&self.fd, libc::SOL_PACKET, PACKET_STATISTICS, space)?;
        if len < 8 {
            return Err(Errno::INVAL);
        }
        let [frames, drops] = words.map(u32::from_ne_bytes);
        Ok(PacketStatistics { frames, drops })
    }

    /// Takes the socket's pending error (`SO_ERROR`), such as `ENETDOWN`.
    pub fn take_error(&self) -> Result<Option<Errno>, Errno> {
        Ok(sockopt::socket_error(&self.fd)?.err())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn raw_socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: socket(2) just returned this descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn enable_header(fd: &OwnedFd) -> Result<usize, Errno> {
    let wide = crate::tap::VNET_HEADER_BYTES;
    match set_int(fd, libc::SOL_PACKET, PACKET_VNET_HDR_SZ, wide as i32) {
        Ok(()) => Ok(wide),
        Err(Errno::NOPROTOOPT) => {
            set_int(fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
            Ok(10)
        }
        Err(errno) => Err(errno),
    }
}

fn bind(fd: &OwnedFd, index: u32) -> Result<(), Errno> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ETH_P_ALL.to_be(),
        sll_ifindex: i32::try_from(index).map_err(|_| Errno::NODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: bind only reads, and only the structure whose size it is told.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn set_fanout(fd: &OwnedFd, fanout: Fanout, ignore_outgoing: bool) -> Result<(), Errno> {
    let mut mode = match fanout.mode {
        FanoutMode::Flow => PACKET_FANOUT_HASH,
        FanoutMode::DeviceQueue => PACKET_FANOUT_QM,
    };
    if fanout.rollover {
        mode |= PACKET_FANOUT_FLAG_ROLLOVER;
    }
    // The group has a hook of its own, which knows nothing of the sockets' PACKET_IGNORE_OUTGOING.
    if ignore_outgoing {
        mode |= PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    }
    let value = u32::from(mode) << 16 | u32::from(fanout.group);
    set_int(fd, libc::SOL_PACKET, PACKET_FANOUT, value.cast_signed())
}

fn message(ranges: *const iovec, count: usize) -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ranges.cast_mut(),
        msg_iovlen: count,
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

/// # Safety
/// `ranges` points to `count` entries whose memory the kernel may write.
unsafe fn receive(
    fd: BorrowedFd<'_>,
    ranges: *const iovec,
    count: usize,
) -> Result<Received, Errno> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut message = message(ranges, count);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: the control buffer is live and as long as stated; the caller vouches for the ranges.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let bytes = usize::try_from(result).map_err(|_| last_errno())?;
    let mut received = Received {
        bytes,
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        ..Received::default()
    };
    let used = message.msg_controllen.min(CONTROL_BYTES);
    parse_control(control.0.get(..used).unwrap_or_default(), &mut received);
    Ok(received)
}

/// # Safety
/// `ranges` points to `count` entries whose memory the kernel may read.
unsafe fn send(fd: BorrowedFd<'_>, ranges: *const iovec, count: usize) -> Result<usize, Errno> {
    let message = message(ranges, count);
    // SAFETY: the message has no name and no control part; the caller vouches for the ranges.
    let result = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(result).map_err(|_| last_errno())
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// Looks for `struct tpacket_auxdata`: status, len, snaplen (32 bits each), mac, net, tci, tpid.
fn parse_control(control: &[u8], received: &mut Received) -> Option<()> {
    const DATA: usize = 16;
    let mut rest = control;
    loop {
        let len = usize::try_from(u64::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let (level, kind) = (word32(rest, 8)?, word32(rest, 12)?);
        let data = rest.get(DATA..len)?;
        if level.cast_signed() == libc::SOL_PACKET && kind.cast_signed() == PACKET_AUXDATA {
            let status = word32(data, 0)?;
            received.checksum_valid = status & TP_STATUS_CSUM_VALID != 0;
            received.checksum_missing = status & TP_STATUS_CSUMNOTREADY != 0;
            if status & TP_STATUS_VLAN_VALID != 0 {
                let given = status & TP_STATUS_VLAN_TPID_VALID != 0;
                let tpid = if given {
                    word16(data, 18)?
                } else {
                    ETH_P_8021Q
                };
                received.vlan = Some(VlanTag {
                    tpid,
                    tci: word16(data, 16)?,
                });
            }
        }
        rest = rest.get(len.checked_next_multiple_of(8)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(status: u32) -> Vec<u8> {
        let mut bytes = 36u64.to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_PACKET.to_ne_bytes());
        bytes.extend(PACKET_AUXDATA.to_ne_bytes());
        bytes.extend([status, 60, 60].map(u32::to_ne_bytes).as_flattened());
        bytes.extend(
            [0u16, 14, 0x2064, 0x88a8]
                .map(u16::to_ne_bytes)
                .as_flattened(),
        );
        bytes
    }

    /// The tag is taken only if the kernel says that it is one, with its protocol if given.
    #[test]
    fn parses_auxdata() {
        let parsed = |status| {
            let mut received = Received::default();
            parse_control(&control(status), &mut received);
            received
        };
        assert_eq!(parsed(TP_STATUS_CSUM_VALID).vlan, None);
        assert!(parsed(TP_STATUS_CSUM_VALID).checksum_valid);
        let both = TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(
            parsed(both).vlan,
            Some(VlanTag {
                tpid: 0x88a8,
                tci: 0x2064
            })
        );
        let tag = VlanTag {
            tpid: ETH_P_8021Q,
            tci: 0x2064,
        };
        assert_eq!(parsed(TP_STATUS_VLAN_VALID).vlan, Some(tag));
    }

    /// No damage to a control message makes the parser panic or loop for ever.
    #[test]
    fn survives_damage() {
        let good = control(TP_STATUS_VLAN_VALID);
        for len in 0..good.len() {
            parse_control(&good[..len], &mut Received::default());
        }
        for at in 0..good.len() {
            for value in [0, 1, 15, 16, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                parse_control(&bad, &mut Received::default());
            }
        }
    }
}
