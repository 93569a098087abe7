//! docs/DEPENDENCIES.md against what the workspace depends on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Finding, Tree};

const LIST: &str = "docs/DEPENDENCIES.md";

/// Direct dependencies without a line in the list, and lines without a dependency.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let text = tree.source.text(LIST).unwrap_or_default();
    let listed = listed(text);
    let used = used(&tree.metadata)?;
    let mut findings = Vec::new();
    for (name, by) in &used {
        if !listed.contains(name) {
            let by: Vec<_> = by.iter().map(String::as_str).collect();
            let what = format!("no line for {name}, which {} uses", by.join(", "));
            findings.push(Finding::of(LIST, what));
        }
    }
    for name in &listed {
        if !used.contains_key(name) {
            let what = format!("a line for {name}, on which nothing here depends directly");
            findings.push(Finding::of(LIST, what));
        }
    }
    Ok(findings)
}

/// The first cell, in backquotes, of each row of a table.
fn listed(text: &str) -> BTreeSet<String> {
    let cell = |line: &str| {
        let rest = line.strip_prefix("| `")?;
        Some(rest.split_once('`')?.0.to_owned())
    };
    text.lines().filter_map(cell).collect()
}

/// Third-party packages that a package of the workspace names, and who does.
fn used(metadata: &Value) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let list = |value: &Value, key: &str| -> Result<Vec<Value>> {
        let found = value.get(key).and_then(Value::as_array);
        Ok(found.with_context(|| format!("no list \"{key}\""))?.clone())
    };
    let members = list(metadata, "workspace_members")?;
    let mut used = BTreeMap::<_, BTreeSet<_>>::new();
    for package in list(metadata, "packages")? {
        if !package.get("id").is_some_and(|id| members.contains(id)) {
            continue;
        }
        let by = package.get("name").and_then(Value::as_str);
        for dependency in list(&package, "dependencies")? {
            let name = dependency.get("name").and_then(Value::as_str);
            let ours = dependency.get("path").is_some_and(|path| !path.is_null());
            if let (Some(name), Some(by), false) = (name, by, ours) {
                used.entry(name.to_owned())
                    .or_default()
                    .insert(by.to_owned());
            }
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Source;

    /// A dependency that was added without a line, and a line that stayed behind, are both found.
    #[test]
    fn missing_and_stale_lines_are_found() {
        let text =
            "# Dependencies\n| crate | why |\n| `serde` | JSON |\n| `gone` | it was needed |\n";
        let tree = Tree {
            source: Source::of(&[(LIST, text)]),
            metadata: json!({
                "workspace_members": ["ours"],
                "packages": [
                    { "id": "ours", "name": "ours", "dependencies": [
                        { "name": "serde", "path": null },
                        { "name": "added" },
                        { "name": "sibling", "path": "/tree/sibling" },
                    ]},
                    { "id": "theirs", "name": "theirs", "dependencies": [{ "name": "far" }] },
                ],
            }),
        };
        let found: Vec<_> = check(&tree)
            .expect("looked")
            .iter()
            .map(|finding| finding.what.clone())
            .collect();
        assert_eq!(
            found,
            [
                "no line for added, which ours uses",
                "a line for gone, on which nothing here depends directly",
            ]
        );
    }
}
