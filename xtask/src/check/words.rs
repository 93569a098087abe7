//! Words that are not committed, long cells of tables, unsafe code, and how crates open.

use anyhow::Result;

use super::source::File;
use super::{Finding, Tree};

/// Unfinished work, as people mark it. In two parts, so that this file does not hold them.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// The same in code, with what stands in its place.
const UNFINISHED_CODE: &[(&str, &str)] = &[
    (concat!("to", "do!("), "write it"),
    (concat!("unimple", "mented!("), "write it"),
    (concat!("db", "g!("), "a debugging aid"),
    (concat!("#[ig", "nore]"), "say which test runs it"),
    (
        concat!("#[ig", "nore ="),
        "a test that cannot run says \"skipped: NAME: REASON\"",
    ),
];

/// What another test starts in a process of its own is marked so, and is no test by itself.
const STARTED: &str = concat!("#[ig", "nore = \"run by ");

/// Crates that may hold unsafe code: the only ones that touch memory of others and the kernel.
const UNSAFE: &[&str] = &[
    "crates/base/shm",
    "crates/base/sync",
    "crates/base/sys",
    "crates/io/attach",
    "crates/io/channel",
    "crates/programs/alloc",
    "crates/programs/framed",
    "crates/programs/preload",
];

/// A crate with more lines than this opens with a theory statement.
const SMALL_CRATE_LINES: usize = 200;

/// A theory statement has at least this many lines.
const THEORY_LINES: usize = 10;

/// Words that a cell of a table may have: more are a paragraph.
const CELL_WORDS: usize = 40;

/// Every word that should not be there, every long cell, every crate that does not forbid unsafe code, and every one
/// that does not explain itself.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in &tree.source.files {
        unfinished(file, &mut findings);
        if file.path.ends_with(".md") {
            long_cells(file, &mut findings);
        }
    }
    let manifests = tree.source.files.iter().filter_map(|file| {
        let directory = file.path.strip_suffix("/Cargo.toml")?;
        (directory != "fuzz").then_some(directory)
    });
    for directory in manifests {
        opening(tree, directory, &mut findings);
    }
    Ok(findings)
}

fn unfinished(file: &File, findings: &mut Vec<Finding>) {
    let code = file.path.ends_with(".rs");
    for (number, line) in file.text.lines().enumerate() {
        let mut find = |word: &str, what: &str| {
            let at = format!("{}:{}", file.path, number + 1);
            findings.push(Finding::of(at, format!("{word}: {what}")));
        };
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        for word in UNFINISHED {
            if line.split(|c| !is_word(c)).any(|found| found == *word) {
                find(word, "finish it, or say what is missing in a sentence");
            }
        }
        for (word, instead) in UNFINISHED_CODE {
            if code && line.contains(word) && !line.contains(STARTED) {
                find(word, instead);
            }
        }
    }
}

fn long_cells(file: &File, findings: &mut Vec<Finding>) {
    let rows = file.text.lines().enumerate();
    for (number, row) in rows.filter(|(_, line)| line.starts_with('|')) {
        // A comment is no part of what is read.
        let words = |cell: &str| {
            cell.split("<!--")
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .count()
        };
        let longest = row.split('|').map(words).max();
        if let Some(words) = longest.filter(|&words| words > CELL_WORDS) {
            let at = format!("{}:{}", file.path, number + 1);
            let what = format!(
                "a cell of {words} words, of at most {CELL_WORDS}: split it, or write it below the table"
            );
            findings.push(Finding::of(at, what));
        }
    }
}

fn opening(tree: &Tree, directory: &str, findings: &mut Vec<Finding>) {
    let of = |file: &&File| file.path.starts_with(&format!("{directory}/src/"));
    let lines: usize = tree
        .source
        .rust()
        .filter(of)
        .map(|file| file.text.lines().count())
        .sum();
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| format!("{directory}/{root}"));
    let mut explained = false;
    for file in tree.source.rust().filter(|file| is_root(file, directory)) {
        let forbids = file.text.contains("#![forbid(unsafe_code)]");
        if !forbids && !UNSAFE.contains(&directory) {
            findings.push(Finding::of(
                &file.path,
                "#![forbid(unsafe_code)] is missing",
            ));
        }
        let theory = theory_lines(&file.text);
        explained |= roots.contains(&file.path) && theory >= THEORY_LINES;
    }
    if lines > SMALL_CRATE_LINES && !explained {
        let what = format!("does not open with a theory statement of {THEORY_LINES} lines");
        findings.push(Finding::of(directory, what));
    }
}

/// Lines of the first block of documentation of the file itself, which only attributes precede.
fn theory_lines(text: &str) -> usize {
    let is_theory = |line: &&str| line.starts_with("//!");
    let code = |line: &&str| {
        ["use ", "mod ", "pub ", "fn "]
            .iter()
            .any(|word| line.starts_with(word))
    };
    text.lines()
        .take_while(|line| !code(line))
        .skip_while(|line| !is_theory(line))
        .take_while(is_theory)
        .count()
}

/// Whether a crate begins with this file: its library, its program, or one of its further programs.
fn is_root(file: &File, directory: &str) -> bool {
    let Some(path) = file.path.strip_prefix(directory) else {
        return false;
    };
    let program = path
        .strip_prefix("/src/bin/")
        .is_some_and(|name| !name.contains('/'));
    program || path == "/src/lib.rs" || path == "/src/main.rs"
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::check::Source;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree {
            source: Source::of(files),
            metadata: Value::Null,
        };
        let found = check(&tree).expect("looked");
        found.iter().map(Finding::to_string).collect()
    }

    /// Marks of unfinished work are found in code and prose, as words and not as parts of words.
    #[test]
    fn unfinished_work_is_found() {
        let mark = UNFINISHED.first().expect("a word");
        let code = UNFINISHED_CODE.first().expect("a word").0;
        let text = format!("fine\n// {mark}: later\nlet {mark}S = {code});\n");
        let started = format!("{STARTED}another_test\"]\n");
        let found = found(&[
            ("a.rs", &text),
            ("b.rs", &started),
            ("docs/a.md", &format!("{mark}.\n{code})")),
        ]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("a.rs:2: "), "{found:?}");
        assert!(found[1].starts_with("a.rs:3: "), "{found:?}");
        assert!(found[2].starts_with("docs/a.md:1: "), "{found:?}");
    }

    /// A crate, and a further program of it, that does not forbid unsafe code is found, unless it is
    /// one of those that may hold it.
    #[test]
    fn unsafe_code_has_its_places() {
        let found = found(&[
            ("crates/base/sys/Cargo.toml", ""),
            ("crates/base/sys/src/lib.rs", "//! Calls.\n"),
            ("bench/Cargo.toml", ""),
            ("bench/src/lib.rs", "#![forbid(unsafe_code)]\n"),
            ("bench/src/bin/tool.rs", "fn main() {}\n"),
            ("bench/src/part.rs", "\n"),
        ]);
        assert_eq!(
            found,
            ["bench/src/bin/tool.rs: #![forbid(unsafe_code)] is missing"]
        );
    }

    /// A crate of more than 200 lines without a theory statement is found; a small one need not have
    /// one, and a program may leave it to its library.
    #[test]
    fn a_crate_explains_itself() {
        let forbid = "#![forbid(unsafe_code)]\n";
        let long = "\n".repeat(200);
        let theory = "//! Words.\n".repeat(10) + forbid;
        let found = found(&[
            ("tests/Cargo.toml", ""),
            ("tests/src/lib.rs", forbid),
            ("xtask/Cargo.toml", ""),
            ("xtask/src/main.rs", forbid),
            ("xtask/src/long.rs", &long),
            ("bench/Cargo.toml", ""),
            ("bench/src/lib.rs", &theory),
            ("bench/src/main.rs", forbid),
            ("bench/src/long.rs", &long),
            ("crates/base/wire/Cargo.toml", ""),
            (
                "crates/base/wire/src/lib.rs",
                &format!("{forbid}{theory}{long}"),
            ),
        ]);
        assert_eq!(
            found,
            ["xtask: does not open with a theory statement of 10 lines"]
        );
    }

    /// A cell of 41 words is found, with its place; one of 40, and a long line that is no row, are not.
    #[test]
    fn long_cells_are_found() {
        let of = |words| ["word"; 60][..words].join(" ");
        let page = format!("{}\n| a | {} |\n| {} | b |\n", of(60), of(40), of(41));
        let found = found(&[("docs/page.md", &page)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("docs/page.md:3"), "{found:?}");
    }
}
