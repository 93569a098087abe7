//! Files that are made from the code, so that they cannot drift from it.
//!
//! # Model
//! Manual pages and completions are [`pages`]; here are the schema of the document, the
//! description of the API, and the tables in guides that people wrote. A table stands in its guide
//! between `<!-- table NAME -->` and `<!-- end -->`, and only that part of the file is replaced.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use windlass_api::{DAEMON_OPTIONS, OptionSpec, PROPERTIES, Scope};
use windlass_memory::options::{Group, Kind};
use windlass_stats::{Drop, Stage};
use windlassd::metrics;

use super::{Finding, Tree};
use crate::pages::{self, allocator};

/// Guides that hold tables.
const GUIDES: &[&str] = &[
    "docs/memory.md",
    "docs/operator-guide.md",
    "docs/user-guide.md",
];

/// Writes every generated file under the root of the source tree.
///
/// # Errors
/// If a file cannot be read or written, or a guide names a table that there is not.
pub fn write(root: &Path) -> Result<()> {
    pages::write(root)?;
    for (path, text) in wanted(&|path| fs::read_to_string(root.join(path)).ok())? {
        fs::write(root.join(&path), text).with_context(|| path.clone())?;
    }
    Ok(())
}

/// Every generated file that is not as it would be made now.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = stale(&|path| tree.source.text(path).map(str::to_owned))?;
    if let Err(error) = pages::check(&tree.source.root) {
        findings.push(Finding::of("man, completions", error.to_string()));
    }
    Ok(findings)
}

type ReadFile<'a> = &'a dyn Fn(&str) -> Option<String>;

fn stale(read: ReadFile<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, text) in wanted(read)? {
        if read(&path).as_ref() != Some(&text) {
            findings.push(Finding::of(
                path,
                "stale; run \"cargo run -p xtask generate\"",
            ));
        }
    }
    Ok(findings)
}

/// Each file, and what it should say.
fn wanted(read: ReadFile<'_>) -> Result<Vec<(String, String)>> {
    let json =
        |value: &Value| -> Result<String> { Ok(serde_json::to_string_pretty(value)? + "\n") };
    let api = windlassd::routes::openapi::description();
    let mut files = vec![
        (
            "docs/document.schema.json".to_owned(),
            json(&windlass_api::document_schema())?,
        ),
        ("docs/openapi.json".to_owned(), json(&api)?),
        (
            "crates/programs/windlassd/dist/grafana.json".to_owned(),
            json(&dashboard())?,
        ),
    ];
    for path in GUIDES {
        let text = read(path).with_context(|| format!("{path} is missing"))?;
        let text = with_tables(&text, &api).with_context(|| (*path).to_owned())?;
        files.push(((*path).to_owned(), text));
    }
    Ok(files)
}

/// A dashboard for Grafana (JSON model, schema version 39) with a panel for each counter and level that has labels.
fn dashboard() -> Value {
    let metrics = metrics::all();
    let with_labels = metrics.iter().filter(|metric| !metric.labels.is_empty());
    let panels = (0..).zip(with_labels).map(|(at, metric)| {
        let name = &metric.name;
        let (expr, unit) = match metric.kind {
            metrics::Kind::Counter => (format!("rate({name}[$__rate_interval])"), "cps"),
            metrics::Kind::Gauge => (name.clone(), "short"),
        };
        let legend: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("{{{{{label}}}}}"))
            .collect();
        json!({
            "id": at + 1, "type": "timeseries", "title": name, "description": metric.help,
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "gridPos": {"h": 8, "w": 8, "x": at % 3 * 8, "y": at / 3 * 8},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": "A", "expr": expr, "legendFormat": legend.join(" ")}],
        })
    });
    json!({
        "title": "windlass", "uid": "windlass", "schemaVersion": 39, "tags": ["windlass"],
        "time": {"from": "now-1h", "to": "now"}, "refresh": "10s",
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
        "panels": panels.collect::<Vec<_>>(),
    })
}

/// The text with each of its tables made anew.
fn with_tables(text: &str, api: &Value) -> Result<String> {
    const END: &str = "<!-- end -->";
    let mut made = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<!-- table ") {
        let (name, body) = after
            .split_once(" -->")
            .context("a table's name does not end")?;
        let (_, behind) = body
            .split_once(END)
            .with_context(|| format!("table {name} does not end"))?;
        let table = table(name, api).with_context(|| format!("there is no table {name}"))?;
        write!(made, "{before}<!-- table {name} -->\n{table}{END}")?;
        rest = behind;
    }
    Ok(made + rest)
}

fn table(name: &str, api: &Value) -> Option<String> {
    if let Some(kind) = name.strip_prefix("counters ") {
        return counters(api, kind);
    }
    Some(match name {
        "drops ingress" => drops(Stage::Ingress),
        "drops egress" => drops(Stage::Egress),
        "metrics" => metric_table(),
        "daemon options" => options(DAEMON_OPTIONS.iter()),
        "zone properties" => options(scope(Scope::Zone)),
        "bridge properties" => options(scope(Scope::Bridge)),
        "uplink properties" => options(scope(Scope::Uplink)),
        "overlay properties" => options(scope(Scope::Overlay)),
        "vnic properties" => options(scope(Scope::Vnic)),
        "flow properties" => options(scope(Scope::Flow)),
        "allocator options" => allocator_options(Group::Tuning),
        "allocator debugging" => allocator_options(Group::Debugging),
        "allocator logs" => allocator_options(Group::Logs),
        "vnd properties" => options(scope(Scope::Vnd)),
        _ => return None,
    })
}

fn metric_table() -> String {
    let mut text = String::from("| metric | labels | what it says |\n| --- | --- | --- |\n");
    for metric in metrics::all() {
        let labels = metric.labels.join(", ");
        text += &format!("| `{}` | {labels} | {} |\n", metric.name, metric.help);
    }
    text
}

fn scope(scope: Scope) -> impl Iterator<Item = &'static OptionSpec> {
    let of = move |row: &&windlass_api::PropertySpec| row.scopes.contains(&scope);
    PROPERTIES.iter().filter(of).map(|row| &row.option)
}

fn drops(stage: Stage) -> String {
    let mut text = String::from("| reason | when |\n| --- | --- |\n");
    for reason in Drop::ALL.iter().filter(|reason| reason.stage() == stage) {
        text += &format!("| `{}` | {} |\n", reason.name(), reason.explanation());
    }
    text
}

fn options<'a>(rows: impl Iterator<Item = &'a OptionSpec>) -> String {
    let mut text =
        String::from("| name | values | default | what it does |\n| --- | --- | --- | --- |\n");
    for row in rows {
        let unit = match row.unit {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        let default = match row.default {
            "" => "none".to_owned(),
            value => format!("`{value}`"),
        };
        text += &format!(
            "| `{}` | {}{unit} | {default} | {} |\n",
            row.name,
            row.possible().replace('|', "\\|"),
            row.sentence
        );
    }
    text
}

fn allocator_options(group: Group) -> String {
    let mut text = String::from("| word | default | what it does |\n| --- | --- | --- |\n");
    for row in allocator::rows(group) {
        let default = match group {
            Group::Tuning => format!("`{}`", allocator::value(row, row.initial)),
            _ => match row.bare {
                Some(bare) if !matches!(row.kind, Kind::Flag) => {
                    format!("off; alone: `{}`", allocator::value(row, bare))
                }
                _ => "off".to_owned(),
            },
        };
        let written = allocator::written(row).replace('|', "\\|");
        text += &format!("| `{written}` | {default} | {} |\n", row.text);
    }
    text
}

/// The numbers that an answer of the API holds, as its schema describes them.
fn counters(api: &Value, kind: &str) -> Option<String> {
    let schema = api.pointer(&format!("/components/schemas/{kind}/properties"))?;
    let mut text = String::from("| name | what it counts |\n| --- | --- |\n");
    for (name, of) in schema.as_object()? {
        let about = of.get("description").and_then(Value::as_str).unwrap_or("");
        let line = about.split_whitespace().collect::<Vec<_>>().join(" ");
        text += &format!("| `{name}` | {line} |\n");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Only what stands between a table's marks is made anew; a table that there is not is refused,
    /// and so is one that does not end.
    #[test]
    fn tables_are_replaced() {
        let api = json!({ "components": { "schemas": { "Counters": { "properties": {
            "rx_frames": { "description": "Frames\nreceived." },
        }}}}});
        let text = "before\n<!-- table counters Counters -->\nold\n<!-- end -->\nafter\n";
        let made = with_tables(text, &api).expect("tables");
        assert_eq!(
            made,
            "before\n<!-- table counters Counters -->\n| name | what it counts |\n| --- | --- |\n\
             | `rx_frames` | Frames received. |\n<!-- end -->\nafter\n"
        );
        assert_eq!(with_tables(&made, &api).expect("tables"), made);
        for bad in [
            "<!-- table nothing -->\n<!-- end -->",
            "<!-- table drops egress -->\n",
        ] {
            assert!(with_tables(bad, &api).is_err(), "{bad}");
        }
    }

    /// Every drop reason stands in one of the two tables of them.
    #[test]
    fn every_drop_reason_has_a_row() {
        let tables = drops(Stage::Ingress) + &drops(Stage::Egress);
        for reason in Drop::ALL {
            assert!(
                tables.contains(&format!("| `{}` | ", reason.name())),
                "{}",
                reason.name()
            );
        }
    }

    /// A schema that was changed by hand, and a guide whose table has an old row, are found.
    #[test]
    fn a_stale_file_is_found() {
        let guide = "text <!-- table drops egress -->\n| old |\n<!-- end -->\n";
        let found = stale(&|path| {
            Some(match path {
                "docs/document.schema.json" => "{}".to_owned(),
                "docs/user-guide.md" => "no table".to_owned(),
                _ => guide.to_owned(),
            })
        })
        .expect("looked");
        let at: Vec<_> = found.iter().map(|finding| finding.at.as_str()).collect();
        assert_eq!(
            at,
            [
                "docs/document.schema.json",
                "docs/openapi.json",
                "crates/programs/windlassd/dist/grafana.json",
                "docs/memory.md",
                "docs/operator-guide.md"
            ]
        );
    }
}
