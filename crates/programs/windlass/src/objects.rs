//! The verbs that the four kinds of object share.

use std::io::Write;

use serde_json::Value;
use windlass_api::{Document, ErrorCode, Name, Properties, Scope};
use windlass_client::{Client, Error, Resource};

use crate::Session;
use crate::failure::Failure;
use crate::options::{CreateHow, DeleteArgs, NamesOne};
use crate::suggest::nearest;
use crate::table::{self, Column, Form, Titles};

/// A kind of object, as far as its verbs need to know it.
pub(crate) trait Object: Resource + Clone {
    /// Whose properties it has.
    const SCOPE: Scope;
    /// What `show` shows.
    const COLUMNS: &'static [Column];
    /// What `get` shows before the properties: the fields that `set` takes, and live ones.
    const FACTS: &'static [Fact];
    /// Where a document keeps them.
    fn list(document: &mut Document) -> &mut Vec<Self>;
    /// Changes the object.
    fn patch(&mut self, patch: Self::Patch);
    /// Where this one, which exists, is not as `wanted`.
    fn differences(&self, wanted: &Self) -> Vec<String>;
    /// Takes out of the document what the daemon takes with an object of this name.
    fn release(document: &mut Document, name: &Name);
    /// The configuration in a view.
    fn of(view: Self::View) -> Self;
}

/// A field of an object that `get` shows beside its properties.
#[derive(Debug)]
pub(crate) struct Fact {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether `set` takes it.
    pub(crate) writable: bool,
    /// What it is.
    pub(crate) about: &'static str,
    /// Finds it in a view.
    pub(crate) cell: fn(&Value) -> crate::table::Cell,
}

/// The effective properties that `wanted` sets and `have` has otherwise.
pub(crate) fn properties_differ(
    scope: Scope,
    have: &Properties,
    wanted: &Properties,
) -> Vec<String> {
    wanted
        .iter()
        .filter(|(name, value)| have.effective(scope, name).as_ref() != Some(value))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Makes an object.
pub(crate) fn create<O: Object>(
    session: &mut Session<'_>,
    object: &O,
    how: &CreateHow,
) -> Result<(), Failure> {
    let what = format!("create {} {}", O::KIND, object.name());
    let result = if how.dry_run {
        dry_run(session, &what, |document| {
            let list = O::list(document);
            match list.iter().find(|other| other.name() == object.name()) {
                Some(_) => return Err(exists::<O>(object.name())),
                None => list.push(object.clone()),
            }
            Ok(())
        })
    } else {
        match session.client(&what)?.create(object) {
            Ok(applied) => session.applied(&applied, false),
            Err(error) => Err(Failure::of(&*what, error)),
        }
    };
    match result {
        Err(failure) if failure.code() == Some(ErrorCode::Exists) && !how.may_exist => {
            let kind = O::KIND;
            let todo = format!("use --may-exist, or \"windlass {kind} set\" to change it");
            Err(failure.advise(todo))
        }
        Err(failure) if failure.code() == Some(ErrorCode::Exists) => {
            let view = session.client(&what)?.get::<O>(object.name());
            let have = O::of(view.map_err(|error| Failure::of(&*what, error))?);
            let differences = have.differences(object);
            if differences.is_empty() {
                return Ok(());
            }
            let why = format!(
                "{} \"{}\" exists with another {}",
                O::KIND,
                object.name(),
                differences.join(", ")
            );
            let todo = format!("use \"windlass {} set\" to change it", O::KIND);
            Err(Failure::new(ErrorCode::Exists, what, why, todo))
        }
        other => other,
    }
}

fn exists<O: Object>(name: &Name) -> Failure {
    let kind = O::KIND;
    let why = format!("{kind} \"{name}\" exists already");
    Failure::new(ErrorCode::Exists, format!("create {kind} {name}"), why, "")
}

/// Removes an object.
pub(crate) fn delete<O: Object>(
    session: &mut Session<'_>,
    args: &DeleteArgs<impl NamesOne>,
) -> Result<(), Failure> {
    let name = args.name.name();
    let what = format!("delete {} {name}", O::KIND);
    let result = if args.dry_run {
        dry_run(session, &what, |document| {
            let list = O::list(document);
            let before = list.len();
            list.retain(|object| object.name() != name);
            if list.len() == before {
                return Err(absent::<O>(&what, name));
            }
            O::release(document, name);
            Ok(())
        })
    } else {
        match session.client(&what)?.delete::<O>(name) {
            Ok(applied) => session.applied(&applied, false),
            Err(error) => Err(Failure::of(&*what, error)),
        }
    };
    match result {
        Err(failure) if failure.code() == Some(ErrorCode::NotFound) => {
            if args.if_exists {
                Ok(())
            } else {
                Err(suggest::<O>(session, name, failure))
            }
        }
        other => other,
    }
}

/// Changes an object.
pub(crate) fn set<O: Object>(
    session: &mut Session<'_>,
    name: &Name,
    patch: O::Patch,
    dry: bool,
) -> Result<(), Failure> {
    let what = format!("set {} {name}", O::KIND);
    let result = if dry {
        dry_run(session, &what, |document| {
            let object = O::list(document)
                .iter_mut()
                .find(|object| object.name() == name);
            object.ok_or_else(|| absent::<O>(&what, name))?.patch(patch);
            Ok(())
        })
    } else {
        match session.client(&what)?.change::<O>(name, &patch) {
            Ok(applied) => session.applied(&applied, false),
            Err(error) => Err(Failure::of(&*what, error)),
        }
    };
    result.map_err(|failure| suggest::<O>(session, name, failure))
}

/// Shows objects: those of these names, else all for which `keep` holds.
pub(crate) fn show<O: Object>(
    session: &mut Session<'_>,
    names: &[Name],
    keep: impl Fn(&O::View) -> bool,
) -> Result<(), Failure> {
    let Some(chosen) = session.choose(O::COLUMNS)? else {
        return Ok(());
    };
    let mut views = views::<O>(session, names)?;
    views.retain(keep);
    session.rows(&views, &chosen)?;
    let shows_details = matches!(
        session.form,
        Form::Table {
            titles: Titles::Shown,
            ..
        }
    );
    if shows_details && !names.is_empty() && session.options.fields.is_none() {
        details(&table::rows(&views)?, session.out)?;
    }
    Ok(())
}

/// What objects that were asked for by name have to tell besides: of an attachment, of the limits of a zone's owner, of a spanning tree, of multicast.
fn details(rows: &[Value], out: &mut dyn Write) -> Result<(), Failure> {
    for row in rows {
        let details = row.get("details").and_then(Value::as_object);
        let details = details.into_iter().flatten();
        let details = details.map(|(key, value)| (key.clone(), text(value)));
        let limits = row.get("limits").and_then(Value::as_array);
        let limits = limits.into_iter().flatten().map(|limit| {
            let of = |key| limit.get(key).map_or_else(String::new, text);
            let value = format!("{} of {} {}", of("used"), of("max"), of("unit"));
            (of("limit"), value)
        });
        let lines = details.chain(limits).chain(tree(row));
        let lines = lines.chain(multicast(row)).chain(neighbours(row));
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            continue;
        }
        let name = row.get("name").and_then(Value::as_str).unwrap_or_default();
        writeln!(out, "\n{}", table::clean(name))?;
        let width = lines.iter().map(|(key, _)| key.chars().count()).max();
        for (key, value) in lines {
            let (key, value) = (table::clean(&key), table::clean(&value));
            writeln!(out, "  {key:0$}  {value}", width.unwrap_or(0))?;
        }
    }
    Ok(())
}

/// The spanning tree of a bridge, and a line for each member that takes part.
fn tree(row: &Value) -> Vec<(String, String)> {
    let Some(tree) = row.get("tree") else {
        return Vec::new();
    };
    let of = |value: &Value, key| value.get(key).map_or_else(String::new, text);
    let way = match tree.get("root_port") {
        Some(port) => format!(
            "root {} at cost {} by {}",
            of(tree, "root"),
            of(tree, "cost"),
            text(port)
        ),
        None => "the root".to_owned(),
    };
    let changes = of(tree, "topology_changes");
    let head = format!("{}, {way}; {changes} topology changes", of(tree, "id"));
    let ports = tree.get("ports").and_then(Value::as_array);
    let ports = ports.into_iter().flatten().map(|port| {
        let [part, cost, sent] = ["part", "cost", "sent"].map(|key| of(port, key));
        let designated = of(port, "designated");
        let is_shared = port.get("point_to_point") == Some(&Value::Bool(false));
        let shared = if is_shared { ", a hub" } else { "" };
        let [received, malformed] = ["received", "malformed"].map(|key| of(port, key));
        let bpdus = format!("BPDUs: {sent} sent, {received} received, {malformed} malformed");
        (
            of(port, "member"),
            format!("{part}{shared}; cost {cost}; designated {designated}; {bpdus}"),
        )
    });
    let head = ("spanning tree".to_owned(), head);
    std::iter::once(head).chain(ports).collect()
}

/// What snooping of a bridge found: queriers, a line for each member, a line for each group.
fn multicast(row: &Value) -> Vec<(String, String)> {
    let Some(multicast) = row.get("multicast") else {
        return Vec::new();
    };
    let list = |key| multicast.get(key).and_then(Value::as_array);
    let queriers = list("queriers").into_iter().flatten();
    let queriers = queriers.map(|querier| ("multicast".to_owned(), text(querier)));
    let ports = list("ports").into_iter().flatten().map(|port| {
        let of = |key| port.get(key).map_or_else(String::new, text);
        let is_router = port.get("router") == Some(&Value::Bool(true));
        let counts = ["reports", "queries", "refused", "malformed"].map(|key| {
            let count = of(key);
            format!("{count} {key}")
        });
        let router = if is_router { ", router" } else { "" };
        let groups = format!("{} groups, {} over limit", of("groups"), of("over_limit"));
        let what = format!("multicast: {groups}{router}; {}", counts.join(", "));
        (of("member"), what)
    });
    let groups = list("groups").into_iter().flatten().map(|group| {
        let of = |key| group.get(key).map_or_else(String::new, text);
        let members = group.get("members").and_then(Value::as_object);
        let members = members.into_iter().flatten();
        let members: Vec<_> = members
            .map(|(name, left)| match left {
                Value::Null => format!("{name} (permanent)"),
                left => format!("{name} ({} s)", text(left)),
            })
            .collect();
        let what = format!("VLAN {}: {}", of("vlan"), members.join(", "));
        (of("group"), what)
    });
    queriers.chain(ports).chain(groups).collect()
}

/// What a bridge knows of neighbours.
fn neighbours(row: &Value) -> Option<(String, String)> {
    let known = row.get("neighbours")?;
    let of = |key| known.get(key).map_or_else(String::new, text);
    let counts = [
        ("known", "known"),
        ("answered", "answered"),
        ("passed", "passed on"),
        ("over_limit", "over limit"),
        ("lost", "lost"),
    ];
    let counts = counts.map(|(key, word)| format!("{} {word}", of(key)));
    Some(("neighbours".to_owned(), counts.join(", ")))
}

/// A string or a number as text.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => "?".to_owned(),
    }
}

/// The views of these objects, else of all.
pub(crate) fn views<O: Object>(
    session: &mut Session<'_>,
    names: &[Name],
) -> Result<Vec<O::View>, Failure> {
    if names.is_empty() {
        let what = format!("show {}s", O::KIND);
        return session
            .client(&what)?
            .list::<O>()
            .map_err(|error| Failure::of(&*what, error));
    }
    names
        .iter()
        .map(|name| view::<O>(session, "show", name))
        .collect()
}

/// The view of one object, while a verb is done.
pub(crate) fn view<O: Object>(
    session: &mut Session<'_>,
    verb: &str,
    name: &Name,
) -> Result<O::View, Failure> {
    let what = format!("{verb} {} {name}", O::KIND);
    let view = session.client(&what)?.get::<O>(name);
    view.map_err(|error| suggest::<O>(session, name, Failure::of(&*what, error)))
}

fn absent<O: Object>(what: &str, name: &Name) -> Failure {
    let why = format!("there is no {} \"{name}\"", O::KIND);
    Failure::new(ErrorCode::NotFound, what, why, list_hint::<O>())
}

fn list_hint<O: Object>() -> String {
    format!("\"windlass {} show\" lists them", O::KIND)
}

/// If the object was not found, the same failure with the name that was probably meant.
pub(crate) fn suggest<O: Object>(
    session: &mut Session<'_>,
    name: &Name,
    failure: Failure,
) -> Failure {
    if failure.code() != Some(ErrorCode::NotFound) {
        return failure;
    }
    let names = session
        .client
        .as_ref()
        .and_then(|client| names::<O>(client).ok());
    let names = names.unwrap_or_default();
    match nearest(name.as_str(), names.iter().map(String::as_str)) {
        Some(near) if near != name.as_str() => {
            failure.advise(format!("did you mean \"{near}\"? {}", list_hint::<O>()))
        }
        _ => failure.advise(list_hint::<O>()),
    }
}

/// Names of all objects of a kind.
pub(crate) fn names<O: Object>(client: &Client) -> Result<Vec<String>, Error> {
    let views = client.list::<O>()?;
    Ok(views
        .into_iter()
        .map(|view| O::of(view).name().to_string())
        .collect())
}

/// Says what a change of the document would do, and changes nothing.
pub(crate) fn dry_run(
    session: &mut Session<'_>,
    what: &str,
    change: impl FnOnce(&mut Document) -> Result<(), Failure>,
) -> Result<(), Failure> {
    edit(session, what, true, change)
}

/// Changes the document, or with `dry` only says what that would do.
pub(crate) fn edit(
    session: &mut Session<'_>,
    what: &str,
    dry: bool,
    change: impl FnOnce(&mut Document) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let client = session.client(what)?;
    let (mut document, revision) = client
        .document()
        .map_err(|error| Failure::of(what, error))?;
    change(&mut document)?;
    let applied = session.client(what)?.apply(&document, dry, revision);
    session.applied(&applied.map_err(|error| Failure::of(what, error))?, dry)
}
