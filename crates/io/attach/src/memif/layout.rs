//! # Purpose
//! Where things lie in a memif shared memory region: the ring header, the descriptor, and the numbers that both
//! sides must agree on. Pure arithmetic over offsets; the memory itself is touched elsewhere.
//!
//! Source: `memif_ring_t` and `memif_desc_t` in VPP `src/plugins/memif/memif.h` and DPDK
//! `drivers/net/memif/memif.h`, protocol version 2.0. All fields are in host order (little endian here).
//!
//! # Model
//! ```text
//! ring, at an offset that ADD_RING names       descriptor (16 bytes)
//!   0  cookie  u32                               0  flags    u16   bit 0: NEXT, the frame goes on
//!   4  flags   u16   bit 0: MASK_INT             2  region   u16
//!   6  head    u16   written by the client       4  length   u32
//!   8  wish    u16   written by the client
//!  64  tail    u16   written by the server       8  offset   u32   in that region
//! 128  descriptor[1 << log2_size]               12  metadata u32   0 without an agreed use
//! ```
//! `head` and `tail` run freely over 16 bits; a slot is `index & (size - 1)`. In a ring from the client to the server
//! the client fills `[tail, head)` with frames and the server gives them back by moving `tail`. In a ring from the
//! server to the client the client offers `[tail, head)` as empty buffers, each `length` its room, and the server
//! fills them from `tail` on, writes the length it used, and moves `tail`.
//!
//! The protocol has no notification for room in a ring. windlass adds one, in bits and bytes that no other implementation reads or
//! writes. In a ring from the client, a server sets [`RING_FLAG_ROOM`]; the client may then put a number other than 0 at
//! [`WISH_AT`], and each new number gets it one signal on the eventfd of the ring back, when the server has moved `tail` or
//! finds the ring empty. Another addition are the flags by which both sides agree on the metadata word: see [`super::offload`].
//!
//! # Failure modes
//! Everything read from a ring was written by the peer. [`Desc`] is a copied value; its fields are to be validated by
//! whoever uses them.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

/// First four bytes of each ring (`MEMIF_COOKIE`).
pub const COOKIE: u32 = 0x03E3_1F20;

/// Bytes before the first descriptor of a ring.
pub const RING_HEADER_BYTES: u32 = 128;

/// Bytes of one descriptor.
pub const DESC_BYTES: u32 = 16;

/// Offset of the cookie from the start of a ring (`u32`).
pub const COOKIE_AT: u32 = 0;

/// Offset of the flags from the start of a ring (`u16`).
pub const FLAGS_AT: u32 = 4;

/// Offset of the head index from the start of a ring (`u16`, written by the client).
pub const HEAD_AT: u32 = 6;

/// Offset of the tail index from the start of a ring (`u16`, written by the server).
pub const TAIL_AT: u32 = 64;

/// Ring flag: the consumer polls and wants no interrupt (`MEMIF_RING_FLAG_MASK_INT`).
pub const RING_FLAG_MASK_INT: u16 = 1;

/// Ring flag, in a ring from the client: the server answers wishes for room. windlass's own.
pub const RING_FLAG_ROOM: u16 = 2;

/// Ring flag: its consumer takes frames whose checksums are to be computed. windlass's own.
pub const RING_FLAG_CSUM: u16 = 4;

/// Ring flag, beside [`RING_FLAG_CSUM`]: its consumer takes frames that are to be segmented. windlass's own.
pub const RING_FLAG_GSO: u16 = 8;

/// Offset of the client's wish for room from the start of a ring (`u16`, written by the client). windlass's own.
pub const WISH_AT: u32 = 8;

/// Descriptor flag: the frame goes on in the next descriptor (`MEMIF_DESC_FLAG_NEXT`).
pub const DESC_FLAG_NEXT: u16 = 1;

/// Largest ring, as a power of two (`MEMIF_MAX_LOG2_RING_SIZE` in VPP, `ETH_MEMIF_MAX_LOG2_RING_SIZE` in DPDK).
pub const LOG2_RING_MAX: u8 = 14;

/// A ring starts at a multiple of this many bytes: the least that makes every field of it aligned, and what both
/// VPP and DPDK give, whose rings follow each other without padding.
pub const RING_ALIGN: u32 = 16;

/// Bytes that a ring of `1 << log2_size` descriptors takes, its header included.
///
/// `None` if the ring is larger than [`LOG2_RING_MAX`] allows.
#[must_use]
pub fn ring_bytes(log2_size: u8) -> Option<u32> {
    if log2_size > LOG2_RING_MAX {
        return None;
    }
    1u32.checked_shl(u32::from(log2_size))?
        .checked_mul(DESC_BYTES)?
        .checked_add(RING_HEADER_BYTES)
}

/// One descriptor, as a private copy of the sixteen bytes in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// [`DESC_FLAG_NEXT`], and bits that have no meaning yet.
    pub flags: u16,
    /// Index of the region that holds the buffer.
    pub region: u16,
    /// Bytes of the frame in this buffer, or the buffer's room while it is offered empty.
    pub length: u32,
    /// First byte of the buffer in its region.
    pub offset: u32,
    /// No meaning without an agreement of both sides; 0 then. With it, offload metadata: [`super::offload`].
    pub metadata: u32,
}

impl Desc {
    /// The descriptor from its two halves as they lie in memory, first half first.
    #[must_use]
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Desc {
        let [low, high] = words;
        Desc {
            flags: low as u16,
            region: (low >> 16) as u16,
            length: (low >> 32) as u32,
            offset: high as u32,
            metadata: (high >> 32) as u32,
        }
    }

    /// The two halves as they lie in memory, first half first.
    #[must_use]
    #[inline]
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.flags) | u64::from(self.region) << 16 | u64::from(self.length) << 32,
            u64::from(self.offset) | u64::from(self.metadata) << 32,
        ]
    }

    /// Whether the frame goes on in the next descriptor.
    #[must_use]
    #[inline]
    pub fn goes_on(self) -> bool {
        self.flags & DESC_FLAG_NEXT != 0
    }
}

/// A ring whose place was checked against the size of its region: what it hands out lies inside that region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    start: u32,
    mask: u16,
}

impl RingPlace {
    /// A ring of `1 << log2_size` descriptors at `start` in a region of `region_bytes`.
    ///
    /// `None` if it is too large, not aligned to [`RING_ALIGN`], or does not lie wholly inside the region and the
    /// 4 GiB that a memif offset can name.
    #[must_use]
    pub fn checked(start: u32, log2_size: u8, region_bytes: u64) -> Option<RingPlace> {
        let end = start.checked_add(ring_bytes(log2_size)?)?;
        if u64::from(end) > region_bytes || start & (RING_ALIGN.wrapping_sub(1)) != 0 {
            return None;
        }
        let size = 1u16.checked_shl(u32::from(log2_size))?;
        Some(RingPlace {
            start,
            mask: size.checked_sub(1)?,
        })
    }

    /// Number of descriptors: a power of two.
    #[must_use]
    #[inline]
    pub fn size(self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// Offset in the region of the cookie.
    #[must_use]
    #[inline]
    pub fn cookie_at(self) -> u32 {
        self.start
    }

    /// Offset in the region of the flags.
    #[must_use]
    #[inline]
    pub fn flags_at(self) -> u32 {
        self.start.wrapping_add(FLAGS_AT)
    }

    /// Offset in the region of the head index.
    #[must_use]
    #[inline]
    pub fn head_at(self) -> u32 {
        self.start.wrapping_add(HEAD_AT)
    }

    /// Offset in the region of the client's wish for room.
    #[must_use]
    #[inline]
    pub fn wish_at(self) -> u32 {
        self.start.wrapping_add(WISH_AT)
    }

    /// Offset in the region of the tail index.
    #[must_use]
    #[inline]
    pub fn tail_at(self) -> u32 {
        self.start.wrapping_add(TAIL_AT)
    }

    /// Offset in the region of the descriptor for the free-running `index`, any value of which is allowed.
    #[must_use]
    #[inline]
    pub fn desc_at(self, index: u16) -> u32 {
        let slot = u32::from(index & self.mask);
        self.start
            .wrapping_add(RING_HEADER_BYTES)
            .wrapping_add(slot.wrapping_mul(DESC_BYTES))
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;

    /// The descriptor's fields lie at the bytes that `memif_desc_t` gives them.
    #[test]
    fn descriptor_matches_the_c_struct() {
        let desc = Desc {
            flags: 0x0201,
            region: 0x0403,
            length: 0x0807_0605,
            offset: 0x0c0b_0a09,
            metadata: 0x100f_0e0d,
        };
        let [low, high] = desc.to_words();
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        assert_eq!(bytes, core::array::from_fn(|i| i as u8 + 1));
        assert_eq!(Desc::from_words([low, high]), desc);
        assert!(desc.goes_on());
    }

    /// A ring is admitted only if all of it lies inside its region, also at the end of what 32 bits can name.
    #[test]
    fn ring_place_is_bounded() {
        assert_eq!(ring_bytes(10), Some(128 + 16 * 1024));
        assert_eq!(ring_bytes(15), None);
        let bytes = u64::from(ring_bytes(10).unwrap());
        assert!(RingPlace::checked(0, 10, bytes).is_some());
        assert!(RingPlace::checked(0, 10, bytes - 1).is_none());
        assert!(RingPlace::checked(16, 10, bytes).is_none());
        assert!(RingPlace::checked(8, 10, 2 * bytes).is_none());
        assert!(RingPlace::checked(u32::MAX - 15, 0, u64::MAX).is_none());
        assert!(RingPlace::checked(0, 255, u64::MAX).is_none());
    }

    /// Free-running indexes of any value name a slot inside the ring, and wrap where the ring does.
    #[test]
    fn slots_wrap_inside_the_ring() {
        let ring = RingPlace::checked(4096, 3, 1 << 20).unwrap();
        assert_eq!(ring.size(), 8);
        for index in 0..=u16::MAX {
            let at = ring.desc_at(index);
            assert_eq!(at, 4096 + 128 + 16 * u32::from(index % 8));
        }
        assert_eq!(
            (
                ring.cookie_at(),
                ring.flags_at(),
                ring.head_at(),
                ring.tail_at()
            ),
            (4096, 4100, 4102, 4160)
        );
        assert_eq!(
            RingPlace::checked(0, 14, 1 << 20).map(RingPlace::size),
            Some(1 << 14)
        );
    }
}
