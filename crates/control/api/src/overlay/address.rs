//! Addresses out of a pool that the hosts of an overlay's registry share.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attach::ADDRESSES_MAX;
use crate::error::{ErrorBody, ErrorCode};
use crate::name::MacAddr;

/// Bytes of the name of an owner.
pub const OWNER_BYTES_MAX: usize = 255;
/// Bytes of the name of a pool.
pub const POOL_BYTES_MAX: usize = 64;
/// Ranges of one claim, in all its sets.
pub const RANGES_MAX: usize = 64;

/// Asks for addresses of an interface that is to be made: the registry gives them to this host, all or none.
///
/// They are given for 60 s. A VNIC on the overlay's bridge that has the MAC address and the IP addresses by then keeps them. Once
/// it has them no more, nobody gets them for 60 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressClaim {
    /// Whom they are for, at most 255 bytes. An owner that asks again before there is a VNIC gets the same ones.
    pub owner: String,
    /// VLAN on the bridge; 0 where it does not filter.
    #[serde(default)]
    pub vlan: u16,
    /// The MAC address that is wanted; without it, one is drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// The pool: letters, digits, dots, dashes and underscores, at most 64. All hosts give it the same ranges.
    pub pool: String,
    /// Sets of ranges, each from its first to its last address, without those that nobody may have (a gateway). One address out
    /// of each set is given, unless `ips` has one.
    pub sets: Vec<Vec<(IpAddr, IpAddr)>>,
    /// The addresses that are wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Only say whether there are addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Addresses that were given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedAddresses {
    /// The MAC address.
    pub mac: MacAddr,
    /// Those that were wanted, then one of each other set, in their order.
    pub ips: Vec<IpAddr>,
}

/// Gives addresses back for which no VNIC was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressRelease {
    /// Whom they were for.
    pub owner: String,
    /// VLAN on the bridge; 0 where it does not filter.
    #[serde(default)]
    pub vlan: u16,
}

impl AddressClaim {
    /// Whether it can be asked for.
    ///
    /// # Errors
    /// [`ErrorCode::Invalid`] with the key and what is wrong.
    pub fn check(&self) -> Result<(), ErrorBody> {
        let bad = |key: &str, why: String| {
            let text = format!("{key}: {why}");
            Err(ErrorBody::plain(ErrorCode::Invalid, text).at(key, why))
        };
        check_owner(&self.owner)?;
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=POOL_BYTES_MAX).contains(&self.pool.len()) || !self.pool.chars().all(is_letter) {
            return bad("pool", format!("{:?} is no name of a pool", self.pool));
        }
        if let Some(mac) = self.mac.filter(|mac| mac.is_multicast() || mac.is_zero()) {
            return bad("mac", format!("{mac} is no address of an interface"));
        }
        let ranges = || self.sets.iter().flatten();
        let is_range =
            |(first, last): &&(IpAddr, IpAddr)| first <= last && first.is_ipv4() == last.is_ipv4();
        if let Some((first, last)) = ranges().find(|range| !is_range(range)) {
            return bad("sets", format!("{first} to {last} is no range"));
        }
        if self.sets.iter().any(Vec::is_empty) {
            return bad("sets", "there is a set without a range".into());
        }
        let has = |(first, last): &(IpAddr, IpAddr), ip: &IpAddr| (first..=last).contains(&ip);
        let is_out = |ip: &&IpAddr| !ranges().any(|range| has(range, ip));
        if let Some(ip) = self.ips.iter().find(is_out) {
            return bad("ips", format!("{ip} is in no range"));
        }
        for (key, found, max) in [
            ("sets", self.sets.len(), ADDRESSES_MAX),
            ("sets", ranges().count(), RANGES_MAX),
            ("ips", self.ips.len(), ADDRESSES_MAX),
        ] {
            if found > max {
                return bad(key, format!("{found} of at most {max}"));
            }
        }
        Ok(())
    }
}

impl AddressRelease {
    /// Whether it can be asked for.
    ///
    /// # Errors
    /// As [`AddressClaim::check`].
    pub fn check(&self) -> Result<(), ErrorBody> {
        check_owner(&self.owner)
    }
}

fn check_owner(owner: &str) -> Result<(), ErrorBody> {
    let is_long = !(1..=OWNER_BYTES_MAX).contains(&owner.len());
    if is_long || owner.chars().any(char::is_control) {
        let why = "an owner has 1 to 255 bytes, and no control characters";
        return Err(ErrorBody::plain(ErrorCode::Invalid, why).at("owner", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(more: Value) -> Result<(), String> {
        let mut claim = json!({
            "owner": "cni:a/eth0", "pool": "p0", "sets": [[["10.0.0.1", "10.0.0.9"]], [["fd00::1", "fd00::9"]]],
        });
        for (key, value) in more.as_object().expect("an object") {
            claim[key] = value.clone();
        }
        let claim: AddressClaim = serde_json::from_value(claim).expect("a claim");
        claim.check().map_err(|error| error.message)
    }

    /// What can be asked for is taken, and each value that cannot be is named with its key.
    #[test]
    fn claims_are_checked() {
        assert_eq!(checked(json!({"ips": ["10.0.0.9", "fd00::1"]})), Ok(()));
        let many = vec![json!(["10.0.0.1", "10.0.0.1"]); 65];
        for (more, expected) in [
            (json!({"owner": ""}), "owner"),
            (json!({"owner": "a\nb"}), "owner"),
            (json!({"pool": "a/b"}), "pool"),
            (json!({"pool": "a".repeat(65)}), "pool"),
            (json!({"mac": "01:00:00:00:00:00"}), "mac"),
            (json!({"sets": [[["10.0.0.9", "10.0.0.1"]]]}), "sets"),
            (json!({"sets": [[["10.0.0.9", "fd00::1"]]]}), "sets"),
            (json!({"sets": [[]]}), "sets"),
            (json!({"sets": [many]}), "sets"),
            (json!({"ips": ["10.0.0.10"]}), "ips"),
            (json!({"ips": vec!["10.0.0.1"; 17]}), "ips"),
        ] {
            let told = checked(more.clone()).expect_err("it is refused");
            assert!(told.contains(expected), "{more}: {told}");
        }
    }
}
