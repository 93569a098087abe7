//! Which modules of a crate may use which.
//!
//! # Model
//! A crate in [`CRATES`] lists its top-level modules from the lowest to the highest. A file may name its own module and
//! lower ones, by `crate::`. What only tests name (below `#[cfg(test)]`) is left out.

use std::collections::BTreeSet;

use anyhow::Result;

use super::source::File;
use super::{Finding, Tree};

/// A crate's `src`, and its modules from the lowest to the highest.
const CRATES: &[(&str, &[&str])] = &[(
    "crates/programs/preload/src",
    &[
        "arch",
        "options",
        "sys",
        "counts",
        "process",
        "fd",
        "socket",
        "ready",
        "join",
        "lifecycle",
        "dispatch",
        "libc",
        "start",
    ],
)];

/// Every module that uses a higher one, and every file of a listed crate that is in no listed module.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (src, rooms) in CRATES {
        for file in tree.source.rust() {
            let Some(inner) = file.path.strip_prefix(src) else {
                continue;
            };
            findings.extend(look(file, inner.trim_start_matches('/'), rooms));
        }
    }
    Ok(findings)
}

/// What is wrong with one file; `inner` is its path below `src`.
fn look(file: &File, inner: &str, rooms: &[&str]) -> Vec<Finding> {
    let own = inner.split(['/', '.']).next().unwrap_or_default();
    if own == "lib" {
        return Vec::new();
    }
    let height = |name: &str| rooms.iter().position(|room| *room == name);
    let Some(at) = height(own) else {
        return vec![Finding::of(&file.path, format!("{own} is in no order"))];
    };
    let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
    let above = |name: &String| height(name).is_some_and(|other| other > at);
    named(code)
        .into_iter()
        .filter(above)
        .map(|name| {
            Finding::of(
                &file.path,
                format!("{own} may not use {name}, which is above it"),
            )
        })
        .collect()
}

/// The modules that follow `crate::` in a text, also in lists of braces. Comments may name anything.
fn named(text: &str) -> BTreeSet<String> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: Vec<_> = lines.collect();
    let code = code.join("\n");
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => names.extend(firsts(list)),
            None => names.extend(word(rest)),
        }
    }
    names
}

/// The word that a text begins with.
fn word(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    let word = text.get(..end.unwrap_or(text.len()))?;
    (!word.is_empty()).then(|| word.to_owned())
}

/// The first word of each entry of a list in braces, whose opening one is gone.
fn firsts(list: &str) -> Vec<String> {
    let (mut depth, mut is_first, mut found) = (0_u32, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            c if is_first && (c.is_alphabetic() || c == '_') => {
                is_first = false;
                found.extend(list.get(at..).and_then(word));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(inner: &str, text: &str) -> Vec<String> {
        let file = File {
            path: format!("src/{inner}"),
            text: text.to_owned(),
        };
        let found = look(&file, inner, &["sys", "fd", "socket"]);
        found.into_iter().map(|finding| finding.what).collect()
    }

    /// A lower module that names a higher one is found, in paths and in lists; comments and tests may name it.
    #[test]
    fn arrows_up_are_found() {
        let up = ["fd may not use socket, which is above it"];
        assert_eq!(found("fd/table.rs", "use crate::socket::send;"), up);
        assert_eq!(
            found("fd.rs", "use crate::{\n    sys::{a, b},\n    socket,\n};"),
            up
        );
        assert_eq!(found("fd/a.rs", "fn a() { crate::socket::b() }"), up);
        let fine =
            "//! [`crate::socket`]\nuse crate::{sys, fd::x};\n#[cfg(test)]\nuse crate::socket;";
        assert!(found("fd/table.rs", fine).is_empty());
        assert!(found("lib.rs", "use crate::socket;").is_empty());
        assert_eq!(found("odd.rs", ""), ["odd is in no order"]);
    }
}
