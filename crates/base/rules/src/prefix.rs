//! An IP address and how many of its bits count.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// Why a text is not a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PrefixError {
    /// Neither an address nor a prefix.
    #[error("neither an IP address nor a prefix such as 10.1.0.0/16")]
    Malformed,
    /// An address with a prefix length: it could mean the address or the network.
    #[error("bits beyond the prefix: name the address alone, or the prefix")]
    HostBits,
}

/// An IP address whose first bits count; the others are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// How many of its bits count.
    pub bits: u8,
}

impl Prefix {
    /// Whether it is the whole address.
    pub fn is_address(&self) -> bool {
        self.bits == width(self.address)
    }

    /// The first and the last address of it as numbers. Those of IPv4 fill the low 32 bits.
    pub fn range(&self) -> (u128, u128) {
        let first = match self.address {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let free = width(self.address).saturating_sub(self.bits);
        let others = 1u128.checked_shl(free.into()).map_or(u128::MAX, |n| n - 1);
        (first, first | others)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl FromStr for Prefix {
    type Err = PrefixError;
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Malformed)?;
        let most = width(address);
        let bits = match bits {
            Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => bits.parse().ok(),
            Some(_) => None,
            None => Some(most),
        };
        let bits = bits.filter(|bits| *bits <= most);
        let bits: u8 = bits.ok_or(PrefixError::Malformed)?;
        let whole = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        match whole.checked_shl(bits.into()) {
            Some(beyond) if beyond != 0 => Err(PrefixError::HostBits),
            _ => Ok(Self { address, bits }),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_address() {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefixes read back; what means two things or is none is refused.
    #[test]
    fn prefixes() {
        for (text, canonical, range) in [
            ("10.1.0.0/16", "10.1.0.0/16", (0x0a01_0000, 0x0a01_ffff)),
            ("10.1.0.1/32", "10.1.0.1", (0x0a01_0001, 0x0a01_0001)),
            ("0.0.0.0/0", "0.0.0.0/0", (0, 0xffff_ffff)),
            ("::/0", "::/0", (0, u128::MAX)),
            ("FD00::1", "fd00::1", (0xfd00 << 112 | 1, 0xfd00 << 112 | 1)),
        ] {
            let prefix: Prefix = text.parse().expect(text);
            assert_eq!(prefix.to_string(), canonical);
            assert_eq!(prefix.range(), range, "{text}");
        }
        for text in ["10.1.0.1/16", "fd00::1/64", "1.0.0.0/0"] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError::HostBits), "{text}");
        }
        for text in [
            "",
            "ten",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "1.2.3",
        ] {
            assert_eq!(
                text.parse::<Prefix>(),
                Err(PrefixError::Malformed),
                "{text}"
            );
        }
    }
}
