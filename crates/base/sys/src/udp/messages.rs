//! Many messages in one call: `sendmmsg(2)` and `recvmmsg(2)`, with what goes with each.
//!
//! # Model
//! A [`Message`] is one datagram, or several of one size behind each other (`UDP_SEGMENT`). A [`Received`] is the same on the
//! way in (`UDP_GRO`). Control messages are written and read as bytes, with bounds checked.

use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use libc::{iovec, mmsghdr};
use rustix::io::Errno;

use crate::vectored::last_errno;

/// Messages that one call sends at most.
pub const SENT_MAX: usize = 16;
/// Messages that one call receives at most.
pub const RECEIVED_MAX: usize = 4;
/// Datagrams in one message at most: what kernels before 6.9 take.
pub const SEGMENTS_MAX: usize = 64;

/// Bytes of `struct cmsghdr`.
const HEADER: usize = 16;
/// Room for what is sent with a message: three control messages of one word.
const CONTROL: usize = 3 * (HEADER + 8);
/// Room for what is received with one.
const CONTROL_IN: usize = 96;

/// A socket address as the kernel reads it (`struct sockaddr_in`, `struct sockaddr_in6`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    bytes: [u8; Address::BYTES],
    len: u8,
}

impl Address {
    const BYTES: usize = 28;

    /// Encodes an address.
    pub fn new(address: SocketAddr) -> Address {
        let mut bytes = [0; Address::BYTES];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(a) => {
                bytes[4..8].copy_from_slice(&a.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(a) => {
                bytes[8..24].copy_from_slice(&a.ip().octets());
                bytes[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Address { bytes, len }
    }

    /// Whether it is IPv6.
    pub fn is_v6(&self) -> bool {
        self.len > 16
    }

    /// Decodes what the kernel has written; `None` for other families.
    pub(super) fn decode(bytes: &[u8; Address::BYTES]) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = match i32::from(family) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*bytes[4..].first_chunk::<4>()?)),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// What is sent as one message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where to.
    pub to: Address,
    /// Its bytes: which of the ranges of the call.
    pub ranges: Range<usize>,
    /// Bytes of each of its datagrams, the last with what is left; 0: it is one datagram.
    pub segment: u16,
    /// The TOS (traffic class) of its datagrams.
    pub tos: u8,
    /// Their TTL (hop limit), 1 to 255; none: the socket's.
    pub hops: Option<u8>,
}

/// Control messages with the alignment that they need.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control<const N: usize>([u8; N]);

impl<const N: usize> Control<N> {
    /// Appends a control message at `at`; where the next one begins.
    fn put(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let space = &mut self.0[at..];
        space[..8].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        space[8..12].copy_from_slice(&level.to_ne_bytes());
        space[12..16].copy_from_slice(&kind.to_ne_bytes());
        space[HEADER..HEADER + data.len()].copy_from_slice(data);
        at + (HEADER + data.len()).next_multiple_of(8)
    }
}

/// Each control message in what the kernel has written: level, type, data.
pub(super) fn controls(mut bytes: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(*bytes.first_chunk()?);
        let level = i32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
        let kind = i32::from_ne_bytes(*bytes.get(12..)?.first_chunk()?);
        let data = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(8)..).unwrap_or(&[]);
        Some((level, kind, data))
    })
}

/// Sends the first [`SENT_MAX`] messages, in order; returns how many were sent. The first that fails ends the call, and fails
/// the next one.
///
/// # Errors
/// As sendmsg(2) of the first message: `EAGAIN`, `EMSGSIZE`, `EIO` (a device that cannot segment), `EFAULT`, and what the
/// socket has been told of what was sent before (`ECONNREFUSED`, `EHOSTUNREACH`).
///
/// # Safety
/// For each range, the bytes may be disclosed to whoever receives them. A range need not be mapped and may change meanwhile.
pub unsafe fn send(fd: impl AsFd, ranges: &[iovec], messages: &[Message]) -> Result<usize, Errno> {
    // SAFETY: all zeros is a valid `mmsghdr`: null pointers and lengths of 0.
    let mut headers: [mmsghdr; SENT_MAX] = unsafe { zeroed() };
    let mut controls = [Control([0u8; CONTROL]); SENT_MAX];
    let count = messages.len().min(SENT_MAX);
    let places = headers.iter_mut().zip(&mut controls);
    for ((header, control), message) in places.zip(messages) {
        let mut used = 0;
        if message.segment != 0 {
            let bytes = message.segment.to_ne_bytes();
            used = control.put(used, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes);
        }
        let (level, tos, hops) = match message.to.is_v6() {
            false => (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL),
            true => (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let words = [(tos, Some(message.tos)), (hops, message.hops)];
        for (kind, word) in words {
            if let Some(word) = word {
                used = control.put(used, level, kind, &i32::from(word).to_ne_bytes());
            }
        }
        let list = ranges.get(message.ranges.clone()).unwrap_or(&[]);
        let h = &mut header.msg_hdr;
        h.msg_name = message.to.bytes.as_ptr().cast_mut().cast();
        h.msg_namelen = message.to.len.into();
        h.msg_iov = list.as_ptr().cast_mut();
        h.msg_iovlen = list.len() as _;
        h.msg_control = control.0.as_mut_ptr().cast();
        h.msg_controllen = used as _;
    }
    // SAFETY: names, lists and control messages live until the call returns, and the kernel only reads them; the caller
    // vouches for what the lists point to.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_fd().as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| last_errno())
}

/// What came as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub from: SocketAddr,
    /// Its bytes.
    pub len: usize,
    /// Bytes of each of its datagrams, the last with what is left; none: it is one datagram.
    pub segment: Option<u16>,
    /// The TOS (traffic class) that it came with, if it was asked for.
    pub tos: u8,
    /// The TTL (hop limit) that it came with, if it was asked for.
    pub hops: Option<u8>,
    /// It was longer than its space.
    pub is_cut: bool,
}

/// Receives messages that wait, at most [`RECEIVED_MAX`], each into the next `each` bytes of `space`. Returns how many, and
/// fills `received` with them.
///
/// # Errors
/// As recvmsg(2): `EAGAIN` where none waits, and what the socket has been told of what was sent before.
pub fn receive(
    fd: impl AsFd,
    space: &mut [u8],
    each: usize,
    received: &mut [Option<Received>; RECEIVED_MAX],
) -> Result<usize, Errno> {
    // SAFETY: all zeros is a valid `mmsghdr`: null pointers and lengths of 0.
    let mut headers: [mmsghdr; RECEIVED_MAX] = unsafe { zeroed() };
    let mut names = [[0u8; Address::BYTES]; RECEIVED_MAX];
    let mut spaces = [Control([0u8; CONTROL_IN]); RECEIVED_MAX];
    let mut lists = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; RECEIVED_MAX];
    let mut count = 0;
    for (i, part) in space.chunks_exact_mut(each).take(RECEIVED_MAX).enumerate() {
        lists[i] = iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        let h = &mut headers[i].msg_hdr;
        h.msg_name = names[i].as_mut_ptr().cast();
        h.msg_namelen = Address::BYTES as _;
        h.msg_iov = &raw mut lists[i];
        h.msg_iovlen = 1;
        h.msg_control = spaces[i].0.as_mut_ptr().cast();
        h.msg_controllen = CONTROL_IN as _;
        count += 1;
    }
    // SAFETY: every name, list, control space and part of `space` lives until the call returns, has the length that its
    // header says, and is borrowed by nobody else.
    let got = unsafe {
        libc::recvmmsg(
            fd.as_fd().as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    let got = usize::try_from(got).map_err(|_| last_errno())?;
    for (i, place) in received.iter_mut().enumerate() {
        let header = &headers[i];
        *place = None;
        if i >= got {
            continue;
        }
        let used = (header.msg_hdr.msg_controllen as usize).min(CONTROL_IN);
        *place = decode(header, &names[i], &spaces[i].0[..used]);
    }
    Ok(got)
}

/// One message; none if its sender's address is no IP address.
fn decode(header: &mmsghdr, name: &[u8; Address::BYTES], told: &[u8]) -> Option<Received> {
    let mut message = Received {
        from: Address::decode(name)?,
        len: header.msg_len as usize,
        segment: None,
        tos: 0,
        hops: None,
        is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
    };
    for control in controls(told) {
        match control {
            (libc::SOL_UDP, libc::UDP_GRO, [a, b, c, d, ..]) => {
                let bytes = i32::from_ne_bytes([*a, *b, *c, *d]);
                message.segment = u16::try_from(bytes).ok().filter(|bytes| *bytes != 0);
            }
            (libc::SOL_IP, libc::IP_TOS, [tos, ..]) => message.tos = *tos,
            (libc::SOL_IPV6, libc::IPV6_TCLASS, [a, b, c, d, ..]) => {
                message.tos = i32::from_ne_bytes([*a, *b, *c, *d]) as u8;
            }
            (libc::SOL_IP, libc::IP_TTL, [a, b, c, d, ..])
            | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT, [a, b, c, d, ..]) => {
                message.hops = u8::try_from(i32::from_ne_bytes([*a, *b, *c, *d])).ok();
            }
            _ => {}
        }
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp;

    fn range(bytes: &[u8]) -> iovec {
        iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }
    }

    /// A run of datagrams comes in one piece with its size, TOS and TTL, over IPv4 and IPv6; a single one as it is; a read with
    /// nothing to read says so.
    #[test]
    fn runs_come_as_they_were_sent() -> Result<(), Errno> {
        for ip in [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ] {
            let any = SocketAddr::new(ip, 0);
            let (sender, receiver) = (udp::open(any, false)?, udp::open(any, false)?);
            udp::set_merged(&receiver, true)?;
            udp::set_tos_told(&receiver, ip.is_ipv6())?;
            udp::set_hops_told(&receiver, ip.is_ipv6(), true)?;
            udp::set_hops(&sender, ip.is_ipv6(), 9)?;
            let local = rustix::net::getsockname(&receiver)?;
            let to = SocketAddr::try_from(local).expect("an IP socket");
            let from = SocketAddr::try_from(rustix::net::getsockname(&sender)?).expect("as well");
            let bytes: Vec<u8> = (0..250).collect();
            let ranges = [range(&bytes[..30]), range(&bytes[30..]), range(b"one")];
            let to = Address::new(to);
            let message = |ranges, segment, tos, hops| Message {
                to,
                ranges,
                segment,
                tos,
                hops,
            };
            let messages = [message(0..2, 100, 0xb8, Some(7)), message(2..3, 0, 2, None)];
            // SAFETY: the ranges are the arrays above.
            assert_eq!(unsafe { send(&sender, &ranges, &messages) }, Ok(2));
            let mut space = vec![0; 4 * 1000];
            let mut got = [None; RECEIVED_MAX];
            assert_eq!(receive(&receiver, &mut space, 1000, &mut got), Ok(2));
            let told = |len, segment, tos, hops| Received {
                from,
                len,
                segment,
                tos,
                hops: Some(hops),
                is_cut: false,
            };
            assert_eq!(got[0], Some(told(250, Some(100), 0xb8, 7)));
            assert_eq!(got[1], Some(told(3, None, 2, 9)));
            assert_eq!((&space[..250], &space[1000..1003]), (&*bytes, &b"one"[..]));
            let nothing = receive(&receiver, &mut space, 1000, &mut got);
            assert_eq!(nothing, Err(Errno::AGAIN));
        }
        Ok(())
    }
}
