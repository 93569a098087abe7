//! The memory of pairs: who has which slab, when it is looked at, and when it is gone.
//!
//! # States
//! A slab is *whole* while processes of both sides live; *half* once those of one side are dead: then it stays until no channel in
//! it is in use, since a survivor may still wait for what a plain heir of the dead one must get; and it is *gone* when both sides
//! are dead, or the half one is empty. A slab is *flagged* for [`WATCH_FOR`] after a process said that it began to push.
//!
//! Rings belong to activity: after a flag the slab is *tended* as well, first once a second and then ever more rarely,
//! until no ring is left in it: an empty one that nothing was pushed to since the last time is given back for its owner,
//! who may be asleep for hours.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use windlass_channel::layout::{SLAB_BYTES, Side};
use windlass_channel::snapshot::MappedSlab;
use windlass_channel::{Bufs, Owner, Socket, Who};

use crate::helpers::Key;
use crate::limits::{
    BYTES_PER_USER_MAX, LOOK_INTERVAL, RESCUES_PER_LOOK_MAX, RETRY_INTERVAL, SLABS_PER_PAIR_MAX,
    SLABS_PER_USER_MAX, STUCK_AFTER, TEND_INTERVAL, WATCH_FOR,
};
use crate::memory::Memory;
use crate::processes::Processes;
use crate::rescue::{Known, THREAD};
use crate::users::Users;

/// Longest pause between two looks at a half slab.
const HALF_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A socket that is not at hand.
struct NoSocket;

impl Socket for NoSocket {
    fn send(&self, _: &Bufs, _: i32) -> Result<usize, i32> {
        Err(libc::EBADF)
    }

    fn recv(&self, _: &Bufs, _: usize, _: i32) -> Result<usize, i32> {
        Err(libc::EBADF)
    }

    fn written(&self) -> Option<u64> {
        None
    }

    fn received(&self) -> Option<u64> {
        None
    }

    fn raise_send_buffer(&self) {}
}

/// Why there is no slab for a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    Limit,
    System(Errno),
}

/// Bytes of a direction that nobody has moved since a moment.
#[derive(Debug, Clone, Copy)]
struct Stuck {
    head: u64,
    pos: u64,
    since: Instant,
}

/// The memory of a pair.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) memory: Memory,
    pub(crate) map: MappedSlab,
    /// The slots for which it was made: side 0 and side 1.
    pub(crate) slots: [u16; 2],
    /// The slots that use it, living or dead, with the side.
    holders: [BTreeSet<u16>; 2],
    /// Ids and user namespace of each side.
    pub(crate) keys: [Key; 2],
    flagged_until: Option<Instant>,
    stuck: HashMap<(u16, u8), Stuck>,
    /// Set while it is half: the next look and the pause after it.
    half: Option<(Instant, Duration)>,
    /// Set while it may have rings: when it is tended next, and the pause after that.
    tended: Option<(Instant, Duration)>,
}

impl Slab {
    /// The side of a slot, and the slot on the other side.
    pub(crate) fn side_of(&self, slot: u16) -> Option<(u8, u16)> {
        let [low, high] = &self.holders;
        let [a, b] = self.slots;
        match (low.contains(&slot), high.contains(&slot)) {
            (true, _) => Some((0, b)),
            (_, true) => Some((1, a)),
            _ => None,
        }
    }

    /// The slots on a side, living or dead.
    pub(crate) fn holders(&self, side: Side) -> impl Iterator<Item = u16> {
        let holders = self.holders.get(side as usize);
        holders.into_iter().flatten().copied()
    }

    fn live_on(&self, side: usize, processes: &Processes) -> bool {
        let holders = self.holders.get(side).into_iter().flatten();
        holders
            .into_iter()
            .any(|slot| processes.get(*slot).is_some_and(|process| !process.dead))
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Slabs {
    all: BTreeMap<u32, Slab>,
    pairs: HashMap<[u16; 2], Vec<u32>>,
    last: u32,
    next_look: Option<Instant>,
}

impl Slabs {
    /// None yet. Numbers begin anywhere: one that a process has from a broker that has ended names no slab of this one.
    pub(crate) fn new() -> Self {
        let last = RandomState::new().build_hasher().finish() as u32;
        Self {
            all: BTreeMap::new(),
            pairs: HashMap::new(),
            last,
            next_look: None,
        }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Slab> {
        self.all.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.all.iter().map(|(id, slab)| (*id, slab))
    }

    /// The slab of two processes: the first beyond those that are full, made if it is not there. With it comes whether it is new.
    /// Both sides that ask get the same.
    pub(crate) fn pair(
        &mut self,
        processes: &mut Processes,
        users: &mut Users,
        (a, b): (u16, u16),
        full: u16,
    ) -> Result<(u32, bool), Denied> {
        let slots = [a.min(b), a.max(b)];
        let have = self.pairs.get(&slots).map_or(&[][..], Vec::as_slice);
        let wanted = usize::from(full);
        if let Some(id) = have.get(wanted.min(have.len().saturating_sub(1)))
            && wanted < have.len()
        {
            return Ok((*id, false));
        }
        if have.len() >= SLABS_PER_PAIR_MAX {
            return Err(Denied::Limit);
        }
        let key = |slot| processes.get(slot).map(|process| process.who.key);
        let [low, high] = slots;
        let (Some(key_low), Some(key_high)) = (key(low), key(high)) else {
            return Err(Denied::Limit);
        };
        let keys = [key_low, key_high];
        for uid in keys.map(|key| key.uid) {
            let is_full = users.slabs(uid) >= SLABS_PER_USER_MAX
                || users.bytes(uid, || self.bytes_used(uid)) >= BYTES_PER_USER_MAX;
            if is_full {
                return Err(Denied::Limit);
            }
        }
        let id = self.free_id();
        let memory = Memory::create("windlass-slab", SLAB_BYTES).map_err(Denied::System)?;
        let map = MappedSlab::create(memory.as_fd(), id).ok_or(Denied::System(Errno::NOMEM))?;
        for uid in BTreeSet::from(keys.map(|key| key.uid)) {
            users.take_slab(uid);
        }
        let slab = Slab {
            memory,
            map,
            slots,
            holders: [BTreeSet::from([low]), BTreeSet::from([high])],
            keys,
            flagged_until: None,
            stuck: HashMap::new(),
            half: None,
            tended: None,
        };
        self.last = id;
        self.all.insert(id, slab);
        self.pairs.entry(slots).or_default().push(id);
        for slot in slots {
            processes.uses(slot, id);
        }
        Ok((id, true))
    }

    fn free_id(&self) -> u32 {
        // One above the last is stored by processes, too, which have 0 for none.
        let after = (self.last.saturating_add(1)..u32::MAX).chain(1..=self.last);
        let mut free = after.into_iter().filter(|id| !self.all.contains_key(id));
        free.next().unwrap_or(0)
    }

    /// Bytes that the slabs of a user really take.
    fn bytes_used(&self, uid: u32) -> u64 {
        let of_user = self
            .all
            .values()
            .filter(|slab| slab.keys.iter().any(|key| key.uid == uid));
        of_user.map(|slab| slab.memory.bytes_used()).sum()
    }

    /// Whether a process may have a slab: it has it, or its user has. One that was forked before the slab was made finds the number
    /// in a record that it shares with the maker.
    pub(crate) fn may_have(&mut self, processes: &mut Processes, slot: u16, id: u32) -> bool {
        let Some(slab) = self.all.get_mut(&id) else {
            return false;
        };
        if slab.side_of(slot).is_some() {
            return true;
        }
        let key = processes.get(slot).map(|process| process.who.key);
        let side = slab.keys.iter().position(|owner| Some(*owner) == key);
        let Some(holders) = side.and_then(|side| slab.holders.get_mut(side)) else {
            return false;
        };
        holders.insert(slot);
        processes.uses(slot, id);
        true
    }

    /// A process was forked from another one of its user: it has all that the other had. Returns how many slabs.
    pub(crate) fn inherit(&mut self, processes: &mut Processes, parent: u16, slot: u16) -> usize {
        let (Some(old), Some(new)) = (processes.get(parent), processes.get(slot)) else {
            return 0;
        };
        if parent == slot || old.who.key != new.who.key {
            return 0;
        }
        let slabs = old.slabs.clone();
        for id in &slabs {
            let Some(slab) = self.all.get_mut(id) else {
                continue;
            };
            for side in &mut slab.holders {
                if side.contains(&parent) {
                    side.insert(slot);
                }
            }
            slab.half = None;
            processes.uses(slot, *id);
        }
        slabs.len()
    }

    /// A process with a slab has died.
    pub(crate) fn died(&mut self, processes: &mut Processes, users: &mut Users, id: u32) {
        let Some(slab) = self.all.get_mut(&id) else {
            return;
        };
        let alive = [0, 1].map(|side| slab.live_on(side, processes));
        if alive == [true, true] {
            return;
        }
        if alive == [false, false] || slab.map.channels().next().is_none() {
            return self.remove(processes, users, id);
        }
        let at = Instant::now() + LOOK_INTERVAL;
        slab.half = Some((at, LOOK_INTERVAL));
        self.look_at(at);
    }

    fn remove(&mut self, processes: &mut Processes, users: &mut Users, id: u32) {
        let Some(slab) = self.all.remove(&id) else {
            return;
        };
        if let Some(ids) = self.pairs.get_mut(&slab.slots) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.pairs.remove(&slab.slots);
            }
        }
        for uid in BTreeSet::from(slab.keys.map(|key| key.uid)) {
            users.give_slab(uid);
        }
        for slot in slab.holders.into_iter().flatten() {
            processes.forget(slot, id);
        }
    }

    /// A process says that it began to push.
    pub(crate) fn flag(&mut self, slot: u16, id: u32, now: Instant) {
        if let Some(slab) = self
            .all
            .get_mut(&id)
            .filter(|slab| slab.side_of(slot).is_some())
        {
            slab.flagged_until = Some(now + WATCH_FOR);
            let soon = now + TEND_INTERVAL;
            let (next, _) = slab.tended.unwrap_or((soon, TEND_INTERVAL));
            slab.tended = Some((next.min(soon), TEND_INTERVAL));
            self.look_at(now + LOOK_INTERVAL);
        }
    }

    fn look_at(&mut self, at: Instant) {
        self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
    }

    /// When something is to be looked at; `None` while nothing is flagged.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Looks at what is flagged. Returns the directions whose bytes nobody has touched for [`STUCK_AFTER`]: slab, channel, side
    /// that sent them.
    pub(crate) fn look(
        &mut self,
        processes: &mut Processes,
        users: &mut Users,
        now: Instant,
    ) -> Vec<(u32, u16, u8)> {
        let (mut rescues, mut gone) = (Vec::new(), Vec::new());
        self.next_look = None;
        let mut next: Option<Instant> = None;
        let mut at = |when: Instant| next = Some(next.map_or(when, |next| next.min(when)));
        for (id, slab) in &mut self.all {
            if let Some((when, pause)) = slab.half {
                if when <= now && slab.map.channels().next().is_none() {
                    gone.push(*id);
                    continue;
                }
                if when <= now {
                    let pause = (pause * 2).min(HALF_PAUSE_MAX);
                    slab.half = Some((now + pause, pause));
                }
                at(slab.half.map_or(now, |(when, _)| when));
            }
            if let Some((when, pause)) = slab.tended {
                if when <= now {
                    slab.tended = slab
                        .tend(processes)
                        .then(|| (now + pause, (pause * 2).min(HALF_PAUSE_MAX)));
                }
                if let Some((when, _)) = slab.tended {
                    at(when);
                }
            }
            let Some(mut until) = slab.flagged_until else {
                continue;
            };
            if slab.map.take_watch() {
                until = now + WATCH_FOR;
                slab.flagged_until = Some(until);
            }
            // Once a process has ended nobody is left to be rescued, or to be rescued for.
            if slab.half.is_none() {
                slab.look(now, *id, &mut rescues);
            } else {
                slab.stuck.clear();
            }
            if now >= until && slab.stuck.is_empty() {
                slab.flagged_until = None;
                continue;
            }
            at(now
                + if now >= until {
                    RETRY_INTERVAL
                } else {
                    LOOK_INTERVAL
                });
        }
        self.next_look = next;
        for id in gone {
            self.remove(processes, users, id);
        }
        rescues
    }
}

impl Slab {
    /// Gives rings back that are empty and that nothing was pushed to since the last time. Whether any is left.
    fn tend(&self, processes: &Processes) -> bool {
        let Some(owner) = Owner::new(Owner::DAEMON, THREAD) else {
            return false;
        };
        let alive = Known(processes);
        let who = Who {
            owner,
            alive: &alive,
        };
        let mut left = false;
        for chan in self.map.channels() {
            let held = self.map.locks(chan);
            for side in [Side::Low, Side::High] {
                let link = self.map.link(chan, side);
                // A lock that is held is at work, or its owner is dead: then the next user repairs, who has the socket.
                let is_free = held.get(side as usize) == Some(&0);
                let gone =
                    link.is_none_or(|link| is_free && link.outgoing().idle_tick(who, &NoSocket));
                left |= !gone;
            }
        }
        left
    }

    /// Notes which directions have unread bytes, and which of them nobody has moved for too long.
    fn look(&mut self, now: Instant, id: u32, rescues: &mut Vec<(u32, u16, u8)>) {
        let mut stuck = HashMap::new();
        for chan in self.map.channels() {
            for side in [0, 1] {
                let unread = self.map.unread(chan, side);
                let Some((head, pos)) = unread.filter(|(head, pos)| head != pos) else {
                    continue;
                };
                let before = self.stuck.get(&(chan, side)).copied();
                let same = before.filter(|before| (before.head, before.pos) == (head, pos));
                let mut entry = same.unwrap_or(Stuck {
                    head,
                    pos,
                    since: now,
                });
                if now.duration_since(entry.since) >= STUCK_AFTER
                    && rescues.len() < RESCUES_PER_LOOK_MAX
                {
                    rescues.push((id, chan, side));
                    // If it stays, it is tried again after a while.
                    entry.since = now + RETRY_INTERVAL;
                }
                stuck.insert((chan, side), entry);
            }
        }
        self.stuck = stuck;
    }
}
