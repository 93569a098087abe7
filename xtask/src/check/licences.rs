//! Under which licences the whole locked tree may be used.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Finding, Tree};

/// Licences, as SPDX names them, that this project may be shipped with.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Every package in the lock file whose licence is missing, or not satisfied by what is allowed.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let packages = tree.metadata.get("packages").and_then(Value::as_array);
    let mut findings = Vec::new();
    for package in packages.context("metadata has no packages")? {
        let word = |key| package.get(key).and_then(Value::as_str);
        let name = format!(
            "{} {}",
            word("name").unwrap_or("?"),
            word("version").unwrap_or("?")
        );
        match word("license") {
            None => findings.push(Finding::of(name, "names no licence")),
            Some(licence) if satisfied(licence) => {}
            Some(licence) => findings.push(Finding::of(name, format!("{licence} is not allowed"))),
        }
    }
    Ok(findings)
}

/// Whether an SPDX expression can be satisfied with what is allowed: one side of an OR, both of an
/// AND. What does not parse is not satisfied.
fn satisfied(expression: &str) -> bool {
    // Before SPDX expressions, a slash stood for OR.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    either(&mut rest) == Some(true) && rest.is_empty()
}

fn either(rest: &mut &[&str]) -> Option<bool> {
    let mut good = both(rest)?;
    while let Some(("OR", after)) = next(rest) {
        *rest = after;
        good |= both(rest)?;
    }
    Some(good)
}

fn both(rest: &mut &[&str]) -> Option<bool> {
    let mut good = one(rest)?;
    while let Some(("AND", after)) = next(rest) {
        *rest = after;
        good &= one(rest)?;
    }
    Some(good)
}

fn one(rest: &mut &[&str]) -> Option<bool> {
    let (word, after) = next(rest)?;
    *rest = after;
    if word == "(" {
        let good = either(rest)?;
        let (closing, after) = next(rest)?;
        *rest = after;
        return (closing == ")").then_some(good);
    }
    if let Some(("WITH", after)) = next(rest) {
        let (exception, after) = next(after)?;
        *rest = after;
        return Some(ALLOWED.contains(&format!("{word} WITH {exception}").as_str()));
    }
    Some(ALLOWED.contains(&word))
}

fn next<'a, 'w>(rest: &'a [&'w str]) -> Option<(&'w str, &'a [&'w str])> {
    rest.split_first().map(|(word, after)| (*word, after))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::Source;

    /// Expressions mean what SPDX says.
    #[test]
    fn expressions_are_read() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
            "MIT OR Apache-2.0 OR LGPL-2.1-or-later",
        ] {
            assert!(satisfied(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR Apache-2.0) AND NCSA",
            "MIT WITH Classpath-exception-2.0",
            "EUPL-1.2",
            "(MIT",
            "MIT)",
            "MIT OR",
        ] {
            assert!(!satisfied(bad), "{bad}");
        }
    }

    /// A package with a licence that is not allowed, or with none, is found by its name.
    #[test]
    fn a_copyleft_package_is_found() {
        let tree = Tree {
            source: Source::default(),
            metadata: json!({ "packages": [
                { "name": "good", "version": "1.0.0", "license": "MIT" },
                { "name": "left", "version": "2.0.0", "license": "LGPL-2.1-or-later" },
                { "name": "none", "version": "3.0.0", "license": null },
            ]}),
        };
        let found: Vec<_> = check(&tree)
            .expect("looked")
            .iter()
            .map(Finding::to_string)
            .collect();
        assert_eq!(
            found,
            [
                "left 2.0.0: LGPL-2.1-or-later is not allowed",
                "none 3.0.0: names no licence"
            ]
        );
    }
}
