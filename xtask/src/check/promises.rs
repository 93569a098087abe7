//! What docs/sockets.md promises, and the tests that show it.
//!
//! Behind a promise stands a comment that names tests: `<!-- test_a, test_b -->`, or `<!-- untested: why -->`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::{Finding, Tree};

const PAGE: &str = "docs/sockets.md";
/// Sections whose every bullet has a comment.
const SECTIONS: &[&str] = &["## Limits", "## The broker"];
/// First cells of the tables whose every row has one.
const TABLES: &[&str] = &["| what ", "| attacker "];
const UNTESTED: &str = "untested:";

/// Comments that name no test, and promises without one.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let page = tree.source.text(PAGE).context(PAGE)?;
    let tests = tests(tree);
    let mut findings = Vec::new();
    for (line, promise, is_due) in promises(page) {
        let comments: Vec<_> = comments(&promise).collect();
        let mut find = |what: &str| findings.push(Finding::of(format!("{PAGE}:{line}"), what));
        if is_due && comments.is_empty() {
            find("a promise without a test");
        }
        let tested = comments.iter().filter(|text| !text.starts_with(UNTESTED));
        for name in tested.flat_map(|text| text.split(',').map(str::trim)) {
            if !tests.contains(name) {
                find(&format!("there is no test {name:?}"));
            }
        }
    }
    Ok(findings)
}

/// How many promises no test shows.
pub(super) fn told(tree: &Tree) -> Option<String> {
    let count = comments(tree.source.text(PAGE)?).filter(|text| text.starts_with(UNTESTED));
    Some(format!("{PAGE}: {} promises untested", count.count()))
}

fn comments(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split("<!--").skip(1);
    parts.filter_map(|part| Some(part.split_once("-->")?.0.trim()))
}

/// Rows, bullets and other paragraphs: the first line of each, its text, and whether it has to have a test.
fn promises(page: &str) -> Vec<(usize, String, bool)> {
    let mut all = Vec::<(usize, String, bool)>::new();
    let (mut is_due, mut is_due_row, mut before) = (false, false, "");
    for (line, text) in (1..).zip(page.lines()) {
        let is_title = text.starts_with('|') && !before.starts_with('|');
        let goes_on = !before.is_empty() && !text.is_empty() && !before.starts_with('|');
        if text.starts_with("## ") {
            is_due = SECTIONS.contains(&text);
        } else if is_title {
            is_due_row = TABLES.iter().any(|title| text.starts_with(title));
        } else if text.starts_with('|') && !text.starts_with("| ---") {
            all.push((line, text.to_owned(), is_due_row));
        } else if text.starts_with("- ") {
            all.push((line, text.to_owned(), is_due));
        } else if let Some((_, promise, _)) = all.last_mut().filter(|_| goes_on) {
            *promise += &format!(" {text}");
        } else {
            all.push((line, text.to_owned(), false));
        }
        before = text;
    }
    all
}

/// Names of test functions, and of scripts that the differential runner plays.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for file in &tree.source.files {
        let script = file.path.strip_prefix("tests/differential/scripts/");
        names.extend(script.and_then(|name| name.strip_suffix(".txt")));
        if file.path.ends_with(".rs") {
            let marked = file.text.split("#[test]").skip(1);
            let functions = marked.filter_map(|part| part.split_once("fn ")?.1.split_once('('));
            names.extend(functions.map(|(name, _)| name));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::check::Source;

    /// A promise without a test, and one whose test is gone, are found where they stand; what is told as untested is counted.
    #[test]
    fn promises_have_tests() {
        let page = "## Limits\n\nWords:\n\n- One\n  and more. <!-- a, b -->\n- Two.\n- Three. <!-- untested: no host -->\n\n\
                    ## Other\n\n- Four.\n\n| what | limit |\n| --- | --- |\n| all | 1 <!-- gone --> |\n| none | 2 |\n";
        let tree = Tree {
            source: Source::of(&[
                (PAGE, page),
                ("a.rs", "#[test]\nfn a() {}\n"),
                ("tests/differential/scripts/b.txt", ""),
            ]),
            metadata: Value::Null,
        };
        let found: Vec<_> = check(&tree).expect("looked");
        let found: Vec<_> = found.iter().map(Finding::to_string).collect();
        let expected = [
            "docs/sockets.md:7: a promise without a test",
            "docs/sockets.md:16: there is no test \"gone\"",
            "docs/sockets.md:17: a promise without a test",
        ];
        assert_eq!(found, expected);
        assert_eq!(
            told(&tree).as_deref(),
            Some("docs/sockets.md: 1 promises untested")
        );
    }
}
