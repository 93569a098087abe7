//! Threads and their stacks.

use serde_json::{Value as Json, json};
use windlass_api::ErrorCode;
use windlass_target::threads::{self, Registers};
use windlass_target::{Stopped, unwind};

use crate::failure::Failure;
use crate::table::clean;

use super::target::{Program, Target};
use super::{WHAT, absent};

/// The threads, as rows.
pub(super) fn threads(target: &Target<'_>) -> Vec<Json> {
    match &target.opened.program {
        Program::Process { pid, .. } => {
            let mut all = threads::threads(*pid).unwrap_or_default();
            all.sort_unstable();
            let row = |tid: &u32| {
                let read = |name| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
                let stat = read("stat").unwrap_or_default();
                let state = stat
                    .rsplit(") ")
                    .next()
                    .and_then(|rest| rest.chars().next());
                let name = read("comm").unwrap_or_default();
                json!({ "tid": tid, "state": state.map(String::from), "name": clean(name.trim_end()) })
            };
            all.iter().map(row).collect()
        }
        Program::Core(core) => {
            let row =
                |(tid, _): &(u32, Registers)| json!({ "tid": tid, "state": null, "name": null });
            core.threads().iter().map(row).collect()
        }
    }
}

/// The stacks of a thread, or of all, as rows. A live thread stands still while its stack is read.
pub(super) fn stacks(target: &Target<'_>, tid: Option<u32>) -> Result<Vec<Json>, Failure> {
    let mut rows = Vec::new();
    match &target.opened.program {
        Program::Process { pid, .. } => {
            let mut all = threads::threads(*pid).unwrap_or_default();
            all.sort_unstable();
            all.retain(|own| tid.is_none_or(|tid| tid == *own));
            for tid in &all {
                let stack = held(target, *tid)?;
                rows.extend(frames(target, *tid, &stack));
            }
        }
        Program::Core(core) => {
            let all = core.threads().iter();
            for (own, registers) in all.filter(|(own, _)| tid.is_none_or(|tid| tid == *own)) {
                let stack = unwind::frames(target.opened, &target.opened.modules, *registers);
                rows.extend(frames(target, *own, &stack));
            }
        }
    }
    match (rows.is_empty(), tid) {
        (true, Some(tid)) => Err(absent(
            format!("there is no thread {tid}"),
            "\"threads\" lists those that there are",
        )),
        _ => Ok(rows),
    }
}

/// The stack of a live thread. One that has ended meanwhile has none.
fn held(target: &Target<'_>, tid: u32) -> Result<Vec<u64>, Failure> {
    let stopped = match Stopped::one(tid) {
        Err(threads::StopError::Kernel(error)) if error.raw_os_error() == Some(3) => {
            return Ok(Vec::new());
        }
        stopped => stopped.map_err(|error| {
            let todo =
                "act as its user or as root; a debugger or a tracer that holds it must let go";
            Failure::new(
                ErrorCode::Forbidden,
                WHAT,
                format!("thread {tid}: {error}"),
                todo,
            )
        })?,
    };
    let found = stopped.registers().into_iter().next();
    let stack = found
        .map(|(_, registers)| unwind::frames(target.opened, &target.opened.modules, registers));
    Ok(stack.unwrap_or_default())
}

fn frames<'s>(
    target: &'s Target<'_>,
    tid: u32,
    stack: &'s [u64],
) -> impl Iterator<Item = Json> + 's {
    (0_u64..).zip(stack).map(move |(frame, pc)| {
        // A return address is behind its call.
        let inner = if frame == 0 { *pc } else { pc.wrapping_sub(1) };
        let symbol = target.opened.modules.symbol(inner);
        let name = symbol.map(|mut symbol| {
            symbol.offset = symbol.offset.wrapping_add(pc.wrapping_sub(inner));
            symbol.to_string()
        });
        json!({
            "tid": tid, "frame": frame, "address": format!("{pc:#x}"), "function": name.map(|name| clean(&name)),
            "line": target.line(inner),
        })
    })
}
