//! Which VNIC has which receive rings of an uplink's interface.
//!
//! # Model
//! As Crossbow's groups: a *group* is one or more addresses and the rings (queues of the device) that nothing else comes by. A VNIC that
//! asks for rings has a group of its own as long as rings and rules last; all others, and everything without an address of a
//! group, share the *default group*, which keeps one ring at least. A group stays as it is while its VNIC asks for the same: who
//! came first keeps what it has.
//!
//! # Not done
//! Groups are not moved together to make room for one that asks for more.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What a VNIC asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Its name.
    pub vnic: String,
    /// Its addresses, as the low 48 bits of little-endian loads.
    pub addresses: BTreeSet<u64>,
    /// How many rings.
    pub rings: u32,
}

/// A VNIC with rings of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its name; empty where the group is about to end.
    pub vnic: String,
    /// Its addresses.
    pub addresses: BTreeSet<u64>,
    /// Its rings, by number.
    pub rings: BTreeSet<u32>,
}

/// What an interface has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Receive rings.
    pub rings: u32,
    /// The default group's ring for each value of the hash, without us.
    pub table: Vec<u32>,
    /// Rings that the rules of others lead to.
    pub others: BTreeSet<u32>,
    /// Rules that can still be added once no group of ours is left.
    pub rules: usize,
}

/// Why a VNIC is in the default group, though it asked for rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// So many rings are free.
    Rings(usize),
    /// So many rules are free.
    Rules(usize),
    /// Another group has one of its addresses.
    Address,
}

impl fmt::Display for Lacks {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lacks::Rings(free) => write!(to, "{free} rings are free"),
            Lacks::Rules(free) => write!(to, "{free} rules are free"),
            Lacks::Address => write!(to, "its address has a rule already"),
        }
    }
}

/// What is to be made, and who gets nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Groups to be made.
    pub make: Vec<Group>,
    /// VNICs without one.
    pub lacks: Vec<(String, Lacks)>,
}

impl Group {
    /// Whether it is what one of these VNICs asks for; others end before anything is made.
    pub fn is_asked(&self, wishes: &[Wish]) -> bool {
        wishes.iter().any(|wish| self.is(wish))
    }

    fn is(&self, wish: &Wish) -> bool {
        let rings = self.rings.len() == wish.rings as usize;
        self.vnic == wish.vnic && self.addresses == wish.addresses && rings
    }
}

/// What is to be made for these wishes beside the groups that are held.
pub fn plan(device: &Device, held: &[Group], wishes: &[Wish]) -> Plan {
    let mut plan = Plan::default();
    let mut groups = held.to_vec();
    for wish in wishes {
        if groups.iter().any(|group| group.is(wish)) {
            continue;
        }
        match fit(device, &groups, wish) {
            Ok(group) => {
                groups.push(group.clone());
                plan.make.push(group);
            }
            Err(lacks) => plan.lacks.push((wish.vnic.clone(), lacks)),
        }
    }
    plan
}

/// A group for a wish, beside these.
fn fit(device: &Device, groups: &[Group], wish: &Wish) -> Result<Group, Lacks> {
    let used = groups.iter().map(|group| group.addresses.len()).sum();
    let rules = device.rules.saturating_sub(used);
    if groups
        .iter()
        .any(|group| !group.addresses.is_disjoint(&wish.addresses))
    {
        return Err(Lacks::Address);
    }
    if wish.addresses.len() > rules {
        return Err(Lacks::Rules(rules));
    }
    let taken: BTreeSet<u32> = groups
        .iter()
        .flat_map(|group| &group.rings)
        .copied()
        .collect();
    let all = (0..device.rings).rev();
    let free = all.filter(|ring| !taken.contains(ring) && !device.others.contains(ring));
    // Those that the default group does not use anyhow come first.
    let (shared, idle): (Vec<u32>, Vec<u32>) = free.partition(|ring| device.table.contains(ring));
    let default: BTreeSet<u32> = device.table.iter().copied().collect();
    let left = default.difference(&taken).count();
    let spare = shared.len().min(left.saturating_sub(1));
    let free: Vec<u32> = idle
        .into_iter()
        .chain(shared.into_iter().take(spare))
        .collect();
    let Some(rings) = free.get(..wish.rings as usize) else {
        return Err(Lacks::Rings(free.len()));
    };
    Ok(Group {
        vnic: wish.vnic.clone(),
        addresses: wish.addresses.clone(),
        rings: rings.iter().copied().collect(),
    })
}

/// The default group's table beside groups: what led to one of their rings is shared among the rings that it has left. Nothing
/// changes where it has none.
pub fn default_table<'a>(table: &[u32], groups: impl Iterator<Item = &'a Group>) -> Vec<u32> {
    let taken: BTreeSet<u32> = groups.flat_map(|group| &group.rings).copied().collect();
    let left: BTreeSet<u32> = table
        .iter()
        .copied()
        .filter(|ring| !taken.contains(ring))
        .collect();
    let mut next = left.iter().copied().cycle();
    let ring = |ring: &u32| match taken.contains(ring) {
        true => next.next().unwrap_or(*ring),
        false => *ring,
    };
    table.iter().map(ring).collect()
}

/// A table of this length that has each of these rings equally often, give or take one.
pub fn spread(rings: &BTreeSet<u32>, length: usize) -> Vec<u32> {
    rings.iter().copied().cycle().take(length).collect()
}
