//! Objects of a Rust type, each with a place in a region of its user's.
//!
//! # Model
//! An [`Object`] is a value and its place: bytes of the region that nobody else has. [`Cache::refill`] constructs a value when its place is first
//! handed out; [`Cache::flush`] takes the objects back, whose values stay as they are until the slab of the place is empty. An object moves by
//! value, so that none is freed twice or used after it was freed; one that is dropped takes its place along.
//!
//! # Ownership and lifetime
//! A [`Handle`] is one thread's, and works without the cache while it is neither empty nor full. The cache is its user's, who has a lock for it where threads
//! share it. All metadata is the user's memory, apart from the region, which the cache never touches.

use core::ops::{Deref, DerefMut};

use crate::class::{Class, Emptied, Slab};
use crate::geometry::Geometry;
use crate::sizes::BATCH_MAX;
use crate::span::{Span, Spans};
use crate::{SPAN_UNITS, UNIT};

/// Owner of all slabs of a cache: its records are nobody else's.
const OWNER: u16 = 1;
/// Objects that a handle holds: two batches, so that one that was refilled can give as many back.
const HANDLE: usize = 2 * BATCH_MAX;

/// A constructed value and its place.
#[derive(Debug)]
pub struct Object<T> {
    offset: usize,
    value: T,
}

impl<T> Object<T> {
    /// Where its place starts in the region.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Object<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Free objects of one thread.
#[derive(Debug)]
pub struct Handle<T> {
    objects: [Option<Object<T>>; HANDLE],
    len: usize,
}

impl<T> Default for Handle<T> {
    /// An empty one.
    fn default() -> Self {
        Self {
            objects: [const { None }; HANDLE],
            len: 0,
        }
    }
}

impl<T> Handle<T> {
    /// An object; `None`: [`Cache::refill`] first.
    pub fn take(&mut self) -> Option<Object<T>> {
        self.len = self.len.checked_sub(1)?;
        self.objects[self.len].take()
    }

    /// Takes an object back.
    ///
    /// # Errors
    /// The object, if the handle is full: [`Cache::flush`] first.
    pub fn put(&mut self, object: Object<T>) -> Result<(), Object<T>> {
        let Some(place) = self.objects.get_mut(self.len) else {
            return Err(object);
        };
        *place = Some(object);
        self.len += 1;
        Ok(())
    }

    /// Objects that it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A cache of objects.
#[derive(Debug)]
pub struct Cache<'a, T> {
    class: Class,
    spans: Spans<'a>,
    records: &'a mut [Slab],
    values: &'a mut [Option<T>],
}

impl<'a, T> Cache<'a, T> {
    /// A cache over a region of as many spans as there are `spans`: places of what `geometry` says. `records` has an element for each unit of
    /// the region, and `values` for each object's size in it; all are empty.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn new(
        geometry: Geometry,
        spans: &'a mut [Span],
        records: &'a mut [Slab],
        values: &'a mut [Option<T>],
    ) -> Self {
        let units = spans.len() * SPAN_UNITS;
        assert!(records.len() >= units && values.len() >= units * UNIT / geometry.size());
        let mut all = Spans::new();
        all.extend(0, spans);
        Self {
            class: Class::new(OWNER, geometry),
            spans: all,
            records,
            values,
        }
    }

    /// Objects that handles and the program have.
    pub fn out(&self) -> usize {
        self.class.out()
    }

    /// Moves a batch of objects to a handle, and constructs those whose place is new: `construct` gets its offset, and refuses by `None`.
    /// Returns how many: 0 if the region is full, or the first construction was refused.
    pub fn refill(
        &mut self,
        handle: &mut Handle<T>,
        mut construct: impl FnMut(usize) -> Option<T>,
    ) -> usize {
        let mut places = [0; BATCH_MAX];
        let batch = self.class.geometry().batch().min(HANDLE - handle.len);
        let mut taken = self.class.refill(self.records, 0, &mut places[..batch]);
        if taken.count == 0
            && batch > 0
            && let Some((unit, _)) = self.spans.take(self.class.geometry().units(), 1)
        {
            self.class.add(self.records, unit);
            taken = self.class.refill(self.records, 0, &mut places[..batch]);
        }
        let mut moved = 0;
        for &offset in &places[..taken.count] {
            let kept = self.value(offset).take();
            let Some(value) = kept.or_else(|| construct(offset)) else {
                self.release(&places[moved..taken.count]);
                break;
            };
            let full = handle.put(Object { offset, value });
            debug_assert!(full.is_ok(), "a batch that fits");
            moved += 1;
        }
        moved
    }

    /// Takes up to a batch of a handle's objects back. Values whose slab is empty then are dropped.
    pub fn flush(&mut self, handle: &mut Handle<T>) {
        let mut places = [0; BATCH_MAX];
        let batch = self.class.geometry().batch().min(handle.len);
        for place in &mut places[..batch] {
            if let Some(object) = handle.take() {
                *place = object.offset;
                *self.value(object.offset) = Some(object.value);
            }
        }
        let emptied = self.class.flush(self.records, 0, &places[..batch]);
        self.settle(emptied.unwrap_or_default());
    }

    /// Drops every free value, and its place's slab where all of it is free.
    pub fn drain(&mut self) {
        while let Some(emptied) = self.class.drain(self.records, 0) {
            self.settle(emptied.unwrap_or_default());
        }
    }

    fn release(&mut self, places: &[usize]) {
        // Objects cannot be made elsewhere: no place is wrong.
        let emptied = self.class.release(self.records, 0, places);
        self.settle(emptied.unwrap_or_default());
    }

    fn settle(&mut self, mut emptied: Emptied) {
        let of = *self.class.geometry();
        while let Some(unit) = emptied.take(self.records) {
            let start = unit as usize * UNIT;
            for at in 0..of.objects() {
                *self.value(start + at * of.size()) = None;
            }
            // It was taken by `refill`, so there is a run.
            let _ = self.spans.release(start);
        }
    }

    /// Places are at least a size apart: each has a number of its own.
    fn value(&mut self, offset: usize) -> &mut Option<T> {
        &mut self.values[offset / self.class.geometry().size()]
    }
}
