//! The table's one writer: learns, moves, ages, flushes.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32};

use windlass_frame::Tick;

use super::limits::MEMBERS_MAX;
use super::room::Room;
use super::table::{Beyond, EntryFlags, STAMP_MASK, SlotAt, Value, tick_ns};
use super::{Fdb, Grace, Key, Limits, Now, Sighting, Tally, grace};

/// Flushes between two complete sweeps, at most: stamps would become ambiguous after 3,072.
const FLUSHES_MAX: u64 = 1024;
/// The part of the table that the sticky entries of one member can fill: one in this many.
const STICKY_SHARE: u32 = 4;
/// Buckets that [`FdbWriter::sweep_due`] sweeps in a call, at most: about a millisecond.
pub const SWEEP_MAX: usize = 32_768;
/// The time in which a fifth of a member's moves comes back.
const MOVES_BACK_NS: u64 = 5_000_000_000;

/// What became of a sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// Entered.
    New,
    /// Moved to the member from another.
    Moved,
    /// Known already; heard of again.
    Known,
    /// Put off until an erased slot has rested; the next sighting tries again.
    Waiting,
    /// The member is at its limit.
    MemberLimit,
    /// The table is full, and no one else is over its share.
    BridgeLimit,
    /// The member moves addresses too often.
    Damped,
    /// The address is static or sticky on another member.
    Fixed,
}

/// Why an entry cannot be added by configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The member's number is beyond [`Limits::members`].
    #[error("member {0} is beyond the table's limit")]
    NoSuchMember(u16),
    /// The table, or all eight slots of this address, is full of fixed entries.
    #[error("the forwarding table has no room for another fixed entry")]
    Full,
    /// A slot is free but must rest until readers are done: to be called again after a grace period.
    #[error("a slot is not free yet; try again")]
    Resting,
}

/// What a member's account begins with.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    limit: u32,
    moves: u32,
}

impl Fresh {
    fn account(self) -> Account {
        Account {
            learned: 0,
            fixed: 0,
            limit: self.limit,
            moves_max: self.moves,
            moves: self.moves,
            moves_at: Tick(0),
            tally: None,
        }
    }
}

/// One member's account.
#[derive(Debug)]
pub(super) struct Account {
    /// Learned entries that were not flushed with the member; expired ones and those flushed with
    /// their VLAN count until they are swept.
    pub(super) learned: u32,
    /// Fixed entries.
    pub(super) fixed: u32,
    limit: u32,
    moves_max: u32,
    moves: u32,
    moves_at: Tick,
    /// Where its learned entries count with those of others.
    tally: Option<Tally>,
}

impl Account {
    fn add_learned(&mut self) {
        self.learned = self.learned.saturating_add(1);
        if let Some(tally) = &self.tally {
            tally.add(1);
        }
    }

    /// At most as many as there are.
    fn sub_learned(&mut self, entries: u32) {
        let entries = entries.min(self.learned);
        self.learned = self.learned.saturating_sub(entries);
        if let Some(tally) = &self.tally {
            tally.sub(entries);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.sub_learned(self.learned);
    }
}

/// The writer of one table. There is one, made with the table.
#[derive(Debug)]
pub struct FdbWriter<G> {
    pub(super) fdb: Arc<Fdb>,
    pub(super) grace: G,
    /// Latest ticket taken.
    pub(super) newest: u64,
    pub(super) entries_max: u32,
    pub(super) accounts: Vec<Account>,
    /// What a member that has no account yet begins with.
    fresh: Fresh,
    /// Entries that count, over all members.
    pub(super) entries: u32,
    /// Members with learned entries.
    pub(super) active: u32,
    pub(super) room: Room,
    flushes: u64,
    /// Next bucket to be swept.
    cursor: usize,
    /// Value of `flushes` when the sweep under way and the last complete one began.
    cycle: [u64; 2],
    /// Tick in which the sweep under way began.
    cycle_tick: u64,
    /// When [`FdbWriter::sweep_due`] was last called.
    swept_at: Tick,
}

impl<G: Grace> FdbWriter<G> {
    pub(super) fn new(fdb: Arc<Fdb>, limits: &Limits, grace: G) -> FdbWriter<G> {
        let fresh = Fresh {
            limit: limits.member_entries,
            moves: limits.moves,
        };
        let accounts = (0..fdb.member_since.len()).map(|_| fresh.account());
        let accounts = accounts.collect();
        FdbWriter {
            fdb,
            grace,
            newest: 0,
            entries_max: limits.entries,
            accounts,
            fresh,
            entries: 0,
            active: 0,
            room: Room::new(),
            flushes: 0,
            cursor: 0,
            cycle: [0; 2],
            cycle_tick: 0,
            swept_at: Tick(0),
        }
    }

    /// The table.
    pub fn table(&self) -> &Arc<Fdb> {
        &self.fdb
    }

    /// Has room for members with numbers below `members`, beyond the limit that the table was made with, up to
    /// [`MEMBERS_MAX`]: 320 KiB and 64 bytes for each.
    pub fn admit_beyond(&mut self, members: u32) {
        let low = self.fdb.member_since.len();
        let n = (MEMBERS_MAX as usize).saturating_sub(low);
        self.fdb.beyond.get_or_init(|| Beyond {
            since: (0..n).map(|_| AtomicU32::new(0)).collect(),
            full: (0..n).map(|_| AtomicU8::new(0)).collect(),
        });
        let members = members.min(MEMBERS_MAX) as usize;
        let fresh = self.fresh;
        let stamp = self.stamp();
        for member in self.accounts.len()..members {
            self.accounts.push(fresh.account());
            // As if it had been flushed last of all.
            if let Some(since) = self.fdb.since(member) {
                since.store(u32::from(stamp) << 16 | u32::from(stamp), Relaxed);
            }
        }
    }

    /// The oracle that tells when erased slots have rested.
    pub fn grace_mut(&mut self) -> &mut G {
        &mut self.grace
    }

    /// Entries in the table: those that were not flushed with their member. Expired ones count until swept.
    pub fn len(&self) -> u32 {
        self.entries
    }

    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Learned and fixed entries of one member.
    pub fn member_len(&self, member: u16) -> (u32, u32) {
        self.accounts
            .get(member as usize)
            .map_or((0, 0), |a| (a.learned, a.fixed))
    }

    /// Sets the limits of one member: learned entries (0: only the table's limit; what is beyond stays until it ages)
    /// and moves at once (0: no limit), of which a fifth comes back every five seconds.
    pub fn set_member_limits(&mut self, member: u16, entries: u32, moves: u32) {
        let own_limit = if entries == 0 {
            self.entries_max
        } else {
            entries
        };
        if let Some(a) = self.accounts.get_mut(member as usize) {
            a.limit = own_limit;
            a.moves_max = moves;
            a.moves = moves;
        }
        self.mark_full(member as usize);
    }

    /// Counts a member's learned entries with those of others, or no more. What is beyond stays until it ages.
    pub fn set_member_tally(&mut self, member: u16, tally: Option<Tally>) {
        if let Some(a) = self.accounts.get_mut(member as usize) {
            for (tally, is_new) in [(&tally, true), (&a.tally, false)] {
                match tally {
                    Some(tally) if is_new => tally.add(a.learned),
                    Some(tally) => tally.sub(a.learned),
                    None => {}
                }
            }
            a.tally = tally;
        }
    }

    /// Keeps the readers' view of whether a member is at a limit of its own.
    fn mark_full(&self, member: usize) {
        if let (Some(a), Some(full)) = (self.accounts.get(member), self.fdb.full(member)) {
            let is = u8::from(a.limit < self.entries_max && a.learned >= a.limit);
            if full.load(Relaxed) != is {
                full.store(is, Relaxed);
            }
        }
    }

    /// The moment; after an idle time in which ages lost their meaning, forgets what was learned.
    pub(super) fn clock(&mut self, now: Tick) -> Now {
        let at = self.fdb.at(now);
        if !at.void {
            return at;
        }
        if self.entries > 0 {
            self.flush_all();
        }
        let tick = self.fdb.tick_of(now);
        self.cursor = 0;
        self.cycle_tick = tick;
        self.fdb.swept.store(tick, Release);
        self.fdb.at(now)
    }

    pub(super) fn stamp(&self) -> u16 {
        self.flushes as u16 & STAMP_MASK
    }

    /// Acts on a sighting.
    pub fn learn(&mut self, s: Sighting, now: Tick) -> Learned {
        let at = self.clock(now);
        let outcome = self.decide(s, at, now);
        let c = &self.fdb.counters;
        match outcome {
            Learned::New => c.learned.add(1),
            Learned::Moved => c.moved.add(1),
            Learned::Known => {}
            Learned::Waiting => c.waiting.add(1),
            Learned::MemberLimit => c.refused_member.add(1),
            Learned::BridgeLimit => c.refused_bridge.add(1),
            Learned::Damped => c.refused_damped.add(1),
            Learned::Fixed => c.refused_fixed.add(1),
        }
        outcome
    }

    fn decide(&mut self, s: Sighting, at: Now, now: Tick) -> Learned {
        let Some(full) = self.is_full(s) else {
            return Learned::MemberLimit;
        };
        let flags = if s.sticky {
            EntryFlags::STICKY
        } else {
            EntryFlags::LEARNED
        };
        let fresh = Value::new(s.member, self.stamp(), flags);
        let Some((slot, old, age)) = self.get(s.key) else {
            return if full {
                Learned::MemberLimit
            } else {
                self.insert(s.key, fresh, at)
            };
        };
        let aged = !old.flags().is_fixed() && at.expired(age);
        if aged || self.fdb.flushed(old) {
            self.revive(slot, s.key, old, fresh, full, at)
        } else {
            self.refresh(slot, old, fresh, full, at, now)
        }
    }

    /// Whether the member may have no further entry. None if there is no such member.
    fn is_full(&self, s: Sighting) -> Option<bool> {
        let a = self.accounts.get(s.member as usize)?;
        let sticky_max = self.entries_max / STICKY_SHARE;
        Some(if s.sticky {
            a.learned.saturating_add(a.fixed) >= a.limit.min(sticky_max)
        } else {
            a.learned >= a.limit || a.tally.as_ref().is_some_and(Tally::is_full)
        })
    }

    /// A key whose former entry is dead but was not swept yet: it takes that one's slot.
    fn revive(
        &mut self,
        slot: SlotAt,
        key: Key,
        old: Value,
        fresh: Value,
        full: bool,
        at: Now,
    ) -> Learned {
        if full && !self.counts(old, fresh.member()) {
            return Learned::MemberLimit;
        }
        if !self.counted(old) && self.entries >= self.entries_max {
            self.erase(slot, old);
            return self.insert(key, fresh, at);
        }
        self.rewrite(slot, old, fresh, at.tick);
        Learned::New
    }

    /// A key with a live entry: heard of again, or moved.
    fn refresh(
        &mut self,
        slot: SlotAt,
        old: Value,
        fresh: Value,
        full: bool,
        at: Now,
        now: Tick,
    ) -> Learned {
        let same = old.member() == fresh.member();
        if old.flags().is_fixed() {
            return if same { Learned::Known } else { Learned::Fixed };
        }
        if same && !fresh.flags().is_fixed() {
            self.set_age(slot, at.tick);
            return Learned::Known;
        }
        if full && !(same && self.counts(old, fresh.member())) {
            return Learned::MemberLimit;
        }
        if !same && !self.may_move(fresh.member(), now) {
            return Learned::Damped;
        }
        self.rewrite(slot, old, fresh, at.tick);
        if same { Learned::Known } else { Learned::Moved }
    }

    /// Whether the entry is counted as a learned one of `member`.
    fn counts(&self, value: Value, member: u16) -> bool {
        value.member() == member && self.counted(value) && !value.flags().is_fixed()
    }

    /// Whether the entry is counted at all: it is, until its member is flushed.
    fn counted(&self, value: Value) -> bool {
        !self.fdb.flushed(value)
    }

    /// Adds an entry by configuration, or makes a learned one static. `flags` is
    /// [`EntryFlags::STATIC`], [`EntryFlags::LOCAL`] or [`EntryFlags::STICKY`].
    pub fn add_fixed(
        &mut self,
        key: Key,
        member: u16,
        flags: EntryFlags,
        now: Tick,
    ) -> Result<(), AddError> {
        if member as usize >= self.accounts.len() {
            return Err(AddError::NoSuchMember(member));
        }
        let at = self.clock(now);
        let value = Value::new(member, self.stamp(), flags);
        if let Some((slot, old, _)) = self.get(key) {
            self.rewrite(slot, old, value, at.tick);
            return Ok(());
        }
        match self.insert(key, value, at) {
            Learned::New => Ok(()),
            Learned::Waiting => Err(AddError::Resting),
            _ => Err(AddError::Full),
        }
    }

    /// Removes an entry of any kind. False if there was none.
    pub fn delete(&mut self, key: Key) -> bool {
        let Some((slot, value, _)) = self.get(key) else {
            return false;
        };
        let live = !self.fdb.flushed(value);
        self.erase(slot, value);
        live
    }

    /// Forgets what was learned behind a member; `fixed`: also static and sticky entries.
    pub fn flush_member(&mut self, member: u16, fixed: bool) {
        let stamp = self.next_flush();
        self.forget_member(member as usize, stamp, fixed);
    }

    /// Forgets all that was learned; static and sticky entries stay.
    pub fn flush_all(&mut self) {
        let stamp = self.next_flush();
        for member in 0..self.accounts.len() {
            self.forget_member(member, stamp, false);
        }
    }

    fn forget_member(&mut self, member: usize, stamp: u16, fixed: bool) {
        let (Some(since), Some(a)) = (self.fdb.since(member), self.accounts.get_mut(member)) else {
            return;
        };
        since.store(raised(since.load(Relaxed), stamp, fixed), Release);
        if a.learned > 0 {
            self.active = self.active.saturating_sub(1);
        }
        self.entries = self.entries.saturating_sub(a.learned);
        a.sub_learned(a.learned);
        if fixed {
            self.entries = self.entries.saturating_sub(a.fixed);
            a.fixed = 0;
        }
        self.mark_full(member);
    }

    fn next_flush(&mut self) -> u16 {
        if self.flushes.wrapping_sub(self.cycle[1]) >= FLUSHES_MAX {
            self.sweep_through();
            self.sweep_through();
        }
        self.flushes = self.flushes.wrapping_add(1);
        self.fdb.flushing.store(true, Release);
        self.fdb.counters.flushes.add(1);
        self.stamp()
    }

    /// Changes the ageing time; 0: nothing ages. Every learned entry starts afresh, but for those that have expired.
    pub fn set_ageing(&mut self, ageing_ms: u32, now: Tick) {
        self.sweep(now, usize::MAX);
        self.fdb.tick_ns.store(tick_ns(ageing_ms), Relaxed);
        let tick = self.fdb.tick_of(now);
        for bucket in &self.fdb.buckets {
            for age in &bucket.ages {
                age.store(tick as u8, Relaxed);
            }
        }
        self.fdb.swept.store(tick, Release);
        self.cycle_tick = tick;
    }

    /// Sweeps as much as is due: the whole table once in the ageing time, at most [`SWEEP_MAX`] buckets a call. To be
    /// called now and then while there is traffic, at least 16 times in the ageing time.
    pub fn sweep_due(&mut self, now: Tick) {
        let ageing_ns = self.fdb.tick_ns.load(Relaxed).saturating_mul(16);
        let passed = now.since(self.swept_at);
        self.swept_at = now;
        let share = u128::from(passed).saturating_mul(self.fdb.buckets.len() as u128);
        let due = share.checked_div(u128::from(ageing_ns)).unwrap_or(0);
        self.sweep(
            now,
            usize::try_from(due)
                .unwrap_or(SWEEP_MAX)
                .saturating_add(1)
                .min(SWEEP_MAX),
        );
    }

    /// Reclaims expired and flushed entries in the next `buckets` buckets.
    pub fn sweep(&mut self, now: Tick, buckets: usize) {
        let at = self.clock(now);
        let tick = self.fdb.tick_of(now);
        for _ in 0..buckets.min(self.fdb.buckets.len()) {
            if self.cursor == 0 {
                self.cycle_tick = tick;
                self.cycle = [self.flushes, self.cycle[1]];
            }
            self.sweep_bucket(self.cursor, Some(at));
            self.advance();
        }
    }

    /// Runs the sweep under way to its end, or a whole one, for flushed entries only.
    fn sweep_through(&mut self) {
        self.cycle_tick = self.fdb.swept.load(Relaxed);
        loop {
            if self.cursor == 0 {
                self.cycle = [self.flushes, self.cycle[1]];
            }
            self.sweep_bucket(self.cursor, None);
            self.advance();
            if self.cursor == 0 {
                return;
            }
        }
    }

    /// One bucket on. At the end of the table: all live stamps are at least as young as the sweep's beginning, so
    /// flushes older than the sweep before need not be remembered as such.
    fn advance(&mut self) {
        self.cursor = self.cursor.wrapping_add(1);
        if self.cursor < self.fdb.buckets.len() {
            return;
        }
        self.cursor = 0;
        self.fdb.swept.store(self.cycle_tick, Release);
        let floor = self.cycle[1];
        self.cycle[1] = self.cycle[0];
        let now = self.flushes;
        if self.cycle[0] == now {
            self.fdb.flushing.store(false, Release);
        }
        let beyond = self.fdb.beyond.get();
        let beyond = beyond.into_iter().flat_map(|beyond| &beyond.since);
        for since in self.fdb.member_since.iter().chain(beyond) {
            let s = since.load(Relaxed);
            let low = clamped(s as u16, now, floor);
            let high = clamped((s >> 16) as u16, now, floor);
            since.store(u32::from(high) << 16 | u32::from(low), Relaxed);
        }
    }

    /// Reclaims what is dead in one bucket (without `at`, flushed entries only) and brings stamps up to date.
    fn sweep_bucket(&mut self, bucket: usize, at: Option<Now>) {
        for slot in 0..super::table::SLOTS {
            let slot = SlotAt {
                bucket: bucket as u32,
                slot,
            };
            let Some((_, value, age)) = self.read(slot) else {
                continue;
            };
            if self.fdb.flushed(value) {
                self.erase(slot, value);
                self.fdb.counters.flushed.add(1);
            } else if !value.flags().is_fixed() && at.is_some_and(|at| at.expired(age)) {
                self.erase(slot, value);
                self.fdb.counters.aged.add(1);
            } else if value.stamp() != self.stamp() {
                let fresh = Value::new(value.member(), self.stamp(), value.flags());
                self.set_value(slot, fresh);
            }
        }
    }

    /// Whether the member may move one more address to itself.
    fn may_move(&mut self, member: u16, now: Tick) -> bool {
        let Some(a) = self.accounts.get_mut(member as usize) else {
            return false;
        };
        if a.moves_max == 0 {
            return true;
        }
        let a_fifth = u64::from(a.moves_max).div_ceil(5);
        let back_ns = MOVES_BACK_NS.checked_div(a_fifth).unwrap_or(MOVES_BACK_NS);
        let back = now.since(a.moves_at).checked_div(back_ns).unwrap_or(0);
        if back > 0 {
            a.moves = u64::from(a.moves)
                .saturating_add(back)
                .min(u64::from(a.moves_max)) as u32;
            a.moves_at = a.moves_at.plus(back.saturating_mul(back_ns));
        }
        let Some(left) = a.moves.checked_sub(1) else {
            return false;
        };
        a.moves = left;
        true
    }

    /// The slot of a key with its value and age.
    pub(super) fn get(&self, key: Key) -> Option<(SlotAt, Value, u8)> {
        let place = self.fdb.place(key);
        let (_, slot, bucket) = self.fdb.reader(Now::default()).find(place, key)?;
        let slot = SlotAt { bucket, slot };
        self.read(slot).map(|(_, value, age)| (slot, value, age))
    }

    /// What stands in a slot; None if it is empty.
    pub(super) fn read(&self, at: SlotAt) -> Option<(Key, Value, u8)> {
        let b = self.fdb.buckets.get(at.bucket as usize)?;
        let key = b.keys.get(at.slot)?.load(Relaxed);
        if key == 0 {
            return None;
        }
        let value = Value(b.vals.get(at.slot)?.load(Relaxed));
        Some((Key(key), value, b.ages.get(at.slot)?.load(Relaxed)))
    }

    fn set_value(&self, at: SlotAt, value: Value) {
        let b = self.fdb.buckets.get(at.bucket as usize);
        if let Some(v) = b.and_then(|b| b.vals.get(at.slot)) {
            v.store(value.0, Release);
        }
    }

    fn set_age(&self, at: SlotAt, tick: u8) {
        let b = self.fdb.buckets.get(at.bucket as usize);
        if let Some(a) = b.and_then(|b| b.ages.get(at.slot)) {
            a.store(tick, Relaxed);
        }
    }

    /// Gives an entry another value, in one store.
    fn rewrite(&mut self, at: SlotAt, old: Value, new: Value, tick: u8) {
        self.uncount(old);
        self.count(new);
        self.set_age(at, tick);
        self.set_value(at, new);
    }

    /// Enters a new key into a slot that has rested.
    pub(super) fn enter(&mut self, at: SlotAt, key: Key, value: Value, tick: u8) {
        self.fdb.fill(at, key, value, tick);
        self.count(value);
    }

    /// Removes an entry; its slot rests from now on.
    pub(super) fn erase(&mut self, at: SlotAt, value: Value) {
        self.uncount(value);
        self.clear(at);
    }

    /// Empties a slot; it rests from now on.
    pub(super) fn clear(&mut self, at: SlotAt) {
        let Some(b) = self.fdb.buckets.get(at.bucket as usize) else {
            return;
        };
        if let (Some(k), Some(r)) = (b.keys.get(at.slot), b.rests.get(at.slot)) {
            let key = Key(k.load(Relaxed));
            k.store(0, Release);
            self.fdb.note_away(key, at.bucket, -1);
            self.newest = self.grace.ticket();
            r.store(grace::pack(self.newest), Relaxed);
        }
    }

    fn count(&mut self, value: Value) {
        let Some(a) = self.accounts.get_mut(value.member() as usize) else {
            return;
        };
        self.entries = self.entries.saturating_add(1);
        if value.flags().is_fixed() {
            a.fixed = a.fixed.saturating_add(1);
            return;
        }
        if a.learned == 0 {
            self.active = self.active.saturating_add(1);
        }
        a.add_learned();
        self.mark_full(value.member() as usize);
    }

    fn uncount(&mut self, value: Value) {
        if !self.counted(value) {
            return;
        }
        let Some(a) = self.accounts.get_mut(value.member() as usize) else {
            return;
        };
        self.entries = self.entries.saturating_sub(1);
        if value.flags().is_fixed() {
            a.fixed = a.fixed.saturating_sub(1);
            return;
        }
        a.sub_learned(1);
        if a.learned == 0 {
            self.active = self.active.saturating_sub(1);
        }
        self.mark_full(value.member() as usize);
    }
}

/// `since` raised to `stamp`, in the half for learned entries and, if `fixed`, in the other.
fn raised(since: u32, stamp: u16, fixed: bool) -> u32 {
    let high = if fixed {
        u32::from(stamp) << 16
    } else {
        since & 0xffff_0000
    };
    high | u32::from(stamp)
}

/// The flush noted as `since`, seen from flush number `now`: not farther back than number `floor`.
fn clamped(since: u16, now: u64, floor: u64) -> u16 {
    let back = (now as u16).wrapping_sub(since) & STAMP_MASK;
    if u64::from(back) > now.wrapping_sub(floor) {
        floor as u16 & STAMP_MASK
    } else {
        since
    }
}
