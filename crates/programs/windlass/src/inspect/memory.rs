//! Commands that look at memory: `dump`, `whatis`, `maps`, `list`, `find`.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Value as Json, json};
use windlass_target::Memory;
use windlass_target::maps;
use windlass_types::{Kind, Node, Place};

use crate::Session;
use crate::failure::Failure;
use crate::memory::describe;
use crate::table::clean;

use super::commands::Call;
use super::target::{Program, Target, Typed};
use super::value::{self, Value};
use super::view::{End, NODES_MAX};
use super::{absent, interrupt};

/// Bytes that `dump` shows at most.
const DUMP_MAX: u64 = 1 << 20;

/// Bytes as hexadecimal numbers and text, 16 a line.
pub(super) fn dump(target: &Target<'_>, at: u64, len: u64) -> Result<String, Failure> {
    let mut bytes = vec![0; usize::try_from(len.min(DUMP_MAX)).unwrap_or(0)];
    let there = target.read(at, &mut bytes);
    if there == 0 {
        target.bytes(at, 1)?;
    }
    bytes.truncate(there);
    let mut out = String::new();
    for (number, line) in (0_u64..).zip(bytes.chunks(16)) {
        let _ = write!(out, "{:#014x} ", at.wrapping_add(number * 16));
        for place in 0..16 {
            let gap = if place == 8 { " " } else { "" };
            let _ = match line.get(place) {
                Some(byte) => write!(out, "{gap} {byte:02x}"),
                None => write!(out, "{gap}   "),
            };
        }
        let text = line.iter().map(|byte| match byte {
            32..127 => char::from(*byte),
            _ => '.',
        });
        let _ = writeln!(out, "  {}", text.collect::<String>());
    }
    if (there as u64) < len.min(DUMP_MAX) {
        let _ = writeln!(out, "<fault {:#x}>", at.wrapping_add(there as u64));
    }
    Ok(out)
}

/// What an address is.
pub(super) fn whatis(target: &Target<'_>, address: u64) -> String {
    if let Program::Process { pid, .. } = target.opened.program
        && let Some(text) = describe(pid, address)
    {
        return text;
    }
    let modules = &target.opened.modules;
    if let Some(symbol) = modules.symbol(address) {
        return format!("{symbol} in {}", symbol.module);
    }
    let mapping = maps::find(&target.opened.mappings, address);
    if let Some(text) = mapping.and_then(|mapping| variable(target, mapping, address)) {
        return text;
    }
    match mapping {
        Some(mapping) if mapping.name.is_empty() => "in an anonymous mapping".to_owned(),
        Some(mapping) => format!("in {}", mapping.name),
        None => "mapped nowhere".to_owned(),
    }
}

/// The variable of a file that an address is in.
fn variable(target: &Target<'_>, mapping: &maps::Mapping, address: u64) -> Option<String> {
    let path = mapping.path()?;
    let all = target.modules().iter().enumerate();
    let (number, module) = all.into_iter().find(|(_, module)| module.path() == path)?;
    let types = target.types(number);
    let names = types.search("*", &|kind| kind == Kind::Variable).ok()?;
    names.iter().find_map(|found| {
        let Ok((ty, Place::Address(at))) = types.variable(&found.name) else {
            return None;
        };
        let inside = address.checked_sub(at.wrapping_add(module.bias()))?;
        let name = &found.name;
        (inside < types.size(ty)?).then(|| format!("{name}+{inside:#x} in {}", module.name()))
    })
}

/// What is mapped.
pub(super) fn mappings(target: &Target<'_>) -> Vec<Json> {
    let row = |mapping: &maps::Mapping| {
        let letter = |is_set, letter| if is_set { letter } else { '-' };
        let perm: String = [
            letter(mapping.is_readable, 'r'),
            letter(mapping.is_writable, 'w'),
            letter(mapping.is_executable, 'x'),
            letter(mapping.is_shared, 's'),
        ]
        .iter()
        .collect();
        json!({
            "start": format!("{:#x}", mapping.start), "end": format!("{:#x}", mapping.end), "size": mapping.end - mapping.start,
            "perm": perm, "offset": format!("{:#x}", mapping.offset), "name": clean(&mapping.name),
        })
    };
    target.opened.mappings.iter().map(row).collect()
}

/// The addresses of a list's nodes: from the first on, each one the value of the member before. Ends at 0, where it comes back, and where
/// it cannot be read; says which.
pub(super) fn list(
    target: &Target<'_>,
    of: Typed,
    member: &str,
    first: u64,
) -> Result<(Vec<u64>, End), Failure> {
    let located = value::member(target, of, member)?;
    let is_pointer = matches!(
        target.node(target.complete(located.of)),
        Node::Pointer { .. }
    );
    if !is_pointer {
        let why = format!("{} is no pointer", clean(member));
        return Err(absent(why, "name the member that leads to the next node"));
    }
    let follow = |at| match located.at(target, &[at])? {
        Value::Number { value, .. } => Ok(value),
        Value::Object { at, .. } => {
            let mut next = [0; 8];
            next.copy_from_slice(&target.bytes(at, 8)?);
            Ok(u64::from_le_bytes(next))
        }
    };
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    let mut at = first;
    while at != 0 {
        if all.len() >= NODES_MAX {
            return Ok((all, End::Cut(format!("after {NODES_MAX} items"))));
        }
        if all.len().is_multiple_of(1024) && interrupt::has_come() {
            return Ok((all, End::Cut("by an interrupt".to_owned())));
        }
        // The first one is where most lists with a head end.
        if !seen.insert(at) {
            let end = match at == first {
                true => End::All,
                false => End::Cut(format!("it comes back to {at:#x}")),
            };
            return Ok((all, end));
        }
        match follow(at) {
            Ok(next) => {
                all.push(at);
                at = next;
            }
            Err(failure) if all.is_empty() => return Err(failure),
            Err(_) => return Ok((all, End::Cut(format!("<fault {at:#x}>")))),
        }
    }
    Ok((all, End::All))
}

/// Bytes of memory that are searched at once.
const PART: usize = 1 << 20;
/// Places that a search finds at most.
const FOUND_MAX: usize = 100_000;

/// `find VALUE`
pub(super) fn find(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let wanted = call.address(target, call.rest)?;
    Ok(words(target, &|word| word == wanted))
}

/// The addresses of words in writable memory of which something holds.
pub(super) fn words(target: &Target<'_>, is_wanted: &dyn Fn(u64) -> bool) -> Vec<Value> {
    let of = target.void();
    let mut found = Vec::new();
    let mut space = vec![0; PART];
    let writable = target
        .opened
        .mappings
        .iter()
        .filter(|mapping| mapping.is_writable);
    for mapping in writable {
        let mut at = mapping.start;
        while at < mapping.end && found.len() < FOUND_MAX && !interrupt::has_come() {
            let len = usize::try_from(mapping.end - at).unwrap_or(PART).min(PART);
            let read = target.opened.read(at, &mut space[..len]);
            for (number, word) in (0_u64..).zip(space[..read].as_chunks().0) {
                if is_wanted(u64::from_le_bytes(*word)) {
                    let at = at.wrapping_add(number * 8);
                    found.push(Value::Object { of, at });
                }
            }
            at = at.saturating_add(len as u64);
        }
    }
    if found.len() >= FOUND_MAX {
        eprintln!("windlass: more than {FOUND_MAX} places; the rest is left out");
    }
    found
}
