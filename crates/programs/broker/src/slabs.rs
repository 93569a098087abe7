//! The memory of pairs: who has which slab, when it is looked at, and when it is gone.
//!
//! # States
//! A slab is *whole* while processes of both sides live; *half* once those of one side are dead: then it stays until no channel in
//! it is in use, since a survivor may still wait for what a plain heir of the dead one must get; and it is *gone* when both sides
//! are dead, or the half one is empty. A slab is *flagged* for [`WATCH_FOR`] after a process said that it began to push.
//!
//! A flagged slab is looked at every [`LOOK_INTERVAL`]; one that is half or may have rings, every [`TEND_INTERVAL`]. Rings belong to
//! activity: then an empty one that nothing was pushed to since the last time is given back for its owner, who may be asleep for hours.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use windlass_channel::layout::{SLAB_BYTES, Side};
use windlass_channel::snapshot::MappedSlab;
use windlass_channel::{Fd, Owner, Reason, Who};
use windlass_sys::sealed;

use crate::helper::THREAD;
use crate::helpers::Key;
use crate::limits::{
    BYTES_PER_USER_MAX, CHANNELS_PER_LOOK, LOOK_INTERVAL, LOOK_REST_TIMES, MEASURES_PER_REQUEST,
    RESCUES_PER_LOOK_MAX, RETRY_INTERVAL, SLABS_PER_PAIR_MAX, SLABS_PER_USER_MAX, STUCK_AFTER,
    TEND_INTERVAL, WATCH_FOR,
};
use crate::processes::Processes;
use crate::users::Users;

/// The memory of a pair.
pub(crate) struct Slab {
    pub(crate) memory: OwnedFd,
    pub(crate) map: MappedSlab,
    /// The slots for which it was made, by their sides, as in what follows.
    pub(crate) slots: [u16; 2],
    /// The slots that use it, living or dead.
    pub(crate) holders: [BTreeSet<u16>; 2],
    /// Ids and user namespace of the holders.
    pub(crate) keys: [Key; 2],
    flagged_until: Instant,
    /// When empty rings were last given back.
    tended: Instant,
    /// Directions with bytes that nobody has moved: what was pushed and taken, and since when.
    unread: HashMap<(u16, u8), ((u64, u64), Instant)>,
    /// When it is looked at, if it is.
    next: Option<Instant>,
}

impl Slab {
    /// The side of a slot.
    pub(crate) fn side_of(&self, slot: u16) -> Option<Side> {
        let mut sides = [Side::Low, Side::High].into_iter();
        sides.find(|side| self.holders[*side as usize].contains(&slot))
    }

    /// Whether one user has both sides.
    pub(crate) fn same_user(&self) -> bool {
        let [low, high] = self.keys;
        low.uid == high.uid
    }

    /// On how many sides a process lives.
    fn sides_alive(&self, processes: &Processes) -> usize {
        let lives = |slot: &u16| processes.get(*slot).is_some_and(|process| !process.dead);
        let sides = self.holders.iter();
        sides.filter(|side| side.iter().any(lives)).count()
    }

    /// Nobody needs it any more.
    fn is_gone(&self, processes: &Processes) -> bool {
        match self.sides_alive(processes) {
            0 => true,
            1 => self.map.channels().next().is_none(),
            _ => false,
        }
    }

    /// Gives rings back that are empty and that nothing was pushed to since the last time. Whether any is left.
    fn tend(&self, processes: &Processes) -> bool {
        let Some(owner) = Owner::new(Owner::DAEMON, THREAD) else {
            return false;
        };
        let alive = &processes.lives;
        let who = Who { owner, alive };
        // Every call on it fails.
        let (fd, connected) = (-1, false);
        let no_socket = Fd { fd, connected };
        let mut left = false;
        for chan in self.map.channels() {
            let held = self.map.locks(chan);
            for side in [Side::Low, Side::High] {
                // A lock that is held is at work, or its owner is dead: then the next user repairs, who has the socket.
                let is_free = held[side as usize] == 0;
                if let Some(link) = self.map.link(chan, side) {
                    left |= !is_free || !link.outgoing().idle_tick(who, &no_socket);
                }
            }
        }
        left
    }

    /// How long until the next look; `None` if there is nothing to look for.
    fn pause(&mut self, now: Instant, processes: &Processes) -> Option<Duration> {
        let mut may_have_rings = true;
        if now >= self.tended + TEND_INTERVAL {
            may_have_rings = self.tend(processes);
            self.tended = now;
        }
        if now < self.flagged_until {
            return Some(LOOK_INTERVAL);
        }
        if !self.unread.is_empty() {
            return Some(RETRY_INTERVAL);
        }
        let is_watched = may_have_rings || self.sides_alive(processes) < 2;
        is_watched.then_some(TEND_INTERVAL)
    }

    /// Notes which directions have unread bytes. Gives those of them that nobody has moved for too long: channel, and side that sent.
    fn stuck(&mut self, now: Instant, processes: &Processes, stuck_max: usize) -> Vec<(u16, u8)> {
        if self.map.take_watch() {
            self.flagged_until = now + WATCH_FOR;
        }
        let before = std::mem::take(&mut self.unread);
        let mut stuck = Vec::new();
        if self.sides_alive(processes) < 2 {
            // Once a process has ended nobody is left to be rescued, or to be rescued for.
            return stuck;
        }
        let directions = self.map.channels().flat_map(|chan| [(chan, 0), (chan, 1)]);
        for at @ (chan, side) in directions {
            let unread = self.map.unread(chan, side);
            let Some(unread) = unread.filter(|(head, pos)| head != pos) else {
                continue;
            };
            let same = before.get(&at).filter(|(before, _)| *before == unread);
            let mut since = same.map_or(now, |(_, since)| *since);
            if now.saturating_duration_since(since) >= STUCK_AFTER && stuck.len() < stuck_max {
                stuck.push(at);
                // If it stays, it is tried again after a while.
                since = now + RETRY_INTERVAL;
            }
            self.unread.insert(at, (unread, since));
        }
        stuck
    }
}

/// Memory that is given back to the system: up to 0.3 s for each slab, in which nobody would be served: whose, and how many
/// bytes. Gone with the memory.
type Freeing = ([Key; 2], u64);

pub(crate) struct Slabs {
    all: BTreeMap<u32, Slab>,
    last: u32,
    /// When something is to be looked at.
    pub(crate) next_look: Option<Instant>,
    /// Rescues that may begin until an interval has gone by since that moment.
    rescues: (usize, Instant),
    /// What counts for its users still.
    freeing: Vec<Weak<Freeing>>,
    /// The thread that does it.
    freer: Sender<(MappedSlab, OwnedFd, Arc<Freeing>)>,
}

impl Slabs {
    /// None yet. Numbers begin anywhere in the lower half: one that a process has from a broker that has ended names no slab of
    /// this one, and those of a pair are in the order in which they were made.
    pub(crate) fn new() -> Self {
        let (freer, gone) = mpsc::channel();
        let thread = std::thread::Builder::new().name("free".into());
        // Where there is none, memory is freed by who sends it.
        let _ = thread.spawn(move || gone.into_iter().for_each(drop));
        Self {
            freeing: Vec::new(),
            freer,
            all: BTreeMap::new(),
            last: RandomState::new().build_hasher().finish() as u32 >> 1,
            next_look: None,
            rescues: (0, Instant::now()),
        }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Slab> {
        self.all.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.all.iter().map(|(id, slab)| (*id, slab))
    }

    /// The slab of two processes: the first beyond those that are full, made if it is not there. Both sides that ask get the same.
    pub(crate) fn pair(
        &mut self,
        processes: &mut Processes,
        users: &mut Users,
        (a, b): (u16, u16),
        full: u16,
    ) -> Result<u32, Reason> {
        let slots = [a.min(b), a.max(b)];
        let [Some(owner), Some(other)] = slots.map(|slot| processes.get(slot)) else {
            return Err(Reason::Limit);
        };
        let is_theirs = |id: &&u32| self.get(**id).is_some_and(|slab| slab.slots == slots);
        let have: Vec<u32> = owner.slabs.iter().filter(is_theirs).copied().collect();
        if let Some(id) = have.get(usize::from(full)) {
            return Ok(*id);
        }
        let keys = [owner.who.key, other.who.key];
        let uids = BTreeSet::from(keys.map(|key| key.uid));
        if have.len() >= SLABS_PER_PAIR_MAX || uids.iter().any(|uid| self.is_full(*uid, users)) {
            return Err(Reason::Limit);
        }
        self.make(processes, slots, keys)
    }

    fn make(
        &mut self,
        processes: &mut Processes,
        slots: [u16; 2],
        keys: [Key; 2],
    ) -> Result<u32, Reason> {
        // One above the last is stored by processes, too, which have 0 for none.
        let mut ids = (self.last.saturating_add(1)..u32::MAX).chain(1..=self.last);
        let id = ids.find(|id| !self.all.contains_key(id));
        let id = id.ok_or(Reason::Limit)?;
        let memory = sealed::create("windlass-slab", SLAB_BYTES).map_err(|_| Reason::Limit)?;
        let map = MappedSlab::create(memory.as_fd(), id).ok_or(Reason::Limit)?;
        let now = Instant::now();
        let slab = Slab {
            memory,
            map,
            slots,
            holders: slots.map(|slot| BTreeSet::from([slot])),
            keys,
            flagged_until: now,
            tended: now,
            unread: HashMap::new(),
            next: None,
        };
        self.last = id;
        self.all.insert(id, slab);
        for slot in slots {
            processes.uses(slot, id);
        }
        Ok(id)
    }

    /// Whether a user has as many slabs as he may, or as much memory in them. It is measured at his expense.
    fn is_full(&mut self, uid: u32, users: &mut Users) -> bool {
        self.freeing.retain(|one| one.strong_count() > 0);
        let is_his = |keys: [Key; 2]| keys.iter().any(|key| key.uid == uid);
        let his = || self.all.values().filter(|slab| is_his(slab.keys));
        let count = his().count();
        users.asked(uid, count / MEASURES_PER_REQUEST);
        let used = his().map(|slab| sealed::bytes_used(&slab.memory));
        let freeing = self.freeing.iter().filter_map(Weak::upgrade);
        let freeing = freeing.filter(|one| is_his(one.0));
        let bytes: u64 = used.chain(freeing.map(|one| one.1)).sum();
        count >= SLABS_PER_USER_MAX || bytes >= BYTES_PER_USER_MAX
    }

    /// Whether a process may have a side of a slab, and has it from now on: its user has that side. One that was forked before
    /// the slab was made finds both in a record that it shares with the maker.
    pub(crate) fn may_have(
        &mut self,
        processes: &mut Processes,
        slot: u16,
        id: u32,
        side: Side,
    ) -> bool {
        let key = processes.get(slot).map(|process| process.who.key);
        let slab = self.all.get_mut(&id);
        let Some(slab) = slab.filter(|slab| Some(slab.keys[side as usize]) == key) else {
            return false;
        };
        slab.holders[side as usize].insert(slot);
        processes.uses(slot, id);
        true
    }

    /// A process was forked from another one of its user: it has all that the other had.
    pub(crate) fn inherit(&mut self, processes: &mut Processes, parent: u16, slot: u16) {
        let (Some(old), Some(new)) = (processes.get(parent), processes.get(slot)) else {
            return;
        };
        if parent == slot || old.who.key != new.who.key {
            return;
        }
        for id in old.slabs.clone() {
            let sides = self.all.get_mut(&id).map(|slab| &mut slab.holders);
            for side in sides.into_iter().flatten() {
                if side.contains(&parent) {
                    side.insert(slot);
                }
            }
            processes.uses(slot, id);
        }
    }

    /// A process with a slab has died.
    pub(crate) fn died(&mut self, processes: &mut Processes, id: u32) {
        match self.all.get(&id) {
            Some(slab) if slab.is_gone(processes) => self.remove(processes, id),
            _ => self.look_at(id, Instant::now() + LOOK_INTERVAL),
        }
    }

    fn look_at(&mut self, id: u32, at: Instant) {
        if let Some(slab) = self.all.get_mut(&id) {
            // Who flags without end puts no look off.
            slab.next = Some(slab.next.map_or(at, |next| next.min(at)));
            self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
        }
    }

    fn remove(&mut self, processes: &mut Processes, id: u32) {
        let Some(slab) = self.all.remove(&id) else {
            return;
        };
        let freeing = Arc::new((slab.keys, sealed::bytes_used(&slab.memory)));
        for slot in slab.holders.into_iter().flatten() {
            processes.forget(slot, id);
        }
        self.freeing.push(Arc::downgrade(&freeing));
        let _ = self.freer.send((slab.map, slab.memory, freeing));
    }

    /// A process says that it began to push.
    pub(crate) fn flag(&mut self, slot: u16, id: u32, now: Instant) {
        let slab = self.all.get_mut(&id);
        if let Some(slab) = slab.filter(|slab| slab.side_of(slot).is_some()) {
            slab.flagged_until = now + WATCH_FOR;
            self.look_at(id, now + LOOK_INTERVAL);
        }
    }

    /// A process asks for unread bytes; `None` if the slab is not its own. The watch leaves them alone for a while: its look behind the
    /// rescue could have a copy of a socket just when that is closed, which its owner does once they have moved.
    pub(crate) fn asked(&mut self, slot: u16, id: u32, at: (u16, u8), now: Instant) -> Option<()> {
        let slab = self.all.get_mut(&id);
        let slab = slab.filter(|slab| slab.side_of(slot).is_some())?;
        if let Some(unread) = slab.map.unread(at.0, at.1) {
            slab.unread.insert(at, (unread, now + RETRY_INTERVAL));
        }
        Some(())
    }

    /// Looks at what is due, the longest due first, until [`CHANNELS_PER_LOOK`] are looked at: the rest is due still. Returns the
    /// directions whose bytes nobody has touched for [`STUCK_AFTER`]: slab, channel, side that sent them.
    pub(crate) fn look(&mut self, processes: &mut Processes, now: Instant) -> Vec<(u32, u16, u8)> {
        let mut rescues = Vec::new();
        if self.next_look.is_none_or(|at| at > now) {
            return rescues;
        }
        if now >= self.rescues.1 + LOOK_INTERVAL {
            self.rescues = (RESCUES_PER_LOOK_MAX, now);
        }
        let due = (self.iter()).filter_map(|(id, slab)| Some((slab.next?, id)));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= now).collect();
        due.sort_unstable();
        let mut channels = 0;
        for (_, id) in due {
            let Some(slab) = self.all.get_mut(&id) else {
                continue;
            };
            if slab.is_gone(processes) {
                self.remove(processes, id);
                continue;
            }
            channels += slab.map.channels().count() + 1;
            let stuck = slab.stuck(now, processes, self.rescues.0);
            self.rescues.0 -= stuck.len();
            rescues.extend(stuck.into_iter().map(|(chan, side)| (id, chan, side)));
            let pause = slab.pause(now, processes);
            slab.next = pause.map(|pause| now + pause);
            if channels >= CHANNELS_PER_LOOK {
                break;
            }
        }
        let next = self.all.values().filter_map(|slab| slab.next);
        let rested = Instant::now() + now.elapsed() * LOOK_REST_TIMES;
        self.next_look = next.map(|at| at.max(rested)).min();
        rescues
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::tests::{admit, has_descriptors, nobody};

    /// One user has so many slabs and no more; another one still gets one.
    #[test]
    fn slabs_of_a_user_are_limited() {
        if !has_descriptors("slabs_of_a_user_are_limited", 2 * SLABS_PER_USER_MAX) {
            return;
        }
        let ((epoll, mut processes), mut slabs) = (nobody(), Slabs::new());
        let slots = [7, 7, 7, 8, 8].map(|uid| admit(&epoll, &mut processes, uid));
        let [a, b, c, d, e] = slots.map(|slot| slot.expect("a slot"));
        let key = processes.get(a).expect("a process").who.key;
        for _ in 1..SLABS_PER_USER_MAX {
            assert!(slabs.make(&mut processes, [a, b], [key; 2]).is_ok());
        }
        let mut pair = |both| slabs.pair(&mut processes, &mut Users::of(1), both, 0);
        assert!(pair((a, c)).is_ok());
        assert_eq!(pair((b, c)), Err(Reason::Limit));
        assert!(pair((d, e)).is_ok());
    }
}
