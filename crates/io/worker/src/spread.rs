//! Spreading the frames for a member with several rings over them by flow.
//!
//! # Model
//! ```text
//! frame -> FlowHash -> entry of the member's Table -> ring
//! ```
//! A table is this worker's own. Each of the worker's choices ([`TxPort::choices`]) has as many of its entries as its
//! [weight](Weights) says, give or take one. When choices or weights change, only as many entries get another ring as that takes: the
//! flows of the others stay where they are.
//!
//! An entry moves when the receiver has taken what the entry's flows had on the ring before ([`TxPort::progress`]), as receive flow
//! steering moves a flow. Where that is not seen for [`MOVE_NS`], the entry moves then; and at once if its ring is gone.
//!
//! Each ring's frames are one transmission. What a ring has no room for is kept as [`Late`] while the other rings and the
//! other destinations are served, so that a receiver that neglects one of its rings loses frames of that ring only.
//!
//! # What can be lost and what cannot
//! The frames of a flow have one order, on one ring. A flow may have frames on two rings for a moment: when its ring is gone, when the
//! receiver is behind for [`MOVE_NS`] without a pause, or does not show how far it is; and when the ring that it comes from is
//! moved to another worker, which has other choices.
//!
//! [`TxPort::choices`]: windlass_attach::port::TxPort::choices
//! [`TxPort::progress`]: windlass_attach::port::TxPort::progress

use windlass_attach::port::Progress;
use windlass_frame::{BURST, Heads, Pick, Tick, TxId};
use windlass_nic::FlowHash;

use crate::group::LISTS;

/// Rings of a member that can be told apart.
pub const RINGS_MAX: usize = u32::BITS as usize;
/// Entries of a table: a power of two, so that the low bits of a hash choose.
pub const ENTRIES: usize = 128;
/// How long an entry waits for the receiver to take what it has on the ring before, in nanoseconds.
pub const MOVE_NS: u64 = 100_000_000;

/// Shares of a member's rings, as of `ethtool -X weight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights(u128);

impl Weights {
    /// One for each ring, 16 at most; rings beyond them have 0. If all are 0, they are equal.
    pub fn new(weights: &[u8]) -> Weights {
        let low = weights.iter().take(16).rev();
        Weights(low.fold(0, |all, weight| all << 8 | u128::from(*weight)))
    }

    fn of(self, ring: usize) -> usize {
        match ring {
            _ if self.0 == 0 => 1,
            ..16 => usize::from((self.0 >> (ring * 8)) as u8),
            _ => 0,
        }
    }
}

/// Which ring each entry, a part of all flows, has.
#[derive(Clone, Debug)]
pub struct Table {
    choices: u32,
    weights: Weights,
    rings: [u8; ENTRIES],
    /// Where entries are to go.
    wanted: [u8; ENTRIES],
    /// A bit for each entry that is to go.
    moving: u128,
    /// A bit for each of them that frames went by since it was last looked at.
    used: u128,
    /// Where the ring stood behind the last of these frames.
    behind: [u16; ENTRIES],
    /// When they were last asked to go.
    since: Tick,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            choices: 0,
            weights: Weights::default(),
            rings: [0; ENTRIES],
            wanted: [0; ENTRIES],
            moving: 0,
            used: 0,
            behind: [0; ENTRIES],
            since: Tick(0),
        }
    }
}

impl Table {
    /// Has `choices`, a bit for each ring, share the entries by their weights, with as few changes as that takes.
    #[inline]
    pub fn share_among(&mut self, choices: u32, weights: Weights, now: Tick) {
        if self.choices != choices || self.weights != weights {
            self.change(choices, weights, now);
        }
    }

    #[cold]
    fn change(&mut self, choices: u32, weights: Weights, now: Tick) {
        let before = std::mem::replace(&mut self.choices, choices);
        self.weights = weights;
        if choices == 0 {
            return;
        }
        let shares = shares(choices, weights);
        let mut room = shares;
        let mut homeless = Vec::with_capacity(ENTRIES);
        for (entry, ring) in self.rings.iter().enumerate() {
            match room.get_mut(usize::from(*ring)) {
                Some(room) if *room > 0 => *room -= 1,
                _ => homeless.push(entry),
            }
        }
        self.wanted = self.rings;
        let mut homeless = homeless.into_iter();
        for ring in bits(choices).filter(|ring| shares[*ring] > 0) {
            for entry in homeless.by_ref().take(room[ring]) {
                self.wanted[entry] = ring as u8;
            }
        }
        self.moving = 0;
        let stays = before & choices;
        for (entry, (ring, wanted)) in self.rings.iter_mut().zip(&self.wanted).enumerate() {
            if stays >> (*ring % 32) & 1 == 0 {
                *ring = *wanted;
            }
            self.moving |= u128::from(ring != wanted) << entry;
        }
        self.used = self.moving;
        self.since = now;
    }

    /// Moves the entries that can: all but those on rings of `held`, before which frames wait.
    #[cold]
    fn settle(&mut self, held: u32, now: Tick, progress: impl Fn(u8) -> Option<Progress>) {
        if now.since(self.since) >= MOVE_NS {
            self.rings = self.wanted;
            self.moving = 0;
            return;
        }
        for ring in bits(self.choices & !held) {
            let moves = |entry: &usize| self.moving >> entry & 1 != 0;
            let on_ring = (0..ENTRIES).filter(moves);
            let on_ring = on_ring.filter(|entry| usize::from(self.rings[*entry]) == ring);
            let entries: Vec<usize> = on_ring.collect();
            if entries.is_empty() {
                continue;
            }
            let Some(progress) = progress(ring as u8) else {
                continue;
            };
            for entry in entries {
                if self.used >> entry & 1 != 0 {
                    self.behind[entry] = progress.put;
                }
                if progress.has_taken(self.behind[entry]) {
                    self.rings[entry] = self.wanted[entry];
                    self.moving &= !(1 << entry);
                }
                self.used &= !(1 << entry);
            }
        }
    }

    /// The ring of a flow.
    #[inline(always)]
    pub fn ring(&mut self, hash: u32) -> u8 {
        let entry = hash as usize % ENTRIES;
        if self.moving != 0 {
            self.used |= 1 << entry;
        }
        self.rings[entry]
    }
}

/// Entries of a table that each ring has, where `choices`, a bit for each ring, share them by these weights.
pub fn shares(choices: u32, weights: Weights) -> [usize; RINGS_MAX] {
    let is_weighed = bits(choices).any(|ring| weights.of(ring) > 0);
    let weights = if is_weighed {
        weights
    } else {
        Weights::default()
    };
    let total: usize = bits(choices).map(|ring| weights.of(ring)).sum();
    let (mut shares, mut sum, mut given) = ([0; RINGS_MAX], 0, 0);
    for ring in bits(choices) {
        sum += weights.of(ring);
        shares[ring] = ENTRIES * sum / total - given;
        given += shares[ring];
    }
    shares
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

    /// Gives a member with these choices a table. True says that entries are to [move](Spread::settle).
    #[inline]
    pub(crate) fn share(&mut self, to: TxId, choices: u32, weights: Weights, now: Tick) -> bool {
        let Some(table) = self.tables.get_mut(usize::from(to.0)) else {
            return false;
        };
        let table = table.get_or_insert_default();
        table.share_among(choices, weights, now);
        table.moving != 0
    }

    /// Moves those that can; `held`: a bit for each ring before which frames wait elsewhere.
    #[cold]
    pub(crate) fn settle(
        &mut self,
        to: TxId,
        held: u32,
        now: Tick,
        progress: impl Fn(u8) -> Option<Progress>,
    ) {
        let late = self.late.iter().filter(|late| late.to == to);
        let held = late.fold(held, |held, late| held | 1 << (late.ring % 32));
        if let Some(Some(table)) = self.tables.get_mut(usize::from(to.0)) {
            table.settle(held, now, progress);
        }
    }

    /// Sorts frames for a member into the lists of their rings. Returns a bit for each list that is not empty.
    pub(crate) fn sort(&mut self, heads: &Heads, to: TxId, picks: &[Pick]) -> u32 {
        let Some(Some(table)) = self.tables.get_mut(usize::from(to.0)) else {
            return 0;
        };
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

    /// Has everything move at once.
    fn arrive(table: &mut Table, choices: u32, weights: &[u8]) {
        let now = Tick(1);
        table.share_among(choices, Weights::new(weights), now);
        table.settle(0, now.plus(MOVE_NS), |_| None);
    }

    /// Whatever choices come after whatever others: every entry has one of them, no ring has two entries more than another,
    /// and no entry changes that could stay.
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
            arrive(&mut table, choices, &[]);
            let shares = shares(&table, choices);
            assert_eq!(shares.iter().sum::<usize>(), ENTRIES);
            let spread = shares.iter().max().zip(shares.iter().min());
            assert!(spread.is_some_and(|(most, least)| most - least <= 1));
            let both = table.rings.iter().zip(&before.rings);
            let moved = both.filter(|(a, b)| a != b).count();
            let had = |ring: usize| {
                before
                    .rings
                    .iter()
                    .filter(move |r| usize::from(**r) == ring)
            };
            let stay: usize = bits(choices)
                .zip(&shares)
                .map(|(ring, has)| had(ring).count().min(*has))
                .sum();
            assert_eq!(moved, ENTRIES - stay, "to {choices:#b}");
            before = table.clone();
        }
        arrive(&mut table, 0, &[]);
        assert_eq!(table.rings, before.rings);
    }

    /// Rings have entries by their weights; one of weight 0, and one that has none, gets none, unless there is no other.
    #[test]
    fn weights_share_entries() {
        let mut table = Table::default();
        for (choices, weights, wanted) in [
            (0b1111, &[1, 1, 2, 0][..], vec![32, 32, 64, 0]),
            (0b1111, &[1, 255], vec![0, 128, 0, 0]),
            (0b1111, &[], vec![32; 4]),
            (0b1100, &[1, 1], vec![64, 64]),
            (0b1111, &[0, 0, 0, 3], vec![0, 0, 0, 128]),
        ] {
            arrive(&mut table, choices, weights);
            assert_eq!(shares(&table, choices), wanted, "{weights:?}");
        }
    }

    /// An entry moves when the receiver has taken its last frame and none of them waits elsewhere; if its ring is gone, at once; after
    /// [`MOVE_NS`] in any case.
    #[test]
    fn entries_move_when_their_frames_are_taken() {
        let mut table = Table::default();
        table.share_among(0b11, Weights::default(), Tick(0));
        let hash = table.rings.iter().position(|ring| *ring == 0).unwrap() as u32;
        table.share_among(0b11, Weights::new(&[0, 1]), Tick(0));
        let at = |put: u16, taken: u16| {
            let (unread, lap) = (put.wrapping_sub(taken), 1 << 16);
            move |_: u8| Some(Progress { put, unread, lap })
        };
        // Near where the index wraps.
        assert_eq!(table.ring(hash), 0);
        table.settle(0, Tick(1), at(2, 65_530));
        assert_eq!(table.ring(hash), 0);
        table.settle(0, Tick(2), at(3, 2));
        table.settle(0b01, Tick(3), at(5, 5));
        assert_eq!(table.rings[hash as usize], 0);
        table.settle(0, Tick(4), at(5, 3));
        assert_eq!(table.ring(hash), 1);

        table.share_among(0b11, Weights::new(&[1]), Tick(5));
        table.share_among(0b10, Weights::new(&[1]), Tick(6));
        assert_eq!((table.ring(hash), table.moving), (1, 0));
        table.share_among(0b11, Weights::new(&[1]), Tick(7));
        table.settle(0, Tick(7 + MOVE_NS - 1), |_| None);
        assert_eq!(table.ring(hash), 1);
        table.settle(0, Tick(7 + MOVE_NS), |_| None);
        assert_eq!(table.ring(hash), 0);
    }
}
