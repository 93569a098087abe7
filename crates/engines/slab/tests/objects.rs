//! [`Cache`] against a plain model: every place has one owner, a value is constructed once, stays with its place, and is dropped once.

mod random;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use random::Random;
use windlass_slab::{Cache, Geometry, Handle, Object, SPAN, SPAN_UNITS, Slab, Span, UNIT};

/// Knows its place, and counts how many of it live.
struct Value {
    place: usize,
    uses: usize,
    live: Rc<Cell<usize>>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.live.set(self.live.get() - 1);
    }
}

/// Three handles and a program take and put at random; some constructions are refused.
#[test]
fn values_stay_with_their_places() {
    const SPANS: usize = 2;
    for (seed, bytes) in [(1, 64), (2, 200), (3, 2048), (4, 70_000)] {
        let geometry = Geometry::of_cache(bytes, 8, false).expect("not too large");
        let (mut spans, live) = (vec![Span::default(); SPANS], Rc::new(Cell::new(0)));
        let mut records = vec![Slab::default(); SPANS * SPAN_UNITS];
        let mut values: Vec<Option<Value>> = Vec::new();
        values.resize_with(SPANS * SPAN / bytes, || None);
        let mut cache = Cache::new(geometry, &mut spans, &mut records, &mut values);
        let mut handles: [Handle<Value>; 3] = Default::default();
        let mut program: Vec<Object<Value>> = Vec::new();
        let (mut random, mut constructed, mut reused, mut full) = (Random(seed), 0, 0, 0);
        for step in 0..40_000 {
            let handle = &mut handles[random.below(3)];
            // From nothing to more than the region has, and back.
            let grows = random.below(10) < if step / 5000 % 2 == 0 { 8 } else { 2 };
            if !grows && !program.is_empty() {
                let at = random.below(program.len());
                let object = program.swap_remove(at);
                put(&mut cache, handle, object);
                continue;
            }
            if handle.is_empty() {
                let refuses = random.below(20) == 0;
                let moved = cache.refill(handle, |place| {
                    assert!(place + bytes <= SPANS * SPAN);
                    constructed += 1;
                    // One that is refused is dropped at once.
                    live.set(live.get() + 1);
                    let live = live.clone();
                    (!refuses).then_some(Value {
                        place,
                        uses: 0,
                        live,
                    })
                });
                full += usize::from(moved == 0);
            }
            if let Some(mut object) = handle.take() {
                assert_eq!(object.offset(), object.place, "it stays with its place");
                reused += usize::from(object.uses > 0);
                object.uses += 1;
                program.push(object);
            }
            if step % 997 == 0 {
                check(&program, &handles, &cache, bytes);
            }
        }
        assert!(
            reused > constructed && (bytes < 2048 || full > 0),
            "{bytes}"
        );
        for object in program.drain(..) {
            put(&mut cache, &mut handles[0], object);
        }
        for handle in &mut handles {
            while !handle.is_empty() {
                cache.flush(handle);
            }
        }
        cache.drain();
        assert_eq!((cache.out(), live.get()), (0, 0), "all were dropped");
    }
}

fn put(cache: &mut Cache<'_, Value>, handle: &mut Handle<Value>, object: Object<Value>) {
    if let Err(object) = handle.put(object) {
        cache.flush(handle);
        assert!(handle.put(object).is_ok());
    }
}

fn check(
    program: &[Object<Value>],
    handles: &[Handle<Value>],
    cache: &Cache<'_, Value>,
    bytes: usize,
) {
    let held: usize = handles.iter().map(Handle::len).sum();
    assert_eq!(cache.out(), program.len() + held);
    let mut places = BTreeMap::new();
    for object in program {
        assert_eq!(places.insert(object.offset(), bytes), None);
    }
    let mut end = 0;
    for (start, len) in places {
        assert!(start >= end && start / UNIT <= (start + len) / UNIT);
        end = start + len;
    }
}
