//! A packet socket that only sends, from any interface of its namespace.

use std::mem::size_of_val;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::{enable_header, link_address, raw_socket};
use crate::udp;
use crate::vectored::{iovec, last_errno};

/// Bytes of `struct cmsghdr`, and of a control message of one word.
const HEADER: usize = 16;
const CONTROL: usize = HEADER + 8;
/// Those of them that are not padding.
const FILLED: usize = HEADER + 4;

/// Control messages are aligned to eight bytes by `cmsg(3)`.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// A packet socket that receives nothing.
#[derive(Debug)]
pub struct PacketSender {
    fd: OwnedFd,
    header_bytes: usize,
}

impl PacketSender {
    /// Opens one in the calling thread's namespace, with a send buffer of so many bytes. Needs `CAP_NET_RAW` there.
    ///
    /// # Errors
    /// As socket(2) and setsockopt(2).
    pub fn open(buffer_bytes: i32) -> Result<Self, Errno> {
        // Of protocol 0 and not bound: no frame comes in.
        let fd = raw_socket()?;
        let header_bytes = enable_header(&fd)?;
        udp::set_buffers(&fd, buffer_bytes)?;
        Ok(Self { fd, header_bytes })
    }

    /// Bytes of virtio-net header before each frame, as [`PacketSocket::header_bytes`](super::PacketSocket::header_bytes).
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Sends one frame from the interface `index`, with a mark.
    ///
    /// # Errors
    /// As [`PacketSocket::write_frame`](super::PacketSocket::write_frame); `ENXIO` if there is no such interface.
    ///
    /// # Safety
    /// As [`PacketSocket::send_raw`](super::PacketSocket::send_raw).
    pub unsafe fn send_raw(&self, index: u32, mark: u32, ranges: &[iovec]) -> Result<(), Errno> {
        let mut control = Control([0; CONTROL]);
        let (header, data) = control.0.split_at_mut(HEADER);
        let fields = [
            &FILLED.to_ne_bytes()[..],
            &libc::SOL_SOCKET.to_ne_bytes(),
            &libc::SO_MARK.to_ne_bytes(),
        ];
        let bytes = fields.into_iter().flatten();
        header
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        data.iter_mut()
            .zip(mark.to_ne_bytes())
            .for_each(|(to, from)| *to = from);
        let mut address = link_address(index, 0)?;
        let mut message = super::message(ranges.as_ptr(), ranges.len());
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of_val(&address) as libc::socklen_t;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        // SAFETY: name and control message live until the call returns and have the lengths that are stated; the caller vouches
        // for the ranges.
        let sent =
            unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(last_errno()) } else { Ok(()) }
    }
}
