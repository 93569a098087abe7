//! The frames that the generator sends: IPv4 and UDP, with a sequence number and a pattern that depends on the slot.
//!
//! ```text
//!   0  destination address, source address, 0x0800
//!  14  IPv4 header: 198.18.0.1 to 198.18.0.2 (RFC 2544 range), protocol 17
//!  34  UDP header: source port by flow and slot, no checksum
//!  42  six zero bytes
//!  48  sequence number, u64 little endian: written just before sending, if the sink checks
//!  56  pattern: byte i of slot s is PATTERN[s + i]
//! ```

use anyhow::{Result, bail};

use crate::memory::Memory;

/// A MAC address.
pub type Mac = [u8; 6];

/// Offset of the sequence number: a multiple of 8, so that one store writes it.
pub const SEQUENCE_AT: usize = 48;

/// Offset of the pattern.
pub const PATTERN_AT: usize = 56;

/// Shortest and longest frame, in bytes as they lie in memory (no FCS).
pub const SIZES: core::ops::RangeInclusive<usize> = 64..=2048;

/// Bytes at the start of a frame that differ between slots: the addresses, and some after them.
const START_BYTES: usize = 16;

const ETHER_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
/// Destination port of all frames.
pub const UDP_PORT: u16 = 9;
/// Where the source port lies, and that of the first flow.
const SOURCE_PORT_AT: usize = 34;
const FIRST_PORT: u16 = 1024;

/// The address that the sending port has.
pub const SENDER: Mac = [0x02, 0, 0, 0, 0, 0x01];

/// The `index`-th of the addresses behind the sink.
#[must_use]
pub fn sink_address(index: u16) -> Mac {
    let [high, low] = index.to_be_bytes();
    [0x02, 0, 0, 0x01, high, low]
}

/// Frames of one size for every slot of a ring.
pub struct Frames {
    size: usize,
    slots: u16,
    addresses: u16,
    pattern: Vec<u8>,
    /// Source ports of the slots' frames.
    ports: Vec<[u8; 2]>,
    /// The first bytes of each slot's frame, and those after them, which are the same in all.
    starts: Vec<[u8; START_BYTES]>,
    rest: [u8; SEQUENCE_AT - START_BYTES],
}

impl Frames {
    /// Frames of `size` bytes for `slots` slots, to `addresses` addresses in turn, from `flows` ports in turn.
    ///
    /// # Errors
    /// If the size is outside [`SIZES`], there are no addresses, or more flows than slots.
    pub fn new(size: usize, slots: u16, addresses: u16, flows: u16) -> Result<Frames> {
        if !SIZES.contains(&size) {
            bail!("a frame has {} to {} bytes", SIZES.start(), SIZES.end());
        }
        if addresses == 0 {
            bail!("at least one destination address is needed");
        }
        if flows == 0 || flows > slots {
            bail!("{flows} flows in a ring of {slots} slots");
        }
        // A multiplicative sequence: neighbours differ in every byte, and no two slots have the same first word.
        let pattern = (0..usize::from(slots) + size)
            .map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        if !slots.is_power_of_two() {
            bail!("a ring has a power of two of slots");
        }
        let mut frames = Frames {
            size,
            slots,
            addresses,
            pattern,
            ports: (0..slots)
                .map(|slot| (FIRST_PORT + slot % flows).to_be_bytes())
                .collect(),
            starts: Vec::new(),
            rest: [0; SEQUENCE_AT - START_BYTES],
        };
        for slot in 0..slots {
            let frame = frames.frame(slot);
            frames.starts.push(std::array::from_fn(|i| frame[i]));
            frames.rest = std::array::from_fn(|i| frame[START_BYTES + i]);
        }
        Ok(frames)
    }

    /// Bytes of each frame.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The destination of the frame in a slot. Neighbouring slots have distant addresses.
    #[must_use]
    pub fn destination(&self, slot: u16) -> Mac {
        let step = u32::from(slot) * 389;
        sink_address((step % u32::from(self.addresses)) as u16)
    }

    /// The whole frame of a slot, with the slot as its sequence number.
    #[must_use]
    pub fn frame(&self, slot: u16) -> Vec<u8> {
        let mut frame = header(self.destination(slot), SENDER, self.size);
        frame[SOURCE_PORT_AT..SOURCE_PORT_AT + 2].copy_from_slice(&self.ports[usize::from(slot)]);
        frame.resize(SEQUENCE_AT, 0);
        frame.extend(u64::from(slot).to_le_bytes());
        frame.extend(self.pattern_of(slot));
        frame
    }

    /// Whether `frame` is the frame that was sent with the sequence number in it.
    #[must_use]
    #[inline]
    pub fn is_intact(&self, frame: &[u8]) -> bool {
        let (Some(sequence), Some(start)) = (sequence_of(frame), frame.first_chunk()) else {
            return false;
        };
        let slot = sequence as u16 & (self.slots - 1);
        let mut rest = self.rest;
        rest[SOURCE_PORT_AT - START_BYTES..][..2].copy_from_slice(&self.ports[usize::from(slot)]);
        *start == self.starts[usize::from(slot)]
            && frame[START_BYTES..SEQUENCE_AT] == rest
            && frame[PATTERN_AT..] == *self.pattern_of(slot)
    }

    fn pattern_of(&self, slot: u16) -> &[u8] {
        let from = usize::from(slot);
        &self.pattern[from..from + self.size - PATTERN_AT]
    }
}

/// The sequence number in a frame.
#[must_use]
#[inline]
pub fn sequence_of(frame: &[u8]) -> Option<u64> {
    let bytes = frame.get(SEQUENCE_AT..PATTERN_AT)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Ethernet, IPv4 and UDP headers of a frame of `size` bytes.
fn header(to: Mac, from: Mac, size: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(size);
    frame.extend(to);
    frame.extend(from);
    frame.extend([0x08, 0x00]);
    let total = (size - ETHER_BYTES) as u16;
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([198, 18, 0, 1, 198, 18, 0, 2]);
    let sum = internet_checksum(&frame[ETHER_BYTES..]);
    frame[ETHER_BYTES + 10..ETHER_BYTES + 12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend((total - IPV4_BYTES as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame
}

/// A short frame `from` one address `to` another, by which a bridge learns the first.
#[must_use]
pub fn announcement(to: Mac, from: Mac) -> Vec<u8> {
    let size = *SIZES.start();
    let mut frame = header(to, from, size);
    frame.resize(size, 0);
    frame
}

/// Bytes of the headers of a TCP segment: Ethernet, IPv4, TCP without options.
pub const SEGMENT_HEADERS: u32 = 54;
/// Bytes of payload of each frame that a segment was to be cut into.
pub const SEGMENT_MSS: u16 = 1448;
/// Where a segment's number lies: the TCP sequence number.
const SEGMENT_NUMBER_AT: usize = 38;

/// A TCP segment of `bytes` bytes with a partial checksum, as a guest hands it to a network card that cuts it. Its
/// number is its TCP sequence number.
#[must_use]
pub fn segment(to: Mac, from: Mac, bytes: usize, number: u32) -> Vec<u8> {
    let mut frame = header(to, from, bytes);
    frame[23] = 6;
    frame[24..26].fill(0);
    let sum = internet_checksum(&frame[ETHER_BYTES..ETHER_BYTES + IPV4_BYTES]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend(((bytes - ETHER_BYTES - IPV4_BYTES) as u16).to_be_bytes());
    frame.truncate(SEGMENT_NUMBER_AT);
    frame.extend(number.to_be_bytes());
    // Acknowledgment 1; data offset 5 words, ACK; a window; the sum of the pseudo header, not complemented.
    frame.extend([0, 0, 0, 1, 0x50, 0x10, 0x20, 0]);
    frame.extend((!internet_checksum(&pseudo)).to_be_bytes());
    frame.extend([0, 0]);
    let pattern =
        |i: usize| ((i as u64 + u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    frame.extend((0..bytes - SEGMENT_HEADERS as usize).map(pattern));
    frame
}

/// The number of the segment whose frame begins at `at`.
#[must_use]
#[inline]
pub fn segment_number(memory: &Memory, at: u32) -> u32 {
    let mut number = [0; 4];
    memory.read(at + SEGMENT_NUMBER_AT as u32, &mut number);
    u32::from_be_bytes(number)
}

/// RFC 1071.
fn internet_checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every frame passes its own check, and a change of any byte that is compared is seen.
    #[test]
    fn changes_are_seen() {
        let frames = Frames::new(128, 1024, 1000, 7).unwrap();
        for slot in [0, 1, 511, 1023] {
            let mut frame = frames.frame(slot);
            assert_eq!(frame.len(), 128);
            assert!(frames.is_intact(&frame));
            for at in (0..PATTERN_AT - 6).chain(PATTERN_AT..128) {
                frame[at] ^= 0x01;
                assert!(
                    !frames.is_intact(&frame),
                    "a change of byte {at} was not seen"
                );
                frame[at] ^= 0x01;
            }
        }
    }

    /// The IPv4 header sums to zero, so a peer that checks it forwards the frame.
    #[test]
    fn header_checksum_is_right() {
        let frame = announcement(SENDER, sink_address(7));
        assert_eq!(internet_checksum(&frame[14..34]), 0);
        assert_eq!(frame.len(), 64);
    }

    /// A segment's IPv4 header sums to zero, and what its checksum lacks is its TCP header and payload: with them, over
    /// pseudo header and all, it is right.
    #[test]
    fn segment_is_completed_to_a_right_checksum() {
        let mut frame = segment(sink_address(0), SENDER, 1000, 7);
        assert_eq!(frame.len(), 1000);
        assert_eq!(internet_checksum(&frame[14..34]), 0);
        assert_eq!(frame[SEGMENT_NUMBER_AT..][..4], 7u32.to_be_bytes());
        let sum = internet_checksum(&frame[34..]);
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
        let mut whole = frame[26..34].to_vec();
        whole.extend([0, 6]);
        whole.extend((1000u16 - 34).to_be_bytes());
        whole.extend(&frame[34..]);
        assert_eq!(internet_checksum(&whole), 0);
    }

    /// 1,000 addresses are all in use over a ring of 1,024 slots.
    #[test]
    fn every_address_is_used() {
        let frames = Frames::new(64, 1024, 1000, 1).unwrap();
        let mut seen: Vec<Mac> = (0..1024).map(|slot| frames.destination(slot)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
    }
}
