//! Offload metadata in the metadata word of descriptors: windlass's own, between two sides that have agreed on it.
//!
//! # Model
//! A client that asks sets [`super::layout::RING_FLAG_CSUM`], and [`super::layout::RING_FLAG_GSO`] beside it, in each ring from the server
//! before CONNECT. A server that can do it sets the same flags in each ring from the client before CONNECTED. Then, in both
//! directions, the first descriptor of each frame has in its metadata what `struct virtio_net_hdr` would say:
//! ```text
//!  bits  0-1   checksum: 0 whole or unknown, 1 to be computed, 2 verified
//!        2-3   segmentation: 0 none, 1 TCP over IPv4, 2 TCP over IPv6, 3 UDP
//!        4     CWR is set in the first segment
//!        5-15  csum_start, if the checksum is to be computed: headers lie in the first 2 KiB of a frame
//!       16-31  with segmentation gso_size, else csum_offset: a segment's checksum field is that of its transport
//! ```
//! Without the agreement both sides write 0, and neither looks. The word is in the descriptor and not before the frame (the protocol has
//! `private_hdr_size` for that): frames and buffers keep their place and alignment, no further line is touched, and a peer that
//! refuses private headers, as DPDK and VPP do, never hears of it.
//!
//! # Failure modes
//! A word is a [`Claim`]: it goes through the same check as a guest's header. A word that means nothing becomes a claim that is refused.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use windlass_frame::Claim;

use super::layout::{RING_FLAG_CSUM, RING_FLAG_GSO};
use crate::port::TxCaps;

/// What a client takes unfinished, and may send unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offloads {
    /// Nothing: the metadata word is not used.
    #[default]
    None,
    /// Checksums.
    Csum,
    /// Checksums, and segments of TCP and UDP that are still to be cut.
    Gso,
}

impl Offloads {
    /// The flags of a ring that ask for them, or offer them.
    #[must_use]
    #[inline]
    pub const fn flags(self) -> u16 {
        match self {
            Offloads::None => 0,
            Offloads::Csum => RING_FLAG_CSUM,
            Offloads::Gso => RING_FLAG_CSUM | RING_FLAG_GSO,
        }
    }

    /// What a ring's flags ask for, or offer.
    #[must_use]
    pub const fn of_flags(flags: u16) -> Offloads {
        match (flags & RING_FLAG_CSUM != 0, flags & RING_FLAG_GSO != 0) {
            (false, _) => Offloads::None,
            (true, false) => Offloads::Csum,
            (true, true) => Offloads::Gso,
        }
    }

    /// What a peer takes as it is that has asked for them.
    pub(super) const fn caps(self) -> TxCaps {
        let gso = matches!(self, Offloads::Gso);
        TxCaps {
            csum: !matches!(self, Offloads::None),
            tso4: gso,
            tso6: gso,
            ecn: gso,
            uso: gso,
        }
    }
}

const CHECKSUM: u32 = 3;
const NEEDED: u32 = 1;
const VALID: u32 = 2;
const KIND_SHIFT: u32 = 2;
const ECN: u32 = 1 << 4;
const START_SHIFT: u32 = 5;
/// Largest `csum_start` that a word has room for.
pub const START_MAX: u16 = 0x7ff;
const SIZE_SHIFT: u32 = 16;
/// The kinds of segmentation by their number in a word, and where each has its checksum field (RFC 9293 3.1, RFC 768).
const KINDS: [(u8, u16); 4] = [
    (0, 0),
    (Claim::GSO_TCPV4, 16),
    (Claim::GSO_TCPV6, 16),
    (Claim::GSO_UDP_L4, 6),
];
/// A `gso_type` that virtio does not have.
const NO_TYPE: u8 = 2;

/// The word for what a virtio header says. `None` where it has no room, or where no such header holds: flags or a kind of segmentation
/// that are not offered, segments of 0 bytes, or with a checksum that is elsewhere or not to be computed.
#[must_use]
pub fn to_word(claim: &Claim) -> Option<u32> {
    let needed = claim.flags & Claim::NEEDS_CSUM != 0;
    let checksum = match (needed, claim.flags & Claim::DATA_VALID != 0) {
        (true, _) => NEEDED,
        (false, true) => VALID,
        (false, false) => 0,
    };
    let wanted = claim.gso_type & !Claim::GSO_ECN;
    let mut kinds = (0u32..).zip(KINDS);
    let (at, (kind, field)) = kinds.find(|(_, (kind, _))| *kind == wanted)?;
    let ecn = claim.gso_type & Claim::GSO_ECN != 0;
    let is_good = claim.flags & !(Claim::NEEDS_CSUM | Claim::DATA_VALID) == 0
        && (!needed || claim.csum_start <= START_MAX)
        && match kind {
            0 => !ecn,
            _ => claim.gso_size != 0 && needed && claim.csum_offset == field,
        };
    let start = if needed { claim.csum_start } else { 0 };
    let size = match (kind, needed) {
        (0, true) => claim.csum_offset,
        (0, false) => 0,
        _ => claim.gso_size,
    };
    let word = checksum
        | at << KIND_SHIFT
        | if ecn { ECN } else { 0 }
        | u32::from(start) << START_SHIFT
        | u32::from(size) << SIZE_SHIFT;
    is_good.then_some(word)
}

/// What a word says, of whatever value.
#[must_use]
#[inline]
pub fn of_word(word: u32) -> Claim {
    let at = (word >> KIND_SHIFT & 3) as usize;
    let (kind, field) = KINDS.get(at).copied().unwrap_or_default();
    let size = (word >> SIZE_SHIFT) as u16;
    let ecn = if word & ECN != 0 { Claim::GSO_ECN } else { 0 };
    let mut claim = Claim {
        gso_type: kind | ecn,
        gso_size: if kind == 0 { 0 } else { size },
        ..Claim::NONE
    };
    match word & CHECKSUM {
        0 => {}
        NEEDED => {
            claim.flags = Claim::NEEDS_CSUM;
            claim.csum_start = (word >> START_SHIFT) as u16 & START_MAX;
            claim.csum_offset = if kind == 0 { size } else { field };
        }
        VALID => claim.flags = Claim::DATA_VALID,
        _ => claim.gso_type = NO_TYPE,
    }
    claim
}

/// What a client's word says that has asked for these offloads. A client may not say that a checksum is right, as a guest may not. A segment of
/// one that has not asked for segments is a claim that is refused.
#[must_use]
#[inline]
pub fn of_client(word: u32, agreed: Offloads) -> Claim {
    let claim = of_word(word);
    let is_agreed = claim.gso_type == 0 || agreed == Offloads::Gso;
    Claim {
        flags: claim.flags & Claim::NEEDS_CSUM,
        gso_type: if is_agreed { claim.gso_type } else { NO_TYPE },
        ..claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(flags: u8, gso_type: u8, gso_size: u16, at: (u16, u16)) -> Claim {
        Claim {
            flags,
            gso_type,
            gso_size,
            csum_start: at.0,
            csum_offset: at.1,
        }
    }

    /// What a header says comes back from its word, to the last bit; a frame of which nothing is said has the word 0.
    #[test]
    fn words_keep_what_headers_say() {
        assert_eq!(to_word(&Claim::NONE), Some(0));
        assert_eq!(of_word(0), Claim::NONE);
        let mut seen = std::collections::BTreeSet::new();
        for flags in [Claim::NEEDS_CSUM, Claim::DATA_VALID] {
            for start in [0, 14, 34, 0x7ff] {
                for (kind, field) in KINDS {
                    for ecn in [0, Claim::GSO_ECN] {
                        for size in [1, 1448, u16::MAX] {
                            let needed = flags == Claim::NEEDS_CSUM;
                            let at = if needed { (start, field) } else { (0, 0) };
                            let (ecn, size) = if kind == 0 { (0, 0) } else { (ecn, size) };
                            let claim = claim(flags, kind | ecn, size, at);
                            let word = to_word(&claim);
                            let has_one = needed || kind == 0;
                            assert_eq!(word.map(of_word), has_one.then_some(claim));
                            seen.insert(word);
                        }
                    }
                }
            }
        }
        // Of what was verified, and of what has none.
        assert_eq!(seen.len(), 4 * (1 + 3 * 6) + 1 + 1);
        let anywhere = claim(Claim::NEEDS_CSUM, 0, 0, (54, 0xfffe));
        assert_eq!(to_word(&anywhere).map(of_word), Some(anywhere));
    }

    /// What a word cannot say, or no receiver would take, has none.
    #[test]
    fn headers_without_a_word() {
        const TCP4: u8 = Claim::GSO_TCPV4;
        const NEEDS: u8 = Claim::NEEDS_CSUM;
        for (flags, gso_type, gso_size, at) in [
            (4, 0, 0, (0, 0)),
            (NEEDS, 0, 0, (0x800, 16)),
            (NEEDS, Claim::GSO_UFO, 1448, (34, 6)),
            (NEEDS, Claim::GSO_ECN, 0, (34, 16)),
            (NEEDS, TCP4, 0, (34, 16)),
            (NEEDS, TCP4, 1448, (34, 6)),
            (NEEDS, Claim::GSO_UDP_L4, 1448, (34, 16)),
            (0, TCP4, 1448, (34, 16)),
        ] {
            let claim = claim(flags, gso_type, gso_size, at);
            assert_eq!(to_word(&claim), None, "{claim:?}");
        }
    }

    /// Every word is a claim: what it says has the same word again, or none.
    #[test]
    fn any_word_is_a_claim() {
        let mut word = 1u32;
        for _ in 0..200_000 {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            let claim = of_word(word);
            assert!(!claim.is_none() || word & 0x1f == 0);
            if let Some(again) = to_word(&claim) {
                assert_eq!(of_word(again), claim);
            }
        }
    }
}
