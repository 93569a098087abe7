//! What is decided between the daemon and the registry. No I/O, no clock: time in milliseconds and all news are arguments.
//!
//! # States
//! ```text
//!  a scope:  Closed --connected, something is known--> Watching --compacted--> Due --its time has come--> Listing --> Watching
//!               \---- connected, nothing is known ---> Due                      ^---------- failed ----------/
//!  a registry that is younger than what is known: every scope is Due, and nothing that is known is swept.
//! ```

mod claims;
mod owns;
mod scopes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use windlass_lookup::protocol::{
    Claim, Endpoint, Entry, FromPlugin, HostState, Overlay, TARGETS_MAX, Withdrawn,
};
use windlass_wire::MacAddr;

use crate::mirror::{self, HostId, Mirror};
use crate::outbox::Outbox;
use crate::own::{Own, Phase, REFUSED_MS, Verdict};
use crate::registry::{Ask, Change, Kv, Lease, Op, Outcome, Scope, Told, Txn};
use crate::schema::{self, AliveRecord, HostRecord, Keys};

/// VNIs of one host.
pub const VNIS_MAX: usize = 4_096;
/// How often the lease is renewed: three times before it lapses.
const KEEP_ALIVE_MS: u64 = 10_000;
/// For each 100 hosts that are alive, lists that all of them need at once are spread over so much time.
const SPREAD_MS: u64 = 5_000;
/// The first and the longest wait after a list or a transaction failed.
const RETRY_MS: u64 = 1_000;
const RETRY_MS_MAX: u64 = 60_000;
/// Transactions that conflict are tried again at once so many times.
const TRIES_AT_ONCE: u32 = 8;
/// Transactions of endpoints under way at a time.
const BUSY_MAX: usize = 32;
/// A watch that goes on where the last one ended has told what was missed after so much time.
const SETTLED_MS: u64 = 1_000;
/// How long after its request further addresses come to rest on one lease of 120 s: each rests for 60 s at least, though a transaction
/// may take 30 s.
const REST_SHARED_MS: u64 = 30_000;
/// How long after its VNI is known an own record stays that the daemon has not announced.
const STALE_MS: u64 = 60_000;
/// How long another host of this name counts as there after a word of it: as long as its lease.
const TWIN_MS: u64 = 30_000;

/// What this host is.
#[derive(Debug, Clone)]
pub struct Conf {
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub host: String,
    /// Names this start of it.
    pub boot: String,
    /// Its addresses. The first one's family is that of every target.
    pub record: HostRecord,
    /// For what is random.
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Closed,
    Due { at: u64 },
    Listing,
    Watching,
}

/// How a scope is kept up to date.
#[derive(Debug, Clone)]
struct Sync {
    standing: Standing,
    /// What is known is as of this revision; 0: nothing is known.
    revision: i64,
    /// Lists in a row that failed.
    tries: u32,
    /// The next list asks the leader.
    fresh: bool,
    /// It holds what the registry has not confirmed, so the next list sweeps nothing.
    is_doubted: bool,
    /// The daemon was told everything between the marks.
    is_told: bool,
    /// Records were left out, since there were too many: it is listed again when there is room.
    is_short: bool,
    /// When a watch that just began has told what was missed.
    settled_at: Option<u64>,
    /// When own records that nobody announced go.
    stale_at: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    Register,
    Alive,
    Flood,
    Forget(String),
    Own(u32, MacAddr),
    Block(claims::BlockKey),
    /// A record of this host that nothing needs.
    Orphan,
}

/// The lease of what rests.
#[derive(Debug, Default)]
struct Rest {
    lease: i64,
    /// Until when further addresses come to rest on it.
    until: u64,
    is_asked: bool,
}

/// Everything that comes out of a step.
#[derive(Debug, Default)]
pub struct Out {
    /// For the registry.
    pub asks: Vec<Ask>,
    /// For the daemon.
    pub lines: Vec<FromPlugin>,
}

/// It.
#[derive(Debug)]
pub struct Engine {
    conf: Conf,
    keys: Keys,
    random: u64,
    now: u64,
    is_registered: bool,
    why_down: String,
    pub(crate) cluster: u64,
    lease: i64,
    /// Revision at which this host first wrote `alive/` with that lease; 0: it is not there.
    sign: i64,
    /// It is there now: endpoints may be announced.
    is_alive: bool,
    keep_alive_at: Option<u64>,
    /// The latest write or removal that was seen: by it, a registry is known again.
    proof: Option<(i64, String, Option<Vec<u8>>)>,
    /// The cluster that is being compared with it.
    checked: u64,
    scopes: BTreeMap<Scope, Sync>,
    pub(crate) mirror: Mirror,
    owns: BTreeMap<(u32, MacAddr), Own>,
    claims: claims::Claims,
    rest: Rest,
    /// Scopes that were on disk, and that no overlay has asked for yet.
    restored: BTreeMap<Scope, Sync>,
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
    of_vni: BTreeMap<u32, String>,
    overlays: BTreeMap<String, Option<String>>,
    /// The registry refuses to write.
    denied: Option<String>,
    /// Another host writes under this name: until this time, if it does not go on.
    twin_until: u64,
    forgetting: BTreeSet<String>,
    asks: Vec<Ask>,
    outbox: Outbox,
    /// Counts changes of what is kept on disk.
    pub changes: u64,
}

fn refusal(why: &str) -> String {
    format!("etcd refuses what this host writes: {why}")
}

impl Sync {
    fn new(revision: i64) -> Self {
        Self {
            standing: Standing::Closed,
            revision,
            tries: 0,
            fresh: false,
            is_doubted: false,
            is_told: false,
            is_short: false,
            settled_at: None,
            stale_at: None,
        }
    }
}

impl Engine {
    /// One that knows nothing, and is not connected.
    #[must_use]
    pub fn new(conf: Conf) -> Self {
        let mut scopes = BTreeMap::new();
        scopes.insert(Scope::Hosts, Sync::new(0));
        scopes.insert(Scope::Alive, Sync::new(0));
        Self {
            keys: Keys::new(&conf.cluster),
            mirror: Mirror::new(&conf.host),
            random: conf.seed,
            conf,
            now: 0,
            is_registered: false,
            why_down: "not connected yet".to_owned(),
            cluster: 0,
            lease: 0,
            sign: 0,
            is_alive: false,
            keep_alive_at: None,
            proof: None,
            checked: 0,
            scopes,
            owns: BTreeMap::new(),
            claims: claims::Claims::default(),
            rest: Rest::default(),
            restored: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_id: 1,
            of_vni: BTreeMap::new(),
            overlays: BTreeMap::new(),
            denied: None,
            twin_until: 0,
            forgetting: BTreeSet::new(),
            asks: Vec::new(),
            outbox: Outbox::default(),
            changes: 0,
        }
    }

    /// What the last steps want said and asked.
    pub fn take(&mut self) -> Out {
        self.tell_health();
        Out {
            asks: std::mem::take(&mut self.asks),
            lines: self.outbox.take(),
        }
    }

    // What is kept on disk.

    /// The names of the cluster and of this host, and the identity of the registry.
    #[must_use]
    pub fn identity(&self) -> (&str, &str, u64) {
        (&self.conf.cluster, &self.conf.host, self.cluster)
    }

    /// Scopes of which something is known, and as of which revision.
    pub fn kept(&self) -> impl Iterator<Item = (Scope, i64)> {
        let known = self.scopes.iter().filter(|(_, sync)| sync.revision != 0);
        known.map(|(scope, sync)| (*scope, sync.revision))
    }

    /// Takes the identity of the registry from the disk.
    pub fn restore_cluster(&mut self, cluster: u64) {
        self.cluster = cluster;
    }

    /// Takes a scope as of a revision, or one of its records, from the disk.
    pub fn restore(&mut self, scope: Scope, revision: i64, kv: Option<Kv>) {
        if let Scope::Endpoints(vni) | Scope::Flood(vni) = scope {
            self.mirror.vnis.entry(vni).or_default();
        }
        let sync = Sync::new(revision);
        let sync = match scope {
            Scope::Hosts => self.scopes.entry(scope).or_insert(sync),
            _ => self.restored.entry(scope).or_insert(sync),
        };
        sync.revision = revision;
        sync.is_doubted |= kv.as_ref().is_some_and(|kv| kv.mod_revision == 0);
        let Some(kv) = kv else { return };
        self.proves(&kv.key, Some(&kv.value), kv.mod_revision);
        if let Some(leaf) = self.keys.leaf(scope, &kv.key).map(str::to_owned) {
            self.restore_record(scope, &leaf, &kv);
            self.note_overflow(scope);
        }
    }

    // What the daemon says.

    /// An overlay begins, or has other VNIs.
    ///
    /// # Errors
    /// A sentence: a VNI is another overlay's, or there are too many.
    pub fn start(&mut self, of: &Overlay) -> Result<(), String> {
        let vnis: BTreeSet<u32> = of.vnis.iter().copied().collect();
        for vni in &vnis {
            if let Some(other) = self.of_vni.get(vni).filter(|other| **other != of.overlay) {
                return Err(format!("VNI {vni} is that of the overlay {other}"));
            }
        }
        let had = self.vnis_of(&of.overlay);
        let others = self.of_vni.len().saturating_sub(had.len());
        if others.saturating_add(vnis.len()) > VNIS_MAX {
            return Err(format!("more than {VNIS_MAX} VNIs on one host"));
        }
        self.overlays.entry(of.overlay.clone()).or_default();
        had.difference(&vnis).for_each(|vni| self.leave(*vni));
        for vni in vnis.difference(&had) {
            self.of_vni.insert(*vni, of.overlay.clone());
            self.join(*vni);
        }
        let hosts: Vec<_> = self.mirror.hosts().map(|(id, _)| id).collect();
        hosts
            .into_iter()
            .for_each(|id| self.tell_host(&of.overlay, id));
        Ok(())
    }

    /// An overlay ends, with its endpoints.
    pub fn stop(&mut self, overlay: &str) {
        self.vnis_of(overlay)
            .iter()
            .for_each(|vni| self.leave(*vni));
        self.overlays.remove(overlay);
    }

    fn vnis_of(&self, overlay: &str) -> BTreeSet<u32> {
        let ours = self.of_vni.iter().filter(|(_, of)| *of == overlay);
        ours.map(|(vni, _)| *vni).collect()
    }

    fn join(&mut self, vni: u32) {
        // What was read from disk serves at once, and is compared with the registry later.
        let is_known = self.mirror.vnis.contains_key(&vni);
        self.mirror.vnis.entry(vni).or_default();
        for scope in [Scope::Endpoints(vni), Scope::Flood(vni)] {
            let sync = self.restored.remove(&scope).unwrap_or_else(|| Sync::new(0));
            self.scopes.insert(scope, sync);
            self.open(scope);
        }
        if is_known {
            self.push_all(vni);
            self.tell_flood(vni);
        }
    }

    fn leave(&mut self, vni: u32) {
        for scope in [Scope::Endpoints(vni), Scope::Flood(vni)] {
            let sync = self.scopes.remove(&scope);
            // One that is to be listed again is watched meanwhile.
            if sync.is_some_and(|sync| sync.standing != Standing::Closed) {
                self.asks.push(Ask::Unwatch { scope });
            }
        }
        let its = (vni, MacAddr([0; 6]))..=(vni, MacAddr([0xff; 6]));
        let owns: Vec<_> = self.owns.range(its).map(|(key, _)| *key).collect();
        for (vni, mac) in owns {
            self.retire(self.now, vni, mac);
        }
        self.leave_claims(vni);
        self.mirror.drop_vni(vni);
        self.of_vni.remove(&vni);
        let key = self.keys.flood(vni, &self.conf.host);
        self.write(Pending::Flood, Op::Delete { key });
        self.changes += 1;
    }

    /// An endpoint of this host.
    pub fn announce(&mut self, now: u64, of: &Endpoint) {
        self.now = self.now.max(now);
        let key = (of.vni, of.mac);
        if !self.of_vni.contains_key(&of.vni) {
            return;
        }
        self.end_claim(key);
        let mut ips = of.ips.clone();
        ips.sort_unstable();
        ips.dedup();
        if let Some(own) = self.owns.get_mut(&key) {
            own.announced(ips, of.state, self.now);
            let held = (own.phase == Phase::Held).then_some(own.generation);
            if let Some(generation) = held {
                self.tell_owned(key, generation);
            }
            return;
        }
        let mut own = Own::new(ips, of.state, self.now);
        let entry = self.mirror.entry(of.vni, of.mac);
        if let Some(entry) = entry.filter(|entry| entry.host == mirror::ME) {
            own.inherited(entry.generation, entry.mod_revision == 0);
        }
        self.owns.insert(key, own);
    }

    /// An endpoint that this host has no more.
    pub fn retire(&mut self, now: u64, vni: u32, mac: MacAddr) {
        self.now = self.now.max(now);
        let now = self.now;
        self.end_claim((vni, mac));
        let new = || {
            Own::new(
                Vec::new(),
                windlass_lookup::protocol::EndpointState::Active,
                now,
            )
        };
        let own = self.owns.entry((vni, mac)).or_insert_with(new);
        let rest = own.addresses();
        own.retired(now);
        self.pass_over(vni, rest);
    }

    /// A person says that a host does not come back: everything of it is to go. Void while it is alive.
    pub fn forget(&mut self, host: &str) {
        let is_alive = self.may_keep(host);
        if schema::is_name(host) && host != self.conf.host && !is_alive && self.is_registered {
            self.forgetting.insert(host.to_owned());
            self.asks.push(Ask::List {
                scope: Scope::All,
                fresh: true,
            });
        }
    }

    /// A person says that the registry is right, though it is younger than what is known.
    pub fn accept(&mut self) {
        for (scope, sync) in self.scopes.iter_mut().filter(|(_, sync)| sync.is_doubted) {
            sync.is_doubted = false;
            sync.revision = 0;
            sync.stale_at = None;
            if sync.standing != Standing::Closed {
                sync.standing = Standing::Due { at: self.now };
            }
            if let Scope::Endpoints(vni) = scope {
                self.mirror.yield_doubted(*vni);
            }
        }
    }

    // What the registry says.

    /// Takes news at a time.
    pub fn told(&mut self, now: u64, news: Told) {
        self.now = self.now.max(now);
        match news {
            Told::Up => self.up(),
            Told::Down { why } => self.down(why),
            Told::Txn {
                id,
                cluster,
                revision,
                outcome,
            } => self.answered(id, cluster, revision, outcome),
            Told::Checked { is_same } => {
                if is_same == Some(false) {
                    self.registry_is_younger();
                }
                self.registered(self.checked);
            }
            Told::Listed {
                scope: Scope::All,
                kvs,
                ..
            } => self.forget_of(&kvs),
            Told::Listed {
                scope: Scope::Blocks,
                kvs,
                ..
            } => self.blocks_listed(&kvs),
            Told::Listed {
                scope: Scope::Addresses(vni),
                revision,
                kvs,
            } => self.addresses_listed(vni, revision, &kvs),
            Told::Listed {
                scope,
                revision,
                kvs,
            } => self.listed(scope, revision, kvs),
            Told::ListFailed {
                scope: Scope::Blocks,
                why,
            } => self.blocks_not_listed(&why),
            Told::ListFailed { scope, .. } => self.list_failed(scope),
            Told::Watching { scope } => self.watching(scope),
            Told::Changed {
                scope,
                revision,
                changes,
            } => self.changed(scope, revision, changes),
            Told::Compacted { scope } => self.compacted(scope),
            Told::Granted {
                of: Lease::Alive,
                lease,
            } => self.granted(lease),
            Told::Granted {
                of: Lease::Rest,
                lease,
            } => {
                self.rest.lease = lease;
                self.rest.is_asked = false;
            }
            Told::LeaseKept => self.renewed(),
            Told::LeaseGone => {
                self.end_lease();
                self.asks.push(Ask::Grant { of: Lease::Alive });
            }
        }
    }

    fn up(&mut self) {
        let id = self.id(Pending::Register);
        let (key, seen) = (self.keys.host(&self.conf.host), self.host_seen());
        let mut txn = Txn {
            expect: vec![(key.clone(), seen)],
            then: Vec::new(),
        };
        if seen == 0 || !self.host_is_current() {
            let value = schema::value(&self.conf.record);
            txn.then.push(Op::Put {
                key,
                value,
                lease: 0,
            });
        }
        self.asks.push(Ask::Txn { id, txn });
    }

    /// The revision of this host's own record, by which a registry is known again.
    fn host_seen(&self) -> i64 {
        self.mirror.host(mirror::ME).mod_revision
    }

    fn host_is_current(&self) -> bool {
        self.mirror.host(mirror::ME).record.as_ref() == Some(&self.conf.record)
    }

    fn down(&mut self, why: String) {
        self.is_registered = false;
        self.why_down = why;
        self.is_alive = false;
        self.keep_alive_at = None;
        self.pending.clear();
        self.denied = None;
        self.forgetting.clear();
        for sync in self.scopes.values_mut() {
            sync.standing = Standing::Closed;
            sync.settled_at = None;
        }
        for own in self.owns.values_mut() {
            if let Phase::Busy(_) = own.phase {
                own.phase = Phase::Owed(self.now);
            }
        }
        self.rest = Rest::default();
        self.claims_down();
    }

    fn answered(&mut self, id: u64, cluster: u64, revision: i64, outcome: Outcome) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        match (pending, outcome) {
            (Pending::Alive, Outcome::Denied(why)) => {
                // The lease may have lapsed before it was used. A new one is asked for when this one would be renewed.
                self.end_lease();
                self.keep_alive_at = Some(self.now + KEEP_ALIVE_MS);
                self.refuse_unwritten(&refusal(&why));
                self.denied = Some(why);
            }
            (Pending::Block(key), outcome) => self.block_answered(key, revision, outcome),
            (_, Outcome::Denied(why)) if self.is_registered => self.refused_to_write(id, why),
            (Pending::Register, Outcome::Denied(why)) => {
                // A user that may not write may still read. The answer does not tell which registry it is.
                self.registered(self.cluster);
                self.denied = Some(why);
            }
            (Pending::Register, outcome) => self.register_answered(cluster, revision, outcome),
            // Something of it changed meanwhile.
            (Pending::Forget(host), Outcome::Conflict(_)) => self.forget(&host),
            (Pending::Alive, Outcome::Done) => {
                if self.sign == 0 {
                    self.sign = revision;
                }
                self.is_alive = true;
                self.denied = None;
            }
            (Pending::Own(vni, mac), outcome) => {
                self.own_answered(id, (vni, mac), revision, outcome)
            }
            _ => {}
        }
    }

    fn register_answered(&mut self, cluster: u64, revision: i64, outcome: Outcome) {
        let seen = self.host_seen();
        match outcome {
            Outcome::Done => {
                let at = if self.host_is_current() && seen != 0 {
                    seen
                } else {
                    revision
                };
                self.mirror.see_me(Some(self.conf.record.clone()), at);
                self.changes += 1;
                // What is told meanwhile may be newer than this answer.
                if !self.is_registered {
                    self.compare(cluster, revision);
                }
            }
            Outcome::Conflict(found) => {
                let kv = found.into_iter().flatten().next();
                let at = kv.as_ref().map_or(0, |kv| kv.mod_revision);
                if at < seen && !self.is_registered {
                    self.registry_is_younger();
                }
                let record = kv.and_then(|kv| schema::host(&kv.value));
                self.mirror.see_me(record, at);
                self.up();
            }
            Outcome::Denied(_) => {}
        }
    }

    /// Whether this is the registry that was known: its past has the latest write that was seen.
    fn compare(&mut self, cluster: u64, revision: i64) {
        let is_other = self.cluster != 0 && cluster != self.cluster;
        if is_other || revision < self.newest() {
            self.registry_is_younger();
        }
        match self.proof.clone() {
            Some((at, key, value)) => {
                self.checked = cluster;
                self.asks.push(Ask::Check {
                    key,
                    value,
                    revision: at,
                });
            }
            None => self.registered(cluster),
        }
    }

    fn registered(&mut self, cluster: u64) {
        self.cluster = cluster;
        self.is_registered = true;
        self.denied = None;
        match self.lease {
            0 => self.asks.push(Ask::Grant { of: Lease::Alive }),
            lease => {
                self.keep_alive_at = Some(self.now + KEEP_ALIVE_MS);
                self.asks.push(Ask::KeepAlive { lease });
            }
        }
        let scopes: Vec<_> = self.scopes.keys().copied().collect();
        scopes.into_iter().for_each(|scope| self.open(scope));
    }

    /// The registry lost what it told earlier. What is known stays, and is compared with what is there now.
    fn registry_is_younger(&mut self) {
        self.mirror.doubt();
        self.proof = None;
        for sync in self.scopes.values_mut() {
            sync.is_doubted |= sync.revision != 0;
            // What this host had retired may be back.
            sync.stale_at = None;
            sync.revision = 0;
            sync.fresh = true;
        }
        for own in self.owns.values_mut() {
            own.doubt(self.now);
        }
        self.end_lease();
        self.changes += 1;
    }

    fn proves(&mut self, key: &str, value: Option<&[u8]>, revision: i64) {
        let is_cut = value.is_some_and(<[u8]>::is_empty);
        if !is_cut && revision > self.proof.as_ref().map_or(0, |(latest, ..)| *latest) {
            self.proof = Some((revision, key.to_owned(), value.map(<[u8]>::to_vec)));
        }
    }

    /// The newest revision that was seen.
    fn newest(&self) -> i64 {
        self.scopes
            .values()
            .map(|sync| sync.revision)
            .max()
            .unwrap_or_default()
    }

    fn open(&mut self, scope: Scope) {
        let now = self.now;
        let Some(sync) = self.scopes.get_mut(&scope).filter(|_| self.is_registered) else {
            return;
        };
        if sync.standing != Standing::Closed {
            return;
        }
        if sync.revision == 0 {
            // A host that knows nothing cannot wait; one that serves what it knew can.
            let is_spread = sync.is_doubted;
            sync.standing = Standing::Due { at: now };
            if is_spread {
                self.delay(scope);
            }
        } else {
            sync.standing = Standing::Watching;
            // Behind the proof, nothing shows that the past is the one that was known: it is told again.
            let proved = self.proof.as_ref().map_or(0, |(at, ..)| *at);
            let from = sync.revision.min(proved) + 1;
            self.asks.push(Ask::Watch { scope, from });
        }
    }

    /// A list that every host needs now is made at a random time.
    fn delay(&mut self, scope: Scope) {
        let alive = u64::try_from(self.mirror.alive()).unwrap_or(u64::MAX);
        let spread = SPREAD_MS.saturating_mul(alive) / 100;
        let at = self.now + self.random(spread + 1);
        if let Some(sync) = self.scopes.get_mut(&scope) {
            sync.standing = Standing::Due { at };
        }
    }

    /// SplitMix64, below `bound`.
    fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn backoff(&mut self, tries: u32) -> u64 {
        let longest = RETRY_MS
            .saturating_mul(1 << tries.min(16))
            .min(RETRY_MS_MAX);
        longest / 2 + self.random(longest / 2 + 1)
    }

    fn list_failed(&mut self, scope: Scope) {
        let tries = self.scopes.get(&scope).map_or(0, |sync| sync.tries);
        let wait = self.backoff(tries);
        let at = self.now + wait;
        let listing = |sync: &&mut Sync| sync.standing == Standing::Listing;
        if let Some(sync) = self.scopes.get_mut(&scope).filter(listing) {
            sync.tries += 1;
            sync.standing = Standing::Due { at };
        }
    }

    fn compacted(&mut self, scope: Scope) {
        if self.scopes.contains_key(&scope) {
            self.delay(scope);
        }
    }

    fn watching(&mut self, scope: Scope) {
        let settled = self.now + SETTLED_MS;
        if let Some(sync) = self.scopes.get_mut(&scope).filter(|sync| !sync.is_told) {
            sync.settled_at = Some(settled);
        }
    }

    fn end_lease(&mut self) {
        self.lease = 0;
        self.sign = 0;
        self.is_alive = false;
        self.keep_alive_at = None;
    }

    fn granted(&mut self, lease: i64) {
        self.end_lease();
        self.lease = lease;
        self.keep_alive_at = Some(self.now + KEEP_ALIVE_MS);
        self.show_life();
    }

    fn renewed(&mut self) {
        // Another host of this name has left its own address.
        if !self.has_twin() && self.is_registered && !self.host_is_current() {
            self.up();
        }
        self.show_life();
    }

    /// Whether another host writes under this name.
    fn has_twin(&self) -> bool {
        self.now < self.twin_until
    }

    /// The lease is there: so is the sign of life, or it is written. Another host of this name is to see it.
    fn show_life(&mut self) {
        if self.sign != 0 && !self.has_twin() {
            self.is_alive = true;
            return;
        }
        let record = AliveRecord {
            boot: self.conf.boot.clone(),
            lease: self.lease,
        };
        let put = Op::Put {
            key: self.keys.alive(&self.conf.host),
            value: schema::value(&record),
            lease: self.lease,
        };
        self.write(Pending::Alive, put);
    }

    /// A write without a condition.
    fn write(&mut self, pending: Pending, op: Op) {
        if self.is_registered {
            let id = self.id(pending);
            let txn = Txn {
                expect: Vec::new(),
                then: vec![op],
            };
            self.asks.push(Ask::Txn { id, txn });
        }
    }

    fn id(&mut self, pending: Pending) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, pending);
        id
    }

    fn refused_to_write(&mut self, id: u64, why: String) {
        let at = self.now + RETRY_MS_MAX / 2;
        let mut refused = Vec::new();
        for (key, own) in &mut self.owns {
            if own.phase == Phase::Busy(id) {
                own.phase = Phase::Owed(at);
                refused.push(*key);
            }
        }
        self.claims_denied(&refused, &why);
        // It may have lapsed.
        self.rest = Rest::default();
        self.denied = Some(why);
    }
}
