//! The allocator's own tables, in the memory of a process or of a core: which objects there are, and which the program has.
//!
//! # Model
//! A [`Place`] is a slab, a run of units, or a mapping. An object of it is the program's unless the slab's bitmap, a depot or a magazine has it. The
//! anchor says where all these are. Counts and offsets of it are bounded before they are used; lists that do not end are cut.

use std::collections::HashSet;

use windlass_memory::{Anchor, CACHE_OWNERS, SAMPLED};
use windlass_target::Memory;

use super::records::Records;

/// Units of the largest arena.
const UNITS_MAX: u64 = (1 << 40) / UNIT;
/// Bytes of a unit.
pub(crate) const UNIT: u64 = 64 << 10;
/// Units of a span.
const SPAN_UNITS: u64 = 32;
/// Bytes of a record: of a unit, and of anything else.
const SLAB_MAX: u64 = 64 << 10;
const RECORD_MAX: u64 = 512;
/// Objects of all slabs, so that tables that lie need no more than half a gigabyte.
const OBJECTS_MAX: u64 = 1 << 31;
const CACHES_MAX: usize = 1 << 16;
/// Words of [`Heap::in_transit`].
const TRANSIT_MAX: usize = 1 << 20;
const MAGAZINES_MAX: u64 = 1024;
/// Bytes of a thread's cache with its slots, at most.
const CACHE_MAX: usize = 256 << 10;
const DEPOT_MAX: u64 = 512;
/// Slabs, runs and mappings, of some 150 bytes each here; what a program has beyond is not known.
const PLACES_MAX: usize = 1 << 22;
/// Bytes of a table of spans or mappings.
const TABLE_MAX: u64 = 256 << 20;
/// Slots above the topmost one that a thread inside the allocator may be at.
const IN_TRANSIT: usize = 64;

/// Sizes of a class's objects and slabs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Geometry {
    pub(crate) size: u64,
    pub(crate) units: u64,
}

/// What a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A slab of a class or a cache, by its owner's number, or of the sampled objects of a class.
    Slab { class: usize, is_sampled: bool },
    /// Units of a large object.
    Run,
    /// A large object that is a mapping of its own.
    Mapping,
}

/// Memory that one object or objects of one size share.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) start: u64,
    /// Bytes of an object.
    pub(crate) size: u64,
    pub(crate) count: u64,
    pub(crate) kind: Kind,
    /// A bit for each object: not free in the slab.
    out: Bits,
    /// A bit for each object: in a magazine or a depot.
    cached: Bits,
}

/// Bits by number; those beyond the end are 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(count: u64) -> Self {
        Self(vec![0; usize::try_from(count.div_ceil(64)).unwrap_or(0)])
    }

    pub(crate) fn get(&self, at: u64) -> bool {
        let word = usize::try_from(at / 64)
            .ok()
            .and_then(|word| self.0.get(word));
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// Sets a bit; `false` if it was set before.
    pub(crate) fn set(&mut self, at: u64) -> bool {
        let word = usize::try_from(at / 64)
            .ok()
            .and_then(|word| self.0.get_mut(word));
        word.is_some_and(|word| {
            let before = *word;
            *word |= 1 << (at % 64);
            *word != before
        })
    }
}

impl Place {
    /// Whether the program has an object.
    pub(crate) fn is_taken(&self, index: u64) -> bool {
        self.out.get(index) && !self.cached.get(index)
    }

    /// Whether an object is in a magazine or a depot.
    pub(crate) fn is_cached(&self, index: u64) -> bool {
        self.cached.get(index)
    }

    pub(crate) fn end(&self) -> u64 {
        self.start
            .saturating_add(self.size.saturating_mul(self.count))
    }
}

/// An object, by its place's number and its number there.
pub(crate) type Object = (usize, u64);

/// What the tables say.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    base: u64,
    pub(crate) places: Vec<Place>,
    /// Of each unit, 1 + the number of its place.
    by_unit: Vec<u32>,
    /// Numbers of mappings, in the order of their addresses.
    mappings: Vec<usize>,
    /// Start and end of the tables themselves.
    pub(crate) own: Vec<(u64, u64)>,
    /// Start and end of slabs of unknown objects, which refer to others and are no leaks.
    pub(crate) unknown: Vec<(u64, u64)>,
    /// Slots that a thread inside the allocator may be filling or emptying.
    pub(crate) in_transit: Vec<u64>,
    /// With debugging words.
    pub(crate) records: Option<Records>,
    /// Units in use for each span, and whether it was broken.
    spans: Vec<(u32, bool)>,
}

impl Heap {
    /// Reads the tables; `class` gives the sizes of each owner of slabs.
    pub(crate) fn read(
        memory: &dyn Memory,
        anchor: &Anchor,
        class: &dyn Fn(usize) -> Option<Geometry>,
    ) -> Self {
        let units = match anchor.arena {
            0 => 0,
            _ => memory.word(anchor.units).unwrap_or(0).min(UNITS_MAX),
        };
        let mut heap = Self {
            base: anchor.arena,
            by_unit: vec![0; usize::try_from(units).unwrap_or(0)],
            ..Self::default()
        };
        let map = bytes(memory, anchor.map, units);
        heap.own
            .push((anchor.map, anchor.map.saturating_add(units)));
        heap.slabs(memory, anchor, &map, class);
        heap.unknown(&map);
        heap.runs(memory, anchor, &map);
        heap.mappings(memory, anchor);
        heap.caches(memory, anchor);
        for states in [anchor.classes, anchor.sampled_classes] {
            heap.depots(memory, anchor, states);
        }
        heap.records = Records::read(memory, anchor.debug);
        heap.debugged(memory);
        heap
    }

    fn add(&mut self, place: Place, units: std::ops::Range<u64>) {
        if self.places.len() >= PLACES_MAX {
            return;
        }
        self.places.push(place);
        let number = u32::try_from(self.places.len()).unwrap_or(0);
        for unit in units {
            if let Some(entry) = usize::try_from(unit)
                .ok()
                .and_then(|unit| self.by_unit.get_mut(unit))
            {
                *entry = number;
            }
        }
    }

    fn slabs(
        &mut self,
        memory: &dyn Memory,
        anchor: &Anchor,
        map: &[u8],
        class: &dyn Fn(usize) -> Option<Geometry>,
    ) {
        let stride = anchor.slab_stride;
        let all = (map.len() as u64).saturating_mul(stride);
        self.own
            .push((anchor.slabs, anchor.slabs.saturating_add(all)));
        if !(1..=SLAB_MAX).contains(&stride) {
            return;
        }
        let mut left = OBJECTS_MAX;
        let mut record = vec![0; stride as usize];
        for (unit, entry) in map.iter().enumerate().filter(|(_, entry)| **entry != 0) {
            let unit = unit as u64;
            let at = anchor.slabs.wrapping_add(unit.wrapping_mul(stride));
            if !memory.read_all(at, &mut record) || byte(&record, anchor.slab_back) != Some(0) {
                continue;
            }
            // Caches without a class share an entry of the map.
            let owner = half(&record, anchor.slab_class) as u16;
            let is_sampled = usize::from(*entry) >= SAMPLED;
            let number = match usize::from(owner) {
                cache @ CACHE_OWNERS.. => cache,
                _ => usize::from(*entry) % SAMPLED,
            };
            let Some(of) =
                class(number).filter(|of| of.size > 0 && (1..=SPAN_UNITS).contains(&of.units))
            else {
                continue;
            };
            let count = of.units * UNIT / of.size;
            let Some(rest) = left.checked_sub(count) else {
                break;
            };
            left = rest;
            let mut out = Bits::new(count);
            let bits = usize::try_from(anchor.slab_bits)
                .ok()
                .and_then(|at| record.get(at..));
            let words = bits.unwrap_or_default().chunks_exact(8);
            for (word, bytes) in out.0.iter_mut().zip(words) {
                // 1 is free there.
                *word = !word_of(bytes);
            }
            let place = Place {
                start: self.base.wrapping_add(unit * UNIT),
                size: of.size,
                count,
                kind: Kind::Slab {
                    class: number,
                    is_sampled,
                },
                out,
                cached: Bits::new(count),
            };
            self.add(place, unit..unit + of.units);
        }
    }

    /// Units of slabs whose objects' size is not known: those of object caches in a core, and of caches without a row.
    fn unknown(&mut self, map: &[u8]) {
        let of_places = map.iter().zip(&self.by_unit);
        for (unit, (entry, place)) in of_places.enumerate() {
            if *entry != 0 && *place == 0 {
                let start = self.base.wrapping_add(unit as u64 * UNIT);
                self.unknown.push((start, start.saturating_add(UNIT)));
            }
        }
    }

    /// Runs of large objects: units that are in use and have no slab.
    fn runs(&mut self, memory: &dyn Memory, anchor: &Anchor, map: &[u8]) {
        let stride = anchor.span_stride;
        let spans = (map.len() as u64).div_ceil(SPAN_UNITS);
        self.own.push((
            anchor.spans,
            anchor.spans.saturating_add(spans.saturating_mul(stride)),
        ));
        if !(1..=RECORD_MAX).contains(&stride) {
            return;
        }
        let records = bytes(memory, anchor.spans, spans * stride);
        for (span, record) in records.chunks_exact(stride as usize).enumerate() {
            let first = span as u64 * SPAN_UNITS;
            let [used, starts] = [anchor.span_used, anchor.span_starts].map(|at| half(record, at));
            let is_broken = byte(record, anchor.span_broken).is_some_and(|broken| broken != 0);
            self.spans.push((used.count_ones(), is_broken));
            let has_slab = |unit: u64| {
                map.get((first + unit) as usize)
                    .is_none_or(|entry| *entry != 0)
            };
            for unit in
                (0..SPAN_UNITS).filter(|unit| used & starts & 1 << unit != 0 && !has_slab(*unit))
            {
                let goes_on = |unit: &u64| used & !starts & 1 << unit != 0;
                let units = 1 + (unit + 1..SPAN_UNITS).take_while(goes_on).count() as u64;
                let place = whole(
                    self.base.wrapping_add((first + unit) * UNIT),
                    units * UNIT,
                    Kind::Run,
                );
                self.add(place, first + unit..first + unit + units);
            }
        }
    }

    fn mappings(&mut self, memory: &dyn Memory, anchor: &Anchor) {
        let (table, count) = (
            memory.word(anchor.mappings),
            memory.word(anchor.mappings.wrapping_add(8)),
        );
        let (Some(table), Some(count)) = (table, count) else {
            return;
        };
        let stride = anchor.mapping_stride;
        if !(16..=RECORD_MAX).contains(&stride) || count > TABLE_MAX / stride {
            return;
        }
        let all = bytes(memory, table, count * stride);
        self.own.push((table, table.saturating_add(count * stride)));
        for entry in all.chunks_exact(stride as usize) {
            let (start, len) = (word_of(entry), word_of(&entry[8..]));
            if start != 0 && len != 0 && start.checked_add(len).is_some() {
                self.mappings.push(self.places.len());
                self.add(whole(start, len, Kind::Mapping), 0..0);
            }
        }
        let places = &self.places;
        self.mappings.retain(|number| *number < places.len());
        self.mappings.sort_by_key(|number| places[*number].start);
    }

    /// What the magazines of all threads hold.
    fn caches(&mut self, memory: &dyn Memory, anchor: &Anchor) {
        let mut next = memory.word(anchor.caches).unwrap_or(0);
        let mut seen = HashSet::new();
        while next != 0
            && seen.len() < CACHES_MAX
            && self.in_transit.len() < TRANSIT_MAX
            && seen.insert(next)
        {
            let mut cache = vec![0; CACHE_MAX];
            let len = memory.read(next, &mut cache);
            cache.truncate(len);
            let mut end = 0;
            // A slot is one magazine's.
            let mut slots = cache.len() / 8;
            for magazine in 0..anchor.magazines.min(MAGAZINES_MAX) {
                let at = anchor
                    .cache_magazines
                    .saturating_add(magazine.saturating_mul(anchor.magazine_stride));
                let top = word_at(&cache, at)
                    .and_then(|top| usize::try_from(top.checked_sub(next)?).ok());
                // A magazine without slots points elsewhere.
                let is_slot = |top: &usize| top.is_multiple_of(8) && *top < cache.len();
                let Some(top) = top.filter(is_slot) else {
                    continue;
                };
                let mut slot = top;
                while slots > 0
                    && let Some(object) = word_at(&cache, slot as u64).filter(|word| *word != 0)
                {
                    slots -= 1;
                    self.cache(object);
                    let Some(lower) = slot.checked_sub(8) else {
                        break;
                    };
                    slot = lower;
                }
                end = end.max(slot);
                let above =
                    (1..=IN_TRANSIT).filter_map(|at| word_at(&cache, (top + at * 8) as u64));
                self.in_transit.extend(above.filter(|object| *object != 0));
            }
            let end = (end as u64).saturating_add(8).next_multiple_of(UNIT);
            self.own.push((next, next.saturating_add(end)));
            next = word_at(&cache, anchor.cache_next).unwrap_or(0);
        }
    }

    fn depots(&mut self, memory: &dyn Memory, anchor: &Anchor, states: u64) {
        if states == 0 {
            return;
        }
        for number in 0..SAMPLED as u64 {
            let state = states.wrapping_add(number.wrapping_mul(anchor.class_stride));
            let mut len = [0; 2];
            let is_there = memory.read_all(state.wrapping_add(anchor.depot_len), &mut len);
            let len = u64::from(u16::from_le_bytes(len)).min(DEPOT_MAX);
            let depot = memory.word(state.wrapping_add(anchor.depot));
            let (true, Some(depot)) = (is_there && len > 0, depot) else {
                continue;
            };
            for object in bytes(memory, depot, len * 8).chunks_exact(8) {
                self.cache(word_of(object));
            }
        }
    }

    fn cache(&mut self, address: u64) {
        if let Some((place, index)) = self.object(address)
            && let Some(place) = self.places.get_mut(place)
        {
            place.cached.set(index);
        }
    }

    /// With debugging words: the records are tables, too, and freed buffers that wait are not the program's.
    fn debugged(&mut self, memory: &dyn Memory) {
        let Some(records) = &self.records else {
            return;
        };
        self.own.extend(records.tables());
        let mut waiting = Vec::new();
        records.each(memory, |record| {
            if record.is_waiting() {
                waiting.push(record.object);
            }
        });
        waiting.into_iter().for_each(|object| self.cache(object));
    }

    /// The object that an address is in, whoever has it.
    pub(crate) fn object(&self, address: u64) -> Option<Object> {
        let unit = address.wrapping_sub(self.base) / UNIT;
        let by_unit = usize::try_from(unit)
            .ok()
            .and_then(|unit| self.by_unit.get(unit));
        let number = match by_unit {
            Some(0) => return None,
            Some(number) => *number as usize - 1,
            None => {
                let start = |number: &usize| self.places[*number].start;
                let after = self
                    .mappings
                    .partition_point(|number| start(number) <= address);
                *self.mappings.get(after.checked_sub(1)?)?
            }
        };
        let place = self.places.get(number)?;
        let index = address.checked_sub(place.start)? / place.size;
        (index < place.count).then_some((number, index))
    }

    /// The first address of an object.
    pub(crate) fn start(&self, (place, index): Object) -> u64 {
        let place = self.places.get(place);
        place.map_or(0, |place| place.start.saturating_add(index * place.size))
    }

    /// Start and end of the arena as far as it is usable.
    pub(crate) fn arena(&self) -> (u64, u64) {
        (
            self.base,
            self.base.saturating_add(self.by_unit.len() as u64 * UNIT),
        )
    }

    /// The span that an address is in: its number, units in use, and whether a part of it went back to the kernel.
    pub(crate) fn span(&self, address: u64) -> Option<(usize, u32, bool)> {
        let number = usize::try_from(address.checked_sub(self.base)? / UNIT / SPAN_UNITS).ok()?;
        self.spans
            .get(number)
            .map(|(used, broken)| (number, *used, *broken))
    }
}

/// A place that is one object.
fn whole(start: u64, len: u64, kind: Kind) -> Place {
    let mut out = Bits::new(1);
    out.set(0);
    Place {
        start,
        size: len,
        count: 1,
        kind,
        out,
        cached: Bits::new(1),
    }
}

/// Bytes of a table: as many as can be read, a part at a time, so that a length that lies allocates nothing.
fn bytes(memory: &dyn Memory, from: u64, len: u64) -> Vec<u8> {
    const PART: u64 = 1 << 20;
    let mut all = Vec::new();
    while (all.len() as u64) < len {
        let part = PART.min(len - all.len() as u64) as usize;
        let at = all.len();
        all.resize(at + part, 0);
        let Some(address) = from.checked_add(at as u64) else {
            break;
        };
        let read = memory.read(address, &mut all[at..]);
        if read < part {
            all.truncate(at + read);
            break;
        }
    }
    all
}

fn byte(record: &[u8], at: u64) -> Option<u8> {
    record.get(usize::try_from(at).ok()?).copied()
}

fn half(record: &[u8], at: u64) -> u32 {
    let found = usize::try_from(at)
        .ok()
        .and_then(|at| record.get(at..)?.first_chunk());
    u32::from_le_bytes(found.copied().unwrap_or_default())
}

fn word_at(record: &[u8], at: u64) -> Option<u64> {
    let found = record.get(usize::try_from(at).ok()?..)?.first_chunk()?;
    Some(u64::from_le_bytes(*found))
}

/// The first word of some bytes; 0 if they are too few.
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    word_at(bytes, 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_target::Snapshot;

    /// A list of caches that leads back to itself, whose magazines all claim every slot, is read once. It took days.
    #[test]
    fn caches_that_lie_take_no_time() {
        let (first, at) = (0x1000, 0x10_0000);
        let mut cache = vec![1; CACHE_MAX];
        let top = at + CACHE_MAX as u64 - 8;
        for (place, word) in [(0, top), (8, at)] {
            cache[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        let words = vec![0; Anchor::LEN];
        let anchor = Anchor {
            caches: first,
            cache_next: 8,
            magazines: u64::MAX,
            ..Anchor::from_bytes(&words).expect("zeros")
        };
        let memory = Snapshot::default()
            .with(first, u64::to_le_bytes(at).to_vec())
            .with(at, cache);
        let heap = Heap::read(&memory, &anchor, &|_| None);
        assert!(heap.in_transit.len() <= TRANSIT_MAX + 1024 * IN_TRANSIT);
        assert_eq!(heap.own.iter().filter(|own| own.0 == at).count(), 1);
    }

    /// A table of mappings that would be larger than any is not read.
    #[test]
    fn long_tables_are_refused() {
        let words = vec![0; Anchor::LEN];
        let (at, table, stride) = (0x1000, 0x10_0000, 16);
        let row: Vec<u8> = [1_u64 << 40, 4096]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        for (count, found) in [(1, 1), (TABLE_MAX / stride + 1, 0), (u64::MAX, 0)] {
            let head: Vec<u8> = [table, count]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect();
            let memory = Snapshot::default().with(at, head).with(table, row.clone());
            let anchor = Anchor {
                mappings: at,
                mapping_stride: stride,
                ..Anchor::from_bytes(&words).expect("zeros")
            };
            let heap = Heap::read(&memory, &anchor, &|_| None);
            assert_eq!(heap.places.len(), found, "{count}");
        }
    }
}
