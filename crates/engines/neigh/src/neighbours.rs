//! Who has which address on one bridge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use windlass_frame::Tick;

use crate::packet::{Mac, answer, parse};

/// How long a learned address is believed.
pub const LIFE_NS: u64 = 300_000_000_000;
/// How long an address that another MAC address has taken over is not answered for.
pub const DISPUTED_NS: u64 = 10_000_000_000;
/// Learned addresses of a port at most.
pub const PORT_MAX: usize = 1024;
/// Learned addresses of a bridge at most.
pub const BRIDGE_MAX: usize = 16_384;

/// A VLAN and an address in it.
type Key = (u16, IpAddr);

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortConf {
    /// Questions for what is behind it are answered here.
    pub suppress: bool,
    /// No router can be behind it.
    pub is_host: bool,
    /// It exchanges nothing with others that are private.
    pub is_private: bool,
    /// Its MAC address, and the addresses that it is known to have.
    pub mac: Mac,
    /// In which VLANs it has which addresses.
    pub fixed: Vec<(u16, IpAddr)>,
}

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This goes to the asker, without a tag; the frame to nobody.
    Answer(Vec<u8>),
    /// The frame goes to everybody.
    Pass,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Questions answered.
    pub answered: u64,
    /// Frames passed on.
    pub passed: u64,
    /// Addresses for which there was no room.
    pub over_limit: u64,
}

#[derive(Debug, Default)]
struct Port {
    conf: PortConf,
    learned: BTreeSet<Key>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Mac,
    port: u16,
    /// Until then nobody is answered.
    disputed_until: Tick,
    /// `None`: configured.
    until: Option<Tick>,
    /// Where it stands among the timers.
    armed: Tick,
}

impl Entry {
    fn lasting(mac: Mac, port: u16) -> Self {
        Self {
            mac,
            port,
            disputed_until: Tick(0),
            until: None,
            armed: Tick(0),
        }
    }
}

/// The table of one bridge.
#[derive(Debug, Default)]
pub struct Neighbours {
    ports: BTreeMap<u16, Port>,
    /// What is configured, and what was learned.
    table: BTreeMap<Key, Entry>,
    /// Port and MAC address of what [`Neighbours::enter`] told. There may be 100,000 addresses: nothing else is kept of them.
    told: BTreeMap<Key, (u16, Mac)>,
    timers: BTreeSet<(Tick, Key)>,
    counts: Counts,
}

impl Neighbours {
    /// Adds a port, or changes it.
    pub fn set_port(&mut self, id: u16, conf: PortConf) {
        let port = self.ports.entry(id).or_default();
        if port.conf == conf {
            return;
        }
        let former = std::mem::replace(&mut port.conf, conf.clone());
        for key in former.fixed {
            let is_mine = |e: &&Entry| e.port == id && e.until.is_none();
            if self.table.get(&key).filter(is_mine).is_some() {
                self.table.remove(&key);
            }
        }
        for key in conf.fixed {
            // Of two that are to have one address, the first has it.
            let known = self.table.get(&key);
            if known.is_some_and(|entry| entry.until.is_none()) {
                continue;
            }
            self.forget(key);
            self.table.insert(key, Entry::lasting(conf.mac, id));
        }
    }

    /// Somebody who knows says who has an address behind a port: this MAC address, or nobody. What is configured holds before. Of two
    /// ports of which one address is told, the later one has it.
    pub fn enter(&mut self, id: u16, key: (u16, IpAddr), mac: Option<Mac>) {
        if !self.ports.contains_key(&id) {
            return;
        }
        match mac {
            Some(mac) => {
                self.told.insert(key, (id, mac));
                self.forget(key);
            }
            None if self.told.get(&key).is_some_and(|(port, _)| *port == id) => {
                self.told.remove(&key);
            }
            None => {}
        }
    }

    /// Who has an address: as it is configured, as it was told, as it was learned.
    fn find(&self, key: Key) -> Option<Entry> {
        let known = self.table.get(&key).copied();
        if known.is_some_and(|entry| entry.until.is_none()) {
            return known;
        }
        self.find_told(key).or(known)
    }

    fn find_told(&self, key: Key) -> Option<Entry> {
        let (port, mac) = self.told.get(&key)?;
        Some(Entry::lasting(*mac, *port))
    }

    /// Forgets what was learned behind a port: nobody is there any more.
    pub fn link_down(&mut self, id: u16) {
        let port = self.ports.get_mut(&id);
        let learned = port.map(|port| std::mem::take(&mut port.learned));
        learned
            .into_iter()
            .flatten()
            .for_each(|key| self.forget(key));
    }

    /// Removes a port.
    pub fn remove_port(&mut self, id: u16) {
        self.link_down(id);
        self.told.retain(|_, (port, _)| *port != id);
        self.set_port(id, PortConf::default());
        self.ports.remove(&id);
    }

    /// Addresses that are known, and what was done.
    pub fn counts(&self) -> (usize, Counts) {
        let both = self.table.keys().filter(|key| self.told.contains_key(key));
        let known = self.table.len().saturating_add(self.told.len());
        (known.saturating_sub(both.count()), self.counts)
    }

    /// Reads a frame that came from a port.
    pub fn receive(&mut self, id: u16, vid: u16, frame: &[u8], now: Tick) -> Outcome {
        let asker = self.ports.get(&id);
        let is_private = asker.is_some_and(|port| port.conf.is_private);
        let said = parse(frame).filter(|_| asker.is_some());
        if let Some((ip, mac)) = said.and_then(|said| said.sender) {
            self.learn((vid, ip), mac, id, now);
        }
        let answered = said.and_then(|said| {
            let target = said.target?;
            let entry = self.find((vid, target))?;
            let conf = &self.ports.get(&entry.port)?.conf;
            let is_sure = conf.is_host || target.is_ipv4();
            let is_apart = is_private && conf.is_private;
            let is_there = entry.until.is_none_or(|until| until > now);
            let answers = conf.suppress && is_sure && is_there && entry.port != id && !is_apart;
            (answers && entry.disputed_until <= now).then(|| answer(&said, target, entry.mac))
        });
        match answered {
            Some(frame) => {
                self.counts.answered = self.counts.answered.wrapping_add(1);
                Outcome::Answer(frame)
            }
            None => {
                self.counts.passed = self.counts.passed.wrapping_add(1);
                Outcome::Pass
            }
        }
    }

    /// The address that a frame asks for, if nobody is known to have it.
    pub fn unknown(&self, vid: u16, frame: &[u8]) -> Option<IpAddr> {
        let target = parse(frame)?.target?;
        self.find((vid, target)).is_none().then_some(target)
    }

    fn learn(&mut self, key: Key, mac: Mac, id: u16, now: Tick) {
        if self.told.contains_key(&key) {
            return;
        }
        let until = now.plus(LIFE_NS);
        let mut disputed_until = Tick(0);
        if let Some(entry) = self.table.get_mut(&key) {
            let Some(ends) = &mut entry.until else {
                return;
            };
            if (entry.mac, entry.port) == (mac, id) {
                *ends = until;
                return;
            }
            disputed_until = match entry.mac != mac && *ends > now {
                true => now.plus(DISPUTED_NS),
                // The same host at another place; what was not sure of it is not yet.
                false => entry.disputed_until,
            };
            self.forget(key);
        }
        if !self.make_room(id) {
            self.counts.over_limit = self.counts.over_limit.wrapping_add(1);
            return;
        }
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        port.learned.insert(key);
        self.timers.insert((until, key));
        let entry = Entry {
            mac,
            port: id,
            disputed_until,
            until: Some(until),
            armed: until,
        };
        self.table.insert(key, entry);
    }

    /// Whether a port can learn one more.
    fn make_room(&mut self, id: u16) -> bool {
        let mine = self.ports.get(&id).map_or(PORT_MAX, |p| p.learned.len());
        if mine >= PORT_MAX {
            return false;
        }
        if self.timers.len() < BRIDGE_MAX {
            return true;
        }
        let richest = self.ports.values().max_by_key(|port| port.learned.len());
        let richest = richest.filter(|port| port.learned.len() > mine.saturating_add(1));
        let taken = richest.and_then(|port| port.learned.last().copied());
        taken.is_some_and(|key| {
            self.forget(key);
            true
        })
    }

    /// Forgets a learned address.
    fn forget(&mut self, key: Key) {
        let is_learned = |entry: &&Entry| entry.until.is_some();
        let Some(entry) = self.table.get(&key).filter(is_learned).copied() else {
            return;
        };
        self.table.remove(&key);
        self.timers.remove(&(entry.armed, key));
        if let Some(port) = self.ports.get_mut(&entry.port) {
            port.learned.remove(&key);
        }
    }

    /// When [`Neighbours::advance`] has something to do.
    pub fn due(&self) -> Option<Tick> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Forgets what is too old.
    pub fn advance(&mut self, now: Tick) {
        while let Some((at, key)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            let until = self.table.get(&key).and_then(|entry| entry.until);
            match (until, self.table.get_mut(&key)) {
                (Some(until), Some(entry)) if until > now => {
                    entry.armed = until;
                    self.timers.remove(&(at, key));
                    self.timers.insert((until, key));
                }
                _ => {
                    self.forget(key);
                    self.timers.remove(&(at, key));
                }
            }
        }
    }
}
