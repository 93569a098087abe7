//! `windlass memory leaks` and `windlass memory whatis`: the same tables, of a process or of a core.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_api::ErrorCode;
use windlass_memory::{Anchor, CACHE_OWNERS, CLASSES, Cache, Class};
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

/// Who owns slabs: classes and object caches.
struct Owners {
    classes: Vec<Option<Class>>,
    caches: Vec<Option<Cache>>,
}

impl Owners {
    /// Those of a status file; without one malloc's classes.
    fn of(status: Option<&Status>) -> Self {
        Self {
            classes: status.map(Status::classes).unwrap_or_default(),
            caches: status.map(Status::caches).unwrap_or_default(),
        }
    }

    /// The row of an object cache.
    fn cache(&self, owner: usize) -> Option<&Cache> {
        match owner.checked_sub(CACHE_OWNERS) {
            Some(row) => self.caches.get(row)?.as_ref(),
            None => (self.caches.iter().flatten())
                .find(|cache| cache.class != 0 && cache.class == owner as u64),
        }
        .filter(|cache| cache.address != 0)
    }

    fn name(&self, owner: usize, size: u64) -> String {
        figures::class_name(self.cache(owner), owner, size)
    }

    fn geometry(&self, owner: usize) -> Option<Geometry> {
        let (size, units) = if owner >= CACHE_OWNERS {
            self.cache(owner).map(|cache| (cache.size, cache.units))?
        } else if let Some(class) = self.classes.get(owner).copied().flatten()
            && class.size >= 8
            && owner < CLASSES
        {
            (class.size, class.units)
        } else if (1..windlass_slab::CLASSES).contains(&owner) {
            let [size, units] = [windlass_slab::size, windlass_slab::units].map(|of| of(owner));
            (size as u64, units as u64)
        } else {
            return None;
        };
        Some(Geometry { size, units })
    }
}

/// The tables of a process or a core.
fn read(memory: &dyn Memory, anchor: &Anchor, owners: &Owners) -> Heap {
    Heap::read(memory, anchor, &|owner| owners.geometry(owner))
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

/// What an address of a process on the allocator is: a sentence, and its parts.
fn say(pid: u32, address: u64) -> Result<(String, Value), Failure> {
    const WHAT: &str = "say what an address is";
    let status = status::of(pid).map_err(|why| absent(pid, &why, WHAT))?;
    let memory = Process::open(pid).map_err(|error| refused(pid, WHAT, error))?;
    let mappings = maps::of(pid).map_err(|error| refused(pid, WHAT, error))?;
    let modules = Modules::of_process(pid, &mappings);
    let anchor = status.anchor().ok_or_else(|| no_anchor(WHAT))?;
    let owners = Owners::of(Some(&status));
    let heap = read(&memory, &anchor, &owners);
    let name = |owner: usize, size: u64| owners.name(owner, size);
    let record = heap.records.as_ref();
    let record = record.and_then(|records| records.find(&memory, address));
    let record = record.as_ref();
    let (text, mut row) = whatis::what(&heap, &mappings, &modules, &name, address, record);
    let profile = Profile::of(&status, None);
    let start = row["start"]
        .as_str()
        .and_then(|start| u64::from_str_radix(start.trim_start_matches("0x"), 16).ok());
    let stack = start.and_then(|start| profile.stack_of(start));
    let audited = record.filter(|record| record.is_live() && !record.frames.is_empty());
    let audited = audited.map(|record| names_of(record.frames.clone(), &profile.modules));
    let stack = stack.or(audited);
    row["text"] = text.clone().into();
    let allocated = stack.as_deref().map(profile::text);
    row["stack"] = stack.into();
    let text = match allocated {
        Some(stack) => format!("{}\nallocated by {}", clean(&text), clean(&stack)),
        None => clean(&text),
    };
    Ok((text, row))
}

/// What an address is; `None` if the process does not run on the allocator.
pub(crate) fn describe(pid: u32, address: u64) -> Option<String> {
    say(pid, address).ok().map(|(text, _)| text)
}

/// The buffers of a program on the allocator.
#[derive(Debug)]
pub(crate) struct Buffers {
    heap: Heap,
    /// The names of places that are slabs, by their numbers.
    names: Vec<Option<String>>,
}

impl Buffers {
    /// Those of a live process, which runs meanwhile.
    pub(crate) fn of_process(pid: u32) -> Result<Self, Failure> {
        const WHAT: &str = "read the allocator's tables";
        let status = status::of(pid).map_err(|why| absent(pid, &why, WHAT))?;
        let memory = Process::open(pid).map_err(|error| refused(pid, WHAT, error))?;
        let anchor = status.anchor().ok_or_else(|| no_anchor(WHAT))?;
        Ok(Self::read(&memory, &anchor, &Owners::of(Some(&status))))
    }

    /// Those of a core.
    pub(crate) fn of_core(core: &Core, modules: &Modules) -> Result<Self, Failure> {
        let anchor = anchor_of(core, modules);
        let anchor = anchor.ok_or_else(|| no_anchor("read the allocator's tables"))?;
        Ok(Self::read(core, &anchor, &Owners::of(None)))
    }

    fn read(memory: &dyn Memory, anchor: &Anchor, owners: &Owners) -> Self {
        let heap = read(memory, anchor, owners);
        let name = |place: &super::heap::Place| match place.kind {
            super::heap::Kind::Slab { class, .. } => Some(owners.name(class, place.size)),
            _ => None,
        };
        let names = heap.places.iter().map(name).collect();
        Self { heap, names }
    }

    /// First addresses of the buffers of a cache that the program has.
    pub(crate) fn taken(&self, cache: &str) -> Result<Vec<u64>, Failure> {
        let mut all = Vec::new();
        let named = self.names.iter().enumerate();
        let mut named = named
            .filter(|(_, name)| name.as_deref() == Some(cache))
            .peekable();
        if named.peek().is_none() {
            let known: BTreeSet<_> = self.names.iter().flatten().map(String::as_str).collect();
            let known: Vec<_> = known.into_iter().collect();
            return Err(Failure::new(
                ErrorCode::NotFound,
                "list buffers",
                format!("no slab belongs to a cache \"{}\"", clean(cache)),
                format!("there are {}", clean(&known.join(", "))),
            ));
        }
        for (number, _) in named {
            if let Some(place) = self.heap.places.get(number) {
                let taken = (0..place.count).filter(|index| place.is_taken(*index));
                all.extend(taken.map(|index| self.heap.start((number, index))));
            }
        }
        Ok(all)
    }

    /// First and last address of the buffer that an address is in.
    pub(crate) fn around(&self, address: u64) -> Option<std::ops::Range<u64>> {
        let object = self.heap.object(address)?;
        let start = self.heap.start(object);
        let size = self.heap.places.get(object.0)?.size;
        Some(start..start.saturating_add(size))
    }
}

/// What the library in a core says of its tables.
fn anchor_of(core: &Core, modules: &Modules) -> Option<Anchor> {
    let at = modules.exported(windlass_memory::ANCHOR_SYMBOL)?;
    let mut bytes = vec![0; Anchor::LEN];
    let anchor = core
        .read_all(at, &mut bytes)
        .then(|| Anchor::from_bytes(&bytes))??;
    (anchor.arena != 0).then_some(anchor)
}

/// `windlass memory whatis`
pub(super) fn whatis(session: &mut Session<'_>, args: &WhatisArgs) -> Result<(), Failure> {
    let (text, row) = say(args.pid, args.address)?;
    if session.form == Form::Json || session.options.fields.is_some() {
        let Some(chosen) = session.choose(fields::WHATIS)? else {
            return Ok(());
        };
        return session.rows(&[row], &chosen);
    }
    writeln!(session.out, "{text}")?;
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
    let stopped = Stopped::all(pid).map_err(|error| refused(pid, WHAT, error))?;
    let threads = stopped.registers();
    let mappings = maps::of(pid).map_err(|error| refused(pid, WHAT, error))?;
    let heap = read(&memory, &anchor, &Owners::of(Some(&status)));
    let leaked = search(&heap, &memory, &mappings, &threads, status.inode());
    let audited = audited(&heap, &memory, &leaked);
    let stood = stopped.release();
    // It can have freed some and allocated others by now, of which none is at the address of a leaked one.
    let profile = Profile::of(&status, None);
    let mut stacks = profile.stacks_by_address();
    stacks.extend(named(audited, &profile.modules));
    Ok(Found {
        stacks,
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

/// Who allocated leaked objects, by their first addresses, as `audit` has recorded it.
fn audited(heap: &Heap, memory: &dyn Memory, leaked: &[Object]) -> HashMap<u64, Vec<u64>> {
    let mut stacks = HashMap::new();
    let leaked: HashSet<_> = leaked.iter().collect();
    if let Some(records) = heap.records.as_ref().filter(|_| !leaked.is_empty()) {
        records.each(memory, |record| {
            let object = heap
                .object(record.object)
                .filter(|_| record.is_live() && !record.frames.is_empty());
            if let Some(object) = object.filter(|object| leaked.contains(object)) {
                stacks.insert(heap.start(object), record.frames);
            }
        });
    }
    stacks
}

/// The functions of stacks; those of the library itself are of no interest.
fn named(stacks: HashMap<u64, Vec<u64>>, modules: &Modules) -> HashMap<u64, Vec<String>> {
    let named = stacks
        .into_iter()
        .map(|(address, frames)| (address, names_of(frames, modules)));
    named.collect()
}

fn names_of(frames: Vec<u64>, modules: &Modules) -> Vec<String> {
    profile::names(modules, &profile::foreign(modules, frames))
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
    let anchor = anchor_of(&core, &modules).ok_or_else(|| no_anchor(WHAT))?;
    let heap = read(&core, &anchor, &Owners::of(None));
    let leaked = search(&heap, &core, &mappings, core.threads(), 0);
    Ok(Found {
        stacks: named(audited(&heap, &core, &leaked), &modules),
        heap,
        leaked,
        stood: None,
    })
}

/// A row for each size and stack, most bytes first.
fn rows(found: &Found) -> Vec<Value> {
    let mut groups: BTreeMap<(u64, Option<&Vec<String>>), Vec<u64>> = BTreeMap::new();
    for object in &found.leaked {
        let place = &found.heap.places[object.0];
        let address = found.heap.start(*object);
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
