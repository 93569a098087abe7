//! The engine against a plain model: every address in one place (M1), units in one slab (M2), empty slabs gone (M3), magazines below their
//! cap (M4), little kept (M5).

mod random;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use random::Random;
use windlass_slab::{
    BATCH_MAX, CLASSES, Class, Emptied, Fault, Geometry, Huge, Limits, Mapping, Mappings, Pages,
    SPAN, SPAN_UNITS, Slab, Span, Spans, UNIT, batch, limit_max, size, units,
};

const BASE: usize = 7 * SPAN;
const SPANS: usize = 40;
const THREADS: usize = 3;
const CAP: usize = 1 << 20;
const STEPS: usize = 30_000;

struct World {
    classes: Vec<Class>,
    slabs: Vec<Slab>,
    spans: Spans<'static>,
    map: Vec<u8>,
    limits: Vec<Limits>,
    magazines: Vec<[Vec<usize>; CLASSES]>,
    program: Vec<(usize, usize)>,
    runs: BTreeMap<usize, usize>,
    /// Ranges that were given out and not taken back, by their starts: what a slab or a run covers.
    taken: BTreeSet<u32>,
    /// Units that were handed out since they were last given back: what reads as something else than zeros.
    dirty: HashSet<u32>,
    /// Which pages a new span has.
    pages: fn(usize) -> Pages,
}

impl World {
    fn new() -> Self {
        let mut spans = Spans::new();
        spans.extend(BASE, Vec::leak(vec![Span::default(); SPANS]));
        Self {
            classes: (0..CLASSES)
                .map(|class| Class::new(class as u16, Geometry::of_class(class.max(1))))
                .collect(),
            slabs: vec![Slab::default(); SPANS * SPAN_UNITS],
            spans,
            map: vec![0; SPANS * SPAN_UNITS],
            limits: (0..THREADS).map(|_| Limits::new(CAP)).collect(),
            magazines: (0..THREADS)
                .map(|_| std::array::from_fn(|_| Vec::new()))
                .collect(),
            program: Vec::new(),
            runs: BTreeMap::new(),
            taken: BTreeSet::new(),
            dirty: HashSet::new(),
            pages: |_| Pages::Small,
        }
    }

    fn take_units(&mut self, units: usize, align: usize) -> Option<u32> {
        let (unit, is_zero) = self.spans.take(units, align)?;
        let span = unit as usize / SPAN_UNITS;
        let of_span = (span * SPAN_UNITS) as u32..((span + 1) * SPAN_UNITS) as u32;
        let is_touched = of_span.clone().any(|unit| self.dirty.contains(&unit));
        assert!(
            !(self.spans.is_new(unit) && is_touched),
            "span {span} is not new"
        );
        if self.spans.is_new(unit) {
            self.spans.set_pages(unit, (self.pages)(span));
        }
        assert_eq!(unit as usize % align, 0);
        assert_eq!(
            unit as usize / SPAN_UNITS,
            (unit as usize + units - 1) / SPAN_UNITS
        );
        for unit in unit..unit + units as u32 {
            assert!(self.taken.insert(unit), "unit {unit} was given out twice");
            let is_new = self.dirty.insert(unit);
            assert!(is_new || !is_zero, "unit {unit} is not zero");
        }
        Some(unit)
    }

    fn release_units(&mut self, unit: u32, expected: usize) {
        let freed = self.spans.release(BASE + unit as usize * UNIT);
        assert_eq!(freed, Ok(expected));
        for unit in unit..unit + expected as u32 {
            assert!(self.taken.remove(&unit));
        }
        self.give_back(self.spans.bound(12));
    }

    fn give_back(&mut self, bound: usize) {
        while let Some(range) = self.spans.excess(bound) {
            let first = ((range.start - BASE) / UNIT) as u32;
            let is_whole = range.len == SPAN;
            assert!(
                range.pages != Pages::Reserved || is_whole,
                "a part of {range:?}"
            );
            for unit in first..first + (range.len / UNIT) as u32 {
                assert!(!self.taken.contains(&unit), "{unit} is in use");
                self.dirty.remove(&unit);
            }
            assert!(self.spans.release(range.start).is_err());
            self.spans.returned(range);
        }
        assert!(self.spans.totals().1 <= bound, "M5");
    }

    fn empty(&mut self, mut emptied: Emptied, class: usize) {
        while let Some(unit) = emptied.take(self.slabs.as_mut_slice()) {
            for at in 0..units(class) {
                assert_eq!(usize::from(self.map[unit as usize + at]), class, "M2");
                self.map[unit as usize + at] = 0;
            }
            self.release_units(unit, units(class));
        }
    }

    /// Fills an empty magazine; `false` if the arena is full.
    fn refill(&mut self, thread: usize, class: usize) -> bool {
        self.limits[thread].grow(class, size(class), usize::MAX);
        let limit = self.limits[thread].get(class).max(1);
        let mut out = [0; BATCH_MAX];
        let out = &mut out[..limit.min(batch(class))];
        let mut taken = self.classes[class]
            .refill(self.slabs.as_mut_slice(), BASE, out)
            .count;
        if taken == 0 {
            let Some(unit) = self.take_units(units(class), 1) else {
                return false;
            };
            self.classes[class].add(self.slabs.as_mut_slice(), unit);
            for at in 0..units(class) {
                assert_eq!(self.map[unit as usize + at], 0, "M2");
                self.map[unit as usize + at] = class as u8;
            }
            taken = self.classes[class]
                .refill(self.slabs.as_mut_slice(), BASE, out)
                .count;
        }
        assert!(taken > 0);
        self.magazines[thread][class].extend(&out[..taken]);
        true
    }

    fn allocate(&mut self, thread: usize, class: usize) {
        if self.magazines[thread][class].is_empty() && !self.refill(thread, class) {
            return;
        }
        let address = self.magazines[thread][class].pop().expect("filled");
        self.program.push((address, class));
    }

    fn flush(&mut self, thread: usize, class: usize, count: usize) {
        let magazine = &mut self.magazines[thread][class];
        let objects = magazine.split_off(magazine.len() - count);
        let emptied = self.classes[class].flush(self.slabs.as_mut_slice(), BASE, &objects);
        self.empty(emptied.expect("good addresses"), class);
    }

    fn free(&mut self, thread: usize, at: usize) {
        let (address, class) = self.program.swap_remove(at);
        self.magazines[thread][class].push(address);
        let held = self.magazines[thread][class].len();
        if held > self.limits[thread].get(class) {
            self.limits[thread].grow(class, size(class), usize::MAX);
            if held > self.limits[thread].get(class) {
                self.flush(thread, class, held.min(batch(class)));
            }
        }
    }

    fn give_way(&mut self, thread: usize) {
        let except = 1;
        if let Some(class) = self.limits[thread].give_way(except) {
            assert_ne!(class, except);
            let held = self.magazines[thread][class].len();
            let over = held.saturating_sub(self.limits[thread].get(class));
            for part in (0..over).step_by(batch(class)) {
                self.flush(thread, class, batch(class).min(over - part));
            }
        }
    }

    /// Every address in one place, and the counts agree with what is where.
    fn check(&self) {
        let mut bytes = BTreeMap::new();
        let cached = self.magazines.iter().flat_map(|all| {
            let of = |(class, objects): (usize, &Vec<usize>)| {
                objects
                    .iter()
                    .map(|&object| (object, class))
                    .collect::<Vec<_>>()
            };
            all.iter().enumerate().flat_map(of).collect::<Vec<_>>()
        });
        let mut out = [0; CLASSES];
        for (address, class) in self.program.iter().copied().chain(cached) {
            assert_eq!(bytes.insert(address, size(class)), None, "M1");
            assert_eq!(usize::from(self.map[(address - BASE) / UNIT]), class, "M2");
            out[class] += 1;
        }
        for (&start, &run) in &self.runs {
            assert_eq!(bytes.insert(start, run * UNIT), None, "M1");
        }
        let mut end = 0;
        for (start, len) in bytes {
            assert!(start >= end, "M1: {start:#x} overlaps");
            end = start + len;
        }
        for (class, state) in self.classes.iter().enumerate().skip(1) {
            assert_eq!(state.out(), out[class], "M1: class {class}");
            let objects = units(class) * UNIT / size(class);
            assert!(state.in_slabs() <= state.slabs() * objects);
            assert!(
                state.slabs() == 0 || state.out() + state.in_depot() > 0,
                "M3"
            );
        }
        assert_eq!(self.spans.totals().0, self.taken.len());
        for (thread, limits) in self.limits.iter().enumerate() {
            let sum = (1..CLASSES)
                .map(|class| limits.get(class) * size(class))
                .sum();
            assert_eq!(limits.bytes(), sum);
            assert!(sum <= CAP, "M4");
            for class in 1..CLASSES {
                let held = self.magazines[thread][class].len();
                assert!(held <= limits.get(class).max(batch(class)) && held <= limit_max(class));
            }
        }
    }

    fn step(&mut self, random: &mut Random, live: usize) {
        let thread = random.below(THREADS);
        let class = 1 + random.below(CLASSES - 1);
        match random.below(100) {
            0..=44 => (0..1 + random.below(40)).for_each(|_| self.allocate(thread, class)),
            45..=84 => {
                for _ in 0..self
                    .program
                    .len()
                    .saturating_sub(random.below(live))
                    .min(80)
                {
                    let at = random.below(self.program.len());
                    self.free(thread, at);
                }
            }
            85..=90 => {
                let run = 1 + random.below(SPAN_UNITS);
                let align = 1 << random.below(if run == 1 { 6 } else { 2 });
                if let Some(unit) = self.take_units(run, align) {
                    self.runs.insert(BASE + unit as usize * UNIT, run);
                }
            }
            91..=95 => self.release_run(random),
            96 => self.resize_run(random),
            97 => self.give_way(thread),
            98 => self.drain(class),
            _ => self.give_back(0),
        }
    }

    fn some_run(&self, random: &mut Random) -> Option<(usize, usize)> {
        let at = random.below(self.runs.len().max(1));
        self.runs.iter().nth(at).map(|(&start, &run)| (start, run))
    }

    fn release_run(&mut self, random: &mut Random) {
        if let Some((start, run)) = self.some_run(random) {
            assert_eq!(self.spans.len(start), Ok(run));
            self.runs.remove(&start);
            self.release_units(((start - BASE) / UNIT) as u32, run);
        }
    }

    fn resize_run(&mut self, random: &mut Random) {
        let Some((start, run)) = self.some_run(random) else {
            return;
        };
        let wanted = 1 + random.below(SPAN_UNITS);
        let first = ((start - BASE) / UNIT) as u32;
        if self.spans.resize(start, wanted) == Ok(true) {
            for unit in first + wanted as u32..first + run as u32 {
                assert!(self.taken.remove(&unit));
            }
            for unit in first + run as u32..first + wanted as u32 {
                assert!(self.taken.insert(unit), "unit {unit} was given out twice");
                self.dirty.insert(unit);
            }
            self.runs.insert(start, wanted);
        }
        self.give_back(self.spans.bound(12));
    }

    fn drain(&mut self, class: usize) {
        while let Some(emptied) = self.classes[class].drain(self.slabs.as_mut_slice(), BASE) {
            self.empty(emptied.expect("good addresses"), class);
        }
    }

    /// Everything is freed and flushed: nothing is left.
    fn end(&mut self) {
        while !self.program.is_empty() {
            self.free(0, 0);
        }
        for thread in 0..THREADS {
            for class in 1..CLASSES {
                while !self.magazines[thread][class].is_empty() {
                    let held = self.magazines[thread][class].len();
                    self.flush(thread, class, held.min(batch(class)));
                }
            }
        }
        (1..CLASSES).for_each(|class| self.drain(class));
        while let Some((&start, &run)) = self.runs.iter().next() {
            self.runs.remove(&start);
            self.release_units(((start - BASE) / UNIT) as u32, run);
        }
        self.check();
        self.give_back(0);
        assert_eq!(self.spans.totals(), (0, 0, 0));
        assert_eq!(self.spans.huge(), Huge::default());
        assert!(
            self.classes
                .iter()
                .all(|class| class.slabs() == 0 && class.in_slabs() == 0)
        );
    }
}

/// Random sequences of every operation by three threads: M1 to M5 hold, and at the end nothing is left.
#[test]
fn random_sequences_keep_the_invariants() {
    for seed in [1, 2, 3] {
        let mut random = Random(seed);
        let mut world = World::new();
        world.pages = |span| [Pages::Small, Pages::Transparent, Pages::Reserved][span % 3];
        for step in 0..STEPS {
            // From nearly nothing to more than the arena has, and back.
            let live = [300, 6_000][step / (STEPS / 6) % 2];
            world.step(&mut random, live);
            if step % 100 == 0 {
                world.check();
            }
        }
        world.end();
    }
}

/// Wrong addresses are named, and change nothing.
#[test]
fn wrong_addresses_are_faults() {
    let mut world = World::new();
    let class = 5;
    (0..100).for_each(|_| world.allocate(0, class));
    let records = world.slabs.as_mut_slice();
    let good = world.program[0].0;
    let before = world.classes[class].in_slabs();
    let mut release = |class: usize, address| {
        world.classes[class]
            .release(records, BASE, &[address])
            .err()
    };
    assert_eq!(release(class, good + 8), Some(Fault::Interior(good + 8)));
    assert_eq!(release(class + 1, good), Some(Fault::Unknown(good)));
    assert_eq!(release(class, good), None);
    assert_eq!(release(class, good), Some(Fault::Twice(good)));
    assert_eq!(world.classes[class].in_slabs(), before + 1);

    let unit = world.take_units(4, 1).expect("room");
    let start = BASE + unit as usize * UNIT;
    for wrong in [start + UNIT, start + 8] {
        assert_eq!(world.spans.release(wrong), Err(Fault::Interior(wrong)));
        assert_eq!(world.spans.len(wrong), Err(Fault::Interior(wrong)));
    }
    for wrong in [BASE - UNIT, BASE + SPANS * SPAN, start + 4 * UNIT, 0] {
        assert_eq!(world.spans.release(wrong), Err(Fault::Unknown(wrong)));
    }
    assert_eq!(world.spans.release(start), Ok(4));
    assert_eq!(world.spans.release(start), Err(Fault::Unknown(start)));
}

/// Units come from the fullest span with room, so that the emptiest ones become empty.
#[test]
fn the_fullest_span_serves() {
    let mut world = World::new();
    let all: Vec<u32> = (0..3 * SPAN_UNITS)
        .map(|_| world.take_units(1, 1).expect("room"))
        .collect();
    for (at, &unit) in all.iter().enumerate() {
        // Of the first span 20 units go, of the second 3, of the third 10.
        if at % SPAN_UNITS < [20, 3, 10][at / SPAN_UNITS] {
            world.release_units(unit, 1);
        }
    }
    let spans = (0..14).map(|_| world.take_units(1, 1).expect("room") / SPAN_UNITS as u32);
    assert_eq!(
        spans.collect::<Vec<_>>(),
        [[1; 3].as_slice(), &[2; 10], &[0]].concat()
    );
}

/// Whole spans go back before any is broken; a broken one serves last.
#[test]
fn whole_spans_go_back_first() {
    let mut world = World::new();
    let all: Vec<u32> = (0..10 * SPAN_UNITS)
        .map(|_| world.take_units(1, 1).expect("room"))
        .collect();
    // The first span keeps one unit in use, the others none.
    for &unit in &all[1..] {
        world.release_units(unit, 1);
    }
    assert_eq!(world.spans.totals(), (1, 4 * SPAN_UNITS - 1, 0));
    world.give_back(SPAN_UNITS - 1);
    assert_eq!(world.spans.totals(), (1, SPAN_UNITS - 1, 0));
    world.give_back(0);
    assert_eq!(world.spans.totals(), (1, 0, 1));
}

/// Spans in huge pages serve before others. Empty ones go back whole; of one in use a part goes back only after all small pages that can, and of
/// one of the reserve none.
#[test]
fn huge_pages_break_last() {
    let mut world = World::new();
    world.pages = |span| {
        [
            Pages::Small,
            Pages::Transparent,
            Pages::Reserved,
            Pages::Reserved,
        ][span]
    };
    let all: Vec<u32> = (0..4 * SPAN_UNITS)
        .map(|_| world.take_units(1, 1).expect("room"))
        .collect();
    let huge = |transparent, broken, reserved| Huge {
        transparent,
        broken,
        reserved,
    };
    assert_eq!(world.spans.huge(), huge(1, 0, 2));
    // The first three spans keep one unit in use, the last none.
    for &unit in all
        .iter()
        .filter(|&unit| !unit.is_multiple_of(32) || *unit == 96)
    {
        world.release_units(unit, 1);
    }
    // What the span of the reserve could not give back does not count.
    assert_eq!(world.spans.totals(), (3, 3 * SPAN_UNITS - 2, 0));
    world.give_back(2 * SPAN_UNITS - 2);
    assert_eq!(world.spans.huge(), huge(1, 0, 1));
    world.give_back(SPAN_UNITS - 1);
    assert_eq!(
        (world.spans.huge(), world.spans.totals().2),
        (huge(1, 0, 1), 1)
    );
    world.give_back(0);
    assert_eq!(
        (world.spans.huge(), world.spans.totals().2),
        (huge(1, 1, 1), 2)
    );
    assert_eq!(world.take_units(1, 1), Some(65), "of the reserve");
}

/// Mappings against a map of the standard library.
#[test]
fn mappings_agree_with_a_map() {
    let mut random = Random(9);
    let mut table = Mappings::new();
    let mut model = BTreeMap::new();
    for _ in 0..50_000 {
        // Few starts, so that most are met again, in clusters.
        let start = (1 + random.below(600)) << 12;
        match random.below(3) {
            0 if !model.contains_key(&start) => {
                if let Some(places) = table.needs() {
                    table.move_to(Vec::leak(vec![Mapping::default(); places]));
                }
                let len = random.below(1 << 30);
                table.insert(Mapping { start, len });
                model.insert(start, len);
            }
            1 => assert_eq!(table.remove(start), model.remove(&start)),
            _ => assert_eq!(table.find(start), model.get(&start).copied()),
        }
        assert_eq!(table.totals().0, model.len());
    }
    assert_eq!(table.totals().1, model.values().sum());
}
