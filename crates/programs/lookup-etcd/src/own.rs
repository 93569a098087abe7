//! One endpoint of this host, and how it becomes and stays the registry's.
//!
//! # States
//! ```text
//!             conflict: look again             another has it, and may keep it
//!  Owed --transaction--> Busy ------------------------------------------------> Refused --it went, or its host died--> Owed
//!   ^                     | done, or there already                standby: Waiting --made active--> Owed
//!   |  deleted, doubted   v          another took it
//!   +-------------------- Held -----------------------> Lost (until it is announced again)
//! ```
//! # Model
//! Who may take an endpoint that another host has: one that was standby here and is made active (a move); any host, if the owner says no more
//! that it is alive, or has it as standby; the later owner, if the registry fell back behind it. All others are refused. The transaction
//! names the revisions that the decision was made on, so of two that decide alike one conflicts, and looks again. It also names the owner's
//! sign of life where the decision was made on its absence: a host writes its own before it announces anything.
//!
//! The first transaction expects that nobody has the endpoint. After a restart its conflict tells what an earlier start wrote, and where
//! that is all that is wanted, nothing is written: a host that starts again makes no events for those who watch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use windlass_lookup::protocol::EndpointState;
use windlass_wire::MacAddr;

use crate::registry::{Kv, Op, Txn};
use crate::schema::{self, AddressRecord, EndpointRecord, Keys};

/// How long it takes before an endpoint that was refused is looked at again without news.
pub const REFUSED_MS: u64 = 60_000;

/// Where an endpoint stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// A transaction is due, not before this time (ms).
    Owed(u64),
    /// A transaction is under way.
    Busy(u64),
    /// The registry has it as this host's.
    Held,
    /// Standby here, and another host's.
    Waiting,
    /// Another host's, or one of its addresses is. Looked at again at this time (ms).
    Refused(String, u64),
    /// Another host took it over.
    Lost,
}

/// An endpoint of this host.
#[derive(Debug, Clone)]
pub struct Own {
    /// The addresses that it has.
    pub ips: Vec<IpAddr>,
    /// Live, or made and not yet live.
    pub state: EndpointState,
    /// Whom its addresses were claimed for: they rest when it goes.
    pub owner: Option<String>,
    /// It is to be nobody's yet, and its address not to rest.
    is_new: bool,
    /// It was standby here: making it active is a move.
    pub may_move: bool,
    /// It is to go.
    pub is_retiring: bool,
    /// Where it stands.
    pub phase: Phase,
    /// Transactions in a row that did not settle it.
    pub tries: u32,
    /// The generation that this host has, or takes over from.
    pub generation: u64,
    /// That generation is of an earlier start, and the registry has not answered in this one.
    is_inherited: bool,
    /// The generation that it had in a registry that fell back behind it.
    reclaims: u64,
    /// Revision of the endpoint's record as it was seen; 0: absent.
    pub seen: i64,
    /// Whether that record is this host's.
    is_mine: bool,
    /// Revisions of the records of addresses: those wanted, and those to give up.
    seen_ips: BTreeMap<IpAddr, i64>,
    /// What the transaction under way writes; `None`: the end.
    asked: Option<EndpointRecord>,
    /// The transaction under way removes the endpoint's record: it is not another host's.
    pub removes: bool,
    /// What is wanted has changed since.
    is_stale: bool,
    /// It was held, and one of its addresses is this host's: its record goes.
    pub released_to: Option<String>,
    /// It is taken from this host, on condition that it does not say that it is alive.
    taken_from: Option<String>,
}

/// What a conflict means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Ask again: what was seen is up to date now.
    Again,
    /// Standby here, and another host has it: its generation.
    Wait(u64),
    /// Another has it.
    Refused(String),
    /// The registry has it as it is to be.
    Held(EndpointRecord),
    /// Nothing is left to remove.
    Gone,
}

impl Own {
    /// One that was just announced.
    #[must_use]
    pub fn new(ips: Vec<IpAddr>, state: EndpointState, now: u64) -> Self {
        Self {
            ips,
            state,
            owner: None,
            is_new: false,
            may_move: state == EndpointState::Standby,
            is_retiring: false,
            phase: Phase::Owed(now),
            tries: 0,
            generation: 0,
            is_inherited: false,
            reclaims: 0,
            seen: 0,
            is_mine: false,
            seen_ips: BTreeMap::new(),
            asked: None,
            removes: false,
            is_stale: false,
            released_to: None,
            taken_from: None,
        }
    }

    /// One whose addresses are claimed for an owner, and that nobody may have yet. It is announced later.
    #[must_use]
    pub fn claimed(ips: Vec<IpAddr>, owner: String, now: u64) -> Self {
        Self {
            owner: Some(owner),
            is_new: true,
            may_move: false,
            ..Self::new(ips, EndpointState::Standby, now)
        }
    }

    /// It was announced again.
    pub fn announced(&mut self, ips: Vec<IpAddr>, state: EndpointState, now: u64) {
        let is_same = self.ips == ips && self.state == state && !self.is_retiring;
        self.may_move |= state == EndpointState::Standby;
        self.ips = ips;
        self.state = state;
        self.is_retiring = false;
        self.is_new = false;
        self.released_to = None;
        if !(is_same && self.phase == Phase::Held) {
            self.due(now);
        }
    }

    /// This host has it no more.
    pub fn retired(&mut self, now: u64) {
        self.is_retiring = true;
        self.is_new = false;
        self.due(now);
    }

    fn due(&mut self, now: u64) {
        self.tries = 0;
        match self.phase {
            Phase::Busy(_) => self.is_stale = true,
            Phase::Held => self.phase = Phase::Owed(now),
            _ => {
                // Addresses that were seen may be another host's, from which they are not wanted any more.
                self.seen_ips.values_mut().for_each(|seen| *seen = 0);
                self.phase = Phase::Owed(now);
            }
        }
    }

    /// Its record is to go.
    fn is_leaving(&self) -> bool {
        self.is_retiring || self.released_to.is_some()
    }

    /// Whether the registry has it as this host's.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.is_mine
    }

    /// The registry is not the one that it was: nothing was seen of it.
    pub fn doubt(&mut self, now: u64) {
        if self.is_mine || self.is_inherited {
            self.reclaims = self.generation;
        }
        self.seen = 0;
        self.is_mine = false;
        self.seen_ips
            .values_mut()
            .for_each(|revision| *revision = 0);
        if self.phase == Phase::Held {
            self.phase = Phase::Owed(now);
        }
    }

    /// Its record was deleted by somebody else.
    pub fn vanished(&mut self, now: u64) {
        self.seen = 0;
        self.is_mine = false;
        self.phase = Phase::Owed(now);
    }

    /// Whether the next transaction gives up what has to rest.
    #[must_use]
    pub fn rests(&self) -> bool {
        let is_wanted = |ip: &IpAddr| !self.is_leaving() && self.ips.contains(ip);
        let is_given_up = (self.is_leaving() && self.is_mine)
            || self
                .seen_ips
                .iter()
                .any(|(ip, seen)| *seen != 0 && !is_wanted(ip));
        self.owner.is_some() && is_given_up
    }

    /// The next transaction, which has this number. What rests does so on the lease `rest`.
    pub fn txn(
        &mut self,
        id: u64,
        keys: &Keys,
        (me, vni, mac): (&str, u32, MacAddr),
        rest: i64,
    ) -> Txn {
        self.phase = Phase::Busy(id);
        self.is_stale = false;
        let record = self.record(me);
        self.asked = (!self.is_leaving()).then(|| record.clone());
        self.removes = self.is_leaving() && self.is_mine;
        let key = keys.endpoint(vni, mac);
        let mut txn = Txn {
            expect: vec![(key.clone(), self.seen)],
            then: Vec::new(),
        };
        if !self.is_leaving() {
            txn.then.push(put(key, &record));
        } else if self.is_mine {
            txn.then.push(Op::Delete { key });
            if rest != 0 {
                txn.then.push(Op::Put {
                    key: keys.rest(vni, mac),
                    value: b"{}".to_vec(),
                    lease: rest,
                });
            }
        }
        if self.is_new {
            txn.expect.push((keys.rest(vni, mac), 0));
        }
        if let Some(host) = &self.taken_from {
            txn.expect.push((keys.alive(host), 0));
        }
        let address = self.address(me, mac);
        let resting = AddressRecord {
            owner: None,
            is_resting: true,
            ..address.clone()
        };
        for ip in self.addresses() {
            let key = keys.address(vni, ip);
            let seen = self.seen_ips.get(&ip).copied().unwrap_or_default();
            txn.expect.push((key.clone(), seen));
            if !self.is_leaving() && self.ips.contains(&ip) {
                txn.then.push(put(key, &address));
            } else if seen != 0 && rest != 0 {
                txn.then.push(Op::Put {
                    key,
                    value: schema::value(&resting),
                    lease: rest,
                });
            } else if seen != 0 {
                txn.then.push(Op::Delete { key });
            }
        }
        txn
    }

    fn record(&self, me: &str) -> EndpointRecord {
        EndpointRecord {
            host: me.to_owned(),
            generation: self.next_generation(),
            ips: self.ips.clone(),
            state: self.state,
        }
    }

    fn address(&self, me: &str, mac: MacAddr) -> AddressRecord {
        AddressRecord {
            mac: schema::digits(mac),
            host: me.to_owned(),
            owner: self.owner.clone(),
            is_resting: false,
        }
    }

    /// Addresses in question: those wanted, if any are, and those to give up.
    #[must_use]
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let wanted = self.ips.iter().filter(|_| !self.is_leaving());
        wanted.chain(self.seen_ips.keys()).copied().collect()
    }

    /// The generation that the next transaction writes.
    fn next_generation(&self) -> u64 {
        match self.is_mine {
            true => self.generation,
            false => self.generation.saturating_add(1),
        }
    }

    /// The transaction was applied at a revision. Returns what it wrote; `None`: the end.
    pub fn done(&mut self, revision: i64, now: u64) -> Option<EndpointRecord> {
        let written = self.asked.take();
        self.taken_from = None;
        self.reclaims = 0;
        (self.is_new, self.is_inherited) = (false, false);
        self.is_mine = written.is_some();
        self.seen = if self.is_mine { revision } else { 0 };
        self.seen_ips.clear();
        if let Some(record) = &written {
            self.may_move &= record.state == EndpointState::Standby;
            self.generation = self.generation.max(record.generation);
            self.seen_ips
                .extend(record.ips.iter().map(|ip| (*ip, revision)));
        }
        self.tries = 0;
        self.phase = match (self.is_stale, self.released_to.take()) {
            (true, _) => Phase::Owed(now),
            (false, Some(by)) => Phase::Refused(by, now + REFUSED_MS),
            (false, None) => Phase::Held,
        };
        written
    }

    /// What the keys of a transaction are instead of what it expected.
    pub fn conflict(
        &mut self,
        keys: &Keys,
        (me, vni, mac): (&str, u32, MacAddr),
        found: &[Option<Kv>],
        is_alive: impl Fn(&str) -> bool,
    ) -> Verdict {
        let mut by_key: BTreeMap<&str, &Kv> = BTreeMap::new();
        by_key.extend(found.iter().flatten().map(|kv| (kv.key.as_str(), kv)));
        let kv = by_key.get(keys.endpoint(vni, mac).as_str());
        let record = kv.and_then(|kv| schema::endpoint(&kv.value));
        self.seen = kv.map_or(0, |kv| kv.mod_revision);
        self.is_mine = record.as_ref().is_some_and(|record| record.host == me);
        self.is_inherited = false;
        self.taken_from = None;
        // What this host was told of signs of life may be older than the record.
        let lives = |host: &str| by_key.contains_key(keys.alive(host).as_str()) || is_alive(host);
        if let Some(verdict) = self.judge(record.as_ref(), &lives) {
            // The next look must not be a transaction on what stands in the way.
            self.seen = 0;
            self.reclaims = 0;
            return verdict;
        }
        let generation = record.as_ref().map_or(0, |record| record.generation);
        self.generation = self.generation.max(generation);
        let refused = self.judge_addresses(keys, (me, vni, mac), &by_key);
        let is_written = |ip: &IpAddr| {
            let kv = by_key.get(keys.address(vni, *ip).as_str());
            let record = kv.and_then(|kv| schema::address(&kv.value));
            self.ips.contains(ip) && record == Some(self.address(me, mac))
        };
        let held = record.as_ref().filter(|of| **of == self.record(me));
        let held = held.filter(|_| !self.is_leaving() && self.addresses().iter().all(is_written));
        if let Some(record) = held.cloned() {
            self.hold();
            return Verdict::Held(record);
        }
        // Addresses of a record of an earlier start, which the next transaction looks at.
        let earlier = record.filter(|_| self.is_mine).map(|record| record.ips);
        for ip in earlier.into_iter().flatten() {
            self.seen_ips.entry(ip).or_insert(0);
        }
        let is_gone = self.is_leaving() && !self.is_mine && self.seen_ips.is_empty();
        match refused {
            Some(by) => Verdict::Refused(by),
            None if is_gone => Verdict::Gone,
            None => Verdict::Again,
        }
    }

    /// Whether another host's record stands in the way.
    fn judge(
        &mut self,
        record: Option<&EndpointRecord>,
        lives: &dyn Fn(&str) -> bool,
    ) -> Option<Verdict> {
        let record = record.filter(|_| !self.is_mine && !self.is_leaving())?;
        if self.state == EndpointState::Standby {
            return Some(Verdict::Wait(record.generation));
        }
        let may_take = self.may_move
            || record.state == EndpointState::Standby
            || record.generation < self.reclaims;
        if may_take {
            return None;
        }
        if lives(&record.host) {
            return Some(Verdict::Refused(record.host.clone()));
        }
        self.taken_from = Some(record.host.clone());
        None
    }

    /// Takes what the records of addresses are. Returns the host that has one that is wanted here.
    fn judge_addresses(
        &mut self,
        keys: &Keys,
        (me, vni, mac): (&str, u32, MacAddr),
        by_key: &BTreeMap<&str, &Kv>,
    ) -> Option<String> {
        let mac = schema::digits(mac);
        let mut refused = None;
        for ip in self.addresses() {
            let is_wanted = !self.is_leaving() && self.ips.contains(&ip);
            let kv = by_key.get(keys.address(vni, ip).as_str());
            let record = kv.and_then(|kv| schema::address(&kv.value));
            let is_ours = record
                .as_ref()
                .is_some_and(|of| of.mac == mac && !of.is_resting && (of.host == me || is_wanted));
            if let (true, Some(of)) = (is_ours, &record) {
                self.owner = self.owner.take().or_else(|| of.owner.clone());
            }
            let seen = kv.map_or(0, |kv| kv.mod_revision);
            if is_ours || (is_wanted && seen == 0) {
                self.seen_ips.insert(ip, seen);
            } else {
                self.seen_ips.remove(&ip);
                let by = record.map_or_else(|| "nobody".to_owned(), |of| of.host);
                refused = refused.or(is_wanted.then_some(by));
            }
        }
        refused
    }

    /// The registry has what this host wants.
    fn hold(&mut self) {
        (self.tries, self.reclaims, self.is_new) = (0, 0, false);
        self.may_move &= self.state == EndpointState::Standby;
        self.phase = Phase::Held;
    }

    /// An earlier start had it in this generation. If that is doubted, the registry may have fallen back behind it.
    pub fn inherited(&mut self, generation: u64, is_doubted: bool) {
        (self.generation, self.is_inherited) = (generation, true);
        self.reclaims = if is_doubted { generation } else { 0 };
    }

    /// A later record of its own was seen.
    pub fn confirmed(&mut self, generation: u64, revision: i64) {
        self.generation = self.generation.max(generation);
        self.seen = revision;
        self.is_mine = true;
    }
}

fn put<T: serde::Serialize>(key: String, record: &T) -> Op {
    Op::Put {
        key,
        value: schema::value(record),
        lease: 0,
    }
}
