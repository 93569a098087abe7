//! Names of objects, addresses and paths: strings that were checked once, at the edge.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest object name, in bytes.
pub const NAME_BYTES_MAX: usize = 31;
/// Longest name of a network interface, in bytes (`IFNAMSIZ` of `linux/if.h` less its terminator).
pub const IFNAME_BYTES_MAX: usize = 15;
/// Longest path of a Unix socket, in bytes (`sun_path` of `unix(7)` less its terminator).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Words that name something else on the command line, and so are no object's name.
pub const RESERVED: &[&str] = &[
    "all", "any", "default", "global", "help", "host", "none", "self",
];

/// Words that are no name of a vnd device: illumos has nodes of these names beside the devices.
pub const VND_RESERVED: &[&str] = &["ctl", "zone"];

/// Why a string is not a name, an address or a path.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// The string is empty.
    #[error("a name cannot be empty")]
    Empty,
    /// The string is longer than its kind allows.
    #[error("\"{text}\" is longer than {bytes_max} bytes")]
    TooLong {
        /// The offending string.
        text: String,
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// A character is not allowed.
    #[error("\"{text}\": {character:?} cannot be in a name (letters, digits and _ : . - can)")]
    Character {
        /// The offending string.
        text: String,
        /// The first character that is refused.
        character: char,
    },
    /// The first character would make it look like an option or a hidden file.
    #[error("\"{0}\": a name cannot begin with \"-\" or \".\"")]
    Start(String),
    /// One of [`RESERVED`].
    #[error("\"{0}\" is a reserved word")]
    Reserved(String),
    /// Not a MAC address.
    #[error("\"{0}\" is not a MAC address (for example 02:00:00:00:00:01)")]
    Mac(String),
    /// Not an address with a prefix length.
    #[error("\"{0}\" is not an address with a prefix length (for example 10.0.0.1/24)")]
    Prefix(String),
    /// Not a network namespace.
    #[error("\"{0}\" is neither the name of a network namespace nor an absolute path to one")]
    Netns(String),
    /// Not a usable socket path.
    #[error("\"{0}\" is not a socket path (no \"..\", no empty component, not a directory)")]
    SocketPath(String),
    /// Not usable as the name of a network interface.
    #[error(
        "\"{0}\" cannot name a network interface (1 to 15 bytes, no space, no \"/\", no \":\")"
    )]
    Ifname(String),
    /// Not usable as the name of a vnd device.
    #[error(
        "\"{0}\" cannot name a vnd device (1 to 31 letters, digits, _ : -; not \"ctl\" or \"zone\")"
    )]
    Vnd(String),
}

macro_rules! text_type {
    ($type:ident, $schema:literal, $pattern:expr, $about:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.0
            }
        }
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $schema.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "description": $about, "pattern": $pattern})
            }
        }
    };
}

/// The name of a zone, a bridge, an uplink or a VNIC.
///
/// 1 to [`NAME_BYTES_MAX`] bytes of `[A-Za-z0-9_:.-]`, not beginning with `-` or `.`, and none of
/// [`RESERVED`]. It can therefore stand in a path, a URL and a command line without quoting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

text_type!(
    Name,
    "Name",
    "^[A-Za-z0-9_:][A-Za-z0-9_:.-]{0,30}$",
    "Name of an object: 1 to 31 letters, digits, _ : . -, not beginning with - or ."
);

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong {
                text: text.into(),
                bytes_max: NAME_BYTES_MAX,
            });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-');
        if let Some(character) = text.chars().find(|&c| !allowed(c)) {
            return Err(NameError::Character {
                text: text.into(),
                character,
            });
        }
        if text.starts_with(['-', '.']) {
            return Err(NameError::Start(text.into()));
        }
        if RESERVED.contains(&text) {
            return Err(NameError::Reserved(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// The name of a vnd device, by vndadm's rules: 1 to [`NAME_BYTES_MAX`] letters, digits, `:`, `-` and `_`, and none of
/// [`VND_RESERVED`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VndName(String);

text_type!(
    VndName,
    "VndName",
    "^[A-Za-z0-9_:-]{1,31}$",
    "Name of a vnd device: 1 to 31 letters, digits, _ : -; not ctl or zone"
);

impl FromStr for VndName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
        let length_ok = (1..=NAME_BYTES_MAX).contains(&text.len());
        if !length_ok || !text.chars().all(allowed) || VND_RESERVED.contains(&text) {
            return Err(NameError::Vnd(text.chars().take(64).collect()));
        }
        Ok(Self(text.into()))
    }
}

/// The zone of a VNIC: `global`, or the name of a [`Zone`](crate::Zone).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ZoneRef(Option<Name>);

impl ZoneRef {
    /// The word for the zone that sees all.
    pub const GLOBAL: &'static str = "global";

    /// The zone's name; `None` for the global zone.
    pub fn name(&self) -> Option<&Name> {
        self.0.as_ref()
    }

    /// Whether this is the global zone.
    pub fn is_global(&self) -> bool {
        self.0.is_none()
    }

    /// The text: `global` or the name.
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or(Self::GLOBAL, Name::as_str)
    }
}

impl From<Name> for ZoneRef {
    fn from(name: Name) -> Self {
        Self(Some(name))
    }
}

impl FromStr for ZoneRef {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text == Self::GLOBAL {
            Ok(Self(None))
        } else {
            Ok(Self(Some(text.parse()?)))
        }
    }
}

impl TryFrom<String> for ZoneRef {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<ZoneRef> for String {
    fn from(zone: ZoneRef) -> String {
        zone.as_str().to_owned()
    }
}

impl fmt::Display for ZoneRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl JsonSchema for ZoneRef {
    fn schema_name() -> Cow<'static, str> {
        "ZoneRef".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "Name of a zone, or \"global\""})
    }
}

/// The name of a network interface: 1 to [`IFNAME_BYTES_MAX`] bytes, no space, `/` or `:`
/// (`dev_valid_name` of Linux `net/core/dev.c`), and no `%`, which the kernel reads as a template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ifname(String);

text_type!(
    Ifname,
    "Ifname",
    "^[^\\s/:%]{1,15}$",
    "Name of a network interface"
);

impl FromStr for Ifname {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let refused = |c: char| !c.is_ascii_graphic() || matches!(c, '/' | ':' | '%');
        let length_ok = (1..=IFNAME_BYTES_MAX).contains(&text.len());
        if !length_ok || matches!(text, "." | "..") || text.contains(refused) {
            return Err(NameError::Ifname(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// A network namespace: a name under `/run/netns`, as `ip netns` makes them, or an absolute path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Netns(String);

text_type!(
    Netns,
    "Netns",
    "^[^\\x00]{1,255}$",
    "Name of a network namespace (under /run/netns), or an absolute path to one"
);

impl Netns {
    /// Whether this is an absolute path, not a name.
    pub fn is_path(&self) -> bool {
        self.0.starts_with('/')
    }

    /// The file to open: the path, or the name under `/run/netns`.
    pub fn path(&self) -> Cow<'_, str> {
        if self.is_path() {
            Cow::Borrowed(&self.0)
        } else {
            Cow::Owned(format!("/run/netns/{}", self.0))
        }
    }
}

impl FromStr for Netns {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let name_ok = !text.contains('/') && !matches!(text, "." | "..");
        let path_ok = text.strip_prefix('/').is_some_and(clean_components);
        if text.is_empty() || text.len() > 255 || has_control(text) || !(name_ok || path_ok) {
            return Err(NameError::Netns(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// Where a Unix socket lies: an absolute path, or one relative to the directory of the zone.
///
/// No component is empty, `.` or `..`, so a relative one cannot leave its directory by its text; that
/// it does not leave it by a symbolic link is for whoever opens it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketPath(String);

text_type!(
    SocketPath,
    "SocketPath",
    "^[^\\x00]{1,107}$",
    "Path of a Unix socket: absolute, or relative to the directory of the zone"
);

impl SocketPath {
    /// Whether the path is absolute.
    pub fn is_absolute(&self) -> bool {
        self.0.starts_with('/')
    }
}

impl FromStr for SocketPath {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.len() > SOCKET_PATH_BYTES_MAX {
            return Err(NameError::TooLong {
                text: text.into(),
                bytes_max: SOCKET_PATH_BYTES_MAX,
            });
        }
        if has_control(text) || !clean_components(text.strip_prefix('/').unwrap_or(text)) {
            return Err(NameError::SocketPath(text.into()));
        }
        Ok(Self(text.into()))
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

fn clean_components(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// A MAC address; written in lower case with colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Whether the group bit is set: multicast and broadcast, never an interface's own.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether all bits are zero.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }

    /// A locally administered unicast address made of 6 random bytes (`02`, then 5 of them).
    pub fn local(random: [u8; 6]) -> Self {
        let [_, b, c, d, e, f] = random;
        Self([0x02, b, c, d, e, f])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        f.pad(&format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"))
    }
}

impl FromStr for MacAddr {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError::Mac(text.into());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(error)?;
            let digits =
                (1..=2).contains(&part.len()) && part.chars().all(|c| c.is_ascii_hexdigit());
            *byte = if digits {
                u8::from_str_radix(part, 16).map_err(|_| error())?
            } else {
                return Err(error());
            };
        }
        if parts.next().is_some() {
            Err(error())
        } else {
            Ok(Self(bytes))
        }
    }
}

impl TryFrom<String> for MacAddr {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> String {
        mac.to_string()
    }
}

impl JsonSchema for MacAddr {
    fn schema_name() -> Cow<'static, str> {
        "MacAddr".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "description": "MAC address, lower case with colons",
            "pattern": "^([0-9a-fA-F]{1,2}[:-]){5}[0-9a-fA-F]{1,2}$"
        })
    }
}

/// An interface's address with its prefix length, as `ip address add` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IfAddr {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network part: at most 32, for IPv6 at most 128.
    pub prefix_bits: u8,
}

impl FromStr for IfAddr {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = || NameError::Prefix(text.into());
        let (address, bits) = text.split_once('/').ok_or_else(error)?;
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let prefix_bits: u8 = bits.parse().map_err(|_| error())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        if prefix_bits > bits_max || address.is_multicast() || address.is_unspecified() {
            return Err(error());
        }
        Ok(Self {
            address,
            prefix_bits,
        })
    }
}

impl TryFrom<String> for IfAddr {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<IfAddr> for String {
    fn from(value: IfAddr) -> String {
        value.to_string()
    }
}

impl fmt::Display for IfAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

impl JsonSchema for IfAddr {
    fn schema_name() -> Cow<'static, str> {
        "IfAddr".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "Address with prefix length: 10.0.0.1/24"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that could be read as an option, a path or a word of the command line are refused.
    #[test]
    fn names_are_checked() {
        for good in ["v0", "tenant-a.web:1", "_", "0", &"a".repeat(31)] {
            assert_eq!(good.parse::<Name>().expect(good).as_str(), good);
        }
        for bad in [
            "",
            "-v",
            ".",
            "..",
            ".x",
            "a/b",
            "a b",
            "a\0",
            "é",
            "all",
            "global",
            &"a".repeat(32),
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    /// No text of a socket path or a namespace names a parent directory.
    #[test]
    fn paths_do_not_climb() {
        for bad in [
            "",
            "/",
            "a/../b",
            "../a",
            "/run//x",
            "a/",
            "./a",
            "a\n",
            &"x".repeat(108),
        ] {
            assert!(bad.parse::<SocketPath>().is_err(), "{bad:?}");
        }
        assert!(
            "/run/windlass/m.sock"
                .parse::<SocketPath>()
                .expect("path")
                .is_absolute()
        );
        assert!(!"m.sock".parse::<SocketPath>().expect("path").is_absolute());
        for bad in ["", ".", "..", "a/b", "/proc/../x", "a\0"] {
            assert!(bad.parse::<Netns>().is_err(), "{bad:?}");
        }
        assert_eq!("a".parse::<Netns>().expect("netns").path(), "/run/netns/a");
    }

    /// Addresses are read in the forms that people write and printed in one.
    #[test]
    fn addresses_have_one_form() {
        assert_eq!(
            "2:0:0:0:0:A".parse::<MacAddr>().expect("mac").to_string(),
            "02:00:00:00:00:0a"
        );
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "+2:0:0:0:0:0",
            "02:00:00:00:00:100",
        ] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad:?}");
        }
        assert_eq!(
            "10.0.0.1/24".parse::<IfAddr>().expect("prefix").to_string(),
            "10.0.0.1/24"
        );
        for bad in [
            "10.0.0.1",
            "10.0.0.1/33",
            "::1/129",
            "0.0.0.0/0",
            "224.0.0.1/4",
            "x/1",
        ] {
            assert!(bad.parse::<IfAddr>().is_err(), "{bad:?}");
        }
    }
}
