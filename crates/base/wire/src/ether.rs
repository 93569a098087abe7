//! Ether types, VLAN identifiers and tags, IP protocol numbers.

use core::fmt;

/// Bytes of an untagged Ethernet header.
pub const HEADER: usize = 14;
/// Bytes of one 802.1Q or 802.1ad tag.
pub const TAG: usize = 4;
/// Smallest Ethernet frame without its check sequence; shorter ones are padded on a wire.
pub const FRAME_MIN: usize = 60;
/// Values of the type field below this are lengths (IEEE 802.3, clause 3.2.6).
pub const TYPE_MIN: u16 = 0x0600;

/// IPv4.
pub const IPV4: u16 = 0x0800;
/// ARP.
pub const ARP: u16 = 0x0806;
/// IPv6.
pub const IPV6: u16 = 0x86dd;
/// 802.1Q customer tag.
pub const VLAN: u16 = 0x8100;
/// An Ethernet frame in a tunnel (transparent Ethernet bridging).
pub const TEB: u16 = 0x6558;
/// 802.1ad service tag.
pub const QINQ: u16 = 0x88a8;

/// IP protocol numbers and IPv6 next headers (IANA "Protocol Numbers").
pub mod proto {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// IPv4 in IP.
    pub const IPV4: u8 = 4;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// GRE.
    pub const GRE: u8 = 47;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Encapsulating security payload.
    pub const ESP: u8 = 50;
    /// Authentication header.
    pub const AH: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options.
    pub const DEST_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Is this the TPID of a VLAN tag that windlass knows ([`VLAN`] or [`QINQ`])?
#[inline]
pub const fn is_tag(ethertype: u16) -> bool {
    ethertype == VLAN || ethertype == QINQ
}

/// A VLAN identifier, 0 to 4,095.
///
/// 0 in a tag means "priority only, no VLAN" and 4,095 is reserved (IEEE 802.1Q-2018, table 9-2):
/// both can be on the wire, neither can be configured; see [`is_usable`](Self::is_usable).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VlanId(u16);

impl VlanId {
    /// VID 0: a priority tag, which names no VLAN.
    pub const PRIORITY: Self = Self(0);
    /// VID 1, the customary default.
    pub const DEFAULT: Self = Self(1);
    /// VID 4,095, never to be configured or forwarded.
    pub const RESERVED: Self = Self(4095);
    /// Number of identifiers, for tables that one indexes.
    pub const COUNT: usize = 4096;

    /// `None` above 4,095.
    #[inline]
    pub const fn new(vid: u16) -> Option<Self> {
        if vid <= 4095 { Some(Self(vid)) } else { None }
    }

    /// The identifier in the low twelve bits of a tag's control word.
    #[inline]
    pub const fn of_tci(tci: u16) -> Self {
        Self(tci & 0x0fff)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// 1 to 4,094: may be configured, and a frame may belong to it.
    #[inline]
    pub const fn is_usable(self) -> bool {
        self.0 != 0 && self.0 != 4095
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanId({})", self.0)
    }
}

/// The control word of a tag: priority (3 bits), drop eligible (1), identifier (12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Tci(pub u16);

impl Tci {
    /// Puts a control word together; `priority` is cut to three bits.
    #[inline]
    pub const fn new(priority: u8, drop_eligible: bool, vid: VlanId) -> Self {
        Self(((priority & 7) as u16) << 13 | (drop_eligible as u16) << 12 | vid.0)
    }

    /// The VLAN identifier.
    #[inline]
    pub const fn vid(self) -> VlanId {
        VlanId::of_tci(self.0)
    }

    /// The priority, 0 to 7.
    #[inline]
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// The drop eligible indicator.
    #[inline]
    pub const fn drop_eligible(self) -> bool {
        self.0 & 0x1000 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The identifier's range and the two values that are not VLANs.
    #[test]
    fn vlan_ids() {
        assert_eq!(VlanId::new(4096), None);
        let usable = (0..=4095).filter_map(VlanId::new).filter(|v| v.is_usable());
        assert_eq!(usable.count(), 4094);
        assert!(!VlanId::PRIORITY.is_usable() && !VlanId::RESERVED.is_usable());
    }

    /// A control word's fields do not overlap.
    #[test]
    fn tci_fields() {
        let tci = Tci::new(5, true, VlanId::new(0xabc).unwrap());
        assert_eq!(tci.0, 0xbabc);
        assert_eq!(
            (tci.priority(), tci.drop_eligible(), tci.vid().get()),
            (5, true, 0xabc)
        );
        assert_eq!(Tci::new(8, false, VlanId::DEFAULT).0, 1);
    }
}
