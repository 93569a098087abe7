//! Patterns and red zones.

use core::slice;

use windlass_memory::options::Key;

use crate::options;
use crate::sys;

use super::record::{LIVE, Record};
use super::tell::Place;
use super::{Buffer, PAGE};

/// Of memory that was never written since it was allocated.
const ALLOCATED: [u8; 4] = 0xbadd_cafe_u32.to_ne_bytes();
/// Of memory that is free.
const FREED: [u8; 4] = 0xdead_beef_u32.to_ne_bytes();
/// Of red zones.
const ZONE: [u8; 4] = 0xfeed_face_u32.to_ne_bytes();
/// Bytes of a red zone that are filled and verified.
pub const ZONE_MAX: usize = 256;

/// The zones before and behind an object: their addresses and lengths.
fn zones(object: usize, size: usize, base: usize, end: usize) -> [(usize, usize); 2] {
    let front = (object - base).min(ZONE_MAX);
    let rear = (end - object - size).min(ZONE_MAX);
    [(object - front, front), (object + size, rear)]
}

fn memory(start: usize, len: usize) -> &'static mut [u8] {
    // SAFETY: memory of ours in which no program may have anything: it is about to be handed out, was just freed, or is a zone. A program
    // that writes there all the same is what is looked for.
    unsafe { slice::from_raw_parts_mut(start as *mut u8, len) }
}

fn fill(start: usize, len: usize, pattern: [u8; 4]) {
    let mut chunks = memory(start, len).chunks_exact_mut(4);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&pattern);
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&pattern[..rest.len()]);
}

/// The first byte that is not the pattern's.
fn differs(start: usize, len: usize, pattern: [u8; 4]) -> Option<usize> {
    let bytes = memory(start, len);
    let chunk = bytes
        .chunks(4)
        .position(|chunk| chunk != &pattern[..chunk.len()])?
        * 4;
    let byte = (chunk..len).find(|&at| bytes[at] != pattern[at % 4])?;
    Some(start + byte)
}

fn filled(size: usize) -> usize {
    size.min(options::get(Key::Maxverify))
}

fn are_on() -> bool {
    options::get(Key::Guards) == 1
}

/// A buffer is about to be handed out.
pub fn allocated(buffer: &Buffer) {
    if !are_on() {
        return;
    }
    let wall = if buffer.is_walled { PAGE } else { 0 };
    let end = buffer.base + buffer.len - wall;
    for (start, len) in zones(buffer.object, buffer.size, buffer.base, end) {
        fill(start, len, ZONE);
    }
    fill(buffer.object, filled(buffer.size), ALLOCATED);
}

/// A buffer was freed. Whether nobody may touch any of it now.
pub fn freed(record: &Record) -> bool {
    if record.is_walled {
        sys::give_back(record.base, record.len - PAGE);
        return sys::forbid(record.base, record.len);
    }
    if are_on() {
        fill(record.object, filled(record.size), FREED);
    }
    false
}

/// What was written where nothing may be: outside a live buffer, or into a freed one.
pub fn damage(record: &Record) -> Option<(Place, usize)> {
    if !are_on() {
        return None;
    }
    let wall = if record.is_walled { PAGE } else { 0 };
    let end = record.base + record.len - wall;
    let [front, rear] = zones(record.object, record.size, record.base, end);
    let find = |(start, len), pattern, place| Some((place, differs(start, len, pattern)?));
    if let Some(found) = find(front, ZONE, Place::Before) {
        return Some(found);
    }
    if let Some(found) = find(rear, ZONE, Place::Behind) {
        return Some(found);
    }
    let body = (record.object, filled(record.size));
    match record.state {
        LIVE => None,
        _ => find(body, FREED, Place::After),
    }
}
