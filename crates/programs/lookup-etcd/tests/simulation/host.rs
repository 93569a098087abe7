//! A simulated host: an engine, its connection to the model, and its daemon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use windlass_lookup::protocol::{Claim, Endpoint, EndpointState, Entry, FromPlugin, Overlay};
use windlass_lookup_etcd::engine::{Conf, Engine};
use windlass_lookup_etcd::registry::{Ask, Kv, Scope, Told};
use windlass_lookup_etcd::schema::{HostRecord, Keys};
use windlass_wire::MacAddr;

use crate::model::Model;
use crate::random::Random;

pub const VNIS: [u32; 2] = [7, 8];
const OVERLAY: &str = "ov";

pub type Key = (u32, MacAddr);

/// What a host had on disk.
type Disk = (u64, Vec<(Scope, i64, Vec<Kv>)>);

pub struct Host {
    pub name: String,
    pub engine: Engine,
    pub is_up: bool,
    /// No connection comes about.
    pub is_cut: bool,
    asked: VecDeque<(u64, Ask)>,
    answers: VecDeque<(u64, Told)>,
    events: VecDeque<(u64, Told)>,
    watches: BTreeMap<Scope, i64>,
    pub table: BTreeMap<Key, Entry>,
    swept: Option<BTreeSet<Key>>,
    /// The guests that are here: what the daemon announces.
    pub guests: BTreeMap<Key, Endpoint>,
    pub own: BTreeMap<Key, Result<u64, String>>,
    pub degraded: Option<String>,
    disk: Option<Disk>,
    boots: u64,
    /// The VNIs of claims that were not answered.
    claims: BTreeMap<u64, u32>,
    /// What each claim was answered.
    pub answered: BTreeMap<u64, Result<(MacAddr, Vec<IpAddr>), String>>,
    given: Vec<(Key, Vec<IpAddr>)>,
    /// Guests whose addresses were claimed.
    pub claimed: BTreeSet<Key>,
    pub ever_claimed: BTreeSet<Key>,
}

fn engine(name: &str, boots: u64) -> Engine {
    let last = name.bytes().last().unwrap_or(0);
    Engine::new(Conf {
        cluster: "c".to_owned(),
        host: name.to_owned(),
        boot: format!("{name}-1"),
        record: HostRecord {
            vtep: vec![std::net::Ipv4Addr::new(192, 0, 2, last).into()],
            port: 4789,
        },
        seed: boots << 8 | u64::from(last),
    })
}

/// A claim of an address in a pool of six.
pub fn wish(id: u64, vni: u32, owner: u64) -> Claim {
    Claim {
        id,
        overlay: OVERLAY.to_owned(),
        vni,
        owner: format!("o{owner}"),
        mac: None,
        pool: "p0".to_owned(),
        sets: vec![vec![crate::POOL.into_inner()]],
        ips: Vec::new(),
        dry_run: false,
    }
}

impl Host {
    pub fn new(name: String) -> Self {
        let mut host = Self {
            engine: engine(&name, 0),
            name,
            is_up: false,
            is_cut: false,
            asked: VecDeque::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            watches: BTreeMap::new(),
            table: BTreeMap::new(),
            swept: None,
            guests: BTreeMap::new(),
            own: BTreeMap::new(),
            degraded: None,
            disk: None,
            boots: 0,
            claims: BTreeMap::new(),
            answered: BTreeMap::new(),
            given: Vec::new(),
            claimed: BTreeSet::new(),
            ever_claimed: BTreeSet::new(),
        };
        host.start();
        host
    }

    fn start(&mut self) {
        let of = Overlay {
            overlay: OVERLAY.to_owned(),
            vnis: VNIS.to_vec(),
            properties: BTreeMap::new(),
        };
        self.engine.start(&of).expect("it starts");
    }

    /// The plugin is killed and started again, with what was on disk. The daemon announces again what it has not lost.
    pub fn restart(&mut self, now: u64) {
        self.cut(now, None);
        self.claims.clear();
        self.given.clear();
        self.boots += 1;
        self.engine = engine(&self.name, self.boots);
        self.swept = None;
        self.degraded = None;
        if let Some((cluster, scopes)) = self.disk.clone() {
            self.engine.restore_cluster(cluster);
            for (scope, revision, kvs) in scopes {
                self.engine.restore(scope, revision, None);
                kvs.into_iter()
                    .for_each(|kv| self.engine.restore(scope, revision, Some(kv)));
            }
        }
        self.start();
        let own = std::mem::take(&mut self.own);
        let is_lost = |key: &Key| matches!(own.get(key), Some(Err(_)));
        self.guests.retain(|key, _| !is_lost(key));
        self.guests
            .values()
            .for_each(|guest| self.engine.announce(now, guest));
    }

    /// Claims an address in a pool of six for one of three owners.
    pub fn claim(&mut self, now: u64, vni: u32, owner: u64) {
        self.claim_as(now, wish(now, vni, owner));
    }

    pub fn claim_as(&mut self, now: u64, claim: Claim) {
        if !claim.dry_run {
            self.claims.insert(claim.id, claim.vni);
        }
        self.engine.claim(now, claim);
    }

    /// The watch of a scope ends.
    pub fn end_watch(&mut self, now: u64, scope: Scope) {
        self.watches.remove(&scope);
        self.engine.told(now, Told::Compacted { scope });
    }

    pub fn save(&mut self) {
        let kept: Vec<_> = self.engine.kept().collect();
        let scopes = kept.into_iter().filter(|(scope, _)| *scope != Scope::Alive);
        let scopes = scopes.map(|(scope, revision)| (scope, revision, self.engine.records(scope)));
        self.disk = Some((self.engine.identity().2, scopes.collect()));
    }

    pub fn announce(&mut self, now: u64, (vni, mac): Key, ips: &[IpAddr], state: EndpointState) {
        let guest = Endpoint {
            overlay: OVERLAY.to_owned(),
            vni,
            mac,
            ips: ips.to_vec(),
            state,
        };
        self.own.remove(&(vni, mac));
        self.engine.announce(now, &guest);
        self.guests.insert((vni, mac), guest);
    }

    pub fn retire(&mut self, now: u64, key: Key) {
        self.guests.remove(&key);
        self.own.remove(&key);
        self.engine.retire(now, key.0, key.1);
    }

    /// The connection is lost. Of what was asked, some still arrives; no answer does.
    pub fn cut(&mut self, now: u64, model: Option<(&mut Model, &Keys, &mut Random)>) {
        if let Some((model, keys, random)) = model {
            for (_, ask) in std::mem::take(&mut self.asked) {
                if random.below(2) == 0 {
                    self.execute(now, now, ask, model, keys);
                }
            }
        }
        self.asked.clear();
        self.answers.clear();
        self.events.clear();
        self.watches.clear();
        if std::mem::take(&mut self.is_up) {
            self.engine.told(
                now,
                Told::Down {
                    why: "cut".to_owned(),
                },
            );
        }
    }

    /// Time passes: what is due arrives.
    pub fn step(&mut self, now: u64, model: &mut Model, keys: &Keys, random: &mut Random) {
        if !self.is_up && !self.is_cut {
            self.is_up = true;
            self.engine.told(now, Told::Up);
        }
        while self.asked.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, ask)) = self.asked.pop_front() {
                self.execute(now, now + random.below(300), ask, model, keys);
            }
        }
        self.watch(now, model, keys, random);
        while self.answers.front().is_some_and(|(at, _)| *at <= now) {
            let told = self.answers.pop_front().expect("one").1;
            self.engine.told(now, told);
        }
        while self.events.front().is_some_and(|(at, _)| *at <= now) {
            let told = self.events.pop_front().expect("one").1;
            self.engine.told(now, told);
        }
        self.engine.tick(now);
        let out = self.engine.take();
        let at = now + random.below(300);
        if self.is_up {
            self.asked.extend(out.asks.into_iter().map(|ask| (at, ask)));
        }
        out.lines.into_iter().for_each(|line| self.heard(line));
        for (key, ips) in std::mem::take(&mut self.given) {
            // Whoever wanted it may have died.
            if random.below(3) != 0 {
                self.claimed.insert(key);
                self.ever_claimed.insert(key);
                self.announce(now, key, &ips, EndpointState::Active);
            }
        }
    }

    fn watch(&mut self, now: u64, model: &Model, keys: &Keys, random: &mut Random) {
        let mut gone = Vec::new();
        for (scope, from) in &mut self.watches {
            if *from > model.revision {
                continue;
            }
            let told = match model.since(&keys.prefix(*scope), *from) {
                None => {
                    gone.push(*scope);
                    Told::Compacted { scope: *scope }
                }
                Some(changes) if changes.is_empty() => continue,
                Some(changes) => Told::Changed {
                    scope: *scope,
                    revision: model.revision,
                    changes,
                },
            };
            *from = model.revision + 1;
            self.events.push_back((now + random.below(500), told));
        }
        self.watches.retain(|scope, _| !gone.contains(scope));
    }

    fn execute(&mut self, now: u64, at: u64, ask: Ask, model: &mut Model, keys: &Keys) {
        let told = match ask {
            Ask::Txn { id, txn } => {
                let outcome = model.txn(&txn);
                let (cluster, revision) = (model.cluster, model.revision);
                Told::Txn {
                    id,
                    cluster,
                    revision,
                    outcome,
                }
            }
            Ask::Check {
                key,
                value,
                revision,
            } => Told::Checked {
                is_same: model.check(&key, value.as_deref(), revision),
            },
            Ask::List { scope, .. } => Told::Listed {
                scope,
                revision: model.revision,
                kvs: model.under(&keys.prefix(scope)),
            },
            Ask::Watch { scope, from } => {
                self.watches.insert(scope, from);
                Told::Watching { scope }
            }
            Ask::Unwatch { scope } => {
                self.watches.remove(&scope);
                return;
            }
            Ask::Grant { of } => Told::Granted {
                of,
                lease: model.grant(now, of),
            },
            Ask::KeepAlive { lease } => match model.keep_alive(lease, now) {
                true => Told::LeaseKept,
                false => Told::LeaseGone,
            },
        };
        self.answers.push_back((at, told));
    }

    fn heard(&mut self, line: FromPlugin) {
        match line {
            FromPlugin::Push { entries, .. } => {
                for entry in entries {
                    let key = (entry.vni, entry.mac);
                    let is_swept = self
                        .swept
                        .as_mut()
                        .map(|swept| swept.remove(&key))
                        .is_some();
                    let is_older = |had: &Entry| !is_swept && entry.generation < had.generation;
                    if !self.table.get(&key).is_some_and(is_older) {
                        self.table.insert(key, entry);
                    }
                }
            }
            FromPlugin::Withdraw { entries, .. } => {
                for gone in entries {
                    let key = (gone.vni, gone.mac);
                    let is_it =
                        |had: &Entry| had.host == gone.host && had.generation == gone.generation;
                    if self.table.get(&key).is_some_and(is_it) {
                        self.table.remove(&key);
                    }
                }
            }
            FromPlugin::SyncBegin { vni, .. } => {
                let of_it = self.table.keys().filter(|key| Some(key.0) == vni);
                self.swept = Some(of_it.copied().collect());
            }
            FromPlugin::SyncEnd { .. } => {
                let swept = self.swept.take().expect("a sync began");
                self.table.retain(|key, _| !swept.contains(key));
            }
            FromPlugin::Owned {
                vni,
                mac,
                generation,
                ..
            } => {
                self.own.insert((vni, mac), Ok(generation));
            }
            FromPlugin::Refused { vni, mac, by, .. } => {
                self.own.insert((vni, mac), Err(by));
            }
            FromPlugin::Claimed { id, mac, ips, text } => {
                let given = mac.map(|mac| (mac, ips.clone()));
                let given = given.ok_or(text.unwrap_or_default());
                self.answered.insert(id, given);
                let claim = self.claims.remove(&id);
                self.given
                    .extend(claim.zip(mac).map(|(vni, mac)| ((vni, mac), ips)));
            }
            FromPlugin::Degraded { text, .. } => self.degraded = Some(text),
            FromPlugin::Restored { .. } => self.degraded = None,
            _ => {}
        }
    }
}
