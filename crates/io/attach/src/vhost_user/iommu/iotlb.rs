//! The translations that a front end has told: which address of a guest's device lies where, and may be read or written.
//!
//! # Model
//! A guest with an IOMMU hands its devices addresses that only the front end can translate (`VIRTIO_F_ACCESS_PLATFORM`;
//! QEMU, docs/interop/vhost-user.rst, "IOMMU support"). We ask for those that we come upon, and keep the answers here:
//! ranges, sorted, without overlap, neighbours that continue each other as one. A newer answer replaces what it overlaps.
//! What workers use is a copy that never changes ([`Table::snapshot`]).
//!
//! # Limits
//! [`RANGES_MAX`] ranges. Beyond that one is forgotten for each that comes, in the order of addresses, round and round:
//! it is asked for again if it is used.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::sync::Arc;

use crate::vhost_user::guest_map::{Extent, first_miss};

/// Ranges of one guest at most: a full ring of 1,024 buffers for each of four queues, none beside another.
pub const RANGES_MAX: usize = 4096;

/// The translations of one guest.
#[derive(Debug, Default)]
pub(crate) struct Table {
    ranges: Vec<Extent>,
    /// The next range to be forgotten is the first from here on.
    oldest: u64,
}

/// The part of a range from `first` to `last`, both of which lie inside.
fn cut(range: &Extent, first: u64, last: u64) -> Extent {
    let at = first.wrapping_sub(range.gpa);
    Extent {
        gpa: first,
        len: last.wrapping_sub(first).wrapping_add(1),
        base: range.base.wrapping_add(at as usize),
        real: range.real.wrapping_add(at),
        access: range.access,
    }
}

/// Whether `high` goes on where `low` ends, everywhere.
fn continues(low: &Extent, high: &Extent) -> bool {
    low.access == high.access
        && low.gpa.checked_add(low.len) == Some(high.gpa)
        && low.real.checked_add(low.len) == Some(high.real)
        && low.base.wrapping_add(low.len as usize) == high.base
        && low.len.checked_add(high.len).is_some()
}

impl Table {
    /// Ranges at the moment.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Enters a translation, which is not empty and does not go beyond the last address. Whether one that said something
    /// else has gone.
    pub(crate) fn update(&mut self, new: Extent) -> bool {
        let known = self.overlapping(new.gpa, new.last());
        let known = self.ranges.get(known).unwrap_or(&[]);
        let agrees = |old: &Extent| {
            let (first, last) = (old.gpa.max(new.gpa), old.last().min(new.last()));
            cut(old, first, last) == cut(&new, first, last)
        };
        let changes = !known.iter().all(agrees);
        self.remove(new.gpa, new.last());
        let at = self.ranges.partition_point(|r| r.gpa < new.gpa);
        self.ranges.insert(at, new);
        self.join(at);
        if let Some(before) = at.checked_sub(1) {
            self.join(before);
        }
        self.forget_surplus();
        changes
    }

    /// Removes what lies from `first` to `last`.
    pub(crate) fn invalidate(&mut self, first: u64, last: u64) {
        self.remove(first, last);
        self.forget_surplus();
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Whether `len` bytes from `iova` on may be accessed so.
    pub(crate) fn covers(&self, access: u8, iova: u64, len: u64) -> bool {
        first_miss(&self.ranges, access, iova, len).is_none()
    }

    /// The translations as they are now.
    pub(crate) fn snapshot(&self) -> Arc<[Extent]> {
        self.ranges.as_slice().into()
    }

    /// Where the ranges are that have an address from `first` to `last`.
    fn overlapping(&self, first: u64, last: u64) -> core::ops::Range<usize> {
        let begin = self.ranges.partition_point(|r| r.last() < first);
        let end = self.ranges.partition_point(|r| r.gpa <= last);
        begin..end.max(begin)
    }

    fn remove(&mut self, first: u64, last: u64) {
        let gone = self.overlapping(first, last);
        let Some(list) = self.ranges.get(gone.clone()) else {
            return;
        };
        let below = list.first().filter(|r| r.gpa < first);
        let below = below.map(|r| cut(r, r.gpa, first.wrapping_sub(1)));
        let above = list.last().filter(|r| r.last() > last);
        let above = above.map(|r| cut(r, last.wrapping_add(1), r.last()));
        self.ranges.splice(gone, below.into_iter().chain(above));
    }

    /// Makes one of range `at` and the one behind it, if they continue each other.
    fn join(&mut self, at: usize) {
        let behind = at.wrapping_add(1);
        let (Some(low), Some(high)) = (self.ranges.get(at), self.ranges.get(behind)) else {
            return;
        };
        if continues(low, high) {
            let len = low.len.wrapping_add(high.len);
            self.ranges.remove(behind);
            if let Some(low) = self.ranges.get_mut(at) {
                low.len = len;
            }
        }
    }

    fn forget_surplus(&mut self) {
        while self.ranges.len() > RANGES_MAX {
            let at = self.ranges.partition_point(|r| r.gpa < self.oldest);
            let at = if at < self.ranges.len() { at } else { 0 };
            let gone = self.ranges.remove(at);
            self.oldest = gone.last().wrapping_add(1);
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;
    use crate::vhost_user::guest_map::{READ, WRITE, each_real};
    use proptest::prelude::*;

    /// Addresses of the tests, few enough to be listed, at either end of all of them.
    const ADDRESSES: u64 = 64;

    fn range(gpa: u64, len: u64, real: u64, access: u8) -> Extent {
        Extent {
            gpa,
            len,
            base: core::ptr::without_provenance_mut(0x10_0000 + real as usize),
            real,
            access,
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Update {
            at: u64,
            len: u64,
            real: u64,
            access: u8,
        },
        Invalidate {
            at: u64,
            len: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let place =
            (0..ADDRESSES, 1..ADDRESSES).prop_map(|(at, len)| (at, len.min(ADDRESSES - at)));
        let update = (place.clone(), 0u64..4, 1u8..4).prop_map(|((at, len), shift, access)| {
            let real = at + shift * ADDRESSES;
            Step::Update {
                at,
                len,
                real,
                access,
            }
        });
        let invalidate = place.prop_map(|(at, len)| Step::Invalidate { at, len });
        prop_oneof![3 => update, 1 => invalidate]
    }

    proptest! {
        /// Whatever is told and taken back, every address is translated as an array says that has one entry for each;
        /// ranges stay sorted, apart and joined; and an update says whether it changed what was known.
        #[test]
        fn as_an_array_of_addresses(
            steps in prop::collection::vec(step(), 1..60),
            high in any::<bool>(),
        ) {
            let origin = if high { u64::MAX - (ADDRESSES - 1) } else { 0 };
            let mut oracle = [None::<(u64, u8)>; ADDRESSES as usize];
            let mut table = Table::default();
            for step in steps {
                match step {
                    Step::Update { at, len, real, access } => {
                        let places = at as usize..(at + len) as usize;
                        let mut changed = false;
                        for (i, place) in oracle[places].iter_mut().enumerate() {
                            let new = Some((real + i as u64, access));
                            changed |= place.is_some() && *place != new;
                            *place = new;
                        }
                        let said = table.update(range(origin + at, len, real, access));
                        prop_assert_eq!(said, changed);
                    }
                    Step::Invalidate { at, len } => {
                        oracle[at as usize..(at + len) as usize].fill(None);
                        table.invalidate(origin + at, origin + (at + len - 1));
                    }
                }
                let snapshot = table.snapshot();
                for pair in snapshot.windows(2) {
                    prop_assert!(pair[0].last() < pair[1].gpa);
                    prop_assert!(!continues(&pair[0], &pair[1]));
                }
                for (at, expected) in oracle.iter().enumerate() {
                    let iova = origin + at as u64;
                    let mut found = None;
                    each_real(&snapshot, iova, 1, |real, _| found = Some(real));
                    prop_assert_eq!(found, expected.map(|(real, _)| real));
                    for access in [READ, WRITE, READ | WRITE] {
                        let allowed = expected.is_some_and(|(_, has)| has & access == access);
                        prop_assert_eq!(table.covers(access, iova, 1), allowed);
                        let first = (at..oracle.len())
                            .find(|i| oracle[*i].is_none_or(|(_, has)| has & access != access));
                        let expected = first.map(|i| origin + i as u64);
                        let left = ADDRESSES - at as u64;
                        prop_assert_eq!(first_miss(&snapshot, access, iova, left), expected);
                    }
                }
            }
        }
    }

    /// However much is told, no more is kept than the bound, and the newest is always there; taking a piece out of the
    /// middle does not exceed it either.
    #[test]
    fn no_more_than_the_bound() {
        let mut table = Table::default();
        for i in 0..3 * RANGES_MAX as u64 {
            table.update(range(i * 2 * 4096, 4096, i * 4096, 3));
            assert!(table.len() <= RANGES_MAX);
            assert!(table.covers(3, i * 2 * 4096, 4096), "{i}");
        }
        assert_eq!(table.len(), RANGES_MAX);
        let whole = range(1 << 40, 3 << 12, 0, 3);
        table.update(whole);
        table.invalidate((1 << 40) + 4096, (1 << 40) + 8191);
        assert_eq!(table.len(), RANGES_MAX);
        table.invalidate(0, u64::MAX);
        assert_eq!(table.len(), 0);
    }
}
