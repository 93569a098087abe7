//! Keys and values of the registry.
//!
//! # Model
//! ```text
//! /windlass/v1/C/host/H           {"vtep":["192.0.2.1"],"port":4789}
//! /windlass/v1/C/alive/H          {"boot":B,"lease":N}                         on a lease
//! /windlass/v1/C/ep/VNI/MAC       {"h":H,"g":3,"ip":["10.0.0.5"],"st":"active"}
//! /windlass/v1/C/bum/VNI/H        {}                                          has members in that VNI
//! /windlass/v1/C/ip/VNI/ADDR      {"m":MAC,"h":H,"o":"cni:CONTAINER/IF"}      owns an address; "o": it was claimed
//! /windlass/v1/C/ip/VNI/ADDR      {"m":MAC,"h":H,"rest":true}                 had it, on a lease: nobody gets it until that lapses
//! /windlass/v1/C/rest/VNI/MAC     {}                                          the same of a MAC address, on that lease
//! /windlass/v1/C/block/POOL/CIDR  {"h":H}                                     who picks addresses in a block, /26 or /122
//! ```
//! `C` is the cluster, `VNI` has 6 and `MAC` 12 lower-case hexadecimal digits, addresses are canonical. Keys and values that are none of
//! these are passed over: another program may keep its own beside them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use windlass_lookup::protocol::{EndpointState, IPS_MAX, TARGETS_MAX, Target, is_target};
use windlass_wire::MacAddr;

use crate::registry::Scope;

/// Bytes of the name of a cluster or a host.
pub const NAME_BYTES_MAX: usize = 64;
/// Addresses of a host.
pub const VTEPS_MAX: usize = 8;
const _: () = assert!(VTEPS_MAX <= TARGETS_MAX);

/// Value of a `host/` key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Its tunnel addresses.
    pub vtep: Vec<IpAddr>,
    /// Its UDP port.
    pub port: u16,
}

/// Value of an `alive/` key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveRecord {
    /// Names one start of a host.
    pub boot: String,
    /// The lease. It is random, so no two registries have the same record at one revision.
    #[serde(default)]
    pub lease: i64,
}

/// Value of an `ep/` key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRecord {
    /// The host that has it.
    #[serde(rename = "h")]
    pub host: String,
    /// Generation: one more with each owner.
    #[serde(rename = "g")]
    pub generation: u64,
    /// Its IP addresses.
    #[serde(default, rename = "ip")]
    pub ips: Vec<IpAddr>,
    /// Whether it is live.
    #[serde(rename = "st")]
    pub state: EndpointState,
}

/// Value of an `ip/` key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRecord {
    /// The MAC address of the endpoint that has it, 12 digits.
    #[serde(rename = "m")]
    pub mac: String,
    /// That endpoint's host.
    #[serde(rename = "h")]
    pub host: String,
    /// Whom it was claimed for.
    #[serde(default, rename = "o", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The endpoint is gone, and nobody else gets the address yet.
    #[serde(default, rename = "rest", skip_serializing_if = "std::ops::Not::not")]
    pub is_resting: bool,
}

/// Value of a `block/` key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// The host that picks addresses in it.
    #[serde(rename = "h")]
    pub host: String,
}

/// The keys of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    root: String,
}

/// Whether a text may name a cluster or a host.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(good)
}

impl Keys {
    /// The keys of `cluster`.
    #[must_use]
    pub fn new(cluster: &str) -> Self {
        Self {
            root: format!("/windlass/v1/{cluster}/"),
        }
    }

    /// What all keys of a scope begin with.
    #[must_use]
    pub fn prefix(&self, scope: Scope) -> String {
        let root = &self.root;
        match scope {
            Scope::Hosts => format!("{root}host/"),
            Scope::Alive => format!("{root}alive/"),
            Scope::Endpoints(vni) => format!("{root}ep/{vni:06x}/"),
            Scope::Flood(vni) => format!("{root}bum/{vni:06x}/"),
            Scope::Addresses(vni) => format!("{root}ip/{vni:06x}/"),
            Scope::Blocks => format!("{root}block/"),
            Scope::All => root.clone(),
        }
    }

    /// A host's addresses.
    #[must_use]
    pub fn host(&self, host: &str) -> String {
        self.prefix(Scope::Hosts) + host
    }

    /// A host's sign of life.
    #[must_use]
    pub fn alive(&self, host: &str) -> String {
        self.prefix(Scope::Alive) + host
    }

    /// An endpoint.
    #[must_use]
    pub fn endpoint(&self, vni: u32, mac: MacAddr) -> String {
        self.prefix(Scope::Endpoints(vni)) + &digits(mac)
    }

    /// That a host has members in a VNI.
    #[must_use]
    pub fn flood(&self, vni: u32, host: &str) -> String {
        self.prefix(Scope::Flood(vni)) + host
    }

    /// Who has an address.
    #[must_use]
    pub fn address(&self, vni: u32, ip: IpAddr) -> String {
        format!("{}{ip}", self.prefix(Scope::Addresses(vni)))
    }

    /// That a MAC address rests.
    #[must_use]
    pub fn rest(&self, vni: u32, mac: MacAddr) -> String {
        format!("{}rest/{vni:06x}/{}", self.root, digits(mac))
    }

    /// A block of a pool.
    #[must_use]
    pub fn block(&self, pool: &str, first: IpAddr) -> String {
        let bits = if first.is_ipv4() { 26 } else { 122 };
        format!("{}{pool}/{first}/{bits}", self.prefix(Scope::Blocks))
    }

    /// Whether a record is of a host: named after it, or its property.
    #[must_use]
    pub fn is_of(&self, key: &str, value: &[u8], host: &str) -> bool {
        let parts: Vec<_> = self
            .leaf(Scope::All, key)
            .into_iter()
            .flat_map(|leaf| leaf.split('/'))
            .collect();
        match parts.as_slice() {
            ["host" | "alive", name] | ["bum", _, name] => *name == host,
            ["ep" | "ip" | "block", ..] => {
                serde_json::from_slice(value).is_ok_and(|of: Owned| of.host == host)
            }
            _ => false,
        }
    }

    /// What a key of a scope ends with.
    #[must_use]
    pub fn leaf<'k>(&self, scope: Scope, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.prefix(scope).as_str())
    }
}

/// The host that a value names.
#[derive(Deserialize)]
struct Owned {
    #[serde(rename = "h")]
    host: String,
}

/// A MAC address as 12 lower-case digits.
#[must_use]
pub fn digits(mac: MacAddr) -> String {
    mac.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A MAC address out of 12 lower-case digits.
#[must_use]
pub fn mac(text: &str) -> Option<MacAddr> {
    let bytes = u64::from_str_radix(text, 16).ok()?.to_be_bytes();
    let [_, _, rest @ ..] = bytes;
    let mac = MacAddr(rest);
    (digits(mac) == text && mac.is_unicast_source()).then_some(mac)
}

/// A value as it is written.
///
/// # Panics
/// Never: the records of this module have text keys only.
#[must_use]
pub fn value<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are JSON")
}

/// A host's record; `None` if it is none.
#[must_use]
pub fn host(value: &[u8]) -> Option<HostRecord> {
    let record: HostRecord = serde_json::from_slice(value).ok()?;
    let port = record.port;
    let mut targets = record.vtep.iter().map(|ip| Target { ip: *ip, port });
    let is_good = targets.all(|target| is_target(&target).is_ok());
    (is_good && port != 0 && record.vtep.len() <= VTEPS_MAX).then_some(record)
}

/// An endpoint's record; `None` if it is none.
#[must_use]
pub fn endpoint(value: &[u8]) -> Option<EndpointRecord> {
    let record: EndpointRecord = serde_json::from_slice(value).ok()?;
    (is_name(&record.host) && record.ips.len() <= IPS_MAX).then_some(record)
}

/// A block's record; `None` if it is none.
#[must_use]
pub fn block(value: &[u8]) -> Option<BlockRecord> {
    serde_json::from_slice(value).ok()
}

/// An address' record; `None` if it is none.
#[must_use]
pub fn address(value: &[u8]) -> Option<AddressRecord> {
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys are those that the page of the protocol shows, and what is read back is what was written.
    #[test]
    fn keys_and_values_are_as_documented() {
        let keys = Keys::new("c");
        let at = MacAddr([2, 0, 0, 0, 0xab, 1]);
        let text = keys.endpoint(23, at);
        assert_eq!(text, "/windlass/v1/c/ep/000017/02000000ab01");
        let leaf = keys.leaf(Scope::Endpoints(23), &text).expect("a leaf");
        assert_eq!(mac(leaf), Some(at));
        assert_eq!(keys.host("a"), "/windlass/v1/c/host/a");
        assert_eq!(keys.alive("a"), "/windlass/v1/c/alive/a");
        assert_eq!(keys.flood(1, "a"), "/windlass/v1/c/bum/000001/a");
        let ip = "FD00::0:5".parse().expect("an address");
        assert_eq!(keys.address(1, ip), "/windlass/v1/c/ip/000001/fd00::5");
        let block = keys.block("p0", "10.0.0.64".parse().expect("an address"));
        assert_eq!(block, "/windlass/v1/c/block/p0/10.0.0.64/26");
        assert!(keys.is_of(&block, br#"{"h":"a"}"#, "a"));
        assert_eq!(keys.rest(1, at), "/windlass/v1/c/rest/000001/02000000ab01");
        for bad in [
            "",
            "02000000AB01",
            "2000000ab01",
            "+2000000ab01",
            "ffffffffffff",
            "zz",
        ] {
            assert_eq!(mac(bad), None, "{bad}");
        }
        let record = EndpointRecord {
            host: "a".to_owned(),
            generation: 3,
            ips: vec!["10.0.0.5".parse().expect("an address")],
            state: EndpointState::Active,
        };
        let bytes = value(&record);
        assert_eq!(bytes, br#"{"h":"a","g":3,"ip":["10.0.0.5"],"st":"active"}"#);
        assert_eq!(endpoint(&bytes), Some(record));
        assert_eq!(endpoint(br#"{"h":"a/b","g":3,"st":"active"}"#), None);
        for (vtep, port) in [
            ("", 0),
            ("\"192.0.2.1\"", 0),
            ("\"0.0.0.0\"", 4789),
            ("\"255.255.255.255\"", 4789),
            ("\"192.0.2.1\",\"ff02::1\"", 4789),
        ] {
            let value = format!(r#"{{"vtep":[{vtep}],"port":{port}}}"#);
            assert_eq!(host(value.as_bytes()), None, "{value}");
        }
        assert!(!is_name("a/b") && !is_name("") && !is_name(&"a".repeat(65)));
    }
}
