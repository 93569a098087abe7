//! Rules of the source tree that a compiler does not know.
//!
//! # Purpose
//! What the design says of dependencies, licences, sizes, unsafe code and documents stays true because
//! a test says when it is not: `cargo run -p xtask check` prints every finding, and the tests of this
//! module run the same checks over the tree that they were built from.
//!
//! # Model
//! A check is a function from the tree to [`Finding`]s. [`CHECKS`] is the one list of them; each has
//! its own module, and there a test that it can fail.

mod dependencies;
mod directions;
mod generated;
mod licences;
mod promises;
mod rooms;
mod shape;
mod sizes;
mod source;
mod words;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

pub use generated::write;
pub use source::Source;

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// A file, with its line where there is one, or a package.
    pub at: String,
    /// What is wrong with it.
    pub what: String,
}

impl Finding {
    fn of(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

/// What checks look at.
pub struct Tree {
    /// The files.
    pub source: Source,
    /// What `cargo metadata` says of the workspace and of everything in its lock file.
    pub metadata: Value,
}

impl Tree {
    /// Reads the tree under `root`.
    ///
    /// # Errors
    /// If a file cannot be read, or cargo fails.
    pub fn read(root: &Path) -> Result<Self> {
        Ok(Self {
            source: Source::read(root)?,
            metadata: metadata(root)?,
        })
    }
}

type Check = fn(&Tree) -> Result<Vec<Finding>>;

/// Every check: its name, and what it does.
pub const CHECKS: &[(&str, Check)] = &[
    ("directions of dependencies", directions::check),
    ("order of modules", rooms::check),
    ("licences", licences::check),
    ("list of dependencies", dependencies::check),
    ("sizes of files and functions", shape::check),
    ("sizes of crates", sizes::check),
    ("words and openings", words::check),
    ("promises and their tests", promises::check),
    ("generated files", generated::check),
];

/// Runs every check over the tree under `root`, prints what each found, and returns whether all is
/// good.
///
/// # Errors
/// If one of them could not look.
pub fn run(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let mut found = 0;
    for (name, check) in CHECKS {
        let findings = check(&tree).with_context(|| (*name).to_owned())?;
        let verdict = match findings.len() {
            0 => "good".to_owned(),
            count => format!("{count} found"),
        };
        println!("{name}: {verdict}");
        for finding in &findings {
            println!("  {finding}");
        }
        found += findings.len();
    }
    for line in sizes::told(&tree).into_iter().chain(promises::told(&tree)) {
        println!("  {line}");
    }
    Ok(found == 0)
}

/// What cargo says of everything in the lock file. Where packages for other targets cannot be fetched
/// (there is no network), of what is built here, and a line says so.
fn metadata(root: &Path) -> Result<Value> {
    let text = cargo_metadata(root, &[]).or_else(|error| {
        println!("note: only packages for x86-64 Linux are looked at: {error:#}");
        cargo_metadata(
            root,
            &["--offline", "--filter-platform", "x86_64-unknown-linux-gnu"],
        )
    })?;
    serde_json::from_slice(&text).context("what cargo metadata wrote")
}

fn cargo_metadata(root: &Path, more: &[&str]) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(more)
        .current_dir(root)
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(name: &str) {
        let root = crate::root().expect("root");
        let tree = Tree::read(root).expect("tree");
        let (_, check) = CHECKS
            .iter()
            .find(|(of, _)| *of == name)
            .expect("a check of that name");
        let findings = check(&tree).expect("the check ran");
        let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "{name}:\n{}", lines.join("\n"));
    }

    /// In this tree, dependencies point down, and HTTP, runtimes, terminals and logging stay on top.
    #[test]
    fn dependencies_point_down() {
        good("directions of dependencies");
    }

    /// Modules of the crates that say an order use no higher ones.
    #[test]
    fn modules_point_down() {
        good("order of modules");
    }

    /// Everything in the lock file has a licence that this project may ship with.
    #[test]
    fn licences_are_allowed() {
        good("licences");
    }

    /// docs/DEPENDENCIES.md names every direct dependency, and none that is gone.
    #[test]
    fn dependencies_are_listed() {
        good("list of dependencies");
    }

    /// No file and no function of this tree is too long.
    #[test]
    fn files_and_functions_are_short() {
        good("sizes of files and functions");
    }

    /// The crates of accelerated sockets are no larger than they may be.
    #[test]
    fn crates_stay_small() {
        good("sizes of crates");
    }

    /// No unfinished work is committed, unsafe code is where it may be, and crates explain themselves.
    #[test]
    fn words_and_openings_are_right() {
        good("words and openings");
    }

    /// What docs/sockets.md promises is shown by tests that there are.
    #[test]
    fn promises_are_shown() {
        good("promises and their tests");
    }

    /// What is generated is what would be generated now.
    #[test]
    fn generated_files_are_current() {
        good("generated files");
    }
}
