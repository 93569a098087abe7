//! Sections 5 and 7: the daemon's options, the document, the reasons of drops.

use serde_json::Value;
use windlass_api::{DAEMON_OPTIONS, PROPERTIES, Scope, document_schema, known_keys};
use windlass_stats::{Drop, Stage};

use super::Page;
use super::manual::property;
use super::roff::Roff;

/// Every page of the sections.
pub(crate) fn pages() -> Vec<Page> {
    vec![toml(), document(), drops()]
}

fn toml() -> Page {
    let mut page = Roff::page("windlass.toml", 5, "Options of windlassd.");
    page.heading("DESCRIPTION");
    page.paragraph(
        "windlassd reads /etc/windlass/windlass.toml, or the file after --config, in TOML: KEY = VALUE, \
         with paths, lists of cores and text in quotation marks. A key that is not listed here is \
         refused. What stands on the command line wins. \"windlassd --print-default-config\" prints the \
         file with every default; \"windlassd --check-config\" says whether it is good.",
    );
    page.heading("OPTIONS");
    for option in DAEMON_OPTIONS {
        page.term(option.name, &property(option));
    }
    page.heading("EXAMPLES");
    page.literal("workers = \"2-3\"\nlog-level = \"warn\"");
    page.see_also(&["windlassd.8", "windlass.8", "windlass-document.5"]);
    page.done()
}

fn document() -> Page {
    let schema = document_schema();
    let mut page = Roff::page("windlass-document", 5, "The configuration of windlassd.");
    page.heading("DESCRIPTION");
    page.paragraph(
        "\"windlass export\" writes and \"windlass apply\" reads the whole configuration as one JSON \
         document. A key that is not listed here is refused. What the document lacks is removed by \
         apply.",
    );
    page.heading("KEYS");
    keys(&mut page, &schema, &schema);
    for (name, title) in [
        ("Zone", "Each of zones"),
        ("Bridge", "Each of bridges"),
        ("Uplink", "Each of uplinks"),
        ("Overlay", "Each of overlays"),
        ("Vnic", "Each of vnics"),
        ("Flow", "Each of flows"),
        ("StaticEntry", "Each of fdb"),
    ] {
        if let Some(object) = schema.pointer(&format!("/$defs/{name}")) {
            page.subheading(title);
            page.paragraph(&described(object));
            keys(&mut page, object, &schema);
        }
    }
    attachments_in(&mut page, &schema);
    page.heading("PROPERTIES");
    page.paragraph(
        "The value of properties. Flags are true or false here, numbers are numbers, lists of VLANs \
         are strings.",
    );
    for row in PROPERTIES {
        let scopes: Vec<_> = row
            .scopes
            .iter()
            .map(|scope| match scope {
                Scope::Bridge => "bridge",
                Scope::Uplink => "uplink",
                Scope::Overlay => "overlay",
                Scope::Vnic => "VNIC",
                Scope::Flow => "flow",
                Scope::Zone => "zone",
                Scope::Vnd => "vnd",
            })
            .collect();
        let term = format!("{} ({})", row.option.name, scopes.join(", "));
        page.term(&term, &property(&row.option));
    }
    page.heading("EXAMPLES");
    page.literal(EXAMPLE);
    page.see_also(&[
        "windlass.8",
        "windlass-apply.8",
        "windlass-export.8",
        "windlass-vnic.8",
    ]);
    page.done()
}

/// What can stand after `--attach`.
pub(crate) fn attachments(page: &mut Roff) {
    attachments_in(page, &document_schema());
}

fn attachments_in(page: &mut Roff, schema: &Value) {
    page.heading("ATTACHMENTS");
    page.paragraph(
        "In a document the value of attach, where kind says which of these it is. After --attach the kind is \
         the first word, and KEY=VALUE for each key follows behind a comma; a key that takes a list is \
         repeated for each of its values.",
    );
    for kind in alternatives(schema.pointer("/$defs/Attachment")) {
        let word = kind
            .pointer("/properties/kind/const")
            .and_then(Value::as_str)
            .unwrap_or("?");
        page.subheading(&format!("kind: {word}"));
        if let Some((_, typed)) = known_keys(word) {
            page.paragraph(&format!("Keys after --attach: {typed}."));
        }
        keys(page, kind, schema);
        if let Some(of) = kind
            .get("$ref")
            .and_then(|reference| resolve(schema, reference))
        {
            keys(page, of, schema);
        }
    }
}

const EXAMPLE: &str = r#"{
  "version": 1,
  "bridges": [{"name": "br0", "properties": {"ageing": 60}}],
  "uplinks": [{"name": "up0", "device": "eth0", "bridge": "br0"}],
  "vnics": [
    {"name": "v0", "bridge": "br0", "properties": {"vlan": 10},
     "attach": {"kind": "tap", "netns": "a", "address": ["10.0.0.1/24"]}}
  ]
}"#;

fn alternatives(schema: Option<&Value>) -> impl Iterator<Item = &Value> {
    schema
        .and_then(|schema| schema.get("oneOf"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn resolve<'a>(schema: &'a Value, reference: &Value) -> Option<&'a Value> {
    schema.pointer(reference.as_str()?.strip_prefix('#')?)
}

fn described(schema: &Value) -> String {
    let text = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace(['`', '[', ']'], "")
}

fn keys(page: &mut Roff, object: &Value, schema: &Value) {
    let required: Vec<_> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (key, value) in object
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if value.get("const").is_some() {
            continue;
        }
        let needed = if required.contains(&key.as_str()) {
            ", required"
        } else {
            ""
        };
        let mut about = described(value);
        if about.is_empty() {
            about = value
                .get("$ref")
                .and_then(|reference| resolve(schema, reference))
                .map(described)
                .unwrap_or_default();
        }
        page.term(&format!("{key} ({}{needed})", kind(value, schema)), &about);
    }
}

/// The type of a value, in a word or a few.
fn kind(value: &Value, schema: &Value) -> String {
    if let Some(of) = value
        .get("$ref")
        .and_then(|reference| resolve(schema, reference))
    {
        return kind(of, schema);
    }
    match value.get("type") {
        Some(Value::String(word)) if word == "array" => {
            let items = value
                .get("items")
                .map_or("value".into(), |items| kind(items, schema));
            format!("list of {items}")
        }
        Some(Value::String(word)) => word.clone(),
        Some(Value::Array(words)) => {
            let words: Vec<_> = words
                .iter()
                .filter_map(Value::as_str)
                .filter(|word| *word != "null")
                .collect();
            words.join(" or ")
        }
        _ => {
            let some = value
                .get("anyOf")
                .or(value.get("oneOf"))
                .or(value.get("allOf"));
            let first = some.and_then(Value::as_array).and_then(|list| list.first());
            first.map_or("object".into(), |first| kind(first, schema))
        }
    }
}

fn drops() -> Page {
    let mut page = Roff::page("windlass-drops", 7, "Why windlass drops frames.");
    page.heading("DESCRIPTION");
    page.paragraph(
        "A frame that is not delivered is counted under one of these reasons, at one member of the \
         bridge. \"windlass stat --drops\" shows them.",
    );
    for (stage, title, about) in [
        (
            Stage::Ingress,
            "INGRESS",
            "Counted at the member that the frame came from.",
        ),
        (
            Stage::Egress,
            "EGRESS",
            "Counted at the member that the frame was for, once a copy.",
        ),
    ] {
        page.heading(title);
        page.paragraph(about);
        for reason in Drop::ALL.iter().filter(|reason| reason.stage() == stage) {
            page.term(reason.name(), reason.explanation());
        }
    }
    page.see_also(&["windlass.8", "windlass-stat.8", "windlass-vnic.8"]);
    page.done()
}
