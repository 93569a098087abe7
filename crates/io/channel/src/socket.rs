//! [`Socket`]: one end's real descriptor, and the arithmetic of stream positions (J2 of the protocol).
//!
//! # Model
//! The kernel counts what the channel counts: `written = tcpi_bytes_acked + SIOCOUTQ - (1 if we connected)`, since the
//! SYN of the connecting side is acknowledged too, and `read = tcpi_bytes_received - SIOCINQ`. Both hold while the
//! connection is ESTABLISHED; in the other states a FIN is counted. A segment may land between the calls, so they
//! are repeated until the numbers before and after agree.

use std::os::fd::RawFd;

use crate::bufs::{self, Bufs};
use crate::sys;

/// One end's real socket. No method blocks, and none is interposed code.
pub trait Socket {
    /// Sends, with `MSG_DONTWAIT` added to `flags`. Errors are errno values.
    fn send(&self, data: &Bufs, flags: i32) -> Result<usize, i32>;
    /// Receives at most `limit` bytes, with `MSG_DONTWAIT` added to `flags`; 0 is the end of the stream (or `limit` 0).
    fn recv(&self, into: &Bufs, limit: usize, flags: i32) -> Result<usize, i32>;
    /// Bytes given to the kernel since the start of the stream; `None` where the kernel cannot tell any more.
    fn written(&self) -> Option<u64>;
    /// Bytes taken from the kernel since the start of the stream; `None` where the kernel cannot tell any more.
    fn received(&self) -> Option<u64>;
    /// Bytes that have reached this end's kernel since the start of the stream, in whatever state the connection is; an end of
    /// stream may count as one more. `None` where no byte that was sent can be lost.
    fn arrived(&self) -> Option<u64> {
        None
    }
    /// Bytes that lie unread in the kernel, where that is exact and the kernel keeps no count of those taken; `None` elsewhere.
    fn unread(&self) -> Option<u64> {
        None
    }
    /// Whether what the last receive took has to end the program's call: control data came with it.
    fn ends_call(&self) -> bool {
        false
    }
    /// Whether [`Socket::recv`] takes control data, which another call would lose.
    fn carries_more(&self) -> bool {
        false
    }
    /// Raises the send buffer so that a whole ring fits (`SO_SNDBUF` 212,992).
    fn raise_send_buffer(&self);
}

/// A descriptor of this process as a [`Socket`], by system calls made directly.
#[derive(Clone, Copy, Debug)]
pub struct Fd {
    /// The descriptor.
    pub fd: RawFd,
    /// Whether this end connected (its SYN is counted among the acknowledged bytes).
    pub connected: bool,
}

/// The numbers of the kernel from which positions follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// `tcpi_bytes_acked`.
    pub acked: u64,
    /// `tcpi_bytes_received`.
    pub received: u64,
    /// `SIOCOUTQ`: bytes not yet acknowledged.
    pub out_queue: u32,
    /// `SIOCINQ`: bytes not yet read.
    pub in_queue: u32,
}

impl Counts {
    /// Bytes that programs have given to the kernel since the start of the stream.
    pub const fn written(&self, connected: bool) -> Option<u64> {
        (self.acked + self.out_queue as u64).checked_sub(connected as u64)
    }

    /// Bytes that programs have taken from the kernel since the start of the stream.
    pub const fn read(&self) -> Option<u64> {
        self.received.checked_sub(self.in_queue as u64)
    }
}

/// `TCP_ESTABLISHED`, the first number of `tcp_info`.
const ESTABLISHED: u8 = 1;
/// `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info` (linux/tcp.h, since 4.1).
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;
const INFO_BYTES: usize = 136;
/// The size that makes an unread loopback connection absorb 309 KB.
const SEND_BUFFER: i32 = 212_992;
/// Vectors per real call.
const VECTORS: usize = 32;

/// A number of `struct tcp_info`.
fn word(info: &[u8; INFO_BYTES], at: usize) -> Option<u64> {
    let bytes = info.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_ne_bytes(bytes))
}

impl Fd {
    fn info(&self) -> Option<[u8; INFO_BYTES]> {
        sys::option(self.fd, libc::IPPROTO_TCP, libc::TCP_INFO)
    }

    fn queue(&self, request: libc::c_ulong) -> Option<u32> {
        let mut n: libc::c_int = 0;
        let args = [self.fd as usize, request as usize, &raw mut n as usize];
        // SAFETY: the number lives for the call.
        unsafe { sys::checked(libc::SYS_ioctl, args) }.ok()?;
        u32::try_from(n).ok()
    }

    /// The kernel's numbers at one instant; `None` unless the connection is ESTABLISHED.
    pub fn counts(&self) -> Option<Counts> {
        for _ in 0..64 {
            let before = self.info()?;
            let out_queue = self.queue(libc::TIOCOUTQ)?;
            let in_queue = self.queue(libc::FIONREAD)?;
            let after = self.info()?;
            if after.first() != Some(&ESTABLISHED) {
                return None;
            }
            let counts = Counts {
                acked: word(&after, BYTES_ACKED_AT)?,
                received: word(&after, BYTES_RECEIVED_AT)?,
                out_queue,
                in_queue,
            };
            if word(&before, BYTES_ACKED_AT)? == counts.acked
                && word(&before, BYTES_RECEIVED_AT)? == counts.received
            {
                return Some(counts);
            }
        }
        None
    }

    /// Sends or receives: by the first call where it is one piece of memory, else by the second, which takes a message.
    fn transfer(
        &self,
        [single, message]: [libc::c_long; 2],
        bufs: &Bufs,
        limit: usize,
        flags: i32,
    ) -> Result<usize, i32> {
        let (at, len) = bufs.piece();
        let (fd, flags) = (self.fd as usize, (flags | libc::MSG_DONTWAIT) as usize);
        if len >= limit || len == bufs.len() {
            let args = [fd, at as usize, len.min(limit), flags];
            // SAFETY: the kernel checks the program's buffer.
            return unsafe { sys::checked(single, args) };
        }
        let mut vectors = [bufs::NOTHING; VECTORS];
        // SAFETY: all zeros is a valid message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iovlen = bufs.fill(limit, &mut vectors);
        header.msg_iov = vectors.as_mut_ptr();
        // SAFETY: the header and the vectors live for the call; the kernel checks the program's buffers.
        unsafe { sys::checked(message, [fd, &raw mut header as usize, flags]) }
    }
}

impl Socket for Fd {
    fn send(&self, data: &Bufs, flags: i32) -> Result<usize, i32> {
        let calls = [libc::SYS_sendto, libc::SYS_sendmsg];
        self.transfer(calls, data, usize::MAX, flags)
    }

    fn recv(&self, into: &Bufs, limit: usize, flags: i32) -> Result<usize, i32> {
        let calls = [libc::SYS_recvfrom, libc::SYS_recvmsg];
        self.transfer(calls, into, limit, flags)
    }

    fn written(&self) -> Option<u64> {
        self.counts()?.written(self.connected)
    }

    fn received(&self) -> Option<u64> {
        self.counts()?.read()
    }

    fn arrived(&self) -> Option<u64> {
        word(&self.info()?, BYTES_RECEIVED_AT)
    }

    fn unread(&self) -> Option<u64> {
        #[cfg(not(loom))]
        return crate::unix::is_unix(self.fd)
            .then(|| self.queue(libc::FIONREAD))?
            .map(u64::from);
        #[cfg(loom)]
        None
    }

    fn raise_send_buffer(&self) {
        let bytes = SEND_BUFFER;
        let (at, length) = (&raw const bytes as usize, size_of::<i32>());
        let which = [self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF];
        let [fd, level, name] = which.map(|word| word as usize);
        let args = [fd, level, name, at, length];
        // SAFETY: the number lives for the call.
        let _ = unsafe { sys::checked(libc::SYS_setsockopt, args) };
    }
}
