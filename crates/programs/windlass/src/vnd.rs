//! `windlass vnd`: devices that programs open.

use serde::Serialize;
use windlass_api::{
    ErrorCode, Properties, PropertyPatch, Scope, VndCreate, VndName, VndPatch, VndView, Zone,
    ZoneRef, properties,
};
use windlass_client::Error;

use crate::Session;
use crate::create::assigned;
use crate::failure::Failure;
use crate::fields;
use crate::options::{InZone, OneVnd, VndCreateArgs, VndDestroy, VndGet, VndList, VndSet, VndVerb};
use crate::statistics;
use crate::suggest::nearest;

/// A row of `vnd get`.
#[derive(Debug, Serialize)]
struct Row {
    name: VndName,
    property: &'static str,
    perm: &'static str,
    value: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    possible: Option<String>,
    unit: &'static str,
    description: &'static str,
}

/// A property that cannot be set.
struct Fixed {
    name: &'static str,
    value: fn(&VndView) -> u32,
    about: &'static str,
}

const FIXED: [Fixed; 3] = [
    Fixed {
        name: "maxsize",
        value: |view| view.maxsize,
        about: "Largest rxbuf and txbuf.",
    },
    Fixed {
        name: "mintu",
        value: |view| view.mintu,
        about: "Shortest frame.",
    },
    Fixed {
        name: "maxtu",
        value: |view| view.maxtu,
        about: "Longest frame: the VNIC's MTU, an Ethernet header and a tag.",
    },
];

/// `windlass vnd ...`
pub(crate) fn run(session: &mut Session<'_>, verb: VndVerb) -> Result<(), Failure> {
    match verb {
        VndVerb::Create(args) => create(session, &args),
        VndVerb::List(args) => list(session, &args),
        VndVerb::Get(args) => get(session, &args),
        VndVerb::Set(args) => set(session, &args),
        VndVerb::Destroy(args) => destroy(session, &args),
        VndVerb::Rename(args) => {
            let patch = VndPatch {
                name: Some(args.to.to_string()),
                ..VndPatch::default()
            };
            change(session, "rename", &args.vnd, &patch)
        }
        VndVerb::Stat(args) => {
            if let Some(zone) = &args.zone {
                exists(session, "show statistics", zone)?;
            }
            statistics::vnds(session, args.zone.as_ref(), &args.repeat())
        }
    }
}

/// The zone that is named, else that of who asks.
pub(crate) fn zone(
    session: &mut Session<'_>,
    what: &str,
    within: &InZone,
) -> Result<ZoneRef, Failure> {
    if let Some(zone) = &within.zone {
        return Ok(zone.clone());
    }
    let daemon = session.client(what)?.daemon();
    let you = daemon.map_err(|error| Failure::of(what, error))?.you;
    match you.zones.as_slice() {
        _ if you.operator => Ok(ZoneRef::default()),
        [only] => Ok(only.clone().into()),
        [] => Err(Failure::usage(
            format!("user {} owns no zone", you.uid),
            "name one with --zone",
        )),
        _ => Err(Failure::usage(
            format!("user {} owns several zones", you.uid),
            "name one with --zone",
        )),
    }
}

/// An error if there is no such zone.
pub(crate) fn exists(session: &mut Session<'_>, what: &str, zone: &ZoneRef) -> Result<(), Failure> {
    let zones = session.client(what)?.list::<Zone>();
    let zones = zones.map_err(|error| Failure::of(what, error))?;
    let mut names = zones.iter().map(|view| view.config.name.as_str());
    if *zone == ZoneRef::default() || names.clone().any(|name| name == zone.to_string()) {
        return Ok(());
    }
    let todo = match nearest(&zone.to_string(), names.by_ref()) {
        Some(near) => format!("did you mean \"{near}\"? \"windlass zone show\" lists zones"),
        None => "\"windlass zone show\" lists zones".into(),
    };
    let why = format!("there is no zone \"{zone}\"");
    Err(Failure::new(ErrorCode::NotFound, what, why, todo))
}

fn create(session: &mut Session<'_>, args: &VndCreateArgs) -> Result<(), Failure> {
    let what = format!("create vnd {}", args.name);
    let set = assigned(Scope::Vnd, &args.set, Properties::assign)?;
    let zone = zone(session, &what, &args.within)?;
    let vnic = args.vnic.as_ref().map(ToString::to_string);
    let vnd = VndCreate {
        name: Some(args.name.to_string()),
        zone: Some(zone.to_string()),
        vnic: vnic.unwrap_or_else(|| args.name.to_string()),
        properties: json_of(&set)?,
    };
    let applied = session.client(&what)?.create_vnd(&vnd);
    session.applied(&applied.map_err(|error| refused(what, error))?, false)
}

/// Why a device was not made or changed; a name that another device has is to be given up first.
fn refused(what: String, error: Error) -> Failure {
    let failure = Failure::of(what, error);
    match failure.code() {
        Some(ErrorCode::Exists) => {
            failure.advise("take another name, or remove that device with \"windlass vnd destroy\"")
        }
        _ => failure,
    }
}

/// Properties as a request has them.
fn json_of<T: Serialize>(
    set: &T,
) -> Result<std::collections::BTreeMap<String, serde_json::Value>, Failure> {
    let json = serde_json::to_value(set).and_then(serde_json::from_value);
    json.map_err(|error| {
        Failure::new(
            ErrorCode::Internal,
            "write the request",
            error.to_string(),
            "report it",
        )
    })
}

fn list(session: &mut Session<'_>, args: &VndList) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::VND)? else {
        return Ok(());
    };
    let what = "list vnds";
    let views = session.client(what)?.vnds();
    let mut views = views.map_err(|error| Failure::of(what, error))?;
    views.retain(|view| args.zone.as_ref().is_none_or(|zone| *zone == view.zone));
    if let (Some(zone), true) = (&args.zone, views.is_empty()) {
        exists(session, what, zone)?;
    }
    let named = |name: &VndName| views.iter().any(|view| view.name.as_ref() == Some(name));
    if let Some(missing) = args.names.iter().find(|name| !named(name)) {
        return Err(absent(what, missing, &views));
    }
    views.retain(|view| {
        let is_asked = |name| args.names.contains(name);
        args.names.is_empty() || view.name.as_ref().is_some_and(is_asked)
    });
    session.rows(&views, &chosen)
}

fn absent(what: &str, name: &VndName, views: &[VndView]) -> Failure {
    let known = views.iter().filter_map(|view| view.name.as_ref());
    let todo = match nearest(name.as_str(), known.map(VndName::as_str)) {
        Some(near) => format!("did you mean \"{near}\"? \"windlass vnd list\" lists them"),
        None => "\"windlass vnd list\" lists them".into(),
    };
    let why = format!("there is no vnd device \"{name}\"");
    Failure::new(ErrorCode::NotFound, what, why, todo)
}

fn get(session: &mut Session<'_>, args: &VndGet) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::PROPERTY)? else {
        return Ok(());
    };
    if let Some(word) = args.properties.iter().find(|word| !is_property(word)) {
        return Err(no_property(word));
    }
    let OneVnd { name, within } = &args.vnd;
    let what = format!("get vnd {name}");
    let zone = zone(session, &what, within)?;
    let view = session.client(&what)?.vnd(&zone, name);
    let view = view.map_err(|error| Failure::of(what, error))?;
    let mut rows = rows(name, &view);
    if !args.properties.is_empty() {
        rows.retain(|row| args.properties.iter().any(|word| word == row.property));
        rows.sort_by_key(|row| args.properties.iter().position(|word| word == row.property));
    }
    session.rows(&rows, &chosen)
}

fn rows(name: &VndName, view: &VndView) -> Vec<Row> {
    let settable = properties(Scope::Vnd).map(|spec| Row {
        name: name.clone(),
        property: spec.option.name,
        perm: "rw",
        value: if spec.option.name == "rxbuf" {
            view.rxbuf
        } else {
            view.txbuf
        },
        default: Some(spec.option.default),
        possible: Some(format!("{}-{}", view.maxtu, view.maxsize)),
        unit: spec.option.unit,
        description: spec.option.sentence,
    });
    let fixed = FIXED.map(|fixed| Row {
        name: name.clone(),
        property: fixed.name,
        perm: "r-",
        value: (fixed.value)(view),
        default: None,
        possible: None,
        unit: "bytes",
        description: fixed.about,
    });
    settable.chain(fixed).collect()
}

/// What `get` knows of.
pub(crate) fn property_names() -> impl Iterator<Item = &'static str> {
    let settable = properties(Scope::Vnd).map(|spec| spec.option.name);
    settable.chain(FIXED.map(|fixed| fixed.name))
}

fn is_property(word: &str) -> bool {
    property_names().any(|name| name == word)
}

fn no_property(word: &str) -> Failure {
    let known: Vec<_> = property_names().collect();
    let todo = format!("it has {}", known.join(", "));
    Failure::usage(format!("a vnd device has no property \"{word}\""), todo)
}

fn set(session: &mut Session<'_>, args: &VndSet) -> Result<(), Failure> {
    // What is only typed wrong changes nothing.
    let mut patches = Vec::new();
    for setting in &args.settings {
        let name = setting
            .split_once('=')
            .map_or(setting.as_str(), |(name, _)| name);
        if FIXED.iter().any(|fixed| fixed.name == name) {
            let todo = "rxbuf and txbuf can be set";
            return Err(Failure::usage(format!("{name} cannot be set"), todo));
        }
        let one = std::slice::from_ref(setting);
        let patch: PropertyPatch = assigned(Scope::Vnd, one, PropertyPatch::assign)?;
        patches.push(json_of(&patch)?);
    }
    for (done, properties) in patches.into_iter().enumerate() {
        let patch = VndPatch {
            properties,
            ..VndPatch::default()
        };
        let before = args.settings.iter().take(done).cloned();
        let before = before.collect::<Vec<_>>().join(" ");
        change(session, "set", &args.vnd, &patch).map_err(|failure| match done {
            0 => failure,
            _ => failure.advise(format!("{before} was set before and stays")),
        })?;
    }
    Ok(())
}

fn change(
    session: &mut Session<'_>,
    verb: &str,
    vnd: &OneVnd,
    patch: &VndPatch,
) -> Result<(), Failure> {
    let OneVnd { name, within } = vnd;
    let what = format!("{verb} vnd {name}");
    let zone = zone(session, &what, within)?;
    let applied = session.client(&what)?.change_vnd(&zone, name, patch);
    session.applied(&applied.map_err(|error| refused(what, error))?, false)
}

fn destroy(session: &mut Session<'_>, args: &VndDestroy) -> Result<(), Failure> {
    let OneVnd { name, within } = &args.vnd;
    let what = format!("destroy vnd {name}");
    let zone = zone(session, &what, within)?;
    match session.client(&what)?.destroy_vnd(&zone, name) {
        Ok(applied) => session.applied(&applied, false),
        Err(error) => {
            let failure = Failure::of(what, error);
            match failure.code() {
                Some(ErrorCode::NotFound) if args.if_exists => Ok(()),
                _ => Err(failure),
            }
        }
    }
}
