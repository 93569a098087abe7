//! A directory of status files of a test's own, programs in it, and the command.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use windlass_tests::{Output, program, run, skip};

/// Seconds that a command may take: far more than it does, and it has an end.
const COMMAND_S: &str = "60";
/// Compiled to keep frame pointers.
pub(crate) const WITH_POINTERS: &[&str] = &["-O1", "-fno-omit-frame-pointer"];
/// Compiled without them.
pub(crate) const WITHOUT_POINTERS: &[&str] = &["-O2", "-fomit-frame-pointer"];

/// Where a test's programs have their status files.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
    library: PathBuf,
    windlass: PathBuf,
}

impl Place {
    /// `None`, said aloud, where something is missing.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let windlass = program("windlass");
        let library = windlass.with_file_name("libwindlass_alloc.so");
        let missing = |tool: &str| Command::new(tool).arg("--version").output().is_err();
        if !library.exists() {
            skip(test, "libwindlass_alloc.so was not built beside windlass");
        } else if let Some(tool) = ["cc", "timeout", "gzip"]
            .into_iter()
            .find(|tool| missing(tool))
        {
            skip(test, &format!("{tool} is missing"));
        } else {
            return Some(Self {
                directory: TempDir::new().expect("a directory"),
                library,
                windlass,
            });
        }
        None
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What is preloaded.
    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// Where the status files are.
    pub(crate) fn files(&self) -> PathBuf {
        self.path("windlass/memory")
    }

    /// The status file of a process.
    pub(crate) fn file(&self, pid: u32) -> PathBuf {
        self.files().join(format!("{pid}.{}", started(pid)))
    }

    /// Compiles the program of `program.c`.
    pub(crate) fn compile(&self, flags: &[&str]) -> PathBuf {
        let binary = self.path(&format!("program{}", flags.concat()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory/program.c");
        let mut compiler = Command::new("cc");
        compiler.args(flags).arg("-o").arg(&binary).arg(source);
        let done = run(&mut compiler);
        assert_eq!(done.code, 0, "{}", done.err);
        binary
    }

    /// Starts the program on the allocator.
    pub(crate) fn start(&self, flags: &[&str]) -> Running {
        let mut command = Command::new(self.compile(flags));
        command.env("LD_PRELOAD", &self.library);
        self.start_as(command)
    }

    /// Starts a command whose status file lies here.
    pub(crate) fn start_as(&self, mut command: Command) -> Running {
        command
            .env_remove("WINDLASS_MEMORY")
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .current_dir(self.directory.path());
        Running::start(command)
    }

    /// `windlass memory`.
    pub(crate) fn memory(&self, words: &[&str]) -> Output {
        self.windlass(&[&["memory"], words].concat())
    }

    /// The command.
    pub(crate) fn windlass(&self, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", COMMAND_S]).arg(&self.windlass);
        command.args(words).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.directory.path());
        run(&mut command)
    }

    /// What it answers, which is no failure.
    pub(crate) fn rows(&self, words: &[&str]) -> Vec<Value> {
        let done = self.memory(&[words, &["--json"]].concat());
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{words:?}");
        let rows = serde_json::from_str(&done.out).expect("JSON");
        let Value::Array(rows) = rows else {
            panic!("{words:?}: {}", done.out)
        };
        rows
    }

    /// The row of a process in the list of all.
    pub(crate) fn listed(&self, pid: u32) -> Option<Value> {
        let rows = self.rows(&[]);
        rows.into_iter().find(|row| row["pid"] == pid)
    }
}

/// When a process started, as the names of status files have it.
pub(crate) fn started(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let field = rest.split_whitespace().nth(19).expect("field 22");
    field.parse().expect("a number")
}

/// A program that does what it is told.
pub(crate) struct Running {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            child,
            input,
            lines,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The number of whoever answers, and the words of the answer.
    pub(crate) fn say(&mut self, words: &str) -> (u32, Vec<String>) {
        self.tell(words);
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        let mut words = line.split_whitespace().map(str::to_owned);
        let pid = words.next().and_then(|pid| pid.parse().ok());
        (pid.expect("a number"), words.collect())
    }

    /// Says something that is not answered.
    pub(crate) fn tell(&mut self, words: &str) {
        self.input
            .write_all(format!("{words}\n").as_bytes())
            .expect("it reads");
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
