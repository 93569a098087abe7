//! Rings of the interface for single VNICs: what [`plan`] says, laid into the interface's classifier.
//!
//! # Model
//! A VNIC's addresses have rules that lead to its ring, or to a context that spreads over its rings; the default context's table is kept
//! off them. One group is made at a time: its rings leave the default table, its context is made, its rules are added.
//!
//! # What can be lost
//! Frames that are under way while a group is made or ends may overtake each other, as with any change of a device's spreading.
//!
//! # Failure modes
//! What is refused half-way is taken back, and the VNIC is in the default group, with the reason ([`Rings::describe`]). What cannot even be
//! taken back stays ours, and is tried again with the next change.
//!
//! Everything is written down before it is done, so that the daemon after a kill finds it; it removes what is still as it was
//! written down. Rules and tables of others are left alone: a rule is added at a location that nobody has, at the
//! end, where those of others come first; a table that somebody else has set since is the one that counts.
//!
//! # Limits
//! The number of a context is known only when it is made: one that was made in the instant of a kill stays. A driver that chooses
//! locations by itself refuses ours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use windlass_nic::rings::{Device, Group, Wish, default_table, plan, spread};
use windlass_sys::Errno;
use windlass_sys::ethtool::{self, Rule, Target};

/// What a record is written to first.
const BESIDE: &str = ".new";

/// An interface's classifier.
pub(super) trait Classifier {
    /// Receive rings.
    fn rings(&self) -> Result<u32, Errno>;
    /// The table of a context; 0: the default.
    fn table(&self, context: u32) -> Result<Vec<u32>, Errno>;
    /// Sets the default context's; an empty one: the driver's own.
    fn set_default_table(&self, table: &[u32]) -> Result<(), Errno>;
    /// Makes a context.
    fn add_context(&self, table: &[u32]) -> Result<u32, Errno>;
    /// Removes it.
    fn remove_context(&self, context: u32) -> Result<(), Errno>;
    /// How many rules there can be, and those that there are.
    fn rules(&self) -> Result<(u32, Vec<Rule>), Errno>;
    /// Adds one at its location.
    fn add_rule(&self, rule: &Rule) -> Result<(), Errno>;
    /// Removes the one at a location.
    fn remove_rule(&self, location: u32) -> Result<(), Errno>;
}

/// An interface by its name.
pub(super) struct Interface(pub(super) String);

impl Classifier for Interface {
    fn rings(&self) -> Result<u32, Errno> {
        ethtool::queues(&self.0).map(|queues| queues.receive)
    }

    fn table(&self, context: u32) -> Result<Vec<u32>, Errno> {
        ethtool::table(&self.0, context)
    }

    fn set_default_table(&self, table: &[u32]) -> Result<(), Errno> {
        ethtool::set_default_table(&self.0, table)
    }

    fn add_context(&self, table: &[u32]) -> Result<u32, Errno> {
        ethtool::add_context(&self.0, table)
    }

    fn remove_context(&self, context: u32) -> Result<(), Errno> {
        ethtool::remove_context(&self.0, context)
    }

    fn rules(&self) -> Result<(u32, Vec<Rule>), Errno> {
        ethtool::rules(&self.0)
    }

    fn add_rule(&self, rule: &Rule) -> Result<(), Errno> {
        ethtool::add_rule(&self.0, rule)
    }

    fn remove_rule(&self, location: u32) -> Result<(), Errno> {
        ethtool::remove_rule(&self.0, location)
    }
}

/// What the interface, or the record, refused.
#[derive(Debug, Error)]
enum Refused {
    #[error("the driver has no rules by address, or they are off (ethtool -K ntuple on): {0}")]
    Rules(Errno),
    #[error("add a rule: {0}")]
    Add(Errno),
    #[error("remove a rule: {0}")]
    Remove(Errno),
    #[error("the default group's table: {0}")]
    Table(Errno),
    #[error("a context for several rings: {0}")]
    Context(Errno),
    #[error("no location is free")]
    Full,
    #[error("{0}: {1}")]
    Record(PathBuf, io::Error),
}

/// What was laid into an interface.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Laid {
    /// The interface's index.
    interface: u32,
    table: Option<Table>,
    groups: Vec<LaidGroup>,
}

/// The default group's table.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Table {
    /// Without us.
    before: Vec<u32>,
    /// What we have set: the last one, and until that is done the one before.
    ours: Vec<Vec<u32>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct LaidGroup {
    group: Group,
    context: Option<u32>,
    /// Addresses by the locations of their rules.
    rules: BTreeMap<u32, u64>,
}

impl LaidGroup {
    /// Its rules, as the interface has them.
    fn rules(&self) -> impl Iterator<Item = Rule> + '_ {
        let first = self.group.rings.first().copied().map(Target::Queue);
        let target = self.context.map(Target::Context).or(first);
        self.rules.iter().map(move |(location, address)| {
            let [a, b, c, d, e, f, ..] = address.to_le_bytes();
            Rule {
                location: *location,
                destination: Some([a, b, c, d, e, f]),
                target: target.unwrap_or(Target::Other),
            }
        })
    }
}

/// The groups of one interface.
#[derive(Debug)]
pub(super) struct Rings {
    record: PathBuf,
    laid: Laid,
    /// VNICs that asked and have none, with the reason.
    refused: BTreeMap<String, String>,
    /// Why something stays that should not.
    stays: Option<String>,
}

impl Rings {
    /// Those that records in a directory tell of, but for the interfaces that are kept.
    pub(super) fn all_left(directory: &Path, keep: &[String]) -> Vec<Rings> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let stale = names.filter(|name| name != BESIDE && !keep.contains(name));
        stale
            .map(|name| Rings::left(&directory.join(name)))
            .collect()
    }

    /// What the daemon before has left by this record.
    pub(super) fn left(record: &Path) -> Rings {
        let text = fs::read_to_string(record).ok();
        Rings {
            record: record.to_owned(),
            laid: text
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default(),
            refused: BTreeMap::new(),
            stays: None,
        }
    }

    /// The index of the interface that it is about, if there is anything about it.
    pub(super) fn interface(&self) -> Option<u32> {
        (!self.is_empty()).then_some(self.laid.interface)
    }

    /// Is about this interface from now on. What another one has is forgotten.
    pub(super) fn begin(&mut self, interface: u32) {
        if self.laid.interface != interface {
            self.laid = Laid {
                interface,
                ..Laid::default()
            };
            let _ = self.write();
        }
    }

    fn is_empty(&self) -> bool {
        self.laid.groups.is_empty() && self.laid.table.is_none()
    }

    fn write(&self) -> Result<(), Refused> {
        let replace = || {
            if self.is_empty() {
                return match fs::remove_file(&self.record) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                };
            }
            if let Some(directory) = self.record.parent() {
                fs::create_dir_all(directory)?;
            }
            let beside = self.record.with_file_name(BESIDE);
            fs::write(&beside, serde_json::to_vec(&self.laid)?)?;
            fs::rename(&beside, &self.record)
        };
        replace().map_err(|error| Refused::Record(self.record.clone(), error))
    }

    /// Has the interface give these VNICs rings, as far as it can.
    pub(super) fn follow(&mut self, nic: &dyn Classifier, wishes: &[Wish]) {
        self.refused.clear();
        self.stays = None;
        if wishes.is_empty() && self.is_empty() {
            return;
        }
        for laid in &mut self.laid.groups {
            if !laid.group.is_asked(wishes) {
                laid.group.vnic.clear();
            }
        }
        if let Err(why) = self.try_follow(nic, wishes) {
            self.refuse(wishes, &why.to_string());
            self.stays = (!self.is_empty()).then(|| why.to_string());
        }
        // What is written down may be more than there is.
        let _ = self.write();
    }

    /// No VNIC gets any, but for those that have some.
    pub(super) fn refuse(&mut self, wishes: &[Wish], why: &str) {
        let has = |wish: &&Wish| {
            self.laid
                .groups
                .iter()
                .any(|laid| laid.group.vnic == wish.vnic)
        };
        let lack = wishes.iter().filter(|wish| !has(wish));
        self.refused = lack
            .map(|wish| (wish.vnic.clone(), why.to_owned()))
            .collect();
    }

    /// Takes everything back.
    pub(super) fn release(&mut self, nic: &dyn Classifier) {
        self.follow(nic, &[]);
    }

    /// The interface is gone, and with it what it had.
    pub(super) fn forget(&mut self) {
        self.laid = Laid::default();
        let _ = self.write();
    }

    fn try_follow(&mut self, nic: &dyn Classifier, wishes: &[Wish]) -> Result<(), Refused> {
        let device = self.device(nic)?;
        let mut at = 0;
        while let Some(laid) = self.laid.groups.get(at) {
            if laid.group.is_asked(wishes) {
                at += 1;
            } else if let Err(why) = self.end(nic, at) {
                self.stays = Some(why.to_string());
                at += 1;
            }
        }
        let held = self.laid.groups.iter().map(|laid| laid.group.clone());
        let plan = plan(&device, &held.collect::<Vec<_>>(), wishes);
        for (vnic, lacks) in plan.lacks {
            self.refused.insert(vnic, lacks.to_string());
        }
        for group in plan.make {
            let vnic = group.vnic.clone();
            if let Err(why) = self.make(nic, group) {
                self.refused.insert(vnic, why.to_string());
                if let Err(why) = self.end(nic, self.laid.groups.len() - 1) {
                    self.stays = Some(why.to_string());
                }
            }
        }
        if let Err(why) = self.set_default_table(nic) {
            self.stays = Some(why.to_string());
        }
        Ok(())
    }

    /// What the interface has to give.
    fn device(&self, nic: &dyn Classifier) -> Result<Device, Refused> {
        let (room, there) = nic.rules().map_err(Refused::Rules)?;
        let ours: Vec<Rule> = self.laid.groups.iter().flat_map(LaidGroup::rules).collect();
        let foreign: Vec<&Rule> = there.iter().filter(|rule| !ours.contains(rule)).collect();
        let mut others = BTreeSet::new();
        for rule in &foreign {
            match rule.target {
                Target::Queue(ring) => others.extend([ring]),
                Target::Context(context) => {
                    others.extend(nic.table(context).map_err(Refused::Context)?);
                }
                Target::Other => {}
            }
        }
        Ok(Device {
            rings: nic.rings().map_err(Refused::Table)?,
            table: self.before(&nic.table(0).map_err(Refused::Table)?).to_vec(),
            others,
            rules: (room as usize).saturating_sub(foreign.len()),
        })
    }

    /// The default group's table without us; `now`: the one that it has.
    fn before<'a>(&'a self, now: &'a Vec<u32>) -> &'a [u32] {
        match &self.laid.table {
            Some(table) if table.ours.contains(now) => &table.before,
            _ => now,
        }
    }

    /// Keeps the default group off the rings of all others.
    fn set_default_table(&mut self, nic: &dyn Classifier) -> Result<(), Refused> {
        let now = nic.table(0).map_err(Refused::Table)?;
        let before = self.before(&now).to_vec();
        let groups = self.laid.groups.iter().map(|laid| &laid.group);
        let ours = default_table(&before, groups);
        let is_back = ours == before;
        if ours != now {
            self.laid.table = Some(Table {
                before: before.clone(),
                ours: vec![now, ours.clone()],
            });
            self.write()?;
            let rings = nic.rings().map_err(Refused::Table)?.max(1);
            let is_drivers = (0..)
                .zip(&ours)
                .all(|(i, ring): (u32, _)| *ring == i % rings);
            let table: &[u32] = if is_back && is_drivers { &[] } else { &ours };
            nic.set_default_table(table).map_err(Refused::Table)?;
        }
        let ours = vec![ours];
        self.laid.table = (!is_back).then_some(Table { before, ours });
        self.write()
    }

    /// Makes a group, the last one. After an error a part of it may be there.
    fn make(&mut self, nic: &dyn Classifier, group: Group) -> Result<(), Refused> {
        let at = self.laid.groups.len();
        self.laid.groups.push(LaidGroup {
            group: group.clone(),
            context: None,
            rules: BTreeMap::new(),
        });
        self.set_default_table(nic)?;
        if group.rings.len() > 1 {
            let length = nic.table(0).map_err(Refused::Table)?.len();
            let made = nic.add_context(&spread(&group.rings, length));
            self.laid.groups[at].context = Some(made.map_err(Refused::Context)?);
            self.write()?;
        }
        let (room, there) = nic.rules().map_err(Refused::Rules)?;
        let is_free = |location: &u32| there.iter().all(|rule| rule.location != *location);
        let mut free = (0..room).rev().filter(is_free);
        for address in group.addresses {
            let location = free.next().ok_or(Refused::Full)?;
            self.laid.groups[at].rules.insert(location, address);
            self.write()?;
            let mut rules = self.laid.groups[at].rules();
            let rule = rules.find(|rule| rule.location == location);
            rule.map_or(Ok(()), |rule| nic.add_rule(&rule))
                .map_err(Refused::Add)?;
        }
        Ok(())
    }

    /// Ends a group. After an error a part of it is there, and is still ours.
    fn end(&mut self, nic: &dyn Classifier, at: usize) -> Result<(), Refused> {
        let (_, there) = nic.rules().map_err(Refused::Rules)?;
        let laid = &mut self.laid.groups[at];
        laid.group.vnic.clear();
        for rule in laid.rules().collect::<Vec<_>>() {
            if there.contains(&rule) {
                match nic.remove_rule(rule.location) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(Refused::Remove(errno)),
                }
            }
            laid.rules.remove(&rule.location);
        }
        if let Some(context) = laid.context {
            match nic.table(context) {
                Ok(table) if table == spread(&laid.group.rings, table.len()) => {
                    nic.remove_context(context).map_err(Refused::Context)?;
                }
                // Somebody else's, or gone.
                Ok(_) | Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(Refused::Context(errno)),
            }
        }
        self.laid.groups.remove(at);
        self.write()
    }

    /// Which VNIC has what, for people; none where none asks.
    pub(super) fn describe(&self) -> Option<String> {
        let groups = self.laid.groups.iter();
        let has = groups
            .filter(|laid| !laid.group.vnic.is_empty())
            .map(|laid| {
                let rings = laid.group.rings.iter().map(u32::to_string);
                format!(
                    "{} {}",
                    laid.group.vnic,
                    rings.collect::<Vec<_>>().join(",")
                )
            });
        let lacks = self.refused.iter();
        let lacks = lacks.map(|(vnic, why)| format!("{vnic} default group ({why})"));
        let stays = self
            .stays
            .iter()
            .map(|why| format!("some are left ({why})"));
        let all: Vec<String> = has.chain(lacks).chain(stays).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

#[cfg(test)]
mod tests;
