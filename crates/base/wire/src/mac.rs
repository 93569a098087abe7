//! The 48-bit Ethernet address.

use core::fmt;
use core::str::FromStr;

/// An Ethernet address, in the order of the wire.
///
/// Its integer form ([`to_u64`](Self::to_u64)) is what an eight-byte little-endian load of the
/// address field gives after masking to 48 bits: the first byte on the wire is the *lowest* byte,
/// so the group bit is bit 0 and the local bit is bit 1. Its numeric order is therefore not the
/// order in which people sort addresses; [`Ord`] on `MacAddr` is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// `00:00:00:00:00:00`, never a valid source.
    pub const ZERO: Self = Self([0; 6]);
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// Mask of the bits that [`to_u64`](Self::to_u64) can set.
    pub const MASK: u64 = 0xffff_ffff_ffff;

    /// The address as the low 48 bits of a little-endian load: the first byte is the lowest.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// The inverse of [`to_u64`](Self::to_u64); bits 48 and up are ignored.
    #[inline]
    pub const fn from_u64(v: u64) -> Self {
        let [a, b, c, d, e, f, _, _] = v.to_le_bytes();
        Self([a, b, c, d, e, f])
    }

    /// Group address (multicast or broadcast): the lowest bit of the first byte.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// All ones.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        self.to_u64() == Self::MASK
    }

    /// All zeros.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.to_u64() == 0
    }

    /// Locally administered: the second bit of the first byte.
    #[inline]
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// An address that a frame may bear as source: neither group nor zero.
    #[inline]
    pub const fn is_unicast_source(self) -> bool {
        !self.is_multicast() && !self.is_zero()
    }

    /// One of the sixteen reserved link-local group addresses `01-80-C2-00-00-0X` that a bridge
    /// never forwards (IEEE 802.1Q-2018, table 8-1).
    #[inline]
    pub const fn is_reserved_link_local(self) -> bool {
        reserved_link_local(self.to_u64())
    }
}

/// [`MacAddr::is_reserved_link_local`] on the integer form of an address.
#[inline]
pub const fn reserved_link_local(mac: u64) -> bool {
    mac & 0xf0ff_ffff_ffff == 0x0000_00c2_8001
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not an Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseMacError;

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an Ethernet address: expected six two-digit hexadecimal bytes separated by colons, like 02:00:5e:10:00:01")
    }
}

impl core::error::Error for ParseMacError {}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Six two-digit hexadecimal bytes (either case) separated by colons, and nothing else.
    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let mut mac = [0u8; 6];
        let mut parts = s.split(':');
        for byte in &mut mac {
            let part = parts.next().ok_or(ParseMacError)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        match parts.next() {
            None => Ok(Self(mac)),
            Some(_) => Err(ParseMacError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    /// The integer form is the little-endian load that the data path does, and is reversible.
    #[test]
    fn integer_form_is_the_masked_load() {
        let mac = MacAddr([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(mac.to_u64(), 0x5544_3322_1102);
        assert_eq!(MacAddr::from_u64(0xabcd_5544_3322_1102), mac);
        assert_eq!(MacAddr::BROADCAST.to_u64(), MacAddr::MASK);
    }

    /// Each predicate says yes and no where it should.
    #[test]
    fn predicates() {
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(MacAddr::ZERO.is_zero() && !MacAddr::ZERO.is_unicast_source());
        let v: MacAddr = "02:00:00:00:00:01".parse().unwrap();
        assert!(v.is_local() && v.is_unicast_source() && !v.is_broadcast() && !v.is_zero());
        for last in 0..=255u8 {
            let mac = MacAddr([1, 0x80, 0xc2, 0, 0, last]);
            assert_eq!(mac.is_reserved_link_local(), last < 16, "{mac}");
        }
        assert!(!MacAddr([1, 0x80, 0xc2, 0, 1, 0]).is_reserved_link_local());
        assert!(!MacAddr([0, 0x80, 0xc2, 0, 0, 0]).is_reserved_link_local());
    }

    /// Text round trips, and every near miss is refused.
    #[test]
    fn text_is_strict() {
        let mac: MacAddr = "AA:bb:0c:00:09:ff".parse().unwrap();
        assert_eq!(mac.to_string(), "aa:bb:0c:00:09:ff");
        for bad in [
            "",
            "aa:bb:cc:dd:ee",
            "aa:bb:cc:dd:ee:ff:00",
            "aa:bb:cc:dd:ee:ff:",
            "a:bb:cc:dd:ee:ff",
            "aa-bb-cc-dd-ee-ff",
            "+a:bb:cc:dd:ee:ff",
            " aa:bb:cc:dd:ee:ff",
            "aa:bb:cc:dd:ee:fg",
            "aabb.ccdd.eeff",
            "aa:bb:cc:dd:ee:fé",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad:?}");
        }
    }
}
