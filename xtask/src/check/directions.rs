//! Which crates may depend on which.
//!
//! # Model
//! Each package of the workspace belongs to a [`Layer`], by its directory. A layer may name what
//! [`Layer::may_name`] lists, in every kind of dependency. Besides, nothing under `base/`, `engines/`
//! and `io/` may reach one of [`KEPT_ABOVE`], over any number of steps, unless only its tests do.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Finding, Tree};

/// Packages that stay in `control/`, `programs/` and what is built around them: runtimes, HTTP,
/// terminals, command lines and logging.
const KEPT_ABOVE: &[&str] = &[
    "axum",
    "clap",
    "crossterm",
    "hyper",
    "hyper-util",
    "ratatui",
    "tokio",
    "tracing",
    "tracing-subscriber",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Base,
    Engines,
    Io,
    Api,
    Client,
    Programs,
    /// The bench, the tests across crates and xtask: what nobody depends on.
    Around,
}

impl Layer {
    fn of(directory: &str) -> Option<Self> {
        let under = |prefix: &str| directory.starts_with(prefix);
        Some(match directory {
            _ if under("crates/base/") => Self::Base,
            _ if under("crates/engines/") => Self::Engines,
            _ if under("crates/io/") => Self::Io,
            "crates/control/api" | "crates/control/lookup" => Self::Api,
            "crates/control/client" => Self::Client,
            // They live inside other programs: no runtime, no terminal, no logging.
            "crates/programs/alloc" | "crates/programs/preload" => Self::Io,
            _ if under("crates/programs/") => Self::Programs,
            "bench" | "tests" | "tests/differential" | "xtask" => Self::Around,
            _ => return None,
        })
    }

    fn may_name(self) -> &'static [Self] {
        match self {
            Self::Base => &[Self::Base],
            Self::Engines => &[Self::Base, Self::Engines],
            Self::Io => &[Self::Base, Self::Engines, Self::Io],
            Self::Api => &[Self::Base],
            Self::Client => &[Self::Base, Self::Api],
            Self::Programs => &[
                Self::Base,
                Self::Engines,
                Self::Io,
                Self::Api,
                Self::Client,
                Self::Programs,
            ],
            Self::Around => &[
                Self::Base,
                Self::Engines,
                Self::Io,
                Self::Api,
                Self::Client,
                Self::Programs,
                Self::Around,
            ],
        }
    }

    fn is_low(self) -> bool {
        matches!(self, Self::Base | Self::Engines | Self::Io)
    }
}

/// Every dependency that points up, and every low crate that reaches what is kept above.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let layers = layers(&tree.metadata, &mut findings)?;
    declared(&tree.metadata, &layers, &mut findings)?;
    reached(&tree.metadata, &layers, &mut findings)?;
    findings.sort();
    Ok(findings)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    let found = value.get(key).and_then(Value::as_array);
    found.with_context(|| format!("metadata has no list \"{key}\""))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    let found = value.get(key).and_then(Value::as_str);
    found.with_context(|| format!("metadata has no text \"{key}\""))
}

/// The layer of each package of the workspace, by its name.
fn layers(metadata: &Value, findings: &mut Vec<Finding>) -> Result<BTreeMap<String, Layer>> {
    let root = text(metadata, "workspace_root")?;
    let members: BTreeSet<_> = list(metadata, "workspace_members")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let mut layers = BTreeMap::new();
    for package in list(metadata, "packages")? {
        if !members.contains(text(package, "id")?) {
            continue;
        }
        let manifest = text(package, "manifest_path")?;
        let directory = manifest
            .strip_prefix(root)
            .and_then(|path| path.strip_suffix("/Cargo.toml"))
            .unwrap_or_default()
            .trim_start_matches('/');
        let name = text(package, "name")?;
        match Layer::of(directory) {
            Some(layer) => {
                layers.insert(name.to_owned(), layer);
            }
            None => findings.push(Finding::of(name, format!("{directory} is in no layer"))),
        }
    }
    Ok(layers)
}

fn declared(
    metadata: &Value,
    layers: &BTreeMap<String, Layer>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    for package in list(metadata, "packages")? {
        let name = text(package, "name")?;
        let Some(layer) = layers.get(name) else {
            continue;
        };
        for dependency in list(package, "dependencies")? {
            let on = text(dependency, "name")?;
            if let Some(below) = layers.get(on)
                && !layer.may_name().contains(below)
            {
                let what = format!("{layer:?} may not depend on {on}, which is {below:?}");
                findings.push(Finding::of(name, what));
            }
        }
    }
    Ok(())
}

/// Follows what is built into the low crates: neither what only tests use, nor what only a model
/// checker's build (`cfg(loom)`) does.
fn reached(
    metadata: &Value,
    layers: &BTreeMap<String, Layer>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let mut names = BTreeMap::new();
    for package in list(metadata, "packages")? {
        names.insert(text(package, "id")?, text(package, "name")?);
    }
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let resolve = metadata
        .get("resolve")
        .context("metadata was not resolved")?;
    for node in list(resolve, "nodes")? {
        let mut on = Vec::new();
        for dependency in list(node, "deps")? {
            if list(dependency, "dep_kinds")?.iter().any(is_built) {
                on.push(text(dependency, "pkg")?);
            }
        }
        next.insert(text(node, "id")?, on);
    }
    for (id, name) in &names {
        if !layers.get(*name).is_some_and(|layer| layer.is_low()) {
            continue;
        }
        let mut seen = BTreeSet::from([*id]);
        let mut paths = vec![vec![*id]];
        while let Some(path) = paths.pop() {
            let last = path.last().copied().unwrap_or_default();
            for on in next.get(last).into_iter().flatten() {
                let mut path = path.clone();
                path.push(on);
                if KEPT_ABOVE.contains(names.get(on).unwrap_or(&"")) {
                    let steps: Vec<_> = path
                        .iter()
                        .filter_map(|id| names.get(id).copied())
                        .collect();
                    findings.push(Finding::of(
                        *name,
                        format!("reaches {}", steps.join(" -> ")),
                    ));
                } else if seen.insert(on) {
                    paths.push(path);
                }
            }
        }
    }
    Ok(())
}

fn is_built(kind: &Value) -> bool {
    let word = kind.get("kind").and_then(Value::as_str);
    let target = kind.get("target").and_then(Value::as_str);
    word != Some("dev") && target != Some("cfg(loom)")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Source;

    fn package(name: &str, directory: &str, on: &[&str]) -> Value {
        let dependencies: Vec<_> = on.iter().map(|name| json!({ "name": name })).collect();
        json!({
            "id": name, "name": name, "dependencies": dependencies,
            "manifest_path": format!("/tree/{directory}/Cargo.toml"),
        })
    }

    fn node(name: &str, on: &[(&str, Value)]) -> Value {
        let deps: Vec<_> = on
            .iter()
            .map(|(name, kind)| json!({ "pkg": name, "dep_kinds": [kind] }))
            .collect();
        json!({ "id": name, "deps": deps })
    }

    fn findings(packages: Value, nodes: Value, members: Value) -> Vec<String> {
        let tree = Tree {
            source: Source::default(),
            metadata: json!({
                "workspace_root": "/tree", "workspace_members": members,
                "packages": packages, "resolve": { "nodes": nodes },
            }),
        };
        let found = check(&tree).expect("looked");
        found.iter().map(Finding::to_string).collect()
    }

    /// A crate that names one above it is found, also among its tests' dependencies; one that names
    /// one below is not.
    #[test]
    fn an_arrow_that_points_up_is_found() {
        let found = findings(
            json!([
                package("sync", "crates/base/sync", &["bridge"]),
                package("bridge", "crates/engines/bridge", &["sync"]),
                package("api", "crates/control/api", &["attach"]),
                package("attach", "crates/io/attach", &["sync", "bridge"]),
                package("daemon", "crates/programs/daemon", &["api", "attach"]),
            ]),
            json!([]),
            json!(["sync", "bridge", "api", "attach", "daemon"]),
        );
        assert_eq!(
            found,
            [
                "api: Api may not depend on attach, which is Io",
                "sync: Base may not depend on bridge, which is Engines",
            ]
        );
    }

    /// A runtime two steps away is found with the way to it; one that only tests or models use, or
    /// that a program uses, is not.
    #[test]
    fn a_runtime_below_control_is_found() {
        let built = json!({ "kind": null, "target": null });
        let test = json!({ "kind": "dev", "target": null });
        let model = json!({ "kind": null, "target": "cfg(loom)" });
        let found = findings(
            json!([
                package("attach", "crates/io/attach", &[]),
                package("sync", "crates/base/sync", &[]),
                package("daemon", "crates/programs/daemon", &[]),
                package("between", "elsewhere/between", &[]),
                package("tokio", "elsewhere/tokio", &[]),
            ]),
            json!([
                node("attach", &[("between", built.clone())]),
                node("between", &[("tokio", built.clone())]),
                node("sync", &[("tokio", test), ("between", model)]),
                node("daemon", &[("tokio", built)]),
            ]),
            json!(["attach", "sync", "daemon"]),
        );
        assert_eq!(found, ["attach: reaches attach -> between -> tokio"]);
    }

    /// A crate in a directory that no layer knows is found: a layer is a decision.
    #[test]
    fn a_crate_without_a_layer_is_found() {
        let found = findings(
            json!([package("odd", "crates/odd", &[])]),
            json!([]),
            json!(["odd"]),
        );
        assert_eq!(found, ["odd: crates/odd is in no layer"]);
    }
}
