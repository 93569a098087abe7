//! Overlays, and the targets behind which addresses are: `windlass overlay ...`.

use serde::Serialize;
use windlass_api::{
    Document, Encap, ErrorCode, FdbAdd, FdbQuery, HostView, MacAddr, Name, Overlay, OverlayPatch,
    OverlayView, Properties, PropertyPatch, Scope, State, StaticKind, TargetQuery, TargetView,
    property,
};
use windlass_client::Error;

use crate::Session;
use crate::create::{assigned, counts, say_if_it_waits};
use crate::failure::Failure;
use crate::fields;
use crate::objects::{self, Fact, Object, properties_differ};
use crate::options::{
    HostVerb, OverlayCreate, OverlayShow, OverlayVerb, TargetDelete, TargetSet, TargetShow,
    TargetVerb, TargetsOf,
};
use crate::table::{Chosen, Column, Form};
use crate::{property as properties, statistics};

impl Object for Overlay {
    const SCOPE: Scope = Scope::Overlay;
    const COLUMNS: &'static [Column] = fields::OVERLAY;
    const FACTS: &'static [Fact] = fields::OVERLAY_FACTS;
    fn list(document: &mut Document) -> &mut Vec<Self> {
        &mut document.overlays
    }
    fn patch(&mut self, patch: OverlayPatch) {
        patch.apply(self);
    }
    fn differences(&self, wanted: &Self) -> Vec<String> {
        let differs = [
            ("bridge", self.bridge() != wanted.bridge()),
            ("encap", self.encap != wanted.encap),
            ("search", self.search != wanted.search),
        ];
        let differs = differs.iter().filter(|(_, differs)| *differs);
        let mut differences: Vec<_> = differs.map(|(name, _)| (*name).to_owned()).collect();
        differences.extend(properties_differ(
            Scope::Overlay,
            &self.properties,
            &wanted.properties,
        ));
        differences
    }
    fn release(document: &mut Document, name: &Name) {
        let with_bridge = document
            .overlay(name.as_str())
            .is_some_and(|overlay| overlay.bridge.is_none());
        if with_bridge {
            document.release_bridge(name.as_str());
        }
        document.release_member(name.as_str());
    }
    fn of(view: Self::View) -> Self {
        view.config
    }
}

/// `windlass overlay ...`
pub(crate) fn run(session: &mut Session<'_>, verb: OverlayVerb) -> Result<(), Failure> {
    match verb {
        OverlayVerb::Create(args) => {
            objects::create(session, &new(&args)?, &args.how)?;
            if args.how.dry_run || session.form == Form::Json {
                return Ok(());
            }
            let status = |view: OverlayView| view.status;
            say_if_it_waits::<Overlay>(session, &args.name, "overlay", status)
        }
        OverlayVerb::Delete(args) => objects::delete::<Overlay>(session, &args),
        OverlayVerb::Show(args) => show(session, &args),
        OverlayVerb::Set(args) => {
            let settings = split(&args.settings);
            let properties = assigned(Scope::Overlay, &settings, PropertyPatch::assign)?;
            let patch = OverlayPatch { properties };
            objects::set::<Overlay>(session, &args.name.name, patch, args.dry_run)
        }
        OverlayVerb::Properties(verb) => properties::run::<Overlay>(session, &verb),
        OverlayVerb::Target(verb) => target(session, verb),
        OverlayVerb::Host(HostVerb::Show(args)) => hosts(session, &args.names),
        OverlayVerb::Host(HostVerb::Forget(args)) => {
            let (name, host) = (&args.name.name, &args.host);
            let what = format!("forget host {host} of overlay {name}");
            let done = session.client(&what)?.forget_host(name, host);
            let applied = done.map_err(|error| Failure::of(what, error))?;
            session.applied(&applied, false)
        }
        OverlayVerb::Resync(args) => {
            let name = &args.name.name;
            let what = format!("resync overlay {name}");
            let done = session.client(&what)?.resync(name);
            let applied = done.map_err(|error| Failure::of(what, error))?;
            session.applied(&applied, false)
        }
    }
}

fn new(args: &OverlayCreate) -> Result<Overlay, Failure> {
    let mut settings = split(&args.set);
    let numbers = [("vnetid", args.vni), ("mtu", args.mtu)];
    let texts = [
        ("vnis", &args.vnis),
        ("underlay-netns", &args.underlay_netns),
    ];
    let numbers = numbers
        .into_iter()
        .filter_map(|(key, n)| Some(format!("{key}={}", n?)));
    let texts = texts
        .into_iter()
        .filter_map(|(key, text)| Some(format!("{key}={}", text.as_ref()?)));
    settings.extend(numbers.chain(texts));
    Ok(Overlay {
        name: args.name.clone(),
        bridge: args.bridge.clone(),
        encap: Encap::Vxlan,
        search: args.search,
        properties: assigned(Scope::Overlay, &settings, Properties::assign)?,
    })
}

/// The settings of `KEY=VALUE,KEY=VALUE`: a comma ends a value where a property of overlays and `=` follow.
fn split(all: &[String]) -> Vec<String> {
    let begins = |piece: &str| {
        let key = piece.split_once('=').map(|(key, _)| key);
        key.is_some_and(|key| property(Scope::Overlay, key).is_some())
    };
    let mut settings: Vec<String> = Vec::new();
    for given in all {
        let first = settings.len();
        for piece in given.split(',') {
            match settings.get_mut(first..).and_then(<[String]>::last_mut) {
                Some(last) if !begins(piece) => {
                    last.push(',');
                    last.push_str(piece);
                }
                _ => settings.push(piece.to_owned()),
            }
        }
    }
    settings
}

#[derive(Serialize)]
struct Fault<'a> {
    name: &'a Name,
    state: &'static str,
    details: Option<&'a str>,
}

fn show(session: &mut Session<'_>, args: &OverlayShow) -> Result<(), Failure> {
    let names = &args.names.names;
    if args.targets {
        let of = TargetsOf {
            mac: None,
            vlan: None,
        };
        return targets(session, names, &of);
    }
    if args.faults {
        let Some(chosen) = session.choose(fields::FAULTS)? else {
            return Ok(());
        };
        let views = objects::views::<Overlay>(session, names)?;
        let faults = views.iter().map(|view| Fault {
            name: &view.config.name,
            state: match view.status.state {
                State::Up => "online",
                State::Waiting | State::Down => "degraded",
            },
            details: view.status.reason.as_deref(),
        });
        return session.rows(&faults.collect::<Vec<_>>(), &chosen);
    }
    if counts(&args.counted)? {
        return statistics::of::<Overlay>(session, names, |_| true, &args.counted);
    }
    objects::show::<Overlay>(session, names, |_| true)
}

#[derive(Serialize)]
struct Row<'a> {
    overlay: &'a Name,
    #[serde(flatten)]
    target: TargetView,
}

fn targets(session: &mut Session<'_>, names: &[Name], of: &TargetsOf) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::TARGET)? else {
        return Ok(());
    };
    let views = objects::views::<Overlay>(session, names)?;
    let query = query(of);
    let mut rows = Vec::new();
    for view in &views {
        let overlay = &view.config.name;
        let what = format!("show targets of overlay {overlay}");
        let found = session.client(&what)?.targets(overlay, &query);
        let found = found.map_err(|error| Failure::of(what, error))?;
        rows.extend(found.into_iter().map(|target| Row { overlay, target }));
    }
    session.rows(&rows, &chosen)
}

#[derive(Serialize)]
struct HostRow<'a> {
    overlay: &'a Name,
    #[serde(flatten)]
    host: HostView,
}

fn hosts(session: &mut Session<'_>, names: &[Name]) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::HOST)? else {
        return Ok(());
    };
    let views = objects::views::<Overlay>(session, names)?;
    let mut rows = Vec::new();
    for view in &views {
        let overlay = &view.config.name;
        let what = format!("show hosts of overlay {overlay}");
        let found = session.client(&what)?.hosts(overlay);
        let found = found.map_err(|error| Failure::of(what, error))?;
        rows.extend(found.into_iter().map(|host| HostRow { overlay, host }));
    }
    session.rows(&rows, &chosen)
}

fn query(of: &TargetsOf) -> TargetQuery {
    TargetQuery {
        mac: of.mac,
        vlan: of.vlan,
    }
}

fn target(session: &mut Session<'_>, verb: TargetVerb) -> Result<(), Failure> {
    match verb {
        TargetVerb::Show(TargetShow { names, of }) => targets(session, &names.names, &of),
        TargetVerb::Set(args) => set(session, &args),
        TargetVerb::Delete(args) => delete(session, &args),
        TargetVerb::Flush(args) => {
            let name = args.name.name;
            let what = format!("flush targets of overlay {name}");
            let flushed = session
                .client(&what)?
                .flush_targets(&name, &query(&args.of));
            let flushed = flushed.map_err(|error| Failure::of(what, error))?;
            match session.form {
                Form::Json => session.rows(&[flushed], &Chosen::new()),
                _ => Ok(()),
            }
        }
    }
}

/// The bridge of an overlay.
pub(crate) fn bridge_of(session: &mut Session<'_>, name: &Name) -> Result<Name, Failure> {
    let view = objects::view::<Overlay>(session, "use", name)?;
    Ok(view.config.bridge().clone())
}

/// Makes an entry, in the place of the one that is there.
fn set(session: &mut Session<'_>, args: &TargetSet) -> Result<(), Failure> {
    let name = &args.name.name;
    let bridge = bridge_of(session, name)?;
    let what = format!("set target of {} in overlay {name}", args.mac);
    let entry = FdbAdd {
        vlan: args.vlan,
        mac: args.mac,
        member: name.clone(),
        kind: StaticKind::Static,
        target: Some(args.target),
    };
    let client = session.client(&what)?;
    let added = match client.fdb_add(&bridge, &entry) {
        Err(Error::Refused(body)) if body.code == ErrorCode::Exists => {
            let removed = client.fdb_delete(&bridge, &entry_of(args.mac, args.vlan));
            removed.and_then(|_| client.fdb_add(&bridge, &entry))
        }
        other => other,
    };
    match added {
        Ok(applied) => session.applied(&applied, false),
        Err(error) => Err(Failure::of(what, error)),
    }
}

fn entry_of(mac: MacAddr, vlan: Option<u16>) -> FdbQuery {
    FdbQuery {
        vlan,
        mac: Some(mac),
        ..FdbQuery::default()
    }
}

fn delete(session: &mut Session<'_>, args: &TargetDelete) -> Result<(), Failure> {
    let name = &args.name.name;
    let bridge = bridge_of(session, name)?;
    let what = format!("delete target of {} in overlay {name}", args.mac);
    let client = session.client(&what)?;
    match client.fdb_delete(&bridge, &entry_of(args.mac, args.vlan)) {
        Ok(applied) => session.applied(&applied, false),
        Err(Error::Refused(body)) if body.code == ErrorCode::NotFound && args.if_exists => Ok(()),
        Err(error) => Err(Failure::of(what, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comma within a value is a part of it.
    #[test]
    fn settings_are_split_at_properties() {
        let given = [
            "vxlan/listen-ip=192.0.2.1,learn/remotes=192.0.2.2,192.0.2.3,vnis=10=1,20=2".to_owned(),
            "proxy=arp,ndp".to_owned(),
        ];
        let split = split(&given);
        assert_eq!(
            split,
            [
                "vxlan/listen-ip=192.0.2.1",
                "learn/remotes=192.0.2.2,192.0.2.3",
                "vnis=10=1,20=2",
                "proxy=arp,ndp"
            ]
        );
    }
}
