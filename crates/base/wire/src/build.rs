//! Writing headers, for tests, the generator and proxies.
//!
//! Each function writes one header at the start of `out`, complete with lengths and checksums, and
//! returns its length. The `*_frame` functions write a whole frame and return its length. A header
//! that covers a payload by its checksum is given the payload, and does not copy it.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::checksum::{self, Sum};
use crate::ether::{self, Tci, proto};
use crate::mac::MacAddr;

/// Why a header was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuildError {
    /// `out` is shorter than this many bytes.
    Room(usize),
    /// A length of this many bytes does not fit its field.
    TooLong(usize),
    /// TCP options whose length is above 40 or no multiple of 4.
    Options(usize),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room(n) => write!(f, "buffer has no room for {n} bytes"),
            Self::TooLong(n) => write!(f, "{n} bytes do not fit the length field"),
            Self::Options(n) => write!(f, "{n} bytes are no length for TCP options"),
        }
    }
}

impl core::error::Error for BuildError {}

/// The first `N` bytes of `out`.
fn head<const N: usize>(out: &mut [u8]) -> Result<&mut [u8; N], BuildError> {
    out.first_chunk_mut().ok_or(BuildError::Room(N))
}

/// Writes the fields one after the other; all of them together are as long as `out`.
fn lay(out: &mut [u8], fields: &[&[u8]]) {
    let bytes = fields.iter().flat_map(|field| field.iter());
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from;
    }
}

fn length(n: usize) -> Result<u16, BuildError> {
    u16::try_from(n).map_err(|_| BuildError::TooLong(n))
}

/// An Ethernet header: 14 bytes, or 18 with a tag (TPID [`ether::VLAN`]).
pub fn ethernet(
    out: &mut [u8],
    dst: MacAddr,
    src: MacAddr,
    tag: Option<Tci>,
    ethertype: u16,
) -> Result<usize, BuildError> {
    let kind = ethertype.to_be_bytes();
    match tag {
        None => {
            lay(head::<14>(out)?, &[&dst.0, &src.0, &kind]);
            Ok(14)
        }
        Some(tci) => {
            let (tpid, tci) = (ether::VLAN.to_be_bytes(), tci.0.to_be_bytes());
            lay(head::<18>(out)?, &[&dst.0, &src.0, &tpid, &tci, &kind]);
            Ok(18)
        }
    }
}

/// An ARP packet for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// 1 request, 2 reply.
    pub operation: u16,
    /// Who says it.
    pub sender_mac: MacAddr,
    /// Its address.
    pub sender_ip: Ipv4Addr,
    /// Who is asked for; zero in a request.
    pub target_mac: MacAddr,
    /// The address asked for.
    pub target_ip: Ipv4Addr,
}

/// Writes an ARP packet: 28 bytes.
pub fn arp(out: &mut [u8], packet: &Arp) -> Result<usize, BuildError> {
    let fields: [&[u8]; 6] = [
        &[0, 1, 0x08, 0x00, 6, 4],
        &packet.operation.to_be_bytes(),
        &packet.sender_mac.0,
        &packet.sender_ip.octets(),
        &packet.target_mac.0,
        &packet.target_ip.octets(),
    ];
    lay(head::<28>(out)?, &fields);
    Ok(28)
}

/// The fields of an IPv4 header that a caller chooses. No options, "do not fragment" set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub proto: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
}

/// Writes an IPv4 header for `payload` bytes: 20 bytes.
pub fn ipv4(out: &mut [u8], ip: &Ipv4, payload: usize) -> Result<usize, BuildError> {
    let out = head::<20>(out)?;
    let total = length(payload.saturating_add(20))?;
    let fields: [&[u8]; 7] = [
        &[0x45, 0],
        &total.to_be_bytes(),
        &ip.id.to_be_bytes(),
        &[0x40, 0, ip.ttl, ip.proto],
        &[0, 0],
        &ip.src.octets(),
        &ip.dst.octets(),
    ];
    lay(out, &fields);
    let check = checksum::checksum(out);
    [out[10], out[11]] = check.to_be_bytes();
    Ok(20)
}

/// The fields of an IPv6 header that a caller chooses; traffic class and flow label are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// Next header.
    pub next: u8,
    /// Hop limit.
    pub hops: u8,
}

/// Writes an IPv6 header for `payload` bytes: 40 bytes.
pub fn ipv6(out: &mut [u8], ip: &Ipv6, payload: usize) -> Result<usize, BuildError> {
    let out = head::<40>(out)?;
    let payload = length(payload)?;
    let fields: [&[u8]; 5] = [
        &[0x60, 0, 0, 0],
        &payload.to_be_bytes(),
        &[ip.next, ip.hops],
        &ip.src.octets(),
        &ip.dst.octets(),
    ];
    lay(out, &fields);
    Ok(40)
}

/// The network addresses that a transport checksum covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// IPv4 source and destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6 source and destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Ends {
    /// The pseudo header for `len` bytes of transport header and payload.
    pub fn pseudo(&self, proto: u8, len: u16) -> Sum {
        match self {
            Self::V4(src, dst) => checksum::pseudo_v4(&src.octets(), &dst.octets(), proto, len),
            Self::V6(src, dst) => {
                checksum::pseudo_v6(&src.octets(), &dst.octets(), proto, u32::from(len))
            }
        }
    }

    /// The length of the network header.
    pub const fn header(&self) -> usize {
        match self {
            Self::V4(..) => 20,
            Self::V6(..) => 40,
        }
    }

    /// Writes the network header: hop limit 64, identification 0.
    pub fn write(&self, out: &mut [u8], proto: u8, payload: usize) -> Result<usize, BuildError> {
        match *self {
            Self::V4(src, dst) => {
                let ip = Ipv4 {
                    src,
                    dst,
                    proto,
                    ttl: 64,
                    id: 0,
                };
                ipv4(out, &ip, payload)
            }
            Self::V6(src, dst) => {
                let ip = Ipv6 {
                    src,
                    dst,
                    next: proto,
                    hops: 64,
                };
                ipv6(out, &ip, payload)
            }
        }
    }
}

/// Writes a UDP header with its checksum over `payload`: 8 bytes.
pub fn udp(
    out: &mut [u8],
    ends: &Ends,
    src: u16,
    dst: u16,
    payload: &[u8],
) -> Result<usize, BuildError> {
    let out = head::<8>(out)?;
    let len = length(payload.len().saturating_add(8))?;
    let fields: [&[u8]; 4] = [
        &src.to_be_bytes(),
        &dst.to_be_bytes(),
        &len.to_be_bytes(),
        &[0, 0],
    ];
    lay(out, &fields);
    let mut sum = ends.pseudo(proto::UDP, len);
    sum.add_bytes(out);
    sum.add_bytes(payload);
    [out[6], out[7]] = sum.finish_udp().to_be_bytes();
    Ok(8)
}

/// The fields of a TCP header that a caller chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tcp<'a> {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The flags byte, FIN lowest, CWR highest.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// Options, already padded: at most 40 bytes, a multiple of 4.
    pub options: &'a [u8],
}

/// Writes a TCP header with its checksum over `payload`: 20 bytes and the options.
pub fn tcp(
    out: &mut [u8],
    ends: &Ends,
    tcp: &Tcp<'_>,
    payload: &[u8],
) -> Result<usize, BuildError> {
    let options = tcp.options.len();
    if options > 40 || options & 3 != 0 {
        return Err(BuildError::Options(options));
    }
    let size = options.saturating_add(20);
    let out = out.get_mut(..size).ok_or(BuildError::Room(size))?;
    let len = length(payload.len().saturating_add(size))?;
    let fields: [&[u8]; 8] = [
        &tcp.src.to_be_bytes(),
        &tcp.dst.to_be_bytes(),
        &tcp.seq.to_be_bytes(),
        &tcp.ack.to_be_bytes(),
        &[(size as u8) << 2, tcp.flags],
        &tcp.window.to_be_bytes(),
        &[0, 0, 0, 0],
        tcp.options,
    ];
    lay(out, &fields);
    let mut sum = ends.pseudo(proto::TCP, len);
    sum.add_bytes(out);
    sum.add_bytes(payload);
    if let Some(field) = out.get_mut(16..).and_then(|b| b.first_chunk_mut()) {
        *field = sum.finish().to_be_bytes();
    }
    Ok(size)
}

/// An echo message (RFC 792, RFC 4443).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// An answer, not a question.
    pub reply: bool,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub seq: u16,
}

/// Writes an ICMP or, for IPv6 addresses, ICMPv6 echo header with its checksum over `payload`:
/// 8 bytes.
pub fn icmp_echo(
    out: &mut [u8],
    ends: &Ends,
    echo: &Echo,
    payload: &[u8],
) -> Result<usize, BuildError> {
    let out = head::<8>(out)?;
    let len = length(payload.len().saturating_add(8))?;
    let (kind, mut sum) = match (ends, echo.reply) {
        (Ends::V4(..), false) => (8, Sum::new()),
        (Ends::V4(..), true) => (0, Sum::new()),
        (Ends::V6(..), false) => (128, ends.pseudo(proto::ICMPV6, len)),
        (Ends::V6(..), true) => (129, ends.pseudo(proto::ICMPV6, len)),
    };
    let fields: [&[u8]; 3] = [
        &[kind, 0, 0, 0],
        &echo.id.to_be_bytes(),
        &echo.seq.to_be_bytes(),
    ];
    lay(out, &fields);
    sum.add_bytes(out);
    sum.add_bytes(payload);
    [out[2], out[3]] = sum.finish().to_be_bytes();
    Ok(8)
}

/// The link header of a whole frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// The tag, if any.
    pub tag: Option<Tci>,
}

/// Writes a whole ARP frame, not padded.
pub fn arp_frame(out: &mut [u8], link: &Link, packet: &Arp) -> Result<usize, BuildError> {
    let at = ethernet(out, link.dst, link.src, link.tag, ether::ARP)?;
    let size = arp(out.get_mut(at..).unwrap_or_default(), packet)?;
    Ok(at.saturating_add(size))
}

/// Writes the headers of a frame up to the transport header, of which `write` writes the rest.
fn ip_frame(
    out: &mut [u8],
    link: &Link,
    ends: &Ends,
    proto: u8,
    size: usize,
    payload: &[u8],
    write: impl FnOnce(&mut [u8]) -> Result<usize, BuildError>,
) -> Result<usize, BuildError> {
    let ethertype = match ends {
        Ends::V4(..) => ether::IPV4,
        Ends::V6(..) => ether::IPV6,
    };
    let l2 = ethernet(out, link.dst, link.src, link.tag, ethertype)?;
    let body = size.saturating_add(payload.len());
    let whole = l2.saturating_add(ends.header()).saturating_add(body);
    let out = out.get_mut(l2..whole).ok_or(BuildError::Room(whole))?;
    let l3 = ends.write(out, proto, body)?;
    let out = out.get_mut(l3..).unwrap_or_default();
    let l4 = write(out)?;
    out.get_mut(l4..)
        .filter(|to| to.len() == payload.len())
        .ok_or(BuildError::Room(whole))?
        .copy_from_slice(payload);
    Ok(whole)
}

/// Writes a whole UDP frame, not padded.
pub fn udp_frame(
    out: &mut [u8],
    link: &Link,
    ends: &Ends,
    ports: (u16, u16),
    payload: &[u8],
) -> Result<usize, BuildError> {
    ip_frame(out, link, ends, proto::UDP, 8, payload, |out| {
        udp(out, ends, ports.0, ports.1, payload)
    })
}

/// Writes a whole TCP frame, not padded.
pub fn tcp_frame(
    out: &mut [u8],
    link: &Link,
    ends: &Ends,
    header: &Tcp<'_>,
    payload: &[u8],
) -> Result<usize, BuildError> {
    let size = header.options.len().saturating_add(20);
    ip_frame(out, link, ends, proto::TCP, size, payload, |out| {
        tcp(out, ends, header, payload)
    })
}

/// Writes a whole ICMP or ICMPv6 echo frame, not padded.
pub fn echo_frame(
    out: &mut [u8],
    link: &Link,
    ends: &Ends,
    echo: &Echo,
    payload: &[u8],
) -> Result<usize, BuildError> {
    let proto = match ends {
        Ends::V4(..) => proto::ICMP,
        Ends::V6(..) => proto::ICMPV6,
    };
    ip_frame(out, link, ends, proto, 8, payload, |out| {
        icmp_echo(out, ends, echo, payload)
    })
}
