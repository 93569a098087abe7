//! Addresses that this host gives: claims, and the blocks of pools that they are picked from.
//!
//! # Model
//! A pool is divided into blocks of 64 addresses. A host claims a block, and picks in it: two hosts hardly ever want one address. Where no
//! block is left, it picks in the whole pool. Blocks only keep hosts apart: who has an address is decided by its `ip/` key, which one
//! transaction writes together with the endpoint, as standby. The endpoint is announced within [`CLAIM_MS`], or goes.
//!
//! # States
//! ```text
//!  waiting (blocks are listed, or one is claimed) --picked--> open: its endpoint is Owed, Busy --done--> given --announced--> an endpoint
//!     ^                                                         |                                          \--time--> retired
//!     \------------------ conflict: others are picked ----------/
//! ```
//! # Failure modes
//! Without etcd a claim is refused at once; one under way is refused with the connection, and what it may have written is retired.

use windlass_wire::number;

use super::*;

/// How long an endpoint is kept for which addresses were given, without being announced.
const CLAIM_MS: u64 = 60_000;
/// How long an address is not tried again that was found taken, or that this host gave back.
const TAKEN_MS: u64 = 60_000;
/// Picks of one claim that may turn out to be taken.
const TRIES_MAX: u32 = 64;
/// Bits of an address within its block: /26, and /122 of IPv6.
const BLOCK_BITS: u32 = 6;
/// How old the list of blocks may be by which none is left.
const BLOCKS_MS: u64 = 60_000;
/// Each address of this host is compared with the registry so often, and a block that was not used for so long is given up.
const COMPARE_MS: u64 = 600_000;

/// A block: its pool and its first address.
pub(super) type BlockKey = (String, IpAddr);
type Blocks = BTreeMap<BlockKey, Block>;

#[derive(Debug, Clone)]
struct Block {
    revision: i64,
    is_mine: bool,
    /// When an address was last picked in it, or it was listed.
    used_at: u64,
}

#[derive(Debug, Clone)]
struct Claiming {
    claim: Claim,
    /// Who is to be told.
    ids: Vec<u64>,
    ips: Vec<IpAddr>,
    tries: u32,
    /// Given, until this time.
    until: Option<u64>,
}

impl Claiming {
    /// Whether one owner has claimed both, to have what is given.
    fn is_of_owner_of(&self, other: &Self) -> bool {
        let of = |of: &Self| (of.claim.vni, of.claim.dry_run);
        of(self) == of(other) && self.claim.owner == other.claim.owner
    }

    fn wants_as(&self, other: &Self) -> bool {
        let (a, b) = (&self.claim, &other.claim);
        (a.mac, &a.pool, &a.sets, &a.ips) == (b.mac, &b.pool, &b.sets, &b.ips)
    }
}

/// All claims, and what is known for them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    waiting: Vec<Claiming>,
    /// By the endpoint, which is not announced.
    open: BTreeMap<(u32, MacAddr), Claiming>,
    /// Blocks of all pools; `None`: not listed in this connection.
    blocks: Option<Blocks>,
    /// When they were listed.
    blocks_at: u64,
    is_listing: bool,
    /// Pools in which a block is being claimed.
    claiming: BTreeSet<String>,
    /// Addresses that were found taken, or rest, and until when they are passed over.
    taken: BTreeMap<(u32, IpAddr), u64>,
    /// The network that was compared last, and when the next one is.
    compared: u32,
    compare_at: Option<u64>,
}

enum Pick {
    Address(IpAddr),
    /// A block is to be claimed first.
    Block(IpAddr),
    /// Blocks are to be listed first.
    List,
    None,
}

fn block_of(ip: IpAddr) -> IpAddr {
    number::address(number::of(ip) >> BLOCK_BITS << BLOCK_BITS, ip)
}

fn is_within((first, last): &(IpAddr, IpAddr), ip: IpAddr) -> bool {
    ip.is_ipv4() == first.is_ipv4() && (*first..=*last).contains(&ip)
}

impl Engine {
    /// Addresses are wanted for an endpoint that is to be made. The answer is a line, at once if etcd is not there.
    pub fn claim(&mut self, now: u64, claim: Claim) {
        self.now = self.now.max(now);
        let id = claim.id;
        let of = Claiming {
            claim,
            ids: vec![id],
            ips: Vec::new(),
            tries: 0,
            until: None,
        };
        if !self.of_vni.contains_key(&of.claim.vni) {
            return self.refuse(&of, "the overlay has no such network");
        }
        if let Some(why) = self.cannot_write() {
            return self.refuse(&of, &why);
        }
        if of.claim.dry_run || !self.joins_earlier(&of) {
            self.serve(of);
        }
    }

    /// Whether a claim waits with an earlier one of its owner that wants the same. One that wants something else ends.
    fn joins_earlier(&mut self, of: &Claiming) -> bool {
        let waiting = &mut self.claims.waiting;
        if let Some(at) = waiting.iter().position(|other| other.is_of_owner_of(of)) {
            if waiting[at].wants_as(of) {
                waiting[at].ids.extend(&of.ids);
                return true;
            }
            let other = waiting.remove(at);
            self.refuse(&other, "its owner claimed again");
        }
        let mut open = self.claims.open.iter_mut();
        if let Some((key, other)) = open.find(|(_, other)| other.is_of_owner_of(of)) {
            let key = *key;
            if other.wants_as(of) {
                other.ids.extend(&of.ids);
                other.until = other.until.map(|_| self.now + CLAIM_MS);
                self.tell_given(key);
                return true;
            }
            self.retire(self.now, key.0, key.1);
        }
        false
    }

    /// Addresses that were claimed are not needed.
    pub fn release(&mut self, now: u64, vni: u32, owner: &str) {
        let is_one = |of: &Claiming| of.claim.vni == vni && of.claim.owner == owner;
        for of in self
            .claims
            .waiting
            .extract_if(.., |of| is_one(of))
            .collect::<Vec<_>>()
        {
            self.refuse(&of, "it was released");
        }
        let open = self.claims.open.iter().find(|(_, of)| is_one(of));
        if let Some((vni, mac)) = open.map(|(key, _)| *key) {
            self.retire(now, vni, mac);
        }
    }

    /// An endpoint is announced or retired: it is no claim any more.
    pub(super) fn end_claim(&mut self, key: (u32, MacAddr)) {
        if let Some(of) = self.claims.open.remove(&key) {
            self.refuse(&of, "it was released");
        }
    }

    fn refuse(&mut self, of: &Claiming, why: &str) {
        for id in &of.ids {
            self.outbox.say(FromPlugin::Claimed {
                id: *id,
                mac: None,
                ips: Vec::new(),
                text: Some(why.to_owned()),
            });
        }
    }

    /// Those who wait for addresses of a network hear that it is gone.
    pub(super) fn leave_claims(&mut self, vni: u32) {
        let waiting = &mut self.claims.waiting;
        let gone: Vec<_> = waiting.extract_if(.., |of| of.claim.vni == vni).collect();
        for of in gone {
            self.refuse(&of, "the overlay has no such network any more");
        }
    }

    fn refuse_waiting(&mut self, why: &str) {
        for of in std::mem::take(&mut self.claims.waiting) {
            self.refuse(&of, why);
        }
    }

    /// Tells whoever waits that addresses were given, if they were.
    fn tell_given(&mut self, key: (u32, MacAddr)) {
        let Some(of) = self
            .claims
            .open
            .get_mut(&key)
            .filter(|of| of.until.is_some())
        else {
            return;
        };
        for id in of.ids.drain(..) {
            self.outbox.say(FromPlugin::Claimed {
                id,
                mac: Some(key.1),
                ips: of.ips.clone(),
                text: None,
            });
        }
    }

    /// Picks addresses and an endpoint, which is written next.
    fn serve(&mut self, mut of: Claiming) {
        let Some(ips) = self.picked(&mut of) else {
            return;
        };
        let vni = of.claim.vni;
        let is_known = |engine: &Self, mac| {
            engine.owns.contains_key(&(vni, mac)) || engine.mirror.entry(vni, mac).is_some()
        };
        let mac = match of.claim.mac {
            Some(mac) if is_known(self, mac) => {
                let why = format!("{mac} is an endpoint already, or was until a moment ago");
                return self.refuse(&of, &why);
            }
            Some(mac) => mac,
            None => loop {
                let [_, _, _, rest @ ..] = self.random(u64::MAX).to_be_bytes();
                let [a, b, c, d, e] = rest;
                let mac = MacAddr([2, a, b, c, d, e]);
                if !is_known(self, mac) {
                    break mac;
                }
            },
        };
        if of.claim.dry_run {
            let id = of.claim.id;
            return self.outbox.say(FromPlugin::Claimed {
                id,
                mac: Some(mac),
                ips,
                text: None,
            });
        }
        let own = Own::claimed(ips.clone(), of.claim.owner.clone(), self.now);
        self.owns.insert((vni, mac), own);
        of.ips = ips;
        self.claims.open.insert((vni, mac), of);
    }

    /// Addresses for a claim; `None`: it waits, or was refused.
    fn picked(&mut self, of: &mut Claiming) -> Option<Vec<IpAddr>> {
        let claim = of.claim.clone();
        let mut ips = claim.ips.clone();
        let wanted = |ips: &[IpAddr], set: &[(IpAddr, IpAddr)]| {
            let is_in = |ip: &IpAddr| set.iter().any(|range| is_within(range, *ip));
            ips.iter().any(is_in)
        };
        let sets = claim.sets.iter().filter(|set| !wanted(&claim.ips, set));
        let sets: Vec<_> = sets.collect();
        if !sets.is_empty() && self.claims.blocks.is_none() {
            self.list_blocks();
            self.claims.waiting.push(of.clone());
            return None;
        }
        let mut taken = self.taken(claim.vni);
        for set in sets {
            match self.pick(&claim, set, &taken) {
                Pick::Address(ip) => {
                    taken.insert(ip);
                    ips.push(ip);
                }
                Pick::Block(first) => {
                    self.claim_block(&claim.pool, first);
                    self.claims.waiting.push(of.clone());
                    return None;
                }
                Pick::List => {
                    self.list_blocks();
                    self.claims.waiting.push(of.clone());
                    return None;
                }
                Pick::None => {
                    self.refuse(of, "all addresses are taken, or rest");
                    return None;
                }
            }
        }
        Some(ips)
    }

    /// Addresses that rest from now on: a claim that tried them would find each taken.
    pub(super) fn pass_over(&mut self, vni: u32, ips: impl IntoIterator<Item = IpAddr>) {
        let (now, until) = (self.now, self.now + TAKEN_MS);
        let taken = &mut self.claims.taken;
        taken.retain(|_, until| *until > now);
        taken.extend(ips.into_iter().map(|ip| ((vni, ip), until)));
    }

    /// Addresses of a network that are not free.
    fn taken(&mut self, vni: u32) -> BTreeSet<IpAddr> {
        let now = self.now;
        self.claims.taken.retain(|_, until| *until > now);
        let found = self.claims.taken.keys().filter(|key| key.0 == vni);
        let known = self.mirror.vnis.get(&vni).map(|of| of.entries.values());
        let known = known
            .into_iter()
            .flatten()
            .flat_map(|entry| entry.ips.iter());
        let owns = self
            .owns
            .range((vni, MacAddr([0; 6]))..=(vni, MacAddr([0xff; 6])));
        let own = owns.flat_map(|(_, own)| own.addresses());
        let found = found.map(|key| key.1).chain(known.copied());
        found.chain(own).collect()
    }

    /// An address of a set: in a block of this host, or in a block that it can have, or anywhere.
    fn pick(&mut self, claim: &Claim, set: &[(IpAddr, IpAddr)], taken: &BTreeSet<IpAddr>) -> Pick {
        let mut blocks = self.claims.blocks.take().unwrap_or_default();
        let picked = self
            .pick_in_own(&mut blocks, claim, set, taken)
            .or_else(|| self.pick_block(&blocks, claim, set))
            .or_else(|| self.pick_anywhere(set, taken));
        self.claims.blocks = Some(blocks);
        picked.unwrap_or(Pick::None)
    }

    fn pick_in_own(
        &mut self,
        blocks: &mut Blocks,
        claim: &Claim,
        set: &[(IpAddr, IpAddr)],
        taken: &BTreeSet<IpAddr>,
    ) -> Option<Pick> {
        let mine = blocks
            .iter_mut()
            .filter(|(key, block)| block.is_mine && key.0 == claim.pool);
        for (key, block) in mine {
            let end = number::of(key.1) | ((1 << BLOCK_BITS) - 1);
            for (first, last) in set
                .iter()
                .filter(|range| range.0.is_ipv4() == key.1.is_ipv4())
            {
                let (from, to) = (
                    number::of(*first).max(number::of(key.1)),
                    number::of(*last).min(end),
                );
                let free = |n: &u128| !taken.contains(&number::address(*n, *first));
                if let Some(found) = self.scan(from, to, 1 << BLOCK_BITS, free) {
                    if !claim.dry_run {
                        block.used_at = self.now;
                    }
                    return Some(Pick::Address(number::address(found, *first)));
                }
            }
        }
        None
    }

    /// A block that nobody has. A dry run takes none.
    fn pick_block(
        &mut self,
        blocks: &Blocks,
        claim: &Claim,
        set: &[(IpAddr, IpAddr)],
    ) -> Option<Pick> {
        if claim.dry_run {
            return None;
        }
        for (first, last) in set {
            let first_of = |n: u128| number::address(n << BLOCK_BITS, *first);
            let (from, to) = (
                number::of(*first) >> BLOCK_BITS,
                number::of(*last) >> BLOCK_BITS,
            );
            let free = |n: &u128| !blocks.contains_key(&(claim.pool.clone(), first_of(*n)));
            if let Some(found) = self.scan(from, to, blocks.len() + 1, free) {
                return Some(Pick::Block(first_of(found)));
            }
        }
        // Other hosts may have given some up.
        (self.claims.blocks_at + BLOCKS_MS <= self.now).then_some(Pick::List)
    }

    fn pick_anywhere(
        &mut self,
        set: &[(IpAddr, IpAddr)],
        taken: &BTreeSet<IpAddr>,
    ) -> Option<Pick> {
        for (first, last) in set {
            let free = |n: &u128| !taken.contains(&number::address(*n, *first));
            if let Some(found) =
                self.scan(number::of(*first), number::of(*last), taken.len() + 1, free)
            {
                return Some(Pick::Address(number::address(found, *first)));
            }
        }
        None
    }

    /// The first of these numbers that is free, from a random one on; `most` of them are looked at.
    fn scan(
        &mut self,
        from: u128,
        to: u128,
        most: usize,
        is_free: impl Fn(&u128) -> bool,
    ) -> Option<u128> {
        let count = to.checked_sub(from)?.saturating_add(1);
        let bound = u64::try_from(count).unwrap_or(u64::MAX);
        let start = from + u128::from(self.random(bound));
        (start..=to).chain(from..start).take(most).find(is_free)
    }

    fn list_blocks(&mut self) {
        if !std::mem::replace(&mut self.claims.is_listing, true) {
            let scope = Scope::Blocks;
            self.asks.push(Ask::List { scope, fresh: true });
        }
    }

    fn claim_block(&mut self, pool: &str, first: IpAddr) {
        if !self.claims.claiming.insert(pool.to_owned()) {
            return;
        }
        let id = self.id(Pending::Block((pool.to_owned(), first)));
        let key = self.keys.block(pool, first);
        let value = schema::value(&schema::BlockRecord {
            host: self.conf.host.clone(),
        });
        let put = Op::Put {
            key: key.clone(),
            value,
            lease: 0,
        };
        let txn = Txn {
            expect: vec![(key, 0)],
            then: vec![put],
        };
        self.asks.push(Ask::Txn { id, txn });
    }

    /// Whether a block is this host's.
    pub(super) fn block_answered(&mut self, key: BlockKey, revision: i64, outcome: Outcome) {
        self.claims.claiming.remove(&key.0);
        let (revision, value) = match outcome {
            Outcome::Done => (revision, None),
            Outcome::Conflict(found) => match found.into_iter().flatten().next() {
                Some(kv) => (kv.mod_revision, Some(kv.value)),
                None => (0, Some(Vec::new())),
            },
            Outcome::Denied(why) => {
                self.refuse_waiting(&refusal(&why));
                self.denied = Some(why);
                return;
            }
        };
        let host = value.map(|value| schema::block(&value).map(|record| record.host));
        let is_mine = host.is_none_or(|host| host.as_ref() == Some(&self.conf.host));
        if let Some(blocks) = self.claims.blocks.as_mut().filter(|_| revision != 0) {
            let used_at = self.now;
            let block = Block {
                revision,
                is_mine,
                used_at,
            };
            blocks.insert(key, block);
        }
        self.serve_waiting();
    }

    pub(super) fn blocks_listed(&mut self, kvs: &[Kv]) {
        self.claims.is_listing = false;
        let blocks = kvs.iter().filter_map(|kv| {
            let leaf = self.keys.leaf(Scope::Blocks, &kv.key)?;
            let (pool, cidr) = leaf.split_once('/')?;
            let first: IpAddr = cidr.split_once('/')?.0.parse().ok()?;
            let host = schema::block(&kv.value).map(|record| record.host);
            let block = Block {
                revision: kv.mod_revision,
                is_mine: host.as_ref() == Some(&self.conf.host),
                used_at: self.now,
            };
            (block_of(first) == first).then(|| ((pool.to_owned(), first), block))
        });
        self.claims.blocks = Some(blocks.collect());
        self.claims.blocks_at = self.now;
        self.serve_waiting();
    }

    pub(super) fn blocks_not_listed(&mut self, why: &str) {
        self.claims.is_listing = false;
        self.refuse_waiting(&format!("etcd cannot list blocks of addresses: {why}"));
    }

    fn serve_waiting(&mut self) {
        for of in std::mem::take(&mut self.claims.waiting) {
            self.serve(of);
        }
    }

    /// The endpoint of a claim was written: its addresses are given.
    pub(super) fn claim_done(&mut self, key: (u32, MacAddr)) {
        let until = self.now + CLAIM_MS;
        if let Some(of) = self.claims.open.get_mut(&key) {
            of.until.get_or_insert(until);
            self.tell_given(key);
        }
    }

    /// Something that a claim wants is another's. Its endpoint was not written; whether it is one.
    pub(super) fn claim_conflicts(&mut self, key: (u32, MacAddr), found: &[Option<Kv>]) -> bool {
        let is_open = |of: &Claiming| of.until.is_none();
        if !self.claims.open.get(&key).is_some_and(is_open) {
            return false;
        }
        let Some(mut of) = self.claims.open.remove(&key) else {
            return false;
        };
        of.tries += 1;
        let until = self.now + TAKEN_MS;
        let of_ip: BTreeMap<String, IpAddr> = {
            let ips = of.ips.iter();
            ips.map(|ip| (self.keys.address(key.0, *ip), *ip)).collect()
        };
        let mut why = (of.tries > TRIES_MAX).then(|| "all addresses are taken, or rest".to_owned());
        for kv in found.iter().flatten() {
            let is_wanted = match of_ip.get(&kv.key) {
                Some(ip) => {
                    self.claims.taken.insert((key.0, *ip), until);
                    of.claim.ips.contains(ip).then(|| ip.to_string())
                }
                None => of.claim.mac.map(|mac| mac.to_string()),
            };
            if let Some(what) = is_wanted {
                why = Some(format!("{what} is taken, or was until a moment ago"));
            }
        }
        match why {
            Some(why) => self.refuse(&of, &why),
            None => self.serve(of),
        }
        true
    }

    /// The registry refuses to write what a claim wants.
    pub(super) fn claims_denied(&mut self, keys: &[(u32, MacAddr)], why: &str) {
        for key in keys {
            if let Some(of) = self.claims.open.get(key).filter(|of| of.until.is_none()) {
                let of = of.clone();
                self.claims.open.remove(key);
                self.owns.remove(key);
                self.refuse(&of, &refusal(why));
            }
        }
    }

    /// There is no connection any more.
    pub(super) fn claims_down(&mut self) {
        let why = format!("etcd cannot be reached: {}", self.why_down);
        self.refuse_unwritten(&why);
        self.claims.blocks = None;
        self.claims.is_listing = false;
        self.claims.claiming.clear();
    }

    /// Nothing is written for a while: claims that wait for it are refused.
    pub(super) fn refuse_unwritten(&mut self, why: &str) {
        self.refuse_waiting(why);
        let open = self.claims.open.iter().filter(|(_, of)| of.until.is_none());
        for key in open.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(of) = self.claims.open.remove(&key) {
                self.refuse(&of, why);
            }
            // It may have been written.
            self.retire(self.now, key.0, key.1);
        }
    }

    /// When something of this is due.
    pub(super) fn claims_due_at(&self) -> Option<u64> {
        let given = self.claims.open.values().filter_map(|of| of.until);
        given.chain(self.claims.compare_at).min()
    }

    pub(super) fn claims_tick(&mut self) {
        let now = self.now;
        let is_over = |of: &Claiming| of.until.is_some_and(|until| until <= now);
        let over = self.claims.open.iter().filter(|(_, of)| is_over(of));
        for (vni, mac) in over.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.retire(now, vni, mac);
        }
        self.compare_next();
    }

    /// Compares one network after the other, each in its turn.
    fn compare_next(&mut self) {
        let count = u64::try_from(self.of_vni.len().max(1)).unwrap_or(1);
        let next = self.now + COMPARE_MS / count;
        if *self.claims.compare_at.get_or_insert(next) > self.now {
            return;
        }
        self.claims.compare_at = Some(next);
        let later = self.of_vni.range(self.claims.compared.saturating_add(1)..);
        let later = later.map(|(vni, _)| *vni).next();
        if later.is_none() && !self.has_twin() {
            self.free_blocks();
        }
        let Some(vni) = later.or_else(|| self.of_vni.keys().next().copied()) else {
            return;
        };
        self.claims.compared = vni;
        // Before, this host's own endpoints are not all known.
        let may_remove = self.is_alive && !self.has_twin();
        let known = |sync: &&mut Sync| may_remove && sync.stale_at == Some(u64::MAX);
        let sync = self.scopes.get_mut(&Scope::Endpoints(vni)).filter(known);
        if let Some(sync) = sync {
            // A record that came late, of an earlier start.
            sync.stale_at = Some(self.now);
            let scope = Scope::Addresses(vni);
            self.asks.push(Ask::List {
                scope,
                fresh: false,
            });
        }
    }

    /// Addresses of a network, as they are in the registry: those of this host that none of its endpoints has go, and those that are
    /// missing are written again.
    pub(super) fn addresses_listed(&mut self, vni: u32, revision: i64, kvs: &[Kv]) {
        let me = self.conf.host.clone();
        let mut listed = BTreeSet::new();
        for kv in kvs {
            let leaf = self.keys.leaf(Scope::Addresses(vni), &kv.key);
            let ip = leaf.and_then(|leaf| leaf.parse::<IpAddr>().ok());
            let record = schema::address(&kv.value).filter(|of| of.host == me && !of.is_resting);
            let (Some(ip), Some(record)) = (ip, record) else {
                continue;
            };
            listed.insert(ip);
            let Some(mac) = schema::mac(&record.mac) else {
                continue;
            };
            let entry = self.mirror.entry(vni, mac);
            let is_mine = entry.is_some_and(|entry| entry.host == mirror::ME);
            let seen = entry.map_or(0, |entry| entry.mod_revision);
            if self.owns.contains_key(&(vni, mac)) {
                continue;
            }
            if is_mine {
                self.retire(self.now, vni, mac);
                continue;
            }
            // An endpoint that has it is not written meanwhile.
            let endpoint = (self.keys.endpoint(vni, mac), seen);
            self.remove((kv.key.clone(), kv.mod_revision), Some(endpoint));
        }
        let now = self.now;
        let owns = self
            .owns
            .range_mut((vni, MacAddr([0; 6]))..=(vni, MacAddr([0xff; 6])));
        for (_, own) in owns {
            let is_whole = own.ips.iter().all(|ip| listed.contains(ip));
            if own.phase == Phase::Held && own.seen <= revision && !is_whole {
                own.phase = Phase::Owed(now);
            }
        }
    }

    /// Gives up blocks that were not used for a while and have no address of this host's endpoints.
    fn free_blocks(&mut self) {
        let used = self.owns.values().flat_map(Own::addresses);
        let used: BTreeSet<IpAddr> = used.map(block_of).collect();
        let is_old = |block: &Block, now| block.used_at + COMPARE_MS <= now;
        let now = self.now;
        let Some(blocks) = &mut self.claims.blocks else {
            return self.list_blocks();
        };
        let is_free = |key: &BlockKey, block: &mut Block| {
            block.is_mine && is_old(block, now) && !used.contains(&key.1)
        };
        for (key, block) in blocks.extract_if(.., is_free).collect::<Vec<_>>() {
            let key = self.keys.block(&key.0, key.1);
            self.remove((key, block.revision), None);
        }
    }

    /// Removes a record of this host that nothing needs, if it and another one are as they were seen.
    fn remove(&mut self, record: (String, i64), other: Option<(String, i64)>) {
        let id = self.id(Pending::Orphan);
        let key = record.0.clone();
        let txn = Txn {
            expect: other.into_iter().chain([record]).collect(),
            then: vec![Op::Delete { key }],
        };
        self.asks.push(Ask::Txn { id, txn });
    }
}
