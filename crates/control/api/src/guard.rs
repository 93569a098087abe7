//! What protection takes: addresses that a VNIC speaks for and how it comes to them, DHCP client identifiers, and the settings made of them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;
use windlass_rules::{Prefix, PrefixError};

use crate::name::MacAddr;
use crate::option::Value;
use crate::property::{Properties, Scope};

/// Entries of a list at most, as dladm has it.
pub const ALLOWED_MAX: usize = 32;
/// Bytes of a client identifier at most: what an option of DHCPv4 holds.
pub const CLIENT_ID_MAX: usize = 255;

/// Why a text is not a list of what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AllowedError {
    /// Neither an address nor a prefix.
    #[error("\"{0}\" is neither an IP address nor a prefix such as 10.1.0.0/16")]
    Address(String),
    /// An address with a prefix length.
    #[error("\"{0}\" has bits beyond its prefix: name the address alone, or the prefix")]
    HostBits(String),
    /// An IPv4-mapped IPv6 address.
    #[error(
        "\"{0}\" is an IPv4-mapped address, which no packet may come from: name the IPv4 address"
    )]
    Mapped(String),
    /// Not an identifier.
    #[error(
        "\"{0}\" is not a client identifier: 1 to {CLIENT_ID_MAX} bytes, as text or as 0x and hex digits"
    )]
    ClientId(String),
    /// No way to come to an address.
    #[error("\"{0}\" is none of dhcpv4, dhcpv6, slaac and addrconf")]
    Method(String),
    /// Not the link-layer address of one station.
    #[error("\"{0}\" is not the MAC address of one station, such as 02:00:00:00:00:01")]
    Mac(String),
    /// Not a group that has members.
    #[error(
        "\"{0}\" is not a multicast group that has members, alone or after its VLAN: 239.1.1.1, 10/ff05::1:3"
    )]
    Group(String),
    /// An entry is given twice.
    #[error("\"{0}\" is given twice")]
    Twice(String),
    /// More entries than may be.
    #[error("{0} entries; there may be {ALLOWED_MAX}")]
    TooMany(usize),
}

/// The entries of a list; none in "" and "none".
pub(crate) fn entries(text: &str) -> Result<Vec<&str>, AllowedError> {
    if matches!(text, "" | "none") {
        return Ok(Vec::new());
    }
    match text.split(',').count() {
        0..=ALLOWED_MAX => Ok(text.split(',').collect()),
        count => Err(AllowedError::TooMany(count)),
    }
}

/// An entry as an error shows it.
pub(crate) fn shown(entry: &str) -> String {
    entry.chars().take(64).collect()
}

/// IP addresses and prefixes that a VNIC speaks for: "10.0.0.1,10.1.0.0/16,fd00::1".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedIps(Vec<(IpAddr, u8)>);

impl AllowedIps {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each address with the number of its bits that count.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        self.0.iter().copied()
    }
}

fn prefix(entry: &str) -> Result<(IpAddr, u8), AllowedError> {
    let prefix: Prefix = entry.parse().map_err(|error| match error {
        PrefixError::Malformed => AllowedError::Address(shown(entry)),
        PrefixError::HostBits => AllowedError::HostBits(shown(entry)),
    })?;
    match prefix.address {
        IpAddr::V6(v6) if prefix.bits >= 96 && v6.to_ipv4_mapped().is_some() => {
            Err(AllowedError::Mapped(shown(entry)))
        }
        address => Ok((address, prefix.bits)),
    }
}

impl FromStr for AllowedIps {
    type Err = AllowedError;
    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let all: Result<_, _> = entries(text)?.into_iter().map(prefix).collect();
        Ok(Self(all?))
    }
}

impl fmt::Display for AllowedIps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, &(address, bits)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", Prefix { address, bits })?;
        }
        Ok(())
    }
}

/// DHCP client identifiers that a VNIC may use beside those made of its address: "guest-1,0x00020000ab11".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientIds {
    /// Any.
    Any,
    /// These: option 61 of DHCPv4 with its type, or a DUID of DHCPv6.
    These(Vec<Vec<u8>>),
}

impl Default for ClientIds {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

impl ClientIds {
    /// Whether none is allowed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether an identifier can be written as text and read back.
fn is_text(id: &[u8]) -> bool {
    let is_plain = id.iter().all(|b| b.is_ascii_graphic() && *b != b',');
    is_plain && !id.starts_with(b"0x") && id != b"any" && id != b"none"
}

fn client_id(entry: &str) -> Result<Vec<u8>, AllowedError> {
    let error = || AllowedError::ClientId(shown(entry));
    let id = match entry.strip_prefix("0x") {
        Some(digits) => {
            let pairs = digits.as_bytes().chunks(2).map(|pair| {
                let both = std::str::from_utf8(pair).ok()?;
                let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
                u8::from_str_radix(both, 16).ok().filter(|_| is_hex)
            });
            pairs.collect::<Option<Vec<u8>>>().ok_or_else(error)?
        }
        None if is_text(entry.as_bytes()) => entry.as_bytes().to_vec(),
        None => return Err(error()),
    };
    match id.len() {
        1..=CLIENT_ID_MAX => Ok(id),
        _ => Err(error()),
    }
}

impl FromStr for ClientIds {
    type Err = AllowedError;
    fn from_str(text: &str) -> Result<Self, AllowedError> {
        if text == "any" {
            return Ok(Self::Any);
        }
        let all: Result<_, _> = entries(text)?.into_iter().map(client_id).collect();
        Ok(Self::These(all?))
    }
}

impl fmt::Display for ClientIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = match self {
            Self::Any => return f.write_str("any"),
            Self::These(ids) => ids,
        };
        for (index, id) in ids.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match std::str::from_utf8(id) {
                Ok(text) if is_text(id) => f.write_str(text)?,
                _ => {
                    f.write_str("0x")?;
                    id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Ways in which a VNIC comes to addresses that nobody names: "dhcpv4,slaac".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DynamicMethods {
    /// DHCPv4.
    pub dhcpv4: bool,
    /// DHCPv6, addresses and prefixes.
    pub dhcpv6: bool,
    /// Router advertisements.
    pub slaac: bool,
}

impl DynamicMethods {
    /// All of them.
    pub const ALL: Self = Self {
        dhcpv4: true,
        dhcpv6: true,
        slaac: true,
    };

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl FromStr for DynamicMethods {
    type Err = AllowedError;
    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let mut methods = Self::default();
        for entry in entries(text)? {
            match entry {
                "dhcpv4" => methods.dhcpv4 = true,
                "dhcpv6" => methods.dhcpv6 = true,
                "slaac" => methods.slaac = true,
                "addrconf" => (methods.dhcpv6, methods.slaac) = (true, true),
                _ => return Err(AllowedError::Method(shown(entry))),
            }
        }
        Ok(methods)
    }
}

impl fmt::Display for DynamicMethods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.dhcpv4, "dhcpv4"),
            (self.dhcpv6, "dhcpv6"),
            (self.slaac, "slaac"),
        ];
        let words = words
            .iter()
            .filter_map(|(is_on, word)| is_on.then_some(*word));
        f.write_str(&match words.collect::<Vec<_>>() {
            words if words.is_empty() => "none".into(),
            words => words.join(","),
        })
    }
}

/// Further link-layer addresses of a VNIC: "02:00:00:00:00:01,02:00:00:00:00:02".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Macs(Vec<MacAddr>);

impl Macs {
    /// What holds for a member of this kind with these properties set.
    pub(crate) fn of(scope: Scope, set: &Properties) -> Self {
        match set.effective(scope, "secondary-macs") {
            // Checked when it was set.
            Some(Value::Text(text)) => text.parse().unwrap_or_default(),
            _ => Self::default(),
        }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = MacAddr> + '_ {
        self.0.iter().copied()
    }
}

impl IntoIterator for Macs {
    type Item = MacAddr;
    type IntoIter = std::vec::IntoIter<MacAddr>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromStr for Macs {
    type Err = AllowedError;
    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let mut macs = Vec::new();
        for entry in entries(text)? {
            let mac: Option<MacAddr> = entry.parse().ok();
            let mac = mac.filter(|mac| !mac.is_multicast() && !mac.is_zero());
            let mac = mac.ok_or_else(|| AllowedError::Mac(shown(entry)))?;
            if macs.contains(&mac) {
                return Err(AllowedError::Twice(shown(entry)));
            }
            macs.push(mac);
        }
        Ok(Self(macs))
    }
}

impl fmt::Display for Macs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mac) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{mac}")?;
        }
        Ok(())
    }
}

/// What the packets of a member are held against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardSettings {
    /// The addresses that it speaks for, with `ip-nospoof`.
    pub ips: Option<AllowedIps>,
    /// How it comes to further ones, with `ip-nospoof`.
    pub methods: DynamicMethods,
    /// The client identifiers that it may use, with `dhcp-nospoof`.
    pub client_ids: Option<ClientIds>,
    /// It is no router.
    pub router_guard: bool,
    /// It is no DHCP server.
    pub dhcp_guard: bool,
}

impl GuardSettings {
    /// What holds for a member of this kind with these properties set.
    pub fn of(scope: Scope, set: &Properties) -> Self {
        let text = |name| match set.effective(scope, name) {
            Some(Value::Text(text)) => text,
            _ => String::new(),
        };
        let is_on = |name, is_named: bool| match set.effective(scope, name) {
            Some(Value::Flag(flag)) => flag,
            _ => is_named,
        };
        // Checked when they were set.
        let ips: AllowedIps = text("allowed-ips").parse().unwrap_or_default();
        let ids: ClientIds = text("allowed-dhcp-cids").parse().unwrap_or_default();
        let methods: Option<DynamicMethods> = match set.effective(scope, "dynamic-methods") {
            Some(Value::Text(text)) => Some(text.parse().unwrap_or_default()),
            _ => None,
        };
        let is_named = !ips.is_empty() || methods.is_some_and(|methods| !methods.is_empty());
        let otherwise = match ips.is_empty() {
            true => DynamicMethods::ALL,
            false => DynamicMethods::default(),
        };
        let ips = is_on("ip-nospoof", is_named).then_some(ips);
        Self {
            methods: match ips {
                Some(_) => methods.unwrap_or(otherwise),
                None => DynamicMethods::default(),
            },
            ips,
            client_ids: is_on("dhcp-nospoof", !ids.is_empty()).then_some(ids),
            router_guard: set.flag(scope, "router-guard"),
            dhcp_guard: set.flag(scope, "dhcp-guard"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Addresses and prefixes read back; what is no prefix, or means two things, is refused with the entry.
    #[test]
    fn addresses() {
        for (text, canonical) in [
            ("", ""),
            ("none", ""),
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1/32,fd00::1/128", "10.0.0.1,fd00::1"),
            (
                "10.1.0.0/16,FD00:0::/64,0.0.0.0/0",
                "10.1.0.0/16,fd00::/64,0.0.0.0/0",
            ),
            ("::/0", "::/0"),
        ] {
            let list: AllowedIps = text.parse().expect(text);
            assert_eq!(list.to_string(), canonical);
        }
        for bad in [
            "10.0.0",
            "10.0.0.1/33",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
            " 10.0.0.1",
            ",",
            "10.0.0.1,",
            "a",
            "any",
            "10.0.0.1/24",
            "fd00::1/64",
            "10.0.0.1/0",
            "::ffff:10.0.0.1",
            "::ffff:0:0/96",
        ] {
            assert!(bad.parse::<AllowedIps>().is_err(), "{bad}");
        }
        let error = "10.0.0.1/24"
            .parse::<AllowedIps>()
            .expect_err("two meanings");
        assert!(error.to_string().contains("10.0.0.1/24"), "{error}");
        let many = ["10.0.0.1"; ALLOWED_MAX + 1].join(",");
        assert_eq!(many.parse::<AllowedIps>(), Err(AllowedError::TooMany(33)));
    }

    /// Identifiers are text or hex digits; what could be read in two ways is written in hex.
    #[test]
    fn client_identifiers() {
        let of = |text: &str| text.parse::<ClientIds>();
        assert_eq!(of("any"), Ok(ClientIds::Any));
        assert_eq!(of("none").map(|ids| ids.is_empty()), Ok(true));
        let ids = vec![b"guest-1".to_vec(), vec![0, 3, 0xab]];
        assert_eq!(of("guest-1,0x0003AB"), Ok(ClientIds::These(ids)));
        let long = format!("0x{}", "00".repeat(256));
        for bad in [
            ",", "a,", "0x", "0x1", "0xg0", "0x+1", "a b", "any,a", "none,a", "é", &long,
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    /// Naming what is allowed turns a check on; saying so turns it on and off whatever is named.
    #[test]
    fn lists_turn_checks_on() {
        let of = |settings: &[&str]| {
            let mut set = Properties::default();
            for setting in settings {
                set.assign(Scope::Vnic, setting).expect(setting);
            }
            GuardSettings::of(Scope::Vnic, &set)
        };
        assert_eq!(of(&[]), GuardSettings::default());
        assert!(
            of(&["allowed-ips=10.0.0.1"])
                .ips
                .is_some_and(|ips| !ips.is_empty())
        );
        assert_eq!(of(&["allowed-ips=10.0.0.1", "ip-nospoof=off"]).ips, None);
        assert_eq!(of(&["allowed-ips=none"]).ips, None);
        assert!(of(&["ip-nospoof=on"]).ips.is_some_and(|ips| ips.is_empty()));
        assert_eq!(
            of(&["allowed-dhcp-cids=any"]).client_ids,
            Some(ClientIds::Any)
        );
        assert!(
            of(&["dhcp-nospoof=on"])
                .client_ids
                .is_some_and(|ids| ids.is_empty())
        );
        let guards = of(&["router-guard=on", "dhcp-guard=on"]);
        assert!(guards.router_guard && guards.dhcp_guard && guards.ips.is_none());
        let mut set = Properties::default();
        assert!(set.assign(Scope::Vnic, "allowed-ips=10.0.0.1/8").is_err());
        assert!(set.assign(Scope::Uplink, "allowed-ips=10.0.0.1").is_err());
    }

    /// Methods are a set; they turn the check on, and are all there is where nothing is named.
    #[test]
    fn dynamic_methods() {
        let of = |text: &str| text.parse::<DynamicMethods>();
        for (text, canonical) in [
            ("", "none"),
            ("none", "none"),
            ("slaac,dhcpv4", "dhcpv4,slaac"),
            ("addrconf", "dhcpv6,slaac"),
            ("addrconf,dhcpv4,slaac", "dhcpv4,dhcpv6,slaac"),
        ] {
            assert_eq!(of(text).expect(text).to_string(), canonical);
        }
        for bad in [",", "dhcp", "all", "dhcpv4,", "DHCPV4"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let of = |settings: &[&str]| {
            let mut set = Properties::default();
            for setting in settings {
                set.assign(Scope::Vnic, setting).expect(setting);
            }
            let guard = GuardSettings::of(Scope::Vnic, &set);
            (guard.ips.is_some(), guard.methods.to_string())
        };
        for (settings, is_on, methods) in [
            (&[][..], false, "none"),
            (&["ip-nospoof=on"], true, "dhcpv4,dhcpv6,slaac"),
            (&["allowed-ips=10.0.0.1"], true, "none"),
            (
                &["allowed-ips=10.0.0.1", "dynamic-methods=addrconf"],
                true,
                "dhcpv6,slaac",
            ),
            (&["dynamic-methods=dhcpv4"], true, "dhcpv4"),
            (&["dynamic-methods=none"], false, "none"),
            (&["ip-nospoof=on", "dynamic-methods=none"], true, "none"),
            (&["ip-nospoof=off", "dynamic-methods=dhcpv4"], false, "none"),
        ] {
            assert_eq!(of(settings), (is_on, methods.into()), "{settings:?}");
        }
    }

    /// Link-layer addresses are those of stations, each once.
    #[test]
    fn macs() {
        let of = |text: &str| text.parse::<Macs>();
        let two = "02:00:00:00:00:01,02:00:00:00:00:02";
        assert_eq!(of(two).expect(two).to_string(), two);
        assert_eq!(of("none"), Ok(Macs::default()));
        for bad in [
            ",",
            "02:00:00:00:00",
            "00:00:00:00:00:00",
            "01:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "02:00:00:00:00:01,02:00:00:00:00:01",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let many = (0..=ALLOWED_MAX).map(|n| format!("02:00:00:00:00:{n:02x}"));
        let many = many.collect::<Vec<_>>().join(",");
        assert_eq!(of(&many), Err(AllowedError::TooMany(33)));
    }

    proptest! {
        /// Any identifiers read back from their text.
        #[test]
        fn identifiers_read_back(ids in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 0..5)) {
            let ids = ClientIds::These(ids);
            prop_assert_eq!(ids.to_string().parse::<ClientIds>(), Ok(ids));
        }
    }
}
