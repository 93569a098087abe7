//! What a generated frame carries behind its UDP header.
//!
//! ```text
//! 0        4        6      8           13          18
//! | "wlgs" | stream | flow |  number   |  time, ns |    big-endian
//! ```
//! The smallest Ethernet frame (60 bytes) has room for it behind IPv4 and UDP.

/// Bytes of a mark.
pub(crate) const MARK_BYTES: usize = 18;
/// Bytes of a frame in which its mark lies: Ethernet, a tag, IPv6, UDP and the mark.
pub(crate) const HEAD_BYTES: usize = 14 + 4 + 40 + 8 + MARK_BYTES;

const MAGIC: [u8; 4] = *b"wlgs";
/// Numbers and times are known modulo this.
const MODULUS: u64 = 1 << 40;

/// Who sent a frame, which one it is, and when it was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The generator.
    pub(crate) stream: u16,
    /// Number of its flow.
    pub(crate) flow: u16,
    /// Number of the frame in its stream.
    pub(crate) number: u64,
    /// When it was due.
    pub(crate) time_ns: u64,
}

impl Mark {
    /// As it lies in a frame.
    pub(crate) fn bytes(self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        let [_, _, _, number @ ..] = self.number.to_be_bytes();
        let [_, _, _, time @ ..] = self.time_ns.to_be_bytes();
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.stream.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.flow.to_be_bytes());
        bytes[8..13].copy_from_slice(&number);
        bytes[13..].copy_from_slice(&time);
        bytes
    }

    /// The mark of a frame, of which at most [`HEAD_BYTES`] are looked at: with one tag or none, over IPv4 without options or IPv6.
    pub(crate) fn of(frame: &[u8]) -> Option<Mark> {
        let packet = match frame.get(12..14)? {
            [0x81, 0x00] => frame.get(16..)?,
            _ => frame.get(12..)?,
        };
        let udp = match packet {
            [0x08, 0x00, 0x45, rest @ ..] if rest.get(8) == Some(&17) => rest.get(19..)?,
            [0x86, 0xdd, rest @ ..] if rest.get(6) == Some(&17) => rest.get(40..)?,
            _ => return None,
        };
        let mark: &[u8; MARK_BYTES] = udp.get(8..)?.first_chunk()?;
        let wide = |at: usize| {
            mark[at..at + 5]
                .iter()
                .fold(0, |n, byte| n << 8 | u64::from(*byte))
        };
        let half = |at: usize| u16::from_be_bytes([mark[at], mark[at + 1]]);
        (mark[..4] == MAGIC).then(|| Mark {
            stream: half(4),
            flow: half(6),
            number: wide(8),
            time_ns: wide(13),
        })
    }

    /// How long it has been due at this time.
    pub(crate) fn age_ns(self, now_ns: u64) -> u64 {
        now_ns.wrapping_sub(self.time_ns) % MODULUS
    }

    /// Its number behind another one; negative before it.
    pub(crate) fn behind(self, number: u64) -> i64 {
        let ahead = self.number.wrapping_sub(number) % MODULUS;
        match ahead < MODULUS / 2 {
            true => ahead as i64,
            false => ahead as i64 - MODULUS as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ages and distances hold across the end of the 40 bits.
    #[test]
    fn forty_bits_wrap() {
        let mark = |number, time_ns| Mark {
            stream: 0,
            flow: 0,
            number,
            time_ns,
        };
        assert_eq!(mark(1, 2).behind(MODULUS - 3), 4);
        assert_eq!(mark(MODULUS - 3, 2).behind(1), -4);
        assert_eq!(mark(0, MODULUS - 5).age_ns(3 * MODULUS + 2), 7);
    }
}
