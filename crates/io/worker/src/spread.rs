//! Spreading the frames for a member with several rings over them by flow.
//!
//! # Model
//! ```text
//! frame -> FlowHash -> bucket of the member's Table -> ring
//! ```
//! A table is this worker's own and has each of the worker's choices ([`TxPort::choices`]) in an equal number of its
//! buckets, give or take one. When choices come or go, only as many buckets get another ring as that takes: the flows of
//! the others stay where they are.
//!
//! Each ring's frames are one transmission. What a ring has no room for is kept as [`Late`] while the other rings and the
//! other destinations are served, so that a receiver that neglects one of its rings loses frames of that ring only.
//!
//! # What can be lost and what cannot
//! The frames of a flow have one order, on one ring. A flow that gets another ring may have frames on both for a
//! moment: when rings come or go, and when the ring that it comes from is moved to another worker, which has other choices.
//!
//! [`TxPort::choices`]: windlass_attach::port::TxPort::choices

use windlass_frame::{BURST, Heads, Pick, TxId};
use windlass_nic::FlowHash;

use crate::group::LISTS;

/// Rings of a member that can be told apart.
pub const RINGS_MAX: usize = u32::BITS as usize;
/// Buckets of a table: a power of two, so that the low bits of a hash choose.
pub const BUCKETS: usize = 128;

/// Which ring each bucket of flows has.
#[derive(Clone, Debug)]
pub struct Table {
    choices: u32,
    rings: [u8; BUCKETS],
}

impl Default for Table {
    fn default() -> Table {
        Table {
            choices: 0,
            rings: [0; BUCKETS],
        }
    }
}

impl Table {
    /// Has the buckets share `choices`, a bit for each ring, with as few changes as that takes.
    pub fn share_among(&mut self, choices: u32) {
        if self.choices == choices {
            return;
        }
        self.choices = choices;
        let count = choices.count_ones() as usize;
        if count == 0 {
            return;
        }
        let mut room = [0usize; RINGS_MAX];
        for (k, ring) in bits(choices).enumerate() {
            room[ring] = BUCKETS / count + usize::from(k < BUCKETS % count);
        }
        let mut homeless = Vec::with_capacity(BUCKETS);
        for (bucket, ring) in self.rings.iter().enumerate() {
            match room.get_mut(usize::from(*ring)) {
                Some(room) if *room > 0 => *room -= 1,
                _ => homeless.push(bucket),
            }
        }
        let mut homeless = homeless.into_iter();
        for ring in bits(choices) {
            for bucket in homeless.by_ref().take(room[ring]) {
                self.rings[bucket] = ring as u8;
            }
        }
    }

    /// The ring of a flow.
    #[inline(always)]
    pub fn ring(&self, hash: u32) -> u8 {
        self.rings[hash as usize % BUCKETS]
    }
}

/// Indices of the bits that are set.
fn bits(of: u32) -> impl Iterator<Item = usize> {
    (0..RINGS_MAX).filter(move |k| of >> k & 1 != 0)
}

/// A frame whose ring was full, to be tried once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) to: TxId,
    pub(crate) ring: u8,
    pub(crate) pick: Pick,
}

/// One worker's tables, and the lists of one transmission.
#[derive(Debug)]
pub(crate) struct Spread {
    hash: FlowHash,
    /// By member; made when the first frame goes to it.
    tables: Vec<Option<Box<Table>>>,
    lists: [[Pick; BURST]; RINGS_MAX],
    counts: [u8; RINGS_MAX],
    /// Frames that are to be tried again, those of one ring beside each other.
    pub(crate) late: Vec<Late>,
}

impl Spread {
    /// For destinations below `members`.
    pub(crate) fn new(members: usize, flow_keys: [u64; 2]) -> Spread {
        Spread {
            hash: FlowHash::new(flow_keys),
            tables: vec![None; members],
            lists: [[Pick::frame(0, false); BURST]; RINGS_MAX],
            counts: [0; RINGS_MAX],
            late: Vec::with_capacity(LISTS * BURST),
        }
    }

    /// Sorts frames for a member with these choices into the lists of their rings. Returns a bit for each list that is not
    /// empty.
    pub(crate) fn sort(&mut self, heads: &Heads, to: TxId, choices: u32, picks: &[Pick]) -> u32 {
        let Some(table) = self.tables.get_mut(usize::from(to.0)) else {
            return 0;
        };
        let table = table.get_or_insert_default();
        table.share_among(choices);
        let mut used = 0;
        self.counts = [0; RINGS_MAX];
        for pick in picks {
            let ring = usize::from(table.ring(self.hash.of(heads, pick.index()))) % RINGS_MAX;
            let (list, n) = (&mut self.lists[ring], &mut self.counts[ring]);
            list[usize::from(*n) % BURST] = *pick;
            *n += 1;
            used |= 1 << ring;
        }
        used
    }

    /// The list of a ring, as [`Spread::sort`] left it.
    pub(crate) fn list(&self, ring: u8) -> ([Pick; BURST], usize) {
        let ring = usize::from(ring) % RINGS_MAX;
        (self.lists[ring], usize::from(self.counts[ring]).min(BURST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(table: &Table, choices: u32) -> Vec<usize> {
        let count = |ring| {
            table
                .rings
                .iter()
                .filter(|r| usize::from(**r) == ring)
                .count()
        };
        bits(choices).map(count).collect()
    }

    /// Whatever choices come after whatever others: every bucket has one of them, no ring has two buckets more than another,
    /// and no bucket changes that could stay.
    #[test]
    fn tables_are_level_and_move_little() {
        let mut table = Table::default();
        let mut before = table.clone();
        for choices in [
            1,
            0b1111,
            0b0111,
            0b1000_0111,
            0xffff,
            0b10,
            0x8000_0001,
            !0,
            0b111,
        ] {
            table.share_among(choices);
            let shares = shares(&table, choices);
            assert_eq!(shares.iter().sum::<usize>(), BUCKETS);
            let spread = shares.iter().max().zip(shares.iter().min());
            assert!(spread.is_some_and(|(most, least)| most - least <= 1));
            let moved = table
                .rings
                .iter()
                .zip(&before.rings)
                .filter(|(a, b)| a != b)
                .count();
            let stay: usize = bits(choices)
                .map(|ring| {
                    before
                        .rings
                        .iter()
                        .filter(|r| usize::from(**r) == ring)
                        .count()
                })
                .zip(&shares)
                .map(|(had, has)| had.min(*has))
                .sum();
            assert_eq!(moved, BUCKETS - stay, "to {choices:#b}");
            before = table.clone();
        }
        table.share_among(0);
        assert_eq!(table.rings, before.rings);
    }
}
