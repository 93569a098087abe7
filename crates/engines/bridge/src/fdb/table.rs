//! The table as its readers see it.

use std::fmt;
use std::hint::select_unpredictable;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use windlass_frame::Tick;
use windlass_shm::{Extent, Table};

use super::clash::{Clash, Clashes};
use super::counters::Counters;
use super::hash::Seeds;
use super::limits::MEMBERS_MAX;
use super::{FdbCounts, FdbWriter, Grace, Key, Limits, Place, Reader};

/// Slots of a bucket.
pub(super) const SLOTS: usize = 4;
/// Ticks in the ageing time: an entry expires between 16 and 17 ticks after it was last heard of.
pub(super) const TTL: u8 = 16;
/// Nanoseconds of a tick for each millisecond of ageing time: 1,000,000 / `TTL`.
const TICK_NS_EACH_MS: u64 = 62_500;
/// Ages this far from the tick or farther lie in the future: another worker's clock was read later.
pub(super) const FUTURE: u8 = 240;
/// Ticks after the last complete sweep from which ages mean nothing any more.
pub(super) const SWEEP_BY: u64 = 200;
/// Stamps this far ahead of a flush (modulo 4,096) are older than it.
const STAMP_OLD: u16 = 3072;
pub(super) const STAMP_MASK: u16 = 0xfff;

/// What is special about an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryFlags(u8);

impl EntryFlags {
    /// Learned: ages, moves, can be evicted and flushed.
    pub const LEARNED: EntryFlags = EntryFlags(0);
    /// Made by configuration: neither ages, moves nor is evicted.
    pub const STATIC: EntryFlags = EntryFlags(1);
    /// Learned on a sticky member: neither ages, moves nor is evicted.
    pub const STICKY: EntryFlags = EntryFlags(2);
    /// Static, and the address of a member itself.
    pub const LOCAL: EntryFlags = EntryFlags(5);

    /// Bits of which a fixed entry has one.
    pub(super) const FIXED: u8 = 3;

    pub(super) const fn from_bits(bits: u8) -> EntryFlags {
        EntryFlags(bits & 15)
    }

    #[inline(always)]
    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    /// Static or sticky.
    #[inline(always)]
    pub const fn is_fixed(self) -> bool {
        self.0 & Self::FIXED != 0
    }

    /// Made by configuration.
    pub const fn is_static(self) -> bool {
        self.0 & 1 != 0
    }

    /// Learned on a sticky member.
    pub const fn is_sticky(self) -> bool {
        self.0 & 2 != 0
    }

    /// The address of a member itself.
    pub const fn is_local(self) -> bool {
        self.0 & 4 != 0
    }
}

impl fmt::Debug for EntryFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "learned",
            1 => "static",
            2 => "sticky",
            5 => "local",
            _ => "unknown",
        })
    }
}

/// A slot's value: member, stamp and flags in one word, so that it changes as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(pub(super) u32);

impl Value {
    pub(super) const fn new(member: u16, stamp: u16, flags: EntryFlags) -> Value {
        Value((member as u32) << 16 | ((stamp & STAMP_MASK) as u32) << 4 | flags.0 as u32)
    }

    #[inline(always)]
    pub(super) const fn member(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline(always)]
    pub(super) const fn stamp(self) -> u16 {
        (self.0 >> 4) as u16 & STAMP_MASK
    }

    #[inline(always)]
    pub(super) const fn flags(self) -> EntryFlags {
        EntryFlags::from_bits(self.0 as u8)
    }
}

/// One cache line of the table: four slots.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Bucket {
    pub(super) keys: [AtomicU64; SLOTS],
    pub(super) vals: [AtomicU32; SLOTS],
    pub(super) ages: [AtomicU8; SLOTS],
    /// Packed ticket of the slot's last erasure; the writer's own.
    pub(super) rests: [AtomicU16; SLOTS],
    /// Keys whose first bucket this is, but that stand in their second one. While it is 0, who does not find a key
    /// here need not look there: most keys that are in the table nowhere cost one cache line.
    pub(super) away: AtomicU16,
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    /// The slot that holds `key`. It is chosen without a branch, since which slot a key has cannot be predicted, and then
    /// looked at once more: that load is the one that counts, so a key that is cleared in between is not found here.
    #[inline(always)]
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        let [_, b, c, d] = &self.keys;
        let is = |slot: &AtomicU64| slot.load(Acquire) == key.0;
        let slot = select_unpredictable(is(b), 1, 0);
        let slot = select_unpredictable(is(c), 2, slot);
        let slot = select_unpredictable(is(d), 3, slot) % SLOTS;
        is(self.keys.get(slot)?).then_some(slot)
    }
}

/// A moment as the table counts: made once for each burst by [`Fdb::at`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub(super) tick: u8,
    /// No sweep for so long that ages have lost their meaning: all learned entries have expired.
    pub(super) void: bool,
    /// Flushed entries may still stand in the table.
    pub(super) flushing: bool,
}

impl Now {
    /// Whether an entry of this age has expired.
    #[inline(always)]
    pub(super) const fn expired(self, age: u8) -> bool {
        let d = self.tick.wrapping_sub(age);
        (d > TTL && d < FUTURE) || self.void
    }

    /// Ticks since the entry was heard of; 0 if it lies in the future.
    pub(super) const fn ticks_since(self, age: u8) -> u8 {
        let d = self.tick.wrapping_sub(age);
        if d < FUTURE { d } else { 0 }
    }
}

/// A lookup's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The member behind which the address is.
    pub member: u16,
    /// What is special about the entry.
    pub flags: EntryFlags,
    /// The age byte is not of this tick: [`Fdb::touch`] it if the address is the frame's *source*.
    pub stale_age: bool,
    /// The slot, for [`Fdb::touch`] in the same visit.
    pub slot: u32,
}

/// An entry as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// VLAN and address.
    pub key: Key,
    /// The member behind which the address is.
    pub member: u16,
    /// What is special about it.
    pub flags: EntryFlags,
    /// Milliseconds since it was last heard of, to the precision of a sixteenth of the ageing time.
    pub age_ms: u64,
}

/// What [`Fdb`] has of members beyond the limit that it was made with.
pub(super) struct Beyond {
    pub(super) since: Box<[AtomicU32]>,
    pub(super) full: Box<[AtomicU8]>,
}

/// The forwarding table of one bridge. See the [module](super) for how it works.
pub struct Fdb {
    pub(super) buckets: Table<Bucket>,
    pub(super) mask: u32,
    pub(super) seeds: Seeds,
    /// For each member, when it was last flushed: learned entries in the low half, fixed ones in the high half.
    pub(super) member_since: Box<[AtomicU32]>,
    /// For each member, 1 while it has as many learned entries as it may have.
    pub(super) full: Box<[AtomicU8]>,
    /// The same two for the members beyond, once there are any ([`FdbWriter::admit_beyond`]).
    pub(super) beyond: OnceLock<Beyond>,
    /// Nanoseconds of a tick; 0: nothing ages.
    pub(super) tick_ns: AtomicU64,
    /// Flushed entries may still stand in the table: raised by a flush, lowered by the first sweep of the whole table
    /// that began after the last one. While it is down, lookups need not compare stamps.
    pub(super) flushing: AtomicBool,
    /// Tick in which the last complete sweep began.
    pub(super) swept: AtomicU64,
    pub(super) counters: Counters,
    /// Sightings that workers lost.
    lost: AtomicU64,
    clashes: Clashes,
}

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fdb")
            .field("buckets", &self.buckets.len())
            .finish_non_exhaustive()
    }
}

impl Fdb {
    /// An empty table within `limits`, and its one writer, which learns from `grace` when erased slots can be used
    /// again.
    pub fn new<G: Grace>(limits: Limits, grace: G) -> (Arc<Fdb>, FdbWriter<G>) {
        let buckets = Table::new(limits.buckets(), Bucket::default);
        let members = limits.members.clamp(1, MEMBERS_MAX);
        let zeros = |n: u32| (0..n).map(|_| AtomicU32::new(0)).collect();
        let fdb = Arc::new(Fdb {
            buckets,
            mask: (limits.buckets() as u32).wrapping_sub(1),
            seeds: Seeds::new(limits.seed),
            member_since: zeros(members),
            full: (0..members).map(|_| AtomicU8::new(0)).collect(),
            beyond: OnceLock::new(),
            tick_ns: AtomicU64::new(tick_ns(limits.ageing_ms)),
            flushing: AtomicBool::new(false),
            swept: AtomicU64::new(0),
            counters: Counters::default(),
            lost: AtomicU64::new(0),
            clashes: Clashes::default(),
        });
        let writer = FdbWriter::new(Arc::clone(&fdb), &limits, grace);
        (fdb, writer)
    }

    /// Where the buckets lie, if they have a region of their own.
    pub fn extent(&self) -> Option<Extent> {
        self.buckets.extent()
    }

    /// Whom to call, on a thread that forwards, when a member sends from an address that another one has for good: once,
    /// and again after [`Fdb::take_clash`]. It must not wait.
    pub fn watch_clashes(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.clashes.watch(notify);
    }

    /// A member sends from an address that another one has for good.
    pub(crate) fn note_clash(&self, key: Key, member: u16) {
        self.clashes.note(key, member);
    }

    /// Whether [`Fdb::take_clash`] has something to tell.
    pub fn has_clash(&self) -> bool {
        self.clashes.is_noted()
    }

    /// The first clash since the last call.
    pub fn take_clash(&self) -> Option<Clash> {
        self.clashes.take()
    }

    /// The tick number of a moment; 0 if nothing ages.
    pub(super) fn tick_of(&self, now: Tick) -> u64 {
        now.0.checked_div(self.tick_ns.load(Relaxed)).unwrap_or(0)
    }

    /// The moment as lookups take it. Once for each burst.
    #[inline]
    pub fn at(&self, now: Tick) -> Now {
        let tick = self.tick_of(now);
        let void = tick.saturating_sub(self.swept.load(Relaxed)) > SWEEP_BY;
        Now {
            tick: tick as u8,
            void,
            flushing: self.flushing.load(Acquire),
        }
    }

    /// The table as a burst at this moment reads it.
    #[inline(always)]
    pub fn reader(&self, now: Now) -> Reader<'_> {
        Reader::new(self, now)
    }

    /// Finds one key.
    #[inline]
    pub fn lookup(&self, key: Key, now: Now) -> Option<Hit> {
        let reader = self.reader(now);
        reader.lookup(reader.place(key), key)
    }

    /// Where a key may stand.
    pub(super) fn place(&self, key: Key) -> Place {
        self.seeds.place(key)
    }

    /// The two buckets of a place, in the order in which readers look at them.
    pub(super) fn buckets_of(&self, place: Place) -> [u32; 2] {
        [place.first(self.mask), place.second(self.mask)]
    }

    /// When a member was last flushed.
    #[inline(always)]
    pub(super) fn since(&self, member: usize) -> Option<&AtomicU32> {
        let since = self.member_since.get(member);
        since.or_else(|| self.since_beyond(member))
    }

    #[cold]
    fn since_beyond(&self, member: usize) -> Option<&AtomicU32> {
        let at = member.checked_sub(self.member_since.len())?;
        self.beyond.get()?.since.get(at)
    }

    /// Whether a member has as many learned entries as it may have: 1.
    #[inline(always)]
    pub(super) fn full(&self, member: usize) -> Option<&AtomicU8> {
        let full = self.full.get(member);
        full.or_else(|| self.full_beyond(member))
    }

    #[cold]
    fn full_beyond(&self, member: usize) -> Option<&AtomicU8> {
        let at = member.checked_sub(self.full.len())?;
        self.beyond.get()?.full.get(at)
    }

    /// Whether a flush is younger than the entry.
    #[inline(always)]
    pub(super) fn flushed(&self, value: Value) -> bool {
        let since = self.since(value.member() as usize);
        let half = u32::from(value.flags().is_fixed()).wrapping_mul(16);
        let since = since.map_or(0, |s| s.load(Relaxed)).wrapping_shr(half) as u16;
        value.stamp().wrapping_sub(since) & STAMP_MASK >= STAMP_OLD
    }

    /// Notes that the source address in `slot` was heard of: one store of a byte. In the visit of the lookup only.
    #[inline(always)]
    pub fn touch(&self, slot: u32, now: Now) {
        let bucket = self.buckets.get(slot as usize / SLOTS);
        if let Some(age) = bucket.and_then(|b| b.ages.get(slot as usize % SLOTS)) {
            age.store(now.tick, Relaxed);
        }
    }

    /// Whether a member has as many learned entries as it may have, by a limit of its own.
    #[inline]
    pub fn member_is_full(&self, member: u16) -> bool {
        let full = self.full(member as usize);
        full.is_some_and(|f| f.load(Relaxed) != 0)
    }

    /// Shows every live entry, from any thread, without stopping anyone. An entry that moves
    /// meanwhile can be shown twice or, if it is erased and learned again, not at all.
    pub fn for_each(&self, now: Tick, mut show: impl FnMut(Entry)) {
        let at = self.at(now);
        let tick_ms = self.tick_ns.load(Relaxed) / 1_000_000;
        for bucket in &self.buckets {
            for ((k, v), a) in bucket.keys.iter().zip(&bucket.vals).zip(&bucket.ages) {
                let key = k.load(Acquire);
                let value = Value(v.load(Acquire));
                let age = a.load(Relaxed);
                let dead = || !value.flags().is_fixed() && at.expired(age);
                if key == 0 || self.flushed(value) || dead() || k.load(Acquire) != key {
                    continue;
                }
                show(Entry {
                    key: Key(key),
                    member: value.member(),
                    flags: value.flags(),
                    age_ms: u64::from(at.ticks_since(age)).saturating_mul(tick_ms),
                });
            }
        }
    }

    /// Counts sightings that did not reach the writer. Any worker may.
    #[cold]
    pub fn note_lost(&self, n: u64) {
        self.lost.fetch_add(n, Relaxed);
    }

    /// What the table has counted so far.
    pub fn counts(&self) -> FdbCounts {
        self.counters.read(self.lost.load(Relaxed))
    }

    /// Slots of the table.
    pub fn slots(&self) -> usize {
        self.buckets.len().saturating_mul(SLOTS)
    }

    /// Notes in a key's first bucket, if `bucket` is not that one, that one more or one less is away from it. What has
    /// once reached the highest count stays there, which costs a look-up its second look.
    pub(super) fn note_away(&self, key: Key, bucket: u32, change: i16) {
        let [first, _] = self.buckets_of(self.place(key));
        if first == bucket {
            return;
        }
        if let Some(b) = self.buckets.get(first as usize) {
            let away = b.away.load(Relaxed);
            if away != u16::MAX {
                b.away.store(away.saturating_add_signed(change), Relaxed);
            }
        }
    }

    /// Writes an entry into a free slot: the key last.
    pub(super) fn fill(&self, at: SlotAt, key: Key, value: Value, age: u8) {
        self.note_away(key, at.bucket, 1);
        let Some(b) = self.buckets.get(at.bucket as usize) else {
            return;
        };
        let (Some(k), Some(v), Some(a)) = (
            b.keys.get(at.slot),
            b.vals.get(at.slot),
            b.ages.get(at.slot),
        ) else {
            return;
        };
        v.store(value.0, Release);
        a.store(age, Relaxed);
        k.store(key.0, Release);
    }
}

/// Nanoseconds of a tick for an ageing time.
pub(super) fn tick_ns(ageing_ms: u32) -> u64 {
    u64::from(ageing_ms).saturating_mul(TICK_NS_EACH_MS)
}

/// A slot by bucket and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotAt {
    pub(super) bucket: u32,
    pub(super) slot: usize,
}
