//! Programs that know the answer: compiled by the compilers of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use windlass_target::Debug;
use windlass_types::Types;

/// A directory of programs, removed with the test.
pub struct Fixtures(tempfile::TempDir);

impl Fixtures {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Compiles a fixture; `None`, and a line, if this machine has no such compiler.
    pub fn build(&self, compiler: &str, arguments: &[&str], source: &str) -> Option<PathBuf> {
        let out = self
            .0
            .path()
            .join(format!("{compiler}{}", arguments.concat()).replace('/', "_"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(source);
        let done = Command::new(compiler)
            .args(arguments)
            .arg(&source)
            .arg("-o")
            .arg(&out)
            // clang writes split units here.
            .current_dir(self.0.path())
            .output();
        match done {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                skip(&format!("{compiler} is not installed"));
                None
            }
            done => {
                let done = done.expect("started");
                let why = String::from_utf8_lossy(&done.stderr);
                assert!(done.status.success(), "{compiler} {arguments:?}: {why}");
                Some(out)
            }
        }
    }
}

/// What a program prints.
pub fn output(program: &Path) -> String {
    let done = Command::new(program).output().expect("started");
    String::from_utf8(done.stdout).expect("text")
}

pub fn debug(program: &Path) -> Debug {
    Debug::of_file(program).expect("an ELF file")
}

pub fn types(debug: &Debug) -> Types<'_> {
    debug.types()
}

/// Says why a part of the test that runs is left out.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    println!("skipped: {}: {reason}", thread.name().unwrap_or("a test"));
}
