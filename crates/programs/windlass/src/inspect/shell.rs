//! The shell: lines that are edited, with history and Tab.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::Session;
use crate::failure::Failure;

use super::complete::offers;
use super::editor::{Editor, Keys, Typed};
use super::target::Target;
use super::{Next, commands, interrupt};

/// Lines that are kept, and bytes of their file that are read.
const HISTORY: usize = 1_000;
const HISTORY_BYTES: u64 = 1 << 20;

/// Reads and runs lines until the end of input. `false`: the terminal does not give single keys.
pub(super) fn run(session: &mut Session<'_>, target: &Target<'_>) -> Result<bool, Failure> {
    let offers = |line: &str| {
        let found = offers(target, line);
        (found.start, found.names, found.is_cut)
    };
    let mut editor = Editor {
        history: known_lines(),
        offers: &offers,
    };
    // Not buffered: what follows a line is the command's.
    let mut input = std::fs::File::open("/dev/stdin")?;
    loop {
        interrupt::forget();
        let Some(keys) = Keys::take() else {
            return Ok(false);
        };
        let known = editor.history.len();
        let typed = editor.read(&mut input, session.out)?;
        drop(keys);
        let line = match typed {
            Typed::Line(line) => line,
            Typed::Nothing => continue,
            Typed::End => return Ok(true),
        };
        if editor.history.len() > known {
            keep(&line);
        }
        match super::one(session, target, &line)? {
            Next::Quit => return Ok(true),
            Next::Failed(failure) => failure.tell(false, &mut std::io::stderr().lock())?,
            Next::Go => {}
        }
    }
}

/// Where lines are kept.
fn file() -> Option<PathBuf> {
    let state = windlass_sys::own::directory("XDG_STATE_HOME", ".local/state")?;
    Some(state.join("windlass/inspect_history"))
}

/// The lines of earlier shells. Without them it works as well.
fn known_lines() -> Vec<String> {
    let opened = file().and_then(|path| std::fs::File::open(path).ok());
    let Some(opened) = opened.filter(|file| file.metadata().is_ok_and(|about| about.is_file()))
    else {
        return Vec::new();
    };
    let lines = BufReader::new(opened.take(HISTORY_BYTES))
        .lines()
        .map_while(Result::ok);
    let lines: Vec<_> = lines.collect();
    lines.into_iter().rev().take(HISTORY).rev().collect()
}

/// Keeps a line. If that fails, it is in this shell's history alone.
fn keep(line: &str) {
    let Some(path) = file() else {
        return;
    };
    if let Some(directory) = path.parent() {
        let _ = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
    }
    let mut options = std::fs::OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(path);
    if let Ok(mut opened) = opened
        && opened
            .metadata()
            .is_ok_and(|about| about.len() < HISTORY_BYTES)
    {
        let _ = writeln!(opened, "{line}");
    }
}

/// Whether a line ends the shell.
pub(super) fn is_end(line: &str) -> bool {
    let line = line.trim();
    let word = line.strip_prefix("::").unwrap_or(line);
    commands::command(word).is_some_and(|command| command.name == "quit")
}
