//! Classes of caches against a plain model: an object is constructed once before it is handed out, stays so while it is free, and is
//! destructed once when its slab leaves (and M1 and M3 as for size classes).

mod random;

use std::collections::{BTreeMap, HashSet};

use random::Random;
use windlass_slab::{
    BATCH_MAX, Class, Emptied, Fault, Geometry, NoDepot, Records, SPAN, SPAN_UNITS, Slab, Span,
    Spans, UNIT,
};

const BASE: usize = 3 * SPAN;
const SPANS: usize = 60;
const STEPS: usize = 20_000;

struct World {
    caches: Vec<Class>,
    records: Vec<Slab>,
    spans: Spans<'static>,
    out: Vec<Vec<usize>>,
    constructed: HashSet<usize>,
}

impl World {
    /// Caches of which the even ones have a constructor.
    fn new(sizes: &[(usize, usize)]) -> Self {
        let mut spans = Spans::new();
        spans.extend(BASE, Vec::leak(vec![Span::default(); SPANS]));
        let cache = |(at, &(size, align)): (usize, &(usize, usize))| {
            let geometry = Geometry::of_cache(size, align, at % 2 == 0).expect("not too large");
            Class::new(1000 + at as u16, geometry)
        };
        Self {
            caches: sizes.iter().enumerate().map(cache).collect(),
            records: vec![Slab::default(); SPANS * SPAN_UNITS],
            spans,
            out: vec![Vec::new(); sizes.len()],
            constructed: HashSet::new(),
        }
    }

    /// Takes objects and constructs those that it must; now and then that fails.
    fn allocate(&mut self, at: usize, count: usize, random: &mut Random) {
        let mut out = [0; BATCH_MAX];
        let out = &mut out[..count.min(BATCH_MAX)];
        let cache = &mut self.caches[at];
        let mut taken = cache.refill(self.records.as_mut_slice(), BASE, out);
        if taken.count == 0 {
            let Some((unit, _)) = self.spans.take(cache.geometry().units(), 1) else {
                return;
            };
            cache.add(self.records.as_mut_slice(), unit);
            taken = cache.refill(self.records.as_mut_slice(), BASE, out);
        }
        assert!(taken.count > 0 && (taken.count == 64 || taken.fresh >> taken.count == 0));
        let mut failed = Vec::new();
        for (bit, &object) in out[..taken.count].iter().enumerate() {
            let is_fresh = taken.fresh >> bit & 1 == 1;
            if self.caches[at].geometry().constructs() {
                assert_eq!(is_fresh, !self.constructed.contains(&object));
            } else {
                assert!(!is_fresh);
            }
            if is_fresh && random.below(9) == 0 {
                failed.push(object);
            } else {
                if is_fresh {
                    self.constructed.insert(object);
                }
                self.out[at].push(object);
            }
        }
        let emptied = self.caches[at].give_up(self.records.as_mut_slice(), BASE, &failed);
        self.empty(at, emptied.expect("good addresses"));
    }

    fn free(&mut self, at: usize, count: usize, random: &mut Random) {
        for _ in 0..count.min(self.out[at].len() / 2) {
            let (one, two) = (random.below(self.out[at].len()), self.out[at].len() - 1);
            self.out[at].swap(one, two);
        }
        let kept = self.out[at].len().saturating_sub(count);
        let objects = self.out[at].split_off(kept);
        let emptied = self.caches[at].flush(self.records.as_mut_slice(), BASE, &objects);
        self.empty(at, emptied.expect("good addresses"));
    }

    fn drain(&mut self, at: usize) {
        while let Some(emptied) = self.caches[at].drain(self.records.as_mut_slice(), BASE) {
            self.empty(at, emptied.expect("good addresses"));
        }
    }

    /// Empty slabs go back: at once, or after their objects were destructed.
    fn empty(&mut self, at: usize, emptied: Emptied) {
        let mut waiting = self.caches[at].take_waiting();
        let of = *self.caches[at].geometry();
        while let Some(unit) = waiting.take(self.records.as_mut_slice()) {
            assert!(of.constructs(), "M3");
            let slab = self.records.as_mut_slice().slab(unit);
            while let Some(index) = slab.take_constructed() {
                let object = BASE + unit as usize * UNIT + index * of.size();
                assert!(self.constructed.remove(&object), "destructed once");
            }
            self.give_back(&of, unit);
        }
        let mut emptied = emptied;
        while let Some(unit) = emptied.take(self.records.as_mut_slice()) {
            assert!(!of.constructs());
            self.give_back(&of, unit);
        }
    }

    fn give_back(&mut self, of: &Geometry, unit: u32) {
        let start = BASE + unit as usize * UNIT;
        let inside = |object: &usize| (start..start + of.units() * UNIT).contains(object);
        assert!(
            !self.constructed.iter().any(inside),
            "all were destructed before"
        );
        assert_eq!(self.spans.release(start), Ok(of.units()));
    }

    /// Every object in one place, and the counts agree.
    fn check(&self) {
        let mut bytes = BTreeMap::new();
        for (cache, out) in self.caches.iter().zip(&self.out) {
            assert_eq!(cache.out(), out.len(), "M1");
            for &object in out {
                assert_eq!(bytes.insert(object, cache.geometry().size()), None, "M1");
                let is_one = self.constructed.contains(&object);
                assert_eq!(is_one, cache.geometry().constructs(), "never unconstructed");
            }
        }
        let mut end = 0;
        for (start, len) in bytes {
            assert!(start >= end, "M1: {start:#x} overlaps");
            end = start + len;
        }
    }
}

/// Random sequences over caches of many sizes: constructed once, destructed once, never handed out unconstructed.
#[test]
fn objects_are_constructed_once() {
    let sizes = [
        (1, 1),
        (200, 1),
        (200, 64),
        (16, 8),
        (4096, 4096),
        (5000, 8),
        (40_000, 8),
        (600_000, 8),
        (SPAN, UNIT),
    ];
    for seed in [1, 2, 3] {
        let (mut random, mut world) = (Random(seed), World::new(&sizes));
        for step in 0..STEPS {
            let (at, count) = (random.below(sizes.len()), 1 + random.below(BATCH_MAX));
            match random.below(20) {
                0 => world.drain(at),
                1 => (0..40).for_each(|_| world.free(at, BATCH_MAX, &mut random)),
                2..=11 => world.allocate(at, count, &mut random),
                _ => world.free(at, count, &mut random),
            }
            if step % 100 == 0 {
                world.check();
            }
        }
        for at in 0..sizes.len() {
            while !world.out[at].is_empty() {
                world.free(at, BATCH_MAX, &mut random);
            }
            world.drain(at);
        }
        world.check();
        assert!(world.constructed.is_empty(), "all were destructed");
        assert_eq!(world.spans.totals().0, 0);
    }
}

/// An object that is freed to another cache, twice, or not at its start is named, and what was freed before it stays free.
#[test]
fn wrong_objects_are_faults() {
    let mut world = World::new(&[(200, 8), (200, 8)]);
    let mut random = Random(4);
    (0..4).for_each(|_| world.allocate(0, 30, &mut random));
    let (good, next) = (world.out[0][0], world.out[0][1]);
    let records = world.records.as_mut_slice();
    let mut release =
        |at: usize, objects: &[usize]| world.caches[at].release(records, BASE, objects).err();
    assert_eq!(release(1, &[good]), Some(Fault::Unknown(good)));
    assert_eq!(
        release(0, &[good, next + 8]),
        Some(Fault::Interior(next + 8))
    );
    assert_eq!(release(0, &[next, good]), Some(Fault::Twice(good)));
    assert_eq!(world.caches[0].out(), world.out[0].len() - 2);
}

/// Takes as many objects as `out` has places, and returns how many of them are to be constructed.
fn take_all(class: &mut Class<NoDepot>, records: &mut [Slab], out: &mut [usize]) -> usize {
    let mut fresh = 0;
    for batch in out.chunks_mut(class.geometry().batch()) {
        let taken = class.refill(records, BASE, batch);
        assert_eq!(taken.count, batch.len());
        fresh += taken.fresh.count_ones() as usize;
    }
    fresh
}

/// The depot takes several batches at once and gives what is asked for; slabs give a batch, and take what the depot has no room for.
#[test]
fn batches_move_together() {
    let mut class: Class = Class::new(5, Geometry::of_class(5));
    let mut records = vec![Slab::default(); SPAN_UNITS];
    let records = records.as_mut_slice();
    let batch = class.geometry().batch();
    class.add(records, 0);
    let mut all = vec![0; 10 * batch];
    let taken = class.refill(records, BASE, &mut all);
    assert_eq!(taken.count, batch, "from a slab");
    for place in all.chunks_mut(batch).skip(1) {
        assert_eq!(class.refill(records, BASE, place).count, batch);
    }
    let slabs = class.in_slabs();
    let emptied = class.flush(records, BASE, &all);
    assert_eq!(emptied, Ok(Emptied::default()));
    assert_eq!(class.in_depot(), 8 * batch);
    assert_eq!(class.in_slabs(), slabs + 2 * batch);
    let mut again = vec![0; 3 * batch + 1];
    assert_eq!(class.refill(records, BASE, &mut again).count, again.len());
    assert_eq!(class.in_depot(), 5 * batch - 1);
    assert!(again.iter().all(|object| all.contains(object)));
    // What is left of a batch is taken before a slab has to give.
    let mut rest = vec![0; 5 * batch];
    assert_eq!(class.refill(records, BASE, &mut rest).count, rest.len() - 1);
    assert_eq!((class.in_depot(), class.in_slabs()), (0, slabs + 2 * batch));
}

/// A class without a depot keeps one empty slab, with what is constructed in it, and gives it back when it is asked to.
#[test]
fn one_empty_slab_stays() {
    let geometry = Geometry::of_cache(30_000, 8, true).expect("not too large");
    let mut class = Class::<NoDepot>::new(300, geometry);
    let mut records = vec![Slab::default(); SPAN_UNITS];
    let records = records.as_mut_slice();
    let step = geometry.units() as u32;
    (0..2).for_each(|slab| class.add(records, slab * step));
    let mut all = [0; BATCH_MAX];
    let all = &mut all[..2 * geometry.objects()];
    assert_eq!(take_all(&mut class, records, all), all.len());
    let emptied = class.release(records, BASE, all).expect("good addresses");
    assert_eq!((emptied, class.slabs()), (Emptied::default(), 1));
    assert!(
        class.take_waiting() != Emptied::default(),
        "the other has left"
    );
    let some = &mut all[..geometry.objects()];
    assert_eq!(take_all(&mut class, records, some), 0, "constructed");
    class.release(records, BASE, some).expect("good addresses");
    assert_eq!(class.slabs(), 1);
    class.take_spare(records);
    assert_eq!((class.slabs(), class.in_slabs()), (0, 0));
    assert!(class.take_waiting() != Emptied::default());
}
