//! Which flow a frame belongs to, as a number: what frames are spread by.
//!
//! # Model
//! Frames of one flow have one number. What is hashed:
//!
//! | frame | hashed |
//! | --- | --- |
//! | a whole TCP segment or UDP datagram over IP | both addresses, both ports, the protocol |
//! | any other IP packet, fragments among them | both addresses |
//! | anything else, and what contradicts itself | both link-layer addresses |
//!
//! A tag does not count. A fragment has the number of its addresses also where it has the ports, so that the parts of
//! a datagram stay together.
//!
//! The hash is keyed, so that no sender can aim its flows at one of a receiver's rings, and made of multiplications:
//! Toeplitz, which hardware computes, takes 90 cycles for what is hashed of an IPv4 packet.
//!
//! # Limits
//! Only the frame's private bytes are looked at. A packet whose IPv6 extension headers go beyond them counts as one
//! without ports.

use windlass_frame::{BURST, Heads};
use windlass_wire::{Kind, parse};

/// Numbers flows.
#[derive(Clone, Debug)]
pub struct FlowHash {
    keys: [u64; 2],
}

impl FlowHash {
    /// With keys that senders do not know.
    pub const fn new(keys: [u64; 2]) -> FlowHash {
        FlowHash { keys }
    }

    /// The number of the flow of frame `i`.
    #[inline]
    pub fn of(&self, heads: &Heads, i: usize) -> u32 {
        let i = i % BURST;
        let state = self.of_packet(heads, i);
        let state = state.unwrap_or_else(|| self.of_addresses(heads, i));
        fold(state ^ self.keys[1], self.keys[0] | 1) as u32
    }

    /// The number by the IP header; none without a good one.
    #[inline]
    fn of_packet(&self, heads: &Heads, i: usize) -> Option<u64> {
        let bytes = heads.private(i);
        let layers = parse(bytes, heads.meta.get(i)?.len);
        if layers.l3 == 0 {
            return None;
        }
        let transport = if layers.is_tcp() || layers.is_udp() {
            let ports = u32::from_ne_bytes(*bytes.get(layers.l4_at()..)?.first_chunk()?);
            u64::from(ports) << 8 | u64::from(layers.proto)
        } else {
            0
        };
        let ip = bytes.get(layers.l3_at()..)?;
        let word = |at: usize| Some(u64::from_ne_bytes(*ip.get(at..)?.first_chunk()?));
        match layers.kind {
            Kind::Ipv4 => Some(self.mix(word(12)?, transport)),
            Kind::Ipv6 => {
                let from = self.mix(word(8)?, word(16)?);
                let to = self.mix(word(24)? ^ from, word(32)?);
                Some(self.mix(to, transport))
            }
            _ => None,
        }
    }

    #[cold]
    fn of_addresses(&self, heads: &Heads, i: usize) -> u64 {
        let word = |of: &[u64; BURST]| of.get(i).copied().unwrap_or(0);
        self.mix(word(&heads.dst), word(&heads.src))
    }

    #[inline(always)]
    const fn mix(&self, a: u64, b: u64) -> u64 {
        fold(a ^ self.keys[0], b ^ self.keys[1])
    }
}

/// Both halves of the product, one upon the other.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    product as u64 ^ (product >> 64) as u64
}
