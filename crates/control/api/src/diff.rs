//! From one document to another: the changes, in an order in which each can be made.
//!
//! # Model
//! [`diff`] is pure. The order is: entries, flows, vnd devices, VNICs, overlays and uplinks that go; zones and bridges that come or
//! change; uplinks, overlays and VNICs that change, then those that come; vnd devices, flows and entries that come; bridges and zones
//! that go. So whatever a change refers to is there when it is made, and an address, a socket or a
//! device is free before it is used again. A VNIC or an uplink whose attachment is another one, or whose
//! new address another VNIC has until later in the same run, goes and comes again; all else changes in
//! place, and its interface is never touched. A VNIC's vnd device that has another name is the same device: it changes in place, unless another one has that name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attach::Attachment;
use crate::flow::Flow;
use crate::name::{MacAddr, Name};
use crate::object::{Bridge, Document, StaticEntry, Uplink, Vnic, Zone};
use crate::overlay::Overlay;
use crate::vnd::Vnd;

/// One object of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "object", content = "config", rename_all = "lowercase")]
pub enum Object {
    /// A zone.
    Zone(Zone),
    /// A bridge.
    Bridge(Bridge),
    /// An uplink.
    Uplink(Uplink),
    /// An overlay.
    Overlay(Overlay),
    /// A VNIC.
    Vnic(Vnic),
    /// A flow.
    Flow(Flow),
    /// A vnd device.
    Vnd(Vnd),
    /// A static entry of a forwarding table.
    Fdb(StaticEntry),
}

impl Object {
    /// The word for its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Zone(_) => "zone",
            Self::Bridge(_) => "bridge",
            Self::Uplink(_) => "uplink",
            Self::Overlay(_) => "overlay",
            Self::Vnic(_) => "vnic",
            Self::Flow(_) => "flow",
            Self::Vnd(_) => "vnd",
            Self::Fdb(_) => "fdb",
        }
    }

    /// Its name; of an entry `BRIDGE.VLAN.MAC`, of a vnd device `ZONE/NAME`.
    pub fn name(&self) -> String {
        match self {
            Self::Zone(zone) => zone.name.to_string(),
            Self::Bridge(bridge) => bridge.name.to_string(),
            Self::Uplink(uplink) => uplink.name.to_string(),
            Self::Overlay(overlay) => overlay.name.to_string(),
            Self::Vnic(vnic) => vnic.name.to_string(),
            Self::Flow(flow) => flow.name.to_string(),
            Self::Vnd(vnd) => vnd.label(),
            Self::Fdb(entry) => format!("{}.{}.{}", entry.bridge, entry.vlan, entry.mac),
        }
    }
}

/// One step from a document to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Change {
    /// An object comes.
    Create {
        /// What comes.
        to: Object,
    },
    /// An object changes in place.
    Set {
        /// As it was.
        from: Object,
        /// As it will be.
        to: Object,
    },
    /// An object goes.
    Delete {
        /// What goes.
        from: Object,
    },
}

impl Change {
    /// The same with `?` in the place of secrets ([`Attachment::without_secret`](crate::Attachment::without_secret)).
    #[must_use]
    pub fn without_secrets(self) -> Self {
        let shown = |object| match object {
            Object::Vnic(mut vnic) => {
                vnic.attach = vnic.attach.without_secret();
                Object::Vnic(vnic)
            }
            object => object,
        };
        match self {
            Self::Create { to } => Self::Create { to: shown(to) },
            Self::Set { from, to } => Self::Set {
                from: shown(from),
                to: shown(to),
            },
            Self::Delete { from } => Self::Delete { from: shown(from) },
        }
    }

    /// The change that undoes this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        match self.clone() {
            Self::Create { to } => Self::Delete { from: to },
            Self::Set { from, to } => Self::Set { from: to, to: from },
            Self::Delete { from } => Self::Create { to: from },
        }
    }

    /// Makes the change on a document, whose lists may be out of order afterwards.
    pub fn apply(&self, document: &mut Document) {
        if let Self::Delete { from } | Self::Set { from, .. } = self {
            remove(document, from);
        }
        if let Self::Create { to } | Self::Set { to, .. } = self {
            insert(document, to.clone());
        }
    }

    /// The object after the change, or that goes with it.
    pub fn object(&self) -> &Object {
        match self {
            Self::Create { to } | Self::Set { to, .. } => to,
            Self::Delete { from } => from,
        }
    }
}

impl fmt::Display for Change {
    /// A line as `diff` has them, with values as the command line takes them: `+ vnic v0 attach=tap,netns=a bridge=br0`,
    /// `~ bridge br0 ageing: - -> 60`, `- zone a`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self {
            Self::Create { .. } => '+',
            Self::Set { .. } => '~',
            Self::Delete { .. } => '-',
        };
        let object = self.object();
        write!(f, "{sign} {} {}", object.kind(), object.name())?;
        match self {
            Self::Set { from, to } => {
                let (old, new) = (settings(from), settings(to));
                let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
                for key in keys.into_iter().filter(|&key| old.get(key) != new.get(key)) {
                    let text =
                        |map: &BTreeMap<_, String>| map.get(key).map_or("-".into(), String::clone);
                    write!(f, " {key}: {} -> {}", text(&old), text(&new))?;
                }
                Ok(())
            }
            Self::Create { to } => {
                let new = settings(to);
                for (key, value) in new.iter().filter(|(key, _)| *key != "name") {
                    write!(f, " {key}={value}")?;
                }
                Ok(())
            }
            Self::Delete { .. } => Ok(()),
        }
    }
}

/// What is configured of an object, its properties among the rest, as text for a person.
fn settings(object: &Object) -> BTreeMap<String, String> {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    let mut settings = BTreeMap::new();
    if let Some(Value::Object(config)) = value.get_mut("config").map(Value::take) {
        for (key, value) in config {
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    settings.extend(
                        properties
                            .into_iter()
                            .map(|(key, value)| (key, text(&value))),
                    );
                }
                (_, value) => {
                    settings.insert(key, text(&value));
                }
            }
        }
    }
    settings
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => if *flag { "on" } else { "off" }.into(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        // Attachments are the only objects within objects.
        Value::Object(_) => match serde_json::from_value::<Attachment>(value.clone()) {
            Ok(attachment) => attachment.without_secret().to_string(),
            Err(_) => value.to_string(),
        },
        Value::Null | Value::Number(_) => value.to_string(),
    }
}

struct Pairs<'a, T> {
    gone: Vec<&'a T>,
    changed: Vec<(&'a T, &'a T)>,
    come: Vec<&'a T>,
}

fn pairs<'a, T: PartialEq, K: Ord>(
    old: &'a [T],
    new: &'a [T],
    key: impl Fn(&'a T) -> K,
) -> Pairs<'a, T> {
    let mut was: BTreeMap<K, &T> = old.iter().map(|item| (key(item), item)).collect();
    let mut result = Pairs {
        gone: Vec::new(),
        changed: Vec::new(),
        come: Vec::new(),
    };
    let is: BTreeMap<K, &T> = new.iter().map(|item| (key(item), item)).collect();
    for (key, item) in is {
        match was.remove(&key) {
            None => result.come.push(item),
            Some(before) if before != item => result.changed.push((before, item)),
            Some(_) => {}
        }
    }
    result.gone = was.into_values().collect();
    result
}

/// Whether the peer stays the same: what an attachment may change without being made anew.
fn same_peer(old: &Attachment, new: &Attachment) -> bool {
    match (old, new) {
        (Attachment::Tap(a), Attachment::Tap(b)) => {
            (&a.name, &a.netns, a.queues) == (&b.name, &b.netns, b.queues)
        }
        (Attachment::Veth(a), Attachment::Veth(b)) => (&a.name, &a.netns) == (&b.name, &b.netns),
        _ => old == new,
    }
}

/// The changes that lead from `old` to `new`; empty if they are equal but for the order of their lists.
pub fn diff(old: &Document, new: &Document) -> Vec<Change> {
    let zones = pairs(&old.zones, &new.zones, |zone| &zone.name);
    let bridges = pairs(&old.bridges, &new.bridges, |bridge| &bridge.name);
    let mut uplinks = pairs(&old.uplinks, &new.uplinks, |uplink| &uplink.name);
    let mut overlays = pairs(&old.overlays, &new.overlays, |overlay| &overlay.name);
    let mut vnics = pairs(&old.vnics, &new.vnics, |vnic| &vnic.name);

    replace(&mut overlays, |old, new| {
        let what = |o: &Overlay| (o.bridge().clone(), o.encap, o.search);
        what(old) != what(new) || !old.settings().shares_endpoint(&new.settings())
    });

    replace(&mut uplinks, |old, new| {
        !same_peer(&old.attach, &new.attach) || old.device != new.device || old.share != new.share
    });
    // An address that another VNIC of the bridge has until its own turn comes, in place, is not free.
    let leaving: BTreeSet<&Name> = vnics.gone.iter().map(|vnic| &vnic.name).collect();
    let taken: BTreeMap<(&Name, MacAddr), BTreeSet<&Name>> = old
        .vnics
        .iter()
        .filter(|vnic| !leaving.contains(&vnic.name))
        .filter_map(|vnic| Some(((&vnic.bridge, vnic.mac?), &vnic.name)))
        .fold(BTreeMap::new(), |mut map, (place, name)| {
            map.entry(place).or_insert_with(BTreeSet::new).insert(name);
            map
        });
    let taken_by_other = |vnic: &Vnic| {
        let names = vnic.mac.and_then(|mac| taken.get(&(&vnic.bridge, mac)));
        names.is_some_and(|names| names.iter().any(|name| **name != vnic.name))
    };
    replace(&mut vnics, |old, new| {
        let moves =
            old.mac != new.mac || old.bridge != new.bridge || old.properties != new.properties;
        !same_peer(&old.attach, &new.attach)
            || old.zone != new.zone
            || (moves && taken_by_other(new))
    });
    let replaced: BTreeSet<&Name> = vnics.come.iter().map(|vnic| &vnic.name).collect();
    let flows = flow_pairs(old, new, &replaced);
    let vnds = vnd_pairs(old, new, &replaced);
    let entries = entry_pairs(old, new, &uplinks, &overlays, &vnics);
    let all = All {
        zones,
        bridges,
        uplinks,
        overlays,
        vnics,
        flows,
        vnds,
        entries,
    };
    all.in_order()
}

/// A flow with other attributes is another flow. It goes with its VNIC, and comes again with it.
fn flow_pairs<'a>(
    old: &'a Document,
    new: &'a Document,
    replaced: &BTreeSet<&Name>,
) -> Pairs<'a, Flow> {
    let mut flows = pairs(&old.flows, &new.flows, |flow| &flow.name);
    replace(&mut flows, |old, new| {
        old.vnic != new.vnic || old.attributes != new.attributes || replaced.contains(&old.vnic)
    });
    again(&mut flows, &old.flows, &new.flows, |flow| {
        replaced.contains(&flow.vnic)
    });
    flows
}

/// A device goes with its VNIC, and comes again with it; so does one that gets a name which another one has until its own turn comes.
fn vnd_pairs<'a>(
    old: &'a Document,
    new: &'a Document,
    replaced: &BTreeSet<&Name>,
) -> Pairs<'a, Vnd> {
    let mut vnds = pairs(&old.vnds, &new.vnds, |vnd| &vnd.vnic);
    let leaving: BTreeSet<&Name> = vnds.gone.iter().map(|vnd| &vnd.vnic).collect();
    let staying = old.vnds.iter().filter(|vnd| !leaving.contains(&vnd.vnic));
    let taken: BTreeMap<_, _> = staying
        .map(|vnd| ((&vnd.zone, &vnd.name), &vnd.vnic))
        .collect();
    replace(&mut vnds, |old, new| {
        let holder = taken.get(&(&new.zone, &new.name));
        old.zone != new.zone
            || replaced.contains(&old.vnic)
            || holder.is_some_and(|vnic| **vnic != new.vnic)
    });
    again(&mut vnds, &old.vnds, &new.vnds, |vnd| {
        replaced.contains(&vnd.vnic)
    });
    vnds
}

/// An entry goes with its member, and must come again with it.
fn entry_pairs<'a>(
    old: &'a Document,
    new: &'a Document,
    uplinks: &Pairs<'_, Uplink>,
    overlays: &Pairs<'_, Overlay>,
    vnics: &Pairs<'_, Vnic>,
) -> Pairs<'a, StaticEntry> {
    let mut entries = pairs(&old.fdb, &new.fdb, StaticEntry::key);
    let moved: BTreeSet<&Name> = (vnics.gone.iter().map(|vnic| &vnic.name))
        .chain(uplinks.gone.iter().map(|uplink| &uplink.name))
        .chain(overlays.gone.iter().map(|overlay| &overlay.name))
        .chain(
            vnics
                .changed
                .iter()
                .filter(|(o, n)| o.bridge != n.bridge)
                .map(|(o, _)| &o.name),
        )
        .chain(
            uplinks
                .changed
                .iter()
                .filter(|(o, n)| o.bridge != n.bridge)
                .map(|(o, _)| &o.name),
        )
        .collect();
    replace(&mut entries, |old, new| {
        (&old.member, old.kind, old.target) != (&new.member, new.kind, new.target)
    });
    again(&mut entries, &old.fdb, &new.fdb, |entry| {
        moved.contains(&entry.member)
    });
    entries
}

/// Those that stay the same and for which this holds go and come again.
fn again<'a, T: PartialEq>(
    pairs: &mut Pairs<'a, T>,
    old: &'a [T],
    new: &'a [T],
    holds: impl Fn(&T) -> bool,
) {
    for item in old.iter().filter(|item| holds(item)) {
        if let Some(same) = new.iter().find(|other| *other == item) {
            pairs.gone.push(item);
            pairs.come.push(same);
        }
    }
}

/// What differs, by kind of object.
struct All<'a> {
    zones: Pairs<'a, Zone>,
    bridges: Pairs<'a, Bridge>,
    uplinks: Pairs<'a, Uplink>,
    overlays: Pairs<'a, Overlay>,
    vnics: Pairs<'a, Vnic>,
    flows: Pairs<'a, Flow>,
    vnds: Pairs<'a, Vnd>,
    entries: Pairs<'a, StaticEntry>,
}

impl All<'_> {
    fn in_order(&self) -> Vec<Change> {
        let Self {
            zones,
            bridges,
            uplinks,
            overlays,
            vnics,
            flows,
            vnds,
            entries,
        } = self;
        let mut changes = Vec::new();
        gone(&mut changes, entries, Object::Fdb);
        gone(&mut changes, flows, Object::Flow);
        gone(&mut changes, vnds, Object::Vnd);
        gone(&mut changes, vnics, Object::Vnic);
        gone(&mut changes, uplinks, Object::Uplink);
        gone(&mut changes, overlays, Object::Overlay);
        come(&mut changes, bridges, Object::Bridge);
        set(&mut changes, bridges, Object::Bridge);
        come(&mut changes, zones, Object::Zone);
        set(&mut changes, zones, Object::Zone);
        set(&mut changes, uplinks, Object::Uplink);
        set(&mut changes, overlays, Object::Overlay);
        set(&mut changes, vnics, Object::Vnic);
        come(&mut changes, uplinks, Object::Uplink);
        come(&mut changes, overlays, Object::Overlay);
        come(&mut changes, vnics, Object::Vnic);
        set(&mut changes, vnds, Object::Vnd);
        come(&mut changes, vnds, Object::Vnd);
        set(&mut changes, flows, Object::Flow);
        come(&mut changes, flows, Object::Flow);
        come(&mut changes, entries, Object::Fdb);
        gone(&mut changes, zones, Object::Zone);
        gone(&mut changes, bridges, Object::Bridge);
        changes
    }
}

fn replace<T>(pairs: &mut Pairs<'_, T>, anew: impl Fn(&T, &T) -> bool) {
    let (replaced, changed) = pairs
        .changed
        .drain(..)
        .partition(|(old, new)| anew(old, new));
    pairs.changed = changed;
    let replaced: Vec<_> = replaced;
    for (old, new) in replaced {
        pairs.gone.push(old);
        pairs.come.push(new);
    }
}

fn gone<T: Clone>(changes: &mut Vec<Change>, pairs: &Pairs<'_, T>, object: fn(T) -> Object) {
    let deletes = pairs.gone.iter().map(|&item| Change::Delete {
        from: object(item.clone()),
    });
    changes.extend(deletes);
}

fn come<T: Clone>(changes: &mut Vec<Change>, pairs: &Pairs<'_, T>, object: fn(T) -> Object) {
    changes.extend(pairs.come.iter().map(|&item| Change::Create {
        to: object(item.clone()),
    }));
}

fn set<T: Clone>(changes: &mut Vec<Change>, pairs: &Pairs<'_, T>, object: fn(T) -> Object) {
    changes.extend(pairs.changed.iter().map(|&(old, new)| Change::Set {
        from: object(old.clone()),
        to: object(new.clone()),
    }));
}

/// Makes the changes on a document, in their order, and puts it in canonical form.
pub fn patch(document: &mut Document, changes: &[Change]) {
    for change in changes {
        change.apply(document);
    }
    document.canonicalize();
}

fn remove(document: &mut Document, object: &Object) {
    match object {
        Object::Zone(zone) => document.zones.retain(|other| other.name != zone.name),
        Object::Bridge(bridge) => document.bridges.retain(|other| other.name != bridge.name),
        Object::Uplink(uplink) => document.uplinks.retain(|other| other.name != uplink.name),
        Object::Overlay(overlay) => document.overlays.retain(|other| other.name != overlay.name),
        Object::Vnic(vnic) => document.vnics.retain(|other| other.name != vnic.name),
        Object::Flow(flow) => document.flows.retain(|other| other.name != flow.name),
        Object::Vnd(vnd) => document.vnds.retain(|other| other.vnic != vnd.vnic),
        Object::Fdb(entry) => document.fdb.retain(|other| other.key() != entry.key()),
    }
}

fn insert(document: &mut Document, object: Object) {
    match object {
        Object::Zone(zone) => document.zones.push(zone),
        Object::Bridge(bridge) => document.bridges.push(bridge),
        Object::Uplink(uplink) => document.uplinks.push(uplink),
        Object::Overlay(overlay) => document.overlays.push(overlay),
        Object::Vnic(vnic) => document.vnics.push(vnic),
        Object::Flow(flow) => document.flows.push(flow),
        Object::Vnd(vnd) => document.vnds.push(vnd),
        Object::Fdb(entry) => document.fdb.push(entry),
    }
}

#[cfg(test)]
mod tests;
