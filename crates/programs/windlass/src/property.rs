//! `get` and `show-props`: properties as dladm shows them.

use serde::Serialize;
use serde_json::Value;
use windlass_api::{AUTO, Name, Properties, PropertySpec, properties};

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::objects::{self, Fact, Object};
use crate::options::{NamesOne, PropertyVerb};
use crate::suggest::nearest;
use crate::table::{self, Cell};

/// A row of `get`. Every value is a string, so that no field changes its type from row to row.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    property: &'static str,
    perm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    possible: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    description: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<bool>,
}

/// `windlass OBJECT get ...` and `windlass OBJECT show-props`
pub(crate) fn run<O: Object>(
    session: &mut Session<'_>,
    verb: &PropertyVerb<impl NamesOne>,
) -> Result<(), Failure> {
    match verb {
        PropertyVerb::Get(args) => get::<O>(session, args.name.name(), &args.properties),
        PropertyVerb::ShowProps => show::<O>(session),
    }
}

/// `windlass OBJECT get NAME [PROPERTY...]`
fn get<O: Object>(
    session: &mut Session<'_>,
    name: &Name,
    wanted: &[String],
) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::PROPERTY)? else {
        return Ok(());
    };
    for word in wanted {
        check::<O>(word)?;
    }
    let view = objects::view::<O>(session, "get", name)?;
    let json = table::rows(std::slice::from_ref(&view))?
        .pop()
        .unwrap_or_default();
    let facts = O::FACTS.iter().map(|fact| of_fact(fact, Some(name), &json));
    let set: Properties = json
        .get("properties")
        .and_then(|properties| serde_json::from_value(properties.clone()).ok())
        .unwrap_or_default();
    let rows = specs::<O>().map(|spec| of_property(spec, Some((name, &set))));
    let mut rows: Vec<Row> = facts.chain(rows).collect();
    if !wanted.is_empty() {
        rows.retain(|row| wanted.iter().any(|word| word == row.property));
        rows.sort_by_key(|row| wanted.iter().position(|word| word == row.property));
    }
    session.rows(&rows, &chosen)
}

/// `windlass OBJECT show-props`
fn show<O: Object>(session: &mut Session<'_>) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::PROPERTIES)? else {
        return Ok(());
    };
    let facts = O::FACTS
        .iter()
        .map(|fact| of_fact(fact, None, &Value::Null));
    let rows = specs::<O>().map(|spec| of_property(spec, None));
    session.rows(&facts.chain(rows).collect::<Vec<_>>(), &chosen)
}

fn specs<O: Object>() -> impl Iterator<Item = &'static PropertySpec> {
    properties(O::SCOPE)
}

fn of_fact(fact: &Fact, name: Option<&Name>, view: &Value) -> Row {
    let value = match (fact.cell)(view) {
        Cell::Missing => None,
        Cell::Unknown => Some("?".into()),
        Cell::Text(text) => Some(text),
        Cell::Count(count) | Cell::Size(count) => Some(count.to_string()),
        Cell::Rate(number) | Cell::Ratio(number) => Some(number.to_string()),
    };
    Row {
        name: name.map(Name::to_string),
        property: fact.name,
        perm: if fact.writable { "rw" } else { "r-" },
        value: value.filter(|_| name.is_some()),
        default: None,
        possible: None,
        unit: None,
        description: fact.about,
        set: None,
    }
}

fn of_property(spec: &'static PropertySpec, of: Option<(&Name, &Properties)>) -> Row {
    let option = &spec.option;
    let default = Some(option.default).filter(|default| !default.is_empty());
    let value = of.map(|(_, set)| match set.get(option.name) {
        Some(value) => value.to_string(),
        None => option
            .default_value()
            .map_or(AUTO.into(), |value| value.to_string()),
    });
    Row {
        name: of.map(|(name, _)| name.to_string()),
        property: option.name,
        perm: "rw",
        value,
        default,
        possible: Some(option.possible()),
        unit: Some(option.unit).filter(|unit| !unit.is_empty()),
        description: option.sentence,
        set: of.map(|(_, set)| set.get(option.name).is_some()),
    }
}

/// What `get` shows of an object.
pub(crate) fn names<O: Object>() -> Vec<&'static str> {
    let facts = O::FACTS.iter().map(|fact| fact.name);
    facts
        .chain(specs::<O>().map(|spec| spec.option.name))
        .collect()
}

fn check<O: Object>(word: &str) -> Result<(), Failure> {
    let known = names::<O>();
    if known.contains(&word) {
        return Ok(());
    }
    let list = format!("\"windlass {} show-props\" lists them", O::KIND);
    let todo = match nearest(word, known) {
        Some(near) => format!("did you mean \"{near}\"? {list}"),
        None => list,
    };
    Err(Failure::usage(
        format!("a {} has no property \"{word}\"", O::KIND),
        todo,
    ))
}
