//! Programs on windlass's allocator: `umastat`, `magazines`, `bufs`, `refs`, `findleaks`.

use crate::Session;
use crate::failure::Failure;
use crate::memory::Buffers;

use super::commands::{Call, wanting};
use super::target::{Program, Target};
use super::value::Value;
use super::{absent, daemon, memory};

/// The process; a core has no status file.
fn pid(target: &Target<'_>) -> Result<String, Failure> {
    match &target.opened.program {
        Program::Process { pid, .. } => Ok(pid.to_string()),
        Program::Core(_) => Err(absent(
            "the allocator keeps these figures outside of the program's memory, and a core lacks them",
            "\"bufs\" and \"findleaks\" read cores",
        )),
    }
}

fn asked(session: &mut Session<'_>, words: &[&str]) -> Result<(), Failure> {
    let call = Call {
        address: None,
        rest: "",
        input: None,
    };
    daemon::ask(session, words, &call)
}

/// `umastat`
pub(super) fn caches(
    session: &mut Session<'_>,
    target: &Target<'_>,
    _: &Call<'_>,
) -> Result<(), Failure> {
    asked(session, &["memory", &pid(target)?, "--caches"])
}

/// `magazines`
pub(super) fn magazines(
    session: &mut Session<'_>,
    target: &Target<'_>,
    _: &Call<'_>,
) -> Result<(), Failure> {
    asked(session, &["memory", &pid(target)?, "--threads"])
}

/// `findleaks`
pub(super) fn leaks(
    session: &mut Session<'_>,
    target: &Target<'_>,
    _: &Call<'_>,
) -> Result<(), Failure> {
    match &target.opened.program {
        Program::Process { pid, .. } => {
            asked(session, &["memory", "leaks", "--scan", &pid.to_string()])
        }
        Program::Core(_) => asked(
            session,
            &["memory", "leaks", "--scan", "--core", &target.opened.path],
        ),
    }
}

/// The allocator's tables of the program.
fn tables(target: &Target<'_>) -> Result<Buffers, Failure> {
    match &target.opened.program {
        Program::Process { pid, .. } => Buffers::of_process(*pid),
        Program::Core(core) => Buffers::of_core(core, &target.opened.modules),
    }
}

/// `bufs CACHE`
pub(super) fn buffers(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    if call.rest.is_empty() {
        return Err(wanting("a cache"));
    }
    let of = target.void();
    let all = tables(target)?.taken(call.rest)?;
    Ok(all.into_iter().map(|at| Value::Object { of, at }).collect())
}

/// `refs ADDRESS`
pub(super) fn references(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let at = match call.input {
        Some([element, ..]) => element.word(),
        _ => call.address(target, call.rest)?,
    };
    // Without the allocator, the address alone.
    let object = tables(target).ok().and_then(|tables| tables.around(at));
    let object = object.unwrap_or(at..at.saturating_add(1));
    Ok(memory::words(target, &|word| object.contains(&word)))
}
