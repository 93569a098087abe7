//! Properties: what can be set on a zone, a bridge, an uplink, a VNIC, an overlay, a flow or a vnd device while it works.
//!
//! # Model
//! [`PROPERTIES`] is the one table. An object holds a [`Properties`] map with only what was set; what
//! was not set has the default of the table, so a document stays as small as what its author said.
//! The data plane does not read the map: it takes [`MemberSettings`] or [`BridgeSettings`], in which
//! every property has its value.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::flow::Priority;
use crate::option::{AUTO, OptionSpec, Value, ValueError, ValueKind};
use crate::overlay::ROWS;

mod settings;

pub use settings::{BridgeSettings, MemberSettings};

/// What kind of object a property belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A [`Bridge`](crate::Bridge).
    Bridge,
    /// An [`Uplink`](crate::Uplink).
    Uplink,
    /// A [`Vnic`](crate::Vnic).
    Vnic,
    /// A [`Flow`](crate::Flow).
    Flow,
    /// A [`Zone`](crate::Zone).
    Zone,
    /// A [`Vnd`](crate::Vnd).
    Vnd,
    /// An [`Overlay`](crate::Overlay).
    Overlay,
}

/// One row of [`PROPERTIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PropertySpec {
    /// The kinds of object that have it.
    pub scopes: &'static [Scope],
    /// Whether the owner of a zone may set it on a VNIC of the zone. What protects others from the
    /// VNIC, or lets it see more than its own frames, is the operator's alone.
    pub tenant: bool,
    /// Its name, type, unit, default, limits and sentence.
    pub option: OptionSpec,
}

impl PropertySpec {
    const fn for_tenants(mut self) -> Self {
        self.tenant = true;
        self
    }
}

const BRIDGE: &[Scope] = &[Scope::Bridge];
const MEMBER: &[Scope] = &[Scope::Uplink, Scope::Vnic];
const VNIC: &[Scope] = &[Scope::Vnic];
const UPLINK: &[Scope] = &[Scope::Uplink];
const FLOW: &[Scope] = &[Scope::Flow];

const fn row(
    scopes: &'static [Scope],
    name: &'static str,
    kind: ValueKind,
    unit: &'static str,
    default: &'static str,
    limits: (u64, u64),
    sentence: &'static str,
) -> PropertySpec {
    let (min, max) = limits;
    PropertySpec {
        scopes,
        tenant: false,
        option: OptionSpec {
            name,
            kind,
            unit,
            default,
            min,
            max,
            sentence,
        },
    }
}

/// Every property of every kind of object. A name may have a row for each kind, with its default.
pub const PROPERTIES: &[PropertySpec] = &joined();

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it: an index out of bounds ends the build"
)]
const fn joined() -> [PropertySpec; OBJECTS.len() + ROWS.len()] {
    let mut all = [ROWS[0]; OBJECTS.len() + ROWS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < OBJECTS.len() {
            OBJECTS[i]
        } else {
            ROWS[i - OBJECTS.len()]
        };
        i += 1;
    }
    all
}

/// Those of all objects but overlays.
const OBJECTS: &[PropertySpec] = &[
    row(
        BRIDGE,
        "ageing",
        ValueKind::Number,
        "s",
        "300",
        (0, 1_000_000),
        "Time after which a learned address that was not seen again is forgotten; 0: never.",
    ),
    row(
        BRIDGE,
        "addresses-max",
        ValueKind::Number,
        "addresses",
        "8192",
        (16, 1_048_576),
        "Size of the forwarding table; when it is full, the member with most entries loses one.",
    ),
    row(
        BRIDGE,
        "vlan-filtering",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "Whether members are confined to their VLANs; off: tags are carried as any other bytes.",
    ),
    row(
        BRIDGE,
        "stp",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Rapid spanning tree (IEEE 802.1D-2004): members with stp=on forward only where that makes no loop.",
    ),
    row(
        BRIDGE,
        "stp-force-version",
        ValueKind::Words(&["rstp", "stp"]),
        "",
        "rstp",
        (0, 0),
        "stp: speak STP (802.1D-1998) to all neighbours; rstp: to those alone that know nothing newer. A change begins anew.",
    ),
    row(
        BRIDGE,
        "priority",
        ValueKind::Number,
        "",
        "32768",
        (0, 61_440),
        "Priority in the bridge identifier, rounded down to a multiple of 4096; the lowest is the root.",
    ),
    row(
        BRIDGE,
        "max-age",
        ValueKind::Number,
        "s",
        "20",
        (6, 40),
        "Age at which spanning tree information is forgotten; the root's value counts.",
    ),
    row(
        BRIDGE,
        "hello",
        ValueKind::Number,
        "s",
        "2",
        (1, 10),
        "Time from one BPDU of a designated port to the next.",
    ),
    row(
        BRIDGE,
        "forward-delay",
        ValueKind::Number,
        "s",
        "15",
        (4, 30),
        "Time in each state before forwarding if no neighbour agrees; the root's value counts.",
    ),
    row(
        BRIDGE,
        "hold-count",
        ValueKind::Number,
        "BPDUs",
        "6",
        (1, 10),
        "BPDUs that a port may send in a burst; then one a second.",
    ),
    crate::snoop::SNOOPING,
    crate::snoop::QUERIER,
    crate::snoop::QUERIER_ADDRESS,
    crate::snoop::INTERVAL,
    crate::snoop::UNKNOWN,
    crate::snoop::GROUPS_MAX,
    row(
        VNIC,
        "mac-nospoof",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "Drop frames whose source is not the VNIC's own address; off: addresses behind it are learned.",
    ),
    row(
        UPLINK,
        "mac-nospoof",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Drop frames whose source is not the device's own address.",
    ),
    row(
        MEMBER,
        "learn",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "Learn source addresses of frames that come from the member.",
    ),
    row(
        MEMBER,
        "discover",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "Send the member frames whose destination is unknown.",
    )
    .for_tenants(),
    row(
        MEMBER,
        "sticky",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Addresses learned on the member neither move to another one nor age; they fill at most a quarter of the table.",
    ),
    row(
        MEMBER,
        "locked",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Drop frames whose source has no static entry at the member (fdb add); its own address has one.",
    ),
    row(
        MEMBER,
        "mab",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Learn sources that locked keeps out, so that fdb show lists them; their frames are dropped.",
    ),
    row(
        MEMBER,
        "neigh-suppress",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Answer ARP requests and neighbour solicitations for known addresses behind the member instead of flooding them.",
    ),
    row(
        MEMBER,
        "private",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Private members exchange no frames with each other.",
    ),
    row(
        MEMBER,
        "span",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "The member gets a copy of every frame that the bridge accepts, and sends none.",
    ),
    row(
        MEMBER,
        "vlan",
        ValueKind::Number,
        "",
        "1",
        (0, 4094),
        "VLAN of untagged frames, both ways; 0: untagged frames are dropped.",
    ),
    row(
        MEMBER,
        "tagged",
        ValueKind::Vlans,
        "",
        "",
        (0, 0),
        "VLANs whose frames the member sends and receives with a tag, or none.",
    ),
    row(
        MEMBER,
        "addresses-max",
        ValueKind::Number,
        "addresses",
        "0",
        (0, 1_048_576),
        "Addresses that may be learned on the member; 0: only the limit of the bridge.",
    ),
    row(
        MEMBER,
        "move-budget",
        ValueKind::Number,
        "moves",
        "1000",
        (0, 1_000_000),
        "Learned addresses that may move to the member in a burst (token bucket, a fifth refilled every 5 s); 0: no limit.",
    ),
    row(
        MEMBER,
        "storm-limit",
        ValueKind::Number,
        "frames/s",
        "50000",
        (0, 100_000_000),
        "Broadcast, multicast and unknown unicast frames accepted from the member; 0: no limit.",
    ),
    row(
        VNIC,
        "stp",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Takes part in the bridge's spanning tree; off: it always forwards, and its BPDUs are dropped.",
    ),
    row(
        UPLINK,
        "stp",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "Takes part in the bridge's spanning tree; off: it always forwards, and its BPDUs are dropped.",
    ),
    row(
        MEMBER,
        "stp-cost",
        ValueKind::Number,
        "",
        AUTO,
        (1, 200_000_000),
        "Path cost of the member; auto: 20000, the cost of 1 Gbit/s.",
    ),
    row(
        MEMBER,
        "stp-priority",
        ValueKind::Number,
        "",
        "128",
        (0, 240),
        "Priority in the port identifier, rounded down to a multiple of 16; the lowest is preferred.",
    ),
    row(
        MEMBER,
        "edge",
        ValueKind::Flag,
        "",
        AUTO,
        (0, 0),
        "on: no bridge is behind the member, so it forwards at once; auto: it does after 3 s without a BPDU.",
    ),
    row(
        MEMBER,
        "point-to-point",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "At most one bridge is behind the member; off: it leads to a hub, and transitions take the forward delays.",
    ),
    row(
        MEMBER,
        "root-guard",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "The member never leads to the root: it is closed while a better root is heard there.",
    ),
    row(
        MEMBER,
        "bpdu-guard",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "On a bridge with stp=on, a BPDU closes the member until it goes down or the guard is removed.",
    ),
    crate::snoop::ROUTER_VNIC,
    crate::snoop::ROUTER_UPLINK,
    crate::snoop::FAST_LEAVE,
    crate::snoop::MEMBER_GROUPS_MAX,
    crate::snoop::GROUPS,
    row(
        VNIC,
        "mtu",
        ValueKind::Number,
        "bytes",
        "1500",
        (68, 65_521),
        "Largest packet, without the Ethernet header and tags.",
    )
    .for_tenants(),
    row(
        UPLINK,
        "mtu",
        ValueKind::Number,
        "bytes",
        AUTO,
        (68, 65_521),
        "Largest packet, without the Ethernet header and tags; auto: the device's.",
    ),
    row(
        UPLINK,
        "filters-max",
        ValueKind::Number,
        "addresses",
        "128",
        (0, 4096),
        "Addresses that the interface's filters are given at most; above it, with tags, or where other addresses may be behind a member, the interface is promiscuous; 0: always.",
    ),
    row(
        VNIC,
        "rxrings",
        ValueKind::Number,
        "rings",
        "0",
        (0, 16),
        "Receive rings of an uplink's interface for the VNIC's addresses alone (AF_XDP; the interface's driver must have rules by address); 0, or none left: those that VNICs share.",
    ),
    row(
        VNIC,
        "rss-weights",
        ValueKind::Weights,
        "",
        "",
        (0, 0),
        "Shares of the VNIC's receive rings (queues), ring 0 first: 1,1,2 gives ring 2 half of all flows; rings that are not listed get none; equal: the same for all. Flows move in order.",
    )
    .for_tenants(),
    row(
        MEMBER,
        "maxbw",
        ValueKind::Number,
        "Mbit/s",
        "0",
        (0, 100_000),
        "Bandwidth in each direction; excess frames wait in fair queues (FQ-CoDel) for at most 100 ms; 0: no limit.",
    ),
    row(
        VNIC,
        "priority",
        ValueKind::Words(Priority::WORDS),
        "",
        "medium",
        (0, 0),
        "Order in which a worker sends frames of different VNICs that waited for a maxbw and are due at the same time.",
    ),
    row(
        FLOW,
        "maxbw",
        ValueKind::Number,
        "Mbit/s",
        "0",
        (0, 100_000),
        "Bandwidth of the flow in each direction; excess frames wait, and are dropped, without affecting the VNIC's other frames; 0: no limit.",
    )
    .for_tenants(),
    row(
        FLOW,
        "priority",
        ValueKind::Words(Priority::WORDS),
        "",
        "medium",
        (0, 0),
        "Order of frames that wait for the VNIC's maxbw; a lower priority still gets a turn every 100 ms.",
    )
    .for_tenants(),
    row(
        VNIC,
        "restricted",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Drop frames of the VNIC that are neither IPv4 nor IPv6 nor ARP.",
    ),
    row(
        VNIC,
        "ip-nospoof",
        ValueKind::Flag,
        "",
        AUTO,
        (0, 0),
        "Drop packets from IP addresses that allowed-ips does not name and dynamic-methods did not bring, also in ARP and neighbour discovery; auto: on if one of them names any.",
    ),
    row(
        VNIC,
        "allowed-ips",
        ValueKind::Ips,
        "",
        "",
        (0, 0),
        "At most 32 addresses and prefixes that the VNIC may use, or none; the link-local address derived from its MAC address is always allowed.",
    ),
    row(
        VNIC,
        "dynamic-methods",
        ValueKind::Methods,
        "",
        AUTO,
        (0, 0),
        "Ways in which the VNIC comes to addresses beside allowed-ips: dhcpv4, dhcpv6, slaac, addrconf (the last two), or none; auto: all if allowed-ips names none.",
    ),
    row(
        VNIC,
        "trusted",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "A DHCP server or router: what it gives other VNICs becomes theirs (dynamic-methods).",
    ),
    row(
        UPLINK,
        "trusted",
        ValueKind::Flag,
        "",
        "on",
        (0, 0),
        "DHCP servers and routers are behind the uplink: what they give VNICs becomes theirs (dynamic-methods).",
    ),
    row(
        VNIC,
        "secondary-macs",
        ValueKind::Macs,
        "",
        "",
        (0, 0),
        "At most 32 further link-layer addresses that the VNIC sends from and is reached by, or none.",
    ),
    row(
        VNIC,
        "dhcp-nospoof",
        ValueKind::Flag,
        "",
        AUTO,
        (0, 0),
        "Drop messages of DHCP clients other than the VNIC; auto: on if allowed-dhcp-cids is set.",
    ),
    row(
        VNIC,
        "allowed-dhcp-cids",
        ValueKind::ClientIds,
        "",
        "",
        (0, 0),
        "At most 32 more DHCP client identifiers and DUIDs, as text or as 0x and hex digits; any; or none. Those derived from the VNIC's address are always allowed.",
    ),
    row(
        VNIC,
        "router-guard",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Drop router advertisements and redirects of the VNIC.",
    ),
    row(
        VNIC,
        "dhcp-guard",
        ValueKind::Flag,
        "",
        "off",
        (0, 0),
        "Drop messages of the VNIC as a DHCP server.",
    ),
    crate::firewall::FIREWALL,
    crate::firewall::FIREWALL_BASE,
    crate::firewall::FIREWALL_ZONE,
    crate::firewall::FIREWALL_CONNECTIONS,
    row(
        VNIC,
        "state",
        ValueKind::Words(&["active", "standby"]),
        "",
        "active",
        (0, 0),
        "standby: the VNIC's address is not fixed in the table, so that its frames go where it was learned until the VNIC sends \
         a frame (live migration).",
    ),
    row(
        VNIC,
        "huge-1g",
        ValueKind::Flag,
        "",
        AUTO,
        (0, 0),
        "Take guest memory in pages of 1 GiB, each of which stops the switch for 100 ms when it is given back; auto: on outside \
         zones.",
    ),
    row(
        VNIC,
        "intr-rate",
        ValueKind::Number,
        "interrupts/s",
        "0",
        (0, 10_000_000),
        "Notifications sent to each ring of the attachment; 0: no limit.",
    )
    .for_tenants(),
    row(
        MEMBER,
        "spin-us",
        ValueKind::Number,
        "us",
        AUTO,
        (0, 1000),
        "Time that a ring is polled after it ran empty, before its worker sleeps; auto: as the attachment \
         needs, and only while the ring is busy.",
    ),
    crate::vnd::RXBUF,
    crate::vnd::TXBUF,
];

/// The row of a property of a kind of object.
pub fn property(scope: Scope, name: &str) -> Option<&'static PropertySpec> {
    PROPERTIES
        .iter()
        .find(|row| row.option.name == name && row.scopes.contains(&scope))
}

/// The rows of a kind of object, in the order of the table.
pub fn properties(scope: Scope) -> impl Iterator<Item = &'static PropertySpec> {
    PROPERTIES
        .iter()
        .filter(move |row| row.scopes.contains(&scope))
}

/// Why a property cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PropertyError {
    /// No kind of object has it.
    #[error("there is no property \"{name}\" (there are: {known})")]
    Unknown {
        /// The offending name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The value is not one of it.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// A setting without `=`.
    #[error("\"{0}\" is not of the form KEY=VALUE")]
    Form(String),
}

impl PropertyError {
    fn unknown(name: &str, rows: impl Iterator<Item = &'static PropertySpec>) -> Self {
        let mut known: Vec<_> = rows.map(|row| row.option.name).collect();
        known.sort_unstable();
        known.dedup();
        Self::Unknown {
            name: name.chars().take(64).collect(),
            known: known.join(", "),
        }
    }
}

/// The properties that were set on an object, by name.
///
/// In JSON an object whose keys are names of [`PROPERTIES`]; in order of the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties(BTreeMap<&'static str, Value>);

impl Properties {
    /// Whether nothing was set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was set, in order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// The value that was set, if it was.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The value that holds: the one that was set, else the default; `None` for `auto` and for a
    /// property that this kind of object does not have.
    pub fn effective(&self, scope: Scope, name: &str) -> Option<Value> {
        let row = property(scope, name)?;
        self.get(name)
            .cloned()
            .or_else(|| row.option.default_value())
    }

    /// Sets one from its text, as `KEY=VALUE` on the command line has it. `auto` forgets what was set.
    ///
    /// # Errors
    /// If this kind of object has no such property, or the text is not a value of it.
    pub fn set(&mut self, scope: Scope, name: &str, text: &str) -> Result<(), PropertyError> {
        let row =
            property(scope, name).ok_or_else(|| PropertyError::unknown(name, properties(scope)))?;
        if text == AUTO {
            self.0.remove(row.option.name);
        } else {
            self.0.insert(row.option.name, row.option.parse(text)?);
        }
        Ok(())
    }

    /// Sets one from `KEY=VALUE`.
    ///
    /// # Errors
    /// As [`Self::set`], and if there is no `=`.
    pub fn assign(&mut self, scope: Scope, setting: &str) -> Result<(), PropertyError> {
        let (name, text) = setting
            .split_once('=')
            .ok_or_else(|| PropertyError::Form(setting.into()))?;
        self.set(scope, name, text)
    }

    /// Forgets what was set, so that the default holds again.
    pub fn reset(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Takes over what the patch sets, and forgets what it resets.
    pub fn patch(&mut self, patch: &PropertyPatch) {
        for (name, value) in &patch.0 {
            match value {
                Some(value) => self.0.insert(name, value.clone()),
                None => self.0.remove(name),
            };
        }
    }

    /// Checks that each belongs to this kind of object and lies within its limits.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, scope: Scope) -> Result<(), PropertyError> {
        for (name, value) in self.iter() {
            let row = property(scope, name)
                .ok_or_else(|| PropertyError::unknown(name, properties(scope)))?;
            row.option.parse(&value.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn number(&self, scope: Scope, name: &str) -> Option<u32> {
        match self.effective(scope, name) {
            Some(Value::Number(number)) => Some(u32::try_from(number).unwrap_or(u32::MAX)),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, scope: Scope, name: &str) -> bool {
        matches!(self.effective(scope, name), Some(Value::Flag(true)))
    }
}

/// Changes to [`Properties`]: a value sets, `null` in JSON forgets what was set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PropertyPatch(BTreeMap<&'static str, Option<Value>>);

impl PropertyPatch {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, name: &'static str, value: Option<Value>) {
        self.0.insert(name, value);
    }

    /// Adds `KEY=VALUE`; `KEY=auto` forgets what was set.
    ///
    /// # Errors
    /// As [`Properties::assign`].
    pub fn assign(&mut self, scope: Scope, setting: &str) -> Result<(), PropertyError> {
        let mut one = Properties::default();
        one.assign(scope, setting)?;
        let name = setting.split_once('=').map_or(setting, |(name, _)| name);
        let row =
            property(scope, name).ok_or_else(|| PropertyError::unknown(name, properties(scope)))?;
        self.0
            .insert(row.option.name, one.0.remove(row.option.name));
        Ok(())
    }
}

fn any_row(name: &str) -> Option<&'static PropertySpec> {
    PROPERTIES.iter().find(|row| row.option.name == name)
}

fn checked(name: &str, json: &serde_json::Value) -> Result<(&'static str, Value), PropertyError> {
    let mut last = PropertyError::unknown(name, PROPERTIES.iter());
    for row in PROPERTIES.iter().filter(|row| row.option.name == name) {
        match row.option.check(json) {
            Ok(value) => return Ok((row.option.name, value)),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

struct JsonValue<'a>(&'a Value);

impl Serialize for JsonValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Number(number) => serializer.serialize_u64(*number),
            Value::Vlans(vlans) => serializer.collect_str(vlans),
            Value::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, value)| (name, JsonValue(value))))
    }
}

impl Serialize for PropertyPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, &value.as_ref().map(JsonValue))?;
        }
        map.end()
    }
}

struct PatchVisitor;

impl<'de> Visitor<'de> for PatchVisitor {
    type Value = PropertyPatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of properties")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PropertyPatch, A::Error> {
        let mut patch = PropertyPatch::default();
        while let Some((name, json)) = map.next_entry::<String, serde_json::Value>()? {
            let (name, value) = match (any_row(&name), json) {
                (Some(row), serde_json::Value::Null) => (row.option.name, None),
                (_, json) => {
                    let (name, value) = checked(&name, &json).map_err(A::Error::custom)?;
                    (name, Some(value))
                }
            };
            if patch.0.insert(name, value).is_some() {
                return Err(A::Error::custom(format!(
                    "property \"{name}\" is given twice"
                )));
            }
        }
        Ok(patch)
    }
}

impl<'de> Deserialize<'de> for PropertyPatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PatchVisitor)
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let patch = PropertyPatch::deserialize(deserializer)?;
        let set = patch.0.into_iter().map(|(name, value)| match value {
            Some(value) => Ok((name, value)),
            None => Err(D::Error::custom(format!(
                "property \"{name}\" has no value"
            ))),
        });
        Ok(Self(set.collect::<Result<_, _>>()?))
    }
}

/// What a value of a row is, within the limits of all rows of its name and kind.
fn kind_schema(row: &PropertySpec) -> Schema {
    let option = &row.option;
    match option.kind {
        ValueKind::Flag => json_schema!({"type": "boolean"}),
        ValueKind::Number | ValueKind::Bytes => {
            let rows = PROPERTIES.iter().map(|row| &row.option);
            let rows = rows.filter(|r| r.name == option.name && r.kind == option.kind);
            let (min, max) = (rows.clone().map(|r| r.min).min(), rows.map(|r| r.max).max());
            json_schema!({"type": "integer", "minimum": min, "maximum": max})
        }
        ValueKind::Words(words) => json_schema!({"type": "string", "enum": words}),
        _ => json_schema!({"type": "string"}),
    }
}

fn schema(nullable: bool) -> Schema {
    let mut fields = serde_json::Map::new();
    for row in PROPERTIES {
        let option = &row.option;
        // A name may be a number of one kind of object, and a word of another.
        let rows = PROPERTIES.iter().filter(|r| r.option.name == option.name);
        let mut kinds: Vec<Schema> = Vec::new();
        for kind in rows.map(kind_schema) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut field = match kinds.as_slice() {
            [kind] => kind.clone(),
            _ => json_schema!({"anyOf": kinds}),
        };
        if nullable {
            field = json_schema!({"anyOf": [field, {"type": "null"}]});
        }
        let unit = if option.unit.is_empty() {
            String::new()
        } else {
            format!(" ({})", option.unit)
        };
        field.insert(
            "description".into(),
            format!("{}{unit}", option.sentence).into(),
        );
        fields.insert(option.name.into(), field.into());
    }
    json_schema!({"type": "object", "properties": fields, "additionalProperties": false})
}

impl JsonSchema for Properties {
    fn schema_name() -> Cow<'static, str> {
        "Properties".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema(false)
    }
}

impl JsonSchema for PropertyPatch {
    fn schema_name() -> Cow<'static, str> {
        "PropertyPatch".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schema(true)
    }
}

#[cfg(test)]
mod tests;
