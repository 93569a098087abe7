//! How long files and functions may be.
//!
//! # Model
//! Files are formatted by rustfmt, so a function ends at the first closing brace that stands as far
//! left as its first line. Raw strings may fool that into a shorter function, never into a longer one.

use anyhow::Result;

use super::source::File;
use super::{Finding, Tree};

/// A file has fewer lines than this.
const FILE_LINES: usize = 1000;

/// A function has fewer lines than this, from its name to its closing brace.
const FUNCTION_LINES: usize = 70;

/// Functions that may be longer, and why. One that is not long any more must leave the list.
const LONG: &[(&str, &str, &str)] = &[
    (
        "crates/engines/bridge/tests/fdb_oracle.rs",
        "agrees_with_a_map",
        "one match with an arm for each operation of the table",
    ),
    (
        "crates/engines/bridge/tests/fdb_threads.rs",
        "a_present_key_is_never_missed_nor_mistaken",
        "the loops of two threads, which are read against each other",
    ),
    (
        "crates/engines/bridge/tests/forward.rs",
        "decide",
        "the oracle: every rule of the bridge, in their order",
    ),
    (
        "crates/io/attach/src/memif/msg.rs",
        "golden",
        "a table with the bytes of every message",
    ),
    (
        "crates/io/attach/tests/memif_hostile.rs",
        "bad_handshakes_are_refused_by_name",
        "a table of bad handshakes",
    ),
    (
        "tests/tests/control.rs",
        "owners_are_confined_to_their_zones",
        "a list of what an owner may do, and of what is refused",
    ),
    (
        "tests/tests/uplink.rs",
        "a_loop_is_bounded",
        "one scene, from the cables to the counters",
    ),
];

/// Every file and function that is too long.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut excused = Vec::new();
    for file in &tree.source.files {
        let lines = file.text.lines().count();
        let code = file.path.ends_with(".rs") || file.path.starts_with("scripts/");
        if code && lines >= FILE_LINES {
            let what = format!("{lines} lines; a file has fewer than {FILE_LINES}");
            findings.push(Finding::of(&file.path, what));
        }
    }
    for file in tree.source.rust() {
        for function in functions(file) {
            if function.lines < FUNCTION_LINES {
                continue;
            }
            let reason = LONG
                .iter()
                .find(|(path, name, _)| *path == file.path && *name == function.name);
            match reason {
                Some(row) => excused.push(*row),
                None => findings.push(Finding::of(
                    format!("{}:{}", file.path, function.at),
                    format!(
                        "{} has {} lines; a function has fewer than {FUNCTION_LINES}",
                        function.name, function.lines
                    ),
                )),
            }
        }
    }
    for row in LONG.iter().filter(|row| !excused.contains(row)) {
        let what = format!("{} need not be excused any more", row.1);
        findings.push(Finding::of(row.0, what));
    }
    Ok(findings)
}

#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    at: usize,
    lines: usize,
}

fn functions(file: &File) -> Vec<Function> {
    let lines: Vec<_> = file.text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = named(line) else { continue };
        let closed = |line: &str| line.ends_with('}') || line.ends_with(';');
        let end = if closed(line) {
            Some(index)
        } else {
            let indent = line.len() - line.trim_start().len();
            lines
                .iter()
                .enumerate()
                .skip(index + 1)
                .find(|(_, line)| {
                    let left = line.len() - line.trim_start().len() == indent;
                    left && (line.trim_start().starts_with('}') || line.ends_with(';'))
                })
                .map(|(end, _)| end)
        };
        if let Some(end) = end {
            found.push(Function {
                name: name.to_owned(),
                at: index + 1,
                lines: end - index + 1,
            });
        }
    }
    found
}

/// The name of the function that begins in this line.
fn named(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    loop {
        let word = words.next()?;
        if word == "fn" {
            break;
        }
        let before = ["const", "async", "unsafe", "extern", "\"C\"", "pub"];
        if !before.contains(&word) && !word.starts_with("pub(") {
            return None;
        }
    }
    let end = |c: char| !c.is_alphanumeric() && c != '_';
    words.next()?.split(end).next()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::check::Source;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree {
            source: Source::of(&[(path, text)]),
            metadata: Value::Null,
        };
        let found = check(&tree).expect("looked");
        let here = |finding: &Finding| finding.at.starts_with(path).then(|| finding.to_string());
        found.iter().filter_map(here).collect()
    }

    /// A function of 70 lines is found, one of 69 is not; a signature over many lines counts, and a
    /// method without a body ends there.
    #[test]
    fn a_long_function_is_found() {
        let function = |lines: usize| {
            let body = "        work();\n".repeat(lines - 4);
            format!(
                "trait T {{\n    fn bare(\n        a: u8,\n    ) -> u8;\n}}\nimpl S {{\n    \
                 pub(crate) const fn long<T>(\n        a: u8,\n    ) {{\n{body}    }}\n    fn one() {{}}\n}}\n"
            )
        };
        assert_eq!(found("a.rs", &function(69)), [""; 0]);
        assert_eq!(
            found("a.rs", &function(70)),
            ["a.rs:7: long has 70 lines; a function has fewer than 70"]
        );
    }

    /// A file of 1,000 lines is found, one of 999 is not, and prose may be as long as it likes.
    #[test]
    fn a_long_file_is_found() {
        assert_eq!(found("a.rs", &"//\n".repeat(999)), [""; 0]);
        assert_eq!(
            found("a.rs", &"//\n".repeat(1000)),
            ["a.rs: 1000 lines; a file has fewer than 1000"]
        );
        assert_eq!(found("docs/a.md", &"text\n".repeat(1000)), [""; 0]);
    }
}
