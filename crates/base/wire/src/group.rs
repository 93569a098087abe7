//! Multicast groups.

use core::net::{IpAddr, Ipv6Addr};

/// Whether an address is a group that has members: everybody gets 224.0.0.0/24, ff02::1 and what is narrower than a link
/// (RFC 4541, 2.1.2 and 3), so nobody joins them.
pub fn has_members(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => {
            let [a, b, c, _] = group.octets();
            group.is_multicast() && [a, b, c] != [224, 0, 0]
        }
        IpAddr::V6(group) => {
            let scope = group.octets()[1] & 0xf;
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            group.is_multicast() && scope > 1 && group != all_nodes
        }
    }
}
