//! `windlass inspect`: what a process or a core file holds, by the types in its debug data.
//!
//! # Purpose
//! Types, global variables, members, lists, memory, threads and stacks of a program that was not prepared for it. Nothing is written, and
//! nothing stops but a thread whose stack is asked for.
//!
//! # Where it sits
//! ```text
//!   commands             a word and its arguments, or mdb's spelling of them
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
//! Local variables, pipelines, views, editing of the line, `windlass` itself by name.

mod commands;
pub(crate) mod fields;
mod memory;
mod stack;
mod target;
mod value;

use std::io::BufRead;

use crate::Session;
use crate::failure::Failure;
use crate::options::InspectArgs;

use target::{Opened, Target};

/// Bytes of a line of commands at most.
const LINE_MAX: u64 = 1 << 16;

/// What is being done, for failures.
const WHAT: &str = "inspect";

/// `windlass inspect`
pub(crate) fn run(session: &mut Session<'_>, args: &InspectArgs) -> Result<(), Failure> {
    let opened = Opened::of(&args.target)?;
    let target = Target::of(&opened);
    if !args.command.is_empty() {
        return commands::run(session, &target, &args.command.join(" "));
    }
    let mut input = std::io::stdin().lock();
    let mut last = Ok(());
    loop {
        let mut line = String::new();
        let read = std::io::Read::take(&mut input, LINE_MAX).read_line(&mut line);
        if read.map_err(|error| unreadable(&error))? == 0 {
            return last;
        }
        let done = commands::run(session, &target, line.trim());
        session.out.flush()?;
        match done {
            Ok(()) => {}
            Err(Failure::Pipe) => return Err(Failure::Pipe),
            // The last failure ends the command, and is told there.
            Err(failure) => {
                if let Err(before) = std::mem::replace(&mut last, Err(failure)) {
                    before.tell(false, &mut std::io::stderr().lock())?;
                }
            }
        }
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
