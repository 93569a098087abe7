//! Sorting a burst by destination.
//!
//! # Model
//! As VALE does it: one list of picks for each destination of the burst, found through an array
//! indexed by [`TxId`] whose entries carry the burst's stamp, so that nothing has to be cleared.
//! Flooded frames enter each list at their place, so that a destination gets unicast and broadcast
//! in the order in which they were sent. When the lists run out, those that exist are sent first.

use windlass_frame::{BURST, Pick, TxId};

/// Destinations that are kept apart at a time.
pub const LISTS: usize = 64;

/// The picks for one destination.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// The destination.
    pub to: TxId,
    n: u8,
    picks: [Pick; BURST],
}

impl List {
    /// The picks, in the order of the burst.
    #[inline(always)]
    pub fn picks(&self) -> &[Pick] {
        self.picks.get(..self.n as usize).unwrap_or(&[])
    }

    /// Keeps only what lies behind the first `taken` picks.
    pub fn keep_from(&mut self, taken: usize) {
        let n = (self.n as usize).min(BURST);
        let taken = taken.min(n);
        self.picks.copy_within(taken..n, 0);
        self.n = (n - taken) as u8;
    }
}

/// The lists of one burst.
#[derive(Debug)]
pub struct Groups {
    lists: Box<[List; LISTS]>,
    used: usize,
    of: Vec<(u32, u16)>,
    stamp: u32,
}

impl Groups {
    /// For destinations below `members`.
    pub fn new(members: usize) -> Groups {
        let empty = List {
            to: TxId(0),
            n: 0,
            picks: [Pick::frame(0, false); BURST],
        };
        Groups {
            lists: Box::new([empty; LISTS]),
            used: 0,
            of: vec![(0, 0); members],
            stamp: 1,
        }
    }

    /// Forgets all lists.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.of.fill((0, 0));
            self.stamp = 1;
        }
    }

    /// Appends a pick. Frames must be added in the order of the burst, each at most once for a
    /// destination. False when a new list is needed and none is left; a destination beyond
    /// `members` is refused in the same way.
    #[inline]
    pub fn add(&mut self, to: TxId, pick: Pick) -> bool {
        let Some(entry) = self.of.get_mut(to.0 as usize) else {
            return false;
        };
        if entry.0 != self.stamp {
            let Some(list) = self.lists.get_mut(self.used) else {
                return false;
            };
            (list.to, list.n) = (to, 0);
            *entry = (self.stamp, self.used as u16);
            self.used += 1;
        }
        let Some(list) = self.lists.get_mut(entry.1 as usize) else {
            return false;
        };
        let Some(place) = list.picks.get_mut(list.n as usize) else {
            return false;
        };
        *place = pick;
        list.n += 1;
        true
    }

    /// The lists, in the order in which their destinations first appeared.
    #[inline]
    pub fn lists(&mut self) -> &mut [List] {
        self.lists.get_mut(..self.used).unwrap_or(&mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each destination gets its picks in order; a full table of lists says so; clearing forgets everything.
    #[test]
    fn lists_keep_order_and_are_bounded() {
        let mut g = Groups::new(100);
        for i in 0..10 {
            assert!(g.add(TxId((i % 3) as u16), Pick::frame(i, i % 2 == 1)));
        }
        let one: Vec<usize> = g.lists()[1].picks().iter().map(|p| p.index()).collect();
        assert_eq!(one, [1, 4, 7]);
        g.lists()[1].keep_from(2);
        assert_eq!(g.lists()[1].picks(), [Pick::frame(7, true)]);
        g.clear();
        assert!(g.lists().is_empty());
        for i in 0..LISTS {
            assert!(g.add(TxId(i as u16), Pick::frame(0, false)));
        }
        assert!(!g.add(TxId(99), Pick::frame(1, false)), "no list left");
        assert!(
            g.add(TxId(5), Pick::frame(1, false)),
            "known destinations still fit"
        );
        assert!(
            !g.add(TxId(200), Pick::frame(1, false)),
            "beyond the members"
        );
    }
}
