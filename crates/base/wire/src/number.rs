//! IP addresses as numbers, to count through ranges of them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of an address.
pub fn of(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The address with a number, of the family of another one; of a number that is none of the family, the last address.
pub fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number leads back to its address, and none beyond a family to another family's.
    #[test]
    fn numbers_lead_back() {
        for text in ["0.0.0.0", "10.0.0.255", "255.255.255.255", "::", "fd00::ff"] {
            let ip: IpAddr = text.parse().expect("an address");
            assert_eq!(address(of(ip), ip), ip);
        }
        let v4 = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(address(1 << 32, v4), IpAddr::from([255; 4]));
    }
}
