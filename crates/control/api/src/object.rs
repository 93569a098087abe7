//! The objects, and the document that holds their configuration.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attach::{Attachment, Packet};
use crate::flow::Flow;
use crate::guard::Macs;
use crate::name::{Ifname, MacAddr, Name, Netns, ZoneRef};
use crate::overlay::Overlay;
use crate::property::{BridgeSettings, MemberSettings, Properties, PropertyPatch, Scope};
use crate::vnd::Vnd;

/// The version of [`Document`] that this crate reads and writes.
pub const DOCUMENT_VERSION: u32 = 1;

/// MTU of a VNIC where the property says `auto`, in bytes.
const MTU: u32 = 1500;

/// A tenant: who may make VNICs, on which bridges, in which network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Its name.
    pub name: Name,
    /// User who acts in it.
    pub owner_uid: u32,
    /// Group whose members see it.
    pub owner_gid: u32,
    /// The namespace in which its TAPs may lie; without it, in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// Bridges on which its owner may make VNICs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bridges: Vec<Name>,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

/// A learning switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// Its name.
    pub name: Name,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

impl Bridge {
    /// A bridge of this name with the defaults.
    pub fn named(name: Name) -> Self {
        Self {
            name,
            properties: Properties::default(),
        }
    }

    /// Every property with the value that holds.
    pub fn settings(&self) -> BridgeSettings {
        BridgeSettings::of(&self.properties)
    }
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn packet() -> Attachment {
    Attachment::Packet(Packet::default())
}

/// An existing interface of the host that is joined to a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// Its name.
    pub name: Name,
    /// The interface.
    pub device: Ifname,
    /// The bridge that it is a member of.
    pub bridge: Name,
    /// How frames are taken from the interface: `packet` or `xdp`.
    #[serde(default = "packet")]
    pub attach: Attachment,
    /// Take the interface although it has addresses or a master.
    #[serde(default, skip_serializing_if = "is_false")]
    pub share: bool,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

impl Uplink {
    /// Every property with the value that holds.
    pub fn settings(&self) -> MemberSettings {
        MemberSettings::of(Scope::Uplink, &self.properties)
    }
}

/// A virtual NIC: a member of a bridge with an address of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vnic {
    /// Its name.
    pub name: Name,
    /// The zone that it belongs to.
    #[serde(default)]
    pub zone: ZoneRef,
    /// The bridge that it is a member of.
    pub bridge: Name,
    /// Its own address. Without it, that of the VNIC of this name if there is one, else a random local
    /// one is drawn and kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Who is on the other side.
    #[serde(default)]
    pub attach: Attachment,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

impl Vnic {
    /// Every property with the value that holds.
    pub fn settings(&self) -> MemberSettings {
        MemberSettings::of(Scope::Vnic, &self.properties)
    }

    /// Its MTU in bytes.
    pub fn mtu(&self) -> u32 {
        self.settings().mtu.unwrap_or(MTU)
    }

    /// Its link-layer addresses: its own, if it has one yet, and further ones.
    pub fn macs(&self) -> impl Iterator<Item = MacAddr> {
        let others = Macs::of(Scope::Vnic, &self.properties);
        self.mac.into_iter().chain(others)
    }
}

/// Whether an entry of the forwarding table can move.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum StaticKind {
    /// Never ages; neither learning nor eviction touches it.
    #[default]
    Static,
    /// As if it had been learned on a sticky member: it does not move, and does not age.
    Sticky,
}

/// An address that a person put into a forwarding table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticEntry {
    /// The bridge.
    pub bridge: Name,
    /// The VLAN; 0 on a bridge without VLAN filtering. Where it is 0 or missing and the bridge filters,
    /// the daemon puts the member's untagged VLAN.
    #[serde(default)]
    #[schemars(range(max = 4094))]
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The member that gets its frames.
    pub member: Name,
    /// Whether it can move.
    #[serde(default)]
    pub kind: StaticKind,
    /// The target behind which the address is, where the member is an overlay: only there, and always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<SocketAddr>,
}

impl StaticEntry {
    /// What no two entries share.
    pub fn key(&self) -> (&Name, u16, MacAddr) {
        (&self.bridge, self.vlan, self.mac)
    }
}

/// The whole configuration. In canonical form each list is in order of its names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// [`DOCUMENT_VERSION`].
    pub version: u32,
    /// The zones.
    #[serde(default)]
    pub zones: Vec<Zone>,
    /// The bridges.
    #[serde(default)]
    pub bridges: Vec<Bridge>,
    /// The uplinks.
    #[serde(default)]
    pub uplinks: Vec<Uplink>,
    /// The overlays. A document without any is one that earlier versions read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<Overlay>,
    /// The VNICs.
    #[serde(default)]
    pub vnics: Vec<Vnic>,
    /// Flows of the VNICs.
    #[serde(default)]
    pub flows: Vec<Flow>,
    /// vnd devices over the VNICs. A document without any is one that earlier versions read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vnds: Vec<Vnd>,
    /// Static entries of the forwarding tables.
    #[serde(default)]
    pub fdb: Vec<StaticEntry>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            version: DOCUMENT_VERSION,
            zones: Vec::new(),
            bridges: Vec::new(),
            uplinks: Vec::new(),
            overlays: Vec::new(),
            vnics: Vec::new(),
            flows: Vec::new(),
            vnds: Vec::new(),
            fdb: Vec::new(),
        }
    }
}

impl Document {
    /// Puts every list in its order, so that equal configurations have equal texts.
    pub fn canonicalize(&mut self) {
        self.zones.sort_by(|a, b| a.name.cmp(&b.name));
        self.bridges.sort_by(|a, b| a.name.cmp(&b.name));
        self.uplinks.sort_by(|a, b| a.name.cmp(&b.name));
        self.overlays.sort_by(|a, b| a.name.cmp(&b.name));
        self.vnics.sort_by(|a, b| a.name.cmp(&b.name));
        self.flows.sort_by(|a, b| a.name.cmp(&b.name));
        self.vnds
            .sort_by(|a, b| (&a.zone, &a.name).cmp(&(&b.zone, &b.name)));
        self.fdb.sort_by(|a, b| a.key().cmp(&b.key()));
        for zone in &mut self.zones {
            zone.bridges.sort();
            zone.bridges.dedup();
        }
    }

    /// Fills in what was left to the daemon: a VNIC without an address gets the one that the VNIC of
    /// its name has in `old`, else one from `draw`; an entry of a filtering bridge without a VLAN gets
    /// its member's untagged one. `draw` is called until it gives an address that no VNIC here has, at
    /// most 64 times a VNIC. An overlay without a bridge gets the one that has its name, and a VNIC without an MTU on an overlay's
    /// bridge the overlay's.
    pub fn complete(&mut self, old: &Document, mut draw: impl FnMut() -> MacAddr) {
        let mut used: HashSet<MacAddr> = self
            .vnics
            .iter()
            .chain(&old.vnics)
            .flat_map(Vnic::macs)
            .collect();
        let kept: HashMap<&Name, Option<MacAddr>> = old
            .vnics
            .iter()
            .map(|vnic| (&vnic.name, vnic.mac))
            .collect();
        for vnic in self.vnics.iter_mut().filter(|vnic| vnic.mac.is_none()) {
            vnic.mac = kept.get(&vnic.name).copied().flatten();
            if vnic.mac.is_none() {
                vnic.mac = (0..64).map(|_| draw()).find(|mac| !used.contains(mac));
            }
            used.extend(vnic.mac);
        }
        self.complete_bridges();
        self.complete_mtus();
        self.complete_entries();
    }

    fn complete_mtus(&mut self) {
        let mut mtus: HashMap<Name, u32> = HashMap::new();
        for overlay in &self.overlays {
            let mtu = overlay.settings().inner_mtu();
            let least = mtus.entry(overlay.bridge().clone()).or_insert(mtu);
            *least = mtu.min(*least);
        }
        for vnic in &mut self.vnics {
            let mtu = mtus
                .get(&vnic.bridge)
                .filter(|_| vnic.properties.get("mtu").is_none());
            if let Some(mtu) = mtu {
                // The property takes every MTU that an overlay can have.
                let _ = vnic.properties.set(Scope::Vnic, "mtu", &mtu.to_string());
            }
        }
    }

    fn complete_bridges(&mut self) {
        let known: HashSet<&Name> = self.bridges.iter().map(|bridge| &bridge.name).collect();
        let own = self
            .overlays
            .iter()
            .filter(|overlay| overlay.bridge.is_none());
        let missing = own.filter(|overlay| !known.contains(&overlay.name));
        let missing: Vec<_> = missing
            .map(|overlay| Bridge::named(overlay.name.clone()))
            .collect();
        self.bridges.extend(missing);
    }

    fn complete_entries(&mut self) {
        if self.fdb.iter().all(|entry| entry.vlan != 0) {
            return;
        }
        let filtering: HashSet<Name> = self
            .bridges
            .iter()
            .filter(|bridge| bridge.settings().vlan_filtering)
            .map(|bridge| bridge.name.clone())
            .collect();
        let untagged: HashMap<Name, u16> = self
            .members()
            .filter_map(|member| Some((member.name().clone(), member.settings().vlan?)))
            .collect();
        for entry in self.fdb.iter_mut().filter(|entry| entry.vlan == 0) {
            if filtering.contains(&entry.bridge) {
                entry.vlan = untagged.get(&entry.member).copied().unwrap_or(0);
            }
        }
    }

    /// The zone of this name.
    pub fn zone(&self, name: &str) -> Option<&Zone> {
        self.zones.iter().find(|zone| zone.name == *name)
    }

    /// The bridge of this name.
    pub fn bridge(&self, name: &str) -> Option<&Bridge> {
        self.bridges.iter().find(|bridge| bridge.name == *name)
    }

    /// The uplink of this name.
    pub fn uplink(&self, name: &str) -> Option<&Uplink> {
        self.uplinks.iter().find(|uplink| uplink.name == *name)
    }

    /// The overlay of this name.
    pub fn overlay(&self, name: &str) -> Option<&Overlay> {
        self.overlays.iter().find(|overlay| overlay.name == *name)
    }

    /// The VNIC of this name.
    pub fn vnic(&self, name: &str) -> Option<&Vnic> {
        self.vnics.iter().find(|vnic| vnic.name == *name)
    }

    /// The flow of this name.
    pub fn flow(&self, name: &str) -> Option<&Flow> {
        self.flows.iter().find(|flow| flow.name == *name)
    }

    /// The vnd device over this VNIC.
    pub fn vnd_over(&self, vnic: &str) -> Option<&Vnd> {
        self.vnds.iter().find(|vnd| vnd.vnic == *vnic)
    }

    /// Takes a bridge away, and out of the lists of zones.
    pub fn release_bridge(&mut self, name: &str) {
        self.bridges.retain(|bridge| bridge.name != *name);
        for zone in &mut self.zones {
            zone.bridges.retain(|bridge| *bridge != *name);
        }
    }

    /// Takes away what goes with an uplink, an overlay or a VNIC.
    pub fn release_member(&mut self, name: &str) {
        self.fdb.retain(|entry| entry.member != *name);
        self.flows.retain(|flow| flow.vnic != *name);
    }

    /// The uplink, overlay or VNIC of this name: they share one space of names.
    pub fn member(&self, name: &str) -> Option<Member<'_>> {
        self.vnic(name)
            .map(Member::Vnic)
            .or_else(|| self.uplink(name).map(Member::Uplink))
            .or_else(|| self.overlay(name).map(Member::Overlay))
    }

    /// All members of bridges.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        self.uplinks
            .iter()
            .map(Member::Uplink)
            .chain(self.overlays.iter().map(Member::Overlay))
            .chain(self.vnics.iter().map(Member::Vnic))
    }
}

/// An uplink, an overlay or a VNIC, as a bridge sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member<'a> {
    /// An uplink.
    Uplink(&'a Uplink),
    /// An overlay.
    Overlay(&'a Overlay),
    /// A VNIC.
    Vnic(&'a Vnic),
}

impl<'a> Member<'a> {
    /// Its name.
    pub fn name(self) -> &'a Name {
        match self {
            Self::Uplink(uplink) => &uplink.name,
            Self::Overlay(overlay) => &overlay.name,
            Self::Vnic(vnic) => &vnic.name,
        }
    }

    /// Its bridge.
    pub fn bridge(self) -> &'a Name {
        match self {
            Self::Uplink(uplink) => &uplink.bridge,
            Self::Overlay(overlay) => overlay.bridge(),
            Self::Vnic(vnic) => &vnic.bridge,
        }
    }

    /// Its attachment; an overlay has none.
    pub fn attach(self) -> Option<&'a Attachment> {
        match self {
            Self::Uplink(uplink) => Some(&uplink.attach),
            Self::Overlay(_) => None,
            Self::Vnic(vnic) => Some(&vnic.attach),
        }
    }

    /// What was set of its properties.
    pub fn properties(self) -> &'a Properties {
        match self {
            Self::Uplink(uplink) => &uplink.properties,
            Self::Overlay(overlay) => &overlay.properties,
            Self::Vnic(vnic) => &vnic.properties,
        }
    }

    /// Every property with the value that holds.
    pub fn settings(self) -> MemberSettings {
        match self {
            Self::Uplink(uplink) => uplink.settings(),
            Self::Overlay(overlay) => overlay.member(),
            Self::Vnic(vnic) => vnic.settings(),
        }
    }

    /// The kind of object.
    pub fn scope(self) -> Scope {
        match self {
            Self::Uplink(_) => Scope::Uplink,
            Self::Overlay(_) => Scope::Overlay,
            Self::Vnic(_) => Scope::Vnic,
        }
    }
}

/// Body of `PATCH /v1/zones/NAME`: what is missing stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZonePatch {
    /// New owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_uid: Option<u32>,
    /// New group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_gid: Option<u32>,
    /// New namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// New list of granted bridges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridges: Option<Vec<Name>>,
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "PropertyPatch::is_empty")]
    pub properties: PropertyPatch,
}

/// Body of `PATCH /v1/bridges/NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BridgePatch {
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "PropertyPatch::is_empty")]
    pub properties: PropertyPatch,
}

/// Body of `PATCH /v1/uplinks/NAME`: what is missing stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UplinkPatch {
    /// Move it to this bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Name>,
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "PropertyPatch::is_empty")]
    pub properties: PropertyPatch,
}

/// Body of `PATCH /v1/vnics/NAME`: what is missing stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VnicPatch {
    /// Move it to this bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Name>,
    /// Give it this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Attach it to someone else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach: Option<Attachment>,
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "PropertyPatch::is_empty")]
    pub properties: PropertyPatch,
}

impl ZonePatch {
    /// Changes the zone.
    pub fn apply(self, zone: &mut Zone) {
        let Self {
            owner_uid,
            owner_gid,
            netns,
            bridges,
            properties,
        } = self;
        zone.owner_uid = owner_uid.unwrap_or(zone.owner_uid);
        zone.owner_gid = owner_gid.unwrap_or(zone.owner_gid);
        if netns.is_some() {
            zone.netns = netns;
        }
        if let Some(bridges) = bridges {
            zone.bridges = bridges;
        }
        zone.properties.patch(&properties);
    }
}

impl BridgePatch {
    /// Changes the bridge.
    pub fn apply(self, bridge: &mut Bridge) {
        bridge.properties.patch(&self.properties);
    }
}

impl UplinkPatch {
    /// Changes the uplink.
    pub fn apply(self, uplink: &mut Uplink) {
        if let Some(bridge) = self.bridge {
            uplink.bridge = bridge;
        }
        uplink.properties.patch(&self.properties);
    }
}

impl VnicPatch {
    /// Changes the VNIC.
    pub fn apply(self, vnic: &mut Vnic) {
        let Self {
            bridge,
            mac,
            attach,
            properties,
        } = self;
        if let Some(bridge) = bridge {
            vnic.bridge = bridge;
        }
        if mac.is_some() {
            vnic.mac = mac;
        }
        if let Some(attach) = attach {
            vnic.attach = attach;
        }
        vnic.properties.patch(&properties);
    }
}
