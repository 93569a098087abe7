//! The Internet checksum (RFC 1071), its pseudo headers and its incremental update (RFC 1624).
//!
//! # Model
//!
//! [`Sum`] holds a one's complement sum of little-endian words in 64 bits: the sum does not care
//! for the byte order as long as the result is swapped back (RFC 1071, section 2 (B)), nor for the
//! width of the words. Pieces of any length are added one after the other as if they were one
//! string: after an odd number of bytes the next piece is rotated by one byte.
//!
//! All 16-bit values that go in and come out are in host order, to be written with `to_be_bytes`.

/// A one's complement sum in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sum of little-endian words, carries folded in as they fall out.
    acc: u64,
    /// An odd number of bytes was added so far.
    odd: bool,
}

/// One's complement addition of 64-bit words.
#[inline(always)]
const fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(carry as u64)
}

/// To 16 bits, carries folded in.
#[inline(always)]
const fn fold(acc: u64) -> u16 {
    let acc = (acc >> 32).wrapping_add(acc & 0xffff_ffff);
    let acc = (acc >> 32).wrapping_add(acc & 0xffff_ffff);
    let acc = (acc >> 16).wrapping_add(acc & 0xffff);
    let acc = (acc >> 16).wrapping_add(acc & 0xffff);
    let acc = (acc >> 16).wrapping_add(acc & 0xffff);
    acc as u16
}

impl Sum {
    /// Nothing added.
    #[inline]
    pub const fn new() -> Self {
        Self { acc: 0, odd: false }
    }

    /// Adds bytes after all those added before.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add_words(words(bytes), bytes.len());
    }

    /// Adds `len` bytes whose one's complement sum as little-endian words (the last one padded
    /// with a zero) somebody else has made, as a copy routine that sums does.
    #[inline]
    pub fn add_words(&mut self, sum: u64, len: usize) {
        if self.odd {
            self.acc = add(self.acc, u64::from(fold(sum).swap_bytes()));
        } else {
            self.acc = add(self.acc, sum);
        }
        self.odd ^= len & 1 != 0;
    }

    /// Adds a 16-bit field given in host order.
    #[inline]
    pub fn add_u16_be(&mut self, value: u16) {
        self.add_words(u64::from(value.swap_bytes()), 2);
    }

    /// Adds a 32-bit field given in host order.
    #[inline]
    pub fn add_u32_be(&mut self, value: u32) {
        self.add_words(u64::from(value.swap_bytes()), 4);
    }

    /// Adds everything that was added to `other`.
    #[inline]
    pub fn add_sum(&mut self, other: Self) {
        self.add_words(other.acc, usize::from(other.odd));
    }

    /// The sum itself, not complemented: what a sender leaves in the field for a checksum to be
    /// finished further on.
    #[inline]
    pub const fn partial(self) -> u16 {
        fold(self.acc).swap_bytes()
    }

    /// The checksum: the complement of the sum. 0 over data that include a correct checksum.
    #[inline]
    pub const fn finish(self) -> u16 {
        !self.partial()
    }

    /// [`finish`](Self::finish), with 0 replaced by 0xffff: in UDP 0 means "no checksum" (RFC 768).
    /// The two are the same number in one's complement, so a TCP receiver takes either.
    #[inline]
    pub const fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            check => check,
        }
    }
}

/// The one's complement sum of the little-endian words of `bytes`, the last padded with a zero.
#[inline]
fn words(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 4];
    for block in blocks {
        let (quads, _) = block.as_chunks::<8>();
        for (lane, quad) in lanes.iter_mut().zip(quads) {
            *lane = add(*lane, u64::from_le_bytes(*quad));
        }
    }
    let (quads, rest) = rest.as_chunks::<8>();
    let mut acc = add(add(lanes[0], lanes[1]), add(lanes[2], lanes[3]));
    for quad in quads {
        acc = add(acc, u64::from_le_bytes(*quad));
    }
    let (longs, rest) = rest.as_chunks::<4>();
    for long in longs {
        acc = add(acc, u64::from(u32::from_le_bytes(*long)));
    }
    let (shorts, rest) = rest.as_chunks::<2>();
    for short in shorts {
        acc = add(acc, u64::from(u16::from_le_bytes(*short)));
    }
    match rest.first() {
        Some(last) => add(acc, u64::from(*last)),
        None => acc,
    }
}

/// The checksum of one piece.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Sum::new();
    sum.add_bytes(bytes);
    sum.finish()
}

/// The IPv4 pseudo header (RFC 768, RFC 9293 section 3.1); `len` is the transport header and payload.
#[inline]
pub fn pseudo_v4(src: &[u8; 4], dst: &[u8; 4], proto: u8, len: u16) -> Sum {
    let src = u64::from(u32::from_le_bytes(*src));
    let dst = u64::from(u32::from_le_bytes(*dst));
    let tail = (u64::from(proto) << 8).wrapping_add(u64::from(len.swap_bytes()));
    Sum {
        acc: src.wrapping_add(dst).wrapping_add(tail),
        odd: false,
    }
}

/// The IPv6 pseudo header (RFC 8200, section 8.1); `dst` is the final destination, `len` the
/// transport header and payload.
#[inline]
pub fn pseudo_v6(src: &[u8; 16], dst: &[u8; 16], proto: u8, len: u32) -> Sum {
    let mut sum = Sum::new();
    sum.add_bytes(src);
    sum.add_bytes(dst);
    sum.add_u32_be(len);
    sum.add_u32_be(u32::from(proto));
    sum
}

/// The checksum after a 16-bit field that it covers went from `old` to `new` (RFC 1624, equation 3).
/// `check` 0 of a UDP datagram over IPv4 is not a checksum: do not update it.
#[inline]
pub const fn update_u16(check: u16, old: u16, new: u16) -> u16 {
    let sum = (!check as u64)
        .wrapping_add(!old as u64)
        .wrapping_add(new as u64);
    !fold(sum)
}

/// [`update_u16`] for a 32-bit field at an even offset.
#[inline]
pub const fn update_u32(check: u16, old: u32, new: u32) -> u16 {
    let sum = (!check as u64)
        .wrapping_add(!old as u64)
        .wrapping_add(new as u64);
    !fold(sum)
}

/// Finishes a checksum that a sender left to us (virtio's NEEDS_CSUM): the field at `start +
/// offset` holds the pseudo header's [`partial`](Sum::partial) sum, the sum runs from `start` to
/// the end of `packet`, whose padding must be cut off. 0 is written as 0xffff, as Linux does.
/// `false`, and nothing written, if the field is not inside `packet`.
pub fn finish_in_place(packet: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(covered) = packet.get_mut(start..) else {
        return false;
    };
    let mut sum = Sum::new();
    sum.add_bytes(covered);
    match covered.get_mut(offset..).and_then(|b| b.first_chunk_mut()) {
        Some(field) => {
            *field = sum.finish_udp().to_be_bytes();
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests;
