//! Hosts against a model of etcd, on a virtual clock, from seeds.
//!
//! What is done to them: guests come, move, go and are claimed twice; connections break with answers under way; plugins are killed and start
//! from an older copy on disk; leases lapse; the past is compacted, and, in runs of its own, lost. A failure names its seed:
//! `WINDLASS_SEED=N cargo test -p windlass-lookup-etcd --test simulation` plays it alone. `WINDLASS_SEEDS=M` sets their number.

mod claims;
mod host;
mod lists;
mod model;
mod random;
mod restarts;
mod twins;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use host::{Host, Key, VNIS};
use model::Model;
use random::Random;
use windlass_lookup::protocol::EndpointState;
use windlass_lookup_etcd::registry::{Op, Outcome, Scope, Txn};
use windlass_lookup_etcd::schema::{self, Keys};
use windlass_wire::MacAddr;

const HOSTS: usize = 4;
const GUESTS: u64 = 12;
const STEPS: usize = 400;
/// Of which hosts claim addresses.
const POOL: std::ops::RangeInclusive<IpAddr> =
    IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1))..=IpAddr::V4(Ipv4Addr::new(10, 1, 0, 6));
/// How long everything is well before all have to agree.
const HEALED_MS: u64 = 150_000;
/// How long it takes until each host has compared each network with what it has, and removed what it has not.
const COMPARED_MS: u64 = 700_000;

struct World {
    seed: u64,
    now: u64,
    random: Random,
    model: Model,
    old: Option<Model>,
    keys: Keys,
    hosts: Vec<Host>,
    /// Guests that were only ever at one host, and are there.
    settled: BTreeMap<Key, usize>,
    /// Guests that were announced anywhere.
    announced: BTreeSet<Key>,
    loses: bool,
    /// Who has each claimed address, or had it, until when.
    claimed: BTreeMap<(u32, IpAddr), (MacAddr, Option<u64>)>,
    /// The registry's revision when it was last judged.
    judged: Option<i64>,
}

fn guest(number: u64) -> (Key, Vec<IpAddr>) {
    let [.., low] = number.to_be_bytes();
    let vni = VNIS[usize::from(low) % VNIS.len()];
    // Two guests in four share an address.
    let ip = IpAddr::from([10, 0, 0, low / 4]);
    ((vni, MacAddr([2, 0, 0, 0, 0, low])), vec![ip])
}

impl World {
    fn new(seed: u64, loses: bool) -> Self {
        let name = |at: usize| format!("h{at}");
        Self {
            seed,
            now: 0,
            random: Random(seed),
            model: Model::new(1),
            old: None,
            keys: Keys::new("c"),
            hosts: (0..HOSTS).map(|at| Host::new(name(at))).collect(),
            settled: BTreeMap::new(),
            announced: BTreeSet::new(),
            loses,
            claimed: BTreeMap::new(),
            judged: None,
        }
    }

    fn act(&mut self) {
        let at = self.random.index(HOSTS);
        let number = self.random.below(GUESTS);
        let (key, ips) = guest(number);
        match self.random.below(40) {
            0..6 => self.create(at, key, &ips),
            6..8 => self.retire(at, key),
            8..11 => self.standby(at, key, &ips),
            11..14 => self.activate(at, key, &ips),
            14..16 => self.hosts[at].is_cut ^= true,
            16..18 => {
                let model = (&mut self.model, &self.keys, &mut self.random);
                self.hosts[at].cut(self.now, Some(model));
            }
            18 => self.hosts[at].restart(self.now),
            19..22 => self.hosts[at].save(),
            // A registry that lost its data and was compacted beyond what was known cannot be told from the one that was.
            22 if !self.loses => self.model.compact(),
            23 => self.now += 40_000,
            24 if self.loses => self.old = Some(self.model.clone()),
            25 if self.loses => self.lose(),
            26..29 => {
                let vni = VNIS[self.random.index(VNIS.len())];
                let owner = self.random.below(3);
                self.hosts[at].claim(self.now, vni, owner);
            }
            29 => {
                if let Some(key) = self.hosts[at].claimed.pop_first() {
                    self.retire(at, key);
                }
            }
            _ => {}
        }
        if self.hosts[at].is_cut {
            let model = (&mut self.model, &self.keys, &mut self.random);
            self.hosts[at].cut(self.now, Some(model));
        }
    }

    fn create(&mut self, at: usize, key: Key, ips: &[IpAddr]) {
        if self.hosts[at].guests.contains_key(&key) {
            return;
        }
        // A guest that shares its address may be refused, or served later: it is not settled.
        let is_new = self.announced.insert(key) && key.1.0[5].is_multiple_of(4);
        let ips = if self.random.below(3) == 0 && !key.1.0[5].is_multiple_of(4) {
            &[]
        } else {
            ips
        };
        if is_new {
            self.settled.insert(key, at);
        } else {
            self.settled.remove(&key);
        }
        self.hosts[at].announce(self.now, key, ips, EndpointState::Active);
    }

    fn retire(&mut self, at: usize, key: Key) {
        if self.hosts[at].guests.contains_key(&key) {
            self.settled.remove(&key);
            self.hosts[at].retire(self.now, key);
        }
    }

    fn standby(&mut self, at: usize, key: Key, ips: &[IpAddr]) {
        if !self.hosts[at].guests.contains_key(&key) {
            self.announced.insert(key);
            self.settled.remove(&key);
            self.hosts[at].announce(self.now, key, ips, EndpointState::Standby);
        }
    }

    fn activate(&mut self, at: usize, key: Key, ips: &[IpAddr]) {
        let guest = self.hosts[at].guests.get(&key);
        if guest.is_some_and(|guest| guest.state == EndpointState::Standby) {
            self.hosts[at].announce(self.now, key, ips, EndpointState::Active);
        }
    }

    /// The registry is an older one, or empty.
    fn lose(&mut self) {
        let cluster = self.model.cluster;
        let empty = Model::new(cluster);
        let granted = self.model.granted;
        self.model = self.old.take().unwrap_or(empty);
        self.model.granted = granted;
        for host in &mut self.hosts {
            host.cut(self.now, None);
        }
        self.judged = None;
        // Others may write before any of the hosts is back.
        let passed = self.random.below(200);
        self.model.pass(i64::try_from(passed).expect("small"));
    }

    fn pass(&mut self, most_ms: u64) {
        self.now += 1 + self.random.below(most_ms);
        self.model.lapse(self.now);
        for host in &mut self.hosts {
            host.step(self.now, &mut self.model, &self.keys, &mut self.random);
        }
        self.check_tables();
        if self.judged != Some(self.model.revision) {
            self.judged = Some(self.model.revision);
            self.check_registry();
        }
    }

    /// What holds of each host's table at every moment.
    fn check_tables(&self) {
        let seed = self.seed;
        for (at, host) in self.hosts.iter().enumerate() {
            for (key, entry) in &host.table {
                let is_claimed = |host: &Host| host.ever_claimed.contains(key);
                assert!(
                    self.announced.contains(key) || self.hosts.iter().any(is_claimed),
                    "seed {seed}: {key:?} is of nobody"
                );
                let of = entry.host.as_deref().unwrap_or_default();
                if let Some(home) = self.settled.get(key) {
                    let home = &self.hosts[*home].name;
                    assert_eq!(
                        of, home,
                        "seed {seed}: {key:?} never moved, and h{at} sends it elsewhere"
                    );
                }
            }
        }
    }

    /// What holds of the registry at every moment.
    fn check_registry(&mut self) {
        let seed = self.seed;
        let mut had = BTreeMap::new();
        for vni in VNIS {
            for kv in self.model.under(&self.keys.prefix(Scope::Endpoints(vni))) {
                let record = schema::endpoint(&kv.value).expect("a record");
                let leaf = self
                    .keys
                    .leaf(Scope::Endpoints(vni), &kv.key)
                    .expect("a leaf");
                for ip in record.ips {
                    let owner = self.model.under(&self.keys.address(vni, ip));
                    let owner = owner.first().and_then(|kv| schema::address(&kv.value));
                    let owner = owner.map(|owner| (owner.mac, owner.host));
                    let expected = Some((leaf.to_owned(), record.host.clone()));
                    assert_eq!(owner, expected, "seed {seed}: {ip} of {leaf}");
                    if POOL.contains(&ip) {
                        had.insert((vni, ip), schema::mac(leaf).expect("an address"));
                    }
                }
            }
        }
        for (key, mac) in &had {
            let before = self.claimed.insert(*key, (*mac, None));
            let Some((other, gone)) = before.filter(|(other, _)| other != mac && !self.loses)
            else {
                continue;
            };
            let rested = gone.map(|gone| self.now - gone);
            let text = format!("seed {seed}: {key:?} of {other}, then of {mac}: {rested:?} ms");
            // A jump of 40 s delays a transaction by 10 s more than a client waits.
            assert!(rested.is_some_and(|ms| ms >= 49_000), "{text}");
        }
        let gone = self
            .claimed
            .iter_mut()
            .filter(|(key, _)| !had.contains_key(key));
        for (_, (_, gone)) in gone {
            gone.get_or_insert(self.now);
        }
    }

    fn wait(&mut self, ms: u64, step_ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.pass(step_ms);
        }
    }

    /// Everybody is well for a while: then all agree.
    fn heal(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.is_cut = false);
        self.wait(HEALED_MS, 200);
        if self.loses {
            self.hosts.iter_mut().for_each(|host| host.engine.accept());
            self.wait(HEALED_MS, 200);
        }
        self.wait(COMPARED_MS, 6_000);
        let seed = self.seed;
        let mut records = BTreeMap::new();
        for vni in VNIS {
            for kv in self.model.under(&self.keys.prefix(Scope::Endpoints(vni))) {
                let leaf = self
                    .keys
                    .leaf(Scope::Endpoints(vni), &kv.key)
                    .expect("a leaf");
                let mac = schema::mac(leaf).expect("an address");
                records.insert((vni, mac), schema::endpoint(&kv.value).expect("a record"));
            }
            for kv in self.model.under(&self.keys.prefix(Scope::Addresses(vni))) {
                let record = schema::address(&kv.value).expect("a record");
                let mac = schema::mac(&record.mac).expect("an address");
                let is_had = records.contains_key(&(vni, mac));
                assert!(
                    is_had || record.is_resting,
                    "seed {seed}: {} is of nobody",
                    kv.key
                );
            }
        }
        for host in &self.hosts {
            assert_eq!(host.degraded, None, "seed {seed}: {}", host.name);
            let others = records.iter().filter(|(_, record)| {
                record.host != host.name && record.state == EndpointState::Active
            });
            let expected: BTreeMap<_, _> = others
                .map(|(key, record)| (*key, (record.host.clone(), record.generation)))
                .collect();
            let found: BTreeMap<_, _> = host
                .table
                .iter()
                .map(|(key, entry)| {
                    (
                        *key,
                        (entry.host.clone().unwrap_or_default(), entry.generation),
                    )
                })
                .collect();
            assert_eq!(found, expected, "seed {seed}: what {} knows", host.name);
            let mine: BTreeSet<_> = records
                .iter()
                .filter(|(_, record)| record.host == host.name)
                .map(|(key, _)| *key)
                .collect();
            let held = host.guests.iter().filter(|(key, guest)| {
                let is_owned = matches!(host.own.get(key), Some(Ok(_)));
                is_owned && (guest.state == EndpointState::Active || mine.contains(key))
            });
            let held: BTreeSet<_> = held.map(|(key, _)| *key).collect();
            assert_eq!(held, mine, "seed {seed}: what {} has", host.name);
        }
    }
}

/// Records of this host that none of its endpoints has go within twenty minutes, and so do blocks that nobody uses; a record that is
/// missing is written again.
#[test]
fn what_nobody_has_is_removed() {
    let mut world = World::new(1, false);
    world.hosts[0].claim(0, VNIS[0], 0);
    let (key, ips) = guest(0);
    world.create(0, key, &ips);
    world.wait(5_000, 200);
    let address = world.keys.address(key.0, ips[0]);
    let orphan = world
        .keys
        .address(VNIS[0], Ipv4Addr::new(10, 9, 0, 1).into());
    let other = world
        .keys
        .address(VNIS[0], Ipv4Addr::new(10, 9, 0, 2).into());
    let blocks = world.keys.prefix(Scope::Blocks);
    assert_eq!(world.model.under(&blocks).len(), 0);
    world.hosts[0].claim(world.now, VNIS[0], 0);
    world.wait(5_000, 200);
    assert_eq!(world.model.under(&blocks).len(), 1);
    let put = |key: &str, value: &str| Op::Put {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        lease: 0,
    };
    let then = vec![
        put(&orphan, r#"{"m":"020000000099","h":"h0"}"#),
        put(&other, r#"{"m":"020000000099","h":"stranger"}"#),
        Op::Delete {
            key: address.clone(),
        },
    ];
    let expect = Vec::new();
    assert_eq!(world.model.txn(&Txn { expect, then }), Outcome::Done);
    for key in world.hosts[0].claimed.clone() {
        world.retire(0, key);
    }
    let end = world.now + 1_300_000;
    while world.now < end {
        world.now += 1_000;
        let (now, model) = (world.now, &mut world.model);
        model.lapse(now);
        for host in &mut world.hosts {
            host.step(now, model, &world.keys, &mut world.random);
        }
    }
    assert_eq!(world.model.under(&orphan), []);
    assert_eq!(world.model.under(&other).len(), 1);
    assert_eq!(world.model.under(&address).len(), 1);
    assert_eq!(world.model.under(&blocks), []);
}

fn play(seed: u64, loses: bool) {
    let mut world = World::new(seed, loses);
    for _ in 0..STEPS {
        world.act();
        world.pass(1_000);
    }
    world.heal();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn play_seeds(loses: bool) {
    if let Some(seed) = number("WINDLASS_SEED") {
        return play(seed, loses);
    }
    (0..number("WINDLASS_SEEDS").unwrap_or(12)).for_each(|seed| play(seed, loses));
}

/// A guest that never moved is always sent to its host; an address has one owner; no record is of another VNI; once all is well, all know
/// exactly what the registry has, and the registry has exactly what the hosts have.
#[test]
fn hosts_agree() {
    play_seeds(false);
}

/// The same while the registry is replaced by an older one or an empty one: nothing that is known goes before a person accepts it.
#[test]
fn hosts_agree_after_a_loss() {
    play_seeds(true);
}
