//! The reasons for which a frame is dropped.

/// Where on its way a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Before a destination was decided: counted at the member that the frame came from.
    Ingress,
    /// On the way to one destination: counted at that member, once for each copy.
    Egress,
}

macro_rules! drops {
    ($( $variant:ident, $name:literal, $stage:ident, $why:literal; )*) => {
        /// Why a frame was dropped. The discriminant is the index of its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Drop {
            $( #[doc = $why] $variant, )*
        }

        impl Drop {
            /// Every reason, in the order of the discriminants.
            pub const ALL: &'static [Drop] = &[ $( Drop::$variant, )* ];

            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The reason's name as counters, metrics and columns show it.
            pub const fn name(self) -> &'static str {
                match self { $( Drop::$variant => $name, )* }
            }

            /// One sentence for the manual.
            pub const fn explanation(self) -> &'static str {
                match self { $( Drop::$variant => $why, )* }
            }

            /// The stage at which this reason is counted.
            pub const fn stage(self) -> Stage {
                match self { $( Drop::$variant => Stage::$stage, )* }
            }
        }
    };
}

drops! {
    Runt, "runt", Ingress, "Shorter than an Ethernet header (14 bytes).";
    Giant, "giant", Ingress, "Longer than the largest frame that this side may send.";
    BadDescriptor, "bad-descriptor", Ingress, "A descriptor pointed outside the sender's memory, or was malformed.";
    ChainTooLong, "chain-too-long", Ingress, "A chain of more descriptors than one frame may have.";
    BadOffload, "bad-offload", Ingress, "A checksum or segmentation request that does not fit the frame.";
    BadSource, "bad-source", Ingress, "The source address is zero, a group address, or the bridge's own.";
    MacSpoof, "mac-spoof", Ingress, "The source address is not the VNIC's own, and mac-nospoof is on.";
    Restricted, "restricted", Ingress, "Neither IPv4 nor IPv6 nor ARP, and the VNIC is restricted.";
    IpSpoof, "ip-spoof", Ingress, "An IP, ARP or neighbour's address that allowed-ips does not name and the VNIC was not given, and ip-nospoof is on; or what cannot be read.";
    DhcpSpoof, "dhcp-spoof", Ingress, "A DHCP client that is not the VNIC, and dhcp-nospoof is on; or what cannot be read.";
    RouterGuard, "router-guard", Ingress, "A router advertisement or a redirect, and router-guard is on; or what cannot be read.";
    DhcpGuard, "dhcp-guard", Ingress, "A message of a DHCP server, and dhcp-guard is on; or what cannot be read.";
    Firewall, "firewall", Ingress, "A rule of the VNIC's firewall does not let it out; or what cannot be read.";
    FlowLimit, "flow-limit", Ingress, "The first packet of a connection for which the VNIC's firewall has no room.";
    TcpWindow, "tcp-window", Ingress, "A TCP segment from the VNIC whose sequence numbers do not fit its connection, and some rule of the firewall names a state.";
    SourceLimit, "source-limit", Ingress, "A new source address beyond the member's limit of addresses.";
    Locked, "locked", Ingress, "The source address has no static entry at the member, and locked is on.";
    StickySource, "sticky-source", Ingress, "The source address belongs to another member and may not move.";
    VlanTag, "vlan-tag", Ingress, "A tag that this member may not send: its own untagged VLAN, VID 4095, or a stack of tags.";
    VlanDenied, "vlan-denied", Ingress, "The frame's VLAN is not allowed on the member that sent it.";
    ReservedAddress, "reserved-address", Ingress, "Sent to 01-80-C2-00-00-01 (PAUSE), which ends at the link (IEEE 802.3 31B).";
    LocalFull, "local-full", Ingress, "For the daemon, but above 1,000 a second from one member (BPDUs: 200, IGMP and MLD: 500), over 1,600 bytes, or the daemon was behind.";
    SameMember, "same-member", Ingress, "The destination is behind the member that sent the frame.";
    Private, "private", Ingress, "Sender and destination are both private members.";
    EgressVlan, "egress-vlan", Ingress, "The frame's VLAN is not allowed on the destination.";
    Mtu, "mtu", Ingress, "Longer than the destination's MTU; a bridge does not fragment.";
    NoDestination, "no-destination", Ingress, "Nobody to send it to: no other member takes this kind of frame in this VLAN.";
    VxlanSource, "vxlan-source", Ingress, "A datagram that is not from a target of its network, or not from the one behind which the inner source is, and source-check asks for it.";
    Ecn, "ecn", Ingress, "Congestion was experienced in the tunnel, and the inner packet does not know marks (RFC 6040).";
    Storm, "storm", Ingress, "Broadcast, multicast or unknown unicast above the member's rate.";
    FloodBacklog, "flood-backlog", Ingress, "Too many flooded frames are already waiting on this bridge.";
    Blocked, "blocked", Ingress, "Spanning tree keeps the member that sent the frame, or its destination, from forwarding.";
    SpanSource, "span-source", Ingress, "Sent by a span member, which only receives.";
    RxQueueFull, "rx-queue-full", Ingress, "The member sent above its maxbw or a flow's, and its queues were full or 100 ms long.";
    RxQueueSlow, "rx-queue-slow", Ingress, "The member sent above its maxbw or a flow's, and for 100 ms its frames had waited longer than 5 ms (CoDel).";
    NotReady, "not-ready", Ingress, "The bridge or its member was being changed.";
    RingFull, "ring-full", Egress, "The receiver's ring had no room, and still had none at the end of the visit.";
    PeerDown, "peer-down", Egress, "Nobody is connected at the receiver's side.";
    PeerFault, "peer-fault", Egress, "The receiver's descriptors or memory were invalid.";
    PeerSlow, "peer-slow", Egress, "Access to the receiver's memory took too long, and it gets nothing for a while.";
    TooBig, "too-big", Egress, "The frame does not fit into the receiver's buffers, or is longer than the path to the target of a tunnel.";
    SpillFull, "spill-full", Egress, "Another worker held the ring, and the bounded private queue was full.";
    KernelRefused, "kernel-refused", Egress, "The kernel did not take the frame.";
    QueueFull, "queue-full", Egress, "Above the maxbw of the member or a flow, and its queues were full or 100 ms long.";
    QueueSlow, "queue-slow", Egress, "Above the maxbw of the member or a flow, and for 100 ms frames had waited longer than 5 ms (CoDel).";
    FirewallIn, "firewall-in", Egress, "A rule of the VNIC's firewall does not let it in; or what cannot be read.";
    FlowLimitIn, "flow-limit-in", Egress, "The first packet of a connection towards the VNIC for which its firewall has no room.";
    TcpWindowIn, "tcp-window-in", Egress, "The same for a segment towards the VNIC.";
    LeaseRefused, "lease-refused", Egress, "An answer of DHCP that would give the VNIC an address that another one's allowed-ips names, or more than 64.";
    UnderlayFull, "underlay-full", Egress, "The socket of the tunnel had no room.";
    UnderlayUnreachable, "underlay-unreachable", Egress, "There was no way to the target: no route, no neighbour, or no address of the tunnel's.";
    LookupQueue, "lookup-queue", Egress, "The search is asked for the destination, and there was no room for the frame or for one more question.";
    LookupTimeout, "lookup-timeout", Egress, "The search did not say within 1 s where the destination is.";
    LookupRefused, "lookup-refused", Egress, "The search has said in the last 5 s that the destination is nowhere.";
    SegmentLimit, "segment-limit", Egress, "Software segmentation would make more frames than one visit may send.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are the public interface: distinct, lower case, and in the order of the counters.
    #[test]
    fn names_are_distinct_and_indexed() {
        for (i, d) in Drop::ALL.iter().enumerate() {
            assert_eq!(*d as usize, i);
            assert!(
                d.name()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'-'),
                "{}",
                d.name()
            );
            assert!(Drop::ALL.iter().filter(|o| o.name() == d.name()).count() == 1);
            assert!(d.explanation().ends_with('.'));
        }
    }
}
