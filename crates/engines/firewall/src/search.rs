//! Which interval of numbers a number lies in.
//!
//! # Model
//! Intervals cover all numbers and are known by their first ones. A tree whose nodes are [`NODE`] keys side by side: a level is one
//! node, compared without branches, so that 20,000 intervals are four nodes, whatever they are.

/// Keys of a node.
const NODE: usize = 16;

/// How many keys of a node, in ascending order, are not above a number: those of the quarter in which it lies, and all before. Without a
/// branch, and but one comparison waits for another.
#[inline(always)]
fn not_above<K: Copy + Ord>(node: &[K; NODE], number: K) -> usize {
    let is_not_above =
        |at: usize| usize::from(node.get(at % NODE).is_some_and(|key| *key <= number));
    let quarter: usize = [3, 7, 11].map(is_not_above).iter().sum();
    let first = quarter.wrapping_mul(NODE / 4);
    let here: usize = [0, 1, 2, 3]
        .map(|i| is_not_above(first.wrapping_add(i)))
        .iter()
        .sum();
    first.wrapping_add(here)
}

/// Intervals with a value each.
#[derive(Debug)]
pub(crate) struct Search<K> {
    /// From the root to the leaves, padded to whole nodes; none for one interval.
    levels: Vec<Vec<[K; NODE]>>,
    /// By interval.
    values: Vec<u32>,
}

impl<K: Copy + Ord> Search<K> {
    /// `starts` in ascending order, the first of which is the smallest number, with their values; `last` is the largest number.
    pub(crate) fn new(starts: &[(K, u32)], last: K) -> Search<K> {
        let values = starts.iter().map(|(_, value)| *value).collect();
        let mut keys: Vec<K> = starts.iter().map(|(start, _)| *start).collect();
        let mut levels = Vec::new();
        while keys.len() > 1 {
            let nodes: Vec<[K; NODE]> = keys
                .chunks(NODE)
                .map(|chunk| {
                    let mut node = [last; NODE];
                    let slots = node.iter_mut().zip(chunk);
                    slots.for_each(|(slot, key)| *slot = *key);
                    node
                })
                .collect();
            keys = nodes
                .iter()
                .filter_map(|node| node.first().copied())
                .collect();
            levels.push(nodes);
        }
        levels.reverse();
        Search { levels, values }
    }

    /// The value of the interval that a number lies in.
    #[inline(always)]
    pub(crate) fn find(&self, number: K) -> u32 {
        let mut index = 0;
        for level in &self.levels {
            // Padding is the largest number, which may be asked for.
            let node = level.get(index.min(level.len().wrapping_sub(1)));
            let not_above = node.map_or(1, |node| not_above(node, number));
            index = index
                .wrapping_mul(NODE)
                .wrapping_add(not_above)
                .wrapping_sub(1);
        }
        let last = self.values.len().wrapping_sub(1);
        self.values.get(index.min(last)).copied().unwrap_or(0)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let nodes: usize = self.levels.iter().map(Vec::len).sum();
        nodes
            .saturating_mul(size_of::<[K; NODE]>())
            .saturating_add(self.values.len().saturating_mul(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The interval is the last that begins not above the number, at every size and at both ends.
        #[test]
        fn intervals(mut starts in proptest::collection::vec(any::<u16>(), 0..600), asked in proptest::collection::vec(any::<u16>(), 50)) {
            starts.extend([0]);
            starts.sort_unstable();
            starts.dedup();
            let valued: Vec<(u16, u32)> = starts.iter().copied().zip(7..).collect();
            let search = Search::new(&valued, u16::MAX);
            for number in asked.into_iter().chain(starts).chain([0, u16::MAX]) {
                let expected = valued.iter().rev().find(|(start, _)| *start <= number);
                prop_assert_eq!(Some(search.find(number)), expected.map(|(_, value)| *value));
            }
        }
    }
}
