//! Manual pages and shell completions, made from the command lines and the tables of the programs.
//!
//! # Purpose
//! What a manual says of an option, a property, a field or a reason cannot differ from what the program
//! does, because both are read from one place.
//!
//! # Model
//! [`all`] makes every page in memory. [`write()`] puts them under `man/` and `completions/`, where they are
//! checked in, so that an installation needs no generator; [`check`] says which of them are stale.

pub(crate) mod allocator;
mod caches;
mod completions;
mod documents;
mod examples;
mod library;
mod manual;
mod roff;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where it lies, from the root of the source tree.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// Every page, in order of paths.
///
/// # Errors
/// If a page cannot be made, which is a mistake in a command line.
pub fn all() -> Result<Vec<Page>> {
    let mut pages = manual::pages()?;
    pages.extend(documents::pages());
    pages.push(allocator::page());
    pages.extend(library::pages());
    pages.push(caches::page());
    pages.extend(completions::pages()?);
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(pages)
}

/// Writes every page under the root of the source tree, and removes those that are no longer made.
///
/// # Errors
/// If a file cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let pages = all()?;
    for path in stray(root, &pages)? {
        fs::remove_file(root.join(&path)).with_context(|| path.display().to_string())?;
    }
    for page in &pages {
        let path = root.join(&page.path);
        let dir = path.parent().context("a page lies in a directory")?;
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        fs::write(&path, &page.text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Checks that every page under the root of the source tree is as it would be made now.
///
/// # Errors
/// With the names of those that are missing, differ, or are there without a reason.
pub fn check(root: &Path) -> Result<()> {
    let pages = all()?;
    let mut stale = stray(root, &pages)?;
    for page in pages {
        if fs::read_to_string(root.join(&page.path)).ok().as_ref() != Some(&page.text) {
            stale.push(page.path);
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = stale
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    bail!(
        "stale: {}; run \"cargo run -p xtask pages\"",
        names.join(", ")
    )
}

/// Files among the pages that nobody makes.
fn stray(root: &Path, pages: &[Page]) -> Result<Vec<PathBuf>> {
    let mut stray = Vec::new();
    for dir in ["man", "completions"] {
        let Ok(entries) = fs::read_dir(root.join(dir)) else {
            continue;
        };
        for entry in entries {
            let path = Path::new(dir).join(entry?.file_name());
            if !pages.iter().any(|page| page.path == path) {
                stray.push(path);
            }
        }
    }
    Ok(stray)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// mandoc(1) finds nothing to warn of.
    #[test]
    fn mandoc_accepts_the_pages() {
        let root = std::env::temp_dir().join(format!("windlass-mandoc-{}", std::process::id()));
        write(&root).expect("pages");
        let pages = fs::read_dir(root.join("man")).expect("a directory");
        let pages = pages.map(|page| page.expect("a page").path());
        let lint = Command::new("mandoc")
            .args(["-T", "lint", "-W", "warning"])
            .args(pages)
            .output();
        fs::remove_dir_all(&root).expect("directory");
        let Ok(lint) = lint else {
            println!("skipped: mandoc_accepts_the_pages: mandoc is missing");
            return;
        };
        let said = String::from_utf8_lossy(&lint.stdout);
        assert!(lint.status.success(), "{said}");
    }

    /// What was written is found good; what was changed, removed or added by hand is named.
    #[test]
    fn stale_pages_are_found() {
        let root = std::env::temp_dir().join(format!("windlass-pages-{}", std::process::id()));
        write(&root).expect("pages");
        check(&root).expect("as written");
        let page = root.join("man/windlass-vnic.8");
        fs::write(&page, "old").expect("file");
        fs::write(root.join("man/stray.8"), "").expect("file");
        fs::remove_file(root.join("completions/windlass.fish")).expect("file");
        let error = check(&root).expect_err("stale").to_string();
        for name in [
            "man/windlass-vnic.8",
            "man/stray.8",
            "completions/windlass.fish",
        ] {
            assert!(error.contains(name), "{error}");
        }
        assert!(!error.contains("windlassd.8"), "{error}");
        write(&root).expect("pages");
        check(&root).expect("written again");
        fs::remove_dir_all(&root).expect("directory");
    }
}
