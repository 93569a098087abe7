//! What must hold between the objects of a document, whoever asked for it.
//!
//! # Model
//! [`validate`] is pure and reports every defect that it finds, up to [`DEFECTS_MAX`], each with the
//! path of the object: a person who applies a file wants them all at once. What depends on the host (is
//! there such an interface?) or on the caller (may he?) is decided elsewhere.

use std::collections::{HashMap, HashSet};

use crate::attach::{Attachment, Role};
use crate::error::{Detail, ErrorBody, ErrorCode};
use crate::flow::{self, FLOWS_MAX};
use crate::name::{Ifname, MacAddr, Name, Netns};
use crate::object::{DOCUMENT_VERSION, Document, Member, Uplink, Vnic};
use crate::overlay::{self, OVERLAYS_MAX};
use crate::property::{MemberSettings, Scope};
use crate::vlan::VlanSet;
use crate::vnd::{self, VndErrno};

/// Zones in a document at most.
pub const ZONES_MAX: usize = 1_024;
/// Bridges in a document at most.
pub const BRIDGES_MAX: usize = 1_024;
/// Uplinks in a document at most.
pub const UPLINKS_MAX: usize = 1_024;
/// VNICs in a document at most.
pub const VNICS_MAX: usize = 16_384;
/// Static entries in a document at most.
pub const STATIC_ENTRIES_MAX: usize = 65_536;
/// Defects that are reported at most.
pub const DEFECTS_MAX: usize = 32;

struct Defects(Vec<Detail>);

impl Defects {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.push(Detail {
            path: path.into(),
            message: message.into(),
            errno: None,
        });
    }

    fn push(&mut self, detail: Detail) {
        if self.0.len() < DEFECTS_MAX {
            self.0.push(detail);
        }
    }
}

/// Checks a document: names are unique, every reference is to something that exists, no two VNICs have
/// one address in one VLAN of one bridge, no two attachments use one socket, interface or device. Of two, the one that has it in
/// `before` is named as its holder.
///
/// # Errors
/// [`ErrorCode::Invalid`] with a detail for every defect; if the first is of a vnd device, the code that its
/// [`VndErrno`] has.
pub fn validate(document: &Document, before: &Document) -> Result<(), ErrorBody> {
    let mut defects = Defects(Vec::new());
    if document.version != DOCUMENT_VERSION {
        let version = document.version;
        defects.add(
            "version",
            format!("{version} is not {DOCUMENT_VERSION}, all that is known"),
        );
    }
    check_counts(document, &mut defects);
    if defects.0.is_empty() {
        let index = Index::of(document, before, &mut defects);
        check_zones(document, &index, &mut defects);
        check_bridges(document, &mut defects);
        check_uplinks(&index, &mut defects);
        check_overlays(document, &index, &mut defects);
        check_vnics(&index, &mut defects);
        check_addresses(&index, &mut defects);
        check_sockets(document, &index, &mut defects);
        check_entries(document, &index, &mut defects);
        check_static_groups(document, &index, &mut defects);
        flow::check(document, |path, message| defects.add(path, message));
        vnd::check(document, |vnd, error| {
            defects.push(error.detail(&vnd.label()));
        });
    }
    let details = defects.0;
    match details.first() {
        None => Ok(()),
        Some(first) => {
            let more = match details.len() {
                1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            let message = format!("{}: {}{more}", first.path, first.message);
            Err(ErrorBody {
                code: first.errno.map_or(ErrorCode::Invalid, VndErrno::code),
                message,
                details,
            })
        }
    }
}

fn check_counts(document: &Document, defects: &mut Defects) {
    for (path, count, count_max) in [
        ("zones", document.zones.len(), ZONES_MAX),
        ("bridges", document.bridges.len(), BRIDGES_MAX),
        ("uplinks", document.uplinks.len(), UPLINKS_MAX),
        ("overlays", document.overlays.len(), OVERLAYS_MAX),
        ("vnics", document.vnics.len(), VNICS_MAX),
        ("flows", document.flows.len(), FLOWS_MAX),
        ("fdb", document.fdb.len(), STATIC_ENTRIES_MAX),
    ] {
        if count > count_max {
            defects.add(path, format!("{count} are more than {count_max}"));
        }
    }
}

struct Index<'a> {
    bridges: HashMap<&'a Name, bool>,
    zones: HashSet<&'a Name>,
    members: HashMap<&'a Name, Member<'a>>,
    /// The uplinks, those first that have their device already.
    uplinks: Vec<&'a Uplink>,
    /// The VNICs, those first that have their address, socket and interface already.
    vnics: Vec<&'a Vnic>,
}

impl<'a> Index<'a> {
    fn of(document: &'a Document, before: &Document, defects: &mut Defects) -> Self {
        let old: HashMap<&Name, &Vnic> = before.vnics.iter().map(|v| (&v.name, v)).collect();
        let is_new = |vnic: &&Vnic| {
            let has = |v: &Vnic| {
                let macs: Vec<_> = v.macs().collect();
                (v.zone.clone(), v.bridge.clone(), macs, v.attach.clone())
            };
            old.get(&vnic.name).is_none_or(|old| has(old) != has(vnic))
        };
        let devices: HashSet<_> = before
            .uplinks
            .iter()
            .map(|u| (&u.name, &u.device))
            .collect();
        let mut index = Self {
            bridges: HashMap::new(),
            zones: HashSet::new(),
            members: HashMap::new(),
            uplinks: document.uplinks.iter().collect(),
            vnics: document.vnics.iter().collect(),
        };
        index
            .uplinks
            .sort_by_cached_key(|u| !devices.contains(&(&u.name, &u.device)));
        index.vnics.sort_by_cached_key(is_new);
        for zone in &document.zones {
            if !index.zones.insert(&zone.name) {
                defects.add(format!("zones.{}", zone.name), "this name is used twice");
            }
        }
        for bridge in &document.bridges {
            let filtering = bridge.settings().vlan_filtering;
            if index.bridges.insert(&bridge.name, filtering).is_some() {
                defects.add(
                    format!("bridges.{}", bridge.name),
                    "this name is used twice",
                );
            }
        }
        for member in document.members() {
            if index.members.insert(member.name(), member).is_some() {
                let message =
                    "this name is used twice (uplinks, overlays and VNICs share their names)";
                defects.add(path_of(member), message);
            }
        }
        index
    }
}

fn path_of(member: Member<'_>) -> String {
    match member {
        Member::Uplink(uplink) => format!("uplinks.{}", uplink.name),
        Member::Overlay(overlay) => format!("overlays.{}", overlay.name),
        Member::Vnic(vnic) => format!("vnics.{}", vnic.name),
    }
}

fn check_zones(document: &Document, index: &Index<'_>, defects: &mut Defects) {
    for zone in &document.zones {
        if let Err(error) = zone.properties.check(Scope::Zone) {
            defects.add(format!("zones.{}.properties", zone.name), error.to_string());
        }
        for bridge in zone
            .bridges
            .iter()
            .filter(|bridge| !index.bridges.contains_key(bridge))
        {
            let path = format!("zones.{}.bridges", zone.name);
            defects.add(path, format!("there is no bridge \"{bridge}\""));
        }
    }
}

fn check_bridges(document: &Document, defects: &mut Defects) {
    for bridge in &document.bridges {
        if let Err(error) = bridge.properties.check(Scope::Bridge) {
            defects.add(
                format!("bridges.{}.properties", bridge.name),
                error.to_string(),
            );
        } else if let Some(Err(rule)) = bridge.settings().stp.map(|stp| stp.check()) {
            defects.add(format!("bridges.{}.properties", bridge.name), rule);
        }
    }
}

fn check_member(member: Member<'_>, index: &Index<'_>, defects: &mut Defects) {
    let path = path_of(member);
    if let Err(error) = member.properties().check(member.scope()) {
        defects.add(format!("{path}.properties"), error.to_string());
        return;
    }
    let settings = member.settings();
    match index.bridges.get(member.bridge()) {
        None => {
            let message = format!("there is no bridge \"{}\"", member.bridge());
            defects.add(format!("{path}.bridge"), message);
        }
        Some(false) => {
            for name in ["vlan", "tagged"] {
                if member.properties().get(name).is_some() {
                    let bridge = member.bridge();
                    let message = format!("bridge \"{bridge}\" has vlan-filtering off");
                    defects.add(format!("{path}.properties.{name}"), message);
                }
            }
        }
        Some(true) => check_vlans(&path, &settings, defects),
    }
    for (is_set, name) in [
        (!settings.learn, "learn=off"),
        (settings.span, "span=on"),
        (settings.locked, "locked=on"),
    ] {
        if settings.standby && is_set {
            let message = format!("with {name} the VNIC's address would never be learned");
            defects.add(format!("{path}.properties.state"), message);
        }
    }
    if let Some(Err(error)) = member.attach().map(Attachment::check) {
        defects.add(format!("{path}.attach"), error.to_string());
    }
}

fn check_vlans(path: &str, settings: &MemberSettings, defects: &mut Defects) {
    if let Some(vlan) = settings.vlan.filter(|&vlan| settings.tagged.contains(vlan)) {
        let message = format!("VLAN {vlan} is both untagged (vlan) and tagged");
        defects.add(format!("{path}.properties.tagged"), message);
    }
}

/// Groups that members are in at all times: in VLANs that they have, and no more than their bridge has room for.
fn check_static_groups(document: &Document, index: &Index<'_>, defects: &mut Defects) {
    let mut counts: HashMap<&Name, u32> = HashMap::new();
    for member in document.members() {
        let Some(&filters) = index.bridges.get(member.bridge()) else {
            continue;
        };
        let settings = member.settings();
        let mut seen = HashSet::new();
        for (vlan, group) in settings.static_groups(filters) {
            *counts.entry(member.bridge()).or_default() += 1;
            let defect = match vlan {
                None => "the member does not have its VLAN",
                Some(_) if !seen.insert((vlan, group)) => "is given twice in a VLAN",
                Some(_) => continue,
            };
            let path = format!("{}.properties.multicast-groups", path_of(member));
            defects.add(path, format!("{group}: {defect}"));
        }
    }
    for bridge in &document.bridges {
        let count = counts.get(&bridge.name).copied().unwrap_or(0);
        let count_max = bridge.settings().snoop.map(|snoop| snoop.groups_max);
        if let Some(max) = count_max.filter(|&max| count > max) {
            let path = format!("bridges.{}.properties.multicast-groups-max", bridge.name);
            let message = format!("{max} is less than the {count} multicast-groups of members");
            defects.add(path, message);
        }
    }
}

fn check_uplinks(index: &Index<'_>, defects: &mut Defects) {
    let mut devices: HashMap<&Ifname, &Name> = HashMap::new();
    for &uplink in &index.uplinks {
        check_member(Member::Uplink(uplink), index, defects);
        let path = format!("uplinks.{}", uplink.name);
        if !Attachment::UPLINK_KINDS.contains(&uplink.attach.kind()) {
            let message = format!(
                "an uplink takes \"packet\" or \"xdp\", not \"{}\"",
                uplink.attach.kind()
            );
            defects.add(format!("{path}.attach"), message);
        }
        if let Some(other) = devices.insert(&uplink.device, &uplink.name) {
            let message = format!("\"{}\" is taken by uplink \"{other}\"", uplink.device);
            defects.add(format!("{path}.device"), message);
        }
    }
}

fn check_overlays(document: &Document, index: &Index<'_>, defects: &mut Defects) {
    for overlay in &document.overlays {
        check_member(Member::Overlay(overlay), index, defects);
    }
    let filters = |bridge: &Name| index.bridges.get(bridge).copied();
    overlay::check(document, filters, |path, message| {
        defects.add(path, message)
    });
}

/// Interfaces of VNICs, by namespace and name.
type Interfaces<'a> = HashMap<(Option<&'a Netns>, Ifname), &'a Name>;

/// Enters the kernel interface of a VNIC.
fn check_interface<'a>(
    vnic: &'a Vnic,
    (netns, ifname): (Option<&'a Netns>, Option<Ifname>),
    interfaces: &mut Interfaces<'a>,
    defects: &mut Defects,
) {
    let path = format!("vnics.{}.attach.name", vnic.name);
    let Some(ifname) = ifname else {
        let message = format!("\"{}\" cannot name an interface: give one", vnic.name);
        return defects.add(path, message);
    };
    if let Some(other) = interfaces.insert((netns, ifname), &vnic.name) {
        let message = format!("VNIC \"{other}\" has this interface already");
        defects.add(path, message);
    }
}

fn check_vnics(index: &Index<'_>, defects: &mut Defects) {
    let mut taps = Interfaces::new();
    for &vnic in &index.vnics {
        check_member(Member::Vnic(vnic), index, defects);
        let path = format!("vnics.{}", vnic.name);
        if let Some(zone) = vnic.zone.name().filter(|zone| !index.zones.contains(zone)) {
            defects.add(
                format!("{path}.zone"),
                format!("there is no zone \"{zone}\""),
            );
        }
        if let Some(mac) = vnic.mac.filter(|mac| mac.is_multicast() || mac.is_zero()) {
            defects.add(
                format!("{path}.mac"),
                format!("{mac} cannot be the address of a VNIC"),
            );
        }
        match &vnic.attach {
            Attachment::Packet(_) | Attachment::Xdp(_) => {
                let message = format!("\"{}\" is for uplinks", vnic.attach.kind());
                defects.add(format!("{path}.attach"), message);
            }
            Attachment::Tap(tap) => {
                let place = (tap.netns.as_ref(), tap.ifname(&vnic.name));
                check_interface(vnic, place, &mut taps, defects);
            }
            Attachment::Veth(veth) => {
                let place = (Some(&veth.netns), veth.ifname(&vnic.name));
                check_interface(vnic, place, &mut taps, defects);
            }
            Attachment::Memif(_) | Attachment::VhostUser(_) | Attachment::None(_) => {}
        }
    }
}

fn check_addresses(index: &Index<'_>, defects: &mut Defects) {
    let mut seen: HashMap<(&Name, MacAddr), Vec<(VlanSet, &Vnic)>> = HashMap::new();
    for &vnic in &index.vnics {
        let filtering = index.bridges.get(&vnic.bridge).copied().unwrap_or(false);
        let vlans = if filtering {
            vnic.settings().vlans()
        } else {
            VlanSet::of([1])
        };
        for (number, mac) in vnic.macs().enumerate() {
            let others = seen.entry((&vnic.bridge, mac)).or_default();
            if let Some((_, other)) = others.iter().find(|(set, _)| set.intersects(&vlans)) {
                let message = format!(
                    "{mac} is the address of VNIC \"{}\" on the same bridge and VLAN",
                    other.name
                );
                let place = match number {
                    0 if vnic.mac.is_some() => "mac",
                    _ => "properties.secondary-macs",
                };
                defects.add(format!("vnics.{}.{place}", vnic.name), message);
            }
            others.push((vlans.clone(), vnic));
        }
    }
}

/// One socket that windlass serves carries many memif interfaces with different numbers; a vhost-user
/// socket carries one device.
fn check_sockets(document: &Document, index: &Index<'_>, defects: &mut Defects) {
    let mut interfaces: HashSet<(String, u32)> = HashSet::new();
    let mut users: HashMap<String, (&'static str, Role)> = HashMap::new();
    let owners: HashMap<&Name, (u32, u32)> = (document.zones.iter())
        .map(|zone| (&zone.name, (zone.owner_uid, zone.owner_gid)))
        .collect();
    let mut first: HashMap<String, &Vnic> = HashMap::new();
    for &vnic in &index.vnics {
        let Some((socket, role)) = vnic.attach.socket() else {
            continue;
        };
        let path = format!("vnics.{}.attach", vnic.name);
        let place = if socket.is_absolute() {
            socket.to_string()
        } else {
            format!("{}:{socket}", vnic.zone)
        };
        let kind = vnic.attach.kind();
        let other = *first.entry(place.clone()).or_insert(vnic);
        let owner = |vnic: &Vnic| vnic.zone.name().and_then(|zone| owners.get(zone));
        if role == Role::Server && owner(vnic) != owner(other) {
            let message = format!(
                "socket \"{socket}\" belongs to the owner of zone \"{}\", as VNIC \"{}\" does: give this one another",
                other.zone, other.name
            );
            defects.add(format!("{path}.socket"), message);
        }
        match users.insert(place.clone(), (kind, role)) {
            None => {}
            Some(("memif", other)) if kind == "memif" && other == role => {}
            Some(_) => defects.add(
                &path,
                format!("socket \"{socket}\" is used otherwise already"),
            ),
        }
        if let Attachment::Memif(memif) = &vnic.attach
            && !interfaces.insert((place, memif.id))
        {
            let message = format!("socket \"{socket}\" has an interface {} already", memif.id);
            defects.add(format!("{path}.id"), message);
        }
    }
}

fn check_entries(document: &Document, index: &Index<'_>, defects: &mut Defects) {
    let mut keys = HashSet::new();
    let own: HashMap<(&Name, MacAddr), &Vnic> = (document.vnics.iter())
        .flat_map(|vnic| vnic.macs().map(move |mac| ((&vnic.bridge, mac), vnic)))
        .collect();
    for entry in &document.fdb {
        let path = format!("fdb.{}.{}.{}", entry.bridge, entry.vlan, entry.mac);
        if !keys.insert(entry.key()) {
            defects.add(&path, "this entry is given twice");
        }
        if entry.mac.is_multicast() || entry.mac.is_zero() {
            defects.add(&path, "only the address of one station can be entered");
        }
        if let Some(vnic) = own.get(&(&entry.bridge, entry.mac)) {
            let message = match entry.member == vnic.name {
                true => format!(
                    "VNIC \"{}\" has an entry of its own address anyway",
                    vnic.name
                ),
                false => format!(
                    "VNIC \"{}\" has this address, and the entry gives it to \"{}\"",
                    vnic.name, entry.member
                ),
            };
            defects.add(&path, message);
        }
        let Some(&filtering) = index.bridges.get(&entry.bridge) else {
            defects.add(&path, format!("there is no bridge \"{}\"", entry.bridge));
            continue;
        };
        let Some(member) = index
            .members
            .get(&entry.member)
            .filter(|m| *m.bridge() == entry.bridge)
        else {
            let (bridge, member) = (&entry.bridge, &entry.member);
            defects.add(
                &path,
                format!("bridge \"{bridge}\" has no member \"{member}\""),
            );
            continue;
        };
        let vlan_ok = match filtering {
            true => member.settings().vlans().contains(entry.vlan),
            false => entry.vlan == 0,
        };
        if !vlan_ok {
            let (vlan, member) = (entry.vlan, &entry.member);
            defects.add(&path, format!("member \"{member}\" has no VLAN {vlan}"));
        }
        match (member, entry.target) {
            (Member::Overlay(overlay), None) => {
                let message = format!("an entry of overlay \"{}\" needs its target", overlay.name);
                defects.add(format!("{path}.target"), message);
            }
            (Member::Uplink(_) | Member::Vnic(_), Some(_)) => {
                let message = format!("\"{}\" is no overlay", entry.member);
                defects.add(format!("{path}.target"), message);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defect(json: serde_json::Value) -> String {
        let document: Document = serde_json::from_value(json).expect("form");
        validate(&document, &Document::default())
            .expect_err("invalid")
            .message
    }

    fn breaches(cases: impl IntoIterator<Item = (serde_json::Value, &'static str)>) {
        for (json, expected) in cases {
            let message = defect(json);
            assert!(
                message.starts_with(&format!("{expected}: ")),
                "{message} for {expected}"
            );
        }
    }

    /// Each rule about names, references and addresses finds its own breach and says where it is.
    #[test]
    fn every_reference_is_checked() {
        use serde_json::json;
        let b = json!([{"name": "br0"}]);
        let memif = json!({"kind": "memif", "socket": "m", "id": 1, "role": "server"});
        breaches([
            (json!({"version": 2}), "version"),
            (
                json!({"version": 1, "bridges": [{"name": "a"}, {"name": "a"}]}),
                "bridges.a",
            ),
            (
                json!({"version": 1, "vnics": [{"name": "v", "bridge": "x"}]}),
                "vnics.v.bridge",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [{"name": "v", "bridge": "br0", "zone": "z"}]}),
                "vnics.v.zone",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [
                    {"name": "v", "bridge": "br0", "mac": "02:00:00:00:00:01"},
                    {"name": "w", "bridge": "br0", "mac": "02:00:00:00:00:01"}]}),
                "vnics.w.mac",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [{"name": "v", "bridge": "br0", "mac": "03:00:00:00:00:01"}]}),
                "vnics.v.mac",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [
                    {"name": "v", "bridge": "br0", "attach": memif},
                    {"name": "w", "bridge": "br0", "attach": memif}]}),
                "vnics.w.attach.id",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [
                    {"name": "v", "bridge": "br0", "attach": {"kind": "tap", "name": "t"}},
                    {"name": "w", "bridge": "br0", "attach": {"kind": "tap", "name": "t"}}]}),
                "vnics.w.attach.name",
            ),
        ]);
    }

    /// Each rule about interfaces, properties and entries finds its own breach and says where it is.
    #[test]
    fn every_rule_bites() {
        use serde_json::json;
        let b = json!([{"name": "br0"}]);
        breaches([
            (
                json!({"version": 1, "bridges": b, "vnics": [
                    {"name": "longer-than-an-ifname", "bridge": "br0", "attach": {"kind": "tap"}}]}),
                "vnics.longer-than-an-ifname.attach.name",
            ),
            (
                json!({"version": 1, "bridges": b, "uplinks": [{"name": "v", "device": "e", "bridge": "br0"}],
                    "vnics": [{"name": "v", "bridge": "br0"}]}),
                "vnics.v",
            ),
            (
                json!({"version": 1, "bridges": b, "uplinks": [
                    {"name": "u", "device": "e", "bridge": "br0"}, {"name": "v", "device": "e", "bridge": "br0"}]}),
                "uplinks.v.device",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [
                    {"name": "v", "bridge": "br0", "properties": {"vlan": 5, "tagged": "4-6"}}]}),
                "vnics.v.properties.tagged",
            ),
            (
                json!({"version": 1, "bridges": [{"name": "br0", "properties": {"vlan-filtering": false}}],
                    "vnics": [{"name": "v", "bridge": "br0", "properties": {"vlan": 5}}]}),
                "vnics.v.properties.vlan",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [
                    {"name": "v", "bridge": "br0", "properties": {"ageing": 5}}]}),
                "vnics.v.properties",
            ),
            (
                json!({"version": 1, "zones": [{"name": "z", "owner_uid": 1, "owner_gid": 1, "bridges": ["x"]}]}),
                "zones.z.bridges",
            ),
            (
                json!({"version": 1, "bridges": b, "fdb": [
                    {"bridge": "br0", "vlan": 1, "mac": "02:00:00:00:00:01", "member": "v"}]}),
                "fdb.br0.1.02:00:00:00:00:01",
            ),
            (
                json!({"version": 1, "bridges": b, "vnics": [{"name": "v", "bridge": "br0"}], "fdb": [
                    {"bridge": "br0", "vlan": 2, "mac": "02:00:00:00:00:01", "member": "v"}]}),
                "fdb.br0.2.02:00:00:00:00:01",
            ),
        ]);
    }

    /// A document with too many objects of a kind is refused before anything else of it is looked at.
    #[test]
    fn numbers_of_objects_are_limited() {
        use serde_json::json;
        let zones: Vec<_> = (0..=ZONES_MAX)
            .map(|n| json!({"name": format!("z{n}"), "owner_uid": 1, "owner_gid": 1, "bridges": ["absent"]}))
            .collect();
        let message = defect(json!({"version": 1, "zones": zones}));
        assert_eq!(message, "zones: 1025 are more than 1024");
    }

    /// A socket that windlass serves has one owner: interfaces of several zones share it only if one person owns them.
    #[test]
    fn a_socket_has_one_owner() {
        use serde_json::json;
        let document = |uids: [u32; 2]| {
            let memif =
                |id: u32| json!({"kind": "memif", "socket": "/run/m", "id": id, "role": "server"});
            let zone = |name: &str, uid: u32| json!({"name": name, "owner_uid": uid, "owner_gid": 1, "bridges": ["br0"]});
            json!({"version": 1, "bridges": [{"name": "br0"}],
                "zones": [zone("y", uids[0]), zone("z", uids[1])],
                "vnics": [
                    {"name": "v", "bridge": "br0", "zone": "y", "attach": memif(0)},
                    {"name": "w", "bridge": "br0", "zone": "z", "attach": memif(1)}]})
        };
        let message = defect(document([1, 2]));
        assert!(
            message.starts_with("vnics.w.attach.socket: ") && message.contains("zone \"y\""),
            "{message}"
        );
        let same: Document = serde_json::from_value(document([1, 1])).expect("form");
        validate(&same, &Document::default()).expect("one owner");
    }

    /// One address may serve in two VLANs, and one memif socket two interfaces.
    #[test]
    fn what_is_allowed() {
        let document: Document = serde_json::from_value(serde_json::json!({
            "version": 1, "bridges": [{"name": "br0"}], "vnics": [
                {"name": "v", "bridge": "br0", "mac": "02:00:00:00:00:01", "properties": {"vlan": 10},
                 "attach": {"kind": "memif", "socket": "m", "id": 0, "role": "server"}},
                {"name": "w", "bridge": "br0", "mac": "02:00:00:00:00:01", "properties": {"vlan": 20},
                 "attach": {"kind": "memif", "socket": "m", "id": 1, "role": "server"}}]
        }))
        .expect("form");
        assert_eq!(validate(&document, &Document::default()), Ok(()));
    }

    /// Of two VNICs with one address, interface or socket, and two uplinks with one device, the one that had it before is named
    /// as its holder, in whatever order their names are.
    #[test]
    fn the_holder_is_who_had_it_before() {
        use serde_json::{Value, json};
        let b = json!([{"name": "br0"}]);
        let vnics = |both: [Value; 2]| json!({"version": 1, "bridges": b, "vnics": both});
        let had = |name: &str, mac: u8, mut attach: Value| {
            let mac = format!("02:00:00:00:00:{mac:02x}");
            json!({"name": name, "bridge": "br0", "mac": mac, "attach": attach.take()})
        };
        let memif = |id: u32| json!({"kind": "memif", "socket": "m", "id": id, "role": "server"});
        let tap = json!({"kind": "tap", "name": "t"});
        let uplink =
            |name: &str, device: &str| json!({"name": name, "device": device, "bridge": "br0"});
        let uplinks = |both: Vec<Value>| json!({"version": 1, "bridges": b, "uplinks": both});
        let none = || json!({"kind": "none"});
        for (before, after, path, holder) in [
            (
                vnics([had("a", 2, none()), had("z", 1, none())]),
                vnics([had("a", 1, none()), had("z", 1, none())]),
                "vnics.a.mac",
                "\"z\"",
            ),
            (
                vnics([had("a", 2, none()), had("z", 1, tap.clone())]),
                vnics([had("a", 2, tap.clone()), had("z", 1, tap)]),
                "vnics.a.attach.name",
                "\"z\"",
            ),
            (
                vnics([had("a", 2, memif(1)), had("z", 1, memif(2))]),
                vnics([had("a", 2, memif(2)), had("z", 1, memif(2))]),
                "vnics.a.attach.id",
                "\"m\"",
            ),
            (
                uplinks(vec![uplink("z", "e")]),
                uplinks(vec![uplink("a", "e"), uplink("z", "e")]),
                "uplinks.a.device",
                "\"z\"",
            ),
        ] {
            let [before, after]: [Document; 2] =
                [before, after].map(|json| serde_json::from_value(json).expect("form"));
            let message = validate(&after, &before).expect_err("clash").message;
            assert!(message.starts_with(&format!("{path}: ")), "{message}");
            assert!(message.contains(holder), "{message}");
        }
    }

    /// A VNIC in standby must be able to take its address over.
    #[test]
    fn standby_needs_learning() {
        use serde_json::json;
        let vnic = |with: &str, value: bool| {
            json!({"version": 1, "bridges": [{"name": "br0"}], "vnics": [
                {"name": "v", "bridge": "br0", "properties": {"state": "standby", with: value}}]})
        };
        breaches([
            (vnic("learn", false), "vnics.v.properties.state"),
            (vnic("span", true), "vnics.v.properties.state"),
        ]);
        let good: Document = serde_json::from_value(vnic("learn", true)).expect("form");
        assert_eq!(validate(&good, &Document::default()), Ok(()));
        let odd = serde_json::from_value::<Document>(vnic("state", true)).expect_err("no word");
        assert!(odd.to_string().contains("a string"), "{odd}");
    }

    /// A thousand defects are reported as the first few.
    #[test]
    fn defects_are_bounded() {
        let vnics: Vec<_> = (0..1000)
            .map(|i| serde_json::json!({"name": format!("v{i}"), "bridge": "x"}))
            .collect();
        let json = serde_json::json!({"version": 1, "vnics": vnics});
        let document: Document = serde_json::from_value(json).expect("form");
        assert_eq!(
            validate(&document, &Document::default())
                .expect_err("invalid")
                .details
                .len(),
            DEFECTS_MAX
        );
    }
}
