//! The files of the tree.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Directories, from the root, that hold what people wrote.
const WRITTEN: &[&str] = &[
    ".ci", "bench", "crates", "dist", "docs", "fuzz", "scripts", "tests", "xtask",
];

/// Names of directories that hold what programs wrote, or inputs of tests.
const PASSED_OVER: &[&str] = &["target", "corpus", "artifacts", "proptest-regressions"];

/// A text file of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path from the root, with `/`.
    pub path: String,
    /// What it says.
    pub text: String,
}

/// Every text file that people wrote.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Where the tree lies.
    pub root: PathBuf,
    /// The files, by path.
    pub files: Vec<File>,
}

impl Source {
    /// Reads the files under `root`; what is not UTF-8 is left out.
    ///
    /// # Errors
    /// If a directory or a file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut source = Self {
            root: root.to_owned(),
            files: Vec::new(),
        };
        for dir in WRITTEN {
            source.walk(&root.join(dir))?;
        }
        for entry in fs::read_dir(root)? {
            let path = entry?.path();
            if path.is_file() {
                source.file(&path)?;
            }
        }
        source.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(source)
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// The text of the file at `path`.
    pub fn text(&self, path: &str) -> Option<&str> {
        let file = self.files.iter().find(|file| file.path == path)?;
        Some(&file.text)
    }

    fn walk(&mut self, dir: &Path) -> Result<()> {
        if !dir.is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            let passed = PASSED_OVER.iter().any(|word| name == *word);
            if kind.is_dir() && !passed {
                self.walk(&entry.path())?;
            } else if kind.is_file() {
                self.file(&entry.path())?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        let name = path.strip_prefix(&self.root)?.display().to_string();
        if let Ok(text) = String::from_utf8(bytes) {
            self.files.push(File { path: name, text });
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        });
        Self {
            root: PathBuf::new(),
            files: files.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files are found by their paths from the root, and what programs wrote is passed over.
    #[test]
    fn what_people_wrote_is_read() {
        let root = std::env::temp_dir().join(format!("windlass-source-{}", std::process::id()));
        for dir in ["crates/a/src", "crates/a/target", "other"] {
            fs::create_dir_all(root.join(dir)).expect("directory");
        }
        for path in [
            "Cargo.toml",
            "crates/a/src/lib.rs",
            "crates/a/target/x.rs",
            "other/y.rs",
        ] {
            fs::write(root.join(path), "text").expect("file");
        }
        fs::write(root.join("crates/a/src/image"), [0xff, 0xfe]).expect("file");
        let source = Source::read(&root).expect("tree");
        let paths: Vec<_> = source.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["Cargo.toml", "crates/a/src/lib.rs"]);
        assert_eq!(source.rust().count(), 1);
        assert_eq!(source.text("Cargo.toml"), Some("text"));
        fs::remove_dir_all(&root).expect("directory");
    }
}
