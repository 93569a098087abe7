//! What hosts say to servers and routers, and to each other as routers.

use crate::dhcp;
use crate::ether::{self, proto};

/// Type of a router solicitation (RFC 4861, section 4.1).
pub const SOLICITATION: u8 = 133;
/// Type of a router advertisement (RFC 4861, section 4.2).
pub const ADVERTISEMENT: u8 = 134;

/// What a packet is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// DHCP, to a server.
    Leases,
    /// A router solicitation.
    Solicitation,
    /// A router advertisement.
    Advertisement,
}

/// Reads which of these a packet of this Ethernet type is, whether it holds together or not; `None`: something else. Of a packet in parts the
/// first is.
pub fn about(kind: u16, packet: &[u8]) -> Option<About> {
    let word = |at: usize| {
        let word = packet.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_be_bytes(*word))
    };
    match (kind, packet.get(9), packet.get(6)) {
        (ether::IPV4, Some(&proto::UDP), _) => {
            let header = usize::from(packet.first()? & 0xf).checked_mul(4)?;
            let is_first = word(6)? & 0x1fff == 0;
            let is_it = is_first && word(header.checked_add(2)?) == Some(dhcp::SERVER);
            is_it.then_some(About::Leases)
        }
        (ether::IPV6, _, Some(&proto::UDP)) => {
            (word(42) == Some(dhcp::SERVER6)).then_some(About::Leases)
        }
        (ether::IPV6, _, Some(&proto::ICMPV6)) => match *packet.get(40)? {
            SOLICITATION => Some(About::Solicitation),
            ADVERTISEMENT => Some(About::Advertisement),
            _ => None,
        },
        _ => None,
    }
}
