//! Programs that are compiled here, and run under the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The signal of abort(3).
pub const ABORTED: i32 = 6;

/// The library.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    // Beside the test, not above it: `cargo test` builds it there only.
    let library = test.with_file_name("libwindlass_alloc.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// A path of its own.
pub fn scratch(name: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alloc");
    fs::create_dir_all(&place).expect("a directory for programs");
    place.join(format!("{name}-{}-{number}", std::process::id()))
}

/// Whether a program is there; says so if not.
pub fn is_installed(test: &str, program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {test}: {program} is not installed");
    }
    found
}

/// Compiles a source of `programs` with this compiler; the binary's path.
pub fn compile(compiler: &str, source: &str) -> PathBuf {
    compile_with(compiler, source, &[])
}

/// The same with options behind the source.
pub fn compile_with(compiler: &str, source: &str, options: &[String]) -> PathBuf {
    let binary = scratch(source);
    let status = Command::new(compiler)
        .args(["-w", "-O1", "-pthread", "-o"])
        .arg(&binary)
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/programs")
                .join(source),
        )
        .args(options)
        .status()
        .expect("a compiler");
    assert!(status.success(), "{source} does not compile");
    binary
}

/// Compiles a source that calls the library's own functions, and is linked with it.
pub fn compile_linked(source: &str) -> PathBuf {
    let path = |option: &str, path: &Path| format!("{option}{}", path.display());
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let directory = library().with_file_name("");
    let options = [
        path("-I", &include),
        path("-L", &directory),
        path("-Wl,-rpath,", &directory),
        "-lwindlass_alloc".into(),
    ];
    compile_with("cc", source, &options)
}

/// Runs a command, with the library or without.
pub fn output(mut command: Command, preload: bool) -> Output {
    command.stdin(Stdio::null());
    if preload {
        command.env("LD_PRELOAD", library());
    }
    command.output().expect("the program starts")
}

/// What it printed: stdout, then stderr.
pub fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// A program with arguments.
pub fn script(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
