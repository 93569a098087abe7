//! The table as one burst reads it.
//!
//! # Model
//! A [`Reader`] holds by value what does not change while a burst lasts: where the buckets are, the seeds, the moment.
//! Loads of keys are atomic, and behind one the compiler would fetch all of it anew for every frame.
//!
//! # Synchronization
//! As the [module](super) says: keys (Acquire) of the first bucket, then how many are away, then keys of the second;
//! key, then value and age. [`Bucket::find`] looks at the slot that it chose
//! once more and believes that second load only.

use std::sync::atomic::Ordering::Relaxed;

use windlass_sync::prefetch;

use super::hash::Seeds;
use super::table::{Bucket, EntryFlags, FUTURE, Fdb, Hit, Now, SLOTS, TTL, Value};
use super::{Key, Place};

/// A lookup that found nothing, as [`Reader::member`] says it.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// More than any age.
const ALL_AGES: u32 = 256;

/// The table as one burst reads it: from [`Fdb::reader`].
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    fdb: &'a Fdb,
    buckets: &'a [Bucket],
    mask: u32,
    seeds: Seeds,
    now: Now,
    /// Entries whose age is this far from the tick, less [`TTL`] and 1, or nearer are doubtful: those that may have
    /// expired, or all while more than the age counts.
    doubtful: u32,
    /// Flags of which one makes an entry certain all the same.
    certain: u8,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub(super) fn new(fdb: &'a Fdb, now: Now) -> Reader<'a> {
        Reader {
            fdb,
            buckets: &fdb.buckets,
            mask: fdb.mask,
            seeds: fdb.seeds,
            now,
            doubtful: if now.void | now.flushing {
                ALL_AGES
            } else {
                u32::from(FUTURE - TTL - 1)
            },
            certain: if now.flushing { 0 } else { EntryFlags::FIXED },
        }
    }

    /// Where a key may stand: for [`Reader::prefetch`] and [`Reader::lookup`].
    #[inline(always)]
    pub fn place(&self, key: Key) -> Place {
        self.seeds.place(key)
    }

    /// Starts to load the bucket in which most keys stand.
    #[inline(always)]
    pub fn prefetch(&self, place: Place) {
        let buckets = self.buckets.as_ptr();
        prefetch::read(buckets.wrapping_add(place.first(self.mask) as usize).cast());
    }

    /// Bucket, slot in it, and index of the bucket that holds `key`.
    #[inline(always)]
    pub(super) fn find(&self, place: Place, key: Key) -> Option<(&'a Bucket, usize, u32)> {
        let index = place.first(self.mask);
        let bucket = self.buckets.get(index as usize)?;
        if let Some(slot) = bucket.find(key) {
            return Some((bucket, slot, index));
        }
        if bucket.away.load(Relaxed) == 0 {
            return None;
        }
        let index = place.second(self.mask);
        let bucket = self.buckets.get(index as usize)?;
        bucket.find(key).map(|slot| (bucket, slot, index))
    }

    /// The live entry of a key: value, age, bucket and slot.
    #[inline(always)]
    fn live(&self, place: Place, key: Key) -> Option<(Value, u8, u32, usize)> {
        let (bucket, slot, index) = self.find(place, key)?;
        let value = Value(bucket.vals.get(slot)?.load(Relaxed));
        let age = bucket.ages.get(slot)?.load(Relaxed);
        let old = self.now.tick.wrapping_sub(TTL + 1).wrapping_sub(age);
        if u32::from(old) < self.doubtful
            && (!value.flags().is_fixed() || self.now.flushing)
            && !lives(self.fdb, self.now, value, age)
        {
            return None;
        }
        Some((value, age, index, slot))
    }

    /// Finds a key.
    #[inline(always)]
    pub fn lookup(&self, place: Place, key: Key) -> Option<Hit> {
        let (value, age, bucket, slot) = self.live(place, key)?;
        Some(Hit {
            member: value.member(),
            flags: value.flags(),
            stale_age: age != self.now.tick && !value.flags().is_fixed(),
            slot: bucket.wrapping_mul(SLOTS as u32).wrapping_add(slot as u32),
        })
    }

    /// The member behind which a key is, if it stands in its first bucket and is certain; if not, [`Reader::member`] knows.
    #[inline(always)]
    pub(crate) fn member_at_once(&self, place: Place, key: Key) -> Option<u32> {
        let bucket = self.buckets.get(place.first(self.mask) as usize)?;
        let slot = bucket.find(key)?;
        let value = Value(bucket.vals.get(slot)?.load(Relaxed));
        let age = bucket.ages.get(slot)?.load(Relaxed);
        let old = self.now.tick.wrapping_sub(TTL + 1).wrapping_sub(age);
        if u32::from(old) < self.doubtful && value.flags().bits() & self.certain == 0 {
            return None;
        }
        Some(u32::from(value.member()))
    }

    /// The member behind which a key is, or [`NOWHERE`].
    #[inline(always)]
    pub(crate) fn member(&self, place: Place, key: Key) -> u32 {
        self.live(place, key)
            .map_or(NOWHERE, |(value, ..)| u32::from(value.member()))
    }

    /// Notes that the source address in `slot` was heard of: one store of a byte. In the visit of the lookup only.
    #[inline(always)]
    pub fn touch(&self, slot: u32) {
        self.fdb.touch(slot, self.now);
    }
}

/// Whether an entry that may be too old, or flushed, is neither.
#[cold]
#[inline(never)]
fn lives(fdb: &Fdb, now: Now, value: Value, age: u8) -> bool {
    let expired = now.expired(age) && !value.flags().is_fixed();
    !(expired || (now.flushing && fdb.flushed(value)))
}
