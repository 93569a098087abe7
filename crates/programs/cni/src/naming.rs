//! Names of VNICs.

use windlass_api::Name;

use crate::failure::{Code, Failure};

/// The name of the VNIC behind an interface of a container in a network: `c` and twelve letters that follow from the three.
///
/// # Errors
/// None is expected: each such name is one.
pub fn vnic_name(network: &str, container: &str, interface: &str) -> Result<Name, Failure> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    // None of the three has a zero byte.
    for byte in [network, container, interface].join("\0").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    // FNV-1a leaves its high bits to few of the last bytes: mixed as in MurmurHash3.
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^= hash >> 33;
    let mut name = String::from("c");
    for _ in 0..12 {
        name.push(char::from(b'a' + (hash % 26) as u8));
        hash /= 26;
    }
    name.parse()
        .map_err(|error| Failure::new(Code::Config, format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Each place has a name of its own, always the same.
    #[test]
    fn names_differ() {
        let name = |network: &str, container: &str, interface: &str| {
            let name = vnic_name(network, container, interface).expect("a name");
            name.to_string()
        };
        assert_eq!(name("net", "abc", "eth0"), name("net", "abc", "eth0"));
        assert_eq!(name("net", "abc", "eth0").len(), 13);
        let all: HashSet<_> = (0..10_000)
            .map(|n| name("net", &format!("{n:x}"), "eth0"))
            .chain([name("ne", "tabc", "eth0"), name("net", "abc", "eth1")])
            .collect();
        assert_eq!(all.len(), 10_002);
    }
}
