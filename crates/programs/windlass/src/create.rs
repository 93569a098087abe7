//! From the words of the command line to zones, bridges, uplinks, VNICs and flows.

use std::io::Write;

use windlass_api::{
    AUTO, Attachment, Bridge, BridgePatch, Document, Flow, FlowPatch, FlowView, MigrationCheck,
    Name, Overlay, Properties, PropertyPatch, Scope, State, Status, Uplink, UplinkPatch,
    UplinkView, Vnic, VnicPatch, VnicView, Zone, ZonePatch, ZoneRef,
};
use windlass_client::Resource;

use crate::failure::Failure;
use crate::fields;
use crate::objects::{self, Fact, Object, properties_differ};
use crate::options::{
    BridgeVerb, Counted, FlowVerb, MemberSet, UplinkCreate, UplinkName, UplinkVerb, VnicCreate,
    VnicSet, VnicVerb, ZoneCreate, ZoneSet, ZoneVerb,
};
use crate::suggest::nearest;
use crate::table::{Chosen, Column, Form, clean};
use crate::{Session, accounts, fdb, guest, mdb, overlay, ports, property, statistics};

impl Object for Zone {
    const SCOPE: Scope = Scope::Zone;
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
        let mut differences = named(&differs);
        differences.extend(properties_differ(
            Scope::Zone,
            &self.properties,
            &wanted.properties,
        ));
        differences
    }
    fn release(_: &mut Document, _: &Name) {}
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Bridge {
    const SCOPE: Scope = Scope::Bridge;
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
        document.release_bridge(name.as_str());
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Uplink {
    const SCOPE: Scope = Scope::Uplink;
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
        document.release_member(name.as_str());
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Vnic {
    const SCOPE: Scope = Scope::Vnic;
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
        document.release_member(name.as_str());
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

impl Object for Flow {
    const SCOPE: Scope = Scope::Flow;
    const COLUMNS: &'static [Column] = fields::FLOW;
    const FACTS: &'static [Fact] = fields::FLOW_FACTS;
    fn list(document: &mut Document) -> &mut Vec<Self> {
        &mut document.flows
    }
    fn patch(&mut self, patch: FlowPatch) {
        patch.apply(self);
    }
    fn differences(&self, wanted: &Self) -> Vec<String> {
        let mut differences = named(&[
            ("vnic", self.vnic != wanted.vnic),
            ("attributes", self.attributes != wanted.attributes),
        ]);
        differences.extend(properties_differ(
            Scope::Flow,
            &self.properties,
            &wanted.properties,
        ));
        differences
    }
    fn release(_: &mut Document, _: &Name) {}
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
        ZoneVerb::Create(args) => objects::create(session, &new_zone(&args)?, &args.how),
        ZoneVerb::Delete(args) => objects::delete::<Zone>(session, &args),
        ZoneVerb::Show(args) => objects::show::<Zone>(session, &args.names, |_| true),
        ZoneVerb::Set(args) => {
            objects::set::<Zone>(session, &args.name.name, zone_patch(&args)?, args.dry_run)
        }
        ZoneVerb::Properties(verb) => property::run::<Zone>(session, &verb),
    }
}

fn new_zone(args: &ZoneCreate) -> Result<Zone, Failure> {
    let (owner_uid, group) = accounts::user(&args.owner)?;
    let fields = &args.fields;
    let owner_gid = match (&fields.group, group) {
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
        netns: fields.netns.clone(),
        bridges: fields.bridges.clone(),
        properties: assigned(Scope::Zone, &args.set, Properties::assign)?,
    })
}

fn zone_patch(args: &ZoneSet) -> Result<ZonePatch, Failure> {
    let fields = &args.fields;
    let owner = args.owner.as_deref().map(accounts::user).transpose()?;
    asked(ZonePatch {
        owner_uid: owner.map(|(uid, _)| uid),
        owner_gid: fields.group.as_deref().map(accounts::group).transpose()?,
        netns: fields.netns.clone(),
        bridges: Some(fields.bridges.clone()).filter(|bridges| !bridges.is_empty()),
        properties: assigned(Scope::Zone, &args.settings, PropertyPatch::assign)?,
    })
}

/// A patch, unless it changes nothing.
fn asked<P: PartialEq + Default>(patch: P) -> Result<P, Failure> {
    if patch == P::default() {
        return Err(Failure::usage(
            "there is nothing to set",
            "add KEY=VALUE or an option",
        ));
    }
    Ok(patch)
}

/// `windlass bridge ...`
pub(crate) fn bridge(session: &mut Session<'_>, verb: BridgeVerb) -> Result<(), Failure> {
    match verb {
        BridgeVerb::Create(args) => {
            let properties = assigned(Scope::Bridge, &args.set, Properties::assign)?;
            let bridge = Bridge {
                name: args.name,
                properties,
            };
            objects::create(session, &bridge, &args.how)
        }
        BridgeVerb::Delete(args) => objects::delete::<Bridge>(session, &args),
        BridgeVerb::Show(args) if args.ports => ports::show(session, &args.names.names),
        BridgeVerb::Show(args) if counts(&args.counted)? => {
            statistics::bridges(session, &args.names.names, &args.counted)
        }
        BridgeVerb::Show(args) => objects::show::<Bridge>(session, &args.names.names, |_| true),
        BridgeVerb::Set(args) => {
            let properties = assigned(Scope::Bridge, &args.settings, PropertyPatch::assign)?;
            let patch = BridgePatch { properties };
            objects::set::<Bridge>(session, &args.name.name, patch, args.dry_run)
        }
        BridgeVerb::Properties(verb) => property::run::<Bridge>(session, &verb),
        BridgeVerb::Mcheck(args) => {
            let (bridge, member) = (args.name.name, args.member);
            let what = format!("mcheck of bridge {bridge}");
            let check = MigrationCheck { member };
            let checked = session.client(&what)?.check_migration(&bridge, &check);
            let checked = checked.map_err(|error| Failure::of(what, error))?;
            match session.form {
                Form::Json => session.rows(&[checked], &Chosen::new()),
                _ => Ok(()),
            }
        }
        BridgeVerb::Fdb(verb) => fdb::run(session, verb),
        BridgeVerb::Mdb(verb) => mdb::run(session, verb),
    }
}

/// `windlass flow ...`
pub(crate) fn flow(session: &mut Session<'_>, verb: FlowVerb) -> Result<(), Failure> {
    match verb {
        FlowVerb::Add(args) => {
            let flow = Flow {
                name: args.name,
                vnic: args.vnic,
                attributes: args.attr,
                properties: assigned(Scope::Flow, &args.prop, Properties::assign)?,
            };
            objects::create(session, &flow, &args.how)
        }
        FlowVerb::Remove(args) => objects::delete::<Flow>(session, &args),
        FlowVerb::Show(args) => {
            must_be::<Vnic>(session, args.vnic.as_ref())?;
            let keep = |view: &FlowView| is_or_any(&args.vnic, &view.config.vnic);
            match args.repeat.interval {
                None => objects::show::<Flow>(session, &args.names.names, keep),
                Some(_) => statistics::flows(session, &args.names.names, keep, &args.repeat),
            }
        }
        FlowVerb::Set(args) => {
            let properties = assigned(Scope::Flow, &args.settings, PropertyPatch::assign)?;
            let patch = FlowPatch { properties };
            objects::set::<Flow>(session, &args.name.name, patch, args.dry_run)
        }
        FlowVerb::Reset(args) => {
            let all = windlass_api::properties(Scope::Flow).map(|row| row.option.name.to_owned());
            let names: Vec<String> = match args.properties.is_empty() {
                true => all.collect(),
                false => args.properties,
            };
            let settings: Vec<String> = names.iter().map(|name| format!("{name}={AUTO}")).collect();
            let properties = assigned(Scope::Flow, &settings, PropertyPatch::assign)?;
            let patch = FlowPatch { properties };
            objects::set::<Flow>(session, &args.name.name, patch, args.dry_run)
        }
        FlowVerb::Properties(verb) => property::run::<Flow>(session, &verb),
    }
}

/// `windlass uplink ...`
pub(crate) fn uplink(session: &mut Session<'_>, verb: UplinkVerb) -> Result<(), Failure> {
    match verb {
        UplinkVerb::Create(args) => {
            objects::create(session, &new_uplink(&args)?, &args.how)?;
            if args.how.dry_run || session.form == Form::Json {
                return Ok(());
            }
            let status = |view: UplinkView| view.status;
            say_if_it_waits::<Uplink>(session, &args.name, "uplink", status)
        }
        UplinkVerb::Delete(args) => objects::delete::<Uplink>(session, &args),
        UplinkVerb::Show(args) => {
            must_be::<Bridge>(session, args.bridge.as_ref())?;
            let names = &args.names.names;
            members::<Uplink>(session, names, &args.counted, |view| {
                is_or_any(&args.bridge, &view.config.bridge)
            })
        }
        UplinkVerb::Set(args) => {
            objects::set::<Uplink>(session, &args.name.name, uplink_patch(&args)?, args.dry_run)
        }
        UplinkVerb::Properties(verb) => property::run::<Uplink>(session, &verb),
    }
}

/// An error if a name is given and no object has it: an empty table would say that the object has nothing.
fn must_be<O: Object>(session: &mut Session<'_>, name: Option<&Name>) -> Result<(), Failure> {
    match name {
        Some(name) => objects::view::<O>(session, "show", name).map(drop),
        None => Ok(()),
    }
}

/// Whether nothing is asked for, or this.
fn is_or_any<T: PartialEq>(asked: &Option<T>, is: &T) -> bool {
    asked.as_ref().is_none_or(|asked| asked == is)
}

/// Shows members of bridges, or their traffic.
fn members<O: Object>(
    session: &mut Session<'_>,
    names: &[Name],
    counted: &Counted,
    keep: impl Fn(&O::View) -> bool,
) -> Result<(), Failure> {
    if counts(counted)? {
        statistics::of::<O>(session, names, keep, counted)
    } else {
        objects::show::<O>(session, names, keep)
    }
}

fn new_uplink(args: &UplinkCreate) -> Result<Uplink, Failure> {
    let settings = args.settings.settings();
    Ok(Uplink {
        name: args.name.clone(),
        device: args.device.clone(),
        bridge: args.bridge.clone(),
        attach: args.attach.clone(),
        share: args.share,
        properties: assigned(Scope::Uplink, &settings, Properties::assign)?,
    })
}

fn uplink_patch(args: &MemberSet<UplinkName>) -> Result<UplinkPatch, Failure> {
    let mut bridge = args.bridge.clone();
    let settings = sift(args, |key, text| {
        match key {
            "bridge" => bridge = Some(parsed(key, text)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    asked(UplinkPatch {
        bridge,
        properties: assigned(Scope::Uplink, &settings, PropertyPatch::assign)?,
    })
}

/// `windlass vnic ...`
pub(crate) fn vnic(session: &mut Session<'_>, verb: VnicVerb) -> Result<(), Failure> {
    match verb {
        VnicVerb::Create(args) => {
            let vnic = new_vnic(session, &args)?;
            objects::create(session, &vnic, &args.how)?;
            if args.how.dry_run || session.form == Form::Json {
                return Ok(());
            }
            let status = |view: VnicView| view.status;
            say_if_it_waits::<Vnic>(session, &args.name, "VNIC", status)
        }
        VnicVerb::Delete(args) => objects::delete::<Vnic>(session, &args),
        VnicVerb::Show(args) => {
            must_be::<Bridge>(session, args.members.bridge.as_ref())?;
            must_be::<Zone>(session, args.zone.as_ref().and_then(ZoneRef::name))?;
            let (names, counted) = (&args.members.names.names, &args.members.counted);
            members::<Vnic>(session, names, counted, |view| {
                is_or_any(&args.members.bridge, &view.config.bridge)
                    && is_or_any(&args.zone, &view.config.zone)
            })
        }
        VnicVerb::Set(args) => {
            let name = &args.member.name.name;
            objects::set::<Vnic>(session, name, vnic_patch(&args)?, args.member.dry_run)
        }
        VnicVerb::Properties(verb) => property::run::<Vnic>(session, &verb),
        VnicVerb::Rules(args) => rules(session, &args.name),
        VnicVerb::QemuArgs(args) => guest::qemu(session, &args),
        VnicVerb::LibvirtXml(args) => guest::libvirt(session, &args.name),
    }
}

/// `windlass vnic rules`
fn rules(session: &mut Session<'_>, vnic: &Name) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::RULES)? else {
        return Ok(());
    };
    let what = format!("show rules of VNIC {vnic}");
    let rules = session.client(&what)?.rules(vnic);
    let rules = rules.map_err(|error| Failure::of(what, error))?;
    session.rows(&rules, &chosen)
}

/// Says on stderr what a member that was just made waits for. One that is gone already, or cannot be asked for, is no failure of
/// its making.
pub(crate) fn say_if_it_waits<O: Object>(
    session: &mut Session<'_>,
    name: &Name,
    kind: &str,
    status: fn(O::View) -> Status,
) -> Result<(), Failure> {
    let Ok(view) = session.client("show what was made")?.get::<O>(name) else {
        return Ok(());
    };
    let status = status(view);
    if let (State::Waiting, Some(reason)) = (status.state, status.reason) {
        let reason = clean(&reason);
        writeln!(
            std::io::stderr().lock(),
            "windlass: {kind} \"{name}\" waits: {reason}"
        )?;
    }
    Ok(())
}

fn new_vnic(session: &mut Session<'_>, args: &VnicCreate) -> Result<Vnic, Failure> {
    let settings = args.settings.settings();
    let bridge = match (&args.bridge, &args.over) {
        (Some(bridge), _) => bridge.clone(),
        (None, Some(overlay)) => overlay::bridge_of(session, overlay)?,
        (None, None) => return Err(Failure::usage("the VNIC needs a bridge", "add --bridge")),
    };
    Ok(Vnic {
        name: args.name.clone(),
        zone: args.zone.clone(),
        bridge,
        mac: args.mac,
        attach: args.attach.clone(),
        properties: assigned(Scope::Vnic, &settings, Properties::assign)?,
    })
}

fn vnic_patch(args: &VnicSet) -> Result<VnicPatch, Failure> {
    let mut new = VnicPatch {
        bridge: args.member.bridge.clone(),
        mac: args.mac,
        attach: args.attach.clone(),
        properties: PropertyPatch::default(),
    };
    let settings = sift(&args.member, |key, text| {
        match key {
            "bridge" => new.bridge = Some(parsed(key, text)?),
            "mac" => new.mac = Some(parsed(key, text)?),
            "attach" => {
                let told = |why| Failure::usage(format!("{key}: {why}"), "correct it");
                new.attach = Some(accounts::attachment(text).map_err(told)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    new.properties = assigned(Scope::Vnic, &settings, PropertyPatch::assign)?;
    asked(new)
}

/// The settings of a member that `take` does not take for a field, those of the options behind the others.
fn sift<N: clap::Args>(
    args: &MemberSet<N>,
    mut take: impl FnMut(&str, &str) -> Result<bool, Failure>,
) -> Result<Vec<String>, Failure> {
    let mut rest = Vec::new();
    for setting in &args.settings {
        let taken = match setting.split_once('=') {
            Some((key, text)) => take(key, text)?,
            None => false,
        };
        if !taken {
            rest.push(setting.clone());
        }
    }
    rest.extend(args.more.settings());
    Ok(rest)
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
pub(crate) fn counts(counted: &Counted) -> Result<bool, Failure> {
    let counts = counted.statistics > 0 || counted.drops;
    if counted.repeat.interval.is_some() && !counts {
        return Err(Failure::usage(
            "-i needs -s",
            "add -s, or use \"windlass stat\"",
        ));
    }
    Ok(counts)
}

/// Properties, or a change of properties, made of `KEY=VALUE`.
pub(crate) fn assigned<T: Default, E: std::fmt::Display>(
    scope: Scope,
    settings: &[String],
    assign: fn(&mut T, Scope, &str) -> Result<(), E>,
) -> Result<T, Failure> {
    let mut all = T::default();
    for setting in settings {
        assign(&mut all, scope, setting)
            .map_err(|error| unfit(scope, setting, &error.to_string()))?;
    }
    Ok(all)
}

fn unfit(scope: Scope, setting: &str, why: &str) -> Failure {
    let name = setting.split_once('=').map_or(setting, |(name, _)| name);
    let known = windlass_api::properties(scope).map(|row| row.option.name);
    let kind = match scope {
        Scope::Bridge => Bridge::KIND,
        Scope::Uplink => Uplink::KIND,
        Scope::Overlay => Overlay::KIND,
        Scope::Vnic => Vnic::KIND,
        Scope::Flow => Flow::KIND,
        Scope::Zone => Zone::KIND,
        Scope::Vnd => "vnd",
    };
    let todo = match nearest(name, known) {
        Some(near) if near != name => format!("did you mean \"{near}\"?"),
        _ if scope == Scope::Vnd => "rxbuf and txbuf can be set".into(),
        _ => format!("\"windlass {kind} show-props\" lists what can be set"),
    };
    Failure::usage(why, todo)
}
