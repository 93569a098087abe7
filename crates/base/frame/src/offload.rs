//! Offload metadata: what a peer claims, and what we found to be true.
//!
//! The fields are virtio's (`struct virtio_net_hdr`, VIRTIO 1.2 5.1.6). A [`Claim`] is a peer's word and goes no
//! further than the check that turns it into an [`Offload`] computed from our own parse.

/// The segmentation that a frame longer than the MTU waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Gso {
    /// An ordinary frame.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of `gso_size` bytes each (not IP fragmentation).
    UdpL4,
}

/// A peer's virtio header, decoded and not believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Claim {
    /// `VIRTIO_NET_HDR_F_*` bits.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`, with the ECN bit.
    pub gso_type: u8,
    /// Payload bytes in each segment.
    pub gso_size: u16,
    /// Where the checksummed part starts, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Where in that part the checksum field lies.
    pub csum_offset: u16,
}

impl Claim {
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
    pub const NEEDS_CSUM: u8 = 1;
    /// `VIRTIO_NET_HDR_F_DATA_VALID`.
    pub const DATA_VALID: u8 = 2;
    /// `VIRTIO_NET_HDR_GSO_TCPV4`.
    pub const GSO_TCPV4: u8 = 1;
    /// `VIRTIO_NET_HDR_GSO_UDP` (UFO), never offered.
    pub const GSO_UFO: u8 = 3;
    /// `VIRTIO_NET_HDR_GSO_TCPV6`.
    pub const GSO_TCPV6: u8 = 4;
    /// `VIRTIO_NET_HDR_GSO_UDP_L4`.
    pub const GSO_UDP_L4: u8 = 5;
    /// `VIRTIO_NET_HDR_GSO_ECN`, a bit beside the type.
    pub const GSO_ECN: u8 = 0x80;
    /// Bytes of `struct virtio_net_hdr_v1` on the wire.
    pub const BYTES: usize = 12;

    /// No claim at all.
    pub const NONE: Claim = Claim {
        flags: 0,
        gso_type: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
    };

    /// Whether anything at all is claimed.
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        self.flags == 0 && self.gso_type == 0
    }

    /// Decodes the first ten bytes of a little-endian virtio header. `hdr_len` (bytes 2 and 3) is
    /// ignored: no decision may rest on it.
    #[inline]
    pub const fn decode(h: &[u8; Self::BYTES]) -> Claim {
        Claim {
            flags: h[0],
            gso_type: h[1],
            gso_size: u16::from_le_bytes([h[4], h[5]]),
            csum_start: u16::from_le_bytes([h[6], h[7]]),
            csum_offset: u16::from_le_bytes([h[8], h[9]]),
        }
    }
}

/// Offload metadata that holds: computed from our own parse, valid for every destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Offload {
    flags: u8,
    /// Segmentation to be done.
    pub gso: Gso,
    /// Payload bytes in each segment, at least 64 when `gso` is set.
    pub gso_size: u16,
    /// Start of the checksummed part, from the start of the (untagged) frame. With `needs_csum` it is the offset of
    /// the transport header.
    pub start: u16,
    /// Offset of the checksum field in that part.
    pub offset: u16,
}

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const ECN: u8 = 4;

impl Offload {
    /// An ordinary frame with a checksum of its own.
    pub const NONE: Offload = Offload {
        flags: 0,
        gso: Gso::None,
        gso_size: 0,
        start: 0,
        offset: 0,
    };

    /// A frame whose transport checksum is still to be completed.
    pub const fn needing_csum(start: u16, offset: u16) -> Offload {
        Offload {
            flags: NEEDS_CSUM,
            gso: Gso::None,
            gso_size: 0,
            start,
            offset,
        }
    }

    /// The same, to be segmented.
    pub const fn with_gso(mut self, gso: Gso, size: u16, ecn: bool) -> Offload {
        self.gso = gso;
        self.gso_size = size;
        if ecn {
            self.flags |= ECN;
        }
        self
    }

    /// The same, its checksum known to be right.
    pub const fn with_data_valid(mut self) -> Offload {
        self.flags |= DATA_VALID;
        self
    }

    /// Nothing to do: no checksum to complete and nothing to segment.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.flags & NEEDS_CSUM == 0 && matches!(self.gso, Gso::None)
    }

    /// The checksum is still to be completed.
    #[inline(always)]
    pub const fn needs_csum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    /// The checksum was verified by the sender's kernel or device.
    #[inline(always)]
    pub const fn data_valid(&self) -> bool {
        self.flags & DATA_VALID != 0
    }

    /// CWR is set in the first segment (RFC 3168).
    #[inline(always)]
    pub const fn ecn(&self) -> bool {
        self.flags & ECN != 0
    }

    /// Encodes the virtio header for a receiver that takes it as it is. `shift` is 4 when a tag is
    /// pushed in front of what was parsed; `header_bytes` is the true length of all headers, which
    /// GSO receivers want as `hdr_len`.
    #[inline]
    pub fn encode(&self, shift: u16, header_bytes: u16) -> [u8; Claim::BYTES] {
        let mut h = [0u8; Claim::BYTES];
        if self.needs_csum() {
            h[0] = Claim::NEEDS_CSUM;
            let start = self.start.wrapping_add(shift).to_le_bytes();
            let offset = self.offset.to_le_bytes();
            (h[6], h[7], h[8], h[9]) = (start[0], start[1], offset[0], offset[1]);
        } else if self.data_valid() {
            h[0] = Claim::DATA_VALID;
        }
        let kind = match self.gso {
            Gso::None => 0,
            Gso::Tcp4 => Claim::GSO_TCPV4,
            Gso::Tcp6 => Claim::GSO_TCPV6,
            Gso::UdpL4 => Claim::GSO_UDP_L4,
        };
        if kind != 0 {
            h[1] = kind | if self.ecn() { Claim::GSO_ECN } else { 0 };
            let (len, size) = (
                header_bytes.wrapping_add(shift).to_le_bytes(),
                self.gso_size.to_le_bytes(),
            );
            (h[2], h[3], h[4], h[5]) = (len[0], len[1], size[0], size[1]);
        }
        h
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is encoded for a receiver decodes to the same request, moved by the pushed tag.
    #[test]
    fn encode_decode() {
        let o = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1448, true);
        let c = Claim::decode(&o.encode(4, 66));
        assert_eq!(
            c,
            Claim {
                flags: Claim::NEEDS_CSUM,
                gso_type: Claim::GSO_TCPV4 | Claim::GSO_ECN,
                gso_size: 1448,
                csum_start: 38,
                csum_offset: 16
            }
        );
        assert!(Claim::decode(&Offload::NONE.encode(0, 0)).is_none());
    }
}
