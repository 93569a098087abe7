//! Multicast snooping, as properties have it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use windlass_wire::group::has_members;

use crate::guard::{AllowedError, entries, shown};
use crate::option::{OptionSpec, Value, ValueKind};
use crate::property::{Properties, PropertySpec, Scope};

const fn row(
    scopes: &'static [Scope],
    name: &'static str,
    kind: ValueKind,
    (unit, default): (&'static str, &'static str),
    (min, max): (u64, u64),
    sentence: &'static str,
) -> PropertySpec {
    let option = OptionSpec {
        name,
        kind,
        unit,
        default,
        min,
        max,
        sentence,
    };
    PropertySpec {
        scopes,
        tenant: false,
        option,
    }
}

const BRIDGE: &[Scope] = &[Scope::Bridge];
const MEMBER: &[Scope] = &[Scope::Uplink, Scope::Vnic];
const ROUTERS: ValueKind = ValueKind::Words(&["off", "learn", "on"]);

pub(crate) const SNOOPING: PropertySpec = row(
    BRIDGE,
    "multicast-snooping",
    ValueKind::Flag,
    ("", "off"),
    (0, 0),
    "Send multicast to members that asked for its group by IGMP or MLD, and to routers; everybody gets it while nobody queries.",
);
pub(crate) const QUERIER: PropertySpec = row(
    BRIDGE,
    "multicast-querier",
    ValueKind::Flag,
    ("", "off"),
    (0, 0),
    "Ask members for their groups where no other querier does, with IGMPv3 and MLDv2.",
);
pub(crate) const QUERIER_ADDRESS: PropertySpec = row(
    BRIDGE,
    "multicast-querier-address",
    ValueKind::Ipv4,
    ("", "0.0.0.0"),
    (0, 0),
    "Source of queries over IPv4; the lowest on the link is the querier; 0.0.0.0: any other querier goes first.",
);
pub(crate) const INTERVAL: PropertySpec = row(
    BRIDGE,
    "multicast-query-interval",
    ValueKind::Number,
    ("s", "125"),
    (2, 31_744),
    "Time from one query to the next; a membership that is not renewed lasts twice as long, and 10 s.",
);
pub(crate) const UNKNOWN: PropertySpec = row(
    BRIDGE,
    "multicast-unknown",
    ValueKind::Words(&["flood", "routers"]),
    ("", "flood"),
    (0, 0),
    "Who gets multicast to a group that nobody has asked for: everybody, or routers only.",
);
pub(crate) const GROUPS_MAX: PropertySpec = row(
    BRIDGE,
    "multicast-groups-max",
    ValueKind::Number,
    ("memberships", "4096"),
    (1, 32_768),
    "Groups of all members together; when they are too many, the member with most loses one.",
);
pub(crate) const ROUTER_VNIC: PropertySpec = row(
    &[Scope::Vnic],
    "multicast-router",
    ROUTERS,
    ("", "off"),
    (0, 0),
    "Whether multicast routers are behind the member; learn: while one is heard; off: its queries, PIM and advertisements are dropped.",
);
pub(crate) const ROUTER_UPLINK: PropertySpec = row(
    &[Scope::Uplink],
    "multicast-router",
    ROUTERS,
    ("", "learn"),
    (0, 0),
    "Whether multicast routers are behind the member; learn: while one is heard; off: its queries, PIM and advertisements are dropped.",
);
pub(crate) const FAST_LEAVE: PropertySpec = row(
    MEMBER,
    "multicast-fast-leave",
    ValueKind::Flag,
    ("", "off"),
    (0, 0),
    "A leave ends a group at once, without asking whether somebody else behind the member receives it.",
);
pub(crate) const MEMBER_GROUPS_MAX: PropertySpec = row(
    MEMBER,
    "multicast-groups-max",
    ValueKind::Number,
    ("memberships", "256"),
    (0, 32_768),
    "Groups of the member, in all VLANs together; 0: only the limit of the bridge.",
);

pub(crate) const GROUPS: PropertySpec = row(
    MEMBER,
    "multicast-groups",
    ValueKind::Groups,
    ("", ""),
    (0, 0),
    "At most 32 groups that a bridge that snoops always sends the member (bridge mdb add), or none: GROUP in its untagged VLAN, or VLAN/GROUP.",
);

/// Groups that a member is in at all times: "239.1.1.1,10/ff05::1:3".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaticGroups(Vec<(Option<u16>, IpAddr)>);

impl StaticGroups {
    /// What holds for a member of this kind with these properties set.
    pub fn of(scope: Scope, set: &Properties) -> Self {
        match set.effective(scope, "multicast-groups") {
            // Checked when it was set.
            Some(Value::Text(text)) => text.parse().unwrap_or_default(),
            _ => Self::default(),
        }
    }

    /// Each with its VLAN; `None`: the untagged one.
    pub fn iter(&self) -> impl Iterator<Item = (Option<u16>, IpAddr)> + '_ {
        self.0.iter().copied()
    }
}

impl FromStr for StaticGroups {
    type Err = AllowedError;
    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let mut groups = Vec::new();
        for entry in entries(text)? {
            let wrong = || AllowedError::Group(shown(entry));
            let (vlan, group) = match entry.split_once('/') {
                Some((vlan, group)) => (Some(vlan.parse().map_err(|_| wrong())?), group),
                None => (None, entry),
            };
            let group: IpAddr = group.parse().map_err(|_| wrong())?;
            if !has_members(group) || vlan.is_some_and(|vlan| !(1..4095).contains(&vlan)) {
                return Err(wrong());
            }
            if groups.contains(&(vlan, group)) {
                return Err(AllowedError::Twice(shown(entry)));
            }
            groups.push((vlan, group));
        }
        Ok(Self(groups))
    }
}

impl fmt::Display for StaticGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (vlan, group)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let vlan = vlan.map_or_else(String::new, |vlan| format!("{vlan}/"));
            write!(f, "{comma}{vlan}{group}")?;
        }
        Ok(())
    }
}

/// Whether routers are behind a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum McastRouter {
    /// None.
    #[default]
    Off,
    /// While one is heard.
    Learn,
    /// Always.
    On,
}

/// A member's part in snooping, where its bridge snoops.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnoopMember {
    /// Routers behind it.
    pub router: McastRouter,
    /// Where it leaves nobody is asked.
    pub fast_leave: bool,
    /// Its groups at most; 0: only the bridge's limit.
    pub groups_max: u32,
    /// What it is in at all times, not counted there.
    pub groups: StaticGroups,
}

impl SnoopMember {
    pub(crate) fn of(scope: Scope, set: &Properties) -> Self {
        let router = match set.effective(scope, "multicast-router") {
            Some(Value::Text(word)) if word == "on" => McastRouter::On,
            Some(Value::Text(word)) if word == "learn" => McastRouter::Learn,
            _ => McastRouter::Off,
        };
        Self {
            router,
            fast_leave: set.flag(scope, "multicast-fast-leave"),
            groups_max: set.number(scope, "multicast-groups-max").unwrap_or(0),
            groups: StaticGroups::of(scope, set),
        }
    }
}

/// How a bridge snoops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnoopBridge {
    /// It asks where nobody else does.
    pub querier: bool,
    /// Source of its queries over IPv4.
    pub address: Ipv4Addr,
    /// Seconds from one query to the next.
    pub interval_s: u32,
    /// Multicast to groups without members goes to everybody.
    pub flood_unknown: bool,
    /// Memberships at most.
    pub groups_max: u32,
}

impl SnoopBridge {
    pub(crate) fn of(set: &Properties) -> Self {
        let scope = Scope::Bridge;
        let text = |name| match set.effective(scope, name) {
            Some(Value::Text(text)) => text,
            _ => String::new(),
        };
        let number = |name| set.number(scope, name).unwrap_or(0);
        let address = text("multicast-querier-address").parse();
        Self {
            querier: set.flag(scope, "multicast-querier"),
            address: address.unwrap_or(Ipv4Addr::UNSPECIFIED),
            interval_s: number("multicast-query-interval"),
            flood_unknown: text("multicast-unknown") != "routers",
            groups_max: number("multicast-groups-max"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups that have members, each once, in VLANs that there are.
    #[test]
    fn static_groups_are_checked() {
        let of = |text: &str| text.parse::<StaticGroups>();
        let text = "239.1.1.1,10/239.1.1.1,4094/ff05::1:3";
        assert_eq!(of(text).expect("groups").to_string(), text);
        assert_eq!(of("none"), Ok(StaticGroups::default()));
        for bad in [
            "10.0.0.1",
            "224.0.0.5",
            "ff02::1",
            "ff01::5",
            "0/239.1.1.1",
            "4095/239.1.1.1",
            "/239.1.1.1",
            "x/239.1.1.1",
        ] {
            assert_eq!(of(bad), Err(AllowedError::Group(bad.into())));
        }
        assert!(matches!(
            of("239.1.1.1,239.1.1.1"),
            Err(AllowedError::Twice(_))
        ));
        let many = ["239.1.1.1"; 33].join(",");
        assert_eq!(of(&many), Err(AllowedError::TooMany(33)));
    }

    /// Defaults: uplinks may have routers, VNICs may not; what is set is what holds, and an address is one.
    #[test]
    fn settings_of_snooping() {
        let mut set = Properties::default();
        assert_eq!(SnoopMember::of(Scope::Vnic, &set).router, McastRouter::Off);
        let uplink = SnoopMember::of(Scope::Uplink, &set);
        assert_eq!(
            (uplink.router, uplink.groups_max),
            (McastRouter::Learn, 256)
        );
        set.assign(Scope::Bridge, "multicast-querier-address=192.0.2.1")
            .expect("an address");
        set.assign(Scope::Bridge, "multicast-unknown=routers")
            .expect("a word");
        let bridge = SnoopBridge::of(&set);
        assert_eq!(bridge.address, Ipv4Addr::new(192, 0, 2, 1));
        assert!(!bridge.flood_unknown && !bridge.querier && bridge.interval_s == 125);
        for bad in ["224.0.0.1", "255.255.255.255", "fe80::1", "x"] {
            let setting = format!("multicast-querier-address={bad}");
            assert!(set.assign(Scope::Bridge, &setting).is_err(), "{bad}");
        }
    }
}
