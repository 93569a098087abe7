//! Overlays: layer-2 networks of a tenant that span hosts, as members of a bridge.
//!
//! # Model
//! An [`Overlay`] has an encapsulation (how a frame goes on the wire) and a search (which host has an address). It is a member of one
//! bridge, beside uplinks and VNICs, and shares their space of names. Without a bridge of its own choice, a bridge with its name comes
//! and goes with it. On a bridge that filters VLANs, each VLAN may have its network identifier.
//!
//! A *target* is a remote host as one network of the overlay sees it: an underlay address and a port. An entry of the forwarding table
//! that a person made for an overlay ([`StaticEntry::target`](crate::StaticEntry::target)) says behind which target its address is.
//!
//! Names of properties are those of illumos' overlays (`vxlan/listen-ip`, `direct/dest-ip`, `files/config`).
//!
//! # Limits
//! [`OVERLAYS_MAX`] overlays in a document, [`VNIS_MAX`] network identifiers of one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guard::AllowedIps;
use crate::name::Name;
use crate::object::Document;
use crate::option::Value;
use crate::property::{MemberSettings, Properties, PropertyPatch, Scope};
use crate::vlan::VlanSet;

mod address;
mod rows;
mod view;

pub use address::{AddressClaim, AddressRelease, ClaimedAddresses};
pub(crate) use rows::ROWS;
pub use view::{HostLife, HostView, OverlayView, TargetKind, TargetQuery, TargetView};

/// Overlays in a document at most.
pub const OVERLAYS_MAX: usize = 1_024;
/// Network identifiers of one overlay at most: as many as there are VLANs.
pub const VNIS_MAX: usize = 4_094;
/// The VXLAN port (RFC 7348 section 8).
pub const VXLAN_PORT: u16 = 4789;
/// Bytes that the encapsulation adds to a packet: outer IPv4 header, UDP, VXLAN, and the inner Ethernet header.
pub const OVERHEAD_V4: u32 = 50;
/// Name servers that hosts are told at most.
const NAME_SERVERS_MAX: usize = 8;
/// The same over IPv6.
pub const OVERHEAD_V6: u32 = 70;

/// MTU of a path of which nothing is known, in bytes.
const PATH_MTU: u32 = 1500;

/// How an overlay puts a frame on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encap {
    /// VXLAN (RFC 7348).
    #[default]
    Vxlan,
}

/// How an overlay finds the target of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Search {
    /// Everything goes to one target.
    Direct,
    /// A file has every address.
    Files,
    /// Addresses are learned from frames; unknown ones go to all targets.
    Learn,
    /// A registry in etcd has every address.
    Etcd,
    /// A program answers.
    Plugin,
}

impl Search {
    /// Every way to search.
    pub const ALL: [Self; 5] = [
        Self::Direct,
        Self::Files,
        Self::Learn,
        Self::Etcd,
        Self::Plugin,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Files => "files",
            Self::Learn => "learn",
            Self::Etcd => "etcd",
            Self::Plugin => "plugin",
        }
    }

    /// The property without which it cannot begin.
    fn required(self) -> Option<&'static str> {
        match self {
            Self::Direct => Some("direct/dest-ip"),
            Self::Files => Some("files/config"),
            Self::Etcd => Some("etcd/endpoints"),
            Self::Learn | Self::Plugin => None,
        }
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Search {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| {
            let words = Self::ALL.map(Self::as_str).join(", ");
            format!("\"{text}\" is none of {words}")
        })
    }
}

/// A layer-2 network over the hosts' own network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Overlay {
    /// Its name.
    pub name: Name,
    /// The bridge that it is a member of. Without it, a bridge of its own name, which comes and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Name>,
    /// How it puts a frame on the wire.
    #[serde(default)]
    pub encap: Encap,
    /// How it finds the target of an address.
    pub search: Search,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

impl Overlay {
    /// The bridge that it is a member of.
    pub fn bridge(&self) -> &Name {
        self.bridge.as_ref().unwrap_or(&self.name)
    }

    /// Every property with the value that holds.
    pub fn settings(&self) -> OverlaySettings {
        OverlaySettings::of(self)
    }

    /// What it is on its bridge, which filters VLANs or not.
    pub fn member(&self) -> MemberSettings {
        let settings = self.settings();
        let vlans = settings.vnis.iter().map(|(vlan, _)| vlan);
        MemberSettings {
            learn: settings.learns,
            discover: settings.unknown == Unknown::Flood,
            neigh_suppress: settings.proxies.arp || settings.proxies.ndp,
            vlan: settings.vnis.is_empty().then_some(1),
            tagged: VlanSet::of(vlans),
            ..MemberSettings::of(Scope::Overlay, &self.properties)
        }
    }
}

/// Body of `PATCH /v1/overlays/NAME`: what is missing stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverlayPatch {
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "PropertyPatch::is_empty")]
    pub properties: PropertyPatch,
}

impl OverlayPatch {
    /// Changes the overlay.
    pub fn apply(self, overlay: &mut Overlay) {
        overlay.properties.patch(&self.properties);
    }
}

/// A network identifier for each of some VLANs: `10=10010,20=20020`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vnis(BTreeMap<u16, u32>);

impl Vnis {
    /// Each VLAN with its identifier, in order of the VLANs.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.0.iter().map(|(vlan, vni)| (*vlan, *vni))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Vnis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.iter().map(|(vlan, vni)| format!("{vlan}={vni}"));
        f.pad(&pairs.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Vnis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut vnis, mut used) = (BTreeMap::new(), BTreeSet::new());
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (vlan, vni) = pair
                .split_once('=')
                .and_then(|(vlan, vni)| Some((vlan.parse().ok()?, vni.parse().ok()?)))
                .filter(|(vlan, vni)| (1..=4094).contains(vlan) && *vni < 1 << 24)
                .ok_or_else(|| format!("\"{pair}\" is not VLAN=VNI"))?;
            if vnis.insert(vlan, vni).is_some() {
                return Err(format!("VLAN {vlan} is given twice"));
            }
            if !used.insert(vni) {
                return Err(format!("VNI {vni} is given twice"));
            }
        }
        Ok(Self(vnis))
    }
}

/// Remote hosts: `192.0.2.2,[2001:db8::2]:8472`. Without a port, that of the overlay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remotes(Vec<(IpAddr, Option<u16>)>);

impl Remotes {
    /// Their addresses, each once, with this port where none is given.
    pub fn with_port(&self, port: u16) -> Vec<SocketAddr> {
        let all = self
            .0
            .iter()
            .map(|(ip, own)| SocketAddr::new(*ip, own.unwrap_or(port)));
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl fmt::Display for Remotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.iter().map(|(ip, port)| match port {
            Some(port) => SocketAddr::new(*ip, *port).to_string(),
            None => ip.to_string(),
        });
        f.pad(&all.collect::<Vec<_>>().join(","))
    }
}

/// One remote host, with or without its port.
fn remote(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let with_port = || {
        let to: SocketAddr = text.parse().ok()?;
        Some((to.ip(), Some(to.port()).filter(|port| *port != 0)?))
    };
    let (ip, port) = match text.parse::<IpAddr>() {
        Ok(ip) => (ip, None),
        Err(_) => with_port().map(|(ip, port)| (ip, Some(port)))?,
    };
    (!ip.is_unspecified()).then_some((ip, port))
}

impl FromStr for Remotes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = text.split(',').filter(|one| !one.is_empty());
        let all =
            all.map(|one| remote(one).ok_or_else(|| format!("\"{one}\" is not IP or IP:PORT")));
        all.collect::<Result<_, _>>().map(Self)
    }
}

/// What becomes of frames to an address that nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// They are dropped.
    Drop,
    /// They go to all targets.
    Flood,
    /// They wait while the search is asked.
    Lookup,
}

/// Every property of an overlay, with the value that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlaySettings {
    /// The one network identifier, if VLANs have none of their own.
    pub vnetid: Option<u32>,
    /// The network identifier of each VLAN.
    pub vnis: Vnis,
    /// Frames keep the tag of their VLAN inside the tunnel.
    pub keeps_tag: bool,
    /// Largest inner packet in bytes; `None`: what the underlay allows.
    pub mtu: Option<u32>,
    /// Where its datagrams come from and arrive; `None` while it is not set.
    pub listen: Option<SocketAddr>,
    /// Namespace of the underlay; `None`: the daemon's own.
    pub netns: Option<String>,
    /// TTL of outer packets.
    pub ttl: u8,
    /// Traffic class of outer packets; `None`: that of the inner one.
    pub tos: Option<u8>,
    /// Source ports of the flows to one target, at most.
    pub ports: u8,
    /// The one target.
    pub direct: Option<SocketAddr>,
    /// The file of the search.
    pub file: Option<PathBuf>,
    /// Targets that get what is flooded.
    pub remotes: Remotes,
    /// A group address that gets what is flooded, in their place.
    pub group: Option<IpAddr>,
    /// Frames of hosts that are no target are taken, and these become targets.
    pub is_open: bool,
    /// What becomes of frames to unknown addresses.
    pub unknown: Unknown,
    /// Broadcast and multicast frames go to all targets.
    pub broadcasts: bool,
    /// Addresses are learned from frames out of the tunnel.
    pub learns: bool,
    /// What is answered in the place of others.
    pub proxies: Proxies,
    /// Prefixes of the network.
    pub subnets: AllowedIps,
    /// Its routers.
    pub routers: AllowedIps,
    /// Its name servers.
    pub name_servers: AllowedIps,
    /// How long addresses hold that DHCP gives, in seconds.
    pub lease_s: u32,
    /// A frame must come from the target that has its source address.
    pub is_strict: bool,
}

/// What an overlay answers in the place of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proxies {
    /// ARP requests for remote addresses.
    pub arp: bool,
    /// Neighbour solicitations for them.
    pub ndp: bool,
    /// DHCP clients.
    pub dhcp: bool,
    /// Router solicitations.
    pub ra: bool,
}

impl Proxies {
    /// Whether hosts are told their addresses or routers.
    pub fn serve(self) -> bool {
        self.dhcp || self.ra
    }
}

impl OverlaySettings {
    fn of(overlay: &Overlay) -> Self {
        let set = |name: &str| overlay.properties.effective(Scope::Overlay, name);
        let text = |name| match set(name) {
            Some(Value::Text(text)) if !text.is_empty() => Some(text),
            _ => None,
        };
        let number = |name| match set(name) {
            Some(Value::Number(number)) => Some(number),
            _ => None,
        };
        let ips = |name| text(name).and_then(|text| text.parse().ok());
        let flag = |name| match set(name) {
            Some(Value::Flag(flag)) => Some(flag),
            _ => None,
        };
        let ip = |name| text(name).and_then(|text| text.parse::<IpAddr>().ok());
        let port = |name| number(name).map_or(VXLAN_PORT, |port| port as u16);
        let floods = matches!(overlay.search, Search::Direct | Search::Learn);
        let proxies = text("proxy").unwrap_or_default();
        let answers = |word| proxies.split(',').any(|one| one == word);
        Self {
            vnetid: number("vnetid").map(|vni| vni as u32),
            vnis: text("vnis")
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            keeps_tag: text("inner-tag").as_deref() == Some("keep"),
            mtu: number("mtu").map(|mtu| mtu as u32),
            listen: ip("vxlan/listen-ip").map(|ip| SocketAddr::new(ip, port("vxlan/listen-port"))),
            netns: text("underlay-netns"),
            ttl: number("vxlan/ttl").map_or(64, |ttl| ttl as u8),
            tos: number("vxlan/tos").map(|tos| tos as u8),
            ports: number("vxlan/ports").map_or(16, |ports| ports as u8),
            direct: ip("direct/dest-ip").map(|ip| SocketAddr::new(ip, port("direct/dest-port"))),
            file: text("files/config").map(PathBuf::from),
            remotes: text("learn/remotes")
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            group: ip("learn/group"),
            is_open: flag("learn/open").unwrap_or(false),
            unknown: match text("unknown").as_deref() {
                Some("drop") => Unknown::Drop,
                Some("flood") => Unknown::Flood,
                Some("lookup") => Unknown::Lookup,
                _ if overlay.search == Search::Plugin => Unknown::Lookup,
                _ if floods => Unknown::Flood,
                _ => Unknown::Drop,
            },
            broadcasts: flag("broadcast").unwrap_or(floods),
            learns: matches!(overlay.search, Search::Direct | Search::Learn),
            proxies: Proxies {
                arp: answers("arp"),
                ndp: answers("ndp"),
                dhcp: answers("dhcp"),
                ra: answers("ra"),
            },
            subnets: ips("proxy/subnet").unwrap_or_default(),
            routers: ips("proxy/router").unwrap_or_default(),
            name_servers: ips("proxy/dns").unwrap_or_default(),
            lease_s: number("proxy/lease").map_or(3600, |seconds| seconds as u32),
            is_strict: text("source-check").as_deref() == Some("strict"),
        }
    }

    /// How it uses its underlay address: what overlays at one address have in common.
    pub(crate) fn endpoint(&self) -> (u8, Option<u8>, u8) {
        (self.ttl, self.tos, self.ports)
    }

    /// Whether both are at one underlay address, and use it in one way.
    pub(crate) fn shares_endpoint(&self, other: &Self) -> bool {
        (self.listen, &self.netns) == (other.listen, &other.netns)
            && self.endpoint() == other.endpoint()
    }

    /// Each VLAN with its network identifier. VLAN 1 has the only one on a bridge that filters VLANs, VLAN 0 on another.
    pub fn networks(&self, filters: bool) -> Vec<(u16, u32)> {
        match self.vnetid {
            Some(vni) => vec![(u16::from(filters), vni)],
            None => self.vnis.iter().collect(),
        }
    }

    /// Largest inner packet in bytes: as set, else what a path of 1500 bytes carries.
    pub fn inner_mtu(&self) -> u32 {
        let overhead = match self.listen {
            Some(listen) if listen.is_ipv6() => OVERHEAD_V6,
            _ => OVERHEAD_V4,
        };
        self.mtu.unwrap_or(PATH_MTU - overhead)
    }

    /// The router of each version of IP.
    pub fn routers(&self) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let routers = self.routers.iter();
        routers.fold((None, None), |(v4, v6), (ip, _)| match ip {
            IpAddr::V4(ip) => (Some(ip), v6),
            IpAddr::V6(ip) => (v4, Some(ip)),
        })
    }

    /// What is wrong with what hosts are told, and the property that is.
    fn check_proxies(&self, search: Search) -> Result<(), (&'static str, String)> {
        // These can tell the DHCP server of a client.
        let can_proxy = matches!(search, Search::Files | Search::Plugin);
        let needs = self.proxies.ra || (self.proxies.dhcp && !can_proxy);
        if needs && self.subnets.is_empty() {
            let message = "proxy=dhcp and proxy=ra need it".to_owned();
            return Err(("proxy/subnet", message));
        }
        let mut name_servers = self.name_servers.iter();
        let is_one = |(ip, bits): &(IpAddr, u8)| *bits == if ip.is_ipv4() { 32 } else { 128 };
        if let Some((ip, _)) = name_servers.find(|server| !is_one(server)) {
            return Err(("proxy/dns", format!("{ip} is no single address")));
        }
        if self.name_servers.iter().count() > NAME_SERVERS_MAX {
            return Err(("proxy/dns", format!("at most {NAME_SERVERS_MAX}")));
        }
        let (mut routers, bad) = (self.routers.iter(), |message| {
            Err(("proxy/router", message))
        });
        let is_router = |(ip, bits): &(IpAddr, u8)| match ip {
            IpAddr::V4(_) => *bits == 32,
            IpAddr::V6(v6) => *bits == 128 && v6.is_unicast_link_local(),
        };
        if let Some((ip, _)) = routers.find(|router| !is_router(router)) {
            return bad(format!(
                "{ip} is neither an IPv4 nor an IPv6 link-local address"
            ));
        }
        let v4 = self.routers.iter().filter(|(ip, _)| ip.is_ipv4()).count();
        match self.routers.iter().count() - v4 {
            0..=1 if v4 <= 1 => Ok(()),
            _ => bad("there is one for each version of IP".to_owned()),
        }
    }

    /// What is wrong with them for this search, and the property that is: on a bridge that filters VLANs or not.
    fn check(&self, search: Search, filters: bool) -> Result<(), (&'static str, String)> {
        let is_missing = |property: &str| match property {
            "direct/dest-ip" => self.direct.is_none(),
            "files/config" => self.file.is_none(),
            _ => false,
        };
        if self.listen.is_none() {
            let message = "say the address of this host in the underlay".to_owned();
            return Err(("vxlan/listen-ip", message));
        }
        match (self.vnetid, self.vnis.is_empty()) {
            (None, true) => return Err(("vnetid", "say the network identifier".into())),
            (Some(_), false) => {
                return Err(("vnis", "is given together with vnetid".into()));
            }
            (None, false) if !filters => {
                return Err(("vnis", "the bridge has vlan-filtering off".into()));
            }
            (None, false) if self.is_open => {
                return Err(("learn/open", "is given together with vnis".into()));
            }
            _ => {}
        }
        if let Some(missing) = search.required().filter(|property| is_missing(property)) {
            return Err((missing, format!("search={search} needs it")));
        }
        if self.group.is_some_and(|group| !group.is_multicast()) {
            return Err(("learn/group", "is no multicast address".into()));
        }
        if self.unknown == Unknown::Lookup && search != Search::Plugin {
            let message = "lookup needs search=plugin".to_owned();
            return Err(("unknown", message));
        }
        self.check_proxies(search)?;
        let v4 = self.listen.is_some_and(|listen| listen.is_ipv4());
        let targets = self
            .direct
            .into_iter()
            .chain(self.remotes.with_port(VXLAN_PORT));
        match targets
            .map(|to| to.ip())
            .chain(self.group)
            .find(|ip| ip.is_ipv4() != v4)
        {
            Some(ip) => Err((
                "vxlan/listen-ip",
                format!("is not of the version of IP that target {ip} has"),
            )),
            None => Ok(()),
        }
    }
}

/// What must hold between the overlays of a document and the rest of it.
pub(crate) fn check(
    document: &Document,
    filters: impl Fn(&Name) -> Option<bool>,
    mut defect: impl FnMut(String, String),
) {
    let mut networks: HashMap<(SocketAddr, Option<String>, u32), &Name> = HashMap::new();
    let mut on_bridge: HashMap<(&Name, u16), &Name> = HashMap::new();
    let mut endpoints = HashMap::new();
    for overlay in &document.overlays {
        let path = format!("overlays.{}", overlay.name);
        let Some(filters) = filters(overlay.bridge()) else {
            continue;
        };
        let settings = overlay.settings();
        if let Err((property, message)) = settings.check(overlay.search, filters) {
            defect(format!("{path}.properties.{property}"), message);
            continue;
        }
        let place = (settings.listen, settings.netns.clone());
        let how = settings.endpoint();
        let (other, first) = *endpoints.entry(place).or_insert((&overlay.name, how));
        if first != how {
            let message = format!(
                "overlay \"{other}\" has other vxlan/ttl, vxlan/tos or vxlan/ports at this address"
            );
            defect(format!("{path}.properties.vxlan/listen-ip"), message);
        }
        for (vlan, vni) in settings.networks(filters) {
            let listen = settings
                .listen
                .unwrap_or(SocketAddr::from(([0; 4], VXLAN_PORT)));
            let key = (listen, settings.netns.clone(), vni);
            if let Some(other) = networks.insert(key, &overlay.name) {
                let message = format!("overlay \"{other}\" has VNI {vni} at {listen}");
                defect(format!("{path}.properties.vnetid"), message);
            }
            if let Some(other) = on_bridge.insert((overlay.bridge(), vlan), &overlay.name) {
                let bridge = overlay.bridge();
                let message = match vlan {
                    0 => format!("bridge \"{bridge}\" has overlay \"{other}\""),
                    _ => format!("VLAN {vlan} of bridge \"{bridge}\" has overlay \"{other}\""),
                };
                defect(format!("{path}.bridge"), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of network identifiers and remote hosts are read as they are written, and refused otherwise.
    #[test]
    fn texts() {
        let vnis: Vnis = "20=20020,10=10010".parse().expect("good");
        assert_eq!(vnis.to_string(), "10=10010,20=20020");
        for bad in [
            "10",
            "0=1",
            "4095=1",
            "10=16777216",
            "10=1,10=2",
            "10=1,11=1",
            "x=1",
            "10=",
        ] {
            assert!(bad.parse::<Vnis>().is_err(), "{bad}");
        }
        let remotes: Remotes = "192.0.2.2,[2001:db8::2]:8472,2001:db8::3"
            .parse()
            .expect("good");
        assert_eq!(
            remotes.to_string(),
            "192.0.2.2,[2001:db8::2]:8472,2001:db8::3"
        );
        assert_eq!(remotes.with_port(4789).len(), 3);
        for bad in [
            "x",
            "192.0.2.2:0",
            "192.0.2.2:99999",
            "0.0.0.0",
            "2001:db8::2:8472:x",
        ] {
            assert!(bad.parse::<Remotes>().is_err(), "{bad}");
        }
    }

    fn defects(json: serde_json::Value) -> Vec<(String, String)> {
        let mut document: Document = serde_json::from_value(json).expect("form");
        document.complete(&Document::default(), || crate::MacAddr([2; 6]));
        match crate::validate(&document, &Document::default()) {
            Ok(()) => Vec::new(),
            Err(body) => {
                let details = body.details.into_iter();
                details
                    .map(|detail| (detail.path, detail.message))
                    .collect()
            }
        }
    }

    fn overlay(name: &str, more: serde_json::Value) -> serde_json::Value {
        let mut one = serde_json::json!({"name": name, "search": "direct", "properties": {
            "vxlan/listen-ip": "192.0.2.1", "direct/dest-ip": "192.0.2.2", "vnetid": 23}});
        let (Some(one_map), Some(more)) = (one.as_object_mut(), more.as_object()) else {
            panic!("objects");
        };
        for (key, value) in more {
            match (key.as_str(), value.as_object()) {
                ("properties", Some(properties)) => {
                    let all = one_map["properties"].as_object_mut().expect("an object");
                    for (key, value) in properties {
                        match value.is_null() {
                            true => drop(all.remove(key)),
                            false => drop(all.insert(key.clone(), value.clone())),
                        }
                    }
                }
                _ => drop(one_map.insert(key.clone(), value.clone())),
            }
        }
        one
    }

    /// An overlay without a bridge has one of its name; what an overlay lacks or contradicts is told with its property.
    #[test]
    fn what_must_hold() {
        use serde_json::json;
        let with = |overlays: Vec<serde_json::Value>, bridges: serde_json::Value| {
            defects(json!({"version": 1, "bridges": bridges, "overlays": overlays}))
        };
        assert_eq!(with(vec![overlay("ov0", json!({}))], json!([])), []);
        let one = |properties: serde_json::Value, path: &str, message: &str| {
            let found = with(
                vec![overlay("ov0", json!({"properties": properties}))],
                json!([]),
            );
            let (at, why) = found.first().expect("a defect");
            assert_eq!(at, &format!("overlays.ov0.properties.{path}"), "{why}");
            assert!(why.contains(message), "{why}");
        };
        one(
            json!({"vxlan/listen-ip": null}),
            "vxlan/listen-ip",
            "address of this host",
        );
        one(json!({"vnetid": null}), "vnetid", "network identifier");
        one(json!({"vnis": "10=1"}), "vnis", "together with vnetid");
        one(
            json!({"direct/dest-ip": null}),
            "direct/dest-ip",
            "search=direct needs it",
        );
        one(
            json!({"direct/dest-ip": "2001:db8::2"}),
            "vxlan/listen-ip",
            "version of IP",
        );
        let plain = json!([{"name": "br0", "properties": {"vlan-filtering": false}}]);
        let found = with(
            vec![
                overlay("ov0", json!({"bridge": "br0"})),
                overlay(
                    "ov1",
                    json!({"bridge": "br0", "properties": {"vnetid": 24}}),
                ),
                overlay("ov2", json!({})),
                overlay("ov3", json!({"bridge": "br9"})),
                overlay(
                    "ov4",
                    json!({"bridge": "br0", "properties": {"vnetid": null, "vnis": "10=1"}}),
                ),
            ],
            plain,
        );
        let expected = [
            ("overlays.ov3.bridge", "there is no bridge \"br9\""),
            ("overlays.ov1.bridge", "bridge \"br0\" has overlay \"ov0\""),
            (
                "overlays.ov2.properties.vnetid",
                "overlay \"ov0\" has VNI 23 at 192.0.2.1:4789",
            ),
            (
                "overlays.ov4.properties.vnis",
                "the bridge has vlan-filtering off",
            ),
        ];
        let expected = expected.map(|(path, message)| (path.to_owned(), message.to_owned()));
        assert_eq!(found, expected);
    }

    /// A group is a multicast address.
    #[test]
    fn groups_are_multicast() {
        use serde_json::json;
        let with = |group: &str| {
            let group = json!({"search": "learn", "properties": {
                "direct/dest-ip": null, "learn/group": group}});
            defects(json!({"version": 1, "overlays": [overlay("ov0", group)]}))
        };
        assert_eq!(with("239.1.2.3"), []);
        let (at, why) = with("192.0.2.9").remove(0);
        assert_eq!(at, "overlays.ov0.properties.learn/group");
        assert_eq!(why, "is no multicast address");
    }

    /// What hosts are told has subnets, and a router of each version of IP at most.
    #[test]
    fn what_hosts_are_told() {
        use serde_json::json;
        for (properties, path, message) in [
            (json!({"proxy": "dhcp"}), "proxy/subnet", "proxy=dhcp"),
            (
                json!({"proxy/router": "10.0.0.0/24"}),
                "proxy/router",
                "10.0.0.0 is neither",
            ),
            (
                json!({"proxy/router": "fd00::1"}),
                "proxy/router",
                "fd00::1 is neither",
            ),
            (
                json!({"proxy/router": "10.0.0.1,10.0.0.2"}),
                "proxy/router",
                "one for each version",
            ),
            (
                json!({"proxy/router": "fe80::1,fe80::2"}),
                "proxy/router",
                "one for each version",
            ),
            (
                json!({"proxy/dns": "10.0.0.0/24"}),
                "proxy/dns",
                "10.0.0.0 is no single address",
            ),
            (
                json!({"proxy/dns": "fd00::1,fd00::2,fd00::3,fd00::4,fd00::5,fd00::6,fd00::7,fd00::8,fd00::9"}),
                "proxy/dns",
                "at most 8",
            ),
        ] {
            let overlays = vec![overlay("ov0", json!({"properties": properties}))];
            let found = defects(json!({"version": 1, "overlays": overlays}));
            let (at, why) = found.first().expect("a defect");
            assert_eq!(at, &format!("overlays.ov0.properties.{path}"), "{why}");
            assert!(why.contains(message), "{why}");
        }
    }

    /// Overlays at one address use it in one way.
    #[test]
    fn an_address_is_used_in_one_way() {
        use serde_json::json;
        let apart = json!({"properties": {"vnetid": 24, "vxlan/ttl": 9}});
        let overlays = vec![overlay("ov0", json!({})), overlay("ov1", apart)];
        let found = defects(json!({"version": 1, "overlays": overlays}));
        assert_eq!(found[0].0, "overlays.ov1.properties.vxlan/listen-ip");
        assert_eq!(found.len(), 1);
    }

    /// An entry of the forwarding table has a target at an overlay, and only there.
    #[test]
    fn entries_have_targets() {
        use serde_json::json;
        let document = |target: serde_json::Value, member: &str| {
            let mut entry = json!({"bridge": "ov0", "mac": "02:00:00:00:00:07", "member": member});
            if !target.is_null() {
                entry["target"] = target;
            }
            let vnic = json!({"name": "v0", "bridge": "ov0"});
            defects(
                json!({"version": 1, "overlays": [overlay("ov0", json!({}))], "vnics": [vnic],
                "fdb": [entry]}),
            )
        };
        assert_eq!(document(json!("192.0.2.9:4789"), "ov0"), []);
        let (_, why) = document(json!(null), "ov0").remove(0);
        assert_eq!(why, "an entry of overlay \"ov0\" needs its target");
        let (_, why) = document(json!("192.0.2.9:4789"), "v0").remove(0);
        assert_eq!(why, "\"v0\" is no overlay");
    }
}
