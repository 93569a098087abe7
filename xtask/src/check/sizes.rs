//! How large the parts of accelerated sockets are, and how large they may be.
//!
//! # Model
//! Lines of Rust under a crate's `src`, blank ones and comments included. Size is a cost: a limit is raised only in the
//! open, by a change of [`LIMITS`].

use anyhow::Result;

use super::{Finding, Tree};

/// A crate's directory, and how many lines its `src` may have.
const LIMITS: &[(&str, usize)] = &[
    ("crates/programs/preload", 11_996),
    ("crates/io/channel", 6_500),
    ("crates/programs/broker", 3_733),
];

/// Lines under the `src` of the crate in `directory`.
fn lines(tree: &Tree, directory: &str) -> usize {
    let under = format!("{directory}/src/");
    let files = tree
        .source
        .rust()
        .filter(|file| file.path.starts_with(&under));
    files.map(|file| file.text.lines().count()).sum()
}

/// What `make check` shows of each crate.
pub(super) fn told(tree: &Tree) -> Vec<String> {
    let line = |(directory, limit): &(&str, usize)| {
        format!(
            "{directory}: {} lines of at most {limit}",
            lines(tree, directory)
        )
    };
    LIMITS.iter().map(line).collect()
}

/// Every crate that is larger than its limit, or is not there any more.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let finding = |(directory, limit): &(&str, usize)| match lines(tree, directory) {
        0 => Some(Finding::of(*directory, "has a limit and no source")),
        found if found > *limit => {
            let what = format!("{found} lines; at most {limit}");
            Some(Finding::of(*directory, what))
        }
        _ => None,
    };
    Ok(LIMITS.iter().filter_map(finding).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::check::Source;

    /// A crate above its limit is found, and so is one that is gone.
    #[test]
    fn a_crate_that_grows_is_found() {
        let long = "//\n".repeat(LIMITS[0].1 + 1);
        let tree = Tree {
            source: Source::of(&[
                ("crates/programs/preload/src/lib.rs", &long),
                ("crates/io/channel/src/lib.rs", "//\n"),
            ]),
            metadata: Value::Null,
        };
        let found = check(&tree).expect("it looks");
        let at: Vec<_> = found.iter().map(|finding| finding.at.as_str()).collect();
        assert_eq!(at, ["crates/programs/preload", "crates/programs/broker"]);
        assert!(told(&tree)[1].starts_with("crates/io/channel: 1 lines"));
    }
}
