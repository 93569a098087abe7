//! Attachments: who is on the other side of a VNIC's rings, as JSON and as the text after `--attach`.
//!
//! # Model
//! The text is `KIND,key=value,...`; a comma or a backslash inside a value is preceded by a backslash.
//! [`Attachment`]'s `Display` prints exactly what its `FromStr` reads, and leaves out what has its
//! default.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::name::{IfAddr, Ifname, MacAddr, Name, NameError, Netns, SocketPath};
pub use crate::vhost::{SocketMode, SocketOwner, VHOST_QUEUES_MAX, VhostUser};

/// Queues (pairs of rings) of an attachment at most.
pub const QUEUES_MAX: u16 = 64;
/// Addresses that a TAP is given at most.
pub const ADDRESSES_MAX: usize = 16;
/// Smallest and largest size of a memif ring, as a power of two (DPDK `rte_eth_memif.h`: at most 14).
pub const RING_SIZE_LOG2: (u8, u8) = (5, 14);
/// Smallest and largest memif buffer, in bytes.
pub const BUFFER_BYTES: (u32, u32) = (128, 65_536);
/// Longest memif secret, in bytes (memif protocol: `uint8_t secret[24]`).
pub const SECRET_BYTES_MAX: usize = 24;

/// Which end of a socket windlass is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Windlass makes the socket and waits for its peer.
    Server,
    /// The peer makes the socket; windlass connects, and connects again when the peer comes back.
    Client,
}

impl Role {
    /// The word in text and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

fn one() -> u16 {
    1
}

fn ring_size_log2_default() -> u8 {
    10
}

fn buffer_bytes_default() -> u32 {
    2048
}

fn is_one(queues: &u16) -> bool {
    *queues == one()
}

fn is_ring_size_default(log2: &u8) -> bool {
    *log2 == ring_size_log2_default()
}

fn is_buffer_default(bytes: &u32) -> bool {
    *bytes == buffer_bytes_default()
}

/// A TAP interface of the kernel. It outlives the daemon; only a delete removes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// Name of the interface; without it the VNIC's own name, which must then fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Ifname>,
    /// Network namespace in which the interface lies; without it the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// Addresses that the interface is given when it is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub address: Vec<IfAddr>,
    /// Queues, 1 to [`QUEUES_MAX`].
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 64))]
    pub queues: u16,
    /// MAC address of the kernel's side; without it the VNIC's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_mac: Option<MacAddr>,
}

impl Default for Tap {
    fn default() -> Self {
        Self {
            name: None,
            netns: None,
            address: Vec::new(),
            queues: one(),
            host_mac: None,
        }
    }
}

impl Tap {
    /// The interface's name for a VNIC of this name; `None` if the VNIC's name cannot name one.
    pub fn ifname(&self, vnic: &Name) -> Option<Ifname> {
        ifname(self.name.as_ref(), vnic)
    }
}

/// A veth interface of a network namespace, with a shortcut in the kernel to others of the same bridge. It outlives the daemon, and goes
/// with its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Veth {
    /// Name of the interface; without it the VNIC's own name, which must then fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Ifname>,
    /// Network namespace in which the interface lies: not the daemon's.
    pub netns: Netns,
    /// Addresses that the interface is given when it is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub address: Vec<IfAddr>,
}

/// The name of a VNIC's interface: `name` if one is given, else that of the VNIC; `None` if the VNIC's name cannot name one.
fn ifname(name: Option<&Ifname>, vnic: &Name) -> Option<Ifname> {
    name.cloned().or_else(|| vnic.as_str().parse().ok())
}

impl Veth {
    /// The interface's name for a VNIC of this name; `None` if the VNIC's name cannot name one.
    pub fn ifname(&self, vnic: &Name) -> Option<Ifname> {
        ifname(self.name.as_ref(), vnic)
    }
}

/// Shared-memory rings by the memif protocol, version 2.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memif {
    /// The control socket. Several VNICs may share one that windlass serves, by their `id`.
    pub socket: SocketPath,
    /// Number of the interface on the socket.
    #[serde(default)]
    pub id: u32,
    /// Which end of the socket windlass is. The client owns the memory.
    pub role: Role,
    /// Word that both ends must know, 1 to [`SECRET_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Rings in each direction, 1 to [`QUEUES_MAX`]: as client what is offered, as server the most
    /// that is accepted.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 64))]
    pub rings: u16,
    /// Descriptors in a ring, as a power of two, within [`RING_SIZE_LOG2`]; for the client.
    #[serde(
        default = "ring_size_log2_default",
        skip_serializing_if = "is_ring_size_default"
    )]
    #[schemars(range(min = 5, max = 14))]
    pub ring_size_log2: u8,
    /// Bytes in a buffer, within [`BUFFER_BYTES`]; for the client.
    #[serde(
        default = "buffer_bytes_default",
        skip_serializing_if = "is_buffer_default"
    )]
    #[schemars(range(min = 128, max = 65536))]
    pub buffer_size: u32,
}

impl Memif {
    /// Interface 0 of a socket that windlass makes, with one ring in each direction.
    pub fn server(socket: SocketPath) -> Self {
        Self {
            socket,
            id: 0,
            role: Role::Server,
            secret: None,
            rings: one(),
            ring_size_log2: ring_size_log2_default(),
            buffer_size: buffer_bytes_default(),
        }
    }
}

/// An existing interface of the kernel, by AF_PACKET. For an uplink only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// Sockets among which the kernel spreads what it receives, 1 to [`QUEUES_MAX`].
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 64))]
    pub queues: u16,
}

impl Default for Packet {
    fn default() -> Self {
        Self { queues: one() }
    }
}

/// An existing interface of the kernel, by AF_XDP where that can be had, else by AF_PACKET. For an uplink only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Xdp {
    /// Whether the driver may use windlassd's memory itself, where it can.
    #[serde(default, skip_serializing_if = "is_false")]
    pub zero_copy: bool,
    /// How long one call may poll the interface, in microseconds up to [`BUSY_POLL_US_MAX`]; 0: its interrupts come as they
    /// do.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 1000))]
    pub busy_poll_us: u32,
}

/// The longest that one call may poll an interface, in microseconds.
pub const BUSY_POLL_US_MAX: u32 = 1000;

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// No one: the VNIC exists, keeps its address and receives nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unattached {}

/// Who is on the other side of the rings of a VNIC or an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Attachment {
    /// A TAP interface.
    Tap(Tap),
    /// A veth interface.
    Veth(Veth),
    /// A memif peer.
    Memif(Memif),
    /// A virtual machine.
    VhostUser(VhostUser),
    /// An interface of the kernel.
    Packet(Packet),
    /// An interface of the kernel, by AF_XDP.
    Xdp(Xdp),
    /// No one.
    None(Unattached),
}

impl Default for Attachment {
    fn default() -> Self {
        Self::None(Unattached {})
    }
}

impl Attachment {
    /// The kinds, as they are written.
    pub const KINDS: &'static [&'static str] = &[
        "tap",
        "veth",
        "memif",
        "vhost-user",
        "packet",
        "xdp",
        "none",
    ];

    /// The kinds that are for uplinks.
    pub const UPLINK_KINDS: &'static [&'static str] = &["packet", "xdp"];

    /// The kind, as it is written.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tap(_) => "tap",
            Self::Veth(_) => "veth",
            Self::Memif(_) => "memif",
            Self::VhostUser(_) => "vhost-user",
            Self::Packet(_) => "packet",
            Self::Xdp(_) => "xdp",
            Self::None(_) => "none",
        }
    }

    /// Rings in each direction; one where the interface decides.
    pub fn queues(&self) -> u16 {
        match self {
            Self::Tap(tap) => tap.queues,
            Self::Memif(memif) => memif.rings,
            Self::VhostUser(vhost) => vhost.queues,
            Self::Packet(packet) => packet.queues,
            Self::Veth(_) | Self::Xdp(_) => 1,
            Self::None(_) => 0,
        }
    }

    /// The socket of it, if it has one, and which end windlass is.
    pub fn socket(&self) -> Option<(&SocketPath, Role)> {
        match self {
            Self::Memif(memif) => Some((&memif.socket, memif.role)),
            Self::VhostUser(vhost) => Some((&vhost.socket, vhost.role)),
            Self::Tap(_) | Self::Veth(_) | Self::Packet(_) | Self::Xdp(_) | Self::None(_) => None,
        }
    }

    /// The namespace of the kernel interface of it, if it has one: `Some(None)` is the daemon's.
    pub fn netns(&self) -> Option<Option<&Netns>> {
        match self {
            Self::Tap(tap) => Some(tap.netns.as_ref()),
            Self::Veth(veth) => Some(Some(&veth.netns)),
            _ => None,
        }
    }

    /// The same with `?` in the place of a secret: for what others may read.
    #[must_use]
    pub fn without_secret(mut self) -> Self {
        if let Self::Memif(memif) = &mut self {
            memif.secret = memif.secret.take().map(|_| "?".into());
        }
        self
    }

    /// Checks the numbers and lengths that JSON could have brought.
    ///
    /// # Errors
    /// The first that is outside its limits.
    pub fn check(&self) -> Result<(), AttachError> {
        let range = |key, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(AttachError::Range {
                    key,
                    value,
                    min,
                    max,
                })
            }
        };
        let queues = |key, count: u16| range(key, count.into(), 1, QUEUES_MAX.into());
        match self {
            Self::Tap(tap) => {
                queues("queues", tap.queues)?;
                range("address", tap.address.len() as u64, 0, ADDRESSES_MAX as u64)?;
                match tap.host_mac {
                    Some(mac) if mac.is_multicast() || mac.is_zero() => {
                        Err(AttachError::HostMac(mac))
                    }
                    _ => Ok(()),
                }
            }
            Self::Veth(veth) => range(
                "address",
                veth.address.len() as u64,
                0,
                ADDRESSES_MAX as u64,
            ),
            Self::Memif(memif) => {
                queues("rings", memif.rings)?;
                let (low, high) = RING_SIZE_LOG2;
                range(
                    "ring-size-log2",
                    memif.ring_size_log2.into(),
                    low.into(),
                    high.into(),
                )?;
                let (low, high) = BUFFER_BYTES;
                range(
                    "buffer-size",
                    memif.buffer_size.into(),
                    low.into(),
                    high.into(),
                )?;
                match &memif.secret {
                    Some(secret) if !(1..=SECRET_BYTES_MAX).contains(&secret.len()) => {
                        Err(AttachError::Secret)
                    }
                    Some(secret) if secret.chars().any(char::is_control) => {
                        Err(AttachError::Secret)
                    }
                    _ => Ok(()),
                }
            }
            Self::VhostUser(vhost) => vhost.check(),
            Self::Packet(packet) => queues("queues", packet.queues),
            Self::Xdp(xdp) => range(
                "busy-poll-us",
                xdp.busy_poll_us.into(),
                0,
                BUSY_POLL_US_MAX.into(),
            ),
            Self::None(_) => Ok(()),
        }
    }
}

/// Why a text or a value is not an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AttachError {
    /// The kind is not one of [`Attachment::KINDS`].
    #[error(
        "there is no attachment \"{0}\" (there are: tap, veth, memif, vhost-user, packet, xdp, none)"
    )]
    Kind(String),
    /// The kind has no such key.
    #[error("{kind} has no key \"{key}\" (it has: {known})")]
    Key {
        /// The kind.
        kind: &'static str,
        /// The offending key.
        key: String,
        /// The keys that it has.
        known: &'static str,
    },
    /// A part is not `key=value`.
    #[error("\"{0}\" is not of the form key=value")]
    Form(String),
    /// A key that can be given once was given twice.
    #[error("{0} is given twice")]
    Twice(String),
    /// A key that must be given is missing.
    #[error("{kind} needs {key}=")]
    Missing {
        /// The kind.
        kind: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A value is not one of its key.
    #[error("{key}: {reason}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A name, an address or a path is not one.
    #[error("{key}: {error}")]
    Name {
        /// The key.
        key: String,
        /// What is wrong.
        error: NameError,
    },
    /// A number is outside its limits.
    #[error("{key} is from {min} to {max}, not {value}")]
    Range {
        /// The key.
        key: &'static str,
        /// The offending value.
        value: u64,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A group address, or none.
    #[error("host-mac: {0} cannot be the address of an interface")]
    HostMac(MacAddr),
    /// The secret is empty, too long or not printable; it is not repeated here.
    #[error("secret is 1 to 24 printable bytes")]
    Secret,
}

/// The parts of a text, each key looked up at most once.
struct Parts {
    kind: &'static str,
    known: &'static str,
    pairs: Vec<(String, String)>,
}

impl Parts {
    fn all(&mut self, key: &str) -> Vec<String> {
        let mut found = Vec::new();
        self.pairs.retain(|(k, value)| {
            let matches = k == key;
            if matches {
                found.push(value.clone());
            }
            !matches
        });
        found
    }

    fn text(&mut self, key: &'static str) -> Result<Option<String>, AttachError> {
        let mut found = self.all(key);
        if found.len() > 1 {
            return Err(AttachError::Twice(key.into()));
        }
        Ok(found.pop())
    }

    fn addresses(&mut self) -> Result<Vec<IfAddr>, AttachError> {
        let texts = self.all("address");
        let parsed = texts.iter().map(|text| text.parse());
        parsed
            .collect::<Result<_, _>>()
            .map_err(|error| AttachError::Name {
                key: "address".into(),
                error,
            })
    }

    fn flag(&mut self, key: &'static str) -> Result<bool, AttachError> {
        match self.text(key)?.as_deref() {
            None | Some("off") => Ok(false),
            Some("on") => Ok(true),
            Some(other) => Err(AttachError::Value {
                key: key.into(),
                reason: format!("\"{other}\" is neither on nor off"),
            }),
        }
    }

    fn name<T: FromStr<Err = NameError>>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<T>, AttachError> {
        let parse = |text: String| {
            text.parse().map_err(|error| AttachError::Name {
                key: key.into(),
                error,
            })
        };
        self.text(key)?.map(parse).transpose()
    }

    fn number<T: FromStr>(&mut self, key: &'static str, default: T) -> Result<T, AttachError> {
        let Some(text) = self.text(key)? else {
            return Ok(default);
        };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|_| digits)
            .ok_or_else(|| AttachError::Value {
                key: key.into(),
                reason: format!("\"{text}\" is not a number that fits"),
            })
    }

    fn role(&mut self) -> Result<Role, AttachError> {
        match self.text("role")?.as_deref() {
            Some("server") => Ok(Role::Server),
            Some("client") => Ok(Role::Client),
            Some(other) => Err(AttachError::Value {
                key: "role".into(),
                reason: format!("\"{other}\" is neither server nor client"),
            }),
            None => Err(AttachError::Missing {
                kind: self.kind,
                key: "role",
            }),
        }
    }

    fn socket(&mut self) -> Result<SocketPath, AttachError> {
        let kind = self.kind;
        self.name("socket")?.ok_or(AttachError::Missing {
            kind,
            key: "socket",
        })
    }

    fn finish(self, attachment: Attachment) -> Result<Attachment, AttachError> {
        match self.pairs.into_iter().next() {
            Some((key, _)) => Err(AttachError::Key {
                kind: self.kind,
                key,
                known: self.known,
            }),
            None => attachment.check().map(|()| attachment),
        }
    }
}

/// Splits at commas that no backslash precedes, and takes the backslashes away.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ',' => parts.push(String::new()),
            '\\' => parts
                .last_mut()
                .into_iter()
                .for_each(|part| part.extend(chars.next())),
            c => parts.last_mut().into_iter().for_each(|part| part.push(c)),
        }
    }
    parts
}

/// The kind, and its keys as they are typed after `--attach`; `None` for a kind that there is not.
pub fn known_keys(kind: &str) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        "tap" => ("tap", "name, netns, address, queues, host-mac"),
        "veth" => ("veth", "name, netns, address"),
        "memif" => (
            "memif",
            "socket, id, role, secret, rings, ring-size-log2, buffer-size",
        ),
        "vhost-user" => ("vhost-user", "socket, role, queues, mode, owner"),
        "packet" => ("packet", "queues"),
        "xdp" => ("xdp", "zero-copy, busy-poll-us"),
        "none" => ("none", "none"),
        _ => return None,
    })
}

impl FromStr for Attachment {
    type Err = AttachError;

    fn from_str(text: &str) -> Result<Self, AttachError> {
        let mut words = split(text).into_iter();
        let kind = words.next().unwrap_or_default();
        let (kind, known) = known_keys(&kind).ok_or(AttachError::Kind(kind))?;
        let pairs = words
            .map(|word| match word.split_once('=') {
                Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
                None => Err(AttachError::Form(word)),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut parts = Parts { kind, known, pairs };
        let attachment = match kind {
            "tap" => Self::Tap(Tap {
                name: parts.name("name")?,
                netns: parts.name("netns")?,
                address: parts.addresses()?,
                queues: parts.number("queues", one())?,
                host_mac: parts.name("host-mac")?,
            }),
            "veth" => Self::Veth(Veth {
                name: parts.name("name")?,
                netns: parts
                    .name("netns")?
                    .ok_or(AttachError::Missing { kind, key: "netns" })?,
                address: parts.addresses()?,
            }),
            "memif" => Self::Memif(Memif {
                socket: parts.socket()?,
                id: parts.number("id", 0)?,
                role: parts.role()?,
                secret: parts.text("secret")?,
                rings: parts.number("rings", one())?,
                ring_size_log2: parts.number("ring-size-log2", ring_size_log2_default())?,
                buffer_size: parts.number("buffer-size", buffer_bytes_default())?,
            }),
            "vhost-user" => Self::VhostUser(VhostUser {
                socket: parts.socket()?,
                role: parts.role()?,
                queues: parts.number("queues", one())?,
                mode: parts.text("mode")?.map(|t| t.parse()).transpose()?,
                owner: parts.text("owner")?.map(|t| t.parse()).transpose()?,
            }),
            "packet" => Self::Packet(Packet {
                queues: parts.number("queues", one())?,
            }),
            "xdp" => Self::Xdp(Xdp {
                zero_copy: parts.flag("zero-copy")?,
                busy_poll_us: parts.number("busy-poll-us", 0)?,
            }),
            _ => Self::None(Unattached {}),
        };
        parts.finish(attachment)
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.0.chars() {
            if matches!(c, ',' | '\\') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        Ok(())
    }
}

fn pair(f: &mut fmt::Formatter<'_>, key: &str, value: Option<&str>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ",{key}={}", Escaped(value)))
}

fn count<T: PartialEq + fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    value: T,
    default: T,
) -> fmt::Result {
    if value == default {
        Ok(())
    } else {
        write!(f, ",{key}={value}")
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Tap(tap) => {
                pair(f, "name", tap.name.as_ref().map(Ifname::as_str))?;
                pair(f, "netns", tap.netns.as_ref().map(Netns::as_str))?;
                for address in &tap.address {
                    write!(f, ",address={address}")?;
                }
                count(f, "queues", tap.queues, one())?;
                tap.host_mac
                    .map_or(Ok(()), |mac| write!(f, ",host-mac={mac}"))
            }
            Self::Veth(veth) => {
                pair(f, "name", veth.name.as_ref().map(Ifname::as_str))?;
                pair(f, "netns", Some(veth.netns.as_str()))?;
                let mut addresses = veth.address.iter();
                addresses.try_for_each(|address| write!(f, ",address={address}"))
            }
            Self::Memif(memif) => {
                pair(f, "socket", Some(memif.socket.as_str()))?;
                write!(f, ",id={},role={}", memif.id, memif.role.as_str())?;
                pair(f, "secret", memif.secret.as_deref())?;
                count(f, "rings", memif.rings, one())?;
                count(
                    f,
                    "ring-size-log2",
                    memif.ring_size_log2,
                    ring_size_log2_default(),
                )?;
                count(f, "buffer-size", memif.buffer_size, buffer_bytes_default())
            }
            Self::VhostUser(vhost) => {
                pair(f, "socket", Some(vhost.socket.as_str()))?;
                write!(f, ",role={}", vhost.role.as_str())?;
                count(f, "queues", vhost.queues, one())?;
                pair(f, "mode", vhost.mode.map(|m| m.to_string()).as_deref())?;
                pair(f, "owner", vhost.owner.map(|o| o.to_string()).as_deref())
            }
            Self::Packet(packet) => count(f, "queues", packet.queues, one()),
            Self::Xdp(xdp) => {
                pair(f, "zero-copy", xdp.zero_copy.then_some("on"))?;
                count(f, "busy-poll-us", xdp.busy_poll_us, 0)
            }
            Self::None(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The forms that the user guide shows are read as meant.
    #[test]
    fn documented_forms() {
        let tap: Attachment = "tap,netns=a,address=10.0.0.1/24".parse().expect("tap");
        let Attachment::Tap(tap) = tap else {
            panic!("not a TAP: {tap}")
        };
        assert_eq!(tap.netns.expect("netns").as_str(), "a");
        assert_eq!(tap.address, vec!["10.0.0.1/24".parse().expect("address")]);
        let memif: Attachment = "memif,socket=/run/m.sock,id=3,role=server"
            .parse()
            .expect("memif");
        let Attachment::Memif(memif) = memif else {
            panic!("not a memif: {memif}")
        };
        assert_eq!((memif.id, memif.role, memif.rings), (3, Role::Server, 1));
        assert_eq!(
            "none".parse::<Attachment>().expect("none"),
            Attachment::default()
        );
        assert_eq!("packet".parse::<Attachment>().expect("packet").queues(), 1);
    }

    /// Unknown kinds and keys, missing and doubled keys and numbers outside limits are refused.
    #[test]
    fn bad_texts_are_refused() {
        for bad in [
            "",
            "veth",
            "veth,netns=a,queues=2",
            "veth,netns=a,host-mac=02:00:00:00:00:01",
            "wire",
            "tap,x=1",
            "tap,queues",
            "tap,queues=0",
            "tap,queues=65",
            "tap,queues=+1",
            "tap,netns=a,netns=b",
            "tap,name=a/b",
            "tap,host-mac=01:00:00:00:00:00",
            "none,x=1",
            "memif,id=0,role=server",
            "memif,socket=s,id=0",
            "memif,socket=../s,role=server",
            "memif,socket=s,role=both",
            "memif,socket=s,role=client,ring-size-log2=15",
            "memif,socket=s,role=client,id=4294967296",
            "memif,socket=s,role=client,secret=",
            "vhost-user,role=server",
            "packet,queues=0",
            "tap,address=1.2.3.4",
            "tap,",
        ] {
            assert!(bad.parse::<Attachment>().is_err(), "{bad:?}");
        }
    }

    /// Unknown keys in JSON are refused by name.
    #[test]
    fn json_is_strict() {
        let error = serde_json::from_str::<Attachment>(r#"{"kind":"tap","netsn":"a"}"#)
            .expect_err("unknown key");
        assert!(error.to_string().contains("netsn"), "{error}");
        let json = r#"{"kind":"memif","socket":"m","id":0,"role":"client","buffer_size":9}"#;
        assert!(
            serde_json::from_str::<Attachment>(json)
                .expect("form")
                .check()
                .is_err()
        );
        assert_eq!(
            serde_json::to_string(&Attachment::default()).expect("json"),
            r#"{"kind":"none"}"#
        );
    }

    /// Interfaces of namespaces.
    fn any_interface() -> impl Strategy<Value = Attachment> {
        (
            proptest::option::of("[a-z,\\\\=]{1,15}".prop_filter_map("ifname", |t| t.parse().ok())),
            proptest::option::of("[a-z,\\\\=]{1,15}".prop_filter_map("netns", |t| t.parse().ok())),
            proptest::collection::vec((1u32..0xdfff_ffff, 0u8..=32), 0..4),
            1u16..=64,
            proptest::option::of(any::<[u8; 6]>()),
        )
            .prop_map(
                |(name, netns, address, queues, mac): (Option<Ifname>, Option<Netns>, _, _, _)| {
                    let address = address
                        .into_iter()
                        .map(|(ip, bits)| format!("{}/{bits}", std::net::Ipv4Addr::from(ip)))
                        .map(|text| text.parse().expect("unicast"))
                        .collect();
                    if let (None, Some(netns)) = (mac, netns.clone()) {
                        return Attachment::Veth(Veth {
                            name,
                            netns,
                            address,
                        });
                    }
                    Attachment::Tap(Tap {
                        name,
                        netns,
                        address,
                        queues,
                        host_mac: mac.map(MacAddr::local),
                    })
                },
            )
    }

    fn any_attachment() -> impl Strategy<Value = Attachment> {
        let path = "/?[a-z,\\\\= ]{1,8}(/[a-zA-Z0-9._,\\\\]{2,8}[a-z])?"
            .prop_filter_map("path", |text| text.parse::<SocketPath>().ok());
        let role = prop_oneof![Just(Role::Server), Just(Role::Client)];
        let memif = (
            (path.clone(), any::<u32>(), role.clone()),
            proptest::option::of("[ -~]{1,24}"),
            (1u16..=64, 5u8..=14, 128u32..=65_536),
        )
            .prop_map(
                |((socket, id, role), secret, (rings, ring_size_log2, buffer_size))| {
                    Attachment::Memif(Memif {
                        socket,
                        id,
                        role,
                        secret,
                        rings,
                        ring_size_log2,
                        buffer_size,
                    })
                },
            );
        let socket = proptest::option::of((0u32..=0o777, 0u32..100_000, 0u32..100_000));
        let vhost = (path, role, 1u16..=16, socket).prop_map(|(socket, role, queues, made)| {
            let made = made.filter(|_| role == Role::Server);
            let text = |text: String| text.parse().expect("a mode");
            Attachment::VhostUser(VhostUser {
                socket,
                role,
                queues,
                mode: made.map(|(mode, _, _)| text(format!("{mode:04o}"))),
                owner: made.map(|(_, uid, gid)| SocketOwner { uid, gid }),
            })
        });
        let packet = (1u16..=64).prop_map(|queues| Attachment::Packet(Packet { queues }));
        let xdp = (any::<bool>(), 0u32..=BUSY_POLL_US_MAX).prop_map(|(zero_copy, busy_poll_us)| {
            Attachment::Xdp(Xdp {
                zero_copy,
                busy_poll_us,
            })
        });
        prop_oneof![
            any_interface(),
            memif,
            vhost,
            packet,
            xdp,
            Just(Attachment::default())
        ]
    }

    proptest! {
        /// What is printed is read back as the same attachment, from text and from JSON.
        #[test]
        fn round_trip(attachment in any_attachment()) {
            let text = attachment.to_string();
            let parsed = text.parse::<Attachment>();
            prop_assert_eq!(parsed.as_ref(), Ok(&attachment), "{}", text);
            let json = serde_json::to_string(&attachment).unwrap();
            prop_assert_eq!(serde_json::from_str::<Attachment>(&json).unwrap(), attachment);
        }

        /// No text makes the parser panic.
        #[test]
        fn any_text_is_survived(text in "(tap|veth|memif|none|vhost-user)?[,=\\\\a-z0-9./:-]{0,60}") {
            let _ = text.parse::<Attachment>();
        }
    }
}
