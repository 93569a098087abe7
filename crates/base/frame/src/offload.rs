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
const GIVES: u8 = 8;

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

    /// The same, and the frame may give its receivers addresses: a whole message of a DHCP server or a router that may be believed.
    pub const fn giving(mut self) -> Offload {
        self.flags |= GIVES;
        self
    }

    /// The frame may give its receivers addresses. All of its bytes are private, or were when this was found.
    #[inline(always)]
    pub const fn gives(&self) -> bool {
        self.flags & GIVES != 0
    }

    /// Encodes the virtio header for a receiver that takes it as it is. `shift` is 4 when a tag is
    /// pushed in front of what was parsed; `header_bytes` is the true length of all headers, which
    /// GSO receivers want as `hdr_len`.
    #[inline]
    pub fn encode(&self, shift: u16, header_bytes: u16) -> [u8; Claim::BYTES] {
        let (low, high) = self.encode_words(shift, header_bytes);
        let (a, b) = (low.to_le_bytes(), high.to_le_bytes());
        [
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1], b[2], b[3],
        ]
    }

    /// The same as little-endian numbers, the first eight bytes and the last four: for a port that writes them from
    /// registers.
    #[inline]
    pub fn encode_words(&self, shift: u16, header_bytes: u16) -> (u64, u32) {
        let (mut low, mut high) = (0, 0);
        if self.needs_csum() {
            let start = self.start.wrapping_add(shift);
            low = u64::from(Claim::NEEDS_CSUM) | u64::from(start) << 48;
            high = u32::from(self.offset);
        } else if self.data_valid() {
            low = u64::from(Claim::DATA_VALID);
        }
        let kind = match self.gso {
            Gso::None => return (low, high),
            Gso::Tcp4 => Claim::GSO_TCPV4,
            Gso::Tcp6 => Claim::GSO_TCPV6,
            Gso::UdpL4 => Claim::GSO_UDP_L4,
        };
        let kind = kind | if self.ecn() { Claim::GSO_ECN } else { 0 };
        let len = header_bytes.wrapping_add(shift);
        low |= u64::from(kind) << 8 | u64::from(len) << 16 | u64::from(self.gso_size) << 32;
        (low, high)
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
