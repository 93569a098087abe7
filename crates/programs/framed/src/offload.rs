//! Offload metadata: what is still to be done with a frame, for programs that have asked at open.
//!
//! # Model
//! A program asks for checksums, or for these and segmentation ([`Offloads`]). Then each frame that it reads can say that its checksum is
//! still to be computed or was verified, or that it is a segment of up to 64 KiB that is still to be cut; and each that it writes can ask
//! for the same. The bridge checks what is asked as it checks a guest's header: a request aimed at anything but the frame's own
//! transport checksum, or at a segment that is none, is dropped as `bad-offload`. Whoever does not ask gets whole checksums and cut segments.

use core::sync::atomic::Ordering;

use windlass_attach::memif::Offloads;
use windlass_attach::memif::offload::{of_word, to_word};
use windlass_frame::Claim;
use windlass_shm::word;

/// Where a TCP header has its length, as words of four bytes in the upper four bits (RFC 9293 3.1).
const TCP_LENGTH: usize = 12;
/// Bytes of a UDP header (RFC 768).
const UDP_BYTES: usize = 8;

/// The metadata of one frame, with the layout and the constants of `struct virtio_net_hdr` (linux/virtio_net.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Offload {
    /// [`Offload::NEEDS_CSUM`] or [`Offload::DATA_VALID`].
    pub flags: u8,
    /// The segmentation to be done: 0 for none, [`Offload::TCP4`] and so on.
    pub gso_type: u8,
    /// With segmentation, bytes of all headers. Ignored in frames that are written.
    pub hdr_len: u16,
    /// With segmentation, payload bytes of each segment.
    pub gso_size: u16,
    /// With [`Offload::NEEDS_CSUM`], where the summed part begins: at the transport header of frames that are read.
    pub csum_start: u16,
    /// Where in that part the checksum's two bytes are. They hold the sum of the pseudo header.
    pub csum_offset: u16,
}

impl Offload {
    /// The checksum is to be computed.
    pub const NEEDS_CSUM: u8 = Claim::NEEDS_CSUM;
    /// The checksum was verified.
    pub const DATA_VALID: u8 = Claim::DATA_VALID;
    /// TCP over IPv4.
    pub const TCP4: u8 = Claim::GSO_TCPV4;
    /// TCP over IPv6.
    pub const TCP6: u8 = Claim::GSO_TCPV6;
    /// UDP datagrams of `gso_size` bytes each.
    pub const UDP: u8 = Claim::GSO_UDP_L4;
    /// Beside a type of TCP: the first segment has CWR set.
    pub const ECN: u8 = Claim::GSO_ECN;

    /// The word that carries it to a daemon that was asked for `agreed`. `None` if there is none, or not for so much.
    pub(crate) fn word(&self, agreed: Offloads) -> Option<u32> {
        let word = to_word(&Claim {
            flags: self.flags,
            gso_type: self.gso_type,
            gso_size: self.gso_size,
            csum_start: self.csum_start,
            csum_offset: self.csum_offset,
        })?;
        let is_agreed = match agreed {
            Offloads::None => word == 0,
            Offloads::Csum => self.gso_type == 0,
            Offloads::Gso => true,
        };
        is_agreed.then_some(word)
    }

    /// What the word of a received frame says, whose first `len` bytes are at `frame`.
    ///
    /// # Safety
    /// So many bytes can be read there.
    pub(crate) unsafe fn received(word: u32, frame: *const u8, len: usize) -> Offload {
        let claim = of_word(word);
        let start = usize::from(claim.csum_start);
        let header = match claim.gso_type & !Offload::ECN {
            0 => 0,
            Offload::UDP => start + UDP_BYTES,
            _ if start + TCP_LENGTH < len => {
                // SAFETY: inside the frame (caller). The daemon may write there: it is read once.
                let byte = unsafe {
                    word::load_u8(frame.wrapping_add(start + TCP_LENGTH), Ordering::Relaxed)
                };
                start + usize::from(byte >> 4) * 4
            }
            _ => len,
        };
        Offload {
            flags: claim.flags,
            gso_type: claim.gso_type,
            hdr_len: header.min(len) as u16,
            gso_size: claim.gso_size,
            csum_start: claim.csum_start,
            csum_offset: claim.csum_offset,
        }
    }
}
