//! `windlass run`: becomes a program whose sockets are accelerated.
//!
//! # Model
//! The environment names the preload library and what it is told, then the process executes the program: its id, its
//! signal mask and dispositions, its streams and its exit status are the program's own. Where no broker listens,
//! `windlass-broker` is started for this user first, and the program once that listens: a short one has no time to ask
//! twice. The summary of `-v` comes from the library, in each process as it ends: a parent that waits
//! for the program would change its process id, its parent and its job control.
//!
//! # Failure modes
//! As env(1) and a shell: 127 if the program is not found, 126 if it cannot be executed. A broker that cannot be
//! started costs acceleration, never the program; `-v` says why. A program that cannot be accelerated ([`crate::program`])
//! runs after a warning.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::DirBuilder;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use windlass_api::ErrorCode;
use windlass_client::socket::{check_private, fallback_dir};
use windlass_sys::process;
use windlass_sys::unix::{self, SocketKind};

use crate::Session;
use crate::failure::Failure;
use crate::options::RunArgs;
use crate::program::Program;
use crate::table::{Chosen, Form, clean};

/// File name of the preload library.
pub const LIBRARY: &str = "libwindlass_sockets.so";
/// File name of the allocator.
pub const ALLOCATOR: &str = "libwindlass_alloc.so";
/// Where a package puts them.
const LIBRARY_DIR: &str = "/usr/lib/windlass";
/// File name of the broker's program.
const BROKER: &str = "windlass-broker";
/// How long the program waits for a broker that was started: after that it goes on without.
const BROKER_STARTS_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether the broker listens.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Exit code for a program that is not found, as of env(1).
pub(crate) const NOT_FOUND: u8 = 127;
/// Exit code for a program that cannot be executed, as of env(1).
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// Becomes the program.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let mut libraries = vec![library(LIBRARY, args.library.as_deref())?];
    if args.alloc {
        let beside = args
            .library
            .as_ref()
            .map(|path| path.with_file_name(ALLOCATOR));
        libraries.push(library(ALLOCATOR, beside.as_deref())?);
    }
    let say = |line: String| {
        // If nobody reads it there is nothing to be done about that.
        let _ = writeln!(std::io::stderr().lock(), "windlass: {}", clean(&line));
    };
    if let Ok(program) = Program::of(&args.command)
        && let Some(obstacle) = program.obstacle
    {
        let (file, why) = (program.runs.display(), obstacle.text());
        say(format!("warning: {file} is not accelerated: {why}"));
    }
    let broker = broker();
    if args.verbose {
        for library in &libraries {
            say(format!("library {}", library.display()));
        }
        say(broker.unwrap_or_else(|why| format!("no broker, so nothing is accelerated: {why}")));
    }
    let environment = environment(args, &libraries, std::env::vars_os());
    let program: Vec<&OsStr> = args.command.iter().map(OsString::as_os_str).collect();
    let Err(errno) = process::become_program(&program, &environment);
    let name = program
        .first()
        .copied()
        .unwrap_or_default()
        .to_string_lossy();
    let (code, status) = match errno {
        windlass_sys::Errno::NOENT => (ErrorCode::NotFound, NOT_FOUND),
        _ => (ErrorCode::Host, NOT_EXECUTABLE),
    };
    Err(Failure::new(code, format!("run {name}"), errno.to_string(), "").with_status(status))
}

/// Says whether the program can be accelerated; an error if it cannot.
pub(crate) fn check(session: &mut Session<'_>, args: &RunArgs) -> Result<(), Failure> {
    let name = args.command.first().map(|name| name.to_string_lossy());
    let what = format!("accelerate {}", name.unwrap_or_default());
    let program = Program::of(&args.command).map_err(|error| {
        let (code, status) = match error.kind() {
            ErrorKind::NotFound => (ErrorCode::NotFound, NOT_FOUND),
            _ => (ErrorCode::Host, NOT_EXECUTABLE),
        };
        Failure::new(code, &what, error.to_string(), "").with_status(status)
    })?;
    let (file, runs) = (
        program.file.display().to_string(),
        program.runs.display().to_string(),
    );
    let by = if file == runs {
        String::new()
    } else {
        format!(" runs {runs}, which")
    };
    if let Some(obstacle) = program.obstacle {
        let why = if by.is_empty() {
            obstacle.text().to_owned()
        } else {
            format!("it is run by {runs}: {}", obstacle.text())
        };
        let todo = "\"windlass run\" runs it all the same, on the kernel's sockets";
        return Err(Failure::new(ErrorCode::Unsupported, what, why, todo));
    }
    match session.form {
        Form::Json => session.rows(&[json!({"file": file, "runs": runs})], &Chosen::new()),
        _ => Ok(writeln!(
            session.out,
            "{}",
            clean(&format!("{file}{by} can be accelerated"))
        )?),
    }
}

/// A library: the one that was given, else beside this program, in `../lib/windlass`, or where packages put it.
fn library(name: &str, given: Option<&Path>) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().unwrap_or_default();
    let candidates: Vec<PathBuf> = match given {
        Some(path) => vec![std::path::absolute(path).unwrap_or_else(|_| path.into())],
        None => {
            let beside = own.parent().unwrap_or(Path::new("/"));
            let above = beside.parent().unwrap_or(Path::new("/"));
            vec![
                beside.join(name),
                above.join("lib/windlass").join(name),
                Path::new(LIBRARY_DIR).join(name),
            ]
        }
    };
    if let Some(path) = candidates.iter().find(|path| path.is_file()) {
        // The loader splits LD_PRELOAD there.
        if path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|byte| b": \t\n".contains(byte))
        {
            let why = format!(
                "{}: a colon or a blank in the path of the library",
                path.display()
            );
            let todo = "put it elsewhere, and name it with --library";
            return Err(Failure::new(ErrorCode::Invalid, "run", why, todo));
        }
        return Ok(path.clone());
    }
    let tried: Vec<_> = candidates
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let why = format!("there is no library at {}", tried.join(" or "));
    Err(Failure::new(
        ErrorCode::NotFound,
        "run",
        why,
        "name it with --library",
    ))
}

/// The program's environment: what there is, and what the libraries are told.
fn environment(
    args: &RunArgs,
    libraries: &[PathBuf],
    present: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<CString> {
    let mut variables: BTreeMap<OsString, OsString> = present.collect();
    let others = variables.remove(OsStr::new("LD_PRELOAD"));
    let others = others.as_deref().unwrap_or_default().as_bytes();
    let others = others.split(|byte| b": \t\n".contains(byte));
    let mut preload: Vec<&[u8]> = Vec::new();
    let ours = libraries.iter().map(|path| path.as_os_str().as_bytes());
    for library in ours.chain(others) {
        if !library.is_empty() && !preload.contains(&library) {
            preload.push(library);
        }
    }
    let preload = OsString::from_vec(preload.join(&b':'));
    variables.insert("LD_PRELOAD".into(), preload);
    if let Some(spin_us) = args.spin {
        variables.insert("WINDLASS_SPIN".into(), spin_us.to_string().into());
    }
    for (flag, name, value) in [
        (args.share, "WINDLASS_SHARE", "1"),
        (args.unix, "WINDLASS_UNIX", "1"),
        (args.no_unix, "WINDLASS_UNIX", "0"),
        (args.verbose, "WINDLASS_SUMMARY", "1"),
    ] {
        if flag {
            variables.insert(name.into(), value.into());
        }
    }
    variables.into_iter().filter_map(variable).collect()
}

/// A variable as an environment has it; `None` if it has a zero byte.
fn variable((name, value): (OsString, OsString)) -> Option<CString> {
    let mut line = name.into_vec();
    line.push(b'=');
    line.extend(value.into_vec());
    CString::new(line).ok()
}

/// Sees to it that a broker listens; says which.
fn broker() -> Result<String, String> {
    let uid = process::effective_uid();
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
    let given = std::env::var_os("WINDLASS_SOCKETS").filter(|path| !path.is_empty());
    let paths = windlass_listing::paths(given.clone(), runtime_dir.clone(), uid);
    for path in &paths {
        if trusted(path, uid).is_ok() && listens(path) {
            return Ok(format!("broker at {}", path.display()));
        }
    }
    let path = match given {
        Some(path) => PathBuf::from(path),
        None => private_path(runtime_dir, uid)?,
    };
    let line = format!("private broker started at {}", path.display());
    let program = broker_program();
    let limit = Instant::now() + BROKER_STARTS_MAX;
    let environment: Vec<CString> = std::env::vars_os().filter_map(variable).collect();
    let start = || {
        let words = ["--private".as_ref(), "--socket".as_ref(), path.as_os_str()];
        let command = [&[program.as_os_str()], &words[..]].concat();
        // Nobody is left who could be told; the program goes on without.
        let _ = process::become_program(&command, &environment);
    };
    process::detach(start).map_err(|errno| format!("fork: {errno}"))?;
    // What a program asks before that is answered by nobody, and it may have ended before it asks again.
    while program.is_file() && !listens(&path) && Instant::now() < limit {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(line)
}

fn listens(path: &Path) -> bool {
    unix::connect(path, SocketKind::SeqPacket).is_ok()
}

/// The broker's program: beside this one, in `../sbin`, or wherever the path has it.
fn broker_program() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("/"));
    let above = beside.parent().unwrap_or(Path::new("/"));
    let candidates = [beside.join(BROKER), above.join("sbin").join(BROKER)];
    let found = candidates.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| BROKER.into())
}

/// Refuses a directory in `/tmp` that somebody else could have made.
pub(crate) fn trusted(path: &Path, uid: u32) -> Result<(), String> {
    match path.parent() {
        Some(dir) if dir == fallback_dir(uid) => {
            check_private(dir, uid).map_err(|error| error.to_string())
        }
        _ => Ok(()),
    }
}

/// Where a private broker of this user listens. Its directory is made if it is not there.
fn private_path(runtime_dir: Option<OsString>, uid: u32) -> Result<PathBuf, String> {
    let paths = windlass_listing::paths(None, runtime_dir, uid);
    let mut why = "nowhere to listen".to_owned();
    for path in paths.into_iter().skip(1) {
        let Some(dir) = path.parent() else { continue };
        // One that is there is as good; what is wrong with another is found below.
        let _ = DirBuilder::new().mode(0o700).create(dir);
        match check_private(dir, uid) {
            Ok(()) => return Ok(path),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
