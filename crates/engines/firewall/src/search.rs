//! Which interval of numbers a number lies in.
//!
//! # Model
//! Intervals cover all numbers and are known by their first ones, in ascending order. A [`Node`] cuts the span of its intervals into slots of one
//! width, about one for two intervals. A slot says after which interval its own begin, [`NEAR`] at most, each of which is compared; or, if it
//! has more, which node cuts it again. So a number is found with the loads of one slot and one line of keys, or some slots where intervals crowd.
//!
//! # Limits
//! [`LEVELS`] nodes on the way, then a binary search over all: 17 steps for 65,537 intervals. A level has no more slots than intervals, and a node has
//! at least five, so that an interval takes 27 bytes at most of IPv4, 57 of IPv6, whatever the intervals are.

/// Intervals that begin in a slot and are compared there.
const NEAR: usize = 4;
/// Nodes on the way to an interval.
const LEVELS: usize = 3;
/// Bit of a slot that names a node; else it is the interval before the slot's own.
const NODE: u32 = 1 << 31;
/// A slot below the last level with more intervals than [`NEAR`].
const CROWDED: u32 = u32::MAX;

/// What intervals are of.
pub(crate) trait Number: Copy + Ord {
    /// The largest.
    const LAST: Self;

    /// How far it is above `low`, in units of `1 << shift`; 0 below.
    fn above(self, low: Self, shift: u32) -> usize;
}

macro_rules! number {
    ($($kind:ty),*) => {$(
        impl Number for $kind {
            const LAST: Self = <$kind>::MAX;

            #[inline(always)]
            fn above(self, low: Self, shift: u32) -> usize {
                let above = self.saturating_sub(low).wrapping_shr(shift);
                usize::try_from(above).unwrap_or(usize::MAX)
            }
        }
    )*};
}
number!(u16, u32, u128);

/// A part of the numbers, cut into slots of `1 << shift`.
#[derive(Debug, Clone, Copy)]
struct Node<K> {
    /// Where its first interval begins.
    low: K,
    shift: u32,
    /// Its first slot, and how far the last one is behind that.
    first: u32,
    last: u32,
}

/// Intervals with a value each.
#[derive(Debug)]
pub(crate) struct Search<K> {
    root: Node<K>,
    nodes: Vec<Node<K>>,
    slots: Vec<u32>,
    /// Each with its first number and its value; then [`NEAR`] times the largest number and the last value.
    intervals: Vec<(K, u32)>,
}

impl<K: Number> Search<K> {
    /// `starts` in ascending order, the first of which is the smallest number, with their values.
    pub(crate) fn new(starts: &[(K, u32)]) -> Search<K> {
        let last = starts.last().map_or(0, |(_, value)| *value);
        let padding = std::iter::repeat_n((K::LAST, last), NEAR);
        let mut search = Search {
            root: Node {
                low: K::LAST,
                shift: 0,
                first: 0,
                last: 0,
            },
            nodes: Vec::new(),
            slots: Vec::new(),
            intervals: starts.iter().copied().chain(padding).collect(),
        };
        search.root = search.cut(1, starts.len(), LEVELS);
        search.nodes.shrink_to_fit();
        search.slots.shrink_to_fit();
        search
    }

    /// A node of the intervals from `begin` to before `end`.
    fn cut(&mut self, begin: usize, end: usize, levels: usize) -> Node<K> {
        let here = self.intervals.get(begin..end).unwrap_or_default();
        let here: Vec<K> = here.iter().map(|(start, _)| *start).collect();
        let (Some(low), Some(high)) = (here.first(), here.last()) else {
            self.slots.push(0);
            return self.root;
        };
        let most = (here.len().next_power_of_two() / 2).max(2);
        let fits = |shift: &u32| high.above(*low, *shift) < most;
        let shift = (0..u128::BITS).find(fits).unwrap_or(0);
        let first = self.slots.len();
        let last = high.above(*low, shift);
        let node = Node {
            low: *low,
            shift,
            first: first as u32,
            last: last as u32,
        };
        self.slots
            .resize(first.wrapping_add(last).wrapping_add(1), 0);
        let mut at = begin;
        for slot in 0..=last {
            let inside = |start: &&K| start.above(*low, shift) == slot;
            let count = here
                .iter()
                .skip(at.wrapping_sub(begin))
                .take_while(inside)
                .count();
            let behind = at.wrapping_add(count);
            let what = match levels.checked_sub(1) {
                _ if count <= NEAR => at.wrapping_sub(1) as u32,
                None | Some(0) => CROWDED,
                Some(levels) => {
                    let node = self.cut(at, behind, levels);
                    self.nodes.push(node);
                    NODE | self.nodes.len().wrapping_sub(1) as u32
                }
            };
            if let Some(slot) = self.slots.get_mut(first.wrapping_add(slot)) {
                *slot = what;
            }
            at = behind;
        }
        node
    }

    /// The value of the interval that a number lies in.
    #[inline(always)]
    pub(crate) fn find(&self, number: K) -> u32 {
        let mut node = &self.root;
        let before = loop {
            let above = number.above(node.low, node.shift).min(node.last as usize);
            let slot = self.slots.get(above.wrapping_add(node.first as usize));
            let slot = slot.copied().unwrap_or(CROWDED);
            if slot & NODE == 0 {
                break slot as usize;
            }
            match self.nodes.get((slot & !NODE) as usize) {
                Some(below) => node = below,
                None => return self.find_crowded(number),
            }
        };
        let behind = before.wrapping_add(NEAR);
        let near = self
            .intervals
            .get(before.wrapping_add(1)..behind.wrapping_add(1));
        let above = |near: &[(K, u32)]| {
            near.iter()
                .map(|(start, _)| usize::from(*start > number))
                .sum()
        };
        let index = behind.wrapping_sub(near.map_or(NEAR, above));
        self.intervals.get(index).map_or(0, |(_, value)| *value)
    }

    #[cold]
    #[inline(never)]
    fn find_crowded(&self, number: K) -> u32 {
        let not_above = self
            .intervals
            .partition_point(|(start, _)| *start <= number);
        let last = self.intervals.get(not_above.wrapping_sub(1));
        last.map_or(0, |(_, value)| *value)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let nodes = size_of_val(&*self.nodes).saturating_add(size_of_val(&*self.slots));
        nodes.saturating_add(size_of_val(&*self.intervals))
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each number that is asked, each start, and those beside them lie in the interval that a walk finds.
    fn check<K: Number + std::fmt::Debug>(mut starts: Vec<K>, asked: &[K], first: K) {
        starts.push(first);
        starts.sort_unstable();
        starts.dedup();
        let valued: Vec<(K, u32)> = starts.iter().copied().zip(7..).collect();
        let search = Search::new(&valued);
        for number in asked.iter().copied().chain(starts).chain([first, K::LAST]) {
            let expected = valued.iter().rev().find(|(start, _)| *start <= number);
            assert_eq!(Some(search.find(number)), expected.map(|(_, value)| *value));
        }
        let slots = 4 * LEVELS + 2 * size_of::<Node<K>>() / 5 + 1;
        let most = (valued.len() + NEAR) * (size_of::<(K, u32)>() + slots);
        assert!(search.bytes() <= most, "{} of {most} bytes", search.bytes());
    }

    proptest! {
        /// The interval is the last that begins not above the number, at every size and at both ends.
        #[test]
        fn intervals(starts in proptest::collection::vec(any::<u16>(), 0..600), asked in proptest::collection::vec(any::<u16>(), 50)) {
            check(starts, &asked, 0);
        }

        /// So it is where intervals crowd: around few numbers, at all scales.
        #[test]
        fn crowds(
            starts in proptest::collection::vec((0..4u128, 0..128u32, 0..9u128), 0..600),
            asked in proptest::collection::vec((0..4u128, 0..128u32, 0..9u128), 50),
        ) {
            let number = |(centre, scale, step): &(u128, u32, u128)| {
                (centre << 120 | 0x5555 << 24).wrapping_add(step << scale)
            };
            let starts: Vec<u128> = starts.iter().map(number).collect();
            let asked: Vec<u128> = asked.iter().map(number).collect();
            check(starts.iter().map(|n| (n >> 96) as u32 ^ *n as u32).collect(), &asked.iter().map(|n| *n as u32).collect::<Vec<_>>(), 0);
            check(starts, &asked, 0);
        }
    }
}
