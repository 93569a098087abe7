//! `windlass memory leaks` and `windlass memory whatis`: the same tables, of a process or of a core.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_api::ErrorCode;
use windlass_memory::{Anchor, CLASSES};
use windlass_target::maps::{self, Mapping};
use windlass_target::{Core, Memory, Modules, Process, Stopped};

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::options::{LeaksArgs, WhatisArgs};
use crate::table::{Form, clean};

use super::heap::{Geometry, Heap, Object};
use super::leaks::{self, Moment};
use super::profile::{self, Profile};
use super::status::{self, Status};
use super::{absent, figures, whatis};

/// Addresses of a group that are shown.
const ADDRESSES: usize = 8;

/// Sizes of classes: those of a status file, else malloc's.
fn geometries(status: Option<&Status>) -> Vec<Option<Geometry>> {
    let rows = status.map(Status::classes).unwrap_or_default();
    let of_file = rows.into_iter().take(CLASSES).map(|row| {
        let row = row?;
        (row.size >= 8).then_some(Geometry {
            size: row.size,
            units: row.units,
        })
    });
    let of_file: Vec<_> = of_file.collect();
    let known = (0..CLASSES).map(|class| {
        let own = of_file.get(class).copied().flatten();
        let malloc = (1..windlass_slab::CLASSES)
            .contains(&class)
            .then(|| Geometry {
                size: windlass_slab::size(class) as u64,
                units: windlass_slab::units(class) as u64,
            });
        own.or(malloc)
    });
    known.collect()
}

/// The tables of a process or a core.
fn read(memory: &dyn Memory, anchor: &Anchor, classes: &[Option<Geometry>]) -> Heap {
    let class = |number: usize| classes.get(number).copied().flatten();
    Heap::read(memory, anchor, &class)
}

fn no_anchor(what: &str) -> Failure {
    Failure::new(
        ErrorCode::NotFound,
        what,
        "the allocator's tables are not found: none of its library's memory is there",
        "use a process or a core of a program that runs on libwindlass_alloc.so",
    )
}

fn refused(pid: u32, what: &str, error: impl std::fmt::Display) -> Failure {
    let todo = "act as its user or as root; a debugger or a tracer that holds it must let go";
    Failure::new(
        ErrorCode::Forbidden,
        what,
        format!("process {pid}: {error}"),
        todo,
    )
}

/// `windlass memory whatis`
pub(super) fn whatis(session: &mut Session<'_>, args: &WhatisArgs) -> Result<(), Failure> {
    const WHAT: &str = "say what an address is";
    let status = status::of(args.pid).map_err(|why| absent(args.pid, &why, WHAT))?;
    let memory = Process::open(args.pid).map_err(|error| refused(args.pid, WHAT, error))?;
    let mappings = maps::of(args.pid).map_err(|error| refused(args.pid, WHAT, error))?;
    let modules = Modules::of_process(args.pid, &mappings);
    let anchor = status.anchor().ok_or_else(|| no_anchor(WHAT))?;
    let classes = geometries(Some(&status));
    let heap = read(&memory, &anchor, &classes);
    let caches: HashMap<u64, String> = (status.caches().into_iter().flatten())
        .filter(|cache| cache.address != 0 && cache.class != 0)
        .map(|cache| (cache.class, figures::name(&cache)))
        .collect();
    let name = |class: usize| {
        let size = classes
            .get(class)
            .copied()
            .flatten()
            .map_or(0, |of| of.size);
        caches
            .get(&(class as u64))
            .cloned()
            .unwrap_or_else(|| format!("wl_alloc_{size}"))
    };
    let (text, mut row) = whatis::what(&heap, &mappings, &modules, &name, args.address);
    let profile = Profile::of(&status, None);
    let start = row["start"]
        .as_str()
        .and_then(|start| u64::from_str_radix(start.trim_start_matches("0x"), 16).ok());
    let stack = start.and_then(|start| profile.stack_of(start));
    row["text"] = text.clone().into();
    row["stack"] = stack.clone().into();
    if session.form == Form::Json || session.options.fields.is_some() {
        let Some(chosen) = session.choose(fields::WHATIS)? else {
            return Ok(());
        };
        return session.rows(&[row], &chosen);
    }
    writeln!(session.out, "{}", clean(&text))?;
    if let Some(stack) = stack {
        writeln!(
            session.out,
            "allocated by {}",
            clean(&profile::text(&stack))
        )?;
    }
    Ok(())
}

/// What a search found.
struct Found {
    heap: Heap,
    leaked: Vec<Object>,
    /// For how long the process stood.
    stood: Option<Duration>,
    stacks: HashMap<u64, Vec<String>>,
}

/// `windlass memory leaks --scan`
pub(super) fn leaks(session: &mut Session<'_>, args: &LeaksArgs) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::LEAKS)? else {
        return Ok(());
    };
    let found = match (&args.core, args.pid) {
        (Some(path), _) => in_core(path)?,
        (None, Some(pid)) => in_process(pid)?,
        (None, None) => {
            return Err(Failure::usage(
                "no process is named",
                "name one, or a core with --core",
            ));
        }
    };
    let rows = rows(&found);
    if let Some(stood) = found.stood
        && matches!(session.form, Form::Table { .. })
    {
        writeln!(session.out, "stopped for {} ms", stood.as_millis())?;
    }
    if rows.is_empty() && matches!(session.form, Form::Table { .. }) {
        writeln!(session.out, "every object is referred to")?;
        return Ok(());
    }
    session.rows(&rows, &chosen)
}

fn in_process(pid: u32) -> Result<Found, Failure> {
    const WHAT: &str = "find leaks";
    let status = status::of(pid).map_err(|why| absent(pid, &why, WHAT))?;
    let anchor = status.anchor().ok_or_else(|| no_anchor(WHAT))?;
    let memory = Process::open(pid).map_err(|error| refused(pid, WHAT, error))?;
    let classes = geometries(Some(&status));
    let stopped = Stopped::all(pid).map_err(|error| refused(pid, WHAT, error))?;
    let threads = stopped.registers();
    let mappings = maps::of(pid).map_err(|error| refused(pid, WHAT, error))?;
    let heap = read(&memory, &anchor, &classes);
    let leaked = search(&heap, &memory, &mappings, &threads, status.inode());
    let stood = stopped.release();
    // It can have freed some and allocated others by now, of which none is at the address of a leaked one.
    let profile = Profile::of(&status, None);
    Ok(Found {
        stacks: profile.stacks_by_address(),
        heap,
        leaked,
        stood: Some(stood),
    })
}

fn search(
    heap: &Heap,
    memory: &dyn Memory,
    mappings: &[Mapping],
    threads: &[(u32, windlass_target::threads::Registers)],
    status: u64,
) -> Vec<Object> {
    let moment = Moment {
        memory,
        mappings,
        threads,
        status,
    };
    leaks::scan(heap, &moment)
}

fn in_core(path: &std::path::Path) -> Result<Found, Failure> {
    const WHAT: &str = "find leaks";
    let told = |error: std::io::Error| {
        let why = format!("{}: {error}", path.display());
        Failure::new(
            ErrorCode::Host,
            WHAT,
            why,
            "name a core file of a 64-bit program",
        )
    };
    let core = File::open(path).and_then(Core::open).map_err(told)?;
    let mappings = core.mappings();
    let modules = Modules::of_core(&core, &mappings);
    let at = modules.exported(windlass_memory::ANCHOR_SYMBOL);
    let anchor = at.and_then(|at| {
        let mut bytes = vec![0; Anchor::LEN];
        core.read_all(at, &mut bytes)
            .then(|| Anchor::from_bytes(&bytes))
            .flatten()
    });
    let anchor = anchor
        .filter(|anchor| anchor.arena != 0)
        .ok_or_else(|| no_anchor(WHAT))?;
    let heap = read(&core, &anchor, &geometries(None));
    let leaked = search(&heap, &core, &mappings, core.threads(), 0);
    Ok(Found {
        heap,
        leaked,
        stood: None,
        stacks: HashMap::new(),
    })
}

/// A row for each size and stack, most bytes first.
fn rows(found: &Found) -> Vec<Value> {
    let mut groups: BTreeMap<(u64, Option<&Vec<String>>), Vec<u64>> = BTreeMap::new();
    for (place, index) in &found.leaked {
        let place = &found.heap.places[*place];
        let address = place.start.saturating_add(index * place.size);
        let stack = found.stacks.get(&address);
        groups.entry((place.size, stack)).or_default().push(address);
    }
    let row = |((size, stack), addresses): ((u64, Option<&Vec<String>>), Vec<u64>)| {
        let count = addresses.len() as u64;
        let shown: Vec<_> = addresses
            .iter()
            .take(ADDRESSES)
            .map(|address| format!("{address:#x}"))
            .collect();
        json!({
            "buffers": count, "size": size, "bytes": size.saturating_mul(count), "addresses": shown,
            "stack": stack, "stack_text": stack.map(|stack| profile::text(stack)),
        })
    };
    let mut rows: Vec<_> = groups.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row["bytes"].as_u64()));
    rows
}
