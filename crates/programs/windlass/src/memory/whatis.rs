//! `windlass memory whatis`: what an address is.

use serde_json::{Value, json};
use windlass_target::Modules;
use windlass_target::maps::{self, Mapping};

use super::heap::{Heap, Kind};

/// What an address is, as a sentence and as its parts.
pub(crate) fn what(
    heap: &Heap,
    mappings: &[Mapping],
    modules: &Modules,
    name: &dyn Fn(usize, u64) -> String,
    address: u64,
) -> (String, Value) {
    let Some((number, index)) = heap.object(address) else {
        return stranger(heap, mappings, modules, address);
    };
    let place = &heap.places[number];
    let start = place.start.saturating_add(index * place.size);
    let inside = address.saturating_sub(start);
    let state = match (place.is_taken(index), place.is_cached(index)) {
        (true, _) => "allocated",
        (_, true) => "free, in a magazine or a depot",
        _ => "free",
    };
    let (kind, of) = match place.kind {
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
            format!(
                "large object of {} bytes at {start:#x}, {inside} bytes in, {state}",
                place.size
            ),
        ),
        Kind::Mapping => (
            "mapping",
            format!(
                "large object of {} bytes at {start:#x}, a mapping of its own, {inside} bytes in, {state}",
                place.size
            ),
        ),
    };
    let span = heap.span(address).filter(|_| place.kind != Kind::Mapping);
    let in_span = span.map_or(String::new(), |(number, used, broken)| {
        let whole = if broken { "broken" } else { "whole" };
        format!(", span {number} ({whole}, {used} of 32 units in use)")
    });
    let class = match place.kind {
        Kind::Slab { class, .. } => Some(name(class, place.size)),
        _ => None,
    };
    let row = json!({
        "address": format!("{address:#x}"), "kind": kind, "cache": class, "start": format!("{start:#x}"), "size": place.size,
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
