//! Headers of the segments into which software cuts a large TCP segment or UDP datagram.
//!
//! # Purpose
//!
//! A guest or the kernel gives one frame with up to 64 KiB of payload and a segment size (virtio's
//! `gso_size`). Where the receiver did not negotiate that, `io/attach` writes it as several frames
//! while it copies. This module makes their headers; it never sees the payload.
//!
//! # Life of a segment
//!
//! ```text
//!   Plan::new(headers, layers, kind, gso_size)            checked once a frame
//!   for k in 0..plan.count():
//!     let part = plan.header(k, out)?;                    headers of segment k, checksum field 0
//!     let mut sum = part.seed;                            pseudo header + transport header
//!     sum.add(payload[part.from..part.from + part.len])   as the caller copies it
//!     part.seal(out, sum);                                the checksum
//! ```
//!
//! # Model
//!
//! As Linux does it (`tcp_gso_segment`, `__udp_gso_segment`, `inet_gso_segment`): the IPv4
//! identification goes up by one a segment; total length, payload length, UDP length and checksums
//! are computed; the TCP sequence number goes up by the payload before; FIN and PSH stay on the
//! last segment only, CWR on the first only (RFC 3168, section 6.1.2). All else is repeated.
//! Bytes of the frame after the packet's end are not sent.
//!
//! # Limits
//!
//! `gso_size` from [`GSO_SIZE_MIN`]; headers of at most [`HEADERS_MAX`] bytes. A packet that fits
//! in one segment gives one, so a small frame with a claim of segmentation needs no other path.

use core::fmt;

use crate::checksum::{self, Sum};
use crate::ether::proto;
use crate::parse::{Fault, Fragment, Kind, Layers};

/// Smallest segment payload that is accepted: smaller ones serve only to multiply frames (64 KiB
/// are 1,024 of these).
pub const GSO_SIZE_MIN: u16 = 64;
/// Longest headers, link to transport, that are rewritten.
pub const HEADERS_MAX: usize = 256;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The kinds of segmentation; names as in the virtio network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Gso {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either, each segment a datagram (not IP fragmentation).
    UdpL4,
}

/// Why a frame cannot be segmented as claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentError {
    /// `gso_size` is below [`GSO_SIZE_MIN`].
    SizeTooSmall(u16),
    /// The frame has a fault, its headers are not all there, it is a fragment, or a routing header
    /// hides its final destination.
    NotWhole,
    /// The packet is of another kind than the claim.
    Mismatch(Gso),
    /// The headers are longer than [`HEADERS_MAX`] or than the bytes given.
    Headers(usize),
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SizeTooSmall(n) => write!(f, "segment size {n} is below {GSO_SIZE_MIN}"),
            Self::NotWhole => f.write_str("packet is not whole or has no fixed transport header"),
            Self::Mismatch(kind) => write!(f, "packet is not of the claimed kind {kind:?}"),
            Self::Headers(n) => write!(f, "headers of {n} bytes are too long or not all there"),
        }
    }
}

impl core::error::Error for SegmentError {}

/// A frame that was found fit for segmentation. Borrows its headers (private bytes).
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    headers: &'a [u8],
    /// Transport pseudo header without the length.
    pseudo: Sum,
    payload: u32,
    count: u32,
    gso_size: u16,
    l3_at: usize,
    l4_at: usize,
    v4: bool,
    tcp: bool,
}

/// What [`Plan::header`] made, and what the caller has to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of headers written.
    pub headers: usize,
    /// Offset of this segment's payload in the whole payload.
    pub from: u32,
    /// Bytes of this segment's payload.
    pub len: u16,
    /// Sum of the pseudo header and the transport header with its checksum field 0. The transport
    /// header's length is even, so the payload can be added as it is.
    pub seed: Sum,
    /// Offset of the transport checksum field in the segment.
    pub check_at: usize,
}

impl Part {
    /// Writes the checksum of `sum` (the seed and the payload) into the segment's headers. Returns
    /// `false`, and writes nothing, if `out` is shorter than the headers.
    #[inline]
    pub fn seal(&self, out: &mut [u8], sum: Sum) -> bool {
        put(out, self.check_at, sum.finish_udp().to_be_bytes()).is_some()
    }
}

/// Overwrites `N` bytes at `at`.
#[inline(always)]
fn put<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *out.get_mut(at..)?.first_chunk_mut()? = value;
    Some(())
}

/// Reads `N` bytes at `at`.
#[inline(always)]
fn get<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

impl<'a> Plan<'a> {
    /// Checks a frame whose first bytes are `bytes`, parsed as `layers`, for segmentation.
    pub fn new(
        bytes: &'a [u8],
        layers: &Layers,
        kind: Gso,
        gso_size: u16,
    ) -> Result<Self, SegmentError> {
        if gso_size < GSO_SIZE_MIN {
            return Err(SegmentError::SizeTooSmall(gso_size));
        }
        let sound = layers.fault == Fault::None && layers.need == 0;
        if !sound || layers.l4 == 0 || layers.fragment != Fragment::No || layers.routed {
            return Err(SegmentError::NotWhole);
        }
        let v4 = layers.kind == Kind::Ipv4;
        let tcp = layers.proto == proto::TCP;
        let fits = match kind {
            Gso::Tcp4 => v4 && tcp,
            Gso::Tcp6 => layers.kind == Kind::Ipv6 && tcp,
            Gso::UdpL4 => layers.proto == proto::UDP,
        };
        if !fits {
            return Err(SegmentError::Mismatch(kind));
        }
        let size = layers.headers();
        let too_long = SegmentError::Headers(size);
        if size > HEADERS_MAX {
            return Err(too_long);
        }
        let headers = bytes.get(..size).ok_or(too_long)?;
        let l3_at = layers.l3_at();
        let pseudo = pseudo(headers, l3_at, v4, layers.proto).ok_or(too_long)?;
        let payload = layers
            .end
            .checked_sub(size as u32)
            .ok_or(SegmentError::NotWhole)?;
        Ok(Self {
            headers,
            pseudo,
            payload,
            count: payload.div_ceil(u32::from(gso_size)).max(1),
            gso_size,
            l3_at,
            l4_at: layers.l4_at(),
            v4,
            tcp,
        })
    }

    /// Number of segments, at least 1.
    #[inline]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of payload in all segments together.
    #[inline]
    pub const fn payload(&self) -> u32 {
        self.payload
    }

    /// Bytes of headers of each segment.
    #[inline]
    pub const fn headers(&self) -> usize {
        self.headers.len()
    }

    /// Bytes of the longest segment.
    #[inline]
    pub fn frame_max(&self) -> usize {
        let most = u32::from(self.gso_size).min(self.payload);
        self.headers.len().saturating_add(most as usize)
    }

    /// Writes the headers of segment `k` to the start of `out`. `None` if `k` is not below
    /// [`count`](Self::count) or `out` is shorter than [`headers`](Self::headers).
    #[inline]
    pub fn header(&self, k: u32, out: &mut [u8]) -> Option<Part> {
        if k >= self.count {
            return None;
        }
        let from = k.wrapping_mul(u32::from(self.gso_size));
        let left = self.payload.wrapping_sub(from);
        let len = left.min(u32::from(self.gso_size)) as u16;
        let size = self.headers.len();
        let out = out.get_mut(..size)?;
        out.copy_from_slice(self.headers);

        // No sum below overflows: the whole packet's length fits in 16 bits, this one is shorter.
        let transport = (size.wrapping_sub(self.l4_at) as u16).wrapping_add(len);
        let network = (self.l4_at.wrapping_sub(self.l3_at) as u16).wrapping_add(transport);
        if self.v4 {
            self.network_v4(out, k, network)?;
        } else {
            let payload = network.wrapping_sub(40);
            put(out, self.l3_at.wrapping_add(4), payload.to_be_bytes())?;
        }
        let check_at = if self.tcp {
            self.tcp(out, k, from)?;
            self.l4_at.wrapping_add(16)
        } else {
            put(out, self.l4_at.wrapping_add(4), transport.to_be_bytes())?;
            self.l4_at.wrapping_add(6)
        };
        put(out, check_at, [0, 0])?;

        let mut seed = self.pseudo;
        seed.add_u16_be(transport);
        seed.add_bytes(out.get(self.l4_at..)?);
        Some(Part {
            headers: size,
            from,
            len,
            seed,
            check_at,
        })
    }

    #[inline(always)]
    fn network_v4(&self, out: &mut [u8], k: u32, total: u16) -> Option<()> {
        let ip = out.get_mut(self.l3_at..self.l4_at)?;
        let id = u16::from_be_bytes(*get(ip, 4)?).wrapping_add(k as u16);
        put(ip, 2, total.to_be_bytes())?;
        put(ip, 4, id.to_be_bytes())?;
        put(ip, 10, [0, 0])?;
        let check = checksum::checksum(ip);
        put(ip, 10, check.to_be_bytes())
    }

    #[inline(always)]
    fn tcp(&self, out: &mut [u8], k: u32, from: u32) -> Option<()> {
        let tcp = out.get_mut(self.l4_at..)?;
        let seq = u32::from_be_bytes(*get(tcp, 4)?).wrapping_add(from);
        put(tcp, 4, seq.to_be_bytes())?;
        let [mut flags] = *get(tcp, 13)?;
        if k.wrapping_add(1) != self.count {
            flags &= !(FIN | PSH);
        }
        if k != 0 {
            flags &= !CWR;
        }
        put(tcp, 13, [flags])
    }
}

/// The pseudo header of the packet at `l3_at`, without its length.
fn pseudo(headers: &[u8], l3_at: usize, v4: bool, proto: u8) -> Option<Sum> {
    let ip = headers.get(l3_at..)?;
    Some(if v4 {
        checksum::pseudo_v4(get(ip, 12)?, get(ip, 16)?, proto, 0)
    } else {
        checksum::pseudo_v6(get(ip, 8)?, get(ip, 24)?, proto, 0)
    })
}

#[cfg(test)]
mod tests;
