//! `windlass inspect`: what a process or a core file holds, by the types in its debug data.
//!
//! # Purpose
//! Types, global variables, members, lists, memory, threads and stacks of a program that was not prepared for it. Nothing is written, and
//! nothing stops but a thread whose stack is asked for.
//!
//! # Where it sits
//! ```text
//!   shell, editor        lines with history
//!   complete             what Tab offers, in other shells, too
//!     |
//!   commands, pipe       words and their arguments, or mdb's spelling of them (windlass-views)
//!     |
//!   show, view           text; containers by their views (windlass-views)
//!     |
//!   value                expressions (windlass-script) -> Value
//!     |
//!   target               memory, files (windlass-target), their types (windlass-types)
//! ```
//!
//! # Failure modes
//! Memory that is not there shows as a fault. A process can lie in its memory and in its files: then what is shown is wrong, and nothing else.
//!
//! # Not done
//! Local variables, `trace` from within, indices that are built aside.

mod commands;
mod complete;
mod daemon;
mod editor;
pub(crate) mod fields;
mod heap;
mod interrupt;
mod memory;
mod pipe;
mod shell;
mod show;
mod stack;
mod target;
mod value;
mod view;

use std::io::{BufRead, IsTerminal};

use crate::Session;
use crate::failure::Failure;
use crate::options::InspectArgs;

pub(crate) use complete::line as completions;
use target::{Opened, Target};

/// Bytes of a line of commands at most.
const LINE_MAX: u64 = 1 << 16;

/// What is being done, for failures.
const WHAT: &str = "inspect";

/// `windlass inspect`
pub(crate) fn run(session: &mut Session<'_>, args: &InspectArgs) -> Result<(), Failure> {
    interrupt::watch()?;
    let opened = match args.target.as_str() {
        "windlass" => Opened::process(daemon::pid(session)?)?,
        name => Opened::of(name)?,
    };
    let target = Target::of(&opened);
    if !args.command.is_empty() {
        return commands::run(session, &target, &args.command.join(" "));
    }
    if std::io::stdin().is_terminal()
        && std::io::stdout().is_terminal()
        && shell::run(session, &target)?
    {
        return Ok(());
    }
    let mut input = std::io::stdin().lock();
    let mut last = Ok(());
    loop {
        let mut line = String::new();
        let read = std::io::Read::take(&mut input, LINE_MAX).read_line(&mut line);
        if read.map_err(|error| unreadable(&error))? == 0 {
            return last;
        }
        match one(session, &target, &line)? {
            Next::Go => {}
            Next::Quit => return last,
            // The last failure ends the command, and is told there.
            Next::Failed(failure) => {
                if let Err(before) = std::mem::replace(&mut last, Err(failure)) {
                    before.tell(false, &mut std::io::stderr().lock())?;
                }
            }
        }
    }
}

/// What follows a line.
enum Next {
    Go,
    Quit,
    Failed(Failure),
}

/// Runs a line of several.
fn one(session: &mut Session<'_>, target: &Target<'_>, line: &str) -> Result<Next, Failure> {
    if shell::is_end(line) {
        return Ok(Next::Quit);
    }
    let done = commands::run(session, target, line.trim());
    session.out.flush()?;
    match done {
        Ok(()) => Ok(Next::Go),
        Err(Failure::Pipe) => Err(Failure::Pipe),
        Err(failure) => Ok(Next::Failed(failure)),
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    let code = windlass_api::ErrorCode::Host;
    let todo = "give commands as text, one a line";
    Failure::new(code, "read commands", error.to_string(), todo)
}

/// Something that is not there.
fn absent(why: impl Into<String>, todo: impl Into<String>) -> Failure {
    Failure::new(windlass_api::ErrorCode::NotFound, WHAT, why, todo)
}
