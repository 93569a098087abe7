//! Sets of VLAN identifiers, as text "10,20-30".

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Lowest VLAN identifier that can be configured (0 is "priority only", IEEE 802.1Q 9.6).
pub const VLAN_MIN: u16 = 1;
/// Highest VLAN identifier that can be configured (4095 is reserved, IEEE 802.1Q 9.6).
pub const VLAN_MAX: u16 = 4094;

/// Why a text is not a set of VLANs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{0}\" is not a list of VLANs from 1 to 4094 (for example 10,20-30)")]
pub struct VlanError(pub String);

/// A set of VLAN identifiers, kept as sorted ranges that neither touch nor overlap; so equal sets
/// have equal texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VlanSet(Vec<(u16, u16)>);

impl VlanSet {
    /// The set of these identifiers; those outside 1 to 4094 are left out.
    pub fn of(vlans: impl IntoIterator<Item = u16>) -> Self {
        Self::from_ranges(
            vlans
                .into_iter()
                .filter(|v| (VLAN_MIN..=VLAN_MAX).contains(v))
                .map(|v| (v, v)),
        )
    }

    fn from_ranges(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(sorted.len());
        for (low, high) in sorted {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many identifiers it holds.
    pub fn len(&self) -> usize {
        self.0
            .iter()
            .map(|&(low, high)| usize::from(high - low) + 1)
            .sum()
    }

    /// Whether it holds this one.
    pub fn contains(&self, vlan: u16) -> bool {
        self.0
            .iter()
            .any(|&(low, high)| (low..=high).contains(&vlan))
    }

    /// Whether both hold one and the same.
    pub fn intersects(&self, other: &Self) -> bool {
        self.0
            .iter()
            .any(|&(low, high)| other.0.iter().any(|&(l, h)| l <= high && low <= h))
    }

    /// The ranges, ascending, both ends included.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// The identifiers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|&(low, high)| low..=high)
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, &(low, high)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if low == high {
                write!(f, "{comma}{low}")?;
            } else {
                write!(f, "{comma}{low}-{high}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for VlanSet {
    type Err = VlanError;
    fn from_str(text: &str) -> Result<Self, VlanError> {
        let error = || VlanError(text.chars().take(64).collect());
        if matches!(text, "" | "none") {
            return Ok(Self::default());
        }
        let vlan = |part: &str| match part.parse::<u16>() {
            Ok(v) if (VLAN_MIN..=VLAN_MAX).contains(&v) && !part.starts_with('+') => Ok(v),
            _ => Err(error()),
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (vlan(low)?, vlan(high)?);
            if low > high {
                return Err(error());
            }
            ranges.push((low, high));
        }
        Ok(Self::from_ranges(ranges))
    }
}

impl TryFrom<String> for VlanSet {
    type Error = VlanError;
    fn try_from(text: String) -> Result<Self, VlanError> {
        text.parse()
    }
}

impl From<VlanSet> for String {
    fn from(set: VlanSet) -> String {
        set.to_string()
    }
}

impl JsonSchema for VlanSet {
    fn schema_name() -> Cow<'static, str> {
        "VlanSet".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "description": "VLANs and ranges of VLANs: \"10,20-30\"; \"none\" as \"\"",
            "pattern": "^(none|[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*)?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What is outside 1 to 4094, reversed or not a number is refused.
    #[test]
    fn bad_lists_are_refused() {
        for bad in [
            "0", "4095", "20-10", "1,", ",", "a", "1--2", "+1", " 1", "1-2-3",
        ] {
            assert!(bad.parse::<VlanSet>().is_err(), "{bad:?}");
        }
        assert_eq!(
            "30,10-12,13,11"
                .parse::<VlanSet>()
                .expect("list")
                .to_string(),
            "10-13,30"
        );
    }

    proptest! {
        /// Against an oracle (`BTreeSet`): membership, size, order, intersection; and the text reads
        /// back as the same set.
        #[test]
        fn behaves_as_a_set(
            a in proptest::collection::vec(0u16..4200, 0..40),
            b in proptest::collection::vec(0u16..4200, 0..40),
        ) {
            let keep = |v: &Vec<u16>| -> BTreeSet<u16> {
                v.iter().copied().filter(|v| (1..=4094).contains(v)).collect()
            };
            let (set, oracle) = (VlanSet::of(a.clone()), keep(&a));
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), oracle.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), oracle.len());
            prop_assert_eq!(&set.to_string().parse::<VlanSet>().unwrap(), &set);
            for v in &a { prop_assert_eq!(set.contains(*v), oracle.contains(v)); }
            let meets = !oracle.is_disjoint(&keep(&b));
            prop_assert_eq!(set.intersects(&VlanSet::of(b)), meets);
        }
    }
}
