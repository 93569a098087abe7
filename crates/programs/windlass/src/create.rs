//! From the words of the command line to zones, bridges, uplinks and VNICs.

use windlass_api::{
    Attachment, Bridge, BridgePatch, Document, Name, Properties, PropertyPatch, Scope, Uplink,
    UplinkPatch, UplinkView, Vnic, VnicPatch, VnicView, Zone, ZonePatch,
};
use windlass_client::Resource;

use crate::failure::Failure;
use crate::fields;
use crate::objects::{self, Fact, Object, properties_differ};
use crate::options::{
    BridgeVerb, Counted, UplinkCreate, UplinkSet, UplinkVerb, VnicCreate, VnicSet, VnicVerb,
    ZoneCreate, ZoneSet, ZoneVerb,
};
use crate::suggest::nearest;
use crate::table::Column;
use crate::{Session, accounts, fdb, property, statistics};

impl Object for Zone {
    const SCOPE: Option<Scope> = None;
    const COLUMNS: &'static [Column] = fields::ZONE;
    const FACTS: &'static [Fact] = fields::ZONE_FACTS;
    fn list(document: &mut Document) -> &mut Vec<Self> {
        &mut document.zones
    }
    fn patch(&mut self, patch: ZonePatch) {
        patch.apply(self);
    }
    fn differences(&self, wanted: &Self) -> Vec<String> {
        let differs = [
            ("owner", self.owner_uid != wanted.owner_uid),
            ("group", self.owner_gid != wanted.owner_gid),
            (
                "netns",
                wanted.netns.is_some() && self.netns != wanted.netns,
            ),
            (
                "bridge",
                !wanted
                    .bridges
                    .iter()
                    .all(|bridge| self.bridges.contains(bridge)),
            ),
        ];
        named(&differs)
    }
    fn release(_: &mut Document, _: &Name) {}
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Bridge {
    const SCOPE: Option<Scope> = Some(Scope::Bridge);
    const COLUMNS: &'static [Column] = fields::BRIDGE;
    const FACTS: &'static [Fact] = fields::BRIDGE_FACTS;
    fn list(document: &mut Document) -> &mut Vec<Self> {
        &mut document.bridges
    }
    fn patch(&mut self, patch: BridgePatch) {
        patch.apply(self);
    }
    fn differences(&self, wanted: &Self) -> Vec<String> {
        properties_differ(Scope::Bridge, &self.properties, &wanted.properties)
    }
    fn release(document: &mut Document, name: &Name) {
        for zone in &mut document.zones {
            zone.bridges.retain(|bridge| bridge != name);
        }
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Uplink {
    const SCOPE: Option<Scope> = Some(Scope::Uplink);
    const COLUMNS: &'static [Column] = fields::UPLINK;
    const FACTS: &'static [Fact] = fields::UPLINK_FACTS;
    fn list(document: &mut Document) -> &mut Vec<Self> {
        &mut document.uplinks
    }
    fn patch(&mut self, patch: UplinkPatch) {
        patch.apply(self);
    }
    fn differences(&self, wanted: &Self) -> Vec<String> {
        let mut differences = named(&[
            ("device", self.device != wanted.device),
            ("bridge", self.bridge != wanted.bridge),
            ("attach", self.attach != wanted.attach),
        ]);
        differences.extend(properties_differ(
            Scope::Uplink,
            &self.properties,
            &wanted.properties,
        ));
        differences
    }
    fn release(document: &mut Document, name: &Name) {
        document.fdb.retain(|entry| entry.member != *name);
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Vnic {
    const SCOPE: Option<Scope> = Some(Scope::Vnic);
    const COLUMNS: &'static [Column] = fields::VNIC;
    const FACTS: &'static [Fact] = fields::VNIC_FACTS;
    fn list(document: &mut Document) -> &mut Vec<Self> {
        &mut document.vnics
    }
    fn patch(&mut self, patch: VnicPatch) {
        patch.apply(self);
    }
    fn differences(&self, wanted: &Self) -> Vec<String> {
        let mut differences = named(&[
            ("bridge", self.bridge != wanted.bridge),
            ("zone", self.zone != wanted.zone),
            ("mac", wanted.mac.is_some() && self.mac != wanted.mac),
            (
                "attach",
                wanted.attach != Attachment::default() && self.attach != wanted.attach,
            ),
        ]);
        differences.extend(properties_differ(
            Scope::Vnic,
            &self.properties,
            &wanted.properties,
        ));
        differences
    }
    fn release(document: &mut Document, name: &Name) {
        document.fdb.retain(|entry| entry.member != *name);
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

fn named(differs: &[(&str, bool)]) -> Vec<String> {
    differs
        .iter()
        .filter(|(_, differs)| *differs)
        .map(|(name, _)| (*name).to_owned())
        .collect()
}

/// `windlass zone ...`
pub(crate) fn zone(session: &mut Session<'_>, verb: ZoneVerb) -> Result<(), Failure> {
    match verb {
        ZoneVerb::Create(args) => {
            let how = &args.how;
            objects::create(session, &new_zone(&args)?, how)
        }
        ZoneVerb::Delete(args) => {
            objects::delete::<Zone>(session, &args.name.name, args.if_exists, args.dry_run)
        }
        ZoneVerb::Show(args) => objects::show::<Zone>(session, &args.names, |_| true),
        ZoneVerb::Set(args) => {
            objects::set::<Zone>(session, &args.name.name, zone_patch(&args)?, args.dry_run)
        }
        ZoneVerb::Get(args) => property::get::<Zone>(session, &args.name.name, &args.properties),
        ZoneVerb::ShowProps => property::show::<Zone>(session),
    }
}

fn new_zone(args: &ZoneCreate) -> Result<Zone, Failure> {
    let (owner_uid, group) = accounts::user(&args.owner)?;
    let owner_gid = match (&args.group, group) {
        (Some(group), _) => accounts::group(group)?,
        (None, Some(group)) => group,
        (None, None) => {
            let why = format!("the group of user {owner_uid} is not known");
            return Err(Failure::usage(why, "name one with --group"));
        }
    };
    Ok(Zone {
        name: args.name.clone(),
        owner_uid,
        owner_gid,
        netns: args.netns.clone(),
        bridges: args.bridges.clone(),
    })
}

fn zone_patch(args: &ZoneSet) -> Result<ZonePatch, Failure> {
    let owner_uid = args
        .owner
        .as_deref()
        .map(accounts::user)
        .transpose()?
        .map(|(uid, _)| uid);
    let owner_gid = args.group.as_deref().map(accounts::group).transpose()?;
    let bridges = Some(args.bridges.clone()).filter(|bridges| !bridges.is_empty());
    let patch = ZonePatch {
        owner_uid,
        owner_gid,
        netns: args.netns.clone(),
        bridges,
    };
    if patch == ZonePatch::default() {
        Err(nothing())
    } else {
        Ok(patch)
    }
}

fn nothing() -> Failure {
    Failure::usage("there is nothing to set", "add KEY=VALUE or an option")
}

/// `windlass bridge ...`
pub(crate) fn bridge(session: &mut Session<'_>, verb: BridgeVerb) -> Result<(), Failure> {
    match verb {
        BridgeVerb::Create(args) => {
            let properties = properties(Scope::Bridge, &args.set)?;
            let bridge = Bridge {
                name: args.name,
                properties,
            };
            objects::create(session, &bridge, &args.how)
        }
        BridgeVerb::Delete(args) => {
            objects::delete::<Bridge>(session, &args.name.name, args.if_exists, args.dry_run)
        }
        BridgeVerb::Show(args) if counts(&args.counted)? => {
            statistics::bridges(session, &args.names.names, &args.counted)
        }
        BridgeVerb::Show(args) => objects::show::<Bridge>(session, &args.names.names, |_| true),
        BridgeVerb::Set(args) => {
            let properties = patch(Scope::Bridge, &args.settings)?;
            let patch = BridgePatch { properties };
            objects::set::<Bridge>(session, &args.name.name, patch, args.dry_run)
        }
        BridgeVerb::Get(args) => {
            property::get::<Bridge>(session, &args.name.name, &args.properties)
        }
        BridgeVerb::ShowProps => property::show::<Bridge>(session),
        BridgeVerb::Fdb(verb) => fdb::run(session, verb),
    }
}

/// `windlass uplink ...`
pub(crate) fn uplink(session: &mut Session<'_>, verb: UplinkVerb) -> Result<(), Failure> {
    match verb {
        UplinkVerb::Create(args) => {
            let how = &args.how;
            objects::create(session, &new_uplink(&args)?, how)
        }
        UplinkVerb::Delete(args) => {
            objects::delete::<Uplink>(session, &args.name.name, args.if_exists, args.dry_run)
        }
        UplinkVerb::Show(args) => {
            let keep = |view: &UplinkView| {
                args.bridge
                    .as_ref()
                    .is_none_or(|bridge| view.config.bridge == *bridge)
            };
            if counts(&args.counted)? {
                statistics::of::<Uplink>(session, &args.names.names, keep, &args.counted)
            } else {
                objects::show::<Uplink>(session, &args.names.names, keep)
            }
        }
        UplinkVerb::Set(args) => {
            objects::set::<Uplink>(session, &args.name.name, uplink_patch(&args)?, args.dry_run)
        }
        UplinkVerb::Get(args) => {
            property::get::<Uplink>(session, &args.name.name, &args.properties)
        }
        UplinkVerb::ShowProps => property::show::<Uplink>(session),
    }
}

fn new_uplink(args: &UplinkCreate) -> Result<Uplink, Failure> {
    Ok(Uplink {
        name: args.name.clone(),
        device: args.device.clone(),
        bridge: args.bridge.clone(),
        attach: args.attach.clone(),
        share: args.share,
        properties: properties(Scope::Uplink, &args.settings.settings())?,
    })
}

fn uplink_patch(args: &UplinkSet) -> Result<UplinkPatch, Failure> {
    let mut bridge = args.bridge.clone();
    let mut settings = Vec::new();
    for setting in &args.settings {
        match setting.split_once('=') {
            Some(("bridge", text)) => bridge = Some(parsed("bridge", text)?),
            _ => settings.push(setting.clone()),
        }
    }
    settings.extend(args.more.settings());
    let patch = UplinkPatch {
        bridge,
        properties: patch(Scope::Uplink, &settings)?,
    };
    if patch == UplinkPatch::default() {
        Err(nothing())
    } else {
        Ok(patch)
    }
}

/// `windlass vnic ...`
pub(crate) fn vnic(session: &mut Session<'_>, verb: VnicVerb) -> Result<(), Failure> {
    match verb {
        VnicVerb::Create(args) => {
            let how = &args.how;
            objects::create(session, &new_vnic(&args)?, how)
        }
        VnicVerb::Delete(args) => {
            objects::delete::<Vnic>(session, &args.name.name, args.if_exists, args.dry_run)
        }
        VnicVerb::Show(args) => {
            let keep = |view: &VnicView| {
                args.bridge
                    .as_ref()
                    .is_none_or(|bridge| view.config.bridge == *bridge)
                    && args
                        .zone
                        .as_ref()
                        .is_none_or(|zone| view.config.zone == *zone)
            };
            if counts(&args.counted)? {
                statistics::of::<Vnic>(session, &args.names.names, keep, &args.counted)
            } else {
                objects::show::<Vnic>(session, &args.names.names, keep)
            }
        }
        VnicVerb::Set(args) => {
            objects::set::<Vnic>(session, &args.name.name, vnic_patch(&args)?, args.dry_run)
        }
        VnicVerb::Get(args) => property::get::<Vnic>(session, &args.name.name, &args.properties),
        VnicVerb::ShowProps => property::show::<Vnic>(session),
    }
}

fn new_vnic(args: &VnicCreate) -> Result<Vnic, Failure> {
    Ok(Vnic {
        name: args.name.clone(),
        zone: args.zone.clone(),
        bridge: args.bridge.clone(),
        mac: args.mac,
        attach: args.attach.clone(),
        properties: properties(Scope::Vnic, &args.settings.settings())?,
    })
}

fn vnic_patch(args: &VnicSet) -> Result<VnicPatch, Failure> {
    let mut new = VnicPatch {
        bridge: args.bridge.clone(),
        mac: args.mac,
        attach: args.attach.clone(),
        properties: PropertyPatch::default(),
    };
    let mut settings = Vec::new();
    for setting in &args.settings {
        match setting.split_once('=') {
            Some(("bridge", text)) => new.bridge = Some(parsed("bridge", text)?),
            Some(("mac", text)) => new.mac = Some(parsed("mac", text)?),
            Some(("attach", text)) => new.attach = Some(parsed("attach", text)?),
            _ => settings.push(setting.clone()),
        }
    }
    settings.extend(args.more.settings());
    new.properties = patch(Scope::Vnic, &settings)?;
    if new == VnicPatch::default() {
        Err(nothing())
    } else {
        Ok(new)
    }
}

fn parsed<T>(key: &str, text: &str) -> Result<T, Failure>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse()
        .map_err(|error: T::Err| Failure::usage(format!("{key}: {error}"), "correct it"))
}

/// Whether statistics are asked for.
fn counts(counted: &Counted) -> Result<bool, Failure> {
    let counts = counted.statistics > 0 || counted.drops;
    if counted.repeat.interval.is_some() && !counts {
        return Err(Failure::usage(
            "-i needs -s",
            "add -s, or use \"windlass stat\"",
        ));
    }
    Ok(counts)
}

fn properties(scope: Scope, settings: &[String]) -> Result<Properties, Failure> {
    let mut properties = Properties::default();
    for setting in settings {
        let assigned = properties.assign(scope, setting);
        assigned.map_err(|error| unfit(scope, setting, &error.to_string()))?;
    }
    Ok(properties)
}

fn patch(scope: Scope, settings: &[String]) -> Result<PropertyPatch, Failure> {
    let mut patch = PropertyPatch::default();
    for setting in settings {
        let assigned = patch.assign(scope, setting);
        assigned.map_err(|error| unfit(scope, setting, &error.to_string()))?;
    }
    Ok(patch)
}

fn unfit(scope: Scope, setting: &str, why: &str) -> Failure {
    let name = setting.split_once('=').map_or(setting, |(name, _)| name);
    let known = windlass_api::properties(scope).map(|row| row.option.name);
    let kind = match scope {
        Scope::Bridge => Bridge::KIND,
        Scope::Uplink => Uplink::KIND,
        Scope::Vnic => Vnic::KIND,
    };
    let todo = match nearest(name, known) {
        Some(near) if near != name => format!("did you mean \"{near}\"?"),
        _ => format!("\"windlass {kind} show-props\" lists what can be set"),
    };
    Failure::usage(why, todo)
}
