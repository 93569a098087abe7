//! `windlass memory leaks --scan`: objects that nothing points to.
//!
//! # Model
//! Conservative marking from outside. Roots are the registers of every thread, its stack from its pointer up, and all memory that the program may
//! write to and that is no object: data, anonymous and shared mappings, slabs whose objects' size is unknown, without the allocator's own tables. A word that has the address of a byte of an
//! object is a reference. An object is read when it is reached, all reached objects of a slab at once.
//!
//! # Failure modes
//! A number that looks like an address, and an address left over in a dead part of a frame, hide a leak. A reference that is kept encoded makes a leak of what is none.

use windlass_target::Memory;
use windlass_target::maps::{self, Mapping};
use windlass_target::threads::Registers;

use super::heap::{Bits, Heap, Kind, Object};

/// Bytes that are read at once.
const PART: usize = 256 << 10;
/// Bytes below the stack pointer that a function may use.
const RED_ZONE: u64 = 128;
const LIBRARY: &str = "libwindlass_alloc.so";

/// A program at one moment.
pub(crate) struct Moment<'a> {
    pub(crate) memory: &'a dyn Memory,
    pub(crate) mappings: &'a [Mapping],
    pub(crate) threads: &'a [(u32, Registers)],
    /// Inode of the status file, which names objects; 0: none.
    pub(crate) status: u64,
}

/// What is reached.
struct Marks<'a> {
    heap: &'a Heap,
    reached: Vec<Bits>,
    /// Reached and not read yet.
    waiting: Vec<Vec<u64>>,
    queue: Vec<usize>,
}

impl Marks<'_> {
    fn mark(&mut self, word: u64) {
        let Some((place, index)) = self.heap.object(word) else {
            return;
        };
        if !self.heap.places[place].is_taken(index) || !self.reached[place].set(index) {
            return;
        }
        if self.waiting[place].is_empty() {
            self.queue.push(place);
        }
        self.waiting[place].push(index);
    }

    fn words(&mut self, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks();
        words
            .iter()
            .for_each(|word| self.mark(u64::from_le_bytes(*word)));
    }

    fn range(&mut self, memory: &dyn Memory, (start, end): (u64, u64), space: &mut [u8]) {
        let mut at = start.checked_next_multiple_of(8).unwrap_or(end);
        while at < end {
            let part = (end - at).min(space.len() as u64) as usize;
            let read = memory.read(at, &mut space[..part]);
            self.words(&space[..read]);
            // What cannot be read is no reference: the page is beyond the end of its file.
            at += part as u64;
        }
    }

    /// Reads what was reached, until nothing new is.
    fn follow(&mut self, memory: &dyn Memory, space: &mut [u8]) {
        while let Some(number) = self.queue.pop() {
            let place = &self.heap.places[number];
            let indices = std::mem::take(&mut self.waiting[number]);
            let of = |index: u64| place.start.saturating_add(index * place.size);
            let all = place.size * place.count;
            if indices.len() == 1 || all > PART as u64 {
                for index in indices {
                    self.range(
                        memory,
                        (of(index), of(index).saturating_add(place.size)),
                        space,
                    );
                }
                continue;
            }
            let read = memory.read(place.start, &mut space[..all as usize]);
            for index in indices {
                let from = (index * place.size) as usize;
                let to = from + place.size as usize;
                if let Some(bytes) = space[..read].get(from..to) {
                    let bytes = bytes.to_vec();
                    self.words(&bytes);
                }
            }
        }
    }
}

/// The objects that nothing points to.
pub(crate) fn scan(heap: &Heap, moment: &Moment<'_>) -> Vec<Object> {
    let mut marks = Marks {
        heap,
        reached: heap
            .places
            .iter()
            .map(|place| Bits::new(place.count))
            .collect(),
        waiting: vec![Vec::new(); heap.places.len()],
        queue: Vec::new(),
    };
    let mut space = vec![0; PART];
    for (_, registers) in moment.threads {
        registers
            .numbered
            .iter()
            .flatten()
            .for_each(|word| marks.mark(*word));
    }
    // Somebody is in the middle of moving objects between two places that are read one after the other.
    if moment
        .threads
        .iter()
        .any(|(_, registers)| is_inside(moment.mappings, registers.pc))
    {
        heap.in_transit.iter().for_each(|word| marks.mark(*word));
    }
    for range in roots(heap, moment) {
        marks.range(moment.memory, range, &mut space);
        marks.follow(moment.memory, &mut space);
    }
    marks.follow(moment.memory, &mut space);
    let mut leaked = Vec::new();
    for (number, place) in heap.places.iter().enumerate() {
        let lost = |index: &u64| place.is_taken(*index) && !marks.reached[number].get(*index);
        leaked.extend((0..place.count).filter(lost).map(|index| (number, index)));
    }
    leaked
}

fn is_inside(mappings: &[Mapping], pc: u64) -> bool {
    maps::find(mappings, pc).is_some_and(|mapping| mapping.name.contains(LIBRARY))
}

/// Memory in which references count: what the program may write to, without objects and the allocator's tables.
fn roots(heap: &Heap, moment: &Moment<'_>) -> Vec<(u64, u64)> {
    let mut without = heap.own.clone();
    without.push(heap.arena());
    let mapped = heap
        .places
        .iter()
        .filter(|place| place.kind == Kind::Mapping);
    without.extend(mapped.map(|place| (place.start, place.end())));
    let mut before: Option<&Mapping> = None;
    for mapping in moment.mappings {
        // What the library's file does not have of its data lies behind it.
        let is_behind = before.is_some_and(|before| {
            before.end == mapping.start && before.name.contains(LIBRARY) && mapping.name.is_empty()
        });
        if is_behind
            || mapping.name.contains(LIBRARY)
            || (moment.status != 0 && mapping.inode == moment.status)
        {
            without.push((mapping.start, mapping.end));
        }
        before = Some(mapping);
    }
    for (_, registers) in moment.threads {
        // Below its pointer a stack holds what was.
        if let Some(sp) = registers.sp()
            && let Some(stack) = maps::find(moment.mappings, sp)
        {
            without.push((stack.start, sp.saturating_sub(RED_ZONE).max(stack.start)));
        }
    }
    without.retain(|(start, end)| start < end);
    without.sort_unstable();
    let is_device = |name: &str| {
        name.starts_with("/dev/")
            && !name.starts_with("/dev/shm/")
            && !name.starts_with("/dev/zero")
    };
    let wanted = moment
        .mappings
        .iter()
        .filter(|mapping| mapping.is_readable && mapping.is_writable && !is_device(&mapping.name));
    let mut ranges = heap.unknown.clone();
    for mapping in wanted {
        let mut from = mapping.start;
        let first = without.partition_point(|(start, _)| *start < mapping.end);
        for (start, end) in without
            .get(..first)
            .unwrap_or_default()
            .iter()
            .filter(|(_, end)| *end > mapping.start)
        {
            if *start > from {
                ranges.push((from, *start));
            }
            from = from.max(*end);
        }
        if from < mapping.end {
            ranges.push((from, mapping.end));
        }
    }
    ranges
}
