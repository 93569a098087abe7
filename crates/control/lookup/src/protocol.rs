//! What a plugin and the daemon say to each other.
//!
//! # Model
//! One JSON object a line ([`crate::line`]), both ways; `op` names it. Unknown keys are ignored. An unknown `op` is answered with
//! `unsupported`. Whatever else is wrong ends the session, with the line in the reason.
//!
//! # States
//! ```text
//!  connected --hello, both--> greeted --start--> (ok) started --> look-ups, pushes, announcements --stop--> greeted
//!                                              \-> (error) not started: the text is what a person sees
//! ```
//! Nothing about an overlay is asked before its `start` was answered. A session that ends takes nothing away: the table stays as
//! it is until a `sync-end` of the next session.
//!
//! # Limits
//! [`ENTRIES_A_LINE_MAX`], [`IPS_MAX`], [`TARGETS_MAX`], [`TEXT_BYTES_MAX`], [`VNI_MAX`]; [`decode`](crate::line::decode) refuses what
//! is beyond.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_wire::MacAddr;

/// The version of this protocol.
pub const VERSION: u32 = 1;
/// Entries of one `push` or `withdraw`.
pub const ENTRIES_A_LINE_MAX: usize = 500;
/// IP addresses of an endpoint.
pub const IPS_MAX: usize = 16;
/// Targets of one `flood`.
pub const TARGETS_MAX: usize = 1_000;
/// Bytes of a sentence, and of the name of a host or an overlay.
pub const TEXT_BYTES_MAX: usize = 1_000;
/// Greatest VXLAN network identifier (RFC 7348: 24 bits).
pub const VNI_MAX: u32 = 0x00ff_ffff;
/// The port of a target that names none (RFC 7348).
pub const PORT: u16 = 4789;

/// What one side can say.
pub trait Message {
    /// Each `op`.
    const OPS: &[&str];

    /// Whether each value is within its limit.
    ///
    /// # Errors
    /// A sentence about the first that is not.
    fn check(&self) -> Result<(), String>;
}

/// What a plugin is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ToPlugin {
    /// The first line.
    Hello {
        /// [`VERSION`].
        v: u32,
    },
    /// An overlay that it answers for from now on. Answered with `ok` or `error`.
    Start(Overlay),
    /// The same overlay with other VNIs or properties. Answered with `ok` or `error`; with an error the former ones hold.
    Set(Overlay),
    /// No more about this overlay.
    Stop {
        /// Its name.
        overlay: String,
    },
    /// Answered with `pong` and the same number.
    Ping {
        /// The number.
        id: u64,
    },
    /// Which host has this MAC address? Answered with `answer`.
    Lookup {
        /// The number of the question.
        id: u64,
        /// The overlay.
        overlay: String,
        /// Its VNI.
        vni: u32,
        /// The address.
        #[serde(with = "text")]
        mac: MacAddr,
    },
    /// Which MAC address has this IPv4 address? Answered with `answer`.
    Arp(Question),
    /// Which MAC address has this IPv6 address? Answered with `answer`.
    Ndp(Question),
    /// Which MAC address is the DHCP server of this client? Answered with `answer`.
    Dhcp {
        /// The number of the question.
        id: u64,
        /// The overlay.
        overlay: String,
        /// Its VNI.
        vni: u32,
        /// The client's address.
        #[serde(with = "text")]
        mac: MacAddr,
    },
    /// An endpoint of this host. Answered with `owned` or `refused`, and again whenever that changes.
    Announce(Endpoint),
    /// An endpoint that this host has no more.
    Retire {
        /// The overlay.
        overlay: String,
        /// Its VNI.
        vni: u32,
        /// The endpoint's address.
        #[serde(with = "text")]
        mac: MacAddr,
    },
    /// Addresses for an endpoint that is to be made. Answered with `claimed`.
    Claim(Claim),
    /// Addresses that were claimed, and for which no endpoint is made.
    Release {
        /// The overlay.
        overlay: String,
        /// Its VNI.
        vni: u32,
        /// Whom they were for.
        owner: String,
    },
    /// Drop everything that a host has announced.
    Forget {
        /// The overlay.
        overlay: String,
        /// The host.
        host: String,
    },
    /// Take the registry as it is now, though it is younger than what is known.
    Resync {
        /// The overlay.
        overlay: String,
    },
    /// An `op` that the daemon does not know.
    Unsupported {
        /// It.
        what: String,
    },
}

/// A claim of addresses out of a pool that all hosts share. They are the host's for 60 s, and then as long as an endpoint that has
/// them is announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The number of the claim.
    pub id: u64,
    /// The overlay.
    pub overlay: String,
    /// Its VNI.
    pub vni: u32,
    /// Whom they are for. An owner that claims again before an endpoint is announced gets the same ones.
    pub owner: String,
    /// The MAC address that is wanted; without it, one is drawn.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe")]
    pub mac: Option<MacAddr>,
    /// The pool.
    pub pool: String,
    /// Sets of ranges, each from its first to its last address: one address out of each set that `ips` has none of.
    pub sets: Vec<Vec<(IpAddr, IpAddr)>>,
    /// The addresses that are wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Only say whether there are addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// An overlay as a plugin is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overlay {
    /// Its name.
    pub overlay: String,
    /// Its VNIs.
    pub vnis: Vec<u32>,
    /// The plugin's properties, by name.
    #[serde(default)]
    pub properties: BTreeMap<String, Value>,
}

/// A question for the MAC address behind an IP address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The number of the question.
    pub id: u64,
    /// The overlay.
    pub overlay: String,
    /// Its VNI.
    pub vni: u32,
    /// The address.
    pub ip: IpAddr,
}

/// An endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The overlay.
    pub overlay: String,
    /// Its VNI.
    pub vni: u32,
    /// Its MAC address.
    #[serde(with = "text")]
    pub mac: MacAddr,
    /// Its IP addresses.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// Whether it is live.
    pub state: EndpointState,
}

/// Whether an endpoint is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointState {
    /// It is here now. If another host has it, this one takes it over if it was standby here.
    Active,
    /// It is made here, and still lives elsewhere.
    Standby,
}

/// What a plugin says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum FromPlugin {
    /// The first line.
    Hello {
        /// [`VERSION`].
        v: u32,
        /// What it does.
        kind: Kind,
        /// The properties that it understands.
        #[serde(default)]
        properties: Vec<Property>,
    },
    /// `start` or `set` is done.
    Ok {
        /// The overlay.
        overlay: String,
    },
    /// `start` or `set` cannot be done.
    Error {
        /// The overlay.
        overlay: String,
        /// Why, in a sentence.
        text: String,
    },
    /// The answer to `ping`.
    Pong {
        /// Its number.
        id: u64,
    },
    /// The answer to a question: one of `target`, `mac` and `drop`.
    Answer {
        /// The question's number.
        id: u64,
        /// The host, for `lookup`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Target>,
        /// How long the answer holds, in seconds. Without it: 300.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl: Option<u32>,
        /// The MAC address, for `arp`, `ndp` and `dhcp`.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe")]
        mac: Option<MacAddr>,
        /// There is none.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        drop: bool,
    },
    /// Endpoints of other hosts, new or changed.
    Push {
        /// The overlay.
        overlay: String,
        /// The endpoints.
        entries: Vec<Entry>,
    },
    /// Endpoints that are gone.
    Withdraw {
        /// The overlay.
        overlay: String,
        /// The endpoints.
        entries: Vec<Withdrawn>,
    },
    /// What is pushed from here to `sync-end` is everything.
    SyncBegin {
        /// The overlay.
        overlay: String,
        /// Everything of this VNI alone; without it, of the overlay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vni: Option<u32>,
    },
    /// What was not pushed since `sync-begin` is gone.
    SyncEnd {
        /// The overlay.
        overlay: String,
        /// As in `sync-begin`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vni: Option<u32>,
    },
    /// The hosts that get what is for everybody in a VNI. Replaces what was said before.
    Flood {
        /// The overlay.
        overlay: String,
        /// The VNI.
        vni: u32,
        /// The hosts.
        targets: Vec<Target>,
    },
    /// A host of the registry, new or changed.
    Host {
        /// The overlay.
        overlay: String,
        /// Its name.
        host: String,
        /// Its addresses.
        #[serde(default)]
        targets: Vec<Target>,
        /// How it is.
        state: HostState,
    },
    /// An endpoint that was announced is this host's.
    Owned {
        /// The overlay.
        overlay: String,
        /// The VNI.
        vni: u32,
        /// The endpoint's address.
        #[serde(with = "text")]
        mac: MacAddr,
        /// The generation of this ownership.
        #[serde(rename = "gen")]
        generation: u64,
    },
    /// An endpoint that was announced is another host's.
    Refused {
        /// The overlay.
        overlay: String,
        /// The VNI.
        vni: u32,
        /// The endpoint's address.
        #[serde(with = "text")]
        mac: MacAddr,
        /// The host that has it, or its IP address.
        by: String,
    },
    /// The answer to `claim`: addresses, or why there are none.
    Claimed {
        /// The number of the claim.
        id: u64,
        /// The MAC address.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe")]
        mac: Option<MacAddr>,
        /// Those that were wanted, then one of each other set.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ips: Vec<IpAddr>,
        /// Why there are none, in a sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// What is known may be old, or incomplete.
    Degraded {
        /// The overlay.
        overlay: String,
        /// Why, in a sentence.
        text: String,
    },
    /// No longer degraded.
    Restored {
        /// The overlay.
        overlay: String,
    },
    /// An `op` that the plugin does not know.
    Unsupported {
        /// It.
        what: String,
    },
}

/// What a plugin does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// All is behind one host.
    Point,
    /// Pushes all that it knows. Is never asked.
    Table,
    /// Is asked for what is not known.
    Dynamic,
}

/// A property that a plugin understands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Property {
    /// Its name, `plugin/word`.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: PropertyType,
    /// What holds where it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// `start` fails without it.
    #[serde(default)]
    pub required: bool,
}

/// The type of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PropertyType {
    /// A whole number.
    Int,
    /// A whole number that is not negative.
    Uint,
    /// An IP address.
    Ip,
    /// A text.
    String,
}

/// How a host of the registry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostState {
    /// It says that it is there.
    Alive,
    /// It has not said so for a while. Frames are still sent to it.
    Unsure,
    /// It was forgotten.
    Gone,
}

/// Where frames for an endpoint are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// The address.
    pub ip: IpAddr,
    /// The UDP port.
    #[serde(default = "port")]
    pub port: u16,
}

fn port() -> u16 {
    PORT
}

impl From<Target> for SocketAddr {
    fn from(target: Target) -> Self {
        Self::new(target.ip, target.port)
    }
}

impl From<SocketAddr> for Target {
    fn from(to: SocketAddr) -> Self {
        Self {
            ip: to.ip(),
            port: to.port(),
        }
    }
}

/// An endpoint of another host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The VNI.
    pub vni: u32,
    /// Its MAC address.
    #[serde(with = "text")]
    pub mac: MacAddr,
    /// Where it is.
    pub target: Target,
    /// Its IP addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Its DHCP server.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe")]
    pub dhcp: Option<MacAddr>,
    /// The host that announced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Which of two records of one endpoint is the later one.
    #[serde(default, rename = "gen")]
    pub generation: u64,
}

/// An endpoint that is gone. Void if another host, or a later generation, has it by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawn {
    /// The VNI.
    pub vni: u32,
    /// Its MAC address.
    #[serde(with = "text")]
    pub mac: MacAddr,
    /// The host that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The generation that ends.
    #[serde(default, rename = "gen")]
    pub generation: u64,
}

impl Message for ToPlugin {
    const OPS: &[&str] = &[
        "hello",
        "start",
        "set",
        "stop",
        "ping",
        "lookup",
        "arp",
        "ndp",
        "dhcp",
        "announce",
        "retire",
        "claim",
        "release",
        "forget",
        "resync",
        "unsupported",
    ];

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Hello { .. } | Self::Ping { .. } | Self::Unsupported { .. } => Ok(()),
            Self::Start(of) | Self::Set(of) => {
                is_text(&of.overlay)?;
                of.vnis.iter().try_for_each(|vni| is_vni(*vni))
            }
            Self::Stop { overlay } | Self::Resync { overlay } => is_text(overlay),
            Self::Arp(of) | Self::Ndp(of) => is_text(&of.overlay).and(is_vni(of.vni)),
            Self::Lookup { overlay, vni, .. }
            | Self::Dhcp { overlay, vni, .. }
            | Self::Retire { overlay, vni, .. } => is_text(overlay).and(is_vni(*vni)),
            Self::Announce(of) => {
                is_text(&of.overlay).and(is_vni(of.vni))?;
                is_endpoint(of.mac, &of.ips)
            }
            Self::Claim(of) => of.check(),
            Self::Release {
                overlay,
                vni,
                owner,
            } => is_text(overlay).and(is_vni(*vni)).and(is_text(owner)),
            Self::Forget { overlay, host } => is_text(overlay).and(is_text(host)),
        }
    }
}

impl Message for FromPlugin {
    const OPS: &[&str] = &[
        "hello",
        "ok",
        "error",
        "pong",
        "answer",
        "push",
        "withdraw",
        "sync-begin",
        "sync-end",
        "flood",
        "host",
        "owned",
        "refused",
        "claimed",
        "degraded",
        "restored",
        "unsupported",
    ];

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Hello { .. } | Self::Pong { .. } | Self::Unsupported { .. } => Ok(()),
            Self::Ok { overlay } | Self::Restored { overlay } => is_text(overlay),
            Self::Error { overlay, text } | Self::Degraded { overlay, text } => {
                is_text(overlay).and(is_text(text))
            }
            Self::Answer {
                target, mac, drop, ..
            } => match (target, mac, drop) {
                (Some(target), None, false) => is_target(target),
                (None, Some(_), false) | (None, None, true) => Ok(()),
                _ => Err("an answer is one of target, mac and drop".to_owned()),
            },
            Self::Push { overlay, entries } => {
                is_text(overlay).and(is_few(entries.len(), ENTRIES_A_LINE_MAX, "entries"))?;
                entries.iter().try_for_each(Entry::check)
            }
            Self::Withdraw { overlay, entries } => {
                is_text(overlay).and(is_few(entries.len(), ENTRIES_A_LINE_MAX, "entries"))?;
                entries.iter().try_for_each(|entry| is_vni(entry.vni))
            }
            Self::SyncBegin { overlay, vni } | Self::SyncEnd { overlay, vni } => {
                is_text(overlay).and(vni.map_or(Ok(()), is_vni))
            }
            Self::Flood {
                overlay,
                vni,
                targets,
            } => {
                is_text(overlay).and(is_vni(*vni))?;
                are_targets(targets)
            }
            Self::Host {
                overlay,
                host,
                targets,
                ..
            } => {
                is_text(overlay).and(is_text(host))?;
                are_targets(targets)
            }
            Self::Owned { overlay, vni, .. } => is_text(overlay).and(is_vni(*vni)),
            Self::Refused {
                overlay, vni, by, ..
            } => is_text(overlay).and(is_vni(*vni)).and(is_text(by)),
            Self::Claimed { mac, ips, text, .. } => match (mac, text) {
                (Some(mac), None) => is_endpoint(*mac, ips),
                (None, Some(text)) if ips.is_empty() => is_text(text),
                _ => Err("a claim is answered with addresses or a text".to_owned()),
            },
        }
    }
}

impl FromPlugin {
    /// The overlay that it is about; `None` for what is about the session.
    pub fn overlay(&self) -> Option<&str> {
        match self {
            Self::Hello { .. }
            | Self::Pong { .. }
            | Self::Answer { .. }
            | Self::Claimed { .. }
            | Self::Unsupported { .. } => None,
            Self::Ok { overlay }
            | Self::Error { overlay, .. }
            | Self::Push { overlay, .. }
            | Self::Withdraw { overlay, .. }
            | Self::SyncBegin { overlay, .. }
            | Self::SyncEnd { overlay, .. }
            | Self::Flood { overlay, .. }
            | Self::Host { overlay, .. }
            | Self::Owned { overlay, .. }
            | Self::Refused { overlay, .. }
            | Self::Degraded { overlay, .. }
            | Self::Restored { overlay } => Some(overlay),
        }
    }
}

/// Whether values are what a plugin's properties want. A value that the plugin has no property for is not looked at.
///
/// # Errors
/// A sentence about the first that is missing or of another type.
pub fn check_properties(
    properties: &[Property],
    values: &BTreeMap<String, Value>,
) -> Result<(), String> {
    for Property { name, kind, .. } in properties {
        let Some(value) = values.get(name) else {
            continue;
        };
        let (is_fit, what) = match kind {
            PropertyType::Int => (value.is_i64(), "a whole number"),
            PropertyType::Uint => (value.is_u64(), "a whole number that is not negative"),
            PropertyType::String => (value.is_string(), "a text"),
            PropertyType::Ip => {
                let ip = value.as_str().map(str::parse::<IpAddr>);
                (matches!(ip, Some(Ok(_))), "an IP address")
            }
        };
        if !is_fit {
            return Err(format!("{name}: {value} is not {what}"));
        }
    }
    let mut required = properties.iter().filter(|property| property.required);
    match required.find(|property| !values.contains_key(&property.name)) {
        Some(property) => Err(format!("the plugin needs the property {}", property.name)),
        None => Ok(()),
    }
}

impl Claim {
    fn check(&self) -> Result<(), String> {
        is_text(&self.overlay).and(is_vni(self.vni))?;
        is_text(&self.owner).and(is_text(&self.pool))?;
        is_few(self.ips.len(), IPS_MAX, "IP addresses")?;
        is_few(self.sets.len(), IPS_MAX, "sets of ranges")?;
        self.mac.map_or(Ok(()), |mac| is_endpoint(mac, &[]))
    }
}

impl Entry {
    fn check(&self) -> Result<(), String> {
        is_vni(self.vni).and(is_endpoint(self.mac, &self.ips))?;
        self.host.as_deref().map_or(Ok(()), is_text)?;
        is_target(&self.target)
    }
}

fn is_vni(vni: u32) -> Result<(), String> {
    match vni {
        ..=VNI_MAX => Ok(()),
        _ => Err(format!("{vni} is no VNI (at most {VNI_MAX})")),
    }
}

/// A sentence that may be a `text` of a message: without control characters, and not too long.
#[must_use]
pub fn sentence(text: &str) -> String {
    let shown = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    shown.replace(char::is_control, " ")
}

fn is_text(text: &str) -> Result<(), String> {
    match text.len() {
        1..=TEXT_BYTES_MAX if !text.chars().any(char::is_control) => Ok(()),
        1..=TEXT_BYTES_MAX => Err("a text with a control character".to_owned()),
        bytes => Err(format!("a text of {bytes} bytes (1 to {TEXT_BYTES_MAX})")),
    }
}

fn is_few(count: usize, max: usize, what: &str) -> Result<(), String> {
    match count <= max {
        true => Ok(()),
        false => Err(format!("{count} {what} (at most {max})")),
    }
}

fn is_endpoint(mac: MacAddr, ips: &[IpAddr]) -> Result<(), String> {
    if !mac.is_unicast_source() {
        return Err(format!("{mac} is no address of an endpoint"));
    }
    is_few(ips.len(), IPS_MAX, "IP addresses")
}

/// Whether frames can be sent there.
///
/// # Errors
/// A sentence.
pub fn is_target(target: &Target) -> Result<(), String> {
    let is_host = !target.ip.is_unspecified() && !target.ip.is_multicast();
    let is_broadcast = matches!(target.ip, IpAddr::V4(ip) if ip.is_broadcast());
    match (is_host && !is_broadcast, target.port) {
        (true, 1..) => Ok(()),
        (true, _) => Err("0 is no port".to_owned()),
        (false, _) => Err(format!("{} is no address of a host", target.ip)),
    }
}

fn are_targets(targets: &[Target]) -> Result<(), String> {
    is_few(targets.len(), TARGETS_MAX, "targets")?;
    targets.iter().try_for_each(is_target)
}

/// A MAC address as `02:00:00:00:00:01`.
mod text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use windlass_wire::MacAddr;

    pub(super) fn serialize<S: Serializer>(mac: &MacAddr, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(mac)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MacAddr, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// The same, or none.
mod maybe {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use windlass_wire::MacAddr;

    pub(super) fn serialize<S: Serializer>(
        mac: &Option<MacAddr>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match mac {
            Some(mac) => to.collect_str(mac),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<MacAddr>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let mac = text.map(|text| text.parse());
        mac.transpose().map_err(D::Error::custom)
    }
}
