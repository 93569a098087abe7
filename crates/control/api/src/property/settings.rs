//! Properties as they hold: what the data plane takes of an object.

use std::net::IpAddr;

use super::{Properties, Scope};
use crate::firewall::FirewallSettings;
use crate::flow::Priority;
use crate::guard::{GuardSettings, Macs};
use crate::option::Value;
use crate::rss::RssWeights;
use crate::snoop::{SnoopBridge, SnoopMember};
use crate::stp::{StpBridge, StpMember};
use crate::vlan::VlanSet;

/// Every property of a member of a bridge, with the value that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSettings {
    /// Drop frames whose source is not the member's own address.
    pub mac_nospoof: bool,
    /// Further addresses of its own.
    pub macs: Macs,
    /// What it gives others is theirs.
    pub trusted: bool,
    /// Learn sources.
    pub learn: bool,
    /// Gets frames of unknown destination.
    pub discover: bool,
    /// Its learned addresses do not move.
    pub sticky: bool,
    /// Only sources with a static entry at it may send.
    pub locked: bool,
    /// Other sources are learned, though they may not.
    pub mab: bool,
    /// Questions for addresses behind it are answered for it.
    pub neigh_suppress: bool,
    /// Exchanges nothing with other private members.
    pub private: bool,
    /// It is a VNIC.
    pub host: bool,
    /// Gets a copy of everything, sends nothing.
    pub span: bool,
    /// VLAN of untagged frames; `None`: they are dropped.
    pub vlan: Option<u16>,
    /// VLANs that it sees with a tag.
    pub tagged: VlanSet,
    /// Addresses learned on it at most; 0: no limit of its own.
    pub addresses_max: u32,
    /// Moves of addresses to it at once; 0: no limit.
    pub move_budget: u32,
    /// Broadcast, multicast and unknown unicast frames a second from it; 0: no limit.
    pub storm_limit: u32,
    /// Megabits a second towards it; 0: no limit.
    pub maxbw: u32,
    /// Its place among those whose frames wait.
    pub priority: Priority,
    /// Sends IPv4, IPv6 and ARP only.
    pub restricted: bool,
    /// What its packets are held against.
    pub guard: GuardSettings,
    /// Rules for its packets and for those to it.
    pub firewall: FirewallSettings,
    /// Largest packet, in bytes; `None`: the device's.
    pub mtu: Option<u32>,
    /// Notifications a second and ring; 0: no limit.
    pub intr_rate: u32,
    /// Polling after a ring ran empty, in microseconds; `None`: as the attachment needs.
    pub spin_us: Option<u32>,
    /// Its part in spanning tree.
    pub stp: StpMember,
    /// Its part in multicast snooping.
    pub snoop: SnoopMember,
    /// Its own address is learned like any other, not fixed.
    pub standby: bool,
    /// Addresses that its interface is given at most, before it receives all frames.
    pub filters_max: u32,
    /// Receive rings of the uplink's interface for itself.
    pub rx_rings: u32,
    /// How its rings share what it gets.
    pub rss_weights: RssWeights,
    /// Whether its peer's memory may have pages of 1 GiB; `None`: as its zone has it.
    pub huge_1g: Option<bool>,
}

impl MemberSettings {
    /// What holds for a member of this kind with these properties set.
    pub fn of(scope: Scope, set: &Properties) -> Self {
        let tagged = match set.effective(scope, "tagged") {
            Some(Value::Vlans(vlans)) => vlans,
            _ => VlanSet::default(),
        };
        let number = |name| set.number(scope, name).unwrap_or(0);
        Self {
            mac_nospoof: set.flag(scope, "mac-nospoof"),
            macs: Macs::of(scope, set),
            trusted: set.flag(scope, "trusted"),
            learn: set.flag(scope, "learn"),
            discover: set.flag(scope, "discover"),
            sticky: set.flag(scope, "sticky"),
            locked: set.flag(scope, "locked"),
            mab: set.flag(scope, "mab"),
            neigh_suppress: set.flag(scope, "neigh-suppress"),
            private: set.flag(scope, "private"),
            host: scope == Scope::Vnic,
            span: set.flag(scope, "span"),
            vlan: u16::try_from(number("vlan")).ok().filter(|&vlan| vlan != 0),
            tagged,
            addresses_max: number("addresses-max"),
            move_budget: number("move-budget"),
            storm_limit: number("storm-limit"),
            maxbw: number("maxbw"),
            priority: Priority::of(scope, set),
            restricted: set.flag(scope, "restricted"),
            guard: GuardSettings::of(scope, set),
            firewall: FirewallSettings::of(scope, set),
            mtu: set.number(scope, "mtu"),
            intr_rate: number("intr-rate"),
            spin_us: set.number(scope, "spin-us"),
            stp: StpMember::of(scope, set),
            snoop: SnoopMember::of(scope, set),
            standby: set.effective(scope, "state") == Some(Value::Text("standby".into())),
            filters_max: number("filters-max"),
            rx_rings: number("rxrings"),
            rss_weights: RssWeights::of(scope, set),
            huge_1g: match set.effective(scope, "huge-1g") {
                Some(Value::Flag(flag)) => Some(flag),
                _ => None,
            },
        }
    }

    /// Groups that it is in at all times, each with its VLAN on a bridge that filters VLANs or not; `None`: the member has no such VLAN.
    pub fn static_groups(&self, filters: bool) -> impl Iterator<Item = (Option<u16>, IpAddr)> + '_ {
        self.snoop.groups.iter().map(move |(vlan, group)| {
            let vlan = match filters {
                true => vlan.or(self.vlan).filter(|&vlan| self.has_vlan(vlan)),
                false => vlan.is_none().then_some(0),
            };
            (vlan, group)
        })
    }

    /// Whether it sends or receives frames of a VLAN.
    fn has_vlan(&self, vlan: u16) -> bool {
        self.vlan == Some(vlan) || self.tagged.contains(vlan)
    }

    /// Every VLAN whose frames it sends or receives.
    pub fn vlans(&self) -> VlanSet {
        VlanSet::of(self.tagged.iter().chain(self.vlan))
    }
}

/// Every property of a bridge, with the value that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeSettings {
    /// Seconds until an address that was not seen again is forgotten; 0: never.
    pub ageing_s: u32,
    /// Addresses in the forwarding table at most.
    pub addresses_max: u32,
    /// Whether members are confined to their VLANs.
    pub vlan_filtering: bool,
    /// Its spanning tree, if it has one.
    pub stp: Option<StpBridge>,
    /// How it snoops, if it does.
    pub snoop: Option<SnoopBridge>,
}

impl BridgeSettings {
    /// What holds for a bridge with these properties set.
    pub fn of(set: &Properties) -> Self {
        let number = |name| set.number(Scope::Bridge, name).unwrap_or(0);
        Self {
            ageing_s: number("ageing"),
            addresses_max: number("addresses-max"),
            vlan_filtering: set.flag(Scope::Bridge, "vlan-filtering"),
            stp: set.flag(Scope::Bridge, "stp").then(|| StpBridge::of(set)),
            snoop: set
                .flag(Scope::Bridge, "multicast-snooping")
                .then(|| SnoopBridge::of(set)),
        }
    }
}
