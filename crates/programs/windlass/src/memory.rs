//! `windlass memory`: processes under `libwindlass_alloc.so`, from outside.
//!
//! # Purpose
//! What a program's memory consists of, which functions' allocations grow, what nobody refers to any more, and what an address is. The program
//! need not be prepared beyond running on the library, and only `leaks --scan` stops it.
//!
//! # Where it sits
//! ```text
//!   windlass memory [PID]      status -> figures -> tables
//!   windlass memory --regions  the daemon
//!   windlass memory growth     status -> profile (stacks by windlass-target) -> table, pprof
//!   windlass memory whatis     status, heap (the allocator's tables in the process's memory)
//!   windlass memory leaks      heap, registers, stacks, data
//! ```
//!
//! # Failure modes
//! A process can lie in its file and in its memory: then its figures are wrong, and nothing else.

mod figures;
mod heap;
mod leaks;
mod pprof;
mod profile;
mod records;
mod regions;
mod search;
mod status;
mod whatis;

use std::cell::Cell;
use std::time::Instant;

use serde_json::Value;
use windlass_api::ErrorCode;

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::options::{GrowthArgs, MemoryArgs, MemoryVerb};
use crate::statistics::{self, Keys, Sample};
use crate::table::{Form, clean, size};

use figures::{Figures, Pages};
use profile::Profile;
pub(crate) use search::{Buffers, describe};
use status::{Absent, Status};

const PROCESS: Keys = Keys {
    name: &["pid"],
    counters: &[&["slow_calls", "returned_bytes"]],
};
const THREAD: Keys = Keys {
    name: &["tid"],
    counters: &[&["slow_calls"]],
};
const CACHE: Keys = Keys {
    name: &["cache", "size"],
    counters: &[&["refills", "flushes", "contended"]],
};

/// Of rows without counters.
const NOTHING: Keys = Keys {
    name: &[],
    counters: &[],
};

/// `windlass memory`
pub(crate) fn run(session: &mut Session<'_>, args: &MemoryArgs) -> Result<(), Failure> {
    if let Some(names) = &args.regions {
        return regions::show(session, names);
    }
    match &args.verb {
        None => show(session, args),
        Some(MemoryVerb::Growth(args)) => growth(session, args),
        Some(MemoryVerb::Leaks(args)) => search::leaks(session, args),
        Some(MemoryVerb::Whatis(args)) => search::whatis(session, args),
    }
}

/// `windlass memory growth`. At an interval: what was allocated in it and lives at its end.
fn growth(session: &mut Session<'_>, args: &GrowthArgs) -> Result<(), Failure> {
    const WHAT: &str = "show growth";
    let Some(chosen) = session.choose(fields::GROWTH)? else {
        return Ok(());
    };
    let find = || status::of(args.pid).map_err(|why| absent(args.pid, &why, WHAT));
    let began = Cell::new(false);
    statistics::repeat(session, &chosen, &args.repeat, NOTHING, |_| {
        let status = find()?;
        let since = match began.replace(true) {
            true => args.repeat.interval,
            false => args.since,
        };
        let profile = Profile::of(&status, since);
        if let Some(path) = &args.pprof {
            let file = pprof::encode(&profile, status.header.sample_mean);
            std::fs::write(path, file).map_err(|error| {
                let why = format!("{}: {error}", path.display());
                Failure::new(
                    ErrorCode::Host,
                    "write the profile",
                    why,
                    "name another file",
                )
            })?;
        }
        Ok(Sample {
            time_ns: 0,
            rows: profile.rows(),
        })
    })
}

fn show(session: &mut Session<'_>, args: &MemoryArgs) -> Result<(), Failure> {
    let how_often = &args.repeat;
    let pages = match how_often.interval {
        Some(_) => Pages::Unasked,
        None => Pages::Counted,
    };
    let Some(pid) = args.pid else {
        return table(session, args, (fields::MEMORY, PROCESS), || {
            let row = |status: Status| Figures::of(&status).process(&status, Pages::Unasked);
            Ok(status::all().into_iter().map(row).collect())
        });
    };
    let find = || status::of(pid).map_err(|why| absent(pid, &why, "show memory"));
    if args.threads {
        return table(session, args, (fields::MEMORY_THREADS, THREAD), || {
            let status = find()?;
            Ok(Figures::of(&status).threads(&status))
        });
    }
    if args.caches {
        return table(session, args, (fields::MEMORY_CACHES, CACHE), || {
            let status = find()?;
            Ok(Figures::of(&status).caches(&status))
        });
    }
    let is_screen = matches!(session.form, Form::Table { .. }) && session.options.fields.is_none();
    if how_often.interval.is_none() && is_screen {
        return screen(session, &find()?);
    }
    let is_json = session.form == Form::Json;
    table(session, args, (fields::MEMORY, PROCESS), || {
        let status = find()?;
        let figures = Figures::of(&status);
        let mut row = figures.process(&status, pages);
        if is_json {
            row["by_thread"] = figures.threads(&status).into();
            row["by_cache"] = figures.caches(&status).into();
        }
        Ok(vec![row])
    })
}

/// One table, once or again and again.
fn table(
    session: &mut Session<'_>,
    args: &MemoryArgs,
    (columns, keys): (&'static [crate::table::Column], Keys),
    rows: impl Fn() -> Result<Vec<Value>, Failure>,
) -> Result<(), Failure> {
    let Some(chosen) = session.choose(columns)? else {
        return Ok(());
    };
    let started = Instant::now();
    statistics::repeat(session, &chosen, &args.repeat, keys, |_| {
        let time_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Sample {
            time_ns,
            rows: rows()?,
        })
    })
}

/// Everything about one process.
fn screen(session: &mut Session<'_>, status: &Status) -> Result<(), Failure> {
    let figures = Figures::of(status);
    let row = figures.process(status, Pages::Counted);
    let bytes = |key: &str| row[key].as_u64().map_or("--".into(), size);
    let number = |key: &str| row[key].as_u64().unwrap_or(0);
    let name = clean(row["comm"].as_str().unwrap_or("--"));
    writeln!(
        session.out,
        "{name} {}  up {}  resident {}  program {}  caches {}  kept {}  lost to fragmentation {}",
        status.pid,
        crate::status::duration(number("up_s")),
        bytes("resident_bytes"),
        bytes("in_use_bytes"),
        bytes("cached_bytes"),
        bytes("kept_bytes"),
        bytes("lost_bytes"),
    )?;
    let (spans, broken) = (number("spans"), number("broken_spans"));
    writeln!(
        session.out,
        "pages  huge asked {}  had {}  spans {spans}, {} whole, {broken} broken  page tables {}  mappings {}",
        bytes("huge_asked_bytes"),
        bytes("huge_bytes"),
        spans.saturating_sub(broken),
        bytes("page_tables_bytes"),
        bytes("mapped_bytes"),
    )?;
    let tables = [
        (figures.threads(status), fields::MEMORY_THREADS),
        (figures.caches(status), fields::MEMORY_CACHES),
    ];
    for (rows, columns) in tables {
        if let Some(chosen) = session.choose(columns)?
            && !rows.is_empty()
        {
            writeln!(session.out)?;
            session.rows(&rows, &chosen)?;
        }
    }
    Ok(())
}

/// Why there is nothing to show of a process.
fn absent(pid: u32, why: &Absent, what: &str) -> Failure {
    let (code, why, todo) = match why {
        Absent::Gone => (
            ErrorCode::NotFound,
            format!("there is no process {pid}"),
            "\"windlass memory\" lists those that there are",
        ),
        Absent::Unprepared => (
            ErrorCode::NotFound,
            format!("process {pid} does not run on libwindlass_alloc.so, or has no status file"),
            "start it by \"windlass run --alloc -- PROGRAM\"",
        ),
        Absent::Foreign => (
            ErrorCode::Forbidden,
            format!("process {pid} is another user's"),
            "act as that user, or as root",
        ),
        Absent::Version(version) => (
            ErrorCode::Unsupported,
            format!("the status file of process {pid} is of version {version}"),
            "use the command that came with its library",
        ),
    };
    Failure::new(code, what, why, todo)
}
