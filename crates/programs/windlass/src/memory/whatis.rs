//! `windlass memory whatis`: what an address is.

use serde_json::{Value, json};
use windlass_memory::CACHE_OWNERS;
use windlass_target::Modules;
use windlass_target::maps::{self, Mapping};

use super::heap::{Heap, Kind};
use super::records::Record;

/// What an address is, as a sentence and as its parts; `record`: of the buffer that it is in.
pub(crate) fn what(
    heap: &Heap,
    mappings: &[Mapping],
    modules: &Modules,
    name: &dyn Fn(usize, u64) -> String,
    address: u64,
    record: Option<&Record>,
) -> (String, Value) {
    let Some((number, index)) = heap.object(address) else {
        return stranger(heap, mappings, modules, address);
    };
    let place = &heap.places[number];
    let (start, size) = match record {
        Some(record) => (record.object, record.size),
        None => (place.start.saturating_add(index * place.size), place.size),
    };
    let inside = address.saturating_sub(start);
    let state = match record {
        Some(record) if record.is_live() => "allocated",
        Some(record) if record.is_waiting() => "freed, and kept from being used again",
        Some(_) => "freed",
        None if place.is_taken(index) => "allocated",
        None if place.is_cached(index) => "free, in a magazine or a depot",
        None => "free",
    };
    let cache = record.and_then(|record| record.cache);
    let cache = cache.map(|row| name(CACHE_OWNERS.saturating_add(row), size));
    let (kind, of) = match place.kind {
        _ if let Some(cache) = &cache => (
            "object",
            format!("object of {cache}, {inside} bytes in, {state}; {size} bytes at {start:#x}"),
        ),
        Kind::Slab { class, is_sampled } => {
            let sampled = if is_sampled { ", sampled" } else { "" };
            let slab = place.start;
            (
                "object",
                format!(
                    "object of {}{sampled}, {inside} bytes in, {state}; slab {slab:#x}",
                    name(class, place.size)
                ),
            )
        }
        Kind::Run => (
            "large",
            format!("large object of {size} bytes at {start:#x}, {inside} bytes in, {state}"),
        ),
        Kind::Mapping => (
            "mapping",
            format!(
                "large object of {size} bytes at {start:#x}, a mapping of its own, {inside} bytes in, {state}"
            ),
        ),
    };
    let span = heap.span(address).filter(|_| place.kind != Kind::Mapping);
    let in_span = span.map_or(String::new(), |(number, used, broken)| {
        let whole = if broken { "broken" } else { "whole" };
        format!(", span {number} ({whole}, {used} of 32 units in use)")
    });
    let class = cache.or_else(|| match place.kind {
        Kind::Slab { class, .. } => Some(name(class, place.size)),
        _ => None,
    });
    let row = json!({
        "address": format!("{address:#x}"), "kind": kind, "cache": class, "start": format!("{start:#x}"), "size": size,
        "offset": inside, "state": state, "span": span.map(|(number, ..)| number),
    });
    (of + &in_span, row)
}

/// An address that is no object's.
fn stranger(heap: &Heap, mappings: &[Mapping], modules: &Modules, address: u64) -> (String, Value) {
    let (start, end) = heap.arena();
    let is_in = |ranges: &[(u64, u64)]| {
        ranges
            .iter()
            .any(|(start, end)| (*start..*end).contains(&address))
    };
    let (kind, text) = if is_in(&heap.unknown) {
        (
            "object",
            "object of an object cache that has no row".to_owned(),
        )
    } else if (start..end).contains(&address) {
        let (number, used, _) = heap.span(address).unwrap_or_default();
        (
            "arena",
            format!("in the arena, of no object: span {number} has {used} of 32 units in use"),
        )
    } else if is_in(&heap.own) {
        ("allocator", "in the allocator's own tables".to_owned())
    } else {
        match (modules.symbol(address), maps::find(mappings, address)) {
            (Some(symbol), _) => ("code", format!("{symbol} in {}", symbol.module)),
            (None, Some(mapping)) if mapping.name.is_empty() => {
                ("memory", "in an anonymous mapping, of no object".to_owned())
            }
            (None, Some(mapping)) => ("memory", format!("in {}", mapping.name)),
            (None, None) => ("nothing", "mapped nowhere".to_owned()),
        }
    };
    let row = json!({ "address": format!("{address:#x}"), "kind": kind, "cache": null, "start": null, "size": null, "offset": null, "state": null,
        "span": null });
    (text, row)
}
