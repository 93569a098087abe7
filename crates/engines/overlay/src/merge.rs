//! Segments of one inner TCP stream, merged into a large one (GRO), and what a peer has left to be done.
//!
//! # Model
//! A [`Train`] begins with a segment and takes those that follow it under the kernel's rules: equal addresses, ports, options,
//! acknowledgement, window, TTL, TOS and DF; sequence numbers and identifications without a gap; only ACK, and PSH on the last; equal length but for
//! the last; checksums right. The bytes stay where they are: whoever calls puts the payloads behind the first one's headers,
//! which [`Train::seal`] makes those of the large segment.
//!
//! A datagram's checksum does not vouch for the inner one, since an outer checksum may be absent: each is verified.
//!
//! A kernel that tunnels over a virtual device sends what no wire carries: transport checksums *half done* (the field holds the
//! pseudo header's sum) and segments that are not cut. [`half_done`] tells the former.

use windlass_wire::checksum::{self, Sum, pseudo_v4, pseudo_v6};
use windlass_wire::{Kind, Layers};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Ethernet, without a tag.
const L2: usize = 14;
/// IP packets are not longer.
const PACKET_MAX: usize = 65_535;

/// The field of a transport checksum in its header.
const fn check_offset(layers: &Layers) -> Option<usize> {
    if layers.is_tcp() {
        Some(16)
    } else if layers.is_udp() {
        Some(6)
    } else {
        None
    }
}

/// The sum of the pseudo header of an untagged or tagged packet with a checked header.
fn pseudo(frame: &[u8], layers: &Layers) -> Option<Sum> {
    let ip = frame.get(layers.l3_at()..)?;
    let transport = (layers.end as usize).checked_sub(layers.l4_at())?;
    Some(match layers.kind {
        Kind::Ipv4 => {
            let (src, dst) = (ip.get(12..)?.first_chunk()?, ip.get(16..)?.first_chunk()?);
            pseudo_v4(src, dst, layers.proto, u16::try_from(transport).ok()?)
        }
        Kind::Ipv6 if !layers.routed => {
            let (src, dst) = (ip.get(8..)?.first_chunk()?, ip.get(24..)?.first_chunk()?);
            pseudo_v6(src, dst, layers.proto, u32::try_from(transport).ok()?)
        }
        _ => return None,
    })
}

/// Where the transport checksum of a frame is to be summed from, and where in that part its field is, if it is half done.
pub fn half_done(frame: &[u8], layers: &Layers) -> Option<(u16, u16)> {
    let offset = check_offset(layers)?;
    let at = layers.l4_at().checked_add(offset)?;
    let field = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
    let is_half = field != 0 && field == pseudo(frame, layers)?.partial();
    is_half.then_some((u16::try_from(layers.l4_at()).ok()?, offset as u16))
}

/// A TCP segment that may be a part of a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    is_v4: bool,
    l4: usize,
    headers: usize,
    payload: usize,
    seq: u32,
    id: u16,
    pushes: bool,
}

impl Part {
    /// `None` if the frame is anything else, or not right.
    fn of(frame: &[u8], layers: &Layers, is_half_done: bool) -> Option<Part> {
        let is_v4 = match (layers.kind, layers.l3) {
            (Kind::Ipv4, 20) => true,
            (Kind::Ipv6, 40) => false,
            _ => return None,
        };
        let is_plain = layers.is_tcp() && usize::from(layers.l2) == L2;
        if !is_plain || layers.need != 0 || layers.end as usize != frame.len() {
            return None;
        }
        let (l4, headers) = (layers.l4_at(), layers.headers());
        let payload = frame.len().checked_sub(headers).filter(|n| *n > 0)?;
        let tcp = frame.get(l4..)?;
        let flags = *tcp.get(13)?;
        if flags & !PSH != ACK {
            return None;
        }
        let mut id = 0;
        if is_v4 {
            let ip = frame.get(L2..l4)?;
            if checksum::checksum(ip) != 0 {
                return None;
            }
            id = u16::from_be_bytes(*ip.get(4..)?.first_chunk()?);
        }
        if !is_half_done {
            let mut sum = pseudo(frame, layers)?;
            sum.add_bytes(tcp);
            if sum.finish() != 0 {
                return None;
            }
        }
        Some(Part {
            is_v4,
            l4,
            headers,
            payload,
            seq: u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?),
            id,
            pushes: flags & PSH != 0,
        })
    }
}

/// Segments that make a large one so far.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// The first one's frame.
    first: &'a [u8],
    part: Part,
    last: Part,
    payload: usize,
    count: usize,
}

/// A large segment that was made of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Its packet is IPv4.
    pub is_v4: bool,
    /// Bytes of its frame.
    pub len: u32,
    /// Payload bytes of each segment but the last.
    pub size: u16,
    /// Where the sum of its checksum starts, and where in that part the field is.
    pub csum: (u16, u16),
}

impl<'a> Train<'a> {
    /// Begins with an untagged frame, whose transport checksum is half done or not. `None` if nothing can follow it.
    pub fn begin(frame: &'a [u8], layers: &Layers, is_half_done: bool) -> Option<Train<'a>> {
        let part = Part::of(frame, layers, is_half_done)?;
        (!part.pushes).then_some(Train {
            first: frame,
            part,
            last: part,
            payload: part.payload,
            count: 1,
        })
    }

    /// Takes the next frame if it follows; where its payload begins.
    pub fn join(&mut self, frame: &[u8], layers: &Layers, is_half_done: bool) -> Option<usize> {
        if self.last.pushes || self.last.payload != self.part.payload {
            return None;
        }
        let headers = frame.get(..self.part.headers)?;
        if !self.has_headers(headers) {
            return None;
        }
        let next = Part::of(frame, layers, is_half_done)?;
        let payload = self.payload.checked_add(next.payload)?;
        let packet = payload.checked_add(self.part.headers)?.checked_sub(L2)?;
        let expected = self.last.seq.wrapping_add(self.last.payload as u32);
        let counts = next.id == self.last.id.wrapping_add(1);
        let follows = next.headers == self.part.headers
            && next.seq == expected
            && next.payload <= self.part.payload
            && (counts || !self.part.is_v4)
            && packet <= PACKET_MAX;
        if !follows {
            return None;
        }
        (self.last, self.payload) = (next, payload);
        self.count = self.count.saturating_add(1);
        Some(next.headers)
    }

    /// Whether another frame's headers are those of the first, but for what differs from segment to segment.
    fn has_headers(&self, headers: &[u8]) -> bool {
        let l4 = self.part.l4;
        let is_same = |from: usize, to: usize| headers.get(from..to) == self.first.get(from..to);
        let tcp = |at: usize| l4.wrapping_add(at);
        // In between are the length, the identification and the checksum of IPv4; the length of IPv6.
        let network = match self.part.is_v4 {
            true => is_same(0, 16) && is_same(20, 24) && is_same(26, tcp(4)),
            false => is_same(0, 18) && is_same(20, tcp(4)),
        };
        // Beside them, the sequence number, the flags and the checksum of TCP. Flags other than ACK and PSH are no part's.
        network
            && is_same(tcp(8), tcp(13))
            && is_same(tcp(14), tcp(16))
            && is_same(tcp(18), headers.len())
    }

    /// How many segments it has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Makes the first one's headers, at the start of `frame`, those of the large segment, whose checksum is then half done.
    /// `None` if it is one segment as it came, or `frame` is too short for them.
    pub fn seal(&self, frame: &mut [u8]) -> Option<Large> {
        let headers = frame.get_mut(..self.part.headers)?;
        if self.count < 2 {
            return None;
        }
        let l4 = self.part.l4;
        let transport = self
            .part
            .headers
            .checked_sub(l4)?
            .checked_add(self.payload)?;
        let network = l4.checked_sub(L2)?.checked_add(transport)?;
        let pseudo = if self.part.is_v4 {
            let ip = headers.get_mut(L2..l4)?;
            *ip.get_mut(2..)?.first_chunk_mut()? = u16::try_from(network).ok()?.to_be_bytes();
            *ip.get_mut(10..)?.first_chunk_mut()? = [0, 0];
            let check = checksum::checksum(ip).to_be_bytes();
            *ip.get_mut(10..)?.first_chunk_mut()? = check;
            let (src, dst) = (ip.get(12..)?.first_chunk()?, ip.get(16..)?.first_chunk()?);
            pseudo_v4(src, dst, 6, u16::try_from(transport).ok()?)
        } else {
            let ip = headers.get_mut(L2..l4)?;
            let payload = u16::try_from(network.checked_sub(40)?).ok()?;
            *ip.get_mut(4..)?.first_chunk_mut()? = payload.to_be_bytes();
            let (src, dst) = (ip.get(8..)?.first_chunk()?, ip.get(24..)?.first_chunk()?);
            pseudo_v6(src, dst, 6, u32::try_from(transport).ok()?)
        };
        let tcp = headers.get_mut(l4..)?;
        if self.last.pushes {
            *tcp.get_mut(13)? |= PSH;
        }
        *tcp.get_mut(16..)?.first_chunk_mut()? = pseudo.partial().to_be_bytes();
        Some(Large {
            is_v4: self.part.is_v4,
            len: u32::try_from(network.checked_add(L2)?).ok()?,
            size: u16::try_from(self.part.payload).ok()?,
            csum: (u16::try_from(l4).ok()?, 16),
        })
    }
}
