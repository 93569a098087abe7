//! Finding room for a new entry: free slots, paths of moves, eviction.

use std::sync::atomic::Ordering::Relaxed;

use super::table::{SLOTS, SlotAt, Value};
use super::{FdbWriter, Grace, Key, Learned, Now, grace};

/// Moves on the way to a free slot, at most.
pub const PATH_MAX: usize = 4;
/// Buckets looked at in search of a path, at most.
const SEARCH_MAX: usize = 64;
/// Rounds of making room for one entry: the moves of a path, an eviction, and the placing.
const ROUNDS: usize = PATH_MAX + 3;

/// Room found in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Free {
    /// This slot is empty and has rested.
    Slot(SlotAt),
    /// A slot is empty, but readers may still look at its former entry.
    Resting,
    /// No slot is empty.
    No,
}

/// A bucket reached by the search, and the moves on the way to it.
#[derive(Clone, Copy, Debug)]
struct Step {
    bucket: u32,
    depth: usize,
}

/// The memory of the path search, kept to avoid allocation.
#[derive(Debug)]
pub(super) struct Room {
    queue: Vec<Step>,
}

impl Room {
    pub(super) fn new() -> Room {
        Room {
            queue: Vec::with_capacity(SEARCH_MAX.saturating_mul(2)),
        }
    }
}

/// What the search for a path found.
enum Path {
    /// Move the entry of the first slot to the second.
    Move(SlotAt, SlotAt),
    /// A path ends at a slot that is still resting.
    Resting,
    /// No path.
    No,
}

impl<G: Grace> FdbWriter<G> {
    /// Enters a key that is not in the table, making room where needed.
    pub(super) fn insert(&mut self, key: Key, value: Value, at: Now) -> Learned {
        let pair = self.fdb.buckets_of(self.fdb.place(key));
        let refusal = Learned::BridgeLimit;
        for _ in 0..ROUNDS {
            if self.entries >= self.entries_max {
                // A static newcomer needs no more than that one entry goes, wherever it stands.
                let everywhere = 0..=self.fdb.mask;
                let gone = self.evict(pair, value, at)
                    || (value.flags().is_static() && self.evict(everywhere, value, at));
                if !gone {
                    return refusal;
                }
                continue;
            }
            match self.free_in(pair) {
                Free::Slot(slot) => {
                    self.enter(slot, key, value, at.tick);
                    return Learned::New;
                }
                Free::Resting => return Learned::Waiting,
                Free::No => {}
            }
            match self.path(pair) {
                Path::Move(from, to) => self.displace(from, to),
                Path::Resting => return Learned::Waiting,
                Path::No => {
                    if !self.evict(pair, value, at) {
                        return refusal;
                    }
                }
            }
        }
        Learned::Waiting
    }

    /// Room in either bucket of a key, the first one first.
    fn free_in(&self, [first, second]: [u32; 2]) -> Free {
        match self.free(first) {
            Free::Slot(s) => Free::Slot(s),
            Free::Resting => match self.free(second) {
                Free::Slot(s) => Free::Slot(s),
                _ => Free::Resting,
            },
            Free::No => self.free(second),
        }
    }

    fn free(&self, bucket: u32) -> Free {
        let mut found = Free::No;
        let Some(b) = self.fdb.buckets.get(bucket as usize) else {
            return found;
        };
        for (slot, (key, rest)) in b.keys.iter().zip(&b.rests).enumerate() {
            if key.load(Relaxed) != 0 {
                continue;
            }
            let ticket = grace::unpack(rest.load(Relaxed), self.newest);
            if ticket.is_none_or(|t| self.grace.is_over(t)) {
                return Free::Slot(SlotAt { bucket, slot });
            }
            found = Free::Resting;
        }
        found
    }

    /// Searches, breadth first, for the shortest path of moves from first to second buckets that
    /// starts in one of the two buckets and ends at a free slot, and returns its last move.
    fn path(&mut self, pair: [u32; 2]) -> Path {
        let mut queue = std::mem::take(&mut self.room.queue);
        queue.clear();
        for bucket in pair {
            queue.push(Step { bucket, depth: 0 });
        }
        let mut found = Path::No;
        let mut next = 0_usize;
        'search: while let Some(&step) = queue.get(next) {
            next = next.wrapping_add(1);
            if step.depth >= PATH_MAX {
                break;
            }
            for slot in 0..SLOTS {
                let from = SlotAt {
                    bucket: step.bucket,
                    slot,
                };
                let Some((key, _, _)) = self.read(from) else {
                    continue;
                };
                let [first, second] = self.fdb.buckets_of(self.fdb.place(key));
                if first != step.bucket {
                    continue;
                }
                match self.free(second) {
                    Free::Slot(to) => {
                        found = Path::Move(from, to);
                        break 'search;
                    }
                    Free::Resting => found = Path::Resting,
                    Free::No if queue.len() < SEARCH_MAX => {
                        let depth = step.depth.wrapping_add(1);
                        queue.push(Step {
                            bucket: second,
                            depth,
                        });
                    }
                    Free::No => {}
                }
            }
        }
        self.room.queue = queue;
        found
    }

    /// Copies an entry to a free slot of its second bucket, then clears it in its first.
    fn displace(&mut self, from: SlotAt, to: SlotAt) {
        if let Some((key, value, age)) = self.read(from) {
            self.fdb.fill(to, key, value, age);
            self.clear(from);
            self.fdb.counters.displaced.add(1);
        }
    }

    /// Removes one of the entries of some buckets for a newcomer with `value`. False if none may go.
    fn evict(&mut self, among: impl IntoIterator<Item = u32>, value: Value, at: Now) -> bool {
        let Some((slot, old, dead)) = self.victim(among, value, at) else {
            return false;
        };
        self.erase(slot, old);
        let c = &self.fdb.counters;
        match dead {
            Some(Death::Flushed) => c.flushed.add(1),
            Some(Death::Aged) => c.aged.add(1),
            None => c.evicted.add(1),
        }
        true
    }

    /// The entry to go: one that is dead; else the oldest one of the member with most entries, if that is over its
    /// fair share; the newcomer's own if its member is that one. A static newcomer takes the oldest of the largest
    /// member in any case.
    fn victim(
        &self,
        among: impl IntoIterator<Item = u32>,
        value: Value,
        at: Now,
    ) -> Option<(SlotAt, Value, Option<Death>)> {
        let configured = value.flags().is_static();
        let newcomer = value.member();
        let own = self.learned(newcomer);
        let members = self.active.saturating_add(u32::from(own == 0));
        let share = self.entries_max.checked_div(members).unwrap_or(0);
        let mut best: Option<(u32, u8, SlotAt, Value)> = None;
        for bucket in among {
            for slot in 0..SLOTS {
                let slot = SlotAt { bucket, slot };
                let Some((_, old, age)) = self.read(slot) else {
                    continue;
                };
                if self.fdb.flushed(old) {
                    return Some((slot, old, Some(Death::Flushed)));
                }
                if old.flags().is_fixed() {
                    continue;
                }
                if at.expired(age) {
                    return Some((slot, old, Some(Death::Aged)));
                }
                let load = self.learned(old.member());
                let may = configured || old.member() == newcomer || (load > share && load > own);
                let rank = (load, at.ticks_since(age));
                if may && best.is_none_or(|(l, a, ..)| rank > (l, a)) {
                    best = Some((rank.0, rank.1, slot, old));
                }
            }
        }
        best.map(|(_, _, slot, old)| (slot, old, None))
    }

    fn learned(&self, member: u16) -> u32 {
        self.accounts.get(member as usize).map_or(0, |a| a.learned)
    }
}

/// Why an entry that made room was dead already.
#[derive(Clone, Copy, Debug)]
enum Death {
    Flushed,
    Aged,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdb::{EntryFlags, Fdb, Limits, NoReaders};
    use windlass_frame::Tick;

    /// However keys come and go in a table that is full, each bucket counts those of its keys that are away.
    #[test]
    fn keys_away_are_counted() {
        let (fdb, mut writer) = Fdb::new(Limits::new(64, [3, 4]), NoReaders);
        let buckets = fdb.buckets.len() as u32;
        let mut most = 0;
        for round in 0..4000_u64 {
            let key = |n: u64| Key::new(1, (n * n % 257) << 8 | 2);
            let _ = writer.add_fixed(key(round), 1, EntryFlags::STATIC, Tick(0));
            writer.delete(key(round * 7 % 300));
            let mut away = vec![0; buckets as usize];
            for bucket in 0..buckets {
                for slot in 0..SLOTS {
                    if let Some((key, ..)) = writer.read(SlotAt { bucket, slot }) {
                        let [first, _] = fdb.buckets_of(fdb.place(key));
                        away[first as usize] += u16::from(first != bucket);
                    }
                }
            }
            let counted = fdb.buckets.iter().map(|b| b.away.load(Relaxed));
            assert_eq!(counted.collect::<Vec<_>>(), away, "in round {round}");
            most = most.max(away.iter().sum());
        }
        assert!(most > 3, "at most {most} keys were away at a time");
    }
}
