//! What is due when: [`Timers`].
//!
//! # Model
//! A heap with four children a node, and for each number where it stands in the heap. So a number has one due time, which can be
//! changed or taken back, and the heap is never larger than there are numbers.

use windlass_frame::Tick;

const CHILDREN: usize = 4;
/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// Due times of things that have small numbers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Tick, u32)>,
    /// By number: the position in the heap.
    at: Vec<u32>,
}

impl Timers {
    /// Whether nothing is due, ever.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Whether this one has a due time.
    #[inline]
    pub(crate) fn has(&self, number: u32) -> bool {
        self.position(number).is_some()
    }

    /// When the first is due.
    pub(crate) fn next(&self) -> Option<Tick> {
        self.heap.first().map(|first| first.0)
    }

    /// Gives a number this due time, in the place of the one that it had.
    pub(crate) fn set(&mut self, number: u32, due: Tick) {
        let at = match self.position(number) {
            Some(at) => at,
            None => {
                let index = number as usize;
                if index >= self.at.len() {
                    self.at.resize(index + 1, NOWHERE);
                }
                self.at[index] = self.heap.len() as u32;
                self.heap.push((due, number));
                self.heap.len() - 1
            }
        };
        self.heap[at].0 = due;
        let at = self.up(at);
        self.down(at);
    }

    /// It is not due any more.
    pub(crate) fn clear(&mut self, number: u32) {
        let Some(at) = self.position(number) else {
            return;
        };
        self.at[number as usize] = NOWHERE;
        self.heap.swap_remove(at);
        if let Some(moved) = self.heap.get(at) {
            self.at[moved.1 as usize] = at as u32;
            let at = self.up(at);
            self.down(at);
        }
    }

    /// The first that is due.
    pub(crate) fn first(&self, now: Tick) -> Option<u32> {
        let (due, number) = *self.heap.first()?;
        (due <= now).then_some(number)
    }

    /// The first that is due, which has no due time any more then.
    pub(crate) fn pop(&mut self, now: Tick) -> Option<u32> {
        let number = self.first(now)?;
        self.clear(number);
        Some(number)
    }

    fn position(&self, number: u32) -> Option<usize> {
        let at = self.at.get(number as usize)?;
        (*at != NOWHERE).then_some(*at as usize)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.at[self.heap[a].1 as usize] = a as u32;
        self.at[self.heap[b].1 as usize] = b as u32;
    }

    fn up(&mut self, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.heap[parent].0 <= self.heap[at].0 {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
        at
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let children = at * CHILDREN + 1..at * CHILDREN + 1 + CHILDREN;
            let children = children.filter(|child| *child < self.heap.len());
            let Some(first) = children.min_by_key(|child| self.heap[*child].0) else {
                return;
            };
            if self.heap[at].0 <= self.heap[first].0 {
                return;
            }
            self.swap(at, first);
            at = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Whatever is set, changed and taken back in whatever order: what is due comes, the earliest first, once.
    #[test]
    fn as_a_sorted_map() {
        let mut random = 7_u64;
        let mut below = move |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % n
        };
        let (mut timers, mut map) = (Timers::default(), BTreeMap::new());
        for now in 0..20_000 {
            let number = below(50) as u32;
            match below(4) {
                0 => {
                    timers.clear(number);
                    map.remove(&number);
                }
                1 => {
                    let first = timers.pop(Tick(now));
                    let earliest = map.values().min().copied().filter(|due| *due <= Tick(now));
                    assert_eq!(first.and_then(|number| map.remove(&number)), earliest);
                }
                _ => {
                    let due = Tick(now + below(100));
                    timers.set(number, due);
                    map.insert(number, due);
                }
            }
            assert_eq!(timers.next(), map.values().min().copied());
            assert_eq!(timers.heap.len(), map.len());
            assert!((0..50).all(|number| timers.has(number) == map.contains_key(&number)));
        }
    }
}
