//! The Toeplitz hash of receive side scaling.
//!
//! Source: Microsoft, "RSS Hashing Types" and "Verifying the RSS Hash Calculation", whose vectors
//! are the tests. The input is addresses and ports as they stand in the packet, source first.
//!
//! The hash is linear: a table holds, for each nibble of the input, what each of its sixteen values
//! adds. One table is 4,608 bytes; make one a key, not one a port.

/// Bytes of a key.
pub const KEY: usize = 40;
/// Longest input: two IPv6 addresses and two ports.
pub const INPUT_MAX: usize = 36;

/// The key that Microsoft publishes for verification and nearly everybody uses.
pub const MICROSOFT_KEY: [u8; KEY] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// A key, made ready.
#[derive(Clone)]
pub struct Toeplitz {
    nibbles: [[[u32; 16]; 2]; INPUT_MAX],
}

impl Toeplitz {
    /// Makes the table of a key.
    pub fn new(key: &[u8; KEY]) -> Self {
        let mut nibbles = [[[0u32; 16]; 2]; INPUT_MAX];
        for (windows, tables) in key.windows(5).zip(&mut nibbles) {
            let window = windows
                .iter()
                .fold(0u64, |acc, byte| acc << 8 | u64::from(*byte));
            for (half, table) in (0u32..).zip(tables) {
                for (value, entry) in (0u32..).zip(table) {
                    for bit in 0..4u32 {
                        if value & (8 >> bit) != 0 {
                            let shift = 8u32.wrapping_sub(half.wrapping_mul(4).wrapping_add(bit));
                            *entry ^= (window >> shift) as u32;
                        }
                    }
                }
            }
        }
        Self { nibbles }
    }

    /// The hash of `input`; bytes after [`INPUT_MAX`] do not count.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let mut hash = 0;
        for ([high, low], byte) in self.nibbles.iter().zip(input) {
            let pick = |table: &[u32; 16], n: u8| table.get(usize::from(n & 15)).copied();
            hash ^= pick(high, byte >> 4).unwrap_or(0) ^ pick(low, *byte).unwrap_or(0);
        }
        hash
    }

    /// The hash of an IPv4 packet's addresses and ports.
    #[inline]
    pub fn v4(&self, src: [u8; 4], dst: [u8; 4], ports: Option<(u16, u16)>) -> u32 {
        let mut input = [0; 12];
        let len = fill(&mut input, &src, &dst, ports);
        self.hash(input.get(..len).unwrap_or(&[]))
    }

    /// The hash of an IPv6 packet's addresses and ports.
    #[inline]
    pub fn v6(&self, src: [u8; 16], dst: [u8; 16], ports: Option<(u16, u16)>) -> u32 {
        let mut input = [0; INPUT_MAX];
        let len = fill(&mut input, &src, &dst, ports);
        self.hash(input.get(..len).unwrap_or(&[]))
    }
}

/// Writes source, destination and the two ports; returns how much of `input` counts.
#[inline]
fn fill(input: &mut [u8], src: &[u8], dst: &[u8], ports: Option<(u16, u16)>) -> usize {
    let (from, to) = ports.unwrap_or((0, 0));
    let ends = from.to_be_bytes().into_iter().chain(to.to_be_bytes());
    let bytes = src.iter().chain(dst).copied().chain(ends);
    for (to, byte) in input.iter_mut().zip(bytes) {
        *to = byte;
    }
    match ports {
        Some(_) => input.len(),
        None => input.len().saturating_sub(4),
    }
}

impl Default for Toeplitz {
    /// With [`MICROSOFT_KEY`].
    fn default() -> Self {
        Self::new(&MICROSOFT_KEY)
    }
}

impl core::fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    fn v4(dst: &str, dport: u16, src: &str, sport: u16) -> (u32, u32) {
        let octets = |s: &str| s.parse::<Ipv4Addr>().unwrap().octets();
        let rss = Toeplitz::default();
        let (src, dst) = (octets(src), octets(dst));
        (
            rss.v4(src, dst, None),
            rss.v4(src, dst, Some((sport, dport))),
        )
    }

    fn v6(dst: &str, dport: u16, src: &str, sport: u16) -> (u32, u32) {
        let octets = |s: &str| s.parse::<Ipv6Addr>().unwrap().octets();
        let rss = Toeplitz::default();
        let (src, dst) = (octets(src), octets(dst));
        (
            rss.v6(src, dst, None),
            rss.v6(src, dst, Some((sport, dport))),
        )
    }

    /// The five IPv4 vectors that Microsoft publishes: addresses alone, and with TCP ports.
    #[test]
    fn microsoft_vectors_v4() {
        let got = [
            v4("161.142.100.80", 1766, "66.9.149.187", 2794),
            v4("65.69.140.83", 4739, "199.92.111.2", 14230),
            v4("12.22.207.184", 38024, "24.19.198.95", 12898),
            v4("209.142.163.6", 2217, "38.27.205.30", 48228),
            v4("202.188.127.2", 1303, "153.39.163.191", 44251),
        ];
        let want = [
            (0x323e_8fc2, 0x51cc_c178),
            (0xd718_262a, 0xc626_b0ea),
            (0xd2d0_a5de, 0x5c2b_394a),
            (0x8298_9176, 0xafc7_327f),
            (0x5d18_09c5, 0x10e8_28a2),
        ];
        assert_eq!(got, want);
    }

    /// The three IPv6 vectors that Microsoft publishes.
    #[test]
    fn microsoft_vectors_v6() {
        let got = [
            v6("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794),
            v6("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230),
            v6(
                "fe80::200:f8ff:fe21:67cf",
                38024,
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
            ),
        ];
        let want = [
            (0x2cc1_8cd5, 0x4020_7d3d),
            (0x0f0c_461c, 0xdde5_1bbf),
            (0x4b61_e985, 0x02d1_feef),
        ];
        assert_eq!(got, want);
    }
}
