//! The VXLAN header (RFC 7348, section 5).

use core::fmt;

/// Bytes of the header.
pub const BYTES: usize = 8;
/// The port that IANA assigned.
pub const PORT: u16 = 4789;
/// The I flag: the network identifier is valid.
const I: u8 = 0x08;

/// A VXLAN network identifier: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vni(u32);

impl Vni {
    /// The largest.
    pub const MAX: u32 = 0xff_ffff;

    /// None above [`Vni::MAX`].
    pub const fn new(number: u32) -> Option<Vni> {
        if number <= Vni::MAX {
            Some(Vni(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header of a network's datagrams.
pub const fn encode(vni: Vni) -> [u8; BYTES] {
    let [_, a, b, c] = vni.0.to_be_bytes();
    [I, 0, 0, 0, a, b, c, 0]
}

/// The network of a datagram's payload. `None` if it is shorter than the header or the I flag is not set; other flags and
/// reserved bits are ignored.
#[inline]
pub const fn decode(payload: &[u8]) -> Option<Vni> {
    match payload.first_chunk::<BYTES>() {
        Some([flags, _, _, _, a, b, c, _]) if *flags & I != 0 => {
            Some(Vni(u32::from_be_bytes([0, *a, *b, *c])))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every identifier comes back; reserved bits change nothing; without the I flag or a whole header there is none.
    #[test]
    fn headers_round_trip() {
        for n in [0, 1, 23, 0x12_3456, Vni::MAX] {
            let vni = Vni::new(n).expect("24 bits");
            let mut bytes = encode(vni);
            assert_eq!(
                bytes,
                [8, 0, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8, 0]
            );
            assert_eq!(decode(&bytes), Some(vni));
            for at in [1, 2, 3, 7] {
                bytes[at] = 0xff;
            }
            bytes[0] = 0xff;
            assert_eq!(decode(&bytes), Some(vni), "reserved bits");
            assert_eq!(decode(&bytes[..7]), None);
            bytes[0] = 0xf7;
            assert_eq!(decode(&bytes), None);
        }
        assert_eq!(Vni::new(Vni::MAX + 1), None);
    }
}
