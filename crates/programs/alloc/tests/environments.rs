//! Narrow places: seccomp filters, programs with rights that their caller has not, no descriptors, locked memory, vfork.

#[allow(dead_code, reason = "not all of it is used here")]
mod harness;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use harness::*;

/// The signal of a filter that kills.
const BAD_CALL: i32 = 31;
/// Exit status: the kernel refuses filters.
const NO_FILTERS: i32 = 77;
/// A user without rights.
const NOBODY: u32 = 65_534;

/// The program of `programs/environments.c`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("cc", "environments.c"))
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments);
    output(command, true)
}

/// It ran to its end.
fn passes(arguments: &[&str]) {
    let output = run(arguments);
    assert_eq!(
        text(&output),
        "done\n",
        "{arguments:?}: {:?}",
        output.status
    );
    assert!(
        output.status.success(),
        "{arguments:?}: {:?}",
        output.status
    );
}

/// Calls of the manual's table: those that every program makes, then those of a forked child alone.
fn manual() -> (Vec<String>, Vec<String>) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/memory.md");
    let page = fs::read_to_string(page).expect("the manual");
    let mark = "<!-- system_calls_are_those_of_the_manual -->\n";
    let (_, table) = page.split_once(mark).expect("a table of calls");
    let (mut always, mut child) = (Vec::new(), Vec::new());
    for line in table.lines().skip(2).take_while(|line| !line.is_empty()) {
        let cells: Vec<_> = line.split('|').collect();
        let names = cells[1].split('`').skip(1).step_by(2).map(str::to_owned);
        let to = match cells[2].contains("forked child") {
            true => &mut child,
            false => &mut always,
        };
        to.extend(names);
    }
    // The program's own.
    always.retain(|name| name != "write");
    (always, child)
}

/// With a filter that kills at any call that is not in the manual's table a program runs to its end, and so does a forked child. Without any
/// one of those that this program is sure to need it does not: the table has none too many.
#[test]
fn system_calls_are_those_of_the_manual() {
    let (always, child) = manual();
    let with = |what: &'static str, names: &[&String]| {
        let names = names.iter().map(|name| name.as_str());
        run(&[what].into_iter().chain(names).collect::<Vec<_>>())
    };
    let all: Vec<_> = always.iter().collect();
    let first = with("killed", &all);
    if first.status.code() == Some(NO_FILTERS) {
        println!("skipped: system_calls_are_those_of_the_manual: no seccomp filters");
        return;
    }
    assert_eq!(text(&first), "done\n", "{:?}", first.status);
    assert!(first.status.success(), "{:?}", first.status);
    let both: Vec<_> = always.iter().chain(&child).collect();
    let forked = with("killed-child", &both);
    assert_eq!(text(&forked), "done\n", "{:?}", forked.status);
    assert!(forked.status.success(), "{:?}", forked.status);
    let lacking = |what: &'static str, names: &[&String], missing: &str| {
        let names: Vec<_> = names
            .iter()
            .copied()
            .filter(|name| *name != missing)
            .collect();
        with(what, &names).status.signal()
    };
    // No thread waits here, and the vDSO knows the time.
    for missing in always
        .iter()
        .filter(|name| !["futex", "clock_gettime"].contains(&name.as_str()))
    {
        assert_eq!(
            lacking("killed", &all, missing),
            Some(BAD_CALL),
            "{missing}"
        );
    }
    // Directories that are there are not made, and processes that live are not looked at again.
    for missing in child
        .iter()
        .filter(|name| !["mkdirat", "kill"].contains(&name.as_str()))
    {
        assert_eq!(
            lacking("killed-child", &both, missing),
            Some(BAD_CALL),
            "{missing}"
        );
    }
}

/// A filter that refuses every call leaves what is usable, then NULL and ENOMEM; in a forked child, too.
#[test]
fn refused_calls_are_no_memory() {
    for what in ["refused", "refused-child"] {
        if run(&[what]).status.code() == Some(NO_FILTERS) {
            println!("skipped: refused_calls_are_no_memory: no seccomp filters");
            return;
        }
        passes(&[what]);
    }
}

/// What a vfork's child allocates is its parent's, beside a thread that allocates.
#[test]
fn a_borrowed_heap_is_the_parents() {
    passes(&["borrows"]);
}

/// Without a descriptor to open, from the start or later, in parent and child; and with none of the first three, which the program gets then.
#[test]
fn descriptors_are_not_needed() {
    passes(&["no-files"]);
    let line = |shell: &str, arguments: &str| {
        let line = format!(
            "{shell}; LD_PRELOAD={} exec {} {arguments}",
            library().display(),
            program().display()
        );
        output(script("bash", &["-c", &line]), false)
    };
    // The loader itself needs one.
    let few = line("ulimit -n 4", "work");
    assert_eq!(text(&few), "done\n", "{:?}", few.status);
    let place = scratch("closed");
    let closed = line(
        "exec 0<&- 1>&- 2>&-",
        &format!("to-file {}", place.display()),
    );
    assert!(closed.status.success(), "{:?}", closed.status);
    assert_eq!(fs::read_to_string(&place).expect("its file"), "done\n");
    fs::remove_file(&place).expect("it was made");
}

/// With everything locked memory still goes back, and what comes again reads as zeros.
#[test]
fn locked_programs_run() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: locked_programs_run: needs root");
        return;
    }
    passes(&["locks"]);
}

/// Whether a process has left a status file where there is no runtime directory, as root's or as that user's.
fn has_file(pid: u32) -> bool {
    let start = format!("{pid}.");
    let is_its = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&start);
    let bases = windlass_memory::BASES;
    let places = bases
        .iter()
        .flat_map(|base| [0, NOBODY].map(|uid| PathBuf::from(format!("{base}{uid}/memory"))));
    places
        .filter_map(|place| fs::read_dir(place).ok())
        .any(|entries| entries.flatten().any(|entry| is_its(&entry)))
}

/// Nobody chooses what a program with other rights than his own does: no option of the environment is read, and no status file is made where he
/// says, or elsewhere.
#[test]
fn privileged_programs_take_no_options() {
    let name = "privileged_programs_take_no_options";
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: {name}: needs root");
        return;
    }
    let place = std::env::temp_dir().join(format!("windlass-test-secure-{}", std::process::id()));
    let runtime = place.join("runtime");
    fs::create_dir_all(&runtime).expect("a directory");
    chown(&runtime, Some(NOBODY), Some(NOBODY)).expect("root may");
    let mode = |path: &Path, bits| fs::set_permissions(path, PermissionsExt::from_mode(bits));
    mode(&place, 0o755).expect("root may");
    mode(&runtime, 0o700).expect("root may");
    fs::copy(library(), place.join("libwindlass_alloc.so")).expect("a copy");
    let linked = [
        format!("-L{}", place.display()),
        "-lwindlass_alloc".into(),
        format!("-Wl,-rpath,{}", place.display()),
    ];
    let binary = place.join("program");
    // Not by this process: another test's child would have the copy open for writing, and nobody could run it.
    let mut copy = Command::new("cp");
    let copy = copy
        .arg(compile_with("cc", "environments.c", &linked))
        .arg(&binary);
    assert!(copy.status().expect("cp").success());
    let run = |bits| {
        mode(&binary, bits).expect("root may");
        let mut command = Command::new(&binary);
        command
            .arg("stranger")
            .current_dir("/")
            .env_clear()
            .uid(NOBODY)
            .gid(NOBODY);
        command.env("XDG_RUNTIME_DIR", &runtime);
        for variable in windlass_memory::options::VARIABLES {
            command.env(variable, "unknown-free=ignore,noabort");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().expect("it starts");
        let pid = child.id();
        (pid, child.wait_with_output().expect("it ends"))
    };
    let (_, plain) = run(0o755);
    assert_eq!(text(&plain), "plain\ndone\n");
    assert!(runtime.join("windlass").exists());
    fs::remove_dir_all(runtime.join("windlass")).expect("it was made");
    let (pid, secure) = run(0o4755);
    let said = text(&secure);
    let left = has_file(pid);
    let has_runtime = runtime.join("windlass").exists();
    fs::remove_dir_all(&place).expect("it was made");
    if said.starts_with("plain") {
        println!("skipped: {name}: programs get no rights of their own here (nosuid)");
        return;
    }
    assert!(said.starts_with("secure\nwindlass: free(0x"), "{said}");
    assert!(said.ends_with("): nothing is allocated there\n"), "{said}");
    assert_eq!(secure.status.signal(), Some(ABORTED));
    assert!(!left && !has_runtime);
}
