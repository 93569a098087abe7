//! What rules with `count` have counted at one member.
//!
//! # Model
//! A packet is counted by one rule of each list that was asked: by its [`Marks`]. A connection keeps them as one small number, which
//! [`Counts`] knows, so that an established one is counted without asking a rule. Marks that get no number are never kept with a decision:
//! such packets ask the rules each time.
//!
//! # Ownership and lifetime
//! [`Counts`] belong to the rules of one member. A [`Ledger`] is the member's and finds what a rule has counted before: by its list, its text, and
//! which of equal rules it is. So counts survive a change of other rules, and a change that is undone before it was published.
//!
//! # Synchronization
//! Written under the lock of the member's tracker, read by anyone. While a member gets another tracker (`firewall-connections`), workers
//! with the old one and with the new one may lose each other's frames of that moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use windlass_stats::Counter;

/// Lists that count at most: lanes of [`Marks`].
pub(crate) const LISTS_MAX: usize = 4;
/// Bits of a lane.
const LANE: u32 = 16;
/// The most numbers of marks at a time: they have 16 bits, and 0 is none.
const NUMBERS_MAX: usize = 1 << 16;
/// Places that are looked at for a number.
const PROBES: usize = 8;

/// Frames and bytes.
#[derive(Debug, Default)]
pub(crate) struct Count {
    frames: Counter,
    bytes: Counter,
}

impl Count {
    /// Frames, and their bytes.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.frames.get(), self.bytes.get())
    }
}

/// What a rule is known by: its list, its text, and how many equal ones stand before it.
type Known = (usize, Arc<str>, usize);

/// What a member's rules have counted, as long as some rules or their successors are in use.
#[derive(Debug, Default)]
pub struct Ledger(HashMap<Known, Weak<Count>>);

impl Ledger {
    /// The counts of rules, each given by its list and its text, in their order.
    pub(crate) fn counts<'a>(
        &mut self,
        rules: impl Iterator<Item = (usize, &'a Arc<str>)>,
    ) -> Box<[Arc<Count>]> {
        let mut before: HashMap<(usize, &str), usize> = HashMap::new();
        let mut known = HashMap::new();
        let mut count = |(list, text): (usize, &'a Arc<str>)| {
            let nth = before.entry((list, text)).or_default();
            let key = (list, text.clone(), *nth);
            *nth = nth.saturating_add(1);
            let found = self.0.get(&key).and_then(Weak::upgrade);
            let count = found.unwrap_or_default();
            known.insert(key, Arc::downgrade(&count));
            count
        };
        let counts = rules.map(&mut count).collect();
        // Of rules that go, those stay known that may come back: some topology still has them.
        self.0.retain(|_, count| count.strong_count() > 0);
        self.0.extend(known);
        counts
    }
}

/// Which rules count a packet, each as the number of its count and 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks(u64);

impl Marks {
    /// One more rule.
    pub(crate) fn push(&mut self, count: u16) {
        self.0 = self.0 << LANE | u64::from(count).wrapping_add(1);
    }
}

/// What the rules of a member count.
#[derive(Debug)]
pub(crate) struct Counts {
    counts: Box<[Arc<Count>]>,
    /// By number: marks. None is number 0.
    numbers: Box<[AtomicU64]>,
}

impl Counts {
    pub(crate) fn new(counts: Box<[Arc<Count>]>) -> Counts {
        let room = match counts.len() {
            0 => 1,
            few => few.saturating_mul(LISTS_MAX).clamp(64, NUMBERS_MAX),
        };
        let numbers = (0..room.next_power_of_two()).map(|_| AtomicU64::new(0));
        Counts {
            counts,
            numbers: numbers.collect(),
        }
    }

    /// Each count, in the order of the rules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Count> {
        self.counts.iter().map(|count| &**count)
    }

    /// The number of marks; none if there is no room for it.
    #[inline(always)]
    pub(crate) fn number(&self, marks: Marks) -> Option<u16> {
        match marks == Marks::default() {
            true => Some(0),
            false => self.number_of_some(marks),
        }
    }

    #[inline(never)]
    fn number_of_some(&self, marks: Marks) -> Option<u16> {
        let mask = self.numbers.len().wrapping_sub(1);
        let hash = marks.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(24) as usize;
        let places = (0..PROBES).map(|probe| hash.wrapping_add(probe) & mask);
        for place in places.filter(|place| *place != 0) {
            let number = self.numbers.get(place)?;
            let there = number.load(Ordering::Relaxed);
            if there == 0 {
                number.store(marks.0, Ordering::Relaxed);
            }
            if there == 0 || there == marks.0 {
                return u16::try_from(place).ok();
            }
        }
        None
    }

    /// Counts a frame by the number of its marks.
    #[inline(always)]
    pub(crate) fn add_by_number(&self, number: u16, len: u32) {
        let marks = self.numbers.get(usize::from(number));
        let marks = marks.map_or(0, |marks| marks.load(Ordering::Relaxed));
        self.add(Marks(marks), len);
    }

    /// Counts a frame.
    #[inline(always)]
    pub(crate) fn add(&self, marks: Marks, len: u32) {
        let Marks(mut left) = marks;
        while left != 0 {
            let index = (left as u16).wrapping_sub(1);
            if let Some(count) = self.counts.get(usize::from(index)) {
                count.frames.add(1);
                count.bytes.add(len.into());
            }
            left >>= LANE;
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<Arc<str>> {
        texts.iter().map(|text| (*text).into()).collect()
    }

    fn counts(ledger: &mut Ledger, rules: &[Arc<str>]) -> Counts {
        Counts::new(ledger.counts(rules.iter().map(|text| (0, text))))
    }

    fn add(counts: &Counts, index: u16, len: u32) {
        let mut marks = Marks::default();
        marks.push(index);
        counts.add_by_number(counts.number(marks).unwrap(), len);
    }

    fn frames(counts: &Counts) -> Vec<u64> {
        counts.iter().map(|count| count.get().0).collect()
    }

    /// A rule goes on counting wherever it stands; the second of two equal ones has its own count; one that nobody has any more
    /// begins anew when it comes back.
    #[test]
    fn counts_are_found_by_text() {
        let mut ledger = Ledger::default();
        let first = counts(&mut ledger, &texts(&["a", "b", "b"]));
        add(&first, 0, 10);
        (0..2).for_each(|_| add(&first, 1, 20));
        (0..3).for_each(|_| add(&first, 2, 30));
        let second = counts(&mut ledger, &texts(&["b", "c", "b"]));
        assert_eq!(frames(&second), [2, 0, 3]);
        // Workers still have the first ones, and the change is undone.
        add(&first, 0, 10);
        let third = counts(&mut ledger, &texts(&["a", "b", "b"]));
        assert_eq!(frames(&third), [2, 2, 3]);
        assert_eq!(third.iter().next().unwrap().get(), (2, 20));
        drop((first, third));
        let fourth = counts(&mut ledger, &texts(&["a", "b"]));
        assert_eq!(frames(&fourth), [0, 2]);
    }

    /// Marks have a number until there is no room, each its own; what has none is counted all the same.
    #[test]
    fn numbers_run_out() {
        let rules: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let counts = counts(&mut Ledger::default(), &texts(&rules));
        let mut numbers = HashMap::new();
        let mut without = 0;
        for (a, b) in (0..20).flat_map(|a| (0..20).map(move |b| (a, b))) {
            let mut marks = Marks::default();
            marks.push(a);
            marks.push(b);
            match counts.number(marks) {
                Some(number) => assert!(numbers.insert(number, marks).is_none()),
                None => without += 1,
            }
        }
        assert!(!numbers.contains_key(&0) && numbers.len() > 100 && without > 100);
        for (number, marks) in numbers {
            assert_eq!(counts.number(marks), Some(number));
        }
    }
}
