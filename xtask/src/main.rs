//! Checks of the source tree, and the files that are made from the code.
//!
//! # Purpose
//! What a reviewer would otherwise have to look for by hand is looked for here, in every run of the
//! tests: [`check`] holds the rules. What would otherwise be written twice, in the code and in a
//! document, is written once and made from there: [`pages`] and [`check::write`].
//!
//! # Model
//! ```text
//! cargo run -p xtask check            every rule; names what breaks one
//! cargo run -p xtask generate         manual pages, completions, schemas, tables in the guides
//! cargo run -p xtask pages [--check]  manual pages and completions alone
//! cargo run -p xtask types FULL FILE  FILE.types: the types of FULL, which FILE was stripped from
//! ```
#![forbid(unsafe_code)]

mod check;
mod pages;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// Checks of the source tree and generated files.
#[derive(Debug, Parser)]
enum Task {
    /// Check dependencies, licences, sizes, words and generated files.
    Check,
    /// Make every generated file.
    Generate,
    /// Make the manual pages and completions.
    Pages {
        /// Change nothing, and fail if one of them is stale.
        #[arg(long)]
        check: bool,
    },
    /// Write the type file of an installed program beside it.
    Types {
        /// The program with full debug information.
        full: PathBuf,
        /// The same file, stripped, as it is installed.
        installed: PathBuf,
    },
}

/// Where the source tree lies that this program was built from.
fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the tree")
}

fn main() -> Result<ExitCode> {
    let root = root()?;
    match Task::parse() {
        Task::Check if !check::run(root)? => return Ok(ExitCode::FAILURE),
        Task::Check => {}
        Task::Generate => check::write(root)?,
        Task::Pages { check: true } => pages::check(root)?,
        Task::Pages { check: false } => pages::write(root)?,
        Task::Types { full, installed } => {
            let bytes = windlass_target::debug::type_file(&full, &installed)?;
            let mut name = installed.into_os_string();
            name.push(".types");
            std::fs::write(&name, bytes).with_context(|| format!("writing {}", name.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
